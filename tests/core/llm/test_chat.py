import asyncio
import contextlib
import gc
import os
import signal
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import fast_time
import pytest
from pydantic import BaseModel
from scripted import ScriptedBackend

from memecmd_utils import recordings as rec
from memecmd_utils.llm import chat as llm_chat
from memecmd_utils.llm import messages
from memecmd_utils.llm import replies as llm_replies
from memecmd_utils.llm.budget import Budget
from memecmd_utils.llm.chat import LOST_IN_A_ROW, Chat
from memecmd_utils.llm.messages import (
    BrokenRules,
    BudgetReached,
    Message,
    ModelId,
    Reply,
    Request,
    RequestRejected,
    Sampling,
    TransientFault,
)
from memecmd_utils.llm.replies import garbled
from memecmd_utils.recordings import RecordingError, RecordingMiss, Recordings


class Mood(BaseModel):
    mood: str


GOOD = '{"mood": "开心"}'


def request(n: int = 1, **changes) -> Request:
    text = Message(role="user", text=f"第{n}问")
    return Request(**{"task": "summary", "subject": f"d/{n}", "messages": [text], "seed": 100, **changes})


def parse(reply: Reply) -> str:
    return llm_replies.structured(reply, Mood).mood


def short(reply: Reply) -> str:
    """A rule like those of utterances: at most three characters."""
    if not reply.text:
        raise messages.UnusableReply("空的回复")
    if len(reply.text) > 3:
        raise BrokenRules(reply.text, [f"太长{len(reply.text)}"])
    return reply.text


def store(folder: Path) -> Recordings:
    return Recordings("s", [folder], folder)


def ask(
    backend: ScriptedBackend, folder: Path | None = None, parser: Callable = parse, **options
) -> messages.Answer:
    chat = Chat(backend, store(folder) if folder else None, **options)
    return llm_chat.run(chat.ask(request(), parser))


@pytest.mark.parametrize(
    ("repeats", "seeds"), [(False, [100, 100, 100, 100, 100]), (True, [100, 101, 102, 103, 104])]
)
def test_twice_unchanged_then_twice_with_the_error_then_unscored_with_the_raw_text(
    repeats: bool, seeds: list[int], tmp_path: Path
) -> None:
    backend = ScriptedBackend([f"不会{n}" for n in range(5)], repeats=repeats)
    answer = ask(backend, tmp_path)
    asked = backend.requests
    assert len(asked) == 5 and [r.seed for r in asked] == seeds, "where a seed repeats itself it moves on"
    assert [r.messages for r in asked[:3]] == [request().messages] * 3
    if not repeats:
        assert asked[1] == asked[2] == request(), "truly unchanged"
    for number, later in enumerate(asked[3:], start=2):
        assert later.messages[:1] == request().messages and len(later.messages) == 3
        assert later.messages[1] == Message(role="assistant", text=f"不会{number}")
        assert later.messages[2].role == "user" and "不是 JSON" in later.messages[2].text
    assert (answer.value, answer.outcome, answer.raw, answer.attempts) == (None, "unusable", "不会4", 5)
    assert "JSON" in answer.reason
    form = request().normal_form(backend.model)
    assert store(tmp_path).get(rec.key_of(form))["text"] == "不会4", "under the key of the first request"


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
    answer = ask(ScriptedBackend(["", "有点太长", *[""] * (LOST_IN_A_ROW + 4)]), tmp_path, short)
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
    backend = ScriptedBackend([reply] * (LOST_IN_A_ROW + 5))
    answer = ask(backend, tmp_path)
    assert (answer.outcome, answer.value, answer.raw) == (outcome, None, reply.text) and answer.reason
    assert answer.attempts == 5
    # Recorded mode replays it as what it is; auto mode asks again, and the answer then stands.
    silent = ScriptedBackend([])
    assert ask(silent, tmp_path, mode="recorded").outcome == outcome and not silent.requests
    assert ask(ScriptedBackend([GOOD]), tmp_path).value == "开心"
    assert ask(silent, tmp_path, mode="recorded").value == "开心" and not silent.requests


