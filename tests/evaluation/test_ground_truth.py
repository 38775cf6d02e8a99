import json
from pathlib import Path

import pandas as pd
import pytest
from made_up import NAME, dialogue, grade, mark, meme, placement, profile

from memecmd_utils.evaluation import ground_truth
from memecmd_utils.evaluation.ground_truth import GroundTruth
from memecmd_utils.files import StageOutputError, paths


def test_grades_of_both_graders_are_summed_and_a_missing_one_is_an_error() -> None:
    both = [
        grade(2, "m1", "g1", 2),
        grade(2, "m1", "g2", 1),
        grade(2, "m2", "g1", 0),
        grade(2, "m2", "g2", 0),
    ]
    assert ground_truth.relevance(both) == {(NAME, 2): {"m1": 3, "m2": 0}}
    with pytest.raises(ValueError, match="not judged once"):
        ground_truth.relevance(both[:-1])
    with pytest.raises(ValueError, match="not judged once"):
        ground_truth.relevance([*both, both[0]])


def test_placed_memes_get_their_mean_grade_and_unjudged_ones_none() -> None:
    of_m1 = [grade(2, "m1", "g1", 2), grade(2, "m1", "g2", 1)]
    truth = GroundTruth([], [*of_m1, *(grade(3, "m2", who, 0) for who in ("g1", "g2"))])
    placed = [
        placement(2, "m1"),
        placement(3, "m2", strategy="sampling"),
        placement(3, "m9", strategy="random"),
    ]
    assert ground_truth.placed_grades(placed, truth) == {
        "greedy": {(NAME, 2): 1.5}, "sampling": {(NAME, 3): 0.0},
    }  # fmt: skip


def test_agreement_is_kappa_of_each_pair_of_raters() -> None:
    marks = [mark(t, who, send) for t in range(2, 6) for who, send in (("a", t < 4), ("b", t < 5))]
    grades = [grade(t, "m1", who, g) for t, (x, y) in enumerate([(0, 0), (2, 2), (1, 2), (0, 0)], 2)
              for who, g in (("a", x), ("b", y))]  # fmt: skip
    table = ground_truth.grader_agreement(GroundTruth(marks, grades)).set_index("what")
    # Sent: 2 and 3 of 4 turns, equal in 3: observed 0.75, by chance 0.5.
    assert table.loc["send or not"].value == pytest.approx(0.5) and table.loc["send or not"].same == 0.75
    # Quadratic weights: one disagreement of 1 in 4; by chance sum((i-j)^2 a_i b_j)/4, a 2,1,1 and b 2,0,2.
    expected = (1 * 1 * 2 + 1 * 1 * 2 + 4 * 2 * 2 + 4 * 1 * 2) / 4
    assert table.loc["grade 0/1/2"].value == pytest.approx(1 - 1 / expected)
    assert pd.isna(table.loc["send or not"].low)  # one dialogue has no interval


def test_timing_counts_rates_gaps_and_agreement() -> None:
    marks = [mark(t, who, t in turns) for who, turns in (("a", (2, 5)), ("b", (2, 3))) for t in range(2, 7)]
    placed = [placement(2, "m1"), placement(5, "m1"), placement(4, "m1", strategy="random")]
    placed += [placement(t, "m2", strategy="learned") for t in (2, 3)]
    placed.append(placement(6, "m1", strategy="sampling"))
    table = ground_truth.timing_agreement(GroundTruth(marks, []), placed, [dialogue()]).set_index("who")
    assert table.loc["a"]["rate"] == 0.4 and table.loc["a"]["mean gap"] == 3
    assert table.loc["the gate"]["kappa with a"] == 1 and pd.isna(table.loc["a"]["kappa with a"])
    assert table.loc["the gate"]["kappa with b"] == table.loc["a"]["kappa with b"] < 1
    assert table.loc["random"]["memes"] == 1
    assert table.loc["learned"]["kappa with b"] == 1 > table.loc["learned"]["kappa with a"]
    assert "sampling" not in table.index, "it sends at the gate's turns"


def write(folder: Path, grades: str) -> Path:
    (folder / "grades.jsonl").write_text(grades, encoding="utf-8")
    row = mark(2, "marker-1", True).model_dump(mode="json")
    (folder / "marks.jsonl").write_text(json.dumps(row) + "\n", encoding="utf-8")
    return folder


def test_a_row_of_grades_opens_into_records_and_a_bad_line_is_named(tmp_path: Path) -> None:
    row = {
        "dialogue_id": NAME,
        "turn": 2,
        "grader": "grader-1",
        "grades": {"m1": 2, "m2": 0},
        "source": "authored",
    }
    truth = ground_truth.load_truth(write(tmp_path, json.dumps(row) + "\n"))
    assert [(g.meme_id, g.grade) for g in truth.grades] == [("m1", 2), ("m2", 0)] and truth.markers == [
        "marker-1"
    ]
    assert ground_truth.load_truth(tmp_path / "nowhere") == ground_truth.NONE
    for bad in ("{", json.dumps({**row, "grades": {"m1": 3}}), json.dumps({**row, "grades": ["m1"]})):
        with pytest.raises(StageOutputError, match=r"grades\.jsonl line 2"):
            ground_truth.load_truth(write(tmp_path, f"{json.dumps(row)}\n{bad}\n"))


def test_only_authored_dialogues_have_ground_truth(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    rows = [
        {"dialogue_id": NAME, "turn": t, "grader": "g", "grades": {"m1": 1, "m9": 1}, "source": "authored"}
        for t in (2, 3, 9)
    ]
    monkeypatch.setattr(paths, "example", write(tmp_path, "".join(json.dumps(r) + "\n" for r in rows)))
    library = [meme("m1"), meme("m9", licence="")]  # m9 is a user's own picture under a known id
    own = ground_truth.truth_of_run(profile(), [dialogue()], library)
    assert {(g.turn, g.meme_id) for g in own.grades} == {(2, "m1"), (3, "m1")} and len(own.marks) == 1
    assert ground_truth.truth_of_run(profile(llm="openai"), [dialogue()], library) == ground_truth.NONE
