from collections import Counter

import made_up
import numpy as np
import pytest

from memecmd_utils.retrieval import gate, placement, scoring

N_MEMES = 12


def encode(texts, side):
    return made_up.vectors(texts, side)


def talk(name: str, kind: str = "news", n_turns: int = 18, unscored: tuple[int, ...] = ()):
    """A dialogue whose summaries all differ; those at the turns `unscored` are missing."""
    base = made_up.dialogue(name, tuple(f"{name} says {t}" for t in range(1, n_turns + 1)))
    summaries = []
    for s in base.summaries:
        texts = {part: f"{name} {part} {s.turn}" for part in ("scenario", "emotion", "motivation")}
        if s.turn in unscored:
            texts = dict.fromkeys(texts, "") | {"unscored": "unusable: not JSON"}
        summaries.append(s.model_copy(update=texts))
    return base.model_copy(update={"kind": kind, "summaries": summaries})


def annotations(n: int = N_MEMES, **changes):
    parts = scoring.MEME_SIDE
    return [
        made_up.annotation(f"m{i:02d}", **{part: f"meme {i} {part}" for part in parts}, **changes)
        for i in range(n)
    ]


DIALOGUES = [talk(f"news-{i}") for i in range(3)] + [talk(f"role-{i}", "role") for i in range(3)]


def score(dialogues=DIALOGUES, **changes):
    profile = made_up.profile(n_turns=18, **changes)
    index = placement.index_library(annotations(), encode, profile)
    return placement.score_dialogues(dialogues, index, encode, profile), index, profile


def by_strategy(placements):
    out = {}
    for placed in placements:
        out.setdefault(placed.strategy, {})[placed.dialogue_id, placed.turn] = placed
    return out


def ranking_of(n_turns: int, memes: int = 5) -> scoring.Ranking:
    """Every turn ranks the memes 0, 1, 2, ..."""
    shape = (n_turns, memes)
    return scoring.Ranking(np.tile(np.arange(memes), (n_turns, 1)), np.ones(shape), np.zeros((*shape, 4)))


def test_equation_25_greedy_takes_the_first_and_sampling_one_of_the_top_k() -> None:
    """Top 3 of every turn is 0, 1, 2. Greedy takes 0 (rank 1); sampling one of the three, rank = meme + 1.
    The gate opened at rows 0 and 2 of four."""
    sent = np.array([True, False, True, False])
    profile = made_up.profile()
    greedy = placement.choose("greedy", ranking_of(4, 3), sent, 50, profile, "d")
    assert greedy == [(0, 0, 1), (2, 0, 1)]
    sampling = placement.choose("sampling", ranking_of(4, 3), sent, 50, profile, "d")
    assert [row for row, _, _ in sampling] == [0, 2]
    assert all(meme in (0, 1, 2) and rank == meme + 1 for _, meme, rank in sampling)


def test_sampling_is_uniform_among_the_top_k() -> None:
    """900 draws of three: chi-square with 2 degrees of freedom, 13.8 is the 0.1 % point."""
    counts: Counter = Counter()
    for seed in range(100):
        profile = made_up.profile(seed=seed)
        for _, meme, _ in placement.choose("sampling", ranking_of(9, 3), np.ones(9, bool), 50, profile, "d"):
            counts[meme] += 1
    assert sum((counts[m] - 300) ** 2 / 300 for m in range(3)) < 13.8 and sum(counts.values()) == 900


@pytest.mark.parametrize("strategy", ["random", "random_same_turns"])
def test_random_memes_are_uniform_over_the_library(strategy) -> None:
    """Chi-square over 10 memes with 9 degrees of freedom: 27.9 is the 0.1 % point."""
    counts: Counter = Counter()
    for seed in range(100):
        profile = made_up.profile(seed=seed)
        for _, meme, rank in placement.choose(strategy, ranking_of(10), np.ones(10, bool), 10, profile, "d"):
            counts[meme] += 1
            assert rank == (meme + 1 if meme < 5 else None)
    each = sum(counts.values()) / 10
    assert sum((counts[m] - each) ** 2 / each for m in range(10)) < 27.9


def test_random_sends_at_about_its_rate_and_asks_no_gate() -> None:
    """1,700 turns at rate .4: 680 expected, standard deviation sqrt(1700 * .4 * .6) = 20."""
    sent = 0
    for seed in range(100):
        profile = made_up.profile(seed=seed, random_rate=0.4)
        shut = placement.choose("random", ranking_of(17), np.zeros(17, bool), 10, profile, "d")
        wide = placement.choose("random", ranking_of(17), np.ones(17, bool), 10, profile, "d")
        assert shut == wide
        sent += len(shut)
    assert abs(sent - 680) < 80


