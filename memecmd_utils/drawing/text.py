"""Line breaking for Chinese text with Latin words in it, as phones do it.

The rules are those of "Requirements for Chinese Text Layout" (W3C, clreq), basic level: closing marks do
not begin a line, opening marks do not end one; the character before or after moves with its mark. Marks
keep their full width and do not hang into the margin: phones set chat bubbles that way.
"""

import math
import re
import unicodedata
from collections.abc import Callable, Iterable
from functools import lru_cache
from itertools import takewhile
from typing import NamedTuple

from PIL import Image, ImageDraw, ImageFont

from memecmd_utils.drawing import fonts

CLOSING = frozenset(
    "，。、；：？！．）】》〉」』”’〕〗〙〛〟］｝｠｡､｣…—～〜·・／％‰°℃ー々〻ゝゞヽヾ゛゜‼⁇⁈⁉"
    "ぁぃぅぇぉっゃゅょゎァィゥェォッャュョヮヵヶ,.;:?!)]}%"
)
"""Never at the start of a line."""
OPENING = frozenset("（【《〈「『“‘〔〖〘〚〝［｛｟｢([{￥¥€£＄$＃#＠@")
"""Never at the end of a line, but for the `#` of C# and its like."""

_EMOJI_JOINER, _EMOJI_STYLE = "\u200d", "\ufe0f"
# What may be set as it is; any other character makes `clean` look closer.
_ODD = re.compile(r"[^\n -~\u2010-\u2027\u3000-\u3029\u3030-\u3098\u309b-\u9fff\uac00-\ud7a3\uff00-\uffef]")
# Written without spaces: a line may end after each character.
_IDEOGRAPHS = "\u2e80-\u9fff\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff\uff00-\uffef\U0001b000-\U0003ffff"
_AFTER_MARK = re.compile(r"[^/?&=_#.,:+~@%-]*[/?&=_#.,:+~@%-]+|.+", re.DOTALL)


@lru_cache(maxsize=1)
def _patterns() -> tuple[re.Pattern, re.Pattern]:
    """Pattern of a cluster (what the eye takes for one character) and of an atom (word, blank, cluster)."""
    marks = "".join(chr(c) for c in range(0x300, 0x1F000) if unicodedata.category(chr(c))[0] == "M")
    extend = f"[{marks}\U0001f3fb-\U0001f3ff\U000e0020-\U000e007f]"
    cluster = (
        r"[0-9#*]\ufe0f?\u20e3"  # keycap
        r"|[\U0001f1e6-\U0001f1ff]{2}"  # flag
        rf"|[^\s]{extend}*(?:\u200d[^\s]{extend}*)*"
    )
    # A word or number in one piece, with the marks that live inside it: don't, 3.5, -2, a.b/c?d=1, C++
    letter = rf"(?:(?![{_IDEOGRAPHS}])[^\W_]{extend}*)"
    word = rf"(?:[-+−](?=\d))?{letter}+(?:['’.,:/@_+&=~#?%‐‑-]+{letter}+)*(?:\+\+)?"
    keycap = r"[0-9#*]\ufe0f?\u20e3"
    atom = rf"{keycap}|[A-Z]#(?!{letter})|{word}|\s+|{cluster}"
    return re.compile(cluster, re.DOTALL), re.compile(atom, re.DOTALL)


def clean(text: str) -> str:
    """Normal form C without what has no picture of its own: control and format characters.

    Joiners, the emoji style and flag tags stay inside emoji, where they choose the picture.
    """
    if not _ODD.search(text):
        return text
    text = unicodedata.normalize("NFC", re.sub("\r\n?|[\u2028\u2029\x0b\x0c\x85]", "\n", text))
    drawn: list[str] = []
    for char, after in zip(text, text[1:] + " ", strict=True):
        before = ord(drawn[-1][-1]) if drawn else 0
        if char == _EMOJI_JOINER:
            keep = _symbol(before) and _symbol(ord(after))
        elif char == _EMOJI_STYLE:
            keep = _symbol(before) or after == "\u20e3"
        elif 0xE0020 <= ord(char) <= 0xE007F:
            keep = before == 0x1F3F4 or 0xE0020 <= before <= 0xE007F
        elif 0xFE00 <= ord(char) <= 0xFE0E or 0xE0100 <= ord(char) <= 0xE01EF:
            keep = False
        else:
            keep = char.isspace() or unicodedata.category(char) not in ("Cc", "Cf", "Cs")
        if keep:
            drawn.append(char)
    return "".join(drawn)


