"""The files that chats come in: a table, JSON, lines of text, and the same files with memes in them.

Cells, keys and numbers stay as they stood; only what an earlier insertion wrote is replaced.
"""

import copy
import csv
import io
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from memecmd_utils.chats.turns import ChatError

MEME_COLUMNS = ("meme_id", "meme_file", "meme_score", "meme_gate_score", "meme_threshold", "meme_strategy")
"""What is added to a message that a meme goes with. `meme_score` is T (Eq. 22); the gate compared
`meme_gate_score`, on its own scale, with `meme_threshold` (Eq. 23)."""
MARKS = {"meme_file", "meme_strategy"}
"""Stand together in what an insertion wrote; a user's own `meme_id` without them is left alone."""
PICTURES = "_memes"
"""End of the name of the folder that takes the pictures."""
Memes = Mapping[Any, Mapping[str, Any]]
"""Place of a message in its file to the values of `MEME_COLUMNS`."""


# --- a table


@dataclass
class Table:
    """A CSV file by its cells, without columns of an earlier insertion; records above the header are kept."""

    rows: list[list[str]]
    delimiter: str
    fault: str = ""
    """What is wrong where the file can no longer be split into records."""
    head: int = 0
    """Which record is the header."""
    has_memes: bool = False
    """Whether an earlier insertion wrote it."""

    def line(self, number: int) -> int:
        """The line of the file, from 1, with which a record begins."""
        return number + 1 + sum(cell.count("\n") for row in self.rows[:number] for cell in row)

    def with_header(self, number: int) -> "Table":
        """The table under the header that a record is."""
        names = [name.strip() for name in self.rows[number]]
        has_memes = MARKS.issubset(names)
        ours = [at for at, name in enumerate(names) if has_memes and name in MEME_COLUMNS]
        below = [[cell for at, cell in enumerate(row) if at not in ours] for row in self.rows[number + 1 :]]
        head = [name for at, name in enumerate(names) if at not in ours]
        return Table([*self.rows[:number], head, *below], self.delimiter, self.fault, number, has_memes)

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


def read_table(text: str, delimiter: str) -> Table:
    """Split a CSV text into records; its header is not known yet."""
    table = Table([], delimiter)
    csv.field_size_limit(max(csv.field_size_limit(), len(text)))  # a cell may be as long as the file
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    try:
        for row in reader:
            table.rows.append(row)
    except csv.Error as error:
        hint = "a text with quotes stands in quotes, each quote in it doubled"
        table.fault = f"line {table.line(len(table.rows))}: {error}; {hint}"
    return table


# --- JSON

NUMBER = "\ue000"
"""Stands around the digits of a number with a point or an exponent until it is written again as it stood."""


@dataclass
class Json:
    """A JSON document, or JSON Lines with one value a line, without what an earlier insertion wrote."""

    value: Any
    """The document, or a list of the lines' values."""
    lines: list[int]
    """The line of each value of JSON Lines, from 1; none for a document."""
    has_memes: bool
    """Whether an earlier insertion wrote it."""

    def with_memes(self, memes: Memes) -> str:
        """The text with `MEME_COLUMNS` as keys; a place is the keys that lead to a message."""
        value = copy.deepcopy(self.value)
        for place, meme in memes.items():
            message = value
            for key in place:
                message = message[key]
            message.update(meme)
        if self.lines:
            return "".join(json_text(inner) + "\n" for inner in value)
        return json_text(value, 2) + "\n"


def _remove_memes(value: Any) -> bool:
    """Take away what an earlier insertion wrote; whether there was anything."""
    has_memes = isinstance(value, dict) and value.keys() >= MARKS
    for name in MEME_COLUMNS if has_memes else ():
        value.pop(name, None)
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return any([has_memes, *map(_remove_memes, parts)])


def json_text(value: Any, indent: int | None = None) -> str:
    """JSON with numbers as they stood and Chinese as it is; half a surrogate pair stays an escape."""
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    text = re.sub(r"[\ud800-\udfff]", lambda half: f"\\u{ord(half[0]):04x}", text)
    return re.sub(f'"{NUMBER}([^"]*){NUMBER}"', r"\1", text)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose keys differ: of two values of one key nobody could say which counts."""
    value = dict(pairs)
    if len(value) < len(pairs):
        raise ValueError(f"a key stands twice in one object, which has {', '.join(key for key, _ in pairs)}")
    return value


def read_json(text: str, is_lines: bool) -> Json:
    """Read a JSON document or JSON Lines; `ChatError` with the line that is no JSON."""
    values, lines = [], []

    def number_as_written(digits: str) -> str:
        return f"{NUMBER}{digits}{NUMBER}"

    for number, part in enumerate(text.split("\n") if is_lines else [text], start=1):
        try:
            if part.strip():
                values.append(json.loads(part, parse_float=number_as_written, object_pairs_hook=_object))
                lines.append(number)
        except (ValueError, RecursionError) as error:
            raise ChatError(f"{f'line {number}: ' if is_lines else ''}not JSON: {error}") from error
    has_memes = all(mark in text for mark in MARKS) and _remove_memes(values)
    return Json(values, lines, has_memes) if is_lines else Json(values[0], [], has_memes)


# --- lines of text

_MEME_LINE = re.compile(rf"(?m)^\[meme [^\[\]\n]+: [^/\[\]\n]*{PICTURES}/[^/\[\]\n]+\][ \t]*(?:\n|\Z)")


@dataclass
class Text:
    """A chat as lines of text, without the lines of an earlier insertion."""

    text: str
    has_memes: bool
    """Whether an earlier insertion wrote it."""

    def with_memes(self, memes: Memes) -> str:
        """The text with lines `[meme ID: FILE]`; a place is the first line of a message."""
        out = self.text.removesuffix("\n").split("\n")
        for line, meme in sorted(memes.items(), reverse=True):
            out.insert(line, f"[meme {meme['meme_id']}: {meme['meme_file']}]")
        return "\n".join(out) + "\n"


def read_text(text: str) -> Text:
    """Lines of a chat, each ended by one sign."""
    text, n_memes = _MEME_LINE.subn("", re.sub(r"\r\n?", "\n", text))
    return Text(text, n_memes > 0)
