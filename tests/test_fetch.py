"""Repositories come at one commit, whole, and nothing else of them; a killed fetch goes on.

A data set that is missing says what to do. Servers are asked politely: as robots.txt allows, with pauses.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from fault_server import Answer
from web_site import Site

from memecmd_utils import fetch
from memecmd_utils.fetch import Client, FetchError, SourceError
from memecmd_utils.files import paths
from memecmd_utils.settings import Profile

REAL_DATA = paths.data
ODD = ["[盒子]!", "鸽子🕊BQB", "a b ", "#x", "w*"]


def git(folder: Path, *words: str) -> str:
    who = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", *who, "-C", folder, *words], check=True, capture_output=True, timeout=60)
    return done.stdout.decode()


@pytest.fixture(scope="module")
def upstream(tmp_path_factory) -> Path:
    """A real repository. Its first commit is tagged `one` and has a link out; a second deletes and adds."""
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    home = tmp_path_factory.mktemp("upstream")
    git(home, "init", "-q", "-b", "main")
    # As the well-known host does: parts, and any commit by its name.
    for key in ("allowFilter", "allowAnySHA1InWant", "allowReachableSHA1InWant"):
        git(home, "config", f"uploadpack.{key}", "true")
    for folder in (*ODD, "picture"):
        fill(home, *(f"{folder}/图 {number}.jpg" for number in range(3)))
    (home / "w*" / "out.jpg").symlink_to("/etc/passwd")
    (home / "README.md").write_text("read\r\nme\n", encoding="utf-8", newline="")
    for words in (["add", "."], ["commit", "-q", "-m", "one"], ["tag", "one"]):
        git(home, *words)
    fill(home, "later.jpg")
    shutil.rmtree(home / ODD[0])
    for words in (["add", "-A"], ["commit", "-q", "-m", "two"], ["checkout", "-q", "one"]):
        git(home, *words)
    return home


def fill(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(os.urandom(50))
    return folder


def content(folder: Path) -> dict[str, bytes]:
    """What is in a clone, but the link that is only text there."""
    files = (p for p in folder.rglob("*") if p.is_file() and ".git" not in p.relative_to(folder).parts)
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in files if p.name != "out.jpg"}


# --- repositories --------------------------------------------------------------------------


def test_the_wanted_folders_of_a_pinned_commit_come_whole_and_nothing_else(upstream: Path, tmp_path) -> None:
    commit, target = git(upstream, "rev-parse", "one").strip(), tmp_path / "new" / "clone"
    got = fetch.fetch_repository(upstream.as_uri(), target, ["*"], ["picture", "*.md"], commit)
    assert got == commit == fetch.commit_of(target) and not fetch.is_users(target)
    wanted = {k: v for k, v in content(upstream).items() if not k.startswith(("picture/", "README"))}
    assert content(target) == wanted and len(wanted) == 3 * len(ODD)
    link = target / "w*" / "out.jpg"
    assert not link.is_symlink() and link.read_bytes() == b"/etc/passwd", "a link out is only its text"
    assert fetch.fetch_repository("file:///gone", target, commit=commit) == commit, "not asked for again"


def test_a_broken_fetch_goes_on_and_gives_back_what_was_cut_off(upstream, tmp_path, monkeypatch) -> None:
    commit, target = git(upstream, "rev-parse", "one").strip(), tmp_path / "clone"
    git_of_fetch = fetch._git

    def killed(folder: Path, *words: str, given: str = "", **more) -> str:
        if given.count("/") == 3:
            raise KeyboardInterrupt
        return git_of_fetch(folder, *words, given=given, **more)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(fetch, "_git", killed)
        fetch.fetch_repository(upstream.as_uri(), target, commit=commit)
    there = sorted(p.name for p in target.glob("[!.]*"))
    assert len(there) == 2
    (target / ".git" / "index.lock").touch()
    cut = next(path for path in (target / there[0], *target.rglob("*.jpg")) if path.is_file())
    cut.write_bytes(cut.read_bytes()[:9])
    assert not fetch.is_users(target)
    assert fetch.fetch_repository(upstream.as_uri(), target) == commit, "at the commit that it had begun with"
    assert content(target) == content(upstream)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A `data/` of its own; nothing forbids fetching."""
    for name in fetch.OFFLINE:
        monkeypatch.delenv(name, raising=False)
    for name in ("data", "root"):
        monkeypatch.setattr(paths, name, tmp_path)
    monkeypatch.setattr(paths, "raw", tmp_path / "raw")
    return tmp_path


def test_the_library_and_the_papers_data_come_each_at_its_commit(upstream: Path, home: Path, capsys) -> None:
    one, two = (git(upstream, "rev-parse", name).strip() for name in ("one", "main"))
    url = f"url: '{upstream.as_uri()}'"
    (home / "library_sources.yaml").write_text(
        f"- {{name: a/Zipped, {url}, licence: none stated, commit: {one}, want: [picture], archive: 'https://x'}}\n"
    )
    fetch.fetch_library()
    printed = capsys.readouterr().out
    assert f"a/Zipped at {one[:12]}: fetched, 3 files, licence: none" in printed
    assert "download https://x and unzip it into" in printed
    listed = home / "paper_data.yaml"
    listed.write_text(
        f"{url}\nlicence: none stated\nparts:\n"
        f"- {{commit: {one}, paths: [README.md, picture]}}\n- {{commit: {two}, paths: [later.jpg]}}\n"
        f"- {{commit: {one}, paths: ['{ODD[0]}'], pictures: true}}\n"
    )
    folder = fetch.fetch_release()
    assert sorted(path.name for path in folder.glob("[!.]*")) == ["README.md", "later.jpg", "picture"]
    assert "5 files, 0.0 MB; licence: none stated" in capsys.readouterr().out
    fetch.fetch_release(with_pictures=True)
    assert (folder / ODD[0]).is_dir() and not fetch.is_users(folder)
    listed.write_text(listed.read_text().replace(upstream.as_uri(), "file:///gone").replace("later", "x"))
    with pytest.raises(SourceError, match="git fetch failed"):
        fetch.fetch_release()


