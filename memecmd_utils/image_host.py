"""One host that images are fetched from: robots.txt first, one request at a time, few tries again."""

import asyncio
import io
from collections.abc import Awaitable, Callable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import urldefrag, urljoin, urlsplit

from PIL import Image
from pydantic import BaseModel

from memecmd_utils import __version__, images, storage
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

GIVE_UP = 4
"""So many images one after the other that a host refuses or does not answer end its turn for this run."""
HEADERS = {
    "User-Agent": f"{PRODUCT}/{__version__} (meme images for research; +https://arxiv.org/abs/2507.00891)",
    "Accept": "image/*",
    "Accept-Encoding": "identity",
}
GIVEN_UP = "host given up"
FINAL = frozenset({"not found", "not an image", "too big", "redirect", "forbidden", "refused", "bad address"})
"""Reasons that stand; an image that failed for another one is asked for again by the next run."""
_SUFFIXES = {"PNG": ".png", "JPEG": ".jpg", "GIF": ".gif", "WEBP": ".webp", "BMP": ".bmp", "TIFF": ".tif"}
_GONE = (404, 410)


class ImageEntry(BaseModel):
    """What came of one image: its file and SHA-256, or the reason why there is none."""

    meme_id: str
    url: str
    file: str = ""
    sha256: str = ""
    bytes: int = 0
    reason: str = ""
    """Empty where the image is there; else the word that `fetch` counts by."""
    detail: str = ""


