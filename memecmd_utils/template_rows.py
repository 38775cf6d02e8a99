"""Entries of ImgFlip575K and CM50 as their files hold them: JSON lists, JSON lines, gzip, zip."""

import gzip
import json
import re
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

import pandas as pd
from pydantic import ValidationError

from memecmd_utils import datasets
from memecmd_utils.errors import MemecmdError

COLUMNS = ("meme_id", "template", "position", "url", "post", "title", "views", "votes", "captions")
"""Columns of a frame of records; `position` counts from 0 within the template's file."""
_NUMBER = re.compile(r"-?\d[\d,]*")
_HALF = re.compile(r"[\ud800-\udfff]")
_HOLDS = " holds half a character"
_MOST = 2**63
"""Numbers from here on fit in no column of a table."""
UNREADABLE = (ValueError, EOFError, OSError, zlib.error, zipfile.BadZipFile, RuntimeError)
"""What reading a file as JSON may raise; `RuntimeError`: a zip with a password, or lists nested too deep."""

Broken = list[tuple[str, int, str]]
"""What could not be read: file, place in it (from 1), reason."""


class RecordsMissing(MemecmdError, FileNotFoundError):
    """A folder does not hold what is to be read; the message says what to give."""


def broken_table(rows: Iterable[tuple[str, int, str]]) -> pd.DataFrame:
    """The table of what could not be read: `file`, `place`, `reason`; names of files are made fit to show."""
    shown = [(name.encode("utf-8", "backslashreplace").decode(), place, why) for name, place, why in rows]
    return pd.DataFrame(shown, columns=["file", "place", "reason"])


def entries(path: Path) -> Iterator[tuple[int, Any]]:
    """Place (from 1) and parsed value of each entry; what cannot be parsed comes as the error."""
    place = 0
    opened = gzip.open if path.name.endswith(".gz") else open
    try:
        with opened(path, "rb") as handle:
            if ".jsonl" not in path.name:
                values = json.loads(handle.read())
                if not isinstance(values, list):
                    raise ValueError("not a list of records")
                yield from enumerate(values, start=1)
                return
            for place, line in enumerate(handle, start=1):  # bytes: a line ends at \n and nowhere else
                if line.strip():
                    try:
                        yield place, json.loads(line)
                    except (ValueError, RecursionError) as error:
                        yield place, ValueError(str(error))
    except UNREADABLE as error:  # the rest of the file is lost
        yield place + 1, ValueError(f"the file cannot be read from here on: {error}")


def row(raw: Any, template: str, place: int) -> tuple:
    """The values of `COLUMNS` of one entry, `place` from 1; a broken one raises `ValueError` with the reason.

    The four fields of `metadata` may also lie flat. The author's name is never taken over.
    """
    if isinstance(raw, ValueError):
        raise ValueError(f"not JSON: {raw}")
    if not isinstance(raw, Mapping):
        raise ValueError("a record must be an object")
    data = raw.get("metadata", raw)
    if not isinstance(data, Mapping):
        raise ValueError("metadata is no object")
    if not template.strip() or half(template):
        raise ValueError(
            "the template has no name" if not template.strip() else "the template's name" + _HOLDS
        )
    url = text(raw, "url")
    if not url.strip():
        raise ValueError("no url")
    meme_id = _stem(url)
    if not meme_id:
        raise ValueError(f"no meme is named in the url {url!r}")
    captions = raw.get("boxes", raw.get("ocr"))
    if not isinstance(captions, list) or not all(isinstance(caption, str) for caption in captions):
        raise ValueError("the captions are no list of texts")
    if any(map(half, captions)):
        raise ValueError("a caption" + _HOLDS)
    numbers = (number(data, "views", 0), number(data, "img-votes"))
    return (meme_id, template, place - 1, url, text(raw, "post"), text(data, "title"), *numbers, captions)


def _stem(url: str) -> str:
    """Base name of an address without its ending; empty where it names a host or a folder only."""
    address = url.partition("?")[0].partition("#")[0]
    host, slashes, rest = address.partition("://")
    path = rest.partition("/")[2] if slashes else host
    return "" if path.endswith("/") else PurePosixPath(path).stem.strip()


def text(data: Mapping, key: str) -> str:
    """A text of an entry, empty where it is missing or null; `ValueError` for anything else."""
    value = data.get(key)
    if value is not None and not isinstance(value, str):
        raise ValueError(f"{key} is no text")
    if value and half(value):
        raise ValueError(key + _HOLDS)
    return value or ""


