"""Named random streams: one run seed, a stream of its own for every use."""

import hashlib

import numpy as np


def rng(seed: int, *names: str | int) -> np.random.Generator:
    """Return a generator for `names` under the run's `seed`.

    A stream depends on its names alone, so a new dialogue or strategy does not shift the others.
    """
    digest = hashlib.sha256("\x1f".join(map(str, (seed, *names))).encode()).digest()
    return np.random.default_rng(int.from_bytes(digest[:16], "big"))
