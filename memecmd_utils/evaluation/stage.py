"""All of stage 05 at once: every table of a run's evaluation, saved where the page and the README find it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from memecmd_utils import schemas
from memecmd_utils.evaluation import ground_truth, judge_checks, rankings, tables
from memecmd_utils.evaluation.ground_truth import GroundTruth
from memecmd_utils.evaluation.judge_checks import Checks
from memecmd_utils.evaluation.rankings import SystemTables
from memecmd_utils.runs import Run

FORM_ITEMS = 40
"""Items of the forms for people, without those that are shown twice."""


@dataclass(frozen=True)
class Evaluation:
    """What `evaluate_run` found: the tables, and sentences that are made of them."""

    agreement: pd.DataFrame
    """How far the two markers, and the two graders, agree."""
    timing: pd.DataFrame
    """How often markers and strategies send, and how far they agree on when."""
    placed: pd.DataFrame
    """Mean grade of the placed memes, a row a strategy."""
    systems: SystemTables
    """Every retrieval system against the grades."""
    effects: pd.DataFrame
    """Choice and timing, each with its interval."""
    table_1: pd.DataFrame
    table_2: pd.DataFrame
    forms: Mapping[str, int]
    """Items of each form that was written for people."""
    judge_sentence: str
    trust_sentence: str
    people_sentence: str


def evaluate_run(
    run: Run,
    ratings: Sequence[schemas.Rating],
    consistency: Sequence[schemas.Consistency],
    checks: Checks,
    truth: GroundTruth,
) -> Evaluation:
    """Compute and save all that stage 05 writes but the ratings, which `rate` has saved."""
    profile = run.profile
    dialogues, placements = run.load(schemas.Dialogue), run.load(schemas.Placement)
    annotations = run.load(schemas.Annotation)
    memes = {meme.meme_id: meme for meme in run.load(schemas.Meme)}
    by_id = {one.dialogue_id: one for one in dialogues}
    run.save(consistency, schemas.Consistency)

    check = tables.judge_check(ratings, profile)
    found = {"judge_check": tables.frame_rows(check), "ratings": {"total": len(ratings)}}
    trust = judge_checks.trust_sentence(checks)
    run.save_json("judge_checks.json", {"sentence": trust, "trust": tables.frame_rows(checks.trust)})

    agreement = ground_truth.grader_agreement(truth)
    timing = ground_truth.timing_agreement(truth, placements, dialogues)
    placed = ground_truth.mean_grades(placements, truth)
    systems = rankings.evaluate_systems(run, dialogues, memes, annotations, truth)
    systems.save(run, agreement, timing, placed)

    table_1 = tables.table_1(ratings, consistency, dialogues, profile)
    grades = ground_truth.grades_of_placed(placements, truth)
    effects = tables.effects(ratings, consistency, dialogues, profile, grades)
    cases = tables.case_dialogues(placements, dialogues, profile)
    table_2 = tables.beside_paper(tables.table_2(cases, ratings, consistency, profile))

    from memecmd_utils import people  # which rates what this room has judged

    forms = people.write_forms(run, placements, by_id, memes, FORM_ITEMS)
    answers = people.collect_ratings(run)
    by_judges = people.scores_of_judges(ratings, consistency, truth.grades)
    human = people.ratings_summary(answers, by_judges)
    verdict = people.ratings_verdict(answers, human)
    run.save_json("human_ratings.json", {"verdict": verdict})

    run.save_tables(
        judge_check=check,
        judge_trust=checks.trust,
        judge_calibration=checks.calibration,
        judge_wordings=checks.wordings,
        judge_agreement=checks.agreement,
        table_1=table_1,
        table_1_printed=tables.table_1_printed(table_1),
        paper_table_1=tables.paper_table_1(),
        table_2=table_2,
        effects=effects,
        meme_use=tables.meme_use(placements, dialogues),
        **{f"human_{name}": table for name, table in human.items()},
    )
    return Evaluation(
        agreement=agreement,
        timing=timing,
        placed=placed,
        systems=systems,
        effects=effects,
        table_1=table_1,
        table_2=table_2,
        forms={kind: len(form.items) for kind, form in forms.items()},
        judge_sentence=tables.judge_verdict(found),
        trust_sentence=trust,
        people_sentence=verdict,
    )