def half(value: str) -> bool:
    """Whether a text holds one half of a surrogate pair, which no file in UTF-8 can hold.

    >>> half("\\ud83d"), half("\\N{CAT}")
    (True, False)
    """
    return not value.isascii() and _HALF.search(value) is not None


def halves(value: Any) -> bool:
    """The same of any text, also a key, in a parsed JSON value."""
    if isinstance(value, str):
        return half(value)
    if isinstance(value, Mapping):
        return any(halves(key) or halves(item) for key, item in value.items())
    return isinstance(value, list) and any(map(halves, value))


def reason(error: Exception) -> str:
    """Why an entry could not be read, in one line."""
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_input=False)[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    return f"no {error.args[0]}" if isinstance(error, KeyError) else str(error)


def number(data: Mapping, key: str, least: int | None = None) -> int:
    """A number, or text such as `1,992`; `2K` or a missing value is no number and raises `ValueError`."""
    value = data.get(key)
    if isinstance(value, str) and _NUMBER.fullmatch(value.strip()):
        value = int(value.replace(",", ""))
    fits = isinstance(value, int) and not isinstance(value, bool) and abs(value) < _MOST
    if not fits or (least is not None and value < least):
        raise ValueError(f"{key} is no number: {str(value)[:30]!r}")
    return value


def dataset(folder: Path) -> Path:
    """Folder of ImgFlip575K's data below a checkout, or itself; `RecordsMissing` where it holds no memes."""
    for place in (folder / "dataset", folder):
        if (place / "memes").is_dir():
            return place
    raise RecordsMissing(
        f"no folder `memes` in {folder}: give ImgFlip575K's checkout, or its folder `dataset` "
        "with memes/<template>.json"
    )


def meme_files(folder: Path) -> dict[str, Path]:
    """Template and file of memes at a folder of ImgFlip575K, or a single file; `RecordsMissing` without."""
    listed = [folder] if folder.is_file() else datasets.files_of(datasets.MEME_FILES, folder)
    files: dict[str, Path] = {}
    for path in listed:
        kind = next((kind for kind in datasets.MEME_KINDS if path.name.endswith(kind)), None)
        if kind:
            files.setdefault(path.name.removesuffix(kind), path)
    if not files:
        place = folder if folder.is_file() else dataset(folder) / "memes"
        raise RecordsMissing(f"{place} is, or holds, no file that ends in {', '.join(datasets.MEME_KINDS)}")
    return dict(sorted(files.items()))


def odd(broken: Broken | None, path: Path, reason: str) -> None:
    """Note a file that is not what it should be, or raise where nobody notes."""
    if broken is None:
        raise RecordsMissing(f"{path} cannot be read: {reason}; mend it, or take it away")
    broken.append((path.name, 1, reason))


def read_object(path: Path) -> Mapping:
    """The object that a JSON file holds, its values unchecked; `ValueError` says why there is none."""
    if isinstance(value := parsed(path), ValueError):
        raise value
    if not isinstance(value, Mapping):
        raise ValueError("the file holds no object")
    return value


def as_object(value: Any, name: str) -> Mapping:
    """A parsed value that must be an object of whole texts; `ValueError` says why it is none."""
    if isinstance(value, ValueError):
        raise value
    if not isinstance(value, Mapping):
        raise ValueError(f"{name} is no object")
    if halves(value):
        raise ValueError(f"{name} holds half a character")
    return value


def json_documents(files: Iterable[Path], folder: Path) -> Iterator[tuple[str, Any]]:
    """Name below `folder` and value of JSON files, also gzipped or inside a zip; errors as the value.

    Files with other endings play no part.
    """
    for path in files:
        if path.name.endswith((".json", ".json.gz")):
            yield path.relative_to(folder).as_posix(), parsed(path)
        elif path.suffix == ".zip":
            try:
                with zipfile.ZipFile(path) as archive:
                    members = [name for name in archive.namelist() if name.endswith(".json")]
                    for name in sorted(n for n in members if not n.startswith("__MACOSX")):
                        yield (
                            f"{path.relative_to(folder).as_posix()}/{name}",
                            _parsed(partial(archive.open, name)),
                        )
            except (zipfile.BadZipFile, OSError) as error:
                yield path.relative_to(folder).as_posix(), ValueError(f"not a zip that can be read: {error}")


def parsed(path: Path) -> Any:
    """The value of a JSON file, gzipped or not; what cannot be parsed comes as a `ValueError`."""
    return _parsed(partial(gzip.open if path.name.endswith(".gz") else open, path, "rb"))


def _parsed(opened: Callable[[], Any]) -> Any:
    try:
        with opened() as handle:
            return json.loads(handle.read())
    except UNREADABLE as error:
        return ValueError(f"not JSON: {error}")
