"""Who says what in an exported chat: one layout for each tool that people export with, known by its fields.

A file that no layout fits is read as a plain table with a column for the speaker and one for the text, or is
refused with what was seen. What was read is said in one line, and nothing is sent to a model that looks
misread: one speaker for all messages, speakers that are labels or numbers, XML or control tokens in a text.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from memecmd_utils.chats import transcripts
from memecmd_utils.chats.files import (
    Encoding,
    Json,
    Memes,
    Table,
    Text,
    decode,
    number_of,
    read_json,
    read_table,
    read_text,
)
from memecmd_utils.chats.messages import ME, OTHER, ChatError, Conversation, Message
from memecmd_utils.files import paths
from memecmd_utils.schemas import SummaryReply


class Cell(NamedTuple):
    """One message as read: where it stands in its file, its chat, who says what, and when."""

    place: Any
    chat: str
    speaker: str
    text: str
    time: float | None = None
    summary: SummaryReply | None = None


# --- layouts


@dataclass(frozen=True)
class Layout:
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
    silent: Sequence[str] = ()
    quotes: bool = True


@cache
def _known() -> dict[str, Any]:
    """The layouts of tools, names of columns (first choice first), and keys of lists and chats."""
    found = yaml.safe_load((paths.data / "chat_layouts.yaml").read_text(encoding="utf-8"))
    columns = {part: names.split() for part, names in found["columns"].items()}
    return {**found, "tools": [Layout(**row) for row in found["tools"]], "columns": columns}


PARTS = ("chat", "time", "speaker", "text", "scenario", "emotion", "motivation", "encoding")
"""What `FIELDS=` may name."""
NOT_SPOKEN = {"system", "developer", "tool", "function", "系统", "系统消息", "系统通知"}
"""Senders whose messages are kept in place and not read as part of the chat."""


# --- what stands for a picture, a file, a call

_THINGS = """图片 照片 表情包 表情 动画表情 動畫表情 動畫貼圖 贴图 貼圖 gif表情 gif
    语音消息 语音通话 视频通话 语音 視訊 视频号 视频 文件 档案 链接 分享 位置 红包封面 红包 转账 名片
    合并转发 聊天记录 引用消息 引用 小程序 群公告 音乐 卡片消息
    image photo picture sticker voice audio video file location"""
PLACEHOLDER = re.compile(
    rf"!?[\[【<](?:{'|'.join(_THINGS.split())}|media omitted)"  # then a name or a length, and an address
    r"(?:\s*[:：|｜]\s*[^\]】>]*|\s+[-–—0-9][^\]】>]*)?[\]】>](?:\([^()\s]*\))?",
    re.IGNORECASE,
)
_OMITTED = re.compile(
    r"\u200e?(?:image|video|audio|sticker|gif|document|contact card) omitted|"
    r"<?(?:媒体内容|圖像|图像|影片|视频|音频|貼圖|贴图|文件)已(?:忽略|略去)>?|此消息已删除|"
    r"(?:this message was|you) deleted(?: this message)?\.?|.* sent an attachment\.|liked a message",
    re.IGNORECASE,
)


def spoken_text(text: str, has_quotes: bool) -> str:
    """What somebody says: without the message that is quoted, and without what stands for a picture."""
    if has_quotes:
        lines = text.split("\n")
        while lines and lines[0].startswith(">"):
            lines.pop(0)
        text = "\n".join(lines)
        text = re.sub(
            r"\A\[(?:回复|引用)[^\]]*\]\s*|\n引用\s*[:：][\s\S]*\Z|\s*\[引用[^\]]*\]\s*\Z", "", text
        )
        text = PLACEHOLDER.sub("", text)
    bare = text.strip()
    return "" if _OMITTED.fullmatch(bare) or not PLACEHOLDER.sub("", bare).strip() else text


# --- values


def value_at(row: Mapping[str, Any], name: str) -> Any:
    """The value of a field; of `content.text` that of the key within. None where it is missing."""
    if name in row:
        return row[name]
    head, dot, rest = name.partition(".")
    inner = row.get(head)
    return value_at(inner, rest) if dot and isinstance(inner, Mapping) else None


def text_of(value: Any, joint: str = " ") -> str:
    """A value as text. A list of parts gives their texts, an object its name or text, anything else none."""
    value = number_of(value)
    if isinstance(value, str):
        # Half a surrogate pair cannot be written in any file, and a NUL is shown nowhere.
        return value.replace("\0", "").encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list):
        return joint.join(text for text in (text_of(part, joint) for part in value) if text)
    if isinstance(value, Mapping):
        keys = ("nickname", "name", "text", "username", "id")
        return next((text for key in keys if (text := text_of(value.get(key), joint))), "")
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else ""


def time_of(value: Any) -> float | None:
    """Seconds since 1970 of a number, or of a date that begins with the year; None for anything else."""
    value = number_of(value)
    text = text_of(value).strip()
    if re.fullmatch(r"\d{9,}(\.\d+)?", text):
        number = float(text)
        return number / 1000 if number > 1e11 else number
    match = re.fullmatch(r"(\d{4})[-/.年](\d{1,2})[-/.月](\d{1,2})日?(?:[T ]+(.*))?", text)
    if match is None:
        return None
    try:
        rest = re.sub(r"^(\d):", r"0\1:", match[4] or "00:00")
        return (
            datetime.fromisoformat(f"{match[1]}-{int(match[2]):02}-{int(match[3]):02}T{rest}")
            .replace(tzinfo=None)
            .timestamp()
        )
    except ValueError:
        return None


def _is_true(value: Any) -> bool:
    return text_of(value).strip().casefold() in ("1", "true", "yes") or value is True


# --- one layout over all messages of a chat

Row = tuple[Any, Mapping[str, Any]]
"""Place in the file, and fields of a message."""


def cells_of(rows: Sequence[Row], layout: Layout, chat: str) -> list[Cell]:
    """Messages of `rows` by a layout, in a chat of this name where the layout has no field for it."""
    mine = [_is_true(value_at(row, layout.mine)) for _, row in rows] if layout.mine else [False] * len(rows)
    names = [_speaker(row, layout, own) for (_, row), own in zip(rows, mine, strict=True)]
    own_names = {name for name, own in zip(names, mine, strict=True) if own and name}
    if own_names & {name for name, own in zip(names, mine, strict=True) if not own and name}:
        # In private chats of WeChatMsg every row has the other's name: only the flag says who speaks.
        names = [ME if own else name for name, own in zip(names, mine, strict=True)]
    cells = []
    for (place, row), name in zip(rows, names, strict=True):
        kind = "/".join(text_of(value_at(row, field)) for field in layout.kind)
        is_speech = re.fullmatch(layout.spoken, kind, re.IGNORECASE) is not None
        is_speech = is_speech and not any(value_at(row, field) is True for field in layout.silent)
        text = _words(value_at(row, layout.text), layout) if is_speech else ""
        own_chat = next(filter(None, (text_of(value_at(row, field)).strip() for field in layout.chat)), chat)
        cells.append(Cell(place, own_chat, name, text, time_of(value_at(row, layout.time)), _summary(row)))
    return cells


def _speaker(row: Mapping[str, Any], layout: Layout, own: bool) -> str:
    fields = layout.speaker[:1] if own and layout.mine else layout.speaker
    name = next((text for field in fields if (text := " ".join(text_of(value_at(row, field)).split()))), "")
    if layout.tool == "QQNT_Export" and name in ("收", "发"):
        return ME if name == "发" else OTHER
    return name or (ME if own else "" if layout.speaker else OTHER)


def _words(value: Any, layout: Layout) -> str:
    if layout.tool == "QQNT_Export":  # pairs of a text and its kind; a quoted message comes first
        pairs = [pair for pair in value if isinstance(pair, list) and pair] if isinstance(value, list) else []
        said = [text_of(text) for text, *kind in pairs if not kind or kind[0] in (None, "", "text", "reply")]
        value = "".join(text for text in said if not text.startswith("[被引用的消息]"))
    return spoken_text(text_of(value, "" if layout.tool == "Telegram" else " "), layout.quotes)


def _summary(row: Mapping[str, Any]) -> SummaryReply | None:
    """S, E and Psi of a row that has all three: a data set may have an `emotion` of its own, say a label."""
    lowered = {str(name).strip().casefold(): name for name in row}
    texts = {}
    for part in ("scenario", "emotion", "motivation"):
        column = next((lowered[name] for name in _known()["columns"][part] if name in lowered), None)
        texts[part] = "" if column is None else text_of(row[column]).strip()
    return SummaryReply(**texts) if all(texts.values()) else None


def layout_for(
    fields: Sequence[str], given: Mapping[str, str], rows: Sequence[Mapping[str, Any]]
) -> Layout | None:
    """The layout of messages with these fields: by `FIELDS=`, a tool's, or that of a plain table."""
    if not given:
        for layout in _known()["tools"]:
            if all(
                any(value_at(row, need) is not None or need in row for row in rows[:200])
                for need in layout.needs
            ):
                return layout
    lowered = {str(field).strip("\ufeff ").casefold(): field for field in reversed(fields)}
    found = {part: given[part] for part in PARTS if part in given}
    for part, names in _known()["columns"].items():
        field = next((lowered[name] for name in names if name in lowered), "")
        if field and part not in found and field not in found.values():
            found[part] = field
    if "text" not in found or not ("speaker" in found or "mine" in found):
        return None
    if not given and {"TalkerId", "StrContent"} <= set(fields):
        return None  # WeChatMsg before 0.2.7: in a group nothing says who speaks
    kinds = {text_of(value_at(row, found["kind"])) for row in rows} if "kind" in found else set()
    text_kinds = _known()["text_kinds"]
    has_kinds = any(re.fullmatch(text_kinds, kind, re.IGNORECASE) for kind in kinds)
    return Layout(
        "plain table",
        needs=(),
        speaker=(found["speaker"],) if "speaker" in found else (),
        text=found["text"],
        time=found.get("time", ""),
        chat=(found["chat"],) if "chat" in found else (),
        mine=found.get("mine", ""),
        kind=(found["kind"],) if has_kinds else (),
        spoken=text_kinds if has_kinds else ".*",
        quotes=False,
    )


