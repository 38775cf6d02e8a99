"""Money: what a run has spent, the caps that stop it, and what a profile will cost."""

import asyncio
import json
import os
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from memecmd_utils.llm.messages import BudgetReached, Reply, Request
from memecmd_utils.settings import Endpoint, Profile

if TYPE_CHECKING:
    import pandas as pd

BATCH_DISCOUNT = 0.5
"""Share of the price that a provider's batches cost."""
MARGIN = 1.5
"""What the next call of a task is reckoned at, in mean costs of the calls before it."""
TOKENS_PER_CHARACTER, TOKENS_OUT = 0.8, 4000
"""What a task's first call is reckoned by; the second where a request sets no limit."""
TOKENS_PER_IMAGE = 765
"""Where an endpoint does not say: four tiles of gpt-4o, between most models (170 to 260) and gpt-4o-mini."""
REMOTE_SECONDS_PER_CALL = 2.0
LOCAL_TOKENS_IN_PER_S, LOCAL_TOKENS_OUT_PER_S = 80.0, 12.0


@dataclass
class Row:
    """Answers of one task of one stage: how many, their tokens, US dollars."""

    calls: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    usd: float = 0.0


class Spent:
    """What the answers of a run cost: a line of JSON each, to which all its processes append.

    Calls under way when a process was killed are not in it. Without `path` it is kept in memory.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path, self._bytes = path, 0
        self.rows: dict[tuple[str, str], Row] = defaultdict(Row)
        """By stage and task."""
        self.refresh()

    @property
    def usd(self) -> float:
        """US dollars in all."""
        return sum(row.usd for row in self.rows.values())

    @property
    def calls(self) -> int:
        """Answers in all."""
        return sum(row.calls for row in self.rows.values())

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
            self._count(*json.loads(line))

    def add(self, stage: str, task: str, tokens_in: int, tokens_out: int, usd: float) -> None:
        """Count one answer."""
        if self.path is None:
            return self._count(stage, task, tokens_in, tokens_out, usd)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        line = json.dumps([stage, task, tokens_in, tokens_out, round(usd, 9)]) + "\n"
        handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(handle, line.encode())
        finally:
            os.close(handle)
        self.refresh()

    def _count(self, stage: str, task: str, tokens_in: int, tokens_out: int, usd: float) -> None:
        row = self.rows[stage, task]
        row.calls, row.usd = row.calls + 1, row.usd + usd
        row.tokens_in, row.tokens_out = row.tokens_in + tokens_in, row.tokens_out + tokens_out


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
        usd_in: float = 0.0,
        usd_out: float = 0.0,
        tokens_per_image: int | None = None,
    ) -> None:
        """Prices are US dollars per million tokens."""
        self.spent, self.stage, self.max_calls, self.max_usd = spent or Spent(), stage, max_calls, max_usd
        self._usd_in, self._usd_out = usd_in / 1e6, usd_out / 1e6
        self._tokens_per_image = TOKENS_PER_IMAGE if tokens_per_image is None else tokens_per_image
        self._open_calls, self._open_usd = 0, 0.0
        self._first: dict[str, asyncio.Future[None]] = {}
        """Tasks whose first call is under way. It goes alone: a model that thinks shows its price by it."""

    def price(self, tokens_in: float, tokens_out: float) -> float:
        """US dollars for so many tokens."""
        return tokens_in * self._usd_in + tokens_out * self._usd_out

    @asynccontextmanager
    async def call(self, request: Request) -> AsyncIterator[Callable[[Reply], float]]:
        """Let a call through and give what counts its reply, and returns US dollars; or `BudgetReached`.

        A reply whose tokens the server does not count costs what was reckoned.
        """
        task, first = request.task, None
        if self.max_usd is not None:
            while task in self._first:
                await asyncio.wait({self._first[task]})
            if (self.stage, task) not in self.spent.rows:
                first = self._first[task] = asyncio.get_running_loop().create_future()
        guess = self._guess(request)

        def pay(reply: Reply) -> float:
            if reply.finish_reason in ("failed", "rejected"):
                return 0.0
            counted = reply.tokens_in or reply.tokens_out
            usd = self.price(reply.tokens_in, reply.tokens_out) if counted else guess
            self.spent.add(self.stage, task, reply.tokens_in, reply.tokens_out, usd)
            return usd

        try:
            self._check(guess)
            self._open_calls, self._open_usd = self._open_calls + 1, self._open_usd + guess
            try:
                yield pay
            finally:
                self._open_calls, self._open_usd = self._open_calls - 1, self._open_usd - guess
        finally:
            if first is not None:
                self._first.pop(task).set_result(None)

    def _guess(self, request: Request) -> float:
        if (self.stage, request.task) in self.spent.rows:
            row = self.spent.rows[self.stage, request.task]
            return MARGIN * row.usd / row.calls
        characters = sum(len(message.text) for message in request.messages)
        tokens = TOKENS_PER_CHARACTER * characters + self._tokens_per_image * pictures_of(request)
        return self.price(tokens, request.sampling.max_tokens or TOKENS_OUT)

    def _check(self, guess: float) -> None:
        self.spent.refresh()
        if self.max_calls is not None and self.spent.calls + self._open_calls >= self.max_calls:
            raise BudgetReached(
                f"max_calls={self.max_calls} reached; all answers are recorded: raise it and run again to go "
                "on"
            )
        usd = self.spent.usd + self._open_usd
        if self.max_usd is not None and (usd >= self.max_usd or usd + guess > self.max_usd):
            raise BudgetReached(
                f"max_usd={self.max_usd} would be passed by the next call (spent {self.spent.usd:.4f}); all "
                "answers are recorded: raise it and run again to go on"
            )


def pictures_of(request: Request) -> int:
    """How many pictures a request shows."""
    return sum(len(message.images) for message in request.messages)


# --- before a run -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class EstimateRow:
    """Calls, tokens, money and hours of one task of a stage."""

    stage: str
    model: str
    calls: int
    tokens_in: int
    tokens_out: int
    usd: float
    hours: float
    spent: tuple[str, str]
    """Stage and task under which `Spent` has the real figures."""


def tokens_per_image(endpoint: Endpoint) -> int:
    """Of a picture, also where the endpoint does not say."""
    stated = endpoint.tokens_per_image
    return TOKENS_PER_IMAGE if stated is None else stated


def estimate_row(
    stage: str,
    spent: tuple[str, str],
    profile: Profile,
    llm: str,
    endpoint: Endpoint,
    calls: int,
    t_in: float,
    t_out: float,
    local_model: str | None = None,
) -> EstimateRow:
    """Reckon money and hours of so many calls and tokens; what this machine answers costs no money."""
    if llm == "authored":
        return EstimateRow(stage, "authored text", 0, 0, 0, 0.0, 0.0, spent)
    if llm == "local":
        seconds = t_in / LOCAL_TOKENS_IN_PER_S + t_out / LOCAL_TOKENS_OUT_PER_S
        model, usd = local_model or profile.models.local_model, 0.0
    else:
        usd_in, usd_out = endpoint.usd_per_million_in or 0.0, endpoint.usd_per_million_out or 0.0
        usd = (t_in * usd_in + t_out * usd_out) / 1e6
        seconds = calls * REMOTE_SECONDS_PER_CALL / profile.models.concurrency
        model = endpoint.model or "(no model named)"
    hours = seconds / 3600 if calls else 0.0
    return EstimateRow(stage, model, calls, round(t_in), round(t_out), usd, hours, spent)


def with_real_usage(table: "pd.DataFrame", spent: Spent) -> "pd.DataFrame":
    """Add a total, and where the run has asked a model what its answers really took.

    What the estimate does not know of has a row of its own.
    """
    import pandas as pd

    others = [key for key in spent.rows if key not in set(table.spent)]
    rows = [EstimateRow(f"other: {' '.join(dict.fromkeys(k))}", "", 0, 0, 0, 0.0, 0.0, k) for k in others]
    table = pd.concat([table, pd.DataFrame(rows)], ignore_index=True)
    if spent.rows:
        used = [spent.rows.get(key, Row()) for key in table.spent]
        table["real_calls"] = [row.calls for row in used]
        table["real_in"] = [row.tokens_in for row in used]
        table["real_out"] = [row.tokens_out for row in used]
        table["real_usd"] = [row.usd for row in used]
    table = table.drop(columns="spent")
    total = {"stage": "total", "model": ""} | table[table.columns[2:]].sum().to_dict()
    return pd.concat([table, pd.DataFrame([total])], ignore_index=True)


def estimate_text(table: "pd.DataFrame") -> str:
    """The table for a terminal: whole calls and tokens, money to the cent or finer where it is little."""
    finest = 4 if table.filter(like="usd").to_numpy().max(initial=0.0) < 1 else 2

    def digits(name: str) -> int:
        return finest if "usd" in name else 2 if name == "hours" else 0

    formats = {name: f"{{:,.{digits(name)}f}}".format for name in table.columns[2:]}
    return table.to_string(index=False, formatters=formats)
