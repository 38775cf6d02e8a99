"""Study 9: the specification curve. In which share of all readings of the paper does each claim hold?

Every open choice of the paper is crossed with every other; no reading is called the right one. All are
measured on the same dialogues, so they differ by their choices alone (Simonsohn, Simmons and Nelson, 2020,
Nature Human Behaviour 4).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from memecmd_utils import retrieval, statistics
from memecmd_utils.evaluation import consistency, graded_turns
from memecmd_utils.evaluation.graded_turns import DEPTH, Graded, StudyData
from memecmd_utils.evaluation.judges import STOPPED
from memecmd_utils.evaluation.rankings import CENTRINGS
from memecmd_utils.llm.messages import UNRECORDED
from memecmd_utils.schemas import Rating
from memecmd_utils.statistics import too_few
from memecmd_utils.studies import ablation, selection
from memecmd_utils.studies.selection import GateRule

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
"""Of an expected mean, out of which cancels how often Random sends: the first two readings are one."""


class Scoring(NamedTuple):
    """The choices that make a ranking."""

    embedder: str
    centring: str
    beta: str
    weights: str


CHOICES = (*Scoring._fields, "k", "gate", "random")
"""What makes one way to read the paper; a choice on which a claim does not depend is `–`."""


@dataclass(frozen=True)
class Rankings:
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


def rank(data: StudyData) -> Rankings:
    """Rank the library under every scoring. Without grades no weights can be fitted: those are left out."""
    known = graded_turns.graded_of_study(data)
    rows = known.rows
    by_scoring: dict[Scoring, tuple[np.ndarray, ...]] = {}
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
            by_scoring[Scoring(embedder, centring, beta, name)] = top, top1, known.ndcg(top[rows]), single
    top, top1, measured, single = (np.array(part) for part in zip(*by_scoring.values(), strict=True))
    return Rankings(list(by_scoring), top, top1, rows, measured, single)


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


def open_gates(data: StudyData, ranked: Rankings) -> tuple[np.ndarray, np.ndarray]:
    """Where each gate opens, [gates, scorings, turns], and where a fixed threshold of the same rate does.

    The fixed threshold is fitted to the wanted rate, or beside the paper's own numbers to the rate that
    these give on the half that is fitted on; where they send nothing it sends nothing.
    """
    own, fixed = [], []
    for rule in GATES.values():
        own.append(selection.open_turns(data, ranked.top1, rule))
        rates = None if rule.theta0 is None else selection.fit_rates(data, own[-1])
        plain = rule._replace(penalty=0.0, form="fixed", theta0=None)
        fixed.append(selection.open_turns(data, ranked.top1, plain, rates))
    return np.array(own), np.array(fixed)


# --- What the memes of every specification are worth, by every measure, as sums over dialogues
# A measure is a matrix of values, one for each turn and meme, and a strategy's mean is a sum of values over a
# number of memes. For grades and text consistency both are exact expectations: Sampling is the mean over the
# top K, Random the mean over the library (how often it sends cancels out of a mean). A judge has been asked
# about single placed memes only, so there the run's own draws are made, the same in all specifications.


ASKED_FROM = 0.9
"""Share of a specification's placed memes that a judge must have been asked about."""
HALF = 0.5
"""How often the paper's Random sends."""


class StrategySums(NamedTuple):
    """Of one strategy, each [scorings, K, gates, readings of Random, dialogues] or 1 where all is the same.

    Readings of Random are `RANDOMS` for a measure that was asked, else `EXPECTED_RANDOMS`.
    The strategy's mean is `top` over `bottom`; of `placed` memes `asked` were put to the measure.
    """

    top: np.ndarray
    bottom: np.ndarray
    placed: np.ndarray
    asked: np.ndarray

    @property
    def mean(self) -> statistics.LeftOut:
        """The mean in every specification."""
        top, bottom = np.broadcast_arrays(self.top, self.bottom)
        return statistics.ratio(np.moveaxis(top, -1, 0), np.moveaxis(bottom, -1, 0))

    def within(self, dialogues: np.ndarray) -> "StrategySums":
        """The same of some dialogues."""
        return StrategySums(*(values[..., dialogues] for values in self))


