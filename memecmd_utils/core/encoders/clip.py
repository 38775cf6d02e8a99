"""CLIP, ALIGN and Chinese-CLIP: images and texts to vectors that are computed once and recorded."""

import hashlib
import json
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from memecmd_utils.core import images, paths
from memecmd_utils.core import images as core_images
from memecmd_utils.core.encoders import weights
from memecmd_utils.core.encoders.sentence import COMMIT
from memecmd_utils.core.errors import MemecmdError
from memecmd_utils.core.recordings.vectors import Mode, RecordedVectors, recorded_names

# --- The two towers of CLIP, ALIGN and Chinese-CLIP as transformers has them; loaded when first needed


TRAINED_TOKENS = {"clip": 77, "align": 64, "chinese_clip": 52}
"""Kinds that are read, and the longest text, with its two marks, that their makers trained on."""
BATCH = {"cuda": 64, "cpu": 16}
Dtype = Literal["float32", "float16"]


class ModelMissing(MemecmdError, RuntimeError):
    """A model that cannot be had here; a table can print the message in its place."""


class Towers:
    """A dual encoder by hub name, `name@COMMIT` or folder; features are as the model projects them."""

    def __init__(
        self,
        model: str,
        device: str | None = None,
        dtype: Dtype = "float32",
        batch: int | None = None,
        download: bool = True,
    ) -> None:
        """`device`: None is a GPU where there is one. `batch`: images or texts at a time."""
        if dtype not in ("float32", "float16"):
            raise ValueError(f"dtype {dtype!r} is neither float32 nor float16")
        if batch is not None and batch < 1:
            raise ValueError(f"batch {batch}: at least 1")
        folder = paths.root / model  # a relative path counts from the project's root
        self._folder = folder if folder.is_dir() else None
        self.label, _, self._pinned = (folder.name, "", "") if self._folder else model.partition("@")
        if self._pinned and not COMMIT.fullmatch(self._pinned):
            raise weights.ModelError(f"model {model!r}: after the @ stands a commit, 40 hex digits")
        self._model, self._device, self._dtype = model, device, dtype
        self._batch, self._download = batch, download
        self._parts: dict[str, Any] = {}
        self._loaded: tuple[Any, Any] | None = None

    def revision(self) -> str | None:
        """12 hex digits of the commit or of the folder's files; None where only the hub knows."""
        if self._folder is not None:
            return weights.folder_digest(self._folder)
        commit = self._pinned or weights.hub_commit(self.label)
        return commit[: weights.DIGITS] if commit else None

    def load(self) -> str:
        """Load the weights, once, and give their revision; `ModelMissing` says what is not there."""
        if self._loaded is None:
            self.limit()  # what is no dual encoder is refused before gigabytes are read
            model, processor = self._pretrained("AutoModel"), self._pretrained("AutoImageProcessor")
            import torch

            device = self._device or ("cuda" if torch.cuda.is_available() else "cpu")
            model = model.eval().to(device=device, dtype=getattr(torch, self._dtype))
            self._loaded = model, processor
        revision = self.revision() or getattr(self._loaded[0].config, "_commit_hash", None)
        if not revision:
            raise ModelMissing(f"{self.label} does not tell its revision: give NAME@COMMIT")
        return revision[: weights.DIGITS]

    def limit(self, download: bool = True) -> int:
        """Longest text in tokens, marks included: what the model was trained on, or can hold if less.

        Raises ValueError for a model that is none of the kinds of `TRAINED_TOKENS`.
        """
        config = self._part("AutoConfig", download)
        if config.model_type not in TRAINED_TOKENS:
            kinds = ", ".join(TRAINED_TOKENS)
            raise weights.ModelError(
                f"{self.label} is of the kind {config.model_type!r}, which is none of {kinds}"
            )
        return min(TRAINED_TOKENS[config.model_type], config.text_config.max_position_embeddings)

    def counts(self, texts: Sequence[str], download: bool = True) -> list[int]:
        """Tokens of each text before anything is cut, with the marks at both ends."""
        tokenizer = self._part("AutoTokenizer", download)
        encoded = tokenizer(list(texts), truncation=False, padding=False, verbose=False)
        return [len(ids) for ids in encoded["input_ids"]]

    def images(self, files: Sequence[Path]) -> np.ndarray:
        """Features of image files, float32 [n, dim]; `ImageRejected` names a file that is broken."""

        def project(some: Sequence[Path]) -> Any:
            model, processor = self._loaded
            pixels = processor(images=[_decode(file) for file in some], return_tensors="pt")["pixel_values"]
            return model.get_image_features(pixel_values=pixels.to(model.device, model.dtype))

        return self._in_batches(files, project)

    def texts(self, texts: Sequence[str]) -> np.ndarray:
        """Features of texts, float32 [n, dim]; what is beyond the limit is cut off."""

        def project(some: Sequence[str]) -> Any:
            model, _ = self._loaded
            options = {"padding": True, "truncation": True, "max_length": self.limit()}
            tokens = self._part("AutoTokenizer")(list(some), return_tensors="pt", **options)
            return model.get_text_features(**tokens.to(model.device))

        return self._in_batches(texts, project)

    def _in_batches(self, items: Sequence[Any], project: Callable[[Sequence[Any]], Any]) -> np.ndarray:
        self.load()
        import torch

        size = self._batch or BATCH.get(self._loaded[0].device.type, BATCH["cpu"])
        rows = []
        with torch.inference_mode():
            for start in range(0, len(items), size):
                given = project(items[start : start + size])
                given = getattr(given, "pooler_output", given)  # since transformers 5 an output of many parts
                rows.append(given.float().cpu().numpy())
        return np.concatenate(rows)

    def _part(self, auto: str, download: bool = True) -> Any:
        if auto not in self._parts:
            self._parts[auto] = self._pretrained(auto, download)
        return self._parts[auto]

    def _pretrained(self, auto: str, download: bool = True) -> Any:
        if self._folder is None and (Path(self._model).is_absolute() or self._model.startswith(".")):
            raise ModelMissing(f"there is no folder {self._model}: give one that holds the model")
        if missing := [name for name in ("torch", "transformers") if not weights.installed(name)]:
            raise ModelMissing(
                f"{self.label} needs {' and '.join(missing)}: pip install -e '.[paper]' into an environment "
                "of its own"
            )
        try:
            import torch  # noqa: F401 - transformers imports without it, but loads nothing
            import transformers
        except (ImportError, RuntimeError) as error:
            raise ModelMissing(weights.install_hint(self.label, error)) from error
        commit = None if self._folder else self._pinned or weights.hub_commit(self.label)
        try:
            return getattr(transformers, auto).from_pretrained(
                str(self._folder or self.label),
                revision=commit or "main",
                local_files_only=not (download and self._download),
                trust_remote_code=False,
            )
        except Exception as error:  # hub, files, shapes: each with faults of its own
            said = " ".join(str(error).split())[:200]
            raise ModelMissing(
                f"{self.label} cannot be loaded ({type(error).__name__}: {said}): give a folder that holds "
                "it, or let it be downloaded from the hub once"
            ) from error


