"""Keeps in the JSON of pytest-benchmark which benchmarks told nothing, and why; `speed_table` shows it."""

import inspect
import json
from typing import Any

import pytest
from figures_to_reach import keys_named_in

UNTOLD = pytest.StashKey[list[dict[str, Any]]]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo) -> Any:
    """Note why a benchmark was skipped or failed, and the figures that it names."""
    report = yield
    if call.excinfo is not None and hasattr(item, "function"):
        lines = str(call.excinfo.value).strip().splitlines() or ["no message"]
        why = f"failed: {call.excinfo.typename}: {lines[0][:200]}"
        if report.skipped:
            why = lines[0][:200]
        # A test whose keys stand in a helper of its file speaks for all keys of the file.
        source = inspect.getsource(item.function)
        keys = keys_named_in(source) or keys_named_in(inspect.getsource(item.module))
        untold = {"test": item.name, "why": why, "keys": keys}
        item.config.stash.setdefault(UNTOLD, []).append(untold)
    return report


@pytest.hookimpl(optionalhook=True, tryfirst=True)
def pytest_benchmark_generate_json(benchmarks: list) -> None:
    """Leave out what was skipped or failed while it was measured: nothing has no statistics."""
    benchmarks[:] = [one for one in benchmarks if one.stats.data]


@pytest.hookimpl(optionalhook=True)
def pytest_benchmark_update_json(config: pytest.Config, benchmarks: list, output_json: dict) -> None:
    """Put the reasons beside the results."""
    output_json["untold"] = config.stash.get(UNTOLD, [])


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """Write the reasons where no benchmark ran: pytest-benchmark then writes no file."""
    path = config.getoption("benchmark_json", None)
    if path is not None and not path.exists():
        empty = {"benchmarks": [], "machine_info": {}, "untold": config.stash.get(UNTOLD, [])}
        path.write_text(json.dumps(empty), encoding="utf-8")
