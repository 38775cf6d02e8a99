"""What is done with the bytes of one image of a library, in this process or in one of several."""

import io
import math
import multiprocessing
import os
import re
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import CancelledError
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple, TypeVar

from pebble import ProcessExpired, ProcessFuture, ProcessPool
from PIL import Image

from memecmd_utils import pictures
from memecmd_utils.files import MemecmdError, cores
from memecmd_utils.library import duplicates
from memecmd_utils.library.ocr import MAX_SIDE, Ocr, OcrError
from memecmd_utils.pictures import ImageRejected
from memecmd_utils.settings import Filters

LONGEST_SIDE = 640  # pixels of the normalised copies
THINNEST = 20
"""Sides of a picture as OCR gets it, at most so many to 1. The engine makes the shorter side 480 pixels: at
50 to 1 that takes minutes and 2 GB, and from 126 to 1 it fails."""


UNDECODABLE, FILTER = "undecodable", "filter"


class Exit(NamedTuple):
    """Why a file is not in the library."""

    step: str
    why: str
    """In words, with the file's own numbers or names, for `rejected.csv`."""
    reason: str = ""
    """The same for all files that left for it: a row of `funnel.csv`."""


def undecodable(why: str) -> Exit:
    """Exit of a file that is no picture; files of one kind of fault share the reason.

    >>> undecodable("too small: 9 x 12 (least side 16)").reason
    'too small'
    """
    return Exit(UNDECODABLE, why, re.split(r"[:(,;]", why, maxsplit=1)[0].strip())


def by_size(filters: Filters, width: int, height: int) -> Exit | None:
    """The filter that leaves out a picture of this size (pixels, before anything is scaled), if any."""
    short, long = sorted((width, height))
    if short < filters.min_side:
        return Exit(FILTER, f"shorter side of {short} pixels (min_side {filters.min_side})", "min_side")
    if filters.max_aspect_ratio is not None and long > filters.max_aspect_ratio * short:
        why = f"sides as {long / short:.2f} to 1 (max_aspect_ratio {filters.max_aspect_ratio:g})"
        return Exit(FILTER, why, "max_aspect_ratio")
    return None


def by_text(filters: Filters, text: str) -> Exit | None:
    """The filter that leaves out a picture with this visible text, if any; blanks do not count."""
    length = len("".join(text.split()))
    if filters.needs_text and not length:
        return Exit(FILTER, "no text could be read (needs_text)", "needs_text")
    if filters.max_text_chars is not None and length > filters.max_text_chars:
        why = f"{length} characters of text (max_text_chars {filters.max_text_chars})"
        return Exit(FILTER, why, "max_text_chars")
    return None


@dataclass(frozen=True)
class Job:
    """One image to look at."""

    data: bytes
    """The file's bytes."""
    filters: Filters
    text: str | None = None
    """Visible text where it is known already; None: read it."""


class Reading(NamedTuple):
    """What was found in an image; of one that is left out only `exit` and what led to it."""

    exit: Exit | None
    text: str | None = None
    """Visible text; None where a picture was left out before its text was read."""
    normal: bytes = b""
    """The normalised copy as PNG."""
    width: int = 0
    height: int = 0
    phash: str = ""
    """64-bit perceptual hash of the normalised copy, 16 hex digits."""
    pixels: int = 0
    """Width times height of the picture as the file holds it, before anything is scaled."""


