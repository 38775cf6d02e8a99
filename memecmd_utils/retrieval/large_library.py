"""A library of 100,000 memes and more: its rows stay on disk, FAISS finds candidates, the rows rank them.

`build` makes one and `open_library(folder).top_k(queries, weights, k)` asks it; `stored` keeps a run's own.
The index holds unweighted stacked vectors, projected, and the weights stand on the query side, so new weights
need no new index. Only the set of candidates is approximate, never a score. A folder holds `rows.f16`,
`index.faiss` and `library.json` with the memes' ids, written last and at once: what a killed build left
behind is no library.
"""

import fcntl
import hashlib
import json
import math
import os
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from memecmd_utils import files, statistics
from memecmd_utils.retrieval import scoring
from memecmd_utils.schemas import Annotation
from memecmd_utils.settings import Profile

FOLDER = "library_index"
"""Its name in a run's folder."""
STATE, ROWS, INDEX, TUNING, LOCK = "library.json", "rows.f16", "index.faiss", "tuning.json", ".lock"
FORM = 2
"""To be raised where rows or index are made in another way: then stored libraries are built anew."""
FROM_MEMES = 100_000
"""Below this every meme is compared: exact, and fast enough."""
NO_FAISS = "faiss is not installed (pip install -e '.[scale]'): every meme is compared, which takes longer"

SAMPLE_BYTES, SAMPLE_ROWS = 512 << 20, 65_536
"""The sample that projection, lists and codes are trained on: at most so many float32 bytes and rows."""
BLOCK_BYTES = 64 << 20
"""Float32 bytes of rows that are written or indexed at a time."""
DIMS, IN_ONE_CODE, ITERATIONS = 384, 3, 4
"""Dimensions kept of the stacked vectors, how many of them one 4-bit code stands for, steps to find them."""
MEMES_AT_ONCE = 8_192
"""Memes whose texts are encoded together."""

CANDIDATES = (96, 192, 384, 768, 1536)
"""Candidates a turn that are ranked exactly: the first, or the first that reach a wanted recall."""
WIDTH = 4
"""How many times as many the fast codes propose for them."""
TURNS, DEPTH, RECALL = 64, 10, 0.97
"""Turns that the number of lists is chosen on (and as many others that it is measured on), K and recall."""

Blocks = Iterable[tuple[Sequence[str], np.ndarray]]
"""Meme ids and their stacked rows [n, 4 * dim], part by part: each quarter of a row is a unit vector, or
shorter, or zeros where a meme lacks that text. One block may be a memory map of the whole library."""


class LibraryError(files.MemecmdError, ValueError):
    """The folder holds no whole library, or what is to be stored does not fit."""


