import json
import os
from pathlib import Path

import pytest
from PIL import Image

from memecmd_utils import local_model as local
from memecmd_utils import runs
from memecmd_utils.core import paths
from memecmd_utils.ops import make
from memecmd_utils.runs import OUTPUTS
from memecmd_utils.settings import load_profile, parse_settings

OLD = 1_700_000_000


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project's root with one of each of what a stage may read from outside."""
    monkeypatch.setattr(paths, "root", tmp_path)
    for name in ("raw", "processed", "reports", "interim"):
        monkeypatch.setattr(paths, name, tmp_path / "data" / name)
    monkeypatch.setattr(local, "weights_path", lambda name: tmp_path / f"{name}.gguf")
    picture(tmp_path / "memes" / "a.png")
    picture(tmp_path / "memes" / "below" / "b.jpg")
    for name in (
        "memes/data.json", "memes/notes.txt", "curation.csv", "news.jsonl", "feeds.yaml", "clip.pt",
        "qwen2.5-coder-1.5b.gguf", "gemma-3-270m.gguf", "embedder/config.json", "checker/config.json",
        "data/raw/ratings/openai/anna.csv", "data/raw/ratings/example/anna.csv", "lpips.pth",
        "data/raw/recordings/example/evaluation/mine.jsonl", "data/raw/recordings/example/ocr/mine.jsonl",
        "data/raw/recordings/example/embedding/x/mine.npz", "data/raw/news/openai/items.jsonl",
    ):  # fmt: skip
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("{}", encoding="utf-8")
    return tmp_path


