"""The method that an appendix holds: its imports, constants, functions and classes, and no cell is run."""

import ast
import re
from pathlib import Path
from types import SimpleNamespace

import nbformat

from memecmd_utils.files import paths


def load(name: str) -> SimpleNamespace:
    """What notebook `name` defines; names that are all capitals count as constants."""
    kept, names = ast.Module([], []), {"__name__": name}
    defines = ast.Import | ast.ImportFrom | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    for cell in nbformat.read(paths.notebooks / f"{name}.ipynb", as_version=4).cells:
        for node in ast.parse(cell.source).body if cell.cell_type == "code" else ():
            constant = isinstance(node, ast.Assign) and ast.unparse(node.targets).isupper()
            if constant or isinstance(node, defines):
                kept.body.append(node)
    exec(compile(kept, name, "exec"), names)
    return SimpleNamespace(**names)


def edit(notebook: Path, **changes: str) -> None:
    """Give constants of a notebook other values, as somebody does who works with it."""
    opened = nbformat.read(notebook, as_version=4)
    for name, value in changes.items():
        (cell,) = (cell for cell in opened.cells if re.search(rf"^{name} = ", cell.source, re.MULTILINE))
        cell.source = re.sub(rf"^{name} = .*", f"{name} = {value}", cell.source, flags=re.MULTILINE)
    nbformat.write(opened, notebook)
