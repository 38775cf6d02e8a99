import asyncio
import gzip
import itertools
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from feed_server import FeedSite, Page, bomb, item, rss

from memecmd_utils import news
from memecmd_utils.core.fetch import http
from memecmd_utils.core.fetch.http import Answer, FetchError, Guard, Limits, Unpacker, is_public, proxy_for

QUICK = Limits(
    delay_s=0, connect_s=1, read_s=0.6, total_s=0.8, max_bytes=100_000, backoff_s=0.01, max_wait_s=0.5
)
GOOD = rss([item(1)])


@pytest.fixture
def site() -> Iterator[FeedSite]:
    with FeedSite().running() as site:
        yield site


async def visit(client: http.Client, url: str, **known: str) -> Answer:
    async with client.visit() as visit:
        return await visit.fetch(url, **known)


def fetch(site: FeedSite, path: str, limits: Limits = QUICK, **known: str) -> Answer:
    return asyncio.run(visit(http.Client(limits, "news", news.ACCEPT), site.url + path, **known))


def failure(site: FeedSite, path: str, limits: Limits = QUICK) -> FetchError:
    begun = time.monotonic()
    with pytest.raises(FetchError) as caught:
        fetch(site, path, limits)
    assert time.monotonic() - begun < 4
    return caught.value


def test_a_feed(site: FeedSite) -> None:
    site.pages["/feed"] = Page(GOOD, ETag='"1"', Last_Modified="Mon, 02 Nov 2026 00:00:00 GMT")
    got = fetch(site, "/feed#part")
    assert got.body == GOOD.encode() and got.code == 200 and got.url == site.url + "/feed"
    assert got.headers["etag"] == '"1"' and got.robots == "none (404)"
    (robots, _, _), (_, headers, _) = site.log
    assert robots == "/robots.txt" and headers["User-Agent"].startswith("MemeCMD/")
    assert "Cookie" not in headers and headers["Accept-Encoding"] == "gzip"


def test_an_unchanged_feed_is_not_sent_again(site: FeedSite) -> None:
    site.pages["/feed"] = Page(GOOD, ETag='"1"')
    site.pages["/old"] = Page(code=301, Location="/feed")
    assert fetch(site, "/feed", etag='"1"').code == 304
    assert fetch(site, "/old", etag='"1"', validated=site.url + "/feed").code == 304
    assert fetch(site, "/feed", etag='"0"').code == 200
    # The tag of one address says nothing about another.
    assert fetch(site, "/feed", etag='"1"', validated=site.url + "/other").code == 200
    site.pages["/odd"] = Page(code=304)
    assert failure(site, "/odd").status == "http error", "304 without a question"


HARM = {
    "/hang": ("time-out", lambda site: Page(site.hang)),
    "/drip": ("time-out", lambda site: Page(site.drip)),
    "/headers": ("time-out", lambda site: Page(site.drip_headers, early=True)),
    "/endless": ("too big", lambda site: Page(site.endless)),
    "/huge": ("too big", lambda site: Page(b"x" * 100_001)),
    "/bomb": ("too big", lambda site: Page(bomb(64), Content_Encoding="gzip")),
    "/brotli": ("not a feed", lambda site: Page(b"x", Content_Encoding="br")),
    "/torn": ("unreachable", lambda site: Page(lambda it: it.wfile.write(b"<rss>"), Content_Length="5000")),
    "/circle": ("redirect", lambda site: Page(code=302, Location="/circle2")),
    "/far/0": ("redirect", lambda site: Page(code=302, Location="/far/1")),
    "/to-file": ("redirect", lambda site: Page(code=302, Location="file:///etc/hostname")),
    "/to-ftp": ("redirect", lambda site: Page(code=302, Location="ftp://a.b/")),
    "/nowhere": ("redirect", lambda site: Page(code=302)),
    "/to-login": ("redirect", lambda site: Page(code=302, Location="http://me:word@127.0.0.1/")),
    "/gone": ("http error", lambda site: Page(code=410)),
    "/ill": ("http error", lambda site: Page(code=500)),
    "/nothing": ("http error", lambda site: Page(code=204)),
}


@pytest.mark.parametrize("path", HARM)
def test_harm_is_bounded(site: FeedSite, path: str) -> None:
    status, page = HARM[path]
    site.pages = {path: page(site), "/circle2": Page(code=302, Location="/circle")}
    site.pages |= {f"/far/{i}": Page(code=302, Location=f"/far/{i + 1}") for i in range(1, 9)}
    assert failure(site, path).status == status
    most = {"/torn": 3, "/ill": 3}.get(path, 1)
    assert site.asked(path) == most, "only what may mend itself is tried again"


