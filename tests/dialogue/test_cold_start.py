import asyncio
import time
from collections import Counter

import numpy as np
import pytest
from scripted import ScriptedBackend

from memecmd_utils.dialogue import cold_start
from memecmd_utils.dialogue.cold_start import NEW_SCENARIO_TRIES, Plan
from memecmd_utils.files import dumps
from memecmd_utils.llm import authored
from memecmd_utils.llm import chat as llm_chat
from memecmd_utils.llm.chat import Chat
from memecmd_utils.llm.messages import Request
from memecmd_utils.schemas import TOPICS, NewsItem, RolePair, Scenario, ScenarioDetails, Unfinished
from memecmd_utils.settings import Profile

PAIR = RolePair(
    pair_id="R01", role_a="上司", role_b="下属", intimacy="acquaintance", dominance="a_dominant",
    age_relation="a_older", primary_scenario="work", source="authored",
)  # fmt: skip
DETAILS = dumps({field: f"{field}的话" for field in ScenarioDetails.model_fields})


def item(topic: str, n: int) -> NewsItem:
    return NewsItem(source="x", news_id=f"{topic}-{n}", topic=topic, title=f"题{n}", text=f"正文{n}")


def test_f_news_and_f_role() -> None:
    news = cold_start.from_news(item("sports", 1))
    assert (news.dialogue_id, news.kind, news.name_a, news.name_b) == ("news-sports-1", "news", "甲", "乙")
    assert all(part in news.context for part in ("体育", "题1", "正文1")), "topic, title and text (Eq. 7)"
    assert "题1" in news.brief and "正文1" not in news.brief
    scenario = written(["开会迟到"])[0]
    role = cold_start.from_scenario(scenario, PAIR)
    assert (role.dialogue_id, role.name_a, role.name_b) == ("role-R01-1", "上司", "下属")
    assert all(f"{field}的话" in role.context for field in ScenarioDetails.model_fields), "all of Eq. 9"
    assert "开会迟到" in role.context and "上司" in role.brief and "event的话" not in role.brief
    assert len(role.prompt_sha256) == len(news.prompt_sha256) == 64 != len(role.context)


def write(
    lines: list[str],
    similar: dict[str, float] | None = None,
    requests: list | None = None,
    n: int = 1,
    **changes,
) -> tuple[list[Scenario], list[Unfinished]]:
    """Write the scenarios of a pair; `similar` gives a line's cosine to the first of the earlier ones."""
    rest = iter(lines)

    def reply(request: Request) -> str:
        if requests is not None:
            requests.append(request)
        return DETAILS if request.subject.endswith("/details") else dumps({"scenario": next(rest)})

    def encode(texts: list[str]) -> np.ndarray:
        cos = (similar or {}).get(texts[-1], 0.0)
        rows = np.eye(len(texts) + 1)
        rows[-2] = cos * rows[0] + np.sqrt(1 - cos**2) * rows[-1]
        return rows[:-1]

    chat = Chat(ScriptedBackend(reply))
    return llm_chat.run(cold_start.write_scenarios(PAIR, n, chat, Profile(name="p", **changes), encode))


def written(*args, **changes) -> list[Scenario]:
    return write(*args, **changes)[0]


def test_a_scenario_too_like_an_earlier_one_is_asked_for_anew_with_that_one_named() -> None:
    requests: list[Request] = []
    done = written(
        ["一", "像一", "也像一", "二"],
        {"像一": 0.95, "也像一": 0.81, "二": 0.8},
        requests,
        n=2,
        scenario_similarity_cap=0.8,
    )
    assert [(s.scenario_id, s.scenario) for s in done] == [("R01-1", "一"), ("R01-2", "二")]
    assert done[0].similarity is None and done[1].similarity == pytest.approx(0.8)
    second = [r for r in requests if r.subject == "R01-2"]
    assert [r.sample for r in second] == [0, 1, 2], (
        "each is a sample of its own, so recordings keep them apart"
    )
    assert all("一" in r.messages[0].text for r in second) and "已经写过" in second[0].messages[0].text
    assert "已经写过" not in requests[0].messages[0].text
    assert [len(r.messages) for r in second] == [1, 3, 3], "what was said last, and what it is too like"
    assert "像一" in second[1].messages[1].text and "太像" in second[1].messages[2].text
    assert "也像一" in second[2].messages[1].text


def test_none_above_the_cap_ever_stands_and_the_rest_goes_on() -> None:
    alike = [f"像一{k}" for k in range(NEW_SCENARIO_TRIES)]
    done, failed = write(["一", *alike, "三"], dict.fromkeys(alike, 0.9), n=3, scenario_similarity_cap=0.5)
    assert [s.scenario_id for s in done] == ["R01-1", "R01-3"]
    assert [(lost.dialogue_id, lost.turn, lost.turns) for lost in failed] == [("role-R01-2", 1, [])]
    assert "too like '一' (cosine 0.900)" in failed[0].reason


def test_a_scenario_without_usable_details_is_left_out_with_the_reason() -> None:
    def reply(request: Request) -> str:
        if request.subject == "R01-1/details":
            return "没有"
        return DETAILS if request.subject.endswith("/details") else dumps({"scenario": request.subject})

    profile = Profile(name="p", scenario_similarity_cap=1.0)
    work = cold_start.role_cold_starts(
        [(PAIR, 2)], Chat(ScriptedBackend(reply)), profile, lambda texts: np.eye(len(texts))
    )
    role = llm_chat.run(work)
    assert (
        [s.dialogue_id for s in role.starts]
        == ["role-R01-2"]
        == [f"role-{s.scenario_id}" for s in role.scenarios]
    )
    assert [lost.dialogue_id for lost in role.unfinished] == ["role-R01-1"]
    assert "no details" in role.unfinished[0].reason


def test_a_slow_embedder_keeps_no_reply_waiting_and_is_called_in_one_thread_at_a_time() -> None:
    inside: list[int] = []
    most: list[int] = []
    longest = 0.0

    def encode(texts: list[str]) -> np.ndarray:
        inside.append(1)
        most.append(len(inside))
        time.sleep(0.5)
        inside.pop()
        return np.eye(len(texts))

    def reply(request: Request) -> str:
        return DETAILS if request.subject.endswith("/details") else dumps({"scenario": request.subject})

    async def beat() -> None:
        nonlocal longest
        while True:
            before = time.monotonic()
            await asyncio.sleep(0.005)
            longest = max(longest, time.monotonic() - before)

    async def work() -> cold_start.RoleStarts:
        beating = asyncio.ensure_future(beat())
        pairs = [(pair, 2) for pair in authored.load_role_pairs()[:3]]
        made = await cold_start.role_cold_starts(
            pairs, Chat(ScriptedBackend(reply)), Profile(name="p"), encode
        )
        beating.cancel()
        return made

    assert len(llm_chat.run(work()).starts) == 6
    assert most == [1, 1, 1] and longest < 0.35


def test_details_belong_to_the_scenario_that_stands() -> None:
    requests: list[Request] = []
    written(["开会迟到"], requests=requests)
    assert "开会迟到" in requests[-1].messages[0].text and requests[-1].subject == "R01-1/details"
    text = requests[0].messages[0].text
    assert all(word in text for word in ("上司", "下属", "认识", "甲说了算", "甲年长", "工作"))


def pair(n: int) -> RolePair:
    return PAIR.model_copy(update={"pair_id": f"R{n:02d}"})


def names(made: Plan) -> list[str]:
    """Dialogues in order: news, then the scenarios of each pair."""
    role = [f"{pair.pair_id}-{k}" for pair, n in made.pairs for k in range(1, n + 1)]
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
