"""What a run has spent and the caps that stop it, and what its chats asked for."""

import asyncio
import json
import math
import os
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from memecmd_utils.llm.types import NO_REPLY, BudgetReached, Reply, Request
from memecmd_utils.settings import Endpoint

MARGIN = 1.5
"""What the next call of a task is reckoned at, in mean costs of the calls before it."""
TOKENS_PER_CHARACTER, TOKENS_OUT = 0.8, 4000
"""What a task's first call is reckoned by; the second where a request sets no limit."""
TOKENS_PER_IMAGE = 765
"""Where an endpoint does not say: four tiles of gpt-4o, between most models (170 to 260) and gpt-4o-mini."""
REMOTE_SECONDS_PER_CALL = 2.0
LOCAL_TOKENS_IN_PER_S, LOCAL_TOKENS_OUT_PER_S = 80.0, 12.0
"""Of an endpoint, and of the local model on two idle cores."""


def reckoned_seconds(
    calls: float, tokens_in: float, tokens_out: float, is_local: bool, concurrency: int, apart_s: float = 0
) -> float:
    """How long `make cost` expects so many calls with so many tokens to take; `max_rpm` has them apart."""
    if is_local:
        return tokens_in / LOCAL_TOKENS_IN_PER_S + tokens_out / LOCAL_TOKENS_OUT_PER_S
    return calls * max(REMOTE_SECONDS_PER_CALL / concurrency, apart_s)


