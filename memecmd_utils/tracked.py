"""Tracked results: a few small files of the example run, copied for the README and compared by CI."""

import csv
import json
import math
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from memecmd_utils import paths, readme
from memecmd_utils.runs import StageMissing

FLOAT_TOLERANCE = 1e-6 + 0.5e-6
"""Numbers agree to 1e-6; files hold six decimals, and rounding may part nearly equal ones by one unit."""
PIXEL_TOLERANCE = 0.02
"""Largest mean difference of two pictures, as a share of the full range: fonts differ a little."""
DECIMAL = re.compile(r"-?\d+\.\d+")
TEXT_FILES = ("numbers.json", "placements.csv")
PICTURES = ("chat.png", "fig3_scores.png", "fig4_consistency.png")


def refresh(run: str = "example") -> list[Path]:
    """Copy numbers, placements and pictures of a run into `reports/`, and quote them in the READMEs."""
    copied = []
    for name in (*TEXT_FILES, *PICTURES):
        source = _find(paths.reports / run, name)
        shutil.copyfile(source, paths.reports / name)
        copied.append(paths.reports / name)
    for page in (paths.reports.parent / name for name in readme.FILES):
        if page.is_file():
            numbers = json.loads((paths.reports / "numbers.json").read_text(encoding="utf-8"))
            copied += [page] if readme.update(page, numbers) else []
    return copied


def _find(folder: Path, name: str) -> Path:
    for candidate in (folder / name, folder / "figures" / name):
        if candidate.is_file():
            return candidate
    raise StageMissing(f"{folder.name} has no {name}: run `make reproduce` first")


def differences(a: Any, b: Any, where: str = "") -> list[str]:
    """Paths at which two JSON values differ: texts and ids exactly, floats beyond 1e-6 and rounding."""
    if isinstance(a, dict) and isinstance(b, dict):
        found = [f"{where}.{key}: only in one" for key in sorted(a.keys() ^ b.keys())]
        for key in sorted(a.keys() & b.keys()):
            found += differences(a[key], b[key], f"{where}.{key}")
        return found
    if isinstance(a, list) and isinstance(b, list):
        if len(a) != len(b):
            return [f"{where}: {len(a)} and {len(b)} entries"]
        return [
            d for i, (x, y) in enumerate(zip(a, b, strict=True)) for d in differences(x, y, f"{where}[{i}]")
        ]
    if _is_number(a) and _is_number(b) and (isinstance(a, float) or isinstance(b, float)):
        same = math.isclose(a, b, rel_tol=0, abs_tol=FLOAT_TOLERANCE) or (math.isnan(a) and math.isnan(b))
        return [] if same else [f"{where}: {a} and {b}"]
    return [] if a == b and type(a) is type(b) else [f"{where}: {a!r} and {b!r}"]


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _csv_rows(path: Path) -> list[list[Any]]:
    """Cells as text, save those with a decimal point: an id such as `12e456789012` is not a number."""

    def value(cell: str) -> Any:
        return float(cell) if DECIMAL.fullmatch(cell) else cell

    with path.open(encoding="utf-8", newline="") as handle:
        return [[value(cell) for cell in row] for row in csv.reader(handle)]


def picture_difference(a: Path, b: Path) -> float:
    """Mean absolute difference of two pictures, 0 to 1; pictures of different size differ wholly."""
    with Image.open(a) as first, Image.open(b) as second:
        if first.size != second.size:
            return 1.0
        x, y = (np.asarray(image.convert("RGB"), dtype=float) for image in (first, second))
    return float(np.abs(x - y).mean() / 255)


def compare(run: str = "example", tracked: Path = paths.reports, reports: Path | None = None) -> list[str]:
    """What differs between a run below `reports` and the tracked files; empty if nothing does."""
    folder = (reports or paths.reports) / run
    found = differences(
        json.loads((tracked / "numbers.json").read_text(encoding="utf-8")),
        json.loads(_find(folder, "numbers.json").read_text(encoding="utf-8")),
        "numbers",
    )
    found += differences(
        _csv_rows(tracked / "placements.csv"), _csv_rows(_find(folder, "placements.csv")), "placements"
    )
    for name in PICTURES:
        gap = picture_difference(tracked / name, _find(folder, name))
        if gap > PIXEL_TOLERANCE:
            found.append(f"{name}: pictures differ by {gap:.3f}")
    return found
