"""Figures of the studies: what each term adds, hubs, what K costs, and the specification curve."""

import re
from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from memecmd_utils import drawing
from memecmd_utils.drawing import BLUE, GREEN, GREY, ORANGE, PURPLE, RED, canvas, style
from memecmd_utils.studies.hubness import CENTRING, CSLS, INVERTED, NONE
from memecmd_utils.studies.specification_curve import AXES, CLAIMS, NAMES

MARKS = ((BLUE, "o"), (ORANGE, "s"), (GREEN, "D"), (PURPLE, "^"))
"""Colour and marker of each embedder."""
LINES = {NONE: (GREY, "-"), CENTRING: (GREEN, "-."), CSLS: (BLUE, "--"), INVERTED: (RED, ":")}
"""Colour and line of each cure of hubs."""


def _say(axes: Axes, text: str) -> None:
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
        if frame.empty:
            _say(panels[0], "no graded memes")
            return fig
        for axes, measure in zip(panels, measures, strict=True):
            _draw_terms(axes, frame[frame["measure"] == measure])
            axes.set_xlabel(f"{measure}, full minus without the term, 95% interval")
        panels[0].invert_yaxis()
        legend = panels[0].get_legend_handles_labels()
        fig.legend(*legend, loc="outside lower center", ncols=4, fontsize=9)
    return fig


def _draw_terms(axes: Axes, frame: pd.DataFrame) -> None:
    names = dict(zip(frame["without"], frame["compares"], strict=True))
    embedders = list(dict.fromkeys(frame["embedder"]))
    axes.axvline(0, color="black", lw=0.8)
    for place, embedder in enumerate(embedders):
        colour, marker = MARKS[place % len(MARKS)]
        offset = 0.22 * (place - (len(embedders) - 1) / 2)
        for y, (_, row) in enumerate(frame[frame["embedder"] == embedder].iterrows()):
            mean, low, high = (row[f"difference{end}"] for end in ("", " low", " high"))
            fill = colour if low > 0 or high < 0 else "white"
            reach = [[mean - low], [high - mean]] if np.isfinite(low) else None
            axes.errorbar([mean], [y + offset], xerr=reach, fmt=marker, color=colour, capsize=3, mfc=fill)
        axes.plot([], [], marker, color=colour, label=embedder)  # the legend shows it filled
    axes.set_yticks(range(len(names)), [f"{term}  ({part})" for term, part in names.items()])
    axes.grid(axis="y", visible=False)
    axes.grid(axis="x", visible=True)


def hubs_figure(counts: pd.DataFrame) -> Figure:
    """N_1 of every meme, most frequent first, without and with each cure: `counts` of `hubness.Hubs`.

    A panel an embedder and kind of scores. An even use would be a level line.
    """
    panels = dict(list(counts.groupby(["embedder", "scores"], sort=False)))
    columns = min(2, len(panels)) or 1
    rows = -(-len(panels) // columns) or 1
    with style():
        fig = canvas(4.3 * columns + 0.6, 2.5 * rows + 0.7)
        grid = fig.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).flat
        for axes in grid[len(panels) :]:
            axes.set_axis_off()
        if not panels:
            _say(fig.axes[0], "no ranked turns")
            return fig
        for axes, (name, part) in zip(grid, panels.items(), strict=False):
            axes.set_title(", ".join(name))
            for cure, mine in part.groupby("cure", sort=False):
                colour, line = LINES[cure]
                label = "without a cure" if cure == NONE else cure
                values, places = np.sort(mine["N_1"].to_numpy())[::-1], np.arange(1, len(mine) + 1)
                axes.step(places, values, line, where="mid", color=colour, lw=1.5, label=label)
            axes.axhline(
                part["N_1"].sum() / len(part), color="black", lw=0.8, ls=(0, (1, 4)), label="even use"
            )
            axes.set_xscale("log")  # the hubs are few
            axes.xaxis.set_major_formatter("{x:g}")
        handles = {
            label: handle
            for axes in fig.axes
            for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
        }
        fig.legend(handles.values(), handles, loc="outside lower center", ncols=5, fontsize=9)
        for axes in fig.axes[-columns:]:
            axes.set_xlabel("memes, most frequent first")
        fig.supylabel("turns at which it is the best ($N_1$)", fontsize=10)
    return fig


def choice_figure(table: pd.DataFrame, own_k: int) -> Figure:
    """What K brings and costs, from the first table of `selection.choice_tables`; `own_k` is the run's."""
    panels = {
        "mean grade": "expected mean grade (0-2)",
        "repeats": "share of memes that repeat",
        "distinct memes": "distinct memes",
        "entropy": "entropy of use (bits)",
    }
    with style():
        fig = canvas(8, 5)
        for axes, (column, label) in zip(fig.subplots(2, 2, sharex=True).flat, panels.items(), strict=True):
            axes.set_ylabel(label)
            known = table[table[column].notna()]
            if known.empty:
                axes.text(0.5, 0.5, "not known", ha="center", transform=axes.transAxes, color=GREY)
                continue
            if f"{column} low" in table:
                ends = (known[f"{column} {end}"].astype(float) for end in ("low", "high"))
                k = known["K"].astype(float)
                axes.fill_between(k, *ends, color=BLUE, alpha=0.2, lw=0, label="95% interval")
            axes.plot(known["K"], known[column], "o-", color=BLUE, ms=4, lw=1.2)
            if column == "mean grade":
                judged, label = known["mean grade of judged"], "graded memes only"
                axes.plot(known["K"], judged, "^--", color=GREY, ms=4, lw=1, label=label)
                axes.legend(fontsize=8)
            if column in ("mean grade", "repeats"):
                axes.set_ylim(bottom=0)
            axes.axvline(own_k, color=GREY, lw=0.8, ls=":")
        for axes in fig.axes[2:]:
            axes.set_xlabel(f"K (dotted: the run's, {own_k})")
            axes.set_xticks(table["K"].astype(int))
    return fig


