import made_up
import panel_data
import pytest

from memecmd_utils import schemas, settings
from memecmd_utils.chats import insertion, messages
from memecmd_utils.chats.messages import Summarised
from memecmd_utils.panel import widgets
from memecmd_utils.retrieval import scoring

TEXTS = {"scenario": "两人在聊下雨", "emotion": "无奈", "motivation": "想安慰一下"}


@pytest.fixture(autouse=True)
def embedder(monkeypatch):
    class MadeUp:
        name = "made-up"

        def encode(self, texts, side):
            return made_up.vectors(texts, side)

    monkeypatch.setattr(insertion, "embedder_of", lambda profile, read_dirs: MadeUp())


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
