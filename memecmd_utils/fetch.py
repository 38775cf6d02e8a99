"""What comes from elsewhere: git repositories at a commit, feeds by HTTP.

The first paper's repositories of images stand in `data/library_sources.yaml`, the second paper's data sets in
`data/template_sources.yaml`. A folder that a user names or made is used as it is.
"""

import fnmatch
import os
import re
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter
from tqdm.auto import tqdm

from memecmd_utils import __version__
from memecmd_utils.files import MemecmdError, paths
from memecmd_utils.settings import Profile

OFFLINE = ("MEMECMD_OFFLINE", "HF_HUB_OFFLINE")


class SourceError(MemecmdError, ValueError):
    """A data set is missing, cannot be fetched or is not what it should be; the message says what to do."""


def may_fetch() -> bool:
    """Whether the environment lets data sets be fetched."""
    return not any(os.environ.get(name, "").strip().upper() in ("1", "ON", "YES", "TRUE") for name in OFFLINE)


class Source(BaseModel):
    """One data set, as a list in `data/` has it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    """Also the name of its folder, from the last slash on."""
    title: str = ""
    url: str = ""
    """Address of its git repository; empty where it is not to be fetched."""
    commit: str | None = Field(default=None, pattern=r"^[0-9a-f]{40}$")
    """None: the head of the main branch at the first fetch."""
    licence: str
    want: list[str] = ["*"]
    """Names at the top level (shell patterns) that are fetched."""
    skip: list[str] = []
    archive: str = ""
    """Where its images lie if not in the repository: a person has to download it."""
    holds: dict[str, list[str]] = {}
    """What must be there: words, and patterns relative to its folder, of which any will do."""
    notes: str = ""
    key: str = Field(default_factory=lambda values: values["name"])
    """Its key in the profile and in `SET=`."""

    def how_to_provide(self) -> str:
        """How to bring the data set, and what it must hold."""
        held = "; ".join(f"{words} ({' or '.join(patterns)})" for words, patterns in self.holds.items())
        note = f" {self.notes}." if self.notes else ""
        return f'Give its folder or file, SET="{self.key}=PATH". It must hold {held}.{note}'


def source_list(name: str) -> list[Source]:
    """The data sets of a list in `data/`; pydantic names what is wrong in it."""
    text = (paths.data / f"{name}.yaml").read_text(encoding="utf-8")
    return TypeAdapter(list[Source]).validate_python(yaml.safe_load(text))


# --- git ----------------------------------------------------------------------------------------------

MARK = "memecmd.fetched"
"""Key in `.git/config` of a clone made here: `part`, or the commit once it is whole."""
# Nothing of the repository runs, no link leads out of the folder, and a server that trickles is given up.
SAFE = (
    "core.hooksPath=/dev/null", "core.symlinks=false", "core.autocrlf=false", "protocol.ext.allow=never",
    "credential.helper=", "http.lowSpeedLimit=1000", "http.lowSpeedTime=60", "advice.detachedHead=false",
)  # fmt: skip


def _git(folder: Path, *words: str, given: str = "", may_fail: bool = False) -> str:
    """Standard output of a git command in a folder; `SourceError` with git's last line."""
    command = ["git", "-C", str(folder), *(word for setting in SAFE for word in ("-c", setting)), *words]
    environment = {**os.environ, "LC_ALL": "C", "GIT_TERMINAL_PROMPT": "0"}
    try:
        done = subprocess.run(
            command, input=given.encode(), capture_output=True, env=environment, check=False
        )
    except FileNotFoundError as error:
        raise SourceError(
            "the program git is needed to fetch sources: install it (apt install git, brew install git), or "
            "give the folders yourself"
        ) from error
    if done.returncode and not may_fail:
        last = (done.stderr.decode("utf-8", "replace").strip().splitlines() or ["no message"])[-1]
        raise SourceError(f"git {words[0]} failed: {last}. Run again later: what was fetched is kept")
    return "" if done.returncode else done.stdout.decode("utf-8", "surrogateescape").strip("\n")


def commit_of(folder: Path) -> str:
    """Commit that a clone stands at; empty for a folder that is no clone, or one without a commit."""
    there = (folder / ".git").exists()
    return _git(folder, "rev-parse", "--verify", "--quiet", "HEAD", may_fail=True) if there else ""


def is_users(folder: Path) -> bool:
    """Whether a folder holds something that was not fetched here."""
    if not folder.is_dir() or not any(folder.iterdir()):
        return False
    return not (folder / ".git").is_dir() or not _git(folder, "config", "--get", MARK, may_fail=True)


