"""Small first runs, as strangers try them, and one with more memes than a lesson looks at: page and release.

The cells of the notebooks run in this process, one after another as in a kernel: a kernel of its own for each
stage would take four times as long.
"""

import json
import re
import shutil
from collections import Counter
from typing import Any

import made_paper_data
import nbformat
import pandas as pd
import pytest
import stage_run
import whole_pipeline
from fault_replies import drawn, value_of

from memecmd_utils import release, runs, schemas
from memecmd_utils import settings as settings_
from memecmd_utils.files import paths
from memecmd_utils.schemas import Annotation, Placement

# A warning would put this machine's paths into a lesson, and so into a site and its search.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("error::RuntimeWarning")]

BEFORE = ("01_library_build", "02_annotation")
AFTER = (
    "03_dialogue_generation", "04_retrieval", "04b_learned_placement", "04c_reranking", "05_evaluation",
    "05b_studies", "09_the_papers_data", "06_figures", "08_meme_text_retrieval",
)  # fmt: skip


def run_stage(stage: str, shorter: bool = False, **parameters: str) -> dict[str, Any]:
    """Run a notebook's code cells; the names that they leave.

    `shorter`: what is cut to a lesson's size is cut to 40, as if the run were much larger.
    """
    notebook = nbformat.read(paths.notebooks / f"{stage}.ipynb", as_version=4)
    names: dict[str, Any] = {"__name__": "__main__"}
    for number, cell in enumerate(notebook.cells):
        if cell.cell_type == "code" and "exercise" not in cell.metadata.get("tags", ()):
            source = re.sub(r"\[:(\d{3,4})\]", "[:40]", cell.source) if shorter else cell.source
            exec(compile(source, f"{stage}[{number}]", "exec"), names)
            if "parameters" in cell.metadata.get("tags", ()):
                names |= parameters
    return names


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory):
    """Profile and settings by backend, with stages 01 and 02 done for ten memes of the example."""
    patch = pytest.MonkeyPatch()
    root = stage_run.project(tmp_path_factory.mktemp("small"))
    old = paths.root
    for name in ("root", "notebooks", "data", "profiles", "example", "raw", "processed", "reports"):
        patch.setattr(paths, name, root / getattr(paths, name).relative_to(old))
    patch.setenv("SMALL_RUNS_KEY", "simulated")
    turns = [{"speaker": "AB"[n % 2], "text": f"第{n}句话"} for n in range(6)]
    felt = {"emotion": "开心", "motivation": "想笑"}
    said = [{"turn": n, "scenario": f"第{n}件事", **felt} for n in range(2, 7)]
    chat = {"turns": turns, "summaries": said}
    chats = [json.dumps({"dialogue_id": f"chat-{n}", **chat}) for n in range(4)]
    (root / "own_chats.jsonl").write_text("\n".join(chats), encoding="utf-8")
    with stage_run.simulated(root) as server:
        end = f'{{base_url: "{server.url}", model: simulated, key_env: SMALL_RUNS_KEY}}'
        ends = f"endpoints='{{generator: {end}}}'"
        common = {
            "authored": ("example", "max_memes=10"),
            "simulated": ("openai", f"max_memes=10 max_usd=null judge_contexts=2 {ends}"),
        }
        for profile, settings in common.values():
            for stage in BEFORE:
                run_stage(stage, profile=profile, settings=settings, run_name=f"{profile}-base")
        yield common
    patch.undo()


RATING = "judges='[{kind: rating, llm: openai}]'"
ROWS = {
    "two turns, one sender, no judge": (
        "authored", "n_turns=2 strategies=[greedy] n_news=1 n_role_pairs=0 judges=[]",
    ),
    "role pairs, random alone, a yes/no judge": (
        "simulated",
        "n_turns=4 strategies=[random] n_news=0 n_role_pairs=1 judges='[{kind: yes_no, llm: openai}]'",
    ),
    "all senders, both judges, nothing recorded": (
        "authored", "n_turns=6 n_dialogues=6 judges='[yes_no, rating]' wanted_rate=0.9",
    ),
    "a judge of dialogues, one weight, raw scores, nothing centred": (
        "simulated",
        f"n_turns=6 n_news=1 n_role_pairs=1 {RATING} judge_unit=dialogue weights=[1,0,0,0] score_scale=raw "
        "theta0=0.2 centring=none top_k=1",
    ),
    "chats of one's own, with summaries": ("authored", "dialogues=own_chats.jsonl judges=[]"),
    "a gate that never opens": (
        "authored", "strategies='[greedy, random, learned]' judges=[] theta0=99 n_dialogues=4",
    ),
}  # fmt: skip
"""Choices that meet in no shipped profile: who answers, how long and how many the dialogues are, who sends,
by which gate, who judges."""


