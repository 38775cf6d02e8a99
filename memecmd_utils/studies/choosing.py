"""Notebook 04b: what the choices of `reranked` depend on, and how its memes fare in whole chats.

Choices under other settings, grades of memes in sequence and scores of screenshots are authored files of the
untouched tests; the plan is `data/example/RERANKING_PLAN.md`.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from memecmd_utils import files, grades, statistics, tables
from memecmd_utils.files import paths
from memecmd_utils.retrieval import RERANKED
from memecmd_utils.schemas import DIMENSIONS, Choice
from memecmd_utils.studies.landing import GREEDY, RANDOM, Senders, Sent, summary

SETTINGS = {
    "K = 20": "choices", "K = 5": "choices_k5", "K = 10": "choices_k10", "K = 40": "choices_k40",
    "annotation texts": "choices_annotation", "without none": "choices_always",
}  # fmt: skip
"""Files of choices by what was asked otherwise; the first is as the profile has it."""
QUARTERS = ("first quarter", "second quarter", "third quarter", "last quarter")
KEY = ["strategy", "dialogue_id", "turn", "meme_id"]


def setting_rows(senders: Senders) -> Iterator[dict[str, Any]]:
    """What is sent under each of `SETTINGS`, on the dialogues that have choices under all of them."""
    folder = paths.example / senders.data.split.name
    paths_of = {name: folder / f"{file}.jsonl" for name, file in SETTINGS.items()}
    made = {name: files.read_jsonl(path, Choice) for name, path in paths_of.items() if path.is_file()}
    if len(made) < 2:
        return
    shared = set.intersection(*({choice.dialogue_id for choice in choices} for choices in made.values()))
    among = np.isin(np.array(senders.data.clusters), list(shared))
    for name, choices in made.items():
        memes = senders.places_of(choices)
        sent = Sent(among & (memes >= 0), memes)
        rate = sent.turns.sum() / among.sum()
        yield {"setting": name, "turns": int(among.sum()), "rate": rate, **summary(senders, sent)}


def place_rows(senders: Senders) -> Iterator[dict[str, Any]]:
    """How many choices fell on each quarter of the list, and p that all quarters are alike."""
    from scipy.stats import chisquare

    for who, choices in senders.choices.items():
        quarters = Counter((c.place - 1) * len(QUARTERS) // c.shown for c in choices if c.meme_id)
        counts = [quarters[place] for place in range(len(QUARTERS))]
        at = dict(zip(QUARTERS, counts, strict=True))
        yield {"who": who, "choices": sum(counts), **at, "p": chisquare(counts).pvalue}


def sequence_rows(senders: Senders) -> Iterator[dict[str, Any]]:
    """The same memes graded alone, and after those that the same strategy sent before them in the chat."""
    frame = _rows(senders, "grades_in_sequence")
    if frame.empty:
        return
    means = frame.groupby(KEY, sort=False, as_index=False)["grade"].mean()
    means["alone"] = _grades(senders, means)
    for who, of in means.groupby("strategy", sort=False):
        alone, after = (of[name].to_numpy() for name in ("alone", "grade"))
        shares = {
            "fits alone": grades.fits(alone), "fits in sequence": grades.fits(after),
            "lands alone": alone == 2, "lands in sequence": after == 2,
        }  # fmt: skip
        values = np.column_stack(list(shares.values())).astype(float)
        means = statistics.cluster_means(list(shares), values, of["dialogue_id"].tolist(), statistics.SHARE)
        yield {"who": who, "memes": len(of), **means}


def screenshot_rows(senders: Senders) -> Iterator[dict[str, Any]]:
    """Scores (0-100) of strategies by source of the chats, beside those of the paper's Table 1 (18 turns)."""
    frame = _scores(senders)
    if frame.empty:
        return
    paper = tables.paper_table_1().query("metric == 'judge'").set_index("dataset")
    overall = {who: of.set_index(["dialogue_id", "turn"])["overall"] for who, of in frame.groupby("strategy")}
    for kind in ("all", "news", "role"):
        begin = "" if kind == "all" else kind
        here = {who: of[of.index.get_level_values(0).str.startswith(begin)] for who, of in overall.items()}
        for who, of in here.items():
            got = statistics.cluster_mean(
                of.tolist(), of.index.get_level_values(0), statistics.MEAN._replace(bounds=(0, 100))
            )
            gap = statistics.paired_difference(of.to_dict(), here[RANDOM].to_dict())
            row = {"source": kind, "who": who, "memes": len(of), "overall": got}
            row |= {"minus random": gap} if who != RANDOM else {}
            printed = {} if kind == "all" else paper.loc[f"{kind}-18"]
            row["paper"] = printed.get(who, np.nan)
            yield {**row, "paper minus random": printed.get(f"{who}_difference", np.nan)}


def sighted_rows(senders: Senders) -> Iterator[dict[str, Any]]:
    """AUC of the scores between memes that fit and that do not, and between those of two strategies."""
    frame = _scores(senders)
    if frame.empty:
        return
    fit, strategy = grades.fits(_grades(senders, frame)), frame["strategy"]
    pairs = {"fits, against does not fit": (fit, ~fit)} | {
        f"{a}, against {b}": (strategy == a, strategy == b)
        for a, b in ((RERANKED, GREEDY), (RERANKED, RANDOM), (GREEDY, RANDOM))
    }
    for name, masks in pairs.items():
        for score in ("overall", *DIMENSIONS) if masks[0] is fit else ("overall",):
            scored = [list(zip(frame[m]["dialogue_id"], frame[m][score], strict=True)) for m in masks]
            yield {"what": name, "score": score, "AUC": statistics.cluster_auc(*scored)}


TABLES = {
    "settings": setting_rows, "places": place_rows, "in_sequence": sequence_rows,
    "screenshots": screenshot_rows, "sighted": sighted_rows,
}  # fmt: skip
"""What makes the rows of each table of a split, for `landing.tabulate`."""


def _scores(senders: Senders) -> pd.DataFrame:
    """Scores of the judges that see, their mean for each meme; `overall` is the mean of the dimensions."""
    frame = _rows(senders, "scores_of_screenshots")
    if not frame.empty:
        frame = frame.groupby(KEY, sort=False, as_index=False)[list(DIMENSIONS)].mean()
        frame["overall"] = frame[list(DIMENSIONS)].mean(axis=1)
    return frame


def _rows(senders: Senders, name: str) -> pd.DataFrame:
    path = paths.example / senders.data.split.name / f"{name}.jsonl"
    return pd.DataFrame(files.read_rows(path) if path.is_file() else ())


def _grades(senders: Senders, frame: pd.DataFrame) -> np.ndarray:
    """Mean grades of the memes of a table, each alone at its turn."""
    at = zip(frame["dialogue_id"], frame["turn"], frame["meme_id"], strict=True)
    data = senders.data
    return np.array([data.grades[data.row[name, turn], data.column[meme]] for name, turn, meme in at])
