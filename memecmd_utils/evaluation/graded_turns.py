"""What all studies share: the turns, the memes, the four terms of every pair, and the grades."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from memecmd_utils import retrieval, schemas, statistics
from memecmd_utils.evaluation import ground_truth, rankings, tables
from memecmd_utils.evaluation.ground_truth import RELEVANT, GroundTruth
from memecmd_utils.evaluation.rankings import Query
from memecmd_utils.retrieval import Encode, halves
from memecmd_utils.runs import Run
from memecmd_utils.settings import Profile

MOST_PAIRS = 4_000_000
"""Pairs of a turn and a meme that the studies look at: each has four terms under four systems, 0.5 GB in all.
The paper's run has 198 million; a sample of its dialogues says as much about each open choice."""


@dataclass(frozen=True)
class StudyData:
    """One run's turns 2..T that have a usable summary, in order, and its annotated memes.

    Rows of every matrix are `asked`, columns are `meme_ids`.
    """

    profile: Profile
    dialogues: Sequence[schemas.Dialogue]
    memes: Mapping[str, schemas.Meme]
    annotations: Sequence[schemas.Annotation]
    truth: GroundTruth
    placements: Sequence[schemas.Placement]
    encoders: Mapping[str, Encode]
    """The run's embedder first, then the one that took no part in retrieval."""
    n_all: int = 0
    """Dialogues of the run, of which these may be a sample; 0 where nobody counted."""
    _terms: dict[tuple[str, str], np.ndarray] = field(default_factory=dict, repr=False)

    @cached_property
    def asked(self) -> list[Query]:
        """The turns, dialogue by dialogue."""
        return rankings.queries(self.dialogues)

    @cached_property
    def summaries(self) -> list[schemas.Summary]:
        """The run's own summary of every turn."""
        by_key = {(d.dialogue_id, s.turn): s for d in self.dialogues for s in d.summaries}
        return [by_key[q.key] for q in self.asked]

    @cached_property
    def keys(self) -> list[tables.Key]:
        """(dialogue id, turn) of every row."""
        return [q.key for q in self.asked]

    @cached_property
    def clusters(self) -> list[str]:
        """Dialogue id of every row: what intervals are over."""
        return [q.dialogue.dialogue_id for q in self.asked]

    @cached_property
    def meme_ids(self) -> list[str]:
        """Memes with a usable annotation."""
        return [a.meme_id for a in self.annotations]

    @cached_property
    def row(self) -> dict[tables.Key, int]:
        """Row of every turn."""
        return {key: i for i, key in enumerate(self.keys)}

    @cached_property
    def column(self) -> dict[str, int]:
        """Column of every meme."""
        return {meme: j for j, meme in enumerate(self.meme_ids)}

    @cached_property
    def half(self) -> np.ndarray:
        """Half, `a` or `b`, of every row."""
        split = halves(self.dialogues)
        return np.array([split[name] for name in self.clusters])

    @cached_property
    def rows_of(self) -> dict[str, np.ndarray]:
        """Rows of every dialogue, in order of turns."""
        names = np.array(self.clusters)
        return {name: np.flatnonzero(names == name) for name in dict.fromkeys(self.clusters)}

    def terms(self, embedder: str, centring: str) -> np.ndarray:
        """alpha, delta, beta, gamma of every pair, shape [4, turns, memes] (Eq. 18-21); kept once made."""
        if (embedder, centring) not in self._terms:
            self._terms[embedder, centring] = rankings.four_terms(
                self.summaries, self.annotations, self.encoders[embedder], centring
            )
        return self._terms[embedder, centring]

    @cached_property
    def gains(self) -> np.ndarray:
        """Sum of the graders' grades, [turns, memes]; nan where nobody graded."""
        return self.grades_of(None)

    def grades_of(self, grader: str | None) -> np.ndarray:
        """Grades of one grader, or the sum over all, [turns, memes]; nan where nobody graded."""
        out = np.full((len(self.asked), len(self.annotations)), np.nan)
        for grade in self.truth.grades:
            i, j = self.row.get((grade.dialogue_id, grade.turn)), self.column.get(grade.meme_id)
            if i is None or j is None or grader not in (None, grade.grader):
                continue
            out[i, j] = grade.grade + (0 if np.isnan(out[i, j]) else out[i, j])
        return out


def load_graded_turns(run: Run, truth: GroundTruth | None = None) -> StudyData:
    """Read what a run has made so far; `truth`, if it was read before. Without ground truth that is empty."""
    dialogues = run.load(schemas.Dialogue)
    memes = {m.meme_id: m for m in run.load(schemas.Meme)}
    annotations = run.load(schemas.Annotation)
    usable = [a for a in annotations if a.usable]
    truth = truth or ground_truth.truth_of_run(run.profile, dialogues, list(memes.values()))
    placements = run.load(schemas.Placement)
    n_all, dialogues = len(dialogues), sample(dialogues, len(usable), run.profile.seed)
    if len(dialogues) < n_all:
        names = {d.dialogue_id for d in dialogues}
        truth = truth.within(names)
        placements = [p for p in placements if p.dialogue_id in names]
    return StudyData(
        profile=run.profile,
        dialogues=dialogues,
        memes=memes,
        annotations=usable,
        truth=truth,
        placements=placements,
        encoders=rankings.encoders_of(run),
        n_all=n_all,
    )


