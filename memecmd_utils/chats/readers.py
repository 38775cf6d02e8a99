"""Read an export of chats, and write it back with memes in it.

CSV (comma, semicolon, tab), JSON Lines and JSON: one row a message, or one object a chat
(`{"messages": [...]}` as of chat endpoints, `{"dialogue": [...]}`); and text as chat programs copy and
export it (`transcripts`). Several chats a file, any number of speakers. What is written back has the rows,
columns, encoding and delimiter of what was read.
"""

import copy
import csv
import io
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from memecmd_utils.chats import formats, transcripts
from memecmd_utils.chats.formats import Encoding
from memecmd_utils.chats.messages import (
    NOT_SPOKEN,
    Cell,
    ChatError,
    Conversation,
    Message,
    Place,
    clean_message,
    text_of,
    unique,
)
from memecmd_utils.chats.transcripts import Transcript
from memecmd_utils.schemas import SummaryReply

# --- which column says what

NAMES: Mapping[str, tuple[str, ...]] = {
    "chat": (
        "dialogue_id", "dialog_id", "session_id", "conversation_id", "chat_id", "thread_id", "room_id",
        "dialogue", "dialog", "session", "conversation", "chat", "thread", "room", "channel", "group",
        "会话id", "对话id", "会话编号", "对话编号", "会话", "对话", "群聊", "群名", "聊天",
        "會話id", "對話id", "會話編號", "對話編號", "會話", "對話", "群組", "聊天室",
    ),
    "order": (
        "turn", "turn_id", "turn_index", "message_index", "message_no", "index", "idx", "position",
        "seq", "no",
        "序号", "轮次", "编号", "顺序", "消息序号", "序號", "輪次", "編號", "順序", "番号",
    ),
    "time": (
        "time", "timestamp", "datetime", "date_time", "created_at", "sent_at", "create_time", "send_time",
        "str_time", "timestamp_ms", "ts",
        "时间", "发送时间", "消息时间", "时间戳", "日期时间",
        "時間", "發送時間", "傳送時間", "訊息時間", "時間戳", "日時", "時刻", "送信日時", "시간",
    ),
    "date": ("date", "day", "日期", "发送日期", "消息日期", "發送日期", "傳送日期", "日付", "날짜"),
    "speaker": (
        "speaker_name", "sender_name", "nickname", "speaker", "sender", "speaker_id", "sender_id", "from",
        "author", "username", "user", "role", "name", "who",
        "昵称", "发送人", "发送者", "发言人", "说话人", "发件人", "用户", "姓名", "角色",
        "暱稱", "發送人", "發送者", "傳送者", "發言人", "說話人", "寄件人", "使用者", "用戶", "成員",
        "名前", "送信者", "発言者", "話者", "ユーザー", "이름", "보낸사람", "사용자",
    ),
    "text": (
        "text", "content", "message", "utterance", "txt", "msg", "body", "value", "str_content",
        "内容", "消息内容", "聊天内容", "消息", "文本", "正文", "发言",
        "內容", "訊息內容", "訊息", "聊天內容", "文字", "發言",
        "メッセージ", "テキスト", "本文", "내용", "메시지",
    ),
    "scenario": ("s", "scenario", "场景"),
    "emotion": ("e", "emotion", "情绪"),
    "motivation": ("psi", "ψ", "motivation", "动机"),
}  # fmt: skip
"""What a column may be called, first choice first; letters' case, spaces and `_ - . /` do not count."""
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
SUMMARY = ("scenario", "emotion", "motivation")
_IGNORED = re.compile(r"[\s_\-./#:：]+")


def _cells(
    rows: Sequence[tuple[Place, str, Mapping[str, Any]]],
    names: Sequence[str],
    given: Mapping[str, str],
    where: str,
    chat: str | None = None,
) -> tuple[list[Cell], str]:
    """Messages of rows (place, line for errors, values by column), and the columns read, in words.

    Where all are of one list, `chat` is its name, and each is numbered by its place in it.
    """
    columns, notes = _columns([row for *_, row in rows], names, given, where)
    values = [{part: row.get(column) for part, column in columns.items()} for *_, row in rows]
    if chat is None:
        chats = _chat_names([text_of(value.get("chat")) for value in values])
    else:
        chats = [chat] * len(rows)
    cells = []
    for i, ((place, line, _), value) in enumerate(zip(rows, values, strict=True)):
        number = value.get("order") if chat is None else i
        message = _message(value, columns, line)
        cells.append(Cell(place, chats[i], message, number, value.get("time"), value.get("date")))
    parts = [part for part in NAMES if part in columns and part not in SUMMARY]
    return cells, ", ".join([*(f"{part} is {columns[part]!r}" for part in parts), *notes])


