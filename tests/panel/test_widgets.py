import io

import made_up
import panel_data
import pytest
from PIL import Image

from memecmd_utils import files, runs, schemas, settings
from memecmd_utils.chats import insertion, messages
from memecmd_utils.chats.messages import ChatError, Summarised
from memecmd_utils.files import paths
from memecmd_utils.panel import widgets
from memecmd_utils.panel.widgets import Knob
from memecmd_utils.retrieval import placement, scoring


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
    monkeypatch.delenv(files.HEADLESS_VARIABLE, raising=False)
    memes, _ = panel_data.memes(tmp_path / "memes")
    scored, index, profile = panel_data.scored_with()
    run = runs.Run("made", profile, tmp_path, tmp_path / "report")
    files.write_parquet(run.write("memes.parquet"), list(memes.values()), schemas.Meme)
    return run, scored, index, memes


def test_somebody_sees_both_tabs(parts) -> None:
    panel = widgets.explore(*parts)
    assert "application/vnd.jupyter.widget-view+json" in panel._repr_mimebundle_()
    styles, tabs = panel.children
    assert "<style>" in styles.value and len(tabs.children) == 2
    assert [tabs.get_title(n) for n in range(2)] == ["A chat of the run", "A chat of your own"]


def test_a_headless_run_gets_a_picture_and_no_widget(parts, monkeypatch) -> None:
    monkeypatch.setenv(files.HEADLESS_VARIABLE, "1")
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


def test_a_knob_keeps_its_value_through_the_browsers_rounding() -> None:
    knob = Knob(1 / 3, -1.0, 1.0, 2, "w")
    knob.slider.value = 0.33  # what a browser makes of a third
    assert knob.value == 1 / 3
    for step, expected in ((0.34, 0.34), (0.32, 0.32), (0.30000000000000004, 0.3), (0.0, 0.0)):
        knob.slider.value = step
        assert knob.value == expected
    knob.slider.value = 0.33
    assert knob.value == 1 / 3


def test_faults_of_a_callback_are_shown_and_raised() -> None:
    class Tab:
        note = type("Note", (), {"value": "old"})()

        @widgets.shows_faults
        def press(self, fault: Exception | None) -> None:
            if fault is not None:
                raise fault

    tab = Tab()
    tab.press(ChatError("write <b>this</b>"))  # the reader's to mend
    assert "write &lt;b&gt;this&lt;/b&gt;" in tab.note.value and "mc-error" in tab.note.value
    tab.press(None)
    assert tab.note.value == ""
    with pytest.raises(KeyError):
        tab.press(KeyError("<i>"))
    assert "KeyError" in tab.note.value and "<i>" not in tab.note.value


TEXTS = {"scenario": "两人在聊下雨", "emotion": "无奈", "motivation": "想安慰一下"}


@pytest.fixture(autouse=True)
def embedder(monkeypatch):
    class MadeUp:
        name = "made-up"

        def encode(self, texts, side):
            return made_up.vectors(texts, side)

    monkeypatch.setattr(insertion, "embedder_of", lambda *_, **__: MadeUp())


@pytest.fixture
def tabs(tmp_path):
    return panel_data.paste(tmp_path)


def fill(tab, **texts: str) -> None:
    for name, text in (TEXTS | texts).items():
        tab.fields[name].value = text


def test_what_cannot_be_read_is_said(tabs) -> None:
    tab, _ = tabs
    tab.text.value = "甲：一\n乙：二\n<b>丙</b>：三"
    assert "third person" in tab.note.value and "<b>丙" not in tab.note.value and tab.chat.value == ""
    tab.text.value = ""
    assert "nothing to read" in tab.note.value


def test_by_hand_the_top_memes_appear_with_four_components(tabs) -> None:
    tab, first = tabs
    assert tab.ask.disabled and "by hand" in tab.privacy.value
    fill(tab)
    tab.find.click()
    assert tab.note.value == "" and tab.found.value.count("data-meme=") == 6
    assert all(tab.found.value.count(f"<span>{sign}</span>") == 6 for sign in "αδβγ")
    query = tab._library.queries([schemas.SummaryReply(**TEXTS)])
    best = scoring.top_k(first.explorer.index, query, first.settings().weights, 6)
    ids = [first.explorer.index.meme_ids[m] for m in best.memes[0]]
    assert [part.split('"')[0] for part in tab.found.value.split('data-meme="')[1:]] == ids
    assert f"T = {best.scores[0, 0]:+.3f}".replace("-", "−") in tab.found.value
    # The best one stands in the chat, at the side of who speaks next, which is the third speaker's partner.
    assert f'data-meme="{ids[0]}"' in tab.chat.value
    assert 'mc-left" data-turn="4"' in tab.chat.value


def test_the_weights_of_the_first_tab_hold(tabs) -> None:
    tab, first = tabs
    fill(tab)
    tab.find.click()
    before = tab.found.value
    for knob in first.weights[1:]:
        knob.slider.value = 0.0
    assert tab.found.value != before and "+0.00 β" in tab.weights.value
    first.theta0.slider.value = first.theta0.slider.max
    assert "holds it back" in tab.weights.value
    first.theta0.slider.value = first.theta0.slider.min
    assert "sends it" in tab.weights.value


def test_the_summary_agent_fills_the_fields(tmp_path, monkeypatch) -> None:
    asked = []

    def summarise(context, run):
        asked.append(context)
        return Summarised(schemas.SummaryReply(**TEXTS), "tiny@q4")

    monkeypatch.setattr(messages, "summarise_unrecorded", summarise)
    tab, _ = panel_data.paste(tmp_path, llm="openai", mode="auto")
    assert not tab.ask.disabled and "by hand" not in tab.privacy.value
    tab.ask.click()
    assert asked[0].next_speaker == "阿杰" and "tiny@q4" in tab.note.value
    assert {name: field.value for name, field in tab.fields.items()} == TEXTS
    assert tab.found.value.count("data-meme=") == 6


def test_hostile_text_comes_out_escaped(tabs) -> None:
    tab, _ = tabs
    tab.text.value = "<img src=x onerror=alert(1)>：<script>alert(1)</script>\n</div><b>粗</b>"
    fill(tab, scenario="<script>")
    tab.find.click()
    for part in (tab.chat.value, tab.found.value, tab.note.value, tab.weights.value):
        assert "<script" not in part and "<img src=x" not in part and "<b>粗" not in part


@pytest.mark.parametrize(
    ("llm", "mode", "live"),
    [
        ("authored", "auto", False), ("openai", "recorded", False), ("local", "recorded", False),
        ("openai", "auto", True), ("local", "live", True),
    ],
)  # fmt: skip
def test_only_a_live_model_is_asked(tmp_path, llm, mode, live) -> None:
    tab, _ = panel_data.paste(tmp_path, llm=llm, mode=mode)
    assert tab.ask.disabled is not live and ("by hand" in tab.privacy.value) is not live


def test_the_reader_is_told_where_texts_go() -> None:
    ends = settings.Endpoints(generator=settings.Endpoint(base_url="http://127.0.0.1:1/v1", model="m"))
    for text, changes in (
        ("goes to the endpoint of 'm'", {"llm": "openai", "mode": "auto", "endpoints": ends}),
        ("stays on this machine", {"llm": "local", "mode": "auto"}),
        ("embedder's endpoint", {"embedder": "endpoint"}),
        ("not recorded", {}),
    ):
        assert text in widgets.where_it_goes(made_up.profile(**changes))
