"""Figures of the studies: hubs, and the specification curve."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from memecmd_utils.drawing import BLUE, GREY, ORANGE, RED, canvas, style
from memecmd_utils.studies.hubness import CSLS, NONE
from memecmd_utils.studies.specification_curve import AXES, CLAIMS, NAMES

LINES = {NONE: (GREY, "-"), CSLS: (BLUE, "--")}
"""Colour and line of scores without and with a cure."""


def hubs_figure(counts: pd.DataFrame) -> Figure:
    """N_1 of every meme, most frequent first, without and with CSLS: `counts` of `hubness.hubness_study`.

    A row of panels an embedder, a column a kind of scores. An even use would be a level line.
    """
    panels = list(counts.groupby(["embedder", "scores"], sort=False))
    rows = max(1, -(-len(panels) // 2))
    with style():
        fig = canvas(9.2, 2.5 * rows + 0.7)
        for axes, (name, part) in zip(
            fig.subplots(rows, 2, sharex=True, sharey=True, squeeze=False).flat, panels, strict=False
        ):
            for cure, mine in part.groupby("cure", sort=False):
                colour, line = LINES[cure]
                values = np.sort(mine["N_1"].to_numpy())[::-1]
                label = "without a cure" if cure == NONE else cure
                axes.step(np.arange(1, len(values) + 1), values, line, where="mid", color=colour, label=label)
            even = part["N_1"].sum() / len(part)
            axes.axhline(even, color="black", lw=0.8, ls=(0, (1, 4)), label="even use")
            axes.set(title=", ".join(name), xscale="log", xlabel="memes, most frequent first")  # hubs are few
            axes.xaxis.set_major_formatter("{x:g}")
        if panels:
            legend = fig.axes[0].get_legend_handles_labels()
            fig.legend(*legend, loc="outside lower center", ncols=5, fontsize=9)
        fig.supylabel("turns at which it is the best ($N_1$)", fontsize=10)
    return fig


# --- The specification curve


STATES = {
    "clear": ("holds, clearly", BLUE),
    "sign only": ("holds, not clearly", "#56B4E9"),
    "not": ("does not hold, not clearly", ORANGE),
    "clearly opposite": ("does not hold, clearly", RED),
}
"""Label and colour of a state; specifications that cannot tell are not drawn."""
SCALES = {"consistency": "text consistency (0-100)", "ungraded": "mean grade (0-2)"}
"""Scale of a measure by a word in its name; any other is a scale of its own."""
MOST_COLUMNS = 240
"""Columns of the grid of choices: with more specifications each column stands for several."""


def specification_figure(curve: pd.DataFrame, claim: int) -> Figure:
    """All specifications of one claim, sorted by their estimate, above the choices that make them.

    One column of panels for each scale that the claim is measured on. In the grid a column is dark where
    its specifications have the row's value.
    """
    counted = curve[curve["claim"] == claim]
    drawn = counted[counted["state"].isin(list(STATES))]
    scale = drawn["measure"].map(lambda m: next((of for word, of in SCALES.items() if word in m), m))
    rows = [(axis, value) for axis in AXES if drawn[axis].nunique() > 1 for value in drawn[axis].unique()]
    height, columns = 0.19 * max(1, len(rows)), max(1, scale.nunique())
    with style():
        fig = canvas(max(5.0, 2.6 + 4.0 * columns), 3.1 + height)
        silent = f", {len(counted) - len(drawn):,} of which cannot tell" if len(counted) > len(drawn) else ""
        title = f"Claim {claim}: {CLAIMS[claim]}\n{len(counted):,} worlds{silent}"
        fig.suptitle(title, fontsize=11, x=0.01, ha="left")
        panels = fig.subplots(2, columns, squeeze=False, height_ratios=[2.4, height])
        for number, name in enumerate(scale.unique()):
            here = drawn[scale == name].sort_values("mean", kind="stable")
            _draw_curve(panels[0, number], here, name)
            _draw_grid(panels[1, number], here, rows)
        for axes in panels[1, 1:]:
            axes.set_yticklabels([])
        handles = [Line2D([], [], color=colour, lw=3, label=label) for label, colour in STATES.values()]
        fig.legend(handles=handles, loc="outside lower center", ncols=4, fontsize=8.5)
    return fig


def _draw_curve(axes: Axes, curve: pd.DataFrame, scale: str) -> None:
    x = np.arange(len(curve)) + 0.5
    for state, (_, colour) in STATES.items():
        own = (curve["state"] == state).to_numpy()
        part = curve[own]
        axes.vlines(x[own], part["low"], part["high"], color=colour, lw=0.5, alpha=0.45)
        axes.plot(x[own], part["mean"], ".", color=colour, ms=3)
    axes.plot(x, curve["mean"], color="black", lw=0.8)
    axes.axhline(0, color="black", lw=0.8)
    # The few that send almost nothing are very wide.
    low, high = np.nanpercentile(curve[["low", "high", "mean"]].to_numpy(dtype=float), (0.5, 99.5))
    axes.set(xlim=(0, len(curve)), ylim=(1.05 * min(low, 0) - 1e-3, 1.05 * max(high, 0) + 1e-3), xticks=[])
    axes.set_title(f"{scale}, {len(curve):,} worlds", fontsize=9.5)
    axes.set_ylabel("difference, 95% interval", fontsize=9)


def _draw_grid(axes: Axes, curve: pd.DataFrame, rows: list[tuple[str, str]]) -> None:
    """Which choices make each specification; several share a column where there are many."""
    columns = min(MOST_COLUMNS, len(curve))
    place = np.arange(len(curve)) * columns // len(curve)
    size = np.bincount(place, minlength=columns)
    shade = [np.bincount(place, (curve[axis] == value).to_numpy(), columns) / size for axis, value in rows]
    if shade:
        axes.imshow(shade, aspect="auto", cmap="Greys", vmin=0, vmax=1.25, interpolation="none")
    signs = {"+": "plus", "-": "minus"}
    names = [f"{NAMES.get(axis, axis)}:  {signs.get(value, value)}" for axis, value in rows]
    axes.grid(visible=False)
    axes.set(xticks=[], yticks=range(len(rows)))
    axes.set_yticklabels(names, fontsize=7.5)
    axes.tick_params(length=0)
    axes.set_xlabel("worlds, from the smallest difference to the largest", fontsize=8.5)
