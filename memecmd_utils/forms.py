"""Blind forms for people: one HTML file that needs no network, the key apart from it, and saved answers.

Both papers ask people with it: `human_ratings` about memes in chats, `survey` about what models say of
memes. Who answers sees items, questions and pictures, never what stands behind them; the key joins that
again. What nobody answered (a trial of the form, a test) carries `source: made up` and is never mixed with
the rest.
"""

import csv
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar

from pydantic import AwareDatetime, BaseModel, ConfigDict, ValidationError

from memecmd_utils import drawing, files, pictures
from memecmd_utils.files import MemecmdError
from memecmd_utils.schemas import Text

QUALITY = 85
Words = tuple[str, str]
"""Chinese and English; a form without Chinese has English alone."""
Source = Literal["human", "made up"]
TRUE, FALSE = {"1", "true", "yes"}, {"", "0", "false", "no"}
TIME = "a time looks like 2026-01-31T12:00:00Z; a spreadsheet may have changed it"


class FormError(MemecmdError, ValueError):
    """A form or key that cannot be made or read; the message says what to do."""


class AnswerError(MemecmdError, ValueError):
    """A file of answers that cannot be used; the message names file and line and says what to do."""


class OtherForm(AnswerError):
    """Answers to a form that the key does not know."""


class KeyRow(BaseModel):
    """What stands behind an item, as far as every form has it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    form: str
    item: str


Row = TypeVar("Row", bound=KeyRow)


class Option(NamedTuple):
    """One answer to choose; `key` is its letter, on the page and on the keyboard."""

    value: str
    key: str
    words: Words


class Question(NamedTuple):
    """What is asked: a scale from 0 to 100, one of several options, or any number of them (also none)."""

    name: str
    kind: Literal["scale", "one", "several"]
    title: Words
    hint: Words = ("", "")
    options: tuple[Option, ...] = ()


class Line(NamedTuple):
    """One bubble of a chat: a text, or the place of the pictures (`text` is empty there)."""

    side: Literal["left", "right"]
    name: str
    text: str = ""


class Item(NamedTuple):
    """One thing to answer about: pictures (several are versions A, B), in a chat or alone, and questions."""

    item: str
    pictures: tuple[str, ...]
    questions: tuple[Question, ...]
    lines: tuple[Line, ...] = ()


class Form(NamedTuple):
    """What people are shown, in this order."""

    form: str
    saved_as: str
    """Begins the name of the CSV file."""
    columns: tuple[str, ...]
    """Of the CSV: with `options` a row for each question, else a row for each item."""
    title: Words
    intro: Words
    notes: tuple[Words, ...]
    items: tuple[Item, ...]
    chinese: bool = True
    kind: str = ""
    alt: Mapping[str, str] = {}
    """Visible text of each picture, for readers of the page without pictures."""
    picture_side: int = 280
    """Pixels of a picture's longer side on the page."""


def digest(*parts: object) -> str:
    """Name of a form or item: ten hexadecimal digits of what it is made of."""
    return hashlib.sha256(files.dumps(parts).encode()).hexdigest()[:10]


def write_page(target: Path, form: Form, pictures: Mapping[str, Path]) -> Path:
    """Write the form as one HTML file; `pictures`: file of each picture's id.

    Raises `FormError` for a picture that is not there or cannot be read.
    """
    # Pictures are numbered as they come: an id could be looked up in the run's files.
    names = list(dict.fromkeys(name for item in form.items for name in item.pictures))
    if missing := sorted(set(names) - set(pictures)):
        raise FormError(f"no picture of {', '.join(missing)}; the form shows the memes themselves")
    payload = {
        "form": form.form,
        "kind": form.kind,
        "saved_as": form.saved_as,
        "columns": form.columns,
        "chinese": form.chinese,
        "items": [_item(item, names) for item in form.items],
        "pictures": [
            {"url": _data_url(pictures[name], form.picture_side), "alt": form.alt.get(name, "")}
            for name in names
        ],
    }
    page = files.templates().get_template("form.html.j2")
    files.write_text(target, page.render(payload=payload, form=form))
    return target


def _item(item: Item, pictures: list[str]) -> dict[str, Any]:
    signs = drawing.initials(line.name for line in item.lines)
    return {
        "item": item.item,
        "pictures": [pictures.index(name) for name in item.pictures],
        "lines": [line._asdict() | {"sign": signs[line.name]} for line in item.lines],
        "questions": [
            question._asdict() | {"options": [option._asdict() for option in question.options]}
            for question in item.questions
        ],
    }


def _data_url(file: Path, side: int) -> str:
    """A JPEG of a meme; all are drawn alike, whatever they come from."""
    try:
        picture = pictures.decode(file)
    except pictures.ImageRejected as error:
        raise FormError(f"{file.name}: {error}; take another picture of this meme") from error
    picture.thumbnail((side, side))
    return pictures.picture_url(picture, "JPEG", quality=QUALITY)


def write_key(target: Path, row: type[KeyRow], rows: Iterable[KeyRow]) -> Path:
    """Write the key as CSV, `row` its kind of rows. It goes to nobody who answers."""
    return files.write_csv(target, list(row.model_fields), (one.model_dump() for one in rows))


def read_key(source: Path, row: type[Row]) -> list[Row]:
    """Read a key; `FormError` with file and line for a bad row."""
    rows = []
    for cells, where in read_rows(source):
        try:
            rows.append(row.model_validate(cells))
        except ValidationError as error:
            raise FormError(f"{where}: {error}; run the notebook again that writes the key") from error
    return rows


def read_rows(source: Path) -> Iterator[tuple[dict[str, str], str]]:
    """Cells of each row of a CSV by column, and file and line; of spreadsheets, too."""
    # "utf-8-sig" because forms and spreadsheet programs put a byte order mark in front.
    with source.open(encoding="utf-8-sig", newline="") as handle:
        reader = csv.DictReader(handle)
        for row in reader:
            cells = {name: files.unguarded(cell or "") for name, cell in row.items() if name}
            yield cells, f"{source.name} line {reader.line_num}"


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
    key: list[KeyRow]
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
    answers = read_answers(path, model)
    for answer in answers:
        if answer.form not in known:
            raise OtherForm(
                f"{path.name}: answers form {answer.form}, but this run's are "
                f"{', '.join(sorted(known)) or 'none'}; keep the file with the run whose key names it"
            )
        if fault := answer.fault(of_item.get((answer.form, answer.item), [])):
            raise AnswerError(f"{path.name}: {fault}; take the row from the form's own file, or remove it")
    return answers


def read_answers(path: Path, model: type[Given]) -> list[Given]:
    """Read one CSV as the form saves it, all rows; `AnswerError` names file and line."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as handle:
            heads = next(csv.reader(handle), [])
        if missing := [name for name in model.columns if name not in heads and name != "made_up"]:
            raise AnswerError(
                f"{path.name}: columns missing: {', '.join(missing)}; take the file as the form saved it "
                "(UTF-8, commas)"
            )
        return [_answer(model, cells, where) for cells, where in read_rows(path)]
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
        fault = first["msg"]
        if first["loc"]:
            name = str(first["loc"][0])
            advice = {"at": TIME, **model.advice}.get(name, fault)
            fault = f"{name} is {values.get(name, '')!r}; {advice}"
        raise AnswerError(f"{where}: {fault}; correct the row or remove it") from error
