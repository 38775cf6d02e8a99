"""A collection of news: what every feed gave so far, on disk after each feed, without duplicates.

`state/` has one file a feed with all its items, so a collection that was killed goes on where it stopped and
a later one adds to it. From it are made `items.jsonl` (no duplicates, full provenance), `news.jsonl` (the
same as plain news items, for `news: PATH`) and `feeds.csv` (how each feed fared).
"""

import asyncio
import hashlib
import os
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from pydantic import BaseModel, ValidationError

from memecmd_utils import live_extra, llm, paths, storage
from memecmd_utils.news_duplicates import Seen, normal_text
from memecmd_utils.news_feeds import Feed, NewsError
from memecmd_utils.news_fetch import Fetched, Fetcher
from memecmd_utils.news_http import FetchError, Limits
from memecmd_utils.news_parse import ParsedFeed, parse
from memecmd_utils.schemas import TOPICS, NewsItem, Topic
from memecmd_utils.status_line import STATUS_VARIABLE

MIN_CHARACTERS = 20
"""An item with less text gives two people nothing to talk about."""
DONE = ("read", "unchanged", "empty", "forbidden")
"""States that stand until `max_age_s` is over; a feed that failed is asked again at the next call."""
COLUMNS = (
    "topic", "name", "url", "final_url", "status", "http_code", "robots", "checked", "items", "new",
    "kept", "duplicates", "left_out", "reason", "terms", "language",
)  # fmt: skip


