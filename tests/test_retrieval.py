"""Stage 04: equations by hand, the top K against brute force, gate, strategies, a library on disk."""

from collections import Counter
from dataclasses import replace

import made_up
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memecmd_utils import retrieval
from memecmd_utils.retrieval import Gate, calibrate_theta0, pad, simulate

QUICK = settings(max_examples=30)
WEIGHTS = (0.5, 0.25, 1.0, 0.125)
seeded = st.integers(0, 2**32 - 1).map(np.random.default_rng)


def unit(rng: np.random.Generator, *shape: int) -> np.ndarray:
    vectors = rng.standard_normal(shape).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def make(rng, turns: int = 12, blocks=None):
    """An index, of 40 memes unless its blocks are given, and queries."""
    blocks = unit(rng, 4, 40, 16) if blocks is None else blocks
    index = retrieval.build_index([f"m{i:03d}" for i in rng.permutation(len(blocks[0]))], blocks)
    return index, retrieval.build_queries(unit(rng, turns, blocks[0].shape[1]) for _ in range(3))


def brute_force(index, queries, weights, k):
    """Eq. 18 to 22 and 24 word by word, in float64."""
    s, e, psi = (queries[:, part].astype(np.float64) for part in range(3))
    s_plus, s_minus, e_m, psi_m = (part.astype(np.float64) for part in np.split(index.rows, 4, axis=1))
    terms = (s @ s_plus.T, -s @ s_minus.T, e @ e_m.T, psi @ psi_m.T)
    scores = np.round(sum(w * term for w, term in zip(weights, terms, strict=True)), 9)
    ids = np.array(index.meme_ids)
    order = np.array([np.lexsort((ids, -row))[:k] for row in scores])
    return ids[order], np.take_along_axis(scores, order, axis=1)


# --- Scores


def test_equations_18_to_22_by_hand() -> None:
    """S (.6, .8), E (1, 0), Psi (0, 1) of a turn; S+ (0, 1), S- (1, 0), E (.6, .8), Psi (-.6, -.8) of a meme.

    alpha = S . S+ = .6 * 0 + .8 * 1 = .8; delta = -(S . S-) = -(.6 * 1 + .8 * 0) = -.6, with a minus of
    its own; beta = +E . E_m = 1 * .6 + 0 * .8 = .6, which the minus that the paper prints would make -.6;
    gamma = Psi . Psi_m = 0 * -.6 + 1 * -.8 = -.8. T = .5 * .8 + .25 * -.6 + 1 * .6 + .125 * -.8 = .75"""
    blocks = [np.array([row], dtype=np.float32) for row in ((0, 1), (1, 0), (0.6, 0.8), (-0.6, -0.8))]
    index = retrieval.build_index(["m"], blocks)
    queries = retrieval.build_queries(np.array([row]) for row in ((0.6, 0.8), (1, 0), (0, 1)))
    found = retrieval.top_k(index, queries, WEIGHTS, 1)
    assert found.components[0, 0] == pytest.approx([0.8, -0.6, 0.6, -0.8], abs=1e-7)
    matrices = retrieval.component_matrices(index, queries)
    scores = found.scores[0, 0], retrieval.combine(matrices, WEIGHTS)[0, 0]
    products = (
        retrieval.weigh(queries, WEIGHTS)[0] @ index.rows[0],
        queries.ravel() @ index.fold(WEIGHTS)[:, 0],
    )
    assert [*scores, *products] == pytest.approx([0.75] * 4, abs=1e-6)


def test_equation_24_top_k_with_ties_broken_by_id() -> None:
    """Query (1, 0) in all parts, weights (1, 0, 0, 0), so T = first coordinate of S+.

    S+ of d, b, c, a: 1, .6, .6, 0. Top 3: d (1), then b before c (.6 each); a (0) is left out.
    """
    s_plus = np.array([[1, 0], [0.6, 0.8], [0.6, -0.8], [0, 1]], dtype=np.float32)
    index = retrieval.build_index(["d", "c", "b", "a"], [s_plus] * 4)
    queries = retrieval.build_queries([np.array([[1, 0]], dtype=np.float32)] * 3)
    got = retrieval.top_k(index, queries, (1, 0, 0, 0), 3)
    assert [index.meme_ids[i] for i in got.memes[0]] == ["d", "b", "c"]
    assert got.scores[0] == pytest.approx([1, 0.6, 0.6], abs=1e-7)
    assert retrieval.top_k(index, queries, WEIGHTS, 9).memes.shape == (1, 4)


