"""Made libraries of clustered unit vectors, for tests of stored libraries and their index."""

from collections.abc import Iterator

import numpy as np

from memecmd_utils import retrieval

WEIGHTS = (0.3, 0.2, 0.4, 0.1)


def unit(rng: np.random.Generator, *shape: int) -> np.ndarray:
    vectors = rng.standard_normal(shape).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def rows(memes: int, dim: int = 16, seed: int = 5, clusters: int = 60) -> tuple[list[str], np.ndarray]:
    """Ids in no order and stacked rows [memes, 4 * dim] around some centres, exact in float16."""
    rng = np.random.default_rng(seed)
    near = unit(rng, clusters, 4, dim)[rng.integers(0, clusters, memes)] + 0.5 * unit(rng, memes, 4, dim)
    near /= np.linalg.norm(near, axis=2, keepdims=True)
    ids = [f"m{i:06d}" for i in rng.permutation(memes)]
    return ids, near.reshape(memes, -1).astype(np.float16).astype(np.float32)


def turns(count: int, dim: int = 16, seed: int = 6) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return retrieval.build_queries(*(unit(rng, count, dim) for _ in range(3)))


def blocks(ids: list[str], stacked: np.ndarray, size: int = 700) -> Iterator[tuple[list[str], np.ndarray]]:
    for start in range(0, len(ids), size):
        yield ids[start : start + size], stacked[start : start + size]
