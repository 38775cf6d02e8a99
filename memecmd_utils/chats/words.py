"""What somebody says in a message: values of fields without codes, quotes and what stands for a picture."""

import html
import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from typing import Any

import yaml

from memecmd_utils.chats.formats import NUMBER
from memecmd_utils.files import paths


@cache
def known() -> dict[str, Any]:
    """`data/chat_layouts.yaml`: layouts of tools, names of columns, and what stands for a picture."""
    return yaml.safe_load((paths.data / "chat_layouts.yaml").read_text(encoding="utf-8"))


# --- values


def value_at(row: Mapping[str, Any], name: str) -> Any:
    """The value of a field; of `content.text` that of the key within, also where `content` is JSON as text.

    None where it is missing.
    """
    if name in row:
        return row[name]
    for dot in re.finditer(r"\.", name) if "." in name else ():
        inner = row.get(name[: dot.start()])
        if isinstance(inner, str) and inner.startswith("{"):
            inner = parsed(inner)
        if isinstance(inner, Mapping) and (value := value_at(inner, name[dot.end() :])) is not None:
            return value
    return None


def parsed(text: str) -> Any:
    """The JSON value that a text is; None where it is none."""
    try:
        return json.loads(text)
    except ValueError:
        return None


def text_of(value: Any, joint: str = " ") -> str:
    """A value as text. A list of parts gives their texts, an object its name or text, null none."""
    if isinstance(value, str):
        # Half a surrogate pair cannot be written in any file, and a NUL is shown nowhere.
        text = value.strip(NUMBER).replace("\0", "")
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list):
        return joint.join(filter(None, (text_of(part, joint) for part in value)))
    if isinstance(value, Mapping):
        return first_text(value, ("nickname", "name", "text", "data.text", "username", "id"), joint)
    return str(value) if isinstance(value, int) else ""


def first_text(row: Mapping[str, Any], names: Sequence[str], joint: str = " ") -> str:
    """The first of these fields that is not empty, as text."""
    return next(filter(None, (text_of(value_at(row, name), joint).strip() for name in names)), "")


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
    if "[CQ:" in text:
        text = html.unescape(_CQ.sub("", text))
    if re.fullmatch(silent, text.strip()):
        return ""
    if has_quotes:
        text = among.sub("", _QUOTE.sub("", text))
    bare = text.strip()
    is_silent = whole.fullmatch(bare) or not CODE.sub("", among.sub("", bare)).strip()
    return "" if is_silent else text.strip(" \t\r\n")  # other blanks may be halves of UTF-8 read as Latin-1


# --- how tools write mentions, links and parts of a text

Names = Mapping[str, str]
"""Account to the name of its owner."""


def _qqnt(value: Any, row: Mapping[str, Any], names: Names) -> str:
    """Pairs of a text and its kind; a quoted message comes first."""
    pairs = [pair for pair in value if isinstance(pair, list) and pair] if isinstance(value, list) else []
    texts = [text_of(text) for text, *kind in pairs if not kind or kind[0] in (None, "", "text", "reply")]
    return "".join(text for text in texts if not text.startswith("[被引用的消息]"))


def _onebot(value: Any, row: Mapping[str, Any], names: Names) -> str:
    """The segments that are text, or a string with CQ codes, in which `&` and brackets are escaped."""
    if isinstance(value, list):
        return text_of(value, "")
    return html.unescape(_CQ.sub("", text_of(value)))


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
    mentions = value_at(row, "mentions") or value_at(row, "event.message.mentions") or []
    for mention in mentions if isinstance(mentions, list) else ():
        if key := first_text(mention, ["key"]):
            text = re.sub(re.escape(key) + r"(?!\d)", "@" + first_text(mention, ["name"]), text)
    return text


MARKUP: Mapping[str, Callable[[Any, Mapping[str, Any], Names], str]] = {
    "QQNT_Export": _qqnt,
    "OneBot": _onebot,
    "Slack": _slack,
    "Feishu": _feishu,
}
"""How a tool's text is read, where it is more than a string or a list of texts."""
