"""What a release says of itself: the dataset card with its numbers, and the licence note."""

import json
import re
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
import pyarrow as pa
import yaml

from memecmd_utils import schemas
from memecmd_utils.core import html, storage
from memecmd_utils.release import tables as release_tables
from memecmd_utils.schemas import describe_source

PAPER_URL = "https://arxiv.org/abs/2507.00891"
CC_BY = "https://creativecommons.org/licenses/by/4.0/"
CC_BY_SA = "https://creativecommons.org/licenses/by-sa/4.0/"
_SIZES = ((1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (1_000_000, "100K<n<1M"))


class Hub(NamedTuple):
    """What the hub shows of a kind of dataset beside its tables."""

    language: str
    main: str
    """The table that is loaded when none is named; its records give the size."""
    tasks: tuple[str, ...]
    tags: tuple[str, ...]
    annotators: tuple[str, ...] = ("machine-generated",)
    writers: tuple[str, ...] = ("machine-generated",)
    """Who wrote the texts, in the hub's words."""


DIALOGUES = Hub("zh", "dialogues", ("text-generation", "text-retrieval"), ("dialogue", "memes", "multimodal"))


@lru_cache(maxsize=1)
def _environment() -> jinja2.Environment:
    # Markdown, not HTML: values are counts, names of strategies and models; `plain` keeps these inert.
    found = jinja2.Environment(
        loader=jinja2.FileSystemLoader(html.TEMPLATES, encoding="utf-8"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    found.filters["plain"] = plain
    return found


def plain(text: str) -> str:
    """A name that stays one word of a Markdown page: no markup, cell border, code mark or line end."""
    return re.sub(r"[\s|`<>\[\]*\\]+", " ", text).strip()


def provenance(
    dialogues: Sequence[schemas.Dialogue],
    placements: Sequence[schemas.Placement],
    memes: Iterable[schemas.Meme],
    annotations: Sequence[schemas.Annotation],
    marks: Sequence[schemas.Mark] = (),
    grades: Sequence[schemas.Grade] = (),
) -> list[dict[str, Any]]:
    """Count the records of each kind by their source, most frequent first."""
    kinds: dict[str, Iterable[schemas.Record]] = {
        "utterances": (turn for dialogue in dialogues for turn in dialogue.turns),
        "turn summaries": (summary for dialogue in dialogues for summary in dialogue.summaries),
        "meme images": memes,
        "meme annotations": annotations,
        "meme placements": placements,
        "marks": marks,
        "grades": grades,
    }
    rows = []
    for kind, records in kinds.items():
        counts = Counter(record.source for record in records)
        for source, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
            rows.append({"kind": kind, "source": source, "count": count, "words": describe_source(source)})
    return rows


TEXTS = ("utterances", "turn summaries", "meme annotations", "marks", "grades")
"""Kinds of records that somebody wrote; pictures and computed numbers are licensed apart."""


def licences(memes: Sequence[schemas.Meme], sources: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Collect what the licence note needs: licences of pictures, and whose texts there are."""
    texts = {row["source"] for row in sources if row["kind"] in TEXTS}
    pictures = Counter(meme.licence for meme in memes)
    others = sorted(name for name in pictures if name and "BY-SA" not in name.upper())
    models = sorted(texts - {"authored", "computed"})
    by_sa = any("BY-SA" in name.upper() for name in pictures)
    unknown = pictures.get("", 0)
    tags = ["cc-by-sa-4.0"] * by_sa + ["cc-by-4.0"] * ("authored" in texts)
    tags += ["other"] * bool(others or models or unknown)
    urls = [CC_BY_SA] * by_sa + [CC_BY] * ("authored" in texts)
    return {
        "by_sa": by_sa,
        "authored": "authored" in texts,
        "others": others,
        "models": models,
        "unknown": unknown,
        "tags": tags or ["other"],
        "urls": urls or ["LICENSE.md"],
        "parts": _licence_parts(pictures, sources),
    }


def _licence_parts(
    pictures: Mapping[str, int], sources: Sequence[Mapping[str, Any]]
) -> list[tuple[str, str]]:
    """Part of the release and its licence, in words, a row each."""
    rows = [
        (f"pictures: {count:,}", f"{plain(name)}" if name else "none stated: the rights are yours to check")
        for name, count in sorted(pictures.items(), reverse=True)
    ]
    by_source: dict[str, list[str]] = {}
    for row in sources:
        if row["kind"] in TEXTS:
            by_source.setdefault(row["source"], []).append(row["kind"])
    for source, kinds in by_source.items():
        terms = "CC BY 4.0" if source == "authored" else "the terms of the model and of its provider"
        rows.append((f"{', '.join(kinds)} (`{plain(source)}`)", terms))
    rows.append(("placements: ids and computed numbers", "no rights are claimed in them"))
    return [*rows, ("code that made this release, not part of it", "MIT")]


def statistics_of(
    dialogues: Sequence[schemas.Dialogue],
    memes: Sequence[schemas.Meme],
    annotations: Sequence[schemas.Annotation],
    placements: Sequence[schemas.Placement],
    marks: Sequence[schemas.Mark] = (),
    grades: Sequence[schemas.Grade] = (),
) -> dict[str, list[tuple[str, ...]]]:
    """The numbers of the card: rows of printed cells for sizes, strategies, marks and grades."""
    turns = [turn for dialogue in dialogues for turn in dialogue.turns]
    summaries = [summary for dialogue in dialogues for summary in dialogue.summaries]
    kinds = Counter(dialogue.kind for dialogue in dialogues)
    bigrams = [turn.text[i : i + 2] for turn in turns for i in range(len(turn.text) - 1)]
    sizes = [
        ("dialogues", f"{len(dialogues):,} ({kinds['news']:,} from news, {kinds['role']:,} from role pairs)"),
        ("turns", f"{len(turns):,}"),
        ("turns of a dialogue", spread([len(dialogue.turns) for dialogue in dialogues])),
        ("characters of an utterance", spread([len(turn.text) for turn in turns])),
        ("distinct character pairs (distinct-2)", _share(len(set(bigrams)), len(bigrams))),
        (
            "turns that still break a rule of the prompts",
            _share(sum(bool(t.violations) for t in turns), len(turns)),
        ),
        ("turn summaries", _scored(summaries)),
        ("memes", f"{len(memes):,}, {sum(bool(meme.file) for meme in memes):,} with their picture"),
        ("memes with text on them", _share(sum(bool(meme.text) for meme in memes), len(memes))),
        ("meme annotations", _scored(annotations)),
        ("memes placed by any strategy", _share(len({p.meme_id for p in placements}), len(memes))),
    ]
    chances = len(turns) - len(dialogues)
    strategies = []
    for strategy in dict.fromkeys(placement.strategy for placement in placements):
        mine = [placement for placement in placements if placement.strategy == strategy]
        used = len({placement.meme_id for placement in mine})
        strategies.append((plain(strategy), f"{len(mine):,}", _percent(len(mine), chances), f"{used:,}"))
    return {
        "sizes": sizes,
        "strategies": strategies,
        "marks": [_mark_row(marker, marks) for marker in sorted({mark.marker for mark in marks})],
        "grades": [_grade_row(grader, grades) for grader in sorted({grade.grader for grade in grades})],
    }


def _mark_row(marker: str, marks: Sequence[schemas.Mark]) -> tuple[str, ...]:
    mine = [mark for mark in marks if mark.marker == marker]
    named = statistics.fmean(len(mark.best) for mark in mine)
    sent = _percent(sum(mark.send for mark in mine), len(mine))
    return plain(marker), f"{len(mine):,}", sent, f"{named:.2f}"


def _grade_row(grader: str, grades: Sequence[schemas.Grade]) -> tuple[str, ...]:
    mine = [grade for grade in grades if grade.grader == grader]
    of_turns = len({(grade.dialogue_id, grade.turn) for grade in mine})
    counts = Counter(grade.grade for grade in mine)
    shares = (_percent(counts[value], len(mine)) for value in (0, 1, 2))
    return plain(grader), f"{len(mine):,}", f"{of_turns:,}", *shares


def spread(values: Sequence[int]) -> str:
    """Mean, median and range of whole numbers in words."""
    if not values:
        return "none"
    mean, middle = statistics.fmean(values), statistics.median(values)
    return f"mean {mean:.1f}, median {middle:g}, {min(values):,} to {max(values):,}"


def _share(part: int, whole: int) -> str:
    return f"{part:,} of {whole:,} ({_percent(part, whole)})"


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "–"


def _scored(records: Sequence[schemas.Summary | schemas.Annotation]) -> str:
    return (
        f"{len(records):,}, of which {sum(bool(r.unscored) for r in records):,} came to nothing (`unscored`)"
    )


def header(
    name: str,
    licence_tags: Sequence[str],
    rows: Mapping[str, int],
    sizes: Mapping[str, int],
    hub: Hub = DIALOGUES,
) -> str:
    """The card's YAML: what the hub shows, and for `datasets.load_dataset` a configuration a table.

    `rows` and `sizes`: records and bytes of Parquet by table. `datasets` refuses a table without records, so
    such a one gets no configuration.
    """
    filled = {table: count for table, count in rows.items() if count}
    values = {
        "pretty_name": name,
        "language": [hub.language],
        "license": list(licence_tags),
        **({"license_name": "see-license-md"} if "other" in licence_tags else {}),
        "license_link": "LICENSE.md",
        "annotations_creators": list(hub.annotators),
        "language_creators": list(hub.writers),
        "size_categories": [size_category(rows[hub.main])],
        "task_categories": list(hub.tasks),
        "tags": list(hub.tags),
        "configs": [
            {"config_name": table, "data_files": f"{table}.parquet"} | ({"default": True} if first else {})
            for table, first in ((table, table == hub.main) for table in filled)
        ],
        "dataset_info": [
            {
                "config_name": table,
                "splits": [{"name": "train", "num_bytes": sizes[table], "num_examples": count}],
            }
            for table, count in filled.items()
        ],
    }
    return yaml.safe_dump(values, allow_unicode=True, sort_keys=False)


def size_category(count: int) -> str:
    """Return the hub's size label for a number of records."""
    return next((label for limit, label in _SIZES if count < limit), "n>1M")


def render(template: str, **values: Any) -> str:
    """Render one of the Markdown templates of a release."""
    return _environment().get_template(template).render(**values)


# --- Croissant metadata of a release: which files there are, and the columns of every table


FILE = "croissant.json"
_CONTEXT: dict[str, Any] = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "citeAs": "cr:citeAs",
    "column": "cr:column",
    "conformsTo": "dct:conformsTo",
    "cr": "http://mlcommons.org/croissant/",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "dct": "http://purl.org/dc/terms/",
    "equivalentProperty": "cr:equivalentProperty",
    "examples": {"@id": "cr:examples", "@type": "@json"},
    "extract": "cr:extract",
    "field": "cr:field",
    "fileProperty": "cr:fileProperty",
    "fileObject": "cr:fileObject",
    "fileSet": "cr:fileSet",
    "format": "cr:format",
    "includes": "cr:includes",
    "isLiveDataset": "cr:isLiveDataset",
    "jsonPath": "cr:jsonPath",
    "key": "cr:key",
    "md5": "cr:md5",
    "parentField": "cr:parentField",
    "path": "cr:path",
    "recordSet": "cr:recordSet",
    "references": "cr:references",
    "regex": "cr:regex",
    "repeated": "cr:repeated",
    "replace": "cr:replace",
    "samplingRate": "cr:samplingRate",
    "sc": "https://schema.org/",
    "separator": "cr:separator",
    "source": "cr:source",
    "subField": "cr:subField",
    "transform": "cr:transform",
}
_FORMATS = {
    ".parquet": "application/x-parquet",
    ".jsonl": "application/jsonlines",
    ".md": "text/markdown",
    ".png": "image/png",
}


def write(
    folder: Path,
    *,
    name: str,
    description: str,
    language: str,
    version: str,
    published: str,
    url: str,
    paper_url: str,
    cite_as: str,
    licence_urls: Sequence[str],
    files: Mapping[str, str],
    tables: Sequence[str],
) -> None:
    """Write Croissant 1.0 metadata of `files` (path to sha256) and `tables`."""
    value: dict[str, Any] = {
        "@context": _CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": "http://mlcommons.org/croissant/1.0",
        "name": name,
        "description": description,
        "version": version,
        "url": url,
        "inLanguage": language,
        "license": list(licence_urls),
        "isBasedOn": paper_url,
        "citeAs": cite_as,
        "creator": {"@type": "sc:Organization", "name": "The MemeCMD developers"},
        "distribution": [
            {
                "@type": "cr:FileObject",
                "@id": path,
                "name": path,
                "contentUrl": path,
                "contentSize": f"{(folder / path).stat().st_size} B",
                "encodingFormat": _FORMATS.get(Path(path).suffix, "application/octet-stream"),
                "sha256": digest,
            }
            for path, digest in sorted(files.items())
        ],
        "recordSet": [_record_set(table) for table in tables],
    }
    if published:
        value["datePublished"] = published
    storage.write_text(folder / FILE, json.dumps(value, ensure_ascii=False, indent=1) + "\n")


def _record_set(table: str) -> dict[str, Any]:
    about = release_tables.about(table)
    keys = [{"@id": f"{table}/{column}"} for column in about.key]
    return {
        "@type": "cr:RecordSet",
        "@id": table,
        "name": table,
        "description": f"One record is {about.words}.",
        "key": keys[0] if len(keys) == 1 else keys,
        "field": [_field(table, f"{table}.parquet", c) for c in release_tables.arrow_schema(table)],
    }


def _field(parent: str, file: str, column: pa.Field, within: str = "") -> dict[str, Any]:
    kind = column.type
    field: dict[str, Any] = {
        "@type": "cr:Field",
        "@id": f"{parent}/{column.name}",
        "name": f"{parent}/{column.name}",
    }
    if pa.types.is_list(kind):
        field["repeated"] = True
        kind = kind.value_type
    if kind == release_tables.IMAGE:
        source = {"fileObject": {"@id": file}, "extract": {"column": column.name}}
        return field | {"dataType": "sc:ImageObject", "source": source | {"transform": {"jsonPath": "bytes"}}}
    if pa.types.is_struct(kind):
        field["subField"] = [_field(field["@id"], file, inner, column.name) for inner in kind]
        return field
    field["dataType"] = _data_type(kind)
    field["source"] = {"fileObject": {"@id": file}, "extract": {"column": within or column.name}}
    if within:
        field["source"]["transform"] = {"jsonPath": column.name}
    return field


def _data_type(kind: pa.DataType) -> str:
    if pa.types.is_boolean(kind):
        return "sc:Boolean"
    if pa.types.is_integer(kind):
        return "sc:Integer"
    return "sc:Float" if pa.types.is_floating(kind) else "sc:Text"


def problems(folder: Path, files: Mapping[str, str], tables: Sequence[str]) -> list[str]:
    """What the metadata of a release says that is not so: hashes, sizes, tables and columns."""
    try:
        value = json.loads((folder / FILE).read_text(encoding="utf-8"))
        stated = {item["@id"]: (item["sha256"], item["contentSize"]) for item in value["distribution"]}
        sets = {item["@id"]: item["field"] for item in value["recordSet"]}
    except (ValueError, KeyError, TypeError) as error:
        return [f"{FILE} cannot be read: {type(error).__name__} {error}"]
    found = {path: (digest, f"{(folder / path).stat().st_size} B") for path, digest in files.items()}
    wrong = [path for path in sorted(stated.keys() | found.keys()) if stated.get(path) != found.get(path)]
    wanted = {table: _record_set(table)["field"] for table in tables}
    wrong += [f"columns of {name}" for name in sorted(sets | wanted) if sets.get(name) != wanted.get(name)]
    return [f"{FILE}: {what} differs" for what in wrong]
