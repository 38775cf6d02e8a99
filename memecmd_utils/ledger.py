"""What a run has spent and may have spent on models: a file that outlives kills, power cuts and damage.

A call is entered at the most it can cost *before* it is sent, and settled when its answer is there. What
was never settled, because the process was killed, counts at that most. Where an endpoint bills more than
was reckoned (thoughts beyond `max_tokens`, large pictures), every call from then on, also of a later process,
is reckoned by what it billed. The caps are in `budget`.
"""

import contextlib
import fcntl
import json
import math
import os
import secrets
import weakref
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PICTURE_AT_MOST = 8_500
"""Tokens of a picture of one tile where nobody said how many: what gpt-4o-mini counts, more than any other
model of OpenAI (2,833 for a picture and 5,667 for each tile; gpt-4o: 85 and 170)."""
AS_MUCH_AGAIN = 2.0
"""Replies and pictures differ in size: once they passed what was reckoned, the next may pass this one."""
UNKNOWN = ("unknown", "unknown")
"""Stage and task of an answer whose reservation cannot be read."""
NO_SUCH_NUMBER = 1e12
"""Neither tokens nor dollars of a call; `llm_wire` counts no more either."""
DAMAGE = (ValueError, TypeError, KeyError, RecursionError)
"""What a line that is none of ours may raise."""


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
class Most:
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
class Learned:
    """What the answers to one task of one stage have shown, as far as it is more than was reckoned."""

    answered: bool = False
    """Whether an answer came with the endpoint's counts."""
    text: float = 1.0
    """Tokens that the endpoint counts for one of ours."""
    out: float = 1.0
    picture: int = 0
    """Most tokens of a call with pictures, divided by their size."""
    beyond: bool = False
    """Whether pictures took more than the profile says."""

    def tokens_in(self, most: Most) -> float:
        """Tokens of a call's texts and pictures."""
        each = AS_MUCH_AGAIN * self.picture
        if most.tokens_per_image is None:
            each = each or PICTURE_AT_MOST
        else:
            each = max(most.tokens_per_image, each if self.beyond else 0)
        return most.tokens_in * self.text + most.pictures * each

    def usd(self, most: Most) -> float:
        """The most that a call costs."""
        return self.tokens_in(most) * most.usd_in + most.tokens_out * self.out * most.usd_out

    def take_in(self, most: Most, tokens_in: int, tokens_out: int) -> bool:
        """Learn from an answer; returns whether calls are reckoned otherwise from now on."""
        before = (self.text, self.out, self.picture, self.beyond)
        self.answered |= tokens_in > 0 or tokens_out > 0
        if most.pictures:
            said = math.inf if most.tokens_per_image is None else most.tokens_per_image
            self.beyond |= tokens_in > most.tokens_in + most.pictures * said
            self.picture = max(self.picture, math.ceil(tokens_in / most.pictures))
        elif tokens_in > most.tokens_in > 0:
            self.text = max(self.text, tokens_in / most.tokens_in)
        if tokens_out > most.tokens_out > 0:
            self.out = max(self.out, AS_MUCH_AGAIN * tokens_out / most.tokens_out)
        return before != (self.text, self.out, self.picture, self.beyond)


@dataclass(frozen=True)
class Reservation:
    """A call that is entered in the ledger and not settled yet."""

    name: str
    stage: str
    task: str
    usd: float
    """What it was reckoned at when it was entered."""


@dataclass
class _Open:
    stage: str
    task: str
    usd: float
    most: Most | None
    """None in lines of an older version, which say no more than the money."""