@dataclass(frozen=True, eq=False)
class LargeLibrary:
    """An opened library. As text it says in one sentence how it searches."""

    index: scoring.MemeIndex = field(repr=False)
    """Its rows are a memory map of float16; it has no search of its own."""
    made_from: str = field(repr=False)
    """Digest of what a run made it from; empty where a user built it."""
    folder: Path
    kind: str | None
    """FAISS's name of the index; None: there is none."""
    faiss: object | None = field(default=None, repr=False)
    """None where all memes are compared: `top_k` is then exact."""
    probes: int = 1
    """Inverted lists that are looked into for a turn."""
    candidates: int = CANDIDATES[0]
    measured: dict | None = field(default=None, repr=False)
    """What `tune` measured: `recall` of the top `k` of so many `turns`."""

    def __post_init__(self) -> None:
        if self.probes < 1 or self.candidates < 1:  # FAISS would end the process
            raise ValueError(f"need probes and candidates >= 1, got {self.probes} and {self.candidates}")

    @property
    def meme_ids(self) -> tuple[str, ...]:
        """Ids in the order of the rows; `Ranking.memes` are positions here."""
        return self.index.meme_ids

    @property
    def lists(self) -> int:
        """Inverted lists of the index."""
        import faiss

        return faiss.extract_index_ivf(self.faiss).nlist

    def top_k(self, queries: np.ndarray, weights: Sequence[float], k: int) -> scoring.Ranking:
        """The K best memes of every turn: queries [turns, 4, dim] of `scoring.build_queries`.

        Approximate in which memes are found (see `tuned`), exact in scores, components and order.
        """
        exact, shape = np.asarray(weights, dtype=np.float64), (4, self.index.dim)
        if np.shape(queries)[1:] != shape or not np.isfinite(queries).all():
            raise ValueError(f"need finite queries [turns, 4, {shape[1]}], got {np.shape(queries)}")
        if exact.shape != (4,) or not np.isfinite(exact).all():
            raise ValueError(f"need four finite weights, got {weights!r}")
        few_memes = k < 1 or k * 8 > len(self.meme_ids)
        if self.faiss is None or few_memes or not len(queries) or not exact.any():
            return scoring.top_k(self.index, queries, weights, k)
        import faiss

        weighted = scoring.weigh(queries, weights)
        lists = faiss.SearchParametersIVF(nprobe=self.probes)
        refined = faiss.IndexRefineSearchParameters(k_factor=WIDTH, base_index_params=lists)
        projected = faiss.SearchParametersPreTransform(index_params=refined)
        _, near = self.faiss.search(weighted, max(self.candidates, 4 * k), params=projected)
        few = (near >= 0).sum(axis=1) < k
        if few.any():  # the lists looked into held fewer than k
            near[few, :k] = scoring.top_k(self.index, queries[few], weights, k).memes
        rounding = scoring.rounding_bound(self.index, queries, exact)
        chosen = []
        for query, memes in zip(weighted, near, strict=True):
            memes = np.sort(memes[memes >= 0])  # in the order of the file
            rough = scoring.to_float32(self.index.rows[memes]) @ query
            chosen.append(memes[rough >= np.partition(rough, -k)[-k] - rounding])
        turns = np.repeat(np.arange(len(chosen)), list(map(len, chosen)))
        return scoring.rank_candidates(self.index, queries, exact, turns, np.concatenate(chosen), k)

    __call__ = top_k

    def tuned(
        self, queries: np.ndarray, weights: Sequence[float], k: int = 10, recall: float = RECALL
    ) -> "LargeLibrary":
        """The same library, looking into the fewest lists that reach `recall` at K on these queries.

        Held against the exact search, some hundred turns of the kind to come make a sure figure. Where all
        lists do not reach it, more candidates are taken, at last every meme. Keep `probes` and `candidates`
        and set them with `dataclasses.replace` after the next `open_library`.
        """
        if self.faiss is None:
            return self
        if not len(queries):
            raise ValueError("recall is measured on queries: there are none")
        true = scoring.top_k(self.index, queries, weights, k)
        steps = {round(2 ** (i / 4)) for i in range(4 * self.lists.bit_length())}
        for candidates in CANDIDATES:
            for probes in sorted({min(step, self.lists) for step in steps}):
                tried = replace(self, probes=probes, candidates=candidates)
                if recall_at_k(tried.top_k(queries, weights, k), true) >= recall:
                    return tried
        return replace(self, faiss=None)

    def __str__(self) -> str:
        memes, known = f"{len(self.meme_ids):,} memes are kept on disk", self.measured
        if self.faiss is None:
            text = f"{memes}, and every one is compared with every turn"
            if known:
                text += f": the index ({self.kind}) does not find {RECALL:.0%} of the top {known['k']} "
                text += "of this run's turns"
            return f"{text}."
        lists = f"{self.probes} of {self.lists:,} lists are looked into for a turn"
        text = f"{memes} and searched through FAISS ({self.kind}): {lists}"
        if known is None:
            return f"{text}; the recall is not measured."
        top = f"{known['recall']:.1%} of the true top {known['k']}"
        return f"{text}, which finds {top}, measured on {known['turns']} of the run's turns."


def recall_at_k(found: scoring.Ranking, true: scoring.Ranking) -> float:
    """Share of the true top K that was found, 0-1, over all turns."""
    hits = (found.memes[:, :, None] == true.memes[:, None, :]).any(axis=1)
    return float(hits.mean())