class CollectedItem(BaseModel):
    """One news item with its provenance."""

    news_id: str
    topic: Topic
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

    def news_item(self) -> NewsItem:
        """The record that a cold start is made of."""
        return NewsItem(
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


@dataclass(frozen=True)
class Collection:
    """The items that are kept, the earliest first, and one row a feed as in feeds.csv."""

    items: list[CollectedItem]
    rows: list[dict[str, object]]

    def per_topic(self) -> dict[str, int]:
        """Items kept per topic, all six topics."""
        return {topic: sum(item.topic == topic for item in self.items) for topic in TOPICS}

    def totals(self) -> str:
        """Items per topic in words."""
        return ", ".join(f"{topic} {n:,}" for topic, n in self.per_topic().items())


def collect(feeds: Sequence[Feed], folder: Path, limits: Limits | None = None) -> Collection:
    """Ask every feed that was not read within `max_age_s`, add its new items, write the collection's files.

    A feed that fails is named in feeds.csv and stops no other. Raises `NewsError` when every feed fails, or
    when another collection is writing into `folder`.
    """
    live_extra.need("collecting news")
    limits = limits or Limits()
    folder.mkdir(parents=True, exist_ok=True)
    lock = storage.lock(folder / ".lock")
    if lock is None:
        raise NewsError(f"another collection is writing into {folder}: wait until it is done")
    with lock:
        try:
            llm.run(_ask_all(feeds, folder, limits))
        finally:  # also when stopped by hand: what came is shown
            collection = compile_items(feeds, folder)
            _write(collection, folder)
    good = [row for row in collection.rows if row["status"] in ("read", "unchanged", "empty")]
    if not good:
        reasons = "\n".join(f"  {row['url']}: {row['status']}: {row['reason']}" for row in collection.rows)
        raise NewsError(f"none of the {len(feeds)} feeds could be read:\n{reasons}")
    return collection


def compile_items(feeds: Sequence[Feed], folder: Path) -> Collection:
    """Items of these feeds in `folder`, without duplicates, in the order in which they were first seen.

    Nothing is fetched. Later items never push out earlier ones, so what a run took stays the same.
    """
    states = [_load(feed, folder) for feed in feeds]
    names = {feed.url: feed.name for feed in feeds}
    everything = [item for state in states for item in state.items]
    everything.sort(key=lambda item: item.fetched)  # stable: then in the order of the list and of the feed
    seen, ids = Seen(), set()
    kept: list[CollectedItem] = []
    for item in everything:
        if item.news_id not in ids and not seen.add(item.title, item.text, names[item.feed_url]):
            ids.add(item.news_id)
            kept.append(item)
    per_feed = defaultdict(int)
    for item in kept:
        per_feed[item.feed_url] += 1
    rows = [_row(feed, state, per_feed[feed.url]) for feed, state in zip(feeds, states, strict=True)]
    return Collection(kept, rows)


def _row(feed: Feed, state: FeedState, kept: int) -> dict[str, object]:
    values = {
        **feed.model_dump(),
        **state.model_dump(
            include={"status", "http_code", "robots", "final_url", "reason", "new", "left_out"}
        ),
        "checked": _iso(state.checked) if state.checked else "",
        "items": len(state.items),
        "kept": kept,
        "duplicates": len(state.items) - kept,
    }
    return {column: values[column] for column in COLUMNS}


def _write(collection: Collection, folder: Path) -> None:
    storage.write_jsonl(folder / "items.jsonl", collection.items)
    storage.write_jsonl(folder / "news.jsonl", (item.news_item() for item in collection.items))
    storage.write_csv(folder / "feeds.csv", COLUMNS, collection.rows)


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


async def _ask_all(feeds: Sequence[Feed], folder: Path, limits: Limits) -> None:
    """Hosts side by side, the feeds of one host one after the other."""
    from tqdm.auto import tqdm

    now = time.time()
    by_host: dict[str, list[tuple[Feed, FeedState]]] = defaultdict(list)
    for feed in feeds:
        state = _load(feed, folder)
        rested = state.status not in DONE or now - state.checked >= limits.max_age_s
        if rested and now >= state.not_before:
            by_host[feed.host].append((feed, state))
    fetcher, room = Fetcher(limits), asyncio.Semaphore(limits.hosts)

    async def ask_host(pairs: Iterable[tuple[Feed, FeedState]]) -> None:
        async with room:
            for feed, state in pairs:
                await _ask(feed, state, fetcher)
                storage.write_text(_state_file(feed, folder), state.model_dump_json() + "\n")
                bar.update()
                if status:
                    Path(status).write_text(f"feeds {bar.n}/{total}", encoding="utf-8")

    total, status = sum(map(len, by_host.values())), os.environ.get(STATUS_VARIABLE)
    with tqdm(total=total, desc="feeds", unit="feed", disable=not total) as bar:
        async with asyncio.TaskGroup() as group:
            for pairs in by_host.values():
                group.create_task(ask_host(pairs))


async def _ask(feed: Feed, state: FeedState, fetcher: Fetcher) -> None:
    """Ask one feed and put what came into its state."""
    state.checked, state.not_before, state.new, state.left_out = time.time(), 0.0, 0, 0
    state.http_code, state.robots, state.reason = None, "", ""
    try:
        if feed.is_file:
            fetched = _read_file(feed, fetcher.limits)
        else:
            fetched = await fetcher.fetch(feed.url, state.etag, state.last_modified, state.final_url)
        state.http_code, state.robots, state.final_url = fetched.code or None, fetched.robots, fetched.url
        if fetched.unchanged:
            state.status = "unchanged"
            return
        found = await asyncio.to_thread(parse, fetched.body, fetched.content_type, fetched.url, feed.language)
    except FetchError as error:
        state.status, state.reason = error.status, error.reason
        state.http_code = error.http_code or state.http_code
        state.robots = error.robots or state.robots
        state.not_before = time.time() + error.wait_s if error.wait_s else 0.0
        return
    _add(feed, state, found)
    state.etag, state.last_modified = fetched.etag, fetched.last_modified


def _read_file(feed: Feed, limits: Limits) -> Fetched:
    path = paths.root / Path(feed.url).expanduser()
    try:
        with path.open("rb") as handle:
            body = handle.read(limits.max_bytes + 1)
    except OSError as error:
        raise FetchError("unreachable", f"{path}: {error.strerror}") from error
    if len(body) > limits.max_bytes:
        raise FetchError("too big", f"more than {limits.max_bytes:,} bytes")
    return Fetched(url=feed.url, code=0, robots="", body=body)


def _add(feed: Feed, state: FeedState, found: ParsedFeed) -> None:
    """Add what is new. An id is a hash of the link, else of the title; an item's first version stands."""
    known = {item.news_id for item in state.items}
    for entry in found.entries:
        title = normal_text(entry.title)
        if not title or len(entry.text) < MIN_CHARACTERS or normal_text(entry.text) == title:
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
            topic=feed.topic,
            title=entry.title,
            text=entry.text,
            link=entry.link,
            published=entry.published,
            feed_url=feed.url,
            feed_name=feed.name or found.title,
            terms=feed.terms,
            language=feed.language,
            fetched=_iso(state.checked),
        )
        state.items.append(item)
    state.status = "read" if found.entries else "empty"
    state.reason = found.note
