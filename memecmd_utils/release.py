"""Stage 06, the dataset as a folder that others can load: tables, pictures, card, Croissant, checksums."""

import hashlib
import json
import re
import shutil
import types
import typing
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from pydantic import BaseModel

from memecmd_utils import __version__, benchmark, files, schemas, settings, tables
from memecmd_utils.embedders import embedder_of
from memecmd_utils.files import MemecmdError, paths
from memecmd_utils.runs import Run
from memecmd_utils.settings import Profile
from memecmd_utils.splits import splits_of_run

MANIFEST, SUMS, CROISSANT = "manifest.json", "sha256sums.txt", "croissant.json"

Records = Mapping[str, Sequence[Any]]
"""The records of a release by table."""


class ReleaseError(MemecmdError, ValueError):
    """A release whose parts do not fit together; the message lists what is wrong."""


# --- The tables


class Table(NamedTuple):
    """What one table of a release holds."""

    schema: type[schemas.Record]
    key: tuple[str, ...]
    """Columns that together name a record."""
    words: str
    """What one record is."""


TABLES = {
    "memes": Table(schemas.Meme, ("meme_id",), "a meme with its text; its picture is in the column `image`"),
    "annotations": Table(
        schemas.Annotation,
        ("meme_id",),
        "S+, S-, E, Psi of a meme and what the annotator saw, or why there is none",
    ),
    "dialogues": Table(schemas.Dialogue, ("dialogue_id",), "a session: its turns, and their summaries"),
    "placements": Table(schemas.Placement, ("dialogue_id", "turn", "strategy"), "a meme sent at a turn"),
    "marks": Table(schemas.Mark, ("dialogue_id", "turn", "marker"), "whether a marker would send a meme"),
    "grades": Table(schemas.Grade, ("dialogue_id", "turn", "meme_id", "grader"), "how well a meme fits, 0-2"),
}
OPTIONAL = ("marks", "grades")
"""Tables that are left out when there are no records."""
PAPER = "https://arxiv.org/abs/2507.00891"


# --- Writing


def write_release(run: Run, records: Records) -> dict[str, int]:
    """Write `release/` below a run's data, and return the number of records of each kind.

    `records` are those of `TABLES`; pictures without a licence are left out, and a run with grades adds its
    benchmark. The old release stays until the new one is whole. Raises `ReleaseError` for records that do not
    fit together, and where the folder holds something else.
    """
    profile, target, folder = run.profile, run.folder / "release", run.folder / ".release.part"
    if target.exists() and any(target.iterdir()) and not (target / SUMS).is_file():
        raise ReleaseError(f"{target} holds something that is not a release; it is left as it is")
    splits = [split for split in splits_of_run(run) if split.truth.grades]
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        given = {**records, "memes": _copied(records["memes"], run, folder)}
        if splits:
            benchmark.write(folder / "benchmark", [benchmark.build(split) for split in splits])
        records = {name: given[name] for name in TABLES if given[name] or name not in OPTIONAL}
        _demand_none(_problems(records), folder)
        for table, rows in records.items():
            write_table(folder, table, rows)
        sources = provenance(records)
        values = {
            "name": f"MemeCMD {profile.name}",
            "paper": PAPER,
            "profile": profile,
            "version": __version__,
            "stamp": stamp(run),
            "tables": {name: (TABLES[name], len(rows)) for name, rows in records.items()},
            "bytes": {name: (folder / f"{name}.parquet").stat().st_size for name in records},
            "sources": sources,
            "licence": _licences(records, sources),
            "numbers": _statistics(records),
            "strategies": schemas.STRATEGIES,
            "splits": sorted(path.parent.name for path in (folder / "benchmark").glob("*/qrels")),
        }
        # Markdown, not HTML: values are counts, names of strategies and models; `plain` keeps these inert.
        filters = {"plain": plain, "thousands": "{:,}".format, "json": files.dumps}
        environment = files.templates(**filters).overlay(autoescape=False)
        for name, template in (("README.md", "release_card.md.j2"), ("LICENSE.md", "release_licence.md.j2")):
            files.write_text(folder / name, environment.get_template(template).render(**values))
        _write_croissant(folder, values)
        made_by: dict[str, set[str]] = defaultdict(set)
        for row in sources:
            made_by[row["kind"]].add(row["source"])
        # Models that no record of the release names.
        made_by["retrieval embedder"] = {embedder_of(profile, read_dirs=run.read_dirs).name}
        made_by["judges"] = {rating.source for rating in run.load(schemas.Rating)}
        made_by["consistency scorers"] = {row.source for row in run.load(schemas.Consistency)}
        public = public_settings(profile)
        manifest = {
            "package": "memecmd",
            "package_version": __version__,
            "made_with": values["stamp"],
            "run": run.name,
            "settings": public,
            "settings_sha256": hashlib.sha256(files.dumps(public).encode()).hexdigest(),
            "models": {part: sorted(names) for part, names in made_by.items()},
            "counts": counts_of(records),
        }
        files.write_json(folder / MANIFEST, manifest)
        lines = (f"{digest}  {path}\n" for path, (_, digest) in _files(folder).items())
        files.write_text(folder / SUMS, "".join(lines))
        shutil.rmtree(target, ignore_errors=True)
        folder.rename(target)
        return counts_of(records)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _copied(memes: Sequence[schemas.Meme], run: Run, folder: Path) -> list[schemas.Meme]:
    """Copy the pictures that may be passed on; a meme's `file` then names its copy."""
    (folder / "images").mkdir()
    rows = []
    for meme in memes:
        file = f"images/{meme.meme_id}{Path(meme.file).suffix.lower()}" if meme.licence else ""
        if file:
            shutil.copyfile(run.read(meme.file), folder / file)
        rows.append(meme.model_copy(update={"file": file}))
    return rows


