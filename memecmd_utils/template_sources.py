"""Where the data sets of `make templates` are: given, fetched once, or what to put where.

A folder named in the profile is used as it is. Without one, the public repository is fetched once into
`data/raw/templates/<name>`. No commit is pinned beforehand: the head of the main branch at the first fetch is
written into `SOURCES.csv` there and stays the pin until that row or the folder is removed. Nothing is fetched
where `HF_HUB_OFFLINE` or `MEMECMD_OFFLINE` is set; a server that stays silent is given up after `QUIET_S`.
"""

import contextlib
import csv
import io
import os
import signal
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal, NamedTuple
from urllib.parse import urlsplit

import pandas as pd

from memecmd_utils import git_source, library_sources, paths, profiles, storage
from memecmd_utils.images import LibraryError
from memecmd_utils.template_source_list import HOST, SOURCES, TemplateSource, lacking, read_of

QUIET_S = 30
"""Seconds in which a server must say which commit its main branch stands at."""
OFFLINE = ("MEMECMD_OFFLINE", "HF_HUB_OFFLINE")
RECORD = "SOURCES.csv"
"""What was fetched: the columns of `data/SOURCES.csv`, in the folder of the fetched data sets."""
_CHANGED = "changed since it was fetched"


class SourceError(LibraryError):
    """A data set that is missing or not what it should be; the message says what to put where."""


class Found(NamedTuple):
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
        if self.path is None:
            return f"{self.source.title}: not here ({self.why}). {what_to_give(self.source.name)}"
        at = f" at {self.commit[:12]}" if self.commit else ""
        odd = f", {self.why}" if self.why else ""
        return (
            f"{self.source.title}{at}: {self.state}, {_shown(self.path)}, licence: {self.source.licence}{odd}"
        )


def what_to_give(name: str) -> str:
    """Which repository, which files and which key of `SET=` bring a data set; `KeyError` for another name."""
    source = SOURCES[name]
    parts = "; ".join(f"{part.words} ({' or '.join(part.patterns)})" for part in source.holds)
    if source.repository:
        place = _shown(paths.raw / "templates" / name)
        how = f'Clone {HOST}{source.repository} and give its folder: SET="{name}=FOLDER", or put it into '
        how += f"{place}."
    else:
        how = f'Give its folder or file: SET="{name}=PATH".'
    notes = f" Note: {source.notes}." if source.notes else ""
    return f"{how} It must hold {parts}.{notes}"


def find(
    profile: profiles.Profile,
    *,
    fetch: bool | None = None,
    names: Iterable[str] = tuple(SOURCES),
    target: Path | None = None,
    host: str = HOST,
) -> dict[str, Found]:
    """Look for the data sets `names`, fetch what no profile key names, and say where each is.

    `fetch`: whether to fetch; None: unless one of `OFFLINE` is set. `target` is `data/raw/templates` if not
    given, `host` what stands before owner/name. A data set that cannot be had has `state` "missing" and
    `why`; only what a user put somewhere and is not what it should be raises `SourceError`.
    """
    target = target or paths.raw / "templates"
    silent: dict[str, str] = {}
    found = {}
    for name in names:
        source, given = SOURCES[name], getattr(profile, name)
        if given:
            found[name] = _given(source, paths.root / Path(given).expanduser())
        else:
            found[name] = _own(source, target, host, may_fetch() if fetch is None else fetch, silent)
    return found


def table(found: Mapping[str, Found]) -> pd.DataFrame:
    """One row a data set: state, where it is, its licence, and what to give where it is missing."""
    rows = [
        {
            "data set": one.source.title,
            "key": name,
            "state": one.state,
            "where": _shown(one.path) if one.path else "",
            "commit": one.commit[:12],
            "licence": one.source.licence,
            "note": one.why,
            "what to give": "" if one.path else what_to_give(name),
        }
        for name, one in found.items()
    ]
    return pd.DataFrame(rows)


def states(found: Mapping[str, Found]) -> dict[str, str]:
    """Commit, number and SHA-256 of the files of each data set that is there, for a manifest.

    Counted are the files that it must hold and those that are read where they are there, by
    `library_sources.checksum`.
    """
    told = {}
    for name, one in found.items():
        if one.path is None:
            continue
        base = one.path if one.path.is_dir() else one.path.parent
        count, whole = library_sources.checksum(base, read_of(name, one.path))
        told[name] = f"{f'commit {one.commit} ' if one.commit else ''}files {count} sha256 {whole}"
    return told


def may_fetch() -> bool:
    """Whether the environment lets data sets be fetched."""
    return not any(os.environ.get(name, "").strip().upper() in ("1", "ON", "YES", "TRUE") for name in OFFLINE)


