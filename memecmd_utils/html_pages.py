"""How HTML is rendered from `templates/`: every page, form and panel of the package."""

import base64
import io
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2

from memecmd_utils import linebreak

if TYPE_CHECKING:
    from PIL import Image

TEMPLATES = Path(__file__).resolve().parent / "templates"


def environment(**filters: Callable[..., Any]) -> jinja2.Environment:
    """Templates whose values come out escaped: texts of models, users and strangers go into them.

    A name that a template knows and the caller does not give is an error, not an empty hole in a page.
    """
    found = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES, encoding="utf-8"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=True,
    )
    found.filters.update({"initials": linebreak.initials, **filters})
    return found


def jpeg_url(picture: "Image.Image", side: int, quality: int) -> str:
    """Data URL of a picture as JPEG, made smaller in place where a side is longer than `side` pixels."""
    from PIL import Image

    picture.thumbnail((side, side), Image.Resampling.LANCZOS)
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=quality)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode()
