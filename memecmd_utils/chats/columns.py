"""Which column of a chat export says what, and how its rows become conversations."""

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from memecmd_utils.chats import formats
from memecmd_utils.chats.messages import ChatError, Conversation, Message
from memecmd_utils.schemas import SummaryReply

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
NOT_SPOKEN = {"system", "developer", "tool", "function", "系统", "系统消息", "系统通知"}
"""Senders whose messages are kept in place and not read as part of the chat."""
SUMMARY = ("scenario", "emotion", "motivation")
_PLACEHOLDER = re.compile(
    r"[\[【<](?:图片|照片|表情|表情包|动画表情|语音|视频|文件|链接|位置|红包|转账|名片|合并转发|image|photo|"
    r"picture|sticker|gif|voice|audio|video|file|media omitted)[\]】>]",
    re.IGNORECASE,
)
_IGNORED = re.compile(r"[\s_\-./#:：]+")


class Place(NamedTuple):
    """Where a message stands in its file."""

    record: int
    """Row of a table, or object of a JSON file, from 0."""
    path: tuple[Any, ...] = ()
    """Keys that lead to the message within its object."""


@dataclass(frozen=True)
class Cell:
    """One message as read, before it is put into its chat."""

    place: Place
    where: str
    """File and line, for messages."""
    chat: str
    message: Message
    order: Any = None
    time: Any = None
    date: Any = None
    """The day, where a column of its own says it."""


@dataclass(frozen=True)
class Columns:
    """Which column says what, and what was decided about them on the way, in words."""

    of: Mapping[str, str]
    """Part of a message (`NAMES`) to column."""
    notes: tuple[str, ...] = ()

    def value(self, row: Mapping[str, Any], part: str) -> Any:
        """What a row says of a part; None where no column says it."""
        return row.get(self.of[part]) if part in self.of else None

    def text(self) -> str:
        """The columns in words."""
        named = [f"{part} is {self.of[part]!r}" for part in NAMES if part in self.of and part not in SUMMARY]
        return ", ".join([*named, *self.notes])


def cells(
    rows: Sequence[tuple[Place, str, Mapping[str, Any]]],
    names: Iterable[str],
    given: Mapping[str, str],
    where: str,
    chat: str | None = None,
) -> tuple[list[Cell], Columns]:
    """Messages of rows (place, line for errors, values by column), and the columns read.

    Where all are of one list, `chat` is its name, and each is numbered by its place in it.
    """
    values = [row for *_, row in rows]
    columns = settle(values, names, given, where)
    chats = [chat] * len(values)
    if chat is None:
        chats = chat_names([text_of(columns.value(row, "chat")) for row in values])
    out = []
    for number, ((place, spot, row), name) in enumerate(zip(rows, chats, strict=True)):
        order = columns.value(row, "order") if chat is None else number
        time, date = columns.value(row, "time"), columns.value(row, "date")
        out.append(Cell(place, spot, name, message(row, columns, spot), order, time, date))
    return out, columns


def settle(
    rows: Sequence[Mapping[str, Any]], names: Iterable[str], given: Mapping[str, str], where: str
) -> Columns:
    """The columns of `find`, put right by what stands in them; a column that is `given` is left as it is.

    A column in which every row has a number of its own counts messages and names no chat. Where one sender
    is said for all rows (the owner of the telephone, say), a known column that tells them apart is taken.
    """
    names = list(names)
    of, notes = find(names, given, where), []
    chats = [text_of(row.get(of["chat"])).strip() for row in rows] if "chat" in of else []
    own = (
        len(chats) > 1 and len(set(chats)) == len(chats) and all(re.fullmatch(r"\d+(\.0)?", c) for c in chats)
    )
    if own and "chat" not in given:
        notes.append(f"{of.pop('chat')!r} numbers the messages and names no chat")

    def speakers(column: str) -> set[str]:
        said = {" ".join(text_of(row.get(column)).split()) for row in rows}
        return {name for name in said if name and name.casefold() not in NOT_SPOKEN}

    if "speaker" not in given and len(rows) > 1 and len(speakers(of["speaker"])) == 1:
        free = [name for name in names if name not in of.values()]
        plain = {_plain(name): name for name in reversed(free)}
        others = [plain[_plain(choice)] for choice in NAMES["speaker"] if _plain(choice) in plain]
        better = next((column for column in others if len(speakers(column)) > 1), None)
        if better is not None:
            notes.append(f"{of['speaker']!r} is the same everywhere")
            of["speaker"] = better
    return Columns(of, tuple(notes))