@QUICK
@given(seeded, st.tuples(*[st.floats(-2, 2, width=32) for _ in range(4)]))
def test_top_k_equals_brute_force(rng, weights) -> None:
    index, queries = make(rng)
    ids, scores = brute_force(index, queries, weights, 3)
    for terms in (None, retrieval.component_matrices(index, queries)):
        got = retrieval.top_k(index, queries, weights, 3, terms)
        assert np.allclose(got.scores, scores, atol=2e-9, rtol=0)
        clear = np.diff(scores, axis=1).max(axis=1) < -1e-8  # a tie within rounding may go either way
        assert np.array_equal(np.array(index.meme_ids)[got.memes][clear], ids[clear])


def test_memes_that_float32_cannot_order_are_ordered_exactly() -> None:
    """In groups of six that lie 3e-7 apart."""
    rng, dim = np.random.default_rng(7), 384
    blocks = unit(rng, 4, 10, dim).repeat(6, axis=1)
    blocks = blocks + 3e-7 * rng.standard_normal(blocks.shape).astype(np.float32)
    index, queries = make(rng, turns=30, blocks=blocks / np.linalg.norm(blocks, axis=2, keepdims=True))
    got = retrieval.top_k(index, queries, WEIGHTS, 3).memes
    assert np.array_equal(np.array(index.meme_ids)[got], brute_force(index, queries, WEIGHTS, 3)[0])
    rough = retrieval.weigh(queries, WEIGHTS) @ index.rows.T
    assert (np.argsort(-rough, axis=1)[:, :3] != got).any()  # a float32 ranking errs here


def test_centring_by_hand() -> None:
    """Rows (1, 0), (0, 1): mean (.5, .5), gaps (.5, -.5) and (-.5, .5), of length sqrt(.5)."""
    rows = np.eye(2, dtype=np.float32)
    h = 0.5**0.5
    assert np.allclose(retrieval.centre(rows), [[h, -h], [-h, h]])
    assert np.array_equal(retrieval.centre(rows[:1]), rows[:1])  # one alone has no spread
    assert not retrieval.centre(np.repeat(rows[:1], 5000, axis=0)).any()  # equal rows have no direction
    assert not retrieval.centre(rows, rows[0])[0].any()


# --- The gate

PAPER = Gate(theta0=0.7, penalty=0.2, decay=1.0)


def test_equation_23_by_hand() -> None:
    """theta_t = .7 + .2 e^-k: k = 1: .7 + .2 * .367879 = .773576; k = 2: .7 + .2 * .135335 = .727067;
    k infinite: .7, whatever the decay: 0 * inf would be NaN and never send."""
    scores = np.array([0.8, 0.75, 0.75, 0.7])
    thresholds, sent = simulate(scores, PAPER)
    assert thresholds == pytest.approx([0.7, 0.773576, 0.727067, 0.773576], abs=1e-6)
    assert sent.tolist() == [True, False, True, False]
    assert simulate(scores[:1], Gate(0.7, 0.2, 0.0))[0].tolist() == [0.7]
    assert simulate(np.array([0.7, np.nextafter(0.7, 1)]), PAPER)[1].tolist() == [False, True]
    # After the meme at turn 1 two empty turns pass: k = 3 at turn 4, where .72 > .70996 sends.
    assert simulate(np.array([0.72, -np.inf, -np.inf, 0.72]), PAPER)[1].tolist() == [True, False, False, True]


@QUICK
@given(seeded, st.sampled_from([0.0, 0.2, 2.0]), st.sampled_from([0.2, 3.0]), st.floats(0.05, 0.6))
def test_calibrated_theta0_is_as_near_as_any_on_a_grid(rng, penalty, decay, wanted) -> None:
    scores = pad([rng.standard_normal(17), rng.standard_normal(12), rng.standard_normal(17)])
    scores[0, rng.integers(17)] = -np.inf

    def gap(theta) -> float:
        return abs(simulate(scores, Gate(theta, penalty, decay))[1].sum() - wanted * 46)

    found = calibrate_theta0(scores, Gate(None, penalty, decay), wanted, 46)
    assert gap(float(found)) <= min(map(gap, np.linspace(-4 - penalty, 4, 120))) + 1
    both = calibrate_theta0(np.stack([scores, -scores]), Gate(None, penalty, decay), wanted, 46)
    assert both[0] == found  # each set as if alone


