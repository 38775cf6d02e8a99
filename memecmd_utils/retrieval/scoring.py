"""The meme aligner: which memes fit a turn, and how well (paper, Section 4.2, Eq. 18-22, 24).

Four cosines are one inner product. A meme is the row [S+, S-, E, Psi] of unit vectors, a turn is the
query [w1 S, -w2 S, w3 E, w4 Psi]; their product is T. Weights stand on the query side, so new weights
need no new index. At fixed weights T is S (w1 S+ - w2 S-) + w3 E E_m + w4 Psi Psi_m: three blocks (`fold`).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from memecmd_utils.recordings import normalise

MEME_SIDE = ("s_plus", "s_minus", "emotion", "motivation")
QUERY_SIDE = ("scenario", "scenario", "emotion", "motivation")
QUERY_FIELDS = tuple(dict.fromkeys(QUERY_SIDE))
"""S, E, Psi by their names in a summary."""
COMPONENTS = ("alpha", "delta", "beta", "gamma")
SIGNS = np.array([1.0, -1.0, 1.0, 1.0])
"""delta carries its own minus (Eq. 19). Eq. 20 prints a minus for beta too, against its own text: plus."""

Encode = Callable[[Sequence[str], str], np.ndarray]
"""Texts and side (`query` or `document`) to unit vectors: `RecordedEmbedder.encode`."""

NOISE = 1e-5
"""Distance from the mean below which a unit row has none: float32 vectors do not say more."""
LONGEST = 1.01
"""Length that a unit vector may have after rounding."""
CHUNK_VALUES = 150_000
"""Numbers taken to float64 at a time: they stay in the cache, also where very many memes tie."""
BLOCK_BYTES = 16 << 20
"""Bytes of rows on disk that are taken to float32 at a time."""
FOLD_FROM = 1024
"""Turns from which on `top_k` folds the weights itself: the products then save over twice what that costs."""
FOLDED_AT_ONCE = 128
"""Memes folded at a time: they stay in the cache while they are turned."""
MOST_TIES = 1 << 22
"""Candidates kept at once (20 bytes each): where more memes tie, fewer turns are asked together."""


class Folded(NamedTuple):
    """Memes weighted once for all turns: `columns` is float32 [3 * dim, memes]; see `fold`."""

    weights: tuple[float, ...]
    columns: np.ndarray


@dataclass(frozen=True)
class MemeIndex:
    """Unit vectors of a library: `rows` has shape [memes, 4 * dim], blocks in the order of `MEME_SIDE`.

    A large library has its rows on disk, in float16, and a `search` of its own (`large_library`): queries,
    weights and K to the top K. None: `top_k` compares every meme.
    """

    meme_ids: tuple[str, ...]
    rows: np.ndarray
    search: "Callable[[np.ndarray, Sequence[float], int], Ranking] | None" = None
    folded: Folded | None = None
    """Used by `top_k` where it is asked with these weights."""

    @property
    def dim(self) -> int:
        """Dimension of one block."""
        return self.rows.shape[1] // 4

    @cached_property
    def id_ranks(self) -> np.ndarray:
        """Place of each meme's id among all ids in their order, shape [memes]: equal scores go by it."""
        ranks = np.empty(len(self.meme_ids), dtype=np.int64)
        ranks[sorted(range(len(ranks)), key=self.meme_ids.__getitem__)] = np.arange(len(ranks))
        return ranks


class Ranking(NamedTuple):
    """Top K of every turn: `memes` are positions in the index; `components` has shape [turns, K, 4].

    A turn that could not be ranked has positions -1, scores -inf and components 0.
    """

    memes: np.ndarray
    scores: np.ndarray
    components: np.ndarray

    def of_turns(self, turns: slice) -> "Ranking":
        """The ranking of some of its turns."""
        return Ranking(*(part[turns] for part in self))

    def at_all_turns(self, usable: np.ndarray) -> "Ranking":
        """The ranking of all turns, where it has those of the `usable` ones (a mask)."""
        return Ranking(*(at_all_turns(p, usable, m) for p, m in zip(self, (-1, -np.inf, 0), strict=True)))


