"""How HTML is rendered from `memecmd_utils/html/`: every page, form and panel of the package."""

import base64
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import jinja2
from PIL import Image

from memecmd_utils.core.drawing import text

TEMPLATES = Path(__file__).resolve().parents[1] / "html"


def environment(**filters: Callable[..., Any]) -> jinja2.Environment:
    """Templates whose values come out escaped: texts of models, users and strangers go into them.

    A name that a template knows and the caller does not give is an error, not an empty hole in a page.
    """
    templates = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES, encoding="utf-8"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=True,
    )
    templates.filters.update({"initials": text.initials, **filters})
    return templates


def data_url(data: bytes) -> str:
    """The bytes of a PNG, JPEG, WebP or SVG as a data URL, by what they are."""
    starts = {b"\xff\xd8": "jpeg", b"RIFF": "webp", b"<": "svg+xml"}
    kind = next((kind for start, kind in starts.items() if data.startswith(start)), "png")
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"


def picture_url(picture: Image.Image, kind: Literal["PNG", "JPEG", "WEBP"], **options: int) -> str:
    """Data URL of a picture; `options` are those with which Pillow saves the kind."""
    buffer = io.BytesIO()
    picture.save(buffer, kind, **options)
    return data_url(buffer.getvalue())


def jpeg_url(picture: Image.Image, side: int, quality: int) -> str:
    """Data URL of a picture as JPEG, made smaller in place where a side is longer than `side` pixels."""
    picture.thumbnail((side, side), Image.Resampling.LANCZOS)
    return picture_url(picture, "JPEG", quality=quality)


def thumbnail(path: Path, side: int) -> str:
    """Data URL of a small WebP of a picture, on white where it is see-through."""
    with Image.open(path) as opened:
        picture = opened.convert("RGBA")
    picture.thumbnail((side, side), Image.Resampling.LANCZOS)
    flat = Image.new("RGB", picture.size, "white")
    flat.paste(picture, mask=picture.getchannel("A"))
    return picture_url(flat, "WEBP", quality=60, method=4)
