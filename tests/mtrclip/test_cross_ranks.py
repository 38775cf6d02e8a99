import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memecmd_utils.mtrclip import recall
from memecmd_utils.mtrclip.recall import Gallery, Ranks, rank_all


def pairs(owner, templates, texts) -> Gallery:
    files = tuple(Path(f"{i}.png") for i in range(len(templates)))
    return Gallery("title", files, tuple(templates), tuple(texts), np.array(owner, dtype=np.intp))


def is_right(gallery: Gallery, counting: str, text: int, meme: int) -> bool:
    """One pair at a time, as the definitions say it."""
    mine = gallery.owner[text]
    if counting == "pair":
        return mine == meme
    if counting == "template":
        return mine == meme or (
            gallery.templates[mine] != "" and gallery.templates[mine] == gallery.templates[meme]
        )
    own = [t for t, o in zip(gallery.texts, gallery.owner, strict=True) if o == meme]
    return gallery.texts[text] in own


def slow(texts, images, gallery, counting, direction) -> list[tuple[int, int, int]]:
    """The same counts by loops over all pairs in float64."""
    t = texts / np.linalg.norm(texts, axis=1, keepdims=True)
    m = images / np.linalg.norm(images, axis=1, keepdims=True)
    out = []
    for query in range(len(t) if direction == "T2M" else len(m)):
        scored = []
        for other in range(len(m) if direction == "T2M" else len(t)):
            text, meme = (query, other) if direction == "T2M" else (other, query)
            scored.append((float(t[text] @ m[meme]), is_right(gallery, counting, text, meme)))
        best = max(s for s, right in scored if right)
        out.append(
            (
                sum(s > best + 1e-6 for s, _ in scored),
                sum(abs(s - best) <= 1e-6 and not right for s, right in scored),
                sum(abs(s - best) <= 1e-6 and right for s, right in scored),
            )
        )
    return out


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_counts_are_those_of_a_loop_over_all_pairs(data) -> None:
    """Few distinct vectors and texts, so that ties and equal texts abound; blocks of one row and more."""
    n = data.draw(st.integers(1, 9))
    owner = sorted([*range(n), *data.draw(st.lists(st.integers(0, n - 1), max_size=5))])
    templates = data.draw(st.lists(st.sampled_from(["", "a", "b"]), min_size=n, max_size=n))
    texts = data.draw(st.lists(st.sampled_from("xyz"), min_size=len(owner), max_size=len(owner)))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    known = rng.normal(size=(4, 3))
    text_rows, image_rows = known[rng.integers(4, size=len(owner))], known[rng.integers(4, size=n)]
    gallery = pairs(owner, templates, texts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recall, "MOST_BYTES", data.draw(st.sampled_from([1, 100, 1 << 20])))
        found = rank_all(text_rows, image_rows, gallery)
    wanted = ["pair", "same text", *(["template"] if any(templates) else [])]
    assert set(found) == {(c, d) for c in wanted for d in ("T2M", "M2T")}
    for (counting, direction), ranks in found.items():
        got = list(zip(*map(np.ndarray.tolist, (ranks.above, ranks.level, ranks.right)), strict=True))
        assert got == slow(text_rows, image_rows, gallery, counting, direction), (counting, direction)


def shuffled_hits(above: int, level: int, right: int, k: int) -> float:
    """A hit at k when equal candidates come in random order, by simulation."""
    rng = np.random.default_rng(3)
    tied = np.array([True] * right + [False] * level)
    return np.mean([above < k and rng.permutation(tied)[: k - above].any() for _ in range(20_000)])


@pytest.mark.parametrize(
    "case", [(0, 1, 1), (0, 4, 1), (2, 3, 2), (4, 6, 1), (5, 0, 1), (0, 0, 3), (9, 1, 1)]
)
@pytest.mark.parametrize("k", [1, 5, 10])
def test_expected_hits_among_equals(case, k) -> None:
    ranks = Ranks(*(np.array([x]) for x in case))
    assert ranks.hits(k)[0] == pytest.approx(shuffled_hits(*case, k), abs=0.015)
    assert ranks.hits(k, "worst")[0] == float(case[0] + case[1] < k) <= ranks.hits(k)[0] + 1e-12


def test_a_model_that_knows_nothing_scores_k_of_n() -> None:
    n = 20
    gallery = pairs(range(n), [""] * n, [str(i) for i in range(n)])
    found = rank_all(np.ones((n, 4)), np.ones((n, 4)), gallery)
    for k in (1, 5, 10):
        assert found["pair", "T2M"].hits(k) == pytest.approx(np.full(n, k / n))
        assert found["pair", "M2T"].hits(k, "worst").sum() == 0


def test_lengths_of_vectors_do_not_count_and_bad_ones_are_refused() -> None:
    rng = np.random.default_rng(0)
    gallery = pairs(range(6), [""] * 6, "abcdef")
    texts, images = rng.normal(size=(6, 4)), rng.normal(size=(6, 4))
    long = images * rng.uniform(0.1, 30, size=(6, 1))
    one, two = rank_all(texts, images, gallery), rank_all(texts, long, gallery)
    assert all(np.array_equal(one[key].above, two[key].above) for key in one)
    images[2, 1] = np.nan
    with pytest.raises(ValueError, match="not all finite"):
        rank_all(texts, images, gallery)
    with pytest.raises(ValueError, match="5 rows for 6 texts"):
        rank_all(texts[:5], long, gallery)


def test_memory_stays_within_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    n, most = 6_000, 4 << 20  # the whole matrix of scores would take 144 MB
    monkeypatch.setattr(recall, "MOST_BYTES", most)
    rng = np.random.default_rng(0)
    images = rng.normal(size=(n, 8)).astype(np.float32)
    gallery = pairs(range(n), [f"t{i % 50}" for i in range(n)], [str(i % 5_000) for i in range(n)])
    tracemalloc.start()
    found = rank_all(images, images, gallery)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found["pair", "T2M"].hits(1).mean() > 0.99
    # Beside the block: vectors, counts, and lists of right candidates, about 1.5 KB a meme.
    assert peak < most + n * 2_000
