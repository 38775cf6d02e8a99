"""Notebook 04 in JupyterLab in a headless Chromium: a moved slider changes the chat."""

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from stage_run import environment, project

from memecmd_utils import files

WAIT_S = 120
SETTINGS = ".jupyter/lab/user-settings/@jupyterlab/notebook-extension/tracker.jupyterlab-settings"
READY = """
  const context = window.jupyterapp?.shell?.currentWidget?.sessionContext;
  return context?.session?.kernel?.status === 'idle' && !!document.querySelector('.jp-Notebook .jp-Cell');"""
PANEL = ".jupyter-widgets"
"""Chats of the lesson above it are no widgets."""
HANDLE = """
  const rows = [...document.querySelectorAll('.widget-hslider')];
  const label = row => row.querySelector('.widget-label').textContent.trim();
  return rows.find(row => label(row).startsWith(arguments[0])).querySelector('.noUi-handle');"""


@contextlib.contextmanager
def lab(root: Path, folder: Path) -> Iterator[str]:
    """JupyterLab on the loopback address whose kernels take `root` for the project; the address of lesson 04.

    `folder` is its home: settings and sockets lie there.
    """
    # Cells outside the window would not be drawn at all.
    files.write_text(folder / SETTINGS, '{"windowingMode": "none"}')
    runtime = folder / "runtime"
    home = {"HOME": str(folder), "JUPYTER_RUNTIME_DIR": str(runtime), "JUPYTER_PREFER_ENV_PATH": "1"}
    command = [
        sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ip=127.0.0.1",
        "--port=0", "--expose-app-in-browser", f"--notebook-dir={root / 'notebooks'}",
    ]  # fmt: skip
    process = subprocess.Popen(command, env=environment(root, **home), cwd=folder)
    try:
        until = time.monotonic() + WAIT_S
        while not (told := list(runtime.glob("jpserver-*.json"))):  # written once it listens
            assert process.poll() is None and time.monotonic() < until, "JupyterLab did not start"
            time.sleep(0.2)
        server = json.loads(told[0].read_text(encoding="utf-8"))
        yield f"{server['url']}lab/tree/04_retrieval.ipynb?token={server['token']}"
    finally:
        process.terminate()  # the server ends its kernels on this one
        process.wait(timeout=20)


def test_a_moved_slider_changes_the_chat(tmp_path, finished, open_browser) -> None:
    from selenium.webdriver.common.keys import Keys
    from selenium.webdriver.support.ui import WebDriverWait

    root = project(tmp_path / "checkout", finished)
    with open_browser(1500, 1000, silent=False) as driver, lab(root, tmp_path) as address:

        def wait(condition, what: str):
            return WebDriverWait(driver, WAIT_S, poll_frequency=0.2).until(
                lambda _: condition(), message=what
            )

        def chat() -> str:  # read in one go, for it may be redrawn at any moment
            script = f"return document.querySelector('{PANEL} .mc-page')?.innerHTML ?? ''"
            return driver.execute_script(script)

        def memes() -> int:
            return chat().count("data-meme=")

        driver.get(address)
        # Asked to run before there is a kernel, JupyterLab opens a dialog over everything.
        wait(lambda: driver.execute_script(READY), "the notebook and its kernel")
        driver.execute_script("window.jupyterapp.commands.execute('notebook:run-all-cells')")
        wait(lambda: driver.find_elements("css selector", f"{PANEL} .mc-turn"), "the panel")
        before, at_first = chat(), memes()
        knob = driver.execute_script(HANDLE, "θ")
        driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", knob)
        knob.send_keys(Keys.HOME)  # the lowest threshold: a meme at every turn
        wait(lambda: memes() == 17 > at_first, "a meme at every turn")
        knob.send_keys(Keys.END)
        wait(lambda: chat() and memes() < at_first, "fewer memes")
        assert driver.find_elements("css selector", "svg.mc-chart circle")
        button = driver.find_element("xpath", "//button[contains(., 'Back to the profile')]")
        driver.execute_script("arguments[0].click()", button)
        wait(lambda: chat() == before, "the profile's own chat")
        driver.execute_script(HANDLE, "w₁").send_keys(Keys.HOME)
        wait(lambda: chat() not in (before, ""), "other memes under another weight")
        assert driver.find_elements("css selector", f"{PANEL} .mc-page img[src^='data:image/jpeg;base64,']")
