"""Figures of a tuning: the learning rate step by step, and loss and R@1 by epoch."""

from collections.abc import Mapping

import pandas as pd
from matplotlib.figure import Figure

from memecmd_utils.plots import BLUE, GREY, ORANGE, canvas, style
from memecmd_utils.retrieval_figures import CHOSEN_BY
from memecmd_utils.template_settings import MemeRetrieval
from memecmd_utils.tuning_schedule import learning_rate

R_AT_1 = {
    "validation": ("validation_R@1", "CM50, validation", BLUE),
    "paper": ("test_R@1", "MemeCap", ORANGE),
}
"""Column of the history, name and colour of what each selection looks at."""


def rates(settings: MemeRetrieval, steps_per_epoch: int) -> list[float]:
    """Learning rate of every step of a tuning with `settings`."""
    steps = settings.epochs * steps_per_epoch
    warmup = settings.warmup_epochs * steps_per_epoch
    return [learning_rate(step, steps, warmup, settings) for step in range(steps)]


def schedule_figure(settings: MemeRetrieval, steps_per_epoch: int) -> Figure:
    """Draw the learning rate over the epochs (2501.13851, Section 4.2)."""
    with style():
        fig = canvas(6.4, 2.4)
        axes = fig.subplots()
        drawn = rates(settings, steps_per_epoch)
        axes.plot([step / steps_per_epoch for step in range(len(drawn))], drawn, color=BLUE)
        axes.set(xlabel="epoch", ylabel="learning rate", ylim=(0, None))
    return fig


def history_figure(history: pd.DataFrame, epochs: Mapping[str, int]) -> Figure:
    """Draw loss and R@1 by epoch; a vertical line marks the epoch that each selection took.

    `history` and `epochs` are those of `clip_tuning.Tuned`. Epoch 0 is the model before tuning.
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
