"""The example run from recordings alone, finished once for all tests of a session that look into it."""

import fcntl
import os
from pathlib import Path
from typing import Any

from stage_run import command, link_project
from whole_pipeline import STAGES

RUN = "example"


def finish(checkout: Path) -> Path:
    """Run every notebook of the first paper in `checkout`; returns it."""
    link_project(checkout)
    # Another hash seed and one thread: the tracked results were made with the machine's own.
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    for words in (("resolve",), *(("run", stage, RUN) for stage in STAGES)):
        done = command(checkout, *words, PYTHONHASHSEED="1", **threads)
        assert done.returncode == 0, f"{words}: {done.stderr[-3000:]}"
    return checkout


def shared(tmp_path_factory: Any) -> Path:
    """The finished checkout of a test session, also where several processes share the session."""
    base = Path(tmp_path_factory.getbasetemp())
    if os.environ.get("PYTEST_XDIST_WORKER"):
        base = base.parent
    checkout, kept = base / "example-run", base / "example-run.finished"
    with (base / "example-run.lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        if not kept.is_file():
            finish(checkout)
            kept.touch()
    return checkout
