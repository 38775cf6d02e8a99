"""Study 9: the worlds. Every open choice of the paper crossed, and what each reading ranks and sends."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

import numpy as np

from memecmd_utils import ablation, fast_retrieval, retrieval, study_gates
from memecmd_utils.fast_retrieval import DEPTH, Graded
from memecmd_utils.study_data import CENTRINGS, StudyData
from memecmd_utils.study_gates import GateRule

BETA = {"+": 1, "-": -1}
"""Sign of beta: the text of the paper wants emotions alike, its Eq. 20 prints a minus."""
FITTED = "fitted"
WEIGHTS = {"equal": (1, 1, 1, 1), "alpha doubled": (2, 1, 1, 1), "delta 0": (1, 0, 1, 1)}
"""Weights in thirds, as the run's are; `FITTED` ones are scaled to the sum of equal ones."""
KS = (3, 5)
GATES = {
    "standard, fitted": GateRule("standard", 1.0, 1.0),
    "raw, fitted": GateRule("raw", 0.2, 1.0),
    "raw, paper's": GateRule("raw", 0.2, 1.0, "exponential", 0.7),
}
RANDOMS = ("half of the turns", "the gate's rate", "the gate's turns")
EXPECTED_RANDOMS = ("any turns", RANDOMS[2])
"""Of an expected mean, out of which cancels how often Random sends: the first two readings are one world."""


class Scoring(NamedTuple):
    """The choices that make a ranking."""

    embedder: str
    centring: str
    beta: str
    weights: str


class World(NamedTuple):
    """One way to read the paper; an axis on which a claim does not depend holds `–`."""

    embedder: str
    centring: str
    beta: str
    weights: str
    k: str
    gate: str
    random: str


@dataclass(frozen=True)
class Ranked:
    """What every scoring puts first: `top` [scorings, turns, 5] are positions, `top1` their best scores.

    `ndcg` [scorings, relevant turns] is nDCG@5 of the full score, `single` [scorings, 4, relevant turns]
    that of each term alone, with the scoring's sign of beta; `relevant` are the turns that have one.
    """

    scorings: list[Scoring]
    top: np.ndarray
    top1: np.ndarray
    relevant: np.ndarray
    ndcg: np.ndarray
    single: np.ndarray

    @property
    def ks(self) -> list[int]:
        """`KS`, each no larger than the library, and so none twice."""
        return list(dict.fromkeys(min(k, self.top.shape[2]) for k in KS))


def axes(scorings: Sequence[Scoring]) -> dict[str, list[str]]:
    """The values of every axis, in the order of `World`."""
    own = {name: list(dict.fromkeys(getattr(s, name) for s in scorings)) for name in Scoring._fields}
    return {**own, "k": [str(k) for k in KS], "gate": list(GATES), "random": list(RANDOMS)}


def rank(data: StudyData) -> Ranked:
    """Rank the library under every scoring. Without grades no weights can be fitted: those are left out."""
    known = fast_retrieval.of_study(data)
    rows = known.rows
    of: dict[Scoring, tuple[np.ndarray, ...]] = {}
    for embedder, centring, beta in product(data.encoders, CENTRINGS, BETA):
        terms = data.terms(embedder, centring) * np.array([1, 1, BETA[beta], 1])[:, None, None]
        single = np.array([known.ndcg(retrieval.best_memes(t[rows], data.meme_ids, DEPTH)) for t in terms])
        weights = {
            name: {half: np.array(w) / 3 for half in "ab"} for name, w in WEIGHTS.items()
        } | fitted_weights(data, terms, known)
        for name, by_half in weights.items():
            in_a = np.round(retrieval.combine(terms, by_half["a"]), 9)
            scores = in_a
            if name == FITTED:
                in_b = np.round(retrieval.combine(terms, by_half["b"]), 9)
                scores = np.where(data.half[:, None] == "a", in_a, in_b)
            top = retrieval.best_memes(scores, data.meme_ids, DEPTH)
            top1 = np.take_along_axis(scores, top[:, :1], axis=1)[:, 0]
            of[Scoring(embedder, centring, beta, name)] = top, top1, known.ndcg(top[rows]), single
    top, top1, measured, single = (np.array(part) for part in zip(*of.values(), strict=True))
    return Ranked(list(of), top, top1, rows, measured, single)


def fitted_weights(data: StudyData, terms: np.ndarray, known: Graded) -> dict[str, Mapping[str, np.ndarray]]:
    """For each half the weights with the best mean nDCG@5 on the other one, as `{FITTED: {half: weights}}`.

    Where the other half has no relevant turn its own serve; where there are none at all the dict is empty.
    """
    if not len(known.rows):
        return {}
    values, half = ablation.ndcg_by_weights(terms, known), data.half[known.rows]
    fits = {one: half != one if (half != one).any() else half == one for one in "ab"}
    best = {one: ablation.best_weights(values[:, fit]) for one, fit in fits.items()}
    return {FITTED: {one: ablation.TENTHS[number] / 10 * 4 / 3 for one, number in best.items()}}


def open_gates(data: StudyData, ranked: Ranked) -> tuple[np.ndarray, np.ndarray]:
    """Where each gate opens, [gates, scorings, turns], and where a fixed threshold of the same rate does.

    The fixed threshold is fitted to the wanted rate, or beside the paper's own numbers to the rate that
    these give on the half that is fitted on; where they send nothing it sends nothing.
    """
    own, fixed = [], []
    for rule in GATES.values():
        own.append(study_gates.sent(data, ranked.top1, rule))
        rates = None if rule.theta0 is None else study_gates.fit_rates(data, own[-1])
        plain = rule._replace(penalty=0.0, form="fixed", theta0=None)
        fixed.append(study_gates.sent(data, ranked.top1, plain, rates))
    return np.array(own), np.array(fixed)