def picture(path: Path, shade: int = 0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", (20, 20), shade).save(path)


def run_of(settings: str = "", profile: str = "openai") -> runs.Run:
    loaded = load_profile(profile, parse_settings(settings))
    return runs.Run("r", loaded, paths.processed / "r", paths.reports / "r")


def note(run: runs.Run, templates: bool = False) -> set[str]:
    """Numbers of the stages whose file is new after another look."""
    folder = run.folder / make.INPUTS
    for path in folder.glob("*.json"):
        os.utime(path, (OLD, OLD))
    make.note_inputs(run, make.stages(templates))
    return {path.stem.split("_")[0] for path in folder.glob("*.json") if path.stat().st_mtime > OLD}


def test_a_stage_has_its_file_and_it_stays_as_it_is() -> None:
    run = run_of("sources=memes curation=curation.csv news=news.jsonl")
    assert note(run) == {"01", "02", "03", "04", "04b", "05", "05b", "06"} and note(run) == set()
    said = json.loads((run.folder / "inputs" / "01_library_build.json").read_text(encoding="utf-8"))
    assert sorted(said) == ["curation curation.csv", "source memes"]
    assert said["source memes"].startswith("3 files "), "two pictures and what describes them"
    assert note(run, templates=True) == {"07", "08"}


LOCAL = "llm=local judges=[yes_no] other_summaries=2"


@pytest.mark.parametrize(
    ("settings", "changed", "stages"),
    [
        ("sources=[example,memes]", "memes/a.png", "01"), ("sources=memes", "memes/below/c.gif", "01"),
        ("sources=memes", "memes/below/b.jpg", "01"), ("sources=memes", "memes/data.json", "01"),
        ("sources=memes", "memes/notes.txt", ""), ("", "memes/a.png", ""),
        ("curation=curation.csv", "curation.csv", "01"), ("", "curation.csv", ""),
        ("news=news.jsonl", "news.jsonl", "03"), ("news=news.jsonl n_news=0", "news.jsonl", ""),
        ("news=feeds feeds=feeds.yaml", "feeds.yaml", "03"),
        ("news=feeds feeds=feeds.yaml", "data/raw/news/openai/items.jsonl", "03"),
        ("", "data/raw/news/openai/items.jsonl", ""), ("", "data/raw/ratings/openai/anna.csv", "05"),
        ("", "data/raw/ratings/openai/new.csv", "05"), ("", "data/raw/ratings/example/anna.csv", ""),
        (LOCAL, "qwen2.5-coder-1.5b.gguf", "02 03 05 05b"),
        (f"{LOCAL} mode=recorded", "qwen2.5-coder-1.5b.gguf", ""),
        ("judges='[{kind: yes_no, local_model: gemma-3-270m}]'", "gemma-3-270m.gguf", "05"),
        ("embedder=embedder", "embedder/config.json", "02 03 04"),
        ("consistency_embedder=checker", "checker/config.json", "05"),
        ("consistency=cn_clip clip_checkpoint=clip.pt", "clip.pt", "05"),
        ("mode=recorded profile=example", "data/raw/recordings/example/evaluation/mine.jsonl", "05"),
        ("mode=recorded profile=example", "data/raw/recordings/example/ocr/mine.jsonl", ""),
        ("mode=recorded profile=example", "data/raw/recordings/example/embedding/x/mine.npz", ""),
        ("mode=auto profile=example", "data/raw/recordings/example/evaluation/mine.jsonl", ""),
    ],
)  # fmt: skip
@pytest.mark.parametrize("change", ["changed", "removed"])
def test_a_change_makes_the_file_of_the_stages_that_read_it_new(
    settings: str, changed: str, stages: str, change: str, project: Path
) -> None:
    settings, _, profile = settings.partition(" profile=")
    run = run_of(settings, profile or "openai")
    note(run)
    path = project / changed
    if not path.exists():
        change = "changed"
    if change == "removed":
        path.unlink()
    elif path.suffix in (".png", ".jpg", ".gif"):
        picture(path, shade=200)
    else:
        path.write_text("{ }", encoding="utf-8")
    assert note(run) == set(stages.split())
    assert note(run) == set()


def test_a_link_that_leads_out_counts_and_what_it_leads_to_does_not(project: Path) -> None:
    run = run_of("sources=memes")
    note(run)
    picture(project / "private" / "c.png")
    (project / "memes" / "c.png").symlink_to(project / "private" / "c.png")
    assert note(run) == {"01"}, "stage 01 says that it was not followed"
    picture(project / "private" / "c.png", shade=200)
    assert note(run) == set()
    (project / "memes" / "c.png").unlink()
    assert note(run) == {"01"}


def test_weights_of_ones_own_count_in_a_replay_too(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_of(f"{LOCAL} mode=recorded")
    note(run)
    monkeypatch.setenv("MEMECMD_GGUF", str(project / "gemma-3-270m.gguf"))
    assert note(run) == {"02", "03", "05", "05b"}


@pytest.mark.parametrize(
    ("settings", "changed", "stages"),
    [
        ("cm50.matching.lpips=lpips.pth", "lpips.pth", "07"),
        ("cm50.matching.clip=embedder", "embedder/config.json", "07"),
        ("mtrclip.model=embedder", "embedder/config.json", "08"),
        ("mtrclip.baselines=[embedder]", "embedder/config.json", "08"),
        ("llm=local", "qwen2.5-coder-1.5b.gguf", "07"),
    ],
)
def test_template_stages_read_from_outside_too(
    settings: str, changed: str, stages: str, project: Path
) -> None:
    run = run_of(settings)
    note(run, templates=True)
    (project / changed).write_text("{ }", encoding="utf-8")
    assert note(run, templates=True) == set(stages.split())


def write(run: runs.Run, *names: str) -> None:
    for name in names:
        path = run.report / name.removeprefix("report/") if name.startswith("report/") else run.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x", encoding="utf-8")


MADE = {
    "01_library_build": ["memes.parquet", "memes/a.png", "memes/b.png", "rejected.csv"],
    "02_annotation": ["annotations.parquet", "report/figures/fig2_keywords.png"],
    "03_dialogue_generation": ["dialogues.jsonl", "scenarios.jsonl"],
    "04_retrieval": ["placements.parquet", "scores.npz"],
    "04b_learned_placement": ["landing.json", "report/tables/learned_gate.csv"],
    "05_evaluation": ["ratings.parquet", "report/tables/table_1.csv", "report/rating_form.html"],
    "05b_studies": ["studies.json", "report/tables/hubs.csv", "report/figures/hubs.png"],
    "06_figures": ["release/images/a.png", "report/index.html", "report/figures/fig3_scores.png"],
}


def make_all(run: runs.Run) -> None:
    """As a whole run does it, stage by stage."""
    note(run)
    for stage, names in MADE.items():
        write(run, *names, f"report/{stage}.ipynb", f"report/{stage}.html")
        make.note_outputs(run, stage)


@pytest.mark.parametrize("again", [False, True], ids=["first", "made again"])
@pytest.mark.parametrize(
    ("gone", "stage"),
    [(name, stage) for stage, names in MADE.items() for name in [*names, f"report/{stage}.html"]],
)
def test_what_is_gone_makes_the_file_of_the_stage_that_wrote_it_new(
    gone: str, stage: str, again: bool
) -> None:
    run = run_of()
    make_all(run)
    if again:
        make_all(run)
    assert note(run) == set()
    (run.report / gone.removeprefix("report/") if gone.startswith("report/") else run.folder / gone).unlink()
    assert note(run) == {stage.split("_")[0]} == note(run), "until the stage has run"
    make.note_outputs(run, stage)
    assert note(run) == set(), "a stage that writes it no more has run"


def test_every_notebook_has_its_outputs_listed() -> None:
    assert sorted(OUTPUTS) == sorted(path.stem for path in paths.notebooks.glob("*.ipynb"))
    assert set(MADE) == set(make.stages(False))


def test_news_that_the_stage_collected_by_itself_are_no_change(project: Path) -> None:
    run, stage = run_of("news=feeds feeds=feeds.yaml"), "03_dialogue_generation"
    (project / "data/raw/news/openai/items.jsonl").unlink()
    note(run)
    write(run, f"report/{stage}.ipynb")
    os.utime(run.report / f"{stage}.ipynb", (OLD, OLD))
    (project / "data/raw/news/openai/items.jsonl").write_text("collected", encoding="utf-8")
    (project / "feeds.yaml").write_text("changed meanwhile", encoding="utf-8")
    make.note_outputs(run, stage)
    noted, notebook = run.folder / "inputs" / f"{stage}.json", run.report / f"{stage}.ipynb"
    assert notebook.stat().st_mtime >= noted.stat().st_mtime
    assert note(run) == {"03"}, "what was changed meanwhile is"
    assert note(run) == set()