def _given(source: TemplateSource, path: Path) -> Found:
    if not path.exists():
        raise SourceError(f"{source.name}: {path} does not exist. {what_to_give(source.name)}")
    if without := lacking(source, path):
        raise SourceError(f"{source.name}: {path} does not hold {without}. {what_to_give(source.name)}")
    return Found(source, "given", path, git_source.head(path) if path.is_dir() else "")


def _own(source: TemplateSource, target: Path, host: str, fetch: bool, silent: dict[str, str]) -> Found:
    """A data set in the folder of fetched ones; a folder there that a user made is taken as it is."""
    folder, record = target / source.name, target / RECORD
    there = folder.is_dir() and any(folder.iterdir())
    if there and not git_source.is_ours(folder):
        return _given(source, folder)
    said = library_sources.recorded(record, source.repository) if source.repository else {}
    here = git_source.head(folder) if there else ""
    if here and here == said.get("commit"):
        if library_sources.checksum(folder)[1] == said.get("sha256"):
            return _checked(Found(source, "fetched before", folder, here))
        if not fetch:
            return _checked(Found(source, "fetched before", folder, here, _CHANGED))
    if not source.repository:
        return Found(source, "missing", why="not published for all")
    if not fetch:
        return Found(source, "missing", why="fetching is off")
    url = host + source.repository
    try:
        head = _branch_head(url, silent)
        commit = said.get("commit") or here or head
        git_source.fetch(url, commit, folder, source.want)
    except LibraryError as error:
        why = str(error).replace("data/library_sources.yaml", f"{RECORD} beside its folder")
        if here and here == said.get("commit"):
            return _checked(Found(source, "fetched before", folder, here, f"{_CHANGED}; {why}"))
        return Found(source, "missing", why=why)
    _write_row(record, source, url, commit, *library_sources.checksum(folder))
    return _checked(Found(source, "fetched", folder, commit))


def _checked(found: Found) -> Found:
    without = lacking(found.source, found.path) if found.path else ""
    return Found(found.source, "missing", why=f"its repository does not hold {without}") if without else found


def _branch_head(url: str, silent: dict[str, str]) -> str:
    """Commit at the head of the main branch; asked with a time-out, and a silent host only once."""
    host = urlsplit(url).netloc
    if host in silent:
        raise SourceError(silent[host])
    options = [word for setting in git_source.SAFE for word in ("-c", setting)]
    environment = {**os.environ, "LC_ALL": "C", "GIT_TERMINAL_PROMPT": "0"}
    try:
        asked = subprocess.Popen(
            ["git", *options, "ls-remote", "--", url, "HEAD"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )
    except FileNotFoundError as error:
        raise SourceError("the program git is not installed") from error
    with asked:
        try:
            out, err = asked.communicate(timeout=QUIET_S)
        except subprocess.TimeoutExpired as error:
            _kill(asked)
            silent[host] = f"no connection: {host} said nothing within {QUIET_S} s"
            raise SourceError(silent[host]) from error
        except BaseException:  # also when stopped by hand: its helper would go on for minutes
            _kill(asked)
            raise
    commit = out.decode("ascii", "replace").split("\t")[0]
    if asked.returncode == 0 and git_source.COMMIT.fullmatch(commit):
        return commit
    said = err.decode("utf-8", "replace").strip()
    last = said.splitlines()[-1] if said else "no main branch"
    if git_source.NO_REPOSITORY.search(said):
        raise SourceError(f"there is no repository {url}")
    if git_source.NO_CONNECTION.search(said):
        silent[host] = "no connection: " + last.rpartition("': ")[2]
        raise SourceError(silent[host])
    raise SourceError(f"{url} cannot be asked: {last}")


def _kill(process: subprocess.Popen) -> None:
    """End git and the helper that it started, which holds the pipes open."""
    with contextlib.suppress(ProcessLookupError):
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()


def _write_row(record: Path, source: TemplateSource, url: str, commit: str, files: int, sha256: str) -> None:
    rows: dict[str, list[str]] = {}
    if record.is_file():
        with record.open(encoding="utf-8", newline="") as handle:
            rows = {row[0]: row for row in list(csv.reader(handle))[1:] if row}
    used_for = "template memes (make templates); nothing of it is in this repository"
    state = f"commit {commit} files {files} sha256 {sha256}"
    rows[source.repository] = [source.repository, url, source.licence, used_for, state]
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows([library_sources.COLUMNS, *rows.values()])
    storage.write_text(record, buffer.getvalue())


def _shown(path: Path) -> str:
    """A path as texts may show it: within the project, else only its name."""
    return path.relative_to(paths.root).as_posix() if path.is_relative_to(paths.root) else path.name
