"""The manifest of a release, which ties every file to settings, models and inputs; and the check of both."""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from memecmd_utils import __version__, files, schemas
from memecmd_utils.files import MemecmdError, paths, sha256
from memecmd_utils.llm import authored, prompts
from memecmd_utils.release import tables
from memecmd_utils.release.card import Records
from memecmd_utils.release.tables import CROISSANT, DATASETS, TABLES, ReleaseMeme
from memecmd_utils.settings import EXECUTION_KEYS, Profile

FILE = "manifest.json"
SUMS = "sha256sums.txt"
FORMAT = 1
"""Version of the layout of a release; raised when a reader of the older one could not read it."""
FOREIGN = {".git", ".gitattributes", ".cache", ".DS_Store"}
"""What a hub, git or a desktop puts beside the files of a release; no part of it."""
_TEMPLATE_KEYS = {
    "imgflip", "cm50", "memecap", "figmemes", "figmemes_labels", "template_rule", "template_annotation",
    "template_matching", "annotation_metrics", "meme_retrieval",
}  # fmt: skip
"""Settings of template memes: they decide nothing of a dialogue."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid")


class FileEntry(_Part):
    """One file: what it is, and what it was made from."""

    path: str
    bytes: int
    sha256: str
    records: int | None = None
    """Rows of a table."""
    stage: str
    """The notebook that made what is in it."""
    made_from: list[str]
    """Files of the run, of the example corpus or of this release."""
    sources: list[str] = []
    """Who wrote or computed what is in it: the distinct values of `source`."""
    prompt_sha256: list[str] = []


class ProfileEntry(_Part):
    """The settings that decide what a run makes; no address, no path of a machine, no name of a key."""

    name: str
    sha256: str
    """Of the settings as sorted JSON."""
    settings: dict[str, Any]


class Manifest(_Part):
    """The whole manifest. Nothing in it depends on the clock or on the machine."""

    release_format: int
    dataset: Literal["dialogues", "templates"] = "dialogues"
    """Which of `tables.DATASETS` it is; not written for dialogues, which came first."""
    package: str
    package_version: str
    run: str
    profile: ProfileEntry
    models: dict[str, list[str]]
    """Part of the work -> who did it: `authored`, `drawn`, `computed` or a model's name and label."""
    inputs: dict[str, dict[str, str]]
    """SHA-256 of what went in: texts of the example corpus, prompts, files named by the profile."""
    counts: dict[str, int]
    files: list[FileEntry]


def files_of(folder: Path) -> Iterator[tuple[str, Path]]:
    """Path inside the release and path on disk of every file, sorted."""
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder)
        if path.is_file() and inside.parts[0] not in FOREIGN and path.name != ".DS_Store":
            yield inside.as_posix(), path


def sums(folder: Path) -> dict[str, str]:
    """SHA-256 of every file in a release but the list of checksums itself, by path."""
    return {name: files.sha256(path) for name, path in files_of(folder) if name != SUMS}


