import numpy as np
import pytest
import study_world

from memecmd_utils.core import statistics
from memecmd_utils.evaluation import graded_turns, rankings
from memecmd_utils.evaluation.ground_truth import Relevance
from memecmd_utils.retrieval import scoring

AT = [rankings.COLUMNS.index(name) for name in graded_turns.MEASURES]


def as_relevance(gains: np.ndarray, ids: list[str]) -> Relevance:
    return {
        ("d", row): {ids[j]: int(gains[row, j]) for j in np.flatnonzero(np.isfinite(gains[row]))}
        for row in range(len(gains))
    }


def trec_eval(
    scores: np.ndarray, gains: np.ndarray, ids: list[str], rows: np.ndarray, level: int
) -> np.ndarray:
    order = scoring.order(scores, ids)[rows]
    keys = [("d", int(row)) for row in rows]
    return rankings.per_turn(rankings.ranking(order, ids, keys), as_relevance(gains, ids), level)[:, AT]


@pytest.mark.parametrize("memes", [1, 3, 5, 6, 40])
@pytest.mark.parametrize("level", [2, 3])
@pytest.mark.parametrize("digits", [0, 1, 12])  # few digits: most scores are equal
def test_the_values_are_those_of_trec_eval(memes: int, level: int, digits: int) -> None:
    rng = np.random.default_rng([memes, level, digits])
    gains = rng.integers(0, 5, (60, memes)).astype(float)
    gains[rng.random(gains.shape) < 0.4] = np.nan
    scores = rng.normal(size=gains.shape).round(digits)
    ids = [f"m{i}" for i in rng.permutation(memes)]  # m10 comes before m9
    known = graded_turns.graded(gains, ids, ["d"] * len(gains), level)
    assert (np.nanmax(np.nan_to_num(gains), axis=1) >= level).nonzero()[0].tolist() == known.rows.tolist()
    wanted = trec_eval(scores, gains, ids, known.rows, level)
    assert np.abs(known.measure(scores) - wanted).max() < 1e-9
    assert len(known.rows) > 10 and known.clusters == ["d"] * len(known.rows)


def test_without_ungraded_memes_the_ranking_closes_up() -> None:
    gains = np.array([[np.nan, 4.0, 0.0, np.nan, 2.0]])
    known = graded_turns.graded(gains, list("abcde"), ["d"])
    scores = np.array([[5.0, 4.0, 3.0, 2.0, 1.0]])
    ideal = 4 + 2 / np.log2(3)
    hit, ndcg, judged = known.measure(scores)[0]
    assert (hit, judged) == (0, 0.6) and ndcg == pytest.approx((4 / np.log2(3) + 2 / np.log2(6)) / ideal)
    hit, ndcg, judged = known.measure(scores, judged_only=True)[0]
    # Only three are left: b, c, e; nothing is counted twice.
    assert (hit, judged) == (1, 1) and ndcg == pytest.approx((4 + 2 / np.log2(4)) / ideal)


def test_without_grades_nothing_is_measured() -> None:
    data = study_world.world(graded=False)
    known = graded_turns.graded_of_study(data)
    scores = np.zeros((len(data.asked), len(data.meme_ids)))
    assert known.measure(scores).shape == (0, 3) and known.clusters == []
    empty = statistics.column_means(known.measure(scores), [])
    assert [got.n for got in empty] == [0, 0, 0] and np.isnan(empty[0].mean)


def test_folds_fit_on_the_other_half_or_on_themselves() -> None:
    both = [(r.tolist(), f.tolist(), n) for r, f, n in graded_turns.folds(np.array(list("aba")))]
    assert both == [([0, 2], [1], "b"), ([1], [0, 2], "a")]
    alone = [(r.tolist(), f.tolist(), n) for r, f, n in graded_turns.folds(np.array(list("bb")))]
    assert alone == [([0, 1], [0, 1], "self")]
    assert list(graded_turns.folds(np.array([]))) == []
