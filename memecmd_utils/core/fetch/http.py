"""One polite client for feeds and pictures, whose servers may mean harm.

Politeness: robots.txt first, one request at a time per host with a pause, few tries again. Walls: time-outs,
a cap on bytes, a guard on addresses. aiohttp, which `openai[aiohttp]` brings in any case: a deadline cuts any
wait, also within headers; it hands over the compressed stream, so that a bomb is met while it unpacks; its
resolver is ours, so that the address that was checked is the address that is connected to.
"""

import asyncio
import contextlib
import ipaddress
import itertools
import random
import re
import time
import urllib.request
import zlib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urldefrag, urljoin, urlsplit

from memecmd_utils import __version__
from memecmd_utils.core import machine

PRODUCT = "MemeCMD"
"""The name that robots.txt may address."""
REDIRECTS = (301, 302, 303, 307, 308)
TRY_AGAIN = (429, 500, 502, 503, 504)
"""Codes of an answer after which waiting may help."""
ROBOTS_BYTES = 512 * 1024
"""At least 500 KiB of a robots.txt must be read (RFC 9309, 2.5); what follows is ignored."""
_JITTER = random.Random()  # its own: the state of `random` is the user's
_AGENT = re.compile(r"^\s*user[-\s]*agent\s*:?\s*([^\s/#]*).*", re.IGNORECASE)


@dataclass(frozen=True)
class Limits:
    """How polite and how patient a client is. Seconds and bytes."""

    delay_s: float = 2.0
    """Between two requests to one host; a longer Crawl-delay of its robots.txt wins."""
    max_delay_s: float = 120.0
    """A host that asks for more is left alone."""
    hosts: int = 4
    """Hosts asked side by side."""
    connect_s: float = 10.0
    read_s: float = 20.0
    total_s: float = 60.0
    """For one address with its redirects, waiting for its turn not counted."""
    max_bytes: int = 5 * 1024 * 1024
    """Of a body, compressed and unpacked."""
    max_redirects: int = 5
    tries: int = 3
    backoff_s: float = 2.0
    max_wait_s: float = 60.0
    """A Retry-After beyond this ends the tries; the address is not asked again before that time."""


class FetchError(Exception):
    """An address could not be had: `status` is the reason in a word, `wait_s` says when to try again."""

    def __init__(
        self,
        status: str,
        reason: str,
        http_code: int | None = None,
        wait_s: float = 0.0,
        again: bool = False,
    ) -> None:
        super().__init__(reason)
        self.status, self.reason, self.http_code = status, reason, http_code
        self.wait_s, self.again = wait_s, again
        self.robots = ""
        """What robots.txt said, as far as it was asked."""


class HostClosed(FetchError):
    """The host as a whole gives nothing now: its robots.txt cannot be had, or asks for too long a pause."""


@dataclass(frozen=True)
class Answer:
    """Status, headers (names in lower case) and unpacked body; the body of 200 only."""

    url: str
    """The address after redirects."""
    code: int
    headers: dict[str, str]
    body: bytes = b""
    robots: str = ""
    """What robots.txt of its host said."""


