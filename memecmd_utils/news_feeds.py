"""The list of news feeds: topic, address, name, terms and language of each, from a profile or a YAML file."""

from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from memecmd_utils import paths
from memecmd_utils.errors import MemecmdError
from memecmd_utils.schemas import TOPICS, Text, Topic

WRITE = "write topic=URL, or name one YAML file such as data/feeds.yaml"


class NewsError(MemecmdError, ValueError):
    """News cannot be had as the profile asks; the message says what to set."""


class Feed(BaseModel):
    """One RSS or Atom feed."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    topic: Topic
    url: Text
    """An http(s) address, or the path of a saved feed, relative to the project's root."""
    name: str = ""
    terms: str = ""
    """Licence or terms of use as the list's author understood them; it goes with every item."""
    language: str = ""
    """BCP 47, such as zh-CN or zh-TW."""

    @property
    def is_file(self) -> bool:
        """Whether this is a saved feed on this disk."""
        return "://" not in self.url

    @property
    def host(self) -> str:
        """Host in lower case; empty for a file."""
        return "" if self.is_file else (urlsplit(self.url).hostname or "")


def split_feed(feed: str) -> tuple[str, str]:
    """Split `topic=URL`; the topic must be one of the six."""
    topic, equals, url = feed.partition("=")
    if not equals or topic not in TOPICS:
        raise NewsError(f"feed {feed!r}: {WRITE}; the topics are {', '.join(TOPICS)}")
    return topic, url


def read_feeds(entries: Sequence[str]) -> list[Feed]:
    """Feeds of the profile's key `feeds`: `[topic=URL, ...]`, or one path of a YAML file."""
    if not entries:
        raise NewsError(f"news: feeds needs the key `feeds`: {WRITE}")
    if (path := list_file(entries)) is not None:
        return read_feed_file(path)
    return _checked([dict(zip(("topic", "url"), split_feed(entry), strict=True)) for entry in entries])


def list_file(entries: Sequence[str]) -> Path | None:
    """The YAML file that the key `feeds` names; None where it names the feeds themselves."""
    if len(entries) == 1 and entries[0].endswith((".yaml", ".yml")) and "=" not in entries[0]:
        return paths.of_user(entries[0])
    return None


def read_feed_file(path: Path) -> list[Feed]:
    """Feeds of a YAML file: a mapping of topics to lists of {url, name, terms, language}."""
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise NewsError(f"feeds: {path} is not there; {WRITE}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise NewsError(f"feeds: {path.name} is not YAML: {error}") from error
    if not isinstance(values, dict) or not all(isinstance(rows, list) for rows in values.values()):
        raise NewsError(f"feeds: {path.name} must map topics ({', '.join(TOPICS)}) to lists of feeds")
    rows = []
    for topic, feeds in values.items():
        for feed in feeds:
            if not isinstance(feed, dict) or "topic" in feed:
                raise NewsError(
                    f"feeds: {path.name}, {topic}: a feed has url, name, terms, language; got {feed!r}"
                )
            rows.append({"topic": topic, **feed})
    return _checked(rows)


def _checked(rows: Sequence[dict]) -> list[Feed]:
    feeds: list[Feed] = []
    seen: set[str] = set()
    for row in rows:
        try:
            feed = Feed.model_validate(row)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            known = ", ".join(key for key in Feed.model_fields if key != "topic")
            raise NewsError(
                f"feed {row.get('url', row)!r}: {where}: {first['msg']}; a feed has {known}; "
                f"the topics are {', '.join(TOPICS)}"
            ) from None
        _check_address(feed)
        if feed.url in seen:
            raise NewsError(f"feed {feed.url} stands twice in the list")
        seen.add(feed.url)
        feeds.append(feed)
    if not feeds:
        raise NewsError(f"the list of feeds is empty; {WRITE}")
    return feeds


def _check_address(feed: Feed) -> None:
    if feed.is_file:
        return
    try:
        parts = urlsplit(feed.url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise NewsError(f"feed {feed.url!r}: {error}") from error
    if parts.scheme not in ("http", "https") or not host:
        raise NewsError(f"feed {feed.url!r}: the address must begin with http:// or https:// and name a host")
    if "@" in parts.netloc:
        raise NewsError(f"feed of {host}: leave user and password out, the address is written to the records")
