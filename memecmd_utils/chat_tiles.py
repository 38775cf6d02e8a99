"""Cached pieces of a chat screenshot: chrome, avatars, corners, tails, thumbnails."""

import hashlib
import math
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Literal, NamedTuple

from PIL import Image, ImageDraw, ImageOps, UnidentifiedImageError

from memecmd_utils import chat_text, linebreak
from memecmd_utils.chat_text import Colour

Theme = Literal["light", "dark"]

AVATAR, STATUS, HEADER, FOOTER = 40, 30, 44, 76
"""Logical pixels; every function multiplies by its scale `k`."""

_FINE = 4
"""Pillow draws shapes with hard edges: each tile is drawn this much larger, once, and scaled down."""


class Colours(NamedTuple):
    """Colours of one theme."""

    page: Colour
    bar: Colour
    rule: Colour
    ink: Colour
    faint: Colour
    left: Colour
    left_ink: Colour
    right: Colour
    right_ink: Colour
    field: Colour


THEMES: dict[str, Colours] = {
    "light": Colours(
        page=(237, 237, 237),
        bar=(246, 246, 246),
        rule=(218, 218, 218),
        ink=(24, 24, 24),
        faint=(104, 104, 104),
        left=(255, 255, 255),
        left_ink=(24, 24, 24),
        right=(149, 236, 105),
        right_ink=(16, 30, 10),
        field=(255, 255, 255),
    ),
    "dark": Colours(
        page=(17, 17, 17),
        bar=(28, 28, 28),
        rule=(44, 44, 44),
        ink=(218, 218, 218),
        faint=(132, 132, 132),
        left=(44, 44, 44),
        left_ink=(222, 222, 222),
        right=(62, 178, 117),
        right_ink=(8, 24, 14),
        field=(44, 44, 44),
    ),
}
AVATAR_COLOURS: tuple[Colour, ...] = (
    (58, 109, 175),
    (176, 88, 28),
    (74, 121, 54),
    (150, 82, 148),
    (188, 68, 80),
    (34, 122, 122),
    (124, 102, 70),
    (92, 100, 178),
)


def _tile(
    size: tuple[int, int], ground: Colour, paint: Callable[[ImageDraw.ImageDraw, int], None]
) -> Image.Image:
    large = Image.new("RGB", (size[0] * _FINE, size[1] * _FINE), ground)
    paint(ImageDraw.Draw(large), _FINE)
    return large.resize(size, Image.Resampling.BOX)


@lru_cache(maxsize=64)
def _corners(radius: int, fill: Colour, ground: Colour) -> tuple[Image.Image, ...]:
    """The four quarters of a disc: top left, bottom left, top right, bottom right."""
    side = 2 * radius
    disc = _tile(
        (side, side), ground, lambda pen, f: pen.ellipse((0, 0, side * f - 1, side * f - 1), fill=fill)
    )
    quarters = [(x, y, x + radius, y + radius) for x in (0, radius) for y in (0, radius)]
    return tuple(disc.crop(quarter) for quarter in quarters)


def rounded(
    image: Image.Image,
    pen: ImageDraw.ImageDraw,
    box: tuple[int, int, int, int],
    radius: int,
    fill: Colour,
    ground: Colour,
) -> None:
    """Fill `box` (left, top, right, bottom) and lay smooth corners over it."""
    left, top, right, bottom = box
    pen.rectangle((left, top, right - 1, bottom - 1), fill=fill)
    places = [(x, y) for x in (left, right - radius) for y in (top, bottom - radius)]
    for place, corner in zip(places, _corners(radius, fill, ground), strict=True):
        image.paste(corner, place)


@lru_cache(maxsize=16)
def tail(right: bool, k: int, fill: Colour, ground: Colour) -> Image.Image:
    """Draw the small triangle that points from a bubble to its avatar."""
    width, height = 5 * k, 12 * k

    def paint(pen: ImageDraw.ImageDraw, f: int) -> None:
        base, tip = (0, width * f) if right else (width * f, 0)
        pen.polygon([(base, 0), (tip, height * f / 2), (base, height * f)], fill=fill)

    return _tile((width, height), ground, paint)


