import io
import time
from pathlib import Path

import pytest

from memecmd_utils import files
from memecmd_utils.core import machine
from memecmd_utils.core.machine import StatusLine


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_only_new_lines_are_printed_and_a_missing_file_is_none(tmp_path: Path) -> None:
    out = io.StringIO()
    line = StatusLine(tmp_path / "status", out, "03")
    line.show()
    for text in ("turns 1/9", "turns 1/9", "turns 2/9", ""):
        (tmp_path / "status").write_text(text, encoding="utf-8")
        line.show()
    assert out.getvalue() == "03: turns 1/9\n03: turns 2/9\n"


def test_a_terminal_shows_one_line_in_place_and_ends_it(tmp_path: Path) -> None:
    out = Terminal()
    line = StatusLine(tmp_path / "status", out, "03")
    with line.running():
        (tmp_path / "status").write_text("a long line", encoding="utf-8")
        line.show()
        (tmp_path / "status").write_text("short", encoding="utf-8")
    assert out.getvalue() == "\r03: a long line\x1b[K\r03: short\x1b[K\n"


def test_new_lines_are_seen_while_the_block_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "LOG_EVERY_S", 0.01)
    out = io.StringIO()
    with StatusLine(tmp_path / "status", out, "03").running():
        (tmp_path / "status").write_text("turns 5/9", encoding="utf-8")
        until = time.monotonic() + 10
        while not out.getvalue() and time.monotonic() < until:
            time.sleep(0.01)
        assert out.getvalue() == "03: turns 5/9\n"
    assert out.getvalue() == "03: turns 5/9\n", "the end repeats nothing"


@pytest.mark.parametrize(("value", "expected"), [("1", True), ("0", False), (None, False)])
def test_only_a_run_that_says_so_is_headless(monkeypatch, value, expected) -> None:
    monkeypatch.delenv(files.HEADLESS_VARIABLE, raising=False)
    if value is not None:
        monkeypatch.setenv(files.HEADLESS_VARIABLE, value)
    assert files.is_headless() is expected