# --- Whole dialogues

DIALOGUES = [
    made_up.dialogue_of_summaries(f"{kind}-{i}", kind) for kind in ("news", "role") for i in range(3)
]


def annotations(n: int = 12):
    parts = retrieval.MEME_SIDE
    return [made_up.annotation(f"m{i:02d}", **{p: f"meme {i} {p}" for p in parts}) for i in range(n)]


def score(dialogues=DIALOGUES, **changes):
    profile = made_up.profile(n_turns=18, **changes)
    index = retrieval.index_library(annotations(), made_up.vectors, profile)
    return retrieval.score_dialogues(dialogues, index, made_up.vectors, profile), index, profile


def by_strategy(placements):
    names = {p.strategy for p in placements}
    return {s: {(p.dialogue_id, p.turn): p for p in placements if p.strategy == s} for s in names}


def picked(strategy: str, sent: np.ndarray, k: int = 3, **changes: object) -> list[tuple]:
    """What a strategy takes where every turn ranks the memes 0, 1, 2, ... of 50."""
    memes = np.tile(np.arange(k), (len(sent), 1))
    ranking = retrieval.Ranking(memes, np.ones(memes.shape), np.zeros((*memes.shape, 4)))
    return retrieval.pick_memes(strategy, ranking, sent, 50, made_up.profile(**changes), "d")


def test_equation_25_greedy_takes_the_first_and_sampling_one_of_the_top_k() -> None:
    """Top 3 of every turn is 0, 1, 2. The gate opened at rows 0 and 2 of four. Sampling is uniform: 900 draws
    of three, chi-square with 2 degrees of freedom, 13.8 is the 0.1 % point."""
    assert picked("greedy", np.array([True, False, True, False])) == [(0, 0, 1), (2, 0, 1)]
    drawn = [pick for seed in range(100) for pick in picked("sampling", np.ones(9, bool), seed=seed)]
    counts = Counter(meme for _, meme, _ in drawn)
    assert all(rank == meme + 1 for _, meme, rank in drawn) and len(drawn) == 900
    assert sum((counts[m] - 300) ** 2 / 300 for m in range(3)) < 13.8


def test_a_moved_gate_does_not_shift_later_choices_and_random_asks_none() -> None:
    late = np.arange(17) >= 6
    for strategy in ("sampling", "random_same_turns", "random", "greedy"):
        every, some = (picked(strategy, sent, 5, random_rate=0.4) for sent in (late >= 0, late))
        assert [pick for pick in every if pick[0] >= 6] == [pick for pick in some if pick[0] >= 6]
        assert 0 < len(some) < len(every) or (strategy == "random" and some == every)


def test_where_the_strategies_place_and_what_a_placement_says() -> None:
    scored, index, profile = score()
    placements = retrieval.place(scored, index, profile)
    places, items = by_strategy(placements), {item.dialogue.dialogue_id: item for item in scored}
    assert set(places["greedy"]) == set(places["sampling"]) == set(places["random_same_turns"]) != set()
    assert set(places["random"]) != set(places["greedy"])
    for placed in placements:
        item, asked = items[placed.dialogue_id], placed.strategy != "random"
        row, meme = item.turns.index(placed.turn), index.meme_ids.index(placed.meme_id)
        assert placed.speaker == item.dialogue.turns[placed.turn - 1].speaker
        parts = retrieval.pair_components(index, item.queries[row : row + 1], np.array([[meme]]))[0, 0]
        assert placed.score == pytest.approx(parts @ np.array(profile.retrieval.weights), abs=1e-8)
        assert placed.rank is None or item.ranking.memes[row, placed.rank - 1] == meme
        assert (placed.fold != "none") == (placed.gate_score is not None) == asked
        assert not asked or placed.gate_score > placed.threshold


def gates(scored, profile) -> dict[str, Gate]:
    """The gate of each half."""
    return {half: gate for half, (gate,) in retrieval.gate_dialogues(scored, profile).fitted.items()}


def test_no_dialogue_is_placed_by_a_gate_fitted_on_itself() -> None:
    scored, _, profile = score()
    split, before = retrieval.halves(DIALOGUES), gates(scored, profile)
    assert sorted(split.values()) == list("aaabbb")
    for position, item in enumerate(scored):
        half = split[item.dialogue.dialogue_id]
        other = "b" if half == "a" else "a"
        changed = replace(item, ranking=item.ranking._replace(scores=item.ranking.scores + 1.0))
        after = gates([*scored[:position], changed, *scored[position + 1 :]], profile)
        assert after[half] == before[half] and before[half].fold == other
        assert after[other].mean != before[other].mean


