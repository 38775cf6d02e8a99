"""Everything that a run wrote before stage 06, read back and checked against its schemas."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from memecmd_utils import schemas
from memecmd_utils.annotation import annotator
from memecmd_utils.core.llm import authored
from memecmd_utils.evaluation import ground_truth, stage, tables
from memecmd_utils.runs import Run


@dataclass(frozen=True)
class Records:
    """The records of a run, of all stages before 06; of unsafe memes only what a release names."""

    memes: list[schemas.Meme]
    annotations: list[schemas.Annotation]
    dialogues: list[schemas.Dialogue]
    placements: list[schemas.Placement]
    ratings: list[schemas.Rating]
    consistency: list[schemas.Consistency]
    truth: ground_truth.GroundTruth = ground_truth.NONE
    candidates: Sequence[schemas.Candidate] = ()
    gates: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """The calibrated gates of both halves, as `placement.calibrated_gates` describes them."""
    title_glosses: Mapping[str, str] = field(default_factory=dict)
    """Dialogue id to its title in English, where the records hold one."""

    @cached_property
    def grades(self) -> dict[str, tables.Values]:
        """Mean grades of placed memes by strategy, where the run has ground truth."""
        return stage.grades_of_placed(self.placements, self.truth)


def load_records(run: Run) -> Records:
    """Read the records of a run, each checked against its schema."""
    memes = run.load(schemas.Meme)
    annotations = run.load(schemas.Annotation)
    memes, annotations = annotator.releasable(memes, annotations)
    dialogues = run.load(schemas.Dialogue)
    return Records(
        memes=memes,
        annotations=annotations,
        dialogues=dialogues,
        placements=run.load(schemas.Placement),
        ratings=run.load(schemas.Rating),
        consistency=run.load(schemas.Consistency),
        truth=ground_truth.truth_of_run(run.profile, dialogues, memes),
        candidates=run.load(schemas.Candidate),
        gates=json.loads(run.read("gates.json").read_text(encoding="utf-8")),
        title_glosses=title_glosses(run, dialogues),
    )


def title_glosses(run: Run, dialogues: Sequence[schemas.Dialogue]) -> dict[str, str]:
    """English titles by dialogue id. News that is not the example's is not fetched again for its gloss."""
    known: dict[tuple[str, str], str] = {}
    if run.profile.dialogue.news == "example":
        known = {("news", item.news_id): item.gloss for item in authored.load_news()}
    if any(dialogue.kind == "role" for dialogue in dialogues):
        scenarios = run.load(schemas.Scenario)
        known |= {("role", scenario.scenario_id): scenario.gloss for scenario in scenarios}
    found = {d.dialogue_id: known.get((d.kind, d.ref), "") for d in dialogues}
    return {name: gloss for name, gloss in found.items() if gloss}