def _columns(
    rows: Sequence[Mapping[str, Any]], names: Sequence[str], given: Mapping[str, str], where: str
) -> tuple[dict[str, str], list[str]]:
    """Parts of a message to columns, and what was decided about them, in words.

    Columns go by their names, put right by what stands in them; one that is `given` is left as it is. A
    column in which every row has a number of its own counts messages and names no chat. Where one sender is
    named for all rows (the owner of the telephone, say), a known column that tells them apart is taken.
    """
    columns, notes = _columns_by_name(names, given, where), []
    if "chat" in columns and "chat" not in given:
        chats = [text_of(row.get(columns["chat"])).strip() for row in rows]
        numbers = all(re.fullmatch(r"\d+(\.0)?", chat) for chat in chats)
        if numbers and 1 < len(chats) == len(set(chats)):
            notes.append(f"{columns.pop('chat')!r} numbers the messages and names no chat")

    def n_speakers(column: str) -> int:
        speakers = {" ".join(text_of(row.get(column)).split()) for row in rows}
        return sum(bool(name) and name.casefold() not in NOT_SPOKEN for name in speakers)

    if "speaker" not in given and len(rows) > 1 and n_speakers(columns["speaker"]) == 1:
        free = {_plain(name): name for name in reversed(names) if name not in columns.values()}
        others = [free[_plain(choice)] for choice in NAMES["speaker"] if _plain(choice) in free]
        better = next((column for column in others if n_speakers(column) > 1), None)
        if better is not None:
            notes.append(f"{columns['speaker']!r} is the same everywhere")
            columns["speaker"] = better
    return columns, notes


def _columns_by_name(names: Sequence[str], given: Mapping[str, str], where: str) -> dict[str, str]:
    """Map parts of a message to columns. Raises `ChatError`, also for a given column that does not exist."""
    have = [name for name in dict.fromkeys(names) if not _is_nameless(name)]
    unknown = sorted(set(given) - set(NAMES))
    if unknown:
        raise ChatError(f"no such part of a message: {unknown}; there are: {', '.join(NAMES)}")
    absent = [column for column in given.values() if column not in have]
    if absent:
        raise ChatError(f"{where}: there is no column {absent[0]!r}; there are: {', '.join(have)}")
    columns = _recognised(have, given)
    lacking = [part for part in ("speaker", "text") if part not in columns]
    if lacking:
        hints = "; ".join(f"{part} ({', '.join(NAMES[part][:6])} ...)" for part in lacking)
        raise ChatError(
            f"{where}: no column says {' or '.join(lacking)}; there are: {', '.join(have) or 'none'}. "
            f"Known names: {hints}. Name others as FIELDS='{lacking[0]}=...'"
        )
    repeated = [column for column in columns.values() if names.count(column) > 1]
    if repeated:
        raise ChatError(f"{where}: two columns are called {repeated[0]!r}; names must differ")
    return columns


def _is_nameless(name: str) -> bool:
    """Whether a column has no name: an index that pandas wrote, or wrote and read again."""
    return not name.strip("\ufeff \t") or re.fullmatch(r"Unnamed: \d+(\.\d+)?", name.strip()) is not None


def _recognised(names: Iterable[str], given: Mapping[str, str] | None = None) -> dict[str, str]:
    """Parts of a message to columns, what is `given` first."""
    columns = dict(given or {})
    by_plain: dict[str, str] = {}
    for name in names:
        by_plain.setdefault(_plain(name), name)
    for part, choices in NAMES.items():
        for choice in choices:
            column = by_plain.get(_plain(choice))
            if part not in columns and column is not None and column not in columns.values():
                columns[part] = column
    return columns


def _plain(name: str) -> str:
    return _IGNORED.sub("", name.strip("\ufeff").casefold())


def _message(value: Mapping[str, Any], columns: Mapping[str, str], where: str) -> Message:
    """The message of a row (by part): without text where there is none, without speaker for a note.

    S, E and Psi count only together: a data set may have an `emotion` of its own, say a label.
    """
    texts = {part: text_of(value[part]).strip() for part in SUMMARY if part in value}
    summary = None
    if len(texts) == len(SUMMARY) and any(texts.values()):
        empty = [columns[part] for part, text in texts.items() if not text]
        if empty:
            raise ChatError(f"{where}: {', '.join(empty)} is empty; a summary has all of S, E and Psi")
        summary = SummaryReply(**texts)
    speaker = value["speaker"]
    if isinstance(speaker, dict):  # an author with a name, an id and more
        names = (speaker.get(key) for key in ("nickname", "name", "username", "id"))
        speaker = next(filter(None, names), "")
    return clean_message(text_of(speaker), text_of(value["text"]), summary)


