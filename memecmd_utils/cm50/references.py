"""Memes of other data sets, which readings are held against (2501.13851, Tables 9 to 11).

MemeCap (Hwang and Shwartz, 2023) has captions that people wrote. FigMemes (Liu et al., 2022) has labels of
literary devices; they are given out through a form, so nothing of them is here: the reader takes a path of
the user's and every table names it.
"""

import csv
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import pandas as pd
from pydantic import BaseModel, ConfigDict, Field

from memecmd_utils.cm50 import prompts, records
from memecmd_utils.cm50.prompts import FIGMEMES_LABELS, Variant
from memecmd_utils.core.fetch import datasets
from memecmd_utils.files import MemecmdError
from memecmd_utils.schemas import Text

DataSet = Literal["memecap", "figmemes"]
TITLES: dict[DataSet, str] = {"memecap": "MemeCap", "figmemes": "FigMemes"}
FILES = ("memes-test.json", "data/memes-test.json", "memes_test_dev.json.gz")
"""Where MemeCap's captions are below a folder: as released, in a checkout of the source, a sample. Only where
none of these is there, others are looked for, as `datasets` has them."""
MEMECAP_WHERE = (
    "set memecap to the file memes-test.json of eujhwang/meme-cap, or to a folder with one of "
    + ", ".join((*FILES, *itertools.chain(*datasets.SOURCES["memecap"].holds.values())))
)
SPLIT = "standard_split.tsv"
PARTS = ("train", "validation", "test")
NAME = "img_name"
TEXTS = "figmemes_ocrs.tsv"
"""The texts on the memes, as they come with the labels."""
LABELS = "figmemes_annotations.tsv"
FIGMEMES_WHERE = (
    "the labels are given out through the form in the README of UKPLab/emnlp2022-figmemes: set "
    f"figmemes_labels to the file {LABELS} that comes with it"
)
MARKS = {"1": 1, "1.0": 1, "true": 1, "0": 0, "0.0": 0, "false": 0}


class MemeCapError(MemecmdError, ValueError):
    """MemeCap could not be read; the message says what to give."""


class FigMemesError(MemecmdError, ValueError):
    """A table of FigMemes could not be read; the message says what to give."""


class OtherMeme(NamedTuple):
    """A meme of another data set."""

    image: str
    """Name of its file."""
    caption: str = ""
    """What the picture shows."""
    text: str = ""
    """The text on it, where it is known."""
    title: str = ""
    url: str = ""


def memes_of(found: Mapping[str, datasets.LocatedSource], dataset: DataSet) -> list[OtherMeme]:
    """MemeCap's test set, or FigMemes' by its standard split with the texts that come with the labels.

    The data set has to be there; raises `MemeCapError` or `FigMemesError` where it cannot be read.
    """
    folder = found[dataset].path
    if dataset == "memecap":
        memes = [meme for meme in read(folder) if meme.image]
        return [OtherMeme(m.image, next(iter(m.image_captions), ""), "", m.title, m.url) for m in memes]
    split = read_split(folder)
    texts = read_texts(found["figmemes_labels"].path, folder)
    names = split.loc[split["split"] == "test", NAME]
    return [OtherMeme(name, text=texts.get(name, "").strip()) for name in names]