@lru_cache(maxsize=512)
def avatar(name: str, right: bool, k: int, ground: Colour, sign: str | None = None) -> Image.Image:
    """Draw a rounded square with a sign in it, in a colour that the name fixes.

    `sign`: one or two characters (`linebreak.initials`); None: the name's first letter or emoji. Each side
    has colours of its own, so that the two people of a chat never look alike. A person without a name gets
    a silhouette.
    """
    side = AVATAR * k
    # sha256, not hash(): Python salts the latter, and a picture must not change between runs.
    fill = AVATAR_COLOURS[hashlib.sha256(name.encode()).digest()[0] % 4 + 4 * right]
    image = Image.new("RGB", (side, side), ground)
    rounded(image, ImageDraw.Draw(image), (0, 0, side, side), 5 * k, fill, ground)
    letter = linebreak.initials([name])[name] if sign is None else sign
    if letter:
        size = (19 if len(linebreak.clusters(letter)) == 1 else 14) * k
        x = (side - chat_text.length(letter, size)) // 2
        chat_text.write(image, (x, round(side / 2 + 0.38 * size)), letter, size, (255, 255, 255))
    else:
        edge = 4 * k
        image.paste(_silhouette(side - 2 * edge, fill), (edge, edge))
    return image


def _silhouette(side: int, ground: Colour) -> Image.Image:
    """Head and shoulders."""

    def paint(pen: ImageDraw.ImageDraw, f: int) -> None:
        u = side * f
        pen.ellipse((0.31 * u, 0.12 * u, 0.69 * u, 0.52 * u), fill=(255, 255, 255))
        pen.pieslice((0.12 * u, 0.58 * u, 0.88 * u, 1.34 * u), 180, 360, fill=(255, 255, 255))

    return _tile((side, side), ground, paint)


def thumbnail(meme_id: str, meme_files: Mapping[str, Path], side: int, k: int, ground: Colour) -> Image.Image:
    """Return a meme scaled to fit a square of `side` logical pixels, on white, with rounded corners.

    Raises KeyError for an id without a file, FileNotFoundError and ValueError for a file that is not
    there or is no picture; each names the meme.
    """
    if meme_id not in meme_files:
        raise KeyError(f"meme {meme_id!r} is in the chat but has no file")
    path = Path(meme_files[meme_id])
    if not path.is_file():
        raise FileNotFoundError(f"the picture of meme {meme_id!r} is missing: {path}")
    # The time of change is in the key so that a library built again is not shown from the cache.
    try:
        return _thumbnail(path, path.stat().st_mtime_ns, side, k, ground)
    except UnidentifiedImageError as error:
        raise ValueError(f"the file of meme {meme_id!r} is no picture: {path}") from error


@lru_cache(maxsize=1024)
def _thumbnail(path: Path, changed_ns: int, side: int, k: int, ground: Colour) -> Image.Image:
    with Image.open(path) as opened:
        picture = ImageOps.exif_transpose(opened).convert("RGBA")
    ratio = min(side / picture.width, side / picture.height)
    # Floors keep a panorama or a banner visible as more than a line; whole logical pixels make 2x the
    # same layout as 1x.
    size = tuple(max(24, round(edge * ratio)) * k for edge in picture.size)
    white = Image.new("RGBA", picture.size, "white")
    flat = Image.alpha_composite(white, picture).convert("RGB").resize(size, Image.Resampling.LANCZOS)
    large = Image.new("L", (size[0] * _FINE, size[1] * _FINE), 0)
    edge = (0, 0, large.width - 1, large.height - 1)
    ImageDraw.Draw(large).rounded_rectangle(edge, 5 * k * _FINE, fill=255)
    mask = large.resize(size, Image.Resampling.BOX)
    return Image.composite(flat, Image.new("RGB", size, ground), mask)


