"""Votes of a preference survey as in Table 6 of 2501.13851, and how far raters agree."""

from collections.abc import Iterable, Sequence

import numpy as np
import pandas as pd

from memecmd_utils import statistics
from memecmd_utils.human_ratings import Source
from memecmd_utils.preference_survey import QUESTIONS, KeyRow, SurveyAnswer

SYSTEMS = tuple(
    f"{model}, {context} context"
    for model in ("GPT-4o", "LLaVA-1.6 34B", "LLaVA-1.6 7B")
    for context in ("with", "without")
)
_PRINTED = """
4 3 3 3 0 2 | 1 1 2 0 0 0 | 3 0 1 0 0 0 | 3 0 3 3 1 0 | 1 0 1 1 1 3
4 3 3 0 1 2 | 1 1 1 1 0 0 | 0 3 0 1 0 0 | 3 2 2 2 0 1 | 0 0 3 3 0 0
4 1 3 0 1 1 | 0 0 1 0 0 2 | 1 3 0 0 0 0 | 2 2 2 1 2 1 | 0 0 1 1 1 3
4 3 3 0 2 0 | 2 0 2 0 0 0 | 1 1 0 2 0 0 | 2 2 1 1 1 1 | 1 3 3 0 0 0
4 2 3 3 1 0 | 2 2 0 0 0 0 | 3 1 0 0 0 0 | 1 1 3 3 2 4 | 2 0 3 3 1 1
"""
PAPER_TOTALS = dict(zip(SYSTEMS, (49, 34, 44, 28, 14, 21), strict=True))
"""Sums of the printed cells; the paper prints the same."""


def paper_table() -> pd.DataFrame:
    """Table 6 as printed: votes by meme (1-5, in its order) and subtask for each system, and totals."""
    rows = []
    for meme, line in enumerate(_PRINTED.strip().split("\n"), start=1):
        cells = (part.split() for part in line.split("|"))
        for subtask, votes in zip(QUESTIONS, cells, strict=True):
            rows.append(
                {"meme": str(meme), "subtask": subtask, **dict(zip(SYSTEMS, map(int, votes), strict=True))}
            )
    return _with_total(pd.DataFrame(rows))


def latest(answers: Iterable[SurveyAnswer]) -> list[SurveyAnswer]:
    """Answers that count: the latest of each rater to a question; made-up ones only where nobody answered."""
    found: dict[tuple, SurveyAnswer] = {}
    for answer in answers:
        name = answer.source, answer.form, answer.item, answer.subtask, answer.rater
        if name not in found or answer.at >= found[name].at:
            found[name] = answer
    source: Source = "human" if any(a.source == "human" for a in found.values()) else "made up"
    return [answer for answer in found.values() if answer.source == source]


def tally(answers: Iterable[SurveyAnswer], key: Sequence[KeyRow]) -> pd.DataFrame:
    """Votes by meme and subtask for each system, with a row of totals, as Table 6 has them.

    An answer that several systems gave counts for each. `attrs`: `source` (human or made up), `raters`.
    """
    counted = latest(answers)
    systems = list(dict.fromkeys(row.system for row in sorted(key, key=lambda row: row.system)))
    votes = {(row.item, row.subtask): dict.fromkeys(systems, 0) for row in key}
    memes = {row.item: row.meme_id for row in key}
    for answer in counted:
        for row in key:
            place = row.form, row.item, row.subtask
            if place == (answer.form, answer.item, answer.subtask) and row.option in answer.chosen:
                votes[row.item, row.subtask][row.system] += 1
    rows = [{"meme": memes[item], "subtask": subtask, **of} for (item, subtask), of in votes.items()]
    table = _with_total(pd.DataFrame(rows, columns=["meme", "subtask", *systems]))
    table.attrs |= {
        "source": counted[0].source if counted else None,
        "raters": len({answer.rater for answer in counted}),
    }
    return table


def _with_total(table: pd.DataFrame) -> pd.DataFrame:
    systems = list(table.columns[2:])
    total = {"meme": "Total", "subtask": "", **table[systems].sum().astype(int)}
    return pd.concat([table, pd.DataFrame([total])], ignore_index=True)


def totals(table: pd.DataFrame) -> pd.DataFrame:
    """Votes of each system, their share of the best system's, and the paper's totals beside them."""
    votes = table[table["meme"] == "Total"].iloc[0, 2:].astype(int)
    best = max(int(votes.max()), 1)
    frame = pd.DataFrame({"votes": votes, "share of the best": votes / best})
    paper = pd.Series(PAPER_TOTALS, name="votes (paper)")
    return frame.join(paper, how="outer").sort_values("votes (paper)", ascending=False, na_position="last")


def rater_agreement(answers: Iterable[SurveyAnswer], key: Sequence[KeyRow]) -> pd.DataFrame:
    """Krippendorff's nominal alpha of "was this option chosen", by subtask and over all, interval over memes.

    NaN with one rater, and no interval below `statistics.MIN_CLUSTERS` memes; the paper's survey has five. It
    does not say how many answered.
    """
    counted = latest(answers)
    raters = sorted({answer.rater for answer in counted})
    chosen = {(a.rater, a.item, a.subtask): a.chosen for a in counted}
    rows = {}
    for subtask in (*QUESTIONS, "all"):
        units = sorted({(r.item, r.subtask, r.option) for r in key if subtask in ("all", r.subtask)})
        values = np.full((len(raters), len(units)), np.nan)
        for i, rater in enumerate(raters):
            for j, (item, asked, option) in enumerate(units):
                if (rater, item, asked) in chosen:
                    values[i, j] = option in chosen[rater, item, asked]
        of = statistics.EMPTY
        if len(raters) > 1 and units:
            of = statistics.cluster_alpha(values, [item for item, _, _ in units], "nominal")
        rows[subtask] = {
            "alpha": of.mean,
            "low": of.low,
            "high": of.high,
            "options": of.n,
            "memes": of.clusters,
            "raters": len(raters),
        }
    return pd.DataFrame.from_dict(rows, orient="index")
