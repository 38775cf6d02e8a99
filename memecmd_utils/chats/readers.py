"""Who says what in an exported chat: one layout for each tool that people export with, known by its fields.

A file that no layout fits is read as a plain table with a column for the speaker and one for the text, or is
refused with what was seen; dialogues in the form of a release of this package are checked line by line. What
was read is said in one line, and nothing is sent to a model that looks misread: one speaker for all messages,
speakers that are labels or numbers, XML or control tokens in a text.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import yaml
from pydantic import BaseModel, BeforeValidator, Field, ValidationError

from memecmd_utils.chats import transcripts
from memecmd_utils.chats.formats import (
    NUMBER,
    Json,
    Table,
    Text,
    decode,
    json_text,
    read_json,
    read_table,
    read_text,
)
from memecmd_utils.chats.turns import ME, OTHER, ChatError, Conversation, Message
from memecmd_utils.files import first_fault, paths
from memecmd_utils.schemas import SummaryReply
from memecmd_utils.schemas import Text as StrippedText

SUMMARY = ("scenario", "emotion", "motivation")
PARTS = ("chat", "time", "speaker", "text", *SUMMARY, "encoding")
"""What `FIELDS=` may name."""
NOT_SPOKEN = {"system", "developer", "tool", "function", "系统", "系统消息", "系统通知"}
"""Senders whose messages are kept in place and not read as part of the chat."""
NAMED = "name its columns to `make insert-memes` as FIELDS='speaker=...,text=...' (a.b for a key within)"
RELEASE = "form of a release"
Row = tuple[Any, Mapping[str, Any]]
"""Place of a message in its file, and its fields."""


class Layout(NamedTuple):
    """The fields of a tool's messages; `data/chat_layouts.yaml` says what each means."""

    tool: str
    needs: Sequence[str]
    speaker: Sequence[str]
    text: str
    time: str = ""
    chat: Sequence[str] = ()
    mine: str = ""
    kind: Sequence[str] = ()
    spoken: str = ".*"
    quotes: bool = True
    joint: str = " "
    told: Sequence[str] = ()
    """Fields of S, E and Psi."""


@cache
def _known() -> dict[str, Any]:
    """The layouts of tools, names of columns (first choice first), and keys of lists and chats."""
    known = yaml.safe_load((paths.data / "chat_layouts.yaml").read_text(encoding="utf-8"))
    columns = {part: names.split() for part, names in known["columns"].items()}
    return {**known, "tools": [Layout(**row) for row in known["tools"]], "columns": columns}


# --- what is no text: what stands for a picture, a file, a call, and a quoted message

_THINGS = """图片 照片 表情包 表情 动画表情 動畫表情 動畫貼圖 贴图 貼圖 gif表情 gif
    语音消息 语音通话 视频通话 语音 視訊 视频号 视频 文件 档案 链接 分享 位置 红包封面 红包 转账 名片
    合并转发 聊天记录 引用消息 引用 小程序 群公告 音乐 卡片消息
    image photo picture sticker voice audio video file location"""
_PLACEHOLDER = re.compile(
    rf"!?[\[【<](?:{'|'.join(_THINGS.split())}|media omitted)"  # then a name or a length, and an address
    r"(?:\s*[:：|｜]\s*[^\]】>]*|\s+[-–—0-9][^\]】>]*)?[\]】>](?:\([^()\s]*\))?",
    re.IGNORECASE,
)
_OMITTED = re.compile(
    r"\u200e?(?:image|video|audio|sticker|gif|document|contact card) omitted|"
    r"<?(?:媒体内容|圖像|图像|影片|视频|音频|貼圖|贴图|文件)已(?:忽略|略去)>?|此消息已删除|"
    r"(?:this message was|you) deleted(?: this message)?\.?|"
    r".* sent an attachment\.|liked a message|reacted \S+ to your message",
    re.IGNORECASE,
)
_QUOTE = re.compile(
    r"\A(?:>.*(?:\n|\Z))+|\A\[(?:回复|引用)[^\]]*\]\s*|\n\s*(?:引用\s*[:：]|\[引用\])[\s\S]*\Z|\s*\[引用[^\]]*\]\s*\Z"
)


