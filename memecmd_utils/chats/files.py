"""The files that chats come in: a table, JSON, lines of text. Read once, and written back with memes in them.

Everything else stays as it stood: cells, numbers with their digits, lines with their breaks, the encoding.
Only what an earlier insertion wrote is replaced.
"""

import codecs
import csv
import io
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from memecmd_utils.chats.messages import ChatError

MEME_COLUMNS = (
    "meme_id",
    "meme_file",
    "meme_score",
    "meme_gate_score",
    "meme_threshold",
    "meme_strategy",
)
"""What is added to a message that a meme goes with. `meme_score` is T (Eq. 22); the gate compared
`meme_gate_score`, on its own scale, with `meme_threshold` (Eq. 23)."""
MARKS = {"meme_file", "meme_strategy"}
"""Stand together in what an insertion wrote; a user's own `meme_id` without them is left alone."""
PICTURES = "_memes"
"""End of the name of the folder that takes the pictures."""
Memes = Mapping[Any, Mapping[str, Any]]
"""Place of a message in its file to the values of `MEME_COLUMNS`."""


# --- encodings


@dataclass(frozen=True)
class Encoding:
    """How the bytes of a file become text."""

    codec: str
    mark: bytes = b""
    """Byte order mark at the head of the file."""

    def encode(self, text: str) -> bytes:
        """The bytes of a text; `ChatError` where the encoding lacks one of its signs."""
        try:
            return self.mark + text.encode(self.codec)
        except UnicodeEncodeError as error:
            sign = error.object[error.start]
            raise ChatError(
                f"the file's encoding, {self.codec}, has no sign {sign!r}: save it as UTF-8"
            ) from None


def decode(data: bytes, name: str, given: str = "") -> tuple[str, Encoding]:
    """The text of a file in UTF-8, UTF-16 or GB18030, or in the encoding that is `given`.

    Raises `ChatError` for another one: Big5 or Shift-JIS read as GB18030 would give other words unnoticed.
    """
    marks = (
        (codecs.BOM_UTF8, "utf-8"),
        (codecs.BOM_UTF16_LE, "utf-16-le"),
        (codecs.BOM_UTF16_BE, "utf-16-be"),
    )
    mark, codec = next((pair for pair in marks if data.startswith(pair[0])), (b"", ""))
    if given or codec:
        tried = [given or codec]
    elif b"\0" in data[:1000]:
        tried = ["utf-16-le" if data[1:2] == b"\0" else "utf-16-be"]
    else:
        tried = ["utf-8", "gb18030"]
    for codec in tried:
        try:
            text = data[len(mark) :].decode(codec)
        except LookupError:
            raise ChatError(f"FIELDS: there is no encoding {codec!r}") from None
        except UnicodeDecodeError:
            continue
        if codec != "gb18030" or given or _is_common_chinese(text):
            return text, Encoding(codec, mark)
    raise ChatError(
        f"{name} is in none of UTF-8, UTF-16 and GB18030: save it as UTF-8, or name its encoding as "
        "FIELDS='encoding=big5'"
    )


def _is_common_chinese(text: str) -> bool:
    """Whether most Chinese signs are among the 3,755 most used ones (rows 16 to 55 of GB 2312)."""
    signs = re.findall(r"[\u3400-\u9fff]", text)
    common = sum(
        len(code := sign.encode("gbk", "replace")) == 2 and 0xB0 <= code[0] <= 0xD7 and code[1] >= 0xA1
        for sign in signs
    )
    return 2 * common >= len(signs)


# --- a table


@dataclass
class Table:
    """A CSV file by its cells; records above the header are kept, too."""

    rows: list[list[str]]
    lines: list[int]
    """The line with which each record ends, for messages."""
    head: int
    """Which record is the header."""
    delimiter: str
    newline: str

    @property
    def header(self) -> list[str]:
        """Names of the columns; an earlier insertion's columns are not among them."""
        names = self.rows[self.head]
        return names[: -len(MEME_COLUMNS)] if tuple(names[-len(MEME_COLUMNS) :]) == MEME_COLUMNS else names

    def records(self) -> list[tuple[int, dict[str, str]]]:
        """Place, and cells by column, of every row below the header that is not blank."""
        found, columns = [], len(self.rows[self.head])
        for number, row in enumerate(self.rows):
            if number > self.head and any(cell.strip() for cell in row):
                if len(row) > columns:
                    raise ChatError(
                        f"line {self.lines[number]}: {len(row)} cells under {columns} columns; a text that "
                        f"holds {self.delimiter!r} must stand in double quotes"
                    )
                found.append((number, dict(zip(self.header, row, strict=False))))
        return found

    def with_memes(self, memes: Memes, _position: str) -> str:
        """The text of the table with `MEME_COLUMNS` at the end of each row."""
        width, out = len(self.header), io.StringIO(newline="")
        writer = csv.writer(out, delimiter=self.delimiter, lineterminator=self.newline)
        for number, row in enumerate(self.rows):
            if number < self.head or not row:
                writer.writerow(row)
                continue
            values = [memes.get(number, {}).get(name) for name in MEME_COLUMNS]
            kept = [*row[:width], *[""] * (width - len(row))]
            writer.writerow([*kept, *(MEME_COLUMNS if number == self.head else values)])
        return out.getvalue()