# --- files

DELIMITERS = (",", ";", "\t", "|", "，", "；")
HEADER_WITHIN = 12
"""Lines in which a table's header is looked for: above it may stand titles."""
SUFFIXES = (".csv", ".tsv", ".txt", ".jsonl", ".ndjson", ".json")
SAVE_AS = {
    ".xlsx": "CSV",
    ".xls": "CSV",
    ".html": "JSON or text",
    ".htm": "JSON or text",
    ".md": "text",
    ".db": "CSV",
}


def _find_table(text: str, given: Mapping[str, str]) -> Table | None:
    """The table under the delimiter and the header that make a layout; None where there are none."""
    separator = re.match(r"sep=(.)\s*\n", text)
    for delimiter in separator[1] if separator else DELIMITERS:
        table, fault = read_table(text, delimiter)
        for number, row in enumerate(table.rows[:HEADER_WITHIN]):
            names = [name.strip() for name in row]
            fits = (
                set(given.values()) <= set(names)
                if given
                else layout_for(names, {}, [dict.fromkeys(names, "")])
            )
            if len(names) > 1 and fits:
                if fault:
                    raise ChatError(fault)
                table.head, table.rows[number] = number, names
                return table
    return None


def _chats_of(values: Sequence[Any], is_lines: bool) -> Iterator[tuple[str, list[Row]]]:
    """Name and messages of every chat in a JSON file."""
    loose: list[Row] = []  # messages that are not in a list of a chat's own
    for number, value in enumerate(values):
        if isinstance(value, list):
            yield from _chats_in(value, (number,), f"chat {number + 1}")
        elif isinstance(value, dict) and isinstance(
            lists := value_at(value, "chats.list"), list
        ):  # Telegram's account
            for place, chat in enumerate(lists):
                yield from _chats_in(chat, (number, "chats", "list", place), f"chat {place + 1}")
        elif isinstance(value, dict) and _list_key(value) is None and not is_lines:
            for key, inner in value.items():
                if isinstance(inner, list) and inner and isinstance(inner[0], dict):
                    yield from _chats_in(inner, (number, key), str(key))
        elif isinstance(value, dict) and _list_key(value) is None:
            if value.get("_type") in (None, "message"):  # ChatLab's lines have a head and members, too
                loose.append(((number,), value))
        else:
            yield from _chats_in(value, (number,), f"chat {number + 1}")
    if loose:
        yield "chat", loose


