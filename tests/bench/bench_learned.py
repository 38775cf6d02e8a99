"""Learned placement beside Greedy at the paper's size: 6,023 memes, 34,758 turns, the example's embedders.

Both rank every turn from vectors at hand. Greedy compares four blocks of one embedder in three products;
learned placement compares six texts of a turn with six of a meme under two, cut to the rank of its weights,
and lets trees look at 20 memes a turn. Vectors are random; the shipped weights are real. A smaller share of
the turns is ranked with MEMECMD_BENCH_SHARE; the time of a turn does not depend on it.
"""

import os
import time

import numpy as np
from bench_memory import peak_mb
from figures_to_reach import record

from memecmd_utils.files import paths
from memecmd_utils.retrieval import learned, scoring
from memecmd_utils.retrieval.learned import LearnedIndex

MEMES, TURNS, DIMS = 6_023, 34_758, (384, 512)
WEIGHTS = (1 / 3, 1 / 3, 1 / 3, 1 / 3)
ROUNDS = 3


def units(rng: np.random.Generator, rows: int, dim: int) -> np.ndarray:
    vectors = rng.standard_normal((rows, 6, dim), dtype=np.float32)
    vectors /= np.linalg.norm(vectors, axis=2, keepdims=True)
    return vectors


def test_learned_placement_at_paper_size(benchmark) -> None:
    rng, n = np.random.default_rng(13), round(TURNS * float(os.environ.get("MEMECMD_BENCH_SHARE", "1")))
    ids = [f"m{i:05d}" for i in range(MEMES)]
    memes, turns = ([units(rng, rows, dim) for dim in DIMS] for rows in (MEMES, n))
    index = scoring.build_index(ids, [memes[0][:, place] for place in range(4)])
    queries = scoring.build_queries(*(turns[0][:, place] for place in range(3)))
    model = learned.load_placement(paths.example / learned.FILE).model
    library = LearnedIndex(model, ids, memes)
    products = library.rows.shape[1]
    ratios, spent = [], {"Greedy": [], "learned": []}
    for _ in range(ROUNDS):
        for name, work in (
            ("Greedy", lambda: scoring.top_k(index, queries, WEIGHTS, 3)),
            ("learned", lambda: library.best(turns, 3)),
        ):
            start = time.perf_counter()
            work()
            spent[name].append(time.perf_counter() - start)
        ratios.append(spent["learned"][-1] / spent["Greedy"][-1])
    benchmark(library.best, [one[:64] for one in turns], 3)
    shown = ", ".join(f"{name} {np.median(times):.1f} s" for name, times in spent.items())
    note = (
        f"{n:,} turns: {shown}; {products:,} columns for learned, {3 * DIMS[0]:,} for Greedy; "
        f"peak of the process with all vectors {peak_mb() / 1024:.1f} GB"
    )
    reason = (
        f"the product alone has {products / (3 * DIMS[0]):.1f} times the columns of Greedy's three blocks. "
        "The exact cosines of 20 memes a turn and the trees take as long again, each; the limit is "
        f"{1e3 * np.median(spent['learned']) / n:.1f} ms a turn"
    )
    record(benchmark, "learned/greedy", np.array(ratios), note=note, reason=reason)
    assert np.median(ratios) < 20
