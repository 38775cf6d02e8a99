import io

import numpy as np
import pytest
import study_world
from PIL import Image

from memecmd_utils.core import plots
from memecmd_utils.studies import ablation, figures, hubness


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


def test_intervals_that_do_not_exist_are_not_drawn() -> None:
    fig = figures.ablation_figure(ablation.leave_one_out(study_world.world(dialogues=1)))
    assert all(not bar.has_xerr for bar in fig.axes[0].containers) and ink(fig) > 0.01


def test_hubs_are_drawn_sorted_before_and_after(data) -> None:
    counts = hubness.hubness_study(data).counts
    fig = figures.hubs_figure(counts)
    panel = fig.axes[0]
    assert panel.get_title(loc="left") == "one, uncentred" and len(fig.axes) == 4
    lines = {line.get_label(): line.get_ydata() for line in panel.lines}
    assert list(lines) == ["without a cure", "centring", "CSLS", "inverted softmax", "even use"]
    for name in list(lines)[:-1]:
        assert (np.diff(lines[name]) <= 0).all() and sum(lines[name]) == len(data.asked)
    assert lines["even use"][0] == pytest.approx(len(data.asked) / len(data.meme_ids))
    assert lines["without a cure"][0] > lines["centring"][0]
    assert ink(fig) > 0.01


def test_empty_tables_say_so() -> None:
    bare = study_world.world(dialogues=0)
    for fig in (
        figures.ablation_figure(ablation.leave_one_out(bare)),
        figures.hubs_figure(hubness.hubness_study(bare).counts),
    ):
        assert next(text.get_text() for axes in fig.axes for text in axes.texts).startswith("no ")
        assert not any(axes.axison for axes in fig.axes) and ink(fig) > 0
