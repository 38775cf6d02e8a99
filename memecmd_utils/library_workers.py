"""Images read in several processes: results in the order asked for, few in memory, a crash costs one image.

Each worker is an executor of one process, so that it is known which image a dead one had. Processes are
spawned and not forked: a notebook's kernel and onnxruntime have threads, which a fork would cut off.
"""

import faulthandler
import io
import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

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
"""Seconds after which a worker that still reads the same image ends itself; the largest take some tens."""
MOST_LOST = 5
DIED = "the process that read it died twice (out of memory, the decoder crashed or did not come to an end)"
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


def one_after_another(jobs: Iterable[tuple[T, Job | None]], ocr: Ocr) -> Iterator[tuple[T, Reading | None]]:
    """What `Workers.run` does, in this process."""
    for item, job in jobs:
        yield item, None if job is None else read_picture(job, ocr)


@dataclass
class _Entry:
    item: Any
    job: Job | None
    reading: Reading | None = None
    done: bool = False
    deaths: int = 0


class Workers:
    """Processes that read images; a context manager, which ends them."""

    def __init__(self, number: int, ocr: Ocr) -> None:
        """`ocr` goes to each process by pickle. Raises `WorkersUnavailable` if they cannot be started."""
        self._ocr = ocr
        self._idle: list[ProcessPoolExecutor] = []
        self._pids: dict[ProcessPoolExecutor, int] = {}
        self._lost = 0  # images in a row whose processes died
        self._window = AHEAD * number
        try:
            self._idle.extend(self._new() for _ in range(number))
            # Here, and not with the first image, shows whether a process can start at all.
            for executor, ready in [(one, one.submit(os.getpid)) for one in self._idle]:
                self._pids[executor] = ready.result()
        except BaseException as error:
            self.__exit__(type(error))
            if isinstance(error, BrokenProcessPool):
                raise WorkersUnavailable(
                    "no worker process could be started (a script needs `if __name__ == '__main__':` around "
                    "what it runs)"
                ) from error
            raise

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, kind: type[BaseException] | None = None, *_: object) -> None:
        for executor in self._idle:
            # After an error or Ctrl-C nobody waits for what they read; a hanging decoder would never end.
            if kind is not None and executor in self._pids:
                _kill(self._pids[executor])
            executor.shutdown(cancel_futures=True)

    def _new(self) -> ProcessPoolExecutor:
        context = multiprocessing.get_context("spawn")
        return ProcessPoolExecutor(1, mp_context=context, initializer=_begin, initargs=(self._ocr,))

    def _in_place_of(self, dead: ProcessPoolExecutor) -> ProcessPoolExecutor:
        """A new process that has started, so that its death is an image's doing and not the machine's."""
        del self._pids[dead]
        dead.shutdown()
        executor = self._new()
        try:
            self._pids[executor] = executor.submit(os.getpid).result()
        except BrokenProcessPool as error:
            executor.shutdown()
            raise WorkersLost(
                "a worker process died and no other can be started (out of memory?): run again, "
                "recorded texts are not read a second time"
            ) from error
        return executor

    def _probe(self, executor: ProcessPoolExecutor) -> None:
        """Read a blank picture; `WorkersLost` if the process dies of that, too: then it is not the images."""
        buffer = io.BytesIO()
        Image.new("RGB", (64, 64), "white").save(buffer, "PNG")
        try:
            executor.submit(_read, Job(buffer.getvalue(), Filters())).result()
        except BrokenProcessPool:
            executor.shutdown()
            raise WorkersLost(
                f"the processes that read {MOST_LOST} images in a row died twice each, and so did one with a "
                "blank picture: is there enough memory, does the OCR engine run on this machine?"
            ) from None
        self._lost = 0

    def run(self, jobs: Iterable[tuple[T, Job | None]]) -> Iterator[tuple[T, Reading | None]]:
        """Each item with the reading of its job, in the order of `jobs`; None where there is no job.

        At most `AHEAD` images for each worker have been taken from `jobs` and not yet been handed out. An
        image whose process dies, or that takes longer than `LIMIT` seconds, is tried once more in a new
        process and rejected then. Raises `WorkersLost` if that happens to `MOST_LOST` images in a row
        and to a blank picture after them, and whatever else `read_picture` raises.
        """
        source = iter(jobs)
        waiting: deque[_Entry] = deque()
        running: dict[Future, tuple[ProcessPoolExecutor, _Entry]] = {}
        try:
            more = True
            while more or waiting:
                while more and self._idle and len(waiting) < self._window:
                    if more := (pulled := next(source, None)) is not None:
                        entry = _Entry(*pulled, done=pulled[1] is None)
                        waiting.append(entry)
                        if not entry.done:
                            self._hand_out(self._idle.pop(), entry, running)
                while waiting and waiting[0].done:
                    entry = waiting.popleft()
                    yield entry.item, entry.reading
                if running and not (waiting and waiting[0].done):
                    self._collect(running)
        finally:
            for future, (executor, _) in running.items():
                future.cancel()
                self._idle.append(executor)

    def _hand_out(self, executor: ProcessPoolExecutor, entry: _Entry, running: dict[Future, tuple]) -> None:
        try:
            future = executor.submit(_read, entry.job)
        except BrokenProcessPool:  # died while it was idle: not this image's fault
            executor = self._in_place_of(executor)
            future = executor.submit(_read, entry.job)
        running[future] = executor, entry

    def _collect(self, running: dict[Future, tuple]) -> None:
        """Wait until an image is read; take what is done, and start a new process for one that died."""
        for future in wait(running, return_when=FIRST_COMPLETED).done:
            executor, entry = running.pop(future)
            try:
                entry.reading, self._lost = future.result(), 0
            except BrokenProcessPool:
                executor = self._in_place_of(executor)
                entry.deaths += 1
                if entry.deaths < 2:
                    self._hand_out(executor, entry, running)
                    continue
                self._lost += 1
                if self._lost == MOST_LOST:
                    self._probe(executor)
                entry.reading = Reading(library_funnel.undecodable(DIED))
            except BaseException:
                self._idle.append(executor)
                raise
            self._idle.append(executor)
            entry.done, entry.job = True, None  # the bytes are not needed any more


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):  # it ended by itself
        os.kill(pid, getattr(signal, "SIGKILL", signal.SIGTERM))


# --- in the worker ------------------------------------------------------------------------------------------

_held: dict[str, Ocr] = {}  # only ever filled in a worker: its engine is loaded once, at the first picture


def _begin(ocr: Ocr) -> None:
    _held["ocr"] = ocr
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's; it ends the workers in order
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A killed parent ends nobody, and its workers would wait for ever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _read(job: Job) -> Reading:
    # A watchdog outside of Python: a decoder may hold the interpreter's lock while it hangs.
    with Path(os.devnull).open("w") as nowhere:  # it would print a traceback
        faulthandler.dump_traceback_later(LIMIT, exit=True, file=nowhere)
        try:
            return read_picture(job, _held["ocr"])
        finally:
            faulthandler.cancel_dump_traceback_later()