def settings_sha256(settings: Mapping[str, Any]) -> str:
    """SHA-256 of settings as sorted JSON."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


def public_settings(profile: Profile, dataset: str = "dialogues") -> dict[str, Any]:
    """The settings that decide what a run makes, fit to be passed on.

    Of a folder or file elsewhere only its name is given, of a feed no user, password or query, of an endpoint
    its model and not its address.
    """
    settings = _deciding(profile.model_dump(mode="json"))
    if dataset == "dialogues":
        settings = {key: value for key, value in settings.items() if key not in _TEMPLATE_KEYS}
    settings["feeds"] = [re.sub(r"[?#].*$|(?<=//)[^/@]*@", "", feed) for feed in profile.dialogue.feeds]
    return settings


def _deciding(value: Any) -> Any:
    """Settings without those of the machine, and with every path outside the project cut to its name."""
    if isinstance(value, dict):
        left_out = EXECUTION_KEYS | {"base_url"}
        return {key: _deciding(inner) for key, inner in value.items() if key not in left_out}
    if isinstance(value, list):
        return [_deciding(inner) for inner in value]
    return _named(value) if isinstance(value, str) else value


def _named(text: str) -> str:
    path = Path(text).expanduser() if text.startswith("~") else Path(text)
    if path.is_absolute() and path.is_relative_to(paths.root):
        return path.relative_to(paths.root).as_posix()
    return path.name if path.is_absolute() or ".." in path.parts else text


def inputs(
    profile: Profile, table_names: Iterable[str], further: Sequence[Path] = ()
) -> dict[str, dict[str, str]]:
    """SHA-256 of the example texts and the ground truth, where a run has them, of prompts and named files.

    `further` are files of the example corpus that no stage reads: those of the benchmark.
    """
    example = (
        "example" in profile.library.sources
        or profile.dialogue.news == "example"
        or profile.models.llm == "authored"
    )
    files = [paths.root / name for name in (profile.dialogue.news, profile.library.curation) if name]
    truth = {f"{name}.jsonl" for name, table in DATASETS["dialogues"].tables.items() if table.optional}
    truth_files = [paths.example / f"{name}.jsonl" for name in table_names if f"{name}.jsonl" in truth]
    hashes, names = authored.text_hashes(), set(authored.TEXT_FILES) - truth
    texts = {name: digest for name, digest in hashes.items() if name in names}
    return {
        "example_texts": texts if example else {},
        "prompts": prompt_hashes("dialogues"),
        "ground_truth": {path.name: sha256(path) for path in truth_files if path.is_file()},
        "files": {path.name: sha256(path) for path in files if path.is_file()},
        **({"benchmark": named} if (named := _hashes_below(paths.example, further)) else {}),
    }


def _hashes_below(folder: Path, files: Sequence[Path]) -> dict[str, str]:
    return {path.relative_to(folder).as_posix(): sha256(path) for path in files}


def prompt_hashes(dataset: str) -> dict[str, str]:
    """SHA-256 of the prompts that a kind of release can be made with: `template_*`, or all others."""
    names = sorted(path.stem for path in paths.prompts.glob("*.j2"))
    of_templates = dataset == "templates"
    return {n: prompts.prompt_sha256(n) for n in names if n.startswith("template_") == of_templates}


def write(
    folder: Path,
    dataset: str,
    records: Records,
    profile: Profile,
    run: str,
    models: Mapping[str, Sequence[str]],
    inputs: Mapping[str, Mapping[str, str]],
) -> None:
    """Write the manifest of the files in `folder`, and the checksums; an empty `run`: the profile's."""
    digests = sums(folder)
    settings = public_settings(profile, dataset)
    pictures = {meme.file: meme for meme in records.get("memes", ()) if meme.file}
    manifest = Manifest(
        release_format=FORMAT,
        dataset=dataset,
        package="memecmd",
        package_version=__version__,
        run=run or profile.name,
        profile=ProfileEntry(name=settings["name"], sha256=settings_sha256(settings), settings=settings),
        models={part: sorted(set(names)) for part, names in models.items()},
        inputs=inputs,
        counts=counts(records),
        files=[
            FileEntry(
                path=path,
                bytes=(folder / path).stat().st_size,
                sha256=digest,
                **_origin(path, records, pictures, DATASETS[dataset].stage),
            )
            for path, digest in sorted(digests.items())
        ],
    )
    files.write_json(folder / FILE, manifest.model_dump(mode="json", exclude_defaults=True))
    digests[FILE] = files.sha256(folder / FILE)
    lines = (f"{digest}  {path}\n" for path, digest in sorted(digests.items()))
    files.write_text(folder / SUMS, "".join(lines))


def counts(records: Records) -> dict[str, int]:
    """Number of records of every table; of dialogues also the turns, of the library the images."""
    numbers = {table: len(rows) for table, rows in records.items()}
    if "dialogues" in records:
        numbers["turns"] = sum(len(dialogue.turns) for dialogue in records["dialogues"])
        numbers["images"] = sum(bool(meme.file) for meme in records["memes"])
    return numbers


def _origin(path: str, records: Records, pictures: Mapping[str, schemas.Meme], stage: str) -> dict[str, Any]:
    """What a `FileEntry` says of where a file comes from; `stage` made what is no table and no picture."""
    if path in pictures:
        about = TABLES["memes"]
        return {"stage": about.stage, "made_from": [*about.made_from], "sources": [pictures[path].source]}
    table = _table_of(path)
    if table in records:
        about = TABLES[table]
        made_from = [*about.made_from, *(["images/"] if path == "memes.parquet" else [])]
        return {"stage": about.stage, "made_from": made_from, **_facts(records[table])}
    return {"stage": stage, "made_from": [f"{name}.jsonl" for name in records]}


def _table_of(path: str) -> str:
    return path.removesuffix(".jsonl").removesuffix(".parquet")


