"""Hubs, memes that are best at very many turns: do they make the repeats, and do cures help? (Study 7.)

In spaces of many dimensions some points are near neighbours of very many others (Radovanovic, Nanopoulos and
Ivanovic, 2010). Cures are estimated on the other half's turns.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from memecmd_utils import grades, retrieval, statistics
from memecmd_utils.grades import MEASURES, GradedTurns
from memecmd_utils.retrieval import MEME_SIDE, QUERY_SIDE, SIGNS, centre, mean_row

NEIGHBOURS = 10
BETA = 30.0
TENTH = 0.1
"""Share of the memes that are called hubs."""
STARTS = {"uncentred": "none", "centred": "attribute"}
"""Scores that a cure starts from, and their name in the profile."""
NONE, CENTRING, CSLS, INVERTED = "none", "centring", "CSLS", "inverted softmax"
ALL, GATE = "all turns", "the gate's turns"
_RANKING = ("embedder", "scores")
_MEASURED = ("nDCG@5", "repeats", "repeats at the gate")
CURES = (
    *_RANKING, "cure", *statistics.with_ends("skewness"), "R@1", "judged@5", "distinct",
    *statistics.with_ends(*_MEASURED, "skewness change", *(f"{name} change" for name in _MEASURED)),
    "dialogues",
)  # fmt: skip
SHARES = (
    *_RANKING, "where", "hubs", "even share", *statistics.with_ends("share of repeats"), "share of turns",
    "repeats", "dialogues",
)  # fmt: skip
COUNTS = (*_RANKING, "cure", "meme_id", "N_1")


def skewness(counts: np.ndarray) -> np.ndarray:
    """Third standardised moment over the last axis; nan where all are equal."""
    gap = counts - counts.mean(axis=-1, keepdims=True)
    square = gap * gap
    with np.errstate(invalid="ignore", divide="ignore"):
        return (square * gap).mean(axis=-1) / square.mean(axis=-1) ** 1.5


def repeated(memes: np.ndarray, clusters: Sequence[str]) -> np.ndarray:
    """True where an earlier item of the same dialogue has the same meme; items in order of turns."""
    return pd.DataFrame({"dialogue": list(clusters), "meme": memes}).duplicated().to_numpy()


def csls(scores: np.ndarray, fit: np.ndarray) -> np.ndarray:
    """Cross-domain similarity local scaling (Conneau et al., 2018): 2 s - r(meme) - r(turn).

    r(meme) is the mean of the `NEIGHBOURS` largest of its scores over the turns of `fit` [turns, memes].
    r(turn) is the same for all memes of a turn and cannot change their order: it is left out.
    """
    nearest = np.sort(fit, axis=0)[-NEIGHBOURS:]
    return 2 * scores - nearest.mean(axis=0)


def inverted_softmax(scores: np.ndarray, fit: np.ndarray) -> np.ndarray:
    """Inverted softmax (Smith et al., 2017): p(turn | meme), its normaliser summed over the turns of `fit`.

    As a logarithm over `BETA`, on the scale of the scores: s - log(sum exp(beta s)) / beta.
    """
    most = fit.max(axis=0)
    return scores - most - np.log(np.exp(BETA * (fit - most)).sum(axis=0)) / BETA


def centred(data: GradedTurns, embedder: str) -> np.ndarray:
    """Scores with summaries centred by the other half's mean, memes by their own (Suzuki et al., 2013).

    The run centres summaries by the mean of all of them; here a turn has no part in the mean it is freed of.
    """
    encode, out = data.encoders[embedder], np.zeros((len(data.asked), len(data.meme_ids)))
    vectors = {side: encode([getattr(s, side) for s in data.summaries], "query") for side in set(QUERY_SIDE)}
    for weight, query, side, sign in zip(
        data.profile.retrieval.weights, QUERY_SIDE, MEME_SIDE, SIGNS, strict=True
    ):
        memes = centre(encode([getattr(a, side) for a in data.annotations], "document")).astype(float)
        for rows, fit, _ in grades.folds(data.half):
            # One turn alone has no spread, as `centre` says: its half is left uncentred.
            turns = vectors[query][rows]
            if len(fit) > 1:
                turns = centre(turns, mean_row(vectors[query][fit]))
            out[rows] += weight * sign * turns.astype(float) @ memes.T
    return out


def rankings(data: GradedTurns, embedder: str) -> dict[tuple[str, str], np.ndarray]:
    """Full scores [turns, memes] under the run's weights, by (start, cure); `NONE` comes first of each start.

    With one dialogue there is no other half: the cures are estimated on its own turns.
    """
    out = {}
    for start, centring in STARTS.items():
        plain = retrieval.combine(data.terms(embedder, centring), data.profile.retrieval.weights)
        out[start, NONE] = plain
        if start == "uncentred":
            out[start, CENTRING] = centred(data, embedder)
        for name, cure in ((CSLS, csls), (INVERTED, inverted_softmax)):
            cured = np.empty_like(plain)
            for rows, fit, _ in grades.folds(data.half):
                cured[rows] = cure(plain[rows], plain[fit])
            out[start, name] = cured
    return out


@dataclass(frozen=True)
class Hubs:
    """Tables of the study: the cures, the hubs' share of the repeats, and N_1 of every meme."""

    cures: pd.DataFrame
    shares: pd.DataFrame
    counts: pd.DataFrame
    """N_1: at how many turns a meme is the best one."""
    own: tuple[str, str]
    """Embedder and scores of the run's own ranking: the one whose repeats are Greedy's."""


