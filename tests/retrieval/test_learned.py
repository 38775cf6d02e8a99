"""What a learned placement applies: scores against a plain double loop, centring, files."""

from pathlib import Path

import made_up
import numpy as np
import pytest

from memecmd_utils.retrieval import learned
from memecmd_utils.retrieval.learned import (
    LearnedIndex,
    LearnedPlacement,
    PlacementError,
    PlacementModel,
    Ranker,
    Trees,
    WantedGate,
)
from memecmd_utils.schemas import Annotation, Meme, SummaryReply


def made_model(seed: int, dims: tuple[int, ...] = (4, 3)) -> PlacementModel:
    rng = np.random.default_rng(seed)
    gate = WantedGate(rng.normal(size=5 * dims[0] + 2).astype(np.float32).astype(float), 0.25)
    trees = Trees(
        rng.integers(36 * len(dims), size=(3, 2)).astype(np.uint8),
        rng.normal(size=(3, 2)).astype(np.float32),
        # The root parts leaf 0 from 1 and 2, the other node parts 1 from 2.
        np.array([[0xFFFE, 0xFFFD]] * 3, np.uint16),
        rng.normal(size=(3, 3)).astype(np.float32),
    )
    gains = np.array([[-0.5, 0.0, 0.5], [0.0, 1.0, 3.0]])
    names = tuple(f"made-{dim}" for dim in dims)
    return PlacementModel(names, Ranker(rng.normal(size=(len(dims), 6, 6)).round(5)), trees, gate, gains)


def test_a_score_is_the_weighted_sum_of_all_cosines() -> None:
    rng, model = np.random.default_rng(0), made_model(1)
    turns = [rng.normal(size=(5, 6, dim)).astype(np.float32) for dim in (4, 3)]
    memes = [rng.normal(size=(7, 6, dim)).astype(np.float32) for dim in (4, 3)]
    plain = np.zeros((5, 7))
    for e, weights in enumerate(model.ranker.weights):
        for i in range(6):
            for j in range(6):
                plain += weights[i, j] * (turns[e][:, i] @ memes[e][:, j].T)
    assert np.allclose(model.ranker.score(turns, model.ranker.meme_rows(memes)), plain, atol=1e-4)


def test_a_weight_matrix_of_low_rank_is_scored_in_fewer_products() -> None:
    rng = np.random.default_rng(0)
    weights = np.einsum("ear,erb->eab", rng.normal(size=(2, 6, 2)), rng.normal(size=(2, 2, 6)))
    ranker = Ranker(weights.round(5))
    memes = [rng.normal(size=(7, 6, dim)).astype(np.float32) for dim in (4, 3)]
    turns = [rng.normal(size=(5, 6, dim)).astype(np.float32) for dim in (4, 3)]
    assert ranker.meme_rows(memes).shape == (7, 2 * (4 + 3))
    parts = zip(weights, turns, memes, strict=True)
    plain = sum(np.einsum("ij,tid,mjd->tm", w, t, m) for w, t, m in parts)
    assert np.allclose(ranker.score(turns, ranker.meme_rows(memes)), plain, atol=1e-3)


def test_trees_sum_the_leaves_that_a_walk_from_the_root_reaches() -> None:
    rng, trees = np.random.default_rng(5), made_model(1).trees
    pairs = rng.normal(size=(200, 72))
    for pair, got in zip(pairs, trees.predict(pairs), strict=True):
        plain = 0.0
        for (a, b), (first, second), values in zip(
            trees.features, trees.thresholds, trees.values, strict=True
        ):
            leaf = 0 if pair[a] <= first else 1 if pair[b] <= second else 2
            plain += values[leaf]
        assert got == pytest.approx(plain)


def test_the_best_memes_are_those_of_the_linear_form_in_the_order_of_both(monkeypatch) -> None:
    rng, model = np.random.default_rng(6), made_model(1)
    monkeypatch.setattr(learned, "RERANKED", 3)
    turns = [rng.normal(size=(600, 6, dim)).astype(np.float32) for dim in (4, 3)]
    memes = [rng.normal(size=(9, 6, dim)).astype(np.float32) for dim in (4, 3)]
    index = LearnedIndex(model, [f"m{m}" for m in range(9)], memes)
    linear = model.ranker.score(turns, index.rows)
    linear -= linear.mean(axis=1, keepdims=True)
    cosines = np.stack([np.einsum("tid,mjd->tmij", t, m) for t, m in zip(turns, memes, strict=True)], axis=2)
    both = linear + model.trees.predict(cosines.reshape(-1, 72)).reshape(linear.shape)
    best, scores = index.best(turns, 2)
    full = index.scores(turns)
    for row in range(len(linear)):
        first = np.argsort(-linear[row])[:3]
        wanted = first[np.argsort(-both[row, first])]
        assert best[row].tolist() == wanted[:2].tolist()
        assert np.allclose(scores[row], both[row, wanted[:2]], atol=1e-4)
        rest = [m for m in np.argsort(-linear[row]) if m not in first]
        assert np.argsort(-full[row]).tolist() == [*wanted, *rest]


