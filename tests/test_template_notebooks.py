"""Notebooks 07 and 08 from top to bottom: on made-up data sets, with nothing given, and on real ones."""

import json
import resource
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import browser
import lesson_shape
import pandas as pd
import peak_memory
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
CORPORA = paths.root.parent / "shared" / "corpora"
TABLES = {
    "template_filter", "template_sizes", "template_rules", "template_edges", "cm50_lengths", "cm50_table_9",
    "cm50_table_10", "cm50_table_11", "embedded_text", "mtrclip_table_2", "mtrclip_table_3",
    "mtrclip_table_4", "mtrclip_changes", "mtrclip_other_models",
}  # fmt: skip
FIGURES = {"cm50_sizes", "cm50_statistics", "learning_rate"}
AUTHOR = "nobody-in-particular"
RULE = "'template_rule={min_memes: 20}'"
VOTES = 6
"""Of the rule by default."""


@dataclass
class Made:
    """Made-up data sets and what the rule should keep of them."""

    folder: Path
    kept: list[str]
    published: list[str]

    def settings(self, *names: str) -> str:
        """`SET` for the data sets named."""
        at = {"imgflip": "checkout", **{name: name for name in ("cm50", "memecap", "figmemes")}}
        images = f"'meme_retrieval={{images: {self.folder / 'pictures'}}}'"
        return " ".join([*(f"{name}={self.folder / at[name]}" for name in names), RULE, images])


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """ImgFlip575K of six templates, CM50 as released, MemeCap, splits of FigMemes, and a few pictures."""
    folder = tmp_path_factory.mktemp("made")
    records = world()
    fits = [
        (template, raw)
        for template, rows in records.items()
        for raw in rows
        if int(raw["metadata"]["img-votes"]) >= VOTES
        and raw["metadata"]["title"] != template.replace("-", " ")
    ]
    published = [pair for name in TEMPLATES for pair in [p for p in fits if p[0] == name][-6:]]
    # One template of CM50 has no record in this copy of ImgFlip575K.
    absent = [("Cold-Soup", record("Cold-Soup", number)) for number in range(3)]
    write_source(folder, records)
    cm50 = write_cm50(folder, [*published, *absent])
    for number, path in enumerate(sorted(cm50.rglob("*.jpg"))):
        Image.new("RGB", (60, 40), (30 * number, 90, 60)).save(path)
    (folder / "memecap").mkdir()
    rows = json.dumps([memecap_row("a1"), memecap_row("b2")])
    (folder / "memecap" / "memes-test.json").write_text(rows, encoding="utf-8")
    (folder / "figmemes").mkdir()
    for name in ("standard", "style"):
        table = "img_name\tsplit\n1.png\ttrain\n"
        (folder / "figmemes" / f"{name}_split.tsv").write_text(table, encoding="utf-8")
    (folder / "pictures").mkdir()
    names = [raw["url"].rpartition("/")[2] for _, raw in published[:3]]
    for name in (*names, "memes_a1.png"):
        Image.new("RGB", (50, 50), (10, 40, 90)).save(folder / "pictures" / name)
    ids = [[raw["url"].rpartition("/")[2].removesuffix(".jpg") for _, raw in p] for p in (fits, published)]
    return Made(folder, *ids)


def checkout_in(root: Path) -> Path:
    """A checkout that shares sources and corpus with this one and has data folders of its own."""
    (root / "data").mkdir(parents=True)
    for name in ("notebooks", "pyproject.toml", "CITATION.cff"):
        (root / name).symlink_to(paths.root / name)
    for name in ("example", "profiles", "paper"):
        (root / "data" / name).symlink_to(paths.data / name)
    return root


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkout_in(tmp_path_factory.mktemp("templates") / "checkout")


@dataclass
class Done:
    """A run of both notebooks: its folders, what was said before, CPU seconds and peak bytes of each."""

    data: Path
    report: Path
    said: str
    seconds: list[float]
    peaks: list[int]

    @property
    def name(self) -> str:
        return self.data.name

    def texts(self, notebook: str) -> str:
        """What the cells of an executed notebook show, as text; an error is a failure."""
        cells = json.loads((self.report / f"{notebook}.ipynb").read_text(encoding="utf-8"))["cells"]
        shown = []
        for output in (output for cell in cells for output in cell.get("outputs", ())):
            assert output["output_type"] != "error" and output.get("name") != "stderr", output
            text = output.get("text") or output.get("data", {}).get("text/plain", "")
            shown.append("".join(text))
        return "\n".join(shown)

    def table(self, name: str) -> pd.DataFrame:
        return pd.read_csv(self.report / "tables" / f"{name}.csv")

    def memes(self) -> list[TemplateMeme]:
        return files.read_parquet(self.data / "template_memes.parquet", TemplateMeme)

    def readings(self) -> list[MemeReading]:
        return files.read_parquet(self.data / "readings.parquet", MemeReading)


