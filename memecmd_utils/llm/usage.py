"""What chats asked for: counted while they ask, and what a run's stages wrote of it, read back."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

from memecmd_utils.llm.messages import UNRECORDED, Reply


class Usage:
    """Calls, replays, tokens, money, retries and outcomes."""

    def __init__(self) -> None:
        self.calls = self.replayed = self.tokens_in = self.tokens_out = self.think_characters = 0
        self.usd = 0.0
        self.outcomes: Counter[str] = Counter()
        self.retries: Counter[str] = Counter()

    def add(self, reply: Reply, usd: float) -> None:
        """Count one live reply."""
        self.tokens_in += reply.tokens_in
        self.tokens_out += reply.tokens_out
        self.think_characters += reply.think_characters
        self.usd += usd

    def as_dict(self) -> dict[str, Any]:
        """Figures for the report."""
        counts = {
            name: dict(sorted(n.items())) if isinstance(n, Counter) else n for name, n in vars(self).items()
        }
        return {**counts, "usd": round(self.usd, 6)}


STAGES = ("annotation", "scenario", "dialogue_generation", "evaluation")


def outcome_rows(folder: Path) -> list[dict[str, Any]]:
    """What became of every question of a run: a row a stage, with all outcomes by name."""
    columns = {"calls": "calls", "replayed": "replayed", "tokens in": "tokens_in", "tokens out": "tokens_out",
               "characters of thought": "think_characters", "US dollars": "usd"}  # fmt: skip
    found = [path for path in (folder / "usage").glob("*.json") if not path.name.endswith(".keys.json")]
    found.sort(key=lambda path: ([not path.name.startswith(stage) for stage in STAGES], path.name))
    used = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in found}
    return [
        {
            "stage": stage,
            "source": counts["source"],
            "outcomes": counts_in_words(counts["outcomes"]),
            "tried again": counts_in_words(counts["retries"]) or "none",
            **{column: round(counts[name], 4) for column, name in columns.items()},
        }
        for stage, counts in used.items()
        if counts["calls"] or counts["replayed"]
    ]


def counts_in_words(counts: dict[str, int]) -> str:
    """Counts by name as words: "12 accepted, 1 refusal"."""
    return ", ".join(f"{count:,} {name}" for name, count in counts.items())


def not_recorded(folder: Path) -> str:
    """How many scores a run lacks because nothing is on record and nobody was asked, and how to have them.

    Empty where none is lacking. Read from what stage 05 wrote into the run's `folder`.
    """
    if not (folder / "ratings.parquet").is_file():
        return ""
    import pyarrow.parquet as pq

    reasons = pq.read_table(folder / "ratings.parquet", columns=["unscored"])["unscored"].to_pylist()
    lacking = sum(reason.startswith(UNRECORDED) for reason in reasons)
    if not lacking:
        return ""
    return (
        f"{lacking:,} of {len(reasons):,} ratings by judges have no recorded answer: answers were recorded "
        "for other settings, and mode=recorded asks nobody. They are unscored and left out of every mean. "
        "To have them answered, install local judges (`make local-llm MODEL=NAME`) and add mode=auto to "
        "SET (or to `settings`)."
    )
