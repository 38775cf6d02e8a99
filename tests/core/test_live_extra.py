import subprocess
import sys

import pytest
from pydantic import SecretStr

from memecmd_utils.cm50 import pictures
from memecmd_utils.core import errors, paths
from memecmd_utils.core.encoders.text import EndpointEmbedder
from memecmd_utils.core.llm import chat
from memecmd_utils.core.llm.endpoint import OpenAIBackend
from memecmd_utils.dialogue import news
from memecmd_utils.ops import doctor
from memecmd_utils.schemas import TemplateMeme
from memecmd_utils.settings import Endpoint, load_profile

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
        lambda folder: chat.run(OpenAIBackend(ENDPOINT, key=SecretStr("k")).connect()),
        lambda folder: EndpointEmbedder(ENDPOINT).encode(["t"], "query"),
        lambda folder: news.collect([], folder),
        lambda folder: pictures.fetch_pictures([MEME], folder, 1),
    ],
)
def test_whoever_asks_a_server_says_what_to_install(without, tmp_path, ask) -> None:
    with pytest.raises(
        errors.LiveExtraMissing, match=r"needs openai and aiohttp and feedparser and protego: pip.*live"
    ):
        ask(tmp_path)


def test_a_run_says_what_to_install_before_its_first_stage(without) -> None:
    first = doctor.lacks(load_profile("openai", {}))[0]
    assert first.text.startswith(
        "mode=auto with a model needs openai and aiohttp and feedparser and protego: pip"
    )


def test_replaying_imports_none_of_them(tmp_path) -> None:
    """A run of the example resolves and its modules are imported in a process that has none of them."""
    script = HIDE + (
        "from memecmd_utils import __main__, runs\n"
        "from memecmd_utils.annotation import annotator as annotation\n"
        "from memecmd_utils.dialogue import cluster as dask_engine\n"
        "from memecmd_utils.evaluation import consistency as evaluation_run\n"
        "from memecmd_utils.library import build as library_build\n"
        "from memecmd_utils.chats import insertion as library_search\n"
        "from memecmd_utils.report import page as report\n"
        "from memecmd_utils.retrieval import placement as selection\n"
        "sys.exit(__main__.main(['resolve']))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=paths.root)
    assert done.returncode == 0, done.stderr
    assert "example" in done.stdout
