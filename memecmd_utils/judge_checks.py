"""What each judge is worth: does it tell memes that fit from those that do not, and is it steady?

Study 1 of the example's study plan. The memes are graded by a large language model, not by people.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from memecmd_utils import judge_answers, statistics
from memecmd_utils.judge_answers import CENTRED, CONSISTENCY, P_YES, RATING, RETRIEVAL, Answers
from memecmd_utils.judges import OTHER_ORDER, WORDINGS
from memecmd_utils.runs import Run
from memecmd_utils.study_data import StudyData

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BINS = 10
"""Of the reliability diagram, equally filled."""
STEADY = 0.667
"""Alpha over wordings from which a judge is steady: Krippendorff's bound for tentative conclusions."""
KINDS = {"random": "random", "hard": "hard negative"}
"""What fitting memes are held against, by its name in the columns."""
TRUST = (
    "judge", "reading", "turns", "dialogues", "unscored",
    *statistics.with_ends("AUC random"), "wins random", *statistics.with_ends("AUC hard"), "wins hard",
    "ECE", "Brier", "Brier base rate", *statistics.with_ends("order shift", "length rho", "alpha wordings"),
    "verdict",
)  # fmt: skip
CALIBRATION = ("judge", "bin", "items", "mean p", "share that fits")
WORDED = ("judge", "wording", "items", "dialogues", "mean p", *statistics.with_ends("AUC random"))
AGREEMENT = ("judge", "other", "items", "dialogues", *statistics.with_ends("alpha"))
PRINTED = ("AUC random", "AUC hard", "order shift", "length rho", "alpha wordings")
"""Columns that are shown with their interval in one cell; three digits, so that 0.503 is not 0.50."""
TRUSTED, TOPIC, UNSTEADY, NO, YARDSTICK = "trust", "topic only", "unsteady", "no", "yardstick"
REVERSED, UNTOLD = "reversed", "not told"
IN_WORDS = {
    TRUSTED: "tells fitting memes from random ones and from hard negatives",
    TOPIC: "tells fitting memes from random ones, but not from hard negatives",
    UNSTEADY: "tells fitting memes from others, but its answers change with the wording of the questions",
    NO: "cannot tell fitting memes from random ones",
    REVERSED: "prefers random memes to fitting ones",
    UNTOLD: "could not be held against the ground truth: too few dialogues have its answers",
}


class Checks(NamedTuple):
    """Four tables; empty, with their columns, where a run has no ground truth or checks nothing."""

    trust: pd.DataFrame
    """A row a judge and reading: how far each deserves trust."""
    calibration: pd.DataFrame
    """p(yes) against the share of memes that fit, in equally filled bins."""
    wordings: pd.DataFrame
    """AUC of fitting against random memes by wording."""
    agreement: pd.DataFrame
    """Krippendorff's alpha of the ranks that two judges give the same items."""


def run_checks(run: Run, data: StudyData) -> Checks:
    """Ask every judge of the run's profile and measure its answers."""
    return measure(judge_answers.ask_all(run, data))


def measure(answers: Answers) -> Checks:
    """All tables of some answers."""
    scores, worded = answers
    trust = [
        _trust_row(judge, reading, group, worded[worded["judge"] == judge])
        for (judge, reading), group in scores.groupby(["judge", "reading"], sort=False)
    ]
    binned = [
        {"judge": judge, **row}
        for judge, group in scores[scores["reading"] == P_YES].groupby("judge", sort=False)
        for row in bins(*_p_and_truth(group))
    ]
    by_wording = [
        {
            "judge": judge,
            "wording": wording,
            "items": int(group["p"].notna().sum()),
            "mean p": float(group["p"].mean()),
            "dialogues": got.clusters,
            **got.columns("AUC random"),
        }
        for (judge, wording), group in worded.groupby(["judge", "wording"], sort=False)
        for got in [_auc(group, "random", "p")]
    ]
    return Checks(
        pd.DataFrame(trust, columns=list(TRUST)),
        pd.DataFrame(binned, columns=list(CALIBRATION)),
        pd.DataFrame(by_wording, columns=list(WORDED)),
        pd.DataFrame(_agreements(scores), columns=list(AGREEMENT)),
    )


def verdict(row: Mapping[str, Any]) -> str:
    """How far a judge deserves trust, by the rule of the plan, from its AUCs and its alpha over wordings.

    Without an interval (too few dialogues, or no answers) nothing is told, save of a judge that scores all
    alike. A judge without alpha is judged by its AUCs; one that clearly prefers random memes is told from one
    that cannot tell.
    """
    if row["reading"] == RETRIEVAL:
        return YARDSTICK
    if not np.isfinite(row["AUC random low"]) and row["AUC random"] != 0.5:
        return UNTOLD
    if row["AUC random high"] < 0.5:
        return REVERSED
    if not row["AUC random low"] > 0.5:
        return NO
    if not row["AUC hard low"] > 0.5:
        return TOPIC
    return UNSTEADY if row["alpha wordings"] < STEADY else TRUSTED


