"""How often do the intervals of `statistics` hold the truth? A table of made-up worlds, few dialogues too.

    python .ci/coverage.py reports/coverage.md

A few minutes. `tests/test_statistics.py` asks a few of these worlds, with fewer replications.
"""

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
from scipy.special import ndtri
from sklearn.metrics import roc_auc_score

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests/helpers"))

from simulated import Dialogues, World, kappa, mean, paired, unpaired

from memecmd_utils import statistics
from memecmd_utils.statistics import COEFFICIENT, GRADE, SHARE, LeftOut

SIZES = (5, 6, 8, 10, 20, 47)
REPLICATIONS = 4_000
OF_AUC = 1_000
"""AUC is worked out replication by replication."""
DRAWS = 500
HEAD = """# How often intervals hold the truth

Made by `make coverage`. Each line is a kind of made-up dialogues whose truth is known; each cell says in
how many of 100 replications the 95% interval over so many dialogues holds it ({replications:,}
replications, {auc:,} of AUC: a cell is uncertain by 0.7, or 1.4, points). Below {least} dialogues there is
no interval. In brackets: in how many of 100 there is none, because all dialogues were alike. "bootstrap"
is what earlier versions gave, the percentile interval of resampled dialogues, at 10 dialogues.

ICC: share of the spread that lies between dialogues. Sizes: memes of a dialogue, `gate` 1 + Poisson(4), as
in the example, `wild` 1 to 60. "90 % are 0": grades as of the example's memes drawn at random; "75 % are
0": as of Greedy's memes; "ends known" uses that grades lie between 0 and 2. Where hits are rare,
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


def stacked(found: list[LeftOut]) -> LeftOut:
    """Replications, one by one, as the last axis of one."""
    return LeftOut(*(np.stack(parts, axis=-1) for parts in zip(*found, strict=True)))


def auc_items(of: Dialogues, lift: float, levels: int = 0, items: int = 2) -> np.ndarray:
    """Scores [2, dialogues, replications, items] of what fits and what does not; `levels` makes ties."""
    scores = of.normal(items, 2)
    scores[0] += lift
    return np.digitize(scores, ndtri(np.arange(1, levels) / levels) + lift / 2) if levels else scores


def auc(of: Dialogues, lift: float, levels: int = 0, items: int = 2) -> tuple[LeftOut, float]:
    """AUC of `items` that fit and as many that do not in each dialogue; in wild ones 1 to 4 of either."""
    scores = auc_items(of, lift, levels, items)
    some = 1 + of.rng.integers(items, size=(2, of.n, of.replications)) if of.sizes == "wild" else None
    found = []
    for r in range(of.replications):
        sides = [
            [(i, x) for i in range(of.n) for x in side[i, r][: items if some is None else some[j, i, r]]]
            for j, side in enumerate(scores)
        ]
        found.append(statistics.auc(*sides))
    many = Dialogues(np.random.default_rng(0), 100_000, 1, of.icc)
    sides = [s.ravel() for s in auc_items(many, lift, levels, items)]
    truth = roc_auc_score(np.repeat([1, 0], [s.size for s in sides]), np.concatenate(sides))
    return stacked(found), float(truth)


def worlds() -> list[World]:
    """All worlds of the long table."""

    def of(make: Callable, *args: object) -> Callable[[Dialogues], tuple[LeftOut, float]]:
        return lambda dialogues: make(dialogues, *args)

    rare, some = "grades, 90 % are 0", "grades, 75 % are 0"
    found = [World("mean, normal", of(mean, "normal"), icc) for icc in (0.0, 0.3, 0.5)]
    found += [World("mean, normal", of(mean, "normal"), 0.3, "wild")]
    found += [World("mean, grades 0, 1, 2", of(mean, "grades 0, 1, 2"), icc) for icc in (0.3, 0.5)]
    found += [World(f"mean, {some}", of(mean, some), icc) for icc in (0.0, 0.3)]
    found += [World(f"mean, {rare}", of(mean, rare), 0.3)]
    found += [World(f"mean, {rare}, ends known", of(mean, rare), icc, kind=GRADE) for icc in (0.0, 0.3)]
    found += [World("mean, log-normal", of(mean, "log-normal"), icc) for icc in (0.0, 0.3)]
    for p in (0.5, 0.3, 0.1, 0.05):
        found += [World(f"share, {p:.0%}", of(mean, f"{p:.0%} hits"), 0.3, kind=SHARE)]
    found += [World("share, 30%", of(mean, "30% hits"), 0.5, kind=SHARE)]
    found += [World("share, 30%", of(mean, "30% hits"), 0.3, "wild", SHARE)]
    for icc, sizes in ((0.0, "gate"), (0.3, "gate"), (0.3, "wild")):
        found += [World("paired difference, normal", of(paired, *["normal"] * 2), icc, sizes, null=True)]
        found += [World("paired difference, graded", of(paired, *[rare] * 2), icc, sizes, null=True)]
    found += [World("paired difference, +0.2", of(paired, some, rare), icc) for icc in (0.0, 0.3, 0.5)]
    for icc, sizes in ((0.3, "gate"), (0.3, "wild")):
        found += [World("difference of other turns", of(unpaired, rare), icc, sizes, null=True)]
        found += [World("difference of other turns, normal", of(unpaired, "normal"), icc, sizes, null=True)]
    found += [World("AUC 0.5", of(auc, 0.0), icc, kind=SHARE) for icc in (0.0, 0.3)]
    found += [World("AUC 0.5, five levels", of(auc, 0.0, 5, 4), 0.3, "wild", SHARE)]
    found += [World("AUC 0.7, five levels", of(auc, 0.7, 5), 0.3, kind=SHARE)]
    found += [World("AUC 0.7, four of each", of(auc, 0.7, 5, 4), 0.5, "wild", SHARE)]
    found += [World("AUC 0.9", of(auc, 1.8), 0.3, kind=SHARE)]
    found += [World(f"kappa, {p:.0%}", of(kappa, p), icc, kind=COEFFICIENT)
              for p in (0.3, 0.5) for icc in (0.0, 0.3, 0.5)]  # fmt: skip
    found += [World("weighted kappa, 30%", of(kappa, 0.3, 3), 0.3, kind=COEFFICIENT)]
    return found


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
