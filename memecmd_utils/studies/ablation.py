"""Does each term help, do weights fitted on one half of the dialogues help in the other (Studies 2 and 3),
and where should a turn's summary come from (Study 5)? Intervals are over dialogues, not turns.
"""

from collections.abc import Sequence
from itertools import product

import numpy as np
import pandas as pd

from memecmd_utils import grades, retrieval, statistics
from memecmd_utils.grades import DEPTH, MEASURES, GradedTurns
from memecmd_utils.retrieval import COMPONENTS as TERMS
from memecmd_utils.schemas import Summary

EQUAL = (0.25,) * len(TERMS)
TENTHS = np.array([w for w in product(range(11), repeat=len(TERMS)) if sum(w) == 10])
"""All weights on the simplex in steps of 0.1, times 10: [286, 4]."""
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


def leave_one_out(data: GradedTurns) -> pd.DataFrame:
    """Full score minus the score without one term, a row an embedder, term and measure (columns `ABLATION`).

    The other weights stay as they are in the run, and so does the centring. A difference above 0: the term
    helps. Without ground truth the table is empty.
    """
    rows, weights = [], np.array(data.profile.retrieval.weights)
    for embedder in data.encoders if len(data.known) else ():
        terms = data.terms(embedder, data.profile.retrieval.centring)
        full = data.measure(retrieval.combine(terms, weights))
        for i, (term, part) in enumerate(zip(TERMS, grades.PARTS, strict=True)):
            rest = data.measure(retrieval.combine(terms, np.where(np.arange(len(TERMS)) == i, 0, weights)))
            for measure in ("R@1", "nDCG@5"):
                a, b = (values[:, MEASURES.index(measure)] for values in (full, rest))
                gain = statistics.cluster_mean(a - b, data.known_clusters)
                ends = gain.columns("").values()
                rows.append((embedder, term, part, measure, a.mean(), b.mean(), *ends, gain.clusters))
    return pd.DataFrame(rows, columns=list(ABLATION))


def ndcg_by_weights(terms: np.ndarray, data: GradedTurns) -> np.ndarray:
    """nDCG@5 at each of the `known` turns under each of the `TENTHS`, [286, turns]; terms [4, turns, memes].

    Terms are rounded first, so that equal memes tie on every machine, and weighed by tables of their tenths.
    """
    by_id = np.argsort(np.array(data.meme_ids, dtype=str))  # of equal scores the lower id comes first
    pairs = np.ix_(data.known, by_id)
    gains = np.nan_to_num(data.grades[pairs])
    ideal = grades.ideal_gain(gains)
    tenths = np.round([term[pairs] for term in terms], 12)[:, None] * (np.arange(11) / 10)[:, None, None]
    values = np.empty((len(TENTHS), len(gains)))
    for value, w in zip(values, TENTHS, strict=True):
        scores = tenths[0, w[0]] + tenths[1, w[1]]
        scores += tenths[2, w[2]]
        scores += tenths[3, w[3]]
        best = take_best(scores, DEPTH)
        value[:] = grades.discounted(np.take_along_axis(gains, best, axis=1)) / ideal
    return values


def take_best(scores: np.ndarray, depth: int) -> np.ndarray:
    """Positions of the highest scores of every row, the first of equal ones; `scores` are overwritten."""
    rows, out = np.arange(len(scores)), np.empty((len(scores), min(depth, scores.shape[1])), dtype=int)
    for place in range(out.shape[1]):  # for so few places far faster than sorting
        out[:, place] = scores.argmax(axis=1)
        scores[rows, out[:, place]] = -np.inf
    return out


def best_weights(ndcg: np.ndarray) -> int:
    """Number of the `TENTHS` with the best mean over `ndcg` [286, turns]; of equals the most even ones."""
    mean = np.round(ndcg.mean(axis=1), 9)
    return int(np.lexsort((((TENTHS / 10 - EQUAL) ** 2).sum(axis=1).round(12), -mean))[0])


