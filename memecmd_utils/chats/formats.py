"""How chat programs write times, in which order messages were sent, and how a file stores its text.

Times stand in one cell, in a cell for the day and one for the time, or in a line. A text is marked, UTF-8,
UTF-16 without a mark, or in an older encoding that is guessed: bytes of Big5, Shift-JIS and GB18030 fit one
another's tables, so that a wrong guess reads without an error. Which text is the likeliest is asked of
charset-normalizer; what was taken is always said.
"""

import codecs
import contextlib
import itertools
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import charset_normalizer

from memecmd_utils.chats.messages import Cell, ChatError, Conversation

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_MONTH = (
    r"(?:jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|"
    r"sept?(?:ember)?|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?)\.?"
)
_WEEKDAY = (
    r"(?:(?:星期|周|週|礼拜|禮拜)[一二三四五六日天]|[月火水木金土日]曜日?|[월화수목금토일]요일|"
    r"(?:mon|tue|tues|wed|wednes|thu|thurs|fri|sat|satur|sun)(?:day)?)\.?"
)
_DAY_NAME = rf"(?:\((?:{_WEEKDAY}|[月火水木金土日一二三四五六월화수목금토일])\)|{_WEEKDAY})"
_DATE = rf"""(?:
    (?P<ymd>(?P<y1>\d{{4}})\s*[-/.年년]\s*(?P<m1>\d{{1,2}})\s*[-/.月월]\s*(?P<d1>\d{{1,2}})(?!\d)(?:\s*[日号號일])?\.?)
  | (?P<compact>(?P<y7>(?:19|20)\d\d)(?P<m7>0[1-9]|1[0-2])(?P<d7>0[1-9]|[12]\d|3[01])(?!\d))
  | (?P<a>\d{{1,2}})(?P<sep>[-/.])\s?(?P<b>\d{{1,2}})(?P=sep)\s?(?P<c>\d{{4}}|\d{{2}})(?!\d)
  | (?P<m3>\d{{1,2}})\s*[月월]\s*(?P<d3>\d{{1,2}})\s*[日号號일]
  | (?P<n5>{_MONTH})\s*(?P<d5>\d{{1,2}})(?:st|nd|rd|th)?(?![\d:])(?:,?\s+(?P<y5>\d{{4}}))?
  | (?P<d6>\d{{1,2}})(?:st|nd|rd|th)?[\s-]*(?P<n6>{_MONTH})(?:,?[\s-]*(?P<y6>\d{{4}}|\d{{2}})(?![\d:]))?
  | (?P<a4>\d{{1,2}})[-/](?P<b4>\d{{1,2}})(?![-/.\d])
)"""
_HALF = r"上午|下午|凌晨|清晨|早上|早晨|中午|傍晚|晚上|深夜|半夜|午前|午後|오전|오후|[ap]\.?\s?m\b\.?"
_CLOCK = rf"""(?:(?P<half>{_HALF})\s*)?
    (?P<H>\d{{1,2}})(?::(?P<M>[0-5]\d)(?::(?P<S>[0-5]\d)(?:[.,](?P<F>\d{{1,9}}))?)?
        |\s*[点點时時시](?:\s*(?P<M2>[0-5]?\d)\s*[分분](?:\s*(?P<S2>[0-5]?\d)\s*[秒초])?)?)
    (?!\d)(?:\s*(?P<half2>[ap]\.?\s?m\b\.?))?"""
_ZONE = r"(?:\s*(?P<zone>Z\b|UTC\b|GMT\b|(?:UTC|GMT)?\s?[+-]\d\d?(?::?\d\d)?(?![\d:])))?"
_PATTERN = rf"""(?:
    (?:{_DAY_NAME}\s*,?\s*)?{_DATE}(?:\s*,?\s*{_DAY_NAME})?
        (?:(?:\s*,\s*|\s+|T)?(?:(?:at|um|om|à|às|alle|klo)\s+)?
            (?P<after>{{clock}}){_ZONE}(?:\s+(?P<y8>\d{{4}})\b)?)?
  | (?P<relative>今天|今日|昨天|昨日|前天|前日|오늘|어제|today|yesterday|{_WEEKDAY})
        \s*,?\s*(?:at\s+)?(?P<only>{{clock}})
  | (?P<alone>{{clock}})
)"""


