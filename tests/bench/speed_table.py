"""Renders what `make bench` measured as Markdown: every figure to reach, with its reason where it is missed.

    python tests/bench/speed_table.py reports/bench.md reports/bench/bench_start.json [MORE.json ...]

The JSON is pytest-benchmark's, its lines are those of `figures_to_reach.record`. Where several files hold a
line, the one measured last counts, so a part can be measured again. A figure without a measurement says why:
the benchmark was skipped (a package, program or corpus is not there), failed, or was not run.
"""

import argparse
import json
import math
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from figures_to_reach import FIGURES, GROUPS, MORE, Figure

NOT_MEASURED = "not measured"
NOT_RUN = "its benchmark was not run"
HEAD = "| what | figure | measured: median [range] | reached | benchmark, notes |\n|---|---|---|---|---|"


class UnknownForm(ValueError):
    """A file that is not what pytest-benchmark writes; the message names it."""


def number(value: float) -> str:
    """Three significant digits at most, thousands with a comma, no exponent."""
    if value == 0:
        return "0"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:,.{digits}f}".rstrip("0").rstrip(".") if digits else f"{value:,.0f}"


def with_unit(value: float, unit: str) -> str:
    """`1.3 x`; without a unit the number alone."""
    return f"{number(value)} {unit}".rstrip()


def limit(line: Figure | Mapping[str, Any]) -> str:
    """`<= 1.3 x`, `>= 2 x`, or a dash where nothing is demanded."""
    kept = line if isinstance(line, Mapping) else vars(line)
    if kept.get("at_most") is not None:
        return f"<= {with_unit(kept['at_most'], kept['unit'])}"
    return f">= {with_unit(kept['at_least'], kept['unit'])}" if kept.get("at_least") is not None else "-"


def measured(line: Mapping[str, Any]) -> str:
    """Median and unit; the range and the number of rounds where there were several."""
    text = with_unit(line["median"], line["unit"])
    if line["rounds"] == 1:
        return f"{text} (once)"
    return f"{text} [{number(line['low'])}, {number(line['high'])}], {line['rounds']} rounds"


def verdict(line: Mapping[str, Any]) -> str:
    """`yes`, `no` with the reason, or a dash where nothing is demanded."""
    if line.get("at_most") is None and line.get("at_least") is None:
        return "-"
    if line["reached"]:
        return "yes"
    return f"**no**: {line['reason'] or 'no reason given'}"


def cell(text: str) -> str:
    """Text that cannot end a cell or a row."""
    return text.replace("|", "\\|").replace("\n", " ")


def read(
    files: Iterable[Path],
) -> tuple[dict[str, dict[str, Any]], list[str], dict[str, str], dict[str, str]]:
    """Lines by key, of all files, each with its `test`; machines; why not, by key; why not, by test.

    A machine is a sentence that ends with the files measured there. A reason beside a line of its key means
    nothing; tests that told are left out.
    """
    lines: dict[str, dict[str, Any]] = {}
    machines: dict[str, list[str]] = {}
    reasons: dict[str, str] = {}
    untold: dict[str, str] = {}
    for name, kept in in_order_of_time(files):
        if kept["machine_info"]:  # else nothing ran
            machines.setdefault(machine(kept), []).append(name)
        for one in kept.get("untold", []):
            untold[one["test"]] = one["why"]
            reasons |= dict.fromkeys(one["keys"], f"`{one['test']}`: {one['why']}")
        for bench in kept["benchmarks"]:
            for line in bench["extra_info"].get("lines", []):
                lines[line["key"]] = {**line, "test": bench["name"]}
            reasons |= bench["extra_info"].get("not_measured", {})
    told = {line["test"] for line in lines.values()}
    untold = {test: why for test, why in untold.items() if test not in told}
    sentences = [f"{where}: {', '.join(names)}" for where, names in machines.items()]
    return lines, sentences, reasons, untold


def in_order_of_time(files: Iterable[Path]) -> list[tuple[str, dict[str, Any]]]:
    """Name and content of each file, by when it was measured; where nothing ran comes first.

    Raises UnknownForm.
    """
    found = []
    for path in files:
        kept = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(kept, dict) or not {"benchmarks", "machine_info"} <= kept.keys():
            raise UnknownForm(f"{path} is no result of pytest-benchmark")
        found.append((path.stem, kept))
    return sorted(found, key=lambda one: (one[1].get("datetime", ""), one[0]))


def machine(kept: Mapping[str, Any]) -> str:
    """Processor, cores, system, Python, day and commit of one file."""
    info = kept["machine_info"]
    cpu = info.get("cpu") or {}
    name = cpu.get("brand_raw") or info.get("processor") or "unknown processor"
    commit = (kept.get("commit_info") or {}).get("id")
    parts = [
        f"{cpu.get('count', '?')} x {name}",
        f"{info.get('system', '?')} {info.get('machine', '?')}",
        f"Python {info.get('python_version', '?')}",
        str(kept.get("datetime", "no date"))[:10],
    ]
    return ", ".join([*parts, f"commit {commit[:10]}"] if commit else parts)


def table(lines: Mapping[str, Mapping[str, Any]], reasons: Mapping[str, str]) -> str:
    """Markdown, a table a group: the figures in their order, measured or why not, then lines of their own."""
    blocks = []
    for group in GROUPS:
        rows = []
        for key, figure in FIGURES.items():
            if figure.group != group:
                continue
            line = lines.get(key)
            if line is None:
                rows.append(
                    (figure.what, limit(figure), NOT_MEASURED, NOT_MEASURED, reasons.get(key, NOT_RUN))
                )
            else:
                rows.append(row(line))
        if group == MORE:
            rows += [row(line) for key, line in sorted(lines.items()) if key not in FIGURES]
        if rows:
            body = "\n".join("| " + " | ".join(map(cell, one)) + " |" for one in rows)
            blocks.append(f"## {group}\n\n{HEAD}\n{body}\n")
    return "\n".join(blocks)


def row(line: Mapping[str, Any]) -> tuple[str, str, str, str, str]:
    """The cells of a measured line."""
    about = f"`{line['test']}`" + (f": {line['note']}" if line.get("note") else "")
    return line["what"], limit(line), measured(line), verdict(line), about


def page(files: Iterable[Path]) -> str:
    """The whole page: counts, machines, tables."""
    lines, machines, reasons, untold = read(files)
    demanded = [k for k, f in FIGURES.items() if f.at_most is not None or f.at_least is not None]
    reached = sum(lines[key]["reached"] for key in demanded if key in lines)
    missed = sum(not lines[key]["reached"] for key in demanded if key in lines)
    head = (
        f"# Speed and memory\n\nOf {len(demanded)} figures to reach {reached} are reached, {missed} are not, "
        f"{len(demanded) - reached - missed} were not measured. Made by `make bench`; "
        "ratios are within one run, the competitors' rounds interleaved.\n"
    )
    parts = [head, *(f"- {sentence}" for sentence in machines), "", table(lines, reasons)]
    if untold:
        rows = "\n".join(f"- `{test}`: {' '.join(why.split())}" for test, why in sorted(untold.items()))
        parts.append(f"## Benchmarks without a result\n\n{rows}\n")
    return "\n".join(parts)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("target", type=Path, help="the Markdown file to write")
    parser.add_argument("results", type=Path, nargs="+", help="JSON files of pytest-benchmark")
    options = parser.parse_args()
    options.target.write_text(page(options.results), encoding="utf-8")
    print(options.target)
