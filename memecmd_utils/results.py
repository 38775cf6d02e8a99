"""The numbers of a run: what the README, the page and the comparison in CI read."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from memecmd_utils import statistics, tables
from memecmd_utils.profiles import Profile
from memecmd_utils.schemas import Consistency, Dialogue, Meme, Placement, Rating

WEAK_AUC = 0.7
"""Below it a judge orders fewer than seven of ten pairs rightly: a trend, no verdict on one meme."""


def frame_rows(frame: pd.DataFrame, digits: int = 6) -> list[dict[str, Any]]:
    """A table as plain JSON values: floats rounded, NaN as None."""

    def clean(value: Any) -> Any:
        if isinstance(value, (bool, np.bool_)):
            return bool(value)
        if isinstance(value, (int, np.integer)):
            return int(value)
        if isinstance(value, (float, np.floating)):
            return round(float(value), digits) if np.isfinite(value) else None
        return value

    return [{key: clean(value) for key, value in row.items()} for row in frame.to_dict("records")]


def distinct(texts: Sequence[str]) -> float:
    """Share of different pairs of characters among all (Li et al., 2016); 1 where none comes twice."""
    pairs = [text[i : i + 2] for text in texts for i in range(len(text) - 1)]
    return len(set(pairs)) / max(1, len(pairs))


def numbers(
    profile: Profile,
    memes: Sequence[Meme],
    dialogues: Sequence[Dialogue],
    placements: Sequence[Placement],
    ratings: Sequence[Rating],
    consistency: Sequence[Consistency],
    gate_table: dict[str, Any],
    truth: Mapping[str, list[dict[str, Any]]] | None = None,
    grades: Mapping[str, tables.Values] | None = None,
) -> dict[str, Any]:
    """Everything that the report quotes, computed from the run's records.

    `truth` are the tables of `ground_truth.json`, `grades` those of placed memes by strategy.
    """
    turns = [turn for dialogue in dialogues for turn in dialogue.turns]
    summaries = [summary for dialogue in dialogues for summary in dialogue.summaries]
    texts = [turn.text for turn in turns]
    cases = tables.case_dialogues(placements, dialogues, profile)
    return {
        "profile": profile.name,
        "memes": len(memes),
        "dialogues": {
            "total": len(dialogues),
            "news": sum(d.kind == "news" for d in dialogues),
            "role": sum(d.kind == "role" for d in dialogues),
            "turns": len(turns),
            "mean_characters": round(float(np.mean([len(text) for text in texts])), 6),
            "distinct_2": round(distinct(texts), 6),
            "turns_with_violations": sum(bool(turn.violations) for turn in turns),
            "summaries": len(summaries),
            "summaries_unscored": sum(bool(summary.unscored) for summary in summaries),
        },
        "gates": gate_table,
        "meme_use": frame_rows(tables.meme_use(placements, dialogues)),
        "table_1": frame_rows(tables.table_1(ratings, consistency, dialogues, profile)),
        "table_2": frame_rows(tables.table_2(cases, ratings, consistency, profile)),
        "effects": frame_rows(tables.effects(ratings, consistency, dialogues, profile, grades)),
        "ground_truth": dict(truth or {}),
        "judge_check": frame_rows(tables.judge_check(ratings, profile)),
        "ratings": {
            "total": len(ratings),
            "placed": len(placements),
            "unscored": sum(rating.overall is None for rating in ratings),
            "sources": sorted({rating.source for rating in ratings}),
        },
    }


def consistency_frame(
    consistency: Sequence[Consistency], dialogues: Sequence[Dialogue], profile: Profile
) -> pd.DataFrame:
    """Rows of Figure 4: each strategy, and the shuffled baseline over all, by source of the dialogues."""
    rows = []
    for kind in ("news", "role"):
        names = {d.dialogue_id for d in dialogues if d.kind == kind}
        of_kind = [row for row in consistency if row.dialogue_id in names]
        if not of_kind:
            continue
        groups = {s: [r for r in of_kind if r.strategy == s and r.text == "u_t"] for s in profile.strategies}
        groups["shuffled"] = [r for r in of_kind if r.text == "shuffled"]
        for strategy, group in groups.items():
            got = statistics.cluster_mean([r.score for r in group], [r.dialogue_id for r in group])
            rows.append({"dataset": f"{kind}-based", "strategy": strategy, **got.row()})
    return pd.DataFrame(rows, columns=["dataset", "strategy", "mean", "low", "high", "n", "dialogues"])


def headline(found: dict[str, Any]) -> dict[str, Any]:
    """The few numbers at the top of the page, each with its interval."""
    sent = {row["strategy"]: row for row in found["meme_use"]}
    out: dict[str, Any] = {
        "Memes in the library": found["memes"],
        "Dialogues": found["dialogues"]["total"],
        "Turns": found["dialogues"]["turns"],
    }
    if "greedy" in sent:
        out["Meme rate of the gate"] = {
            "value": round(sent["greedy"]["rate"], 3),
            "note": f"{sent['greedy']['memes sent']} memes sent",
        }
    for row in found["effects"]:
        if row["effect"] == "choice" and row["mean"] is not None:
            out[f"{row['metric']}: {row['comparison']}"] = {
                "value": round(row["mean"], 2),
                "low": None if row["low"] is None else round(row["low"], 2),
                "high": None if row["high"] is None else round(row["high"], 2),
                "n": row["n"],
                "dialogues": row["dialogues"],
                "note": None if row["p_holm"] is None else f"Holm-corrected p = {row['p_holm']:.3f}",
            }
    row = first_check(found)
    if row is not None and row["low"] is not None:
        out["AUC of the judge"] = {
            "value": round(row["auc"], 3),
            "low": round(row["low"], 3),
            "high": round(row["high"], 3),
            "n": row["n"],
            "dialogues": row["dialogues"],
            "note": f"{SAID_OF_JUDGE[row['tells apart']]} at the same turns",
        }
    return out


SAID_OF_JUDGE = {
    "yes": "tells greedy's memes from random ones",
    "no": "cannot tell greedy's memes from random ones",
    "reversed": "prefers random memes to greedy's",
}
"""By `tells apart` of `tables.judge_check`."""


def first_check(found: Mapping[str, Any]) -> dict[str, Any] | None:
    """The check of the run's first judge, of the scores that its tables show; None where there is none."""
    return next((row for row in found["judge_check"] if row["score"] != "raw"), None)


def judge_verdict(found: dict[str, Any]) -> str:
    """One sentence on what the judge's scores are worth in this run."""
    row = first_check(found)
    if row is None and not found.get("ratings", {}).get("total", 1):
        return "No judge rated anything in this run."
    if row is None:
        return "No judge could be checked: there are too few rated memes."
    if row["low"] is None:
        least = statistics.MIN_CLUSTERS
        return (
            f"The judge could not be checked: an interval needs at least {least} dialogues with rated memes."
        )
    numbers_said = (
        f"AUC {row['auc']:.2f}, 95 % interval {row['low']:.2f} to {row['high']:.2f}, n = {row['n']} in "
        f"{row['dialogues']} dialogues"
    )
    verdict = f"The judge {SAID_OF_JUDGE[row['tells apart']]} at the same turns ({numbers_said})"
    if row["tells apart"] == "yes":
        return f"{verdict}{', but only weakly' if row['auc'] < WEAK_AUC else ''}."
    if row["tells apart"] == "reversed":
        return f"{verdict}: it is no measure of quality here."
    return f"{verdict}: its scores say nothing about quality here."
