"""Chat screenshots that look like a phone's, drawn with Pillow for judges, notebooks and Figure 5."""

import hashlib
import io
import json
import math
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from pathlib import Path
from typing import Literal, NamedTuple

from PIL import Image, ImageDraw, ImageOps, UnidentifiedImageError
from pydantic import BaseModel, ConfigDict

from memecmd_utils import schemas
from memecmd_utils.drawing import text as drawing_text
from memecmd_utils.drawing.text import Colour

RENDERER_VERSION = 2
"""Part of every specification's hash: raise it when the same specification would look different."""

WIDTH = 390
FIXED = {"theme": "light", "scale": 1, "width": WIDTH}
"""Part of every specification's hash, under which answers are recorded: what could be chosen once."""
AVATAR, STATUS, HEADER, FOOTER = 40, 30, 44, 76
BODY, LINE, PAD_X, PAD_Y, RADIUS = 16, 22, 12, 9, 6
MARGIN, GAP, BETWEEN, STAMP = 12, 11, 14, 30
MEME, MIN_HEIGHT = 150, 480
TITLE, TITLE_MARGIN = 17, 85
PHASE_STARTS = (1, 7, 13)
"""Turns that open a part of the dialogue (paper, Eq. 11-14): a time stamp stands above them."""
PAGE: Colour = (237, 237, 237)
BAR: Colour = (246, 246, 246)
RULE: Colour = (218, 218, 218)
INK: Colour = (24, 24, 24)
FAINT: Colour = (104, 104, 104)
FIELD: Colour = (255, 255, 255)
BUBBLES: dict[str, tuple[Colour, Colour]] = {
    "left": ((255, 255, 255), (24, 24, 24)),
    "right": ((149, 236, 105), (16, 30, 10)),
}
"""Fill and ink of the bubbles of each side."""
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
_FINE = 4


class Bubble(BaseModel):
    """One message: a text or a meme. `stamp` is the time written above it, if any."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    side: Literal["left", "right"]
    name: str
    text: str = ""
    meme_id: str = ""
    stamp: str = ""


class ChatSpec(BaseModel):
    """All that decides how a screenshot looks. Memes stand in it by id; files are given to `draw`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    title: str
    bubbles: tuple[Bubble, ...]
    clock: str = ""


def spec_sha256(spec: ChatSpec) -> str:
    """Hash of a specification and the renderer's version; enters the key of a recording."""
    value: dict[str, object] = {
        "renderer": RENDERER_VERSION,
        "spec": FIXED | spec.model_dump(mode="json"),
    }
    # Only where the signs are not the first letters: all other pictures look as they always did.
    if odd := {
        name: sign for name, sign in _signs(spec).items() if drawing_text.initials([name])[name] != sign
    }:
        value["signs"] = odd
    text = json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _signs(spec: ChatSpec) -> dict[str, str]:
    """What stands on each person's avatar."""
    return drawing_text.initials(bubble.name for bubble in spec.bubbles)


def chat_from_dialogue(
    dialogue: schemas.Dialogue,
    memes: Mapping[int, str],
    n_turns: int | None = None,
    meme_position: Literal["before", "after"] = "before",
) -> ChatSpec:
    """Build the screenshot of a dialogue's first `n_turns` turns with memes: their ids by turn.

    A owns the phone and stands right; the meme of turn t is a bubble of its speaker beside u_t.
    """
    names = {"A": dialogue.name_a or "A", "B": dialogue.name_b or "B"}
    # Times are part of the picture only: any fixed choice that looks natural will do.
    minute = 540 + int(hashlib.sha256(dialogue.dialogue_id.encode()).hexdigest()[:8], 16) % 720
    bubbles: list[Bubble] = []
    for turn in dialogue.turns[:n_turns]:
        side = "right" if turn.speaker == "A" else "left"
        stamp = ""
        if turn.turn in PHASE_STARTS:
            minute += 0 if turn.turn == 1 else 9
            stamp = f"{minute // 60 % 24}:{minute % 60:02d}"
        parts: list[Bubble] = [Bubble(side=side, name=names[turn.speaker], text=turn.text)]
        if turn.turn in memes:
            bubble = Bubble(side=side, name=names[turn.speaker], meme_id=memes[turn.turn])
            parts.insert(0 if meme_position == "before" else 1, bubble)
        parts[0] = parts[0].model_copy(update={"stamp": stamp})
        bubbles += parts
    clock = f"{(minute + 5) // 60 % 24}:{(minute + 5) % 60:02d}"
    return ChatSpec(title=names["B"], bubbles=tuple(bubbles), clock=clock)


