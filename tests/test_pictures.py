import io
import os
import struct
import tracemalloc
import warnings
import zlib

import numpy as np
import pytest
from PIL import Image, ImageFile, PngImagePlugin

from memecmd_utils import pictures
from memecmd_utils.pictures import ImageRejected, decode

RED, WHITE = (255, 0, 0), (255, 255, 255)


def picture(size=(40, 30), colour=RED):
    """A picture of one colour but for its first corner."""
    image = Image.new("RGB", size, colour)
    image.paste("black", (0, 0, 8, 8))
    return image


def noise(size=(64, 48), seed=1):
    values = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    return Image.fromarray(values)


def png_of_size(width, height):
    """A valid 1-bit PNG of any size, packed by hand."""

    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    packer = zlib.compressobj(9)
    row = bytes(1 + (width + 7) // 8)
    data = b"".join(packer.compress(row * 1000) for _ in range(height // 1000)) + packer.flush()
    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "WEBP", "BMP", "TIFF", "AVIF"])
def test_every_format_decodes_to_rgb_whatever_its_extension(tmp_path, kind):
    path = tmp_path / "wrong.png"
    picture().save(path, format=kind)
    image = decode(path)
    assert (image.mode, image.size) == ("RGB", (40, 30))
    assert np.allclose(image.getpixel((20, 15)), RED, atol=3)


def test_exif_orientation_is_applied(tmp_path):
    image = picture((40, 30))
    exif = Image.Exif()
    exif[0x0112] = 6  # turn by 90 degrees
    image.save(tmp_path / "a.jpg", exif=exif)
    assert decode(tmp_path / "a.jpg").size == (30, 40)


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_transparency_becomes_white(tmp_path, mode):
    image = Image.new("RGBA", (20, 20), (0, 0, 0, 0))
    image.paste((0, 0, 0, 255), (0, 0, 10, 20))
    image.convert(mode).save(tmp_path / "a.png")
    decoded = decode(tmp_path / "a.png")
    assert decoded.getpixel((5, 5)) == (0, 0, 0)
    assert decoded.getpixel((15, 5)) == WHITE


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
@pytest.mark.parametrize(("kind", "grey"), [("png", 255), ("webp", 230), ("gif", 255)])
def test_white_and_pale_letters_on_nothing_can_be_seen(tmp_path, mode, kind, grey):
    image = Image.new("RGBA", (60, 40), (255, 255, 255, 0))
    image.paste((grey, grey, grey, 255), (10, 10, 30, 20))
    if mode == "LA" and kind != "png":
        image = image.convert("LA").convert("RGBA")
    image = image if mode == "RGBA" or kind != "png" else image.convert(mode)
    image.save(tmp_path / f"a.{kind}", **({"lossless": True} if kind == "webp" else {}))
    decoded = decode(tmp_path / f"a.{kind}")
    assert decoded.getpixel((20, 15)) == (grey, grey, grey) and max(decoded.getpixel((50, 35))) < 100


@pytest.mark.parametrize(("kind", "first"), [("gif", "white"), ("webp", "white"), ("png", "black")])
def test_of_an_animation_the_first_frame_with_something_on_it_is_taken(tmp_path, kind, first):
    frames = [Image.new("RGB", (60, 40), first) for _ in range(6)]
    for number, grey in ((2, 30), (3, 200), (4, 255)):  # it fades in
        frames[number].paste((grey if first == "black" else 255 - grey,) * 3, (10, 10, 30, 20))
    path = tmp_path / f"a.{kind}"
    frames[0].save(path, save_all=True, append_images=frames[1:], duration=100, lossless=True)
    ends = decode(path).getextrema()[0]
    assert ends == ((0, 30) if first == "black" else (225, 255)), "the first in which the eye finds anything"
    frames[1].save(path, save_all=True, append_images=[frames[0]], duration=100)
    with pytest.raises(ImageRejected, match="one colour"):
        decode(path)


def test_notes_in_a_png_spoil_nothing(tmp_path):
    notes, path = PngImagePlugin.PngInfo(), tmp_path / "a.png"
    notes.add_text("XML:com.adobe.xmp", "x" * 3_000_000, zip=True)
    picture().save(path, pnginfo=notes, dpi=(72, 72))
    data = bytearray(path.read_bytes())
    data[data.find(b"pHYs") + 13] ^= 255  # its checksum no longer fits
    path.write_bytes(data)
    assert decode(path).getpixel((20, 15)) == RED
    data[data.find(b"IDAT") + 8] ^= 255
    path.write_bytes(data)
    with pytest.raises(ImageRejected):
        decode(path)


@pytest.mark.parametrize(
    ("image", "name", "colour"),
    [
        (Image.new("RGBA", (20, 20), (0, 0, 0, 128)), "a.png", (127, 127, 127)),  # mixed with white
        (Image.new("CMYK", (20, 20), (0, 255, 255, 0)), "a.jpg", RED),
        (Image.new("1", (20, 20), 1), "a.png", WHITE),
        (Image.new("RGB", (20, 20), RED).convert("P"), "a.gif", RED),
    ],
)
def test_every_mode_becomes_rgb(tmp_path, image, name, colour):
    mark = {"RGBA": (255, 0, 0, 255), "CMYK": (0, 0, 0, 255), "1": 0, "P": 0}[image.mode]
    image.paste(mark, (12, 12, 20, 20))
    image.save(tmp_path / name)
    assert np.allclose(decode(tmp_path / name).getpixel((5, 5)), colour, atol=4)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "WEBP", "BMP", "TIFF"])