def is_public(address: str) -> bool:
    """Whether an IP address is one of the public internet; loopback, private, link-local and such are not."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    inner = getattr(ip, "ipv4_mapped", None) or getattr(ip, "sixtofour", None)
    return ip.is_global and not ip.is_multicast and (inner is None or is_public(str(inner)))


class Guard:
    """A public address must not lead to a private one: that would open inner servers.

    With `public` None the first address decides: it is the one the user listed and may be private, as a
    server of one's own is. With True private ones are refused from the beginning.
    """

    def __init__(self, public: bool | None = None) -> None:
        self.public = public
        self.proxies = frozenset(  # hosts of the proxies that the environment names
            filter(None, (urlsplit(url).hostname for url in urllib.request.getproxies().values()))
        )

    def check(self, host: str, addresses: list[str]) -> list[str]:
        """Return the addresses that may be connected to; `FetchError` when there is none."""
        good = [address for address in addresses if is_public(address)]
        if self.public is None:
            self.public = bool(good)
        if self.public and not good:
            raise FetchError(
                "refused", f"a public address leads to {host}, which is not on the public internet"
            )
        return good if self.public else addresses

    def check_literal(self, url: str) -> None:
        """Check an address whose host is an IP number: no resolver is asked for it."""
        host = urlsplit(url).hostname or ""
        with contextlib.suppress(ValueError):
            ipaddress.ip_address(host)
            self.check(host, [host])


def guarded_session(guard: Guard, limits: Limits, headers: dict[str, str]) -> Any:
    """An aiohttp session whose connections obey `guard`; no cookies, no unpacking, no credentials."""
    import aiohttp
    from aiohttp.abc import AbstractResolver
    from aiohttp.resolver import ThreadedResolver

    class Resolver(AbstractResolver):
        def __init__(self) -> None:
            self.inner = ThreadedResolver()

        async def resolve(self, host: str, port: int = 0, family: int = 0) -> list[Any]:
            entries = await self.inner.resolve(host, port, family)
            if host in guard.proxies:  # the user's own; behind it names are resolved elsewhere
                return entries
            allowed = guard.check(host, [entry["host"] for entry in entries])
            return [entry for entry in entries if entry["host"] in allowed]

        async def close(self) -> None:
            await self.inner.close()

    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(resolver=Resolver(), use_dns_cache=False, limit=1),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=limits.connect_s, sock_read=limits.read_s),
        headers=headers,
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        trust_env=False,
    )


def proxy_for(url: str) -> str | None:
    """The proxy that the environment names for an address; none for addresses of this machine.

    Raises `FetchError` for a proxy of a kind that is not supported.
    """
    host = urlsplit(url).hostname or ""
    with contextlib.suppress(ValueError):
        if not is_public(host):
            return None
    try:
        return None if host == "localhost" else machine.proxy_for(url)
    except machine.ProxyError as error:
        raise FetchError("refused", str(error)) from error


async def get(
    session: Any, url: str, limits: Limits, headers: dict[str, str], until: float, cut_at: int | None = None
) -> Answer:
    """One GET without redirects, done before `until` (time of the loop).

    A body above `limits.max_bytes` is an error; with `cut_at` it is cut there instead. Raises `FetchError`.
    """
    import aiohttp

    dropped = (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError)
    try:
        async with asyncio.timeout_at(until):
            request = session.get(url, headers=headers, allow_redirects=False, proxy=proxy_for(url))
            async with request as response:
                plain = {key.lower(): value for key, value in response.headers.items()}
                body = b""
                if response.status == 200:
                    body = await _read(response, plain, limits.max_bytes, cut_at)
                else:
                    response.close()  # what an error page says is not read
                return Answer(url, response.status, plain, body)
    except (TimeoutError, aiohttp.ServerTimeoutError) as error:
        detail = f" ({error})" if str(error) else f" ({limits.total_s:g} s for all)"
        raise FetchError("time-out", f"no whole answer in time{detail}") from error
    except (aiohttp.ClientError, OSError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise FetchError("unreachable", reason, again=isinstance(error, dropped)) from error
    except ValueError as error:  # an address or a header that cannot be read
        raise FetchError("refused", f"{type(error).__name__}: {error}") from error


async def _read(response: Any, headers: dict[str, str], max_bytes: int, cut_at: int | None) -> bytes:
    cap = cut_at if cut_at is not None else max_bytes
    unpack = Unpacker(headers.get("content-encoding", ""))
    body, raw = bytearray(), 0
    async for chunk in response.content.iter_any():
        raw += len(chunk)
        for piece in unpack.feed(chunk, cap + 1):
            body += piece
            if len(body) > cap:
                break
        if len(body) > cap or raw > max_bytes:
            response.close()
            if cut_at is not None:
                return bytes(body[:cap])
            raise FetchError("too big", f"more than {max_bytes:,} bytes", response.status)
    unpack.end()
    return bytes(body)


class Unpacker:
    """Unpacks gzip piece by piece, so that a bomb is stopped at the cap; no other encoding was asked for."""

    def __init__(self, encoding: str) -> None:
        name = encoding.strip().lower()
        if name not in ("", "identity", "gzip", "x-gzip"):
            raise FetchError("not a feed", f"Content-Encoding {encoding!r} was not asked for")
        self._zip = zlib.decompressobj(31) if "gzip" in name else None
        self._begun = False

    def feed(self, data: bytes, most: int) -> Iterator[bytes]:
        """Yield what `data` unpacks to, at most `most` bytes a piece."""
        if self._zip is None:
            yield data
            return
        while data:
            try:
                piece = self._zip.decompress(data, most)
            except zlib.error as error:
                raise FetchError("broken", f"the compressed body is damaged: {error}") from error
            self._begun = True
            yield piece
            data = self._zip.unconsumed_tail
            if self._zip.eof:
                data = self._zip.unused_data.lstrip(b"\0")  # padding is no further member
                if data:
                    self._zip = zlib.decompressobj(31)

    def end(self) -> None:
        """Raise `FetchError` where the stream broke off."""
        if self._zip is not None and self._begun and not self._zip.eof:
            raise FetchError("broken", "the compressed body breaks off", again=True)


class Client:
    """Asks servers politely; keeps the pauses and the robots.txt of every host. Use within one event loop."""

    def __init__(self, limits: Limits, purpose: str, accept: str) -> None:
        self.limits = limits
        agent = f"{PRODUCT}/{__version__} ({purpose}; +https://arxiv.org/abs/2507.00891)"
        self.headers = {"User-Agent": agent, "Accept": accept, "Accept-Encoding": "gzip"}
        self.robots: dict[str, _Robots] = {}
        """By origin."""
        self._hosts: dict[str, _Host] = {}

    @asynccontextmanager
    async def visit(self, public: bool | None = None) -> AsyncIterator["Visit"]:
        """Fetch addresses of one host, one after the other. `public`: as `Guard` has it."""
        guard = Guard(public)
        async with guarded_session(guard, self.limits, self.headers) as session:
            yield Visit(self, session, guard)

    def host(self, url: str) -> "_Host":
        """The pauses of the host of `url`."""
        return self._hosts.setdefault(urlsplit(url).hostname or "", _Host(self.limits.delay_s))


@dataclass
class _Host:
    """One host: who may ask now, and when the next request may go out (time of the loop)."""

    delay_s: float
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    ready_at: float = 0.0

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """One request when it is its turn; the pause begins when it is done."""
        loop = asyncio.get_running_loop()
        async with self.lock:
            await asyncio.sleep(max(0.0, self.ready_at - loop.time()))
            try:
                yield
            finally:
                self.ready_at = loop.time() + self.delay_s


@dataclass
class _Robots:
    """What robots.txt of one origin says, in a word and as rules (of `protego`; None allows all)."""

    state: str
    rules: Any = None
    refusal: HostClosed | None = None


class Visit:
    """Requests that begin at one host and share a session, a guard, and each address' time."""

    def __init__(self, client: Client, session: Any, guard: Guard) -> None:
        self.client, self.limits, self._session, self._guard = client, client.limits, session, guard
        self._left_s = 0.0
        """Seconds of `Limits.total_s` that are left; waiting for a turn is not counted."""

    async def fetch(
        self,
        url: str,
        *,
        etag: str = "",
        last_modified: str = "",
        validated: str = "",
        same_file: bool = False,
    ) -> Answer:
        """Fetch an address over its redirects: 200, or 304 where `etag` or `last_modified` still hold.

        These are those of the address `validated` (after redirects). With `same_file` a redirect must keep
        host and file name: another name is mostly that of a placeholder. Tries again what a server or the
        net may mend (429, 5xx, a broken connection), at most `tries` times; raises `FetchError`.
        """
        conditions = {"If-None-Match": etag, "If-Modified-Since": last_modified}
        known = {key: value for key, value in conditions.items() if value}
        for tried in itertools.count(1):
            try:
                return await self._follow(urldefrag(url)[0], known, validated or url, same_file)
            except FetchError as error:
                wait = error.wait_s
                if not error.again or tried == self.limits.tries or wait > self.limits.max_wait_s:
                    raise
            backoff = self.limits.backoff_s * 2 ** (tried - 1) * _JITTER.uniform(0.75, 1.25)
            await asyncio.sleep(max(wait, min(backoff, self.limits.max_wait_s)))

    async def _follow(self, url: str, known: dict[str, str], validated: str, same_file: bool) -> Answer:
        """Go to the address over its redirects; robots.txt of each host on the way must allow it."""
        self._left_s = self.limits.total_s
        state, at, visited = "", url, set()
        try:
            while True:
                visited.add(at)
                robots = await self._robots(at)
                state = robots.state
                if robots.refusal is not None:
                    raise robots.refusal
                if robots.rules is not None and not robots.rules.can_fetch(at, PRODUCT):
                    state = "denied"
                    raise FetchError("forbidden", f"robots.txt of {urlsplit(at).netloc} forbids {at}")
                conditions = known if at == validated else {}
                answer = await self._ask(at, conditions)
                if answer.code == 200 or (answer.code == 304 and conditions):
                    return replace(answer, robots=state)
                if answer.code not in REDIRECTS:
                    raise _refusal("http error", f"HTTP {answer.code}", answer)
                at = _target(answer, same_file)
                if at in visited:
                    raise FetchError("redirect", f"redirects in a circle, back to {at}", answer.code)
                if len(visited) > self.limits.max_redirects:
                    reason = f"more than {self.limits.max_redirects} redirects, the last to {at}"
                    raise FetchError("redirect", reason, answer.code)
        except FetchError as error:
            error.robots = error.robots or state
            raise

    async def _ask(self, url: str, headers: dict[str, str], cut_at: int | None = None) -> Answer:
        """One request when it is its host's turn, within what is left of the address' time."""
        async with self.client.host(url).turn():
            self._guard.check_literal(url)
            clock = asyncio.get_running_loop().time
            begun = clock()
            try:
                return await get(self._session, url, self.limits, headers, begun + self._left_s, cut_at)
            finally:
                self._left_s -= clock() - begun

    async def _robots(self, url: str) -> _Robots:
        """Rules of an origin, asked for once; a refusal that may mend itself is asked for again."""
        parts = urlsplit(url)
        origin = f"{parts.scheme}://{parts.netloc}"
        if known := self.client.robots.get(origin):
            return known
        robots = await self._read_robots(origin)
        delay = (robots.rules and robots.rules.crawl_delay(PRODUCT)) or 0.0
        if delay > self.limits.max_delay_s:
            reason = f"robots.txt of {parts.netloc} asks for {delay:g} s between requests"
            robots = _Robots("delay too long", refusal=HostClosed("forbidden", reason))
        host = self.client.host(url)
        if robots.refusal is None and delay > host.delay_s:
            host.ready_at += delay - host.delay_s  # the pause after robots.txt itself counts, too
            host.delay_s = delay
        if robots.refusal is None or not robots.refusal.again:
            self.client.robots[origin] = robots
        return robots

    async def _read_robots(self, origin: str) -> _Robots:
        """RFC 9309: 4xx allows all; 5xx, 429 and silence allow nothing for now."""
        host, at = urlsplit(origin).netloc, f"{origin}/robots.txt"
        try:
            for _ in range(self.limits.max_redirects + 1):
                answer = await self._ask(at, {}, cut_at=ROBOTS_BYTES)
                if answer.code not in REDIRECTS:
                    break
                at = _target(answer)
        except FetchError as error:
            if error.status == "refused":
                raise HostClosed(error.status, error.reason) from error
            reason = f"robots.txt of {host} could not be asked for ({error.reason})"
            closed = HostClosed("not now", reason, error.http_code, error.wait_s, again=error.again)
            return _Robots(f"not reached: {error.reason}"[:80], refusal=closed)
        if answer.code == 200:
            return _Robots("allowed", read_robots(answer.body.decode("utf-8", "replace")))
        if answer.code == 429 or answer.code >= 500:
            reason = f"robots.txt of {host} answers {answer.code}: not allowed for now"
            closed = _refusal("not now", reason, answer, HostClosed)
            return _Robots(f"not now ({answer.code})", refusal=closed)
        return _Robots(f"none ({answer.code})")


