import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import BaseModel

from memecmd_utils import llm, replies
from memecmd_utils import recordings as rec
from memecmd_utils.llm import BrokenRules, BudgetReached, Chat, Message, Reply, Request, Sampling, Usage
from memecmd_utils.llm_backends import ScriptedBackend
from memecmd_utils.recordings import RecordingError, RecordingMiss, Recordings


class Mood(BaseModel):
    mood: str


GOOD = '{"mood": "开心"}'


def request(n: int = 1, **changes) -> Request:
    text = Message(role="user", text=f"第{n}问")
    return Request(**{"task": "summary", "subject": f"d/{n}", "messages": [text], "seed": 100, **changes})


def parse(reply: Reply) -> str:
    return replies.structured(reply, Mood).mood


def short(reply: Reply) -> str:
    """A rule like those of utterances: at most three characters."""
    if not reply.text:
        raise llm.UnusableReply("空的回复")
    if len(reply.text) > 3:
        raise BrokenRules(reply.text, [f"太长{len(reply.text)}"])
    return reply.text


def store(folder: Path) -> Recordings:
    return Recordings("s", [folder], folder)


def ask(
    backend: ScriptedBackend, folder: Path | None = None, parser: Callable = parse, **options
) -> llm.Answer:
    chat = Chat(backend, store(folder) if folder else None, **options)
    return llm.run(chat.ask(request(), parser))


def test_an_accepted_answer() -> None:
    backend = ScriptedBackend([Reply(text=GOOD, tokens_in=5, tokens_out=2)])
    chat = Chat(backend)
    answer = llm.run(chat.ask(request(), parse))
    assert (answer.value, answer.outcome, answer.attempts, answer.source) == (
        "开心",
        "accepted",
        1,
        "scripted",
    )
    assert chat.usage.as_dict() == {
        "calls": 1, "replayed": 0, "tokens_in": 5, "tokens_out": 2, "usd": 0.0, "outcomes": {"accepted": 1},
    }  # fmt: skip


def test_twice_unchanged_then_twice_with_the_error_then_unscored_with_the_raw_text(tmp_path: Path) -> None:
    backend = ScriptedBackend([f"不会{n}" for n in range(5)])
    answer = ask(backend, tmp_path)
    asked = backend.requests
    assert len(asked) == 5 and [r.seed for r in asked] == [100, 101, 102, 103, 104]
    assert [r.messages for r in asked[:3]] == [request().messages] * 3
    for number, later in enumerate(asked[3:], start=2):
        assert later.messages[:1] == request().messages and len(later.messages) == 3
        assert later.messages[1] == Message(role="assistant", text=f"不会{number}")
        assert later.messages[2].role == "user" and "不是 JSON" in later.messages[2].text
    assert (answer.value, answer.outcome, answer.raw, answer.attempts) == (None, "unusable", "不会4", 5)
    assert "JSON" in answer.reason
    form = request().normal_form(backend.model)
    assert store(tmp_path).get(rec.key_of(form))["text"] == "不会4", "under the key of the first request"


@pytest.mark.parametrize("good_at", [1, 2, 3, 4, 5])
def test_asking_stops_at_the_first_accepted_reply(good_at: int) -> None:
    backend = ScriptedBackend(["不会"] * (good_at - 1) + [GOOD])
    answer = ask(backend)
    assert (answer.value, answer.attempts, len(backend.requests)) == ("开心", good_at, good_at)


def test_a_request_without_seed_stays_without() -> None:
    backend = ScriptedBackend(["不会", GOOD])
    llm.run(Chat(backend).ask(request(seed=None), parse))
    assert [r.seed for r in backend.requests] == [None, None]


def test_broken_rules_are_kept_with_violations_the_fewest_and_latest(tmp_path: Path) -> None:
    answer = ask(
        ScriptedBackend(["太长了一些", "还是太长", "依然太长", "仍旧太长", "总是太长"]), tmp_path, short
    )
    assert (answer.value, answer.outcome, answer.violations) == ("总是太长", "violations", ["太长4"])
    again = ask(ScriptedBackend([]), tmp_path, short)
    assert (
        again.replayed and (again.value, again.violations) == ("总是太长", ["太长4"]) and again.attempts == 5
    )


def test_an_unusable_last_reply_does_not_displace_one_that_can_be_used_at_need(tmp_path: Path) -> None:
    answer = ask(ScriptedBackend(["", "有点太长", "", "", ""]), tmp_path, short)
    assert (answer.value, answer.outcome, answer.raw) == ("有点太长", "violations", "有点太长")
    assert answer.attempts == 5
    assert ask(ScriptedBackend([]), tmp_path, short).value == "有点太长"


