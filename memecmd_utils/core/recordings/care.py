"""Care of recordings: check them, explain how two of them differ, turn what a run used into tracked ones."""

import json
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, get_args

import numpy as np

from memecmd_utils.core import paths
from memecmd_utils.core.recordings import store, vectors
from memecmd_utils.core.recordings.store import Form, Outcome, RecordingError, files_in

NORM_TOLERANCE = 0.01  # of a length of 1; rounding to float16 moves it by less than 0.001


def folders_of(profile: str) -> list[Path]:
    """The tracked folder of recordings and that of a profile, whether they are there or not."""
    return [paths.example / "recordings", paths.raw / "recordings" / profile]


@dataclass
class Report:
    """What was counted, problems that need a hand, and notes that need none."""

    done: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def text(self) -> str:
        """Everything for the terminal: what was done, notes, problems last."""
        lines = [*(self.done or ["no recordings there"]), *(f"note: {note}" for note in self.notes)]
        return "\n".join([*lines, *(f"PROBLEM: {problem}" for problem in self.problems)])


def check(folders: Iterable[Path]) -> Report:
    """Verify every line and every vector; damage is a problem, a torn last line a note."""
    report = Report()
    for folder in folders:
        for stage in _stages_in(folder):
            _check_stage(stage, report)
        for shards in sorted((folder / "embedding").glob("*")):
            if files_in(shards, "*.npz"):
                _check_vectors(shards, report)
    return report


def _stages_in(folder: Path) -> list[Path]:
    """Folders of stages that have recorded replies or texts."""
    stages = sorted(path for path in folder.glob("*") if path.is_dir() and path.name != "embedding")
    return [path for path in stages if files_in(path)]


def _path_text(path: Path) -> str:
    return str(path.relative_to(paths.root) if path.is_relative_to(paths.root) else path)


def _check_stage(stage: Path, report: Report) -> None:
    best: dict[str, tuple[bool, float]] = {}
    for path in files_in(stage):
        for key, value in _sound_lines(path, report):
            best[key] = max(best.get(key, (False, 0.0)), store.rank(value))
    unanswered = sum(not answer for answer, _ in best.values())
    report.done.append(f"{_path_text(stage)}: {len(best)} recordings ({unanswered} without an answer)")


def _sound_lines(path: Path, report: Report) -> Iterator[tuple[str, Any]]:
    """Yield (key, value) of the recordings of a file that are whole; report everything else."""
    forms, end = store.Forms(), 0
    for number, offset, raw in store.raw_lines(path):
        end = offset + len(raw)
        try:
            line = store.parse_line(raw)
            problem = _problem(line["key"], forms.take(line), line["value"])
        except (ValueError, TypeError) as error:
            problem = str(error)
        if problem:
            report.problems.append(f"{_path_text(path)}:{number}: {problem}")
        else:
            yield line["key"], line["value"]
    if path.stat().st_size > end:
        report.notes.append(f"{_path_text(path)}: the last line is torn; it counts as not recorded")


def _problem(key: str, form: Form, value: Any) -> str:
    """Say what is wrong with a recording; an empty text if nothing is."""
    if store.key_of(form) != key:
        return "the key does not belong to the form"
    if form.get("key_version", store.KEY_VERSION) != store.KEY_VERSION:
        return f"the form is of key version {form['key_version']}"
    if not isinstance(value, dict) or not isinstance(value.get("text"), str):
        return "the value has no text"
    if form.get("task") == "ocr":
        return "" if set(value) == {"text"} else "the value holds more than a text"
    if value.get("outcome") not in get_args(Outcome):
        return f"unknown outcome {value.get('outcome')!r}"
    if type(live := value.get("live", 0.0)) not in (int, float) or not 0 <= live < math.inf:
        return f"the time of mode live is {live!r}"
    attempts = value.get("attempts")
    return "" if type(attempts) is int and attempts >= 1 else f"attempts are {attempts!r}"


def _check_vectors(folder: Path, report: Report) -> None:
    keys: set[str] = set()
    widths: set[int] = set()
    name = _path_text(folder)
    for path in files_in(folder, "*.npz"):
        try:
            shard = vectors.read_shard(path)
            rows = np.stack(list(shard.values())).astype(np.float32)
            lengths = np.linalg.norm(rows, axis=1)
        except ValueError as error:  # a damaged file, or rows that make no table
            report.problems.append(f"{_path_text(path)}: {error}")
            continue
        bad = {
            "keys are not 64 hex digits": sum(store.KEY.fullmatch(str(key)) is None for key in shard),
            "vectors are not finite": int((~np.isfinite(lengths)).sum()),
            "vectors are not of length 1": int((np.abs(lengths - 1) > NORM_TOLERANCE).sum()),
        }
        report.problems += [f"{_path_text(path)}: {count} {fault}" for fault, count in bad.items() if count]
        keys |= shard.keys()
        widths.add(rows.shape[1])
    if len(widths) > 1:
        report.problems.append(f"{name}: vectors of {sorted(widths)} numbers side by side")
    report.done.append(f"{name}: {len(keys)} vectors")


