from pathlib import Path

import pytest

from memecmd_utils.files import paths


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MEMECMD_OFFLINE", "1")
    monkeypatch.setattr(paths, "raw", tmp_path / "raw")
