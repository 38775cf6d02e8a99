"""The live corpus (`data/live/LIVE_PLAN.md`): chats by our own prompts, their memes, and what phases do.

Its tables are tracked: `.ci/live.py` makes them of a run of profile `live`; graders and readers gave others.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from memecmd_utils import files, grades, library, retrieval, statistics
from memecmd_utils.files import paths
from memecmd_utils.retrieval import RERANKED
from memecmd_utils.schemas import Annotation, Candidate, Choice, Dialogue, Meme, Placement
from memecmd_utils.splits import UNTOUCHED
from memecmd_utils.studies.paper_data import KEY, agreement, difference_rows, given_grades, sender_rows

FOLDER = paths.live
PREFIX = "live-"
"""Before the ids of its dialogues: cold starts of the example bear the same ones."""
THERE = "greedy, same turns"
"""Greedy's best meme at the turns of `reranked`, where `popular` and `random` send, too."""
PAIRS = (
    (RERANKED, "greedy"), (RERANKED, THERE), (RERANKED, "popular"), (RERANKED, "random"),
    ("greedy", "random_same_turns"),
)  # fmt: skip
MEASURES = {
    "repeated openings": statistics.SHARE, "new names": statistics.MEAN, "questions": statistics.SHARE,
    "distance": statistics.MEAN, "echo": statistics.SHARE,
}  # fmt: skip
"""Of a chat, as the plan defines them."""
LIKED, NOT = 1.5, 0.5
"""Mean grades from and below which the judge should tell memes apart."""
GRADES = "grades.jsonl"


class Corpus(NamedTuple):
    """Dialogues with the memes of every sender, those of `greedy`, `popular` and chance also at other turns.

    Memes bear the names of their drawings (m001 to m280). `gates`: by half, whose names begin with `PREFIX`.
    """

    annotations: list[Annotation]
    dialogues: list[Dialogue]
    placements: list[Placement]
    candidates: list[Candidate]
    choices: list[Choice]
    gates: dict[str, dict[str, Any]]

    @property
    def halves(self) -> dict[str, str]:
        """Half of every dialogue."""
        return {name: PREFIX + half for name, half in retrieval.halves(self.dialogues).items()}


def corpus() -> Corpus:
    """What is tracked of the run."""
    kinds = {
        "annotations": Annotation, "dialogues": Dialogue, "placements": Placement, "candidates": Candidate,
        "choices": Choice,
    }  # fmt: skip
    records = (files.read_jsonl(FOLDER / f"{name}.jsonl", kind) for name, kind in kinds.items())
    return Corpus(*records, json.loads((FOLDER / "gates.json").read_text(encoding="utf-8")))


def drawings() -> dict[str, Meme]:
    """The 280 memes of the library by name, with the words that were drawn on them."""
    folders = (paths.example, *(paths.example / name for name in UNTOUCHED))
    return {name: meme for folder in folders for name, meme in library.drawn_memes(folder).items()}


def typical() -> int:
    """Which dialogue opens the page: the one whose share of memes that land is nearest to that of all.

    Of the memes of `reranked`; of equally near ones the first.
    """
    sent = graded_memes()
    sent = sent[sent["strategy"] == RERANKED].assign(lands=lambda table: table["grade"] == 2)
    by_dialogue = sent.groupby("dialogue")["lands"].mean()
    names = [dialogue.dialogue_id for dialogue in corpus().dialogues]
    return names.index((by_dialogue - sent["lands"].mean()).abs().reindex(names).idxmin())


def ladders() -> dict[str, list[Dialogue]]:
    """The same cold starts under each setting of `phases`, `ours` first; their turns without summaries."""
    others = pd.read_json(FOLDER / "ladders.jsonl", lines=True)
    names = set(others["dialogue_id"])
    ours = {d.dialogue_id: d for d in corpus().dialogues if d.dialogue_id in names}

    def said(name: str, texts: Sequence[str]) -> Dialogue:
        turns = [
            turn.model_copy(update={"text": text, "gloss": ""})
            for turn, text in zip(ours[name].turns, texts, strict=True)
        ]
        return ours[name].model_copy(update={"turns": turns, "summaries": []})

    made = {"ours": [*ours.values()]}
    for row in others.itertuples():
        made.setdefault(row.phases, []).append(said(row.dialogue_id, row.texts))
    return made


# --- Tables


def tables() -> dict[str, list[dict[str, Any]]]:
    """All tables of the corpus, as rows."""
    memes = graded_memes()
    graded = memes.drop_duplicates(KEY)
    counts = grades.fit_counts(graded)
    rows: Mapping[str, Iterable[dict[str, Any]]] = {
        "senders": sender_rows(memes, counts), "differences": difference_rows(memes, counts, PAIRS),
        "agreement": [agreement(graded)], "judge": judge_rows(memes), "phases": phase_rows(),
        "preferences": preference_rows(), "sheets": sheet_rows(),
    }  # fmt: skip
    return {name: list(of_table) for name, of_table in rows.items()}


