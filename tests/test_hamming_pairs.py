import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memecmd_utils import hamming_pairs
from memecmd_utils.hamming_pairs import Plan, close_pairs, plan


def plain_pairs(hashes, max_distance):
    n = len(hashes)
    return [
        [i, j]
        for i in range(n)
        for j in range(i + 1, n)
        if (hashes[i] ^ hashes[j]).bit_count() <= max_distance
    ]


def near_hashes(n, seed, centres=20, most=8):
    """Hashes of which many lie within a few bits of each other, and some are equal."""
    rng = np.random.default_rng(seed)
    middle = rng.integers(0, 2**64, centres, dtype=np.uint64)
    values = middle[rng.integers(0, centres, n)]
    for _ in range(most // 2):
        values ^= rng.integers(0, 2, n).astype(np.uint64) << rng.integers(0, 64, n).astype(np.uint64)
    return [int(v) for v in values]


def of_bands(bands, max_distance):
    """The plan with so many bands, whatever it costs."""
    radius, more = divmod(max_distance, bands)
    return Plan(tuple(radius if b <= more else radius - 1 for b in range(bands)), 0.0)


LISTS = st.lists(st.integers(0, 2**64 - 1), max_size=25)
FLIPS = st.lists(st.tuples(st.integers(0, 29), st.sets(st.integers(0, 63), max_size=9)), max_size=30)


def with_neighbours(hashes, flips):
    for number, bits in flips:
        if hashes:
            hashes.append(hashes[number % len(hashes)] ^ sum(1 << bit for bit in bits))
    return hashes


@settings(max_examples=60, deadline=None)
@given(LISTS, FLIPS, st.integers(0, 12))
def test_close_pairs_equal_a_double_loop(hashes, flips, max_distance):
    with_neighbours(hashes, flips)
    assert close_pairs(hashes, max_distance).tolist() == plain_pairs(hashes, max_distance)


@settings(max_examples=40, deadline=None)
@given(LISTS, FLIPS, st.integers(0, 8), st.integers(4, 9))
def test_every_number_of_bands_gives_the_same_pairs(hashes, flips, max_distance, bands):
    with_neighbours(hashes, flips)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hamming_pairs, "plan", lambda n, distance: of_bands(bands, distance))
        assert close_pairs(hashes, max_distance).tolist() == plain_pairs(hashes, max_distance)


@pytest.mark.parametrize("chunk", [1, 50, 1 << 20])
@pytest.mark.parametrize("bands", [0, 3, 4, 5, 6, 7])
def test_chunks_and_blocks_change_nothing(monkeypatch, chunk, bands):
    monkeypatch.setattr(hamming_pairs, "CHUNK", chunk)
    monkeypatch.setattr(hamming_pairs, "BLOCK", 7)
    monkeypatch.setattr(
        hamming_pairs, "plan", lambda n, distance: of_bands(bands, distance) if bands else Plan((), 0.0)
    )
    hashes = near_hashes(140, seed=3)
    hashes += hashes[20:30]
    expected = plain_pairs(hashes, 6)
    assert len(expected) > 100 and len(set(hashes)) < len(hashes)
    assert close_pairs(hashes, 6).tolist() == expected


def test_a_pair_at_the_very_distance_is_found_wherever_its_bits_lie():
    # Six bits spread over all bands, over one, or over the two that meet: the borders of the pigeonhole rule.
    rng = np.random.default_rng(5)
    for bands, _ in itertools.product(range(3, 8), range(60)):
        low = int(rng.integers(0, 59))
        bits = rng.choice(64, 6, replace=False) if rng.integers(2) else np.arange(low, low + 6)
        base = int(rng.integers(0, 2**63))
        other = base ^ sum(1 << int(bit) for bit in bits)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(hamming_pairs, "plan", lambda n, distance, b=bands: of_bands(b, distance))
            assert close_pairs([base, other], 6).tolist() == [[0, 1]]
            assert close_pairs([base, other], 5).tolist() == []


def test_copies_are_paired_with_all_copies_of_a_neighbour():
    hashes = [5, 9, 5, 2**63, 4, 5, 4]
    assert close_pairs(hashes, 1).tolist() == plain_pairs(hashes, 1)
    assert close_pairs(hashes, 0).tolist() == [[0, 2], [0, 5], [2, 5], [4, 6]]
    assert len(close_pairs([7] * 3000)) == 3000 * 2999 // 2


def test_more_hashes_are_cut_into_fewer_bands():
    bands = [len(plan(n, 6).radii) for n in (100, 3_000, 100_000, 10_000_000)]
    assert bands[0] == 0 and bands[1] > bands[2] > bands[3] >= 3
    assert plan(5_000, 40).radii == (), "so far apart that each pair is compared"
    for n, distance in itertools.product((1_000, 10**6), range(13)):
        radii = plan(n, distance).radii
        # Bands that all differ in one bit more than they may: together more than the distance.
        assert not radii or sum(r + 1 for r in radii) == distance + 1


def test_the_pairs_are_those_of_faiss():
    faiss = pytest.importorskip("faiss", reason="faiss is not installed")
    hashes = np.array(near_hashes(6_000, seed=8, centres=900, most=10), dtype=np.uint64)
    index = faiss.IndexBinaryFlat(64)
    rows = hashes.view(np.uint8).reshape(-1, 8)
    index.add(rows)
    limits, _, found = index.range_search(rows, 7)  # FAISS takes distances below the radius
    asked = np.repeat(np.arange(len(hashes)), np.diff(limits).astype(np.int64))
    pairs = np.stack([asked, found], axis=1)[asked < found]
    expected = pairs[np.lexsort((pairs[:, 1], pairs[:, 0]))]
    assert len(expected) > 1000 and np.array_equal(close_pairs(hashes, 6), expected)


def test_wrong_input_is_refused():
    with pytest.raises(ValueError, match="max_distance"):
        close_pairs([1], 64)
    with pytest.raises(ValueError, match="max_distance"):
        close_pairs([1], -1)
    assert close_pairs([]).shape == (0, 2) and close_pairs([3]).shape == (0, 2)


@pytest.mark.parametrize(
    "wrong", [[1.5], np.array([1.0]), [-1], [2**64], [[1, 2]], np.zeros((2, 8), np.uint8), ["a"]]
)
def test_what_is_no_row_of_hashes_is_refused(wrong):
    with pytest.raises(ValueError, match="hashes must be"):
        close_pairs(wrong)
    with pytest.raises(ValueError, match="max_distance"):
        close_pairs([1], 5.5)


def test_signed_hashes_are_their_bits():
    """A table may hold them as int64; and the highest bits count as any."""
    signed = np.array([-1, -2, 0, 2**62], dtype=np.int64)
    assert close_pairs(signed, 1).tolist() == [[0, 1], [2, 3]]
    assert close_pairs([2**64 - 1, 2**64 - 2, 0], 63).tolist() == [[0, 1], [1, 2]]
    assert close_pairs([np.uint64(3), 2]).tolist() == [[0, 1]]
