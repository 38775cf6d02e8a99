"""The notebooks from top to bottom: the example from recordings, and a run whose endpoint is gone."""

import json
import shutil

import pytest
import whole_pipeline
from stage_run import command, link_project
from whole_pipeline import STAGES

from memecmd_utils.core import paths
from memecmd_utils.release import manifest
from memecmd_utils.report import tracked

pytestmark = pytest.mark.slow


def test_the_example_profile_runs_from_recordings_alone(tmp_path):
    checkout, run = tmp_path / "checkout", "example"
    link_project(checkout)
    # Another hash seed and one thread: the tracked results were made with the machine's own.
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    for words in (("resolve",), *(("run", stage, run) for stage in STAGES)):
        done = command(checkout, *words, PYTHONHASHSEED="1", **threads)
        assert done.returncode == 0, f"{words}: {done.stderr[-3000:]}"
    assert tracked.compare(run, paths.reports, checkout / "reports") == []
    report, data = checkout / "reports" / run, checkout / "data" / "processed" / run
    assert manifest.check_release(data / "release")["dialogues"] == 47
    numbers = json.loads((report / "numbers.json").read_text(encoding="utf-8"))
    assert numbers["dialogues"]["turns"] == 846 and numbers["memes"] == 200
    page = (report / "index.html").read_text(encoding="utf-8")
    assert "authored" in page and "Table 1" in page
    assert {p.name for p in (report / "figures").glob("fig*.png")} == {
        "fig2_keywords.png",
        "fig3_scores.png",
        "fig4_consistency.png",
        "fig5_cases.png",
    }
    assert not list((checkout / "data").glob("raw/recordings/**/*.jsonl")), "a strict replay records nothing"
    usage = [json.loads(p.read_text()) for p in (data / "usage").glob("*.json") if "keys" not in p.name]
    assert sum(u["calls"] for u in usage if u["source"] != "authored") == 0


def test_what_was_answered_once_is_not_asked_for_again(tmp_path, tmp_path_factory):
    """The pipeline ran against an endpoint that is gone; the stages that asked it run again without."""
    whole = whole_pipeline.shared(tmp_path_factory)
    copy = shutil.copytree(whole.root, tmp_path / "copy", symlinks=True)
    for stage in ("02_annotation", "03_dialogue_generation", "05_evaluation"):
        done = whole_pipeline.command(copy, "run", stage, whole.run)
        assert done["status"] == 0, done["stderr"][-3000:]
    for name in ("dialogues.jsonl", "annotations.parquet", "ratings.parquet"):
        again = copy / "data" / "processed" / whole.run / name
        assert again.read_bytes() == (whole.data / name).read_bytes(), name
