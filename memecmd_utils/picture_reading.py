"""What is done with the bytes of one image of a library, in this process or in one of several."""

import math
from dataclasses import dataclass
from typing import NamedTuple

from PIL import Image

from memecmd_utils import example_memes, images, library_funnel, near_duplicates
from memecmd_utils.images import ImageRejected
from memecmd_utils.library_funnel import Exit
from memecmd_utils.ocr import MAX_SIDE, Ocr, OcrError
from memecmd_utils.settings import Filters

LONGEST_SIDE = 640  # pixels of the normalised copies
THINNEST = 20
"""Sides of a picture as OCR gets it, at most so many to 1. The engine makes the shorter side 480 pixels: at
50 to 1 that takes minutes and 2 GB, and from 126 to 1 it fails."""


@dataclass(frozen=True)
class Job:
    """One image to look at."""

    data: bytes
    """The file's bytes."""
    filters: Filters
    text: str | None = None
    """Visible text where it is known already; None: read it."""
    drawn: bool = False
    """An example meme, drawn by this package: in normal form where it is not too large."""


class Reading(NamedTuple):
    """What was found in an image; of one that is left out only `exit` and what led to it."""

    exit: Exit | None
    text: str | None = None
    """Visible text; None where a picture was left out before its text was read."""
    normal: bytes = b""
    """The normalised copy as PNG."""
    width: int = 0
    height: int = 0
    phash: str = ""
    """64-bit perceptual hash of the normalised copy, 16 hex digits."""
    pixels: int = 0
    """Width times height of the picture as the file holds it, before anything is scaled."""

    @property
    def undecodable(self) -> bool:
        """Whether the bytes are no picture."""
        return self.exit is not None and self.exit.step == library_funnel.UNDECODABLE


def read_picture(job: Job, ocr: Ocr) -> Reading:
    """Decode an image, read its text and make its normalised copy; or say why it is left out.

    A JPEG of twice the side that OCR can use, or more, is decoded at a half, a quarter or an eighth of it.
    """
    try:
        picture, sides = images.decode_reduced(job.data, MAX_SIDE)
    except ImageRejected as reason:
        return Reading(library_funnel.undecodable(str(reason)))
    if out := library_funnel.by_size(job.filters, *sides):
        return Reading(out)
    text = job.text
    if text is None:
        try:
            text = ocr.read_text(_not_too_thin(picture))
        except OcrError:
            raise
        except Exception as error:  # one odd picture must not end the reading of thousands
            why = f"the OCR engine failed: {type(error).__name__} {error}".splitlines()[0].strip()
            return Reading(library_funnel.undecodable(why))
    if out := library_funnel.by_text(job.filters, text):
        return Reading(out, text)
    # Read first, shrink then: small print in tall comic strips is lost at 640 pixels.
    size = picture.size
    if max(size) < sides[1]:  # decoded in part: rounded sides may give another shape by a pixel
        whole = sides if size[0] < size[1] else sides[::-1]
        picture = picture.resize(_stored_size(*whole), Image.Resampling.LANCZOS, reducing_gap=2.0)
    else:
        picture.thumbnail((LONGEST_SIDE, LONGEST_SIDE), Image.Resampling.LANCZOS)
    # A drawn picture is in normal form; encoding it again would give the same bytes.
    normal = job.data if job.drawn and picture.size == size else example_memes.png_bytes(picture)
    return Reading(
        None, text, normal, *picture.size, f"{near_duplicates.phash(picture):016x}", sides[0] * sides[1]
    )


def _stored_size(width: int, height: int) -> tuple[int, int]:
    """Size in pixels that `Image.thumbnail` would give a larger picture, which is not there to ask."""
    shape = width / height
    exact = LONGEST_SIDE * min(shape, 1 / shape)
    sides = max(1, math.floor(exact)), max(1, math.ceil(exact))
    # Like Pillow: the whole number whose shape is nearer, for a wide picture not always the rounded one.
    if width < height:
        return min(sides, key=lambda side: abs(shape - side / LONGEST_SIDE)), LONGEST_SIDE
    return LONGEST_SIDE, min(sides, key=lambda side: abs(shape - LONGEST_SIDE / side))


def _not_too_thin(picture: Image.Image) -> Image.Image:
    """The picture itself, or a thin one at the size OCR can use with white beside it."""
    if max(picture.size) <= THINNEST * min(picture.size):
        return picture
    small = picture.copy()
    small.thumbnail((MAX_SIDE, MAX_SIDE), Image.Resampling.LANCZOS)
    least = -(-max(small.size) // THINNEST)
    wide = Image.new("RGB", (max(small.width, least), max(small.height, least)), "white")
    wide.paste(small)
    return wide
