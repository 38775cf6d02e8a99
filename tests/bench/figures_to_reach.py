"""The figures to reach, and how a benchmark says what it measured; `speed_table` renders `reports/bench.md`.

A benchmark calls `record(benchmark, key, values)` once for each line of the table, before it asserts: a
line that misses its figure must stand in the table, too. `values` are the rounds' own numbers (for a ratio
the ratio *within* each round, competitors interleaved); their median and range are kept. Where `key` stands
in `FIGURES`, the limit is the one given there; a line of its own brings `what`, `unit` and, if there is one,
its limit. `reason` says why a figure is not reached and what the measured limit is; without one the table
says that nobody gave a reason.

A benchmark that cannot measure one of `FIGURES` calls `not_measured(benchmark, key, why)`; where a test is
skipped or fails before it tells anything, `conftest.py` keeps why for the figures that the test names.

Kept in the JSON of pytest-benchmark as `extra_info["lines"]`, a list of `{"key", "what", "unit", "median",
"low", "high", "rounds", "at_most" | "at_least", "reached", "reason", "note"}`. Other entries of `extra_info`
are free and not in the table.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

REST = 0.1
"""Seconds between competitors: BLAS threads of the one before go on spinning for some hundredths."""


@dataclass(frozen=True)
class Figure:
    """A line that the table must have: what is measured, its unit and its limit (at most one is given)."""

    group: str
    what: str
    unit: str = ""
    at_most: float | None = None
    at_least: float | None = None


TO_REACH = "Figures to reach"
START = "Start, memory, installation"
GROWTH = "Cost against size"
MORE = "Also measured"
GROUPS = (TO_REACH, START, GROWTH, MORE)

_FUSED = "fused scoring + top 3, 6,023 memes x 4 x 2,304, 64 queries"
_MILLION = "1,000,000 real texts with noise copies"
_CALLS = "64 dialogues x 18 turns, cap 128"
_FAULTS = "20 % of calls fail, run killed 5 times"

FIGURES: dict[str, Figure] = {
    "reproduce/seconds": Figure(
        TO_REACH, "`make reproduce`, example profile, `.venv` ready", "s", at_most=120
    ),
    "reproduce/bare": Figure(
        TO_REACH, "`make reproduce` from a bare checkout (installs first)", "s", at_most=360
    ),
    "top_k/product": Figure(TO_REACH, f"{_FUSED}: ours / bare product of four blocks", "x", at_most=0.95),
    "top_k/faiss": Figure(TO_REACH, f"{_FUSED}: `faiss.IndexFlatIP` / ours", "x", at_least=1.3),
    "top_k/cosines": Figure(
        TO_REACH, f"{_FUSED}: four `cosine_similarity` and a sort / ours", "x", at_least=4
    ),
    "learned/greedy": Figure(
        TO_REACH, "ranking 34,758 turns x 6,023 memes: learned placement / Greedy", "x", at_most=2
    ),
    "slider/paper": Figure(TO_REACH, "slider to redrawn chat, one dialogue, 6,023 memes", "ms", at_most=50),
    "million/recall": Figure(TO_REACH, f"{_MILLION}: recall@10", "", at_least=0.95),
    "million/speed": Figure(TO_REACH, f"{_MILLION}: flat search / ours, time", "x", at_least=20),
    "million/memory": Figure(TO_REACH, f"{_MILLION}: peak memory of the build", "GB", at_most=4),
    "dialogues/1s": Figure(TO_REACH, f"{_CALLS}, latency 1 s: ours / 18 s", "x", at_most=1.10),
    "dialogues/200ms": Figure(TO_REACH, f"{_CALLS}, latency 200 ms: ours / 3.6 s", "x", at_most=1.5),
    "dialogues/sdk": Figure(TO_REACH, f"{_CALLS}, latency 200 ms: ours / bare SDK", "x", at_most=1.10),
    "calls/cpu": Figure(TO_REACH, "our CPU on top of the SDK, one call", "ms", at_most=0.5),
    "turns/memory": Figure(TO_REACH, "peak memory at 34,758 turns / at 1,000 turns", "x", at_most=1.2),
    "screenshots/core": Figure(
        TO_REACH, "chat screenshots of 18 turns, 1x JPEG, a second of one core", "1/s", at_least=40
    ),
    "near_duplicates/seconds": Figure(
        TO_REACH, "near-duplicate search, 100,000 hashes, exact at distance 6", "s", at_most=10
    ),
    "faults/again": Figure(TO_REACH, f"{_FAULTS}: accepted replies asked for again", "", at_most=0),
    "faults/differing": Figure(TO_REACH, f"{_FAULTS}: files of the dataset that differ", "", at_most=0),
    "import/seconds": Figure(
        START, "`import memecmd_utils` in a new process, its start included", "s", at_most=0.3
    ),
    "reproduce/memory": Figure(START, "peak memory of `make reproduce`, all processes", "GB", at_most=1.5),
    "install/seconds": Figure(START, "core installation: time, from a warm cache", "s"),
    "install/size": Figure(START, "core installation: size on disk", "GB", at_most=1.5),
    "growth/retrieval": Figure(GROWTH, "retrieval at 6,023 / 60,000 / 1,000,000 memes: exponent"),
    "growth/library": Figure(GROWTH, "library build at 1,000 / 10,000 images: exponent"),
    "growth/turns": Figure(GROWTH, "turns at 1,000 / 10,000 / 34,758: exponent of CPU time", "", at_most=1.1),
}


def record(
    benchmark: Any,
    key: str,
    values: float | Sequence[float],
    *,
    what: str = "",
    unit: str = "",
    at_most: float | None = None,
    at_least: float | None = None,
    reason: str = "",
    note: str = "",
) -> bool:
    """Keep a line of the table; True where its figure is reached or there is none.

    benchmark: the fixture of pytest-benchmark (anything with a dictionary `extra_info`).
    key: of `FIGURES`, or one of your own with `what` (and `unit`, `at_most` or `at_least`).
    values: one number, or those of the rounds; the median counts.
    reason: shown where the figure is not reached. note: always shown (competitors, sizes, absolute times).
    Raises ValueError for an unknown key without `what`, a limit beside a key of `FIGURES`, no finite values.
    """
    known = FIGURES.get(key)
    if known and (what or unit or at_most is not None or at_least is not None):
        raise ValueError(f"{key}: what it is and its limit stand in FIGURES")
    if not known and not what:
        raise ValueError(f"{key} is no key of FIGURES: say `what` it measures")
    figure = known or Figure(MORE, what, unit, at_most, at_least)
    numbers = [float(value) for value in np.atleast_1d(np.asarray(values, dtype=float))]
    if not numbers or not np.isfinite(numbers).all():
        raise ValueError(f"{key}: no finite numbers in {values}")
    median = statistics.median(numbers)
    reached = (figure.at_most is None or median <= figure.at_most) and (
        figure.at_least is None or median >= figure.at_least
    )
    line = {"key": key, "what": figure.what, "unit": figure.unit, "median": median}
    line |= {"low": min(numbers), "high": max(numbers), "rounds": len(numbers), "reached": reached}
    line |= {"at_most": figure.at_most, "at_least": figure.at_least, "reason": reason, "note": note}
    benchmark.extra_info.setdefault("lines", []).append(line)
    return reached


def not_measured(benchmark: Any, key: str, why: str) -> None:
    """Keep why a figure of `FIGURES` could not be measured here (KeyError for another); the table says it."""
    _ = FIGURES[key]
    benchmark.extra_info.setdefault("not_measured", {})[key] = why


def keys_named_in(source: str) -> list[str]:
    """Keys of `FIGURES` that stand as literals in the source of a benchmark, in the order of the table."""
    return [key for key in FIGURES if f'"{key}"' in source]


def exponent(sizes: Sequence[float], costs: Sequence[float]) -> float:
    """Exponent b of cost = a * size ** b by least squares on logarithms; at least two sizes, all positive."""
    if len(sizes) < 2 or len(sizes) != len(costs) or min(*sizes, *costs) <= 0:
        raise ValueError("two or more positive sizes, and a positive cost for each")
    return float(np.polyfit(np.log(sizes), np.log(costs), 1)[0])
