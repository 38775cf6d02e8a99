"""One `make reproduce` at a time works on a run: a lock on the run's folder.

The lock belongs to an open file, which `make` and the stages that it starts inherit: stages of one call run
side by side, and the lock is gone when the last of them is, however they end. A notebook run by hand writes
to a folder of its own and takes no lock.
"""

import fcntl
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, NoReturn

FILE = ".lock"
VARIABLE = "MEMECMD_RUN_LOCK"
"""Descriptor of the open file, for the processes that inherit it."""


@contextmanager
def taken(folder: Path) -> Iterator[None]:
    """Hold a run's folder; first wait, with a word, for another process that has it."""
    handle = None if _inherited(folder / FILE) else take(folder)
    try:
        yield
    finally:
        if handle is not None:
            handle.close()


def take(folder: Path, tell: IO[str] | None = None) -> Any:
    """Wait, with a word, until nobody holds a run's folder; hold it until the returned file is closed."""
    path, tell = folder / FILE, tell or sys.stderr
    folder.mkdir(parents=True, exist_ok=True)
    told = False
    while True:
        handle = path.open("a+")
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not told:
                told = True
                handle.seek(0)
                who = handle.read().strip() or "another process"
                waits = "waiting until that has ended (Ctrl-C ends only the waiting)"
                print(f"run {folder.name} is being made by {who}: {waits}", file=tell, flush=True)
            fcntl.flock(handle, fcntl.LOCK_EX)
        # Meanwhile `make clean` may have put the folder away.
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(handle.fileno()), path.stat()):
                break
        handle.close()
        folder.mkdir(parents=True, exist_ok=True)
    handle.truncate(0)
    print(f"process {os.getpid()} since {time.strftime('%Y-%m-%d %H:%M')}", file=handle, flush=True)
    return handle


def hold(folder: Path, command: Sequence[str]) -> NoReturn:
    """Become `command` with the folder held for it and all that it starts."""
    handle = None if _inherited(folder / FILE) else take(folder)
    if handle is not None:
        os.set_inheritable(handle.fileno(), True)
        os.environ[VARIABLE] = str(handle.fileno())
    os.execvp(command[0], list(command))


def _inherited(path: Path) -> bool:
    """Whether the process that started this one holds this file for it."""
    with suppress(KeyError, ValueError, OSError):
        return os.path.samestat(os.fstat(int(os.environ[VARIABLE])), path.stat())
    return False
