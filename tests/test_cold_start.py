import re
from collections import Counter

import numpy as np
import pytest

from memecmd_utils import cold_start, example_corpus, llm
from memecmd_utils.cold_start import NEW_SCENARIO_TRIES
from memecmd_utils.llm import Chat, Request
from memecmd_utils.llm_backends import AuthoredBackend, ScriptedBackend
from memecmd_utils.profiles import Profile
from memecmd_utils.schemas import TOPICS, ColdStart, NewsItem, RolePair, ScenarioDetails
from memecmd_utils.storage import dumps

PAIR = RolePair(
    pair_id="R01", role_a="上司", role_b="下属", intimacy="acquaintance", dominance="a_dominant",
    age_relation="a_older", primary_scenario="work", source="authored",
)  # fmt: skip
DETAILS = dumps({field: f"{field}的话" for field in ScenarioDetails.model_fields})


def item(topic: str, n: int) -> NewsItem:
    return NewsItem(source="x", news_id=f"{topic}-{n}", topic=topic, title=f"题{n}", text=f"正文{n}")


def start(n: int, kind: str = "news") -> ColdStart:
    return ColdStart(
        source="x", dialogue_id=f"{kind}-{n}", kind=kind, ref=str(n), title="题", name_a="甲", name_b="乙",
        context="全", brief="简",
    )  # fmt: skip


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


def written(
    lines: list[str], similar: dict[str, float] | None = None, requests: list | None = None, **changes
):
    """Write the scenarios of a pair; `similar` gives a line's cosine to every earlier one."""
    rest = iter(lines)

    def reply(request: Request) -> str:
        if requests is not None:
            requests.append(request)
        return DETAILS if request.subject.endswith("/details") else dumps({"scenario": next(rest)})

    def encode(texts: list[str]) -> np.ndarray:
        cos = (similar or {}).get(texts[-1], 0.0)
        rows = [[1.0, 0.0]] * (len(texts) - 1) + [[cos, np.sqrt(1 - cos**2)]]
        return np.array(rows)

    profile = Profile(name="p", **changes)
    chat = Chat(ScriptedBackend(reply))
    return llm.run(cold_start.write_scenarios(PAIR, chat, profile, encode))


def test_a_scenario_too_like_an_earlier_one_is_asked_for_anew() -> None:
    requests: list[Request] = []
    done = written(
        ["一", "像一", "也像一", "二"],
        {"像一": 0.95, "也像一": 0.81, "二": 0.8},
        requests,
        scenarios_per_pair=2,
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


def test_after_five_the_least_similar_stands() -> None:
    likeness = dict(zip("ABCDE", (0.99, 0.95, 0.9, 0.97, 0.98), strict=True))
    done = written(["一", *"ABCDE"], likeness, scenarios_per_pair=2, scenario_similarity_cap=0.5)
    assert done[1].scenario == "C" and done[1].similarity == pytest.approx(0.9)
    assert len(likeness) == NEW_SCENARIO_TRIES


def test_details_belong_to_the_scenario_that_stands() -> None:
    requests: list[Request] = []
    written(["开会迟到"], requests=requests)
    assert "开会迟到" in requests[-1].messages[0].text and requests[-1].subject == "R01-1/details"
    text = requests[0].messages[0].text
    assert all(word in text for word in ("上司", "下属", "认识", "甲说了算", "甲年长", "工作"))


def test_every_dimension_has_a_name() -> None:
    for pair in example_corpus.load_role_pairs():
        assert all(cold_start._dimensions(pair).values())
    assert set(cold_start.TOPIC_NAMES) == set(TOPICS)


def test_the_authored_scenarios_come_through_the_same_seam() -> None:
    pairs = example_corpus.load_role_pairs()[:3]
    chat = Chat(AuthoredBackend(example_corpus.texts()))
    scenarios, starts = llm.run(
        cold_start.role_cold_starts(pairs, chat, Profile(name="p"), lambda texts: np.eye(len(texts)))
    )
    assert [s.pair_id for s in scenarios] == [p.pair_id for p in pairs]
    assert [s.dialogue_id for s in starts] == [f"role-{s.scenario_id}" for s in scenarios]
    assert {s.source for s in [*scenarios, *starts]} == {"authored"}


def take(starts: list[ColdStart], **settings) -> list[str]:
    return [s.dialogue_id for s in cold_start.take(starts, Profile(name="p", **settings))]


def test_a_small_run_takes_news_and_role_in_turn() -> None:
    starts = [start(n) for n in range(5)] + [start(n, "role") for n in range(2)]
    everything = [s.dialogue_id for s in starts]
    assert take(starts) == take(starts, n_dialogues=99) == everything
    assert take(starts, n_dialogues=1) == ["news-0"]
    assert take(starts, n_dialogues=4) == ["news-0", "news-1", "role-0", "role-1"]
    assert take(starts, n_dialogues=6) == [name for name in everything if name != "news-4"]
    assert take([], n_dialogues=3) == []


@pytest.mark.parametrize("parts", [1, 2, 3, 8])
@pytest.mark.parametrize("n_dialogues", [None, 5])
def test_shards_hold_everything_exactly_once(parts: int, n_dialogues: int | None) -> None:
    starts = [start(n) for n in range(4)] + [start(n, "role") for n in range(3)]
    shards = [take(starts, n_dialogues=n_dialogues, shard=f"{k}/{parts}") for k in range(1, parts + 1)]
    assert sorted(name for shard in shards for name in shard) == sorted(take(starts, n_dialogues=n_dialogues))
    assert max(map(len, shards)) - min(map(len, shards)) <= 1
    assert all(re.match(r"(news|role)-\d", name) for shard in shards for name in shard)
