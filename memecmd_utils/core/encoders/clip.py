"""CLIP, ALIGN and Chinese-CLIP: images and texts to vectors that are computed once and recorded."""

import contextlib
import hashlib
import io
import json
import pickle
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from memecmd_utils import pictures
from memecmd_utils.core.encoders import weights
from memecmd_utils.embedders import ModelMissing
from memecmd_utils.files import MemecmdError
from memecmd_utils.pictures import decode
from memecmd_utils.recordings import Mode, RecordedVectors, recorded_names
from memecmd_utils.schemas import Meme

TRAINED_TOKENS = {"clip": 77, "align": 64, "chinese_clip": 52}
"""Kinds that are read, and the longest text, with its two marks, that their makers trained on."""
CN_CLIP_TOKENS = TRAINED_TOKENS["chinese_clip"]
ROOM = CN_CLIP_TOKENS - 2  # without the two marks
BATCH = {"cuda": 64, "cpu": 16}
PRECISION = "float32"
"""Also on a GPU: half precision moves a score by as much as strategies differ."""
SHORTEST, LONGEST = 1e-3, 1e3
"""Lengths of rows that are kept to two thousandths; those of CLIP are near 10."""
FIRST_SAFE_TORCH = (2, 6)  # from here on `torch.load` reads tensors only, unless it is told otherwise


class CheckpointMissing(MemecmdError, FileNotFoundError):
    """The checkpoint that the profile names is not there."""


def _key(kind: str, content: str) -> str:
    return hashlib.sha256(f"{kind}\x1f{content}".encode()).hexdigest()


def _in_batches(items: Sequence[Any], device: str, project: Callable[[Sequence[Any]], Any]) -> np.ndarray:
    import torch

    size, rows = BATCH.get(device, BATCH["cpu"]), []
    with torch.inference_mode():
        for start in range(0, len(items), size):
            output = project(items[start : start + size])
            output = getattr(output, "pooler_output", output)  # since transformers 5 an output of many parts
            rows.append(output.float().cpu().numpy())
    return np.concatenate(rows)


class Towers:
    """The two towers of CLIP, ALIGN or Chinese-CLIP as transformers has them; loaded when first needed."""

    def __init__(self, model: str, download: bool = True) -> None:
        self._model, self.reference, self._download = model, weights.ModelReference(model), download
        self.label = self.reference.label
        self._parts: dict[str, Any] = {}
        self._loaded: tuple[Any, Any] | None = None

    def load(self) -> str:
        """Load the weights, once, and give their revision; `ModelMissing` says what is not there."""
        if self._loaded is None:
            self.limit()  # what is no dual encoder is refused before gigabytes are read
            model, processor = self._pretrained("AutoModel"), self._pretrained("AutoImageProcessor")
            import torch

            device = "cuda" if torch.cuda.is_available() else "cpu"
            self._loaded = model.eval().to(device=device, dtype=torch.float32), processor
        revision = self.reference.revision() or getattr(self._loaded[0].config, "_commit_hash", None)
        if not revision:
            raise ModelMissing(f"{self.label} does not tell its revision: give NAME@COMMIT")
        return revision[: weights.DIGITS]

    def limit(self) -> int:
        """Longest text in tokens, marks included: what the model was trained on, or can hold if less.

        Raises `ModelError` for a model that is none of the kinds of `TRAINED_TOKENS`.
        """
        config = self._part("AutoConfig")
        if config.model_type not in TRAINED_TOKENS:
            kinds = ", ".join(TRAINED_TOKENS)
            raise weights.ModelError(
                f"{self.label} is of the kind {config.model_type!r}, which is none of {kinds}"
            )
        return min(TRAINED_TOKENS[config.model_type], config.text_config.max_position_embeddings)

    def images(self, files: Sequence[Path]) -> np.ndarray:
        """Features of image files, float32 [n, dim]; `ImageRejected` names a file that is broken."""
        self.load()
        model, processor = self._loaded

        def project(some: Sequence[Path]) -> Any:
            pixels = processor(images=[_decode(file) for file in some], return_tensors="pt")["pixel_values"]
            return model.get_image_features(pixel_values=pixels.to(model.device, model.dtype))

        return _in_batches(files, model.device.type, project)

    def texts(self, texts: Sequence[str]) -> np.ndarray:
        """Features of texts, float32 [n, dim]; what is beyond the limit is cut off."""
        self.load()
        model, _ = self._loaded
        options = {"padding": True, "truncation": True, "max_length": self.limit()}

        def project(some: Sequence[str]) -> Any:
            tokens = self._part("AutoTokenizer")(list(some), return_tensors="pt", **options)
            return model.get_text_features(**tokens.to(model.device))

        return _in_batches(texts, model.device.type, project)

    def _part(self, auto: str) -> Any:
        if auto not in self._parts:
            self._parts[auto] = self._pretrained(auto)
        return self._parts[auto]

    def _pretrained(self, auto: str) -> Any:
        is_path = Path(self._model).is_absolute() or self._model.startswith(".")
        if self.reference.folder is None and is_path:
            raise ModelMissing(f"there is no folder {self._model}: give one that holds the model")
        if missing := [name for name in ("torch", "transformers") if not weights.installed(name)]:
            raise ModelMissing(
                f"{self.label} needs {' and '.join(missing)}: pip install -e '.[paper]' into an environment "
                "of its own"
            )
        with weights.importing(self.label, ModelMissing):
            import torch  # noqa: F401 - transformers imports without it, but loads nothing
            import transformers
        try:
            return getattr(transformers, auto).from_pretrained(
                self.reference.source,
                revision=self.reference.commit() or "main",
                local_files_only=not self._download,
                trust_remote_code=False,
            )
        except Exception as error:  # hub, files, shapes: each with faults of its own
            problem = " ".join(str(error).split())[:200]
            raise ModelMissing(
                f"{self.label} cannot be loaded ({type(error).__name__}: {problem}): give a folder that "
                "holds it, or let it be downloaded from the hub once"
            ) from error


