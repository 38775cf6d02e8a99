import pytest

from memecmd_utils.library import funnel
from memecmd_utils.library.funnel import Exit
from memecmd_utils.settings import Filters


@pytest.mark.parametrize(
    ("filters", "size", "reason"),
    [
        ({}, (16, 4000), None),
        ({"min_side": 64}, (64, 900), None),
        ({"min_side": 64}, (900, 63), "min_side"),
        ({"max_aspect_ratio": 3}, (100, 300), None),
        ({"max_aspect_ratio": 3}, (301, 100), "max_aspect_ratio"),
        ({"max_aspect_ratio": 1}, (100, 100), None),
        ({"min_side": 64, "max_aspect_ratio": 2}, (10, 100), "min_side"),
    ],
)
def test_sizes(filters, size, reason) -> None:
    out = funnel.by_size(Filters(**filters), *size)
    assert (out and out.reason) == reason
    assert out is None or (out.step == "filter" and reason in out.why)


@pytest.mark.parametrize(
    ("filters", "text", "reason"),
    [
        ({}, "", None),
        ({"needs_text": True}, " \n", "needs_text"),
        ({"needs_text": True}, "？", None),
        ({"max_text_chars": 4}, "早 上 好啊", None),
        ({"max_text_chars": 4}, "早上好啊！", "max_text_chars"),
        ({"max_text_chars": 0}, "早", "max_text_chars"),
        ({"max_text_chars": 0}, "", None),
    ],
)
def test_texts(filters, text, reason) -> None:
    out = funnel.by_text(Filters(**filters), text)
    assert (out and out.reason) == reason


def test_faults_of_one_kind_share_a_reason() -> None:
    said = {
        "too small: 9 x 12 (least side 16)": "too small",
        "file too large: 200,000,000 bytes (limit 128,000,000)": "file too large",
        "not an image (PNG, JPEG are read)": "not an image",
        "broken image data: image file is truncated (3 bytes)": "broken image data",
        "empty file": "empty file",
        "cannot be read: Permission denied": "cannot be read",
    }
    assert {why: funnel.undecodable(why).reason for why in said} == said


def test_the_rows_add_up_and_name_every_step(tmp_path) -> None:
    exits = {
        "a": funnel.undecodable("too small: 1 x 1"),
        "b": funnel.undecodable("too small: 2 x 2"),
        "c": funnel.undecodable("empty file"),
        "d": Exit(funnel.NEAR, "near duplicate of x"),
        "e": Exit(funnel.CURATION, "dropped"),
        "f": Exit(funnel.FILTER, "9 characters", "max_text_chars"),
        "g": Exit(funnel.LINK_OUT, "leads out"),
    }
    in_use = funnel.in_use(Filters(min_side=20, max_text_chars=0))
    assert in_use == ["min_side", "max_text_chars"] and funnel.in_use(Filters()) == []
    funnel.write(tmp_path / "funnel.csv", 21, exits, 4, 10, in_use)
    assert funnel.read_funnel(tmp_path / "funnel.csv").values.tolist() == [
        ["found", "", 21, 21],
        ["link out of the source", "", 1, 20],
        ["undecodable", "empty file", 1, 19],
        ["undecodable", "too small", 2, 17],
        ["exact duplicate", "", 0, 17],
        ["filter", "max_text_chars", 1, 16],
        ["filter", "min_side", 0, 16],
        ["near duplicate", "", 1, 15],
        ["dropped by curation", "", 1, 14],
        ["not sampled", "", 4, 10],
        ["kept", "", 10, 10],
    ]
    with pytest.raises(ValueError, match="21 files found, 10 left after all steps, but 11 kept"):
        funnel.write(tmp_path / "other.csv", 21, exits, 4, 11, [])
    assert not (tmp_path / "other.csv").exists()
