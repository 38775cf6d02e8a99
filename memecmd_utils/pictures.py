"""Find image files in any folder and decode them safely: the bytes decide, not the file's name."""

import io
import os
import stat
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from memecmd_utils.files import MemecmdError, data_url

FORMATS = ("PNG", "JPEG", "GIF", "WEBP", "BMP", "TIFF")
EXTENSIONS = frozenset({".png", ".jpg", ".jpeg", ".jpe", ".jfif", ".gif", ".webp", ".bmp", ".tif", ".tiff"})
MAX_PIXELS = 64_000_000  # 256 MB as RGBA; the largest real meme met so far has 4 million
MAX_BYTES = 128_000_000
MIN_SIDE = 16
SKIPPED_FOLDERS = frozenset({"__MACOSX", "@eaDir"})  # left behind by macOS archives and NAS indexers


class ImageRejected(ValueError):
    """A file that cannot become a meme; the message is a plain reason for `rejected.csv`."""


class LibraryError(MemecmdError, ValueError):
    """A source, curation file or library that cannot be used; the message says what to do."""


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
            raise ImageRejected(f"file too large: {status.st_size:,} bytes (limit {MAX_BYTES:,})")
        return path.read_bytes()
    except OSError as error:
        raise ImageRejected(f"cannot be read: {error.strerror or error}") from error


def decode_bytes(data: bytes) -> Image.Image:
    """Decode to RGB: first frame, EXIF rotation applied, alpha on white, 16 bits scaled to 8.

    Raises `ImageRejected` for empty, broken, truncated, huge or tiny images and for other formats.
    The size in the header is checked before any pixel is decoded. Colour profiles are ignored.
    """
    return _decode(data, None)[0]


def decode_reduced(data: bytes, longest: int) -> tuple[Image.Image, tuple[int, int]]:
    """Decode as `decode_bytes` does, a large JPEG at a half, a quarter or an eighth of its size.

    Its longest side stays at least `longest` pixels; any other picture is decoded whole, to the same pixels
    as by `decode_bytes`. Returns the picture, and shorter and longer side of the whole one in pixels.
    """
    return _decode(data, longest)


