"""Small first runs, as strangers try them: every pair of choices once, each run to page, numbers and release.

The cells of the notebooks run in this process, one after another as in a kernel: a kernel of its own for each
stage would take four times as long.
"""

import itertools
import json
import re
import shutil
from typing import Any, NamedTuple

import nbformat
import pytest
from stage_run import link_project, simulated

from memecmd_utils import dialogue, release, runs
from memecmd_utils import settings as settings_
from memecmd_utils.files import paths
from memecmd_utils.schemas import Placement, Unfinished

pytestmark = pytest.mark.slow

BEFORE = ("01_library_build", "02_annotation")
AFTER = (
    "03_dialogue_generation", "04_retrieval", "04b_learned_placement", "05_evaluation",
    "05b_studies", "06_figures", "08_meme_text_retrieval",
)  # fmt: skip

TURNS = (2, 3, 4, 6)
SENDERS = (
    "[greedy]",
    "[random]",
    "[sampling, random_same_turns]",
    "[greedy, sampling, random, random_same_turns]",
)
DIALOGUES = ("n_news=1 n_role_pairs=0", "n_news=0 n_role_pairs=1", "n_news=1 n_role_pairs=1", "n_dialogues=6")
JUDGES = ("[]", "[yes_no]", "[rating]", "[yes_no, rating]")
GATES = (
    "score_scale=standard",
    "score_scale=raw theta0=0.7 threshold_penalty=0.2",  # the paper's, which sends nothing here
    "score_scale=raw theta0=0.2 centring=none top_k=1",
    "score_scale=standard wanted_rate=0.9 weights=[1,0,0,0] judge_unit=dialogue",
)
FACTORS = (TURNS, SENDERS, DIALOGUES, JUDGES, GATES)
BACKENDS = ("authored", "simulated")


class Row(NamedTuple):
    levels: tuple[int, ...]
    backend: str

    @property
    def settings(self) -> str:
        turns, senders, dialogues, judges, gate = (f[i] for f, i in zip(FACTORS, self.levels, strict=True))
        if self.backend == "simulated":
            judges = re.sub(r"\w+", r"{kind: \g<0>, llm: openai}", judges)
        return f"n_turns={turns} strategies='{senders}' {dialogues} judges='{judges}' {gate}"


def rows() -> list[Row]:
    """An orthogonal array of 16 rows for five factors of four levels, from the field of four elements."""
    times = ((0, 0, 0, 0), (0, 1, 2, 3), (0, 2, 3, 1), (0, 3, 1, 2))
    return [
        Row((a, b, a ^ b, a ^ times[2][b], a ^ times[3][b]), BACKENDS[(times[times[a][a]][a] ^ b) & 1])
        for a, b in itertools.product(range(4), repeat=2)
    ]


def run_stage(stage: str, **parameters: str) -> dict[str, Any]:
    """Run a notebook's code cells; the names that they leave."""
    notebook = nbformat.read(paths.notebooks / f"{stage}.ipynb", as_version=4)
    names: dict[str, Any] = {"__name__": "__main__"}
    for number, cell in enumerate(notebook.cells):
        if cell.cell_type == "code" and "exercise" not in cell.metadata.get("tags", ()):
            exec(compile(cell.source, f"{stage}[{number}]", "exec"), names)
            if "parameters" in cell.metadata.get("tags", ()):
                names |= parameters
    return names


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory):
    """Profile and folder by backend, with stages 01 and 02 done for ten memes of the example."""
    patch = pytest.MonkeyPatch()
    root = tmp_path_factory.mktemp("small")
    link_project(root)
    old = paths.root
    for name in ("root", "notebooks", "data", "profiles", "example", "raw", "processed", "reports"):
        patch.setattr(paths, name, root / getattr(paths, name).relative_to(old))
    patch.setenv("SMALL_RUNS_KEY", "simulated")
    with simulated(root) as server:
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


def run_on(base: tuple[str, str], further: str) -> runs.Run:
    """The stages after those of the `started` base, with further settings."""
    profile, settings = base[0], f"{base[1]} {further}"
    name = settings_.settle(settings_.load_profile(profile, settings_.parse_settings(settings)))
    shutil.copytree(paths.processed / f"{profile}-base", paths.processed / name, dirs_exist_ok=True)
    for stage in AFTER:
        run_stage(stage, profile=profile, settings=settings, run_name=name)
    return runs.open_run(profile, settings, name)


@pytest.mark.parametrize("row", rows(), ids=lambda row: f"{row.backend}-{'-'.join(map(str, row.levels))}")
def test_a_small_run_ends_with_page_numbers_and_release(row: Row, started) -> None:
    run = run_on(started[row.backend], row.settings)
    numbers = json.loads((run.report / "numbers.json").read_text(encoding="utf-8"))
    counts = release.check_release(run.folder / "release")["counts"]
    assert numbers["memes"] == counts["memes"] == 10 and numbers["dialogues"]["total"] == counts["dialogues"]
    page = (run.report / "index.html").read_text(encoding="utf-8")
    unscored = numbers["ratings"]["unscored"]
    named = re.search(r"(news|role)-[\w-]+, Greedy", page) is not None
    assert named <= ("greedy" in run.profile.retrieval.strategies), "a chat is named after its memes"
    assert ("ratings by judges" in page) == (row.backend == "authored" and unscored > 0)
    assert row.backend == "authored" or not unscored, "the simulated judge answers everything"
    is_closed = row.levels[4] == 1 and SENDERS[row.levels[1]] != "[random]"
    assert ("The gate never opens" in page) == is_closed


@pytest.mark.parametrize("settings", ["theta0=99", "score_scale=raw theta0=0.7 threshold_penalty=0.2"])
def test_a_run_that_sends_nothing_ends_and_says_why(settings: str, started) -> None:
    run = run_on(started["authored"], f"strategies='[greedy, random, learned]' judges=[] {settings}")
    sent = {placed.strategy for placed in run.load(Placement)}
    assert sent == {"random"} if "99" in settings else "greedy" not in sent
    assert "The gate never opens, so greedy send" in (run.report / "index.html").read_text(encoding="utf-8")


def test_without_any_scenario_stage_03_ends_with_the_reason(started, monkeypatch) -> None:
    async def nothing(pairs, chat, profile, *rest) -> tuple:
        lost = [
            Unfinished(
                dialogue_id=f"role-{pair.pair_id}", turn=1, reason="no new scenario", turns=[], source="x"
            )
            for pair, _ in pairs
        ]
        return [], [], lost

    monkeypatch.setattr(dialogue, "role_cold_starts", nothing)  # as the notebook has it
    profile, settings = started["simulated"]
    settings = f"{settings} n_news=0 n_role_pairs=1 n_turns=4 judges='[]'"
    with pytest.raises(dialogue.NoText, match="turn 1: no new scenario"):
        run_stage("03_dialogue_generation", profile=profile, settings=settings, run_name="openai-nothing")


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
    assert "01_library_build, 02_annotation, 03_dialogue_generation write is that of the finished run" in page
    assert {path.name for path in (paths.processed / "example-lab" / "release").iterdir()} >= {"README.md"}
