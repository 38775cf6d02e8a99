"""Recorded answers of real models by key: the checkpoint of a run, and what makes it replay without a model.

A recording is a JSON line {v, key, form, value}. The key is the SHA-256 of `form`, our own normal form of
everything that changes the answer; `form` stands beside the value so that `explain_miss` can name the field
that differs. A stage of a profile has one file, to which all processes append, each line under a lock. Other
files beside it, as from other machines, are read, too.

Files and no database: workers on several machines append to one shared folder, where SQLite must not use its
fast journal, and a class reads a folder that it cannot write to.
"""

import fcntl
import hashlib
import json
import math
import os
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal

from memecmd_utils.core import paths, storage
from memecmd_utils.core.errors import MemecmdError

Outcome = Literal[
    "accepted", "violations", "unusable", "refusal", "length", "filtered", "rejected", "failed", "unrecorded"
]
"""`rejected`: the endpoint takes other requests but not this one. `failed`: it never got through.
`unrecorded`: nothing is on record and nobody is asked (mode `recorded` of a changed run)."""
KEY_VERSION = 2
KEY = re.compile("[0-9a-f]{64}")
OWN = "w0.jsonl"
"""The file of a stage's folder that is appended to."""
LOCK_WAIT_S = 30.0
"""How long another process may keep us from appending; it needs a thousandth of a second."""
EXCERPT = 40  # characters
SHOWN_DIGITS = 16  # of a key, in messages
MISSES = "misses.jsonl"
"""In `data/interim`: requests that were not recorded when they were asked for."""
KEPT_MISSES = 20
ANSWERED = True, 0.0
"""The rank of nearly all recorded values."""
Form = dict[str, Any]


class RecordingError(MemecmdError, ValueError):
    """A recording file is damaged other than by a torn last line, of another version or not writable."""


class RecordingMiss(MemecmdError, LookupError):
    """`mode: recorded` and the answer is not there."""


def canonical(form: Any) -> str:
    """One text for one meaning: sorted keys, no blanks, Chinese as it is."""
    return json.dumps(form, sort_keys=True, ensure_ascii=False, separators=(",", ":"))


def key_of(form: Form) -> str:
    """Return the SHA-256 of a normal form."""
    return hashlib.sha256(canonical(form).encode()).hexdigest()


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


