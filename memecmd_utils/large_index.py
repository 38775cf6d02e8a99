"""Retrieval from a library of 100,000 memes and more: FAISS finds candidates, the stored rows rank them.

`large_index_build.build(folder, blocks, dim)` makes such a library, and
`open_index(folder).top_k(queries, weights, k)` asks it. The index holds the unweighted stacked vectors,
projected, and the weights (with delta's minus) stand on the query side, so new weights need no new index.
Candidates are ranked by the score of `retrieval` on the stored float16 rows, equal scores by
id: a score never is an approximation, only the set of candidates is.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from memecmd_utils.retrieval import Ranking, rank_candidates, weigh
from memecmd_utils.stored_library import (
    LibraryError,
    StoredLibrary,
    checked,
    flat_top_k,
    open_library,
    read_state,
    spread,
    to_float32,
)

PROJECTION = "projection.npy"
NO_FAISS = "faiss is not installed (pip install -e '.[scale]'): every meme is compared, which takes longer"
CANDIDATES, WIDTH = 96, 4
"""Candidates a turn that are ranked exactly, and how many times as many the fast codes propose for them."""


@dataclass(frozen=True, eq=False)
class LargeIndex:
    """An opened library. `faiss` is None where all memes are compared: `top_k` is then exact."""

    library: StoredLibrary
    faiss: object | None = field(default=None, repr=False)
    projection: object | None = field(default=None, repr=False)
    """`linear` of orthonormal columns, [4 * dim, p]."""
    probes: int = 1
    """Inverted lists that are looked into for a turn."""
    candidates: int = CANDIDATES

    def __post_init__(self) -> None:
        if self.probes < 1 or self.candidates < 1:  # FAISS would end the process
            raise ValueError(f"need probes and candidates >= 1, got {self.probes} and {self.candidates}")

    def __reduce__(self):
        """A copy, also one sent to another process, opens the folder: all codes would else travel with it."""
        return _reopened, (self.library.folder, self.faiss is not None, self.probes, self.candidates)

    @property
    def meme_ids(self) -> tuple[str, ...]:
        """Ids in the order of the rows; `Ranking.memes` are positions here."""
        return self.library.index.meme_ids

    @property
    def lists(self) -> int:
        """Inverted lists of the index."""
        import faiss

        return faiss.extract_index_ivf(self.faiss).nlist

    def top_k(self, queries: np.ndarray, weights: Sequence[float], k: int, block: int = 256) -> Ranking:
        """The K best memes of every turn: queries [turns, 4, dim] of `retrieval.build_queries`.

        Approximate in which memes are found (see `tuned`), exact in scores, components and order.
        """
        exact = checked(self.library, queries, weights, k)
        if self.faiss is None or k * 8 > len(self.meme_ids):
            return flat_top_k(self.library, queries, weights, k)
        memes, scores = np.empty((len(queries), k), dtype=np.int64), np.empty((len(queries), k))
        components = np.empty((len(queries), k, 4))
        for start in range(0, len(queries), block):
            batch = slice(start, start + block)
            found, few = self._batch(queries[batch], exact, k)
            memes[batch], scores[batch], components[batch] = found.memes, found.scores, found.components
            if len(few):  # the lists looked into held fewer than k
                found, few = flat_top_k(self.library, queries[batch][few], weights, k), few + start
                memes[few], scores[few], components[few] = found.memes, found.scores, found.components
        return Ranking(memes, scores, components)

    def _batch(self, queries: np.ndarray, weights: np.ndarray, k: int) -> tuple[Ranking, np.ndarray]:
        """What is found for each turn, and the turns for which it was too little (their rows say nothing)."""
        import faiss

        index, asked = self.library.index, weigh(queries, weights)
        lists = faiss.SearchParametersIVF(nprobe=self.probes)
        settings = faiss.IndexRefineSearchParameters(k_factor=WIDTH, base_index_params=lists)
        wanted = max(self.candidates, 4 * k)
        _, near = self.faiss.search(project(asked, self.projection), wanted, params=settings)
        rounding = spread(index, queries, weights)
        turns, memes, few = [], [], np.flatnonzero((near >= 0).sum(axis=1) < k)
        near[few, :k] = np.arange(k)  # stand-ins
        for turn, row in enumerate(near):
            row = np.sort(row[row >= 0])  # in the order of the file
            rough = to_float32(index.rows[row]) @ asked[turn]
            row = row[rough >= np.partition(rough, len(rough) - k)[len(rough) - k] - rounding]
            turns.append(np.full(len(row), turn))
            memes.append(row)
        ranked = rank_candidates(
            index, queries, weights, np.concatenate(turns), np.concatenate(memes), self.library.id_ranks, k
        )
        return ranked, few

    def tuned(
        self, queries: np.ndarray, weights: Sequence[float], k: int = 10, recall: float = 0.97
    ) -> "LargeIndex":
        """The same index, looking into the fewest lists that reach `recall` at K on these queries.

        Compared with the exact search of them. Each number tried is about a fifth above the last. Ask some
        hundred turns of the kind to come: on a few the recall is a rough guess. What is found holds for the
        returned index only: keep its `probes` and set them with `dataclasses.replace` after the next
        `open_index`. Raises `LibraryError` where all lists do not reach it.
        """
        if self.faiss is None:
            return self
        if not len(queries):
            raise ValueError("recall is measured on queries: there are none")
        true = flat_top_k(self.library, queries, weights, k)
        steps = {round(2 ** (i / 4)) for i in range(4 * self.lists.bit_length())}
        for probes in sorted({min(step, self.lists) for step in steps}):
            tried = replace(self, probes=probes)
            if recall_at_k(tried.top_k(queries, weights, k), true) >= recall:
                return tried
        raise LibraryError(
            f"recall {recall} is not reached: take more candidates (dataclasses.replace) or dims"
        )


def linear(projection: np.ndarray) -> object:
    """FAISS's transform by columns [4 * dim, p].

    NumPy's product would leave BLAS threads spinning on the cores that FAISS then searches with: on two
    cores a search took twice as long.
    """
    import faiss

    found = faiss.LinearTransform(*projection.shape, False)
    faiss.copy_array_to_vector(np.ascontiguousarray(projection.T, dtype=np.float32).ravel(), found.A)
    found.is_trained = True
    return found


def project(rows: np.ndarray, projection: object) -> np.ndarray:
    """Rows [n, 4 * dim] (float16 or float32) to [n, p] by a `linear` transform."""
    return projection.apply(np.ascontiguousarray(to_float32(rows) if rows.dtype == np.float16 else rows))


def recall_at_k(found: Ranking, true: Ranking) -> float:
    """Share of the true top K that was found, 0-1, over all turns."""
    hits = (found.memes[:, :, None] == true.memes[:, None, :]).any(axis=1)
    return float(hits.mean())


def open_index(folder: Path) -> LargeIndex:
    """Open a library memory-mapped. Without faiss it warns and compares every meme."""
    library = open_library(folder)
    if library.state.get("faiss") is None:
        return LargeIndex(library)
    if find_spec("faiss") is None:
        warnings.warn(NO_FAISS, stacklevel=2)
        return LargeIndex(library)
    try:
        index, projection = read_index(folder, library.state, mapped=True)
    except LibraryError:
        if read_state(folder) == library.state:
            raise
        return open_index(folder)  # it has been extended meanwhile, and the old index is gone
    return LargeIndex(library, index, projection, library.state["probes"], library.state["candidates"])


def read_index(folder: Path, state: dict, mapped: bool = False) -> tuple[object, object]:
    """FAISS's index and the `linear` projection of a library; `LibraryError` where they do not fit it."""
    import faiss

    try:
        # Mapped, the codes stay in the file until a list is looked into.
        index = faiss.read_index(str(folder / state["faiss"]), faiss.IO_FLAG_MMAP_IFC if mapped else 0)
        projection = np.load(folder / PROJECTION)
    except (RuntimeError, OSError, ValueError, EOFError) as error:
        raise LibraryError(f"the index in {folder} is damaged ({error}); build it anew") from error
    if index.ntotal != state["memes"]:
        raise LibraryError(f"{folder}: {index.ntotal} indexed of {state['memes']} memes; build anew")
    if projection.shape != (4 * state["dim"], index.d):
        raise LibraryError(f"{folder}: {PROJECTION} is that of another library; build anew")
    if not {"probes", "candidates"} <= state.keys():
        raise LibraryError(f"{folder}: no probes and candidates are said for the index; build anew")
    return index, linear(projection)


def _reopened(folder: Path, indexed: bool, probes: int, candidates: int) -> LargeIndex:
    index = open_index(folder) if indexed else LargeIndex(open_library(folder))
    return replace(index, probes=probes, candidates=candidates)
