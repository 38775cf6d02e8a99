"""AUC of two scores on the same items, and their difference, with dialogues left out of both at once."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from memecmd_utils import statistics
from memecmd_utils.statistics import Estimate


class BeforeAfter(NamedTuple):
    """AUC of either score, with p-values against 0.5, and after minus before, against 0."""

    before: Estimate
    after: Estimate
    difference: Estimate


def before_after(items: pd.DataFrame, rng: np.random.Generator) -> BeforeAfter:
    """Compare the columns `before` and `after` of items that fit (`kind` is `fitting`) or do not.

    Items are compared within a `half` only. Both columns lose the same dialogues, so the difference is a
    paired one.
    """
    names = sorted(set(items["dialogue_id"]))
    won = {name: np.zeros((len(names), len(names))) for name in ("before", "after", "pairs")}
    for _, mine in items.groupby("half", sort=True):
        for name, matrix in won.items():
            matrix += _wins(mine, name, names)
    if not won["pairs"].any():
        return BeforeAfter(statistics.EMPTY, statistics.EMPTY, statistics.EMPTY)
    before, after = (statistics.pairwise(won[name], won["pairs"]) for name in ("before", "after"))
    n = len(items)
    return BeforeAfter(
        statistics.estimate(before, n, statistics.SHARE, 0.5, rng),
        statistics.estimate(after, n, statistics.SHARE, 0.5, rng),
        statistics.estimate(after.minus(before), n, None, 0.0, rng),
    )


def _wins(items: pd.DataFrame, name: str, names: Sequence[str]) -> np.ndarray:
    """Wins, ties half, of each dialogue's fitting items over each dialogue's others; `pairs`: how many."""
    place = {dialogue: i for i, dialogue in enumerate(names)}
    fits = items["kind"] == "fitting"
    mine, others = items[fits], items[~fits]
    wins = np.ones((len(mine), len(others)))
    if name != "pairs":
        wins = (np.sign(mine[name].to_numpy()[:, None] - others[name].to_numpy()) + 1) / 2
    rows, columns = (part["dialogue_id"].map(place).to_numpy(dtype=int) for part in (mine, others))
    out = np.zeros((len(names), len(names)))
    np.add.at(out, (rows[:, None], columns[None, :]), wins)
    return out
