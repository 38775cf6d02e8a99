"""A picture is what its bytes say, whatever the name; any other bytes are refused with a plain reason.

Folders are looked through without following links, waiting for pipes or passing over what may be a picture.
"""

import io
import os

import numpy as np
import pytest
from PIL import Image, PngImagePlugin

from memecmd_utils import pictures
from memecmd_utils.pictures import ImageRejected, decode

RED, WHITE, BLACK = (255, 0, 0), (255, 255, 255), (0, 0, 0)


def picture(size=(40, 30), colour=RED, mode="RGB"):
    """A picture of one colour but for its first corner, which is black."""
    image = Image.new(mode, size, colour)
    image.paste({"RGBA": (*BLACK, 255), "CMYK": (0, 0, 0, 255), "1": 0}.get(mode, BLACK), (0, 0, 8, 8))
    return image


@pytest.mark.parametrize(
    ("image", "kind", "colour"),
    [
        *((picture(), kind, RED) for kind in ("PNG", "JPEG", "GIF", "WEBP", "BMP", "TIFF", "AVIF")),
        (picture(colour=(*BLACK, 128), mode="RGBA"), "PNG", (127, 127, 127)),  # mixed with white
        (picture(colour=(0, 255, 255, 0), mode="CMYK"), "JPEG", RED),
        (picture(colour=1, mode="1"), "PNG", WHITE),
        (Image.fromarray(np.array([[0] * 20, [65535] * 20] * 10, np.uint16)).resize((20, 20)), "PNG", WHITE),
    ],
)
def test_every_format_and_mode_becomes_rgb_whatever_the_extension(tmp_path, image, kind, colour) -> None:
    image.save(tmp_path / "wrong.png", format=kind)
    decoded = decode(tmp_path / "wrong.png")
    assert (decoded.mode, decoded.size) == ("RGB", image.size)
    assert np.allclose(decoded.getpixel((17, 19)), colour, atol=4)


@pytest.mark.parametrize(
    ("kind", "mode", "grey"), [("png", "LA", 0), ("webp", "RGBA", 230), ("gif", "RGBA", 255)]
)
def test_letters_on_nothing_can_be_seen(tmp_path, kind, mode, grey) -> None:
    image = Image.new("RGBA", (60, 40), (grey, grey, grey, 0))
    image.paste((grey, grey, grey, 255), (10, 10, 30, 20))
    image.convert(mode).save(tmp_path / f"a.{kind}", lossless=True)
    decoded = decode(tmp_path / f"a.{kind}")
    letter, ground = decoded.getpixel((20, 15))[0], decoded.getpixel((50, 35))[0]
    assert letter == grey and (ground == 255 if grey == 0 else ground < 100)


@pytest.mark.parametrize(("kind", "ground"), [("gif", 255), ("webp", 255), ("png", 0)])
def test_of_an_animation_the_first_frame_of_more_than_one_colour_is_taken(tmp_path, kind, ground) -> None:
    frames = [Image.new("L", (60, 40), ground).convert("RGB") for _ in range(5)]
    for number, change in ((1, 10), (2, 90), (3, 200)):  # it fades in
        frames[number].paste((abs(ground - change),) * 3, (10, 10, 30, 20))
    file = tmp_path / f"a.{kind}"
    frames[0].save(file, save_all=True, append_images=frames[1:], duration=100, lossless=True)
    low, high = decode(file).getextrema()[0]
    assert abs(high - low - 90) <= 2, "the eye finds nothing on the frame before"


def test_a_photo_is_turned_as_its_camera_says_and_notes_in_a_png_spoil_nothing(tmp_path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # turn by 90 degrees
    picture((40, 30)).save(tmp_path / "a.jpg", exif=exif)
    assert decode(tmp_path / "a.jpg").size == (30, 40)
    notes, path = PngImagePlugin.PngInfo(), tmp_path / "a.png"
    notes.add_text("XML:com.adobe.xmp", "x" * 3_000_000, zip=True)
    picture().save(path, pnginfo=notes, dpi=(72, 72))
    data = bytearray(path.read_bytes())
    data[data.find(b"pHYs") + 13] ^= 255  # its checksum no longer fits
    path.write_bytes(data)
    assert decode(path).getpixel((20, 15)) == RED


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "TIFF"])
@pytest.mark.filterwarnings("ignore")  # Pillow warns of broken TIFF tags and of large sizes
def test_cut_and_damaged_bytes_are_refused_and_never_raise_anything_else(kind) -> None:
    rng, buffer = np.random.default_rng(7), io.BytesIO()
    Image.fromarray(rng.integers(0, 256, (40, 48, 3), dtype=np.uint8)).save(buffer, format=kind)
    whole = buffer.getvalue()
    with pytest.raises(ImageRejected, match=r"broken image data|not an image"):
        pictures.decode_bytes(whole[: round(len(whole) * 0.6)])
    for _ in range(40):
        data = np.frombuffer(whole, np.uint8).copy()
        data[rng.integers(0, min(len(data), 400), 4)] = rng.integers(0, 256, 4)
        try:
            assert pictures.decode_bytes(data.tobytes()).mode == "RGB"
        except ImageRejected as reason:
            assert str(reason).startswith(reason.kind) and "\n" not in str(reason)


@pytest.mark.parametrize(
    ("image", "why"),
    [
        (picture((15, 300)), "too small: 15 x 300"),
        (Image.new("1", (9_000, 9_000)), "too many pixels: 9,000 x 9,000"),
        (Image.new("RGB", (40, 40), (9, 9, 20)), "only one colour: the picture is empty"),
    ],
)
def test_what_is_no_picture_is_refused_with_a_plain_reason(tmp_path, image, why) -> None:
    image.save(tmp_path / "a.png")
    with pytest.raises(ImageRejected, match=why) as refused:
        decode(tmp_path / "a.png")
    assert refused.value.kind == why.partition(":")[0]


# --- folders


def test_a_folder_is_looked_through_in_order_without_links_pipes_or_hidden_files(tmp_path) -> None:
    folder = tmp_path / "library"
    for name in ("b/2.png", "a/1.JPG", "b/.hidden.png", ".git/x.png", "c.png", "a/no_end", "../own.png"):
        (folder / name).parent.mkdir(exist_ok=True, parents=True)
        picture().save(folder / name, format="PNG")
    for name in ("index.csv", "a/note.TXT", "c.TGS"):
        (folder / name).write_text("BM, text", encoding="utf-8")
    os.mkfifo(folder / "pipe")
    (folder / "up").symlink_to("..")
    (folder / "picture.png").symlink_to("../own.png")
    names = [path.relative_to(folder).as_posix() for path in pictures.look_through(folder)]
    assert names == ["a/1.JPG", "a/no_end", "b/2.png", "c.TGS", "c.png", "pipe"]
    with pytest.raises(ImageRejected, match="not a regular file"):
        decode(folder / "pipe")
    (folder / "none").mkdir()
    (folder / "none" / "link.png").symlink_to(folder / "c.png")
    for name, why in (("gone", "not exist"), ("none", r"no image .*links are not followed")):
        with pytest.raises(pictures.LibraryError, match=why):
            pictures.look_through(folder / name)


def test_names_in_gbk_become_readable(tmp_path) -> None:
    path = os.fsdecode(os.fsencode(tmp_path) + b"/" + "表情.png".encode("gbk"))
    try:
        picture().save(path)
    except OSError:
        pytest.skip("this file system takes UTF-8 names only")
    [candidate] = pictures.look_through(tmp_path)
    assert pictures.readable(candidate.relative_to(tmp_path)) == "表情.png"
