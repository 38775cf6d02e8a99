import asyncio
import itertools
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from memecmd_utils import cold_start, example_corpus, llm, prompting
from memecmd_utils.dialogue_generation import (
    SHARED_PROMPTS,
    generate,
    history_text,
    phase_of,
    speaker_of,
    summary_request,
    utterance_request,
)
from memecmd_utils.llm import BudgetReached, Chat, Reply, Request
from memecmd_utils.llm_backends import AuthoredBackend, ScriptedBackend
from memecmd_utils.profiles import Profile
from memecmd_utils.recordings import Recordings
from memecmd_utils.schemas import ColdStart
from memecmd_utils.storage import dumps

START = ColdStart(
    source="authored", dialogue_id="news-1", kind="news", ref="1", title="题", name_a="外婆", name_b="外孙女",
    context="【完整的背景】", brief="【简要的背景】", prompt_sha256="c" * 64,
)  # fmt: skip
PROFILE = Profile(name="p", n_turns=4)
SUMMARY = dumps({"scenario": "在聊天", "emotion": "开心", "motivation": "想笑"})
# Eighteen utterances without a common beginning.
SAID = [f"{a}{a}第{n}句话" for n, a in enumerate("天地玄黄宇宙洪荒日月盈昃辰宿列张寒来", start=1)]


def scripted(request: Request) -> str:
    if request.task == "summary":
        return SUMMARY
    return SAID[int(request.subject.rsplit("/", 1)[1]) - 1]


def talk(backend=None, profile: Profile = PROFILE, starts=(START,), **options):
    chat = Chat(backend or ScriptedBackend(scripted), **options)
    return llm.run(generate(starts, chat, profile)), chat


def test_phases() -> None:
    edges = {1: "initial", 2: "early", 6: "early", 7: "middle", 12: "middle", 13: "late", 99: "late"}
    assert {turn: phase_of(turn) for turn in edges} == edges
    with pytest.raises(ValueError, match="from 1"):
        phase_of(0)


def test_a_opens_and_speaks_on_odd_turns() -> None:
    assert [speaker_of(t) for t in range(1, 7)] == list("ABABAB")
    assert history_text(START, ["早", "早啊"]) == "外婆：早\n外孙女：早啊"
    (dialogue,), _ = talk()
    assert [(t.turn, t.speaker) for t in dialogue.turns] == [(1, "A"), (2, "B"), (3, "A"), (4, "B")]
    assert [(s.turn, s.speaker) for s in dialogue.summaries] == [(2, "B"), (3, "A"), (4, "B")]


@pytest.mark.parametrize("turn", range(1, 19))
def test_each_phase_sees_what_its_equation_says(turn: int) -> None:
    earlier = SAID[: turn - 1]
    request = utterance_request(START, earlier, PROFILE)
    prompt = request.messages[-1].text
    assert ("【完整的背景】" in prompt) == (turn == 1), "C_i at t = 1 only (Eq. 11)"
    assert ("【简要的背景】" in prompt) == (2 <= turn <= 12), "brief for 2 <= t < 13 (Eq. 12, 13), none after"
    assert ("打开" in prompt) == (7 <= turn <= 12), "opens up the topic"
    assert [line for line in earlier if line not in prompt] == [] and SAID[turn - 1] not in prompt
    assert prompt.rstrip("：").endswith("外婆" if turn % 2 else "外孙女")
    assert request.subject == f"news-1/{turn}" and str(PROFILE.max_utterance_chars) in prompt
    assert not any("【" in message.text for message in request.messages[:-1])
    if turn > 1:
        told = summary_request(START, earlier, PROFILE).messages[-1].text
        assert "【" not in told, "the summary agent sees the dialogue alone (Eq. 16)"
        assert ("外婆" if turn % 2 else "外孙女") in told.split(">>>")[-1]


def beginning(a: str, b: str) -> str:
    """What two texts begin with in common."""
    return "".join(
        x for x, y in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False))
    )


@pytest.mark.parametrize("turn", [2, 7, 13, 18])
def test_history_first_instruction_last_and_the_prefix_is_shared(turn: int) -> None:
    earlier = SAID[: turn - 1]
    utterance, summary = utterance_request(START, earlier, PROFILE), summary_request(START, earlier, PROFILE)
    assert utterance.messages[:-1] == summary.messages[:-1]
    a, b = utterance.messages[-1].text, summary.messages[-1].text
    shared = beginning(a, b)
    history = history_text(START, earlier)
    assert history in shared, "what differs stands after the history"
    following = utterance_request(START, [*earlier, "新的一句"], PROFILE)
    assert following.messages[:-1] == utterance.messages[:-1]
    grown = beginning(a, following.messages[-1].text)
    assert grown.rstrip().endswith(earlier[-1]), "both agents share the prefix, which grows by a line a turn"


class Watcher(ScriptedBackend):
    """Notes what is asked while something else is under way."""

    def __init__(self) -> None:
        super().__init__(scripted)
        self.under_way: set[str] = set()
        self.together: defaultdict[str, set[str]] = defaultdict(set)

    async def complete(self, request: Request) -> Reply:
        name = f"{request.task} {request.subject}"
        self.under_way.add(name)
        await asyncio.sleep(0.003)
        for one in self.under_way:
            self.together[one] |= self.under_way - {one}
        await asyncio.sleep(0.003)
        self.under_way.discard(name)
        return await super().complete(request)


