"""R@1, nDCG@5 and judged@5 of whole score matrices at once: for studies that rank hundreds of times.

`retrieval_evaluation` asks trec_eval, ranking by ranking; these are the same values (a test compares), some
hundred times as fast.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

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
    by_id: np.ndarray
    """Positions of the memes in order of their ids, which decides ties."""
    ideal: np.ndarray
    """What nDCG@5 divides by at each turn."""

    def measure(self, scores: np.ndarray, judged_only: bool = False) -> np.ndarray:
        """R@1, nDCG@5 and judged@5 of scores [all turns, memes] at each graded turn, [rows, 3].

        An ungraded meme gains nothing; with `judged_only` it is taken out of the ranking instead.
        """
        here = scores[self.rows]
        if judged_only:
            here = np.where(np.isnan(self.gains), -np.inf, here)
        best = top(here, self.by_id, DEPTH)
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
    by_id = np.argsort(np.array(meme_ids, dtype=str))
    return Graded(rows, [clusters[i] for i in rows], kept, level, by_id, ideal)


def of_study(data: StudyData) -> Graded:
    """The graded turns of a study; none where the run has no ground truth."""
    return graded(data.gains, data.meme_ids, data.clusters)


def discounted(gains: np.ndarray) -> np.ndarray:
    """Gains [turns, ranks] over log2(rank + 1), added up: linear gains, as trec_eval has them."""
    return (gains / np.log2(np.arange(gains.shape[1]) + 2)).sum(axis=1)


def ideal_gain(gains: np.ndarray) -> np.ndarray:
    """What nDCG@5 divides by: the discounted gain of the best five memes of a turn; `gains` without nan."""
    return discounted(-np.sort(-gains, axis=1)[:, :DEPTH])


def top(scores: np.ndarray, by_id: np.ndarray, k: int) -> np.ndarray:
    """Positions of the k best memes of every turn, best first; -1 where only scores of -inf are left.

    `by_id` holds the positions in order of meme id: of equal scores the lower id comes first, after the same
    rounding as in `retrieval_systems.order`. For a small k this is far faster than sorting.
    """
    ordered = np.round(np.take(scores, by_id, axis=1), 9)  # take: rows lie together, as argmax likes
    best = take_best(ordered.copy(), k)
    return np.where(np.isneginf(np.take_along_axis(ordered, best, axis=1)), -1, by_id[best])


def take_best(scores: np.ndarray, depth: int) -> np.ndarray:
    """Positions of the highest scores of every row, the first of equal ones; `scores` are overwritten."""
    rows = np.arange(len(scores))
    out = np.empty((len(scores), min(depth, scores.shape[1])), dtype=int)
    for place in range(out.shape[1]):
        out[:, place] = scores.argmax(axis=1)
        scores[rows, out[:, place]] = -np.inf
    return out


def weighted(terms: np.ndarray, weights: Sequence[float]) -> np.ndarray:
    """T = w1 alpha + w2 delta + w3 beta + w4 gamma from terms [4, turns, memes] (Eq. 22).

    Added term by term: a matrix product may round in another way with another number of threads.
    """
    return sum(w * term for w, term in zip(weights, terms, strict=True))


def folds(half: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray, str]]:
    """For each half: its rows, the rows to fit on, and the name of the fold (`self` if there is no other)."""
    for mine, other in (("a", "b"), ("b", "a")):
        rows, fit = np.flatnonzero(half == mine), np.flatnonzero(half == other)
        if len(rows):
            yield (rows, fit, other) if len(fit) else (rows, rows, SELF)
