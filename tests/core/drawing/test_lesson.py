"""Chats, cards and rows of memes as notebooks show them."""

from pathlib import Path

import pytest
from PIL import Image

from memecmd_utils.core import drawing
from memecmd_utils.schemas import Annotation, Dialogue, Meme, Turn


def meme(name: str, folder: Path, text: str = "收到") -> Meme:
    Image.new("RGB", (40, 30), "red").save(folder / f"{name}.png")
    return Meme(
        meme_id=name, file=f"{name}.png", text=text, text_source="known", gloss="Got it", origin=name,
        sha256=name, phash="0" * 16, width=40, height=30, source="drawn",
    )  # fmt: skip


@pytest.fixture
def dialogue() -> Dialogue:
    texts = ("早", "<b>在吗</b>", "在", "走吧")
    turns = [
        Turn(turn=t, speaker="AB"[(t + 1) % 2], text=text, gloss=f"gloss {t}", source="authored")
        for t, text in enumerate(texts, start=1)
    ]
    return Dialogue(
        dialogue_id="news-1", kind="news", ref="n1", title="t", name_a="", name_b="", turns=turns, summaries=[],
        complete=True, source="authored",
    )  # fmt: skip


def test_a_chat_shows_its_turns_their_english_and_the_meme_before_its_text(
    dialogue: Dialogue, tmp_path: Path
) -> None:
    sent = meme("m1", tmp_path)
    page = drawing.show_chat(dialogue, {3: sent}, {"m1": tmp_path / "m1.png"}, notes={3: "grades 2, 2"}).data
    assert page.index("gloss 2") < page.index("data:image/") < page.index(">在<") < page.index("grades 2, 2")
    assert "&lt;b&gt;在吗" in page and "<b>在吗" not in page
    assert page.count("mc-turn mc-right") == 2, "A stands right"


def test_a_part_of_a_chat_can_be_shown_without_english(dialogue: Dialogue) -> None:
    page = drawing.show_chat(dialogue, {}, {}, turns=range(2, 4), english=False).data
    assert 'data-turn="2"' in page and 'data-turn="4"' not in page and 'data-turn="1"' not in page
    assert "gloss 2" not in page


def test_a_band_is_named_where_it_begins_and_colours_its_turns(dialogue: Dialogue) -> None:
    page = drawing.show_chat(dialogue, {}, {}, bands={1: "open", 2: "open", 3: "close", 4: "close"}).data
    assert page.count('class="ml-ribbon"') == 2
    assert page.count("border-left-color: #0072B2") == page.count("border-left-color: #009E73") == 2


def test_a_card_has_the_four_texts_and_their_english(tmp_path: Path) -> None:
    annotation = Annotation(
        meme_id="m1",
        s_plus="开会前",
        s_minus="丧礼上",
        emotion="轻快",
        motivation="应一声",
        source="authored",
    )
    files = {"m1": tmp_path / "m1.png"}
    page = drawing.show_meme(meme("m1", tmp_path), files, annotation, {"s_plus": "before a meeting"}).data
    assert all(text in page for text in ("开会前", "丧礼上", "轻快", "应一声", "before a meeting", "Got it"))


def test_rows_stand_side_by_side_under_their_names(tmp_path: Path) -> None:
    files = {"m1": tmp_path / "m1.png", "m2": tmp_path / "m2.png"}
    one = drawing.show_memes([meme("m1", tmp_path), meme("m2", tmp_path, text="")], files, ["best"])
    page = drawing.show_beside(Greedy_sent=one, graders=one).data
    assert "Greedy sent" in page and page.count("best") == 2 and page.count("data:image/") == 4
