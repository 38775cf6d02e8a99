"""Grades: read, averaged, agreed upon; graded turns as matrices, and systems measured on them."""

import json
from dataclasses import replace
from pathlib import Path

import made_turns
import made_up
import numpy as np
import pandas as pd
import pytest
from ir_measures import RR, Judged, Success, iter_calc, nDCG
from sklearn.metrics import cohen_kappa_score

from memecmd_utils import grades, statistics
from memecmd_utils.files import StageOutputError, paths
from memecmd_utils.splits import Query

PLAIN = "dialogue_id,turn,meme_id,grade\nnews-a-1,2,m1,2\nnews-a-1,2,m2,0\nnews-a-1,3,m1,1\n"
MEMES = {"m1", "m2"}


def read(folder: Path, data: str | bytes) -> list[tuple]:
    path = folder / "grades.csv"
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    found = grades.read_grades(path, {("news-a-1", turn) for turn in range(2, 7)}, MEMES)
    return [(g.dialogue_id, g.turn, g.meme_id, g.grader, g.grade) for g in found]


SAME = {
    "UTF-16, tabs, CRLF and blank rows": (PLAIN.replace("\n", "\r\n") + "\r\n,,,\r\n")
    .replace(",", "\t")
    .encode("utf-16"),
    "semicolons, case and order": "sep=;\nGrade;Turn;Meme_ID;DIALOGUE_ID\n2;2;m1;news-a-1\n0;2;m2;news-a-1\n"
    "1;3;m1;news-a-1",
    "an index, another column and 2.0": "".join(
        f"{n},{line.replace(',2,m', ',2.0,m')},好\n" if n else f",{line},words\n"
        for n, line in enumerate(PLAIN.splitlines())
    ).encode("gb18030"),
}


@pytest.mark.parametrize("form", SAME)
def test_a_table_is_read_in_the_forms_that_spreadsheets_give_it(tmp_path: Path, form: str) -> None:
    assert read(tmp_path, SAME[form]) == read(tmp_path, PLAIN)


def test_means_are_grades_and_an_empty_cell_is_none(tmp_path: Path, capsys) -> None:
    found = read(tmp_path, "dialogue_id;turn;meme_id;grade\nnews-a-1;2;m1;1,5\nnews-a-1;2;m2;\n")
    assert found == [("news-a-1", 2, "m1", "grader", 1.5)]
    assert "1 of 2 rows have an empty grade" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "why"),
    [("news-a-1,2,m1,good", "good"), ("news-a-1,99,m1,1", "99"), ("news-a-1,2,m1,0", "already")],
)
def test_what_cannot_be_right_is_refused_with_its_line(tmp_path: Path, line: str, why: str) -> None:
    with pytest.raises(StageOutputError, match=f"line 5: .*{why}"):
        read(tmp_path, PLAIN + line)
    with pytest.raises(StageOutputError, match="dialogue_id, turn, meme_id, grade"):
        read(tmp_path, 'dialogue,turn,meme,grade\n"' + "m" * 200_000)


# --- Ground truth


def test_placed_memes_get_their_mean_grade_and_a_strategy_counts_where_all_were_graded() -> None:
    of_m1 = [made_up.grade(2, "m1", "g1", 2), made_up.grade(2, "m1", "g2", 1)]
    of_m2 = [made_up.grade(3, "m2", who, 0) for who in ("g1", "g2")]
    truth = grades.GroundTruth(batches={"pool": of_m1, "learned": of_m2})
    in_full = [made_up.placement(2, "m1"), made_up.placement(3, "m2")]
    in_part = [made_up.placement(turn, meme, strategy="random") for turn, meme in ((3, "m2"), (4, "m9"))]
    greedy = {(made_up.NAME, 2): 1.5, (made_up.NAME, 3): 0.0}
    found = grades.placed_grades([*in_full, *in_part], truth)
    assert found == {"greedy": greedy, "random": {(made_up.NAME, 3): 0.0}}
    assert grades.placed_grades([*in_full, *in_part], truth, whole=True) == {"greedy": greedy}


