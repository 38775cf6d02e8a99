import json
from pathlib import Path

import pytest
from PIL import Image

from memecmd_utils.core import paths
from memecmd_utils.report import tracked
from memecmd_utils.runs import StageMissing

HEAD = "dialogue_id,turn,speaker,strategy,meme_id,rank,score\n"


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (1.0, 1.0 + 9e-7),
        (0.293275, 0.293274),  # one unit of the last decimal, and more than 1e-6 in binary
        (3, 3.0),
        (float("nan"), float("nan")),
        ({"x": [1, "a", None, True]}, {"x": [1, "a", None, True]}),
        ({"x": 1, "y": 2}, {"y": 2, "x": 1}),
    ],
)
def test_equal_values(a, b) -> None:
    assert tracked.differences(a, b) == []


@pytest.mark.parametrize(
    ("a", "b", "said"),
    [
        (1.0, 1.0 + 2e-6, ": 1.0 and 1.000002"),
        (1000.0, 1000.001, ": 1000.0 and 1000.001"),  # the tolerance is absolute
        ("m01", "m02", ": 'm01' and 'm02'"),
        (3, 4, ": 3 and 4"),
        (None, 0.0, ": None and 0.0"),
        (0.5, None, ": 0.5 and None"),
        ("", 2.5, ": '' and 2.5"),
        (2.5, "", ": 2.5 and ''"),
        (float("nan"), 1.0, ": nan and 1.0"),
        (True, 1, ": True and 1"),
        (True, 1.0, ": True and 1.0"),
        ([1, 2], [1], ": 2 and 1 entries"),
        ([1], {"x": 1}, ": [1] and {'x': 1}"),
        ({"x": 1}, {"x": 1, "y": 2}, ".y: only in one"),
        ({"x": {"y": [0, {"z": 1.0}]}}, {"x": {"y": [0, {"z": 2.0}]}}, ".x.y[1].z: 1.0 and 2.0"),
    ],
)
def test_differences(a, b, said) -> None:
    assert tracked.differences(a, b) == [said]


def write_run(folder: Path, csv: str, numbers: dict, colour=(10, 20, 30), size=(20, 10)) -> None:
    (folder / "figures").mkdir(parents=True)
    (folder / "numbers.json").write_text(json.dumps(numbers), encoding="utf-8")
    (folder / "placements.csv").write_text(HEAD + csv, encoding="utf-8")
    for name in tracked.PICTURES:
        target = folder / name if name == "chat.png" else folder / "figures" / name
        Image.new("RGB", size, colour).save(target)


@pytest.fixture
def reports(tmp_path, monkeypatch) -> Path:
    monkeypatch.setattr(paths, "reports", tmp_path)
    write_run(tmp_path / "example", "d1,2,B,greedy,12e456789012,1,0.250000\n", {"x": 1.0})
    return tmp_path


def test_refresh_and_compare(reports) -> None:
    copied = tracked.refresh()
    assert {p.name for p in copied} == {*tracked.TEXT_FILES, *tracked.PICTURES}
    assert tracked.compare(tracked=reports) == []


@pytest.mark.parametrize(
    ("csv", "where"),
    [
        ("d1,2,B,greedy,34e456789012,1,0.250000\n", "placements[1][4]"),  # both are infinite as numbers
        ("d1,3,B,greedy,12e456789012,1,0.250000\n", "placements[1][1]"),
        ("d1,2,B,greedy,12e456789012,,0.250000\n", "placements[1][5]"),
        ("d1,2,B,greedy,12e456789012,1,0.250003\n", "placements[1][6]"),
        ("d1,2,B,greedy,12e456789012,1,\n", "placements[1][6]"),
        ("", "placements: 2 and 1 entries"),
    ],
)
def test_a_changed_placement_is_found(reports, csv, where) -> None:
    tracked.refresh()
    (reports / "example" / "placements.csv").write_text(HEAD + csv, encoding="utf-8")
    found = tracked.compare(tracked=reports)
    assert len(found) == 1 and found[0].startswith(where)


def test_changed_numbers_and_pictures_are_found(reports) -> None:
    tracked.refresh()
    (reports / "example" / "numbers.json").write_text('{"x": 1.1}', encoding="utf-8")
    Image.new("RGB", (20, 10), (200, 20, 30)).save(reports / "example" / "figures" / "fig3_scores.png")
    found = tracked.compare(tracked=reports)
    assert found[0] == "numbers.x: 1.0 and 1.1" and found[1].startswith("fig3_scores.png: pictures differ")
    assert len(found) == 2


def test_a_run_that_was_not_made_says_what_to_do(reports) -> None:
    (reports / "example" / "chat.png").unlink()
    with pytest.raises(StageMissing, match=r"chat\.png: run `make reproduce` first"):
        tracked.refresh()


def test_picture_difference_by_hand(tmp_path) -> None:
    """Half of the pixels go from black to white: .5. One channel of three by 51 of 255: .2 / 3."""
    black = Image.new("RGB", (10, 10))
    black.save(tmp_path / "black.png")
    half = black.copy()
    half.paste((255, 255, 255), (0, 0, 5, 10))
    half.save(tmp_path / "half.png")
    Image.new("RGB", (10, 10), (51, 0, 0)).save(tmp_path / "red.png")
    Image.new("RGB", (10, 11)).save(tmp_path / "taller.png")
    difference = tracked.picture_difference
    assert difference(tmp_path / "black.png", tmp_path / "black.png") == 0
    assert difference(tmp_path / "black.png", tmp_path / "half.png") == pytest.approx(0.5)
    assert difference(tmp_path / "black.png", tmp_path / "red.png") == pytest.approx(0.2 / 3)
    assert difference(tmp_path / "black.png", tmp_path / "taller.png") == 1
