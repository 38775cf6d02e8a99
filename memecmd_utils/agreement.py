"""Krippendorff's alpha: how far raters agree beyond chance, with missing values and an interval."""

from collections.abc import Hashable, Sequence
from typing import Literal, NamedTuple

import numpy as np

from memecmd_utils import statistics

# Our own few lines because the maintained package for it is under the GPL and this one is under MIT.

SETS_AT_ONCE = 100
"""Sets of clusters whose units are in memory together."""
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
    level: Level


def krippendorff_alpha(values: np.ndarray, level: Level) -> float:
    """Return alpha of `values` [raters, items], NaN for a missing value.

    1 is full agreement, 0 what chance gives, below 0 disagreement beyond chance (Krippendorff, 2011).
    NaN where it is not defined: no item with two values, or only one value in all of them.
    Raises ValueError for an infinite value, a wrong shape or an unknown level.
    """
    counts = _count(values, level)
    together = np.zeros(len(counts.kept), dtype=int)
    return float(_alphas(counts, together, np.ones((1, 1)))[0])


def alpha_interval(values: np.ndarray, clusters: Sequence[Hashable], level: Level) -> statistics.Estimate:
    """Alpha with its 95 % interval (`statistics.interval`); `clusters` names the cluster of each item.

    `n` of the estimate counts the items with two values or more.
    """
    counts = _count(values, level)
    if len(clusters) != np.shape(values)[1]:
        raise ValueError(f"{np.shape(values)[1]} items, but {len(clusters)} names of clusters")
    value = krippendorff_alpha(values, level)
    where, n = statistics.positions([clusters[i] for i in counts.kept])
    kept = np.array_split(1 - np.eye(n), max(1, n // SETS_AT_ONCE))
    without = np.concatenate([_alphas(counts, where, part) for part in kept])
    share = np.bincount(where, weights=counts.units.sum(axis=1), minlength=n) / max(1, counts.units.sum())
    found = statistics.LeftOut(np.asarray(value), without, share)
    return statistics.estimate(found, len(counts.kept), statistics.COEFFICIENT)


def _alphas(counts: _Counts, where: np.ndarray, kept: np.ndarray) -> np.ndarray:
    """1 - (observed / n) / (expected / pairs) in several sets of clusters, shape [sets].

    `where` is the cluster of each unit, `kept` [sets, clusters] is 1 for the clusters of a set, else 0.
    """
    per_cluster = np.zeros((kept.shape[1], len(counts.values)))
    np.add.at(per_cluster, where, counts.units)
    merged = kept @ per_cluster
    around = _around(counts, merged)
    shares = _within(counts.units, around) / (counts.units.sum(axis=1) - 1)
    observed = (kept[:, where] * shares).sum(axis=1)
    n, expected = merged.sum(axis=1), _over(merged, around)
    able = (n > 1) & (expected > 0)
    n, expected = (np.where(able, of, 2.0) for of in (n, expected))
    return np.where(able, 1 - (observed / n) / (expected / (n * (n - 1))), np.nan)


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
    return _Counts(distinct, units.reshape(len(kept), len(distinct)), kept, level)


def _around(counts: _Counts, merged: np.ndarray) -> np.ndarray | None:
    """Place of each value on the scale where the squared difference is its distance, [sets or 1, v].

    None for nominal values. Krippendorff's ordinal distance, (n_c/2 + n_between + n_k/2)^2, is the squared
    difference of mid-ranks in a set's values, of which `merged` [sets, v] says how many there are. Around
    the mean, so that no large numbers cancel.
    """
    if counts.level == "nominal":
        return None
    if counts.level == "interval":
        merged, scale = merged.sum(axis=0)[None], counts.values[None]
    else:
        scale = merged.cumsum(axis=1) - merged / 2
    mean = (merged * scale).sum(axis=1) / np.maximum(merged.sum(axis=1), 1)
    return scale - mean[:, None]


def _within(rows: np.ndarray, around: np.ndarray | None) -> np.ndarray:
    """Summed distances over ordered pairs of values in each row of counts [rows, v]: [sets or 1, rows]."""
    sizes = rows.sum(axis=1)
    if around is None:
        return (sizes**2 - (rows**2).sum(axis=1))[None]
    sums = 2 * sizes * (around**2 @ rows.T) - 2 * (around @ rows.T) ** 2
    sums[:, (rows > 0).sum(axis=1) < 2] = 0.0  # exactly, not but for rounding: equal values do not disagree
    return sums


def _over(merged: np.ndarray, around: np.ndarray | None) -> np.ndarray:
    """Summed distances over ordered pairs of all values of each set: counts [sets, v] to [sets]."""
    sizes = merged.sum(axis=1)
    if around is None:
        return sizes**2 - (merged**2).sum(axis=1)
    sums = 2 * sizes * (merged * around**2).sum(axis=1) - 2 * (merged * around).sum(axis=1) ** 2
    return np.where((merged > 0).sum(axis=1) < 2, 0.0, sums)