def _chats_in(value: Any, place: tuple, name: str) -> Iterator[tuple[str, list[Row]]]:
    """The chats of an object with a list of messages, of a list of messages, or of a list of chats."""
    if isinstance(value, dict):
        key = _list_key(value)
        if key is not None:
            named = next(
                (
                    text
                    for field in _known()["chat_names"]
                    if (text := text_of(value_at(value, field)).strip())
                ),
                name,
            )
            yield from _chats_in(value[key], (*place, key), named)
    elif isinstance(value, list) and value and all(isinstance(item, str) for item in value):
        yield name, [((*place, i), {"speaker": "AB"[i % 2], "text": text}) for i, text in enumerate(value)]
    elif isinstance(value, list):
        messages = [
            (i, item) for i, item in enumerate(value) if isinstance(item, dict) and _list_key(item) is None
        ]
        if messages:
            yield name, [((*place, i), item) for i, item in messages]
        for i, item in enumerate(value):
            if isinstance(item, dict) and _list_key(item) is not None:
                yield from _chats_in(item, (*place, i), f"chat {i + 1}")


def _list_key(value: Mapping[str, Any]) -> str | None:
    """Key of the list of messages of an object that is a whole chat; None for a message."""
    return next((key for key in _known()["lists"] if isinstance(value.get(key), list) and value[key]), None)


