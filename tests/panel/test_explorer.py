from dataclasses import replace

import made_up
import numpy as np
import panel_data
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from panel_data import ANNOTATIONS, DIALOGUES, scored_with

from memecmd_utils.drawing import Thumbnails
from memecmd_utils.panel import explorer
from memecmd_utils.panel.explorer import Explorer
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


def test_a_turn_without_summary_has_no_score_and_no_meme_of_the_gate() -> None:
    explored = explorer_with()
    explored.open("role-0")
    for strategy in ("greedy", "sampling", "random_same_turns"):
        view = explored.select(replace(explored.own_settings(strategy), theta0=-50.0))
        silent = [t for t, score in zip(view.turns, view.scores, strict=True) if score == -np.inf]
        assert silent == [2, 7, 18] and not {p.turn for p in view.picks} & set(silent)
    explored.open("role-2")
    assert explored.select(explored.own_settings()).picks == ()
    unasked = explored.select(explored.own_settings("random")).picks
    assert unasked and {p.score for p in unasked} == {None}


@pytest.fixture
def explored() -> Explorer:
    return Explorer(*panel_data.scored_with())


def test_provenance_names_every_source() -> None:
    said = explorer.provenance(made_up.dialogue())
    assert "not by people" in said and "summaries: generated by the model tiny-model@q4" in said
    one = made_up.dialogue()
    one = one.model_copy(
        update={"summaries": [s.model_copy(update={"source": "authored"}) for s in one.summaries]}
    )
    assert explorer.provenance(one).startswith("turns and summaries: written by a large language model")


def test_chat_says_parts_and_rank_of_every_meme(explored, tmp_path) -> None:
    memes, files = panel_data.memes(tmp_path)
    view = explored.select(explored.own_settings())
    html = explorer.chat(view, memes, Thumbnails(files))
    for pick in view.picks:
        assert f"T {pick.score:+.3f}".replace("-", "−") in html
        assert f"α {pick.components[0]:+.2f}".replace("-", "−") in html
    assert html.count("rank 1") == len(view.picks) > 0


def test_a_turn_without_a_summary_says_so(explored, tmp_path) -> None:
    memes, files = panel_data.memes(tmp_path)
    explored.open("role-2")
    view = explored.select(explored.own_settings("random"))
    html = explorer.chat(view, memes, Thumbnails(files))
    assert html.count("no usable summary") == 17 and html.count("no score") == len(view.picks) > 0
    assert "×" in explorer.chart(view)
    assert "mean T of these</td><td>–" in explorer.facts(view, explored, True)
