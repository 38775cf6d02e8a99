"""Money: what a call can cost and whether it may go, what a run has spent, and what a profile will cost.

A call is entered in the run's ledger at the most it can cost *before* it is sent, and settled when its answer
is there. What was never settled, because the process was killed, counts at that most. Where an endpoint bills
more than was reckoned (thoughts beyond `max_tokens`, large pictures), every call from then on, also of a
later process, is reckoned by what it billed.
"""

import asyncio
import contextlib
import json
import math
import os
import secrets
import sqlite3
import weakref
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel

from memecmd_utils.files import MemecmdError
from memecmd_utils.llm.messages import BudgetReached, Reply, Request
from memecmd_utils.settings import Endpoint, Profile

if TYPE_CHECKING:
    import pandas as pd

PICTURE_AT_MOST = 8_500
"""Tokens of a picture of one tile where nobody said how many: what gpt-4o-mini counts, more than any other
model of OpenAI (2,833 for a picture and 5,667 for each tile; gpt-4o: 85 and 170)."""
AS_MUCH_AGAIN = 2.0
"""Replies and pictures differ in size: once they passed what was reckoned, the next may pass this one."""
AT_RISK = 0.001
"""Share of a cap by which a power cut may let it be passed."""
LOCKED_S = 60.0
"""How long a call waits for another process that writes; that takes a fraction of a millisecond."""


class LedgerError(MemecmdError, RuntimeError):
    """The ledger cannot be read or written, so nobody can say whether a cap is reached."""


@dataclass(frozen=True)
class CallBound:
    """The most that a call takes by our own count, and US dollars for one token in and out."""

    tokens_in: int
    """Of the texts."""
    usd_in: float = 0.0
    tokens_out: int = 0
    usd_out: float = 0.0
    pictures: float = 0.0
    """Sum over the pictures of `budget.picture_size`."""
    tokens_per_image: int | None = None
    """Of a picture of size 1, as the profile says; None: not said."""


@dataclass
class Spent:
    """What the calls of one task of one stage cost, and what their answers have shown."""

    calls: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    usd: float = 0.0
    unsure_calls: int = 0
    unsure_usd: float = 0.0
    """Calls whose answer did not arrive whole: they may have been paid for, and count as such."""
    open_calls: int = 0
    open_usd: float = 0.0
    """Calls without an answer yet, and those that a killed process left so."""
    answered: bool = False
    """Whether an answer came with the endpoint's counts."""
    text: float = 1.0
    """Tokens that the endpoint counts for one of ours, where that is more."""
    out: float = 1.0
    """Tokens of a reply for one that was reckoned, where that is more."""
    picture: int = 0
    """Most tokens of a call with pictures, divided by their size."""
    beyond: bool = False
    """Whether pictures took more than the profile says."""

    def reckon(self, most: CallBound) -> float:
        """The most that a call costs, by what is known now."""
        each = AS_MUCH_AGAIN * self.picture
        if most.tokens_per_image is None:
            each = each or PICTURE_AT_MOST
        else:
            each = max(most.tokens_per_image, each if self.beyond else 0)
        tokens_in = most.tokens_in * self.text + most.pictures * each
        return tokens_in * most.usd_in + most.tokens_out * self.out * most.usd_out

    def settle(self, most: CallBound, usd: float, tokens_in: int, tokens_out: int, sure: bool) -> bool:
        """Count a call that is over; returns whether calls are reckoned otherwise from now on."""
        if not sure:
            self.unsure_calls += 1
            self.unsure_usd += usd
            return False
        self.calls += 1
        self.usd += usd
        self.tokens_in += tokens_in
        self.tokens_out += tokens_out
        before = (self.text, self.out, self.picture, self.beyond)
        self.answered |= tokens_in > 0 or tokens_out > 0
        if most.pictures:
            stated = math.inf if most.tokens_per_image is None else most.tokens_per_image
            self.beyond |= tokens_in > most.tokens_in + most.pictures * stated
            self.picture = max(self.picture, math.ceil(tokens_in / most.pictures))
        elif tokens_in > most.tokens_in > 0:
            self.text = max(self.text, tokens_in / most.tokens_in)
        if tokens_out > most.tokens_out > 0:
            self.out = max(self.out, AS_MUCH_AGAIN * tokens_out / most.tokens_out)
        return before != (self.text, self.out, self.picture, self.beyond)


