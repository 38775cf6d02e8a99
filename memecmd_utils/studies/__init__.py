"""Notebook 05b: studies of what the paper leaves open, each with its tables."""

from collections.abc import Mapping

import pandas as pd

from memecmd_utils.runs import Run
from memecmd_utils.studies.ablation import compare_sources, leave_one_out
from memecmd_utils.studies.selection import threshold_tables
from memecmd_utils.studies.specification_curve import (
    influential_choices,
    shares_by_choice,
    shares_by_claim,
    specifications,
)


def save_tables(run: Run, tables: Mapping[str, pd.DataFrame]) -> None:
    """Write the tables as CSV, Markdown and LaTeX, and `studies.json` for whoever quotes them."""
    run.save_tables(**tables)
    run.save_json("studies.json", tables)
