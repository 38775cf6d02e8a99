"""News items for cold starts: the example file, a file of the user's own, or collected RSS and Atom feeds.

A collection is on disk after each feed: `state/` has a file a feed with all its items. From it are made
`items.jsonl` (no duplicates, full provenance), `news.jsonl` (for `news: PATH`) and `feeds.csv` (how each
fared).
"""

import asyncio
import dataclasses
import hashlib
import os
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlsplit

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError, field_validator

from memecmd_utils import files, schemas, settings
from memecmd_utils.core import machine
from memecmd_utils.core.fetch import http
from memecmd_utils.dialogue import feeds as dialogue_feeds
from memecmd_utils.files import paths
from memecmd_utils.llm import authored, chat

LIMITS = http.Limits()
PURPOSE = "news feed reader of a research package"
ACCEPT = "application/atom+xml, application/rss+xml, application/xml;q=0.9, text/xml;q=0.8, */*;q=0.1"
MAX_AGE_S = 6 * 3600.0
"""A feed that was read within this time is not asked again."""
MIN_CHARACTERS = 20
"""An item with less text gives two people nothing to talk about."""
DONE = ("read", "unchanged", "empty", "forbidden")
"""States that stand until `MAX_AGE_S` is over; a feed that failed is asked again at the next call."""
COLUMNS = (
    "topic", "name", "url", "final_url", "status", "http_code", "robots", "checked", "items", "new",
    "kept", "duplicates", "left_out", "reason", "terms", "language",
)  # fmt: skip
WRITE = "write topic=URL, or name one YAML file such as data/feeds.yaml"
FEED_KEYS = f"a feed has url, name, terms, language; the topics are {', '.join(schemas.TOPICS)}"


class NewsError(files.MemecmdError, ValueError):
    """News cannot be had as the profile asks; the message says what to set."""


class Feed(BaseModel):
    """One RSS or Atom feed."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    topic: schemas.Topic
    url: schemas.Text
    """An http(s) address, or the path of a saved feed, relative to the project's root."""
    name: str = ""
    terms: str = ""
    """Licence or terms of use as the list's author understood them; it goes with every item."""
    language: str = ""
    """BCP 47, such as zh-CN or zh-TW."""

    @field_validator("url")
    @classmethod
    def _can_be_asked(cls, url: str) -> str:
        if "://" in url and not http.host_of(url):
            raise ValueError(
                "an address begins with http:// or https://, names a host, and holds no user and password: "
                "it is written to the records"
            )
        return url

    @property
    def is_file(self) -> bool:
        """Whether this is a saved feed on this disk."""
        return "://" not in self.url

    @property
    def host(self) -> str:
        """Host in lower case; empty for a file."""
        return "" if self.is_file else (urlsplit(self.url).hostname or "")


class CollectedItem(BaseModel):
    """One news item with its provenance."""

    news_id: str
    topic: schemas.Topic
    title: str
    text: str
    link: str
    published: str
    feed_url: str
    feed_name: str
    terms: str
    language: str
    fetched: str
    """UTC, ISO 8601: when it was first seen."""

    def news_item(self) -> schemas.NewsItem:
        """The record that a cold start is made of."""
        return schemas.NewsItem(
            news_id=self.news_id,
            topic=self.topic,
            title=self.title,
            text=self.text,
            source=f"feed {self.link or self.feed_url}",
        )


class FeedState(BaseModel):
    """What is known of one feed: how the last request went, and every item it ever gave."""

    url: str
    status: str = "not asked"
    reason: str = ""
    http_code: int | None = None
    robots: str = ""
    final_url: str = ""
    checked: float = 0.0
    """Seconds since 1970."""
    not_before: float = 0.0
    etag: str = ""
    last_modified: str = ""
    new: int = 0
    left_out: int = 0
    """Entries of the last answer without a title or with too little text."""
    items: list[CollectedItem] = []


@dataclasses.dataclass(frozen=True)
class Collection:
    """The items that are kept, the earliest first, and one row a feed as in feeds.csv."""

    items: list[CollectedItem]
    rows: list[dict[str, object]]

    def totals(self) -> str:
        """Items kept per topic, all six topics, in words."""
        counts = Counter(item.topic for item in self.items)
        return ", ".join(f"{topic} {counts[topic]:,}" for topic in schemas.TOPICS)


