import csv

import pytest
from made_ratings import answers, form

from memecmd_utils import human_ratings
from memecmd_utils.human_ratings import OtherForm, RatingsError
from memecmd_utils.rating_items import COLUMNS


@pytest.fixture(scope="module")
def rated():
    made, key = form("rating", n_items=8)
    return made, key, answers(key)


@pytest.fixture
def file(rated, tmp_path):
    return human_ratings.write_answers(tmp_path / "made_up.csv", rated[2])


def change(file, line: int, **cells: str):
    """Write other cells into one line of a CSV (line 2 is the first row of data)."""
    rows = list(csv.DictReader(file.open(encoding="utf-8-sig", newline="")))
    rows[line - 2] |= cells
    with file.open("w", encoding="utf-8", newline="") as handle:
        writer = csv.DictWriter(handle, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return file


def test_answers_are_read_as_they_were_written(rated, file) -> None:
    _, key, given = rated
    found = human_ratings.load([file], key)
    assert found.ratings == given and found.doubled == 0 and found.source == "made up"
    pairwise, key_2 = form("pairwise", n_items=6)
    choices = answers(key_2)
    other = human_ratings.write_answers(file.with_name("choices.csv"), choices)
    both = human_ratings.load([file, other], [*key, *key_2])
    assert both.ratings == [*given, *choices]
    assert {r.choice for r in both.ratings} == {None, *(r.choice for r in choices)}
    assert len(both.frame("pairwise", repeats=True)) == 3 * (len(pairwise.items) - 6)


def test_the_header_is_what_the_form_writes(file) -> None:
    assert file.read_text(encoding="utf-8").split("\n")[0].split(",") == list(COLUMNS)


def test_made_up_ratings_are_never_called_human(rated, file) -> None:
    _, key, _ = rated
    rows = file.read_text(encoding="utf-8").strip().split("\n")
    assert all(row.endswith(",1") for row in rows[1:])
    assert {r.source for r in human_ratings.load([file], key).ratings} == {"made up"}
    # A file without the column comes from people: the form writes the column for all others.
    for word, source in (("0", "human"), ("", "human"), ("yes", "made up"), ("TRUE", "made up")):
        found = human_ratings.load([change(file, 2, made_up=word)], key)
        assert found.ratings[0].source == source
    with pytest.raises(RatingsError, match="line 2: made_up is 'perhaps'; write 1"):
        human_ratings.load([change(file, 2, made_up="perhaps")], key)


def test_where_a_person_rated_made_up_answers_are_left_out(rated, file, tmp_path) -> None:
    _, key, _ = rated
    one = human_ratings.write_answers(tmp_path / "person.csv", answers(key, ["p1"], source="human"))
    found = human_ratings.load([file, one], key)
    assert found.source == "human" and set(found.frame("rating").rater) == {"p1"}


def test_the_latest_of_doubled_answers_counts(rated, file, tmp_path) -> None:
    _, key, given = rated
    later = given[0].model_copy(update={"humor_effect": 1.0, "at": given[0].at.replace(year=2027)})
    earlier = given[1].model_copy(update={"humor_effect": 2.0, "at": given[1].at.replace(year=2020)})
    again = human_ratings.write_answers(tmp_path / "again.csv", [later, earlier])
    for order in ([file, again], [again, file]):
        found = human_ratings.load(order, key)
        assert found.doubled == 2 and len(found.ratings) == len(given)
        by_item = {(r.item, r.rater): r for r in found.ratings}
        assert by_item[later.item, later.rater] == later
        assert by_item[earlier.item, earlier.rater] == given[1]


def test_a_trial_under_the_same_name_replaces_no_rating(rated, tmp_path) -> None:
    _, key, given = rated
    real = given[0].model_copy(update={"source": "human", "humor_effect": 33.0})
    trial = given[0].model_copy(update={"at": given[0].at.replace(year=2030)})
    file = human_ratings.write_answers(tmp_path / "both.csv", [real, trial])
    found = human_ratings.load([file], key)
    assert found.doubled == 0 and found.source == "human"
    assert found.frame("rating").humor_effect.tolist() == [33.0]


@pytest.mark.parametrize(
    ("cells", "said"),
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
def test_a_bad_row_is_refused_with_what_to_do(rated, file, cells, said) -> None:
    with pytest.raises(RatingsError) as caught:
        human_ratings.load([change(file, 3, **cells)], rated[1])
    assert said in str(caught.value) and str(caught.value).startswith("made_up.csv")


def test_another_forms_file_is_refused_and_in_a_folder_named(rated, file, tmp_path) -> None:
    _, key, given = rated
    made, other_key = form("rating", n_items=3, seed=99)
    other = human_ratings.write_answers(tmp_path / "other.csv", answers(other_key))
    with pytest.raises(
        OtherForm, match=rf"other.csv: answers form {made.form}, .*keep the file with the run"
    ):
        human_ratings.load([other], key)
    found = human_ratings.collect(tmp_path, key)
    assert found.ratings == given and found.left_out == ("other.csv",)
    # A bad row is an error there, too.
    change(file, 2, humor_effect="500")
    with pytest.raises(RatingsError, match="scores go from 0 to 100"):
        human_ratings.collect(tmp_path, key)


def test_no_folder_no_ratings(tmp_path) -> None:
    found = human_ratings.collect(tmp_path / "nothing", [])
    assert found.ratings == [] and found.source is None and found.frame("rating").empty


def test_files_of_spreadsheets(rated, file) -> None:
    _, key, given = rated
    text = file.read_text(encoding="utf-8")
    file.write_text("\ufeff" + text.replace("\n", "\r\n"), encoding="utf-8", newline="")
    assert human_ratings.load([file], key).ratings == given
    file.write_text(text.replace(",", ";"), encoding="utf-8")
    with pytest.raises(RatingsError, match=r"columns missing: form, .*commas"):
        human_ratings.load([file], key)
    file.write_bytes(text.replace("r1", "甲").encode("gb18030"))
    with pytest.raises(RatingsError, match="not UTF-8"):
        human_ratings.load([file], key)


def test_a_torn_row_is_refused(rated, file) -> None:
    text = file.read_text(encoding="utf-8").rstrip("\n")
    file.write_text(text[: text.rindex(",", 0, -40)] + "\n", encoding="utf-8")
    with pytest.raises(RatingsError, match=r"made_up.csv line \d+: .*correct the row or remove it"):
        human_ratings.load([file], rated[1])
