import numpy as np
import pytest
from made_studies import everything_equal, study
from scipy import stats

from memecmd_utils.studies import gates, score_shape


@pytest.fixture
def with_scores(monkeypatch):
    """A made-up run whose scores are given."""

    def put(values, **size):
        data = study(**size)
        monkeypatch.setattr(gates, "own_scores", lambda _: values(len(data.asked), len(data.meme_ids)))
        return data

    return put


def test_the_shape_is_that_of_scipy() -> None:
    values = np.random.default_rng(0).gamma(3.0, size=(40, 12))
    skewness, kurtosis, distance = score_shape.shape(values)
    flat = values.ravel()
    assert skewness == pytest.approx(stats.skew(flat))
    assert kurtosis == pytest.approx(stats.kurtosis(flat))
    fitted = stats.norm(flat.mean(), flat.std())
    assert distance == pytest.approx(stats.kstest(flat, fitted.cdf).statistic)


def test_without_a_dialogue_the_shape_is_that_of_the_others() -> None:
    data = study(n_dialogues=6, n_memes=30, unscored=[(1, 3), (1, 4)])
    values = np.random.default_rng(2).gamma(3.0, size=(len(data.asked), 30))
    found = score_shape._measured(values, data)
    for got, rows in zip(found.without, data.rows_of.values(), strict=True):
        wanted = score_shape.shape(np.delete(values, rows, axis=0))
        assert got[:2] == pytest.approx(wanted[:2])
        assert got[2] == pytest.approx(wanted[2], abs=3 / score_shape.CUTS)


def test_normal_scores_are_not_called_anything_else(with_scores) -> None:
    rng = np.random.default_rng(3)
    data = with_scores(lambda *size: rng.standard_normal(size), n_dialogues=30, n_memes=20)
    table, tests = score_shape.shape_tables(data)
    shape = table[table["measure"] != "distance"]
    assert (shape["mean"] - shape["normal"]).abs().max() < 0.1 and len(table) == 6
    assert not shape["clear"].any()
    assert table[table["measure"] == "distance"]["mean"].max() < 0.03
    # Twenty scores in units of their own spread: -6 / 21.
    assert shape["normal"].tolist() == pytest.approx([0, 0, 0, -6 / 21])
    assert tests["p"].min() > 0.001 and tests.iloc[1]["share of draws below 0.05"] < 0.3
    assert tests["n"].tolist() == [len(data.asked) * 20, len(data.asked)]


def test_skewed_scores_are_told_and_turns_do_not_hide_it(with_scores) -> None:
    rng = np.random.default_rng(4)
    data = with_scores(
        lambda *size: 5 * rng.standard_normal((size[0], 1)) + rng.exponential(size=size),
        n_dialogues=20,
        n_memes=40,
    )
    of = score_shape.shape_tables(data)[0].set_index(["scores", "measure"])
    assert of.loc[("within turns", "skewness"), "clear"]
    assert of.loc[("within turns", "skewness"), "mean"] > 1
    assert abs(of.loc[("all", "skewness"), "mean"]) < 1


@pytest.mark.parametrize(
    "data", [study(n_memes=1), study(1, n_turns=2, unscored=[(0, 2)]), everything_equal(study())]
)
def test_too_few_scores_have_no_shape(data) -> None:
    found = score_shape.shape_tables(data)
    assert found[0]["mean"].isna().all() and "too few different scores" in score_shape.shape_sentence(*found)


@pytest.mark.parametrize("value", [0.1, 0.7])
def test_equal_scores_within_turns_are_no_spread(with_scores, value) -> None:
    """A turn whose scores are all 0.1 has a deviation of 1e-17: it counts as level, not as +-1."""
    rng = np.random.default_rng(6)

    def scores(turns: int, memes: int) -> np.ndarray:
        out = rng.standard_normal((turns, memes))
        out[1::2] = value
        return out

    table, _ = score_shape.shape_tables(with_scores(scores, n_dialogues=40, n_memes=30))
    of = table.set_index(["scores", "measure"])["mean"]
    assert abs(of["within turns", "skewness"]) < 0.1  # half of the values are 0, the others normal
    level = with_scores(lambda *size: np.full(size, value), n_dialogues=3, n_memes=7)
    assert score_shape.shape_tables(level)[0]["mean"].isna().all()


@pytest.mark.parametrize(("n", "tested"), [(5, False), (6, True)])
def test_few_dialogues_have_no_p_however_many_turns(n, tested) -> None:
    table, tests = score_shape.shape_tables(study(n_dialogues=n, n_turns=8))
    assert tests["p"].notna().all() == tested and tests["n"].iloc[1] >= 20
    assert ("p = " in score_shape.shape_sentence(table, tests)) == tested