def read_table(text: str, delimiter: str) -> tuple[Table, str]:
    """Split a CSV text into records, and what is wrong where it stops; its header is not known yet."""
    newline = "\r\n" if "\r\n" in text else "\n"
    table = Table([], [], 0, delimiter, newline)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    try:
        for row in reader:
            table.rows.append(row)
            table.lines.append(reader.line_num)
    except csv.Error as error:
        start = table.lines[-1] if table.lines else 0
        return (
            table,
            f"line {start + 1}: {error}; a text with quotes stands in quotes, each quote in it doubled",
        )
    return table, ""


# --- JSON

BESIDE = "inserted_memes"
"""Where a chat is a list of bare texts, memes stand in a list of this name beside it, as long as it."""
NUMBER = "\ue000"
"""Stands around the digits of a number until it is written again as it stood."""


def number_of(value: Any) -> Any:
    """A value of a JSON file, with a number that has a point or an exponent as a float."""
    return float(value.strip(NUMBER)) if isinstance(value, str) and value.startswith(NUMBER) else value


@dataclass
class Json:
    """A JSON document, or JSON Lines with one object a line."""

    values: list[Any]
    """The document, or the object of each line."""
    is_lines: bool
    indent: int | None = None

    def with_memes(self, memes: Memes, _position: str) -> str:
        """The text with `MEME_COLUMNS` as keys of the messages that a meme goes with.

        A place is (number of the object, key, key, ...).
        """
        for value in self.values:
            _without_memes(value)
        for (number, *keys), meme in memes.items():
            target = holder = self.values[number]
            for key in keys:
                holder, target = target, target[key]
            if isinstance(target, dict):
                target.update(meme)
            else:  # a bare text has no room for keys: its list stands below a key of the object
                chat, texts = self.values[number], holder
                chat.setdefault(BESIDE, [None] * len(texts))[keys[-1]] = dict(meme)
        return "".join(dumps(value, self.indent) + "\n" for value in self.values)


def _without_memes(value: Any) -> None:
    """Take away what an earlier insertion wrote."""
    if isinstance(value, dict):
        if value.keys() >= MARKS:
            for name in MEME_COLUMNS:
                value.pop(name, None)
        beside = value.get(BESIDE)
        if isinstance(beside, list) and all(item is None or item.keys() >= MARKS for item in beside):
            del value[BESIDE]
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _without_memes(inner)


def dumps(value: Any, indent: int | None) -> str:
    """JSON with numbers as they stood and Chinese as it is; half a surrogate pair stays an escape."""
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    if re.search(r"[\ud800-\udfff]", text):
        text = json.dumps(value, indent=indent).replace(json.dumps(NUMBER)[1:-1], NUMBER)
    return re.sub(f'"{NUMBER}([^"]*){NUMBER}"', r"\1", text)


def _loads(text: str) -> Any:
    return json.loads(text, parse_float=lambda digits: f"{NUMBER}{digits}{NUMBER}")


def read_json(text: str, is_lines: bool) -> Json:
    """Read a JSON document or JSON Lines; `ChatError` with the line that is no JSON."""
    indent = None if is_lines else re.match(r"\s*[\[{]\r?\n( +)", text)
    content = Json([], is_lines, len(indent[1]) if indent else None)
    for number, part in enumerate(text.split("\n") if is_lines else [text], start=1):
        try:
            content.values += [_loads(part)] if part.strip() else []
        except (ValueError, RecursionError) as error:
            where = f"line {number}: " if is_lines else ""
            raise ChatError(f"{where}not JSON: {error}") from error
    return content


# --- lines of text

_MEME_LINE = re.compile(rf".*\[meme [^\[\]]+: [^/\[\]]*{PICTURES}/[^/\[\]]+\]\s*")


@dataclass
class Text:
    """Lines of a chat as text, without the lines of an earlier insertion."""

    lines: list[str]
    """With their line breaks."""

    def with_memes(self, memes: Memes, position: str) -> str:
        """The text with a line `[meme ID: FILE]` before or after the words of each message with a meme.

        A place is (first line of the words, line after the last one, what stands before the words).
        """
        out = list(self.lines)
        newline = next((end for line in out if (end := line[len(line.rstrip("\r\n")) :])), "\n")
        for (first, end, prefix), meme in sorted(memes.items(), reverse=True):
            at = end if position == "after" else first
            meme_id = re.sub(r"[\[\]\s]+", " ", str(meme["meme_id"]))
            words = f"{prefix}[meme {meme_id}: {meme['meme_file']}]"
            is_open = at and not out[at - 1].endswith(("\n", "\r"))
            out.insert(at, newline + words if is_open else words + newline)
        return "".join(out)


def read_text(text: str) -> Text:
    """Split a text into lines."""
    return Text(
        [line for line in io.StringIO(text, newline="").readlines() if not _MEME_LINE.fullmatch(line)]
    )