class Recordings:
    """All recordings of a stage, from several folders; new ones go to one file of `write_dir`.

    Reading merges every `<folder>/<stage>/*.jsonl`; of several values of a key the one of highest `rank`
    counts, and of equals the first. Only an index is held: where the value of a key stands. `refresh` takes
    in what other processes append meanwhile, and `claim` keeps two of them from asking for the same.
    """

    def __init__(self, stage: str, read_dirs: Sequence[Path], write_dir: Path | None = None) -> None:
        self.stage = stage
        self._folders = [folder / stage for folder in read_dirs]
        self._own = write_dir / stage / OWN if write_dir else None
        self._claims: Any = None
        self._opened = time.time()
        self._places: dict[bytes, tuple[Path, int]] = {}
        """File and byte offset of the value of each key, which is packed: 32 bytes."""
        self._ranks: dict[bytes, tuple[bool, float]] = {}
        """Of the values that are not simply `ANSWERED`."""
        self._used: set[bytes] = set()
        self._read: dict[Path, tuple[int, int]] = {}
        """Lines and bytes of each file that have been read."""
        self._states = self._file_states()
        for path in self.files():
            self._take_in(path)

    def files(self) -> list[Path]:
        """All files read, in a fixed order."""
        return [path for folder in self._folders for path in files_in(folder)]

    def is_current(self) -> bool:
        """Whether the files are still those that were read when the store was opened."""
        return self._file_states() == self._states

    def _file_states(self) -> list[tuple[Path, int, int]]:
        states = [(path, path.stat()) for path in self.files()]
        return [(path, state.st_size, state.st_mtime_ns) for path, state in states]

    def refresh(self) -> None:
        """Take in what other processes have recorded since the file was read."""
        if self._own is not None and self._own.exists():
            self._take_in(self._own)

    def _take_in(self, path: Path) -> None:
        lines, size = self._read.get(path, (0, 0))
        if path.stat().st_size == size:
            return
        for number, offset, end, line in scan(path, lines, size):
            self._merge(bytes.fromhex(line["key"]), path, offset, line["value"])
            self._read[path] = number, end

    def _merge(self, key: bytes, path: Path, offset: int, value: Any) -> None:
        new = rank(value)
        if key in self._places and new <= self._ranks.get(key, ANSWERED):
            return
        self._places[key] = path, offset
        if new == ANSWERED:
            self._ranks.pop(key, None)
        else:
            self._ranks[key] = new

    def __len__(self) -> int:
        return len(self._places)

    def get(self, key: str) -> Any | None:
        """Value of a key, or None."""
        place = self._places.get(bytes.fromhex(key))
        if place is None:
            return None
        path, offset = place
        try:
            with path.open("rb") as handle:
                handle.seek(offset)
                line = json.loads(handle.readline())
            if line["key"] != key:
                raise ValueError("another recording stands there")
            return line["value"]
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise _changed_under_us(path, str(error)) from error

    def is_fresh(self, key: str) -> bool:
        """Whether the value of a key was asked for in mode `live` since the store was opened."""
        return self._ranks.get(bytes.fromhex(key), ANSWERED)[1] >= self._opened

    def mark_used(self, key: str) -> None:
        """Note that a run used a recording; `put` does so by itself, an unknown key is passed over."""
        packed = bytes.fromhex(key)
        if packed in self._places:
            self._used.add(packed)

    def used_keys(self) -> set[str]:
        """Keys of the recordings that were used, in hex."""
        return {key.hex() for key in self._used}

    def ready(self) -> None:
        """Open our file before anything is asked: what cannot be recorded must not be paid for."""
        if self._own is not None:
            with self._appending():
                pass

    def put(self, form: Form, value: Form, key: str | None = None, live: bool = False) -> None:
        """Append one recording and hand it to the operating system at once (a kill loses nothing).

        `key` spares the work where the caller has it already. `live`: it was asked for although there was a
        recording, and takes its place. Raises `RecordingError` where nothing can be written.
        """
        if self._own is None:
            raise RecordingError(f"the recordings of {self.stage!r} are open for reading only")
        key = key or key_of(form)
        packed = bytes.fromhex(key)
        if live:
            # Clocks may go backwards; what is known to be older stays so.
            known = self._ranks.get(packed, ANSWERED)[1]
            value = {**value, "live": round(max(time.time(), known + 0.001), 3)}
        data = (storage.dumps({"v": KEY_VERSION, "key": key, "form": form, "value": value}) + "\n").encode()
        with self._appending() as handle:
            _lock(handle)
            size = handle.seek(0, os.SEEK_END)
            if size > self._read.get(self._own, (0, 0))[1]:
                self._take_in(self._own)  # what others have appended
            lines, end = self._read.get(self._own, (0, 0))
            if size < end:
                raise _changed_under_us(self._own, "it has become shorter")
            if size > end:  # half a line, of a process that was killed or whose disk was full
                handle.truncate(end)
            rest = memoryview(data)
            while rest:
                rest = rest[handle.write(rest) :]
        self._read[self._own] = lines + 1, end + len(data)
        self._merge(packed, self._own, end, value)
        self._used.add(packed)

    @contextmanager
    def _appending(self) -> Iterator[Any]:
        """Our file, opened anew each time: one that was deleted meanwhile is made anew."""
        try:
            self._own.parent.mkdir(parents=True, exist_ok=True)
            with self._own.open("ab", buffering=0) as handle:
                yield handle
        except OSError as error:
            raise RecordingError(f"{self._own}: {error.strerror}: nothing can be recorded there") from error

    def claim(self, key: str) -> bool:
        """Whether this process may ask for `key`, because no other one does. It holds until `release`.

        The claim is a lock on one byte, so it ends with the process, however that ends.
        """
        if self._own is None:
            return True
        if self._claims is None:
            self.ready()
            self._claims = self._own.with_name(".claims").open("ab")
        try:
            fcntl.lockf(self._claims, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, _byte(key))
        except (BlockingIOError, PermissionError):
            return False
        return True

    def release(self, key: str) -> None:
        """Let other processes ask for `key`."""
        if self._claims is not None:
            fcntl.lockf(self._claims, fcntl.LOCK_UN, 1, _byte(key))

    def close(self) -> None:
        """Flush to disk and release all claims."""
        if self._own is not None and self._own in self._read:
            with suppress(FileNotFoundError), self._own.open("rb") as handle:
                os.fsync(handle.fileno())
        if self._claims is not None:
            self._claims.close()
            self._claims = None

    def explain_miss(self, form: Form) -> str:
        """Say how the nearest recording of the same task differs from `form`, field by field."""
        neighbour = nearest(form, self.files())
        if neighbour is None:
            return f"nothing is recorded for task {form.get('task')!r} in stage {self.stage!r}"
        key, fields = neighbour
        parts = ", ".join(_difference_in_words(*field) for field in sorted(fields, key=itemgetter(0)))
        return f"the nearest recording, {key[:SHOWN_DIGITS]}, differs in: {parts or 'nothing'}"