@lru_cache(maxsize=16)
def chrome(theme: Theme, k: int, width: int) -> tuple[Image.Image, Image.Image]:
    """Draw the bars above and below the messages, without title and clock."""
    colours = THEMES[theme]

    def top(pen: ImageDraw.ImageDraw, f: int) -> None:
        u = k * f
        middle = (STATUS + HEADER / 2) * u
        chevron = [(22 * u, middle - 8 * u), (14 * u, middle), (22 * u, middle + 8 * u)]
        pen.line(chevron, fill=colours.ink, width=round(1.9 * u), joint="curve")
        for dot in (-6.5, 0, 6.5):
            _disc(pen, (width - 25 + dot) * u, middle, 1.7 * u, colours.ink)
        for bar in range(4):  # signal
            x = (width - 82 + 4.5 * bar) * u
            pen.rectangle((x, (18 - 2.4 * bar - 2) * u, x + 3 * u, 19 * u), fill=colours.ink)
        for arc in range(3):  # wireless network
            r = (3 + 3.6 * arc) * u
            x, y = (width - 52) * u, 19 * u
            pen.arc((x - r, y - r, x + r, y + r), 225, 315, fill=colours.ink, width=round(2 * u))
        x = (width - 40) * u  # battery
        pen.rounded_rectangle((x, 9 * u, x + 21 * u, 19.5 * u), 3 * u, outline=colours.faint, width=round(u))
        pen.rounded_rectangle((x + 2 * u, 11 * u, x + 15 * u, 17.5 * u), 1.4 * u, fill=colours.ink)
        pen.rectangle((x + 22 * u, 12.5 * u, x + 23 * u, 16 * u), fill=colours.faint)
        pen.rectangle((0, (STATUS + HEADER - 0.5) * u, width * u, (STATUS + HEADER) * u), fill=colours.rule)

    def bottom(pen: ImageDraw.ImageDraw, f: int) -> None:
        u = k * f
        line = round(1.5 * u)
        pen.rectangle((0, 0, width * u, 0.5 * u), fill=colours.rule)
        y = 28 * u
        for x in (26 * u, (width - 66) * u, (width - 26) * u):
            _disc(pen, x, y, 13 * u, None, colours.ink, line)
        for arc in range(3):  # voice
            r = (2 + 3 * arc) * u
            x = 22 * u
            pen.arc((x - r, y - r, x + r, y + r), 310, 410, fill=colours.ink, width=line)
        pen.rounded_rectangle((50 * u, 9 * u, (width - 90) * u, 47 * u), 5 * u, fill=colours.field)
        x = (width - 66) * u  # smiley
        for eye in (-4.3, 4.3):
            _disc(pen, x + eye * u, y - 3 * u, 1.5 * u, colours.ink)
        pen.arc((x - 6.5 * u, y - 6 * u, x + 6.5 * u, y + 7 * u), 20, 160, fill=colours.ink, width=line)
        x = (width - 26) * u  # plus
        pen.line((x - 7 * u, y, x + 7 * u, y), fill=colours.ink, width=line)
        pen.line((x, y - 7 * u, x, y + 7 * u), fill=colours.ink, width=line)
        home = (width / 2 - 62) * u, 66 * u, (width / 2 + 62) * u, 70.5 * u
        pen.rounded_rectangle(home, 2.2 * u, fill=colours.ink)

    return (
        _tile((width * k, (STATUS + HEADER) * k), colours.bar, top),
        _tile((width * k, FOOTER * k), colours.bar, bottom),
    )


def _disc(
    pen: ImageDraw.ImageDraw,
    x: float,
    y: float,
    radius: float,
    fill: Colour | None,
    outline: Colour | None = None,
    width: int = 1,
) -> None:
    box = (x - radius, y - radius, x + radius, y + radius)
    pen.ellipse(tuple(map(math.floor, box)), fill=fill, outline=outline, width=width)
