"""The K best memes from component matrices at hand: what `retrieval.top_k` finds, without its product."""

from collections.abc import Sequence

import numpy as np

from memecmd_utils.retrieval import MemeIndex, Ranking, combine, pair_components

SPARE = 16
"""Memes taken beside the K best before they are scored exactly."""


def id_order(index: MemeIndex) -> np.ndarray:
    """Rank of each meme's id among all ids: equal scores are ordered by it."""
    return np.argsort(np.argsort(np.array(index.meme_ids)))


def rank(
    index: MemeIndex,
    queries: np.ndarray,
    components: np.ndarray,
    weights: Sequence[float],
    k: int,
    by_id: np.ndarray | None = None,
) -> Ranking:
    """The result of `retrieval.top_k`, from component matrices [4, turns, memes] that are at hand.

    The float32 sum finds a few more memes than asked for; these are then scored pair by pair in float64.
    `by_id` is the index's `id_order`, where it is at hand.
    """
    exact_weights = np.asarray(weights, dtype=np.float64)
    n_memes = len(index.meme_ids)
    k = min(k, n_memes)
    by_id = id_order(index) if by_id is None else by_id
    if not exact_weights.any():  # every meme scores 0: scoring all pairs to order them by id takes seconds
        chosen = np.tile(np.argsort(by_id)[:k], (len(queries), 1))
        parts = pair_components(index, queries, chosen)
        return Ranking(chosen, np.zeros(chosen.shape), parts)
    rough = combine(components, weights)
    # A cosine is a sum of `dim` float32 products of unit vectors, T a sum of four of them.
    slack = (index.dim + 8) * np.finfo(np.float32).eps * np.abs(exact_weights).sum() + 1e-8
    close = _best(rough, min(n_memes, k + SPARE))
    values = np.take_along_axis(rough, close, axis=1)
    cut = np.partition(values, -k, axis=1)[:, -k] - slack
    if (values.min(axis=1) >= cut).any():  # more than the spare ones may tie
        close = _best(rough, int((rough >= cut[:, None]).sum(axis=1).max()))
    else:
        width = int((values >= cut[:, None]).sum(axis=1).max())
        close = np.take_along_axis(close, _best(values, width), axis=1)
    exact = pair_components(index, queries, close)
    total = np.round(sum(exact[..., part] * exact_weights[part] for part in range(4)), 9)
    order = np.lexsort((by_id[close], -total), axis=1)[:, :k]
    return Ranking(
        np.take_along_axis(close, order, axis=1),
        np.take_along_axis(total, order, axis=1),
        np.take_along_axis(exact, order[..., None], axis=1),
    )


def _best(scores: np.ndarray, n: int) -> np.ndarray:
    """Columns of the n highest scores of every row, in no order."""
    return np.argpartition(scores, -n, axis=1)[:, -n:]
