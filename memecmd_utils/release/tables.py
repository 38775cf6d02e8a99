"""The tables of a release: their columns, keys and origin, and their Parquet form with pictures inside."""

import json
import types
import typing
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel

from memecmd_utils import schemas
from memecmd_utils.core import storage


class ReleaseMeme(schemas.Meme):
    """A meme of a release. `file` is empty where the image may not be passed on."""

    file: str


class Table(NamedTuple):
    """What one table of a release holds, and where it comes from."""

    schema: type[schemas.Record]
    words: str
    """What one record is."""
    key: tuple[str, ...]
    """Columns that together name a record."""
    stage: str
    made_from: tuple[str, ...]
    """Files of the run (or of the example corpus) that it is made from."""
    optional: bool = False
    """Left out everywhere when there are no records."""


TABLES: dict[str, Table] = {
    "memes": Table(
        ReleaseMeme,
        "a meme with its text; its picture stands in the Parquet column `image`",
        ("meme_id",),
        "01_library_build",
        ("memes.parquet", "memes/"),
    ),
    "annotations": Table(
        schemas.Annotation,
        "what is said of a meme: S+, S-, E, Psi, or why there is no annotation",
        ("meme_id",),
        "02_annotation",
        ("annotations.parquet",),
    ),
    "dialogues": Table(
        schemas.Dialogue,
        "a session: its turns, and a summary for every turn from the second",
        ("dialogue_id",),
        "03_dialogue_generation",
        ("dialogues.jsonl",),
    ),
    "placements": Table(
        schemas.Placement,
        "a meme that a strategy puts at a turn",
        ("dialogue_id", "turn", "strategy"),
        "04_retrieval",
        ("placements.parquet",),
    ),
    "marks": Table(
        schemas.Mark,
        "what one marker says of a turn: whether to send a meme there, and which fit best",
        ("dialogue_id", "turn", "marker"),
        "ground truth",
        ("data/example/marks.jsonl",),
        optional=True,
    ),
    "grades": Table(
        schemas.Grade,
        "how well one pooled meme fits at one turn (0, 1, 2), as one grader says",
        ("dialogue_id", "turn", "meme_id", "grader"),
        "ground truth",
        ("data/example/grades.jsonl",),
        optional=True,
    ),
}
TEMPLATE_TABLES: dict[str, Table] = {
    "templates": Table(
        schemas.TemplateInfo,
        "a template: its names, what it means, and the address of its blank picture",
        ("template",),
        "07_template_memes",
        ("imgflip", "cm50"),
    ),
    "template_memes": Table(
        schemas.TemplateMeme,
        "a meme of a template: its address, title, numbers and captions, and the half it belongs to",
        ("meme_id",),
        "07_template_memes",
        ("imgflip", "cm50"),
    ),
    "readings": Table(
        schemas.MemeReading,
        "what one annotator says of a meme: two captions, the embedded text, literary devices, an emotion",
        ("meme_id", "source", "prompt", "context"),
        "07_template_memes",
        ("cm50", "template_memes.jsonl", "templates.jsonl"),
        optional=True,
    ),
}


class Dataset(NamedTuple):
    """A kind of release: its tables, and the notebook that writes what is said of them."""

    tables: dict[str, Table]
    stage: str


DATASETS = {
    "dialogues": Dataset(TABLES, "06_figures"),
    "templates": Dataset(TEMPLATE_TABLES, "07_template_memes"),
}
"""Kinds of release by name. No two have a table of one name."""
IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
"""How the `datasets` package stores a picture in Parquet."""
_ROWS, _PICTURE_ROWS = 10_000, 100
"""Rows of a group: with pictures few, so that neither writer nor reader holds all of them at once."""


def about(table: str) -> Table:
    """What is known of a table of any kind of release; `KeyError` for an unknown name."""
    return {name: found for kind in DATASETS.values() for name, found in kind.tables.items()}[table]


def arrow_schema(table: str) -> pa.Schema:
    """Columns of a table. Stated, not guessed from the rows: a column of nulls keeps its type.

    The note `huggingface` makes `datasets.load_dataset` give pictures and not their bytes.
    """
    schema = about(table).schema
    columns = [(name, _arrow(info.annotation)) for name, info in schema.model_fields.items()]
    if schema is not ReleaseMeme:
        return pa.schema(columns)
    note = json.dumps({"info": {"features": {"image": {"_type": "Image"}}}})
    return pa.schema([*columns, ("image", IMAGE)], metadata={"huggingface": note})


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


def write(folder: Path, table: str, records: Sequence[schemas.Record]) -> None:
    """Write a table as JSON Lines and as Parquet; pictures are taken from `images/` in the folder."""
    storage.write_jsonl(folder / f"{table}.jsonl", records)
    columns = arrow_schema(table)
    step = _PICTURE_ROWS if "image" in columns.names else _ROWS
    with storage.atomic_path(folder / f"{table}.parquet") as part, pq.ParquetWriter(part, columns) as writer:
        for first in range(0, len(records), step):
            rows = [record.model_dump(mode="json") for record in records[first : first + step]]
            if "image" in columns.names:
                for row in rows:
                    row["image"] = _image(folder, row["file"])
            writer.write_table(pa.Table.from_pylist(rows, schema=columns))


def _image(folder: Path, file: str) -> dict[str, Any] | None:
    return {"bytes": (folder / file).read_bytes(), "path": file} if file else None


def read_parquet(folder: Path, table: str) -> list[schemas.Record]:
    """Records of a table's Parquet file, without the pictures."""
    schema = about(table).schema
    rows = pq.read_table(folder / f"{table}.parquet", columns=list(schema.model_fields), partitioning=None)
    return [schema.model_validate(row) for row in rows.to_pylist()]


def read_images(folder: Path) -> Iterator[tuple[str, str, dict[str, Any] | None]]:
    """Meme id, file and stored picture of every row of `memes.parquet`, a group of rows at a time."""
    with pq.ParquetFile(folder / "memes.parquet") as file:
        for batch in file.iter_batches(_PICTURE_ROWS, columns=["meme_id", "file", "image"]):
            for row in batch.to_pylist():
                yield row["meme_id"], row["file"], row["image"]


def sources(records: Sequence[schemas.Record]) -> dict[str, list[str]]:
    """Who made a table's records and with which prompts: distinct sources and prompt hashes."""
    parts = [part for record in records for part in _parts(record)]
    prompts = {part.prompt_sha256 for part in parts} - {""}
    return {"sources": sorted({part.source for part in parts}), "prompt_sha256": sorted(prompts)}


def _parts(record: schemas.Record) -> list[schemas.Record]:
    if isinstance(record, schemas.Dialogue):
        return [record, *record.turns, *record.summaries]
    return [record]
