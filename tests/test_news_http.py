import asyncio
import gzip
import time
import zlib
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from memecmd_utils import news_http
from memecmd_utils.news_http import FetchError, Guard, Unpacker, is_public, proxy_for, retry_after_s


def unpack(data: bytes, encoding: str, most: int = 1 << 20, step: int = 7) -> bytes:
    unpacker = Unpacker(encoding)
    parts = [piece for i in range(0, len(data), step) for piece in unpacker.feed(data[i : i + step], most)]
    unpacker.end()
    return b"".join(parts)


def test_unpacking() -> None:
    text = "新闻".encode() * 500
    raw = zlib.compressobj(wbits=-15)
    assert unpack(gzip.compress(text), "gzip") == unpack(zlib.compress(text), "deflate") == text
    assert unpack(raw.compress(text) + raw.flush(), "deflate") == text, "deflate without its header"
    assert unpack(gzip.compress(text) * 2 + b"\0\0", "X-GZIP") == text * 2, "members and padding"
    assert unpack(text, "identity") == unpack(text, "") == text


@pytest.mark.parametrize(
    ("data", "encoding", "status"),
    [
        (b"no zip at all", "gzip", "broken"),
        (b"\xff\xff\xff\xff", "deflate", "broken"),
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


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("8.8.8.8", True),
        ("127.0.0.1", False),
        ("198.18.0.1", False),
        ("169.254.169.254", False),
        ("100.64.0.1", False),
        ("0.0.0.0", False),
        ("224.0.0.1", False),
        ("::1", False),
        ("::ffff:127.0.0.1", False),
        ("fe80::1%eth0", False),
        ("fd00::1", False),
        ("2606:4700::1111", True),
        ("2002:7f00:1::", False),
    ],
)
def test_public_addresses(address: str, public: bool) -> None:
    assert is_public(address) is public


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
        async with news_http.guarded_session(guard, news_http.Limits()) as session:
            until = asyncio.get_running_loop().time() + 5
            await news_http.get(session, "http://localhost:9/", news_http.Limits(), {}, until)

    with pytest.raises(FetchError, match="localhost, which is not on the public internet") as caught:
        asyncio.run(ask())
    assert caught.value.status == "refused" and not caught.value.again


def test_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "http_proxy",
        "https_proxy",
        "no_proxy",
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "NO_PROXY",
        "all_proxy",
    ):
        monkeypatch.delenv(name, raising=False)
    assert proxy_for("http://a.example/") is None
    monkeypatch.setenv("http_proxy", "http://proxy.example:3128")
    monkeypatch.setenv("no_proxy", "b.example")
    assert proxy_for("http://a.example/") == "http://proxy.example:3128"
    assert "proxy.example" in news_http.proxy_hosts()
    for url in ("http://127.0.0.1:8/", "http://localhost/", "http://b.example/", "https://a.example/"):
        assert proxy_for(url) is None, url


def test_retry_after() -> None:
    soon = format_datetime(datetime.now(UTC) + timedelta(seconds=90), usegmt=True)
    assert 80 < retry_after_s(soon) < 91
    assert (retry_after_s("7"), retry_after_s("Mon, 01 Jan 2001 00:00:00 GMT")) == (7.0, 0.0)
    assert [retry_after_s(value) for value in (None, "", "soon", "-1")] == [None] * 4
    assert retry_after_s("9" * 400) < 1e10 and time.time() > 0


def test_the_name_is_honest() -> None:
    assert news_http.USER_AGENT.startswith("MemeCMD/") and "Mozilla" not in news_http.USER_AGENT