# --- data sets of the second paper ----------------------------------------------------------------------


@pytest.fixture
def place(home: Path) -> Path:
    """`home` with the real list, whose addresses lead nowhere."""
    listed = (REAL_DATA / "template_sources.yaml").read_text("utf-8")
    (home / "template_sources.yaml").write_text(listed.replace("https://github.com", str(home)), "utf-8")
    return home


def test_a_folder_or_file_of_ones_own_is_used_as_it_is(place: Path) -> None:
    mine, one = fill(place / "mine", "memes/A.jsonl.gz"), fill(place, "memes_test.json") / "memes_test.json"
    fill(place / "raw" / "templates" / "figmemes", "data/standard_split.tsv")
    located = fetch.locate(Profile(name="x", cm50={"imgflip": "mine", "memecap": str(one)}), fetch=False)
    assert {name: (state, path) for name, (_, path, state) in located.items()} == {
        "imgflip": ("given", mine),
        "memecap": ("given", one),
        "figmemes": ("given", place / "raw" / "templates" / "figmemes"),
        "cm50": ("fetching is off", None),
        "figmemes_labels": ("not published for all", None),
    }
    assert 'SET="published=PATH"' in located["cm50"].source.how_to_provide()
    fill(place / "bad", "memes/A.txt")
    with pytest.raises(SourceError, match=r"imgflip: .*bad does not hold memes, one file.*SET="):
        fetch.locate(Profile(name="x", cm50={"imgflip": "bad"}), fetch=False)


def test_a_data_set_is_fetched_and_a_missing_one_says_why(upstream: Path, place: Path, monkeypatch) -> None:
    listed = (place / "template_sources.yaml").read_text("utf-8")
    listed = listed.replace(f"{place}/eujhwang/meme-cap", upstream.as_uri()).replace("[data, ", "[picture, ")
    (place / "template_sources.yaml").write_text(listed.replace("**/memes*test*.json", "**/*.jpg"), "utf-8")
    located = fetch.locate(Profile(name="x"))
    assert located["memecap"].state == "fetched" and located["memecap"].path
    assert located["imgflip"].path is None and "git fetch failed" in located["imgflip"].state
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert fetch.locate(Profile(name="x"))["imgflip"].state == "fetching is off"


# --- HTTP -------------------------------------------------------------------------------------------------


@pytest.fixture
def site() -> Iterator[Site]:
    with Site().running() as running:
        yield running


@pytest.fixture
def waits(monkeypatch) -> list[float]:
    """How long was waited, in place of waiting."""
    waited: list[float] = []
    monkeypatch.setattr(fetch.time, "sleep", waited.append)
    return waited


def test_a_page_is_asked_for_over_its_redirects_with_a_pause_before_each_request(site, waits) -> None:
    site.pages = {"/a": Answer("页", kind="text/html"), "/moved": Answer(status=302, Location="/a")}
    assert Client(pause_s=2).get(f"{site.url}/moved") == ("页".encode(), "text/html")
    assert site.paths == ["/robots.txt", "/moved", "/a"] and sum(wait > 1 for wait in waits) == 2
    assert site.headers[-1]["user-agent"].startswith("MemeCMD/")


def test_robots_txt_is_kept_to(site, waits) -> None:
    rules = Answer("User-agent: MemeCMD\nDisallow: /no\nCrawl-delay: 9\n")
    site.pages = {"/robots.txt": Answer(status=302, Location="/rules"), "/rules": rules, "/yes": Answer("x")}
    site.pages |= {"/no": Answer("x"), "/around": Answer(status=302, Location="/no")}
    asking = Client(pause_s=0)
    for path in ("no", "around"):
        with pytest.raises(FetchError, match=r"robots\.txt of 127\.0\.0\.1:\d+ forbids"):
            asking.get(f"{site.url}/{path}")
    asking.get(f"{site.url}/yes")
    assert "/no" not in site.paths and 8 < max(waits) <= 9
    for status in (429, 503):
        site.pages["/robots.txt"] = Answer(status=status)
        with pytest.raises(FetchError, match=rf"robots\.txt cannot be read: HTTP {status}"):
            Client(pause_s=0).get(f"{site.url}/yes")


@pytest.mark.parametrize(
    ("page", "why"),
    [
        (Answer(status=302, Location="https://me:secret@127.0.0.1/"), "is not an address"),
        (Answer(status=302, Location="/a"), "TooManyRedirects"),
        (Answer("x" * 2_000_001), "more than 2,000,000 bytes"),
        (Answer(reset=True), "ReadError"),
    ],
)
def test_refusals(site, waits, page: Answer, why: str) -> None:
    site.pages = {"/a": page}
    with pytest.raises(FetchError, match=why):
        Client(pause_s=0).get(f"{site.url}/a")
