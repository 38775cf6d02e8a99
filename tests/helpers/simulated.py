"""Made-up dialogues whose truth is known: how often do intervals hold it, how often are p-values small?

Each world draws many replications at once. Values of a dialogue share a part of their spread (`icc`);
dialogues differ in size as the gate makes them (1 + Poisson 4 memes) or wildly (1 to 60). It is no data.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri

from memecmd_utils import statistics
from memecmd_utils.statistics import LeftOut

GRADED = {0.5: 0.90, 1.0: 0.935, 1.5: 0.978, 2.0: 0.99}
"""Mean grades of the example's memes at random: 90 % are 0, 6.5 % are 1 or more."""
CHOSEN = {0.5: 0.745, 1.0: 0.80, 1.5: 0.915, 2.0: 0.953}
"""The same of Greedy's memes."""


def steps(z: np.ndarray, cuts: dict[float, float]) -> np.ndarray:
    """Normal values to grades: each grade from its quantile on."""
    return np.array([0.0, *cuts])[np.searchsorted(ndtri(list(cuts.values())), z)]


def mean_of(cuts: dict[float, float]) -> float:
    """The mean of `steps`."""
    values, tails = np.array([0.0, *cuts]), 1 - np.array([0.0, *cuts.values(), 1.0])
    return float(values @ -np.diff(tails))


SHAPES: dict[str, tuple[Callable[[np.ndarray], np.ndarray], float]] = {
    "normal": (lambda z: z, 0.0),
    "grades 0, 1, 2": (lambda z: steps(z, {1.0: 0.5, 2.0: 0.8}), 0.7),
    "grades, 90 % are 0": (lambda z: steps(z, GRADED), mean_of(GRADED)),
    "grades, 75 % are 0": (lambda z: steps(z, CHOSEN), mean_of(CHOSEN)),
    "log-normal": (np.exp, float(np.exp(0.5))),
    **{f"{p:.0%} hits": (lambda z, p=p: (z > ndtri(1 - p)).astype(float), p) for p in (0.5, 0.3, 0.1, 0.05)},
}
"""What becomes of a standard normal value, and the mean of that."""


@dataclass(frozen=True)
class Dialogues:
    """Normal values [dialogues, replications, items] of several things, which share half of that part."""

    rng: np.random.Generator
    n: int
    replications: int
    icc: float
    sizes: str = "gate"

    def there(self) -> np.ndarray:
        """Which items there are, booleans [dialogues, replications, most items]."""
        shape = self.n, self.replications
        if self.sizes == "gate":
            count = 1 + self.rng.poisson(4, shape)
        else:
            count = np.ceil(self.rng.lognormal(1.5, 1, shape)).clip(1, 60).astype(int)
        return np.arange(count.max()) < count[..., None]

    def normal(self, items: int, things: int = 1) -> np.ndarray:
        """Standard normal values [things, dialogues, replications, items]."""
        own, shared = (self.rng.normal(size=(k, self.n, self.replications, 1)) for k in (things, 1))
        between = own if things == 1 else (own + shared) / np.sqrt(2)
        within = self.rng.normal(size=(things, self.n, self.replications, items))
        return np.sqrt(self.icc) * between + np.sqrt(1 - self.icc) * within


def mean(of: Dialogues, shape: str) -> tuple[LeftOut, float]:
    """A mean over items."""
    make, truth = SHAPES[shape]
    there = of.there()
    values = make(of.normal(there.shape[-1])[0])
    return statistics.ratio((values * there).sum(-1), there.sum(-1).astype(float)), truth


def paired(of: Dialogues, one: str, other: str) -> tuple[LeftOut, float]:
    """The mean of a difference, item by item; both sides share their dialogue's part."""
    there = of.there()
    a, b = (SHAPES[s][0](z) for s, z in zip((one, other), of.normal(there.shape[-1], 2), strict=True))
    top = ((a - b) * there).sum(-1)
    return statistics.ratio(top, there.sum(-1).astype(float)), SHAPES[one][1] - SHAPES[other][1]


def unpaired(of: Dialogues, shape: str) -> tuple[LeftOut, float]:
    """The difference of two means over different items of the same dialogues; there is none."""
    (one, _), (other, _) = mean(of, shape), mean(of, shape)
    return one.minus(other), 0.0


def kappa_sums(of: Dialogues, prevalence: float, classes: int) -> np.ndarray:
    """What kappa is made of, [5, dialogues, replications], from two raters of 17 items a dialogue."""
    z = of.normal(17)[0]
    said = [np.sqrt(0.8) * z + np.sqrt(0.2) * of.rng.normal(size=z.shape) for _ in range(2)]
    cuts = ndtri(1 - prevalence / np.array([1, 3])[: classes - 1])
    x, y = (np.digitize(values, cuts).astype(float) for values in said)
    return np.stack([np.ones_like(x), x, y, x**2 + y**2, (x - y) ** 2]).sum(axis=-1)


def kappa(of: Dialogues, prevalence: float, classes: int = 2) -> tuple[LeftOut, float]:
    """Weighted kappa of two raters."""
    share = np.full((of.n, of.replications), 1 / of.n)
    found = statistics.leave_out(statistics.kappa, share, *kappa_sums(of, prevalence, classes))
    many = kappa_sums(Dialogues(np.random.default_rng(0), 20_000, 1, of.icc), prevalence, classes)
    return found, float(statistics.kappa(*many.sum(axis=(1, 2))))


@dataclass(frozen=True)
class World:
    """One kind of made-up data and what is estimated of it; `kind` as in `statistics.interval`."""

    what: str
    make: Callable[[Dialogues], tuple[LeftOut, float]]
    icc: float
    sizes: str = "gate"
    kind: statistics.Kind = statistics.DIFFERENCE
    null: bool = False
    """Whether this world has no effect: p-values are looked at."""

    def coverage(self, n: int, replications: int, seed: int = 1) -> tuple[float, float, float]:
        """How often 95 % intervals over `n` dialogues hold the truth, how often there is one, and p <= 0.05.

        nan where there is no interval, or no null to be tested.
        """
        of = Dialogues(np.random.default_rng(seed), n, replications, self.icc, self.sizes)
        found, truth = self.make(of)
        low, high = statistics.interval(found, self.kind)
        given = np.isfinite(low)
        held = ((low - 1e-9 <= truth) & (truth <= high + 1e-9))[given]
        p = statistics.p_value(found) if self.null else np.full(replications, np.nan)
        small = np.mean(p <= 0.05) if np.isfinite(p).any() else np.nan
        return float(held.mean()) if given.any() else np.nan, float(given.mean()), float(small)
