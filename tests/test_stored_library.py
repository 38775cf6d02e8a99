import pickle
from pathlib import Path

import numpy as np
import pytest
from made_vectors import WEIGHTS, blocks, rows, turns, unit

from memecmd_utils import retrieval, stored_library
from memecmd_utils.stored_library import LibraryError, append, flat_top_k, open_library, save_state

DIM = 16


def store(folder: Path, ids: list[str], stacked: np.ndarray) -> stored_library.StoredLibrary:
    save_state(folder, append(folder, blocks(ids, stacked), stacked.shape[1] // 4))
    return open_library(folder)


def same(a: retrieval.Ranking, b: retrieval.Ranking) -> bool:
    return all(np.array_equal(getattr(a, n), getattr(b, n)) for n in ("memes", "scores", "components"))


@pytest.mark.parametrize("block_bytes", [1, 40 * 256, 1 << 30])
@pytest.mark.parametrize("block", [1, 7, 256])
def test_the_stored_library_ranks_as_the_one_in_memory(tmp_path, monkeypatch, block_bytes, block) -> None:
    ids, stacked = rows(500)
    stacked[100:300] = stacked[0]  # 201 memes tie: by id
    library = store(tmp_path, ids, stacked)
    assert library.index.rows.dtype == np.float16 and isinstance(library.index.rows, np.memmap)
    monkeypatch.setattr(stored_library, "BLOCK_BYTES", block_bytes)
    index = retrieval.MemeIndex(tuple(ids), stacked)
    queries = turns(20)
    queries[3] = stacked[0].reshape(4, DIM) * np.array([1, -1, 1, 1], dtype=np.float32)[:, None]
    for weights in (WEIGHTS, (1, 0, 0, 0), (0.2, -0.5, 0.1, 0), (0, 0, 0, 0)):
        for k in (1, 3, 50, 1000):
            expected = retrieval.top_k(index, queries, weights, k)
            assert same(flat_top_k(library, queries, weights, k, block=block), expected)


def test_no_turns_and_k_below_one(tmp_path) -> None:
    library = store(tmp_path, *rows(10))
    assert flat_top_k(library, turns(0), WEIGHTS, 3).components.shape == (0, 3, 4)
    with pytest.raises(ValueError, match="k >= 1"):
        flat_top_k(library, turns(1), WEIGHTS, 0)


def test_every_finite_float16_is_turned_exactly() -> None:
    numbers = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    numbers = numbers[np.isfinite(numbers)]
    got = stored_library.to_float32(numbers)
    assert np.array_equal(got.view(np.int32), numbers.astype(np.float32).view(np.int32))


def test_float16_rows_stand_within_their_rounding_of_the_scores(tmp_path) -> None:
    fine = unit(np.random.default_rng(1), 300, 4, DIM).reshape(300, -1)
    ids = [f"m{i:03d}" for i in range(300)]
    got = flat_top_k(store(tmp_path, ids, fine), turns(9), WEIGHTS, 3)
    true = retrieval.top_k(retrieval.MemeIndex(tuple(ids), fine), turns(9), WEIGHTS, 3)
    assert np.abs(got.scores - true.scores).max() < 2**-11 * sum(WEIGHTS)


def test_what_is_appended_stands_after_what_was_there(tmp_path) -> None:
    ids, stacked = rows(300)
    whole = store(tmp_path / "whole", ids, stacked)
    store(tmp_path / "parts", ids[:100], stacked[:100])
    parts = store(tmp_path / "parts", ids[100:], stacked[100:])
    assert parts.index.meme_ids == whole.index.meme_ids
    assert np.array_equal(parts.index.rows, whole.index.rows)


def test_a_writer_that_ends_early_changes_nothing(tmp_path) -> None:
    ids, stacked = rows(300)
    store(tmp_path, ids[:100], stacked[:100])

    def broken():
        yield ids[100:200], stacked[100:200]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        append(tmp_path, broken(), DIM)
    assert open_library(tmp_path).index.meme_ids == tuple(ids[:100])
    again = store(tmp_path, ids[100:], stacked[100:])
    assert again.index.meme_ids == tuple(ids) and np.array_equal(again.index.rows, stacked)


@pytest.mark.parametrize(
    ("ids", "width", "why"),
    [
        (["m000001", "x"], 4 * DIM, "unique"),
        (["x", "x"], 4 * DIM, "unique"),
        (["x", "y"], DIM, "shape"),
        (["x\ny", "z"], 4 * DIM, "one line"),
        (["", "z"], 4 * DIM, "one line"),
        (["\ud800", "z"], 4 * DIM, "one line"),
        ([1, 2], 4 * DIM, "one line of text"),
    ],
)
def test_what_does_not_fit_is_refused_and_leaves_the_library(tmp_path, ids, width, why) -> None:
    store(tmp_path, *rows(50))
    with pytest.raises(LibraryError, match=why):
        append(tmp_path, [(ids, np.zeros((2, width), dtype=np.float32))], DIM)
    assert len(open_library(tmp_path).index.meme_ids) == 50


def test_damage_is_said(tmp_path) -> None:
    with pytest.raises(LibraryError, match="no whole library"):
        open_library(tmp_path)
    store(tmp_path, *rows(50))
    with pytest.raises(LibraryError, match="dimension 8"):
        append(tmp_path, [], 8)
    not_finite = np.full((1, 4 * DIM), np.nan, dtype=np.float32)
    with pytest.raises(LibraryError, match="finite"):
        append(tmp_path, [(["x"], not_finite)], DIM)
    with (tmp_path / stored_library.ROWS).open("rb+") as handle:
        handle.truncate(100)
    with pytest.raises(LibraryError, match="damaged"):
        open_library(tmp_path)
    with pytest.raises(LibraryError, match="at least one"):
        append(tmp_path / "empty", [], DIM)


@pytest.mark.parametrize(
    ("factor", "why"),
    [(50, "row 137 has a part of length 50"), (1e6, "length 1e"), (1e30, "inf"), (np.inf, "is not finite")],
)
def test_rows_that_are_no_unit_vectors_are_refused(tmp_path, factor, why) -> None:
    """Float16 ends at 65,504, and the bound of the rounding counts on lengths of 1."""
    ids, stacked = rows(300)
    store(tmp_path, ids[:100], stacked[:100])
    bad = stacked[100:].astype(np.float64)
    bad[37] *= factor
    with pytest.raises(LibraryError, match=why):
        append(tmp_path, [(ids[100:], bad)], DIM)
    bad[37] = 0  # a meme that lacks all texts
    store(tmp_path, ids[100:], bad)


def test_rows_of_any_type_and_order_are_stored_alike(tmp_path, monkeypatch) -> None:
    ids, stacked = rows(100)
    monkeypatch.setattr(stored_library, "BLOCK_BYTES", 1000)  # a few rows of a block at a time
    spaced = np.repeat(stacked, 2, axis=0)[::2]
    kinds = [stacked.astype(np.float64), stacked.astype(np.float16), np.asfortranarray(stacked), spaced]
    for number, made in enumerate([*kinds, stacked.tolist()]):
        empty = [([], np.empty((0, 4 * DIM)))]
        folder = tmp_path / f"{number} 库"
        save_state(folder, append(folder, [*empty, (iter(ids), made), *empty], DIM))
        library = open_library(folder)
        assert library.index.meme_ids == tuple(ids) and np.array_equal(library.index.rows, stacked)


def test_a_file_of_ids_that_is_not_ours_is_left_alone(tmp_path) -> None:
    (tmp_path / stored_library.IDS).write_text("mine\n")
    with pytest.raises(LibraryError, match="belongs to no library"):
        append(tmp_path, blocks(*rows(10)), DIM)
    assert (tmp_path / stored_library.IDS).read_text() == "mine\n"


@pytest.mark.parametrize("text", ["", "[]", "3", "{}", '{"memes": "x", "dim": 16, "id_bytes": 9}',
                                  '{"memes": -1, "dim": 16, "id_bytes": 9}'])  # fmt: skip
def test_a_damaged_state_is_said(tmp_path, text) -> None:
    store(tmp_path, *rows(10))
    (tmp_path / stored_library.STATE).write_text(text)
    with pytest.raises(LibraryError, match="anew"):
        open_library(tmp_path)


def test_queries_and_weights_that_do_not_fit_are_refused(tmp_path) -> None:
    library, queries = store(tmp_path, *rows(50)), turns(3)
    for weights in ((1,), (1, 1, 1), (1, 1, 1, 1, 1), (np.nan, 0, 0, 0), None):
        with pytest.raises(ValueError, match="four finite weights"):
            flat_top_k(library, queries, weights, 3)
    for wrong in (queries[0], queries.reshape(3, -1), turns(3, 8), queries.tolist()):
        with pytest.raises(ValueError, match=r"\[turns, 4, 16\]"):
            flat_top_k(library, wrong, WEIGHTS, 3)
    queries[1, 2, 3] = np.nan
    with pytest.raises(ValueError, match="finite"):
        flat_top_k(library, queries, WEIGHTS, 3)


def test_ties_of_many_memes_are_taken_a_few_turns_at_a_time(tmp_path, monkeypatch) -> None:
    ids, stacked = rows(400)
    stacked[:] = stacked[0]
    library, queries = store(tmp_path, ids, stacked), turns(9)
    monkeypatch.setattr(stored_library, "MOST_TIES", 1000)
    most = []

    def counted(index, queries, weights, asked, memes, *rest):
        most.append(len(memes))
        return retrieval.rank_candidates(index, queries, weights, asked, memes, *rest)

    monkeypatch.setattr(stored_library, "rank_candidates", counted)
    found = flat_top_k(library, queries, WEIGHTS, 3)
    assert same(found, retrieval.top_k(retrieval.MemeIndex(tuple(ids), stacked), queries, WEIGHTS, 3))
    assert max(most) <= 1000


def test_queries_longer_than_unit_vectors_rank_exactly(tmp_path) -> None:
    """Near ties beyond the last place of float32: the bound grows with the queries."""
    ids, stacked = rows(300, clusters=1)
    library, queries = store(tmp_path, ids, stacked), turns(20)
    longer = flat_top_k(library, queries * 4096, WEIGHTS, 20)
    assert np.array_equal(longer.memes, flat_top_k(library, queries, WEIGHTS, 20).memes)
    assert stored_library.spread(library.index, queries * 4096, np.array(WEIGHTS)) > 1000 * (
        stored_library.spread(library.index, queries, np.array(WEIGHTS))
    )


def test_a_copy_opens_the_folder(tmp_path) -> None:
    library = store(tmp_path, *rows(3000))
    packed = pickle.dumps(library)
    again = pickle.loads(packed)
    assert len(packed) < 1000 and again.index.meme_ids == library.index.meme_ids and len(repr(library)) < 500


def test_one_writer_at_a_time(tmp_path) -> None:
    with (
        stored_library.only_writer(tmp_path / "new"),
        pytest.raises(LibraryError, match="another process"),
        stored_library.only_writer(tmp_path / "new"),
    ):
        pass
    with stored_library.only_writer(tmp_path / "new"):
        pass
    (tmp_path / stored_library.IDS).touch()
    with pytest.raises(LibraryError, match="no library"), stored_library.only_writer(tmp_path):
        pass
