"""What the studies found, gathered by notebook 05b for page, README and release."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from memecmd_utils.evaluation.tables import frame_rows
from memecmd_utils.runs import Run

FILE = "studies.json"


@dataclass
class Collected:
    """Tables of the studies by name, and for each study one sentence that says what was found."""

    tables: dict[str, pd.DataFrame] = field(default_factory=dict)
    sentences: dict[str, str] = field(default_factory=dict)

    def add(self, study: str, sentence: str, **tables: pd.DataFrame) -> str:
        """Keep a study's sentence and tables; return the sentence. A name taken twice is an error."""
        if study in self.sentences or self.tables.keys() & tables.keys():
            raise ValueError(f"the study {study!r} or a table of it ({', '.join(tables)}) is there already")
        self.sentences[study] = sentence
        self.tables |= tables
        return sentence

    def save(self, run: Run) -> None:
        """Write every table as CSV, Markdown and LaTeX, and `studies.json` for whoever quotes them."""
        run.save_tables(**self.tables)
        rows = {name: frame_rows(table) for name, table in self.tables.items()}
        # JSON objects are written with their names sorted: the order of columns stands beside them.
        columns = {name: list(table.columns) for name, table in self.tables.items()}
        run.save_json(FILE, {"sentences": self.sentences, "tables": rows, "columns": columns})


def load(run: Run) -> dict[str, Mapping[str, Any]]:
    """`sentences`, `tables` (rows) and `columns` of a run as they were saved."""
    return json.loads(run.read(FILE).read_text(encoding="utf-8"))
