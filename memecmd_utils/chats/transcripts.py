"""Chats as lines of text, as chat programs and their exporters write them, and `name: text`."""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

from memecmd_utils.chats.messages import ME, OTHER

_DATE = r"\d{4}[-/.年]\d{1,2}[-/.月]\d{1,2}日?"
_CLOCK = r"\d{1,2}:\d{2}(?::\d{2})?"


class Entry(NamedTuple):
    """One message, and where its words stand in the text: lines [first, end)."""

    speaker: str
    text: str
    first: int
    end: int
    prefix: str = ""
    """What stands before the words, where sender and words share a line."""
    chat: str = "chat"


class Head(NamedTuple):
    """A line with which a message begins: its sender, and the words beside it, if they stand there."""

    line: int
    speaker: str
    words: str | None = None
    prefix: str = ""
    chat: str = "chat"


def parse(lines: Sequence[str]) -> tuple[str, list[Entry]] | None:
    """The tool that wrote these lines, and their messages; None where no tool's form fits."""
    for tool, reader in READERS:
        entries = reader(lines)
        if entries and any(entry.speaker and entry.text.strip() for entry in entries):
            return tool, entries
    return None


def _entries(
    lines: Sequence[str], heads: Sequence[Head], stop: Callable[[str], bool] = lambda line: False
) -> list[Entry]:
    """Messages from their heads: the words of each end before the next head, or at a line that stops them."""
    entries = []
    for number, head in enumerate(heads):
        first = head.line + (head.words is None)
        last = heads[number + 1].line if number + 1 < len(heads) else len(lines)
        end = next((n for n in range(first + (head.words is not None), last) if stop(lines[n])), last)
        while end > first + 1 and not lines[end - 1].strip():
            end -= 1
        below = lines[head.line + 1 : end]
        words = below if head.words is None else [head.words, *below]
        entries.append(Entry(head.speaker, "\n".join(words).strip(), first, end, head.prefix, head.chat))
    return entries


# --- qq-chat-exporter: a line for each field

_FIELD = re.compile(r"(?:资源|提及|回复): ?|  - |={5,}")


def _qce(lines: Sequence[str]) -> list[Entry]:
    heads, words_at = [], {}
    for n, line in enumerate(lines[:-1]):
        name = re.fullmatch(r"(\S.*):", line.rstrip())
        if name and re.match(r"时间: ", lines[n + 1]):
            has_words = n + 2 < len(lines) and lines[n + 2].startswith("内容: ")
            heads.append(n)
            words_at[n] = (name[1], n + 2 if has_words else None)
    entries = []
    for number, head in enumerate(heads):
        speaker, at = words_at[head]
        last = heads[number + 1] if number + 1 < len(heads) else len(lines)
        if at is None:
            entries.append(Entry(speaker, "", head + 2, head + 2))
            continue
        end = next((n for n in range(at + 1, last) if _FIELD.match(lines[n])), last)
        while end > at + 1 and not lines[end - 1].strip():
            end -= 1
        words = [lines[at].removeprefix("内容: "), *lines[at + 1 : end]]
        entries.append(Entry(speaker, "\n".join(words).strip(), at, end, "内容: "))
    return entries


# --- a line of time and name (QQ, WeFlow, QQNT_Export) or of name and time (chatlog, WeChat) above the words

_ABOVE = re.compile(rf"(?:{_DATE})\s+{_CLOCK}\s+(\S.*)")
_CHATLOG = re.compile(rf"(?!>)(\S.*?)\s+(?:\[[^\]]*\]\s+)?(?:(?:{_DATE}|\d{{1,2}}-\d{{1,2}})\s+)?{_CLOCK}")
_OBJECT = re.compile(r"消息对象\s*[:：]\s*(\S.*?)\s*")
_PREAMBLE = re.compile(r"消息记录.*|=+|消息(?:分组|对象)\s*[:：].*|.*聊天记录.*|\s*")


def sender(text: str) -> str:
    """A sender's name without quotes, account number, address or rank: `【管理员】'小林'(12345)` is 小林."""
    text = re.sub(r"^【[^】]{1,8}】(?=.)", "", text.strip())
    name = re.fullmatch(r"(.*?)\s*(?:[(（]([^()（）]+)[)）]|<([^<>]+)>)", text)
    if name:
        text = name[1] or name[2] or name[3]
    return text[1:-1] if len(text) > 2 and text[0] == text[-1] == "'" else text.strip()


def _above(lines: Sequence[str]) -> list[Entry]:
    heads, chat = [], "chat"
    for n, line in enumerate(lines):
        named, match = _OBJECT.fullmatch(line), _ABOVE.fullmatch(line.rstrip())
        if named:
            chat = named[1]
        elif match and not re.search(r"[:：]\s*\S", match[1]):
            speaker = {"收": OTHER, "发": ME}.get(match[1].strip(), sender(match[1]))
            heads.append(Head(n, speaker, chat=chat))
    if not heads or any(not _PREAMBLE.fullmatch(line) for line in lines[: heads[0].line]):
        return []
    return _entries(
        lines, heads, lambda line: _OBJECT.fullmatch(line) is not None or re.match(r"={5,}", line) is not None
    )


