"""The check of a release, and the tables that one consists of."""

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel

from memecmd_utils import schemas, storage

SUMS = "sha256sums.txt"


class ReleaseError(ValueError):
    """A release that does not agree with itself; the message lists what is wrong."""


class ReleaseMeme(schemas.Meme):
    """A meme with its annotation. `file` is empty where the image may not be passed on."""

    file: str
    s_plus: str = ""
    s_minus: str = ""
    emotion: str = ""
    motivation: str = ""
    unscored: str = ""
    """Why there is no annotation."""
    annotation_source: str = ""
    annotation_prompt_sha256: str = ""


TABLES: dict[str, tuple[type[BaseModel], str]] = {
    "dialogues": (schemas.Dialogue, "a session: its turns, and a summary for every turn from the second"),
    "memes": (ReleaseMeme, "a meme with its annotation (S+, S-, E, Psi)"),
    "placements": (schemas.Placement, "a meme that a strategy puts at a turn"),
}


def sums(folder: Path) -> dict[str, str]:
    """SHA-256 of every file in a release but the list of checksums itself, by path."""
    files = (path for path in folder.rglob("*") if path.is_file() and path != folder / SUMS)
    return {p.relative_to(folder).as_posix(): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


def check_release(release_dir: Path) -> dict[str, int]:
    """Read a release again: checksums, counts and every id. Returns the counts or raises `ReleaseError`."""
    problems = _wrong_files(release_dir)
    if problems:
        raise ReleaseError(_listed(release_dir, problems))
    tables: dict[str, list[Any]] = {}
    for table, (schema, _) in TABLES.items():
        tables[table] = storage.read_jsonl(release_dir / f"{table}.jsonl", schema)
        if tables[table] != storage.read_parquet(release_dir / f"{table}.parquet", schema):
            problems.append(f"{table}.jsonl and {table}.parquet differ")
    problems += _wrong_ids(release_dir, **tables)
    problems += _wrong_metadata(release_dir, {table: len(rows) for table, rows in tables.items()})
    if problems:
        raise ReleaseError(_listed(release_dir, problems))
    counts = {table: len(rows) for table, rows in tables.items()}
    counts["turns"] = sum(len(dialogue.turns) for dialogue in tables["dialogues"])
    counts["images"] = sum(bool(meme.file) for meme in tables["memes"])
    return counts


def _listed(folder: Path, problems: Sequence[str]) -> str:
    more = f"\n... and {len(problems) - 20} more" if len(problems) > 20 else ""
    return f"{folder.name}: {len(problems)} problems\n" + "\n".join(problems[:20]) + more


def _wrong_files(folder: Path) -> list[str]:
    if not (folder / SUMS).is_file():
        return [f"{SUMS} is missing"]
    lines = (folder / SUMS).read_text(encoding="utf-8").splitlines()
    said = {path: digest for digest, _, path in (line.partition("  ") for line in lines)}
    found = sums(folder)
    problems = [f"{path}: listed but missing" for path in sorted(said.keys() - found.keys())]
    problems += [f"{path}: not listed in {SUMS}" for path in sorted(found.keys() - said.keys())]
    both = sorted(said.keys() & found.keys())
    problems += [f"{path}: checksum differs" for path in both if said[path] != found[path]]
    needed = ["README.md", "LICENSE.md", "croissant.json"]
    needed += [f"{table}.{kind}" for table in TABLES for kind in ("jsonl", "parquet")]
    return problems + [f"{path}: missing" for path in needed if path not in found]


def _wrong_ids(
    folder: Path,
    dialogues: Sequence[schemas.Dialogue],
    memes: Sequence[ReleaseMeme],
    placements: Sequence[schemas.Placement],
) -> list[str]:
    problems = []
    for kind, ids in (
        ("dialogue", [d.dialogue_id for d in dialogues]),
        ("meme", [m.meme_id for m in memes]),
        ("placement", [(p.dialogue_id, p.turn, p.strategy) for p in placements]),
    ):
        problems += [f"{kind} {key!r} stands twice" for key, count in Counter(ids).items() if count > 1]
    speakers = {(d.dialogue_id, t.turn): t.speaker for d in dialogues for t in d.turns}
    for dialogue in dialogues:
        for summary in dialogue.summaries:
            if speakers.get((dialogue.dialogue_id, summary.turn)) != summary.speaker:
                problems.append(f"summary of {dialogue.dialogue_id} turn {summary.turn}: no such turn")
    known = {meme.meme_id for meme in memes}
    for p in placements:
        if speakers.get((p.dialogue_id, p.turn)) != p.speaker:
            problems.append(f"placement at {p.dialogue_id} turn {p.turn}: no such turn of {p.speaker}")
        if p.meme_id not in known:
            problems.append(f"placement at {p.dialogue_id} turn {p.turn}: no meme {p.meme_id}")
    named = {meme.file for meme in memes if meme.file}
    there = {f"images/{path.name}" for path in (folder / "images").glob("*")}
    problems += [f"{path}: missing" for path in sorted(named - there)]
    return problems + [f"{path}: belongs to no meme" for path in sorted(there - named)]


def _wrong_metadata(folder: Path, counts: Mapping[str, int]) -> list[str]:
    card = (folder / "README.md").read_text(encoding="utf-8")
    header = yaml.safe_load(card.split("---\n")[1])
    said = {info["config_name"]: info["splits"][0]["num_examples"] for info in header["dataset_info"]}
    problems = [
        f"README.md says {said.get(t)} {t}, there are {n}" for t, n in counts.items() if said.get(t) != n
    ]
    metadata = json.loads((folder / "croissant.json").read_text(encoding="utf-8"))
    stated = {item["@id"]: item["sha256"] for item in metadata["distribution"]}
    found = {path: digest for path, digest in sums(folder).items() if path != "croissant.json"}
    problems += [
        f"croissant.json: {p}" for p in sorted(stated.keys() | found.keys()) if stated.get(p) != found.get(p)
    ]
    return problems
