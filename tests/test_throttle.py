import asyncio
import random

import fast_time
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memecmd_utils.llm_types import EndpointError
from memecmd_utils.throttle import COOL_DOWN_S, CUT, SURE_AFTER, SUSPECT_AFTER, Throttle


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


def fail(throttle: Throttle, times: int = 1, limited: bool = False, wait_s: float | None = None) -> None:
    for _ in range(times):
        throttle.failed(throttle.clock(), limited, wait_s, "status 429" if limited else "status 500")


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


async def hold(throttle: Throttle, n: int) -> None:
    for _ in range(n):
        await throttle.acquire()


def test_a_burst_of_rate_limits_is_one_cut(clock: Clock) -> None:
    throttle = Throttle(40, clock=clock)
    asyncio.run(hold(throttle, 40))
    sent_at = clock.now
    clock.now += 1
    for _ in range(9):
        throttle.failed(sent_at, True, None, "status 429")
    assert (throttle.cuts, throttle.limit) == (1, pytest.approx(40 * CUT))


def test_requests_sent_before_the_cut_do_not_cut_again_even_after_the_cool_down(clock: Clock) -> None:
    throttle = Throttle(40, dead_after_s=1e9, clock=clock)
    asyncio.run(hold(throttle, 40))
    sent_at = clock.now
    clock.now += 1
    throttle.failed(sent_at, True, None, "status 429")
    clock.now += COOL_DOWN_S + 1
    throttle.failed(sent_at, True, None, "status 429")
    assert throttle.cuts == 1
    throttle.failed(clock.now, True, None, "status 429")
    assert throttle.cuts == 2 and throttle.room == int(40 * CUT * CUT)


def test_no_second_cut_during_the_cool_down_and_never_below_one(clock: Clock) -> None:
    throttle = Throttle(4, dead_after_s=1e9, clock=clock)
    asyncio.run(hold(throttle, 4))
    fail(throttle, limited=True)
    clock.now += COOL_DOWN_S / 2
    fail(throttle, limited=True)
    assert throttle.cuts == 1
    for _ in range(20):
        clock.now += COOL_DOWN_S + 1
        fail(throttle, limited=True)
        throttle.succeeded()
    assert throttle.limit == 1.0 and throttle.room == 1


def test_the_cut_starts_from_what_was_in_flight(clock: Clock) -> None:
    throttle = Throttle(100, clock=clock)
    asyncio.run(hold(throttle, 10))
    clock.now += 1
    fail(throttle, limited=True)
    assert throttle.limit == pytest.approx(10 * CUT), "the cap was far above what the endpoint saw"


def test_other_faults_do_not_cut(clock: Clock) -> None:
    throttle = Throttle(8, clock=clock)
    fail(throttle, SUSPECT_AFTER - 1)
    assert throttle.cuts == 0 and throttle.room == 8


def test_clean_rounds_bring_the_cap_back_slowly(clock: Clock) -> None:
    throttle = Throttle(20, clock=clock)
    asyncio.run(hold(throttle, 20))
    fail(throttle, limited=True)
    assert throttle.room == 14
    for _ in range(50):
        throttle.succeeded()
    assert throttle.room == 14, "not during the cool-down"
    clock.now += COOL_DOWN_S
    rooms = []
    for _ in range(500):
        throttle.succeeded()
        rooms.append(throttle.room)
    assert rooms == sorted(rooms) and set(rooms) == set(range(15, 21)), "step by step, up to the cap"
    assert rooms.count(16) >= 15, "a round of clean answers for each step"
    throttle.succeeded()
    assert throttle.limit == 20.0


def test_a_fault_begins_the_round_anew(clock: Clock) -> None:
    throttle = Throttle(10, clock=clock)
    asyncio.run(hold(throttle, 10))
    fail(throttle, limited=True)
    clock.now += COOL_DOWN_S
    for _ in range(20):
        for _ in range(6):  # a round has seven
            throttle.succeeded()
        fail(throttle)
    assert throttle.room == 7


def test_growing_wakes_who_waits(clock: Clock) -> None:
    async def main() -> None:
        throttle = Throttle(4, clock=clock)
        await hold(throttle, 4)
        fail(throttle, limited=True)
        for _ in range(2):
            throttle.release()
        waiting = asyncio.ensure_future(throttle.acquire())
        await asyncio.sleep(0)
        assert not waiting.done() and throttle.in_flight == throttle.room == 2
        clock.now += COOL_DOWN_S
        for _ in range(3):
            throttle.succeeded()
        await asyncio.sleep(0)
        assert waiting.done() and throttle.in_flight == 3

    asyncio.run(main())


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


def test_healing_wakes_everyone_who_waited_behind_the_probe(clock: Clock) -> None:
    async def main() -> None:
        throttle = Throttle(5, clock=clock)
        fail(throttle, SUSPECT_AFTER)
        await throttle.acquire()
        waiting = [asyncio.ensure_future(throttle.acquire()) for _ in range(9)]
        await asyncio.sleep(0)
        assert not any(task.done() for task in waiting)
        throttle.succeeded()
        throttle.release()
        await asyncio.sleep(0)
        assert [task.done() for task in waiting] == [True] * 5 + [False] * 4
        for task in waiting:
            task.cancel()

    asyncio.run(main())


def test_a_success_in_between_starts_the_count_anew(clock: Clock) -> None:
    throttle = Throttle(6, clock=clock)
    for _ in range(5):
        fail(throttle, SUSPECT_AFTER - 1)
        throttle.succeeded()
    assert not throttle.suspect


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
    throttle.failed(sent_at, False, None, "time-out")
    clock.now += 21
    throttle.failed(sent_at, False, None, "time-out")
    with pytest.raises(EndpointError, match="51 s"):
        throttle.failed(sent_at, False, None, "time-out")


def test_what_the_server_asked_to_wait_is_added_to_the_patience(clock: Clock) -> None:
    throttle = Throttle(8, dead_after_s=50, clock=clock)
    fail(throttle, limited=True, wait_s=10)
    fail(throttle, limited=True, wait_s=60)
    fail(throttle, limited=True, wait_s=5)
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
        throttle.failed(clock.now - 1000, False, None, "time-out")
    with pytest.raises(EndpointError):
        throttle.failed(clock.now - 1000, False, None, "time-out")


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
        throttle.failed(sent_at, False, None, "time-out")
    clock.now += 49
    fail(throttle)
    clock.now += 2
    with pytest.raises(EndpointError, match="51 s"):
        fail(throttle)


def test_without_a_limit_of_patience_no_run_ends(clock: Clock) -> None:
    throttle = Throttle(2, dead_after_s=float("inf"), clock=clock)
    for _ in range(50):
        fail(throttle)
        clock.now += 1e6
    assert throttle.suspect
