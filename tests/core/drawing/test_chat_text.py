import numpy as np
import pytest
from PIL import Image

from memecmd_utils.core.drawing import text as drawing_text

FAMILY = "👨\u200d👩\u200d👧"


def ink(text: str, size: int = 32, **keywords: bool) -> np.ndarray:
    """Text written black on white, as an array of [height, width, 3]."""
    image = Image.new("RGB", (12 * size, 3 * size), "white")
    drawing_text.write(image, (size, 2 * size), text, size, (0, 0, 0), **keywords)
    return np.asarray(image).astype(int)


def columns(pixels: np.ndarray) -> tuple[int, int]:
    """First and last column that is not white."""
    found = np.flatnonzero((pixels < 200).any(axis=(0, 2)))
    return int(found[0]), int(found[-1])


def coloured(pixels: np.ndarray) -> bool:
    return bool((pixels.max(axis=2) - pixels.min(axis=2) > 40).any())


@pytest.mark.parametrize("text", ["今天", "iPhone 15", "“好”，", "还有——好", FAMILY + "好", "שלום", "Привет"])
@pytest.mark.parametrize("size", [16, 32])
def test_what_is_written_is_as_wide_as_measured(text: str, size: int) -> None:
    left, right = columns(ink(text, size))
    assert left >= size - 3
    assert right <= size + drawing_text.length(text, size) + 3
    assert right - left > drawing_text.length(text, size) * 0.6


def test_chinese_characters_are_one_em_wide_and_no_line_is_thought_too_short() -> None:
    assert [drawing_text.length("好", size) for size in (12, 16, 32)] == [12, 16, 32]
    for text in ("好", "iPhone", "13,999.00", "Wi-Fi", "😀"):
        assert drawing_text.measure(16, text) >= drawing_text.length(text, 16)
        assert 2 * drawing_text.measure(16, text) >= drawing_text.length(text, 32)


def test_emoji_are_pictures_and_a_joined_one_is_one_picture() -> None:
    for text in ("😀", FAMILY, "👍🏽", "🇨🇳", "1\ufe0f\u20e3", "❤\ufe0f", "⭐"):
        assert coloured(ink(text)), text
        assert drawing_text.length(text, 32) == 40
    assert drawing_text.emoji(FAMILY, 40).tobytes() != drawing_text.emoji("👨", 40).tobytes()
    # A family that no one drew shows its first member; signs that are text stay text.
    assert drawing_text.emoji("🐱\u200d🍜", 40).tobytes() == drawing_text.emoji("🐱", 40).tobytes()
    assert not any(coloured(ink(text)) for text in ("1", "#", "©", "好", "𠮷", "❤"))


def test_other_scripts_come_from_the_second_font_and_keep_their_blanks() -> None:
    assert drawing_text.pieces("见שלום עולם吧") == ["见", "שלום עולם", "吧"]
    box = ink("\U0010fffd")
    for text in ("ש", "س", "ა"):
        assert (ink(text) != box).any()