def read_robots(text: str) -> Any:
    """The rules of a robots.txt, as `protego` reads them.

    All other robots get one name first: `protego` keeps each rule of a group once for each of its agents, so
    a file of 512 KiB with 15,000 agents and as many rules would take it minutes.
    """
    from protego import Protego

    def agent(match: re.Match[str]) -> str:
        return f"user-agent: {match[1] if match[1].lower() in (PRODUCT.lower(), '*') else 'another'}"

    lines = text.removeprefix("\ufeff").splitlines()
    return Protego.parse("\n".join(_AGENT.sub(agent, line) for line in lines))


def _refusal(status: str, reason: str, answer: Answer, kind: type[FetchError] = FetchError) -> FetchError:
    """The error that the status of an answer stands for."""
    again = answer.code in TRY_AGAIN
    wait = retry_after_s(answer.headers.get("retry-after", "")) if again else 0.0
    reason += f", asks to come back in {wait:.0f} s" if wait else ""
    return kind(status, reason, answer.code, wait, again)


def _target(answer: Answer, same_file: bool = False) -> str:
    """Where a redirect leads; a step from https to http is refused."""
    location = answer.headers.get("location", "")
    try:
        target = urldefrag(urljoin(answer.url, location))[0]
    except ValueError:
        target = ""
    if not location or not host_of(target):
        raise FetchError("redirect", f"redirect to {location!r:.200}, which is no web address", answer.code)
    if answer.url.startswith("https:") and target.startswith("http:"):
        raise FetchError("redirect", f"redirect from https to {target}, which is not encrypted", answer.code)
    names = [(host_of(url), urlsplit(url).path.rpartition("/")[2]) for url in (answer.url, target)]
    if same_file and names[0] != names[1]:
        raise FetchError("redirect", f"leads to {target[:200]}", answer.code)
    return target


def host_of(url: str) -> str:
    """Host and port of an http(s) address without user or password; empty for any other text."""
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and parts.hostname and "@" not in parts.netloc
        port = parts.port
    except ValueError:
        return ""
    return f"{parts.hostname}{f':{port}' if port is not None else ''}" if good else ""


def retry_after_s(value: str) -> float:
    """Seconds of a Retry-After header, a number or a date; 0 where none can be read."""
    if value.strip().isdecimal():
        return float(value.strip()[:9])
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
    except (ValueError, TypeError, OverflowError):
        return 0.0
