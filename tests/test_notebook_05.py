"""Notebook 05 computes what the package computes: its functions, taken from its cells, on random data."""

import re
from functools import cache

import nbformat
import numpy as np
import pytest
import taught

from memecmd_utils.core import paths, statistics
from memecmd_utils.evaluation import consistency, rankings

PATH = paths.notebooks / "05_evaluation.ipynb"
MOST_CELLS = 14
"""Of code, without parameters, set-up and tasks."""


@cache
def cells() -> tuple[nbformat.NotebookNode, ...]:
    return tuple(nbformat.read(PATH, as_version=4).cells)


def code() -> list[str]:
    """Code cells that teach, in order."""
    plain = [cell for cell in cells() if cell.cell_type == "code"]
    return [cell.source for cell in plain[2:] if "exercise" not in cell.metadata.get("tags", [])]


@pytest.fixture(scope="module")
def by_hand() -> dict:
    return taught.functions(*code())


@pytest.fixture(params=range(5))
def rng(request) -> np.random.Generator:
    return np.random.default_rng(request.param)


def test_it_is_short_and_begins_with_a_look() -> None:
    assert len(code()) <= MOST_CELLS
    first_eight = [cell.source for cell in cells()[:8] if cell.cell_type == "code"]
    assert any("drawing.show_" in source for source in first_eight)


def test_equation_26_stands_above_the_line_that_computes_it() -> None:
    (place,) = (i for i, cell in enumerate(cells()) if re.search(r"\$\$.+\\qquad \(26\)\$\$", cell.source))
    assert "def consistency(" in cells()[place + 1].source


def test_the_package_computes_all_of_it_last() -> None:
    calls = {
        name: next(i for i, source in enumerate(code()) if re.search(pattern, source))
        for name, pattern in {
            "bootstrap": r"def cluster_bootstrap",
            "interval": r"evaluation\.effects",
            "equation": r"def consistency",
            "auc": r"def auc",
            "all": r"evaluation\.evaluate_run",
        }.items()
    }
    assert calls["bootstrap"] < calls["interval"] < calls["equation"] < calls["auc"] < calls["all"]
    assert not any("save" in source for source in code()), "the package saves, in one call"
    for name in ("interval", "equation", "auc"):
        assert re.search(r"^ +assert ", code()[calls[name]], re.MULTILINE), name


# --- equal on random data -------------------------------------------------------------------------------


def test_equation_26_is_the_packages(by_hand: dict, rng: np.random.Generator) -> None:
    memes, texts = (
        rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in rng.normal(size=(2, 30, 8))
    )
    cosines = np.array([meme @ text for meme, text in zip(memes, texts, strict=True)])
    assert np.allclose(by_hand["consistency"](memes, texts), consistency.score(cosines))


def test_auc_is_the_packages(by_hand: dict, rng: np.random.Generator) -> None:
    for digits in (8, 0):  # rounded to whole numbers, many are equal
        fitting, random = rng.normal(0.5, 2, 40).round(digits), rng.normal(0, 2, 25).round(digits)
        sides = [list(zip(rng.integers(9, size=len(x)).tolist(), x, strict=True)) for x in (fitting, random)]
        assert by_hand["auc"](fitting, random) == pytest.approx(statistics.cluster_auc(*sides).mean)


def test_the_verdict_says_which_way_a_judge_leans(by_hand: dict) -> None:
    verdict = by_hand["verdict"]
    ends = {(0.55, 0.7): "better", (0.3, 0.49): "worse", (0.4, 0.6): "no", (np.nan, np.nan): "unknown"}
    for (low, high), word in ends.items():
        assert verdict(low, high) == word
        assert {1: "better", -1: "worse", 0: "no"}[statistics.direction(low, high, 0.5)] in (word, "no")


def test_the_bootstrap_agrees_with_the_packages_interval(by_hand: dict, rng: np.random.Generator) -> None:
    sizes = rng.integers(2, 9, size=60)
    dialogue_of = np.repeat(np.arange(60), sizes)
    values = rng.normal(0.3, 1, 60)[dialogue_of] + rng.normal(size=sizes.sum())
    ours = by_hand["cluster_bootstrap"](values, dialogue_of)
    package = statistics.cluster_mean(values.tolist(), dialogue_of.tolist())
    width = package.high - package.low
    assert ours == pytest.approx([package.low, package.high], abs=0.12 * width)
    alone = by_hand["cluster_bootstrap"](values, np.arange(len(values)))
    assert alone[1] - alone[0] < 0.8 * width, "items that share a dialogue look like more than they are"


def test_ndcg_kappa_and_holm_are_the_packages(by_hand: dict, rng: np.random.Generator) -> None:
    grades = rng.integers(3, size=5)
    grades[0] = 1
    measured = rankings.per_turn(np.arange(5)[None], grades[None].astype(float))[0]
    assert by_hand["ndcg"](grades) == pytest.approx(measured[rankings.COLUMNS.index("nDCG@5")])
    first, second = rng.integers(2, size=(2, 40))
    expected = statistics.kappa(statistics.confusion(first, second))
    assert by_hand["kappa"](first, second) == pytest.approx(expected)
    p_values = rng.random(6) ** 3
    assert by_hand["holm"](p_values) == pytest.approx(statistics.holm(p_values.tolist()))


def test_the_interval_of_the_exercise_agrees_with_the_packages(by_hand: dict) -> None:
    folded = "\n".join(cell.source for cell in cells() if cell.cell_type == "markdown")
    (solution,) = re.findall(r"```python\n(def auc_interval.+?)\n```", folded, re.DOTALL)
    auc_interval = taught.functions(solution, auc=by_hand["auc"])["auc_interval"]
    rng = np.random.default_rng(3)
    good, bad = ([rng.normal(mean, size=3) for _ in range(50)] for mean in (0.6, 0.0))
    package = statistics.cluster_auc(
        *([(i, x) for i, xs in enumerate(side) for x in xs] for side in (good, bad))
    )
    assert auc_interval(good, bad, draws=2_000) == pytest.approx([package.low, package.high], abs=0.02)
