"""What numbers and page of a run say of learned placement, from its `landing.json`."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from memecmd_utils import statistics
from memecmd_utils.evaluation import benchmark, landing, learning
from memecmd_utils.files import paths
from memecmd_utils.library import example_memes
from memecmd_utils.runs import Run, StageMissing
from memecmd_utils.schemas import Meme

Rows = Sequence[Mapping[str, Any]]
CONTROL = "random, same turns as learned"
WAYS = ("learned", "greedy", CONTROL)
"""What `numbers.json` holds of the ways to send."""
SHARES = ("fits", "0 from both", "2 from both", "wanted and fits", "mean grade")
OWN, OURS, THEIRS = "each at its own turns", "at the turns of learned", "at the turns of Greedy"
"""Where learned placement and another are compared."""
QUOTED: dict[str, tuple[Callable[[Mapping[str, Any]], bool], Sequence[str]]] = {
    "placed": (
        lambda row: row["part"] == "all" and row["way"] in WAYS,
        ("split", "way", "memes", "0 from both", *statistics.with_ends("fits", "mean grade")),
    ),
    "differences": (
        lambda row: row["part"] == "all",
        ("split", "learned minus", "where", "mean", "low", "high", "dialogues", "p"),
    ),
    "gate": (
        lambda row: row["measure"] == "AUC",
        ("split", "gate", "mean", "low", "high", "n", "dialogues"),
    ),
    "ranking": (
        lambda row: row["part"] == "all",
        ("split", "what", "turns", *statistics.with_ends("nDCG@5")),
    ),
}
"""Which rows and columns of the tables `numbers.json` holds."""


def load(run: Run) -> dict[str, Rows]:
    """The tables of `landing.json`; empty where the run has none, or nothing in it was graded."""
    try:
        found = json.loads(run.read(landing.FILE).read_text(encoding="utf-8"))
    except StageMissing:
        return {}
    return found if found["placed"] else {}


def digest(found: Mapping[str, Rows]) -> dict[str, list[dict[str, Any]]]:
    """What the page's answer and the READMEs quote, the untouched test first."""
    return {
        table: [{name: row[name] for name in columns} for row in _ordered(found[table]) if wanted(row)]
        for table, (wanted, columns) in QUOTED.items()
        if found
    }


def _ordered(rows: Rows) -> list[Mapping[str, Any]]:
    return sorted(rows, key=lambda row: row["split"] != benchmark.UNTOUCHED)


def tables(found: Mapping[str, Rows], memes: Iterable[Meme]) -> list[tuple[str, pd.DataFrame, str]]:
    """Title, printed cells and note of every table; the untouched test stands first."""
    return [
        (
            "Memes that are sent",
            _placed(found["placed"]),
            "fits: mean grade of 1 or more, of 2. wanted and fits: a marker would also send one there. "
            "Ungraded memes count as 0. ranker alone, gate alone: half of learned placement decides where. "
            "News and role apart: tables/learned_placed.csv.",
        ),
        (
            "Learned minus the others",
            _differences(found["differences"]),
            "Mean grade (0-2) of the memes that are sent. An interval that contains 0 shows no difference.",
        ),
        (
            "When a meme is wanted",
            _gate(found["gate"]),
            "AUC: share of pairs in which a turn that all markers fill scores above one that none fills; 0.5 "
            "is chance. Kappa: as many turns are filled as the marker fills.",
        ),
        ("P(wanted) against marks", _reliability(found["reliability"]), "Turns in fifths by P(wanted)."),
        (
            "The ranker and the paper's score",
            _ranking(found["ranking"]),
            "Over turns that have a fitting meme. new memes alone: the library cut to the memes that no "
            "model was fitted on.",
        ),
        (
            "Wins and losses",
            _cases(found["cases"], memes),
            "Turns at which both would send different memes, with the largest differences in mean grade. "
            "The number is that grade; in brackets: no meme is sent there.",
        ),
    ]


def _cell(row: Mapping[str, Any], name: str = "mean", digits: int = 2, sign: str = "") -> str:
    return statistics.format_interval(row, name, digits, sign)


def _placed(rows: Rows) -> pd.DataFrame:
    return pd.DataFrame(
        {
            **{name: row[name] for name in ("split", "way", "memes")}, "ungraded": f"{row['ungraded']:.0%}",
            **{name: _cell(row, name) for name in SHARES},
        }
        for row in _ordered(rows) if row["part"] == "all"
    )  # fmt: skip


def _differences(rows: Rows) -> pd.DataFrame:
    return _wide(rows, ("split", "learned minus", "where"), "part", lambda row: _cell(row, sign="+"))


def _gate(rows: Rows) -> pd.DataFrame:
    return _wide(rows, ("split", "gate"), "measure", _cell)


def _reliability(rows: Rows) -> pd.DataFrame:
    return _wide(
        rows, ("split",), "fifth", lambda row: f"P {row['P(wanted)']:.2f}, marked {row['marked']:.2f}"
    )


def _wide(
    rows: Rows, index: Sequence[str], column: str, cell: Callable[[Mapping[str, Any]], str]
) -> pd.DataFrame:
    """A row for each combination of `index`, a column for each value of `column`."""
    wide: dict[tuple, dict[str, Any]] = {}
    for row in _ordered(rows):
        mine = wide.setdefault(tuple(row[name] for name in index), {name: row[name] for name in index})
        mine[str(row[column])] = cell(row)
    return pd.DataFrame(wide.values()).fillna("–")


def _ranking(rows: Rows) -> pd.DataFrame:
    return pd.DataFrame(
        {
            **{name: row[name] for name in ("split", "part", "what", "turns")},
            **{
                name: _cell(row, name, 3, "+" if "minus" in row["what"] else "") for name in learning.MEASURES
            },
        }
        for row in _ordered(rows)
    )


def _cases(rows: Rows, memes: Iterable[Meme]) -> pd.DataFrame:
    words = {meme.meme_id: meme.gloss or meme.text for meme in memes}
    if any(row["split"] == benchmark.UNTOUCHED for row in rows):
        new = example_memes(paths.example / benchmark.UNTOUCHED)
        words |= {meme.meme_id: meme.gloss for meme in new}

    def sent(row: Mapping[str, Any], who: str) -> str:
        said = f"{row[who]} {words.get(row[who], '')}: {row[f'{who} grade']:.1f}"
        return said if row[f"{who} sends"] else f"[{said}]"

    return pd.DataFrame(
        {
            **{name: row[name] for name in ("split", "case")}, "at": f"{row['dialogue_id']}, {row['turn']}",
            "learned": sent(row, "learned"), "Greedy": sent(row, "greedy"),
        }
        for row in _ordered(rows)
    )  # fmt: skip
