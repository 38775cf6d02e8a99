import tracemalloc
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageDraw

from memecmd_utils import library
from memecmd_utils.library import alike, normalise_text
from memecmd_utils.library.duplicates import close_pairs, near_duplicate_groups, phash


def near_hashes(n, seed):
    """Hashes of which many lie within a few bits of each other."""
    rng = np.random.default_rng(seed)
    centres = [int(c) for c in rng.integers(0, 2**63, 20)]
    out = []
    for _ in range(n):
        value = centres[rng.integers(20)]
        for bit in rng.integers(0, 64, rng.integers(0, 6)):
            value ^= 1 << int(bit)
        out.append(value)
    return out


def test_same_picture_needs_the_same_text():
    hashes = [0, 0b111111, 0b1111111, 0, 0]
    texts = ["今天也要加油", "今天也要加油！", "今天也要加油", "明天再说吧", ""]
    found = near_duplicate_groups(hashes, texts)
    assert found.groups == [[0, 1]]  # 2 is 7 bits away from 0 and near only to 1, which is dropped
    assert found.doubtful == [(0, 4), (1, 4), (3, 4)]
    # 5 and 4 differ in one bit: with no text to compare, a person decides on the contact sheet.
    assert near_duplicate_groups([5, 4, 5, 2**40 - 1], ["", " ", "", ""]) == ([[0, 2]], [(0, 1), (1, 2)])
    with pytest.raises(ValueError, match="2 hashes but 1 texts"):
        near_duplicate_groups([1, 2], [""])


def test_a_longer_input_keeps_earlier_decisions():
    hashes, texts = near_hashes(60, seed=5), ["哈哈哈" if i % 2 else "呵呵呵" for i in range(60)]
    whole = {j for group in near_duplicate_groups(hashes, texts).groups for j in group[1:]}
    for n in range(60):
        part = {j for group in near_duplicate_groups(hashes[:n], texts[:n]).groups for j in group[1:]}
        assert part == {j for j in whole if j < n}


@given(st.text("甲乙丙ab", max_size=12), st.text("甲乙丙ab", max_size=12), st.floats(0, 1))
def test_alike_is_symmetric_and_agrees_with_similarity(a, b, least):
    assert alike(a, b, least) == alike(b, a, least)
    assert alike(a, b, least) == (library.similarity(a, b) >= least)


def test_phash_is_stable_under_scaling_and_tells_pictures_apart():
    image = Image.new("RGB", (200, 200), "white")
    ImageDraw.Draw(image).ellipse((20, 60, 120, 180), fill="black")
    other = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    assert 0 <= phash(image) < 2**64
    assert (phash(image) ^ phash(image.resize((90, 90)))).bit_count() <= 6
    assert (phash(image) ^ phash(other)).bit_count() > 6


def plainly(hashes, texts, max_distance, min_similarity):
    """The rule as it is said, by a double loop."""
    normal, kept, dropped, doubtful = [normalise_text(text) for text in texts], {}, set(), []
    for i in range(len(hashes)):
        for j in range(i + 1, len(hashes)):
            if (hashes[i] ^ hashes[j]).bit_count() > max_distance:
                continue
            if bool(normal[i]) != bool(normal[j]) or (not normal[i] and hashes[i] != hashes[j]):
                doubtful.append((i, j))
            elif i not in dropped and j not in dropped and alike(normal[i], normal[j], min_similarity):
                dropped.add(j)
                kept.setdefault(i, [i]).append(j)
    return list(kept.values()), doubtful


HASHES = st.one_of(st.integers(0, 7), st.sampled_from([2**63, 2**63 + 1, 2**64 - 1, 0b111111, 0b1111111]))


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(HASHES, st.sampled_from(["", "?", "甲乙丙", "甲乙丁", "甲乙 丙！", "甲", "乙"])),
        max_size=25,
    ),
    st.integers(0, 8),
    st.sampled_from([0.0, 0.5, 0.66, 0.9, 1.0]),
)
def test_groups_are_those_of_the_rule_as_it_is_said(items, max_distance, least):
    hashes, texts = [h for h, _ in items], [t for _, t in items]
    assert near_duplicate_groups(hashes, texts, max_distance, least) == plainly(
        hashes, texts, max_distance, least
    )


def test_many_equal_hashes_need_no_pairs():
    """20,000 copies are 200 million pairs, 3.2 GB."""
    tracemalloc.start()
    found = near_duplicate_groups([7] * 20_000, ["加油"] * 10_000 + ["明天再说"] * 10_000, 6)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [len(group) for group in found.groups] == [10_000, 10_000] and found.doubtful == []
    assert peak < 60 << 20


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(0, 2**64 - 1), max_size=25),
    st.lists(st.tuples(st.integers(0, 29), st.sets(st.integers(0, 63), max_size=9)), max_size=30),
    st.integers(0, 70),
)
def test_close_pairs_equal_a_double_loop(hashes, flips, max_distance):
    for number, bits in flips:
        if hashes:
            hashes.append(hashes[number % len(hashes)] ^ sum(1 << bit for bit in bits))
    plain = [
        [i, j] for (i, a), (j, b) in combinations(enumerate(hashes), 2) if (a ^ b).bit_count() <= max_distance
    ]
    assert close_pairs(hashes, max_distance).tolist() == plain
