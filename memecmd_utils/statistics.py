"""Means, differences and coefficients with intervals and p-values that few dialogues can bear.

Turns of one dialogue share speakers, topic and retrieval quality, so dialogues count, not turns. Every
interval is made of the same few things (`LeftOut`): the estimate, the estimate without each dialogue, and the
share of the items that each dialogue has. Nothing is drawn at random, save signs for the p-value of many
dialogues. Which form of interval keeps its promise was decided by simulation (`reports/coverage.md`).
"""

import hashlib
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np


def rng(seed: int, *names: str | int) -> np.random.Generator:
    """Generator of random numbers for `names` under the run's `seed`.

    A stream depends on its names alone, so a new dialogue or strategy does not shift the others.
    """
    digest = hashlib.sha256("\x1f".join(map(str, (seed, *names))).encode()).digest()
    return np.random.default_rng(int.from_bytes(digest[:16], "big"))


MIN_CLUSTERS = 6
"""Fewest dialogues with an interval, a p-value or the word "clearly": from there on the simulated intervals
hold (`reports/coverage.md`)."""
TAIL = 0.025
"""Left out on either side of an interval: 95 % remain."""
DIGITS = 9
"""Of means and ends of intervals where many are compared with 0: what lies beyond is rounding."""
NOTHING = 1e-9
"""Spread, relative to the values, below which dialogues are all alike."""
SHARE = (0.0, 1.0)
COEFFICIENT = (-1.0, 1.0)
"""Smallest and largest possible value of a share (also of AUC and nDCG), and of kappa, alpha and rho."""

Bounds = tuple[float, float] | None


@dataclass(frozen=True)
class Estimate:
    """A mean (or difference, or AUC) with its 95 % interval, p-value of 'no effect', items and dialogues."""

    mean: float
    low: float
    high: float
    n: int
    p: float | None = None
    clusters: int = 0

    def row(self) -> dict[str, float | int]:
        """As cells of a table: mean, low, high, n, dialogues."""
        ends = {"mean": self.mean, "low": self.low, "high": self.high}
        return {**ends, "n": self.n, "dialogues": self.clusters}

    def columns(self, name: str) -> dict[str, float]:
        """As three columns of a table: `name`, `name low`, `name high`."""
        return {name: self.mean, f"{name} low": self.low, f"{name} high": self.high}


EMPTY = Estimate(float("nan"), float("nan"), float("nan"), 0)


# --- what all intervals are made of


class LeftOut(NamedTuple):
    """Estimates of any shape, and the same without each dialogue: the first axis of the other two.

    `share` holds each dialogue's share of the items and sums to 1; a dialogue with 0 says nothing and is not
    counted.
    """

    value: np.ndarray
    without: np.ndarray
    share: np.ndarray

    def minus(self, other: "LeftOut") -> "LeftOut":
        """The difference of two estimates over the same dialogues, left out together."""
        return LeftOut(self.value - other.value, self.without - other.without, (self.share + other.share) / 2)

    @property
    def gaps(self) -> np.ndarray:
        """How far each dialogue moves the estimate; 0 where it says nothing."""
        return np.where(self.share > 0, self.value - self.without, 0.0)

    @property
    def parts(self) -> np.ndarray:
        """Each dialogue's part of the estimate's deviation; they sum to 0 (for a mean exactly)."""
        return self.gaps * (1 - self.share)

    @property
    def clusters(self) -> np.ndarray:
        """How many dialogues say something."""
        return (self.share > 0).sum(axis=0)


def leave_out(statistic: Callable[..., np.ndarray], share: np.ndarray, *sums: np.ndarray) -> LeftOut:
    """A statistic of sums over dialogues, and of the sums without each of them.

    The first axis of every one of `sums` and of `share` are the dialogues; `statistic` takes their totals
    [...] and, for all dialogues at once, [dialogues, ...].
    """
    totals = [part.sum(axis=0) for part in sums]
    with np.errstate(invalid="ignore", divide="ignore"):
        without = statistic(*(total - part for total, part in zip(totals, sums, strict=True)))
        return LeftOut(np.asarray(statistic(*totals)), without, share)


