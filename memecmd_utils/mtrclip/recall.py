"""What meme-text retrieval is measured on: memes with picture, template and four kinds of text."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

import numpy as np
import pandas as pd

from memecmd_utils.cm50 import pictures
from memecmd_utils.cm50.references import MemeCapMeme
from memecmd_utils.core import images as core_images
from memecmd_utils.core import seeds, statistics
from memecmd_utils.core.errors import MemecmdError
from memecmd_utils.core.recordings.vectors import normalise
from memecmd_utils.schemas import MemeReading, TemplateMeme

Kind = Literal["meme_caption", "image_caption", "embedded_text", "title"]
KINDS: tuple[Kind, ...] = ("meme_caption", "image_caption", "embedded_text", "title")
"""The texts of Tables 3 and 4, in their order."""
Captions = Literal["first", "merge", "extend"]


class DataMissing(MemecmdError, RuntimeError):
    """Data that cannot be had here. The message is one sentence that a table can print in its place."""


class RetrievalItem(NamedTuple):
    """A meme, its picture's file, and its texts by kind; a kind may have several texts or none."""

    meme_id: str
    image: Path
    template: str
    """Empty where it is not known: then the meme counts as a template of its own."""
    texts: Mapping[str, Sequence[str]]


@dataclass(frozen=True)
class Gallery:
    """Memes that have a text of one kind, and these texts."""

    kind: str
    images: tuple[Path, ...]
    templates: tuple[str, ...]
    """Of each meme."""
    texts: tuple[str, ...]
    """In the order of the memes that they belong to."""
    owner: np.ndarray
    """Position of each text's meme, ascending, [texts]."""
    left_out: int = 0
    """Memes without a text of this kind."""
    keys: tuple[str, ...] = field(init=False, repr=False)
    """Texts as they are compared: equal but for blanks means the same text."""
    clusters: tuple[tuple[str, int], ...] = field(init=False, repr=False)
    """Each meme's template, what intervals are over; a meme without one is a template of its own."""

    def __post_init__(self) -> None:
        if len(self.owner) and (np.any(np.diff(self.owner) < 0) or len(set(self.owner)) != len(self.images)):
            raise ValueError("texts must stand in the order of their memes, and every meme must have one")
        object.__setattr__(self, "keys", tuple(" ".join(text.split()) for text in self.texts))
        names = tuple((name, -1) if name else ("", i) for i, name in enumerate(self.templates))
        object.__setattr__(self, "clusters", names)


def gallery(items: Sequence[RetrievalItem], kind: str, captions: Captions = "first") -> Gallery:
    """Take one kind of text of all items; blank texts do not count.

    `captions` says what becomes of several texts of a meme: the first, all joined by a blank, or each for
    itself (`caption_preprocess` of the paper's code, which shows the picture again for every text; here it
    stands once, and any of its texts is right for it).
    """
    if captions not in ("first", "merge", "extend"):
        raise ValueError(f"captions {captions!r} is none of first, merge, extend")
    images, templates, texts, owner = [], [], [], []
    for item in items:
        mine = [text for text in item.texts.get(kind, ()) if text.strip()]
        if not mine:
            continue
        chosen = {"first": mine[:1], "merge": [" ".join(mine)], "extend": mine}[captions]
        owner += [len(images)] * len(chosen)
        texts += chosen
        images.append(item.image)
        templates.append(item.template)
    positions = np.array(owner, dtype=np.intp)
    return Gallery(kind, tuple(images), tuple(templates), tuple(texts), positions, len(items) - len(images))


def files_below(folder: Path) -> dict[str, Path]:
    """Pictures below a folder by base name and by name without suffix.

    Raises `DataMissing`, naming the key of the profile, where there is no folder or no picture in it. Of two
    pictures of one name in several folders the first by path counts.
    """
    if not folder.is_dir():
        raise DataMissing("there is no folder of pictures: give mtrclip.images=DIR")
    names = {path.name: path for path in reversed(core_images.pictures_below(folder))}
    if not names:
        raise DataMissing(f"{folder} holds no picture: give mtrclip.images=DIR")
    return pictures.files_in(folder) | names


