"""Cold starts: news items and role pairs become the context a dialogue begins from (Eq. 3, 7, 9)."""

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from memecmd_utils import files, statistics
from memecmd_utils.files import MemecmdError
from memecmd_utils.llm import prompts, replies
from memecmd_utils.llm.chat import Chat
from memecmd_utils.llm.messages import Message, Request, Sampling
from memecmd_utils.schemas import (
    TOPICS,
    ColdStart,
    NewsItem,
    RolePair,
    Scenario,
    ScenarioDetails,
    ScenarioReply,
    Unfinished,
)
from memecmd_utils.settings import Profile, ProfileError

TOPIC_NAMES = dict(zip(TOPICS, ("体育", "娱乐", "科技", "游戏", "教育", "健康"), strict=True))
DIMENSION_NAMES = {
    "stranger": "陌生人",
    "acquaintance": "认识",
    "close": "亲近",
    "very_close": "非常亲密",
    "equal": "平等",
    "a_dominant": "甲说了算",
    "b_dominant": "乙说了算",
    "mutual_dependence": "互相依靠",
    "same_age": "同龄",
    "a_older": "甲年长",
    "b_older": "乙年长",
    "generational": "隔代",
    "work": "工作",
    "study": "学习",
    "life": "生活",
    "entertainment": "娱乐",
    "special": "特殊场合",
}
NEW_SCENARIO_TRIES = 8
Encode = Callable[[list[str]], np.ndarray]
"""Texts to unit vectors, [texts, dim]."""


def from_news(item: NewsItem) -> ColdStart:
    """f_news of Eq. 7: a news tuple becomes a dialogue's context."""
    topic = TOPIC_NAMES[item.topic]
    return ColdStart(
        dialogue_id=f"news-{item.news_id}",
        kind="news",
        ref=item.news_id,
        title=item.title,
        name_a="甲",
        name_b="乙",
        context=prompts.render("context_news", topic=topic, title=item.title, text=item.text),
        brief=prompts.render("brief_news", topic=topic, title=item.title),
        source=item.source,
        prompt_sha256=prompts.prompt_sha256("context_news"),
    )


def from_scenario(scenario: Scenario, pair: RolePair) -> ColdStart:
    """f_role of Eq. 9: both roles and the scene become a dialogue's context."""
    return ColdStart(
        dialogue_id=f"role-{scenario.scenario_id}",
        kind="role",
        ref=scenario.scenario_id,
        title=scenario.scenario,
        name_a=pair.role_a,
        name_b=pair.role_b,
        context=prompts.render("context_role", s=scenario, pair=pair),
        brief=prompts.render("brief_role", s=scenario, pair=pair),
        source=scenario.source,
        prompt_sha256=prompts.prompt_sha256("context_role"),
    )


def _request(
    prompt: str,
    subject: str,
    schema: type,
    seed: int,
    sample: int = 0,
    correction: Sequence[Message] = (),
    **values: object,
) -> Request:
    text = prompts.render(prompt, fence=prompts.fence, **values)
    return Request(
        task="scenario",
        subject=subject,
        messages=[Message(role="user", text=text), *correction],
        sampling=Sampling(temperature=0.9, max_tokens=500),
        seed=seed,
        sample=sample,
        reply_schema=schema,
    )


def dimensions_of(pair: RolePair) -> dict[str, str]:
    """How two people stand to each other, by dimension, in the words of the prompts."""
    keys = ("intimacy", "dominance", "age_relation", "primary_scenario")
    return {key: DIMENSION_NAMES[getattr(pair, key)] for key in keys}


async def write_scenarios(
    pair: RolePair,
    n: int,
    chat: Chat,
    profile: Profile,
    encode: Encode,
    glosses: Mapping[str, str] | None = None,
) -> tuple[list[Scenario], list[Unfinished]]:
    """Have an agent write `n` scenarios of a pair, each with its details, and those that came to nothing.

    One whose cosine with an earlier one of the pair is above `scenario_similarity_cap` is asked for anew, and
    left out after `NEW_SCENARIO_TRIES`. The first `n` do not depend on how many follow.
    """
    done: list[Scenario] = []
    failed: list[Unfinished] = []
    for number in range(1, n + 1):
        name = f"{pair.pair_id}-{number}"
        seed = int(statistics.rng(profile.seed, "scenario", name).integers(2**31))
        provenance = {
            "profile": profile.name,
            "prompt_sha256": prompts.prompt_sha256("scenario"),
            "seed": seed,
        }
        try:
            scene = await _new_scene(pair, name, [s.scenario for s in done], chat, profile, encode, seed)
            details = await _details(pair, name, scene.text, chat, seed)
        except NoScenario as error:
            failed.append(
                Unfinished(
                    dialogue_id=f"role-{name}",
                    turn=1,
                    reason=str(error),
                    turns=[],
                    source=chat.backend.source,
                    **provenance,
                )
            )
            continue
        done.append(
            Scenario(
                scenario_id=name,
                pair_id=pair.pair_id,
                scenario=scene.text,
                similarity=scene.similarity if done else None,
                gloss=(glosses or {}).get(name, ""),
                source=scene.source,
                **provenance,
                **details.model_dump(),
            )
        )
    return done, failed


class NoScenario(MemecmdError, RuntimeError):
    """The model has no usable scenario, or no details for it, also after all attempts."""


class Scene(NamedTuple):
    """A scenario before its details; `similarity` is the cosine to the nearest earlier one of its pair."""

    text: str
    similarity: float
    source: str


