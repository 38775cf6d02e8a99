"""Figures of scores and threshold: how scores are spread (Figure 3), and a gate turn by turn."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from memecmd_utils.core.plots import BLUE, GREEN, GREY, RED, canvas, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


KINDS = {"news": "News-based", "role": "Role-based"}
"""Labels of the kinds of dialogues, in the order of figures."""


def score_distribution(
    scores: np.ndarray,
    top1: np.ndarray,
    theta0: float | None = None,
    *,
    top1_label: str = "score of the best meme",
) -> "Figure":
    """All retrieval scores with a fitted normal curve; beside it the best score of each turn.

    `theta0` is drawn into the second panel, so it must be on the scale of `top1`.
    """
    with style():
        fig = canvas(9, 3.4)
        left, right = fig.subplots(1, 2)
        _score_panels(left, right, scores, top1)
        right.set_xlabel(top1_label)
        if theta0 is not None and np.size(top1):
            right.set_ylim(top=1.2 * right.get_ylim()[1])  # room for the note above the bars
            right.axvline(theta0, color=RED, lw=1.4)
            share = float(np.mean(np.asarray(top1) > theta0))
            note = f" $\\theta_0$ = {theta0:.2f}\n {share:.0%} above"
            right.text(theta0, 0.97, note, color=RED, va="top", transform=right.get_xaxis_transform())
    return fig


def score_distributions(found: Mapping[str, np.ndarray]) -> "Figure":
    """Figure 3: a row for news-based dialogues, as the paper has it, and one for role-based ones.

    `found`: `news scores`, `news top1`, `role scores`, `role top1` (`placement.scores_by_kind`); a kind that
    is not there has no row.
    """
    rows = {
        words: (found[f"{kind} scores"], found[f"{kind} top1"])
        for kind, words in KINDS.items()
        if f"{kind} top1" in found
    } or {"": (np.zeros(0), np.zeros(0))}
    with style():
        fig = canvas(9, 3.1 * len(rows))
        grid = fig.subplots(len(rows), 2, squeeze=False, sharex="col")
        for (left, right), (words, (scores, top1)) in zip(grid, rows.items(), strict=True):
            _score_panels(left, right, scores, top1, f"{words}: ")
        for axes in grid[:-1].flat:
            axes.set_xlabel("")
    return fig


def _score_panels(left: "Axes", right: "Axes", scores: np.ndarray, top1: np.ndarray, words: str = "") -> None:
    for axes, values, colour in ((left, scores, BLUE), (right, top1, GREEN)):
        values = np.asarray(values, dtype=float).ravel()
        if not values.size:
            axes.text(0.5, 0.5, "no scores", ha="center", color=GREY, transform=axes.transAxes)
            continue
        bins = int(np.clip(np.sqrt(values.size), 10, 80))
        heights, edges = np.histogram(values, bins=bins, density=True)
        axes.stairs(heights, edges, fill=True, color=colour, alpha=0.55)
        axes.set_ylabel("density")
        axes.margins(x=0.02)
    deviation = float(np.std(scores)) if np.size(scores) else 0.0
    if deviation > 0:
        mean = float(np.mean(scores))
        x = np.linspace(np.min(scores), np.max(scores), 300)
        curve = np.exp(-0.5 * ((x - mean) / deviation) ** 2) / (deviation * np.sqrt(2 * np.pi))
        left.plot(
            x,
            curve,
            color="black",
            lw=1.2,
            label=f"normal, mean {round(mean, 3) + 0.0:.3f}, sd {deviation:.3f}",
        )
        left.legend(loc="upper left", fontsize=9)
        left.set_ylim(top=1.25 * max(left.get_ylim()[1], curve.max()) / 1.05)
    left.set_title(f"{words}{'m' if words else 'M'}emes x turns (n = {np.size(scores):,})")
    left.set_xlabel("retrieval score T")
    right.set_title(f"{words}{'b' if words else 'B'}est meme of each turn (n = {np.size(top1):,})")
    right.set_xlabel("score of the best meme")


def threshold_curve(theta0: float, penalty: float, decay: float, longest: int = 12) -> "Figure":
    """Eq. 23: the gate's threshold over the turns since the last meme."""
    with style():
        fig = canvas(5, 3)
        axes = fig.subplots()
        k = np.linspace(0, longest, 200)
        axes.plot(k, theta0 + penalty * np.exp(-decay * k), color=BLUE, lw=1.2)
        turns = np.arange(1, longest + 1)
        axes.plot(turns, theta0 + penalty * np.exp(-decay * turns), "o", color=BLUE, ms=4)
        axes.axhline(theta0, color=GREY, lw=1, ls="--")
        axes.annotate(
            "$\\theta_0$ (no meme yet)",
            (longest, theta0),
            (0, 4),
            textcoords="offset points",
            ha="right",
            color=GREY,
        )
        axes.set_xlabel("turns since the last meme, k")
        axes.set_ylabel("threshold $\\theta$")
        axes.set_title(f"$\\theta_0$ = {theta0:g}, $\\Delta$ = {penalty:g}, $\\lambda$ = {decay:g}")
    return fig


def gate_trace(
    dialogue_id: str, gate_scores: Sequence[float], thresholds: Sequence[float], sent: Sequence[bool]
) -> "Figure":
    """Scores of one dialogue's best memes against the moving threshold; the first value is turn 2."""
    if not len(gate_scores) == len(thresholds) == len(sent):
        raise ValueError("gate_scores, thresholds and sent must be equally long")
    turns = np.arange(2, 2 + len(gate_scores))
    chosen = np.asarray(sent, dtype=bool)
    values = np.asarray(gate_scores, dtype=float)
    with style():
        fig = canvas(7, 3)
        axes = fig.subplots()
        axes.step(turns, thresholds, where="mid", color=RED, lw=1.3, label="threshold $\\theta_t$")
        axes.plot(turns, values, color=GREY, lw=0.8)
        axes.plot(turns[~chosen], values[~chosen], "o", mfc="white", color=GREY, ms=6, label="no meme")
        axes.plot(turns[chosen], values[chosen], "o", color=BLUE, ms=7, label="meme sent")
        axes.set_xticks(turns)
        axes.set_xlabel("turn")
        axes.set_ylabel("gate score")
        axes.set_title(f"{dialogue_id}: {chosen.sum()} of {chosen.size} turns send a meme")
        fig.legend(loc="outside right upper", fontsize=9)
    return fig
