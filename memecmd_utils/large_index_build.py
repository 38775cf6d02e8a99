"""Build and extend a library for `large_index`, out of core: a block of rows in memory at a time.

From `FROM_MEMES` memes on there is a FAISS index: the stacked vectors, projected on the directions that hold
most of them, in inverted lists of 4-bit product codes, with one byte a dimension beside them.
"""

import math
import warnings
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from memecmd_utils import seeds, storage
from memecmd_utils.large_index import CANDIDATES, NO_FAISS, PROJECTION, linear, project, read_index
from memecmd_utils.stored_library import (
    ROWS,
    STATE,
    Blocks,
    LibraryError,
    append,
    only_writer,
    read_state,
    save_state,
)

FROM_MEMES = 100_000
"""Below this every meme is compared: exact, and fast enough."""
SAMPLE_BYTES = 512 << 20
SAMPLE_ROWS = 65_536
"""The sample that projection, lists and codes are trained on: at most so many float32 bytes and rows."""
BLOCK_BYTES = 64 << 20
"""Float32 bytes of rows that are projected at a time."""
DIMS, IN_ONE_CODE = 384, 3
"""Dimensions kept of the stacked vectors, and how many of them one 4-bit code stands for."""
ITERATIONS = 4
NO_INDEX = (
    "{}: {} memes without an index, each is compared: build(another folder, "
    "[(library.index.meme_ids, library.index.rows)], library.index.dim) of open_library makes one"
)


def index_type(memes: int, dims: int) -> str | None:
    """FAISS's name of the index for so many memes of `dims` projected dimensions; None: no index.

    About 2 sqrt(n) lists of 4-bit codes, scanned in registers, and a byte a dimension to sort what they
    propose. Measured on a million memes of real captions (`tests/bench/bench_large.py`) and on a sixth of
    them: turns lie outside the cloud of the memes (S stands in them with a plus and with a minus), so a
    graph (HNSW32) has to compare 4 % of the memes with a turn for a recall of 0.9, and of the lists an eighth
    to a fifth has to be looked into for 0.95, which only such cheap codes allow. The 384 directions that
    hold most of the four blocks together rank as well as the 128 of each block (512) do: the blocks of a
    meme are about the same thing. Rotated, so that all hold alike, a code can stand for three of them.
    """
    if memes < FROM_MEMES:
        return None
    return f"IVF{2 ** (1 + round(math.log2(math.sqrt(memes))))},PQ{_codes(dims)}x4fs,Refine(SQ8)"


def _codes(dims: int) -> int:
    return dims // IN_ONE_CODE if dims % IN_ONE_CODE == 0 else dims


def build(
    folder: Path, blocks: Blocks, dim: int, *, seed: int = 13, dims: int = DIMS, index: str | None = "auto"
) -> None:
    """Store rows [n, 4 * dim] block by block in an empty folder and index them.

    Each quarter of a row is one of `MEME_SIDE`'s unit vectors, as `retrieval.build_index` stacks them; ids
    are unique lines of text. `dims` are kept of all four together. `index` is a FAISS name of this form,
    `auto` for `index_type`, None for no index. The library appears at the end in one step: a killed build
    leaves none, and is simply repeated. The same rows and seed give the same bytes on the same number of
    threads; on another number FAISS's k-means may differ in the last places, and with it a few candidates,
    never a score.
    """
    if min(dim, dims) < 1:
        raise ValueError(f"need dim and dims >= 1, got {dim} and {dims}")
    dims = min(dims, 4 * dim)
    if index not in ("auto", None) and find_spec("faiss") is not None:
        _empty(index, dims)  # what does not work is said before the rows are written
    with only_writer(folder):
        if (folder / STATE).exists():
            raise LibraryError(f"{folder} holds a library already: extend it, or take another folder")
        state = append(folder, blocks, dim)
        name = index_type(state["memes"], dims) if index == "auto" else index
        if name and find_spec("faiss") is None:
            warnings.warn(NO_FAISS, stacklevel=2)
            name = None
        if name:
            _index(folder, state, name, dims, seed)
        save_state(folder, state)
        _tidy(folder, state)


