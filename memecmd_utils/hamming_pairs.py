"""All pairs of 64-bit hashes within a Hamming distance, exact: multi-index hashing in NumPy.

Norouzi, Punjani and Fleet, "Fast exact search in Hamming space with multi-index hashing", 2012
(arXiv 1307.2982). A hash is cut into bands; where two hashes differ in few bits, some band differs in very
few. So only hashes are compared whose bands lie in the same bucket or in one that is a flipped bit or two
away. FAISS has no part in it: of one core's time its brute force (`IndexBinaryFlat.range_search`, distance 6)
takes as much at 1,000 hashes, 6 times as much at 10,000 and 18 times at 30,000.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

BITS = 64
BLOCK = 2048  # rows and columns compared at once: 2048 x 2048 x 8 bytes = 32 MB
CHUNK = 1 << 20  # candidate pairs looked at together: about 60 MB
WIDEST_BAND = 22  # bits; the table of a band's buckets has 2 ** bits + 1 entries of 8 bytes
# Measured costs in nanoseconds, by which the number of bands is chosen: comparing a pair in a block, looking
# a hash up in a bucket, comparing a pair from a bucket; and a pass over a band for one mask.
PLAIN_NS, LOOKUP_NS, CANDIDATE_NS, MASK_NS = 5.0, 50.0, 15.0, 60_000.0


class Plan(NamedTuple):
    """How hashes are compared: `radii[b]` bits may differ in band b; without bands each pair is compared."""

    radii: tuple[int, ...]
    cost_ns: float

    @property
    def edges(self) -> list[int]:
        """Where the bands begin and end, in bits."""
        return _edges(len(self.radii))


def close_pairs(hashes: Sequence[int] | np.ndarray, max_distance: int = 6) -> np.ndarray:
    """All pairs i < j of 64-bit hashes with Hamming distance <= `max_distance`, exact.

    Returns an int64 array of shape (pairs, 2), sorted. Memory: some 100 MB, the pairs and as much again
    while they are sorted; n equal hashes are n (n - 1) / 2 pairs of 16 bytes, 3.2 GB for 20,000. Raises
    `ValueError` for a distance that is not a whole number from 0 to 63 and for what `as_hashes` refuses.
    """
    if not 0 <= max_distance < BITS or int(max_distance) != max_distance:
        raise ValueError(f"max_distance must be from 0 to 63, got {max_distance}")
    values, max_distance = as_hashes(hashes), int(max_distance)
    n = len(values)
    # Equal hashes (blank pictures, copies) would fill a bucket with pairs: they are searched for once.
    unique, inverse = np.unique(values, return_inverse=True)
    first, second = _pairs_of_unique(unique, max_distance)
    if len(unique) == n:
        places = np.empty_like(inverse)
        places[inverse] = np.arange(n)
        keys = _keys(places[first], places[second], n)
    else:
        keys = np.concatenate([np.empty(0, dtype=np.int64), *_spread(first, second, inverse, len(unique))])
    keys.sort()  # one number a pair: a quarter of the memory and time of sorting two columns
    pairs = np.empty((len(keys), 2), dtype=np.int64)
    np.floor_divide(keys, max(n, 1), out=pairs[:, 0])
    np.remainder(keys, max(n, 1), out=pairs[:, 1])
    return pairs


def as_hashes(hashes: Sequence[int] | np.ndarray) -> np.ndarray:
    """Hashes as a row of uint64; `ValueError` for other than a row of whole numbers from 0 to 2**64 - 1.

    Numbers of NumPy's int64 are taken for the 64 bits that they are stored as.
    """
    kind = hashes.dtype.kind if isinstance(hashes, np.ndarray) else "O"
    if kind not in "iuO" or np.ndim(hashes) != 1:
        raise ValueError("hashes must be a row of whole numbers of 64 bits")
    if kind == "O" and not all(isinstance(value, int | np.integer) for value in hashes):
        raise ValueError("hashes must be whole numbers: a float holds 53 bits of 64")
    try:
        return (
            np.asarray(hashes).astype(np.uint64) if kind != "O" else np.array(list(hashes), dtype=np.uint64)
        )
    except OverflowError as error:
        raise ValueError("hashes must be from 0 to 2**64 - 1") from error


def plan(n: int, max_distance: int) -> Plan:
    """The cheapest way to compare `n` different hashes, by the measured costs; hashes taken as evenly spread.

    With m bands and max_distance = m * r + a, either one of the first a + 1 bands differs in at most r bits,
    or one of the others in at most r - 1: else the sum were larger.
    """
    best = Plan((), PLAIN_NS * n * n / 2)
    for bands in range(math.ceil(BITS / WIDEST_BAND), max_distance + 2):
        radius, more = divmod(max_distance, bands)
        radii = tuple(radius if band <= more else radius - 1 for band in range(bands))
        cost = 0.0
        for (low, high), r in zip(itertools.pairwise(_edges(bands)), radii, strict=True):
            masks = sum(math.comb(high - low, k) for k in range(r + 1))
            met = masks * n * n / 2 / 2 ** (high - low)
            cost += masks * (n / 2 * LOOKUP_NS + MASK_NS) + met * CANDIDATE_NS
        if cost < best.cost_ns:
            best = Plan(radii, cost)
    return best


def _edges(bands: int) -> list[int]:
    return [BITS * band // bands for band in range(bands + 1)]


def _pairs_of_unique(unique: np.ndarray, max_distance: int) -> tuple[np.ndarray, np.ndarray]:
    """Both sides of the pairs of different hashes, as positions in `unique`; in no order."""
    chosen = plan(len(unique), max_distance)
    parts = list(_banded(unique, max_distance, chosen) if chosen.radii else _blocks(unique, max_distance))
    if not parts:
        return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
    return np.concatenate([a for a, _ in parts]), np.concatenate([b for _, b in parts])


def _blocks(unique: np.ndarray, max_distance: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Each pair compared, block by block."""
    for top in range(0, len(unique), BLOCK):
        rows = unique[top : top + BLOCK, None]
        for left in range(top, len(unique), BLOCK):
            near = np.bitwise_count(rows ^ unique[None, left : left + BLOCK]) <= max_distance
            i, j = np.nonzero(np.triu(near, 1) if left == top else near)
            yield i + top, j + left


