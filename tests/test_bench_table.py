import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from memecmd_utils.core import paths

sys.path.insert(0, str(paths.root / "tests" / "bench"))

import speed_table
from figures_to_reach import FIGURES, GROUPS, exponent, not_measured, record


@pytest.fixture
def bench() -> SimpleNamespace:
    """Stands in for the fixture of pytest-benchmark."""
    return SimpleNamespace(extra_info={})


def kept(
    path: Path,
    *benches: tuple[str, SimpleNamespace],
    untold: list | None = None,
    when: str = "2026-01-02T03:04:05",
) -> Path:
    """A file as pytest-benchmark writes it, of the parts that the table reads."""
    info = {"cpu": {"brand_raw": "Made-up 9000", "count": 2}, "system": "Linux", "machine": "x86_64"}
    rows = [{"name": name, "extra_info": made.extra_info} for name, made in benches]
    made = {"machine_info": info | {"python_version": "3.12.1"}, "datetime": when}
    made |= {"commit_info": {"id": "ab" * 20}, "benchmarks": rows, "untold": untold or []}
    path.write_text(json.dumps(made))
    return path


def row_of(text: str, what: str) -> list[str]:
    """Cells of the one row about `what`."""
    rows = [line for line in text.splitlines() if line.startswith(f"| {what} |")]
    assert len(rows) == 1, rows
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", rows[0])[1:-1]]


def test_the_median_decides_and_a_limit_itself_is_reached(bench) -> None:
    assert record(bench, "top_k/product", [0.9, 0.95, 9.0])
    assert not record(bench, "top_k/faiss", [1.0, 1.2, 9.0])
    assert record(bench, "growth/library", 7.0), "nothing is demanded"
    first, second, _ = bench.extra_info["lines"]
    assert (first["median"], first["low"], first["high"], first["rounds"]) == (0.95, 0.9, 9.0, 3)
    assert first["reached"] and not second["reached"]
    json.dumps(bench.extra_info)


def test_a_benchmark_cannot_move_its_limit_or_tell_nothing(bench) -> None:
    with pytest.raises(ValueError, match="stand in FIGURES"):
        record(bench, "top_k/product", 2.0, at_most=3)
    with pytest.raises(ValueError, match="say `what`"):
        record(bench, "top_k/produkt", 2.0)
    for values in ([], [1.0, float("nan")]):
        with pytest.raises(ValueError, match="no finite numbers"):
            record(bench, "top_k/product", values)
    assert bench.extra_info == {}


def test_every_row_says_reached_or_why_not_or_that_it_was_not_measured(bench, tmp_path) -> None:
    record(bench, "top_k/product", [0.85, 0.9, 0.92], note="15 ms | 12 ms")
    record(bench, "top_k/cosines", 2.5, reason="both do the same product:\n2.5 x is what its share allows")
    record(bench, "top_k/torch", 1.5, what="torch / ours", unit="x", at_least=1)
    record(bench, "faults/again", 3)
    text = speed_table.page([kept(tmp_path / "a.json", ("test_paper_size", bench))])
    of = FIGURES["top_k/product"]
    assert row_of(text, of.what) == [
        of.what, "<= 0.95 x", "0.9 x [0.85, 0.92], 3 rounds", "yes", r"`test_paper_size`: 15 ms \| 12 ms",
    ]  # fmt: skip
    missed = row_of(text, FIGURES["top_k/cosines"].what)
    assert missed[1:4] == [
        ">= 4 x", "2.5 x (once)", "**no**: both do the same product: 2.5 x is what its share allows",
    ]  # fmt: skip
    assert row_of(text, FIGURES["faults/again"].what)[3] == "**no**: no reason given"
    assert row_of(text, "torch / ours")[1:4] == [">= 1 x", "1.5 x (once)", "yes"]
    assert row_of(text, FIGURES["slider/paper"].what)[2:4] == ["not measured", "not measured"]
    demanded = sum(f.at_most is not None or f.at_least is not None for f in FIGURES.values())
    assert f"Of {demanded} figures to reach 1 are reached, 2 are not, {demanded - 3} were not" in text
    assert "- 2 x Made-up 9000, Linux x86_64, Python 3.12.1, 2026-01-02, commit ababababab: a\n" in text


def test_all_figures_stand_in_the_table_in_their_groups(tmp_path) -> None:
    text = speed_table.page([kept(tmp_path / "a.json")])
    for figure in FIGURES.values():
        assert figure.group in GROUPS
        before = text[: text.index(f"| {figure.what} |")]
        assert re.findall(r"^## (.+)$", before, re.M)[-1] == figure.group
    assert text.count("| not measured | not measured |") == len(FIGURES)


def test_what_was_measured_later_replaces_what_was_earlier(tmp_path) -> None:
    first, second = (SimpleNamespace(extra_info={}) for _ in range(2))
    record(first, "slider/paper", 70)
    record(first, "calls/cpu", 0.25)
    record(second, "slider/paper", 20)
    old = kept(tmp_path / "b.json", ("old", first), when="2026-01-02T01:00:00")
    new = kept(tmp_path / "a.json", ("new", second), when="2026-01-02T02:00:00")
    empty = tmp_path / "c.json"
    empty.write_text(json.dumps({"benchmarks": [], "machine_info": {}, "untold": []}))
    text = speed_table.page([new, old, empty])
    assert row_of(text, FIGURES["slider/paper"].what)[2:4] == ["20 ms (once)", "yes"]
    assert row_of(text, FIGURES["calls/cpu"].what)[2] == "0.25 ms (once)"
    assert text.count("Made-up 9000") == 1 and "commit ababababab: b, a\n" in text


