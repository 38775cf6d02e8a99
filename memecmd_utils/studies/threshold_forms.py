"""Study 4: does the form of the threshold matter? Exponential, linear and fixed at the same meme rate.

Each form's theta0 is fitted to the run's wanted rate on the other half of the dialogues. Memes are Greedy's.
"""

from collections.abc import Mapping
from itertools import pairwise

import numpy as np
import pandas as pd

from memecmd_utils.core import statistics
from memecmd_utils.evaluation.graded_turns import StudyData
from memecmd_utils.evaluation.tables import gaps_of
from memecmd_utils.retrieval import scoring
from memecmd_utils.studies import gates
from memecmd_utils.studies.gates import GateRule

LINEAR_TURNS = 4
"""Turns after which the linear form has fallen back to theta0."""
FORMS = ("form", "memes", "rate", "mean gap", "sd of gaps", "follow-ups", "mean grade", "judged")
"""Columns of `forms`, to which it adds a kappa with each marker."""
DIFFERENCES = ("form", "minus", "measure", "mean", "low", "high", "clear", "dialogues")
MEASURES = ("follow-ups", "mean gap", "mean grade")
BASE = "exponential"


def rules(data: StudyData) -> dict[str, GateRule]:
    """The three gates, all with the run's scale and penalty and with a theta0 to be fitted."""
    own = gates.own_rule(data)._replace(theta0=None)
    return {
        BASE: own,
        "linear": own._replace(form="linear", decay=1 / LINEAR_TURNS),
        "fixed": own._replace(form="fixed", penalty=0.0),
    }


def placed(data: StudyData) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Where each form sends a meme, and the best meme of every turn, as positions."""
    scores = gates.own_scores(data)
    best = scoring.best_memes(scores, data.meme_ids, 1)[:, 0]
    top1 = scores[np.arange(len(scores)), best][None]
    return {form: gates.sent(data, top1, rule)[0] for form, rule in rules(data).items()}, best


def follow_ups(data: StudyData, sent: np.ndarray) -> np.ndarray:
    """Memes of turns [..., turns] that have one in the turn before; same shape."""
    keys = data.keys
    before = np.array([(a[0], a[1] + 1) == b for a, b in pairwise(keys)])
    out = np.zeros_like(sent)
    out[..., 1:] = sent[..., 1:] & sent[..., :-1] & before.astype(bool)
    return out


def threshold_tables(data: StudyData) -> tuple[pd.DataFrame, pd.DataFrame]:
    """What each form does, and each form minus the exponential with an interval.

    `follow-ups` is the share of memes right after a turn with a meme, `mean grade` (0-2) that of Greedy's
    memes, ungraded ones as 0; `judged` says how many were graded. Without grades both are nan.
    """
    markers = data.truth.markers
    if not data.asked or not data.annotations:
        columns = [*FORMS, *(f"kappa with {name}" for name in markers)]
        return pd.DataFrame(columns=columns), pd.DataFrame(columns=list(DIFFERENCES))
    sent_by, best = placed(data)
    found = {form: _measured(data, sent, best) for form, sent in sent_by.items()}
    rows = [_row(data, form, sent, best, found[form].value) for form, sent in sent_by.items()]
    differences = []
    for form in [form for form in sent_by if form != BASE]:
        gaps = found[form].minus(found[BASE])
        ends = statistics.interval(gaps)
        for measure, mean, low, high, n in zip(MEASURES, gaps.value, *ends, gaps.clusters, strict=True):
            differences.append(
                {
                    "form": form, "minus": BASE, "measure": measure, "mean": mean, "low": low, "high": high,
                    "clear": statistics.clear(low, high), "dialogues": n,
                }
            )  # fmt: skip
    return pd.DataFrame(rows), pd.DataFrame(differences, columns=list(DIFFERENCES))


def _grades(data: StudyData, best: np.ndarray) -> np.ndarray:
    """Mean grade (0-2) of the best meme of every turn; nan where nobody graded it."""
    return data.gains[np.arange(len(best)), best] / max(1, len(data.truth.graders))


def _measured(data: StudyData, sent: np.ndarray, best: np.ndarray) -> statistics.LeftOut:
    """The `MEASURES` of one form."""
    keys, names = data.keys, list(data.rows_of)
    gaps = {n: gaps_of(keys[row] for row in rows if sent[row]) for n, rows in data.rows_of.items()}
    graded = np.nan_to_num(_grades(data, best)) if data.truth.grades else np.full(len(best), np.nan)
    tops = np.column_stack([follow_ups(data, sent), np.where(sent, graded, 0.0)])
    top = statistics.sums(tops, data.clusters, names)
    memes = statistics.sums(sent.astype(float), data.clusters, names)
    length = np.array([sum(gaps[name]) for name in names], dtype=float)
    number = np.array([len(gaps[name]) for name in names], dtype=float)
    top = np.column_stack([top[:, 0], length, top[:, 1]])
    return statistics.ratio(top, np.column_stack([memes, number, memes]))


def _row(
    data: StudyData, form: str, sent: np.ndarray, best: np.ndarray, measured: np.ndarray
) -> dict[str, object]:
    turns = {(d.dialogue_id, s.turn) for d in data.dialogues for s in d.summaries}
    memes = {key for key, is_sent in zip(data.keys, sent, strict=True) if is_sent}
    gaps, grades = gaps_of(memes), _grades(data, best)[sent]
    found = dict(zip(MEASURES, measured, strict=True))
    row: dict[str, object] = {
        "form": form, "memes": len(memes), "rate": len(memes) / len(turns), "mean gap": found["mean gap"],
        "sd of gaps": float(np.std(gaps)) if gaps else np.nan, "follow-ups": found["follow-ups"],
        "mean grade": found["mean grade"],
        "judged": float(np.isfinite(grades).mean()) if len(grades) and data.truth.grades else np.nan,
    }  # fmt: skip
    for marker in data.truth.markers:
        marked = {(m.dialogue_id, m.turn) for m in data.truth.marks if m.marker == marker and m.send}
        both = ([turn in places for turn in turns] for places in (memes, marked))
        row[f"kappa with {marker}"] = float(statistics.kappa(statistics.confusion(*both)))
    return row


def threshold_sentence(forms: pd.DataFrame, differences: pd.DataFrame) -> str:
    """What was found, in one sentence."""
    if forms.empty or not forms["memes"].sum():
        return "No meme was sent under any form of the threshold, so the forms cannot be compared."
    rates = ", ".join(f"{row['form']} {row['rate']:.2f}" for _, row in forms.iterrows())
    parts = []
    for form, rows in differences.groupby("form", sort=False):
        of = rows.set_index("measure")
        parts.append(
            f"{form} minus {BASE} changes the share of memes right after another by "
            f"{_judged(of.loc['follow-ups'])}, the mean gap by {_judged(of.loc['mean gap'])} turns"
            + (
                f" and the mean grade of the memes by {_judged(of.loc['mean grade'])}"
                if np.isfinite(of.loc["mean grade", "mean"])
                else ""
            )
        )
    n = differences["dialogues"].max()
    return (
        f"With theta0 fitted to one rate on the other half (reached: {rates}; {n} dialogues), "
        f"{'; '.join(parts)}."
    )


def _judged(row: Mapping[str, float]) -> str:
    return f"{statistics.format_interval(row, sign='+')} ({statistics.verdict(row)})"