def sentence(checks: Checks) -> str:
    """What the run's first judge can do, and which judges deserve trust; numbers from the tables only."""
    trust = checks.trust[checks.trust["verdict"] != YARDSTICK]
    if trust.empty:
        return "No judge was held against the ground truth."
    # The reading that the tables of stage 05 show: a yes/no judge's centred one.
    first = trust.sort_values("reading", key=lambda names: names == P_YES, kind="stable").iloc[0]
    random, hard = (statistics.spell_interval(first, f"AUC {kind}", sign="") for kind in KINDS)
    told = (
        f"{_name(first)} {IN_WORDS[first['verdict']]} (AUC {random} against random memes, {hard} against "
        f"hard negatives, {first['dialogues']:.0f} dialogues)"
    )
    good = [_name(row) + _unasked(row) for _, row in trust[trust["verdict"] == TRUSTED].iterrows()]
    which = f": {', '.join(good)}" if good else ""
    moved = [
        f" {_name(row)} {IN_WORDS[UNSTEADY]} "
        f"(alpha {statistics.spell_interval(row, 'alpha wordings', sign='')})."
        for _, row in trust[trust["verdict"] == UNSTEADY].iterrows()
    ]
    text = f"{told}; of {len(trust)} scores by judges {len(good) or 'none'} deserve{_s(good)} trust{which}."
    return text + "".join(moved)


def _unasked(row: pd.Series) -> str:
    return (
        ""
        if np.isfinite(row["alpha wordings"]) or row["reading"] == CONSISTENCY
        else ", not asked in other words"
    )


def _s(good: Sequence[str]) -> str:
    return "s" if len(good) < 2 else ""


def _name(row: pd.Series) -> str:
    return f"{row['judge']} ({row['reading']})" if row["reading"] in (P_YES, CENTRED) else row["judge"]


def printed(trust: pd.DataFrame) -> pd.DataFrame:
    """The table of trust for a reader: estimates with their intervals in one cell, what is missing a dash."""
    out = trust.drop(columns=[f"{name} {end}" for name in PRINTED for end in ("low", "high")]).round(3)
    for name in PRINTED:
        cells = (statistics.spell_interval(row, name, sign="") for _, row in trust.iterrows())
        out[name] = ["–" if cell == statistics.NOT_MEASURED else cell for cell in cells]
    return out


def _auc(group: pd.DataFrame, kind: str, value: str) -> statistics.Estimate:
    """AUC of fitting memes against another kind."""
    of = {
        one: list(zip(part["dialogue_id"], part[value], strict=True))
        for one, part in group.dropna(subset=[value]).groupby("kind")
    }
    return statistics.cluster_auc(of.get("fitting", []), of.get(kind, []))


def wins(group: pd.DataFrame, kind: str) -> float:
    """Share of turns at which the fitting meme scores above the one of the other kind, ties half."""
    table = group.pivot(index=["dialogue_id", "turn"], columns="kind", values="score")
    both = table.reindex(columns=["fitting", kind]).dropna()
    return float((np.sign(both["fitting"] - both[kind]) / 2 + 0.5).mean()) if len(both) else float("nan")


def length_correlation(group: pd.DataFrame) -> statistics.Estimate:
    """Spearman correlation of score and caption length among memes that do not fit."""
    others = group[group["kind"] != "fitting"].dropna(subset=["score"])
    others = others.drop_duplicates(["dialogue_id", "turn", "meme_id"])
    others = others.sort_values("dialogue_id", kind="stable")
    columns = others[["dialogue_id", "length", "score"]]
    return statistics.cluster_spearman(list(columns.itertuples(index=False, name=None)))


