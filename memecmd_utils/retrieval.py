"""The meme aligner: which memes fit a turn, and how well (paper, Section 4.2, Eq. 18-22, 24).

Four cosines are one inner product. A meme is the row [S+, S-, E, Psi] of unit vectors, a turn is the
query [w1 S, -w2 S, w3 E, w4 Psi]; their product is T. Weights stand on the query side, so new weights
need no new index.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from memecmd_utils.vectors import normalise

MEME_SIDE = ("s_plus", "s_minus", "emotion", "motivation")
QUERY_SIDE = ("scenario", "scenario", "emotion", "motivation")
QUERY_FIELDS = tuple(dict.fromkeys(QUERY_SIDE))
"""S, E, Psi by their names in a summary."""
COMPONENTS = ("alpha", "delta", "beta", "gamma")
SIGNS = np.array([1.0, -1.0, 1.0, 1.0])
"""delta carries its own minus (Eq. 19). Eq. 20 prints a minus for beta too, against its own text: plus."""

NOISE = 1e-5
"""Distance from the mean below which a unit row has none: float32 vectors do not say more."""
CHUNK_VALUES = 150_000
"""Numbers taken to float64 at a time: they stay in the cache, also where very many memes tie."""


@dataclass(frozen=True)
class MemeIndex:
    """Unit vectors of a library: `rows` has shape [memes, 4 * dim], blocks in the order of `MEME_SIDE`.

    A large library has its rows on disk, in float16, and a `search` of its own (`library_index`): queries,
    weights and K to the top K. None: `top_k` compares every meme.
    """

    meme_ids: tuple[str, ...]
    rows: np.ndarray
    search: "Callable[[np.ndarray, Sequence[float], int], Ranking] | None" = None

    @property
    def dim(self) -> int:
        """Dimension of one block."""
        return self.rows.shape[1] // 4


@dataclass(frozen=True)
class Ranking:
    """Top K of every turn: `memes` are positions in the index; `components` has shape [turns, K, 4].

    A turn that could not be ranked has positions -1, scores -inf and components 0.
    """

    memes: np.ndarray
    scores: np.ndarray
    components: np.ndarray


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


def component_matrices(index: MemeIndex, queries: np.ndarray) -> np.ndarray:
    """alpha, delta, beta, gamma of every pair, shape [4, turns, memes] (Eq. 18-21).

    For libraries small enough to keep, in memory: a change of weights is then a sum of four matrices.
    """
    rows = index.rows.reshape(len(index.meme_ids), 4, index.dim)
    return np.stack([queries[:, part] @ rows[:, part].T for part in range(4)])


def combine(components: np.ndarray, weights: Sequence[float]) -> np.ndarray:
    """T = w1 alpha + w2 delta + w3 beta + w4 gamma from [4, turns, memes] (Eq. 22)."""
    return np.tensordot(np.asarray(weights, dtype=components.dtype), components, axes=1)


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


def rounding_bound(index: MemeIndex, weights: np.ndarray) -> float:
    """How far two scores of the float32 product can be apart from their true difference, at most.

    A sum of n float32 products errs by at most n + 1 half units in the last place times the sum of
    their absolute values, whatever the order; unit vectors bound that sum by the sum of the weights.
    """
    return float((index.rows.shape[1] + 2) * np.finfo(np.float32).eps * np.abs(weights).sum()) + 1e-8


def id_ranks(meme_ids: Sequence[str]) -> np.ndarray:
    """Place of each meme's id among all ids in their order, shape [memes]."""
    return np.argsort(np.argsort(np.array(meme_ids)))


def rank_candidates(
    index: MemeIndex,
    queries: np.ndarray,
    weights: np.ndarray,
    turns: np.ndarray,
    memes: np.ndarray,
    by_id: np.ndarray,
    k: int,
) -> Ranking:
    """The K best of the pairs (turns[i], memes[i]), scored in float64; equal scores by id (`id_ranks`).

    `turns` ascends and holds each of the `queries` at least K times.
    """
    exact = pair_values(index, queries, turns, memes)
    # Term by term: a matrix product may add in another order for another number of pairs.
    total = np.round(sum(exact[:, part] * weights[part] for part in range(4)), 9)
    order = np.lexsort((by_id[memes], -total, turns))
    first = np.searchsorted(turns, np.arange(len(queries)))  # `turns` is sorted, before and after
    best = order[first[:, None] + np.arange(k)]
    return Ranking(memes[best], total[best], exact[best])


def top_k(
    index: MemeIndex, queries: np.ndarray, weights: Sequence[float], k: int, block: int = 1024
) -> Ranking:
    """The K best memes of every turn (Eq. 24); equal scores are ordered by meme id.

    A float32 product finds a few more candidates than asked for; their scores are then computed
    pair by pair in float64. So the result depends neither on `block` nor on the number of threads.
    An index that brings its own search is asked through it.
    """
    if index.search is not None:
        return index.search(queries, weights, k)
    n_memes = len(index.meme_ids)
    k = min(k, n_memes)
    if k < 1:
        raise ValueError("top_k needs at least one meme and k >= 1")
    exact_weights = np.asarray(weights, dtype=np.float64)
    by_id = id_ranks(index.meme_ids)
    rounding = rounding_bound(index, exact_weights)
    chosen = np.empty((len(queries), k), dtype=np.int64)
    scores, parts = np.empty((len(queries), k)), np.empty((len(queries), k, 4))
    for start in range(0, len(queries), block):
        batch = slice(start, start + block)
        rough = weigh(queries[batch], weights) @ index.rows.T
        cut = np.partition(rough, n_memes - k, axis=1)[:, n_memes - k] - rounding
        turns, close = np.nonzero(rough >= cut[:, None])
        found = rank_candidates(index, queries[batch], exact_weights, turns, close, by_id, k)
        chosen[batch], scores[batch], parts[batch] = found.memes, found.scores, found.components
    return Ranking(chosen, scores, parts)
