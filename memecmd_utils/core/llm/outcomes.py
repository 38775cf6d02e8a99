"""What became of every question that a run asked of models, read from the counts that its stages wrote."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from memecmd_utils.core.llm.messages import UNRECORDED
from memecmd_utils.settings import Profile

STAGES = ("annotation", "scenario", "dialogue_generation", "evaluation")


def usage_of(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Stage and counts of every chat of a run's folder that asked for anything, in the order of stages."""

    def place(path: Path) -> tuple[int, str]:
        return next((i for i, s in enumerate(STAGES) if path.name.startswith(s)), len(STAGES)), path.name

    for path in sorted((folder / "usage").glob("*.json"), key=place):
        if path.name.endswith(".keys.json"):
            continue
        # Runs made before these two were counted have none.
        used = {"retries": {}, "think_characters": 0, **json.loads(path.read_text(encoding="utf-8"))}
        if used["calls"] or used["replayed"]:
            yield path.stem, used


def outcomes(folder: Path) -> list[dict[str, Any]]:
    """What became of every question of a run: a row a stage, with all outcomes by name."""
    return [
        {
            "stage": stage,
            "source": used["source"],
            "outcomes": counted(used["outcomes"]),
            "calls": used["calls"],
            "replayed": used["replayed"],
            "tried again": counted(used["retries"]) or "none",
            "tokens in": used["tokens_in"],
            "tokens out": used["tokens_out"],
            "characters of thought": used["think_characters"],
            "US dollars": round(used["usd"], 4),
        }
        for stage, used in usage_of(folder)
    ]


def counted(counts: dict[str, int]) -> str:
    """Counts by name as words: "12 accepted, 1 refusal"."""
    return ", ".join(f"{count:,} {name}" for name, count in counts.items())


def not_recorded(profile: Profile, folder: Path) -> str:
    """How many scores a run lacks because nothing is on record and nobody was asked, and how to have them.

    Empty where none is lacking. Read from what stages 05 and 05b wrote into the run's `folder`.
    """
    lacking: list[str] = []
    if (folder / "ratings.parquet").is_file():
        import pyarrow.parquet as pq

        reasons = pq.read_table(folder / "ratings.parquet", columns=["unscored"])["unscored"].to_pylist()
        if n := sum(reason.startswith(UNRECORDED) for reason in reasons):
            lacking.append(f"{n:,} of {len(reasons):,} ratings by judges")
    outcomes = next((used["outcomes"] for stage, used in usage_of(folder) if stage == "studies"), {})
    if n := outcomes.get(UNRECORDED, 0):
        lacking.append(f"{n:,} of {sum(outcomes.values()):,} summaries by a small model")
    if not lacking:
        return ""
    return (
        f"{' and '.join(lacking)} have no recorded answer: answers were recorded for other settings, and "
        "mode=recorded asks nobody. They are unscored and left out of every mean. To have them answered: "
        f"{_answered_by(profile)}"
    )


def _answered_by(profile: Profile) -> str:
    """The commands after which a run's judges can answer."""
    local = [
        judge.local_model or profile.models.local_model
        for judge in profile.evaluation.judges
        if judge.llm == "local"
    ]
    if profile.evaluation.other_summaries:
        local.append(profile.models.local_model)
    installs = [f"`make local-llm MODEL={model}`" for model in dict.fromkeys(local)]
    return ", ".join([*installs, "then the same command with mode=auto added to SET."])
