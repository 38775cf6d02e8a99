"""A dataset as a folder that can be passed on: one writer for every kind, and the dialogues of a run."""

import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from memecmd_utils import (
    __version__,
    croissant,
    dataset_card,
    manifest,
    profiles,
    release_tables,
    safety,
    schemas,
    storage,
)
from memecmd_utils.release_check import ReleaseError, check_release
from memecmd_utils.release_tables import TABLES, ReleaseMeme

__all__ = ["TABLES", "ReleaseError", "ReleaseMeme", "Said", "check_release", "write_dataset", "write_release"]

_PLAIN_NAME = re.compile(r"[\w.-]+")


def write_release(
    run_dir: Path,
    release_dir: Path,
    dialogues: Sequence[schemas.Dialogue],
    placements: Sequence[schemas.Placement],
    memes: Sequence[schemas.Meme],
    annotations: Sequence[schemas.Annotation],
    profile: profiles.Profile,
    *,
    marks: Sequence[schemas.Mark] = (),
    grades: Sequence[schemas.Grade] = (),
    run: str = "",
    models: Mapping[str, Sequence[str]] | None = None,
    include_user_images: bool = False,
    published: str = "",
    url: str = dataset_card.PAPER_URL,
) -> dict[str, int]:
    """Write the dataset of a run and return the number of records of each kind.

    The folder is made beside the old one, checked with `check_release`, and only then takes its place.
    Images without a licence are left out unless `include_user_images`; of a meme that is flagged as unsafe
    only the id and the category are written. `published` is an ISO date.
    `run` is the run's name, the profile's if empty. `models` names models that no record of the release does,
    such as the embedder and the judges, by what they did.
    """
    memes, annotations = safety.releasable(memes, annotations)
    sources = dataset_card.provenance(dialogues, placements, memes, annotations, marks, grades)

    def collect(part: Path) -> dict[str, Sequence[schemas.Record]]:
        return {
            "memes": _copied_memes(run_dir, part, memes, include_user_images),
            "annotations": annotations,
            "dialogues": dialogues,
            "placements": placements,
            "marks": marks,
            "grades": grades,
        }

    return write_dataset(
        release_dir,
        "dialogues",
        collect,
        lambda records: _said(records, sources, profile),
        profile,
        run=run,
        models=models,
        inputs=lambda records: manifest.inputs(profile, records),
        published=published,
        url=url,
    )


class Said(NamedTuple):
    """What a release says of itself beyond its tables."""

    name: str
    description: str
    hub: dataset_card.Hub
    paper_url: str
    cite_as: str
    licence: Mapping[str, Any]
    """Among others `tags` and `urls`, as the hub and Croissant name licences."""
    sources: Sequence[Mapping[str, Any]]
    """How many records of which `kind` come from which `source`."""
    card: str
    """Name of the card's template; it gets `values` and what every card shows."""
    note: str
    """Name of the licence note's template."""
    values: Mapping[str, Any]


Records = Mapping[str, Sequence[Any]]


