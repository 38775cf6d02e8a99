"""A JupyterLab on the loopback address for tests: everything it writes lies in a folder of the test."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import stage_run

SECONDS = 90
"""JupyterLab has started by then, also on a busy machine."""
SETTINGS = {
    # Cells outside the window would not be drawn at all.
    "notebook-extension/tracker": '{"windowingMode": "none"}',
    "apputils-extension/notification": '{"fetchNews": "false"}',
}


@contextlib.contextmanager
def running(notebooks: Path, root: Path, folder: Path) -> Iterator[str]:
    """JupyterLab over `notebooks` whose kernels take `root` for the project; yields the address of a notebook
    with `{}` for its name. `folder` is its home: settings, logs and sockets lie there.
    """
    for name, text in SETTINGS.items():
        target = folder / ".jupyter/lab/user-settings/@jupyterlab" / f"{name}.jupyterlab-settings"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    runtime, log = folder / "runtime", folder / "jupyterlab.log"
    home = {"HOME": str(folder), "JUPYTER_RUNTIME_DIR": str(runtime), "JUPYTER_PREFER_ENV_PATH": "1"}
    command = [
        sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ip=127.0.0.1",
        "--port=0", "--expose-app-in-browser", f"--notebook-dir={notebooks}",
    ]  # fmt: skip
    start = {"env": stage_run.environment(root, **home), "cwd": folder, "start_new_session": True}
    with (
        log.open("wb") as out,
        subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, **start) as process,
    ):
        try:
            until = time.monotonic() + SECONDS
            while not (told := list(runtime.glob("jpserver-*.json"))):  # written once it listens
                started = process.poll() is None and time.monotonic() < until
                assert started, f"JupyterLab did not start:\n{log.read_text(encoding='utf-8')[-2000:]}"
                time.sleep(0.2)
            server = json.loads(told[0].read_text(encoding="utf-8"))
            yield f"{server['url']}lab/tree/{{}}?token={server['token']}"
        finally:
            process.send_signal(signal.SIGTERM)  # the server ends its kernels on this one
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)  # its own group: the server and its kernels
