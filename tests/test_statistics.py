"""Streams of random numbers, intervals and p-values, coefficients; an estimate as a cell of a table."""

import json

import numpy as np
import pandas as pd
import pytest
import scipy.stats
import simulated
from simulated import World
from sklearn.metrics import cohen_kappa_score, roc_auc_score

from memecmd_utils import statistics
from memecmd_utils.statistics import COEFFICIENT, DIFFERENCE, GRADE, MEASURE, SHARE, LeftOut


def rng(seed: int = 1) -> np.random.Generator:
    return np.random.default_rng(seed)


# --- streams of random numbers


def draw(*names: str | int, seed: int = 13) -> list[int]:
    return statistics.rng(seed, *names).integers(1000, size=5).tolist()


def test_a_stream_depends_on_seed_and_names_alone() -> None:
    assert draw("news", 1) == draw("news", 1)
    others = [draw("news", 1), draw("news", 2), draw("role", 1), draw("news"), draw("news1")]
    others.append(draw("news", 1, seed=14))
    assert len({tuple(numbers) for numbers in others}) == len(others)
    assert draw("utterance", "news-sports-1", 1) == [113, 97, 101, 92, 767], "recordings hang on it"


# --- what is left out, by hand


def test_a_mean_with_each_dialogue_left_out() -> None:
    """Dialogue a has 1 and 3, b has 5: mean 9/3 = 3, without a 5, without b 2; a has two of three items."""
    found = statistics.mean(np.array([1, 3, 5]), ["a", "a", "b"])
    assert found.value == 3 and found.without.tolist() == [5, 2]
    assert found.share.tolist() == pytest.approx([2 / 3, 1 / 3])