EMPTY, CUT = Reply(text=""), Reply(text='{"mood": "开', finish_reason="length")
LOST = {
    "empty": EMPTY,
    "cut": CUT,
    "cut without a word": Reply(text='{"mood": "开'),
    "replacement signs": Reply(text='{"mood": "\ufffd\ufffd"}'),
    "another code page": Reply(text=GOOD.encode().decode("latin-1")),
    "a Chinese code page": Reply(text='{"mood": "下雨心情好坏"}'.encode().decode("gb18030")),
    "a code page that lacks some": Reply(text='{"mood": "下雨心情好坏呀"}'.encode().decode("gbk", "ignore")),
    "a page": Reply(text="<!DOCTYPE html><html><body>好</body></html>"),
}


@pytest.mark.parametrize("lost", LOST.values(), ids=LOST.keys())
def test_a_reply_that_did_not_arrive_whole_is_asked_for_again_and_costs_no_attempt(lost: Reply) -> None:
    """Two broken replies, each after as many lost ones as are allowed; then the error is shown as ever."""
    row = [lost] * LOST_IN_A_ROW
    backend = ScriptedBackend([*row, "不会0", *row, "不会1", *row, "不会2", *row, GOOD])
    chat = Chat(backend)
    answer = llm_chat.run(chat.ask(request(), parse))
    assert (answer.value, answer.attempts) == ("开心", 4)
    assert chat.usage.retries.total() == 4 * LOST_IN_A_ROW and len(backend.requests) == 4 * LOST_IN_A_ROW + 4
    plain, with_error = backend.requests[: 3 * LOST_IN_A_ROW + 3], backend.requests[3 * LOST_IN_A_ROW + 3 :]
    assert all(asked == request() for asked in plain) and len(plain) == 3 * (LOST_IN_A_ROW + 1)
    assert all(asked == with_error[0] and len(asked.messages) == 3 for asked in with_error)
    assert with_error[0].messages[1].text == "不会2", "what is shown is what the model said"


@pytest.mark.parametrize("codec", ["latin-1", "cp1252", "gbk", "gb18030"])
@pytest.mark.parametrize("errors", ["strict", "ignore"])
@pytest.mark.parametrize("text", ["今天的菜要多加", "下雨心情好坏在内", "他说“走吧”，我们就走了。"])
def test_text_of_another_code_page_is_seen_also_where_signs_are_missing(
    text: str, errors: str, codec: str
) -> None:
    assert not garbled(text)
    with contextlib.suppress(UnicodeDecodeError):  # some code pages have no sign for some bytes
        # The last byte may be read as a blank (加, 内), which is taken away.
        assert garbled(text.encode().decode(codec, errors).strip())


@pytest.mark.parametrize("text", ["夸奖腻害腻害", "朵抗议。", "反射弧有点长", "café·«crème»", "°€™"])
def test_what_looks_like_another_code_page_by_chance_is_none(text: str) -> None:
    assert not garbled(text)


@pytest.mark.parametrize("lost", [EMPTY, CUT, LOST["a page"]], ids=["empty", "cut", "page"])
def test_a_model_that_always_answers_so_comes_to_an_end(lost: Reply, tmp_path: Path) -> None:
    backend = ScriptedBackend(lambda r: lost)
    answer = ask(backend, tmp_path)
    assert answer.value is None and answer.attempts == 5 and answer.reason
    assert len(backend.requests) == LOST_IN_A_ROW + 5
    assert [len(r.messages) for r in backend.requests[-2:]] == [3, 3], "the error is shown as ever"


def test_what_the_model_itself_left_out_is_an_attempt() -> None:
    thought = Reply(text="", finish_reason="length", think_characters=90)
    one_token = Sampling(max_tokens=1)
    for reply, sampling in ((thought, Sampling()), (Reply(text="", finish_reason="length"), one_token)):
        chat = Chat(ScriptedBackend([reply] * 5))
        answer = llm_chat.run(chat.ask(request(sampling=sampling), parse))
        assert answer.attempts == 5 and answer.value is None and not chat.usage.retries
    # One token is always cut: that is no outcome of its own.
    answer = llm_chat.run(Chat(ScriptedBackend(lambda r: Reply(text="也", finish_reason="length"))).ask(
        request(sampling=one_token), parse
    ))  # fmt: skip
    assert (answer.outcome, answer.attempts) == ("unusable", 5)