def extend(folder: Path, blocks: Blocks) -> None:
    """Add memes to a library: lists and codes stay as trained, nothing is built anew.

    Until the last step the library is the old one, also when this is killed. An index is added to only where
    there is one: a library that has grown past `FROM_MEMES` without one is said to need a build.
    """
    read_state(folder)
    with only_writer(folder):
        before = read_state(folder)
        made = None
        if "faiss" in before:
            if find_spec("faiss") is None:
                raise LibraryError(f"the library in {folder} has an index, and {NO_FAISS.partition(':')[0]}")
            made, projection = read_index(folder, before)
        state = append(folder, blocks, before["dim"])
        if made is not None:
            _add(folder, made, projection, before["memes"], state)
        elif state["memes"] >= FROM_MEMES:
            warnings.warn(NO_INDEX.format(folder, state["memes"]), stacklevel=2)
        save_state(folder, state)
        _tidy(folder, state)


def _empty(name: str, dims: int) -> object:
    """FAISS's untrained index for `dims` dimensions, of the form that is asked and ranked here."""
    import faiss

    try:
        made = faiss.index_factory(dims, name, faiss.METRIC_INNER_PRODUCT)
        faiss.extract_index_ivf(made)
    except RuntimeError as error:
        raise LibraryError(f"{name!r} is no inverted file of {dims} dimensions: {error}") from error
    if not isinstance(made, faiss.IndexRefine):
        raise LibraryError(f"{name!r} does not refine: take a form such as {index_type(FROM_MEMES, dims)}")
    return made


def _index(folder: Path, state: dict, name: str, dims: int, seed: int) -> None:
    import faiss

    made = _empty(name, dims)
    lists = faiss.extract_index_ivf(made).nlist
    sample = _sample(folder, state, seed)
    if len(sample) < max(lists, 16):  # of 16 words are the codes of 4 bits
        raise LibraryError(f"{len(sample)} memes are too few to train {name!r}")
    projection = fit_projection(sample, dims, seed)
    with storage.atomic_path(folder / PROJECTION) as part:
        np.save(part, projection)
    projection = linear(projection)
    made.train(project(sample, projection))
    del sample
    state |= {"type": name, "candidates": CANDIDATES, "probes": max(1, lists // 8)}
    _add(folder, made, projection, 0, state)


def _tidy(folder: Path, state: dict) -> None:
    """Delete the index before this one, and what killed writers left."""
    names = ("index-*.faiss", ".index-*.part*", f".{PROJECTION}.*.part*", f".{STATE}.*.part*")
    for path in [path for name in names for path in folder.glob(name)]:
        if path.name != state.get("faiss"):
            path.unlink(missing_ok=True)


def fit_projection(sample: np.ndarray, dims: int, seed: int) -> np.ndarray:
    """[4 * dim, dims]: orthonormal directions that hold most of the sample's squared length, rotated.

    By subspace iteration (Halko et al. 2011). Not centred: inner products are what counts, and taking a
    mean off would change them. The rotation at random spreads what they hold evenly over the dimensions,
    as codes of equal length want it.
    """
    rng = seeds.rng(seed, "projection")
    found = rng.standard_normal((sample.shape[1], dims), dtype=np.float32)
    for _ in range(ITERATIONS):
        found = np.linalg.qr(sample.T @ (sample @ found))[0]
    rotation = np.linalg.qr(rng.standard_normal((dims, dims)))[0].astype(np.float32)
    return np.ascontiguousarray(found @ rotation)


def _sample(folder: Path, state: dict, seed: int) -> np.ndarray:
    width, memes = 4 * state["dim"], state["memes"]
    size = min(memes, SAMPLE_ROWS, SAMPLE_BYTES // (4 * width))
    drawn = np.sort(seeds.rng(seed, "large index").choice(memes, size, replace=False))
    out = np.empty((size, width), dtype=np.float32)
    with (folder / ROWS).open("rb", buffering=0) as handle:
        for place, row in enumerate(drawn.tolist()):
            handle.seek(2 * width * row)
            out[place] = np.fromfile(handle, dtype=np.float16, count=width)
    return out


def _add(folder: Path, made, projection: object, start: int, state: dict) -> None:
    """Add rows from `start` on and write the index under a new name, which `state` then says."""
    import faiss

    memes, width = state["memes"], 4 * state["dim"]
    # Read, not mapped: pages of a map would count as memory of this process, up to the whole file.
    with (folder / ROWS).open("rb", buffering=0) as handle:
        handle.seek(2 * width * start)
        step = max(1, BLOCK_BYTES // (4 * width))
        for first in range(start, memes, step):
            count = min(step, memes - first)
            rows = np.fromfile(handle, dtype=np.float16, count=count * width).reshape(count, width)
            made.add(project(rows, projection))
    state["faiss"] = f"index-{memes}.faiss"
    with storage.atomic_path(folder / state["faiss"]) as part:
        faiss.write_index(made, str(part))
