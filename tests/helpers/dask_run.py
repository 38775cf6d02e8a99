"""Stage 03 of a run in a process of its own, alone or under Dask with a worker that is killed.

`dask_run.py alone PROFILE SETTINGS RUN` or `dask_run.py dask PROFILE SETTINGS RUN SERVER_LOG KILL_AFTER`;
prints one line of JSON. The simulated endpoint's log says when to kill: after so many of its lines.
"""

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from memecmd_utils import runs
from memecmd_utils.dialogue import cluster as dialogue_cluster


def alone(profile: str, settings: str, name: str) -> dict[str, Any]:
    run = runs.open_run(profile, settings, name)
    made = dialogue_cluster.make(run, dialogue_cluster.planned(run.profile))
    return {"dialogues": made.dialogues, "unfinished": made.unfinished}


def dask(profile: str, settings: str, name: str, log: str, kill_after: str) -> dict[str, Any]:
    from distributed import Client, LocalCluster

    run = runs.open_run(profile, settings, name)
    killed: list[int] = []
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, host="127.0.0.1", dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        pids = sorted(client.run(os.getpid).values())

        def kill() -> None:
            while Path(log).read_bytes().count(b"\n") < int(kill_after):
                time.sleep(0.01)
            os.kill(pids[0], signal.SIGKILL)
            killed.append(pids[0])

        if int(kill_after):
            threading.Thread(target=kill, daemon=True).start()
        parts = dialogue_cluster.launch(run, client)
        after = sorted(client.run(os.getpid).values())
    return {"parts": parts, "killed": len(killed), "same workers": after == pids}


if __name__ == "__main__":
    print(json.dumps({"alone": alone, "dask": dask}[sys.argv[1]](*sys.argv[2:])))
