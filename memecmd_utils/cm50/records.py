"""Reads ImgFlip575K and the published part of CM50: JSON lists, JSON lines, gzip, zip."""

import csv
import gzip
import json
import re
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import pandas as pd
from pydantic import ValidationError
from tqdm.auto import tqdm

from memecmd_utils.core.fetch import datasets
from memecmd_utils.files import MemecmdError
from memecmd_utils.schemas import MemeReading, Split, TemplateInfo, TemplateMeme

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
    printable = [(name.encode("utf-8", "backslashreplace").decode(), place, why) for name, place, why in rows]
    return pd.DataFrame(printable, columns=["file", "place", "reason"])


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


def template_row(raw: Any, template: str, place: int) -> tuple:
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
        raise ValueError(name + _HOLDS)
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


IMGFLIP = "ImgFlip575K"
"""`source` of what ImgFlip575K recorded; what CM50 published has `CM50_SOURCE` and `READER`."""
CM50_SOURCE = "CM50"
READER = "gpt-4o@cm50"
_ANNOTATED = {"type", "meaning of the meme", "visual elaboration", "url"}
"""Fields of CM50's records; a list of objects with two of them is one of records."""
_PARTS: dict[Split | None, int] = {None: 0, "train": 1, "validation": 2}
"""Of a meme that stands in two parts the later one here counts: nothing is trained on validation memes."""
_SIGNS = re.compile(r"[\W_]+")


class Cm50(NamedTuple):
    """What CM50 published: memes, what the paper's annotator said of them, templates, and broken entries."""

    memes: list[TemplateMeme]
    readings: list[MemeReading]
    infos: list[TemplateInfo]
    broken: pd.DataFrame
    """As `Records.broken`."""


class Records(NamedTuple):
    """Records of template memes, and what could not be read."""

    frame: pd.DataFrame
    """A row a record, columns `COLUMNS`; `captions` holds lists of text."""
    broken: pd.DataFrame
    """A row for each record or file that could not be read: `file`, `place` (from 1), `reason`."""


def read_records(folder: Path) -> Records:
    """Read all memes of ImgFlip575K; who made a meme is dropped at reading.

    `folder` is the checkout, its `dataset`, a folder with `memes/<template>` files, or one such file: JSON
    lists, or JSON lines that end at `\\n` only, gzipped or not. A template counts once, also where it has two
    files. Raises `RecordsMissing` where there are no such files.
    """
    files = meme_files(folder)
    parts, broken = [], []
    for template, path in tqdm(files.items(), desc="templates", unit="file"):
        columns: dict[str, list] = {name: [] for name in COLUMNS}
        for place, raw in entries(path):
            try:
                row = template_row(raw, template, place)
            except ValueError as error:
                broken.append((path.name, place, reason(error)))
                continue
            for name, value in zip(COLUMNS, row, strict=True):
                columns[name].append(value)
        if columns["url"]:
            parts.append(pd.DataFrame(columns))
    frame = pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=list(COLUMNS))
    return Records(frame, broken_table(broken))


def read_upstream(folder: Path, broken: Broken) -> dict[str, int]:
    """Records of each template as `statistics.json` of ImgFlip575K counts them; empty where it is missing.

    A file of another form is noted in `broken`.
    """
    path = None if folder.is_file() else dataset(folder) / "statistics.json"
    if path is None or not path.is_file():
        return {}
    try:
        counts = as_object(read_object(path).get("memes"), "memes")
        return {name.removesuffix(".json"): number(counts, name, 0) for name in counts}
    except ValueError as error:
        broken.append((path.name, 1, str(error)))
        return {}


