"""Figure of meme-text retrieval: R@K by kind of text, before and after tuning, by meme and by template."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from memecmd_utils.meme_text_retrieval import BOTH, KS
from memecmd_utils.plots import BLUE, GREEN, GREY, ORANGE, PURPLE, RED, canvas, style
from memecmd_utils.retrieval_items import KINDS

TEXTS = {
    "meme_caption": "meme captions",
    "image_caption": "image captions",
    "embedded_text": "embedded text",
    "title": "titles",
}
BY = {"pair": "the meme itself", "template": "any meme of its template"}
CHOSEN_BY = {"validation": "epoch by validation set", "paper": "epoch by test set"}
"""How the two selections are named; the second is the paper's code's."""
_MARKS = ((GREY, "o"), (BLUE, "s"), (ORANGE, "D"), (GREEN, "^"), (PURPLE, "v"), (RED, "P"))
_DODGE = 0.16


def recall_figure(recalls: pd.DataFrame, models: Sequence[str] | None = None) -> Figure:
    """Draw R@1, R@5 and R@10 with 95 % intervals, both directions together.

    `recalls` is the table of `retrieval_rows.all_recalls`; a column of panels a kind of text, a row a way of
    counting: a hit is the meme itself, or any meme of its template. `models` (labels) chooses some. Only what
    was computed is drawn; where nothing was, the figure says so.
    """
    frame = recalls[(recalls["direction"] == BOTH) & recalls["measure"].isin([f"R@{k}" for k in KS])]
    if models is not None:
        frame = frame[frame["model"].isin(list(models))]
    kinds = [kind for kind in KINDS if kind in set(frame["text"])]
    counted = [name for name in BY if name in set(frame["counting"])]
    with style():
        if not kinds or not counted:
            return _empty("not computed here: no model was measured")
        fig = canvas(2.5 * len(kinds) + 0.8, 2.4 * len(counted) + 0.7)
        grid = fig.subplots(len(counted), len(kinds), sharex=True, sharey=True, squeeze=False)
        for panels, counting in zip(grid, counted, strict=True):
            for axes, kind in zip(panels, kinds, strict=True):
                _panel(axes, frame, kind, counting)
            panels[0].set_ylabel(f"hit: {BY[counting]}")
        for axes, kind in zip(grid[0], kinds, strict=True):
            axes.set_title(TEXTS[kind])
        handles = {
            label: h for a in grid.flat for h, label in zip(*a.get_legend_handles_labels(), strict=True)
        }
        columns = min(3, len(handles))
        fig.legend(handles.values(), handles, loc="outside lower center", ncols=columns, fontsize=9)
    return fig


def _panel(axes: Axes, frame: pd.DataFrame, kind: str, counting: str) -> None:
    series = list(dict.fromkeys(zip(frame["model"], frame["selection"], strict=True)))
    axes.set_ylim(0, 1.05)
    axes.set_xlim(-0.5, len(KS) - 0.5)
    axes.set_xticks(range(len(KS)), [f"R@{k}" for k in KS])
    for place, (model, selection) in enumerate(series):
        mine = frame[(frame["model"] == model) & (frame["selection"] == selection)]
        mine = mine[(mine["text"] == kind) & (mine["counting"] == counting)].set_index("measure")
        if mine.empty:
            continue
        rows = mine.loc[[f"R@{k}" for k in KS]]
        colour, marker = _MARKS[place % len(_MARKS)]
        at = np.arange(len(KS)) + _DODGE * (place - (len(series) - 1) / 2)
        value, low, high = (rows[name].to_numpy(dtype=float) for name in ("value", "low", "high"))
        reach = None if np.isnan(low).any() else np.maximum(0, [value - low, high - value])
        label = f"{model}, {CHOSEN_BY[selection]}" if selection else model
        axes.errorbar(at, value, yerr=reach, fmt=marker, ms=4.5, color=colour, capsize=2, lw=1.2, label=label)
    n = frame.loc[(frame["text"] == kind) & (frame["counting"] == counting), "n"]
    axes.text(
        0.98, 0.03, f"n = {n.max():,.0f}" if len(n) else "none", ha="right", fontsize=8, color=GREY,
        transform=axes.transAxes,
    )  # fmt: skip


def _empty(text: str) -> Figure:
    fig = canvas(6, 1.6)
    axes = fig.subplots()
    axes.set_axis_off()
    axes.text(0.5, 0.5, text, ha="center", va="center", color=GREY, transform=axes.transAxes)
    return fig
