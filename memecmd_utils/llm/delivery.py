"""Gets a request to a backend and its reply back: slots, budget, and the one layer of retries.

`Chat` decides what to ask; here it is only decided when, and how often, until a reply is there.
"""

import asyncio
import contextlib
import math
import random
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from memecmd_utils.llm.budget import Budget
from memecmd_utils.llm.messages import (
    Backend,
    EndpointError,
    InDoubt,
    Reply,
    Request,
    RequestRejected,
    TransientFault,
)
from memecmd_utils.llm.usage import Usage

SUSPECT_AFTER = 10
"""Faults in a row. With 20 % of calls failing at random this happens once in ten million calls."""
SURE_AFTER = 3
"""Fewer faults in a row never end a run."""


class Throttle:
    """Slots of one endpoint. `acquire` a slot, then tell how it went, then `release`."""

    def __init__(
        self, cap: int, dead_after_s: float = 50.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.cap, self.dead_after_s, self.clock = cap, dead_after_s, clock
        self.in_flight = self.successes = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._faults = 0
        self._answered_at = float("-inf")
        self._silent_since: float | None = None
        self._asked_wait = 0.0

    @property
    def suspect(self) -> bool:
        """Whether so many faults came in a row that only one request at a time is let through."""
        return self._faults >= SUSPECT_AFTER

    @property
    def room(self) -> int:
        """How many requests may be in flight now."""
        return 1 if self.suspect else self.cap

    async def acquire(self, ahead: bool = False) -> float:
        """Wait for a slot, first come first served or `ahead` of all; return the time of its being given."""
        if self.in_flight >= self.room or self._waiting:
            turn = asyncio.get_running_loop().create_future()
            (self._waiting.appendleft if ahead else self._waiting.append)(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():  # it was given to us just now
                    self.release()
                else:
                    with contextlib.suppress(ValueError):  # a release may have passed over it just now
                        self._waiting.remove(turn)
                raise
        else:
            self.in_flight += 1
        return self.clock()

    def release(self) -> None:
        """Give a slot back and wake whoever may go."""
        self.in_flight -= 1
        while self._waiting and self.in_flight < self.room:
            turn = self._waiting.popleft()
            if not turn.done():
                self.in_flight += 1
                turn.set_result(None)

    def succeeded(self) -> None:
        """An answer came."""
        self.successes += 1
        self._answered_at = self.clock()
        self._faults, self._silent_since, self._asked_wait = 0, None, 0.0

    def failed(self, sent_at: float, wait_s: float | None, kind: str) -> None:
        """A fault came for a request sent at `sent_at`. Raises `EndpointError` once the endpoint is dead."""
        now = self.clock()
        self._faults += 1
        self._asked_wait = max(self._asked_wait, wait_s or 0.0)
        if self._silent_since is None:
            # What was sent long ago may fail although others were answered meanwhile.
            self._silent_since = max(sent_at, self._answered_at)
        silent = now - self._silent_since
        if self._faults >= SURE_AFTER and silent >= self.dead_after_s + self._asked_wait:
            raise EndpointError(
                f"the endpoint has not answered for {silent:.0f} s ({self._faults} faults in a row, the "
                f"last: {kind}). What was accepted is recorded: run again to go on. Where it is only slow to "
                "come back, raise `dead_after_s` of the endpoint"
            )


MAX_TRIES = 10
"""Of one request, while others get through. With 20 % of calls failing at random: one in ten million."""
FIRST_WAIT_S, LONGEST_WAIT_S = 0.5, 4.0
"""Ten tries end within 42 s: one request that always fails is given up before its endpoint is."""
MAX_DOUBTS = 3
"""Neutral requests for one request: its form may be given up and the next one be in doubt, too."""
PROBE_GAP_S = 1.0
"""Between two requests to an endpoint that may be dead."""
WATCH_SHARE, LOOK_SHARE = 0.4, 0.25
"""Of `dead_after_s`: when a request that waits looks for a sign of life; how long each of two looks takes."""


class NoSignOfLife(EndpointError):
    """The endpoint took requests, so they may be paid for, but it answers nothing at all."""


class Delivery:
    """Sends requests of one chat; any number of coroutines may wait for `send` at once."""

    def __init__(
        self,
        backend: Backend,
        throttle: Throttle,
        budget: Budget,
        usage: Usage,
        sleep: Callable[[float], Any] = asyncio.sleep,
    ) -> None:
        self.backend, self.throttle, self.budget, self.usage = backend, throttle, budget, usage
        self._sleep = sleep
        self._dead: EndpointError | None = None
        self._pauses: set[asyncio.Future[Any]] = set()
        self._probe: asyncio.Task[None] | None = None
        self._neutral: dict[str, asyncio.Task[Reply]] = {}

    async def send(
        self, request: Request, may_go: Callable[[], None] = lambda: None, ahead: bool = False
    ) -> Reply:
        """Return the reply to `request`, after as many tries as it takes.

        A request that fails time and again while others get through, or that the endpoint rejects, comes
        back as a reply with `finish_reason` `failed` or `rejected`. Raises `EndpointError` when the endpoint
        is dead or set up wrongly, and `BudgetReached`. `may_go` is called before every try and may raise;
        `ahead` lets it pass those that wait for a slot.
        """
        tries, faults, answered, doubts = 0, 0, self.throttle.successes, 0
        while True:
            outcome = await self._try(request, may_go, ahead)
            if isinstance(outcome, Reply):
                return outcome
            if isinstance(outcome, InDoubt):
                doubts += 1
                if doubts <= MAX_DOUBTS and await self._confirm(outcome, may_go):
                    continue
                return Reply(text=str(outcome), finish_reason="rejected")
            faults += 1
            # A rate limit says that the endpoint works: it costs the request no try.
            tries += not outcome.limited or self.throttle.successes == answered
            if tries >= MAX_TRIES:
                if self.throttle.successes == answered:
                    raise EndpointError(
                        f"the endpoint did not answer {MAX_TRIES} tries of {request.task} {request.subject}; "
                        f"the last fault was {outcome.kind}. What was accepted is recorded: run again to "
                        "go on"
                    )
                return Reply(text=f"{tries} tries, the last: {outcome.kind}", finish_reason="failed")
            self.usage.retries[outcome.kind] += 1
            back_off = min(LONGEST_WAIT_S, FIRST_WAIT_S * 2 ** min(faults - 1, 10))
            # The slot is free while we wait. Jitter parts requests that failed together.
            wait = outcome.wait_s if outcome.wait_s is not None else back_off
            await self._pause(wait + random.uniform(0.0, 0.5) * back_off)

    async def _confirm(self, doubt: InDoubt, may_go: Callable[[], None]) -> bool:
        """Send a neutral request, counted and paid for like any other, and say whether it got through.

        Requests in the same doubt share it. Raises `EndpointError` where it is refused as well.
        """
        task = self._neutral.get(doubt.way)
        if task is None:
            task = asyncio.ensure_future(self.send(doubt.neutral, may_go, ahead=True))
            self._neutral[doubt.way] = task
            # Nobody may be left to hear of it.
            task.add_done_callback(lambda task: task.cancelled() or task.exception())
            task.add_done_callback(lambda _: self._neutral.pop(doubt.way))
        await asyncio.wait({task})
        return task.result().finish_reason != "failed"

    def stop_waiting(self) -> None:
        """Wake every request that waits for its next try, because there will be none."""
        for pause in self._pauses:
            pause.cancel()

    async def _pause(self, seconds: float) -> None:
        pause = asyncio.ensure_future(self._sleep(seconds))
        self._pauses.add(pause)
        try:
            await pause
        except asyncio.CancelledError:
            if asyncio.current_task().cancelling():  # we are cancelled, not only woken
                pause.cancel()
                raise
        finally:
            self._pauses.discard(pause)

    def _check(self, may_go: Callable[[], None]) -> None:
        may_go()
        if self._dead is not None:
            raise self._dead.with_traceback(None)

    async def _try(
        self, request: Request, may_go: Callable[[], None], ahead: bool
    ) -> Reply | TransientFault | InDoubt:
        sent_at = await self.throttle.acquire(ahead)
        try:
            self._check(may_go)
            reserved = await self.budget.reserve(request, self.backend.in_bulk)
            try:
                self._check(may_go)  # the run may have stopped while we waited for money
            except BaseException:
                self.budget.release(reserved)
                raise
            self.usage.calls += 1
            fault: TransientFault | None = None
            try:
                reply = await self._exchange(request)
            except TransientFault as error:
                fault = error
            except (RequestRejected, InDoubt) as refusal:  # what is refused is not paid for
                self.budget.release(reserved)
                self.throttle.succeeded()
                if isinstance(refusal, InDoubt):
                    return refusal
                return Reply(text=str(refusal), finish_reason="rejected")
            except (asyncio.CancelledError, NoSignOfLife):
                self.budget.abandon(reserved)
                raise
            except BaseException as error:
                paid = isinstance(error, EndpointError) and error.paid
                (self.budget.settle_unsure if paid else self.budget.release)(reserved)
                raise
            if fault is not None:
                (self.budget.settle_unsure if fault.paid else self.budget.release)(reserved)
                self.throttle.failed(sent_at, fault.wait_s, fault.kind)
                if self.throttle.suspect:  # with the slot held: the others wait behind this probe
                    await self._pause(PROBE_GAP_S)
                return fault
            self.budget.settle(reserved, reply)
            self.throttle.succeeded()
            self.usage.add(reply, self.budget.price(reply.tokens_in, reply.tokens_out))
            return reply
        except EndpointError as error:
            self._dead = error
            self.stop_waiting()
            raise
        finally:
            self.throttle.release()

    async def _exchange(self, request: Request) -> Reply:
        """One exchange, given up early when the endpoint shows no sign of life at all."""
        exchange = asyncio.ensure_future(self.backend.complete(request))
        patience = self.throttle.dead_after_s
        watch_s = WATCH_SHARE * patience if math.isfinite(patience) else None
        try:
            while True:
                answered = self.throttle.successes
                done, _ = await asyncio.wait({exchange}, timeout=watch_s)
                if done:
                    return exchange.result()
                if self.throttle.successes == answered:
                    look = self._look_for_life()
                    await asyncio.wait({exchange, look}, return_when=asyncio.FIRST_COMPLETED)
                    if not exchange.done() and self.throttle.successes == answered:
                        look.result()
        finally:
            if not exchange.done():
                exchange.cancel()
                await asyncio.gather(exchange, return_exceptions=True)
            elif not exchange.cancelled():
                exchange.exception()  # seen, whatever becomes of it

    def _look_for_life(self) -> asyncio.Task[None]:
        """Fails with `NoSignOfLife` if the endpoint answers nothing; requests that wait share one look."""
        if self._probe is None or self._probe.done():
            self._probe = asyncio.ensure_future(self._two_looks())
            # Nobody may be left to hear of it.
            self._probe.add_done_callback(lambda task: task.cancelled() or task.exception())
        return self._probe

    async def _two_looks(self) -> None:
        loop, within_s = asyncio.get_running_loop(), LOOK_SHARE * self.throttle.dead_after_s
        for _ in range(2):
            until = loop.time() + within_s
            if await self.backend.alive(within_s):
                return
            # A refusal comes at once; a server that is being restarted gets the same time.
            await self._sleep(max(0.0, until - loop.time()))
        raise NoSignOfLife(
            "the endpoint takes requests but answers nothing, not even a list of its models: check "
            "`base_url`; where it is only slow, raise `dead_after_s`. What was accepted is recorded: run "
            "again to go on"
        )