def collection_folder(profile: settings.Profile) -> Path:
    """Where a profile's collection lies; all runs of the profile share it."""
    return paths.raw / "news" / profile.name


def load_news(profile: settings.Profile) -> list[schemas.NewsItem]:
    """News items as the profile says: `news: example`, a JSONL path, or `feeds`.

    Feeds are asked only where fewer than `n_news` are collected; still too few are a `NewsError`.
    """
    if not profile.dialogue.n_news:
        return []
    if profile.dialogue.news == "example":
        return authored.load_news()
    if profile.dialogue.news == "feeds":
        feeds, folder = read_feeds(profile.dialogue.feeds), collection_folder(profile)
        collection = compile_items(feeds, folder)
        if len(collection.items) < profile.dialogue.n_news:
            collection = collect(feeds, folder)
        if len(collection.items) < profile.dialogue.n_news:
            raise NewsError(
                f"n_news={profile.dialogue.n_news}, but the feeds gave {len(collection.items)} news items "
                f"({collection.totals()}). A feed shows only its newest items: run `make collect-news "
                f"PROFILE={profile.name}` on later days to add to them, name more feeds, or lower n_news; "
                f"how each feed fared is in {folder / 'feeds.csv'}"
            )
        return [item.news_item() for item in collection.items]
    path = paths.user_path(profile.dialogue.news)
    if not path.is_file():
        raise NewsError(f"news: {profile.dialogue.news!r} is neither `example`, `feeds`, nor a file")
    return files.read_jsonl(path, schemas.NewsItem)


def collected(profile: settings.Profile) -> int:
    """How many news items were collected so far from the profile's feeds; nothing is fetched."""
    return len(compile_items(read_feeds(profile.dialogue.feeds), collection_folder(profile)).items)


def collect_for(profile: settings.Profile) -> str:
    """Collect a profile's news now and say how it went: what `make collect-news` prints."""
    if profile.dialogue.news != "feeds":
        raise NewsError(
            f"profile {profile.name} has `news: {profile.dialogue.news}`: to collect, set `news: feeds` "
            "and `feeds`"
        )
    feeds, folder = read_feeds(profile.dialogue.feeds), collection_folder(profile)
    collection = collect(feeds, folder)
    lines = [
        f"{row['topic']:<13} {row['status']:<11} {row['new']:>4} new {row['kept']:>5} kept "
        f"{row['duplicates']:>4} duplicates  {row['name'] or row['url']}"
        + (f": {row['reason']}" if row["reason"] else "")
        for row in collection.rows
    ]
    enough = "enough" if len(collection.items) >= profile.dialogue.n_news else "not yet enough"
    total = f"{len(collection.items):,} news items ({collection.totals()})"
    lines.append(f"{total}: {enough} for n_news={profile.dialogue.n_news:,}")
    lines.append(f"the collection is in {folder}")
    return "\n".join(lines)


def read_feeds(entries: Sequence[str]) -> list[Feed]:
    """Feeds of the profile's key `feeds`: `[topic=URL, ...]`, or one path of a YAML file."""
    if not entries:
        raise NewsError(f"news: feeds needs the key `feeds`: {WRITE}")
    if (path := list_file(entries)) is not None:
        rows = _rows_of_file(path)
    else:
        rows = [dict(zip(("topic", "url"), entry.partition("=")[::2], strict=True)) for entry in entries]
    feeds: dict[str, Feed] = {}
    for row in rows:
        try:
            feed = Feed.model_validate(row)
        except ValidationError as error:
            first = error.errors()[0]
            url = str(row.get("url") or row).rpartition("@")[2]  # what stands before it may be a password
            raise NewsError(
                f"feed {url!r}: {'.'.join(map(str, first['loc']))}: {first['msg']}; {WRITE}; {FEED_KEYS}"
            ) from None
        if feed.url in feeds:
            raise NewsError(f"feed {feed.url} stands twice in the list")
        feeds[feed.url] = feed
    if not feeds:
        raise NewsError(f"the list of feeds is empty; {WRITE}")
    return list(feeds.values())


