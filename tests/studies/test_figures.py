import io

import numpy as np
import pytest
import study_world
from PIL import Image

from memecmd_utils.core import plots
from memecmd_utils.studies import ablation, figures


@pytest.fixture(scope="module")
def data():
    return study_world.world(hubs=2, carried_by={"emotion"})


def ink(fig) -> float:
    """Share of the pixels that are not white."""
    with Image.open(io.BytesIO(plots.png_bytes(fig))) as picture:
        return float((np.asarray(picture.convert("L")) < 250).mean())


def test_the_ablation_has_a_dot_and_an_interval_for_every_term(data) -> None:
    frame = ablation.leave_one_out(data)
    fig = figures.ablation_figure(frame)
    left, right = fig.axes
    assert [label.get_text() for label in left.get_yticklabels()] == [
        "alpha  (S+)", "delta  (S-)", "beta  (E)", "gamma  (Psi)"
    ]  # fmt: skip
    assert "R@1" in left.get_xlabel() and "nDCG@5" in right.get_xlabel()
    rows = frame[frame["measure"] == "R@1"]
    dots = [bar.lines[0] for bar in left.containers]
    assert [dot.get_xdata()[0] for dot in dots] == rows["difference"].tolist()
    clear = (rows["difference low"] > 0) | (rows["difference high"] < 0)
    assert [dot.get_markerfacecolor() != "white" for dot in dots] == clear.tolist() and 0 < clear.sum() < 8
    assert left.get_ylim()[0] > left.get_ylim()[1]  # alpha stands on top
    assert ink(fig) > 0.01
