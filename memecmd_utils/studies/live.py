"""The live corpus (`data/live/LIVE_PLAN.md`): chats by our own prompts, their memes, and what phases do.

Tracked are files of a run of profile `live` (`.ci/live.py`), what graders and readers said of these, and the
tables that were made of both once: no run can change them.
"""

import json
from typing import Any, NamedTuple

import pandas as pd

from memecmd_utils import files, grades, library, retrieval, statistics
from memecmd_utils.files import paths
from memecmd_utils.schemas import Annotation, Candidate, Choice, Dialogue, Meme, Placement
from memecmd_utils.splits import UNTOUCHED

FOLDER = paths.live
PREFIX = "live-"
"""Before the ids of its dialogues: cold starts of the example bear the same ones."""
THERE = "greedy, same turns"
"""Greedy's best meme at the turns of `reranked`, where `popular` and `random` send, too."""
TYPICAL = "live-role-R03-1"
"""The dialogue that opens the page: its share of memes of `reranked` that land is nearest to that of all."""


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


def ladders() -> dict[str, list[Dialogue]]:
    """The same cold starts under each setting of `phases`, `ours` first; their turns without summaries."""
    ours = {dialogue.dialogue_id: dialogue for dialogue in corpus().dialogues}
    made: dict[str, list[Dialogue]] = {}
    for row in pd.read_json(FOLDER / "ladders.jsonl", lines=True).itertuples():
        one = ours[row.dialogue_id]
        turns = [
            turn.model_copy(update={"text": text, "gloss": ""})
            for turn, text in zip(one.turns, row.texts, strict=True)
        ]
        made.setdefault(row.phases, []).append(one.model_copy(update={"turns": turns, "summaries": []}))
    return {"ours": [ours[one.dialogue_id] for one in made["full"]], **made}


def tables() -> dict[str, list[dict[str, Any]]]:
    """All tables of the corpus, as rows: what senders' memes are worth, the judge, phases, readers' votes."""
    return statistics.read_tables(FOLDER / "tables.json")


def means() -> dict[grades.Key, dict[str, float]]:
    """Mean grades (0-2) by (dialogue, turn) and meme."""
    return grades.mean_grades(grades.grades_by_turn(FOLDER / "grades.jsonl"))