def fetch_repository(
    url: str, folder: Path, want: Sequence[str] = ("*",), skip: Sequence[str] = (), commit: str | None = None
) -> str:
    """Bring the entries at the top level that match `want` and not `skip` into `folder`; return the commit.

    That is `commit`, else the one that was fetched before, else the head of the main branch. A clone that was
    cut off goes on, a whole one is not asked for again. Raises `SourceError`.
    """
    _init(url, folder)
    whole = _git(folder, "config", "--get", MARK, may_fail=True)
    if whole and whole in (commit, commit_of(folder)) and commit in (whole, None):
        return whole
    _git(folder, "config", MARK, "part")
    # Names of files, and no contents yet: those come folder by folder, each in one request.
    _git(
        folder, "fetch", "--quiet", "--no-tags", "--depth=1", "origin", commit or commit_of(folder) or "HEAD"
    )
    commit = _git(folder, "rev-parse", "FETCH_HEAD")
    entries = _git(folder, "ls-tree", "-z", "--name-only", commit).split("\0")
    names = [name for name in entries if name and _matches(name, want) and not _matches(name, skip)]
    if not names:
        raise SourceError(f"{url} at {commit} contains nothing that {', '.join(want)} names")
    for number, _ in enumerate(tqdm(names, desc=folder.name, unit="folder"), start=1):
        chosen = [re.sub(r"([\\*?\[\]!# ])", r"\\\1", name) for name in names[:number]]
        selection = "".join(f"/{name}\n" for name in chosen)
        _git(folder, "sparse-checkout", "set", "--no-cone", "--stdin", given=selection)
        _git(folder, "reset", "--quiet", "--hard", commit)
    _git(folder, "config", MARK, commit)
    return commit


def _init(url: str, folder: Path) -> None:
    """Make an empty clone of `url` in `folder`, which holds names only until contents are asked for."""
    if not (folder / ".git").is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        _git(folder, "init", "--quiet")
    for lock in (folder / ".git").glob("*.lock"):  # of a killed git, which would wait for itself for ever
        lock.unlink(missing_ok=True)
    for key, value in {"url": url, "promisor": "true", "partialclonefilter": "blob:none"}.items():
        _git(folder, "config", f"remote.origin.{key}", value)


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


# --- the first paper's own data ---------------------------------------------------------------------------

RELEASE = "MemeVerse"
"""Its folder below `data/raw`."""


def fetch_release(with_pictures: bool = False) -> Path:
    """Fetch the parts of `data/paper_data.yaml`, each at its commit, print what is there, return the folder.

    Parts that were fetched before are not asked for again. Raises `SourceError`.
    """
    release = yaml.safe_load((paths.data / "paper_data.yaml").read_text(encoding="utf-8"))
    folder = paths.raw / RELEASE
    if not is_users(folder):
        _init(release["url"], folder)
        _git(folder, "config", MARK, "part")
        parts = [part for part in release["parts"] if with_pictures or not part.get("pictures")]
        for number, part in enumerate(tqdm(parts, desc=folder.name, unit="part")):
            mark, wanted = f"{MARK}-{number}", " ".join([part["commit"], *part["paths"]])
            if _git(folder, "config", "--get", mark, may_fail=True) != wanted:
                _git(folder, "fetch", "--quiet", "--no-tags", "--depth=1", "origin", part["commit"])
                listed = _git(folder, "ls-tree", "-r", part["commit"], "--", *part["paths"])
                blobs = "\n".join(re.findall(r"blob (\w+)\t", listed))  # in one request, not one a file
                _git(folder, "fetch", "--quiet", "--no-tags", "origin", "--stdin", given=blobs)
                _git(folder, "checkout", "--quiet", part["commit"], "--", *part["paths"])
                _git(folder, "config", mark, wanted)
    held = [path for path in folder.rglob("*") if path.is_file() and ".git" not in path.parts]
    size = sum(path.stat().st_size for path in held) / 1e6
    print(f"{folder}: {len(held):,} files, {size:.1f} MB; licence: {release['licence']}")
    return folder


# --- the first paper's images ---------------------------------------------------------------------------


def fetch_library() -> None:
    """Fetch all of `library_sources` into `data/raw/sources` and print what is there."""
    for source in source_list("library_sources"):
        folder, note = paths.raw / "sources" / source.name.rpartition("/")[2], ""
        if is_users(folder):
            commit, state = commit_of(folder), "taken as it is"
        else:
            commit = fetch_repository(source.url, folder, source.want, source.skip, source.commit)
            state = "fetched"
        if source.archive and not (folder / "images").is_dir():
            note = f"\n  without its images: download {source.archive} and unzip it into {folder}/images"
        count = sum(path.is_file() and ".git" not in path.parts for path in folder.rglob("*"))
        at = f" at {commit[:12]}" if commit else ""
        print(f"{source.name}{at}: {state}, {count:,} files, licence: {source.licence}{note}")


# --- the second paper's data sets -----------------------------------------------------------------------


class LocatedSource(NamedTuple):
    """Where a data set is."""

    source: Source
    path: Path | None
    """None where it is missing."""
    state: str
    """`given` or `fetched`, or why it is missing."""


def locate(profile: Profile, *, fetch: bool = True) -> dict[str, LocatedSource]:
    """Look for the data sets, fetch what no profile key names, and say where each is, by name.

    Nothing is fetched without `fetch`, or where one of `OFFLINE` is set. Only what a user gave and is not
    what it should be raises `SourceError`.
    """
    return {
        source.name: _locate(source, getattr(profile.cm50, source.key), fetch and may_fetch())
        for source in source_list("template_sources")
    }