def read_templates(folder: Path, broken: Broken) -> list[TemplateInfo]:
    """Templates of ImgFlip575K with their names, from `templates.json` or `templates/<template>.json`.

    Names of `popular_100_memes.csv`, which is Windows-1252, are added to the template they belong to. Files
    of another form are noted in `broken`.
    """
    if folder.is_file():
        return []
    place = dataset(folder)
    popular: dict[str, list[str]] = {}
    if (table := place / "popular_100_memes.csv").is_file():
        try:
            with table.open(encoding="cp1252", newline="") as handle:
                for row in csv.DictReader(handle):
                    popular[letters(row["Name"] or "")] = [row["Name"] or "", *_names(row["Alternate Names"])]
        except (ValueError, KeyError, csv.Error) as error:
            broken.append((table.name, 1, reason(error)))
    infos = []
    for template, (path, entry) in sorted(_template_entries(place, broken).items()):
        try:
            info = template_info(template, as_object(entry, template), place, IMGFLIP)
        except ValueError as error:
            broken.append((path.name, 1, reason(error)))
            continue
        more = popular.get(letters(info.title), popular.get(letters(template), []))
        names = [name for name in dict.fromkeys([*info.names, *more]) if name not in ("", info.title)]
        infos.append(info.model_copy(update={"names": names}))
    return infos


def _template_entries(place: Path, broken: Broken) -> dict[str, tuple[Path, Any]]:
    """File and value of each template's entry, which may still be of any form."""
    if not (one := place / "templates.json").is_file():
        files = sorted((place / "templates").glob("*.json"))
        return {path.stem: (path, parsed(path)) for path in files}
    try:
        return {name: (one, entry) for name, entry in read_object(one).items()}
    except ValueError as error:
        broken.append((one.name, 1, str(error)))
        return {}


def template_info(
    template: str, entry: Mapping[str, Any], folder: Path, source: str, about: str = ""
) -> TemplateInfo:
    """A template from its entry in the source; `picture` is the blank picture's path below `folder`.

    Raises `ValueError` where a field that is there is no text.
    """
    if not template.strip() or half(template):
        raise ValueError(f"a template has no name that can be read: {template!r}")
    if null := [name for name in ("title", "template_url") if name in entry and entry[name] is None]:
        raise ValueError(f"{template}: {null[0]} is null")
    pictures = sorted(path for path in (folder / "templates" / "img").glob("*") if path.stem == template)
    return TemplateInfo(
        template=template,
        title=text(entry, "title").removesuffix(" Meme Template").strip(),
        names=_names(text(entry, "alternative_names")),
        about=about,
        url=text(entry, "template_url"),
        picture=pictures[0].relative_to(folder).as_posix() if pictures else "",
        source=source,
    )


def _names(text: str | None) -> list[str]:
    return [name for part in (text or "").split(",") if (name := part.strip())]


def letters(text: str) -> str:
    """Letters and digits of a name, without case: how names are compared that differ in signs only.

    >>> letters("Ain't Nobody Got Time For That!")
    'aintnobodygottimeforthat'
    """
    return _SIGNS.sub("", text.casefold())


def frame_of(memes: Iterable[TemplateMeme]) -> pd.DataFrame:
    """Memes as a frame with `COLUMNS` and `split`; `position` counts within each template."""
    rows = [meme.model_dump(include={*COLUMNS, "split"}) for meme in memes]
    frame = pd.DataFrame(rows, columns=[*COLUMNS, "split"])
    frame["position"] = frame.groupby("template").cumcount() if rows else []
    return frame


def memes_of(frame: pd.DataFrame, seed: int | None = None) -> list[TemplateMeme]:
    """Rows of a frame of ImgFlip575K's records as checked records; `split` where the frame has it."""
    names = [name for name in (*COLUMNS, "split") if name in frame and name != "position"]
    rows = zip(*(frame[name].tolist() for name in names), strict=True)
    return [TemplateMeme(source=IMGFLIP, seed=seed, **dict(zip(names, row, strict=True))) for row in rows]


