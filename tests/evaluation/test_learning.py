"""Learned placement on made-up turns: it finds what is there, and sees nothing of what it predicts."""

import dataclasses

import numpy as np
import pytest

from memecmd_utils import grades, retrieval
from memecmd_utils.evaluation import learning
from memecmd_utils.evaluation.learning import Choice, Corpus, Examples
from memecmd_utils.grades import Query
from memecmd_utils.schemas import Dialogue, Summary, Turn

DIMS, TURNS, MEMES = (6, 4), 5, 24


def made_dialogue(number: int) -> Dialogue:
    name, kind = f"d{number:02}", ("news", "role")[number % 2]
    turns = [Turn(turn=t, speaker="AB"[(t + 1) % 2], text=f"{t}", source="made") for t in range(1, TURNS + 2)]
    summaries = [
        Summary(turn=t.turn, speaker=t.speaker, scenario="", emotion="", motivation="", source="made")
        for t in turns[1:]
    ]
    return Dialogue(
        dialogue_id=name, kind=kind, ref="r", title="t", name_a="", name_b="", turns=turns,
        summaries=summaries, complete=True, source="made",
    )  # fmt: skip


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    """Emotion meets emotion decides which meme fits; the first number of S decides whether one is wanted."""
    rng = np.random.default_rng(0)
    asked = [Query(d, s.turn) for d in map(made_dialogue, range(20)) for s in d.summaries]

    def units(rows: int, dim: int) -> np.ndarray:
        vectors = rng.normal(size=(rows, 6, dim))
        return (vectors / np.linalg.norm(vectors, axis=2, keepdims=True)).astype(np.float32)

    turns, memes = ([units(n, dim) for dim in DIMS] for n in (len(asked), MEMES))
    fits = turns[0][:, 1] @ memes[0][:, 2].T + rng.normal(scale=0.1, size=(len(asked), MEMES))
    gains = np.digitize(fits, [0.3, 0.45, 0.6, 0.8]).astype(float)
    gains[rng.random(gains.shape) < 0.3] = np.nan
    wanted = turns[0][:, 0, 0] + rng.normal(scale=0.1, size=len(asked)) > 0
    marks = np.stack([wanted, wanted ^ (rng.random(len(asked)) < 0.05)], axis=1).astype(int)
    return Corpus(asked, [f"m{m:02}" for m in range(MEMES)], turns, memes, gains, marks)


def ndcg(scores: np.ndarray, gains: np.ndarray) -> float:
    known = (np.nan_to_num(gains) >= 2).any(axis=1)
    best = retrieval.best_memes(scores[known], [f"m{m:02}" for m in range(MEMES)], 5)
    return grades.ndcg(best, gains[known]).mean()


