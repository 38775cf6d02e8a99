"""Stages 02 and 03 against a simulated endpoint that fails, limits, costs money or is dead."""

import json
import re
import socket
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
import stage_run
from fault_server import CONTENT
from stage_run import checkout, datasets, finish, recorded, run_with_kills, simulated, start

pytestmark = pytest.mark.slow

DIALOGUES, TURNS, MEMES = 8, 8, 8
CALLS = DIALOGUES * (2 * TURNS - 1) + MEMES
SHORT = {"dead_after_s": 4.0, "timeout_s": 30.0}


@pytest.fixture(scope="module")
def faultless(tmp_path_factory) -> dict[str, str]:
    """What the stages write when nothing fails."""
    folder = tmp_path_factory.mktemp("faultless")
    with simulated(folder) as server:
        root = checkout(folder, server.url, n_turns=TURNS)
        assert finish(start(root, DIALOGUES, MEMES))["status"] == 0
        assert server.count() == CALLS
    return datasets(root)


@pytest.fixture(scope="module")
def faultless_breaking(tmp_path_factory) -> tuple[dict[str, str], int]:
    """The same of a model that breaks a rule in two of five replies, and how often it was asked."""
    folder = tmp_path_factory.mktemp("breaking")
    with simulated(folder, breaks=0.4) as server:
        root = checkout(folder, server.url, n_turns=TURNS)
        assert finish(start(root, DIALOGUES, MEMES))["status"] == 0
        calls = server.count()
    return datasets(root), calls


def cli(root: Path, *arguments: str, **settings: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "memecmd_utils", *arguments], cwd=root, timeout=120, text=True,
        env=stage_run.environment(root, PROFILE="made", **settings), capture_output=True, check=False,
    )  # fmt: skip


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_a_run_with_faults_and_five_kills_ends_with_the_same_bytes(
    tmp_path: Path, faultless_breaking
) -> None:
    """Faults of every kind, also in what is said, while the model breaks rules and is shown its errors."""
    whole, calls = faultless_breaking
    with simulated(tmp_path, faults=0.2, breaks=0.4, seed=3, latency=0.02) as server:
        root = checkout(tmp_path, server.url, n_turns=TURNS)
        found = run_with_kills(root, server, DIALOGUES, MEMES, kills=5, seed=7, calls=calls)
    assert found["status"] == 0, found
    assert found["again"] == [] and found["recorded twice"] == 0
    assert sum(found["faults"].values()) > calls / 10
    assert sum(found["faults"][kind] for kind in CONTENT) > calls / 100
    assert datasets(root) == whole
    turns = [turn for line in whole["dialogues.jsonl"].splitlines() for turn in json.loads(line)["turns"]]
    kept = sum(bool(turn["violations"]) for turn in turns)
    assert calls > CALLS + 2 * kept and 0 < kept < 0.2 * len(turns), "asked again, mostly with success"