def test_a_figure_that_was_not_measured_says_why(bench, tmp_path) -> None:
    record(bench, "top_k/product", 0.9)
    not_measured(bench, "top_k/faiss", "faiss is not installed")
    with pytest.raises(KeyError, match="top_k/fais"):
        not_measured(bench, "top_k/fais", "misspelt")
    untold = [
        {"test": "test_million", "why": "no captions", "keys": ["million/recall", "million/speed"]},
        {"test": "test_paper_size", "why": "failed: AssertionError: a figure", "keys": ["top_k/product"]},
        {"test": "test_peer", "why": "no other generator", "keys": []},
    ]
    text = speed_table.page([kept(tmp_path / "a.json", ("test_paper_size", bench), untold=untold)])
    assert row_of(text, FIGURES["top_k/faiss"].what)[4] == "faiss is not installed"
    assert row_of(text, FIGURES["million/speed"].what)[2:] == [
        "not measured", "not measured", "`test_million`: no captions",
    ]  # fmt: skip
    assert row_of(text, FIGURES["slider/paper"].what)[4] == speed_table.NOT_RUN
    assert row_of(text, FIGURES["top_k/product"].what)[3] == "yes", "it told its line before it failed"
    shown = text[text.index("## Benchmarks without a result") :]
    assert re.findall(r"^- `(\w+)`", shown, re.M) == ["test_million", "test_peer"]


BENCHMARKS = """
import pytest
from figures_to_reach import record

def helper(benchmark, seconds):
    record(benchmark, "near_duplicates/seconds", seconds)

def test_skipped(benchmark):
    pytest.skip("no corpus here")
    record(benchmark, "slider/paper", 1)

@pytest.mark.skipif(True, reason="no program here")
def test_marked(benchmark):
    record(benchmark, "calls/cpu", 1)

def test_missing(benchmark):
    pytest.importorskip("no_such_package", reason="no_such_package is not installed")
    record(benchmark, "million/recall", 1)

def test_broken(benchmark):
    def work():
        raise RuntimeError("out of luck")
    benchmark.pedantic(work, rounds=1)
    record(benchmark, "turns/memory", 1)

def test_missed(benchmark):
    benchmark.pedantic(lambda: None, rounds=1)
    assert record(benchmark, "screenshots/core", 3), "39 a second"
"""


def run_benchmarks(tmp_path: Path, source: str) -> subprocess.CompletedProcess:
    """Run made benchmarks with the project's conftest into a.json."""
    bench = paths.root / "tests" / "bench"
    for name in ("conftest.py", "figures_to_reach.py"):
        shutil.copy2(bench / name, tmp_path)
    (tmp_path / "bench_made.py").write_text(source, encoding="utf-8")
    words = ["-q", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", str(tmp_path), "--benchmark-only"]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *words, "--benchmark-json=a.json", "bench_made.py"],
        cwd=tmp_path, capture_output=True, text=True, timeout=120,
        # Without xdist's variables: as its worker, pytest-benchmark would measure nothing.
        env={k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
        | {"PYTHONPATH": str(tmp_path)},
    )  # fmt: skip


def test_reasons_stand_in_the_table_where_no_benchmark_ran(tmp_path) -> None:
    ran = run_benchmarks(tmp_path, BENCHMARKS[: BENCHMARKS.index("def test_broken")])
    assert ran.returncode == 0 and "3 skipped" in ran.stdout, ran.stdout + ran.stderr
    text = speed_table.page([tmp_path / "a.json"])
    assert row_of(text, FIGURES["slider/paper"].what)[4] == "`test_skipped`: no corpus here"
    assert "unknown processor" not in text


def test_reasons_of_pytest_reach_the_table_and_a_missed_figure_its_row(tmp_path) -> None:
    ran = run_benchmarks(tmp_path, BENCHMARKS)
    assert ran.returncode == 1 and "2 failed, 3 skipped" in ran.stdout, ran.stdout + ran.stderr
    text = speed_table.page([tmp_path / "a.json"])
    why = {key: row_of(text, FIGURES[key].what)[4] for key in FIGURES}
    assert why["slider/paper"] == "`test_skipped`: no corpus here"
    assert why["calls/cpu"] == "`test_marked`: no program here"
    assert why["million/recall"] == "`test_missing`: no_such_package is not installed"
    assert why["turns/memory"] == "`test_broken`: failed: RuntimeError: out of luck"
    assert row_of(text, FIGURES["screenshots/core"].what)[2:4] == ["3 1/s (once)", "**no**: no reason given"]
    assert "- `test_missed`" not in text


def test_the_exponent_of_a_power_is_found() -> None:
    sizes = (1_000, 10_000, 34_758)
    assert exponent(sizes, [3e-4 * size**1.25 for size in sizes]) == pytest.approx(1.25)
    for sizes, costs in (((1,), (1,)), ((1, 2), (1,)), ((1, 2), (0, 1))):
        with pytest.raises(ValueError, match="positive"):
            exponent(sizes, costs)


def test_every_figure_is_told_by_a_benchmark() -> None:
    """A figure that no benchmark names would stand as not measured for ever."""
    files = (paths.root / "tests" / "bench").glob("bench_*.py")
    code = "\n".join(path.read_text(encoding="utf-8") for path in files)
    assert [key for key in FIGURES if f'"{key}"' not in code] == []


def test_the_tracked_table_is_what_the_tracked_measurements_say() -> None:
    page = speed_table.page((paths.root / "reports" / "bench").glob("bench_*.json"))
    assert (paths.root / "reports" / "bench.md").read_text(encoding="utf-8") == page
