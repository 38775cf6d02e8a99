import asyncio
import io
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import SimpleNamespace

import fast_time
import pytest
from scripted import ScriptedBackend
from tqdm.auto import tqdm

from memecmd_utils.core.machine import STATUS_VARIABLE
from memecmd_utils.llm import chat as llm_chat
from memecmd_utils.llm import usage
from memecmd_utils.llm.budget import Budget
from memecmd_utils.llm.chat import Chat, Progress
from memecmd_utils.llm.messages import Message, Reply, Request


@pytest.fixture(autouse=True)
def _time_of_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (llm_chat, usage):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=fast_time.now))
    monkeypatch.delenv(STATUS_VARIABLE, raising=False)


@pytest.fixture
def status(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "status.txt"
    monkeypatch.setenv(STATUS_VARIABLE, str(path))
    return path


def chat_of(**changes) -> Chat:
    return Chat(ScriptedBackend(lambda r: "好"), None, **changes)


def in_loop(
    work: Callable[[Progress], Coroutine], chat: Chat | None = None, total: int = 1000, label: str = "turns"
) -> None:
    async def main() -> None:
        with Progress(chat or chat_of(), total, label, "turn") as bar:
            await work(bar)

    fast_time.run(main())


def live(bar: Progress, tokens: int = 60) -> None:
    """One more unit, for which the model was asked."""
    bar.chat.usage.calls += 1
    bar.chat.usage.add(Reply(text="好", tokens_in=100, tokens_out=tokens), 0.0)
    bar.update()


def test_the_line_says_how_far_how_fast_how_much_and_how_long_still() -> None:
    async def work(bar: Progress) -> None:
        assert bar.line() == "turns 0/1,000"
        for _ in range(21):
            await asyncio.sleep(2)
            live(bar)
        asked = Request(task="utterance", subject="x", messages=[Message(role="user", text="a")])
        reserved = await bar.chat.budget.reserve(asked)
        bar.chat.budget.settle(reserved, Reply(text="x", tokens_in=1, tokens_out=1240))
        bar.chat.usage.retries.update({"status 500": 2, "time-out": 1})
        parts = bar.line().split(" · ")
        assert parts[0] == "turns 21/1,000"
        assert parts[1].endswith(" tokens/s") and 28 <= int(parts[1].split()[0]) <= 35
        assert parts[2:] == ["$1.24 of $5.00", "3 tried again", "33 min left"]

    in_loop(work, chat_of(budget=Budget(stage="s", max_usd=5.0, usd_out=1000.0)))


def test_parts_that_say_nothing_are_left_out() -> None:
    async def work(bar: Progress) -> None:
        bar.update()
        assert bar.line() == "ratings 1/3", "nobody was asked"
        live(bar)
        assert bar.line() == "ratings 2/3 · 60 tokens/s", "an endpoint without prices and without a cap"
        await asyncio.sleep(1)
        live(bar)
        assert "left" not in bar.line()

    in_loop(work, total=3, label="ratings")


def test_that_an_endpoint_is_only_tried_is_told() -> None:
    async def work(bar: Progress) -> None:
        for _ in range(10):
            bar.chat.throttle.failed(bar.chat.throttle.clock(), None, "status 500")
        assert bar.line() == "turns 0/1,000 · 1 of 20 at once"

    in_loop(work, chat_of(concurrency=20))


@pytest.mark.parametrize("calls_of_a_loop_before", [0, 5])
def test_what_is_replayed_does_not_make_the_rest_look_short(calls_of_a_loop_before: int) -> None:
    async def work(bar: Progress) -> None:
        for _ in range(900):
            await asyncio.sleep(0.001)
            bar.update()
        assert bar.seconds_left is None, "nothing was asked for yet"
        for _ in range(11):
            await asyncio.sleep(10)
            live(bar)
        assert bar.seconds_left == pytest.approx(89 * 10)

    chat = chat_of()
    chat.usage.calls = calls_of_a_loop_before
    in_loop(work, chat)


def test_the_status_file_is_written_every_second_and_at_the_end(status: Path) -> None:
    async def work(bar: Progress) -> None:
        bar.update(52)
        await asyncio.sleep(0.9)
        assert not status.exists()
        await asyncio.sleep(0.2)
        assert status.read_text(encoding="utf-8") == "表情包 52/100" == bar.line()
        bar.chat.backend.status = "validating"
        await asyncio.sleep(1)  # no unit was done meanwhile
        assert status.read_text(encoding="utf-8") == "表情包 52/100 · validating"
        bar.chat.backend.status = ""
        bar.update(48)

    in_loop(work, total=100, label="表情包")
    assert status.read_text(encoding="utf-8") == "表情包 100/100"


def test_the_last_word_is_written_when_a_fault_ends_the_loop_too(status: Path) -> None:
    async def work(bar: Progress) -> None:
        bar.update(14)
        raise KeyError

    with pytest.raises(KeyError):
        in_loop(work, total=100)
    assert status.read_text(encoding="utf-8") == "turns 14/100"


def test_nothing_ticks_on_after_the_loop(status: Path) -> None:
    async def main() -> None:
        before = len(asyncio.all_tasks())
        with Progress(chat_of(), 2, "turns", "turn"):
            await asyncio.sleep(0)
            assert len(asyncio.all_tasks()) == before + 1
        status.unlink()
        await asyncio.sleep(5)
        assert len(asyncio.all_tasks()) == before and not status.exists()

    fast_time.run(main())


def test_the_bar_of_a_notebook_shows_the_same_extras(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    monkeypatch.setattr("tqdm.auto.tqdm", lambda **options: tqdm(file=screen, **options))

    async def work(bar: Progress) -> None:
        live(bar)
        bar.update(1)

    in_loop(work, chat_of(budget=Budget(max_usd=5.0)), total=2)
    assert "2/2" in screen.getvalue() and "$0.00 of $5.00" in screen.getvalue()
