from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_ratings import MEMES, QUALITY, dialogues, files, form, placements
from made_up import meme, placement, profile

from memecmd_utils import runs
from memecmd_utils.core import storage
from memecmd_utils.evaluation import human_ratings
from memecmd_utils.surveys import forms
from memecmd_utils.surveys.forms import FormError


def test_the_seed_decides_and_nothing_else() -> None:
    one, key = form("rating")
    assert (one, key) == form("rating")
    other, _ = form("rating", seed=6)
    assert other.form != one.form and [i.item for i in other.items] != [i.item for i in one.items]
    mixed = placements(dialogues())[::-1]
    again, _ = human_ratings.choose(mixed, dialogues(), MEMES, kind="rating", n_items=24, seed=5)
    assert again == one, "the order of the placements is no choice"


@pytest.mark.parametrize("kind", human_ratings.KINDS)
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
    for kind in human_ratings.KINDS:
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
    made, key = human_ratings.choose(shared, of, MEMES, kind="rating", n_items=1, seed=1, repeats=0)
    assert len(made.items) == 1 and [row.strategy for row in key] == ["greedy", "sampling"]
    with pytest.raises(FormError, match="two strategies for pairwise"):
        human_ratings.choose(shared, of, MEMES, kind="pairwise", n_items=5, seed=1)


@pytest.mark.parametrize("kind", human_ratings.KINDS)
def test_repeats_come_later_under_another_name_with_the_sides_changed(kind) -> None:
    made, key = form(kind, repeats=0.25)
    order = [item.item for item in made.items]
    repeats = {row.item: row.repeat_of for row in key if row.repeat_of}
    assert len(repeats) == 6 and len(set(order)) == len(order) == 30
    for again, first in repeats.items():
        assert order.index(again) > order.index(first)
        assert made.items[order.index(again)].pictures == made.items[order.index(first)].pictures[::-1]
        assert made.items[order.index(again)].lines == made.items[order.index(first)].lines


@given(st.integers(1, 60), st.integers(0, 1000), st.sampled_from(human_ratings.KINDS), st.floats(0, 0.5))
@settings(max_examples=25, deadline=None)
def test_any_size(n_items, seed, kind, repeats) -> None:
    made, key = form(kind, n_items=n_items, seed=seed, repeats=repeats)
    names = [item.item for item in made.items]
    assert len(set(names)) == len(names) and set(names) == {row.item for row in key}
    assert len({row.item for row in key if not row.repeat_of}) <= n_items


@pytest.mark.parametrize("kind", human_ratings.KINDS)
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
    pictures = files(tmp_path / "data")
    library = {
        name: replace_file(meme(name), path.relative_to(tmp_path / "data")) for name, path in pictures.items()
    }
    run = runs.Run("made-up", profile(n_turns=12, judge_sample=2), tmp_path / "data", tmp_path / "report")
    storage.write_text(run.write("memes.parquet"), "")  # pictures lie beside it
    made = human_ratings.write_forms(run, placements(of), of, library, n_items=10)
    key = forms.read_key(run.read("rating_key.csv"), human_ratings.KeyRow)
    assert set(made) == {"rating", "pairwise"} and {row.form for row in key} == {
        f.form for f in made.values()
    }
    for kind, one in made.items():
        assert one.form in (run.report / f"{kind}_form.html").read_text(encoding="utf-8")
    # Only what the judges rate, too: two memes a dialogue and strategy.
    rated = {(row.dialogue_id, row.turn) for row in key if row.strategy == "greedy"}
    assert all(sum(name == other for other, _ in rated) <= 2 for name, _ in rated)
    one = [p for p in placements(of) if p.strategy == "greedy"]
    assert set(human_ratings.write_forms(replace(run), one, of, library, n_items=4)) == {"rating"}
    assert not any(human_ratings.write_forms(replace(run), [], of, library)), "no placements, no form"


def replace_file(one, path):
    return one.model_copy(update={"file": str(path)})
