"""Who says what in an exported chat: one layout for each tool that people export with, known by its fields.

A file that no layout fits is read as a plain table with a column for the speaker and one for the text, or is
refused with what was seen; dialogues in the form of a release of this package are checked line by line. What
was read is said in one line, and nothing is sent to a model that looks misread: one speaker for all messages,
speakers that are labels or numbers, XML or control tokens in a text.
"""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import BaseModel, BeforeValidator, Field, ValidationError

from memecmd_utils.chats import transcripts
from memecmd_utils.chats.formats import (
    Json,
    Table,
    Text,
    json_text,
    read_json,
    read_table,
    read_text,
)
from memecmd_utils.chats.turns import ME, OTHER, ChatError, Conversation, Message
from memecmd_utils.chats.words import (
    CODE,
    MARKUP,
    first_text,
    known,
    parsed,
    spoken_text,
    text_of,
    time_of,
    value_at,
)
from memecmd_utils.files import UnknownEncoding, decode, first_fault
from memecmd_utils.schemas import SummaryReply
from memecmd_utils.schemas import Text as StrippedText

SUMMARY = ("scenario", "emotion", "motivation")
PARTS = ("chat", "time", "speaker", "text", *SUMMARY, "encoding")
"""What `FIELDS=` may name."""
NOT_SPOKEN = {"system", "developer", "tool", "function", "系统", "系统消息", "系统通知"}
"""Senders whose messages are kept in place and not read as part of the chat."""
NAMED = "name its columns to `make insert-memes` as FIELDS='speaker=...,text=...' (a.b for a key within)"
RELEASE = "form of a release"
PLAIN = "plain table"
Row = tuple[Any, Mapping[str, Any]]
"""Place of a message in its file, and its fields."""


class Layout(NamedTuple):
    """The fields of a tool's messages; `data/chat_layouts.yaml` says what each means."""

    tool: str
    needs: Sequence[str]
    speaker: Sequence[str]
    text: Sequence[str]
    time: str = ""
    chat: Sequence[str] = ()
    mine: str = ""
    account: str = ""
    trim: str = ""
    kind: Sequence[str] = ()
    spoken: str = ".*"
    notes: str = ""
    silent: str = r"\s*"
    quotes: bool = True
    joint: str = " "
    told: Sequence[str] = ()
    """Fields of S, E and Psi."""


@cache
def _tools() -> list[Layout]:
    """The layouts of tools by name."""
    return [Layout(**row | {"text": row["text"].split()}) for row in known()["tools"]]


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
    ids = [f"{name}.{key}" for name in layout.speaker for key in _IDS] if layout.tool == PLAIN else []
    accounts = [first_text(row, [layout.account, *ids]) for _, row in rows]
    named = {account: name for account, name in zip(accounts, names, strict=True) if name != account}
    peers = [_peer(row) if layout.tool == "OneBot" else None for _, row in rows]
    has_private_chats = len(set(filter(None, peers))) > 1
    messages = []
    for (place, row), name, account, peer in zip(rows, names, accounts, peers, strict=True):
        kind = "/".join(text_of(value_at(row, field)) for field in layout.kind)
        text = ""
        if re.fullmatch(layout.spoken, kind, re.IGNORECASE):
            text = _words(row, layout, named)
        elif layout.notes and re.fullmatch(layout.notes, kind, re.IGNORECASE):
            name = account = ""
        if peer == "" and has_private_chats and text:
            raise ChatError(f"nothing says to whom {name!r} wrote {text[:20]!r}, and there are several chats")
        own_chat = peer if peer and has_private_chats else first_text(row, layout.chat) or chat
        time = time_of(value_at(row, layout.time))
        messages.append(Message(name, text, _summary(row, layout.told), own_chat, time, place, account))
    return messages


_IDS = ("id", "user_id", "uid")
"""Keys of a sender that is an object."""


def _speaker(row: Mapping[str, Any], layout: Layout, own: bool) -> str:
    name = " ".join(first_text(row, layout.speaker[:1] if own else layout.speaker).split())
    name = {"收": OTHER, "发": ME}.get(name, name)  # a direction of QQNT_Export
    name = re.sub(layout.trim, "", name) or name
    return name or (ME if own else "" if layout.speaker else OTHER)


