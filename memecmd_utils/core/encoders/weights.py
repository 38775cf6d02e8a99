"""Which weights a model name stands for, and what to install for the models of the paper."""

import hashlib
import os
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from memecmd_utils.core import paths, storage
from memecmd_utils.core.errors import MemecmdError

WHOLE_UP_TO = 16 << 20  # bytes: larger files count by their size and by samples
SAMPLES, SAMPLE = 64, 1 << 16
COUNTED = frozenset({".json", ".txt", ".model", ".py", ".safetensors", ".bin", ".pt", ".onnx"})
DIGITS = 12  # hex digits of a revision or hash in a name


class ModelError(MemecmdError, RuntimeError, ValueError):
    """A model cannot be loaded, or is not the one that is named; the message says what to do."""


def folder_digest(folder: Path) -> str:
    """12 hex digits of a model folder's weights, settings and code; hidden files and texts for readers not.

    Files over 16 MB count by their size and 64 samples of 64 KB, so that gigabytes take a moment only.
    """
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*"), key=lambda p: p.relative_to(folder).as_posix()):
        inside = path.relative_to(folder)
        if path.suffix not in COUNTED or any(p.startswith(".") for p in inside.parts) or not path.is_file():
            continue
        digest.update(f"{inside.as_posix()}\0{path.stat().st_size}\0".encode())
        for block in _blocks(path):
            digest.update(block)
    return digest.hexdigest()[:DIGITS]


def sampled_digest(path: Path) -> str:
    """12 hex digits of a file by its content, of one over 16 MB by its size and samples, as above."""
    digest = hashlib.sha256(f"{path.stat().st_size}\0".encode())
    for block in _blocks(path):
        digest.update(block)
    return digest.hexdigest()[:DIGITS]


def _blocks(path: Path) -> Iterator[bytes]:
    size = path.stat().st_size
    with path.open("rb") as handle:
        if size <= WHOLE_UP_TO:
            yield handle.read()
            return
        for sample in range(SAMPLES):
            handle.seek(sample * (size - SAMPLE) // (SAMPLES - 1))
            yield handle.read(SAMPLE)


def folder_of(model: str | Path) -> Path | None:
    """The folder that a model's name stands for, from the project's root if relative; None for a hub name."""
    folder = paths.root / Path(model).expanduser()
    return folder if folder.is_dir() else None


def file_digest(path: Path) -> str:
    """First 12 hex digits of a file's SHA-256, over all of it."""
    return storage.sha256(path)[:DIGITS]


def hub_folder(model: str) -> Path:
    """Folder in the hub's cache where a hub model's downloads lie, there or not."""
    home = os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface"
    cache = Path(os.environ.get("HF_HUB_CACHE") or Path(home) / "hub").expanduser()
    return cache / f"models--{model.replace('/', '--')}"


def hub_commit(model: str) -> str | None:
    """Commit of a hub model's downloaded `main`; None where it was not downloaded."""
    try:
        commit = (hub_folder(model) / "refs" / "main").read_text(encoding="utf-8")
    except OSError:
        return None
    return commit.strip() or None


def install_hint(what: str, error: BaseException) -> str:
    """Say why a package of the `paper` extra cannot be imported, what is installed, and what would fit."""
    said = (str(error).splitlines() or ["no message"])[0]
    lines = [f"{what} cannot be loaded ({type(error).__name__}: {said})."]
    torch, vision = installed("torch"), installed("torchvision")
    if torch and vision:
        needs = [r for r in metadata.requires("torchvision") or () if r.partition(" ")[0].startswith("torch")]
        asks = f" torchvision {vision} asks for {' '.join(needs[0].split())}." if needs else ""
        pair = matching_torchvision(torch)
        lines.append(
            f"Installed are torch {torch} and torchvision {vision}.{asks} They must be of one release and of "
            f"one build, both from the same index (both +cpu, or both for the same CUDA): for torch {torch} "
            f"install {pair}."
        )
    else:
        have = ", ".join(f"{name} {version or 'not'}" for name, version in _paper_versions().items())
        lines.append(f"Installed: {have}.")
    lines.append("Into an environment of its own: pip install -e '.[paper]'")
    return " ".join(lines)


def matching_torchvision(torch: str) -> str:
    """The torchvision of a torch version as a requirement, for example `torchvision==0.28.*` of 2.13.1.

    Up to torch 2.13 every release has its own; since 0.29 one wheel serves torch 2.14 and later.
    """
    release, _, build = torch.partition("+")
    minor = int(release.split(".")[1])
    if int(release.split(".")[0]) != 2:
        return "the torchvision of the same release"
    tag = f" (build +{build})" if build else ""
    return f"torchvision==0.{minor + 15}.*{tag}" if minor < 14 else f"torchvision>=0.29{tag}"


def installed(package: str) -> str | None:
    """Version of a package as its metadata has it, with the build's tag; None where it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _paper_versions() -> dict[str, str | None]:
    return {name: installed(name) for name in ("torch", "torchvision", "sentence-transformers", "cn-clip")}
