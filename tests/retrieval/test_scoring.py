import hashlib
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import made_vectors
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memecmd_utils import recordings as recordings_vectors
from memecmd_utils.retrieval import scoring

QUICK = settings(max_examples=30, deadline=None)
WEIGHTS = (0.5, 0.25, 1.0, 0.125)

seeded = st.integers(0, 2**32 - 1).map(np.random.default_rng)
weights = st.tuples(*[st.floats(-2, 2, width=32) for _ in range(4)])


def unit(rng: np.random.Generator, *shape: int) -> np.ndarray:
    vectors = rng.standard_normal(shape).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def make(
    rng: np.random.Generator, memes: int = 40, turns: int = 12, dim: int = 16
) -> tuple[scoring.MemeIndex, np.ndarray]:
    ids = [f"m{i:03d}" for i in rng.permutation(memes)]
    index = scoring.build_index(ids, [unit(rng, memes, dim) for _ in range(4)])
    return index, scoring.build_queries(*(unit(rng, turns, dim) for _ in range(3)))


def close_library(memes: int = 60, turns: int = 30, dim: int = 384) -> tuple[scoring.MemeIndex, np.ndarray]:
    """Groups of six memes so near to each other that a float32 product cannot order them."""
    rng = np.random.default_rng(7)
    blocks = []
    for _ in range(4):
        centres = unit(rng, memes // 6, dim).repeat(6, axis=0)
        near = centres + 3e-7 * rng.standard_normal(centres.shape).astype(np.float32)
        blocks.append(near / np.linalg.norm(near, axis=1, keepdims=True))
    index = scoring.build_index([f"m{i:03d}" for i in rng.permutation(memes)], blocks)
    return index, scoring.build_queries(*(unit(rng, turns, dim) for _ in range(3)))


def brute_force(index, queries, weights, k):
    """Eq. 22 and 24 word by word, in float64."""
    rows = index.rows.astype(np.float64).reshape(len(index.meme_ids), 4, -1)
    scores = sum(w * (queries[:, p].astype(np.float64) @ rows[:, p].T) for p, w in enumerate(weights))
    scores = np.round(scores, 9)
    ids = np.array(index.meme_ids)
    order = np.array([np.lexsort((ids, -row))[:k] for row in scores])
    return ids[order], np.take_along_axis(scores, order, axis=1)


def digest(ranking: scoring.Ranking) -> str:
    parts = (ranking.memes.astype(np.int64), ranking.scores, ranking.components)
    return hashlib.sha256(b"".join(np.ascontiguousarray(part).tobytes() for part in parts)).hexdigest()


def same(a: scoring.Ranking, b: scoring.Ranking) -> bool:
    return digest(a) == digest(b)


@pytest.fixture
def by_hand() -> tuple[scoring.MemeIndex, np.ndarray]:
    """One turn and one meme: S (.6, .8), E (1, 0), Psi (0, 1); S+ (0, 1), S- (1, 0), E_m (.6, .8),
    Psi_m (-.6, -.8)."""
    blocks = [np.array([row], dtype=np.float32) for row in ((0, 1), (1, 0), (0.6, 0.8), (-0.6, -0.8))]
    queries = [np.array([row], dtype=np.float32) for row in ((0.6, 0.8), (1, 0), (0, 1))]
    return scoring.build_index(["m"], blocks), scoring.build_queries(*queries)


def test_equations_18_to_21_by_hand(by_hand) -> None:
    """alpha = S . S+ = .6 * 0 + .8 * 1 = .8; delta = -(S . S-) = -(.6 * 1 + .8 * 0) = -.6, with a minus of
    its own; beta = +E . E_m = 1 * .6 + 0 * .8 = .6, which the minus that the paper prints would make -.6;
    gamma = Psi . Psi_m = 0 * -.6 + 1 * -.8 = -.8."""
    found = scoring.top_k(*by_hand, WEIGHTS, 1).components[0, 0]
    assert found == pytest.approx([0.8, -0.6, 0.6, -0.8], abs=1e-7)


def test_equation_22_weighted_sum(by_hand) -> None:
    """T = .5 * .8 + .25 * -.6 + 1 * .6 + .125 * -.8 = .4 - .15 + .6 - .1 = .75"""
    index, queries = by_hand
    assert scoring.top_k(index, queries, WEIGHTS, 1).scores[0, 0] == pytest.approx(0.75, abs=1e-7)
    one_product = scoring.weigh(queries, WEIGHTS)[0] @ index.rows[0]
    assert one_product == pytest.approx(0.75, abs=1e-6)
    matrices = scoring.component_matrices(index, queries)
    assert matrices[:, 0, 0] == pytest.approx([0.8, -0.6, 0.6, -0.8], abs=1e-6)
    assert scoring.combine(matrices, WEIGHTS)[0, 0] == pytest.approx(0.75, abs=1e-6)


def test_equation_24_top_k_with_ties_broken_by_id() -> None:
    """Query (1, 0) in all parts, weights (1, 0, 0, 0), so T = first coordinate of S+.

    S+ of d, b, c, a: 1, .6, .6, 0. Top 3: d (1), then b before c (.6 each); a (0) is left out.
    """
    s_plus = np.array([[1, 0], [0.6, 0.8], [0.6, -0.8], [0, 1]], dtype=np.float32)
    index = scoring.build_index(["d", "c", "b", "a"], [s_plus] * 4)
    queries = scoring.build_queries(*[np.array([[1, 0]], dtype=np.float32)] * 3)
    got = scoring.top_k(index, queries, (1, 0, 0, 0), 3)
    assert [index.meme_ids[i] for i in got.memes[0]] == ["d", "b", "c"]
    assert got.scores[0] == pytest.approx([1, 0.6, 0.6], abs=1e-7)


@QUICK
@given(seeded, weights)
def test_top_k_equals_brute_force(rng, weights) -> None:
    index, queries = make(rng)
    got = scoring.top_k(index, queries, weights, 3)
    ids, scores = brute_force(index, queries, weights, 3)
    assert np.allclose(got.scores, scores, atol=2e-9, rtol=0)
    clear = np.diff(scores, axis=1).max(axis=1) < -1e-8  # a tie within rounding may go either way here
    assert np.array_equal(np.array(index.meme_ids)[got.memes][clear], ids[clear])


def test_memes_that_float32_cannot_order_are_ordered_exactly() -> None:
    index, queries = close_library()
    got = scoring.top_k(index, queries, WEIGHTS, 3)
    ids, _ = brute_force(index, queries, WEIGHTS, 3)
    assert np.array_equal(np.array(index.meme_ids)[got.memes], ids)
    rough = scoring.weigh(queries, WEIGHTS) @ index.rows.T
    assert (np.argsort(-rough, axis=1)[:, :3] != got.memes).any()  # a float32 ranking errs here


@QUICK
@given(seeded, weights)
def test_one_product_is_the_sum_of_four_cosines(rng, weights) -> None:
    blocks = [rng.standard_normal((9, 12)).astype(np.float32) for _ in range(4)]
    asked = [rng.standard_normal((5, 12)).astype(np.float32) for _ in range(3)]

    def cosine(a, b):
        return (a @ b.T) / np.outer(np.linalg.norm(a, axis=1), np.linalg.norm(b, axis=1))

    s, e, psi = asked
    four = (cosine(s, blocks[0]), -cosine(s, blocks[1]), cosine(e, blocks[2]), cosine(psi, blocks[3]))
    index = scoring.build_index(list("abcdefghi"), [recordings_vectors.normalise(b) for b in blocks])
    queries = scoring.build_queries(*(recordings_vectors.normalise(a) for a in asked))
    fused = scoring.weigh(queries, weights) @ index.rows.T
    assert np.allclose(fused, sum(w * c for w, c in zip(weights, four, strict=True)), atol=1e-5)


def test_how_the_work_is_cut_changes_nothing(monkeypatch) -> None:
    index, queries = close_library()
    whole = scoring.top_k(index, queries, WEIGHTS, 3)
    for block in (1, 7, len(queries)):
        assert same(scoring.top_k(index, queries, WEIGHTS, 3, block=block), whole)
    for turn in range(len(queries)):
        alone = scoring.top_k(index, queries[turn : turn + 1], WEIGHTS, 3)
        assert np.array_equal(alone.memes[0], whole.memes[turn])
        assert np.array_equal(alone.scores[0], whole.scores[turn])
    assert np.array_equal(scoring.pair_components(index, queries, whole.memes), whole.components)
    for values in (1, 5 * index.rows.shape[1], 10**9):
        monkeypatch.setattr(scoring, "CHUNK_VALUES", values)
        assert same(scoring.top_k(index, queries, WEIGHTS, 3), whole)


some_zero = st.tuples(*[st.just(0.0) | st.floats(-2, 2, width=32)] * 4)


def in_three_blocks(index, queries, weights, k, block=1024) -> scoring.Ranking:
    """`top_k` of the folded index; fails where it multiplies four blocks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delattr(scoring, "products")
        return scoring.top_k(scoring.fold(index, weights), queries, weights, k, block=block)


@QUICK
@given(seeded, some_zero, st.integers(1, 45), st.sampled_from([1, 2, 16]))
def test_three_blocks_rank_as_four(rng, weights, k, dim) -> None:
    index, queries = make(rng, dim=dim)
    index.rows[10:25] = index.rows[rng.integers(40)]  # duplicates tie: by id
    index.rows[30:33, :dim] = index.rows[30:33, dim : 2 * dim]  # S+ = S-: equal weights cancel
    queries[3] = 0
    expected = scoring.top_k(index, queries, weights, k)
    for block in (5, 1024):
        assert same(in_three_blocks(index, queries, weights, k, block), expected)


@pytest.mark.parametrize(
    "weights", [WEIGHTS, (1, 0, 0, 0), (0, 0, 1, -1), (0.5, 0.5, 0, 0), (0.2, -0.5, 0, 1)]
)
def test_three_blocks_order_what_float32_cannot(weights) -> None:
    index, queries = close_library()
    index.rows[6:12] = index.rows[:6]
    for k in (1, 3, 50):
        expected = scoring.top_k(index, queries, weights, k)
        assert same(in_three_blocks(index, queries, weights, k), expected)
        assert same(
            in_three_blocks(index, queries * 4096, weights, k),
            scoring.top_k(index, queries * 4096, weights, k),
        )


@QUICK
@given(seeded, some_zero, st.sampled_from([1, 2, 16]))
def test_rounding_bound_holds_for_three_blocks_and_four(rng, weights, dim) -> None:
    index, queries = make(rng, dim=dim)
    true = queries.reshape(len(queries), -1).astype(np.float64) * np.repeat(weights, dim) @ index.rows.T
    most = scoring.rounding_bound(index, queries, np.array(weights)) / 2
    for one in (index, scoring.fold(index, weights)):
        (rough,) = scoring.rough_scores(one, queries, weights)
        assert np.abs(rough - true).max() <= most


def test_queries_whose_s_differs_and_other_weights_take_four_blocks() -> None:
    index, queries = make(np.random.default_rng(5))
    folded = scoring.fold(index, WEIGHTS)
    own = queries.copy()
    own[7, 1] = unit(np.random.default_rng(6), index.dim)
    for asked, weights in ((own, WEIGHTS), (np.abs(queries), WEIGHTS), (queries, (0.5, 0.25, 1.0, -0.125))):
        assert same(scoring.top_k(folded, asked, weights, 3), scoring.top_k(index, asked, weights, 3))
        assert not same(scoring.top_k(index, asked, weights, 3), scoring.top_k(index, queries, WEIGHTS, 3))


def test_many_turns_fold_the_weights_and_rows_on_disk_stay(monkeypatch) -> None:
    index, queries = make(np.random.default_rng(8))
    expected, folds, fold = scoring.top_k(index, queries, WEIGHTS, 3), [], scoring.fold
    monkeypatch.setattr(scoring, "fold", lambda *asked: folds.append(asked) or fold(*asked))
    monkeypatch.setattr(scoring, "FOLD_FROM", len(queries))
    matrices = scoring.component_matrices(index, queries)
    for few in (queries[:-1], queries[:0]):
        scoring.top_k(index, few, WEIGHTS, 3)
    assert same(scoring.top_k(index, queries, WEIGHTS, 3, matrices), expected)
    assert same(scoring.top_k(fold(index, WEIGHTS), queries, WEIGHTS, 3), expected)
    assert not folds
    assert same(scoring.top_k(index, queries, WEIGHTS, 3), expected)
    assert len(folds) == 1
    on_disk = replace(index, rows=index.rows.astype(np.float16))
    assert fold(on_disk, WEIGHTS) is on_disk


def test_number_of_threads_changes_nothing() -> None:
    script = (
        "import test_scoring as t\nfrom memecmd_utils.retrieval import scoring as r\n"
        "i, q = t.close_library(600, 64)\n"
        "print(*(t.digest(r.top_k(one, q, t.WEIGHTS, 3)) for one in (i, r.fold(i, t.WEIGHTS))))"
    )
    names = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
    work = [
        subprocess.Popen(
            [sys.executable, "-c", script],
            env={**os.environ, **dict.fromkeys(names, threads)},
            cwd=Path(__file__).parent,
            stdout=subprocess.PIPE,
            text=True,
        )
        for threads in ("1", "3")
    ]
    one, three = (process.communicate()[0].split() for process in work)
    assert len(one) == 2 and len({*one, *three}) == 1


def test_k_larger_than_the_library_and_k_below_one() -> None:
    index, queries = make(np.random.default_rng(3), memes=2)
    assert scoring.top_k(index, queries, WEIGHTS, 5).memes.shape == (len(queries), 2)
    with pytest.raises(ValueError, match="k >= 1"):
        scoring.top_k(index, queries, WEIGHTS, 0)


def test_centring_by_hand() -> None:
    """Rows (1, 0) and (0, 1), mean (.5, .5): differences (.5, -.5) and (-.5, .5), scaled to length 1."""
    got = scoring.centre(np.array([[1.0, 0.0], [0.0, 1.0]]))
    half = 0.5**0.5
    assert got == pytest.approx(np.array([[half, -half], [-half, half]]))
    one = np.array([[0.6, 0.8]])
    assert np.array_equal(scoring.centre(one), one)
    assert scoring.centre(one, mean=np.array([0.6, 0.0])) == pytest.approx(np.array([[0.0, 1.0]]))


@pytest.mark.parametrize("n", [2, 3, 800, 7000])
@pytest.mark.parametrize("noise", [0.0, 1e-7])
def test_equal_rows_have_no_direction_once_they_are_centred(n, noise) -> None:
    """The rounding errors of equal texts are no likeness: neither with their own mean, nor with another's."""
    rng = np.random.default_rng(n)
    row = unit(rng, 1, 384)
    equal = np.repeat(row, n, axis=0) + (noise * rng.standard_normal((n, 384))).astype(np.float32)
    assert not scoring.centre(equal).any()
    assert not scoring.centre(equal[:1], mean=scoring.mean_row(equal)).any()


def test_an_attribute_with_one_text_for_all_moves_no_score() -> None:
    """Where E and Psi say the same of every meme, only S+ and S- tell memes apart."""
    rng = np.random.default_rng(2)
    both = [unit(rng, 30, 64) for _ in range(2)]
    mute = np.repeat(unit(rng, 1, 64), 30, axis=0)
    queries = scoring.build_queries(*(unit(rng, 5, 64) for _ in range(3)), centring=True)
    index = scoring.build_index([f"m{i:02d}" for i in range(30)], [*both, mute, mute], centring=True)
    assert not scoring.component_matrices(index, queries)[2:].any()


def test_a_wrong_library_is_refused() -> None:
    block = np.eye(2, dtype=np.float32)
    with pytest.raises(ValueError, match="unique"):
        scoring.build_index(["a", "a"], [block] * 4)
    with pytest.raises(ValueError, match="four matrices of 2 rows"):
        scoring.build_index(["a", "b"], [block] * 3)
    with pytest.raises(ValueError, match="four matrices of 3 rows"):
        scoring.build_index(["a", "b", "c"], [block] * 4)


@pytest.mark.parametrize(("block_bytes", "block"), [(1, 7), (40 * 256, 1), (40 * 256, 256), (1 << 30, 256)])
def test_float16_rows_rank_in_blocks_as_float32_rows_at_once(monkeypatch, block_bytes, block) -> None:
    ids, rows = made_vectors.rows(500)
    rows[100:300] = rows[0]  # 201 memes tie: by id
    index, queries = scoring.MemeIndex(tuple(ids), rows), made_vectors.turns(20)
    queries[3] = rows[0].reshape(4, 16) * scoring.SIGNS.astype(np.float32)[:, None]
    monkeypatch.setattr(scoring, "BLOCK_BYTES", block_bytes)
    halved = replace(index, rows=rows.astype(np.float16))
    for weights in (WEIGHTS, (1, 0, 0, 0), (0.2, -0.5, 0.1, 0), (0, 0, 0, 0)):
        for k in (1, 3, 50, 1000):
            expected = scoring.top_k(index, queries, weights, k)
            assert same(scoring.top_k(halved, queries, weights, k, block=block), expected)
    asked = scoring.weigh(queries, WEIGHTS)
    assert np.allclose(np.hstack(list(scoring.products(halved, asked))), asked @ rows.T, atol=1e-6)


def test_every_finite_float16_is_turned_exactly() -> None:
    numbers = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    numbers = numbers[np.isfinite(numbers)]
    got = scoring.to_float32(numbers)
    assert np.array_equal(got.view(np.int32), numbers.astype(np.float32).view(np.int32))


@pytest.mark.parametrize("kind", [np.float32, np.float16])
def test_ties_of_many_memes_are_taken_a_few_turns_at_a_time(monkeypatch, kind) -> None:
    ids, rows = made_vectors.rows(400)
    rows[:] = rows[0]
    index, queries = scoring.MemeIndex(tuple(ids), rows.astype(kind)), made_vectors.turns(9)
    matrices = scoring.component_matrices(replace(index, rows=rows), queries)
    expected, most, pairs = scoring.top_k(index, queries, WEIGHTS, 3), [], scoring.pair_values

    def counted(index, queries, turns, memes):
        most.append(len(memes))
        return pairs(index, queries, turns, memes)

    monkeypatch.setattr(scoring, "MOST_TIES", 1000)
    monkeypatch.setattr(scoring, "pair_values", counted)
    for at_hand in (None, matrices):
        assert same(scoring.top_k(index, queries, WEIGHTS, 3, at_hand), expected)
    assert len(most) > 9 and max(most) <= 1000


def test_queries_longer_than_unit_vectors_rank_exactly() -> None:
    """Near ties beyond the last place of float32: the bound grows with the queries."""
    ids, rows = made_vectors.rows(300, clusters=1)
    index, queries = scoring.MemeIndex(tuple(ids), rows.astype(np.float16)), made_vectors.turns(20)
    longer = scoring.top_k(index, queries * 4096, WEIGHTS, 20)
    assert np.array_equal(longer.memes, scoring.top_k(index, queries, WEIGHTS, 20).memes)
    short, long = (scoring.rounding_bound(index, q, np.array(WEIGHTS)) for q in (queries, queries * 4096))
    assert long > 1000 * short


def test_ties_are_ordered_by_meme_id_and_noise_of_the_last_digit_does_not_matter() -> None:
    ids = ["m3", "m1", "m2"]
    scores = np.array([[0.5, 0.5 + 1e-12, 0.5 - 1e-12], [0.1, 0.2, 0.3]])
    assert scoring.order(scores, ids).tolist() == [[1, 2, 0], [2, 1, 0]]
    assert scoring.best_memes(scores, ids, 2).tolist() == [[1, 2], [2, 1]]


def test_the_best_memes_are_the_head_of_the_order() -> None:
    scores = np.round(np.random.default_rng(0).random((40, 12)), 1)  # many ties
    ids, before = [f"m{i}" for i in np.random.default_rng(1).permutation(12)], scores.copy()
    for depth in (1, 5, 12, 20):
        assert (scoring.best_memes(scores, ids, depth) == scoring.order(scores, ids)[:, :depth]).all()
    assert np.array_equal(scores, before), "scores are left as they are"
    assert scoring.best_memes(np.array([[1, -np.inf, 2]]), ids[:3], 3).tolist() == [[2, 0, -1]]
