import contextlib
import csv
import gzip
import hashlib
import io
import json
import shutil
import socket
import subprocess
import threading
import time
import zipfile
from pathlib import Path

import made_templates
import pytest
import yaml
from made_sources import archive, content, git, picture, repository

from memecmd_utils.cm50 import records, references
from memecmd_utils.core import paths
from memecmd_utils.core.fetch import datasets, download
from memecmd_utils.core.fetch.datasets import SOURCES, SourceError, fetch_library, locate, source_states
from memecmd_utils.core.images import LibraryError
from memecmd_utils.library import find_candidates
from memecmd_utils.settings import Profile, load_profile

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
NOWHERE = "http://127.0.0.1:9/"
TABLE = 'name,url,licence,used_for,sha256_or_commit\nOpen,https://x,CC0,"a, b","quoted for no reason"\n'
CONTENT = {
    "imgflip": {"dataset/memes/Made-Cat.json": b"[]", "README.md": b"read me", "scripts/scrape.py": b"1"},
    "cm50": {
        "data/a/validation_set.zip": b"PK",
        "data/a/dataset/50_template_info.json": b"{}",
        "code/train.py": b"1",
    },
    "memecap": {"data/memes-test.json": b"[]"},
    "figmemes": {"data/standard_split.tsv": b"img_name\tsplit\n"},
}


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A `data/` of its own, from which no host can be reached."""
    for name in datasets.OFFLINE:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(paths, "data", tmp_path)
    monkeypatch.setattr(paths, "raw", tmp_path / "raw")
    monkeypatch.setattr(datasets, "HOST", NOWHERE)
    (tmp_path / "SOURCES.csv").write_text(TABLE, encoding="utf-8")
    return tmp_path


def fill(folder: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host with the four repositories, as the well-known one has them."""
    for name, files in CONTENT.items():
        home = fill(tmp_path / "host" / SOURCES[name].repository, files)
        git(home, "init", "-q", "-b", "main")
        for key in ("allowFilter", "allowAnySHA1InWant", "allowReachableSHA1InWant"):
            git(home, "config", f"uploadpack.{key}", "true")
        git(home, "add", ".")
        git(home, "commit", "-q", "-m", "one")
    monkeypatch.setattr(datasets, "HOST", (tmp_path / "host").as_uri() + "/")


def rows(folder: Path) -> dict[str, dict[str, str]]:
    with (folder / datasets.RECORD).open(encoding="utf-8", newline="") as handle:
        return {row["name"]: row for row in csv.DictReader(handle)}


# --- given ------------------------------------------------------------------------------------------


def test_a_folder_that_the_profile_names_is_used_as_it_is(tmp_path: Path) -> None:
    checkout = fill(tmp_path / "mine", CONTENT["imgflip"])
    flat = fill(tmp_path / "flat", {"memes/Made-Cat.jsonl.gz": b"x"})
    one = fill(tmp_path, {"memes_test_dev.json.gz": b"x"}) / "memes_test_dev.json.gz"
    for folder in (checkout, checkout / "dataset", flat):
        profile = Profile(name="x", imgflip=str(folder), memecap=str(one))
        found = locate(profile, names=("imgflip", "memecap"))
        assert (found["imgflip"].path, found["memecap"].path) == (folder, one)
        assert {f.state for f in found.values()} == {"given"} and "licence: none stated" in found[
            "memecap"
        ].text()
    digest = hashlib.sha256(b"x").hexdigest()
    listed = hashlib.sha256(f"memes_test_dev.json.gz\0{digest}\n".encode()).hexdigest()
    assert source_states(found)["memecap"] == f"files 1 sha256 {listed}"
    assert not paths.raw.exists(), "nothing is written"


