"""The untouched test of learned placement: dialogues and memes that no model was fitted on.

Authored like the example, by writers kept apart, and frozen before a model was fitted
(`data/example/PLACEMENT_PLAN.md`). Its library is the example's memes and its own.
"""

from collections import defaultdict
from pathlib import Path

from memecmd_utils.core import paths, storage
from memecmd_utils.core.drawing import stickers
from memecmd_utils.core.drawing.stickers import ExampleMeme
from memecmd_utils.core.llm import authored
from memecmd_utils.schemas import Annotation, Dialogue, Summary, Turn

FOLDER = "untouched"
"""Below the example corpus."""


def load_dialogues(folder: Path | None = None) -> list[Dialogue]:
    """Its dialogues with their summaries."""
    folder = folder or paths.example / FOLDER
    said, asked = defaultdict(list), defaultdict(list)
    for row in authored.rows("dialogues.jsonl", folder):
        said[row.pop("dialogue_id")].append(Turn(**row))
    for row in authored.rows("summaries.jsonl", folder):
        asked[row.pop("dialogue_id")].append(Summary(**row))
    return [
        Dialogue(
            dialogue_id=name,
            kind=name.partition("-")[0],
            ref=name.partition("-")[2],
            title=name,
            name_a="甲",
            name_b="乙",
            turns=turns,
            summaries=asked[name],
            complete=True,
            source="authored",
        )
        for name, turns in said.items()
    ]


def load_memes(folder: Path | None = None) -> dict[str, ExampleMeme]:
    """The example's memes and its own, by id."""
    tables = (paths.example, folder or paths.example / FOLDER)
    return {meme.meme_id: meme for table in tables for meme in stickers.read_table(table / "memes.csv")}


def load_annotations(folder: Path | None = None) -> list[Annotation]:
    """Annotations of the example's memes and of its own."""
    tables = (paths.example, folder or paths.example / FOLDER)
    return [one for table in tables for one in storage.read_jsonl(table / "annotations.jsonl", Annotation)]
