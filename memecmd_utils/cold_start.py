"""Cold starts: news items and role pairs become the context a dialogue begins from (Eq. 3, 7, 9)."""

from collections.abc import Callable, Sequence

import numpy as np

from memecmd_utils import prompting, replies, seeds
from memecmd_utils.llm import Chat, Message, Request, Sampling
from memecmd_utils.profiles import Profile
from memecmd_utils.schemas import (
    TOPICS,
    ColdStart,
    NewsItem,
    RolePair,
    Scenario,
    ScenarioDetails,
    ScenarioReply,
)

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
NEW_SCENARIO_TRIES = 5


def choose_news(items: Sequence[NewsItem], n: int) -> list[NewsItem]:
    """Take `n` items in turn from each topic, so that a small run is as balanced as a large one."""
    by_topic = [[item for item in items if item.topic == topic] for topic in TOPICS]
    rounds = max((len(group) for group in by_topic), default=0)
    ordered = [group[i] for i in range(rounds) for group in by_topic if i < len(group)]
    if n > len(ordered):
        raise ValueError(f"n_news={n}, but there are {len(ordered)} news items")
    return ordered[:n]


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
        context=prompting.render("context_news", topic=topic, title=item.title, text=item.text),
        brief=prompting.render("brief_news", topic=topic, title=item.title),
        source=item.source,
        prompt_sha256=prompting.prompt_sha256("context_news"),
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
        context=prompting.render("context_role", s=scenario, pair=pair),
        brief=prompting.render("brief_role", s=scenario, pair=pair),
        source=scenario.source,
        prompt_sha256=prompting.prompt_sha256("context_role"),
    )


def _request(prompt: str, subject: str, schema: type, seed: int, sample: int, **values: object) -> Request:
    text = prompting.render(prompt, fence=prompting.fence, **values)
    return Request(
        task="scenario",
        subject=subject,
        messages=[Message(role="user", text=text)],
        sampling=Sampling(temperature=0.9, max_tokens=500),
        seed=seed,
        sample=sample,
        reply_schema=schema,
    )


def _dimensions(pair: RolePair) -> dict[str, str]:
    keys = ("intimacy", "dominance", "age_relation", "primary_scenario")
    return {key: DIMENSION_NAMES[getattr(pair, key)] for key in keys}


async def write_scenarios(
    pair: RolePair,
    chat: Chat,
    profile: Profile,
    encode: Callable[[list[str]], np.ndarray],
    glosses: dict[str, str] | None = None,
) -> list[Scenario]:
    """Have an agent write `scenarios_per_pair` scenarios of low similarity, each with its details.

    A scenario whose embedding cosine to an earlier one of the pair is above `scenario_similarity_cap`
    is asked for anew, up to five times; the least similar of the five stands then.
    """
    dimensions = _dimensions(pair)
    done: list[Scenario] = []
    for number in range(1, profile.scenarios_per_pair + 1):
        name = f"{pair.pair_id}-{number}"
        seed = int(seeds.rng(profile.seed, "scenario", name).integers(2**31))
        best: tuple[float, str, str] | None = None
        for sample in range(NEW_SCENARIO_TRIES):
            earlier = [scenario.scenario for scenario in done]
            request = _request(
                "scenario", name, ScenarioReply, seed, sample, pair=pair, earlier=earlier, **dimensions
            )
            answer = await chat.ask(request, lambda reply: replies.structured(reply, ScenarioReply))
            if answer.value is None:
                continue
            text = answer.value.scenario
            similarity = 0.0
            if earlier:
                vectors = encode([*earlier, text])
                similarity = float((vectors[:-1] @ vectors[-1]).max())
            if best is None or similarity < best[0]:
                best = (similarity, text, answer.source)
            if similarity <= profile.scenario_similarity_cap:
                break
        if best is None:
            raise RuntimeError(f"no usable scenario for {name} in {NEW_SCENARIO_TRIES} requests")
        request = _request(
            "scenario_details",
            f"{name}/details",
            ScenarioDetails,
            seed,
            0,
            pair=pair,
            scenario=best[1],
            **dimensions,
        )
        details = await chat.ask(request, lambda reply: replies.structured(reply, ScenarioDetails))
        if details.value is None:
            raise RuntimeError(f"no usable details for scenario {name}: {details.reason}")
        done.append(
            Scenario(
                scenario_id=name,
                pair_id=pair.pair_id,
                scenario=best[1],
                similarity=best[0] if done else None,
                gloss=(glosses or {}).get(name, ""),
                source=best[2],
                profile=profile.name,
                prompt_sha256=prompting.prompt_sha256("scenario"),
                seed=seed,
                **details.value.model_dump(),
            )
        )
    return done


async def role_cold_starts(
    pairs: Sequence[RolePair],
    chat: Chat,
    profile: Profile,
    encode: Callable[[list[str]], np.ndarray],
    glosses: dict[str, str] | None = None,
) -> tuple[list[Scenario], list[ColdStart]]:
    """Write the scenarios of all pairs side by side and turn them into cold starts."""
    written = await chat.side_by_side(write_scenarios(p, chat, profile, encode, glosses) for p in pairs)
    scenarios = [scenario for group in written for scenario in group]
    by_id = {pair.pair_id: pair for pair in pairs}
    return scenarios, [from_scenario(scenario, by_id[scenario.pair_id]) for scenario in scenarios]


def take(starts: Sequence[ColdStart], profile: Profile) -> list[ColdStart]:
    """Apply `n_dialogues` (news and role in turn) and then `shard`."""
    kinds = [[s for s in starts if s.kind == kind] for kind in ("news", "role")]
    longest = max(map(len, kinds), default=0)
    if profile.n_dialogues is not None:
        turn_about = [group[i] for i in range(longest) for group in kinds if i < len(group)]
        chosen = {s.dialogue_id for s in turn_about[: profile.n_dialogues]}
        starts = [s for s in starts if s.dialogue_id in chosen]
    if profile.shard:
        part, parts = map(int, profile.shard.split("/"))
        starts = starts[part - 1 :: parts]
    return list(starts)
