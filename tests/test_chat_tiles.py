import numpy as np
import pytest
from PIL import Image

from memecmd_utils import chat_tiles

PAGE = chat_tiles.THEMES["light"].page
WHITE = (255, 255, 255)


def luminance(colour: tuple[int, int, int]) -> float:
    """Relative luminance (WCAG 2.2)."""
    parts = [v / 255 / 12.92 if v / 255 <= 0.04045 else ((v / 255 + 0.055) / 1.055) ** 2.4 for v in colour]
    return float(np.dot(parts, (0.2126, 0.7152, 0.0722)))


def contrast(one: tuple[int, int, int], other: tuple[int, int, int]) -> float:
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_has_the_contrast_that_wcag_asks_for(theme: str) -> None:
    c = chat_tiles.THEMES[theme]
    pairs = [(c.ink, c.bar), (c.faint, c.page), (c.left_ink, c.left), (c.right_ink, c.right)]
    pairs += [(WHITE, colour) for colour in chat_tiles.AVATAR_COLOURS]
    assert min(contrast(*pair) for pair in pairs) >= 4.5
    assert round(contrast((0, 0, 0), WHITE), 3) == 21


def test_the_two_people_never_look_alike() -> None:
    for name in ("同名", "A", "李四", "x" * 9, ""):
        left, right = (chat_tiles.avatar(name, side, 1, PAGE).getpixel((4, 20)) for side in (False, True))
        assert left != right


def test_an_avatar_shows_letter_emoji_or_silhouette() -> None:
    def inside(name: str) -> np.ndarray:
        return np.asarray(chat_tiles.avatar(name, True, 2, PAGE)).astype(int)[8:72, 8:72]

    for name in ("甲", "ab", "👨\u200d👩\u200d👧 一家", "", " \u200b"):
        pixels = inside(name)
        assert (pixels != pixels[0, 0]).any(), name
    assert (inside("") == inside("\u200b")).all(axis=2).mean() > 0.3  # both show a person
    emoji = inside("😀")
    assert ((emoji[..., 0] > 200) & (emoji[..., 2] < 100)).any()  # yellow


@pytest.mark.parametrize(
    ("size", "shown"),
    [((400, 80), (150, 30)), ((80, 400), (30, 150)), ((1, 1), (150, 150)), ((2000, 10), (150, 24)),
     ((313, 297), (150, 142))],
)  # fmt: skip
def test_memes_fit_a_square_and_twice_the_scale_is_twice_the_size(tmp_path, size, shown) -> None:
    file = tmp_path / "m.png"
    Image.new("RGB", size, (10, 120, 200)).save(file)
    one, two = (chat_tiles.thumbnail("m", {"m": file}, 150, k, PAGE) for k in (1, 2))
    assert one.size == shown and two.size == (2 * shown[0], 2 * shown[1])
    assert one.getpixel((shown[0] // 2, shown[1] // 2)) == (10, 120, 200)
    assert one.getpixel((0, 0)) != (10, 120, 200)  # round corners


@pytest.mark.parametrize("mode", ["LA", "P", "I;16", "CMYK"])
def test_any_kind_of_picture_can_be_shown(tmp_path, mode: str) -> None:
    file = tmp_path / ("m.tif" if mode == "CMYK" else "m.png")
    Image.new(mode, (60, 60)).save(file)
    assert chat_tiles.thumbnail("m", {"m": file}, 150, 1, PAGE).size == (150, 150)


def test_a_meme_that_cannot_be_shown_is_named(tmp_path) -> None:
    with pytest.raises(KeyError, match="'m1' is in the chat but has no file"):
        chat_tiles.thumbnail("m1", {}, 150, 1, PAGE)
    with pytest.raises(FileNotFoundError, match=r"'m1' is missing: .*gone\.png"):
        chat_tiles.thumbnail("m1", {"m1": tmp_path / "gone.png"}, 150, 1, PAGE)
    (tmp_path / "text.png").write_text("no picture")
    with pytest.raises(ValueError, match=r"'m1' is no picture: .*text\.png"):
        chat_tiles.thumbnail("m1", {"m1": tmp_path / "text.png"}, 150, 1, PAGE)


def test_tails_point_away_from_the_bubble() -> None:
    red = (200, 0, 0)
    for right in (False, True):
        tail = np.asarray(chat_tiles.tail(right, 2, red, PAGE)).astype(int)
        filled = (tail == red).all(axis=2).sum(axis=0)
        assert (filled[0] > filled[-1]) == right


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("scale", [1, 2])
def test_bars_have_their_signs(theme: str, scale: int) -> None:
    top, bottom = chat_tiles.chrome(theme, scale, 390)
    assert top.size == (390 * scale, 74 * scale) and bottom.size == (390 * scale, 76 * scale)
    colours = chat_tiles.THEMES[theme]

    def drawn(bar: Image.Image, left: float, upper: float, right: float, lower: float) -> bool:
        part = bar.crop([round(v * scale) for v in (left, upper, right, lower)])
        return bool((np.abs(np.asarray(part).astype(int) - colours.bar) > 60).any())

    signs = {"signal": (308, 5, 326, 20), "wifi": (330, 5, 346, 20), "battery": (350, 8, 375, 20)}
    signs |= {"back": (12, 42, 24, 62), "menu": (354, 48, 376, 56)}
    assert all(drawn(top, *box) for box in signs.values())
    assert not drawn(top, 90, 0, 300, 70)  # room for the title
    for box in ((12, 14, 40, 42), (310, 14, 338, 42), (350, 14, 378, 42), (133, 65, 257, 71)):
        assert drawn(bottom, *box)
    assert bottom.getpixel((200 * scale, 28 * scale)) == colours.field
