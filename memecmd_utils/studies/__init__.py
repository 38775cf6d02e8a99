"""Notebook 05b: studies of what the paper leaves open, each with its tables."""

from memecmd_utils.studies.ablation import compare_sources, leave_one_out
from memecmd_utils.studies.selection import threshold_tables
from memecmd_utils.studies.specification_curve import (
    influential_choices,
    shares,
    shares_by_choice,
    specifications,
)