def at_all_turns(rows: np.ndarray, usable: np.ndarray, missing: float) -> np.ndarray:
    """Rows of the `usable` turns (a mask) at their places among all; `missing` fills the others."""
    out = np.full((len(usable), *rows.shape[1:]), missing, dtype=rows.dtype)
    out[usable] = rows
    return out


def mean_row(vectors: np.ndarray) -> np.ndarray:
    """Mean of the rows, summed in float64: in float32 that of thousands of equal rows errs by 1e-4."""
    return vectors.mean(axis=0, dtype=np.float64).astype(vectors.dtype)


def centre(vectors: np.ndarray, mean: np.ndarray | None = None) -> np.ndarray:
    """Subtract the mean (by default their own) from unit vectors and scale back to unit length.

    E5 puts all texts into a narrow cone (cosines 0.85-0.95); without this the constant part of every
    cosine drowns what differs. A single vector has no spread and is left as it is. A row that lies at the
    mean, but for `NOISE`, becomes zero: scaled up, its rounding errors would pass for a direction.
    """
    off = np.zeros(vectors.shape[1], vectors.dtype)
    if mean is None:
        if len(vectors) < 2:
            return vectors
        mean = vectors.mean(axis=0)
        off = mean - mean_row(vectors)
    gaps = vectors - mean
    square = np.einsum("ij,ij->i", gaps, gaps) + gaps @ (2 * off) + off @ off  # of gaps + off, without a copy
    gaps[square < NOISE**2] = 0
    return normalise(gaps)


def build_index(meme_ids: Sequence[str], blocks: Sequence[np.ndarray], centring: bool = False) -> MemeIndex:
    """Stack the four attribute matrices, each [memes, dim] and of unit rows, into one index."""
    if len(blocks) != 4 or len({block.shape for block in blocks}) != 1 or len(meme_ids) != len(blocks[0]):
        raise ValueError(f"need four matrices of {len(meme_ids)} rows, got {[b.shape for b in blocks]}")
    if len(set(meme_ids)) != len(meme_ids):
        raise ValueError("meme ids must be unique")
    parts = [centre(block) for block in blocks] if centring else blocks
    return MemeIndex(tuple(meme_ids), np.ascontiguousarray(np.hstack(parts), dtype=np.float32))


def build_queries(
    scenario: np.ndarray, emotion: np.ndarray, motivation: np.ndarray, centring: bool = False
) -> np.ndarray:
    """Stack summary vectors, each [turns, dim], to unweighted queries [turns, 4, dim] with Eq. 19's sign."""
    return stack_queries((scenario, emotion, motivation), scenario.shape, centring)


def stack_queries(parts: Iterable[np.ndarray], shape: tuple[int, int], centring: bool = False) -> np.ndarray:
    """`build_queries` that takes each part, of `shape` [turns, dim], only when its place is filled."""
    queries = np.empty((shape[0], 4, shape[1]), dtype=np.float32)
    for places, part in zip(((0, 1), (2,), (3,)), parts, strict=True):
        if part.shape != tuple(shape):
            raise ValueError(f"need summary vectors of shape {shape}, got {part.shape}")
        for place in places:
            queries[:, place] = centre(part) if centring else part
    queries[:, 1] *= -1.0  # in place: the paper's queries fill 1.2 GB
    return queries


def weigh(queries: np.ndarray, weights: Sequence[float]) -> np.ndarray:
    """Put w1..w4 on the queries: [turns, 4, dim] -> [turns, 4 * dim], ready for one product (Eq. 22)."""
    weighted = queries * np.asarray(weights, dtype=np.float32)[:, None]
    return weighted.reshape(len(queries), -1)


