"""64 dialogues of 18 turns, utterance and summary side by side, at most 128 requests in flight.

The endpoint is simulated, over real HTTP, in a process of its own, with a fixed latency. The bound is 18
times the latency. Ours is the whole path: prompts, keys, recordings, ledger, parsing, rules. The bare SDK
sends the same bodies in the same order of dependence and does nothing else; rounds are interleaved and
ratios are medians of the rounds' own.
"""

import json
import os
import statistics
import subprocess
from importlib.metadata import version
from pathlib import Path

import orchestration
import pytest
from figures_to_reach import record
from stage_run import checkout, datasets, finish, run_with_kills, simulated, start

DIALOGUES, TURNS, CAP = 64, 18, 128
CALLS = DIALOGUES * (2 * TURNS - 1)
PEER = os.environ.get("MEMECMD_PEER_PYTHON")  # empty where `make bench-peer` has not been run
PEER_SCRIPT = Path(__file__).with_name("peer_distilabel.py")


@pytest.fixture(scope="module")
def bodies(tmp_path_factory) -> orchestration.Bodies:
    """Everything that one run sends."""
    with simulated(tmp_path_factory.mktemp("bodies")) as server:
        return orchestration.ours(server.url, DIALOGUES, CAP, note=True)[1]


@pytest.mark.parametrize(("latency", "rounds"), [(1.0, 1), (0.2, 5)])
def test_dialogues_side_by_side(latency: float, rounds: int, benchmark, bodies, tmp_path: Path) -> None:
    with simulated(tmp_path, latency=latency) as server:
        pairs = []

        def both() -> None:
            mine, _ = orchestration.ours(server.url, DIALOGUES, CAP)
            pairs.append((mine, orchestration.bare_sdk(server.url, bodies, CAP)))

        benchmark.pedantic(both, rounds=rounds, iterations=1)
        one_by_one = orchestration.sequential(server.url, bodies, 20)
    bound = TURNS * latency
    mine, sdk = ([pair[i] for pair in pairs] for i in (0, 1))
    ours_s, sdk_s = (statistics.median(t.wall for t in times) for times in (mine, sdk))
    benchmark.extra_info.update(
        sequential_s_extrapolated=one_by_one.wall / one_by_one.calls * CALLS,
        sequential_measured_calls=one_by_one.calls,
        ours_cpu_ms=statistics.median(t.cpu_ms for t in mine),
        sdk_cpu_ms=statistics.median(t.cpu_ms for t in sdk),
        on_top_cpu_ms=statistics.median(a.cpu_ms - b.cpu_ms for a, b in pairs),
        openai=version("openai"),
    )
    note = f"ours {ours_s:.2f} s, bare SDK {sdk_s:.2f} s, bound {bound:.1f} s"
    key = "dialogues/1s" if latency == 1 else "dialogues/200ms"
    reached = [record(benchmark, key, [t.wall / bound for t in mine], note=note)]
    if latency < 1:
        ratios = [a.wall / b.wall for a, b in pairs]
        sdk_note = f"openai {version('openai')}"
        reached.append(record(benchmark, "dialogues/sdk", ratios, note=sdk_note))
    assert all(t.calls == CALLS for t in (*mine, *sdk)) and all(reached)


def test_our_cpu_on_top_of_the_sdk(benchmark, bodies, tmp_path: Path) -> None:
    with simulated(tmp_path, latency=0.05) as server:
        rounds = []

        def all_three() -> None:
            mine, _ = orchestration.ours(server.url, DIALOGUES, CAP)
            sdk = orchestration.bare_sdk(server.url, bodies, CAP)
            raw = orchestration.bare_sdk(server.url, bodies, CAP, raw=True)
            rounds.append((mine.cpu_ms, sdk.cpu_ms, raw.cpu_ms))

        benchmark.pedantic(all_three, rounds=5, iterations=1, warmup_rounds=1)
    mine, sdk, raw = (statistics.median(one[i] for one in rounds) for i in range(3))
    # What a user would otherwise write is `create`. `post` is what ours is built on: it makes no objects.
    note = f"ours {mine:.2f} ms, `create` {sdk:.2f} ms, `post` {raw:.2f} ms"
    assert record(benchmark, "calls/cpu", [a - b for a, b, _ in rounds], note=note)


def test_faults_and_kills_at_full_size(benchmark, tmp_path: Path) -> None:
    roots = {}
    for name in ("faultless", "faulty"):
        (tmp_path / name).mkdir()
        options = {} if name == "faultless" else {"faults": 0.2, "seed": 1, "latency": 0.05}
        with simulated(tmp_path / name, **options) as server:
            endpoint = {"timeout_s": 3.0}
            roots[name] = checkout(tmp_path / name, server.url, "made", endpoint, concurrency=CAP)
            if name == "faultless":
                assert finish(start(roots[name], DIALOGUES, DIALOGUES))["status"] == 0
                continue
            found = benchmark.pedantic(
                run_with_kills, (roots[name], server, DIALOGUES, DIALOGUES, 5, 1, CALLS), rounds=1
            )
    made, wanted = datasets(roots["faulty"]), datasets(roots["faultless"])
    differing = [name for name in made.keys() | wanted.keys() if made.get(name) != wanted.get(name)]
    note = f"{found['requests']} requests for {CALLS + DIALOGUES} replies; {json.dumps(found['faults'])}"
    record(benchmark, "faults/again", len(found["again"]), note=note)
    record(benchmark, "faults/differing", len(differing), note=f"{len(wanted)} files")
    assert found["status"] == 0 and found["again"] == [] and found["recorded twice"] == 0
    assert wanted and differing == []


@pytest.mark.skipif(not PEER, reason="no other generator is installed: make bench-peer")
def test_single_generations_beside_a_peer(benchmark, bodies, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.json"
    prompts.write_text(json.dumps([body["messages"] for body in bodies.values()]), encoding="utf-8")
    with simulated(tmp_path, latency=0.2) as server:
        pairs = []

        def both() -> None:
            mine = orchestration.ours_single(server.url, bodies, CAP)
            command = [PEER, str(PEER_SCRIPT), server.url, str(prompts), str(CAP)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
            pairs.append((mine, json.loads(done.stdout.splitlines()[-1])))

        benchmark.pedantic(both, rounds=3, iterations=1)
    peer = pairs[0][1]
    faster = [other["seconds"] / mine.wall for mine, other in pairs]
    what = f"single generations: {peer['name']} / ours"
    record(benchmark, "dialogues/peer", faster, what=what, unit="x", note=f"{peer['name']} {peer['version']}")
    assert all(other["generations"] == CALLS for _, other in pairs)