@dataclass(frozen=True)
class Measure:
    """Values by the embedder that retrieves, [turns, memes]; nan is not known.

    `zero`: an unknown value counts as 0, otherwise the meme is left out. `asked` is None where the measure
    knows what it can of every meme, else where it was asked.
    """

    name: str
    values: Mapping[str, np.ndarray]
    zero: bool = False
    asked: np.ndarray | None = None

    def known(self, embedder: str) -> tuple[np.ndarray, np.ndarray]:
        """Values with 0 for unknown ones, and what each pair adds to the number of memes."""
        values = self.values[embedder]
        return np.nan_to_num(values), np.ones(values.shape) if self.zero else np.isfinite(values).astype(
            float
        )


def measures(data: StudyData, ratings: Sequence[Rating] = ()) -> list[Measure]:
    """Each grader with ungraded memes as 0 or left out, text consistency by position, every judge."""
    out = []
    for grader in data.truth.graders:
        values = dict.fromkeys(data.encoders, data.grades_of(grader))
        out.append(Measure(f"{grader}, ungraded as 0", values, zero=True))
        out.append(Measure(f"{grader}, ungraded left out", values))
    for name, back in (("consistency with u_t", 0), ("consistency with u_t-1", 1)):
        values = {e: text_consistency(data, other, back) for e, other in _others(data).items()}
        if len(values) == len(data.encoders) and all(np.isfinite(v).any() for v in values.values()):
            out.append(Measure(name, values))
    for judge in dict.fromkeys(r.judge for r in ratings):
        values, asked = _judged(data, [r for r in ratings if r.judge == judge])
        out.append(Measure(f"judge {judge}", dict.fromkeys(data.encoders, values), asked=asked))
    return out


def _others(data: StudyData) -> dict[str, str]:
    """For each embedder that retrieves one that did not: it must not measure its own choice."""
    names = list(data.encoders)
    return {name: next(n for n in names if n != name) for name in names if len(names) > 1}


def text_consistency(data: StudyData, embedder: str, back: int) -> np.ndarray:
    """50 (cos + 1) of every caption and u_t, or the turn `back` before it (Eq. 26), [turns, memes].

    A meme without any words has nan.
    """
    words = [consistency.meme_words(data.memes[name]) for name in data.meme_ids]
    texts = [q.dialogue.turns[q.turn - 1 - back].text for q in data.asked]
    encode = data.encoders[embedder]
    able = [i for i, text in enumerate(words) if text]
    out = np.full((len(texts), len(words)), np.nan)
    if able and texts:
        memes = encode([words[i] for i in able], "document").astype(np.float64)
        out[:, able] = consistency.score(encode(texts, "document").astype(np.float64) @ memes.T)
    return out


def _judged(data: StudyData, ratings: Sequence[Rating]) -> tuple[np.ndarray, np.ndarray]:
    """Mean overall score of every pair that was asked about, and which pairs those are.

    What is not on record, and what a judge that was stopped early was spared, was not asked.
    """
    total, count, asked = (np.zeros((len(data.keys), len(data.meme_ids))) for _ in range(3))
    for rating in ratings:
        i, j = data.row.get((rating.dialogue_id, rating.turn)), data.column.get(rating.meme_id)
        full_length = rating.judge_unit == "meme" or rating.n_turns == data.profile.dialogue.n_turns
        if i is None or j is None or not full_length:
            continue
        asked[i, j] = max(asked[i, j], not rating.unscored.startswith((UNRECORDED, STOPPED)))
        if rating.overall is not None:
            total[i, j] += rating.overall
            count[i, j] += 1
    return np.where(count > 0, total / np.maximum(count, 1), np.nan), asked


