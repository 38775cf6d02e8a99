"""Chat exports as JSON: a message a line, a chat a line, or one file with a list or a mapping of chats."""

import copy
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from memecmd_utils import chat_columns
from memecmd_utils.chat_columns import MEME_COLUMNS, Cell, ChatFileError, Columns, Place
from memecmd_utils.conversations import Message

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
        """All messages, and which keys they were read from. Raises `ChatFileError` with file and line."""
        flat = [i for i, o in enumerate(self.objects) if isinstance(o, dict) and _list_key(o) is None]
        rows = [self.objects[i] for i in flat]
        columns = chat_columns.settle(rows, (k for row in rows for k in row), given, name) if rows else None
        told = [columns.text()] if columns else []
        said_of = [chat_columns.text_of(columns.value(row, "chat")) for row in rows] if columns else []
        of = chat_columns.chat_names(said_of)
        nested = sorted(set(range(len(self.objects))) - set(flat))
        own = [chat_columns.text_of(key) for key in self.names or ()]
        own = own or [_chat_name(value, i) for i, value in enumerate(self.objects)]
        # Two chats of one name stay two, and so do a chat and messages that name a chat like it.
        every = chat_columns.unique([*dict.fromkeys(of), *(own[i] for i in nested)])
        names = dict(zip(flat, of, strict=True)) | dict(zip(nested, every[len(set(of)) :], strict=True))
        out: list[Cell] = []
        for number, (value, place) in enumerate(zip(self.objects, self.places, strict=True)):
            where = f"{name} {place}"
            key = _list_key(value) if isinstance(value, dict) else None
            if columns is not None and isinstance(value, dict) and key is None:
                out.append(_cell(value, columns, Place(number), where, names[number]))
                continue
            messages = value[key] if key is not None else value
            if not isinstance(messages, list) or (key is None and self.names is None):
                raise ChatFileError(f"{where}: {EXPECTED}, not {_kind(value)}")
            path = () if key is None else (key,)
            inside, how = _listed(messages, path, number, names[number], given, where)
            out += inside
            told.append(how)
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


def read_lines(text: str, name: str) -> Documents:
    """Read JSON Lines. Raises `ChatFileError` with the line that is no JSON object."""
    raw = text.split("\n")
    raw = [line + "\n" for line in raw[:-1]] + ([raw[-1]] if raw[-1] else [])
    objects, places = [], []
    for number, line in enumerate(raw, start=1):
        if line.strip():
            objects.append(_loads(line, f"{name} line {number}"))
            places.append(f"line {number}")
    if not objects:
        raise ChatFileError(f"{name}: the file is empty; {EXPECTED}")
    return Documents(objects, places, raw, "lines")


def read_whole(text: str, name: str) -> Documents:
    """Read one JSON document: a list of messages or chats, one chat, or a mapping of names to chats."""
    value = _loads(text, name)
    if not value:
        raise ChatFileError(f"{name}: the file holds no message")
    if isinstance(value, dict) and all(isinstance(v, list) for v in value.values()) and not _list_key(value):
        return Documents(list(value.values()), [repr(key) for key in value], [], "mapping", list(value))
    if isinstance(value, list):
        return Documents(value, [f"item {i}" for i in range(1, len(value) + 1)], [], "list")
    return Documents([value], ["item 1"], [], "one")


def _list_key(value: Mapping[str, Any]) -> str | None:
    """Key of the list of messages of an object that is a whole chat; None for a message."""
    lists = [key for key in LISTS if isinstance(value.get(key), list)]
    if not lists or (
        lists[0] != "messages" and {"speaker", "text"} <= set(chat_columns.recognised(list(value)))
    ):
        return None
    return lists[0]


def _loads(text: str, where: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_object)
    except ChatFileError as error:
        raise ChatFileError(f"{where}: {error}") from error
    except (ValueError, RecursionError) as error:
        raise ChatFileError(f"{where}: not JSON ({error}); {EXPECTED}") from error


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Of two values under one key, Python would keep the last and lose a chat or a message."""
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for place, key in enumerate(keys) if key in keys[:place])
        raise ChatFileError(f"two values under one key, {twice!r}; keys must differ")
    return found


def _dumps(value: Any, indent: int | None = None) -> str:
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    try:
        text.encode()
    except UnicodeEncodeError:  # half a surrogate pair can only be written as an escape
        return json.dumps(value, indent=indent)
    return text


def _cell(
    value: Mapping[str, Any], columns: Columns, place: Place, where: str, chat: str, at: int | None = None
) -> Cell:
    """A message; one of a list is numbered by its place in it."""
    order, time, date = (columns.value(value, part) for part in ("order", "time", "date"))
    said = chat_columns.message(value, columns, where)
    return Cell(place, where, chat, said, order if at is None else at, time, date)


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
        said = [Message("AB"[i % 2], chat_columns.text_of(text)) for i, text in enumerate(messages)]
        cells = [Cell(places[i], where, chat, message, i) for i, message in enumerate(said)]
        return cells, "bare texts, said by A and B in turn"
    if len(objects) != len(messages):
        odd = next(i for i, m in enumerate(messages) if not isinstance(m, dict))
        spot = f"{where}, message {odd + 1}"
        raise ChatFileError(
            f"{spot}: an object with speaker and text is expected, not {_kind(messages[odd])}"
        )
    columns = chat_columns.settle(objects, (k for m in objects for k in m), given, where)
    cells = [
        _cell(value, columns, places[i], f"{where}, message {i + 1}", chat, i)
        for i, value in enumerate(objects)
    ]
    return cells, columns.text()


def _chat_name(value: Any, number: int) -> str:
    for key in CHAT_NAMES if isinstance(value, dict) else ():
        if isinstance(value.get(key), str | int) and str(value[key]).strip():
            return chat_columns.text_of(value[key]).strip()
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
