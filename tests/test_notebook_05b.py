"""Notebook 05b computes what the package computes: its functions, taken from its cells, on random data."""

import re
from functools import cache
from types import SimpleNamespace

import nbformat
import numpy as np
import pandas as pd
import pytest
import taught

from memecmd_utils import retrieval
from memecmd_utils.core import paths, statistics
from memecmd_utils.evaluation import graded_turns
from memecmd_utils.retrieval import Gate, calibrate_theta0, simulate

PATH = paths.notebooks / "05b_studies.ipynb"
MEASURE = graded_turns.MEASURES.index("nDCG@5")
FORMS = {"exponential": "exponential", "linear": "linear", "none": "fixed"}


@cache
def sources(kind: str) -> tuple[str, ...]:
    cells = nbformat.read(PATH, as_version=4).cells
    return tuple(
        c.source for c in cells if c.cell_type == kind and "exercise" not in c.metadata.get("tags", [])
    )


@pytest.fixture
def by_hand() -> dict:
    """Functions and the three rises of the notebook; nothing else of it is run."""
    knobs = SimpleNamespace(threshold_penalty=1.0, threshold_decay=1.0, wanted_rate=0.3)
    known = {"pd": pd, "knobs": knobs, "rng": np.random.default_rng(0)}
    return taught.functions(*sources("code"), constants=("RISES",), **known)


@pytest.fixture(params=range(5))
def rng(request) -> np.random.Generator:
    return np.random.default_rng(request.param)


@pytest.mark.parametrize("n_memes", [3, 40])
def test_ndcg_is_the_package_s(by_hand, rng, n_memes: int) -> None:
    gains = rng.integers(0, 5, size=(30, n_memes)).astype(float)
    gains[rng.random(gains.shape) < 0.5] = np.nan
    gains[0], gains[1, 0] = 0, 4  # a turn at which nothing fits, one at which something does
    ids = [f"m{i:03}" for i in range(n_memes)]
    known = graded_turns.graded(gains, ids, ["d"] * len(gains))
    terms, weights = rng.normal(size=(4, *gains.shape)).round(1), rng.random(4)
    by_hand["terms"] = terms
    scores = by_hand["score"](weights)
    assert np.allclose(scores, retrieval.combine(terms, weights))
    rows = np.flatnonzero((np.nan_to_num(gains) >= 2).any(axis=1))
    assert rows.tolist() == known.rows.tolist()
    mine = by_hand["ndcg"](scores[rows], np.nan_to_num(gains)[rows])
    assert np.allclose(mine, known.measure(scores)[:, MEASURE])


def test_ndcg_of_no_turn_is_empty(by_hand) -> None:
    assert by_hand["ndcg"](np.ones((0, 6)), np.ones((0, 6))).shape == (0,)
    assert np.isnan(by_hand["bootstrap"](np.array([]), [])).all()


def test_the_bootstrap_is_near_the_jackknife(by_hand, rng) -> None:
    dialogues = np.repeat(np.arange(40), rng.integers(5, 20, size=40)).tolist()
    values = rng.normal(size=len(dialogues)) + rng.normal(size=40)[dialogues]
    low, high = by_hand["bootstrap"](values, dialogues)
    package = statistics.cluster_mean(values, dialogues)
    assert low < values.mean() < high
    assert (high - low) / (package.high - package.low) == pytest.approx(1, abs=0.2)


@pytest.mark.parametrize("form", FORMS)
def test_the_gate_and_its_fit_are_the_package_s(by_hand, rng, form: str) -> None:
    rise, name = by_hand["RISES"][form], FORMS[form]
    penalty, decay = (0.0 if form == "none" else 1.0), (0.25 if form == "linear" else 1.0)
    chats = [rng.normal(size=rng.integers(2, 19)).round(9) for _ in range(9)]
    chats[0][0] = -np.inf  # a turn without a usable summary
    theta0 = by_hand["fitted"](chats, rise)
    assert theta0 == pytest.approx(calibrate_theta0(chats, penalty, decay, 0.3, name), abs=1e-12)
    for chat in chats:
        sent = by_hand["gate"](chat, theta0, rise)
        assert sent == simulate(chat, Gate(theta0, penalty, decay, name)).sent.tolist()


def test_a_study_is_done_by_hand_before_the_package_does_it() -> None:
    text = "\n".join(sources("code"))
    for mine, package in (
        ("def ndcg", "studies.leave_one_out"),
        ("def fitted", "studies.threshold_tables"),
        ("np.bincount", "studies.choice_tables"),
    ):
        assert text.index(mine) < text.index(package)
        assert "assert" in text[text.index(package) :].split("plots.save", 1)[0]


def test_the_plan_is_quoted_as_it_is() -> None:
    plan = " ".join((paths.example / "STUDY_PLAN.md").read_text(encoding="utf-8").split())
    quotes = re.findall(r'"([^"]+)"', sources("markdown")[0])
    assert len(quotes) == 2 and all(quote in plan for quote in quotes)
