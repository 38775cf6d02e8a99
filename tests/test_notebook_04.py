"""Notebook 04 computes what the package computes: its functions, taken from its cells, on random data."""

import re
from functools import cache

import nbformat
import numpy as np
import pytest
import taught
from made_up import profile

from memecmd_utils.core import paths
from memecmd_utils.retrieval import gate as package_gate
from memecmd_utils.retrieval import placement, scoring

PATH = paths.notebooks / "04_retrieval.ipynb"
FORMULA = re.compile(r"\$\$(.+?)\\qquad \((\d+)\)\$\$", re.DOTALL)


@cache
def cells() -> tuple[nbformat.NotebookNode, ...]:
    return tuple(nbformat.read(PATH, as_version=4).cells)


@pytest.fixture(scope="module")
def by_hand() -> dict:
    lesson = [
        c.source for c in cells() if c.cell_type == "code" and "exercise" not in c.metadata.get("tags", [])
    ]
    return taught.functions(*lesson)


@pytest.fixture(params=range(5))
def rng(request) -> np.random.Generator:
    return np.random.default_rng(request.param)


def unit_rows(rng: np.random.Generator, n: int, dim: int = 12) -> np.ndarray:
    """In a narrow cone, as texts are."""
    rows = rng.normal(size=(n, dim)).astype(np.float32) + 3
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def series(rng: np.random.Generator, dialogues: int = 9) -> list[np.ndarray]:
    """Best scores of some dialogues; a few turns have none."""
    out = [rng.normal(size=rng.integers(1, 19)) for _ in range(dialogues)]
    for scores in out[1:]:
        scores[rng.random(len(scores)) < 0.1] = -np.inf
    return out


# --- formulas above their lines -------------------------------------------------------------------------


def test_every_equation_stands_above_the_lines_that_compute_it() -> None:
    found = {}
    for cell, below in zip(cells(), cells()[1:], strict=False):
        for text, number in FORMULA.findall(cell.source) if cell.cell_type == "markdown" else ():
            assert below.cell_type == "code" and "def " in below.source, number
            found[int(number)] = text
    assert sorted(found) == [*range(18, 26)]
    assert all("=" in text or "TopK" in text for text in found.values())


def test_the_package_is_asked_only_to_be_compared() -> None:
    code = [cell.source for cell in cells()[3:] if cell.cell_type == "code"]
    first = next(
        number for number, source in enumerate(code) if re.search(r"\b(?:retrieval|panel)\.", source)
    )
    assert re.search(r"^assert mine == package", code[first], re.MULTILINE)
    assert not re.search(r"\bretrieval\b", "".join(code[:first]))


# --- equal on random data -------------------------------------------------------------------------------


def test_centring_is_the_packages(by_hand: dict, rng: np.random.Generator) -> None:
    rows = unit_rows(rng, 30)
    assert np.allclose(by_hand["centred"](rows), scoring.centre(rows), atol=1e-6)
    for few in (rows[:1], np.repeat(rows[:1], 4, axis=0)):  # one has no spread, equal ones no direction
        assert np.allclose(by_hand["centred"](few), scoring.centre(few), atol=1e-6)


@pytest.mark.parametrize("weights", [(1 / 3,) * 4, (1, 0, 0, 0), (0.4, 0.3, -0.2, 0.1)])
def test_scores_and_the_best_memes_are_the_packages(
    by_hand: dict, rng: np.random.Generator, weights: tuple
) -> None:
    memes_say = [unit_rows(rng, 40) for _ in range(4)]
    for rows in memes_say:
        rows[7] = rows[3]  # equal texts: equal scores, which go by id
    turns_ask = [unit_rows(rng, 25) for _ in range(3)]
    index = scoring.build_index([f"m{n:02d}" for n in range(40)], memes_say, centring=True)
    queries = scoring.build_queries(*turns_ask, centring=True)
    centred = by_hand["centred"]
    parts = by_hand["four_cosines"](map(centred, turns_ask), map(centred, memes_say))
    assert np.allclose(parts, scoring.component_matrices(index, queries), atol=1e-5)
    T = by_hand["weighted_sum"](parts, weights)
    ranking = scoring.top_k(index, queries, weights, 5)
    assert np.array_equal(by_hand["top_memes"](T, 5), ranking.memes)
    assert np.allclose(np.take_along_axis(T, ranking.memes, axis=1), ranking.scores, atol=1e-6)


def test_the_gate_is_the_packages(by_hand: dict, rng: np.random.Generator) -> None:
    for scores in series(rng):
        theta0, penalty, decay = rng.normal(), rng.uniform(0, 2), rng.uniform(0.1, 2)
        trace = package_gate.simulate(scores, package_gate.Gate(theta0, penalty, decay))
        thresholds, sent = by_hand["gate"](scores, theta0, penalty, decay)
        assert np.allclose(thresholds, trace.thresholds) and sent == trace.sent.tolist()
    assert by_hand["gate"]([], 0, 1, 1) == ([], [])


@pytest.mark.parametrize("rate", [0.1, 0.3, 0.9])
def test_the_calibration_is_the_packages(by_hand: dict, rng: np.random.Generator, rate: float) -> None:
    dialogues = series(rng)
    scale = package_gate.standard_scale(dialogues)
    assert by_hand["standard_scale"](dialogues) == pytest.approx((scale.mean, scale.std))
    theta0 = package_gate.calibrate_theta0(dialogues, 1.0, 0.7, rate)
    assert by_hand["fit_theta0"](dialogues, rate, 1.0, 0.7) == pytest.approx(theta0)
    assert by_hand["standard_scale"]([np.full(4, 0.2)])[1] == 1.0, "equal scores have no spread"


def test_the_strategies_choose_as_the_package_does(by_hand: dict, rng: np.random.Generator) -> None:
    ranked = np.argsort(rng.normal(size=(4_000, 50)), axis=1)[:, :3]
    mine = by_hand["choose"](ranked, 50, rng)
    ranking = scoring.Ranking(ranked, np.zeros(ranked.shape), np.zeros((*ranked.shape, 4)))
    everywhere = np.ones(len(ranked), dtype=bool)
    for strategy, columns in mine.items():
        picks = placement.choose(strategy, ranking, everywhere, 50, profile(), "d")
        theirs = np.array([meme for _, meme, _ in picks])
        if strategy == "greedy":
            assert np.array_equal(columns, theirs)
            continue
        for chosen in (columns, theirs):  # by lots of their own, from the same memes with the same chances
            ranks = (ranked == chosen[:, None]).mean(axis=0)
            expected = 1 / 3 if strategy == "sampling" else 1 / 50
            assert ranks == pytest.approx([expected] * 3, abs=0.03), strategy
            assert set(np.unique(chosen)) == set(range(50))


def test_the_gate_of_the_exercise_is_the_packages_linear_form(rng: np.random.Generator) -> None:
    solutions = [
        code
        for cell in cells()
        if cell.cell_type == "markdown"
        for code in re.findall(r"```python\n(def linear_gate.+?)\n```", cell.source, re.DOTALL)
    ]
    linear_gate = taught.functions(*solutions)["linear_gate"]
    for scores in series(rng):
        trace = package_gate.simulate(scores, package_gate.Gate(0.2, 1.5, 0.3, "linear"))
        assert linear_gate(scores, 0.2, 1.5, 0.3) == trace.sent.tolist()