def spoken_text(text: str, has_quotes: bool) -> str:
    """What somebody says: without the message that is quoted, and without what stands for a picture."""
    if has_quotes:
        text = _PLACEHOLDER.sub("", _QUOTE.sub("", text))
    bare = text.strip()
    return "" if _OMITTED.fullmatch(bare) or not _PLACEHOLDER.sub("", bare).strip() else text


# --- values


def value_at(row: Mapping[str, Any], name: str) -> Any:
    """The value of a field; of `content.text` that of the key within. None where it is missing."""
    if name in row:
        return row[name]
    head, dot, rest = name.partition(".")
    inner = row.get(head)
    return value_at(inner, rest) if dot and isinstance(inner, Mapping) else None


def text_of(value: Any, joint: str = " ") -> str:
    """A value as text. A list of parts gives their texts, an object its name or text, null none."""
    if isinstance(value, str):
        # Half a surrogate pair cannot be written in any file, and a NUL is shown nowhere.
        text = value.strip(NUMBER).replace("\0", "")
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list):
        return joint.join(filter(None, (text_of(part, joint) for part in value)))
    if isinstance(value, Mapping):
        return _first_text(value, ("nickname", "name", "text", "username", "id"), joint)
    return str(value) if isinstance(value, int) else ""


def _first_text(row: Mapping[str, Any], names: Sequence[str], joint: str = " ") -> str:
    return next(filter(None, (text_of(value_at(row, name), joint).strip() for name in names)), "")


def time_of(value: Any) -> float | None:
    """Seconds since 1970 of a number, or of a date that begins with the year; None for anything else."""
    text = text_of(value).strip()
    if re.fullmatch(r"\d{9,}(\.\d+)?", text):
        return float(text) / 1000 if float(text) > 1e11 else float(text)
    day = re.compile(r"^(\d{4})[-/.年](\d{1,2})[-/.月](\d{1,2})日?[T ]*(?:(\d{1,2}):)?")
    text = day.sub(lambda d: f"{d[1]}-{d[2]:0>2}-{d[3]:0>2}T{d[4] or 0:0>2}:{'' if d[4] else '00'}", text)
    try:
        return datetime.fromisoformat(text).replace(tzinfo=None).timestamp()
    except ValueError:
        return None


# --- one layout over all messages of a chat


def messages_of(rows: Sequence[Row], layout: Layout, chat: str) -> list[Message]:
    """Messages of `rows` by a layout, in a chat of this name where the layout has no field for it."""
    flags = [text_of(value_at(row, layout.mine)).strip().casefold() for _, row in rows]
    mine = [bool(layout.mine) and flag in ("1", "true", "yes") for flag in flags]
    names = [_speaker(row, layout, own) for (_, row), own in zip(rows, mine, strict=True)]
    pairs = list(zip(names, mine, strict=True))
    if {name for name, own in pairs if own and name} & {name for name, own in pairs if not own}:
        # In private chats of WeChatMsg every row has the other's name: only the flag says who speaks.
        names = [ME if own else name for name, own in pairs]
    messages = []
    for (place, row), name in zip(rows, names, strict=True):
        kind = "/".join(text_of(value_at(row, field)) for field in layout.kind)
        is_spoken = re.fullmatch(layout.spoken, kind, re.IGNORECASE)
        text = _words(value_at(row, layout.text), layout) if is_spoken else ""
        own_chat, time = _first_text(row, layout.chat) or chat, time_of(value_at(row, layout.time))
        messages.append(Message(name, text, _summary(row, layout.told), own_chat, time, place))
    return messages


def _speaker(row: Mapping[str, Any], layout: Layout, own: bool) -> str:
    name = " ".join(_first_text(row, layout.speaker[:1] if own else layout.speaker).split())
    name = {"收": OTHER, "发": ME}.get(name, name)  # a direction of QQNT_Export
    return name or (ME if own else "" if layout.speaker else OTHER)


