"""The data sets of both papers: given, fetched once at a commit, or what to put where.

The first paper's repositories of images stand in `data/library_sources.yaml`, those of the template memes in
`SOURCES`. A folder that a user names or made is used as it is. A fetched one is written down with its commit
and checksum as a row of a `SOURCES.csv`; where no commit is pinned beforehand, that of the first fetch stays
the pin until its row or its folder is removed. Data sets of template memes are not fetched where
`HF_HUB_OFFLINE` or `MEMECMD_OFFLINE` is set.
"""

import csv
import hashlib
import io
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple
from urllib.parse import urlsplit

import pandas as pd
import yaml
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from memecmd_utils import files, settings
from memecmd_utils.core.fetch import download
from memecmd_utils.files import paths, sha256
from memecmd_utils.pictures import LibraryError

HOST = "https://github.com/"
"""What stands before owner/name of the template memes' data sets."""
OFFLINE = ("MEMECMD_OFFLINE", "HF_HUB_OFFLINE")
COLUMNS = ["name", "url", "licence", "used_for", "sha256_or_commit"]
"""Columns of a `SOURCES.csv`: in `data/` for images, beside the folders of the template memes' data sets."""
RECORD = "SOURCES.csv"
IMAGES_FOR = "memes of PROFILE=paper; nothing of it is in this repository"
TEMPLATES_FOR = "template memes (make templates); nothing of it is in this repository"
UNPACKED = "images"
"""Folder of a source that takes the images of its archive."""
MEME_KINDS = (".json", ".json.gz", ".jsonl", ".jsonl.gz")
"""Endings of ImgFlip575K's files of memes; of two files of one template the first of these is read."""
ABOUT = "50_template_info.json"
"""CM50's file of what its templates mean."""
MEME_FILES = tuple(f"{place}/*{kind}" for place in ("dataset/memes", "memes") for kind in MEME_KINDS)
_FLAT = ("statistics.json", "templates.json", "popular_100_memes.csv", "templates/*.json", "templates/img/*")
_POINTER = b"version https://git-lfs"
_CHANGED = "changed since it was fetched"


class SourceError(LibraryError):
    """A data set that is missing or not what it should be; the message says what to put where."""


class State(NamedTuple):
    """What is there of a repository."""

    state: Literal["fetched", "already whole", "taken as it is"]
    commit: str
    """Empty where the folder was the user's own and no clone."""
    files: int
    sha256: str
    """Over the sorted list of paths and their SHA-256."""


def is_users(folder: Path) -> bool:
    """Whether a folder holds something that was not fetched here."""
    return folder.is_dir() and any(folder.iterdir()) and not download.is_ours(folder)


def fetch_repository(
    name: str,
    url: str,
    folder: Path,
    table: Path,
    want: Sequence[str],
    skip: Sequence[str] = (),
    pin: str | None = None,
) -> State:
    """Bring what is wanted of a repository into `folder`, at `pin` or at the commit of its row in `table`.

    A folder of the user's is taken as it is; a whole one is checked against its row and not fetched again;
    one that was cut off goes on. Raises `LibraryError` with what to do.
    """
    if is_users(folder):
        return State("taken as it is", download.head(folder), *checksum(folder))
    row, here = read_row(table, name), download.head(folder)
    commit = pin or row.get("commit") or here or download.branch_head(url)
    if here == commit == row.get("commit"):
        files, sha256 = checksum(folder)
        if sha256 == row.get("sha256"):
            return State("already whole", commit, files, sha256)
    download.fetch_commit(url, commit, folder, want, skip)
    return State("fetched", commit, *checksum(folder))


def checksum(folder: Path, files: Iterable[Path] | None = None) -> tuple[int, str]:
    """Number of `files` below `folder` and the SHA-256 over the sorted list of their paths and SHA-256s.

    None: all files but those below hidden entries at the top level (`.git`).
    """
    if files is None:
        inside = ((path, path.relative_to(folder).parts[0]) for path in folder.rglob("*") if path.is_file())
        files = (path for path, top in inside if not top.startswith("."))
    lines = sorted(f"{path.relative_to(folder).as_posix()}\0{sha256(path)}\n" for path in files)
    return len(lines), hashlib.sha256("".join(lines).encode("utf-8", "surrogateescape")).hexdigest()


