"""Chats as text, in a file or pasted: what QQ, WeChat, WhatsApp, LINE and others write, and `name: text`.

A message begins with a line that names its sender, with or without a time; one form of that line goes
through a whole text. Which form it is, is decided by the text as a whole, because a single line rarely tells:
`小王 12:30` begins a message in one chat and is said in another.
"""

import io
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from memecmd_utils.chats.formats import FLAGS, STAMP, Stamp, full_stamp, plain, read_stamp
from memecmd_utils.chats.messages import Cell, ChatError, Context, Place, clean_message, text_of, unique

_OPEN, _CLOSE = r"(?:[\[(【]\s*)?", r"(?:\s*[\])】])?"
_BEFORE = re.compile(rf"\s*{_OPEN}{STAMP}{_CLOSE}(?:\s*[-–—,|]\s*|\s+|(?<=[\])】]))(?P<rest>\S.*)", FLAGS)
_AFTER = re.compile(
    rf"\s*(?P<name>\S.{{0,80}}?)(?:\s*[,:|·•—–-]\s*|\s+|(?=[\[(【])){_OPEN}{STAMP}{_CLOSE}\s*(?::\s*(?P<rest>\S.*)?)?",
    FLAGS,
)
_BRACKETS = re.compile(rf"\s*\[(?P<name>[^\]]+)\]\s*\[{STAMP}\]\s*(?P<rest>\S.*)", FLAGS)
"""As KakaoTalk writes it: name and time, each in brackets."""
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
    """Lines above the text; none where it shares the line."""


@dataclass(frozen=True)
class Transcript:
    """A chat as lines of text, and its messages."""

    lines: list[str]
    """As they stood, with their line breaks; without the memes of an earlier insertion."""
    messages: list[Entry]

    def cells(self, _name: str, _given: Mapping[str, str]) -> tuple[list[Cell], str]:
        """The messages, and what they were told apart by, in words."""
        cells = [
            Cell(Place(number), text_of(m.chat), clean_message(text_of(m.speaker), text_of(m.text)))
            for number, m in enumerate(self.messages)
        ]
        first = self.messages[0]
        note = f"messages begin as {(first.prefix or self.lines[first.first]).strip()!r} does"
        above = sum(bool(line.strip()) for line in self.lines[: first.first])
        return cells, note + (f", {above} lines above the first left out" if above else "")

    def render(self, memes: Mapping[Place, Mapping[str, Any]], position: str = "before") -> str:
        """The text with a line `[meme ID: FILE]` before or after the text of each message with a meme."""
        out = list(self.lines)
        newline = next((end for line in out if (end := line[len(line.rstrip("\r\n")) :])), "\n")
        for place, meme in sorted(memes.items(), reverse=True):
            message = self.messages[place.record]
            at = message.end if position == "after" else message.first + message.head
            meme_id = re.sub(r"[\[\]\s]+", " ", str(meme["meme_id"]))
            line = f"{message.prefix}[meme {meme_id}: {meme['meme_file']}]"
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
    def form(self) -> tuple[bool, bool] | None:
        """Whether its time has seconds, and names a day."""
        return self.stamp and (self.stamp.precise, _says_day(self.stamp))

    @property
    def strong(self) -> bool:
        """Whether nobody says such a line in a chat."""
        return bool(self.account) or (self.stamp is not None and self.stamp.has_year)


def split(text: str) -> list[str]:
    """Lines of a text with their breaks."""
    return io.StringIO(text, newline="").readlines()


