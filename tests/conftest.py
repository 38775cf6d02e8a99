"""Shared by all tests: nothing here may touch the network or the user's caches."""

import os

import pytest

# Figures are drawn without a screen; hubs are never asked.
os.environ.setdefault("MPLBACKEND", "Agg")
os.environ.setdefault("HF_HUB_OFFLINE", "1")


@pytest.fixture(autouse=True)
def no_keys(monkeypatch):
    """A key in the environment of whoever runs the tests must not change them."""
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "MEMECMD_GGUF"):
        monkeypatch.delenv(name, raising=False)