def write_row(table: Path, name: str, url: str, licence: str, used_for: str, state: State) -> None:
    """Add or replace the row of a data set in a `SOURCES.csv`; all other lines stay, byte for byte."""
    at = f"commit {state.commit} " if state.commit else ""
    buffer = io.StringIO()
    values = [name, url, licence, used_for, f"{at}files {state.files} sha256 {state.sha256}"]
    csv.writer(buffer, lineterminator="\n").writerow(values)
    text = table.read_text(encoding="utf-8") if table.is_file() else ",".join(COLUMNS) + "\n"
    if text.partition("\n")[0].split(",") != COLUMNS:
        raise LibraryError(f"{table}: the first line must be {','.join(COLUMNS)}")
    lines = (text if text.endswith("\n") else text + "\n").splitlines(keepends=True)
    own = [number for number, line in enumerate(lines) if next(csv.reader([line]), [""])[:1] == [name]]
    place = own[0] if own else len(lines)
    lines[place : place + 1] = [buffer.getvalue()]
    if "".join(lines) != text:
        files.write_text(table, "".join(lines))


def read_row(table: Path, name: str) -> dict[str, str]:
    """What the row of a source says: `commit`, `files`, `sha256`; empty without a row."""
    if not table.is_file():
        return {}
    with table.open(encoding="utf-8", newline="") as handle:
        for row in csv.DictReader(handle):
            if row["name"] == name:
                words = row["sha256_or_commit"].split()
                return dict(zip(words[::2], words[1::2], strict=False))
    return {}


