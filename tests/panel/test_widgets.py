import io

import made_up
import panel_data
import pytest
from PIL import Image

from memecmd_utils import runs, schemas
from memecmd_utils.core import machine, paths, storage
from memecmd_utils.panel import widgets
from memecmd_utils.retrieval import placement


@pytest.fixture
def tab(tmp_path) -> widgets.DialogueTab:
    return panel_data.tab(tmp_path)


def shown_memes(tab: widgets.DialogueTab) -> list[str]:
    """Ids of the memes in the chat, in their order."""
    return [part.split('"')[0] for part in tab.chat.value.split('data-meme="')[1:]]


def test_the_first_position_is_the_profiles(tab) -> None:
    assert tab.settings() == tab.explorer.own_settings()
    placed = placement.place(*panel_data.scored_with())
    mine = [p.meme_id for p in placed if p.dialogue_id == "news-0" and p.strategy == "greedy"]
    assert shown_memes(tab) == mine and len(mine) > 2
    assert "news-0 says 1" in tab.chat.value and tab.chat.value.count("data-turn=") == 18
    assert "fitted on the other half" in tab.facts.value and "T = +0.33 α" in tab.facts.value


def test_every_knob_redraws_and_back_again(tab) -> None:
    """Down and back: the same setting shows the same chat."""
    knobs = [*tab.weights, tab.theta0, tab.penalty, tab.decay]
    start = tab.chat.value
    for knob, far in zip(knobs, (-1, -1, -1, -1, 4.0, 3.0, 0.05), strict=True):
        own = knob.value
        knob.slider.value = far
        assert tab.chat.value != start, knob.slider.description
        knob.slider.value = own
        assert tab.chat.value == start, knob.slider.description


def test_theta0_follows_the_halves_until_it_is_moved(tab) -> None:
    """Halves alternate, so the second dialogue's gate was fitted on the first one's half."""
    own = tab.theta0.value
    tab.dialogue.value = "news-1"
    assert tab.settings() == tab.explorer.own_settings() and tab.theta0.value != own
    tab.theta0.slider.value = 0.5
    assert "set by hand" in tab.facts.value
    tab.dialogue.value = "news-0"
    assert tab.theta0.value == 0.5
    tab.reset.click()
    assert tab.theta0.value == own and "fitted on" in tab.facts.value


def test_hostile_texts_come_out_escaped(tmp_path) -> None:
    hostile = "<script>alert(1)</script><img src=x onerror=alert(1)>"
    dialogue = made_up.dialogue("news-0", (hostile, *made_up.TEXTS[1:]))
    dialogue = dialogue.model_copy(update={"name_a": hostile, "title": hostile})
    dialogue.turns[0].gloss = '" onload="alert(1)'
    tab = panel_data.tab(tmp_path, [dialogue, panel_data.DIALOGUES[1]])
    tab.theta0.slider.value = tab.theta0.slider.min
    assert shown_memes(tab)
    for part in (tab.chat.value, tab.chart.value, tab.facts.value):
        assert "<script" not in part and "onerror=alert(1)>" not in part and '" onload="' not in part
        assert "<b>m" not in part  # captions of memes hold markup here


# --- live or still ------------------------------------------------------------------------------------


@pytest.fixture
def parts(tmp_path, monkeypatch):
    """What notebook 04 hands over."""
    monkeypatch.delenv(machine.HEADLESS_VARIABLE, raising=False)
    memes, _ = panel_data.memes(tmp_path / "memes")
    scored, index, profile = panel_data.scored_with()
    run = runs.Run("made", profile, tmp_path, tmp_path / "report")
    storage.write_parquet(run.write("memes.parquet"), list(memes.values()), schemas.Meme)
    return run, scored, index, memes


def test_somebody_sees_both_tabs(parts) -> None:
    panel = widgets.explore(*parts)
    assert "application/vnd.jupyter.widget-view+json" in panel._repr_mimebundle_()
    styles, tabs = panel.children
    assert "<style>" in styles.value and len(tabs.children) == 2
    assert [tabs.get_title(n) for n in range(2)] == ["A dialogue of the run", "A chat of your own"]


def test_a_headless_run_gets_a_picture_and_no_widget(parts, monkeypatch) -> None:
    monkeypatch.setenv(machine.HEADLESS_VARIABLE, "1")
    shown = widgets.explore(*parts)
    assert "widget" not in str(shown._repr_mimebundle_(include=None, exclude=None))
    picture = Image.open(io.BytesIO(shown.data))
    assert picture.format == "JPEG" and picture.width > 1000 and picture.height > 800


def test_nothing_is_written(parts, monkeypatch) -> None:
    before = sorted(paths.raw.rglob("*"))
    run = parts[0]
    files = sorted(run.folder.rglob("*"))
    widgets.explore(*parts)
    assert sorted(run.folder.rglob("*")) == files and sorted(paths.raw.rglob("*")) == before
