"""The gate: when a meme is sent at all (paper, Section 4.2.2, Eq. 23)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

BISECTION_STEPS = 60


@dataclass(frozen=True)
class Gate:
    """theta_t = theta0 + penalty * exp(-decay * k), k turns after the session's last meme."""

    theta0: float
    penalty: float
    decay: float

    def threshold(self, turns_since_last: float) -> float:
        """Return theta_t (Eq. 23); `math.inf` before the first meme gives theta0, whatever the decay."""
        if math.isinf(turns_since_last):
            return self.theta0
        return self.theta0 + self.penalty * math.exp(-self.decay * turns_since_last)


@dataclass(frozen=True)
class Trace:
    """What the gate did in one dialogue: thresholds and decisions, one per score."""

    thresholds: np.ndarray
    sent: np.ndarray


@dataclass(frozen=True)
class ScoreScale:
    """z = (T - mean) / std of the top-1 scores on the calibration dialogues; (0, 1) is the raw scale."""

    mean: float = 0.0
    std: float = 1.0

    def apply(self, scores: np.ndarray) -> np.ndarray:
        """Put raw scores on this scale."""
        return (np.asarray(scores, dtype=np.float64) - self.mean) / self.std


def standard_scale(top1: Sequence[np.ndarray]) -> ScoreScale:
    """Fit the scale on top-1 scores, one array a dialogue. Equal scores give std 1."""
    pooled = _finite(top1)
    return ScoreScale(float(pooled.mean()), float(pooled.std()) or 1.0)


def _finite(dialogues: Sequence[np.ndarray]) -> np.ndarray:
    """All scores in one row, without the turns that have none (-inf)."""
    pooled = np.concatenate([*dialogues, np.empty(0)])
    pooled = pooled[np.isfinite(pooled)]
    if not len(pooled):
        raise ValueError("calibration needs at least one scored turn")
    return pooled


def simulate(scores: np.ndarray, gate: Gate) -> Trace:
    """Run the gate over one dialogue's top-1 scores in turn order; a meme goes out if score > theta_t.

    k counts turns since the last meme of the session, whoever sent it.
    """
    thresholds, sent = np.empty(len(scores)), np.zeros(len(scores), dtype=bool)
    since = math.inf
    for position, score in enumerate(scores):
        since += 1
        thresholds[position] = gate.threshold(since)
        if score > thresholds[position]:
            sent[position], since = True, 0
    return Trace(thresholds, sent)


def meme_rate(dialogues: Sequence[np.ndarray], gate: Gate) -> float:
    """Share of turns with a meme over several dialogues."""
    turns = sum(len(scores) for scores in dialogues)
    return sum(int(simulate(scores, gate).sent.sum()) for scores in dialogues) / turns


def calibrate_theta0(
    dialogues: Sequence[np.ndarray], penalty: float, decay: float, wanted_rate: float
) -> float:
    """Find theta0 whose simulated meme rate is nearest to `wanted_rate`, by bisection.

    The gate has memory, so the rate is not a quantile of the scores and need not fall evenly as theta0
    rises; the best value met on the way is kept.
    """
    pooled = _finite(dialogues)
    low, high = float(pooled.min()) - penalty - 1e-6, float(pooled.max())
    best, best_gap = high, math.inf
    for _ in range(BISECTION_STEPS):
        middle = (low + high) / 2
        rate = meme_rate(dialogues, Gate(middle, penalty, decay))
        if abs(rate - wanted_rate) < best_gap:
            best, best_gap = middle, abs(rate - wanted_rate)
        if rate > wanted_rate:
            low = middle
        else:
            high = middle
    return best
