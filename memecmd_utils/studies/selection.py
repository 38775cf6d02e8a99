"""When a meme is sent: the form of the threshold (Study 4), and how often memes repeat.

Scores and gate of a run's turns are whole matrices here, and equal to what the run itself places by.
"""

from collections.abc import Collection
from itertools import pairwise

import numpy as np
import pandas as pd

from memecmd_utils import retrieval, statistics
from memecmd_utils.grades import GradedTurns, Key
from memecmd_utils.retrieval import GateRule


def timing_kappa(turns: Collection[Key], sent: set[Key], theirs: set[Key]) -> float:
    """How far two senders agree, beyond chance, on whether a turn gets a meme."""
    both = [(turn in sent, turn in theirs) for turn in turns]
    return statistics.cluster_kappa(both, range(len(both)), 2).value


def own_rule(data: GradedTurns) -> GateRule:
    """The run's gate, with theta0 fitted where the profile says `auto`."""
    return retrieval.rule_of(data.profile)


def own_scores(data: GradedTurns) -> np.ndarray:
    """The run's score T of every pair, [turns, memes] (Eq. 22), rounded as where memes are placed.

    So equal memes tie on every machine.
    """
    terms = data.terms(data.profile.models.embedder, data.profile.retrieval.centring)
    return np.round(retrieval.combine(terms, data.profile.retrieval.weights), 9)


def open_turns(
    data: GradedTurns, top1: np.ndarray, rule: GateRule, like: np.ndarray | None = None
) -> np.ndarray:
    """Where the gate opens for each of several sets of best scores, [sets, turns] to booleans of that shape.

    The rate wanted is the profile's, or that of `like`; where `like` sends nothing, nothing is sent.
    """
    return data.gate(top1, rule, like).sent


# --- Does the form of the threshold matter? Exponential, linear and fixed at the same meme rate
# Each theta0 is fitted to the run's wanted rate on the other half of the dialogues. Memes are Greedy's.


LINEAR_TURNS = 4
"""Turns after which the linear form has fallen back to theta0."""
FORMS = ("form", "memes", "rate", "mean gap", "sd of gaps", "follow-ups", "mean grade", "judged")
"""Columns of the first table, to which it adds a kappa with each marker."""
FORM_DIFFERENCES = ("form", "minus", "measure", "mean", "low", "high", "clear", "dialogues")
BASE = "exponential"


def sent_by_form(data: GradedTurns) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Where each form sends a meme, and the best meme of every turn, as positions."""
    scores, own = own_scores(data), own_rule(data)._replace(theta0=None)
    best = retrieval.order(scores, data.meme_ids)[:, 0]
    top1 = scores[np.arange(len(scores)), best][None]
    rules = {
        BASE: own,
        "linear": own._replace(form="linear", decay=1 / LINEAR_TURNS),
        "fixed": own._replace(form="fixed", penalty=0.0),
    }
    return {form: open_turns(data, top1, rule)[0] for form, rule in rules.items()}, best


def gaps(data: GradedTurns, sent: np.ndarray) -> np.ndarray:
    """Turns since the dialogue's last meme, of every meme that is `sent` [turns]; nan at all other turns."""
    out = np.full(len(sent), np.nan)
    for before, row in pairwise(np.flatnonzero(sent)):
        if data.clusters[before] == data.clusters[row]:
            out[row] = data.keys[row][1] - data.keys[before][1]
    return out


def threshold_tables(data: GradedTurns) -> tuple[pd.DataFrame, pd.DataFrame]:
    """What each form does, and each form minus the exponential with an interval.

    `follow-ups` is the share of memes right after a turn with a meme, `mean grade` (0-2) that of Greedy's
    memes, ungraded ones as 0; `judged` says how many were graded. Without grades both are nan.
    """
    rows, differences, measured = [], [], {}
    by_form, best = sent_by_form(data) if data.asked and data.annotations else ({}, np.empty(0, dtype=int))
    turns = {(d.dialogue_id, s.turn) for d in data.dialogues for s in d.summaries}
    graded = data.grades[np.arange(len(best)), best]  # of the best meme of every turn
    values = np.nan_to_num(graded) if data.truth.grades else graded
    for form, sent in by_form.items():
        gap, places = gaps(data, sent), {data.keys[row] for row in np.flatnonzero(sent)}
        tops = [gap == 1, np.nan_to_num(gap), np.where(sent, values, 0.0)]
        sums = statistics.sums(
            np.column_stack([*tops, sent, np.isfinite(gap), sent]), data.clusters, list(data.rows_of)
        )
        measured[form] = statistics.ratio(sums[:, :3], sums[:, 3:])
        follow_ups, mean_gap, grade = measured[form].value
        spread = np.nanstd(gap) if np.isfinite(gap).any() else np.nan
        judged = np.isfinite(graded[sent]).mean() if len(places) and data.truth.grades else np.nan
        kappas = (timing_kappa(turns, places, data.truth.turns_of(name)) for name in data.truth.markers)
        rate = len(places) / len(turns)
        rows.append((form, len(places), rate, mean_gap, spread, follow_ups, grade, judged, *kappas))
        if form != BASE:
            minus = measured[form].minus(measured[BASE])
            low, high = statistics.interval(minus)
            differences += [
                (form, BASE, name, minus.value[i], low[i], high[i],
                 statistics.direction(low[i], high[i]) != 0, minus.clusters[i])
                for i, name in enumerate(("follow-ups", "mean gap", "mean grade"))
            ]  # fmt: skip
    columns = [*FORMS, *(f"kappa with {name}" for name in data.truth.markers)]
    return pd.DataFrame(rows, columns=columns), pd.DataFrame(differences, columns=list(FORM_DIFFERENCES))


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