def sample(dialogues: Sequence[schemas.Dialogue], n_memes: int, seed: int) -> list[schemas.Dialogue]:
    """All dialogues, or as many of them, drawn by seed, as keep turns times memes within `MOST_PAIRS`."""
    room = MOST_PAIRS // max(1, n_memes)
    if sum(len(d.summaries) for d in dialogues) <= room:
        return list(dialogues)
    taken: set[str] = set()
    for place in statistics.rng(seed, "sample of the studies").permutation(len(dialogues)):
        room -= len(dialogues[place].summaries)
        if room < 0 and taken:
            break
        taken.add(dialogues[place].dialogue_id)
    return [d for d in dialogues if d.dialogue_id in taken]


# --- R@1, nDCG@5 and judged@5 of whole score matrices at once: for studies that rank hundreds of times
# `rankings` asks trec_eval, ranking by ranking; these are the same values (a test compares), some
# hundred times as fast.


MEASURES = ("R@1", "nDCG@5", "judged@5")
DEPTH = 5
SELF = "self"
"""The fold where there is no other half, as in `placement.calibrate`."""


@dataclass(frozen=True)
class Graded:
    """The turns that have a relevant meme, and the gains of all memes there."""

    rows: np.ndarray
    """Rows of the study's matrices: what is measured."""
    clusters: list[str]
    """Dialogue of each of these rows."""
    gains: np.ndarray
    """Sums of grades, [rows, memes]; nan where nobody graded."""
    meme_ids: Sequence[str]
    ideal: np.ndarray
    """What nDCG@5 divides by at each turn."""

    @property
    def by_id(self) -> np.ndarray:
        """Positions of the memes in order of their ids, which decides ties."""
        return np.argsort(np.array(self.meme_ids, dtype=str))

    def measure(self, scores: np.ndarray, judged_only: bool = False) -> np.ndarray:
        """R@1, nDCG@5 and judged@5 of scores [all turns, memes] at each graded turn, [rows, 3].

        An ungraded meme gains nothing; with `judged_only` it is taken out of the ranking instead.
        """
        here = scores[self.rows]
        if judged_only:
            here = np.where(np.isnan(self.gains), -np.inf, here)
        best = retrieval.best_memes(here, self.meme_ids, DEPTH)
        found = self._gains_of(best)
        hit = found[:, 0] >= RELEVANT  # nan is no hit
        judged = np.isfinite(found).sum(axis=1) / np.maximum(1, (best >= 0).sum(axis=1))
        return np.column_stack([hit, self.ndcg(best), judged])

    def measure_both(self, scores: np.ndarray) -> np.ndarray:
        """`measure`, and beside it nDCG@5 over judged memes only, [rows, 4]."""
        judged_only = self.measure(scores, judged_only=True)[:, MEASURES.index("nDCG@5")]
        return np.column_stack([self.measure(scores), judged_only])

    def ndcg(self, best: np.ndarray) -> np.ndarray:
        """nDCG@5 at each graded turn from the positions of its top five memes, [rows, 5]; -1 is none."""
        return discounted(np.nan_to_num(self._gains_of(best))) / self.ideal

    def _gains_of(self, best: np.ndarray) -> np.ndarray:
        return np.where(best < 0, np.nan, np.take_along_axis(self.gains, np.maximum(best, 0), axis=1))


def graded(gains: np.ndarray, meme_ids: Sequence[str], clusters: Sequence[str]) -> Graded:
    """Prepare the turns with a relevant meme: `gains` [turns, memes], nan where nobody graded.

    A meme without a usable annotation has no column, so the ideal ranking does not hold it either.
    """
    gains = np.asarray(gains, dtype=float)
    rows = np.flatnonzero((np.nan_to_num(gains, nan=-1.0) >= RELEVANT).any(axis=1))
    graded_gains = gains[rows]
    ideal = ideal_gain(np.nan_to_num(graded_gains))
    return Graded(rows, [clusters[i] for i in rows], graded_gains, meme_ids, ideal)


def graded_of_study(data: StudyData) -> Graded:
    """The graded turns of a study; none where the run has no ground truth."""
    return graded(data.gains, data.meme_ids, data.clusters)


def discounted(gains: np.ndarray) -> np.ndarray:
    """Gains [turns, ranks] over log2(rank + 1), added up: linear gains, as trec_eval has them."""
    return (gains / np.log2(np.arange(gains.shape[1]) + 2)).sum(axis=1)


def ideal_gain(gains: np.ndarray) -> np.ndarray:
    """What nDCG@5 divides by: the discounted gain of the best five memes of a turn; `gains` without nan."""
    return discounted(-np.sort(-gains, axis=1)[:, :DEPTH])


def folds(half: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray, str]]:
    """For each half: its rows, the rows to fit on, and the name of the fold (`self` if there is no other)."""
    for mine, other in (("a", "b"), ("b", "a")):
        rows, fit = np.flatnonzero(half == mine), np.flatnonzero(half == other)
        if len(rows):
            yield (rows, fit, other) if len(fit) else (rows, rows, SELF)
