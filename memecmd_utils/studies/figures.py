"""Figures of the studies: what each term adds, and how often each meme is the best one."""

import re
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from memecmd_utils.core import plots
from memecmd_utils.core.plots import BLUE, GREEN, GREY, ORANGE, PURPLE, RED, canvas, style
from memecmd_utils.studies.hubness import CENTRING, CSLS, INVERTED, NONE
from memecmd_utils.studies.specification_curve import AXES, CLAIMS, NAMES

_MARKS = ((BLUE, "o"), (ORANGE, "s"), (GREEN, "D"), (PURPLE, "^"))
_CURES = {NONE: (GREY, "-"), CENTRING: (GREEN, "-."), CSLS: (BLUE, "--"), INVERTED: (RED, ":")}


def _says(axes: Axes, text: str) -> None:
    axes.set_axis_off()
    axes.text(0.5, 0.5, text, ha="center", va="center", color=GREY, transform=axes.transAxes)


def ablation_figure(frame: pd.DataFrame) -> Figure:
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


def hubs_figure(counts: pd.DataFrame) -> Figure:
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


# --- Figures of studies 6 and 9: what K costs and brings, and the specification curve


STATES = {
    "clear": ("holds, clearly", plots.BLUE),
    "sign only": ("holds, not clearly", "#56B4E9"),
    "not": ("does not hold, not clearly", plots.ORANGE),
    "clearly opposite": ("does not hold, clearly", plots.RED),
}
"""Label and colour of a world's state; worlds that cannot tell or were not asked are not drawn."""
SCALES = {
    r".+, ungraded (as 0|left out)": "mean grade (0-2)",
    r"consistency with .+": "text consistency (0-100)",
    r"judge .+": "judge (0-100)",
}
"""Scale of a measure by its name (`specification_curve.measures`); any other is a scale of its own."""
MOST_COLUMNS = 240
"""Columns of the grid of choices: with more worlds each column stands for several."""


def choice_figure(table: pd.DataFrame, own_k: int | None = None) -> Figure:
    """What K brings and costs, from the first table of `choice_of_k.choice_tables`; `own_k` is the run's."""
    panels = {
        "mean grade": "expected mean grade (0-2)",
        "repeats": "share of memes that repeat",
        "distinct memes": "distinct memes",
        "entropy": "entropy of use (bits)",
    }
    with plots.style():
        fig = plots.canvas(8, 5)
        for axes, (column, label) in zip(fig.subplots(2, 2, sharex=True).flat, panels.items(), strict=True):
            axes.set_ylabel(label)
            known = table[table[column].notna()]
            if known.empty:
                axes.text(0.5, 0.5, "not known", ha="center", transform=axes.transAxes, color=plots.GREY)
                continue
            if f"{column} low" in table:
                axes.fill_between(
                    known["K"].astype(float),
                    known[f"{column} low"].astype(float),
                    known[f"{column} high"].astype(float),
                    color=plots.BLUE,
                    alpha=0.2,
                    lw=0,
                    label="95% interval",
                )
            axes.plot(known["K"], known[column], "o-", color=plots.BLUE, ms=4, lw=1.2)
            if column == "mean grade":
                axes.plot(
                    known["K"],
                    known["mean grade of judged"],
                    "^--",
                    color=plots.GREY,
                    ms=4,
                    lw=1,
                    label="graded memes only",
                )
                axes.legend(fontsize=8)
                axes.set_ylim(bottom=0)
            elif column == "repeats":
                axes.set_ylim(bottom=0)
            if own_k is not None:
                axes.axvline(own_k, color=plots.GREY, lw=0.8, ls=":")
        for axes in fig.axes[2:]:
            axes.set_xlabel("K" if own_k is None else f"K (dotted: the run's, {own_k})")
            if len(table):
                axes.set_xticks(table["K"].astype(int))
    return fig


def specification_figure(worlds: pd.DataFrame, claim: int) -> Figure:
    """All worlds of one claim, sorted by their estimate, above the choices that make them.

    One column of panels for each scale that the claim is measured on. In the grid a column is dark where
    its worlds have the row's value.
    """
    mine = worlds[worlds["claim"] == claim]
    told = mine[mine["state"].isin(list(STATES))]
    scales = list(dict.fromkeys(_scale(name) for name in told["measure"]))
    rows = _grid_rows(told)
    with plots.style():
        fig = plots.canvas(max(5.0, 2.6 + 4.0 * max(1, len(scales))), 3.1 + 0.19 * max(1, len(rows)))
        fig.suptitle(_title(claim, mine), fontsize=11, x=0.01, ha="left")
        if not scales:
            fig.subplots().set_axis_off()
            return fig
        heights = [2.4, 0.19 * max(1, len(rows))]
        panels = fig.subplots(2, len(scales), squeeze=False, height_ratios=heights)
        for number, scale in enumerate(scales):
            here = told[told["measure"].map(_scale) == scale].sort_values("mean", kind="stable")
            _curve(panels[0, number], here, scale)
            _grid(panels[1, number], here, rows, labels=number == 0)
        handles = [Line2D([], [], color=colour, lw=3, label=label) for label, colour in STATES.values()]
        fig.legend(handles=handles, loc="outside lower center", ncols=4, fontsize=8.5)
    return fig


