"""Does each of the four terms help, and do weights fitted on one half of the dialogues help in the other?

Studies 2 and 3 of the example's study plan. Intervals are over dialogues, not turns.
"""

from dataclasses import dataclass
from itertools import product

import numpy as np
import pandas as pd

from memecmd_utils import retrieval, statistics
from memecmd_utils.evaluation import graded_turns
from memecmd_utils.evaluation.graded_turns import MEASURES, Graded, StudyData
from memecmd_utils.evaluation.rankings import PARTS

TERMS = ("alpha", "delta", "beta", "gamma")
"""Names of the paper (Eq. 18-21) in the order of `PARTS` and of the weights."""
EQUAL = (0.25,) * len(TERMS)
TENTHS = np.array([w for w in product(range(11), repeat=len(TERMS)) if sum(w) == 10])
"""All weights on the simplex in steps of 0.1, times 10: [286, 4]."""
SCORED = ("R@1", "nDCG@5")
ABLATION = (
    "embedder", "without", "compares", "measure", "full", "rest", *statistics.with_ends("difference"),
    "dialogues",
)  # fmt: skip
HALVES = (
    "embedder", "fitted on", "used on", *TERMS, "nDCG@5 fitted on", "nDCG@5 used on", "equal weights", "turns"
)  # fmt: skip
JOINED = (
    "embedder", "fitted", "equal", *statistics.with_ends("difference", "optimism"), "turns", "dialogues",
    "held out",
)  # fmt: skip


# --- Study 2: one term left out


def leave_one_out(data: StudyData) -> pd.DataFrame:
    """Full score minus the score without one term, a row an embedder, term and measure (columns `ABLATION`).

    The other weights stay as they are in the run, and so does the centring. A difference above 0: the term
    helps. Without ground truth the table is empty.
    """
    known = graded_turns.graded_of_study(data)
    rows = []
    for embedder in data.encoders if len(known.rows) else ():
        terms = data.terms(embedder, data.profile.retrieval.centring)
        weights = np.array(data.profile.retrieval.weights)
        full = known.measure(retrieval.combine(terms, weights))
        for i, term in enumerate(TERMS):
            rest = known.measure(retrieval.combine(terms, np.where(np.arange(len(TERMS)) == i, 0, weights)))
            for measure in SCORED:
                of_full, of_rest = (values[:, MEASURES.index(measure)] for values in (full, rest))
                gain = statistics.cluster_mean(of_full - of_rest, known.clusters)
                rows.append(
                    {
                        "embedder": embedder, "without": term, "compares": PARTS[i], "measure": measure,
                        "full": of_full.mean(), "rest": of_rest.mean(), **gain.columns("difference"),
                        "dialogues": gain.clusters,
                    }
                )  # fmt: skip
    return pd.DataFrame(rows, columns=list(ABLATION))


def ablation_sentence(frame: pd.DataFrame) -> str:
    """What `leave_one_out` found in nDCG@5: which terms clearly help, clearly hurt, or neither."""
    frame = frame[frame["measure"] == "nDCG@5"]
    if frame.empty:
        return "Without graded memes it cannot be said which term helps."
    parts = []
    for embedder, rows in frame.groupby("embedder", sort=False):
        groups: dict[int | None, list[str]] = {1: [], -1: [], 0: [], None: []}
        for _, row in rows.iterrows():
            low, high = row["difference low"], row["difference high"]
            sign = None if statistics.too_few(row["dialogues"]) else statistics.direction(low, high)
            gain = statistics.spell_interval(row, "difference")
            groups[sign].append(f"{row['without']} ({row['compares']}) {gain}")
        words = {1: "clearly helps", -1: "clearly hurts", 0: "makes no clear difference"}
        words[None] = "cannot be told"
        by_sign = [f"{words[sign]}: {', '.join(terms)}" for sign, terms in groups.items() if terms]
        parts.append(f"under {embedder}, {'; '.join(by_sign)}")
    among = f"{frame['dialogues'].max()} dialogues"
    text = f"What each term adds to nDCG@5 of the full score ({among}): {'. '.join(parts)}."
    return text.replace(". u", ". U")


# --- Study 3: weights fitted on the other half


@dataclass(frozen=True)
class FittedWeights:
    """`halves`: the weights of each half and what they give there and in the other; `joined`: both halves."""

    halves: pd.DataFrame
    joined: pd.DataFrame


def ndcg_by_weights(terms: np.ndarray, known: Graded) -> np.ndarray:
    """nDCG@5 at each graded turn under each of the `TENTHS`, [286, turns], from terms [4, turns, memes].

    Terms are rounded first, so that equal memes tie on every machine, and weighed by tables of their tenths.
    """
    by_id = known.by_id
    pairs = np.ix_(known.rows, by_id)
    tenths = np.round([term[pairs] for term in terms], 12)[:, None] * (np.arange(11) / 10)[:, None, None]
    values = np.empty((len(TENTHS), len(known.rows)))
    for value, w in zip(values, TENTHS, strict=True):
        scores = tenths[0, w[0]] + tenths[1, w[1]]
        scores += tenths[2, w[2]]
        scores += tenths[3, w[3]]
        value[:] = known.ndcg(by_id[retrieval.take_best(scores, graded_turns.DEPTH)])
    return values


