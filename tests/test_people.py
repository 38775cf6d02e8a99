import math
from collections import Counter
from dataclasses import replace

import made_ratings
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_ratings import MEMES, QUALITY, answers, dialogues, form, placements
from made_up import consistency, meme, placement, profile, rating

from memecmd_utils import files, forms, people, runs, schemas
from memecmd_utils.forms import Answers, FormError
from memecmd_utils.people import TABLES
from memecmd_utils.schemas import DIMENSIONS


def test_the_seed_decides_and_nothing_else() -> None:
    one, key = form("rating")
    assert (one, key) == form("rating")
    other, _ = form("rating", seed=6)
    assert other.form != one.form and [i.item for i in other.items] != [i.item for i in one.items]
    mixed = placements(dialogues())[::-1]
    again, _ = people.choose(mixed, dialogues(), MEMES, kind="rating", n_items=24, seed=5)
    assert again == one, "the order of the placements is no choice"


@pytest.mark.parametrize("kind", people.KINDS)
def test_items_are_balanced_and_as_many_as_asked_for(kind) -> None:
    made, key = form(kind)
    first = [row for row in key if not row.repeat_of]
    assert len({row.item for row in first}) == 24 and len(made.items) == 24 + 2
    if kind == "rating":
        drawn = Counter(row.strategy for row in first)
        assert set(drawn) == set(QUALITY)
    else:
        draws = {}
        for row in first:
            draws.setdefault((row.item, row.draw), {})[row.side] = row.strategy
        drawn = Counter(tuple(sorted(of.values())) for of in draws.values())
        assert ("greedy", "sampling") in drawn and len(drawn) == 6
    assert max(drawn.values()) - min(drawn.values()) <= 1


def test_the_key_tells_the_truth() -> None:
    of = dialogues()
    placed = {(p.strategy, p.dialogue_id, p.turn): p.meme_id for p in placements(of)}
    for kind in people.KINDS:
        made, key = form(kind)
        shown = {item.item: item for item in made.items}
        assert {row.item for row in key} == set(shown)
        for row in key:
            assert row.form == made.form and placed[row.strategy, row.dialogue_id, row.turn] == row.meme_id
            item = shown[row.item]
            assert item.pictures["AB".index(row.side) if row.side else 0] == row.meme_id
            texts = [line.text for line in item.lines if line.text]
            turns = of[row.dialogue_id].turns
            assert texts == [turn.text for turn in turns[max(0, row.turn - 8) : row.turn]]


def test_a_meme_that_two_strategies_share_is_shown_once_and_counts_for_both() -> None:
    of = dialogues(1)
    shared = [placement(4, "m1", dialogue_id="made-0", strategy=name) for name in ("greedy", "sampling")]
    made, key = people.choose(shared, of, MEMES, kind="rating", n_items=1, seed=1, repeats=0)
    assert len(made.items) == 1 and [row.strategy for row in key] == ["greedy", "sampling"]
    with pytest.raises(FormError, match="two strategies for pairwise"):
        people.choose(shared, of, MEMES, kind="pairwise", n_items=5, seed=1)


@pytest.mark.parametrize("kind", people.KINDS)
def test_repeats_come_later_under_another_name_with_the_sides_changed(kind) -> None:
    made, key = form(kind, repeats=0.25)
    order = [item.item for item in made.items]
    repeats = {row.item: row.repeat_of for row in key if row.repeat_of}
    assert len(repeats) == 6 and len(set(order)) == len(order) == 30
    for again, first in repeats.items():
        assert order.index(again) > order.index(first)
        assert made.items[order.index(again)].pictures == made.items[order.index(first)].pictures[::-1]
        assert made.items[order.index(again)].lines == made.items[order.index(first)].lines


@given(st.integers(1, 60), st.integers(0, 1000), st.sampled_from(people.KINDS), st.floats(0, 0.5))
@settings(max_examples=25, deadline=None)
def test_any_size(n_items, seed, kind, repeats) -> None:
    made, key = form(kind, n_items=n_items, seed=seed, repeats=repeats)
    names = [item.item for item in made.items]
    assert len(set(names)) == len(names) and set(names) == {row.item for row in key}
    assert len({row.item for row in key if not row.repeat_of}) <= n_items


