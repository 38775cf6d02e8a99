"""The paper profile at its full size against simulated endpoints: it ends in time and within memory.

34,758 turns, 6,023 memes, random vectors of 2,304 dimensions. A smaller share is made with the environment
variable MEMECMD_BENCH_SHARE (0.02 takes two minutes); the bounds are those of the full size.
"""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import full_size
from figures_to_reach import told

MINUTES, GIGABYTES = 20, 4


def test_a_run_of_the_papers_size(benchmark, tmp_path: Path) -> None:
    share = float(os.environ.get("MEMECMD_BENCH_SHARE", "1"))
    found = benchmark.pedantic(full_size.run, args=(tmp_path, share), rounds=1, iterations=1)
    benchmark.extra_info.update(found)
    size = found["size"]
    assert found["dialogues"] == size["news"] + size["pairs"] * size["scenarios"], "nothing was lost"
    assert share < 1 or 18 * found["dialogues"] == 34_758
    print(full_size.table(found))
    minutes, gigabytes = found["wall s"] / 60, found["peak MB"] / 1024
    each = ", ".join(f"{name} {row['wall s']:.0f} s" for name, row in found["stages"].items())
    of = f"paper profile, simulated endpoints, {18 * found['dialogues']:,} turns, {size['memes']:,} memes"
    told(benchmark, "full/minutes", minutes, what=of, unit="min", at_most=MINUTES, note=each)
    told(benchmark, "full/memory", gigabytes, what=f"{of}: peak memory", unit="GB", at_most=GIGABYTES)
    assert found["wall s"] < 60 * MINUTES, "longer than it may take"
    assert found["peak MB"] < 1024 * GIGABYTES, "more memory than it may take"
