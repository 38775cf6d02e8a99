"""Recorded outputs of real models: the checkpoint of a run, and what makes it replay without a model.

`Recordings` is the store of one stage; how its files are built stands in `recording_files`.
"""

import fcntl
import json
import math
import os
import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from memecmd_utils import paths, storage
from memecmd_utils.recording_files import (
    INTERN_FROM,
    KEY_VERSION,
    RecordingError,
    RecordingMiss,
    canonical,
    cut_torn_line,
    files_in,
    key_of,
    line_at,
    lines_of,
    lock,
    read_file,
    read_lines,
    scan,
    text_line,
)

__all__ = [
    "INTERN_FROM",
    "KEY_VERSION",
    "RecordingError",
    "RecordingMiss",
    "Recordings",
    "TextCache",
    "canonical",
    "cut_torn_line",
    "differing_fields",
    "is_answer",
    "key_of",
    "rank",
    "read_file",
    "read_lines",
]

REMEMBERED_TEXTS = 4096  # digests; a text that fell out is written once more, which does no harm
EXCERPT = 40  # characters
SHOWN_DIGITS = 16  # of a key, in messages
MISSES = "misses.jsonl"
"""In `data/interim`: requests that were not recorded when they were asked for."""
KEPT_MISSES = 20
ANSWER, USED = 1, 2  # flags of an index entry


