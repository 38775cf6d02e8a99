"""Captions of the example memes: wrapped, as large as fits, never clipped."""

import re
from typing import NamedTuple

from PIL import Image, ImageDraw, ImageOps

from memecmd_utils import linebreak
from memecmd_utils.fonts import pil_font

DARK = "#1A1A1A"
LIGHT = "#FFFFFF"
LARGEST = 50  # pixels; short captions do not fill the width, as on real memes
SMALLEST = 9
MEASURE = 100  # size at which widths are measured; they scale with the size
LEADING = 1.22  # line height over font size
_UNITS = re.compile(r"[A-Za-z0-9@#%&+.'’-]+|\s+|.", re.DOTALL)


class Style(NamedTuple):
    """Colours of a caption and the width in pixels of its edge at the largest size; 0: no edge."""

    fill: str
    edge: str
    width: int


def caption(text: str, width: int, height: int, style: Style) -> Image.Image:
    """Draw `text` on a transparent picture of at most `width` x `height` pixels, cropped to its ink."""
    lines, size = fit(text, width - 2 * style.width - 4, height - 2 * style.width)
    font = pil_font(size)
    bold = size / 42  # Noto comes here in Regular only: a stroke of the same colour makes it bold
    edge = bold + max(1.0, style.width * size / LARGEST) if style.width else 0.0
    step = round(size * LEADING)
    margin = round(edge) + size
    widest = max(round(font.getlength(line)) for line in lines)
    layer = Image.new("RGBA", (widest + 2 * margin, step * len(lines) + 2 * margin), (0, 0, 0, 0))
    pen = ImageDraw.Draw(layer)
    # All edges before all letters, else the edge of one line covers the line above.
    for stroke, colour in ((edge, style.edge), (bold, style.fill)):
        if not stroke:
            continue
        for number, line in enumerate(lines):
            place = (layer.width / 2, margin + step * (number + 0.5))
            pen.text(
                place, line, font=font, anchor="mm", fill=colour, stroke_width=stroke, stroke_fill=colour
            )
    layer = layer.crop(layer.getbbox() or (0, 0, 1, 1))
    if layer.width > width or layer.height > height:
        layer = ImageOps.contain(layer, (width, height), Image.Resampling.LANCZOS)
    return layer


def fit(text: str, width: int, height: int) -> tuple[list[str], int]:
    """Lines and the largest font size at which they fit; fewer lines win unless more are clearly larger."""
    best: tuple[list[str], int] = ([text], 0)
    previous = 0
    for count in range(1, 40):
        lines = balance(text, count)
        if len(lines) < count:
            break
        widest = max(pil_font(MEASURE).getlength(line) for line in lines) or 1
        size = int(min(LARGEST, width * MEASURE / widest, height / (count * LEADING)))
        if size > best[1] * 1.15:
            best = (lines, size)
        if size < previous:
            break
        previous = size
    return best[0], max(best[1], SMALLEST)


def balance(text: str, count: int) -> list[str]:
    """Break `text` into at most `count` lines of about the same length, after punctuation where that is near.

    Words in Latin letters stay whole, and no line begins with a closing mark.
    """
    text = " ".join(text.split())
    if count <= 1:
        return [text]
    units: list[str] = []
    for unit in _UNITS.findall(text):
        if units and unit in linebreak.CLOSING:
            units[-1] += unit
        else:
            units.append(unit)
    lines = []
    rest = units
    for left in range(count, 1, -1):
        total = sum(map(len, rest))
        target = total / left
        cut, lowest, length = 0, float("inf"), 0
        for number, unit in enumerate(rest[:-1], start=1):
            length += len(unit)
            good = unit[-1] in linebreak.CLOSING or unit.isspace()
            cost = abs(length - target) - (0.35 * target if good else 0)
            if cost < lowest:
                cut, lowest = number, cost
        if not cut:
            break
        lines.append("".join(rest[:cut]).strip())
        rest = rest[cut:]
    lines.append("".join(rest).strip())
    return [line for line in lines if line]
