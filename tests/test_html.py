import base64
import io

import jinja2
import pytest
from PIL import Image

from memecmd_utils import files, pictures


def opened(url: str) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(url.split(",", 1)[1])))


def test_values_are_escaped_and_a_missing_one_is_an_error() -> None:
    page = files.templates(loud=str.upper).from_string("<p>{{ text | loud }}</p>\n")
    assert page.render(text="<b>x</b>") == "<p>&lt;B&gt;X&lt;/B&gt;</p>\n"
    with pytest.raises(jinja2.UndefinedError):
        files.templates().from_string("{{ text }}").render()


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
def test_a_data_url_says_what_its_bytes_are(kind: str) -> None:
    url = pictures.picture_url(Image.new("RGB", (8, 6), (200, 30, 40)), kind)
    assert url.startswith(f"data:image/{kind.lower()};base64,") and opened(url).format == kind
    assert files.data_url(b"<svg/>") == "data:image/svg+xml;base64,PHN2Zy8+"


def test_a_thumbnail_is_a_small_webp_of_the_picture_on_white(tmp_path) -> None:
    Image.new("RGB", (600, 300), (200, 30, 40)).save(tmp_path / "a.png")
    picture = opened(pictures.thumbnail(tmp_path / "a.png", 240)).convert("RGB")
    assert picture.size == (240, 120)
    assert all(abs(a - b) < 12 for a, b in zip(picture.getpixel((9, 9)), (200, 30, 40), strict=True))
    Image.new("RGBA", (30, 20), (0, 0, 0, 0)).save(tmp_path / "a.png")
    picture = opened(pictures.thumbnail(tmp_path / "a.png", 240)).convert("RGB")
    assert picture.size == (30, 20) and min(picture.getpixel((3, 3))) > 245