class Recordings:
    """All recordings of a stage, from several folders; new ones go to one file of our own.

    Reading merges every `<folder>/<stage>/*.jsonl`; of several values of a key the one of highest `rank`
    counts, and of equals the first. Only an index is held: where the value of a key stands. Writing appends
    to the first `w<N>.jsonl` of `write_dir` that no other process holds; `refresh` takes in what others write
    meanwhile, and `claim` keeps two processes from asking for the same.
    """

    def __init__(self, stage: str, read_dirs: Sequence[Path], write_dir: Path | None = None) -> None:
        self.stage = stage
        self._folders = [folder / stage for folder in read_dirs]
        self._write_folder = write_dir / stage if write_dir else None
        self._handle: Any = None
        self._claims: Any = None
        self._own = self._end = 0  # number and bytes of the file that we write
        self._written: OrderedDict[str, None] = OrderedDict()
        self._opened = time.time()
        self._read_all()

    def _read_all(self) -> None:
        self._index: dict[bytes, int] = {}
        self._live: dict[bytes, float] = {}
        """When the value of a key was asked for, where that was in mode `live`."""
        self._paths: list[Path] = []
        self._read: list[_Read] = []
        self._beside: dict[str, int] = {}
        """Numbers of the files in the folder that we write to, by name."""
        found = self.files()
        self._seen = [_state(path) for path in found]
        for path in found:
            self._take_in(self._number_of(path))

    def _number_of(self, path: Path) -> int:
        if path not in self._paths:
            if path.parent == self._write_folder:
                self._beside[path.name] = len(self._paths)
            self._paths.append(path)
            self._read.append(_Read(path.stat().st_ino))
        return self._paths.index(path)

    def _take_in(self, number: int) -> None:
        """Merge the lines of a file from the last one that was read on: the same one twice is no harm."""
        path, read = self._paths[number], self._read[number]
        read.size = path.stat().st_size
        for count, offset, line in scan(path, after=(read.lines, read.offset)):
            if "key" in line:
                self._merge(line["key"], number, offset, line["value"])
            read.lines, read.offset = count - 1, offset

    def refresh(self) -> None:
        """Take in what other processes have recorded since the files were read."""
        if self._write_folder is None:
            return
        try:
            with os.scandir(self._write_folder) as entries:
                there = {e.name: e.stat() for e in entries if e.name.endswith(".jsonl") and e.name[0] != "."}
        except FileNotFoundError:  # nobody has recorded anything
            return
        if not all(name in there and self._read[n].is_of(there[name]) for name, n in self._beside.items()):
            self._read_anew()  # files were merged or given new keys
            return
        for name in sorted(there):
            number = self._beside.get(name)
            if number is None:
                number = self._number_of(self._write_folder / name)
            if there[name].st_size != self._read[number].size and not self._is_own(number):
                self._take_in(number)

    def _is_own(self, number: int) -> bool:
        return self._handle is not None and number == self._own

    def _read_anew(self) -> None:
        used, own = self.used_keys(), self._paths[self._own] if self._handle is not None else None
        self._read_all()
        if own is not None:
            if own not in self._paths:
                raise RecordingError(f"{own} was moved while it was in use; run again")
            self._own = self._number_of(own)
        for key in used:
            self.mark_used(key)

    def claim(self, key: str) -> bool:
        """Whether this process may ask for `key`, because no other one does. It holds until `release`.

        The claim is a lock on one byte, so it ends with the process, however that ends.
        """
        if self._write_folder is None:
            return True
        if self._claims is None:
            self._write_folder.mkdir(parents=True, exist_ok=True)
            self._claims = (self._write_folder / ".claims").open("ab")
        try:
            fcntl.lockf(self._claims, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, _place(key))
        except (BlockingIOError, PermissionError):
            return False
        return True

    def release(self, key: str) -> None:
        """Let other processes ask for `key`."""
        if self._claims is not None:
            fcntl.lockf(self._claims, fcntl.LOCK_UN, 1, _place(key))

    def is_fresh(self, key: str) -> bool:
        """Whether the value of a key was asked for in mode `live` since the store was opened."""
        return self._live.get(bytes.fromhex(key), -math.inf) >= self._opened

    def files(self) -> list[Path]:
        """All files read, in a fixed order."""
        return [path for folder in self._folders for path in files_in(folder)]

    def is_current(self) -> bool:
        """Whether the files are still those that were read when the store was opened."""
        return [_state(path) for path in self.files()] == self._seen

    def _merge(self, key: str, file: int, offset: int, value: Any, flags: int = 0) -> None:
        packed = bytes.fromhex(key)
        old, (answer, live) = self._index.get(packed), rank(value)
        if old is None or (answer, live) > (bool(old & ANSWER), self._live.get(packed, 0.0)):
            old = offset << 20 | file << 2 | (ANSWER if answer else 0) | (old or 0) & USED
            if live:
                self._live[packed] = live
            else:
                self._live.pop(packed, None)
        self._index[packed] = old | flags

    def __len__(self) -> int:
        return len(self._index)

    def get(self, key: str) -> Any | None:
        """Value of a key, or None."""
        entry = self._index.get(bytes.fromhex(key))
        if entry is None:
            return None
        path = self._paths[entry >> 2 & 0x3FFFF]
        try:
            line = line_at(path, entry >> 20)
            if line["key"] != key:
                raise ValueError("another recording stands there")
            return line["value"]
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise RecordingError(
                f"{path} was changed or moved while it was in use ({error}); run again"
            ) from error

    def mark_used(self, key: str) -> None:
        """Note that a run used a recording; `put` does so by itself, an unknown key is passed over."""
        packed = bytes.fromhex(key)
        if packed in self._index:
            self._index[packed] |= USED

    def used_keys(self) -> list[str]:
        """Keys of the recordings that were used, in hex."""
        return [key.hex() for key, entry in self._index.items() if entry & USED]

    def put(
        self, form: dict[str, Any], value: dict[str, Any], key: str | None = None, live: bool = False
    ) -> None:
        """Append one recording and hand it to the operating system at once (a kill loses nothing).

        `key` spares the work where the caller has it already. `live`: it was asked for although there was a
        recording, and takes its place.
        """
        if self._write_folder is None:
            raise RecordingError(f"the recordings of {self.stage!r} are open for reading only")
        if self._handle is None:
            self._open()
        if live:
            key = key or key_of(form)
            # Clocks may go backwards; what is known to be older stays so.
            known = self._live.get(bytes.fromhex(key), 0.0)
            value = {**value, "live": round(max(time.time(), known + 0.001), 3)}
        key, texts, line = lines_of(form, value, key)
        before = b"".join(text_line(d, text) for d, text in texts.items() if d not in self._written)
        start = self._append(before + line)
        for digest in texts:
            self._written[digest] = None
            self._written.move_to_end(digest)
        while len(self._written) > REMEMBERED_TEXTS:
            self._written.popitem(last=False)
        self._merge(key, self._own, start + len(before), value, USED)

    def _append(self, data: bytes) -> int:
        """Write to our file; return the offset at which `data` begins."""
        # An earlier write may have broken off (disk full, interrupt) and left half a line.
        if os.fstat(self._handle.fileno()).st_size != self._end:
            self._end = cut_torn_line(self._handle)
        start, rest = self._end, memoryview(data)
        while rest:
            rest = rest[self._handle.write(rest) :]
        self._end = start + len(data)
        return start

    def ready(self) -> None:
        """Open our file before anything is asked: what cannot be recorded must not be paid for."""
        if self._handle is None and self._write_folder is not None:
            self._open()

    def _open(self) -> None:
        self._write_folder.mkdir(parents=True, exist_ok=True)
        for number in range(10_000):
            path = self._write_folder / f"w{number}.jsonl"
            handle = lock(path)
            if handle is None:
                continue  # another process writes there
            self._end, number = cut_torn_line(handle), self._number_of(path)
            self._take_in(number)  # what another process wrote to it before us
            self._handle, self._own = handle, number
            self._written.clear()
            return
        raise RecordingError(f"no free recording file in {self._write_folder}")

    def close(self) -> None:
        """Flush to disk and release the file and all claims."""
        if self._handle is not None:
            os.fsync(self._handle.fileno())
            self._handle.close()
            self._handle = None
        if self._claims is not None:
            self._claims.close()
            self._claims = None

    def explain_miss(self, form: dict[str, Any]) -> str:
        """Say how the nearest recording of the same task differs from `form`, field by field."""
        found = nearest(form, self.files())
        if found is None:
            return f"nothing is recorded for task {form.get('task')!r} in stage {self.stage!r}"
        key, fields = found
        told = ", ".join(_told(*field) for field in sorted(fields, key=lambda field: field[0]))
        return f"the nearest recording, {key[:SHOWN_DIGITS]}, differs in: {told or 'nothing'}"


