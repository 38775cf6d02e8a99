"""Tables 2, 3 and 4 of 2501.13851 in its form beside those computed here, and figures of notebook 08.

A row is filled by a model of that row's architecture alone. What is not there is said in a note; a cell is
never filled with something like it, and numbers of a tiny model never get here.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from memecmd_utils import statistics
from memecmd_utils.core.encoders import clip
from memecmd_utils.core.encoders.clip import ARCHITECTURES, L14
from memecmd_utils.drawing import BLUE, GREEN, GREY, ORANGE, PURPLE, RED, canvas, style
from memecmd_utils.files import paths
from memecmd_utils.mtrclip.models import FINE_TUNED, NOT_COMPUTED, ORDER, Measured
from memecmd_utils.mtrclip.recall import BOTH, KINDS, KS, MEASURES
from memecmd_utils.mtrclip.tuning import learning_rate
from memecmd_utils.settings import MtrclipSettings


def paper_table(number: int) -> pd.DataFrame:
    """Table 2, 3 or 4 as printed in 2501.13851."""
    return pd.read_csv(paths.data / "paper" / f"mtrclip_table{number}.csv")


def table_2(measured: Sequence[Measured]) -> pd.DataFrame:
    """Table 2: R@1 of meme captions in both directions, on MemeCap; a row a model and selection."""
    printed = paper_table(2).set_index("model")
    rows = []
    for label in ORDER:
        for one in (one for one in measured if one.row.label == label):
            row = {"model": label, "selection": one.row.selection}
            shown, note = _allowed(one, label, "meme_caption")
            for direction in ("T2M", "M2T"):
                row[f"{direction} R@1 paper"] = printed.loc[label, direction.lower()]
                row |= _cell(shown, direction, "R@1", f"{direction} R@1")
            rows.append(row | _tail(shown, one, note))
    return pd.DataFrame(rows)


def table_3(measured: Sequence[Measured]) -> pd.DataFrame:
    """Table 3: R@K on MemeCap by kind of text, both directions together, before and after fine-tuning."""
    return _by_text(measured, 3)


def table_4(measured: Sequence[Measured]) -> pd.DataFrame:
    """Table 4: the same on CM50's validation set."""
    return _by_text(measured, 4)


def _by_text(measured: Sequence[Measured], number: int) -> pd.DataFrame:
    printed = paper_table(number).set_index(["fine_tuned", "text"])
    rows = []
    for label, fine_tuned in ((L14, "no"), ("Fine-tuned CLIP", "yes")):
        for one in (one for one in measured if one.row.label == label):
            for kind in KINDS:
                row = {"fine-tuned": fine_tuned, "selection": one.row.selection, "text": kind}
                shown, note = _allowed(one, label, kind)
                for name in MEASURES:
                    row[f"{name} paper"] = printed.loc[(fine_tuned, kind), name]
                    row |= _cell(shown, BOTH, name, name)
                rows.append(row | _tail(shown, one, note))
    return pd.DataFrame(rows)


def _allowed(one: Measured, label: str, kind: str) -> tuple[pd.DataFrame | None, str]:
    """The numbers that may stand in a row, in the paper's counting; else None and why there are none."""
    if one.note:
        return None, one.note
    wanted = FINE_TUNED.get(label, label)
    ranking = one.rankings.get(kind)
    if ranking is None:
        return None, f"{NOT_COMPUTED}: no meme has a text of this kind"
    if clip.architecture(one.row.model) != wanted:
        misfit = clip.misfit(one.row.model, wanted) or f"{one.weights} is no {wanted}"
        return None, f"{NOT_COMPUTED}: {misfit}"
    if ranking.dim != (dim := ARCHITECTURES[wanted].dim):
        return None, f"{NOT_COMPUTED}: vectors of {one.weights} have length {ranking.dim}, not {dim}"
    frame = Measured(one.row, one.weights, {kind: ranking}).recalls()
    return frame[frame["counting"] == "pair"].set_index(["direction", "measure"]), ""