def _p_and_truth(group: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    known = group.dropna(subset=["p"])
    return known["p"].to_numpy(float), (known["kind"] == "fitting").to_numpy(float)


def _trust_row(judge: str, reading: str, group: pd.DataFrame, worded: pd.DataFrame) -> dict[str, Any]:
    row: dict[str, Any] = dict.fromkeys(TRUST, np.nan)
    row |= {"judge": judge, "reading": reading, "unscored": int(group["score"].isna().sum())}
    row["turns"] = len(group[["dialogue_id", "turn"]].drop_duplicates())
    row["dialogues"] = group["dialogue_id"].nunique()
    for against, kind in KINDS.items():
        row |= _auc(group, kind, "score").columns(f"AUC {against}")
        row[f"wins {against}"] = wins(group, kind)
    row |= length_correlation(group).columns("length rho")
    if reading == P_YES:
        p, fits = _p_and_truth(group)
        row["ECE"], row["Brier"] = calibration_error(p, fits), brier(p, fits)
        row["Brier base rate"] = brier(np.full(len(p), fits.mean()), fits) if len(p) else np.nan
    if reading in (P_YES, CENTRED) and len(worded):
        # Both readings come from the same answers, so one alpha, that of p(yes), speaks for both.
        row |= _steadiness(worded).columns("alpha wordings")
        row |= _order_shift(worded).columns("order shift")
    row["verdict"] = verdict(row)
    return row


def _by_wording(worded: pd.DataFrame, names: Sequence[str]) -> pd.DataFrame:
    """p(yes) as a table [items, wordings]; the index begins with the dialogue."""
    index = ["dialogue_id", "turn", "meme_id", "kind"]
    return worded.pivot(index=index, columns="wording", values="p").reindex(columns=list(names))


def _steadiness(worded: pd.DataFrame) -> statistics.Estimate:
    """Alpha (interval) of p(yes) with the wordings as raters."""
    asked = _by_wording(worded, WORDINGS)
    return statistics.cluster_alpha(asked.to_numpy().T, list(asked.index.get_level_values(0)), "interval")


def _order_shift(worded: pd.DataFrame) -> statistics.Estimate:
    """Mean change of p(yes) when the answers are named the other way round."""
    both = _by_wording(worded, [WORDINGS[0], OTHER_ORDER]).dropna()
    change = both[OTHER_ORDER] - both[WORDINGS[0]]
    return statistics.cluster_mean(list(change), list(both.index.get_level_values(0)))


def _agreements(scores: pd.DataFrame) -> list[dict[str, Any]]:
    """Alpha (interval, of ranks) of every two judges' overall scores, over the items that both scored."""
    overall = scores[scores["reading"].isin([CENTRED, RATING, CONSISTENCY])]
    names = list(dict.fromkeys(overall["judge"]))
    index = ["dialogue_id", "turn", "meme_id", "kind"]
    table = overall.pivot(index=index, columns="judge", values="score")
    rows = []
    for place, judge in enumerate(names):
        for other in names[place + 1 :]:
            both = table[[judge, other]].dropna()
            clusters = list(both.index.get_level_values(0))
            got = statistics.cluster_alpha(both.rank().to_numpy().T, clusters, "interval")
            sizes = {"items": len(both), "dialogues": got.clusters}
            rows.append({"judge": judge, "other": other, **sizes, **got.columns("alpha")})
    return rows


# --- does p(yes) mean what it says? -----------------------------------------------------------------------


def bins(p: np.ndarray, fits: np.ndarray) -> list[dict[str, Any]]:
    """Up to `BINS` equally filled bins by rising p: number, items, mean p and share of items that fit.

    `p` [items] is a probability, `fits` [items] 1 or 0. Equal p's stay in the order given.
    """
    parts = [part for part in np.array_split(np.argsort(p, kind="stable"), BINS) if len(part)]
    return [
        {
            "bin": number,
            "items": len(part),
            "mean p": float(p[part].mean()),
            "share that fits": float(fits[part].mean()),
        }
        for number, part in enumerate(parts, start=1)
    ]


def calibration_error(p: np.ndarray, fits: np.ndarray) -> float:
    """Expected calibration error: a bin's mean distance of p from its share that fits, over all items."""
    if not len(p):
        return float("nan")
    return sum(row["items"] * abs(row["mean p"] - row["share that fits"]) for row in bins(p, fits)) / len(p)


def brier(p: np.ndarray, fits: np.ndarray) -> float:
    """Mean squared distance of p from the truth (Brier, 1950); nan without items."""
    return float(np.mean((p - fits) ** 2)) if len(p) else float("nan")


def reliability_figure(frame: pd.DataFrame) -> "Figure":
    """The bins of every judge (`judge`, `mean p`, `share that fits`) and the line of perfect calibration."""

    from memecmd_utils import plots

    with plots.style():
        figure = plots.canvas(5.2, 4.4)
        axes = figure.subplots()
        axes.plot([0, 1], [0, 1], color="0.6", linestyle="--", linewidth=1, label="perfect")
        for judge, rows in frame.groupby("judge", sort=False):
            axes.plot(rows["mean p"], rows["share that fits"], marker="o", markersize=4, label=judge)
        axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="p(yes), mean of a bin", ylabel="share of memes that fit")
        axes.set_title("Does p(yes) mean what it says?")
        axes.legend(fontsize=8, loc="upper left")
    return figure
