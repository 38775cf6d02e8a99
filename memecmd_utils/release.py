"""The dataset of a run as a folder that can be passed on."""

import json
import re
import shutil
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel

from memecmd_utils import __version__, dataset_card, profiles, schemas, storage
from memecmd_utils.release_check import SUMS, TABLES, ReleaseError, ReleaseMeme, check_release, sums

__all__ = ["TABLES", "ReleaseError", "ReleaseMeme", "arrow_schema", "check_release", "write_release"]

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
    include_user_images: bool = False,
    published: str = "",
    url: str = dataset_card.PAPER_URL,
) -> dict[str, int]:
    """Write the dataset of a run and return the number of records of each kind.

    The folder is made beside the old one, checked with `check_release`, and only then takes its place.
    Images without a licence are left out unless `include_user_images`. `published` is an ISO date.
    """
    if release_dir.exists() and any(release_dir.iterdir()) and not (release_dir / SUMS).is_file():
        raise ReleaseError(f"{release_dir} holds something that is not a release; it is left as it is")
    part = release_dir.with_name(f".{release_dir.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    try:
        rows = _memes_with_annotations(run_dir, part, memes, annotations, include_user_images)
        records = {"dialogues": dialogues, "memes": rows, "placements": placements}
        for table, (schema, _) in TABLES.items():
            storage.write_jsonl(part / f"{table}.jsonl", records[table])
            _write_parquet(part / f"{table}.parquet", records[table], schema)
        sources = dataset_card.provenance(dialogues, placements, memes, annotations)
        _write_texts(part, records, sources, profile, published, url)
        counts = check_release(part)
        if release_dir.exists():
            shutil.rmtree(release_dir)
        part.rename(release_dir)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return counts


def _memes_with_annotations(
    run_dir: Path,
    part: Path,
    memes: Sequence[schemas.Meme],
    annotations: Sequence[schemas.Annotation],
    include_user_images: bool,
) -> list[ReleaseMeme]:
    by_id = {annotation.meme_id: annotation for annotation in annotations}
    unknown = sorted(set(by_id) - {meme.meme_id for meme in memes})
    if unknown:
        raise ReleaseError(f"annotations of memes that are not in the library: {unknown[:5]}")
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
        values = {**meme.model_dump(), "file": file}
        annotation = by_id.get(meme.meme_id)
        if annotation:
            wanted = {"s_plus", "s_minus", "emotion", "motivation", "unscored"}
            values |= annotation.model_dump(include=wanted)
            values["annotation_source"] = annotation.source
            values["annotation_prompt_sha256"] = annotation.prompt_sha256
        rows.append(ReleaseMeme(**values))
    return rows


def _write_texts(
    part: Path,
    records: Mapping[str, Sequence[Any]],
    sources: list[dict[str, Any]],
    profile: profiles.Profile,
    published: str,
    url: str,
) -> None:
    left_out = sum(not meme.file for meme in records["memes"])
    licence = dataset_card.licences(records["memes"], sources)
    name = f"MemeCMD {profile.name}"
    tables = [
        {
            "name": table,
            "rows": len(records[table]),
            "bytes": (part / f"{table}.parquet").stat().st_size,
            "words": words,
        }
        for table, (_, words) in TABLES.items()
    ]
    card = dataset_card.render(
        "dataset_card.md.j2",
        pretty_name=name,
        licence=licence,
        size=dataset_card.size_category(len(records["dialogues"])),
        tables=tables,
        version=__version__,
        profile=profile,
        paper_url=dataset_card.PAPER_URL,
        sources=sources,
        n_images=len(records["memes"]) - left_out,
        n_left_out=left_out,
        strategies=sorted({placement.strategy for placement in records["placements"]}),
    )
    storage.write_text(part / "README.md", card)
    note = dataset_card.render(
        "dataset_licence.md.j2",
        licence=licence,
        n_left_out=left_out,
        by_sa_url=dataset_card.CC_BY_SA,
        by_url=dataset_card.CC_BY,
    )
    storage.write_text(part / "LICENSE.md", note)
    description = "Chinese multi-turn dialogues with contextually retrieved memes. " + " ".join(
        f"{row['count']} {row['kind']}: {row['words']}." for row in sources
    )
    metadata = dataset_card.croissant(
        name=name,
        description=description,
        version=__version__,
        published=published,
        url=url,
        licence_urls=licence["urls"],
        files=sums(part),
        tables={table: arrow_schema(schema) for table, (schema, _) in TABLES.items()},
    )
    storage.write_text(part / "croissant.json", json.dumps(metadata, ensure_ascii=False, indent=1) + "\n")
    lines = (f"{digest}  {path}\n" for path, digest in sorted(sums(part).items()))
    storage.write_text(part / SUMS, "".join(lines))


def arrow_schema(schema: type[BaseModel]) -> pa.Schema:
    """Columns of a pydantic model. Stated, not guessed from the rows: a column of nulls keeps its type."""
    return pa.schema([(name, _arrow(info.annotation)) for name, info in schema.model_fields.items()])


def _arrow(annotation: Any) -> pa.DataType:
    origin, inside = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (types.UnionType, typing.Union):
        return _arrow(next(kind for kind in inside if kind is not type(None)))
    if origin is typing.Annotated:
        return _arrow(inside[0])
    if origin is typing.Literal:
        return _arrow(type(inside[0]))
    if origin is list:
        return pa.list_(_arrow(inside[0]))
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return pa.struct([(n, _arrow(i.annotation)) for n, i in annotation.model_fields.items()])
    plain = {str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_()}
    if annotation not in plain:
        raise TypeError(f"no Parquet column type for {annotation!r}")
    return plain[annotation]


def _write_parquet(target: Path, records: Iterable[BaseModel], schema: type[BaseModel]) -> None:
    rows = [record.model_dump(mode="json") for record in records]
    with storage.atomic_path(target) as part:
        pq.write_table(pa.Table.from_pylist(rows, schema=arrow_schema(schema)), part)