class MemeCapMeme(BaseModel):
    """One meme of MemeCap."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    post_id: Text
    title: str = ""
    """Title of the post."""
    image: str = ""
    """Name of the image file."""
    url: str = ""
    meme_captions: list[Text] = Field(min_length=1)
    """What the meme means, by several people: the references."""
    image_captions: list[str] = Field([])
    """What the picture shows, its text left out."""


def read(source: Path) -> list[MemeCapMeme]:
    """Read MemeCap's test set from a JSON file (also .gz) or from the folder that holds it.

    A record that is not as released is left out, and so is a post that occurs twice, the second time; how
    many are left out is printed, with the first reason. Raises `MemeCapError` that names the file where there
    is none, where it is no list, or where no record of it can be read.
    """
    file = _memecap_file(source.expanduser())
    rows = records.parsed(file)
    if isinstance(rows, ValueError):
        raise MemeCapError(f"{file} cannot be read as JSON ({rows}): give memes-test.json as released")
    if not isinstance(rows, list):
        raise MemeCapError(f"{file} holds no list of memes: give memes-test.json as released")
    memes: dict[str, MemeCapMeme] = {}
    broken: list[tuple[int, str]] = []
    for place, row in enumerate(rows, start=1):
        try:
            meme = _memecap_meme(row)
            if meme.post_id in memes:
                raise ValueError(f"post {meme.post_id} occurs twice")
            memes[meme.post_id] = meme
        except ValueError as error:
            broken.append((place, records.reason(error)))
    if broken:
        place, why = broken[0]
        if not memes:
            raise MemeCapError(
                f"{file}, record {place}: {why}, and no other can be read: give it as released"
            )
        print(f"MemeCap: {len(memes)} records read, {len(broken)} left out (record {place}: {why})")
    return list(memes.values())


def _memecap_file(source: Path) -> Path:
    if source.is_file():
        return source
    files = [source / name for name in FILES if (source / name).is_file()]
    others = datasets.files_used("memecap", source) if source.is_dir() and not files else []
    # Of several others the one that lies highest up, then the first by name.
    files += sorted(others, key=lambda path: (len(path.parts), path.name))
    if not files:
        raise MemeCapError(f"no MemeCap at {source}: {MEMECAP_WHERE}")
    return files[0]


def _memecap_meme(row: object) -> MemeCapMeme:
    if not isinstance(row, dict):
        raise ValueError("it is no object")
    captions = row.get("meme_captions") or []
    if not isinstance(captions, list) or not all(isinstance(text, str) for text in captions):
        raise ValueError("meme_captions is no list of texts")
    fields = {
        "post_id": row.get("post_id"),
        "title": row.get("title", ""),
        "image": row.get("img_fname", ""),
        "url": row.get("url", ""),
        "meme_captions": [text for text in captions if text.strip()],
        "image_captions": row.get("img_captions") or [],
    }
    if broken := [name for name, value in fields.items() if records.halves(value)]:
        raise ValueError(f"{broken[0]} holds half a character")
    return MemeCapMeme(**fields)


def references(memes: Sequence[MemeCapMeme]) -> dict[str, list[str]]:
    """Meme captions by id: of the post, and of the image file as a reading may name it."""
    by_post = {meme.post_id: list(meme.meme_captions) for meme in memes}
    return by_post | {Path(meme.image).stem: list(meme.meme_captions) for meme in memes if meme.image}


class Labels(NamedTuple):
    """What a label file says."""

    devices: dict[str, list[str]]
    """Labels by image name, in the order of `FIGMEMES_LABELS`; an empty list where nothing applies."""
    source: str
    """Name of the file, as tables show it: folders of a user's machine are in no table."""


class MacroF1(NamedTuple):
    """Macro-F1 of one set of predictions, counted both ways that the paper's code prints."""

    per_label: float
    """Mean of the six labels' F1; a label without true, predicted or both counts 0."""
    flattened: float
    """All memes x labels in one row of 0 and 1: mean of the F1 of 1 and the F1 of 0."""
    n: int
    """Memes with a prediction and labels."""


def read_split(folder: Path) -> pd.DataFrame:
    """Read the standard split, columns img_name and split, from its file or from a folder above it."""
    base = folder.expanduser()
    base = base.parent if base.is_file() else base
    places = itertools.chain((base / SPLIT, base / "data" / SPLIT), base.rglob(SPLIT))
    file = next((file for file in places if file.is_file()), None)
    if file is None:
        raise FigMemesError(
            f"no {SPLIT} in {base.resolve().name}: set figmemes to the folder data of "
            "UKPLab/emnlp2022-figmemes"
        )
    table = _read_table(file, [NAME, "split"])
    if odd := sorted(set(table["split"]) - set(PARTS)):
        raise FigMemesError(f"{file} has splits {', '.join(map(repr, odd))}; take the file as released")
    if table[NAME].duplicated().any():
        raise FigMemesError(f"{file} has an image that occurs twice; take the file as released")
    return table


