import numpy as np
import pandas as pd
import pytest

from memecmd_utils import judge_calibration


def test_bins_by_hand(monkeypatch) -> None:
    """p .1 .2 | .6 .8 with truth 0 1 | 1 1: means .15 and .7, shares .5 and 1."""
    monkeypatch.setattr(judge_calibration, "BINS", 2)
    p, fits = np.array([0.8, 0.1, 0.6, 0.2]), np.array([1.0, 0, 1, 1])
    rows = judge_calibration.bins(p, fits)
    assert [(r["bin"], r["items"]) for r in rows] == [(1, 2), (2, 2)]
    assert [r["mean p"] for r in rows] == pytest.approx([0.15, 0.7])
    assert [r["share that fits"] for r in rows] == [0.5, 1.0]
    # (2 * .35 + 2 * .3) / 4
    assert judge_calibration.error(p, fits) == pytest.approx(0.325)
    # (.04 + .01 + .16 + .64) / 4
    assert judge_calibration.brier(p, fits) == pytest.approx(0.2125)


def test_bins_are_equally_filled_and_weighted_by_their_items() -> None:
    rng = np.random.default_rng(1)
    p = rng.random(283)
    sizes = [row["items"] for row in judge_calibration.bins(p, np.ones(283))]
    assert sum(sizes) == 283 and len(sizes) == 10 and set(sizes) == {28, 29}
    # All fit: the error is the mean of 1 - p, whatever the bins.
    assert judge_calibration.error(p, np.ones(283)) == pytest.approx(1 - p.mean())


def test_a_calibrated_judge_has_a_small_error_and_one_turned_round_a_large_one() -> None:
    rng = np.random.default_rng(2)
    p = rng.random(20_000)
    fits = (rng.random(20_000) < p).astype(float)
    assert judge_calibration.error(p, fits) < 0.02
    assert judge_calibration.error(1 - p, fits) == pytest.approx(0.5, abs=0.03)
    assert judge_calibration.brier(p, fits) == pytest.approx(1 / 6, abs=0.01)


def test_few_and_no_items() -> None:
    one, empty = np.array([0.25]), np.array([])
    assert judge_calibration.bins(one, one * 0) == [
        {"bin": 1, "items": 1, "mean p": 0.25, "share that fits": 0.0}
    ]
    assert judge_calibration.bins(empty, empty) == []
    assert np.isnan(judge_calibration.error(empty, empty)) and np.isnan(judge_calibration.brier(empty, empty))


def test_the_figure_shows_every_judge_beside_the_diagonal() -> None:
    frame = pd.DataFrame(
        {"judge": ["甲", "甲", "乙"], "mean p": [0.1, 0.9, 0.5], "share that fits": [0.2, 0.7, 0.4]}
    )
    axes = judge_calibration.reliability_figure(frame).axes[0]
    assert [line.get_label() for line in axes.lines] == ["perfect", "甲", "乙"]
    assert axes.lines[1].get_xydata().tolist() == [[0.1, 0.2], [0.9, 0.7]]
    assert axes.get_xlim() == axes.get_ylim() == (0, 1)
    assert len(judge_calibration.reliability_figure(frame[:0]).axes[0].lines) == 1
