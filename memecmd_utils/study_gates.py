"""Scores and gate of a run's turns as whole matrices: what the studies of threshold, K and worlds share."""

from typing import Literal, NamedTuple

import numpy as np

from memecmd_utils import retrieval
from memecmd_utils.selection import halves
from memecmd_utils.study_data import StudyData
from memecmd_utils.threshold import (
    Form,
    Gate,
    ScoreScale,
    calibrate_many,
    simulate_many,
    standard_scale,
)


class GateRule(NamedTuple):
    """How a gate is set: its scale, how its threshold falls, and theta0 or the rate it is fitted to."""

    scale: Literal["standard", "raw"]
    penalty: float
    decay: float
    form: Form = "exponential"
    theta0: float | None = None
    """None: fitted on the other half to the wanted rate."""


def own_rule(data: StudyData) -> GateRule:
    """The run's gate, with theta0 fitted where the profile says `auto`."""
    profile = data.profile
    theta0 = None if profile.theta0 == "auto" else profile.theta0
    return GateRule(
        profile.score_scale, profile.threshold_penalty, profile.threshold_decay, "exponential", theta0
    )


def own_scores(data: StudyData) -> np.ndarray:
    """The run's score T of every pair, [turns, memes] (Eq. 22), rounded as where memes are placed.

    So equal memes tie on every machine.
    """
    terms = data.terms(data.profile.embedder, data.profile.centring)
    return np.round(retrieval.combine(terms, data.profile.weights), 9)


def layout(data: StudyData) -> np.ndarray:
    """Row of every turn 2..T, [dialogues, longest]; -1 at a turn without a usable summary or past the end."""
    row = {key: i for i, key in enumerate(data.keys)}
    out = np.full((len(data.dialogues), max((len(d.summaries) for d in data.dialogues), default=0)), -1)
    for places, dialogue in zip(out, data.dialogues, strict=True):
        for place, summary in enumerate(dialogue.summaries):
            places[place] = row.get((dialogue.dialogue_id, summary.turn), -1)
    return out


def sent(data: StudyData, top1: np.ndarray, rule: GateRule, rates: np.ndarray | None = None) -> np.ndarray:
    """Where the gate opens for each of several sets of best scores, [sets, turns] to booleans of that shape.

    Scale and theta0 of a dialogue come from the other half (`selection.halves`), or from the dialogues that
    have a score where the other half has none. `rates` [sets, 2]: the rate wanted on what half a and half b
    were fitted on, by default the profile's; nan gives a gate that never opens.
    """
    where, split = layout(data), halves(data.dialogues)
    names = np.array([split[d.dialogue_id] for d in data.dialogues])
    scores = np.where(where >= 0, top1[:, where], -np.inf)
    out = np.zeros(top1.shape, dtype=bool)
    if not (where >= 0).any():
        return out
    for number, half in enumerate("ab"):
        fit, here = _fitted_on(names, where, half), names == half
        if not here.any():
            continue
        scale = [
            standard_scale(list(one[fit])) if rule.scale == "standard" else ScoreScale() for one in scores
        ]
        scaled = np.stack([s.apply(one) for s, one in zip(scale, scores, strict=True)])
        gate = Gate(rule.theta0 or 0.0, rule.penalty, rule.decay, rule.form)
        theta0: np.ndarray = np.full(len(top1), gate.theta0)
        if rule.theta0 is None:
            turns = sum(len(d.summaries) for d, chosen in zip(data.dialogues, fit, strict=True) if chosen)
            wanted = np.full(len(top1), data.profile.wanted_rate) if rates is None else rates[:, number]
            theta0 = calibrate_many(scaled[:, fit], gate, wanted, turns)
            theta0[np.isnan(wanted)] = np.inf
        opened = simulate_many(scaled[:, here], gate, theta0[:, None])
        places = where[here]
        out[:, places[places >= 0]] = opened[:, places >= 0]
    return out


def _fitted_on(names: np.ndarray, where: np.ndarray, half: str) -> np.ndarray:
    """Dialogues that a half's gate is fitted on, as in `selection.calibrate`: booleans."""
    other, scored = names != half, (where >= 0).any(axis=1)
    return other if (other & scored).any() else scored


def fit_rates(data: StudyData, sent_by: np.ndarray) -> np.ndarray:
    """Rate of memes where each half is fitted, [sets, turns] to [sets, 2]; nan if none is sent."""
    names = np.array([halves(data.dialogues)[d.dialogue_id] for d in data.dialogues])
    where, out = layout(data), np.full((len(sent_by), 2), np.nan)
    for number, half in enumerate("ab"):
        fit = _fitted_on(names, where, half)
        turns = sum(len(d.summaries) for d, chosen in zip(data.dialogues, fit, strict=True) if chosen)
        places = where[fit][where[fit] >= 0]
        out[:, number] = sent_by[:, places].sum(axis=1) / max(1, turns)
    out[out == 0] = np.nan
    return out