def test_a_busy_server_is_given_time(site: FeedSite) -> None:
    site.pages["/feed"] = [Page(code=429, Retry_After="0.2"), Page(code=503), Page(GOOD)]
    assert fetch(site, "/feed").code == 200 and site.asked("/feed") == 3
    site.pages["/wait"] = [Page(code=429, Retry_After="1"), Page(GOOD)]
    begun = time.monotonic()
    assert fetch(site, "/wait", Limits(delay_s=0, max_wait_s=2, backoff_s=0.01)).code == 200
    assert time.monotonic() - begun >= 1, "Retry-After is waited for"


@pytest.mark.parametrize(
    ("robots", "path", "told"),
    [
        (Page("user-agent: *\ndisallow: /no"), "/yes", "allowed"),
        (Page("user-agent: *\ndisallow: /no"), "/no", "denied"),
        (Page("user-agent: memecmd\ndisallow: /"), "/yes", "denied"),
        (Page(code=403), "/yes", "none (403)"),
        (Page(code=500), "/yes", "not now (500)"),
        (Page(code=429), "/yes", "not now (429)"),
        (Page("user-agent: *\ncrawl-delay: 9999"), "/yes", "delay too long"),
        (Page(code=302, Location="/elsewhere.txt"), "/yes", "denied"),
        (Page("user-agent: *\ndisallow: /y\n" + "#" * 600_000), "/yes", "denied"),
    ],
)
def test_robots(site: FeedSite, robots: Page, path: str, told: str) -> None:
    site.pages = {"/robots.txt": robots, "/yes": Page(GOOD), "/no": Page(GOOD)}
    site.pages["/elsewhere.txt"] = Page("user-agent: *\ndisallow: /")
    limits = Limits(delay_s=0, backoff_s=0.01, max_bytes=2_000_000)
    if told in ("allowed", "none (403)"):
        assert fetch(site, path, limits).robots == told
    else:
        error = failure(site, path, limits)
        assert error.robots == told and site.asked(path) == 0, "not asked for"
        assert error.status == ("not now" if "not now" in told else "forbidden")


def test_silent_robots_forbid_for_now(site: FeedSite) -> None:
    site.pages = {"/robots.txt": Page(site.drip), "/feed": Page(GOOD)}
    error = failure(site, "/feed")
    assert error.status == "not now" and site.asked("/feed") == 0 and "not reached" in error.robots


def test_a_redirect_obeys_the_other_hosts_robots(site: FeedSite) -> None:
    with FeedSite(
        {"/robots.txt": Page("user-agent: *\ndisallow: /"), "/feed": Page(GOOD)}
    ).running() as other:
        site.pages["/feed"] = Page(code=301, Location=other.url + "/feed")
        assert failure(site, "/feed").robots == "denied" and other.asked("/feed") == 0


def test_a_public_feed_is_not_led_inside(site: FeedSite, monkeypatch: pytest.MonkeyPatch) -> None:
    site.pages = {"/feed": Page(code=302, Location=site.url.replace("127.0.0.1", "127.0.0.2") + "/inner")}
    # Without a server on the public internet: the first address passes for a public one.
    monkeypatch.setattr("memecmd_utils.core.fetch.http.is_public", lambda address: address == "127.0.0.1")
    error = failure(site, "/feed")
    assert error.status == "refused" and site.asked("/inner") == 0


def test_https_is_not_given_up() -> None:
    with pytest.raises(FetchError, match="from https to"):
        http._target(Answer("https://a.b/x", 302, {"location": "http://a.b/x"}))
    assert http._target(Answer("http://a.b/x", 302, {"location": "https://a.b/x#y"})) == "https://a.b/x"
    assert http._target(Answer("https://a.b/x/y", 302, {"location": "z"})) == "https://a.b/x/z"


def test_one_request_at_a_time_with_a_pause(site: FeedSite) -> None:
    site.pages = {"/robots.txt": Page("user-agent: *\ncrawl-delay: 0.2")} | {
        f"/{i}": Page(GOOD) for i in range(3)
    }

    async def all_at_once() -> None:
        client = http.Client(Limits(delay_s=0.05), "a test", "*/*")
        await visit(client, f"{site.url}/0")
        await asyncio.gather(*(visit(client, f"{site.url}/{i}") for i in (1, 2)))

    asyncio.run(all_at_once())
    times = [when for _, _, when in site.log]
    assert len(times) == 4 and site.asked("/robots.txt") == 1
    assert all(b - a >= 0.19 for a, b in itertools.pairwise(times))


# --- walls ------------------------------------------------------------------------------------------


def unpack(data: bytes, encoding: str, most: int = 1 << 20, step: int = 7) -> bytes:
    unpacker = Unpacker(encoding)
    parts = [piece for i in range(0, len(data), step) for piece in unpacker.feed(data[i : i + step], most)]
    unpacker.end()
    return b"".join(parts)


