"""What a run spends on models: a ledger on disk that outlives a kill, and the caps that are held against it.

A call is entered at the most it can cost *before* it is sent, and settled when its answer is there. What
was never settled, because the process was killed, counts at that most: the caps are never passed.
"""

import asyncio
import fcntl
import json
import secrets
from collections import Counter
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from memecmd_utils.llm_types import BudgetReached, Reply, Request

BATCH_DISCOUNT = 0.5
"""Share of the price that OpenAI's Batch API takes."""
TOKENS_OUT = 4000
"""Longest reply that is reckoned with where a request sets no limit, or the endpoint drops it."""
TOKENS_PER_MESSAGE = 8
"""What a chat template puts around a message."""


@dataclass
class Spent:
    """Totals of one task of one stage."""

    calls: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    usd: float = 0.0
    unsure_calls: int = 0
    unsure_usd: float = 0.0
    """Calls whose answer did not arrive whole: they may have been paid for, and count as such."""


@dataclass(frozen=True)
class Reservation:
    """A call that is entered in the ledger and not settled yet."""

    name: str
    stage: str
    task: str
    usd: float
    tokens_in: int
    """Our own count, before what was learned of the endpoint's."""


@dataclass
class Ledger:
    """All calls of a run, from every process that works on it; in memory only where `path` is None.

    Lines are `{"r": name, "stage", "task", "usd"}` for a reservation and `{"s": name, ...}` when it is
    settled. They are appended under a lock; each process reads what others have appended since.
    """

    path: Path | None = None
    open: dict[str, tuple[str, str, float]] = field(default_factory=dict)
    """Unsettled reservations of all processes: name -> stage, task, the most it can cost."""
    _open_usd: float = 0.0
    """Their sum: a batch holds tens of thousands of them open."""
    spent: dict[tuple[str, str], Spent] = field(default_factory=dict)
    _offset: int = 0
    _handle: Any = None

    def __post_init__(self) -> None:
        self.writer = secrets.token_hex(4)
        self._count = 0
        if self.path is not None and self.path.is_file():
            self._open()
            self._locked(lambda: None)

    @property
    def usd(self) -> float:
        """Money that is or may be spent, in US dollars."""
        settled = sum(s.usd + s.unsure_usd for s in self.spent.values())
        return settled + (self._open_usd if self.open else 0.0)

    @property
    def calls(self) -> int:
        """Calls that are or may be paid for."""
        return sum(s.calls + s.unsure_calls for s in self.spent.values()) + len(self.open)

    def reserve(
        self, stage: str, task: str, usd: float, tokens_in: int, max_calls: int | None, max_usd: float | None
    ) -> Reservation | None:
        """Enter a call of at most `usd`, or return None if a cap would be passed by it."""

        def enter() -> dict[str, Any] | None:
            if max_calls is not None and self.calls >= max_calls:
                return None
            # A cap of 0 dollars allows no call, also where calls are free.
            if max_usd is not None and (self.usd >= max_usd or self.usd + usd > max_usd):
                return None
            self._count += 1
            return {"r": f"{self.writer}-{self._count}", "stage": stage, "task": task, "usd": usd}

        line = self._locked(enter)
        return None if line is None else Reservation(line["r"], stage, task, usd, tokens_in)

    def settle(
        self, reservation: Reservation, usd: float, tokens_in: int, tokens_out: int, sure: bool = True
    ) -> None:
        """Write down what a call cost; `sure=False` where its answer did not arrive whole."""
        line = {"s": reservation.name, "in": tokens_in, "out": tokens_out, "usd": usd}
        self._locked(lambda: line if sure else {**line, "unsure": True})

    def release(self, reservation: Reservation) -> None:
        """Take a call back that certainly was not paid for."""
        self._locked(lambda: {"s": reservation.name, "free": True})

    def release_abandoned(self, stage: str) -> None:
        """Take back the calls that killed processes left open in `stage`.

        Only where what was under way is not lost, as with batches: it is attached to again and counted then.
        The caller sees to it that no other process works on the stage.
        """
        for name, (of_stage, _, _) in list(self.open.items()):
            if of_stage == stage and not name.startswith(self.writer):
                self._locked(lambda name=name: {"s": name, "free": True})

    def close(self) -> None:
        """Release the file."""
        if self._handle is not None:
            self._handle.close()
            self._handle = None

    def _locked(self, make: Any) -> dict[str, Any] | None:
        """Take in what others wrote, then make, apply and append a line, all under the file's lock."""
        if self.path is None:
            line = make()
            if line is not None:
                self._apply(line)
            return line
        if self._handle is None:
            self._open()
        fcntl.flock(self._handle, fcntl.LOCK_EX)
        try:
            self._take_in()
            line = make()
            if line is not None:
                self._apply(line)
                data = (json.dumps(line) + "\n").encode()
                self._handle.write(data)
                self._handle.flush()
                self._offset += len(data)
            return line
        finally:
            fcntl.flock(self._handle, fcntl.LOCK_UN)

    def _open(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._handle = self.path.open("ab+")

    def _take_in(self) -> None:
        end = self._handle.seek(0, 2)
        if end == self._offset:
            return
        self._handle.seek(self._offset)
        whole, _, torn = self._handle.read().rpartition(b"\n")
        if torn:  # cut by a kill; whoever holds the lock next cuts it off
            self._handle.truncate(end - len(torn))
        for raw in whole.split(b"\n") if whole else ():
            self._apply(json.loads(raw))
        self._offset = end - len(torn)

    def _apply(self, line: dict[str, Any]) -> None:
        if "r" in line:
            self.open[line["r"]] = (line["stage"], line["task"], line["usd"])
            self._open_usd += line["usd"]
            return
        stage, task, usd = self.open.pop(line["s"])
        self._open_usd -= usd
        if line.get("free"):
            return
        spent = self.spent.setdefault((stage, task), Spent())
        if line.get("unsure"):
            spent.unsure_calls += 1
            spent.unsure_usd += line["usd"]
        else:
            spent.calls += 1
            spent.usd += line["usd"]
            spent.tokens_in += line["in"]
            spent.tokens_out += line["out"]


class Budget:
    """Caps and prices of one chat, held against the ledger of its run."""

    def __init__(
        self,
        ledger: Ledger | None = None,
        stage: str = "",
        max_calls: int | None = None,
        max_usd: float | None = None,
        usd_in: float = 0.0,
        usd_out: float = 0.0,
        tokens_per_image: int = 0,
        unbounded: bool = False,
    ) -> None:
        """Prices are US dollars per million tokens; `unbounded` where the endpoint drops `max_tokens`."""
        self.ledger = ledger or Ledger()
        self.stage, self.max_calls, self.max_usd = stage, max_calls, max_usd
        self._usd_in, self._usd_out = usd_in / 1e6, usd_out / 1e6
        self._tokens_per_image, self._unbounded = tokens_per_image, unbounded
        self._mine = 0
        self._waiting: list[asyncio.Future[None]] = []
        self._underestimate: Counter[str] = Counter()

    def price(self, tokens_in: int, tokens_out: int) -> float:
        """US dollars for so many tokens."""
        return tokens_in * self._usd_in + tokens_out * self._usd_out

    async def reserve(self, request: Request) -> Reservation:
        """Set aside the most that a call can cost; wait for our own calls in flight where that is too much.

        Raises `BudgetReached` when nothing of ours is in flight and the cap would still be passed.
        """
        tokens_in = tokens_at_most(request, self._tokens_per_image)
        reckoned = tokens_in + round(tokens_in * self._underestimate[request.task])
        out = None if self._unbounded else request.sampling.max_tokens
        usd = self.price(reckoned, out or TOKENS_OUT)
        while True:
            made = self.ledger.reserve(self.stage, request.task, usd, tokens_in, self.max_calls, self.max_usd)
            if made is not None:
                self._mine += 1
                return made
            if self._mine == 0:
                raise BudgetReached(self._why())
            one_settled = asyncio.get_running_loop().create_future()
            self._waiting.append(one_settled)
            await one_settled

    def settle(self, reservation: Reservation, reply: Reply) -> None:
        """Enter what a reply cost by the endpoint's own count of tokens."""
        if reply.tokens_in > reservation.tokens_in:
            # The endpoint counts more than we did (images): the next calls of the task reckon with it.
            more = reply.tokens_in / max(1, reservation.tokens_in) - 1
            self._underestimate[reservation.task] = max(self._underestimate[reservation.task], more)
        usd = self.price(reply.tokens_in, reply.tokens_out)
        if not reply.tokens_in and not reply.tokens_out and reply.finish_reason != "content_filter":
            usd = reservation.usd  # the endpoint does not count: nobody knows what it cost
        self.ledger.settle(reservation, usd, reply.tokens_in, reply.tokens_out)
        self._one_less()

    def settle_unsure(self, reservation: Reservation) -> None:
        """Enter a call whose answer did not arrive whole, at the most that it can have cost."""
        self.ledger.settle(reservation, reservation.usd, 0, 0, sure=False)
        self._one_less()

    def release(self, reservation: Reservation) -> None:
        """Take back a call that was certainly not paid for."""
        self.ledger.release(reservation)
        self._one_less()

    def abandon(self, reservation: Reservation) -> None:
        """Leave a cancelled call unsettled: it may have been paid for."""
        self._one_less()

    def _one_less(self) -> None:
        self._mine -= 1
        waiting, self._waiting = self._waiting, []
        for one_settled in waiting:
            if not one_settled.done():
                one_settled.set_result(None)

    def _why(self) -> str:
        if self.max_calls is not None and self.ledger.calls >= self.max_calls:
            cap = f"max_calls={self.max_calls}"
            return f"{cap} reached; all answers are recorded: raise it and run again to go on"
        unsure = sum(s.unsure_usd for s in self.ledger.spent.values())
        unsure += sum(usd for _, _, usd in self.ledger.open.values())
        extra = f", of it {unsure:.4f} for calls that were cut off and may have been paid" if unsure else ""
        return (
            f"max_usd={self.max_usd} would be passed by the next call (spent {self.ledger.usd:.4f}{extra}); "
            "all answers are recorded: raise it and run again to go on"
        )


def tokens_at_most(request: Request, tokens_per_image: int) -> int:
    """Upper bound of a request's input tokens: byte-level vocabularies have no token below a byte."""
    total = sum(
        _bytes(m.text) + TOKENS_PER_MESSAGE + tokens_per_image * len(m.images) for m in request.messages
    )
    if request.reply_schema is not None:
        total += _schema_bytes(request.reply_schema)
    return total


@lru_cache(maxsize=256)
def _bytes(text: str) -> int:
    # Most messages of a request, the worked examples, are those of the request before.
    return len(text.encode())


@lru_cache(maxsize=64)
def _schema_bytes(schema: type[BaseModel]) -> int:
    return len(json.dumps(schema.model_json_schema()))
