"""Parts of the example memes beside picture and caption: paper edge, background pattern, speech bubble."""

import math

from PIL import Image, ImageDraw, ImageFilter, ImageOps

from memecmd_utils.captions import DARK


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
