import os
import shutil
import signal
import subprocess
import sys
import time

import pytest
from made_sources import content, git, repository

from memecmd_utils.core.fetch import git as fetch_git
from memecmd_utils.core.images import LibraryError

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
ODD = ["[盒子]!", "鸽子🕊BQB", "a b ", "#x", "w*"]


def test_the_wanted_folders_of_an_older_commit_come_whole(tmp_path) -> None:
    url, commit, home = repository(tmp_path, dict.fromkeys([*ODD, "picture"], 3))
    target = tmp_path / "new" / "clone"
    fetch_git.fetch(url, commit, target, ["*"], ["picture", "*.md"])
    git(home, "checkout", "-q", commit)
    wanted = {k: v for k, v in content(home).items() if not k.startswith(("picture/", "README"))}
    assert content(target) == wanted and len(wanted) == 3 * len(ODD)
    assert fetch_git.head(target) == commit and fetch_git.is_ours(target)
    # What nobody wants was never fetched: neither the other folder's pictures nor the history.
    missing = git(target, "rev-list", "--objects", "--missing=print", commit).splitlines()
    assert sum(line.startswith("?") for line in missing) == 4
    assert git(target, "rev-list", "--count", "HEAD").strip() == "1"


def test_line_ends_and_links_stay_as_committed(tmp_path) -> None:
    url, commit, home = repository(tmp_path, {"a": 1})
    git(home, "checkout", "-q", commit)
    (home / "a" / "out.jpg").symlink_to("/etc/passwd")
    git(home, "add", "-A")
    git(home, "commit", "-q", "-m", "link")
    fetch_git.fetch(url, git(home, "rev-parse", "HEAD").strip(), tmp_path / "t")
    assert (tmp_path / "t" / "README.md").read_bytes() == b"read\r\nme\n"
    link = tmp_path / "t" / "a" / "out.jpg"
    assert not link.is_symlink() and link.read_bytes() == b"/etc/passwd", "a link out is only its text"


def test_a_killed_fetch_goes_on_and_asks_only_for_what_is_missing(tmp_path) -> None:
    url, commit, home = repository(tmp_path, {f"f{n}": 3 for n in range(8)})
    target = tmp_path / "clone"
    script = (
        "import sys, time; from pathlib import Path; from memecmd_utils.core.fetch import git as git_source\n"
        "select = git_source._select\n"
        "def slow(folder, names):\n"
        "    if len(names) == 5: print('half', flush=True); time.sleep(60)\n"
        "    select(folder, names)\n"
        "git_source._select = slow\n"
        "git_source.fetch(sys.argv[1], sys.argv[2], Path(sys.argv[3]))"
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
    fetch_git.fetch(url, commit, target)
    git(home, "checkout", "-q", commit)
    assert content(target) == content(home) and set(half) < set(content(home))
    assert {p: p.stat().st_mtime_ns for p in (target / "f0").iterdir()} == times, "whole files are left alone"


def test_killed_at_any_moment_it_ends_the_same(tmp_path) -> None:
    url, commit, home = repository(tmp_path, {f"f{n}": 30 for n in range(6)}, size=20_000)
    target = tmp_path / "clone"
    script = (
        "import sys; from pathlib import Path; from memecmd_utils.core.fetch import git as git_source\n"
        "git_source.fetch(sys.argv[1], sys.argv[2], Path(sys.argv[3]))"
    )
    for moment in (0.35, 0.45, 0.6):
        child = subprocess.Popen(
            [sys.executable, "-c", script, url, commit, str(target)], start_new_session=True,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        time.sleep(moment)
        os.killpg(child.pid, signal.SIGKILL)
        child.wait(timeout=30)
    fetch_git.fetch(url, commit, target)
    git(home, "checkout", "-q", commit)
    assert content(target) == content(home)


def test_errors_say_what_to_do(tmp_path, monkeypatch) -> None:
    url, commit, _ = repository(tmp_path, {"a": 1})
    with pytest.raises(LibraryError, match="does not have this commit; correct the one"):
        fetch_git.fetch(url, "0" * 40, tmp_path / "t1")
    with pytest.raises(LibraryError, match="there is no such repository; correct its address"):
        fetch_git.fetch((tmp_path / "none").as_uri(), commit, tmp_path / "t2")
    with pytest.raises(LibraryError, match=r"no connection .*Run again later"):
        fetch_git.fetch("http://127.0.0.1:9/x.git", commit, tmp_path / "t3")
    with pytest.raises(LibraryError, match="holds nothing that `want`"):
        fetch_git.fetch(url, commit, tmp_path / "t4", ["nothing"])
    with pytest.raises(LibraryError, match="is no commit"):
        fetch_git.fetch(url, "--upload-pack=x", tmp_path / "t5")
    with pytest.raises(LibraryError, match="no connection"):
        fetch_git.branch_head("http://127.0.0.1:9/x.git")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LibraryError, match="the program git is needed"):
        fetch_git.fetch(url, commit, tmp_path / "t6")


def test_a_full_disk_is_said(tmp_path, monkeypatch) -> None:
    fake = tmp_path / "bin" / "git"
    fake.parent.mkdir()
    fake.write_text(
        "#!/bin/sh\necho 'fatal: write error: No space left on device' >&2; exit 128\n", encoding="utf-8"
    )
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(fake.parent))
    with pytest.raises(LibraryError, match=r"the disk is full .*what was fetched is kept"):
        fetch_git.fetch("https://example.org/x", "1" * 40, tmp_path / "t")
