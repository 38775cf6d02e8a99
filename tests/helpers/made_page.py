"""A small run of made-up records with hostile texts, and its page."""

from pathlib import Path
from typing import Any
from unittest import mock

import made_up

from memecmd_utils import grades, report, schemas, settings, tables
from memecmd_utils.grades import GroundTruth
from memecmd_utils.runs import Run

HOSTILE = (
    "</script><script>window.hacked=1</script><!--<img src=x onerror=window.hacked=1>"
    "\u2028 javascript:x &amp; '\""
)
TURNS = 8
STRATEGIES = ["reranked", "greedy", "sampling", "random", "random_same_turns"]
GATE = {"theta0": 0.5, "penalty": 1.0, "decay": 1.0, "score_mean": 0.0, "score_std": 0.1, "fitted_on": "b"}
SCORES = dict(zip(range(2, TURNS + 1), (0.10, 0.02, 0.03, 0.30, 0.31, -0.05, 0.20), strict=True))
"""Raw T of the best meme of each turn; on the gate's scale ten times that."""
SENT = (2, 5, 6, 8)
"""Turns at which the gate opens: thresholds are 0.5, 0.868, 0.635, 0.550, 0.868, 0.868, 0.635."""
Records = dict[type[schemas.Record], list[Any]]
NAMES = ("news-a", f"news-{HOSTILE}", "role-b")


def dialogue(name: str, kind: str) -> schemas.Dialogue:
    made = made_up.dialogue(name, tuple(f"{name[:6]}说的第{n}句" for n in range(1, TURNS + 1)))
    made.turns[2] = made.turns[2].model_copy(update={"text": HOSTILE, "gloss": "The third thing"})
    return made.model_copy(update={"kind": kind, "title": f"题{name}", "name_b": HOSTILE})


def candidates(name: str) -> list[schemas.Candidate]:
    """The two best memes of each turn."""
    return [
        schemas.Candidate(
            source="made up", dialogue_id=name, turn=turn, rank=rank, meme_id=f"m{rank}",
            score=SCORES[turn] - 0.01 * (rank - 1), delta=-0.1, beta=0.05, gamma=0.0,
            alpha=3 * (SCORES[turn] - 0.01 * (rank - 1)) + 0.05,  # all weights are 1/3
        )
        for turn in SCORES for rank in (1, 2)
    ]  # fmt: skip


def choices(name: str) -> list[schemas.Choice]:
    """Among three memes the last is chosen where the gate opens, else none; each with its reason."""
    memes = ["m1", "m2", "m3"]
    return [
        made_up.choice(name, turn, "m3" if turn in SENT else "").model_copy(
            update={"options": memes, "reason": f"因为{turn}"}
        )
        for turn in SCORES
    ]


def records() -> Records:
    dialogues = [dialogue(name, name.partition("-")[0]) for name in NAMES]
    placements, found = [], []
    for one in dialogues:
        found += candidates(one.dialogue_id)
        for strategy in STRATEGIES:
            for turn in (3, 4) if strategy == "random" else SENT:
                meme, rank = {"greedy": ("m1", 1), "sampling": ("m2", 2)}.get(strategy, ("m3", None))
                about = {"dialogue_id": one.dialogue_id, "strategy": strategy, "rank": rank}
                about |= {"reason": f"因为{turn}" * (strategy == "reranked")}
                placements.append(made_up.placement(turn, meme, **about))
    memes = [
        made_up.meme(name).model_copy(
            update={"text": f"字{name}{HOSTILE if name == 'm2' else ''}", "gloss": "Eat" * (name == "m1")}
        )
        for name in made_up.COLOURS
    ]
    return {
        schemas.Meme: memes,
        schemas.Annotation: [made_up.annotation("m1", s_plus=HOSTILE), made_up.annotation("m2")],
        schemas.Dialogue: dialogues,
        schemas.Placement: placements,
        schemas.Candidate: found,
        schemas.Choice: [choice for one in dialogues for choice in choices(one.dialogue_id)],
        schemas.Rating: [],
        schemas.Consistency: [],
        schemas.Scenario: [],
    }


def truth_of(dialogues: list[schemas.Dialogue]) -> GroundTruth:
    """Two graders' and two markers' opinion of the first meme of the first dialogue."""
    first = dialogues[0].dialogue_id
    given = [made_up.grade(2, "m1", g, n, first, "made up") for g, n in (("g1", 2), ("g2", 1))]
    marks = [made_up.mark(2, m, s, (), first, "made up") for m, s in (("x", True), ("y", False))]
    return GroundTruth(marks, {"pool": given})


def run(folder: Path, found: Records | None = None) -> Run:
    """A run in `folder` whose stages before 06 have written the records."""
    found = found or records()
    changed = {"retrieval": {"strategies": STRATEGIES, "top_k": 2}, "dialogue": {"n_turns": TURNS}}
    profile = settings.Profile(name="made-up", **changed)
    made = Run("made-up", profile, folder / "data", folder / "report")
    made_up.meme_files(made.folder / "images")
    for schema, rows in found.items():
        made.save(rows, schema)
    levels = tables.levels(found[schemas.Placement], truth_of(found[schemas.Dialogue]))
    made.save_json("gates.json", {"a": GATE, "b": GATE})
    made.save_json("ground_truth.json", {"agreement": [], "retrieval": []})
    made.save_json("judge_checks.json", {"levels": levels, "effects": [], "trust": []})
    made.save_json("studies.json", {})
    made.save_json("paper_data.json", {"look": [], "confounds": []})
    made.save_json("human_ratings.json", {"verdict": f"No person has rated this run. {HOSTILE}"})
    return made


def write(folder: Path, found: Records | None = None) -> Path:
    """Write the page of made-up records below `folder`; returns its path."""
    made = run(folder, found)
    with mock.patch.object(grades, "truth_of_run", lambda profile, dialogues, memes: truth_of(dialogues)):
        records = report.records_of(made)
        return report.write_page(made, records, report.write_numbers(made, records))
