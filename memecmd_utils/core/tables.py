"""Tables as text: CSV, Markdown, LaTeX and HTML, one printer each.

Our own marks in cells, `**best**` and `<u>second</u>`, become each format's own; everything else is escaped.
"""

import re
from collections.abc import Collection
from pathlib import Path

import pandas as pd
from markupsafe import Markup, escape

from memecmd_utils.core import storage

MARKDOWN_SIGNS = re.compile(r"[|<`$]|\](?=[(\[:])")
LATEX_MARKS = (
    (r"\*\*(.+?)\*\*", r"\\textbf{\1}"),
    (r"<u>(.+?)</u>", r"\\underline{\1}"),
    ("↑", r"$\\uparrow$"),
    ("↓", r"$\\downarrow$"),
    ("–", "--"),
)
HTML_MARKS = ((r"\*\*([\d.]+)\*\*", r"<b>\1</b>"), (r"&lt;u&gt;([\d.]+)&lt;/u&gt;", r"<u>\1</u>"))


def save(folder: Path, **tables: pd.DataFrame) -> None:
    """Write each table as CSV, Markdown and LaTeX into `folder`."""
    for name, table in tables.items():
        storage.write_frame(folder / f"{name}.csv", table)
        storage.write_text(folder / f"{name}.md", markdown(table))
        storage.write_text(folder / f"{name}.tex", latex(table))


def markdown(table: pd.DataFrame, right: Collection[str] = ()) -> str:
    """A GitHub-style table; bars in cells are escaped, line ends become spaces.

    `right`: names of the columns that stand to the right.
    """

    def cell(value: object) -> str:
        if value is None or value is pd.NA or value != value:
            return "–"
        if isinstance(value, float):
            return f"{value:.3f}"
        # Markdown lets HTML through and makes links and pictures; our own <u> and ** stay.
        text = MARKDOWN_SIGNS.sub(r"\\\g<0>", " ".join(str(value).splitlines()))
        return re.sub(r"\\<(/?u)\\?>", r"<\1>", text)

    rules = ("---:" if name in right else "---" for name in table.columns)
    lines = ["| " + " | ".join(table.columns) + " |", "|" + "|".join(rules) + "|"]
    lines += ["| " + " | ".join(cell(v) for v in row) + " |" for row in table.itertuples(index=False)]
    return "\n".join(lines) + "\n"


def latex(table: pd.DataFrame) -> str:
    """A LaTeX table."""
    text = table.to_latex(index=False, escape=True, float_format="%.3f", na_rep="--")
    for mark, command in LATEX_MARKS:
        text = re.sub(mark, command, text)
    return text


def html(table: pd.DataFrame) -> Markup:
    """A table for a page."""

    def cell(value: object) -> str:
        if isinstance(value, float):
            return "–" if pd.isna(value) else f"{value:.3f}"
        text = str(escape(value))
        for mark, element in HTML_MARKS:
            text = re.sub(mark, element, text)
        return text

    head = "".join(f"<th>{escape(name)}</th>" for name in table.columns)
    rows = "".join(
        "<tr>" + "".join(f"<td>{cell(v)}</td>" for v in row) + "</tr>"
        for row in table.itertuples(index=False)
    )
    return Markup(f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>")