def test_a_moved_gate_does_not_shift_later_choices() -> None:
    profile = made_up.profile()
    wide = np.ones(17, bool)
    late = wide.copy()
    late[:6] = False
    for strategy in ("sampling", "random_same_turns", "random", "greedy"):
        every = placement.choose(strategy, ranking_of(17), wide, 10, profile, "d")
        some = placement.choose(strategy, ranking_of(17), late, 10, profile, "d")
        assert [pick for pick in every if pick[0] >= 6] == [pick for pick in some if pick[0] >= 6]


def test_where_the_strategies_place() -> None:
    scored, index, profile = score()
    places = by_strategy(placement.place(scored, index, profile))
    gated = placement.traces(scored, placement.calibrate(scored, profile))
    gate_turns = {
        (item.dialogue.dialogue_id, turn)
        for item in scored
        for turn, sent in zip(item.turns, gated[item.dialogue.dialogue_id][2].sent, strict=True)
        if sent
    }
    assert gate_turns
    for strategy in ("greedy", "sampling", "random_same_turns"):
        assert set(places[strategy]) == gate_turns
    assert set(places["random"]) != gate_turns
    top = {
        (item.dialogue.dialogue_id, turn): [index.meme_ids[m] for m in item.ranking.memes[row]]
        for item in scored
        for row, turn in enumerate(item.turns)
    }
    assert all(p.meme_id == top[key][0] and p.rank == 1 for key, p in places["greedy"].items())
    assert all(p.meme_id == top[key][p.rank - 1] for key, p in places["sampling"].items())
    assert {p.rank for p in places["sampling"].values()} == {1, 2, 3}


def by_learned(scored, promises):
    """What learned placement would say: at every turn the meme of its number, and a made-up promise."""
    rng, out = np.random.default_rng(4), []
    for item in scored:
        n = len(item.turns)
        ranking = scoring.Ranking(
            np.arange(n)[:, None] % N_MEMES, promises(rng, n)[:, None], np.zeros((n, 1, 4))
        )
        out.append(placement.ScoredDialogue(item.dialogue, item.turns, np.zeros((n, 4, 0)), ranking))
    return out


def test_learned_places_its_own_memes_where_it_promises_most() -> None:
    scored, index, profile = score(strategies=["greedy", "learned"])
    promised = by_learned(scored, lambda rng, n: rng.random(n))
    places = by_strategy(placement.place(scored, index, profile, promised))
    assert places["greedy"] == by_strategy(placement.place(scored, index, profile))["greedy"]
    sent = places["learned"]
    rate = profile.retrieval.wanted_rate
    assert len(sent) == pytest.approx(rate * sum(len(item.turns) for item in scored), abs=8)
    for item in promised:
        name, promise = item.dialogue.dialogue_id, dict(zip(item.turns, item.top1, strict=True))
        mine = {turn for dialogue, turn in sent if dialogue == name}
        if mine and len(mine) < len(promise):
            assert min(promise[t] for t in mine) > max(promise[t] for t in promise.keys() - mine)
        for turn in mine:
            placed = sent[name, turn]
            assert placed.meme_id == index.meme_ids[(turn - 2) % N_MEMES] and placed.rank == 1
            assert placed.gate_score > placed.threshold and placed.fold != placement.halves(DIALOGUES)[name]
    assert "learned" not in by_strategy(placement.place(scored, index, profile))  # nothing was said