# --- The specification curve


STATES = {
    "clear": ("holds, clearly", BLUE),
    "sign only": ("holds, not clearly", "#56B4E9"),
    "not": ("does not hold, not clearly", ORANGE),
    "clearly opposite": ("does not hold, clearly", RED),
}
"""Label and colour of a state; specifications that cannot tell or were not asked are not drawn."""
SCALES = {
    r".+, ungraded (as 0|left out)": "mean grade (0-2)",
    r"consistency with .+": "text consistency (0-100)",
    r"judge .+": "judge (0-100)",
}
"""Scale of a measure by its name (`specification_curve.measures`); any other is a scale of its own."""
MOST_COLUMNS = 240
"""Columns of the grid of choices: with more specifications each column stands for several."""


def specification_figure(curve: pd.DataFrame, claim: int) -> Figure:
    """All specifications of one claim, sorted by their estimate, above the choices that make them.

    One column of panels for each scale that the claim is measured on. In the grid a column is dark where
    its specifications have the row's value.
    """
    mine = curve[curve["claim"] == claim]
    drawn = mine[mine["state"].isin(list(STATES))]
    drawn = drawn.assign(scale=drawn["measure"].map(_scale))
    rows = [(axis, value) for axis in AXES if drawn[axis].nunique() > 1 for value in drawn[axis].unique()]
    scales = list(drawn["scale"].unique())
    heights = [2.4, 0.19 * max(1, len(rows))]
    with style():
        fig = canvas(max(5.0, 2.6 + 4.0 * max(1, len(scales))), 3.1 + heights[1])
        fig.suptitle(_title(claim, mine), fontsize=11, x=0.01, ha="left")
        if not scales:
            fig.subplots().set_axis_off()
            return fig
        panels = fig.subplots(2, len(scales), squeeze=False, height_ratios=heights)
        for number, scale in enumerate(scales):
            here = drawn[drawn["scale"] == scale].sort_values("mean", kind="stable")
            _draw_curve(panels[0, number], here, scale)
            _draw_grid(panels[1, number], here, rows, labels=number == 0)
        handles = [Line2D([], [], color=colour, lw=3, label=label) for label, colour in STATES.values()]
        fig.legend(handles=handles, loc="outside lower center", ncols=4, fontsize=8.5)
    return fig


def _title(claim: int, curve: pd.DataFrame) -> str:
    counted = curve[curve["state"] != "not asked"]
    silent = int((counted["state"] == "cannot tell").sum())
    left_out = f", {silent:,} of which cannot tell and are not drawn" if silent else ""
    among = f" over {counted['dialogues'].max()} dialogues" if len(counted) else ""
    return f"Claim {claim}: {CLAIMS[claim]}\n{len(counted):,} worlds{among}{left_out}"


def _scale(measure: str) -> str:
    return next((scale for name, scale in SCALES.items() if re.fullmatch(name, measure)), measure)


def _draw_curve(axes: Axes, curve: pd.DataFrame, scale: str) -> None:
    x = np.arange(len(curve)) + 0.5
    width = float(np.clip(300 / len(curve), 0.4, 3))
    for state, (_, colour) in STATES.items():
        own = (curve["state"] == state).to_numpy()
        part = curve[own]
        axes.vlines(x[own], part["low"], part["high"], color=colour, lw=width, alpha=0.45)
        axes.plot(x[own], part["mean"], ".", color=colour, ms=3 if len(curve) > 100 else 6)
    axes.plot(x, curve["mean"], color="black", lw=0.8)
    axes.axhline(0, color="black", lw=0.8)
    ends = curve[["low", "high", "mean"]].to_numpy(dtype=float)
    low, high = np.nanpercentile(ends, (0.5, 99.5))  # the few that send almost nothing are very wide
    margin = 0.05 * (max(high, 0) - min(low, 0) or 1)
    axes.set_ylim(min(low, 0) - margin, max(high, 0) + margin)
    axes.set_xlim(0, len(curve))
    axes.set_xticks([])
    axes.set_title(f"{scale}, {len(curve):,} worlds", fontsize=9.5)
    axes.set_ylabel("difference, 95% interval", fontsize=9)


def _draw_grid(axes: Axes, curve: pd.DataFrame, rows: Sequence[tuple[str, str]], labels: bool) -> None:
    """Which choices make each specification; several share a column where there are many."""
    columns = min(MOST_COLUMNS, len(curve))
    place = np.arange(len(curve)) * columns // len(curve)
    size = np.bincount(place, minlength=columns)
    shade = [np.bincount(place, (curve[axis] == value).to_numpy(), columns) / size for axis, value in rows]
    if shade:
        extent = (0, len(curve), len(rows) - 0.5, -0.5)
        axes.imshow(
            shade, aspect="auto", cmap="Greys", vmin=0, vmax=1.25, interpolation="none", extent=extent
        )
    axes.set_xticks([])
    axes.grid(visible=False)
    names, before = [], ""
    for number, (axis, value) in enumerate(rows):
        value = {"+": "plus", "-": "minus"}.get(value, value)
        names.append(value if axis == before else f"{NAMES.get(axis, axis)}:  {value}")
        if number and axis != before:
            axes.axhline(number - 0.5, color=drawing.GREY, lw=0.8)
        before = axis
    axes.set_yticks(range(len(rows)) if labels else [], names if labels else [], fontsize=7.5)
    axes.tick_params(length=0)
    axes.set_xlabel("worlds, from the smallest difference to the largest", fontsize=8.5)
