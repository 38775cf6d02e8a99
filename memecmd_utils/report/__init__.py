"""Stage 06: the figures of the paper, the numbers, the page of a run, and the results that are tracked."""

from memecmd_utils.report.figures import case_studies, consistency_bars
from memecmd_utils.report.page import case_pictures, write_numbers, write_page, write_release
from memecmd_utils.report.records import load_records

__all__ = [
    "case_pictures",
    "case_studies",
    "consistency_bars",
    "load_records",
    "write_numbers",
    "write_page",
    "write_release",
]