class ImageHost:
    """One host: its session, its robots.txt, and when the next request may go out (time of the loop)."""

    def __init__(self, limits: Limits, folder: Path, private: bool) -> None:
        """`private`: whether addresses that are not public may be asked."""
        self.limits, self.folder, self.delay_s, self.ready_at = limits, folder, limits.delay_s, 0.0
        self.guard = Guard(proxy_hosts())
        self.guard.public = None if private else True  # None: as the first address is
        self.robots: Robots | None = None
        self.session: Any = None

    async def fetch(self, todo: Sequence[tuple[str, str]], done: Callable[[ImageEntry], None]) -> None:
        """Fetch one image after the other; after `GIVE_UP` refusals in a row the rest is given up."""
        refusals, given_up = 0, ""
        async with guarded_session(self.guard, self.limits) as self.session:
            try:
                await self._read_robots(todo[0][1])
            except FetchError as error:
                given_up = f"{error.status}: {error}"
            for meme_id, url in todo:
                entry = ImageEntry(meme_id=meme_id, url=url)
                if given_up:
                    entry.reason, entry.detail = GIVEN_UP, given_up
                else:
                    try:
                        await self._save(entry)
                        refusals = 0
                    except FetchError as error:
                        entry.reason, entry.detail = error.status, str(error)
                        refusals = 0 if error.status in FINAL else refusals + 1
                        if refusals >= GIVE_UP or (error.wait_s or 0) > self.limits.max_wait_s:
                            given_up = f"after {error.status}: {error}"
                done(entry)

    async def _save(self, entry: ImageEntry) -> None:
        answer = await self._patiently(lambda: self._follow(entry.url))
        if answer.code != 200:
            status = "not found" if answer.code in _GONE else f"HTTP {answer.code}"
            raise FetchError(status, f"HTTP {answer.code}", answer.code, _wait(answer))
        suffix = await asyncio.to_thread(_suffix, answer.body)
        entry.file = f"{entry.meme_id}{suffix}"
        with storage.atomic_path(self.folder / entry.file) as part:
            part.write_bytes(answer.body)
        entry.sha256, entry.bytes = sha256(answer.body).hexdigest(), len(answer.body)

    async def _patiently(self, ask: Callable[[], Awaitable[Answer]]) -> Answer:
        """The answer of `ask`, asked again where waiting may help."""
        tried = 0
        while True:
            tried += 1
            last, wait = tried >= self.limits.tries, 0.0
            try:
                answer = await ask()
                wait = _wait(answer) or 0.0
                if answer.code not in TRY_AGAIN or last or wait > self.limits.max_wait_s:
                    return answer
            except FetchError as error:
                if not error.again or last:
                    raise
            backoff = self.limits.backoff_s * 2 ** (tried - 1)
            await asyncio.sleep(max(wait, min(backoff, self.limits.max_wait_s)))

    async def _follow(self, url: str) -> Answer:
        at = urldefrag(url)[0]
        for _ in range(self.limits.max_redirects + 1):
            if self.robots is not None and not self.robots.allows(at):
                raise FetchError("forbidden", f"robots.txt of {urlsplit(at).netloc} forbids {at}")
            answer = await self._ask(at)
            if answer.code not in REDIRECTS:
                return answer
            target = urldefrag(urljoin(at, answer.headers.get("location", "")))[0]
            if not _same_image(at, target):
                raise FetchError("redirect", f"leads to {target[:200]}", answer.code)
            at = target
        raise FetchError("redirect", f"more than {self.limits.max_redirects} redirects", answer.code)

    async def _ask(self, url: str, cut_at: int | None = None) -> Answer:
        """One request when it is its turn."""
        loop = asyncio.get_running_loop()
        await asyncio.sleep(max(0.0, self.ready_at - loop.time()))
        self.guard.check_literal(url)
        try:
            until = loop.time() + self.limits.total_s
            return await get(self.session, url, self.limits, HEADERS, until, cut_at)
        finally:
            self.ready_at = loop.time() + self.delay_s

    async def _ask_robots(self, url: str) -> Answer:
        """The host's robots.txt, over redirects to any public host (RFC 9309, 2.3.1.2)."""
        parts = urlsplit(url)
        at = f"{parts.scheme}://{parts.netloc}/robots.txt"
        for _ in range(self.limits.max_redirects + 1):
            answer = await self._ask(at, cut_at=MAX_BYTES)
            target = urldefrag(urljoin(at, answer.headers.get("location", "")))[0]
            if answer.code not in REDIRECTS or not host_of(target):
                break
            at = target
        return answer

    async def _read_robots(self, url: str) -> None:
        """Rules of the host (RFC 9309: 4xx allows all; 5xx, 429 and silence allow nothing for now)."""
        answer = await self._patiently(lambda: self._ask_robots(url))
        if answer.code == 429 or answer.code >= 500:
            raise FetchError("robots.txt", f"robots.txt is answered with {answer.code}", answer.code)
        if answer.code == 200:
            self.robots = Robots(answer.body.decode("utf-8", "replace"), PRODUCT)
            delay = self.robots.crawl_delay_s or 0.0
            if delay > self.limits.max_delay_s:
                raise FetchError("robots.txt", f"robots.txt asks for {delay:g} s between requests")
            self.ready_at += max(0.0, delay - self.delay_s)  # the pause after robots.txt itself counts, too
            self.delay_s = max(self.delay_s, delay)


def _same_image(at: str, target: str) -> bool:
    """Whether a redirect stays at its host and file name; another name is mostly that of a placeholder."""
    name, other = (urlsplit(url).path.rpartition("/")[2] for url in (at, target))
    encrypted = target.startswith("https:") or not at.startswith("https:")
    return host_of(target) == host_of(at) and name == other and encrypted


def _wait(answer: Answer) -> float | None:
    return retry_after_s(answer.headers.get("retry-after")) if answer.code in TRY_AGAIN else None


def _suffix(data: bytes) -> str:
    """File name extension of image bytes that decode whole; `FetchError` for anything else."""
    try:
        images.decode_bytes(data)
        with Image.open(io.BytesIO(data), formats=images.FORMATS) as image:
            return _SUFFIXES[image.format or ""]
    except images.ImageRejected as error:
        raise FetchError("not an image", str(error)) from error


def host_of(url: str) -> str:
    """Host and port of an http(s) address without user or password; empty for any other text."""
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and parts.hostname and "@" not in parts.netloc
        port = parts.port
    except ValueError:
        return ""
    return f"{parts.hostname}{f':{port}' if port else ''}" if good else ""