class TextCache:
    """Recorded texts by a plain key (OCR): what stage 01 asks before it reads an image."""

    def __init__(self, store: Recordings, task: str) -> None:
        self._store, self._task = store, task

    @property
    def used_keys(self) -> set[str]:
        """Keys of the recorded texts that were asked for or written."""
        return self._store.used_keys()

    def get(self, key: str) -> str | None:
        """Text of a key, or None."""
        hashed = key_of(self._form(key))
        self._store.mark_used(hashed)
        value = self._store.get(hashed)
        return None if value is None else value["text"]

    def put(self, key: str, text: str) -> None:
        """Record a text."""
        self._store.put(self._form(key), {"text": text})

    def _form(self, key: str) -> Form:
        return {"key_version": KEY_VERSION, "task": self._task, "subject": key}


def _changed_under_us(path: Path, why: str) -> RecordingError:
    return RecordingError(f"{path} was changed or moved while it was in use ({why}); run again")


def _byte(key: str) -> int:
    """The byte whose lock is the claim on a key: offsets are signed numbers of 64 bits."""
    return int(key[:15], 16)


def _lock(handle: Any) -> None:
    """Wait until no other process appends; released when the file is closed, also by a kill."""
    until = time.monotonic() + LOCK_WAIT_S
    while True:
        try:
            return fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until:
                raise
            time.sleep(0.001)


def files_in(folder: Path, pattern: str = "*.jsonl") -> list[Path]:
    """Recording files of one folder, in a fixed order; a killed writer's `.part` file is none."""
    return [path for path in sorted(folder.glob(pattern)) if not path.name.startswith(".")]


def raw_lines(path: Path, lines: int = 0, end: int = 0) -> Iterator[tuple[int, int, bytes]]:
    """Yield (line number, byte offset, line) after so many lines and bytes.

    A last line without its line end is passed over: a crash tore it, or it is being written.
    """
    with path.open("rb") as handle:
        handle.seek(end)
        for number, raw in enumerate(handle, start=lines + 1):
            if raw.endswith(b"\n"):
                yield number, end, raw
            end += len(raw)


def parse_line(raw: bytes) -> dict[str, Any]:
    """Parse a line; raise `ValueError` if it is no recording, or one of another key version."""
    line = json.loads(raw)
    if not isinstance(line, dict) or type(line.get("v")) is not int:
        raise ValueError("not a recording")
    if line["v"] != KEY_VERSION:
        hint = ": update this package" if line["v"] > KEY_VERSION else ""
        raise ValueError(f"it has key version {line['v']}, ours is {KEY_VERSION}{hint}")
    has_key = KEY.fullmatch(str(line.get("key"))) is not None
    if not has_key or not isinstance(line.get("form"), dict | list) or "value" not in line:
        raise ValueError("a field is missing or of a wrong type")
    return line


def scan(path: Path, lines: int = 0, end: int = 0) -> Iterator[tuple[int, int, int, dict[str, Any]]]:
    """Yield (line number, offsets of its begin and end, line) of a file after so many lines and bytes.

    A line that is not a recording, or of another key version, raises `RecordingError`.
    """
    for number, offset, raw in raw_lines(path, lines, end):
        try:
            line = parse_line(raw)
        except ValueError as error:
            raise RecordingError(
                f"{path} line {number} is damaged ({error}); restore the file, or delete this line "
                "to have that one answer asked for again"
            ) from error
        yield number, offset, offset + len(raw), line


