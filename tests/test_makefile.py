"""The Makefile by itself: which Python it takes, when the environment is made again, what `make` lists."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from memecmd_utils.files import paths

MAKEFILE = paths.root / "Makefile"
MAKE = shutil.which("gmake") or shutil.which("make")
pytestmark = pytest.mark.skipif(MAKE is None, reason="GNU make is not installed")

# A Python that starts, makes environments that hold a copy of itself, and notes what it is asked.
WORKING = """#!/bin/sh
echo "$(basename "$0") $*" >> "{log}"
case "$1 $2" in
  *ensurepip*) exit 0 ;;
  "-c "*) echo 3.12.9 ;;
  "-m venv") mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
esac
"""
FAILING = "#!/bin/sh\necho 'shim: this version is not installed' >&2\nexit 127\n"


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)
    return path


def make(folder: Path, *arguments: str, **more: str) -> subprocess.CompletedProcess:
    left_out = {"MAKEFLAGS", "MAKELEVEL", "MFLAGS", "PROFILE", "SET", "PYTHON", "VENV", "MODEL"}
    environment = {key: value for key, value in os.environ.items() if key not in left_out}
    environment |= {"LC_ALL": "C", **more}
    return subprocess.run(
        [MAKE, *arguments], cwd=folder, env=environment, capture_output=True, text=True, timeout=60
    )


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of the Makefile; no environment. Its path holds a blank."""
    folder = tmp_path / "a checkout"
    folder.mkdir()
    shutil.copyfile(MAKEFILE, folder / "Makefile")
    for name in ("requirements.lock", "pyproject.toml"):
        (folder / name).touch()
    return folder


def test_bare_make_lists_what_users_need_and_help_all_the_rest(checkout: Path) -> None:
    text = MAKEFILE.read_text(encoding="utf-8")
    first, rest = (dict(re.findall(rf"^{mark} (.+)\n([a-z-]+):", text, re.M)) for mark in ("##", r"#\+"))
    public = set(re.search(r"^\.PHONY: (.+)$", text, re.M).group(1).split())
    assert {*first.values(), *rest.values()} == public - {"help"}
    for target, documented in (("help", first), ("help-all", {**first, **rest})):
        shown = make(checkout, target)
        assert shown.returncode == 0 and not shown.stderr
        for words, name in documented.items():
            assert re.search(rf"^  {name} +{re.escape(words)}$", shown.stdout, re.M), name


def test_a_shim_is_passed_over_and_where_none_fits_that_is_said(checkout: Path, tmp_path: Path) -> None:
    tools, log = tmp_path / "tools", tmp_path / "log"
    path = f"{tools}{os.pathsep}{os.environ['PATH']}"
    for name in ("python3.12", "python3.11", "python3.13", "python3.14", "python3"):
        script(tools / name, FAILING)
    none = make(checkout, "doctor", PATH=path)
    assert none.returncode != 0 and "no Python 3.11 or later" in none.stderr
    script(tools / "python3.13", WORKING.format(log=log))
    done = make(checkout, "doctor", PATH=path)
    assert done.returncode == 0 and "uv did not fill the environment: pip does" in done.stderr
    asked = log.read_text(encoding="utf-8")
    assert "python3.13 -m venv .venv" in asked and "python -m memecmd_utils doctor" in asked
    log.unlink()
    mine = script(tmp_path / "my python", WORKING.format(log=log))
    assert make(checkout, "doctor", f"PYTHON={mine}", "VENV=other", PATH=path).returncode == 0
    assert "my python -m venv other" in log.read_text(encoding="utf-8")


def test_a_new_lock_makes_the_environment_anew(checkout: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    mine = script(tmp_path / "python", WORKING.format(log=log))
    assert make(checkout, "doctor", f"PYTHON={mine}").returncode == 0
    later = (checkout / ".venv/.ready").stat().st_mtime + 100
    log.unlink()
    assert make(checkout, "doctor", f"PYTHON={mine}").returncode == 0
    assert "venv" not in log.read_text(encoding="utf-8")
    os.utime(checkout / "requirements.lock", (later, later))
    for shared in (True, False):
        (checkout / ".venv/.shared").touch() if shared else (checkout / ".venv/.shared").unlink()
        assert make(checkout, "doctor", f"PYTHON={mine}").returncode == 0
        assert ("-m venv .venv" in log.read_text(encoding="utf-8")) != shared


def test_clean_keeps_recordings_and_tracked_files(checkout: Path) -> None:
    kept = ["data/raw/recordings/x.jsonl", "reports/numbers.json"]
    gone = ["data/processed/r/memes.parquet", "data/interim/x/y", "reports/r/index.html"]
    for path in (checkout / name for name in kept + gone):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    script(checkout / ".venv/bin/python", "#!/bin/sh\n")
    assert make(checkout, "clean").returncode == 0
    assert [name for name in kept + gone if (checkout / name).exists()] == kept


def test_names_are_no_code_and_come_from_make_s_own_words(checkout: Path) -> None:
    script(checkout / ".venv/bin/python", '#!/bin/sh\necho "[$IN$NAME$RELEASE$STRATEGY] $*"\n')
    (checkout / ".venv/.ready").touch()
    # What WSL and other tools export under names that targets take.
    tools = {"NAME": "DESKTOP-7Q2", "MODEL": "gpt-5", "RELEASE": "22.04", "STRATEGY": "x"}

    def shown(*words: str) -> str:
        return make(checkout, *words, "VENV=.venv", "-o", ".venv/.ready", **tools).stdout

    for name in ("a`touch boom`.csv", 'q"q$HOME.csv', "$(touch boom)", "-聊天 (1).csv"):
        told = shown("insert-memes", f"IN={name}", "OUT=o.csv")
        assert told.startswith(f"[{name}greedy]") and told.endswith(f" -- {name} o.csv\n")
    assert not (checkout / "boom").exists()
    entry = shown("leaderboard", "ENTRY=my.trec")
    assert entry.startswith("[greedy] -m memecmd_utils leaderboard --name  --run  ")
    assert "--name mine " in shown("leaderboard", "NAME=mine")
    assert " fetch local-llm -- qwen2.5-coder-1.5b" in shown("local-llm")
    assert "verify -- \n" in shown("verify") and "paper-data -- \n" in shown("paper-data")
