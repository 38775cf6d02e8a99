from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memecmd_utils.chats import formats
from memecmd_utils.chats.messages import ChatError

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
    keys = formats.moments([MOMENTS[place].strftime(form) for place in places])
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
    assert formats.full_stamp(text).seconds == seconds


@pytest.mark.parametrize(
    "text", ["", "25:10", "10:3", "3.5", "2024-5", "今天", "明天 10:30", "10:30 见", "24:01"]
)
def test_what_is_no_stamp(text) -> None:
    assert formats.full_stamp(text) is None


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
    assert formats.moments(values) is None


def test_the_reading_that_fits_all_or_the_order_of_the_file_is_taken() -> None:
    assert formats.moments(["01/05/2024", "13/05/2024"]) == [datetime(2024, 5, 1), datetime(2024, 5, 13)]
    assert formats.moments(["12/31/23", "01/05/24"]) == [datetime(2023, 12, 31), datetime(2024, 1, 5)]
    assert formats.moments(["02/01/2024", "03/01/2024", "01/02/2024"])[2] == datetime(2024, 2, 1)
    fractions = formats.moments(["2024-05-01T12:30:11.25Z", "2024-05-01T12:30:11.125Z"])
    assert [moment.microsecond for moment in fractions] == [250_000, 125_000]
    assert formats.moments([1714537811, "1714537800.5"]) == [1714537811.0, 1714537800.5]


@given(st.lists(st.datetimes(datetime(1999, 1, 1), datetime(2040, 1, 1)), min_size=2, max_size=8))
def test_chinese_dates_keep_their_order(moments) -> None:
    halves = [
        f"{m.year}年{m.month}月{m.day}日 {'上午' if m.hour < 12 else '下午'}{m.hour % 12 or 12}:{m.minute:02}"
        for m in moments
    ]
    exact = [m.replace(second=0, microsecond=0) for m in moments]
    assert formats.moments(halves) == exact
    assert (formats.direction(exact) == 1) is (exact == sorted(exact))
    assert (formats.direction(exact) == -1) is (exact != sorted(exact) and exact == sorted(exact)[::-1])


# --- encodings

CHATS = {
    "big5": [
        "speaker,text\n小華,去不去\n阿傑,下雨\n",
        "發送人,內容\n王小明,今天晚上吃什麼？\n陳美玲,隨便，你決定就好\n",
        "時間,暱稱,訊息\n2024/05/01 12:30,小明,哈哈哈哈\n2024/05/01 12:31,小華,好喔\n",
    ],
    "big5hkscs": ["speaker,text\n阿明,佢哋喺邊度呀，我哋去食嘢囉\n阿欣,唔知喎\n"],
    "shift_jis": [
        "speaker,text\n太郎,了解\n花子,東京駅で会おう\n",
        "名前,内容\nさくら,週末に山に登らない？\n健太,天気予報だと雨だよ\n",
        "話者,テキスト\nタロウ,ｱﾘｶﾞﾄｳ\nハナコ,どういたしまして\n",
    ],
    "euc_jp": ["speaker,text\nさくら,週末に山に登らない？\n健太,天気予報だと雨だよ\n"],
    "euc_kr": ["speaker,text\n민수,주말에 산에 갈래?\n지영,비 온대\n"],
    "gb18030": [
        "speaker,text\n小雨,去不去\n阿杰,下雨\n",
        "昵称,消息\n张三,开会吗\n李四,[图片]\n王五,😂😂开\n",
        "speaker,text\n甲,一\n乙,二\n",
    ],
    "cp1252": [
        "speaker,text\nJörg,Schöne Grüße\nÄnne,“Où?” “Là…”\n",
        "speaker,text\nBob,don’t know\nAnn,me neither\n",
        "speaker,text\nJosé,¿Qué tal?\nZoë,très bien\n",
    ],
}
EACH = [(codec, text) for codec, texts in CHATS.items() for text in texts]


