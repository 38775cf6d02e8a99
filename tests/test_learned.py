"""Learned placement on made-up turns: it finds what is there, and sees nothing of what it predicts."""

import copy
import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace

import made_turns
import made_up
import numpy as np
import pytest
from sklearn.linear_model import Ridge

from memecmd_utils import files, grades, learned, splits
from memecmd_utils.files import paths
from memecmd_utils.retrieval import Gate
from memecmd_utils.runs import Run
from memecmd_utils.splits import Split, Turns

NAMES = ("one", "two")


@pytest.fixture(scope="module")
def turns() -> Turns:
    """Emotion meets emotion decides which meme fits; the first number of S decides whether one is wanted."""
    made, rng = made_turns.world(20, 6, 24, {"emotion"}), np.random.default_rng(0)
    wanted = made.turn_vectors[0][0][:, 0, 0] > 0
    marks = np.stack([wanted, wanted ^ (rng.random(len(wanted)) < 0.05)], axis=1).astype(float)
    return changed(made, marks=marks)


def changed(turns: Turns, **values) -> Turns:
    """The same turns and memes with other matrices."""
    other = copy.copy(turns)
    vars(other).update(values)
    vars(other).pop("answerable", None)  # it is made of the grades
    return other


@pytest.fixture(scope="module", autouse=True)
def few():
    """As many choices as made-up turns need."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(learned, "PENALTIES", (3.0, 30.0))
        patch.setattr(learned, "GATE_STRENGTHS", (0.3,))
        yield


@pytest.fixture(scope="module")
def placement(turns: Turns, few) -> learned.LearnedPlacement:
    return learned.learn(turns, NAMES)


@pytest.mark.parametrize("ungraded", (0, 0.3))
def test_weights_are_those_of_a_ridge_regression_within_turns(turns: Turns, ungraded: float) -> None:
    x, given = turns.cosines[:20], np.where(np.arange(turns.grades.shape[1]) % 3, turns.grades[:20], np.nan)
    weights = np.where(np.isnan(given), ungraded, 1.0)
    # What nobody graded counts as 0 by its weight; an own intercept for every turn takes its mean away.
    intercepts = np.repeat(np.eye(20) * 1e3, x.shape[1], axis=0)
    columns = np.column_stack([x.reshape(-1, x.shape[2]), intercepts])
    theirs = Ridge(alpha=3.0, fit_intercept=False, solver="cholesky")
    theirs.fit(columns, np.nan_to_num(given).ravel(), weights.ravel())
    ours = learned.ridge(x, given, [3.0, 30.0], ungraded)
    assert np.allclose(ours[0].ravel(), theirs.coef_[: x.shape[2]], atol=1e-6)


# --- Applied


def test_a_long_chat_is_no_reason_to_send_at_every_turn() -> None:
    inputs = splits.gate_inputs(np.arange(24, dtype=np.float32).reshape(2, 6, 2), [9, 1080], ["A", "B"])
    assert inputs[0].tolist() == [0, 1, 2, 3, 4, 5, 8, 9, 10, 11, 0.5, 1]
    assert inputs[1, -2:].tolist() == [1, 0]


def test_each_kind_of_text_is_centred_by_its_own_mean_and_an_empty_one_says_nothing() -> None:
    rows = [("a", "x"), ("b", " "), ("c", "z")]
    vectors, means = splits.encode_texts(rows, made_up.vectors, "query")
    raw = made_up.vectors([first for first, _ in rows], "query")
    gaps = raw - raw.mean(axis=0)
    assert np.allclose(means[0], raw.mean(axis=0), atol=1e-6)
    assert np.allclose(vectors[:, 0], gaps / np.linalg.norm(gaps, axis=1, keepdims=True), atol=1e-5)
    assert not vectors[1, 1].any() and vectors[0, 1].any()
    again, _ = splits.encode_texts(rows[:1], made_up.vectors, "query", means)
    assert np.allclose(again, vectors[:1], atol=1e-6)


def test_promise_is_the_chance_that_one_is_wanted_times_the_grade_to_expect() -> None:
    gate = np.array([0.0, 2.0, np.log(3)])  # P = 1 / (1 + e^-ln 3) = 3/4 where the input is 0
    model = learned.PlacementModel(np.zeros((1, 6, 6)), gate, np.array([[0.0, 1.0], [1.0, 1.5]]), {})
    chat = SimpleNamespace(
        keys=[("a chat", 2)], clusters=["a chat"], meme_ids=["m"], meme_vectors=[np.zeros((1, 6, 2))],
        turn_vectors=[(np.zeros((1, 6, 2)), None)], gate_inputs=lambda rows: np.zeros((1, 2)),
    )  # fmt: skip
    for given, promise in ((model, 0.75), (dataclasses.replace(model, gate=None), 1.0)):
        assert learned.LearnedPlacement(("e",), given, [], {}, []).predict(chat).promise == pytest.approx(
            [promise]
        )


def test_grades_that_promise_the_same_everywhere_do_not_send_everywhere(turns: Turns, placement) -> None:
    """As those of one meme a turn."""
    flat = dataclasses.replace(placement.model, gate=None, grade_curve=np.array([[0.0, 1.0], [1.0, 1.0]]))
    promise = learned.LearnedPlacement(("e",), flat, [], {}, []).predict(turns).promise
    assert 0.1 <= turns.gate(promise, Gate(None, 0.0, 1.0)).mean() <= 0.5


def test_a_file_gives_back_what_was_saved_and_another_is_refused(placement, tmp_path: Path) -> None:
    path = tmp_path / "placement.json"
    placement.save(path)
    read = learned.load_placement(path)
    assert (read.embedders, read.fold_of, len(read.folds)) == (NAMES, placement.fold_of, 5)
    for part in ("weights", "gate", "grade_curve"):
        assert np.allclose(getattr(read.folds[1], part), getattr(placement.folds[1], part), atol=1e-5)
    assert read.model.intercepts == pytest.approx(placement.model.intercepts, abs=1e-5)
    values = json.loads(path.read_text(encoding="utf-8"))
    for broken in ("[]", json.dumps({**values, "turn_means": ["AA"]})):
        path.write_text(broken, encoding="utf-8")
        with pytest.raises(learned.PlacementError, match=r"placement\.json"):
            learned.load_placement(path)


def test_the_shipped_models_are_those_that_the_plan_names() -> None:
    by_date = json.loads((paths.example / "PLACEMENT_MODELS.json").read_text(encoding="utf-8"))
    assert by_date[max(by_date)] == {learned.FILE: files.sha256(paths.example / learned.FILE)}
    assert len(learned.load_placement(paths.example / learned.FILE).fold_of) == 47


def test_a_run_takes_its_own_weights_else_the_shipped_and_goes_on_without_under_other_embedders(
    placement, tmp_path: Path, capsys, monkeypatch
) -> None:
    finished, by_hand = tmp_path / "mine", tmp_path / "mine-lab"
    finished.mkdir()
    placement.save(finished / learned.FILE)
    run = Run("mine-lab", made_up.profile(strategies=["learned"]), by_hand, by_hand, read_also=finished)
    assert learned.open_placement(run, NAMES).fold_of == placement.fold_of
    run = dataclasses.replace(run, read_also=None)
    assert learned.open_placement(run, ()).embedders != NAMES
    with pytest.raises(learned.PlacementError, match="fit-placement"):
        learned.open_placement(run, NAMES)
    monkeypatch.setattr(learned, "open_encoders", lambda _: (NAMES, {}))
    assert learned.rank_dialogues(run, Split("made", [], {}, [])) == []
    assert "no memes by learned" in capsys.readouterr().out


def test_a_turn_without_a_summary_promises_nothing(placement: learned.LearnedPlacement) -> None:
    (one,) = placement.rank(made_turns.world(1, 4, 24, unscored=[(0, 3)]))
    assert one.turns == [2, 3, 4] and np.isneginf(one.top1).tolist() == [False, True, False]
    assert one.ranking.memes[1, 0] == -1


# --- Fitted


def ndcg(turns: Turns, placement: learned.LearnedPlacement) -> float:
    return turns.measure(placement.predict(turns).scores)[:, grades.NDCG].mean()


def test_out_of_fold_it_finds_what_is_there_and_shuffled_grades_teach_nothing(turns, placement) -> None:
    rng = np.random.default_rng(3)
    chance = turns.measure(rng.random(turns.grades.shape))[:, grades.NDCG].mean()
    assert ndcg(turns, placement) > chance + 0.4
    wanted = placement.predict(turns).wanted
    yes, no = (wanted[(turns.marks == answer).all(axis=1)] for answer in (1, 0))
    assert (yes[:, None] > no).mean() > 0.7, "turns that both markers fill, that neither fills"
    shuffled = changed(turns, grades=np.stack([rng.permutation(row) for row in turns.grades]))
    assert ndcg(turns, learned.learn(shuffled, NAMES)) < chance + 0.15


def test_no_grade_and_no_mark_of_a_dialogue_has_a_part_in_what_is_said_of_it(turns, placement) -> None:
    mine = turns.rows_of[turns.clusters[0]]
    given, marks = turns.grades.copy(), turns.marks.copy()
    given[mine], marks[mine] = 2 - np.nan_to_num(given[mine]), 1 - marks[mine]
    other = learned.learn(changed(turns, grades=given, marks=marks), NAMES)
    for before, after in zip(placement.predict(turns), other.predict(turns), strict=True):
        assert np.allclose(before[mine], after[mine], atol=1e-9)
    assert not np.array_equal(other.model.weights, placement.model.weights)
    alone = placement.chat_alone()
    assert not any(one.intercepts for one in (alone.model, *alone.folds))


def test_turns_and_pairs_that_nobody_graded_do_not_count(turns: Turns, placement) -> None:
    """Grades and marks of turns 2 to 4 alone fit what the same turns alone fit: others have no part in it."""
    late = np.array([turn > 4 for _, turn in turns.keys])
    given, marks = turns.grades.copy(), turns.marks.copy()
    given[late], marks[late] = np.nan, np.nan
    some = changed(turns, grades=given, marks=marks)
    every, alone = (learned.fit_model(some, rows) for rows in (np.arange(len(late)), np.flatnonzero(~late)))
    assert np.array_equal(every.weights, alone.weights) and np.array_equal(every.gate, alone.gate)
    assert np.array_equal(every.grade_curve, alone.grade_curve) and every.intercepts == alone.intercepts
    assert np.nanmax(given) >= every.grade_curve[1].max() > 0


def test_without_marks_of_both_kinds_there_is_no_gate(turns: Turns) -> None:
    rows = np.arange(len(turns.marks))
    for marks in (np.ones_like(turns.marks), np.ones((len(rows), 0))):
        assert learned.fit_gate(changed(turns, marks=marks), rows) is None


def test_memes_that_are_liked_everywhere_get_intercepts(turns: Turns) -> None:
    """Two memes that fit at every second turn, whatever the chat: the cosines cannot know, intercepts do."""
    given, rows = turns.grades.copy(), np.arange(len(turns.grades))
    given[:, :2] = 2.0 * (rows % 2)[:, None]
    intercepts = learned.fit_model(changed(turns, grades=given), rows).intercepts
    assert {*sorted(intercepts, key=intercepts.get)[-2:]} == {*turns.meme_ids[:2]}