def means() -> dict[grades.Key, dict[str, float]]:
    """Mean grades (0-2) by (dialogue, turn) and meme."""
    return grades.mean_grades(grades.grades_by_turn(FOLDER / GRADES))


def graded_memes() -> pd.DataFrame:
    """The memes of every sender with their `strategy` and what graders gave (`paper_data.given_grades`).

    `one` and `two` graded all that was sent; `three` and `four` what the study of sheets had chosen besides.
    """
    sent = pd.DataFrame(
        [(p.dialogue_id, p.turn, p.meme_id, p.strategy) for p in corpus().placements],
        columns=[*KEY, "strategy"],
    )
    return sent.merge(given_grades(FOLDER / GRADES), how="left", on=KEY)


def judge_rows(memes: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """Does the judge that sees a whole chat tell memes that people would like from others?

    `AUC` of its score (mean of five dimensions, 0-100) between memes with a mean grade of `LIKED` or more and
    those below `NOT`; and its mean score of each sender.
    """
    scores = pd.read_csv(FOLDER / "scores.csv")
    both = scores.merge(memes, on=["dialogue", "turn", "strategy", "meme"]).dropna(subset=["score", "grade"])
    parts = (both[both["grade"] >= LIKED], both[both["grade"] < NOT])
    auc = statistics.cluster_auc(*(list(zip(p["dialogue"], p["score"], strict=True)) for p in parts))
    for name, of_sender in [("all", both), *both.groupby("strategy", sort=False)]:
        mean = statistics.cluster_mean(of_sender["score"].tolist(), of_sender["dialogue"].tolist())
        row = {"who": name, "memes": len(of_sender), "score": mean, "mean grade": of_sender["grade"].mean()}
        yield row | ({"AUC": auc, "liked": len(parts[0]), "not": len(parts[1])} if name == "all" else {})


def phase_rows() -> Iterator[dict[str, Any]]:
    """What each ladder does to a chat: `MEASURES`, a mean over its chats; and less those of `ours`."""
    measured = pd.read_csv(FOLDER / "ladders.csv").set_index(["phases", "dialogue_id"])
    ours = measured.loc["ours"]
    for phases, chats in measured.groupby(level="phases", sort=False):
        chats = chats.droplevel("phases")
        names = chats.index.tolist()
        row = {"phases": phases, "chats": len(chats)}
        for measure, kind in MEASURES.items():
            row[measure] = statistics.cluster_mean(chats[measure].tolist(), names, kind)
            gaps = (chats[measure] - ours[measure]).tolist()
            row[f"{measure}, minus ours"] = statistics.cluster_mean(gaps, names, statistics.DIFFERENCE)
        yield row


def preference_rows() -> Iterator[dict[str, Any]]:
    """How often readers found the one chat more like people's than the other: a row a comparison.

    A reader's vote counts 1, of a tie 0.5; a pair is the mean of its readers.
    """
    votes = pd.read_csv(FOLDER / "preferences.csv")
    for (first, second), rows in votes.groupby(["first", "second"], sort=False):
        by_pair = rows.groupby("pair")["vote"].mean()
        preferred = statistics.cluster_mean(by_pair.tolist(), by_pair.index.tolist(), statistics.SHARE)
        both = rows.pivot(index="pair", columns="reader", values="vote").dropna()
        same = (both.nunique(axis=1) == 1).mean() if both.shape[1] > 1 else np.nan
        yield {
            "first": first, "second": second, "pairs": len(by_pair), "readers": rows["reader"].nunique(),
            "preferred": preferred, "same vote": same,
        }  # fmt: skip


def sheet_rows() -> Iterator[dict[str, Any]]:
    """The same questions with one contact sheet and with twenty pictures, and what was chosen."""
    asked = pd.read_csv(FOLDER / "sheets.csv", keep_default_na=False)
    both = asked.pivot(index=KEY[:2], columns="shown", values="meme")
    same = statistics.share((both["sheet"] == both["pictures"]).mean())
    given = given_grades(FOLDER / GRADES)
    for shown, chosen in asked.groupby("shown", sort=False):
        sent = chosen[chosen["meme"] != ""].merge(given, how="left", on=KEY).dropna(subset="grade")
        worth = grades.of_memes(sent, grades.fit_counts(sent))
        row = {"shown": shown, "turns": len(chosen), "memes": int((chosen["meme"] != "").sum())}
        row |= {"graded": len(sent), "same": same}
        yield row | {name: worth[name] for name in ("fits", "lands")}
