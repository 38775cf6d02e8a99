"""Parts of a run that are made apart, on one machine or on many, and joined again (design, section 8).

Dialogues are independent. A shard makes its part of them and records every reply; the whole run then finds
these replies recorded and makes of them what it would have made alone.
"""

import hashlib
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from memecmd_utils import paths, profiles, schemas, storage
from memecmd_utils.errors import MemecmdError
from memecmd_utils.profiles import Profile, ProfileError
from memecmd_utils.recordings import files_in
from memecmd_utils.runs import Run

DIALOGUES = "dialogues.jsonl"


class ShardError(MemecmdError, ValueError):
    """Shards that cannot be joined: one is missing, or differs from what the whole run made."""


class Shard(NamedTuple):
    """A shard that was made: which of how many, and its folder."""

    number: int
    parts: int
    folder: Path


def of_run(run: Run, number: int, parts: int) -> Run:
    """The run of one shard: its own folder, the whole run's recordings and its one ledger of money."""
    profile = run.profile.model_copy(update={"shard": f"{number}/{parts}", "engine": "local"})
    name = f"{run.name}-shard-{number}-of-{parts}"
    whole = run.folder if run.spends_in is None else run.spends_in
    made = Run(name, profile, paths.processed / name, paths.reports / name, spends_in=whole)
    profiles.write_resolved(profile, made.folder)
    return made


def merge(name: str, settings: str, others: Sequence[Path] = ()) -> list[Shard]:
    """Check that every shard of a profile with these settings is there, and take in their recordings.

    `others` are copies of other machines' project folders, with `data/processed` and `data/raw/recordings`.
    Raises `ShardError` that names the missing shards and how to make them. Merging twice changes nothing.
    """
    profile = _whole(name, settings)
    for other in others:
        if not (other / "data").is_dir():
            raise ShardError(f"{other} is no copy of a project folder: it has no folder data")
    roots = [paths.processed, *(other / "data" / "processed" for other in others)]
    found = complete([shard for root in roots for shard in find(profile, root)], name, settings)
    for other in others:
        take_recordings(other / "data" / "raw" / "recordings" / profile.name, profile.name)
    return found


def check(name: str, settings: str, others: Sequence[Path] = ()) -> int:
    """Number of dialogues of the shards, each of them equal to the whole run's; `ShardError` where not."""
    profile = _whole(name, settings)
    roots = [paths.processed, *(other / "data" / "processed" for other in others)]
    found = complete([shard for root in roots for shard in find(profile, root)], name, settings)
    whole = paths.processed / profiles.run_name(profile) / DIALOGUES
    made = {d.dialogue_id: d for d in storage.iter_jsonl(whole, schemas.Dialogue)}
    n = 0
    for shard in found:
        for dialogue in storage.iter_jsonl(shard.folder / DIALOGUES, schemas.Dialogue):
            n += 1
            if made.get(dialogue.dialogue_id) != dialogue:
                raise ShardError(
                    f"{dialogue.dialogue_id} of shard {shard.number}/{shard.parts} is not the one of the "
                    f"whole run: their recordings differ ({shard.folder})"
                )
    if n != len(made):
        raise ShardError(f"the shards hold {n} dialogues, the whole run {len(made)}")
    return n


def find(profile: Profile, processed: Path) -> Iterator[Shard]:
    """Finished shards of a profile in a folder of runs, by their resolved profile."""
    wanted = _compared(profile.model_dump(mode="json"))
    for path in sorted(processed.glob(f"*/{DIALOGUES}")):
        values = profiles.read_resolved(path.parent)
        if values.get("shard") and _compared(values) == wanted:
            number, parts = map(int, values["shard"].split("/"))
            yield Shard(number, parts, path.parent)


def complete(found: Sequence[Shard], name: str, settings: str = "") -> list[Shard]:
    """One shard of each number, of the smallest split that is complete; `ShardError` where none is."""
    splits: dict[int, dict[int, Shard]] = {}
    for shard in found:
        splits.setdefault(shard.parts, {}).setdefault(shard.number, shard)
    for parts in sorted(splits):
        if len(splits[parts]) == parts:
            return [splits[parts][number] for number in range(1, parts + 1)]
    if not splits:
        raise ShardError(
            f"no finished shard of profile {name} with these settings; make the first of four with "
            f"make reproduce PROFILE={name} SET='{_with(settings, 'shard=1/4')}'"
        )
    parts = max(splits, key=lambda split: len(splits[split]))
    missing = [number for number in range(1, parts + 1) if number not in splits[parts]]
    raise ShardError(
        f"{len(missing)} of {parts} shards are missing ({', '.join(map(str, missing))}); make the first with "
        f"make reproduce PROFILE={name} SET='{_with(settings, f'shard={missing[0]}/{parts}')}'"
    )


def take_recordings(source: Path, profile: str) -> int:
    """Copy another machine's recordings of a profile beside our own; returns how many files were new.

    A file is named by its content, so nothing is taken twice and nothing is written over.
    """
    target, new = paths.raw / "recordings" / profile, 0
    for folder in sorted(path for path in source.rglob("*") if path.is_dir()):
        for path in [*files_in(folder), *files_in(folder, "*.npz")]:
            digest = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
            copy = target / folder.relative_to(source) / f"from-{digest}{path.suffix}"
            if not copy.exists():
                with storage.atomic_path(copy) as part:
                    shutil.copyfile(path, part)
                new += 1
    return new


def _whole(name: str, settings: str) -> Profile:
    profile = profiles.load_profile(name, profiles.parse_settings(settings))
    if profile.shard:
        raise ProfileError("merge joins all shards: leave `shard` out of SET")
    return profile


def _with(settings: str, more: str) -> str:
    return f"{settings} {more}".strip()


def _compared(values: dict[str, Any]) -> dict[str, Any]:
    """Settings by which shards belong together: those that change what a run makes, but for the shard itself.

    Nor does `mode`: shards that were recorded live are also joined by a replay.
    """
    return {key: value for key, value in profiles.what(values).items() if key not in ("shard", "mode")}
