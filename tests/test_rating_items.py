from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_ratings import MEMES, QUALITY, dialogues, form, placements
from made_up import placement

from memecmd_utils import rating_items
from memecmd_utils.rating_items import FormError


def test_the_seed_decides_and_nothing_else() -> None:
    one, key = form("rating")
    assert (one, key) == form("rating")
    other, _ = form("rating", seed=6)
    assert other.form != one.form and [i.item for i in other.items] != [i.item for i in one.items]
    mixed = placements(dialogues())[::-1]
    again, _ = rating_items.choose(mixed, dialogues(), MEMES, kind="rating", n_items=24, seed=5)
    assert again == one, "the order of the placements is no choice"


@pytest.mark.parametrize("kind", rating_items.KINDS)
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
    for kind in rating_items.KINDS:
        made, key = form(kind)
        shown = {item.item: item for item in made.items}
        assert {row.item for row in key} == set(shown)
        for row in key:
            assert row.form == made.form and placed[row.strategy, row.dialogue_id, row.turn] == row.meme_id
            item = shown[row.item]
            assert item.memes["AB".index(row.side) if row.side else 0] == row.meme_id
            texts = [line.text for line in item.lines if line.text]
            turns = of[row.dialogue_id].turns
            assert texts == [turn.text for turn in turns[max(0, row.turn - 8) : row.turn]]


def test_the_meme_stands_with_its_speaker_before_or_after_the_utterance() -> None:
    for position, where in (("before", -2), ("after", -1)):
        made, _ = form("rating", meme_position=position)
        for item in made.items:
            empty = [i - len(item.lines) for i, line in enumerate(item.lines) if not line.text]
            assert empty == [where] and item.lines[-2].name == item.lines[-1].name


def test_a_meme_that_two_strategies_share_is_shown_once_and_counts_for_both() -> None:
    of = dialogues(1)
    shared = [placement(4, "m1", dialogue_id="made-0", strategy=name) for name in ("greedy", "sampling")]
    made, key = rating_items.choose(shared, of, MEMES, kind="rating", n_items=1, seed=1, repeats=0)
    assert len(made.items) == 1 and [row.strategy for row in key] == ["greedy", "sampling"]
    with pytest.raises(FormError, match="two strategies for pairwise"):
        rating_items.choose(shared, of, MEMES, kind="pairwise", n_items=5, seed=1)


def test_sides_are_dealt_out_by_chance() -> None:
    _, key = form("pairwise", n_items=60)
    sides = Counter(row.side for row in key if row.strategy == "greedy" and not row.repeat_of)
    assert min(sides["A"], sides["B"]) > 5


@pytest.mark.parametrize("kind", rating_items.KINDS)
def test_repeats_come_later_under_another_name_with_the_sides_changed(kind) -> None:
    made, key = form(kind, repeats=0.25)
    order = [item.item for item in made.items]
    repeats = {row.item: row.repeat_of for row in key if row.repeat_of}
    assert len(repeats) == 6 and len(set(order)) == len(order) == 30
    for again, first in repeats.items():
        assert order.index(again) > order.index(first)
        assert made.items[order.index(again)].memes == made.items[order.index(first)].memes[::-1]
        assert made.items[order.index(again)].lines == made.items[order.index(first)].lines


@given(st.integers(1, 60), st.integers(0, 1000), st.sampled_from(rating_items.KINDS), st.floats(0, 0.5))
@settings(max_examples=25, deadline=None)
def test_any_size(n_items, seed, kind, repeats) -> None:
    made, key = form(kind, n_items=n_items, seed=seed, repeats=repeats)
    names = [item.item for item in made.items]
    assert len(set(names)) == len(names) and set(names) == {row.item for row in key}
    assert len({row.item for row in key if not row.repeat_of}) <= n_items


def test_a_form_holds_no_strategy_score_dialogue_or_turn() -> None:
    for kind in rating_items.KINDS:
        made, _ = form(kind)
        text = made.model_dump_json()
        assert not any(name in text for name in QUALITY) and "made-" not in text
        assert set(made.model_dump()["items"][0]) == {"item", "lines", "memes"}


def test_another_kind_is_an_error() -> None:
    with pytest.raises(FormError, match="rating, pairwise"):
        form("ranking")
