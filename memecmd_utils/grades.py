"""Which memes fit which turn, by grades, and how well retrieval systems find them.

A grade is 0 (does not fit), 1 (one could send it) or 2 (it lands). Everywhere here the mean over the graders
(0-2) counts; from a mean of 1 on a meme fits.
"""

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import chain, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd
from pydantic import Field

from memecmd_utils import files, retrieval, statistics
from memecmd_utils.files import StageOutputError, paths
from memecmd_utils.retrieval import centre
from memecmd_utils.schemas import Dialogue, Grade, Mark, Meme, Placement, Record
from memecmd_utils.settings import Profile
from memecmd_utils.statistics import Estimate, LeftOut

if TYPE_CHECKING:
    from memecmd_utils.splits import Turns

FITS = 1.0
"""Mean grade (0-2) from which a meme fits."""
COLUMNS = ("dialogue_id", "turn", "meme_id", "grade")


class UserGrade(Grade):
    """A grade of a user's file: any number from 0 to 2, such as the mean of several graders."""

    grade: float = Field(ge=0, le=2)


def read_grades(path: Path, turns: Collection["Key"], meme_ids: Collection[str]) -> list[UserGrade]:
    """Read a user's table of grades at `turns` (dialogue id, turn).

    Its columns are dialogue_id, turn, meme_id, grade and, if wanted, grader. It may come from a spreadsheet:
    UTF-8, UTF-16 or GB18030, separated by comma, semicolon or tab, with other columns beside these. Rows with
    an empty grade are ungraded; their number is printed. Raises `StageOutputError` with the line of a grade
    outside 0 to 2, of an unknown id, and of a second grade by the same grader.
    """
    table = files.read_table(path, COLUMNS).map(str.strip)
    table = table.rename(columns={"turn": "turn_cell", "grade": "grade_cell"})
    table["grader"] = table.get("grader", pd.Series("", table.index)).replace("", "grader")
    for name in ("turn", "grade"):
        table[name] = pd.to_numeric(table[f"{name}_cell"].str.replace(",", "."), errors="coerce")
    graded = table[table.grade_cell != ""]
    of_grader = ["dialogue_id", "turn", "meme_id", "grader"]
    places = pd.Series(list(zip(table.dialogue_id, table.turn, strict=True)), table.index)
    for why, is_wrong in {
        "the run has no turn {turn_cell!r} of dialogue {dialogue_id!r} that could get a meme": (
            ~places.isin(turns)
        ),
        "the run has no meme {meme_id!r}": ~table.meme_id.isin(set(meme_ids)),
        "the grade {grade_cell!r} is no number from 0 to 2": ~graded.grade.between(0, 2),
        "{grader} graded meme {meme_id} at turn {turn_cell} of {dialogue_id} already": (
            graded.duplicated(of_grader)
        ),
    }.items():
        if is_wrong.any():
            line = is_wrong.idxmax()
            raise StageOutputError(f"{path.name} line {line}: {why.format(**table.loc[line])}")
    if ungraded := len(table) - len(graded):
        print(f"{path.name}: {ungraded} of {len(table)} rows have an empty grade: not graded")
    rows = graded.astype({"turn": int})[[*of_grader, "grade"]].to_dict("records")
    return [UserGrade(source="user", **row) for row in rows]


# --- Ground truth: marks (would one send a meme here?) and grades of pooled memes
# That of the example was authored by a large language model in several separate sessions, not by people:
# agreement between two markers or graders is model-model agreement. Pooling as at TREC.


Key = tuple[str, int]
"""(dialogue id, turn)."""
Values = dict[Key, float]


def fits(mean: np.ndarray | float) -> np.ndarray | bool:
    """Whether a mean grade (0-2) says that a meme fits; nan, a meme that nobody graded, does not."""
    return np.greater_equal(mean, FITS)


