"""Tables of grades as spreadsheets write them: read, or refused with the line."""

from pathlib import Path

import made_up
import pytest

from memecmd_utils import grades
from memecmd_utils.files import StageOutputError

PLAIN = "dialogue_id,turn,meme_id,grade\nnews-a-1,2,m1,2\nnews-a-1,2,m2,0\nnews-a-1,3,m1,1\n"
MEMES = {"m1", "m2"}


def read(folder: Path, data: str | bytes) -> list[tuple]:
    path = folder / "grades.csv"
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    found = grades.read_grades(path, [made_up.dialogue("news-a-1")], MEMES)
    return [(g.dialogue_id, g.turn, g.meme_id, g.grader, g.grade) for g in found]


SAME = {
    "BOM": b"\xef\xbb\xbf" + PLAIN.encode(),
    "UTF-16": PLAIN.encode("utf-16"),
    "Unicode text": PLAIN.replace(",", "\t").encode("utf-16"),
    "semicolons": "sep=;\n" + PLAIN.replace(",", ";"),
    "case and order": "Grade,Turn,Meme_ID,DIALOGUE_ID\n2,2,m1,news-a-1\n0,2,m2,news-a-1\n1,3,m1,news-a-1",
    "CRLF and blank rows": PLAIN.replace("\n", "\r\n") + "\r\n,,,\r\n",
    "an index and another column": "".join(
        f"{n},{line},好\n" if n else f",{line},words\n" for n, line in enumerate(PLAIN.splitlines())
    ).encode("gb18030"),
    "numbers with a point": PLAIN.replace(",2,m", ",2.0,m"),
}


@pytest.mark.parametrize("form", SAME)
def test_a_table_is_read_in_the_forms_that_spreadsheets_give_it(tmp_path: Path, form: str) -> None:
    assert read(tmp_path, SAME[form]) == read(tmp_path, PLAIN)


def test_means_are_grades_and_an_empty_cell_is_none(tmp_path: Path, capsys) -> None:
    found = read(tmp_path, "dialogue_id;turn;meme_id;grade\nnews-a-1;2;m1;1,5\nnews-a-1;2;m2;\n")
    assert found == [("news-a-1", 2, "m1", "grader", 1.5)]
    assert "1 of 2 rows have an empty grade" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("news-a-1,2,m1,3", "3"),
        ("news-a-1,2,m1,good", "good"),
        ("news-x-1,2,m1,1", "news-x-1"),
        ("news-a-1,99,m1,1", "99"),
        ("news-a-1,2,m9,1", "m9"),
        ("news-a-1,2,m1,0", "before"),
    ],
)
def test_what_cannot_be_right_is_refused_with_its_line(tmp_path: Path, line: str, why: str) -> None:
    with pytest.raises(StageOutputError, match=f"line 5: .*{why}"):
        read(tmp_path, PLAIN + line)
    with pytest.raises(StageOutputError, match="dialogue_id, turn, meme_id, grade"):
        read(tmp_path, "dialogue,turn,meme,grade\n")


def test_a_turn_wants_a_meme_where_the_mean_of_its_graders_says_so(tmp_path: Path) -> None:
    rows = ["news-a-1,2,m1,1,a", "news-a-1,2,m1,0,b", "news-a-1,3,m1,2,a", "news-a-1,3,m1,0,b"]
    path = tmp_path / "two.csv"
    path.write_text("\n".join(["dialogue_id,turn,meme_id,grade,grader", *rows]), encoding="utf-8")
    found = grades.read_grades(path, [made_up.dialogue("news-a-1")], MEMES)
    assert [(mark.turn, mark.send) for mark in grades.marks_of(found)] == [(2, False), (3, True)]
