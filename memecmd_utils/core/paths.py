"""Absolute paths of the project. Importing this module creates nothing and prints nothing."""

import os
from pathlib import Path


def find_root() -> Path:
    """Project root: `MEMECMD_ROOT` if set, else the nearest folder above that holds the notebooks.

    The package is installed in editable mode, so its own location is the first place to look;
    the working directory serves a package that was installed as a wheel beside a checkout.
    """
    if os.environ.get("MEMECMD_ROOT"):
        return Path(os.environ["MEMECMD_ROOT"]).resolve()
    here = Path(__file__).resolve().parents[2]
    for folder in (here, Path.cwd(), *Path.cwd().parents):
        if (folder / "notebooks").is_dir() and (folder / "pyproject.toml").is_file():
            return folder
    raise FileNotFoundError("project root not found: run inside the checkout or set MEMECMD_ROOT")


root = find_root()
notebooks = root / "notebooks"
data = root / "data"
profiles = data / "profiles"  # one YAML per profile
example = data / "example"  # the embedded corpus, tracked
raw = data / "raw"  # what a user brings or fetches, and recordings of live models
interim = data / "interim"  # caches that can be made again
processed = data / "processed"  # one folder per run
reports = root / "reports"  # executed notebooks, tables, figures: one folder per run
prompts = Path(__file__).resolve().parents[1] / "prompts"


def user_path(name: str | Path) -> Path:
    """A path as a user gives it: from the project's root if it is relative, `~` being the home folder."""
    return root / Path(name).expanduser()