def hubness_study(data: GradedTurns) -> Hubs:
    """Count N_1 and repeats under every ranking and cure; without grades their measures are nan.

    `repeats`: share of the turns 2..T whose best meme was the best one at an earlier turn of the dialogue,
    whether or not the gate opens; `repeats at the gate`: the same among the turns at which Greedy sends.
    A change is that to the same scores without a cure.
    """
    cures, shares, counts = [], [], []
    sent = {(p.dialogue_id, p.turn) for p in data.placements if p.strategy == "greedy"}
    gate = np.array([i for i, key in enumerate(data.keys) if key in sent], dtype=int)
    rows = {"graded": data.known, ALL: np.arange(len(data.asked)), GATE: gate}
    clusters = {group: np.array(data.clusters)[mine].tolist() for group, mine in rows.items()}
    for embedder in data.encoders if data.asked and data.annotations else ():
        plain: tuple[dict[str, np.ndarray], statistics.LeftOut] | None = None
        for (start, cure), scores in rankings(data, embedder).items():
            best = retrieval.order(scores, data.meme_ids)[:, 0]
            measured = data.measure(scores)
            values = {
                "graded": measured[:, grades.NDCG],
                ALL: repeated(best, clusters[ALL]).astype(float),
                GATE: repeated(best[gate], clusters[GATE]).astype(float),
            }
            skewed = _skewness(data, best)
            if cure == NONE:
                plain = values, skewed
                name = {"embedder": embedder, "scores": start}
                shares += [{**name, **row} for row in _shares(data, best, rows, values, clusters)]
            row: dict[str, object] = {"embedder": embedder, "scores": start, "cure": cure}
            row |= {m: measured[:, MEASURES.index(m)].mean() for m in ("R@1", "judged@5") if len(measured)}
            row["distinct"] = len(np.unique(best))
            for group, measure in zip(rows, _MEASURED, strict=True):
                got = statistics.cluster_mean(values[group], clusters[group], statistics.SHARE)
                row |= got.columns(measure)
                if cure != NONE:
                    change = statistics.cluster_mean(values[group] - plain[0][group], clusters[group])
                    row |= change.columns(f"{measure} change")
            got = statistics.estimate(skewed, len(best))
            row |= got.columns("skewness") | {"dialogues": got.clusters}
            if cure != NONE:
                change = statistics.estimate(skewed.minus(plain[1]), len(best))
                row |= change.columns("skewness change")
            cures.append(row)
            n_1 = np.bincount(best, minlength=len(data.meme_ids)).tolist()
            counts += [(embedder, start, cure, meme, n) for meme, n in zip(data.meme_ids, n_1, strict=True)]
    own = next(start for start, centring in STARTS.items() if centring == data.profile.retrieval.centring)
    return Hubs(
        pd.DataFrame(cures, columns=list(CURES)),
        pd.DataFrame(shares, columns=list(SHARES)),
        pd.DataFrame(counts, columns=list(COUNTS)),
        (data.profile.models.embedder, own),
    )


def _skewness(data: GradedTurns, best: np.ndarray) -> statistics.LeftOut:
    """Skewness of N_1 over memes; `best` [turns] is the best meme of every turn."""
    among, names = np.eye(len(data.meme_ids))[best], list(data.rows_of)
    turns = statistics.sums(np.ones(len(best)), data.clusters, names)
    return statistics.leave_out(skewness, turns / turns.sum(), statistics.sums(among, data.clusters, names))


def _shares(
    data: GradedTurns,
    best: np.ndarray,
    rows: dict[str, np.ndarray],
    values: dict[str, np.ndarray],
    clusters: dict[str, list[str]],
) -> list[dict[str, object]]:
    """What the top tenth of memes by N_1 in the other half takes of the repeats here, and of all turns."""
    n_memes = len(data.meme_ids)
    n_hubs = max(1, round(TENTH * n_memes))
    by_id = np.argsort(np.array(data.meme_ids))
    is_hub = np.zeros(len(best), dtype=bool)
    for here, fit, _ in grades.folds(data.half):
        often = np.argsort(-np.bincount(best[fit], minlength=n_memes)[by_id], kind="stable")  # ties: lower id
        is_hub[here] = np.isin(best[here], by_id[often[:n_hubs]])
    table = []
    for where in (ALL, GATE):
        again, hubs = values[where] > 0, is_hub[rows[where]]
        names = [name for name, yes in zip(clusters[where], again, strict=True) if yes]
        got = statistics.cluster_mean(hubs[again], names, statistics.SHARE)
        table.append(
            {
                "where": where, "hubs": n_hubs, "even share": n_hubs / n_memes,
                **got.columns("share of repeats"), "repeats": int(again.sum()), "dialogues": got.clusters,
                "share of turns": hubs.mean() if len(hubs) else np.nan,
            }
        )  # fmt: skip
    return table