def explain(a: str, b: str | None, folders: Iterable[Path]) -> list[str]:
    """Name the fields in which two recordings differ, with the stretch where each pair parts.

    Each is a normal form as JSON, or the first 8 or more hex digits of a key recorded in `folders` or named
    by one of the last misses. `b`: None takes the recording of the same task that is nearest to `a`.
    """
    files = [path for folder in folders for stage in _stages_in(folder) for path in files_in(stage)]
    first = _form_of(a, files)
    if b is None:
        neighbour = store.nearest(first, files)
        if neighbour is None:
            raise RecordingError(f"nothing is recorded for task {first.get('task')!r}")
        b = neighbour[0]
    lines: list[str] = []
    for where, x, y in sorted(
        store.differences(first, _form_of(b, files)), key=lambda difference: difference[0]
    ):
        texts = (value if isinstance(value, str) else store.canonical(value) for value in (x, y))
        x, y = store.excerpts(*texts)
        lines += [where, f"  first:  {x!r}", f"  second: {y!r}"]
    return lines or ["no difference"]


def _form_of(text: str, files: list[Path]) -> Form:
    if re.fullmatch("[0-9a-f]{8,64}", text):
        matching = {k: form for path in files for k, form, _ in store.read_file(path) if k.startswith(text)}
        matching |= {k: form for k, form in store.missed_forms().items() if k.startswith(text)}
        if len(matching) != 1:
            raise RecordingError(
                f"{len(matching)} recordings have a key that begins with {text}, the last misses included"
            )
        return matching.popitem()[1]
    try:
        form = json.loads(text)
    except ValueError as error:
        raise RecordingError(
            f"neither a form as JSON nor 8 or more hex digits of a key: {text[:60]!r}"
        ) from error
    if not isinstance(form, dict):
        raise RecordingError(f"a form is a JSON object: {text[:60]!r}")
    return form


def promote_run(run: str) -> Iterator[str]:
    """Write, for every stage and embedder that `run` used, one tracked file; yield what was done."""
    target = paths.example / "recordings"
    sources = [target, recordings_of(run)]
    for keys_file in sorted((paths.processed / run / "usage").glob("*.keys.json")):
        stage = keys_file.name.removesuffix(".keys.json")
        wanted = set(json.loads(keys_file.read_text(encoding="utf-8")))
        if not wanted:
            continue
        if stage.startswith("embedding:"):
            out = target / "embedding" / stage.removeprefix("embedding:")
            count = _promote_vectors(out, [s / "embedding" / out.name for s in sources], wanted)
            yield f"{count} of {len(wanted)} vectors -> {_path_text(out)}"
        else:
            out = target / stage / "example.jsonl"
            count = promote([path for source in sources for path in files_in(source / stage)], out, wanted)
            yield f"{count} of {len(wanted)} replies -> {_path_text(out)}"


def promote(files: Iterable[Path], target: Path, wanted: set[str]) -> int:
    """Write the `wanted` answers of `files` to `target`, the one that counts of each; return how many.

    Raise `RecordingError` if none is there: the tracked file would be emptied.
    """
    best: dict[str, tuple[Form, Any]] = {}
    for path in files:
        for key, form, value in store.read_file(path):
            if key in wanted and (key not in best or store.rank(value) > store.rank(best[key][1])):
                best[key] = (form, value)
    if not best:
        raise RecordingError(f"none of the {len(wanted)} replies of {target.parent.name} is recorded")
    return store.write_file(target, best.values())


SHARD_BYTES = 8 << 20
"""Of the vectors in one tracked file."""


def _promote_vectors(target: Path, folders: Iterable[Path], wanted: set[str]) -> int:
    """Write the `wanted` vectors into files of a folder, each of `SHARD_BYTES` at most.

    Those of a file that is there stay in it, so that new ones change no other file.
    """
    rows: dict[str, np.ndarray] = {}
    for folder in folders:
        for shard in files_in(folder, "*.npz"):
            rows.update({key: row for key, row in vectors.read_shard(shard).items() if key in wanted})
    if not rows:
        raise RecordingError(f"none of the {len(wanted)} vectors of {target.name} is recorded")
    parts = {
        path: [key for key in vectors.read_shard(path) if key in rows] for path in files_in(target, "*.npz")
    }
    rest = sorted(rows.keys() - {key for keys in parts.values() for key in keys})
    size = max(1, SHARD_BYTES // next(iter(rows.values())).nbytes)
    new = [rest[start : start + size] for start in range(0, len(rest), size)]
    names = (target / f"example{f'-{number}' if number > 1 else ''}.npz" for number in count(1))
    free = (path for path in names if path not in parts)
    parts |= dict(zip(free, new, strict=False))
    for path, keys in parts.items():
        if keys:
            vectors.write_shard(path, {key: rows[key] for key in keys})
        else:
            path.unlink()
    return len(rows)


def recordings_of(run: str) -> Path:
    """Folder of a run's recordings: that of its profile, which is the beginning of the run's name."""
    name = run
    while "-" in name and not (paths.raw / "recordings" / name).is_dir():
        name = name.rpartition("-")[0]
    return paths.raw / "recordings" / name
