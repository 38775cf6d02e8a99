"""How fast requests go out to one endpoint: `max_rpm` a minute at the most, and none for a while after a 429.

Waiting is done below the SDK, none of whose retries it uses up. A server may ask for a wait, in a header or
in words; else waits grow from refusal to refusal.
"""

import asyncio
import math
from collections.abc import Callable
from functools import lru_cache

from memecmd_utils.llm.refusals import Refusal

MINUTE_S = 62.0
"""A server's minute as we count it: answers are on their way for a while."""
FIRST_WAIT_S, GROWTH, LONGEST_WAIT_S = 1.0, 3.0, 30.0
"""After a refusal that names no wait, and after further ones in a row: 1, 3, 9, 27, 30, 30 ... seconds."""
MOST_WAIT_S, MOST_REFUSED = 600.0, 12
"""A server that asks for more is not waited for, nor one that refuses so often in a row."""
LOOK_S = 0.02, 0.5
"""How often one that waits looks up, at the least and at the most."""


class Stopped(BaseException):
    """A fault elsewhere came before this request went out. No `Exception`, which the SDK would retry."""


class Pace:
    """When the next request to an endpoint may go. Times are those of the event loop, in seconds."""

    def __init__(self, max_rpm: int | None = None) -> None:
        self.apart = MINUTE_S / max_rpm if max_rpm else 0.0
        """Between two requests."""
        self.at_once = math.inf
        """Requests under way: half as many after a refusal, and slowly more as answers come."""
        self.ready_at = self._slowed_at = -math.inf
        self._under_way = self._refused = 0

    async def turn(self, queue: asyncio.Lock, stopped: Callable[[], bool]) -> float:
        """Return when one's turn in the queue has come; or raise `Stopped` in place of waiting."""
        clock = asyncio.get_running_loop().time
        async with queue:
            while (wait := self.ready_at - clock()) > 0 or self._under_way >= self.at_once:
                if stopped():
                    raise Stopped
                await asyncio.sleep(min(max(wait, LOOK_S[0]), LOOK_S[1]))
            self.ready_at = clock() + self.apart
            self._under_way += 1
        return clock()

    def ended(self, sent: float, meant: Refusal) -> bool:
        """Count what a request of that time was answered; whether it was refused and is worth another try."""
        self._under_way -= 1
        if meant.status != 429:
            if meant.status == 200:
                self._refused, self.at_once = 0, self.at_once + 1 / self.at_once
            return False
        now, wait = asyncio.get_running_loop().time(), meant.wait or 0.0
        self.at_once = max(1, min(self.at_once, self._under_way // 2))
        if sent >= self._slowed_at:  # of requests that went out together the first tells it all
            self._slowed_at, self._refused = now, self._refused + 1
            if meant.wait is None or self._refused > 1:
                wait = max(wait, min(LONGEST_WAIT_S, FIRST_WAIT_S * GROWTH ** (self._refused - 1)))
        if wait > MOST_WAIT_S or self._refused >= MOST_REFUSED:
            return False
        self.ready_at = max(self.ready_at, now + wait)
        return True


@lru_cache(maxsize=64)
def pace_of(url: str | None, key_env: str, max_rpm: int | None) -> Pace:
    """The one pace of an endpoint in this process, whoever asks it."""
    return Pace(max_rpm)
