import pytest

from memecmd_utils import headless


@pytest.mark.parametrize(("value", "expected"), [("1", True), ("0", False), ("", False), (None, False)])
def test_only_a_run_that_says_so_is_headless(monkeypatch, value, expected) -> None:
    monkeypatch.delenv(headless.VARIABLE, raising=False)
    if value is not None:
        monkeypatch.setenv(headless.VARIABLE, value)
    assert headless.is_headless() is expected
