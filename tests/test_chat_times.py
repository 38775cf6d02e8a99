from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memecmd_utils import chat_times

MOMENTS = [datetime(2024, 5, day, hour, minute) for day in (1, 2, 13) for hour, minute in ((9, 5), (23, 59))]
FORMS = [
    "%Y-%m-%d %H:%M:%S", "%Y/%m/%d %H:%M", "%Y.%m.%d %H:%M", "%Y年%m月%d日 %H:%M", "%m月%d日 %H:%M",
    "%m-%d %H:%M",
    "%d/%m/%Y %H:%M", "%m/%d/%Y %I:%M %p", "%d.%m.%y, %H:%M:%S", "%m/%d/%y, %I:%M %p", "%y/%m/%d %H:%M",
    "%b %d, %Y %I:%M %p", "%d %B %Y at %H:%M", "%a, %d %b %Y %H:%M:%S +0800", "%a %b %d %H:%M:%S +0800 %Y",
    "%Y-%m-%dT%H:%M:%SZ", "%Y-%m-%dT%H:%M:%S+08:00", "%Y%m%d %H:%M", "%Y%m%d%H%M%S", "[%Y/%m/%d %H:%M]",
]  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("places", [(0, 1, 2, 3, 4, 5), (5, 4, 3, 2, 1, 0), (3, 0, 5, 1, 4, 2)])
def test_common_forms_of_a_column_sort_as_the_moments_do(form, places) -> None:
    keys = chat_times.moments([MOMENTS[place].strftime(form) for place in places])
    assert sorted(range(6), key=keys.__getitem__) == sorted(range(6), key=places.__getitem__)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("下午3:20", 15 * 3600 + 1200), ("凌晨 1:20", 4800), ("晚上12:30", 1800), ("中午11:50", 42600),
        ("深夜11:50", 85800), ("半夜12:10", 600), ("半夜 1:10", 4200), ("晚上1:10", 4200),
        ("晚上8:10", 72600),
        ("中午 1:10", 47400), ("上午 12:05", 300), ("12:05 AM", 300), ("12:05 p.m.", 43500),
        ("3:20\u202fPM", 55200),
        ("오후 3:20", 55200), ("3点20分", 12000), ("１２：３０", 45000), ("24:00", 86400),
        ("(12:30:11)", 45011),
        ("昨天 12:30", 45000), ("Yesterday at 3:20 PM", 55200), ("星期三 12:30", 45000), ("5月1日", None),
    ],
)  # fmt: skip
def test_times_of_day(text, seconds) -> None:
    assert chat_times.whole(text).seconds == seconds


@pytest.mark.parametrize(
    "text", ["", "25:10", "10:3", "3.5", "2024-5", "今天", "明天 10:30", "10:30 见", "24:01"]
)
def test_what_is_no_stamp(text) -> None:
    assert chat_times.whole(text) is None


@pytest.mark.parametrize(
    "values",
    [
        ["12:30", "12:31"],  # of which day?
        ["昨天 12:30", "5月1日 12:30"],
        ["2024-01-01", "2024-01-01 10:00"],
        ["2024-01-01 10:00", "2024-01-01T09:00+08:00"],
        ["12月31日 23:59", "1月1日 00:01"],  # of which year?
        ["01/02/2024", "03/01/2024", "02/03/2024"],  # day or month first: the order would differ
        ["2024/13/45 12:30", "2024/01/01 12:30"],
        ["soon", "later"],
    ],
)
def test_moments_that_cannot_be_compared(values) -> None:
    assert chat_times.moments(values) is None


def test_the_reading_that_fits_all_or_the_order_of_the_file_is_taken() -> None:
    assert chat_times.moments(["01/05/2024", "13/05/2024"]) == [datetime(2024, 5, 1), datetime(2024, 5, 13)]
    assert chat_times.moments(["12/31/23", "01/05/24"]) == [datetime(2023, 12, 31), datetime(2024, 1, 5)]
    assert chat_times.moments(["02/01/2024", "03/01/2024", "01/02/2024"])[2] == datetime(2024, 2, 1)
    assert chat_times.moments([1714537811, "1714537800.5"]) == [1714537811.0, 1714537800.5]


@given(st.lists(st.datetimes(datetime(1999, 1, 1), datetime(2040, 1, 1)), min_size=2, max_size=8))
def test_chinese_dates_keep_their_order(moments) -> None:
    halves = [
        f"{m.year}年{m.month}月{m.day}日 {'上午' if m.hour < 12 else '下午'}{m.hour % 12 or 12}:{m.minute:02}"
        for m in moments
    ]
    exact = [m.replace(second=0, microsecond=0) for m in moments]
    assert chat_times.moments(halves) == exact
    assert (chat_times.direction(exact) == 1) is (exact == sorted(exact))
    assert (chat_times.direction(exact) == -1) is (exact != sorted(exact) and exact == sorted(exact)[::-1])
