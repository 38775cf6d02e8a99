"""From the bytes of a feed to plain titles and texts, and the same news twice.

The linked articles are not fetched. Outlets print each other's reports, so many items are copies: by title,
or by text that shares most of its 5-character runs with another. Candidates come from an inverted index of
fingerprints (winnowing: the smallest hash in each window of runs; Schleimer, Wilkerson and Aiken, SIGMOD
2003).
"""

import html
import io
import re
import time
import unicodedata
import xml.parsers.expat
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np

from memecmd_utils.core.fetch import http

MAX_CHARACTERS = 2000
MAX_TITLE = 200
MAX_HTML = 100_000
MAX_ENTRIES = 1000
DAMAGED = 0.02
"""Share of characters that may be damaged before a named charset counts as the wrong one."""
MAX_BROKEN = 1024 * 1024
"""Bytes up to which XML that is not well-formed is read; the lenient parser takes minutes for more."""
UNSEEN = {"script", "style", "noscript", "template", "iframe", "svg"}
INLINE = {
    *("a", "abbr", "b", "bdi", "bdo", "big", "cite", "code", "del", "em", "font", "i", "ins", "kbd", "mark"),
    *("q", "s", "small", "span", "strong", "sub", "sup", "time", "tt", "u", "var"),
}
TOKEN = re.compile(
    r"""<!--|-->|</?(?P<name>[A-Za-z][\w:-]{0,40})(?:\b(?:[^<>"']|"[^"<]*"|'[^'<]*')*+>|\b[^<>]*+>)|<[!?][^<>]*+>"""
)
"""A comment's ends, a tag (a quoted `>` does not end it), a declaration; not the signs in "1 < 2"."""
BLANKS = re.compile(r"\s+")
DECLARED = re.compile(rb"^\s*<\?xml[^>]{0,200}?encoding\s*=\s*[\"']([\w.:-]{1,40})[\"']", re.I)
# GB2312 and GBK are subsets of GB18030, and pages that name the smaller use characters of the larger.
WIDER = {"gb2312": "gb18030", "gbk": "gb18030", "x-gbk": "gb18030", "cp936": "gb18030", "euc-cn": "gb18030",
         "big5": "big5hkscs", "x-x-big5": "big5hkscs", "big5-hkscs": "big5hkscs"}  # fmt: skip
LATIN = {"iso-8859-1", "latin-1", "latin1", "windows-1252", "cp1252", "us-ascii", "ascii"}
"""Web servers name these by default, and they decode anything; no Chinese feed is written in them."""


@dataclass(frozen=True)
class Entry:
    """One entry of a feed as plain text."""

    title: str
    text: str
    link: str
    published: str
    """UTC, ISO 8601; empty where the feed names none."""


@dataclass(frozen=True)
class ParsedFeed:
    """A feed's own title, its entries, and what was odd about it."""

    title: str
    entries: list[Entry]
    note: str = ""


def decode(body: bytes, content_type: str = "", language: str = "") -> tuple[str, str]:
    """A feed's text and encoding: by byte order mark, header, XML declaration, else UTF-8 or by language.

    A name that does not fit the bytes is passed over.
    """
    for mark, encoding in ((b"\xef\xbb\xbf", "utf-8"), (b"\xff\xfe", "utf-16"), (b"\xfe\xff", "utf-16")):
        if body.startswith(mark):
            return body.decode(encoding, "replace").removeprefix("\ufeff"), encoding
    if body[:4] in (b"<\0?\0", b"\0<\0?"):
        encoding = "utf-16-le" if body[0] else "utf-16-be"
        return body.decode(encoding, "replace"), encoding
    header = re.search(r"charset\s*=\s*[\"']?([\w.:-]{1,40})", content_type, re.I)
    declared = DECLARED.match(body)
    names = [header[1]] if header else []
    names += [declared[1].decode("ascii")] if declared else []
    named = [WIDER.get(name.lower(), name.lower()) for name in names]
    traditional = re.match(r"zh-(tw|hk|mo|hant)", language, re.I)
    local = ("big5hkscs", "gb18030") if traditional else ("gb18030", "big5hkscs")
    probable = [*(name for name in named if name not in LATIN), "utf-8"]
    attempts = [(name, "strict") for name in probable] + [(name, "replace") for name in probable]
    attempts += [(name, "strict") for name in (*local, *named)]
    for encoding, errors in attempts:
        try:
            text = body.decode(encoding, errors)
        except (UnicodeDecodeError, LookupError):
            continue
        # A damaged character must not cost the rest; many of them mean another charset.
        if errors == "strict" or text.count("\ufffd") <= DAMAGED * len(text):
            return text, encoding
    return body.decode("utf-8", "replace"), "utf-8"


