"""Images read in several processes: results in the order asked for, few in memory, a crash costs one image.

Processes are spawned and not forked: a notebook's kernel and onnxruntime have threads, which a fork would
cut off.
"""

import io
import multiprocessing
import os
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import CancelledError
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from typing import Any, TypeVar

from pebble import ProcessExpired, ProcessFuture, ProcessPool
from PIL import Image

from memecmd_utils import library_funnel
from memecmd_utils.errors import MemecmdError
from memecmd_utils.machine import cores
from memecmd_utils.ocr import Ocr
from memecmd_utils.picture_reading import Job, Reading, read_picture
from memecmd_utils.settings import Filters

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
    return max(1, min(cores(), MOST_WORKERS, _memory() // WORKER_BYTES)) if images >= PARALLEL_FROM else 1


def _memory() -> int:
    """Bytes of memory of this machine; where the system does not tell, enough for all workers."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return MOST_WORKERS * WORKER_BYTES


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
        """Each item with the reading of its job, in the order of `jobs`.

        At most `AHEAD` images for each worker have been taken from `jobs` and not yet been handed out. An
        image whose process dies, or that takes longer than `LIMIT` seconds, is tried once more in a new
        process and rejected then. Raises `WorkersLost` if that happens to `MOST_LOST` images in a row
        and to a blank picture after them, and whatever else `read_picture` raises.
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
        return Reading(library_funnel.undecodable(DIED))

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


# --- in the worker ------------------------------------------------------------------------------------------

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
