"""Answers as CSV files: what is read, refused, and never mixed. All answers here are made up."""

import csv

import made_ratings
import pytest

from memecmd_utils import forms, people
from memecmd_utils.forms import AnswerError, OtherForm
from memecmd_utils.people import HumanRating


@pytest.fixture(scope="module")
def rated():
    _, key = made_ratings.form("rating", n_items=8)
    return key, made_ratings.answers(key)


@pytest.fixture
def file(rated, tmp_path):
    return made_ratings.write_answers(tmp_path / "made_up.csv", HumanRating, rated[1])


def change(file, line: int, **cells: str):
    """Write other cells into one line of a CSV (line 2 is the first row of data)."""
    rows = list(csv.DictReader(file.open(encoding="utf-8-sig", newline="")))
    rows[line - 2] |= cells
    with file.open("w", encoding="utf-8", newline="") as handle:
        writer = csv.DictWriter(handle, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return file


def load(key, *files):
    return forms.load(files, key, HumanRating)


@pytest.mark.parametrize("kind", people.KINDS)
def test_answers_are_read_as_they_were_written(tmp_path, kind) -> None:
    _, key = made_ratings.form(kind, n_items=6)
    given, model = made_ratings.answers(key), HumanRating
    file = made_ratings.write_answers(tmp_path / "answers.csv", model, given)
    assert file.read_text(encoding="utf-8").split("\n")[0].split(",") == list(model.columns)
    found = forms.load([file], key, model)
    assert found.answers == given and found.doubled == 0 and found.source == "made up"


def test_made_up_answers_are_never_called_human(rated, file) -> None:
    key, _ = rated
    rows = file.read_text(encoding="utf-8").strip().split("\n")
    assert all(row.endswith(",1") for row in rows[1:])
    for word, source in (("0", "human"), ("", "human"), ("yes", "made up"), ("TRUE", "made up")):
        assert load(key, change(file, 2, made_up=word)).answers[0].source == source
    with pytest.raises(AnswerError, match="line 2: made_up is 'perhaps'; write 1"):
        load(key, change(file, 2, made_up="perhaps"))
    # A file without the column comes from people: the form writes the column for all others.
    file.write_text("\n".join(row.rpartition(",")[0] for row in rows), encoding="utf-8")
    assert load(key, file).source == "human"


def test_where_a_person_answered_made_up_answers_do_not_count(rated, file, tmp_path) -> None:
    key, given = rated
    person = given[0].model_copy(update={"source": "human", "humor_effect": 33.0})
    # A trial under the same name, later, replaces no answer.
    trial = given[0].model_copy(update={"at": given[0].at.replace(year=2030)})
    one = made_ratings.write_answers(tmp_path / "person.csv", HumanRating, [person, trial])
    found = load(key, file, one)
    assert found.source == "human" and found.counted == [person]


def test_the_latest_of_doubled_answers_counts(rated, file, tmp_path) -> None:
    key, given = rated
    later = given[0].model_copy(update={"humor_effect": 1.0, "at": given[0].at.replace(year=2027)})
    earlier = given[1].model_copy(update={"humor_effect": 2.0, "at": given[1].at.replace(year=2020)})
    again = made_ratings.write_answers(tmp_path / "again.csv", HumanRating, [later, earlier])
    for order in ([file, again], [again, file]):
        found = load(key, *order)
        assert found.doubled == 2 and len(found.answers) == len(given)
        assert later in found.answers and given[1] in found.answers and earlier not in found.answers


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        ({"humor_effect": "101"}, "line 3: humor_effect is '101'; scores go from 0 to 100; correct the row"),
        ({"humor_effect": "-1"}, "scores go from 0 to 100"),
        ({"humor_effect": "nan"}, "scores go from 0 to 100"),
        ({"humor_effect": "good"}, "scores go from 0 to 100"),
        ({"humor_effect": ""}, "missing: humor_effect"),
        ({"choice": "A"}, "five scores and no choice"),
        ({"choice": "C"}, "a choice is one of A, B, no difference"),
        ({"kind": "pairwise"}, "a choice and no scores"),
        ({"at": "31.01.26"}, "a spreadsheet may have changed it"),
        ({"at": "2026-01-31T12:00:00"}, "a time looks like"),
        ({"seconds": "-3"}, "seconds are a number"),
        ({"seconds": "inf"}, "seconds are a number"),
        ({"rater": " "}, "line 3: rater is ''"),
        ({"item": "0000000000"}, "has no rating item '0000000000'"),
    ],
)
def test_a_bad_row_is_refused_with_what_to_do(rated, file, cells, words) -> None:
    with pytest.raises(AnswerError) as caught:
        load(rated[0], change(file, 3, **cells))
    assert words in str(caught.value) and str(caught.value).startswith("made_up.csv")


def test_another_forms_file_is_refused_and_in_a_folder_named(rated, file, tmp_path) -> None:
    key, given = rated
    made, other_key = made_ratings.form("rating", n_items=3, seed=99)
    other = made_ratings.write_answers(tmp_path / "other.csv", HumanRating, made_ratings.answers(other_key))
    with pytest.raises(
        OtherForm, match=rf"other.csv: answers form {made.form}, .*keep the file with the run"
    ):
        load(key, other)
    found = forms.collect(tmp_path, key, HumanRating)
    assert found.answers == given and found.left_out == ("other.csv",)
    # A bad row is an error there, too.
    change(file, 2, humor_effect="500")
    with pytest.raises(AnswerError, match="scores go from 0 to 100"):
        forms.collect(tmp_path, key, HumanRating)


def test_files_of_spreadsheets(rated, file) -> None:
    key, given = rated
    text = file.read_text(encoding="utf-8")
    file.write_text("\ufeff" + text.replace("\n", "\r\n"), encoding="utf-8", newline="")
    assert load(key, file).answers == given
    file.write_text(text.replace(",", ";"), encoding="utf-8")
    with pytest.raises(AnswerError, match=r"columns missing: form, .*commas"):
        load(key, file)
    file.write_bytes(text.replace("r1", "甲").encode("gb18030"))
    with pytest.raises(AnswerError, match="not UTF-8"):
        load(key, file)