def dialogue_sums(
    data: StudyData, ranked: Rankings, sent: np.ndarray, measure: Measure
) -> dict[str, StrategySums]:
    """Sums of all strategies in every specification; `sent` is [gates, scorings, turns]."""
    parts: list[dict[str, StrategySums]] = []
    for embedder in dict.fromkeys(s.embedder for s in ranked.scorings):
        own = np.array([s.embedder == embedder for s in ranked.scorings])
        make = _expected if measure.asked is None else _drawn
        parts.append(make(data, ranked.top[own], sent[:, own], measure, embedder, ranked.ks))
    return {name: join([part[name] for part in parts], 0) for name in parts[0]}


def join(parts: Sequence[StrategySums], axis: int) -> StrategySums:
    """Specifications side by side."""
    return StrategySums(*(np.concatenate(arrays, axis=axis) for arrays in zip(*parts, strict=True)))


def by_dialogue(data: StudyData, values: np.ndarray) -> np.ndarray:
    """Sums over the turns of each dialogue, [..., turns] to [..., dialogues]."""
    return np.add.reduceat(values, [rows[0] for rows in data.rows_of.values()], axis=-1)


def by_gate(data: StudyData, values: np.ndarray) -> np.ndarray:
    """The same of [gates, scorings, turns], as [scorings, 1, gates, 1, dialogues]."""
    return by_dialogue(data, values).transpose(1, 0, 2)[:, None, :, None]


def _expected(
    data: StudyData, top: np.ndarray, sent: np.ndarray, measure: Measure, embedder: str, ks: Sequence[int]
) -> dict[str, StrategySums]:
    """Exact expectations for the scorings of one embedder; arrays are [gates, scorings, turns]."""
    value, count = measure.known(embedder)
    turns = np.arange(len(value))[:, None]

    def mean(matrix: np.ndarray, depth: int) -> np.ndarray:
        """Mean over the first memes of every turn, [scorings, turns]."""
        return matrix[turns, top[:, :, :depth]].mean(axis=-1)

    def anywhere(values: np.ndarray) -> np.ndarray:
        return np.broadcast_to(by_dialogue(data, values), (*sent.shape[1::-1], len(data.rows_of)))[:, None]

    def both_readings(values: np.ndarray) -> np.ndarray:
        return np.stack([anywhere(values), by_gate(data, sent * values)[:, :, :, 0]], axis=3)

    placed, library = by_gate(data, sent * np.ones(len(value))), both_readings(np.ones(len(value)))
    top_1, *top_k = (
        StrategySums(*(by_gate(data, sent * mean(m, k)) for m in (value, count)), placed, placed)
        for k in (1, *ks)
    )
    random = (both_readings(matrix.mean(axis=1)) for matrix in (value, count))
    return {
        "greedy": top_1,
        "sampling": join(top_k, 1)._replace(placed=placed, asked=placed),
        "random": StrategySums(*random, library, library),
    }


class Draws(NamedTuple):
    """The draws of `placement.choose` at every turn: rank among K, meme of the library, coin."""

    rank: np.ndarray
    meme: np.ndarray
    coin: np.ndarray


def draws_of(data: StudyData, strategy: str, k: int) -> Draws:
    """One draw a turn, the same in every specification, and in the run's own specification the run's."""
    k, n = min(k, len(data.meme_ids)), len(data.meme_ids)
    drawn: dict[tuple[str, int], tuple[int, int, float]] = {}
    for dialogue in data.dialogues:
        rng = statistics.rng(data.profile.seed, "selection", strategy, dialogue.dialogue_id)
        for summary in dialogue.summaries:
            numbers = int(rng.integers(k)), int(rng.integers(n)), rng.random()
            drawn[dialogue.dialogue_id, summary.turn] = numbers
    return Draws(*map(np.array, zip(*(drawn[key] for key in data.keys), strict=True)))