def mean_grades(grades: Iterable[Grade]) -> dict[Key, dict[str, float]]:
    """(dialogue, turn) -> meme -> mean grade (0-2) of its graders; of memes that were graded alone."""
    given: dict[Key, dict[str, list[float]]] = {}
    for grade in grades:
        given.setdefault((grade.dialogue_id, grade.turn), {}).setdefault(grade.meme_id, []).append(
            grade.grade
        )
    # Added up exactly: three graders who gave 0.7, 1.4 and 0.9 say 1, and the meme fits.
    return {key: {meme: math.fsum(g) / len(g) for meme, g in memes.items()} for key, memes in given.items()}


@dataclass(frozen=True)
class GroundTruth:
    """Marks (send or not, best memes) and grades (0/1/2) for the turns of a run."""

    marks: Sequence[Mark] = ()
    batches: Mapping[str, Sequence[Grade]] = field(default_factory=dict)
    """Grades by why they were asked for, the first pool first; those of later ones count for placed memes."""

    @property
    def grades(self) -> Sequence[Grade]:
        """Grades of the first batch."""
        return next(iter(self.batches.values()), ())

    @property
    def markers(self) -> list[str]:
        """Names of the markers, sorted."""
        return sorted({mark.marker for mark in self.marks})

    @property
    def graders(self) -> list[str]:
        """Names of the graders, sorted."""
        return sorted({grade.grader for grade in self.grades})

    @property
    def every(self) -> list[Grade]:
        """All grades, later ones included."""
        return [*chain(*self.batches.values())]

    @cached_property
    def means(self) -> dict[Key, dict[str, float]]:
        """Mean grades of all memes that were graded, later ones included."""
        return mean_grades(self.every)


NONE = GroundTruth()
BATCHES = {
    "pool": "grades.jsonl", "learned": "grades_learned.jsonl", "reranked": "grades_reranked.jsonl",
}  # fmt: skip
"""Files by batch: the first pool, what learned placement found, what baselines and reranking found."""


@lru_cache(maxsize=4)  # 95,000 records of frozen files, which numbers, page and release of a run all ask for
def load_truth(folder: Path) -> GroundTruth:
    """Read `marks.jsonl` and the `BATCHES` of grades that a folder has; without the first, `NONE`."""
    if not (folder / BATCHES["pool"]).is_file():
        return NONE
    there = {name: folder / file for name, file in BATCHES.items() if (folder / file).is_file()}
    batches = {name: grades_by_turn(path) for name, path in there.items()}
    return GroundTruth(files.read_jsonl(folder / "marks.jsonl", Mark), batches)


class TurnGrades(Record):
    """A row of a file of grades: what one grader gave the memes of a turn."""

    dialogue_id: str
    turn: int
    grader: str
    grades: dict[str, int]


def grades_by_turn(path: Path) -> list[Grade]:
    """The grades in a file of `TurnGrades`."""
    rows = files.read_jsonl(path, TurnGrades)
    shared = [(row.model_dump(exclude={"grades"}), row.grades) for row in rows]
    return [Grade(meme_id=meme, grade=grade, **row) for row, memes in shared for meme, grade in memes.items()]


def truth_of_run(profile: Profile, dialogues: Sequence[Dialogue], memes: Sequence[Meme]) -> GroundTruth:
    """The part of the example's ground truth that speaks of a run's dialogues and memes.

    Only for its own dialogues: another model's, or a user's, may bear the same ids with other words.
    """
    turns = {(d.dialogue_id, t.turn) for d in dialogues for t in d.turns if d.source == "authored"}
    if not turns or profile.models.llm != "authored":
        return NONE
    truth = load_truth(paths.example)
    known = {meme.meme_id for meme in memes if meme.source == "drawn"}
    marks = [
        mark.model_copy(update={"best": [m for m in mark.best if m in known]})
        for mark in truth.marks
        if (mark.dialogue_id, mark.turn) in turns
    ]
    batches = {
        name: [g for g in rows if (g.dialogue_id, g.turn) in turns and g.meme_id in known]
        for name, rows in truth.batches.items()
    }
    return GroundTruth(marks, batches)


