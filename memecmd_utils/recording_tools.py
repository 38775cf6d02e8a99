"""Care of recordings: check, compact, migrate and promote them, and explain how two of them differ."""

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from memecmd_utils import paths
from memecmd_utils.recording_check import Report, check, embedders_in, shown, stages_in
from memecmd_utils.recording_files import (
    KEY_VERSION,
    RecordingError,
    canonical,
    files_in,
    key_of,
    lock,
    read_file,
    read_versions,
    scan,
    write_file,
)
from memecmd_utils.recordings import differences, excerpts, missed_forms, nearest, rank
from memecmd_utils.vectors import read_shard, write_shard

__all__ = ["Report", "check", "compact", "explain", "folders_of", "migrate", "promote"]

Form = dict[str, Any]


def folders_of(profile: str) -> list[Path]:
    """The tracked folder of recordings and that of a profile, whether they are there or not."""
    return [paths.example / "recordings", paths.raw / "recordings" / profile]


def _from_1(form: Form) -> Form:
    """Raise the version only: a form of version 1 holds every parameter as it was asked for.

    Version 2 leaves out what the endpoint's parameter map drops. Where nothing is dropped the two forms are
    the same; elsewhere the recording is not found again, and asked anew, but never taken for another one.
    """
    return {**form, "key_version": 2}


MIGRATIONS: dict[int, Callable[[Form], Form]] = {1: _from_1}
"""From each key version to the next."""


def _walk(files: list[Path], oldest: int | None) -> Iterator[tuple[tuple[int, int], str, Form, Any]]:
    """Yield (place, key, form, value) of every recording, in today's key version.

    A key that does not belong to its form raises `RecordingError`: rewriting would hide the damage.
    """
    for file, path in enumerate(files):
        for number, version, key, form, value in read_versions(path, oldest):
            if key_of(form) != key:
                raise RecordingError(
                    f"{path} line {number} is damaged (the key does not belong to the form); "
                    "`make recordings-check` lists all such lines. Nothing was changed in this file"
                )
            for step in range(version, KEY_VERSION):
                form = MIGRATIONS[step](form)
            yield (file, number), key_of(form) if version != KEY_VERSION else key, form, value


def _merged(files: list[Path], oldest: int | None = None) -> Iterator[tuple[Form, Any]]:
    """Yield (form, value) of the winning line of every key, in the order of the lines."""
    best: dict[bytes, tuple[tuple[int, int], tuple[bool, float]]] = {}
    for place, key, _, value in _walk(files, oldest):
        packed = bytes.fromhex(key)
        if packed not in best or rank(value) > best[packed][1]:
            best[packed] = place, rank(value)
    for place, key, form, value in _walk(files, oldest):
        if best[bytes.fromhex(key)][0] == place:
            yield form, value


def _hold(files: Iterable[Path], stack: ExitStack) -> None:
    for path in files:
        handle = lock(path)
        if handle is None:
            raise RecordingError(f"another process writes there: {path}; try again when it is done")
        stack.enter_context(handle)


