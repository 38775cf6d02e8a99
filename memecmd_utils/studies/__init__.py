"""Notebook 05b: studies of what the paper leaves open, each with its tables."""

import json
from collections.abc import Mapping
from typing import Any

import pandas as pd

from memecmd_utils.evaluation import frame_rows
from memecmd_utils.runs import Run
from memecmd_utils.studies.ablation import fit_weights, leave_one_out
from memecmd_utils.studies.figures import hubs_figure, specification_figure
from memecmd_utils.studies.hubness import hubness_study
from memecmd_utils.studies.selection import threshold_tables
from memecmd_utils.studies.specification_curve import (
    influential_choices,
    shares_by_choice,
    shares_by_claim,
    specifications,
)
from memecmd_utils.studies.summary_sources import compare_sources

FILE = "studies.json"


def save_tables(run: Run, tables: Mapping[str, pd.DataFrame]) -> None:
    """Write the tables as CSV, Markdown and LaTeX, and `studies.json` for whoever quotes them."""
    run.save_tables(**tables)
    rows = {name: frame_rows(table) for name, table in tables.items()}
    # JSON objects are written with their names sorted: the order of columns stands beside them.
    columns = {name: list(table.columns) for name, table in tables.items()}
    run.save_json(FILE, {"tables": rows, "columns": columns})


def load_tables(run: Run) -> dict[str, Mapping[str, Any]]:
    """`tables` (rows by name) and `columns` of a run as they were saved."""
    return json.loads(run.read(FILE).read_text(encoding="utf-8"))