def placed_grades(
    placements: Sequence[Placement], truth: GroundTruth, *, whole: bool = False
) -> dict[str, Values]:
    """Mean grade (0-2) of every placed meme that was graded, by strategy and turn.

    `whole`: of strategies alone whose memes were all graded. With another seed, gate or library some placed
    memes were never in the pool, and those that were are no fair sample of them.
    """
    found: dict[str, Values] = {}
    for placed in placements:
        key = placed.dialogue_id, placed.turn
        if (mean := truth.means.get(key, {}).get(placed.meme_id)) is not None:
            found.setdefault(placed.strategy, {})[key] = mean
    n = Counter(placed.strategy for placed in placements)
    return {name: values for name, values in found.items() if not whole or len(values) == n[name]}


def gaps_of(places: Iterable[Key]) -> list[int]:
    """Turns from each place to the next one in the same dialogue."""
    return [b[1] - a[1] for a, b in pairwise(sorted(places)) if a[0] == b[0]]


def elsewhere(
    means: Mapping[Key, Mapping[str, float]],
    clusters: Sequence[str],
    meme_ids: Sequence[str],
    worth: Callable[[pd.DataFrame], pd.DataFrame] = np.positive,
) -> np.ndarray:
    """What the `mean_grades` of each meme come to in all dialogues but a turn's own, [turns, memes].

    `clusters` are the dialogues of the turns; `worth` says what mean grades [turns, memes] count.
    """
    table = pd.DataFrame.from_dict(means, "index").reindex(columns=list(meme_ids))
    by_dialogue = worth(table).groupby(level=0).sum()
    return by_dialogue.to_numpy().sum(axis=0) - by_dialogue.reindex(clusters).fillna(0).to_numpy()


# --- Memes that somebody sent: what are they worth?
# Tables of memes have a row a meme and the columns dialogue, turn, meme and grade: the mean grade (0-2), nan
# where nobody graded. Such a meme does not fit and has grade 0; drop it first to measure graded ones alone.


OF_MEMES = {
    "fits": statistics.SHARE, "lands": statistics.SHARE,
    "mean grade": statistics.GRADE, "specificity": statistics.MEAN,
}  # fmt: skip
"""Measures of memes that were sent. Lands: 2 from all graders. Specificity: fits, less how often the same
meme fits at the other turns where it was graded; one that was graded at none does not count there."""


class FitCounts(NamedTuple):
    """At how many turns each meme was graded, and at how many it fits: two tables [dialogues, memes]."""

    graded: pd.DataFrame
    fits: pd.DataFrame


def fit_counts(graded: pd.DataFrame, names: Sequence[str]) -> FitCounts:
    """Of a table of memes that has every graded pair of a turn and a meme once; `names`: all dialogues."""
    by_meme = graded.assign(fits=fits(graded["grade"])).groupby(["dialogue", "meme"])["fits"]
    counted = (counts.unstack(fill_value=0) for counts in (by_meme.size(), by_meme.sum()))
    return FitCounts(*(counts.reindex(names, fill_value=0) for counts in counted))