def _symbol(code: int) -> bool:
    return code >= 0x1F000 or 0x2100 <= code < 0x2C00 or code in (0xA9, 0xAE, 0xFE0F, 0x3030, 0x303D)


def clusters(text: str) -> list[str]:
    """Split into what the eye takes for one character: letter with accents, flag, joined emoji, blank.

    >>> [len(c) for c in clusters("好👍🏽👨\u200d👩\u200d👧e\u0301")]
    [1, 2, 5, 2]
    """
    if not _ODD.search(text):
        return list(text)
    pattern = _patterns()[0]
    return [piece for part in re.split(r"(\s)", text) for piece in pattern.findall(part) or part]


def initials(names: Iterable[str]) -> dict[str, str]:
    """A short sign for each name, as on an avatar: its first character, or what tells it from the others.

    Where several begin alike it is the first character in which they differ, else the last one, else the
    first two or the last two.

    >>> initials(["母亲", "女儿"]), initials(["小王", "小李"]), initials(["Anna Bell", "Anna Cook"])
    ({'母亲': '母', '女儿': '女'}, {'小王': '王', '小李': '李'}, {'Anna Bell': 'B', 'Anna Cook': 'C'})
    """
    parts = {name: clusters(clean(name).strip()) for name in dict.fromkeys(names)}
    signs = {name: "".join(pieces[:1]).upper() for name, pieces in parts.items()}
    for sign in dict.fromkeys(signs.values()):
        alike = {name: parts[name] for name in parts if signs[name] == sign}
        if sign and len(alike) > 1:
            signs |= _apart(alike, {signs[name] for name in parts if name not in alike})
    return signs


def _apart(alike: dict[str, list[str]], taken: set[str]) -> dict[str, str]:
    columns = zip(*([piece.casefold() for piece in pieces] for pieces in alike.values()), strict=False)
    same = sum(1 for _ in takewhile(lambda column: len(set(column)) == 1, columns))
    ways: tuple[Callable[[list[str]], str], ...] = (
        lambda pieces: next((piece for piece in pieces[same:] if piece.strip()), pieces[-1]).upper(),
        lambda pieces: pieces[-1].upper(),
        lambda pieces: "".join(pieces[:2]).upper(),
        lambda pieces: "".join(pieces[:2]),
        lambda pieces: "".join(pieces[-2:]).upper(),
    )
    for way in ways:
        signs = {name: way(pieces) for name, pieces in alike.items()}
        if len(set(signs.values())) == len(alike) and not taken & set(signs.values()):
            break
    return signs


def units(line: str) -> list[str]:
    """Split one paragraph into the smallest pieces between which a line may end.

    >>> units("他说“好”，看iPhone 15！")
    ['他', '说', '“好”，', '看', 'iPhone', ' ', '15！']
    """
    return _glued(_patterns()[1].findall(line))


def _glued(atoms: list[str]) -> list[str]:
    """Join closing marks to what stands before them and opening marks to what follows."""
    pieces: list[str] = []
    opened, quoted = False, False
    for atom in atoms:
        if atom.isspace():
            atom = " "
        straight = atom == '"'  # opening and closing by turns
        closes = atom in CLOSING or (straight and quoted)
        if closes and len(pieces) > 1 and pieces[-1] == " ":
            pieces[-2:] = [pieces[-2] + " "]
        if pieces and (opened or closes):
            pieces[-1] += atom
        else:
            pieces.append(atom)
        quoted ^= straight
        opened = atom in OPENING or (straight and quoted) or (opened and atom == " ")
    return pieces


