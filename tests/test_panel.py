"""The panel of notebook 04: it places as the run would, knobs redraw, a chat of one's own finds memes.

Nothing that is pasted is written down, and a headless run gets HTML instead of widgets.
"""

import contextlib
import json
from pathlib import Path

import made_turns
import made_up
import pytest
from PIL import Image
from scripted import ScriptedBackend

from memecmd_utils import chats, files, panel, retrieval, runs
from memecmd_utils.llm.chat import Chat

WORLD = made_turns.world(dialogues=4, turns=18, memes=40, graded=False, unscored=[(1, 2), (1, 7), (1, 18)])
DIALOGUES = WORLD.split.dialogues


def explorer_of(**changes) -> panel.Explorer:
    profile = made_up.profile(n_turns=18, **changes)
    index = retrieval.index_library(WORLD.annotations, made_turns.encode, profile)
    scored = retrieval.score_dialogues(DIALOGUES, index, made_turns.encode, profile)
    return panel.Explorer(scored, index, profile)


@pytest.fixture
def tab(tmp_path: Path) -> panel.DialogueTab:
    picture, memes = tmp_path / "red.png", {}
    Image.new("RGB", (60, 48), "red").save(picture)
    for name, meme in WORLD.split.memes.items():
        memes[name] = meme.model_copy(update={"text": f"<b>{name}</b>", "file": picture.name})
    return panel.DialogueTab(explorer_of(), memes, dict.fromkeys(memes, picture), {"role-01": "In English"})


def paste_tab(tab: panel.DialogueTab, run: runs.Run) -> panel.PasteTab:
    """The second tab, with S, E and Psi of a chat written down."""
    files.write_jsonl(run.write("dialogues.jsonl"), DIALOGUES)
    paste = panel.PasteTab(chats.Library(run, tab.memes, tab.explorer.index, made_turns.encode), tab)
    for name, area in paste.fields.items():
        area.value = f"m005 {name}"
    return paste


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


def test_a_chat_of_ones_own_finds_memes_by_hand_and_follows_the_weights(tab, tmp_path: Path) -> None:
    run = runs.Run("made", tab.explorer.profile, tmp_path / "run", tmp_path / "report")
    paste = paste_tab(tab, run)
    assert paste.ask.disabled and paste.choose.disabled  # no live model is set up
    paste.text.value = "no names here"
    paste.find.click()
    assert "one line per message" in paste.note.value
    paste.text.value = "小雨：去不去<i>\n阿杰: 下雨"
    paste.find.click()
    assert paste.note.value == "" and "&lt;i&gt;" in paste.chat.value and "the best meme" in paste.chat.value
    before = paste.best.value
    tab.sliders[0].value = -1.0
    paste.find.click()
    assert paste.best.value != before
    assert not run.report.exists() and list(run.folder.iterdir()) == [run.write("dialogues.jsonl")]


def test_a_live_model_chooses_for_a_chat_of_ones_own(tab, tmp_path: Path, monkeypatch) -> None:
    run = runs.Run("made", tab.explorer.profile.replace(llm="local", mode="auto"), tmp_path / "run", tmp_path)
    backend = ScriptedBackend(lambda _: json.dumps({"reason": "接得上", "number": 3}, ensure_ascii=False))
    chat = contextlib.nullcontext(Chat(backend, strict=False))
    monkeypatch.setattr(runs.Run, "chat", lambda *_, **__: chat)
    paste = paste_tab(tab, run)
    paste.choose.click()
    assert paste.note.value == "" and "the model: 接得上" in paste.chat.value
    (asked,) = backend.requests
    assert "我的帐篷白买了" in asked.messages[1].text and len(asked.options) == 20
    assert tab.memes[asked.options[2]].meme_id in paste.chat.value


def test_a_headless_run_gets_html_and_no_widget(tab, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(panel, "is_headless", lambda: True)
    run = runs.Run("made", tab.explorer.profile, tmp_path, tmp_path / "report")
    shown = panel.explore(run, list(tab.explorer.items.values()), tab.explorer.index, tab.memes)
    assert "mc-turn" in shown.data and "<svg" in shown.data
