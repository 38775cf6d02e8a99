import made_retrieval
import made_up
import numpy as np
import pandas as pd

from memecmd_utils.core import plots
from memecmd_utils.mtrclip import recall, tables

PROFILE = made_up.profile()


def made(**texts) -> pd.DataFrame:
    """Recalls of three made-up encoders, shaped as `models.all_recalls` gives them."""
    frames = []
    items = made_retrieval.items(40, 8, **texts)
    for model, selection, noise in (("Base", "", 2.2), ("Tuned", "validation", 1.3), ("Tuned", "paper", 1.1)):
        found = recall.evaluate(made_retrieval.MadeUpEncoder(noise), items)
        frame = recall.recalls(found, model)
        frames.append(frame.assign(selection=selection, weights="made up"))
    return pd.concat(frames, ignore_index=True)


def test_every_point_is_a_row_of_the_table() -> None:
    frame = made()
    fig = tables.recall_figure(frame)
    panels = [axes for axes in fig.axes if axes.containers]
    assert len(panels) == 8 and [axes.get_title("left") for axes in panels[:4]] == list(tables.TEXTS.values())
    for place, axes in enumerate(panels):
        kind, counting = list(tables.TEXTS)[place % 4], list(tables.BY)[place // 4]
        here = frame[
            (frame["text"] == kind) & (frame["counting"] == counting) & (frame["direction"] == "both")
        ]
        here = here[here["measure"] != "Mean"]
        drawn = [container.lines[0].get_ydata() for container in axes.containers]
        assert np.allclose(np.concatenate(drawn), here["value"])
        ends = [segment[:, 1] for c in axes.containers for segment in c.lines[2][0].get_segments()]
        assert np.allclose(np.sort(ends, axis=1), here[["low", "high"]], atol=1e-9)
    legend = [text.get_text() for text in fig.legends[0].get_texts()]
    assert legend == ["Base", "Tuned, epoch by validation set", "Tuned, epoch by test set"]
    assert plots.png_bytes(fig) == plots.png_bytes(tables.recall_figure(frame))