def nearest(form: dict[str, Any], files: Iterable[Path]) -> tuple[str, list[tuple[str, Any, Any]]] | None:
    """Key of the recording of the same task that differs least from `form`, and the `differences`."""
    best: tuple[str, list[tuple[str, Any, Any]]] | None = None
    least = (0, 0)
    for path in files:
        for key, other, _ in read_file(path):
            if other.get("task") != form.get("task"):
                continue
            found = list(differences(form, other))
            # Of equally many fields, those whose texts part later are nearer.
            texts = [(a, b) for _, a, b in found if isinstance(a, str) and isinstance(b, str)]
            this = len(found), -sum(common_length(a, b) for a, b in texts)
            if best is None or this < least:
                best, least = (key, found), this
    return best


def note_miss(form: dict[str, Any], key: str) -> None:
    """Keep the form of a request that is not recorded, so that `explain-miss` takes its key; the last few."""
    line = canonical({"form": form, "key": key})
    kept = [text for other, text in _missed() if other != key][1 - KEPT_MISSES :]
    # Where nothing can be written, the message of the miss says all the same where the forms part.
    with suppress(OSError):
        storage.write_text(paths.interim / MISSES, "\n".join([*kept, line]) + "\n")


def missed_forms() -> dict[str, dict[str, Any]]:
    """Forms of the last requests that were not recorded, by key."""
    return {key: json.loads(line)["form"] for key, line in _missed()}


