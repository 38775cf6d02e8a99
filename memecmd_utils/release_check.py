"""The check of a release: against its manifest, its checksums and itself. Works wherever the folder lies."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from pydantic import ValidationError

from memecmd_utils import croissant, freeze, manifest, release_tables, storage
from memecmd_utils.errors import MemecmdError
from memecmd_utils.release_tables import DATASETS

TEXTS = ("README.md", "LICENSE.md", croissant.FILE, manifest.FILE, manifest.SUMS)
SHOWN = 20
"""Problems that are told in full; the rest is counted."""


class ReleaseError(MemecmdError, ValueError):
    """A release that does not agree with itself; the message lists what is wrong."""


def check_release(release_dir: Path) -> dict[str, int]:
    """Read a release again: manifest, checksums, counts, every id. The counts, or `ReleaseError`."""
    problems = [f"{name} is missing" for name in TEXTS if not (release_dir / name).is_file()]
    if problems:
        raise ReleaseError(_listed(release_dir, problems))
    try:
        said = manifest.read(release_dir)
    except ValueError as error:
        raise ReleaseError(_listed(release_dir, [str(error)])) from None
    digests = manifest.sums(release_dir)
    known = DATASETS[said.dataset].tables
    needed = [f"{t}.{kind}" for t in known for kind in ("jsonl", "parquet")]
    needed = [path for path in needed if path in digests or not known[path.split(".")[0]].optional]
    problems = [f"{path}: missing" for path in needed if path not in digests]
    problems += _wrong_sums(release_dir, digests) + manifest.problems(release_dir, said, digests)
    tables = list(dict.fromkeys(path.split(".")[0] for path in needed))
    listed = {entry.path for entry in said.files} - {croissant.FILE}
    described = {path: digest for path, digest in digests.items() if path in listed}
    problems += croissant.problems(release_dir, described, tables)
    records: dict[str, list[Any]] = {}
    for table in tables:
        records[table], found = _read(release_dir, table)
        problems += found
    if not any(": cannot be read" in problem for problem in problems):
        problems += _twice(records)
        problems += _wrong_templates(records) if said.dataset == "templates" else _wrong_dialogues(records)
        problems += _wrong_images(release_dir, records.get("memes"), digests)
        problems += manifest.wrong_records(said, records)
        problems += _wrong_card(release_dir, {table: len(rows) for table, rows in records.items()})
    if problems:
        raise ReleaseError(_listed(release_dir, problems))
    return manifest.counts(records)


def report(release_dir: Path) -> str:
    """Check a release and say in a few lines what it is; raises `ReleaseError` like `check_release`."""
    if not release_dir.is_dir():
        raise ReleaseError(f"no folder {release_dir}")
    counts = check_release(release_dir)
    said = manifest.read(release_dir)
    size = {entry.path: entry.bytes for entry in said.files}
    rows = [(t, counts[t], size[f"{t}.parquet"], size[f"{t}.jsonl"]) for t in said.tables]
    pictures = sum(count for path, count in size.items() if path.startswith("images/"))
    used = {**said.inputs.get("example_texts", {}), **said.inputs.get("ground_truth", {})}
    here = freeze.text_hashes() if used else {}
    same = sum(here.get(name) == digest for name, digest in used.items())
    lines = [
        f"run {said.run}: profile {said.profile.name} (settings {said.profile.sha256[:12]}), made by "
        f"{said.package} {said.package_version}, release format {said.release_format}",
        f"{'':<13}{'records':>9}{'Parquet':>13}{'JSON Lines':>13}",
        *(f"{table:<13}{count:>9,}{parquet:>13,}{jsonl:>13,}" for table, count, parquet, jsonl in rows),
        *([f"{'images':<13}{counts['images']:>9,}{pictures:>13,}"] if "images" in counts else []),
        f"{len(said.files)} files, {sum(size.values()):,} bytes: sizes, checksums, counts and ids are as the "
        "manifest says",
    ]
    if used:
        lines.append(f"inputs: {same} of {len(used)} example texts are the ones of this checkout")
    return "\n".join(lines)


def _listed(folder: Path, problems: Sequence[str]) -> str:
    more = f"\n... and {len(problems) - SHOWN} more" if len(problems) > SHOWN else ""
    return f"{folder.name}: {len(problems)} problems\n" + "\n".join(problems[:SHOWN]) + more


def _wrong_sums(folder: Path, found: Mapping[str, str]) -> list[str]:
    lines = (folder / manifest.SUMS).read_text(encoding="utf-8", errors="replace").splitlines()
    said = {path: digest for digest, _, path in (line.partition("  ") for line in lines)}
    problems = [f"{path}: listed but missing" for path in sorted(said.keys() - found.keys())]
    problems += [f"{path}: not listed in {manifest.SUMS}" for path in sorted(found.keys() - said.keys())]
    both = sorted(said.keys() & found.keys())
    return problems + [f"{path}: checksum differs" for path in both if said[path] != found[path]]


def _read(folder: Path, table: str) -> tuple[list[Any], list[str]]:
    """A table's records, and what is wrong with its two files."""
    try:
        records = storage.read_jsonl(folder / f"{table}.jsonl", release_tables.about(table).schema)
    except (OSError, ValueError) as error:
        return [], [f"{table}.jsonl: cannot be read: {_first_line(error)}"]
    try:
        columns = pq.read_schema(folder / f"{table}.parquet")
        if not columns.equals(release_tables.arrow_schema(table)):
            return records, [f"{table}.parquet: columns or their types differ from those of a release"]
        same = records == release_tables.read_parquet(folder, table)
    except (OSError, ValidationError, pa.ArrowException) as error:
        return [], [f"{table}.parquet: cannot be read: {_first_line(error)}"]
    return records, [] if same else [f"{table}.jsonl and {table}.parquet differ"]


