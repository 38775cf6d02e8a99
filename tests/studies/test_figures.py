import io

import numpy as np
import pandas as pd
import pytest
import study_world
from made_studies import study
from PIL import Image

from memecmd_utils import drawing
from memecmd_utils.studies import ablation, figures, selection, specification_curve
from memecmd_utils.studies.specification_curve import CLAIMS


@pytest.fixture(scope="module")
def data():
    return study_world.world(hubs=2, carried_by={"emotion"})


def ink(fig) -> float:
    """Share of the pixels that are not white."""
    with Image.open(io.BytesIO(drawing.figure_png(fig))) as picture:
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


@pytest.fixture(scope="module")
def worlds():
    return specification_curve.specifications(study(n_dialogues=8, n_turns=6))


def texts(fig) -> str:
    parts = [fig.get_suptitle()]
    for axes in fig.axes:
        parts += [axes.get_title("left"), axes.get_ylabel(), axes.get_xlabel()]
        parts += [label.get_text() for label in axes.get_yticklabels()]
    return "\n".join(parts)


@pytest.mark.parametrize("claim", CLAIMS)
def test_every_claim_has_a_curve_above_its_choices(worlds, claim) -> None:
    fig = figures.specification_figure(worlds, claim)
    told = worlds[(worlds["claim"] == claim) & worlds["state"].isin(list(figures.STATES))]
    assert CLAIMS[claim] in texts(fig) and drawing.figure_png(fig).startswith(b"\x89PNG")
    curves = fig.axes[: len(fig.axes) // 2]
    assert len(curves) == (2 if claim in (1, 2, 3, 5) else 1)
    lines = [axes.get_lines()[-2].get_ydata() for axes in curves]
    assert sum(map(len, lines)) == len(told)
    assert all((np.diff(line) >= 0).all() for line in lines)


def test_the_grid_shows_which_worlds_have_a_value() -> None:
    rows = [
        (
            1,
            embedder,
            "none",
            "+",
            "equal",
            "–",
            "raw",
            "–",
            "grader x",
            mean,
            mean - 1,
            mean + 1,
            8,
            "sign only",
        )
        for embedder, mean in [("first", 3.0), ("second", 1.0), ("first", 2.0)]
    ]
    fig = figures.specification_figure(pd.DataFrame(rows, columns=list(specification_curve.COLUMNS)), 1)
    shade = fig.axes[1].get_images()[0].get_array()
    assert np.asarray(shade).tolist() == [[0, 1, 1], [1, 0, 0]]


def test_the_figure_of_k_shows_the_table() -> None:
    table, _ = selection.choice_tables(study())
    fig = figures.choice_figure(table, own_k=3)
    of = {axes.get_ylabel(): axes for axes in fig.axes}
    repeats = of["share of memes that repeat"].get_lines()[0]
    assert repeats.get_ydata().tolist() == table["repeats"].tolist()
    assert "the run's, 3" in texts(fig) and len(fig.axes) == 4
    assert drawing.figure_png(fig).startswith(b"\x89PNG")