def _chat_names(values: Sequence[str]) -> list[str]:
    """The name of each row's chat, from the cells of the column that has it.

    Where every name stands once, at the head of its messages, the empty cells below it belong to it. Else
    rows without a name are a chat of their own.
    """
    values = [value.strip() for value in values]
    names = [value for value in values if value]
    if values and values[0] and len(set(names)) == len(names):
        return formats.filled(values) or []
    nameless = unique([*dict.fromkeys(names), "chat"])[-1]
    return [value or nameless for value in values]


# --- tables

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
        rows = []
        for number, (row, line) in enumerate(zip(self.rows, self.lines, strict=True)):
            if not number or not any(cell.strip() for cell in row):
                continue
            where = f"{name} line {line}"
            if len(row) > len(header):
                raise ChatError(
                    f"{where}: {len(row)} cells under {len(header)} columns; a text that holds "
                    f"{self.delimiter!r} must stand in double quotes"
                )
            values = {
                column: cell for column, cell in zip(header, row, strict=False) if not _is_nameless(column)
            }
            rows.append((Place(number), where, values))
        return _cells(rows, header, given, f"{name} line 1")

    def render(self, memes: Mapping[Place, Mapping[str, Any]], _position: str = "before") -> str:
        """The table with the columns `MEME_COLUMNS` at its end; those of an earlier insertion are replaced.

        All other cells are written as they were read, also those that begin with `=`, `+`, `-` or `@`: they
        are the user's own, and a sign before them would change the chat. What is added never begins so,
        apart from the minus of a number.
        """
        own = [place for place, name in enumerate(self.rows[0]) if name not in MEME_COLUMNS]
        lines = []
        for number, (row, end) in enumerate(zip(self.rows, self.ends, strict=True)):
            meme = (
                memes.get(Place(number), {}) if number else dict(zip(MEME_COLUMNS, MEME_COLUMNS, strict=True))
            )
            cells = [row[i] if i < len(row) else "" for i in own]
            added = [meme.get(name) for name in MEME_COLUMNS]  # the writer makes an empty cell of None
            lines.append((_row([*cells, *added], self.delimiter) if row else "") + end)
        return "".join(lines)


def _read_table(text: str, name: str, given: Mapping[str, str]) -> Table:
    """Read a table; the delimiter is the one under which the header makes most sense.

    Raises `ChatError` for a file without rows and for quotes that are not closed.
    """
    delimiter = _delimiter(text, given)
    raw = io.StringIO(text, newline="").readlines()
    reader = csv.reader(raw, delimiter=delimiter, strict=True)
    rows: list[list[str]] = []
    lines, ends, line = [], [], 1
    try:
        for row in reader:
            rows.append(row)
            lines.append(line)
            last = raw[reader.line_num - 1]
            ends.append(last[len(last.rstrip("\r\n")) :])
            line = reader.line_num + 1
    except csv.Error as error:
        raise ChatError(
            f"{name} line {line}: {error}; a text with quotes stands in quotes, each quote in it doubled"
        ) from error
    if not rows or not any(cell.strip() for cell in rows[0]):
        raise ChatError(f"{name} line 1: a header is expected, for example `speaker,text`")
    return Table(rows, lines, ends, delimiter)


def _is_table(text: str) -> bool:
    """Whether the first line is the header of a table that says who speaks and what."""
    return {"speaker", "text"} <= set(_recognised(_header(text, _delimiter(text, {}))))


def _delimiter(text: str, given: Mapping[str, str]) -> str:
    def sense(delimiter: str) -> tuple[int, int, int]:
        header = _header(text, delimiter)
        return sum(column in header for column in given.values()), len(_recognised(header)), len(header)

    return max(DELIMITERS, key=sense)


def _header(text: str, delimiter: str) -> list[str]:
    try:
        return next(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter), [])
    except csv.Error:
        return []


def _row(cells: Sequence[Any], delimiter: str) -> str:
    # With this line end the writer quotes every kind of line break in a cell.
    buffer = io.StringIO(newline="")
    csv.writer(buffer, delimiter=delimiter, lineterminator="\r\n").writerow(cells)
    return buffer.getvalue().removesuffix("\r\n")