Rows = defaultdict[tuple[str, str], Spent]
"""By stage and task."""
COLUMNS = [one.name for one in fields(Spent)]
TABLES = (
    f"create table spent (stage, task, {', '.join(COLUMNS)}, primary key (stage, task)) without rowid",
    "create table open (name primary key, stage, task, usd, most) without rowid",
)
STORE = f"replace into spent values ({', '.join('?' * (2 + len(COLUMNS)))})"


@dataclass(frozen=True)
class Reservation:
    """A call that is entered in the ledger and not settled yet."""

    name: str
    stage: str
    task: str
    usd: float
    """What it was reckoned at when it was entered."""


class Ledger:
    """All calls of a run, from every process that works on it; in memory only where `path` is None.

    Table `spent` has a row for each stage and task, `open` one for each call that is not settled. Nothing is
    written before the first call. `shared`: several machines write it, in a folder that they share.
    """

    def __init__(self, path: Path | None = None, shared: bool = False) -> None:
        self.path = path
        self._writer, self._count = secrets.token_hex(4), 0
        self._at_risk_usd = self._at_risk_calls = 0.0
        self._shared = shared
        self._open()

    @property
    def rows(self) -> Rows:
        """Every stage and task in which a call was entered."""
        with self._named_faults():
            stored = self._db.execute("select * from spent").fetchall()
        return defaultdict(Spent, {(stage, task): Spent(*values) for stage, task, *values in stored})

    @property
    def spent(self) -> dict[tuple[str, str], Spent]:
        """Stages and tasks of which a call was settled."""
        return {key: row for key, row in self.rows.items() if row.calls or row.unsure_calls}

    @property
    def usd(self) -> float:
        """Money that is or may be spent, in US dollars."""
        return _usd(self.rows)

    @property
    def unsure_usd(self) -> float:
        """The most that calls without a whole answer can have cost."""
        return sum(row.unsure_usd + row.open_usd for row in self.rows.values())

    @property
    def calls(self) -> int:
        """Calls that are or may be paid for."""
        return _calls(self.rows)

    @property
    def open_calls(self) -> int:
        """Calls of all processes that are not settled."""
        return sum(row.open_calls for row in self.rows.values())

    def reserve(
        self,
        stage: str,
        task: str,
        most: CallBound,
        max_calls: int | None = None,
        max_usd: float | None = None,
        unproven: float = 0.0,
    ) -> Reservation | None:
        """Enter a call, or return None if a cap would be passed by it.

        Until the task has an answer, `unproven` times what its open calls and this one are reckoned at must
        fit in the cap as well; 0 where that does not matter.
        """
        with self._transaction(stage, task) as (rows, row):
            usd, known = row.reckon(most), _usd(rows)
            if max_calls is not None and _calls(rows) >= max_calls:
                return None
            if max_usd is not None:
                # A cap of 0 dollars allows no call, also where calls are free.
                if known >= max_usd or known + usd > max_usd:
                    return None
                if (
                    unproven
                    and not row.answered
                    and known + unproven * usd + (unproven - 1) * row.open_usd > max_usd
                ):
                    return None
            self._count += 1
            reservation = Reservation(f"{self._writer}-{self._count}", stage, task, usd)
            values = (reservation.name, stage, task, usd, json.dumps([*vars(most).values()]))
            self._db.execute("insert into open values (?, ?, ?, ?, ?)", values)
            row.open_calls += 1
            row.open_usd += usd
        self._at_risk_usd, self._at_risk_calls = self._at_risk_usd + usd, self._at_risk_calls + 1
        risk = self._at_risk_usd / max_usd if max_usd else 0.0
        if max(risk, self._at_risk_calls / max_calls if max_calls else 0.0) > AT_RISK:
            self._sync()
        return reservation

    def settle(
        self, reservation: Reservation, usd: float | None, tokens_in: int, tokens_out: int, sure: bool = True
    ) -> None:
        """Write down what a call cost; `usd` None: nobody knows, so the most that it is reckoned at by now.

        `sure=False` where its answer did not arrive whole.
        """
        key = reservation.stage, reservation.task
        with self._transaction(*key) as (_, row):
            reckoned, most = self._take_out(reservation, row)
            if row.settle(most, reckoned if usd is None else usd, tokens_in, tokens_out, sure):
                # What was learned holds for the calls that are under way, too.
                others = "select name, most from open where stage = ? and task = ?"
                anew = [(row.reckon(_most(m)), name) for name, m in self._db.execute(others, key).fetchall()]
                self._db.executemany("update open set usd = ? where name = ?", anew)
                row.open_usd = sum(usd for usd, _ in anew)

    def release(self, reservation: Reservation) -> None:
        """Take a call back that certainly was not paid for."""
        with self._transaction(reservation.stage, reservation.task) as (_, row):
            self._take_out(reservation, row)

    def release_abandoned(self, stage: str) -> None:
        """Take back the calls that killed processes left open in `stage`.

        Only where what was under way is not lost, as with batches: it is attached to again and counted then.
        The caller sees to it that no other process works on the stage.
        """
        which = "from open where stage = ? and task = ? and name not like ?"
        for _, task in [key for key in self.rows if key[0] == stage]:
            with self._transaction(stage, task) as (_, row):
                values = stage, task, f"{self._writer}-%"
                ((calls, usd),) = self._db.execute(f"select count(*), total(usd) {which}", values).fetchall()
                self._db.execute(f"delete {which}", values)
                row.open_calls, row.open_usd = row.open_calls - calls, row.open_usd - usd

    def _take_out(self, reservation: Reservation, row: Spent) -> tuple[float, CallBound]:
        """What an open call is reckoned at by now, and its most."""
        out = "delete from open where name = ? returning usd, most"
        ((usd, most),) = self._db.execute(out, (reservation.name,)).fetchall()
        row.open_calls -= 1
        row.open_usd = row.open_usd - usd if row.open_calls else 0.0
        return usd, _most(most)

    def _sync(self) -> None:
        """Have the disk keep what was written so far, also through a power cut; takes milliseconds.

        A call in a thousand needs it where a cap is far, and every call where a cap allows few.
        """
        with self._named_faults():
            self._db.execute("pragma synchronous = full")  # for whatever is written next, and all before it
            self._db.execute("update spent set calls = calls")
            self._db.execute("pragma synchronous = normal")
        self._at_risk_usd = self._at_risk_calls = 0.0

    @contextlib.contextmanager
    def _named_faults(self) -> Iterator[None]:
        """Raise a fault of the file as one that a user can mend."""
        try:
            yield
        except sqlite3.Error as error:
            raise LedgerError(
                f"{self.path}: what this run has spent cannot be read or written ({error}). Where the disk "
                "is full or read-only, mend that; a damaged file has to be put back from a copy, or taken "
                "away, and then the run counts from nothing"
            ) from error

    @contextlib.contextmanager
    def _transaction(self, stage: str, task: str) -> Iterator[tuple[Rows, Spent]]:
        """One process at a time: what all have written, and the row that may be changed."""
        if self.path is not None and not self._on_disk:
            self._open(create=True)
        with self._named_faults():
            self._db.execute("begin immediate")
            try:
                rows = self.rows
                row = rows[stage, task]
                yield rows, row
                self._db.execute(STORE, (stage, task, *vars(row).values()))
            except BaseException:
                self._db.rollback()
                raise
            self._db.commit()

    def _open(self, create: bool = False) -> None:
        """Open the file; one in memory where there is none yet and none is to be made."""
        self._on_disk = self.path is not None and (create or self.path.exists())
        with self._named_faults():
            if self._on_disk and not self.path.exists():
                self._create()
            # A run may ask from a thread of its own (`chat.run`); it waits for that thread.
            options = {"timeout": LOCKED_S, "isolation_level": None, "check_same_thread": False}
            self._db = sqlite3.connect(self.path if self._on_disk else ":memory:", **options)
            weakref.finalize(self, self._db.close)  # a run keeps its ledger open for as long as it lives
            if not self._on_disk:
                self._make(self._db)
            # A kill takes nothing; for power cuts see `_sync`. The disk is waited for once in 10,000 pages.
            self._db.execute("pragma synchronous = normal")
            self._db.execute("pragma wal_autocheckpoint = 10000")

    def _create(self) -> None:
        """Make the file whole or not at all; another process may do so at the same time."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        made = self.path.with_name(f".{self._writer}-{self.path.name}")
        with contextlib.closing(sqlite3.connect(made, isolation_level=None)) as db:
            # Kept in the file. A write-ahead log needs memory that machines with one folder do not share.
            db.execute(f"pragma journal_mode = {'delete' if self._shared else 'wal'}")
            self._make(db)
        with contextlib.suppress(FileExistsError):
            os.link(made, self.path)
        made.unlink()

    def _make(self, db: sqlite3.Connection) -> None:
        db.execute("begin")
        for table in TABLES:
            db.execute(table)
        db.commit()


def _most(values: str) -> CallBound:
    return CallBound(*json.loads(values))


def _usd(rows: Rows) -> float:
    return sum(row.usd + row.unsure_usd + row.open_usd for row in rows.values())


def _calls(rows: Rows) -> int:
    return sum(row.calls + row.unsure_calls + row.open_calls for row in rows.values())


BATCH_DISCOUNT = 0.5
"""Share of the price that OpenAI's Batch API takes."""
TOKENS_OUT = 4000
"""Longest reply that is reckoned with where a request sets no limit, or the endpoint drops it."""
TOKENS_PER_MESSAGE = 8
"""What a chat template puts around a message."""
TILE, LONGEST_SIDE, SHORTER_SIDE = 512, 2048, 768
"""Pixels: a picture is made to fit the two sides, then cut into tiles."""
UNPROVEN = 50.0
"""How many times what is reckoned the calls of a task may cost until its first answer is back: a model that
thinks bills thousands of tokens for an utterance of 60."""


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
        tokens_per_image: int | None = None,
        unbounded: bool = False,
    ) -> None:
        """Prices are US dollars per million tokens; `unbounded` where the endpoint drops `max_tokens`.

        `tokens_per_image` None: not known, so a picture is reckoned at `PICTURE_AT_MOST` until one was
        counted.
        """
        self.ledger = ledger or Ledger()
        self.stage, self.max_calls, self.max_usd = stage, max_calls, max_usd
        self._usd_in, self._usd_out = usd_in / 1e6, usd_out / 1e6
        self._tokens_per_image, self._unbounded = tokens_per_image, unbounded
        self._in_flight: Counter[str] = Counter()
        """Our calls under way by task."""
        self._waiting: list[asyncio.Future[None]] = []

    def price(self, tokens_in: int, tokens_out: int) -> float:
        """US dollars for so many tokens."""
        return tokens_in * self._usd_in + tokens_out * self._usd_out

    async def reserve(self, request: Request, in_bulk: bool = False) -> Reservation:
        """Set aside the most that a call can cost; wait for our own calls in flight where that is too much.

        Before the first answer to a task only so many calls of it go out as fit in the cap if they cost
        `UNPROVEN` times as much; at least one, and `in_bulk` all, because their answers come back together.
        Raises `BudgetReached` when nothing of ours is in flight and the cap would still be passed.
        """
        out = None if self._unbounded else request.sampling.max_tokens
        most = CallBound(
            tokens_at_most(request),
            self._usd_in,
            TOKENS_OUT if out is None else out,
            self._usd_out,
            pictures_of(request),
            self._tokens_per_image,
        )
        while True:
            unproven = UNPROVEN if self._in_flight[request.task] and not in_bulk else 0.0
            caps = self.max_calls, self.max_usd
            reservation = self.ledger.reserve(self.stage, request.task, most, *caps, unproven)
            if reservation is not None:
                self._in_flight[request.task] += 1
                return reservation
            if not self._in_flight.total():
                raise BudgetReached(self._why_reached())
            one_settled = asyncio.get_running_loop().create_future()
            self._waiting.append(one_settled)
            await one_settled

    def settle(self, reservation: Reservation, reply: Reply) -> None:
        """Enter what a reply cost by the endpoint's own count of tokens."""
        usd: float | None = self.price(reply.tokens_in, reply.tokens_out)
        if not reply.tokens_in and not reply.tokens_out and reply.finish_reason != "content_filter":
            usd = None  # the endpoint does not count: nobody knows what it cost
        self.ledger.settle(reservation, usd, reply.tokens_in, reply.tokens_out)
        self._one_less(reservation)

    def settle_unsure(self, reservation: Reservation) -> None:
        """Enter a call whose answer did not arrive whole, at the most that it can have cost."""
        self.ledger.settle(reservation, None, 0, 0, sure=False)
        self._one_less(reservation)

    def release(self, reservation: Reservation) -> None:
        """Take back a call that was certainly not paid for."""
        self.ledger.release(reservation)
        self._one_less(reservation)

    def abandon(self, reservation: Reservation) -> None:
        """Leave a cancelled call unsettled: it may have been paid for."""
        self._one_less(reservation)

    def _one_less(self, reservation: Reservation) -> None:
        self._in_flight[reservation.task] -= 1
        waiting, self._waiting = self._waiting, []
        for one_settled in waiting:
            if not one_settled.done():
                one_settled.set_result(None)

    def _why_reached(self) -> str:
        if self.max_calls is not None and self.ledger.calls >= self.max_calls:
            cap = f"max_calls={self.max_calls}"
            return f"{cap} reached; all answers are recorded: raise it and run again to go on"
        unsure = self.ledger.unsure_usd
        extra = f", of it {unsure:.4f} for calls that were cut off and may have been paid" if unsure else ""
        return (
            f"max_usd={self.max_usd} would be passed by the next call (spent {self.ledger.usd:.4f}{extra}); "
            "all answers are recorded: raise it and run again to go on"
        )


