"""What a run wrote and where, in a few lines for the terminal."""

import csv
from collections.abc import Iterator
from pathlib import Path

from memecmd_utils import outcomes, paths, prices, profiles
from memecmd_utils.endpoint_embedder import TASK
from memecmd_utils.judges import STOPPED
from memecmd_utils.ledger import Ledger
from memecmd_utils.profiles import Profile, run_name


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
    scored, stopped = _judged(data / "ratings.parquet")
    lines = [
        "",
        f"run {run}: " + ", ".join(f"{value} {name}" for name, value in show.items()) + f", {scored} scored",
        f"  page to look at    {_where(report / 'index.html')}",
        f"  dataset            {_where(data / 'release')}/",
        f"  tables             {_where(report / 'tables')}/",
        f"  figures            {_where(report / 'figures')}/",
        f"  numbers            {_where(report / 'numbers.json')}",
        f"  executed notebooks {_where(report)}/*.html",
    ]
    lines += [*stopped, *real_usage(run)]
    settled = profiles.read_resolved(data)
    if settled and (lacking := outcomes.not_recorded(Profile.model_validate(settled), data)):
        lines += ["", lacking]
    return "\n".join(lines)


def _judged(path: Path) -> tuple[str, list[str]]:
    """How many ratings have a score, and a line for each judge that was stopped early."""
    if not path.is_file():
        return "-", []
    import pandas as pd

    ratings = pd.read_parquet(path, columns=["judge", "overall", "unscored"])
    unasked = ratings[ratings["unscored"] == STOPPED].groupby("judge", sort=False).size()
    return str(ratings["overall"].count()), [
        f"  {judge} {STOPPED}; {n} of its ratings were not asked for (another model or model_label is)"
        for judge, n in unasked.items()
    ]


def cost_text(profile: Profile) -> str:
    """The estimate of a profile, beside what its run really used where it has begun. No call is made."""
    from memecmd_utils import cost

    ledger = Ledger(paths.processed / run_name(profile) / "usage" / "ledger.sqlite")
    table = prices.beside(cost.estimate(profile, expected_memes(profile)), ledger)
    notes = ["", "Estimate: prompts of typical length, nothing recorded yet. No call was made."]
    if not ledger.spent:
        notes[1] += " After a run the real figures stand beside it."
    if profile.batch:
        notes.append("Batches come back within 24 hours, often sooner; they cost half.")
    ends = profile.endpoints
    for endpoint in (ends.generator, ends.annotator, *ends.judges, ends.embedder):
        if endpoint is None or not endpoint.model:
            continue
        if endpoint.usd_per_million_in is None:
            notes.append(
                f"The price of {endpoint.model} is not known (usd_per_million_in, usd_per_million_out)."
            )
        if endpoint.vision and endpoint.tokens_per_image is None:
            notes.append(
                f"What {endpoint.model} counts for a picture is not known (tokens_per_image): a meme counts "
                f"as {prices.UNSAID_TOKENS_PER_IMAGE} tokens here; gpt-4o counts 255, gpt-4o-mini 8,500."
            )
    return prices.as_text(table) + "\n" + "\n".join(notes)


def _where(path: Path) -> str:
    return str(path.relative_to(paths.root))


def real_usage(run: str) -> Iterator[str]:
    """A line per stage that spoke to a model."""
    for stage, used in outcomes.usage_of(paths.processed / run):
        if used["source"] == "authored":
            yield f"  {stage}: {used['calls']} authored texts, no model asked"
            continue
        again = outcomes.counted(used["retries"])
        yield (
            f"  {stage}: {used['source']}; {used['calls']} calls, {used['replayed']} replayed, "
            f"{used['tokens_in']} tokens in, {used['tokens_out']} out, ${used['usd']:.2f}; "
            f"{outcomes.counted(used['outcomes'])}" + (f"; tried again: {again}" if again else "")
        )
    vectors = Ledger(paths.processed / run / "usage" / "ledger.sqlite").spent.get((TASK, TASK))
    if vectors is not None:
        yield (
            f"  {TASK}: {vectors.calls + vectors.unsure_calls} calls, {vectors.tokens_in} tokens in, "
            f"${vectors.usd + vectors.unsure_usd:.2f}"
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