def test_texts_of_a_turn_and_of_a_meme_stand_in_their_order() -> None:
    summary = SummaryReply(scenario="场景", emotion="情绪", motivation="动机")
    assert learned.turn_texts(["一", "二", "三", "四"], summary) == (
        "场景", "情绪", "动机", "场景\n情绪\n动机", "四", "二\n三\n四"
    )  # fmt: skip
    meme = Meme(
        meme_id="m1", file="a.png", text="好的", text_source="known", picture_note="一只猫", origin="m1",
        sha256="0", phash="0", width=1, height=1, source="drawn",
    )  # fmt: skip
    annotation = Annotation(
        meme_id="m1", s_plus="加", s_minus="减", emotion="喜", motivation="逗", source="authored"
    )
    assert learned.meme_texts(meme, annotation) == ("加", "减", "喜", "逗", "好的", "一只猫\n好的")


def test_each_kind_of_text_is_centred_by_its_own_mean_and_an_empty_one_says_nothing() -> None:
    table = {"a": [1, 0], "b": [0, 1], "c": [0.6, 0.8], "d": [0.8, 0.6], "": [0.6, -0.8]}

    def encode(texts, side):
        assert side == "query"
        return np.array([table[text] for text in texts], dtype=np.float32)

    vectors, means = learned.encode_texts([("a", "c"), ("b", "")], encode, "query")
    assert np.allclose(means, [[0.5, 0.5], [0.6, 0.0]])
    assert np.allclose(vectors[:, 0], [[0.5**0.5, -(0.5**0.5)], [-(0.5**0.5), 0.5**0.5]], atol=1e-6)
    assert np.allclose(vectors[:, 1], [[0, 1], [0, 0]], atol=1e-6)
    # One more turn, by the means of the others.
    more, same = learned.encode_texts([("a", "d")], encode, "query", means)
    assert np.allclose(more[0, 0], vectors[0, 0]) and np.array_equal(same, means)


def test_promise_is_the_chance_that_one_is_wanted_times_the_gain_to_expect() -> None:
    model, inputs = made_model(2), np.random.default_rng(3).normal(size=(4, 22))
    wanted = 1 / (1 + np.exp(-(inputs @ model.gate.coefficients + 0.25)))
    best = np.array([-1.0, -0.25, 0.25, 9.0])
    assert np.allclose(model.promise(best, inputs), wanted * [0, 0.5, 2, 3])


def test_the_gate_reads_five_texts_the_number_and_the_speaker() -> None:
    vectors = np.arange(12, dtype=np.float32).reshape(1, 6, 2)
    assert learned.gate_inputs(vectors, [9], ["A"]).tolist() == [[0, 1, 2, 3, 4, 5, 8, 9, 10, 11, 0.5, 1]]


def test_a_file_gives_back_what_was_saved(tmp_path: Path) -> None:
    one, two, three = made_model(1), made_model(2), made_model(3)
    path = tmp_path / "placement.json"
    means = [np.full((6, dim), 0.125, np.float32) for dim in (4, 3)]
    promises = np.linspace(0, 2, 101).round(5)
    LearnedPlacement(one, [two, three], {"a": 0, "b": 1, "c": 0}, means, promises).save(path)
    found = learned.load_placement(path)
    assert all(np.array_equal(a, b) for a, b in zip(found.turn_means, means, strict=True))
    assert found.threshold(0.25) == pytest.approx(1.5)
    for name, model in {"a": two, "b": three, "c": two, "of another run": one}.items():
        got = found.of_dialogue(name)
        assert got.embedders == model.embedders and np.array_equal(got.ranker.weights, model.ranker.weights)
        assert np.array_equal(got.gate.coefficients, model.gate.coefficients)
        assert np.array_equal(got.gains, model.gains)
        assert all(
            np.array_equal(a, b)
            for a, b in zip(vars(got.trees).values(), vars(model.trees).values(), strict=True)
        )


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", '{"model": {"embedders": ["a"]}, "folds": [], "fold_of": {}}']
)
def test_another_file_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "placement.json").write_text(text)
    with pytest.raises(PlacementError, match="no learned placement"):
        learned.load_placement(tmp_path / "placement.json")
    with pytest.raises(PlacementError, match="no learned placement"):
        learned.load_placement(tmp_path / "elsewhere.json")