@pytest.mark.parametrize(
    ("reply", "outcome"),
    [
        (Reply(text="", refusal=True), "refusal"),
        (Reply(text="半句", finish_reason="content_filter"), "filtered"),
        (Reply(text='{"mood": "开', finish_reason="length"), "length"),
    ],
)
def test_outcomes_that_are_no_answer(reply: Reply, outcome: str, tmp_path: Path) -> None:
    backend = ScriptedBackend([reply] * 5)
    answer = ask(backend, tmp_path)
    assert (answer.outcome, answer.value, answer.raw) == (outcome, None, reply.text) and answer.reason
    # Recorded mode replays it as what it is; auto mode asks again, and the answer then stands.
    silent = ScriptedBackend([])
    assert ask(silent, tmp_path, mode="recorded").outcome == outcome and not silent.requests
    assert ask(ScriptedBackend([GOOD]), tmp_path).value == "开心"
    assert ask(silent, tmp_path, mode="recorded").value == "开心" and not silent.requests


def test_a_miss_in_recorded_mode_names_the_field_and_how_to_go_live(tmp_path: Path) -> None:
    ask(ScriptedBackend([GOOD]), tmp_path)
    backend = ScriptedBackend([])
    chat = Chat(backend, store(tmp_path), "recorded")
    with pytest.raises(RecordingMiss, match=r"summary d/1 .*differs in: seed.*SET='mode=auto'"):
        llm.run(chat.ask(request(seed=5), parse))
    assert not backend.requests and chat.usage.calls == 0


def test_live_mode_asks_although_it_is_recorded(tmp_path: Path) -> None:
    ask(ScriptedBackend([GOOD]), tmp_path)
    assert ask(ScriptedBackend(['{"mood": "累"}']), tmp_path, mode="live").value == "累"


def test_a_stricter_parser_says_so_instead_of_asking_in_silence(tmp_path: Path) -> None:
    ask(ScriptedBackend([GOOD]), tmp_path)

    def stricter(reply: Reply) -> str:
        raise llm.UnusableReply("太短")

    with pytest.raises(RecordingError, match="schema_version"):
        ask(ScriptedBackend([]), tmp_path, stricter)


def test_backends_that_are_no_model_are_not_recorded(tmp_path: Path) -> None:
    backend = ScriptedBackend([GOOD], recordable=False)
    chat = Chat(backend, store(tmp_path), "recorded")
    assert llm.run(chat.ask(request(), parse)).value == "开心"
    assert not chat.used_keys and not list(tmp_path.rglob("*.jsonl"))


def test_what_is_asked_equals_what_is_replayed_to_the_last_digit(tmp_path: Path) -> None:
    reply = Reply(text="是", first_token={"是": -0.1234567, "否": -2.0000049})
    first = ask(ScriptedBackend([reply]), tmp_path, lambda r: dict(r.first_token))
    again = ask(ScriptedBackend([]), tmp_path, lambda r: dict(r.first_token))
    assert again.replayed and first.value == again.value == {"是": -0.1235, "否": -2.0}


async def _all(chat: Chat, numbers: range) -> list:
    return await chat.side_by_side(chat.ask(request(n), parse) for n in numbers)


class Killed(BaseException):
    """Like a signal: nobody catches it."""


def test_kill_in_the_middle_and_nothing_accepted_is_asked_for_again(tmp_path: Path) -> None:
    asked: list[str] = []

    def model(dies_after: int) -> ScriptedBackend:
        def reply(r: Request) -> str:
            if len(asked) >= dies_after:
                raise Killed
            asked.append(r.subject)
            return f'{{"mood": "{r.subject}"}}'

        return ScriptedBackend(reply)

    for dies_after in (3, 4, 9):
        with pytest.raises(Killed):
            llm.run(_all(Chat(model(dies_after), store(tmp_path), concurrency=1), range(12)))
    chat = Chat(model(99), store(tmp_path))
    answers = llm.run(_all(chat, range(12)))
    assert [a.value for a in answers] == [f"d/{n}" for n in range(12)]
    assert len(asked) == len(set(asked)) == 12
    assert (chat.usage.calls, chat.usage.replayed) == (3, 9)