def _drawn(
    data: StudyData, top: np.ndarray, sent: np.ndarray, measure: Measure, embedder: str, ks: Sequence[int]
) -> dict[str, StrategySums]:
    """As the run draws its memes, for the scorings of one embedder."""
    value, count = measure.known(embedder)
    turns = np.arange(len(value))
    asked = np.asarray(measure.asked)

    def sums_of(memes: np.ndarray, where: np.ndarray) -> StrategySums:
        """Chosen `memes` [scorings, turns] at `where` [gates, scorings, turns]."""
        parts = (matrix[turns, memes] for matrix in (value, count, np.ones_like(value), asked))
        return StrategySums(*(by_gate(data, where * p) for p in parts))

    ranks = [draws_of(data, "sampling", k).rank for k in ks]
    anyone, there = (draws_of(data, s, data.profile.retrieval.top_k) for s in ("random", "random_same_turns"))
    half = np.broadcast_to(anyone.coin < HALF, sent.shape)
    as_often = anyone.coin < sent.mean(axis=-1, keepdims=True)
    readings = ((anyone, half), (anyone, as_often), (there, sent))  # in the order of `RANDOMS`
    library = [sums_of(np.broadcast_to(drawn.meme, top.shape[:2]), where) for drawn, where in readings]
    return {
        "greedy": sums_of(top[:, :, 0], sent),
        "sampling": join([sums_of(top[:, turns, rank], sent) for rank in ranks], 1),
        "random": join(library, 3),
    }


# --- What each specification says of each claim


CLAIMS = {
    1: "Greedy beats Random",
    2: "Sampling beats Random",
    3: "Greedy is at least as good as Sampling",
    4: "Greedy repeats memes within a dialogue more often than Sampling",
    5: "both beat Random in news and in role dialogues",
    6: "the full score beats each single dimension",
    7: "the decaying threshold has fewer memes right after another than a fixed one",
}
COLUMNS = ("claim", *CHOICES, "measure", "mean", "low", "high", "dialogues", "state")
STATES = ("clear", "sign only", "not", "clearly opposite", "cannot tell", "not asked")
"""The interval leaves out 0; the estimate has the claim's sign; it has not; the interval lies on the other
side; no meme was sent (or a kind of dialogue is missing); the judge was not asked."""


class ClaimEstimate(NamedTuple):
    """A claim's estimate in every specification, each [scorings, K, gates, readings of Random].

    An axis on which it does not depend has length 1. `dialogues` are those that its interval is over,
    `asked` the share of the memes that a judge was asked about.
    """

    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray
    dialogues: np.ndarray
    asked: np.ndarray


def specifications(data: StudyData, ratings: Sequence[Rating] = ()) -> pd.DataFrame:
    """One row for every claim, specification and measure, with estimate, interval and state (`STATES`).

    An axis on which a claim does not depend holds `–`. The estimate is the difference that the claim wants
    positive; of a claim that says several things at once it is the smallest of them, and so are the ends of
    its interval. `ratings` are those of local judges; a judge's specification counts where 90 % were asked.
    """
    if not data.asked or not data.annotations:
        return pd.DataFrame(columns=list(COLUMNS))
    ranked = rank(data)
    sent, fixed = open_gates(data, ranked)
    rows: list[tuple] = []
    for measure in measures(data, ratings):
        sums = dialogue_sums(data, ranked, sent, measure)
        for claim, found in claims_of_measure(data, sums):
            if measure.asked is not None:  # where nothing was placed a judge was asked nothing
                found = found._replace(asked=np.nan_to_num(found.asked))
            rows += _rows(claim, measure.name, ranked, found, also_zero=claim == 3)
    rows += _rows(4, "repeats", ranked, repeats(data, ranked, sent))
    if len(ranked.relevant):
        rows += _rows(6, "nDCG@5", ranked, full_and_single(data, ranked))
    rows += _rows(7, "follow-ups", ranked, spacing(data, sent, fixed))
    table = pd.DataFrame(rows, columns=list(COLUMNS))
    return table.sort_values("claim", kind="stable", ignore_index=True)


