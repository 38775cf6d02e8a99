"""Read chats of one's own, from a file or pasted, and write a file back with memes in it.

CSV (comma, semicolon, tab), JSON Lines and JSON: one row a message, or one object a chat
(`{"messages": [...]}` as of chat endpoints, `{"dialogue": [...]}`); and text as chat programs copy and
export it. Several chats a file, any number of speakers. What is written back has the rows, columns, encoding
and delimiter of what was read.
"""

import copy
import csv
import io
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from memecmd_utils.chats import columns as chats_columns
from memecmd_utils.chats import formats, transcripts
from memecmd_utils.chats.columns import MEME_COLUMNS, Cell, Place, is_nameless
from memecmd_utils.chats.formats import Encoding
from memecmd_utils.chats.messages import ChatError, Context, Conversation, Message
from memecmd_utils.chats.transcripts import Transcript

SUFFIXES = {
    ".csv": "table", ".tsv": "table", ".txt": "text",
    ".jsonl": "lines", ".ndjson": "lines", ".json": "whole",
}  # fmt: skip
ENCODING = "encoding"
"""What `FIELDS=` may name besides columns."""


# --- tables ------------------------------------------------------------------------------------------

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
        """Messages, one a row, and the columns read, in words. Raises `ChatError` with the line."""
        header = self.rows[0]
        rows = [
            (number, f"{name} line {line}", row)
            for number, (row, line) in enumerate(zip(self.rows, self.lines, strict=True))
            if number and any(cell.strip() for cell in row)
        ]
        for _, where, row in rows:
            if len(row) > len(header):
                raise ChatError(
                    f"{where}: {len(row)} cells under {len(header)} columns; a text that holds "
                    f"{self.delimiter!r} must stand in double quotes"
                )
        values = [
            (
                Place(number),
                where,
                {column: cell for column, cell in zip(header, row, strict=False) if not is_nameless(column)},
            )
            for number, where, row in rows
        ]
        cells, columns = chats_columns.cells(values, header, given, f"{name} line 1")
        twice = [column for column in columns.of.values() if header.count(column) > 1]
        if twice:
            raise ChatError(f"{name} line 1: two columns are called {twice[0]!r}; names must differ")
        return cells, columns.text()

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
            added = ["" if (v := found.get(name)) is None else str(v) for name in MEME_COLUMNS]
            added = added if number else list(MEME_COLUMNS)
            own = [row[i] if i < len(row) else "" for i in kept]
            written.append((_row([*own, *added], self.delimiter) if row else "") + end)
        return "".join(written)


def _read_table(text: str, name: str, given: Mapping[str, str]) -> Table:
    """Read a table; the delimiter is the one under which the header makes most sense.

    Raises `ChatError` for a file without rows and for quotes that are not closed.
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
        raise ChatError(
            f"{name} line {line}: {error}; a text with quotes stands in quotes, each quote in it doubled"
        ) from error
    if not rows or not any(cell.strip() for cell in rows[0]):
        raise ChatError(f"{name} line 1: a header is expected, for example `speaker,text`")
    return Table(rows, lines, ends, delimiter)


def _is_table(text: str) -> bool:
    """Whether the first line is the header of a table that says who speaks and what."""
    header = next(csv.reader(io.StringIO(text, newline=""), delimiter=_delimiter(text, {})), [])
    return {"speaker", "text"} <= set(chats_columns.recognised(header))


def _delimiter(text: str, given: Mapping[str, str]) -> str:
    def sense(delimiter: str) -> tuple[int, int, int]:
        try:
            header = next(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter), [])
        except csv.Error:
            return 0, 0, 0
        named = sum(column in header for column in given.values())
        return named, len(chats_columns.recognised(header)), len(header)

    return max(DELIMITERS, key=sense)


def _row(cells: Sequence[str], delimiter: str) -> str:
    # With this line end the writer quotes every kind of line break in a cell.
    buffer = io.StringIO(newline="")
    csv.writer(buffer, delimiter=delimiter, lineterminator="\r\n").writerow(cells)
    return buffer.getvalue().removesuffix("\r\n")


# --- JSON --------------------------------------------------------------------------------------------

LISTS = (
    "messages", "dialogue", "dialog", "conversation", "conversations", "turns", "utterances", "history",
    "chat", "log", "对话", "消息", "聊天记录",
)  # fmt: skip
"""Keys under which an object may hold the messages of a whole chat."""
CHAT_NAMES = ("dialogue_id", "dialog_id", "session_id", "conversation_id", "chat_id", "id", "name", "title")
"""Keys under which such an object may hold the chat's name, first choice first."""
BESIDE = "inserted_memes"
"""Where a chat is a list of bare texts, memes stand in a list of this name beside it, as long as it."""
EXPECTED = (
    'an object is expected, a message as {"speaker": ..., "text": ...} or a chat as '
    '{"messages": [{"role": ..., "content": ...}, ...]} or {"dialogue": [...]}'
)


