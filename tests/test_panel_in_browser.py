"""Notebook 04 in JupyterLab in a headless Chromium: a moved slider changes the chat."""

import lab_server
from stage_run import project

NOTEBOOK = "04_retrieval.ipynb"
WAIT_S = 120
READY = """
  const context = window.jupyterapp?.shell?.currentWidget?.sessionContext;
  return context?.session?.kernel?.status === 'idle' && !!document.querySelector('.jp-Notebook .jp-Cell');"""
PANEL = ".jupyter-widgets"
"""Chats of the lesson above it are no widgets."""
HANDLE = """
  const rows = [...document.querySelectorAll('.widget-hslider')];
  const label = row => row.querySelector('.widget-label').textContent.trim();
  return rows.find(row => label(row).startsWith(arguments[0])).querySelector('.noUi-handle');"""


def wait(driver, condition, what: str):
    from selenium.webdriver.support.ui import WebDriverWait

    return WebDriverWait(driver, WAIT_S, poll_frequency=0.2).until(condition, message=what)


def run_all(driver, address: str) -> None:
    """Open the notebook, run all of its cells, and wait for the panel."""
    driver.get(address)
    # Asked to run before there is a kernel, JupyterLab opens a dialog over everything.
    wait(driver, lambda d: d.execute_script(READY), "the notebook and its kernel")
    driver.execute_script("window.jupyterapp.commands.execute('notebook:run-all-cells')")
    wait(driver, lambda d: d.find_elements("css selector", f"{PANEL} .mc-turn"), "the panel")


def chat(driver) -> str:
    """The chat's markup; read in one go, for it may be redrawn at any moment."""
    return driver.execute_script(f"return document.querySelector('{PANEL} .mc-page')?.innerHTML ?? ''")


def memes(driver) -> int:
    return chat(driver).count("data-meme=")


def handle(driver, label: str):
    """The handle of the slider whose label begins with `label`."""
    return driver.execute_script(HANDLE, label)


def test_a_moved_slider_changes_the_chat(tmp_path, finished, open_browser) -> None:
    from selenium.webdriver.common.keys import Keys

    root = project(tmp_path / "checkout")
    (root / "data" / "processed").mkdir()
    (root / "data" / "processed" / "example").symlink_to(finished / "data" / "processed" / "example")
    lab = lab_server.running(root / "notebooks", root, tmp_path)
    with open_browser(1500, 1000, silent=False) as driver, lab as address:
        run_all(driver, address.format(NOTEBOOK))
        before, at_first = chat(driver), memes(driver)
        knob = handle(driver, "θ")
        driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", knob)
        knob.send_keys(Keys.HOME)  # the lowest threshold: a meme at every turn
        wait(driver, lambda d: memes(d) == 17 > at_first, "a meme at every turn")
        full = chat(driver)
        knob.send_keys(Keys.END)
        wait(driver, lambda d: chat(d) and memes(d) < at_first, "fewer memes")
        knob.send_keys(Keys.HOME)
        wait(driver, lambda d: chat(d) == full != before, "the same setting, the same chat")
        handle(driver, "w₁").send_keys(Keys.HOME)
        wait(driver, lambda d: chat(d) not in (full, ""), "other memes under another weight")
        assert driver.find_elements("css selector", f"{PANEL} .mc-page img[src^='data:image/jpeg;base64,']")
        assert driver.find_elements("css selector", "svg.mc-chart circle")
        button = driver.find_element("xpath", "//button[contains(., 'Back to the profile')]")
        driver.execute_script("arguments[0].click()", button)
        wait(driver, lambda d: chat(d) == before, "the profile's own chat")
