import asyncio
import itertools
from pathlib import Path
from tempfile import TemporaryDirectory

import fast_time
import pytest
from scripted import ScriptedBackend

from memecmd_utils.core import storage
from memecmd_utils.core.storage import dumps
from memecmd_utils.dialogue.generation import (
    SHARED_PROMPTS,
    NoUtterance,
    generate,
    history_text,
    phase_of,
    speaker_of,
    summary_request,
    utterance_request,
)
from memecmd_utils.llm import chat as llm_chat
from memecmd_utils.llm import prompts
from memecmd_utils.llm.chat import Chat
from memecmd_utils.llm.messages import EndpointError, Reply, Request
from memecmd_utils.schemas import ColdStart, Dialogue, Unfinished
from memecmd_utils.settings import Profile

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


def talk(backend=None, profile: Profile = PROFILE, starts=(START,), gloss=None, run=llm_chat.run, **options):
    """The dialogues that came to their end, and the chat."""
    chat = Chat(backend or ScriptedBackend(scripted), **options)
    with TemporaryDirectory() as folder:
        run(generate(starts, chat, profile, Path(folder), gloss))
        return storage.read_jsonl(Path(folder) / "dialogues.jsonl", Dialogue), chat


def named(*names: str) -> list[ColdStart]:
    return [START.model_copy(update={"dialogue_id": name}) for name in names]


def produce(folder: Path, backend, starts, run=llm_chat.run, profile: Profile = PROFILE, **options):
    """What `generate` counted and wrote."""
    chat = Chat(backend, **options)
    made = run(generate(starts, chat, profile, folder))
    complete = storage.read_jsonl(folder / "dialogues.jsonl", Dialogue)
    return made, complete, storage.read_jsonl(folder / "unfinished.jsonl", Unfinished)


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
    assert request.subject == f"news-1/{turn}" and str(PROFILE.dialogue.max_utterance_chars) in prompt
    assert not any("【" in message.text for message in request.messages[:-1])
    if turn > 1:
        summary = summary_request(START, earlier, PROFILE).messages[-1].text
        assert "【" not in summary, "the summary agent sees the dialogue alone (Eq. 16)"
        assert ("外婆" if turn % 2 else "外孙女") in summary.split(">>>")[-1]


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


class Slow(ScriptedBackend):
    """Takes seconds, by task; notes when each reply was there."""

    def __init__(self, utterance_s: float, summary_s: float) -> None:
        super().__init__(scripted)
        self._takes = {"utterance": utterance_s, "summary": summary_s}
        self.came: dict[str, float] = {}

    async def complete(self, request: Request) -> Reply:
        await asyncio.sleep(self._takes[request.task])
        self.came[f"{request.task} {request.subject}"] = fast_time.now()
        return await super().complete(request)


def test_the_next_utterance_does_not_wait_for_the_summary_which_is_longer(tmp_path: Path) -> None:
    backend = Slow(1.0, 10.0)
    _, (dialogue,), _ = produce(tmp_path, backend, [START], fast_time.run)
    assert [backend.came[f"utterance news-1/{t}"] for t in range(1, 5)] == [1.0, 2.0, 3.0, 4.0]
    assert [backend.came[f"summary news-1/{t}"] for t in range(2, 5)] == [11.0, 12.0, 13.0]
    assert [s.turn for s in dialogue.summaries] == [2, 3, 4]


def test_summaries_that_come_out_of_order_are_written_in_order(tmp_path: Path) -> None:
    class Jumbled(Slow):
        async def complete(self, request: Request) -> Reply:
            if request.task == "summary":
                await asyncio.sleep(9 - 2 * int(request.subject[-1]))
                return Reply(text=dumps({"scenario": request.subject, "emotion": "喜", "motivation": "笑"}))
            return await super().complete(request)

    _, (dialogue,), _ = produce(tmp_path, Jumbled(0.1, 0), [START], fast_time.run)
    assert [(s.turn, s.scenario) for s in dialogue.summaries] == [(t, f"news-1/{t}") for t in (2, 3, 4)]


