"""The manifest of a release: ties every file to the profile, the package, the models and the inputs."""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from memecmd_utils import __version__, freeze, paths, profiles, prompting, release_tables, schemas, storage

FILE = "manifest.json"
SUMS = "sha256sums.txt"
FORMAT = 1
"""Version of the layout of a release; raised when a reader of the older one could not read it."""
FOREIGN = {".git", ".gitattributes", ".cache", ".DS_Store"}
"""What a hub, git or a desktop puts beside the files of a release; no part of it."""
_TEMPLATE_PATHS = ("imgflip", "cm50", "memecap", "figmemes", "figmemes_labels")
_TEMPLATE_KEYS = {
    *_TEMPLATE_PATHS,
    "template_rule",
    "template_annotation",
    "template_matching",
    "annotation_metrics",
    "meme_retrieval",
}
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
    """Which of `release_tables.DATASETS` it is; not written for dialogues, which came first."""
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

    @property
    def tables(self) -> list[str]:
        """Tables of the release, in the order of its kind."""
        listed = {entry.path for entry in self.files}
        return [name for name in release_tables.DATASETS[self.dataset].tables if f"{name}.jsonl" in listed]


def files_of(folder: Path) -> Iterator[tuple[str, Path]]:
    """Path inside the release and path on disk of every file, sorted."""
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder)
        if path.is_file() and inside.parts[0] not in FOREIGN and path.name != ".DS_Store":
            yield inside.as_posix(), path


def sums(folder: Path) -> dict[str, str]:
    """SHA-256 of every file in a release but the list of checksums itself, by path."""
    return {name: storage.sha256(path) for name, path in files_of(folder) if name != SUMS}