@dataclass
class Ledger:
    """All calls of a run, from every process that works on it; in memory only where `path` is None.

    Lines are `{"r": name, "stage", "task", "usd", ...}` for a reservation, with our own count of tokens and
    their prices, and `{"s": name, ...}` when it is settled. They are appended under a lock; each process
    reads what others have appended since. A line that cannot be read counts as a call at the most that one
    of the ledger can cost.
    """

    path: Path | None = None
    open: dict[str, _Open] = field(default_factory=dict)
    """Unsettled reservations of all processes by name."""
    spent: dict[tuple[str, str], Spent] = field(default_factory=dict)
    learned: dict[tuple[str, str], Learned] = field(default_factory=dict)
    """By stage and task, as in `spent`."""
    damaged: int = 0
    """Lines that cannot be read."""
    _entered: tuple[float, int] = (0.0, 0)
    """US dollars and number of our own reservations so far."""
    _on_disk: tuple[float, int] = (0.0, 0)
    """Those of them that outlast a power cut."""
    _open_usd: float = 0.0
    """Sum over `open`: a batch holds tens of thousands of them."""
    _dearest: float = 0.0
    _lines: int = 0
    _first_damaged: int = 0
    _offset: int = 0
    _handle: Any = None

    def __post_init__(self) -> None:
        self.writer = secrets.token_hex(4)
        self._count = 0
        if self.path is not None and self.path.is_file():
            self._open_file()
            self._locked(lambda: None)

    @property
    def usd(self) -> float:
        """Money that is or may be spent, in US dollars."""
        settled = sum(s.usd + s.unsure_usd for s in self.spent.values())
        return settled + self.unsettled_usd

    @property
    def unsettled_usd(self) -> float:
        """The most that calls without an answer can have cost, those of damaged lines among them."""
        return (self._open_usd if self.open else 0.0) + self.damaged * self._dearest

    @property
    def calls(self) -> int:
        """Calls that are or may be paid for."""
        return sum(s.calls + s.unsure_calls for s in self.spent.values()) + len(self.open) + self.damaged

    @property
    def problem(self) -> str:
        """Say which damage the file has and what it counts as; empty where it has none."""
        if not self.damaged:
            return ""
        lines = "a line" if self.damaged == 1 else f"{self.damaged} lines"
        return (
            f"{self.path} has {lines} that cannot be read (the first is line {self._first_damaged}): each "
            f"counts as a call at the most that one of this run can cost, ${self._dearest:.4f}. Nothing has "
            "to be done; who knows that they cost nothing may delete them while no run goes on"
        )

    def at_risk(self, max_calls: int | None, max_usd: float | None) -> float:
        """Share of a cap whose reservations a power cut may take away; 0 without caps."""
        if self.path is None:
            return 0.0
        usd, calls = (entered - kept for entered, kept in zip(self._entered, self._on_disk, strict=True))
        return max(usd / max_usd if max_usd else 0.0, calls / max_calls if max_calls else 0.0)

    def learned_of(self, stage: str, task: str) -> Learned:
        """What is known of a task's calls by now."""
        return self.learned.setdefault((stage, task), Learned())

    def reserve(
        self,
        stage: str,
        task: str,
        most: Most,
        max_calls: int | None = None,
        max_usd: float | None = None,
        beside: float = 0.0,
    ) -> Reservation | None:
        """Enter a call, or return None if a cap would be passed by it.

        `beside` times what the stage's and task's open calls and this one are reckoned at must fit in the cap
        as well; 0 where that does not matter.
        """

        def enter() -> dict[str, Any] | None:
            if max_calls is not None and self.calls >= max_calls:
                return None
            usd = self.learned_of(stage, task).usd(most)
            if max_usd is not None:
                # A cap of 0 dollars allows no call, also where calls are free.
                if self.usd >= max_usd or self.usd + usd > max_usd:
                    return None
                if beside and self.usd + usd + (beside - 1) * (usd + self._open_of(stage, task)) > max_usd:
                    return None
            self._count += 1
            line = {"r": f"{self.writer}-{self._count}", "stage": stage, "task": task, "usd": usd}
            line |= {"in": most.tokens_in, "out": most.tokens_out, "price": [most.usd_in, most.usd_out]}
            if most.pictures:
                line |= {"pictures": most.pictures, "each": most.tokens_per_image}
            return line

        line = self._locked(enter)
        if line is None:
            return None
        self._entered = self._entered[0] + line["usd"], self._entered[1] + 1
        return Reservation(line["r"], stage, task, line["usd"])

    def settle(
        self, reservation: Reservation, usd: float | None, tokens_in: int, tokens_out: int, sure: bool = True
    ) -> None:
        """Write down what a call cost; `usd` None: nobody knows, so the most that it is reckoned at by now.

        `sure=False` where its answer did not arrive whole.
        """

        def line() -> dict[str, Any]:
            known = self.open[reservation.name].usd if usd is None else usd
            made = {"s": reservation.name, "in": tokens_in, "out": tokens_out, "usd": known}
            return made if sure else {**made, "unsure": True}

        self._locked(line)

    def release(self, reservation: Reservation) -> None:
        """Take a call back that certainly was not paid for."""
        self._locked(lambda: {"s": reservation.name, "free": True})

    def release_abandoned(self, stage: str) -> None:
        """Take back the calls that killed processes left open in `stage`.

        Only where what was under way is not lost, as with batches: it is attached to again and counted then.
        The caller sees to it that no other process works on the stage.
        """
        for name, entry in list(self.open.items()):
            if entry.stage == stage and not name.startswith(self.writer):
                self._locked(lambda name=name: {"s": name, "free": True})

    def sync(self) -> None:
        """Have the disk keep what was written so far, also through a power cut; takes milliseconds."""
        entered = self._entered
        if self._handle is not None:
            os.fsync(self._handle.fileno())
        self._on_disk = entered

    def close(self) -> None:
        """Release the file."""
        if self._handle is not None:
            self._handle.close()
            self._handle = None

    def _open_of(self, stage: str, task: str) -> float:
        return sum(one.usd for one in self.open.values() if (one.stage, one.task) == (stage, task))

    def _locked(self, make: Any) -> dict[str, Any] | None:
        """Take in what others wrote, then make, apply and append a line, all under the file's lock."""
        if self.path is None:
            line = make()
            if line is not None:
                self._apply(line)
            return line
        if self._handle is None:
            self._open_file()
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
                self._lines += 1
            return line
        finally:
            fcntl.flock(self._handle, fcntl.LOCK_UN)

    def _open_file(self) -> None:
        new = not self.path.exists()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._handle = self.path.open("ab+")
        weakref.finalize(self, self._handle.close)  # a run keeps its ledger open for as long as it lives
        if new:  # its name, too, must outlast a power cut
            folder = os.open(self.path.parent, os.O_RDONLY)
            os.fsync(folder)
            os.close(folder)

    def _take_in(self) -> None:
        end = self._handle.seek(0, 2)
        if end == self._offset:
            return
        self._handle.seek(self._offset)
        whole, _, torn = self._handle.read().rpartition(b"\n")
        if torn:  # cut by a kill; whoever holds the lock next cuts it off
            self._handle.truncate(end - len(torn))
        for raw in whole.split(b"\n") if whole else ():
            self._read(raw)
        self._offset = end - len(torn)

    def _read(self, raw: bytes) -> None:
        """Apply a line of the file, or count it as damaged."""
        self._lines += 1
        if not raw.strip():
            return
        try:
            self._apply(_parsed(raw))
        except DAMAGE:
            self.damaged += 1
            self._first_damaged = self._first_damaged or self._lines
            # A power cut may leave zero bytes where lines were not on the disk yet, and the next line behind.
            if raw.startswith(b"\0"):
                with contextlib.suppress(*DAMAGE):
                    self._apply(_parsed(raw.strip(b"\0")))

    def _apply(self, line: dict[str, Any]) -> None:
        if "r" in line:
            self._enter(line)
            return
        entry = self.open.pop(line["s"], None)
        if entry is not None:
            self._open_usd -= entry.usd
        else:  # the line of its reservation is damaged or gone
            self.damaged = max(0, self.damaged - 1)
        if line.get("free"):
            return
        key = UNKNOWN if entry is None else (entry.stage, entry.task)
        spent = self.spent.setdefault(key, Spent())
        if line.get("unsure"):
            spent.unsure_calls += 1
            spent.unsure_usd += line["usd"]
            return
        spent.calls += 1
        spent.usd += line["usd"]
        spent.tokens_in += line["in"]
        spent.tokens_out += line["out"]
        if entry is not None:
            most = entry.most or Most(0)
            if self.learned_of(*key).take_in(most, line["in"], line["out"]):
                self._reckon_anew(key)

    def _enter(self, line: dict[str, Any]) -> None:
        most = None
        if "price" in line:
            usd_in, usd_out = line["price"]
            pictures = line.get("pictures", 0), line.get("each")
            most = Most(line["in"], usd_in, line["out"], usd_out, *pictures)
        if line["r"] in self.open:
            raise ValueError("a name that is taken")
        self.open[line["r"]] = _Open(line["stage"], line["task"], line["usd"], most)
        self._open_usd += line["usd"]
        self._dearest = max(self._dearest, line["usd"])

    def _reckon_anew(self, key: tuple[str, str]) -> None:
        """What was learned holds for the calls that are under way, too."""
        for one in self.open.values():
            if (one.stage, one.task) == key and one.most is not None:
                usd = self.learned[key].usd(one.most)
                self._open_usd += usd - one.usd
                one.usd = usd


def _parsed(raw: bytes) -> dict[str, Any]:
    """A line of a ledger; one of `DAMAGE` where it is none."""
    line = json.loads(raw)
    words = [line["r"], line["stage"], line["task"]] if "r" in line else [line["s"]]
    numbers = [] if line.get("free") else [line["usd"]]
    if "price" in line or ("s" in line and not line.get("free")):
        numbers += [line["in"], line["out"], *line.get("price", ()), line.get("pictures", 0)]
        numbers += [line["each"]] if line.get("each") is not None else []
    if not all(isinstance(word, str) for word in words) or len(line.get("price", (0, 0))) != 2:
        raise ValueError("a field is of a wrong type")
    if not all(type(number) in (int, float) and 0 <= number < NO_SUCH_NUMBER for number in numbers):
        raise ValueError("a number is none")
    return line