def test_the_summary_for_t_never_sees_u_t() -> None:
    backend = ScriptedBackend(scripted)
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
        assert turn.prompt_sha256 == prompts.prompt_sha256(
            *SHARED_PROMPTS, f"utterance_{phase_of(turn.turn)}"
        )
        assert (turn.source, turn.profile, turn.violations) == ("scripted", "p", [])
    assert chat.usage.calls == 4 + 3
    seeds = [turn.seed for turn in dialogue.turns] + [summary.seed for summary in dialogue.summaries]
    assert len(set(seeds)) == 7
    (again,), _ = talk()
    assert again == dialogue


def test_a_broken_rule_is_asked_again_and_kept_with_its_name_if_it_stays() -> None:
    def stubborn(request: Request) -> str:
        if request.task == "utterance" and request.subject.endswith("/3"):
            return SAID[0]
        return scripted(request)

    (dialogue,), chat = talk(ScriptedBackend(stubborn))
    third = dialogue.turns[2]
    assert third.text == SAID[0] and len(third.violations) == 2
    assert chat.usage.outcomes["violations"] == 1 and not dialogue.turns[3].violations


LONG, ACT, TALK = "今晚" + "吃" * 30, "（叹气）吃面吧", "抱歉，我之前的回答重复了"


@pytest.mark.parametrize(
    ("attempts", "kept"),
    [
        ([LONG, TALK, ACT, TALK, TALK], LONG),
        ([TALK, ACT + "T_T", TALK, ACT, TALK], ACT),
        ([TALK, "（叹气）" + SAID[0], TALK, TALK, TALK], "（叹气）" + SAID[0]),
        ([LONG, LONG + "呀", TALK, LONG + "啊", ACT], LONG + "啊"),
        ([TALK, TALK, TALK, "", TALK + "啊"], TALK + "啊"),
    ],
    ids=["mildest", "fewest", "two are milder than talk about the task", "latest of equals", "one at all"],
)
def test_of_five_attempts_the_one_with_the_fewest_and_mildest_rules_broken_is_kept(
    attempts: list[str], kept: str
) -> None:
    left = iter(attempts)

    def stubborn(request: Request) -> str:
        third = request.task == "utterance" and request.subject == "news-1/3"
        return next(left, attempts[-1]) if third else scripted(request)

    (dialogue,), _ = talk(ScriptedBackend(stubborn))
    assert dialogue.turns[2].text == kept and dialogue.turns[2].violations


REFUSED = Reply(text="", refusal=True)


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (REFUSED, "refusal after 5 attempts: the model refused"),
        ("……", "unusable after 5 attempts: 空的回复"),
        (Reply(text="400: too long", finish_reason="rejected"), "rejected after 1 attempts: 400: too long"),
    ],
    ids=["refusal", "empty", "rejected"],
)
def test_a_dialogue_that_cannot_go_on_is_put_aside_and_the_others_go_on(bad, reason, tmp_path: Path) -> None:
    backend = ScriptedBackend(lambda r: bad if r.subject == "d2/3" else scripted(r))
    found, whole, unfinished = produce(tmp_path, backend, named("d1", "d2", "d3"))
    assert [d.dialogue_id for d in whole] == ["d1", "d3"] and all(d.complete for d in whole)
    (left,) = unfinished
    assert (left.dialogue_id, left.turn, left.reason) == ("d2", 3, reason)
    assert [turn.text for turn in left.turns] == SAID[:2]
    assert (left.source, left.profile, left.seed) == ("scripted", "p", PROFILE.seed)
    assert (found.dialogues, found.unfinished, len(found.lengths)) == (2, 1, 8)
    assert not [r for r in backend.requests if r.task == "utterance" and r.subject == "d2/4"]