# --- JSON

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
        cells: list[Cell] = []
        notes: list[str] = []
        lines = [f"{name} {place}" for place in self.places]
        flat = [i for i, value in enumerate(self.objects) if _is_message(value)]
        if flat:
            rows = [(Place(i), lines[i], self.objects[i]) for i in flat]
            cells, note = _cells(rows, _keys(self.objects[i] for i in flat), given, name)
            notes.append(note)
        nested = sorted(set(range(len(self.objects))) - set(flat))
        own = [text_of(key) for key in self.names or ()]
        own = own or [_chat_name(value, i) for i, value in enumerate(self.objects)]
        # Two chats of one name stay two, and so do a chat and messages that name a chat like it.
        taken = list(dict.fromkeys(cell.chat for cell in cells))
        names = unique([*taken, *(own[i] for i in nested)])[len(taken) :]
        for i, chat in zip(nested, names, strict=True):
            value = self.objects[i]
            key = _list_key(value) if isinstance(value, dict) else None
            messages = value if key is None else value[key]
            if not isinstance(messages, list) or (key is None and self.names is None):
                raise ChatError(f"{lines[i]}: {EXPECTED}, not {_kind(value)}")
            of_chat, note = _list_cells(
                messages, Place(i, () if key is None else (key,)), chat, given, lines[i]
            )
            cells += of_chat
            notes.append(note)
        cells.sort(key=lambda cell: cell.place.record)
        return cells, "; ".join(dict.fromkeys(filter(None, notes)))

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
        objects = iter(zip(self.objects, new, strict=True))
        lines = []
        for line in self.raw:
            before, after = next(objects) if line.strip() else (None, None)
            end = line[len(line.rstrip("\r\n")) :]
            lines.append(line if before == after else _dumps(after) + end)
        return "".join(lines)


def _read_lines(text: str, name: str) -> Documents:
    """Read JSON Lines. Raises `ChatError` with the line that is no JSON object."""
    raw = io.StringIO(text, newline="\n").readlines()
    objects, places = [], []
    for number, line in enumerate(raw, start=1):
        if line.strip():
            objects.append(_loads(line, f"{name} line {number}"))
            places.append(f"line {number}")
    return Documents(objects, places, raw, "lines")


def _read_document(text: str, name: str) -> Documents:
    """Read one JSON document: a list of messages or chats, one chat, or a mapping of names to chats."""
    value = _loads(text, name)
    if not value:
        raise ChatError(f"{name}: the file holds no message")
    if isinstance(value, dict) and all(isinstance(v, list) for v in value.values()) and not _list_key(value):
        return Documents(list(value.values()), [repr(key) for key in value], [], "mapping", list(value))
    if isinstance(value, list):
        return Documents(value, [f"item {i}" for i in range(1, len(value) + 1)], [], "list")
    return Documents([value], ["item 1"], [], "one")


def _is_message(value: Any) -> bool:
    return isinstance(value, dict) and _list_key(value) is None


def _list_key(value: Mapping[str, Any]) -> str | None:
    """Key of the list of messages of an object that is a whole chat; None for a message."""
    key = next((key for key in LISTS if isinstance(value.get(key), list)), None)
    # A message may bring its history.
    return None if key != "messages" and {"speaker", "text"} <= set(_recognised(value)) else key


