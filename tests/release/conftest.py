from pathlib import Path

import made_release
import pytest


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A run's folder with three pictures."""
    return made_release.run_dir(tmp_path / "run")