def readable(items: Sequence[RetrievalItem]) -> list[RetrievalItem]:
    """Items whose pictures can be decoded; says how many are left out, and why the first one is.

    A picture that is not there is passed on: whether to want one is settled where items are made. Raises
    `DataMissing` where none can be decoded. Pictures are decoded side by side, and none is kept.
    """
    with ThreadPoolExecutor() as pool:
        faults = list(pool.map(_fault, (item.image for item in items)))
    bad = [(item.image.name, fault) for item, fault in zip(items, faults, strict=True) if fault]
    if bad:
        what = f"{len(bad)} of {len(items)} memes left out, their pictures cannot be read"
        print(f"{what}; the first: {bad[0][0]}: {bad[0][1]}")
    if len(bad) == len(items) > 0:
        raise DataMissing(f"none of {len(items)} pictures can be read; the first: {bad[0][0]}: {bad[0][1]}")
    return [item for item, fault in zip(items, faults, strict=True) if not fault]


def _fault(file: Path) -> str:
    try:
        if file.exists():
            core_images.decode(file)
    except core_images.ImageRejected as error:
        return str(error)
    return ""


def of_readings(
    memes: Iterable[TemplateMeme],
    readings: Iterable[MemeReading],
    files: Mapping[str, Path],
    embedded: Literal["record", "reading"] = "record",
) -> list[RetrievalItem]:
    """Items of annotated template memes; a meme without a picture in `files` (by meme id) is left out.

    `embedded` chooses the embedded text: what the record of Imgflip says, as the paper's code does (`ocr`),
    or what the annotator read ("detected text"). Titles and records come from `memes`, so a reading of a meme
    that is not among them is left out, too.
    """
    of = {meme.meme_id: meme for meme in memes}
    items = []
    for reading in readings:
        meme = of.get(reading.meme_id)
        if meme is None or reading.meme_id not in files:
            continue
        texts = {
            "meme_caption": [reading.meme_caption],
            "image_caption": [reading.image_caption],
            "embedded_text": [meme.text if embedded == "record" else reading.embedded_text],
            "title": [meme.title],
        }
        items.append(RetrievalItem(reading.meme_id, files[reading.meme_id], meme.template, texts))
    return _some(items, "annotated template memes")


def of_memecap(
    memes: Iterable[MemeCapMeme],
    files: Mapping[str, Path],
    embedded: Mapping[str, str] | None = None,
    templates: Mapping[str, str] | None = None,
) -> list[RetrievalItem]:
    """Items of MemeCap; a meme without a picture in `files` (by file name) is left out.

    `embedded` are texts on the pictures, which MemeCap does not have itself, and `templates` the templates of
    those memes that were matched with one, both by the id of the post.
    """
    items = []
    for meme in memes:
        if meme.image not in files:
            continue
        texts = {
            "meme_caption": list(meme.meme_captions),
            "image_caption": list(meme.image_captions),
            "embedded_text": [(embedded or {}).get(meme.post_id, "")],
            "title": [meme.title],
        }
        template = (templates or {}).get(meme.post_id, "")
        items.append(RetrievalItem(meme.post_id, files[meme.image], template, texts))
    return _some(items, "memes of MemeCap")


def _some(items: list[RetrievalItem], what: str) -> list[RetrievalItem]:
    if not items:
        raise DataMissing(f"none of the {what} has its picture here")
    return items


# --- Exact ranks of memes for texts and of texts for memes, in blocks, with ties counted fairly
# What is right for a query depends on the counting: the paper's code knows the diagonal only.


COUNTINGS = {
    "pair": "only the meme's own text is right (the paper's diagonal)",
    "same text": "every word-for-word equal text is right, too",
    "template": "any meme of the right template is right",
}
TIE = 1e-6
"""Cosines that differ by no more are equal: what float32 and the order of batches make of equal vectors."""
MOST_BYTES = 64 << 20
"""Memory of one block of scores. It is exceeded only where a single row needs more."""
BYTES_PER_SCORE = 4
Ties = Literal["expected", "worst"]
Key = tuple[str, str]
"""Counting and direction."""


@dataclass(frozen=True)
class Ranks:
    """Of every query: how many wrong candidates stand before and beside the best right one."""

    above: np.ndarray
    """Wrong candidates with a higher cosine, [queries]."""
    level: np.ndarray
    """Wrong candidates with the same cosine."""
    right: np.ndarray
    """Right candidates with this cosine, at least 1."""

    def hits(self, k: int, ties: Ties = "expected") -> np.ndarray:
        """Whether each query hits at `k`, 0 to 1.

        `expected`: the probability of a hit when equal candidates come in random order, so a model that
        gives all of them the same vector scores k/N. `worst`: the right one comes last among equals.
        """
        if ties == "worst":
            return (self.above + self.level < k).astype(float)
        room = np.clip(k - self.above, 0, None)
        missed = np.ones(len(self.above))
        for place in range(k):  # no right candidate at this place, none having come before
            wrong = np.clip(self.level - place, 0, None)
            missed *= np.where(place < room, wrong / np.maximum(1, wrong + self.right), 1.0)
        return 1.0 - missed