def _decode(file: Path) -> Any:
    try:
        return core_images.decode(file)
    except core_images.ImageRejected as error:
        raise core_images.ImageRejected(f"{file.name}: {error}") from error


SHORTEST, LONGEST = 1e-3, 1e3
"""Lengths of rows that are kept to two thousandths; those of CLIP are near 10."""


def load(
    name: str | Path,
    *,
    device: str | None = None,
    dtype: Dtype = "float32",
    read_dirs: Sequence[Path] = (),
    write_dir: Path | None = None,
    mode: Mode = "auto",
    batch: int | None = None,
    download: bool = True,
) -> "DualEncoder":
    """Give the encoder of a hub name, `name@COMMIT` or folder; nothing is loaded before it is needed.

    `device`: None is a GPU where there is one. `read_dirs` and `write_dir` are folders of recordings: what
    they hold needs neither torch nor weights. `batch`: images or texts at a time. `download` off: only what
    is on this machine counts. What cannot be had raises `ModelMissing` when it is first asked for.
    """
    towers = Towers(str(name), device, dtype, batch, download)
    return DualEncoder(towers, dtype, read_dirs, write_dir, mode)


class DualEncoder:
    """An image tower and a text tower that project into one space, and what they computed before.

    Rows are as the model projects them, NOT of unit length: thresholds on Euclidean distance depend on it
    (2501.13851, Section 3.3.1); `vectors.normalise` makes them fit for cosines. They are rounded to float16
    before use, so that a run that computes equals one that replays.
    """

    def __init__(
        self,
        towers: Towers,
        dtype: Dtype,
        read_dirs: Sequence[Path] = (),
        write_dir: Path | None = None,
        mode: Mode = "auto",
    ) -> None:
        """See `load`, which makes the towers."""
        self._towers, self._dtype, self._mode = towers, dtype, mode
        self._read_dirs, self._write_dir = read_dirs, write_dir
        self._recorded_rows: RecordedVectors | None = None
        self._whole: dict[str, bool] = {}
        self.truncated: int | None = 0
        """Texts, each once, that the model did not read to their end; None where only it could tell."""

    def encode_images(self, files: Sequence[Path]) -> np.ndarray:
        """Rows for image files, float32 [n, dim]; same bytes, same row. A broken file raises ImageRejected.

        Of an animation the first frame counts, alpha stands on white; the model's own preprocessing follows
        (for CLIP: shorter side to its resolution, then the centre is cut out).
        """
        files = [Path(file) for file in files]
        keys = [_key("picture", _file_hash(file)) for file in files]
        return self._rows(keys, files, self._towers.images, "pictures")

    def encode_texts(self, texts: Sequence[str]) -> np.ndarray:
        """Rows for texts, float32 [n, dim]; what is beyond the model's limit is cut off and counted."""
        rows = self._rows([_key("text", t) for t in texts], texts, self._towers.texts, "texts", len)
        self._count_cut(texts)
        return rows

    @property
    def max_tokens(self) -> int:
        """Longest text that is read, with its marks: 77 for CLIP, 64 for ALIGN, 52 for Chinese-CLIP."""
        return self._towers.limit()

    @property
    def name(self) -> str:
        """`clip:MODEL@REVISION-PRECISION`: from files, else from recorded vectors, else by loading it."""
        return self._recorded.name

    @property
    def _recorded(self) -> RecordedVectors:
        if self._recorded_rows is None:
            name = self._name_without_loading() or self._named(self._towers.load())
            self._recorded_rows = RecordedVectors(name, self._read_dirs, self._write_dir, self._mode)
        return self._recorded_rows

    def _named(self, revision: str) -> str:
        return f"clip:{self._towers.label}@{revision}-{self._dtype}"

    def _name_without_loading(self) -> str | None:
        if revision := self._towers.revision():
            return self._named(revision)
        label = self._towers.label
        labels = dict.fromkeys([label, Path(label).name])  # a folder may be elsewhere by now
        found = [n for beginning in labels for n in recorded_names(self._read_dirs, f"clip:{beginning}@")]
        found = [name for name in found if name.endswith(f"-{self._dtype}")]
        if len(found) > 1:
            raise weights.ModelError(
                f"vectors of several versions of {label} are recorded ({', '.join(found)}): say which as "
                "NAME@COMMIT, or move the others away"
            )
        if not found and self._mode == "recorded":
            raise ModelMissing(f"no vectors of {label} are recorded; SET='mode=auto' computes them")
        return found[0] if found else None

    def _rows(
        self,
        keys: list[str],
        items: Sequence[Any],
        encode: Callable[[list[Any]], np.ndarray],
        kind: str,
        size: Callable[[Any], int] | None = None,
    ) -> np.ndarray:
        if not keys:
            return np.zeros((0, 0), dtype=np.float32)
        recorded = self._recorded

        def homogeneous(part: list[Any]) -> np.ndarray:
            if (
                recorded.name.rpartition("/")[2]
                != (now := self._named(self._towers.load())).rpartition("/")[2]
            ):
                raise weights.ModelError(
                    f"vectors of {recorded.name} are recorded, but {now} is what loads now: give the old one "
                    "as NAME@COMMIT, or move its vectors away for a fresh start"
                )
            # Recorded vectors have unit length. A last coordinate of 1 keeps the length of ours in the ratio.
            rows = encode(part)
            lengths = np.linalg.norm(rows, axis=1)
            if ((lengths > 0) & (lengths < SHORTEST)).any() or (lengths > LONGEST).any():
                raise weights.ModelError(
                    f"{recorded.name} gives {kind} of length {lengths.min():.2g} to {lengths.max():.2g}: "
                    f"float16 keeps the length of rows from {SHORTEST:g} to {LONGEST:g} only"
                )
            return np.hstack([rows, np.ones((len(rows), 1), dtype=np.float32)])

        found = recorded.rows(keys, items, homogeneous, size=size, kind=kind)
        return found[:, :-1] / found[:, -1:]

    def _count_cut(self, texts: Sequence[str]) -> None:
        fresh = [text for text in dict.fromkeys(texts) if text not in self._whole]
        self._whole.update((text, True) for text in fresh)
        # A token is one byte at least, so short texts need no tokenizer, which comes with the model.
        least = min(TRAINED_TOKENS.values()) - 2
        long = [t for t in fresh if len(unicodedata.normalize("NFD", t).encode()) > least]
        if not long or self.truncated is None:
            return
        try:
            limit = self._towers.limit(download=False)
            counts = self._towers.counts(long, download=False)
        except ModelMissing:
            self.truncated = None
            return
        self._whole.update((text, count <= limit) for text, count in zip(long, counts, strict=True))
        self.truncated = sum(not whole for whole in self._whole.values())


