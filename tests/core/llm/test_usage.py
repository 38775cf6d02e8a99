from collections import Counter

import pytest

from memecmd_utils.llm import usage
from memecmd_utils.llm.messages import Reply
from memecmd_utils.llm.usage import WINDOW_S, Usage


class Clock:
    now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(usage, "time", clock)
    return clock


def test_replies_are_added_up() -> None:
    counts = Usage()
    counts.add(Reply(text="x", tokens_in=5, tokens_out=2, think_characters=7), 0.25)
    counts.add(Reply(text="x", tokens_in=1, tokens_out=1), 0.0000004)
    counts.calls = 4
    counts.replayed = 3
    counts.outcomes.update(["unusable", "accepted", "accepted"])
    counts.retries.update(["status 500", "no connection"])
    assert counts.as_dict() == {
        "calls": 4,
        "replayed": 3,
        "tokens_in": 6,
        "tokens_out": 3,
        "think_characters": 7,
        "usd": 0.25,
        "outcomes": {"accepted": 2, "unusable": 1},
        "retries": {"no connection": 1, "status 500": 1},
    }
    assert list(counts.as_dict()["outcomes"]) == ["accepted", "unusable"], "the file does not jump about"


def test_the_speed_is_that_of_the_last_half_minute(clock: Clock) -> None:
    counts = Usage()
    assert counts.tokens_per_second == 0.0
    for second in range(200):
        clock.now += 1
        counts.add(Reply(text="x", tokens_out=100 if second < 100 else 10), 0.0)
    assert counts.tokens_per_second == pytest.approx(10, rel=0.05)
    assert len(counts._recent) <= WINDOW_S + 1, "and only that is remembered"


def test_the_speed_falls_while_nothing_comes(clock: Clock) -> None:
    counts = Usage()
    for _ in range(20):
        clock.now += 1
        counts.add(Reply(text="x", tokens_out=50), 0.0)
    before = counts.tokens_per_second
    clock.now += 60
    assert counts.tokens_per_second < before / 3


def test_two_chats_of_a_stage_add_up() -> None:
    first, second = usage.Usage(), usage.Usage()
    first.replayed, first.outcomes = 3, Counter(accepted=3)
    second.replayed, second.usd, second.outcomes = 2, 0.5, Counter(accepted=1, refusal=1)
    both = usage.combined(usage.combined({}, first.as_dict()), second.as_dict())
    assert both == {**second.as_dict(), "replayed": 5, "outcomes": {"accepted": 4, "refusal": 1}}
