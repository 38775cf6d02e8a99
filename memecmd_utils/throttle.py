"""How many requests are in flight at one endpoint, and when an endpoint counts as dead.

After ten faults in a row one request at a time goes out as a probe, and without any answer for
`dead_after_s` the run ends with one message.
"""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable

from memecmd_utils.llm_types import EndpointError

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
        self._wake()

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

    def _wake(self) -> None:
        while self._waiting and self.in_flight < self.room:
            turn = self._waiting.popleft()
            if not turn.done():
                self.in_flight += 1
                turn.set_result(None)