def test_the_tracked_agreement_is_kappa_of_the_two_graders() -> None:
    given = pd.DataFrame([g.model_dump() for g in grades.load_truth(paths.example).grades])
    one, two = given.pivot_table("grade", ["dialogue_id", "turn", "meme_id"], "grader").to_numpy().T
    (row,) = (r for r in statistics.read_tables(paths.example / "agreement.json") if "0/1/2" in r["what"])
    counted = len(one), cohen_kappa_score(one, two, weights="quadratic"), (one == two).mean()
    assert (row["n"], row["kappa"].value, row["same"].value) == pytest.approx(counted, abs=1e-6)


def write(folder: Path, *grades: dict) -> Path:
    """A folder with a mark and rows of grades."""
    rows = [{"dialogue_id": made_up.NAME, "grader": "g", "source": "authored", **row} for row in grades]
    (folder / "grades.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    row = made_up.mark(2, "marker-1", True).model_dump(mode="json")
    (folder / "marks.jsonl").write_text(json.dumps(row) + "\n", encoding="utf-8")
    return folder


def test_a_row_of_grades_opens_into_records_and_a_bad_line_is_named(tmp_path: Path) -> None:
    row = {"turn": 2, "grades": {"m1": 2, "m2": 0}}
    truth = grades.load_truth(write(tmp_path, row))
    assert [(g.meme_id, g.grade) for g in truth.grades] == [("m1", 2), ("m2", 0)]
    assert truth.markers == ["marker-1"] and grades.load_truth(tmp_path / "nowhere") == grades.NONE
    (tmp_path / "bad").mkdir()
    with pytest.raises(StageOutputError, match=r"grades\.jsonl line 2"):
        grades.load_truth(write(tmp_path / "bad", row, {**row, "grades": ["m1"]}))


def test_only_authored_dialogues_have_ground_truth(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    rows = [{"turn": turn, "grades": {"m1": 1, "m9": 1}} for turn in (2, 3, 9)]
    monkeypatch.setattr(paths, "example", write(tmp_path, *rows))
    foreign = made_up.dialogue().model_copy(update={"source": "user"})
    library = [made_up.meme("m1"), made_up.meme("m9", licence="")]  # m9 is a user's own under a known id
    own = grades.truth_of_run(made_up.profile(), [made_up.dialogue()], library)
    assert {(g.turn, g.meme_id) for g in own.grades} == {(2, "m1"), (3, "m1")} and len(own.marks) == 1
    assert grades.truth_of_run(made_up.profile(llm="openai"), [made_up.dialogue()], library) == grades.NONE
    assert grades.truth_of_run(made_up.profile(), [foreign], library) == grades.NONE


@pytest.mark.parametrize("depth", [3, 40])
def test_measures_are_those_of_trec_eval(depth: int) -> None:
    """Also of short rankings, of turns without one, and of memes that nobody graded."""
    rng = np.random.default_rng(depth)
    given = rng.choice([0, 0, 0, 0.5, 1, 1.5, 2, np.nan], (20, 40))
    given[1], given[2] = np.nan, 0
    order = np.array([rng.permutation(40)[:depth] for _ in given])
    assert grades.per_turn(order[1:2], given[1:2]).tolist() == [[0] * 5]
    ranked = {str(turn): [str(meme) for meme in memes] for turn, memes in enumerate(order) if turn % 7}
    qrels = {
        str(turn): {str(m): grades.relevance(g) for m, g in enumerate(row) if g >= 0}
        for turn, row in enumerate(given.tolist()) if turn != 1
    }  # fmt: skip
    hit = Success(rel=grades.RELEVANT)
    theirs = (hit @ 1, hit @ 5, RR(rel=grades.RELEVANT), nDCG @ 5, Judged @ 5)
    run = {turn: {meme: -float(n) for n, meme in enumerate(memes)} for turn, memes in ranked.items()}
    found = {(m.query_id, str(m.measure)): m.value for m in iter_calc(theirs, qrels, run)}
    expected = [[found.get((turn, str(one)), 0) for one in theirs] for turn in qrels]
    by_columns = grades.per_turn(order, given)[[*map(int, qrels)]] * [[turn in ranked] for turn in qrels]
    assert by_columns.tolist() == grades.measure(ranked, qrels).tolist() == expected


def test_rows_are_the_turns_dialogue_by_dialogue_and_a_grade_is_the_mean() -> None:
    data = made_turns.world(dialogues=2, turns=4, memes=3, graded=False, unscored=[(0, 3)])
    assert data.keys == [("news-00", 2), ("news-00", 4), ("role-01", 2), ("role-01", 3), ("role-01", 4)]
    assert data.clusters == ["news-00"] * 2 + ["role-01"] * 3 and "".join(data.half) == "aabbb"
    assert [rows.tolist() for rows in data.rows_of.values()] == [[0, 1], [2, 3, 4]]
    given = [made_up.grade(2, "m000", who, g, "news-00") for who, g in (("g1", 2), ("g2", 1))]
    given += [made_up.grade(4, "m001", "g1", 1, "news-00"), made_up.grade(2, "unknown", "g1", 2, "news-00")]
    graded = replace(data, split=replace(data.split, truth=grades.GroundTruth((), {"pool": given})))
    assert graded.grades[0].tolist()[0] == 1.5 and graded.grades[1, 1] == 1 and graded.column["m000"] == 0
    assert np.isfinite(graded.grades).sum() == 2 and graded.answerable.tolist() == [0, 1]
    assert graded.grades_of("g2")[0, 0] == 1 and np.isnan(graded.grades_of("g2")[1, 1])
    said = [turn.text for turn in made_up.dialogue().turns]
    assert Query(made_up.dialogue(), 6).context == "\n".join(said[2:5]), "three turns, and nothing later"


def plainly_counted(sent: pd.DataFrame, graded: pd.DataFrame) -> pd.DataFrame:
    """What each meme sent is worth, a column a measure."""
    rows = []
    for row in sent.itertuples():
        is_other = (graded.dialogue != row.dialogue) | (graded.turn != row.turn)
        others = graded.grade[is_other & (graded.meme == row.meme)] >= 1
        mean = 0 if np.isnan(row.grade) else row.grade
        rows.append((mean >= 1, mean == 2, mean, (mean >= 1) - others.mean()))
    return pd.DataFrame(rows, sent.index, list(grades.OF_MEMES), dtype=float)


def test_what_memes_are_worth_by_plain_counting_also_without_each_dialogue() -> None:
    """Some of them nobody graded, and m3 was graded at one turn alone, which says nothing of other turns."""
    rng, names = np.random.default_rng(5), [f"d{n}" for n in range(8)]
    asked = pd.DataFrame([(d, t) for d in names for t in range(2, 7)], columns=["dialogue", "turn"])
    every = asked.merge(pd.DataFrame({"meme": ["m0", "m1", "m2"]}), how="cross")
    graded = every.assign(grade=rng.integers(0, 5, len(every)) / 2).sample(frac=0.8, random_state=5)
    graded = pd.concat([graded, pd.DataFrame([("d0", 2, "m3", 2.0)], columns=graded.columns)])
    drawn = [asked.assign(meme=rng.choice(["m0", "m1", "m2", "m3"], len(asked))) for _ in "ab"]
    ours, theirs = (sent.merge(graded, how="left") for sent in drawn)
    counts = grades.fit_counts(graded, names)
    found = grades.Sent(ours, counts).means()
    for measure, kind in grades.OF_MEMES.items():
        values = plainly_counted(ours, graded)[measure]
        without = [
            plainly_counted(ours[ours.dialogue != name], graded[graded.dialogue != name])[measure].mean()
            for name in names
        ]
        share = ours.dialogue[values.notna()].value_counts(normalize=True)[names].to_numpy()
        left_out = statistics.LeftOut(np.array(values.mean()), np.array(without), share)
        by_hand, got = statistics.estimate(left_out, int(values.count()), kind), found[measure]
        assert (got.value, got.low, got.high, got.n) == pytest.approx(
            (by_hand.value, by_hand.low, by_hand.high, by_hand.n)
        )
    own, paired = (
        grades.Sent(ours, counts).minus(grades.Sent(theirs, counts), is_paired=is_paired)["lands"]
        for is_paired in (False, True)
    )
    gap = (ours.grade == 2).mean() - (theirs.grade == 2).mean()
    assert own.value == pytest.approx(gap) == paired.value and (own.n, paired.n) == (80, 40)
