"""The data sets of the second paper, as they were released: ImgFlip575K, CM50, MemeCap and FigMemes.

Of a data set that is not here (None) a reader gives nothing. Records that cannot be read are left out, and a
line says how many and why. Who made a meme is never read.
"""

import csv
import gzip
import json
import re
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeVar

import pandas as pd
from pydantic import AliasChoices, BaseModel, BeforeValidator, Field
from tqdm.auto import tqdm

from memecmd_utils import pictures
from memecmd_utils.files import MemecmdError, paths
from memecmd_utils.schemas import MemeReading, Split, TemplateMeme, Text
from memecmd_utils.settings import Profile

COLUMNS = ["meme_id", "template", "position", "url", "post", "title", "views", "votes", "captions"]
"""Columns of the table of ImgFlip575K's records; `position` counts from 0 within the template's file."""
CM50, READER = "CM50", "gpt-4o@cm50"  # `source` of the memes and of the readings that CM50 published
MEME_ID = re.compile(r"://[^/?#]+/(?:[^?#]*/)?([^/?#.]+)")
"""Base name of the picture in an address."""
EXTENSIONS = frozenset(
    {".png", ".jpg", ".jpeg", ".jpe", ".jfif", ".gif", ".webp", ".bmp", ".tif", ".tiff", ".ico"}
)
"""Endings of the pictures of data sets."""
NOT_COMPUTED = "not computed here"
FIGMEMES_LABELS = ("allusion", "exaggeration", "irony", "anthrop", "metaphor", "contrast")
"""The literary devices of FigMemes, as its files spell them."""
Parsed = TypeVar("Parsed")


class DataSetError(MemecmdError, ValueError):
    """A data set that cannot be read; the message names the file and says what to give."""


Count = Annotated[int, BeforeValidator(lambda n: n.replace(",", "") if isinstance(n, str) else n)]
"""A number, or text such as `1,992`."""
Words = Annotated[str, BeforeValidator(lambda text: "" if text is None else text)]


class Entry(BaseModel):
    """A record of ImgFlip575K or CM50: the columns from `url` on."""

    url: Text
    post: Words = ""
    title: Words = ""
    views: Annotated[Count, Field(ge=0, lt=2**63)]
    votes: Annotated[Count, Field(alias="img-votes", lt=2**63)]
    captions: list[str] = Field(validation_alias=AliasChoices("boxes", "ocr"))


class PublishedReading(BaseModel):
    """What CM50's annotator said of a meme: fields of `MemeReading`."""

    template: Text = Field(alias="type")
    image_caption: str = Field(alias="visual elaboration")
    embedded_text: str = Field(alias="detected text")
    meme_caption: str = Field(alias="meaning of the meme")
    literary_devices: list[str] = Field(alias="literary device")
    emotion: str = Field(alias="emotion word")


class OtherMeme(BaseModel):
    """A meme of another data set: the name of its picture's file, the text on it where that is known.

    `meme_captions` say what it means, by several people (the references of Table 10), `image_captions` what
    the picture shows.
    """

    name: Text = Field(alias="post_id")
    image: str = Field("", alias="img_fname")
    title: str = ""
    url: str = ""
    text: str = ""
    meme_captions: list[str] = []
    image_captions: list[str] = Field([], alias="img_captions")


def _valid(rows: Iterable[Any], parse: Callable[[Any], Parsed], name: str) -> list[Parsed]:
    """What `parse` makes of each row; those that it cannot read are left out, which is said."""
    parsed, failures = [], []
    for number, row in enumerate(rows, start=1):
        try:
            parsed.append(parse(row))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            failures.append(f"record {number}: {' '.join(str(error).split())[:200]}")
    if failures:
        print(f"{name}: {len(failures):,} records cannot be read, the first is {failures[0]}")
    return parsed


def _entry(raw: Any) -> dict[str, Any]:
    """A record's `meme_id` and fields of `Entry`; those of `metadata` may also lie beside the others."""
    entry = Entry.model_validate({**raw, **raw.get("metadata", {})})
    if not (match := MEME_ID.search(entry.url)):
        raise ValueError(f"no meme is named in the address {entry.url!r}")
    return {"meme_id": match[1], **dict(entry)}


def _json(path: Path) -> Any:
    """The value of a JSON file, or the list of values of a file of JSON lines; gzipped or not."""
    try:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rb") as handle:
            if ".jsonl" in path.name:
                return [json.loads(line) for line in handle if line.strip()]
            return json.load(handle)
    except (OSError, ValueError, EOFError) as error:
        raise DataSetError(f"{path} cannot be read as JSON ({error}): give the file as released") from error


def _one_of(folder: Path, pattern: str) -> Path:
    """The first file of a name below a folder, or the folder if it is such a file."""
    paths_named = [folder] if folder.is_file() else sorted(folder.rglob(pattern))
    if not paths_named:
        raise DataSetError(f"{folder} holds no {pattern}: give the data set as released")
    return paths_named[0]


def read_records(folder: Path | None) -> pd.DataFrame:
    """All memes of ImgFlip575K as a table with `COLUMNS`; `captions` holds lists of text.

    `folder` is the checkout, or another folder above `memes/<template>.json` (also `.jsonl`, `.gz`).
    """
    lists, rows = sorted(folder.rglob("memes/*.json*")) if folder else [], []
    for path in tqdm(lists, desc="templates", unit="file", disable=not lists):
        entries = _valid(_json(path), _entry, path.name)
        named = {"template": path.name.partition(".json")[0]}
        rows += [{**named, "position": n, **entry} for n, entry in enumerate(entries)]
    return pd.DataFrame(rows, columns=COLUMNS)


