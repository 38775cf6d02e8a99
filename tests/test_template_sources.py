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
from made_sources import git

from memecmd_utils import git_source, memecap, paths, template_records, template_sources
from memecmd_utils.profiles import Profile
from memecmd_utils.template_source_list import SOURCES
from memecmd_utils.template_sources import SourceError, find, states, table, what_to_give

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
CORPORA = paths.root.parent / "shared" / "corpora"
NOWHERE = "http://127.0.0.1:9/"
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
def online(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in template_sources.OFFLINE:
        monkeypatch.delenv(name, raising=False)


def fill(folder: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


@pytest.fixture
def host(tmp_path: Path) -> str:
    """A host with the four repositories, as the well-known one has them."""
    for name, files in CONTENT.items():
        home = fill(tmp_path / "host" / SOURCES[name].repository, files)
        git(home, "init", "-q", "-b", "main")
        for key in ("allowFilter", "allowAnySHA1InWant", "allowReachableSHA1InWant"):
            git(home, "config", f"uploadpack.{key}", "true")
        git(home, "add", ".")
        git(home, "commit", "-q", "-m", "one")
    return (tmp_path / "host").as_uri() + "/"


def rows(target: Path) -> dict[str, dict[str, str]]:
    with (target / template_sources.RECORD).open(encoding="utf-8", newline="") as handle:
        return {row["name"]: row for row in csv.DictReader(handle)}


# --- given ------------------------------------------------------------------------------------------


def test_a_folder_that_the_profile_names_is_used_as_it_is(tmp_path: Path) -> None:
    checkout = fill(tmp_path / "mine", CONTENT["imgflip"])
    flat = fill(tmp_path / "flat", {"memes/Made-Cat.jsonl.gz": b"x"})
    one = fill(tmp_path, {"memes_test_dev.json.gz": b"x"}) / "memes_test_dev.json.gz"
    for folder in (checkout, checkout / "dataset", flat):
        profile = Profile(name="x", imgflip=str(folder), memecap=str(one))
        found = find(profile, names=("imgflip", "memecap"), target=tmp_path / "raw", host=NOWHERE)
        assert {name: f.path for name, f in found.items()} == {"imgflip": folder, "memecap": one}
        assert {f.state for f in found.values()} == {"given"} and "licence: none stated" in found[
            "memecap"
        ].text()
    digest = hashlib.sha256(b"x").hexdigest()
    listed = hashlib.sha256(f"memes_test_dev.json.gz\0{digest}\n".encode()).hexdigest()
    assert states(found)["memecap"] == f"files 1 sha256 {listed}"
    assert not (tmp_path / "raw").exists(), "nothing is written"


ACCEPTED = {
    "imgflip": (
        ["memes/A.json", "memes/A.json.gz", "memes/A.jsonl", "memes/A.jsonl.gz"],
        lambda path: len(template_records.read_records(path).frame),
    ),
    "cm50": (
        ["validation_set.zip", "a/validation_dev.json.gz", "my_validation.json"],
        lambda path: len(template_records.read_cm50(path).memes),
    ),
    "memecap": (
        ["memes-test.json", "data/memes-test.json", "x/data/memes_test_x.json", "memes_test_dev.json.gz"],
        lambda path: len(memecap.read(path)),
    ),
}


def content(name: str, file: str) -> bytes:
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
        folder = fill(tmp_path / f"in {place}", {place + file: content(name, file)})
        about = folder / "50_template_info.json"
        if name == "cm50":
            about.write_bytes(b"{}")
        for given in (folder, folder / place / file):
            found = find(Profile(name="x", **{name: str(given)}), names=[name], fetch=False)
            assert found[name].path == given and read(given) == 1
        before = states(find(Profile(name="x", **{name: str(folder)}), names=[name]))
        (folder / place / file).write_bytes(content(name, file) + b" ")
        assert states(find(Profile(name="x", **{name: str(folder)}), names=[name])) != before


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("cm50", "training_set.zip"),
        ("cm50", "data/training_set.json"),
        ("cm50", "data/dataset/templates/A.json"),
        ("cm50", "data/dataset/templates/img/A.jpg"),
        ("imgflip", "dataset/statistics.json"),
        ("imgflip", "dataset/templates.json"),
        ("imgflip", "dataset/templates/A.json"),
        ("imgflip", "dataset/popular_100_memes.csv"),
    ],
)
def test_the_state_sees_files_that_need_not_be_there(tmp_path: Path, name: str, file: str) -> None:
    folder = fill(tmp_path / "c", CONTENT[name])
    profile = Profile(name="x", **{name: str(folder)})
    seen = [states(find(profile, names=[name]))[name]]
    for data in (b"[]", b"[1]"):
        fill(folder, {file: data})
        seen.append(states(find(profile, names=[name]))[name])
    assert len(set(seen)) == 3
    fill(folder, {".git/training.json": b"x", "code/notes.md": b"x"})
    assert states(find(profile, names=[name]))[name] == seen[-1], "hidden files and others do not count"


