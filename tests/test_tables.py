"""Consistency (Eq. 26), Tables 1 and 2, effects: one case of each, worked out by hand."""

from functools import partial

import made_up
import numpy as np
import pytest

from memecmd_utils import consistency, statistics, tables

SPOKEN = {
    name: made_up.dialogue(name, tuple(f"{name} says {t}" for t in range(1, 7)))
    for name in ("d1", "d2", "d3")
}


def test_equation_26_by_hand() -> None:
    """(cos + 1) / 2 * 100: -1 gives 0, 0 gives 50, .5 gives 75, 1 gives 100; rounding above 1 is cut off."""
    assert consistency.score(np.array([-1, 0, 0.5, 1, 1 + 1e-7])).tolist() == [0, 50, 75, 100, 100]


def test_which_texts_stand_beside_a_meme() -> None:
    """u_t, u_t+1 where the dialogue goes on, and the u_t of the same strategy in another dialogue."""
    places = (("d1", 2, "greedy"), ("d1", 6, "greedy"), ("d2", 3, "greedy"), ("d3", 4, "random"))
    group = [made_up.placement(t, "m1", dialogue_id=name, strategy=who) for name, t, who in places]
    pairs = consistency.text_pairs(group, SPOKEN, made_up.profile())
    texts = {(p.dialogue_id, p.turn, kind): text for p, kind, text in pairs}
    assert texts["d1", 2, "u_t"] == "d1 says 2" and texts["d1", 2, "u_t+1"] == "d1 says 3"
    assert texts["d1", 6, "u_t"] == "d1 says 6" and ("d1", 6, "u_t+1") not in texts
    assert texts["d1", 2, "shuffled"] == texts["d1", 6, "shuffled"] == "d2 says 3"
    assert texts["d2", 3, "shuffled"] in ("d1 says 2", "d1 says 6") and ("d3", 4, "shuffled") not in texts


ALL = ("greedy", "sampling", "random", "random_same_turns")


@pytest.fixture(autouse=True)
def two_clusters_are_enough(monkeypatch):
    """Cases worked out by hand have two or three dialogues; the real floor has a test of its own."""
    monkeypatch.setattr(statistics, "MIN_CLUSTERS", 2)


def dialogues(*names: str, n_turns: int = 6):
    texts = tuple(f"{t}" for t in range(1, n_turns + 1))
    return [made_up.dialogue(name, texts).model_copy(update={"kind": name.split("-")[0]}) for name in names]


def scored(make, table: dict[tuple[str, str], dict[int, float | None]], **changes):
    """Records of {(dialogue, strategy): {turn: score}}."""
    return [
        make(turn, score, dialogue_id=name, strategy=strategy, **changes)
        for (name, strategy), scores in table.items()
        for turn, score in scores.items()
    ]


ratings, texts = (partial(scored, make) for make in (made_up.rating, made_up.consistency))


def cell(table, dataset: str, metric: str, strategy: str):
    found = table[(table.dataset == dataset) & (table.metric == metric) & (table.strategy == strategy)]
    assert len(found) == 1
    return found.iloc[0]


