"""Chat screenshots that look like a phone's, drawn with Pillow for judges, notebooks and Figure 5."""

import hashlib
import io
import json
import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

from PIL import Image, ImageDraw
from pydantic import BaseModel, ConfigDict, Field, model_validator

from memecmd_utils import chat_text, chat_tiles, linebreak, schemas
from memecmd_utils.chat_tiles import AVATAR, FOOTER, HEADER, STATUS, Theme

RENDERER_VERSION = 2
"""Part of every specification's hash: raise it when the same specification would look different."""

BODY, LINE, PAD_X, PAD_Y, RADIUS = 16, 22, 12, 9, 6
MARGIN, GAP, BETWEEN, STAMP = 12, 11, 14, 30
MEME, MIN_HEIGHT = 150, 480
TITLE, TITLE_MARGIN = 17, 85
PHASE_STARTS = (1, 7, 13)
"""Turns that open a part of the dialogue (paper, Eq. 11-14): a time stamp stands above them."""


class Bubble(BaseModel):
    """One message: a text or a meme. `stamp` is the time written above it, if any."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    side: Literal["left", "right"]
    name: str
    text: str = ""
    meme_id: str = ""
    stamp: str = ""

    @model_validator(mode="after")
    def _one_of_two(self) -> "Bubble":
        if bool(self.text) == bool(self.meme_id):
            raise ValueError("a bubble has either text or meme_id")
        return self


class ChatSpec(BaseModel):
    """All that decides how a screenshot looks. Memes stand in it by id; files are given to `draw`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    title: str
    bubbles: tuple[Bubble, ...]
    theme: Theme = "light"
    scale: Literal[1, 2] = 1
    width: int = Field(390, ge=280, le=800)
    clock: str = ""


def spec_sha256(spec: ChatSpec) -> str:
    """Hash of a specification and the renderer's version; enters the key of a recording."""
    value: dict[str, object] = {"renderer": RENDERER_VERSION, "spec": spec.model_dump(mode="json")}
    # Only where the signs are not the first letters: all other pictures look as they always did.
    if odd := {name: sign for name, sign in _signs(spec).items() if linebreak.initials([name])[name] != sign}:
        value["signs"] = odd
    text = json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _signs(spec: ChatSpec) -> dict[str, str]:
    """What stands on each person's avatar."""
    return linebreak.initials(bubble.name for bubble in spec.bubbles)


def chat_from_dialogue(
    dialogue: schemas.Dialogue,
    placements: Sequence[schemas.Placement],
    n_turns: int | None = None,
    meme_position: Literal["before", "after"] = "before",
    *,
    theme: Theme = "light",
    scale: Literal[1, 2] = 1,
) -> ChatSpec:
    """Build the screenshot of a dialogue's first `n_turns` turns with one strategy's memes.

    A owns the phone and stands right; the meme of turn t is a bubble of its speaker beside u_t.
    Placements of other dialogues and of later turns are left out.
    """
    mine = [p for p in placements if p.dialogue_id == dialogue.dialogue_id]
    memes = {p.turn: p for p in mine}
    if len(memes) < len(mine):
        raise ValueError(f"{dialogue.dialogue_id}: two memes at one turn; pass one strategy's placements")
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
            meme = memes[turn.turn]
            if meme.speaker != turn.speaker:
                raise ValueError(f"{dialogue.dialogue_id} turn {turn.turn}: the meme is {meme.speaker}'s")
            bubble = Bubble(side=side, name=names[turn.speaker], meme_id=meme.meme_id)
            parts.insert(0 if meme_position == "before" else 1, bubble)
        parts[0] = parts[0].model_copy(update={"stamp": stamp})
        bubbles += parts
    clock = f"{(minute + 5) // 60 % 24}:{(minute + 5) % 60:02d}"
    return ChatSpec(title=names["B"], bubbles=tuple(bubbles), theme=theme, scale=scale, clock=clock)


class Box(NamedTuple):
    """Where a bubble stands, in device pixels; `lines` are its text broken into lines."""

    bubble: Bubble
    top: int
    x: int
    y: int
    width: int
    height: int
    lines: tuple[str, ...]
    picture: Image.Image | None


