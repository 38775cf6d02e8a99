"""Means, differences and coefficients with intervals and p-values that few dialogues can bear.

Turns of one dialogue share speakers, topic and retrieval quality, so dialogues count, not turns. Every
interval is made of the same few things (`LeftOut`): the estimate, the estimate without each dialogue, and the
share of the items that each dialogue has. Nothing is drawn at random, save signs for the p-value of many
dialogues. Which form of interval keeps its promise was decided by simulation (`reports/coverage.md`).
"""

import hashlib
import json
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    import pandas as pd


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


class Kind(NamedTuple):
    """What an estimate is of: its smallest and largest possible value, and how it is printed."""

    name: str
    bounds: tuple[float, float] | None = None
    digits: int = 2
    sign: str = ""


SHARE = Kind("share", (0.0, 1.0), 0)
"""Printed as per cent."""
MEASURE = Kind("measure", (0.0, 1.0), 3)
"""AUC, nDCG@5, R@1: from 0 to 1 as well, but no share of memes."""
COEFFICIENT = Kind("coefficient", (-1.0, 1.0), 3)
"""Kappa and alpha."""
GRADE = Kind("grade", (0.0, 2.0))
MEAN = Kind("mean")
"""Of consistency or of a judge's scores."""
DIFFERENCE = Kind("difference", sign="+")
FINE_DIFFERENCE = Kind("fine difference", None, 3, "+")
"""Of two measures."""
KINDS = {kind.name: kind for kind in (SHARE, MEASURE, COEFFICIENT, GRADE, MEAN, DIFFERENCE, FINE_DIFFERENCE)}


@dataclass(frozen=True)
class Estimate:
    """What was measured, with its 95 % interval (nan: none), p-value of 'no effect', items and dialogues.

    A cell of a table holds it as it is: it prints itself, and `flat` and `as_json` write it.
    """

    value: float
    low: float = float("nan")
    high: float = float("nan")
    n: int = 0
    p: float | None = None
    clusters: int = 0
    kind: Kind = MEAN

    def __str__(self) -> str:
        """`value [low, high]`; the value alone without an interval, a dash without a value."""
        per_cent, (_, _, digits, sign) = self.kind.name == "share", self.kind
        scale = 100 if per_cent else 1
        # Adding 0 turns a rounded -0.0 into 0.0.
        low, high = (f"{round(scale * x, digits) + 0.0:{sign}.{digits}f}" for x in (self.low, self.high))
        value = f"{self.value:.0%}" if per_cent else f"{round(self.value, digits) + 0.0:{sign}.{digits}f}"
        value = value if np.isfinite(self.value) else "–"
        return f"{value} [{low}, {high}]" if np.isfinite([self.value, self.low, self.high]).all() else value


EMPTY = Estimate(float("nan"))


def share(value: float) -> Estimate:
    """A share of which no interval is told."""
    return Estimate(float(value), kind=SHARE)


def flat(table: "pd.DataFrame") -> "pd.DataFrame":
    """A table for a CSV file: an estimate X becomes the columns `X`, `X low` and `X high`."""
    columns: dict[str, Any] = {}
    for name, cells in table.items():
        if any(isinstance(cell, Estimate) for cell in cells):
            made = [cell if isinstance(cell, Estimate) else EMPTY for cell in cells]
            ends = {"": "value", " low": "low", " high": "high"}
            columns |= {f"{name}{end}": [getattr(cell, part) for cell in made] for end, part in ends.items()}
        else:
            columns[str(name)] = cells.to_numpy()
    return type(table)(columns, columns=list(columns))


def as_json(value: "Estimate | pd.DataFrame") -> Any:
    """What JSON does not know: a table as its rows, an estimate as an object (`json.dumps(default=)`).

    Floats are rounded to six digits, and nan becomes None.
    """

    def plain(cell: Any) -> Any:
        is_float = isinstance(cell, float)
        return cell if not is_float else round(cell, 6) if np.isfinite(cell) else None

    if isinstance(value, Estimate):
        ends = {name: plain(float(getattr(value, name))) for name in ("value", "low", "high")}
        return {"kind": value.kind.name, **ends}
    return [{name: plain(cell) for name, cell in row.items()} for row in value.to_dict("records")]