def _sync(folder: Path) -> None:
    """Make renamed files of a folder last before anything else is deleted."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _bytes(files: Iterable[Path]) -> str:
    return f"{sum(path.stat().st_size for path in files) / 1e6:.1f} MB"


def compact(folder: Path) -> Report:
    """Merge the files of every stage and the shards of every embedder of a profile's folder into one each.

    Every file is held against writers first, else `RecordingError`. The merged file takes the place of the
    first one before the others are deleted, so that a kill at any moment leaves every answer, and the same
    ones win.
    """
    if folder.resolve().is_relative_to(paths.example.resolve()):
        raise RecordingError("the tracked recordings are not compacted; recordings-promote writes them")
    report = Report()
    with ExitStack() as stack:
        stages = [(stage, files_in(stage)) for stage in stages_in(folder)]
        for _, files in stages:
            _hold(files, stack)
        for stage, files in stages:
            before = _bytes(files)
            count = write_file(files[0], _merged(files))
            _sync(stage)
            for path in [*files[1:], *stage.glob(".*.part.jsonl")]:
                path.unlink()
            what = f"{len(files)} files, {before} -> {count} recordings, {_bytes(files[:1])}"
            report.done.append(f"{shown(stage)}: {what}")
    for embedder in embedders_in(folder):
        report.done.append(_compact_vectors(embedder))
    return report


def _compact_vectors(folder: Path) -> str:
    files = files_in(folder, "*.npz")
    vectors: dict[str, np.ndarray] = {}
    for path in files:
        vectors.update(read_shard(path))
    name = hashlib.sha256("".join(sorted(vectors)).encode()).hexdigest()[:16]
    target = folder / f"{name}.npz"
    if files != [target]:
        write_shard(target, vectors)
        _sync(folder)
        for path in files:
            if path != target:
                path.unlink()
    return f"{shown(folder)}: {len(files)} files -> {len(vectors)} vectors, {_bytes([target])}"


def migrate(folders: Iterable[Path]) -> Report:
    """Re-key files of older key versions in place, atomically; files of ours stay as they are.

    Two old keys that become one keep the winning answer. A newer version, damage, or a file that another
    process writes raises `RecordingError`.
    """
    report = Report()
    stages = [stage for folder in folders for stage in stages_in(folder)]
    # All are read before the first is changed.
    old = {
        stage: [p for p in files_in(stage) if any(line["v"] < KEY_VERSION for _, _, line in scan(p, 1))]
        for stage in stages
    }
    with ExitStack() as stack:
        for files in old.values():
            _hold(files, stack)
        for stage, files in old.items():
            count = sum(write_file(path, _merged([path], oldest=1)) for path in files)
            what = f"{count} recordings in {len(files)} files have new keys" if files else "up to date"
            report.done.append(f"{shown(stage)}: {what}")
    return report


def promote(files: Iterable[Path], target: Path, wanted: set[str]) -> int:
    """Write the `wanted` answers of `files` to `target`, sorted by key; return how many.

    This is how a maintainer turns the recordings of a run into tracked ones. Raise `RecordingError` if
    none is there: the tracked file would be emptied.
    """
    found: dict[str, tuple[Form, Any]] = {}
    for path in files:
        for key, form, value in read_file(path):
            if key in wanted and (key not in found or rank(value) > rank(found[key][1])):
                found[key] = (form, value)
    if not found:
        raise RecordingError(f"none of the {len(wanted)} replies of {target.parent.name} is recorded")
    return write_file(target, (found[key] for key in sorted(found)))


def explain(a: str, b: str | None, folders: Iterable[Path]) -> list[str]:
    """Name the fields in which two recordings differ, with the stretch where each pair parts.

    Each is a normal form as JSON, or the first 8 or more hex digits of a key recorded in `folders` or named
    by one of the last misses. `b`: None takes the recording of the same task that is nearest to `a`.
    """
    folders = list(folders)
    first = _form_of(a, folders)
    if b is None:
        files = [path for folder in folders for stage in stages_in(folder) for path in files_in(stage)]
        found = nearest(first, files)
        if found is None:
            raise RecordingError(f"nothing is recorded for task {first.get('task')!r}")
        b = found[0]
    second = _form_of(b, folders)
    lines: list[str] = []
    for where, x, y in sorted(differences(first, second), key=lambda found: found[0]):
        texts = (value if isinstance(value, str) else canonical(value) for value in (x, y))
        x, y = excerpts(*texts)
        lines += [where, f"  first:  {x!r}", f"  second: {y!r}"]
    return lines or ["no difference"]


def _form_of(text: str, folders: list[Path]) -> Form:
    if re.fullmatch("[0-9a-f]{8,64}", text):
        files = [path for folder in folders for stage in stages_in(folder) for path in files_in(stage)]
        found = {k: form for path in files for k, form, _ in read_file(path) if k.startswith(text)}
        found |= {k: form for k, form in missed_forms().items() if k.startswith(text)}
        if len(found) != 1:
            raise RecordingError(
                f"{len(found)} recordings have a key that begins with {text}, the last misses included"
            )
        return found.popitem()[1]
    try:
        form = json.loads(text)
    except ValueError as error:
        raise RecordingError(
            f"neither a form as JSON nor 8 or more hex digits of a key: {text[:60]!r}"
        ) from error
    if not isinstance(form, dict):
        raise RecordingError(f"a form is a JSON object: {text[:60]!r}")
    return form