def test_where_a_fixed_seed_brings_the_same_reply_it_is_moved_on_and_counted() -> None:
    backend = ScriptedBackend([CUT, CUT, CUT, CUT, GOOD], repeats=True)
    answer = ask(backend)
    assert answer.attempts == 5 and [r.seed for r in backend.requests] == [100, 101, 102, 103, 104]


def test_a_miss_in_recorded_mode_names_the_field_and_how_to_go_live(tmp_path: Path) -> None:
    ask(ScriptedBackend([GOOD]), tmp_path)
    backend = ScriptedBackend([])
    chat = Chat(backend, store(tmp_path), "recorded")
    with pytest.raises(RecordingMiss, match=r"summary d/1 .*differs in: seed.*SET='mode=auto'"):
        llm_chat.run(chat.ask(request(seed=5), parse))
    assert not backend.requests and chat.usage.calls == 0


def test_live_mode_asks_although_it_is_recorded_and_its_answer_counts_from_then_on(tmp_path: Path) -> None:
    ask(ScriptedBackend([GOOD]), tmp_path)
    for mood in ("累", "困"):
        assert ask(ScriptedBackend([f'{{"mood": "{mood}"}}']), tmp_path, mode="live").value == mood
        for mode in ("recorded", "auto"):
            assert ask(ScriptedBackend([]), tmp_path, mode=mode).value == mood


@pytest.mark.parametrize("mode", ["auto", "live"])
@pytest.mark.parametrize("replies", [[GOOD], ["不会"] * 5], ids=["answered", "unusable"])
def test_the_same_request_twice_in_a_run_is_paid_once_and_the_run_replays_as_it_was(
    tmp_path: Path, mode: str, replies: list[str]
) -> None:
    def twice(backend: ScriptedBackend, mode: str) -> list[tuple]:
        chat = Chat(backend, store(tmp_path), mode, concurrency=4)
        answers = llm_chat.run(chat.side_by_side(chat.ask(request(), parse) for _ in range(4)))
        if replies == [GOOD]:  # in mode auto a refusal is asked for again later
            answers.append(llm_chat.run(chat.ask(request(), parse)))
        return [(a.value, a.outcome, a.raw) for a in answers]

    backend = SlowBackend(replies)
    made = twice(backend, mode)
    assert len(set(made)) == 1 and len(backend.requests) == len(replies)
    assert twice(ScriptedBackend([]), "recorded") == made


def test_a_stricter_parser_says_so_instead_of_asking_in_silence(tmp_path: Path) -> None:
    ask(ScriptedBackend([GOOD]), tmp_path)

    def stricter(reply: Reply) -> str:
        raise messages.UnusableReply("太短")

    with pytest.raises(RecordingError, match="schema_version"):
        ask(ScriptedBackend([]), tmp_path, stricter)


def test_backends_that_are_no_model_are_not_recorded(tmp_path: Path) -> None:
    backend = ScriptedBackend([GOOD], recordable=False)
    chat = Chat(backend, store(tmp_path), "recorded")
    assert llm_chat.run(chat.ask(request(), parse)).value == "开心"
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
            llm_chat.run(_all(Chat(model(dies_after), store(tmp_path), concurrency=1), range(12)))
    chat = Chat(model(99), store(tmp_path))
    answers = llm_chat.run(_all(chat, range(12)))
    assert [a.value for a in answers] == [f"d/{n}" for n in range(12)]
    assert len(asked) == len(set(asked)) == 12
    assert (chat.usage.calls, chat.usage.replayed) == (3, 9)


def test_max_calls_stops_before_it_is_passed_and_a_later_run_goes_on(tmp_path: Path) -> None:
    backend = ScriptedBackend(lambda r: f'{{"mood": "{r.subject}"}}')
    with pytest.raises(BudgetReached, match="max_calls=4"):
        llm_chat.run(_all(Chat(backend, store(tmp_path), budget=Budget(max_calls=4)), range(10)))
    assert len(backend.requests) == 4 and len(store(tmp_path)) == 4
    chat = Chat(backend, store(tmp_path), budget=Budget(max_calls=6))
    llm_chat.run(_all(chat, range(10)))
    assert chat.usage.calls == 6 and len(backend.requests) == 10
    with pytest.raises(BudgetReached):
        llm_chat.run(Chat(backend, None, budget=Budget(max_calls=0)).ask(request(), parse))


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


