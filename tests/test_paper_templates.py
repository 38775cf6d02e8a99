"""`make templates` from data sets to tables, on made-up memes and tiny random models of the real classes.

Wiring tested, values not: every step gets what the one before made, and what was computed is replayed without
weights.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import lesson_shape
import pandas as pd
import pytest
import template_world
import tiny_metrics
import tiny_models
import whole_pipeline
from fault_server import FaultServer
from template_world import CAPS, HELD_OUT, MEMES
from whole_pipeline import KEY_VARIABLE, PROFILE, command

from memecmd_utils.files import paths

pytestmark = pytest.mark.paper

TESTS = Path(__file__).parent
STAGES = ("07b_templates_with_data", "08b_clip_with_data")
SAMPLE, MODEL = 6, "made-for-the-test"
ASKED = ("five_tasks", "three_step_12")
NOT_COMPUTED = "not computed here"


class Outcome(NamedTuple):
    """What a run of both notebooks left."""

    folder: Path
    report: Path

    def table(self, name: str) -> pd.DataFrame:
        """A table as it was saved, its cells as text."""
        return pd.read_csv(self.report / "tables" / f"{name}.csv", dtype=str, keep_default_na=False)

    def shown(self, stage: str, of: str) -> str:
        """What the cells of an executed notebook show as text whose code holds `of`."""
        cells = [cell for cell in lesson_shape.cells(self.report / f"{stage}.ipynb") if of in cell.source]
        assert cells, f"no cell of {stage} holds {of}"
        outputs = [output for cell in cells for output in cell.get("outputs", ())]
        return "\n".join(o.get("text") or o.get("data", {}).get("text/plain", "") for o in outputs)


class World(NamedTuple):
    """A copy of the project, its data sets and models, by key."""

    project: Path
    data: dict[str, str]
    models: dict[str, str]

    def make_templates(self, mode: str) -> Outcome:
        """`make templates` with a small tuning on the tiny models."""
        cm50 = {name: self.data[name] for name in self.data if name != "images"}
        cm50 |= {
            "rule": {"min_memes": MEMES, "validation_share": HELD_OUT / MEMES},
            "annotation": {"sample": SAMPLE, "evaluate": list(ASKED)},
            "matching": {"clip": self.models["clip"]},
            "metrics": {"bertscore": self.models["bert"], "bertscore_layer": 2},
        }
        mtrclip = {
            "images": self.data["images"], "model": self.models["clip"], "tune": True, "epochs": 3,
            "baselines": [self.models["baseline"]], "batch_size": 16, "mini_batch_size": 4,
            "learning_rate": 1e-3, "edge_learning_rate": 1e-4, "augment": False,
        }  # fmt: skip
        settings = f"cm50='{json.dumps(cm50)}' mtrclip='{json.dumps(mtrclip)}' mode={mode}"
        environment = {"PROFILE": PROFILE, "SET": settings, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
        environment["TORCH_HOME"] = str(self.project.parent / ("torch" if mode == "auto" else "empty"))
        done = command(self.project, "reproduce", "--templates", **environment)
        assert done["status"] == 0, (done["stdout"][-3000:], done["stderr"][-6000:])
        report = max((self.project / "reports").glob(f"{PROFILE}*"), key=lambda path: path.stat().st_mtime_ns)
        return Outcome(self.project / "data" / "processed" / report.name, report)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    tiny_models.need_paper_extra()
    base = tmp_path_factory.mktemp("templates")
    project = whole_pipeline.copy_project(base / "project")
    models = template_world.models(project / "models")
    tiny_metrics.alexnet(base / "torch")
    return World(project, template_world.data_sets(base), models)


@pytest.fixture(scope="module")
def computed(world: World) -> Outcome:
    """The run that computes everything, its annotator simulated."""
    with FaultServer(template_world.annotator).running() as server:
        endpoint = {"base_url": server.url, "key_env": KEY_VARIABLE, "model": MODEL, "vision": True}
        whole_pipeline.write_profile(world.project, server.url, models__endpoints={"generator": endpoint})
        return world.make_templates("auto")


def test_templates_are_matched_and_the_paper_number_stays_away(computed: Outcome) -> None:
    shown = computed.shown(STAGES[0], "match_data_set(")
    assert f"{CAPS} memes with a picture, 1 without" in shown
    assert "another model: none" in shown and NOT_COMPUTED not in shown
    told = computed.shown(STAGES[0], "evaluate_prompts")
    assert f"{CAPS * len(ASKED)} readings of memes of other data sets" in told


def test_readings_are_scored(computed: Outcome) -> None:
    ten = computed.table("cm50_table_10")
    mine = ten[(ten["prompt"] == "five_tasks") & (ten["mode"] == "extended")].iloc[0]
    assert mine["memes"] == str(CAPS) and float(mine["BERTScore"])
    assert float(mine["ChrF"]) > 10 and 0 < float(mine["ROUGE-L"]) < 1 and mine["BLEURT (paper)"] != ""
    others = ten[ten["prompt"] != "five_tasks"]
    assert not others[["ChrF", "ROUGE-L", "BLEU-4"]].apply(lambda c: c.str.contains(r"\d")).any(axis=None)
    eleven = computed.table("cm50_table_11").set_index("prompt")
    assert eleven.loc["three_step_12", "memes"] == str(CAPS)
    assert 0 < float(eleven.loc["three_step_12", "macro-F1 per label"]) < 1
    readings = pd.read_parquet(computed.folder / "readings.parquet")
    assert len(readings) == 6 * MEMES and (readings.source == f"model {MODEL}@default").sum() == SAMPLE


def test_clip_is_tuned_and_measured_under_its_own_name(computed: Outcome) -> None:
    history = pd.read_csv(computed.folder / "mtrclip" / "history.csv")
    assert list(history.epoch) == [0, 1, 2, 3] and history.loss[3] < history.loss[1]
    assert (computed.folder / "mtrclip" / "weights" / "model.safetensors").is_file()
    assert "best epoch by validation" in computed.shown(STAGES[1], "template_memes.tune")
    for name in ("learning_rate", "tuning", "meme_text_recall"):
        assert (computed.report / "figures" / f"{name}.png").stat().st_size > 2000, name
    for number in (2, 3, 4):
        assert set(computed.table(f"mtrclip_table_{number}")["value"]) == {""}
    assert set(computed.table("mtrclip_other_models")["model"]) == {
        "tiny-align",
        "tiny-clip",
        "fine-tuned tiny-clip",
    }


def test_all_that_was_asked_or_encoded_is_replayed_without_weights(world: World, computed: Outcome) -> None:
    weights = world.project / "models"
    away = weights.rename(weights.with_name("gone"))
    try:
        again = world.make_templates("recorded")
    finally:
        away.rename(weights)
    for name in ("template_memes", "readings"):
        before, after = (pd.read_parquet(one.folder / f"{name}.parquet") for one in (computed, again))
        columns = [column for column in before if column != "profile"]
        pd.testing.assert_frame_equal(after[columns], before[columns])
    # CLIP's vectors are recorded, LPIPS is not: pairs stay undecided, and so nobody is asked about them.
    shown = again.shown(STAGES[0], "match_data_set(")
    assert re.search(rf"distance at most 30 +{CAPS}\b", shown) and "LPIPS cannot be loaded" in shown
    first, second = (one.table("mtrclip_other_models") for one in (computed, again))
    first, second = (
        table[table["model"] == "tiny-align"].reset_index(drop=True) for table in (first, second)
    )
    pd.testing.assert_frame_equal(first, second)  # the baseline's numbers are those of before
    assert NOT_COMPUTED in again.shown(STAGES[1], "template_memes.tune")
    assert len(first) > 5


@pytest.mark.parametrize(("required", "summary"), [("1", "3 failed, 1 skipped"), ("", "4 skipped")])
def test_where_the_packages_are_required_their_absence_fails(
    tmp_path: Path, required: str, summary: str
) -> None:
    lines = (
        "pytest.importorskip('no_such_package')",
        "pytest.importorskip('no_such_package', reason='needs the `paper` extra')",
        "pytest.skip('torch, lpips not installed (the `paper` extra)')",
        "pytest.skip('the CM50 sample is not on this machine')",
    )
    tests = "".join(f"\n\ndef test_{n}():\n    {line}\n" for n, line in enumerate(lines))
    (tmp_path / "test_it.py").write_text(f"import pytest\n{tests}", encoding="utf-8")
    found = TESTS, TESTS / "helpers", paths.root
    options = ["-q", "-p", "conftest", "-p", "no:cacheprovider", "-c", os.devnull, f"--rootdir={tmp_path}"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(tmp_path / "test_it.py")],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, found)), tiny_models.REQUIRED: required},
        cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert summary in done.stdout, done.stdout + done.stderr
    assert done.stdout.count("made from requirements-paper.lock") >= 3 * (required == "1")