class Spent:
    """What the answers of a run cost: a line of JSON each, to which all its processes append.

    Calls under way when a process was killed are not in it. Without `path` it is kept in memory.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path, self._bytes = path, 0
        self.rows: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
        """By stage and task: calls, tokens_in, tokens_out and usd (US dollars)."""
        self.refresh()

    def total(self, name: str) -> float:
        """The sum of one of them over all stages and tasks."""
        return sum(row[name] for row in self.rows.values())

    def refresh(self) -> None:
        """Take in what was appended since, also by other processes."""
        if self.path is None or not self.path.is_file() or self.path.stat().st_size == self._bytes:
            return
        with self.path.open("rb") as handle:
            handle.seek(self._bytes)
            new = handle.read()
        new = new[: new.rfind(b"\n") + 1]  # the last line may be half written
        self._bytes += len(new)
        for line in new.splitlines():
            with suppress(ValueError, TypeError):  # torn by a kill or a full disk
                self._count(**json.loads(line))

    def add(self, stage: str, task: str, tokens_in: int, tokens_out: int, usd: float) -> None:
        """Count one answer."""
        row = {"stage": stage, "task": task, "tokens_in": tokens_in, "tokens_out": tokens_out, "usd": usd}
        if self.path is None:
            return self._count(**row)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a+b", buffering=0) as handle:
            # A line that was torn ends here, or ours would be a part of it and not be counted.
            size = handle.seek(0, os.SEEK_END)
            handle.seek(max(size - 1, 0))
            start = b"" if handle.read(1) in (b"", b"\n") else b"\n"
            handle.write(start + json.dumps(row).encode() + b"\n")
        self.refresh()

    def _count(self, stage: str, task: str, **figures: Any) -> None:
        self.rows[stage, task].update(calls=1, **figures)


class Budget:
    """Caps and prices of one chat, held against what its run has spent.

    A cap may be passed by the calls under way, at the most.
    """

    def __init__(
        self,
        spent: Spent | None = None,
        stage: str = "",
        max_calls: int | None = None,
        max_usd: float | None = None,
        endpoint: Endpoint | None = None,
    ) -> None:
        """`endpoint` names the prices; without one calls are free."""
        self.spent, self.stage, self.max_calls, self.max_usd = spent or Spent(), stage, max_calls, max_usd
        self._endpoint = endpoint or Endpoint()
        self.open_calls, self._open_usd = 0, 0.0
        """What is under way, and what that is expected to cost."""
        self._first: dict[str, asyncio.Event] = {}
        """Tasks whose first call is under way. It goes alone: a model that thinks shows its price by it."""

    @asynccontextmanager
    async def call(self, request: Request) -> AsyncIterator[Callable[[Reply], float]]:
        """Let a call through and give what counts its reply, and returns US dollars; or `BudgetReached`.

        A reply whose tokens the server does not count costs what was reckoned.
        """
        task = request.task
        while task in self._first:
            await self._first[task].wait()
        guess = self._guess(request)
        self._check(guess)

        def pay(reply: Reply) -> float:
            if reply.finish_reason in NO_REPLY:
                return 0.0
            usd = self._endpoint.usd(reply.tokens_in, reply.tokens_out) if reply.tokens_in else guess
            self.spent.add(self.stage, task, reply.tokens_in, reply.tokens_out, usd)
            return usd

        if is_first := self.max_usd is not None and (self.stage, task) not in self.spent.rows:
            self._first[task] = asyncio.Event()
        self.open_calls, self._open_usd = self.open_calls + 1, self._open_usd + guess
        try:
            yield pay
        finally:
            self.open_calls, self._open_usd = self.open_calls - 1, self._open_usd - guess
            if is_first:
                self._first.pop(task).set()

    def _guess(self, request: Request) -> float:
        if row := self.spent.rows.get((self.stage, request.task)):
            return MARGIN * row["usd"] / row["calls"]
        characters = sum(len(message.text) for message in request.messages)
        pictures = sum(len(message.images) for message in request.messages)
        tokens = TOKENS_PER_CHARACTER * characters + tokens_per_image(self._endpoint) * pictures
        return self._endpoint.usd(tokens, request.sampling.max_tokens or TOKENS_OUT)

    def _check(self, guess: float) -> None:
        self.spent.refresh()
        usd, calls = self.spent.total("usd"), self.spent.total("calls") + self.open_calls
        go_on = "all answers are recorded: raise it and run again to go on"
        if self.max_calls is not None and calls >= self.max_calls:
            raise BudgetReached(f"max_calls={self.max_calls} reached; {go_on}")
        if self.max_usd is not None and (usd >= self.max_usd or usd + self._open_usd + guess > self.max_usd):
            raise BudgetReached(
                f"max_usd={self.max_usd} would be exceeded by the next call (spent {usd:.4f}, counting all "
                f"commands that {self.spent.path} lists); {go_on}"
            )


def tokens_per_image(endpoint: Endpoint) -> int:
    """Of a picture, also where the endpoint does not say."""
    stated = endpoint.tokens_per_image
    return TOKENS_PER_IMAGE if stated is None else stated


def pictures_worth(width: float, height: float) -> float:
    """How many pictures within 512 x 512 pixels one of this size counts as, where a model counts tiles.

    It is fitted into 2,048 x 2,048 pixels and its shorter side into 768. Then a picture counts a third and
    each 512-pixel tile two thirds: 85 and 170 tokens of gpt-4o, 2,833 and 5,667 of gpt-4o-mini. Models that
    count area ask for no more.
    """
    scale = min(1, 2048 / max(width, height), 768 / min(width, height))
    tiles = math.prod(math.ceil(scale * edge / 512) for edge in (width, height))
    return (1 + 2 * tiles) / 3


# --- what chats asked for ----------------------------------------------------------------------------


class Usage:
    """Calls, replays, tokens, money, retries and outcomes."""

    def __init__(self) -> None:
        self.calls = self.replayed = self.tokens_in = self.tokens_out = self.think_characters = 0
        self.usd = 0.0
        self.outcomes: Counter[str] = Counter()
        self.retries: Counter[str] = Counter()


STAGES = ("annotation", "scenario", "dialogue_generation", "evaluation")


def outcome_rows(folder: Path) -> list[dict[str, Any]]:
    """What became of every question of a run: a row a stage, with all outcomes by name."""
    columns = {"calls": "calls", "replayed": "replayed", "tokens in": "tokens_in", "tokens out": "tokens_out",
               "characters of thought": "think_characters", "US dollars": "usd"}  # fmt: skip
    written = [path for path in (folder / "usage").glob("*.json") if not path.name.endswith(".keys.json")]
    written.sort(key=lambda path: ([not path.name.startswith(stage) for stage in STAGES], path.name))
    used = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in written}
    return [
        {
            "stage": stage,
            "source": counts["source"],
            "outcomes": counts_in_words(counts["outcomes"]),
            "tried again": counts_in_words(counts["retries"]) or "none",
            **{column: round(counts[name], 4) for column, name in columns.items()},
        }
        for stage, counts in used.items()
        if counts["calls"] or counts["replayed"]
    ]


def counts_in_words(counts: dict[str, int]) -> str:
    """Counts by name as words: "12 accepted, 1 refusal"."""
    return ", ".join(f"{count:,} {name}" for name, count in counts.items())
