"""The paper's figures with matplotlib's object API: no pyplot, no global state, the same bytes every time."""

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from memecmd_utils import fonts, schemas
from memecmd_utils.plots import BLUE, GREEN, GREY, ORANGE, PURPLE, RED, canvas, style

STRATEGIES = {
    "greedy": (BLUE, "o"),
    "sampling": (GREEN, "s"),
    "random": (ORANGE, "^"),
    "random_same_turns": (PURPLE, "D"),
}
"""Colour and marker of each strategy."""
KINDS = {"news": "News-based", "role": "Role-based"}
"""Labels of the kinds of dialogues, in the order of figures."""
DIMENSIONS = {
    "s_plus": "$S^+$  fitting scenarios",
    "s_minus": "$S^-$  unfitting scenarios",
    "emotion": "$E$  emotion and internet meaning",
    "motivation": r"$\Psi$  motivation and intent",
}
_APART = "  "
"""Around each word of a cloud, so in its own size: Chinese has no blanks, and what touches is read as one."""
_CLOUD_COLOURS = {"s_plus": BLUE, "s_minus": RED, "emotion": GREEN, "motivation": PURPLE}


def word_clouds(keywords: Mapping[str, Mapping[str, int]], seed: int = 13) -> Figure:
    """Figure 2: a word cloud for each annotated dimension; keys as in `DIMENSIONS`."""
    from wordcloud import WordCloud

    unknown = set(keywords) - set(DIMENSIONS)
    if unknown:
        raise ValueError(f"unknown dimensions {sorted(unknown)}; known: {list(DIMENSIONS)}")
    with style():
        fig = canvas(9, 5.6)
        for axes, (key, title) in zip(fig.subplots(2, 2).flat, DIMENSIONS.items(), strict=True):
            axes.set_title(title)
            axes.set_axis_off()
            counts = dict(keywords.get(key, {}))
            if not counts:
                axes.text(0.5, 0.5, "no keywords", ha="center", va="center", color=GREY)
                continue
            cloud = WordCloud(
                font_path=str(fonts.cjk_font_path()),
                width=880,
                height=480,
                background_color="white",
                random_state=seed,
                prefer_horizontal=1.0,
                margin=6,
                min_font_size=22,  # half of it on a page: what is smaller cannot be read
                max_words=80,
                max_font_size=110,
                relative_scaling=0.5,
                color_func=_shades(_CLOUD_COLOURS[key], counts),
            ).generate_from_frequencies({f"{_APART}{word}{_APART}": n for word, n in counts.items()})
            axes.imshow(cloud.to_array(), interpolation="antialiased")
    return fig


def _shades(colour: str, counts: Mapping[str, int]) -> Any:
    base = np.array(matplotlib.colors.to_rgb(colour))
    most = max(counts.values())

    def colour_of(word: str, **_: Any) -> str:
        # Rare words are paler, but never paler than the eye can read on white.
        strength = 0.62 + 0.38 * counts[word.strip()] / most
        return matplotlib.colors.to_hex(1 - strength * (1 - base))

    return colour_of


def score_distribution(
    scores: np.ndarray,
    top1: np.ndarray,
    theta0: float | None = None,
    *,
    top1_label: str = "score of the best meme",
) -> Figure:
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


def score_distributions(found: Mapping[str, np.ndarray]) -> Figure:
    """Figure 3: a row for news-based dialogues, as the paper has it, and one for role-based ones.

    `found`: `news scores`, `news top1`, `role scores`, `role top1` (`selection.scores_by_kind`); a kind that
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


def _score_panels(left: Axes, right: Axes, scores: np.ndarray, top1: np.ndarray, words: str = "") -> None:
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


def threshold_curve(theta0: float, penalty: float, decay: float, longest: int = 12) -> Figure:
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
) -> Figure:
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
