"""Recorded answers of real models by key: what a run goes on from, and what replays it without a model.

A recorded reply is a line of JSON {v, key, form, value}. The key is the SHA-256 of `form`, our own
normal form of all that changes the answer and of nothing else. It stands beside the value. Vectors of texts
and pictures stand by key in `.npz` files.
"""

import gzip
import hashlib
import json
import os
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Literal

import numpy as np
from filelock import FileLock

from memecmd_utils import files
from memecmd_utils.files import MemecmdError
from memecmd_utils.progress import bar

Outcome = Literal[
    "accepted", "violations", "unusable", "refusal", "length", "filtered", "rejected", "failed", "unrecorded"
]
"""`rejected`: the endpoint takes other requests but not this one. `failed`: it never got through.
`unrecorded`: nothing is on record and nobody is asked (mode `recorded` of a changed run)."""
Form = dict[str, Any]
KEY_VERSION = 2
REPLIES = ".jsonl", ".jsonl.gz"


class RecordingError(MemecmdError, ValueError):
    """A recording file is damaged other than by a torn last line, of another version or not writable."""


class RecordingMiss(MemecmdError, LookupError):
    """The answer is not there, neither among authored texts nor, in mode `recorded`, on record."""


# --- replies: one dict a stage ----------------------------------------------------------------------


def canonical(form: Any) -> str:
    """One text for one meaning: sorted keys, no blanks, Chinese as it is."""
    return json.dumps(form, sort_keys=True, ensure_ascii=False, separators=(",", ":"))


def key_of(form: Form) -> str:
    """Return the SHA-256 of a normal form."""
    return hashlib.sha256(canonical(form).encode()).hexdigest()


def is_answer(value: Any) -> bool:
    """Whether a recorded value is an answer, not a refusal or an unusable reply."""
    return not isinstance(value, dict) or value.get("outcome", "accepted") in ("accepted", "violations")


