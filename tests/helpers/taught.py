"""The functions that notebooks define, taken out of their cells: tests hold them against the package."""

import ast
import math
from collections.abc import Collection
from typing import Any

import numpy as np


def functions(*sources: str, constants: Collection[str] = (), **known: object) -> dict[str, Any]:
    """Functions and named `constants` that these sources define; nothing else of them is run.

    `known` are names that they use.
    """
    found: dict[str, Any] = {"np": np, "math": math, **known}
    for source in sources:
        nodes = [
            node
            for node in ast.parse(source).body
            if isinstance(node, ast.FunctionDef)
            or (isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in constants)
        ]
        exec(compile(ast.Module(nodes, []), "notebook", "exec"), found)
    return found
