import base64
import io
import math
import re
from xml.etree import ElementTree

import made_up
import pytest
from PIL import Image

from memecmd_utils import drawing
from memecmd_utils.drawing import Picture, ShownMeme, ShownTurn, Thumbnails

HOSTILE = "<script>alert('x')</script> \"onload=x' {{ 7*7 }} </div> &amp; <!--"
PICTURE = Picture("data:image/jpeg;base64,AAAA", 60, 40)


def meme(**changes) -> ShownMeme:
    values = {"meme_id": "m1", "picture": PICTURE, "caption": "先吃饭", "lines": ("T +0.2", "α +0.1")}
    return ShownMeme(**values | changes)


def parsed(html: str) -> ElementTree.Element:
    """A part as XML: what is not well formed, or not escaped, fails here."""
    closed = re.sub(r"(<img [^>]*|<br)>", r"\1/>", html)
    return ElementTree.fromstring(f"<div>{closed}</div>")


def test_a_meme_stands_before_or_after_its_text() -> None:
    turn = ShownTurn(2, "left", "老柏", "好啊", "fine", "t = 2", meme())
    before, after = drawing.chat([turn]), drawing.chat([turn], "after")
    assert before.index("<img") < before.index("好啊") and after.index("好啊") < after.index("<img")
    for html in (before, after):
        assert 'data-turn="2"' in html and "mc-left" in html and 'title="fine"' in html and "t = 2" in html
        parsed(html)


def test_a_reader_who_points_at_a_meme_sees_its_english() -> None:
    for gloss, title in (("eat first", "eat first"), ("", "先吃饭")):
        shown = meme(gloss=gloss)
        turn = ShownTurn(2, "left", "老柏", "", meme=shown)
        for html in (drawing.chat([turn]), drawing.cards([(shown, 0.1, (0.1, 0.2, 0.3, 0.4))])):
            (picture,) = parsed(html).iter("img")
            assert picture.get("title") == title and picture.get("alt") == "先吃饭"


def test_everything_shown_is_escaped() -> None:
    hostile = meme(meme_id=HOSTILE, caption=HOSTILE, lines=(HOSTILE, HOSTILE), gloss=HOSTILE)
    turn = ShownTurn(1, "right", HOSTILE, HOSTILE, HOSTILE, HOSTILE, hostile)
    parts = [
        drawing.chat([turn]),
        drawing.table([(HOSTILE, HOSTILE)]),
        drawing.note(HOSTILE, error=True),
        drawing.cards([(hostile, 0.1, (0.1, 0.2, 0.3, 0.4))]),
    ]
    for html in parts:
        assert "<script" not in html and "<!--" not in html and "{{ 7*7 }}" in html
        tree = parsed(html)
        known = {"class", "title", "alt", "src", "width", "height", "lang", "role", "aria-hidden"}
        known |= {"data-turn", "data-meme", "viewBox", "preserveAspectRatio", "x", "fill", "fill-opacity"}
        assert {name for node in tree.iter() for name in node.attrib} <= known
    assert parsed(parts[0]).find(".//div[@class='mc-text']").text == HOSTILE


def test_the_chart_has_a_point_a_turn_and_steps_of_the_threshold() -> None:
    scores, thetas, sent = [0.2, 1.1, -math.inf, 0.4], [0.5, 0.5, 0.9, 0.6], [False, True, False, False]
    svg = drawing.gate_chart([2, 3, 4, 5], scores, thetas, sent)
    tree = ElementTree.fromstring(svg)
    points = [c for c in tree.iter("circle") if c.find("title") is not None]
    assert [c.get("fill") for c in points] == ["#fff", "#0072B2", "#fff"]
    assert float(points[1].get("cy")) < float(points[2].get("cy")) < float(points[0].get("cy"))
    assert "1 of 4 turns" in tree.get("aria-label") and "×" in "".join(tree.itertext())
    assert "nan" not in svg and "inf" not in svg and "dasharray" not in svg
    assert "dasharray" in drawing.gate_chart([2], [0.5], [0.1], [True], gated=False)
    with pytest.raises(ValueError, match="equally long"):
        drawing.gate_chart([2, 3], [0.1], [0.1, 0.2], [False, False])
    steps = tree.find("path").get("d")
    assert steps.count("H") == 4 and steps.startswith("M")
    # A break in the line of scores, where one is missing.
    assert tree.findall("path")[1].get("d").count("M") == 2


def test_thumbnails_are_small_and_made_once(tmp_path) -> None:
    files = made_up.meme_files(tmp_path, (400, 200))
    thumbnails = Thumbnails(files, side=100)
    picture = thumbnails["m1"]
    assert (picture.width, picture.height) == (100, 50) and picture.url.startswith("data:image/jpeg;base64,")
    drawn = Image.open(io.BytesIO(base64.b64decode(picture.url.partition(",")[2])))
    assert drawn.size == (150, 75)
    assert all(abs(a - b) < 8 for a, b in zip(drawn.getpixel((70, 30)), made_up.COLOURS["m1"], strict=True))
    files["m1"].unlink()
    assert thumbnails["m1"] is picture
    with pytest.raises(KeyError):
        thumbnails["m9"]


def test_all_can_be_made_ahead_and_a_broken_one_is_told_when_shown(tmp_path) -> None:
    files = made_up.meme_files(tmp_path)
    (tmp_path / "m2.png").write_bytes(b"no picture")
    thumbnails = Thumbnails(files)
    thumbnails.make_ahead().join(timeout=20)
    assert set(thumbnails._made) == {"m1", "m3"}
    with pytest.raises(OSError):
        thumbnails["m2"]


def test_the_style_sheet_asks_nothing_of_the_network() -> None:
    style = drawing.styles()
    assert style.count("<style>") == 1 and "url(" not in style and "http" not in style
