"""Does each term help (Study 2)? In which share of all readings of the paper does each claim hold (Study 9)?

For the specification curve every open choice of the paper is crossed with every other; no reading is called
the right one. All are measured on the same dialogues, so they differ by their choices alone (Simonsohn,
Simmons and Nelson, 2020, Nature Human Behaviour 4). Intervals are over dialogues, not turns.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product
from typing import NamedTuple

import numpy as np
import pandas as pd

from memecmd_utils import consistency, grades, retrieval, statistics
from memecmd_utils.grades import CENTRINGS, DEPTH, MEASURES
from memecmd_utils.retrieval import Gate
from memecmd_utils.splits import Turns

ABLATION = ("embedder", "without", "compares", "measure", "full", "rest", "difference", "dialogues")


def leave_one_out(data: Turns) -> pd.DataFrame:
    """Full score minus the score without one term, a row an embedder, term and measure (columns `ABLATION`).

    The other weights stay as they are in the run, and so does the centring. A difference above 0: the term
    helps. Without ground truth the table is empty.
    """
    rows, weights = [], np.array(data.profile.retrieval.weights)
    for embedder in data.encoders if len(data.answerable) else ():
        terms = data.terms(embedder, data.profile.retrieval.centring)
        used = (weights, *weights * (1 - np.eye(len(weights))))
        full, *rests = (data.measure(retrieval.combine(terms, some)) for some in used)
        for term, part, rest in zip(retrieval.COMPONENTS, grades.PARTS, rests, strict=True):
            for measure in ("R@1", "nDCG@5"):
                a, b = (values[:, MEASURES.index(measure)] for values in (full, rest))
                gap = statistics.cluster_mean(a - b, data.answerable_clusters, statistics.FINE_DIFFERENCE)
                rows.append((embedder, term, part, measure, a.mean(), b.mean(), gap, gap.clusters))
    return pd.DataFrame(rows, columns=list(ABLATION))


# --- The specification curve: what can be chosen


BETA = {"+": 1, "-": -1}
"""Sign of beta: the text of the paper wants emotions alike, its Eq. 20 prints a minus."""
FITTED = "fitted"
WEIGHTS = {
    "equal": (1, 1, 1, 1),
    "alpha doubled": (2, 1, 1, 1),
    "delta 0": (1, 0, 1, 1),
    "the authors'": tuple(3 * w for w in retrieval.AUTHORS_WEIGHTS),
}
"""Weights in thirds, as the run's are; `FITTED` ones are scaled to the sum of equal ones."""
TENTHS = np.array([w for w in product(range(11), repeat=4) if sum(w) == 10]) / 10
"""All weights on the simplex in steps of 0.1, [286, 4], from which `FITTED` ones are taken."""
KS = (3, 5)
GATES = {
    "standard, fitted": Gate(None, 1.0, 1.0, "standard"),
    "raw, fitted": Gate(None, 0.2, 1.0),
    "raw, paper's": Gate(0.7, 0.2, 1.0),
}


class Scoring(NamedTuple):
    """The choices that make a ranking."""

    embedder: str
    centring: str
    beta: str
    weights: str


CHOICES = (*Scoring._fields, "k", "gate", "random")
"""What makes one way to read the paper; a choice on which a claim does not depend is `–`."""
CLAIMS = {
    1: "Greedy beats Random",
    2: "Sampling beats Random",
    3: "Greedy is at least as good as Sampling",
    4: "Greedy repeats memes within a dialogue more often than Sampling",
    5: "both beat Random in news and in role dialogues",
    6: "the full score beats each single dimension",
    7: "the decaying threshold has fewer memes right after another than a fixed one",
}
AXES = (*CHOICES, "measure")
ESTIMATE = ["mean", "low", "high", "dialogues"]
STATES = ("clear", "sign only", "not", "clearly opposite", "cannot tell")
"""The interval leaves out 0; the estimate has the claim's sign; it has not; the interval lies on the other
side; no meme was sent (or a kind of dialogue is missing)."""


def take_best(scores: np.ndarray, by_id: np.ndarray) -> np.ndarray:
    """The best five memes of every turn, [turns, 5], by scores [turns, memes]; `by_id` sorts memes by id."""
    left, turns = scores[:, by_id], np.arange(len(scores))
    out = np.empty((len(scores), min(DEPTH, scores.shape[1])), dtype=int)
    for place in range(out.shape[1]):  # for so few places far faster than sorting
        out[:, place] = left.argmax(axis=1)  # of equal scores the lower id
        left[turns, out[:, place]] = -np.inf
    return by_id[out]


