"""What an executed notebook shows: whether a reader soon sees a picture, and no table larger than a page."""

import re
from pathlib import Path

import nbformat

FIRST_CELLS = 8
MOST_ROWS, MOST_COLUMNS = 14, 8
DRAWN = re.compile(r"<img|<svg|class=\"mc-page")
"""Signs of a picture in HTML; the last one is a drawn chat, which may hold bubbles only."""


def cells(notebook: Path) -> list[nbformat.NotebookNode]:
    """Cells as a reader counts them: without the one in which the runner repeats parameters."""
    read = nbformat.read(notebook, as_version=4).cells
    return [cell for cell in read if "injected-parameters" not in cell.metadata.get("tags", [])]


def check(notebook: Path, pictures: bool = True) -> None:
    """Fail where a notebook begins without a picture, or shows a table that is empty or too large."""
    shown = [[output.get("data", {}) for output in cell.get("outputs", ())] for cell in cells(notebook)]
    early = [data for outputs in shown[:FIRST_CELLS] for data in outputs]
    drawn = ["image/png" in data or DRAWN.search(data.get("text/html", "")) for data in early]
    assert any(drawn) or not pictures, f"{notebook.stem}: no picture in the first {FIRST_CELLS} cells"
    for data in (data for outputs in shown for data in outputs):
        for body in re.findall(r"<table.*?</table>", data.get("text/html", ""), re.DOTALL):
            rows = [row for row in body.split("<tr") if "<td" in row]
            size = len(rows), max((row.count("<td") for row in rows), default=0)
            assert 0 < size[0] <= MOST_ROWS and size[1] <= MOST_COLUMNS, f"{notebook.stem}: a table of {size}"
