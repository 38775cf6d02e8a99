"""Appendices 07b and 08b from top to bottom, on a made-up world with drawn memes.

Promised: with nothing given each cell says what it needs; with data the filter, its evidence and the
published readings; with an endpoint own readings that are recorded and replayed; with tiny random weights all
that an installation of the paper's profile computes, and a strict replay of it without weights.
"""

import json
import re
from pathlib import Path

import nbformat
import pandas as pd
import pytest
import template_world
import tiny_models
from fault_server import FaultServer
from stage_run import command, project
from template_world import AUTHOR, CAPS, FIVE, HELD_OUT, MEMES, UNPOPULAR, WHAT, WHO

from memecmd_utils import files
from memecmd_utils.schemas import MemeReading, TemplateMeme

pytestmark = pytest.mark.slow

NOTEBOOKS = ("07b_templates_with_data", "08b_clip_with_data")
TABLES = {
    "template_filter", "template_sizes", "template_rules", "template_edges", "cm50_lengths", "cm50_table_9",
    "cm50_table_10", "cm50_table_11", "mtrclip_table_2", "mtrclip_table_3", "mtrclip_table_4",
    "mtrclip_other_models",
}  # fmt: skip
KEY = "sk-made-up-0123456789abcdef"
N, SAMPLE = 6 * MEMES, 6
NOT_COMPUTED = "not computed here"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return template_world.data_sets(tmp_path_factory.mktemp("made"))


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout that shares this one's corpus; its 07b has a rule for few memes."""
    template_world.fit_rule(project(tmp_path / "checkout"))
    return tmp_path / "checkout"


class Outcome:
    """What `make templates` with these settings left in a checkout."""

    def __init__(self, root: Path, settings: str, **more: str) -> None:
        done = command(root, "reproduce", "--templates", settings=settings, MEMECMD_OFFLINE="1", **more)
        assert done.returncode == 0, done.stderr[-3000:] + done.stdout[-3000:]
        self.report = max((root / "reports").iterdir(), key=lambda path: path.stat().st_mtime_ns)
        self.data, self.said = root / "data" / "processed" / self.report.name, done.stdout
        self.memes = files.read_parquet(self.data / "template_memes.parquet", TemplateMeme)
        self.readings = files.read_parquet(self.data / "readings.parquet", MemeReading)
        self.tables = {path.stem for path in (self.report / "tables").glob("*.csv")}

    def table(self, name: str) -> pd.DataFrame:
        """A table as it was saved, its cells as text."""
        return pd.read_csv(self.report / "tables" / f"{name}.csv", dtype=str, keep_default_na=False)

    def shown(self, notebook: str, code: str = "") -> str:
        """What the executed cells that hold `code` show as text; an error is a failure."""
        cells = nbformat.read(self.report / f"{notebook}.ipynb", as_version=4).cells
        outputs = [output for cell in cells if code in cell.source for output in cell.get("outputs", ())]
        assert not [output for output in outputs if output.output_type == "error"]
        return "\n".join("".join(o.get("text") or o.get("data", {}).get("text/plain", "")) for o in outputs)


def test_with_nothing_given_each_cell_says_in_a_line_what_it_needs(checkout: Path) -> None:
    done = Outcome(checkout, "")
    assert 'SET="imgflip=PATH"' in done.said and 'SET="published=PATH"' in done.said
    for name in NOTEBOOKS:
        assert "Empty DataFrame" not in done.shown(name) and done.shown(name).count(NOT_COMPUTED) >= 5
    assert done.memes == done.readings == []
    assert "nothing to do" in command(checkout, "reproduce", "--templates", MEMECMD_OFFLINE="1").stdout


def test_all_data_sets_and_an_annotator(checkout, made: dict[str, str]) -> None:
    with FaultServer(template_world.annotator).running() as endpoint:
        generator = f"{{base_url: '{endpoint.url}', model: sim, key_env: MY_KEY}}"
        base = " ".join(f"{name}={path}" for name, path in made.items()) + " llm=openai"
        base += f' cm50.sample={SAMPLE} models.endpoints.generator="{generator}"'
        done = Outcome(checkout, f"{base} mode=auto", MY_KEY=KEY)
        assert len(endpoint.bodies) == 2 * SAMPLE
        assert all(AUTHOR not in json.dumps(body) for body in endpoint.bodies)
    kept = files.read_parquet(done.data / "templates.parquet", TemplateMeme)
    assert len(kept) == N and not {m.meme_id[-2:] for m in kept} & {str(MEMES + n) for n in range(UNPOPULAR)}
    assert sum(meme.split == "validation" for meme in kept) == N * HELD_OUT // MEMES
    steps = done.table("template_filter")
    assert steps["records"].iloc[-1] == str(N) and steps["step"].iloc[-1] == "top 50 templates"
    own = [reading for reading in done.readings if reading.source.startswith("model sim")]
    assert len(done.memes) == len(done.readings) == N and len(own) == SAMPLE
    assert {reading.meme_caption for reading in own} == {FIVE["meaning of the meme"]}
    assert {tuple(reading.literary_devices) for reading in own} == {("irony",)}, "what was not refuted"
    assert all(r.prompt == "gpt4o+three_step_12 (text only)" and not r.unscored for r in own)
    assert done.tables == TABLES
    assert set(done.table("cm50_table_10")["BERTScore"]) == {NOT_COMPUTED}
    assert done.table("mtrclip_table_2")["note"].str.startswith(f"{NOT_COMPUTED}: ").all()
    assert f"{CAPS} memes with a picture, 1 without" in done.shown(NOTEBOOKS[0])
    assert "mtrclip.tune is off" in done.shown(NOTEBOOKS[1])
    written = [path for folder in (done.data, done.report) for path in folder.rglob("*") if path.is_file()]
    for secret in (AUTHOR, KEY):
        assert len(written) > 40 and not [path for path in written if secret.encode() in path.read_bytes()]


