"""The studies on a run's page: the paragraph of answers, and a folding group of tables for each question."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd

from memecmd_utils import judge_checks, studies
from memecmd_utils.report import Group, Table
from memecmd_utils.runs import Run


class Shown(NamedTuple):
    """A group: its heading, the study whose sentence stands above it, and its tables with their notes."""

    title: str
    study: str
    tables: Mapping[str, tuple[str, str]]


GROUPS = (
    Shown(
        "In how many readings of the paper does each claim hold?",
        "claims",
        {
            "claims": (
                "Claims",
                "A reading is one combination of the paper's open choices. sign: the estimate has the "
                "claim's sign; clear: its interval leaves out zero; cannot tell: no meme was sent. "
                "Shares of readings.",
            ),
            "claims_by_measure": ("Claims by what they are measured with", ""),
            "claims_what_matters": ("Which choice decides", "How far shares lie apart between its values."),
        },
    ),
    Shown(
        "Does each term help?",
        "ablation",
        {
            "ablation": ("One term left out", "Full score minus the rest; above zero: the term helps."),
            "weights": ("Weights fitted on the other half", ""),
            "weights_halves": ("The fitted weights", ""),
        },
    ),
    Shown(
        "Which form of the threshold?",
        "threshold",
        {
            "threshold": ("Three forms at the same meme rate", "Follow-ups: memes right after another one."),
            "threshold_minus": ("Differences to the exponential form", ""),
        },
    ),
    Shown(
        "What causes repeats?",
        "hubs",
        {
            "hubs": ("k-occurrence", "N_k: turns that have a meme among their top k."),
            "hub_cures": ("Cures, before and after", ""),
            "hub_shares": ("Share of repeats that hubs take", ""),
        },
    ),
    Shown("What does K cost?", "k", {"choice_of_k": ("K = 1 to 10", "Expected values, not draws.")}),
    Shown(
        "Where should the summary come from?",
        "sources",
        {
            "sources": ("Sources of the summary", "Where judged@5 is low, figures are lower bounds."),
            "sources_minus": ("Differences to the run's own summaries", ""),
        },
    ),
    Shown(
        "Is Figure 3 a normal distribution?",
        "normality",
        {
            "score_shape": ("Shape of the scores", ""),
            "score_shape_tests": ("Tests, for what they are worth", ""),
        },
    ),
)
"""In the order of the page; a study that the run has not made is left out."""


def answers(run: Run, numbers: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Heading and text at the very top of the page."""
    people = json.loads(run.read("human_ratings.json").read_text(encoding="utf-8"))
    return [("In short", numbers["answers"]), ("Human ratings", people["verdict"])]


def groups(run: Run) -> list[Group]:
    """The judges, then every study; empty tables are left out."""
    checks = json.loads(run.read("judge_checks.json").read_text(encoding="utf-8"))
    made = studies.load(run)
    found = [_judges(checks)]
    for shown in GROUPS:
        tables = [
            (title, frame(made["tables"][name], made["columns"][name]), note)
            for name, (title, note) in shown.tables.items()
            if made["tables"].get(name)
        ]
        found.append(Group(shown.title, tables, made["sentences"].get(shown.study, "")))
    return [group for group in found if group.tables]


def _judges(checks: Mapping[str, Any]) -> Group:
    tables: Sequence[Table] = ()
    if checks["trust"]:
        trust = frame(checks["trust"], judge_checks.TRUST)
        note = (
            "AUC: share of pairs in which a fitting meme scores above a random one, or above one that "
            "fits another turn of the same dialogue (hard negative); 0.5 is chance. Hard negatives were "
            "graded, so some system had found them: that tells against retrieval and what resembles it. "
            "Random memes may be ungraded. order shift: change of p(yes) when the answers are named the "
            "other way round. alpha wordings: agreement over three wordings. The rule of the verdict was "
            "fixed before."
        )
        tables = [("Judges against the ground truth", judge_checks.printed(trust), note)]
    return Group("Which judge deserves which trust?", tables, checks["sentence"])


def frame(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> pd.DataFrame:
    """A table read back from JSON, its columns in order: what was not a number comes back as nan."""
    out = pd.DataFrame(rows, columns=list(columns))
    for column in out:
        if out[column].map(lambda value: value is None or isinstance(value, float)).all():
            out[column] = out[column].astype(float)
    return out
