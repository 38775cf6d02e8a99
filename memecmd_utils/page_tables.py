"""The tables of a run's page, in groups that fold."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from memecmd_utils import ground_truth, ground_truth_run, results, table_text, tables
from memecmd_utils.profiles import Profile
from memecmd_utils.report import Group, Table
from memecmd_utils.run_records import Records
from memecmd_utils.runs import Run


def groups(
    run: Run, records: Records, numbers: Mapping[str, Any], studies: Sequence[Group] = ()
) -> list[Group]:
    """All groups of the page; `studies` stand between the paper's tables and what was used and asked."""
    found = truth_tables(numbers["ground_truth"], run.profile)
    return [
        *([Group("Retrieval against ground truth", found)] if found else []),
        Group("The paper's tables", paper_tables(run, records, numbers)),
        *studies,
        Group("Use and bookkeeping", bookkeeping(run, records)),
    ]


def paper_tables(run: Run, records: Records, numbers: Mapping[str, Any]) -> list[Table]:
    """Tables 1 and 2 of this run beside the paper's cells, and the effects apart."""
    profile = run.profile
    judged = ", ".join(numbers["ratings"]["sources"]) or "none"
    measured = tables.table_1(records.ratings, records.consistency, records.dialogues, profile)
    cases = tables.case_dialogues(records.placements, records.dialogues, profile)
    table_2 = tables.table_2(cases, records.ratings, records.consistency, profile)
    return [
        (
            "Table 1: this run",
            table_text.html(tables.table_1_printed(measured).set_index("Dataset").T.reset_index(names="")),
            f"Judge: {judged}. Consistency: {scorer(records)}. Mean [95 % interval] (n=memes in dialogues), "
            "arrows: difference to Random. Best bold, second underlined.",
        ),
        (
            "Choice and timing effects",
            table_text.html(
                tables.effects(
                    records.ratings, records.consistency, records.dialogues, profile, records.grades
                )
            ),
            results.judge_verdict(numbers),
        ),
        (
            "Table 1: the paper's own cells",
            table_text.html(tables.paper_table_1()),
            "Printed differences, and the same recomputed.",
        ),
        (
            "Table 2: case studies",
            table_text.html(tables.beside_paper(table_2)),
            "The chats of Figure 5, all turns that stand there, chosen without a look at the scores. Beside "
            "them the paper's own: other dialogues and memes, scored by another judge.",
        ),
    ]


def bookkeeping(run: Run, records: Records) -> list[Table]:
    """How often memes were sent, and what was asked of models."""
    return [
        (
            "Meme use",
            table_text.html(tables.meme_use(records.placements, records.dialogues)),
            "Rates over turns 2 to T.",
        ),
        (
            "What was asked, and what became of it",
            pd.DataFrame(run.outcomes()),
            "This time; a question that an earlier run paid for is replayed. Outcomes other than accepted "
            "and, of utterances, violations are no answers: they are counted here and never scored as zero.",
        ),
    ]


def scorer(records: Records) -> str:
    """Name of the model that measured consistency."""
    return records.consistency[0].scorer if records.consistency else "none"


def truth_tables(found: Mapping[str, Sequence[Mapping[str, Any]]], profile: Profile) -> list[Table]:
    """The tables of the ground truth; none where the run has no ground truth."""
    if not found.get("retrieval"):
        return []
    timing = pd.DataFrame(found["timing"])
    kappas = sorted(column for column in timing.columns if column.startswith("kappa"))
    return [
        (
            "Which system finds the memes that fit?",
            ground_truth_run.short_table(found, profile),
            "Turns with a relevant meme (mean grade 1 or more of two graders). R@K: a relevant meme among "
            "the top K. judged@5: share of the top 5 that was graded. Differences with 95 % intervals over "
            f"{found['retrieval'][0]['dialogues']} dialogues, against the random ranking that was graded. "
            "Where judged@5 is below 1 the system did not feed the pool: its figures are lower bounds, save "
            "bpref, which is too kind to it. Markers and graders are sessions of a large language model, not "
            "people.",
        ),
        (
            "Grades of the placed memes",
            pd.DataFrame(found.get("placed", []), columns=list(ground_truth_run.PLACED)),
            "0 does not fit, 1 one could send it, 2 it lands; mean of two graders. ungraded: share of the "
            "memes that nobody graded, because no system of the pool had found them; the last column counts "
            "them as 0.",
        ),
        (
            "Model-model agreement",
            pd.DataFrame(found["agreement"], columns=list(ground_truth.AGREEMENT)),
            "Kappa with 95 % interval over dialogues; quadratic weights for grades; share of the same.",
        ),
        (
            "When one would send",
            timing.reindex(columns=[*ground_truth.TIMING, *kappas]),
            "A marked rate is what two sessions of a model would do; it is no rate of people.",
        ),
    ]