def read_picture(job: Job, ocr: Ocr) -> Reading:
    """Decode an image, read its text and make its normalised copy; or say why it is left out."""
    try:
        picture, sides = pictures.decode_reduced(job.data, MAX_SIDE)
    except ImageRejected as reason:
        return Reading(undecodable(str(reason)))
    if out := by_size(job.filters, *sides):
        return Reading(out)
    text = job.text
    if text is None:
        try:
            text = ocr.read_text(_not_too_thin(picture))
        except OcrError:
            raise
        except Exception as error:  # one odd picture must not end the reading of thousands
            why = f"the OCR engine failed: {type(error).__name__} {error}".splitlines()[0].strip()
            return Reading(undecodable(why))
    if out := by_text(job.filters, text):
        return Reading(out, text)
    # Read first, shrink then: small print in tall comic strips is lost at 640 pixels.
    size = picture.size
    if max(size) < sides[1]:  # decoded in part: rounded sides may give another shape by a pixel
        undivided = sides if size[0] < size[1] else sides[::-1]
        picture = picture.resize(_stored_size(*undivided), Image.Resampling.LANCZOS, reducing_gap=2.0)
    else:
        picture.thumbnail((LONGEST_SIDE, LONGEST_SIDE), Image.Resampling.LANCZOS)
    normal = pictures.png_bytes(picture)
    return Reading(
        None, text, normal, *picture.size, f"{duplicates.phash(picture):016x}", sides[0] * sides[1]
    )


def _stored_size(width: int, height: int) -> tuple[int, int]:
    """Size in pixels that `Image.thumbnail` would give a larger picture, which is not there to ask."""
    shape = width / height
    exact = LONGEST_SIDE * min(shape, 1 / shape)
    sides = max(1, math.floor(exact)), max(1, math.ceil(exact))
    # Like Pillow: the whole number whose shape is nearer, for a wide picture not always the rounded one.
    if width < height:
        return min(sides, key=lambda side: abs(shape - side / LONGEST_SIDE)), LONGEST_SIDE
    return LONGEST_SIDE, min(sides, key=lambda side: abs(shape - LONGEST_SIDE / side))


