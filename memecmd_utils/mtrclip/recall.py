"""Meme-text retrieval: exact ranks and R@K in both directions (2501.13851, Section 4, Tables 2 to 4).

A query ranks all candidates of the other side by cosine; it hits at K if a right candidate is among the first
K. What is right depends on the counting: the paper's code knows the meme's own text only.
"""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import pandas as pd

from memecmd_utils import statistics
from memecmd_utils.cm50 import pictures
from memecmd_utils.core.encoders.clip import DualEncoder
from memecmd_utils.files import MemecmdError
from memecmd_utils.pictures import ImageRejected, decode, pictures_below
from memecmd_utils.recordings import normalise

Kind = Literal["meme_caption", "image_caption", "embedded_text", "title"]
KINDS: tuple[Kind, ...] = ("meme_caption", "image_caption", "embedded_text", "title")
"""The texts of Tables 3 and 4, in their order."""
COUNTINGS = {
    "pair": "only the meme's own text is right (the paper's diagonal)",
    "same text": "every word-for-word equal text is right, too",
    "template": "any meme of the right template is right",
}
DIRECTIONS = ("T2M", "M2T")
BOTH = "both"
"""The mean of text-to-meme and meme-to-text: what Tables 3 and 4 hold."""
KS = (1, 5, 10)
MEASURES = (*(f"R@{k}" for k in KS), "Mean")
"""`Mean` is that of R@1, R@5 and R@10: the paper's Overall Mean."""
TIE = np.float32(1e-6)
"""Cosines that differ by no more are equal: what float32 and the order of batches make of equal vectors."""
MOST_BYTES = 64 << 20
"""Memory of one block of scores. It is exceeded only where a single row needs more."""
BYTES_PER_SCORE = 4
RECALLS = ("model", "text", "counting", "direction", "measure", "value", "low", "high", "n", "clusters")
DIFFERENCES = (
    "text", "counting", "direction", "measure", "base", "tuned", "difference", "low", "high", "p", "n",
    "clusters",
)  # fmt: skip
Key = tuple[str, str]
"""Counting and direction."""


class DataMissing(MemecmdError, RuntimeError):
    """Data that cannot be had here. The message is one sentence that a table can print in its place."""


class RetrievalItem(NamedTuple):
    """A meme, its picture's file, and its texts by kind; a kind may have several texts or none."""

    meme_id: str
    image: Path
    template: str
    """Empty where it is not known: then the meme counts as a template of its own."""
    texts: Mapping[str, Sequence[str]]

    def text(self, kind: str) -> str:
        """The first text of a kind that is not blank, as the paper's code takes it; else empty."""
        return next(filter(str.strip, self.texts.get(kind, ())), "")


@dataclass(frozen=True)
class Gallery:
    """Memes that have a text of one kind, and these texts: text i belongs to image i."""

    kind: str
    images: tuple[Path, ...]
    templates: tuple[str, ...]
    texts: tuple[str, ...]
    left_out: int = 0
    """Memes without a text of this kind."""

    @cached_property
    def clusters(self) -> tuple[tuple[str, int], ...]:
        """Each meme's template, what intervals are over; a meme without one is a template of its own."""
        return tuple((name, -1) if name else ("", i) for i, name in enumerate(self.templates))

    def right(self, counting: str) -> list[np.ndarray]:
        """For each query the positions of its right candidates; equal texts may differ in blanks."""
        keys = {
            "pair": range(len(self.images)),
            "same text": [" ".join(text.split()) for text in self.texts],
            "template": self.clusters,
        }[counting]
        positions: dict[object, list[int]] = {}
        for position, key in enumerate(keys):
            positions.setdefault(key, []).append(position)
        arrays = {key: np.array(rows, dtype=np.intp) for key, rows in positions.items()}
        return [arrays[key] for key in keys]


def gallery(items: Sequence[RetrievalItem], kind: str) -> Gallery:
    """Take one kind of text, the first of each item; items whose texts are blank are left out."""
    chosen = [(item, text) for item in items if (text := item.text(kind))]
    return Gallery(
        kind,
        images=tuple(item.image for item, _ in chosen),
        templates=tuple(item.template for item, _ in chosen),
        texts=tuple(text for _, text in chosen),
        left_out=len(items) - len(chosen),
    )