def _parts(unit: str, level: int) -> list[str]:
    """Parts of a unit too wide for a line: after the marks of an address, then clusters with their
    punctuation, then bare clusters."""
    if level == 0:
        return _glued([part for part in _AFTER_MARK.findall(unit) if part])
    pieces = clusters(unit)
    return _glued(pieces) if level == 1 else pieces


def wrap(text: str, width: float, measure: Callable[[str], float]) -> list[str]:
    """Break `text` into lines no wider than `width` (in the unit of `measure`); "\\n" always breaks.

    A piece wider than a whole line is cut where it hurts least: an address after a slash or the like,
    then between any two clusters. A single cluster wider than the line stands alone and sticks out.
    """
    lines: list[str] = []
    line, used = "", 0.0

    def end() -> None:
        nonlocal line, used
        lines.append(line.rstrip(" "))
        line, used = "", 0.0

    def place(unit: str, level: int) -> None:
        nonlocal line, used
        size = measure(unit)
        if used + size > width and size > width and level < 3 and len(unit) > 1:
            for part in _parts(unit, level):
                place(part, level + 1)
            return
        # A blank or tail of blanks may stick out: it is not drawn.
        if line and used + (measure(unit.rstrip(" ")) if unit[-1] == " " else size) > width:
            end()
        if not line and unit[0] == " ":
            unit = unit.lstrip(" ")
            size = measure(unit)
        line, used = line + unit, used + size

    for paragraph in clean(text).split("\n"):
        for unit in units(paragraph):
            place(unit, 0)
        end()
    return lines


# --- Text of a chat screenshot: Chinese glyphs, emoji in colour, other scripts. Sizes are device pixels
# Glyphs are drawn once, cached and pasted: faster than shaping every line anew, and the same on every
# machine, because shaping needs a system library (FriBiDi) that not every machine has. Noto Sans CJK needs no
# shaping for the scripts that it holds; only Hebrew and Arabic, from the second font, are shaped where the
# library is there.


Colour = tuple[int, int, int]

SEMIBOLD = 0.022
"""Stroke around semi-bold glyphs, in em: the package of the font has the regular weight only."""
_EMOJI_ADVANCE, _EMOJI_SIDE = 1.25, 1.45
"""Of an em; OpenMoji leaves a margin, so that the ink of a face is about 1.2 em wide, as on phones."""
# Emoji of the basic plane that are shown in colour without asking for it (Unicode: Emoji_Presentation).
_COLOURED = frozenset(
    "⌚⌛⏩⏪⏫⏬⏰⏳◽◾☔☕♈♉♊♋♌♍♎♏♐♑♒♓♿⚓⚡⚪⚫⚽⚾⛄⛅⛎⛔⛪⛲⛳⛵⛺⛽✅✊✋✨❌❎❓❔❕❗➕➖➗➰➿⬛⬜⭐⭕"
)


class Glyph(NamedTuple):
    """A drawn piece: alpha mask or, for emoji, a picture; where it goes from the pen; how far the pen moves.

    `left` and `top` are relative to the pen on the baseline.
    """

    mask: Image.Image | None
    picture: Image.Image | None
    left: int
    top: int
    advance: int


@lru_cache(maxsize=64)
def _other_font(size: int) -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(str(fonts.symbol_font_path()), size=size)


@lru_cache(maxsize=20_000)
def covered(char: str) -> bool:
    """Whether the CJK font has this character; it draws a crossed box for those that it lacks."""
    font = fonts.pil_font(24, shaped=False)
    return char.isspace() or bytes(font.getmask(char)) != bytes(font.getmask("\U0010fffd"))