def test_utterance_and_summary_of_a_turn_are_asked_side_by_side_and_dialogues_too() -> None:
    backend = Watcher()
    other = START.model_copy(update={"dialogue_id": "news-2"})
    talk(backend, starts=(START, other))
    for turn in (2, 3, 4):
        with_it = backend.together[f"utterance news-1/{turn}"]
        assert f"summary news-1/{turn}" in with_it
        assert f"utterance news-2/{turn}" in with_it
    assert not [pair for pair in backend.together["utterance news-1/2"] if "news-1/3" in pair]


def test_the_summary_for_t_never_sees_u_t() -> None:
    backend = Watcher()
    talk(backend)
    for request in backend.requests:
        if request.task == "summary":
            turn = int(request.subject.split("/")[1])
            text = "".join(message.text for message in request.messages)
            assert [n for n, line in enumerate(SAID, start=1) if line in text] == list(range(1, turn))


def test_what_a_dialogue_says_of_itself() -> None:
    (dialogue,), chat = talk()
    assert dialogue.complete and dialogue.title == "题" and dialogue.source == "scripted"
    for turn in dialogue.turns:
        assert turn.prompt_sha256 == prompting.prompt_sha256(
            *SHARED_PROMPTS, f"utterance_{phase_of(turn.turn)}"
        )
        assert (turn.source, turn.profile, turn.attempts, turn.violations) == ("scripted", "p", 1, [])
    assert chat.usage.calls == 4 + 3
    seeds = [turn.seed for turn in dialogue.turns] + [summary.seed for summary in dialogue.summaries]
    assert len(set(seeds)) == 7
    (again,), _ = talk()
    assert again == dialogue


def test_order_follows_the_cold_starts() -> None:
    starts = [START.model_copy(update={"dialogue_id": f"d{n}"}) for n in (3, 1, 2)]
    dialogues, _ = talk(starts=starts)
    assert [d.dialogue_id for d in dialogues] == ["d3", "d1", "d2"]


def test_a_broken_rule_is_asked_again_and_kept_with_its_name_if_it_stays() -> None:
    def stubborn(request: Request) -> str:
        if request.task == "utterance" and request.subject.endswith("/3"):
            return SAID[0]
        return scripted(request)

    (dialogue,), chat = talk(ScriptedBackend(stubborn))
    third = dialogue.turns[2]
    assert (third.text, third.attempts) == (SAID[0], 5) and len(third.violations) == 2
    assert chat.usage.outcomes["violations"] == 1 and not dialogue.turns[3].violations


def test_an_empty_utterance_five_times_stops_and_says_where() -> None:
    backend = ScriptedBackend(lambda r: "……" if r.subject == "news-1/2" else scripted(r))
    with pytest.raises(RuntimeError, match=r"news-1/2 after 5 attempts"):
        talk(backend)


def test_a_summary_that_cannot_be_used_is_kept_as_unscored() -> None:
    backend = ScriptedBackend(lambda r: "不会" if r.task == "summary" else scripted(r))
    (dialogue,), _ = talk(backend)
    assert len(dialogue.summaries) == 3
    assert all(s.unscored.startswith("unusable: ") and s.scenario == "" for s in dialogue.summaries)


def test_a_stopped_run_goes_on_where_it_was(tmp_path: Path) -> None:
    backend = ScriptedBackend(scripted)
    starts = [START.model_copy(update={"dialogue_id": f"d{n}"}) for n in range(3)]
    for _ in range(20):
        store = Recordings("s", [tmp_path], tmp_path)
        try:
            done, _ = talk(backend, starts=starts, recordings=store, max_calls=4)
            break
        except BudgetReached:
            continue
        finally:
            store.close()
    whole, _ = talk(starts=starts)
    assert done == whole
    assert len(backend.requests) == 3 * 7, "nothing was asked for twice"


def test_a_longer_cap_gets_more_tokens_and_the_default_stays_as_recorded() -> None:
    assert utterance_request(START, [], PROFILE).sampling.max_tokens == 60
    longer = Profile(name="p", max_utterance_chars=80)
    assert utterance_request(START, [], longer).sampling.max_tokens >= 160


def test_authored_dialogues_replay_to_the_letter() -> None:
    profile = Profile(name="example", n_turns=18)
    texts, glosses = example_corpus.texts(), example_corpus.glosses()
    chat = Chat(AuthoredBackend(texts))
    named = {subject.split("/")[0] for task, subject in texts if task == "utterance"}
    news = [cold_start.from_news(item) for item in example_corpus.load_news()]
    pairs = [pair for pair in example_corpus.load_role_pairs() if ("scenario", f"{pair.pair_id}-1") in texts]
    _, roles = llm.run(cold_start.role_cold_starts(pairs, chat, profile, lambda lines: np.eye(len(lines))))
    starts = [start for start in [*news, *roles] if start.dialogue_id in named]
    assert {start.dialogue_id for start in starts} == named
    for dialogue in llm.run(generate(starts, chat, profile, glosses)):
        for turn in dialogue.turns:
            assert turn.text == texts["utterance", f"{dialogue.dialogue_id}/{turn.turn}"]
            assert turn.violations == [] and turn.source == "authored" and turn.gloss
