"""Pictures of template memes for a model that sees: found by the meme's id, read when they are sent."""

from collections.abc import Callable
from functools import partial
from io import BytesIO
from pathlib import Path

from memecmd_utils import storage, template_images
from memecmd_utils.llm import Image
from memecmd_utils.llm_wire import image_url
from memecmd_utils.template_schemas import TemplateMeme

Picture = Callable[[TemplateMeme], Image | None]
"""Gives a meme's picture, or None where there is none."""


def pictures_in(folder: Path | None) -> Picture:
    """Find pictures by the meme's id: any below `folder` with this base name; of a gif the first frame.

    A meme without a file, or any where `folder` is None, is annotated from its texts. A picture is known to
    the recordings by the hash of its file, and read again only when it is sent.
    """
    there = {} if folder is None else template_images.pictures_below(folder)

    def find(meme: TemplateMeme) -> Image | None:
        path = there.get(meme.meme_id)
        if path is None:
            return None
        return Image(image_id=storage.sha256(path), load=partial(_data_url, path))

    return find


def _data_url(path: Path) -> str:
    data = path.read_bytes()
    if not data.startswith((b"\xff\xd8", b"\x89PNG")):
        from PIL import Image as Pillow

        with Pillow.open(path) as picture:
            out = BytesIO()
            picture.convert("RGB").save(out, "PNG")
        data = out.getvalue()
    return image_url(data)