def _first_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]


def _twice(records: Mapping[str, Sequence[Any]]) -> list[str]:
    problems = []
    for table, rows in records.items():
        columns = release_tables.about(table).key
        keys = Counter(tuple(getattr(row, column) for column in columns) for row in rows)
        twice = [key if len(key) > 1 else key[0] for key, count in keys.items() if count > 1]
        problems += [f"{table.removesuffix('s')} {key!r} stands twice" for key in twice]
    return problems


def _wrong_templates(records: Mapping[str, Sequence[Any]]) -> list[str]:
    """What does not fit together in a release of template memes: templates, splits, readings."""
    templates = {info.template for info in records["templates"]}
    template_of = {meme.meme_id: meme.template for meme in records["template_memes"]}
    problems = [
        f"template {i.template!r} names a picture: none is here" for i in records["templates"] if i.picture
    ]
    lost = sorted(set(template_of.values()) - templates)
    problems += [f"template_meme of {template!r}: no such template" for template in lost]
    halves = Counter(meme.split is None for meme in records["template_memes"])
    if len(halves) > 1:
        problems.append(f"template_memes: {halves[True]} of {halves.total()} belong to no split")
    for reading in records.get("readings", ()):
        template = template_of.get(reading.meme_id)
        if template is None:
            problems.append(f"reading of {reading.meme_id}: no meme {reading.meme_id}")
        elif reading.template not in ("", template):
            problems.append(
                f"reading of {reading.meme_id}: of {reading.template!r}, the meme of {template!r}"
            )
    return problems


def _wrong_dialogues(records: Mapping[str, Sequence[Any]]) -> list[str]:
    problems = []
    speakers = {(d.dialogue_id, t.turn): t.speaker for d in records["dialogues"] for t in d.turns}
    for dialogue in records["dialogues"]:
        for summary in dialogue.summaries:
            if speakers.get((dialogue.dialogue_id, summary.turn)) != summary.speaker:
                problems.append(f"summary of {dialogue.dialogue_id} turn {summary.turn}: no such turn")
    known = {meme.meme_id for meme in records["memes"]}
    # Of an unsafe meme a release holds the annotation's id and category, and no more.
    lost = sorted({a.meme_id for a in records["annotations"] if not a.unsafe} - known)
    problems += [f"annotation of {meme_id}: no meme {meme_id}" for meme_id in lost]
    flagged = [a for a in records["annotations"] if a.unsafe]
    told = [a for a in flagged if a.meme_id in known or a.s_plus or a.s_minus or a.emotion or a.motivation]
    problems += [f"{a.meme_id} is flagged as {a.unsafe}: more than its id is there" for a in told]
    for p in records["placements"]:
        if speakers.get((p.dialogue_id, p.turn)) != p.speaker:
            problems.append(f"placement at {p.dialogue_id} turn {p.turn}: no such turn of {p.speaker}")
        if p.meme_id not in known:
            problems.append(f"placement at {p.dialogue_id} turn {p.turn}: no meme {p.meme_id}")
    for table, named in (("marks", lambda mark: mark.best), ("grades", lambda grade: [grade.meme_id])):
        for row in records.get(table, ()):
            where = f"{table.removesuffix('s')} at {row.dialogue_id} turn {row.turn}"
            if (row.dialogue_id, row.turn) not in speakers:
                problems.append(f"{where}: no such turn")
            problems += [f"{where}: no meme {meme_id}" for meme_id in named(row) if meme_id not in known]
    return problems


def _wrong_images(
    folder: Path, memes: Sequence[release_tables.ReleaseMeme] | None, digests: Mapping[str, str]
) -> list[str]:
    """What is wrong with the pictures; `memes` is None where a kind of release has none."""
    named = {meme.file for meme in memes or () if meme.file}
    there = {path for path in digests if path.startswith("images/")}
    problems = [f"{path}: missing" for path in sorted(named - there)]
    problems += [f"{path}: belongs to no meme" for path in sorted(there - named)]
    if memes is None:
        return problems
    try:
        for meme_id, file, image in release_tables.read_images(folder):
            if file not in there:
                same = image is None and not file
            else:
                same = image == {"bytes": (folder / file).read_bytes(), "path": file}
            problems += [] if same else [f"memes.parquet: the picture of {meme_id} is not {file or 'null'}"]
    except (OSError, KeyError, pa.ArrowException) as error:
        problems.append(f"memes.parquet: pictures cannot be read: {_first_line(error)}")
    return problems


def _wrong_card(folder: Path, counts: Mapping[str, int]) -> list[str]:
    try:
        values = yaml.safe_load((folder / "README.md").read_text(encoding="utf-8").split("---\n")[1])
        said = {info["config_name"]: info["splits"][0]["num_examples"] for info in values["dataset_info"]}
        files = {entry["config_name"]: entry["data_files"] for entry in values["configs"]}
    except (ValueError, LookupError, TypeError, yaml.YAMLError) as error:
        return [f"README.md: its header cannot be read: {_first_line(error)}"]
    counts = {table: count for table, count in counts.items() if count}
    wrong = [t for t in sorted(counts.keys() | said.keys()) if said.get(t) != counts.get(t)]
    problems = [f"README.md says {said.get(t)} {t}, there are {counts.get(t)}" for t in wrong]
    wanted = {table: f"{table}.parquet" for table in counts}
    return problems if files == wanted else [*problems, "README.md: its configurations are not the tables"]