@dataclass(frozen=True)
class Documents:
    """JSON objects as read, and how they stood in the file."""

    objects: list[Any]
    places: list[str]
    """`line 3` or `item 3`, for messages."""
    raw: list[str]
    """Lines as they stood in the file; none for one JSON document."""
    shape: Literal["lines", "list", "one", "mapping"]
    names: list[str] | None = None
    """Keys of a document that maps names to chats."""

    def cells(self, name: str, given: Mapping[str, str]) -> tuple[list[Cell], str]:
        """All messages, and which keys they were read from. Raises `ChatError` with file and line."""
        out: list[Cell] = []
        told: list[str] = []
        at = [f"{name} {place}" for place in self.places]
        flat = [i for i, o in enumerate(self.objects) if isinstance(o, dict) and _list_key(o) is None]
        if flat:
            rows = [(Place(i), at[i], self.objects[i]) for i in flat]
            out, columns = chats_columns.cells(rows, (key for *_, row in rows for key in row), given, name)
            told.append(columns.text())
        nested = sorted(set(range(len(self.objects))) - set(flat))
        own = [chats_columns.text_of(key) for key in self.names or ()]
        own = own or [_chat_name(value, i) for i, value in enumerate(self.objects)]
        # Two chats of one name stay two, and so do a chat and messages that name a chat like it.
        before = list(dict.fromkeys(cell.chat for cell in out))
        names = chats_columns.unique([*before, *(own[i] for i in nested)])[len(before) :]
        for i, chat in zip(nested, names, strict=True):
            value = self.objects[i]
            key = _list_key(value) if isinstance(value, dict) else None
            messages = value if key is None else value[key]
            if not isinstance(messages, list) or (key is None and self.names is None):
                raise ChatError(f"{at[i]}: {EXPECTED}, not {_kind(value)}")
            inside, how = _listed(messages, () if key is None else (key,), i, chat, given, at[i])
            out += inside
            told.append(how)
        out.sort(key=lambda cell: cell.place.record)
        return out, "; ".join(dict.fromkeys(filter(None, told)))

    def render(self, memes: Mapping[Place, Mapping[str, Any]], _position: str = "before") -> str:
        """The file with the keys `MEME_COLUMNS` in the messages that a meme goes with.

        A line in which nothing changes is written as it stood.
        """
        by_object: dict[int, dict[tuple, Mapping[str, Any]]] = {}
        for place, meme in memes.items():
            by_object.setdefault(place.record, {})[place.path] = meme
        new = [_with_memes(value, by_object.get(i, {})) for i, value in enumerate(self.objects)]
        if self.shape != "lines":
            mapping = dict(zip(self.names or [], new, strict=False))
            return _dumps({"one": new[0], "list": new, "mapping": mapping}[self.shape], indent=1) + "\n"
        at = iter(range(len(new)))
        lines = []
        for line in self.raw:
            if not line.strip():
                lines.append(line)
                continue
            i = next(at)
            end = line[len(line.rstrip("\r\n")) :]
            lines.append(line if new[i] == self.objects[i] else _dumps(new[i]) + end)
        return "".join(lines)


