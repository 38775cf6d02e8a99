"""Fetch the paper's three repositories of images at pinned commits, and write down what was fetched."""

import csv
import hashlib
import io
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import yaml
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from tqdm.auto import tqdm

from memecmd_utils import archive_source, git_source, paths, storage
from memecmd_utils.images import LibraryError

COLUMNS = ["name", "url", "licence", "used_for", "sha256_or_commit"]
"""Columns of `data/SOURCES.csv`."""
USED_FOR = "memes of PROFILE=paper; nothing of it is in this repository"
UNPACKED = "images"
"""Folder of a source that takes the images of its archive."""


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


class Fetched(NamedTuple):
    """What is there of a source after `fetch`."""

    source: LibrarySource
    folder: Path
    state: Literal["fetched", "already whole", "taken as it is"]
    commit: str
    """Empty where the folder was the user's own and no clone."""
    files: int
    sha256: str
    """Over the sorted list of paths and their SHA-256."""
    unpacked: archive_source.Unpacked | None = None

    def text(self) -> str:
        """One line for the terminal, and a second one where images are still missing."""
        at = f" at {self.commit[:12]}" if self.commit else ""
        lines = [
            f"{self.source.name}{at}: {self.state}, {self.files:,} files, sha256 {self.sha256[:12]}, "
            f"licence: {self.source.licence}"
        ]
        if self.unpacked:
            new, kept, skipped = self.unpacked
            lines.append(
                f"  archive: {new:,} images unpacked, {kept:,} were there, {skipped:,} other entries left out"
            )
        elif self.source.archive and not (self.folder / UNPACKED).is_dir():
            lines.append(
                f"  its images are not in the repository: download {self.source.archive} and run "
                "make library-sources ZIP=path/to/it"
            )
        return "\n".join(lines)


def read_list(path: Path | None = None) -> list[LibrarySource]:
    """The sources in `path` (by default `data/library_sources.yaml`); `LibraryError` names what is wrong."""
    path = path or paths.data / "library_sources.yaml"
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
        return TypeAdapter(list[LibrarySource]).validate_python(values)
    except FileNotFoundError as error:
        raise LibraryError(f"{path} does not exist") from error
    except (yaml.YAMLError, ValidationError) as error:
        raise LibraryError(f"{path.name}: {error}") from error


def fetch(
    sources: Sequence[LibrarySource] | None = None,
    archive: Path | None = None,
    target: Path | None = None,
    table: Path | None = None,
    say: Callable[[str], None] = print,
) -> list[Fetched]:
    """Fetch all sources into folders of `target`, unpack `archive`, write each one's row into `table`.

    A folder that this function did not make is taken as it is; a whole one is checked against its row and not
    fetched again; one that was cut off goes on. Defaults: the tracked list, `data/raw/sources`,
    `data/SOURCES.csv`. Raises `LibraryError` with what to do; the rows of the sources before it are written.
    """
    sources = read_list() if sources is None else list(sources)
    target = target or paths.raw / "sources"
    table = table or paths.data / "SOURCES.csv"
    if archive and not any(source.archive for source in sources):
        raise LibraryError("an archive is given, but no source in the list has its images in one")
    found = []
    for source in sources:
        done = _fetch_one(source, target / source.folder, table)
        if archive and source.archive:
            done = _with_archive(done, archive)
        write_row(table, done)
        say(done.text())
        found.append(done)
    return found


def checksum(folder: Path, files: Iterable[Path] | None = None) -> tuple[int, str]:
    """Number of `files` below `folder` and the SHA-256 over the sorted list of their paths and SHA-256s.

    None counts all files; but hidden entries at the top level (`.git`) do not count, images unpacked from an
    archive do.
    """
    lines = []
    for path in _files(folder) if files is None else files:
        lines.append(f"{path.relative_to(folder).as_posix()}\0{storage.sha256(path)}\n")
    whole = hashlib.sha256()
    for line in sorted(lines):
        whole.update(line.encode("utf-8", "surrogateescape"))
    return len(lines), whole.hexdigest()


def write_row(table: Path, fetched: Fetched) -> None:
    """Add or replace the row of a source in `SOURCES.csv`; all other lines stay, byte for byte."""
    source = fetched.source
    at = f"commit {fetched.commit} " if fetched.commit else ""
    buffer = io.StringIO()
    values = [
        source.name,
        source.url,
        source.licence,
        USED_FOR,
        f"{at}files {fetched.files} sha256 {fetched.sha256}",
    ]
    csv.writer(buffer, lineterminator="\n").writerow(values)
    row = buffer.getvalue()
    text = table.read_text(encoding="utf-8") if table.is_file() else ",".join(COLUMNS) + "\n"
    if text.partition("\n")[0].split(",") != COLUMNS:
        raise LibraryError(f"{table}: the first line must be {','.join(COLUMNS)}")
    lines = text.splitlines(keepends=True)
    own = [number for number, line in enumerate(lines) if next(csv.reader([line]), [""])[:1] == [source.name]]
    if own:
        lines[own[0]] = row
    else:
        lines.append(row if lines[-1].endswith("\n") else "\n" + row)
    new = "".join(lines)
    if new != text:
        storage.write_text(table, new)


def recorded(table: Path, name: str) -> dict[str, str]:
    """What the row of a source says: `commit`, `files`, `sha256`; empty without a row."""
    if not table.is_file():
        return {}
    with table.open(encoding="utf-8", newline="") as handle:
        for row in csv.DictReader(handle):
            if row["name"] == name:
                words = row["sha256_or_commit"].split()
                return dict(zip(words[::2], words[1::2], strict=False))
    return {}


def _fetch_one(source: LibrarySource, folder: Path, table: Path) -> Fetched:
    if folder.is_dir() and any(folder.iterdir()) and not git_source.is_ours(folder):
        files, sha256 = checksum(folder)
        return Fetched(source, folder, "taken as it is", git_source.head(folder), files, sha256)
    said = recorded(table, source.name)
    # Without a pin the commit that was fetched first is the pin, until its row or folder is removed.
    commit = source.commit or said.get("commit") or git_source.branch_head(source.url)
    if git_source.head(folder) == commit == said.get("commit"):
        files, sha256 = checksum(folder)
        if sha256 == said.get("sha256"):
            return Fetched(source, folder, "already whole", commit, files, sha256)
    with tqdm(desc=source.folder, unit="folder") as bar:

        def progress(name: str, done: int, total: int) -> None:
            bar.total, bar.n = total, done
            bar.set_postfix_str(name)

        git_source.fetch(source.url, commit, folder, source.want, source.skip, progress)
    return Fetched(source, folder, "fetched", commit, *checksum(folder))


def _with_archive(done: Fetched, archive: Path) -> Fetched:
    def track(entries: list) -> tqdm:
        return tqdm(entries, desc=archive.name, unit="file")

    unpacked = archive_source.unpack(archive.expanduser(), done.folder / UNPACKED, track)
    return Fetched(*done[:4], *checksum(done.folder), unpacked)


def _files(folder: Path) -> Iterator[Path]:
    for base, folders, names in os.walk(folder):
        if Path(base) == folder:
            folders[:] = [name for name in folders if not name.startswith(".")]
            names = [name for name in names if not name.startswith(".")]
        yield from (Path(base) / name for name in names)
