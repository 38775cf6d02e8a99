"""The specification curve (Study 9): in which share of all readings of the paper does each claim hold?

Every open choice of the paper is crossed with every other; no reading is called the right one. All are
measured on the same dialogues, so they differ by their choices alone (Simonsohn, Simmons and Nelson, 2020,
Nature Human Behaviour 4).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

import numpy as np
import pandas as pd

from memecmd_utils import evaluation, grades, retrieval, statistics
from memecmd_utils.grades import CENTRINGS, DEPTH, GradedTurns
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
COLUMNS = ("claim", *CHOICES, "measure", "mean", "low", "high", "dialogues", "state")
STATES = ("clear", "sign only", "not", "clearly opposite", "cannot tell")
"""The interval leaves out 0; the estimate has the claim's sign; it has not; the interval lies on the other
side; no meme was sent (or a kind of dialogue is missing)."""


@dataclass(frozen=True)
class Ranked:
    """What one scoring puts first: `top` [turns, 5] are positions, `top1` [turns] their best scores.

    `ndcg` [known turns] is nDCG@5 of the full score, `single` [4, known turns] that of each term alone, with
    the scoring's sign of beta.
    """

    top: np.ndarray
    top1: np.ndarray
    ndcg: np.ndarray
    single: np.ndarray


def rank(data: GradedTurns) -> dict[Scoring, Ranked]:
    """Rank the library under every scoring. Without grades no weights can be fitted: those are left out."""
    found, known = {}, data.known
    for embedder, centring, beta in product(data.encoders, CENTRINGS, BETA):
        terms = data.terms(embedder, centring) * np.array([1, 1, BETA[beta], 1])[:, None, None]
        gains = data.grades[known]
        orders = [retrieval.order(term[known], data.meme_ids)[:, :DEPTH] for term in terms]
        single = np.array([grades.ndcg(order, gains) for order in orders])
        in_thirds = {name: {half: np.array(w) / 3 for half in "ab"} for name, w in WEIGHTS.items()}
        for name, by_half in (in_thirds | fitted_weights(data, terms)).items():
            in_a, in_b = (np.round(retrieval.combine(terms, by_half[half]), 9) for half in "ab")
            scores = np.where(data.half[:, None] == "a", in_a, in_b)
            top = retrieval.order(scores, data.meme_ids)[:, :DEPTH]
            top1 = np.take_along_axis(scores, top[:, :1], axis=1)[:, 0]
            ndcg = grades.ndcg(top[known], gains)
            found[Scoring(embedder, centring, beta, name)] = Ranked(top, top1, ndcg, single)
    return found


def fitted_weights(data: GradedTurns, terms: np.ndarray) -> dict[str, Mapping[str, np.ndarray]]:
    """For each half the weights with the best mean nDCG@5 on the other one, as `{FITTED: {half: weights}}`.

    Where the other half has no turn with a fitting meme its own serve; where there are none at all the dict
    is empty.
    """
    if not len(data.known):
        return {}
    values, half = ablation.ndcg_by_weights(terms, data), data.half[data.known]
    fits = {one: half != one if (half != one).any() else half == one for one in "ab"}
    best = {one: ablation.best_weights(values[:, fit]) for one, fit in fits.items()}
    return {FITTED: {one: ablation.TENTHS[number] / 10 * 4 / 3 for one, number in best.items()}}


def open_gates(data: GradedTurns, top1: np.ndarray) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Where each gate opens, [scorings, turns] as `top1`, and where a fixed threshold of the same rate does.

    The fixed threshold is fitted to the wanted rate, or beside the paper's own numbers to the rate that
    these give on the half that is fitted on; where they send nothing it sends nothing.
    """
    found = {}
    for name, rule in GATES.items():
        own = selection.open_turns(data, top1, rule)
        rates = None if rule.theta0 is None else selection.fit_rates(data, own)
        plain = rule._replace(penalty=0.0, form="fixed", theta0=None)
        found[name] = own, selection.open_turns(data, top1, plain, rates)
    return found


# --- What a meme at a turn is worth, by every measure


