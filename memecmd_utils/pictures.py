"""Find image files in any folder, decode them by their bytes and not their names, put them on pages."""

import io
import os
import stat
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Literal

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError, features

from memecmd_utils.files import MemecmdError, data_url

FORMATS = ("PNG", "JPEG", "GIF", "WEBP", "BMP", "TIFF", "ICO", *(["AVIF"] if features.check("avif") else []))
TEXTS = frozenset({".txt", ".md", ".json", ".jsonl", ".csv", ".html", ".py", ".yaml", ".yml"})
"""Endings of what lies beside pictures; any other file is counted, as a meme or with its reason."""
MAX_PIXELS = 64_000_000  # 256 MB as RGBA; the largest real meme met so far has 4 million
MAX_BYTES = 128_000_000
MIN_SIDE = 16
SKIPPED_FOLDERS = frozenset({"__MACOSX", "@eaDir"})  # left behind by macOS archives and NAS indexers


class ImageRejected(ValueError):
    """A file that cannot become a meme; the message, `kind: detail`, is a plain reason for `rejected.csv`."""

    def __init__(self, kind: str, detail: str = "") -> None:
        super().__init__(": ".join(filter(None, (kind, *detail.splitlines()[:1]))))
        self.kind = kind


class LibraryError(MemecmdError, ValueError):
    """A source, curation file or library that cannot be used; the message says what to do."""


# --- decoding


def decode(path: Path) -> Image.Image:
    """Decode an image file to RGB (see `decode_bytes`); unreadable files raise `ImageRejected`."""
    return decode_bytes(read_bytes(path))