def _peer(row: Mapping[str, Any]) -> str | None:
    """Whom a bot talks to in a private message of its log, by OneBot; None in a group."""
    if first_text(row, ["group_id"]):
        return None
    bot, *both = (first_text(row, [name]) for name in ("self_id", "user_id", "target_id"))
    return next((account for account in both if account not in ("", bot)), "")


def _words(row: Mapping[str, Any], layout: Layout, named: Mapping[str, str]) -> str:
    """The text of a message by the first field that has one."""
    values = (value_at(row, field) for field in layout.text)
    value = next((value for value in values if value not in (None, "", [])), None)
    markup = MARKUP.get(layout.tool)
    text = markup(value, row, named) if markup else text_of(value, layout.joint)
    return spoken_text(text, layout.quotes, layout.silent)


def _summary(row: Mapping[str, Any], fields: Sequence[str]) -> SummaryReply | None:
    """S, E and Psi of a row that has all three: a data set may have an `emotion` of its own, say a label."""
    texts = {part: first_text(row, [field]) for part, field in zip(SUMMARY, fields, strict=False)}
    return SummaryReply(**texts) if len(texts) == len(SUMMARY) and all(texts.values()) else None


def layout_for(
    fields: Sequence[str], given: Mapping[str, str], rows: Sequence[Mapping[str, Any]]
) -> Layout | None:
    """The layout of messages with these fields: by `FIELDS=`, a tool's, or that of a plain table."""
    lowered = {str(field).strip().casefold(): field for field in reversed(fields)}
    columns = dict(given)
    for part, names in known()["columns"].items():
        field = next((lowered[name] for name in names.split() if name in lowered), "")
        if field and part not in columns and field not in columns.values():
            columns[part] = field
    if "account" in columns and "mine" in columns and "speaker" not in columns:
        columns["speaker"] = columns["account"]
    told, some = [columns[part] for part in SUMMARY if part in columns], rows[:200]
    for layout in () if given else _tools():
        if all(any(need in row or value_at(row, need) is not None for row in some) for need in layout.needs):
            return layout._replace(told=told)
    if "text" not in columns or not ("speaker" in columns or "mine" in columns):
        return None
    text_kinds = known()["text_kinds"]
    kinds = {text_of(value_at(row, columns["kind"])) for row in rows} if "kind" in columns else set()
    has_kinds = any(re.fullmatch(text_kinds, kind, re.IGNORECASE) for kind in kinds)
    named = {part: columns.get(part, "") for part in ("time", "mine", "account")}
    named |= {part: [columns[part]] if part in columns else [] for part in ("speaker", "text", "chat")}
    if has_kinds:
        named |= {"kind": [columns["kind"]], "spoken": text_kinds}
    return Layout(PLAIN, (), **named, quotes=False, told=told)


def _columns(layout: Layout) -> dict[str, str]:
    """Name of each field that a layout uses, to what it means."""
    parts = {"speaker": layout.speaker, "text": layout.text, "time": [layout.time], "chat": layout.chat}
    parts |= {"mine": [layout.mine], "kind": layout.kind, "summary": layout.told}
    return {name: part for part, names in parts.items() for name in names if name}


def _tool(layout: Layout, fields: Sequence[str]) -> str:
    """The tool of a layout; of a plain table also which fields are read as what, and which time is not."""
    used = [f"{part} is {name!r}" for name, part in _columns(layout).items() if part != "summary"]
    times = [] if layout.time else filter(re.compile(_TIMES, re.IGNORECASE).search, map(str, fields))
    used += [f"{name!r} is not read as time" for name in times]
    return f"{PLAIN} ({', '.join(used)})" if layout.tool == PLAIN else layout.tool


_TIMES = r"time|date|(?:^|_)ts$|_at$|sent|时间|日期|時間|日時|날짜|시간"
"""What a column is called that may hold times."""