def arrange(spec: ChatSpec, meme_files: Mapping[str, Path]) -> tuple[list[Box], int]:
    """Place every bubble; return the boxes and the height of the whole picture, in device pixels.

    All sizes are reckoned in logical pixels and multiplied at the end, so 2x is the layout of 1x, doubled.
    """
    k, page = spec.scale, chat_tiles.THEMES[spec.theme].page
    room = spec.width - 2 * (MARGIN + AVATAR + GAP + PAD_X)
    measure = partial(chat_text.measure, BODY)
    boxes: list[Box] = []
    y = STATUS + HEADER + BETWEEN
    for bubble in spec.bubbles:
        top = y
        y += STAMP if bubble.stamp else 0
        lines: tuple[str, ...] = ()
        picture = None
        if bubble.meme_id:
            picture = chat_tiles.thumbnail(bubble.meme_id, meme_files, MEME, k, page)
            width, height = picture.width // k, picture.height // k
        else:
            lines = tuple(linebreak.wrap(bubble.text, room, measure))
            width = max(math.ceil(max(map(measure, lines))), BODY) + 2 * PAD_X
            height = len(lines) * LINE + 2 * PAD_Y
        x = MARGIN + AVATAR + GAP
        if bubble.side == "right":
            x = spec.width - x - width
        boxes.append(Box(bubble, top * k, x * k, y * k, width * k, height * k, lines, picture))
        y += max(height, AVATAR) + BETWEEN
    return boxes, max(y + FOOTER, MIN_HEIGHT) * k


def draw(spec: ChatSpec, meme_files: Mapping[str, Path]) -> Image.Image:
    """Draw a screenshot; `meme_files` gives the picture of every meme id in the specification."""
    k, colours = spec.scale, chat_tiles.THEMES[spec.theme]
    boxes, height = arrange(spec, meme_files)
    width = spec.width * k
    image = Image.new("RGB", (width, height), colours.page)
    header, footer = chat_tiles.chrome(spec.theme, k, spec.width)
    image.paste(header, (0, 0))
    image.paste(footer, (0, height - footer.height))
    title = chat_text.fit(spec.title, spec.width - 2 * TITLE_MARGIN, TITLE)
    middle = (width - chat_text.length(title, TITLE * k)) // 2, (STATUS + HEADER // 2 + 6) * k
    chat_text.write(image, middle, title, TITLE * k, colours.ink, bold=True)
    chat_text.write(image, (22 * k, 20 * k), spec.clock, 14 * k, colours.ink, bold=True)
    pen, signs = ImageDraw.Draw(image), _signs(spec)
    for box in boxes:
        _paint(image, pen, box, spec, signs[box.bubble.name])
    return image


def _paint(image: Image.Image, pen: ImageDraw.ImageDraw, box: Box, spec: ChatSpec, sign: str) -> None:
    k, colours, bubble = spec.scale, chat_tiles.THEMES[spec.theme], box.bubble
    page, width = colours.page, image.width
    if bubble.stamp:
        left = (width - chat_text.length(bubble.stamp, 12 * k)) // 2
        chat_text.write(image, (left, box.top + 16 * k), bubble.stamp, 12 * k, colours.faint)
    right = bubble.side == "right"
    avatar_x = width - (MARGIN + AVATAR) * k if right else MARGIN * k
    image.paste(chat_tiles.avatar(bubble.name, right, k, page, sign), (avatar_x, box.y))
    if box.picture:
        image.paste(box.picture, (box.x, box.y))
        return
    fill, ink = (colours.right, colours.right_ink) if right else (colours.left, colours.left_ink)
    edges = (box.x, box.y, box.x + box.width, box.y + box.height)
    chat_tiles.rounded(image, pen, edges, RADIUS * k, fill, page)
    tail = chat_tiles.tail(right, k, fill, page)
    image.paste(tail, (edges[2] if right else box.x - tail.width, box.y + 14 * k))
    # Baseline that centres a Chinese character (em box, ascent 0.88) in its line.
    first = round(box.y + (PAD_Y + (LINE - BODY) / 2 + 0.88 * BODY) * k)
    for number, line in enumerate(box.lines):
        where = (box.x + PAD_X * k, first + number * LINE * k)
        chat_text.write(image, where, line, BODY * k, ink)


def encode(image: Image.Image, kind: Literal["png", "jpeg"] = "png") -> bytes:
    """Encode a screenshot; JPEG without chroma subsampling, which would smear coloured text."""
    buffer = io.BytesIO()
    if kind == "jpeg":
        image.save(buffer, "JPEG", quality=88, subsampling=0)
    else:
        image.save(buffer, "PNG", compress_level=6)
    return buffer.getvalue()
