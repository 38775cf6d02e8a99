"""Recorded outputs of real models: the checkpoint of a run, and what makes it replay without a model.

`Recordings` is the store of one stage; how its files are built stands in `recording_files`.
"""

import os
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

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
    "read_file",
    "read_lines",
]

REMEMBERED_TEXTS = 4096  # digests; a text that fell out is written once more, which does no harm
EXCERPT = 40  # characters
ANSWER, USED = 1, 2  # flags of an index entry


class Recordings:
    """All recordings of a stage, from several folders; new ones go to one file of our own.

    Reading merges every `<folder>/<stage>/*.jsonl`; the first accepted answer of a key wins. Only an index
    is held: where the answer of a key stands. Writing appends to the first `w<N>.jsonl` of `write_dir`
    that no other process holds; what others write meanwhile is seen when the store is opened again.
    """

    def __init__(self, stage: str, read_dirs: Sequence[Path], write_dir: Path | None = None) -> None:
        self.stage = stage
        self._folders = [folder / stage for folder in read_dirs]
        self._write_folder = write_dir / stage if write_dir else None
        self._index: dict[bytes, int] = {}
        self._paths = self.files()
        self._seen = [_state(path) for path in self._paths]
        self._handle: Any = None
        self._own = self._end = 0  # number and bytes of the file that we write
        self._written: OrderedDict[str, None] = OrderedDict()
        for number, path in enumerate(self._paths):
            for _, offset, line in scan(path):
                if "key" in line:
                    self._merge(line["key"], number, offset, line["value"])

    def files(self) -> list[Path]:
        """All files read, in a fixed order."""
        return [path for folder in self._folders for path in files_in(folder)]

    def is_current(self) -> bool:
        """Whether the files are still those that were read when the store was opened."""
        return [_state(path) for path in self.files()] == self._seen

    def _merge(self, key: str, file: int, offset: int, value: Any, flags: int = 0) -> None:
        # An answer beats a refusal or an unusable reply that an earlier run had to write down.
        packed = bytes.fromhex(key)
        old = self._index.get(packed)
        answer = is_answer(value)
        if old is None or (answer and not old & ANSWER):
            old = offset << 20 | file << 2 | (ANSWER if answer else 0)
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

    def put(self, form: dict[str, Any], value: Any, key: str | None = None) -> None:
        """Append one recording and hand it to the operating system at once (a kill loses nothing).

        `key` spares the work where the caller has it already.
        """
        if self._write_folder is None:
            raise RecordingError(f"the recordings of {self.stage!r} are open for reading only")
        if self._handle is None:
            self._open()
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

    def _open(self) -> None:
        self._write_folder.mkdir(parents=True, exist_ok=True)
        for number in range(10_000):
            path = self._write_folder / f"w{number}.jsonl"
            handle = lock(path)
            if handle is None:
                continue  # another process writes there
            if path not in self._paths:
                self._paths.append(path)
            self._handle, self._own = handle, self._paths.index(path)
            self._end = cut_torn_line(handle)
            self._written.clear()
            return
        raise RecordingError(f"no free recording file in {self._write_folder}")

    def close(self) -> None:
        """Flush to disk and release the file."""
        if self._handle is not None:
            os.fsync(self._handle.fileno())
            self._handle.close()
            self._handle = None

    def explain_miss(self, form: dict[str, Any]) -> str:
        """Say how the nearest recording of the same task differs from `form`, field by field."""
        best: list[tuple[str, Any, Any]] | None = None
        rank = (0, 0)
        for path in self.files():
            for _, other, _ in read_file(path):
                if other.get("task") != form.get("task"):
                    continue
                found = list(differences(form, other))
                # Of equally many fields, those whose texts part later are nearer.
                texts = [(a, b) for _, a, b in found if isinstance(a, str) and isinstance(b, str)]
                this = len(found), -sum(common_length(a, b) for a, b in texts)
                if best is None or this < rank:
                    best, rank = found, this
        if best is None:
            return f"nothing is recorded for task {form.get('task')!r} in stage {self.stage!r}"
        told = ", ".join(_told(*found) for found in sorted(best, key=lambda found: found[0]))
        return "the nearest recording differs in: " + (told or "nothing")


def _state(path: Path) -> tuple[Path, int, int]:
    found = path.stat()
    return path, found.st_size, found.st_mtime_ns


def is_answer(value: Any) -> bool:
    """Whether a recorded value is an answer, not a refusal or an unusable reply."""
    return not isinstance(value, dict) or value.get("outcome", "accepted") in ("accepted", "violations")


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