def test_learned_forgets_its_last_meme_unless_it_is_told_to_remember() -> None:
    scored, index, profile = score(strategies=["learned"])
    promised = by_learned(scored, lambda rng, n: np.repeat(rng.random(-(-n // 3)), 3)[:n])

    def followed(profile) -> int:
        sent = by_strategy(placement.place(scored, index, profile, promised))["learned"]
        return sum((name, turn + 1) in sent for name, turn in sent)

    assert followed(profile.replace(learned_penalty=5.0)) < followed(profile)


def test_a_placement_says_who_why_and_how_well() -> None:
    scored, index, profile = score()
    split = placement.halves(DIALOGUES)
    items = {item.dialogue.dialogue_id: item for item in scored}
    for placed in placement.place(scored, index, profile):
        item = items[placed.dialogue_id]
        row = item.turns.index(placed.turn)
        assert placed.speaker == item.dialogue.turns[placed.turn - 1].speaker
        meme = index.meme_ids.index(placed.meme_id)
        parts = scoring.pair_components(index, item.queries[row : row + 1], np.array([[meme]]))[0, 0]
        assert placed.score == pytest.approx(parts @ np.array(profile.retrieval.weights), abs=1e-8)
        if placed.rank is not None:
            assert placed.score == pytest.approx(item.ranking.scores[row, placed.rank - 1], abs=1e-8)
        if placed.strategy == "random":
            assert (placed.fold, placed.gate_score, placed.threshold) == ("none", None, None)
        else:
            assert placed.fold != split[placed.dialogue_id]
            assert placed.gate_score > placed.threshold


def test_halves_alternate_within_each_kind() -> None:
    names = ["news-3", "news-1", "role-2", "news-2", "role-1", "role-3", "role-4"]
    split = placement.halves([talk(name, name.split("-")[0]) for name in names])
    news, role = ("".join(split[n] for n in sorted(names) if n.startswith(k)) for k in ("news", "role"))
    assert news in ("aba", "bab") and role in ("abab", "baba")
    assert abs(sum(h == "a" for h in split.values()) - len(names) / 2) <= 1
    assert split == placement.halves([talk(name, name.split("-")[0]) for name in reversed(names)])


def test_no_dialogue_is_placed_by_a_gate_fitted_on_itself() -> None:
    scored, _, profile = score()
    split = placement.halves(DIALOGUES)
    before = placement.calibrate(scored, profile)
    for position, item in enumerate(scored):
        half = split[item.dialogue.dialogue_id]
        other = "b" if half == "a" else "a"
        ranking = scoring.Ranking(item.ranking.memes, item.ranking.scores + 1.0, item.ranking.components)
        changed = placement.ScoredDialogue(item.dialogue, item.turns, item.queries, ranking)
        after = placement.calibrate([*scored[:position], changed, *scored[position + 1 :]], profile)
        assert after[half] == before[half]
        assert after[other].scale != before[other].scale
        assert before[half].fold == other


def test_one_dialogue_alone_calibrates_on_itself() -> None:
    scored, index, profile = score(DIALOGUES[:1])
    assert {c.fold for c in placement.calibrate(scored, profile).values()} == {"self", "a"}
    folds = {p.fold for p in placement.place(scored, index, profile) if p.strategy != "random"}
    assert folds == {"self"}


@pytest.mark.parametrize("score_scale", ["standard", "raw"])
@pytest.mark.parametrize("mute", ["a", "b"])
def test_a_half_without_any_summary_falls_back_to_the_other(mute, score_scale) -> None:
    """As in the studies' gates: what is fitted then comes from the half that has scores, and is called so."""
    split = placement.halves(DIALOGUES)
    talks = [
        talk_.model_copy(
            update={"summaries": [s.model_copy(update={"unscored": "made up"}) for s in talk_.summaries]}
        )
        if split[talk_.dialogue_id] == mute
        else talk_
        for talk_ in DIALOGUES
    ]
    scored, index, profile = score(talks, score_scale=score_scale)
    found = placement.calibrate(scored, profile)
    speaks = "b" if mute == "a" else "a"
    assert found[speaks].fold == "self" and found[mute].fold == speaks
    assert found[speaks].scale == found[mute].scale and found[speaks].gate == found[mute].gate
    placed = [p for p in placement.place(scored, index, profile) if p.strategy == "greedy"]
    assert placed and {split[p.dialogue_id] for p in placed} == {speaks}
    assert {p.fold for p in placed} == {"self"}


def test_calibration_meets_the_wanted_rate_and_the_raw_scale_is_left_alone() -> None:
    scored, _, profile = score(wanted_rate=0.4)
    for half, found in placement.calibrate(scored, profile).items():
        split = placement.halves(DIALOGUES)
        other = [found.scale.apply(i.top1) for i in scored if split[i.dialogue.dialogue_id] != half]
        rate = np.mean([gate.simulate(scores, found.gate).sent for scores in other])
        assert rate == pytest.approx(0.4, abs=0.03)
    fixed, _, profile = score(score_scale="raw", theta0=0.7, threshold_penalty=0.2)
    for found in placement.calibrate(fixed, profile).values():
        assert found.scale == gate.ScoreScale(0.0, 1.0)
        assert found.gate == gate.Gate(0.7, 0.2, 1.0)


def test_unscored_annotations_are_left_out() -> None:
    broken = made_up.annotation(
        "broken", s_plus="", s_minus="", emotion="", motivation="", unscored="unusable"
    )
    good = annotations()
    asked = []

    def noting(texts, side):
        asked.append((tuple(texts), side))
        return encode(texts, side)

    index = placement.index_library([good[0], broken, *good[1:]], noting, made_up.profile())
    assert index.meme_ids == tuple(a.meme_id for a in good)
    assert [side for _, side in asked] == ["document"] * 4
    assert all("" not in texts for texts, _ in asked)
    with pytest.raises(ValueError, match="no meme has a usable annotation"):
        placement.index_library([broken], encode, made_up.profile())


def test_unscored_summaries_never_send_but_their_turns_count() -> None:
    chat = talk("news-0", unscored=(2, 9, 10))
    scored, index, profile = score([chat, *DIALOGUES[1:]], random_rate=1.0)
    item = scored[0]
    assert item.turns == tuple(range(2, 19))
    missing = [item.turns.index(t) for t in (2, 9, 10)]
    assert np.isinf(item.top1[missing]).all() and np.isfinite(np.delete(item.top1, missing)).all()
    assert not {(c.turn) for c in placement.candidates(scored[:1], index, "x")} & {2, 9, 10}
    places = by_strategy(placement.place(scored, index, profile))
    for strategy in ("greedy", "sampling", "random_same_turns"):
        assert not {t for d, t in places[strategy] if d == "news-0"} & {2, 9, 10}
    for turn in (2, 9, 10):
        placed = places["random"]["news-0", turn]
        assert placed.score is None and placed.rank is None
    # The other turns of the dialogue rank as if nothing were missing beside them.
    plain, _, _ = score([chat, *DIALOGUES[1:]], centring="none")
    whole, _, _ = score([DIALOGUES[0], *DIALOGUES[1:]], centring="none")
    kept = np.setdiff1d(np.arange(17), missing)
    assert np.array_equal(plain[0].ranking.memes[kept], whole[0].ranking.memes[kept])
    assert np.array_equal(plain[0].ranking.scores[kept], whole[0].ranking.scores[kept])


def test_centring_is_per_attribute_and_per_side() -> None:
    scored, index, _ = score()
    plain, plain_index, _ = score(centring="none")

    def centred(vectors):
        moved = vectors - vectors.mean(axis=0)
        return moved / np.linalg.norm(moved, axis=1, keepdims=True)

    blocks = plain_index.rows.reshape(N_MEMES, 4, -1)
    got = index.rows.reshape(N_MEMES, 4, -1)
    for part in range(4):
        assert np.allclose(got[:, part], centred(blocks[:, part]), atol=1e-6)
    before = np.concatenate([item.queries for item in plain])
    after = np.concatenate([item.queries for item in scored])
    for part in range(4):
        assert np.allclose(after[:, part], centred(before[:, part]), atol=1e-6)
    assert np.allclose(after[:, 0], -after[:, 1], atol=1e-6)  # Eq. 19's minus on the same scenario


def test_candidates_are_the_top_k_with_their_parts() -> None:
    scored, index, profile = score()
    found = placement.candidates(scored, index, "made-up")
    assert len(found) == 6 * 17 * 3
    for c in found:
        assert c.score == pytest.approx(
            np.dot(profile.retrieval.weights, [c.alpha, c.delta, c.beta, c.gamma]), abs=1e-8
        )
    of_turn = [c for c in found if (c.dialogue_id, c.turn) == ("role-1", 5)]
    assert [c.rank for c in of_turn] == [1, 2, 3]
    assert [c.score for c in of_turn] == sorted((c.score for c in of_turn), reverse=True)


def test_without_any_usable_summary_retrieval_ends_with_a_sentence() -> None:
    _, index, profile = score()
    silent = talk("news-0", unscored=range(2, 19))
    with pytest.raises(ValueError, match="no turn has a usable summary"):
        placement.score_dialogues([silent], index, encode, profile)
    both = placement.score_dialogues([silent, talk("role-1")], index, encode, profile)
    assert not np.isfinite(both[0].top1).any() and np.isfinite(both[1].top1).all()


def test_all_scores_of_a_small_run_and_a_seeded_sample_of_a_large_one() -> None:
    profile = made_up.profile(n_turns=18)
    index = placement.index_library(annotations(), encode, profile)
    scored = placement.score_dialogues(DIALOGUES, index, encode, profile)
    everything = [
        scoring.combine(scoring.component_matrices(index, item.queries), profile.retrieval.weights)
        for item in scored
    ]
    flat = np.concatenate([part.ravel() for part in everything])
    assert np.allclose(placement.sample_scores(scored, index, profile), flat)
    some = placement.sample_scores(scored, index, profile, limit=200)
    assert some.shape == (200,) and some.dtype == np.float32
    assert np.array_equal(some, placement.sample_scores(scored, index, profile, limit=200))
    assert np.abs(some[:, None] - flat).min(axis=1).max() < 1e-6, "each is the score of some pair"
    rest = list(flat)
    for value in some:  # and no pair is drawn twice
        rest.pop(int(np.abs(np.array(rest) - value).argmin()))
    assert len(rest) == len(flat) - 200
    assert placement.sample_scores([], index, profile).shape == (0,)