def _words(value: Any, layout: Layout) -> str:
    if layout.tool == "QQNT_Export":  # pairs of a text and its kind; a quoted message comes first
        pairs = [pair for pair in value if isinstance(pair, list) and pair] if isinstance(value, list) else []
        texts = [text_of(text) for text, *kind in pairs if not kind or kind[0] in (None, "", "text", "reply")]
        value = "".join(text for text in texts if not text.startswith("[被引用的消息]"))
    return spoken_text(text_of(value, layout.joint), layout.quotes)


def _summary(row: Mapping[str, Any], fields: Sequence[str]) -> SummaryReply | None:
    """S, E and Psi of a row that has all three: a data set may have an `emotion` of its own, say a label."""
    texts = {part: _first_text(row, [field]) for part, field in zip(SUMMARY, fields, strict=False)}
    return SummaryReply(**texts) if len(texts) == len(SUMMARY) and all(texts.values()) else None


def layout_for(
    fields: Sequence[str], given: Mapping[str, str], rows: Sequence[Mapping[str, Any]]
) -> Layout | None:
    """The layout of messages with these fields: by `FIELDS=`, a tool's, or that of a plain table."""
    lowered = {str(field).strip().casefold(): field for field in reversed(fields)}
    columns = dict(given)
    for part, names in _known()["columns"].items():
        field = next((lowered[name] for name in names if name in lowered), "")
        if field and part not in columns and field not in columns.values():
            columns[part] = field
    told, some = [columns[part] for part in SUMMARY if part in columns], rows[:200]
    for layout in () if given else _known()["tools"]:
        if all(any(need in row or value_at(row, need) is not None for row in some) for need in layout.needs):
            return layout._replace(told=told)
    if "text" not in columns or not ("speaker" in columns or "mine" in columns):
        return None
    text_kinds = _known()["text_kinds"]
    kinds = {text_of(value_at(row, columns["kind"])) for row in rows} if "kind" in columns else set()
    has_kinds = any(re.fullmatch(text_kinds, kind, re.IGNORECASE) for kind in kinds)
    named = {part: columns.get(part, "") for part in ("text", "time", "mine")}
    named |= {part: [columns[part]] if part in columns else [] for part in ("speaker", "chat")}
    if has_kinds:
        named |= {"kind": [columns["kind"]], "spoken": text_kinds}
    return Layout("plain table", (), **named, quotes=False, told=told)


# --- dialogues in the form of a release, `dialogues.jsonl`: a fault names its line and field

OWN = "user dialogue"
"""`source` of what a file says without naming one."""


AnyText = Annotated[str, BeforeValidator(lambda value: value if isinstance(value, str) else "")]
"""Another data set may mean something else by these names."""


class ReleasedTurn(BaseModel):
    """A message; one without text stands for a picture."""

    speaker: str
    text: str | None
    source: str = OWN


class ReleasedSummary(SummaryReply):
    """(S, E, Psi) for the message with that number in the file, which counts from 1; empty where unscored."""

    turn: int
    scenario: str
    emotion: str
    motivation: str
    source: str = OWN


class Released(BaseModel):
    """A dialogue with the fields that are read of it; others are passed over."""

    dialogue_id: StrippedText
    turns: list[ReleasedTurn] = Field(min_length=1)
    summaries: list[ReleasedSummary] = []
    kind: AnyText = ""
    title: AnyText = ""
    name_a: AnyText = ""
    name_b: AnyText = ""
    source: AnyText = ""


def released(content: Table | Json | Text) -> list[Released]:
    """All dialogues of a file in which one has the form of a release; of another file none.

    Raises `ChatError` with the line and the field of the first that has a fault.
    """
    values = content.value if isinstance(content, Json) and isinstance(content.value, list) else []
    if not any(_has_released_form(value) for value in values):
        return []
    dialogues = []
    for number, value in enumerate(values):
        try:
            dialogues.append(Released.model_validate(json.loads(json_text(value))))
        except ValidationError as error:
            where = f"line {content.lines[number]}" if content.lines else f"dialogue {number + 1}"
            raise ChatError(f"{where}: {first_fault(error)}") from error
    return dialogues