def read_bytes(path: Path) -> bytes:
    """Bytes of a regular file of at most `MAX_BYTES`; anything else raises `ImageRejected`."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise ImageRejected("not a regular file")
        if status.st_size > MAX_BYTES:
            raise ImageRejected("file too large", f"{status.st_size:,} bytes (limit {MAX_BYTES:,})")
        return path.read_bytes()
    except OSError as error:
        raise ImageRejected("cannot be read", error.strerror or str(error)) from error


def decode_bytes(data: bytes) -> Image.Image:
    """Decode to RGB: EXIF rotation applied, alpha on a ground that shows it, 16 bits scaled to 8.

    Of an animation the first frame with something on it. Raises `ImageRejected` for empty, broken, truncated,
    huge or tiny images, for pictures of one colour and for other formats. The size in the header is checked
    before any pixel is decoded. Colour profiles are ignored.
    """
    if not data:
        raise ImageRejected("empty file")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # "Corrupt EXIF data": real memes have such
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # `_check_size` is stricter
            with Image.open(io.BytesIO(_without_notes(data)), formats=FORMATS) as image:
                _check_size(*image.size)
                return _first_with_something(image)
    except ImageRejected:
        raise
    except UnidentifiedImageError as error:
        raise ImageRejected("not an image", f"none of {', '.join(FORMATS)}") from error
    except Exception as error:  # decoders meet hostile bytes and raise almost anything
        raise ImageRejected("broken image data", str(error)) from error


def _first_with_something(image: Image.Image) -> Image.Image:
    """The first frame, of a hundred, in which the eye finds more than one colour."""
    for number in range(min(getattr(image, "n_frames", 1), 100)):
        image.seek(number)
        image.load()
        _check_size(*image.size)  # a GIF frame may enlarge the canvas
        turned = image
        with suppress(Exception):  # broken EXIF does not spoil the picture
            turned = ImageOps.exif_transpose(image)
        frame = _to_rgb(turned)
        # From a difference of 24 of 255 on the eye tells a colour from its ground.
        if any(high - low > 24 for low, high in frame.getextrema()):
            return frame
    raise ImageRejected("only one colour", "the picture is empty")


def _without_notes(data: bytes) -> bytes:
    """A PNG without the chunks that hold no picture, which may be too long or have a bad checksum."""
    if not data.startswith(b"\x89PNG\r\n\x1a\n"):
        return data
    shown = (b"tRNS", b"eXIf", b"acTL", b"fcTL", b"fdAT")  # beside the critical chunks, in capitals
    kept, at = [data[:8]], 8
    while at + 8 <= len(data):
        end = at + 12 + int.from_bytes(data[at : at + 4])
        if data[at + 4 : at + 5].isupper() or data[at + 4 : at + 8] in shown:
            kept.append(data[at:end])
        at = end
    return b"".join(kept)


def _check_size(width: int, height: int) -> None:
    if width * height > MAX_PIXELS:
        raise ImageRejected("too many pixels", f"{width:,} x {height:,} (limit {MAX_PIXELS:,})")
    if min(width, height) < MIN_SIDE:
        raise ImageRejected("too small", f"{width} x {height} (least side {MIN_SIDE})")


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I"):
        # `Image.convert` would clip all above 255 of a picture of 16 bits to white.
        grey = np.round(np.asarray(image, dtype=np.float64) * (255 / 65535))
        return Image.fromarray(grey.clip(0, 255).astype(np.uint8)).convert("RGB")
    if image.has_transparency_data:
        pixels = np.asarray(image.convert("RGBA"))
        opaque = pixels[pixels[..., 3] > 127]
        # White or pale letters on nothing: a ground of white would hide them.
        is_white = len(opaque) and (opaque[:, :3].min(axis=1) < 195).mean() < 0.05
        return on_ground(image, "#303030" if is_white and len(opaque) < pixels[..., 3].size else "white")
    # A copy, because the caller closes the file behind an image that needs no conversion.
    return image.convert("RGB") if image.mode != "RGB" else image.copy()


def on_ground(image: Image.Image, ground: str = "white") -> Image.Image:
    """RGB, on a ground of this colour where the picture is see-through."""
    if not image.has_transparency_data:
        return image.convert("RGB")
    rgba = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", rgba.size, ground), rgba).convert("RGB")


# --- folders


def readable(path: Path) -> str:
    """POSIX text of a path that is always valid Unicode.

    Archives packed on Chinese Windows leave GBK bytes as file names; they are read as such.
    """
    raw = os.fsencode(path.as_posix())
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw.decode("gb18030", "replace")


def look_through(folder: Path) -> list[Path]:
    """All files below `folder` but hidden ones and `TEXTS`, sorted by relative path; not decoded yet.

    Links are not followed: what they lead to may be anywhere. `LibraryError` for a folder that is missing,
    cannot be read or holds no such file.
    """
    if not folder.is_dir():
        raise LibraryError(f"meme source {folder} does not exist: correct `sources` (or use `example`)")

    def refuse(error: OSError) -> None:
        raise LibraryError(f"folder {error.filename} cannot be read: {error.strerror}") from error

    candidates = []
    for place, folders, names in os.walk(folder, onerror=refuse):
        folders[:] = [name for name in folders if not name.startswith(".") and name not in SKIPPED_FOLDERS]
        paths = (Path(place, name) for name in names if not name.startswith("."))
        candidates += [path for path in paths if not path.is_symlink() and path.suffix.lower() not in TEXTS]
    if not candidates:
        raise LibraryError(
            f"meme source {folder} holds no image ({', '.join(FORMATS)}; links are not followed)"
        )
    return sorted(candidates, key=lambda path: (readable(path.relative_to(folder)), os.fsencode(path)))


# --- pictures on pages


def encoded(picture: Image.Image, kind: Literal["PNG", "JPEG", "WEBP"], **options: int) -> bytes:
    """The file of a picture as bytes; `options` are those with which Pillow saves the kind."""
    buffer = io.BytesIO()
    picture.save(buffer, kind, **options)
    return buffer.getvalue()


def thumbnail(path: Path, side: int, quality: int = 60) -> str:
    """Data URL of a small WebP of a picture, on white where it is see-through; `quality` as Pillow has it."""
    with Image.open(path) as opened:
        picture = on_ground(opened)
    picture.thumbnail((side, side), Image.Resampling.LANCZOS)
    return data_url(encoded(picture, "WEBP", quality=quality, method=6))