def test_a_single_file_that_lfs_left_or_is_empty_is_no_content(tmp_path: Path) -> None:
    for data in (b"", b"version https://git-lfs.github.com/spec/v1\n"):
        file = fill(tmp_path, {"validation_set.zip": data}) / "validation_set.zip"
        with pytest.raises(SourceError, match="does not hold"):
            find(Profile(name="x", cm50=str(file)), names=["cm50"])


def test_a_folder_that_is_not_what_it_should_be_is_an_error_naming_the_files(tmp_path: Path) -> None:
    wrong = fill(
        tmp_path / "wrong", {"notes.txt": b"x", ".git/validation.json": b"x", "data/validation_a.zip": b"x"}
    )
    with pytest.raises(
        SourceError, match=r"does not hold what the templates mean \(\*\*/50_template_info\.json\)"
    ):
        find(Profile(name="x", cm50=str(wrong)), names=["cm50"])
    with pytest.raises(SourceError, match=r"dataset/memes/\*\.json or .*SET=\"imgflip=FOLDER\""):
        find(Profile(name="x", imgflip=str(wrong)), names=["imgflip"])
    with pytest.raises(SourceError, match=r"nowhere does not exist\..*UKPLab"):
        find(Profile(name="x", figmemes_labels=str(tmp_path / "nowhere")), names=["figmemes_labels"])
    with pytest.raises(SourceError, match=r"notes\.txt does not hold memes\*test\*\.json"):
        find(Profile(name="x", memecap=str(wrong / "notes.txt")), names=["memecap"])


def test_the_note_that_lfs_leaves_is_no_content(tmp_path: Path) -> None:
    note = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n"
    folder = fill(tmp_path / "c", {"validation_set.zip": note, "50_template_info.json": b"{}"})
    with pytest.raises(SourceError, match="does not hold the annotated validation set"):
        find(Profile(name="x", cm50=str(folder)), names=["cm50"])


@pytest.mark.corpora
@pytest.mark.skipif(not CORPORA.is_dir(), reason="real data sets are not here")
def test_the_real_copies_are_recognised() -> None:
    folders = {"imgflip": "imgflip575k", "cm50": "cm50", "memecap": "memecap", "figmemes": "figmemes"}
    given = {name: str(CORPORA / folder) for name, folder in folders.items()}
    found = find(Profile(name="x", **given), fetch=False)
    assert [name for name, one in found.items() if one.path is None] == ["figmemes_labels"]
    assert states(found)["imgflip"].startswith("files 91 sha256 ")


# --- fetched ----------------------------------------------------------------------------------------


@needs_git
def test_without_a_folder_the_wanted_part_is_fetched_once_and_written_down(tmp_path: Path, host: str) -> None:
    target = tmp_path / "raw"
    found = find(Profile(name="x"), target=target, host=host)
    assert {name: one.state for name, one in found.items()} == {
        **dict.fromkeys(CONTENT, "fetched"), "figmemes_labels": "missing",
    }  # fmt: skip
    assert (target / "imgflip" / "dataset" / "memes" / "Made-Cat.json").read_bytes() == b"[]"
    assert not (target / "imgflip" / "scripts").exists() and not (target / "cm50" / "code").exists()
    row = rows(target)["Seefreem/meme_text_retrieval_p1"]
    assert row["licence"] == "Apache-2.0, as stated in the repository" and row["url"].startswith(host)
    assert row["sha256_or_commit"].startswith(f"commit {found['cm50'].commit} files 2 sha256 ")
    assert states(found)["cm50"].startswith(f"commit {found['cm50'].commit} files 2 sha256 ")
    shutil.rmtree(tmp_path / "host")  # from here on nothing can be fetched
    again = find(Profile(name="x"), target=target, host=host)
    assert {one.state for name, one in again.items() if name in CONTENT} == {"fetched before"}
    assert again["memecap"].path == target / "memecap"


@needs_git
def test_the_first_head_stays_the_pin_and_a_changed_file_is_mended(tmp_path: Path, host: str) -> None:
    target = tmp_path / "raw"
    first = find(Profile(name="x"), names=["memecap"], target=target, host=host)["memecap"]
    home = tmp_path / "host" / SOURCES["memecap"].repository
    fill(home, {"data/memes-test.json": b"[1]"})
    git(home, "commit", "-q", "-a", "-m", "two")
    file = target / "memecap" / "data" / "memes-test.json"
    file.write_bytes(b"changed")
    off = find(Profile(name="x"), names=["memecap"], target=target, host=host, fetch=False)["memecap"]
    assert (off.state, off.why) == ("fetched before", "changed since it was fetched")
    lost = find(Profile(name="x"), names=["memecap"], target=target, host=NOWHERE)["memecap"]
    assert lost.path and lost.why.startswith("changed since it was fetched; no connection")
    mended = find(Profile(name="x"), names=["memecap"], target=target, host=host)["memecap"]
    assert (mended.state, mended.commit) == ("fetched", first.commit) and file.read_bytes() == b"[]"
    assert len(rows(target)) == 1