def read_cm50(folder: Path) -> Cm50:
    """Read what CM50 published: record files below `folder`, or one of them, and texts of the templates.

    Record files are the JSON lists of the release, plain, gzipped or inside its zip files; a name with
    `train` or `valid` gives the split. A meme that stands in two files counts once, and for validation if
    one of them says so. Template texts are in `50_template_info.json`, names and blank pictures in
    `templates` beside or below it. The readings are the annotator's of the paper, their prompt is not
    recorded. Raises `RecordsMissing` where there is nothing.
    """
    base = folder.parent if folder.is_file() else folder
    files = datasets.files_used("cm50", folder) if folder.exists() else []
    memes: dict[str, TemplateMeme] = {}
    parts: dict[str, Split | None] = {}
    readings: dict[str, MemeReading] = {}
    broken: Broken = []
    infos = _cm50_infos(files, base, broken)
    if folder.is_file():  # a picture's path is one below the folder that is given
        infos = [info.model_copy(update={"picture": ""}) for info in infos]
    others = (path for path in files if path.name != datasets.ABOUT)
    records = [path for path in others if "templates" not in path.relative_to(base).parts]
    for name, document in json_documents(sorted(records), base):
        if isinstance(document, ValueError):
            broken.append((name, 1, str(document)))
        for place, raw in enumerate(document if _is_annotated(document) else (), start=1):
            try:
                meme = _meme(raw, _split(name))
                parts[meme.meme_id] = max(parts.get(meme.meme_id), meme.split, key=_PARTS.__getitem__)
                reading = _reading(raw, meme)
            except (ValueError, KeyError) as error:
                broken.append((name, place, reason(error)))
                continue
            memes.setdefault(meme.meme_id, meme)
            readings.setdefault(meme.meme_id, reading)
    if not memes and not infos and not broken:
        raise RecordsMissing(
            f"{folder} holds nothing of CM50: give the folder of its repository, or one with its validation "
            f"set (validation_set.zip, or the JSON file inside it) and {datasets.ABOUT}"
        )
    split_memes = [meme.model_copy(update={"split": parts[meme.meme_id]}) for meme in memes.values()]
    return Cm50(split_memes, list(readings.values()), infos, broken_table(broken))


def _is_annotated(document: Any) -> bool:
    return isinstance(document, list) and any(
        isinstance(item, Mapping) and len(_ANNOTATED & set(item)) > 1 for item in document
    )


def _split(name: str) -> Split | None:
    """Part of a record file by its own name; where that says nothing, by those of zip and folders around."""
    for part in reversed(PurePosixPath(name.lower()).parts):
        if "valid" in part or "train" in part:
            return "validation" if "valid" in part else "train"
    return None


def _meme(raw: Any, split: Split | None) -> TemplateMeme:
    template = text(raw, "type").strip() if isinstance(raw, Mapping) else "unknown"
    values = dict(zip(COLUMNS, template_row(raw, template, 1), strict=True))
    del values["position"]
    return TemplateMeme(source=CM50_SOURCE, split=split, **values)


def _reading(raw: Mapping, meme: TemplateMeme) -> MemeReading:
    fields = {
        "image_caption": raw["visual elaboration"],
        "embedded_text": raw["detected text"],
        "meme_caption": raw["meaning of the meme"],
        "literary_devices": raw["literary device"],
        "emotion": raw["emotion word"],
    }
    if broken := [name for name, value in fields.items() if halves(value)]:
        raise ValueError(broken[0] + _HOLDS)
    return MemeReading(meme_id=meme.meme_id, template=meme.template, source=READER, **fields)


def _cm50_infos(files: Iterable[Path], base: Path, broken: Broken) -> list[TemplateInfo]:
    """Templates of the first file of texts; what is odd about them is noted in `broken`.

    A template whose text or entry cannot be read keeps its name.
    """
    path = next((path for path in files if path.name == datasets.ABOUT), None)
    if path is None:
        return []
    try:
        texts = read_object(path)
    except ValueError as error:
        broken.append((path.name, 1, str(error)))
        return []
    folders = (p for p in sorted(base.rglob("templates")) if p.is_dir())
    place = next((p.parent for p in folders), base)
    entries = _template_entries(place, broken)
    infos = []
    for number, (template, entry) in enumerate(texts.items(), start=1):
        if not template.strip() or half(template):
            broken.append((path.name, number, f"a template has no name that can be read: {template!r}"))
            continue
        about = ""
        try:
            if not isinstance(value := as_object(entry, template).get("about", ""), str):
                raise ValueError(f"{template}: about is no text")
            about = value
        except ValueError as error:
            broken.append((path.name, number, str(error)))
        file, raw = entries.get(template, (path, {}))
        try:
            info = template_info(template, as_object(raw, template), place, CM50_SOURCE, about)
        except ValueError as error:
            broken.append((file.name, 1, reason(error)))
            info = template_info(template, {}, place, CM50_SOURCE, about)
        picture = (place / info.picture).relative_to(base).as_posix() if info.picture else ""
        infos.append(info.model_copy(update={"picture": picture}))
    return infos
