"""Who says what in an exported chat, and such chats as the dialogues of a run.

Each tool that people export with has a layout. A file that no layout fits is read as a plain table with a
column for the speaker and one for the text, or is refused with what was seen; dialogues in the form of a
release of this package are checked line by line. What was read is said in one line, and nothing is sent to a
model that looks misread: one speaker for all messages, speakers that are labels or numbers, XML or control
tokens in a text.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby, islice
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import BaseModel, Field, StringConstraints, ValidationError

from memecmd_utils import authors, files, schemas
from memecmd_utils.chats import formats, layouts, transcripts, turns
from memecmd_utils.chats.turns import ChatError, Conversation, Message
from memecmd_utils.settings import Profile, ProfileError

PARTS = ("chat", "time", "speaker", "text", *layouts.SUMMARY)
"""What `FIELDS=` may name."""
NOT_SPOKEN = {"system", "developer", "tool", "function", "系统", "系统消息", "系统通知"}
"""Senders whose messages are kept in place and not read as part of the chat."""
NAMED = "; name its columns to `make insert-memes` as FIELDS='speaker=...,text=...' (a.b for a key within)"
RELEASE = "form of a release"
Content = formats.Table | formats.Json | formats.Text


# --- dialogues in the form of a release, `dialogues.jsonl`: a fault names its line and field

OWN = "user dialogue"
"""`source` of what a file says without naming one."""


class ReleasedSummary(schemas.SummaryReply):
    """(S, E, Psi) for the message with that number in the file, which counts from 1; empty where unscored."""

    turn: int
    scenario: str
    emotion: str
    motivation: str


class Released(BaseModel):
    """A dialogue with the fields that are read of it; others are passed over."""

    dialogue_id: Annotated[str, StringConstraints(strip_whitespace=True, pattern=r"^[\w.-]{1,80}$")]
    turns: list[dict[str, Any]] = Field(min_length=1)
    summaries: list[ReleasedSummary] = []
    kind: str | None = None
    title: str | None = None
    name_a: str | None = None
    name_b: str | None = None
    source: str | None = None


def released(content: Content) -> list[Released]:
    """All dialogues of a file in which one has `dialogue_id` and `turns` with speaker and text; else none.

    Raises `ChatError` with the line and the field of the first that has a fault.
    """
    values = content.value if isinstance(content, formats.Json) and isinstance(content.value, list) else []
    named = [value for value in values if isinstance(value, dict) and "dialogue_id" in value]
    parts = [turn for value in named if isinstance(value.get("turns"), list) for turn in value["turns"]]
    if not any(isinstance(turn, dict) and {"speaker", "text"} <= turn.keys() for turn in parts):
        return []
    dialogues = []
    for number, value in enumerate(values):
        try:
            dialogues.append(Released.model_validate(value))
        except ValidationError as error:
            where = f"line {content.lines[number]}" if content.lines else f"dialogue {number + 1}"
            raise ChatError(f"{where}: {files.first_fault(error)}") from error
    return dialogues


# --- files

DELIMITERS = (",", ";", "\t", "|", "，", "；")
SUFFIXES = (".csv", ".tsv", ".txt", ".jsonl", ".ndjson", ".json")


class Export(NamedTuple):
    """A chat export: its chats, and the file around them."""

    chats: tuple[Conversation, ...]
    content: Content
    codec: str
    taken: str
    """What was read, in one line: tool, people, messages, messages without text."""

    def render(self, memes: Mapping[tuple[int, int], Mapping[str, Any]]) -> bytes:
        """The export in UTF-8 with `memes`: (chat, message) to values of `MEME_COLUMNS`.

        What was in another encoding begins with a byte order mark, by which spreadsheets know UTF-8.
        """
        at = {self.chats[chat].messages[message].place: values for (chat, message), values in memes.items()}
        is_plain = self.codec == "utf-8" or isinstance(self.content, formats.Json)
        return self.content.with_memes(at).encode("utf-8" if is_plain else "utf-8-sig")


def read(path: Path, fields: Mapping[str, str] | None = None) -> Export:
    """Read a chat export (.csv, .tsv, .txt, .jsonl, .ndjson, .json).

    `fields` names the columns or keys of a plain table: part of a message (`PARTS`) to name. Raises
    `ChatError` for what no layout fits, and for what looks misread.
    """
    given, suffix = fields or {}, path.suffix.lower()
    if suffix not in SUFFIXES:
        raise ChatError(f"{path.name} cannot be read: save it as CSV, JSON or text ({', '.join(SUFFIXES)})")
    try:
        text, codec = files.decode(path.read_bytes(), path.name)
    except OSError as error:
        raise ChatError(f"{path} cannot be read: {error.strerror}") from error
    content: Content | None = None
    try:
        content = _content(text, suffix, given)
        tool, messages = _messages(content, suffix, given)
        notes = _shared_names(messages) + _check(messages, content, bool(given), tool == RELEASE)
    except ChatError as error:
        is_all = content is None or suffix == ".txt" or isinstance(error.__cause__, ValidationError)
        raise ChatError(f"{path.name}: {error}{'' if is_all else _seen(content) + NAMED}") from error
    messages = [m._replace(speaker="") if m.speaker.casefold() in NOT_SPOKEN else m for m in messages]
    spoken = [message for message in messages if message.speaker and message.text.strip()]
    chats, people = tuple(_conversations(messages)), list(dict.fromkeys(m.speaker for m in spoken))
    said = f"{counted(len(messages), 'message')} of {counted(len(people), 'speaker')} ({_some(people)})"
    taken = [tool, f"{said} in {counted(len(chats), 'chat')}"]
    if len(spoken) < len(messages):
        taken.append(f"{counted(len(messages) - len(spoken), 'message')} without text")
    taken += [*_untimed(messages), *notes, *([] if codec.startswith("utf-8") else [codec])]
    return Export(chats, content, codec, "; ".join(taken))


def _content(text: str, suffix: str, given: Mapping[str, str]) -> Content:
    """A file as JSON, as the table that it is under some delimiter and header, or else as lines of text."""
    if not text.strip():
        raise ChatError("the file is empty")
    formats.check_no_memes(text)
    if suffix in (".json", ".jsonl", ".ndjson"):
        return formats.read_json(text, suffix != ".json")
    for delimiter in DELIMITERS:
        begin = islice(formats.records_in(text, delimiter, strict=False), 12)
        for number, row in enumerate(begin):  # titles, or `sep=;`, may stand above the header
            names = [name.strip() for name in row]
            is_header = layouts.layout_for(names, given, [dict.fromkeys(names, "")]) is not None
            if len(names) > 1 and is_header and set(given.values()) <= set(names):
                table = formats.Table([*formats.records_in(text, delimiter)], delimiter, number)
                table.rows[number] = names
                return table
    return formats.Text(re.sub(r"\r\n?", "\n", text))


def _messages(content: Content, suffix: str, given: Mapping[str, str]) -> tuple[str, list[Message]]:
    """The tool that wrote a file, and its messages; `ChatError` where nothing fits."""
    if isinstance(content, formats.Json):
        return _of_json(content, given)
    if isinstance(content, formats.Table):
        return _of_table(content, given)
    if suffix == ".txt" and not given and (parsed := transcripts.parse(content.text)):
        return parsed
    first = [line.strip() for line in content.text.split("\n") if line.strip()][:3]
    raise ChatError(
        f"this form is not known; the file begins: {' / '.join(line[:60] for line in first)}. Save it as a "
        "table with columns `speaker,text`, or write each message as `name: text`"
    )


def _of_table(table: formats.Table, given: Mapping[str, str]) -> tuple[str, list[Message]]:
    rows = [(place, layouts.flat(row)) for place, row in table.records()]
    names = table.rows[table.head]
    layout = layouts.layout_for(names, given, [row for _, row in rows] or [dict.fromkeys(names, "")])
    lowered = [name.casefold() for name in names]
    double = next((name for name in layouts.columns_of(layout) if lowered.count(name.casefold()) > 1), None)
    if double:
        line = table.line(table.head)
        raise ChatError(f"line {line}: two columns are called {double!r}: rename or remove one of them")
    return layouts.tool_of(layout, names), layouts.messages_of(rows, layout, "chat")


def _of_json(content: formats.Json, given: Mapping[str, str]) -> tuple[str, list[Message]]:
    dialogues = [] if given else released(content)
    messages, names, tools = [], set(), {}
    for number, (chat, rows) in enumerate(_chats_in(content.value, (), "chat")):
        fields = list(dict.fromkeys(name for _, row in rows for name in row))
        layout = layouts.layout_for(fields, given, [row for _, row in rows])
        if layout is None:
            where = f"line {content.lines[rows[0][0][0]]}: " if content.lines else ""
            raise ChatError(f"{where}no field says who speaks and what")
        tool = RELEASE if dialogues else layouts.tool_of(layout, fields)
        if layout.tool == layouts.META:
            meant = [(place, {name: layouts.repaired(v) for name, v in row.items()}) for place, row in rows]
            tool += ", its UTF-8 that was saved as Latin-1 repaired for reading" * (meant != rows)
            chat, rows = layouts.repaired(chat), meant
        of_chat = layouts.messages_of(rows, layout, f"{chat} #{len(names) + 1}" if chat in names else chat)
        if dialogues:
            summaries = dialogues[number].summaries
            told = {s.turn: s for s in summaries if all((s.scenario, s.emotion, s.motivation))}
            of_chat = [m._replace(summary=told.get(n)) for n, m in enumerate(of_chat, start=1)]
        messages += of_chat
        names |= {message.chat for message in of_chat}
        tools[tool] = None
    if not messages:
        raise ChatError('no list of messages is in it, such as [{"speaker": ..., "text": ...}, ...]')
    return ", ".join(tools), messages


def _chats_in(value: Any, place: tuple, name: str) -> Iterator[tuple[str, list[layouts.Row]]]:
    """Name and messages of every chat in a JSON value."""
    if isinstance(value, list):
        own = [_list_key(item) is None for item in value]
        items = [(i, item) for i, item in enumerate(value) if own[i] and isinstance(item, dict)]
        rows = [((*place, i), layouts.flat(item)) for i, item in items if _is_message(item)]
        if rows:
            yield name, rows
        for i, item in enumerate(value):
            if isinstance(item, list) or not own[i]:
                yield from _chats_in(item, (*place, i), f"chat {i + 1}")
    elif isinstance(value, dict) and (key := _list_key(value)) is not None:
        title = layouts.first_text(layouts.flat(value), layouts.known()["chat_names"])
        yield from _chats_in(value[key], (*place, key), title or name)
    elif isinstance(value, dict) and isinstance(layouts.flat(value).get("chats.list"), list):
        # Telegram's whole account, in which contacts are lists, too
        yield from _chats_in(value["chats"]["list"], (*place, "chats", "list"), name)
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
    for key in layouts.known()["lists"] if isinstance(value, dict) else ():
        if isinstance(items := value.get(key), list) and items and isinstance(items[0], dict):
            return key
    return None


def _seen(content: Content) -> str:
    """The fields that there are, for a refusal; `a.b` is a key b within an object a."""
    if isinstance(content, formats.Text):
        return ""
    if isinstance(content, formats.Table):
        rows = [dict.fromkeys(content.rows[content.head])]
    else:
        chat = next((rows for _, rows in _chats_in(content.value, (), "")), [])
        top = content.value if isinstance(content.value, list) else [content.value]
        rows = [row for _, row in chat[:200]] or [
            layouts.flat(value) for value in top[:1] if isinstance(value, dict)
        ]
    shown = list(dict.fromkeys(name for row in rows for name in row))
    return f"; there are: {', '.join(shown[:20])}{' ...' * (len(shown) > 20)}" if shown else ""


# --- what looks misread

_LABELS = re.compile(
    r"时间|時間|日期|发送时间|导出时间|时间范围|内容|消息|资源|提及|回复|聊天名称|聊天类型|消息总数|time|date|sent|from|sender|"
    r"message|subject|to|content|info|warn(?:ing)?|error|debug|\d[\d\s:：./-]*",
    re.IGNORECASE,
)
_XML = re.compile(
    r"<\?xml|<(?:msg|sysmsg|appmsg|msgsource)\b|<(\w+)(?:\s+[\w:-]+\s*=\s*[\"'][^\"']*[\"'])+[^<>]*>|<\|[^|<>]*\|>|<｜[^｜]*｜>"
)
_CODES = re.compile(rf"{layouts.CODE.pattern}|锟斤拷|[\ufffd\x80-\x9f]")
"""Codes of programs, and what is left of texts that were saved or read in another encoding."""


def _check(messages: Sequence[Message], content: Content, is_given: bool, is_released: bool) -> list[str]:
    """Raise `ChatError` for messages that look misread; else say which texts lack a speaker or hold codes.

    A release says by its form who speaks. In lines of text only notes of the app have no speaker.
    """
    hint = "export the chat in another form"
    texts = [message for message in messages if message.text.strip()]
    lost = [m for m in texts if not m.speaker and not isinstance(content, formats.Text)]
    spoken = [m for m in texts if m.speaker and m.speaker.casefold() not in NOT_SPOKEN]
    people, notes = list(dict.fromkeys(message.speaker for message in spoken)), []
    if lost:
        such = f"such as {lost[0].text[:40]!r}"
        notes.append(f"{len(lost)} of {counted(len(texts), 'text')} without a speaker, {such}")
    if 2 * len(lost) > len(texts):  # it is in another field
        raise ChatError(f"{notes[0]}: {hint}")
    if not spoken:
        raise ChatError(f"no message has both a speaker and a text: {hint}")
    label = next(filter(_LABELS.fullmatch, people), None)
    if label is not None and not (is_given or is_released):
        raise ChatError(f"{label!r} would be a speaker, and looks like a label or a number: {hint}")
    if len(people) == 1 and len(spoken) > 2 and not (is_given or is_released):
        raise ChatError(f"{people[0]!r} would say all {len(spoken)} messages: {hint}")
    codes = list(filter(None, (_CODES.search(message.text) for message in spoken)))
    marks = list(filter(None, (_XML.search(message.text) for message in spoken)))
    marks += codes if 2 * len(codes) > len(spoken) else []
    if marks and not is_given:
        raise ChatError(f"a text holds {marks[0][0][:40]!r}, which nobody says: {hint}")
    if codes:
        notes.append(f"{counted(len(codes), 'text')} with a code such as {codes[0][0][:40]!r}")
    return notes


def _shared_names(messages: Sequence[Message]) -> list[str]:
    """What to say of accounts that share a name within a chat."""
    pairs = {
        (m.chat, m.speaker, m.account) for m in messages if m.account and m.speaker not in ("", m.account)
    }
    names = Counter((chat, name) for chat, name, _ in pairs)
    shared = [(name, n) for (_, name), n in names.items() if n > 1]
    return [f"{n} accounts called {name!r} are read as one speaker" for name, n in shared[:4]]


def _untimed(messages: Sequence[Message]) -> list[str]:
    """What to say of messages whose time does not count, where the file has times."""
    untimed = [m.time for m in messages if m.speaker and not isinstance(m.time, float)]
    if not untimed or all(message.time is None for message in messages):
        return []
    such = next((f", such as {time!r}" for time in untimed if time), "")
    said = f"{counted(len(untimed), 'message')} without a time that can be read{such}"
    return [f"{said}: they stay where they stand"]


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


def _some(people: Sequence[str]) -> str:
    return ", ".join(people[:4]) + (" ..." if len(people) > 4 else "")


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


# --- chats as the dialogues of a run: the key `dialogues` names their file (stage 03)


def load_dialogues(profile: Profile) -> tuple[list[schemas.Dialogue], str]:
    """Dialogues of the file that the key `dialogues` names, at most `n_dialogues`, and what was read.

    It is any file that `make insert-memes` reads; without that key there are none. With `paper_data` the
    dialogues are those of the authors' release. Who speaks first is A;
    messages of one speaker in a row are one turn, joined with a space. A group among several chats is left
    out and counted. Raises `ChatError` for a file that cannot be read, and `ProfileError` where there is no
    chat of two, or summaries are missing that no model of the profile could write.
    """
    limit = profile.dialogue.n_dialogues
    limit = limit if isinstance(limit, int) else None
    if release := authors.of_profile(profile):
        dialogues = release.dialogues[:limit]
        return dialogues, f"{len(dialogues):,} dialogues of the authors' release"
    if profile.dialogue.dialogues is None:
        return [], ""
    path = files.paths.user_path(profile.dialogue.dialogues)
    export = read(path)
    told = released(export.content)
    of_two = [chat for chat in export.chats if len(chat.people) == 2]
    others = [chat for chat in export.chats if len(chat.people) != 2]
    if others and (told or not of_two):
        name, people = others[0].name, others[0].people
        raise ProfileError(
            f"{path.name}: a dialogue has two speakers, and {name!r} has {len(people)}: {_some(people)}"
        )
    own: dict[str, schemas.Dialogue] = {}
    for number, chat in enumerate(of_two[:limit], start=1):
        if told:
            about = told[chat.messages[0].place[0]]
        else:
            name = re.sub(r"[^\w.-]+", "-", chat.name).strip("-")[:70]
            dialogue_id = f"{name or 'chat'}-{number}" if name in ("", *own) else name
            about = Released.model_construct(dialogue_id=dialogue_id, title=chat.name)
        if about.dialogue_id in own:
            raise ProfileError(f"{path.name}: dialogue_id {about.dialogue_id!r} must name one dialogue")
        own[about.dialogue_id] = _dialogue(chat, about, profile)
    missing = sum(len(dialogue.turns) - 1 - len(dialogue.summaries) for dialogue in own.values())
    if missing and profile.models.llm == "authored":
        raise ProfileError(
            f"{missing:,} turns in {path.name} have no summary, and profile {profile.name!r} has no model to "
            "write one: name a profile with a model, or add them in columns S, E and Psi (a release has "
            "`summaries` with turn, scenario, emotion and motivation)"
        )
    left_out = f"; left out: {counted(len(others), 'chat')} not of two speakers" if others else ""
    return [*own.values()], export.taken + left_out


def _dialogue(chat: Conversation, about: Released, profile: Profile) -> schemas.Dialogue:
    """A chat of two as a dialogue; `about` says what its file tells beside the messages."""
    spoken = []
    for number, (_, group) in enumerate(groupby(chat.spoken, key=lambda turn: turn.speaker), start=1):
        first, *more = group
        text = " ".join(turn.text for turn in (first, *more))
        spoken.append(first._replace(turn=number, text=text))
    names = {"A": about.name_a or "A", "B": about.name_b or "B"}
    told = {
        "dialogue_id": about.dialogue_id,
        "kind": about.kind if about.kind in schemas.DIALOGUE_KINDS else "own",
        "title": about.title or about.dialogue_id,
        "source": about.source or OWN,
        "profile": profile.name,
    }
    return turns.dialogue_of(spoken, told, [names.get(name, name) for name in chat.people])