def _decode(file: Path) -> Any:
    try:
        return pictures.decode(file)
    except pictures.ImageRejected as error:
        raise pictures.ImageRejected(f"{file.name}: {error}") from error


def load(
    name: str | Path,
    *,
    read_dirs: Sequence[Path] = (),
    write_dir: Path | None = None,
    mode: Mode = "auto",
    download: bool = True,
) -> "DualEncoder":
    """Give the encoder of a hub name, `name@COMMIT` or folder; nothing is loaded before it is needed.

    `read_dirs` and `write_dir` are folders of recordings: what they hold needs neither torch nor weights.
    `download` off: only what is on this machine counts. What cannot be had raises `ModelMissing` when it is
    first asked for.
    """
    return DualEncoder(Towers(str(name), download), read_dirs, write_dir, mode)


class DualEncoder:
    """An image tower and a text tower that project into one space, and what they computed before.

    Rows are as the model projects them, NOT of unit length: thresholds on Euclidean distance depend on it
    (2501.13851, Section 3.3.1); `vectors.normalise` makes them fit for cosines. They are rounded to float16
    before use, so that a run that computes equals one that replays.
    """

    def __init__(self, towers: Towers, read_dirs: Sequence[Path], write_dir: Path | None, mode: Mode) -> None:
        """See `load`, which makes the towers."""
        self._towers, self._mode = towers, mode
        self._read_dirs, self._write_dir = read_dirs, write_dir
        self._recorded_rows: RecordedVectors | None = None

    def encode_images(self, files: Sequence[Path]) -> np.ndarray:
        """Rows for image files, float32 [n, dim]; same bytes, same row. A broken file raises ImageRejected.

        Of an animation the first frame counts, alpha stands on white; the model's own preprocessing follows
        (for CLIP: shorter side to its resolution, then the centre is cut out).
        """
        files = [Path(file) for file in files]
        keys = [_key("picture", _file_hash(file)) for file in files]
        return self._rows(keys, files, self._towers.images, "pictures")

    def encode_texts(self, texts: Sequence[str]) -> np.ndarray:
        """Rows for texts, float32 [n, dim]; what is beyond the model's limit is cut off."""
        return self._rows([_key("text", t) for t in texts], texts, self._towers.texts, "texts", len)

    @property
    def name(self) -> str:
        """`clip:MODEL@REVISION-PRECISION`: from files, else from recorded vectors, else by loading it."""
        return self._recorded.name

    @property
    def _recorded(self) -> RecordedVectors:
        if self._recorded_rows is None:
            reference = self._towers.reference
            if revision := reference.revision():
                name: str | None = self._named(revision)
            else:
                name = reference.recorded_name(self._read_dirs, "clip:", "", f"-{PRECISION}")
            if name is None and self._mode == "recorded":
                raise ModelMissing(
                    f"no vectors of {self._towers.label} are recorded; SET='mode=auto' computes them"
                )
            name = name or self._named(self._towers.load())
            self._recorded_rows = RecordedVectors(name, self._read_dirs, self._write_dir, self._mode)
        return self._recorded_rows

    def _named(self, revision: str) -> str:
        return f"clip:{self._towers.label}@{revision}-{PRECISION}"

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
            weights.check_loaded(recorded.name, self._named(self._towers.load()))
            # Recorded vectors have unit length. A last coordinate of 1 keeps the length of ours in the ratio.
            rows = encode(part)
            lengths = np.linalg.norm(rows, axis=1)
            if ((lengths > 0) & (lengths < SHORTEST)).any() or (lengths > LONGEST).any():
                raise weights.ModelError(
                    f"{recorded.name} gives {kind} of length {lengths.min():.2g} to {lengths.max():.2g}: "
                    f"float16 keeps the length of rows from {SHORTEST:g} to {LONGEST:g} only"
                )
            return np.hstack([rows, np.ones((len(rows), 1), dtype=np.float32)])

        rows = recorded.rows(keys, items, homogeneous, size=size, kind=kind)
        return rows[:, :-1] / rows[:, -1:]


