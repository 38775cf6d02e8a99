"""Rate limits of several kinds, simulated: the run goes on by itself, few requests are refused, none is given
up. Clocks jump, so minutes take no time here; the SDK and all that is below it are real.
"""

import asyncio
import random
from collections.abc import Callable

import openai
import pytest
from fault_server import chat_reply, error
from scripted import endpoint_at, request

from memecmd_utils.llm import pace
from memecmd_utils.llm.chat import Chat
from memecmd_utils.llm.types import EndpointError

LATENCY_S, URL = 2.0, "http://models.example/v1"
CLIENT = openai.DefaultAsyncHttpxClient
Limit = Callable[["Server"], "str | None"]


class FastLoop(asyncio.SelectorEventLoop):
    """Waiting takes no time: its clock jumps to whoever is due next, and else stands still."""

    now = 0.0

    def time(self) -> float:
        return self.now

    def _run_once(self) -> None:
        due = [] if self._ready else [timer.when() for timer in self._scheduled if not timer.cancelled()]
        self.now = max(self.now, min(due, default=0.0))
        super()._run_once()


def now() -> float:
    return asyncio.get_running_loop().time()


class Server:
    """Answers after `LATENCY_S` unless its limit refuses with some words."""

    def __init__(self, limit: Limit) -> None:
        self.limit, self.accepted, self.refused, self.under_way = limit, [], [], 0

    async def __call__(self, request):
        import httpx2

        if (words := self.limit(self)) is not None:
            self.refused.append(now())
            return httpx2.Response(429, json=error(words))
        self.accepted.append(now())
        self.under_way += 1
        await asyncio.sleep(LATENCY_S)
        self.under_way -= 1
        return httpx2.Response(200, json=chat_reply("好"))

    def last(self, seconds: float = 60, both: bool = False) -> list[float]:
        times = sorted(self.accepted + self.refused) if both else self.accepted
        return [time for time in times if time > now() - seconds]


def talk(
    limit: Limit, monkeypatch, calls: int = 24, concurrency: int = 8, max_rpm: int | None = None
) -> tuple[Server, Chat, float]:
    """Ask so many questions; the server, the chat and the seconds it took."""
    import httpx2

    pace.pace_of.cache_clear()
    server = Server(limit)

    def line(**options):
        return CLIENT(transport=httpx2.MockTransport(server), **options)

    monkeypatch.setattr(openai, "DefaultAsyncHttpxClient", line)
    chat = Chat(endpoint_at(URL, max_rpm=max_rpm), concurrency=concurrency)

    async def work() -> float:
        asked = (chat.ask(request(str(n)), lambda reply: reply.text) for n in range(calls))
        answers = await chat.side_by_side(asked)
        assert [answer.value for answer in answers] == ["好"] * calls
        return now()

    with asyncio.Runner(loop_factory=FastLoop) as runner:
        return server, chat, runner.run(work())


def sliding(rpm: int, words="slow down", both: bool = False) -> Limit:
    return lambda server: words if len(server.last(both=both)) >= rpm else None


@pytest.mark.parametrize("concurrency", [1, 64])
@pytest.mark.parametrize(
    ("rpm", "limit"),
    [
        (6, sliding(6, "max RPM: 6, please try again after 1 seconds")),
        (6, sliding(6, both=True)),
        (1, sliding(1)),
    ],
)
def test_no_question_is_given_up_for_a_limit_a_minute(
    rpm: int, limit: Limit, concurrency: int, monkeypatch
) -> None:
    server, chat, took = talk(limit, monkeypatch, calls=40, concurrency=concurrency)
    assert took < 1.6 * 60 * 40 / rpm and chat.usage.outcomes == {"accepted": 40}
    assert len(server.refused) < 5 * took / 60 + 2, "of many at once, too"


def test_within_max_rpm_nothing_is_refused(monkeypatch) -> None:
    """Nor does a bucket of six tokens refuse, which allows more than six in any minute."""
    server, chat, took = talk(sliding(6), monkeypatch, max_rpm=6)
    assert endpoint_at(URL, max_rpm=6).pace is chat.backend.pace, "one for all who ask an endpoint"
    assert server.refused == [] and 235 < took < 242


def test_a_limit_of_requests_at_once_and_refusals_by_chance_cost_seconds(monkeypatch) -> None:
    few, _, took = talk(lambda s: "busy" if s.under_way >= 3 else None, monkeypatch, calls=240)
    assert took < 2 * LATENCY_S * 240 / 3 and len(few.refused) < 60
    draw = random.Random(4)
    chance, _, took = talk(lambda _: "busy" if draw.random() < 0.03 else None, monkeypatch, calls=2000)
    assert took < 2 * LATENCY_S * 2000 / 8 and 40 < len(chance.refused) < 90


def test_a_key_whose_minute_is_used_up_before_is_waited_for_and_a_day_is_not(monkeypatch) -> None:
    server, _, took = talk(lambda _: "slow down" if now() < 55 else None, monkeypatch)
    assert 55 < took < 110 and len(server.refused) < 8 + 8
    for words in ("Please try again in 7h12m3.5s", "slow down"):
        with pytest.raises(EndpointError, match=rf"status 429: {words}.*run again.*max_rpm"):
            talk(lambda _, words=words: words, monkeypatch)


def test_when_the_money_is_gone_nobody_waits_for_a_turn(monkeypatch) -> None:
    def limit(server: Server):
        return "your account balance is insufficient" if len(server.accepted) >= 2 else None

    asked: list[Server] = []
    with pytest.raises(EndpointError, match=r"no credit left .*balance is insufficient"):
        talk(lambda server: asked.append(server) or limit(server), monkeypatch, max_rpm=3)
    assert len(asked) == 3