@pytest.mark.parametrize("share", [0.03, 0.6])
def test_truncated_files_are_rejected(tmp_path, kind, share):
    path = tmp_path / "a.jpg"
    noise().save(path, format=kind)
    data = path.read_bytes()
    path.write_bytes(data[: max(8, round(len(data) * share))])
    with pytest.raises(ImageRejected, match=r"broken image data|not an image"):
        decode(path)
    assert not ImageFile.LOAD_TRUNCATED_IMAGES


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "WEBP", "BMP", "TIFF"])
@pytest.mark.filterwarnings("ignore")  # Pillow warns of broken TIFF tags and of large sizes
def test_damaged_bytes_never_raise_anything_else(kind):
    buffer = io.BytesIO()
    noise((24, 20)).save(buffer, format=kind)
    rng = np.random.default_rng(7)
    for _ in range(60):
        data = bytearray(buffer.getvalue())
        for place in rng.integers(0, min(len(data), 400), 4):
            data[place] = rng.integers(256)
        try:
            assert pictures.decode_bytes(bytes(data)).mode == "RGB"
        except ImageRejected as reason:
            assert str(reason)


def test_a_text_named_png_and_an_empty_file_are_rejected(tmp_path):
    path = tmp_path / "a.png"
    path.write_text("<html>404 not found</html>" * 20, encoding="utf-8")
    with pytest.raises(ImageRejected, match="not an image"):
        decode(path)
    path.write_bytes(b"")
    with pytest.raises(ImageRejected, match="empty file"):
        decode(path)
    with pytest.raises(ImageRejected, match="cannot be read: No such file"):
        decode(tmp_path / "gone.png")
    picture((15, 300)).save(path)
    with pytest.raises(ImageRejected, match="too small: 15 x 300"):
        decode(path)


def test_find_images_sorts_and_skips(tmp_path):
    for name in ("b/2.png", "a/1.JPG", "b/.hidden.png", "__MACOSX/b/2.png", ".git/x.png", "c.png"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True, parents=True)
        picture().save(path, format="PNG")
    (tmp_path / "index.csv").write_text("path,bytes\n", encoding="utf-8")
    (tmp_path / "BM.txt").write_text("BM is not always a bitmap", encoding="utf-8")
    picture().save(tmp_path / "a" / "no_extension", format="WEBP")
    (tmp_path / "a" / "text.png").write_text("text", encoding="utf-8")
    (tmp_path / "c.TGS").write_bytes(b"\x1f\x8b")
    with pytest.raises(ImageRejected, match="format not read: TGS"):
        decode(tmp_path / "c.TGS")
    names = [path.relative_to(tmp_path).as_posix() for path in pictures.look_through(tmp_path)]
    assert names == ["a/1.JPG", "a/no_extension", "a/text.png", "b/2.png", "c.TGS", "c.png"]


def test_a_named_pipe_does_not_block(tmp_path):
    os.mkfifo(tmp_path / "pipe.png")
    os.mkfifo(tmp_path / "pipe")
    assert [path.name for path in pictures.look_through(tmp_path)] == ["pipe.png"]
    with pytest.raises(ImageRejected, match="not a regular file"):
        decode(tmp_path / "pipe.png")


def test_names_in_gbk_become_readable(tmp_path):
    path = os.fsdecode(os.fsencode(tmp_path) + b"/" + "表情.png".encode("gbk"))
    try:
        picture().save(path)
    except OSError:
        pytest.skip("this file system takes UTF-8 names only")
    [found] = pictures.look_through(tmp_path)
    assert pictures.readable(found.relative_to(tmp_path)) == "表情.png"


@pytest.mark.parametrize("side", [40_000, 9_000])
def test_a_decompression_bomb_is_rejected_before_it_is_decoded(tmp_path, side):
    (tmp_path / "bomb.png").write_bytes(png_of_size(side, side))
    tracemalloc.start()
    with warnings.catch_warnings(), pytest.raises(ImageRejected, match="too many pixels"):
        warnings.simplefilter("error")
        decode(tmp_path / "bomb.png")
    assert tracemalloc.get_traced_memory()[1] < 5_000_000
    tracemalloc.stop()


def test_links_are_not_followed(tmp_path):
    for path in ("private.png", "library/b/1.png"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        picture().save(tmp_path / path)
    library = tmp_path / "library"
    (library / "up").symlink_to("..")
    (library / "picture.png").symlink_to("../private.png")
    (library / "b" / "loop").symlink_to(library)
    assert pictures.look_through(library) == [library / "b" / "1.png"]
    (library / "b" / "1.png").unlink()
    for folder, why in (
        (library, "no image .*links are not followed"),
        (tmp_path / "gone", "does not exist"),
    ):
        with pytest.raises(pictures.LibraryError, match=why):
            pictures.look_through(folder)
