"""Blind forms for people: what is shown, one HTML file that needs no network, and the key apart from it.

Both papers ask people with it: `human_ratings` about memes in chats, `survey` about what models say
of memes. Who answers sees items, questions and pictures, never what stands behind them; `answers` joins
that again.
"""

import csv
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from memecmd_utils.core import html, images, storage
from memecmd_utils.core.drawing import text as drawing_text
from memecmd_utils.core.errors import MemecmdError

COMMON = ("form", "item", "rater", "at", "comment", "made_up")
"""Columns of every CSV with answers. `made_up` is 1 where nobody answered: a trial, or a test."""
QUALITY = 85
Words = tuple[str, str]
"""Chinese and English; a form without Chinese has English alone."""
Row = TypeVar("Row", bound=BaseModel)


class FormError(MemecmdError, ValueError):
    """A form or key that cannot be made or read; the message says what to do."""


class KeyRow(BaseModel):
    """What stands behind an item, as far as every form has it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    form: str
    item: str


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
    return hashlib.sha256(storage.dumps(parts).encode()).hexdigest()[:10]


def write_page(target: Path, form: Form, pictures: Mapping[str, Path]) -> Path:
    """Write the form as one HTML file; `pictures`: file of each picture's id.

    Raises `FormError` for a picture that is not there or cannot be read.
    """
    # Pictures are numbered as they come: an id could be looked up in the run's files.
    numbers = {
        name: i for i, name in enumerate(dict.fromkeys(p for item in form.items for p in item.pictures))
    }
    if missing := sorted(set(numbers) - set(pictures)):
        raise FormError(f"no picture of {', '.join(missing)}; the form shows the memes themselves")
    payload = {
        "form": form.form,
        "kind": form.kind,
        "saved_as": form.saved_as,
        "columns": form.columns,
        "chinese": form.chinese,
        "items": [
            {
                "item": item.item,
                "pictures": [numbers[name] for name in item.pictures],
                "lines": _bubbles(item.lines),
                "questions": [
                    question._asdict() | {"options": [option._asdict() for option in question.options]}
                    for question in item.questions
                ],
            }
            for item in form.items
        ],
        "pictures": [
            {"url": _data_url(pictures[name], form.picture_side), "alt": form.alt.get(name, "")}
            for name in numbers
        ],
    }
    page = html.environment().get_template("form.html.j2")
    storage.write_text(target, page.render(payload=payload, form=form))
    return target


def _bubbles(lines: Sequence[Line]) -> list[dict[str, str]]:
    signs = drawing_text.initials(line.name for line in lines)
    return [line._asdict() | {"sign": signs[line.name]} for line in lines]


def _data_url(file: Path, side: int) -> str:
    """A JPEG of a meme; all are drawn alike, whatever they come from."""
    try:
        picture = images.decode(file)
    except images.ImageRejected as error:
        raise FormError(f"{file.name}: {error}; take another picture of this meme") from error
    return html.jpeg_url(picture, side, QUALITY)


def write_key(target: Path, row: type[KeyRow], rows: Iterable[KeyRow]) -> Path:
    """Write the key as CSV, `row` its kind of rows. It goes to nobody who answers."""
    return storage.write_csv(target, list(row.model_fields), (one.model_dump() for one in rows))


def read_key(source: Path, row: type[Row]) -> list[Row]:
    """Read a key; `FormError` with file and line for a bad row."""
    found = []
    for cells, where in read_rows(source):
        try:
            found.append(row.model_validate(cells))
        except ValidationError as error:
            raise FormError(f"{where}: {error}; run the notebook again that writes the key") from error
    return found


def read_rows(source: Path) -> Iterator[tuple[dict[str, str], str]]:
    """Cells of each row of a CSV by column, and file and line; of spreadsheets, too."""
    # "utf-8-sig" because forms and spreadsheet programs put a byte order mark in front.
    with source.open(encoding="utf-8-sig", newline="") as handle:
        reader = csv.DictReader(handle)
        for row in reader:
            cells = {name: storage.unguarded(cell or "") for name, cell in row.items() if name}
            yield cells, f"{source.name} line {reader.line_num}"