def read_labels(source: Path) -> Labels:
    """Read a user's label file: tsv or csv with img_name and six columns of 0 and 1, or the folder of one.

    Raises `FigMemesError` that says what is wrong, and where the labels come from if there is no file.
    """
    file = source.expanduser()
    if file.is_dir():
        file = file / LABELS
    if not file.is_file():
        raise FigMemesError(f"no labels of FigMemes at {file}: {FIGMEMES_WHERE}")
    devices: dict[str, list[str]] = {}
    for number, row in enumerate(_read_table(file, [NAME, *FIGMEMES_LABELS]).to_dict("records"), start=1):
        name, where = row[NAME], f"{file}, record {number}"
        if not name or name in devices:
            fault = f"names {name} again" if name else f"has no {NAME}"
            raise FigMemesError(f"{where} {fault}; take the file as released")
        cells = {label: row[label].strip().lower() for label in FIGMEMES_LABELS}
        if odd := [label for label, cell in cells.items() if cell not in MARKS]:
            raise FigMemesError(f"{where}: {odd[0]} is {cells[odd[0]]!r}, not 0 or 1")
        devices[name] = [label for label, cell in cells.items() if MARKS[cell]]
    if not devices:
        raise FigMemesError(f"{file} holds no labels; take the file as released")
    return Labels(devices, file.name)


def read_texts(*places: Path | None) -> dict[str, str]:
    """Texts on the memes by image name: `TEXTS` beside a file or in a folder of `places`, the first found.

    Empty where there is none: it is given out with the labels. Raises `FigMemesError` for another table.
    """
    for place in (place.expanduser() for place in places if place):
        file = (place.parent if place.is_file() else place) / TEXTS
        if file.is_file():
            # As released, fields are not quoted: a quotation mark is part of the text.
            table = _read_table(file, [NAME, "text"], csv.QUOTE_NONE)
            return dict(zip(table[NAME], table["text"], strict=True))
    return {}


def _read_table(file: Path, columns: Sequence[str], quoting: int = csv.QUOTE_MINIMAL) -> pd.DataFrame:
    separator = {".tsv": "\t", ".csv": ","}.get(file.suffix)
    if separator is None:
        raise FigMemesError(f"{file}: the ending says no format; .tsv or .csv")
    try:
        table = pd.read_csv(
            file, sep=separator, dtype=str, keep_default_na=False, encoding="utf-8", quoting=quoting
        )
    except (OSError, ValueError) as error:
        raise FigMemesError(f"{file} cannot be read as {file.suffix[1:]} ({error})") from error
    if missing := [name for name in columns if name not in table.columns]:
        raise FigMemesError(f"{file}: columns missing: {', '.join(missing)}; take the file as released")
    return table


def macro_f1(predicted: Mapping[str, Sequence[str]], labels: Labels, variant: Variant = "paper") -> MacroF1:
    """Macro-F1 of predicted literary devices by image name, mapped to FigMemes' labels (Table 12).

    A name may come with folder or ending, as readings have them; words that are no device count as nothing.
    `variant`: what antithesis counts as. Raises `FigMemesError` if no predicted meme has labels.
    """
    by_stem = {Path(name).stem: devices for name, devices in labels.devices.items()}
    truth, guess = [], []
    for name, words in predicted.items():
        stem = Path(name).stem if Path(name).stem in by_stem else Path(name).name
        if stem in by_stem:
            mapped = prompts.to_figmemes(prompts.normalise(words).labels, variant)
            truth.append([label in by_stem[stem] for label in FIGMEMES_LABELS])
            guess.append([label in mapped for label in FIGMEMES_LABELS])
    if not truth:
        raise FigMemesError(f"none of {len(predicted)} predicted memes has labels in {labels.source}")
    true, guessed = np.array(truth), np.array(guess)
    ones, zeros = (f1(t.reshape(-1, 1), s.reshape(-1, 1))[0] for t, s in ((true, guessed), (~true, ~guessed)))
    return MacroF1(float(f1(true, guessed).mean()), float((ones + zeros) / 2), len(true))


def f1(true: np.ndarray, guessed: np.ndarray) -> np.ndarray:
    """F1 of each column of two boolean arrays [memes, labels]; 0 where it is not defined."""
    both = (true & guessed).sum(axis=0)
    either = true.sum(axis=0) + guessed.sum(axis=0)
    return np.divide(2 * both, either, out=np.zeros(true.shape[1]), where=either > 0)
