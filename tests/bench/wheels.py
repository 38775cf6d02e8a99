"""Does every package of the lock come as a wheel for the machines that people have? `make wheels`

Nothing is installed: uv resolves the lock as if it were on each machine.
"""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

MACHINES = {
    "x86_64-unknown-linux-gnu": (),
    "aarch64-unknown-linux-gnu": ("pytrec-eval-terrier",),  # compiled at the set-up: needs a C compiler
    "aarch64-apple-darwin": (),
}
"""By platform the packages that have no wheel there."""
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
SOURCES = ("jieba", "jsonpath-rw", "rouge-score")
"""Pure Python, and published as a source only."""
MACOS = {"MACOSX_DEPLOYMENT_TARGET": "14.0"}
"""The oldest macOS for which faiss has a wheel."""


def missing(platform: str, python: str) -> str:
    """What uv says where the lock cannot be installed on that machine; empty where it can."""
    sources = [option for name in (*SOURCES, *MACHINES[platform]) for option in ("--no-binary", name)]
    asked = [Path(sys.executable).with_name("uv"), "pip", "install", "--dry-run", "-r", "requirements.lock"]
    asked += ["--only-binary", ":all:", *sources, "--target", "nowhere"]
    asked += ["--python-platform", platform, "--python-version", python]
    done = subprocess.run(asked, capture_output=True, text=True, env={**os.environ, **MACOS}, check=False)
    return done.stderr.strip() if done.returncode else ""


if __name__ == "__main__":
    with ThreadPoolExecutor(4) as pool:
        machines = list(product(MACHINES, PYTHONS))
        found = dict(zip(machines, pool.map(missing, *zip(*machines, strict=True)), strict=True))
    for (platform, python), said in found.items():
        print(f"{platform}, Python {python}: {said or 'a wheel for everything'}")
    sys.exit(any(found.values()))