def counts_of(records: Records) -> dict[str, int]:
    """Number of records of every table; of dialogues also the turns, of the library the pictures."""
    numbers = {table: len(rows) for table, rows in records.items()}
    turns = sum(len(dialogue.turns) for dialogue in records["dialogues"])
    return {**numbers, "turns": turns, "images": sum(bool(meme.file) for meme in records["memes"])}


# --- Parquet


IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
"""How the `datasets` package stores a picture in Parquet."""
_ROWS = 100
"""Rows of a group: few, so that neither writer nor reader holds all pictures at once."""


def arrow_schema(table: str) -> pa.Schema:
    """Columns of a table. Stated, not guessed from the rows: a column of nulls keeps its type.

    The note `huggingface` makes `datasets.load_dataset` give pictures and not their bytes.
    """
    columns = [(name, _arrow(info.annotation)) for name, info in TABLES[table].schema.model_fields.items()]
    if table != "memes":
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
    pictured = "image" in columns.names
    step = _ROWS if pictured else max(1, len(records))
    with files.atomic_path(folder / f"{table}.parquet") as part, pq.ParquetWriter(part, columns) as writer:
        for first in range(0, len(records), step):
            rows = [record.model_dump(mode="json") for record in records[first : first + step]]
            for row in rows if pictured else ():
                file = row["file"]
                row["image"] = {"bytes": (folder / file).read_bytes(), "path": file} if file else None
            writer.write_table(pa.Table.from_pylist(rows, schema=columns))


# --- The card and the licence note: where the content comes from, what it counts, whose it is


TERMS_OF_MODEL = "the terms of the model and of its provider"
UNSTATED = "none stated: the rights are yours to check"
AUTHORED = "CC BY 4.0"
_NAMED = {
    "pictures": ("cc-by-sa-4.0", "https://creativecommons.org/licenses/by-sa/4.0/"),
    AUTHORED: ("cc-by-4.0", "https://creativecommons.org/licenses/by/4.0/"),
}
"""What the hub and Croissant call our two licences: of the example's pictures, and of authored texts."""
_KINDS = {"memes": "meme images", "annotations": "meme annotations", "placements": "meme placements"}
_TERMS = dict.fromkeys(("drawn", "computed", "user image", "user dialogue"), UNSTATED) | {
    "authored": AUTHORED
}


