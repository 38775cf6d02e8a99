import asyncio
import random

import fast_time
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memecmd_utils.core.llm.delivery import SURE_AFTER, SUSPECT_AFTER, Throttle
from memecmd_utils.core.llm.messages import EndpointError


class Clock:
    """Moves by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


class Load:
    """How many hold a slot now, at most, and in which order they got it."""

    def __init__(self) -> None:
        self.now = self.most = 0
        self.order: list[int] = []

    async def use(self, throttle: Throttle, number: int, seconds: float = 0.0) -> None:
        await throttle.acquire()
        self.now += 1
        self.most = max(self.most, self.now)
        self.order.append(number)
        try:
            await asyncio.sleep(seconds)
        finally:
            self.now -= 1
            throttle.release()


def fail(throttle: Throttle, times: int = 1, wait_s: float | None = None) -> None:
    for _ in range(times):
        throttle.failed(throttle.clock(), wait_s, "status 500")


@pytest.mark.parametrize("cap", [1, 7, 64])
def test_the_cap_holds_under_load_and_who_came_first_is_served_first(cap: int) -> None:
    async def main() -> Load:
        throttle, load = Throttle(cap), Load()
        await asyncio.gather(*(load.use(throttle, n, 0.01 * (n % 3)) for n in range(2000)))
        assert throttle.in_flight == 0
        return load

    load = fast_time.run(main())
    assert load.most == cap and load.order == list(range(2000))


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_cancelled_waiters_give_no_slot_away_and_lose_none(data: st.DataObject) -> None:
    cap = data.draw(st.integers(1, 4))
    seed = data.draw(st.integers(0, 10**6))

    async def main() -> None:
        rng = random.Random(seed)
        throttle, load = Throttle(cap), Load()
        tasks = [
            asyncio.ensure_future(load.use(throttle, n, rng.choice([0.0, 0.01, 0.02]))) for n in range(30)
        ]
        for _ in range(15):
            await asyncio.sleep(rng.choice([0.0, 0.005, 0.01]))
            rng.choice(tasks).cancel()
        ends = await asyncio.gather(*tasks, return_exceptions=True)
        assert {type(end) for end in ends} <= {type(None), asyncio.CancelledError}
        assert load.most <= cap and throttle.in_flight == 0
        again = Load()
        await asyncio.gather(*(again.use(throttle, n, 0.01) for n in range(2 * cap)))
        assert again.most == cap, "all slots are there again"

    fast_time.run(main())


def test_a_slot_given_to_a_waiter_that_is_cancelled_in_the_same_moment_goes_to_the_next() -> None:
    async def main() -> None:
        throttle, load = Throttle(1), Load()
        await throttle.acquire()
        first, second = (asyncio.ensure_future(load.use(throttle, n)) for n in (1, 2))
        await asyncio.sleep(0)
        throttle.release()
        first.cancel()
        await second
        assert load.order == [2] and first.cancelled() and throttle.in_flight == 0

    fast_time.run(main())


def test_a_waiter_cancelled_just_before_a_slot_comes_free_ends_as_cancelled() -> None:
    async def main() -> None:
        throttle, load = Throttle(1), Load()
        await throttle.acquire()
        first, second = (asyncio.ensure_future(load.use(throttle, n)) for n in (1, 2))
        await asyncio.sleep(0)
        first.cancel()
        throttle.release()
        await second
        with pytest.raises(asyncio.CancelledError):
            await first
        assert load.order == [2] and throttle.in_flight == 0

    fast_time.run(main())


def test_after_ten_faults_in_a_row_one_at_a_time_and_one_success_heals(clock: Clock) -> None:
    async def main() -> None:
        throttle, load = Throttle(6, clock=clock), Load()
        fail(throttle, SUSPECT_AFTER - 1)
        assert not throttle.suspect
        fail(throttle)
        assert throttle.suspect and throttle.room == 1
        await asyncio.gather(*(load.use(throttle, n) for n in range(12)))
        assert load.most == 1
        throttle.succeeded()
        assert not throttle.suspect and throttle.room == 6
        await asyncio.gather(*(load.use(throttle, n) for n in range(12)))
        assert load.most == 6

    asyncio.run(main())


def test_dead_after_so_long_a_silence_and_not_before(clock: Clock) -> None:
    throttle = Throttle(8, dead_after_s=50, clock=clock)
    fail(throttle, 20)
    clock.now += 49.9
    fail(throttle)
    clock.now += 0.2
    with pytest.raises(
        EndpointError, match=r"not answered for 50 s \(22 faults in a row.*status 500"
    ) as told:
        fail(throttle)
    assert "dead_after_s" in str(told.value) and "run again" in str(told.value)


def test_the_silence_begins_when_the_first_that_failed_was_sent(clock: Clock) -> None:
    throttle = Throttle(8, dead_after_s=50, clock=clock)
    sent_at = clock.now
    clock.now += 30
    throttle.failed(sent_at, None, "time-out")
    clock.now += 21
    throttle.failed(sent_at, None, "time-out")
    with pytest.raises(EndpointError, match="51 s"):
        throttle.failed(sent_at, None, "time-out")


def test_what_the_server_asked_to_wait_is_added_to_the_patience(clock: Clock) -> None:
    throttle = Throttle(8, dead_after_s=50, clock=clock)
    fail(throttle, wait_s=10)
    fail(throttle, wait_s=60)
    fail(throttle, wait_s=5)
    clock.now += 109
    fail(throttle, 5)
    clock.now += 1
    with pytest.raises(EndpointError):
        fail(throttle)
    throttle.succeeded()
    fail(throttle, 3)
    clock.now += 51
    with pytest.raises(EndpointError):
        fail(throttle)


def test_fewer_than_three_faults_never_end_a_run(clock: Clock) -> None:
    throttle = Throttle(8, dead_after_s=50, clock=clock)
    for _ in range(SURE_AFTER - 1):
        throttle.failed(clock.now - 1000, None, "time-out")
    with pytest.raises(EndpointError):
        throttle.failed(clock.now - 1000, None, "time-out")


def test_a_success_ends_the_silence(clock: Clock) -> None:
    throttle = Throttle(8, dead_after_s=50, clock=clock)
    for _ in range(10):
        fail(throttle, 3)
        clock.now += 40
        throttle.succeeded()


def test_time_outs_of_old_requests_do_not_end_a_run_in_which_others_are_answered(clock: Clock) -> None:
    throttle = Throttle(8, dead_after_s=50, clock=clock)
    sent_at = clock.now
    for _ in range(120):
        clock.now += 1
        throttle.succeeded()
    for _ in range(4):  # all of one moment: a replica behind the address hangs
        throttle.failed(sent_at, None, "time-out")
    clock.now += 49
    fail(throttle)
    clock.now += 2
    with pytest.raises(EndpointError, match="51 s"):
        fail(throttle)
