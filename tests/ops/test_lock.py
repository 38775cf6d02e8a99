"""One `make reproduce` at a time works on a run; its stages do not lock each other out."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from stage_run import checkout, environment, recorded, simulated

from memecmd_utils.core import paths
from memecmd_utils.ops import make

MAKE = shutil.which("gmake") or shutil.which("make")
HOLD = [sys.executable, "-m", "memecmd_utils", "hold", "r"]
IN_SHELL = " ".join(f"'{word}'" for word in HOLD)


@contextmanager
def started(folder: Path, *words: str, **more: str) -> Iterator[subprocess.Popen]:
    """A process that leads a group of its own; all of the group is killed at the end."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    folder.mkdir(exist_ok=True)
    for name in ("notebooks", "pyproject.toml"):
        if not (folder / name).exists():
            (folder / name).symlink_to(paths.root / name)
    kept = environment(folder, PYTHONPATH=str(paths.root), **more)
    kept = {name: value for name, value in kept.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
    with subprocess.Popen(words, cwd=folder, env=kept, start_new_session=True, **pipes) as process:
        try:
            yield process
        finally:
            kill(process)


def kill(process: subprocess.Popen) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def test_one_runs_and_the_other_waits_says_so_in_one_line_and_goes_on_after_a_kill(tmp_path: Path) -> None:
    with started(tmp_path, *HOLD, "sh", "-c", "echo in; sleep 60") as first:
        assert first.stdout.readline() == "in\n"
        with started(tmp_path, *HOLD, "echo", "second") as second:
            told = second.stderr.readline()
            assert told.startswith(f"run r is being made by process {first.pid} since ") and "waiting" in told
            assert second.poll() is None
            kill(first)
            assert second.communicate(timeout=20) == ("second\n", "")
    with started(tmp_path, *HOLD, "echo", "third") as third:
        assert third.communicate(timeout=20) == ("third\n", ""), "nothing is left behind"
        assert third.returncode == 0


def test_what_it_starts_goes_on_at_once_side_by_side_and_other_runs_are_free(tmp_path: Path) -> None:
    inner = f"{IN_SHELL} sh -c 'echo a; sleep 1; echo a' & {IN_SHELL} sh -c 'echo b; sleep 1; echo b'; wait"
    with started(tmp_path, *HOLD, "sh", "-c", inner) as process:
        out, told = process.communicate(timeout=30)
    assert sorted(out.split()[:2]) == sorted(out.split()[2:]) == ["a", "b"] and told == ""
    with (
        started(tmp_path, *HOLD, "sh", "-c", "echo in; sleep 60") as first,
        started(tmp_path, *HOLD[:-1], "other", "echo", "free") as other,
    ):
        assert first.stdout.readline() == "in\n"
        assert other.communicate(timeout=20) == ("free\n", "")


def test_a_stage_that_goes_on_after_its_make_was_killed_keeps_the_lock(tmp_path: Path) -> None:
    with started(tmp_path, *HOLD, "sh", "-c", "sleep 60 & echo $!; wait") as first:
        stage = int(first.stdout.readline())
        os.kill(first.pid, signal.SIGKILL)
        first.wait()
        with started(tmp_path, *HOLD, "echo", "second") as second:
            assert "waiting" in second.stderr.readline() and second.poll() is None
            os.kill(stage, signal.SIGKILL)
            assert second.communicate(timeout=20) == ("second\n", "")


@pytest.mark.parametrize("value", ["1", "987", "x", "-1", ""])
def test_a_variable_that_lies_is_not_believed(tmp_path: Path, value: str) -> None:
    with started(tmp_path, *HOLD, "sh", "-c", "echo in; sleep 60") as first:
        assert first.stdout.readline() == "in\n"
        with started(tmp_path, *HOLD, "echo", "second", **{make.VARIABLE: value}) as second:
            assert "waiting" in second.stderr.readline()


def test_a_folder_that_was_deleted_while_one_waited_is_held_anew(tmp_path: Path) -> None:
    with started(tmp_path, *HOLD, "sh", "-c", "echo in; sleep 60") as first:
        assert first.stdout.readline() == "in\n"
        with started(tmp_path, *HOLD, "sh", "-c", "echo second; sleep 60") as second:
            assert "waiting" in second.stderr.readline()
            shutil.rmtree(tmp_path / "data" / "processed" / "r")
            kill(first)
            assert second.stdout.readline() == "second\n"
            with started(tmp_path, *HOLD, "echo", "third") as third:
                assert f"process {second.pid} " in third.stderr.readline()


# --- make -------------------------------------------------------------------------------------------

TURNS, CALLS = 4, 2 * (2 * 4 - 1)


def project(folder: Path, url: str) -> Path:
    """A project whose environment is the one that runs the tests."""
    judges = [{"kind": "rating", "llm": "openai"}]
    root = checkout(folder, url, n_turns=TURNS, judges=judges)
    shutil.copyfile(paths.root / "Makefile", root / "Makefile")
    (root / "requirements.lock").touch()
    os.utime(root / "requirements.lock", (0, 0))
    python = root / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n', encoding="utf-8")
    python.chmod(0o755)
    (root / ".venv" / ".ready").touch()  # newer than the project's own pyproject.toml, too
    return root


DIALOGUES = [MAKE, "reproduce", "STAGES=03_dialogue_generation"]


def wait_for(server, count: int, process: subprocess.Popen) -> None:
    end = time.monotonic() + 120
    while server.count() < count:
        assert process.poll() is None and time.monotonic() < end, process.communicate()
        time.sleep(0.02)


@pytest.mark.slow
@pytest.mark.skipif(MAKE is None, reason="GNU make is not installed")
@pytest.mark.parametrize("killed", [False, True], ids=["both end", "the first is killed"])
def test_make_reproduce_twice_at_once_pays_for_each_request_once(tmp_path: Path, killed: bool) -> None:
    with simulated(tmp_path, latency=0.4) as server:
        root = project(tmp_path, server.url)
        with started(root, *DIALOGUES, PROFILE="made") as first:
            wait_for(server, 4, first)
            with started(root, *DIALOGUES, PROFILE="made") as second:
                told = second.stderr.readline()
                assert "is being made by process" in told and "waiting" in told
                if killed:
                    kill(first)
                else:
                    assert first.wait(120) == 0
                out, rest = second.communicate(timeout=120)
        assert second.returncode == 0, rest
        assert ("nothing to do" in out) != killed and "waiting" not in rest
        assert server.count() == CALLS or (killed and server.count() <= CALLS + 16)
        assert len(recorded(root)) == CALLS and max(recorded(root).values()) == 1