def _read_lines(text: str, name: str) -> Documents:
    """Read JSON Lines. Raises `ChatError` with the line that is no JSON object."""
    raw = text.split("\n")
    raw = [line + "\n" for line in raw[:-1]] + ([raw[-1]] if raw[-1] else [])
    objects, places = [], []
    for number, line in enumerate(raw, start=1):
        if line.strip():
            objects.append(_loads(line, f"{name} line {number}"))
            places.append(f"line {number}")
    if not objects:
        raise ChatError(f"{name}: the file is empty; {EXPECTED}")
    return Documents(objects, places, raw, "lines")


def _read_whole(text: str, name: str) -> Documents:
    """Read one JSON document: a list of messages or chats, one chat, or a mapping of names to chats."""
    value = _loads(text, name)
    if not value:
        raise ChatError(f"{name}: the file holds no message")
    if isinstance(value, dict) and all(isinstance(v, list) for v in value.values()) and not _list_key(value):
        return Documents(list(value.values()), [repr(key) for key in value], [], "mapping", list(value))
    if isinstance(value, list):
        return Documents(value, [f"item {i}" for i in range(1, len(value) + 1)], [], "list")
    return Documents([value], ["item 1"], [], "one")


def _list_key(value: Mapping[str, Any]) -> str | None:
    """Key of the list of messages of an object that is a whole chat; None for a message."""
    lists = [key for key in LISTS if isinstance(value.get(key), list)]
    if not lists or (
        lists[0] != "messages" and {"speaker", "text"} <= set(chats_columns.recognised(list(value)))
    ):
        return None
    return lists[0]


