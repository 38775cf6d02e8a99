"""Near duplicates: the same picture (64-bit perceptual hash) with the same text.

Memes share a picture and differ in the caption, so a hash alone would throw different memes away.
"""

from bisect import bisect_right
from collections.abc import Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from memecmd_utils.core.text_similarity import alike, normalise_text

if TYPE_CHECKING:
    from PIL import Image


SIDE = 256
"""Hashes compared with as many others at once: 512 KB, which a processor's cache holds."""


class NearDuplicates(NamedTuple):
    """What `near_duplicate_groups` found; numbers are positions in the input."""

    groups: list[list[int]]
    """First the one to keep (the earliest), then those that are near it; each position at most once."""
    doubtful: list[tuple[int, int]]
    """Pairs of like pictures of which one has no text, or neither while their hashes differ: a person
    should look."""


def phash(image: "Image.Image") -> int:
    """64-bit DCT perceptual hash of a picture."""
    import imagehash

    return int(str(imagehash.phash(image, hash_size=8)), 16)


def close_pairs(hashes: Sequence[int] | np.ndarray, max_distance: int = 6) -> np.ndarray:
    """All pairs i < j of 64-bit hashes that differ in at most `max_distance` bits, sorted: int64, (pairs, 2).

    Each pair is compared: 6,023 hashes, the paper's library, in a moment, 100,000 in some seconds.
    """
    values = np.array(hashes, dtype=np.uint64)
    parts = [np.empty((0, 2), dtype=np.int64)]
    for top in range(0, len(values), SIDE):
        rows = values[top : top + SIDE, None]
        for left in range(top, len(values), SIDE):
            near = np.bitwise_count(rows ^ values[None, left : left + SIDE]) <= max_distance
            if near.any():
                pairs = np.argwhere(near) + np.array((top, left))
                parts.append(pairs[pairs[:, 0] < pairs[:, 1]])
    close = np.concatenate(parts)
    return close[np.lexsort((close[:, 1], close[:, 0]))]


def near_duplicate_groups(
    hashes: Sequence[int], texts: Sequence[str], max_distance: int = 6, min_similarity: float = 0.9
) -> NearDuplicates:
    """Find near duplicates: hash distance <= `max_distance` and texts equal or `min_similarity` alike.

    The earliest of the input is kept and takes everything near it; what is near only to a dropped one stays.
    So a longer input never changes what was decided about its beginning.
    """
    if len(hashes) != len(texts):
        raise ValueError(f"{len(hashes)} hashes but {len(texts)} texts")
    unique, hash_numbers = np.unique(np.array(hashes, dtype=np.uint64), return_inverse=True)
    # Copies (same hash, same text) share one fate, so only their first is compared. Pairs are looked up by
    # hash: 20,000 equal hashes are one entry here and 200 million pairs otherwise.
    copies: dict[tuple[int, str], list[int]] = {}
    for position, (number, text) in enumerate(zip(hash_numbers.tolist(), texts, strict=True)):
        copies.setdefault((number, normalise_text(text)), []).append(position)
    with_text: dict[int, dict[int, list[tuple[int, str]]]] = {}
    without: dict[int, list[int]] = {}
    for (number, text), positions in copies.items():
        if text:
            with_text.setdefault(number, {}).setdefault(len(text), []).append((positions[0], text))
        else:
            without[number] = positions
    pairs = close_pairs(unique, max_distance).tolist()
    near: dict[int, list[int]] = {}
    for a, b in pairs:
        near.setdefault(a, [a]).append(b)
        near.setdefault(b, [b]).append(a)
    groups: dict[int, list[int]] = {}
    dropped: set[int] = set()
    for (number, text), positions in copies.items():
        first = positions[0]
        if first in dropped:
            continue
        group = positions[1:]
        for other in near.get(number, [number]) if text else ():
            for length, items in with_text.get(other, {}).items():
                if 2 * min(length, len(text)) < min_similarity * (length + len(text)):
                    continue  # so different in length that `alike` would say no
                for j, written in items[bisect_right(items, first, key=itemgetter(0)) :]:
                    if j not in dropped and alike(text, written, min_similarity):
                        dropped.add(j)
                        group += copies[other, written]
        if group:
            groups[first] = [first, *sorted(group)]
    return NearDuplicates(list(groups.values()), _doubtful(copies, with_text, without, near))


def _doubtful(
    copies: dict[tuple[int, str], list[int]],
    with_text: dict[int, dict[int, list[tuple[int, str]]]],
    without: dict[int, list[int]],
    near: dict[int, list[int]],
) -> list[tuple[int, int]]:
    """Pairs of like pictures of which one has no text, or neither while their hashes differ; sorted.

    There only the picture speaks, and real pictures at distance 6 were different faces: a person decides.
    """
    doubtful = []
    for number, blank in without.items():
        for other in near.get(number, [number]):
            texts = (text for items in with_text.get(other, {}).values() for _, text in items)
            others = [i for text in texts for i in copies[other, text]]
            if other > number:
                others += without.get(other, [])
            doubtful += [(min(i, j), max(i, j)) for i in blank for j in others]
    return sorted(doubtful)
