"""A library's vectors on disk: float16 rows read memory-mapped, more appended without a rewrite.

A folder holds `rows.f16` (the rows one after another), `ids.txt` (one id a line) and `library.json`, which
says how much of both counts. It is written last and at once, so what a killed writer left behind is not seen.
"""

import fcntl
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from memecmd_utils import storage
from memecmd_utils.errors import MemecmdError
from memecmd_utils.retrieval import MemeIndex, Ranking, rank_candidates, rounding_bound, weigh

ROWS, IDS, STATE = "rows.f16", "ids.txt", "library.json"
BLOCK_BYTES = 16 << 20
"""Bytes of rows that are taken to float32 at a time."""
LONGEST = 1.01
"""Length that a unit vector may have after rounding."""
MOST_TIES = 1 << 22
"""Candidates kept at once (20 bytes each): where more memes tie, fewer turns are asked together."""

Blocks = Iterable[tuple[Sequence[str], np.ndarray]]
"""Meme ids and their stacked rows [n, 4 * dim], part by part: each quarter of a row is a unit vector, or
shorter, or zeros where a meme lacks that text. One block may be a memory map of the whole library."""


class LibraryError(MemecmdError, ValueError):
    """The folder holds no whole library, or what is to be added does not fit."""


@dataclass(frozen=True, eq=False)
class StoredLibrary:
    """A library on disk: `index.rows` is a memory map of float16, `id_ranks` the order of the ids."""

    folder: Path
    state: dict
    index: MemeIndex = field(repr=False)
    id_ranks: np.ndarray = field(repr=False)

    def __reduce__(self):
        """A copy, also one sent to another process, opens the folder: rows would else travel with it."""
        return open_library, (self.folder,)


def to_float32(rows: np.ndarray) -> np.ndarray:
    """Finite float16 numbers as float32, exactly, about five times as fast as `astype` without F16C.

    Sign and digits are shifted to where float32 has them; 2**112 is what the exponents' biases differ by.
    """
    bits = np.ascontiguousarray(rows).view(np.int16).astype(np.int32)  # keeps the sign in the highest bit
    bits <<= 13
    bits &= np.int32(-0x70002000)
    out = bits.view(np.float32)
    out *= np.float32(2.0**112)
    return out