class Recordings:
    """All recorded values of a stage by key, from several folders; new ones go to one file of `write_dir`.

    Every `<folder>/<stage>/*.jsonl` and `*.jsonl.gz` is read. Of two values of one key the later one counts,
    unless only the earlier one is an answer.
    """

    def __init__(self, stage: str, read_dirs: Sequence[Path], write_dir: Path | None = None) -> None:
        self.stage = stage
        self.files = [path for folder in read_dirs for path in files_in(folder / stage)]
        self.used_keys: set[str] = set()
        """Keys of the values that were looked up or recorded."""
        self.fresh_keys: set[str] = set()
        """Keys of those that were recorded here: mode `live` asks for no other twice."""
        self._own = write_dir / stage / "w0.jsonl" if write_dir else None
        self._own_bytes = -1
        self._values: dict[str, Any] = {}
        for path in self.files:
            self._read(path)

    def _read(self, path: Path) -> None:
        for key, _, value in read_file(path):
            if key not in self._values or is_answer(value) or not is_answer(self._values[key]):
                self._values[key] = value

    def get(self, key: str) -> Any | None:
        """Value of a key, which then counts as used; None where there is none."""
        if key in self._values:
            self.used_keys.add(key)
        return self._values.get(key)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Hold the file that is appended to. Another run that wants it waits, then has what was recorded.

        Whoever pays for answers holds it from before the first request: then it is known to be writable.
        """
        if self._own is None:
            yield
            return
        # All that write to the file in this process share the lock.
        name = self._own.with_name(f".{self._own.name}.lock")
        lock = FileLock(name, is_singleton=True, thread_local=False)
        with files.held(lock, f"another run records into {name.parent}: waiting for its end"):
            self._own.touch()
            if self._own.stat().st_size != self._own_bytes:  # others have appended, or were killed in a line
                self._read(self._own)
                self._own_bytes = self._own.read_bytes().rfind(b"\n") + 1
                os.truncate(self._own, self._own_bytes)
            yield

    def put(self, form: Form, value: Form) -> None:
        """Append one recording and hand it to the operating system at once: a kill loses nothing."""
        if self._own is None:
            raise RecordingError(f"the recordings of {self.stage!r} are open for reading only")
        key = key_of(form)
        line = files.dumps({"v": KEY_VERSION, "key": key, "form": form, "value": value}) + "\n"
        with self.writing(), self._own.open("ab") as handle:
            handle.write(line.encode())
        self._own_bytes += len(line.encode())
        self._values[key] = value
        self.fresh_keys.add(key)
        self.used_keys.add(key)


def reading_form(sha256: str, ocr_id: str) -> Form:
    """Form of the text that an OCR engine read from the picture of these bytes."""
    return {"key_version": KEY_VERSION, "task": "ocr", "subject": f"{sha256}|{ocr_id}"}


def files_in(folder: Path, endings: tuple[str, ...] = REPLIES) -> list[Path]:
    """Recording files of one folder, in a fixed order; hidden ones (locks, half-written files) are none."""
    return sorted(p for p in folder.glob("[!.]*") if p.name.endswith(endings))


def read_file(path: Path) -> Iterator[tuple[str, Form, Any]]:
    """Yield (key, form, value) of one file; a line that is no recording of ours raises `RecordingError`.

    A last line without its line end is passed over: it was torn by a kill.
    """
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as handle:
        for number, raw in enumerate(handle, start=1):
            if not raw.endswith(b"\n"):
                return
            try:
                line = json.loads(raw)
                version, key, form, value = (line[field] for field in ("v", "key", "form", "value"))
                if version != KEY_VERSION:
                    raise ValueError(f"it has key version {version}, this package reads {KEY_VERSION}")
            except (ValueError, TypeError, KeyError) as error:
                raise RecordingError(
                    f"{path} line {number} is damaged ({error}); restore the file, or delete this line "
                    "to have that one answer asked for again"
                ) from error
            yield key, form, value


# --- vectors ----------------------------------------------------------------------------------------

BATCH = 128
"""Vectors that are computed at once and make one file: what a kill can cost. Fewer need no bar."""


class RecordedVectors:
    """Unit vectors of one encoder, kept as float16 in `<folder>/embedding/<name>/*.npz`.

    `name` names the encoder and its weights. A vector counts by its key; once recorded it is the same
    whichever items are asked for beside it.
    """

    def __init__(
        self, name: str, read_dirs: Sequence[Path], write_dir: Path | None = None, compute: bool = True
    ) -> None:
        """`compute`: make what is not recorded, and keep it in `write_dir`."""
        self.name, self.compute = name, compute
        self._write = vector_folder(write_dir, name) if write_dir else None
        self._vectors: dict[str, np.ndarray] = {}
        for folder in read_dirs:
            for path in files_in(vector_folder(folder, name), (".npz",)):
                self._vectors.update(read_vectors(path))

    def rows(
        self,
        keys: Sequence[str],
        items: Sequence[Any],
        encode: Callable[[list[Any]], np.ndarray],
        size: Callable[[Any], int] | None = None,
        kind: str = "texts",
        batch: int | None = None,
    ) -> np.ndarray:
        """Return float32 unit vectors, shape [n, dim], in the order of `keys`; `encode` makes missing ones.

        It gets `batch` items at a time (`BATCH` by default), sorted by `size`, largest first, so that those
        of one batch are alike. Unless it may `compute`, what is missing raises `RecordingMiss`.
        """
        missing = list({k: i for k, i in zip(keys, items, strict=True) if k not in self._vectors}.items())
        if missing and not self.compute:
            raise RecordingMiss(
                f"{len(missing)} of {len(keys)} {kind} have no recorded vector of {self.name} "
                f"(the first: {str(missing[0][1])[:60]!r}). SET='mode=auto' computes and records them"
            )
        if size is not None:
            missing.sort(key=lambda pair: size(pair[1]), reverse=True)
        few, batch = len(missing) <= BATCH, batch or BATCH
        with nullcontext() if few else bar(len(missing), f"{kind} by {self.name}", "vector") as shown:
            for start in range(0, len(missing), batch):
                part = dict(missing[start : start + batch])
                self._add(list(part), encode(list(part.values())), kind)
                if shown is not None:
                    shown.update(len(part))
        if not keys:
            return np.empty((0, len(next(iter(self._vectors.values()), ()))), dtype=np.float32)
        return normalise(np.stack([self._vectors[key] for key in keys]).astype(np.float32))

    def _add(self, keys: list[str], vectors: np.ndarray, kind: str) -> None:
        if len(vectors) != len(keys) or not np.isfinite(vectors).all():
            raise ValueError(f"{self.name} gave {len(vectors)} usable vectors for {len(keys)} {kind}")
        # Rounded to float16 before use, so that a run that computes equals a run that replays.
        fresh = dict(zip(keys, normalise(vectors).astype(np.float16), strict=True))
        if self._write is not None:
            name = hashlib.sha256("".join(fresh).encode()).hexdigest()[:16]
            write_vectors(self._write / f"{name}.npz", fresh)
        self._vectors.update(fresh)


def normalise(vectors: np.ndarray) -> np.ndarray:
    """Scale rows to unit length; a zero row stays zero."""
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.where(norms == 0, 1, norms)


def vector_folder(recordings: Path, name: str) -> Path:
    """Folder of an encoder's vectors within a folder of recordings."""
    return recordings / "embedding" / name.replace("/", "__")


def recorded_names(read_dirs: Sequence[Path], beginning: str) -> list[str]:
    """Names of encoders, sorted, that begin so and have vectors in a folder of recordings."""
    prefix = beginning.replace("/", "__")
    folders = [path for read_dir in read_dirs for path in (read_dir / "embedding").glob("*")]
    names = {path.name for path in folders if path.name.startswith(prefix) and files_in(path, (".npz",))}
    return sorted(beginning + name[len(prefix) :] for name in names)


def read_vectors(path: Path) -> dict[str, np.ndarray]:
    """Read one `.npz` of keys and float16 vectors; a damaged one raises `RecordingError`."""
    try:
        with np.load(path, allow_pickle=False) as data:
            return dict(zip(data["keys"].tolist(), data["vectors"], strict=True))
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise RecordingError(f"{path} is damaged ({error}); delete it to have it computed again") from error


def write_vectors(path: Path, vectors: dict[str, np.ndarray]) -> None:
    """Write keys and float16 vectors, sorted by key, atomically."""
    keys = sorted(vectors)
    with files.atomic_path(path) as part, part.open("wb") as handle:
        np.savez(handle, keys=np.array(keys), vectors=np.stack([vectors[k] for k in keys]))