def _missed() -> list[tuple[str, str]]:
    path = paths.interim / MISSES
    lines = path.read_text(encoding="utf-8").split("\n") if path.is_file() else []
    return [(json.loads(line)["key"], line) for line in lines if line]


@dataclass
class _Read:
    """How far a file has been read: its inode and size then; lines and bytes before the last line read."""

    inode: int
    size: int = 0
    lines: int = 0
    offset: int = 0

    def is_of(self, found: os.stat_result) -> bool:
        """Whether it is the same file still, with no less in it."""
        return found.st_ino == self.inode and found.st_size >= self.size


def _place(key: str) -> int:
    """The byte whose lock is the claim on a key: offsets are signed numbers of 64 bits."""
    return int(key[:15], 16)


def _state(path: Path) -> tuple[Path, int, int]:
    found = path.stat()
    return path, found.st_size, found.st_mtime_ns


def is_answer(value: Any) -> bool:
    """Whether a recorded value is an answer, not a refusal or an unusable reply."""
    return not isinstance(value, dict) or value.get("outcome", "accepted") in ("accepted", "violations")


def rank(value: Any) -> tuple[bool, float]:
    """Order of the recorded values of one request: any answer before any refusal, then the newest live one.

    A value that was asked for in mode `live` says when, in seconds; the others stand at 0, before all of
    them. Of equal values the first counts, in the order of files and lines.
    """
    live = value.get("live") if isinstance(value, dict) else None
    known = type(live) in (int, float) and 0 < live < math.inf
    return is_answer(value), float(live) if known else 0.0


def differences(a: Any, b: Any, where: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield (path, value in a, value in b) of the fields in which two normal forms differ."""
    if isinstance(a, dict) and isinstance(b, dict):
        for key in a.keys() | b.keys():
            yield from differences(a.get(key), b.get(key), f"{where}.{key}" if where else key)
    elif isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        for index, (x, y) in enumerate(zip(a, b, strict=True)):
            yield from differences(x, y, f"{where}[{index}]")
    elif a != b:
        yield where, a, b


def differing_fields(a: Any, b: Any) -> Iterator[str]:
    """Yield the paths of the fields in which two normal forms differ."""
    return (where for where, _, _ in differences(a, b))


def common_length(a: str, b: str) -> int:
    """Return how many characters two texts have in common at their beginnings."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if a[:middle] == b[:middle] else (low, middle - 1)
    return low


def excerpts(a: str, b: str) -> tuple[str, str]:
    """Cut the stretch around the first difference out of two texts, `EXCERPT` characters at most."""
    start = max(0, common_length(a, b) - EXCERPT // 4)

    def cut(text: str) -> str:
        front, end = "…" * (start > 0), "…" * (len(text) > start + EXCERPT)
        return front + text[start + len(front) : start + EXCERPT - len(end)] + end

    return cut(a), cut(b)


def _told(where: str, asked: Any, recorded: Any) -> str:
    if where.endswith(".text") and isinstance(asked, str) and isinstance(recorded, str):
        return "{} (asked {!r}, recorded {!r})".format(where, *excerpts(asked, recorded))
    return where


class TextCache:
    """Recorded texts by a plain key (OCR): what stage 01 asks before it reads an image."""

    def __init__(self, store: Recordings, task: str) -> None:
        self._store, self._task = store, task

    @property
    def used_keys(self) -> set[str]:
        """Keys of the recorded texts that were asked for or written."""
        return set(self._store.used_keys())

    def get(self, key: str) -> str | None:
        """Text of a key, or None."""
        hashed = key_of(self._form(key))
        self._store.mark_used(hashed)
        value = self._store.get(hashed)
        return None if value is None else value["text"]

    def put(self, key: str, text: str) -> None:
        """Record a text."""
        self._store.put(self._form(key), {"text": text})

    def _form(self, key: str) -> dict[str, Any]:
        return {"key_version": KEY_VERSION, "task": self._task, "subject": key}