@needs_git
def test_a_fetch_that_was_cut_off_goes_on_at_its_commit(
    tmp_path: Path, host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = git_source.fetch

    def cut(url: str, commit: str, folder: Path, want: tuple[str, ...]) -> None:
        real(url, commit, folder, ["README*"])  # as far as it came
        raise KeyboardInterrupt

    monkeypatch.setattr(git_source, "fetch", cut)
    with pytest.raises(KeyboardInterrupt):
        find(Profile(name="x"), names=["imgflip"], target=tmp_path / "raw", host=host)
    assert not (tmp_path / "raw" / template_sources.RECORD).exists()
    monkeypatch.setattr(git_source, "fetch", real)
    off = find(Profile(name="x"), names=["imgflip"], target=tmp_path / "raw", host=host, fetch=False)
    assert off["imgflip"].state == "missing", "half a data set is none"
    begun = git_source.head(tmp_path / "raw" / "imgflip")
    home = tmp_path / "host" / SOURCES["imgflip"].repository
    git(home, "commit", "-q", "--allow-empty", "-m", "two")
    found = find(Profile(name="x"), names=["imgflip"], target=tmp_path / "raw", host=host)["imgflip"]
    assert (found.state, found.commit) == ("fetched", begun)


@needs_git
def test_a_folder_that_a_user_made_there_is_taken_as_it_is(tmp_path: Path, host: str) -> None:
    own = fill(tmp_path / "raw" / "memecap", {"memes-test.json": b"mine"})
    found = find(Profile(name="x"), names=["memecap"], target=tmp_path / "raw", host=host)["memecap"]
    assert (found.state, found.path) == ("given", own) and (own / "memes-test.json").read_bytes() == b"mine"


@needs_git
def test_a_repository_without_the_files_is_missing(tmp_path: Path, host: str) -> None:
    home = tmp_path / "host" / SOURCES["figmemes"].repository
    git(home, "mv", "data/standard_split.tsv", "data/other.tsv")
    git(home, "commit", "-q", "-m", "two")
    found = find(Profile(name="x"), names=["figmemes"], target=tmp_path / "raw", host=host)["figmemes"]
    assert found.path is None and "its repository does not hold the split tables" in found.text()


# --- not to be had ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", template_sources.OFFLINE)
def test_nothing_is_fetched_where_the_environment_forbids_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    def asked(*_: object, **__: object) -> None:
        raise AssertionError("a program was started")

    monkeypatch.setenv(name, "1")
    monkeypatch.setattr(subprocess, "Popen", asked)
    found = find(Profile(name="x"), target=tmp_path / "raw")
    assert {one.state for one in found.values()} == {"missing"} and found["imgflip"].why == "fetching is off"
    assert found["imgflip"].text().startswith("ImgFlip575K: not here ")
    assert not (tmp_path / "raw").exists()


def test_what_to_give_names_repository_files_and_key() -> None:
    for name, source in SOURCES.items():
        told = what_to_give(name)
        assert f'SET="{name}=' in told and source.repository in told
        assert all(pattern in told for part in source.holds for pattern in part.patterns)
    with pytest.raises(KeyError):
        what_to_give("other")
    assert set(SOURCES) <= set(Profile.model_fields)


def test_the_table_has_a_row_for_each_and_names_no_folder_outside(tmp_path: Path) -> None:
    mine = fill(tmp_path / "mine", CONTENT["memecap"])
    shown = table(
        find(Profile(name="x", memecap=str(mine)), fetch=False, target=paths.raw / "templates none")
    )
    assert list(shown["key"]) == list(SOURCES) and list(shown["state"]).count("given") == 1
    row = shown.set_index("key").loc["memecap"]
    assert (row["where"], row["what to give"]) == ("mine", "")
    assert str(tmp_path) not in shown.to_csv()


@needs_git
@pytest.mark.parametrize(
    ("address", "why"),
    [(NOWHERE, "no connection: "), ("file:///nowhere/at/all/", "there is no repository")],
)
def test_no_server_or_repository_is_said_at_once(tmp_path: Path, address: str, why: str) -> None:
    begun = time.monotonic()
    found = find(Profile(name="x"), target=tmp_path / "raw", host=address)
    assert time.monotonic() - begun < 10
    assert all(why in found[name].text() for name in CONTENT), found["imgflip"].text()


def test_without_git_what_to_do_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    found = find(Profile(name="x"), names=["memecap"], target=tmp_path / "raw", host=NOWHERE)["memecap"]
    assert "the program git is not installed" in found.text() and 'SET="memecap=FOLDER"' in found.text()


@needs_git
def test_a_silent_server_is_given_up_once_for_all_and_left_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(template_sources, "QUIET_S", 1)
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
        address = f"http://127.0.0.1:{server.getsockname()[1]}/"
        found = find(Profile(name="x"), target=tmp_path / "raw", host=address)
        assert time.monotonic() - begun < 8
        assert all("said nothing within 1 s" in found[name].why for name in CONTENT)
        assert len(taken) == 1, "the other repositories of the host are not asked for"
        taken[0].settimeout(5)
        while taken[0].recv(4096):
            pass  # the request, then the end: who asked is gone
        taken[0].close()
        server.shutdown(socket.SHUT_RDWR)