def test_max_calls_stops_before_it_is_passed_and_a_later_run_goes_on(tmp_path: Path) -> None:
    backend = ScriptedBackend(lambda r: f'{{"mood": "{r.subject}"}}')
    with pytest.raises(BudgetReached, match="max_calls=4"):
        llm.run(_all(Chat(backend, store(tmp_path), max_calls=4), range(10)))
    assert len(backend.requests) == 4 and len(store(tmp_path)) == 4
    chat = Chat(backend, store(tmp_path), max_calls=6)
    llm.run(_all(chat, range(10)))
    assert chat.usage.calls == 6 and len(backend.requests) == 10
    with pytest.raises(BudgetReached):
        llm.run(Chat(backend, None, max_calls=0).ask(request(), parse))


class SlowBackend(ScriptedBackend):
    """Takes a moment, and counts how many are at it."""

    now = most = 0

    async def complete(self, request: Request) -> Reply:
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(0.01)
        try:
            return await super().complete(request)
        finally:
            self.now -= 1


def test_calls_under_way_when_a_cap_is_reached_are_waited_for_and_recorded(tmp_path: Path) -> None:
    backend = SlowBackend(lambda r: GOOD)
    with pytest.raises(BudgetReached):
        llm.run(_all(Chat(backend, store(tmp_path), max_calls=5, concurrency=8), range(20)))
    assert len(backend.requests) == 5 and len(store(tmp_path)) == 5


def test_max_usd_is_not_passed_even_by_calls_under_way(tmp_path: Path) -> None:
    backend = SlowBackend(lambda r: Reply(text=GOOD, tokens_in=3, tokens_out=10))
    usage = Usage(usd_in=0, usd_out=1e5)  # 0.1 a token, so a reply of 10 tokens costs 1
    asked = [request(n, sampling=Sampling(max_tokens=10)) for n in range(20)]
    chat = Chat(backend, store(tmp_path), concurrency=8, max_usd=3.5, usage=usage)
    with pytest.raises(BudgetReached, match=r"max_usd=3\.5"):
        llm.run(chat.side_by_side(chat.ask(r, parse) for r in asked))
    assert len(store(tmp_path)) == 3 and usage.usd == pytest.approx(3.0)


def test_on_a_fault_nothing_new_goes_out_and_the_fault_itself_is_raised(tmp_path: Path) -> None:
    def reply(r: Request) -> str:
        if r.subject == "d/3":
            raise ConnectionError("wrong key")
        return GOOD

    backend = SlowBackend(reply)
    chat = Chat(backend, store(tmp_path), concurrency=4)
    with pytest.raises(ConnectionError, match="wrong key"):
        llm.run(_all(chat, range(40)))
    assert len(backend.requests) < 12
    assert len(store(tmp_path)) == len(backend.requests) - 1, "those under way were recorded"
    assert llm.run(chat.ask(request(77), parse)).value == "开心", "the chat is of use again"


def test_the_cap_on_requests_in_flight_holds_in_one_loop_after_another() -> None:
    backend = SlowBackend(lambda r: GOOD)
    chat = Chat(backend, None, concurrency=3)
    for _ in range(2):
        assert len(llm.run(_all(chat, range(12)))) == 12
    assert backend.most == 3


def test_run_works_with_and_without_a_running_loop() -> None:
    async def double(n: int) -> int:
        await asyncio.sleep(0)
        return 2 * n

    async def fail() -> None:
        raise KeyError("told")

    assert llm.run(double(2)) == 4

    async def notebook() -> int:
        with pytest.raises(KeyError, match="told"):
            llm.run(fail())
        return llm.run(double(3))

    assert asyncio.run(notebook()) == 6


def test_the_stop_button_of_a_notebook_stops_the_asking() -> None:
    # A process started in the background may ignore SIGINT; a kernel never does.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        _press_stop()
    finally:
        signal.signal(signal.SIGINT, before)


def _press_stop() -> None:
    backend = SlowBackend(lambda r: GOOD)
    chat = Chat(backend, None, concurrency=1)

    def stop() -> None:
        while len(backend.requests) < 2:
            time.sleep(0.005)
        os.kill(os.getpid(), signal.SIGINT)

    async def notebook() -> None:
        llm.run(_all(chat, range(500)))

    presser = threading.Thread(target=stop)
    presser.start()
    # Not asyncio.run: like a kernel, this leaves SIGINT to Python.
    loop = asyncio.new_event_loop()
    with pytest.raises(KeyboardInterrupt):
        loop.run_until_complete(notebook())
    presser.join()
    loop.close()
    count = len(backend.requests)
    time.sleep(0.05)
    assert len(backend.requests) == count < 100
    assert not [t for t in threading.enumerate() if t.name == "memecmd-async"]


def test_names_of_the_seam_are_importable_from_llm() -> None:
    assert all(hasattr(llm, name) for name in llm.__all__)