class Box(NamedTuple):
    """Where a bubble stands, in pixels; `lines` are its text broken into lines."""

    bubble: Bubble
    top: int
    x: int
    y: int
    width: int
    height: int
    lines: tuple[str, ...]
    picture: Image.Image | None


def arrange(spec: ChatSpec, meme_files: Mapping[str, Path]) -> tuple[list[Box], int]:
    """Place every bubble; return the boxes and the height of the whole picture in pixels."""
    room = WIDTH - 2 * (MARGIN + AVATAR + GAP + PAD_X)
    measure = partial(drawing_text.measure, BODY)
    boxes: list[Box] = []
    y = STATUS + HEADER + BETWEEN
    for bubble in spec.bubbles:
        top = y
        y += STAMP if bubble.stamp else 0
        lines: tuple[str, ...] = ()
        picture = None
        if bubble.meme_id:
            picture = _meme_picture(bubble.meme_id, meme_files)
            width, height = picture.size
        else:
            lines = tuple(drawing_text.wrap(bubble.text, room, measure))
            width = max(math.ceil(max(map(measure, lines))), BODY) + 2 * PAD_X
            height = len(lines) * LINE + 2 * PAD_Y
        x = MARGIN + AVATAR + GAP
        if bubble.side == "right":
            x = WIDTH - x - width
        boxes.append(Box(bubble, top, x, y, width, height, lines, picture))
        y += max(height, AVATAR) + BETWEEN
    return boxes, max(y + FOOTER, MIN_HEIGHT)


def draw_chat(spec: ChatSpec, meme_files: Mapping[str, Path]) -> Image.Image:
    """Draw a screenshot; `meme_files` gives the picture of every meme id in the specification."""
    boxes, height = arrange(spec, meme_files)
    image = Image.new("RGB", (WIDTH, height), PAGE)
    header, footer = _bars()
    image.paste(header, (0, 0))
    image.paste(footer, (0, height - footer.height))
    title = drawing_text.fit(spec.title, WIDTH - 2 * TITLE_MARGIN, TITLE)
    middle = (WIDTH - drawing_text.text_width(title, TITLE)) // 2, STATUS + HEADER // 2 + 6
    drawing_text.write_line(image, middle, title, TITLE, INK, bold=True)
    drawing_text.write_line(image, (22, 20), spec.clock, 14, INK, bold=True)
    signs = _signs(spec)
    for box in boxes:
        _paint(image, box, signs[box.bubble.name])
    return image


def _paint(image: Image.Image, box: Box, sign: str) -> None:
    bubble = box.bubble
    if bubble.stamp:
        left = (WIDTH - drawing_text.text_width(bubble.stamp, 12)) // 2
        drawing_text.write_line(image, (left, box.top + 16), bubble.stamp, 12, FAINT)
    right = bubble.side == "right"
    avatar_x = WIDTH - MARGIN - AVATAR if right else MARGIN
    image.paste(_avatar(bubble.name, right, sign), (avatar_x, box.y))
    if box.picture:
        image.paste(box.picture, (box.x, box.y))
        return
    fill, ink = BUBBLES[bubble.side]
    edges = (box.x, box.y, box.x + box.width, box.y + box.height)
    _rounded(image, edges, RADIUS, fill)
    tail = _tail(right, fill)
    image.paste(tail, (edges[2] if right else box.x - tail.width, box.y + 14))
    # Baseline that centres a Chinese character (em box, ascent 0.88) in its line.
    first = round(box.y + PAD_Y + (LINE - BODY) / 2 + 0.88 * BODY)
    for number, line in enumerate(box.lines):
        drawing_text.write_line(image, (box.x + PAD_X, first + number * LINE), line, BODY, ink)


