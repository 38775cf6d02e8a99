"""Counts of one chat in this process; what the whole run has spent stands in `budget`."""

import time
from collections import Counter, deque
from typing import Any

from memecmd_utils.llm_types import Reply

WINDOW_S = 30.0
"""Over which the speed of the live line is measured."""


def added(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """Figures of two chats of one stage together."""
    out: dict[str, Any] = {}
    for name, value in second.items():
        if isinstance(value, dict):
            out[name] = dict(sorted((Counter(first.get(name, {})) + Counter(value)).items()))
        else:
            out[name] = round(first.get(name, 0) + value, 6)
    return out


class Usage:
    """Calls, replays, tokens, money, retries and outcomes."""

    def __init__(self) -> None:
        self.calls = self.replayed = self.tokens_in = self.tokens_out = self.think_characters = 0
        self.usd = 0.0
        self.outcomes: Counter[str] = Counter()
        self.retries: Counter[str] = Counter()
        self._recent: deque[tuple[int, int]] = deque()
        """Second and tokens that came in it: a fast endpoint sends thousands of replies in the window."""

    def add(self, reply: Reply, usd: float) -> None:
        """Count one live reply."""
        self.tokens_in += reply.tokens_in
        self.tokens_out += reply.tokens_out
        self.think_characters += reply.think_characters
        self.usd += usd
        second = int(time.monotonic())
        before = self._recent.pop()[1] if self._recent and self._recent[-1][0] == second else 0
        self._recent.append((second, before + reply.tokens_out))
        while self._recent[0][0] < second - WINDOW_S:
            self._recent.popleft()

    @property
    def tokens_per_second(self) -> float:
        """Tokens that came back a second, lately."""
        if not self._recent:
            return 0.0
        tokens = sum(count for _, count in self._recent)
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
