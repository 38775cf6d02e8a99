"""The functions that notebook 08 writes by hand do what the package and SciPy do."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import taught
from scipy import special

from memecmd_utils.files import paths
from memecmd_utils.mtrclip import recall as mtrclip_recall


@pytest.fixture(scope="module")
def lesson() -> SimpleNamespace:
    cells = json.loads((paths.notebooks / "08_meme_text_retrieval.ipynb").read_text(encoding="utf-8"))[
        "cells"
    ]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    return SimpleNamespace(**taught.functions(*code))


@pytest.fixture
def sides() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(5)
    return rng.normal(size=(12, 7)), rng.normal(size=(12, 7))


def test_recall_is_that_of_the_package(lesson: SimpleNamespace, sides: tuple) -> None:
    items = [
        mtrclip_recall.RetrievalItem(str(i), paths.data / str(i), "", {"title": [str(i)]}) for i in range(12)
    ]
    pairs = mtrclip_recall.gallery(items, "title")
    ranks = mtrclip_recall.rank_all(*sides, pairs)["pair", "T2M"]
    for k in (1, 3, 10):
        assert lesson.recall(*sides, k) == pytest.approx(ranks.hits(k).mean())


def loss(texts: np.ndarray, pictures: np.ndarray, tau: float = 0.1) -> float:
    units = [side / np.linalg.norm(side, axis=1, keepdims=True) for side in (texts, pictures)]
    logits = units[0] @ units[1].T / tau
    return -np.mean([np.diag(special.log_softmax(logits, axis=axis)).mean() for axis in (0, 1)])


def test_the_loss_is_that_of_two_softmaxes(lesson: SimpleNamespace, sides: tuple) -> None:
    assert lesson.contrastive_loss(*sides) == pytest.approx(loss(*sides))
    equal = np.ones((9, 3))
    assert lesson.contrastive_loss(equal, equal) == pytest.approx(np.log(9))


@pytest.mark.parametrize("batch", [4, 12])
def test_the_gradient_is_that_of_the_loss(lesson: SimpleNamespace, sides: tuple, batch: int) -> None:
    def mean_loss(texts: np.ndarray, pictures: np.ndarray) -> float:
        parts = (side.reshape(-1, batch, 7) for side in (texts, pictures))
        return float(np.mean([loss(*part) for part in zip(*parts, strict=True)]))

    found = lesson.loss_gradient(*(side.reshape(-1, batch, 7) for side in sides))
    for which, gradient in enumerate(found):
        for place in ((0, 0), (5, 3), (11, 6)):
            steps = []
            for step in (1e-5, -1e-5):
                moved = [side.copy() for side in sides]
                moved[which][place] += step
                steps.append(mean_loss(*moved))
            slope = (steps[0] - steps[1]) / 2e-5
            assert gradient.reshape(12, 7)[place] == pytest.approx(slope, rel=1e-4, abs=1e-8)


def test_larger_batches_teach_more_in_every_world(lesson: SimpleNamespace) -> None:
    for seed in (1, 2, 3):
        few, all_of_them = (lesson.train(batch, seed)[0] for batch in (2, 128))
        assert all_of_them > few + 0.1