def _chatlog(lines: Sequence[str]) -> list[Entry]:
    heads = []
    for n, line in enumerate(lines):
        match = _CHATLOG.fullmatch(line.rstrip())
        alone = n == 0 or not lines[n - 1].strip()
        if match and alone and not re.search(r"[，。！？,!?]", match[1]):
            account = re.fullmatch(r"(.*)\(我\)", match[1])
            heads.append(Head(n, account[1] if account else sender(match[1])))
    if len(heads) < 2 or any(line.strip() for line in lines[: heads[0].line]):
        return []
    return _entries(lines, heads)


# --- LINE: days on lines of their own, then time, name and words

_LINE_DAY = re.compile(
    rf"{_DATE}\s*[(（]?\s*(?:[一二三四五六日月火水木金土天]|星期.|[月火水木金土日]曜日|周.|Mon|Tue|Wed|Thu|Fri|Sat|Sun)?\s*[)）]?"
)


def _line(lines: Sequence[str]) -> list[Entry]:
    has_head = any(line.lstrip("\ufeff").startswith("[LINE]") for line in lines[:2])
    between = "\t" if any(re.match(rf"(?:上午|下午)?\s*{_CLOCK}\t[^\t]+\t", line) for line in lines) else " "
    if not has_head and between == " ":
        return []
    heads = []
    for n, line in enumerate(lines):
        match = re.fullmatch(
            rf"((?:上午|下午)?\s*{_CLOCK}{between})([^{between}]+){between}(.+)", line.rstrip()
        )
        if match:
            heads.append(Head(n, match[2].strip(), match[3], match[1] + match[2] + between))
        elif re.match(rf"(?:上午|下午)?\s*{_CLOCK}{between}", line):
            heads.append(Head(n, "", line))
    return _entries(lines, heads, lambda line: _LINE_DAY.fullmatch(line.strip()) is not None) if heads else []


# --- WhatsApp and others: time, name and words on one line

_STAMP = re.compile(
    rf"[\u200e\u200f]?[\[【]?(?:{_DATE}|\d{{1,2}}[./-]\d{{1,2}}[./-]\d{{2,4}})[,，]?\s+(?:上午|下午|凌晨|早上|中午|晚上)?\s*{_CLOCK}"
    r"(?:\s*[AaPp]\.?\s?[Mm]\.?)?[\]】]?\s*(?:[-–—]\s+)?"
)
_NAMED = re.compile(r"([^:：]{1,40})[:：](?!//)\s*(.*)")


def _stamped(lines: Sequence[str]) -> list[Entry]:
    heads = []
    for n, line in enumerate(lines):
        stamp = _STAMP.match(line)
        if not stamp:
            continue
        rest = line[stamp.end() :]
        named = _NAMED.fullmatch(rest.rstrip())
        if named:
            speaker = re.sub(r"^[~\u200e\u202a\s]+|[\u202c\s]+$", "", named[1])
            words = named[2]
            heads.append(Head(n, speaker, words, line.rstrip()[: len(line.rstrip()) - len(words)]))
        else:
            heads.append(Head(n, "", rest))
    spoken = [head for head in heads if head.speaker]
    if not spoken or 2 * len(spoken) < len(heads) or any(line.strip() for line in lines[: heads[0].line]):
        return []
    return _entries(lines, heads)


# --- name: text

_SENTENCE = re.compile(r"[，。！？；、,!?;…~“”\"()（）\[\]【】<>]")


def _plain(lines: Sequence[str]) -> list[Entry]:
    heads, written = [], 0
    for n, line in enumerate(lines):
        written += bool(line.strip())
        match = re.fullmatch(r"\s*([^:：]{1,20})[:：](?!//)\s*(.*)", line.rstrip())
        if match and not _SENTENCE.search(match[1]):
            words = match[2]
            prefix = line.rstrip()[: len(line.rstrip()) - len(words)]
            heads.append(Head(n, match[1].strip(), words or None, prefix if words else ""))
    names = Counter(head.speaker for head in heads)
    # Names come again, and what is no name of a message is rarely at the head of a line.
    regular = [head for head in heads if names[head.speaker] > 1 or len(heads) <= 4]
    first = next((n for n, line in enumerate(lines) if line.strip()), None)
    if len(regular) < 2 or regular[0].line != first:
        return []
    alone = sum(head.words is None for head in regular)
    return _entries(lines, regular) if alone or 2 * len(regular) >= written else []


READERS: tuple[tuple[str, Callable[[Sequence[str]], list[Entry]]], ...] = (
    ("qq-chat-exporter", _qce),
    ("LINE", _line),
    ("WhatsApp", _stamped),
    ("QQ, WeFlow or QQNT_Export", _above),
    ("chatlog", _chatlog),
    ("name: text", _plain),
)
