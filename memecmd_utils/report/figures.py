"""The paper's figures with matplotlib's object API: no pyplot, no global state, the same bytes every time."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from memecmd_utils import schemas
from memecmd_utils.core.plots import BLUE, GREEN, GREY, ORANGE, PURPLE, canvas, style

STRATEGIES = {
    "greedy": (BLUE, "o"),
    "sampling": (GREEN, "s"),
    "random": (ORANGE, "^"),
    "random_same_turns": (PURPLE, "D"),
}
"""Colour and marker of each strategy."""


def consistency_bars(frame: pd.DataFrame) -> Figure:
    """Figure 4: mean consistency of each strategy with its 95% interval, and the shuffled-pair baseline.

    Columns dataset, strategy, mean, low, high, n, dialogues. Points, not bars: the differences are far
    smaller than the distance to zero, and bars that start elsewhere would show false proportions.
    """
    missing = {"dataset", "strategy", "mean", "low", "high", "n", "dialogues"} - set(frame.columns)
    if missing:
        raise ValueError(f"columns missing: {sorted(missing)}")
    datasets = list(dict.fromkeys(frame["dataset"]))
    present = [s for s in dict.fromkeys(frame["strategy"]) if s != "shuffled"]
    with style():
        fig = canvas(max(5.0, 1.9 * len(datasets) + 2.4), 3.6)
        axes = fig.subplots()
        for place, strategy in enumerate(present):
            label, (colour, marker) = schemas.STRATEGIES[strategy].label, STRATEGIES[strategy]
            rows = frame[frame["strategy"] == strategy].set_index("dataset").reindex(datasets)
            x = np.arange(len(datasets)) + 0.16 * (place - (len(present) - 1) / 2)
            low, high = rows["mean"] - rows["low"], rows["high"] - rows["mean"]
            axes.errorbar(x, rows["mean"], [low, high], fmt=marker, color=colour, capsize=3, label=label)
        _baseline(axes, frame, datasets)
        counts = (
            frame[frame["strategy"] != "shuffled"].groupby("dataset")[["n", "dialogues"]].agg(["min", "max"])
        )
        axes.set_xticks(range(len(datasets)), [_dataset_label(name, counts) for name in datasets])
        axes.set_xlim(-0.6, len(datasets) - 0.4)
        axes.set_ylabel("consistency (0-100), mean and 95% interval")
        if datasets:
            fig.legend(loc="outside right upper", fontsize=9)
        else:
            axes.text(0.5, 0.5, "no meme was scored", ha="center", color=GREY, transform=axes.transAxes)
    return fig


def _baseline(axes: Axes, frame: pd.DataFrame, datasets: Sequence[str]) -> None:
    label = "Shuffled pairs"
    for row in frame[frame["strategy"] == "shuffled"].itertuples():
        x = datasets.index(row.dataset)
        axes.fill_between([x - 0.4, x + 0.4], row.low, row.high, color=GREY, alpha=0.18, lw=0)
        axes.hlines(row.mean, x - 0.4, x + 0.4, color=GREY, lw=1.2, ls="--", label=label)
        label = "_"  # one entry in the legend


def _dataset_label(name: str, counts: pd.DataFrame) -> str:
    if name not in counts.index:
        return name
    n, dialogues = (
        f"{low:,}" if low == high else f"{low:,}-{high:,}"
        for low, high in (counts.loc[name, column] for column in ("n", "dialogues"))
    )
    return f"{name}\nn = {n}\nin {dialogues} dialogues"  # in one line it runs into the next one


def case_studies(images: Sequence[Image.Image], labels: Sequence[str]) -> Figure:
    """Figure 5: chat screenshots in two rows of three, each with its label below the letter."""
    if len(images) != len(labels):
        raise ValueError(f"{len(images)} images but {len(labels)} labels")
    columns = min(3, len(images))
    rows = -(-len(images) // columns)
    tallest = max(image.height / image.width for image in images)
    with style():
        # So wide that the smallest signs of a screenshot, 12 of its 390 pixels, are 9 pixels on a page.
        fig = canvas(3.4 * columns, rows * (3.3 * tallest + 0.45))
        grid = fig.subplots(rows, columns, squeeze=False)
        for axes in grid.flat:
            axes.set_axis_off()
        for number, (axes, image, label) in enumerate(zip(grid.flat, images, labels, strict=False)):
            axes.imshow(np.asarray(image.convert("RGB")), interpolation="antialiased")
            axes.set_anchor("N")
            axes.set_title(f"({'abcdefghijklmnopqrstuvwxyz'[number % 26]}) {label}", fontsize=9)
    return fig
