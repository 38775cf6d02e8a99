"""Figures of stage 04: the gate of one dialogue (Eq. 23), and all scores (Figure 3)."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from memecmd_utils.drawing import BLUE, GREEN, GREY, RED, canvas, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


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


def score_distribution(scores: np.ndarray, top1: np.ndarray) -> "Figure":
    """All retrieval scores with a fitted normal curve; beside them the best score of each turn."""
    return _score_figure({"": (scores, top1)})


def score_distributions(by_kind: Mapping[str, np.ndarray]) -> "Figure":
    """Figure 3 of `scores_by_kind`: a row for news-based dialogues, as the paper has it, and one for role."""
    rows = {
        f"{label}: ": (by_kind[f"{kind} scores"], by_kind[f"{kind} top1"])
        for kind, label in (("news", "News-based"), ("role", "Role-based"))
        if f"{kind} top1" in by_kind
    }
    return _score_figure(rows or {"": (np.zeros(0), np.zeros(0))})


def _score_figure(rows: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> "Figure":
    with style():
        fig = canvas(9, 3.1 * len(rows))
        grid = fig.subplots(len(rows), 2, squeeze=False, sharex="col")
        for panels, (label, (scores, top1)) in zip(grid, rows.items(), strict=True):
            for axes, values, colour in zip(panels, (scores, top1), (BLUE, GREEN), strict=True):
                _histogram(axes, np.asarray(values, dtype=float), colour)
            left, right = panels
            if np.size(scores) and np.std(scores) > 0:
                _normal_curve(left, scores)
            left.set_title(f"{label}{'m' if label else 'M'}emes x turns (n = {np.size(scores):,})")
            right.set_title(f"{label}{'b' if label else 'B'}est meme of each turn (n = {np.size(top1):,})")
        left.set_xlabel("retrieval score T")
        right.set_xlabel("score of the best meme")
    return fig


def _histogram(axes: "Axes", values: np.ndarray, colour: str) -> None:
    if not values.size:
        axes.text(0.5, 0.5, "no scores", ha="center", color=GREY, transform=axes.transAxes)
        return
    bins = int(np.clip(np.sqrt(values.size), 10, 80))
    heights, edges = np.histogram(values, bins=bins, density=True)
    axes.stairs(heights, edges, fill=True, color=colour, alpha=0.55)
    axes.set_ylabel("density")
    axes.margins(x=0.02)


def _normal_curve(axes: "Axes", scores: np.ndarray) -> None:
    mean, deviation = float(np.mean(scores)), float(np.std(scores))
    x = np.linspace(np.min(scores), np.max(scores), 300)
    curve = np.exp(-0.5 * ((x - mean) / deviation) ** 2) / (deviation * np.sqrt(2 * np.pi))
    label = f"normal, mean {round(mean, 3) + 0.0:.3f}, sd {deviation:.3f}"
    axes.plot(x, curve, color="black", lw=1.2, label=label)
    axes.legend(loc="upper left", fontsize=9)
    axes.set_ylim(top=1.25 * max(axes.get_ylim()[1], curve.max()) / 1.05)