def _has_released_form(value: Any) -> bool:
    """Whether it has `dialogue_id` and `turns` that do not name speaker and text in another way."""
    if not isinstance(value, Mapping) or not {"dialogue_id", "turns"} <= value.keys():
        return False
    turns = value["turns"] if isinstance(value["turns"], list) else []
    keys = {key for turn in turns if isinstance(turn, Mapping) for key in turn}
    return not keys or {"speaker", "text"} <= keys


# --- files

DELIMITERS = (",", ";", "\t", "|", "，", "；")
SUFFIXES = (".csv", ".tsv", ".txt", ".jsonl", ".ndjson", ".json")


class Export(NamedTuple):
    """A chat export: its chats, and the file around them."""

    chats: tuple[Conversation, ...]
    content: Table | Json | Text
    codec: str
    taken: str
    """What was read, in one line: tool, people, messages, messages without text."""

    def render(self, memes: Mapping[tuple[int, int], Mapping[str, Any]]) -> bytes:
        """The export in UTF-8 with `memes`: (chat, message) to values of `MEME_COLUMNS`.

        What was in another encoding begins with a byte order mark, by which spreadsheets know UTF-8.
        """
        at = {self.chats[chat].messages[message].place: values for (chat, message), values in memes.items()}
        is_plain = self.codec == "utf-8" or isinstance(self.content, Json)
        return self.content.with_memes(at).encode("utf-8" if is_plain else "utf-8-sig")


def read(path: Path, fields: Mapping[str, str] | None = None) -> Export:
    """Read a chat export (.csv, .tsv, .txt, .jsonl, .ndjson, .json).

    `fields` names the columns or keys of a plain table: part of a message (`PARTS`) to name, and the
    `encoding`. Raises `ChatError` for what no layout fits, and for what looks misread.
    """
    given = dict(fields or {})
    suffix, wanted = path.suffix.lower(), given.pop("encoding", "")
    if suffix not in SUFFIXES:
        raise ChatError(f"{path.name} cannot be read: save it as CSV, JSON or text ({', '.join(SUFFIXES)})")
    try:
        text, codec = decode(path.read_bytes(), path.name, wanted)
    except OSError as error:
        raise ChatError(f"{path} cannot be read: {error.strerror}") from error
    try:
        tool, messages, content = _read(text, suffix, given)
        messages, is_repaired = _without_mojibake(messages)
        messages = [m._replace(speaker="") if m.speaker.casefold() in NOT_SPOKEN else m for m in messages]
        spoken = [message for message in messages if message.speaker and message.text.strip()]
        _check(spoken, bool(given), tool == RELEASE)
    except ChatError as error:
        raise ChatError(f"{path.name}: {error}") from error
    chats, people = tuple(_conversations(messages)), list(dict.fromkeys(m.speaker for m in spoken))
    shown = ", ".join(people[:4]) + (" ..." if len(people) > 4 else "")
    taken = f"{tool}; {counted(len(messages), 'message')} of {counted(len(people), 'speaker')} ({shown})"
    taken += f" in {counted(len(chats), 'chat')}"
    if len(spoken) < len(messages):
        taken += f"; {counted(len(messages) - len(spoken), 'message')} without text"
    taken += f"; {codec}" * (not codec.startswith("utf-8"))
    taken += "; UTF-8 that was saved as Latin-1 is repaired for reading" * is_repaired
    return Export(chats, content, codec, taken)


def _read(text: str, suffix: str, given: Mapping[str, str]) -> tuple[str, list[Message], Table | Json | Text]:
    """The tool, the messages and the file of a text; `ChatError` says what was seen where nothing fits."""
    if not text.strip():
        raise ChatError("the file is empty")
    if suffix in (".json", ".jsonl", ".ndjson"):
        return _read_json(text, suffix != ".json", given)
    table = _find_table(text, given)
    if table is not None:
        rows = table.records()
        fields = [table.rows[table.head][place] for place in table.columns()]
        layout = layout_for(fields, given, [row for _, row in rows] or [dict.fromkeys(fields, "")])
        return layout.tool, messages_of(rows, layout, "chat"), table
    if suffix == ".txt" and not given:
        content = read_text(text)
        if parsed := transcripts.parse(content.text):
            tool, messages = parsed
            return tool, [m._replace(text=spoken_text(m.text, True)) for m in messages], content
    first = [line.strip() for line in text.split("\n") if line.strip()][:3]
    shown = " / ".join(line[:60] for line in first)
    seen = f"no line has the columns {', '.join(given.values())}" if given else "this form is not known"
    raise ChatError(
        f"{seen}; the file begins: {shown}. Save it as a table with columns `speaker,text`, write each "
        f"message as `name: text`, or {NAMED}"
    )


