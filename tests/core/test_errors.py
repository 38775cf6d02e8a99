import errno
import importlib
import inspect
import pkgutil
import shlex
import subprocess
import sys

import pytest
from pydantic import SecretStr

import memecmd_utils
from memecmd_utils import __main__ as commands
from memecmd_utils.cm50 import pictures
from memecmd_utils.core import errors, paths
from memecmd_utils.core.encoders.text import EndpointEmbedder
from memecmd_utils.core.errors import mendable_message
from memecmd_utils.core.fetch.datasets import SourceError
from memecmd_utils.dialogue import news
from memecmd_utils.llm import chat
from memecmd_utils.llm.endpoint import OpenAIBackend
from memecmd_utils.llm.messages import EndpointError
from memecmd_utils.ops import doctor
from memecmd_utils.schemas import TemplateMeme
from memecmd_utils.settings import Endpoint, load_profile

INTERNAL = {"ImageRejected", "UnusableReply", "FetchError"}
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
        (EndpointError("the endpoint is silent"), "the endpoint is silent"),
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
    assert mendable_message(error) is None
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


MEME = TemplateMeme(meme_id="a1", template="10-Guy", url="http://127.0.0.1:9/a1.jpg", source="made up")
ENDPOINT = Endpoint(model="m", base_url="http://127.0.0.1:9/v1")
HIDE = """
import sys
from importlib.abc import MetaPathFinder

class Hidden(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("openai", "aiohttp", "feedparser"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Hidden())
"""


@pytest.fixture
def without(monkeypatch):
    """As if the extra were not installed."""
    monkeypatch.setattr(errors, "find_spec", lambda name: None)


@pytest.mark.parametrize(
    "ask",
    [
        lambda folder: chat.run(OpenAIBackend(ENDPOINT, key=SecretStr("k")).post("/x", {})),
        lambda folder: EndpointEmbedder(ENDPOINT).encode(["t"], "query"),
        lambda folder: news.collect([], folder),
        lambda folder: pictures.fetch_pictures([MEME], folder, 1),
    ],
)
def test_whoever_asks_a_server_says_what_to_install(without, tmp_path, ask) -> None:
    with pytest.raises(
        errors.ExtraMissing, match=r"needs openai and aiohttp and feedparser and protego: pip.*live"
    ):
        ask(tmp_path)


def test_a_run_says_what_to_install_before_its_first_stage(without) -> None:
    first = doctor.lacks(load_profile("openai", {}))[0]
    assert first.startswith("mode=auto with a model needs openai and aiohttp and feedparser and protego: pip")


def test_replaying_imports_none_of_them(tmp_path) -> None:
    """A run of the example resolves and its modules are imported in a process that has none of them."""
    rooms = "annotation, chats.insertion, dialogue, evaluation, library, report, retrieval, runs"
    script = HIDE + "".join(f"import memecmd_utils.{room}\n" for room in rooms.split(", "))
    script += "from memecmd_utils import __main__\nsys.exit(__main__.main(['resolve']))\n"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=paths.root)
    assert done.returncode == 0, done.stderr
    assert "example" in done.stdout