def _not_too_thin(picture: Image.Image) -> Image.Image:
    """The picture itself, or a thin one at the size OCR can use with white beside it."""
    if max(picture.size) <= THINNEST * min(picture.size):
        return picture
    small = picture.copy()
    small.thumbnail((MAX_SIDE, MAX_SIDE), Image.Resampling.LANCZOS)
    least = -(-max(small.size) // THINNEST)
    wide = Image.new("RGB", (max(small.width, least), max(small.height, least)), "white")
    wide.paste(small)
    return wide


# --- Images read in several processes: results in the order asked for, few in memory, a crash costs one image
# Processes are spawned and not forked: a notebook's kernel and onnxruntime have threads, which a fork would
# cut off.


AHEAD = 4  # images in memory for each worker: one being read, the others waiting for an earlier one
PARALLEL_FROM = 100
"""Images from which on workers pay: starting them takes as long as reading some tens of images."""
MOST_WORKERS = 16
WORKER_BYTES = 1_000_000_000
"""Memory a worker may need: its OCR engine takes 300 MB, and 900 MB while it reads 2,000 x 2,000 pixels."""
LIMIT = 300.0
"""Seconds after which a worker that still reads the same image is ended; the largest take some tens."""
MOST_LOST = 5
DIED = "the process that read it died twice (out of memory, the decoder crashed or did not come to an end)"
DEATHS = (ProcessExpired, TimeoutError, BrokenProcessPool, CancelledError)
T = TypeVar("T")


class WorkersUnavailable(MemecmdError, RuntimeError):
    """Worker processes cannot be started; nothing has been read yet."""


class WorkersLost(MemecmdError, RuntimeError):
    """Worker processes die for a reason that is no single image's; what was read before is handed out."""


def workers_for(images: int) -> int:
    """How many processes to read so many images with; 1 means that none is started."""
    if images < PARALLEL_FROM:
        return 1
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return max(1, min(cores(), MOST_WORKERS, memory // WORKER_BYTES))


def one_after_another(jobs: Iterable[tuple[T, Job]], ocr: Ocr) -> Iterator[tuple[T, Reading]]:
    """What `Workers.run` does, in this process."""
    for item, job in jobs:
        yield item, read_picture(job, ocr)


class Workers:
    """Processes that read images; a context manager, which ends them."""

    def __init__(self, number: int, ocr: Ocr) -> None:
        """`ocr` goes to each process by pickle. Raises `WorkersUnavailable` if they cannot be started."""
        self._number, self._ocr = number, ocr
        self._waiting: deque[tuple[Any, Job, ProcessFuture]] = deque()
        self._lost = 0  # images in a row whose processes died
        try:
            self._pool = self._new_pool()
        except DEATHS as error:
            raise WorkersUnavailable(
                "no worker process could be started (a script needs `if __name__ == '__main__':` around "
                "what it runs)"
            ) from error

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, *_: object) -> None:
        # Nobody waits for what they still read: a hanging decoder would never end.
        self._pool.stop()
        self._pool.join()

    def _new_pool(self) -> ProcessPool:
        """Processes of which one has answered: it shows here, and not with an image, if any can start."""
        context: Any = multiprocessing.get_context("spawn")
        pool = ProcessPool(self._number, initializer=_begin, initargs=(self._ocr,), context=context)
        try:
            _result(pool, pool.schedule(os.getpid, timeout=LIMIT))
        except BaseException:
            pool.stop()
            pool.join()
            raise
        return pool

    def run(self, jobs: Iterable[tuple[T, Job]]) -> Iterator[tuple[T, Reading]]:
        """Each item with the reading of its job, in the order of `jobs`, of which few are ahead at any time.

        An image whose process dies, or that takes longer than `LIMIT` seconds, is tried once more in a new
        process and rejected then. Raises `WorkersLost` if that happens to `MOST_LOST` images in a row and to
        a blank picture after them, and whatever else `read_picture` raises.
        """
        source = iter(jobs)
        try:
            while True:
                for item, job in islice(source, AHEAD * self._number - len(self._waiting)):
                    self._waiting.append((item, job, self._schedule(job)))
                if not self._waiting:
                    return
                item, job, future = self._waiting.popleft()
                yield item, self._reading(job, future)
        finally:
            self._cancel()
            self._waiting.clear()

    def _schedule(self, job: Job) -> ProcessFuture:
        if not self._pool.active:  # a worker died while it was idle: not this image's fault
            self._cancel()
            self._pool.join()
            try:
                self._pool = self._new_pool()
            except DEATHS as error:
                raise WorkersLost(
                    "a worker process died and no other can be started (out of memory?): run again, "
                    "recorded texts are not read a second time"
                ) from error
        return self._pool.schedule(_read, args=(job,), timeout=LIMIT)

    def _cancel(self) -> None:
        """Of a dead pool no future would ever be done."""
        for _, _, future in self._waiting:
            future.cancel()

    def _reading(self, job: Job, future: ProcessFuture) -> Reading:
        for attempt in (future, None):
            try:
                future = attempt or self._schedule(job)
                reading = _result(self._pool, future)
            except DEATHS:
                continue
            self._lost = 0
            return reading
        self._lost += 1
        if self._lost == MOST_LOST:
            self._probe()
        return Reading(undecodable(DIED))

    def _probe(self) -> None:
        """Read a blank picture; `WorkersLost` if the process dies of that, too: then it is not the images."""
        buffer = io.BytesIO()
        Image.new("RGB", (64, 64), "white").save(buffer, "PNG")
        try:
            future = self._schedule(Job(buffer.getvalue(), Filters()))
            _result(self._pool, future)
        except DEATHS:
            raise WorkersLost(
                f"the processes that read {MOST_LOST} images in a row died twice each, and so did one with a "
                "blank picture: is there enough memory, does the OCR engine run on this machine?"
            ) from None
        self._lost = 0


def _result(pool: ProcessPool, future: ProcessFuture) -> Any:
    """What `future` holds when it is done; a pool that breaks (out of memory) may leave it open for ever."""
    while True:
        try:
            return future.result(timeout=1.0)
        except TimeoutError:
            if future.done():
                raise
            if not pool.active:
                raise BrokenProcessPool("the pool of processes is gone") from None


_held: dict[str, Ocr] = {}  # only ever filled in a worker: its engine is loaded once, at the first picture


def _begin(ocr: Ocr) -> None:
    _held["ocr"] = ocr
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A killed parent ends nobody, and a worker whose decoder hangs would go on for ever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _read(job: Job) -> Reading:
    return read_picture(job, _held["ocr"])