def find(names: Iterable[str], given: Mapping[str, str], where: str) -> dict[str, str]:
    """Map what a message has (`NAMES`) to columns, by their names or as `given`.

    `speaker` and `text` must be there. Raises `ChatError`, also for a given column that does not exist.
    """
    have = [name for name in dict.fromkeys(names) if not is_nameless(name)]
    unknown = sorted(set(given) - set(NAMES))
    if unknown:
        raise ChatError(f"no such part of a message: {unknown}; there are: {', '.join(NAMES)}")
    absent = [column for column in given.values() if column not in have]
    if absent:
        raise ChatError(f"{where}: there is no column {absent[0]!r}; there are: {', '.join(have)}")
    found = recognised(have, given)
    lacking = [part for part in ("speaker", "text") if part not in found]
    if lacking:
        hints = "; ".join(f"{part} ({', '.join(NAMES[part][:6])} ...)" for part in lacking)
        raise ChatError(
            f"{where}: no column says {' or '.join(lacking)}; there are: {', '.join(have) or 'none'}. "
            f"Known names: {hints}. Name others as FIELDS='{lacking[0]}=...'"
        )
    return found


def is_nameless(name: str) -> bool:
    """Whether a column has no name: an index that pandas wrote, or wrote and read again."""
    return not name.strip("\ufeff \t") or re.fullmatch(r"Unnamed: \d+(\.\d+)?", name.strip()) is not None


def recognised(names: Sequence[str], given: Mapping[str, str] | None = None) -> dict[str, str]:
    """The part of `find` that finds: parts of a message to columns, what is `given` first."""
    found = dict(given or {})
    plain = {}
    for name in names:
        plain.setdefault(_plain(name), name)
    for part, choices in NAMES.items():
        for choice in choices:
            column = plain.get(_plain(choice))
            if part not in found and column is not None and column not in found.values():
                found[part] = column
    return found


def _plain(name: str) -> str:
    return _IGNORED.sub("", name.strip("\ufeff").casefold())


def message(values: Mapping[str, Any], columns: Columns, where: str) -> Message:
    """A message of the values of one row: without text where there is none, without speaker for a note.

    S, E and Psi count only together: a data set may have an `emotion` of its own, say a label.
    """
    told = [text_of(columns.value(values, part)).strip() for part in SUMMARY if part in columns.of]
    summary = None
    if len(told) == len(SUMMARY) and any(told):
        if not all(told):
            empty = [columns.of[part] for part, text in zip(SUMMARY, told, strict=True) if not text]
            raise ChatError(f"{where}: {', '.join(empty)} is empty; a summary has all of S, E and Psi")
        summary = SummaryReply(**dict(zip(SUMMARY, told, strict=True)))
    speaker = columns.value(values, "speaker")
    if isinstance(speaker, dict):  # an author with a name, an id and more
        speaker = next(
            (speaker[key] for key in ("nickname", "name", "username", "id") if speaker.get(key)), ""
        )
    return clean_message(text_of(speaker), text_of(columns.value(values, "text")), summary)


def clean_message(speaker: str, text: str, summary: SummaryReply | None = None) -> Message:
    """A message; a note of the app has no speaker, and what stands for a picture is no text."""
    speaker = " ".join(speaker.split())
    return Message(
        "" if speaker.casefold() in NOT_SPOKEN else speaker,
        "" if _PLACEHOLDER.fullmatch(text.strip()) else text,
        summary,
    )


def text_of(value: Any) -> str:
    """A value as text. Lists of parts give their texts; a picture, an object or nothing gives none."""
    if isinstance(value, str):
        # Half a surrogate pair cannot be written in any file, and a NUL is shown nowhere.
        return value.replace("\0", "").encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list):
        parts = (part.get("text") if isinstance(part, dict) else part for part in value)
        return " ".join(text for text in map(text_of, parts) if text)
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else ""


def chat_names(values: Sequence[str]) -> list[str]:
    """The name of each row's chat, from the cells of the column that has it.

    Where every name stands once, at the head of its messages, the empty cells below it belong to it. Else
    rows without a name are a chat of their own.
    """
    values = [value.strip() for value in values]
    named = [value for value in values if value]
    if values and values[0] and len(set(named)) == len(named):
        return _filled(values) or []
    nameless = unique([*dict.fromkeys(named), "chat"])[-1]
    return [value or nameless for value in values]


