"""Text of a chat screenshot: Chinese glyphs, emoji in colour, other scripts. Sizes are device pixels.

Glyphs are drawn once, cached and pasted: faster than shaping every line anew, and the same on every
machine, because shaping needs a system library (FriBiDi) that not every machine has. Noto Sans CJK needs no
shaping for the scripts that it holds; only Hebrew and Arabic, from the second font, are shaped where the
library is there.
"""

import io
import math
from functools import lru_cache
from typing import NamedTuple

from PIL import Image, ImageDraw, ImageFont

from memecmd_utils import fonts, linebreak

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
def font(size: int) -> ImageFont.FreeTypeFont:
    """Return the CJK font at `size` device pixels, without shaping."""
    return fonts.pil_font(size, shaped=False)


@lru_cache(maxsize=64)
def _other_font(size: int) -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(str(fonts.symbol_font_path()), size=size)


@lru_cache(maxsize=20_000)
def covered(char: str) -> bool:
    """Whether the CJK font has this character; it draws a crossed box for those that it lacks."""
    return char.isspace() or bytes(font(24).getmask(char)) != bytes(font(24).getmask("\U0010fffd"))


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
        path = fonts.emoji_folder() / ("-".join(f"{ord(c):04X}" for c in name) + ".svg")
        if path.is_file():
            import resvg_py

            data = resvg_py.svg_to_bytes(svg_path=str(path), width=side, skip_system_fonts=True)
            return Image.open(io.BytesIO(bytes(data))).convert("RGBA")
    return None


def pieces(text: str) -> list[str]:
    """Split cleaned text into what is drawn at once: a cluster, or a run that the CJK font lacks.

    Such a run keeps its blanks: letters of Arabic join, and words of Hebrew go from right to left.
    """
    out: list[str] = []
    foreign = False
    for cluster in linebreak.clusters(text):
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
    face = font(size) if all(map(covered, piece)) else _other_font(size)
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


def length(text: str, size: int) -> int:
    """Width of a line of cleaned text: the sum of its pieces' advances."""
    return sum(glyph(piece, size).advance for piece in pieces(text))


@lru_cache(maxsize=50_000)
def measure(size: int, text: str) -> float:
    """Width at `size`, or half the width at twice the size where that is more.

    Advances are whole pixels: at twice the size half a pixel shows, and a line is never thought too short.
    """
    return max(length(text, size), length(text, 2 * size) / 2)


def write(
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
    text = " ".join(linebreak.clean(text).split())
    if measure(size, text) <= width:
        return text
    kept = linebreak.clusters(text)
    while kept and measure(size, "".join(kept) + "…") > width:
        kept.pop()
    return "".join(kept).rstrip() + "…"
