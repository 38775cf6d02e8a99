from functools import cache

import made_up
import pytest

from memecmd_utils.core import html
from memecmd_utils.report import chats

MEMES = [made_up.meme("m1"), made_up.meme("m2", licence=""), made_up.meme("m3")]


@pytest.fixture
def picture(tmp_path):
    files = made_up.meme_files(tmp_path)
    return cache(lambda name: html.thumbnail(files[name], chats.SIDE))


def test_cards_hold_annotation_uses_and_licences(picture) -> None:
    said = [made_up.annotation("m1"), made_up.annotation("m2", unscored="refused")]
    placed = [
        made_up.placement(2, "m1"),
        made_up.placement(4, "m1"),
        made_up.placement(4, "m1", strategy="random", rank=None),
    ]
    sheet = chats.sheet(MEMES, said, placed, picture)
    assert [card.meme.meme_id for card in sheet.cards] == ["m1", "m2", "m3"] and sheet.total == 3
    first, second, third = sheet.cards
    assert first.annotation.emotion == "开心" and first.placed == {"greedy": 2, "random": 1}
    assert (second.annotation, second.unscored) == (None, "refused")
    assert (third.annotation, third.unscored, third.placed) == (None, "no annotation", {})
    assert sheet.unlicensed == 1 and sheet.licences[0] == ("", 1)
    assert "not by people" in sheet.annotators[0]
    assert chats.captions(sheet)[0] == ["m1", "先吃饭", ""]


def test_a_large_library_is_cut_but_never_below_what_the_chats_need(picture) -> None:
    sizes = {name: len(picture(name)) for name in ("m1", "m2", "m3")}
    for budget, needed, shown in (
        (sum(sizes.values()) + 1, (), ["m1", "m2", "m3"]),
        (sizes["m1"] + 1, (), ["m1"]),
        (1, ("m3",), ["m3"]),
        (sizes["m3"] + sizes["m1"] + 1, ("m3",), ["m1", "m3"]),
    ):
        sheet = chats.sheet(MEMES, [], [], picture, needed, budget)
        assert [card.meme.meme_id for card in sheet.cards] == shown