def test_run_works_with_and_without_a_running_loop() -> None:
    async def double(n: int) -> int:
        await asyncio.sleep(0)
        return 2 * n

    async def fail() -> None:
        raise KeyError("told")

    assert llm_chat.run(double(2)) == 4

    async def notebook() -> int:
        with pytest.raises(KeyError, match="told"):
            llm_chat.run(fail())
        return llm_chat.run(double(3))

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
        llm_chat.run(_all(chat, range(500)))

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
    assert not [t for t in threading.enumerate() if t.name.startswith("memecmd-async")]


def now() -> float:
    return asyncio.get_running_loop().time()


@pytest.mark.parametrize("outcome", ["failed", "rejected"])
def test_failed_and_rejected_are_written_down_as_no_answer_and_asked_again(
    outcome: str, tmp_path: Path
) -> None:
    def bad(r: Request):
        if r.subject != "d/1":
            return GOOD
        return RequestRejected("400: too long") if outcome == "rejected" else TransientFault("status 500")

    async def no_wait(seconds: float) -> None:
        await asyncio.sleep(0)

    backend = ScriptedBackend(bad)
    chat = Chat(backend, store(tmp_path), sleep=no_wait)

    async def others() -> None:
        for n in range(2, 100):
            await chat.ask(request(n), parse)

    async def both():
        return (await asyncio.gather(chat.ask(request(), parse), others()))[0]

    answer = llm_chat.run(both())
    assert (answer.outcome, answer.value, answer.attempts) == (outcome, None, 1) and answer.reason
    assert chat.usage.outcomes == {"accepted": 98, outcome: 1}
    silent = ScriptedBackend([])
    again = ask(silent, tmp_path, mode="recorded")
    assert (again.outcome, again.reason, again.replayed) == (outcome, answer.reason, True)
    assert ask(ScriptedBackend([GOOD]), tmp_path).value == "开心", "auto mode asks again"
    assert ask(silent, tmp_path, mode="recorded").value == "开心"


def test_a_rejection_does_not_displace_what_can_be_used_at_need() -> None:
    answer = ask(ScriptedBackend(["太长了一些", RequestRejected("400")]), parser=short)
    assert (answer.value, answer.outcome, answer.attempts) == ("太长了一些", "violations", 2)


def test_parameters_that_are_not_sent_leave_the_key(tmp_path: Path) -> None:
    class Plain(ScriptedBackend):
        dropped = ("temperature", "seed")

    warm = request(sampling=Sampling(temperature=0.9, max_tokens=5))
    model = ModelId(name="m")
    form = warm.normal_form(model, ("temperature", "seed"))
    assert form["seed"] is None and form["sampling"] == {"max_tokens": 5}
    assert rec.key_of(form) != rec.key_of(warm.normal_form(model))
    chat = Chat(Plain([GOOD]), store(tmp_path))
    first = llm_chat.run(chat.ask(warm, parse))
    cold = request(sampling=Sampling(temperature=0.1, max_tokens=5), seed=7)
    again = llm_chat.run(chat.ask(cold, parse))
    assert not first.replayed and again.replayed


def in_no_time(work: Callable, **options):
    """Run `work(chat)` in a loop without waiting."""

    async def main():
        chat = Chat(ScriptedBackend(lambda r: GOOD), None, **options)
        return await work(chat)

    return fast_time.run(main())


async def sleeper(n: int, seconds: float, log: list[int] | None = None) -> int:
    if log is not None:
        log.append(n)
    await asyncio.sleep(seconds)
    return n


def test_results_come_in_the_order_of_the_work_whatever_ends_first() -> None:
    seconds = [5, 1, 4, 1, 3, 9, 2, 6]
    assert in_no_time(lambda chat: chat.side_by_side(sleeper(n, s) for n, s in enumerate(seconds))) == list(
        range(8)
    )
    assert in_no_time(lambda chat: chat.side_by_side([])) == []


def test_kept_results_are_handed_over_in_order_as_soon_as_they_can_be() -> None:
    kept: list[tuple[int, float]] = []

    async def work(chat: Chat) -> list:
        seconds = [3, 1, 2, 5, 1]
        items = (sleeper(n, s) for n, s in enumerate(seconds))
        return await chat.side_by_side(items, at_once=5, keep=lambda n: kept.append((n, now())))

    assert in_no_time(work) == [], "nothing is collected"
    assert kept == [(0, 3.0), (1, 3.0), (2, 3.0), (3, 5.0), (4, 5.0)]


