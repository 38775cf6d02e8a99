"""All pairs of 100,000 perceptual hashes within 6 bits.

The hashes are even, and a tenth of them stand at most 5 bits from another, as in a library with copies.
Real hashes are less even (a picture's low frequencies go together), so they are measured, too, where the
real memes are: crossed over by halves to any number.
"""

import time

import numpy as np
import pytest
from figures_to_reach import record

from memecmd_utils import pictures
from memecmd_utils.files import paths
from memecmd_utils.library import duplicates
from memecmd_utils.library.duplicates import close_pairs

DISTANCE = 6
SIZES = (10_000, 100_000)
CORPUS = paths.root.parent / "shared" / "corpora" / "emojipackage"


def made(n: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    values = rng.integers(0, 2**64, n, dtype=np.uint64)
    return with_copies(values, rng)


def with_copies(values: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A tenth of the hashes made anew from others, with up to five bits turned."""
    n = len(values)
    copies = values[rng.integers(0, n, n // 10)]
    for _ in range(5):
        copies ^= np.uint64(1) << rng.integers(0, 64, len(copies)).astype(np.uint64)
    values[rng.integers(0, n, n // 10)] = copies
    return values


def crossed(real: np.ndarray, n: int, seed: int = 0) -> np.ndarray:
    """Hashes of real pictures, each byte from one of two of them: what goes together stays so in part."""
    rng = np.random.default_rng(seed)
    one, other = (real[rng.integers(0, len(real), n)].view(np.uint8).reshape(n, 8) for _ in range(2))
    bits = np.where(rng.integers(0, 2, (n, 8)).astype(bool), one, other)
    values = np.ascontiguousarray(bits).view(np.uint64).reshape(n)
    values ^= np.uint64(1) << rng.integers(0, 64, n).astype(np.uint64)
    return with_copies(values, rng)


def timed(work, values: np.ndarray) -> tuple[float, np.ndarray]:
    started = time.perf_counter()
    found = work(values)
    return time.perf_counter() - started, found


def test_pairs_of_100_000_hashes(benchmark) -> None:
    values = made(100_000)
    benchmark.pedantic(close_pairs, args=(values, DISTANCE), rounds=3, warmup_rounds=1)
    assert record(benchmark, "near_duplicates/seconds", benchmark.stats.stats.data)


def test_hashes_as_uneven_as_real_ones(benchmark) -> None:
    if not CORPUS.is_dir():
        pytest.skip("the real memes are not here")
    real = []
    for path in pictures.look_through(CORPUS).images:
        try:
            real.append(duplicates.phash(pictures.decode(path)))
        except pictures.ImageRejected:
            continue
    hashes = np.array(real, dtype=np.uint64)
    seconds = {}

    def all_sizes() -> None:
        for n in SIZES:
            seconds[n], pairs = timed(close_pairs, crossed(hashes, n))
            benchmark.extra_info[f"pairs_{n}"] = len(pairs)

    benchmark.pedantic(all_sizes, rounds=1)
    note = ", ".join(f"{n:,}: {s:.3g} s" for n, s in seconds.items())
    what = "close pairs of 100,000 hashes as uneven as those of real memes"
    assert record(
        benchmark, "near_duplicates/uneven", seconds[100_000], what=what, unit="s", at_most=10, note=note
    )
