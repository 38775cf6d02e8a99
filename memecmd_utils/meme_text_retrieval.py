"""Meme-text retrieval: R@1, R@5 and R@10 in both directions (2501.13851, Section 4, Tables 2 to 4).

A query ranks all candidates of the other side by cosine; it hits at K if a right candidate is among the
first K. With one right candidate that is recall, with several it is success at K.
"""

from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import pandas as pd

from memecmd_utils import seeds, statistics
from memecmd_utils.cross_ranks import COUNTINGS, Key, Ranks, Ties, rank_all
from memecmd_utils.retrieval_items import KINDS, Captions, DataMissing, Gallery, RetrievalItem, gallery

KS = (1, 5, 10)
MEASURES = (*(f"R@{k}" for k in KS), "Mean")
"""`Mean` is that of R@1, R@5 and R@10: the paper's Overall Mean."""
DIRECTIONS = ("T2M", "M2T")
BOTH = "both"
"""The mean of text-to-meme and meme-to-text: what Tables 3 and 4 hold."""
RECALLS = ("model", "text", "counting", "direction", "measure", "value", "low", "high", "n", "clusters")
DIFFERENCES = (
    "text", "counting", "direction", "measure", "base", "tuned", "difference", "low", "high", "p", "n",
    "clusters",
)  # fmt: skip


class Encoder(Protocol):
    """What encodes pictures and texts into one space, for example `clip_models.DualEncoder`."""

    def encode_images(self, files: Sequence[Path]) -> np.ndarray:
        """Rows for image files, [n, dim]."""
        ...

    def encode_texts(self, texts: Sequence[str]) -> np.ndarray:
        """Rows for texts, [n, dim]."""
        ...


class Ranking(NamedTuple):
    """All ranks of one kind of text under one encoder."""

    gallery: Gallery
    ranks: Mapping[Key, Ranks]
    dim: int
    """Length of the encoder's vectors."""


def evaluate(
    encoder: Encoder,
    items: Sequence[RetrievalItem],
    kinds: Sequence[str] = KINDS,
    captions: Captions = "first",
) -> dict[str, Ranking]:
    """Rank the memes and texts of every kind that any item has. Raises `DataMissing` where none has any.

    A model is told by its vectors alone, so replaying recorded ones gives the same numbers.
    """
    found = {kind: gallery(items, kind, captions) for kind in kinds}
    found = {kind: pairs for kind, pairs in found.items() if pairs.texts}
    if not found:
        raise DataMissing(f"none of the {len(items)} memes has a text of {', '.join(kinds)}")
    files = list(dict.fromkeys(file for pairs in found.values() for file in pairs.images))
    rows = encoder.encode_images(files)
    place = {file: i for i, file in enumerate(files)}
    out = {}
    for kind, pairs in found.items():
        images = rows[[place[file] for file in pairs.images]]
        out[kind] = Ranking(pairs, rank_all(encoder.encode_texts(pairs.texts), images, pairs), rows.shape[1])
    return out


def recalls(rankings: Mapping[str, Ranking], model: str, ties: Ties = "expected") -> pd.DataFrame:
    """R@K with 95 % intervals over templates: a row a kind of text, counting, direction and measure.

    `n` counts memes, `clusters` templates. Columns are `RECALLS`.
    """
    out = []
    for kind, ranking in rankings.items():
        n = len(ranking.gallery.images)
        for key, found in _means(ranking.gallery, _values(ranking, ties)).items():
            of = zip(MEASURES, found.value, *statistics.interval(found, statistics.SHARE), strict=True)
            out += [(model, kind, *key, *row, n, found.clusters[0]) for row in of]
    return pd.DataFrame(out, columns=list(RECALLS))


def differences(
    tuned: Mapping[str, Ranking],
    base: Mapping[str, Ranking],
    seed: int,
    ties: Ties = "expected",
) -> pd.DataFrame:
    """R@K of `tuned` minus that of `base`, paired by query: columns `DIFFERENCES`; `seed` is for p.

    Raises `ValueError` where the two did not rank the same memes and texts.
    """
    out = []
    for kind in (name for name in tuned if name in base):
        pairs, others = tuned[kind].gallery, base[kind].gallery
        if (pairs.images, pairs.texts, pairs.templates) != (others.images, others.texts, others.templates):
            raise ValueError(f"{kind}: the two models did not rank the same memes and texts")
        after, before = _values(tuned[kind], ties), _values(base[kind], ties)
        gaps = {key: after[key] - before[key] for key in after}
        old, new = _means(pairs, before), _means(pairs, after)
        for key, found in _means(pairs, gaps).items():
            p = statistics.sign_flip_p(found, 0.0, seeds.rng(seed, "meme-text retrieval", kind, *key))
            columns = old[key].value, new[key].value, found.value, *statistics.interval(found), p
            sizes = len(pairs.images), found.clusters[0]
            out += [(kind, *key, *row, *sizes) for row in zip(MEASURES, *columns, strict=True)]
    return pd.DataFrame(out, columns=list(DIFFERENCES))


def _values(ranking: Ranking, ties: Ties) -> dict[Key, np.ndarray]:
    """Hits of every query at each K, and their mean: [queries, 4]."""
    out = {}
    for key, ranks in ranking.ranks.items():
        hits = np.stack([ranks.hits(k, ties) for k in KS], axis=1)
        out[key] = np.column_stack([hits, hits.mean(axis=1)])
    return out


def _means(pairs: Gallery, values: Mapping[Key, np.ndarray]) -> dict[Key, statistics.LeftOut]:
    """Means of the columns, by counting and direction, and the mean of both directions."""
    of = {"T2M": [pairs.clusters[i] for i in pairs.owner], "M2T": list(pairs.clusters)}
    names = list(dict.fromkeys(pairs.clusters))
    means = {}
    for key, rows in values.items():
        means[key] = statistics.mean(rows, of[key[1]], names)
    for counting in dict.fromkeys(name for name, _ in values):
        both = zip(means[counting, "T2M"], means[counting, "M2T"], strict=True)
        means[counting, BOTH] = statistics.LeftOut(*((one + other) / 2 for one, other in both))
    order = sorted(means, key=lambda key: (list(COUNTINGS).index(key[0]), (*DIRECTIONS, BOTH).index(key[1])))
    return {key: means[key] for key in order}


def by_both(frame: pd.DataFrame, counting: str = "pair") -> pd.DataFrame:
    """R@K of both directions together, a row a model and text, a column a measure: for a quick look."""
    kept = frame[(frame["direction"] == BOTH) & (frame["counting"] == counting)]
    table = kept.pivot(index=["model", "text"], columns="measure", values="value")[list(MEASURES)]
    order = [key for key in product(dict.fromkeys(kept["model"]), KINDS) if key in table.index]
    return table.loc[order].rename_axis(columns=None).reset_index()