def test_a_run_whose_first_live_request_is_refused_each_time_goes_on_to_its_end(
    tmp_path: Path, faultless
) -> None:
    """A moderation, say: after a cap or a kill this request is what every resumed stage begins with."""
    with simulated(tmp_path, refuse="第1号见闻") as server:
        root = checkout(tmp_path, server.url, n_turns=TURNS)
        for cap in (CALLS // 3, CALLS, CALLS):
            found = finish(start(root, DIALOGUES, MEMES, settings=f"max_calls={cap}"))
            assert (found["status"] == 0) == (cap == CALLS), found
        neutral = len(server.lines()) - len({line["hash"] for line in server.lines()})
        assert neutral <= 7, "a few refused and neutral requests a time, and nothing else twice"
    written = datasets(root)
    (left,) = map(json.loads, written["unfinished.jsonl"].splitlines())
    assert left["dialogue_id"] == "made-00001" and left["reason"].startswith("rejected after 1 attempts: 403")
    whole = [line for line in faultless["dialogues.jsonl"].splitlines() if '"made-00001"' not in line]
    assert written["dialogues.jsonl"].splitlines() == whole and len(whole) == DIALOGUES - 1


def test_two_processes_share_a_profile_and_pay_once(tmp_path: Path, faultless) -> None:
    # Slow enough that the second has begun before the first is done.
    with simulated(tmp_path, latency=0.4) as server:
        root = checkout(tmp_path, server.url, n_turns=TURNS)
        processes = [start(root, DIALOGUES, MEMES, run=name) for name in ("one", "two")]
        for process in processes:
            assert finish(process)["status"] == 0
        assert datasets(root, "one") == datasets(root, "two") == faultless
        assert len(recorded(root)) == CALLS and max(recorded(root).values()) == 1
        assert server.count() == CALLS, "what one asks for the other waits for and reads"
        before = server.count()
        assert finish(start(root, DIALOGUES, MEMES, run="three"))["replayed"] > 0
        assert server.count() == before, "everything is recorded"


def test_what_a_killed_process_had_claimed_is_asked_for_by_the_other(tmp_path: Path, faultless) -> None:
    with simulated(tmp_path, latency=0.4) as server:
        root = checkout(tmp_path, server.url, n_turns=TURNS)
        one, two = (start(root, DIALOGUES, MEMES, run=name) for name in ("one", "two"))
        while server.count() < CALLS / 2:
            time.sleep(0.01)
        one.kill()
        one.communicate()
        assert finish(two)["status"] == 0
        assert datasets(root, "two") == faultless
        again = Counter(line["hash"] for line in server.lines())
        assert max(again.values()) <= 2 and server.count() <= CALLS + 16, (
            "only what was in flight, paid twice"
        )
        assert max(recorded(root).values()) == 1


@pytest.mark.parametrize("retry_after", ["1", ""], ids=["Retry-After", "no Retry-After"])
def test_a_rate_limit_costs_at_most_half_as_much_again(retry_after: str, tmp_path: Path, capsys) -> None:
    dialogues, turns, rate = 64, 9, 50.0
    calls = dialogues * (2 * turns - 1)
    limits = {"mode": "rate", "rate": rate, "latency": 0.05, "retry_after": retry_after}
    with simulated(tmp_path, **limits) as server:
        root = checkout(tmp_path, server.url, n_turns=turns, concurrency=64)
        found = finish(start(root, dialogues))
        refused = sum(line["fault"] == "rate" for line in server.lines())
    assert found["status"] == 0, found
    bound = (calls - 10) / rate
    with capsys.disabled():
        print(
            f"\n{calls} calls at {rate:.0f}/s: {found['seconds']:.1f} s, bound {bound:.1f} s "
            f"(x {found['seconds'] / bound:.2f}); {refused} refused"
        )
    assert len(datasets(root)["dialogues.jsonl"].splitlines()) == dialogues
    assert found["seconds"] <= 1.5 * bound


def test_a_cap_in_dollars_is_never_passed_and_a_raised_one_goes_on(tmp_path: Path, faultless) -> None:
    with simulated(tmp_path, faults=0.2, content=False, seed=5, latency=0.02) as server:
        root = checkout(tmp_path, server.url, n_turns=TURNS)
        caps, done = [0.1, 0.25, 100], set()
        for cap in caps:
            first = server.count()
            found = finish(start(root, DIALOGUES, MEMES, settings=f"max_usd={cap}"))
            assert server.usd() <= cap
            assert not [line for line in server.lines(first) if line["hash"] in done], "paid for twice"
            done = set(recorded(root))
            if cap != caps[-1]:
                assert found["status"] and "BudgetReached" in found["error"], found
                assert re.search(rf"max_usd={cap} would be passed .*run again to go on", found["error"])
                assert server.usd() > 0.5 * cap, "the cap is made use of"
    assert found["status"] == 0, found
    assert datasets(root) == faultless


def test_a_cap_in_calls_is_never_passed_and_a_raised_one_goes_on(tmp_path: Path, faultless) -> None:
    with simulated(tmp_path) as server:
        root = checkout(tmp_path, server.url, n_turns=TURNS)
        for cap in (1, 37, CALLS):
            found = finish(start(root, DIALOGUES, MEMES, settings=f"max_calls={cap}"))
            assert server.count() == cap == len(recorded(root))
            if cap < CALLS:
                assert f"max_calls={cap} reached" in found["error"], found
        hashes = Counter(line["hash"] for line in server.lines())
    assert found["status"] == 0 and set(hashes.values()) == {1}
    assert datasets(root) == faultless


SILENT = "memecmd_utils.llm.delivery.NoSignOfLife: "
DEAD = {
    "refused": "no connection",
    "500": "status 500",
    "429": "status 429",
    "silent": "answers nothing, not even a list of its models",
    "401": "check OPENAI_API_KEY",
    "404": "does not know the model 'simulated'",
}


@pytest.mark.parametrize("mode", DEAD)
def test_a_dead_endpoint_ends_the_run_soon_with_one_message(mode: str, tmp_path: Path) -> None:
    with simulated(tmp_path, mode="normal" if mode == "refused" else mode) as server:
        url = f"http://127.0.0.1:{free_port()}/v1" if mode == "refused" else server.url
        root = checkout(tmp_path, url, endpoint=SHORT, n_turns=TURNS)
        process, begun = start(root, DIALOGUES, MEMES), time.monotonic()
        found = finish(process)
        requests = server.count()
    assert found["error"].startswith(("memecmd_utils.llm.messages.EndpointError: ", SILENT)), found
    assert found["errors"] == 1, "one message"
    assert DEAD[mode] in found["error"]
    assert time.monotonic() - begun < 4 * SHORT["dead_after_s"]
    assert requests <= {"401": 16, "404": 16}.get(mode, 64), "it is not hammered"


def test_a_time_out_while_the_endpoint_is_looked_at_is_told_once(tmp_path: Path) -> None:
    with simulated(tmp_path, mode="silent") as server:
        root = checkout(tmp_path, server.url, endpoint={"dead_after_s": 4.0, "timeout_s": 2.5}, n_turns=4)
        found = finish(start(root, DIALOGUES))
    assert "EndpointError" in found["error"] and found["errors"] <= 2, found  # it may show its cause


def test_a_notebook_on_a_dead_endpoint_ends_with_one_line(tmp_path: Path) -> None:
    root = checkout(tmp_path, f"http://127.0.0.1:{free_port()}/v1", endpoint=SHORT, n_turns=4)
    done = cli(root, "run", "03_dialogue_generation", "run")
    assert done.returncode == 2
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1 and "EndpointError" in errors[0] and "no connection" in errors[0]
    assert "Traceback" not in done.stderr and len(done.stderr.splitlines()) <= 6, done.stderr
    assert not (root / "reports" / "run" / "03_dialogue_generation.ipynb").exists()
