"""A JupyterLab on the loopback address for tests: everything it writes lies in a folder of the test."""

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from urllib.error import URLError

SECONDS = 90
"""JupyterLab has started by then, also on a busy machine."""
SETTINGS = {
    # Cells outside the window would not be drawn at all.
    "@jupyterlab/notebook-extension/tracker.jupyterlab-settings": '{"windowingMode": "none"}',
    "@jupyterlab/apputils-extension/notification.jupyterlab-settings": '{"fetchNews": "false"}',
}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def running(notebooks: Path, root: Path, folder: Path) -> Iterator[str]:
    """JupyterLab over `notebooks` whose kernels take `root` for the project; yields the address of a notebook
    with `{}` for its name. Settings, logs and sockets lie in `folder`.
    """
    for name, text in SETTINGS.items():
        target = folder / "settings" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    token, port = secrets.token_urlsafe(24), free_port()
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("OPENAI_", "MEMECMD_", "JUPYTER"))}
    environment = {
        **kept,
        "MEMECMD_ROOT": str(root),
        "JUPYTER_TOKEN": token,
        "JUPYTER_CONFIG_DIR": str(folder / "config"),
        "JUPYTER_DATA_DIR": str(folder / "data"),
        "JUPYTER_RUNTIME_DIR": str(folder / "runtime"),
        "JUPYTERLAB_SETTINGS_DIR": str(folder / "settings"),
        "JUPYTERLAB_WORKSPACES_DIR": str(folder / "workspaces"),
        "IPYTHONDIR": str(folder / "ipython"),
        "JUPYTER_PREFER_ENV_PATH": "1",
    }
    command = [
        sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ip=127.0.0.1",
        f"--port={port}", "--ServerApp.port_retries=0", "--expose-app-in-browser",
        f"--notebook-dir={notebooks}",
    ]  # fmt: skip
    log = (folder / "jupyterlab.log").open("w", encoding="utf-8")
    address = f"http://127.0.0.1:{port}"
    with (
        log,
        subprocess.Popen(
            command, env=environment, cwd=folder, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        ) as process,
    ):
        try:
            _wait(f"{address}/api/status?token={token}", process, folder / "jupyterlab.log")
            yield f"{address}/lab/tree/{{}}?token={token}"
        finally:
            process.send_signal(signal.SIGTERM)  # the server ends its kernels on this one
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)  # its own group: the server and its kernels


def _wait(url: str, process: subprocess.Popen, log: Path) -> None:
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        if process.poll() is not None:
            break
        with contextlib.suppress(URLError, OSError), urllib.request.urlopen(url, timeout=5):
            return
        time.sleep(0.2)
    raise AssertionError(f"JupyterLab did not start:\n{log.read_text(encoding='utf-8')[-2000:]}")