def test_a_half_without_any_score_falls_back_to_the_other() -> None:
    split = retrieval.halves(DIALOGUES)
    empty = made_up.dialogue_of_summaries("news-1", "news", unscored=range(2, 19))
    alone = [one for one in DIALOGUES if split[one.dialogue_id] == "a"][:1]
    for some in (alone, [DIALOGUES[0], empty]):
        scored, index, profile = score(some)
        found = gates(scored, profile)
        assert found["a"] == replace(found["b"], fold="self") and found["b"].fold == "a"
        placed = [p for p in retrieval.place(scored, index, profile) if p.strategy == "greedy"]
        assert {(split[p.dialogue_id], p.fold) for p in placed} == {("a", "self")}


def test_unscored_annotations_and_summaries_are_left_out_but_their_turns_count() -> None:
    broken = made_up.annotation("broken", unscored="no JSON")
    index = retrieval.index_library([broken, *annotations()], made_up.vectors, made_up.profile())
    assert "broken" not in index.meme_ids
    with pytest.raises(ValueError, match="no meme has a usable annotation"):
        retrieval.index_library([broken], made_up.vectors, made_up.profile())
    chat = made_up.dialogue_of_summaries("news-0", "news", unscored=(2, 9, 10))
    scored, index, profile = score([chat, *DIALOGUES[1:]], random_rate=1.0)
    missing = [scored[0].turns.index(t) for t in (2, 9, 10)]
    assert np.isinf(scored[0].top1[missing]).all() and np.isfinite(np.delete(scored[0].top1, missing)).all()
    assert not {c.turn for c in retrieval.candidates(scored[:1], index, "x")} & {2, 9, 10}
    places = by_strategy(retrieval.place(scored, index, profile))
    assert not {t for d, t in places["greedy"] if d == "news-0"} & {2, 9, 10}
    assert [places["random"]["news-0", t].score for t in (2, 9, 10)] == [None] * 3
    with pytest.raises(ValueError, match="no turn has a usable summary"):
        score([made_up.dialogue_of_summaries("news-0", "news", unscored=range(2, 19))])
    alike = [s.model_copy(update=dict.fromkeys(retrieval.QUERY_FIELDS, "一样")) for s in chat.summaries]
    with pytest.raises(ValueError, match="summaries of all turns are equal, which needs centring=none"):
        score([chat.model_copy(update={"summaries": alike})])


# --- A library on disk


def test_a_library_on_disk_ranks_as_in_memory_and_is_made_once(tmp_path, monkeypatch) -> None:
    pytest.importorskip("faiss")
    monkeypatch.setattr(retrieval, "FROM_MEMES", 600)
    monkeypatch.setattr(retrieval, "AT_ONCE", 256)
    said, profile, asked = annotations(700), made_up.profile(n_turns=18), []

    def encode(texts, side):
        asked.append(len(texts))
        return made_up.vectors(texts, side)

    small = retrieval.index_library(said, made_up.vectors, profile)
    large = retrieval.index_library(said, encode, profile, tmp_path / "index")
    assert large.rows.dtype == np.float16 and np.allclose(large.rows, small.rows, atol=1e-3)
    scored = retrieval.score_dialogues(DIALOGUES, small, made_up.vectors, profile)
    queries = np.concatenate([item.queries for item in scored])
    ours, theirs = (retrieval.top_k(index, queries, WEIGHTS, 3) for index in (large, small))
    same = (ours.memes[:, :, None] == theirs.memes[:, None, :]).any(axis=1)
    assert same.mean() > 0.6  # approximate in which memes are found, exact in their scores
    fewer = retrieval.tuned(large, queries, WEIGHTS, 3)
    assert (retrieval.top_k(fewer, queries, WEIGHTS, 1).memes == theirs.memes[:, :1]).mean() > 0.9
    assert np.allclose(ours.components, retrieval.pair_components(small, queries, ours.memes), atol=5e-3)
    before, _ = len(asked), retrieval.index_library(said, encode, profile, tmp_path / "index")
    assert len(asked) == before + 1  # the embedder is asked for one text, to see that it is the same
    grown = retrieval.index_library(annotations(701), encode, profile, tmp_path / "index")
    assert len(grown.meme_ids) == len(grown.rows) == 701