def encode(image: Image.Image, kind: Literal["png", "jpeg"] = "png") -> bytes:
    """Encode a screenshot; JPEG without chroma subsampling, which would smear coloured text."""
    buffer = io.BytesIO()
    if kind == "jpeg":
        image.save(buffer, "JPEG", quality=88, subsampling=0)
    else:
        image.save(buffer, "PNG", compress_level=6)
    return buffer.getvalue()


# --- pieces that recur, drawn once ------------------------------------------------------------------------


def _tile(
    size: tuple[int, int], ground: Colour, paint: Callable[[ImageDraw.ImageDraw, int], None]
) -> Image.Image:
    """Pillow draws shapes with hard edges: a tile is drawn larger, once, and scaled down."""
    large = Image.new("RGB", (size[0] * _FINE, size[1] * _FINE), ground)
    paint(ImageDraw.Draw(large), _FINE)
    return large.resize(size, Image.Resampling.BOX)


@lru_cache(maxsize=64)
def _corners(radius: int, fill: Colour) -> tuple[Image.Image, ...]:
    """The four quarters of a disc: top left, bottom left, top right, bottom right."""
    side = 2 * radius
    disc = _tile(
        (side, side), PAGE, lambda pen, f: pen.ellipse((0, 0, side * f - 1, side * f - 1), fill=fill)
    )
    quarters = [(x, y, x + radius, y + radius) for x in (0, radius) for y in (0, radius)]
    return tuple(disc.crop(quarter) for quarter in quarters)


def _rounded(image: Image.Image, box: tuple[int, int, int, int], radius: int, fill: Colour) -> None:
    """Fill `box` (left, top, right, bottom) and lay smooth corners over it."""
    left, top, right, bottom = box
    ImageDraw.Draw(image).rectangle((left, top, right - 1, bottom - 1), fill=fill)
    places = [(x, y) for x in (left, right - radius) for y in (top, bottom - radius)]
    for place, corner in zip(places, _corners(radius, fill), strict=True):
        image.paste(corner, place)


@lru_cache(maxsize=2)
def _tail(right: bool, fill: Colour) -> Image.Image:
    """The small triangle that points from a bubble to its avatar."""
    width, height = 5, 12

    def paint(pen: ImageDraw.ImageDraw, f: int) -> None:
        base, tip = (0, width * f) if right else (width * f, 0)
        pen.polygon([(base, 0), (tip, height * f / 2), (base, height * f)], fill=fill)

    return _tile((width, height), PAGE, paint)


@lru_cache(maxsize=512)
def _avatar(name: str, right: bool, sign: str) -> Image.Image:
    """A rounded square with a sign in it (`text.initials`), in a colour that the name fixes.

    Each side has colours of its own, so that the two people of a chat never look alike.
    """
    # sha256, not hash(): Python salts the latter, and a picture must not change between runs.
    fill = AVATAR_COLOURS[hashlib.sha256(name.encode()).digest()[0] % 4 + 4 * right]
    image = Image.new("RGB", (AVATAR, AVATAR), PAGE)
    _rounded(image, (0, 0, AVATAR, AVATAR), 5, fill)
    size = 19 if len(drawing_text.clusters(sign)) == 1 else 14
    x = (AVATAR - drawing_text.text_width(sign, size)) // 2
    drawing_text.write_line(image, (x, round(AVATAR / 2 + 0.38 * size)), sign, size, (255, 255, 255))
    return image


