"""When a meme is sent: the form of the threshold (Study 4), and how often memes repeat."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pandas as pd

from memecmd_utils import retrieval, statistics
from memecmd_utils.grades import Key
from memecmd_utils.retrieval import Gate
from memecmd_utils.settings import Profile
from memecmd_utils.splits import Turns

LINEAR_TURNS = 4
"""Turns after which the linear form has fallen back to theta0."""
BASE = "exponential"


def forms_of(profile: Profile) -> dict[str, Gate]:
    """The rule of each form; each theta0 is to be fitted to the run's wanted rate."""
    own = replace(retrieval.rule_of(profile), theta0=None)
    linear = replace(own, left=lambda passed: max(0.0, 1 - passed), decay=1 / LINEAR_TURNS)
    return {BASE: own, "linear": linear, "fixed": replace(own, penalty=0.0)}


def gaps(data: Turns, sent: np.ndarray) -> np.ndarray:
    """Turns since the dialogue's last meme, of every meme that is `sent` [turns]; nan at all other turns."""
    out = np.full(len(sent), np.nan)
    for before, row in pairwise(np.flatnonzero(sent)):
        if data.clusters[before] == data.clusters[row]:
            out[row] = data.keys[row][1] - data.keys[before][1]
    return out


def threshold_tables(data: Turns) -> tuple[pd.DataFrame, pd.DataFrame]:
    """What each form does with Greedy's memes, and each form minus the exponential with an interval.

    `follow-ups` is the share of memes right after a turn with a meme, `mean grade` (0-2) that of Greedy's
    memes, ungraded ones as 0; `judged` says how many were graded. Without grades both are nan. A kappa with
    each marker says how far both send at the same turns.
    """
    rows, differences, measured = [], [], {}
    turns = [(d.dialogue_id, s.turn) for d in data.split.dialogues for s in d.summaries]
    best = retrieval.order(data.scores, data.meme_ids)[:, 0]
    graded = data.grades[np.arange(len(best)), best]  # of the best meme of every turn
    values = np.nan_to_num(graded) if data.split.truth.grades else graded
    markers = {f"kappa with {name}": data.split.truth.turns_of(name) for name in data.split.truth.markers}

    def mean(top: np.ndarray, over: np.ndarray) -> statistics.LeftOut:
        return statistics.ratio(*(statistics.sums(x, data.clusters, list(data.rows_of)) for x in (top, over)))

    def kappa(ours: set[Key], theirs: set[Key]) -> float:
        pairs = [(turn in ours, turn in theirs) for turn in turns]
        return statistics.cluster_kappa(pairs, [name for name, _ in turns]).value

    for form, rule in forms_of(data.profile).items():
        sent = data.gate(data.scores.max(axis=1), rule).sent
        gap, places = gaps(data, sent), {data.keys[row] for row in np.flatnonzero(sent)}
        measured[form] = mine = {
            "follow-ups": mean(gap == 1, sent),
            "mean gap": mean(np.nan_to_num(gap), np.isfinite(gap)),
            "mean grade": mean(np.where(sent, values, 0.0), sent),
        }
        judged = np.isfinite(graded[sent]).mean() if places and data.split.truth.grades else np.nan
        rows.append(
            {
                "form": form, "memes": len(places), "rate": statistics.share(len(places) / len(turns)),
                "mean gap": float(mine["mean gap"].value),
                "sd of gaps": np.nanstd(gap) if np.isfinite(gap).any() else np.nan,
                "follow-ups": statistics.share(mine["follow-ups"].value),
                "mean grade": float(mine["mean grade"].value), "judged": statistics.share(judged),
                **{name: kappa(places, theirs) for name, theirs in markers.items()},
            }
        )  # fmt: skip
        for measure, value in mine.items() if form != BASE else ():
            got = statistics.estimate(value.minus(measured[BASE][measure]), len(places))
            row = {"form": form, "minus": BASE, "measure": measure, "difference": got}
            clear = got.low > 0 or got.high < 0
            differences.append({**row, "clear": clear, "dialogues": got.clusters})
    return pd.DataFrame(rows), pd.DataFrame(differences)


def expected_repeats(top: np.ndarray) -> np.ndarray:
    """Chance that the meme of each place of a dialogue came before, drawn from `top` [places, K] uniformly.

    A meme that stood among the top K at c earlier places has come with probability 1 - (1 - 1/K)^c.
    """
    earlier = np.zeros(top.max(initial=0) + 1)
    chances, missed = np.zeros(len(top)), 1 - 1 / max(1, top.shape[1])
    for place, memes in enumerate(top):
        chances[place] = (1 - missed ** earlier[memes]).mean()
        earlier[memes] += 1
    return chances
