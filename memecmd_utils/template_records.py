"""Reads ImgFlip575K and the published part of CM50: columns for what is large, records for what is small."""

import csv
import re
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import pandas as pd
from tqdm.auto import tqdm

from memecmd_utils import datasets, template_rows
from memecmd_utils.template_rows import COLUMNS, Broken, RecordsMissing, broken_table
from memecmd_utils.template_schemas import MemeReading, Split, TemplateInfo, TemplateMeme

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


def read_records(folder: Path | str) -> Records:
    """Read all memes of ImgFlip575K; who made a meme is dropped at reading.

    `folder` is the checkout, its `dataset`, a folder with `memes/<template>` files, or one such file: JSON
    lists, or JSON lines that end at `\\n` only, gzipped or not. A template counts once, also where it has two
    files. Raises `RecordsMissing` where there are no such files.
    """
    files = template_rows.meme_files(Path(folder))
    parts, broken = [], []
    for template, path in tqdm(files.items(), desc="templates", unit="file"):
        columns: dict[str, list] = {name: [] for name in COLUMNS}
        for place, raw in template_rows.entries(path):
            try:
                row = template_rows.row(raw, template, place)
            except ValueError as error:
                broken.append((path.name, place, template_rows.reason(error)))
                continue
            for name, value in zip(COLUMNS, row, strict=True):
                columns[name].append(value)
        if columns["url"]:
            parts.append(pd.DataFrame(columns))
    frame = pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=list(COLUMNS))
    return Records(frame, broken_table(broken))


def read_upstream(folder: Path | str, broken: Broken | None = None) -> dict[str, int]:
    """Records of each template as `statistics.json` of ImgFlip575K counts them; empty where it is missing.

    A file of another form is noted in `broken`, else `RecordsMissing` names it.
    """
    if Path(folder).is_file():
        return {}
    path = template_rows.dataset(Path(folder)) / "statistics.json"
    if not path.is_file():
        return {}
    try:
        counts = template_rows.as_object(template_rows.read_object(path).get("memes"), "memes")
        return {name.removesuffix(".json"): template_rows.number(counts, name, 0) for name in counts}
    except ValueError as error:
        template_rows.odd(broken, path, str(error))
        return {}


def read_templates(folder: Path | str, broken: Broken | None = None) -> list[TemplateInfo]:
    """Templates of ImgFlip575K with their names, from `templates.json` or `templates/<template>.json`.

    Names of `popular_100_memes.csv`, which is Windows-1252, are added to the template they belong to. Files
    of another form are noted in `broken`, else `RecordsMissing` names the first.
    """
    if Path(folder).is_file():
        return []
    place = template_rows.dataset(Path(folder))
    popular: dict[str, list[str]] = {}
    if (table := place / "popular_100_memes.csv").is_file():
        try:
            with table.open(encoding="cp1252", newline="") as handle:
                for row in csv.DictReader(handle):
                    popular[letters(row["Name"] or "")] = [row["Name"] or "", *_names(row["Alternate Names"])]
        except (ValueError, KeyError, csv.Error) as error:
            template_rows.odd(broken, table, template_rows.reason(error))
    infos = []
    for template, (path, entry) in sorted(_template_entries(place, broken).items()):
        try:
            info = template_info(template, template_rows.as_object(entry, template), place, IMGFLIP)
        except ValueError as error:
            template_rows.odd(broken, path, template_rows.reason(error))
            continue
        more = popular.get(letters(info.title), popular.get(letters(template), []))
        names = [name for name in dict.fromkeys([*info.names, *more]) if name not in ("", info.title)]
        infos.append(info.model_copy(update={"names": names}))
    return infos


def _template_entries(place: Path, broken: Broken | None) -> dict[str, tuple[Path, Any]]:
    """File and value of each template's entry, which may still be of any form."""
    if not (one := place / "templates.json").is_file():
        files = sorted((place / "templates").glob("*.json"))
        return {path.stem: (path, template_rows.parsed(path)) for path in files}
    try:
        return {name: (one, entry) for name, entry in template_rows.read_object(one).items()}
    except ValueError as error:
        template_rows.odd(broken, one, str(error))
        return {}


