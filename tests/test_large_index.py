import os
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from made_vectors import WEIGHTS, blocks, rows, turns

from memecmd_utils import large_index, retrieval
from memecmd_utils.large_index import LargeIndex, open_index, recall_at_k
from memecmd_utils.large_index_build import build, extend
from memecmd_utils.stored_library import LibraryError, flat_top_k

DIM, MEMES, TYPE = 16, 6000, "IVF32,PQ32x4fs,Refine(SQ8)"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    pytest.importorskip("faiss", reason="needs faiss: pip install -e '.[scale]'")
    made = tmp_path_factory.mktemp("library")
    build(made, blocks(*rows(MEMES)), DIM, index=TYPE)
    return made


@pytest.fixture(scope="module")
def index(folder: Path) -> LargeIndex:
    return replace(open_index(folder), probes=16, candidates=256)


@pytest.mark.parametrize("weights", [WEIGHTS, (1, 0, 0, 0), (0, 1, 0, 0), (0.1, 0.6, 0.2, 0.1), (0, 0, 1, 0)])
def test_recall_under_any_weights_without_a_new_index(index, weights) -> None:
    queries = turns(64)
    true = flat_top_k(index.library, queries, weights, 10)
    assert recall_at_k(index.top_k(queries, weights, 10), true) >= 0.95
    few = replace(index, probes=1).top_k(queries, weights, 10)
    assert recall_at_k(few, true) < 0.95, "the test could not fail"


def test_delta_keeps_its_minus(index) -> None:
    """With w2 alone the best meme is the one whose S- is farthest from S."""
    queries = turns(64)
    found = index.top_k(queries, (0, 1, 0, 0), 1)
    s_minus = index.library.index.rows[:, DIM : 2 * DIM].astype(np.float32)
    farthest = (queries[:, 0] @ s_minus.T).min(axis=1)
    assert np.mean(np.isclose(found.scores[:, 0], -farthest, atol=1e-6)) >= 0.95
    assert np.allclose(found.components[:, 0, 1], found.scores[:, 0])


def test_scores_and_order_are_exact_for_what_is_found(index) -> None:
    queries = turns(40)
    found = index.top_k(queries, WEIGHTS, 10)
    parts = retrieval.pair_components(index.library.index, queries, found.memes)
    assert np.array_equal(found.components, parts)
    assert np.allclose(found.scores, parts @ np.array(WEIGHTS), atol=1e-9)
    ids = np.array(index.meme_ids)[found.memes]
    for turn in range(len(queries)):
        assert np.array_equal(np.lexsort((ids[turn], -found.scores[turn])), np.arange(10))


def test_equal_scores_are_ordered_by_id(tmp_path) -> None:
    pytest.importorskip("faiss", reason="needs faiss: pip install -e '.[scale]'")
    ids, stacked = rows(4000)
    stacked[1000:1040] = stacked[1000]
    build(tmp_path, blocks(ids, stacked), DIM, index=TYPE)
    asked = stacked[1000].reshape(1, 4, DIM).copy()
    found = open_index(tmp_path).top_k(asked, (1, 1, 1, 1), 5)
    assert [ids[i] for i in found.memes[0]] == sorted(ids[1000:1040])[:5]


def test_blocks_change_nothing_and_a_turn_ranks_alone_as_among_others(index) -> None:
    queries = turns(50)
    whole = index.top_k(queries, WEIGHTS, 5)
    for block in (1, 7):
        cut = index.top_k(queries, WEIGHTS, 5, block=block)
        assert np.array_equal(cut.memes, whole.memes) and np.array_equal(cut.scores, whole.scores)
    assert index.top_k(queries[:0], WEIGHTS, 5).memes.shape == (0, 5)
    with pytest.raises(ValueError, match="k >= 1"):
        index.top_k(queries, WEIGHTS, 0)


def test_number_of_threads_changes_nothing(folder) -> None:
    script = (
        "import sys, hashlib; from pathlib import Path; from made_vectors import *\n"
        "from memecmd_utils.large_index import open_index\n"
        "r = open_index(Path(sys.argv[1])).top_k(turns(100), WEIGHTS, 5)\n"
        "print(hashlib.sha256(r.memes.tobytes() + r.scores.tobytes()).hexdigest())"
    )
    found = []
    for threads in ("1", "3"):
        names = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), threads)
        done = subprocess.run(
            [sys.executable, "-c", script, str(folder)],
            env={**os.environ, **names}, cwd=Path(__file__).parent,
            capture_output=True, text=True, check=True, timeout=120,
        )  # fmt: skip
        found.append(done.stdout.strip())
    assert len(found[0]) == 64 and found[0] == found[1]