def test_with_weights_everything_is_computed_and_replayed_without_them(tmp_path: Path, made, torch) -> None:
    asked = ["five_tasks", "three_step_12"]
    root = project(tmp_path / "checkout")
    template_world.fit_rule(root, TRY=repr(asked))
    models = {
        "clip": tiny_models.clip_folder("clip", root / "models" / "tiny-clip"),
        "baseline": tiny_models.clip_folder("align", root / "models" / "tiny-align", seed=1),
        "bert": tiny_models.bert_folder(root / "models" / "bert", " ".join([*WHO, *WHAT]).split()),
    }
    models = {name: str(path) for name, path in models.items()}
    tuning = {
        "images": made["images"], "model": models["clip"], "tune": True, "epochs": 3,
        "baselines": [models["baseline"]], "batch_size": 16, "learning_rate": 1e-3,
    }  # fmt: skip
    cm50 = {name: made[name] for name in made if name != "images"}
    cm50 |= {"sample": SAMPLE, "bertscore": models["bert"], "bertscore_layer": 2}
    weights = {"OMP_NUM_THREADS": "1", "TORCH_HOME": str(tiny_models.alexnet(tmp_path / "torch"))}
    with FaultServer(template_world.annotator).running() as server:
        endpoint = json.dumps({"base_url": server.url, "key_env": "MY_KEY", "model": "sim", "vision": True})
        base = f"cm50='{json.dumps(cm50)}' mtrclip='{json.dumps(tuning)}' llm=openai"
        base += f" models.endpoints.generator='{endpoint}'"
        done = Outcome(root, f"{base} mode=auto", MY_KEY=KEY, **weights)
    matched = done.shown(NOTEBOOKS[0], "match_data_set(name)")
    assert f"{CAPS} memes with a picture, 1 without" in matched and NOT_COMPUTED not in matched
    assert "another model: none" in matched, "the paper's number stays away"
    assert f"{CAPS * len(asked)} readings of memes" in done.shown(NOTEBOOKS[0], "tried = []")
    ten = done.table("cm50_table_10").query("mode == 'extended'").set_index("prompt")
    mine = ten.loc["five_tasks"]
    assert mine["memes"] == str(CAPS) and float(mine["BERTScore"]) and mine["BLEURT (paper)"] != ""
    assert float(mine["ChrF"]) > 10 and 0 < float(mine["ROUGE-L"]) < 1
    assert set(ten.drop("five_tasks")["ChrF"]) == {NOT_COMPUTED}
    eleven = done.table("cm50_table_11").set_index("prompt").loc["three_step_12"]
    assert eleven["memes"] == str(CAPS) and 0 < float(eleven["macro-F1 per label"]) < 1
    history = pd.read_csv(done.data / "mtrclip" / "history.csv")
    assert list(history.epoch) == [0, 1, 2, 3] and history.loss[3] < history.loss[1]
    assert "best epoch by validation" in done.shown(NOTEBOOKS[1], "tune_clip()")
    for number in (2, 3, 4):
        assert set(done.table(f"mtrclip_table_{number}")["value"]) == {""}, "no tiny model fills a row"
    others = done.table("mtrclip_other_models").set_index("model")
    assert set(others.index) == {"tiny-align", "tiny-clip", "fine-tuned tiny-clip"}

    (root / "models").rename(root / "gone")
    again = Outcome(root, f"{base} mode=recorded", **weights | {"TORCH_HOME": str(tmp_path / "empty")})
    assert [r.meme_caption for r in again.readings] == [r.meme_caption for r in done.readings]
    # CLIP's vectors are recorded, LPIPS is not: pairs stay undecided, and so nobody is asked about them.
    matched = again.shown(NOTEBOOKS[0], "match_data_set(name)")
    assert re.search(rf"distance at most 30 +{CAPS}\b", matched) and "LPIPS cannot be loaded" in matched
    replayed = again.table("mtrclip_other_models").set_index("model")
    pd.testing.assert_frame_equal(replayed.loc[["tiny-align"]], others.loc[["tiny-align"]])
    assert NOT_COMPUTED in again.shown(NOTEBOOKS[1], "tune_clip()")
