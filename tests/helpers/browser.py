"""A headless Chromium for the tests of pages; skipped where there is none."""

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest

REQUIRED = "MEMECMD_REQUIRE_BROWSER"
"""Set to 1 where a missing browser is a fault and not a reason to skip (CI)."""
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
QUIET = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-dev-shm-usage", "--hide-scrollbars", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip
SECONDS = 60
"""A page that is not there by then is a failure."""


def missing() -> str:
    """Why no browser can be opened here; empty where one can."""
    there = any(map(shutil.which, NAMES)) and shutil.which("chromedriver") and find_spec("selenium")
    return "" if there else "no Chromium, chromedriver or selenium (Debian: apt install chromium-driver)"


@contextmanager
def open_browser(
    width: int = 1400, height: int = 1000, downloads: Path | None = None, silent: bool = True
) -> Iterator:
    """A Selenium driver over a headless Chromium whose page is `width` x `height` CSS pixels.

    What the page saves lies in the folder `downloads`. A `silent` page writes no error to the console but
    those that `errors` has told. Skips the test where Chromium, chromedriver or selenium is missing; fails
    instead if MEMECMD_REQUIRE_BROWSER is 1.
    """
    if reason := missing():
        if os.environ.get(REQUIRED) == "1":
            pytest.fail(f"{reason}; {REQUIRED} is set")
        pytest.skip(reason)
    from selenium import webdriver

    with tempfile.TemporaryDirectory(prefix="memecmd-browser-", ignore_cleanup_errors=True) as profile:
        options = webdriver.ChromeOptions()
        options.binary_location = next(filter(None, map(shutil.which, NAMES)))
        for argument in (*QUIET, f"--user-data-dir={profile}"):
            options.add_argument(argument)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        driver = webdriver.Chrome(options, webdriver.ChromeService(shutil.which("chromedriver")))
        try:
            driver.set_page_load_timeout(SECONDS)
            driver.set_script_timeout(SECONDS)
            resize(driver, width, height)
            # A window behind others has no focus, and JupyterLab knows no notebook without it.
            driver.execute_cdp_cmd("Emulation.setFocusEmulationEnabled", {"enabled": True})
            if downloads:
                allow = {"behavior": "allow", "downloadPath": str(downloads)}
                driver.execute_cdp_cmd("Browser.setDownloadBehavior", allow)
            yield driver
            assert not silent or errors(driver) == []
        finally:
            driver.quit()


def reload_until(driver, kept: Callable[[], object]) -> None:
    """Load the page anew until `kept` is true: what a page stores reaches the disk a little later."""
    end = time.monotonic() + 10
    driver.refresh()
    while not kept():
        assert time.monotonic() < end, "the page has forgotten what it stored"
        time.sleep(0.2)
        driver.refresh()


def downloaded(folder: Path) -> Path:
    """The CSV file that a click lets the page save in `folder`, once all of it is there."""
    end = time.monotonic() + 20
    while True:
        found = [file for file in folder.glob("*.csv") if file.stat().st_size]
        if found and not list(folder.glob("*.crdownload")):
            return found[0]
        assert time.monotonic() < end, "no download"
        time.sleep(0.05)


def resize(driver, width: int, height: int) -> None:
    """Give the page this size in CSS pixels (a window is wider than a phone; a page need not be)."""
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)


def errors(driver) -> list[str]:
    """Messages of level SEVERE that the page wrote to the console since the last call."""
    return [entry["message"] for entry in driver.get_log("browser") if entry["level"] == "SEVERE"]


PHONE = (390, 844)


def on_a_phone(driver, address: str) -> int:
    """Open a page on a phone; returns by how many CSS pixels it is wider than the screen."""
    resize(driver, *PHONE)
    driver.get(address)
    # Not `innerWidth`: a phone zooms out of a wide page, and then that is as wide as the page.
    return driver.execute_script("return document.documentElement.scrollWidth") - PHONE[0]


def asked_elsewhere(driver) -> list[str]:
    """What the page has asked of anything but itself and the files beside it, whether it came or not."""
    script = "return performance.getEntriesByType('resource').map(entry => entry.name)"
    return [
        name for name in driver.execute_script(script) if not name.startswith(("data:", "file:", "blob:"))
    ]


def photograph(driver, path: Path) -> Path:
    """Save what the page shows now as a PNG; returns `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(driver.get_screenshot_as_png())
    return path
