"""Appendices 07b and 08b from top to bottom: on made-up data sets, and with nothing given."""

import json
from dataclasses import dataclass
from pathlib import Path

import lesson_shape
import pandas as pd
import pytest
import template_world
from fault_server import FaultServer
from stage_run import command
from template_world import CAPS, HELD_OUT, MEMES, UNPOPULAR

from memecmd_utils import files
from memecmd_utils.files import paths
from memecmd_utils.schemas import MemeReading, TemplateMeme

pytestmark = pytest.mark.slow

NOTEBOOKS = ("07b_templates_with_data", "08b_clip_with_data")
TABLES = {
    "template_filter", "template_sizes", "template_rules", "template_edges", "cm50_lengths", "cm50_table_9",
    "cm50_table_10", "cm50_table_11", "mtrclip_table_2", "mtrclip_table_3", "mtrclip_table_4",
    "mtrclip_other_models",
}  # fmt: skip
OF_RECORDS = {"template_filter", "template_sizes", "template_rules", "template_edges"}
AUTHOR = "nobody-in-particular"
N = 6 * MEMES


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return template_world.data_sets(tmp_path_factory.mktemp("made"))


def settings(made: dict[str, str], *names: str) -> str:
    """`SET` for the data sets named."""
    given = " ".join(f"{name}={made[name]}" for name in names)
    return f"{given} images={made['images']} min_memes={MEMES} validation_share={HELD_OUT / MEMES}"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout that shares sources and corpus with this one and has data folders of its own."""
    root = tmp_path / "checkout"
    (root / "data").mkdir(parents=True)
    for name in ("notebooks", "memecmd_utils", "pyproject.toml", "CITATION.cff"):
        (root / name).symlink_to(paths.root / name)
    for path in (paths.data / name for name in ("example", "profiles", "paper", "template_sources.yaml")):
        (root / "data" / path.name).symlink_to(path)
    return root


@dataclass
class Done:
    """A run of both notebooks: its folders, and what was said."""

    data: Path
    report: Path
    said: str

    def texts(self, notebook: str) -> str:
        """What the cells of an executed notebook show, as text; an error is a failure."""
        shown = []
        for cell in lesson_shape.cells(self.report / f"{notebook}.ipynb"):
            for output in cell.get("outputs", ()):
                assert output["output_type"] != "error" and output.get("name") != "stderr", output
                shown.append("".join(output.get("text") or output.get("data", {}).get("text/plain", "")))
        return "\n".join(shown)

    def tables(self) -> set[str]:
        return {path.stem for path in (self.report / "tables").glob("*.csv")}

    def table(self, name: str) -> pd.DataFrame:
        return pd.read_csv(self.report / "tables" / f"{name}.csv")

    def memes(self) -> list[TemplateMeme]:
        return files.read_parquet(self.data / "template_memes.parquet", TemplateMeme)

    def readings(self) -> list[MemeReading]:
        return files.read_parquet(self.data / "readings.parquet", MemeReading)


def templates(root: Path, settings: str, **more: str) -> Done:
    """`make templates` with these settings."""
    done = command(root, "reproduce", "--templates", settings=settings, MEMECMD_OFFLINE="1", **more)
    assert done.returncode == 0, done.stderr[-3000:] + done.stdout[-3000:]
    runs = sorted((root / "reports").iterdir(), key=lambda path: path.stat().st_mtime_ns)
    return Done(root / "data" / "processed" / runs[-1].name, runs[-1], done.stdout)


def test_with_nothing_given_each_cell_says_in_a_line_what_it_needs(checkout: Path) -> None:
    done = templates(checkout, "")
    assert 'SET="imgflip=FOLDER"' in done.said and 'SET="published=FOLDER"' in done.said
    for name in NOTEBOOKS:
        assert lesson_shape.odd_tables(done.report / f"{name}.ipynb") == []
        assert "Empty DataFrame" not in done.texts(name) and done.texts(name).count("not computed here") >= 5
    assert done.memes() == done.readings() == []
    assert "nothing to do" in command(checkout, "reproduce", "--templates", MEMECMD_OFFLINE="1").stdout


def test_all_data_sets(checkout: Path, made: dict[str, str], tmp_path: Path) -> None:
    done = templates(checkout, settings(made, "imgflip", "published", "memecap", "figmemes"))
    kept = files.read_parquet(done.data / "templates.parquet", TemplateMeme)
    assert len(kept) == N and not {m.meme_id[-2:] for m in kept} & {str(MEMES + n) for n in range(UNPOPULAR)}
    assert sum(meme.split == "validation" for meme in kept) == N * HELD_OUT // MEMES
    steps = done.table("template_filter")
    assert steps["records"].tolist()[-1] == N and steps["step"].tolist()[-1] == "top 50 templates"
    memes, readings = done.memes(), done.readings()
    assert len(memes) == len(readings) == N and {r.source for r in readings} == {"gpt-4o@cm50"}
    assert done.tables() == TABLES
    drawn = {path.stem for path in (done.report / "figures").glob("*.png")}
    assert drawn == {"cm50_sizes", "cm50_statistics", "learning_rate"}
    two, ten = done.table("mtrclip_table_2"), done.table("cm50_table_10")
    assert two["value"].isna().all() and two["note"].str.startswith("not computed here: ").all()
    assert set(ten["BERTScore"].dropna()) == {"not computed here"} and ten["memes"].sum() == 0
    first, second = map(done.texts, NOTEBOOKS)
    assert f"{CAPS} memes with a picture, 1 without" in first and "a model annotates template memes" in first
    assert "mtrclip.tune is off" in second
    written = [path for folder in (done.data, done.report) for path in folder.rglob("*") if path.is_file()]
    assert len(written) > 40 and not [path for path in written if AUTHOR.encode() in path.read_bytes()]


@pytest.mark.parametrize("given", ["imgflip", "published"])
def test_one_data_set_alone(checkout: Path, made: dict[str, str], given: str) -> None:
    done = templates(checkout, settings(made, given))
    other = "CM50" if given == "imgflip" else "ImgFlip575K"
    assert f"({other}" in done.texts(NOTEBOOKS[0]) and len(done.memes()) == N
    if given == "imgflip":
        assert TABLES - done.tables() == {"template_rules", "template_edges", "cm50_lengths"}
    else:
        assert len(done.readings()) == N and not (done.data / "templates.parquet").exists()
        assert TABLES - done.tables() == OF_RECORDS


def test_annotation_by_an_endpoint_is_recorded_and_replayed(checkout: Path, made: dict[str, str]) -> None:
    key, ours = "sk-made-up-0123456789abcdef", settings(made, "imgflip", "published")
    with FaultServer(template_world.annotator).running() as endpoint:
        generator = f"{{base_url: '{endpoint.url}', model: sim, key_env: MY_KEY}}"
        base = f'{ours} llm=openai cm50.annotation.sample=6 models.endpoints.generator="{generator}"'
        live = templates(checkout, f"{base} mode=auto", MY_KEY=key)
        own = [r for r in live.readings() if r.source.startswith("model sim")]
        assert len(own) == 6 and {r.meme_caption for r in own} == {template_world.MEANING}
        assert {tuple(r.literary_devices) for r in own} == {("irony",)}, "what was not refuted"
        assert all(r.prompt == "gpt4o+three_step_12 (text only)" and not r.unscored for r in own)
        assert len(endpoint.bodies) == 12 and all(AUTHOR not in json.dumps(b) for b in endpoint.bodies)
        assert not [p for p in live.data.rglob("*") if p.is_file() and key.encode() in p.read_bytes()]
        replayed = templates(checkout, f"{base} mode=recorded")
        assert replayed.data != live.data and len(endpoint.bodies) == 12, "nothing is asked twice"
        assert replayed.readings() == live.readings()
