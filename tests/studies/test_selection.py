import numpy as np
import pytest
from made_studies import everything_equal, sends_nothing, study
from made_up import vectors
from scipy import stats

from memecmd_utils import retrieval
from memecmd_utils.evaluation import tables
from memecmd_utils.studies import selection, specification_curve

UNUSABLE = ((0, 2), (3, 5), (3, 9))


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"centring": "none"},
        {"weights": (0.2, 0.0, 0.5, 0.3)},
        {"score_scale": "raw", "theta0": 0.05, "threshold_penalty": 0.2},
        sends_nothing(),
    ],
)
@pytest.mark.parametrize(
    ("n_dialogues", "mute"), [(1, ()), (7, ()), (8, (0,)), (8, (0, 1, 4, 5)), (8, (2, 3, 6, 7))]
)
def test_memes_go_where_the_run_puts_them(settings, n_dialogues, mute) -> None:
    """`mute` dialogues have no summary at all: one of them, all of half a, all of half b."""
    none = [(number, turn) for number in mute for turn in range(2, 9)]
    data = study(n_dialogues=n_dialogues, unscored=[*UNUSABLE, *none], **settings)
    if len(mute) == 4:
        assert len({retrieval.halves(data.dialogues)[data.dialogues[i].dialogue_id] for i in mute}) == 1
    index = retrieval.index_library(data.annotations, vectors, data.profile)
    scored = retrieval.score_dialogues(data.dialogues, index, vectors, data.profile)
    expected = {
        (p.dialogue_id, p.turn, p.meme_id)
        for p in retrieval.place(scored, index, data.profile)
        if p.strategy == "greedy"
    }
    scores = selection.own_scores(data)
    best = retrieval.best_memes(scores, data.meme_ids, 10)
    top1 = scores[np.arange(len(scores)), best[:, 0]]
    sent = selection.open_turns(data, top1[None], selection.own_rule(data))[0]
    found = {(*key, data.meme_ids[best[i, 0]]) for i, key in enumerate(data.keys) if sent[i]}
    assert found == expected
    assert bool(expected) == (settings != sends_nothing())


def test_layout_has_every_turn_in_its_place() -> None:
    data = study(n_dialogues=2, n_turns=4, unscored=[(0, 3)])
    assert selection.layout(data).tolist() == [[0, -1, 1], [2, 3, 4]]


def test_a_fixed_threshold_follows_the_rate_it_is_given() -> None:
    data = study(n_dialogues=40)
    top1 = np.random.default_rng(0).standard_normal((2, len(data.asked)))
    rule = selection.GateRule("standard", 0.0, 1.0, "fixed")
    few = selection.open_turns(data, top1, rule, np.full((2, 2), 0.1)).mean(axis=1)
    many = selection.open_turns(data, top1, rule, np.full((2, 2), 0.6)).mean(axis=1)
    assert few == pytest.approx([0.1, 0.1], abs=0.05) and many == pytest.approx([0.6, 0.6], abs=0.08)
    assert not selection.open_turns(data, top1, rule, np.full((2, 2), np.nan)).any()


def test_rates_are_those_of_the_other_half() -> None:
    """Dialogues 0, 1 (first of their kind) are half a, 2, 3 half b; only dialogue 2 has memes: 1 of 2."""
    data = study(n_dialogues=4, n_turns=2)
    sent = np.array([[key[0].endswith("-2") for key in data.keys]])
    assert data.half.tolist() == ["a", "a", "b", "b"]
    rates = selection.fit_rates(data, sent)
    assert rates[0, 0] == 0.5 and np.isnan(rates[0, 1])


@pytest.fixture(scope="module")
def data():
    return study(n_dialogues=20, unscored=[(0, 4)])


def test_the_three_forms_share_the_rate(data) -> None:
    forms, _ = selection.threshold_tables(data)
    assert list(forms["form"]) == ["exponential", "linear", "fixed"]
    assert forms["rate"].to_numpy() == pytest.approx(0.3, abs=0.06)


def test_follow_ups_need_the_turn_before_in_the_same_dialogue() -> None:
    """Two dialogues of turns 2, 3, 4; turn 3 of the first has no summary, so 4 follows nothing."""
    data = study(n_dialogues=2, n_turns=4, unscored=[(0, 3)])
    sent = np.array([[True, True, True, True, True], [True, True, False, True, True]])
    found = selection.follow_ups(data, sent)
    assert found.tolist() == [[False, False, False, True, True], [False, False, False, False, True]]


