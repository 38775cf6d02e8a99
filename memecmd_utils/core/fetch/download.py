"""Folders from elsewhere: the wanted part of a git repository's commit, and the images of a zip archive.

Both go on where they were killed, and trust nothing of what they bring.
"""

import contextlib
import fnmatch
import os
import re
import signal
import stat
import subprocess
import zipfile
import zlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from tqdm.auto import tqdm

from memecmd_utils import files, pictures
from memecmd_utils.pictures import LibraryError

COMMIT = re.compile(r"[0-9a-f]{40}")
MARK = "memecmd.source"
"""Key in `.git/config` of what was fetched here; a clone without it is the user's and is left as it is."""
ANSWER_S = 30
"""Seconds in which a server must say which commit its main branch stands at."""
# Nothing of the repository or of the user's settings runs or rewrites: no hooks, line ends or links; and no
# program asks for a password.
SAFE = (
    "core.hooksPath=/dev/null", "core.autocrlf=false", "core.symlinks=false", "core.longpaths=true",
    "protocol.ext.allow=never", "credential.helper=", "core.askPass=", "gc.auto=0",
    "advice.detachedHead=false", "http.lowSpeedTime=60",
    "http.lowSpeedLimit=1000",  # less than 1 kB a second for a minute: given up
)  # fmt: skip
NO_CONNECTION = re.compile(
    r"could not resolve|unable to access|connection (?:refused|reset|timed out)|"
    r"operation (?:too slow|timed out)|network is unreachable|early eof|unexpected disconnect|"
    r"remote end hung up|rpc failed",
    re.IGNORECASE,
)
NO_COMMIT = re.compile(r"not our ref|unadvertised object|couldn't find remote ref|no such remote ref", re.I)
NO_REPOSITORY = re.compile(r"repository.*(?:not found|does not exist)|does not appear to be a git repo", re.I)
MAX_ENTRIES = 200_000
MAX_TOTAL = 20_000_000_000
"""Bytes of all images together, unpacked; the archive of 4,002 memes has a fraction of it."""
MAX_RATIO = 200
"""Unpacked over packed bytes of one image: pictures hardly shrink, so more is a bomb."""


class NoConnection(LibraryError):
    """A server cannot be reached or stays silent."""


def is_ours(folder: Path) -> bool:
    """Whether `fetch_commit` made this clone (perhaps only in part)."""
    return (folder / ".git").is_dir() and bool(_git(folder, "config", "--get", MARK, may_fail=True))


def head(folder: Path) -> str:
    """Commit that a clone stands at; empty for a folder that is no clone, or one without a commit."""
    if not (folder / ".git").exists():
        return ""
    return _git(folder, "rev-parse", "--verify", "--quiet", "HEAD", may_fail=True).strip()


def branch_head(url: str) -> str:
    """Commit at the head of the repository's main branch, as its server says now, within `ANSWER_S`."""
    commit = _git(None, "ls-remote", "--", url, "HEAD", where=url, answer_s=ANSWER_S).split("\t")[0]
    if not COMMIT.fullmatch(commit):
        raise LibraryError(f"{url} names no main branch: a commit must be set")
    return commit