def template_info(
    template: str, entry: Mapping[str, Any], folder: Path, source: str, about: str = ""
) -> TemplateInfo:
    """A template from its entry in the source; `picture` is the blank picture's path below `folder`.

    Raises `ValueError` where a field that is there is no text.
    """
    if not template.strip() or template_rows.half(template):
        raise ValueError(f"a template has no name that can be read: {template!r}")
    if null := [name for name in ("title", "template_url") if name in entry and entry[name] is None]:
        raise ValueError(f"{template}: {null[0]} is null")
    pictures = sorted(path for path in (folder / "templates" / "img").glob("*") if path.stem == template)
    return TemplateInfo(
        template=template,
        title=template_rows.text(entry, "title").removesuffix(" Meme Template").strip(),
        names=_names(template_rows.text(entry, "alternative_names")),
        about=about,
        url=template_rows.text(entry, "template_url"),
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


def memes_of(frame: pd.DataFrame, source: str = IMGFLIP, seed: int | None = None) -> list[TemplateMeme]:
    """Rows of a frame of records as checked records; `split` where the frame has it."""
    names = [name for name in (*COLUMNS, "split") if name in frame and name != "position"]
    rows = zip(*(frame[name].tolist() for name in names), strict=True)
    return [TemplateMeme(source=source, seed=seed, **dict(zip(names, row, strict=True))) for row in rows]


def read_cm50(folder: Path | str) -> Cm50:
    """Read what CM50 published: record files below `folder`, or one of them, and texts of the templates.

    Record files are the JSON lists of the release, plain, gzipped or inside its zip files; a name with
    `train` or `valid` gives the split. A meme that stands in two files counts once, and for validation if
    one of them says so. Template texts are in `50_template_info.json`, names and blank pictures in
    `templates` beside or below it. The readings are the annotator's of the paper, their prompt is not
    recorded. Raises `RecordsMissing` where there is nothing.
    """
    folder = Path(folder)
    base = folder.parent if folder.is_file() else folder
    files = datasets.read_of("cm50", folder) if folder.exists() else []
    memes: dict[str, TemplateMeme] = {}
    parts: dict[str, Split | None] = {}
    readings: dict[str, MemeReading] = {}
    broken: Broken = []
    infos = _cm50_infos(files, base, broken)
    if folder.is_file():  # a picture's path is one below the folder that is given
        infos = [info.model_copy(update={"picture": ""}) for info in infos]
    others = (path for path in files if path.name != datasets.ABOUT)
    records = [path for path in others if "templates" not in path.relative_to(base).parts]
    for name, document in template_rows.json_documents(sorted(records), base):
        if isinstance(document, ValueError):
            broken.append((name, 1, str(document)))
        for place, raw in enumerate(document if _is_annotated(document) else (), start=1):
            try:
                meme = _meme(raw, _split(name))
                parts[meme.meme_id] = max(parts.get(meme.meme_id), meme.split, key=_PARTS.__getitem__)
                reading = _reading(raw, meme)
            except (ValueError, KeyError) as error:
                broken.append((name, place, template_rows.reason(error)))
                continue
            memes.setdefault(meme.meme_id, meme)
            readings.setdefault(meme.meme_id, reading)
    if not memes and not infos and not broken:
        raise RecordsMissing(
            f"{folder} holds nothing of CM50: give the folder of its repository, or one with its validation "
            f"set (validation_set.zip, or the JSON file inside it) and {datasets.ABOUT}"
        )
    found = [meme.model_copy(update={"split": parts[meme.meme_id]}) for meme in memes.values()]
    return Cm50(found, list(readings.values()), infos, broken_table(broken))


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
    template = template_rows.text(raw, "type").strip() if isinstance(raw, Mapping) else "unknown"
    values = dict(zip(COLUMNS, template_rows.row(raw, template, 1), strict=True))
    del values["position"]
    return TemplateMeme(source=CM50_SOURCE, split=split, **values)


def _reading(raw: Mapping, meme: TemplateMeme) -> MemeReading:
    told = {
        "image_caption": raw["visual elaboration"],
        "embedded_text": raw["detected text"],
        "meme_caption": raw["meaning of the meme"],
        "literary_devices": raw["literary device"],
        "emotion": raw["emotion word"],
    }
    if odd := [name for name, value in told.items() if template_rows.halves(value)]:
        raise ValueError(f"{odd[0]} holds half a character")
    return MemeReading(meme_id=meme.meme_id, template=meme.template, source=READER, **told)


def _cm50_infos(files: Iterable[Path], base: Path, broken: Broken) -> list[TemplateInfo]:
    """Templates of the first file of texts; what is odd about them is noted in `broken`.

    A template whose text or entry cannot be read keeps its name.
    """
    path = next((path for path in files if path.name == datasets.ABOUT), None)
    if path is None:
        return []
    try:
        told = template_rows.read_object(path)
    except ValueError as error:
        broken.append((path.name, 1, str(error)))
        return []
    folders = (p for p in sorted(base.rglob("templates")) if p.is_dir())
    place = next((p.parent for p in folders), base)
    entries = _template_entries(place, broken)
    infos = []
    for number, (template, text) in enumerate(told.items(), start=1):
        if not template.strip() or template_rows.half(template):
            broken.append((path.name, number, f"a template has no name that can be read: {template!r}"))
            continue
        about = ""
        try:
            value = template_rows.as_object(text, template).get("about", "")
            if not isinstance(value, str):
                raise ValueError(f"{template}: about is no text")
            about = value
        except ValueError as error:
            broken.append((path.name, number, str(error)))
        file, raw = entries.get(template, (path, {}))
        try:
            info = template_info(template, template_rows.as_object(raw, template), place, CM50_SOURCE, about)
        except ValueError as error:
            broken.append((file.name, 1, template_rows.reason(error)))
            info = template_info(template, {}, place, CM50_SOURCE, about)
        picture = (place / info.picture).relative_to(base).as_posix() if info.picture else ""
        infos.append(info.model_copy(update={"picture": picture}))
    return infos
