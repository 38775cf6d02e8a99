"""Fetching feeds politely: robots.txt first, one request at a time per host with a pause, few tries again."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urldefrag, urljoin, urlsplit

from memecmd_utils.news_http import (
    PRODUCT,
    REDIRECTS,
    TRY_AGAIN,
    Answer,
    FetchError,
    Guard,
    Limits,
    get,
    guarded_session,
    proxy_hosts,
    retry_after_s,
)
from memecmd_utils.news_robots import MAX_BYTES, Robots


@dataclass(frozen=True)
class Fetched:
    """What a feed's server gave: a body, or the word that nothing changed (304)."""

    url: str
    """The address after redirects."""
    code: int
    robots: str
    body: bytes = b""
    content_type: str = ""
    etag: str = ""
    last_modified: str = ""

    @property
    def unchanged(self) -> bool:
        """Whether the server said 304."""
        return self.code == 304


@dataclass
class _Host:
    """One host: who may ask now, and when the next request may go out (time of the loop)."""

    delay_s: float
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    ready_at: float = 0.0


@dataclass
class _Rules:
    """What robots.txt of one origin says; `refusal` where it could not be asked."""

    robots: Robots | None
    told: str
    refusal: FetchError | None = None


@dataclass
class _Way:
    """One feed's session, guard and deadline, which its redirects and its robots.txt share."""

    session: Any
    guard: Guard
    left_s: float
    """Seconds of `Limits.total_s` that are left; waiting for a turn is not counted."""


