"""What a tool's messages say: which fields name sender and words, and what in a text nobody says.

`data/chat_layouts.yaml` has the layout of each tool, and the names that columns of a plain table may have.
"""

import html
import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from typing import Any, NamedTuple

import yaml

from memecmd_utils.chats.turns import ME, OTHER, ChatError, Message
from memecmd_utils.files import paths
from memecmd_utils.schemas import SummaryReply

SUMMARY = ("scenario", "emotion", "motivation")
PLAIN = "plain table"
META = "Instagram or Messenger"
Row = tuple[Any, Mapping[str, Any]]
"""Place of a message in its file, and its fields (`flat`)."""


@cache
def known() -> dict[str, Any]:
    """`data/chat_layouts.yaml`: layouts of tools, names of columns, and what stands for a picture."""
    return yaml.safe_load((paths.data / "chat_layouts.yaml").read_text(encoding="utf-8"))


# --- values


def flat(row: Mapping[str, Any], depth: int = 8) -> dict[str, Any]:
    """The fields of a row that have a name, and those within objects: `content.text` is a field, too.

    Also where `content` is an object that stands as JSON in a text; objects are opened to this `depth`.
    """
    fields: dict[str, Any] = {}
    for name, value in row.items():
        inner = _parsed(value) if isinstance(value, str) and value.startswith("{") else value
        fields |= {name: value} if name else {}
        if isinstance(inner, Mapping) and depth:
            fields |= {f"{name}.{within}": part for within, part in flat(inner, depth - 1).items()}
    return fields


def _parsed(text: str) -> Any:
    """The JSON value that a text is; None where it is none."""
    try:
        return json.loads(text)
    except ValueError:
        return None


def text_of(value: Any, joint: str = " ") -> str:
    """A value as text. A list of parts gives their texts, an object its name or text, null none."""
    if isinstance(value, str):
        # Half a surrogate pair cannot be written in any file, and a NUL is shown nowhere.
        return value.replace("\0", "").encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list):
        return joint.join(filter(None, (text_of(part, joint) for part in value)))
    if isinstance(value, Mapping):
        return first_text(flat(value), ("nickname", "name", "text", "data.text", "username", "id"), joint)
    return str(value) if isinstance(value, int | float) else ""


def first_text(row: Mapping[str, Any], names: Sequence[str], joint: str = " ") -> str:
    """The first of these fields that is not empty, as text."""
    return next(filter(None, (text_of(row.get(name), joint).strip() for name in names)), "")


def repaired(value: Any) -> Any:
    """UTF-8 that was read as Latin-1 when it was saved, as it was meant; any other value as it is."""
    try:
        return value.encode("latin-1").decode("utf-8") if isinstance(value, str) else value
    except UnicodeError:
        return value


def time_of(value: Any) -> float | str | None:
    """Seconds since 1970 of a number, or of a date that begins with the year; else the text, None for none.

    A date without an offset is taken as UTC.
    """
    text = given = text_of(value).strip()
    if re.fullmatch(r"\d{9,}(\.\d+)?", text):
        return float(text) / 1000 if float(text) > 1e11 else float(text)
    day = re.compile(r"^(\d{4})[-/.年](\d{1,2})[-/.月](\d{1,2})日?[T ]*(?:(\d{1,2}):)?")
    text = day.sub(lambda d: f"{d[1]}-{d[2]:0>2}-{d[3]:0>2}T{d[4] or 0:0>2}:{'' if d[4] else '00'}", text)
    text = re.sub(r"\s*(?:UTC|GMT)?\s*(?=[+-]\d\d:?\d\d$)|\s*(?:UTC|GMT)$", "", text)
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return given or None
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()


# --- one layout over all messages of a chat


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