def _cell(shown: pd.DataFrame | None, direction: str, measure: str, name: str) -> dict[str, float]:
    ends = {"": "value", " low": "low", " high": "high"}
    return {
        f"{name}{end}": np.nan if shown is None else float(shown.loc[(direction, measure), column])
        for end, column in ends.items()
    }


def _tail(shown: pd.DataFrame | None, one: Measured, note: str) -> dict[str, object]:
    n = 0 if shown is None else int(shown["n"].iloc[0])
    return {"n": n, "weights": one.weights if n else "", "note": note}


def printed_table(table: pd.DataFrame) -> pd.DataFrame:
    """A table for reading: value and interval in one cell, beside it the paper's number.

    A row of which nothing was computed has dashes, and its note says what to give.
    """
    out = pd.DataFrame()
    for name in table.columns:
        if name.endswith((" low", " high")):
            continue
        if f"{name} low" not in table.columns:
            digits = name.endswith(" paper")
            out[name] = [f"{value:.3f}" for value in table[name]] if digits else list(table[name])
            continue
        out[f"{name} here"] = [statistics.format_interval(row, name, 3) for row in table.to_dict("records")]
    return out


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


def recall_figure(recalls: pd.DataFrame) -> Figure:
    """Draw R@1, R@5 and R@10 with 95 % intervals, both directions together.

    `recalls` is the table of `models.all_recalls`; a column of panels a kind of text, a row a way of
    counting: a hit is the meme itself, or any meme of its template.
    """
    frame = recalls[(recalls["direction"] == BOTH) & recalls["measure"].isin([f"R@{k}" for k in KS])]
    kinds = [kind for kind in KINDS if kind in set(frame["text"])]
    counted = [name for name in BY if name in set(frame["counting"])]
    with style():
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


R_AT_1 = {
    "validation": ("validation_R@1", "CM50, validation", BLUE),
    "paper": ("test_R@1", "MemeCap", ORANGE),
}
"""Column of the history, name and colour of what each selection looks at."""


def learning_rates(settings: MtrclipSettings, steps_per_epoch: int) -> list[float]:
    """Learning rate of every step of a tuning with `settings`."""
    steps = settings.epochs * steps_per_epoch
    warmup = settings.warmup_epochs * steps_per_epoch
    return [learning_rate(step, steps, warmup, settings) for step in range(steps)]


def schedule_figure(settings: MtrclipSettings, steps_per_epoch: int) -> Figure:
    """Draw the learning rate over the epochs (2501.13851, Section 4.2)."""
    with style():
        fig = canvas(6.4, 2.4)
        axes = fig.subplots()
        drawn = learning_rates(settings, steps_per_epoch)
        axes.plot([step / steps_per_epoch for step in range(len(drawn))], drawn, color=BLUE)
        axes.set(xlabel="epoch", ylabel="learning rate", ylim=(0, None))
    return fig


def history_figure(history: pd.DataFrame, epochs: Mapping[str, int]) -> Figure:
    """Draw loss and R@1 by epoch; a vertical line marks the epoch that each selection took.

    `history` and `epochs` are those of `tuning.Tuned`. Epoch 0 is the model before tuning.
    """
    with style():
        fig = canvas(8, 2.8)
        left, right = fig.subplots(1, 2)
        trained = history[history["epoch"] > 0]
        left.plot(trained["epoch"], trained["loss"], color=GREY, marker="o")
        left.set(xlabel="epoch", ylabel="loss", ylim=(0, None))
        for selection, (column, name, colour) in R_AT_1.items():
            if column not in history:
                continue
            right.plot(history["epoch"], history[column], color=colour, marker="o", label=name)
            if selection in epochs:
                label = CHOSEN_BY[selection]
                right.axvline(epochs[selection], color=colour, linestyle=":", label=label)
        right.set(xlabel="epoch", ylabel="R@1", ylim=(0, 1))
        right.legend(fontsize=9)
    return fig