def write_dataset(
    release_dir: Path,
    dataset: str,
    collect: Callable[[Path], Records],
    say: Callable[[Records], Said],
    profile: profiles.Profile,
    *,
    inputs: Callable[[Records], Mapping[str, Mapping[str, str]]],
    run: str = "",
    models: Mapping[str, Sequence[str]] | None = None,
    published: str = "",
    url: str = "",
) -> dict[str, int]:
    """Write a release of any kind of `release_tables.DATASETS`; the counts of `check_release`.

    `collect` gets the new folder, may copy files into it, and returns the records by table; optional tables
    without records are left out. `say` and `inputs` get the records that stay. Made beside the old release,
    checked, and only then put in its place; a folder that is no release is left alone (`ReleaseError`).
    """
    if release_dir.exists() and any(release_dir.iterdir()) and not (release_dir / manifest.SUMS).is_file():
        raise ReleaseError(f"{release_dir} holds something that is not a release; it is left as it is")
    part = release_dir.with_name(f".{release_dir.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    tables = release_tables.DATASETS[dataset].tables
    try:
        records = {name: rows for name, rows in collect(part).items() if rows or not tables[name].optional}
        for table, rows in records.items():
            release_tables.write(part, table, rows)
        said = say(records)
        digests = _write_texts(part, records, said, profile, published, url or said.paper_url)
        named: dict[str, Sequence[str]] = {}
        for row in said.sources:
            named[row["kind"]] = [*named.get(row["kind"], ()), row["source"]]
        manifest.write(
            part,
            records,
            profile,
            run or profile.name,
            {**named, **(models or {})},
            digests,
            dataset=dataset,
            inputs=inputs(records),
        )
        digests[manifest.FILE] = storage.sha256(part / manifest.FILE)
        lines = (f"{digest}  {path}\n" for path, digest in sorted(digests.items()))
        storage.write_text(part / manifest.SUMS, "".join(lines))
        counts = check_release(part)
        if release_dir.exists():
            shutil.rmtree(release_dir)
        part.rename(release_dir)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return counts


def _copied_memes(
    run_dir: Path, part: Path, memes: Sequence[schemas.Meme], include_user_images: bool
) -> list[ReleaseMeme]:
    """Copy the pictures that may be passed on; a meme's `file` then names its copy."""
    (part / "images").mkdir()
    rows = []
    for meme in memes:
        file = ""
        if meme.licence or include_user_images:
            source = run_dir / meme.file
            if not _PLAIN_NAME.fullmatch(meme.meme_id):
                raise ReleaseError(f"meme id {meme.meme_id!r} cannot be a file name")
            file = f"images/{meme.meme_id}{source.suffix.lower()}"
            shutil.copyfile(source, part / file)
        rows.append(ReleaseMeme(**{**meme.model_dump(), "file": file}))
    return rows


def _said(records: Records, sources: Sequence[Mapping[str, Any]], profile: profiles.Profile) -> Said:
    left_out = sum(not meme.file for meme in records["memes"])
    told = " ".join(f"{row['count']} {row['kind']}: {dataset_card.plain(row['words'])}." for row in sources)
    return Said(
        name=f"MemeCMD {profile.name}",
        description=f"Chinese multi-turn dialogues with contextually retrieved memes. {told}",
        hub=dataset_card.DIALOGUES,
        paper_url=dataset_card.PAPER_URL,
        cite_as=f"MemeCMD, arXiv 2507.00891, {dataset_card.PAPER_URL}",
        licence=dataset_card.licences(records["memes"], sources),
        sources=sources,
        card="dataset_card.md.j2",
        note="dataset_licence.md.j2",
        values={
            "meme_position": profile.meme_position,
            "numbers": dataset_card.statistics_of(**records),
            "n_images": len(records["memes"]) - left_out,
            "n_left_out": left_out,
            "n_unsafe": sum(bool(annotation.unsafe) for annotation in records["annotations"]),
            "by_sa_url": dataset_card.CC_BY_SA,
            "by_url": dataset_card.CC_BY,
        },
    )


def _write_texts(
    part: Path, records: Records, said: Said, profile: profiles.Profile, published: str, url: str
) -> dict[str, str]:
    """Write card, licence note and Croissant metadata; returns the SHA-256 of every file so far."""
    rows = {table: len(records[table]) for table in records}
    bytes_of = {table: (part / f"{table}.parquet").stat().st_size for table in records}
    values = {
        "header": dataset_card.header(said.name, said.licence["tags"], rows, bytes_of, said.hub),
        "pretty_name": said.name,
        "licence": said.licence,
        "tables": [
            {"name": table, "rows": rows[table], **release_tables.about(table)._asdict()} for table in records
        ],
        "version": __version__,
        "profile_name": profile.name,
        "paper_url": said.paper_url,
        "sources": said.sources,
        **said.values,
    }
    storage.write_text(part / "README.md", dataset_card.render(said.card, **values))
    storage.write_text(part / "LICENSE.md", dataset_card.render(said.note, **values))
    digests = manifest.sums(part)
    croissant.write(
        part,
        name=said.name,
        description=said.description,
        language=said.hub.language,
        version=__version__,
        published=published,
        url=url,
        paper_url=said.paper_url,
        cite_as=said.cite_as,
        licence_urls=said.licence["urls"],
        files=digests,
        tables=list(records),
    )
    return digests | {croissant.FILE: storage.sha256(part / croissant.FILE)}