def claims_of_measure(data: StudyData, sums: dict[str, StrategySums]) -> Iterator[tuple[int, ClaimEstimate]]:
    """Claims 1, 2, 3 and 5 under one measure."""
    yield 1, minus(sums["greedy"], sums["random"])
    yield 2, minus(sums["sampling"], sums["random"])
    yield 3, minus(sums["greedy"], sums["sampling"])
    kind_of = {d.dialogue_id: d.kind for d in data.dialogues}
    kinds = np.array([kind_of[name] for name in data.rows_of])
    parts = []
    for kind in ("news", "role"):
        there = {name: of.within(kinds == kind) for name, of in sums.items()}
        parts += [minus(there[name], there["random"]) for name in ("greedy", "sampling")]
    yield 5, smallest(parts)


def minus(one: StrategySums, other: StrategySums) -> ClaimEstimate:
    """The mean of `one` minus that of `other` in every specification."""
    gap = one.mean.minus(other.mean)
    ends = (np.round(part, statistics.DIGITS) for part in (gap.value, *statistics.interval(gap)))
    asked, placed = (
        a.sum(axis=-1) + b.sum(axis=-1) for a, b in ((one.asked, other.asked), (one.placed, other.placed))
    )
    with np.errstate(invalid="ignore"):
        return ClaimEstimate(*ends, gap.clusters, np.broadcast_to(asked / placed, gap.value.shape))


def smallest(parts: Sequence[ClaimEstimate]) -> ClaimEstimate:
    """The smallest of several estimates and of the ends of their intervals: all of them hold, or not all."""
    shape = np.broadcast_shapes(*(part.mean.shape for part in parts))
    stacked = [
        np.stack([np.broadcast_to(getattr(p, f), shape) for p in parts]) for f in ClaimEstimate._fields
    ]
    return ClaimEstimate(*(values.min(axis=0) for values in stacked))


def share_of(top: np.ndarray, bottom: np.ndarray) -> StrategySums:
    """What no judge has to be asked about: `top` over `bottom`, both by dialogue."""
    return StrategySums(top, bottom, bottom, bottom)


def repeats(data: StudyData, ranked: Rankings, sent: np.ndarray) -> ClaimEstimate:
    """Claim 4: the expected share of memes that repeat an earlier one, Greedy's minus Sampling's."""
    memes = by_gate(data, sent.astype(float))
    one, *others = (expected_repeats(data, ranked.top[:, :, :k], sent) for k in (1, *ranked.ks))
    return minus(share_of(one, memes), share_of(np.concatenate(others, axis=1), memes))


def expected_repeats(data: StudyData, top: np.ndarray, sent: np.ndarray) -> np.ndarray:
    """Expected number of memes that came before in their dialogue, drawn uniformly from `top`.

    Exact, since draws are independent: a meme that stood among the top K at c earlier memes has come before
    with probability 1 - (1 - 1/K)^c. [scorings, turns, K] and [gates, scorings, turns] to
    [scorings, 1, gates, 1, dialogues].
    """
    gates, scorings, _ = sent.shape
    missed = 1 - 1 / top.shape[2]
    at = np.arange(gates)[:, None, None], np.arange(scorings)[None, :, None]
    out = np.zeros(sent.shape)
    for rows in data.rows_of.values():
        never = np.ones((gates, scorings, len(data.meme_ids)))  # chance that a meme has not come yet
        for row in rows:
            here = (*at, top[None, :, row])
            out[:, :, row] = sent[:, :, row] * (1 - never[here].mean(axis=2))
            never[here] *= np.where(sent[:, :, row, None], missed, 1.0)
    return by_gate(data, out)


def full_and_single(data: StudyData, ranked: Rankings) -> ClaimEstimate:
    """Claim 6: nDCG@5 of the full score minus that of each term alone, over turns with a relevant meme."""

    def summed(values: np.ndarray) -> np.ndarray:
        """Of the relevant turns, [..., relevant turns], by dialogue."""
        every = np.zeros((*values.shape[:-1], len(data.asked)))
        every[..., ranked.relevant] = values
        return by_dialogue(data, every)

    turns = summed(np.ones(len(ranked.relevant)))
    full, *terms = (
        share_of(summed(ndcg)[:, None, None, None], turns)
        for ndcg in (ranked.ndcg, *np.moveaxis(ranked.single, 1, 0))
    )
    return smallest([minus(full, term) for term in terms])