def messages_of(rows: Sequence[Row], layout: Layout, chat: str) -> list[Message]:
    """Messages of `rows` by a layout, in a chat of this name where the layout has no field for it."""
    flags = [text_of(row.get(layout.mine)).strip().casefold() for _, row in rows]
    mine = [bool(layout.mine) and flag in ("1", "true", "yes") for flag in flags]
    names = [_speaker(row, layout, own) for (_, row), own in zip(rows, mine, strict=True)]
    pairs = list(zip(names, mine, strict=True))
    if {name for name, own in pairs if own and name} & {name for name, own in pairs if not own}:
        # In private chats of WeChatMsg every row has the other's name: only the flag says who speaks.
        names = [ME if own else name for name, own in pairs]
    accounts = [first_text(row, [layout.account]) for _, row in rows]
    pairs = zip(accounts, names, strict=True)
    named = {account: name for account, name in pairs if account and name not in ("", account)}
    if layout.tool == "OneBot":
        _check_private([row for _, row in rows])
    messages = []
    for (place, row), name, account in zip(rows, names, accounts, strict=True):
        name = named.get(account, name) if name == account else name
        kind, text = "/".join(text_of(row.get(field)) for field in layout.kind), ""
        if re.fullmatch(layout.spoken, kind, re.IGNORECASE):
            text = _words(row, layout, named)
        elif layout.notes and re.fullmatch(layout.notes, kind, re.IGNORECASE):
            name = account = ""
        time, own_chat = time_of(row.get(layout.time)), first_text(row, layout.chat) or chat
        messages.append(Message(name, text, _summary(row, layout.told), own_chat, time, place, account))
    return messages


def _speaker(row: Mapping[str, Any], layout: Layout, own: bool) -> str:
    name = " ".join(first_text(row, layout.speaker[:1] if own else layout.speaker).split())
    name = {"收": OTHER, "发": ME}.get(name, name)  # a direction of QQNT_Export
    name = re.sub(layout.trim, "", name) or name
    return name or (ME if own else "" if layout.speaker else OTHER)


def _check_private(rows: Sequence[Mapping[str, Any]]) -> None:
    """Raise `ChatError` for a bot's log of private chats with several people: they would be one chat."""
    private = [row for row in rows if not first_text(row, ["group_id"])]
    bots = {first_text(row, ["self_id", "self.user_id"]) for row in private} - {""}
    people = {first_text(row, [name]) for row in private for name in ("user_id", "target_id")} - {"", *bots}
    if len(people) > (1 if bots else 2):
        raise ChatError(f"a bot's private chats with {len(people)} people: split the log by `user_id`")


def _words(row: Mapping[str, Any], layout: Layout, named: Mapping[str, str]) -> str:
    """The text of a message by the first field that has one."""
    values = (row.get(field) for field in layout.text)
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
        if all(any(need in row for row in some) for need in layout.needs):
            return layout._replace(told=told)
    if "text" not in columns or not ("speaker" in columns or "mine" in columns):
        return None
    text_kinds = known()["text_kinds"]
    kinds = {text_of(row.get(columns["kind"])) for row in rows} if "kind" in columns else set()
    has_kinds = any(re.fullmatch(text_kinds, kind, re.IGNORECASE) for kind in kinds)
    named = {part: columns.get(part, "") for part in ("time", "mine", "account")}
    named |= {part: [columns[part]] if part in columns else [] for part in ("speaker", "text", "chat")}
    if has_kinds:
        named |= {"kind": [columns["kind"]], "spoken": text_kinds}
    return Layout(PLAIN, (), **named, quotes=False, told=told)


def columns_of(layout: Layout) -> dict[str, str]:
    """Name of each field that a layout uses, to what it means."""
    parts = {"speaker": layout.speaker, "text": layout.text, "time": [layout.time], "chat": layout.chat}
    parts |= {"mine": [layout.mine], "kind": layout.kind, "summary": layout.told}
    return {name: part for part, names in parts.items() for name in names if name}


def tool_of(layout: Layout, fields: Sequence[str]) -> str:
    """The tool of a layout; of a plain table also which fields are read as what, and which time is not."""
    used = [f"{part} is {name!r}" for name, part in columns_of(layout).items() if part != "summary"]
    times = [] if layout.time else filter(re.compile(_TIMES, re.IGNORECASE).search, map(str, fields))
    used += [f"{name!r} is not read as time" for name in times]
    return f"{PLAIN} ({', '.join(used)})" if layout.tool == PLAIN else layout.tool


_TIMES = r"time|date|(?:^|_)ts$|_at$|sent|时间|日期|時間|日時|날짜|시간"
"""What a column is called that may hold times."""


# --- what is no text: what stands for a picture, a file, a call; a quoted message; codes