def test_weights_are_refused_under_other_embedders() -> None:
    placement = LearnedPlacement(made_model(1), [], {}, [], np.empty(0))
    placement.check_embedders(["made-4", "made-3"])
    with pytest.raises(PlacementError, match="fit-placement"):
        placement.check_embedders(["made-4", "other-3"])


# --- all dialogues of a run


def made_encode(dim: int):
    return lambda texts, side: made_up.vectors(list(texts), f"{side} {dim}")[:, :dim]


def made_library(folds: int = 0, **names) -> learned.LearnedLibrary:
    models = [made_model(seed) for seed in range(1 + folds)]
    means = [np.zeros((6, dim), np.float32) for dim in (4, 3)]
    placed = LearnedPlacement(models[0], models[1:], names, means, np.empty(0))
    annotations = [made_up.annotation(f"m{n}", s_plus=f"plus {n}") for n in range(6)]
    memes = {a.meme_id: made_up.meme(a.meme_id) for a in annotations}
    return learned.open_library(placed, memes, annotations, [made_encode(4), made_encode(3)])


def test_every_dialogue_is_scored_by_the_model_that_did_not_see_it() -> None:
    library = made_library(2, seen=1)
    seen, other = made_up.dialogue("seen"), made_up.dialogue("other")
    found = {
        d.dialogue_id: s
        for d, s in zip((seen, other), learned.score_dialogues((seen, other), library), strict=True)
    }
    for dialogue, model in ((seen, library.placement.folds[1]), (other, library.placement.model)):
        texts = [
            learned.turn_texts([u.text for u in dialogue.turns if u.turn < s.turn], s)
            for s in dialogue.summaries
        ]
        turns, speakers = ([getattr(s, name) for s in dialogue.summaries] for name in ("turn", "speaker"))
        best, _, promise = library.promises(model, texts, turns, speakers)
        item = found[dialogue.dialogue_id]
        assert item.turns == tuple(turns)
        assert np.allclose(item.top1, promise) and item.ranking.memes[:, 0].tolist() == best.tolist()


def test_a_turn_without_a_summary_promises_nothing() -> None:
    base = made_up.dialogue("a")
    empty = dict.fromkeys(("scenario", "emotion", "motivation"), "") | {"unscored": "unusable"}
    summaries = [s.model_copy(update=empty) if s.turn == 3 else s for s in base.summaries]
    mute = base.model_copy(update={"summaries": [s.model_copy(update=empty) for s in summaries]})
    some, none = learned.score_dialogues(
        (base.model_copy(update={"summaries": summaries}), mute), made_library()
    )
    assert np.isneginf(some.top1).tolist() == [s.turn == 3 for s in summaries]
    assert np.isneginf(none.top1).all()


def test_a_run_with_other_embedders_goes_on_without_learned(tmp_path: Path, capsys) -> None:
    library = made_library()
    library.placement.save(tmp_path / learned.FILE)
    annotations = [made_up.annotation(name) for name in library.meme_ids]
    memes = {a.meme_id: made_up.meme(a.meme_id) for a in annotations}

    class Embedder:
        def __init__(self, name: str, dim: int) -> None:
            self.name, self.encode = name, made_encode(dim)

    def score(profile, *names: str) -> list:
        embedders = [Embedder(name, dim) for name, dim in zip(names, (4, 3), strict=True)]
        return learned.score_by_learned(
            [made_up.dialogue("a")], memes, annotations, embedders, tmp_path, profile
        )

    profile = made_up.profile()
    assert len(score(profile, "made-4", "made-3")) == 1 and capsys.readouterr().out == ""
    assert score(profile, "made-4", "other") == []
    assert "fit your own with `make fit-placement`" in capsys.readouterr().out
    assert score(profile.replace(strategies=["greedy"]), "made-4", "other") == []
    assert capsys.readouterr().out == ""