def best_weights(ndcg: np.ndarray) -> int:
    """Number of the `TENTHS` with the best mean over `ndcg` [286, turns]; of equals the most even ones."""
    mean = np.round(ndcg.mean(axis=1), 9)
    return int(np.lexsort((((TENTHS / 10 - EQUAL) ** 2).sum(axis=1).round(12), -mean))[0])


def fit_weights(data: StudyData) -> FittedWeights:
    """The best weights of each half by nDCG@5, measured on the other one (columns `HALVES`, `JOINED`).

    `optimism`: at every turn, nDCG@5 under the weights fitted with it minus that under those fitted without
    it; so the difficulty of the halves cancels out. Intervals hold the weights fixed: the fit is not repeated
    without each dialogue. With one dialogue there is no other half: it is fitted on itself, and `held out` is
    no.
    """
    known = graded_turns.graded_of_study(data)
    halves, joined = [], []
    for embedder in data.encoders if len(known.rows) else ():
        terms = data.terms(embedder, data.profile.retrieval.centring)
        rows, values = _one_embedder(terms, known, data.half[known.rows])
        halves += [{"embedder": embedder, **row} for row in rows]
        test, trained, equal = values.T
        gaps = np.column_stack([test - equal, trained - test])
        held_out = all(row["fitted on"] != graded_turns.SELF for row in rows)
        joined.append(
            {
                "embedder": embedder, "fitted": test.mean(), "equal": equal.mean(), "turns": len(test),
                **statistics.mean_columns(("difference", "optimism"), gaps, known.clusters),
                "held out": held_out, "dialogues": len(set(known.clusters)),
            }
        )  # fmt: skip
    return FittedWeights(
        pd.DataFrame(halves, columns=list(HALVES)), pd.DataFrame(joined, columns=list(JOINED))
    )


def _one_embedder(terms: np.ndarray, known: Graded, half: np.ndarray) -> tuple[list[dict], np.ndarray]:
    """A row a half, and nDCG@5 at every turn under weights fitted elsewhere, fitted here, and equal ones."""
    ndcg = ndcg_by_weights(terms, known)
    equal = known.measure(retrieval.combine(terms, EQUAL))[:, MEASURES.index("nDCG@5")]
    values = np.column_stack([np.zeros((len(equal), 2)), equal])
    rows = []
    for used, fit, fold in graded_turns.folds(half):
        chosen, own = best_weights(ndcg[:, fit]), best_weights(ndcg[:, used])
        values[used, 0], values[used, 1] = ndcg[chosen, used], ndcg[own, used]
        rows.append(
            {
                "fitted on": fold, "used on": half[used[0]],
                **dict(zip(TERMS, TENTHS[chosen] / 10, strict=True)),
                "nDCG@5 fitted on": ndcg[chosen, fit].mean(), "nDCG@5 used on": ndcg[chosen, used].mean(),
                "equal weights": equal[used].mean(), "turns": len(used),
            }
        )  # fmt: skip
    return rows, values


def weights_sentence(found: FittedWeights) -> str:
    """What `fit_weights` found: the gain of fitting in the other half, the optimism, the weights."""
    if found.joined.empty:
        return "Without graded memes no weights can be fitted."
    words = {1: "clearly better than", -1: "clearly worse than", 0: "not clearly different from"}
    parts = []
    for _, row in found.joined.iterrows():
        mine = found.halves[found.halves["embedder"] == row["embedder"]]
        vectors = " and ".join(
            "(" + ", ".join(f"{value:.1f}" for value in one) + ")"
            for one in mine[list(TERMS)].drop_duplicates().to_numpy()
        )
        gain, optimism = (statistics.spell_interval(row, name) for name in ("difference", "optimism"))
        if not row["held out"]:
            parts.append(
                f"under {row['embedder']} there is no other half: the weights {vectors} were fitted on the "
                f"turns they are measured on, so {gain} over equal weights is no test"
            )
            continue
        than = " against"
        if not statistics.too_few(row["dialogues"]):
            than = f", {words[statistics.direction(row['difference low'], row['difference high'])]}"
        parts.append(
            f"under {row['embedder']}, weights fitted on the other half, {vectors} for "
            f"({', '.join(TERMS)}), give nDCG@5 {row['fitted']:.3f}{than} the {row['equal']:.3f} of "
            f"equal weights ({gain}), and look better by {optimism} on the half they were "
            "fitted on"
        )
    text = "; ".join(parts)
    return f"{text[0].upper()}{text[1:]} ({found.joined['dialogues'].max()} dialogues)."
