"""How often do the intervals of `statistics` hold the truth? A table of made-up worlds, few dialogues too.

    python .ci/coverage.py reports/coverage.md

A few minutes. `tests/test_statistics.py` asks a few of these worlds, with fewer replications.
"""

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests/helpers"))

from simulated import Dialogues, World, worlds

from memecmd_utils import statistics

SIZES = (5, 6, 8, 10, 20, 47)
REPLICATIONS = 4_000
OF_AUC = 1_000
"""AUC is worked out replication by replication."""
DRAWS = 500
HEAD = """# How often intervals hold the truth

Made by `make coverage`. Each line is a kind of made-up dialogues whose truth is known; each cell says in
how many of 100 replications the 95 % interval over so many dialogues holds it ({replications:,}
replications, {auc:,} of AUC: a cell is uncertain by 0.7, or 1.4, points). Below {least} dialogues there is
no interval. In brackets: in how many of 100 there is none, because all dialogues were alike. "bootstrap"
is what earlier versions gave, the percentile interval of resampled dialogues, at 10 dialogues.

ICC: share of the spread that lies between dialogues. Sizes: memes of a dialogue, `gate` 1 + Poisson(4), as
in the example, `wild` 1 to 60. Grades of which 90 % are 0 are those of the example's memes drawn at random,
75 % are 0 those of Greedy's; "ends known" uses that grades lie between 0 and 2. Where hits are rare,
intervals over ten dialogues are too wide rather than too narrow.

| estimate | ICC | sizes | {sizes} | bootstrap |
|---|---:|---|{lines}---:|
"""
P_HEAD = """
## How often p is 0.05 or less though there is no effect

The worlds without an effect. p is one minus the level of the interval that ends at 0.

| estimate | ICC | sizes | {sizes} |
|---|---:|---|{lines}
"""


def replications(world: World) -> int:
    """How many for this world."""
    return OF_AUC if world.what.startswith("AUC") else REPLICATIONS


def bootstrap(world: World, n: int, seed: int = 1) -> float:
    """Coverage of the percentile bootstrap; of means alone, whose sums can be told from what is left out."""
    of = Dialogues(np.random.default_rng(seed), n, 1_000, world.icc, world.sizes)
    found, truth = world.make(of)
    if not world.what.startswith(("mean", "share", "paired")):
        return np.nan
    top = found.value - (1 - found.share) * found.without
    picks = np.random.default_rng(seed + 1).integers(n, size=(DRAWS, n))
    times = np.stack([np.bincount(row, minlength=n) for row in picks]).astype(float)
    low, high = np.quantile((times @ top) / (times @ found.share), (0.025, 0.975), axis=0)
    return float(np.mean((low - 1e-9 <= truth) & (truth <= high + 1e-9)))


def cell(held: float, given: float) -> str:
    """`95.1 (2)`: of 100 intervals those that hold the truth, and how many times there was none."""
    if np.isnan(held):
        return "–"
    none = round(100 * (1 - given))
    return f"{100 * held:.1f}{f' ({none})' if none else ''}"


def main(target: Path) -> None:
    """Simulate all worlds and write the table."""
    rows, tests = [], []
    for world in worlds():
        found = [world.coverage(n, replications(world)) for n in SIZES]
        name = f"| {world.what} | {world.icc} | {world.sizes} |"
        before = bootstrap(world, 10)
        cells = [cell(held, given) for held, given, _ in found]
        cells.append("" if np.isnan(before) else f"{100 * before:.1f}")
        rows.append(f"{name} {' | '.join(cells)} |")
        if world.null:
            small = ["–" if np.isnan(p) else f"{100 * p:.1f}" for _, _, p in found]
            tests.append(f"{name} {' | '.join(small)} |")
        print(rows[-1], flush=True)
    sizes = {"sizes": " | ".join(map(str, SIZES)), "lines": "---:|" * len(SIZES)}
    head = HEAD.format(replications=REPLICATIONS, auc=OF_AUC, least=statistics.MIN_CLUSTERS, **sizes)
    text = "\n".join([head + "\n".join(rows), P_HEAD.format(**sizes) + "\n".join(tests)])
    target.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
