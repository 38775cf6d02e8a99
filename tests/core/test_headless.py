import pytest

from memecmd_utils.core import machine


@pytest.mark.parametrize(("value", "expected"), [("1", True), ("0", False), ("", False), (None, False)])
def test_only_a_run_that_says_so_is_headless(monkeypatch, value, expected) -> None:
    monkeypatch.delenv(machine.VARIABLE, raising=False)
    if value is not None:
        monkeypatch.setenv(machine.VARIABLE, value)
    assert machine.is_headless() is expected
