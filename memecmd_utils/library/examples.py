"""The example memes: the table `data/example/memes.csv` and their pictures in `data/example/memes`.

Their emojis are OpenMoji's; the captions were authored for this package. Columns of the table that say how a
picture was drawn (`pictures`, `layout`) are its history: nothing reads them.
"""

import csv
from dataclasses import dataclass
from pathlib import Path

from memecmd_utils.files import paths
from memecmd_utils.pictures import LibraryError

LICENCE = "CC BY-SA 4.0 (OpenMoji)"


@dataclass(frozen=True)
class ExampleMeme:
    """One row of the table and its picture."""

    meme_id: str
    text: str
    """All visible text, top to bottom."""
    picture_note: str
    gloss: str
    """The text's English."""
    path: Path


def example_memes(folder: Path | None = None) -> list[ExampleMeme]:
    """Read `memes.csv` of a folder (default: `data/example`); the pictures lie in its folder `memes`.

    Raises `LibraryError` where the table is missing or lacks a column.
    """
    folder = folder or paths.example
    table = folder / "memes.csv"
    try:
        with table.open(encoding="utf-8-sig", newline="") as handle:
            return [
                ExampleMeme(
                    row["meme_id"],
                    f"{row['caption_top']} {row['caption']}".strip(),
                    row["picture_note"],
                    row["gloss"],
                    folder / "memes" / f"{row['meme_id']}.webp",
                )
                for row in csv.DictReader(handle)
            ]
    except FileNotFoundError as error:
        raise LibraryError(f"the table of example memes is missing: {table}") from error
    except KeyError as error:
        raise LibraryError(f"{table} has no column {error}: take the file from the repository") from error
