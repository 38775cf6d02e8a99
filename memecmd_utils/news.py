"""News items for cold starts: the example file, a file of one's own, or collected RSS and Atom feeds.

A collection is a folder: `news.jsonl` (every item with its provenance; also for `news: PATH`) and `feeds.csv`
(how each feed fared the last time), written once all feeds are asked. The linked articles are not fetched.
"""

import hashlib
import io
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    field_validator,
    model_validator,
)

from memecmd_utils import dialogue, fetch, files, library, schemas
from memecmd_utils.files import paths
from memecmd_utils.llm import authored
from memecmd_utils.settings import Profile

MIN_CHARACTERS, MAX_CHARACTERS, MAX_TITLE = 20, 2000, 200
"""An item with less text gives two people nothing to talk about; a longer one is cut."""
SAME_START = 100
"""Letters at the beginning of two texts that make them the same news: outlets print each other's reports."""
TOPICS = f"the topics are {', '.join(schemas.TOPICS)}"
WRITE = (
    "`feeds` is a list of topic=URL, or the path of one YAML file that maps topics to lists of url, name, "
    f"terms, language (see data/feeds.yaml); {TOPICS}"
)


class NewsError(files.MemecmdError, ValueError):
    """News cannot be had as the profile asks; the message says what to set."""


class Feed(BaseModel):
    """One RSS or Atom feed; `terms`: what its list's author understood, which goes with every item."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    topic: schemas.Topic
    url: str
    name: str = ""
    terms: str = ""
    language: str = ""

    @field_validator("url")
    @classmethod
    def _can_be_asked(cls, url: str) -> str:
        if not fetch.host_of(url):
            raise ValueError("an address begins with http:// or https:// and holds no user and password")
        return url


class CollectedItem(schemas.NewsItem):
    """A news item with where it comes from, as far as that is known; dates are UTC, ISO 8601."""

    model_config = ConfigDict(extra="ignore")

    source: str = "user news"
    link: str = ""
    published: str = ""
    feed_url: str = ""
    terms: str = ""
    fetched: str = ""

    @model_validator(mode="before")
    @classmethod
    def _empty_is_absent(cls, data: Any) -> Any:
        return {k: v for k, v in data.items() if v not in (None, "")} if isinstance(data, dict) else data


def load_news(profile: Profile) -> Sequence[schemas.NewsItem]:
    """News items as the profile says: `news: example`, a JSONL path, or `feeds`.

    Feeds are asked only where fewer are collected than the run starts from (`dialogue.planned`). Raises
    `NewsError` for a file that does not hold one item a line, each with an id of its own.
    """
    wanted, named = len(dialogue.planned(profile)["news"]), profile.dialogue.news
    if not wanted:
        return []
    if named == "example":
        return authored.load_news()
    if named != "feeds":
        path = paths.user_path(named)
        if not path.is_file():
            raise NewsError(f"{named!r} is not `example`, `feeds` or a file")
        try:
            items = files.read_jsonl(path, CollectedItem)
        except files.StageOutputError as error:
            each = "each line is an item, an object of JSON with news_id, topic, title and text"
            raise NewsError(f"{error}; {each}; {TOPICS}") from error
        ids = [item.news_id for item in items]
        if doubled := [name for place, name in enumerate(ids) if name in ids[:place]]:
            raise NewsError(f"{path.name}: news_id {doubled[0]!r} must name one item")
        return items
    folder = collection_folder(profile)
    items = collected(folder)
    return items if len(items) >= wanted else collect(read_feeds(profile.dialogue.feeds), folder)


def collection_folder(profile: Profile) -> Path:
    """Where a profile's collection lies; all runs of the profile share it."""
    return paths.raw / "news" / profile.name


def collected(folder: Path) -> list[CollectedItem]:
    """What was collected so far, the earliest first; nothing is fetched."""
    path = folder / "news.jsonl"
    return files.read_jsonl(path, CollectedItem) if path.is_file() else []


def read_feeds(entries: Sequence[str]) -> list[Feed]:
    """Feeds of the profile's key `feeds`: `[topic=URL, ...]`, or one path of a YAML file."""
    try:
        if len(entries) == 1 and "=" not in entries[0]:
            lists = yaml.safe_load(paths.user_path(entries[0]).read_text(encoding="utf-8"))
            rows = [{**row, "topic": topic} for topic, listed in lists.items() for row in listed]
        else:
            rows = [dict(zip(("topic", "url"), entry.partition("=")[::2], strict=True)) for entry in entries]
        return TypeAdapter(Annotated[list[Feed], Field(min_length=1)]).validate_python(rows)
    except ValidationError as error:
        # Without the address, which may hold a password.
        raise NewsError(f"feeds: {error.errors(include_input=False)[0]['msg']}; {WRITE}") from None
    except (OSError, yaml.YAMLError, UnicodeDecodeError, TypeError, AttributeError) as error:
        raise NewsError(f"feeds: {entries[0]} cannot be read ({error}): {WRITE}") from error


