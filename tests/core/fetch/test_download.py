import os
import shutil
import signal
import subprocess
import sys
import zipfile

import pytest
from made_sources import archive, content, git, picture, repository

from memecmd_utils.core.fetch import download
from memecmd_utils.core.fetch.download import Unpacked, unpack
from memecmd_utils.pictures import LibraryError

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
ODD = ["[盒子]!", "鸽子🕊BQB", "a b ", "#x", "w*"]


@needs_git
def test_the_wanted_folders_of_an_older_commit_come_whole(tmp_path) -> None:
    url, commit, home = repository(tmp_path, dict.fromkeys([*ODD, "picture"], 3))
    target = tmp_path / "new" / "clone"
    download.fetch_commit(url, commit, target, ["*"], ["picture", "*.md"])
    git(home, "checkout", "-q", commit)
    wanted = {k: v for k, v in content(home).items() if not k.startswith(("picture/", "README"))}
    assert content(target) == wanted and len(wanted) == 3 * len(ODD)
    assert download.head(target) == commit and download.is_ours(target)
    # What nobody wants was never fetched: neither the other folder's pictures nor the history.
    missing = git(target, "rev-list", "--objects", "--missing=print", commit).splitlines()
    assert sum(line.startswith("?") for line in missing) == 4
    assert git(target, "rev-list", "--count", "HEAD").strip() == "1"


@needs_git
def test_line_ends_and_links_stay_as_committed(tmp_path) -> None:
    url, commit, home = repository(tmp_path, {"a": 1})
    git(home, "checkout", "-q", commit)
    (home / "a" / "out.jpg").symlink_to("/etc/passwd")
    git(home, "add", "-A")
    git(home, "commit", "-q", "-m", "link")
    download.fetch_commit(url, git(home, "rev-parse", "HEAD").strip(), tmp_path / "t")
    assert (tmp_path / "t" / "README.md").read_bytes() == b"read\r\nme\n"
    link = tmp_path / "t" / "a" / "out.jpg"
    assert not link.is_symlink() and link.read_bytes() == b"/etc/passwd", "a link out is only its text"


@needs_git
def test_a_killed_fetch_goes_on_and_asks_only_for_what_is_missing(tmp_path) -> None:
    url, commit, home = repository(tmp_path, {f"f{n}": 3 for n in range(8)})
    target = tmp_path / "clone"
    script = (
        "import sys, time; from pathlib import Path; from memecmd_utils.core.fetch import download\n"
        "select = download._select\n"
        "def slow(folder, names):\n"
        "    if len(names) == 5: print('half', flush=True); time.sleep(60)\n"
        "    select(folder, names)\n"
        "download._select = slow\n"
        "download.fetch_commit(sys.argv[1], sys.argv[2], Path(sys.argv[3]))"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", script, url, commit, str(target)],
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        assert child.stdout.readline() == b"half\n"
    finally:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait(timeout=30)
    assert sorted(p.name for p in target.glob("[!.]*")) == ["README.md", "f0", "f1", "f2"]
    half = content(target)
    # What a kill inside git leaves: a lock, half a file, a folder with one of its files missing.
    (target / ".git" / "index.lock").touch()
    (target / "f1" / "图 0.jpg").write_bytes(b"half")
    (target / "f2" / "图 1.jpg").unlink()
    (target / "f6").mkdir()
    (target / "f6" / "图 0.jpg").write_bytes(b"torn")
    times = {p: p.stat().st_mtime_ns for p in (target / "f0").iterdir()}
    download.fetch_commit(url, commit, target)
    git(home, "checkout", "-q", commit)
    assert content(target) == content(home) and set(half) < set(content(home))
    assert {p: p.stat().st_mtime_ns for p in (target / "f0").iterdir()} == times, "whole files are left alone"


@needs_git
def test_errors_say_what_to_do(tmp_path, monkeypatch) -> None:
    url, commit, _ = repository(tmp_path, {"a": 1})
    with pytest.raises(LibraryError, match="does not have this commit; correct the one"):
        download.fetch_commit(url, "0" * 40, tmp_path / "t1")
    with pytest.raises(LibraryError, match="there is no such repository; correct its address"):
        download.fetch_commit((tmp_path / "none").as_uri(), commit, tmp_path / "t2")
    with pytest.raises(LibraryError, match=r"no connection .*Run again later"):
        download.fetch_commit("http://127.0.0.1:9/x.git", commit, tmp_path / "t3")
    with pytest.raises(LibraryError, match="holds nothing that `want`"):
        download.fetch_commit(url, commit, tmp_path / "t4", ["nothing"])
    with pytest.raises(LibraryError, match="is no commit"):
        download.fetch_commit(url, "--upload-pack=x", tmp_path / "t5")
    with pytest.raises(LibraryError, match="no connection"):
        download.branch_head("http://127.0.0.1:9/x.git")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LibraryError, match="the program git is needed"):
        download.fetch_commit(url, commit, tmp_path / "t6")


@needs_git
def test_a_full_disk_is_said(tmp_path, monkeypatch) -> None:
    fake = tmp_path / "bin" / "git"
    fake.parent.mkdir()
    fake.write_text(
        "#!/bin/sh\necho 'fatal: write error: No space left on device' >&2; exit 128\n", encoding="utf-8"
    )
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(fake.parent))
    with pytest.raises(LibraryError, match=r"the disk is full .*what was fetched is kept"):
        download.fetch_commit("https://example.org/x", "1" * 40, tmp_path / "t")


