import pandas as pd
import pytest

from memecmd_utils.core import plots
from memecmd_utils.mtrclip import tables
from memecmd_utils.settings import MtrclipSettings

SCORES = {"validation_R@1": [0.2, 0.5, 0.4], "test_R@1": [0.1, 0.3, 0.6]}
HISTORY = pd.DataFrame({"epoch": [0, 1, 2], "loss": [float("nan"), 2.0, 1.0], **SCORES})


def test_the_schedule_is_drawn_over_epochs() -> None:
    (axes,) = tables.schedule_figure(MtrclipSettings(epochs=3), 5).axes
    x, y = axes.lines[0].get_data()
    assert (len(x), x[-1]) == (15, 14 / 5) and max(y) == pytest.approx(1e-5)


def test_both_selections_stand_in_the_history() -> None:
    figure = tables.history_figure(HISTORY, {"validation": 1, "paper": 2})
    loss, recall = figure.axes
    assert list(loss.lines[0].get_ydata()) == [2.0, 1.0], "the untuned model has no loss"
    labels = [line.get_label() for line in recall.lines]
    assert labels == ["CM50, validation", "epoch by validation set", "MemeCap", "epoch by test set"]
    assert [recall.lines[i].get_xdata()[0] for i in (1, 3)] == [1, 2]
    assert plots.png_bytes(figure).startswith(b"\x89PNG")
