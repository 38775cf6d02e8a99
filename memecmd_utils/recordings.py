"""Recorded outputs of real models: the checkpoint of a run, and what makes it replay without a model.

A recording is a JSON line {v, key, form, value}. The key is the SHA-256 of `form`, our own normal form
of everything that changes the answer; `form` stands beside the value so that `explain_miss` can name
the field that differs. Long message texts are written once per file and referred to by their hash.
"""

import fcntl
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from memecmd_utils import storage

KEY_VERSION = 1
INTERN_FROM = 60  # characters; shorter texts are not worth a reference


class RecordingError(ValueError):
    """A recording file is damaged other than by a torn last line."""


class RecordingMiss(LookupError):
    """`mode: recorded` and the answer is not there."""


def canonical(form: Any) -> str:
    """One text for one meaning: sorted keys, no blanks, Chinese as it is."""
    return json.dumps(form, sort_keys=True, ensure_ascii=False, separators=(",", ":"))


def key_of(form: dict[str, Any]) -> str:
    """Return the SHA-256 of a normal form."""
    return hashlib.sha256(canonical(form).encode()).hexdigest()


def _pack(value: Any, texts: dict[str, str]) -> Any:
    """Replace long strings by references, collecting them in `texts`."""
    if isinstance(value, str) and len(value) >= INTERN_FROM:
        digest = hashlib.sha256(value.encode()).hexdigest()[:16]
        texts[digest] = value
        return {"$text": digest}
    if isinstance(value, list):
        return [_pack(item, texts) for item in value]
    if isinstance(value, dict):
        return {key: _pack(item, texts) for key, item in value.items()}
    return value


def _unpack(value: Any, texts: dict[str, str]) -> Any:
    if isinstance(value, dict):
        if set(value) == {"$text"}:
            return texts[value["$text"]]
        return {key: _unpack(item, texts) for key, item in value.items()}
    if isinstance(value, list):
        return [_unpack(item, texts) for item in value]
    return value


