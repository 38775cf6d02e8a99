"""Stages 02 and 03 in processes of their own: the endpoint fails, costs money or is not there; kills."""

import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import stage_run
from fault_server import CONTENT
from stage_run import checkout, datasets, finish, recorded, run_with_kills, simulated, start

DIALOGUES, TURNS, MEMES = 8, 8, 8
CALLS = DIALOGUES * (2 * TURNS - 1) + MEMES
IN_FLIGHT = 16


@pytest.fixture(scope="module")
def faultless(tmp_path_factory) -> tuple[dict[str, str], int]:
    """What the stages write when nothing fails, and their calls: two of five replies break a rule."""
    folder = tmp_path_factory.mktemp("faultless")
    with simulated(folder, breaks=0.4) as server:
        root = checkout(folder, server.url, n_turns=TURNS)
        found = finish(start(root, DIALOGUES, MEMES))
        assert found["status"] == 0, found
        return datasets(root), server.count()


def test_a_run_with_faults_and_five_kills_ends_with_the_same_bytes(tmp_path: Path, faultless) -> None:
    whole, calls = faultless
    with simulated(tmp_path, faults=0.2, breaks=0.4, seed=3, latency=0.02) as server:
        root = checkout(tmp_path, server.url, n_turns=TURNS)
        found = run_with_kills(root, server, DIALOGUES, MEMES, kills=5, seed=7, calls=calls)
    assert found["status"] == 0, found
    assert found["again"] == [] and found["recorded twice"] == 0
    assert sum(found["faults"].values()) > calls / 10
    assert sum(found["faults"][kind] for kind in CONTENT) > calls / 100
    assert datasets(root) == whole


def test_a_cap_in_dollars_stops_and_a_raised_one_goes_on(tmp_path: Path, faultless) -> None:
    with simulated(tmp_path, breaks=0.4, latency=0.02) as server:
        root = checkout(tmp_path, server.url, n_turns=TURNS, concurrency=IN_FLIGHT)
        done: set[str] = set()
        for cap in (0.1, 0.25, 100):
            first = server.count()
            found = finish(start(root, DIALOGUES, MEMES, settings=f"max_usd={cap}"))
            dearest = max(stage_run.usd(line) for line in server.lines())
            assert server.usd() <= cap + IN_FLIGHT * dearest
            assert not [line for line in server.lines(first) if line["hash"] in done], "paid for twice"
            done = set(recorded(root))
            if cap < 100:
                assert re.search(rf"max_usd={cap} would be exceeded .*run again to go on", found["error"]), (
                    found
                )
                assert server.usd() > 0.5 * cap, "the cap is made use of"
    assert found["status"] == 0, found
    assert datasets(root) == faultless[0]


def test_a_cap_in_calls_stops_and_a_raised_one_goes_on(tmp_path: Path, faultless) -> None:
    whole, calls = faultless
    with simulated(tmp_path, breaks=0.4) as server:
        root = checkout(tmp_path, server.url, n_turns=TURNS)
        done: set[str] = set()
        for cap in (1, 37, calls + 100):
            first = server.count()
            found = finish(start(root, DIALOGUES, MEMES, settings=f"max_calls={cap}"))
            assert server.count() <= cap
            if cap < calls:
                assert f"max_calls={cap} reached" in found["error"] and server.count() == cap, found
            assert not [line for line in server.lines(first) if line["hash"] in done], "paid for twice"
            done = set(recorded(root))
    assert found["status"] == 0, found
    assert datasets(root) == whole


def test_two_runs_of_one_profile_pay_once(tmp_path: Path, faultless) -> None:
    with simulated(tmp_path, breaks=0.4, latency=0.1) as server:
        root = checkout(tmp_path, server.url, n_turns=TURNS)
        for process in [start(root, DIALOGUES, MEMES, run=name) for name in ("one", "two")]:
            assert finish(process)["status"] == 0
        assert datasets(root, "one") == datasets(root, "two") == faultless[0]
        assert server.count() == faultless[1], "the second waits for the first and reads what it recorded"


def test_a_notebook_on_a_dead_endpoint_ends_with_one_line(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{probe.getsockname()[1]}/v1"  # bound, but nobody listens
        root = checkout(tmp_path, url, n_turns=4)
        words = [sys.executable, "-m", "memecmd_utils", "run", "03_dialogue_generation", "run"]
        environment = stage_run.environment(root, PROFILE="made")
        done = subprocess.run(words, cwd=root, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1 and "has not answered (no connection" in errors[0]
    assert "Traceback" not in done.stderr and len(done.stderr.splitlines()) <= 6, done.stderr
    assert not (root / "reports" / "run" / "03_dialogue_generation.ipynb").exists()