def test_the_numbers_of_a_form_by_plain_counting(data) -> None:
    forms, differences = selection.threshold_tables(data)
    sent_by, best = selection.sent_by_form(data)
    for row in forms.to_dict("records"):
        keys = [key for key, is_sent in zip(data.keys, sent_by[row["form"]], strict=True) if is_sent]
        gaps = tables.gaps_of(keys)
        grade = {}
        for g in data.truth.grades:
            grade.setdefault((g.dialogue_id, g.turn, g.meme_id), []).append(g.grade)
        rows = {key: i for i, key in enumerate(data.keys)}
        memes = [(*key, data.meme_ids[best[rows[key]]]) for key in keys]
        assert row["memes"] == len(keys) and row["mean gap"] == pytest.approx(np.mean(gaps))
        assert row["sd of gaps"] == pytest.approx(np.std(gaps))
        assert row["follow-ups"] == pytest.approx(gaps.count(1) / len(keys))
        assert row["mean grade"] == pytest.approx(np.mean([np.mean(grade.get(m, [0])) for m in memes]))
        assert row["judged"] == pytest.approx(np.mean([m in grade for m in memes]))
        assert -1 <= row["kappa with made-up marker"] <= 1
    of = forms.set_index("form")
    for row in differences.to_dict("records"):
        assert row["mean"] == pytest.approx(
            of.loc[row["form"], row["measure"]] - of.loc["exponential", row["measure"]]
        )
        assert row["low"] <= row["mean"] <= row["high"]


def test_a_fixed_threshold_lets_memes_follow_each_other() -> None:
    """Scores that stay high for three turns: without a penalty nothing keeps the memes apart."""
    data = study(n_dialogues=16, n_turns=13)
    turn = np.array([key[1] for key in data.keys])
    top1 = np.where(turn % 6 < 3, 1.0, 0.0) + np.random.default_rng(0).random(len(turn)) / 10
    after = {
        form: selection.follow_ups(data, selection.open_turns(data, top1[None], rule)).sum()
        for form, rule in selection.form_rules(data).items()
    }
    assert after["fixed"] > after["exponential"] >= after["linear"]


@pytest.fixture(scope="module")
def twelve_memes():
    return study(n_dialogues=14, n_memes=12)


def gate(data):
    scores = selection.own_scores(data)
    best = retrieval.best_memes(scores, data.meme_ids, 10)
    top1 = np.take_along_axis(scores, best[:, :1], axis=1).T
    return best, selection.open_turns(data, top1, selection.own_rule(data))[0]


def test_one_of_one_is_greedy(twelve_memes) -> None:
    best, sent = gate(twelve_memes)
    table, differences = selection.choice_tables(twelve_memes)
    first = table.iloc[0]
    chosen = [(twelve_memes.clusters[row], best[row, 0]) for row in np.flatnonzero(sent)]
    again = sum(pair in chosen[:i] for i, pair in enumerate(chosen))
    assert first["memes"] == len(chosen) and first["repeats"] == pytest.approx(again / len(chosen))
    assert first["distinct memes"] == len({meme for _, meme in chosen})
    assert set(differences["K"]) == set(range(2, 11)) and set(differences["minus"]) == {1}


def test_grades_are_exact_means_over_the_top(twelve_memes) -> None:
    best, sent = gate(twelve_memes)
    table, _ = selection.choice_tables(twelve_memes)
    for row in table.to_dict("records"):
        pairs = [(r, m) for r in np.flatnonzero(sent) for m in best[r, : row["K"]]]
        grades = np.array([twelve_memes.gains[pair] / 2 for pair in pairs])
        assert row["mean grade"] == pytest.approx(np.nan_to_num(grades).mean())
        assert row["mean grade of judged"] == pytest.approx(np.nanmean(grades))
        assert row["judged@K"] == pytest.approx(np.isfinite(grades).mean())
        assert row["mean grade low"] <= row["mean grade"] <= row["mean grade high"]


def test_every_rank_is_drawn_as_often() -> None:
    best, luck = np.array([[7, 5, 3, 1]]), np.array([[0.0, 0.33, 0.34, 0.66, 0.67, 0.99]])
    assert selection.draw_among(best, luck, 3).tolist() == [[7, 7, 5, 5, 3, 3]]
    assert selection.draw_among(best, luck, 1).tolist() == [[7] * 6]


def test_repeats_and_variety_are_those_of_draws_from_the_whole_top(twelve_memes) -> None:
    """The mean over the draws lies at the exact expectation, and every one of the top K is drawn."""
    best, sent = gate(twelve_memes)
    for row in selection.choice_tables(twelve_memes)[0].to_dict("records"):
        top = best[None, :, : row["K"]]
        exact = specification_curve.expected_repeats(twelve_memes, top, sent[None, None]).sum() / sent.sum()
        assert row["repeats"] == pytest.approx(exact, abs=0.02)
        assert row["distinct memes"] <= len(np.unique(top[0, sent]))
    last = selection.choice_tables(twelve_memes)[0].iloc[-1]
    assert last["distinct memes"] > 0.8 * len(np.unique(best[sent]))