@pytest.mark.parametrize("kind", people.KINDS)
def test_items_of_all_strategies_look_alike(kind) -> None:
    made, key = form(kind)
    shapes = {}
    for item in made.items:
        empty = [i - len(item.lines) for i, line in enumerate(item.lines) if not line.text]
        shape = empty, len(item.pictures), len(item.item), item.questions
        for row in key:
            if row.item == item.item:
                shapes.setdefault(row.strategy, set()).add(str(shape))
    assert set(shapes) == set(QUALITY) and len(set.union(*shapes.values())) == 1


def test_a_run_gets_both_forms_and_one_key(tmp_path) -> None:
    of = dialogues()
    pictures = made_ratings.files(tmp_path / "data")
    library = {
        name: replace_file(meme(name), path.relative_to(tmp_path / "data")) for name, path in pictures.items()
    }
    run = runs.Run("made-up", profile(n_turns=12, judge_sample=2), tmp_path / "data", tmp_path / "report")
    files.write_text(run.write("memes.parquet"), "")  # pictures lie beside it
    made = people.write_forms(run, placements(of), of, library, n_items=10)
    key = forms.read_key(run.read("rating_key.csv"), people.KeyRow)
    assert set(made) == {"rating", "pairwise"} and {row.form for row in key} == {
        f.form for f in made.values()
    }
    for kind, one in made.items():
        assert one.form in (run.report / f"{kind}_form.html").read_text(encoding="utf-8")
    # Only what the judges rate, too: two memes a dialogue and strategy.
    rated = {(row.dialogue_id, row.turn) for row in key if row.strategy == "greedy"}
    assert all(sum(name == other for other, _ in rated) <= 2 for name, _ in rated)
    one = [p for p in placements(of) if p.strategy == "greedy"]
    assert set(people.write_forms(replace(run), one, of, library, n_items=4)) == {"rating"}
    assert not any(people.write_forms(replace(run), [], of, library)), "no placements, no form"


def replace_file(one, path):
    return one.model_copy(update={"file": str(path)})


@pytest.fixture(scope="module")
def both():
    keys = [form(kind, n_items=60, of=dialogues(20), repeats=0.2)[1] for kind in ("rating", "pairwise")]
    return [row for key in keys for row in key]


@pytest.fixture(scope="module")
def found(both):
    return Answers(answers(both), both)


@pytest.fixture(scope="module")
def tables(found):
    return people.ratings_summary(found)


def test_every_row_says_that_made_up_ratings_are_made_up(found, tables) -> None:
    for name, table in tables.items():
        assert list(table.columns) == TABLES[name] and set(table.source) <= {"made up"}
    text = people.ratings_verdict(found, tables)
    assert text.startswith("No person has rated this run. The ratings below are made up")
    assert "person(s) gave" not in text


def test_a_mean_is_that_of_the_items_drawn_for_a_strategy(both, found, tables) -> None:
    overall = people.answer_frame(found, "rating").groupby("item").overall.mean()
    drawn = [r.item for r in both if r.kind == "rating" and r.strategy == "random" and not r.repeat_of]
    row = tables["means"].query("scale == 'overall' and strategy == 'random'").iloc[0]
    assert row["mean"] == pytest.approx(overall[drawn].mean()) and row["items"] == len(drawn)
    assert row.ratings == 3 * len(drawn)


def test_repeated_items_count_once(both) -> None:
    """Answers to repeats say nothing about strategies: other values there change no mean."""
    again = {row.item for row in both if row.repeat_of}
    given = answers(both)
    zero = dict.fromkeys(DIMENSIONS, 0.0)
    other = [r.model_copy(update=zero) if r.item in again and r.kind == "rating" else r for r in given]
    one, two = (people.ratings_summary(Answers(r, both)) for r in (given, other))
    assert one["means"].equals(two["means"]) and one["alpha"].equals(two["alpha"])
    assert not one["repeats"].equals(two["repeats"])


def test_strengths_are_the_logits_of_two_strategies() -> None:
    strengths = people.bradley_terry(np.array([[0, 30.0], [10, 0]]))
    assert strengths[0] - strengths[1] == pytest.approx(math.log(3), abs=0.01)
    always = people.bradley_terry(np.array([[0, 30.0], [0, 0]]))
    assert np.isfinite(always).all() and always[0] - always[1] > 3, "finite where one never lost"
    assert people.bradley_terry(np.array([[0, 5.0], [5, 0]])) == pytest.approx([0, 0], abs=1e-6)


