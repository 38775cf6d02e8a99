import errno
import importlib
import inspect
import pkgutil
import shlex
import subprocess
import sys

import pytest

import memecmd_utils
from memecmd_utils import __main__ as commands
from memecmd_utils.core import errors, paths
from memecmd_utils.core.errors import told
from memecmd_utils.core.fetch.datasets import SourceError
from memecmd_utils.core.llm.delivery import NoSignOfLife
from memecmd_utils.ops import doctor

INTERNAL = {
    "ImageRejected", "UnusableReply", "TransientFault", "RequestRejected", "EmptyReply", "FetchError",
    "UnknownForm", "Filtered", "InDoubt",
}  # fmt: skip
"""What one module tells another with; no user ever sees one."""


def test_every_error_of_the_package_has_the_base_class() -> None:
    found = {}
    for module in pkgutil.walk_packages(memecmd_utils.__path__, "memecmd_utils."):
        there = importlib.import_module(module.name)
        for name, kind in inspect.getmembers(there, inspect.isclass):
            if issubclass(kind, Exception) and kind.__module__.startswith("memecmd_utils."):
                found[name] = kind
    assert len(found) > 30
    ours = {name: {one.__name__ for one in kind.__mro__} for name, kind in found.items()}
    assert [name for name, bases in ours.items() if not bases & {"MemecmdError", *INTERNAL}] == []


class OfAnotherModule(SourceError):
    pass


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (NoSignOfLife("the endpoint is silent"), "the endpoint is silent"),
        (OfAnotherModule("give imgflip"), "give imgflip"),
        (PermissionError(errno.EACCES, "Permission denied", "/data/x"), "/data/x: Permission denied"),
        (NotADirectoryError(errno.ENOTDIR, "Not a directory", "/a/b"), "/a/b: Not a directory"),
        (OSError(errno.ENOSPC, "No space left on device"), "No space left on device"),
        (ExceptionGroup("two", [SourceError("first"), SourceError("second")]), "first"),
    ],
)  # fmt: skip
def test_what_a_user_can_mend_ends_a_command_with_one_line(error, line, monkeypatch, capsys) -> None:
    def fail(*_):
        raise error

    monkeypatch.setattr(doctor, "report", fail)
    assert commands.main(["doctor"]) == 2
    out, err = capsys.readouterr()
    assert (out, err) == ("", f"error: {line}\n")


@pytest.mark.parametrize(
    "error",
    [
        ZeroDivisionError("division by zero"), ValueError("odd"), KeyError("x"), OSError("no number"),
        ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"),
        ExceptionGroup("mixed", [SourceError("mendable"), ZeroDivisionError()]),
    ],
)  # fmt: skip
def test_a_bug_shows_its_traceback(error, monkeypatch) -> None:
    def fail(*_):
        raise error

    monkeypatch.setattr(doctor, "report", fail)
    assert told(error) is None
    with pytest.raises(type(error)):
        commands.main(["doctor"])


def test_a_reader_that_leaves_early_is_told_no_traceback(tmp_path) -> None:
    words = [sys.executable, "-m", "memecmd_utils", "cost"]
    done = subprocess.run(
        f"{shlex.join(words)} | true", shell=True, capture_output=True, text=True, cwd=paths.root
    )
    assert "Traceback" not in done.stderr and "Exception ignored" not in done.stderr


def test_a_cell_shows_the_message_alone() -> None:
    assert errors.ExtraMissing("pip install x")._render_traceback_() == ["ExtraMissing: pip install x"]
