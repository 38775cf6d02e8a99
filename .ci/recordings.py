"""Care of the recordings: `check` looks at each, `promote RUN` makes those that a run used tracked ones.

python .ci/recordings.py check          # tracked ones and those of PROFILE: `make recordings-check`
python .ci/recordings.py promote RUN
"""

import gzip
import json
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, get_args

import numpy as np

from memecmd_utils import files, runs, settings
from memecmd_utils.files import MemecmdError, paths
from memecmd_utils.llm.recordings import (
    KEY_VERSION,
    REPLIES,
    Form,
    Outcome,
    RecordingError,
    Recordings,
    canonical,
    files_in,
    key_of,
    read_file,
    read_vectors,
    write_vectors,
)

NORM_TOLERANCE = 0.01  # of a length of 1; rounding to float16 moves it by less than 0.001


def check(profile: str) -> tuple[list[str], list[str]]:
    """Recompute every key and look at every value and vector, tracked ones and those of a profile.

    Returns what was counted and the problems found, as lines for the terminal.
    """
    done: list[str] = []
    problems: list[str] = []
    for folder in (
        paths.example / "recordings",
        paths.live / "recordings",
        paths.raw / "recordings" / profile,
    ):
        stages = [*folder.glob("*"), *folder.glob("embedding/*")]
        for path in [file for stage in sorted(stages) for file in files_in(stage, (*REPLIES, ".npz"))]:
            try:
                faults = [*(_vector_faults(path) if path.suffix == ".npz" else _reply_faults(path))]
            except RecordingError as error:
                faults = [str(error)]
            done.append(f"{path.relative_to(paths.data)}: {len(faults)} recordings")
            problems += [f"{path}: {fault}" for fault in faults if fault]
    return done, problems


def _reply_faults(path: Path) -> Iterator[str]:
    """What is wrong with each reply of a file, an empty text if nothing is."""
    for key, form, value in read_file(path):
        if key_of(form) != key:
            yield f"the key {key} does not belong to its form"
        elif not isinstance(value, dict) or not isinstance(value.get("text"), str):
            yield f"the value of {key} has no text"
        elif form.get("task") != "ocr" and value.get("outcome") not in get_args(Outcome):
            yield f"the value of {key} has the unknown outcome {value.get('outcome')!r}"
        else:
            yield ""


def _vector_faults(path: Path) -> Iterator[str]:
    """What is wrong with each vector of a file, an empty text if nothing is."""
    for key, row in read_vectors(path).items():
        length = np.linalg.norm(row.astype(np.float32))
        yield "" if abs(length - 1) < NORM_TOLERANCE else f"the vector of {key} has the length {length}"


def write_file(target: Path, records: Iterable[tuple[Form, Any]]) -> int:
    """Write (form, value) pairs as a tracked `.jsonl.gz`, sorted by form; return how many they are."""
    lines = [
        files.dumps({"v": KEY_VERSION, "key": key_of(form), "form": form, "value": value}) + "\n"
        for form, value in sorted(records, key=lambda record: canonical(record[0]))
    ]
    with files.atomic_path(target) as part:
        part.write_bytes(gzip.compress("".join(lines).encode(), mtime=0))
    return len(lines)


def promote(run: Path, mine: Path) -> Iterator[str]:
    """Make tracked recordings of the replies that a run used and of all vectors in `mine`; say what was done.

    `run`: folder of the run; `mine`: recordings of its profile. Tracked vectors stay as they are. Raises
    `RecordingError` if nothing of a stage is recorded: its tracked file would be emptied.
    """
    owner = paths.live if mine.name == paths.live.name else paths.example
    target = owner / "recordings"
    for folder in sorted(mine.glob("embedding/*")):
        tracked = files_in(target / "embedding" / folder.name, (".npz",))
        of_example = files_in(paths.example / "recordings" / "embedding" / folder.name, (".npz",))
        there = {key for path in {*tracked, *of_example} for key in read_vectors(path)}
        mine_here = files_in(folder, (".npz",))
        new = {k: row for path in mine_here for k, row in read_vectors(path).items() if k not in there}
        if new:
            write_vectors(target / "embedding" / folder.name / f"{owner.name}-{len(tracked) + 1}.npz", new)
        yield f"{len(new)} new vectors -> {folder.name}"
    for note in sorted((run / "usage").glob("*.keys.json")):
        stage = note.name.removesuffix(".keys.json")
        wanted = set(json.loads(note.read_text(encoding="utf-8")))
        store = Recordings(stage, [target, mine])
        forms = {key: form for path in store.files for key, form, _ in read_file(path) if key in wanted}
        if not forms:
            raise RecordingError(f"none of the {len(wanted)} replies of {stage} is recorded")
        write_file(
            target / stage / f"{owner.name}.jsonl.gz", [(form, store.get(k)) for k, form in forms.items()]
        )
        yield f"{len(forms)} of {len(wanted)} replies -> {stage}"


def main(action: str, run: str = "") -> int:
    """Check, or promote what `run` used; the exit status."""
    if action == "promote":
        finished = runs.open_finished(run)
        for line in promote(finished.folder, finished.write_dir):
            print(line)
        return 0
    done, problems = check(settings.load_profile(os.environ.get("PROFILE") or "example").name)
    print("\n".join([*done, *(f"PROBLEM: {problem}" for problem in problems)]))
    return int(bool(problems))


if __name__ == "__main__":
    try:
        sys.exit(main(*sys.argv[1:]))
    except MemecmdError as error:
        sys.exit(f"error: {error}")
