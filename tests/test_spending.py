"""What was spent is counted over all processes, also after a torn line, and the caps hold."""

import asyncio
from collections import Counter

import pytest
from scripted import request

from memecmd_utils.llm import chat, spending
from memecmd_utils.llm.spending import Budget, Spent
from memecmd_utils.llm.types import BudgetReached, Reply, Sampling
from memecmd_utils.settings import Endpoint

REQUEST = request("一" * 100, sampling=Sampling(max_tokens=10))
PRICED = Endpoint(usd_per_million_in=1, usd_per_million_out=2)


def test_what_was_spent_is_known_to_other_processes_and_a_torn_line_is_none(tmp_path) -> None:
    path = tmp_path / "usage" / "spent.jsonl"
    one, other = Spent(path), Spent(path)
    one.add("s", "rating", 10, 5, 0.25)
    other.refresh()
    other.add("s", "rating", 1, 1, 0.5)
    one.refresh()
    assert one.rows == other.rows == {("s", "rating"): Counter(calls=2, tokens_in=11, tokens_out=6, usd=0.75)}
    for torn in ('{"stage": "s", "ta', "\x00"):
        with path.open("a") as handle:
            handle.write(torn)
        before = Spent(path).total("usd")
        one.add("s", "rating", 1, 1, 5)
        assert one.total("usd") == Spent(path).total("usd") == before + 5, "what comes after it counts"


def spend(capped: Budget, n: int, reply: Reply, at_once: int = 4) -> tuple[int, BaseException | None]:
    """So many calls side by side, and what stopped them."""
    sent = []

    async def one(slots: asyncio.Semaphore) -> None:
        async with slots, capped.call(REQUEST) as pay:
            sent.append(1)
            await asyncio.sleep(0.01)
            pay(reply)

    async def work() -> None:
        slots = asyncio.Semaphore(at_once)
        await asyncio.gather(*(one(slots) for _ in range(n)))

    try:
        chat.run(work())
    except BudgetReached as reached:
        return len(sent), reached
    return len(sent), None


def test_a_cap_of_nothing_allows_no_call_and_the_first_call_shows_the_price() -> None:
    reply = Reply(text="x", tokens_in=100, tokens_out=50)
    assert spend(Budget(max_calls=0), 1, reply)[0] == spend(Budget(max_usd=0), 1, reply)[0] == 0
    assert 40 <= spend(Budget(max_usd=0.01, endpoint=PRICED), 200, reply)[0] <= 50 + 4
    thinks = Reply(text="x", tokens_in=100, tokens_out=5_000)  # far more than `max_tokens` says
    sent, _ = spend(Budget(max_usd=0.01, endpoint=PRICED), 200, thinks)
    assert sent == 1, "the first call goes alone"
    assert spend(Budget(max_usd=100), 20, reply)[1] is None, "what is free has no end"


def test_replies_without_counts_cost_what_was_reckoned_and_refused_ones_nothing() -> None:
    capped = Budget(endpoint=Endpoint(usd_per_million_in=1e6, usd_per_million_out=1e6))
    assert spend(capped, 1, Reply(text="x"))[1] is None
    assert capped.spent.total("usd") == pytest.approx(spending.TOKENS_PER_CHARACTER * 100 + 10)
    spend(capped, 1, Reply(text="x", finish_reason="rejected"))
    assert capped.spent.total("calls") == 1