def _keys(objects: Iterable[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(key for value in objects for key in value))


def _loads(text: str, where: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_object)
    except ChatError as error:
        raise ChatError(f"{where}: {error}") from error
    except (ValueError, RecursionError) as error:
        raise ChatError(f"{where}: not JSON ({error}); {EXPECTED}") from error


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Of two values under one key, Python would keep the last and lose a chat or a message."""
    value = dict(pairs)
    if len(value) < len(pairs):
        [(repeated, _)] = Counter(key for key, _ in pairs).most_common(1)
        raise ChatError(f"two values under one key, {repeated!r}; keys must differ")
    return value


def _dumps(value: Any, indent: int | None = None) -> str:
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    try:
        text.encode()
    except UnicodeEncodeError:  # half a surrogate pair can only be written as an escape
        return json.dumps(value, indent=indent)
    return text


def _list_cells(
    messages: list[Any], place: Place, chat: str, given: Mapping[str, str], where: str
) -> tuple[list[Cell], str]:
    """Messages of one chat: objects, or bare texts of two who take turns; and the keys read, in words.

    Their order is the list's, unless their times say that the newest comes first.
    """
    if not messages:
        return [], ""
    places = [Place(place.record, (*place.path, i)) for i in range(len(messages))]
    if place.path and all(isinstance(message, str) for message in messages):
        cells = [
            Cell(places[i], chat, Message("AB"[i % 2], text_of(text)), i) for i, text in enumerate(messages)
        ]
        return cells, "bare texts, said by A and B in turn"
    rows = []
    for i, message in enumerate(messages):
        line = f"{where}, message {i + 1}"
        if not isinstance(message, dict):
            raise ChatError(f"{line}: an object with speaker and text is expected, not {_kind(message)}")
        rows.append((places[i], line, message))
    return _cells(rows, _keys(messages), given, where, chat)


def _chat_name(value: Any, number: int) -> str:
    for key in CHAT_NAMES if isinstance(value, dict) else ():
        if isinstance(value.get(key), str | int) and str(value[key]).strip():
            return text_of(value[key]).strip()
    return f"chat {number + 1}"


def _with_memes(value: Any, memes: Mapping[tuple, Mapping[str, Any]]) -> Any:
    """A copy of an object with its memes; those of an earlier insertion are taken away first."""
    new = copy.deepcopy(value)
    key = _list_key(new) if isinstance(new, dict) else None
    messages = [new] if _is_message(new) else new if key is None else new[key]
    if key is not None and all(isinstance(message, str) for message in messages):
        new.pop(BESIDE, None)
    for message in messages:
        if isinstance(message, dict):
            for column in MEME_COLUMNS:
                message.pop(column, None)
    for path, meme in memes.items():
        place = path[-1] if path else 0
        if isinstance(messages[place], dict):
            messages[place].update(meme)
        else:  # a bare text has no place for keys
            new.setdefault(BESIDE, [None] * len(messages))[place] = dict(meme)
    return new


def _kind(value: Any) -> str:
    return {dict: "an object", list: "a list", str: "a text", type(None): "null"}.get(type(value), "a number")


# --- files

SUFFIXES = {
    ".csv": "table", ".tsv": "table", ".txt": "text",
    ".jsonl": "lines", ".ndjson": "lines", ".json": "whole",
}  # fmt: skip
ENCODING = "encoding"
"""What `FIELDS=` may name besides columns."""


@dataclass(frozen=True)
class Export:
    """A chat export: its chats, and the file around them."""

    chats: tuple[Conversation, ...]
    content: Table | Documents | Transcript
    encoding: Encoding
    taken: str
    """What was taken for what, in words: messages, speakers, chats, columns, order, encoding."""

    def render(self, memes: Mapping[tuple[int, int], Mapping[str, Any]], position: str = "before") -> bytes:
        """The export with `memes`: (chat, message) to values of `MEME_COLUMNS`.

        In a text, a meme stands before or after what its message says. Raises `ChatError` if the encoding
        of the file lacks a sign of something in `memes`.
        """
        at = {self.chats[chat].places[message]: values for (chat, message), values in memes.items()}
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
        content = transcripts.read_text(text, path.name)
    else:
        content = (_read_lines if kind == "lines" else _read_document)(text, path.name)
    cells, note = content.cells(path.name, given)
    if not any(cell.message.speaker and cell.message.text.strip() for cell in cells):
        raise ChatError(f"{path.name}: no message has both a speaker and a text")
    speakers = {cell.message.speaker for cell in cells} - {""}
    chats = tuple(formats.conversations(cells))
    orders = Counter(chat.order for chat in chats).most_common()
    ordered = ", ".join(f"{by} ({counted(n, 'chat')})" if len(orders) > 1 else by for by, n in orders)
    taken = (
        f"{counted(len(cells), 'message')} of {counted(len(speakers), 'speaker')} "
        f"in {counted(len(chats), 'chat')}; {note}; ordered by {ordered}; {encoding.text()}"
    )
    return Export(chats, content, encoding, taken)


def counted(number: int, noun: str) -> str:
    """A number of things in words: `1 chat`, `1,200 chats`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def parse_columns(text: str) -> dict[str, str]:
    """`FIELDS=` of the command line: `part=column`, commas between, or `encoding=name`.

    >>> parse_columns("text=消息, speaker=昵称")
    {'text': '消息', 'speaker': '昵称'}
    """
    columns = {}
    for pair in filter(None, (piece.strip() for piece in text.split(","))):
        part, equals, column = pair.partition("=")
        if not equals or not part.strip() or not column.strip():
            raise ChatError(f"FIELDS needs part=column, got {pair!r}")
        columns[part.strip()] = column.strip()
    return columns