class Measure(NamedTuple):
    """Values [turns, memes] by the embedder that retrieves; nan is not known.

    `zero`: an unknown value counts as 0, otherwise the meme is left out.
    """

    name: str
    values: Mapping[str, np.ndarray]
    zero: bool = False


def measures(data: GradedTurns) -> list[Measure]:
    """Each grader with ungraded memes as 0 or left out, and text consistency by position."""
    out, names = [], list(data.encoders)
    for grader in data.truth.graders:
        values = dict.fromkeys(names, data.grades_of(grader))
        out.append(Measure(f"{grader}, ungraded as 0", values, zero=True))
        out.append(Measure(f"{grader}, ungraded left out", values))
    for name, back in (("consistency with u_t", 0), ("consistency with u_t-1", 1)):
        # Of an embedder that did not retrieve: it must not measure its own choice.
        others = {name: next(n for n in names if n != name) for name in names if len(names) > 1}
        values = {own: text_consistency(data, other, back) for own, other in others.items()}
        if values and all(np.isfinite(v).any() for v in values.values()):
            out.append(Measure(name, values))
    return out


def text_consistency(data: GradedTurns, embedder: str, back: int) -> np.ndarray:
    """50 (cos + 1) of every caption and u_t, or the turn `back` before it (Eq. 26), [turns, memes].

    A meme without any words has nan.
    """
    words = [evaluation.meme_words(data.memes[name]) for name in data.meme_ids]
    texts = [q.dialogue.turns[q.turn - 1 - back].text for q in data.asked]
    encode, able = data.encoders[embedder], [i for i, text in enumerate(words) if text]
    out = np.full((len(texts), len(words)), np.nan)
    if able and texts:
        memes = encode([words[i] for i in able], "document").astype(np.float64)
        out[:, able] = evaluation.score(encode(texts, "document").astype(np.float64) @ memes.T)
    return out


# --- What each specification says of each claim


class Sums(NamedTuple):
    """Of a strategy in one specification, by dialogue, each [dialogues]; its mean is `top` over `bottom`."""

    top: np.ndarray
    bottom: np.ndarray

    def of(self, dialogues: np.ndarray) -> "Sums":
        """The same with 0 for all other dialogues, which then say nothing."""
        return Sums(self.top * dialogues, self.bottom * dialogues)


class Specifications:
    """Gathers rows of the table: what the estimate of each is made of, to estimate all at once."""

    def __init__(self, data: GradedTurns) -> None:
        self.starts = [rows[0] for rows in data.rows_of.values()]
        self.rows: list[tuple] = []
        self.pairs: list[tuple[int, Sums, Sums]] = []

    def by_dialogue(self, values: np.ndarray) -> np.ndarray:
        """Sums over the turns of each dialogue, [turns] to [dialogues]."""
        return np.add.reduceat(values.astype(float), self.starts)

    def share(self, top: np.ndarray, bottom: np.ndarray) -> Sums:
        """`top` over `bottom`, both [turns]."""
        return Sums(self.by_dialogue(top), self.by_dialogue(bottom))

    def add(
        self, claim: int, scoring: Scoring, choices: tuple, measure: str, *pairs: tuple[Sums, Sums]
    ) -> None:
        """A row: its estimate is the smallest difference of several pairs of means."""
        self.pairs += [(len(self.rows), *pair) for pair in pairs]
        self.rows.append((claim, *scoring, *choices, measure))

    def table(self) -> pd.DataFrame:
        """All rows with estimate, interval, dialogues behind it and state, sorted by claim."""
        first, second = (
            statistics.ratio(*(np.array([pair[place][part] for pair in self.pairs]).T for part in (0, 1)))
            for place in (1, 2)
        )
        gap = first.minus(second)
        ends = (np.round(part, statistics.DIGITS) for part in (gap.value, *statistics.interval(gap)))
        begin = np.searchsorted([number for number, _, _ in self.pairs], np.arange(len(self.rows)))
        parts = [np.minimum.reduceat(part, begin).tolist() for part in (*ends, gap.clusters)]
        rows = [
            (*row, mean, low, high, n, state(mean, low, high, also_zero=row[0] == 3))
            for row, mean, low, high, n in zip(self.rows, *parts, strict=True)
        ]
        table = pd.DataFrame(rows, columns=list(COLUMNS))
        return table.sort_values("claim", kind="stable", ignore_index=True)


