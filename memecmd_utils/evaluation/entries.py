"""The leaderboard of a run, of a release, or of MOD: scored, written, and put on the run's page."""

from collections.abc import Sequence
from pathlib import Path

from memecmd_utils import annotation, files, page, runs, schemas
from memecmd_utils.evaluation import benchmark, leaderboard
from memecmd_utils.evaluation.benchmark import Benchmark, Split
from memecmd_utils.files import MemecmdError
from memecmd_utils.runs import Run

PRINTED = 12
"""Systems of a split in the terminal."""


def score_run(run: Run, entries: Sequence[str] = (), name: str = "", grades: Path | None = None) -> str:
    """Score the package's systems, kept entries and `entries` on a run's benchmark; the best in a table.

    `grades` is a user's CSV in place of the example's. The run's page shows the new leaderboard.
    """
    memes, annotations = annotation.releasable(run.load(schemas.Meme), run.load(schemas.Annotation))
    splits = benchmark.splits_of_run(run, run.load(schemas.Dialogue), memes, annotations, grades)
    if not splits:
        raise MemecmdError(
            f"run {run.name} has no grades, so no benchmark: GRADES=grades.csv names a file with the columns "
            "dialogue_id, turn, meme_id, grade"
        )
    built = [benchmark.build(split) for split in splits]
    text = score_benchmarks(built, run, entries, name, splits, leaderboard.kept_entries())
    page.rewrite_page(run)
    return text


def score_release(folder: Path, profile: str, settings: str, entries: Sequence[str], name: str = "") -> str:
    """The same on the benchmark of a release, under the embedder and weights of a profile."""
    inner = folder / "benchmark"
    run = runs.open_run(profile, settings, "leaderboard")
    return score_benchmarks(benchmark.read(inner if inner.is_dir() else folder), run, entries, name)


def score_benchmarks(
    benchmarks: Sequence[Benchmark],
    run: Run,
    entries: Sequence[str] = (),
    name: str = "",
    splits: Sequence[Split] = (),
    kept: Sequence[str] = (),
) -> str:
    """Score on some benchmarks and write the tables into the report of `run`; the best of each as text.

    `name` is that of `entries`; `kept` ones go by their own.
    """
    given = dict.fromkeys(kept, "") | dict.fromkeys(entries, name)
    found, timing = leaderboard.score(benchmarks, run, given, splits)
    leaderboard.save(run, found, timing, benchmarks)
    rows = leaderboard.load(run.report)
    parts = [
        f"{one.split}: {len(one.asked):,} turns, {len(one.memes):,} memes\n"
        + files.markdown(leaderboard.top(rows, one.split, PRINTED))
        for one in benchmarks
    ]
    if len(timing):
        parts.append("when a meme is wanted\n" + files.markdown(timing))
    return "\n".join([*parts, f"written: {run.report / 'tables' / 'leaderboard.csv'}"])
