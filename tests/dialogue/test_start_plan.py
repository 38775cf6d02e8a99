from collections import Counter

import pytest

from memecmd_utils.dialogue import cold_start
from memecmd_utils.dialogue.cold_start import Plan
from memecmd_utils.schemas import TOPICS, NewsItem, RolePair
from memecmd_utils.settings import Profile


def item(topic: str, n: int) -> NewsItem:
    return NewsItem(source="x", news_id=f"{topic}-{n}", topic=topic, title=f"题{n}", text=f"正文{n}")


def pair(n: int) -> RolePair:
    return RolePair(
        pair_id=f"R{n:02d}", role_a="甲", role_b="乙", intimacy="close", dominance="equal",
        age_relation="same_age", primary_scenario="life", source="x",
    )  # fmt: skip


def names(made: Plan) -> list[str]:
    """Dialogues in order: news, then the scenarios of each pair."""
    role = [f"{of.pair_id}-{k}" for of, n in made.pairs for k in range(1, n + 1)]
    return [item.news_id for item in made.news] + role


def plan(n_news: int, n_pairs: int, **settings) -> Plan:
    items = [item(TOPICS[n % 6], n) for n in range(n_news)]
    profile = Profile(name="p", n_news=n_news, n_role_pairs=n_pairs, **settings)
    return cold_start.plan(items, [pair(n) for n in range(n_pairs)], profile)


def test_news_are_balanced_over_topics() -> None:
    items = [item(topic, n) for topic in TOPICS for n in range(4)] + [item("games", 9)]
    for n in (0, 1, 5, 6, 7, 13, 24):
        counts = Counter(chosen.topic for chosen in cold_start.choose_news(items, n))
        assert sum(counts.values()) == n
        assert max(counts.values(), default=0) - min((counts[t] for t in TOPICS), default=0) <= 1
    assert cold_start.choose_news(items, 6) == cold_start.choose_news(items, 13)[:6], (
        "a larger run begins alike"
    )
    assert len({chosen.news_id for chosen in cold_start.choose_news(items, 25)}) == 25
    with pytest.raises(ValueError, match="n_news=26, but there are 25"):
        cold_start.choose_news(items, 26)


def test_a_small_run_takes_news_and_role_in_turn_and_pays_for_no_more() -> None:
    everything = names(plan(5, 2))
    assert names(plan(5, 2, n_dialogues=99)) == everything
    assert names(plan(5, 2, n_dialogues=1)) == everything[:1]
    assert names(plan(5, 2, n_dialogues=4)) == [*everything[:2], "R00-1", "R01-1"]
    assert names(plan(5, 2, n_dialogues=6)) == [*everything[:4], "R00-1", "R01-1"]
    assert names(plan(0, 2, n_dialogues=1)) == ["R00-1"]
    assert names(plan(1, 2, n_dialogues=4, scenarios_per_pair=3))[1:] == ["R00-1", "R00-2", "R00-3"]
    assert plan(3, 2, scenarios_per_pair=4).n_dialogues == 11


@pytest.mark.parametrize("n", [1, 2, 3, 8, 40])
@pytest.mark.parametrize("n_dialogues", [None, 500])
def test_parts_hold_everything_exactly_once_and_no_pair_is_in_two(n: int, n_dialogues: int | None) -> None:
    whole = plan(965, 23, n_dialogues=n_dialogues, scenarios_per_pair=42)
    parts = cold_start.split(whole, n)
    assert len(parts) == n
    assert sorted(name for part in parts for name in names(part)) == sorted(names(whole))
    of_pairs = [of.pair_id for part in parts for of, _ in part.pairs]
    assert len(of_pairs) == len(set(of_pairs))
    sizes = [part.n_dialogues for part in parts]
    # News fill the parts up; only where there are too few do whole pairs stand out.
    assert max(sizes) - min(sizes) <= 1 or max(sizes) == 42
