import base64
import io

import made_up
import pytest
from PIL import Image

from memecmd_utils import library_sheet


def opened(url: str) -> Image.Image:
    kind, data = url.split(",", 1)
    assert kind == "data:image/webp;base64"
    return Image.open(io.BytesIO(base64.b64decode(data)))


@pytest.fixture
def thumbnails(tmp_path):
    return library_sheet.Thumbnails(made_up.meme_files(tmp_path))


MEMES = [made_up.meme("m1"), made_up.meme("m2", licence=""), made_up.meme("m3")]


def test_a_thumbnail_is_a_small_webp_of_the_picture(tmp_path) -> None:
    Image.new("RGB", (600, 300), (200, 30, 40)).save(tmp_path / "a.png")
    picture = opened(library_sheet.thumbnail(tmp_path / "a.png")).convert("RGB")
    assert picture.size == (240, 120)
    assert all(abs(a - b) < 12 for a, b in zip(picture.getpixel((9, 9)), (200, 30, 40), strict=True))


def test_what_is_see_through_becomes_white_and_small_stays_small(tmp_path) -> None:
    Image.new("RGBA", (30, 20), (0, 0, 0, 0)).save(tmp_path / "a.png")
    picture = opened(library_sheet.thumbnail(tmp_path / "a.png")).convert("RGB")
    assert picture.size == (30, 20) and min(picture.getpixel((3, 3))) > 245


def test_cards_hold_annotation_uses_and_licences(thumbnails) -> None:
    said = [made_up.annotation("m1"), made_up.annotation("m2", unscored="refused")]
    placed = [
        made_up.placement(2, "m1"),
        made_up.placement(4, "m1"),
        made_up.placement(4, "m1", strategy="random", rank=None),
    ]
    sheet = library_sheet.sheet(MEMES, said, placed, thumbnails)
    assert [card.meme.meme_id for card in sheet.cards] == ["m1", "m2", "m3"] and sheet.total == 3
    first, second, third = sheet.cards
    assert first.annotation.emotion == "开心" and first.placed == {"greedy": 2, "random": 1}
    assert (second.annotation, second.unscored) == (None, "refused")
    assert (third.annotation, third.unscored, third.placed) == (None, "no annotation", {})
    assert sheet.unlicensed == 1 and sheet.licences[0] == ("", 1)
    assert "not by people" in sheet.annotators[0]
    assert library_sheet.captions(sheet)[0] == ["m1", "先吃饭", ""]


def test_a_large_library_is_cut_but_never_below_what_the_chats_need(thumbnails) -> None:
    sizes = {name: len(thumbnails.url(name)) for name in ("m1", "m2", "m3")}
    for budget, needed, shown in (
        (sum(sizes.values()) + 1, (), ["m1", "m2", "m3"]),
        (sizes["m1"] + 1, (), ["m1"]),
        (1, ("m3",), ["m3"]),
        (sizes["m3"] + sizes["m1"] + 1, ("m3",), ["m1", "m3"]),
    ):
        sheet = library_sheet.sheet(MEMES, [], [], thumbnails, needed, budget)
        assert [card.meme.meme_id for card in sheet.cards] == shown


def test_a_picture_is_read_once(thumbnails, monkeypatch) -> None:
    first = thumbnails.url("m1")
    monkeypatch.setattr(library_sheet, "thumbnail", lambda _: pytest.fail("read again"))
    assert thumbnails.url("m1") == first