def test_at_an_end_the_interval_is_as_wide_as_so_many_dialogues_allow() -> None:
    """Ten dialogues without a hit: with a share of 31 % that would happen once in 40 times, .69^10 = .025."""
    none = statistics.cluster_mean([0.0] * 30, [i // 3 for i in range(30)], SHARE)
    assert none.low == 0 and (1 - none.high) ** 10 == pytest.approx(0.025)
    every = statistics.cluster_mean([1.0] * 30, [i // 3 for i in range(30)], SHARE)
    assert (every.low, every.high) == pytest.approx((1 - none.high, 1))
    sure = statistics.cluster_auc([(i, 2.0) for i in range(10)], [(i, 1.0) for i in range(10)])
    assert (sure.value, sure.low, sure.high) == (1, pytest.approx(every.low), 1)


def test_dialogues_that_are_all_alike_give_no_interval() -> None:
    """Ten equal dialogues say nothing of how far the next one may lie: an interval of no width would lie."""
    for noise in (0, 1e-13):
        got = statistics.cluster_mean([0.1 + noise * i for i in range(20)], [i // 2 for i in range(20)])
        assert got.value == pytest.approx(0.1) and np.isnan([got.low, got.high]).all() and got.clusters == 10


# --- too few dialogues, differences and p-values


def test_below_six_dialogues_there_is_no_interval_and_no_p() -> None:
    """Even dialogues have the textbook interval: mean -+ t(n - 1) s / sqrt(n)."""
    for n in (1, 5, 6):
        values = np.resize([1.0, 9.0], n)
        means = statistics.cluster_mean(values, range(n))
        a = {(i, 2): value for i, value in enumerate(values)}
        tested = (statistics.paired_difference(a, dict.fromkeys(a, 0.5)),
                  statistics.unpaired_difference(a, {(i, 3): 0.01 * i for i in range(n)}))  # fmt: skip
        assert {np.isfinite(got.low) for got in (means, *tested)} == {n >= statistics.MIN_CLUSTERS}
        assert {got.p is not None for got in tested} == {n >= 6}
    half = scipy.stats.t.ppf(0.975, 5) * np.std(values, ddof=1) / np.sqrt(6)
    assert (means.low, means.high) == pytest.approx((5 - half, 5 + half))


def test_p_is_below_five_percent_where_the_interval_leaves_zero_out_and_nowhere_else() -> None:
    """Even and skewed dialogues, effects of all sizes: one method gives interval and p."""
    generator, sides = rng(), set()
    for _ in range(300):
        n, shift = int(generator.integers(6, 30)), generator.normal()
        values = shift + generator.exponential(size=n) * generator.choice([-1.0, 1.0])
        a = {(i, 2): float(value) for i, value in enumerate(values)}
        got = statistics.paired_difference(a, dict.fromkeys(a, 0.0))
        assert (got.p < 0.05) == (got.low > 0 or got.high < 0)
        sides.add((got.p < 0.05, got.value > 0))
    assert len(sides) == 4


def test_holm_by_hand() -> None:
    """.01, .04, .03 and one without: .01 * 3 = .03; .03 * 2 = .06; .04 * 1 = .04, raised to .06."""
    got = statistics.holm([0.01, 0.04, float("nan"), 0.03])
    assert got[0] == pytest.approx(0.03) and got[1] == pytest.approx(0.06) and got[3] == pytest.approx(0.06)
    assert np.isnan(got[2])
    assert statistics.holm([0.9, 0.8]) == [1.0, 1.0]


# --- do intervals hold the truth?


RARE = "grades, 90 % are 0"
QUICK = [
    World("skewed", lambda of: simulated.mean(of, "grades, 75 % are 0"), 0.3),
    World("share", lambda of: simulated.mean(of, "30% hits"), 0.3, kind=SHARE),
    World("graded null", lambda of: simulated.paired(of, RARE, RARE), 0.3, null=True),
    World("kappa", lambda of: simulated.kappa(of, 0.3), 0.3, kind=COEFFICIENT),
]
"""Of those of `make coverage`."""


@pytest.mark.parametrize("n", [6, 20])
@pytest.mark.parametrize("world", QUICK, ids=lambda world: world.what)
def test_intervals_hold_the_truth_and_p_values_are_fair(world, n) -> None:
    """At least 93 of 100 from ten dialogues on (91 with six), at most 97 where hits are not rare, and p
    <= .05 in at most 6 of 100 where there is no effect, but for the luck of so many replications."""
    held, given, small = world.coverage(n, 1000)
    slack = 0.025  # three standard errors of a share near .93 that is counted a thousand times
    assert held >= (0.93 if n >= 10 else 0.91) - slack and given > 0.9
    if n >= 10 and world.what != "graded null":
        assert held <= 0.97 + slack
    if world.null:
        assert small <= 0.06 + slack
    assert world.coverage(5, 20)[1] == 0


# --- coefficients are the libraries', and so are they without each dialogue

ITEMS = rng(2).integers(0, 4, size=(40, 2))
CLUSTERS = np.arange(40) // 4


@pytest.mark.parametrize("kind", [COEFFICIENT, MEASURE], ids=["kappa", "auc"])
def test_a_coefficient_and_its_interval_are_made_of_the_librarys_values(kind) -> None:
    def library(first: np.ndarray, second: np.ndarray) -> float:
        if kind == COEFFICIENT:
            return cohen_kappa_score(first, second, labels=range(4), weights="quadratic")
        return roc_auc_score(np.repeat([1, 0], len(first)), np.concatenate([first, second]))

    sides = (list(zip(CLUSTERS, x, strict=True)) for x in ITEMS.T)
    got = statistics.cluster_kappa(ITEMS, CLUSTERS) if kind == COEFFICIENT else statistics.cluster_auc(*sides)
    without = np.array([library(*ITEMS[i != CLUSTERS].T) for i in range(10)])
    found = LeftOut(np.asarray(library(*ITEMS.T)), without, np.full(10, 0.1))
    assert got.value == pytest.approx(float(found.value), abs=1e-12)
    assert (got.low, got.high) == pytest.approx(tuple(map(float, statistics.interval(found, kind))))
    assert np.isnan(statistics.cluster_kappa([(1, 1), (1, 1)], range(2)).value), "nothing varies"


# --- an estimate as a cell


@pytest.mark.parametrize(
    ("kind", "ends", "shown"),
    [
        (SHARE, (0.2, 0.126, 0.3), "20% [13, 30]"),
        (DIFFERENCE, (0.1234, -0.1, 0.35), "+0.12 [-0.10, +0.35]"),
        (GRADE, (1.5, np.nan, np.nan), "1.50"),
        (COEFFICIENT, (np.nan, np.nan, np.nan), "–"),
        (DIFFERENCE, (-0.001, -0.2, 0.2), "+0.00 [-0.20, +0.20]"),
    ],
)
def test_an_estimate_prints_itself_by_its_kind_and_is_written_as_json_and_csv(kind, ends, shown) -> None:
    one = statistics.Estimate(*ends, kind=kind)
    assert str(one) == shown
    table = pd.DataFrame({"who": ["a", "b"], "x": [one, None], "n": [1, 2]})
    text = json.dumps({"rows": table[:1]}, default=statistics.as_json)
    (row,) = json.loads(text, object_hook=statistics.from_json)["rows"]
    assert str(row["x"]) == shown and row["x"].kind == kind and "NaN" not in text
    flat = statistics.flat(table)
    assert list(flat.columns) == ["who", "x", "x low", "x high", "n"] and np.isnan(flat["x"][1])
    assert flat.loc[0, ["x", "x low", "x high"]].astype(float).tolist() == pytest.approx(ends, nan_ok=True)


# --- Krippendorff's alpha

_ = np.nan
# Krippendorff (2011), "Computing Krippendorff's Alpha-Reliability", part C: 4 observers, 12 units.
PUBLISHED = np.array(
    [
        [1, 2, 3, 3, 2, 1, 4, 1, 2, _, _, _],
        [1, 2, 3, 3, 2, 2, 4, 1, 2, 5, _, 3],
        [_, 3, 3, 3, 2, 3, 4, 2, 2, 5, 1, _],
        [1, 2, 3, 3, 2, 4, 4, 1, 2, 5, 1, _],
    ]
)


def alpha(values: np.ndarray) -> float:
    return statistics.cluster_alpha(values, range(values.shape[1])).value


def test_the_published_example_of_alpha_also_far_from_zero() -> None:
    assert alpha(PUBLISHED) == pytest.approx(0.849, abs=0.0005)
    assert alpha(PUBLISHED + 1e7) == pytest.approx(alpha(PUBLISHED))
    once = rng().integers(0, 101, size=400).astype(float)
    assert alpha(np.stack([once, once, once])) == pytest.approx(1)
    nothing = np.empty((0, 3)), np.full((2, 3), _), np.full((2, 3), 50.0), once[None]
    assert all(np.isnan(alpha(values)) for values in nothing), "where it is not defined"
