"""Fetch the wanted folders of one commit of a git repository: shallow, sparse, and resumable."""

import contextlib
import fnmatch
import os
import re
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tqdm.auto import tqdm

from memecmd_utils.core import images

COMMIT = re.compile(r"[0-9a-f]{40}")
MARK = "memecmd.source"
"""Key in `.git/config` of what this module made; a clone without it is the user's and is left as it is."""
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


class NoConnection(images.LibraryError):
    """A server cannot be reached or stays silent."""


def is_ours(folder: Path) -> bool:
    """Whether `fetch` made this clone (perhaps only in part)."""
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
        raise images.LibraryError(f"{url} names no main branch: a commit must be set")
    return commit


def fetch(
    url: str,
    commit: str,
    folder: Path,
    want: Sequence[str] = ("*",),
    skip: Sequence[str] = (),
) -> None:
    """Bring the entries of `commit` at the top level that match `want` and not `skip` into `folder`.

    Patterns are those of a shell. Pictures come folder by folder, so a fetch that was killed goes on where it
    was. At the end every file is as the commit has it. Raises `images.LibraryError` saying what to do: no
    git, no connection, no such commit, disk full.
    """
    if not COMMIT.fullmatch(commit):
        raise images.LibraryError(f"{commit!r} is no commit: 40 hex digits are needed")
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / ".git").is_dir():
        _git(folder, "init", "--quiet")
    _remove_locks(folder)
    _git(folder, "config", MARK, f"{url} {commit}")
    _set_remote(folder, url)
    if not _has_tree(folder, commit):
        _git(
            folder, "fetch", "--quiet", "--no-tags", "--depth=1", "origin", commit,
            where=f"{url} at {commit}",
        )  # fmt: skip
    names = wanted_entries(folder, commit, want, skip)
    if not names:
        raise images.LibraryError(f"{url} at {commit} holds nothing that `want` names")
    if head(folder) != commit:
        # An empty selection first: nothing is fetched until the folders are asked for one by one.
        _select(folder, [])
        _git(folder, "checkout", "--quiet", "--force", "--detach", commit, where=url)
    for number, name in enumerate(tqdm(names, desc=folder.name, unit="folder"), start=1):
        if not (folder / name).exists() or number == len(names):
            _select(folder, names[:number])
            # Brings the pictures of this folder in one request, and gives back what was cut off or changed.
            _git(folder, "read-tree", "--reset", "-u", "HEAD", where=url)


def wanted_entries(folder: Path, commit: str, want: Sequence[str], skip: Sequence[str]) -> list[str]:
    """Names at the top level of the commit's tree that match a pattern of `want` and none of `skip`."""
    names = _git(folder, "ls-tree", "-z", "--name-only", commit).split("\0")

    def fits(name: str, patterns: Sequence[str]) -> bool:
        return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)

    return [name for name in names if name and fits(name, want) and not fits(name, skip)]


def _set_remote(folder: Path, url: str) -> None:
    """A fetch brings no contents of files (filter); they come when a folder is asked for (promisor)."""
    for key, value in {"url": url, "promisor": "true", "partialclonefilter": "blob:none"}.items():
        _git(folder, "config", f"remote.origin.{key}", value)


def _has_tree(folder: Path, commit: str) -> bool:
    """Whether the commit's list of files is there; asking must not fetch it, hence no promisor."""
    found = _git(
        folder, "-c", "remote.origin.promisor=false", "ls-tree", "-r", "--name-only", commit, may_fail=True
    )
    return bool(found)


def _select(folder: Path, names: Sequence[str]) -> None:
    """Write the sparse selection (as in .gitignore, names escaped); working files follow with `read-tree`."""
    _git(folder, "config", "core.sparseCheckout", "true")
    _git(folder, "config", "core.sparseCheckoutCone", "false")
    lines = [f"/{_escaped(name)}" for name in names] or ["/.nothing"]
    file = folder / ".git" / "info" / "sparse-checkout"
    file.parent.mkdir(exist_ok=True)
    file.write_text("\n".join(lines) + "\n", encoding="utf-8", newline="\n")


def _escaped(name: str) -> str:
    escaped = re.sub(r"([\\*?\[\]!#])", r"\\\1", name)
    return re.sub(r" +$", lambda blanks: r"\ " * len(blanks[0]), escaped)


def _remove_locks(folder: Path) -> None:
    """A killed git leaves its lock files behind and would wait for itself for ever."""
    for lock in (folder / ".git").glob("*.lock"):
        lock.unlink(missing_ok=True)


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
        raise images.LibraryError(
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
        raise _error(err.decode("utf-8", "replace").strip(), words[0], where)
    return "" if process.returncode else out.decode("utf-8", "surrogateescape")


def _kill(process: subprocess.Popen, whole_session: bool) -> None:
    """End git, and the helper that it started in its session, which holds the pipes open."""
    with contextlib.suppress(ProcessLookupError):
        if whole_session and hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()


def _error(said: str, command: str, where: str) -> images.LibraryError:
    last = said.splitlines()[-1] if said else "no message"
    if "no space left" in said.lower():
        text = f"the disk is full ({last}): make room and run again, what was fetched is kept"
    elif where and NO_COMMIT.search(said):
        text = f"{where}: the server does not have this commit; correct the one that is written down"
    elif where and NO_REPOSITORY.search(said):
        text = f"{where}: there is no such repository; correct its address"
    elif where and NO_CONNECTION.search(said):
        return NoConnection(f"{where}: no connection ({last}). Run again later, what was fetched is kept")
    else:
        text = f"git {command} failed{f' for {where}' if where else ''}: {last}"
    return images.LibraryError(text)