@dataclass(frozen=True, eq=False)
class Sent:
    """A table of memes that somebody sent, and what they are worth; `counts` are of all grades."""

    memes: pd.DataFrame
    counts: FitCounts

    @cached_property
    def worth(self) -> dict[str, np.ndarray]:
        """Each meme in every one of `OF_MEMES`, [1 + dialogues, memes].

        First by all grades, then without those of each dialogue, whose own memes are nan there.
        """
        grade, names = self.memes["grade"].to_numpy(float), self.counts.graded.index
        fitting = fits(grade)

        def at_other_turns(counted: pd.DataFrame, own: np.ndarray) -> np.ndarray:
            table = counted.reindex(columns=self.memes["meme"], fill_value=0).to_numpy()
            return np.vstack([table.sum(axis=0), table.sum(axis=0) - table]) - own

        others = at_other_turns(self.counts.graded, np.isfinite(grade))
        elsewhere = at_other_turns(self.counts.fits, fitting) / np.where(others > 0, others, np.nan)
        values = zip(OF_MEMES, (fitting, grade == 2, np.nan_to_num(grade), fitting - elsewhere), strict=True)
        is_left_out = np.array([None, *names], dtype=object)[:, None] == self.memes["dialogue"].to_numpy()
        return {name: np.where(is_left_out, np.nan, value) for name, value in values}

    @cached_property
    def _dialogue(self) -> np.ndarray:
        """Number of each meme's dialogue, [memes]."""
        return self.counts.graded.index.get_indexer(self.memes["dialogue"])

    def mean(self, values: np.ndarray) -> tuple[LeftOut, int]:
        """The mean of values of `worth`, or of differences of them, and how many memes it is over."""
        counted = np.isfinite(values[0])
        sizes = np.bincount(self._dialogue[counted], minlength=len(self.counts.graded))
        with np.errstate(invalid="ignore", divide="ignore"):
            means = np.nansum(values[:, counted], axis=1) / np.isfinite(values[:, counted]).sum(axis=1)
            return LeftOut(means[0], means[1:], sizes / sizes.sum()), int(counted.sum())

    def means(self) -> dict[str, Estimate]:
        """The mean of each of `OF_MEMES`."""
        return {
            name: statistics.estimate(*self.mean(self.worth[name]), kind) for name, kind in OF_MEMES.items()
        }

    def minus(self, other: "Sent", *, is_paired: bool) -> dict[str, Estimate]:
        """Each of `OF_MEMES` minus that of other memes.

        Paired: row by row, where both have the same turns in the same order; else each over its own turns.
        """
        differences = {}
        for name in OF_MEMES:
            if is_paired:
                left_out, n = self.mean(self.worth[name] - other.worth[name])
            else:
                (left_out, n), (theirs, m) = (sent.mean(sent.worth[name]) for sent in (self, other))
                left_out, n = left_out.minus(theirs), n + m
            differences[name] = statistics.estimate(left_out, n)
        return differences


# --- Retrieval systems against the grades
# R@K is, as in image-text retrieval, the share of turns with a fitting meme among the top K (trec_eval's
# success_K): a turn has many. Only what is in the pool was graded: for a system that did not feed it
# (judged@5 below 1) all measures are lower bounds.


MEASURES = ("R@1", "R@5", "MRR", "nDCG@5", "judged@5")
JUDGED = 0.9
"""Share of memes with a grade below which systems are not compared: what nobody graded is no miss."""
RELEVANT = int(2 * FITS)
"""Score from which a meme fits, where rankings are measured."""
NDCG = MEASURES.index("nDCG@5")
DEPTH = 5
PARTS = ("S+", "S-", "E", "Psi")
"""The four terms of the score (Eq. 18-21) in the order of the weights."""
CAPTION = "context to caption"
RANDOM = "random"
"""The one random ranking whose top was graded with the pool: others meet memes that nobody graded."""
CENTRINGS = ("attribute", "none")


def cosines(left: np.ndarray, right: np.ndarray, centring: str) -> np.ndarray:
    """Of every row with every row, in float64; each side centred by its own mean where `centring` says so."""
    if centring == "attribute":
        left, right = centre(left), centre(right)
    return left.astype(np.float64) @ right.astype(np.float64).T


def discounted(grades: np.ndarray) -> np.ndarray:
    """Grades [turns, ranks] over log2(rank + 1), added up: linear gains, as trec_eval has them."""
    return (grades / np.log2(np.arange(grades.shape[1]) + 2)).sum(axis=1)


def ideal_gain(grades: np.ndarray) -> np.ndarray:
    """What nDCG@5 divides by: the discounted grades of the best five memes of a turn; 0 is given as 1."""
    best = discounted(-np.sort(-np.nan_to_num(grades), axis=1)[:, :DEPTH])
    return np.where(best > 0, best, 1)


def ndcg(best: np.ndarray, grades: np.ndarray) -> np.ndarray:
    """nDCG@5 of every turn from its best memes, [turns, 5] columns of `grades` [turns, memes]."""
    found = np.take_along_axis(grades, best[:, :DEPTH], axis=1)
    return discounted(np.nan_to_num(found)) / ideal_gain(grades)