def collect_for(profile: Profile) -> str:
    """Collect a profile's news now and say how it went: what `make collect-news` prints."""
    folder = collection_folder(profile)
    items = collect(read_feeds(profile.dialogue.feeds), folder)
    fared = pd.read_csv(folder / "feeds.csv")[["topic", "new", "url", "status"]].to_string(index=False)
    wanted = len(dialogue.planned(profile)["news"])
    return f"{fared}\n{len(items):,} of {wanted:,} news items are in {folder}"


def collect(feeds: Sequence[Feed], folder: Path) -> list[CollectedItem]:
    """Ask every feed for what is new in it; return all items that were ever collected, the earliest first.

    Raises `NewsError` when every feed fails.
    """
    from tqdm.auto import tqdm

    items, fared = collected(folder), []
    seen = {mark for item in items for mark in marks(item)}
    client = fetch.Client()
    try:
        for feed in tqdm(feeds, desc="feeds", unit="feed"):
            status, before, now = "read", len(items), datetime.now(UTC).isoformat(timespec="seconds")
            try:
                for item in read_feed(feed, *client.get(feed.url), now):
                    if not seen & marks(item):
                        items.append(item)
                        seen |= marks(item)
            except (fetch.FetchError, NewsError) as error:
                status = f"failed: {error}"
            about = feed.model_dump(include={"topic", "name", "url"})
            fared.append({**about, "status": status, "checked": now, "new": len(items) - before})
    finally:  # also where a person stops it
        files.write_jsonl(folder / "news.jsonl", items)
        files.write_frame(folder / "feeds.csv", pd.DataFrame(fared))
    if all(row["status"] != "read" for row in fared):
        reasons = "\n".join(f"  {row['url']}: {row['status']}" for row in fared)
        raise NewsError(f"none of the {len(feeds)} feeds could be read:\n{reasons}")
    return items


def marks(item: CollectedItem) -> set[str]:
    """Id, title and first letters of the text: items that share one of them are the same news."""
    title, text = (library.normalise_text(part) for part in (item.title, item.text))
    return {item.news_id, title, text[:SAME_START]}


def read_feed(feed: Feed, body: bytes, kind: str, fetched: str) -> list[CollectedItem]:
    """The items of an RSS or Atom feed that have a title and a text; `kind`: its content type.

    Raises `NewsError` for other bytes.
    """
    import feedparser

    try:  # as a stream: bytes that look like an address would be fetched
        headers = {"content-type": kind} if kind else {}
        parsed = feedparser.parse(io.BytesIO(body), response_headers=headers, sanitize_html=False)
    except Exception as error:  # the parser of a stranger's bytes: whatever it trips over is the feed's fault
        raise NewsError(f"it cannot be read: {type(error).__name__}: {error}"[:200]) from error
    if not parsed.entries and not parsed.version:
        raise NewsError("it is neither RSS nor Atom")
    about = {"feed_url": feed.url, "topic": feed.topic, "terms": feed.terms, "fetched": fetched}
    items = []
    for entry in parsed.entries:
        title, link = plain(entry.get("title", ""), MAX_TITLE), entry.get("link", "")
        texts = [entry.get("summary", ""), *(part.get("value", "") for part in entry.get("content", []))]
        text = max((plain(text, MAX_CHARACTERS) for text in texts), key=len)  # one may be a stump
        moment = entry.get("published_parsed") or entry.get("updated_parsed")
        about["published"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", moment) if moment else ""
        about["link"] = link if fetch.host_of(link) else ""
        name = f"{feed.topic}-{hashlib.sha256((about['link'] or title).encode()).hexdigest()[:10]}"
        if title and len(text) >= MIN_CHARACTERS:
            source = f"feed {about['link'] or feed.url}"
            items.append(CollectedItem(news_id=name, title=title, text=text, source=source, **about))
    return items


def plain(fragment: str, most: int) -> str:
    """What a reader sees of an HTML fragment, in one line of at most `most` characters."""
    from bs4 import BeautifulSoup

    soup = BeautifulSoup(fragment[: 10 * MAX_CHARACTERS], "html.parser")
    for tag in soup(["script", "style"]):
        tag.decompose()
    for tag in soup(["p", "br", "div", "li"]):
        tag.insert_after(" ")  # around blocks only: Chinese has no blank around a bold word
    return "".join(c for c in " ".join(soup.get_text().split()) if c.isprintable())[:most].rstrip()
