"""The panel of notebook 04: it places as the run would, and knobs redraw."""

from pathlib import Path

import made_turns
import made_up
import pytest
from PIL import Image

from memecmd_utils import panel, retrieval, runs

WORLD = made_turns.world(dialogues=4, turns=18, memes=40, graded=False, unscored=[(1, 2), (1, 7), (1, 18)])


def scored_by(profile) -> tuple[list[retrieval.ScoredDialogue], retrieval.MemeIndex]:
    index = retrieval.index_library(WORLD.annotations, made_turns.encode, profile)
    return retrieval.score_dialogues(WORLD.split.dialogues, index, made_turns.encode, profile), index


@pytest.fixture
def tab(tmp_path: Path):
    """The panel of a run with some settings."""
    picture = tmp_path / "red.png"
    Image.new("RGB", (60, 48), "red").save(picture)
    about = {"file": picture.name}
    memes = {n: m.model_copy(update={**about, "text": f"<b>{n}</b>"}) for n, m in WORLD.split.memes.items()}

    def made(**changes) -> panel.Panel:
        profile = made_up.profile(n_turns=18, **changes)
        pictures = dict.fromkeys(memes, picture)
        return panel.Panel(*scored_by(profile), profile, memes, pictures, {"role-01": "In English"})

    return made


@pytest.mark.parametrize("strategy", ["sampling", "random", "greedy"])
def test_it_places_as_a_pipeline_with_these_settings_does(tab, strategy) -> None:
    shown, weights = tab(strategies=[strategy]), (0.6, -0.1, 0.3, 0.2)
    for changes in ({}, {"weights": weights, "threshold_penalty": 2.0, "threshold_decay": 0.5}):
        profile = shown.profile.replace(**changes)
        scored, index = scored_by(profile)
        placed = {(p.dialogue_id, p.turn): p.meme_id for p in retrieval.place(scored, index, profile)}
        picks, knobs = {}, profile.retrieval
        values = [*knobs.weights, 0.0, knobs.threshold_penalty, knobs.threshold_decay]
        for name in shown.items:
            shown.put(values, knobs.top_k, strategy)
            shown.dialogue.value = name
            shown.fit.click()
            picks |= {(name, turn): meme for turn, meme in shown.picks.items()}
        assert picks == placed != {}


def test_every_knob_redraws_and_back_again(tab) -> None:
    tab = tab()
    first, own = (tab.chat.value, tab.facts.value), tab.values()
    assert "T +" in first[0] and "rank 1" in first[0] and "of 17 turns" in first[1] and "<svg" in first[1]
    assert "<b>m" not in first[0] and "&lt;b&gt;m" in first[0]  # texts come out escaped
    tab.sliders[2].value += 0.4 * tab.sliders[2].step  # what a browser rounds moves nothing
    assert tab.values() == own and (tab.chat.value, tab.facts.value) == first
    tab.sliders[2].value = -0.9
    assert tab.values()[2] == -0.9 and tab.chat.value != first[0]
    tab.strategy.value = "random"
    assert "no gate asked" in tab.chat.value
    tab.authors.click()
    assert tuple(tab.values()[:4]) == retrieval.AUTHORS_WEIGHTS
    tab.reset.click()
    assert (tab.chat.value, tab.facts.value) == first


def test_another_dialogue_has_the_gate_of_its_half_and_unscored_turns_say_so(tab) -> None:
    tab = tab()
    assert tab.dialogue.options["role-01 · In English"] == "role-01"
    tab.sliders[0].value = 0.9
    tab.dialogue.value = "role-01"
    assert tab.items["role-01"].dialogue.name_a not in tab.chat.value  # A and B, as in every lesson
    assert tab.values()[0] == 0.9
    assert tab.chat.value.count("no usable summary") == 3
    assert not {2, 7, 18} & {*tab.picks}


def test_a_headless_run_gets_no_widget(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(panel, "is_headless", lambda: True)
    run = runs.Run("made", made_up.profile(), tmp_path, tmp_path / "report")
    assert panel.explore(run, [], None, {}) is None