@dataclass(frozen=True)
class Export:
    """A chat export: its chats, and the file around them."""

    chats: tuple[Conversation, ...]
    content: Table | Json | Text
    encoding: Encoding
    taken: str
    """What was read, in one line: tool, people, messages, messages without text."""

    def render(self, memes: Mapping[tuple[int, int], Mapping[str, Any]], position: str = "before") -> bytes:
        """The export with `memes`: (chat, message) to values of `MEME_COLUMNS`.

        In lines of text, a meme stands before or after what its message says.
        """
        at: Memes = {self.chats[chat].places[message]: values for (chat, message), values in memes.items()}
        return self.encoding.encode(self.content.with_memes(at, position))


def read(path: Path, fields: Mapping[str, str] | None = None) -> Export:
    """Read a chat export (.csv, .tsv, .txt, .jsonl, .ndjson, .json).

    `fields` names the columns or keys of a plain table: part of a message (`PARTS`) to name, and the
    `encoding`.
    Raises `ChatError` for what no layout fits, and for what looks misread.
    """
    given = dict(fields or {})
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        hint = (
            f"save it as {SAVE_AS[suffix]}"
            if suffix in SAVE_AS
            else f"a chat is a file {', '.join(SUFFIXES)}"
        )
        raise ChatError(f"{path.name} cannot be read: {hint}")
    try:
        text, encoding = decode(path.read_bytes(), path.name, given.get("encoding", ""))
    except OSError as error:
        raise ChatError(f"{path} cannot be read: {error.strerror}") from error
    columns = {part: column for part, column in given.items() if part != "encoding"}
    try:
        tool, cells, content = _read(text, suffix, columns)
    except ChatError as error:
        raise ChatError(f"{path.name}: {error}") from error
    cells, repaired = _without_mojibake(cells, path.name)
    cells = [
        cell._replace(speaker="" if cell.speaker.casefold() in NOT_SPOKEN else cell.speaker) for cell in cells
    ]
    _check(cells, path.name, bool(columns))
    chats = tuple(_conversations(cells))
    people = list(dict.fromkeys(cell.speaker for cell in cells if cell.speaker and cell.text.strip()))
    silent = sum(not (cell.text.strip() and cell.speaker) for cell in cells)
    shown = ", ".join(people[:4]) + (" ..." if len(people) > 4 else "")
    notes = [f"{counted(silent, 'message')} without text"] * (silent > 0) + [encoding.codec] * (
        encoding.codec != "utf-8"
    )
    notes += ["UTF-8 that was saved as Latin-1 is repaired for reading"] * repaired
    taken = f"{tool}; {counted(len(cells), 'message')} of {counted(len(people), 'speaker')} ({shown})"
    taken += f" in {counted(len(chats), 'chat')}" + "".join(f"; {note}" for note in notes)
    return Export(chats, content, encoding, taken)


