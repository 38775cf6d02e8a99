"""A dataset as a folder that can be passed on: the dialogues of a run, or template memes."""

import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from memecmd_utils import __version__, annotation, files, schemas
from memecmd_utils.release import card, manifest, tables
from memecmd_utils.release.card import Description, Records
from memecmd_utils.release.manifest import ReleaseError, check_release
from memecmd_utils.release.tables import ReleaseMeme
from memecmd_utils.schemas import MemeReading, TemplateInfo, TemplateMeme
from memecmd_utils.settings import Profile

_PLAIN_NAME = re.compile(r"[\w.-]+")


def write_release(
    run_dir: Path,
    release_dir: Path,
    dialogues: Sequence[schemas.Dialogue],
    placements: Sequence[schemas.Placement],
    memes: Sequence[schemas.Meme],
    annotations: Sequence[schemas.Annotation],
    profile: Profile,
    *,
    marks: Sequence[schemas.Mark] = (),
    grades: Sequence[schemas.Grade] = (),
    run: str = "",
    models: Mapping[str, Sequence[str]] | None = None,
    include_user_images: bool = False,
    published: str = "",
    further: Callable[[Path], None] = lambda _: None,
    further_inputs: Sequence[Path] = (),
) -> dict[str, int]:
    """Write the dataset of a run and return the number of records of each kind.

    Images without a licence are left out unless `include_user_images`; of a meme that is flagged as unsafe
    only the id and the category are written. `run` is the run's name, the profile's if empty. `models` names
    models that no record does, such as the embedder and the judges, by what they did. `published` is an ISO
    date. `further` writes what else belongs into the folder, made from `further_inputs` of the corpus.
    Raises `ReleaseError` for records that do not fit together, and as `_in_place_of` does.
    """
    memes, annotations = annotation.releasable(memes, annotations)
    truth = {"marks": marks, "grades": grades}
    with _in_place_of(release_dir) as folder:
        records = {
            "memes": _copied_memes(run_dir, folder, memes, include_user_images),
            "annotations": annotations,
            "dialogues": dialogues,
            "placements": placements,
            **{table: rows for table, rows in truth.items() if rows},
        }
        further(folder)
        described = card.describe_dialogues(records, profile)
        _write_texts(folder, "dialogues", records, described, profile, published)
        manifest.write(
            folder, "dialogues", records, profile, run, _models(described, models),
            manifest.inputs(profile, records, further_inputs),
        )  # fmt: skip
        return check_release(folder)


def write_template_release(
    release_dir: Path,
    infos: Sequence[TemplateInfo],
    memes: Sequence[TemplateMeme],
    readings: Sequence[MemeReading],
    profile: Profile,
    *,
    run: str = "",
    inputs: Mapping[str, str] | None = None,
    published: str = "",
) -> dict[str, int]:
    """Write templates, memes and readings as a release (2501.13851, Section 3); the number of each.

    No image is in it: of a template's blank picture only the address stays. Templates without a meme are left
    out. `inputs` says of each source what state it was in (`cm50.source_states`), `published` is an ISO date.
    Raises `ReleaseError` for records that do not fit together, such as a reading of a meme that is not there.
    """
    used = {meme.template for meme in memes}
    infos = [info.model_copy(update={"picture": ""}) for info in infos if info.template in used]
    records = {"templates": infos, "template_memes": memes, **({"readings": readings} if readings else {})}
    described = card.describe_templates(records, profile)
    with _in_place_of(release_dir) as folder:
        _write_texts(folder, "templates", records, described, profile, published)
        sources = {"prompts": manifest.prompt_hashes("templates"), "sources": dict(inputs or {})}
        manifest.write(folder, "templates", records, profile, run, _models(described), sources)
        return check_release(folder)


@contextmanager
def _in_place_of(release_dir: Path) -> Iterator[Path]:
    """A new folder that takes the place of the old release once all within it went well.

    Raises `ReleaseError` where the folder there holds something else.
    """
    if release_dir.exists() and any(release_dir.iterdir()) and not (release_dir / manifest.SUMS).is_file():
        raise ReleaseError(f"{release_dir} holds something that is not a release; it is left as it is")
    part = release_dir.with_name(f".{release_dir.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    try:
        yield part
        if release_dir.exists():
            shutil.rmtree(release_dir)
        part.rename(release_dir)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _copied_memes(
    run_dir: Path, folder: Path, memes: Sequence[schemas.Meme], include_user_images: bool
) -> list[ReleaseMeme]:
    """Copy the pictures that may be passed on; a meme's `file` then names its copy."""
    (folder / "images").mkdir()
    rows = []
    for meme in memes:
        file = ""
        if meme.licence or include_user_images:
            source = run_dir / meme.file
            if not _PLAIN_NAME.fullmatch(meme.meme_id):
                raise ReleaseError(f"meme id {meme.meme_id!r} cannot be a file name")
            file = f"images/{meme.meme_id}{source.suffix.lower()}"
            shutil.copyfile(source, folder / file)
        rows.append(ReleaseMeme(**{**meme.model_dump(), "file": file}))
    return rows


def _write_texts(
    folder: Path, kind: str, records: Records, described: Description, profile: Profile, published: str
) -> None:
    """Write the tables, the card, the licence note and the Croissant metadata."""
    dataset = tables.DATASETS[kind]
    for table, rows in records.items():
        tables.write_table(folder, table, rows)
    counts = {table: len(rows) for table, rows in records.items()}
    sizes = {table: (folder / f"{table}.parquet").stat().st_size for table in records}
    values = {
        "header": card.header(dataset, described.name, described.licence["tags"], counts, sizes),
        "pretty_name": described.name,
        "licence": described.licence,
        "tables": [
            {"name": table, "rows": counts[table], **dataset.tables[table]._asdict()} for table in records
        ],
        "version": __version__,
        "profile_name": profile.name,
        "paper_url": dataset.paper_url,
        "sources": described.sources,
        "splits": sorted(path.name for path in (folder / "benchmark").glob("*") if (path / "qrels").is_dir()),
        **described.values,
    }
    files.write_text(folder / "README.md", card.render(dataset.card, **values))
    files.write_text(folder / "LICENSE.md", card.render(dataset.licence, **values))
    tables.write_croissant(
        folder, dataset, described.name, described.summary, described.licence["urls"], manifest.sums(folder),
        list(records), published,
    )  # fmt: skip


def _models(
    described: Description, others: Mapping[str, Sequence[str]] | None = None
) -> dict[str, Sequence[str]]:
    """Who made the records of each kind, and `others` that no record names."""
    models: dict[str, Sequence[str]] = {}
    for row in described.sources:
        models[row["kind"]] = [*models.get(row["kind"], ()), row["source"]]
    return {**models, **(others or {})}
