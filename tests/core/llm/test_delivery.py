import asyncio
import itertools
import random
from collections.abc import Callable

import fast_time
import openai  # noqa: F401 - its import takes a second, which the tests of time must not see
import pytest
from fast_time import now
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted import ScriptedBackend

from memecmd_utils.llm.budget import Budget
from memecmd_utils.llm.delivery import (
    FIRST_WAIT_S,
    LONGEST_WAIT_S,
    MAX_DOUBTS,
    MAX_TRIES,
    PROBE_GAP_S,
    SURE_AFTER,
    SUSPECT_AFTER,
    Delivery,
    Throttle,
)
from memecmd_utils.llm.messages import (
    BudgetReached,
    EndpointError,
    InDoubt,
    Message,
    Reply,
    Request,
    RequestRejected,
    TransientFault,
)
from memecmd_utils.llm.usage import Usage


def request(n: int | str = 1) -> Request:
    return Request(task="utterance", subject=str(n), messages=[Message(role="user", text="好")])


def fault(kind: str = "status 500", **more) -> TransientFault:
    return TransientFault(kind, **more)


class Timed(ScriptedBackend):
    """Notes when each request came; every exchange takes `takes_s`, or for ever where that is None."""

    def __init__(
        self, replies, takes_s: float | Callable[[Request], float | None] = 0.0, lives: bool = True
    ) -> None:
        super().__init__(replies)
        self._takes_s, self.lives = takes_s, lives
        self.sent: list[tuple[float, str]] = []
        self.looks = 0

    async def complete(self, request: Request) -> Reply:
        self.sent.append((now(), request.subject))
        takes_s = self._takes_s(request) if callable(self._takes_s) else self._takes_s
        await (asyncio.Event().wait() if takes_s is None else asyncio.sleep(takes_s))
        return await super().complete(request)

    async def alive(self, within_s: float) -> bool:
        self.looks += 1
        if not self.lives:
            await asyncio.sleep(within_s)
        return self.lives

    def at(self, subject: int | str) -> list[float]:
        return [t for t, name in self.sent if name == str(subject)]


def delivery_of(
    backend, cap: int = 4, dead_after_s: float = 50.0, budget: Budget | None = None, sleep=asyncio.sleep
) -> Delivery:
    throttle = Throttle(cap, dead_after_s, now)
    return Delivery(backend, throttle, budget or Budget(), Usage(), sleep)


async def send_all(delivery: Delivery, names) -> list[Reply | BaseException]:
    return await asyncio.gather(*(delivery.send(request(n)) for n in names), return_exceptions=True)


async def feed(delivery: Delivery, names, at_once: int) -> dict[str, Reply]:
    """Send one after another, `at_once` of them at a time, as the stages do."""
    left, replies = iter(map(str, names)), {}

    async def work() -> None:
        for name in left:
            replies[name] = await delivery.send(request(name))

    await asyncio.gather(*(work() for _ in range(at_once)))
    return replies


@pytest.mark.parametrize(
    "bad",
    [
        fault("status 429", wait_s=3.0, limited=True),
        fault("time-out", paid=True),
    ],
    ids=lambda bad: bad.kind,
)
def test_each_kind_of_fault_is_tried_again_and_counted_by_its_name(bad: TransientFault) -> None:
    delivery = delivery_of(Timed([bad, Reply(text="好", tokens_in=3, tokens_out=2)]))
    assert fast_time.run(delivery.send(request())).text == "好"
    usage = delivery.usage
    assert (usage.calls, usage.retries, usage.tokens_out) == (2, {bad.kind: 1}, 2)
    assert delivery.throttle.in_flight == 0


def test_waits_double_from_half_a_second_with_jitter_on_top() -> None:
    backend = Timed([*[fault()] * 7, "好"])
    fast_time.run(delivery_of(backend, dead_after_s=1e9).send(request()))
    times = backend.at(1)
    for n, gap in enumerate(b - a for a, b in itertools.pairwise(times)):
        back_off = min(LONGEST_WAIT_S, FIRST_WAIT_S * 2**n)
        assert back_off <= gap <= 1.5 * back_off


def test_what_the_server_asks_to_wait_is_waited() -> None:
    backend = Timed([fault("status 429", wait_s=7.0, limited=True), fault(wait_s=0.0), "好"])
    fast_time.run(delivery_of(backend).send(request()))
    first, second, third = backend.at(1)
    assert 7.0 <= second - first <= 7.0 + FIRST_WAIT_S
    assert third - second <= 0.5 * FIRST_WAIT_S * 2, "at once, but for the jitter"


