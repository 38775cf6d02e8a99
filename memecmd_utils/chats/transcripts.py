"""Chats as text: what QQ, WeChat, WhatsApp, LINE and others copy and export, and plain `name: text`.

A message begins with a line that names its sender, with or without a time; one form of that line goes
through a whole text. Which form it is, is decided by the text as a whole, because a single line rarely tells:
`小王 12:30` begins a message in one chat and is said in another.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from memecmd_utils.chats import columns, formats
from memecmd_utils.chats.columns import Cell, Place
from memecmd_utils.chats.formats import FLAGS, STAMP, Stamp
from memecmd_utils.chats.messages import ChatError

_OPEN, _CLOSE = r"(?:[\[(【]\s*)?", r"(?:\s*[\])】])?"
_BEFORE = re.compile(rf"\s*{_OPEN}{STAMP}{_CLOSE}(?:\s*[-–—,|]\s*|\s+|(?<=[\])】]))(?P<rest>\S.*)", FLAGS)
_AFTER = re.compile(
    rf"\s*(?P<name>\S.{{0,80}}?)(?:\s*[,:|·•—–-]\s*|\s+|(?=[\[(【])){_OPEN}{STAMP}{_CLOSE}\s*(?::\s*(?P<rest>\S.*)?)?",
    FLAGS,
)
_BRACKETS = re.compile(rf"\s*\[(?P<name>[^\]]+)\]\s*\[{STAMP}\]\s*(?P<rest>\S.*)", FLAGS)
_ACCOUNT = re.compile(r"(?P<name>.*?)\s*(?:\((?P<number>\d{5,})\)|<(?P<mail>[^\s<>]+@[^\s<>]+)>)")
"""A name as QQ writes it, with a number or an address of its own. A rank, 【管理员】, may stand before."""
_RANK = re.compile(r"【[^】]{1,8}】(?=.)")
_PREAMBLE = re.compile(
    r"\s*(?:.{0,40}(?:聊天|消息|訊息)[记記][录錄]|消息分组|消息对象|\[LINE\]|保存日時|儲存日期|儲存時間|"
    r"Saved on|Chat history|Date Saved|저장한 날짜|.{1,60}님과 카카오톡 대화|[-=—–─━*_~]{3,}\s*$).*",
    re.IGNORECASE,
)
_OBJECT = re.compile(r"\s*消息对象\s*:\s*(?P<name>.+?)\s*")
"""With whom the messages below are, in an export of all of QQ's chats."""
_BETWEEN = re.compile(r"\s*(?:={5,}|消息分组\s*:.*|消息对象\s*:.*)\s*")
_SOON = re.compile(
    r"(?:明天|后天|後天|大后天|明早|明晚|今晚|今早|早上|上午|中午|下午|傍晚|晚上|凌晨|周末|週末|大概|大约|大約|约|"
    r"下?个?(?:周|週|星期|礼拜)[一二三四五六日天末]|tomorrow|tonight|at|around|about|\s)+",
    re.IGNORECASE,
)
"""Words that stand before a time which is said, and are no name."""
_MEME = re.compile(r"(?:.*[:：\s\]])?\[meme [^\[\]]+: [^\[\]]+\]\s*")
"""A line that `Transcript.render` wrote."""
_NO_NAME = re.compile(r"[，。！？；、,!?;…~“”\"()（）]")
_COLON = re.compile(r"[:：](?!//)")
_LONGEST_NAME = 20


class Entry(NamedTuple):
    """One message, with its lines in the text: [first, end)."""

    speaker: str
    text: str
    first: int
    end: int
    prefix: str = ""
    """What stands before the text on the first line, where sender and text share it."""
    chat: str = "chat"
    head: int = 1
    """Lines above the text, where it stands on lines of its own."""


