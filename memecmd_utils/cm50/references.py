"""MemeCap (Hwang and Shwartz, 2023): memes with captions that people wrote, the references of Table 10."""

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
from memecmd_utils.core.errors import MemecmdError
from memecmd_utils.core.fetch import datasets
from memecmd_utils.schemas import Text

FILES = ("memes-test.json", "data/memes-test.json", "memes_test_dev.json.gz")
"""Where the captions are below a folder: as released, in a checkout of the source, a sample. Only where none
of these is there, others are looked for, as `datasets` has them."""
MEMECAP_WHERE = (
    "set memecap to the file memes-test.json of eujhwang/meme-cap, or to a folder with one of "
    + ", ".join((*FILES, *itertools.chain(*datasets.SOURCES["memecap"].holds.values())))
)


class MemeCapError(MemecmdError, ValueError):
    """MemeCap could not be read; the message says what to give."""


class Metaphor(BaseModel):
    """A thing in the picture and what it stands for."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    metaphor: str
    meaning: str


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
    metaphors: list[Metaphor] = Field([])


class MemeCap(NamedTuple):
    """MemeCap's test set, and what of it could not be read."""

    memes: list[MemeCapMeme]
    broken: pd.DataFrame
    """A row a record that is left out: `file`, `place` (from 1), `reason`."""

    def text(self) -> str:
        """How many records are read and left out, in one line, with the first reason."""
        said = f"MemeCap: {len(self.memes)} records read, {len(self.broken)} left out"
        first = next(self.broken.itertuples(index=False), None)
        return said if first is None else f"{said} (record {first.place}: {first.reason})"


def read(source: Path | str | None) -> list[MemeCapMeme]:
    """Memes of MemeCap's test set as `read_all` finds them; prints how many are left out, if any are."""
    found = read_all(source)
    if len(found.broken):
        print(found.text())
    return found.memes


def read_all(source: Path | str | None) -> MemeCap:
    """Read MemeCap's test set from a JSON file (also .gz) or from the folder that holds it.

    A record that is not as released is left out with its reason, and so is a post that occurs twice, the
    second time. Raises `MemeCapError` that names the file where there is none, where it is no list, or where
    no record of it can be read.
    """
    if source is None:
        raise MemeCapError(f"no MemeCap is given: {MEMECAP_WHERE}")
    file = _file(Path(source).expanduser())
    rows = records.parsed(file)
    if isinstance(rows, ValueError):
        raise MemeCapError(f"{file} cannot be read as JSON ({rows}): give memes-test.json as released")
    if not isinstance(rows, list):
        raise MemeCapError(f"{file} holds no list of memes: give memes-test.json as released")
    memes: dict[str, MemeCapMeme] = {}
    broken: records.Broken = []
    for place, row in enumerate(rows, start=1):
        try:
            meme = _meme(row)
            if meme.post_id in memes:
                raise ValueError(f"post {meme.post_id} occurs twice")
            memes[meme.post_id] = meme
        except ValueError as error:
            broken.append((file.name, place, records.reason(error)))
    if rows and not memes:
        _, place, why = broken[0]
        raise MemeCapError(f"{file}, record {place}: {why}, and no other can be read: give it as released")
    return MemeCap(list(memes.values()), records.broken_table(broken))


def _file(source: Path) -> Path:
    if source.is_file():
        return source
    found = [source / name for name in FILES if (source / name).is_file()]
    others = datasets.files_used("memecap", source) if source.is_dir() and not found else []
    # Of several others the one that lies highest up, then the first by name.
    found += sorted(others, key=lambda path: (len(path.parts), path.name))
    if not found:
        raise MemeCapError(f"no MemeCap at {source}: {MEMECAP_WHERE}")
    return found[0]


def _meme(row: object) -> MemeCapMeme:
    """A record, checked; `ValueError` says what is wrong with it."""
    if not isinstance(row, dict):
        raise ValueError("it is no object")
    told = {
        "post_id": row.get("post_id"),
        "title": row.get("title", ""),
        "image": row.get("img_fname", ""),
        "url": row.get("url", ""),
        "meme_captions": row.get("meme_captions") or [],
        "image_captions": row.get("img_captions") or [],
        "metaphors": row.get("metaphors") or [],
    }
    if odd := [name for name, value in told.items() if records.halves(value)]:
        raise ValueError(f"{odd[0]} holds half a character")
    captions = told["meme_captions"]
    if not isinstance(captions, list) or not all(isinstance(text, str) for text in captions):
        raise ValueError("meme_captions is no list of texts")
    return MemeCapMeme(**told | {"meme_captions": [text for text in captions if text.strip()]})


