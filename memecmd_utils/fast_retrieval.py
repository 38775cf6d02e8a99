"""R@1, nDCG@5 and judged@5 of whole score matrices at once: for studies that rank hundreds of times.

`retrieval_evaluation` asks trec_eval, ranking by ranking; these are the same values (a test compares), some
hundred times as fast.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from memecmd_utils import retrieval
from memecmd_utils.ground_truth import RELEVANT
from memecmd_utils.study_data import StudyData

MEASURES = ("R@1", "nDCG@5", "judged@5")
DEPTH = 5
SELF = "self"
"""The fold where there is no other half, as in `selection.calibrate`."""


@dataclass(frozen=True)
class Graded:
    """The turns that have a relevant meme, and the gains of all memes there."""

    rows: np.ndarray
    """Rows of the study's matrices: what is measured."""
    clusters: list[str]
    """Dialogue of each of these rows."""
    gains: np.ndarray
    """Sums of grades, [rows, memes]; nan where nobody graded."""
    level: int
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
        hit = found[:, 0] >= self.level  # nan is no hit
        judged = np.isfinite(found).sum(axis=1) / np.maximum(1, (best >= 0).sum(axis=1))
        return np.column_stack([hit, self.ndcg(best), judged])

    def ndcg(self, best: np.ndarray) -> np.ndarray:
        """nDCG@5 at each graded turn from the positions of its top five memes, [rows, 5]; -1 is none."""
        return discounted(np.nan_to_num(self._gains_of(best))) / self.ideal

    def _gains_of(self, best: np.ndarray) -> np.ndarray:
        return np.where(best < 0, np.nan, np.take_along_axis(self.gains, np.maximum(best, 0), axis=1))


def graded(
    gains: np.ndarray, meme_ids: Sequence[str], clusters: Sequence[str], level: int = RELEVANT
) -> Graded:
    """Prepare the turns with a meme of at least `level`: `gains` [turns, memes], nan where nobody graded.

    A meme without a usable annotation has no column, so the ideal ranking does not hold it either.
    """
    gains = np.asarray(gains, dtype=float)
    rows = np.flatnonzero((np.nan_to_num(gains, nan=-1.0) >= level).any(axis=1))
    kept = gains[rows]
    ideal = ideal_gain(np.nan_to_num(kept))
    return Graded(rows, [clusters[i] for i in rows], kept, level, meme_ids, ideal)


def of_study(data: StudyData) -> Graded:
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
