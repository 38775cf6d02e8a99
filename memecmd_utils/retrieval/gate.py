"""The gate: when a meme is sent at all (paper, Section 4.2.2, Eq. 23)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

BISECTION_STEPS = 60
EQUAL = 1e-9
"""Scores no further apart than this, times their size, are equal: they are rounded to nine digits."""
Form = Literal["exponential", "linear", "fixed"]
"""How the threshold falls after a meme; the paper's is exponential."""


@dataclass(frozen=True)
class Gate:
    """theta_t = theta0 + penalty * exp(-decay * k), k turns after the session's last meme (Eq. 23).

    Other forms, to compare with: `linear` takes off `decay` of the penalty a turn until none is left;
    `fixed` has no penalty.
    """

    theta0: float
    penalty: float
    decay: float
    form: Form = "exponential"

    def rise(self, turns_since_last: float) -> float:
        """How far theta_t lies above theta0; nothing before the first meme, whatever the decay."""
        if math.isinf(turns_since_last) or self.form == "fixed":
            return 0.0
        if self.form == "linear":
            return self.penalty * max(0.0, 1 - self.decay * turns_since_last)
        return self.penalty * math.exp(-self.decay * turns_since_last)

    def threshold(self, turns_since_last: float) -> float:
        """Return theta_t (Eq. 23); `math.inf` stands for no meme so far."""
        return self.theta0 + self.rise(turns_since_last)


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
    return ScoreScale(float(pooled.mean()), float(spread(pooled)) or 1.0)


def spread(values: np.ndarray, axis: int | None = None) -> np.ndarray:
    """Standard deviation over `axis`, which is kept; 0 where all values are equal but for rounding."""
    keepdims = axis is not None
    size = np.abs(values).max(axis=axis, keepdims=keepdims)
    deviation = values.std(axis=axis, keepdims=keepdims)
    return np.where(np.ptp(values, axis=axis, keepdims=keepdims) > EQUAL * size, deviation, 0.0)


def _finite(dialogues: Sequence[np.ndarray]) -> np.ndarray:
    """All scores in one row, without the turns that have none (-inf)."""
    pooled = np.concatenate([*dialogues, np.empty(0)])
    pooled = pooled[np.isfinite(pooled)]
    if not len(pooled):
        raise ValueError("calibration needs at least one scored turn")
    return pooled


def simulate(scores: np.ndarray, gate: Gate) -> Trace:
    """Run the gate over one dialogue's top-1 scores in order: a meme goes out if score > theta_t (Eq. 23).

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


def simulate_many(scores: np.ndarray, gate: Gate, theta0: np.ndarray | float | None = None) -> np.ndarray:
    """`simulate` for many dialogues at once: scores [..., turns] to decisions of the same shape.

    `theta0`, broadcast over the leading axes, takes the place of the gate's.
    """
    base = gate.theta0 if theta0 is None else theta0
    turns = scores.shape[-1]
    rises = np.array([*(gate.rise(k) for k in range(turns)), gate.rise(math.inf)])
    since = np.full(scores.shape[:-1], turns)  # the last of `rises`: no meme so far
    sent = np.zeros(scores.shape, dtype=bool)
    for position in range(turns):
        since = np.minimum(since + 1, turns)
        sent[..., position] = scores[..., position] > base + rises[since]
        since[sent[..., position]] = 0
    return sent


def calibrate_theta0(
    dialogues: Sequence[np.ndarray],
    penalty: float,
    decay: float,
    wanted_rate: float,
    form: Form = "exponential",
) -> float:
    """Find theta0 whose simulated meme rate is nearest to `wanted_rate`, by bisection.

    The gate has memory, so the rate need not fall evenly; the best value met on the way is kept.
    """
    gate, longest = Gate(0.0, penalty, decay, form), max(map(len, dialogues), default=0)
    padded = np.full((1, len(dialogues), longest), -np.inf)
    for row, scores in zip(padded[0], dialogues, strict=True):
        row[: len(scores)] = scores
    return float(calibrate_many(padded, gate, wanted_rate, sum(map(len, dialogues)))[0])


def calibrate_many(scores: np.ndarray, gate: Gate, wanted_rate: float | np.ndarray, turns: int) -> np.ndarray:
    """theta0 for each of several sets of scores, [sets, dialogues, longest] to [sets].

    `wanted_rate` is one for all sets or one for each. Places beyond a dialogue's end hold -inf, as turns
    without a score do; `turns` is how many count.
    """
    for dialogues in scores:
        _finite(dialogues)
    low = np.where(np.isfinite(scores), scores, np.inf).min(axis=(1, 2)) - gate.penalty - 1e-6
    high = scores.max(axis=(1, 2))
    best, best_gap = high.copy(), np.full(len(scores), np.inf)
    for _ in range(BISECTION_STEPS):
        middle = (low + high) / 2
        rate = simulate_many(scores, gate, middle[:, None]).sum(axis=(1, 2)) / turns
        gap = np.abs(rate - wanted_rate)
        best, best_gap = np.where(gap < best_gap, middle, best), np.minimum(gap, best_gap)
        low, high = np.where(rate > wanted_rate, middle, low), np.where(rate > wanted_rate, high, middle)
    return best
