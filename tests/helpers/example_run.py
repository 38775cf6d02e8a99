"""The example run of this checkout, brought up to date once for all tests that look into it."""

import subprocess
import sys
from pathlib import Path

from memecmd_utils.files import paths

RUN = "example"


def finish() -> Path:
    """Run every notebook of the first paper that is out of date; returns the project's root."""
    words = [sys.executable, "-m", "memecmd_utils", "--profile", RUN, "--set", "", "reproduce"]
    done = subprocess.run(words, cwd=paths.root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return paths.root