def test_unpacking() -> None:
    text = "新闻".encode() * 500
    assert unpack(gzip.compress(text), "gzip") == text
    assert unpack(gzip.compress(text) * 2 + b"\0\0", "X-GZIP") == text * 2, "members and padding"
    assert unpack(text, "identity") == unpack(text, "") == text


@pytest.mark.parametrize(
    ("data", "encoding", "status"),
    [
        (b"no zip at all", "gzip", "broken"),
        (gzip.compress(b"x" * 5000, mtime=0)[:-12], "gzip", "broken"),
        (b"x", "br", "not a feed"),
        (b"x", "gzip, gzip", "not a feed"),
    ],
)
def test_what_cannot_be_unpacked(data: bytes, encoding: str, status: str) -> None:
    with pytest.raises(FetchError) as caught:
        unpack(data, encoding)
    assert caught.value.status == status


def test_a_piece_is_never_longer_than_asked_for() -> None:
    bomb = gzip.compress(bytes(50 << 20))
    pieces = Unpacker("gzip").feed(bomb, 1000)
    assert [len(next(pieces)) for _ in range(5)] == [1000] * 5


PRIVATE = (
    "127.0.0.1 198.18.0.1 169.254.169.254 100.64.0.1 0.0.0.0 224.0.0.1 ::1 ::ffff:127.0.0.1 fe80::1%eth0 "
    "fd00::1 2002:7f00:1::"
)


def test_public_addresses() -> None:
    assert [address for address in PRIVATE.split() if is_public(address)] == []
    assert is_public("8.8.8.8") and is_public("2606:4700::1111")


def test_a_public_feed_does_not_lead_inside() -> None:
    guard = Guard()
    guard.check_literal("http://8.8.8.8/feed")
    for url in ("http://127.0.0.1/", "http://[::1]:80/", "http://169.254.169.254/latest"):
        with pytest.raises(FetchError, match="public"):
            guard.check_literal(url)
    with pytest.raises(FetchError, match="inner"):
        guard.check("inner.example", ["127.0.0.1"])
    assert guard.check("mixed.example", ["127.0.0.1", "8.8.4.4"]) == ["8.8.4.4"]


def test_a_feed_of_ones_own_may_be_inside() -> None:
    guard = Guard()
    guard.check_literal("http://127.0.0.1/feed")
    guard.check_literal("http://127.0.0.2/feed")
    assert guard.check("also.example", ["8.8.8.8", "127.0.0.1"]) == ["8.8.8.8", "127.0.0.1"]


def test_the_guard_sees_what_a_name_stands_for() -> None:
    async def ask() -> None:
        guard = Guard()
        guard.check_literal("http://8.8.8.8/")  # as if a public feed had redirected
        async with http.guarded_session(guard, Limits(), {}) as session:
            until = asyncio.get_running_loop().time() + 5
            await http.get(session, "http://localhost:9/", Limits(), {}, until)

    with pytest.raises(FetchError, match="localhost, which is not on the public internet") as caught:
        asyncio.run(ask())
    assert caught.value.status == "refused" and not caught.value.again


def test_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "no_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    assert proxy_for("http://a.example/") is None
    monkeypatch.setenv("http_proxy", "http://proxy.example:3128")
    monkeypatch.setenv("no_proxy", "b.example")
    assert proxy_for("http://a.example/") == "http://proxy.example:3128"
    assert "proxy.example" in Guard().proxies
    for url in ("http://127.0.0.1:8/", "http://localhost/", "http://b.example/", "https://a.example/"):
        assert proxy_for(url) is None, url


def test_retry_after() -> None:
    soon = format_datetime(datetime.now(UTC) + timedelta(seconds=90), usegmt=True)
    assert 80 < http.retry_after_s(soon) < 91
    assert (http.retry_after_s("7"), http.retry_after_s("Mon, 01 Jan 2001 00:00:00 GMT")) == (7.0, 0.0)
    assert [http.retry_after_s(value) for value in ("", "soon", "-1")] == [0.0] * 3
    assert http.retry_after_s("9" * 400) < 1e10 and time.time() > 0


# --- robots.txt -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "user-agent: *\ndisallow: /" + "*a" * 20_000 + "$",
        "".join(f"User Agent {n}\n" for n in range(15_000)) + "disallow: /y\n" * 20_000,
        "user-agent: *\n" + "".join(f"disallow: /*{n}*z\n" for n in range(25_000)),
    ],
)
def test_a_hostile_file_costs_little(text: str) -> None:
    begun = time.perf_counter()
    assert http.read_robots(text).can_fetch("https://a.b/" + "a" * 5000, "MemeCMD")
    assert time.perf_counter() - begun < 15, "minutes, were the names of other robots kept"
