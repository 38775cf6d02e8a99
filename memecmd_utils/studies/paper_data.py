"""Notebook 09: Table 1 from the authors' own files (2507.00891), and a blind look at their chats' memes.

Two tables hold what is measured (`Published`): chats, a row for each dialogue and strategy, and memes, a row
for each placed meme. They come from a release, or of a sample of 68 dialogues from `data/example/authors`.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from memecmd_utils import authors, grades, retrieval, statistics
from memecmd_utils.files import paths
from memecmd_utils.statistics import Estimate, LeftOut

SAMPLE = paths.example / "authors"
STRATEGIES = {"greedy": "Greedy", "sampling": "Diversity-aware", "random": "Random"}
PAIRS = (("greedy", "random"), ("sampling", "random"), ("sampling", "greedy"))
RERANKED, DRAWN = "reranked", "a random meme"
MEASURES = ("judge", "consistency")


class Published(NamedTuple):
    """What was published, as two tables.

    `chats`: set, dialogue, strategy, turns, score (the judge's, 0-100; nan: none), consistency (0-100, mean
    of the dialogue's memes; nan: none). `memes`: set, dialogue, strategy, turn, meme (its file's name).
    """

    chats: pd.DataFrame
    memes: pd.DataFrame


CHATS = ("set", "dialogue", "strategy", "turns", "score", "consistency")
MEMES = ("set", "dialogue", "strategy", "turn", "meme")


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
    return _published(pd.DataFrame(chats, columns=CHATS), pd.DataFrame(memes, columns=MEMES))


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


KEY = ["dialogue", "turn", "meme"]


def given_grades(path: Path) -> pd.DataFrame:
    """A file of grades as a row a graded meme: `KEY`, a column a grader, and the mean `grade` (0-2)."""
    given = pd.read_json(path, lines=True)
    rows = [
        (row.dialogue_id, row.turn, meme, row.grader, grade)
        for row in given.itertuples()
        for meme, grade in row.grades.items()
    ]
    table = pd.DataFrame(rows, columns=[*KEY, "grader", "grade"])
    wide = table.pivot(index=KEY, columns="grader", values="grade")
    return wide.assign(grade=wide.mean(axis=1)).reset_index()


def graded_memes(published: Published) -> pd.DataFrame:
    """All memes of the sample that somebody sent, and the drawn ones among them: a row a sender and meme.

    Columns: those of `MEMES`, with the sender as strategy, and of `given_grades`; nan for a meme that has no
    description and so no grade. `published` holds the dialogues of the sample.
    """
    graded = given_grades(SAMPLE / "grades.jsonl")
    chosen = pd.read_json(SAMPLE / "choices.jsonl", lines=True).rename(columns={"dialogue_id": "dialogue"})
    chosen = chosen[chosen["meme"] != ""].assign(strategy=RERANKED)
    sent = pd.concat([published.memes[[*KEY, "strategy"]], chosen[[*KEY, "strategy"]]])
    is_sent = pd.MultiIndex.from_frame(graded[KEY]).isin(pd.MultiIndex.from_frame(sent[KEY]))
    sent = pd.concat([sent, graded.loc[~is_sent, KEY].assign(strategy=DRAWN)])
    set_of = published.chats.drop_duplicates("dialogue").set_index("dialogue")["set"]
    sent = sent[sent["dialogue"].isin(graded["dialogue"])].merge(graded, how="left", on=KEY)
    return sent.assign(set=sent["dialogue"].map(set_of))


def sender_rows(memes: pd.DataFrame, counts: grades.FitCounts) -> Iterator[dict[str, Any]]:
    """What the `memes` of every sender are worth (`grades.of_memes`), of those that could be graded.

    described: their share. `counts` are of all graded memes that somebody sent, each once.
    """
    n_dialogues = memes["dialogue"].nunique()
    for sender, sent in memes.groupby("strategy", sort=False):
        known = sent.dropna(subset="grade")
        yield {
            "who": sender, "dialogues": n_dialogues, "memes": len(sent),
            "memes a dialogue": len(sent) / n_dialogues,
            "described": statistics.share(len(known) / len(sent)),
            **grades.of_memes(known, counts), "repeats": int(sent.duplicated(["dialogue", "meme"]).sum()),
        }  # fmt: skip


LOOK_PAIRS = ((RERANKED, "greedy"), ("greedy", "random"), ("sampling", "greedy"))
"""In the order of the plan."""


def difference_rows(
    memes: pd.DataFrame, counts: grades.FitCounts, pairs: Sequence[tuple[str, str]] = LOOK_PAIRS
) -> Iterator[dict[str, Any]]:
    """One sender minus another, each at its own turns, in fits and lands."""
    by_sender = dict([*memes.dropna(subset="grade").groupby("strategy")])
    for who, other in (pair for pair in pairs if {*pair} <= by_sender.keys()):
        found = grades.differences_of_memes(by_sender[who], by_sender[other], counts, is_paired=False)
        for measure in ("fits", "lands"):
            got = found[measure]
            row = {"who": who, "minus": other, "measure": measure, "difference": got}
            yield {**row, "n": got.n, "dialogues": got.clusters, "p": got.p}


def agreement(graded: pd.DataFrame) -> dict[str, Any]:
    """Weighted kappa of the two graders of all `graded` memes, and the share of equal grades."""
    both = graded[["one", "two"]].to_numpy(int)
    return {
        "pairs": len(graded),
        "kappa": statistics.cluster_kappa(both, graded["dialogue"].tolist()),
        "same grade": statistics.share((both[:, 0] == both[:, 1]).mean()),
    }


def judge_rows(published: Published, memes: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """Does the paper's judge follow the graders? By strategy, over dialogues with a graded meme.

    Spearman's correlation of the judge's score with the mean grade of the dialogue's memes, and the AUC of
    the score between dialogues whose mean grade is at or above the median and those below.
    """
    from scipy.stats import spearmanr

    for strategy in STRATEGIES:
        mine = memes[memes["strategy"] == strategy].dropna(subset="grade").groupby("dialogue")["grade"].mean()
        chats = published.chats[published.chats["strategy"] == strategy].set_index("dialogue")["score"]
        both = pd.DataFrame({"grade": mine, "score": chats}).dropna()

        def spearman(rest: pd.DataFrame) -> float:
            return float(spearmanr(rest["grade"], rest["score"]).statistic)

        without = np.array([spearman(both.drop(name)) for name in both.index])
        left_out = LeftOut(np.array(spearman(both)), without, np.full(len(both), 1 / len(both)))
        upper = both["grade"] >= both["grade"].median()
        sides = (list(side["score"].items()) for side in (both[upper], both[~upper]))
        yield {
            "strategy": STRATEGIES[strategy], "dialogues": len(both), "mean grade": both["grade"].mean(),
            "score": both["score"].mean(),
            "Spearman": statistics.estimate(left_out, len(both), statistics.COEFFICIENT),
            "AUC": statistics.cluster_auc(*sides),
        }  # fmt: skip


def look(published: Published) -> dict[str, Any]:
    """All tables of the blind look, from the tracked choices and grades."""
    memes = graded_memes(published)
    graded = memes.dropna(subset="grade").drop_duplicates(KEY)
    counts, parts = grades.fit_counts(graded), [("all", memes), *memes.groupby("set", sort=False)]

    def by_set(rows_of: Callable[..., Iterator[dict[str, Any]]]) -> pd.DataFrame:
        return pd.DataFrame({"set": part, **row} for part, of_set in parts for row in rows_of(of_set, counts))

    return {
        "look": by_set(sender_rows), "look_differences": by_set(difference_rows),
        "look_judge": pd.DataFrame(judge_rows(published, memes)),
        "look_agreement": pd.DataFrame([agreement(graded)]),
    }  # fmt: skip
