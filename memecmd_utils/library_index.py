"""A large library in its run's own folder: made once, reused, searched through FAISS (`large_index`).

`selection.index_library` comes here from `large_index_build.FROM_MEMES` usable memes on. What it gets back
is an ordinary `MemeIndex` whose rows stay on disk as float16 and whose `search` is a `LibrarySearch`.
"""

import fcntl
import hashlib
import json
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from memecmd_utils import large_index_build, seeds, storage
from memecmd_utils.large_index import NO_FAISS, LargeIndex, open_index, recall_at_k
from memecmd_utils.profiles import Profile
from memecmd_utils.retrieval import (
    MEME_SIDE,
    QUERY_SIDE,
    MemeIndex,
    Ranking,
    build_queries,
    centre,
    pair_components,
)
from memecmd_utils.schemas import Annotation, Dialogue
from memecmd_utils.stored_library import BLOCK_BYTES, LibraryError, flat_top_k, read_state, to_float32

FOLDER = "library_index"
"""Its name in a run's folder."""
MADE_FROM, TUNING, LOCK = "made_from.txt", "tuning.json", ".lock"
FORM = 1
"""To be raised where rows are made in another way: then stored libraries are built anew."""
MEMES_AT_ONCE = 8_192
TURNS, DEPTH, RECALL = 64, 10, 0.97
"""Turns that the number of lists is chosen on (and as many others that it is measured on), K and recall."""
CANDIDATES = (96, 192, 384, 768, 1536)
"""Tried in turn where all lists do not reach the recall; after the last every meme is compared."""

Encode = Callable[[Sequence[str], str], np.ndarray]


@dataclass(frozen=True)
class LibrarySearch:
    """`MemeIndex.search` of a stored library. As text it says in one sentence how it searches."""

    large: LargeIndex
    said: str

    def __call__(self, queries: np.ndarray, weights: Sequence[float], k: int) -> Ranking:
        """The K best memes of every turn (`LargeIndex.top_k`): queries [turns, 4, dim]."""
        library = self.large.library
        if k >= 1 and not np.any(weights):
            # Every meme ties: all pairs would be scored, to be ordered by id in the end.
            chosen = np.tile(np.argsort(library.id_ranks)[:k], (len(queries), 1))
            return Ranking(chosen, np.zeros(chosen.shape), pair_components(library.index, queries, chosen))
        return self.large.top_k(queries, weights, k)

    def __str__(self) -> str:
        return self.said


def stored(
    usable: Sequence[Annotation], encode: Encode, profile: Profile, folder: Path, embedder: str
) -> MemeIndex:
    """The library of `usable` memes kept in `folder`, built there where it is not or was made from others.

    Memes are encoded `MEMES_AT_ONCE` at a time, twice where vectors are centred (a mean comes first).
    A library that has grown is built anew: lists trained on its beginning would make a run's memes
    depend on how its inputs came about. Without faiss it warns and every meme is compared.
    """
    digest = made_from(usable, profile, embedder)
    with _locked(folder):
        large = _reused(folder, digest)
        if large is None:
            _make(usable, encode, profile, folder)
            storage.write_text(folder / MADE_FROM, digest)
            large = open_index(folder)
    if "faiss" not in large.library.state and find_spec("faiss") is None:
        warnings.warn(NO_FAISS, stacklevel=3)
    return _indexed(large, _read_tuning(folder))


def made_from(usable: Sequence[Annotation], profile: Profile, embedder: str) -> str:
    """SHA-256 of all that a stored library depends on: texts and order, embedder, centring, seed."""
    digest = hashlib.sha256(json.dumps([FORM, embedder, profile.centring, profile.seed]).encode())
    for one in usable:
        digest.update(json.dumps([one.meme_id, *(getattr(one, name) for name in MEME_SIDE)]).encode())
    return digest.hexdigest()


def tuned(index: MemeIndex, dialogues: Sequence[Dialogue], encode: Encode, profile: Profile) -> MemeIndex:
    """The same index, looking into the fewest lists that find `RECALL` of the top `DEPTH` memes.

    Chosen on up to `TURNS` seeded turns of `dialogues`, measured on as many others, and kept beside the
    library for those that open it later. An index in memory is given back as it is.
    """
    search = index.search
    if not isinstance(search, LibrarySearch) or search.large.faiss is None:
        return index
    queries = _sample(dialogues, encode, profile)
    if not len(queries):
        return index
    large, k = search.large, max(DEPTH, profile.top_k)
    chosen_on, others = queries[::2], queries[1::2] if len(queries) > 1 else queries
    kept = {"k": k, "turns": len(others), "candidates": 0, "probes": 0, "recall": 1.0}
    for candidates in CANDIDATES:
        try:
            found = replace(large, candidates=candidates).tuned(chosen_on, profile.weights, k, RECALL)
        except LibraryError:
            continue  # more candidates are tried, and it is said where none suffice
        true = flat_top_k(large.library, others, profile.weights, k)
        recall = recall_at_k(found.top_k(others, profile.weights, k), true)
        kept |= {"candidates": candidates, "probes": found.probes, "recall": recall}
        break
    storage.write_json(large.library.folder / TUNING, kept)
    return _indexed(large, kept)