def _with_clocks(pattern: str) -> str:
    """The clock stands three times in the pattern; a group's name may stand in it once."""
    first, *rest = pattern.split("{clock}")
    return first + "".join(
        re.sub(r"\?P<(\w+)>", rf"?P<\g<1>_{number}>", _CLOCK) + part
        for number, part in enumerate(rest, start=1)
    )


STAMP = _with_clocks(_PATTERN.replace("{{clock}}", "{clock}"))
"""A moment, a day or a time of day, for `FLAGS` on a line that `plain` went over."""
_LONGEST = 80
"""Characters of the longest stamp, with room to spare."""
FLAGS = re.VERBOSE | re.IGNORECASE
_WHOLE = re.compile(STAMP, FLAGS)
_SAME = str.maketrans(
    "０１２３４５６７８９：／－．，（）［］＜＞" + "\u3000\u00a0\u2009\u202f\u200b\u200e\u200f\u2060\ufeff"
    "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069",
    "0123456789:/-.,()[]<>" + " " * 18,
)


def plain(text: str) -> str:
    """A line, as long as before, with ASCII digits and marks, and blanks for what only steers its display."""
    return text.translate(_SAME)


class Stamp(NamedTuple):
    """What a stamp says. `seconds` is the time of day, None for a day alone."""

    match: re.Match[str]
    seconds: float | None
    precise: bool
    """Whether seconds are written."""

    @property
    def dated(self) -> bool:
        """Whether it names a day, also one without a year."""
        return any(self.match[name] for name in ("ymd", "compact", "a", "m3", "n5", "n6", "a4"))

    @property
    def has_year(self) -> bool:
        """Whether it names a day of a certain year."""
        return any(self.match[name] for name in ("ymd", "compact", "a", "y5", "y6", "y8"))


def read_stamp(match: re.Match[str]) -> Stamp | None:
    """Read a match of `STAMP`; None where its numbers are no time of day."""
    for number in (1, 2, 3):
        hour = match[f"H_{number}"]
        if hour is None:
            continue
        h, m = int(hour), int(match[f"M_{number}"] or match[f"M2_{number}"] or 0)
        s = match[f"S_{number}"] or match[f"S2_{number}"]
        half = (match[f"half2_{number}"] or match[f"half_{number}"] or "").casefold()
        if half.startswith("p") or half in ("下午", "中午", "傍晚", "晚上", "午後", "오후"):
            # 中午 11:30 is before noon, 晚上 12:30 and 1:30 after midnight, as people write it.
            later = h < 12 and not (half == "中午" and h > 2) and not (half == "晚上" and h < 5)
            h = h + 12 if later else 0 if half == "晚上" and h == 12 else h
        elif half in ("深夜", "半夜") and 9 <= h < 12:
            h += 12
        elif half and h == 12:
            h = 0
        if h > 24 or (h == 24 and m):
            return None
        seconds = float(f"{s or 0}.{match[f'F_{number}'] or 0}")
        return Stamp(match, 3600 * h + 60 * m + seconds, s is not None)
    return Stamp(match, None, False)


def full_stamp(text: str) -> Stamp | None:
    """A text that is a stamp and nothing else, in square or round brackets or without."""
    text = plain(text).strip()
    if text[:1] + text[-1:] in ("[]", "()"):
        text = text[1:-1].strip()
    match = _WHOLE.fullmatch(text) if len(text) <= _LONGEST else None
    return None if match is None else read_stamp(match)