@pytest.mark.parametrize(("codec", "text"), EACH)
def test_an_older_encoding_is_recognised_said_and_written_back(codec, text) -> None:
    data = text.encode(codec)
    read, encoding = formats.decode(data, "c.csv")
    assert read == text and encoding.guessed and "a guess: FIELDS=" in encoding.text()
    assert encoding.encode(read) == data
    named = formats.decode(data, "c.csv", codec)
    assert named[0] == text and "guess" not in named[1].text(), "its owner may name it"
    # Long lines of ASCII around do not hide what tells.
    assert formats.decode(b"#,ok\n" * 20_000 + data, "c.csv")[0].endswith(text)


@pytest.mark.parametrize("codec", ["utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("text", [t for _, t in EACH] + ["speaker,text\nBob,hi\n", "发送人,内容\n小雨,一\n"])
def test_wide_characters_without_a_mark(codec, text) -> None:
    read, encoding = formats.decode(text.encode(codec), "c.csv")
    assert (read, encoding.codec) == (text, codec)


@pytest.mark.parametrize(("codec", "text"), [("utf-8", text) for _, text in EACH] + EACH)
@pytest.mark.parametrize("zeros", ["\0", "\0\0", "\0\0\0\0"])
def test_a_zero_byte_does_not_make_it_wide(codec, text, zeros) -> None:
    for place in (0, 5, len(text) // 2, len(text)):
        spoilt = text[:place] + zeros + text[place:]
        assert formats.decode(spoilt.encode(codec), "c.csv")[0] == spoilt


def test_a_damaged_file_in_utf_8_stays_utf_8() -> None:
    data = "speaker,text\n小雨,周末去不去爬山\n阿杰,好".encode()[:-1] + b",\xff\n"
    read, encoding = formats.decode(data, "c.csv")
    assert "周末去不去爬山" in read and encoding.codec == "utf-8" and encoding.encode(read) == data
    assert "3 bytes" in encoding.text()


@pytest.mark.parametrize("codec", ["gb18030", "big5"])
def test_a_damaged_file_of_two_bytes_a_sign_is_no_western_text(codec) -> None:
    data = CHATS[codec][1].encode(codec)
    for damaged in (data[:-2], data[:30] + b"\xff" + data[30:]):
        with pytest.raises(ChatError, match="in none of"):
            formats.decode(damaged, "c.csv")
        with pytest.raises(ChatError, match=r"c\.csv line \d: not"):
            formats.decode(damaged, "c.csv", codec)
    with pytest.raises(ChatError, match="in none of"):
        formats.decode("Иван,Привет как дела\n".encode("cp1251"), "c.csv")


@pytest.mark.parametrize("codec", ["utf-8-sig", "utf-16", "utf-32", "iso2022_jp"])
def test_marks_and_escapes(codec) -> None:
    data = "speaker,text\n太郎,了解\n".encode(codec)
    for given_codec in ("", codec):
        read, encoding = formats.decode(data, "c.csv", given_codec)
        assert read == "speaker,text\n太郎,了解\n" and encoding.encode(read) == data


@pytest.mark.parametrize(
    ("data", "named", "message"),
    [
        (b"x", "klingon", "no encoding is called 'klingon'"),
        (b"x", "base64", "no encoding is called 'base64'"),
        ("a\n好".encode(), "ascii", "c.csv line 2: not ascii"),
        (b"\xef\xbb\xbfa\n\xff", "", "c.csv line 2: not utf-8"),
        (b"a,\xff\x81\n", "", "in none of UTF-8, UTF-16 and GB18030, Big5"),
    ],
)
def test_what_cannot_be_read_says_why(data, named, message) -> None:
    with pytest.raises(ChatError, match=message):
        formats.decode(data, "c.csv", named)


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused_and_come_back(data) -> None:
    try:
        text, encoding = formats.decode(data, "c.csv")
    except ChatError:
        return
    assert formats.decode(encoding.encode(text), "c.csv", encoding.codec)[0] == text
    assert not encoding.codec.startswith("utf") or encoding.encode(text) == data