def read_text(text: str, name: str) -> Transcript:
    """Read a text file. A line that begins no message goes on with the one before.

    Raises `ChatError` where no form of such lines is recognised.
    """
    transcript = parse(text)
    if transcript is not None:
        return transcript
    lines = _without_memes(text)
    heads = [
        _Head(number, name, words, prefix=line[: len(line.rstrip()) - len(words)])
        for number, (line, (name, words)) in enumerate(zip(lines, _labels(lines), strict=True))
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
    labels = _labels(lines)
    forms = [
        _before(lines),
        _after(lines, _AFTER, own=True),
        _after(lines, _AFTER, own=False),
        _after(lines, _BRACKETS, own=False),
        _stacked(lines),
    ]
    best = max((heads for heads in forms if heads and _plausible(heads, lines)), key=len, default=[])
    spoken = [n for n, (name, words) in enumerate(labels) if name and words and not full_stamp(words)]
    both = {head.line for head in best if not head.account} & set(spoken)
    # `name: text` may end with a time in many a line, too.
    written = sum(bool(line.strip()) for line in lines)
    labelled = 2 * len(both) >= len(best) and 3 * len(spoken) >= 2 * written
    if best and not labelled and not _named_above(best, labels, lines):
        return _transcript(lines, _accepted(best))
    alone = [_Head(number, name, None) for number, (name, words) in enumerate(labels) if name and not words]
    if len(alone) >= 2 and len(alone) > len(spoken) and _plausible(alone, lines):
        return _transcript(lines, alone)
    return None


def _named_above(heads: Sequence[_Head], labels: Sequence[tuple[str, str]], lines: Sequence[str]) -> bool:
    """Whether names with a colon stand above the first head, and more often than there are heads.

    Then it is they who begin the messages, and one says when a meeting is.
    """
    first = heads[0].line
    above = {
        name for (name, _), line in zip(labels[:first], lines, strict=False) if name and not _aside(line)
    }
    return sum(name in above for name, _ in labels) > len(heads)


def _without_memes(text: str) -> list[str]:
    return [line for line in split(text) if _MEME.fullmatch(line) is None]


# --- lines that may begin a message


def _looked_at(line: str) -> str:
    """A line to be looked at, empty where long gaps show that it is none of these and would take long."""
    return "" if re.search(r"\s{16}", line) else plain(line)


class _TimedLine(NamedTuple):
    """A line in which a time of day stands where a pattern wants it."""

    number: int
    line: str
    match: re.Match[str]
    stamp: Stamp

    @property
    def rest(self) -> str:
        """What stands where the pattern has the rest."""
        return self.line[self.match.start("rest") :]


def _timed_lines(lines: Sequence[str], pattern: re.Pattern[str]) -> list[_TimedLine]:
    """Lines of a pattern; one that is a time and nothing else is none of them."""
    timed = []
    for number, line in enumerate(lines):
        line = line.rstrip("\r\n")
        match = pattern.fullmatch(_looked_at(line).rstrip())
        stamp = None if match is None else read_stamp(match)
        if stamp is not None and stamp.seconds is not None and not full_stamp(line):
            timed.append(_TimedLine(number, line, match, stamp))
    return timed


def _sender(name: str) -> tuple[str, str]:
    """Name and account, without a rank."""
    name = name.strip(" \t\u200e\u200f\u202a\u202c\u2068\u2069\u00a0\u3000")
    match = _ACCOUNT.fullmatch(plain(name))
    if match is None:
        return name, ""
    account = match["number"] or match["mail"]
    return _RANK.sub("", name[: match.end("name")], count=1).strip() or account, account


def _before(lines: Sequence[str]) -> list[_Head]:
    """Time, name and, on the same line or below, the text."""
    timed = _timed_lines(lines, _BEFORE)
    dated = [one for one in timed if one.stamp.has_year]
    timed = dated if 2 * len(dated) >= len(timed) else timed
    if not timed:
        return []
    rests = [one.rest for one in timed]
    # Whether texts stand below these lines, or on them.
    at = {one.number for one in timed}
    below = [next((n for n in range(number + 1, len(lines)) if lines[n].strip()), 0) for number in at]
    beside = 2 * sum(n > 0 and n not in at and _day(lines[n]) is None for n in below) < len(at)
    if 2 * sum(bool(_sender(rest)[1]) for rest in rests) < len(rests):
        tabs = [rest.split("\t", 1) if "\t" in rest.strip() else None for rest in rests]
        for parts in (tabs, _names(rests, sure=True)):
            named = sum(part is not None for part in parts)
            # A name with a colon comes again, with what somebody says it does not.
            again = 2 * len(set(rests)) <= len(rests) + 1
            if 2 * named >= len(parts) and (beside or (2 * named > len(parts) and not again)):
                return _inline(timed, parts)
        if beside and len(timed) > 1:  # LINE on a computer: only blanks between
            return _inline(timed, _words(rests))
    heads = []
    for one in timed:
        name, account = _sender(one.rest)
        heads.append(_Head(one.number, name, None, one.stamp, account))
    return heads


def _words(rests: Sequence[str]) -> list[tuple[str, str] | None]:
    """Name and text, a blank between; a name has more than one word where all that begin so go on alike."""
    out: list[tuple[str, str] | None] = []
    words_of = [rest.split() for rest in rests]
    counts = Counter(tuple(words[:n]) for words in words_of for n in range(1, min(4, len(words))))
    for rest, words in zip(rests, words_of, strict=True):
        n = 1
        while n < 3 and len(words) > n + 1 and counts[tuple(words[: n + 1])] == counts[tuple(words[:n])] > 2:
            n += 1
        parts = rest.split(None, n)
        out.append((" ".join(words[:n]), parts[n]) if len(parts) > n else None)
    return out


def _inline(timed: Sequence[_TimedLine], parts: Sequence[Any]) -> list[_Head]:
    """Heads with their text; a line without a name is a note of the program."""
    heads = []
    for one, part in zip(timed, parts, strict=True):
        name, text = ("", one.rest) if part is None else part
        name, account = _sender(name)
        prefix = one.line[: len(one.line) - len(text.lstrip())]
        heads.append(_Head(one.number, name, text.strip(), one.stamp, account, prefix))
    return heads


def _after(lines: Sequence[str], pattern: re.Pattern[str], own: bool) -> list[_Head]:
    """Name and time, and the text below (`own` lines) or on the same line."""
    heads = []
    for one in _timed_lines(lines, pattern):
        name, account = _sender(one.line[slice(*one.match.span("name"))])
        if (one.match["rest"] is None) is not own or _SOON.fullmatch(name):
            continue
        text = None if own else one.rest.strip()
        prefix = "" if own else one.line[: one.match.start("rest")]
        heads.append(_Head(one.number, name, text, one.stamp, account, prefix))
    return heads


def _stacked(lines: Sequence[str]) -> list[_Head]:
    """A name alone on its line and a time alone on the next: Slack and others.

    Names come again; what stands before a time between two utterances does not.
    """
    heads = []
    for number, line in enumerate(lines):
        stamp = _day(line)
        if stamp is None or stamp.seconds is None:
            continue
        name = lines[number - 1].strip() if number else ""
        if name and len(name) <= 2 * _LONGEST_NAME and not _COLON.search(name):
            heads.append(_Head(number - 1, name, None, stamp, lines=2))
    return heads if len(heads) > 2 and 2 * len({head.name for head in heads}) <= len(heads) + 1 else []


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
    return full_stamp(line.strip().strip("-=—–─━*_~· \t"))


def _says_day(stamp: Stamp) -> bool:
    return stamp.dated or stamp.match["relative"] is not None


def _accepted(heads: Sequence[_Head]) -> list[_Head]:
    """Those heads that are none of the text, where a time may begin or end what somebody says.

    Such a line has a name that hardly any other head has, and a time in another form than most, or out of
    order.
    """
    names = Counter(head.name for head in heads)
    rare = max(1, len(heads) // 10)
    [(usual, _)] = Counter(head.form for head in heads).most_common(1)
    out: list[_Head] = []
    for head, later in zip(heads, [*heads[1:], None], strict=True):
        in_order = head.strong or _between(out[-1] if out else None, head, later)
        if head.account or names[head.name] > rare or (head.form == usual and in_order):
            out.append(head)
    return out


def _between(before: _Head | None, head: _Head, later: _Head | None) -> bool:
    """Whether the time of a head fits between those around it; only times without a day are compared."""
    around = [h.stamp.seconds for h in (before, head, later) if h and h.stamp and not _says_day(h.stamp)]
    return len(around) < 3 or around[0] > around[2] or around[0] <= around[1] <= around[2]


def _transcript(lines: list[str], heads: Sequence[_Head]) -> Transcript:
    plain_lines = [plain(line.rstrip("\r\n")) for line in lines]
    # Heads that name the day themselves need no line for it between them, unless it is drawn as a rule.
    days = 2 * sum(head.stamp is not None and _says_day(head.stamp) for head in heads) < len(heads)
    objects = {n: m["name"] for n, line in enumerate(plain_lines) if (m := _OBJECT.fullmatch(line))}
    chats = dict(zip(objects, unique(list(objects.values())), strict=True))
    starts = [*(head.line for head in heads), len(lines)]
    timed = heads[0].stamp is not None
    people = _people(heads)
    messages = []
    for place, head in enumerate(heads):
        texts = [head.text] if head.text else []
        body = range(head.line + head.lines, starts[place + 1])
        rest = [n for n in body if lines[n].strip() and not (objects and _BETWEEN.fullmatch(plain_lines[n]))]
        # A day that stands alone between two messages belongs to neither.
        while rest and (head.text is not None or len(rest) > 1):
            day = _day(lines[rest[-1]])
            ruled = lines[rest[-1]].strip()[:1] in "-=—–─━*_~"
            if day is None or (timed and not (_says_day(day) and (days or ruled))):
                break
            rest.pop()
        texts += [lines[n].strip() for n in rest]
        last = rest[-1] + 1 if rest else head.line + head.lines
        chat = next((chats[n] for n in reversed(chats) if n < head.line), "chat")
        speaker = people[head.name, head.account]
        above = 0 if head.prefix else head.lines
        messages.append(Entry(speaker, "\n".join(texts), head.line, last, head.prefix, chat, above))
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


# --- name: text


def _labels(lines: Sequence[str]) -> list[tuple[str, str]]:
    """Name and words of each line; no name where the colon belongs to a time, an address or a sentence."""
    texts = [line.strip() for line in lines]
    parts = _names(texts, sure=False)
    return [part or ("", text) for text, part in zip(texts, parts, strict=True)]


def _is_between(labels: Sequence[tuple[str, str]], place: int) -> bool:
    """Whether a line without a name is a day or a time that stands between two messages.

    In a chat without any names a time alone may be an answer, and so may a day.
    """
    day = _day(labels[place][1])
    if day is None:
        return False
    if not any(name for name, _ in labels):
        return _says_day(day) and day.seconds is not None
    below = next(((name, words) for name, words in labels[place + 1 :] if name or words), None)
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
    likely = {
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
        if not (sure or name in likely or (counts[name] > 1 and _may_be_a_name(text, at[0]))):
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
        and re.search(r"\d:[0-5]\d", plain(name)) is None
        and _NO_NAME.search(name) is None
        and not (name.isdigit() and len(name) < 5)
    )


def _may_be_a_name(text: str, cut: int) -> bool:
    """Not a time of day (10:30) or a score (2:1); a name may end with a digit, its text begin with one."""
    name, words = text[:cut].strip(), text[cut + 1 :]
    clock = re.search(r"(?<!\d)(?:[01]?\d|2[0-4])$", name) and re.match(r"[0-5]\d(?!\d)", words)
    return bool(name) and not clock and not (name.isdigit() and words[:1].isdigit())


# --- a pasted chat

MAX_CHARS, MAX_TURNS = 20_000, 200
"""How long a pasted chat may be."""


def read_pasted(text: str) -> Context:
    """Read a pasted chat between two people up to the turn that the other one has next.

    Where messages begin with a line of name and time (`parse`), all lines up to the next such line are one
    message. Else a line without a name is said by the other one; so lines without any name alternate. A name
    alone on its line goes with the next line, a day or a time alone on its line with none. Lines of the same
    speaker one after the other become one turn. Raises `ChatError` for an empty chat, three names, or one
    that is too long.
    """
    if len(text) > MAX_CHARS:
        raise ChatError(f"the chat has {len(text):,} characters; {MAX_CHARS:,} at most")
    people: dict[str, int] = {}  # which of the two bears a name
    turns: list[tuple[int, str]] = []
    waiting: int | None = None  # whose name stood alone on the line before
    for number, name, words in _pasted_lines(text.lstrip("\ufeff")):
        if name and name not in people:
            if len(people) == 2:
                raise ChatError(
                    f"line {number}: {name!r} would be a third person beside "
                    f"{' and '.join(map(repr, people))}; a chat here has two. If it is no name, write the "
                    "line without the colon"
                )
            # The first name may come after lines without one: then those before it are the other's.
            known = next(iter(people.values()), turns[-1][0] if turns else 1)
            people[name] = 1 - known
        if name and not words:
            waiting = people[name]
            continue
        other = 1 - turns[-1][0] if turns else 0
        speaker = people[name] if name else other if waiting is None else waiting
        waiting = None
        if turns and turns[-1][0] == speaker:
            turns[-1] = speaker, f"{turns[-1][1]} {words}"
        else:
            turns.append((speaker, words))
    if not turns:
        raise ChatError("nothing to read yet: paste a chat, one line for each message")
    if len(turns) > MAX_TURNS:
        raise ChatError(f"the chat has {len(turns)} turns; {MAX_TURNS} at most")
    first = turns[0][0]
    names = {person: name for name, person in people.items()}
    spare = iter(name for name in ("甲", "乙") if name not in people)
    for person in (first, 1 - first):
        if person not in names:
            names[person] = next(spare)
    lines = tuple((names[person], words) for person, words in turns)
    return Context("pasted", len(turns) + 1, lines, names[1 - turns[-1][0]])


def _pasted_lines(text: str) -> Iterator[tuple[int, str, str]]:
    """Number, name and words of each message of a copied chat, or of each line of another."""
    copied = parse(text)
    if copied is not None:
        for message in copied.messages:
            speaker = clean_message(message.speaker, message.text).speaker
            if speaker and message.text:  # a picture is a turn, a note of the program is none
                yield message.first + 1, speaker, " ".join(message.text.split())
        return
    labels = _labels(split(text))
    for place, (name, words) in enumerate(labels):
        if name or (words and not _is_between(labels, place)):
            yield place + 1, name, words
