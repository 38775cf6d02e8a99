"""The two towers of CLIP, ALIGN and Chinese-CLIP as transformers has them; loaded when first needed."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from memecmd_utils import images, model_files, paths
from memecmd_utils.errors import MemecmdError
from memecmd_utils.sentence_embedder import COMMIT

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
            raise model_files.ModelError(f"model {model!r}: after the @ stands a commit, 40 hex digits")
        self._model, self._device, self._dtype = model, device, dtype
        self._batch, self._download = batch, download
        self._parts: dict[str, Any] = {}
        self._loaded: tuple[Any, Any] | None = None

    def revision(self) -> str | None:
        """12 hex digits of the commit or of the folder's files; None where only the hub knows."""
        if self._folder is not None:
            return model_files.folder_digest(self._folder)
        commit = self._pinned or model_files.hub_commit(self.label)
        return commit[: model_files.DIGITS] if commit else None

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
        return revision[: model_files.DIGITS]

    def limit(self, download: bool = True) -> int:
        """Longest text in tokens, marks included: what the model was trained on, or can hold if less.

        Raises ValueError for a model that is none of the kinds of `TRAINED_TOKENS`.
        """
        config = self._part("AutoConfig", download)
        if config.model_type not in TRAINED_TOKENS:
            kinds = ", ".join(TRAINED_TOKENS)
            raise model_files.ModelError(
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
        if missing := [name for name in ("torch", "transformers") if not model_files.installed(name)]:
            raise ModelMissing(
                f"{self.label} needs {' and '.join(missing)}: pip install -e '.[paper]' into an environment "
                "of its own"
            )
        try:
            import torch  # noqa: F401 - transformers imports without it, but loads nothing
            import transformers
        except (ImportError, RuntimeError) as error:
            raise ModelMissing(model_files.install_hint(self.label, error)) from error
        commit = None if self._folder else self._pinned or model_files.hub_commit(self.label)
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
        return images.decode(file)
    except images.ImageRejected as error:
        raise images.ImageRejected(f"{file.name}: {error}") from error
