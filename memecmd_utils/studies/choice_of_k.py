"""Study 6: what Sampling gives up in fit and gains in variety as K goes from 1 (Greedy) to 10.

Grades are exact expectations, means over the top K. Repeats, distinct memes and entropy are means over draws
that all K share: a turn's draw is one number in [0, 1), and its rank is that number times K.
"""

import numpy as np
import pandas as pd

from memecmd_utils.core import seeds, statistics
from memecmd_utils.evaluation.graded_turns import StudyData
from memecmd_utils.retrieval import scoring
from memecmd_utils.studies import gates, hubness

LARGEST_K = 10
DRAWS = 200
COLUMNS = (
    "K", "memes", "mean grade", "mean grade low", "mean grade high", "mean grade of judged", "judged@K",
    "repeats", "repeats low", "repeats high", "distinct memes", "entropy", "dialogues",
)  # fmt: skip
DIFFERENCES = ("K", "minus", "measure", "mean", "low", "high", "clear", "dialogues")
MEASURES = {"mean grade": (0.0, 2.0), "repeats": statistics.SHARE}
"""What has an interval, with its smallest and largest possible value."""


def choice_tables(data: StudyData) -> tuple[pd.DataFrame, pd.DataFrame]:
    """A row for each K, and each K minus K = 1 with an interval.

    `mean grade` (0-2) counts ungraded memes as 0; `repeats` is the expected share of memes that came before
    in the same dialogue; `entropy` (bits) is of how often each meme is used. Without grades theirs are nan;
    a library of fewer memes than K ends the table early.
    """
    rows: list[dict[str, object]] = []
    differences: list[dict[str, object]] = []
    if not data.asked or not data.annotations:
        return pd.DataFrame(columns=list(COLUMNS)), pd.DataFrame(columns=list(DIFFERENCES))
    scores = gates.own_scores(data)
    best = scoring.best_memes(scores, data.meme_ids, LARGEST_K)
    top1 = np.take_along_axis(scores, best[:, :1], axis=1).T
    sent = np.flatnonzero(gates.sent(data, top1, gates.own_rule(data))[0])
    if not len(sent):
        return pd.DataFrame(columns=list(COLUMNS)), pd.DataFrame(columns=list(DIFFERENCES))
    clusters = np.array(data.clusters)[sent].tolist()
    grades = np.take_along_axis(data.gains, best, axis=1)[sent] / max(1, len(data.truth.graders))
    luck, found = _luck(data)[sent], {}
    for k in range(1, best.shape[1] + 1):
        chosen = draw(best[sent], luck, k)
        repeated = repeats(chosen, clusters).mean(axis=1)
        known = np.isfinite(grades[:, :k])
        fit = np.nan_to_num(grades[:, :k]).mean(axis=1) if data.truth.grades else np.full(len(sent), np.nan)
        found[k] = {m: statistics.mean(v, clusters) for m, v in zip(MEASURES, (fit, repeated), strict=True)}
        distinct, entropy = variety(chosen, len(data.meme_ids))
        row: dict[str, object] = {
            "K": k, "memes": len(sent), "dialogues": len(set(clusters)),
            "mean grade of judged": float(np.mean(grades[:, :k][known])) if known.any() else np.nan,
            "judged@K": float(known.mean()) if data.truth.grades else np.nan,
            "distinct memes": distinct, "entropy": entropy,
        }  # fmt: skip
        for measure, ends in MEASURES.items():
            row |= statistics.estimate(found[k][measure], len(sent), ends).columns(measure)
        rows.append(row)
        for measure in MEASURES if k > 1 else ():
            got = statistics.estimate(found[k][measure].minus(found[1][measure]), len(sent))
            differences.append(
                {
                    "K": k, "minus": 1, "measure": measure, "mean": got.mean, "low": got.low,
                    "high": got.high, "clear": statistics.clear(got.low, got.high),
                    "dialogues": got.clusters,
                }
            )  # fmt: skip
    return pd.DataFrame(rows, columns=list(COLUMNS)), pd.DataFrame(differences, columns=list(DIFFERENCES))


def _luck(data: StudyData) -> np.ndarray:
    """A number in [0, 1) for every turn and draw, [turns, draws]; a stream for each dialogue."""
    out = np.empty((len(data.asked), DRAWS))
    turn_of = np.array([query.turn for query in data.asked])
    for name, rows in data.rows_of.items():
        turns = turn_of[rows]
        out[rows] = seeds.rng(data.profile.seed, "choice", name).random((turns.max() + 1, DRAWS))[turns]
    return out


def draw(best: np.ndarray, luck: np.ndarray, k: int) -> np.ndarray:
    """Memes drawn uniformly from the top `k` of every place, [places, draws], by numbers in [0, 1)."""
    return np.take_along_axis(best, (luck * k).astype(int), axis=1)


def repeats(chosen: np.ndarray, clusters: list[str]) -> np.ndarray:
    """Whether a meme came before in the same dialogue: [places, draws] to booleans, dialogue by dialogue."""
    return np.column_stack([hubness.repeated(drawn, clusters) for drawn in chosen.T])


def variety(chosen: np.ndarray, n_memes: int) -> tuple[float, float]:
    """Different memes, and entropy of their use in bits, of [places, draws]; means over the draws."""
    counts = np.zeros((chosen.shape[1], n_memes))
    np.add.at(counts, (np.broadcast_to(np.arange(chosen.shape[1]), chosen.shape), chosen), 1)
    share = counts / len(chosen)
    bits = -np.where(share > 0, share * np.log2(np.where(share > 0, share, 1)), 0).sum(axis=1)
    return float((counts > 0).sum(axis=1).mean()), float(bits.mean())


def choice_sentence(table: pd.DataFrame, differences: pd.DataFrame) -> str:
    """What was found, in one sentence."""
    if table.empty:
        return "No meme was sent, so no K can be compared with another."
    first, last = table.iloc[0], table.iloc[-1]
    if first["K"] == last["K"]:
        return "The library holds one meme, so no K can be compared with another."
    of = differences[differences["K"] == last["K"]].set_index("measure")
    text = (
        f"From K = 1 to K = {last['K']:.0f}, over {last['dialogues']:.0f} dialogues, the expected share of "
        "memes that repeat an earlier one of their "
        f"dialogue goes from {first['repeats']:.2f} to {last['repeats']:.2f} "
        f"({_said(of.loc['repeats'])}), distinct memes from {first['distinct memes']:.0f} to "
        f"{last['distinct memes']:.0f} and the entropy of use from {first['entropy']:.2f} to "
        f"{last['entropy']:.2f} bits"
    )
    if not np.isfinite(first["mean grade"]):
        return f"{text}; nothing is graded, so what this costs in fit is not known."
    worse = differences[(differences["measure"] == "mean grade") & differences["clear"]]
    worse = worse[worse["mean"] < 0]
    first_worse = f"K = {worse['K'].min():.0f} is the first that is" if len(worse) else "no K is"
    below = "" if statistics.too_few(last["dialogues"]) else f"{first_worse} clearly below K = 1, and "
    return (
        f"{text}, while the expected mean grade (0-2) goes from {first['mean grade']:.2f} to "
        f"{last['mean grade']:.2f} ({_said(of.loc['mean grade'])}); {below}"
        f"{last['judged@K']:.0%} of the top {last['K']:.0f} were graded."
    )


def _said(row: pd.Series) -> str:
    return f"difference {statistics.format_interval(row, sign='+')}, {statistics.verdict(row)}"