def _loads(text: str, where: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_object)
    except ChatError as error:
        raise ChatError(f"{where}: {error}") from error
    except (ValueError, RecursionError) as error:
        raise ChatError(f"{where}: not JSON ({error}); {EXPECTED}") from error


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Of two values under one key, Python would keep the last and lose a chat or a message."""
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for place, key in enumerate(keys) if key in keys[:place])
        raise ChatError(f"two values under one key, {twice!r}; keys must differ")
    return found


def _dumps(value: Any, indent: int | None = None) -> str:
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    try:
        text.encode()
    except UnicodeEncodeError:  # half a surrogate pair can only be written as an escape
        return json.dumps(value, indent=indent)
    return text


def _listed(
    messages: list[Any], path: tuple, number: int, chat: str, given: Mapping[str, str], where: str
) -> tuple[list[Cell], str]:
    """Messages of one chat: objects, or bare texts of two who take turns; and the keys read, in words.

    Their order is the list's, unless their times say that the newest comes first.
    """
    if not messages:
        return [], ""
    places = [Place(number, (*path, i)) for i in range(len(messages))]
    objects = [m for m in messages if isinstance(m, dict)]
    if not objects and path and all(isinstance(m, str) for m in messages):
        said = [Message("AB"[i % 2], chats_columns.text_of(text)) for i, text in enumerate(messages)]
        cells = [Cell(places[i], where, chat, message, i) for i, message in enumerate(said)]
        return cells, "bare texts, said by A and B in turn"
    if len(objects) != len(messages):
        odd = next(i for i, m in enumerate(messages) if not isinstance(m, dict))
        spot = f"{where}, message {odd + 1}"
        raise ChatError(f"{spot}: an object with speaker and text is expected, not {_kind(messages[odd])}")
    rows = [(places[i], f"{where}, message {i + 1}", value) for i, value in enumerate(objects)]
    cells, columns = chats_columns.cells(rows, (key for row in objects for key in row), given, where, chat)
    return cells, columns.text()


def _chat_name(value: Any, number: int) -> str:
    for key in CHAT_NAMES if isinstance(value, dict) else ():
        if isinstance(value.get(key), str | int) and str(value[key]).strip():
            return chats_columns.text_of(value[key]).strip()
    return f"chat {number + 1}"


def _with_memes(value: Any, memes: Mapping[tuple, Mapping[str, Any]]) -> Any:
    """A copy of an object with its memes; those of an earlier insertion are taken away first."""
    new = copy.deepcopy(value)
    for found in _messages(new):
        for key in MEME_COLUMNS:
            found.pop(key, None)
    for path, meme in memes.items():
        target = new
        for key in path[:-1]:
            target = target[key]
        inner = target[path[-1]] if path else target
        if isinstance(inner, dict):
            inner.update(meme)
        else:  # a bare text has no place for keys
            new.setdefault(BESIDE, [None] * len(target))[path[-1]] = dict(meme)
    return new


def _messages(value: Any) -> Iterable[dict[str, Any]]:
    key = _list_key(value) if isinstance(value, dict) else None
    if isinstance(value, dict) and key is None:
        yield value
        return
    inside = value[key] if key is not None else value
    yield from (m for m in inside if isinstance(m, dict))
    if key is not None and all(isinstance(m, str) for m in inside):
        value.pop(BESIDE, None)


def _kind(value: Any) -> str:
    return {dict: "an object", list: "a list", str: "a text", type(None): "null"}.get(type(value), "a number")


# --- files -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Export:
    """A chat export: its chats, and the file around them."""

    chats: tuple[Conversation, ...]
    places: tuple[tuple[Place, ...], ...]
    """Where each message of each chat stands in the file."""
    content: Table | Documents | Transcript
    encoding: Encoding
    taken: str
    """What was taken for what, in words: messages, speakers, chats, columns, order, encoding."""

    def render(self, memes: Mapping[tuple[int, int], Mapping[str, Any]], position: str = "before") -> bytes:
        """The export with `memes`: (chat, message) to values of `MEME_COLUMNS`.

        In a text, a meme stands before or after what its message says. Raises `ChatError` if the encoding
        of the file lacks a sign of something in `memes`.
        """
        at = {self.places[chat][message]: values for (chat, message), values in memes.items()}
        return self.encoding.encode(self.content.render(at, position))


def read(path: Path, columns: Mapping[str, str] | None = None) -> Export:
    """Read a chat export by its suffix: .csv, .tsv, .txt, .jsonl, .ndjson or .json.

    `columns` names columns that are not called by a known name: part of a message (`chat`, `order`, `time`,
    `date`, `speaker`, `text`, `scenario`, `emotion`, `motivation`) to column; and the file's `encoding`,
    where it is not recognised. Raises `ChatError`.
    """
    kind = SUFFIXES.get(path.suffix.lower())
    if kind is None:
        raise ChatError(f"{path.name}: a chat is a file {', '.join(SUFFIXES)}, not {path.suffix or 'this'}")
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ChatError(f"{path} cannot be read: {error.strerror}") from error
    given = dict(columns or {})
    text, encoding = formats.decode(data, path.name, given.pop(ENCODING, ""))
    if not text.strip():
        raise ChatError(f"{path.name}: the file is empty")
    content: Table | Documents | Transcript
    if kind == "table" or (kind == "text" and (given or _is_table(text))):
        content = _read_table(text, path.name, given)
    elif kind == "text":
        content = transcripts.read(text, path.name)
    else:
        content = (_read_lines if kind == "lines" else _read_whole)(text, path.name)
    cells, how = content.cells(path.name, given)
    found = chats_columns.conversations(cells)
    messages = [message for read in found for message in read.chat.messages]
    if not any(m.speaker and m.text.strip() for m in messages):
        raise ChatError(f"{path.name}: no message has both a speaker and a text")
    speakers = {message.speaker for message in messages} - {""}
    taken = [
        f"{counted(len(messages), 'message')} of {counted(len(speakers), 'speaker')} "
        f"in {counted(len(found), 'chat')}",
        how,
        f"ordered by {_orders([read.order for read in found])}",
        encoding.text(),
    ]
    return Export(
        tuple(read.chat for read in found),
        tuple(tuple(read.places) for read in found),
        content,
        encoding,
        "; ".join(taken),
    )


def counted(number: int, noun: str) -> str:
    """A number of things in words: `1 chat`, `1,200 chats`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _orders(orders: list[str]) -> str:
    counts = Counter(orders).most_common()
    return (
        counts[0][0] if len(counts) == 1 else ", ".join(f"{how} ({counted(n, 'chat')})" for how, n in counts)
    )