def tiles(width: int, height: int) -> int:
    """Tiles into which vision models of OpenAI cut a picture of so many pixels."""
    fit = min(1.0, LONGEST_SIDE / max(width, height))
    fit *= min(1.0, SHORTER_SIDE / (fit * min(width, height)))
    return math.ceil(fit * width / TILE) * math.ceil(fit * height / TILE)


def picture_size(tiles: int) -> float:
    """What a picture of so many tiles counts, in pictures of one: a tile takes twice what a picture does."""
    return round((1 + 2 * tiles) / 3, 3)


def pictures_of(request: Request) -> float:
    """Sizes of all pictures of a request together."""
    return sum(picture_size(image.tiles) for message in request.messages for image in message.images)


def tokens_at_most(request: Request) -> int:
    """Upper bound of the tokens of a request's texts: byte-level vocabularies have no token below a byte."""
    total = sum(_bytes(m.text) + TOKENS_PER_MESSAGE for m in request.messages)
    if request.reply_schema is not None:
        total += _schema_bytes(request.reply_schema)
    return total


@lru_cache(maxsize=256)
def _bytes(text: str) -> int:
    # CallBound messages of a request, the worked examples, are those of the request before.
    return len(text.encode())


@lru_cache(maxsize=64)
def _schema_bytes(schema: type[BaseModel]) -> int:
    return len(json.dumps(schema.model_json_schema()))