class LibrarySource(BaseModel):
    """One repository of images, as `data/library_sources.yaml` lists it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(pattern=r"^[\w.-]+/[\w.-]+$")
    url: str
    commit: str | None = Field(pattern=r"^[0-9a-f]{40}$")
    """None: the head of the main branch."""
    licence: str
    want: list[str] = ["*"]
    """Names at the top level (shell patterns) that are fetched."""
    skip: list[str] = []
    archive: str = ""
    """Where the images lie if not in the repository: a person has to download it."""
    notes: str = ""

    @property
    def folder(self) -> str:
        """Name of its folder below `data/raw/sources`."""
        return self.name.split("/")[1]


def library_list() -> list[LibrarySource]:
    """The sources in `data/library_sources.yaml`; `LibraryError` names what is wrong there."""
    path = paths.data / "library_sources.yaml"
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
        return TypeAdapter(list[LibrarySource]).validate_python(values)
    except FileNotFoundError as error:
        raise LibraryError(f"{path} does not exist") from error
    except (yaml.YAMLError, ValidationError) as error:
        raise LibraryError(f"{path.name}: {error}") from error


def fetch_library(archive: Path | None = None) -> dict[str, State]:
    """Fetch all listed sources into `data/raw/sources`, unpack `archive`, print and write down what is there.

    Raises `LibraryError` with what to do; the rows of the sources before it are written.
    """
    sources, table = library_list(), paths.data / RECORD
    if archive and not any(source.archive for source in sources):
        raise LibraryError("an archive is given, but no source in the list has its images in one")
    states = {}
    for source in sources:
        folder, note = paths.raw / "sources" / source.folder, ""
        state = fetch_repository(
            source.name, source.url, folder, table, source.want, source.skip, source.commit
        )
        if archive and source.archive:
            new, kept, skipped = download.unpack(archive.expanduser(), folder / UNPACKED)
            note = f"\n  archive: {new:,} images unpacked, {kept:,} were there, "
            note += f"{skipped:,} other entries left out"
            state = State(*state[:2], *checksum(folder))
        elif source.archive and not (folder / UNPACKED).is_dir():
            note = f"\n  its images are not in the repository: download {source.archive} and run "
            note += "make library-sources ZIP=path/to/it"
        write_row(table, source.name, source.url, source.licence, IMAGES_FOR, state)
        states[source.name] = state
        at = f" at {state.commit[:12]}" if state.commit else ""
        files = f"{state.files:,} files, sha256 {state.sha256[:12]}"
        print(f"{source.name}{at}: {state.state}, {files}, licence: {source.licence}{note}")
    return states


class TemplateSource(NamedTuple):
    """One data set: a key of the profile, where it is published, what must be in its folder."""

    name: str
    title: str
    repository: str
    """owner/name; empty where it is not to be fetched."""
    licence: str
    want: tuple[str, ...]
    """Names at the top level of the repository that are fetched (shell patterns)."""
    holds: dict[str, tuple[str, ...]]
    """What must be there: words, and patterns relative to its folder, of which any will do."""
    also: tuple[str, ...] = ()
    """Further files that are read where they are there, relative to its folder."""
    notes: str = ""


SOURCES: dict[str, TemplateSource] = {
    source.name: source
    for source in (
        TemplateSource(
            "imgflip",
            "ImgFlip575K",
            "schesa/ImgFlip575K_Dataset",
            "none stated; captions are by users of Imgflip",
            ("dataset", "README*"),
            {"memes, one file a template": MEME_FILES},
            tuple(f"{place}{name}" for place in ("", "dataset/") for name in _FLAT),
        ),
        TemplateSource(
            "cm50",
            "CM50: validation set and template texts",
            "Seefreem/meme_text_retrieval_p1",
            "Apache-2.0, as stated in the repository",
            ("data", "README*", "LICENSE*"),
            {
                "the annotated validation set": (
                    "**/*validation*.zip",
                    "**/*validation*.json",
                    "**/*validation*.json.gz",
                ),
                "what the templates mean": (f"**/{ABOUT}",),
            },
            ("**/*.json", "**/*.json.gz", "**/*.zip", "**/templates/**/*"),
        ),
        TemplateSource(
            "memecap",
            "MemeCap",
            "eujhwang/meme-cap",
            "none stated",
            ("data", "README*", "LICENSE*"),
            {"the test captions": ("**/memes*test*.json", "**/memes*test*.json.gz")},
            notes="its images are offered on its page and not in the repository",
        ),
        TemplateSource(
            "figmemes",
            "FigMemes: splits",
            "UKPLab/emnlp2022-figmemes",
            "MIT-style for the repository; the data for non-commercial research only",
            ("data", "README*", "LICENSE*"),
            {"the split tables": ("**/*_split.tsv",)},
            notes="the memes come from a political board and can be offensive",
        ),
        TemplateSource(
            "figmemes_labels",
            "FigMemes: labels",
            "",
            "given out through a form, for non-commercial research only",
            (),
            {"the labels": ("**/*.tsv", "**/*.csv")},
            notes="ask for them with the form that the page of UKPLab/emnlp2022-figmemes links to",
        ),
    )
}


class LocatedSource(NamedTuple):
    """Where a data set is, or why it is not there."""

    source: TemplateSource
    state: Literal["given", "fetched", "fetched before", "missing"]
    path: Path | None = None
    commit: str = ""
    """Empty where it is no clone."""
    why: str = ""
    """Why it is missing, or what is odd about it."""

    def text(self) -> str:
        """One line, and where the data set is missing what to put where."""
        title, licence = self.source.title, self.source.licence
        if self.path is None:
            return f"{title}: not here ({self.why}). {how_to_provide(self.source.name)}"
        at = f" at {self.commit[:12]}" if self.commit else ""
        odd = f", {self.why}" if self.why else ""
        return f"{title}{at}: {self.state}, {_project_path(self.path)}, licence: {licence}{odd}"


def how_to_provide(name: str) -> str:
    """Which repository, which files and which key of `SET=` bring a data set; `KeyError` for another name."""
    source = SOURCES[name]
    if source.repository:
        place = _project_path(paths.raw / "templates" / name)
        how = f'Clone {HOST}{source.repository} and give its folder: SET="{name}=FOLDER", or put it into '
        how += f"{place}."
    else:
        how = f'Give its folder or file: SET="{name}=PATH".'
    notes = f" Note: {source.notes}." if source.notes else ""
    return f"{how} It must hold {_listed(source.holds)}.{notes}"


def locate(
    profile: settings.Profile, *, fetch: bool = True, names: Iterable[str] = tuple(SOURCES)
) -> dict[str, LocatedSource]:
    """Look for the data sets `names`, fetch what no profile key names, and say where each is.

    Nothing is fetched without `fetch`, or where one of `OFFLINE` is set. A data set that cannot be had has
    `state` "missing" and `why`; only what a user put somewhere and is not what it should be raises
    `SourceError`.
    """
    silent_hosts: set[str] = set()
    located = {}
    for name in names:
        source, given = (
            SOURCES[name],
            getattr(profile.cm50, "published" if name == "cm50" else name),
        )
        folder = paths.raw / "templates" / name
        if given or is_users(folder):
            located[name] = _locate_given(source, paths.user_path(given) if given else folder)
        else:
            located[name] = _locate_fetched(source, folder, fetch and may_fetch(), silent_hosts)
    return located


def source_table(located: Mapping[str, LocatedSource]) -> pd.DataFrame:
    """One row a data set: state, where it is, its licence, and what to give where it is missing."""
    rows = [
        {
            "data set": one.source.title,
            "key": name,
            "state": one.state,
            "where": _project_path(one.path) if one.path else "",
            "commit": one.commit[:12],
            "licence": one.source.licence,
            "note": one.why,
            "what to give": "" if one.path else how_to_provide(name),
        }
        for name, one in located.items()
    ]
    return pd.DataFrame(rows)


def source_states(located: Mapping[str, LocatedSource]) -> dict[str, str]:
    """Commit, number and SHA-256 of the `files_used` of each data set that is there, for a manifest."""
    states = {}
    for name, one in located.items():
        if one.path is not None:
            base = one.path if one.path.is_dir() else one.path.parent
            count, sha256 = checksum(base, files_used(name, one.path))
            states[name] = f"{f'commit {one.commit} ' if one.commit else ''}files {count} sha256 {sha256}"
    return states


def may_fetch() -> bool:
    """Whether the environment lets data sets be fetched."""
    return not any(os.environ.get(name, "").strip().upper() in ("1", "ON", "YES", "TRUE") for name in OFFLINE)


def _locate_given(source: TemplateSource, path: Path) -> LocatedSource:
    if not path.exists():
        raise SourceError(f"{source.name}: {path} does not exist. {how_to_provide(source.name)}")
    if missing := missing_parts(source, path):
        raise SourceError(f"{source.name}: {path} does not hold {missing}. {how_to_provide(source.name)}")
    return LocatedSource(source, "given", path, download.head(path) if path.is_dir() else "")


def _locate_fetched(
    source: TemplateSource, folder: Path, fetch: bool, silent_hosts: set[str]
) -> LocatedSource:
    """A data set in the folder of fetched ones; `silent_hosts` do not answer and are not asked again."""
    if not source.repository:
        return LocatedSource(source, "missing", why="not published for all")
    table, url = folder.parent / RECORD, HOST + source.repository
    row, here = read_row(table, source.repository), download.head(folder)
    is_complete = bool(here) and here == row.get("commit")
    if not fetch:
        if not is_complete:
            return LocatedSource(source, "missing", why="fetching is off")
        why = "" if checksum(folder)[1] == row.get("sha256") else _CHANGED
        return _checked(LocatedSource(source, "fetched before", folder, here, why))
    host = urlsplit(url).netloc
    try:
        if host in silent_hosts:
            raise download.NoConnection(f"no connection to {host}")
        state = fetch_repository(source.repository, url, folder, table, source.want)
    except LibraryError as error:
        if isinstance(error, download.NoConnection):
            silent_hosts.add(host)
        if is_complete:
            return _checked(LocatedSource(source, "fetched before", folder, here, f"{_CHANGED}; {error}"))
        return LocatedSource(source, "missing", why=str(error))
    if state.state == "fetched":
        write_row(table, source.repository, url, source.licence, TEMPLATES_FOR, state)
    kind = "fetched" if state.state == "fetched" else "fetched before"
    return _checked(LocatedSource(source, kind, folder, state.commit))


def _checked(located: LocatedSource) -> LocatedSource:
    missing = missing_parts(located.source, located.path)
    why = f"its repository does not hold {missing}"
    return LocatedSource(located.source, "missing", why=why) if missing else located


def _project_path(path: Path) -> str:
    """A path as texts may show it: within the project, else only its name."""
    return path.relative_to(paths.root).as_posix() if path.is_relative_to(paths.root) else path.name


def missing_parts(source: TemplateSource, path: Path) -> str:
    """What a folder or a single file does not hold, in words; empty where everything is there."""
    if path.is_file():
        names = [pattern.rpartition("/")[2] for pattern in _patterns(source)]
        is_there = any(path.match(name) for name in names) and _is_content(path)
        return "" if is_there else " or ".join(dict.fromkeys(names))
    return _listed({w: p for w, p in source.holds.items() if not any(map(_is_content, files_of(p, path)))})


def _listed(holds: Mapping[str, Sequence[str]]) -> str:
    return "; ".join(f"{words} ({' or '.join(patterns)})" for words, patterns in holds.items())


def _patterns(source: TemplateSource) -> list[str]:
    return [pattern for patterns in source.holds.values() for pattern in patterns]


def files_of(patterns: Iterable[str], folder: Path) -> list[Path]:
    """Files below a folder that patterns name, each once, in their order; hidden ones do not count."""
    named = dict.fromkeys(path for pattern in patterns for path in sorted(folder.glob(pattern)))
    hidden = {path for path in named if any(p.startswith(".") for p in path.relative_to(folder).parts)}
    return [path for path in named if path.is_file() and path not in hidden]


def files_used(name: str, path: Path) -> list[Path]:
    """Files that are read of a data set, at its folder or single file: what it must hold, and `also`."""
    if path.is_file():
        return [path]
    return files_of([*_patterns(SOURCES[name]), *SOURCES[name].also], path)


def _is_content(path: Path) -> bool:
    """Whether a file is more than the note that git-lfs leaves in place of a large one."""
    with path.open("rb") as handle:
        start = handle.read(len(_POINTER))
    return bool(start) and start != _POINTER
