"""Hubs, memes that are best at very many turns: do they make the repeats, and do cures help? (Study 7.)

In spaces of many dimensions some points are near neighbours of very many others (Radovanovic, Nanopoulos and
Ivanovic, 2010). Two cures: centring (Suzuki et al., 2013), and CSLS, estimated on the other half's turns.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from memecmd_utils import grades, retrieval, statistics
from memecmd_utils.grades import GradedTurns

NEIGHBOURS = 10
TENTH = 0.1
"""Share of the memes that are called hubs."""
STARTS = {"uncentred": "none", "centred": "attribute"}
"""Scores that a cure starts from, and their name in the profile."""
NONE, CSLS = "none", "CSLS"
ALL, GATE = "all turns", "the gate's turns"
CURES = (
    "embedder", "scores", "cure", "skewness", *statistics.with_ends("repeats", "repeats change"), "dialogues"
)  # fmt: skip
SHARES = (
    "embedder", "scores", "where", "hubs", "even share", *statistics.with_ends("share of repeats"),
    "share of turns", "repeats", "dialogues",
)  # fmt: skip


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


def rankings(data: GradedTurns, embedder: str) -> dict[tuple[str, str], np.ndarray]:
    """Full scores [turns, memes] under the run's weights, by (start, cure); `NONE` comes first of each start.

    With one dialogue there is no other half: CSLS is estimated on its own turns.
    """
    out = {}
    for start, centring in STARTS.items():
        plain = retrieval.combine(data.terms(embedder, centring), data.profile.retrieval.weights)
        out[start, NONE], out[start, CSLS] = plain, np.empty_like(plain)
        for rows, fit, _ in grades.folds(data.half):
            out[start, CSLS][rows] = csls(plain[rows], plain[fit])
    return out


def hubness_study(data: GradedTurns) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Cures, and the hubs' share of the repeats, under both embedders, uncentred and centred.

    `skewness` is that of N_1 over memes: at how many turns each is the best one. `repeats`: share of the
    turns 2..T whose best meme was the best one at an earlier turn of the dialogue, whether or not the gate
    opens; its change is that to the same scores without a cure.
    """
    from scipy.stats import skew

    cures, shares = [], []
    sent = {(p.dialogue_id, p.turn) for p in data.placements if p.strategy == "greedy"}
    at = {ALL: np.arange(len(data.asked)), GATE: np.flatnonzero([key in sent for key in data.keys])}
    for embedder in data.encoders if data.asked and data.annotations else ():
        plain = np.empty(0)
        for (start, cure), scores in rankings(data, embedder).items():
            name = {"embedder": embedder, "scores": start}
            best = retrieval.order(scores, data.meme_ids)[:, 0]
            n_1 = np.bincount(best, minlength=len(data.meme_ids))
            again = repeated(best, data.clusters).astype(float)
            if cure == NONE:
                plain = again
                shares += [{**name, **row} for row in hub_shares(data, best, at)]
            found = statistics.cluster_mean(again, data.clusters, statistics.SHARE)
            row = {**name, "cure": cure, "skewness": float(skew(n_1)), "dialogues": found.clusters}
            row |= found.columns("repeats")
            if cure != NONE:
                row |= statistics.cluster_mean(again - plain, data.clusters).columns("repeats change")
            cures.append(row)
    return pd.DataFrame(cures, columns=list(CURES)), pd.DataFrame(shares, columns=list(SHARES))


def hub_shares(data: GradedTurns, best: np.ndarray, at: Mapping[str, np.ndarray]) -> list[dict[str, object]]:
    """What the top tenth of memes by N_1 in the other half takes of the repeats here, and of all turns.

    `best` [turns] is the best meme of every turn; `at` has the turns that are looked at, by name.
    """
    n_memes = len(data.meme_ids)
    n_hubs = max(1, round(TENTH * n_memes))
    by_id = np.argsort(np.array(data.meme_ids))
    is_hub = np.zeros(len(best), dtype=bool)
    for here, fit, _ in grades.folds(data.half):
        often = np.argsort(-np.bincount(best[fit], minlength=n_memes)[by_id], kind="stable")  # ties: lower id
        is_hub[here] = np.isin(best[here], by_id[often[:n_hubs]])
    table = []
    for where, turns in at.items():
        clusters, hubs = np.array(data.clusters)[turns], is_hub[turns]
        again = repeated(best[turns], clusters)
        got = statistics.cluster_mean(hubs[again], clusters[again].tolist(), statistics.SHARE)
        table.append(
            {
                "where": where, "hubs": n_hubs, "even share": n_hubs / n_memes,
                **got.columns("share of repeats"), "repeats": int(again.sum()), "dialogues": got.clusters,
                "share of turns": hubs.mean() if len(hubs) else np.nan,
            }
        )  # fmt: skip
    return table