@pytest.mark.parametrize(("at_once", "expected"), [(1, 1), (3, 3), (None, 4), (99, 20)])
def test_so_many_at_once_and_no_more(at_once: int | None, expected: int) -> None:
    running = most = 0

    async def item() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(1)
        running -= 1

    in_no_time(lambda chat: chat.side_by_side((item() for _ in range(20)), at_once), concurrency=4)
    assert most == expected


def test_behind_a_slow_head_finished_ones_do_not_pile_up_without_end() -> None:
    started: list[int] = []

    async def work(chat: Chat) -> list[int]:
        items = (sleeper(n, 1000 if n == 0 else 1, started) for n in range(400))
        side_by_side = asyncio.ensure_future(chat.side_by_side(items, 4))
        await asyncio.sleep(900)
        assert len(started) == 4 * 4
        return await side_by_side

    assert in_no_time(work) == list(range(400))


def test_after_the_first_fault_no_further_request_goes_out_and_those_under_way_come_home(
    tmp_path: Path,
) -> None:
    class Timed(ScriptedBackend):
        async def complete(self, r: Request) -> Reply:
            reply = await super().complete(r)
            await asyncio.sleep(1.0 if r.subject == "d/2" else 3.0)
            if r.subject == "d/2":
                raise ConnectionError("told")
            return reply

    recorded = store(tmp_path)
    backend = Timed(lambda r: GOOD)

    async def several(chat: Chat, n: int) -> None:
        for k in range(5):
            await chat.ask(request(n + 100 * k), parse)

    async def main() -> float:
        chat = Chat(backend, recorded, concurrency=4)
        with pytest.raises(ConnectionError, match="told"):
            await chat.side_by_side(several(chat, n) for n in range(40))
        return now()

    assert fast_time.run(main()) == 3.0
    assert sorted(r.subject for r in backend.requests) == ["d/0", "d/1", "d/2", "d/3"]
    assert len(store(tmp_path)) == 3


def test_the_fault_is_the_one_that_happened_first_wherever_it_stands() -> None:
    async def fail(seconds: float, name: str) -> None:
        await asyncio.sleep(seconds)
        raise KeyError(name)

    with pytest.raises(KeyError, match="early"):
        in_no_time(lambda chat: chat.side_by_side([fail(9, "late"), sleeper(1, 1), fail(2, "early")]))


def test_after_a_fault_no_coroutine_is_left_unawaited() -> None:
    async def fail() -> None:
        raise KeyError("told")

    started: list[int] = []
    work = [fail(), *(sleeper(n, 1, started) for n in range(50))]
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        with pytest.raises(KeyError, match="told"):
            in_no_time(lambda chat: chat.side_by_side(work, 4))
        work.clear()
        gc.collect()
    assert [str(w.message) for w in seen if "never awaited" in str(w.message)] == []
    assert len(started) <= 4


@pytest.mark.parametrize("where", ["work", "keep"])
def test_a_fault_of_the_caller_ends_it_like_any_other(where: str) -> None:
    def items():
        for n in range(30):
            if where == "work" and n == 7:
                raise ZeroDivisionError
            yield sleeper(n, 1, started)

    def keep(n: int) -> None:
        if where == "keep" and n == 7:
            raise ZeroDivisionError

    started: list[int] = []
    with pytest.raises(ZeroDivisionError):
        in_no_time(lambda chat: chat.side_by_side(items(), 3, keep))
    assert len(started) < 15


def test_being_cancelled_ends_all_that_is_under_way(tmp_path: Path) -> None:
    ended: list[int] = []

    async def item(n: int) -> None:
        try:
            await asyncio.sleep(100)
        finally:
            ended.append(n)

    async def work(chat: Chat) -> None:
        whole = asyncio.ensure_future(chat.side_by_side((item(n) for n in range(50)), 3))
        await asyncio.sleep(1)
        whole.cancel()
        with pytest.raises(asyncio.CancelledError):
            await whole
        assert sorted(ended) == [0, 1, 2] and now() == 1.0
        assert (await chat.ask(request(), parse)).value == "开心", "the chat is of use again"

    in_no_time(work)
