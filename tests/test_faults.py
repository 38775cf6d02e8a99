"""Stages 02 to 04 in processes of their own: with faults and kills they write what a run without writes, no
answered request is asked again, and caps hold.
"""

import json
import random
import re
import time
from collections import Counter
from pathlib import Path

import pytest
import stage_run
from fault_server import CONTENT
from stage_run import checkout, datasets, finish, recorded, simulated, start

pytestmark = pytest.mark.slow

DIALOGUES, TURNS, MEMES = 8, 8, 8
IN_FLIGHT = 16


@pytest.fixture(scope="module")
def faultless(tmp_path_factory) -> tuple[dict[str, str], int]:
    """What the stages write when nothing fails, and their calls: two of five replies break a rule."""
    folder = tmp_path_factory.mktemp("faultless")
    with simulated(folder, breaks=0.4) as server:
        root = checkout(folder, server.url, n_turns=TURNS)
        assert finish(start(root, DIALOGUES, MEMES)) == ""
        return datasets(root), server.count()


def test_a_run_with_faults_and_five_kills_ends_with_the_same_bytes(tmp_path: Path, faultless) -> None:
    """Killed at moments that are drawn, each after a share of all calls."""
    whole, calls = faultless
    kills, moments = 5, random.Random(7)
    with simulated(tmp_path, faults=0.2, breaks=0.4, seed=3, latency=0.02) as server:
        root = checkout(tmp_path, server.url, n_turns=TURNS, max_rpm=4000)
        for kill in range(kills + 1):
            done, first = set(recorded(root)), server.count()
            process = start(root, DIALOGUES, MEMES)
            if kill == kills:
                assert finish(process) == ""
            else:
                wanted = first + int(calls * moments.uniform(0.2, 1.0) / (kills + 1))
                while server.count() < wanted and process.poll() is None:
                    time.sleep(0.01)
                process.kill()
                process.communicate()
            assert not [line for line in server.lines(first) if line["hash"] in done], "asked again"
        faults = Counter(line["fault"] for line in server.lines() if line["fault"])
    assert max(recorded(root).values()) == 1, "nothing is recorded twice"
    assert sum(faults.values()) > calls / 10 and sum(faults[kind] for kind in CONTENT) > calls / 100
    assert datasets(root) == whole
    chosen = [json.loads(line)["meme_id"] for line in whole["choices.jsonl"].splitlines()]
    assert len(chosen) == DIALOGUES * (TURNS - 1) and 10 < sum(map(bool, chosen)) < len(chosen)


@pytest.mark.parametrize(("cap", "values"), [("max_usd", (0.1, 0.25, 100)), ("max_calls", (1, 37, 10_000))])
def test_a_cap_stops_and_a_raised_one_goes_on_without_paying_twice(
    cap: str, values: tuple[float, ...], tmp_path: Path, faultless
) -> None:
    with simulated(tmp_path, breaks=0.4, latency=0.02) as server:
        root = checkout(tmp_path, server.url, n_turns=TURNS, concurrency=IN_FLIGHT)
        done: set[str] = set()
        for value in values:
            first = server.count()
            error = finish(start(root, DIALOGUES, MEMES, settings=f"{cap}={value}"))
            spent = server.usd() if cap == "max_usd" else server.count()
            at_once = IN_FLIGHT * max(map(stage_run.usd, server.lines())) if cap == "max_usd" else 0
            assert spent <= value + at_once
            assert not [line for line in server.lines(first) if line["hash"] in done], "paid for twice"
            done = set(recorded(root))
            if value != values[-1]:
                assert re.search(rf"{cap}={value} .*run again to go on", error), error
                assert spent > 0.5 * value, "the cap is made use of"
    assert error == "" and datasets(root) == faultless[0]


def test_two_runs_of_one_profile_pay_once(tmp_path: Path, faultless) -> None:
    with simulated(tmp_path, breaks=0.4, latency=0.1) as server:
        root = checkout(tmp_path, server.url, n_turns=TURNS)
        for process in [start(root, DIALOGUES, MEMES, run=name) for name in ("one", "two")]:
            assert finish(process) == ""
        assert datasets(root, "one") == datasets(root, "two") == faultless[0]
        assert server.count() == faultless[1], "the second waits for the first and reads what it recorded"