def test_repeats_stay_within_a_dialogue() -> None:
    chosen = np.array([[1, 1], [1, 2], [1, 1], [2, 2], [1, 2]])
    found = selection.repeats(chosen, ["a", "a", "b", "b", "b"])
    assert found.tolist() == [[False] * 2, [True, False], [False] * 2, [False] * 2, [True, True]]


def test_variety_by_hand() -> None:
    """Draw 1 uses two memes twice each: 2 memes, 1 bit. Draw 2 one meme four times: 1 meme, 0 bits."""
    chosen = np.array([[0, 3], [0, 3], [1, 3], [1, 3]])
    assert selection.variety(chosen, 5) == (1.5, 0.5)


def test_no_meme_no_table() -> None:
    for empty in (study(**sends_nothing()), study(1, n_turns=2, unscored=[(0, 2)])):
        table, differences = selection.choice_tables(empty)
        assert table.empty and differences.empty and list(table) == list(selection.BY_K)
        assert selection.choice_sentence(table, differences).startswith("No meme was sent")


@pytest.fixture
def with_scores(monkeypatch):
    """A made-up run whose scores are given."""

    def put(values, **size):
        data = study(**size)
        monkeypatch.setattr(selection, "own_scores", lambda _: values(len(data.asked), len(data.meme_ids)))
        return data

    return put


def test_the_shape_is_that_of_scipy() -> None:
    values = np.random.default_rng(0).gamma(3.0, size=(40, 12))
    skewness, kurtosis, distance = selection.shape(values)
    flat = values.ravel()
    assert skewness == pytest.approx(stats.skew(flat))
    assert kurtosis == pytest.approx(stats.kurtosis(flat))
    fitted = stats.norm(flat.mean(), flat.std())
    assert distance == pytest.approx(stats.kstest(flat, fitted.cdf).statistic)


def test_without_a_dialogue_the_shape_is_that_of_the_others() -> None:
    data = study(n_dialogues=6, n_memes=30, unscored=[(1, 3), (1, 4)])
    values = np.random.default_rng(2).gamma(3.0, size=(len(data.asked), 30))
    found = selection.shape_left_out(values, data)
    for got, rows in zip(found.without, data.rows_of.values(), strict=True):
        wanted = selection.shape(np.delete(values, rows, axis=0))
        assert got[:2] == pytest.approx(wanted[:2])
        assert got[2] == pytest.approx(wanted[2], abs=3 / selection.CUTS)


def test_normal_scores_are_not_called_anything_else(with_scores) -> None:
    rng = np.random.default_rng(3)
    data = with_scores(lambda *size: rng.standard_normal(size), n_dialogues=30, n_memes=20)
    table, tests = selection.shape_tables(data)
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
    of = selection.shape_tables(data)[0].set_index(["scores", "measure"])
    assert of.loc[("within turns", "skewness"), "clear"]
    assert of.loc[("within turns", "skewness"), "mean"] > 1
    assert abs(of.loc[("all", "skewness"), "mean"]) < 1


@pytest.mark.parametrize(
    "data", [study(n_memes=1), study(1, n_turns=2, unscored=[(0, 2)]), everything_equal(study())]
)
def test_too_few_scores_have_no_shape(data) -> None:
    found = selection.shape_tables(data)
    assert found[0]["mean"].isna().all() and "too few different scores" in selection.shape_sentence(*found)


@pytest.mark.parametrize("value", [0.1, 0.7])
def test_equal_scores_within_turns_are_no_spread(with_scores, value) -> None:
    """A turn whose scores are all 0.1 has a deviation of 1e-17: it counts as level, not as +-1."""
    rng = np.random.default_rng(6)

    def scores(turns: int, memes: int) -> np.ndarray:
        out = rng.standard_normal((turns, memes))
        out[1::2] = value
        return out

    table, _ = selection.shape_tables(with_scores(scores, n_dialogues=40, n_memes=30))
    of = table.set_index(["scores", "measure"])["mean"]
    assert abs(of["within turns", "skewness"]) < 0.1  # half of the values are 0, the others normal
    level = with_scores(lambda *size: np.full(size, value), n_dialogues=3, n_memes=7)
    assert selection.shape_tables(level)[0]["mean"].isna().all()


@pytest.mark.parametrize(("n", "tested"), [(5, False), (6, True)])
def test_few_dialogues_have_no_p_however_many_turns(n, tested) -> None:
    table, tests = selection.shape_tables(study(n_dialogues=n, n_turns=8))
    assert tests["p"].notna().all() == tested and tests["n"].iloc[1] >= 20
    assert ("p = " in selection.shape_sentence(table, tests)) == tested