def fit_weights(data: GradedTurns) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The best weights of each half by nDCG@5, measured on the other one: by half, and joined.

    `optimism`: at every turn, nDCG@5 under the weights fitted with it minus that under those fitted without
    it; so the difficulty of the halves cancels out. Intervals hold the weights fixed: the fit is not repeated
    without each dialogue. With one dialogue there is no other half: it is fitted on itself, and `held out` is
    no.
    """
    halves, joined = [], []
    half, clusters = data.half[data.known], data.known_clusters
    for embedder in data.encoders if len(data.known) else ():
        terms = data.terms(embedder, data.profile.retrieval.centring)
        ndcg = ndcg_by_weights(terms, data)
        equal = data.measure(retrieval.combine(terms, EQUAL))[:, grades.NDCG]
        test, trained = np.zeros((2, len(equal)))
        held_out = True
        for used, fit, fold in grades.folds(half):
            chosen, own = best_weights(ndcg[:, fit]), best_weights(ndcg[:, used])
            test[used], trained[used] = ndcg[chosen, used], ndcg[own, used]
            held_out &= fold != "self"
            on_fit, on_used = ndcg[chosen, fit].mean(), ndcg[chosen, used].mean()
            measured = on_fit, on_used, equal[used].mean(), len(used)
            halves.append((embedder, fold, half[used[0]], *TENTHS[chosen] / 10, *measured))
        gaps = np.column_stack([test - equal, trained - test])
        ends = statistics.mean_columns(("difference", "optimism"), gaps, clusters)
        sizes = len(test), len(set(clusters)), held_out
        joined.append((embedder, test.mean(), equal.mean(), *ends.values(), *sizes))
    return pd.DataFrame(halves, columns=list(HALVES)), pd.DataFrame(joined, columns=list(JOINED))


# --- The summary agent, the last turn, the whole history


OWN, LAST, HISTORY = "the run's own", "last turn only", "raw history"
JUDGED_ONLY = "nDCG@5 judged only"
SCORED = ("R@1", "nDCG@5", "judged@5")
TABLE = (
    "embedder", "source", "turns", *statistics.with_ends("R@1", "nDCG@5"), "judged@5",
    *statistics.with_ends(JUDGED_ONLY), "dialogues",
)  # fmt: skip
MINUS_OWN = ("embedder", "source", *statistics.with_ends("R@1", "nDCG@5", JUDGED_ONLY), "dialogues")


def summaries_by_source(data: GradedTurns) -> dict[str, list[Summary]]:
    """A summary of every turn of the study from every source.

    The last turn u_{t-1} and the raw history u_1..u_{t-1} stand as S, E and Psi alike.
    """

    def alike(own: Summary, text: str, source: str) -> Summary:
        same = {"scenario": text, "emotion": text, "motivation": text, "source": source}
        return own.model_copy(update=same)

    out: dict[str, list[Summary]] = {OWN: list(data.summaries), LAST: [], HISTORY: []}
    for query, own in zip(data.asked, data.summaries, strict=True):
        before = [u.text for u in query.dialogue.turns[: query.turn - 1]]
        out[LAST].append(alike(own, before[-1], LAST))
        out[HISTORY].append(alike(own, "\n".join(before), HISTORY))
    return out


def compare_sources(data: GradedTurns) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Retrieval by each source's summaries, and its differences to the run's own, under both embedders.

    Each source is centred by its own mean. The run's summaries fed the pool of graded memes, the others did
    not: nDCG@5 over judged memes only stands beside. Without ground truth both tables are empty.
    """
    sources, names = summaries_by_source(data), data.known_clusters
    table, differences, columns = [], [], (*SCORED, JUDGED_ONLY)
    for embedder in data.encoders if names else ():
        measured = {name: _measure(data, of, embedder) for name, of in sources.items()}
        for source, mine in measured.items():
            row = {"embedder": embedder, "source": source, "turns": len(names), "dialogues": len(set(names))}
            table.append({**row, **statistics.mean_columns(columns, mine, names, statistics.SHARE)})
            if source != OWN:
                minus = statistics.mean_columns(columns, mine - measured[OWN], names)
                differences.append({**row, **minus})
    return pd.DataFrame(table, columns=list(TABLE)), pd.DataFrame(differences, columns=list(MINUS_OWN))


def _measure(data: GradedTurns, summaries: Sequence[Summary], embedder: str) -> np.ndarray:
    """`SCORED` and `JUDGED_ONLY` where some meme fits, [turns, 4], with `summaries` as the queries."""
    profile, known = data.profile.retrieval, data.grades[data.known]
    terms = grades.four_terms(summaries, data.annotations, data.encoders[embedder], profile.centring)
    scores = retrieval.combine(terms, profile.weights)[data.known]
    judged = np.where(np.isnan(known), -np.inf, scores)  # ungraded memes come last and gain nothing
    every, graded = (grades.per_turn(retrieval.order(s, data.meme_ids), known) for s in (scores, judged))
    return np.column_stack([every[:, [MEASURES.index(name) for name in SCORED]], graded[:, grades.NDCG]])
