"""The kinds of release: their tables with columns, keys and origin, as Parquet and as Croissant metadata."""

import json
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel

from memecmd_utils import __version__, files, schemas
from memecmd_utils.files import write_text


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


class Dataset(NamedTuple):
    """What all releases of one kind have in common."""

    tables: dict[str, Table]
    main: str
    """The table that is loaded when none is named; its records give the size."""
    stage: str
    """The notebook that writes what is said of the tables."""
    language: str
    tasks: tuple[str, ...]
    tags: tuple[str, ...]
    writers: tuple[str, ...]
    """Who wrote the texts, in the hub's words."""
    paper: str
    paper_url: str
    card: str
    """Template of the card."""
    licence: str
    """Template of the licence note."""


DATASETS = {
    "dialogues": Dataset(
        tables={
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
        },
        main="dialogues",
        stage="06_figures",
        language="zh",
        tasks=("text-generation", "text-retrieval"),
        tags=("dialogue", "memes", "multimodal"),
        writers=("machine-generated",),
        paper="MemeCMD, arXiv 2507.00891",
        paper_url="https://arxiv.org/abs/2507.00891",
        card="dataset_card.md.j2",
        licence="dataset_licence.md.j2",
    ),
    "templates": Dataset(
        tables={
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
                "what one annotator says of a meme: two captions, the embedded text, literary devices, "
                "an emotion",
                ("meme_id", "source", "prompt", "context"),
                "07_template_memes",
                ("cm50", "template_memes.jsonl", "templates.jsonl"),
                optional=True,
            ),
        },
        main="template_memes",
        stage="07_template_memes",
        language="en",
        tasks=("text-retrieval", "text-classification"),
        tags=("memes", "templates"),
        writers=("found", "machine-generated"),
        paper="CM50 and mtrCLIP, arXiv 2501.13851",
        paper_url="https://arxiv.org/abs/2501.13851",
        card="template_card.md.j2",
        licence="template_licence.md.j2",
    ),
}
"""Kinds of release by name."""
TABLES = {name: table for dataset in DATASETS.values() for name, table in dataset.tables.items()}
"""The tables of all kinds; no two have one name."""
IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
"""How the `datasets` package stores a picture in Parquet."""
_ROWS, _PICTURE_ROWS = 10_000, 100
"""Rows of a group: with pictures few, so that neither writer nor reader holds all of them at once."""


# --- Parquet


def arrow_schema(table: str) -> pa.Schema:
    """Columns of a table. Stated, not guessed from the rows: a column of nulls keeps its type.

    The note `huggingface` makes `datasets.load_dataset` give pictures and not their bytes.
    """
    schema = TABLES[table].schema
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
        return pa.struct([(name, _arrow(info.annotation)) for name, info in annotation.model_fields.items()])
    return {str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_()}[annotation]


def write_table(folder: Path, table: str, records: Sequence[schemas.Record]) -> None:
    """Write a table as JSON Lines and as Parquet; pictures are taken from `images/` in the folder."""
    files.write_jsonl(folder / f"{table}.jsonl", records)
    columns = arrow_schema(table)
    step = _PICTURE_ROWS if "image" in columns.names else _ROWS
    with files.atomic_path(folder / f"{table}.parquet") as part, pq.ParquetWriter(part, columns) as writer:
        for first in range(0, len(records), step):
            rows = [record.model_dump(mode="json") for record in records[first : first + step]]
            if "image" in columns.names:
                for row in rows:
                    row["image"] = stored_image(folder, row["file"])
            writer.write_table(pa.Table.from_pylist(rows, schema=columns))


def stored_image(folder: Path, file: str) -> dict[str, Any] | None:
    """A picture of the folder as the column `image` holds it; None where there is none."""
    return {"bytes": (folder / file).read_bytes(), "path": file} if file else None


def read_parquet(folder: Path, table: str) -> list[schemas.Record]:
    """Records of a table's Parquet file, without the pictures."""
    schema = TABLES[table].schema
    rows = pq.read_table(folder / f"{table}.parquet", columns=list(schema.model_fields), partitioning=None)
    return [schema.model_validate(row) for row in rows.to_pylist()]


def read_images(folder: Path) -> Iterator[tuple[str, str, dict[str, Any] | None]]:
    """Meme id, file and stored picture of every row of `memes.parquet`, a group of rows at a time."""
    with pq.ParquetFile(folder / "memes.parquet") as file:
        for batch in file.iter_batches(_PICTURE_ROWS, columns=["meme_id", "file", "image"]):
            for row in batch.to_pylist():
                yield row["meme_id"], row["file"], row["image"]


# --- Croissant