def _file_hash(file: Path) -> str:
    try:
        return hashlib.sha256(images.read_bytes(file)).hexdigest()
    except images.ImageRejected as error:
        raise images.ImageRejected(f"{file.name}: {error}") from error


def _key(kind: str, of: str) -> str:
    return hashlib.sha256(f"{kind}\x1f{of}".encode()).hexdigest()


# --- Which of the paper's models a checkpoint is, told by its configuration and never by its folder's name
# Only what has the size of a published model may stand in a table of the paper's form: the numbers of a tiny
# model that shows the wiring would else be read as results.


ALIGN, B32, L14 = "ALIGN-base", "CLIP-ViT-B/32", "CLIP-ViT-L/14@336px"
"""Names of Table 2 (2501.13851)."""


class Architecture(NamedTuple):
    """A published dual encoder."""

    hub: str
    kind: str
    """`model_type` of its configuration."""
    dim: int
    """Length of its vectors."""
    sizes: Mapping[str, Any]
    """Values of its configuration that make it what it is."""


ARCHITECTURES = {
    ALIGN: Architecture(
        "kakaobrain/align-base",
        "align",
        640,
        {
            "projection_dim": 640,
            "text_config.hidden_size": 768,
            "text_config.num_hidden_layers": 12,
            "text_config.vocab_size": 30522,
            "vision_config.width_coefficient": 2.0,
            "vision_config.depth_coefficient": 3.1,
        },
    ),
    B32: Architecture(
        "openai/clip-vit-base-patch32",
        "clip",
        512,
        {
            "projection_dim": 512,
            "text_config.hidden_size": 512,
            "text_config.num_hidden_layers": 12,
            "text_config.vocab_size": 49408,
            "vision_config.hidden_size": 768,
            "vision_config.num_hidden_layers": 12,
            "vision_config.patch_size": 32,
            "vision_config.image_size": 224,
        },
    ),
    L14: Architecture(
        "openai/clip-vit-large-patch14-336",
        "clip",
        768,
        {
            "projection_dim": 768,
            "text_config.hidden_size": 768,
            "text_config.num_hidden_layers": 12,
            "text_config.vocab_size": 49408,
            "vision_config.hidden_size": 1024,
            "vision_config.num_hidden_layers": 24,
            "vision_config.patch_size": 14,
            "vision_config.image_size": 336,
        },
    ),
}
_DEFAULTS = {"align": ARCHITECTURES[ALIGN].sizes, "clip": ARCHITECTURES[B32].sizes}
"""What transformers assumes where a configuration is silent, which is the smallest model of each kind."""


