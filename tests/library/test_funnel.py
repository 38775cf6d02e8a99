import pytest

from memecmd_utils.library import funnel
from memecmd_utils.library.funnel import Exit
from memecmd_utils.settings import Filters


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