def parse_columns(text: str) -> dict[str, str]:
    """`FIELDS=` of the command line: `part=column`, commas between, or `encoding=name`.

    >>> parse_columns("text=消息, speaker=昵称")
    {'text': '消息', 'speaker': '昵称'}
    """
    found = {}
    for pair in filter(None, (piece.strip() for piece in text.split(","))):
        part, equals, column = pair.partition("=")
        if not equals or not part.strip() or not column.strip():
            raise ChatError(f"FIELDS needs part=column, got {pair!r}")
        found[part.strip()] = column.strip()
    return found


# --- a pasted chat -----------------------------------------------------------------------------------

MAX_CHARS, MAX_TURNS = 20_000, 200
"""How long a pasted chat may be."""


def read_pasted(text: str) -> Context:
    """Read a pasted chat between two people up to the turn that the other one has next.

    Where messages begin with a line of name and time (`transcripts.parse`), all lines up to the next
    such line are one message. Else a line without a name is said by the other one; so lines without any name
    alternate. A name alone on its line goes with the next line, a day or a time alone on its line with none.
    Lines of the same speaker one after the other become one turn. Raises `ChatError` for an empty chat, three
    names, or one that is too long.
    """
    if len(text) > MAX_CHARS:
        raise ChatError(f"the chat has {len(text):,} characters; {MAX_CHARS:,} at most")
    people: dict[str, int] = {}  # which of the two bears a name
    turns: list[tuple[int, str]] = []
    waiting: int | None = None  # whose name stood alone on the line before
    for number, name, words in _pasted_lines(text.lstrip("\ufeff")):
        if name and name not in people:
            if len(people) == 2:
                raise ChatError(
                    f"line {number}: {name!r} would be a third person beside "
                    f"{' and '.join(map(repr, people))}; a chat here has two. If it is no name, write the "
                    "line without the colon"
                )
            # The first name may come after lines without one: then those before it are the other's.
            known = next(iter(people.values()), turns[-1][0] if turns else 1)
            people[name] = 1 - known
        if name and not words:
            waiting = people[name]
            continue
        other = 1 - turns[-1][0] if turns else 0
        speaker = people[name] if name else other if waiting is None else waiting
        waiting = None
        if turns and turns[-1][0] == speaker:
            turns[-1] = speaker, f"{turns[-1][1]} {words}"
        else:
            turns.append((speaker, words))
    if not turns:
        raise ChatError("nothing to read yet: paste a chat, one line for each message")
    if len(turns) > MAX_TURNS:
        raise ChatError(f"the chat has {len(turns)} turns; {MAX_TURNS} at most")
    first = turns[0][0]
    names = {who: name for name, who in people.items()}
    spare = iter(name for name in ("甲", "乙") if name not in people)
    names = {who: names.get(who) or next(spare) for who in (first, 1 - first)}
    lines = tuple((names[who], words) for who, words in turns)
    return Context("pasted", len(turns) + 1, lines, names[1 - turns[-1][0]])


def _pasted_lines(text: str) -> Iterator[tuple[int, str, str]]:
    """Number, name and words of each message of a copied chat, or of each line of another."""
    copied = transcripts.parse(text)
    if copied is not None:
        for message in copied.messages:
            read = chats_columns.clean_message(message.speaker, message.text)
            if read.speaker and message.text:  # a picture is a turn, a note of the program is none
                yield message.first + 1, read.speaker, " ".join(message.text.split())
        return
    labelled = transcripts.labels(transcripts.split(text))
    for number, (name, words) in enumerate(labelled, start=1):
        if name or (words and not transcripts.is_between(labelled, number - 1)):
            yield number, name, words