def _facts(records: Sequence[schemas.Record]) -> dict[str, Any]:
    """How many records a table has, who made them and with which prompts."""
    parts = []
    for record in records:
        parts.append(record)
        if isinstance(record, schemas.Dialogue):
            parts += [*record.turns, *record.summaries]
    return {
        "records": len(records),
        "sources": sorted({part.source for part in parts}),
        "prompt_sha256": sorted({part.prompt_sha256 for part in parts} - {""}),
    }


def read(folder: Path) -> Manifest:
    """Read and validate a manifest; `ValueError` says in one line what is wrong with it."""
    try:
        text = (folder / FILE).read_text(encoding="utf-8")
        wanted = json.loads(text).get("release_format")
        if wanted != FORMAT:
            raise ValueError(f"release format {wanted!r}; this version of the package reads {FORMAT}")
        return Manifest.model_validate_json(text)
    except FileNotFoundError:
        raise ValueError(f"{FILE} is missing") from None
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(f"{FILE}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    except (ValueError, AttributeError) as error:
        raise ValueError(f"{FILE}: {error}") from None


# --- The check: against manifest, checksums and itself, wherever the folder lies


TEXTS = ("README.md", "LICENSE.md", CROISSANT, FILE, SUMS)
SHOWN = 20
"""Problems that are told in full; the rest is counted."""


class ReleaseError(MemecmdError, ValueError):
    """A release that does not agree with itself; the message lists what is wrong."""


def check_release(release_dir: Path) -> dict[str, int]:
    """Read a release again: manifest, checksums, counts, every id. The counts, or `ReleaseError`."""
    problems = [f"{name} is missing" for name in TEXTS if not (release_dir / name).is_file()]
    if problems:
        raise ReleaseError(_listing(release_dir, problems))
    try:
        manifest = read(release_dir)
    except ValueError as error:
        raise ReleaseError(_listing(release_dir, [str(error)])) from None
    digests = sums(release_dir)
    present = {
        name: [f"{name}.{suffix}" for suffix in ("jsonl", "parquet")]
        for name, table in DATASETS[manifest.dataset].tables.items()
        if not table.optional or f"{name}.jsonl" in digests or f"{name}.parquet" in digests
    }
    problems = [f"{path}: missing" for files in present.values() for path in files if path not in digests]
    problems += _sums_problems(release_dir, digests) + _manifest_problems(release_dir, manifest, digests)
    listed = {entry.path for entry in manifest.files} - {CROISSANT}
    described = {path: digest for path, digest in digests.items() if path in listed}
    problems += tables.croissant_problems(release_dir, described, list(present))
    records: dict[str, list[Any]] = {}
    for table in present:
        records[table], unreadable = _read_table(release_dir, table)
        problems += unreadable
    if not any(": cannot be read" in problem for problem in problems):
        problems += _repeated_keys(records)
        if manifest.dataset == "templates":
            problems += _template_problems(records)
        else:
            problems += _dialogue_problems(records)
        problems += _image_problems(release_dir, records.get("memes"), digests)
        problems += _count_problems(manifest, records)
        problems += _card_problems(release_dir, {table: len(rows) for table, rows in records.items()})
    if problems:
        raise ReleaseError(_listing(release_dir, problems))
    return counts(records)


def report(release_dir: Path) -> str:
    """Check a release and say in a few lines what it is; raises `ReleaseError` like `check_release`."""
    if not release_dir.is_dir():
        raise ReleaseError(f"no folder {release_dir}")
    counts = check_release(release_dir)
    manifest = read(release_dir)
    size = {entry.path: entry.bytes for entry in manifest.files}
    images = sum(count for path, count in size.items() if path.startswith("images/"))
    used = {**manifest.inputs.get("example_texts", {}), **manifest.inputs.get("ground_truth", {})}
    lines = [
        f"run {manifest.run}: profile {manifest.profile.name} (settings {manifest.profile.sha256[:12]}), "
        f"made by {manifest.package} {manifest.package_version}, release format {manifest.release_format}",
        f"{'':<13}{'records':>9}{'Parquet':>13}{'JSON Lines':>13}",
    ]
    for table in DATASETS[manifest.dataset].tables:
        if table in counts:
            parquet, jsonl = size[f"{table}.parquet"], size[f"{table}.jsonl"]
            lines.append(f"{table:<13}{counts[table]:>9,}{parquet:>13,}{jsonl:>13,}")
    if "images" in counts:
        lines.append(f"{'images':<13}{counts['images']:>9,}{images:>13,}")
    lines.append(
        f"{len(manifest.files)} files, {sum(size.values()):,} bytes: sizes, checksums, counts and ids are as "
        "the manifest says"
    )
    if used:
        here = authored.text_hashes()
        same = sum(here.get(name) == digest for name, digest in used.items())
        lines.append(f"inputs: {same} of {len(used)} example texts are the ones of this checkout")
    return "\n".join(lines)


def _listing(folder: Path, problems: Sequence[str]) -> str:
    more = f"\n... and {len(problems) - SHOWN} more" if len(problems) > SHOWN else ""
    return f"{folder.name}: {len(problems)} problems\n" + "\n".join(problems[:SHOWN]) + more


def _checksum_problems(listed: Mapping[str, str], digests: Mapping[str, str], where: str) -> list[str]:
    """What differs between the SHA-256s that the file `where` lists and those of the files on disk."""
    problems = [f"{path}: in {where} but missing" for path in sorted(listed.keys() - digests.keys())]
    problems += [f"{path}: not listed in {where}" for path in sorted(digests.keys() - listed.keys())]
    both = sorted(listed.keys() & digests.keys())
    return problems + [f"{path}: not the sha256 of {where}" for path in both if listed[path] != digests[path]]


def _manifest_problems(folder: Path, manifest: Manifest, digests: Mapping[str, str]) -> list[str]:
    """What the manifest says of the files and of itself that is not so."""
    here = {path: digest for path, digest in digests.items() if path != FILE}
    problems = _checksum_problems({entry.path: entry.sha256 for entry in manifest.files}, here, FILE)
    for entry in manifest.files:
        if entry.path in here and (size := (folder / entry.path).stat().st_size) != entry.bytes:
            problems.append(f"{entry.path}: {size} bytes, {FILE} says {entry.bytes}")
    if len({entry.path for entry in manifest.files}) < len(manifest.files):
        problems.append(f"{FILE} lists a file twice")
    if manifest.profile.sha256 != settings_sha256(manifest.profile.settings):
        problems.append(f"{FILE}: the profile's settings do not have its sha256")
    return problems


def _count_problems(manifest: Manifest, records: Records) -> list[str]:
    """What the manifest says of the tables that is not so: counts, sources, prompts."""
    problems = []
    if manifest.counts != counts(records):
        problems.append(f"{FILE}: counts {manifest.counts} are not so")
    facts = {table: _facts(rows) for table, rows in records.items()}
    for entry in manifest.files:
        table = _table_of(entry.path)
        if table in facts and facts[table] != entry.model_dump(include=facts[table].keys()):
            problems.append(f"{FILE}: records, sources or prompts of {entry.path} are not so")
    return problems


def _sums_problems(folder: Path, digests: Mapping[str, str]) -> list[str]:
    lines = (folder / SUMS).read_text(encoding="utf-8", errors="replace").splitlines()
    listed = {path: digest for digest, _, path in (line.partition("  ") for line in lines)}
    return _checksum_problems(listed, digests, SUMS)


def _read_table(folder: Path, table: str) -> tuple[list[Any], list[str]]:
    """A table's records, and what is wrong with its two files."""
    try:
        records = files.read_jsonl(folder / f"{table}.jsonl", TABLES[table].schema)
    except (OSError, ValueError) as error:
        return [], [f"{table}.jsonl: cannot be read: {_first_line(error)}"]
    try:
        columns = pq.read_schema(folder / f"{table}.parquet")
        if not columns.equals(tables.arrow_schema(table)):
            return records, [f"{table}.parquet: columns or their types differ from those of a release"]
        same = records == tables.read_parquet(folder, table)
    except (OSError, ValidationError, pa.ArrowException) as error:
        return [], [f"{table}.parquet: cannot be read: {_first_line(error)}"]
    return records, [] if same else [f"{table}.jsonl and {table}.parquet differ"]


def _first_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]


