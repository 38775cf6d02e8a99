"""Notebook 04 in JupyterLab in a headless Chromium: a moved slider changes the chat."""

import os
import shutil
from pathlib import Path

import browser
import lab_server
import pytest

from memecmd_utils import annotation, dialogue, files, news, runs, schemas, settings
from memecmd_utils.files import paths
from memecmd_utils.library import build_library
from memecmd_utils.llm import chat as llm_chat

NOTEBOOK = "04_retrieval.ipynb"
SMALL = "max_memes=24 n_news=2 n_role_pairs=0"  # small so that it takes seconds
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


def small_run(root: Path) -> None:
    """What stages 01 to 03 hand to 04, of a small example run; the authored corpus answers."""
    profile = settings.load_profile("example", settings.parse_settings(SMALL))
    run = runs.Run("example", profile, root / "data/processed/example", root / "reports/example")
    build_library(profile, run.folder)
    memes = files.read_parquet(run.read("memes.parquet"), schemas.Meme)
    with run.chat("annotator", "annotation") as chat:
        annotations = llm_chat.run(annotation.annotate(memes, chat, profile))
    files.write_parquet(run.write("annotations.parquet"), annotations, schemas.Annotation)
    starts = [dialogue.from_news(item) for item in dialogue.plan(news.load_news(profile), [], profile)[0]]
    with run.chat("generator", "dialogue_generation") as chat:
        llm_chat.run(dialogue.generate(starts, chat, profile, run.folder))


@pytest.fixture(scope="module")
def checkout(tmp_path_factory) -> Path:
    """A project root with a small run, under the name where a notebook run by hand looks for its inputs."""
    if reason := browser.missing():
        if os.environ.get(browser.REQUIRED) == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    root = tmp_path_factory.mktemp("panel") / "checkout"
    (root / "data").mkdir(parents=True)
    for name in ("notebooks", "pyproject.toml", "CITATION.cff", "data/example", "data/profiles"):
        (root / name).symlink_to(paths.root / name)
    small_run(root)
    return root


@pytest.fixture(scope="module")
def lab(checkout):
    """The address of the notebook's copy in a running JupyterLab."""
    folder = checkout.parent
    (folder / "notebooks").mkdir()
    shutil.copy(paths.notebooks / NOTEBOOK, folder / "notebooks" / NOTEBOOK)
    with lab_server.running(folder / "notebooks", checkout, folder) as address:
        yield address.format(NOTEBOOK)


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


@pytest.mark.slow
def test_a_moved_slider_changes_the_chat(lab) -> None:
    from selenium.webdriver.common.keys import Keys

    with browser.open_browser(1500, 1000) as driver:
        run_all(driver, lab)
        before, at_first = chat(driver), memes(driver)
        knob = handle(driver, "θ")
        driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", knob)
        knob.send_keys(Keys.HOME)  # the lowest threshold: a meme at every turn
        wait(driver, lambda d: memes(d) == 17 > at_first, "a meme at every turn")
        full = chat(driver)
        knob.send_keys(Keys.END)
        wait(driver, lambda d: memes(d) == 0, "no meme")
        knob.send_keys(Keys.HOME)
        wait(driver, lambda d: chat(d) == full != before, "the same setting, the same chat")
        handle(driver, "w₁").send_keys(Keys.HOME)
        wait(driver, lambda d: chat(d) not in (full, ""), "other memes under another weight")
        assert driver.find_elements("css selector", f"{PANEL} .mc-page img[src^='data:image/jpeg;base64,']")
        assert driver.find_elements("css selector", "svg.mc-chart circle")
        button = driver.find_element("xpath", "//button[contains(., 'Back to the profile')]")
        driver.execute_script("arguments[0].click()", button)
        wait(driver, lambda d: chat(d) == before, "the profile's own chat")