def rank(data: Turns) -> dict[Scoring, tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """What every scoring puts first, [turns, 5], its score there, [turns], and nDCG@5 [5, answerable turns].

    nDCG@5 is that of the full score, then of each term alone with the scoring's sign of beta. Without grades
    no weights can be fitted: those are left out.
    """
    ranked, by_id = {}, np.argsort(np.array(data.meme_ids, dtype=str))
    gains = data.grades[data.answerable]
    for embedder, centring, beta in product(data.encoders, CENTRINGS, BETA):
        terms = data.terms(embedder, centring) * np.array([1, 1, BETA[beta], 1])[:, None, None]
        single = [grades.ndcg(take_best(np.round(t, 9), by_id), gains) for t in terms[:, data.answerable]]
        weights = {name: dict.fromkeys("ab", np.array(w) / 3) for name, w in WEIGHTS.items()}
        for name, by_half in (weights | fitted_weights(data, terms, by_id)).items():
            in_a, in_b = (np.round(retrieval.combine(terms, by_half[half]), 9) for half in "ab")
            scores = np.where(data.half[:, None] == "a", in_a, in_b)
            top = take_best(scores, by_id)
            first = np.take_along_axis(scores, top[:, :1], axis=1)[:, 0]
            ndcg = np.array([grades.ndcg(top[data.answerable], gains), *single])
            ranked[Scoring(embedder, centring, beta, name)] = top, first, ndcg
    return ranked


def fitted_weights(data: Turns, terms: np.ndarray, by_id: np.ndarray) -> dict[str, Mapping[str, np.ndarray]]:
    """For each half the weights with the best mean nDCG@5 on the other one, as `{FITTED: {half: weights}}`.

    Where the other half has no turn with a fitting meme its own serve; where there are none at all the dict
    is empty. Of equally good weights the most even ones are taken.
    """
    if not len(data.answerable):
        return {}
    gains, terms = np.nan_to_num(data.grades[data.answerable]), np.round(terms[:, data.answerable], 12)
    ideal, half = grades.ideal_gain(gains), data.half[data.answerable]
    best = (take_best(retrieval.combine(terms, w), by_id) for w in TENTHS)
    ndcg = np.array([grades.discounted(np.take_along_axis(gains, top, axis=1)) / ideal for top in best])
    uneven, found = ((TENTHS - 0.25) ** 2).sum(axis=1).round(12), {}
    for mine in "ab":
        fit = half != mine if (half != mine).any() else half == mine
        found[mine] = TENTHS[np.lexsort((uneven, -ndcg[:, fit].mean(axis=1).round(9)))[0]] * 4 / 3
    return {FITTED: found}


def open_gates(data: Turns, top1: np.ndarray) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Where each gate opens, [scorings, turns] as `top1`, and where a fixed threshold of the same rate does.

    The fixed threshold is fitted to the wanted rate, or beside the paper's own numbers to the rate that
    these give on the half that is fitted on; where they send nothing it sends nothing.
    """
    found = {}
    for name, rule in GATES.items():
        own = data.gate(top1, rule)
        plain = replace(rule, penalty=0.0, theta0=None)
        found[name] = own, data.gate(top1, plain, own if rule.theta0 else None)
    return found


# --- What a meme at a turn is worth, by every measure


def measures(data: Turns) -> dict[str, dict[str, np.ndarray]]:
    """Measure -> embedder that retrieves -> worth of every meme, and whether it counts, [2, turns, memes].

    Each grader with ungraded memes as 0 or left out, and consistency of the caption with a turn's text.
    """
    out, names = {}, list(data.encoders)
    for grader in data.split.truth.graders:
        given = data.grades_of(grader)
        worth, is_graded = np.nan_to_num(given), np.isfinite(given)
        out[f"{grader}, ungraded as 0"] = dict.fromkeys(names, np.array([worth, np.ones_like(worth)]))
        out[f"{grader}, ungraded left out"] = dict.fromkeys(names, np.array([worth, is_graded]))
    for name, back in (("consistency with u_t", 0), ("consistency with u_t-1", 1)):
        # Of an embedder that did not retrieve: it must not measure its own choice.
        others = {name: next(n for n in names if n != name) for name in names if len(names) > 1}
        values = {own: text_consistency(data, other, back) for own, other in others.items()}
        if values and all(np.isfinite(v).any() for v in values.values()):
            out[name] = {own: np.array([np.nan_to_num(v), np.isfinite(v)]) for own, v in values.items()}
    return out


def text_consistency(data: Turns, embedder: str, back: int) -> np.ndarray:
    """50 (cos + 1) of every caption and u_t, or the turn `back` before it (Eq. 26), [turns, memes].

    A meme without any words has nan.
    """
    words = [data.split.memes[name].words for name in data.meme_ids]
    texts = [q.dialogue.turns[q.turn - 1 - back].text for q in data.asked]
    encode, able = data.encoders[embedder], [i for i, text in enumerate(words) if text]
    out = np.full((len(texts), len(words)), np.nan)
    if able and texts:
        memes = encode([words[i] for i in able], "document").astype(np.float64)
        out[:, able] = consistency.score(encode(texts, "document").astype(np.float64) @ memes.T)
    return out


# --- What each specification says of each claim


Part = tuple[tuple, np.ndarray, np.ndarray]
"""A claim with its choices and measure, and two means (`by_dialogue`): the first ought to be higher."""


def by_dialogue(data: Turns, top: np.ndarray, bottom: np.ndarray) -> np.ndarray:
    """A mean, `top` over `bottom` [turns], as both sums of each dialogue, [2, dialogues]."""
    starts = [rows[0] for rows in data.rows_of.values()]
    return np.add.reduceat(np.array([top, bottom], dtype=float), starts, axis=1)


def specifications(data: Turns) -> pd.DataFrame:
    """One row for every claim, specification and measure, with estimate, interval and state (`STATES`).

    A choice on which a claim does not depend holds `–`. The estimate is the difference that the claim wants
    positive; `dialogues` are those behind the interval. Claims 5 and 6 have four parts: estimate and ends are
    the smallest of the four, so `clear` asks all of them, while `clearly opposite` is said where one of four
    intervals, not corrected for their number, lies below 0.
    """
    choices, *means = zip(*_parts(data), strict=True)
    first, second = (statistics.ratio(*np.transpose(mean, (1, 2, 0))) for mean in means)
    gap = first.minus(second)
    table = pd.DataFrame(choices, columns=["claim", *AXES])
    table[ESTIMATE] = np.column_stack([gap.value, *statistics.interval(gap), gap.clusters])
    table = table.round(statistics.DIGITS).fillna(-np.inf)  # no estimate of one part: none of the claim
    table = table.groupby(["claim", *AXES], sort=False, as_index=False).min().replace(-np.inf, np.nan)
    table["state"] = state(table["mean"], table["low"], table["high"], table["claim"] == 3)
    return table.astype({"dialogues": int}).sort_values("claim", kind="stable", ignore_index=True)


def _parts(data: Turns) -> Iterator[Part]:
    """All parts of all claims, those by grades and consistency first."""
    ranked = rank(data)
    gates = open_gates(data, np.array([first for _, first, _ in ranked.values()]))
    for measure, worth in measures(data).items():
        for number, (scoring, (top, _, _)) in enumerate(ranked.items()):
            opened = {gate: own[number] for gate, (own, _) in gates.items()}
            yield from _parts_by_worth(data, measure, worth[scoring.embedder], scoring, top, opened)
    at_known = np.isin(np.arange(len(data.asked)), data.answerable)
    for number, (scoring, (top, _, ndcg)) in enumerate(ranked.items()):
        every = np.zeros((len(ndcg), len(data.asked)))
        every[:, data.answerable] = ndcg
        full, *single = (by_dialogue(data, values, at_known) for values in every)
        for term in single if len(data.answerable) else ():
            yield (6, *scoring, "–", "–", "–", "nDCG@5"), full, term
        for gate, sent in gates.items():
            own, fixed = (by_dialogue(data, follow_ups(data, s[number]), s[number]) for s in sent)
            yield (7, *scoring, "–", gate, "–", "follow-ups"), fixed, own
            greedy, *sampling = (_repeats(data, top[:, :k], sent[0][number]) for k in (1, *KS))
            for k, share in zip(KS, sampling, strict=True):
                yield (4, *scoring, str(k), gate, "–", "repeats"), greedy, share


def _parts_by_worth(
    data: Turns,
    measure: str,
    worth: np.ndarray,
    scoring: Scoring,
    top: np.ndarray,
    opened: Mapping[str, np.ndarray],
) -> Iterator[Part]:
    """Claims 1, 2, 3 and 5 of one scoring by one measure, as exact expectations.

    Sampling is the mean over the top K, Random the mean over the library, out of which cancels how often it
    sends. `opened` [turns]: where each gate opens.
    """
    kind_of = {d.dialogue_id: d.kind for d in data.split.dialogues}
    kinds = [np.array([kind_of[name] == kind for name in data.rows_of]) for kind in ("news", "role")]
    library, turns = worth.mean(axis=2), np.arange(len(top))[:, None]  # [2, turns]
    firsts = [worth[:, turns, top[:, :k]].mean(axis=2) for k in (1, *KS)]
    for gate, sent in opened.items():
        greedy, *sampling = (by_dialogue(data, *(sent * first)) for first in firsts)
        random = {
            "any turns": by_dialogue(data, *library),
            "the gate's turns": by_dialogue(data, *(sent * library)),
        }
        for k, mine in zip(map(str, KS), sampling, strict=True):
            yield (3, *scoring, k, gate, "–", measure), greedy, mine
        for reading, other in random.items():
            yield (1, *scoring, "–", gate, reading, measure), greedy, other
            for k, mine in zip(map(str, KS), sampling, strict=True):
                yield (2, *scoring, k, gate, reading, measure), mine, other
                for kind, sums in product(kinds, (greedy, mine)):
                    yield (5, *scoring, k, gate, reading, measure), sums * kind, other * kind


def _repeats(data: Turns, top: np.ndarray, sent: np.ndarray) -> np.ndarray:
    """Expected share of memes that repeat an earlier one, if each is drawn from `top` [turns, K]."""
    starts = np.array([data.rows_of[name][0] for name in data.clusters])
    return by_dialogue(data, sent * expected_repeats(top, sent, starts), sent)


def follow_ups(data: Turns, sent: np.ndarray) -> np.ndarray:
    """Which of the memes `sent` [turns] come right after another one of their dialogue, [turns]."""
    memes = {data.keys[row] for row in np.flatnonzero(sent)}
    return np.array([key in memes and (key[0], key[1] - 1) in memes for key in data.keys])


def expected_repeats(top: np.ndarray, sent: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Chance that a meme drawn from `top` [turns, K] uniformly was `sent` [turns] before in its dialogue.

    A meme that stood among the top K at c earlier turns has come with probability 1 - (1 - 1/K)^c. `starts`:
    first row of each turn's dialogue, [turns].
    """
    turns, (n, k) = np.arange(len(top))[:, None], top.shape
    stood = np.zeros((n, top.max(initial=0) + 1))
    stood[turns, top] = sent[:, None]
    before = stood.cumsum(axis=0) - stood
    earlier = before[turns, top] - before[starts[:, None], top]
    return (1 - (1 - 1 / k) ** earlier).mean(axis=1)


def state(mean: np.ndarray, low: np.ndarray, high: np.ndarray, also_zero: np.ndarray) -> np.ndarray:
    """What each specification says of a claim (`STATES`); `also_zero`: no difference is enough."""
    holds = (mean > 0) | (also_zero & (mean == 0))
    asked = [np.isnan(mean), holds & (low > 0), holds, high < 0]
    return np.select(asked, ["cannot tell", "clear", "sign only", "clearly opposite"], "not")


# --- In which share of the specifications a claim holds


SHARES = ("worlds", "dialogues", "sign", "clear", "clearly opposite", "cannot tell", "sign if told")
"""Number of specifications, dialogues behind their intervals (at most), shares of the specifications, and the
share with the sign among those that can tell. What is clear is not known (nan) below
`statistics.MIN_CLUSTERS` dialogues."""


def shares(rows: pd.DataFrame) -> pd.DataFrame:
    """`SHARES` of the specifications of each claim, in the order in which these come."""
    states = pd.get_dummies(rows["state"]).reindex(columns=list(STATES), fill_value=False).astype(float)
    groups = pd.concat([rows[["claim", "dialogues"]], states], axis=1).groupby("claim", sort=False)
    table = groups[list(STATES)].mean().assign(worlds=groups.size(), dialogues=groups["dialogues"].max())
    table["sign"], told = table["clear"] + table["sign only"], 1 - table["cannot tell"]
    table["sign if told"] = (table["sign"] / told).where(told > 1e-9)
    table.loc[table["dialogues"] < statistics.MIN_CLUSTERS, ["clear", "clearly opposite"]] = np.nan
    return table[list(SHARES)].reset_index().replace({"claim": CLAIMS})