class Forms:
    """Whole forms of a file's lines, which are handed over in their order.

    A form stands in its line as it is. In tracked files, where each differs from the one above in a sentence,
    it is [characters kept from the beginning of the one above, text between, characters kept from its end].
    """

    def __init__(self) -> None:
        self._above = ""

    def take(self, line: dict[str, Any]) -> Form:
        """The form of a line; `ValueError` or `TypeError` where it does not fit the one above."""
        if isinstance(line["form"], dict):
            return line["form"]
        above, (start, text, end) = self._above, line["form"]
        self._above = above[:start] + text + above[len(above) - end :]
        return json.loads(self._above)


def read_file(path: Path) -> Iterator[tuple[str, Form, Any]]:
    """Yield (key, form, value) of one file; errors as in `scan`."""
    forms = Forms()
    for number, _, _, line in scan(path):
        try:
            form = forms.take(line)
        except (ValueError, TypeError) as error:
            raise RecordingError(f"{path} line {number}: {error}") from error
        yield line["key"], form, line["value"]


def write_file(target: Path, records: Iterable[tuple[Form, Any]]) -> int:
    """Write (form, value) pairs as a tracked file, atomically, sorted by form; return how many they are."""
    above, texts = "", sorted((canonical(form), value) for form, value in records)
    with storage.atomic_path(target) as part:
        with part.open("wb") as handle:
            for text, value in texts:
                start = common_length(above, text)
                end = common_length(above[start:][::-1], text[start:][::-1])
                key = hashlib.sha256(text.encode()).hexdigest()
                form = [start, text[start : len(text) - end], end]
                line = {"v": KEY_VERSION, "key": key, "form": form, "value": value}
                handle.write((storage.dumps(line) + "\n").encode())
                above = text
        if [canonical(form) for _, form, _ in read_file(part)] != [text for text, _ in texts]:
            raise RecordingError(f"{target} could not be read back as it was written; nothing was changed")
    return len(texts)


def nearest(form: Form, files: Iterable[Path]) -> tuple[str, list[tuple[str, Any, Any]]] | None:
    """Key of the recording of the same task that differs least from `form`, and the `differences`."""
    best: tuple[str, list[tuple[str, Any, Any]]] | None = None
    least = (0, 0)
    for path in files:
        for key, other, _ in read_file(path):
            if other.get("task") != form.get("task"):
                continue
            fields = list(differences(form, other))
            # Of equally many fields, those whose texts part later are nearer.
            texts = [(a, b) for _, a, b in fields if isinstance(a, str) and isinstance(b, str)]
            distance = len(fields), -sum(common_length(a, b) for a, b in texts)
            if best is None or distance < least:
                best, least = (key, fields), distance
    return best


def note_miss(form: Form, key: str) -> None:
    """Keep the form of a request that is not recorded, for `recordings explain`; the last few."""
    line = canonical({"form": form, "key": key})
    earlier = [text for other, text in _missed() if other != key][1 - KEPT_MISSES :]
    # Where nothing can be written, the message of the miss says all the same where the forms part.
    with suppress(OSError):
        storage.write_text(paths.interim / MISSES, "\n".join([*earlier, line]) + "\n")


def missed_forms() -> dict[str, Form]:
    """Forms of the last requests that were not recorded, by key."""
    return {key: json.loads(line)["form"] for key, line in _missed()}


def _missed() -> list[tuple[str, str]]:
    path = paths.interim / MISSES
    lines = path.read_text(encoding="utf-8").split("\n") if path.is_file() else []
    return [(json.loads(line)["key"], line) for line in lines if line]


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


def _difference_in_words(where: str, asked: Any, recorded: Any) -> str:
    if where.endswith(".text") and isinstance(asked, str) and isinstance(recorded, str):
        return "{} (asked {!r}, recorded {!r})".format(where, *excerpts(asked, recorded))
    return where
