"""MemeCap (Hwang and Shwartz, 2023): memes with captions that people wrote, the references of Table 10."""

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pandas as pd
from pydantic import BaseModel, ConfigDict, Field

from memecmd_utils import datasets, template_rows
from memecmd_utils.errors import MemecmdError
from memecmd_utils.schemas import Text

FILES = ("memes-test.json", "data/memes-test.json", "memes_test_dev.json.gz")
"""Where the captions are below a folder: as released, in a checkout of the source, a sample. Only where none
of these is there, others are looked for, as `datasets` has them."""
WHERE = (
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
        raise MemeCapError(f"no MemeCap is given: {WHERE}")
    file = _file(Path(source).expanduser())
    rows = template_rows.parsed(file)
    if isinstance(rows, ValueError):
        raise MemeCapError(f"{file} cannot be read as JSON ({rows}): give memes-test.json as released")
    if not isinstance(rows, list):
        raise MemeCapError(f"{file} holds no list of memes: give memes-test.json as released")
    memes: dict[str, MemeCapMeme] = {}
    broken: template_rows.Broken = []
    for place, row in enumerate(rows, start=1):
        try:
            meme = _meme(row)
            if meme.post_id in memes:
                raise ValueError(f"post {meme.post_id} occurs twice")
            memes[meme.post_id] = meme
        except ValueError as error:
            broken.append((file.name, place, template_rows.reason(error)))
    if rows and not memes:
        _, place, why = broken[0]
        raise MemeCapError(f"{file}, record {place}: {why}, and no other can be read: give it as released")
    return MemeCap(list(memes.values()), template_rows.broken_table(broken))


def _file(source: Path) -> Path:
    if source.is_file():
        return source
    found = [source / name for name in FILES if (source / name).is_file()]
    others = datasets.read_of("memecap", source) if source.is_dir() and not found else []
    # Of several others the one that lies highest up, then the first by name.
    found += sorted(others, key=lambda path: (len(path.parts), path.name))
    if not found:
        raise MemeCapError(f"no MemeCap at {source}: {WHERE}")
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
    if odd := [name for name, value in told.items() if template_rows.halves(value)]:
        raise ValueError(f"{odd[0]} holds half a character")
    captions = told["meme_captions"]
    if not isinstance(captions, list) or not all(isinstance(text, str) for text in captions):
        raise ValueError("meme_captions is no list of texts")
    return MemeCapMeme(**told | {"meme_captions": [text for text in captions if text.strip()]})


def references(memes: Sequence[MemeCapMeme]) -> dict[str, list[str]]:
    """Meme captions by id: of the post, and of the image file as a reading may name it."""
    by_post = {meme.post_id: list(meme.meme_captions) for meme in memes}
    return by_post | {Path(meme.image).stem: list(meme.meme_captions) for meme in memes if meme.image}
