"""Numbers of CM50's 50 templates for lessons without its data: counts and places, no meme and no caption.

`python tests/helpers/derived_cm50.py IMGFLIP CM50` writes `data/paper/cm50_*.csv` from folders of the two
data sets, with the package's reader, rule and filter. A test makes them anew where the data sets are.
"""

import sys
from pathlib import Path

import pandas as pd

from memecmd_utils.cm50 import filter, records
from memecmd_utils.files import paths
from memecmd_utils.settings import TemplateRule

PAPER = paths.data / "paper"
MOST_VOTES = 40
"""Votes are counted one by one up to here."""


def derive(imgflip: Path, cm50: Path) -> dict[str, pd.DataFrame]:
    """The tables by the names of their files."""
    frame, upstream = records.read_records(imgflip).frame, records.read_upstream(imgflip, [])
    published = records.read_cm50(cm50)
    sample = records.frame_of([meme for meme in published.memes if meme.split == "validation"])
    rule = TemplateRule()
    places = filter.validation_places(frame, sample, rule, published.infos).set_index("template")
    count = sample["template"].value_counts()
    templates = pd.DataFrame({"validation": count}).sort_index()
    templates.insert(0, "records", pd.Series(upstream).reindex(templates.index).astype("Int64"))
    for column in ("kept", "last 4 %", "in last 4 %", "first place"):
        kind = float if column == "first place" else "Int64"
        templates[column.replace(" %", "%").replace(" ", "_")] = places[column].astype(kind)
    templates = templates.rename(columns={"last_4%": "last_4_percent", "in_last_4%": "in_last_4_percent"})
    edges = filter.rule_edges(frame, sample, rule, published.infos)
    return {
        "cm50_templates": templates.rename_axis("template").reset_index().round({"first_place": 4}),
        "cm50_votes": votes(frame, sample, rule, published.infos),
        "cm50_edges": edges.astype({"expected": float}).round({"expected": 2}).drop(columns="chance"),
    }


def votes(frame: pd.DataFrame, sample: pd.DataFrame, rule: TemplateRule, infos: list) -> pd.DataFrame:
    """Records that pass all but the threshold of votes, and published ones, by votes; templates of both."""
    measured = filter.measure(frame, infos)
    others = filter.passing(measured, rule.model_copy(update={"min_votes": 0}))
    here = measured[others & measured["template"].isin(sample["template"])]
    known = sample[sample["template"].isin(here["template"])]
    by = range(MOST_VOTES + 1)
    return pd.DataFrame(
        {
            "votes": by,
            "records": here["votes"].value_counts().reindex(by, fill_value=0).to_numpy(),
            "published": known["votes"].value_counts().reindex(by, fill_value=0).to_numpy(),
        }
    )


if __name__ == "__main__":
    for name, table in derive(*map(Path, sys.argv[1:3])).items():
        table.to_csv(PAPER / f"{name}.csv", index=False, lineterminator="\n")
        print(name, len(table), "rows")