CROISSANT = "croissant.json"
_CONTEXT_TERMS = (
    "@language @vocab citeAs column conformsTo cr rai data dataType dct equivalentProperty examples extract "
    "field fileProperty fileObject fileSet format includes isLiveDataset jsonPath key md5 parentField path "
    "recordSet references regex repeated replace samplingRate sc separator source subField transform"
)
_FOREIGN_TERMS: dict[str, Any] = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "conformsTo": "dct:conformsTo",
    "cr": "http://mlcommons.org/croissant/",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "dct": "http://purl.org/dc/terms/",
    "examples": {"@id": "cr:examples", "@type": "@json"},
    "sc": "https://schema.org/",
}
_CONTEXT = {term: _FOREIGN_TERMS.get(term, f"cr:{term}") for term in _CONTEXT_TERMS.split()}
"""The context that Croissant 1.0 prescribes."""
_FORMATS = {
    ".parquet": "application/x-parquet",
    ".jsonl": "application/jsonlines",
    ".md": "text/markdown",
    ".png": "image/png",
}


def write_croissant(
    folder: Path,
    dataset: Dataset,
    name: str,
    summary: str,
    licence_urls: Sequence[str],
    files: Mapping[str, str],
    tables: Sequence[str],
    published: str,
) -> None:
    """Write Croissant 1.0 metadata of `files` (path to sha256) and `tables`; `published`: a date or empty."""
    value: dict[str, Any] = {
        "@context": _CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": "http://mlcommons.org/croissant/1.0",
        "name": name,
        "description": summary,
        "version": __version__,
        "url": dataset.paper_url,
        "inLanguage": dataset.language,
        "license": list(licence_urls),
        "isBasedOn": dataset.paper_url,
        "citeAs": f"{dataset.paper}, {dataset.paper_url}",
        "creator": {"@type": "sc:Organization", "name": "The MemeCMD developers"},
        "distribution": [
            {
                "@type": "cr:FileObject",
                "@id": path,
                "name": path,
                "contentUrl": path,
                "contentSize": _content_size(folder / path),
                "encodingFormat": _FORMATS.get(Path(path).suffix, "application/octet-stream"),
                "sha256": digest,
            }
            for path, digest in sorted(files.items())
        ],
        "recordSet": [_record_set(table) for table in tables],
    }
    if published:
        value["datePublished"] = published
    write_text(folder / CROISSANT, json.dumps(value, ensure_ascii=False, indent=1) + "\n")


def _content_size(file: Path) -> str:
    return f"{file.stat().st_size} B"


def _record_set(table: str) -> dict[str, Any]:
    keys = [{"@id": f"{table}/{column}"} for column in TABLES[table].key]
    return {
        "@type": "cr:RecordSet",
        "@id": table,
        "name": table,
        "description": f"One record is {TABLES[table].words}.",
        "key": keys[0] if len(keys) == 1 else keys,
        "field": [_field(table, f"{table}.parquet", column) for column in arrow_schema(table)],
    }


def _field(parent: str, file: str, column: pa.Field, within: str = "") -> dict[str, Any]:
    """A column, or a part of the column `within`."""
    kind = column.type
    name = f"{parent}/{column.name}"
    field: dict[str, Any] = {"@type": "cr:Field", "@id": name, "name": name}
    if pa.types.is_list(kind):
        field["repeated"] = True
        kind = kind.value_type
    source = {"fileObject": {"@id": file}, "extract": {"column": within or column.name}}
    if kind == IMAGE:
        return field | {"dataType": "sc:ImageObject", "source": source | {"transform": {"jsonPath": "bytes"}}}
    if pa.types.is_struct(kind):
        return field | {"subField": [_field(name, file, inner, column.name) for inner in kind]}
    if within:
        source["transform"] = {"jsonPath": column.name}
    return field | {"dataType": _data_type(kind), "source": source}


def _data_type(kind: pa.DataType) -> str:
    if pa.types.is_boolean(kind):
        return "sc:Boolean"
    if pa.types.is_integer(kind):
        return "sc:Integer"
    return "sc:Float" if pa.types.is_floating(kind) else "sc:Text"


def croissant_problems(folder: Path, files: Mapping[str, str], tables: Sequence[str]) -> list[str]:
    """What the metadata of a release says that is not so: hashes, sizes, tables and columns."""
    try:
        value = json.loads((folder / CROISSANT).read_text(encoding="utf-8"))
        stated = {item["@id"]: (item["sha256"], item["contentSize"]) for item in value["distribution"]}
        fields = {item["@id"]: item["field"] for item in value["recordSet"]}
    except (ValueError, KeyError, TypeError) as error:
        return [f"{CROISSANT} cannot be read: {type(error).__name__} {error}"]
    actual = {path: (digest, _content_size(folder / path)) for path, digest in files.items()}
    wrong = [path for path in sorted(stated.keys() | actual.keys()) if stated.get(path) != actual.get(path)]
    expected = {table: _record_set(table)["field"] for table in tables}
    wrong += [
        f"columns of {table}"
        for table in sorted(fields | expected)
        if fields.get(table) != expected.get(table)
    ]
    return [f"{CROISSANT}: {name} differs" for name in wrong]
