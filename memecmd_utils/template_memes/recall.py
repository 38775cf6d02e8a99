"""Meme-text retrieval: exact ranks in both directions (2501.13851, Section 4), and what is ranked.

A query ranks all candidates of the other side by cosine; it hits at K if a right candidate is among the first
K. What is right depends on the counting: the paper's code knows the meme's own text only. R@K with intervals
and Tables 2 to 4 stand in appendix 08b.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from memecmd_utils import fetch
from memecmd_utils.llm.recordings import normalise
from memecmd_utils.runs import Run
from memecmd_utils.schemas import MemeReading, Split, TemplateMeme
from memecmd_utils.template_memes import data_sets
from memecmd_utils.template_memes.data_sets import DataSetError

TEXT_KINDS = ("meme_caption", "image_caption", "embedded_text", "title")
"""The texts of Tables 3 and 4, in their order."""
TIE = 1e-6
"""Cosines that differ by no more are equal: what float32 and the order of batches make of equal vectors."""
Key = tuple[str, str]  # counting and direction


class RetrievalItem(NamedTuple):
    """A meme, its picture's file, its template (empty: unknown), and its texts by kind, where it has them."""

    meme_id: str
    image: Path
    template: str
    texts: Mapping[str, str]


class Ranks(NamedTuple):
    """Of every query [queries]: wrong candidates `above` its best right one, all that are `level` with that,
    and the `right` ones among these."""

    above: np.ndarray
    level: np.ndarray
    right: np.ndarray

    def hits(self, k: int) -> np.ndarray:
        """The probability that each query hits at `k`, where equal candidates come in random order.

        So a model that gives all candidates the same vector scores k/N.
        """
        from scipy.special import comb

        places = np.clip(k - self.above, 0, self.level)
        return 1 - comb(self.level - self.right, places) / comb(self.level, places)


def rank_all(texts: np.ndarray, images: np.ndarray, templates: Sequence[str]) -> dict[Key, Ranks]:
    """Rank every text's memes and every meme's texts by counting and direction.

    `texts` and `images` [memes, dim] need no unit length, but finite numbers; text i belongs to image i.
    Countings: `pair`: the meme's own text alone is right (the paper's diagonal); `template`: any meme of the
    template, left out where no template is known.
    """
    if not np.isfinite(texts).all() or not np.isfinite(images).all():
        raise ValueError("a vector is not finite: the model's weights are broken")
    texts, images = (normalise(np.asarray(rows, dtype=float)) for rows in (texts, images))
    countings, ranks = {"pair": np.arange(len(texts))}, {}
    if any(templates):
        named = [name or f"\0{number}" for number, name in enumerate(templates)]
        countings["template"] = np.unique(named, return_inverse=True)[1]
    scores = texts @ images.T
    for counting, labels in countings.items():
        is_right = labels[:, None] == labels
        for direction, rows in (("T2M", scores), ("M2T", scores.T)):
            best = np.where(is_right, rows, -np.inf).max(axis=1, keepdims=True)
            level = np.abs(rows - best) <= TIE
            above = (rows > best + TIE) & ~is_right
            ranks[counting, direction] = Ranks(*(m.sum(axis=1) for m in (above, level, level & is_right)))
    return ranks


def cm50_items(run: Run, split: Split = "validation") -> list[RetrievalItem]:
    """Memes of notebook 07b with a reading and a picture, of one part of the split.

    The embedded text is what the record of Imgflip says, as in the paper's code (`ocr`).
    """
    memes = {meme.meme_id: meme for meme in run.load(TemplateMeme) if meme.split == split}
    rows = []
    for reading in run.load(MemeReading):
        if meme := memes.get(reading.meme_id):
            texts = (reading.meme_caption, reading.image_caption, meme.text, meme.title)
            by_kind = dict(zip(TEXT_KINDS, texts, strict=True))
            rows.append((meme.meme_id, meme.meme_id, meme.template, by_kind))
    return _pictured(run, rows, "the annotated template memes")


def memecap_items(run: Run) -> list[RetrievalItem]:
    """Memes of MemeCap's test set with a picture."""
    source = fetch.locate(run.profile, fetch=False)["memecap"]
    if source.path is None:
        raise DataSetError(f"{source.source.title} is not here ({source.state})")
    rows = []
    for meme in data_sets.read_memecap(source.path):
        kinds = {"meme_caption": meme.meme_captions, "image_caption": meme.image_captions}
        first = {kind: next(filter(str.strip, texts), "") for kind, texts in kinds.items()}
        rows.append((meme.name, Path(meme.image).stem, "", first | {"title": meme.title}))
    return _pictured(run, rows, "the memes of MemeCap")


def _pictured(run: Run, rows: Iterable[tuple], what: str) -> list[RetrievalItem]:
    """Items whose pictures are here and can be read, with their texts that are not blank."""
    there, items = data_sets.pictures_below(data_sets.picture_folder(run.profile)), []
    for meme_id, file, template, texts in rows:
        if file in there and data_sets.is_readable(there[file]):
            by_kind = {kind: text for kind, text in texts.items() if text.strip()}
            items.append(RetrievalItem(meme_id, there[file], template, by_kind))
    if not items:
        raise DataSetError(f"none of {what} has a picture here (mtrclip.images=DIR, or mtrclip.fetch=N)")
    return items