def _find_table(text: str, given: Mapping[str, str]) -> Table | None:
    """The table under the delimiter and the header that make a layout; None where there are none."""
    separator = re.match(r"sep=(.)\s*\n", text)
    for delimiter in separator[1] if separator else DELIMITERS:
        table = read_table(text, delimiter)
        for number, row in enumerate(table.rows[:12]):  # titles may stand above the header
            names = [name.strip() for name in row]
            is_header = layout_for(names, given, [dict.fromkeys(names, "")]) is not None
            if len(names) > 1 and is_header and set(given.values()) <= set(names):
                if table.fault:
                    raise ChatError(table.fault)
                table.head, table.rows[number] = number, names
                return table
    return None


def _read_json(text: str, is_lines: bool, given: Mapping[str, str]) -> tuple[str, list[Message], Json]:
    content = read_json(text, is_lines)
    dialogues = [] if given else released(content)
    messages, names, tools = [], set(), {}
    for number, (chat, rows) in enumerate(list(_chats_in(content.value, (), "chat"))):
        fields = list(dict.fromkeys(key for _, row in rows for key in row))
        layout = layout_for(fields, given, [row for _, row in rows])
        if layout is None:
            where = f"line {content.lines[rows[0][0][0]]}: " if is_lines else ""
            there = ", ".join(map(str, fields[:12]))
            raise ChatError(f"{where}no field says who speaks and what; there are: {there}; {NAMED}")
        messages_here = messages_of(rows, layout, f"{chat} #{len(names) + 1}" if chat in names else chat)
        if dialogues:
            told = {
                s.turn: s for s in dialogues[number].summaries if s.scenario and s.emotion and s.motivation
            }
            messages_here = [m._replace(summary=told.get(n)) for n, m in enumerate(messages_here, start=1)]
        messages += messages_here
        names |= {message.chat for message in messages_here}
        tools[RELEASE if dialogues else layout.tool] = None
    if not messages:
        raise ChatError('no list of messages is in it: [{"speaker": ..., "text": ...}, ...] is expected')
    return ", ".join(tools), messages, content


def _chats_in(value: Any, place: tuple, name: str) -> Iterator[tuple[str, list[Row]]]:
    """Name and messages of every chat in a JSON value."""
    if isinstance(value, list):
        own = [_list_key(item) is None for item in value]
        rows = [((*place, i), item) for i, item in enumerate(value) if own[i] and isinstance(item, dict)]
        rows = [row for row in rows if row[1].get("_type") in (None, "message")]  # of ChatLab's lines
        if rows:
            yield name, rows
        for i, item in enumerate(value):
            if isinstance(item, list) or not own[i]:
                yield from _chats_in(item, (*place, i), f"chat {i + 1}")
    elif isinstance(value, dict) and (key := _list_key(value)) is not None:
        if isinstance(value[key][0], str):  # bare texts of two who take turns
            value[key] = [{"speaker": "AB"[i % 2], "text": text} for i, text in enumerate(value[key])]
        yield from _chats_in(value[key], (*place, key), _first_text(value, _known()["chat_names"]) or name)
    elif isinstance(value, dict) and isinstance(lists := value_at(value, "chats.list"), list):
        yield from _chats_in(lists, (*place, "chats", "list"), name)  # Telegram's whole account
    elif isinstance(value, dict):
        for key, inner in value.items():
            if isinstance(inner, list) and inner and isinstance(inner[0], dict):
                yield from _chats_in(inner, (*place, key), str(key).strip() or name)


