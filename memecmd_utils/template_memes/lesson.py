"""What notebook 07 teaches with without any data set: a drawn template, made-up records, counts.

Nothing here is a meme of CM50: drawing and records are made up, the counts are facts about its templates.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from PIL import Image, ImageDraw, ImageFont

from memecmd_utils.core import paths

SIDE, MARGIN, LETTERS = 360, 60, 28
"""Pixels of a drawn meme's side, of the strip for a line of text, and of its letters' height."""


class DerivedCounts(NamedTuple):
    """Numbers of CM50's 50 templates, counted with the rule by default; see `data/README.md`."""

    templates: pd.DataFrame
    """A row a template: `records` in ImgFlip575K, `validation` memes among 675, and of 39 templates memes
    `kept`, `last_4_percent` of them, validation memes `in_last_4_percent`, `first_place` of one (share)."""
    votes: pd.DataFrame
    """By `votes`: `records` that pass all else, and `published` ones."""
    edges: pd.DataFrame
    """Of each quantity the `smallest` published value, records `below`, and how many were `expected`."""


def derived_counts() -> DerivedCounts:
    """Read `data/paper/cm50_*.csv`: counts and places, made from the data sets and shipped without them."""
    return DerivedCounts(
        *(pd.read_csv(paths.data / "paper" / f"cm50_{name}.csv") for name in DerivedCounts._fields)
    )


def draw_template(captions: Sequence[tuple[str, str]]) -> Image.Image:
    """Memes side by side that share the picture of a snail; each has a line above it and a line below."""
    sheet = Image.new("RGB", (len(captions) * (SIDE + 16) - 16, SIDE), "#888888")
    pen, font = ImageDraw.Draw(sheet), ImageFont.load_default(LETTERS)
    with Image.open(paths.example / "snail.webp") as snail:
        picture = snail.convert("RGBA")
    for number, lines in enumerate(captions):
        left = number * (SIDE + 16)
        pen.rectangle((left, 0, left + SIDE - 1, SIDE), "#F4E9C8")
        sheet.paste(picture, (left + (SIDE - picture.width) // 2, (SIDE - picture.height) // 2), picture)
        for line, y in zip(lines, (MARGIN // 2, SIDE - MARGIN // 2), strict=True):
            pen.text((left + SIDE // 2, y), line, "#222222", font, anchor="mm")
    return sheet


class MadeUpRecords(NamedTuple):
    """Records of no meme, and the part of them that somebody published."""

    records: pd.DataFrame
    """`votes` and `words` of each record, and whether it was `published`."""
    share: float
    """Of the records that the hidden rule keeps, the expected share that was published."""
    threshold: int
    """The hidden rule: at least that many votes."""


def made_up_records(seed: int, n: int = 200, share: float = 0.3) -> MadeUpRecords:
    """Draw `n` records and publish some of those that pass a threshold of votes, which is drawn, too."""
    rng = np.random.default_rng(seed)
    threshold = int(rng.integers(4, 13))
    records = pd.DataFrame({"votes": rng.geometric(0.1, n) - 1, "words": 2 + rng.poisson(9, n)})
    records["published"] = (records["votes"] >= threshold) & (rng.random(n) < share)
    return MadeUpRecords(records, share, threshold)