def _file_hash(file: Path) -> str:
    try:
        return hashlib.sha256(pictures.read_bytes(file)).hexdigest()
    except pictures.ImageRejected as error:
        raise pictures.ImageRejected(f"{file.name}: {error}") from error


def weights_file(model: str, folder: Path, checkpoint: Path | None) -> Path:
    """Where the weights lie, there or not: a given checkpoint, else as cn_clip names what it downloads."""
    return checkpoint or folder / f"clip_cn_{model.lower()}.pt"


class ChineseClipScorer:
    """Chinese-CLIP (`cn_clip`), the paper's scorer of a meme's image against a text (Section 5.2, Eq. 26).

    Vectors are recorded, so that a replay needs neither torch nor weights. `name` is `cn_clip:MODEL@HASH`,
    the hash being that of the checkpoint; without the checkpoint it is that of the recorded vectors.
    """

    def __init__(
        self,
        model: str,
        image_path: Callable[[Meme], Path],
        folder: Path,
        checkpoint: Path | None = None,
        read_dirs: Sequence[Path] = (),
        write_dir: Path | None = None,
        mode: Mode = "auto",
        used_in: Path | None = None,
    ) -> None:
        """`model` is a name of `cn_clip.clip.available_models()` and gives the structure.

        `checkpoint` is a file of weights on disk; without it, they are looked for in `folder` under the
        name that cn_clip gives them, else downloaded there. Nothing is loaded before it is needed.
        """
        if checkpoint is not None and not checkpoint.is_file() and mode != "recorded":
            raise CheckpointMissing(
                f"clip_checkpoint: there is no file {checkpoint}; give the path of the .pt file, or set "
                "clip_checkpoint=null to have the weights looked for in data/interim/clip"
            )
        self._structure, self._image_path, self._folder = model, image_path, folder
        self._file = weights_file(model, folder, checkpoint)
        self._parts: tuple[Any, Any, Any, str] | None = None
        self._long_texts: set[str] = set()
        self.name = self._name_of_recorded(read_dirs)
        self._recorded = RecordedVectors(self.name, read_dirs, write_dir, mode, used_in=used_in)

    @property
    def truncated(self) -> int | None:
        """Texts, each once, that the model did not read to their end; None where only it could tell."""
        if not self._long_texts:
            return 0
        try:
            from cn_clip.clip import _tokenizer
        except (ImportError, RuntimeError):
            return None
        return sum(len(_tokenizer.tokenize(text)) > ROOM for text in self._long_texts)

    def _name_of_recorded(self, read_dirs: Sequence[Path]) -> str:
        """Name by the checkpoint's file, else by recorded vectors, else by downloading the weights."""
        if not self._file.is_file():
            names = recorded_names(read_dirs, f"cn_clip:{self._structure}@")
            if len(names) > 1:
                raise weights.ModelError(
                    f"vectors of several checkpoints are recorded ({', '.join(names)}) and there is no "
                    f"{self._file}: put the checkpoint there, or give clip_checkpoint"
                )
            if names:
                return names[0]
            self._load()
        return self._name_of_file()

    def _name_of_file(self) -> str:
        return f"cn_clip:{self._structure}@{weights.file_digest(self._file)}"

    def memes(self, memes: Sequence[Meme]) -> np.ndarray:
        """Unit rows for images, shape [n, dim], keyed by the image's sha256.

        Alpha stands on white, of an animation the first frame counts; the preprocessing of the model
        squeezes an image to a square, so its aspect ratio is lost.
        """

        def encode(part: list[Meme]) -> np.ndarray:
            torch, _, (model, preprocess), device = self._loaded()
            pictures = [preprocess(decode(self._image_path(meme))) for meme in part]
            return _in_batches(pictures, device, lambda p: model.encode_image(torch.stack(p).to(device)))

        keys = [_key("picture", meme.sha256) for meme in memes]
        return self._recorded.rows(keys, memes, encode, kind="pictures")

    def texts(self, texts: Sequence[str]) -> np.ndarray:
        """Unit rows for texts, shape [n, dim]; what is beyond 52 tokens is cut off and counted."""

        def encode(part: list[str]) -> np.ndarray:
            _, clip, (model, _), device = self._loaded()
            return _in_batches(part, device, lambda p: model.encode_text(clip.tokenize(p).to(device)))

        rows = self._recorded.rows([_key("text", t) for t in texts], texts, encode, size=len)
        # A token is one character at least, so short texts need no tokenizer, which comes with torch.
        self._long_texts.update(t for t in texts if len(unicodedata.normalize("NFD", t)) > ROOM)
        return rows

    def _loaded(self) -> tuple[Any, Any, Any, str]:
        if self._parts is None:
            self._load()
            weights.check_loaded(self.name, self._name_of_file())
        return self._parts

    def _load(self) -> None:
        """Load torch, cn_clip and the weights, downloading these where they are not on disk."""
        with weights.importing("Chinese-CLIP"):
            import torch
            from cn_clip import clip
            from cn_clip.clip import utils
        if tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2]) < FIRST_SAFE_TORCH:
            raise weights.ModelError(
                f"torch {torch.__version__} runs code that a checkpoint may hold: install torch 2.6 or later"
            )
        known = clip.available_models()
        if self._structure not in known:
            raise weights.ModelError(f"clip_model {self._structure!r} is none of {', '.join(known)}")
        info = utils._MODEL_INFO[self._structure]
        vision, text = info["struct"].split("@")
        try:
            with contextlib.redirect_stdout(io.StringIO()):  # it prints its configuration and its folders
                if self._file.is_file():
                    model, preprocess = clip.load_from_name(
                        str(self._file), "cpu", None, vision, text, info["input_resolution"]
                    )
                else:
                    model, preprocess = clip.load_from_name(self._structure, "cpu", str(self._folder))
        except (pickle.UnpicklingError, KeyError) as error:
            raise weights.ModelError(
                f"{self._file} is no Chinese-CLIP checkpoint of plain tensors ({type(error).__name__}): it "
                "must hold `state_dict`, and nothing that would have to be run to be read"
            ) from error
        except Exception as error:  # sizes that do not fit, a broken file, no way to the hub
            problem = " ".join(str(error).split())[:300]
            raise weights.ModelError(
                f"Chinese-CLIP {self._structure} cannot be loaded ({type(error).__name__}: {problem}). "
                "Download the checkpoint once and give its path as clip_checkpoint, "
                f"or put it at {self._file}; clip_model must be its structure"
            ) from error
        device = "cuda" if torch.cuda.is_available() else "cpu"
        self._parts = torch, clip, (model.float().eval().to(device), preprocess), device


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
    is_folder = weights.folder_of(model) is not None
    label = str(model).partition("@")[0]
    published = next((name for name, known in ARCHITECTURES.items() if known.hub == label), None)
    config = _config(model)
    if config is None:
        return None if is_folder else published
    fitting = [name for name, known in ARCHITECTURES.items() if not _differences(config, known)]
    return fitting[0] if fitting and (is_folder or published in (None, fitting[0])) else None