def _list_key(value: Any) -> str | None:
    """Key of the list of messages of an object that is a whole chat; None for a message."""
    for key in _known()["lists"] if isinstance(value, dict) else ():
        items, kinds = value.get(key), dict | str if key in ("dialogue", "dialog") else dict
        if isinstance(items, list) and items and isinstance(items[0], kinds):
            return key
    return None


# --- what looks misread

_LABELS = re.compile(
    r"时间|時間|日期|发送时间|导出时间|时间范围|内容|消息|资源|提及|回复|聊天名称|聊天类型|消息总数|time|date|sent|from|sender|"
    r"message|subject|to|content|\d[\d\s:：./-]*",
    re.IGNORECASE,
)
_XML = re.compile(
    r"<\?xml|<(?:msg|sysmsg|appmsg|msgsource)\b|<(\w+)(?:\s+[\w:-]+\s*=\s*[\"'][^\"']*[\"'])+[^<>]*>|<\|[^|<>]*\|>|<｜[^｜]*｜>"
)


def _check(spoken: Sequence[Message], is_given: bool, is_released: bool) -> None:
    """Raise `ChatError` for messages that look misread; a release says by its form who speaks."""
    if not spoken:
        raise ChatError("no message has both a speaker and a text")
    if is_given:
        return
    people = list(dict.fromkeys(message.speaker for message in spoken))
    hint = f"export the chat in another form, or {NAMED}"
    label = next(filter(_LABELS.fullmatch, people), None)
    if label is not None and not is_released:
        raise ChatError(f"{label!r} would be a speaker, and looks like a label or a number: {hint}")
    if len(people) == 1 and len(spoken) > 2 and not is_released:
        raise ChatError(f"{people[0]!r} would say all {len(spoken)} messages: {hint}")
    marked = next(filter(None, (_XML.search(message.text) for message in spoken)), None)
    if marked is not None:
        raise ChatError(f"a text holds {marked[0][:40]!r}, which nobody says: {hint}")


def _without_mojibake(messages: list[Message]) -> tuple[list[Message], bool]:
    """Texts in UTF-8 that were read as Latin-1 when they were saved (Instagram, Messenger), repaired."""
    strange = [text for message in messages for text in message[:2] if not text.isascii()]
    lost = sum("锟斤拷" in text or "\ufffd" in text for text in strange)
    if lost and 5 * lost >= len(strange):
        raise ChatError("its Chinese was lost when it was saved (锟斤拷): export it again as UTF-8")
    if not strange or sum(_mended(text) != text for text in strange) < 0.9 * len(strange):
        return messages, False
    names = ("speaker", "text", "chat")
    return [m._replace(**{name: _mended(getattr(m, name)) for name in names}) for m in messages], True


def _mended(text: str) -> str:
    try:
        return text.encode("latin-1").decode("utf-8")
    except UnicodeError:
        return text


def _conversations(messages: Sequence[Message]) -> Iterator[Conversation]:
    """The chats with their messages in order: those that have a time by it, the others at their place."""
    by_chat: dict[str, list[Message]] = {}
    for message in messages:
        by_chat.setdefault(message.chat, []).append(message)
    for chat, of_chat in by_chat.items():
        timed = [message for message in of_chat if message.time is not None]
        if timed and timed[0].time > timed[-1].time:  # the newest comes first
            of_chat, timed = of_chat[::-1], timed[::-1]
        in_order = iter(sorted(timed, key=lambda message: message.time))
        yield Conversation(chat, tuple(m if m.time is None else next(in_order) for m in of_chat))


def counted(number: int, noun: str) -> str:
    """A number of things in words: `1 chat`, `1,200 chats`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def parse_fields(text: str) -> dict[str, str]:
    """`FIELDS=` of the command line: `part=column`, commas between.

    >>> parse_fields("text=content.text, speaker=昵称")
    {'text': 'content.text', 'speaker': '昵称'}
    """
    pairs = [pair.partition("=") for pair in text.split(",") if pair.strip()]
    fields = {part.strip(): column.strip() for part, _, column in pairs}
    if not all(fields.values()) or not fields.keys() <= set(PARTS):
        raise ChatError(f"FIELDS needs part=column, got {text!r}; parts are: {', '.join(PARTS)}")
    return fields
