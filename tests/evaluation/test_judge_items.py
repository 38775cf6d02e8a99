from collections import Counter

import made_judged
import made_up
import numpy as np
import pytest

from memecmd_utils.evaluation import judge_checks
from memecmd_utils.evaluation.judge_checks import KINDS

NAMES = [f"news-{n}" for n in range(7)]


def random_grades(seed: int) -> made_judged.Sums:
    """Made-up grades: most pairs ungraded, the others at random."""
    rng = np.random.default_rng(seed)
    return {
        (name, turn, meme): tuple(map(int, rng.choice([0, 0, 0, 1, 2, 2], size=2)))
        for name in NAMES
        for turn in range(2, 7)
        for meme in made_judged.MEMES
        if rng.random() < 0.6
    }


@pytest.mark.parametrize("seed", range(5))
def test_every_item_is_what_its_kind_says(seed) -> None:
    grades = random_grades(seed)
    sums = {key: sum(both) for key, both in grades.items()}
    items = judge_checks.draw(made_judged.data(NAMES, grades))
    assert items and [item.kind for item in items] == list(KINDS) * (len(items) // 3)
    for item in items:
        here = sums.get(item.pair)
        others = [sums.get((item.dialogue_id, t, item.meme_id), 0) for t in range(2, 7) if t != item.turn]
        if item.kind == "fitting":
            assert here >= 3
        elif item.kind == "random":
            assert here is None or here < 2
        else:
            assert grades[item.pair] == (0, 0) and max(others) >= 3
    # Two turns of every dialogue, or as many as qualify, counted here in a slower way.
    able = Counter(
        name
        for name in NAMES
        for turn in range(2, 7)
        if any(sums.get((name, turn, m), 0) >= 3 for m in made_judged.MEMES)
        and any(
            grades.get((name, turn, m)) == (0, 0)
            and any(sums.get((name, t, m), 0) >= 3 for t in range(2, 7) if t != turn)
            for m in made_judged.MEMES
        )
    )
    turns = {(item.dialogue_id, item.turn) for item in items}
    assert len(items) == 3 * len(turns)
    assert Counter(name for name, _ in turns) == {name: min(2, count) for name, count in able.items()}


def test_a_turn_that_lacks_one_kind_is_left_out() -> None:
    grades = dict(made_judged.usual(NAMES[:1]))
    assert {i.turn for i in judge_checks.draw(made_judged.data(NAMES[:1], grades))} <= {2, 3, 4}
    # A hard negative must have been refused by both: one grader's 1 at turns 2 and 3 leaves turn 4.
    for turn, meme in ((2, "m1"), (2, "m2"), (3, "m0"), (3, "m2")):
        grades["news-0", turn, meme] = (0, 1)
    assert {i.turn for i in judge_checks.draw(made_judged.data(NAMES[:1], grades))} == {4}
    # One that lands at this turn only is none either.
    alone = {("news-0", 2, "m0"): (2, 2), ("news-0", 2, "m1"): (0, 0), ("news-0", 3, "m1"): (1, 1)}
    assert judge_checks.draw(made_judged.data(NAMES[:1], alone)) == []


def test_the_random_meme_comes_from_the_whole_library_but_for_what_fits() -> None:
    names = [f"d{n}" for n in range(120)]
    items = judge_checks.draw(made_judged.data(names, judge_checks=240))
    assert len(items) == 3 * 240
    by_turn = {2: "m0", 3: "m1", 4: "m2"}
    drawn = Counter(i.meme_id for i in items if i.kind == "random")
    assert set(drawn) == set(made_judged.MEMES)
    assert all(by_turn[i.turn] != i.meme_id for i in items if i.kind == "random")
    assert drawn["m7"] == pytest.approx(240 / 7, rel=0.5)  # one of seven at every turn


def test_fewer_turns_are_spread_over_dialogues_and_bigger_draws_hold_smaller_ones() -> None:
    def turns(n: int) -> set[tuple[str, int]]:
        items = judge_checks.draw(made_judged.data(NAMES, judge_checks=n))
        return {(i.dialogue_id, i.turn) for i in items}

    assert [len(turns(n)) for n in (1, 7, 8, 14, 94)] == [1, 7, 8, 14, 14]
    assert {name for name, _ in turns(7)} == set(NAMES)
    assert turns(3) < turns(7) < turns(9) < turns(94)


def test_wordings_are_asked_about_the_fitting_and_the_random_meme_of_some_turns() -> None:
    names = [f"d{n}" for n in range(40)]
    items = judge_checks.draw(made_judged.data(names))
    profile = made_up.profile(judge_wordings=50)
    few = judge_checks.for_wordings(items, profile)
    assert Counter(i.kind for i in few) == {"fitting": 50, "random": 50}
    assert len({(i.dialogue_id, i.turn) for i in few}) == 50 and set(few) <= set(items)
    other = made_up.profile(judge_wordings=50, seed=14)
    assert few == judge_checks.for_wordings(items, profile) != judge_checks.for_wordings(items, other)
    assert len(judge_checks.for_wordings(items[:30], profile)) == 20
    fewer = judge_checks.for_wordings(items, made_up.profile(judge_wordings=20))
    assert len(fewer) == 40 and set(fewer) < set(few)  # raising the number re-uses every answer
    assert judge_checks.for_wordings(items, made_up.profile()) == []
