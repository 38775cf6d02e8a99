"""The specification curve (Study 9): in which share of all readings of the paper does each claim hold?

Every open choice of the paper is crossed with every other; no reading is called the right one. All are
measured on the same dialogues, so they differ by their choices alone (Simonsohn, Simmons and Nelson, 2020,
Nature Human Behaviour 4).
"""

import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from memecmd_utils import evaluation, grades, retrieval, statistics
from memecmd_utils.drawing import BLUE, ORANGE, RED, canvas, style
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
        plain = rule._replace(penalty=0.0, form="fixed", theta0=None)
        found[name] = own, selection.open_turns(data, top1, plain, own if rule.theta0 else None)
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


Row = tuple[tuple, list[tuple[np.ndarray, np.ndarray]]]
"""Claim, choices and measure; and pairs of means (`by_dialogue`), of which the first ought to be higher."""


def by_dialogue(data: GradedTurns, top: np.ndarray, bottom: np.ndarray) -> np.ndarray:
    """A mean, `top` over `bottom` [turns], as both sums of each dialogue, [2, dialogues]."""
    starts = [rows[0] for rows in data.rows_of.values()]
    return np.add.reduceat(np.array([top, bottom], dtype=float), starts, axis=1)


def specifications(data: GradedTurns) -> pd.DataFrame:
    """One row for every claim, specification and measure, with estimate, interval and state (`STATES`).

    A choice on which a claim does not depend holds `–`. The estimate is the difference that the claim wants
    positive; of a claim that says several things at once it is the smallest of them, and so are the ends of
    its interval. `dialogues` are those behind the interval.
    """
    if not data.asked or not data.annotations:
        return pd.DataFrame(columns=list(COLUMNS))
    ranked = rank(data)
    gates = open_gates(data, np.array([one.top1 for one in ranked.values()]))
    rows = [row for measure in measures(data) for row in _by_value(data, measure, ranked, gates)]
    at_known = np.isin(np.arange(len(data.asked)), data.known)
    for number, (scoring_of, one) in enumerate(ranked.items()):
        if len(data.known):
            every = np.zeros((5, len(data.asked)))
            every[:, data.known] = one.ndcg, *one.single
            full, *terms = (by_dialogue(data, ndcg, at_known) for ndcg in every)
            rows.append(((6, *scoring_of, "–", "–", "–", "nDCG@5"), [(full, term) for term in terms]))
        for gate, sent in gates.items():
            own, fixed = (by_dialogue(data, selection.gaps(data, s[number]) == 1, s[number]) for s in sent)
            rows.append(((7, *scoring_of, "–", gate, "–", "follow-ups"), [(fixed, own)]))
            shares = {k: _repeats(data, one.top[:, :k], sent[0][number]) for k in (1, *KS)}
            rows += [((4, *scoring_of, str(k), gate, "–", "repeats"), [(shares[1], shares[k])]) for k in KS]
    pairs = np.array([pair for _, of_row in rows for pair in of_row])  # [pairs, 2, 2, dialogues]
    first, second = (statistics.ratio(*side) for side in pairs.transpose(1, 2, 3, 0))
    gap = first.minus(second)
    begin = np.cumsum([0, *(len(of_row) for _, of_row in rows[:-1])])
    ends = np.round([gap.value, *statistics.interval(gap)], statistics.DIGITS)
    smallest = [np.minimum.reduceat(part, begin).tolist() for part in (*ends, gap.clusters)]
    found = [
        (*row, mean, low, high, n, state(mean, low, high, also_zero=row[0] == 3))
        for (row, _), mean, low, high, n in zip(rows, *smallest, strict=True)
    ]
    table = pd.DataFrame(found, columns=list(COLUMNS))
    return table.sort_values("claim", kind="stable", ignore_index=True)


