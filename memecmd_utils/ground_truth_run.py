"""Stage 05 against the ground truth: agreement, timing, retrieval systems, grades of placed memes."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from memecmd_utils import (
    ground_truth,
    results,
    retrieval,
    retrieval_evaluation,
    retrieval_systems,
    schemas,
    statistics,
    storage,
    table_text,
)
from memecmd_utils.ground_truth import GroundTruth, Relevance
from memecmd_utils.profiles import Profile
from memecmd_utils.retrieval_systems import Query, System
from memecmd_utils.runs import Run

STRICT = 3
"""Sum of two grades from which a meme lands for both graders: at least 2 and 1."""


@dataclass(frozen=True)
class Found:
    """Retrieval against the ground truth: all systems, their paired differences, the stricter relevance."""

    systems: pd.DataFrame
    differences: pd.DataFrame
    strict: pd.DataFrame

    def overview(self, strict: bool = False) -> pd.DataFrame:
        """All systems with their measures, the best nDCG@5 first."""
        columns = ["embedder", "centring", "uses", *retrieval_evaluation.COLUMNS, "turns"]
        return (self.strict if strict else self.systems)[columns].sort_values("nDCG@5", ascending=False)

    def save(
        self,
        run: Run,
        agreement: pd.DataFrame,
        timing: pd.DataFrame,
        placed: pd.DataFrame,
    ) -> None:
        """Write the tables of the report, and `ground_truth.json`, which page and README quote."""
        tables = {
            "placed": placed,
            "agreement": agreement,
            "timing": timing,
            "retrieval": self.systems,
            "retrieval_strict": self.strict,
            "retrieval_differences": self.differences,
        }
        table_text.save(run.report / "tables", **tables)
        rows = {name: results.frame_rows(table) for name, table in tables.items()}
        storage.write_json(run.write("ground_truth.json"), rows)


@dataclass(frozen=True)
class Ranked:
    """Scores [turns, memes] of every system, with the turns and the memes they belong to."""

    matrices: dict[System, np.ndarray]
    asked: list[Query]
    meme_ids: list[str]


def rank(
    run: Run,
    dialogues: Sequence[schemas.Dialogue],
    memes: Mapping[str, schemas.Meme],
    annotations: Sequence[schemas.Annotation],
) -> Ranked:
    """Score the library with every system, under the run's embedder and the one that took no part in it."""
    usable = [a for a in annotations if a.usable]
    asked = retrieval_systems.queries(dialogues)
    names = dict.fromkeys([run.profile.embedder, run.profile.consistency_embedder])
    encoders = {name: run.embedder(name).encode for name in names}
    matrices = dict(retrieval_systems.score_matrices(asked, memes, usable, encoders, run.profile.weights))
    return Ranked(matrices, asked, [a.meme_id for a in usable])


def evaluate(
    run: Run,
    dialogues: Sequence[schemas.Dialogue],
    memes: Mapping[str, schemas.Meme],
    annotations: Sequence[schemas.Annotation],
    truth: GroundTruth,
) -> Found:
    """Measure every system against the grades; empty tables where the run has none."""
    if not truth.grades:
        return Found(*(pd.DataFrame(columns=list(names)) for names in retrieval_evaluation.HEADS))
    ranked = rank(run, dialogues, memes, annotations)
    relevant = ground_truth.relevance(truth.grades)
    measured = retrieval_evaluation.evaluate(
        ranked.matrices, ranked.asked, ranked.meme_ids, relevant, run.profile, (ground_truth.RELEVANT, STRICT)
    )
    (systems, differences), (strict, _) = (
        retrieval_evaluation.tables(found, run.profile, run.profile.embedder) for found in measured
    )
    return Found(systems, differences, strict)


def pool(
    run: Run, ranked: Ranked, truth: GroundTruth, placements: Sequence[schemas.Placement]
) -> dict[ground_truth.Key, list[str]]:
    """What is to be graded: the top 5 of the planned systems, the markers' best and all placed memes.

    Systems: all four terms, each term alone and the caption baseline under both embedders with the run's
    centring, and one random ranking.
    """
    wanted = {*retrieval_systems.PARTS, retrieval_systems.FULL, retrieval_systems.CAPTION}
    orders = {
        " ".join(system): retrieval.order(scores, ranked.meme_ids)
        for system, scores in ranked.matrices.items()
        if system.uses in wanted and system.centring == run.profile.centring
    }
    orders["random"] = retrieval_systems.random_order(ranked.asked, len(ranked.meme_ids), run.profile.seed, 0)
    rankings = {
        name: {q.key: [ranked.meme_ids[i] for i in row] for q, row in zip(ranked.asked, order, strict=True)}
        for name, order in orders.items()
    }
    also: dict[ground_truth.Key, list[str]] = {}
    for mark in truth.marks:
        also.setdefault((mark.dialogue_id, mark.turn), []).extend(mark.best)
    for placed in placements:
        also.setdefault((placed.dialogue_id, placed.turn), []).append(placed.meme_id)
    return ground_truth.pool(rankings, also, run.profile.seed)