def clean(text: str, most: int = MAX_CHARACTERS) -> str:
    """Plain text of an HTML fragment: no scripts or styles, no tags, blanks joined, cut at `most`."""
    text = text[:MAX_HTML]
    text = _visible(text) if "<" in text else html.unescape(text)
    # Controls, marks that turn the writing direction, and halves of surrogate pairs, which no file can hold.
    text = "".join(" " if unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp") else c for c in text)
    text = re.sub("[\u200b\u200e\u200f\u202a-\u202e\u2060\u2066-\u2069\ufeff]", "", text)
    return BLANKS.sub(" ", text).strip()[:most].rstrip()


def _visible(fragment: str) -> str:
    """What a reader sees of HTML, with blanks around blocks only: Chinese has none around a bold word.

    The standard library's parser (also under Beautiful Soup) takes minutes for 100 KB of `<a <a <a`.
    """
    parts: list[str] = []
    at, hidden = 0, ""
    for token in TOKEN.finditer(fragment):
        if not hidden:
            parts.append(fragment[at : token.start()])
        at = token.end()
        name = token["name"].lower() if token["name"] else token[0]
        closes = token[0].startswith("</")
        if hidden:
            hidden = "" if name == hidden and (closes or name == "-->") else hidden
        elif name == "<!--":
            hidden = "-->"
        elif name == "-->":
            parts.append(name)
        elif name in UNSEEN and not closes and not token[0].endswith("/>"):
            hidden = name
        if name not in INLINE:
            parts.append(" ")
    if not hidden:
        parts.append(fragment[at:])
    return html.unescape("".join(parts))


def parse(body: bytes, content_type: str = "", url: str = "", language: str = "") -> ParsedFeed:
    """Read RSS or Atom with `feedparser`; `http.FetchError` for what is no feed or cannot be read."""
    import feedparser

    if not body.strip():
        raise http.FetchError("broken", "the answer has no content")
    text, encoding = decode(body, content_type, language)
    data = re.sub(r"^\s*<\?xml[^>]*\?>", "", text).encode("utf-8", "replace")
    if len(data) > MAX_BROKEN:
        try:
            xml.parsers.expat.ParserCreate("utf-8", namespace_separator=" ").Parse(data, True)
        except xml.parsers.expat.ExpatError as error:
            reason = f"{len(data):,} bytes that are not well-formed XML: {error}"
            raise http.FetchError("broken", reason) from error
    headers = {"content-type": "application/xml; charset=utf-8", "content-location": url}
    # As a stream: bytes that look like a path or an address would be opened or fetched.
    try:
        feed = feedparser.parse(
            io.BytesIO(data), response_headers=headers, sanitize_html=False, resolve_relative_uris=False
        )
        entries = [_entry(entry) for entry in feed.entries[:MAX_ENTRIES]]
    except Exception as error:  # the parser of a stranger's bytes: whatever it trips over is the feed's fault
        raise http.FetchError(
            "broken", f"feedparser cannot read it: {type(error).__name__}: {error}"[:300]
        ) from error
    problem = str(feed.get("bozo_exception", "")) if feed.get("bozo") else ""
    if not feed.entries:
        if not feed.version:
            kind = content_type.partition(";")[0].strip() or "no content type"
            raise http.FetchError(
                "not a feed", f"neither RSS nor Atom ({kind}){': ' + problem if problem else ''}"[:300]
            )
        if problem:
            raise http.FetchError("broken", f"no entry can be read: {problem}"[:300])
    notes = [f"broken XML ({problem[:120]})"] if problem else []
    if len(feed.entries) > MAX_ENTRIES:
        notes.append(f"the first {MAX_ENTRIES:,} of {len(feed.entries):,} entries")
    if "\ufffd" in text:
        notes.append(f"characters that are not {encoding}")
    return ParsedFeed(clean(feed.feed.get("title", ""), MAX_TITLE), entries, "; ".join(notes))


def _entry(entry: Any) -> Entry:
    """Title, and the longer of summary and content; some feeds put the same short text into both."""
    texts = [entry.get("summary", ""), *(part.get("value", "") for part in entry.get("content", []))]
    link = clean(entry.get("link", ""), 2000)
    moment = entry.get("published_parsed") or entry.get("updated_parsed")
    return Entry(
        title=clean(entry.get("title", ""), MAX_TITLE),
        text=max(map(clean, texts), key=len),
        link=link if re.match(r"https?://", link) else "",
        published=time.strftime("%Y-%m-%dT%H:%M:%SZ", moment) if moment else "",
    )


RUN = 5
"""Characters of a run."""
WINDOW = 6
"""Runs of a window: two texts that share `RUN + WINDOW - 1` = 10 characters in a row share a fingerprint."""
NEAR = 0.8
"""Share of the shorter text's runs that the longer one has, from which on they count as the same."""
LEAST_RUNS = 12
"""Shorter texts are the same only when they are equal."""
COMMON = 64
"""A fingerprint of so many different items is boilerplate and names no candidates."""
CANDIDATES = 8
LEAST_SHARED = 0.25
"""Share of the fewer fingerprints; texts that share `NEAR` of their runs share far more."""
SHORT_TITLE = 4
"""Titles of fewer characters say too little to be the same news."""
SIGNS = re.compile(r"[\W_]+")
SEPARATED = re.compile(r"\s*[-_|·•—–~]+\s*([^-_|·•—–~]{1,20})\s*$")
OUTLET = re.compile(
    r"(网|網|新闻|新聞|日报|日報|晚报|晚報|时报|時報|早报|周刊|週刊|在线|在線|客户端|频道|頻道|通讯社|通訊社|社区|电视台"
    r"|新浪|搜狐|网易|腾讯|凤凰|新华|人民|央视|澎湃|头条|体育|娱乐|科技|游戏|教育|健康|\.(com|cn|net|org|tw|hk))$"
)


def normal_text(text: str) -> str:
    """Text for comparison: NFKC (one width), one case, letters and digits only."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    return SIGNS.sub("", folded)


def normal_title(title: str, feed_name: str = "") -> str:
    """Title for comparison, without the outlet that many append ("… - 新浪", "…_体育_腾讯网").

    >>> normal_title("女排３：１晋级！_体育频道_新浪网") == normal_title("女排3:1晋级 - 新浪")
    True
    """
    text = unicodedata.normalize("NFKC", title).casefold()
    name = normal_text(feed_name)
    while match := SEPARATED.search(text):
        tail = match[1].strip()
        if not OUTLET.search(tail) and not (name and normal_text(tail) and normal_text(tail) in name):
            break
        if not normal_text(text[: match.start()]):
            break  # the outlet's name is all there is
        text = text[: match.start()]
    # A title of signs alone keeps its signs.
    return normal_text(text) or "".join(text.split())


def run_hashes(text: str) -> np.ndarray:
    """64-bit hashes of all runs of `RUN` characters, in order; shape (len(text) - RUN + 1,)."""
    runs = [text[i : i + RUN] for i in range(len(text) - RUN + 1)]
    import pandas as pd  # here: `resolve` and `cost` look at news without it, and start sooner

    return pd.util.hash_array(np.array(runs, dtype=object), categorize=False)


def fingerprints(hashes: np.ndarray) -> np.ndarray:
    """The smallest hash of each window of `WINDOW` runs, each once."""
    if len(hashes) <= WINDOW:
        return np.unique(hashes.min(keepdims=True)) if len(hashes) else hashes
    return np.unique(np.lib.stride_tricks.sliding_window_view(hashes, WINDOW).min(axis=1))


class Seen:
    """Items kept so far. The first of like items is kept, so a later item never pushes an earlier one out."""

    def __init__(self) -> None:
        self._titles: set[str] = set()
        self._texts: dict[str, int] = {}  # text -> number of its fingerprints
        self._holders: defaultdict[int, list[str]] = defaultdict(list)  # fingerprint -> texts

    def add(self, title: str, text: str, feed_name: str = "") -> bool:
        """Keep an item: True, or False where its title, its text or nearly its text is kept already."""
        heading, body = normal_title(title, feed_name), normal_text(text)
        if (len(heading) >= SHORT_TITLE and heading in self._titles) or (body and body in self._texts):
            return False
        hashes = run_hashes(body)
        prints = fingerprints(hashes).tolist()
        if self._is_near(hashes, prints):
            return False
        self._titles.add(heading)
        self._texts[body] = len(prints)
        for value in prints:
            if len(self._holders[value]) < COMMON:
                self._holders[value].append(body)
        return True

    def _is_near(self, hashes: np.ndarray, prints: list[int]) -> bool:
        runs = np.unique(hashes)
        if len(runs) < LEAST_RUNS:
            return False
        shared: Counter[str] = Counter()
        for value in prints:
            holders = self._holders.get(value, ())
            if len(holders) < COMMON:
                shared.update(holders)
        for text, n in shared.most_common(CANDIDATES):
            if n < LEAST_SHARED * min(len(prints), self._texts[text]):
                continue
            others = np.unique(run_hashes(text))
            smaller = min(len(runs), len(others))
            common = len(np.intersect1d(runs, others, assume_unique=True))
            if smaller >= LEAST_RUNS and common >= NEAR * smaller:
                return True
        return False