def test_the_slot_is_free_while_a_request_waits_for_its_next_try() -> None:
    def reply(r: Request):
        return fault(wait_s=30.0) if r.subject == "0" and len(backend.at(0)) == 1 else "好"

    backend = Timed(reply, takes_s=1.0)
    replies = fast_time.run(send_all(delivery_of(backend, cap=1), range(6)))
    assert [r.text for r in replies] == ["好"] * 6
    assert [backend.at(n) for n in range(1, 6)] == [[float(n)] for n in range(1, 6)]
    assert backend.at(0)[1] >= 31.0


def test_a_rejected_request_comes_back_as_a_reply_and_shows_that_the_endpoint_lives() -> None:
    delivery = delivery_of(Timed([RequestRejected("400: too long"), "好"]))
    reply = fast_time.run(delivery.send(request()))
    assert (reply.finish_reason, reply.text) == ("rejected", "400: too long")
    assert delivery.throttle.successes == 1 and delivery.usage.retries == {}


def in_doubt(r: Request) -> InDoubt:
    return InDoubt("400: not this one", request("neutral"), "way")


def test_a_doubt_is_settled_by_one_neutral_request_for_all_that_are_in_it() -> None:
    known: set[str] = set()

    def reply(r: Request):
        if r.subject == "neutral":
            known.add("way")
            return "好"
        if r.subject.startswith("bad"):
            return RequestRejected("400: not this one") if known else in_doubt(r)
        return "好"

    backend = Timed(reply, takes_s=1.0)
    delivery = delivery_of(backend, cap=8)
    replies = fast_time.run(send_all(delivery, ["bad 1", "bad 2", "bad 3", 1, 2]))
    assert [r.finish_reason for r in replies] == [*["rejected"] * 3, "stop", "stop"]
    assert len(backend.at("neutral")) == 1 and len(backend.sent) == 2 * 3 + 2 + 1 == delivery.usage.calls
    assert delivery.throttle.in_flight == 0


def test_a_doubt_that_is_never_settled_costs_few_requests() -> None:
    backend = Timed(lambda r: "好" if r.subject == "neutral" else in_doubt(r))
    reply = fast_time.run(delivery_of(backend).send(request("bad")))
    assert (reply.finish_reason, reply.text) == ("rejected", "400: not this one")
    assert len(backend.at("neutral")) == MAX_DOUBTS


def test_where_no_neutral_request_gets_through_the_request_is_rejected_and_the_others_go_on() -> None:
    def reply(r: Request):
        return {"bad": in_doubt(r), "neutral": fault("status 500")}.get(r.subject, "好")

    replies = fast_time.run(feed(delivery_of(Timed(reply, takes_s=0.5), cap=4), ["bad", *range(800)], 4))
    assert replies.pop("bad").finish_reason == "rejected"
    assert {r.finish_reason for r in replies.values()} == {"stop"}


def test_a_refused_neutral_request_ends_all_in_one_error() -> None:
    def reply(r: Request):
        return EndpointError("the endpoint refuses the request") if r.subject == "neutral" else in_doubt(r)

    backend = Timed(reply, takes_s=0.1)
    ends = fast_time.run(send_all(delivery_of(backend, cap=4), range(50)))
    assert {type(end) for end in ends} == {EndpointError} and len(backend.sent) <= 3 * 4


def test_rate_limits_cost_no_try_while_others_get_through() -> None:
    limited = 3 * MAX_TRIES

    def reply(r: Request):
        patient = r.subject == "patient" and len(backend.at("patient")) <= limited
        return fault("status 429", limited=True) if patient else "好"

    backend = Timed(reply, takes_s=0.1)
    replies = fast_time.run(feed(delivery_of(backend, cap=2), ["patient", *range(2000)], 2))
    assert {r.finish_reason for r in replies.values()} == {"stop"}
    assert len(backend.at("patient")) == limited + 1


def test_a_poison_request_that_is_left_over_when_all_others_are_done_fails_alone_too() -> None:
    for seed in range(5):
        random.seed(seed)
        backend = Timed(lambda r: fault("status 500") if r.subject == "poison" else "好", takes_s=0.1)
        replies = fast_time.run(send_all(delivery_of(backend), ["poison", *range(40)]))
        assert [getattr(r, "finish_reason", r) for r in replies] == ["failed", *["stop"] * 40]
        assert "status 500" in replies[0].text and len(backend.at("poison")) == MAX_TRIES


def test_an_endpoint_that_is_away_for_a_while_costs_no_request() -> None:
    backend = Timed(lambda r: fault("no connection") if 2.0 < now() < 32.0 else "好", takes_s=0.2)
    replies = fast_time.run(send_all(delivery_of(backend, cap=8), range(300)))
    assert [r.text for r in replies] == ["好"] * 300
    assert len([t for t, _ in backend.sent if 3.0 < t < 32.0]) < 40, "one at a time is let through"


