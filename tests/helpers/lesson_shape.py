"""What an executed notebook shows: whether a reader soon sees a picture, and no table larger than a page."""

import re
from pathlib import Path
from typing import NamedTuple

import nbformat

FIRST_CELLS = 8
MOST_ROWS, MOST_COLUMNS = 14, 8
DRAWN = re.compile(r"<img|<svg|class=\"mc-page")
"""Signs of a picture in HTML; the last one is a drawn chat, which may hold bubbles only."""


class Table(NamedTuple):
    """A table on a page, without its head and its index."""

    cell: int
    rows: int
    columns: int


def cells(notebook: Path) -> list[nbformat.NotebookNode]:
    """Cells as a reader counts them: without the one in which the runner repeats parameters."""
    found = nbformat.read(notebook, as_version=4).cells
    return [cell for cell in found if "injected-parameters" not in cell.metadata.get("tags", [])]


def pictures(cell: nbformat.NotebookNode) -> int:
    """Outputs of a cell that show a picture."""
    return sum(
        any(kind.startswith("image/") for kind in data) or bool(DRAWN.search(data.get("text/html", "")))
        for data in _shown(cell)
    )


def tables(notebook: Path) -> list[Table]:
    """Every table that an executed notebook shows."""
    return [
        Table(place, len(rows), max((len(re.findall(r"<td", row)) for row in rows), default=0))
        for place, cell in enumerate(cells(notebook))
        for data in _shown(cell)
        for body in re.findall(r"<table.*?</table>", data.get("text/html", ""), re.DOTALL)
        for rows in [[row for row in re.split(r"<tr", body) if "<td" in row]]
    ]


def odd_tables(notebook: Path) -> list[Table]:
    """Tables that are empty or larger than a page."""
    return [t for t in tables(notebook) if not 0 < t.rows <= MOST_ROWS or t.columns > MOST_COLUMNS]


def _shown(cell: nbformat.NotebookNode) -> list[dict[str, str]]:
    return [output.get("data", {}) for output in cell.get("outputs", ())]


def check(notebook: Path) -> None:
    """Fail where a notebook begins without a picture, or shows a table that is empty or too large."""
    first = cells(notebook)[:FIRST_CELLS]
    assert any(map(pictures, first)), f"{notebook.stem}: no picture in the first {FIRST_CELLS} cells"
    assert odd_tables(notebook) == [], f"{notebook.stem}: empty, or over {MOST_ROWS} x {MOST_COLUMNS}"