def read_cm50(
    folder: Path | None,
) -> tuple[list[TemplateMeme], list[MemeReading], dict[str, str], dict[str, Path]]:
    """What CM50 published: memes, what the paper's annotator said of them, texts and pictures of templates.

    Sets are JSON lists, plain, gzipped or in a zip, with `train` or `valid` in their name. A meme that stands
    in both is one of validation. Template texts are in `50_template_info.json`, blank pictures in a folder
    `templates/img`.
    """
    if folder is None:
        return [], [], {}, {}
    memes, readings = dict[str, TemplateMeme](), dict[str, MemeReading]()
    for split in ("train", "validation"):
        for name, rows in _annotated(folder, split[:5]):
            for meme, reading in _valid(rows, partial(_published, split), name):
                memes[meme.meme_id], readings[meme.meme_id] = meme, reading
    info, images = _json(_one_of(folder, "50_template_info.json")), folder.rglob("templates/img/*")
    about = {template: entry.get("about") or "" for template, entry in info.items()}
    blank = {path.stem: path for path in sorted(images) if path.stem in about}
    return list(memes.values()), list(readings.values()), about, blank


def _annotated(folder: Path, kind: str) -> Iterator[tuple[str, list]]:
    """Name and records of each set below a folder whose name holds `kind`."""
    for path in sorted(path for path in folder.rglob("*") if kind in path.name.lower()):
        if path.name.endswith((".json", ".json.gz")):
            yield path.name, _json(path)
        elif path.suffix == ".zip":
            with zipfile.ZipFile(path) as archive:
                for name in archive.namelist():
                    if name.endswith(".json") and not name.startswith("__MACOSX"):
                        yield name, json.loads(archive.read(name))


def _published(split: Split, raw: Any) -> tuple[TemplateMeme, MemeReading]:
    answer = PublishedReading.model_validate(raw)
    meme = TemplateMeme(template=answer.template, source=CM50, split=split, **_entry(raw))
    return meme, MemeReading(meme_id=meme.meme_id, source=READER, **answer.model_dump())


def read_memecap(place: Path | None) -> list[OtherMeme]:
    """Memes with a picture's name of MemeCap's test set (Hwang and Shwartz, 2023), from its JSON file or a
    folder that holds it."""
    rows = _json(_one_of(place, "memes*test*.json*")) if place else []
    return [meme for meme in _valid(rows, OtherMeme.model_validate, "MemeCap") if meme.image]


def _tsv(file: Path, columns: Sequence[str], quoting: int = csv.QUOTE_MINIMAL) -> pd.DataFrame:
    """A table of FigMemes by `img_name`, its cells as text."""
    try:
        table = pd.read_csv(file, sep="\t", dtype=str, keep_default_na=False, quoting=quoting)
        return table.set_index("img_name")[list(columns)]
    except (OSError, ValueError, KeyError) as error:
        raise DataSetError(f"{file} is no table of FigMemes as released ({error})") from error


def read_figmemes(place: Path | None, labels: Path | None = None) -> list[OtherMeme]:
    """FigMemes' test set by its standard split, with the texts of a `figmemes_ocrs.tsv` beside the labels."""
    if place is None:
        return []
    split = _tsv(_one_of(place, "standard_split.tsv"), ["split"])["split"]
    folder, texts = labels if labels and labels.is_dir() else (labels or place).parent, dict[str, str]()
    file = folder / "figmemes_ocrs.tsv"
    if file.is_file():  # as released, fields are not quoted: a quotation mark is part of the text
        texts = _tsv(file, ["text"], csv.QUOTE_NONE)["text"].to_dict()
    names = split.index[split == "test"]
    return [OtherMeme(post_id=name, img_fname=name, text=texts.get(name, "").strip()) for name in names]


def read_labels(place: Path | None) -> dict[str, list[str]]:
    """Literary devices of FigMemes by image name without suffix, from its table of 0 and 1, or a folder."""
    if place is None:
        return {}
    file = _one_of(place, "figmemes_annotations.tsv")
    marks = _tsv(file, FIGMEMES_LABELS).apply(pd.to_numeric, errors="coerce")
    if not marks.isin([0, 1]).all(axis=None) or marks.index.has_duplicates:
        raise DataSetError(f"{file}: a cell is not 0 or 1, or an image stands twice; take it as released")
    return {Path(name).stem: list(row.index[row == 1]) for name, row in marks.iterrows()}


def picture_folder(profile: Profile) -> Path:
    """The folder of memes' pictures that the profile names, else the one that appendix 07b fills."""
    given = profile.mtrclip.images
    return paths.user_path(given) if given else paths.raw / "templates" / "images"


def pictures_below(folder: Path) -> dict[str, Path]:
    """Image files below a folder by base name, which is the meme's id, no hidden ones; the first counts."""
    there = [path for path in folder.rglob("*") if path.suffix.lower() in EXTENSIONS]
    shown = [path for path in there if not any(p.startswith(".") for p in path.relative_to(folder).parts)]
    return {path.stem: path for path in sorted(shown, reverse=True) if path.is_file()}


def is_readable(file: Path) -> bool:
    """Whether a picture can be decoded; why it cannot is said."""
    try:
        return bool(pictures.decode(file))
    except pictures.ImageRejected as error:
        print(f"{file.name} is left out: {error}")
        return False
