import numpy as np
import pytest
from made_studies import study

from memecmd_utils import resampling, seeds, statistics
from memecmd_utils.resampling import Resamples

TWO = Resamples(("a", "b"), np.array([[1.0, 1.0], [2.0, 0.0], [0.0, 2.0]]))


def test_ratios_by_hand() -> None:
    """Dialogue a: 3 of 4, b: 1 of 1. Both once: 4/5; a twice: 6/8; b twice: 2/2."""
    top, bottom = np.array([[3.0], [1.0]]), np.array([[4.0], [1.0]])
    assert TWO.ratio(top, bottom)[:, 0].tolist() == [0.8, 0.75, 1.0]
    assert resampling.ratio(top, bottom).tolist() == [0.8]
    assert np.isnan(resampling.ratio(0 * top, 0 * bottom)).all()


def test_sums_go_to_their_dialogue() -> None:
    found = TWO.sums(np.array([[1.0], [2.0], [5.0]]), ["b", "a", "b"])
    assert found.tolist() == [[2.0], [6.0]]


def test_some_of_the_dialogues_keep_their_draws() -> None:
    only = TWO.only(np.array([False, True]))
    assert only.names == ("b",) and only.times.ravel().tolist() == [1.0, 0.0, 2.0]


def test_draws_are_those_of_the_statistics_module() -> None:
    """The same stream gives the same resamples as `cluster_draws`: a mean is the ratio of sum and count."""
    data = study()
    values = np.random.default_rng(0).random((len(data.asked), 2))
    rng = seeds.rng(data.profile.seed, "bootstrap", "x")
    expected = statistics.cluster_draws(values, data.clusters, rng, data.profile.bootstrap_samples)
    drawn = resampling.resamples(data, "x")
    counts = drawn.sums(np.ones((len(values), 2)), data.clusters)
    found = drawn.estimates(drawn.sums(values, data.clusters), counts)
    assert drawn.ratio(drawn.sums(values, data.clusters), counts) == pytest.approx(expected)
    assert found[0] == pytest.approx(values.mean(axis=0))
    assert found[1:] == pytest.approx(np.quantile(expected, (0.025, 0.975), axis=0))


def test_differences_are_paired() -> None:
    """A ratio minus itself is 0 in every draw, however much the dialogues differ."""
    drawn = resampling.resamples(study(), "x")
    sums = np.random.default_rng(1).random((2, len(drawn.names), 600)) + 0.1
    assert not drawn.differences((sums[0], sums[1]), (sums[0], sums[1])).any()
    found = drawn.differences((sums[0], sums[1]), (sums[0] * 2, sums[1]))
    assert (found[1] < found[0]).all() and (found[2] < 0).all()


def test_few_dialogues_have_no_interval() -> None:
    drawn = resampling.resamples(study(n_dialogues=4), "x")
    ones = np.ones((4, 1))
    assert np.isnan(drawn.estimates(ones, ones)[1:]).all() and drawn.estimates(ones, ones)[0] == 1


def test_an_interval_leaves_out_draws_without_a_meme() -> None:
    draws = np.column_stack([np.arange(101.0), np.full(101, np.nan), np.r_[np.nan, np.arange(100.0)]])
    found = resampling.interval(draws)
    assert found[:, 0].tolist() == [2.5, 97.5] and np.isnan(found[:, 1]).all()
    assert found[:, 2] == pytest.approx([2.475, 96.525])
    assert resampling.interval(np.empty((5, 0))).shape == (2, 0)


def test_the_last_digits_do_not_make_a_difference_clear() -> None:
    low, high = resampling.interval(np.full((9, 1), 1e-13))[:, 0]
    assert not resampling.clear(low, high) and resampling.clear(0.1, 0.2) and resampling.clear(-2, -1)
    assert not resampling.clear(np.nan, np.nan)


def test_numbers_in_words() -> None:
    row = {"mean": -0.001, "low": -0.2, "high": 0.1}
    assert resampling.said(row) == "+0.00 [-0.20, +0.10]" and resampling.verdict(row) == "not clear"
    assert resampling.said(row, 3) == "-0.001 [-0.200, +0.100]"
    lonely = {"mean": 1.0, "low": np.nan, "high": np.nan}
    assert (resampling.said(lonely), resampling.verdict(lonely)) == ("+1.00", "no interval")
    assert resampling.said({**lonely, "mean": np.nan}) == "–"
    assert resampling.verdict({"low": 0.1, "high": 0.2}) == "clear"
