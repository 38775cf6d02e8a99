import numpy as np
import pytest
from made_studies import sends_nothing, study
from made_up import vectors

from memecmd_utils.retrieval import placement, scoring
from memecmd_utils.studies import gates

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
        assert len({placement.halves(data.dialogues)[data.dialogues[i].dialogue_id] for i in mute}) == 1
    index = placement.index_library(data.annotations, vectors, data.profile)
    scored = placement.score_dialogues(data.dialogues, index, vectors, data.profile)
    expected = {
        (p.dialogue_id, p.turn, p.meme_id)
        for p in placement.place(scored, index, data.profile)
        if p.strategy == "greedy"
    }
    scores = gates.own_scores(data)
    best = scoring.best_memes(scores, data.meme_ids, 10)
    top1 = scores[np.arange(len(scores)), best[:, 0]]
    sent = gates.sent(data, top1[None], gates.own_rule(data))[0]
    found = {(*key, data.meme_ids[best[i, 0]]) for i, key in enumerate(data.keys) if sent[i]}
    assert found == expected
    assert bool(expected) == (settings != sends_nothing())


def test_layout_has_every_turn_in_its_place() -> None:
    data = study(n_dialogues=2, n_turns=4, unscored=[(0, 3)])
    assert gates.layout(data).tolist() == [[0, -1, 1], [2, 3, 4]]


def test_a_fixed_threshold_follows_the_rate_it_is_given() -> None:
    data = study(n_dialogues=40)
    top1 = np.random.default_rng(0).standard_normal((2, len(data.asked)))
    rule = gates.GateRule("standard", 0.0, 1.0, "fixed")
    few = gates.sent(data, top1, rule, np.full((2, 2), 0.1)).mean(axis=1)
    many = gates.sent(data, top1, rule, np.full((2, 2), 0.6)).mean(axis=1)
    assert few == pytest.approx([0.1, 0.1], abs=0.05) and many == pytest.approx([0.6, 0.6], abs=0.08)
    assert not gates.sent(data, top1, rule, np.full((2, 2), np.nan)).any()


def test_rates_are_those_of_the_other_half() -> None:
    """Dialogues 0, 1 (first of their kind) are half a, 2, 3 half b; only dialogue 2 has memes: 1 of 2."""
    data = study(n_dialogues=4, n_turns=2)
    sent = np.array([[key[0].endswith("-2") for key in data.keys]])
    assert data.half.tolist() == ["a", "a", "b", "b"]
    rates = gates.fit_rates(data, sent)
    assert rates[0, 0] == 0.5 and np.isnan(rates[0, 1])
