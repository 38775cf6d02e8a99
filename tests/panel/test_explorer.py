from dataclasses import replace

import numpy as np
import pytest
from explorer_data import ALL, ANNOTATIONS, DIALOGUES, N_MEMES, scored_with, talk
from hypothesis import given, settings
from hypothesis import strategies as st

from memecmd_utils.panel import explorer
from memecmd_utils.panel.explorer import Explorer
from memecmd_utils.retrieval import gate as retrieval_gate
from memecmd_utils.retrieval import placement, scoring

STRATEGIES = ("greedy", "sampling", "random", "random_same_turns")


def explorer_with(dialogues=DIALOGUES, annotations=ANNOTATIONS, **changes) -> Explorer:
    return Explorer(*scored_with(dialogues, annotations, **changes))


def placed_by(scored, index, profile) -> dict[tuple[str, str], list[tuple]]:
    """What `placement.place` does, by dialogue and strategy."""
    out = {(d.dialogue_id, s): [] for d in [item.dialogue for item in scored] for s in STRATEGIES}
    for p in placement.place(scored, index, profile):
        out[p.dialogue_id, p.strategy].append((p.turn, p.meme_id, p.rank, p.score))
    return out


def picks(view) -> list[tuple]:
    return [(p.turn, p.meme_id, p.rank, p.score) for p in view.picks]


OTHER = {
    "weights": (0.8, -0.3, 0.0, 0.45),
    "threshold_penalty": 2.0,
    "threshold_decay": 0.4,
    "top_k": 7,
    "wanted_rate": 0.5,
}


@pytest.mark.parametrize(
    "changes", [{}, OTHER, {"score_scale": "raw"}, {"theta0": 0.4}, {"centring": "none"}]
)
def test_the_profiles_own_settings_place_as_the_pipeline_does(changes) -> None:
    """Every dialogue under every strategy: turns, memes, ranks and scores, to the last digit."""
    scored, index, profile = scored_with(**changes)
    expected = placed_by(scored, index, profile)
    assert sum(map(len, expected.values())) > 100
    explored = Explorer(scored, index, profile)
    for name in explored.dialogues:
        explored.open(name)
        for strategy in STRATEGIES:
            assert picks(explored.select(explored.own_settings(strategy))) == expected[name, strategy]


@pytest.mark.parametrize("kept", [explorer.KEPT_NUMBERS, 0])
def test_turned_knobs_place_as_a_pipeline_with_these_settings_would(monkeypatch, kept) -> None:
    """The panel opens at the default settings; its knobs are then turned to those of another profile."""
    monkeypatch.setattr(explorer, "KEPT_NUMBERS", kept)
    expected = placed_by(*scored_with(**OTHER))
    explored = explorer_with(wanted_rate=0.5)
    for name in explored.dialogues:
        explored.open(name)
        for strategy in STRATEGIES:
            turned = replace(
                explored.own_settings(strategy), weights=OTHER["weights"], penalty=2.0, decay=0.4, top_k=7
            )
            assert picks(explored.select(explored.fit(turned))) == expected[name, strategy]


def test_the_gate_is_the_pipelines_too() -> None:
    scored, index, profile = scored_with()
    traces = placement.traces(scored, placement.calibrate(scored, profile))
    explored = Explorer(scored, index, profile)
    for name, (calibration, gate_scores, trace) in traces.items():
        explored.open(name)
        view = explored.select(explored.own_settings())
        assert np.array_equal(view.gate_scores, gate_scores) and np.array_equal(view.sent, trace.sent)
        assert np.array_equal(view.thresholds, trace.thresholds)
        assert (view.scale, explored.fold) == (calibration.scale, calibration.fold)


PLAIN = scored_with()
WEIGHTS = st.tuples(*[st.floats(-1, 1).map(lambda x: round(x, 2))] * 4)


@settings(max_examples=40, deadline=None)
@given(weights=WEIGHTS, k=st.integers(1, 50))
def test_ranking_from_matrices_equals_the_fused_product(weights, k) -> None:
    scored, index, _ = PLAIN
    queries = scored[0].queries
    matrices = scoring.component_matrices(index, queries)
    ours = scoring.top_k(index, queries, weights, k, matrices)
    theirs = scoring.top_k(index, queries, weights, k)
    assert np.array_equal(ours.memes, theirs.memes) and np.array_equal(ours.scores, theirs.scores)
    assert np.array_equal(ours.components, theirs.components)


def test_equal_memes_are_ordered_by_id() -> None:
    """Six of the memes have the same texts, so the same scores; also beyond the K that are asked for."""
    same = [a.model_copy(update={p: f"meme 0 {p}" for p in scoring.MEME_SIDE}) for a in ANNOTATIONS[:6]]
    scored, index, _ = scored_with(annotations=[*reversed(same), *ANNOTATIONS[6:9]])
    queries = scored[0].queries
    matrices = scoring.component_matrices(index, queries)
    ranking = scoring.top_k(index, queries, (1.0, 0.0, 0.0, 0.0), 9, matrices)
    assert np.array_equal(ranking.memes, scoring.top_k(index, queries, (1.0, 0, 0, 0), 9).memes)


def test_more_equal_memes_than_are_looked_at() -> None:
    same = [a.model_copy(update={p: f"meme 0 {p}" for p in scoring.MEME_SIDE}) for a in ANNOTATIONS]
    scored, index, _ = scored_with(annotations=same)
    matrices = scoring.component_matrices(index, scored[0].queries)
    ranking = scoring.top_k(index, scored[0].queries, (1.0, 0.0, 0.0, 0.0), 3, matrices)
    assert {index.meme_ids[m] for m in ranking.memes.ravel()} == {"m00", "m01", "m02"}


