"""The summary of a run: one paragraph that answers what the paper's claims leave open."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from memecmd_utils import statistics, studies
from memecmd_utils.runs import Run

QUESTIONS = {
    "ablation": "Does each dimension help?",
    "threshold": "Which form of the threshold differs?",
    "hubs": "What causes repeats?",
    "judges": "Which judge can be trusted?",
    "claims": "In how many specifications does each claim of the paper survive?",
}
"""Studies whose sentences follow the first two, with what each answers, in this order."""
METRICS = {"grade": "mean grade, 0 to 2", "consistency": "text consistency"}
"""Measures of placed memes, the best first: where a run has no grades the next one speaks."""


def beats_random(effects: Sequence[Mapping[str, Any]]) -> str:
    """Does retrieval beat random, and by choice or by timing? From rows of `tables.effects`."""
    for metric in METRICS:
        mine = {row["comparison"]: row for row in effects if row["metric"] == metric}
        choice = mine.get("greedy - random_same_turns")
        timing = mine.get("random_same_turns - random")
        if choice and choice["mean"] is not None:
            break
    else:
        return "No measure of this run can say whether retrieval beats random."
    text = (
        f"Does retrieval beat random? By choice: Greedy's memes against random ones at the same turns "
        f"differ by {statistics.format_interval(choice, sign='+')} ({METRICS[metric]}; "
        f"{choice['dialogues']} dialogues), so {_verdict(choice)}."
    )
    if timing and timing["mean"] is not None:
        text += (
            f" By timing: random memes at the gate's turns against random ones anywhere differ by "
            f"{statistics.format_interval(timing, sign='+')} ({timing['dialogues']} dialogues), "
            f"so {_verdict(timing)}."
        )
    return text


def _verdict(row: Mapping[str, Any]) -> str:
    if row["low"] is None and statistics.too_few(row["dialogues"]):
        return "too few dialogues to say"
    if row["low"] is None:
        return "it cannot be told"
    if row["low"] > 0:
        return "yes"
    return "no, it is worse" if row["high"] < 0 else "it cannot be told"


def paragraph(effects: Sequence[Mapping[str, Any]], sentences: Mapping[str, str]) -> str:
    """All answers in one paragraph; a study that the run has not made is left out."""
    rest = [f"{asked} {sentences[name]}" for name, asked in QUESTIONS.items() if sentences.get(name)]
    return " ".join([beats_random(effects), *rest])


def of_run(run: Run, effects: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """For `numbers.json`: the paragraph, every study's sentence, and the tables that the READMEs quote."""
    checks = json.loads(run.read("judge_checks.json").read_text(encoding="utf-8"))
    made = studies.load(run)
    sentences = {**made["sentences"], "judges": checks["sentence"]}
    return {
        "answers": paragraph(effects, sentences),
        "studies": {
            "sentences": sentences,
            "trust": checks["trust"],
            "claims": made["tables"].get("claims", []),
        },
    }