def moments(values: Sequence[Any]) -> list[Any] | None:
    """Sort keys of a column of moments: all numbers, all of one kind of text, or None.

    None, too, where a time of day has no day, where only some name a time zone, and where it is open which
    number is the day and which the month although the order depends on it. A column whose days have no year
    is not read if it spans a new year.
    """
    numbers = [_finite(value) for value in values]
    if all(value is not None for value in numbers):
        return numbers
    stamps = [stamp for value in values if (stamp := full_stamp(str(value))) is not None and stamp.dated]
    if not stamps or len(stamps) < len(values):
        return None
    alike = {(stamp.seconds is None, stamp.has_year, stamp.match["zone"] is None) for stamp in stamps}
    return _in_best_order(stamps) if len(alike) == 1 else None


def _finite(value: Any) -> float | None:
    """A finite number, also one written as text."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


YearMonthDay = tuple[int, int, int]
_ORDERS: dict[str, Callable[[int, int, int], YearMonthDay]] = {
    "dmy": lambda a, b, c: (c, b, a),
    "mdy": lambda a, b, c: (c, a, b),
    "ymd": lambda a, b, c: (a, b, c),
}


def _in_best_order(stamps: Sequence[Stamp]) -> list[datetime] | None:
    """Moments in the reading of day, month and year that fits all, and the order of the file best."""
    readings = [moments for order in _ORDERS if (moments := _in_order(stamps, order)) is not None]
    for way in (1, -1):
        for moments in readings:
            if direction(moments) == way:
                return moments
    ranks = {tuple(sorted(range(len(moments)), key=moments.__getitem__)) for moments in readings}
    return readings[0] if len(ranks) == 1 else None


def _in_order(stamps: Sequence[Stamp], order: str) -> list[datetime] | None:
    moments = []
    for stamp in stamps:
        day = _day(stamp.match, order)
        if day is None:
            return None
        moments.append(day + timedelta(seconds=stamp.seconds or 0) - _offset(stamp.match["zone"]))
    if not stamps[0].has_year and {1, 12} <= {moment.month for moment in moments}:
        return None
    return moments


def _day(match: re.Match[str], order: str) -> datetime | None:
    try:
        return datetime(*_year_month_day(match, order))
    except ValueError:
        return None


def _year_month_day(match: re.Match[str], order: str) -> YearMonthDay:
    """The year is 2000 where none is written: it has a 29 February."""
    if match["ymd"] or match["compact"]:
        which = "1" if match["ymd"] else "7"
        return int(match[f"y{which}"]), int(match[f"m{which}"]), int(match[f"d{which}"])
    if match["a"]:
        y, m, d = _ORDERS[order](int(match["a"]), int(match["b"]), int(match["c"]))
        return (2000 + y if y < 100 else y), m, d
    if match["m3"]:
        return 2000, int(match["m3"]), int(match["d3"])
    if match["a4"]:
        _, m, d = _ORDERS["mdy" if order == "ymd" else order](int(match["a4"]), int(match["b4"]), 0)
        return 2000, m, d
    name = (match["n5"] or match["n6"])[:3].casefold()
    year = int(match["y5"] or match["y6"] or match["y8"] or 2000)
    return year + 2000 * (year < 100), _MONTHS.index(name) + 1, int(match["d5"] or match["d6"])


def _offset(zone: str | None) -> timedelta:
    digits = re.search(r"([+-])(\d\d?):?(\d\d)?", zone or "")
    if digits is None:
        return timedelta(0)
    away = timedelta(hours=int(digits[2]), minutes=int(digits[3] or 0))
    return away if digits[1] == "+" else -away


def direction(keys: Sequence[Any]) -> int:
    """1 if keys never fall, -1 if they fall and never rise, else 0."""
    pairs = list(itertools.pairwise(keys))
    if all(a <= b for a, b in pairs):
        return 1
    return -1 if all(a >= b for a, b in pairs) else 0


# --- the order of messages


def conversations(cells: Sequence[Cell]) -> list[Conversation]:
    """Chats in the order of their first message.

    Within a chat messages are ordered by their numbers where all have one and no two have the same, or else
    by their times where all can be read (`moments`), and by their numbers within one time. Times win over
    numbers that they contradict if the file itself is in the order of the times, either way round.
    A file without either, or whose numbers repeat and whose times cannot be read, keeps its order; but where
    repeating numbers mostly go down by one, the newest is the first.
    """
    by_chat: dict[str, list[Cell]] = {}
    for cell in cells:
        by_chat.setdefault(cell.chat, []).append(cell)
    chats = []
    for name, of_chat in by_chat.items():
        ordered, order = _ordered(of_chat, _times(of_chat))
        messages, places = zip(*((cell.message, cell.place) for cell in ordered), strict=True)
        chats.append(Conversation(name, messages, places, order))
    return chats


def _ordered(cells: list[Cell], times: list[Any] | None) -> tuple[list[Cell], str]:
    """The messages of a chat as they were sent, and by what they were ordered, in words."""
    numbers = [_finite(cell.number) for cell in cells]
    in_file = "their place in the file"
    # Newest first: messages of one minute stand the wrong way round, too.
    newest_first = times is not None and direction(times) < 0
    places = range(len(cells))[:: -1 if newest_first else 1]

    def by(keys: list[Any]) -> list[Cell]:
        return [cells[place] for place in sorted(places, key=keys.__getitem__)]

    if any(number is None for number in numbers):
        return (cells, in_file) if times is None else (by(times), "time")
    if len(set(numbers)) == len(numbers):
        by_number = by(numbers)
        if times is not None and direction(times):
            by_their_numbers = [time for _, time in sorted(zip(numbers, times, strict=True))]
            if direction(by_their_numbers) < 1:
                why = "the newest first in the file" if newest_first else "against their numbers"
                return by(times), f"time, {why}"
        return by_number, in_file if by_number == cells else "their numbers"
    if times is not None:
        pairs = list(zip(times, numbers, strict=True))
        return by(pairs if len(set(pairs)) == len(pairs) else times), "time, as their numbers repeat"
    steps = Counter(b - a for a, b in itertools.pairwise(numbers))
    if direction(numbers) < 0 or steps[-1] > steps[1]:
        return cells[::-1], "their numbers, newest first in the file"
    return cells, f"{in_file}, as their numbers repeat"


def _times(cells: Sequence[Cell]) -> list[Any] | None:
    """Keys to sort by time; an empty cell has the day or time of the one before it."""
    times, dates = filled([cell.time for cell in cells]), filled([cell.date for cell in cells])
    if dates is None or times is None:
        days_or_times = times if dates is None else dates
        return None if days_or_times is None else moments(days_or_times)
    together = moments([f"{day} {time}" for day, time in zip(dates, times, strict=True)])
    if together:
        return together
    alone = moments(times)
    if alone and not all(isinstance(key, float) and key < 1e8 for key in alone):  # a time of day in digits
        return alone
    return moments(dates)


def filled(values: Sequence[Any]) -> list[Any] | None:
    """Values with each empty one replaced by the one before it; None where the first is empty."""
    if not values or values[0] is None or not str(values[0]).strip():
        return None
    out: list[Any] = []
    for value in values:
        out.append(out[-1] if value is None or not str(value).strip() else value)
    return out


# --- encodings

MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32-le"),  # begins as UTF-16's mark does
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
GUESSED = {
    "gb18030": "GB18030",
    "cp950": "Big5",
    "big5hkscs": "Big5-HKSCS",
    "cp932": "Shift-JIS",
    "euc_jp": "EUC-JP",
    "cp949": "EUC-KR",
    "cp1252": "Windows-1252",
}
"""Older encodings that are guessed, in the order in which they are preferred where nothing else decides."""
COMMON = {
    "gb18030": ((0xA1, 0xA3), (0xB0, 0xD7)),
    "cp950": ((0xA1, 0xA1), (0xA4, 0xC6)),
    "big5hkscs": ((0xA1, 0xA1), (0xA4, 0xC6)),
    "cp932": ((0x81, 0x83), (0x88, 0x97)),
    "euc_jp": ((0xA1, 0xA5), (0xB0, 0xCF)),
    "cp949": ((0xA1, 0xA1), (0xB0, 0xC8)),
}
"""First bytes of punctuation, kana, Hangul, and the characters that the standards themselves put first, as
the most used (level 1 of GB 2312, Big5 and JIS X 0208)."""
_WESTERN = re.compile(r"(?<![^\0-\x7f])[À-ÖØ-öø-ÿŒœŠšŽžŸ€¿¡«»°‘’“”–—…]{1,3}(?![^\0-\x7f])")
"""Letters with accents and the usual marks, few of them together."""


@dataclass(frozen=True)
class Encoding:
    """How the text of a file is stored."""

    codec: str
    mark: bytes = b""
    """The byte order mark that the file began with, or nothing."""
    guessed: bool = False
    broken: int = 0
    """Bytes of a UTF-8 file that are none; they are written back as they were."""

    def encode(self, text: str) -> bytes:
        """The text as it stood in the file. Raises `ChatError` for a sign that the encoding lacks."""
        try:
            return self.mark + text.encode(self.codec, "surrogateescape" if self.broken else "strict")
        except UnicodeEncodeError as error:
            lacking = text[error.start : error.end]
            raise ChatError(
                f"{lacking!r} cannot be written in {self.codec}, the encoding of IN: save IN as UTF-8"
            ) from error

    def text(self) -> str:
        """In words, with the way to name another where it was guessed."""
        name = GUESSED.get(self.codec, self.codec.upper())
        if self.broken:
            return f"encoding {name}, {self.broken} bytes of which are not"
        return (
            f'encoding {name}, a guess: FIELDS="encoding=..." names another'
            if self.guessed
            else f"encoding {name}"
        )


def decode(data: bytes, name: str, given: str = "") -> tuple[str, Encoding]:
    """Text of a file and its encoding; `given` is what its owner calls it.

    Raises `ChatError` if no encoding fits.
    """
    mark, codec = next(((m, c) for m, c in MARKS if data.startswith(m)), (b"", ""))
    body = data[len(mark) :]
    if given:
        return _given(body, mark, codec, name, given)
    if codec:
        return _strict(body, Encoding(codec, mark), name)
    if 0 in body:
        wide = _wide(body)
        if wide:
            return wide
    if b"\x1b$" in body and body.isascii():
        return _strict(body, Encoding("iso2022_jp"), name)
    try:
        return body.decode("utf-8"), Encoding("utf-8")
    except UnicodeDecodeError:
        pass
    broken = body.decode("utf-8", "surrogateescape")
    bad = len(re.findall("[\udc80-\udcff]", broken))
    # Three bytes in a row that fit UTF-8's pattern are rare in any other encoding.
    if len(re.findall("[\u0800-\ud7ff\ue000-\U0010ffff]", broken)) >= 3 * bad:
        return broken, Encoding("utf-8", broken=bad)
    for codec in _ranked(body):
        with contextlib.suppress(UnicodeDecodeError):
            text = body.decode(codec)
            if codec in COMMON or _is_western(text):
                return text, Encoding(codec, guessed=True)
    raise ChatError(
        f"{name}: the text is in none of UTF-8, UTF-16 and {', '.join(GUESSED.values())}; save it as UTF-8, "
        'or name its encoding as FIELDS="encoding=..."'
    )


def _given(body: bytes, mark: bytes, marked: str, name: str, given: str) -> tuple[str, Encoding]:
    try:
        codec = codecs.lookup(given).name
        "".encode(codec)
    except LookupError as error:
        raise ChatError(f"no encoding is called {given!r}; for example: big5, shift_jis, gb18030") from error
    if codec == "utf-8-sig":
        codec = "utf-8"
    if codec in ("utf-16", "utf-32"):  # these want a mark, or guess
        codec = marked if marked.startswith(codec) else f"{codec}-{_ends(body)}"
    codec = {"big5": "cp950", "shift_jis": "cp932", "gbk": "gb18030", "gb2312": "gb18030"}.get(codec, codec)
    return _strict(body if marked else mark + body, Encoding(codec, mark if marked else b""), name)


def _strict(body: bytes, encoding: Encoding, name: str) -> tuple[str, Encoding]:
    try:
        return body.decode(encoding.codec), encoding
    except UnicodeDecodeError as error:
        line = body.count(b"\n", 0, error.start) + 1
        raise ChatError(f"{name} line {line}: not {encoding.codec} ({error.reason})") from error


def _ends(body: bytes) -> str:
    """`be` or `le`: an ASCII character has its zero byte first or last."""
    return "be" if body[0::2].count(0) > body[1::2].count(0) else "le"


def _wide(body: bytes) -> tuple[str, Encoding] | None:
    """UTF-16 without a mark; None for another text that holds zero bytes."""
    codec = f"utf-16-{_ends(body)}"
    try:
        text = body.decode(codec)
    except UnicodeDecodeError:
        return None
    odd = sum(char not in "\t\r\n" and unicodedata.category(char) in ("Cc", "Cn", "Co") for char in text)
    # A stray zero byte makes at most a few of the line breaks look like UTF-16's.
    lines = re.search(r"[\r\n\t ,]", text) and 4 * text.count("\n") >= 3 * body.count(b"\n")
    return (text, Encoding(codec)) if lines and odd <= len(text) / 50 else None


def _ranked(body: bytes) -> list[str]:
    """Codecs of `GUESSED`, the likeliest first: little of what looks like a wrong reading, many common signs.

    On made-up chats of one line Big5, Shift-JIS and GB18030 were all told apart, 400 of each; EUC-JP in 392.
    """
    # Lines of ASCII say nothing, and would make up most of what is sampled of some files.
    telling = b"\n".join(line for line in body.replace(b"\0", b"").split(b"\n") if not line.isascii())
    matches = charset_normalizer.from_bytes(telling, steps=8, threshold=1.0, cp_isolation=list(GUESSED))
    mess = {
        codec: (match.chaos, -match.coherence)
        for match in matches
        for codec in (match.encoding, *match.could_be_from_charset)
    }
    ranks = []
    for place, codec in enumerate(GUESSED):
        chaos, coherence = mess.get(codec, (1.0, 0.0))
        with contextlib.suppress(UnicodeDecodeError):
            ranks.append((chaos - _common(telling.decode(codec), codec), coherence, place, codec))
    return [codec for *_, codec in sorted(ranks)]


def _is_western(text: str) -> bool:
    """Whether most signs beyond ASCII stand as in a western language.

    Nearly all bytes are something in Windows-1252: a damaged file of another encoding fits it, too.
    """
    return 2 * sum(map(len, _WESTERN.findall(text))) >= sum(not char.isascii() for char in text)


def _common(text: str, codec: str) -> float:
    """Share of the characters beyond ASCII that are common in the encoding's language."""
    chars = [char for char in text if not char.isascii()][:5000]
    if codec not in COMMON:  # letters with accents stand alone among others
        return len(re.findall(r"(?<![^\0-\x7f])[^\0-\x7f](?![^\0-\x7f])", text)) / len(chars)
    # Big5-HKSCS has signs that decode to a letter and an accent; the accent alone is none of its own.
    leads = [sign[0] for sign in (char.encode(codec, "ignore") for char in chars) if len(sign) == 2]
    return sum(any(low <= lead <= high for low, high in COMMON[codec]) for lead in leads) / len(chars)
