"""Near duplicates: the same picture (64-bit perceptual hash) with the same text.

Memes share a picture and differ in the caption, so a hash alone would throw different memes away.
"""

import difflib
import itertools
import unicodedata
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from PIL import Image

BLOCK = 2048  # rows and columns compared at once: 2048 x 2048 x 8 bytes = 32 MB
SMALL = 4096  # below this many hashes one plain comparison is fastest


class NearDuplicates(NamedTuple):
    """What `near_duplicate_groups` found; numbers are positions in the input."""

    groups: list[list[int]]
    """First the one to keep (the earliest), then those that are near it; each position at most once."""
    doubtful: list[tuple[int, int]]
    """Pairs of like pictures of which exactly one has a text: a person should look."""


def phash(image: "Image.Image") -> int:
    """64-bit DCT perceptual hash of a picture."""
    import imagehash

    return int(str(imagehash.phash(image, hash_size=8)), 16)


def normalise_text(text: str) -> str:
    """Text for comparison: NFKC, lower case, letters and digits only.

    A text of signs alone ("？？？") keeps its signs: it would else count as no text.
    """
    folded = unicodedata.normalize("NFKC", text).casefold()
    letters = "".join(c for c in folded if unicodedata.category(c)[0] in "LN")
    return letters or "".join(folded.split())


def similarity(a: str, b: str) -> float:
    """Share of common text, 0-1, of two normalised texts; two empty texts are equal (1)."""
    first, second = sorted((a, b))  # difflib's ratio depends on the order
    return difflib.SequenceMatcher(None, first, second, autojunk=False).ratio()


def alike(a: str, b: str, min_similarity: float) -> bool:
    """Whether two normalised texts are equal or at least `min_similarity` similar."""
    if a == b:
        return True
    if 2 * min(len(a), len(b)) < min_similarity * (len(a) + len(b)):
        return False  # an upper bound of the ratio, far cheaper than the ratio
    first, second = sorted((a, b))
    matcher = difflib.SequenceMatcher(None, first, second, autojunk=False)
    return matcher.quick_ratio() >= min_similarity and matcher.ratio() >= min_similarity


def close_pairs(hashes: Sequence[int], max_distance: int = 6) -> np.ndarray:
    """All pairs i < j of 64-bit hashes with Hamming distance <= `max_distance`, exact.

    Returns an array of shape (pairs, 2), sorted. Of `max_distance + 1` bit bands at least one must be
    equal in such a pair, so many hashes are compared only inside the buckets of each band.
    """
    if not 0 <= max_distance < 64:
        raise ValueError(f"max_distance must be from 0 to 63, got {max_distance}")
    values = np.asarray(hashes, dtype=np.uint64)
    n = len(values)
    everything = [np.arange(n)]
    buckets = everything if n <= SMALL else _buckets(values, max_distance + 1)
    parts = [part for members in buckets for part in _compare(values, members, max_distance)]
    if not parts:
        return np.empty((0, 2), dtype=np.int64)
    codes = np.unique(np.concatenate(parts))  # a pair may meet in several bands
    return np.stack([codes // n, codes % n], axis=1)


def _buckets(values: np.ndarray, bands: int) -> Iterator[np.ndarray]:
    edges = [64 * band // bands for band in range(bands + 1)]
    for low, high in itertools.pairwise(edges):
        keys = (values >> np.uint64(low)) & np.uint64((1 << (high - low)) - 1)
        order = np.argsort(keys, kind="stable")
        starts = np.flatnonzero(np.diff(keys[order])) + 1
        yield from (members for members in np.split(order, starts) if len(members) > 1)


def _compare(values: np.ndarray, members: np.ndarray, max_distance: int) -> Iterator[np.ndarray]:
    """Codes i * n + j of the close pairs among `members` (ascending positions), block by block."""
    n = len(values)
    for top in range(0, len(members), BLOCK):
        rows = members[top : top + BLOCK]
        for left in range(top, len(members), BLOCK):
            columns = members[left : left + BLOCK]
            distance = np.bitwise_count(values[rows][:, None] ^ values[columns][None, :])
            i, j = np.nonzero(distance <= max_distance)
            first, second = rows[i], columns[j]
            above = first < second
            yield first[above] * n + second[above]


def near_duplicate_groups(
    hashes: Sequence[int], texts: Sequence[str], max_distance: int = 6, min_similarity: float = 0.9
) -> NearDuplicates:
    """Find near duplicates: hash distance <= `max_distance` and texts equal or `min_similarity` alike.

    The earliest of the input is kept and takes everything near it; what is near only to a dropped one stays.
    So a longer input never changes what was decided about its beginning.
    """
    if len(hashes) != len(texts):
        raise ValueError(f"{len(hashes)} hashes but {len(texts)} texts")
    normal = [normalise_text(text) for text in texts]
    groups: dict[int, list[int]] = {}
    dropped: set[int] = set()
    doubtful: list[tuple[int, int]] = []
    for i, j in close_pairs(hashes, max_distance).tolist():
        # Where a text is missing only the picture speaks, and real pictures at distance 6 were different
        # faces: a person decides on the contact sheet, unless two pictures without text hash alike.
        if not (normal[i] and normal[j]) and (normal[i] or normal[j] or hashes[i] != hashes[j]):
            doubtful.append((i, j))
        elif i not in dropped and j not in dropped and alike(normal[i], normal[j], min_similarity):
            dropped.add(j)
            groups.setdefault(i, [i]).append(j)
    return NearDuplicates(list(groups.values()), doubtful)
