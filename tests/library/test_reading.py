import io

import pytest
from PIL import Image, ImageDraw

from memecmd_utils import pictures
from memecmd_utils.drawing import pil_font
from memecmd_utils.library import duplicates, reading
from memecmd_utils.library.ocr import MAX_SIDE, OcrError, RapidOcr
from memecmd_utils.library.reading import Job, read_picture
from memecmd_utils.settings import Filters


class Never:
    ocr_id = "never"

    def read_text(self, image):
        raise AssertionError("its text is known, or it is out before")


def photo(width, text):
    """A picture with a caption, as a JPEG of this width."""
    image = Image.radial_gradient("L").resize((width, width * 3 // 4)).convert("RGB")
    pen = ImageDraw.Draw(image)
    pen.rectangle((0, 0, width, width // 8), fill="white")
    pen.text((width // 20, width // 60), text, font=pil_font(width // 12), fill="black")
    pen.ellipse((width // 8, width // 4, width // 2, width // 2), fill="tan")
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=90)
    return buffer.getvalue()


def test_a_known_text_is_not_read():
    image = Image.radial_gradient("L").convert("RGB")
    found = read_picture(Job(pictures.png_bytes(image), Filters(), "字"), Never())
    assert (found.exit, found.text, found.normal) == (None, "字", pictures.png_bytes(image))
    assert (found.width, found.height) == image.size


@pytest.mark.slow
def test_a_large_jpeg_has_the_text_and_nearly_the_hash_of_the_whole(monkeypatch):
    # Twice and four times what OCR can use, so decoded at a half and at a quarter.
    reader, sizes = RapidOcr(threads=1), []
    for width in (2 * MAX_SIDE, 4 * MAX_SIDE):
        job = Job(photo(width, "早上九点的我"), Filters(min_side=1200))
        reduced = read_picture(job, reader)
        with monkeypatch.context() as patch:
            patch.setattr(pictures, "decode_reduced", lambda data, longest: pictures._decode(data, None))
            whole = read_picture(job, reader)
        assert reduced.text == whole.text == "早上九点的我"
        assert (int(reduced.phash, 16) ^ int(whole.phash, 16)).bit_count() <= 2
        assert (reduced.width, reduced.height) == (whole.width, whole.height) == (640, 480)
        sizes.append(pictures.decode_reduced(job.data, MAX_SIDE)[0].width)
    assert sizes == [MAX_SIDE, MAX_SIDE]


@pytest.mark.parametrize("width", [320, 2 * MAX_SIDE - 1])
def test_a_smaller_one_is_read_whole_to_the_bit(width):
    data = photo(width, "")
    found = read_picture(Job(data, Filters(), ""), Never())
    plain = pictures.decode_bytes(data)
    plain.thumbnail((reading.LONGEST_SIDE,) * 2, Image.Resampling.LANCZOS)
    assert found.normal == pictures.png_bytes(plain)
    assert found.phash == f"{duplicates.phash(plain):016x}"


def test_a_picture_decoded_in_part_is_stored_in_the_size_of_the_whole():
    # At a half its sides are 2,605 and 2,623, which give 636 by 640.
    buffer = io.BytesIO()
    Image.radial_gradient("L").resize((5209, 5246)).save(buffer, "JPEG")
    found = read_picture(Job(buffer.getvalue(), Filters(), "字"), Never())
    assert (found.width, found.height) == (635, 640)


class Sizes:
    ocr_id = "sizes"

    def __init__(self, fault=None):
        self.seen, self.fault = [], fault

    def read_text(self, image):
        self.seen.append((image.size, image.getpixel((image.width - 1, image.height - 1))))
        if self.fault:
            raise self.fault
        return "字"


@pytest.mark.parametrize(
    ("size", "shown"),
    [((800, 40), (800, 40)), ((820, 40), (820, 41)), ((16, 30000), (100, 2000)), ((9000, 20), (2000, 100))],
)
def test_a_thin_picture_is_widened_for_ocr_only(size, shown):
    reader = Sizes()
    found = read_picture(Job(pictures.png_bytes(Image.new("RGB", size, "navy")), Filters()), reader)
    ((seen, corner),) = reader.seen
    assert seen == shown and corner == ((0, 0, 128) if size == shown else (255, 255, 255))
    assert (found.exit, max(found.width, found.height)) == (None, 640)


def test_an_engine_that_fails_at_one_picture_leaves_out_that_picture_and_says_so():
    data = pictures.png_bytes(Image.radial_gradient("L").convert("RGB"))
    found = read_picture(Job(data, Filters()), Sizes(RuntimeError("no\nshape")))
    assert found.exit.step == "undecodable" and found.exit.why == "the OCR engine failed: RuntimeError no"
    assert found.exit.reason == "the OCR engine failed"
    with pytest.raises(OcrError, match="no model"):
        read_picture(Job(data, Filters()), Sizes(OcrError("no model")))