@dataclass(frozen=True)
class Transcript:
    """A chat as lines of text, and its messages."""

    lines: list[str]
    """As they stood, with their line breaks; without the memes of an earlier insertion."""
    messages: list[Entry]

    def cells(self, name: str, _given: Mapping[str, str]) -> tuple[list[Cell], str]:
        """The messages, and what they were told apart by, in words."""
        clean = columns.text_of
        cells = [
            Cell(
                Place(number),
                f"{name} line {m.first + 1}",
                clean(m.chat),
                columns.clean_message(clean(m.speaker), clean(m.text)),
            )
            for number, m in enumerate(self.messages)
        ]
        first = self.messages[0]
        told = f"messages begin as {(first.prefix or self.lines[first.first]).strip()!r} does"
        above = sum(bool(line.strip()) for line in self.lines[: first.first])
        return cells, told + (f", {above} lines above the first left out" if above else "")

    def render(self, memes: Mapping[Place, Mapping[str, Any]], position: str = "before") -> str:
        """The text with a line `[meme ID: FILE]` before or after the text of each message with a meme."""
        out = list(self.lines)
        newline = next((end for line in out if (end := line[len(line.rstrip("\r\n")) :])), "\n")
        for place, meme in sorted(memes.items(), reverse=True):
            message = self.messages[place.record]
            head = 0 if message.prefix else message.head
            at = message.end if position == "after" else message.first + head
            shown = re.sub(r"[\[\]\s]+", " ", str(meme["meme_id"]))
            line = f"{message.prefix}[meme {shown}: {meme['meme_file']}]"
            ended = not at or out[at - 1].endswith(("\n", "\r"))  # the last line of a text may have no break
            out.insert(at, line + newline if ended else newline + line)
        return "".join(out)


class _Head(NamedTuple):
    """A line that may begin a message."""

    line: int
    name: str
    text: str | None
    """None where the text stands on the lines below."""
    stamp: Stamp | None = None
    account: str = ""
    prefix: str = ""
    lines: int = 1
    """How many it takes."""

    @property
    def strong(self) -> bool:
        """Whether nobody says such a line in a chat."""
        return bool(self.account) or (self.stamp is not None and self.stamp.has_year)


