"""A JupyterLab on the loopback address for tests: everything it writes lies in a folder of the test."""

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from urllib.error import URLError

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
    token, log = secrets.token_urlsafe(24), folder / "jupyterlab.log"
    environment = stage_run.environment(root, HOME=str(folder), JUPYTER_TOKEN=token)
    command = [
        sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ip=127.0.0.1",
        "--port=0", "--expose-app-in-browser",
        f"--notebook-dir={notebooks}",
    ]  # fmt: skip
    start = {"env": {**environment, "JUPYTER_PREFER_ENV_PATH": "1"}, "cwd": folder, "start_new_session": True}
    with (
        log.open("wb") as out,
        subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, **start) as process,
    ):
        try:
            address = f"http://127.0.0.1:{port}"
            until = time.monotonic() + SECONDS
            while not _answers(f"{address}/api/status?token={token}"):
                started = process.poll() is None and time.monotonic() < until
                assert started, f"JupyterLab did not start:\n{log.read_text(encoding='utf-8')[-2000:]}"
                time.sleep(0.2)
            yield f"{address}/lab/tree/{{}}?token={token}"
        finally:
            process.send_signal(signal.SIGTERM)  # the server ends its kernels on this one
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)  # its own group: the server and its kernels


def _answers(url: str) -> bool:
    with contextlib.suppress(URLError, OSError), urllib.request.urlopen(url, timeout=5):
        return True
    return False