def misfit(model: str | Path, wanted: str) -> str:
    """Say in words why a model is not the one wanted; "" where it is, or where it is not here at all."""
    config = _config(model)
    if config is None:
        return f"{Path(model).name} has no config.json" if weights.folder_of(model) else ""
    gaps = _differences(config, ARCHITECTURES[wanted])
    return f"{Path(model).name} is no {wanted} ({', '.join(gaps[:3])})" if gaps else ""


def _differences(config: Mapping[str, Any], known: Architecture) -> list[str]:
    kind = config.get("model_type")
    if kind != known.kind:
        return [f"model_type {kind}, not {known.kind}"]
    differences = []
    for key, wanted in known.sizes.items():
        part, _, name = key.rpartition(".")
        values = (config.get(part) or {}) if part else config
        value = values.get(name, _DEFAULTS[known.kind][key])
        if value != wanted:
            differences.append(f"{key} {value}, not {wanted}")
    return differences


def _config(model: str | Path) -> dict[str, Any] | None:
    """Configuration of a folder, or of a hub model in the hub's cache."""
    folder = weights.folder_of(model)
    if folder is None:
        label, _, commit = str(model).partition("@")
        folder = weights.hub_folder(label) / "snapshots" / (commit or weights.hub_commit(label) or "none")
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return config if isinstance(config, dict) else None