def grades_of_placed(
    placements: Sequence[schemas.Placement], truth: GroundTruth
) -> dict[str, dict[ground_truth.Key, float]]:
    """Mean grade (0-2) of every placed meme, by strategy and turn; empty unless all of them were graded.

    With another seed, gate or library some placed memes were never in the pool, and those that were are no
    fair sample of them.
    """
    if not truth.grades:
        return {}
    relevant: Relevance = ground_truth.relevance(truth.grades)
    found = ground_truth.placed_grades(placements, relevant, len(truth.graders))
    return found if sum(map(len, found.values())) == len(placements) else {}


PLACED = ("strategy", "memes", "ungraded", "mean grade", "ungraded as 0")


def mean_grades(placements: Sequence[schemas.Placement], truth: GroundTruth) -> pd.DataFrame:
    """Mean grade (0-2) of the placed memes that were graded, a row a strategy; none without ground truth.

    `ungraded` is the share that nobody graded. They were in no system's pool, so most of them fit worse: the
    mean over all memes should lie between `ungraded as 0`, which counts them so, and `mean grade`.
    """
    if not truth.grades:
        return pd.DataFrame(columns=list(PLACED))
    graded = ground_truth.placed_grades(placements, ground_truth.relevance(truth.grades), len(truth.graders))
    rows = []
    for name, memes in Counter(placed.strategy for placed in placements).items():
        of = list(graded.get(name, {}).values())
        mean = float(np.mean(of)) if of else np.nan
        rows.append((name, memes, 1 - len(of) / memes, mean, sum(of) / memes))
    return pd.DataFrame(rows, columns=list(PLACED))


def load_found(run: Run) -> dict[str, list[dict]]:
    """`ground_truth.json` of a run; empty tables where it has no ground truth."""
    return json.loads(run.read("ground_truth.json").read_text(encoding="utf-8"))


def short_table(found: Mapping[str, Sequence[Mapping]], profile: Profile) -> pd.DataFrame:
    """The full score centred and not, single terms, the caption baseline and random, with intervals.

    The difference in nDCG@5 to the graded random ranking (the mean of many where a run has none) and to the
    run's own full score, each `mean [low, high]`. Pairs of terms and the rest are in `tables/retrieval.csv`.
    """
    baselines = (
        retrieval_systems.CAPTION,
        retrieval_systems.RANDOM,
        retrieval_systems.RANDOM_GRADED,
    )
    uses = (retrieval_systems.FULL, *retrieval_systems.PARTS, *baselines)
    other = ", not centred" if profile.centring == "attribute" else ", centred"
    rows = []
    graded = any(row["uses"] == retrieval_systems.RANDOM_GRADED for row in found["retrieval"])
    chance = retrieval_systems.RANDOM_GRADED if graded else retrieval_systems.RANDOM
    differences = {
        (row["embedder"], row["centring"], row["uses"], row["minus"]): row
        for row in found["retrieval_differences"]
        if row["measure"] == "nDCG@5"
    }
    for row in found["retrieval"]:
        system = row["embedder"], row["centring"], row["uses"]
        as_run = row["centring"] in ("", profile.centring)
        if row["uses"] not in uses or not (as_run or row["uses"] == retrieval_systems.FULL):
            continue
        shown = {"embedder": row["embedder"] or "–", "uses": row["uses"] + ("" if as_run else other)}
        shown |= {column: row[column] for column in retrieval_evaluation.COLUMNS}
        shown["nDCG@5 − random"] = _format_difference(differences.get((*system, chance)))
        shown["nDCG@5 − full"] = _format_difference(differences.get((*system, "the full score")))
        rows.append(shown)
    rows.sort(key=lambda row: -row["nDCG@5"])
    columns = ["embedder", "uses", *retrieval_evaluation.COLUMNS]
    columns += ["nDCG@5 − random", "nDCG@5 − full"]
    return pd.DataFrame(rows, columns=columns)


def _format_difference(row: Mapping | None) -> str:
    return "–" if row is None else statistics.format_interval(row, digits=3, sign="+")
