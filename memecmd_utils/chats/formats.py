"""The files that chats come in: a table, JSON, lines of text, and the same files with memes in them."""

import copy
import csv
import io
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from memecmd_utils.chats.turns import ChatError

MEME_COLUMNS = ("meme_id", "meme_file", "meme_score", "meme_gate_score", "meme_threshold", "meme_strategy")
"""What is added to a message that a meme goes with. `meme_score` is T (Eq. 22); the gate compared
`meme_gate_score`, on its own scale, with `meme_threshold` (Eq. 23)."""
PICTURES = "_memes"
"""End of the name of the folder that takes the pictures."""
_INSERTED = re.compile(rf"(?m)meme_gate_score|^\[meme [^\[\]\n]+: [^/\[\]\n]*{PICTURES}/[^/\[\]\n]+\]")
"""What stands in every file with memes; a user's own `meme_id` is none of it."""
Memes = Mapping[Any, Mapping[str, Any]]
"""Place of a message in its file to the values of `MEME_COLUMNS`."""


def check_no_memes(text: str) -> None:
    """Raise `ChatError` for a file that an insertion wrote: its memes would be taken for the chat's."""
    if _INSERTED.search(text):
        raise ChatError("memes were inserted into it: name the file without them")


# --- a table


@dataclass
class Table:
    """A CSV file by its cells; records above the header are kept."""

    rows: list[list[str]]
    delimiter: str
    head: int
    """Which record is the header."""

    def line(self, number: int) -> int:
        """The line of the file, from 1, with which a record begins."""
        return number + 1 + sum(cell.count("\n") for row in self.rows[:number] for cell in row)

    def records(self) -> list[tuple[int, dict[str, str]]]:
        """Place, and cells by column, of every row below the header that is not blank."""
        records, names = [], self.rows[self.head]
        for number, row in enumerate(self.rows[self.head + 1 :], start=self.head + 1):
            is_blank = not any(cell.strip() for cell in row)
            if len(row) > len(names) and not is_blank:
                raise ChatError(
                    f"line {self.line(number)}: {len(row)} cells under {len(names)} columns; a text that "
                    f"holds {self.delimiter!r} must stand in double quotes"
                )
            records += [] if is_blank else [(number, dict(zip(names, row, strict=False)))]
        return records

    def with_memes(self, memes: Memes) -> str:
        """The text of the table with `MEME_COLUMNS` at the end of each row."""
        out, width = io.StringIO(newline=""), len(self.rows[self.head])
        writer = csv.writer(out, delimiter=self.delimiter, lineterminator="\n")
        for number, row in enumerate(self.rows):
            meme = memes.get(number, {})
            values = MEME_COLUMNS if number == self.head else [meme.get(name) for name in MEME_COLUMNS]
            is_kept = number < self.head or not row  # a title, a blank line
            writer.writerow(row if is_kept else [*row[:width], *[""] * (width - len(row)), *values])
        return out.getvalue()


def records_in(text: str, delimiter: str, strict: bool = True) -> Iterator[list[str]]:
    """The records of a CSV text; `ChatError` with the line that cannot be split, where that is `strict`."""
    csv.field_size_limit(max(csv.field_size_limit(), len(text)))  # a cell may be as long as the file
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=strict)
    line = 1
    try:
        for row in reader:
            yield row
            line = reader.line_num + 1
    except csv.Error as error:
        hint = "a text with quotes stands in quotes, each quote in it doubled"
        raise ChatError(f"line {line}: {error}; {hint}") from error


# --- JSON


@dataclass
class Json:
    """A JSON document, or JSON Lines with one value a line."""

    value: Any
    """The document, or a list of the lines' values."""
    lines: list[int]
    """The line of each value of JSON Lines, from 1; none for a document."""

    def with_memes(self, memes: Memes) -> str:
        """The text with `MEME_COLUMNS` as keys; a place is the keys that lead to a message."""
        value = copy.deepcopy(self.value)
        for place, meme in memes.items():
            message = value
            for key in place:
                message = message[key]
            message.update(meme)
        dumps = partial(json.dumps, ensure_ascii=False)
        text = "\n".join(map(dumps, value)) if self.lines else dumps(value, indent=2)
        # Half a surrogate pair cannot be written in any file.
        return re.sub(r"[\ud800-\udfff]", lambda half: f"\\u{ord(half[0]):04x}", text) + "\n"


def read_json(text: str, is_lines: bool) -> Json:
    """Read a JSON document or JSON Lines; `ChatError` with the line that is no JSON."""
    values, lines = [], []
    for number, part in enumerate(text.split("\n") if is_lines else [text], start=1):
        try:
            if part.strip():
                values.append(json.loads(part))
                lines.append(number)
        except (ValueError, RecursionError) as error:
            raise ChatError(f"{f'line {number}: ' if is_lines else ''}not JSON: {error}") from error
    return Json(values, lines) if is_lines else Json(values[0], [])


# --- lines of text


@dataclass
class Text:
    """A chat as lines of text, each ended by one sign."""

    text: str

    def with_memes(self, memes: Memes) -> str:
        """The text with lines `[meme ID: FILE]`; a place is the first line of a message."""
        out = self.text.removesuffix("\n").split("\n")
        for line, meme in sorted(memes.items(), reverse=True):
            out.insert(line, f"[meme {meme['meme_id']}: {meme['meme_file']}]")
        return "\n".join(out) + "\n"