CODE = re.compile(
    r"\[[A-Za-z][\w.-]*[:=][^\s\[\]][^\[\]\n]*\]|\[CQ:|<a?:\w+:\d+>|<[@#][!&]?\w+>|"
    r"\[(?:[^\[\]\n]* )?\d{1,2}:\d{2}(?::\d{2})?\]|\A\s*\[?\s*\{\s*\"\w+\"\s*:"
)
"""What a program writes for a face, a mention, a time: `[pic:1.png]`, `<:smile:123>`, `[12:00]`; or JSON."""
_CQ = re.compile(r"\[CQ:(?:[^\[\]]|\[(?:[^\[\]]|\[[^\[\]]*\])*\])*\]")
_QUOTE = re.compile(
    r"\A(?:>.*(?:\n|\Z))+|\A\[(?:回复|引用)[^\]]*\]\s*|\n\s*(?:引用\s*[:：]|\[引用\])[\s\S]*\Z|\s*\[引用[^\]]*\]\s*\Z"
)


@cache
def _placeholders() -> tuple[re.Pattern, re.Pattern]:
    """What stands for a picture among words, and what does as a whole message."""
    things = "|".join(known()["things"].split()).replace("_", " ")
    among = (
        rf"!?[\[【<［]\s*(?:{things})"  # then a name or a length, and an address
        r"(?:\s*[:：|｜]\s*[^\]】>］]*|\s+[-–—0-9][^\]】>］]*|\s*)[\]】>］](?:\([^()\s]*\))?"
    )
    return re.compile(among, re.IGNORECASE), re.compile("|".join(known()["omitted"]), re.IGNORECASE)


def spoken_text(text: str, has_quotes: bool, silent: str = r"\s*") -> str:
    """What somebody says: without the message that is quoted, and without what stands for a picture.

    `silent`: what stands for a picture in the exports of one tool.
    """
    among, whole = _placeholders()
    text = text.replace("\ufffc", "").replace("\0", "")  # iMessage has U+FFFC in place of an attachment
    if re.search(r"\[CQ:|&(?:amp|#91|#93|#44);", text):  # where there are CQ codes, these signs are escaped
        text = html.unescape(_CQ.sub("", text))
    if re.fullmatch(silent, text.strip()):
        return ""
    if has_quotes:
        text = among.sub("", _QUOTE.sub("", text))
    bare = text.strip()
    is_silent = whole.fullmatch(bare) or not CODE.sub("", among.sub("", bare)).strip()
    return "" if is_silent else text.strip()


# --- how tools write mentions, links and parts of a text

Names = Mapping[str, str]
"""Account to the name of its owner."""


def _qqnt(value: Any, row: Mapping[str, Any], names: Names) -> str:
    """Pairs of a text and its kind; a quoted message comes first."""
    pairs = [pair for pair in value if isinstance(pair, list) and pair] if isinstance(value, list) else []
    texts = [text_of(text) for text, *kind in pairs if not kind or kind[0] in (None, "", "text", "reply")]
    return "".join(text for text in texts if not text.startswith("[被引用的消息]"))


def _slack(value: Any, row: Mapping[str, Any], names: Names) -> str:
    """`<@U1>` is a mention, `<https://x|words>` a link; `&`, `<` and `>` are escaped."""

    def plain(mark: re.Match) -> str:
        sign = "@" if mark["sign"] == "!" else mark["sign"] or ""
        return sign + (mark["label"] or names.get(mark["what"], mark["what"])).removeprefix(sign)

    text = re.sub(r"<(?P<sign>[@#!]?)(?P<what>[^<>|]+)(?:\|(?P<label>[^<>]*))?>", plain, text_of(value))
    return html.unescape(text)


def _feishu(value: Any, row: Mapping[str, Any], names: Names) -> str:
    """`@_user_1` stands for a name in `mentions`; a post is lines of parts."""
    lines = value if isinstance(value, list) else [value]
    text = "\n".join(text_of(line, "") for line in lines)
    mentions = row.get("mentions") or row.get("event.message.mentions") or []
    for mention in mentions if isinstance(mentions, list) else ():
        if key := first_text(mention, ["key"]):
            text = re.sub(re.escape(key) + r"(?!\d)", "@" + first_text(mention, ["name"]), text)
    return text


MARKUP: Mapping[str, Callable[[Any, Mapping[str, Any], Names], str]] = {
    "QQNT_Export": _qqnt,
    "Slack": _slack,
    "Feishu": _feishu,
}
"""How a tool's text is read, where it is more than a string or a list of texts."""
