"""Counts of one chat in this process; what the whole run has spent stands in `budget`."""

import time
from collections import Counter, deque
from typing import Any

from memecmd_utils.llm_types import Reply

WINDOW_S = 30.0
"""Over which the speed of the live line is measured."""


class Usage:
    """Calls, replays, tokens, money, retries and outcomes."""

    def __init__(self) -> None:
        self.calls = self.replayed = self.tokens_in = self.tokens_out = self.think_characters = 0
        self.usd = 0.0
        self.outcomes: Counter[str] = Counter()
        self.retries: Counter[str] = Counter()
        self._recent: deque[tuple[float, int]] = deque()
        self._recent_tokens = 0

    def add(self, reply: Reply, usd: float) -> None:
        """Count one live reply."""
        self.tokens_in += reply.tokens_in
        self.tokens_out += reply.tokens_out
        self.think_characters += reply.think_characters
        self.usd += usd
        now = time.monotonic()
        self._recent.append((now, reply.tokens_out))
        self._recent_tokens += reply.tokens_out
        while self._recent[0][0] < now - WINDOW_S:
            self._recent_tokens -= self._recent.popleft()[1]

    @property
    def tokens_per_second(self) -> float:
        """Tokens that came back a second, lately."""
        if len(self._recent) < 2:
            return 0.0
        # The first only marks when the time began.
        tokens = self._recent_tokens - self._recent[0][1]
        return tokens / max(time.monotonic() - self._recent[0][0], 1.0)

    def as_dict(self) -> dict[str, Any]:
        """Figures for the report."""
        return {
            "calls": self.calls,
            "replayed": self.replayed,
            "tokens_in": self.tokens_in,
            "tokens_out": self.tokens_out,
            "think_characters": self.think_characters,
            "usd": round(self.usd, 6),
            "outcomes": dict(sorted(self.outcomes.items())),
            "retries": dict(sorted(self.retries.items())),
        }
