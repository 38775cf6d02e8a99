"""Stage 05: judges, consistency, graded ground truth, and Tables 1 and 2 (2507.00891, Sections 5.1 and 5.2).

Judges see the chat as a picture or as text; systems are held against grades, and so are judges.
"""

from memecmd_utils.evaluation import learning
from memecmd_utils.evaluation.consistency import measure_consistency
from memecmd_utils.evaluation.graded_turns import MEASURES, graded_of_study, load_graded_turns
from memecmd_utils.evaluation.ground_truth import (
    grader_agreement,
    grades_of_placed,
    load_truth,
    mean_grades,
    timing_agreement,
    truth_of_run,
)
from memecmd_utils.evaluation.judge_checks import ask_all, measure_answers
from memecmd_utils.evaluation.judges import Context, answers_on_record, contexts_elsewhere
from memecmd_utils.evaluation.landing import measure_landing
from memecmd_utils.evaluation.rankings import evaluate_systems
from memecmd_utils.evaluation.ratings import rate, screenshot
from memecmd_utils.evaluation.stage import evaluate_run
from memecmd_utils.evaluation.tables import (
    beside_paper,
    case_dialogues,
    consistency_frame,
    effects,
    frame_rows,
    headline,
    judge_check,
    judge_verdict,
    meme_use,
    paper_table_1,
    table_1,
    table_1_printed,
    table_2,
)

__all__ = [
    "MEASURES",
    "Context",
    "answers_on_record",
    "ask_all",
    "beside_paper",
    "case_dialogues",
    "consistency_frame",
    "contexts_elsewhere",
    "effects",
    "evaluate_run",
    "evaluate_systems",
    "frame_rows",
    "graded_of_study",
    "grader_agreement",
    "grades_of_placed",
    "headline",
    "judge_check",
    "judge_verdict",
    "learning",
    "load_graded_turns",
    "load_truth",
    "mean_grades",
    "measure_answers",
    "measure_consistency",
    "measure_landing",
    "meme_use",
    "paper_table_1",
    "rate",
    "screenshot",
    "table_1",
    "table_1_printed",
    "table_2",
    "timing_agreement",
    "truth_of_run",
]
