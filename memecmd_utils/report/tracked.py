"""Tracked results: a few small files of the example run, copied for the README and compared by CI."""

import csv
import json
import math
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import numpy as np
from PIL import Image

from memecmd_utils.evaluation import leaderboard
from memecmd_utils.files import MemecmdError, paths
from memecmd_utils.report import readme
from memecmd_utils.runs import StageMissing

FLOAT_TOLERANCE = 1e-6 + 0.5e-6
"""Numbers agree to 1e-6; files hold six decimals, and rounding may part nearly equal ones by one unit."""
PIXEL_TOLERANCE = 0.02
"""Largest mean difference of two pictures, as a share of the full range: fonts differ a little."""
DECIMAL = re.compile(r"-?\d+\.\d+")
TEXT_FILES = ("numbers.json", "placements.csv")
PICTURES = ("chat.png", "fig3_scores.png", "fig4_consistency.png")


def refresh(run: str = "example") -> list[Path]:
    """Copy numbers, placements and pictures of a run into `reports/`, and quote them in `readme.PAGES`."""
    copied = [paths.reports / name for name in (*TEXT_FILES, *PICTURES)]
    for target in copied:
        shutil.copyfile(_find(paths.reports / run, target.name), target)
    made = paths.reports / run / leaderboard.FILE
    if made.is_file():  # by `make leaderboard`, which no run does by itself
        copied.append(Path(shutil.copyfile(made, paths.reports / leaderboard.FILE)))
    numbers = readme.tracked_numbers()
    pages = [paths.reports.parent / name for name in readme.PAGES]
    return copied + [page for page in pages if page.is_file() and readme.update(page, numbers)]


def _find(folder: Path, name: str) -> Path:
    for path in (folder / name, folder / "figures" / name):
        if path.is_file():
            return path
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


# --- A run's page with its notebooks, figures and tables as one folder that any static host can serve


MARKER = ".nojekyll"
"""An empty file: hosts that run Jekyll then leave the pages as they are. By it a site is known again."""
PARTS = ("figures", "tables")
SITE_FILES = ("*.html", "numbers.json", "placements.csv")
_SCRIPT = re.compile(r"(<script\b.*?</script>)", re.DOTALL | re.IGNORECASE)
_LINK = re.compile(r"""(<a\b[^>]*?\s)href="([^"]*)\"""", re.IGNORECASE)


class SiteError(MemecmdError, RuntimeError):
    """There is nothing to make a site of, or no room for it."""


def build(run_folder: Path, target: Path | None = None) -> Path:
    """Copy the pages, figures and tables of `reports/<run>/` into `target` (default: `site/` in it).

    A notebook's link to a notebook leads to its page. A link to what is not in the site, such as the dataset,
    stays as text. The site is made beside and then put in place of an older one; `SiteError` if `target`
    holds anything else, or if the run has no page yet.
    """
    if not (run_folder / "index.html").is_file():
        raise SiteError(f"{run_folder.name} has no index.html: run `make reproduce` first")
    target = target or run_folder / "site"
    if target.exists() and any(target.iterdir()) and not (target / MARKER).is_file():
        raise SiteError(f"{target} is not a site that this command made; name another folder")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".site-", dir=target.parent) as folder:
        fresh = Path(folder) / "site"
        fresh.mkdir()
        _fill(run_folder, fresh)
        if target.exists():
            shutil.rmtree(target)
        fresh.replace(target)
    return target


def _fill(run_folder: Path, site: Path) -> None:
    for pattern in SITE_FILES:
        for path in sorted(run_folder.glob(pattern)):
            shutil.copyfile(path, site / path.name)
    for part in PARTS:
        if (run_folder / part).is_dir():
            shutil.copytree(run_folder / part, site / part)
    for page in sorted(site.glob("*.html")):
        text = page.read_text(encoding="utf-8")
        page.write_text(mended(text, site), encoding="utf-8", newline="\n")
    (site / MARKER).touch()


def mended(text: str, site: Path) -> str:
    """A page whose links all lead to files of `site` or to the web; scripts are left as they are."""

    def link(match: re.Match[str]) -> str:
        start, address = match.groups()
        if leads_somewhere(address, site):
            return match[0]
        page = re.sub(r"\.ipynb(?=$|#)", ".html", address)
        if page != address and leads_somewhere(page, site):
            return f'{start}href="{page}"'
        return f"{start}data-not-here"  # an anchor without href is text

    pieces = _SCRIPT.split(text)
    return "".join(piece if _SCRIPT.match(piece) else _LINK.sub(link, piece) for piece in pieces)


def leads_somewhere(address: str, site: Path) -> bool:
    """Whether an address is on the web, in the page itself, or a file below `site`, relative to it."""
    parts = urlsplit(address)
    if parts.scheme or parts.netloc:
        return parts.scheme in ("http", "https", "mailto")
    if not parts.path:
        return True
    found = (site / unquote(parts.path)).resolve()
    return not parts.path.startswith("/") and found.is_relative_to(site.resolve()) and found.is_file()