def test_tuned_takes_the_fewest_lists_that_reach_the_recall(index) -> None:
    queries = turns(64)
    true = flat_top_k(index.library, queries, WEIGHTS, 10)
    tuned = index.tuned(queries, WEIGHTS, 10, recall=0.9)
    assert recall_at_k(tuned.top_k(queries, WEIGHTS, 10), true) >= 0.9
    fewer = replace(tuned, probes=tuned.probes * 2 // 3)
    assert tuned.probes > 1 and recall_at_k(fewer.top_k(queries, WEIGHTS, 10), true) < 0.9
    with pytest.raises(LibraryError, match="is not reached"):
        replace(index, candidates=10).tuned(queries, WEIGHTS, 10, recall=1.1)


def test_without_faiss_every_meme_is_compared_and_that_is_said(folder, index, monkeypatch) -> None:
    monkeypatch.setattr(large_index, "find_spec", lambda name: None)
    with pytest.warns(UserWarning, match=r"pip install -e '\.\[scale\]'"):
        plain = open_index(folder)
    assert plain.faiss is None and plain.tuned(turns(2), WEIGHTS) is plain
    true = flat_top_k(index.library, turns(9), WEIGHTS, 3)
    assert np.array_equal(plain.top_k(turns(9), WEIGHTS, 3).memes, true.memes)


def test_recall_by_hand() -> None:
    def ranking(memes):
        return retrieval.Ranking(np.array(memes), np.zeros((2, 2)), np.zeros((2, 2, 4)))

    assert recall_at_k(ranking([[1, 2], [3, 4]]), ranking([[2, 1], [4, 9]])) == 0.75


def test_turns_with_too_few_candidates_change_no_other_turn(index) -> None:
    """One list holds some 190 memes, so for K = 150 some turns are searched exactly, and only those."""
    queries = turns(60)
    one = replace(index, probes=1, candidates=10)
    whole = one.top_k(queries, WEIGHTS, 150)
    true = flat_top_k(index.library, queries, WEIGHTS, 150)
    exact = (whole.memes == true.memes).all(axis=1)
    assert 0 < exact.sum() < len(queries)
    alone = one.top_k(queries, WEIGHTS, 150, block=1)
    assert np.array_equal(alone.memes, whole.memes) and np.array_equal(alone.scores, whole.scores)


def test_a_copy_opens_the_folder_with_the_same_settings(index) -> None:
    tuned = replace(index, probes=5, candidates=99)
    packed = pickle.dumps(tuned)
    again = pickle.loads(packed)
    assert len(packed) < 1000 and (again.probes, again.candidates) == (5, 99)
    expected = tuned.top_k(turns(5), WEIGHTS, 3)
    assert np.array_equal(again.top_k(turns(5), WEIGHTS, 3).memes, expected.memes)
    assert pickle.loads(pickle.dumps(replace(index, faiss=None))).faiss is None
    assert len(repr(index)) < 500, "a notebook shows it"


def test_settings_and_queries_that_do_not_fit_are_refused(index) -> None:
    for wrong in ({"probes": 0}, {"candidates": 0}, {"probes": -1}):
        with pytest.raises(ValueError, match="probes and candidates >= 1"):
            replace(index, **wrong)
    with pytest.raises(ValueError, match="four finite weights"):
        index.top_k(turns(2), (1,), 3)
    with pytest.raises(ValueError, match=r"\[turns, 4, 16\]"):
        index.top_k(turns(2, 8), WEIGHTS, 3)
    with pytest.raises(ValueError, match="there are none"):
        index.tuned(turns(0), WEIGHTS)


def test_an_index_that_goes_while_it_is_opened_is_opened_anew(tmp_path, index, monkeypatch) -> None:
    ids, stacked = rows(3000)
    build(tmp_path, blocks(ids[:2900], stacked[:2900]), DIM, index=TYPE)
    opened = large_index.open_library

    def slow(folder):
        library = opened(folder)
        if len(library.index.meme_ids) == 2900:
            extend(folder, blocks(ids[2900:], stacked[2900:]))  # by another process
        return library

    monkeypatch.setattr(large_index, "open_library", slow)
    assert open_index(tmp_path).meme_ids == tuple(ids)