def test_without_any_whole_dialogue_the_stage_fails_and_says_why(tmp_path: Path) -> None:
    (tmp_path / "dialogues.jsonl").write_text("old\n", encoding="utf-8")
    backend = ScriptedBackend(lambda r: REFUSED if r.subject.endswith("/2") else scripted(r))
    with pytest.raises(NoUtterance, match=r"no dialogue came to its end; the first: d1, turn 2: refusal"):
        produce(tmp_path, backend, named("d1", "d2"))
    assert (tmp_path / "dialogues.jsonl").read_text(encoding="utf-8") == "old\n", "an older file stays"
    assert [path.name for path in tmp_path.iterdir()] == ["dialogues.jsonl"]


def test_files_are_in_the_order_of_the_starts_whoever_is_done_first(tmp_path: Path) -> None:
    class Uneven(ScriptedBackend):
        async def complete(self, request: Request) -> Reply:
            await asyncio.sleep(9 - int(request.subject[1]))
            return await super().complete(request)

    backend = Uneven(lambda r: REFUSED if r.subject in ("d2/2", "d5/2") else scripted(r))
    _, whole, unfinished = produce(tmp_path, backend, named(*(f"d{n}" for n in range(8))), fast_time.run)
    assert [d.dialogue_id for d in whole] == ["d0", "d1", "d3", "d4", "d6", "d7"]
    assert [d.dialogue_id for d in unfinished] == ["d2", "d5"]


class Breaks(Slow):
    """One request ends in a fault."""

    def __init__(self, name: str, fault: Exception, utterance_s: float = 1.0, summary_s: float = 3.0) -> None:
        super().__init__(utterance_s, summary_s)
        self.name, self.fault = name, fault
        self.sent: list[float] = []
        self.broke_at = float("inf")

    async def complete(self, request: Request) -> Reply:
        self.sent.append(fast_time.now())
        if f"{request.task} {request.subject}" == self.name:
            self.broke_at = fast_time.now()
            raise self.fault
        return await super().complete(request)


@pytest.mark.parametrize("name", ["utterance d1/3", "summary d1/3"])
def test_a_fault_of_the_endpoint_ends_all_at_once_and_leaves_no_half_file(name: str, tmp_path: Path) -> None:
    backend = Breaks(name, EndpointError("the key was taken back"))
    with pytest.raises(EndpointError, match="taken back"):
        produce(tmp_path, backend, named(*(f"d{n}" for n in range(50))), fast_time.run)
    assert list(tmp_path.iterdir()) == []
    assert max(backend.sent) == backend.broke_at
    assert len(backend.came) == len(backend.sent) - 1, "what was under way came home"


@pytest.mark.parametrize("name", ["utterance d0/2", "summary d0/2"])
def test_any_other_fault_ends_all_soon_too(name: str, tmp_path: Path) -> None:
    backend = Breaks(name, OSError("disk full"), 1.0, 1.0)
    profile = Profile(name="p", n_turns=18)
    with pytest.raises(OSError, match="disk full"):
        produce(tmp_path, backend, named("d0", "d1"), fast_time.run, profile)
    assert backend.broke_at == 1.0 and max(backend.sent) <= 3.0, "not to the end of the dialogue"


def test_a_summary_that_cannot_be_used_is_kept_as_unscored() -> None:
    backend = ScriptedBackend(lambda r: "不会" if r.task == "summary" else scripted(r))
    (dialogue,), _ = talk(backend)
    assert len(dialogue.summaries) == 3
    assert all(s.unscored.startswith("unusable: ") and s.scenario == "" for s in dialogue.summaries)


def test_a_longer_cap_gets_more_tokens_and_the_default_stays_as_recorded() -> None:
    assert utterance_request(START, [], PROFILE).sampling.max_tokens == 60
    longer = Profile(name="p", max_utterance_chars=80)
    assert utterance_request(START, [], longer).sampling.max_tokens >= 160
