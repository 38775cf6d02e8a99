import os
import shutil
import signal
import subprocess
import sys
import threading
import zipfile
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from memecmd_utils import fetch
from memecmd_utils.fetch import Client, FetchError, SourceError
from memecmd_utils.files import paths
from memecmd_utils.settings import Profile

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
ODD = ["[盒子]!", "鸽子🕊BQB", "a b ", "#x", "w*"]


def git(folder: Path, *words: str) -> str:
    who = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
    done = subprocess.run(
        ["git", *who, "-C", str(folder), *words], check=True, capture_output=True, timeout=60
    )
    return done.stdout.decode()


def repository(root: Path, folders: dict[str, int], size: int = 50) -> tuple[str, str, Path]:
    """A real repository; its address, its first commit, its folder. A second commit deletes and adds."""
    home = root / "upstream"
    home.mkdir()
    git(home, "init", "-q", "-b", "main")
    # As the well-known host does: parts, and any commit by its name.
    for key in ("allowFilter", "allowAnySHA1InWant", "allowReachableSHA1InWant"):
        git(home, "config", f"uploadpack.{key}", "true")
    for folder, count in folders.items():
        (home / folder).mkdir()
        for number in range(count):
            (home / folder / f"图 {number}.jpg").write_bytes(os.urandom(size))
    (home / "README.md").write_text("read\r\nme\n", encoding="utf-8", newline="")
    git(home, "add", ".")
    git(home, "commit", "-q", "-m", "one")
    commit = git(home, "rev-parse", "HEAD").strip()
    (home / "later.jpg").write_bytes(b"later")
    shutil.rmtree(home / next(iter(folders)))
    git(home, "add", "-A")
    git(home, "commit", "-q", "-m", "two")
    return home.as_uri(), commit, home


def content(folder: Path) -> dict[str, bytes]:
    files = (p for p in folder.rglob("*") if p.is_file() and ".git" not in p.relative_to(folder).parts)
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in files}


# --- repositories and archives --------------------------------------------------------------------------


@needs_git
def test_the_wanted_folders_of_a_pinned_commit_come_whole_and_nothing_else(tmp_path: Path) -> None:
    url, commit, home = repository(tmp_path, dict.fromkeys([*ODD, "picture"], 3))
    git(home, "checkout", "-q", commit)
    (home / "w*" / "out.jpg").symlink_to("/etc/passwd")
    git(home, "add", "-A")
    git(home, "commit", "-q", "-m", "link")
    commit, target = git(home, "rev-parse", "HEAD").strip(), tmp_path / "new" / "clone"
    assert fetch.fetch_repository(url, target, ["*"], ["picture", "*.md"], commit) == commit
    wanted = {k: v for k, v in content(home).items() if not k.startswith(("picture/", "README"))}
    link = wanted.pop("w*/out.jpg", None)
    found = content(target)
    assert found.pop("w*/out.jpg") == b"/etc/passwd" != link, "a link out is only its text"
    assert found == wanted and len(wanted) == 3 * len(ODD)
    missing = git(target, "rev-list", "--objects", "--missing=print", commit).splitlines()
    assert sum(line.startswith("?") for line in missing) == 4, "what nobody wants was never fetched"
    assert fetch.commit_of(target) == commit and not fetch.is_users(target)
    shutil.rmtree(home)
    assert fetch.fetch_repository(url, target, commit=commit) == commit, "a whole one is not asked for again"