def _decode(data: bytes, longest: int | None) -> tuple[Image.Image, tuple[int, int]]:
    if not data:
        raise ImageRejected("empty file")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # "Corrupt EXIF data": real memes have such
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # `_check_size` is stricter
            with Image.open(io.BytesIO(data), formats=FORMATS) as image:
                _check_size(*image.size)
                full_size = image.size
                if longest is not None and max(full_size) >= 2 * longest:
                    # The JPEG decoder leaves out frequencies, which is fast; other formats ignore it.
                    image.draft(None, tuple(max(1, side * longest // max(full_size)) for side in full_size))
                drafted = image.size
                image.load()
                if image.size != drafted:  # a GIF frame may enlarge the canvas
                    _check_size(*image.size)
                    full_size = image.size
                picture = _to_rgb(_turned(image))
    except ImageRejected:
        raise
    except Image.DecompressionBombError as error:
        raise ImageRejected(f"too many pixels (limit {MAX_PIXELS:,}): {error}") from error
    except MemoryError as error:
        raise ImageRejected("too little memory to decode it") from error
    except UnidentifiedImageError as error:
        if looks_like_image(data[:16]):
            raise ImageRejected("broken image data: the header cannot be read") from error
        raise ImageRejected(f"not an image ({', '.join(FORMATS)} are read)") from error
    except Exception as error:  # decoders meet hostile bytes and raise almost anything
        raise ImageRejected(f"broken image data: {error}".splitlines()[0]) from error
    short, long = sorted(full_size)
    return picture, (short, long)


def png_bytes(image: Image.Image) -> bytes:
    """PNG without metadata: the same picture gives the same bytes."""
    buffer = io.BytesIO()
    image.save(buffer, format="PNG", compress_level=6)
    return buffer.getvalue()


def looks_like_image(head: bytes) -> bool:
    """Whether the first 12 or more bytes of a file carry the signature of a known format."""
    if head.startswith((b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF87a", b"GIF89a")):
        return True
    if head.startswith((b"II*\x00", b"MM\x00*")):
        return True
    if head.startswith(b"RIFF"):
        return head[8:12] == b"WEBP"
    # "BM" alone would also match a text that starts so; the two reserved words must be zero.
    return head.startswith(b"BM") and head[6:10] == b"\0\0\0\0"


def _check_size(width: int, height: int) -> None:
    if width * height > MAX_PIXELS:
        raise ImageRejected(f"too many pixels: {width:,} x {height:,} (limit {MAX_PIXELS:,})")
    if min(width, height) < MIN_SIDE:
        raise ImageRejected(f"too small: {width} x {height} (least side {MIN_SIDE})")


def _turned(image: Image.Image) -> Image.Image:
    try:
        return ImageOps.exif_transpose(image)
    except Exception:  # broken EXIF does not spoil the picture
        return image


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I") or image.mode == "F":
        return _eight_bits(np.asarray(image, dtype=np.float64)).convert("RGB")
    if image.has_transparency_data:
        rgba = image.convert("RGBA")
        white = Image.new("RGBA", rgba.size, (255, 255, 255, 255))
        return Image.alpha_composite(white, rgba).convert("RGB")
    # A copy, because the caller closes the file behind an image that needs no conversion.
    return image.convert("RGB") if image.mode != "RGB" else image.copy()


def _eight_bits(values: np.ndarray) -> Image.Image:
    """Scale grey values to 0-255; `Image.convert` would clip everything above 255 to white."""
    if not np.isfinite(values).all():
        raise ImageRejected("broken image data: values that are not finite numbers")
    low, high = float(values.min()), float(values.max())
    if low >= 0 and high <= 1 and not np.array_equal(values, np.round(values)):
        low, high = 0.0, 1.0  # floating point from 0 to 1
    elif low >= 0 and high <= 65535:
        low, high = 0.0, 65535.0  # the usual 16 bits
    span = (high - low) or 1.0
    return Image.fromarray(np.round((values - low) * (255.0 / span)).astype(np.uint8))


def readable(path: Path) -> str:
    """POSIX text of a path that is always valid Unicode.

    Archives packed on Chinese Windows leave GBK bytes as file names; they are read as such.
    """
    raw = os.fsencode(path.as_posix())
    for encoding in ("utf-8", "gb18030"):
        try:
            return raw.decode(encoding)
        except UnicodeDecodeError:
            continue
    return raw.decode("utf-8", "replace")


def pictures_below(folder: Path) -> list[Path]:
    """Files below `folder` with an image extension, sorted by path, no hidden ones; none if it is missing.

    For folders whose file names say what a picture is, such as meme ids; `look_through` is for any folder.
    """
    pictures = []
    for path in sorted(folder.rglob("*")) if folder.is_dir() else ():
        is_hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        if path.suffix.lower() in EXTENSIONS and not is_hidden and path.is_file():
            pictures.append(path)
    return pictures


class FolderContents(NamedTuple):
    """What a folder holds."""

    images: list[Path]
    """Candidates, sorted by relative path; not decoded yet."""
    links_out: list[Path]
    """Links to folders and images outside, sorted likewise; nothing behind them was looked at."""


def look_through(folder: Path) -> FolderContents:
    """All image candidates below `folder`, and the links that lead out of it.

    A file with an image extension is always a candidate, any other one only if its first bytes say so.
    Hidden files are left out. Links are followed within the folder alone, and what several of them lead to
    counts once, so loops end: one link to a parent folder would else bring in everything there.
    Raises `LibraryError` for a missing folder, an unreadable one or one without any candidate.
    """
    if not folder.is_dir():
        problem = "is not a folder" if folder.exists() else "does not exist"
        raise LibraryError(
            f"meme source {folder} {problem}: correct `sources` in the profile (paths are relative to the "
            "project root), or use the source `example`"
        )
    inside = Path(os.path.realpath(folder))
    candidates, links_out, file_links = [], [], []
    seen: set[str] = set()
    starts = [folder]
    while starts:
        # Real folders come before links to them, so that a file keeps its own path.
        linked: list[Path] = []
        for start in sorted(starts, key=readable):
            if not Path(os.path.realpath(start)).is_relative_to(inside):
                links_out.append(start)
                continue
            for path, is_link in _walk(start, seen):
                if is_link:
                    (linked if path.is_dir() else file_links).append(path)
                elif _is_candidate(path):
                    candidates.append(path)
        starts = linked
    known = {os.path.realpath(path) for path in candidates} if file_links else set()
    for link in sorted(file_links, key=readable):
        real = os.path.realpath(link)
        if not Path(real).is_relative_to(inside) and link.exists():
            if link.suffix.lower() in EXTENSIONS:
                links_out.append(link)
        elif real not in known and _is_candidate(link):
            known.add(real)
            candidates.append(link)
    if not candidates:
        out = f"; {len(links_out)} links lead out of it and are not followed" if links_out else ""
        raise LibraryError(
            f"meme source {folder} holds no image ({', '.join(FORMATS)}){out}: put images into it or correct "
            "`sources` in the profile"
        )

    def place(path: Path) -> tuple[str, bytes]:
        return readable(path.relative_to(folder)), os.fsencode(path)

    return FolderContents(sorted(candidates, key=place), sorted(links_out, key=place))


def _walk(start: Path, seen: set[str]) -> Iterator[tuple[Path, bool]]:
    """Files and links below a folder, and whether each is a link; real folders in `seen` are passed over."""
    todo = [start]
    while todo:
        folder = todo.pop()
        real = os.path.realpath(folder)
        if real in seen:
            continue
        seen.add(real)
        try:
            entries = list(os.scandir(folder))
        except OSError as error:
            raise LibraryError(f"folder {folder} cannot be read: {error.strerror}") from error
        for entry in entries:
            if entry.name.startswith(".") or entry.name in SKIPPED_FOLDERS:
                continue
            path = Path(entry.path)
            if path.is_dir() and not entry.is_symlink():  # unlike entry.is_dir() no error for a loop
                todo.append(path)
            else:
                yield path, entry.is_symlink()


def _is_candidate(path: Path) -> bool:
    if path.suffix.lower() in EXTENSIONS:
        return True
    try:
        # Opening a named pipe would wait for ever.
        if not path.is_file():
            return False
        with path.open("rb") as handle:
            return looks_like_image(handle.read(16))
    except OSError:
        return False


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


def montage(paths: Sequence[Path], columns: int = 6, side: int = 150) -> Image.Image:
    """Pictures side by side on white, each fitted into a square of `side` pixels."""
    rows = -(-len(paths) // columns) or 1
    sheet = Image.new("RGB", (columns * side, rows * side), "white")
    for number, path in enumerate(paths):
        with Image.open(path) as picture:
            small = picture.convert("RGB")
        small.thumbnail((side - 8, side - 8))
        row, column = divmod(number, columns)
        sheet.paste(
            small, (column * side + (side - small.width) // 2, row * side + (side - small.height) // 2)
        )
    return sheet