def specifications(data: GradedTurns) -> pd.DataFrame:
    """One row for every claim, specification and measure, with estimate, interval and state (`STATES`).

    A choice on which a claim does not depend holds `–`. The estimate is the difference that the claim wants
    positive; of a claim that says several things at once it is the smallest of them, and so are the ends of
    its interval.
    """
    if not data.asked or not data.annotations:
        return pd.DataFrame(columns=list(COLUMNS))
    ranked, found = rank(data), Specifications(data)
    gates = open_gates(data, np.array([one.top1 for one in ranked.values()]))
    ks = list(dict.fromkeys(min(k, len(data.meme_ids)) for k in KS))
    for measure in measures(data):
        _add_values(found, data, measure, ranked, gates, ks)
    _add_repeats(found, data, ranked, gates, ks)
    at_known = np.isin(np.arange(len(data.asked)), data.known).astype(float)
    for scoring_of, one in ranked.items() if len(data.known) else ():
        every = np.zeros((5, len(data.asked)))
        every[:, data.known] = one.ndcg, *one.single
        full, *terms = (found.share(ndcg, at_known) for ndcg in every)
        found.add(6, scoring_of, ("–", "–", "–"), "nDCG@5", *((full, term) for term in terms))
    for number, scoring_of in enumerate(ranked):
        for gate, sent in gates.items():
            own, fixed = (found.share(selection.follow_ups(data, s[number]), s[number]) for s in sent)
            found.add(7, scoring_of, ("–", gate, "–"), "follow-ups", (fixed, own))
    return found.table()


def _add_values(
    found: Specifications,
    data: GradedTurns,
    measure: Measure,
    ranked: Mapping[Scoring, Ranked],
    gates: Mapping[str, tuple[np.ndarray, np.ndarray]],
    ks: Sequence[int],
) -> None:
    """Claims 1, 2, 3 and 5 under one measure, by exact expectations.

    Sampling is the mean over the top K, Random the mean over the library, out of which cancels how often it
    sends.
    """
    turns = np.arange(len(data.asked))[:, None]
    kind_of = {d.dialogue_id: d.kind for d in data.dialogues}
    kinds = [np.array([kind_of[name] == kind for name in data.rows_of]) for kind in ("news", "role")]
    for number, (scoring_of, one) in enumerate(ranked.items()):
        value = measure.values[scoring_of.embedder]
        known = np.ones(value.shape) if measure.zero else np.isfinite(value).astype(float)
        both = np.nan_to_num(value), known
        library = [part.mean(axis=1) for part in both]
        firsts = {k: [part[turns, one.top[:, :k]].mean(axis=1) for part in both] for k in (1, *ks)}
        anywhere = found.share(*library)
        for gate, (by_gate, _) in gates.items():
            sent = by_gate[number]
            greedy, *sampling = (found.share(*(sent * part for part in firsts[k])) for k in (1, *ks))
            at_gate = found.share(*(sent * part for part in library))
            random = {"any turns": anywhere, "the gate's turns": at_gate}
            for reading, other in random.items():
                found.add(1, scoring_of, ("–", gate, reading), measure.name, (greedy, other))
            for k, mine in zip(map(str, ks), sampling, strict=True):
                found.add(3, scoring_of, (k, gate, "–"), measure.name, (greedy, mine))
                for reading, other in random.items():
                    found.add(2, scoring_of, (k, gate, reading), measure.name, (mine, other))
                    pairs = [(s.of(kind), other.of(kind)) for kind in kinds for s in (greedy, mine)]
                    found.add(5, scoring_of, (k, gate, reading), measure.name, *pairs)


