"""When a meme is sent: the form of the threshold (Study 4), and how often memes repeat."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pandas as pd

from memecmd_utils import retrieval, statistics
from memecmd_utils.grades import Key
from memecmd_utils.splits import Turns

LINEAR_TURNS = 4
"""Turns after which the linear form has fallen back to theta0."""
FORMS = ("form", "memes", "rate", "mean gap", "sd of gaps", "follow-ups", "mean grade", "judged")
"""Columns of the first table, to which it adds a kappa with each marker."""
FORM_DIFFERENCES = ("form", "minus", "measure", "difference", "clear", "dialogues")
BASE = "exponential"


def sent_by_form(data: Turns) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Where each form sends a meme, and the best meme of every turn, as positions.

    Each theta0 is fitted to the run's wanted rate on the other half of the dialogues.
    """
    best = retrieval.order(data.scores, data.meme_ids)[:, 0]
    own = replace(retrieval.rule_of(data.profile), theta0=None)
    rules = {
        BASE: own,
        "linear": replace(own, left=lambda passed: max(0.0, 1 - passed), decay=1 / LINEAR_TURNS),
        "fixed": replace(own, penalty=0.0),
    }
    top1 = data.scores[np.arange(len(best)), best]
    return {form: data.gate(top1, rule).sent for form, rule in rules.items()}, best


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
    memes, ungraded ones as 0; `judged` says how many were graded. Without grades both are nan.
    """
    rows, differences, measured = [], [], {}
    by_form, best = sent_by_form(data) if data.asked and data.annotations else ({}, np.empty(0, dtype=int))
    turns = [(d.dialogue_id, s.turn) for d in data.split.dialogues for s in d.summaries]
    graded = data.grades[np.arange(len(best)), best]  # of the best meme of every turn
    values = np.nan_to_num(graded) if data.split.truth.grades else graded
    markers = {f"kappa with {name}": data.split.truth.turns_of(name) for name in data.split.truth.markers}

    def mean(top: np.ndarray, over: np.ndarray) -> statistics.LeftOut:
        return statistics.ratio(*(statistics.sums(x, data.clusters, list(data.rows_of)) for x in (top, over)))

    for form, sent in by_form.items():
        gap, places = gaps(data, sent), {data.keys[row] for row in np.flatnonzero(sent)}
        measured[form] = {
            "follow-ups": mean(gap == 1, sent),
            "mean gap": mean(np.nan_to_num(gap), np.isfinite(gap)),
            "mean grade": mean(np.where(sent, values, 0.0), sent),
        }
        judged = np.isfinite(graded[sent]).mean() if places and data.split.truth.grades else np.nan
        rows.append(
            {
                "form": form, "memes": len(places), "rate": statistics.share(len(places) / len(turns)),
                "sd of gaps": np.nanstd(gap) if np.isfinite(gap).any() else np.nan,
                "judged": statistics.share(judged),
                **{measure: float(got.value) for measure, got in measured[form].items()},
                "follow-ups": statistics.share(measured[form]["follow-ups"].value),
                **{name: timing_kappa(turns, places, theirs) for name, theirs in markers.items()},
            }
        )  # fmt: skip
        for measure, got in measured[form].items() if form != BASE else ():
            gap_to_base = statistics.estimate(got.minus(measured[BASE][measure]), len(places))
            row = {"form": form, "minus": BASE, "measure": measure, "difference": gap_to_base}
            clear = statistics.direction(gap_to_base.low, gap_to_base.high) != 0
            differences.append({**row, "clear": clear, "dialogues": gap_to_base.clusters})
    columns = [*FORMS, *markers]
    return pd.DataFrame(rows, columns=columns), pd.DataFrame(differences, columns=list(FORM_DIFFERENCES))


def timing_kappa(turns: Sequence[Key], sent: Collection[Key], theirs: Collection[Key]) -> float:
    """How far two senders agree, beyond chance, on whether a turn gets a meme."""
    counts = np.zeros((2, 2))
    for turn in turns:
        counts[int(turn in sent), int(turn in theirs)] += 1
    return float(statistics.kappa(counts))


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