def processor_seconds() -> float:
    """Of all processes that ended so far; what else runs on the machine does not count."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run_both(root: Path, settings: str, notebooks=NOTEBOOKS, **more: str) -> Done:
    """What `make templates` does: resolve, look for the data sets, run the notebooks."""
    options = {"settings": settings, "MEMECMD_OFFLINE": "1", **more}
    resolved = command(root, "resolve", "--templates", **options)
    assert resolved.returncode == 0, resolved.stderr
    run = resolved.stdout.strip()
    found = command(root, "fetch", "templates", run, **options)
    assert found.returncode == 0 and found.stderr == "", found.stderr
    data, seconds, peaks = root / "data" / "processed" / run, [], []
    for notebook in notebooks:
        before, told = processor_seconds(), data / "peak.txt"
        done = command(root, "run", notebook, run, launcher=peak_memory.launcher(told), **options)
        seconds.append(processor_seconds() - before)
        peaks.append(peak_memory.peak(told))
        told.unlink()
        assert done.returncode == 0, f"{notebook}: {done.stderr[-3000:]}"
    return Done(data, root / "reports" / run, found.stdout, seconds, peaks)


def test_with_nothing_given_both_teach_on_made_up_memes(tmp_path: Path) -> None:
    done = run_both(checkout_in(tmp_path / "checkout"), "")
    lines = {line.partition(":")[0]: line for line in done.said.strip().splitlines()}
    imgflip, cm50 = lines["ImgFlip575K"], lines["CM50"]
    assert 'SET="imgflip=FOLDER"' in imgflip and "dataset/memes/*.json" in imgflip
    assert 'SET="cm50=FOLDER"' in cm50 and "50_template_info.json" in cm50
    assert "teach on made-up ones" in lines["no template memes"]
    for name in NOTEBOOKS:
        notebook = done.report / f"{name}.ipynb"
        lesson_shape.check(notebook)
        assert sum(map(lesson_shape.pictures, lesson_shape.cells(notebook))) >= 4
        assert "Empty DataFrame" not in done.texts(name)
    assert done.memes() == done.readings() == []
    with browser.open_browser() as driver:
        for name in NOTEBOOKS:
            assert browser.on_a_phone(driver, (done.report / f"{name}.html").as_uri()) == 0
            assert browser.asked_elsewhere(driver) == []


def test_a_folder_that_holds_no_data_set_is_named(checkout: Path, tmp_path: Path) -> None:
    done = command(
        checkout, "fetch", "templates", "example", settings=f"imgflip={tmp_path}", MEMECMD_OFFLINE="1"
    )
    assert done.returncode == 2 and done.stdout == "" and "Traceback" not in done.stderr
    assert str(tmp_path) in done.stderr and "dataset/memes/*.json" in done.stderr
    assert not (checkout / "data" / "processed" / "example" / "template_sources.json").exists()


@pytest.fixture(scope="module")
def whole(checkout: Path, made: Made) -> Done:
    return run_both(checkout, made.settings("imgflip", "cm50", "memecap", "figmemes"))


def test_the_rule_keeps_what_it_should(whole: Done, made: Made) -> None:
    kept = files.read_parquet(whole.data / "templates.parquet", TemplateMeme)
    assert sorted(meme.meme_id for meme in kept) == sorted(made.kept)
    parts = {meme.meme_id: meme.split for meme in kept}
    assert {parts[name] for name in made.published} == {"validation"}
    assert {parts[name] for name in set(made.kept) - set(made.published)} >= {"train"}
    steps = whole.table("template_filter")
    assert steps["records"].tolist()[-1] == len(kept) and steps["step"].tolist()[-1].startswith("top 50")
    assert "1 places held" in steps["step"].tolist()[-1], "of the template that is absent"
    assert steps["templates"].tolist()[-1] == len(TEMPLATES)
    sizes = whole.table("template_sizes").set_index("template")
    assert sizes.loc["Cold-Soup", "note"] == "in CM50, but no records here"
    assert pd.isna(sizes.loc["Cold-Soup", "kept"]) and sizes["sample"].sum() == 39
    rules = whole.table("template_rules").set_index("rule")
    assert (rules.loc[rules["left out"] > 0, "allowed"] == False).all()  # noqa: E712


def test_memes_and_readings_are_those_of_both_data_sets(whole: Done, made: Made) -> None:
    memes, readings = whole.memes(), whole.readings()
    assert len(memes) == len(made.kept) + 3 and len({meme.meme_id for meme in memes}) == len(memes)
    assert {r.meme_id for r in readings} == {*made.published, *(f"Co{n:05d}".lower() for n in range(3))}
    assert {r.meme_caption for r in readings} == {"The kettle is said to be a singer."}
    assert {r.source for r in readings} == {"gpt-4o@cm50"}
    assert {m.meme_id for m in memes if m.source == "CM50"} == {m.meme_id for m in memes} - set(made.kept)


def test_every_table_and_figure_is_there(whole: Done) -> None:
    found = {path.stem for path in (whole.report / "tables").glob("*.csv")}
    assert found == TABLES
    for kind in ("md", "tex"):
        assert {path.stem for path in (whole.report / "tables").glob(f"*.{kind}")} == TABLES
    assert {path.stem for path in (whole.report / "figures").glob("*.png")} == FIGURES
    for notebook in NOTEBOOKS:
        lesson_shape.check(whole.report / f"{notebook}.ipynb")
        assert (whole.report / f"{notebook}.html").stat().st_size > 10_000
    assert whole.table("cm50_lengths")["texts"].tolist() == [39, 39, 39]
    named = whole.table("embedded_text").iloc[:, 0].tolist()
    assert named[0] == "character error rate", "a table says what its rows are"


def test_numbers_of_models_that_are_not_here_are_not_made_up(whole: Done) -> None:
    two, ten = whole.table("mtrclip_table_2"), whole.table("cm50_table_10")
    assert two["T2M R@1"].isna().all() and two["T2M R@1 paper"].notna().any()
    assert two["note"].str.startswith("not computed here: ").all()
    assert set(ten["BLEURT"].dropna()) == {"not computed here"} and ten["memes"].sum() == 0
    assert whole.table("mtrclip_changes").empty
    first, second = map(whole.texts, NOTEBOOKS)
    assert "1 memes with a picture, 1 without" in first and "template memes are annotated by a model" in first
    assert "mtrclip.tune is off" in second and "validation" in second


def test_the_release_verifies(whole: Done, checkout: Path, tmp_path: Path) -> None:
    copy = tmp_path / "a copy"
    shutil.copytree(whole.data / "release_templates", copy)
    done = command(checkout, "verify", str(copy))
    assert done.returncode == 0, done.stdout + done.stderr
    counts = release.check_release(copy)
    assert counts == {"templates": 7, "template_memes": len(whole.memes()), "readings": 39}
    (copy / "readings.jsonl").write_text("", encoding="utf-8")
    assert command(checkout, "verify", str(copy)).returncode == 1


def test_no_author_is_in_anything_that_was_written(whole: Done) -> None:
    files = [path for folder in (whole.data, whole.report) for path in folder.rglob("*") if path.is_file()]
    assert len(files) > 40
    assert [path.name for path in files if AUTHOR.encode() in path.read_bytes()] == []
    for path in whole.data.rglob("*.parquet"):  # texts in them are compressed
        frame = pd.read_parquet(path)
        assert (
            "author" not in frame.columns and not frame.astype(str).apply(lambda c: c.eq(AUTHOR)).any().any()
        )


def test_cm50_alone(checkout: Path, made: Made) -> None:
    done = run_both(checkout, made.settings("cm50"))
    first, second = map(done.texts, NOTEBOOKS)
    assert 'SET="imgflip=FOLDER"' in first and 'SET="memecap=FOLDER"' in first
    assert not (done.data / "templates.parquet").exists()
    assert len(done.memes()) == len(done.readings()) == 39
    assert {meme.split for meme in done.memes()} == {"validation"}
    found = {path.stem for path in (done.report / "tables").glob("*.csv")}
    assert TABLES - found == {"template_filter", "template_sizes", "template_rules", "template_edges"}
    assert "validation" in second and "train" not in second.partition("not computed here")[0]
    assert release.check_release(done.data / "release_templates")["template_memes"] == 39


def test_imgflip_alone(checkout: Path, made: Made) -> None:
    done = run_both(checkout, made.settings("imgflip"))
    first, second = map(done.texts, NOTEBOOKS)
    assert "(key cm50, see the table of data sets)" in first and "not computed here" in second
    assert sorted(meme.meme_id for meme in done.memes()) == sorted(made.kept) and done.readings() == []
    sizes = done.table("template_sizes")
    assert sizes["estimate"].isna().all() and sizes["chosen"].all(), "no sample, no estimate"
    assert not (done.report / "tables" / "template_rules.csv").exists()
    assert not (done.report / "tables" / "cm50_lengths.csv").exists()
    counts = release.check_release(done.data / "release_templates")
    assert counts["template_memes"] == len(made.kept) and not counts.get("readings")


@pytest.fixture
def endpoint() -> Iterator[FaultServer]:
    """A simulated endpoint that annotates every meme alike."""
    forms = {"FiveTasksReply": FIVE, "ThreeStep12Reply": STEPS}

    def reply(body: dict) -> Answer:
        form = forms[body["response_format"]["json_schema"]["name"]]
        return Answer(chat_reply(json.dumps(form)))

    with FaultServer(reply).running() as server:
        yield server


def test_annotation_by_an_endpoint_is_recorded_and_replayed(
    checkout: Path, made: Made, endpoint: FaultServer
) -> None:
    key = "sk-made-up-0123456789abcdef"
    endpoints = f"{{generator: {{base_url: '{endpoint.url}', model: sim, key_env: MY_KEY}}}}"
    base = f"{made.settings('imgflip', 'cm50')} llm=openai 'template_annotation={{sample: 6}}' "
    base += f'endpoints="{endpoints}"'
    live = run_both(checkout, f"{base} mode=auto", NOTEBOOKS[:1], MY_KEY=key)
    own = [r for r in live.readings() if r.source.startswith("model sim")]
    assert len(own) == 6 and {r.meme_caption for r in own} == {FIVE["meaning of the meme"]}
    assert {tuple(r.literary_devices) for r in own} == {("irony",)}, "what was not refuted"
    assert all(r.prompt == "gpt4o+three_step_12 (text only)" and not r.unscored for r in own)
    assert len(endpoint.bodies) == 12 and all(AUTHOR not in json.dumps(body) for body in endpoint.bodies)
    card = (live.data / "release_templates" / "README.md").read_text(encoding="utf-8")
    assert "sim@default" in card and "gpt-4o" in card
    assert not [path for path in live.data.rglob("*") if path.is_file() and key.encode() in path.read_bytes()]
    replayed = run_both(checkout, f"{base} mode=recorded", NOTEBOOKS[:1])
    assert replayed.name != live.name and len(endpoint.bodies) == 12, "nothing is asked twice"
    assert replayed.readings() == live.readings()


@pytest.mark.corpora
@pytest.mark.skipif(not CORPORA.is_dir(), reason="real data sets are not here")
def test_real_data_sets_within_a_minute_and_two_gigabytes(checkout: Path) -> None:
    folders = {"imgflip": "imgflip575k", "cm50": "cm50", "memecap": "memecap", "figmemes": "figmemes"}
    settings = " ".join(f"{name}={CORPORA / folder}" for name, folder in folders.items())
    done = run_both(checkout, settings, NOTEBOOKS[:1])
    assert done.seconds[0] <= 60
    assert done.peaks[0] <= 2e9, "of the kernel, the largest process"
    assert done.table("template_filter")["templates"].tolist()[-1] == 39
    assert "11 places held" in done.table("template_filter")["step"].tolist()[-1]
    kept = files.read_parquet(done.data / "templates.parquet", TemplateMeme)
    present, ids = {meme.template for meme in kept}, {meme.meme_id for meme in kept}
    published = {reading.meme_id: reading.template for reading in done.readings()}
    assert len(published) > 600 and len(set(published.values())) == 50
    assert [name for name, template in published.items() if template in present and name not in ids] == []
    for name in ("template_filter", "template_sizes", "template_rules", "cm50_lengths", "embedded_text"):
        assert len(done.table(name)) > 1, name
    for suffix in ("png", "pdf"):
        assert (done.report / "figures" / f"cm50_statistics.{suffix}").stat().st_size > 5_000