def test_no_weight_at_all_takes_the_first_ids() -> None:
    explored = explorer_with()
    view = explored.select(replace(explored.own_settings(), weights=(0.0, 0.0, 0.0, 0.0), theta0=-1.0))
    assert {pick.meme_id for pick in view.picks} == {"m00"} and len(view.picks) > 5
    assert set(view.scores) == {0.0}


def test_a_lower_threshold_sends_more_and_an_unreachable_one_nothing() -> None:
    explored = explorer_with()
    own = explored.own_settings()
    counts = [len(explored.select(replace(own, theta0=theta)).picks) for theta in (-50.0, own.theta0, 50.0)]
    assert counts[0] == 17 > counts[1] > counts[2] == 0


def test_the_scale_follows_the_weights() -> None:
    """Twice the weights are twice the scores: on the gate's scale nothing has changed."""
    explored = explorer_with()
    own = explored.own_settings()
    doubled = explored.select(replace(own, weights=tuple(2 * w for w in own.weights)))
    once = explored.select(own)
    assert doubled.scale_is_current
    assert np.allclose(doubled.scores, 2 * once.scores)
    assert np.allclose(doubled.gate_scores, once.gate_scores, atol=1e-6)


def test_a_large_library_keeps_its_scale_until_theta0_is_fitted(monkeypatch) -> None:
    monkeypatch.setattr(explorer, "KEPT_NUMBERS", 0)
    explored = explorer_with()
    own = explored.own_settings()
    turned = replace(own, weights=(1.0, 0.0, 0.0, 0.0))
    before = explored.select(turned)
    assert not before.scale_is_current and before.scale == explored.select(own).scale
    fitted = explored.select(explored.fit(turned))
    assert fitted.scale_is_current and fitted.scale != before.scale
    other = explored.select(replace(own, weights=(0.9, 0.0, 0.0, 0.0)))
    assert not other.scale_is_current and other.scale == fitted.scale  # the last one fitted
    assert explored.select(own).scale_is_current


def test_fit_meets_the_wanted_rate_on_the_other_half() -> None:
    """Three dialogues of 17 turns: as near to half of 51 as whole memes allow, or nearly so."""
    explored = explorer_with([talk(f"news-{i}", "news") for i in range(6)], wanted_rate=0.5)
    turned = replace(explored.own_settings(), weights=(0.2, 0.1, 0.7, 0.0), penalty=0.3)
    fitted = explored.fit(turned)
    scale, _ = explored.scale(turned.weights)
    split = placement.halves(list(explored.dialogues.values()))
    others = [name for name, half in split.items() if half == explored.fold]
    scores = []
    for name in others:
        explored.open(name)
        scores.append(scale.apply(explored.select(turned).scores))
    gate = retrieval_gate.Gate(fitted.theta0, turned.penalty, turned.decay)
    assert abs(np.mean([retrieval_gate.simulate(s, gate).sent for s in scores]) - 0.5) < 0.03
    assert fitted == replace(turned, theta0=fitted.theta0)


def test_a_turn_without_summary_has_no_score_and_no_meme_of_the_gate() -> None:
    explored = explorer_with()
    explored.open("role-0")
    for strategy in ("greedy", "sampling", "random_same_turns"):
        view = explored.select(replace(explored.own_settings(strategy), theta0=-50.0))
        silent = [t for t, score in zip(view.turns, view.scores, strict=True) if score == -np.inf]
        assert silent == [2, 7, 18] and not {p.turn for p in view.picks} & set(silent)
        assert [view.best[view.turns.index(t)] for t in silent] == [None] * 3
    explored.open("role-2")
    assert explored.select(explored.own_settings()).picks == ()
    unasked = explored.select(explored.own_settings("random")).picks
    assert unasked and {p.score for p in unasked} == {None}


def test_only_the_open_dialogue_is_held() -> None:
    explored = explorer_with()
    explored.open("news-1")
    assert explored._components.shape == (4, 17, N_MEMES)
    explored.open("role-0")
    assert explored._components.shape == (4, 14, N_MEMES)


def test_one_dialogue_alone_is_fitted_on_itself() -> None:
    explored = explorer_with(DIALOGUES[:1])
    assert explored.fold == "self"
    assert explored.select(explored.own_settings()).picks


def test_a_half_without_any_summary_is_fitted_as_the_pipeline_does() -> None:
    split = placement.halves(DIALOGUES)
    dialogues = [
        talk(d.dialogue_id, d.kind, unscored=ALL) if split[d.dialogue_id] == "a" else d for d in DIALOGUES
    ]
    scored, index, profile = scored_with(dialogues)
    expected = placed_by(scored, index, profile)
    explored = Explorer(scored, index, profile)
    for name in explored.dialogues:
        explored.open(name)
        assert explored.fold == ("self" if split[name] == "b" else "b")
        for strategy in STRATEGIES:
            assert picks(explored.select(explored.own_settings(strategy))) == expected[name, strategy]
    assert any(expected.values())


def test_no_dialogue_is_an_error() -> None:
    scored, index, profile = scored_with()
    with pytest.raises(ValueError, match="no dialogue"):
        Explorer([], index, profile)
    with pytest.raises(KeyError):
        Explorer(scored, index, profile).open("news-99")


def test_the_range_takes_in_all_best_scores() -> None:
    scored, index, profile = scored_with()
    explored = Explorer(scored, index, profile)
    low, high = explored.gate_range()
    traces = placement.traces(scored, placement.calibrate(scored, profile))
    finite = np.concatenate([z[np.isfinite(z)] for _, z, _ in traces.values()])
    assert (low, high) == (finite.min(), finite.max())
