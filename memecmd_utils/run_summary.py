"""What a run wrote and where, in a few lines for the terminal."""

import csv
import json
from collections.abc import Iterator
from pathlib import Path

from memecmd_utils import paths
from memecmd_utils.profiles import Profile


def _count(path: Path) -> str:
    if not path.is_file():
        return "-"
    if path.suffix == ".parquet":
        import pyarrow.parquet as pq

        return str(pq.ParquetFile(path).metadata.num_rows)
    return str(sum(1 for line in path.read_text(encoding="utf-8").split("\n") if line.strip()))


def text(run: str) -> str:
    """The closing lines of `make reproduce`."""
    data, report = paths.processed / run, paths.reports / run
    show = {
        "memes": _count(data / "memes.parquet"),
        "dialogues": _count(data / "dialogues.jsonl"),
        "memes placed": _count(data / "placements.parquet"),
        "ratings": _count(data / "ratings.parquet"),
    }
    lines = [
        "",
        f"run {run}: " + ", ".join(f"{value} {name}" for name, value in show.items()),
        f"  page to look at    {_where(report / 'index.html')}",
        f"  dataset            {_where(data / 'release')}/",
        f"  tables             {_where(report / 'tables')}/",
        f"  figures            {_where(report / 'figures')}/",
        f"  numbers            {_where(report / 'numbers.json')}",
        f"  executed notebooks {_where(report)}/*.html",
    ]
    return "\n".join([*lines, *real_usage(run)])


def _where(path: Path) -> str:
    return str(path.relative_to(paths.root))


def real_usage(run: str) -> Iterator[str]:
    """A line per stage that spoke to a model."""
    for path in sorted((paths.processed / run / "usage").glob("*.json")):
        if path.name.endswith(".keys.json"):
            continue
        used = json.loads(path.read_text(encoding="utf-8"))
        if used["calls"] or used["replayed"]:
            if used["source"] == "authored":
                yield f"  {path.stem}: {used['calls']} authored texts, no model asked"
                continue
            outcomes = ", ".join(f"{count} {name}" for name, count in used["outcomes"].items())
            yield (
                f"  {path.stem}: {used['source']}; {used['calls']} calls, {used['replayed']} replayed, "
                f"{used['tokens_in']} tokens in, {used['tokens_out']} out, ${used['usd']:.2f}; {outcomes}"
            )


def expected_memes(profile: Profile) -> int:
    """How many memes a run will have, from its cap or from the example table; folders are counted by file."""
    total = 0
    for source in profile.sources:
        if source == "example":
            with (paths.example / "memes.csv").open(encoding="utf-8", newline="") as handle:
                total += sum(1 for _ in csv.DictReader(handle))
        elif (paths.root / source).is_dir():
            total += sum(1 for path in (paths.root / source).rglob("*") if path.is_file())
    return min(total, profile.max_memes) if profile.max_memes and total else profile.max_memes or total