def products(index: MemeIndex, asked: np.ndarray) -> np.ndarray:
    """Weighted queries [turns, 4 * dim] times every row: float32 [turns, memes].

    Rows on disk are taken to float32 in blocks: a product with float16 would copy all of them.
    """
    if index.rows.dtype != np.float16:
        return asked @ index.rows.T
    out = np.empty((len(asked), len(index.rows)), dtype=np.float32)
    step = max(1, BLOCK_BYTES // (4 * index.rows.shape[1]))
    for start in range(0, len(index.rows), step):
        out[:, start : start + step] = asked @ to_float32(index.rows[start : start + step]).T
    return out


# --- making and reusing ---------------------------------------------------------------------------------


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Wait until no other process builds here."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK).open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _reused(folder: Path, digest: str) -> LargeIndex | None:
    """The library in the folder if it is whole and was made from the same; else None."""
    path = folder / MADE_FROM
    if not path.is_file() or path.read_text(encoding="utf-8") != digest:
        return None
    try:
        if "faiss" not in read_state(folder) and find_spec("faiss") is not None:
            return None  # made where faiss was not installed
        return open_index(folder)
    except LibraryError as error:
        warnings.warn(f"the stored library is made again from the memes' texts: {error}", stacklevel=4)
        return None


def _make(usable: Sequence[Annotation], encode: Encode, profile: Profile, folder: Path) -> None:
    """Build the library. `MADE_FROM` goes first and is written last: what is killed between is no library."""
    (folder / MADE_FROM).unlink(missing_ok=True)
    for path in folder.iterdir():
        if path.name != LOCK:
            path.unlink()
    dim = encode([usable[0].s_plus], "document").shape[1]
    means: Sequence[np.ndarray | None] = [None] * len(MEME_SIDE)
    if profile.centring == "attribute" and len(usable) > 1:
        means = [_mean(usable, name, encode) for name in MEME_SIDE]
    # `build` would warn as well where there is no faiss.
    kind = "auto" if find_spec("faiss") is not None else None
    large_index_build.build(folder, _blocks(usable, encode, means), dim, seed=profile.seed, index=kind)


def _parts(usable: Sequence[Annotation]) -> Iterator[Sequence[Annotation]]:
    for start in range(0, len(usable), MEMES_AT_ONCE):
        yield usable[start : start + MEMES_AT_ONCE]


def _mean(usable: Sequence[Annotation], name: str, encode: Encode) -> np.ndarray:
    sums = [
        encode([getattr(a, name) for a in p], "document").sum(axis=0, dtype=np.float64)
        for p in _parts(usable)
    ]
    return (sum(sums) / len(usable)).astype(np.float32)


def _blocks(
    usable: Sequence[Annotation], encode: Encode, means: Sequence[np.ndarray | None]
) -> Iterator[tuple[list[str], np.ndarray]]:
    for part in _parts(usable):
        blocks = []
        for name, mean in zip(MEME_SIDE, means, strict=True):
            vectors = encode([getattr(a, name) for a in part], "document")
            blocks.append(vectors if mean is None else centre(vectors, mean))
        yield [a.meme_id for a in part], np.hstack(blocks)


# --- the number of lists --------------------------------------------------------------------------------


def _sample(dialogues: Sequence[Dialogue], encode: Encode, profile: Profile) -> np.ndarray:
    """Queries [n, 4, dim] of up to 2 * `TURNS` seeded turns, as `selection.score_dialogues` makes them."""
    kept = [s for dialogue in dialogues for s in dialogue.summaries if not s.unscored]
    if not kept:
        return np.empty((0, 4, 0), dtype=np.float32)
    rng = seeds.rng(profile.seed, "turns that the search is tuned on")
    drawn = rng.permutation(len(kept))[: 2 * TURNS]
    parts = []
    for field in dict.fromkeys(QUERY_SIDE):
        vectors = encode([getattr(summary, field) for summary in kept], "query")
        parts.append((centre(vectors) if profile.centring == "attribute" else vectors)[drawn])
    return build_queries(*parts)


def _read_tuning(folder: Path) -> dict | None:
    path = folder / TUNING
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def _tuned_as(large: LargeIndex, kept: dict | None) -> tuple[LargeIndex, str]:
    """The library searched as was chosen (`kept`), and the sentence that says so."""
    memes = f"{len(large.meme_ids):,} memes are kept on disk"
    if large.faiss is None:
        return large, f"{memes}, and every one is compared with every turn."
    kind = large.library.state["type"]
    if kept is None:
        lists = f"{large.probes} of {large.lists:,} lists are looked into for a turn"
        return large, f"{memes} and searched through FAISS ({kind}): {lists}; the recall is not measured."
    if not kept["probes"]:
        why = f"the index ({kind}) does not find {RECALL:.0%} of the top {kept['k']} of this run's turns"
        return replace(large, faiss=None), f"{memes}, and every one is compared with every turn: {why}."
    found = replace(large, probes=kept["probes"], candidates=kept["candidates"])
    lists = f"{found.probes} of {found.lists:,} lists are looked into for a turn"
    recall = (
        f"{kept['recall']:.1%} of the true top {kept['k']}, measured on {kept['turns']} of the run's turns"
    )
    return found, f"{memes} and searched through FAISS ({kind}): {lists}, which finds {recall}."


def _indexed(large: LargeIndex, kept: dict | None) -> MemeIndex:
    return replace(large.library.index, search=LibrarySearch(*_tuned_as(large, kept)))