def list_file(entries: Sequence[str]) -> Path | None:
    """The YAML file that the key `feeds` names; None where it names the feeds themselves."""
    if len(entries) == 1 and entries[0].endswith((".yaml", ".yml")) and "=" not in entries[0]:
        return paths.user_path(entries[0])
    return None


def _rows_of_file(path: Path) -> list[dict]:
    """Feeds of a YAML file: a mapping of topics to lists of {url, name, terms, language}."""
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise NewsError(f"feeds: {path} is not there; {WRITE}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise NewsError(f"feeds: {path.name} is not YAML: {error}") from error
    lists = values.values() if isinstance(values, dict) else [None]
    if not all(isinstance(rows, list) and all(isinstance(row, dict) for row in rows) for rows in lists):
        raise NewsError(f"feeds: {path.name} must map topics to lists of feeds; {FEED_KEYS}")
    return [{**row, "topic": topic} for topic, rows in values.items() for row in rows]


def collect(feeds: Sequence[Feed], folder: Path) -> Collection:
    """Ask every feed that was not read within `MAX_AGE_S`, add its new items, write the collection's files.

    Raises `NewsError` when every feed fails, or when another collection is writing into `folder`.
    """
    files.need_live_extra("collecting news")
    folder.mkdir(parents=True, exist_ok=True)
    lock = files.lock(folder / ".lock")
    if lock is None:
        raise NewsError(f"another collection is writing into {folder}: wait until it is done")
    with lock:
        try:
            chat.run(_ask_all(feeds, folder))
        finally:  # also when stopped by hand: what came is shown
            collection = compile_items(feeds, folder)
            files.write_jsonl(folder / "items.jsonl", collection.items)
            files.write_jsonl(folder / "news.jsonl", (item.news_item() for item in collection.items))
            files.write_csv(folder / "feeds.csv", COLUMNS, collection.rows)
    good = [row for row in collection.rows if row["status"] in ("read", "unchanged", "empty")]
    if not good:
        reasons = "\n".join(f"  {row['url']}: {row['status']}: {row['reason']}" for row in collection.rows)
        raise NewsError(f"none of the {len(feeds)} feeds could be read:\n{reasons}")
    return collection


def compile_items(feeds: Sequence[Feed], folder: Path) -> Collection:
    """Items of these feeds in `folder`, without duplicates, in the order in which they were first seen.

    Later items never push out earlier ones, so what a run took stays the same.
    """
    states = [_load(feed, folder) for feed in feeds]
    names = {feed.url: feed.name for feed in feeds}
    # Stable: then in the order of the list and of the feed.
    everything = sorted((item for state in states for item in state.items), key=lambda item: item.fetched)
    seen, ids = dialogue_feeds.Seen(), set()
    kept: list[CollectedItem] = []
    for item in everything:
        if item.news_id not in ids and seen.add(item.title, item.text, names[item.feed_url]):
            ids.add(item.news_id)
            kept.append(item)
    per_feed = Counter(item.feed_url for item in kept)
    rows = []
    for feed, state in zip(feeds, states, strict=True):
        values = state.model_dump(exclude={"items"}) | feed.model_dump()
        values["checked"] = _iso(state.checked) if state.checked else ""
        values["items"], values["kept"] = len(state.items), per_feed[feed.url]
        values["duplicates"] = values["items"] - values["kept"]
        rows.append({column: values[column] for column in COLUMNS})
    return Collection(kept, rows)


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _state_file(feed: Feed, folder: Path) -> Path:
    digest = hashlib.sha256(feed.url.encode()).hexdigest()[:16]
    return folder / "state" / f"{feed.topic}-{digest}.json"


def _load(feed: Feed, folder: Path) -> FeedState:
    path = _state_file(feed, folder)
    if not path.is_file():
        return FeedState(url=feed.url)
    try:
        return FeedState.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise NewsError(f"{path} is damaged; delete it to collect {feed.url} anew: {error}") from error


async def _ask_all(feeds: Sequence[Feed], folder: Path) -> None:
    """Hosts side by side, the feeds of one host one after the other."""
    from tqdm.auto import tqdm

    now = time.time()
    by_host: dict[str, list[tuple[Feed, FeedState]]] = defaultdict(list)
    for feed in feeds:
        state = _load(feed, folder)
        rested = state.status not in DONE or now - state.checked >= MAX_AGE_S
        if rested and now >= state.not_before:
            by_host[feed.host].append((feed, state))
    client = http.Client(LIMITS, PURPOSE, ACCEPT)
    room = asyncio.Semaphore(LIMITS.hosts)

    async def ask_host(pairs: Iterable[tuple[Feed, FeedState]]) -> None:
        async with room, client.visit() as visit:
            for feed, state in pairs:
                await _ask(feed, state, visit)
                files.write_text(_state_file(feed, folder), state.model_dump_json() + "\n")
                bar.update()
                if status:
                    Path(status).write_text(f"feeds {bar.n}/{total}", encoding="utf-8")

    total, status = sum(map(len, by_host.values())), os.environ.get(machine.STATUS_VARIABLE)
    with tqdm(total=total, desc="feeds", unit="feed", disable=not total) as bar:
        async with asyncio.TaskGroup() as group:
            for pairs in by_host.values():
                group.create_task(ask_host(pairs))


async def _ask(feed: Feed, state: FeedState, visit: http.Visit) -> None:
    """Ask one feed and put what came into its state."""
    state.checked, state.not_before, state.new, state.left_out = time.time(), 0.0, 0, 0
    state.http_code, state.robots, state.reason = None, "", ""
    try:
        if feed.is_file:
            answer = _read_file(feed)
        else:
            answer = await visit.fetch(
                feed.url, etag=state.etag, last_modified=state.last_modified, validated=state.final_url
            )
        state.http_code, state.robots, state.final_url = answer.code or None, answer.robots, answer.url
        if answer.code == 304:
            state.status = "unchanged"
            return
        kind = answer.headers.get("content-type", "")
        parsed = await asyncio.to_thread(dialogue_feeds.parse, answer.body, kind, answer.url, feed.language)
    except http.FetchError as error:
        state.status, state.reason = error.status, error.reason
        state.http_code = error.http_code or state.http_code
        state.robots = error.robots or state.robots
        state.not_before = time.time() + error.wait_s if error.wait_s else 0.0
        return
    _add(feed, state, parsed)
    state.etag, state.last_modified = (answer.headers.get(name, "") for name in ("etag", "last-modified"))


def _read_file(feed: Feed) -> http.Answer:
    path = paths.user_path(feed.url)
    try:
        with path.open("rb") as handle:
            body = handle.read(LIMITS.max_bytes + 1)
    except OSError as error:
        raise http.FetchError("unreachable", f"{path}: {error.strerror}") from error
    if len(body) > LIMITS.max_bytes:
        raise http.FetchError("too big", f"more than {LIMITS.max_bytes:,} bytes")
    return http.Answer(feed.url, 0, {}, body)


def _add(feed: Feed, state: FeedState, parsed: dialogue_feeds.ParsedFeed) -> None:
    """Add what is new. An id is a hash of the link, else of the title; an item's first version stands."""
    known = {item.news_id for item in state.items}
    for entry in parsed.entries:
        title = dialogue_feeds.normal_text(entry.title)
        if not title or len(entry.text) < MIN_CHARACTERS or dialogue_feeds.normal_text(entry.text) == title:
            state.left_out += 1
            continue
        digest = hashlib.sha256((entry.link or entry.title).encode()).hexdigest()[:10]
        name = f"{feed.topic}-{digest}"
        if name in known:
            continue
        known.add(name)
        state.new += 1
        item = CollectedItem(
            news_id=name,
            **dataclasses.asdict(entry),
            **feed.model_dump(include={"topic", "terms", "language"}),
            feed_url=feed.url,
            feed_name=feed.name or parsed.title,
            fetched=_iso(state.checked),
        )
        state.items.append(item)
    state.status = "read" if parsed.entries else "empty"
    state.reason = parsed.note