async def _new_scene(
    pair: RolePair, name: str, earlier: list[str], chat: Chat, profile: Profile, encode: Encode, seed: int
) -> Scene:
    correction: list[Message] = []
    reason = ""
    values = {"pair": pair, "earlier": earlier, **dimensions_of(pair)}
    for sample in range(NEW_SCENARIO_TRIES):
        request = _request("scenario", name, ScenarioReply, seed, sample, correction, **values)
        answer = await chat.ask(request, lambda reply: replies.structured(reply, ScenarioReply))
        if answer.value is None:
            correction, reason = [], f"{answer.outcome}: {answer.reason}"
            continue
        text = answer.value.scenario
        if not earlier:
            return Scene(text, 0.0, answer.source)
        # Loading an embedder takes seconds, in which replies to other pairs must not run out of time.
        vectors = await asyncio.to_thread(encode, [*earlier, text])
        cosines = vectors[:-1] @ vectors[-1]
        nearest = int(cosines.argmax())
        if cosines[nearest] <= profile.dialogue.scenario_similarity_cap:
            return Scene(text, float(cosines[nearest]), answer.source)
        reason = f"too like {earlier[nearest]!r} (cosine {cosines[nearest]:.3f})"
        again = prompts.render("scenario_again", fence=prompts.fence, nearest=earlier[nearest])
        correction = [
            Message(role="assistant", text=files.dumps(answer.value.model_dump())),
            Message(role="user", text=again),
        ]
    raise NoScenario(f"no new scenario in {NEW_SCENARIO_TRIES} requests; the last one: {reason}")


async def _details(pair: RolePair, name: str, scenario: str, chat: Chat, seed: int) -> ScenarioDetails:
    values = {"pair": pair, "scenario": scenario, **dimensions_of(pair)}
    request = _request("scenario_details", f"{name}/details", ScenarioDetails, seed, **values)
    answer = await chat.ask(request, lambda reply: replies.structured(reply, ScenarioDetails))
    if answer.value is None:
        raise NoScenario(f"no details for the scenario: {answer.outcome}: {answer.reason}")
    return answer.value


class RoleStarts(NamedTuple):
    """What role pairs gave: scenarios, cold starts in the same order, and scenarios that came to nothing."""

    scenarios: list[Scenario]
    starts: list[ColdStart]
    unfinished: list[Unfinished]


async def role_cold_starts(
    pairs: Sequence[tuple[RolePair, int]],
    chat: Chat,
    profile: Profile,
    encode: Encode,
    glosses: Mapping[str, str] | None = None,
) -> RoleStarts:
    """Write so many scenarios of each pair, pairs side by side, and turn them into cold starts."""
    lock = threading.Lock()  # pairs encode in threads of their own, and an embedder serves one at a time

    def alone(texts: list[str]) -> np.ndarray:
        with lock:
            return encode(texts)

    written = await chat.side_by_side(
        write_scenarios(pair, n, chat, profile, alone, glosses) for pair, n in pairs
    )
    by_id = {pair.pair_id: pair for pair, _ in pairs}
    scenarios = [scenario for done, _ in written for scenario in done]
    starts = [from_scenario(scenario, by_id[scenario.pair_id]) for scenario in scenarios]
    return RoleStarts(scenarios, starts, [lost for _, failed in written for lost in failed])


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
    """News and scenarios as the profile says: `n_news`, `scenarios_per_pair`, `n_dialogues` (Eq. 3).

    Raises `ProfileError` where there are fewer news than asked for.
    """
    return _cut(choose_news(items, profile.dialogue.n_news), pairs, profile)


def sizes(profile: Profile) -> tuple[int, int]:
    """Numbers of news and of role dialogues that a profile plans, before there is any of them."""
    made = _cut([None] * profile.dialogue.n_news, [None] * profile.dialogue.n_role_pairs, profile)
    return len(made.news), sum(n for _, n in made.pairs)


def _cut(news: list, pairs: Sequence, profile: Profile) -> Plan:
    each, limit = profile.dialogue.scenarios_per_pair, profile.dialogue.n_dialogues
    n_role = len(pairs) * each
    if limit is not None:
        # In turn, news first; where one kind is used up, the other goes on.
        news = news[: max((limit + 1) // 2, limit - n_role)]
        n_role = min(n_role, limit - len(news))
    scenarios = [(pair, min(each, n_role - done * each)) for done, pair in enumerate(pairs)]
    return Plan(news, [(pair, n) for pair, n in scenarios if n > 0])


def choose_news(items: Sequence[NewsItem], n: int) -> list[NewsItem]:
    """Take `n` items in turn from each topic, so that a small run is as balanced as a large one."""
    by_topic = [[item for item in items if item.topic == topic] for topic in TOPICS]
    rounds = max((len(group) for group in by_topic), default=0)
    ordered = [group[i] for i in range(rounds) for group in by_topic if i < len(group)]
    if n > len(ordered):
        raise ProfileError(f"n_news={n}, but there are {len(ordered)} news items")
    return ordered[:n]


def split(all_starts: Plan, n: int) -> list[Plan]:
    """A plan in at most `n` parts, none of them empty, with as many dialogues each as far as that goes.

    A role pair stays with all its scenarios, which must not resemble each other; news fill the parts up.
    """
    parts = [Plan([], []) for _ in range(n)]
    for pair in all_starts.pairs:
        min(parts, key=lambda part: part.n_dialogues).pairs.append(pair)
    for item in all_starts.news:
        min(parts, key=lambda part: part.n_dialogues).news.append(item)
    return [part for part in parts if part.n_dialogues]