def references(memes: Sequence[MemeCapMeme]) -> dict[str, list[str]]:
    """Meme captions by id: of the post, and of the image file as a reading may name it."""
    by_post = {meme.post_id: list(meme.meme_captions) for meme in memes}
    return by_post | {Path(meme.image).stem: list(meme.meme_captions) for meme in memes if meme.image}


# --- FigMemes (Liu et al., 2022): splits, a user's labels and texts, macro-F1 through Table 12 of 2501.13851
# The labels are given out through a form, so nothing of them is here: the reader takes a path of the
# user's and every table names it.


SPLITS: dict[str, str | None] = {"standard": None, "style": "style", "text_cluster": "cluster"}
"""The three tables `KIND_split.tsv` of the source, and the column that each has besides name and split."""
PARTS = ("train", "validation", "test")
NAME = "img_name"
TEXTS = "figmemes_ocrs.tsv"
"""The texts on the memes, as they come with the labels."""
LISTS = ("labels", "literary_devices", "literary device")
"""Where a JSON record may keep its labels as a list."""
SEPARATORS = {".tsv": "\t", ".csv": ","}
FIGMEMES_WHERE = (
    "the labels are given out through the form in the README of UKPLab/emnlp2022-figmemes: set "
    "figmemes_labels to the file figmemes_annotations.tsv that comes with it"
)


class FigMemesError(MemecmdError, ValueError):
    """A table of FigMemes could not be read; the message says what to give."""


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
    with_none: float
    """Per label, with "none of them" as a seventh; not in the paper's code."""
    labels: dict[str, float]
    """F1 of each label, "none" included."""
    n: int
    """Memes with a prediction and labels."""
    left_out: int
    """Predictions of memes that the label file does not have."""
    unknown: int
    """Predicted words that are no literary device; they count as nothing."""


def read_split(
    folder: Path | str, kind: Literal["standard", "style", "text_cluster"] = "standard"
) -> pd.DataFrame:
    """Read a split table: img_name, split, and style or cluster.

    `folder`: the checkout or one above it, its data/, or a table in it.
    """
    if kind not in SPLITS:
        raise FigMemesError(f"split {kind!r} is none of {', '.join(SPLITS)}")
    base = Path(folder).expanduser()
    base = base.parent if base.is_file() else base
    name = f"{kind}_split.tsv"
    places = (place for some in ((base / name, base / "data" / name), base.rglob(name)) for place in some)
    file = next((file for file in places if file.is_file()), None)
    if file is None:
        raise FigMemesError(
            f"no {name} in {base.resolve().name}: set figmemes to the folder data of "
            "UKPLab/emnlp2022-figmemes"
        )
    table = _table(file)
    extra = SPLITS[kind]
    missing = [c for c in (NAME, "split", *([extra] if extra else [])) if c not in table.columns]
    if missing:
        raise FigMemesError(f"{file}: columns missing: {', '.join(missing)}; take the file as released")
    odd = sorted(set(table["split"]) - set(PARTS))
    if odd or table[NAME].duplicated().any():
        fault = f"splits {', '.join(map(repr, odd))}" if odd else "an image that occurs twice"
        raise FigMemesError(f"{file} has {fault}; take the file as released")
    return table


def read_labels(source: Path | str | None) -> Labels:
    """Read a user's label file: tsv or csv with img_name and six columns of 0 and 1, or JSON.

    JSON is a list of records, or an object by image name; a record has the six columns or a list `labels`.
    `source` may be the folder of `figmemes_annotations.tsv`. Raises `FigMemesError` that says what is wrong,
    and where the labels come from if there is no file.
    """
    if source is None:
        raise FigMemesError(f"no labels of FigMemes: {FIGMEMES_WHERE}")
    file = Path(source).expanduser()
    if file.is_dir():
        file = file / "figmemes_annotations.tsv"
    if not file.is_file():
        raise FigMemesError(f"no labels of FigMemes at {file}: {FIGMEMES_WHERE}")
    rows = _json(file) if file.suffix == ".json" else _table(file).to_dict("records")
    found: dict[str, list[str]] = {}
    for number, row in enumerate(rows, start=1):
        name = Path(str(row.get(NAME) or row.get("image") or "")).name
        if not name or name in found:
            fault = f"names {name} again" if name else f"has no {NAME}"
            raise FigMemesError(f"{file}, record {number} {fault}; take the file as released")
        found[name] = _labels(row, f"{file}, record {number}")
    if not found:
        raise FigMemesError(f"{file} holds no labels; take the file as released")
    return Labels(found, file.name)