@needs_git
def test_a_killed_fetch_goes_on_and_gives_back_what_was_cut_off(tmp_path: Path) -> None:
    url, commit, home = repository(tmp_path, {f"f{n}": 3 for n in range(8)})
    target = tmp_path / "clone"
    script = (
        "import sys, time; from pathlib import Path; from memecmd_utils import fetch\n"
        "git = fetch._git\n"
        "def slow(folder, *words, given='', **more):\n"
        "    if '/f2' in given: print('half', flush=True); time.sleep(60)\n"
        "    return git(folder, *words, given=given, **more)\n"
        "fetch._git = slow\n"
        "fetch.fetch_repository(sys.argv[1], Path(sys.argv[3]), commit=sys.argv[2])"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", script, url, commit, target],
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        assert child.stdout.readline() == b"half\n"
    finally:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait(timeout=30)
    assert sorted(p.name for p in target.glob("[!.]*")) == ["README.md", "f0", "f1"]
    (target / ".git" / "index.lock").touch()
    cut = next((target / "f0").iterdir())
    cut.write_bytes(cut.read_bytes()[:9])
    assert not fetch.is_users(target)
    assert fetch.fetch_repository(url, target) == commit, "at the commit that it had begun with"
    git(home, "checkout", "-q", commit)
    assert content(target) == content(home)


@needs_git
def test_the_library_is_fetched_unpacked_and_written_down(tmp_path: Path, monkeypatch, capsys) -> None:
    url, commit, _ = repository(tmp_path, {"鸽子BQB": 2, "other": 1})
    (tmp_path / "library_sources.yaml").write_text(
        f"- {{name: a/Birds, url: '{url}', licence: none stated, want: ['*BQB'], commit: {commit}}}\n"
        f"- {{name: a/Zipped, url: '{url}', licence: none, want: [other], archive: 'https://drive'}}\n"
    )
    monkeypatch.setattr(paths, "data", tmp_path)
    monkeypatch.setattr(paths, "raw", tmp_path / "raw")
    fetch.fetch_library()
    assert "make library-sources ZIP=" in capsys.readouterr().out
    archive = tmp_path / "images.zip"
    with zipfile.ZipFile(archive, "w") as made:
        for name in ("a/1.png", "../2.png", "a/read.txt"):
            made.writestr(name, b"a picture")
    fetch.fetch_library(archive)
    fetch.fetch_library(archive)
    images = tmp_path / "raw" / "sources" / "Zipped" / "images"
    assert sorted(p.relative_to(images).as_posix() for p in images.rglob("*.*")) == ["2.png", "a/1.png"]
    assert f"a/Birds at {commit[:12]}: fetched, 2 files, licence: none" in capsys.readouterr().out
    for data in (b"no zip", archive.read_bytes()[:-30]):
        archive.write_bytes(data)
        with pytest.raises(SourceError, match=r"images\.zip cannot be unpacked"):
            fetch.fetch_library(archive)


# --- data sets of the second paper ----------------------------------------------------------------------


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A `data/` of its own with the real list, whose addresses lead nowhere."""
    for name in fetch.OFFLINE:
        monkeypatch.delenv(name, raising=False)
    listed = (paths.data / "template_sources.yaml").read_text("utf-8")
    listed = listed.replace("https://github.com", str(tmp_path))
    (tmp_path / "template_sources.yaml").write_text(listed, "utf-8")
    for name in ("data", "root"):
        monkeypatch.setattr(paths, name, tmp_path)
    monkeypatch.setattr(paths, "raw", tmp_path / "raw")
    return tmp_path


def fill(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"x")
    return folder


def test_a_folder_or_file_of_ones_own_is_used_as_it_is(place: Path) -> None:
    mine, one = fill(place / "mine", "memes/A.jsonl.gz"), fill(place, "memes_test.json") / "memes_test.json"
    fill(place / "raw" / "templates" / "figmemes", "data/standard_split.tsv")
    found = fetch.locate(Profile(name="x", cm50={"imgflip": "mine", "memecap": str(one)}), fetch=False)
    assert {name: (one.state, one.path) for name, one in found.items() if one.path} == {
        "imgflip": ("given", mine),
        "memecap": ("given", one),
        "figmemes": ("given", place / "raw" / "templates" / "figmemes"),
    }
    assert found["cm50"].state == "fetching is off"
    table = fetch.source_table(found).set_index("key")
    assert 'SET="published=PATH"' in table.loc["published", "what to give"]
    assert "form" in table.loc["figmemes_labels", "what to give"]
    fill(place / "bad", "memes/A.txt")
    for given, why in (("bad", "does not hold memes, one file a template"), ("none", "does not exist")):
        with pytest.raises(SourceError, match=f"imgflip: .*{given} {why}.*SET="):
            fetch.locate(Profile(name="x", cm50={"imgflip": given}), fetch=False)


@needs_git
def test_a_data_set_is_fetched_once_and_a_missing_one_says_why(place: Path, monkeypatch) -> None:
    home = fill(place / "eujhwang" / "meme-cap", "data/memes-test.json", "code.py")
    for words in (["init", "-q", "-b", "main"], ["add", "."], ["commit", "-q", "-m", "one"]):
        git(home, *words)
    for _ in range(2):
        found = fetch.locate(Profile(name="x"))
        assert found["memecap"].state == "fetched" and found["memecap"].path
        assert found["imgflip"].path is None and "git fetch failed" in found["imgflip"].state
        shutil.rmtree(home, ignore_errors=True)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert fetch.locate(Profile(name="x"), names=["memecap"]).keys() == {"memecap"}
    assert fetch.locate(Profile(name="x"))["imgflip"].state == "fetching is off"


# --- HTTP -------------------------------------------------------------------------------------------------


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.server.asked.append((self.path, dict(self.headers)))
        answers = self.server.pages.get(self.path, [(404, {}, b"")])
        code, headers, body = answers.pop(0) if len(answers) > 1 else answers[0]
        if code == 0:  # the connection breaks
            self.close_connection = True
            return
        self.send_response(code)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def site(monkeypatch, **pages):
    """A server of these pages: path -> (status, headers, body), or a list of them, one a request."""
    waits: list[float] = []
    monkeypatch.setattr(fetch.time, "sleep", waits.append)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.pages = {f"/{p}": a if isinstance(a, list) else [a] for p, a in pages.items()}
    server.asked, server.waits, server.url = [], waits, f"http://127.0.0.1:{server.server_port}/"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


def client(**more) -> Client:
    return Client("a test", "text/html", **more)


def test_a_page_comes_with_its_headers_and_is_asked_for_again_only_where_it_changed(monkeypatch) -> None:
    with site(monkeypatch, a=[(200, {"ETag": "x"}, "页".encode()), (304, {}, b"")]) as server:
        asking = client()
        first = asking.get(server.url + "a")
        assert (first.code, first.body.decode(), first.headers["etag"]) == (200, "页", "x")
        assert asking.get(server.url + "a", etag="x", last_modified="then").code == 304
    assert [path for path, _ in server.asked] == ["/robots.txt", "/a", "/a"]
    told = server.asked[-1][1]
    assert (told["If-None-Match"], told["If-Modified-Since"]) == ("x", "then")
    assert told["User-Agent"].startswith("MemeCMD/") and "a test" in told["User-Agent"]
    assert sum(server.waits) > 3, "a pause of two seconds for every request to a host"


def test_what_may_mend_itself_is_asked_for_again(monkeypatch) -> None:
    good, busy = (200, {}, b"x"), (429, {"Retry-After": "7"}, b"")
    long = (503, {"Retry-After": "900"}, b"")
    with site(monkeypatch, a=[busy, (0, {}, b""), good], b=busy, c=long) as server:
        asking = client(pause_s=0)
        assert asking.get(server.url + "a").body == b"x" and 7.0 in server.waits
        for path, times in (("b", 3), ("c", 1)):
            with pytest.raises(FetchError, match="HTTP"):
                asking.get(server.url + path)
            assert [p for p, _ in server.asked].count(f"/{path}") == times


def test_robots_txt_is_kept_to(monkeypatch) -> None:
    rules = b"User-agent: MemeCMD\nDisallow: /no\nCrawl-delay: 9\n"
    good = (200, {}, b"x")
    with site(monkeypatch, **{"robots.txt": (200, {}, rules), "no": good, "yes": good}) as server:
        asking = client(pause_s=0)
        with pytest.raises(FetchError, match=r"robots\.txt of 127\.0\.0\.1:\d+ forbids"):
            asking.get(server.url + "no")
        asking.get(server.url + "yes")
        asking.get(server.url + "yes")
        assert 8 < max(server.waits) <= 9
    with (
        site(monkeypatch, **{"robots.txt": (503, {}, b""), "a": good}) as server,
        pytest.raises(FetchError, match=r"robots\.txt .* cannot be read: HTTP 503"),
    ):
        client(pause_s=0).get(server.url + "a")
    assert [path for path, _ in server.asked] == ["/robots.txt"] * 3


@pytest.mark.parametrize(
    ("page", "why"),
    [
        ((302, {"Location": "file:///etc/passwd"}, b""), "is not an address"),
        ((302, {"Location": "/a"}, b""), "more than 5 redirects"),
        ((404, {}, b""), "HTTP 404"),
        ((200, {}, b"x" * 5001), "more than 5,000 bytes"),
        ((200, {"Content-Encoding": "gzip"}, b"no gzip"), "DecodingError"),
    ],
)
def test_refusals(monkeypatch, page: tuple, why: str) -> None:
    with site(monkeypatch, a=page) as server, pytest.raises(FetchError, match=why):
        client(pause_s=0, max_bytes=5000).get(server.url + "a")


def test_what_is_no_address_has_no_host() -> None:
    assert fetch.host_of("https://user@x.org") == fetch.host_of("ftp://x") == ""