def ndcg_by_chance(grades: np.ndarray, n: Sequence[int] | np.ndarray) -> np.ndarray:
    """nDCG@5 to expect of `n` memes of each turn in a random order of those that were graded, [turns]."""
    discounts = np.cumsum([0, *1 / np.log2(np.arange(DEPTH) + 2)])
    return np.nanmean(grades, axis=1) * discounts[np.minimum(n, DEPTH)] / ideal_gain(grades)


def relevance(mean: float) -> int:
    """A mean grade as a score of `qrels`, 0 to 4: twice the grade, rounded down, so that `RELEVANT` fits."""
    return math.floor(2 * mean)


def per_turn(order: np.ndarray, grades: np.ndarray) -> np.ndarray:
    """`MEASURES` of one ranking by mean grades, as trec_eval finds them, [turns, measures].

    `order` holds the columns of `grades` [turns, memes], best first; nan is ungraded, and does not fit.
    """
    found = np.take_along_axis(grades, order, axis=1)
    hits, top = fits(found), np.isfinite(found[:, :DEPTH])
    reciprocal = hits.any(axis=1) / (1 + hits.argmax(axis=1))
    among = hits[:, :DEPTH].any(axis=1)
    return np.column_stack([hits[:, 0], among, reciprocal, ndcg(order, grades), top.mean(axis=1)])


def measure(rankings: Mapping[str, Sequence[str]], qrels: Mapping[str, Mapping[str, int]]) -> np.ndarray:
    """The same of the rankings of turns, [turns of `qrels`, measures].

    `qrels`: turn -> meme -> `relevance`. A turn for which nothing is ranked gets 0 in all.
    """
    values = np.zeros((len(qrels), len(MEASURES)))
    for row, (turn, scores) in enumerate(qrels.items()):
        if best := rankings.get(turn):
            listed = (*best, *scores.keys() - best)
            given = np.array([[scores.get(meme, np.nan) for meme in listed]]) / 2
            values[row] = per_turn(np.arange(len(best))[None], given)[0]
    return values


def random_order(keys: Iterable[Key], n_memes: int, seed: int) -> np.ndarray:
    """The random ranking whose top was graded, one for each (dialogue, turn), [turns, memes]."""
    return np.array([statistics.rng(seed, "random ranking", *key, 0).permutation(n_memes) for key in keys])


def compare_systems(data: "Turns") -> pd.DataFrame:
    """`MEASURES` of ways to rank the library, with intervals over dialogues; empty without grades.

    For each embedder and centring: each term alone, all four with the run's weights, and the plain text of
    the last turns against the caption; at last the random ranking that was graded. Measured at the
    `answerable` turns, where ungraded memes count as not fitting.
    """
    measured: dict[tuple[str, str, str], np.ndarray] = {}
    for name, encode in data.encoders.items() if len(data.answerable) else ():
        contexts = encode([query.context for query in data.asked], "query")
        captions = encode([data.split.memes[meme].text for meme in data.meme_ids], "document")
        for centring in CENTRINGS:
            terms = data.terms(name, centring)
            scores = dict(zip(PARTS, terms, strict=True))
            scores[" ".join(PARTS)] = retrieval.combine(terms, data.profile.retrieval.weights)
            scores[CAPTION] = cosines(contexts, captions, centring)
            measured |= {(name, centring, uses): data.measure(values) for uses, values in scores.items()}
    if measured:
        order = random_order(data.keys, len(data.meme_ids), data.profile.seed)[data.answerable]
        measured["", "", RANDOM] = per_turn(order, data.grades[data.answerable])
    clusters, rows = data.answerable_clusters, []
    for system, values in measured.items():
        row = dict(zip(("embedder", "centring", "uses"), system, strict=True))
        means = statistics.cluster_means(MEASURES, values, clusters, statistics.MEASURE)
        rows.append({**row, **means, "turns": len(clusters), "dialogues": len(set(clusters))})
    return pd.DataFrame(rows)
