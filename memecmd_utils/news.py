"""News items for cold starts: the example file, a file of the user's own, or RSS and Atom feeds."""

import hashlib
import html
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from memecmd_utils import example_corpus, paths, storage
from memecmd_utils.profiles import Profile
from memecmd_utils.schemas import TOPICS, NewsItem

TAGS = re.compile(r"</?[A-Za-z!][^>]*>")  # not the signs in "1 < 2"
BLANKS = re.compile(r"\s+")
MAX_CHARACTERS = 2000
MIN_CHARACTERS = 20


class NewsError(ValueError):
    """News cannot be had as the profile asks; the message says what to set."""


def load(profile: Profile) -> list[NewsItem]:
    """News items as the profile says: `news: example`, a JSONL path, or `feeds` with `feeds: [topic=URL]`."""
    if not profile.n_news:
        return []
    if profile.news == "example":
        return example_corpus.load_news()
    if profile.news == "feeds":
        if not profile.feeds:
            raise NewsError(
                "news: feeds needs the key `feeds`: a list of topic=URL, for example sports=https://…"
            )
        return [item for feed in profile.feeds for item in read_feed(*split_feed(feed))]
    path = paths.root / Path(profile.news).expanduser()
    if not path.is_file():
        raise NewsError(f"news: {profile.news!r} is neither `example`, `feeds`, nor a file")
    return storage.read_jsonl(path, NewsItem)


def split_feed(feed: str) -> tuple[str, str]:
    """Split `topic=URL`; the topic must be one of the six."""
    topic, equals, url = feed.partition("=")
    if not equals or topic not in TOPICS:
        raise NewsError(f"feed {feed!r}: write topic=URL with a topic of {', '.join(TOPICS)}")
    return topic, url


def clean(text: str) -> str:
    """Plain text of an HTML summary: tags out, entities resolved, blanks joined, cut at a length."""
    return BLANKS.sub(" ", html.unescape(TAGS.sub(" ", text))).strip()[:MAX_CHARACTERS]


def read_feed(topic: str, url: str, parse: Callable | None = None) -> list[NewsItem]:
    """Read one RSS or Atom feed with `feedparser`; items without enough text are left out."""
    if parse is None:
        from feedparser import parse
    feed = parse(url)
    if not feed.entries:
        raise NewsError(f"feed {url} could not be read: {feed.get('bozo_exception', 'no entries')}")
    return from_entries(topic, feed.entries)


def from_entries(topic: str, entries: Sequence) -> list[NewsItem]:
    """Turn feed entries into items; the id is a hash of the link or title, doubles are left out."""
    items: dict[str, NewsItem] = {}
    for entry in entries:
        title, text = clean(entry.get("title", "")), clean(entry.get("summary", ""))
        if not title or len(text) < MIN_CHARACTERS:
            continue
        digest = hashlib.sha256((entry.get("link") or title).encode()).hexdigest()[:10]
        name = f"{topic}-{digest}"
        items.setdefault(
            name,
            NewsItem(
                news_id=name, topic=topic, title=title, text=text, source=f"feed {entry.get('link', '')}"
            ),
        )
    return list(items.values())