def _banded(unique: np.ndarray, max_distance: int, chosen: Plan) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Pairs that meet in a band; each is told once, in the first band and by the one mask that joins it."""
    spans = list(itertools.pairwise(chosen.edges))
    for band, ((low, high), radius) in enumerate(zip(spans, chosen.radii, strict=True)):
        if radius < 0:
            continue
        keys = _band(unique, low, high)
        order = np.argsort(keys, kind="stable")
        keys, values = keys[order], unique[order]
        starts = np.zeros((1 << (high - low)) + 1, dtype=np.int64)
        np.cumsum(np.bincount(keys, minlength=1 << (high - low)), out=starts[1:])
        for i, j in _candidates(keys, starts, high - low, radius):
            differing = values[i] ^ values[j]
            near = np.flatnonzero(np.bitwise_count(differing) <= max_distance)
            differing = differing[near]
            for (a, b), earlier in zip(spans[:band], chosen.radii[:band], strict=True):
                seen = np.bitwise_count(_band(differing, a, b)) <= earlier
                near, differing = near[~seen], differing[~seen]
            yield order[i[near]], order[j[near]]


def _band(values: np.ndarray, low: int, high: int) -> np.ndarray:
    return ((values >> np.uint64(low)) & np.uint64((1 << (high - low)) - 1)).astype(np.int64)


def _candidates(
    keys: np.ndarray, starts: np.ndarray, width: int, radius: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Pairs of positions whose keys differ in at most `radius` bits, in parts of about `CHUNK`.

    `keys` ascend; `starts[k]` is the first position of key k. A pair is met once: of two keys that differ by
    a mask the one asks that has the mask's lowest bit not set, of equal keys the earlier position.
    """
    positions = np.arange(len(keys))
    for flipped in range(radius + 1):
        for bits in itertools.combinations(range(width), flipped):
            mask = sum(1 << bit for bit in bits)
            asking = positions[keys & (1 << bits[0]) == 0] if bits else positions
            others = keys[asking] ^ mask
            begin = starts[others] if bits else asking + 1
            yield from _expanded(asking, begin, starts[others + 1] - begin)


def _expanded(
    asking: np.ndarray, begin: np.ndarray, count: np.ndarray
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Pairs (asking[k], begin[k] ... begin[k] + count[k] - 1), in parts of about `CHUNK` pairs."""
    met = np.flatnonzero(count)
    asking, begin, count = asking[met], begin[met], count[met]
    ends = np.cumsum(count)
    done = at = 0
    while at < len(asking):
        # At least one row a part; a row is at most a bucket, so no part is much larger than CHUNK.
        stop = max(at + 1, int(np.searchsorted(ends, done + CHUNK, side="right")))
        counts = count[at:stop]
        before = ends[at:stop] - counts - done
        left = np.repeat(asking[at:stop], counts)
        right = np.arange(len(left)) + np.repeat(begin[at:stop] - before, counts)
        yield left, right
        done, at = int(ends[stop - 1]), stop


def _keys(a: np.ndarray, b: np.ndarray, n: int) -> np.ndarray:
    """One number for each pair of positions below n, ascending as the pairs do; n up to 3 * 10**9."""
    keys = np.minimum(a, b)
    keys *= n
    keys += np.maximum(a, b)
    return keys


def _spread(first: np.ndarray, second: np.ndarray, inverse: np.ndarray, groups: int) -> Iterator[np.ndarray]:
    """Keys of the input's pairs: of unlike hashes each copy of one with each of the other, and the copies."""
    members = np.argsort(inverse, kind="stable")
    sizes = np.bincount(inverse, minlength=groups)
    starts = np.cumsum(sizes) - sizes
    # Each member of the first group asks for the whole second group.
    rows = np.repeat(starts[first], sizes[first]) + _steps(sizes[first])
    begin, count = (np.repeat(x[second], sizes[first]) for x in (starts, sizes))
    inside = np.arange(len(inverse))
    until = (starts + sizes)[inverse[members]]
    for x, y in itertools.chain(
        _expanded(rows, begin, count), _expanded(inside, inside + 1, until - inside - 1)
    ):
        yield _keys(members[x], members[y], len(inverse))


def _steps(counts: np.ndarray) -> np.ndarray:
    """0 ... c - 1 for each c of `counts`, one after the other."""
    ends = np.cumsum(counts)
    return np.arange(int(ends[-1]) if len(ends) else 0) - np.repeat(ends - counts, counts)
