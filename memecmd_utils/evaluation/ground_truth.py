"""Ground truth of the example corpus: where one would send a meme, and graded relevance of pooled memes.

Authored by a large language model in several separate sessions, not by people: agreement between two
markers or graders is model-model agreement. Pooling as at TREC (Voorhees and Harman, 2005).
"""

import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd

from memecmd_utils import files, schemas, statistics
from memecmd_utils.evaluation.tables import Key, Values, gaps_of
from memecmd_utils.files import paths
from memecmd_utils.settings import Profile

AGREEMENT = ("what", "measure", "value", "low", "high", "same", "n", "dialogues")
TIMING = ("who", "memes", "rate", "mean gap")
"""Columns of the two tables, to which timing adds a kappa with each marker."""
RELEVANT = 2
"""Sum of two graders' grades (0-4) from which a meme counts as relevant: a mean of 1 or more."""

Relevance = dict[Key, dict[str, int]]
"""(dialogue, turn) -> meme -> sum of the graders' grades. A meme that is not there was not judged."""


@dataclass(frozen=True)
class GroundTruth:
    """Marks (send or not, best memes) and grades (0/1/2) for the turns of a run."""

    marks: list[schemas.Mark]
    grades: list[schemas.Grade]
    later: list[schemas.Grade] = field(default_factory=list)
    """Grades of what learned placement found, which were asked for later: they count for placed memes."""

    @property
    def markers(self) -> list[str]:
        """Names of the markers, sorted."""
        return sorted({mark.marker for mark in self.marks})

    @property
    def graders(self) -> list[str]:
        """Names of the graders, sorted."""
        return sorted({grade.grader for grade in self.grades})

    def turns_of(self, marker: str) -> set[Key]:
        """Where a marker would send a meme."""
        return {(m.dialogue_id, m.turn) for m in self.marks if m.marker == marker and m.send}

    def within(self, dialogues: Collection[str]) -> "GroundTruth":
        """The part that speaks of these dialogues."""
        marks, grades, later = (
            [row for row in rows if row.dialogue_id in dialogues]
            for rows in (self.marks, self.grades, self.later)
        )
        return GroundTruth(marks, grades, later)


NONE = GroundTruth([], [])


def load_truth(folder: Path | None = None) -> GroundTruth:
    """Read `marks.jsonl`, `grades.jsonl` and, where it is there, `grades_learned.jsonl`; else there is none.

    Files of grades have a row a turn and grader.
    """
    folder = folder or paths.example
    if not (folder / "grades.jsonl").is_file():
        return NONE
    grades, later = (_read_grades(folder / name) for name in ("grades.jsonl", "grades_learned.jsonl"))
    return GroundTruth(files.read_jsonl(folder / "marks.jsonl", schemas.Mark), grades, later)


def _read_grades(path: Path) -> list[schemas.Grade]:
    grades = []
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else ()
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            shared = {key: row[key] for key in ("dialogue_id", "turn", "grader", "source")}
            grades += [schemas.Grade(meme_id=m, grade=g, **shared) for m, g in row["grades"].items()]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise files.StageOutputError(f"{path.name} line {number}: {error}") from error
    return grades


def truth_of_run(
    profile: Profile, dialogues: Sequence[schemas.Dialogue], memes: Sequence[schemas.Meme]
) -> GroundTruth:
    """The part of the example's ground truth that speaks of a run's dialogues and memes.

    Only for authored dialogues: another model's turns bear the same ids and other words.
    """
    if profile.models.llm != "authored" or profile.retrieval.meme_position != "before":
        return NONE
    found, turns = load_truth(), {(d.dialogue_id, t.turn) for d in dialogues for t in d.turns}
    known = {meme.meme_id for meme in memes if meme.source == "drawn"}
    marks = [
        mark.model_copy(update={"best": [m for m in mark.best if m in known]})
        for mark in found.marks
        if (mark.dialogue_id, mark.turn) in turns
    ]
    grades, later = (
        [g for g in rows if (g.dialogue_id, g.turn) in turns and g.meme_id in known]
        for rows in (found.grades, found.later)
    )
    return GroundTruth(marks, grades, later)


def relevance(grades: Sequence[schemas.Grade]) -> Relevance:
    """Sum the graders' grades; a meme that not all graders of its turn judged is an error."""
    out: Relevance = {}
    counts: Counter[tuple[Key, str]] = Counter()
    for grade in grades:
        key = (grade.dialogue_id, grade.turn)
        of_turn = out.setdefault(key, {})
        of_turn[grade.meme_id] = of_turn.get(grade.meme_id, 0) + grade.grade
        counts[key, grade.meme_id] += 1
    wanted = len({grade.grader for grade in grades})
    if odd := [name for name, count in counts.items() if count != wanted]:
        raise ValueError(f"not judged once by each of {wanted} graders: {odd[:3]}")
    return out


def placed_grades(placements: Sequence[schemas.Placement], truth: GroundTruth) -> dict[str, Values]:
    """Mean grade (0-2) of every placed meme that was judged, by strategy and turn."""
    relevant, n_graders = relevance([*truth.grades, *truth.later]), len(truth.graders)
    found: dict[str, Values] = {}
    for placed in placements:
        total = relevant.get((placed.dialogue_id, placed.turn), {}).get(placed.meme_id)
        if total is not None:
            mine = found.setdefault(placed.strategy, {})
            mine[placed.dialogue_id, placed.turn] = total / n_graders
    return found