def read_texts(*places: Path | str | None) -> dict[str, str]:
    """Texts on the memes by image name: `TEXTS` beside a file or in a folder of `places`, the first found.

    Empty where there is none: it is given out with the labels. Raises `FigMemesError` for another table.
    """
    for place in (Path(p).expanduser() for p in places if p):
        file = (place.parent if place.is_file() else place) / TEXTS
        if file.is_file():
            table = _table(file, csv.QUOTE_NONE)
            if missing := [name for name in (NAME, "text") if name not in table.columns]:
                raise FigMemesError(f"{file}: columns missing: {', '.join(missing)}; take it as released")
            return dict(zip(table[NAME], table["text"], strict=True))
    return {}


def _table(file: Path, quoting: int = csv.QUOTE_MINIMAL) -> pd.DataFrame:
    separator = SEPARATORS.get(file.suffix)
    if separator is None:
        raise FigMemesError(f"{file}: the ending says no format; .tsv, .csv or .json")
    try:
        return pd.read_csv(
            file, sep=separator, dtype=str, keep_default_na=False, encoding="utf-8", quoting=quoting
        )
    except (OSError, ValueError) as error:
        raise FigMemesError(f"{file} cannot be read as {file.suffix[1:]} ({error})") from error


def _json(file: Path) -> list[dict]:
    data = records.parsed(file)
    if isinstance(data, ValueError):
        raise FigMemesError(f"{file} cannot be read as JSON ({data})")
    if isinstance(data, dict):
        pairs = data.items()
        data = [{NAME: k, **(v if isinstance(v, dict) else {"labels": v})} for k, v in pairs]
    if not isinstance(data, list) or not all(isinstance(row, dict) for row in data):
        raise FigMemesError(f"{file}: give a list of records, or an object by image name")
    return data


def _labels(row: Mapping, where: str) -> list[str]:
    """Six cells of 0 and 1, or a list of words."""
    given = next((row[name] for name in LISTS if isinstance(row.get(name), list)), None)
    if given is not None:
        try:
            return prompts.to_figmemes(map(str, given))
        except ValueError as error:
            raise FigMemesError(f"{where}: {error}") from error
    missing = [label for label in FIGMEMES_LABELS if label not in row]
    if missing:
        raise FigMemesError(
            f"{where}: columns missing: {', '.join(missing)}; a table has {NAME} and a column of 0 and 1 for "
            "each label, a JSON record may have a list `labels` instead"
        )
    values = {label: str(row[label]).strip().lower() for label in FIGMEMES_LABELS}
    marks = {"1": 1, "1.0": 1, "true": 1, "0": 0, "0.0": 0, "false": 0}
    for label, value in values.items():
        if value not in marks:
            raise FigMemesError(f"{where}: {label} is {value!r}, not 0 or 1")
    return [label for label, value in values.items() if marks[value]]


def macro_f1(predicted: Mapping[str, Sequence[str]], labels: Labels, variant: Variant = "paper") -> MacroF1:
    """Macro-F1 of predicted literary devices by image name, mapped to FigMemes' labels (Table 12).

    A name may come with folder or ending, as readings have them. `variant`: what antithesis counts as.
    Raises `FigMemesError` if no predicted meme has labels.
    """
    by_stem = {Path(name).stem: devices for name, devices in labels.devices.items()}
    truth, guess, left_out, unknown = [], [], 0, 0
    for name, words in predicted.items():
        stem = Path(name).stem if Path(name).stem in by_stem else Path(name).name
        if stem not in by_stem:
            left_out += 1
            continue
        known = prompts.normalise(words)
        unknown += len(known.unknown)
        truth.append(_row(by_stem[stem]))
        guess.append(_row(prompts.to_figmemes(known.labels, variant)))
    if not truth:
        raise FigMemesError(f"none of {len(predicted)} predicted memes has labels in {labels.source}")
    true, said = np.array(truth), np.array(guess)
    single = f1(true, said)
    none = f1(~true.any(axis=1, keepdims=True), ~said.any(axis=1, keepdims=True))
    ones, zeros = (f1(t.reshape(-1, 1), s.reshape(-1, 1))[0] for t, s in ((true, said), (~true, ~said)))
    return MacroF1(
        per_label=float(single.mean()),
        flattened=float((ones + zeros) / 2),
        with_none=float(np.append(single, none).mean()),
        labels=dict(zip((*FIGMEMES_LABELS, "none"), map(float, (*single, *none)), strict=True)),
        n=len(true),
        left_out=left_out,
        unknown=unknown,
    )


def _row(devices: Sequence[str]) -> list[bool]:
    return [label in devices for label in FIGMEMES_LABELS]


def f1(true: np.ndarray, said: np.ndarray) -> np.ndarray:
    """F1 of each column of two boolean arrays [memes, labels]; 0 where it is not defined."""
    both = (true & said).sum(axis=0)
    either = true.sum(axis=0) + said.sum(axis=0)
    return np.divide(2 * both, either, out=np.zeros(true.shape[1]), where=either > 0)