def fetch_commit(
    url: str, commit: str, folder: Path, want: Sequence[str] = ("*",), skip: Sequence[str] = ()
) -> None:
    """Bring the entries of `commit` at the top level that match `want` and not `skip` into `folder`.

    Shallow and sparse; patterns are those of a shell. At the end every file is as the commit has it. Raises
    `LibraryError` saying what to do: no git, no connection, no such commit, disk full.
    """
    if not COMMIT.fullmatch(commit):
        raise LibraryError(f"{commit!r} is no commit: 40 hex digits are needed")
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / ".git").is_dir():
        _git(folder, "init", "--quiet")
    for lock in (folder / ".git").glob("*.lock"):  # of a killed git, which would wait for itself for ever
        lock.unlink(missing_ok=True)
    _git(folder, "config", MARK, f"{url} {commit}")
    # A fetch brings no contents of files (filter); they come when a folder is asked for (promisor).
    for key, value in {"url": url, "promisor": "true", "partialclonefilter": "blob:none"}.items():
        _git(folder, "config", f"remote.origin.{key}", value)
    # Whether the commit's list of files is there; asking must not fetch it, hence no promisor.
    listing = ("-c", "remote.origin.promisor=false", "ls-tree", "-r", "--name-only", commit)
    if not _git(folder, *listing, may_fail=True):
        where = f"{url} at {commit}"
        _git(folder, "fetch", "--quiet", "--no-tags", "--depth=1", "origin", commit, where=where)
    entries = _git(folder, "ls-tree", "-z", "--name-only", commit).split("\0")
    names = [name for name in entries if name and _matches(name, want) and not _matches(name, skip)]
    if not names:
        raise LibraryError(f"{url} at {commit} holds nothing that `want` names")
    if head(folder) != commit:
        # An empty selection first: nothing is fetched until the folders are asked for one by one.
        _select(folder, [])
        _git(folder, "checkout", "--quiet", "--force", "--detach", commit, where=url)
    for number, name in enumerate(tqdm(names, desc=folder.name, unit="folder"), start=1):
        if not (folder / name).exists() or number == len(names):
            _select(folder, names[:number])
            # Brings the pictures of this folder in one request, and gives back what was cut off or changed.
            _git(folder, "read-tree", "--reset", "-u", "HEAD", where=url)


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _select(folder: Path, names: Sequence[str]) -> None:
    """Write the sparse selection (as in .gitignore, names escaped); working files follow with `read-tree`."""
    _git(folder, "config", "core.sparseCheckout", "true")
    _git(folder, "config", "core.sparseCheckoutCone", "false")
    lines = []
    for name in names or [".nothing"]:
        escaped = re.sub(r"([\\*?\[\]!#])", r"\\\1", name)
        lines.append("/" + re.sub(r" +$", lambda blanks: r"\ " * len(blanks[0]), escaped))
    file = folder / ".git" / "info" / "sparse-checkout"
    file.parent.mkdir(exist_ok=True)
    file.write_text("\n".join(lines) + "\n", encoding="utf-8", newline="\n")


def _git(
    folder: Path | None, *words: str, where: str = "", may_fail: bool = False, answer_s: float | None = None
) -> str:
    """Standard output of a git command, in UTF-8; `where` names what it asks a server for."""
    options = [word for setting in SAFE for word in ("-c", setting)]
    at = ["-C", str(folder)] if folder is not None else []
    environment = {
        **{key: value for key, value in os.environ.items() if not key.startswith("GIT_DIR")},
        "LC_ALL": "C",
        "GIT_TERMINAL_PROMPT": "0",  # a repository that does not exist asks for a password, and waits
        "GIT_CEILING_DIRECTORIES": str(folder.parent) if folder is not None else "",
    }
    try:
        process = subprocess.Popen(
            ["git", *options, *at, *words],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env=environment, start_new_session=answer_s is not None,
        )  # fmt: skip
    except FileNotFoundError as error:
        raise LibraryError(
            "the program git is needed to fetch sources: install it (apt install git, brew install git), or "
            "give the folders yourself"
        ) from error
    with process:
        try:
            out, err = process.communicate(timeout=answer_s)
        except subprocess.TimeoutExpired as error:
            _kill(process, answer_s is not None)
            raise NoConnection(f"{where}: no connection: the server said nothing in {answer_s} s") from error
        except BaseException:  # also when stopped by hand: its helper would go on for minutes
            _kill(process, answer_s is not None)
            raise
    if process.returncode and not may_fail:
        raise _git_error(err.decode("utf-8", "replace").strip(), words[0], where)
    return "" if process.returncode else out.decode("utf-8", "surrogateescape")


def _kill(process: subprocess.Popen, whole_session: bool) -> None:
    """End git, and the helper that it started in its session, which holds the pipes open."""
    with contextlib.suppress(ProcessLookupError):
        if whole_session:
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()


def _git_error(message: str, command: str, where: str) -> LibraryError:
    last = message.splitlines()[-1] if message else "no message"
    if "no space left" in message.lower():
        return LibraryError(f"the disk is full ({last}): make room and run again, what was fetched is kept")
    if where and NO_COMMIT.search(message):
        return LibraryError(f"{where}: the server does not have this commit; correct the one written down")
    if where and NO_REPOSITORY.search(message):
        return LibraryError(f"{where}: there is no such repository; correct its address")
    if where and NO_CONNECTION.search(message):
        return NoConnection(f"{where}: no connection ({last}). Run again later, what was fetched is kept")
    return LibraryError(f"git {command} failed{f' for {where}' if where else ''}: {last}")


