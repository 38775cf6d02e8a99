"""Scores and gate of a run's turns as whole matrices: what the studies of threshold, K and worlds share."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd

from memecmd_utils.core import storage
from memecmd_utils.core import tables as core_tables
from memecmd_utils.evaluation import tables as evaluation_tables
from memecmd_utils.evaluation.graded_turns import StudyData
from memecmd_utils.retrieval import scoring
from memecmd_utils.retrieval.gate import Form, Gate, ScoreScale, calibrate_many, simulate_many, standard_scale
from memecmd_utils.retrieval.placement import halves
from memecmd_utils.runs import Run


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
    theta0 = None if profile.retrieval.theta0 == "auto" else profile.retrieval.theta0
    return GateRule(
        profile.retrieval.score_scale,
        profile.retrieval.threshold_penalty,
        profile.retrieval.threshold_decay,
        "exponential",
        theta0,
    )


def own_scores(data: StudyData) -> np.ndarray:
    """The run's score T of every pair, [turns, memes] (Eq. 22), rounded as where memes are placed.

    So equal memes tie on every machine.
    """
    terms = data.terms(data.profile.models.embedder, data.profile.retrieval.centring)
    return np.round(scoring.combine(terms, data.profile.retrieval.weights), 9)


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

    Scale and theta0 of a dialogue come from the other half (`placement.halves`), or from the dialogues that
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
            wanted = (
                np.full(len(top1), data.profile.retrieval.wanted_rate) if rates is None else rates[:, number]
            )
            theta0 = calibrate_many(scaled[:, fit], gate, wanted, turns)
            theta0[np.isnan(wanted)] = np.inf
        opened = simulate_many(scaled[:, here], gate, theta0[:, None])
        places = where[here]
        out[:, places[places >= 0]] = opened[:, places >= 0]
    return out


def _fitted_on(names: np.ndarray, where: np.ndarray, half: str) -> np.ndarray:
    """Dialogues that a half's gate is fitted on, as in `placement.calibrate`: booleans."""
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


# --- Stage 05b: what the studies of the open points found, gathered for page, README and release


FILE = "studies.json"


@dataclass
class Studies:
    """Tables of the studies by name, and for each study one sentence that says what was found."""

    tables: dict[str, pd.DataFrame] = field(default_factory=dict)
    sentences: dict[str, str] = field(default_factory=dict)

    def add(self, study: str, sentence: str, **tables: pd.DataFrame) -> str:
        """Keep a study's sentence and tables; return the sentence. A name taken twice is an error."""
        if study in self.sentences or self.tables.keys() & tables.keys():
            raise ValueError(
                f"the study {study!r} or one of its tables ({', '.join(tables)}) is there already"
            )
        self.sentences[study] = sentence
        self.tables |= tables
        return sentence

    def save(self, run: Run) -> None:
        """Write every table as CSV, Markdown and LaTeX, and `studies.json` for whoever quotes them."""
        core_tables.save(run.report / "tables", **self.tables)
        rows = {name: evaluation_tables.frame_rows(table) for name, table in self.tables.items()}
        # JSON objects are written with their names sorted: the order of columns stands beside them.
        columns = {name: list(table.columns) for name, table in self.tables.items()}
        found = {"sentences": self.sentences, "tables": rows, "columns": columns}
        storage.write_json(run.write(FILE), found)


def load(run: Run) -> dict[str, Mapping[str, Any]]:
    """`sentences`, `tables` (rows) and `columns` of a run as they were saved."""
    return json.loads(run.read(FILE).read_text(encoding="utf-8"))