def _repeated_keys(records: Records) -> list[str]:
    problems = []
    for table, rows in records.items():
        keys = Counter(tuple(getattr(row, column) for column in TABLES[table].key) for row in rows)
        repeated = [key if len(key) > 1 else key[0] for key, count in keys.items() if count > 1]
        problems += [f"{table.removesuffix('s')} {key!r} stands twice" for key in repeated]
    return problems


def _template_problems(records: Records) -> list[str]:
    """What does not fit together in a release of template memes: templates, splits, readings."""
    templates, memes = {info.template for info in records["templates"]}, records["template_memes"]
    template_of = {meme.meme_id: meme.template for meme in memes}
    problems = [
        f"template {info.template!r} names a picture: none is here"
        for info in records["templates"]
        if info.picture
    ]
    unknown = sorted(set(template_of.values()) - templates)
    problems += [f"template_meme of {template!r}: no such template" for template in unknown]
    without_split = sum(meme.split is None for meme in memes)
    if 0 < without_split < len(memes):
        problems.append(f"template_memes: {without_split} of {len(memes)} belong to no split")
    for reading in records.get("readings", ()):
        template = template_of.get(reading.meme_id)
        if template is None:
            problems.append(f"reading of {reading.meme_id}: no meme {reading.meme_id}")
        elif reading.template not in ("", template):
            problems.append(
                f"reading of {reading.meme_id}: of {reading.template!r}, the meme of {template!r}"
            )
    return problems