def test_images_come_out_and_nothing_else(tmp_path) -> None:
    one, two = picture(1), picture(2)
    link = zipfile.ZipInfo("emo/link.jpg")
    link.external_attr = 0o120777 << 16
    path = archive(
        tmp_path / "a.zip",
        {"emo/表情 1.png": one, "emo/x/2.JPG": two, "emo/说明.txt": b"hello", "emo/lie.jpg": b"MZ no image",
         "__MACOSX/emo/._1.png": one, "emo/.hidden.png": one, "emo/": b""},
    )  # fmt: skip
    with zipfile.ZipFile(path, "a") as target:
        target.writestr(link, "/etc/passwd")
    assert unpack(path, tmp_path / "out") == Unpacked(2, 0, 5)
    files = {p.relative_to(tmp_path / "out").as_posix() for p in (tmp_path / "out").rglob("*") if p.is_file()}
    assert files == {"emo/表情 1.png", "emo/x/2.JPG"}
    assert (tmp_path / "out" / "emo" / "表情 1.png").read_bytes() == one


def test_it_goes_on_where_it_was_cut_off(tmp_path, monkeypatch) -> None:
    pictures = {f"{n}.png": picture(n) for n in range(6)}
    path, out = archive(tmp_path / "a.zip", pictures), tmp_path / "out"

    def killed_at_the_third(entries, **_):
        yield from entries[:3]
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(download, "tqdm", killed_at_the_third)
        with pytest.raises(KeyboardInterrupt):
            unpack(path, out)
    assert sorted(p.name for p in out.iterdir()) == ["0.png", "1.png", "2.png"]
    (out / "1.png").write_bytes(pictures["1.png"][:-1] + b"?")  # torn, same size
    assert unpack(path, out) == Unpacked(4, 2, 0)
    assert {p.name: p.read_bytes() for p in out.iterdir()} == pictures
    assert unpack(path, out) == Unpacked(0, 6, 0)


@pytest.mark.parametrize("name", ["../out.png", "a/../../b.png", "/etc/b.png", "..\\b.png"])
def test_an_entry_that_leads_out_stops_before_anything_is_written(tmp_path, name) -> None:
    path = archive(tmp_path / "a.zip", {"good.png": picture(1), name: picture(2)})
    with pytest.raises(LibraryError, match="leads out of the folder"):
        unpack(path, tmp_path / "x" / "out")
    assert not (tmp_path / "x").exists()


def test_bombs_are_refused(tmp_path, monkeypatch) -> None:
    bomb = archive(tmp_path / "b.zip", {"b.png": picture(1) + bytes(50_000_000)})
    assert bomb.stat().st_size < 100_000
    with pytest.raises(LibraryError, match=r"'b.png' unpacks .* to 50,0.*: a bomb\?"):
        unpack(bomb, tmp_path / "out")
    monkeypatch.setattr(download, "MAX_TOTAL", 1000)
    with pytest.raises(LibraryError, match="the limit is 1,000"):
        unpack(archive(tmp_path / "c.zip", {f"{n}.png": picture(n) for n in range(9)}), tmp_path / "out")
    monkeypatch.setattr(download, "MAX_ENTRIES", 8)
    with pytest.raises(LibraryError, match="9 entries; the limit is 8"):
        unpack(tmp_path / "c.zip", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_header_that_lies_about_the_size_is_caught(tmp_path) -> None:
    data = picture(1) + bytes(30_000_000)
    path = archive(tmp_path / "a.zip", {"a.png": data})
    raw, said = path.read_bytes(), len(data).to_bytes(4, "little")
    assert raw.count(said) == 2
    path.write_bytes(raw.replace(said, (1000).to_bytes(4, "little")))
    with pytest.raises(LibraryError, match=r"no whole zip archive|a bomb"):
        unpack(path, tmp_path / "out")
    assert not list(tmp_path.rglob("*.png"))


def test_broken_and_wrong_files_are_named(tmp_path) -> None:
    with pytest.raises(LibraryError, match="there is no file"):
        unpack(tmp_path / "none.zip", tmp_path)
    (tmp_path / "a.zip").write_bytes(b"<html>please log in</html>")
    with pytest.raises(LibraryError, match=r"no whole zip archive .*download it again"):
        unpack(tmp_path / "a.zip", tmp_path)
    with pytest.raises(LibraryError, match="holds no image"):
        unpack(archive(tmp_path / "t.zip", {"a.txt": b"x"}), tmp_path / "out")
    data = picture(7)
    whole = archive(tmp_path / "w.zip", {"0.png": picture(3), "a.png": data}, zipfile.ZIP_STORED)
    raw = bytearray(whole.read_bytes())
    raw[raw.index(data) + len(data) // 2] ^= 255
    whole.write_bytes(raw)
    with pytest.raises(LibraryError, match="what was unpacked is kept"):
        unpack(whole, tmp_path / "out")
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["0.png"]
    locked = bytearray(archive(tmp_path / "l.zip", {"a.png": data}).read_bytes())
    for mark, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        locked[locked.index(mark) + offset] |= 1
    (tmp_path / "l.zip").write_bytes(locked)
    with pytest.raises(LibraryError, match="locked with a password"):
        unpack(tmp_path / "l.zip", tmp_path / "out")
