"""Which weights a model name stands for, and what to install for the models of the paper."""

import hashlib
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path

from memecmd_utils import files
from memecmd_utils.files import MemecmdError, paths
from memecmd_utils.recordings import recorded_names

WHOLE_UP_TO = 16 << 20  # bytes: larger files count by their size and by samples
SAMPLES, SAMPLE = 64, 1 << 16
COUNTED = frozenset({".json", ".txt", ".model", ".py", ".safetensors", ".bin", ".pt", ".onnx"})
DIGITS = 12  # hex digits of a revision or hash in a name
COMMIT = re.compile("[0-9a-f]{40}")


class ModelError(MemecmdError, RuntimeError, ValueError):
    """A model cannot be loaded, or is not the one that is named; the message says what to do."""


class ModelReference:
    """A model by hub name, `name@COMMIT` or folder; `label` is its name in recordings and messages."""

    def __init__(self, model: str) -> None:
        self.folder = folder_of(model)
        self.label, _, self._pinned = (model, "", "") if self.folder else model.partition("@")
        if self.folder or Path(model).is_absolute():
            self.label = Path(model).name
        elif self._pinned and not COMMIT.fullmatch(self._pinned):
            raise ModelError(f"model {model!r}: after the @ stands a commit, 40 hex digits")

    @property
    def source(self) -> str:
        """What a loader is given: the folder, or the hub's name."""
        return str(self.folder or self.label)

    def commit(self) -> str | None:
        """The commit that is pinned or was downloaded; None for a folder, or where only the hub knows."""
        return None if self.folder else self._pinned or hub_commit(self.label)

    def revision(self) -> str | None:
        """12 hex digits of the commit or of the folder's files; None where only the hub knows."""
        if self.folder is not None:
            return folder_digest(self.folder)
        commit = self.commit()
        return commit[:DIGITS] if commit else None

    def recorded_name(self, read_dirs: Sequence[Path], prefix: str, revision: str, ending: str) -> str | None:
        """The one encoder of this label whose vectors are recorded; `ModelError` where there are several."""
        labels = dict.fromkeys([self.label, Path(self.label).name])  # a folder may be elsewhere by now
        names = [n for one in labels for n in recorded_names(read_dirs, f"{prefix}{one}@{revision}")]
        names = [name for name in names if name.endswith(ending)]
        if len(names) > 1:
            raise ModelError(
                f"vectors of several versions of {self.label} are recorded ({', '.join(names)}): say which "
                "as NAME@COMMIT (its precision with embedder_dtype), or move the others away"
            )
        return names[0] if names else None


def check_loaded(recorded: str, loaded: str) -> None:
    """Raise `ModelError` where other weights were loaded than those whose vectors are recorded."""
    if recorded.rpartition("/")[2] != loaded.rpartition("/")[2]:
        raise ModelError(
            f"vectors of {recorded} are recorded, but {loaded} is what loads now: give the old one (as "
            "NAME@COMMIT, or its checkpoint), or move its vectors away for a fresh start"
        )


@contextmanager
def importing(what: str, kind: type[MemecmdError] = ModelError) -> Iterator[None]:
    """Turn a failed import in the block into an error of `kind` that says what to install for `what`."""
    try:
        yield
    except (ImportError, RuntimeError) as error:
        raise kind(install_hint(what, error)) from error


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
    return files.sha256(path)[:DIGITS]


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
    """Say why a package of the `paper` extra cannot be imported, what is installed, and what to install."""
    reason = (str(error).splitlines() or ["no message"])[0]
    packages = ("torch", "torchvision", "sentence-transformers", "cn-clip")
    versions = ", ".join(f"{name} {installed(name) or 'not'}" for name in packages)
    return (
        f"{what} cannot be loaded ({type(error).__name__}: {reason}). Installed: {versions}; torch and "
        "torchvision must be of one release and one build (both +cpu, or both for the same CUDA). Into an "
        "environment of its own: pip install -e '.[paper]'"
    )


def installed(package: str) -> str | None:
    """Version of a package as its metadata has it, with the build's tag; None where it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