def fold(index: MemeIndex, weights: Sequence[float]) -> MemeIndex:
    """The index, ready for many turns at these weights: T becomes three blocks instead of four.

    S meets S+ and S-, so w1 S . S+ - w2 S . S- = S . (w1 S+ - w2 S-): a meme is the column [w1 S+ - w2 S-,
    w3 E, w4 Psi], a turn is [S, E, Psi]. `top_k` finds the same as without, to the last bit. It costs what it
    saves in some 400 turns, and 12 bytes a dimension and meme; rows on disk stay as they are.
    """
    if index.search is not None or index.rows.dtype == np.float16:
        return index
    w1, w2, w3, w4 = np.asarray(weights, dtype=np.float32)
    columns = np.empty((3 * index.dim, len(index.rows)), dtype=np.float32)  # about 8 % faster than as rows
    for start in range(0, len(index.rows), FOLDED_AT_ONCE):
        part = slice(start, start + FOLDED_AT_ONCE)
        s_plus, s_minus, emotion, motivation = np.split(index.rows[part], 4, axis=1)
        columns[:, part] = np.hstack([w1 * s_plus - w2 * s_minus, w3 * emotion, w4 * motivation]).T
    return replace(index, folded=Folded(tuple(map(float, weights)), columns))


def component_matrices(index: MemeIndex, queries: np.ndarray) -> np.ndarray:
    """alpha, delta, beta, gamma of every pair, shape [4, turns, memes] (Eq. 18-21); for small libraries."""
    rows = index.rows.reshape(len(index.meme_ids), 4, index.dim)
    return np.stack([queries[:, part] @ rows[:, part].T for part in range(4)])


def combine(terms: np.ndarray, weights: Sequence[float]) -> np.ndarray:
    """T = w1 alpha + w2 delta + w3 beta + w4 gamma from terms [4, ...] (Eq. 22).

    Added term by term: a matrix product may add in another order with another number of threads or pairs.
    """
    return sum(w * term for w, term in zip(np.asarray(weights, dtype=terms.dtype), terms, strict=True))


def rough_scores(index: MemeIndex, queries: np.ndarray, weights: np.ndarray) -> Iterator[np.ndarray]:
    """T of every pair within half the `rounding_bound`, float32 [turns, some memes], in the rows' order.

    Three blocks where the index is folded at these weights and the queries hold S and -S, as `build_queries`
    makes them; four for all others.
    """
    folded = index.folded
    if folded and folded.weights == tuple(weights) and np.array_equal(queries[:, 0], -queries[:, 1]):
        yield np.delete(queries, 1, axis=1).reshape(len(queries), -1) @ folded.columns
    else:
        yield from products(index, weigh(queries, weights))