def files_below(folder: Path) -> dict[str, Path]:
    """Pictures below a folder by base name and by name without suffix.

    Raises `DataMissing`, naming the key of the profile, where there is no folder or no picture in it. Of two
    pictures of one name in several folders the first by path counts.
    """
    if not folder.is_dir():
        raise DataMissing("there is no folder of pictures: give mtrclip.images=DIR")
    names = {path.name: path for path in reversed(pictures_below(folder))}
    if not names:
        raise DataMissing(f"{folder} holds no picture: give mtrclip.images=DIR")
    return pictures.files_in(folder) | names


def readable(items: Sequence[RetrievalItem]) -> list[RetrievalItem]:
    """Items whose pictures can be decoded; says how many are left out, and why the first one is.

    A picture that is not there is passed on: whether to want one is settled where items are made. Raises
    `DataMissing` where none can be decoded. Pictures are decoded side by side, and none is kept.
    """
    with ThreadPoolExecutor() as pool:
        faults = list(pool.map(_picture_fault, (item.image for item in items)))
    bad = [(item.image.name, fault) for item, fault in zip(items, faults, strict=True) if fault]
    if bad:
        first = f"the first: {bad[0][0]}: {bad[0][1]}"
        if len(bad) == len(items):
            raise DataMissing(f"none of {len(items)} pictures can be read; {first}")
        print(f"{len(bad)} of {len(items)} memes left out, their pictures cannot be read; {first}")
    return [item for item, fault in zip(items, faults, strict=True) if not fault]


def _picture_fault(file: Path) -> str:
    try:
        if file.exists():
            decode(file)
    except ImageRejected as error:
        return str(error)
    return ""


@dataclass(frozen=True)
class Ranks:
    """Of every query: how many wrong candidates stand before and beside the best right one."""

    above: np.ndarray
    """Wrong candidates with a higher cosine, [queries]."""
    level: np.ndarray
    """Wrong candidates with the same cosine."""
    right: np.ndarray
    """Right candidates with this cosine, at least 1."""

    def hits(self, k: int) -> np.ndarray:
        """The probability that each query hits at `k`, where equal candidates come in random order.

        So a model that gives all candidates the same vector scores k/N.
        """
        room = np.clip(k - self.above, 0, None)
        missed = np.ones(len(self.above))
        for place in range(k):  # no right candidate at this place, none having come before
            wrong = np.clip(self.level - place, 0, None)
            missed *= np.where(place < room, wrong / np.maximum(1, wrong + self.right), 1.0)
        return 1.0 - missed


def rank_all(texts: np.ndarray, images: np.ndarray, pairs: Gallery) -> dict[Key, Ranks]:
    """Rank every text's memes and every meme's texts, in all countings: exact, however many there are.

    `texts` and `images` [memes, dim] need no unit length. The matrix of scores is made in blocks of rows of
    `MOST_BYTES`, so 33,000 x 33,000 needs 64 MB beside the vectors, not 4.4 GB. Counting by template is left
    out where no template is known. Raises `ValueError` for vectors that are not finite.
    """
    for name, rows in (("texts", texts), ("images", images)):
        if len(rows) != len(pairs.images) or not np.isfinite(rows).all():
            raise ValueError(f"{len(rows)} rows for {len(pairs.images)} {name}, or not all finite")
    countings = [name for name in COUNTINGS if name != "template" or any(pairs.templates)]
    right = {name: pairs.right(name) for name in countings}
    texts, images = (normalise(np.asarray(rows, dtype=np.float32)) for rows in (texts, images))
    ranks = {}
    for direction, queries, candidates in (("T2M", texts, images), ("M2T", images, texts)):
        counted = {name: np.zeros((3, len(queries)), dtype=np.int64) for name in countings}
        for start, block in _score_blocks(queries, candidates):
            for name in countings:
                for row, scores in enumerate(block, start):  # a row at a time stays in the cache
                    counted[name][:, row] = _count(scores, right[name][row])
        ranks |= {(name, direction): Ranks(*counted[name]) for name in countings}
    return ranks


