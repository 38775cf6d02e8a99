"""Files are written whole or not at all, and read as they were written; pages show texts as texts."""

import csv
import errno
import json
from pathlib import Path

import made_up
import pandas as pd
import pytest

from memecmd_utils import files
from memecmd_utils.files import StageOutputError
from memecmd_utils.runs import Run
from memecmd_utils.schemas import NewsItem, Placement, Turn
from memecmd_utils.settings import Profile


def turn(text: str = "早", **changes) -> Turn:
    return Turn(**{"source": "authored", "turn": 1, "speaker": "A", "text": text, **changes})


def test_a_write_that_fails_leaves_the_old_file_and_nothing_beside_it(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "x.txt"
    files.write_text(target, "旧\n")
    with pytest.raises(RuntimeError), files.atomic_path(target) as part:
        part.write_text("half", encoding="utf-8")
        assert target.read_text(encoding="utf-8") == "旧\n", "a reader never sees half a file"
        raise RuntimeError
    assert target.read_text(encoding="utf-8") == "旧\n"
    assert [path.name for path in target.parent.iterdir()] == ["x.txt"]


def test_jsonl_brings_any_text_back_and_a_bad_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    records = [turn(f"{text}尾") for text in ("一\u2028二", "a\r\nb", "引号\"'{}", "\x85", "表情😀")]
    files.write_jsonl(path, records)
    assert files.read_jsonl(path, Turn) == records
    good = turn().model_dump_json()
    for bad in ("{", json.dumps({"turn": 1}), good.replace("}", ', "extra": 1}')):
        path.write_text(f"\ufeff{good}\n\n{bad}\n", encoding="utf-8")
        with pytest.raises(StageOutputError, match=r"^x\.jsonl line 3: [^\n]+$") as caught:
            files.read_jsonl(path, Turn)
        assert "http" not in str(caught.value)


def test_parquet_keeps_types_and_one_that_does_not_fit_replaces_no_good_file(tmp_path: Path) -> None:
    path = tmp_path / "p.parquet"
    rows = [made_up.placement(2, "m1", rank=None, score=None), made_up.placement(3, "m2")]
    files.write_parquet(path, rows, Placement)
    read = files.read_parquet(path, Placement)
    assert read == rows and isinstance(read[1].rank, int) and read[0].score is None
    with pytest.raises(StageOutputError, match=r"p\.parquet: news_id: Field required"):
        files.read_parquet(path, NewsItem)
    with pytest.raises(StageOutputError):
        files.write_parquet(path, [rows[0].model_copy(update={"turn": 0})], Placement)
    assert files.read_parquet(path, Placement) == rows and [*tmp_path.iterdir()] == [path]


@pytest.mark.parametrize("text", ["=1+1.png", "+1", "-1-1.png", "@SUM(A1)", "\t=1", "\r=1", "''@x"])
def test_a_cell_that_begins_like_a_formula_is_guarded_and_comes_back(tmp_path: Path, text: str) -> None:
    for other in ("", "a=1", "' =1", "'tis", "图.png", " =1.png"):
        assert files.guarded(other) == files.unguarded(other) == other
    cell = files.guarded(text)
    assert cell[0] == "'" and files.unguarded(cell) == text
    files.write_frame(tmp_path / "y.csv", pd.DataFrame({"file": [text, "+"], "n": [-1.5, 2]}))
    with (tmp_path / "y.csv").open(encoding="utf-8", newline="") as handle:
        assert list(csv.reader(handle))[1:] == [[cell, "-1.500000"], ["+", "2.000000"]]


# --- encodings and errors


@pytest.mark.parametrize("codec", ["utf-8", "utf-8-sig", "gb18030", "utf-16", "utf-16-le", "utf-16-be"])
def test_a_text_is_read_in_the_encodings_that_editors_write(codec: str) -> None:
    for text in ("到家了吗\r\n", '{"text": "刚到，早点睡"}\n' * 99):
        assert files.decode(text.encode(codec), "a.txt") == (text, codec)
    one_nul = "到家了吗" * 50 + "\0"
    assert files.decode(one_nul.encode(), "a.txt") == (one_nul, "utf-8")
    with pytest.raises(files.UnknownEncoding, match=r"a\.txt is in none of UTF-8.*: save it as UTF-8"):
        files.decode("這個週末我們還要練習嗎".encode("big5"), "a.txt")


def test_what_a_user_can_mend_is_one_line() -> None:
    assert files.mendable_message(FileNotFoundError(2, "No such file", "a.csv")) == "a.csv: No such file"
    assert files.mendable_message(OSError(errno.EROFS, "Read-only file system")) == "Read-only file system"
    for error in (ValueError("a fault of the code"), ConnectionRefusedError(111, "refused"), OSError("odd")):
        assert files.mendable_message(error) is None


# --- tables and pages


def test_tables_are_written_in_three_forms_and_shown_escaped(tmp_path: Path) -> None:
    attack = "<script>alert('x')</script>"
    cells = ["**1.50** [1.10, 2.20] and <u>2.00</u> 5 %", attack]
    table = pd.DataFrame({"what": cells, "mean": [1.23456, float("nan")], "n": [3, 4]})
    Run("made-up", Profile(name="made-up"), tmp_path, tmp_path).save_tables(made=table, empty=table[:0])
    folder = tmp_path / "tables"
    written = {path.name for path in folder.iterdir()}
    assert written == {f"{name}.{end}" for name in ("made", "empty") for end in ("csv", "md", "tex")}
    back = pd.read_csv(folder / "made.csv")
    assert list(back.columns) == list(table.columns) and back["mean"][0] == 1.23456
    assert "**1.50** [1.10, 2.20] and <u>2.00</u> 5 %" in (folder / "made.md").read_text(encoding="utf-8")
    assert "\\textbf{1.50}" in (folder / "made.tex").read_text(encoding="utf-8")
    html = str(files.html_table(table))
    assert "<script>" not in html and "<b>1.50</b>" in html and "<u>2.00</u>" in html
    assert "1.235" in html and "–" in html