def test_ties_count_half_and_sides_do_not_matter(both) -> None:
    def all_say(choice: dict[str, str] | str) -> dict:
        given = [
            r.model_copy(update={"choice": choice if isinstance(choice, str) else choice[r.item]})
            for r in answers(both, ["r1"])
            if r.kind == "pairwise"
        ]
        return people.ratings_summary(Answers(given, both))

    ties = all_say("no difference")
    assert ties["bradley_terry"].win_rate.tolist() == [0.5] * 4
    assert ties["bradley_terry"].strength.tolist() == pytest.approx([0] * 4, abs=1e-6)
    assert not ties["pairs"][["first_better", "second_better"]].any().any()
    greedy = {row.item: row.side for row in both if row.strategy == "greedy"}
    sides = {row.item: greedy.get(row.item, "no difference") for row in both}
    table = all_say(sides)["bradley_terry"].set_index("strategy")
    assert table.win_rate["greedy"] == 1.0 and table.strength["greedy"] == table.strength.max()
    pairs = all_say(sides)["pairs"].set_index(["first", "second"])
    assert (
        pairs.loc[("greedy", "random"), "second_better"]
        == 0
        < pairs.loc[("greedy", "random"), "first_better"]
    )


def test_a_rater_who_repeats_herself(both) -> None:
    """With the sides changed the same opinion is the other letter."""
    given = {r.item: r for r in answers(both, ["r1"])}
    first_of = {row.item: row.repeat_of for row in both if row.repeat_of}
    turned = {"A": "B", "B": "A", "no difference": "no difference", None: None}
    for again, first in first_of.items():
        same = {name: getattr(given[first], name) for name in DIMENSIONS}
        given[again] = given[again].model_copy(update={**same, "choice": turned[given[first].choice]})
    table = people.ratings_summary(Answers(list(given.values()), both))["repeats"].set_index("kind")
    assert table.mean_difference["rating"] == 0 and table.same_choice["pairwise"] == 1
    assert table["items"].tolist() == [12, 12]


def test_correlation_with_judges(both, found) -> None:
    drawn = [row for row in both if row.kind == "rating" and not row.repeat_of]
    liked = people.answer_frame(found, "rating").groupby("item").overall.mean()
    place = {row.item: (row.dialogue_id, row.turn, row.meme_id) for row in drawn}
    same = {place[item]: value**3 for item, value in liked.items()}
    against = {p: -v for p, v in list(same.items())[:30]}
    rng = np.random.default_rng(0)
    noise = {p: rng.normal() for p in same}
    judged = {"same order": same, "against": against, "noise": noise, "elsewhere": {("x", 2, "m1"): 1.0}}
    table = people.ratings_summary(found, judged)["correlations"].set_index("scorer")
    assert table.spearman["same order"] == pytest.approx(1) and table["items"]["same order"] == 60
    assert table.spearman["against"] == pytest.approx(-1) and table["items"]["against"] == 30
    assert table.low["noise"] < 0 < table.high["noise"]
    assert math.isnan(table.spearman["elsewhere"]) and table["items"]["elsewhere"] == 0


def test_scores_of_judges_are_joined_by_place() -> None:
    ratings = [
        rating(2, 60.0),
        rating(2, 40.0, strategy="sampling"),
        rating(3, None),
        rating(4, 9.0, judge="two"),
    ]
    grades = [
        schemas.Grade(source="x", dialogue_id="news-made-1", turn=2, meme_id="m1", grader=g, grade=n)
        for g, n in (("a", 2), ("b", 1))
    ]
    found = people.scores_of_judges(
        ratings, [consistency(2, 70.0), consistency(2, 1.0, text="shuffled")], grades
    )
    here = ("news-made-1", 2, "m1")
    assert found["judge one"] == {here: 50.0} and found["two"] == {("news-made-1", 4, "m1"): 9.0}
    assert found["consistency text:x"] == {here: 70.0} and found["mean grade"] == {here: 1.5}
