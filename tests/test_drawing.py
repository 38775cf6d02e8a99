"""Figures have equal bytes, lines break where they may, lessons follow the dialogues of their rule."""

import json
import warnings

import pandas as pd
import pytest
from PIL import Image

from memecmd_utils import drawing, grades
from memecmd_utils.files import paths

# --- fonts and figures


def test_figures_have_the_simplified_chinese_face_and_equal_bytes(tmp_path, monkeypatch) -> None:
    from fontTools.ttLib import TTFont
    from matplotlib import font_manager

    monkeypatch.setattr(paths, "interim", tmp_path)
    monkeypatch.setattr(font_manager.fontManager, "ttflist", [*font_manager.fontManager.ttflist])
    written = []
    for folder in (tmp_path / "a", tmp_path / "b"):
        with drawing.style(), warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)  # a missing glyph
            figure = drawing.canvas(3, 2)
            figure.text(0.1, 0.5, "表情包 −1")
            written.append([path.read_bytes() for path in drawing.save(figure, folder, "x")])
    assert written[0] == written[1]
    path = drawing.cjk_font_path()
    with TTFont(path, lazy=True) as font:
        assert font["name"].getDebugName(1) == "Noto Sans CJK SC" and ord("梗") in font.getBestCmap()


# --- lines of text


def width(text: str) -> float:
    """Every character of ASCII is half as wide as any other."""
    return sum(1 if c.isascii() and len(c) == 1 else 2 for c in drawing.clusters(text))


@pytest.mark.parametrize(
    ("text", "limit", "lines"),
    [
        ("今天，好", 4, ["今", "天，", "好"]),  # no comma at the start of a line
        ("看《活着》吧", 4, ["看", "《活", "着》", "吧"]),  # no bracket left behind, none in front
        ("共3,200人", 6, ["共", "3,200", "人"]),  # a number stays whole, and so does a word
        ("hello big world", 9, ["hello big", "world"]),  # the space at the break is dropped
        ("一\r\n二\u2028三", 8, ["一", "二", "三"]),
        ("abcdefghij", 4, ["abcd", "efgh", "ij"]),  # wider than a line: cut where it must be
        ("好\u200d呀\ufe0f", 8, ["好呀"]),  # nothing to draw
    ],
)
def test_wrap(text: str, limit: int, lines: list[str]) -> None:
    assert drawing.wrap(text, limit, width) == lines


def test_a_sign_that_the_chinese_font_lacks_is_no_crossed_box() -> None:
    drawn = [Image.new("RGB", (60, 60)) for _ in range(2)]
    for image, sign in zip(drawn, "😀\U0010fffd", strict=True):
        drawing.write_line(image, (5, 50), sign, 40, (255, 255, 255))
    assert drawn[0].tobytes() != drawn[1].tobytes() and drawn[0].getbbox()


# --- lessons


def test_the_teaching_dialogues_are_those_of_the_declared_rule() -> None:
    """Computed from the tracked placements and the grades; `nearest` is to the mean of all Greedy memes."""
    known = grades.mean_grades(grades.grades_by_turn(paths.example / "grades.jsonl"))
    placed = pd.read_csv(paths.reports / "placements.csv").query("strategy == 'greedy'")
    keys = zip(placed.dialogue_id, placed.turn, placed.meme_id, strict=True)
    placed["grade"] = [known[name, turn][meme] for name, turn, meme in keys]
    means = placed.groupby("dialogue_id").grade.agg(["mean", "size"]).query("size >= 4").sort_index()
    means["away"] = (means["mean"] - placed.grade.mean()).abs()
    best, typical, worst = (
        means.sort_values([column, "size"], ascending=[rises, False]).index[0]
        for column, rises in (("mean", False), ("away", True), ("mean", True))
    )
    wanted = json.loads((paths.example / "teaching_dialogues.json").read_text("utf-8"))
    assert (wanted["lands"], wanted["typical"], wanted["fails"]) == (best, typical, worst)