def test_probes_of_a_suspect_endpoint_keep_a_distance() -> None:
    backend = Timed(lambda r: fault("no connection"))
    fast_time.run(send_all(delivery_of(backend, cap=8, dead_after_s=30.0), range(100)))
    probes = [t for t, _ in backend.sent[SUSPECT_AFTER + 8 :]]
    assert len(probes) > 5
    assert all(b - a >= PROBE_GAP_S for a, b in itertools.pairwise(probes))


def test_a_dead_endpoint_ends_in_one_and_the_same_error_for_all_and_nothing_goes_out_after_it() -> None:
    backend = Timed(lambda r: fault("no connection"))
    delivery = delivery_of(backend, cap=8, dead_after_s=20.0)

    async def main():
        ends: list[tuple[float, BaseException]] = []

        async def one(n: int) -> None:
            try:
                await delivery.send(request(n))
            except EndpointError as dead:
                ends.append((now(), dead))

        await asyncio.gather(*(one(n) for n in range(400)))
        return ends

    ends = fast_time.run(main())
    assert len(ends) == 400 and len({id(dead) for _, dead in ends}) == 1
    verdict = ends[0][0]
    assert 20.0 <= verdict < 23.0 and ends[-1][0] == verdict, "who waits is woken"
    assert len(backend.sent) < 8 + SUSPECT_AFTER + 25 and max(t for t, _ in backend.sent) <= verdict
    assert delivery.throttle.in_flight == 0


def test_with_endless_patience_ten_tries_without_any_answer_are_the_end() -> None:
    backend = Timed(lambda r: fault("no connection"))
    with pytest.raises(
        EndpointError, match=rf"{MAX_TRIES} tries of utterance 1; the last fault was no connection"
    ):
        fast_time.run(delivery_of(backend, dead_after_s=float("inf")).send(request()))
    assert len(backend.sent) == MAX_TRIES


def test_requests_that_wait_for_their_next_try_are_woken_when_the_run_stops() -> None:
    class Stopped(Exception):
        pass

    async def main() -> None:
        stopped = False

        def may_go() -> None:
            if stopped:
                raise Stopped

        backend = Timed(lambda r: fault(wait_s=60.0))
        delivery = delivery_of(backend, cap=9, dead_after_s=1e9)
        work = [asyncio.ensure_future(delivery.send(request(n), may_go)) for n in range(9)]
        await asyncio.sleep(1.0)
        stopped = True
        delivery.stop_waiting()
        ends = await asyncio.gather(*work, return_exceptions=True)
        assert {type(end) for end in ends} == {Stopped} and now() == 1.0 and len(backend.sent) == 9

    fast_time.run(main())


def test_a_request_that_waits_for_money_does_not_go_out_after_a_fault() -> None:
    def reply(r: Request):
        return EndpointError("the endpoint refused the key")

    backend = Timed(reply, takes_s=0.1)
    budget = Budget(max_calls=1)
    ends = fast_time.run(send_all(delivery_of(backend, cap=4, budget=budget), range(8)))
    assert {type(end) for end in ends} == {EndpointError}
    assert len(backend.sent) == 1


def test_being_cancelled_while_waiting_is_no_wake_up_call() -> None:
    async def main() -> None:
        backend = Timed(lambda r: fault(wait_s=60.0))
        delivery = delivery_of(backend)
        work = asyncio.ensure_future(delivery.send(request()))
        await asyncio.sleep(1.0)
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
        assert len(backend.sent) == 1 and delivery.throttle.in_flight == 0

    fast_time.run(main())


def test_an_endpoint_without_any_sign_of_life_is_found_dead_in_time() -> None:
    backend = Timed(["好"], takes_s=None, lives=False)

    async def main() -> float:
        with pytest.raises(EndpointError, match="not even a list of its models"):
            await delivery_of(backend, cap=32, dead_after_s=50.0).send(request())
        return now()

    assert 20.0 < fast_time.run(main()) <= 50.0 and backend.looks == 2


def test_hundreds_share_one_look_for_life() -> None:
    backend = Timed(["好"], takes_s=None, lives=False)
    ends = fast_time.run(send_all(delivery_of(backend, cap=100), range(300)))
    assert len({id(end) for end in ends}) == 1 and isinstance(ends[0], EndpointError)
    assert backend.looks == 2 and len(backend.sent) == 100


