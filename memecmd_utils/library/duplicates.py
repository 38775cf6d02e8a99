"""Near duplicates: the same picture (64-bit perceptual hash) with the same text.

Memes share a picture and differ in the caption, so a hash alone would throw different memes away.
"""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from memecmd_utils.library.text_similarity import alike, normalise_text

if TYPE_CHECKING:
    from PIL import Image


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

    Of two such hashes, cut into more than `max_distance` / 2 bands, one band differs in one bit or none. So
    each hash is compared with those whose band is equal to its own, or would be with one bit flipped.
    """
    values = np.array(hashes, dtype=np.uint64)
    found = [np.empty(0, dtype=np.int64)]
    bands = max(4, max_distance // 2 + 1)  # of 16 bits at most: a table has a place for each value of a band
    for low, high in pairwise(np.linspace(0, 64, bands + 1).astype(np.uint64)):
        n_values = 1 << int(high - low)
        band = (values >> low & np.uint64(n_values - 1)).astype(np.int64)
        order = np.argsort(band, kind="stable")
        band, ordered = band[order], values[order]
        first = np.searchsorted(band, np.arange(n_values + 1))  # where each value begins
        for flipped in (0, *(1 << np.arange(int(high - low)))):
            rows = np.flatnonzero(band & flipped == 0)  # each two bands meet once
            others = first[band[rows] ^ flipped] if flipped else rows + 1
            end = first[(band[rows] ^ flipped) + 1]
            while (more := others < end).any():
                rows, others, end = rows[more], others[more], end[more]
                near = np.bitwise_count(ordered[rows] ^ ordered[others]) <= max_distance
                pair = np.sort([order[rows[near]], order[others[near]]], axis=0)
                found.append(pair[0] * len(values) + pair[1])
                others = others + 1
    pairs = np.unique(np.concatenate(found))
    return np.stack(np.divmod(pairs, max(1, len(values))), axis=1)


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