def _meme_picture(meme_id: str, meme_files: Mapping[str, Path]) -> Image.Image:
    """A meme scaled to fit a square of `MEME` pixels, on white, with rounded corners.

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
        return _fitted(path, path.stat().st_mtime_ns)
    except UnidentifiedImageError as error:
        raise ValueError(f"the file of meme {meme_id!r} is no picture: {path}") from error


@lru_cache(maxsize=1024)
def _fitted(path: Path, changed_ns: int) -> Image.Image:
    with Image.open(path) as opened:
        picture = ImageOps.exif_transpose(opened).convert("RGBA")
    ratio = min(MEME / picture.width, MEME / picture.height)
    # The floor keeps a panorama or a banner visible as more than a line.
    size = tuple(max(24, round(edge * ratio)) for edge in picture.size)
    white = Image.new("RGBA", picture.size, "white")
    flat = Image.alpha_composite(white, picture).convert("RGB").resize(size, Image.Resampling.LANCZOS)
    large = Image.new("L", (size[0] * _FINE, size[1] * _FINE), 0)
    edge = (0, 0, large.width - 1, large.height - 1)
    ImageDraw.Draw(large).rounded_rectangle(edge, 5 * _FINE, fill=255)
    mask = large.resize(size, Image.Resampling.BOX)
    return Image.composite(flat, Image.new("RGB", size, PAGE), mask)


@lru_cache(maxsize=1)
def _bars() -> tuple[Image.Image, Image.Image]:
    """The bars above and below the messages, without title and clock."""

    def top(pen: ImageDraw.ImageDraw, u: int) -> None:
        middle = (STATUS + HEADER / 2) * u
        chevron = [(22 * u, middle - 8 * u), (14 * u, middle), (22 * u, middle + 8 * u)]
        pen.line(chevron, fill=INK, width=round(1.9 * u), joint="curve")
        for dot in (-6.5, 0, 6.5):
            _disc(pen, (WIDTH - 25 + dot) * u, middle, 1.7 * u, INK)
        for bar in range(4):  # signal
            x = (WIDTH - 82 + 4.5 * bar) * u
            pen.rectangle((x, (18 - 2.4 * bar - 2) * u, x + 3 * u, 19 * u), fill=INK)
        for arc in range(3):  # wireless network
            r = (3 + 3.6 * arc) * u
            x, y = (WIDTH - 52) * u, 19 * u
            pen.arc((x - r, y - r, x + r, y + r), 225, 315, fill=INK, width=round(2 * u))
        x = (WIDTH - 40) * u  # battery
        pen.rounded_rectangle((x, 9 * u, x + 21 * u, 19.5 * u), 3 * u, outline=FAINT, width=u)
        pen.rounded_rectangle((x + 2 * u, 11 * u, x + 15 * u, 17.5 * u), 1.4 * u, fill=INK)
        pen.rectangle((x + 22 * u, 12.5 * u, x + 23 * u, 16 * u), fill=FAINT)
        pen.rectangle((0, (STATUS + HEADER - 0.5) * u, WIDTH * u, (STATUS + HEADER) * u), fill=RULE)

    def bottom(pen: ImageDraw.ImageDraw, u: int) -> None:
        line = round(1.5 * u)
        pen.rectangle((0, 0, WIDTH * u, 0.5 * u), fill=RULE)
        y = 28 * u
        for x in (26 * u, (WIDTH - 66) * u, (WIDTH - 26) * u):
            _disc(pen, x, y, 13 * u, None, INK, line)
        for arc in range(3):  # voice
            r = (2 + 3 * arc) * u
            x = 22 * u
            pen.arc((x - r, y - r, x + r, y + r), 310, 410, fill=INK, width=line)
        pen.rounded_rectangle((50 * u, 9 * u, (WIDTH - 90) * u, 47 * u), 5 * u, fill=FIELD)
        x = (WIDTH - 66) * u  # smiley
        for eye in (-4.3, 4.3):
            _disc(pen, x + eye * u, y - 3 * u, 1.5 * u, INK)
        pen.arc((x - 6.5 * u, y - 6 * u, x + 6.5 * u, y + 7 * u), 20, 160, fill=INK, width=line)
        x = (WIDTH - 26) * u  # plus
        pen.line((x - 7 * u, y, x + 7 * u, y), fill=INK, width=line)
        pen.line((x, y - 7 * u, x, y + 7 * u), fill=INK, width=line)
        home = (WIDTH / 2 - 62) * u, 66 * u, (WIDTH / 2 + 62) * u, 70.5 * u
        pen.rounded_rectangle(home, 2.2 * u, fill=INK)

    return _tile((WIDTH, STATUS + HEADER), BAR, top), _tile((WIDTH, FOOTER), BAR, bottom)


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
