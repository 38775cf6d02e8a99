"""One HTTP request to a server that may mean harm: time-outs, a cap on bytes, a guard on addresses.

aiohttp, which `openai[aiohttp]` brings in any case: a deadline cuts any wait, also within headers; it hands
over the compressed stream, so that a bomb is met while it unpacks; and its resolver is ours, so that the
address that was checked is the address that is connected to.
"""

import asyncio
import contextlib
import ipaddress
import time
import urllib.request
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit

from memecmd_utils import __version__, proxies
from memecmd_utils.llm_types import EndpointError

PRODUCT = "MemeCMD"
"""The name that robots.txt may address."""
USER_AGENT = (
    f"{PRODUCT}/{__version__} (news feed reader of a research package; +https://arxiv.org/abs/2507.00891)"
)
REDIRECTS = (301, 302, 303, 307, 308)
TRY_AGAIN = (429, 500, 502, 503, 504)
"""Codes of an answer after which waiting may help."""
ACCEPT = "application/atom+xml, application/rss+xml, application/xml;q=0.9, text/xml;q=0.8, */*;q=0.1"


@dataclass(frozen=True)
class Limits:
    """How polite and how patient the collection is. Seconds and bytes."""

    delay_s: float = 2.0
    """Between two requests to one host; a longer Crawl-delay of its robots.txt wins."""
    max_delay_s: float = 120.0
    """A host that asks for more is left alone."""
    hosts: int = 4
    """Hosts asked side by side."""
    connect_s: float = 10.0
    read_s: float = 20.0
    total_s: float = 60.0
    """For one feed with its redirects, waiting for its turn not counted."""
    max_bytes: int = 5 * 1024 * 1024
    """Of a feed, compressed and unpacked."""
    max_redirects: int = 5
    tries: int = 3
    backoff_s: float = 2.0
    max_wait_s: float = 60.0
    """A Retry-After beyond this ends the tries; the feed is not asked again before that time."""
    max_age_s: float = 6 * 3600.0
    """A feed that was read within this time is not asked again."""


class FetchError(Exception):
    """A feed could not be had. `status` goes to feeds.csv, `wait_s` says when to try again."""

    def __init__(
        self,
        status: str,
        reason: str,
        http_code: int | None = None,
        wait_s: float | None = None,
        again: bool = False,
    ) -> None:
        super().__init__(reason)
        self.status, self.reason, self.http_code = status, reason, http_code
        self.wait_s, self.again = wait_s, again
        self.robots = ""


@dataclass(frozen=True)
class Answer:
    """Status, headers (names in lower case) and unpacked body; the body of 200 only."""

    url: str
    code: int
    headers: dict[str, str]
    body: bytes = b""


def is_public(address: str) -> bool:
    """Whether an IP address is one of the public internet; loopback, private, link-local and such are not."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    inner = getattr(ip, "ipv4_mapped", None) or getattr(ip, "sixtofour", None)
    return ip.is_global and not ip.is_multicast and (inner is None or is_public(str(inner)))


class Guard:
    """A feed at a public address must not lead to a private one: that would open inner servers.

    The first address seen is the one the user listed and may be private, as a feed server of one's own is.
    """

    def __init__(self, proxies: frozenset[str] = frozenset()) -> None:
        self.public: bool | None = None
        self.proxies = proxies

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


def guarded_session(guard: Guard, limits: Limits) -> Any:
    """An aiohttp session whose connections obey `guard`; no cookies, no unpacking, no credentials."""
    import aiohttp
    from aiohttp.abc import AbstractResolver
    from aiohttp.resolver import ThreadedResolver

    class Resolver(AbstractResolver):
        def __init__(self) -> None:
            self.inner = ThreadedResolver()

        async def resolve(self, host: str, port: int = 0, family: int = 0) -> list[Any]:
            found = await self.inner.resolve(host, port, family)
            if host in guard.proxies:  # the user's own; behind it names are resolved elsewhere
                return found
            good = set(guard.check(host, [entry["host"] for entry in found]))
            return [entry for entry in found if entry["host"] in good]

        async def close(self) -> None:
            await self.inner.close()

    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(resolver=Resolver(), use_dns_cache=False, limit=1),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=limits.connect_s, sock_read=limits.read_s),
        headers={"User-Agent": USER_AGENT, "Accept": ACCEPT, "Accept-Encoding": "gzip, deflate"},
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
        return None if host == "localhost" else proxies.proxy_for(url)
    except EndpointError as error:
        raise FetchError("refused", str(error)) from error


def proxy_hosts() -> frozenset[str]:
    """Hosts of the proxies that the environment names."""
    return frozenset(filter(None, (urlsplit(url).hostname for url in urllib.request.getproxies().values())))


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
    """Unpacks gzip or deflate piece by piece, so that a bomb is stopped at the cap."""

    def __init__(self, encoding: str) -> None:
        self.name = encoding.strip().lower()
        if self.name not in ("", "identity", "gzip", "x-gzip", "deflate"):
            raise FetchError("not a feed", f"Content-Encoding {encoding!r} was not asked for")
        self._bits = 31 if "gzip" in self.name else 15
        self._zip = None if self.name in ("", "identity") else zlib.decompressobj(self._bits)
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
                if self._begun or self.name != "deflate" or self._bits < 0:
                    raise FetchError("broken", f"the compressed body is damaged: {error}") from error
                self._bits = -15  # some servers send deflate without its header
                self._zip = zlib.decompressobj(self._bits)
                continue
            self._begun = True
            yield piece
            data = self._zip.unconsumed_tail
            if self._zip.eof:
                data = self._zip.unused_data.lstrip(b"\0")  # padding is no further member
                if data:
                    self._zip = zlib.decompressobj(self._bits)

    def end(self) -> None:
        """Say so when the stream broke off."""
        if self._zip is not None and self._begun and not self._zip.eof:
            raise FetchError("broken", "the compressed body breaks off", again=True)


def retry_after_s(value: str | None) -> float | None:
    """Seconds of a Retry-After header, a number or a date; None where there is none to be read."""
    if not value:
        return None
    if value.strip().isdecimal():
        return float(value.strip()[:9])
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
    except (ValueError, TypeError, OverflowError):
        return None
