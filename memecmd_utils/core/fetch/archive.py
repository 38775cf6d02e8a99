"""Unpack the images of a zip archive that somebody else made: only images, nowhere else, never too much."""

import stat
import zipfile
import zlib
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from tqdm.auto import tqdm

from memecmd_utils.core import images, storage

MAX_ENTRIES = 200_000
MAX_TOTAL = 20_000_000_000
"""Bytes of all images together, unpacked; the archive of 4,002 memes has a fraction of it."""
MAX_RATIO = 200
"""Unpacked over packed bytes of one image: pictures hardly shrink, so more is a bomb."""
CHUNK = 1 << 20


class Unpacked(NamedTuple):
    """What `unpack` did, in files."""

    written: int
    kept: int
    """Already there, whole, from an earlier call."""
    skipped: int
    """No images, by name or by content."""


def unpack(archive: Path, folder: Path) -> Unpacked:
    """Unpack the images of `archive` below `folder`, each whole or not at all; go on where a call was killed.

    Raises `images.LibraryError` for a file that is no archive, an entry that leads out of the folder, a
    password, a broken entry, or more than the caps of this module.
    """
    if not archive.is_file():
        raise images.LibraryError(
            f"there is no file {archive}: name the archive, as in make library-sources ZIP=..."
        )
    try:
        with zipfile.ZipFile(archive) as source:
            entries = _checked(source.infolist(), archive.name)
            counts = {"written": 0, "kept": 0, "skipped": 0}
            for entry in tqdm(entries, desc=archive.name, unit="file"):
                counts[_one(source, entry, folder, archive.name)] += 1
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise images.LibraryError(
            f"{archive.name} is no whole zip archive ({error}): download it again; what was unpacked is kept"
        ) from error
    except NotImplementedError as error:
        raise images.LibraryError(
            f"{archive.name}: {error}; pack it anew with an ordinary zip program"
        ) from error
    if not counts["written"] + counts["kept"]:
        raise images.LibraryError(f"{archive.name} holds no image")
    return Unpacked(**counts)


def _checked(entries: list[zipfile.ZipInfo], name: str) -> list[zipfile.ZipInfo]:
    """Files of the archive, if all of them stay within the folder and the caps."""
    if len(entries) > MAX_ENTRIES:
        raise images.LibraryError(f"{name} has {len(entries):,} entries; the limit is {MAX_ENTRIES:,}")
    for entry in entries:
        path = PurePosixPath(entry.filename.replace("\\", "/"))
        if path.is_absolute() or ".." in path.parts or (path.parts[:1] and path.parts[0].endswith(":")):
            raise images.LibraryError(
                f"{name}: entry {entry.filename!r} leads out of the folder; do not trust this archive"
            )
        if entry.flag_bits & 1:
            raise images.LibraryError(f"{name} is locked with a password: unpack it and pack the images anew")
    # What a header says may be a lie, so the same caps are checked again while reading.
    total = sum(entry.file_size for entry in entries if _is_image_name(entry))
    if total > MAX_TOTAL:
        raise images.LibraryError(f"{name} would unpack to {total:,} bytes; the limit is {MAX_TOTAL:,}")
    return [entry for entry in entries if not entry.is_dir()]


def _is_image_name(entry: zipfile.ZipInfo) -> bool:
    path = PurePosixPath(entry.filename)
    link = stat.S_ISLNK(entry.external_attr >> 16)
    hidden = any(part.startswith(".") or part in images.SKIPPED_FOLDERS for part in path.parts)
    return not link and not hidden and path.suffix.lower() in images.EXTENSIONS


def _one(source: zipfile.ZipFile, entry: zipfile.ZipInfo, folder: Path, name: str) -> str:
    if not _is_image_name(entry):
        return "skipped"
    target = folder.joinpath(*PurePosixPath(entry.filename.replace("\\", "/")).parts)
    if _is_there(target, entry):
        return "kept"
    packed = max(entry.compress_size, 1)
    limit = min(images.MAX_BYTES, max(MAX_RATIO * packed, 1 << 16))
    if entry.file_size > limit:
        raise images.LibraryError(
            f"{name}: {entry.filename!r} unpacks {packed:,} bytes to {entry.file_size:,}: a bomb?"
        )
    parts, size = [], 0
    with source.open(entry) as stream:
        while chunk := stream.read(CHUNK):
            parts.append(chunk)
            if (size := size + len(chunk)) > limit:
                raise images.LibraryError(
                    f"{name}: {entry.filename!r} unpacks to more than {limit:,} bytes: a bomb?"
                )
    data = b"".join(parts)
    if not images.looks_like_image(data[:16]):
        return "skipped"
    try:
        with storage.atomic_path(target) as part:
            part.write_bytes(data)
    except OSError as error:
        raise images.LibraryError(
            f"{target.name} cannot be written ({error.strerror}): make room and run again, "
            "what was unpacked is kept"
        ) from error
    return "written"


def _is_there(target: Path, entry: zipfile.ZipInfo) -> bool:
    """Whether the file is there as the archive has it (size and checksum)."""
    if not target.is_file() or target.stat().st_size != entry.file_size:
        return False
    return zlib.crc32(target.read_bytes()) == entry.CRC
