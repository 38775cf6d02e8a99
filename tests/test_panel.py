"""The panel of notebook 04: it places as the run would, knobs redraw, a headless run gets HTML."""

from pathlib import Path

import made_turns
import made_up
import pytest
from PIL import Image

from memecmd_utils import panel, retrieval, runs

WORLD = made_turns.world(dialogues=4, turns=18, memes=40, graded=False, unscored=[(1, 2), (1, 7), (1, 18)])
DIALOGUES = WORLD.split.dialogues


def explorer_of(**changes) -> panel.Explorer:
    profile = made_up.profile(n_turns=18, **changes)
    index = retrieval.index_library(WORLD.annotations, made_turns.encode, profile)
    scored = retrieval.score_dialogues(DIALOGUES, index, made_turns.encode, profile)
    return panel.Explorer(scored, index, profile)


@pytest.fixture
def tab(tmp_path: Path) -> panel.Panel:
    picture, memes = tmp_path / "red.png", {}
    Image.new("RGB", (60, 48), "red").save(picture)
    for name, meme in WORLD.split.memes.items():
        memes[name] = meme.model_copy(update={"text": f"<b>{name}</b>", "file": picture.name})
    return panel.Panel(explorer_of(), memes, dict.fromkeys(memes, picture), {"role-01": "In English"})


def placed(explorer: panel.Explorer, **changes) -> dict[tuple[str, int], str]:
    """What a pipeline with these settings places by the first strategy."""
    profile = explorer.profile.replace(**changes)
    scored = retrieval.score_dialogues(DIALOGUES, explorer.index, made_turns.encode, profile)
    first = profile.retrieval.strategies[0]
    made = retrieval.place(scored, explorer.index, profile)
    return {(p.dialogue_id, p.turn): p.meme_id for p in made if p.strategy == first}


def picked(explorer: panel.Explorer, weights=None, penalty=1.0, decay=1.0) -> dict[tuple[str, int], str]:
    """What the panel places in all dialogues, by its own knobs or by these with a fitted theta0."""
    picks = {}
    for name in explorer.items:
        explorer.open_id = name
        knobs = explorer.own()
        if weights:
            gate = explorer.fit(explorer.half[name], weights, retrieval.Gate(0.0, penalty, decay))
            knobs = knobs._replace(weights=weights, gate=gate)
        picks |= {(name, turn): meme for turn, (meme, *_) in explorer.select(knobs).picks.items()}
    return picks


def test_it_places_as_a_pipeline_with_these_settings_does() -> None:
    for strategy in ("sampling", "random", "greedy"):
        explorer = explorer_of(strategies=[strategy])
        assert picked(explorer) == placed(explorer) != {}
    weights = (0.6, -0.1, 0.3, 0.2)
    by_pipeline = placed(explorer, weights=weights, threshold_penalty=2.0, threshold_decay=0.5)
    assert picked(explorer, weights, 2.0, 0.5) == by_pipeline != placed(explorer)


def test_every_knob_redraws_and_back_again(tab) -> None:
    first = tab.chat.value, tab.facts.value
    assert "T +" in first[0] and "rank 1" in first[0] and "of 17 turns" in first[1]
    assert "<b>m" not in first[0] and "&lt;b&gt;m" in first[0]  # texts come out escaped
    own = tab.knobs()
    tab.sliders[2].value += 0.4 * tab.sliders[2].step  # what a browser rounds moves nothing
    assert tab.knobs() == own and (tab.chat.value, tab.facts.value) == first
    tab.sliders[2].value = -0.9
    assert tab.knobs().weights[2] == -0.9 and tab.chat.value != first[0]
    tab.strategy.value = "random"
    assert "no gate asked" in tab.chat.value
    tab.reset.click()
    assert (tab.chat.value, tab.facts.value) == first
    tab.sliders[5].value = 3.0
    tab.fit.click()
    assert tab.knobs().gate.penalty == 3.0 and tab.knobs().gate.theta0 != own.gate.theta0


def test_another_dialogue_has_the_gate_of_its_half_and_unscored_turns_say_so(tab) -> None:
    assert tab.dialogue.options["role-01 · In English"] == "role-01"
    tab.dialogue.value = "role-01"
    assert tab.explorer.item.dialogue.name_a not in tab.chat.value  # A and B, as in every lesson
    assert tab.knobs().gate == tab.explorer.own().gate
    assert tab.chat.value.count("no usable summary") == 3
    assert not {2, 7, 18} & set(tab.view.picks)


def test_a_headless_run_gets_html_and_no_widget(tab, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(panel, "is_headless", lambda: True)
    run = runs.Run("made", tab.explorer.profile, tmp_path, tmp_path / "report")
    shown = panel.explore(run, list(tab.explorer.items.values()), tab.explorer.index, tab.memes)
    assert "mc-turn" in shown.data and "<svg" in shown.data