def _each_left_out(
    of: Callable[[np.ndarray], float], clusters: Sequence[Hashable], share: Callable[[np.ndarray], np.ndarray]
) -> LeftOut:
    """`of` some items, given as a mask, and without those of each cluster; `share` of clusters' masks."""
    names = {name: i for i, name in enumerate(dict.fromkeys(clusters))}
    place = np.array([names[name] for name in clusters], dtype=int)
    inside = place == np.arange(len(names))[:, None]
    return LeftOut(np.asarray(of(place >= 0)), np.array([of(~mine) for mine in inside]), share(inside))


def ratio(top: np.ndarray, bottom: np.ndarray) -> LeftOut:
    """sum(top) / sum(bottom) over dialogues, the first axis of both; nan over nothing.

    A mean over items is the ratio of their sum to their number.
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        share = np.nan_to_num(bottom / bottom.sum(axis=0))
    return leave_out(np.divide, share, top, bottom)


def interval(left_out: LeftOut, bounds: Bounds = None) -> tuple[np.ndarray, np.ndarray]:
    """Low and high end of the 95 % interval of every estimate.

    The standard error is the jackknife's over dialogues, the quantile Student's t of the effective number of
    dialogues (Kish's, for uneven sizes) less one. A quantity with `bounds`, its smallest and largest possible
    value, gets its interval on the logit scale, and so within them; at an end itself, where all dialogues are
    alike, it reaches to where so many dialogues would all be alike in 2.5 % of the cases. One without, a
    difference say, gets estimate -+ t standard errors, and on the side to which dialogues are skewed what
    the skewness adds to t (Johnson, 1978, J. Am. Stat. Assoc. 73); it takes nothing off on the other side.

    There is no interval (nan) below `MIN_CLUSTERS` dialogues, where one dialogue holds all there is of
    something, and where all dialogues are alike without being at an end.
    """
    from scipy.special import expit, logit, stdtrit

    value, gaps, n = left_out.value, left_out.gaps, left_out.clusters
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        error = np.sqrt((n - 1) / n * (gaps**2).sum(axis=0))
        effective = 1 / (left_out.share**2).sum(axis=0)
        t = stdtrit(np.maximum(effective - 1, 1), 1 - TAIL)
        if bounds is None:
            down, up = _reach(left_out, t)
            low, high = value - error * down, value + error * up
        else:
            width = bounds[1] - bounds[0]
            place = np.clip((value - bounds[0]) / width, 0, 1)
            reach = t * error / width / (place * (1 - place))
            low, high = (bounds[0] + width * expit(logit(place) + side * reach) for side in (-1, 1))
            far = width * (1 - TAIL ** (1 / effective))
            at_low, at_high = place < NOTHING, place > 1 - NOTHING
            low = np.where(at_low, bounds[0], np.where(at_high, bounds[1] - far, low))
            high = np.where(at_low, bounds[0] + far, np.where(at_high, bounds[1], high))
        alike = error <= NOTHING * np.maximum(np.abs(value), 1e-3)
        if bounds is not None:
            alike &= ~(at_low | at_high)
    known = (n >= MIN_CLUSTERS) & np.isfinite(gaps).all(axis=0) & np.isfinite(value) & ~alike
    return np.where(known, low, np.nan), np.where(known, high, np.nan)


def _reach(left_out: LeftOut, t: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """How many standard errors an interval reaches down and up: t, and more where dialogues are skewed."""
    down, up = _skews(left_out)
    return t + down * (2 * t**2 + 1), t + up * (2 * t**2 + 1)


def _skews(left_out: LeftOut) -> tuple[np.ndarray, np.ndarray]:
    """What the skewness of the dialogues adds to t on either side, in units of 2 t^2 + 1."""
    n = left_out.clusters
    parts = np.where(left_out.share > 0, left_out.parts - left_out.parts.sum(axis=0) / n, 0.0)
    spread = np.sqrt((parts**2).sum(axis=0) / (n - 1))
    skewness = n / (n - 1) / np.maximum(n - 2, 1) * (parts**3).sum(axis=0) / spread**3
    more = skewness / np.sqrt(n) / 6
    return np.maximum(-more, 0), np.maximum(more, 0)


def p_value(left_out: LeftOut) -> np.ndarray:
    """Two-sided p of 'the estimate is 0': one minus the level whose `interval`, without bounds, ends at 0.

    So p is below 0.05 where the 95 % interval leaves 0 out, and nowhere else.
    """
    from scipy.special import stdtr

    value, n = left_out.value, left_out.clusters
    with np.errstate(invalid="ignore", divide="ignore"):
        distance = np.abs(value) / np.sqrt((n - 1) / n * (left_out.gaps**2).sum(axis=0))
        skew = np.where(value > 0, *_skews(left_out))
        # distance = t + skew (2 t^2 + 1), solved for t
        root = np.sqrt(np.maximum(1 + 8 * skew * (distance - skew), 0))
        t = np.where(skew > NOTHING, (root - 1) / (4 * skew), distance)
        p = 2 * stdtr(np.maximum(1 / (left_out.share**2).sum(axis=0) - 1, 1), -np.maximum(t, 0))
    return np.where(np.isfinite(interval(left_out)[0]), p, np.nan)


def estimate(left_out: LeftOut, n: int, bounds: Bounds = None) -> Estimate:
    """One estimate of `n` items with its interval and, of a quantity without bounds, the p-value of 0."""
    low, high = interval(left_out, bounds)
    p = None if bounds or np.isnan(found := p_value(left_out)) else float(found)
    return Estimate(float(left_out.value), float(low), float(high), n, p, int(left_out.clusters))


# --- sums over dialogues


def sums(values: np.ndarray, clusters: Sequence[Hashable], names: Sequence[Hashable]) -> np.ndarray:
    """Sums of the rows of `values` [items, ...] by cluster, in the order of `names`: [clusters, ...]."""
    place = {name: i for i, name in enumerate(names)}
    out = np.zeros((len(names), *np.shape(values)[1:]))
    np.add.at(out, np.array([place[name] for name in clusters], dtype=int), values)
    return out


def mean(
    values: np.ndarray, clusters: Sequence[Hashable], names: Sequence[Hashable] | None = None
) -> LeftOut:
    """Mean over items of each column of `values` [items, ...]: a paired difference is a column of them.

    `names`: the dialogues in the order wanted, also such as have no item.
    """
    values, names = np.asarray(values, dtype=float), names or list(dict.fromkeys(clusters))
    left_out = ratio(sums(values, clusters, names), sums(np.ones_like(values), clusters, names))
    return left_out._replace(value=values.mean(axis=0))  # summed item by item, as anyone would


def cluster_mean(values: Sequence[float], clusters: Sequence[Hashable], bounds: Bounds = None) -> Estimate:
    """Mean over items with its interval; `bounds` as in `interval`."""
    return estimate(mean(np.asarray(values), clusters), len(values), bounds) if len(values) else EMPTY


def mean_columns(
    names: Sequence[str], values: np.ndarray, clusters: Sequence[Hashable], bounds: Bounds = None
) -> dict[str, float]:
    """`cluster_mean` of each column of `values` [items, names] as columns of a table."""
    found: dict[str, float] = {}
    for name, column in zip(names, np.asarray(values, dtype=float).T, strict=True):
        found |= cluster_mean(column, clusters, bounds).columns(name)
    return found


Values = Mapping[tuple[Hashable, Hashable], float]
"""Values by (dialogue, turn)."""


def paired_difference(a: Values, b: Values) -> Estimate:
    """Mean of a - b over the turns that both have, with a p-value."""
    keys = sorted(a.keys() & b.keys())
    if not keys:
        return EMPTY
    left_out = mean(np.array([a[key] - b[key] for key in keys]), [key[0] for key in keys])
    return estimate(left_out, len(keys))


def unpaired_difference(a: Values, b: Values) -> Estimate:
    """Difference of two means over different turns of the same dialogues, with a p-value."""
    if not a or not b:
        return EMPTY
    names = sorted({key[0] for key in a} | {key[0] for key in b})

    def mean_of(values: Values) -> LeftOut:
        return mean(np.fromiter(values.values(), float), [key[0] for key in values], names)

    return estimate(mean_of(a).minus(mean_of(b)), len(a) + len(b))


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's correction for several tests; NaN stays NaN and does not count as a test."""
    p = np.array([np.nan if p is None else p for p in p_values], dtype=float)
    order = np.argsort(p, kind="stable")[: np.isfinite(p).sum()]
    p[order] = np.maximum.accumulate(np.minimum(1, p[order] * np.arange(len(order), 0, -1)))
    return p.tolist()


# --- coefficients


Scored = Sequence[tuple[Hashable, float]]
"""Pairs of cluster and score."""


def auc(positive: Scored, negative: Scored) -> LeftOut:
    """AUC, the share of pairs of a positive and a negative which the positive wins, ties counting half."""
    from scipy.stats import rankdata

    items = (*positive, *negative)
    scores, is_positive = np.array([score for _, score in items]), np.arange(len(items)) < len(positive)

    def of(some: np.ndarray) -> float:
        """By the sum of the positives' ranks, as in the test of Mann and Whitney."""
        n = is_positive[some].sum()
        pairs = n * (some.sum() - n)
        won = rankdata(scores[some])[is_positive[some]].sum() - n * (n + 1) / 2
        return won / pairs if pairs else np.nan

    def share(inside: np.ndarray) -> np.ndarray:
        return (inside[:, is_positive].mean(axis=1) + inside[:, ~is_positive].mean(axis=1)) / 2

    return _each_left_out(of, [cluster for cluster, _ in items], share)


def cluster_auc(positive: Scored, negative: Scored) -> Estimate:
    """`auc` with its interval."""
    n = len(positive) + len(negative)
    return estimate(auc(positive, negative), n, SHARE) if positive and negative else replace(EMPTY, n=n)


def cluster_spearman(pairs: Sequence[tuple[Hashable, float, float]]) -> Estimate:
    """Spearman's correlation of (cluster, x, y) with its interval.

    NaN with fewer than three pairs, or where x or y does not vary.
    """
    from scipy.stats import spearmanr

    def spearman(some: np.ndarray) -> float:
        a, b = x[some], y[some]
        return spearmanr(a, b).statistic if len(a) > 2 and np.ptp(a) > 0 and np.ptp(b) > 0 else np.nan

    if not pairs:
        return EMPTY
    x, y = (np.array([pair[i] for pair in pairs], dtype=float) for i in (1, 2))
    left_out = _each_left_out(spearman, [pair[0] for pair in pairs], lambda inside: inside.mean(axis=1))
    return estimate(left_out, len(pairs), COEFFICIENT)


def kappa(counts: np.ndarray) -> np.ndarray:
    """Quadratically weighted kappa of confusion matrices [..., classes, classes] (Cohen, 1968).

    For two classes that is the plain one. nan where all items are in one class: no chance to disagree.
    """
    grades = np.arange(counts.shape[-1])
    weights = (grades[:, None] - grades) ** 2
    by_chance = counts.sum(-1)[..., :, None] * counts.sum(-2)[..., None, :]
    with np.errstate(invalid="ignore", divide="ignore"):
        expected = (weights * by_chance).sum((-2, -1)) / counts.sum((-2, -1))
        return 1 - (weights * counts).sum((-2, -1)) / expected


def cluster_kappa(pairs: Sequence[tuple[int, int]], clusters: Sequence[Hashable], classes: int) -> Estimate:
    """`kappa` of two raters over items, with its interval."""
    if not len(pairs):
        return EMPTY
    first, second = np.eye(classes)[np.array(pairs, dtype=int).T]
    counts = sums(first[:, :, None] * second[:, None], clusters, list(dict.fromkeys(clusters)))
    left_out = leave_out(kappa, counts.sum(axis=(1, 2)) / len(pairs), counts)
    return estimate(left_out, len(pairs), COEFFICIENT)


def cluster_alpha(values: np.ndarray, clusters: Sequence[Hashable]) -> Estimate:
    """Krippendorff's alpha, for values with equal steps, of `values` [raters, items], nan for a missing one.

    1 is full agreement, 0 what chance gives, below 0 disagreement beyond chance (Krippendorff, 2011). nan
    where it is not defined: no item with two values, or only one value in all of them. `clusters` names the
    cluster of each item; `n` counts the items with two values or more.
    """
    values = np.asarray(values, dtype=float)
    # A value that stands alone in its item can be paired with none, so it counts nowhere.
    paired = np.flatnonzero((~np.isnan(values)).sum(axis=0) >= 2)
    if not len(paired):
        return EMPTY
    values = values[:, paired] - np.nanmean(values[:, paired])  # so that no large numbers cancel
    total, squares = np.nansum(values, axis=0), np.nansum(values**2, axis=0)
    n = (~np.isnan(values)).sum(axis=0)

    def distances(n: np.ndarray, total: np.ndarray, squares: np.ndarray) -> np.ndarray:
        """Squared differences over all ordered pairs, of the number, sum and sum of squares of values."""
        summed = 2 * n * squares - 2 * total**2
        return np.where(summed > NOTHING * n * squares, summed, 0.0)  # equal values do not disagree

    within = distances(n, total, squares) / (n - 1)

    def alpha(some: np.ndarray) -> float:
        pairable = n[some].sum()
        if not pairable:
            return np.nan
        observed = within[some].sum() / pairable
        expected = distances(pairable, total[some].sum(), squares[some].sum()) / (pairable * (pairable - 1))
        return 1 - observed / expected if expected > 0 else np.nan

    names = [clusters[i] for i in paired]
    left_out = _each_left_out(alpha, names, lambda inside: inside @ n / n.sum())
    return estimate(left_out, len(paired), COEFFICIENT)


# --- in words


def direction(low: float, high: float, null: float = 0.0) -> int:
    """1 if the interval lies above `null`, -1 if below, 0 if it holds it or does not exist."""
    return int(low > null) - int(high < null)


def with_ends(*names: str) -> list[str]:
    """The names of the columns that `Estimate.columns` makes."""
    return [f"{name}{end}" for name in names for end in ("", " low", " high")]


def format_interval(row: Mapping[str, Any], name: str = "mean", digits: int = 2, sign: str = "") -> str:
    """`mean [low, high]` of a row; the mean alone without an interval, a dash without a mean (None or nan).

    The ends stand in the columns `NAME low` and `NAME high`, or else in `low` and `high`. `sign="+"` shows
    the sign of a difference.
    """
    ends = [f"{name} low", f"{name} high"] if f"{name} low" in row else ["low", "high"]
    values = [np.nan if row[column] is None else float(row[column]) for column in (name, *ends)]
    if not np.isfinite(values[0]):
        return "–"
    # Adding 0 turns a rounded -0.0 into 0.0.
    mean, low, high = (f"{round(x, digits) + 0.0:{sign}.{digits}f}" for x in values)
    return f"{mean} [{low}, {high}]" if np.isfinite(values).all() else mean