def test_table_1_by_hand() -> None:
    """Two news dialogues, 6 turns. greedy: a 60, 70 and one unscored, b 50: mean 60, n 3, 1 unscored.
    random: a 40, b 60: mean 50. Difference 10."""
    scores = {
        ("news-a", "greedy"): {2: 60, 3: 70, 5: None},
        ("news-b", "greedy"): {4: 50},
        ("news-a", "random"): {2: 40},
        ("news-b", "random"): {6: 60},
    }
    fit = {("news-a", "greedy"): {2: 70, 3: 72}, ("news-b", "random"): {6: 68}}
    profile = made_up.profile(strategies=ALL)
    got = tables.table_1(ratings(scores), texts(fit), dialogues("news-a", "news-b"), profile)
    assert list(got.dataset.unique()) == ["news-6"]  # no role dialogues, no longer ones
    greedy = cell(got, "news-6", "judge", "greedy")
    assert (greedy["mean"].value, greedy.n, greedy.dialogues, greedy.unscored) == (60, 3, 2, 1)
    of_two = statistics.cluster_mean([60, 70, 50], ["a", "a", "b"])
    assert greedy["mean"] == of_two and of_two.low < 60 < of_two.high
    assert greedy.difference == 10
    random = cell(got, "news-6", "judge", "random")
    assert (random["mean"].value, random.n, random.unscored, random.difference) == (50, 2, 0, 0)
    fitted = cell(got, "news-6", "consistency", "greedy")
    assert (fitted["mean"].value, fitted.n, fitted.unscored, fitted.difference) == (71, 2, 0, 3)
    assert np.isnan(fitted["mean"].low)  # one dialogue has no interval
    own = [one.model_copy(update={"kind": "own"}) for one in dialogues("news-a", "news-b")]
    of_own = tables.table_1(ratings(scores), texts(fit), own, profile)
    assert cell(of_own, "own-6", "judge", "greedy")["mean"] == of_two, "one's own dialogues have a row, too"
    shown = tables.table_1_printed(of_own).set_index(["dataset", "metric"]).loc[("own-6", "judge")]
    assert shown["Greedy"] == f"{of_two} (n=3 in 2, 1 unscored)" and shown["Sampling"] == "– (n=0 in 0)"


def test_a_length_of_table_1_has_the_ratings_of_that_length() -> None:
    """Of a prefix those given for it; separate dialogues count at their own, chats by their mean."""
    rated = ratings({("news-a", "greedy"): {3: 10}}, judge_unit="dialogue", n_turns=6)
    rated += ratings({("news-a", "greedy"): {3: 40, 9: None}}, judge_unit="dialogue", n_turns=12)
    rated += ratings({("news-a", "greedy"): {3: 50, 9: 70}}, judge_unit="dialogue", n_turns=18)
    got = tables.table_1(rated, [], dialogues("news-a", n_turns=18), made_up.profile(n_turns=18))
    cells = [cell(got, f"news-{n}", "judge", "greedy") for n in (6, 12, 18)]
    assert [(c["mean"].value, c.n, c.unscored) for c in cells] == [(10, 1, 0), (40, 1, 1), (60, 2, 0)]
    chats = [*dialogues("news-a", n_turns=12), *dialogues("news-b")]
    rated = ratings({("news-a", "greedy"): {3: 40, 9: 40}}, judge_unit="chat", n_turns=12)
    rated += ratings({("news-b", "greedy"): {3: 80}}, judge_unit="chat", n_turns=6)
    fit = texts({("news-a", "greedy"): {3: 60, 9: 70}})
    got = tables.table_1(rated, fit, chats, made_up.profile(n_turns=[6, 12], judge_unit="chat"))
    cells = [cell(got, f"news-{n}", "judge", "greedy") for n in (6, 12)]
    assert [(c["mean"].value, c.n) for c in cells] == [(80, 1), (40, 1)]
    assert cell(got, "news-12", "consistency", "greedy")["mean"].value == 65


def test_choice_effect_is_paired_by_turn() -> None:
    """greedy - control at shared turns: a2 60-50, a3 80-50, b2 40-50: 10, 30, -10, mean 10. Turn a5 has no
    control and does not count."""
    scores = {
        ("news-a", "greedy"): {2: 60, 3: 80, 5: 100},
        ("role-b", "greedy"): {2: 40},
        ("news-a", "random_same_turns"): {2: 50, 3: 50, 5: None},
        ("role-b", "random_same_turns"): {2: 50},
        ("news-a", "random"): {4: 20},
    }
    got = tables.effects(ratings(scores), [], dialogues("news-a", "role-b"), made_up.profile(strategies=ALL))
    row = got[(got.effect == "choice") & (got.metric == "judge")].iloc[0]
    assert row.comparison == "greedy - random_same_turns" and (row.difference.value, row.n) == (10, 3)
    wanted = statistics.cluster_mean([10, 30, -10], ["a", "a", "b"])
    assert (row.difference.low, row.difference.high, row.dialogues) == (wanted.low, wanted.high, 2)
    assert got[got.effect != "choice"].p_holm.isna().all(), "Holm stands over the choice effects only"
    timing = got[(got.effect == "timing") & (got.metric == "judge")].iloc[0]
    assert timing.difference.value == pytest.approx(50 - 20)
