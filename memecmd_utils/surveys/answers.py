"""Answers that people gave in a form: saved CSV files, read, checked, and joined with the form's key.

What nobody answered (a trial of the form, a test) carries `source: made up` and is never mixed with the rest.
"""

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

from pydantic import AwareDatetime, BaseModel, ConfigDict, ValidationError

from memecmd_utils.core import storage
from memecmd_utils.core.errors import MemecmdError
from memecmd_utils.schemas import Text
from memecmd_utils.surveys import forms
from memecmd_utils.surveys.forms import KeyRow

Source = Literal["human", "made up"]
TRUE, FALSE = {"1", "true", "yes"}, {"", "0", "false", "no"}
TIME = "a time looks like 2026-01-31T12:00:00Z; a spreadsheet may have changed it"


class AnswerError(MemecmdError, ValueError):
    """A file of answers that cannot be used; the message names file and line and says what to do."""


class OtherForm(AnswerError):
    """Answers to a form that the key does not know."""


class Answer(BaseModel):
    """One answer of one person, as far as every form has it; a form adds what it asks."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    columns: ClassVar[tuple[str, ...]]
    """Of the form's CSV."""
    advice: ClassVar[Mapping[str, str]]
    """What to write into a column whose cell is wrong."""

    source: Source
    form: Text
    item: Text
    rater: Text
    at: AwareDatetime
    comment: str = ""

    @property
    def place(self) -> tuple[str, ...]:
        """What it answers: of several answers to one place the latest counts."""
        return self.form, self.item

    def fault(self, key: Sequence[Any]) -> str:
        """Why it does not fit the item's rows of the key; "" where it does."""
        raise NotImplementedError


Given = TypeVar("Given", bound=Answer)


@dataclass(frozen=True)
class Answers:
    """All answers to the forms of a key."""

    answers: list
    key: list
    doubled: int = 0
    """Answers that a later one of the same person to the same place replaced."""
    left_out: tuple[str, ...] = ()
    """Files that answer other forms."""

    @property
    def source(self) -> Source | None:
        """Human as soon as one person has answered; made up where all are; None where there are none."""
        sources = {answer.source for answer in self.answers}
        return "human" if "human" in sources else "made up" if sources else None

    @property
    def counted(self) -> list:
        """Answers of `source`: made-up ones only where nobody answered."""
        return [answer for answer in self.answers if answer.source == self.source]


def load(paths: Iterable[Path], key: Sequence[KeyRow], model: type[Given]) -> Answers:
    """Read CSV files of the forms in `key`. Of several answers of a person to a place the latest counts.

    Raises `OtherForm` for a file that answers another form and `AnswerError` for a bad row.
    """
    latest: dict[tuple, Given] = {}
    doubled = 0
    for answer in (answer for path in paths for answer in _read_own(path, key, model)):
        name = answer.source, answer.rater, answer.place
        doubled += name in latest
        if name not in latest or answer.at >= latest[name].at:
            latest[name] = answer
    return Answers(list(latest.values()), list(key), doubled)


def collect(folder: Path, key: Sequence[KeyRow], model: type[Given]) -> Answers:
    """Read all CSV files of a folder, which may be missing; files of other forms are named, not read."""
    mine, others = [], []
    for path in sorted(folder.glob("*.csv")):
        try:
            _read_own(path, key, model)
            mine.append(path)
        except OtherForm:
            others.append(path.name)
    return replace(load(mine, key, model), left_out=tuple(others))


def _read_own(path: Path, key: Sequence[KeyRow], model: type[Given]) -> list[Given]:
    of_item: dict[tuple[str, str], list[KeyRow]] = {}
    for row in key:
        of_item.setdefault((row.form, row.item), []).append(row)
    known = {form for form, _ in of_item}
    found = read(path, model)
    for answer in found:
        if answer.form not in known:
            raise OtherForm(
                f"{path.name}: answers form {answer.form}, but this run's are "
                f"{', '.join(sorted(known)) or 'none'}; keep the file with the run whose key names it"
            )
        if fault := answer.fault(of_item.get((answer.form, answer.item), [])):
            raise AnswerError(f"{path.name}: {fault}; take the row from the form's own file, or remove it")
    return found


def read(path: Path, model: type[Given]) -> list[Given]:
    """Read one CSV as the form saves it, all rows; `AnswerError` names file and line."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as handle:
            heads = next(csv.reader(handle), [])
        if missing := [name for name in model.columns if name not in heads and name != "made_up"]:
            raise AnswerError(
                f"{path.name}: columns missing: {', '.join(missing)}; take the file as the form saved it "
                "(UTF-8, commas)"
            )
        return [_answer(model, cells, where) for cells, where in forms.read_rows(path)]
    except UnicodeDecodeError as error:
        raise AnswerError(f"{path.name} is not UTF-8: save it as CSV UTF-8") from error


def _answer(model: type[Given], cells: Mapping[str, str], where: str) -> Given:
    made_up = cells.get("made_up", "").strip().lower()
    if made_up not in TRUE | FALSE:
        raise AnswerError(f"{where}: made_up is {made_up!r}; write 1 for made-up answers, else 0")
    values: dict[str, Any] = {name: cells[name].strip() for name in model.columns if name != "made_up"}
    values = {name: value for name, value in values.items() if value != ""}
    try:
        return model(source="made up" if made_up in TRUE else "human", **values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        found, name = first["msg"], str(first["loc"][0]) if first["loc"] else ""
        if name:
            advice = {"at": TIME, **model.advice}.get(name, first["msg"])
            found = f"{name} is {values.get(name, '')!r}; {advice}"
        raise AnswerError(f"{where}: {found}; correct the row or remove it") from error


def write(path: Path, model: type[Given], given: Iterable[Given]) -> Path:
    """Write answers in the form's own columns, atomically."""
    rows = (
        {**a.model_dump(mode="json", exclude={"source"}), "made_up": int(a.source == "made up")}
        for a in given
    )
    return storage.write_csv(path, model.columns, rows)
