"""What is counted of one ranking: N_k of every meme, repeats within a dialogue, measures of retrieval.

N_k (Radovanovic, Nanopoulos and Ivanovic, 2010): at how many turns a meme is among the top k.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from memecmd_utils import fast_retrieval, statistics
from memecmd_utils.fast_retrieval import MEASURES, Graded
from memecmd_utils.retrieval import order
from memecmd_utils.study_data import StudyData

DEEPEST = 10
GRADED, ALL, GATE = "the graded turns", "all turns", "the gate's turns"
GROUPS = {
    GRADED: (*MEASURES, "nDCG@5 judged only"),
    ALL: ("repeats",),
    GATE: ("repeats at the gate",),
}
"""What is measured at which turns."""


def skewness(counts: np.ndarray) -> np.ndarray:
    """Third standardised moment over the last axis; nan where all are equal."""
    gap = counts - counts.mean(axis=-1, keepdims=True)
    square = gap * gap
    with np.errstate(invalid="ignore", divide="ignore"):
        return (square * gap).mean(axis=-1) / square.mean(axis=-1) ** 1.5


def repeated(memes: np.ndarray, clusters: Sequence[str]) -> np.ndarray:
    """True where an earlier item of the same dialogue has the same meme; items in order of turns."""
    seen: set[tuple[str, int]] = set()
    out = np.zeros(len(memes), dtype=bool)
    for i, key in enumerate(zip(clusters, memes.tolist(), strict=True)):
        out[i] = key in seen
        seen.add(key)
    return out


@dataclass(frozen=True)
class Turns:
    """The turns of a study in the three groups that something is measured on."""

    data: StudyData

    @cached_property
    def graded(self) -> Graded:
        """The turns that have a relevant meme."""
        return fast_retrieval.of_study(self.data)

    @cached_property
    def rows(self) -> dict[str, np.ndarray]:
        """Rows of each group."""
        sent = {(p.dialogue_id, p.turn) for p in self.data.placements if p.strategy == "greedy"}
        gate = [i for i, key in enumerate(self.data.keys) if key in sent]
        every = np.arange(len(self.data.asked))
        return {GRADED: self.graded.rows, ALL: every, GATE: np.array(gate, dtype=int)}

    @cached_property
    def clusters(self) -> dict[str, list[str]]:
        """Dialogue of every row of each group."""
        names = np.array(self.data.clusters)
        return {group: names[rows].tolist() for group, rows in self.rows.items()}

    def count(self, scores: np.ndarray) -> "Counted":
        """Count one ranking, given its scores [turns, memes]."""
        best = order(scores, self.data.meme_ids)[:, :DEEPEST]
        judged_only = self.graded.measure(scores, judged_only=True)[:, MEASURES.index("nDCG@5")]
        values = {GRADED: np.column_stack([self.graded.measure(scores), judged_only])}
        for group in (ALL, GATE):
            again = repeated(best[self.rows[group], 0], self.clusters[group])
            values[group] = again[:, None].astype(float)
        return Counted(best, scores.shape[1], values, self.skewness(best[:, :1], scores.shape[1]))

    def skewness(self, best: np.ndarray, n_memes: int) -> statistics.LeftOut:
        """Skewness of N_k over memes; `best` [turns, k] are the memes of every turn."""
        among = np.zeros((len(best), n_memes))
        np.put_along_axis(among, best, 1.0, axis=1)
        names = list(self.data.rows_of)
        counts = statistics.sums(among, self.clusters[ALL], names)
        turns = statistics.sums(np.ones(len(best)), self.clusters[ALL], names)
        return statistics.leave_out(skewness, turns / turns.sum(), counts)


@dataclass(frozen=True)
class Counted:
    """One ranking and what was counted of it."""

    best: np.ndarray
    """Positions of the top memes, [turns, at most 10]."""
    n_memes: int
    values: dict[str, np.ndarray]
    """[items, measures] of each of the `GROUPS`."""
    skewness: statistics.LeftOut
    """Skewness of N_1."""

    def n_k(self, k: int, rows: np.ndarray | slice = slice(None)) -> np.ndarray:
        """N_k of every meme over some turns, [memes]."""
        return np.bincount(self.best[rows, :k].ravel(), minlength=self.n_memes)
