import numpy as np
import pytest
import scipy.stats
import study_world

from memecmd_utils import fast_retrieval, hub_counts
from memecmd_utils.hub_counts import ALL, GATE, GRADED


def test_skewness_is_the_usual_one() -> None:
    counts = np.random.default_rng(0).poisson(2, size=(4, 50)).astype(float)
    assert np.allclose(hub_counts.skewness(counts), scipy.stats.skew(counts, axis=1))
    assert np.allclose(hub_counts.skewness(counts / 7), hub_counts.skewness(counts))
    assert np.isnan(hub_counts.skewness(np.ones(5)))


def test_a_repeat_is_one_of_the_same_dialogue() -> None:
    memes = np.array([1, 2, 1, 1, 1, 2, 2])
    clusters = ["a", "a", "a", "a", "b", "b", "b"]
    assert hub_counts.repeated(memes, clusters).tolist() == [False, False, True, True, False, False, True]


def test_the_interval_of_a_skewness_holds_the_estimate() -> None:
    rng = np.random.default_rng(0)
    draws = rng.normal(2.0, 0.1, 400)
    got = hub_counts.moved(1.0, draws, 9, 20)
    assert got.low < got.mean == 1.0 < got.high and got.high - got.low == pytest.approx(0.4, abs=0.06)
    assert np.isnan(hub_counts.moved(1.0, draws, 9, 3).low)  # too few dialogues
    assert np.isnan(hub_counts.moved(np.nan, np.full(5, np.nan), 9, 20).high)


def test_what_is_counted_of_a_ranking() -> None:
    data = study_world.world(dialogues=6, turns=7, memes=9)
    turns = hub_counts.Turns(data)
    assert [len(turns.rows[group]) for group in (ALL, GATE)] == [36, 12]
    assert turns.clusters[GATE][:3] == ["d00", "d00", "d01"]
    scores = np.zeros((36, 9))
    scores[:, 4] = 1.0  # the same meme everywhere
    found = turns.count(scores)
    assert found.best[:, 0].tolist() == [4] * 36 and found.best[0, 1:3].tolist() == [0, 1]
    assert found.n_k(1).tolist() == [0, 0, 0, 0, 36, 0, 0, 0, 0] and found.n_k(5).sum() == 180
    assert found.n_k(1, np.array([0, 1])).sum() == 2
    assert found.values[ALL][:, 0].sum() == 30 and found.values[GATE][:, 0].sum() == 6
    known = fast_retrieval.of_study(data)
    assert np.array_equal(found.values[GRADED][:, :3], known.measure(scores))
    assert np.array_equal(found.values[GRADED][:, 3], known.measure(scores, judged_only=True)[:, 1])
    assert found.draws.shape == (data.profile.bootstrap_samples,)
    # However dialogues are drawn, one meme takes all.
    assert np.allclose(found.draws, hub_counts.skewness(found.n_k(1)))


def test_dialogues_are_resampled_not_turns() -> None:
    data = study_world.world(dialogues=20, turns=11, memes=20)
    turns = hub_counts.Turns(data)
    of_dialogue = np.zeros((200, 20))
    of_dialogue[np.arange(200), np.arange(200) // 10] = 1.0  # a meme of its own for every dialogue
    mixed = np.zeros((200, 20))
    mixed[np.arange(200), np.arange(200) % 20] = 1.0
    bound, free = turns.count(of_dialogue), turns.count(mixed)
    assert bound.n_k(1).tolist() == free.n_k(1).tolist() == [10] * 20
    # Mixed, a dialogue gives its turns to ten memes alike: drawn as a whole, two equal groups of ten remain.
    assert np.nanmean(bound.draws) > 0.5 and np.nanmedian(np.abs(free.draws)) < 1e-6
