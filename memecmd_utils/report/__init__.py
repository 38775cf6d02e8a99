"""Stage 06: the figures of the paper, the numbers, the page of a run, and the results that are tracked."""

from memecmd_utils.report.entries import score_benchmarks, score_release, score_run
from memecmd_utils.report.page import write_page
from memecmd_utils.report.results import (
    case_pictures,
    case_studies,
    consistency_bars,
    load_records,
    write_numbers,
    write_release,
)

__all__ = [
    "case_pictures",
    "case_studies",
    "consistency_bars",
    "load_records",
    "score_benchmarks",
    "score_release",
    "score_run",
    "write_numbers",
    "write_page",
    "write_release",
]