def architecture(model: str | Path) -> str | None:
    """Name in Table 2 of what a hub name, `name@COMMIT` or folder holds; None where it is none of them.

    Read from `config.json`. Of a hub model that was never downloaded here the hub's name speaks.
    """
    folder = paths.root / model  # a relative path counts from the project's root
    label = str(model).partition("@")[0]
    named = next((name for name, known in ARCHITECTURES.items() if known.hub == label), None)
    config = _config(folder) if folder.is_dir() else _downloaded(str(model))
    if config is None:
        return None if folder.is_dir() else named
    fitting = [name for name, known in ARCHITECTURES.items() if not _differences(config, known)]
    return fitting[0] if fitting and (folder.is_dir() or named in (None, fitting[0])) else None


def misfit(model: str | Path, wanted: str) -> str:
    """Say in words why a model is not the one wanted; "" where it is, or where it is not here at all."""
    folder = paths.root / model
    config = _config(folder) if folder.is_dir() else _downloaded(str(model))
    if config is None:
        return "" if not folder.is_dir() else f"{folder.name} has no config.json"
    gaps = _differences(config, ARCHITECTURES[wanted])
    return f"{Path(model).name} is no {wanted} ({', '.join(gaps[:3])})" if gaps else ""


def _differences(config: Mapping[str, Any], known: Architecture) -> list[str]:
    kind = config.get("model_type")
    if kind != known.kind:
        return [f"model_type {kind}, not {known.kind}"]
    out = []
    for key, wanted in known.sizes.items():
        part, _, name = key.rpartition(".")
        values = (config.get(part) or {}) if part else config
        got = values.get(name, _DEFAULTS[known.kind][key])
        if got != wanted:
            out.append(f"{key} {got}, not {wanted}")
    return out


def _config(folder: Path) -> dict[str, Any] | None:
    try:
        found = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _downloaded(model: str) -> dict[str, Any] | None:
    """Configuration of a hub model in the hub's cache."""
    label, _, commit = model.partition("@")
    commit = commit or weights.hub_commit(label) or ""
    return _config(weights.hub_folder(label) / "snapshots" / commit) if commit else None
