"""Shared by all tests: nothing here may touch the network or the user's caches."""

import os
import re
import subprocess
import sys
from pathlib import Path

import hypothesis
import pytest

# What tests start as a process of its own finds the same helpers.
HELPERS = str(Path(__file__).parent / "helpers")
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (HELPERS, os.environ.get("PYTHONPATH"))))

# No test fails because a machine is slow.
hypothesis.settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("any machine")

# Figures are drawn without a screen; hubs are never asked.
os.environ.setdefault("MPLBACKEND", "Agg")
os.environ.setdefault("HF_HUB_OFFLINE", "1")


@pytest.fixture(autouse=True)
def no_keys(monkeypatch):
    """A key in the environment of whoever runs the tests must not change them."""
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)


def pytest_collection_modifyitems(items):
    """Real models and data, browsers and what looks into a whole run of the pipeline are slow in any room."""
    for item in items:
        markers = {marker.name for marker in item.iter_markers()}
        fixtures = {"whole", "finished", "open_browser"}
        if markers & {"local_model", "corpora"} or fixtures & set(item.fixturenames):
            item.add_marker(pytest.mark.slow)
        if "torch" in item.fixturenames:
            item.add_marker(pytest.mark.paper)


@pytest.fixture
def quick(monkeypatch) -> None:
    """The SDK's pauses between its tries take no time."""
    import openai

    from memecmd_utils.llm import pace

    monkeypatch.setattr(openai._base_client, "INITIAL_RETRY_DELAY", 0.001)
    monkeypatch.setattr(openai._base_client, "MAX_RETRY_DELAY", 0.002)
    monkeypatch.setattr(pace, "LONGEST_WAIT_S", 0.001)


@pytest.fixture(scope="session")
def open_browser():
    """What opens a headless Chromium, `browser.open_browser`."""
    import browser

    return browser.open_browser


@pytest.fixture(scope="session")
def whole(tmp_path_factory):
    """The one whole run against a simulated endpoint that plants hostile text."""
    import whole_pipeline

    return whole_pipeline.shared(tmp_path_factory)


@pytest.fixture(scope="session")
def finished() -> Path:
    """This checkout with the finished example run, which is made where it is out of date."""
    root = Path(__file__).resolve().parents[1]
    words = [sys.executable, "-m", "memecmd_utils", "--profile", "example", "--set", "", "reproduce"]
    done = subprocess.run(words, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return root


@pytest.fixture(scope="session")
def torch():
    """PyTorch on one thread; a test skips where a package of the `paper` extra is missing."""
    for name in ("sentence_transformers", "torchvision", "transformers"):
        pytest.importorskip(name)
    torch = pytest.importorskip("torch")
    torch.set_num_threads(1)
    return torch


REQUIRED = "MEMECMD_REQUIRE_PAPER"
WITHOUT_PACKAGE = re.compile(r"could not import '|not installed|needs the `\w+` extra|needs [\d.]+ or later")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Where `MEMECMD_REQUIRE_PAPER=1`, a test that skips for want of a package fails, however it asks."""
    report = yield
    why = report.longrepr[-1] if report.skipped and isinstance(report.longrepr, tuple) else ""
    if os.environ.get(REQUIRED) == "1" and WITHOUT_PACKAGE.search(why):
        report.outcome = "failed"
        report.longrepr = f"{REQUIRED}=1, but {why.removeprefix('Skipped: ')}: give VENV=DIR, an environment "
        report.longrepr += "made from requirements-paper.lock"
    return report
