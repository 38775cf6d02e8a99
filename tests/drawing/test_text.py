import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image

from memecmd_utils import drawing

FAMILY = "👨\u200d👩\u200d👧"
PIECES = [
    *"天气真好吗直龘々ー０Ａかナ가",
    *drawing.CLOSING, *drawing.OPENING, '"', "'", "-", "——", "……", "？！",
    "iPhone", "3,200", "12.5%", "9:30", "-3.5", "don't", "C++", "https://a.b/c?d=1&e=2", "Привет",
    "👍🏽", FAMILY, "🇨🇳", "1\ufe0f\u20e3", "❤\ufe0f", "e\u0301", "ñ", " ", "  ", "\t", "a" * 30,
]  # fmt: skip
texts = st.lists(st.sampled_from(PIECES), max_size=40).map("".join)


def width(text: str) -> float:
    """Every cluster of one ASCII character is half as wide as any other."""
    return sum(1 if c.isascii() and len(c) == 1 else 2 for c in drawing.clusters(text))


@pytest.mark.parametrize(
    ("text", "limit", "lines"),
    [
        ("今天天气好", 6, ["今天天", "气好"]),
        ("今天，好", 4, ["今", "天，", "好"]),  # no comma at the start of a line
        ("看《活着》吧", 4, ["看", "《活", "着》", "吧"]),  # no bracket left behind, none in front
        ("他说“好的”。", 6, ["他说", "“好", "的”。"]),
        ("他说（ 好 ）。", 10, ["他说", "（ 好 ）。"]),  # nor with a blank between
        ('他说"好的"吧', 6, ["他说", '"好的"', "吧"]),  # straight quotes open and close by turns
        ("用Python写", 8, ["用Python", "写"]),
        ("我用Python", 8, ["我用", "Python"]),  # a word stays whole
        ("用C++和C#吧", 5, ["用C++", "和C#", "吧"]),
        ("共3,200人", 6, ["共", "3,200", "人"]),  # and so does a number
        ("涨了12.5%呢", 5, ["涨了", "12.5%", "呢"]),
        ("只要￥99呢", 6, ["只要", "￥99呢"]),
        ("Привет мир", 13, ["Привет", "мир"]),  # in any alphabet
        ("hello big world", 9, ["hello big", "world"]),  # the space at the break is dropped
        ("一\n\n二", 8, ["一", "", "二"]),
        ("一\r\n二\u2028三", 8, ["一", "二", "三"]),
        ("abcdefghij", 4, ["abcd", "efgh", "ij"]),  # wider than a line: cut where it must be
        ("abcdefgh，好", 4, ["abcd", "efg", "h，", "好"]),  # and even there no comma goes first
        ("看http://a.bc/de/f?g=1", 9, ["看http://", "a.bc/de/", "f?g=1"]),  # an address after its marks
        ("好。。。。。", 4, ["好。", "。。", "。。"]),
        ("", 8, [""]),
        ("好\u200d呀\ufe0f", 8, ["好呀"]),  # nothing to draw
        (f"好{FAMILY}👍🏽", 4, [f"好{FAMILY}", "👍🏽"]),  # an emoji stays whole
        (FAMILY * 3, 4, [FAMILY * 2, FAMILY]),
    ],
)
def test_wrap(text: str, limit: int, lines: list[str]) -> None:
    assert drawing.wrap(text, limit, width) == lines


@settings(deadline=None)
@given(texts, st.integers(4, 60))
@example("“" * 9 + "好", 8)
@example("好" + "，" * 9, 8)
def test_nothing_is_lost_split_or_too_wide(text: str, limit: int) -> None:
    lines = drawing.wrap(text, limit, width)
    seen = [c for line in lines for c in drawing.clusters(line) if c != " "]
    assert seen == [c for c in drawing.clusters(drawing.clean(text)) if not c.isspace()]
    for line in lines:
        assert width(line) <= limit
        assert line == line.strip(" ")


