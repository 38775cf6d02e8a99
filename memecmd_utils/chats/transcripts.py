"""Chats as lines of text: how each tool begins a message, and what it writes that nobody says."""

import re
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from memecmd_utils.chats.turns import ME, OTHER, Message

_DAY = r"\d{1,4}\u200f?[-/.年]\s?\d{1,2}\u200f?[-/.月]\s?\d{1,4}日?\.?"
_CLOCK = r"\d{1,2}[:.]\d{2}(?:[:.]\d{2})?"
# The day comes first, or in some languages the time; beside them stand words such as klo, 下午, p. m.
_STAMP = (
    rf"[\u200e\u200f]*[\[【]?(?:{_DAY}[^\d\n\]】:]{{0,12}}{_CLOCK}|{_CLOCK},? {_DAY})"
    r"(?:\s?(?:[AaPp]\.?\s?[Mm]\.?|[صم]|Uhr|h|ч\.))?(?:[\]】]\s*|\s+[-–—]\s+|\s+)[\u200e\u200f]*"
)


class Form(NamedTuple):
    """How one tool writes a chat as text."""

    tool: str
    head: str
    """What stands before the words of a message, with its `speaker`; without one it is a note of the app."""
    above: str = r"\s*"
    """All that may stand above the first message."""
    stop: str = r"\Z"
    """A line that is no longer part of the words."""
    silent: str = r"\s*"
    """Words that stand for a picture or a note."""
    has_accounts: bool = False
    """Whether a number or an address stands beside the speaker's name."""


FORMS = (
    Form(
        "qq-chat-exporter",
        r"^(?P<speaker>\S.*):[ \t]*\n时间: .*(?:\n(?:提及|回复): .*)*(?:\n内容: ?)?",
        above=r"[\s\S]*",
        stop=r"\n(?:(?:资源|提及|回复): ?|  - |={5,})",
    ),
    Form(
        "LINE",
        rf"^(?:(?:上午|下午|午前|午後)\s*)?{_CLOCK}(?:\s?[AP]M)?(?P<gap>[\t ])"
        r"(?:(?P<speaker>[^\t\n]+?)(?P=gap))?",
        above=r"\s*\[LINE\][\s\S]*",
        stop=rf"\n(?:\w{{2,4}}[.,]+ ?)?{_DAY}\s*[(（]?[^\W\d]*[)）]?$",
    ),
    Form(
        "WhatsApp",
        rf"^{_STAMP}(?:(?P<speaker>[^:：\n\"“”]{{1,40}})[:：](?!//)[ \t]*)?",
        # Notes and omitted media begin with a mark that nobody types, or stand in <> (in any language).
        stop=r"\s*\u200e?<[^<>\n]*(?:edited|editad|bearbeitet|modifi|编辑|編輯)[^<>\n]*>\s*\Z",
        silent=r"\u200e.*|<[^<>\n]+>|(?:IMG|VID|AUD|PTT|STK|DOC)-\d+-WA\d+\.\w+ \(.*\)[\s\S]*|null",
    ),
    Form(
        "QQ, WeFlow or QQNT_Export",
        r"^消息对象\s*[:：]\s*(?P<chat>\S.*?)[ \t]*$|"
        rf"^{_DAY}\s+{_CLOCK}[ \t]+(?P<speaker>(?!.*[:：]\s*\S)\S.*)$",
        above=r"(?:(?:消息记录.*|=+|消息分组.*|.*聊天记录.*|[ \t]*)\n)*",
        stop=r"\n(?:={5,}|消息分组\s*[:：])",
        has_accounts=True,
    ),
    Form(
        "chatlog",
        r"(?:\A|(?<=\n\n))(?!>)(?P<speaker>\S[^，。！？,!?\n]*?)[ \t]+(?:\[[^\]\n]*\][ \t]+)?"
        rf"(?:(?:{_DAY}|\d{{1,2}}-\d{{1,2}})[ \t]+)?{_CLOCK}[ \t]*$",
        has_accounts=True,
    ),
    Form(
        "name: text",
        r"^[ \t]*(?P<speaker>[^:：\n，。！？；、,!?;…~“”\"()（）\[\]【】<>]{1,20})[:：](?!//)[ \t]*",
    ),
)


def parse(text: str) -> tuple[str, list[Message]] | None:
    """The tool that wrote a text, and its messages; None where no tool's form fits."""
    for form in FORMS:
        heads = list(re.finditer(form.head, text, re.MULTILINE))
        if form.tool == "name: text":
            heads = _regular(heads, text)
        of_messages = [head for head in heads if not head.groupdict().get("chat")]
        spoken = [head for head in of_messages if head["speaker"]]
        if len(spoken) < 2 or 2 * len(spoken) < len(of_messages):
            continue
        if re.fullmatch(form.above, text[: heads[0].start()]):
            return form.tool, list(_messages(form, heads, text))
    return None


def _messages(form: Form, heads: list[re.Match], text: str) -> Iterator[Message]:
    """Each head's message: its words go to the next head or to a line that stops them."""
    line, at, chat = 0, 0, "chat"
    ends = [*(head.start() for head in heads[1:]), len(text)]
    for head, end in zip(heads, ends, strict=True):
        line, at = line + text.count("\n", at, head.start()), head.start()
        chat = head.groupdict().get("chat") or chat
        if chat == head.groupdict().get("chat"):
            continue
        words = re.split(form.stop, text[head.end() : end], maxsplit=1, flags=re.MULTILINE)[0].strip()
        speaker = (head["speaker"] or "").strip("~\u200e\u200f\u202a\u202c \u00a0")
        if form.has_accounts:
            speaker = {"收": OTHER, "发": ME}.get(speaker, _name(speaker))
        yield Message(speaker, "" if re.fullmatch(form.silent, words) else words, chat=chat, place=line)


def _name(sender: str) -> str:
    """A sender's name without quotes, account number, address or rank: `【管理员】'小林'(12345)` is 小林."""
    text = re.sub(r"^【[^】]{1,8}】(?=.)", "", sender.strip())
    name = re.fullmatch(r"(.*?)\s*(?:[(（]([^()（）]+)[)）]|<([^<>]+)>)", text)
    if name:
        text = name[1] or name[2] or name[3]
    return text[1:-1] if len(text) > 2 and text[0] == text[-1] == "'" else text.strip()


def _regular(heads: list[re.Match], text: str) -> list[re.Match]:
    """Heads of `name: text`; where many other lines stand between, a name that comes only once is words."""
    written = sum(bool(line.strip()) for line in text.split("\n"))
    names = Counter(head["speaker"].strip() for head in heads)
    if 5 * len(heads) < 4 * written and len(heads) > 4:
        heads = [head for head in heads if names[head["speaker"].strip()] > 1]
    is_above = any(text[head.end() : head.end() + 1] == "\n" for head in heads)
    return heads if is_above or 2 * len(heads) >= written else []
