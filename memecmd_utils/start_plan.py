"""Which cold starts a run makes: news items and scenarios of role pairs, and how workers share them."""

from collections.abc import Sequence
from typing import NamedTuple

from memecmd_utils.profiles import Profile, ProfileError
from memecmd_utils.schemas import TOPICS, NewsItem, RolePair


class Plan(NamedTuple):
    """Cold starts before any model is asked: what they cost is known, and parts do not overlap."""

    news: list[NewsItem]
    pairs: list[tuple[RolePair, int]]
    """Role pairs with the number of scenarios that each is to have."""

    @property
    def n_dialogues(self) -> int:
        """Dialogues that come of it, if no scenario comes to nothing."""
        return len(self.news) + sum(n for _, n in self.pairs)


def plan(items: Sequence[NewsItem], pairs: Sequence[RolePair], profile: Profile) -> Plan:
    """News and scenarios as the profile says: `n_news`, `scenarios_per_pair`, `n_dialogues`.

    `n_dialogues` takes news and role in turn. Raises `ProfileError` where there are fewer news than
    asked for.
    """
    return _cut(choose_news(items, profile.n_news), pairs, profile)


def sizes(profile: Profile) -> tuple[int, int]:
    """Numbers of news and of role dialogues that a profile plans, before there is any of them."""
    made = _cut([None] * profile.n_news, [None] * profile.n_role_pairs, profile)
    return len(made.news), sum(n for _, n in made.pairs)


def _cut(news: list, pairs: Sequence, profile: Profile) -> Plan:
    scenarios = [(pair, profile.scenarios_per_pair) for pair in pairs]
    if profile.n_dialogues is not None:
        n_news, n_role = _in_turn(len(news), sum(n for _, n in scenarios), profile.n_dialogues)
        news, scenarios = news[:n_news], _first(scenarios, n_role)
    return Plan(news, scenarios)


def choose_news(items: Sequence[NewsItem], n: int) -> list[NewsItem]:
    """Take `n` items in turn from each topic, so that a small run is as balanced as a large one."""
    by_topic = [[item for item in items if item.topic == topic] for topic in TOPICS]
    rounds = max((len(group) for group in by_topic), default=0)
    ordered = [group[i] for i in range(rounds) for group in by_topic if i < len(group)]
    if n > len(ordered):
        raise ProfileError(f"n_news={n}, but there are {len(ordered)} news items")
    return ordered[:n]


def split(whole: Plan, n: int) -> list[Plan]:
    """A plan in at most `n` parts, none of them empty, with as many dialogues each as far as that goes.

    A role pair goes to one part with all its scenarios, which must not resemble each other; so no part asks
    for what another one pays for. News fill the parts up.
    """
    parts = [Plan([], []) for _ in range(n)]
    for pair in whole.pairs:
        min(parts, key=lambda part: part.n_dialogues).pairs.append(pair)
    for item in whole.news:
        min(parts, key=lambda part: part.n_dialogues).news.append(item)
    return [part for part in parts if part.n_dialogues]


def _in_turn(n_news: int, n_role: int, limit: int) -> tuple[int, int]:
    """News and role dialogues among the first `limit` when both kinds take turns, news first."""
    both = min(n_news, n_role)
    if limit <= 2 * both:
        return (limit + 1) // 2, limit // 2
    rest = limit - 2 * both
    return min(n_news, both + rest), min(n_role, both + rest)


def _first(pairs: Sequence[tuple[RolePair, int]], limit: int) -> list[tuple[RolePair, int]]:
    """The pairs whose scenarios are among the first `limit`, with as many as fit."""
    taken: list[tuple[RolePair, int]] = []
    for pair, n in pairs:
        if limit <= 0:
            break
        taken.append((pair, min(n, limit)))
        limit -= n
    return taken