def _seen(rows: Sequence[Row]) -> str:
    """The fields that there are, for a refusal; `a.b` is a key b within an object a."""
    names: dict[str, None] = {}
    for _, row in rows[:200]:
        for key, value in row.items():
            value = parsed(value) if isinstance(value, str) and value.startswith("{") else value
            inner = [f"{key}.{name}" for name in value] if isinstance(value, Mapping) else []
            names |= dict.fromkeys(inner or [str(key)])
    return "" if not names else f"; there are: {', '.join(list(names)[:20])}{' ...' * (len(names) > 20)}"


def _seen_in(content: Table | Json) -> str:
    if isinstance(content, Table):
        return _seen([((), dict.fromkeys(content.rows[content.head], ""))])
    value = content.value[:200] if isinstance(content.value, list) else content.value
    return next((_seen(rows) for _, rows in _chats_in(value, (), "")), "")


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
    except UnknownEncoding as error:
        other = "" if wanted else ", or name its encoding to `make insert-memes` as FIELDS='encoding=big5'"
        raise ChatError(f"{error}{other}") from error
    try:
        tool, messages, content = _read(text, suffix, given)
        messages, is_repaired = _without_mojibake(messages)
        or_named = "" if isinstance(content, Text) else f", or {NAMED}" * (not given) + _seen_in(content)
        lost = _check_speakers(messages, or_named)
        messages = [m._replace(speaker="") if m.speaker.casefold() in NOT_SPOKEN else m for m in messages]
        messages, notes = _named(messages, tool.startswith(PLAIN), isinstance(content, Text))
        spoken = [message for message in messages if message.speaker and message.text.strip()]
        notes += [] if isinstance(content, Text) else lost
        notes += _check(spoken, bool(given), tool == RELEASE, or_named)
    except ChatError as error:
        raise ChatError(f"{path.name}: {error}") from error
    chats, people = tuple(_conversations(messages)), list(dict.fromkeys(m.speaker for m in spoken))
    shown = ", ".join(people[:4]) + (" ..." if len(people) > 4 else "")
    taken = [
        tool,
        f"{counted(len(messages), 'message')} of {counted(len(people), 'speaker')} ({shown}) in "
        f"{counted(len(chats), 'chat')}",
    ]
    if len(spoken) < len(messages):
        taken.append(f"{counted(len(messages) - len(spoken), 'message')} without text")
    taken += [*_untimed(messages), *notes, *([] if codec.startswith("utf-8") else [codec])]
    taken += ["UTF-8 that was saved as Latin-1 is repaired for reading"] * is_repaired
    return Export(chats, content, codec, "; ".join(taken))


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
        used = _columns(layout)
        lowered = [name.casefold() for name in fields]
        if double := next((name for name in used if lowered.count(name.casefold()) > 1), None):
            line = table.line(table.head)
            raise ChatError(f"line {line}: two columns are called {double!r}: rename or remove one of them")
        return _tool(layout, fields), messages_of(rows, layout, "chat"), table
    if suffix == ".txt" and not given:
        content = read_text(text)
        if parsed := transcripts.parse(content.text):
            tool, messages = parsed
            return tool, messages, content
    first = [line.strip() for line in text.split("\n") if line.strip()][:3]
    shown = " / ".join(line[:60] for line in first)
    seen = f"no line has the columns {', '.join(given.values())}" if given else "this form is not known"
    counts = [{line.count(sign) for line in first} for sign in ",;\t|"]
    has_columns = suffix != ".txt" or any(len(count) == 1 and count != {0} for count in counts)
    raise ChatError(
        f"{seen}; the file begins: {shown}. Save it as a table with columns `speaker,text`, or write each "
        "message as `name: text`" + f", or {NAMED}" * has_columns
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
            raise ChatError(f"{where}no field says who speaks and what{_seen(rows)}; {NAMED}")
        messages_here = messages_of(rows, layout, f"{chat} #{len(names) + 1}" if chat in names else chat)
        if dialogues:
            told = {
                s.turn: s for s in dialogues[number].summaries if s.scenario and s.emotion and s.motivation
            }
            messages_here = [m._replace(summary=told.get(n)) for n, m in enumerate(messages_here, start=1)]
        messages += messages_here
        names |= {message.chat for message in messages_here}
        tools[RELEASE if dialogues else _tool(layout, fields)] = None
    if not messages:
        top = content.value[:1] if isinstance(content.value, list) else [content.value]
        seen = _seen([((), value) for value in top if isinstance(value, dict)])
        raise ChatError(f'no list of messages is in it, such as [{{"speaker": ..., "text": ...}}, ...]{seen}')
    return ", ".join(tools), messages, content


def _chats_in(value: Any, place: tuple, name: str) -> Iterator[tuple[str, list[Row]]]:
    """Name and messages of every chat in a JSON value."""
    if isinstance(value, list):
        own = [_list_key(item) is None for item in value]
        rows = [((*place, i), item) for i, item in enumerate(value) if own[i] and isinstance(item, dict)]
        rows = [row for row in rows if _is_message(row[1])]
        if rows:
            yield name, rows
        for i, item in enumerate(value):
            if isinstance(item, list) or not own[i]:
                yield from _chats_in(item, (*place, i), f"chat {i + 1}")
    elif isinstance(value, dict) and (key := _list_key(value)) is not None:
        if isinstance(value[key][0], str):  # bare texts of two who take turns
            value[key] = [{"speaker": "AB"[i % 2], "text": text} for i, text in enumerate(value[key])]
        yield from _chats_in(value[key], (*place, key), first_text(value, known()["chat_names"]) or name)
    elif isinstance(value, dict) and isinstance(lists := value_at(value, "chats.list"), list):
        yield from _chats_in(lists, (*place, "chats", "list"), name)  # Telegram's whole account
    elif isinstance(value, dict):
        lists = [k for k, v in value.items() if isinstance(v, list) and v and isinstance(v[0], dict)]
        for key in lists or [k for k, v in value.items() if isinstance(v, dict)]:
            yield from _chats_in(value[key], (*place, key), (str(key).strip() if lists else "") or name)


def _is_message(row: Mapping[str, Any]) -> bool:
    """Not the head of a file by ChatLab or SillyTavern, nor a notice in a bot's log by OneBot."""
    is_notice = row.get("post_type") in ("notice", "request", "meta_event")
    return not is_notice and row.get("_type") in (None, "message") and "chat_metadata" not in row


def _list_key(value: Any) -> str | None:
    """Key of the list of messages of an object that is a whole chat; None for a message."""
    for key in known()["lists"] if isinstance(value, dict) else ():
        items, kinds = value.get(key), dict | str if key in ("dialogue", "dialog") else dict
        if isinstance(items, list) and items and isinstance(items[0], kinds):
            return key
    return None


# --- what looks misread

_LABELS = re.compile(
    r"时间|時間|日期|发送时间|导出时间|时间范围|内容|消息|资源|提及|回复|聊天名称|聊天类型|消息总数|time|date|sent|from|sender|"
    r"message|subject|to|content|info|warn(?:ing)?|error|debug|\d[\d\s:：./-]*",
    re.IGNORECASE,
)
_XML = re.compile(
    r"<\?xml|<(?:msg|sysmsg|appmsg|msgsource)\b|<(\w+)(?:\s+[\w:-]+\s*=\s*[\"'][^\"']*[\"'])+[^<>]*>|<\|[^|<>]*\|>|<｜[^｜]*｜>"
)


def _check_speakers(messages: Sequence[Message], or_named: str) -> list[str]:
    """Raise `ChatError` where most texts have no speaker, for it is in another field; else count them."""
    words = [message for message in messages if message.text.strip()]
    lost = [message for message in words if not message.speaker]
    if not lost:
        return []
    said = f"{len(lost)} of {counted(len(words), 'text')} without a speaker, such as {lost[0].text[:40]!r}"
    if 2 * len(lost) > len(words):
        raise ChatError(f"{said}: export the chat in another form{or_named}")
    return [said]


def _check(spoken: Sequence[Message], is_given: bool, is_released: bool, or_named: str) -> list[str]:
    """Raise `ChatError` for messages that look misread, else say which texts hold codes.

    A release says by its form who speaks. `or_named`: what can be done but another export.
    """
    if not spoken:
        raise ChatError(
            f"no message has both a speaker and a text: export the chat in another form{or_named}"
        )
    people = list(dict.fromkeys(message.speaker for message in spoken))
    hint = f"export the chat in another form{or_named}"
    codes = list(filter(None, (CODE.search(message.text) for message in spoken)))
    if not is_given:
        label = next(filter(_LABELS.fullmatch, people), None)
        if label is not None and not is_released:
            raise ChatError(f"{label!r} would be a speaker, and looks like a label or a number: {hint}")
        if len(people) == 1 and len(spoken) > 2 and not is_released:
            raise ChatError(f"{people[0]!r} would say all {len(spoken)} messages: {hint}")
        marked = next(filter(None, (_XML.search(message.text) for message in spoken)), None)
        if marked is None and 2 * len(codes) > len(spoken):
            marked = codes[0]
        if marked is not None:
            raise ChatError(f"a text holds {marked[0][:40]!r}, which nobody says: {hint}")
    return [f"{counted(len(codes), 'text')} with a code such as {codes[0][0][:40]!r}"] if codes else []


def _named(messages: list[Message], is_plain: bool, is_text: bool) -> tuple[list[Message], list[str]]:
    """Messages with one name for an account in a chat and one account for a name, and what to say of it.

    Of an account whose name changed the last one counts; names that take turns are several people behind a
    bridge. Two accounts with one name are told apart, but not in a plain table: its ids may mean anything.
    """
    names: dict[tuple[str, str], list[str]] = defaultdict(list)
    for m in messages:
        if m.account and m.speaker not in ("", m.account):
            names[m.chat, m.account].append(m.speaker)
    runs = {key: [name for name, _ in groupby(said)] for key, said in names.items()}
    notes = []
    if not (is_plain or is_text):
        last = {key: run[-1] for key, run in runs.items() if len(run) == len(set(run))}
        changed = [run for key, run in runs.items() if key in last and len(run) > 1]
        notes = [f"one account, called {' and then '.join(run)}, is one speaker" for run in changed]
        messages = [
            m._replace(speaker=last.get((m.chat, m.account), m.speaker)) if m.speaker else m for m in messages
        ]
    accounts: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for m in messages:
        if m.account and m.speaker:
            accounts[m.chat, m.speaker][m.account] += 1
    shared = {key: len(of) for key, of in accounts.items() if len(of) > 1}
    if is_plain:
        every = [account for of in accounts.values() for account in of.elements()]
        if len(every) > 4 and len(every) == len(set(every)):  # the ids of messages
            shared = {}
    else:
        own = {(*key, account) for key in shared for account in accounts[key]}
        messages = [
            m._replace(speaker=f"{m.speaker} ({m.account})") if (m.chat, m.speaker, m.account) in own else m
            for m in messages
        ]
    told = "are read as one speaker" if is_plain else "are told apart"
    return messages, notes[:3] + [f"{n} accounts called {name!r} {told}" for (_, name), n in shared.items()][
        :3
    ]


def _untimed(messages: Sequence[Message]) -> list[str]:
    """What to say of times that do not count, where the file has times."""
    unread = [m.time for m in messages if isinstance(m.time, str)]
    lacking = sum(m.time is None for m in messages if m.speaker)
    if not unread and (not lacking or lacking == sum(bool(m.speaker) for m in messages)):
        return []
    if len(unread) + lacking >= len(messages):
        return [f"times such as {unread[0]!r} are not read, so the file's order counts"]
    such = f" (or none that can be read, such as {unread[0]!r})" if unread else ""
    return [f"{counted(len(unread) + lacking, 'message')} without a time{such}: they stay where they stand"]


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
        timed = [message for message in of_chat if isinstance(message.time, float)]
        if timed and timed[0].time > timed[-1].time:  # the newest comes first
            of_chat, timed = of_chat[::-1], timed[::-1]
        in_order = iter(sorted(timed, key=lambda message: message.time))
        yield Conversation(chat, tuple(next(in_order) if isinstance(m.time, float) else m for m in of_chat))


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