ACCEPTED = {
    "imgflip": (
        ["memes/A.json", "memes/A.json.gz", "memes/A.jsonl", "memes/A.jsonl.gz"],
        lambda path: len(records.read_records(path).frame),
    ),
    "cm50": (
        ["validation_set.zip", "a/validation_dev.json.gz", "my_validation.json"],
        lambda path: len(records.read_cm50(path).memes),
    ),
    "memecap": (
        ["memes-test.json", "data/memes-test.json", "x/data/memes_test_x.json", "memes_test_dev.json.gz"],
        lambda path: len(references.read(path)),
    ),
}


def record(name: str, file: str) -> bytes:
    """A made-up record of a data set, in the form that a file's ending asks for."""
    raw = made_templates.record("A", 1)
    meme = {"post_id": "a1", "meme_captions": ["tired."], "img_fname": "a.png"}
    value = {"imgflip": raw, "cm50": made_templates.annotated("A", raw), "memecap": meme}[name]
    data = json.dumps(value if ".jsonl" in file else [value]).encode()
    if file.endswith(".zip"):
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            archive.writestr("x.json", data)
        return buffer.getvalue()
    return gzip.compress(data) if file.endswith(".gz") else data


@pytest.mark.parametrize(
    ("name", "file"), [(name, file) for name, (files, _) in ACCEPTED.items() for file in files]
)
def test_what_is_accepted_can_be_read(tmp_path: Path, name: str, file: str) -> None:
    read = ACCEPTED[name][1]
    places = ["", "dataset/"] if name == "imgflip" else [""]
    for place in places:
        folder = fill(tmp_path / f"in {place}", {place + file: record(name, file)})
        about = folder / "50_template_info.json"
        if name == "cm50":
            about.write_bytes(b"{}")
        for given in (folder, folder / place / file):
            found = locate(Profile(name="x", **{name: str(given)}), names=[name], fetch=False)
            assert found[name].path == given and read(given) == 1


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("cm50", "training_set.zip"), ("cm50", "data/training_set.json"),
        ("cm50", "data/dataset/templates/img/A.jpg"), ("imgflip", "dataset/memes/Other.json"),
        ("imgflip", "dataset/statistics.json"), ("imgflip", "dataset/templates/A.json"),
    ],
)  # fmt: skip
def test_the_state_sees_files_that_need_not_be_there(tmp_path: Path, name: str, file: str) -> None:
    folder = fill(tmp_path / "c", CONTENT[name])
    profile = Profile(name="x", **{name: str(folder)})
    seen = [source_states(locate(profile, names=[name]))[name]]
    for data in (b"[]", b"[1]"):
        fill(folder, {file: data})
        seen.append(source_states(locate(profile, names=[name]))[name])
    assert len(set(seen)) == 3
    fill(folder, {".git/training.json": b"x", "code/notes.md": b"x"})
    assert source_states(locate(profile, names=[name]))[name] == seen[-1], (
        "hidden files and others do not count"
    )


def test_a_folder_that_is_not_what_it_should_be_is_an_error_naming_the_files(tmp_path: Path) -> None:
    wrong = fill(
        tmp_path / "wrong", {"notes.txt": b"x", ".git/validation.json": b"x", "data/validation_a.zip": b"x"}
    )
    with pytest.raises(
        SourceError, match=r"does not hold what the templates mean \(\*\*/50_template_info\.json\)"
    ):
        locate(Profile(name="x", cm50=str(wrong)), names=["cm50"])
    with pytest.raises(SourceError, match=r"dataset/memes/\*\.json or .*SET=\"imgflip=FOLDER\""):
        locate(Profile(name="x", imgflip=str(wrong)), names=["imgflip"])
    with pytest.raises(SourceError, match=r"nowhere does not exist\..*UKPLab"):
        locate(Profile(name="x", figmemes_labels=str(tmp_path / "nowhere")), names=["figmemes_labels"])
    with pytest.raises(SourceError, match=r"notes\.txt does not hold memes\*test\*\.json"):
        locate(Profile(name="x", memecap=str(wrong / "notes.txt")), names=["memecap"])