def _locate(source: Source, given: str | None, fetch: bool) -> LocatedSource:
    folder = paths.user_path(given) if given else paths.raw / "templates" / source.name
    own = bool(given) or is_users(folder)
    if not own:
        try:
            if fetch and source.url:
                fetch_repository(source.url, folder, source.want, source.skip, source.commit)
        except SourceError as error:
            return LocatedSource(source, None, str(error))
        if not commit_of(folder):
            return LocatedSource(source, None, "fetching is off" if source.url else "not published for all")
    lacking = [
        words
        for words, patterns in source.holds.items()
        if not any(folder.match(p.rpartition("/")[2]) or any(folder.glob(p)) for p in patterns)
    ]
    why = f"{folder} does not hold {', '.join(lacking)}" if lacking else ""
    if why and own:
        raise SourceError(f"{source.name}: {why}. {source.how_to_provide()}")
    return LocatedSource(source, None if why else folder, why or ("given" if own else "fetched"))


# --- feeds ------------------------------------------------------------------------------------------------

PRODUCT = "MemeCMD"
"""The name that robots.txt may address."""
HEADERS = {
    "User-Agent": f"{PRODUCT}/{__version__} (news feed reader of a research package; +https://arxiv.org/abs/2507.00891)",
    "Accept": "application/atom+xml, application/rss+xml, application/xml;q=0.9, */*;q=0.1",
}
MAX_BYTES = 2_000_000
"""Of one answer."""


class FetchError(Exception):
    """An address could not be had; the text is the reason."""


class Client:
    """Asks servers politely: as robots.txt allows, one request at a time, with a pause for every host."""

    def __init__(self, pause_s: float = 2.0) -> None:
        """`pause_s`: seconds between two requests to a host; a longer Crawl-delay wins."""
        import httpx2  # comes with the SDK of the endpoints

        self._http = httpx2.Client(
            headers=HEADERS,
            timeout=20,
            follow_redirects=True,
            max_redirects=5,
            event_hooks={"request": [self._before]},  # also before each redirect
            mounts={"all://localhost": None, "all://127.0.0.1": None},  # no proxy before this machine
        )
        self.pause_s = pause_s
        self._ready_at: dict[str, float] = {}
        self._rules: dict[str, Any] = {}

    def get(self, url: str) -> tuple[bytes, str]:
        """The body of an address, unpacked, and its content type. Raises `FetchError`."""
        import httpx2

        body = b""
        try:
            with self._http.stream("GET", url) as response:
                if response.status_code != 200:
                    raise FetchError(f"HTTP {response.status_code}")
                for chunk in response.iter_bytes():
                    body += chunk
                    if len(body) > MAX_BYTES:
                        raise FetchError(f"more than {MAX_BYTES:,} bytes")
                return body, response.headers.get("content-type", "")
        except (httpx2.RequestError, httpx2.InvalidURL) as error:
            raise FetchError(f"{type(error).__name__}: {error}") from error

    def _before(self, request: Any) -> None:
        """Refuse what is no address or what robots.txt forbids, and wait for the host's turn."""
        url = str(request.url)
        if not (host := host_of(url)):
            raise FetchError(f"{url[:200]!r} is not an address that can be fetched")
        pause_s = self.pause_s
        if request.url.path != "/robots.txt":
            rules = self._rules_of(f"{request.url.scheme}://{host}")
            if not rules.can_fetch(url, PRODUCT):
                raise FetchError(f"robots.txt of {host} forbids {url}")
            pause_s = max(pause_s, rules.crawl_delay(PRODUCT) or 0.0)
        time.sleep(max(0.0, self._ready_at.get(host, 0.0) - time.monotonic()))
        self._ready_at[host] = time.monotonic() + pause_s

    def _rules_of(self, origin: str) -> Any:
        """What robots.txt of a scheme and host says (RFC 9309)."""
        from protego import Protego

        if origin not in self._rules:
            self._rules[origin] = Protego.parse("")  # as long as robots.txt itself leads elsewhere
            try:
                text = self.get(f"{origin}/robots.txt")[0].decode("utf-8", "replace")
                self._rules[origin] = Protego.parse(text)
            except FetchError as error:  # 4xx allows all; 5xx, 429 and silence nothing for now
                if not re.fullmatch(r"HTTP 4(?!29)\d\d", str(error)):
                    del self._rules[origin]
                    raise FetchError(f"{origin}/robots.txt cannot be read: {error}") from error
        return self._rules[origin]


def host_of(url: str) -> str:
    """Host and port of an http(s) address without user or password; empty for any other text."""
    import httpx2

    try:
        address = httpx2.URL(url)
    except httpx2.InvalidURL:
        return ""
    is_good = address.scheme in ("http", "https") and not address.userinfo
    return address.netloc.decode() if is_good else ""