def unique(names: Sequence[str]) -> list[str]:
    """Names that all differ: a later one of the same name becomes `name #2`, or the next that nobody has."""
    taken, seen, out = set(names), set(), []
    numbers: dict[str, int] = {}
    for name in names:
        new = name
        while new in seen or (new != name and new in taken):
            numbers[name] = numbers.get(name, 1) + 1
            new = f"{name} #{numbers[name]}"
        seen.add(new)
        out.append(new)
    return out


class Read(NamedTuple):
    """A chat as read."""

    chat: Conversation
    places: list[Place]
    """Where each of its messages stands in the file."""
    order: str
    """By what its messages were ordered, in words."""


def conversations(cells: Sequence[Cell]) -> list[Read]:
    """Chats in the order of their first message.

    Within a chat messages are ordered by their numbers where all have one and no two have the same, or else
    by their times where all can be read (`formats.moments`), and by their numbers within one time. Times
    win over numbers that they contradict if the file itself is in the order of the times, either way round.
    A file without either, or whose numbers repeat and whose times cannot be read, keeps its order; but where
    repeating numbers mostly go down by one, the newest is the first. Which number of a date is the day and
    which the month, is the same in all chats.
    """
    orders = formats.orders_of(cell.time if cell.date is None else cell.date for cell in cells)
    chats: dict[str, list[Cell]] = {}
    for cell in cells:
        chats.setdefault(cell.chat, []).append(cell)
    out = []
    for name, inside in chats.items():
        ordered, how = _ordered(inside, orders)
        out.append(
            Read(Conversation(name, tuple(c.message for c in ordered)), [c.place for c in ordered], how)
        )
    return out


def _ordered(cells: list[Cell], orders: Sequence[str]) -> tuple[list[Cell], str]:
    numbers = [formats.number(cell.order) for cell in cells]
    when = _when(cells, orders)
    # Newest first: messages of one minute stand the wrong way round, too.
    base = list(range(len(cells)))
    if when is not None and formats.direction(when) < 0:
        base.reverse()
    if all(number is not None for number in numbers):
        by_number = sorted(base, key=numbers.__getitem__)
        if len(set(numbers)) == len(numbers):
            against = when is not None and formats.direction([when[i] for i in by_number]) < 1
            if not against or not formats.direction(when):
                how = "their place in the file" if by_number == list(range(len(cells))) else "their numbers"
                return [cells[i] for i in by_number], how
            how = "time, the newest first in the file" if base[0] else "time, against their numbers"
            return [cells[i] for i in sorted(base, key=when.__getitem__)], how
        if when is not None:
            keys = list(zip(when, numbers, strict=True))
            by_time = keys if len(set(keys)) == len(keys) else when
            return [cells[i] for i in sorted(base, key=by_time.__getitem__)], "time, as their numbers repeat"
        steps = Counter(b - a for a, b in itertools.pairwise(numbers))
        if formats.direction(numbers) < 0 or steps[-1] > steps[1]:
            return cells[::-1], "their numbers, newest first in the file"
        return cells, "their place in the file, as their numbers repeat"
    if when is not None:
        return [cells[i] for i in sorted(base, key=when.__getitem__)], "time"
    return cells, "their place in the file"


def _when(cells: Sequence[Cell], orders: Sequence[str]) -> list[Any] | None:
    """Keys to sort by time; an empty cell has the day or time of the one before it."""
    times, dates = (_filled([getattr(cell, part) for cell in cells]) for part in ("time", "date"))
    if dates is None:
        return None if times is None else formats.moments(times, orders)
    if times is None:
        return formats.moments(dates, orders)
    texts = [f"{day} {time}" for day, time in zip(dates, times, strict=True)]
    together = formats.moments(texts, orders)
    alone = together or formats.moments(times, orders)
    if alone is not None and not together and all(isinstance(key, float) and key < 1e8 for key in alone):
        alone = None  # a time of day in digits
    return alone or formats.moments(dates, orders)


def _filled(values: Sequence[Any]) -> list[Any] | None:
    out: list[Any] = []
    for value in values:
        empty = value is None or not str(value).strip()
        out.append(out[-1] if empty and out else value)
    return None if not out or out[0] is None or not str(out[0]).strip() else out