PLANNED = list(learning.CHOICES)


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many trees and choices as made-up turns need."""
    monkeypatch.setattr(learning, "TREES", 20)
    monkeypatch.setattr(learning, "CHOICES", [Choice(3.0, 2, 0.0), Choice(30.0, 6, 0.0), Choice(3.0, 6, 0.3)])
    monkeypatch.setattr(learning, "GATE_STRENGTHS", (0.1, 1.0))


def test_trees_are_those_of_scikit_learn(corpus: Corpus) -> None:
    from sklearn.ensemble import HistGradientBoostingRegressor

    gains = corpus.gains.copy()
    gains[np.isnan(gains)] = 0  # all are graded, so all weigh alike
    trees = learning.fit_trees(dataclasses.replace(corpus.examples, gains=gains))
    pairs = corpus.examples.cosines.reshape(gains.size, -1)
    plain = HistGradientBoostingRegressor(
        max_leaf_nodes=learning.LEAVES, max_iter=20, learning_rate=0.1, l2_regularization=1.0,
        max_bins=learning.BINS, early_stopping=False, random_state=0,
    ).fit(pairs, gains.ravel(), np.ones(gains.size))  # fmt: skip
    assert np.allclose(trees.predict(pairs), plain.predict(pairs), atol=1e-4)


def test_ridge_is_that_of_scikit_learn_on_differences_within_turns(corpus: Corpus) -> None:
    from sklearn.linear_model import Ridge

    examples = corpus.examples
    x, y, weights = [], [], []
    for row, gains in enumerate(examples.gains):
        w = np.where(np.isnan(gains), 0.3, 1.0)
        features, target = examples.cosines[row].reshape(MEMES, -1).astype(float), np.nan_to_num(gains)
        x.append(features - np.average(features, axis=0, weights=w))
        y.append(target - np.average(target, weights=w))
        weights.append(w)
    plain = Ridge(alpha=10, fit_intercept=False).fit(np.vstack(x), np.hstack(y), np.hstack(weights))
    found = learning.solve(learning.sum_up(examples, 0.3), 10, rank=6)
    assert np.allclose(found.weights.ravel(), plain.coef_, atol=1e-5)


def test_a_rank_is_kept(corpus: Corpus) -> None:
    sums = learning.sum_up(corpus.examples, 0)
    assert [np.linalg.matrix_rank(w) for w in learning.solve(sums, 1, rank=2).weights] == [2, 2]


def test_out_of_fold_it_finds_what_is_there(corpus: Corpus) -> None:
    placement = learning.learn(corpus, ["one", "other"])
    found = learning.predict(corpus, placement)
    assert ndcg(found.scores, corpus.gains) > 0.8
    assert ndcg(np.random.default_rng(1).random(found.scores.shape), corpus.gains) < 0.4
    both, none = corpus.marks.sum(axis=1) == 2, corpus.marks.sum(axis=1) == 0
    assert (found.wanted[both][:, None] > found.wanted[none]).mean() > 0.85
    weights = placement.model.ranker.weights[0]
    assert np.unravel_index(np.abs(weights).argmax(), weights.shape) == (
        1,
        2,
    )  # E of the turn meets E of the meme
    groups = np.arange(MEMES) % 5
    assert ndcg(learning.predict_new_memes(corpus, groups), corpus.gains) > 0.75


def test_shuffled_grades_give_no_gain(corpus: Corpus) -> None:
    rng = np.random.default_rng(2)
    shuffled = dataclasses.replace(corpus, gains=rng.permuted(corpus.gains, axis=1))
    found = learning.predict(shuffled, learning.learn(shuffled, ["one", "other"]))
    assert ndcg(found.scores, corpus.gains) < 0.4


def test_no_grade_and_no_mark_of_a_dialogue_has_a_part_in_what_is_said_of_it(corpus: Corpus) -> None:
    rows = np.array(corpus.dialogues) == "d03"
    gains, marks = corpus.gains.copy(), corpus.marks.copy()
    gains[rows], marks[rows] = 4 - gains[rows], 1 - marks[rows]
    changed = dataclasses.replace(corpus, gains=gains, marks=marks)
    before, after = (learning.predict(c, learning.learn(c, ["one", "other"])) for c in (corpus, changed))
    for one, other in zip(before, after, strict=True):
        assert np.array_equal(one[rows], other[rows])
        assert not np.allclose(one[~rows], other[~rows])


def test_no_grade_of_a_meme_has_a_part_in_its_score_among_new_memes(corpus: Corpus) -> None:
    groups = np.arange(MEMES) % 3
    gains = corpus.gains.copy()
    gains[:, groups == 1] = 4 - gains[:, groups == 1]
    before, after = (
        learning.predict_new_memes(c, groups) for c in (corpus, dataclasses.replace(corpus, gains=gains))
    )
    assert np.array_equal(before[:, groups == 1], after[:, groups == 1])
    assert not np.allclose(before[:, groups == 0], after[:, groups == 0])


def test_folds_are_dealt_by_dialogue_and_kind(corpus: Corpus) -> None:
    fold = learning.deal(corpus.dialogues, corpus.kinds, 5)
    by_dialogue = dict(zip(corpus.dialogues, fold, strict=True))
    assert len(set(zip(corpus.dialogues, fold, strict=True))) == 20  # whole dialogues
    assert [by_dialogue[f"d{n:02}"] for n in range(0, 20, 2)] == [0, 1, 2, 3, 4] * 2


def test_a_choice_is_one_of_those_planned(corpus: Corpus) -> None:
    examples: Examples = corpus.examples
    assert learning.choose(examples.rows(np.arange(60))) in learning.CHOICES
    assert set(learning.CHOICES) <= set(PLANNED)
