"""Recording files: their lines, the keys of recordings, reading and writing, and the lock of a writer.

A recording is a JSON line {v, key, form, value}. The key is the SHA-256 of `form`, our own normal form
of everything that changes the answer; `form` stands beside the value so that `explain_miss` can name
the field that differs. Long message texts are written once and referred to by their hash; a reference
always follows its text in the same file, so that files can be read line by line.
"""

import fcntl
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from memecmd_utils import storage
from memecmd_utils.errors import MemecmdError

KEY_VERSION = 2
INTERN_FROM = 60  # characters; shorter texts are not worth a reference
KEY = re.compile("[0-9a-f]{64}")
CHUNK = 1 << 16  # bytes


class RecordingError(MemecmdError, ValueError):
    """A recording file is damaged other than by a torn last line, of another version, or not free."""


class RecordingMiss(MemecmdError, LookupError):
    """`mode: recorded` and the answer is not there."""


def canonical(form: Any) -> str:
    """One text for one meaning: sorted keys, no blanks, Chinese as it is."""
    return json.dumps(form, sort_keys=True, ensure_ascii=False, separators=(",", ":"))


def key_of(form: dict[str, Any]) -> str:
    """Return the SHA-256 of a normal form."""
    return hashlib.sha256(canonical(form).encode()).hexdigest()


def digest_of(text: str) -> str:
    """Return the name under which a long text is referred to."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def pack(value: Any, texts: dict[str, str]) -> Any:
    """Replace long strings by references, collecting them in `texts`."""
    if isinstance(value, str) and len(value) >= INTERN_FROM:
        digest = digest_of(value)
        texts[digest] = value
        return {"$text": digest}
    if isinstance(value, list):
        return [pack(item, texts) for item in value]
    if isinstance(value, dict):
        return {key: pack(item, texts) for key, item in value.items()}
    return value


def unpack(value: Any, text_of: Callable[[str], str]) -> Any:
    """Replace references by their texts; raise what `text_of` raises for one that is not there."""
    if isinstance(value, dict):
        if set(value) == {"$text"}:
            return text_of(value["$text"])
        return {key: unpack(item, text_of) for key, item in value.items()}
    if isinstance(value, list):
        return [unpack(item, text_of) for item in value]
    return value


def text_line(digest: str, text: str) -> bytes:
    """Return the line of a long text."""
    return (storage.dumps({"v": KEY_VERSION, "text": digest, "is": text}) + "\n").encode()


def lines_of(form: dict[str, Any], value: Any, key: str | None = None) -> tuple[str, dict[str, str], bytes]:
    """Return the key, the long texts by digest, and the line of a recording."""
    texts: dict[str, str] = {}
    key = key or key_of(form)
    line = {"v": KEY_VERSION, "key": key, "form": pack(form, texts), "value": value}
    return key, texts, (storage.dumps(line) + "\n").encode()


def files_in(folder: Path, pattern: str = "*.jsonl") -> list[Path]:
    """Recording files of one stage folder, in a fixed order; a killed writer's `.part` file is none."""
    return [path for path in sorted(folder.glob(pattern)) if not path.name.startswith(".")]


def raw_lines(path: Path, after: tuple[int, int] = (0, 0)) -> Iterator[tuple[int, int, bytes]]:
    """Yield (line number, byte offset, line) after so many lines and bytes.

    A last line without its line end is passed over.
    """
    lines, offset = after
    with path.open("rb") as handle:
        handle.seek(offset)
        for number, raw in enumerate(handle, start=lines + 1):
            if raw.endswith(b"\n"):  # else a crash tore it; a writer that opens the file cuts it off
                yield number, offset, raw
            offset += len(raw)


def parse_line(raw: bytes) -> dict[str, Any]:
    """Parse a line of any key version; raise `ValueError` if it is neither text nor recording."""
    line = json.loads(raw)
    if not isinstance(line, dict) or type(line.get("v")) is not int:
        raise ValueError("not a recording")
    if line["v"] > KEY_VERSION:
        return line  # its fields may be other ones
    if "text" in line:
        whole = isinstance(line["text"], str) and isinstance(line.get("is"), str)
    else:
        key = line.get("key")
        whole = isinstance(key, str) and KEY.fullmatch(key) is not None
        whole = whole and isinstance(line.get("form"), dict) and "value" in line
    if not whole:
        raise ValueError("a field is missing or of a wrong type")
    return line


