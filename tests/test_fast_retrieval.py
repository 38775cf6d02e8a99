import numpy as np
import pytest
import study_world

from memecmd_utils import fast_retrieval, ground_truth, retrieval_evaluation, retrieval_systems, statistics
from memecmd_utils.ground_truth import Relevance

AT = [retrieval_evaluation.COLUMNS.index(name) for name in fast_retrieval.MEASURES]


def as_relevance(gains: np.ndarray, ids: list[str]) -> Relevance:
    return {
        ("d", row): {ids[j]: int(gains[row, j]) for j in np.flatnonzero(np.isfinite(gains[row]))}
        for row in range(len(gains))
    }


def trec_eval(
    scores: np.ndarray, gains: np.ndarray, ids: list[str], rows: np.ndarray, level: int
) -> np.ndarray:
    order = retrieval_systems.order(scores, ids)[rows]
    keys = [("d", int(row)) for row in rows]
    return retrieval_evaluation.per_turn(
        retrieval_evaluation.ranking(order, ids, keys), as_relevance(gains, ids), level
    )[:, AT]


@pytest.mark.parametrize("memes", [1, 3, 5, 6, 40])
@pytest.mark.parametrize("level", [2, 3])
@pytest.mark.parametrize("digits", [0, 1, 12])  # few digits: most scores are equal
def test_the_values_are_those_of_trec_eval(memes: int, level: int, digits: int) -> None:
    rng = np.random.default_rng([memes, level, digits])
    gains = rng.integers(0, 5, (60, memes)).astype(float)
    gains[rng.random(gains.shape) < 0.4] = np.nan
    scores = rng.normal(size=gains.shape).round(digits)
    ids = [f"m{i}" for i in rng.permutation(memes)]  # m10 comes before m9
    known = fast_retrieval.graded(gains, ids, ["d"] * len(gains), level)
    assert (np.nanmax(np.nan_to_num(gains), axis=1) >= level).nonzero()[0].tolist() == known.rows.tolist()
    wanted = trec_eval(scores, gains, ids, known.rows, level)
    assert np.abs(known.measure(scores) - wanted).max() < 1e-9
    assert len(known.rows) > 10 and known.clusters == ["d"] * len(known.rows)


def test_the_values_are_those_of_trec_eval_on_the_example() -> None:
    relevant: Relevance = ground_truth.relevance(ground_truth.load().grades)
    keys = sorted(relevant)
    ids = sorted({meme for of in relevant.values() for meme in of})
    gains = np.array([[relevant[key].get(meme, np.nan) for meme in ids] for key in keys])
    known = fast_retrieval.graded(gains, ids, [name for name, _ in keys])
    scores = np.random.default_rng(1).normal(size=gains.shape) + np.nan_to_num(gains)
    order = retrieval_systems.order(scores, ids)[known.rows]
    wanted = retrieval_evaluation.per_turn(
        retrieval_evaluation.ranking(order, ids, [keys[i] for i in known.rows]), relevant
    )[:, AT]
    assert len(known.rows) > 700 and 0.2 < wanted[:, 1].mean() < 0.99
    assert np.abs(known.measure(scores) - wanted).max() < 1e-9


def test_without_ungraded_memes_the_ranking_closes_up() -> None:
    gains = np.array([[np.nan, 4.0, 0.0, np.nan, 2.0]])
    known = fast_retrieval.graded(gains, list("abcde"), ["d"])
    scores = np.array([[5.0, 4.0, 3.0, 2.0, 1.0]])
    ideal = 4 + 2 / np.log2(3)
    hit, ndcg, judged = known.measure(scores)[0]
    assert (hit, judged) == (0, 0.6) and ndcg == pytest.approx((4 / np.log2(3) + 2 / np.log2(6)) / ideal)
    hit, ndcg, judged = known.measure(scores, judged_only=True)[0]
    # Only three are left: b, c, e; nothing is counted twice.
    assert (hit, judged) == (1, 1) and ndcg == pytest.approx((4 + 2 / np.log2(4)) / ideal)


def test_without_grades_nothing_is_measured() -> None:
    data = study_world.world(graded=False)
    known = fast_retrieval.of_study(data)
    scores = np.zeros((len(data.asked), len(data.meme_ids)))
    assert known.measure(scores).shape == (0, 3) and known.clusters == []
    empty = statistics.column_means(known.measure(scores), [])
    assert [got.n for got in empty] == [0, 0, 0] and np.isnan(empty[0].mean)


def test_the_weighted_sum_is_the_score() -> None:
    terms = np.random.default_rng(0).normal(size=(4, 3, 5))
    assert np.allclose(fast_retrieval.weighted(terms, (1, 2, 3, 4)), np.tensordot([1, 2, 3, 4], terms, 1))


def test_folds_fit_on_the_other_half_or_on_themselves() -> None:
    both = [(r.tolist(), f.tolist(), n) for r, f, n in fast_retrieval.folds(np.array(list("aba")))]
    assert both == [([0, 2], [1], "b"), ([1], [0, 2], "a")]
    alone = [(r.tolist(), f.tolist(), n) for r, f, n in fast_retrieval.folds(np.array(list("bb")))]
    assert alone == [([0, 1], [0, 1], "self")]
    assert list(fast_retrieval.folds(np.array([]))) == []


def test_means_are_over_dialogues_and_pair_the_columns() -> None:
    clusters = [f"d{i // 10}" for i in range(80)]
    effect = np.repeat(np.random.default_rng(0).normal(size=8), 10)  # dialogues differ, turns of one do not
    values = np.column_stack([effect, effect + 1, np.ones(80)])
    first, second, level = statistics.column_means(values, clusters)
    assert first.mean == pytest.approx(effect.mean()) and second.low - first.low == pytest.approx(1)
    assert level.mean == 1 and np.isnan(level.low) and first.clusters == 8
    share = statistics.column_means(values[:, 2:], clusters, (0.0, 1.0))[0]
    assert share.high == 1 and 0.5 < share.low < 1
    assert first.high - first.low > 3 * 1.96 * effect.std() / np.sqrt(80) / 2
    few = statistics.column_means(values[:20], clusters[:20])[0]
    assert np.isfinite(few.mean) and np.isnan(few.low)