def spacing(data: StudyData, sent: np.ndarray, fixed: np.ndarray) -> ClaimEstimate:
    """Claim 7: share of memes right after another, that of a fixed threshold minus the gate's own."""
    after_fixed, after_own = (
        share_of(
            by_gate(data, selection.follow_ups(data, where).astype(float)), by_gate(data, where.astype(float))
        )
        for where in (fixed, sent)
    )
    return minus(after_fixed, after_own)


def _rows(
    claim: int, measure: str, ranked: Rankings, found: ClaimEstimate, also_zero: bool = False
) -> list[tuple]:
    """A row for every specification of a claim: axes of length 1 hold `–`."""
    ks = [str(k) for k in ranked.ks]
    rest = ({len(ks): ks}, {len(GATES): list(GATES)}, {len(n): list(n) for n in (RANDOMS, EXPECTED_RANDOMS)})
    # Readings of Random differ in number by measure; what does not hang on an axis has one value there.
    values = [{**names, 1: ["–"]}[length] for names, length in zip(rest, found.mean.shape[1:], strict=True)]
    cells = zip(*(part.ravel().tolist() for part in found), strict=True)
    return [
        (
            claim,
            *scoring,
            *choices,
            measure,
            *estimate,
            state(*estimate[:3], asked, also_zero),
        )
        for (scoring, *choices), (*estimate, asked) in zip(
            product(ranked.scorings, *values), cells, strict=True
        )
    ]


def state(mean: float, low: float, high: float, asked: float, also_zero: bool = False) -> str:
    """What one specification says of a claim (`STATES`); `also_zero`: no difference is enough."""
    if asked < ASKED_FROM:
        return "not asked"
    if not np.isfinite(mean):
        return "cannot tell"
    if mean > 0 or (also_zero and mean == 0):
        return "clear" if low > 0 else "sign only"
    return "clearly opposite" if high < 0 else "not"


# --- In which share of the specifications a claim holds, and on which choice that hangs


SHARES = (
    "worlds", "dialogues", "sign", "clear", "clearly opposite", "cannot tell", "sign if told", "not asked"
)  # fmt: skip
"""Number of specifications that count, dialogues behind their intervals (at most), shares of these
specifications, the share with the sign among those that can tell, and the number that do not count because
the judge was not asked. What is clear is not known (nan) below `statistics.MIN_CLUSTERS` dialogues."""
AXES = (*CHOICES, "measure")
NAMES = {"beta": "sign of beta", "k": "K", "random": "reading of Random"}


def shares_by_claim(curve: pd.DataFrame, *also: str) -> pd.DataFrame:
    """For each claim, and each value of some columns, the shares of its specifications (`SHARES`)."""
    rows = [
        {"claim": CLAIMS[claim], **dict(zip(also, values, strict=True)), **shares(part)}
        for (claim, *values), part in curve.groupby(["claim", *also], sort=False)
    ]
    return pd.DataFrame(rows, columns=["claim", *also, *SHARES])


def shares_by_measure(curve: pd.DataFrame) -> pd.DataFrame:
    """The same for each measure by itself."""
    return shares_by_claim(curve, "measure")


def shares_by_choice(curve: pd.DataFrame) -> pd.DataFrame:
    """The same for each value of each open choice; choices on which a claim does not depend are left out.

    So are specifications that do not count: a judge's have other readings of Random than an expected mean.
    """
    rows = []
    for claim, of_claim in curve[curve["state"] != "not asked"].groupby("claim"):
        for axis in AXES:
            if of_claim[axis].nunique() == 1:
                continue
            rows += [
                {"claim": CLAIMS[claim], "choice": NAMES.get(axis, axis), "value": value, **shares(part)}
                for value, part in of_claim.groupby(axis, sort=False)
                if value != "–"
            ]
    return pd.DataFrame(rows, columns=["claim", "choice", "value", *SHARES])