@lru_cache(maxsize=2_000)
def emoji(cluster: str, side: int) -> Image.Image | None:
    """OpenMoji's picture (CC BY-SA 4.0) of a cluster, RGBA, `side` pixels square; None if there is none."""
    first = cluster[0]
    if not (ord(first) >= 0x1F000 or first in _COLOURED or "\ufe0f" in cluster or "\u20e3" in cluster):
        return None
    if 0x20000 <= ord(first) < 0xE0000:
        return None  # rare Chinese characters
    plain = cluster.replace("\ufe0f", "")
    for name in (cluster, plain, plain.split("\u200d")[0]):
        path = fonts.emoji_path("-".join(f"{ord(c):04X}" for c in name))
        if path.is_file():
            return fonts.emoji_picture(path, side)
    return None


def pieces(text: str) -> list[str]:
    """Split cleaned text into what is drawn at once: a cluster, or a run that the CJK font lacks.

    Such a run keeps its blanks: letters of Arabic join, and words of Hebrew go from right to left.
    """
    out: list[str] = []
    foreign = False
    for cluster in clusters(text):
        strange = not all(map(covered, cluster)) and emoji(cluster, 72) is None
        second_dash = cluster == "—" and bool(out) and out[-1] == "—"
        if second_dash or (foreign and (strange or cluster == " ")):
            out[-1] += cluster
        else:
            out.append(cluster)
            foreign = strange
    return out


@lru_cache(maxsize=20_000)
def glyph(piece: str, size: int, bold: bool = False) -> Glyph:
    """Draw one piece of `pieces` at `size`."""
    picture = emoji(piece, round(_EMOJI_SIDE * size))
    if picture is not None:
        advance = round(_EMOJI_ADVANCE * size)
        left = (advance - picture.width) // 2
        # Centred on the middle of a Chinese character: em box, ascent 0.88.
        return Glyph(None, picture, left, round(-0.38 * size) - picture.height // 2, advance)
    face = fonts.pil_font(size, shaped=False) if all(map(covered, piece)) else _other_font(size)
    # A pair of dashes is one long dash, as the font itself tells programs that shape.
    piece = "\u2e3a" if piece == "——" else piece.replace("\ufe0f", "")
    stroke = SEMIBOLD * size if bold else 0.0
    left, top, right, bottom = face.getbbox(piece, anchor="ls", stroke_width=stroke)
    left, top = math.floor(left), math.floor(top)
    advance = round(face.getlength(piece))
    if right <= left or bottom <= top or piece.isspace():
        return Glyph(None, None, 0, 0, advance)
    mask = Image.new("L", (math.ceil(right) - left, math.ceil(bottom) - top))
    where = (-left, -top)
    ImageDraw.Draw(mask).text(where, piece, fill=255, font=face, anchor="ls", stroke_width=stroke)
    return Glyph(mask, None, left, top, advance)


def text_width(text: str, size: int) -> int:
    """Width of a line of cleaned text: the sum of its pieces' advances."""
    return sum(glyph(piece, size).advance for piece in pieces(text))


@lru_cache(maxsize=50_000)
def measure(size: int, text: str) -> float:
    """Width at `size`, or half the width at twice the size where that is more.

    Advances are whole pixels: at twice the size half a pixel shows, and a line is never thought too short.
    """
    return max(text_width(text, size), text_width(text, 2 * size) / 2)


def write_line(
    image: Image.Image, where: tuple[int, int], text: str, size: int, fill: Colour, bold: bool = False
) -> None:
    """Write one line of cleaned text with its left end and baseline at `where`."""
    x, y = where
    pen = ImageDraw.Draw(image)
    for piece in pieces(text):
        drawn = glyph(piece, size, bold)
        if drawn.mask is not None:
            pen.bitmap((x + drawn.left, y + drawn.top), drawn.mask, fill)
        elif drawn.picture is not None:
            image.paste(drawn.picture, (x + drawn.left, y + drawn.top), drawn.picture)
        x += drawn.advance


def fit(text: str, width: float, size: int) -> str:
    """Cut one line with an ellipsis, between clusters, so that `measure` finds it no wider than `width`."""
    text = " ".join(clean(text).split())
    if measure(size, text) <= width:
        return text
    start = clusters(text)
    while start and measure(size, "".join(start) + "…") > width:
        start.pop()
    return "".join(start).rstrip() + "…"