def _by_value(
    data: GradedTurns,
    measure: Measure,
    ranked: Mapping[Scoring, Ranked],
    gates: Mapping[str, tuple[np.ndarray, np.ndarray]],
) -> Iterator[Row]:
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
        both = np.array([np.nan_to_num(value), known])
        library = both.mean(axis=2)  # [2, turns]
        firsts = {k: both[:, turns, one.top[:, :k]].mean(axis=2) for k in (1, *KS)}
        for gate, (by_gate, _) in gates.items():
            sent = by_gate[number]
            greedy, *sampling = (by_dialogue(data, *(sent * first)) for first in firsts.values())
            random = {
                "any turns": by_dialogue(data, *library),
                "the gate's turns": by_dialogue(data, *(sent * library)),
            }
            for reading, other in random.items():
                yield (1, *scoring_of, "–", gate, reading, measure.name), [(greedy, other)]
            for k, mine in zip(map(str, KS), sampling, strict=True):
                yield (3, *scoring_of, k, gate, "–", measure.name), [(greedy, mine)]
                for reading, other in random.items():
                    yield (2, *scoring_of, k, gate, reading, measure.name), [(mine, other)]
                    pairs = [(sums * kind, other * kind) for kind in kinds for sums in (greedy, mine)]
                    yield (5, *scoring_of, k, gate, reading, measure.name), pairs


def _repeats(data: GradedTurns, top: np.ndarray, sent: np.ndarray) -> np.ndarray:
    """Expected share of memes that repeat an earlier one, if each is drawn from `top` [turns, K]."""
    again = np.zeros(len(sent))
    for rows in data.rows_of.values():
        mine = rows[sent[rows]]
        again[mine] = selection.expected_repeats(top[mine])
    return by_dialogue(data, again, sent)


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
    told = by_choice.dropna(subset="sign if told").astype({"sign if told": float}).set_index("value")
    groups = told.groupby(["claim", "choice"], sort=False)["sign if told"]
    table = {
        "sign": groups.max() - groups.min(),
        "best value": groups.idxmax(),
        "worst value": groups.idxmin(),
    }
    place = {text: number for number, text in CLAIMS.items()}
    found = pd.DataFrame(table).reset_index().sort_values("sign", ascending=False, kind="stable")
    return found.sort_values("claim", key=lambda claims: claims.map(place), kind="stable", ignore_index=True)


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


# --- The figure


LOOKS = {
    "holds, interval excludes 0": BLUE, "holds, not clearly": "#56B4E9", "fails, not clearly": ORANGE,
    "fails, interval excludes 0": RED, "no meme sent": "#D0D0D0",
}  # fmt: skip
"""Colour of each part of a claim's specifications; what is clear is not known with few dialogues."""


def claims_figure(claims: pd.DataFrame, matters: pd.DataFrame) -> Figure:
    """A bar per claim: the share of its specifications in which it holds; next to it the choice that decides.

    From the tables of `shares_by_claim` and `influential_choices`.
    """
    clear, opposite = (claims[name].fillna(0) for name in ("clear", "clearly opposite"))
    unclear = 1 - claims["sign"] - opposite - claims["cannot tell"]
    parts = (clear, claims["sign"] - clear, unclear, opposite, claims["cannot tell"])
    names = [
        f"{textwrap.fill(claim, 44)}\n{n:,} specifications"
        for claim, n in zip(claims["claim"], claims["worlds"], strict=True)
    ]
    with style():
        fig = canvas(10, 1.2 + 0.6 * len(claims))
        axes, left = fig.subplots(), np.zeros(len(claims))
        for (label, colour), part in zip(LOOKS.items(), parts, strict=True):
            axes.barh(names, 100 * part, left=left, color=colour, height=0.6, label=label)
            left = left + 100 * part
        for row in matters.drop_duplicates("claim").to_dict("records"):
            place = claims["claim"].tolist().index(row["claim"])
            text = f"{row['choice']}: {row['best value']} for it,\n{row['worst value']} against"
            axes.text(102, place, text, va="center", fontsize=9.5)
        axes.set(xlim=(0, 100), xlabel="share of the specifications, %")
        axes.text(102, -0.8, "the choice that decides most", fontsize=9.5)
        axes.invert_yaxis()
        axes.grid(visible=False)
        fig.legend(loc="outside lower center", ncols=5, fontsize=8.5)
    return fig
