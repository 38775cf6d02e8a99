"""Chats as lines of text: how each tool begins a message, and what it writes that nobody says."""

import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from memecmd_utils.chats.layouts import known, spoken_text
from memecmd_utils.chats.turns import ME, OTHER, Message


class Form(NamedTuple):
    """How one tool writes a chat as text; `data/chat_layouts.yaml` says what each pattern means."""

    tool: str
    head: str
    above: str = r"\s*"
    stop: str = r"\Z"
    skip: str = r"\Z"
    silent: str = r"\s*"
    accounts: bool = False


@cache
def _forms() -> list[Form]:
    """The forms of `data/chat_layouts.yaml`, one for each head."""

    def whole(pattern: str) -> str:
        return re.sub(r"\{([a-z_]+)\}", lambda part: whole(known()["parts"][part[1]]), pattern)

    forms = []
    for row in known()["transcripts"]:
        heads, accounts = row["heads"], row.get("accounts", False)
        patterns = {key: whole(row[key]) for key in ("above", "stop", "skip", "silent") if key in row}
        forms += [Form(row["tool"], whole(head), accounts=accounts, **patterns) for head in heads]
    return forms


def parse(text: str) -> tuple[str, list[Message]] | None:
    """The tool that wrote a text, and its messages; None where no tool's form fits."""
    for form in _forms():
        heads = list(re.finditer(form.head, text, re.MULTILINE))
        if form.tool == "name: text":
            heads = _regular(heads, text)
        of_messages = [head for head in heads if not head.groupdict().get("chat")]
        spoken = [head for head in of_messages if head["speaker"]]
        if len(spoken) < 2 or 2 * len(spoken) < len(of_messages):
            continue
        above = re.sub(form.skip, "", text[: heads[0].start()], flags=re.MULTILINE)
        if re.fullmatch(form.above, above) or re.fullmatch(form.above, text[: heads[0].start()]):
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
        words = re.sub(form.skip, "", words, flags=re.MULTILINE).strip()
        if form.tool == "LINE" and re.fullmatch(r'"[^\n]*\n[\s\S]*"', words):
            words = words[1:-1].replace('""', '"')  # a text of several lines is quoted
        speaker, account = (head["speaker"] or "").strip("~\u200e\u200f\u202a\u202c \u00a0"), ""
        if form.accounts:
            speaker, account = _sender(speaker)
        yield Message(
            {"收": OTHER, "发": ME}.get(speaker, speaker) if form.accounts else speaker,
            spoken_text(words, has_quotes=True, silent=form.silent),
            chat=chat,
            place=line,
            account=account,
        )


def _sender(sender: str) -> tuple[str, str]:
    """A sender's name without quotes and rank, and the account: `【管理员】'小林'(12345)` is 小林, 12345."""
    text, account = re.sub(r"^【[^】]{1,8}】(?=.)", "", sender.strip().rstrip(":：")), ""
    name = re.fullmatch(r"(.*?)\s*(?:[(（]([^()（）]+)[)）]|<([^<>]+)>)", text)
    if name:
        account = name[2] or name[3]
        text = name[1] or account
    return text[1:-1] if len(text) > 2 and text[0] == text[-1] == "'" else text.strip(), account


_TELLS = re.compile(
    r"(?:[他她][^:：\n]*|[^:：\n]*(?:[说說道問问喊叫笑答想]|said|says|asked|replied))[:：][ \t]*[“「『\"]"
)


def _regular(heads: list[re.Match], text: str) -> list[re.Match]:
    """Heads of `name: text`; where many other lines stand between, a name that comes only once is words.

    None of a novel, which tells who says something, or of a list, in which most names come only once.
    """
    written = sum(bool(line.strip()) for line in text.split("\n"))
    names = Counter(head["speaker"].strip() for head in heads)
    is_list = len(heads) > 4 and 2 * list(names.values()).count(1) > len(heads)
    if is_list or any(_TELLS.match(text, head.start()) for head in heads):
        return []
    if 5 * len(heads) < 4 * written and len(heads) > 4:
        heads = [head for head in heads if names[head["speaker"].strip()] > 1]
    is_above = any(text[head.end() : head.end() + 1] == "\n" for head in heads)
    return heads if is_above or 2 * len(heads) >= written else []