def influential_choices(curve: pd.DataFrame) -> pd.DataFrame:
    """How far the shares lie apart between the values of each choice, widest first within a claim.

    `told` is about which specifications can tell at all, `sign` about the share with the sign among those.
    """
    table = shares_by_choice(curve).assign(told=lambda shares: 1 - shares["cannot tell"])
    rows = []
    for (claim, choice), part in table.groupby(["claim", "choice"], sort=False):
        row = {"claim": claim, "choice": choice, "sign": 0.0, "best value": "–", "worst value": "–"}
        row |= {name: part[name].max() - part[name].min() for name in ("clear", "told")}
        can_tell = part[part["sign if told"].notna()]
        if len(can_tell):
            best, worst = (can_tell.loc[can_tell["sign if told"].agg(how)] for how in ("idxmax", "idxmin"))
            row |= {"sign": best["sign if told"] - worst["sign if told"]}
            row |= {"best value": best["value"], "worst value": worst["value"]}
        rows.append(row)
    columns = ["claim", "choice", "sign", "best value", "worst value", "clear", "told"]
    order = {text: number for number, text in CLAIMS.items()}
    found = pd.DataFrame(rows, columns=columns).sort_values("sign", ascending=False, kind="stable")
    return found.sort_values("claim", key=lambda claims: claims.map(order), kind="stable", ignore_index=True)


def shares(part: pd.DataFrame) -> dict[str, float]:
    """`SHARES` of some specifications of one claim."""
    asked = part[part["state"] != "not asked"]
    states, n = asked["state"], len(asked)
    n_told, dialogues = int((states != "cannot tell").sum()), int(asked["dialogues"].max()) if n else 0
    few = too_few(dialogues)

    def share(*wanted: str, of: int = n) -> float:
        return float(states.isin(wanted).sum() / of) if of else float("nan")

    return {
        "worlds": n,
        "dialogues": dialogues,
        "sign": share("clear", "sign only"),
        "clear": float("nan") if few else share("clear"),
        "clearly opposite": float("nan") if few else share("clearly opposite"),
        "cannot tell": share("cannot tell"),
        "sign if told": share("clear", "sign only", of=n_told),
        "not asked": len(part) - n,
    }


def _in_worlds(row: Mapping[str, Any]) -> str:
    """The share with the claim's sign, first among the worlds that can tell, then among all."""
    worlds, told = row["worlds"], round((1 - row["cannot tell"]) * row["worlds"])
    if told == worlds:
        return f"in {row['sign']:.0%} of {worlds:,} worlds"
    if not told:
        return f"none of {worlds:,} worlds can tell"
    told_share = f"in {row['sign if told']:.0%} of the {told:,} worlds that can tell"
    return f"{told_share}, {row['sign']:.0%} of all {worlds:,} (the others send too little)"


def specification_sentence(curve: pd.DataFrame) -> str:
    """In how many specifications each claim survives, and on which choice it hangs most, in one sentence."""
    counted = curve[curve["state"] != "not asked"]
    if counted.empty:
        return "No reading of the paper could be measured, so none of its claims could be held against any."
    matters, parts = influential_choices(counted), []
    for row in shares_by_claim(counted).to_dict("records"):
        text = f"{row['claim']}: {_in_worlds(row)}"
        if not too_few(row["dialogues"]):
            clear, opposite = (f"{row[name]:.0%}" for name in ("clear", "clearly opposite"))
            text += f", clearly in {clear} of all, clearly the opposite in {opposite}"
        widest = matters[matters["claim"] == row["claim"]].head(1)
        if len(widest) and (most := widest.iloc[0])["sign"] > 0:
            text += f", moved most by {most['choice']} (best: {most['best value']})"
        parts.append(text)
    among = counted["dialogues"].max()
    few = " (too few for an interval)" if too_few(among) else ""
    return f"Over {among} dialogues{few}, {'; '.join(parts)}."
