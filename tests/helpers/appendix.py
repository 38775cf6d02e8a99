"""The method that an appendix holds: its imports, constants, functions and classes, and no cell is run."""

import ast
import json
import re
from pathlib import Path
from types import SimpleNamespace

from memecmd_utils.files import paths


def load(name: str) -> SimpleNamespace:
    """What notebook `name` defines; names that are all capitals count as constants."""
    kept, names = ast.Module([], []), {"__name__": name}
    for cell in json.loads((paths.notebooks / f"{name}.ipynb").read_text(encoding="utf-8"))["cells"]:
        for node in ast.parse("".join(cell["source"])).body if cell["cell_type"] == "code" else ():
            constant = isinstance(node, ast.Assign) and all(
                isinstance(target, ast.Name) and target.id.isupper() for target in node.targets
            )
            defines = ast.Import | ast.ImportFrom | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
            if constant or isinstance(node, defines):
                kept.body.append(node)
    exec(compile(kept, name, "exec"), names)
    return SimpleNamespace(**names)


def edit(notebook: Path, **changes: str) -> None:
    """Give constants of a notebook other values, as somebody does who works with it."""
    text = notebook.read_text(encoding="utf-8")
    for name, value in changes.items():
        line = json.dumps(f"{name} = {value}", ensure_ascii=False)[1:-1].replace("\\", r"\\")
        text, count = re.subn(
            rf'^( *"){name} = .*?((?:\\n)?",?)$', rf"\g<1>{line}\g<2>", text, flags=re.MULTILINE
        )
        assert count == 1, name
    notebook.write_text(text, encoding="utf-8")