def _read(text: str, suffix: str, given: Mapping[str, str]) -> tuple[str, list[Cell], Table | Json | Text]:
    """The tool, the messages and the file of a text; `ChatError` says what was seen where nothing fits."""
    if not text.strip():
        raise ChatError("the file is empty")
    if suffix in (".json", ".jsonl", ".ndjson"):
        return _read_json(text, suffix != ".json", given)
    table = _find_table(text, given)
    if table is not None:
        records = table.records()
        layout = layout_for(table.header, given, [row for _, row in records])
        if layout is not None:
            return layout.tool, cells_of(records, layout, "chat"), table
    if suffix == ".txt" and not given:
        lines = read_text(text)
        found = transcripts.parse([line.rstrip("\r\n") for line in lines.lines])
        if found is not None:
            tool, entries = found
            cells = [
                Cell((e.first, e.end, e.prefix), e.chat, e.speaker, spoken_text(e.text, True))
                for e in entries
            ]
            return tool, cells, lines
    raise ChatError(_seen(text, given))


def _read_json(text: str, is_lines: bool, given: Mapping[str, str]) -> tuple[str, list[Cell], Json]:
    content = read_json(text, is_lines)
    cells, tools = [], {}
    for chat, rows in _chats_of(content.values, is_lines):
        fields = list(dict.fromkeys(key for _, row in rows for key in row))
        layout = layout_for(fields, given, [row for _, row in rows])
        if layout is None:
            raise ChatError(_lacking(fields))
        taken = {cell.chat for cell in cells}
        name = chat if chat not in taken or is_lines else f"{chat} #{len(taken) + 1}"
        cells += cells_of(rows, layout, name)
        tools[layout.tool] = None
    if not cells:
        raise ChatError('no list of messages is in it: [{"speaker": ..., "text": ...}, ...] is expected')
    return ", ".join(tools), cells, content


def _lacking(fields: Sequence[str]) -> str:
    return (
        f"no field says who speaks and what; there are: {', '.join(map(str, fields[:12]))}. "
        "Name them as FIELDS='speaker=...,text=...' (a.b for a key within)"
    )


def _seen(text: str, given: Mapping[str, str]) -> str:
    first = [line.strip() for line in text.split("\n") if line.strip()][:3]
    shown = " / ".join(line[:60] for line in first)
    if given:
        return f"no line has the columns {', '.join(given.values())}; the file begins: {shown}"
    return (
        f"this form is not known; the file begins: {shown}. Save it as a table with columns `speaker,text`, "
        "name its columns as FIELDS='speaker=...,text=...', or write each message as `name: text`"
    )


# --- what looks misread

