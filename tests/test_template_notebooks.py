"""Notebooks 07 and 08 from top to bottom: on made-up data sets, and with nothing given."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import lesson_shape
import pandas as pd
import pytest
from fault_server import Answer, FaultServer, chat_reply
from made_templates import FIVE, STEPS, TEMPLATES, memecap_row, record, world, write_cm50, write_source
from PIL import Image
from stage_run import command

from memecmd_utils import files, release
from memecmd_utils.files import paths
from memecmd_utils.schemas import MemeReading, TemplateMeme

pytestmark = pytest.mark.slow

NOTEBOOKS = ("07_template_memes", "08_meme_text_retrieval")
TABLES = {
    "template_filter", "template_sizes", "template_rules", "template_edges", "cm50_lengths", "cm50_table_9",
    "cm50_table_10", "cm50_table_11", "embedded_text", "mtrclip_table_2", "mtrclip_table_3",
    "mtrclip_table_4", "mtrclip_changes", "mtrclip_other_models",
}  # fmt: skip
OF_RECORDS = {"template_filter", "template_sizes", "template_rules", "template_edges"}
AUTHOR = "nobody-in-particular"


@dataclass
class Made:
    """Made-up data sets and what the rule should keep of them."""

    folder: Path
    kept: list[str]
    published: list[str]

    def settings(self, *names: str) -> str:
        """`SET` for the data sets named."""
        at = {"imgflip": "checkout", "published": "cm50", "memecap": "memecap", "figmemes": "figmemes"}
        given = [f"{name}={self.folder / at[name]}" for name in names]
        return " ".join([*given, "min_memes=20", f"images={self.folder / 'pictures'}"])


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """ImgFlip575K of six templates, CM50 as released, MemeCap, splits of FigMemes, and a few pictures."""
    folder, records = tmp_path_factory.mktemp("made"), world()
    fits = [
        (template, raw)
        for template, rows in records.items()
        for raw in rows
        if int(raw["metadata"]["img-votes"]) >= 6 and raw["metadata"]["title"] != template.replace("-", " ")
    ]
    published = [pair for name in TEMPLATES for pair in [p for p in fits if p[0] == name][-6:]]
    # One template of CM50 has no record in this copy of ImgFlip575K.
    absent = [("Cold-Soup", record("Cold-Soup", number)) for number in range(3)]
    write_source(folder, records)
    for number, path in enumerate(sorted(write_cm50(folder, [*published, *absent]).rglob("*.jpg"))):
        Image.new("RGB", (60, 40), (30 * number, 90, 60)).save(path)
    for name in ("memecap", "figmemes", "pictures"):
        (folder / name).mkdir()
    rows = json.dumps([memecap_row("a1"), memecap_row("b2")])
    (folder / "memecap" / "memes-test.json").write_text(rows, encoding="utf-8")
    (folder / "figmemes" / "standard_split.tsv").write_text("img_name\tsplit\n1.png\ttrain\n")
    names = [raw["url"].rpartition("/")[2] for _, raw in published[:3]]
    for name in (*names, "memes_a1.png"):
        Image.new("RGB", (50, 50), (10, 40, 90)).save(folder / "pictures" / name)
    ids = [[raw["url"].rpartition("/")[2].removesuffix(".jpg") for _, raw in p] for p in (fits, published)]
    return Made(folder, *ids)


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


def test_with_nothing_given_both_teach_on_made_up_memes(checkout: Path) -> None:
    done = templates(checkout, "")
    assert 'SET="imgflip=FOLDER"' in done.said and 'SET="published=FOLDER"' in done.said
    for name in NOTEBOOKS:
        notebook = done.report / f"{name}.ipynb"
        lesson_shape.check(notebook)
        assert sum(map(lesson_shape.pictures, lesson_shape.cells(notebook))) >= 4
        assert "Empty DataFrame" not in done.texts(name)
    assert done.memes() == done.readings() == []
    assert "nothing to do" in command(checkout, "reproduce", "--templates", MEMECMD_OFFLINE="1").stdout


def test_all_data_sets(checkout: Path, made: Made, tmp_path: Path) -> None:
    done = templates(checkout, made.settings("imgflip", "published", "memecap", "figmemes"))
    kept = files.read_parquet(done.data / "templates.parquet", TemplateMeme)
    assert sorted(meme.meme_id for meme in kept) == sorted(made.kept)
    parts = {meme.meme_id: meme.split for meme in kept}
    assert {parts[name] for name in made.published} == {"validation"} and "train" in parts.values()
    steps, sizes = done.table("template_filter"), done.table("template_sizes").set_index("template")
    assert steps["records"].tolist()[-1] == len(kept) and "1 places held" in steps["step"].tolist()[-1]
    assert pd.isna(sizes.loc["Cold-Soup", "kept"]) and sizes["sample"].sum() == 39
    memes, readings = done.memes(), done.readings()
    assert len(memes) == len(made.kept) + 3 and len({meme.meme_id for meme in memes}) == len(memes)
    assert len(readings) == 39 and {r.source for r in readings} == {"gpt-4o@cm50"}
    assert done.tables() == TABLES
    drawn = {path.stem for path in (done.report / "figures").glob("*.png")}
    assert drawn == {"cm50_sizes", "cm50_statistics", "learning_rate"}
    two, ten = done.table("mtrclip_table_2"), done.table("cm50_table_10")
    assert two["value"].isna().all() and two["note"].str.startswith("not computed here: ").all()
    assert set(ten["BLEURT"].dropna()) == {"not computed here"} and ten["memes"].sum() == 0
    first, second = map(done.texts, NOTEBOOKS)
    assert "1 memes with a picture, 1 without" in first and "are annotated by a model" in first
    assert "mtrclip.tune is off" in second
    copy = tmp_path / "copy"
    shutil.copytree(done.data / "release_templates", copy)
    assert release.check_release(copy) == {"templates": 7, "template_memes": len(memes), "readings": 39}
    written = [path for folder in (done.data, done.report) for path in folder.rglob("*") if path.is_file()]
    assert len(written) > 40 and not [path for path in written if AUTHOR.encode() in path.read_bytes()]


@pytest.mark.parametrize("given", ["imgflip", "published"])
def test_one_data_set_alone(checkout: Path, made: Made, given: str) -> None:
    done = templates(checkout, made.settings(given))
    other = "CM50" if given == "imgflip" else "ImgFlip575K"
    assert f"({other}" in done.texts(NOTEBOOKS[0])
    if given == "imgflip":
        assert sorted(meme.meme_id for meme in done.memes()) == sorted(made.kept) and done.readings() == []
        assert TABLES - done.tables() == {"template_rules", "template_edges", "cm50_lengths"}
    else:
        assert len(done.memes()) == len(done.readings()) == 39
        assert TABLES - done.tables() == OF_RECORDS and not (done.data / "templates.parquet").exists()


@pytest.fixture
def endpoint() -> Iterator[FaultServer]:
    """A simulated endpoint that annotates every meme alike."""
    forms = {"FiveTasksReply": FIVE, "ThreeStep12Reply": STEPS}

    def reply(body: dict) -> Answer:
        return Answer(chat_reply(json.dumps(forms[body["response_format"]["json_schema"]["name"]])))

    with FaultServer(reply).running() as server:
        yield server


def test_annotation_by_an_endpoint_is_recorded_and_replayed(
    checkout: Path, made: Made, endpoint: FaultServer
) -> None:
    key = "sk-made-up-0123456789abcdef"
    generator = f"{{base_url: '{endpoint.url}', model: sim, key_env: MY_KEY}}"
    base = f"{made.settings('imgflip', 'published')} llm=openai cm50.annotation.sample=6 "
    base += f'models.endpoints.generator="{generator}"'
    live = templates(checkout, f"{base} mode=auto", MY_KEY=key)
    own = [r for r in live.readings() if r.source.startswith("model sim")]
    assert len(own) == 6 and {r.meme_caption for r in own} == {FIVE["meaning of the meme"]}
    assert {tuple(r.literary_devices) for r in own} == {("irony",)}, "what was not refuted"
    assert all(r.prompt == "gpt4o+three_step_12 (text only)" and not r.unscored for r in own)
    assert len(endpoint.bodies) == 12 and all(AUTHOR not in json.dumps(body) for body in endpoint.bodies)
    assert not [p for p in live.data.rglob("*") if p.is_file() and key.encode() in p.read_bytes()]
    replayed = templates(checkout, f"{base} mode=recorded")
    assert replayed.data != live.data and len(endpoint.bodies) == 12, "nothing is asked twice"
    assert replayed.readings() == live.readings()
