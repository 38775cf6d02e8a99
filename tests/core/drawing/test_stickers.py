import csv
from dataclasses import replace

import numpy as np
import pytest

from memecmd_utils.core.drawing import fonts, stickers
from memecmd_utils.core.drawing.stickers import COLUMNS, LAYOUTS, ExampleMeme, draw, png_bytes, read_table
from memecmd_utils.core.images import LibraryError

ROWS = [
    ("t1", "", "先睡一觉", "1F634", "big_face", "一张睡脸", "Sleep first"),
    ("t2", "", "一起走吧", "1F431 1F436", "duo", "一猫一狗", "Let's go"),
    ("t3", "", "钱呢", "1F631 1F4B8", "face_object", "一张脸和钞票", "Where is the money"),
    ("t4", "", "稍等一下，马上就好", "1F422", "bubble", "一只乌龟", "One moment"),
    ("t5", "我以为的", "实际上的", "1F60E 1F62D", "top_bottom", "两张脸", "Expected / real"),
    ("t6", "", "往事不要再提", "1F940", "grain", "一枝花", "Let the past rest"),
]
MEMES = [ExampleMeme(*row[:3], tuple(row[3].split()), *row[4:]) for row in ROWS]
LONG = "这句话实在是太长了，长到没有人愿意把它读完，可是它还在继续，一直到画面的尽头也没有停下来的意思"


def write_table(path, rows, columns=COLUMNS):
    with path.open("w", encoding="utf-8", newline="") as handle:
        csv.writer(handle).writerows([columns, *rows])
    return path


def test_the_table_is_read(tmp_path):
    assert read_table(write_table(tmp_path / "memes.csv", ROWS)) == MEMES
    assert MEMES[4].text == "我以为的 实际上的"
    assert {meme.layout for meme in MEMES} == set(LAYOUTS)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({4: "collage"}, "line 2: unknown layout 'collage'; there are: big_face"),
        ({3: "1F9999"}, "line 2: OpenMoji has no picture '1F9999'"),
        ({3: ""}, "line 2: a meme needs"),
        ({0: "t2"}, "line 3: meme_id 't2' is empty or used twice"),
    ],
)
def test_a_bad_row_is_named(tmp_path, change, message):
    first = tuple(change.get(i, value) for i, value in enumerate(ROWS[0]))
    with pytest.raises(LibraryError, match=message):
        read_table(write_table(tmp_path / "memes.csv", [first, *ROWS[1:]]))


@pytest.mark.parametrize("meme", MEMES, ids=lambda meme: meme.layout)
def test_drawing_is_deterministic_and_depends_on_the_caption(meme):
    image = draw(meme)
    assert image.mode == "RGB"
    assert all(290 <= side <= 410 for side in image.size)
    assert png_bytes(draw(meme)) == png_bytes(image)
    assert png_bytes(draw(replace(meme, caption="别的话"))) != png_bytes(image)
    assert png_bytes(draw(replace(meme, meme_id="t9"))) != png_bytes(image) or meme.layout != "big_face"
    if meme.layout == "grain":  # it is grey
        assert np.ptp(np.asarray(image).astype(int), axis=2).max() == 0


@pytest.mark.parametrize(
    "text", ["哦", "今天不想上班了", LONG, LONG * 3, "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAA", "W" * 200]
)
@pytest.mark.parametrize("width", [0, 5])
def test_captions_are_never_clipped(text, width):
    style = stickers.Style(stickers.DARK, stickers.LIGHT, width)
    layer = stickers.caption(text, 320, 70, style)
    assert layer.width <= 320
    assert layer.height <= 70
    lines, size = stickers.fit(text, 300, 60)
    assert "".join(lines) == text
    # The ink is as wide as the longest line: nothing was cut off at the edge of the layer.
    font = fonts.pil_font(size)
    if max(map(font.getlength, lines)) <= 300 and len(lines) * size * stickers.LEADING <= 60:
        assert layer.width >= 0.85 * max(map(font.getlength, lines))


@pytest.mark.slow
def test_no_two_memes_of_the_shipped_table_look_alike():
    memes = read_table()
    assert len({png_bytes(draw(meme)) for meme in memes}) == len(memes) == 200
