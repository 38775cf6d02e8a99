"""Figures of the studies: what each term adds, and how often each meme is the best one."""

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from memecmd_utils.hub_cures import CENTRING, CSLS, INVERTED, NONE
from memecmd_utils.plots import BLUE, GREEN, GREY, ORANGE, PURPLE, RED, canvas, style

_MARKS = ((BLUE, "o"), (ORANGE, "s"), (GREEN, "D"), (PURPLE, "^"))
_CURES = {NONE: (GREY, "-"), CENTRING: (GREEN, "-."), CSLS: (BLUE, "--"), INVERTED: (RED, ":")}


def _says(axes: Axes, text: str) -> None:
    axes.set_axis_off()
    axes.text(0.5, 0.5, text, ha="center", va="center", color=GREY, transform=axes.transAxes)


def ablation(frame: pd.DataFrame) -> Figure:
    """Full score minus the score without each term, with intervals: the table of `ablation.leave_one_out`.

    A panel a measure. Right of zero the term helps; an interval that holds zero is drawn hollow.
    """
    measures = list(dict.fromkeys(frame["measure"])) or ["nDCG@5"]
    with style():
        fig = canvas(4.4 * len(measures) + 0.6, 3.3)
        panels = fig.subplots(1, len(measures), sharey=True, squeeze=False)[0]
        for axes, measure in zip(panels, measures, strict=True):
            if frame.empty:
                _says(axes, "no graded memes")
            else:
                _terms(axes, frame[frame["measure"] == measure])
        if not frame.empty:
            panels[0].invert_yaxis()
            fig.legend(
                *panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=9
            )
            for axes, measure in zip(panels, measures, strict=True):
                axes.set_xlabel(f"{measure}, full minus without the term, 95% interval")
    return fig


def _terms(axes: Axes, frame: pd.DataFrame) -> None:
    names = dict(zip(frame["without"], frame["compares"], strict=True))
    embedders = list(dict.fromkeys(frame["embedder"]))
    axes.axvline(0, color="black", lw=0.8)
    for place, embedder in enumerate(embedders):
        colour, marker = _MARKS[place % len(_MARKS)]
        rows = frame[frame["embedder"] == embedder]
        label = embedder
        for y, (_, row) in enumerate(rows.iterrows()):
            mean, low, high = (row[f"difference{end}"] for end in ("", " low", " high"))
            clear = low > 0 or high < 0
            at = y + 0.22 * (place - (len(embedders) - 1) / 2)
            reach = [[mean - low], [high - mean]] if np.isfinite(low) else None
            axes.errorbar(
                [mean], [at], xerr=reach, fmt=marker, color=colour, capsize=3,
                mfc=colour if clear else "white",
            )  # fmt: skip
        axes.plot([], [], marker, color=colour, label=label)  # the legend shows it filled
    axes.set_yticks(range(len(names)), [f"{term}  ({part})" for term, part in names.items()])
    axes.grid(axis="y", visible=False)
    axes.grid(axis="x", visible=True)


def hubs(counts: pd.DataFrame) -> Figure:
    """N_1 of every meme, most frequent first, without and with each cure: `hubness.study(...).counts`.

    A panel an embedder and kind of scores. An even use would be a level line.
    """
    panels = list(dict.fromkeys(zip(counts["embedder"], counts["scores"], strict=True)))
    with style():
        columns = min(2, len(panels)) or 1
        rows = -(-len(panels) // columns) or 1
        fig = canvas(4.3 * columns + 0.6, 2.5 * rows + 0.7)
        grid = fig.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).flat
        for axes in grid[len(panels) :]:
            axes.set_axis_off()
        for axes, (embedder, scores) in zip(grid, panels, strict=False):
            here = counts[(counts["embedder"] == embedder) & (counts["scores"] == scores)]
            axes.set_title(f"{embedder}, {scores}")
            _sorted(axes, {cure: mine["N_1"] for cure, mine in here.groupby("cure", sort=False)})
        if not panels:
            _says(fig.axes[0], "no ranked turns")
            return fig
        handles = {
            label: h for a in fig.axes for h, label in zip(*a.get_legend_handles_labels(), strict=True)
        }
        fig.legend(handles.values(), handles, loc="outside lower center", ncols=5, fontsize=9)
        for axes in fig.axes[-columns:]:
            axes.set_xlabel("memes, most frequent first")
        fig.supylabel("turns at which it is the best ($N_1$)", fontsize=10)
    return fig


def _sorted(axes: Axes, of: Mapping[str, pd.Series]) -> None:
    for cure, counts in of.items():
        colour, line = _CURES.get(cure, ("black", "-"))
        values = np.sort(counts.to_numpy())[::-1]
        label = "without a cure" if cure == NONE else cure
        axes.step(np.arange(1, len(values) + 1), values, line, where="mid", color=colour, lw=1.5, label=label)
    even = sum(counts.sum() for counts in of.values()) / sum(len(counts) for counts in of.values())
    axes.axhline(even, color="black", lw=0.7, label="even use")
    axes.set_xscale("log")  # the hubs are few
    axes.xaxis.set_major_formatter("{x:g}")