def products(index: MemeIndex, weighted: np.ndarray) -> Iterator[np.ndarray]:
    """Weighted queries [turns, 4 * dim] times the rows, in order, float32 [turns, some memes].

    Rows on disk make several products: one would hold a float32 copy of all.
    """
    if index.rows.dtype != np.float16:
        yield weighted @ index.rows.T
        return
    step = max(1, BLOCK_BYTES // (4 * index.rows.shape[1]))
    for start in range(0, len(index.rows), step):
        yield weighted @ to_float32(index.rows[start : start + step]).T


def to_float32(rows: np.ndarray) -> np.ndarray:
    """Finite float16 numbers as float32, exactly, about five times as fast as `astype` without F16C.

    Sign and digits are shifted to where float32 has them; 2**112 is what the exponents' biases differ by.
    """
    bits = np.ascontiguousarray(rows).view(np.int16).astype(np.int32)  # keeps the sign in the highest bit
    bits <<= 13
    bits &= np.int32(-0x70002000)
    out = bits.view(np.float32)
    out *= np.float32(2.0**112)
    return out


def pair_components(index: MemeIndex, queries: np.ndarray, memes: np.ndarray) -> np.ndarray:
    """The four components of chosen pairs in float64: `memes` [turns, n] -> [turns, n, 4].

    Summed pair by pair, so a value depends on its two vectors alone, not on how the batch was cut.
    """
    turns = np.repeat(np.arange(len(memes)), memes.shape[1])
    return pair_values(index, queries, turns, memes.ravel()).reshape(*memes.shape, 4)


def pair_values(index: MemeIndex, queries: np.ndarray, turns: np.ndarray, memes: np.ndarray) -> np.ndarray:
    """Components in float64 of the pairs (turns[i], memes[i]), shape [pairs, 4]."""
    rows = index.rows.reshape(len(index.meme_ids), 4, index.dim)
    out = np.empty((len(memes), 4))
    step = max(1, CHUNK_VALUES // index.rows.shape[1])
    for start in range(0, len(memes), step):
        part = slice(start, start + step)
        product = rows[memes[part]].astype(np.float64)
        product *= queries[turns[part]]
        out[part] = product.sum(axis=2)
    return out


def rounding_bound(index: MemeIndex, queries: np.ndarray, weights: np.ndarray) -> float:
    """How far two scores of the float32 product can be apart from their true difference, at most.

    With m float32 roundings on its way, u = 2**-24 each, a term errs by at most m u / (1 - m u) of itself
    (Higham 2002, Lemma 3.1); `total` bounds the sum of the terms' absolute values.
    Four blocks: a weight is rounded, its product with the query, then 4 dim for the products with the rows
    and their sum in any order: m = 4 dim + 2. Three blocks (`fold`): the weights, their products with S+ and
    S- and the difference, then 3 dim: m = 3 dim + 3, no more than 4 dim + 2, of the same total, for
    |S (w1 S+ - w2 S-)| <= |w1 S S+| + |w2 S S-|. Two scores err twice as much; one more u is for the cut
    that is taken off one of them, 1e-8 for exact scores being rounded to nine digits.
    """
    errors = (index.rows.shape[1] + 3) * np.finfo(np.float32).eps / 2
    kind = np.result_type(queries, np.float32)
    squares = np.einsum("tpd,tpd->tp", queries, queries, dtype=kind)  # errs by less than `errors` of itself
    total = LONGEST * np.sqrt(squares.max(initial=1.0) / (1 - errors)) * np.abs(weights).sum()
    return float(2 * errors / (1 - errors) * total) + 1e-8


def rank_candidates(
    index: MemeIndex, queries: np.ndarray, weights: np.ndarray, turns: np.ndarray, memes: np.ndarray, k: int
) -> Ranking:
    """The K best of the pairs (turns[i], memes[i]), scored in float64; equal scores by id.

    `turns` ascends and holds each of the `queries` at least K times.
    """
    exact = pair_values(index, queries, turns, memes)
    total = np.round(combine(exact.T, weights), 9)
    order = np.lexsort((index.id_ranks[memes], -total, turns))
    first = np.searchsorted(turns, np.arange(len(queries)))  # `turns` is sorted, before and after
    best = order[first[:, None] + np.arange(k)]
    return Ranking(memes[best], total[best], exact[best])


def top_k(
    index: MemeIndex,
    queries: np.ndarray,
    weights: Sequence[float],
    k: int,
    components: np.ndarray | None = None,
    block: int = 1024,
) -> Ranking:
    """The K best memes of every turn (Eq. 24); equal scores are ordered by meme id.

    A float32 product (or `component_matrices` at hand) finds a few more candidates than asked for; their
    scores are computed pair by pair in float64. So the result depends neither on `block` nor on threads, nor
    on where the rows are, nor on whether weights are folded. Who asks again and again at the same weights
    folds them once (`fold`). An index that brings its own search is asked through it.
    """
    k = min(k, len(index.meme_ids))
    if k < 1:
        raise ValueError("top_k needs at least one meme and k >= 1")
    exact_weights = np.asarray(weights, dtype=np.float64)
    if not exact_weights.any():  # every meme scores 0: scoring all pairs to order them by id takes seconds
        chosen = np.tile(np.argsort(index.id_ranks)[:k], (len(queries), 1))
        return Ranking(chosen, np.zeros(chosen.shape), pair_components(index, queries, chosen))
    if components is None and index.folded is None and len(queries) >= FOLD_FROM:
        index = fold(index, exact_weights)
    parts = [Ranking(np.empty((0, k), dtype=np.int64), np.empty((0, k)), np.empty((0, k, 4)))]
    for start in range(0, len(queries), block):
        batch = slice(start, start + block)
        if index.search is not None:
            parts.append(index.search(queries[batch], weights, k))
        else:
            at_hand = None if components is None else components[:, batch]
            parts += _ranked(index, queries[batch], exact_weights, k, at_hand)
    return Ranking(*map(np.concatenate, zip(*parts, strict=True)))


def _ranked(
    index: MemeIndex, queries: np.ndarray, weights: np.ndarray, k: int, components: np.ndarray | None
) -> list[Ranking]:
    """The top K of these turns, all at once, or in halves where too many memes tie."""
    rounding = rounding_bound(index, queries, weights)
    at_hand = components is not None
    blocks = [combine(components, weights)] if at_hand else rough_scores(index, queries, weights)
    best = np.full((len(queries), k), -np.inf, dtype=np.float32)
    turns, memes, scores = (np.empty(0, dtype=kind) for kind in (np.int64, np.int64, np.float32))
    start = 0
    for rough in blocks:
        highest = np.partition(rough, -k, axis=1)[:, -k:] if rough.shape[1] > k else rough
        best = np.partition(np.hstack([best, highest]), -k, axis=1)[:, -k:]
        cut = best.min(axis=1) - rounding
        found = np.flatnonzero(rough >= cut[:, None])  # in two dimensions it takes six times as long
        row, column = np.divmod(found, rough.shape[1])
        turns, memes = np.concatenate([turns, row]), np.concatenate([memes, column + start])
        scores = np.concatenate([scores, rough[row, column]])
        good = scores >= cut[turns]  # the cut has risen since they were found
        turns, memes, scores = turns[good], memes[good], scores[good]
        start += rough.shape[1]
        if len(turns) > max(MOST_TIES, 2 * k * len(queries)) and len(queries) > 1:
            half = len(queries) // 2
            rankings = []
            for part in (slice(half), slice(half, None)):
                terms = components[:, part] if at_hand else None
                rankings += _ranked(index, queries[part], weights, k, terms)
            return rankings
    order = np.argsort(turns, kind="stable")
    return [rank_candidates(index, queries, weights, turns[order], memes[order], k)]


def order(scores: np.ndarray, meme_ids: Sequence[str]) -> np.ndarray:
    """Positions of the memes from best to worst at every turn; equal scores are ordered by meme id."""
    by_id = np.argsort(np.array(meme_ids, dtype=str))
    # Rounded: the last digits of a matrix product depend on the number of threads.
    return by_id[np.argsort(-np.round(scores[:, by_id], 9), axis=1, kind="stable")]


def best_memes(scores: np.ndarray, meme_ids: Sequence[str], k: int) -> np.ndarray:
    """The first k of `order`, far faster than sorting; -1 where only scores of -inf are left."""
    by_id = np.argsort(np.array(meme_ids, dtype=str))
    ordered = np.round(np.take(scores, by_id, axis=1), 9)  # take: rows lie together, as argmax likes
    best = take_best(ordered.copy(), k)
    return np.where(np.isneginf(np.take_along_axis(ordered, best, axis=1)), -1, by_id[best])


def take_best(scores: np.ndarray, depth: int) -> np.ndarray:
    """Positions of the highest scores of every row, the first of equal ones; `scores` are overwritten."""
    rows = np.arange(len(scores))
    out = np.empty((len(scores), min(depth, scores.shape[1])), dtype=int)
    for place in range(out.shape[1]):
        out[:, place] = scores.argmax(axis=1)
        scores[rows, out[:, place]] = -np.inf
    return out
