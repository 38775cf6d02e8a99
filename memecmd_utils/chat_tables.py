"""Chat exports as tables: CSV with a comma, semicolon, tab or bar between the cells."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from memecmd_utils import chat_columns
from memecmd_utils.chat_columns import MEME_COLUMNS, Cell, ChatFileError, Place, is_nameless

DELIMITERS = (",", ";", "\t", "|", "，", "；")


@dataclass(frozen=True)
class Table:
    """A table as read: rows of cells, the header first; a blank line is a row without cells."""

    rows: list[list[str]]
    lines: list[int]
    """Line of the file on which each row begins, from 1."""
    ends: list[str]
    """The line break after each row; the last row may have none."""
    delimiter: str

    def cells(self, name: str, given: Mapping[str, str]) -> tuple[list[Cell], str]:
        """Messages, one a row, and the columns read, in words. Raises `ChatFileError` with the line."""
        header = self.rows[0]
        rows = [
            (number, f"{name} line {line}", row)
            for number, (row, line) in enumerate(zip(self.rows, self.lines, strict=True))
            if number and any(cell.strip() for cell in row)
        ]
        for _, where, row in rows:
            if len(row) > len(header):
                raise ChatFileError(
                    f"{where}: {len(row)} cells under {len(header)} columns; a text that holds "
                    f"{self.delimiter!r} must stand in double quotes"
                )
        values = [
            {column: cell for column, cell in zip(header, row, strict=False) if not is_nameless(column)}
            for _, _, row in rows
        ]
        columns = chat_columns.settle(values, header, given, f"{name} line 1")
        twice = [column for column in columns.of.values() if header.count(column) > 1]
        if twice:
            raise ChatFileError(f"{name} line 1: two columns are called {twice[0]!r}; names must differ")
        chats = chat_columns.chat_names([chat_columns.text_of(columns.value(v, "chat")) for v in values])
        out = [
            Cell(
                Place(number),
                where,
                chat,
                chat_columns.message(found, columns, where),
                *(columns.value(found, part) for part in ("order", "time", "date")),
            )
            for (number, where, _), found, chat in zip(rows, values, chats, strict=True)
        ]
        return out, columns.text()

    def render(self, memes: Mapping[Place, Mapping[str, Any]], _position: str = "before") -> str:
        """The table with the columns `MEME_COLUMNS` at its end; those of an earlier insertion are replaced.

        All other cells are written as they were read, also those that begin with `=`, `+`, `-` or `@`: they
        are the user's own, and a sign before them would change the chat. What is added never begins so,
        apart from the minus of a number.
        """
        kept = [place for place, name in enumerate(self.rows[0]) if name not in MEME_COLUMNS]
        written = []
        for number, (row, end) in enumerate(zip(self.rows, self.ends, strict=True)):
            found = memes.get(Place(number), {})
            added = [_cell(found.get(name)) for name in MEME_COLUMNS] if number else MEME_COLUMNS
            own = [row[i] if i < len(row) else "" for i in kept]
            written.append((_line([*own, *added], self.delimiter) if row else "") + end)
        return "".join(written)


def read(text: str, name: str, given: Mapping[str, str]) -> Table:
    """Read a table; the delimiter is the one under which the header makes most sense.

    Raises `ChatFileError` for a file without rows and for quotes that are not closed.
    """
    delimiter = _delimiter(text, given)
    raw = io.StringIO(text, newline="").readlines()
    reader = csv.reader(raw, delimiter=delimiter, strict=True)
    rows: list[list[str]] = []
    lines: list[int] = []
    ends: list[str] = []
    try:
        while True:
            line = reader.line_num + 1
            row = next(reader, None)
            if row is None:
                break
            rows.append(row)
            lines.append(line)
            last = raw[reader.line_num - 1]
            ends.append(last[len(last.rstrip("\r\n")) :])
    except csv.Error as error:
        raise ChatFileError(
            f"{name} line {line}: {error}; a text with quotes stands in quotes, each quote in it doubled"
        ) from error
    if not rows or not any(cell.strip() for cell in rows[0]):
        raise ChatFileError(f"{name} line 1: a header is expected, for example `speaker,text`")
    return Table(rows, lines, ends, delimiter)


def is_table(text: str) -> bool:
    """Whether the first line is the header of a table that says who speaks and what."""
    header = next(csv.reader(io.StringIO(text, newline=""), delimiter=_delimiter(text, {})), [])
    return {"speaker", "text"} <= set(chat_columns.recognised(header))


def _delimiter(text: str, given: Mapping[str, str]) -> str:
    def sense(delimiter: str) -> tuple[int, int, int]:
        try:
            header = next(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter), [])
        except csv.Error:
            return 0, 0, 0
        named = sum(column in header for column in given.values())
        return named, len(chat_columns.recognised(header)), len(header)

    return max(DELIMITERS, key=sense)


def _line(cells: Sequence[str], delimiter: str) -> str:
    # With this line end the writer quotes every kind of line break in a cell.
    buffer = io.StringIO(newline="")
    csv.writer(buffer, delimiter=delimiter, lineterminator="\r\n").writerow(cells)
    return buffer.getvalue().removesuffix("\r\n")


def _cell(value: Any) -> str:
    return "" if value is None else str(value)
