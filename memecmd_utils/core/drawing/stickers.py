"""The example memes: OpenMoji pictures with authored captions, drawn from `data/example/memes.csv`.

Drawing is deterministic: all that varies comes from the meme's id, so the same table gives the same bytes.
"""

import csv
import io
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw, ImageFilter, ImageOps

from memecmd_utils.core import paths, seeds
from memecmd_utils.core.drawing import fonts
from memecmd_utils.core.drawing import text as drawing_text
from memecmd_utils.core.images import LibraryError

LICENCE = "CC BY-SA 4.0 (OpenMoji)"
LAYOUTS = ("big_face", "duo", "face_object", "bubble", "top_bottom", "grain")
COLUMNS = ("meme_id", "caption_top", "caption", "pictures", "layout", "picture_note", "gloss")

# Soft colours; most sticker backgrounds are white, so white is drawn apart.
SOFT = ("#FFE9A8", "#FFD6DD", "#CDEBFF", "#D5F2D0", "#E6DBFF", "#FFDFC4", "#CFF3EE", "#F4EFE3")
STRONG = ("#C62828", "#1546A0", "#1B6E37", "#8E24AA", "#B23C00")
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
    font = fonts.pil_font(size)
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
        widest = max(fonts.pil_font(MEASURE).getlength(line) for line in lines) or 1
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
        if units and unit in drawing_text.CLOSING:
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
            good = unit[-1] in drawing_text.CLOSING or unit.isspace()
            cost = abs(length - target) - (0.35 * target if good else 0)
            if cost < lowest:
                cut, lowest = number, cost
        if not cut:
            break
        lines.append("".join(rest[:cut]).strip())
        rest = rest[cut:]
    lines.append("".join(rest).strip())
    return [line for line in lines if line]


def sticker(image: Image.Image, width: int = 6) -> Image.Image:
    """Put a white paper edge of `width` pixels around a picture, as cut-out stickers have."""
    padded = ImageOps.expand(image, width + 2, (0, 0, 0, 0))
    alpha = padded.getchannel("A").filter(ImageFilter.GaussianBlur(width / 2))
    edge = alpha.point(lambda a: min(255, max(0, (a - 20) * 12)))
    paper = Image.new("RGBA", padded.size, (255, 255, 255, 0))
    paper.putalpha(edge)
    return Image.alpha_composite(paper, padded)


def motif(image: Image.Image, pattern: str, phase: float) -> None:
    """Draw a light pattern over a coloured background, in place."""
    width, height = image.size
    layer = Image.new("RGBA", image.size, (255, 255, 255, 0))
    pen = ImageDraw.Draw(layer)
    light = (255, 255, 255, 110)
    if pattern == "rays":
        for step in range(12):
            start = (step + phase) * math.tau / 12
            tips = [(width / 2 + 500 * math.cos(a), 150 + 500 * math.sin(a)) for a in (start, start + 0.26)]
            pen.polygon([(width / 2, 150), *tips], fill=light)
    elif pattern == "dots":
        for row, y in enumerate(range(0, height + 26, 26)):
            for x in range(13 * (row % 2), width + 26, 26):
                pen.ellipse((x - 5, y - 5, x + 5, y + 5), fill=light)
    elif pattern == "stripes":
        for x in range(round(-height + 40 * phase), width, 40):
            pen.line((x, height, x + height, 0), fill=light, width=14)
    elif pattern == "fade":
        column = Image.linear_gradient("L").resize(image.size).point(lambda v: round(v * 0.85))
        layer.putalpha(column if phase < 0.5 else ImageOps.flip(column))
    image.alpha_composite(layer)


