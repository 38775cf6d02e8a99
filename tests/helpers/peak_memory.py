"""Peak resident memory of a command and all it starts, apart from that of the process that asks.

On Linux the `ru_maxrss` of a child begins at the peak of the process that forked it: exec carries it over. A
test process of 2 GB would so give 2 GB to a child of 20 MB. A small process in between has no such peak.
"""

import sys
from pathlib import Path

LAUNCH = """
import resource, subprocess, sys
status = subprocess.call(sys.argv[2:])
with open(sys.argv[1], "w", encoding="ascii") as told:
    told.write(str(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss))
sys.exit(status if status >= 0 else 128 - status)
"""
UNIT = 1 if sys.platform == "darwin" else 1024
"""Bytes of one `ru_maxrss`."""


def launcher(told: Path) -> list[str]:
    """What to put before a command so that `told` holds its peak afterwards."""
    return [sys.executable, "-S", "-c", LAUNCH, str(told)]


def peak(told: Path) -> int:
    """Bytes of the largest process that the command was or waited for."""
    return int(told.read_text(encoding="ascii")) * UNIT