def split(text: str) -> list[str]:
    """Lines of a text with their breaks."""
    return re.findall(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+\Z", text)


def read(text: str, name: str) -> Transcript:
    """Read a text file. A line that begins no message goes on with the one before.

    Raises `ChatError` where no form of such lines is recognised.
    """
    found = parse(text)
    if found is not None:
        return found
    lines = _without_memes(text)
    heads = [
        _Head(number, name, words, prefix=line[: len(line.rstrip()) - len(words)])
        for number, (line, (name, words)) in enumerate(zip(lines, labels(lines), strict=True))
        if name
    ]
    if len(heads) < 2:
        raise ChatError(
            f"{name}: a table is expected, with columns such as `speaker,text`, or a chat as text, each "
            "message as `name: text` or below a line such as `2024-05-01 12:30:11 name`"
        )
    return _transcript(lines, heads)


def parse(text: str) -> Transcript | None:
    """Read a text whose messages begin with a line of name and time, or of a name alone; None for another."""
    lines = _without_memes(text)
    named = labels(lines)
    best: list[_Head] = []
    forms = (
        _before(lines),
        _after(lines, own=True),
        _after(lines, own=False),
        _bracketed(lines),
        _stacked(lines),
    )
    for heads in forms:
        if len(heads) > len(best) and _plausible(heads, lines):
            best = heads
    said = [n for n, (name, words) in enumerate(named) if name and words and not formats.whole(words)]
    both = {head.line for head in best if not head.account} & set(said)
    # `name: text` may end with a time in many a line, too.
    written = sum(bool(line.strip()) for line in lines)
    labelled = 2 * len(both) >= len(best) and 3 * len(said) >= 2 * written
    by_time = 2 * sum(head.strong for head in best) >= len(best) or len(best) >= len(said) - len(both)
    if best and by_time and not labelled and not _named_above(best, named, lines):
        heads = _accepted(best, lines)
        if heads:
            return _transcript(lines, heads)
    alone = [_Head(number, name, None) for number, (name, words) in enumerate(named) if name and not words]
    if len(alone) >= 2 and len(alone) > len(said) and _plausible(alone, lines):
        return _transcript(lines, alone)
    return None


def _named_above(heads: Sequence[_Head], named: Sequence[tuple[str, str]], lines: Sequence[str]) -> bool:
    """Whether names with a colon stand above the first head, and more often than there are heads.

    Then it is they who begin the messages, and one says when a meeting is.
    """
    first = heads[0].line
    above = {name for (name, _), line in zip(named[:first], lines, strict=False) if name and not _aside(line)}
    return sum(name in above for name, _ in named) > len(heads)


def _without_memes(text: str) -> list[str]:
    return [line for line in split(text) if _MEME.fullmatch(line) is None]


# --- lines that may begin a message -------------------------------------------------------------------


def _looked_at(line: str) -> str:
    """A line to be looked at, empty where long gaps show that it is none of these and would take long."""
    return "" if re.search(r"\s{16}", line) else formats.plain(line)


def _timed(found: re.Match[str] | None) -> Stamp | None:
    """The stamp of a match, if it has a time of day."""
    stamp = None if found is None else formats.stamp(found)
    return stamp if stamp is not None and stamp.seconds is not None else None


def _sender(name: str) -> tuple[str, str]:
    """Name and account, without a rank."""
    name = name.strip(" \t\u200e\u200f\u202a\u202c\u2068\u2069\u00a0\u3000")
    found = _ACCOUNT.fullmatch(formats.plain(name))
    if found is None:
        return name, ""
    name = _RANK.sub("", name[: found.end("name")], count=1)
    return name.strip() or found["number"] or found["mail"], found["number"] or found["mail"]


def _before(lines: Sequence[str]) -> list[_Head]:
    """Time, name and, on the same line or below, the text."""
    found = []
    for number, line in enumerate(lines):
        line = line.rstrip("\r\n")
        match = _BEFORE.fullmatch(_looked_at(line))
        stamp = _timed(match)
        if match is not None and stamp is not None and not formats.whole(line):
            found.append((number, line, line[match.start("rest") :], stamp))
    dated = [one for one in found if one[3].has_year]
    found = dated if 2 * len(dated) >= len(found) else found
    if not found:
        return []
    rests = [rest for *_, rest, _ in found]
    # Whether texts stand below these lines, or on them.
    at = {number for number, *_ in found}
    below = [next((n for n in range(number + 1, len(lines)) if lines[n].strip()), 0) for number in at]
    beside = 2 * sum(n > 0 and n not in at and _day(lines[n]) is None for n in below) < len(at)
    if 2 * sum(bool(_sender(rest)[1]) for rest in rests) < len(rests):
        colons = _names(rests, sure=True)
        for parts in ([rest.split("\t", 1) if "\t" in rest.strip() else None for rest in rests], colons):
            named = sum(part is not None for part in parts)
            # A name with a colon comes again, with what somebody says it does not.
            again = 2 * len(set(rests)) <= len(rests) + 1
            if 2 * named >= len(parts) and (beside or (2 * named > len(parts) and not again)):
                return _inline(found, parts)
        if beside and len(found) > 1:  # LINE on a computer: only blanks between
            return _inline(found, _words(rests))
    return [
        _Head(number, *((sender := _sender(rest))[0], None), stamp, sender[1])
        for number, _, rest, stamp in found
    ]


def _words(rests: Sequence[str]) -> list[tuple[str, str] | None]:
    """Name and text, a blank between; a name has more than one word where all that begin so go on alike."""
    out: list[tuple[str, str] | None] = []
    split = [rest.split() for rest in rests]
    counts = Counter(tuple(words[:n]) for words in split for n in range(1, min(4, len(words))))
    for rest, words in zip(rests, split, strict=True):
        n = 1
        while n < 3 and len(words) > n + 1 and counts[tuple(words[: n + 1])] == counts[tuple(words[:n])] > 2:
            n += 1
        parts = rest.split(None, n)
        out.append((" ".join(words[:n]), parts[n]) if len(parts) > n else None)
    return out


def _inline(found: Sequence[tuple[int, str, str, Stamp]], parts: Sequence[Any]) -> list[_Head]:
    """Heads with their text; a line without a name is a note of the program."""
    heads = []
    for (number, line, rest, stamp), part in zip(found, parts, strict=True):
        name, text = ("", rest) if part is None else part
        name, account = _sender(name)
        heads.append(
            _Head(number, name, text.strip(), stamp, account, line[: len(line) - len(text.lstrip())])
        )
    return heads


def _after(lines: Sequence[str], own: bool) -> list[_Head]:
    """Name and time, and the text below (`own` lines) or after a colon."""
    heads = []
    for number, line in enumerate(lines):
        line = line.rstrip("\r\n")
        match = _AFTER.fullmatch(_looked_at(line).rstrip())
        stamp = _timed(match)
        if match is None or stamp is None or (match["rest"] is None) is not own or formats.whole(line):
            continue
        name, account = _sender(line[: match.end("name")])
        if _SOON.fullmatch(name) or formats.whole(name):
            continue
        text = None if own else line[match.start("rest") :].strip()
        prefix = "" if text is None else line[: match.start("rest")]
        heads.append(_Head(number, name, text, stamp, account, prefix))
    return heads


def _bracketed(lines: Sequence[str]) -> list[_Head]:
    """Name and time, each in brackets, then the text: KakaoTalk."""
    heads = []
    for number, line in enumerate(lines):
        match = _BRACKETS.fullmatch(_looked_at(line.rstrip("\r\n")))
        stamp = _timed(match)
        if match is not None and stamp is not None:
            at = match.start("rest")
            name = line[match.start("name") : match.end("name")].strip()
            heads.append(_Head(number, name, line[at:].strip(), stamp, "", line[:at]))
    return heads


def _stacked(lines: Sequence[str]) -> list[_Head]:
    """A name alone on its line and a time alone on the next: Slack and others.

    Of all such times, and where names come again: else it is a time that stands between two utterances.
    """
    heads = []
    for number, line in enumerate(lines):
        stamp = _day(line)
        if stamp is None or stamp.seconds is None:
            continue
        name = lines[number - 1].strip() if number else ""
        if not name or len(name) > 2 * _LONGEST_NAME or _COLON.search(name) or _NO_NAME.search(name[-1:]):
            return []
        heads.append(_Head(number - 1, name, None, stamp, lines=2))
    above = [line for line in lines[: heads[0].line] if line.strip() and not _aside(line)] if heads else []
    distinct = len({head.name for head in heads})
    return heads if len(heads) > 2 and 2 * distinct <= len(heads) + 1 and not above else []


def _plausible(heads: Sequence[_Head], lines: Sequence[str]) -> bool:
    """Whether these lines can be what messages begin with: the first of the text is one, and text follows."""
    if len(heads) < 2 and not (heads and heads[0].strong):
        return False
    title = [line for line in lines[: heads[0].line] if line.strip() and not _aside(line)]
    again = max(Counter(head.name for head in heads).values()) > 1
    if title and not heads[0].strong and not (len(title) <= 3 <= len(heads) and again):
        return False
    if heads[0].text is not None:
        return True
    at = {head.line for head in heads}
    followed = 0
    for head in heads:
        below = next((n for n in range(head.line + 1, len(lines)) if lines[n].strip()), None)
        followed += below is not None and below not in at
    return 2 * followed >= len(heads)


def _aside(line: str) -> bool:
    """A day or a time on a line of its own, a rule, or what programs write at the head of a file."""
    return _day(line) is not None or _PREAMBLE.fullmatch(line.rstrip("\r\n")) is not None


def _day(line: str) -> Stamp | None:
    return formats.whole(line.strip().strip("-=—–─━*_~· \t"))


def _says_day(stamp: Stamp) -> bool:
    return stamp.dated or stamp.match["relative"] is not None


def _accepted(heads: Sequence[_Head], lines: Sequence[str]) -> list[_Head]:
    """Those heads that are none of the text: a time may end, or begin, what somebody says."""
    exact = [head.stamp is not None and head.stamp.precise for head in heads]
    usual = 2 * sum(exact) >= len(heads)
    counts = Counter(head.name for head, precise in zip(heads, exact, strict=True) if precise is usual)
    often = max(1, len(heads) // 10)
    dated = [place for place, head in enumerate(heads) if head.stamp is not None and _says_day(head.stamp)]
    last_day = dated[-1] if 2 * len(dated) >= len(heads) else -1  # below it, the times are today's
    days = set(dated)
    sure: list[_Head | None] = [None]  # the next head, from the last line up, that is none of the text
    for head in reversed(heads):
        sure.append(head if counts[head.name] > often or head.strong else sure[-1])
    out: list[_Head] = []
    for place, (head, precise) in enumerate(zip(heads, exact, strict=True)):
        if not head.account and counts[head.name] <= (often if precise is usual else 0):
            # A name that hardly any other line has, or a time in another form than the others.
            if precise is not usual or _directly_below(out, head, lines):
                continue
            later = sure[len(heads) - place - 1]
            fits = _between(out, head, later) and (place >= last_day or place in days)
            # A sentence may end so before a time, but not before one with seconds or before a tab.
            ends = not precise and not head.prefix.endswith("\t") and _NO_NAME.search(head.name[-1:])
            if not head.strong and (ends or not fits):
                continue
        out.append(head)
    return out


def _directly_below(before: Sequence[_Head], head: _Head, lines: Sequence[str]) -> bool:
    """Whether nothing is said between the head before, whose text stands below it, and this one."""
    if not before or before[-1].text is not None:
        return False
    return not any(line.strip() for line in lines[before[-1].line + 1 : head.line])


def _between(before: Sequence[_Head], head: _Head, later: _Head | None) -> bool:
    """Whether the time of a head fits between those around it; only times without a day are compared."""
    around = [before[-1] if before else None, later]
    seconds = [h.stamp.seconds for h in around if h and h.stamp and not h.stamp.dated]
    mine = head.stamp.seconds if head.stamp is not None and not head.stamp.dated else None
    if len(seconds) < 2 or mine is None or seconds[0] > seconds[1]:
        return True
    return seconds[0] <= mine <= seconds[1]


# --- messages -----------------------------------------------------------------------------------------


def _transcript(lines: list[str], heads: Sequence[_Head]) -> Transcript:
    plain = [formats.plain(line.rstrip("\r\n")) for line in lines]
    # Heads that name the day themselves need no line for it between them, unless it is drawn as a rule.
    days = 2 * sum(head.stamp is not None and _says_day(head.stamp) for head in heads) < len(heads)
    objects = {n: m["name"] for n, line in enumerate(plain) if (m := _OBJECT.fullmatch(line))}
    chats = dict(zip(objects, columns.unique(list(objects.values())), strict=True))
    starts = [*(head.line for head in heads), len(lines)]
    timed = heads[0].stamp is not None
    people = _people(heads)
    messages = []
    for place, head in enumerate(heads):
        texts = [head.text] if head.text else []
        body = range(head.line + head.lines, starts[place + 1])
        rest = [n for n in body if lines[n].strip() and not (objects and _BETWEEN.fullmatch(plain[n]))]
        # A day that stands alone between two messages belongs to neither.
        while rest and (head.text is not None or len(rest) > 1):
            found = _day(lines[rest[-1]])
            ruled = lines[rest[-1]].strip()[:1] in "-=—–─━*_~"
            if found is None or (timed and not (_says_day(found) and (days or ruled))):
                break
            rest.pop()
        texts += [lines[n].strip() for n in rest]
        last = rest[-1] + 1 if rest else head.line + head.lines
        chat = next((chats[n] for n in reversed(chats) if n < head.line), "chat")
        speaker = people[head.name, head.account]
        messages.append(Entry(speaker, "\n".join(texts), head.line, last, head.prefix, chat, head.lines))
    return Transcript(lines, messages)


def _people(heads: Sequence[_Head]) -> dict[tuple[str, str], str]:
    """Name and account to one name for each person: an account keeps the first name it had."""
    names: dict[str, str] = {}
    for head in heads:
        if head.account and (head.account not in names or names[head.account] == head.account):
            names[head.account] = head.name
    shared = Counter(names.values())
    first = {name: account for account, name in reversed(names.items())}
    out = {}
    for head in heads:
        name = names.get(head.account, head.name)
        alone = not head.account or shared[name] == 1 or first[name] == head.account
        out[head.name, head.account] = name if alone else f"{name} ({head.account})"
    return out


# --- name: text ---------------------------------------------------------------------------------------


def labels(lines: Sequence[str]) -> list[tuple[str, str]]:
    """Name and words of each line; no name where the colon belongs to a time, an address or a sentence."""
    texts = [line.strip() for line in lines]
    found = _names(texts, sure=False)
    return [part or ("", text) for text, part in zip(texts, found, strict=True)]


def is_between(labelled: Sequence[tuple[str, str]], place: int) -> bool:
    """Whether a line without a name is a day or a time that stands between two messages.

    In a chat without any names a time alone may be an answer, and so may a day.
    """
    found = _day(labelled[place][1])
    if found is None:
        return False
    if not any(name for name, _ in labelled):
        return _says_day(found) and found.seconds is not None
    below = next(((name, words) for name, words in labelled[place + 1 :] if name or words), None)
    return below is None or bool(below[0]) or _day(below[1]) is not None


def _names(texts: Sequence[str], sure: bool) -> list[tuple[str, str] | None]:
    """Name and text on both sides of a colon.

    A name may hold a colon itself where all lines that begin with its first part go on alike. `sure`: what
    stands before the first colon is a name, however it looks.
    """
    cuts = [[m.start() for m in list(_COLON.finditer(text))[:4] if 0 < m.start() <= 60] for text in texts]
    full = [
        [cut for cut in at if text[cut] == "：" and (sure or _looks_like_a_name(text, cut))]
        for text, at in zip(texts, cuts, strict=True)
    ]
    if sum(map(bool, full)) == sum(map(bool, cuts)):
        cuts = full
    if sure:  # a colon with a blank, where nearly all have one
        blank = [
            [cut for cut in at if text[cut + 1 : cut + 2] == " "]
            for text, at in zip(texts, cuts, strict=True)
        ]
        if 3 * sum(map(bool, blank)) >= 2 * sum(map(bool, cuts)):
            cuts = [some or at for some, at in zip(blank, cuts, strict=True)]
    counts = Counter(text[:cut].strip() for text, at in zip(texts, cuts, strict=True) for cut in at)
    plain = {
        text[: at[0]].strip()
        for text, at in zip(texts, cuts, strict=True)
        if at and _looks_like_a_name(text, at[0])
    }
    out: list[tuple[str, str] | None] = []
    for text, at in zip(texts, cuts, strict=True):
        if not at:
            out.append(None)
            continue
        place, name = 0, text[: at[0]].strip()
        if not (sure or name in plain or (counts[name] > 1 and _may_be_a_name(text, at[0]))):
            out.append(None)
            continue
        while (
            place + 1 < len(at)
            and counts[text[: at[place + 1]].strip()] == counts[name] > 2 - sure
            and not text[at[place] + 1].isspace()
            and not text[at[place] - 1].isdigit()
        ):
            place += 1
            name = text[: at[place]].strip()
        out.append((name, text[at[place] + 1 :].strip()))
    return out


def _looks_like_a_name(text: str, cut: int) -> bool:
    name = text[:cut].strip()
    return (
        _may_be_a_name(text, cut)
        and len(name) <= _LONGEST_NAME
        and re.search(r"\d:[0-5]\d", formats.plain(name)) is None
        and _NO_NAME.search(name) is None
        and not (name.isdigit() and len(name) < 5)
    )


def _may_be_a_name(text: str, cut: int) -> bool:
    """Not a time of day (10:30) or a score (2:1); a name may end with a digit, its text begin with one."""
    name, said = text[:cut].strip(), text[cut + 1 :]
    clock = re.search(r"(?<!\d)(?:[01]?\d|2[0-4])$", name) and re.match(r"[0-5]\d(?!\d)", said)
    return bool(name) and not clock and not (name.isdigit() and said[:1].isdigit())