BATCHED_TASKS = {"annotation", "rating"}
BATCH_WINDOW_S = 24 * 3600.0
"""The one completion window that the Batch API has: results come within it."""
REMOTE_SECONDS_PER_CALL = 2.0
LOCAL_TOKENS_IN_PER_S, LOCAL_TOKENS_OUT_PER_S = 80.0, 12.0
UNSAID_TOKENS_PER_IMAGE = 765
"""Where an endpoint does not say: four tiles of gpt-4o, between most models (170 to 260) and gpt-4o-mini."""


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
    ledger: tuple[str, str]
    """Stage and task under which the ledger has the real figures."""


def tokens_per_image(endpoint: Endpoint) -> int:
    """Of a picture of one tile, also where the endpoint does not say."""
    stated = endpoint.tokens_per_image
    return UNSAID_TOKENS_PER_IMAGE if stated is None else stated


def estimate_row(
    stage: str,
    ledger: tuple[str, str],
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
        return EstimateRow(stage, "authored text", 0, 0, 0, 0.0, 0.0, ledger)
    if llm == "local":
        seconds = t_in / LOCAL_TOKENS_IN_PER_S + t_out / LOCAL_TOKENS_OUT_PER_S
        model, usd = local_model or profile.models.local_model, 0.0
    else:
        batch = profile.models.batch and ledger[1] in BATCHED_TASKS
        usd_in, usd_out = endpoint.usd_per_million_in or 0.0, endpoint.usd_per_million_out or 0.0
        usd = (t_in * usd_in + t_out * usd_out) / 1e6 * (BATCH_DISCOUNT if batch else 1.0)
        seconds = BATCH_WINDOW_S if batch else calls * REMOTE_SECONDS_PER_CALL / profile.models.concurrency
        model = (endpoint.model or "(no model named)") + (" (batch)" if batch else "")
    return EstimateRow(
        stage, model, calls, round(t_in), round(t_out), usd, seconds / 3600 if calls else 0.0, ledger
    )


def with_real_usage(table: "pd.DataFrame", ledger: Ledger) -> "pd.DataFrame":
    """Add a total, and where the run has asked a model what it really used so far.

    Real calls are those that were or may have been paid; tokens are the endpoint's own counts. What the
    estimate does not know of has a row of its own.
    """
    import pandas as pd

    table, spent = table.copy(), ledger.spent
    others = [key for key in spent if key not in set(table.ledger)]
    if others:
        rows = [
            EstimateRow(f"other: {' '.join(dict.fromkeys(key))}", "", 0, 0, 0, 0.0, 0.0, key)
            for key in others
        ]
        table = pd.concat([table, pd.DataFrame(rows)], ignore_index=True)
    if spent:
        used = [spent.get(key, Spent()) for key in table.ledger]
        table["real_calls"] = [row.calls + row.unsure_calls for row in used]
        table["real_in"] = [row.tokens_in for row in used]
        table["real_out"] = [row.tokens_out for row in used]
        table["real_usd"] = [row.usd + row.unsure_usd for row in used]
    table = table.drop(columns="ledger")
    total = {"stage": "total", "model": ""} | table[table.columns[2:]].sum().to_dict()
    return pd.concat([table, pd.DataFrame([total])], ignore_index=True)


def estimate_text(table: "pd.DataFrame") -> str:
    """The table for a terminal: whole calls and tokens, money to the cent or finer where it is little."""
    finest = 4 if table.filter(like="usd").to_numpy().max(initial=0.0) < 1 else 2
    formats = {
        name: (lambda x: f"{x:,.{finest}f}") if "usd" in name else (lambda x: f"{x:,.2f}")
        if name == "hours" else (lambda x: f"{x:,.0f}")
        for name in table.columns[2:]
    }  # fmt: skip
    return table.to_string(index=False, formatters=formats)