@pytest.mark.parametrize("data", [b"", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n"])
def test_an_empty_file_and_the_note_that_lfs_leaves_are_no_content(tmp_path: Path, data: bytes) -> None:
    folder = fill(tmp_path / "c", {"validation_set.zip": data, "50_template_info.json": b"{}"})
    for given in (folder, folder / "validation_set.zip"):
        with pytest.raises(SourceError, match="does not hold"):
            locate(Profile(name="x", cm50=str(given)), names=["cm50"])


# --- fetched ----------------------------------------------------------------------------------------


@needs_git
def test_the_wanted_part_is_fetched_once_and_written_down(tmp_path: Path, host: None) -> None:
    target = paths.raw / "templates"
    found = locate(Profile(name="x"))
    assert {name: one.state for name, one in found.items()} == {
        **dict.fromkeys(CONTENT, "fetched"), "figmemes_labels": "missing",
    }  # fmt: skip
    assert (target / "imgflip" / "dataset" / "memes" / "Made-Cat.json").read_bytes() == b"[]"
    assert not (target / "imgflip" / "scripts").exists() and not (target / "cm50" / "code").exists()
    row = rows(target)["Seefreem/meme_text_retrieval_p1"]
    assert row["licence"] == "Apache-2.0, as stated in the repository" and row["url"].startswith(
        datasets.HOST
    )
    assert row["sha256_or_commit"].startswith(f"commit {found['cm50'].commit} files 2 sha256 ")
    assert source_states(found)["cm50"].startswith(f"commit {found['cm50'].commit} files 2 sha256 ")
    shutil.rmtree(tmp_path / "host")  # from here on nothing can be fetched
    again = locate(Profile(name="x"))
    assert {one.state for name, one in again.items() if name in CONTENT} == {"fetched before"}
    (target / "memecap" / "data" / "memes-test.json").write_bytes(b"changed")
    off = locate(Profile(name="x"), names=["memecap"], fetch=False)["memecap"]
    assert (off.state, off.why) == ("fetched before", "changed since it was fetched")
    assert off.path == target / "memecap"


@needs_git
def test_a_fetch_that_was_cut_off_goes_on_at_its_commit(
    tmp_path: Path, host: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = download.fetch_commit

    def cut(url: str, commit: str, folder: Path, *_: object) -> None:
        real(url, commit, folder, ["README*"])  # as far as it came
        raise KeyboardInterrupt

    monkeypatch.setattr(download, "fetch_commit", cut)
    with pytest.raises(KeyboardInterrupt):
        locate(Profile(name="x"), names=["imgflip"])
    assert not (paths.raw / "templates" / datasets.RECORD).exists()
    monkeypatch.setattr(download, "fetch_commit", real)
    off = locate(Profile(name="x"), names=["imgflip"], fetch=False)
    assert off["imgflip"].state == "missing", "half a data set is none"
    begun = download.head(paths.raw / "templates" / "imgflip")
    home = tmp_path / "host" / SOURCES["imgflip"].repository
    git(home, "commit", "-q", "--allow-empty", "-m", "two")
    found = locate(Profile(name="x"), names=["imgflip"])["imgflip"]
    assert (found.state, found.commit) == ("fetched", begun)


# --- not to be had ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", datasets.OFFLINE)
def test_nothing_is_fetched_where_the_environment_forbids_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    def asked(*_: object, **__: object) -> None:
        raise AssertionError("a program was started")

    monkeypatch.setenv(name, "1")
    monkeypatch.setattr(subprocess, "Popen", asked)
    found = locate(Profile(name="x"))
    assert {one.state for one in found.values()} == {"missing"} and found["imgflip"].why == "fetching is off"
    assert "ImgFlip575K: not here" in found["imgflip"].text() and "form" in found["figmemes_labels"].text()
    assert not paths.raw.exists()


@needs_git
@pytest.mark.parametrize(
    ("address", "why"),
    [(NOWHERE, "no connection"), ("file:///nowhere/at/all/", "there is no such repository")],
)
def test_no_server_or_repository_is_said_at_once(
    monkeypatch: pytest.MonkeyPatch, address: str, why: str
) -> None:
    monkeypatch.setattr(datasets, "HOST", address)
    begun = time.monotonic()
    found = locate(Profile(name="x"))
    assert time.monotonic() - begun < 10
    assert all(why in found[name].text() for name in CONTENT), found["imgflip"].text()


@needs_git
def test_a_silent_server_is_given_up_once_for_all_and_left_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "ANSWER_S", 1)
    for name in ("http_proxy", "all_proxy", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    taken: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def accept() -> None:
            while True:
                try:
                    taken.append(server.accept()[0])
                except OSError:
                    return

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        begun = time.monotonic()
        monkeypatch.setattr(datasets, "HOST", f"http://127.0.0.1:{server.getsockname()[1]}/")
        found = locate(Profile(name="x"))
        assert time.monotonic() - begun < 8
        assert all("no connection" in found[name].why for name in CONTENT)
        assert len(taken) == 1, "the other repositories of the host are not asked for"
        taken[0].settimeout(5)
        while taken[0].recv(4096):
            pass  # the request, then the end: who asked is gone
        taken[0].close()
        server.shutdown(socket.SHUT_RDWR)


# --- images of the first paper -----------------------------------------------------------------------


def source(url: str, commit: str | None, **more: object) -> dict[str, object]:
    return {"name": "who/Pack", "url": url, "commit": commit, "licence": "MIT, as stated", **more}


def run(place: Path, *sources: dict, **more: Path) -> tuple[list, list[str]]:
    """What is there after a fetch of `sources`, and the lines that it printed."""
    (place / "library_sources.yaml").write_text(yaml.safe_dump(list(sources)), encoding="utf-8")
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        done = list(fetch_library(**more).values())
    return done, said.getvalue().splitlines()


def test_the_tracked_list_pins_the_papers_three_repositories(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    listed = datasets.library_list()
    assert [s.name for s in listed] == [
        "getActivity/EmojiPackage", "LLM-Red-Team/emo-visual-data", "zhaoolee/ChineseBQB"
    ]  # fmt: skip
    assert all(s.commit and s.url == f"https://github.com/{s.name}" and s.licence for s in listed)
    assert [bool(s.archive) for s in listed] == [False, True, False]
    assert load_profile("paper").library.sources == [f"data/raw/sources/{s.folder}" for s in listed]


@needs_git
def test_a_source_is_fetched_written_down_and_not_fetched_again(place) -> None:
    url, commit, _ = repository(place, {"鸽子": 3, "QQ": 2})
    wanted = source(url, commit, skip=["QQ", "*.md"])
    (done,), said = run(place, wanted)
    pack = paths.raw / "sources" / "Pack"
    assert (done.state, done.commit, done.files) == ("fetched", commit, 3)
    assert set(content(pack)) == {f"鸽子/图 {n}.jpg" for n in range(3)}
    row = rows(place)["who/Pack"]
    assert row["sha256_or_commit"] == f"commit {commit} files 3 sha256 {done.sha256}"
    assert (row["url"], row["licence"]) == (url, "MIT, as stated")
    assert (place / "SOURCES.csv").read_text(encoding="utf-8").startswith(TABLE), (
        "other lines stay as they are"
    )
    assert said == [
        f"who/Pack at {commit[:12]}: fetched, 3 files, sha256 {done.sha256[:12]}, licence: MIT, as stated"
    ]
    shutil.rmtree(place / "upstream")  # from here on nothing can be fetched
    before = (place / "SOURCES.csv").stat().st_mtime_ns
    assert run(place, wanted)[0] == [done._replace(state="already whole")]
    assert (place / "SOURCES.csv").stat().st_mtime_ns == before
    (pack / "鸽子" / "图 0.jpg").write_bytes(b"changed")
    (pack / "鸽子" / "图 1.jpg").unlink()
    assert run(place, wanted)[0] == [done], "mended, without a connection"
    assert find_candidates([str(pack)])[0].origin == "鸽子/图 0.jpg"


@needs_git
def test_without_a_pin_the_branch_head_is_taken_and_becomes_the_pin(place) -> None:
    url, _, home = repository(place, {"a": 1, "b": 1})
    newest = git(home, "rev-parse", "main").strip()
    (done,), _ = run(place, source(url, None))
    assert done.commit == newest and rows(place)["who/Pack"]["sha256_or_commit"].startswith(
        f"commit {newest} "
    )
    (home / "more.jpg").write_bytes(b"more")
    git(home, "add", "-A")
    git(home, "commit", "-q", "-m", "three")
    (again,), _ = run(place, source(url, None))
    assert again == done._replace(state="already whole")


@needs_git
def test_another_pin_moves_the_folder_to_it(place) -> None:
    url, commit, home = repository(place, {"a": 1, "b": 1})
    run(place, source(url, commit))
    newest = git(home, "rev-parse", "main").strip()
    (done,), _ = run(place, source(url, newest))
    assert done.commit == newest and set(content(paths.raw / "sources" / "Pack")) == {
        "README.md",
        "b/图 0.jpg",
        "later.jpg",
    }
    assert list(rows(place)) == ["Open", "who/Pack"], "the row is replaced"


@needs_git
def test_a_folder_that_is_there_is_taken_as_it_is(place) -> None:
    own = paths.raw / "sources" / "Pack"
    own.mkdir(parents=True)
    (own / "mine.png").write_bytes(picture(1))
    (done,), said = run(place, source("https://127.0.0.1:9/none", "1" * 40))
    assert (done.state, done.commit, done.files) == ("taken as it is", "", 1) and "taken as it is" in said[0]
    assert rows(place)["who/Pack"]["sha256_or_commit"] == f"files 1 sha256 {done.sha256}"
    git(own, "init", "-q")
    git(own, "add", ".")
    git(own, "commit", "-q", "-m", "mine")
    (done,), _ = run(place, source("https://127.0.0.1:9/none", "1" * 40))
    assert (done.state, len(done.commit), done.files) == ("taken as it is", 40, 1), "a user's own clone"


@needs_git
def test_images_in_an_archive_are_asked_for_and_unpacked(place) -> None:
    url, commit, _ = repository(place, {"a": 1})
    emo = source(url, commit, archive="https://drive.example.org/x")
    _, said = run(place, emo)
    assert "download https://drive.example.org/x and run make library-sources ZIP=" in said[1]
    path = archive(place / "emo.zip", {"emo/1.png": picture(1), "emo/2.png": picture(2), "t.txt": b"-"})
    (done,), said = run(place, emo, archive=path)
    assert "2 images unpacked, 0 were there, 1 other" in said[1] and done.files == 4
    assert rows(place)["who/Pack"]["sha256_or_commit"] == f"commit {commit} files 4 sha256 {done.sha256}"
    (again,), said = run(place, emo, archive=path)
    assert again == done._replace(state="already whole") and "2 were there" in said[1]
    (whole,), said = run(place, emo)
    assert whole.state == "already whole" and len(said) == 1
    with pytest.raises(LibraryError, match="no source in the list has its images in one"):
        run(place, source(url, commit), archive=path)


@needs_git
def test_a_wrong_list_or_table_is_named(place: Path) -> None:
    with pytest.raises(LibraryError, match="does not exist"):
        fetch_library()
    with pytest.raises(LibraryError, match="commit"):
        run(place, source("u", "main"))
    url, commit, _ = repository(place, {"a": 1})
    (place / "SOURCES.csv").write_text("wrong\n", encoding="utf-8")
    with pytest.raises(LibraryError, match="the first line must be name,url,licence"):
        run(place, source(url, commit))