def open_library(folder: Path) -> LargeLibrary:
    """Open a library memory-mapped, tuned as it was; without faiss, with a warning, every meme is compared.

    Raises `LibraryError` where there is none, or a damaged one.
    """
    try:
        state = json.loads((folder / STATE).read_text(encoding="utf-8"))
        ids, kind = tuple(state["ids"]), state["kind"]
        rows = np.memmap(folder / ROWS, dtype=np.float16, mode="r", shape=(len(ids), 4 * state["dim"]))
        library = LargeLibrary(scoring.MemeIndex(ids, rows), state["made_from"], folder, kind)
        if find_spec("faiss") is None and len(ids) >= FROM_MEMES:
            warnings.warn(NO_FAISS, stacklevel=2)
        if find_spec("faiss") is None or kind is None:
            return library
        import faiss

        # Mapped, the codes stay in the file until a list is looked into.
        index = faiss.read_index(str(folder / INDEX), faiss.IO_FLAG_MMAP_IFC)
        if (index.ntotal, index.d) != rows.shape:
            raise ValueError(f"{index.ntotal} x {index.d} indexed of {rows.shape}")
        library = replace(library, faiss=index)
        if not (folder / TUNING).is_file():
            return replace(library, probes=max(1, library.lists // 8))
        tuning = json.loads((folder / TUNING).read_text(encoding="utf-8"))
        if not tuning["probes"]:
            return replace(library, faiss=None, measured=tuning)
        return replace(library, probes=tuning["probes"], candidates=tuning["candidates"], measured=tuning)
    except (OSError, RuntimeError, ValueError, TypeError, KeyError) as error:
        raise LibraryError(f"{folder} holds no whole library ({error}); build it anew") from error


def index_type(memes: int, dims: int) -> str:
    """FAISS's name of the index for so many memes of `dims` projected dimensions.

    About 2 sqrt(n) lists of 4-bit codes, scanned in registers, and a byte a dimension to sort what they
    propose. Turns lie outside the cloud of the memes (S stands in them with a plus and with a minus): of a
    million memes (`tests/bench/bench_large.py`) a graph (HNSW32) compares 4 % with a turn for a recall of
    0.9, and an eighth to a fifth of the lists is looked into for 0.95, which only such cheap codes allow.
    """
    codes = dims // IN_ONE_CODE if dims % IN_ONE_CODE == 0 else dims
    return f"IVF{2 ** (1 + round(math.log2(math.sqrt(memes))))},PQ{codes}x4fs,Refine(SQ8)"


def build(
    folder: Path, blocks: Blocks, dim: int, *, seed: int = 13, like: LargeLibrary | None = None
) -> LargeLibrary:
    """Store rows [n, 4 * dim] block by block in a folder and index them, from `FROM_MEMES` memes on.

    Each quarter of a row is one of `MEME_SIDE`'s unit vectors, as `scoring.build_index` stacks them; ids are
    unique. With `like`, a library of the same embedder, its lists and codes are taken and nothing is trained.
    The same rows and seed give the same bytes on the same number of threads; on another number a few
    candidates may differ, never a score.
    """
    if like is not None and like.index.dim != dim:
        raise LibraryError(f"rows of dimension {dim} cannot take the lists of a library of {like.index.dim}")
    with _locked(folder):
        if (folder / STATE).exists():
            raise LibraryError(f"{folder} holds a library already: take another folder")
        return _build(folder, blocks, dim, seed, like=like)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Make the folder and wait until no other process builds there."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK).open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)  # the system lets go of it, also after a kill
        yield


def _build(
    folder: Path, blocks: Blocks, dim: int, seed: int, made_from: str = "", like: LargeLibrary | None = None
) -> LargeLibrary:
    for name in (STATE, TUNING, INDEX, ROWS):  # STATE first: without it the rest is no library
        (folder / name).unlink(missing_ok=True)
    ids = _write_rows(folder / ROWS, blocks, dim)
    kind = None
    if len(ids) >= FROM_MEMES and find_spec("faiss") is not None:
        kind = _write_index(folder, len(ids), 4 * dim, seed, like)
    state = {"ids": ids, "dim": dim, "kind": kind, "made_from": made_from}
    files.write_text(folder / STATE, json.dumps(state))
    return open_library(folder)


def _write_rows(path: Path, blocks: Blocks, dim: int) -> list[str]:
    """Store the blocks' rows as float16; the memes' ids."""
    ids: dict[str, None] = {}
    with path.open("wb") as file:
        for names, rows in blocks:
            names, rows, first = list(names), np.asarray(rows), len(ids)
            if rows.shape != (len(names), 4 * dim):
                raise LibraryError(f"need rows of shape {(len(names), 4 * dim)}, got {rows.shape}")
            ids.update(dict.fromkeys(names))
            if len(ids) != first + len(names) or not all(isinstance(name, str) for name in names):
                raise LibraryError("meme ids must be unique texts")
            step = max(1, BLOCK_BYTES // (16 * dim))
            for start in range(0, len(rows), step):
                file.write(_float16(rows[start : start + step], first + start).tobytes())
        file.flush()
        os.fsync(file.fileno())
    if not ids:
        raise LibraryError("a library needs at least one meme")
    return list(ids)


def _float16(rows: np.ndarray, first: int) -> np.ndarray:
    """Rows as they are stored, checked; `first` is the place of the first one."""
    with np.errstate(over="ignore"):
        small = rows.astype(np.float32)
        squares = np.square(small).reshape(len(small), 4, -1).sum(axis=2).max(axis=1)
    # Scores are cosines, and the bound of their rounding counts on lengths of 1.
    wrong = np.flatnonzero(~(squares <= scoring.LONGEST**2))  # NaN, too
    if len(wrong):
        raise LibraryError(
            f"row {first + wrong[0]} is not finite, or has a part of length {squares[wrong[0]] ** 0.5:.3g}: "
            "normalise it"
        )
    return small.astype(np.float16)


def _write_index(folder: Path, memes: int, width: int, seed: int, like: LargeLibrary | None) -> str:
    """Train an index, or empty that of `like`, add all rows and write it; FAISS's name of it."""
    import faiss

    if like is not None and like.kind is not None:
        kind, index = like.kind, faiss.read_index(str(like.folder / INDEX))
        index.reset()
    else:
        sample, dims = _sample(folder, memes, width, seed), min(DIMS, width)
        kind = index_type(memes, dims)
        codes = faiss.index_factory(dims, kind, faiss.METRIC_INNER_PRODUCT)
        projection = faiss.LinearTransform(width, dims, False)
        columns = fit_projection(sample, dims, seed)
        faiss.copy_array_to_vector(np.ascontiguousarray(columns.T).ravel(), projection.A)
        projection.is_trained = True
        # FAISS projects, not NumPy: its BLAS threads would spin on the cores that FAISS then searches with.
        index = faiss.IndexPreTransform(projection, codes)
        index.train(sample)
        del sample
    step = max(1, BLOCK_BYTES // (4 * width))
    # Read, not mapped: pages of a map would count as memory of this process, up to the whole file.
    with (folder / ROWS).open("rb", buffering=0) as file:
        for first in range(0, memes, step):
            rows = np.fromfile(file, dtype=np.float16, count=min(step, memes - first) * width)
            index.add(scoring.to_float32(rows).reshape(-1, width))
    faiss.write_index(index, str(folder / INDEX))
    with (folder / INDEX).open("rb") as file:
        os.fsync(file.fileno())
    return kind


def _sample(folder: Path, memes: int, width: int, seed: int) -> np.ndarray:
    """Some of the stored rows, float32 [n, 4 * dim]."""
    size = min(memes, SAMPLE_ROWS, SAMPLE_BYTES // (4 * width))
    drawn = np.sort(statistics.rng(seed, "large index").choice(memes, size, replace=False))
    out = np.empty((size, width), dtype=np.float32)
    with (folder / ROWS).open("rb", buffering=0) as file:
        for place, row in enumerate(drawn.tolist()):
            file.seek(2 * width * row)
            out[place] = np.fromfile(file, dtype=np.float16, count=width)
    return out


def fit_projection(sample: np.ndarray, dims: int, seed: int) -> np.ndarray:
    """[4 * dim, dims]: orthonormal directions that hold most of the sample's squared length, rotated.

    By subspace iteration (Halko et al. 2011), not centred: inner products are what counts. The rotation
    spreads what they hold evenly over the dimensions, as codes of equal length want it.
    """
    rng = statistics.rng(seed, "projection")
    directions = rng.standard_normal((sample.shape[1], dims), dtype=np.float32)
    for _ in range(ITERATIONS):
        directions = np.linalg.qr(sample.T @ (sample @ directions))[0]
    rotation = np.linalg.qr(rng.standard_normal((dims, dims)))[0].astype(np.float32)
    return directions @ rotation


def stored(
    usable: Sequence[Annotation],
    encode: scoring.Encode,
    profile: Profile,
    folder: Path,
    embedder: str,
) -> scoring.MemeIndex:
    """The library of `usable` memes kept in `folder`, built there where it is not or was made from others.

    One that has grown is built anew: lists trained on its beginning would make a run's memes depend on how
    its inputs came about.
    """
    settings = [FORM, embedder, profile.retrieval.centring, profile.seed]
    made_from = hashlib.sha256(json.dumps(settings).encode())
    for annotation in usable:
        texts = (getattr(annotation, name) for name in scoring.MEME_SIDE)
        made_from.update(json.dumps([annotation.meme_id, *texts]).encode())
    digest = made_from.hexdigest()
    with _locked(folder):
        library = _reusable(folder, digest)
        if library is None:
            means = None
            if profile.retrieval.centring == "attribute" and len(usable) > 1:
                sums = sum(rows.sum(axis=0, dtype=np.float64) for _, rows in _encoded(usable, encode))
                means = (sums / len(usable)).astype(np.float32).reshape(len(scoring.MEME_SIDE), -1)
            dim = encode([usable[0].s_plus], "document").shape[1]
            library = _build(folder, _encoded(usable, encode, means), dim, profile.seed, made_from=digest)
    return replace(library.index, search=library)


def _reusable(folder: Path, digest: str) -> LargeLibrary | None:
    """The library in the folder if it is whole and was made from the same; else None."""
    if not (folder / STATE).is_file():
        return None
    try:
        library = open_library(folder)
    except LibraryError as error:
        warnings.warn(f"the stored library is made again from the memes' texts: {error}", stacklevel=4)
        return None
    made_without_faiss = library.kind is None and find_spec("faiss") is not None
    return None if library.made_from != digest or made_without_faiss else library


def _encoded(
    usable: Sequence[Annotation], encode: scoring.Encode, means: np.ndarray | None = None
) -> Iterator[tuple[list[str], np.ndarray]]:
    """Blocks of ids and stacked rows; `means` [4, dim] are taken off."""
    for start in range(0, len(usable), MEMES_AT_ONCE):
        part = usable[start : start + MEMES_AT_ONCE]
        sides = [encode([getattr(a, name) for a in part], "document") for name in scoring.MEME_SIDE]
        if means is not None:
            sides = [scoring.centre(side, mean) for side, mean in zip(sides, means, strict=True)]
        yield [a.meme_id for a in part], np.hstack(sides)


def tune(index: scoring.MemeIndex, queries: np.ndarray, profile: Profile) -> scoring.MemeIndex:
    """A stored index, looking into the fewest lists that find `RECALL` of the top `DEPTH` memes.

    Chosen on up to `TURNS` seeded turns of the run's `queries`, measured on as many others, and kept beside
    the library.
    """
    library = index.search
    if not isinstance(library, LargeLibrary) or library.faiss is None:
        return index
    k, weights = max(DEPTH, profile.retrieval.top_k), profile.retrieval.weights
    rng = statistics.rng(profile.seed, "turns that the search is tuned on")
    drawn = queries[rng.permutation(len(queries))[: 2 * TURNS]]
    others = drawn[1::2] if len(drawn) > 1 else drawn
    tuned = library.tuned(drawn[::2], weights, k)
    recall = recall_at_k(tuned.top_k(others, weights, k), scoring.top_k(library.index, others, weights, k))
    measured = {"k": k, "turns": len(others), "recall": recall}
    chosen = {"probes": tuned.probes, "candidates": tuned.candidates} if tuned.faiss else {"probes": 0}
    files.write_json(library.folder / TUNING, measured | chosen)
    return replace(index, search=replace(tuned, measured=measured))
