"""What of this machine a process may use."""

import os


def cores() -> int:
    """CPU cores that this process may use: those it is bound to, where the system tells."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