def plain(text: str) -> str:
    """A name that stays one word of a Markdown page: no markup, cell border, code mark or line end."""
    return re.sub(r"[\s|`<>\[\]*\\]+", " ", text).strip()


def provenance(records: Records) -> list[dict[str, Any]]:
    """How many records of each kind come from each source, the most frequent source first.

    Rows with `kind`, `source`, `count` and `words`, which say what the source means.
    """
    kinds: dict[str, Sequence[schemas.Record]] = {}
    for table, rows in records.items():
        if table == "dialogues":
            kinds["utterances"] = [turn for dialogue in rows for turn in dialogue.turns]
            kinds["turn summaries"] = [summary for dialogue in rows for summary in dialogue.summaries]
        else:
            kinds[_KINDS.get(table, table.replace("_", " "))] = rows
    return [
        {"kind": kind, "source": source, "count": count, "words": schemas.describe_source(source)}
        for kind, rows in kinds.items()
        for source, count in Counter(record.source for record in rows).most_common()
    ]


def _licences(records: Records, sources: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The licence of each part of a release, and what the hub and Croissant call them."""
    pictures = Counter(meme.licence for meme in records.get("memes", ()))
    parts = [
        (f"pictures: {n:,}", plain(name) or UNSTATED) for name, n in sorted(pictures.items(), reverse=True)
    ]
    texts: dict[tuple[str, str], list[str]] = defaultdict(list)
    for row in sources:
        if row["kind"] not in ("meme images", "meme placements"):
            texts[row["source"], _TERMS.get(row["source"], TERMS_OF_MODEL)].append(row["kind"])
    parts += [(f"{', '.join(kinds)} (`{plain(name)}`)", terms) for (name, terms), kinds in texts.items()]
    authored = any(terms == AUTHORED for _, terms in texts)
    # A user's picture never has a licence, and a model's text has the terms of its provider.
    named = [_NAMED["pictures"]] * any(pictures) + [_NAMED[AUTHORED]] * authored
    is_unclear = "" in pictures or any(terms != AUTHORED for _, terms in texts)
    parts.append(("placements: ids and computed numbers", "no rights are claimed in them"))
    return {
        "parts": [*parts, ("code that made this release, not part of it", "MIT")],
        "tags": [tag for tag, _ in named] + ["other"] * (is_unclear or not named),
        "urls": [url for _, url in named] or ["LICENSE.md"],
        "without": pictures[""],
        "authored": authored,
        "models": sorted({name for name, terms in texts if terms == TERMS_OF_MODEL}),
    }


def _statistics(records: Records) -> dict[str, Any]:
    """The numbers of the card: printed cells."""
    chats = tables.dialogue_counts(records["dialogues"])
    use = tables.meme_use(records["placements"], records["dialogues"])
    return {
        "sizes": {
            "dialogues": f"{chats['total']:,} ({chats['news']:,} news, {chats['role']:,} role)",
            "turns": f"{chats['turns']:,}, of {chats['mean_characters']:.1f} characters on average",
            "turns that still break a rule of the prompts": f"{chats['turns_with_violations']:,}",
            "turn summaries": f"{chats['summaries']:,}, {chats['summaries_unscored']:,} of them `unscored`",
        },
        "rows": [
            (plain(row["strategy"]), f"{row['memes sent']:,}", row["rate"], f"{row['distinct memes']:,}")
            for row in use.to_dict("records")
        ],
        "unsafe": sum(bool(annotation.unsafe) for annotation in records["annotations"]),
    }


# --- Croissant 1.0


_FORMATS = {
    ".parquet": "application/x-parquet",
    ".jsonl": "application/jsonlines",
    ".md": "text/markdown",
    ".png": "image/png",
    ".webp": "image/webp",
}


def _write_croissant(folder: Path, card: Mapping[str, Any]) -> None:
    """Write the metadata of the files that are in the folder, and of the tables that its `card` names."""
    citation = yaml.safe_load((paths.root / "CITATION.cff").read_text(encoding="utf-8"))
    counted = " ".join(f"{row['count']} {row['kind']}: {plain(row['words'])}." for row in card["sources"])
    value: dict[str, Any] = {
        # The context that Croissant 1.0 prescribes.
        "@context": json.loads((files.HTML / "croissant_context.json").read_text(encoding="utf-8")),
        "@type": "sc:Dataset",
        "conformsTo": "http://mlcommons.org/croissant/1.0",
        "name": card["name"],
        "description": f"Chinese multi-turn dialogues with contextually retrieved memes. {counted}",
        "version": __version__,
        "url": PAPER,
        "inLanguage": "zh",
        "license": card["licence"]["urls"],
        "isBasedOn": PAPER,
        "citeAs": f"MemeCMD, arXiv 2507.00891, {PAPER}",
        "creator": {"@type": "sc:Organization", "name": "The MemeCMD developers"},
        # A clock would make two equal runs differ.
        "datePublished": str(citation["date-released"]),
        "distribution": [
            {
                "@type": "cr:FileObject",
                "@id": path,
                "name": path,
                "contentUrl": path,
                "contentSize": f"{size} B",
                "encodingFormat": _FORMATS.get(Path(path).suffix, "application/octet-stream"),
                "sha256": digest,
            }
            for path, (size, digest) in _files(folder).items()
        ],
        "recordSet": [_record_set(table) for table in card["tables"]],
    }
    files.write_text(folder / CROISSANT, json.dumps(value, ensure_ascii=False, indent=1) + "\n")


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
    names = {pa.bool_(): "sc:Boolean", pa.int64(): "sc:Integer", pa.float64(): "sc:Float"}
    return field | {"dataType": names.get(kind, "sc:Text"), "source": source}


# --- The manifest and the check


FOREIGN = {".git", ".gitattributes", ".cache", ".DS_Store"}
"""What a hub, git or a desktop puts beside the files of a release; no part of it."""


def _sizes(folder: Path) -> dict[str, int]:
    """Bytes of every file of a release, by its path in the release."""
    found = {}
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder)
        if path.is_file() and not path.is_symlink() and not {inside.parts[0], path.name} & FOREIGN:
            found[inside.as_posix()] = path.stat().st_size
    return found


def _files(folder: Path) -> dict[str, tuple[int, str]]:
    """`_sizes`, each with the file's SHA-256."""
    return {path: (size, files.sha256(folder / path)) for path, size in _sizes(folder).items()}


def public_settings(profile: Profile) -> dict[str, Any]:
    """The settings that decide what a run makes, fit to be passed on.

    Of a folder or file elsewhere only its name is given, of a feed no user, password or query, of an endpoint
    its model and not its address.
    """
    left_out = {"cm50", "mtrclip"}  # they decide nothing of a dialogue
    return _without_places(settings.deciding(profile.model_dump(mode="json", exclude=left_out)))


def _without_places(value: Any) -> Any:
    """Settings as `public_settings` gives them."""
    if isinstance(value, dict):
        return {key: _without_places(inner) for key, inner in value.items() if key != "base_url"}
    if isinstance(value, list):
        return [_without_places(inner) for inner in value]
    if not isinstance(value, str):
        return value
    if "://" in value:
        return re.sub(r"[?#].*$|(?<=//)[^/@]*@", "", value)
    path = Path(value).expanduser() if value.startswith("~") else Path(value)
    if path.is_absolute() and path.is_relative_to(paths.root):
        return path.relative_to(paths.root).as_posix()
    return path.name if path.is_absolute() or ".." in path.parts else value


def stamp(run: Run) -> dict[str, str]:
    """What a run is made with: package, commit, hashes, and the settings that its profile has otherwise."""
    recordings, name = [_files(folder) for folder in run.read_dirs], run.profile.name
    in_file = (paths.profiles / f"{name}.yaml").is_file()  # else the settings that a profile has by itself
    shipped = settings.load_profile(name) if in_file else Profile(name=name)
    changed = []
    for group, values in _without_places(settings.differences(run.profile, shipped)).items():
        parts = values.items() if isinstance(values, dict) else [("", values)]
        changed += [f"{group}.{key}={value}".replace(".=", "=") for key, value in parts]
    return {
        "package": f"memecmd {__version__}",
        "commit": files.git("describe", "--always", "--dirty", "--abbrev=12", "--exclude=*") or "unknown",
        "requirements.lock": files.sha256(paths.root / "requirements.lock")[:12],
        "recordings": hashlib.sha256(files.dumps(recordings).encode()).hexdigest()[:12],
        "settings": " ".join(changed) or f"those of profile {name}",
    }


def check_release(folder: Path) -> dict[str, Any]:
    """Hold the files of a release against its checksums: the manifest, or `ReleaseError`."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        lines = (folder / SUMS).read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise ReleaseError(f"{folder} is not a release: {error}") from error
    listed = {path: digest for digest, _, path in (line.partition("  ") for line in lines)}
    here = {path: digest for path, (_, digest) in _files(folder).items() if path != SUMS}
    problems = [
        f"{path}: {'missing, or not its sha256' if path in listed else 'not listed'} in {SUMS}"
        for path in sorted({path for path, _ in listed.items() ^ here.items()})
    ]
    _demand_none(problems, folder)
    return manifest


def verdict(folder: Path) -> str:
    """Check a release and say in a few lines what it is; raises `ReleaseError` like `check_release`."""
    manifest, sizes = check_release(folder), _sizes(folder).values()
    made = f"profile {manifest['settings']['name']} (settings {manifest['settings_sha256'][:12]})"
    lines = [f"run {manifest['run']}: {made}, made by {manifest['package']} {manifest['package_version']}"]
    lines += [f"{name:<15}{count:>9,}" for name, count in manifest["counts"].items()]
    lines.append(f"{len(sizes)} files, {sum(sizes):,} bytes: all checksums are right")
    return "\n".join(lines)


def _demand_none(problems: Sequence[str], folder: Path) -> None:
    if problems:
        head = f"{folder.name}: problems found: {len(problems)}"
        raise ReleaseError("\n".join([head, *problems[:20]]))


def _problems(records: Records) -> list[str]:
    """Which records do not fit together: keys that stand twice, and names of what is not there."""
    turns = {(d.dialogue_id, t.turn): t.speaker for d in records["dialogues"] for t in d.turns}
    known = {meme.meme_id for meme in records["memes"]}
    problems = []

    def complain(table: str, row: schemas.Record, what: str) -> None:
        key = ", ".join(str(getattr(row, column)) for column in TABLES[table].key)
        problems.append(f"{table} {key}: {what}")

    for table, rows in records.items():
        seen, fields = set(), rows[0].__class__.model_fields if rows else {}
        key_of = attrgetter(*TABLES[table].key)
        for row in rows:
            if (key := key_of(row)) in seen:
                complain(table, row, "stands twice")
            seen.add(key)
            unsafe = row.unsafe if "unsafe" in fields else ""
            # Of an unsafe meme a release holds the annotation's id and category, and no more.
            texts = "".join(getattr(row, name) for name in schemas.ANNOTATED) if unsafe else ""
            if unsafe and (row.meme_id in known or texts or row.english):
                complain(table, row, f"flagged as {unsafe}, more than its id is there")
            for name in row.best if table == "marks" else [row.meme_id] if "meme_id" in fields else []:
                if name not in known and not unsafe:
                    complain(table, row, f"no meme {name}")
            if "turn" in fields:
                speaker = turns.get((row.dialogue_id, row.turn))
                if speaker is None or ("speaker" in fields and row.speaker != speaker):
                    complain(table, row, "no such turn")
    return problems