def _add_repeats(
    found: Specifications,
    data: GradedTurns,
    ranked: Mapping[Scoring, Ranked],
    gates: Mapping[str, tuple[np.ndarray, np.ndarray]],
    ks: Sequence[int],
) -> None:
    """Claim 4: the expected share of memes that repeat an earlier one, Greedy's minus Sampling's."""
    for number, (scoring_of, one) in enumerate(ranked.items()):
        for gate, (by_gate, _) in gates.items():
            sent, shares = by_gate[number], {}
            for k in (1, *ks):
                again = np.zeros(len(sent))
                for rows in data.rows_of.values():
                    mine = rows[sent[rows]]
                    again[mine] = selection.expected_repeats(one.top[mine, :k])
                shares[k] = found.share(again, sent)
            for k in ks:
                found.add(4, scoring_of, (str(k), gate, "–"), "repeats", (shares[1], shares[k]))


def state(mean: float, low: float, high: float, also_zero: bool = False) -> str:
    """What one specification says of a claim (`STATES`); `also_zero`: no difference is enough."""
    if not np.isfinite(mean):
        return "cannot tell"
    if mean > 0 or (also_zero and mean == 0):
        return "clear" if low > 0 else "sign only"
    return "clearly opposite" if high < 0 else "not"


# --- In which share of the specifications a claim holds, and on which choice that hangs


SHARES = ("worlds", "dialogues", "sign", "clear", "clearly opposite", "cannot tell", "sign if told")
"""Number of specifications, dialogues behind their intervals (at most), shares of the specifications, and the
share with the sign among those that can tell. What is clear is not known (nan) below
`statistics.MIN_CLUSTERS` dialogues."""
AXES = (*CHOICES, "measure")
NAMES = {"beta": "sign of beta", "k": "K", "random": "reading of Random"}


def shares_by_claim(curve: pd.DataFrame) -> pd.DataFrame:
    """For each claim the shares of its specifications (`SHARES`)."""
    rows = [{"claim": CLAIMS[claim], **shares(part)} for claim, part in curve.groupby("claim", sort=False)]
    return pd.DataFrame(rows, columns=["claim", *SHARES])


def shares_by_choice(curve: pd.DataFrame) -> pd.DataFrame:
    """The same for each value of each open choice; choices on which a claim does not depend are left out."""
    rows = []
    for claim, of_claim in curve.groupby("claim"):
        for axis in AXES:
            if of_claim[axis].nunique() == 1:
                continue
            rows += [
                {"claim": CLAIMS[claim], "choice": NAMES.get(axis, axis), "value": value, **shares(part)}
                for value, part in of_claim.groupby(axis, sort=False)
                if value != "–"
            ]
    return pd.DataFrame(rows, columns=["claim", "choice", "value", *SHARES])


def influential_choices(by_choice: pd.DataFrame) -> pd.DataFrame:
    """How far the share with the sign lies apart between the values of each choice, widest first of a claim.

    `by_choice` is the table of `shares_by_choice`; the share is that among the specifications that can tell.
    """
    rows = []
    for (claim, choice), part in by_choice.groupby(["claim", "choice"], sort=False):
        row = {"claim": claim, "choice": choice, "sign": 0.0, "best value": "–", "worst value": "–"}
        told = part.dropna(subset=["sign if told"]).set_index("value")["sign if told"]
        if len(told):
            row |= {
                "sign": told.max() - told.min(),
                "best value": told.idxmax(),
                "worst value": told.idxmin(),
            }
        rows.append(row)
    found = pd.DataFrame(rows, columns=["claim", "choice", "sign", "best value", "worst value"])
    order = {text: number for number, text in CLAIMS.items()}
    found = found.sort_values("sign", ascending=False, kind="stable")
    return found.sort_values("claim", key=lambda claims: claims.map(order), kind="stable", ignore_index=True)


def shares(part: pd.DataFrame) -> dict[str, float]:
    """`SHARES` of some specifications of one claim."""
    share = part["state"].value_counts(normalize=True).reindex(STATES).fillna(0.0)
    dialogues = part["dialogues"].max()
    sign, told = share["clear"] + share["sign only"], 1 - share["cannot tell"]
    few = dialogues < statistics.MIN_CLUSTERS
    return {
        "worlds": len(part),
        "dialogues": int(dialogues),
        "sign": sign,
        "clear": np.nan if few else share["clear"],
        "clearly opposite": np.nan if few else share["clearly opposite"],
        "cannot tell": share["cannot tell"],
        "sign if told": sign / told if told > 1e-9 else np.nan,
    }