def _title(claim: int, worlds: pd.DataFrame) -> str:
    counted = worlds[worlds["state"] != "not asked"]
    silent = int((counted["state"] == "cannot tell").sum())
    left_out = f", {silent:,} of which cannot tell and are not drawn" if silent else ""
    among = f" over {counted['dialogues'].max()} dialogues" if len(counted) else ""
    return f"Claim {claim}: {CLAIMS[claim]}\n{len(counted):,} worlds{among}{left_out}"


def _scale(measure: str) -> str:
    return next((scale for name, scale in SCALES.items() if re.fullmatch(name, measure)), measure)


def _grid_rows(worlds: pd.DataFrame) -> list[tuple[str, str]]:
    """(axis, value) of every row of the grid: the choices that differ between the worlds."""
    return [
        (axis, value) for axis in AXES for value in dict.fromkeys(worlds[axis]) if worlds[axis].nunique() > 1
    ]


def _curve(axes: Axes, worlds: pd.DataFrame, scale: str) -> None:
    x = np.arange(len(worlds)) + 0.5
    width = float(np.clip(300 / len(worlds), 0.4, 3))
    for state, (_, colour) in STATES.items():
        own = (worlds["state"] == state).to_numpy()
        part = worlds[own]
        axes.vlines(x[own], part["low"], part["high"], color=colour, lw=width, alpha=0.45)
        axes.plot(x[own], part["mean"], ".", color=colour, ms=3 if len(worlds) > 100 else 6)
    axes.plot(x, worlds["mean"], color="black", lw=0.8)
    axes.axhline(0, color="black", lw=0.8)
    ends = worlds[["low", "high", "mean"]].to_numpy(dtype=float)
    low, high = np.nanpercentile(ends, (0.5, 99.5))  # a few worlds that send almost nothing are very wide
    margin = 0.05 * (max(high, 0) - min(low, 0) or 1)
    axes.set_ylim(min(low, 0) - margin, max(high, 0) + margin)
    axes.set_xlim(0, len(worlds))
    axes.set_xticks([])
    axes.set_title(f"{scale}, {len(worlds):,} worlds", fontsize=9.5)
    axes.set_ylabel("difference, 95% interval", fontsize=9)


def _grid(axes: Axes, worlds: pd.DataFrame, rows: Sequence[tuple[str, str]], labels: bool) -> None:
    """Which choices make each world; several worlds share a column where there are many."""
    columns = min(MOST_COLUMNS, len(worlds))
    place = np.arange(len(worlds)) * columns // len(worlds)
    size = np.bincount(place, minlength=columns)
    shade = np.array(
        [np.bincount(place, (worlds[axis] == value).to_numpy(), columns) / size for axis, value in rows]
    )
    if shade.size:
        extent = (0, len(worlds), len(rows) - 0.5, -0.5)
        axes.imshow(
            shade, aspect="auto", cmap="Greys", vmin=0, vmax=1.25, interpolation="none", extent=extent
        )
    axes.set_xticks([])
    axes.grid(visible=False)
    names = [_label(rows, number) for number in range(len(rows))] if labels else []
    axes.set_yticks(range(len(rows)) if labels else [], names, fontsize=7.5)
    axes.tick_params(length=0)
    for number in range(1, len(rows)):
        if rows[number][0] != rows[number - 1][0]:
            axes.axhline(number - 0.5, color=plots.GREY, lw=0.8)
    axes.set_xlabel("worlds, from the smallest difference to the largest", fontsize=8.5)


def _label(rows: Sequence[tuple[str, str]], number: int) -> str:
    """Value of a row, after the name of its choice in the choice's first row."""
    axis, value = rows[number]
    value = {"+": "plus", "-": "minus"}.get(value, value)
    first = number == 0 or rows[number - 1][0] != axis
    return f"{NAMES.get(axis, axis)}:  {value}" if first else value