def read_state(folder: Path) -> dict:
    """What `library.json` says; raises `LibraryError` where it is missing or damaged."""
    try:
        state = json.loads((folder / STATE).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise LibraryError(f"{folder} holds no whole library ({error}); build it anew") from error
    counts = [state.get(key) for key in ("memes", "dim", "id_bytes")] if isinstance(state, dict) else [None]
    if any(type(count) is not int or count < 1 for count in counts):
        raise LibraryError(f"{folder}: {STATE} does not count memes, dim and id_bytes; build it anew")
    return state


def open_library(folder: Path) -> StoredLibrary:
    """Open a stored library: its rows stay on disk until they are used."""
    state = read_state(folder)
    count, width = state["memes"], 4 * state["dim"]
    try:
        rows = np.memmap(folder / ROWS, dtype=np.float16, mode="r", shape=(count, width))
        with (folder / IDS).open("rb") as handle:
            ids = handle.read(state["id_bytes"]).decode("utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise LibraryError(f"the library in {folder} is damaged ({error}); build it anew") from error
    if len(ids) != count:
        raise LibraryError(f"{folder}: {len(ids)} ids for {count} memes; build it anew")
    # As `retrieval.id_ranks`, whose array gives every id the room of the longest.
    by_id = np.empty(count, dtype=np.int64)
    by_id[sorted(range(count), key=ids.__getitem__)] = np.arange(count)
    return StoredLibrary(folder, state, MemeIndex(tuple(ids), rows), by_id)


@contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Make the folder and hold it: `LibraryError` while another process writes a library there."""
    _not_foreign(folder)
    with (folder / ROWS).open("ab") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the system lets go of it, also after a kill
        except BlockingIOError as error:
            raise LibraryError(f"another process writes the library in {folder}") from error
        yield


def _not_foreign(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    if (folder / IDS).exists() and not (folder / ROWS).exists():
        raise LibraryError(f"{folder} holds an {IDS} that belongs to no library: take another folder")


def append(folder: Path, blocks: Blocks, dim: int) -> dict:
    """Write blocks after what the library holds and return the state that counts them; it is not yet saved.

    Raises `LibraryError` for an id that is there already or is not one line of text, for rows that are not
    [n, 4 * dim] of finite numbers with quarters of length <= 1, and for a folder with an `ids.txt` of
    another kind.
    """
    _not_foreign(folder)
    state = read_state(folder) if (folder / STATE).exists() else {"memes": 0, "dim": dim, "id_bytes": 0}
    if state["dim"] != dim:
        raise LibraryError(f"rows of dimension {dim} for a library of {state['dim']}")
    seen = set(open_library(folder).index.meme_ids) if state["memes"] else set()
    with (folder / ROWS).open("ab") as rows_file, (folder / IDS).open("ab") as ids_file:
        # What a killed writer left behind what counts goes first.
        rows_file.truncate(state["memes"] * 8 * dim)
        ids_file.truncate(state["id_bytes"])
        for ids, rows in blocks:
            ids, rows = list(ids), np.asarray(rows)
            if rows.shape != (len(ids), 4 * dim):
                raise LibraryError(f"need rows of shape {(len(ids), 4 * dim)}, got {rows.shape}")
            if len(set(ids)) != len(ids) or not seen.isdisjoint(ids):
                raise LibraryError("meme ids must be unique")
            lines = b"".join(map(_line, ids))
            step = max(1, BLOCK_BYTES // (16 * dim))
            for start in range(0, len(rows), step):
                rows_file.write(_float16(rows[start : start + step], state["memes"] + start).tobytes())
            ids_file.write(lines)
            seen.update(ids)
            state["memes"] += len(ids)
        for handle in (rows_file, ids_file):
            handle.flush()
            os.fsync(handle.fileno())
        state["id_bytes"] = ids_file.tell()
    if not state["memes"]:
        raise LibraryError("a library needs at least one meme")
    return state


def _line(name: str) -> bytes:
    """A meme id as it is stored, checked."""
    if isinstance(name, str) and name.splitlines() == [name]:
        with suppress(UnicodeEncodeError):  # half of a surrogate pair
            return f"{name}\n".encode()
    raise LibraryError(f"a meme id must be one line of text, not {name!r}")


def _float16(rows: np.ndarray, first: int) -> np.ndarray:
    """Rows as they are stored, checked; `first` is the place of the first one."""
    with np.errstate(over="ignore"):
        small = rows.astype(np.float32)
        squares = np.square(small).reshape(len(small), 4, -1).sum(axis=2).max(axis=1)
    # Scores are cosines, and the bound of their rounding counts on lengths of 1.
    wrong = np.flatnonzero(~(squares <= LONGEST**2))  # NaN, too
    if len(wrong):
        finite = bool(np.isfinite(small[wrong[0]]).all())
        why = f"a part of length {squares[wrong[0]] ** 0.5:.3g}: normalise it" if finite else "is not finite"
        raise LibraryError(f"row {first + wrong[0]} {'has ' * finite}{why}")
    return small.astype(np.float16)


def save_state(folder: Path, state: dict) -> None:
    """Make what was written count, in one step."""
    storage.write_json(folder / STATE, state)


def checked(library: StoredLibrary, queries: np.ndarray, weights: Sequence[float], k: int) -> np.ndarray:
    """Weights in float64, if `queries`, `weights` and `k` suit the library; else `ValueError`."""
    shape, dim = np.shape(queries), library.index.dim
    if len(shape) != 3 or shape[1:] != (4, dim) or not isinstance(queries, np.ndarray):
        raise ValueError(f"need an array of queries [turns, 4, {dim}], got {shape}")
    if not np.isfinite(queries).all():
        raise ValueError("queries must be finite")
    exact = np.asarray(weights, dtype=np.float64)
    if exact.shape != (4,) or not np.isfinite(exact).all():
        raise ValueError(f"need four finite weights, got {weights!r}")
    if k < 1:
        raise ValueError("top_k needs at least one meme and k >= 1")
    return exact


def spread(index: MemeIndex, queries: np.ndarray, weights: np.ndarray) -> float:
    """`rounding_bound`, also for queries whose parts are longer than unit vectors."""
    longest = np.sqrt(np.square(queries, dtype=np.float64).sum(axis=2).max(initial=1.0))
    return rounding_bound(index, weights * longest)


def flat_top_k(
    library: StoredLibrary, queries: np.ndarray, weights: Sequence[float], k: int, block: int = 256
) -> Ranking:
    """Exact top K of `queries` [turns, 4, dim] over all stored rows: `retrieval.top_k` in blocks of memes.

    Products are float32 on rows stored as float16; a running cut keeps the candidates few, and they are
    ranked in float64, so neither the size of a block nor the number of threads changes the result.
    """
    exact = checked(library, queries, weights, k)
    k = min(k, len(library.index.meme_ids))
    parts = [
        part
        for start in range(0, len(queries), block)
        for part in _flat_batch(library, queries[start : start + block], exact, k)
    ]
    if not parts:
        return Ranking(np.empty((0, k), dtype=np.int64), np.empty((0, k)), np.empty((0, k, 4)))
    return Ranking(
        *(np.concatenate([getattr(p, name) for p in parts]) for name in ("memes", "scores", "components"))
    )


def _flat_batch(library: StoredLibrary, queries: np.ndarray, weights: np.ndarray, k: int) -> list[Ranking]:
    index, asked = library.index, weigh(queries, weights)
    rounding = spread(index, queries, weights)
    best = np.full((len(asked), k), -np.inf, dtype=np.float32)
    turns, memes, scores = (np.empty(0, dtype=kind) for kind in (np.int64, np.int64, np.float32))
    step = max(k, BLOCK_BYTES // (4 * index.rows.shape[1]))
    for start in range(0, len(index.meme_ids), step):
        rough = asked @ to_float32(index.rows[start : start + step]).T
        new = rough
        if rough.shape[1] > k:
            new = -np.partition(-rough, k - 1, axis=1)[:, :k]
        best = -np.partition(-np.hstack([best, new]), k - 1, axis=1)[:, :k]
        cut = best.min(axis=1) - rounding
        row, column = np.nonzero(rough >= cut[:, None])
        turns, memes = np.concatenate([turns, row]), np.concatenate([memes, column + start])
        scores = np.concatenate([scores, rough[row, column]])
        kept = scores >= cut[turns]  # the cut has risen since they were found
        turns, memes, scores = turns[kept], memes[kept], scores[kept]
        if len(turns) > max(MOST_TIES, 2 * k * len(asked)) and len(asked) > 1:
            half = len(asked) // 2
            return [
                part
                for some in (queries[:half], queries[half:])
                for part in _flat_batch(library, some, weights, k)
            ]
    order = np.argsort(turns, kind="stable")
    return [rank_candidates(index, queries, weights, turns[order], memes[order], library.id_ranks, k)]
