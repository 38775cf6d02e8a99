"""Grades of memes: 0 does not fit, 1 one could send it, 2 it lands. From a mean of 1 on a meme fits."""

import csv
import io
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from pydantic import Field

from memecmd_utils.files import StageOutputError
from memecmd_utils.schemas import Dialogue, Grade, Mark

FITS = 1.0
"""Mean grade (0-2) from which a meme fits."""
COLUMNS = ("dialogue_id", "turn", "meme_id", "grade")


class UserGrade(Grade):
    """A grade of a user's file: any number from 0 to 2, such as the mean of several graders."""

    grade: float = Field(ge=0, le=2)


def read_grades(path: Path, dialogues: Sequence[Dialogue], meme_ids: Collection[str]) -> list[UserGrade]:
    """Read a user's table with the columns dialogue_id, turn, meme_id, grade and, if wanted, grader.

    It may come from a spreadsheet: UTF-8, UTF-16 or GB18030, separated by comma, semicolon or tab, with other
    columns beside these. Rows with an empty grade are ungraded; their number is printed. Raises
    `StageOutputError` with the line of a grade outside 0 to 2, of an unknown id, and of a second grade by the
    same grader.
    """
    turns = {(d.dialogue_id, turn.turn) for d in dialogues for turn in d.turns if turn.turn >= 2}
    names = {name for name, _ in turns}
    found: dict[tuple[str, int, str, str], UserGrade] = {}
    ungraded = 0
    for line, row in _rows(path):

        def refuse(why: str, line: int = line) -> StageOutputError:
            return StageOutputError(f"{path.name} line {line}: {why}")

        name, meme, grader = row["dialogue_id"], row["meme_id"], row.get("grader") or "grader"
        turn, grade = _number(row["turn"]), _number(row["grade"])
        if name not in names:
            raise refuse(f"the run has no dialogue {name!r}")
        if turn is None or (name, turn) not in turns:
            raise refuse(f"dialogue {name} has no turn {row['turn']!r} that could get a meme")
        if meme not in meme_ids:
            raise refuse(f"the run has no meme {meme!r}")
        if not row["grade"]:
            ungraded += 1
            continue
        if grade is None or not 0 <= grade <= 2:
            raise refuse(f"the grade {row['grade']!r} is no number from 0 to 2")
        key = (name, int(turn), meme, grader)
        if key in found:
            raise refuse(f"{grader} graded meme {meme} at turn {key[1]} of {name} before")
        found[key] = UserGrade(
            dialogue_id=name, turn=key[1], meme_id=meme, grader=grader, grade=grade, source="user"
        )
    if ungraded:
        print(f"{path.name}: {ungraded} of {ungraded + len(found)} rows have an empty grade: not graded")
    return list(found.values())


def _rows(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """Line number and cells by column of every row that is not blank."""
    data = path.read_bytes()
    encodings = ("utf-16",) if data[:2] in (b"\xff\xfe", b"\xfe\xff") else ("utf-8-sig", "gb18030")
    for encoding in encodings:
        try:
            text = data.decode(encoding)
            break
        except UnicodeDecodeError:
            continue
    else:
        raise StageOutputError(f"{path.name}: save the table as a CSV file in UTF-8")
    first = next((line for line in text.splitlines() if "grade" in line.lower()), "")
    header: list[str] = []
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=max(",;\t", key=first.count))
    for cells in reader:
        cells = [cell.strip() for cell in cells]
        if header and any(cells):
            yield reader.line_num, {**dict.fromkeys(header, ""), **dict(zip(header, cells, strict=False))}
        elif {cell.lower() for cell in cells} >= set(COLUMNS):
            header = [cell.lower() for cell in cells]
    if not header:
        raise StageOutputError(f"{path.name}: its first line needs the columns {', '.join(COLUMNS)}")


def _number(text: str) -> float | None:
    """The number in a cell, also with a decimal comma; None where there is none."""
    try:
        return float(text.replace(",", "."))
    except ValueError:
        return None


def marks_of(grades: Sequence[Grade]) -> list[Mark]:
    """Where a meme is wanted by grades alone: a turn counts as wanting one where some meme fits."""
    given: dict[tuple[str, int], dict[str, list[float]]] = {}
    for grade in grades:
        of_turn = given.setdefault((grade.dialogue_id, grade.turn), {})
        of_turn.setdefault(grade.meme_id, []).append(grade.grade)
    return [
        Mark(
            dialogue_id=name,
            turn=turn,
            marker="grades",
            send=any(sum(of_meme) / len(of_meme) >= FITS for of_meme in memes.values()),
            best=[],
            source="computed",
        )
        for (name, turn), memes in given.items()
    ]
