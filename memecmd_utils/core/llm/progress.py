"""The live line of a long loop over a model: how far, how fast, how much money so far, how long still.

In a notebook it is a bar. A headless run has no screen, so the line also goes to the file that the variable
`MEMECMD_STATUS` names, which `runner` shows in the terminal.
"""

import asyncio
import os
import time
from pathlib import Path

from tqdm.auto import tqdm

from memecmd_utils.core.llm.chat import Chat
from memecmd_utils.core.machine import STATUS_VARIABLE

EVERY_S = 1.0


class Progress:
    """Progress of one loop that asks `chat`: a context manager, for coroutines; `update` it per unit."""

    def __init__(self, chat: Chat, total: int, label: str, unit: str) -> None:
        self.chat, self.total, self.label = chat, total, label
        self.done, self._calls_before = 0, chat.usage.calls
        self._bar = tqdm(total=total, desc=label, unit=unit)
        status = os.environ.get(STATUS_VARIABLE)
        self._status = Path(status) if status else None
        self._replayed_at = time.monotonic()
        self._live_from: tuple[float, int] | None = None
        self._ticker: asyncio.Task[None] | None = None

    def __enter__(self) -> "Progress":
        self._ticker = asyncio.get_running_loop().create_task(self._tick())
        return self

    async def _tick(self) -> None:
        # Units may take minutes, and a batch hours: the line must not look dead in between.
        while True:
            await asyncio.sleep(EVERY_S)
            self._show()

    def __exit__(self, *_: object) -> None:
        self._ticker.cancel()
        self._show()
        self._bar.close()

    def update(self, n: int = 1) -> None:
        """Count `n` more units."""
        self.done += n
        now = time.monotonic()
        if self._live_from is None and self.chat.usage.calls > self._calls_before:
            # What is replayed takes no time: it must not make the rest look short.
            self._live_from = self._replayed_at, self.done - n
        elif self._live_from is None:
            self._replayed_at = now
        self._bar.update(n)

    def _show(self) -> None:
        self._bar.set_postfix_str(self.extra())
        if self._status is not None:
            # Whole or not at all is not needed here: a reader that meets half a line shows the next.
            self._status.write_text(self.line(), encoding="utf-8")

    @property
    def seconds_left(self) -> float | None:
        """Estimate from the units that the model was asked for, or None while these tell little."""
        if self._live_from is None or self.done == self._live_from[1]:
            return None
        since, first = self._live_from
        taken = time.monotonic() - since
        return taken / (self.done - first) * (self.total - self.done) if taken >= EVERY_S else None

    def line(self) -> str:
        """The whole line, for a terminal."""
        left = self.seconds_left
        parts = [f"{self.label} {self.done:,}/{self.total:,}", self.extra()]
        if left is not None and self.done < self.total:
            parts.append(f"{duration(left)} left")
        return " · ".join(part for part in parts if part)

    def extra(self) -> str:
        """Speed, money and trouble: what a bar does not say by itself."""
        usage, budget = self.chat.usage, self.chat.budget
        parts = [self.chat.backend.status] if self.chat.backend.status else []
        if usage.tokens_out:
            parts.append(f"{usage.tokens_per_second:,.0f} tokens/s")
            cap = f" of ${budget.max_usd:,.2f}" if budget.max_usd is not None else ""
            if cap or budget.ledger.usd:
                parts.append(f"${budget.ledger.usd:,.2f}{cap}")
        if usage.retries:
            parts.append(f"{sum(usage.retries.values()):,} tried again")
        if self.chat.waiting:
            parts.append(f"{self.chat.waiting:,} asked by another run")
        if self.chat.throttle.room < self.chat.throttle.cap:
            parts.append(f"{self.chat.throttle.room} of {self.chat.throttle.cap} at once")
        return " · ".join(parts)


def duration(seconds: float) -> str:
    """Seconds as a person says them."""
    minutes = round(seconds / 60)
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"
