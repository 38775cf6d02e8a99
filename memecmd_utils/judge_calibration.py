"""Does p(yes) mean what it says: bins, expected calibration error, Brier score, reliability diagram."""

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BINS = 10


def bins(p: np.ndarray, fits: np.ndarray) -> list[dict[str, Any]]:
    """Up to `BINS` equally filled bins by rising p: number, items, mean p and share of items that fit.

    `p` [items] is a probability, `fits` [items] 1 or 0. Equal p's stay in the order given.
    """
    parts = [part for part in np.array_split(np.argsort(p, kind="stable"), BINS) if len(part)]
    return [
        {
            "bin": number,
            "items": len(part),
            "mean p": float(p[part].mean()),
            "share that fits": float(fits[part].mean()),
        }
        for number, part in enumerate(parts, start=1)
    ]


def error(p: np.ndarray, fits: np.ndarray) -> float:
    """Expected calibration error: a bin's mean distance of p from its share that fits, over all items."""
    if not len(p):
        return float("nan")
    return sum(row["items"] * abs(row["mean p"] - row["share that fits"]) for row in bins(p, fits)) / len(p)


def brier(p: np.ndarray, fits: np.ndarray) -> float:
    """Mean squared distance of p from the truth (Brier, 1950); nan without items."""
    return float(np.mean((p - fits) ** 2)) if len(p) else float("nan")


def reliability_figure(frame: pd.DataFrame) -> "Figure":
    """The bins of every judge (`judge`, `mean p`, `share that fits`) and the line of perfect calibration."""

    from memecmd_utils import plots

    with plots.style():
        figure = plots.canvas(5.2, 4.4)
        axes = figure.subplots()
        axes.plot([0, 1], [0, 1], color="0.6", linestyle="--", linewidth=1, label="perfect")
        for judge, rows in frame.groupby("judge", sort=False):
            axes.plot(rows["mean p"], rows["share that fits"], marker="o", markersize=4, label=judge)
        axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="p(yes), mean of a bin", ylabel="share of memes that fit")
        axes.set_title("Does p(yes) mean what it says?")
        axes.legend(fontsize=8, loc="upper left")
    return figure