class Fetcher:
    """Fetches feeds; keeps the pauses and the robots.txt of every host. Use within one event loop."""

    def __init__(self, limits: Limits | None = None, seed: int | None = None) -> None:
        self.limits = limits or Limits()
        self._hosts: dict[str, _Host] = {}
        self._rules: dict[str, _Rules] = {}
        self._random = random.Random(seed)

    async def fetch(self, url: str, etag: str = "", last_modified: str = "", validated: str = "") -> Fetched:
        """Fetch one feed. `etag` and `last_modified` are those of the address `validated` (after redirects).

        Tries again what a server or the net may mend (429, 5xx, a broken connection), at most `tries` times;
        raises `FetchError`, with `wait_s` where the server named a time.
        """
        conditions = {"If-None-Match": etag, "If-Modified-Since": last_modified}
        known = {key: value for key, value in conditions.items() if value}
        tried = 0
        while True:
            tried += 1
            try:
                return await self._follow(urldefrag(url)[0], known, validated or url)
            except FetchError as error:
                wait = error.wait_s or 0.0
                if not error.again or tried >= self.limits.tries or wait > self.limits.max_wait_s:
                    raise
            backoff = self.limits.backoff_s * 2 ** (tried - 1) * self._random.uniform(0.75, 1.25)
            await asyncio.sleep(max(wait, min(backoff, self.limits.max_wait_s)))

    async def _follow(self, url: str, known: dict[str, str], validated: str) -> Fetched:
        """Go to the feed over its redirects; robots.txt of each host on the way must allow it."""
        guard = Guard(proxy_hosts())
        async with guarded_session(guard, self.limits) as session:
            way = _Way(session, guard, self.limits.total_s)
            robots, at, been = "", url, set()
            try:
                while True:
                    been.add(at)
                    rules = await self._robots(way, at)
                    robots = rules.told
                    if rules.refusal is not None:
                        raise rules.refusal
                    if rules.robots is not None and not rules.robots.allows(at):
                        robots = "denied"
                        raise FetchError("forbidden", f"robots.txt of {urlsplit(at).netloc} forbids {at}")
                    answer = await self._ask(way, at, known if at == validated else {})
                    if answer.code not in REDIRECTS:
                        return _accepted(answer, robots, bool(known) and at == validated)
                    at = _target(answer)
                    if at in been:
                        raise FetchError("redirect", f"redirects in a circle, back to {at}", answer.code)
                    if len(been) > self.limits.max_redirects:
                        reason = f"more than {self.limits.max_redirects} redirects, the last to {at}"
                        raise FetchError("redirect", reason, answer.code)
            except FetchError as error:
                error.robots = error.robots or robots
                raise

    async def _ask(self, way: _Way, url: str, headers: dict[str, str], cut_at: int | None = None) -> Answer:
        """One request when it is this host's turn, within what is left of the feed's time."""
        async with self._turn(urlsplit(url).hostname or ""):
            way.guard.check_literal(url)
            clock = asyncio.get_running_loop().time
            begun = clock()
            try:
                return await get(way.session, url, self.limits, headers, begun + way.left_s, cut_at)
            finally:
                way.left_s -= clock() - begun

    @asynccontextmanager
    async def _turn(self, host: str) -> AsyncIterator[None]:
        state = self._hosts.setdefault(host, _Host(self.limits.delay_s))
        loop = asyncio.get_running_loop()
        async with state.lock:
            await asyncio.sleep(max(0.0, state.ready_at - loop.time()))
            try:
                yield
            finally:
                state.ready_at = loop.time() + state.delay_s

    async def _robots(self, way: _Way, url: str) -> _Rules:
        """Rules of an origin, asked for once (RFC 9309: 4xx allows all, 5xx and silence allow nothing)."""
        parts = urlsplit(url)
        origin = f"{parts.scheme}://{parts.netloc}"
        if origin not in self._rules:
            rules = await self._read_robots(way, origin)
            delay = rules.robots.crawl_delay_s if rules.robots is not None else None
            if delay is not None and delay > self.limits.max_delay_s:
                reason = f"robots.txt of {parts.netloc} asks for {delay:g} s between requests"
                rules = _Rules(None, "delay too long", FetchError("forbidden", reason))
            elif delay is not None:
                host = self._hosts[parts.hostname or ""]
                host.delay_s = max(host.delay_s, delay)
                # The pause after robots.txt itself counts, too.
                host.ready_at += max(0.0, delay - self.limits.delay_s)
            if rules.refusal is None or not rules.refusal.again:
                self._rules[origin] = rules
            return rules
        return self._rules[origin]

    async def _read_robots(self, way: _Way, origin: str) -> _Rules:
        at = f"{origin}/robots.txt"
        try:
            for _ in range(self.limits.max_redirects + 1):
                answer = await self._ask(way, at, {}, cut_at=MAX_BYTES)
                if answer.code not in REDIRECTS:
                    break
                at = _target(answer)
        except FetchError as error:
            if error.status == "refused":
                raise
            reason = f"robots.txt of {urlsplit(origin).netloc} could not be asked for ({error.reason})"
            error = FetchError("not now", reason, error.http_code, error.wait_s, again=error.again)
            return _Rules(None, f"not reached: {error.reason}"[:80], error)
        if answer.code == 200:
            return _Rules(Robots(answer.body.decode("utf-8", "replace"), PRODUCT), "allowed")
        if answer.code == 429 or answer.code >= 500:
            reason = f"robots.txt of {urlsplit(origin).netloc} answers {answer.code}: not allowed for now"
            wait = retry_after_s(answer.headers.get("retry-after"))
            error = FetchError("not now", reason, answer.code, wait, again=answer.code in TRY_AGAIN)
            return _Rules(None, f"not now ({answer.code})", error)
        return _Rules(None, f"none ({answer.code})")


def _target(answer: Answer) -> str:
    """Where a redirect leads; a step from https to http is refused."""
    location = answer.headers.get("location", "")
    try:
        target = urldefrag(urljoin(answer.url, location))[0]
        parts = urlsplit(target)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and "@" not in parts.netloc
        good = good and bool(location) and (parts.port or 1) > 0
    except ValueError:
        good = False
    if not good:
        raise FetchError("redirect", f"redirect to {location!r:.200}, which is no web address", answer.code)
    if answer.url.startswith("https:") and parts.scheme == "http":
        raise FetchError("redirect", f"redirect from https to {target}, which is not encrypted", answer.code)
    return target


def _accepted(answer: Answer, robots: str, conditional: bool) -> Fetched:
    """The feed's answer, or the error that its status stands for."""
    if answer.code == 200 or (answer.code == 304 and conditional):
        return Fetched(
            url=answer.url,
            code=answer.code,
            robots=robots,
            body=answer.body,
            content_type=answer.headers.get("content-type", ""),
            etag=answer.headers.get("etag", ""),
            last_modified=answer.headers.get("last-modified", ""),
        )
    wait = retry_after_s(answer.headers.get("retry-after"))
    again = answer.code in TRY_AGAIN
    reason = f"HTTP {answer.code}" + (f", asks to come back in {wait:.0f} s" if wait else "")
    raise FetchError("http error", reason, answer.code, wait if again else None, again)
