import numpy as np
import pytest
import scipy.stats
import study_world

from memecmd_utils.core import statistics
from memecmd_utils.core.statistics import LeftOut
from memecmd_utils.evaluation import graded_turns
from memecmd_utils.studies import hubness
from memecmd_utils.studies.hubness import ALL, GATE, GRADED


def test_skewness_is_the_usual_one() -> None:
    counts = np.random.default_rng(0).poisson(2, size=(4, 50)).astype(float)
    assert np.allclose(hubness.skewness(counts), scipy.stats.skew(counts, axis=1))
    assert np.allclose(hubness.skewness(counts / 7), hubness.skewness(counts))
    assert np.isnan(hubness.skewness(np.ones(5)))


@pytest.mark.parametrize("dialogues", [10, 30])
def test_the_interval_of_a_skewness_covers_as_it_says(dialogues) -> None:
    """Memes of uneven popularity, which differs by dialogue; the truth is the mean skewness."""
    rng, found = np.random.default_rng(1), []
    popular = rng.gamma(0.5, size=25)
    for _ in range(200):
        tastes = popular * rng.gamma(1.0, size=(dialogues, 25))
        counts = np.array([rng.multinomial(17, taste / taste.sum()) for taste in tastes])
        total = counts.sum(axis=0)
        without = hubness.skewness((total - counts).astype(float))
        share = np.full(dialogues, 1 / dialogues)
        found.append(LeftOut(hubness.skewness(total.astype(float)), without, share))
    truth = np.mean([one.value for one in found])
    held = [low <= truth <= high for low, high in map(statistics.interval, found)]
    assert np.mean(held) >= 0.93 - 3 * np.sqrt(0.93 * 0.07 / 200)


def test_what_is_counted_of_a_ranking() -> None:
    data = study_world.world(dialogues=6, turns=7, memes=9)
    turns = hubness.Turns(data)
    assert [len(turns.rows[group]) for group in (ALL, GATE)] == [36, 12]
    assert turns.clusters[GATE][:3] == ["d00", "d00", "d01"]
    scores = np.zeros((36, 9))
    scores[:, 4] = 1.0  # the same meme everywhere
    found = turns.count(scores)
    assert found.best[:, 0].tolist() == [4] * 36 and found.best[0, 1:3].tolist() == [0, 1]
    assert found.n_k(1).tolist() == [0, 0, 0, 0, 36, 0, 0, 0, 0] and found.n_k(5).sum() == 180
    assert found.n_k(1, np.array([0, 1])).sum() == 2
    assert found.values[ALL][:, 0].sum() == 30 and found.values[GATE][:, 0].sum() == 6
    known = graded_turns.graded_of_study(data)
    assert np.array_equal(found.values[GRADED][:, :3], known.measure(scores))
    assert np.array_equal(found.values[GRADED][:, 3], known.measure(scores, judged_only=True)[:, 1])
    # Whichever dialogue is left out, one meme takes all.
    assert np.allclose(found.skewness.without, hubness.skewness(found.n_k(1)))
    assert found.skewness.value == hubness.skewness(found.n_k(1)) and found.skewness.clusters == 6


def test_dialogues_are_left_out_not_turns() -> None:
    data = study_world.world(dialogues=20, turns=11, memes=20)
    turns = hubness.Turns(data)
    of_dialogue = np.zeros((200, 20))
    of_dialogue[np.arange(200), np.arange(200) // 10] = 1.0  # a meme of its own for every dialogue
    mixed = np.zeros((200, 20))
    mixed[np.arange(200), np.arange(200) % 20] = 1.0
    bound, free = turns.count(of_dialogue), turns.count(mixed)
    assert bound.n_k(1).tolist() == free.n_k(1).tolist() == [10] * 20
    # Without its dialogue one meme is left without a turn; mixed, ten of twenty memes lose one turn each.
    alone = scipy.stats.skew([0.0] + [10.0] * 19)
    assert np.allclose(bound.skewness.without, alone) and np.allclose(free.skewness.without, 0)