def settings_sha256(settings: Mapping[str, Any]) -> str:
    """SHA-256 of settings as sorted JSON."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


def public_settings(profile: profiles.Profile, dataset: str = "dialogues") -> dict[str, Any]:
    """The settings that decide what a run makes, fit to be passed on.

    Of a folder or file elsewhere only its name is given, of a feed no user, password or query, of an endpoint
    its model and not its address.
    """
    settings = _deciding(profile.model_dump(mode="json"))
    settings["sources"] = [_named(source) for source in profile.sources]
    settings["news"] = _named(profile.news)
    settings["curation"] = profile.curation and _named(profile.curation)
    settings["embedder"], settings["name"] = _named(profile.embedder), _named(profile.name)
    if dataset == "dialogues":
        settings = {key: value for key, value in settings.items() if key not in _TEMPLATE_KEYS}
    else:
        _name_template_files(settings)
    settings["feeds"] = [re.sub(r"[?#].*$|(?<=//)[^/@]*@", "", feed) for feed in profile.feeds]
    return settings


def _name_template_files(settings: dict[str, Any]) -> None:
    """Replace folders and files that a user gave for template memes by their names, in place."""
    inner = {
        "template_matching": ("clip", "lpips", "confirmed", "confirmed_figmemes"),
        "meme_retrieval": ("images", "model"),
    }
    inner["annotation_metrics"] = ("bertscore", "bleurt")
    for values, keys in ((settings, _TEMPLATE_PATHS), *((settings[key], inner[key]) for key in inner)):
        values |= {key: values[key] and _named(values[key]) for key in keys}
    baselines = settings["meme_retrieval"]["baselines"]
    settings["meme_retrieval"]["baselines"] = [_named(model) for model in baselines]


def _deciding(value: Any) -> Any:
    if isinstance(value, dict):
        left_out = profiles.HOW_NOT_WHAT | {"base_url"}
        return {key: _deciding(inner) for key, inner in value.items() if key not in left_out}
    return [_deciding(inner) for inner in value] if isinstance(value, list) else value


def _named(text: str) -> str:
    path = Path(text).expanduser()
    if path.is_absolute() and path.is_relative_to(paths.root):
        return path.relative_to(paths.root).as_posix()
    return path.name if path.is_absolute() or ".." in path.parts else text


def inputs(profile: profiles.Profile, tables: Iterable[str]) -> dict[str, dict[str, str]]:
    """SHA-256 of the example texts and the ground truth, where a run has them, of prompts and named files."""
    example = "example" in profile.sources or profile.news == "example" or profile.llm == "authored"
    named = [paths.root / name for name in (profile.news, profile.curation) if name]
    optional = {f"{name}.jsonl" for name, table in release_tables.TABLES.items() if table.optional}
    truth = [paths.example / f"{name}.jsonl" for name in tables if f"{name}.jsonl" in optional]
    texts = {name: digest for name, digest in freeze.text_hashes().items() if name not in optional}
    return {
        "example_texts": texts if example else {},
        "prompts": prompt_hashes("dialogues"),
        "ground_truth": {path.name: storage.sha256(path) for path in truth if path.is_file()},
        "files": {path.name: storage.sha256(path) for path in named if path.is_file()},
    }


def prompt_hashes(dataset: str) -> dict[str, str]:
    """SHA-256 of the prompts that a kind of release can be made with: `template_*`, or all others."""
    names = sorted(path.stem for path in paths.prompts.glob("*.j2"))
    of_templates = dataset == "templates"
    return {n: prompting.prompt_sha256(n) for n in names if n.startswith("template_") == of_templates}


def write(
    folder: Path,
    records: Mapping[str, Sequence[schemas.Record]],
    profile: profiles.Profile,
    run: str,
    models: Mapping[str, Sequence[str]],
    digests: Mapping[str, str],
    *,
    dataset: str = "dialogues",
    inputs: Mapping[str, Mapping[str, str]],
) -> None:
    """Write the manifest of the files in `digests` (path to sha256), all but itself and the sums."""
    settings = public_settings(profile, dataset)
    pictures = {meme.file: meme for meme in records.get("memes", ()) if meme.file}
    stage = release_tables.DATASETS[dataset].stage
    found = Manifest(
        release_format=FORMAT,
        dataset=dataset,
        package="memecmd",
        package_version=__version__,
        run=run,
        profile=ProfileEntry(name=settings["name"], sha256=settings_sha256(settings), settings=settings),
        models={part: sorted(set(names)) for part, names in models.items()},
        inputs=inputs,
        counts=counts(records),
        files=[
            FileEntry(
                path=path,
                bytes=(folder / path).stat().st_size,
                sha256=digest,
                **_origin(path, records, pictures, stage),
            )
            for path, digest in sorted(digests.items())
        ],
    )
    storage.write_json(folder / FILE, found.model_dump(mode="json", exclude_defaults=True))


def counts(records: Mapping[str, Sequence[Any]]) -> dict[str, int]:
    """Number of records of every table; of dialogues also the turns, of the library the images."""
    found = {table: len(rows) for table, rows in records.items()}
    if "dialogues" in records:
        found["turns"] = sum(len(dialogue.turns) for dialogue in records["dialogues"])
        found["images"] = sum(bool(meme.file) for meme in records["memes"])
    return found


def _origin(
    path: str, records: Mapping[str, Sequence[Any]], pictures: Mapping[str, schemas.Meme], stage: str
) -> dict[str, Any]:
    table = path.removesuffix(".jsonl").removesuffix(".parquet")
    if path in pictures:
        about, sources = release_tables.about("memes"), {"sources": [pictures[path].source]}
        return {"stage": about.stage, "made_from": list(about.made_from), **sources}
    if table in records:
        about = release_tables.about(table)
        made_from = [*about.made_from, "images/"] if path == "memes.parquet" else list(about.made_from)
        described = release_tables.sources(records[table])
        return {"stage": about.stage, "made_from": made_from, "records": len(records[table]), **described}
    return {"stage": stage, "made_from": [f"{name}.jsonl" for name in records]}


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


def problems(folder: Path, found: Manifest, digests: Mapping[str, str]) -> list[str]:
    """What differs between a manifest and the files on disk: missing, unlisted, size, checksum."""
    listed = {entry.path: entry for entry in found.files}
    here = {path: digest for path, digest in digests.items() if path != FILE}
    wrong = [f"{path}: in {FILE} but missing" for path in sorted(listed.keys() - here.keys())]
    wrong += [f"{path}: not listed in {FILE}" for path in sorted(here.keys() - listed.keys())]
    for path in sorted(listed.keys() & here.keys()):
        size = (folder / path).stat().st_size
        if size != listed[path].bytes:
            wrong.append(f"{path}: {size} bytes, {FILE} says {listed[path].bytes}")
        if here[path] != listed[path].sha256:
            wrong.append(f"{path}: not the sha256 of {FILE}")
    if len(listed) != len(found.files):
        wrong.append(f"{FILE} lists a file twice")
    if found.profile.sha256 != settings_sha256(found.profile.settings):
        wrong.append(f"{FILE}: the profile's settings do not have its sha256")
    return wrong


def wrong_records(found: Manifest, records: Mapping[str, Sequence[schemas.Record]]) -> list[str]:
    """What the manifest says of the tables that is not so: counts, sources, prompts."""
    wrong = [] if found.counts == counts(records) else [f"{FILE}: counts {found.counts} are not so"]
    for entry in found.files:
        table = entry.path.removesuffix(".jsonl").removesuffix(".parquet")
        if table not in records:
            continue
        said = {"sources": entry.sources, "prompt_sha256": entry.prompt_sha256}
        if said != release_tables.sources(records[table]) or entry.records != len(records[table]):
            wrong.append(f"{FILE}: records, sources or prompts of {entry.path} are not so")
    return wrong
