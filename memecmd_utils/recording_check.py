"""What `make recordings-check` does: every recorded line and vector verified, orphans counted."""

import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import numpy as np

from memecmd_utils import paths
from memecmd_utils.llm_types import Outcome
from memecmd_utils.recording_files import (
    KEY,
    KEY_VERSION,
    Texts,
    digest_of,
    files_in,
    key_of,
    parse_line,
    raw_lines,
    unpack,
    version_problem,
)
from memecmd_utils.recordings import is_answer, rank
from memecmd_utils.vectors import read_shard

NORM_TOLERANCE = 0.01  # of a length of 1; rounding to float16 moves it by less than 0.001


@dataclass
class Report:
    """What a tool counted or did, the problems that need a hand, and notes that need none."""

    done: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def text(self) -> str:
        """Everything for the terminal: what was done, notes, problems last."""
        lines = self.done or ["no recordings there"]
        lines = [*lines, *(f"note: {note}" for note in self.notes)]
        return "\n".join([*lines, *(f"PROBLEM: {problem}" for problem in self.problems)])


def shown(path: Path) -> str:
    """Path for a report: from the project's root where it lies inside."""
    return str(path.relative_to(paths.root) if path.is_relative_to(paths.root) else path)


def stages_in(folder: Path) -> list[Path]:
    """Folders of stages that have recorded replies or texts."""
    found = sorted(path for path in folder.glob("*") if path.is_dir() and path.name != "embedding")
    return [path for path in found if files_in(path)]


def embedders_in(folder: Path) -> list[Path]:
    """Folders of embedders that have recorded vectors."""
    return [path for path in sorted((folder / "embedding").glob("*")) if files_in(path, "*.npz")]


def check(folders: Iterable[Path]) -> Report:
    """Verify every line and every vector; damage is a problem, what is merely superfluous a note."""
    report = Report()
    for folder in folders:
        for stage in stages_in(folder):
            _check_stage(stage, report)
        for embedder in embedders_in(folder):
            _check_vectors(embedder, report)
    return report


def _check_stage(stage: Path, report: Report) -> None:
    answered: dict[str, tuple[bool, float]] = {}
    answers: Counter[str] = Counter()
    count = refused = 0
    for path in files_in(stage):
        for key, value in _sound_lines(path, report):
            count += 1
            refused += not is_answer(value)
            answers[key] += is_answer(value)
            answered[key] = max(answered.get(key, (False, 0.0)), rank(value))
    unanswered = sum(not answer for answer, _ in answered.values())
    replaced = sum(answers[key] - 1 for key, (answer, live) in answered.items() if answer and live)
    name = shown(stage)
    report.done.append(f"{name}: {len(answered)} recordings ({unanswered} without an answer)")
    if count > len(answered):
        report.notes.append(f"{name}: {count - len(answered)} lines repeat the key of another")
    if refused > unanswered:
        report.notes.append(f"{name}: {refused - unanswered} replies that were no answer are superseded")
    if replaced:
        report.notes.append(f"{name}: {replaced} answers are superseded by a newer one of mode live")
    _note_orphans(name, stage.name, answered.keys(), report)


def _sound_lines(path: Path, report: Report) -> Iterator[tuple[str, Any]]:
    """Yield (key, value) of the recordings of a file that are whole; report everything else."""
    texts, unused = Texts(path), set()
    versions: Counter[int] = Counter()
    end = 0

    def text_of(digest: str) -> str:
        unused.discard(digest)
        return texts(digest)

    for number, offset, raw in raw_lines(path):
        end = offset + len(raw)
        try:
            line = parse_line(raw)
            if line["v"] != KEY_VERSION:
                versions[line["v"]] += 1
                continue
            if "text" in line:
                unused.add(line["text"])
                texts.offsets[line["text"]] = offset
                problem = "" if digest_of(line["is"]) == line["text"] else "the text has another digest"
            else:
                problem = _problem(line["key"], unpack(line["form"], text_of), line["value"])
        except KeyError as error:
            problem = f"refers to a text that is not there: {error}"
        except (ValueError, TypeError) as error:
            problem = str(error)
        if problem:
            report.problems.append(f"{shown(path)}:{number}: {problem}")
        elif "key" in line:
            yield line["key"], line["value"]
    for version, count in sorted(versions.items()):
        report.problems.append(f"{shown(path)}: {count} lines: each {version_problem(version, path)}")
    if path.stat().st_size > end:
        report.notes.append(f"{shown(path)}: the last line is torn; the next writer cuts it off")
    if unused:
        report.notes.append(f"{shown(path)}: {len(unused)} long texts are not referred to")


def _problem(key: str, form: dict[str, Any], value: Any) -> str:
    """Say what is wrong with a recording; an empty text if nothing is."""
    if key_of(form) != key:
        return "the key does not belong to the form"
    if form.get("key_version", KEY_VERSION) != KEY_VERSION:
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
    name = shown(folder)
    for path in files_in(folder, "*.npz"):
        try:
            shard = read_shard(path)
            vectors = np.stack(list(shard.values())).astype(np.float32)
            lengths = np.linalg.norm(vectors, axis=1)
        except ValueError as error:  # a damaged file, or rows that make no table
            report.problems.append(f"{shown(path)}: {error}")
            continue
        bad = {
            "keys are not 64 hex digits": sum(KEY.fullmatch(str(key)) is None for key in shard),
            "vectors are not finite": int((~np.isfinite(lengths)).sum()),
            "vectors are not of length 1": int((np.abs(lengths - 1) > NORM_TOLERANCE).sum()),
        }
        report.problems += [f"{shown(path)}: {count} {what}" for what, count in bad.items() if count]
        keys |= shard.keys()
        widths.add(vectors.shape[1])
    if len(widths) > 1:
        report.problems.append(f"{name}: vectors of {sorted(widths)} numbers side by side")
    report.done.append(f"{name}: {len(keys)} vectors")
    _note_orphans(name, f"embedding:{folder.name}", keys, report)


def _note_orphans(name: str, stage: str, keys: Iterable[str], report: Report) -> None:
    """Note how many of `keys` no run used, as far as the runs that are still there say so."""
    said = [path / f"{stage}.keys.json" for path in sorted(paths.processed.glob("*/usage"))]
    said = [path for path in said if path.is_file()]
    if not said:
        report.notes.append(f"{name}: no run says what it used, so orphans cannot be told")
        return
    orphans = set(keys).difference(*(json.loads(path.read_text(encoding="utf-8")) for path in said))
    if orphans:
        report.notes.append(f"{name}: {len(orphans)} were used by none of the runs that are here")
