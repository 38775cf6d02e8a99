"""Krippendorff's alpha: how far raters agree beyond chance, with missing values and an interval."""

from collections.abc import Hashable, Sequence
from typing import Literal, NamedTuple

import numpy as np

from memecmd_utils import statistics

# Our own few lines because the maintained package for it is under the GPL and this one is under MIT.

Level = Literal["nominal", "ordinal", "interval"]
LEVELS = ("nominal", "ordinal", "interval")


class _Counts(NamedTuple):
    """How often each distinct value was given to each unit that has at least two values."""

    values: np.ndarray
    """Distinct values in rising order, shape [v]."""
    units: np.ndarray
    """Counts, shape [units, v]."""
    kept: np.ndarray
    """Positions of the units among the columns of the input, shape [units]."""


def krippendorff_alpha(values: np.ndarray, level: Level) -> float:
    """Return alpha of `values` [raters, items], NaN for a missing value.

    1 is full agreement, 0 what chance gives, below 0 disagreement beyond chance (Krippendorff, 2011).
    NaN where it is not defined: no item with two values, or only one value in all of them.
    Raises ValueError for an infinite value, a wrong shape or an unknown level.
    """
    counts = _count(values, level)
    within, total = _disagreement(counts.units, _scale(counts, counts.units.sum(axis=0), level))
    n = counts.units.sum()
    return _alpha(_observed(counts.units, within), n, total, n * (n - 1))


def alpha_interval(
    values: np.ndarray,
    clusters: Sequence[Hashable],
    level: Level,
    rng: np.random.Generator,
    samples: int = 2000,
) -> statistics.Estimate:
    """Alpha with a 95 % interval from resampled clusters; `clusters` names the cluster of each item.

    `n` of the estimate counts the items with two values or more. With fewer than
    `statistics.MIN_CLUSTERS` clusters there is no interval.
    """
    counts = _count(values, level)
    if len(clusters) != np.shape(values)[1]:
        raise ValueError(f"{np.shape(values)[1]} items, but {len(clusters)} names of clusters")
    value = krippendorff_alpha(values, level)
    names = {name: i for i, name in enumerate(dict.fromkeys(clusters[i] for i in counts.kept))}
    where = np.array([names[clusters[i]] for i in counts.kept], dtype=int)
    if len(names) < statistics.MIN_CLUSTERS:
        return statistics.from_draws(value, np.array([]), len(counts.kept), len(names))
    per_cluster = np.zeros((len(names), len(counts.values)))
    np.add.at(per_cluster, where, counts.units)
    draws = np.array([_draw(counts, per_cluster, where, level, rng) for _ in range(samples)])
    return statistics.from_draws(value, draws, len(counts.kept), len(names))


def _draw(
    counts: _Counts, per_cluster: np.ndarray, where: np.ndarray, level: Level, rng: np.random.Generator
) -> float:
    """Alpha of one resample of the clusters."""
    n = len(per_cluster)
    times = np.bincount(rng.integers(n, size=n), minlength=n).astype(float)
    scale = _scale(counts, times @ per_cluster, level)
    within, _ = _disagreement(counts.units, scale)
    observed = _observed(counts.units, within, times[where])
    return _alpha(observed, times @ per_cluster.sum(axis=1), *_chance(per_cluster, scale, times))


def _chance(per_cluster: np.ndarray, scale: np.ndarray | None, times: np.ndarray) -> tuple[float, float]:
    """Summed distances over pairs of values in a resample, and how many pairs these are.

    A cluster that is drawn twice is not paired with its own copy, which agrees with it too well: the weight
    of those pairs goes to pairs of different clusters, so that on average a resample is like the sample.
    """
    own, total = _disagreement(per_cluster, scale, times)
    sizes, again = per_cluster.sum(axis=1), len(times) / (len(times) - 1)
    expected = again * (total - times**2 @ own) + times @ own
    pairs = again * ((times @ sizes) ** 2 - times**2 @ sizes**2) + times @ (sizes * (sizes - 1))
    return float(expected), float(pairs)


def _count(values: np.ndarray, level: Level) -> _Counts:
    if level not in LEVELS:
        raise ValueError(f"level {level!r} is none of {', '.join(LEVELS)}")
    values = np.asarray(values, dtype=float)
    if values.ndim != 2:
        raise ValueError(f"values have shape {values.shape}, not [raters, items]")
    if np.isinf(values).any():
        raise ValueError("a value is infinite; a missing one is NaN")
    # A value that stands alone in its item can be paired with none, so it counts nowhere.
    kept = np.flatnonzero((~np.isnan(values)).sum(axis=0) >= 2)
    values = values[:, kept]
    distinct = np.unique(values[~np.isnan(values)])
    units = (values[:, :, None] == distinct).sum(axis=0).astype(float)
    return _Counts(distinct, units.reshape(len(kept), len(distinct)), kept)


def _scale(counts: _Counts, totals: np.ndarray, level: Level) -> np.ndarray | None:
    """Place of each value on the scale where the squared difference is its distance; None for nominal.

    Krippendorff's ordinal distance, (n_c/2 + n_between + n_k/2)^2, is the squared difference of mid-ranks.
    """
    if level == "nominal":
        return None
    return counts.values if level == "interval" else totals.cumsum() - totals / 2


def _disagreement(
    rows: np.ndarray, scale: np.ndarray | None, times: np.ndarray | None = None
) -> tuple[np.ndarray, float]:
    """Summed distances over ordered pairs of values: within each row of counts, and over all rows at once."""
    merged = rows.sum(axis=0) if times is None else times @ rows
    stacked = np.vstack([rows, merged])
    sizes = stacked.sum(axis=1)
    if scale is None:
        sums = sizes**2 - (stacked**2).sum(axis=1)
    else:
        # Around the mean, so that no large numbers cancel.
        around = scale - (merged @ scale / merged.sum() if merged.sum() else 0.0)
        sums = 2 * sizes * (stacked @ around**2) - 2 * (stacked @ around) ** 2
    sums[(stacked > 0).sum(axis=1) < 2] = 0.0  # exactly, not but for rounding: equal values do not disagree
    return sums[:-1], float(sums[-1])


def _observed(units: np.ndarray, within: np.ndarray, times: np.ndarray | None = None) -> float:
    """Disagreement within the units, each pair weighted by 1 / (m_u - 1)."""
    shares = within / (units.sum(axis=1) - 1)
    return float(shares.sum() if times is None else times @ shares)


def _alpha(observed: float, n: float, expected: float, pairs: float) -> float:
    """1 - (observed / n) / (expected / pairs)."""
    if n == 0 or pairs <= 0 or expected <= 0:
        return float("nan")
    return float(1 - (observed / n) / (expected / pairs))