@settings(deadline=None)
@given(texts, st.integers(4, 60))
def test_punctuation_stands_right_where_every_piece_fits(text: str, limit: int) -> None:
    pieces = drawing.units(drawing.clean(text))
    limit = max([limit, *map(width, pieces)])
    lines = drawing.wrap(text, limit, width)
    # The text itself may begin with a closing mark and end with an opening one.
    assert all(line and line[0] not in drawing.CLOSING for line in lines[1:])
    assert all(line and line[-1] not in drawing.OPENING for line in lines[:-1])
    # Lines are whole pieces, and each takes as many as fit.
    left = [piece for piece in pieces if piece.strip(" ")]
    for number, line in enumerate(lines):
        taken = ""
        while left and line.replace(" ", "").startswith((taken + left[0]).replace(" ", "")):
            taken += left.pop(0)
        assert taken.replace(" ", "") == line.replace(" ", "")
        if number + 1 < len(lines):
            assert left and width(line) + width(left[0].strip(" ")) > limit - 1


def test_what_cannot_be_drawn_is_dropped_and_what_chooses_a_picture_kept() -> None:
    assert drawing.clean("e\u0301\x00\u202e好\u00ad\ue0100") == "é好\ue0100"
    assert drawing.clean("好\U000e0100\ufe0e") == "好"
    flag = "🏴\U000e0067\U000e0062\U000e007f"
    for kept in (FAMILY, "❤\ufe0f", "1\ufe0f\u20e3", "👍🏽", flag):
        assert drawing.clean(kept) == kept
        assert drawing.clusters(kept) == [kept]
    assert drawing.clusters("A🇨🇳🇯🇵 好") == ["A", "🇨🇳", "🇯🇵", " ", "好"]


@pytest.mark.parametrize(
    ("names", "signs"),
    [
        (("母亲", "女儿"), ("母", "女")), (("甲", "乙"), ("甲", "乙")), (("小王", "小李"), ("王", "李")),
        (("王", "王八"), ("王", "八")), (("妈", "妈妈"), ("妈", "妈妈")), (("Alice", "bob"), ("A", "B")),
        (("Anna Bell", "Anna Cook"), ("B", "C")),
        (("Li", "li"), ("Li", "li")), (("👍🏽 a", "👍🏽 b"), ("A", "B")),
        (("e\u0301a", "e\u0301b"), ("A", "B")), (("", "小李"), ("", "小")), (("", " "), ("", "")),
        (("王芳", "王伟", "芳姐"), ("王芳", "王伟", "芳")), (("A1", "A2", "A3"), ("1", "2", "3")),
        (("群友01", "群友02", "群友11"), ("01", "02", "11")),
    ],
)  # fmt: skip
def test_people_of_a_chat_have_signs_of_their_own(names, signs) -> None:
    found = drawing.initials(names)
    assert tuple(found[name] for name in names) == signs
    assert found == drawing.initials(reversed(names)), "whoever speaks first"


def ink(text: str, size: int = 32, **keywords: bool) -> np.ndarray:
    """Text written black on white, as an array of [height, width, 3]."""
    image = Image.new("RGB", (12 * size, 3 * size), "white")
    drawing.write_line(image, (size, 2 * size), text, size, (0, 0, 0), **keywords)
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
    assert right <= size + drawing.text_width(text, size) + 3
    assert right - left > drawing.text_width(text, size) * 0.6


def test_chinese_characters_are_one_em_wide_and_no_line_is_thought_too_short() -> None:
    assert [drawing.text_width("好", size) for size in (12, 16, 32)] == [12, 16, 32]
    for text in ("好", "iPhone", "13,999.00", "Wi-Fi", "😀"):
        assert drawing.measure(16, text) >= drawing.text_width(text, 16)
        assert 2 * drawing.measure(16, text) >= drawing.text_width(text, 32)


def test_emoji_are_pictures_and_a_joined_one_is_one_picture() -> None:
    for text in ("😀", FAMILY, "👍🏽", "🇨🇳", "1\ufe0f\u20e3", "❤\ufe0f", "⭐"):
        assert coloured(ink(text)), text
        assert drawing.text_width(text, 32) == 40
    assert drawing.emoji(FAMILY, 40).tobytes() != drawing.emoji("👨", 40).tobytes()
    # A family that no one drew shows its first member; signs that are text stay text.
    assert drawing.emoji("🐱\u200d🍜", 40).tobytes() == drawing.emoji("🐱", 40).tobytes()
    assert not any(coloured(ink(text)) for text in ("1", "#", "©", "好", "𠮷", "❤"))


def test_other_scripts_come_from_the_second_font_and_keep_their_blanks() -> None:
    assert drawing.pieces("见שלום עולם吧") == ["见", "שלום עולם", "吧"]
    box = ink("\U0010fffd")
    for text in ("ש", "س", "ა"):
        assert (ink(text) != box).any()
