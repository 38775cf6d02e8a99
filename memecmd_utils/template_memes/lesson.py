"""What notebook 07 teaches with without any data set: a drawn template, made-up records, counts.

Nothing here is a meme of CM50: drawing and records are made up, the counts are facts about its templates.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from PIL import Image

from memecmd_utils import drawing
from memecmd_utils.files import paths


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
    """Memes side by side that share `data/example/template.webp`, each with a line above and one below."""
    with Image.open(paths.example / "template.webp") as opened:
        template = opened.convert("RGB")
    gap = 16
    sheet = Image.new("RGB", (len(captions) * (template.width + gap) - gap, template.height), "#888888")
    for number, lines in enumerate(captions):
        one = template.copy()
        for line, middle in zip(lines, (39, one.height - 39), strict=True):
            size = next((s for s in range(34, 9, -1) if drawing.text_width(line, s) <= one.width - 24), 9)
            left = (one.width - drawing.text_width(line, size)) // 2
            where = (left, middle + round(0.36 * size))
            drawing.write_line(one, where, line, size, (255, 255, 255), bold=True)
        sheet.paste(one, (number * (template.width + gap), 0))
    return sheet


class MadeUpRecords(NamedTuple):
    """Records of no meme with `votes`, `words` and whether each was `published`, the expected share of what
    the hidden rule keeps that was, and the hidden rule: at least `threshold` votes."""

    records: pd.DataFrame
    share: float
    threshold: int


def made_up_records(seed: int, n: int = 200, share: float = 0.3) -> MadeUpRecords:
    """Draw `n` records and publish some of those that pass a threshold of votes, which is drawn, too."""
    rng = np.random.default_rng(seed)
    threshold = int(rng.integers(4, 13))
    records = pd.DataFrame({"votes": rng.geometric(0.1, n) - 1, "words": 2 + rng.poisson(9, n)})
    records["published"] = (records["votes"] >= threshold) & (rng.random(n) < share)
    return MadeUpRecords(records, share, threshold)