def grades_of_placed(placements: Sequence[schemas.Placement], truth: GroundTruth) -> dict[str, Values]:
    """Mean grade (0-2) of every placed meme, by strategy and turn; empty unless all of them were graded.

    With another seed, gate or library some placed memes were never in the pool, and those that were are no
    fair sample of them.
    """
    found = placed_grades(placements, truth)
    return found if sum(map(len, found.values())) == len(placements) else {}


PLACED = ("strategy", "memes", "ungraded", "mean grade", "ungraded as 0")


def mean_grades(placements: Sequence[schemas.Placement], truth: GroundTruth) -> pd.DataFrame:
    """Mean grade (0-2) of the placed memes that were graded, a row a strategy; none without ground truth.

    `ungraded` is the share that nobody graded. They were in no system's pool, so most of them fit worse: the
    mean over all memes should lie between `ungraded as 0`, which counts them so, and `mean grade`.
    """
    if not truth.grades:
        return pd.DataFrame(columns=list(PLACED))
    by_strategy, rows = placed_grades(placements, truth), []
    for name, memes in Counter(placed.strategy for placed in placements).items():
        grades = list(by_strategy.get(name, {}).values())
        mean = float(np.mean(grades)) if grades else np.nan
        rows.append((name, memes, 1 - len(grades) / memes, mean, sum(grades) / memes))
    return pd.DataFrame(rows, columns=list(PLACED))


def grader_agreement(truth: GroundTruth) -> pd.DataFrame:
    """Model-model agreement: kappa of send or not, weighted kappa of the grades."""
    rows = []
    if len(truth.markers) == 2:
        sent = _pairs([((m.dialogue_id, m.turn), m.marker, int(m.send)) for m in truth.marks])
        rows.append(_kappa_row("send or not", "kappa", sent, 2))
    if len(truth.graders) == 2:
        graded = _pairs([((g.dialogue_id, g.turn, g.meme_id), g.grader, g.grade) for g in truth.grades])
        rows.append(_kappa_row("grade 0/1/2", "weighted kappa", graded, 3))
        relevant = {key: (int(a > 0), int(b > 0)) for key, (a, b) in graded.items()}
        rows.append(_kappa_row("grade 0 or not", "kappa", relevant, 2))
    return pd.DataFrame(rows, columns=list(AGREEMENT))


def _pairs(rows: Sequence[tuple[tuple, str, int]]) -> dict[tuple, tuple[int, int]]:
    """Values of the first and the second rater (by name) for each item that both rated."""
    first, second = sorted({rater for _, rater, _ in rows})
    values = {(key, rater): value for key, rater, value in rows}
    keys = dict.fromkeys(key for key, _, _ in rows)
    rated = [key for key in keys if (key, first) in values and (key, second) in values]
    return {key: (values[key, first], values[key, second]) for key in rated}


def _kappa_row(
    what: str, measure: str, pairs: Mapping[tuple, tuple[int, int]], classes: int
) -> dict[str, object]:
    got = statistics.cluster_kappa(list(pairs.values()), [key[0] for key in pairs], classes)
    same = float(np.mean([a == b for a, b in pairs.values()]))
    return {
        "what": what, "measure": measure, "value": got.mean, "low": got.low, "high": got.high, "same": same,
        "n": got.n, "dialogues": got.clusters,
    }  # fmt: skip


def timing_agreement(
    truth: GroundTruth, placements: Sequence[schemas.Placement], dialogues: Sequence[schemas.Dialogue]
) -> pd.DataFrame:
    """How often markers and strategies send, how far apart, and how far each agrees with each marker."""
    turns = [(d.dialogue_id, t.turn) for d in dialogues for t in d.turns if t.turn >= 2]
    marked = {name: truth.turns_of(name) for name in truth.markers}
    senders, strategies = dict(marked), {"greedy": "the gate", "random": "random", "learned": "learned"}
    for placed in placements:
        if name := strategies.get(placed.strategy):
            senders.setdefault(name, set()).add((placed.dialogue_id, placed.turn))
    rows = []
    for name, sent in senders.items():
        gaps = gaps_of(sent)
        row = {
            "who": name,
            "memes": len(sent),
            "rate": len(sent) / max(1, len(turns)),
            "mean gap": float(np.mean(gaps)) if gaps else np.nan,
        }
        for marker, theirs in marked.items():
            row[f"kappa with {marker}"] = np.nan if marker == name else timing_kappa(turns, sent, theirs)
        rows.append(row)
    return pd.DataFrame(rows, columns=[*TIMING, *(f"kappa with {m}" for m in marked)])


def timing_kappa(turns: Collection[Key], sent: set[Key], theirs: set[Key]) -> float:
    """How far two senders agree, beyond chance, on whether a turn gets a meme."""
    both = ([turn in places for turn in turns] for places in (sent, theirs))
    return float(statistics.kappa(statistics.confusion(*both)))
