"""How fast requests go out to one endpoint: `max_rpm` a minute at the most, and slower after a 429.

Waiting is done below the SDK, whose retries stay the only ones: what waits here was not sent. A server may
ask for a wait, in a header or in words. Where that is not enough, a refusal of a request that was alone under
way tells of a limit a minute: that many were accepted within the last one.
"""

import asyncio
import math
from collections import deque
from collections.abc import Callable
from functools import lru_cache

MINUTE_S = 62.0
"""A server's minute as we count it: answers are on their way for a while."""
FIRST_WAIT_S, GROWTH, LONGEST_WAIT_S = 1.0, 3.0, 30.0
"""After a refusal that names no wait, and after further ones in a row: 1, 3, 9, 27, 30, 30 ... seconds."""
MOST_WAIT_S = 600.0
"""A server that asks for more is not waited for."""
MOST_REFUSED, MOST_AT_FIRST = 12, 6
"""Refusals in a row that end the waiting; at first, before an answer came, one minute is all it can be."""
FASTER = 0.97
"""What each answer makes of the seconds between two requests."""
LOOK_S = 0.02, 0.5
"""How often one that waits looks up, at the least and at the most."""


class Stopped(BaseException):
    """A fault elsewhere came before this request went out. No `Exception`, which the SDK would retry."""


class Pace:
    """When the next request to an endpoint may go. Times are those of the event loop, in seconds."""

    def __init__(self, max_rpm: int | None = None) -> None:
        self.least = self.apart = MINUTE_S / max_rpm if max_rpm else 0.0
        """Between two requests: as `max_rpm` asks, and now."""
        self.at_once = math.inf
        self.ready_at = self._slowed_at = -math.inf
        self._under_way = self._refused = 0
        self._accepted: deque[float] = deque()
        """When what was accepted within the last minute was sent."""
        self._most_refused = MOST_AT_FIRST

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

    def ended(self, sent: float, answered: bool = False) -> None:
        """Count a request, sent at that time, that was answered or fared otherwise, but was not refused."""
        self._under_way -= 1
        if answered:
            self._accepted.append(sent)
            self._refused, self._most_refused = 0, MOST_REFUSED
            self.at_once += 1 / self.at_once
            self.apart = max(self.least, FASTER * self.apart)

    def refused(self, sent: float, asked: float | None) -> bool:
        """Slow down after a 429 to a request sent at that time; whether it is worth another try."""
        now, wait = asyncio.get_running_loop().time(), asked or 0.0
        self._under_way -= 1
        self.at_once = max(1, min(self.at_once, self._under_way // 2))
        if sent >= self._slowed_at:  # of requests that went out together the first tells it all
            self._slowed_at, self._refused = now, self._refused + 1
            if asked is None or self._refused > 1:
                wait = max(wait, min(LONGEST_WAIT_S, FIRST_WAIT_S * GROWTH ** (self._refused - 1)))
            while self._accepted and self._accepted[0] < now - MINUTE_S:
                self._accepted.popleft()
            limited = not self._under_way and (self._refused > 1 or self.apart > self.least)
            if limited and self._accepted:
                self.apart = max(self.least, MINUTE_S / len(self._accepted))
                self.ready_at = max(self.ready_at, self._accepted[0] + MINUTE_S)
        if wait > MOST_WAIT_S or self._refused >= self._most_refused:
            return False
        self.ready_at = max(self.ready_at, now + wait)
        return True


@lru_cache(maxsize=64)
def pace_of(url: str | None, key_env: str, max_rpm: int | None) -> Pace:
    """The one pace of an endpoint in this process, whoever asks it."""
    return Pace(max_rpm)