class Unpacked(NamedTuple):
    """Files that `unpack` wrote, found whole from an earlier call, and left out as no images."""

    written: int
    kept: int
    skipped: int


def unpack(archive: Path, folder: Path) -> Unpacked:
    """Unpack the images of `archive` below `folder`, each whole or not at all.

    Raises `LibraryError` for a file that is no archive, an entry that leads out of the folder, a password, a
    broken entry, or more than the caps of this module.
    """
    if not archive.is_file():
        raise LibraryError(f"there is no file {archive}: name one, as in make library-sources ZIP=...")
    counts: Counter[str] = Counter()
    try:
        with zipfile.ZipFile(archive) as source:
            for entry in tqdm(_checked(source.infolist(), archive.name), desc=archive.name, unit="file"):
                counts[_unpack_entry(source, entry, folder, archive.name)] += 1
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise LibraryError(
            f"{archive.name} is no whole zip archive ({error}): download it again; what was unpacked is kept"
        ) from error
    except NotImplementedError as error:
        raise LibraryError(f"{archive.name}: {error}; pack it anew with an ordinary zip program") from error
    if not counts["written"] + counts["kept"]:
        raise LibraryError(f"{archive.name} holds no image")
    return Unpacked(*(counts[name] for name in Unpacked._fields))


def _path_of(entry: zipfile.ZipInfo) -> PurePosixPath:
    return PurePosixPath(entry.filename.replace("\\", "/"))


def _checked(entries: list[zipfile.ZipInfo], name: str) -> list[zipfile.ZipInfo]:
    """Files of the archive, if all of them stay within the folder and the caps."""
    if len(entries) > MAX_ENTRIES:
        raise LibraryError(f"{name} has {len(entries):,} entries; the limit is {MAX_ENTRIES:,}")
    for entry in entries:
        path = _path_of(entry)
        if path.is_absolute() or ".." in path.parts or (path.parts[:1] and path.parts[0].endswith(":")):
            raise LibraryError(
                f"{name}: entry {entry.filename!r} leads out of the folder; do not trust this archive"
            )
        if entry.flag_bits & 1:
            raise LibraryError(f"{name} is locked with a password: unpack it and pack the images anew")
    # What a header says may be a lie, so the same caps are checked again while reading.
    total = sum(entry.file_size for entry in entries if _is_image_name(entry))
    if total > MAX_TOTAL:
        raise LibraryError(f"{name} would unpack to {total:,} bytes; the limit is {MAX_TOTAL:,}")
    return [entry for entry in entries if not entry.is_dir()]


def _is_image_name(entry: zipfile.ZipInfo) -> bool:
    path = _path_of(entry)
    is_link = stat.S_ISLNK(entry.external_attr >> 16)
    is_hidden = any(part.startswith(".") or part in pictures.SKIPPED_FOLDERS for part in path.parts)
    return not is_link and not is_hidden and path.suffix.lower() in pictures.EXTENSIONS


def _unpack_entry(source: zipfile.ZipFile, entry: zipfile.ZipInfo, folder: Path, name: str) -> str:
    """Unpack one entry; the field of `Unpacked` in which it counts."""
    if not _is_image_name(entry):
        return "skipped"
    target = folder / _path_of(entry)
    is_there = target.is_file() and target.stat().st_size == entry.file_size
    if is_there and zlib.crc32(target.read_bytes()) == entry.CRC:
        return "kept"
    limit = min(pictures.MAX_BYTES, max(MAX_RATIO * entry.compress_size, 1 << 16))
    data = b""
    if entry.file_size <= limit:
        with source.open(entry) as stream:
            data = stream.read(limit + 1)
    size = max(entry.file_size, len(data))
    if size > limit:
        raise LibraryError(
            f"{name}: {entry.filename!r} unpacks {entry.compress_size:,} bytes to {size:,} or more: a bomb?"
        )
    if not pictures.looks_like_image(data[:16]):
        return "skipped"
    try:
        with files.atomic_path(target) as part:
            part.write_bytes(data)
    except OSError as error:
        raise LibraryError(
            f"{target.name} cannot be written ({error.strerror}): make room and run again, "
            "what was unpacked is kept"
        ) from error
    return "written"
