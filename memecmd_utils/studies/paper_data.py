"""Notebook 09: Table 1 from the authors' own files (2507.00891), and a blind look at their chats' memes.

Two tables hold what is measured (`Published`): chats, a row for each dialogue and strategy, and memes, a row
for each placed meme. They come from a release, or of a sample of 68 dialogues from `data/example/authors`.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from memecmd_utils import authors, retrieval, statistics
from memecmd_utils.files import paths
from memecmd_utils.statistics import Estimate

SAMPLE = paths.example / "authors"
STRATEGIES = {"greedy": "Greedy", "sampling": "Diversity-aware", "random": "Random"}
PAIRS = (("greedy", "random"), ("sampling", "random"), ("sampling", "greedy"))
MEASURES = ("judge", "consistency")


class Published(NamedTuple):
    """What was published, as two tables.

    `chats`: set, dialogue, strategy, turns, score (the judge's, 0-100; nan: none), consistency (0-100, mean
    of the dialogue's memes; nan: none). `memes`: set, dialogue, strategy, turn, meme (its file's name).
    """

    chats: pd.DataFrame
    memes: pd.DataFrame


def of_release(release: authors.Release) -> Published:
    """The two tables of a release. Consistency is 50 (1 + cosine), as in Eq. 26."""
    consistency = {
        chat: 50 * (1 + np.mean([cosine for _, cosine in memes])) for chat, memes in release.cosines.items()
    }
    set_of = {name: str(part) for name, part in release.sets.items()}
    chats = [
        (set_of[d.dialogue_id], *chat, len(d.turns), release.scores.get(chat), consistency.get(chat))
        for d in release.dialogues
        for strategy in release.strategies[release.sets[d.dialogue_id]]
        for chat in [(d.dialogue_id, strategy)]
    ]
    memes = [
        (set_of[p.dialogue_id], p.dialogue_id, p.strategy, p.turn, p.meme_id) for p in release.placements
    ]
    key = ["set", "dialogue", "strategy"]
    of_chats = pd.DataFrame(chats, columns=[*key, "turns", "score", "consistency"])
    return _published(of_chats, pd.DataFrame(memes, columns=[*key, "turn", "meme"]))


def of_sample() -> Published:
    """The two tables of the tracked sample, without consistency."""
    chats, memes = (pd.read_csv(SAMPLE / f"{name}.csv") for name in ("chats", "memes"))
    return _published(chats.assign(consistency=np.nan), memes)


def _published(chats: pd.DataFrame, memes: pd.DataFrame) -> Published:
    """With the number of memes, of turns with one and of repeats of every chat beside its scores."""
    key = ["dialogue", "strategy"]
    by_chat = memes.assign(repeat=memes.sort_values("turn").duplicated([*key, "meme"])).groupby(key)
    counts = by_chat.agg(memes=("meme", "size"), filled=("turn", "nunique"), repeats=("repeat", "sum"))
    chats = chats.astype({"score": float, "consistency": float}).join(counts, on=key)
    return Published(chats.fillna({"memes": 0, "filled": 0, "repeats": 0}), memes)


# --- Table 1


def table_1(published: Published) -> pd.DataFrame:
    """Every cell of Table 1 that the files hold: a row a set, measure and strategy.

    Judge: mean score over all judged dialogues, also such as hold no meme. Consistency: mean over dialogues
    with a meme. `paper`: what is printed there; `dialogues`: how many the mean is over.
    """
    printed = pd.read_csv(paths.data / "paper" / "table1.csv").set_index(["dataset", "metric"])
    rows = []
    for (part, strategy), chats in published.chats.groupby(["set", "strategy"], sort=False):
        for measure, column in zip(MEASURES, ("score", "consistency"), strict=True):
            known = chats.dropna(subset=column)
            if known.empty:  # the sample has no cosines
                continue
            here = statistics.cluster_mean(known[column].tolist(), known["dialogue"].tolist())
            paper = printed.loc[(part.replace(" ", "-"), measure), strategy]
            row = {"set": part, "measure": measure, "strategy": STRATEGIES[strategy], "here": here}
            rows.append({**row, "dialogues": len(known), "paper": paper})
    table = pd.DataFrame(rows, columns=["set", "measure", "strategy", "here", "dialogues", "paper"])
    return table.sort_values("measure", ascending=False, kind="stable", ignore_index=True)


CONDITIONS: dict[str, Callable[[pd.DataFrame], pd.Series]] = {
    "all dialogues": lambda both: both["memes_a"] >= 0,
    "both have a meme": lambda both: (both["memes_a"] > 0) & (both["memes_b"] > 0),
    "equally many memes": lambda both: (both["memes_a"] == both["memes_b"]) & (both["memes_a"] > 0),
}
"""Which pairs of a dialogue under two strategies are compared."""


def paired_differences(published: Published) -> pd.DataFrame:
    """The judge's score under one strategy minus that of the same dialogue under another.

    A row a set and pair: over all dialogues, over those with a meme under both, and over those with equally
    many (`CONDITIONS`).
    """
    rows = []
    for part, chats in published.chats.groupby("set", sort=False):
        by = {strategy: of.set_index("dialogue") for strategy, of in chats.groupby("strategy")}
        for a, b in PAIRS:
            if not {a, b} <= by.keys():
                continue
            both = by[a].merge(by[b], on="dialogue", suffixes=("_a", "_b"))
            both = both.dropna(subset=["score_a", "score_b"])
            row = {"set": part, "who": STRATEGIES[a], "minus": STRATEGIES[b]}
            for condition, holds in CONDITIONS.items():
                pairs = both[holds(both)]
                gaps = (pairs["score_a"] - pairs["score_b"]).tolist()
                row[condition] = statistics.cluster_mean(gaps, pairs.index.tolist(), statistics.DIFFERENCE)
                row[f"n, {condition}"] = len(pairs)
            rows.append(row)
    columns = ["set", "who", "minus", *(name for c in CONDITIONS for name in (c, f"n, {c}"))]
    return pd.DataFrame(rows, columns=columns)


def confounds(published: Published) -> pd.DataFrame:
    """What differs between the strategies beside their choice: a row a set and strategy.

    density: turns with a meme of those that can have one (2 to T). repeats: memes that an earlier turn of the
    same dialogue had, of all memes. most frequent: share of the meme that was placed most often. without a
    meme: such dialogues, and the judge's mean score of them. scores: different values, and their share of all
    scores.
    """
    rows = []
    for (part, strategy), chats in published.chats.groupby(["set", "strategy"], sort=False):
        is_mine = (published.memes["set"] == part) & (published.memes["strategy"] == strategy)
        memes = published.memes[is_mine]
        is_top = memes["meme"].isin(memes["meme"].value_counts().index[:1])
        tops = memes[is_top].groupby("dialogue").size().reindex(chats["dialogue"], fill_value=0)
        empty, scores = chats[chats["memes"] == 0], chats["score"].dropna()
        rows.append(
            {
                "set": part, "strategy": STRATEGIES[strategy], "dialogues": len(chats), "memes": len(memes),
                "density": _share(chats["filled"], chats["turns"] - 1),
                "repeats": _share(chats["repeats"], chats["memes"]),
                "most frequent": _share(tops, chats["memes"]),
                "different": memes["meme"].nunique(),
                "without a meme": len(empty),
                "judge without a meme": empty["score"].mean(),
                "scores": scores.nunique(),
                "share of different scores": scores.nunique() / max(1, len(scores)),
            }
        )  # fmt: skip
    return pd.DataFrame(rows)


def _share(top: pd.Series, bottom: pd.Series) -> Estimate:
    """Sum of `top` over sum of `bottom`, a value a dialogue each, with its interval."""
    left_out = statistics.ratio(top.to_numpy(float), bottom.to_numpy(float))
    return statistics.estimate(left_out, int(bottom.sum()), statistics.SHARE)


def held_by_ours(
    scored: Sequence[retrieval.ScoredDialogue], index: retrieval.MemeIndex, release: authors.Release,
    weights: Sequence[float], tops: Sequence[int] = (1, 3, 20),
) -> pd.DataFrame:  # fmt: skip
    """How often a run's best memes hold the one that the authors' Greedy sent: a row a set.

    Counted are released places whose turn has a summary and whose meme has an annotation. A chance ranking of
    n memes holds it among its first k at k / n of the places.
    """
    ranked = {}
    for item in scored:
        best = retrieval.top_k(index, item.queries, weights, max(tops)).memes  # [turns, k]
        for turn, row, score in zip(item.turns, best, item.top1, strict=True):
            if np.isfinite(score):
                ranked[item.dialogue.dialogue_id, turn] = [index.meme_ids[meme] for meme in row if meme >= 0]
    known = set(index.meme_ids)
    sent = [p for p in release.placements if p.strategy == "greedy" and p.meme_id in known]
    rows = [
        (str(release.sets[p.dialogue_id]), p.dialogue_id, *(p.meme_id in ranked[key][:k] for k in tops))
        for p in sent
        if (key := (p.dialogue_id, p.turn)) in ranked
    ]
    table = pd.DataFrame(rows, columns=["set", "dialogue", *tops])
    out = []
    for part, of_set in table.groupby("set", sort=False):
        names = of_set["dialogue"].tolist()
        row = {"set": part, "places": len(of_set), "memes": len(index.meme_ids)}
        for k in tops:
            held = of_set[k].astype(float).tolist()
            row[f"top {k}"] = statistics.cluster_mean(held, names, statistics.SHARE)
        out.append(row)
    return pd.DataFrame(out)


# --- A blind look (AUTHORS_PLAN.md)


def graded_memes(published: Published) -> pd.DataFrame:
    """The published memes with what graders gave (0-2, the mean of two) as `grade`; nan: not described."""
    key, rows = ["dialogue", "turn", "meme"], pd.read_json(SAMPLE / "grades.jsonl", lines=True)
    given = [(r.dialogue_id, r.turn, *pair) for r in rows.itertuples() for pair in r.grades.items()]
    means = pd.DataFrame(given, columns=[*key, "grade"]).groupby(key, as_index=False).mean()
    return published.memes.merge(means, how="left", on=key)


def look() -> dict[str, pd.DataFrame]:
    """All tables of the blind look, made once of its choices and grades: no run can change them."""
    return {name: pd.DataFrame(rows) for name, rows in statistics.read_tables(SAMPLE / "look.json").items()}