def bubble(text: Image.Image, tail: float, rough: float) -> Image.Image:
    """A hand-drawn speech bubble around a caption; its tail points down at the share `tail` of the width."""
    scale = 2  # drawn at twice the size, because ImageDraw does not smooth edges
    width, height = (text.width + 56) * scale, (text.height + 44) * scale
    foot = 34 * scale
    layer = Image.new("RGBA", (width, height + foot), (255, 255, 255, 0))
    edge = []
    for step in range(120):
        angle = step * math.tau / 120
        # A superellipse with a slight wave: rounder than a box, roomier than an ellipse.
        c, s = math.cos(angle), math.sin(angle)
        wave = 1 - 0.012 * (1 + math.sin(3 * angle + rough))
        x = width / 2 * (1 + 0.97 * wave * math.copysign(abs(c) ** 0.5, c))
        y = height / 2 * (1 + 0.95 * wave * math.copysign(abs(s) ** 0.5, s))
        edge.append((x, y))
    x = width * tail
    points = [
        (x - 20 * scale, height * 0.9),
        (x + 12 * scale, height + foot - 6),
        (x + 22 * scale, height * 0.9),
    ]
    pen = ImageDraw.Draw(layer)
    for shape in (edge, points):  # outline first, then the fill of both, so that no line parts tail and body
        pen.line([*shape, shape[0]], fill=DARK, width=6 * scale, joint="curve")
    for shape in (edge, points):
        pen.polygon(shape, fill="#FFFFFF")
    layer = layer.resize((width // scale, (height + foot) // scale), Image.Resampling.LANCZOS)
    layer.alpha_composite(text, (28, (height // scale - text.height) // 2))
    return layer


@dataclass(frozen=True)
class ExampleMeme:
    """One row of the table. `pictures` are OpenMoji code sequences, `caption_top` is mostly empty."""

    meme_id: str
    caption_top: str
    caption: str
    pictures: tuple[str, ...]
    layout: str
    picture_note: str
    gloss: str

    @property
    def text(self) -> str:
        """All visible text, top to bottom."""
        return f"{self.caption_top} {self.caption}".strip()


def read_table(path: Path | None = None) -> list[ExampleMeme]:
    """Read the table (default: `data/example/memes.csv`); a bad row raises `LibraryError` with its line."""
    path = path or paths.example / "memes.csv"
    if not path.is_file():
        raise LibraryError(f"the table of example memes is missing: {path}")
    rows: dict[str, ExampleMeme] = {}
    with path.open(encoding="utf-8-sig", newline="") as handle:
        reader = csv.DictReader(handle)
        missing = set(COLUMNS) - set(reader.fieldnames or ())
        if missing:
            raise LibraryError(f"{path.name}: columns missing: {', '.join(sorted(missing))}")
        for row in reader:
            values = {key: (row[key] or "").strip() for key in COLUMNS}
            where = f"{path.name} line {reader.line_num}"
            meme = ExampleMeme(**{**values, "pictures": tuple(values["pictures"].split())})
            if not meme.meme_id or meme.meme_id in rows:
                raise LibraryError(f"{where}: meme_id {meme.meme_id!r} is empty or used twice")
            if meme.layout not in LAYOUTS:
                raise LibraryError(
                    f"{where}: unknown layout {meme.layout!r}; there are: {', '.join(LAYOUTS)}"
                )
            if not meme.pictures or not meme.caption:
                raise LibraryError(f"{where}: a meme needs a caption and at least one picture")
            for picture in meme.pictures:
                if not fonts.emoji_path(picture).is_file():
                    raise LibraryError(f"{where}: OpenMoji has no picture {picture!r}")
            rows[meme.meme_id] = meme
    return list(rows.values())


def draw(meme: ExampleMeme) -> Image.Image:
    """Draw a meme as RGB, about 360 x 360 pixels."""
    return _Drawing(meme).image.convert("RGB")


def png_bytes(image: Image.Image) -> bytes:
    """PNG without metadata: the same picture gives the same bytes."""
    buffer = io.BytesIO()
    image.save(buffer, format="PNG", compress_level=6)
    return buffer.getvalue()


def emoji(picture: str, side: int) -> Image.Image:
    """An OpenMoji picture as RGBA, cropped to its ink and scaled to fit a square of `side` pixels."""
    # OpenMoji leaves a margin of a tenth on each side; drawn larger, so that cropping loses no sharpness.
    image = fonts.emoji_picture(fonts.emoji_path(picture), round(side * 1.25))
    return ImageOps.contain(image.crop(image.getbbox()), (side, side), Image.Resampling.LANCZOS)


class _Drawing:
    """One meme on its canvas. Lengths are pixels."""

    def __init__(self, meme: ExampleMeme) -> None:
        self.meme = meme
        self.rng = seeds.rng(0, "example_memes", meme.meme_id)
        self.plain = True
        self.image = Image.new("RGBA", (1, 1))
        getattr(self, f"_{meme.layout}")()

    def _between(self, low: float, high: float) -> float:
        return float(self.rng.uniform(low, high))

    def _pick(self, values: tuple[str, ...]) -> str:
        return values[int(self.rng.integers(len(values)))]

    def _canvas(self, width: int, height: int, white: float = 0.5) -> None:
        """New canvas: white with probability `white`, else a soft colour, plain or with a motif."""
        self.plain = bool(self.rng.random() < white)
        colour = "#FFFFFF" if self.plain else self._pick(SOFT)
        self.image = Image.new("RGBA", (width, height), colour)
        if not self.plain:
            pattern = self._pick(("flat", "flat", "rays", "dots", "fade", "stripes"))
            motif(self.image, pattern, self._between(0, 1))

    def _place(self, layer: Image.Image, x: float, y: float, angle: float = 0.0) -> None:
        """Paste a layer centred at x, y, turned by `angle` degrees, wholly inside the canvas."""
        if angle:
            layer = layer.rotate(angle, resample=Image.Resampling.BICUBIC, expand=True)
        width, height = self.image.size
        if layer.width > width or layer.height > height:
            layer = ImageOps.contain(layer, (width, height), Image.Resampling.LANCZOS)
        left = min(max(round(x - layer.width / 2), 0), width - layer.width)
        top = min(max(round(y - layer.height / 2), 0), height - layer.height)
        self.image.alpha_composite(layer, (left, top))

    def _picture(self, number: int, side: float) -> Image.Image:
        image = emoji(self.meme.pictures[number % len(self.meme.pictures)], round(side))
        return image if self.plain else sticker(image)

    def _style(self) -> Style:
        """Black on white mostly; white with a dark edge or a strong colour now and then."""
        if self.rng.random() < (0.15 if self.plain else 0.45):
            return Style(LIGHT, DARK, 4)
        if self.rng.random() < 0.2:
            return Style(self._pick(STRONG), "#FFFFFF", 0 if self.plain else 4)
        return Style(DARK, "#FFFFFF", 0 if self.plain else 4)

    def _write(self, text: str, y: float, width: float, height: float, style: Style, tilt: float = 0) -> None:
        """Write `text` centred at height y of the canvas, in at most width x height pixels."""
        layer = caption(text, round(width), round(height), style)
        self._place(layer, self.image.width / 2, y, self._between(-tilt, tilt) if tilt else 0)

    def _big_face(self) -> None:
        width, height = 360, round(self._between(340, 372))
        self._canvas(width, height, white=0.6)
        if len(self.meme.pictures) > 1:
            for number in range(len(self.meme.pictures)):
                self._place(self._picture(number, 170), width * (0.28 + 0.44 * number), 0.36 * height)
        else:
            side = self._between(225, 255)
            self._place(self._picture(0, side), width / 2 + self._between(-14, 14), 138, self._between(-9, 9))
        self._write(self.meme.caption, height - 44, width - 24, 74, self._style(), tilt=2)

    def _duo(self) -> None:
        width, height = 400, round(self._between(300, 330))
        self._canvas(width, height, white=0.45)
        base = height - 88
        for number, x in ((0, 0.27), (1, 0.73)):
            picture = self._picture(number, self._between(175, 200))
            y = max(base - picture.height / 2, picture.height / 2)
            self._place(picture, width * x, y, self._between(-4, 4))
        self._write(self.meme.caption, height - 40, width - 24, 66, self._style(), tilt=1.5)

    def _face_object(self) -> None:
        width, height = 360, round(self._between(345, 375))
        self._canvas(width, height, white=0.5)
        side = self._between(205, 230)
        self._place(self._picture(0, side), width * 0.40, 128, self._between(-6, 6))
        self._place(
            sticker(self._picture(1, self._between(120, 140)), 5),
            width * 0.78,
            self._between(186, 204),
            self._between(-16, 16),
        )
        self._write(self.meme.caption, height - 46, width - 24, 76, self._style(), tilt=2)

    def _bubble(self) -> None:
        width, height = 380, round(self._between(330, 360))
        self._canvas(width, height, white=0.55)
        side = self._between(185, 205)
        right = bool(self.rng.random() < 0.5)
        x = width * (0.66 if right else 0.34) + self._between(-12, 12)
        self._place(self._picture(0, side), x, height - side / 2 - 4, self._between(-4, 4))
        text = caption(self.meme.caption, width - 84, 84, Style(DARK, "#FFFFFF", 0))
        balloon = bubble(text, tail=0.62 if right else 0.38, rough=self._between(0, math.tau))
        self._place(balloon, width / 2 + (-10 if right else 10), 12 + balloon.height / 2)

    def _top_bottom(self) -> None:
        width, height = 360, round(self._between(370, 400))
        dark = bool(self.rng.random() < 0.3)
        self._canvas(width, height, white=0.4)
        style = self._style()
        if dark:  # the framed kind: white letters on black bars
            ImageDraw.Draw(self.image).rectangle((0, 0, width, 78), fill="#111111")
            ImageDraw.Draw(self.image).rectangle((0, height - 78, width, height), fill="#111111")
            style = Style(LIGHT, LIGHT, 0)
        count = len(self.meme.pictures)
        side = min(width / count - 22, 205)
        for number in range(count):
            picture = self._picture(number, side * self._between(0.94, 1))
            self._place(picture, width * (number + 0.5) / count, height / 2, self._between(-5, 5))
        if self.meme.caption_top:
            self._write(self.meme.caption_top, 39, width - 24, 60, style)
        self._write(self.meme.caption, height - 39, width - 24, 60, style)

    def _grain(self) -> None:
        width, height = 380, round(self._between(340, 380))
        self.plain = True
        y, x = np.mgrid[0:height, 0:width]
        away = np.hypot((x - width / 2) / (width / 2), (y - height * 0.42) / (height / 2))
        grey = np.clip(self._between(205, 228) - 105 * away**1.7, 0, 255).astype(np.uint8)
        self.image = Image.merge("RGB", [Image.fromarray(grey)] * 3).convert("RGBA")
        side = self._between(215, 240)
        for number in range(len(self.meme.pictures)):
            offset = (number - (len(self.meme.pictures) - 1) / 2) * side * 0.6
            picture = self._picture(number, side)
            # Greys of a coloured drawing lie close together; spread out they stand off the background.
            ink = ImageOps.autocontrast(picture.convert("L"), cutoff=2, mask=picture.getchannel("A"))
            picture = Image.merge("RGBA", [ink, ink, ink, picture.getchannel("A")])
            self._place(picture, width / 2 + offset, height * 0.42, self._between(-6, 6))
        grey = np.asarray(self.image.convert("L").filter(ImageFilter.GaussianBlur(0.8)), dtype=np.float32)
        # Film grain is coarser than a pixel: noise at half size, enlarged, plus a little fine noise.
        coarse = self.rng.normal(0, 20, (height // 2 + 1, width // 2 + 1)).astype(np.float32)
        noise = np.asarray(Image.fromarray(coarse).resize((width, height), Image.Resampling.BILINEAR))
        faded = 20 + 0.86 * (grey - 20 + noise + self.rng.normal(0, 7, (height, width)))
        self.image = Image.fromarray(np.clip(faded, 0, 255).astype(np.uint8)).convert("RGBA")
        text = " ".join(filter(None, (self.meme.caption_top, self.meme.caption)))
        self._write(text, height - 42, width - 32, 64, Style(LIGHT, "#141414", 5))