_LABELS = re.compile(
    r"时间|時間|日期|发送时间|导出时间|时间范围|内容|消息|资源|提及|回复|聊天名称|聊天类型|消息总数|time|date|sent|from|sender|"
    r"message|subject|to|content|to|\d[\d\s:：./-]*",
    re.IGNORECASE,
)
_XML = re.compile(
    r"<\?xml|<(?:msg|sysmsg|appmsg|msgsource)\b|<(\w+)(?:\s+[\w:-]+\s*=\s*[\"'][^\"']*[\"'])+[^<>]*>|<\|[^|<>]*\|>|<｜[^｜]*｜>"
)


def _check(cells: Sequence[Cell], name: str, is_given: bool) -> None:
    """Raise `ChatError` for messages that look misread; of named fields only where nothing is there."""
    spoken = [cell for cell in cells if cell.speaker and cell.text.strip()]
    if not spoken:
        raise ChatError(f"{name}: no message has both a speaker and a text")
    if is_given:
        return
    people = Counter(cell.speaker for cell in spoken)
    label = next((person for person in people if _LABELS.fullmatch(person)), None)
    hint = "name the columns as FIELDS='speaker=...,text=...', or export the chat in another form"
    if label is not None:
        raise ChatError(f"{name}: {label!r} would be a speaker, and looks like a label or a number: {hint}")
    if len(people) == 1 and len(spoken) > 2:
        raise ChatError(f"{name}: {next(iter(people))!r} would say all {len(spoken)} messages: {hint}")
    marked = next((match for cell in spoken if (match := _XML.search(cell.text))), None)
    if marked is not None:
        raise ChatError(f"{name}: a text holds {marked[0][:40]!r}, which nobody says: {hint}")


def _without_mojibake(cells: list[Cell], name: str) -> tuple[list[Cell], bool]:
    """Texts in UTF-8 that were read as Latin-1 when they were saved (Instagram, Messenger), repaired."""
    strange = [text for cell in cells for text in (cell.speaker, cell.text) if not text.isascii()]
    lost = sum("锟斤拷" in text or "\ufffd" in text for text in strange)
    if lost and 5 * lost >= len(strange):
        raise ChatError(f"{name}: its Chinese was lost when it was saved (锟斤拷): export it again as UTF-8")
    if not strange or sum(_repaired(text) is not None for text in strange) < 0.9 * len(strange):
        return cells, False

    def mended(text: str) -> str:
        return _repaired(text) or text

    return [
        c._replace(speaker=mended(c.speaker), text=mended(c.text), chat=mended(c.chat)) for c in cells
    ], True


def _repaired(text: str) -> str | None:
    try:
        return text.encode("latin-1").decode("utf-8")
    except UnicodeError:
        return None


def _conversations(cells: Sequence[Cell]) -> Iterator[Conversation]:
    """The chats with their messages in order: by time where all messages have one, else as in the file."""
    by_chat: dict[str, list[Cell]] = {}
    for cell in cells:
        by_chat.setdefault(cell.chat, []).append(cell)
    for chat, of_chat in by_chat.items():
        times = [cell.time for cell in of_chat]
        if all(time is not None for time in times):
            if times[0] > times[-1]:  # the newest comes first
                of_chat = of_chat[::-1]
            of_chat = sorted(of_chat, key=lambda cell: cell.time)
        messages = tuple(Message(cell.speaker, cell.text, cell.summary) for cell in of_chat)
        yield Conversation(chat, messages, tuple(cell.place for cell in of_chat))


def counted(number: int, noun: str) -> str:
    """A number of things in words: `1 chat`, `1,200 chats`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def parse_fields(text: str) -> dict[str, str]:
    """`FIELDS=` of the command line: `part=column`, commas between.

    >>> parse_fields("text=content.text, speaker=昵称")
    {'text': 'content.text', 'speaker': '昵称'}
    """
    fields = {}
    for pair in filter(None, (piece.strip() for piece in text.split(","))):
        part, equals, column = (piece.strip() for piece in pair.partition("="))
        if not equals or part not in PARTS or not column:
            raise ChatError(f"FIELDS needs part=column, got {pair!r}; parts are: {', '.join(PARTS)}")
        fields[part] = column
    return fields