@pytest.mark.parametrize("name", ROWS)
def test_a_small_run_ends_with_page_numbers_and_release(name: str, started) -> None:
    backend, further = ROWS[name]
    profile, settings = started[backend][0], f"{started[backend][1]} {further}"
    made = settings_.settle(settings_.load_profile(profile, settings_.parse_settings(settings)))
    shutil.copytree(paths.processed / f"{profile}-base", paths.processed / made, dirs_exist_ok=True)
    for stage in AFTER:
        run_stage(stage, profile=profile, settings=settings, run_name=made)
    run = runs.open_run(profile, settings, made)
    numbers = json.loads((run.report / "numbers.json").read_text(encoding="utf-8"))
    counts = release.check_release(run.folder / "release")["counts"]
    assert numbers["memes"] == counts["memes"] == 10 and numbers["dialogues"]["total"] == counts["dialogues"]
    page = (run.report / "index.html").read_text(encoding="utf-8")
    unscored = numbers["ratings"]["unscored"]
    assert ("ratings by judges" in page) == (backend == "authored" and unscored > 0)
    assert backend == "authored" or not unscored, "the simulated judge answers everything"
    assert ("The gate never opens, so greedy send" in page) == ("never opens" in name)
    assert {placed.strategy for placed in run.load(Placement)} == {"random"} or "never opens" not in name


def test_lessons_show_a_part_of_a_larger_library_and_end(started) -> None:
    """320 memes: memes are sent from the whole library, while lessons look at a part of it.

    04b looks at 300; then 02, 04, 04b and 08 do as if their parts were 40, as in a run with thousands.
    """
    profile, settings = started["simulated"]
    settings += " n_turns=6 n_news=2 n_role_pairs=0 strategies='[greedy, random, learned]' judges=[]"
    run = runs.open_run(profile, settings, f"{profile}-many")
    said = runs.open_run(profile, settings, f"{profile}-base").load(Annotation)[0]
    schema = schemas.AnnotationReply.model_json_schema()
    run.write("memes").mkdir(parents=True)
    memes, annotations = stage_run.memes(320), []
    for number, meme in enumerate(memes):
        meme.file = f"memes/{meme.file}"
        whole_pipeline.picture(number).save(run.write(meme.file))
        texts = value_of(schema, schema, "", drawn(number))
        annotations.append(said.model_copy(update={"meme_id": meme.meme_id, **texts}))
    run.save(memes, schemas.Meme)
    run.save(annotations, Annotation)
    given = {"profile": profile, "settings": settings, "run_name": run.name}
    for stage in ("03_dialogue_generation", "04_retrieval", "04b_learned_placement"):
        run_stage(stage, **given)
    sent = {placed.meme_id for placed in run.load(Placement)}
    assert sent - {meme.meme_id for meme in memes[:40]}, "some are beyond what a lesson looks at"
    for stage in ("02_annotation", "04_retrieval", "04b_learned_placement", "08_meme_text_retrieval"):
        run_stage(stage, shorter=True, **given)


def test_the_papers_own_data_end_with_a_page_and_tables(started, tmp_path) -> None:
    """A made-up release: its placements are senders of the run, and nothing of it is released."""
    folder = made_paper_data.release(tmp_path / "a release")
    settings = f"paper_data='{folder}'"
    name = settings_.settle(settings_.load_profile("authors", settings_.parse_settings(settings)))
    for stage in (*BEFORE, *AFTER):
        run_stage(stage, profile="authors", settings=settings, run_name=name)
    run = runs.open_run("authors", settings, name)
    sent = Counter(placed.strategy for placed in run.load(Placement))
    assert (sent["released_greedy"], sent["released_random"]) == (12, 6) and sent["greedy"] > 0
    page = (run.report / "index.html").read_text(encoding="utf-8")
    assert "Greedy, released" in page and not (run.folder / "release").exists()
    tables = run.report / "tables"
    table = pd.read_csv(tables / "authors_table_1.csv", index_col=["set", "measure", "strategy"])
    assert table.loc[("role 6", "judge", "Greedy"), "here"] == 89.0
    ranks = pd.read_csv(tables / "authors_ranks.csv", index_col="set")
    assert ranks.loc["role 6", ["places", "memes", "top 3"]].tolist() == [8, 2, 1.0]


def test_by_hand_changed_settings_run_from_04_to_06(started) -> None:
    """As in JupyterLab: results go to `example-lab`, what was not changed is read from the finished run."""
    profile, settings = started["authored"]
    settings = f"{settings} n_dialogues=6 judges='[yes_no]'"
    shutil.copytree(paths.processed / "example-base", paths.processed / "example", dirs_exist_ok=True)
    run_stage("03_dialogue_generation", profile=profile, settings=settings, run_name="example")
    for stage in AFTER[1:]:
        left = run_stage(stage, profile=profile, settings=f"{settings} weights=[0.5,0.1,0.3,0.1] theta0=0.3")
        assert stage != "05_evaluation" or "ratings by judges have no recorded answer" in left["lacking"]
    page = (left["run"].report / "index.html").read_text("utf-8")
    assert left["run"].name == "example-lab" and "have no recorded answer" in page
    assert {path.name for path in (paths.processed / "example-lab" / "release").iterdir()} >= {"README.md"}