def _dialogue_problems(records: Records) -> list[str]:
    """What does not fit together in a release of dialogues: turns, speakers, memes."""
    problems = []
    speakers = {(d.dialogue_id, t.turn): t.speaker for d in records["dialogues"] for t in d.turns}
    for dialogue in records["dialogues"]:
        for summary in dialogue.summaries:
            if speakers.get((dialogue.dialogue_id, summary.turn)) != summary.speaker:
                problems.append(f"summary of {dialogue.dialogue_id} turn {summary.turn}: no such turn")
    known = {meme.meme_id for meme in records["memes"]}
    for a in records["annotations"]:
        if not a.unsafe and a.meme_id not in known:
            problems.append(f"annotation of {a.meme_id}: no meme {a.meme_id}")
        # Of an unsafe meme a release holds the annotation's id and category, and no more.
        if a.unsafe and (a.meme_id in known or a.s_plus or a.s_minus or a.emotion or a.motivation):
            problems.append(f"{a.meme_id} is flagged as {a.unsafe}: more than its id is there")
    for placement in records["placements"]:
        where = f"placement at {placement.dialogue_id} turn {placement.turn}"
        if speakers.get((placement.dialogue_id, placement.turn)) != placement.speaker:
            problems.append(f"{where}: no such turn of {placement.speaker}")
        if placement.meme_id not in known:
            problems.append(f"{where}: no meme {placement.meme_id}")
    for table in ("marks", "grades"):
        for row in records.get(table, ()):
            where = f"{table.removesuffix('s')} at {row.dialogue_id} turn {row.turn}"
            if (row.dialogue_id, row.turn) not in speakers:
                problems.append(f"{where}: no such turn")
            meme_ids = row.best if table == "marks" else [row.meme_id]
            problems += [f"{where}: no meme {meme_id}" for meme_id in meme_ids if meme_id not in known]
    return problems


def _image_problems(
    folder: Path, memes: Sequence[ReleaseMeme] | None, digests: Mapping[str, str]
) -> list[str]:
    """What is wrong with the pictures; `memes` is None where a kind of release has none."""
    named = {meme.file for meme in memes or () if meme.file}
    there = {path for path in digests if path.startswith("images/")}
    problems = [f"{path}: missing" for path in sorted(named - there)]
    problems += [f"{path}: belongs to no meme" for path in sorted(there - named)]
    if memes is None:
        return problems
    try:
        for meme_id, file, image in tables.read_images(folder):
            if image != tables.stored_image(folder, file if file in there else ""):
                problems.append(f"memes.parquet: the picture of {meme_id} is not {file or 'null'}")
    except (OSError, KeyError, pa.ArrowException) as error:
        problems.append(f"memes.parquet: pictures cannot be read: {_first_line(error)}")
    return problems


def _card_problems(folder: Path, counts: Mapping[str, int]) -> list[str]:
    try:
        values = yaml.safe_load((folder / "README.md").read_text(encoding="utf-8").split("---\n")[1])
        stated = {info["config_name"]: info["splits"][0]["num_examples"] for info in values["dataset_info"]}
        files = {entry["config_name"]: entry["data_files"] for entry in values["configs"]}
    except (ValueError, LookupError, TypeError, yaml.YAMLError) as error:
        return [f"README.md: its header cannot be read: {_first_line(error)}"]
    counts = {table: count for table, count in counts.items() if count}
    problems = [
        f"README.md says {stated.get(table)} {table}, there are {counts.get(table)}"
        for table in sorted(counts.keys() | stated.keys())
        if stated.get(table) != counts.get(table)
    ]
    if files != {table: f"{table}.parquet" for table in counts}:
        problems.append("README.md: its configurations are not the tables")
    return problems
