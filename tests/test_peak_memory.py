"""The peak of a command is its own: neither that of the process that asks nor less than what it used."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import peak_memory
import pytest

MB = 1 << 20
USED = "made = bytearray({size}); made[::4096] = b'1' * len(made[::4096])"
BY_ITS_CHILD = "import subprocess, sys; sys.exit(subprocess.call([sys.executable, '-c', {code!r}]))"


def measured(told: Path, code: str) -> int:
    subprocess.run([*peak_memory.launcher(told), sys.executable, "-c", code], check=True, timeout=60)
    return peak_memory.peak(told)


@pytest.fixture
def large() -> np.ndarray:
    """What makes this process larger than anything measured here."""
    return np.ones(400 * MB, dtype=np.uint8)


@pytest.mark.usefixtures("large")
def test_a_small_command_of_a_large_process_is_small(tmp_path: Path) -> None:
    assert measured(tmp_path / "told", "pass") < 60 * MB


@pytest.mark.usefixtures("large")
def test_what_a_command_or_its_child_used_is_counted(tmp_path: Path) -> None:
    code = USED.format(size=200 * MB)
    for one in (code, BY_ITS_CHILD.format(code=code)):
        assert 200 * MB < measured(tmp_path / "told", one) < 260 * MB