def read_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (line number, line) of one file.

    A last line without its line end was cut by a crash: it is passed over, and cut off when a writer
    opens the file. Any other line that is not a recording raises `RecordingError`.
    """
    text = path.read_bytes()
    lines = text.split(b"\n")
    for number, raw in enumerate(lines[:-1], start=1):
        try:
            line = json.loads(raw)
            if not isinstance(line, dict) or line.get("v") != KEY_VERSION:
                raise ValueError("not a recording of this version")
            if not ({"text", "is"} <= set(line) or {"key", "form", "value"} <= set(line)):
                raise ValueError("a field is missing")
        except (ValueError, UnicodeDecodeError) as error:
            raise RecordingError(
                f"{path} line {number} is damaged ({error}); restore the file, or delete this line "
                "to have that one answer asked for again"
            ) from error
        yield number, line


def read_file(path: Path) -> Iterator[tuple[str, dict[str, Any], Any]]:
    """Yield (key, form, value) of one file, references resolved."""
    texts: dict[str, str] = {}
    for number, line in read_lines(path):
        if "text" in line:
            texts[line["text"]] = line["is"]
            continue
        try:
            yield line["key"], _unpack(line["form"], texts), line["value"]
        except KeyError as error:
            raise RecordingError(
                f"{path} line {number} refers to a text that is not there: {error}"
            ) from error


class Recordings:
    """All recordings of a stage, from several folders; new ones go to one file of our own.

    Reading merges every `<folder>/<stage>/*.jsonl`; the first accepted answer of a key wins.
    Writing appends to the first `w<N>.jsonl` of `write_dir` that no other process holds.
    """

    def __init__(self, stage: str, read_dirs: Sequence[Path], write_dir: Path | None = None) -> None:
        self.stage = stage
        self._folders = [folder / stage for folder in read_dirs]
        self._write_folder = write_dir / stage if write_dir else None
        self._values: dict[str, Any] = {}
        self._handle: Any = None
        self._written_texts: set[str] = set()
        for path in self.files():
            for _, line in read_lines(path):
                if "key" in line:
                    self._merge(line["key"], line["value"])

    def files(self) -> list[Path]:
        """All files read, in a fixed order."""
        return [path for folder in self._folders for path in sorted(folder.glob("*.jsonl"))]

    def _merge(self, key: str, value: Any) -> None:
        # An answer beats a refusal or an unusable reply that an earlier run had to write down.
        old = self._values.get(key)
        if old is None or (is_answer(value) and not is_answer(old)):
            self._values[key] = value

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: str) -> Any | None:
        """Value of a key, or None."""
        return self._values.get(key)

    def put(self, form: dict[str, Any], value: Any) -> None:
        """Append one recording and hand it to the operating system at once (a kill loses nothing)."""
        if self._write_folder is None:
            raise RecordingError(f"the recordings of {self.stage!r} are open for reading only")
        if self._handle is None:
            self._open()
        texts: dict[str, str] = {}
        packed = _pack(form, texts)
        key = key_of(form)
        lines = [
            storage.dumps({"v": KEY_VERSION, "text": digest, "is": text})
            for digest, text in texts.items()
            if digest not in self._written_texts
        ]
        lines.append(storage.dumps({"v": KEY_VERSION, "key": key, "form": packed, "value": value}))
        self._handle.write(("\n".join(lines) + "\n").encode())
        self._handle.flush()
        self._written_texts |= set(texts)
        self._merge(key, value)

    def _open(self) -> None:
        self._write_folder.mkdir(parents=True, exist_ok=True)
        for number in range(10_000):
            path = self._write_folder / f"w{number}.jsonl"
            handle = path.open("ab+")
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                handle.close()  # another process writes there
                continue
            cut_torn_line(handle)
            self._written_texts = {line["text"] for _, line in read_lines(path) if "text" in line}
            self._handle = handle
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
        best: list[str] | None = None
        for path in self.files():
            for _, other, _ in read_file(path):
                if other.get("task") != form.get("task"):
                    continue
                different = sorted(differing_fields(form, other))
                if best is None or len(different) < len(best):
                    best = different
        if best is None:
            return f"nothing is recorded for task {form.get('task')!r} in stage {self.stage!r}"
        return "the nearest recording differs in: " + (", ".join(best) or "nothing (key version)")


def is_answer(value: Any) -> bool:
    """Whether a recorded value is an answer, not a refusal or an unusable reply."""
    return not isinstance(value, dict) or value.get("outcome", "accepted") in ("accepted", "violations")


def cut_torn_line(handle: Any) -> None:
    """Cut what follows the last line end of an open binary file."""
    handle.seek(0)
    content = handle.read()
    end = content.rfind(b"\n") + 1
    if end < len(content):
        handle.truncate(end)
    handle.seek(0, os.SEEK_END)


def differing_fields(a: Any, b: Any, where: str = "") -> Iterator[str]:
    """Yield the paths of the fields in which two normal forms differ."""
    if isinstance(a, dict) and isinstance(b, dict):
        for key in a.keys() | b.keys():
            yield from differing_fields(a.get(key), b.get(key), f"{where}.{key}" if where else key)
    elif isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        for index, (x, y) in enumerate(zip(a, b, strict=True)):
            yield from differing_fields(x, y, f"{where}[{index}]")
    elif a != b:
        yield where


def promote(files: Iterable[Path], target: Path, wanted: set[str]) -> int:
    """Write the `wanted` answers of `files` to `target`, sorted by key; return how many.

    This is how a maintainer turns the recordings of a run into tracked ones.
    """
    found: dict[str, tuple[dict[str, Any], Any]] = {}
    for path in files:
        for key, form, value in read_file(path):
            if key in wanted and (key not in found or (is_answer(value) and not is_answer(found[key][1]))):
                found[key] = (form, value)
    lines: list[str] = []
    written: set[str] = set()
    for key in sorted(found):
        form, value = found[key]
        texts: dict[str, str] = {}
        packed = _pack(form, texts)
        for digest in sorted(set(texts) - written):
            lines.append(storage.dumps({"v": KEY_VERSION, "text": digest, "is": texts[digest]}))
        written |= set(texts)
        lines.append(storage.dumps({"v": KEY_VERSION, "key": key, "form": packed, "value": value}))
    storage.write_text(target, "".join(line + "\n" for line in lines))
    return len(found)


class TextCache:
    """Recorded texts by a plain key (OCR): what stage 01 asks before it reads an image.

    In `recorded` mode new texts stay in memory: reading an image costs nothing but time.
    """

    def __init__(self, store: Recordings, task: str, write: bool) -> None:
        self._store, self._task, self._write = store, task, write
        self._fresh: dict[str, str] = {}
        self.used_keys: set[str] = set()

    def get(self, key: str) -> str | None:
        """Text of a key, or None."""
        if key in self._fresh:
            return self._fresh[key]
        hashed = key_of(self._form(key))
        value = self._store.get(hashed)
        if value is not None:
            self.used_keys.add(hashed)
        return None if value is None else value["text"]

    def put(self, key: str, text: str) -> None:
        """Record a text."""
        self._fresh[key] = text
        if self._write:
            form = self._form(key)
            self.used_keys.add(key_of(form))
            self._store.put(form, {"text": text})

    def _form(self, key: str) -> dict[str, Any]:
        return {"key_version": KEY_VERSION, "task": self._task, "subject": key}