def _score_blocks(queries: np.ndarray, candidates: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Scores [rows, candidates] of some queries at a time, with the number of the first."""
    step = max(1, MOST_BYTES // (BYTES_PER_SCORE * max(1, len(candidates))))
    scores = np.empty((min(step, len(queries)), len(candidates)), dtype=np.float32)
    for start in range(0, len(queries), step):
        part = queries[start : start + step]
        yield start, np.matmul(part, candidates.T, out=scores[: len(part)])


def _count(scores: np.ndarray, right: np.ndarray) -> tuple[int, int, int]:
    """`above`, `level` and `right` of `Ranks` for one query."""
    of_right = scores[right]
    best = of_right.max()
    beside = np.count_nonzero(of_right >= best - TIE)
    above = np.count_nonzero(scores > best + TIE)
    return above, np.count_nonzero(scores >= best - TIE) - above - beside, beside


class Ranking(NamedTuple):
    """All ranks of one kind of text under one encoder."""

    gallery: Gallery
    ranks: Mapping[Key, Ranks]
    dim: int
    """Length of the encoder's vectors."""

    def hits(self) -> dict[Key, np.ndarray]:
        """Hits of every query at each K, and their mean: [queries, 4]."""
        hits = {key: np.stack([ranks.hits(k) for k in KS], axis=1) for key, ranks in self.ranks.items()}
        return {key: np.column_stack([rows, rows.mean(axis=1)]) for key, rows in hits.items()}


def evaluate(encoder: DualEncoder, items: Sequence[RetrievalItem]) -> dict[str, Ranking]:
    """Rank the memes and texts of every kind that any item has. Raises `DataMissing` where none has any."""
    galleries = {kind: pairs for kind in KINDS if (pairs := gallery(items, kind)).texts}
    if not galleries:
        raise DataMissing(f"none of the {len(items)} memes has a text of {', '.join(KINDS)}")
    files = list(dict.fromkeys(file for pairs in galleries.values() for file in pairs.images))
    rows = encoder.encode_images(files)
    place = {file: i for i, file in enumerate(files)}
    rankings = {}
    for kind, pairs in galleries.items():
        images = rows[[place[file] for file in pairs.images]]
        ranks = rank_all(encoder.encode_texts(pairs.texts), images, pairs)
        rankings[kind] = Ranking(pairs, ranks, rows.shape[1])
    return rankings


def recalls(rankings: Mapping[str, Ranking], model: str) -> pd.DataFrame:
    """R@K with 95 % intervals over templates: a row a kind of text, counting, direction and measure.

    `n` counts memes, `clusters` templates. Columns are `RECALLS`.
    """
    rows = []
    for kind, ranking in rankings.items():
        n = len(ranking.gallery.images)
        for key, mean in _means(ranking.gallery, ranking.hits()).items():
            columns = zip(MEASURES, mean.value, *statistics.interval(mean, statistics.SHARE), strict=True)
            rows += [(model, kind, *key, *cells, n, mean.clusters[0]) for cells in columns]
    return pd.DataFrame(rows, columns=list(RECALLS))


def differences(tuned: Mapping[str, Ranking], base: Mapping[str, Ranking], seed: int) -> pd.DataFrame:
    """R@K of `tuned` minus that of `base`, paired by query: columns `DIFFERENCES`; `seed` is for p.

    Raises `ValueError` where the two did not rank the same memes and texts.
    """
    rows = []
    for kind in (name for name in tuned if name in base):
        pairs = tuned[kind].gallery
        if pairs != base[kind].gallery:
            raise ValueError(f"{kind}: the two models did not rank the same memes and texts")
        after, before = tuned[kind].hits(), base[kind].hits()
        old, new = _means(pairs, before), _means(pairs, after)
        for key, gap in _means(pairs, {key: after[key] - before[key] for key in after}).items():
            p = statistics.sign_flip_p(gap, 0.0, statistics.rng(seed, "meme-text retrieval", kind, *key))
            columns = old[key].value, new[key].value, gap.value, *statistics.interval(gap), p
            sizes = len(pairs.images), gap.clusters[0]
            rows += [(kind, *key, *cells, *sizes) for cells in zip(MEASURES, *columns, strict=True)]
    return pd.DataFrame(rows, columns=list(DIFFERENCES))


def _means(pairs: Gallery, values: Mapping[Key, np.ndarray]) -> dict[Key, statistics.LeftOut]:
    """Means of the columns, by counting and direction, and the mean of both directions."""
    names = list(dict.fromkeys(pairs.clusters))
    means = {}
    for counting in (name for name in COUNTINGS if (name, "T2M") in values):
        for direction in DIRECTIONS:
            means[counting, direction] = statistics.mean(values[counting, direction], pairs.clusters, names)
        both = zip(means[counting, "T2M"], means[counting, "M2T"], strict=True)
        means[counting, BOTH] = statistics.LeftOut(*((one + other) / 2 for one, other in both))
    return means
