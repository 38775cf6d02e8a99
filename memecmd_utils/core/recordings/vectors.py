"""Recorded vectors: what an encoder computed once is read from disk ever after, also by other runs."""

import contextlib
import fcntl
import hashlib
import json
import os
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from memecmd_utils.core import storage
from memecmd_utils.core.machine import STATUS_VARIABLE
from memecmd_utils.core.recordings.store import RecordingError, RecordingMiss, files_in

BATCH = 128
"""Vectors per recorded shard: what a kill can cost at most. Fewer are computed without a bar."""
ROWS_AT_ONCE = 1024
Mode = Literal["recorded", "auto", "live"]


class RecordedVectors:
    """Unit vectors of one encoder, kept as float16 shards `<folder>/embedding/<name>/*.npz`.

    `name` names the encoder and its weights. A vector counts by its key; once recorded it is the same
    whichever items are asked for beside it.
    """

    def __init__(
        self,
        name: str,
        read_dirs: Sequence[Path],
        write_dir: Path | None = None,
        mode: Mode = "auto",
        paid: bool = False,
        used_in: Path | None = None,
    ) -> None:
        """`paid`: vectors cost money, so of several processes one at a time makes them.

        `used_in`: folder of a run, in which the keys of all vectors that are asked for are written down.
        """
        self.name, self.mode, self._paid = name, mode, paid
        self._write = shard_folder(write_dir, name) if write_dir else None
        self._vectors: dict[str, np.ndarray] = {}
        self.used_keys: set[str] = set()
        self._note = used_in / "usage" / f"embedding:{name.replace('/', '__')}.keys.json" if used_in else None
        self._noted = 0
        self._folders = [shard_folder(read_dir, name) for read_dir in read_dirs]
        self._read: set[Path] = set()
        self._take_in()

    def _take_in(self) -> None:
        """Read the shards that were not there before."""
        for folder in self._folders:
            for path in files_in(folder, "*.npz"):
                if path not in self._read:
                    self._vectors.update(read_shard(path))
                    self._read.add(path)

    def rows(
        self,
        keys: Sequence[str],
        items: Sequence[Any],
        encode: Callable[[list[Any]], np.ndarray],
        size: Callable[[Any], int] | None = None,
        kind: str = "texts",
    ) -> np.ndarray:
        """Return float32 unit vectors, shape [n, dim], in the order of `keys`; `encode` makes missing ones.

        `size` sorts what is missing, largest first, so that items of one batch are alike and a batch that
        is too large for the memory is met at once. In mode `recorded` what is missing raises
        `RecordingMiss`.
        """
        from tqdm.auto import tqdm  # looks for widgets, which takes a while

        self.used_keys |= set(keys)
        wanted = {k: item for k, item in zip(keys, items, strict=True) if k not in self._vectors}
        if wanted and self.mode == "recorded":
            first = str(next(iter(wanted.values())))
            raise RecordingMiss(
                f"{len(wanted)} of {len(keys)} {kind} have no recorded vector of {self.name} "
                f"(the first: {first[:60]!r}). SET='mode=auto' computes and records them"
            )
        missing = list(wanted.items())
        if size is not None:
            missing.sort(key=lambda pair: size(pair[1]), reverse=True)
        label, status = f"{kind} by {self.name}", os.environ.get(STATUS_VARIABLE)
        with tqdm(total=len(missing), desc=label, disable=len(missing) <= BATCH) as bar:
            for start in range(0, len(missing), BATCH):
                with self._alone():
                    part = [pair for pair in missing[start : start + BATCH] if pair[0] not in self._vectors]
                    if part:
                        self._add(part, encode, kind)
                done = min(start + BATCH, len(missing))
                bar.update(done - start)
                if status and not bar.disable:
                    Path(status).write_text(f"{label} {done:,}/{len(missing):,}", encoding="utf-8")
        self._note_used()
        dim = len(next(iter(self._vectors.values()), ()))
        out = np.empty((len(keys), dim), dtype=np.float32)
        # In parts: copies of all rows would take three times their own memory.
        for start in range(0, len(keys), ROWS_AT_ONCE):
            part = np.stack([self._vectors[key] for key in keys[start : start + ROWS_AT_ONCE]])
            out[start : start + ROWS_AT_ONCE] = normalise(part.astype(np.float32))
        return out

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Wait until no other process asks for vectors that are paid for, and take in what it got."""
        if self._write is None or not self._paid:
            yield
            return
        self._write.mkdir(parents=True, exist_ok=True)
        with (self._write / ".lock").open("ab") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)  # released when it is closed, also by a kill
            self._take_in()
            yield

    def _note_used(self) -> None:
        """Add the keys that were asked for to the run's file; several notebooks add to one."""
        if self._note is None or len(self.used_keys) == self._noted:
            return
        there = json.loads(self._note.read_text(encoding="utf-8")) if self._note.is_file() else []
        if not self.used_keys.issubset(there):
            storage.write_json(self._note, sorted(self.used_keys.union(there)))
        self._noted = len(self.used_keys)

    def _add(
        self, part: Sequence[tuple[str, Any]], encode: Callable[[list[Any]], np.ndarray], kind: str
    ) -> None:
        vectors = encode([item for _, item in part])
        if len(vectors) != len(part) or not np.isfinite(vectors).all():
            raise ValueError(f"{self.name} gave {len(vectors)} usable vectors for {len(part)} {kind}")
        # Rounded to float16 before use, so that a run that computes equals a run that replays.
        fresh = dict(zip((key for key, _ in part), normalise(vectors).astype(np.float16), strict=True))
        if self._write is not None:
            name = hashlib.sha256("".join(fresh).encode()).hexdigest()[:16]
            write_shard(self._write / f"{name}.npz", fresh)
            self._read.add(self._write / f"{name}.npz")
        self._vectors.update(fresh)


def normalise(vectors: np.ndarray) -> np.ndarray:
    """Scale rows to unit length; a zero row stays zero."""
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.where(norms == 0, 1, norms)


def shard_folder(recordings: Path, name: str) -> Path:
    """Folder of an encoder's shards within a folder of recordings."""
    return recordings / "embedding" / name.replace("/", "__")


def recorded_names(read_dirs: Sequence[Path], beginning: str) -> list[str]:
    """Names, sorted, that begin so and have shards in a folder of recordings."""
    prefix = beginning.replace("/", "__")
    folders = [path for read_dir in read_dirs for path in (read_dir / "embedding").glob("*")]
    names = {path.name for path in folders if path.name.startswith(prefix) and files_in(path, "*.npz")}
    return sorted(beginning + name[len(prefix) :] for name in names)


def read_shard(path: Path) -> dict[str, np.ndarray]:
    """Read one `.npz` of keys and float16 vectors; a damaged one raises `RecordingError`."""
    try:
        with np.load(path, allow_pickle=False) as data:
            return dict(zip(data["keys"].tolist(), data["vectors"], strict=True))
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise RecordingError(f"{path} is damaged ({error}); delete it to have it computed again") from error


def write_shard(path: Path, vectors: dict[str, np.ndarray]) -> None:
    """Write keys and float16 vectors, sorted by key, atomically."""
    keys = sorted(vectors)
    with storage.atomic_path(path) as part, part.open("wb") as handle:
        np.savez(handle, keys=np.array(keys), vectors=np.stack([vectors[k] for k in keys]))