def version_problem(version: int, path: Path) -> str:
    """Say what to do about a line of another key version."""
    if version > KEY_VERSION:
        return f"has key version {version}, newer than ours ({KEY_VERSION}): update this package"
    folder = path.parent.parent.name
    profile = "example" if folder == "recordings" else folder  # the tracked ones belong to every profile
    return (
        f"has key version {version}, ours is {KEY_VERSION}: run `make recordings-migrate PROFILE={profile}`"
    )


def scan(
    path: Path, oldest: int | None = None, after: tuple[int, int] = (0, 0)
) -> Iterator[tuple[int, int, dict[str, Any]]]:
    """Yield (line number, byte offset, line) of one file after so many lines and bytes, one line at a time.

    A line that is not a recording, or of a key version before `oldest` (None: ours) or after ours,
    raises `RecordingError`.
    """
    first = KEY_VERSION if oldest is None else oldest
    for number, offset, raw in raw_lines(path, after):
        try:
            line = parse_line(raw)
        except ValueError as error:
            raise RecordingError(
                f"{path} line {number} is damaged ({error}); restore the file, or delete this line "
                "to have that one answer asked for again"
            ) from error
        if not first <= line["v"] <= KEY_VERSION:
            raise RecordingError(f"{path} line {number} {version_problem(line['v'], path)}")
        yield number, offset, line


def read_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (line number, line) of one file; errors as in `scan`."""
    for number, _, line in scan(path):
        yield number, line


def line_at(path: Path, offset: int) -> dict[str, Any]:
    """Read the line that begins at a byte offset."""
    with path.open("rb") as handle:
        handle.seek(offset)
        return json.loads(handle.readline())


class Texts:
    """Long texts of one file: where each stands is kept, the text itself is read when it is asked for."""

    def __init__(self, path: Path) -> None:
        self.offsets: dict[str, int] = {}
        self._read = lru_cache(maxsize=256)(lambda offset: line_at(path, offset)["is"])

    def __call__(self, digest: str) -> str:
        """Text of a digest; raise `KeyError` where no line before has it."""
        return self._read(self.offsets[digest])


def read_versions(
    path: Path, oldest: int | None = None
) -> Iterator[tuple[int, int, str, dict[str, Any], Any]]:
    """Yield (line number, key version, key, form, value), references resolved; errors as in `scan`."""
    texts = Texts(path)
    for number, offset, line in scan(path, oldest):
        if "text" in line:
            texts.offsets[line["text"]] = offset
            continue
        try:
            form = unpack(line["form"], texts)
        except KeyError as error:
            raise RecordingError(
                f"{path} line {number} refers to a text that is not there: {error}"
            ) from error
        yield number, line["v"], line["key"], form, line["value"]


def read_file(path: Path) -> Iterator[tuple[str, dict[str, Any], Any]]:
    """Yield (key, form, value) of one file, references resolved; errors as in `scan`."""
    for _, _, key, form, value in read_versions(path):
        yield key, form, value


def lock(path: Path) -> Any:
    """Open a file to append to it and hold it until it is closed; None while another process does."""
    while True:
        handle = path.open("ab+", buffering=0)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            handle.close()
            return None
        # Between the two calls a compaction may have put another file there, or none.
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(handle.fileno()), path.stat()):
                return handle
        handle.close()


def cut_torn_line(handle: Any) -> int:
    """Cut what follows the last line end of an open binary file; return the bytes that are left."""
    end = position = handle.seek(0, os.SEEK_END)
    whole = 0
    while position and not whole:
        start = max(0, position - CHUNK)
        handle.seek(start)
        found = handle.read(position - start).rfind(b"\n")
        whole = start + found + 1 if found >= 0 else 0
        position = start
    if whole < end:
        handle.truncate(whole)
    return handle.seek(0, os.SEEK_END)


def write_file(target: Path, records: Iterable[tuple[dict[str, Any], Any]]) -> int:
    """Write (form, value) pairs atomically, every long text once; return how many they are."""
    written: set[str] = set()
    count = 0
    with storage.atomic_path(target) as part:
        with part.open("wb") as handle:
            for form, value in records:
                _, texts, line = lines_of(form, value)
                handle.writelines(text_line(d, texts[d]) for d in sorted(set(texts) - written))
                handle.write(line)
                written |= set(texts)
                count += 1
        if sum("key" in line for _, _, line in scan(part)) != count:
            raise RecordingError(f"{target} could not be read back as it was written; nothing was changed")
    return count