def test_a_slow_endpoint_that_lives_is_waited_for() -> None:
    backend = Timed(["好"], takes_s=300.0)
    assert fast_time.run(delivery_of(backend).send(request())).text == "好"
    assert backend.looks > 3 and len(backend.sent) == 1


def test_no_look_is_needed_while_others_are_answered() -> None:
    backend = Timed(lambda r: "好", takes_s=lambda r: 100.0 if r.subject == "slow" else 5.0)
    fast_time.run(send_all(delivery_of(backend, cap=2), ["slow", *range(30)]))
    assert backend.looks == 0


def test_an_answer_that_comes_during_the_look_counts_as_a_sign_of_life() -> None:
    # A server that does one thing at a time shows no list of models while it writes.
    backend = Timed(["好"], takes_s=30.0, lives=False)
    delivery = delivery_of(backend, dead_after_s=50.0)
    assert fast_time.run(delivery.send(request())).text == "好"


def test_two_looks_at_an_endpoint_that_is_refused_at_once_are_some_time_apart() -> None:
    class Restarting(Timed):
        async def alive(self, within_s: float) -> bool:
            self.looks += 1
            return now() > 23.0

    backend = Restarting(["好"], takes_s=40.0)
    assert fast_time.run(delivery_of(backend, dead_after_s=50.0).send(request())).text == "好"
    assert backend.looks >= 2


def priced() -> Budget:
    return Budget(stage="s", usd_in=1.0, usd_out=1.0)


def spent(budget: Budget) -> tuple[int, int, int]:
    """Calls that are settled, settled as unsure, and unsettled."""
    rows = budget.ledger.spent.values()
    return sum(r.calls for r in rows), sum(r.unsure_calls for r in rows), budget.ledger.open_calls


def test_what_was_certainly_not_paid_is_taken_back_and_what_may_have_been_is_kept() -> None:
    script = [
        fault("status 500"),
        fault("no connection"),
        fault("time-out", paid=True),
        fault("broken connection", paid=True),
        RequestRejected("400"),
    ]
    budget = priced()
    fast_time.run(delivery_of(Timed(script), budget=budget).send(request()))
    assert spent(budget) == (0, 2, 0)
    fast_time.run(delivery_of(Timed([Reply(text="好", tokens_in=1)]), budget=budget).send(request()))
    assert spent(budget) == (1, 2, 0)
    with pytest.raises(EndpointError):
        fast_time.run(delivery_of(Timed([EndpointError("key")]), budget=budget).send(request()))
    assert spent(budget) == (1, 2, 0)


def test_a_call_that_is_cancelled_stays_unsettled_and_counts_at_its_most() -> None:
    budget = priced()

    async def main() -> None:
        delivery = delivery_of(Timed(["好"], takes_s=None), budget=budget)
        work = [asyncio.ensure_future(delivery.send(request(n))) for n in range(3)]
        await asyncio.sleep(1.0)
        for task in work:
            task.cancel()
        await asyncio.gather(*work, return_exceptions=True)
        assert delivery.throttle.in_flight == 0

    fast_time.run(main())
    assert spent(budget) == (0, 0, 3) and budget.ledger.usd > 3 * 4000 / 1e6


def test_calls_that_a_silent_endpoint_took_are_not_counted_as_free() -> None:
    budget = priced()
    backend = Timed(["好"], takes_s=None, lives=False)
    fast_time.run(send_all(delivery_of(backend, cap=3, budget=budget), range(10)))
    calls, unsure, unsettled = spent(budget)
    assert calls == 0 and unsure + unsettled == 3 and budget.ledger.usd > 0


def test_at_the_cap_what_is_under_way_comes_home_first() -> None:
    backend = Timed(lambda r: "好", takes_s=1.0)
    delivery = delivery_of(backend, cap=4, budget=Budget(max_calls=6))
    ends = fast_time.run(send_all(delivery, range(20)))
    assert [type(end) for end in ends] == [Reply] * 6 + [BudgetReached] * 14
    assert len(backend.sent) == 6


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


@pytest.mark.parametrize("release_first", [True, False])
def test_the_slot_of_a_waiter_that_is_cancelled_in_the_same_moment_goes_to_the_next(release_first) -> None:
    async def main() -> None:
        throttle, load = Throttle(1), Load()
        await throttle.acquire()
        first, second = (asyncio.ensure_future(load.use(throttle, n)) for n in (1, 2))
        await asyncio.sleep(0)
        for act in (throttle.release, first.cancel) if release_first else (first.cancel, throttle.release):
            act()
        await second
        with pytest.raises(asyncio.CancelledError):
            await first
        assert load.order == [2] and throttle.in_flight == 0

    fast_time.run(main())


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