def from_json(value: dict[str, Any]) -> Any:
    """The estimate that `as_json` wrote; any other object as it is (`json.loads(object_hook=)`)."""
    if value.keys() != {"kind", "value", "low", "high"}:
        return value
    ends = (np.nan if value[name] is None else value[name] for name in ("value", "low", "high"))
    return Estimate(*ends, kind=KINDS[value["kind"]])


def read_tables(path: Path) -> Any:
    """What a JSON file of `as_json` holds: its tables as rows, with their estimates."""
    return json.loads(path.read_text(encoding="utf-8"), object_hook=from_json)


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


def ratio(top: np.ndarray, bottom: np.ndarray) -> LeftOut:
    """sum(top) / sum(bottom) over dialogues, the first axis of both; nan over nothing.

    A mean over items is the ratio of their sum to their number.
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        share = np.nan_to_num(bottom / bottom.sum(axis=0))
    return leave_out(np.divide, share, top, bottom)


def interval(left_out: LeftOut, kind: Kind = DIFFERENCE) -> tuple[np.ndarray, np.ndarray]:
    """Low and high end of the 95 % interval of every estimate.

    The standard error is the jackknife's over dialogues, the quantile Student's t of the effective number of
    dialogues (Kish's, for uneven sizes) less one. A quantity whose `kind` has bounds gets its interval on the
    logit scale, and so within them; at an end itself, where all dialogues are
    alike, it reaches to where so many dialogues would all be alike in 2.5 % of the cases. One without, a
    difference say, gets estimate -+ t standard errors, and on the side to which dialogues are skewed what
    the skewness adds to t (Johnson, 1978, J. Am. Stat. Assoc. 73); it takes nothing off on the other side.

    There is no interval (nan) below `MIN_CLUSTERS` dialogues, where one dialogue holds all there is of
    something, and where all dialogues are alike without being at an end.
    """
    from scipy.special import expit, logit, stdtrit

    value, gaps, n, bounds = left_out.value, left_out.gaps, left_out.clusters, kind.bounds
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        error = np.sqrt((n - 1) / n * (gaps**2).sum(axis=0))
        effective = 1 / (left_out.share**2).sum(axis=0)
        t = stdtrit(np.maximum(effective - 1, 1), 1 - TAIL)
        if bounds is None:
            down, up = _skews(left_out)
            more = 2 * t**2 + 1
            low, high = value - error * (t + down * more), value + error * (t + up * more)
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


def _skews(left_out: LeftOut) -> tuple[np.ndarray, np.ndarray]:
    """What the skewness of the dialogues adds to t on either side, in units of 2 t^2 + 1."""
    n = left_out.clusters
    parts = left_out.gaps * (1 - left_out.share)  # of the estimate's deviation; of a mean they sum to 0
    parts = np.where(left_out.share > 0, parts - parts.sum(axis=0) / n, 0.0)
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


def estimate(left_out: LeftOut, n: int, kind: Kind = DIFFERENCE) -> Estimate:
    """One estimate of `n` items with its interval and, of a quantity without bounds, the p-value of 0."""
    low, high = interval(left_out, kind)
    p = None if kind.bounds or np.isnan(chance := p_value(left_out)) else float(chance)
    return Estimate(float(left_out.value), float(low), float(high), n, p, int(left_out.clusters), kind)


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


def cluster_mean(values: Sequence[float], clusters: Sequence[Hashable], kind: Kind = MEAN) -> Estimate:
    """Mean over items with its interval."""
    if not len(values):
        return replace(EMPTY, kind=kind)
    return estimate(mean(np.asarray(values), clusters), len(values), kind)


def cluster_means(
    names: Sequence[str], values: np.ndarray, clusters: Sequence[Hashable], kind: Kind = DIFFERENCE
) -> dict[str, Estimate]:
    """`cluster_mean` of each column of `values` [items, names], by name."""
    columns = np.asarray(values, dtype=float).T
    return {name: cluster_mean(column, clusters, kind) for name, column in zip(names, columns, strict=True)}


Values = Mapping[tuple[Hashable, Hashable], float]
"""Values by (dialogue, turn)."""


def paired_difference(a: Values, b: Values) -> Estimate:
    """Mean of a - b over the turns that both have, with a p-value."""
    keys = sorted(a.keys() & b.keys())
    if not keys:
        return replace(EMPTY, kind=DIFFERENCE)
    left_out = mean(np.array([a[key] - b[key] for key in keys]), [key[0] for key in keys])
    return estimate(left_out, len(keys))


def unpaired_difference(a: Values, b: Values) -> Estimate:
    """Difference of two means over different turns of the same dialogues, with a p-value."""
    if not a or not b:
        return replace(EMPTY, kind=DIFFERENCE)
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
    names = list(dict.fromkeys(cluster for cluster, _ in (*positive, *negative)))
    (at, x), (others, y) = (zip(*side, strict=True) for side in (positive, negative))
    wins = (1 + np.sign(np.array(x)[:, None] - np.array(y))) / 2  # [positives, negatives]
    # Both as [clusters of the positives, clusters of the negatives].
    won, pairs = (sums(sums(of_pairs, at, names).T, others, names).T for of_pairs in (wins, wins * 0 + 1))
    left = [
        matrix.sum() - matrix.sum(axis=0) - matrix.sum(axis=1) + np.diag(matrix) for matrix in (won, pairs)
    ]
    with np.errstate(invalid="ignore"):
        share = (pairs.sum(axis=0) + pairs.sum(axis=1)) / pairs.sum() / 2
        return LeftOut(won.sum() / pairs.sum(), left[0] / left[1], share)


def cluster_auc(positive: Scored, negative: Scored) -> Estimate:
    """`auc` with its interval."""
    n = len(positive) + len(negative)
    if not positive or not negative:
        return replace(EMPTY, n=n, kind=MEASURE)
    return estimate(auc(positive, negative), n, MEASURE)


def kappa(
    n: np.ndarray, first: np.ndarray, second: np.ndarray, squares: np.ndarray, gaps: np.ndarray
) -> np.ndarray:
    """Quadratically weighted kappa of two raters over `n` items (Cohen, 1968); of two classes the plain one.

    `first` and `second` are the sums of their values, `squares` that of all squared values, `gaps` that of
    squared differences. nan where all values are the same: no chance to disagree.
    """
    expected = squares - 2 * first * second / n
    return np.where(expected > NOTHING * squares, 1 - gaps / expected, np.nan)


def cluster_kappa(pairs: Sequence[tuple[int, int]], clusters: Sequence[Hashable]) -> Estimate:
    """`kappa` of two raters' values, a pair an item, with its interval."""
    if not len(pairs):
        return replace(EMPTY, kind=COEFFICIENT)
    first, second = np.array(pairs, dtype=float).T
    items = np.stack([np.ones(len(pairs)), first, second, first**2 + second**2, (first - second) ** 2])
    return _coefficient(kappa, items, clusters)


def cluster_alpha(values: np.ndarray, clusters: Sequence[Hashable]) -> Estimate:
    """Krippendorff's alpha, for values with equal steps, of `values` [raters, items], nan for a missing one.

    1 is full agreement, 0 what chance gives, below 0 disagreement beyond chance (Krippendorff, 2011). nan
    where it is not defined: no item with two values, or only one value in all of them. `clusters` names the
    cluster of each item; `n` counts the items with two values or more.
    """

    def alpha(n: np.ndarray, *of_pairs: np.ndarray) -> np.ndarray:
        """`kappa` of every two values of an item, but that by chance, too, no value meets itself."""
        return 1 - (1 - 1 / n) * (1 - kappa(n, *of_pairs))

    # A value that stands alone in its item can be paired with none, so it counts nowhere.
    paired = np.flatnonzero((~np.isnan(values)).sum(axis=0) >= 2)
    if not len(paired):
        return replace(EMPTY, kind=COEFFICIENT)
    values = values[:, paired] - np.nanmean(values[:, paired])  # so that no large numbers cancel
    n, total, squares = (np.nansum(part, axis=0) for part in (np.isfinite(values), values, values**2))
    items = np.stack([n, total, total, 2 * squares, 2 * (n * squares - total**2) / (n - 1)])
    return _coefficient(alpha, items, [clusters[place] for place in paired])


def _coefficient(
    statistic: Callable[..., np.ndarray], items: np.ndarray, clusters: Sequence[Hashable]
) -> Estimate:
    """Of the sums over items of what `kappa` is made of, [5, items]."""
    parts = sums(items.T, clusters, list(dict.fromkeys(clusters))).T
    left_out = leave_out(statistic, parts[0] / parts[0].sum(), *parts)
    return estimate(left_out, len(clusters), COEFFICIENT)
