"""Whether anybody can turn a knob: a run by `runner` has no reader, JupyterLab has one."""

import os

VARIABLE = "MEMECMD_HEADLESS"
"""Set to 1 in the kernel of a headless run; panels then show a picture of their first position."""


def is_headless() -> bool:
    """Whether this process belongs to a headless run."""
    return os.environ.get(VARIABLE) == "1"