def rank_all(texts: np.ndarray, images: np.ndarray, pairs: Gallery) -> dict[Key, Ranks]:
    """Rank every text's memes and every meme's texts, in all countings: exact, however many there are.

    `texts` [texts, dim] and `images` [memes, dim] need no unit length. The matrix of scores is made in
    blocks of rows of `MOST_BYTES`, so 33,000 x 33,000 needs 64 MB beside the vectors, not 4.4 GB. Counting
    by template is left out where no template is known. Raises `ValueError` for vectors that are not finite.
    """
    sides = {"T2M": (texts, images), "M2T": (images, texts)}
    for name, rows in (("texts", texts), ("images", images)):
        if len(rows) != len(getattr(pairs, name)) or not np.isfinite(rows).all():
            raise ValueError(f"{len(rows)} rows for {len(getattr(pairs, name))} {name}, or not all finite")
    countings = [name for name in COUNTINGS if name != "template" or any(pairs.templates)]
    out = {}
    for direction, (queries, candidates) in sides.items():
        right = {name: _right(pairs, name, direction) for name in countings}
        counted = {name: np.zeros((3, len(queries)), dtype=np.int64) for name in countings}
        for start, block in _blocks(_unit(queries), _unit(candidates)):
            for name in countings:
                counted[name][:, start : start + len(block)] = _count(block, start, right[name])
        out |= {(name, direction): Ranks(*counted[name]) for name in countings}
    return out


def _unit(rows: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(normalise(np.asarray(rows, dtype=np.float32)), dtype=np.float32)


def _blocks(queries: np.ndarray, candidates: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Scores [rows, candidates] of some queries at a time, with the number of the first."""
    step = max(1, MOST_BYTES // (BYTES_PER_SCORE * max(1, len(candidates))))
    scores = np.empty((min(step, len(queries)), len(candidates)), dtype=np.float32)
    for start in range(0, len(queries), step):
        part = queries[start : start + step]
        yield start, np.matmul(part, candidates.T, out=scores[: len(part)])


def _count(block: np.ndarray, start: int, right: Callable[[int], np.ndarray]) -> np.ndarray:
    """Rows `above`, `level` and `right` of `Ranks` for the queries of a block."""
    out = np.empty((3, len(block)), dtype=np.int64)
    for row, scores in enumerate(block):  # a row at a time stays in the cache
        mine = scores[right(start + row)]
        best = mine.max()
        beside = np.count_nonzero(mine >= best - np.float32(TIE))
        above = np.count_nonzero(scores > best + np.float32(TIE))
        level = np.count_nonzero(scores >= best - np.float32(TIE)) - above - beside
        out[:, row] = above, level, beside
    return out


def _right(pairs: Gallery, counting: str, direction: str) -> Callable[[int], np.ndarray]:
    """For each query the positions of its right candidates: a meme and a text belong together by a key."""
    if counting == "pair":
        of_text, of_meme = list(pairs.owner), list(range(len(pairs.images)))
    elif counting == "template":
        of_meme = list(pairs.clusters)
        of_text = [of_meme[i] for i in pairs.owner]
    else:
        of_text, of_meme = list(pairs.keys), None
    texts_with = _positions(of_text)
    if direction == "T2M":
        memes_with = (
            {key: np.unique(pairs.owner[rows]) for key, rows in texts_with.items()}
            if of_meme is None
            else _positions(of_meme)
        )
        return lambda text: memes_with[of_text[text]]
    if of_meme is not None:
        return lambda meme: texts_with[of_meme[meme]]
    own = _positions(list(pairs.owner))

    def texts_of(meme: int) -> np.ndarray:
        keys = dict.fromkeys(of_text[row] for row in own[meme])
        return np.concatenate([texts_with[key] for key in keys])

    return texts_of


def _positions(keys: Sequence[object]) -> dict[object, np.ndarray]:
    lists: dict[object, list[int]] = {}
    for position, key in enumerate(keys):
        lists.setdefault(key, []).append(position)
    return {key: np.array(rows, dtype=np.intp) for key, rows in lists.items()}


# --- Meme-text retrieval: R@1, R@5 and R@10 in both directions (2501.13851, Section 4, Tables 2 to 4)
# A query ranks all candidates of the other side by cosine; it hits at K if a right candidate is among the
# first K. With one right candidate that is recall, with several it is success at K.


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
    """What encodes pictures and texts into one space, for example `clip.DualEncoder`."""

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
