"""Any sentence-transformers model as an embedder: prompts, precision, and batches that fit the memory."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from memecmd_utils.core import paths
from memecmd_utils.core.encoders import weights
from memecmd_utils.core.recordings import vectors

COMMIT = re.compile("[0-9a-f]{40}")
Dtype = Literal["auto", "float16", "float32"]
LARGEST_BATCH = {"cuda": vectors.BATCH, "cpu": 32}
SHARE_OF_MEMORY = 0.5
"""Of what is free after loading: the estimate below leaves out what kernels take for themselves."""


class SentenceTransformerEmbedder:
    """A sentence-transformers model by hub name, `name@commit` or folder; loaded when first needed.

    `name` is `model@revision-precision`: for a hub model 12 digits of the commit, for a folder a hash of
    its files. Vectors of two precisions are not the same, so they are kept apart. `auto` precision goes on
    in that of recorded vectors, so that a run begun on a GPU may be taken up on a CPU; without any it is
    float16 on a GPU and float32 on a CPU.
    """

    def __init__(
        self,
        model: str,
        trust_remote_code: bool = False,
        query_instruction: str | None = None,
        dtype: Dtype = "auto",
        read_dirs: Sequence[Path] = (),
    ) -> None:
        """`query_instruction` stands before queries (None: the model's own prompt), never before documents.

        `read_dirs` are folders of recordings: where neither weights nor torch are at hand, they tell the
        revision.
        """
        folder = paths.root / model  # a relative path counts from the project's root
        self._folder = folder if folder.is_dir() else None
        self._label, _, self._pinned = (model, "", "") if self._folder else model.partition("@")
        if self._folder or Path(model).is_absolute():
            self._label = Path(model).name
        elif self._pinned and not COMMIT.fullmatch(self._pinned):
            raise weights.ModelError(f"embedder {model!r}: after the @ stands a commit, 40 hex digits")
        self.query_instruction = query_instruction
        self._trust, self._dtype, self._read_dirs = trust_remote_code, dtype, read_dirs
        self._model: Any = None
        self._name: str | None = None
        self._tokens: int | None = None

    @property
    def name(self) -> str:
        """Model, revision and precision: from the files, else from recorded vectors, else by loading it."""
        if self._name is None:
            self._name = self._name_without_loading()
        if self._name is None:
            self._load()
        return self._name

    @property
    def note(self) -> str:
        """Device, precision and batches in use, for the bar; empty before anything was encoded."""
        if self._tokens is None:
            return ""
        return f"{self._model.device.type} {self._precision}, batches of {self._tokens:,} tokens"

    @property
    def _precision(self) -> str:
        return self._name.rpartition("-")[2]

    def _revision(self) -> str | None:
        if self._folder is not None:
            return weights.folder_digest(self._folder)
        commit = self._pinned or weights.hub_commit(self._label)
        return commit[: weights.DIGITS] if commit else None

    def _name_without_loading(self) -> str | None:
        revision = self._revision()
        if revision and self._dtype != "auto":
            return f"{self._label}@{revision}-{self._dtype}"
        labels = dict.fromkeys([self._label, Path(self._label).name])  # a folder may be elsewhere by now
        found = [n for b in labels for n in vectors.recorded_names(self._read_dirs, f"{b}@{revision or ''}")]
        found = [n for n in found if self._dtype == "auto" or n.endswith(f"-{self._dtype}")]
        if len(found) > 1:
            raise weights.ModelError(
                f"vectors of several versions of {self._label} are recorded ({', '.join(found)}): say which "
                "with embedder_dtype, or with the revision as `embedder: NAME@COMMIT`"
            )
        if found:
            return found[0]
        return f"{self._label}@{revision}-{self._auto_dtype()}" if revision else None

    def _auto_dtype(self) -> str:
        return "float16" if self._torch().cuda.is_available() else "float32"

    def _torch(self) -> Any:
        try:
            import torch
        except (ImportError, RuntimeError) as error:
            raise weights.ModelError(weights.install_hint(f"embedder {self._label!r}", error)) from error
        return torch

    def _load(self) -> None:
        """Load the weights; `RuntimeError` says what to do if that fails or they are not those named."""
        torch = self._torch()
        try:
            from sentence_transformers import SentenceTransformer
        except (ImportError, RuntimeError) as error:
            raise weights.ModelError(weights.install_hint(f"embedder {self._label!r}", error)) from error
        auto = self._auto_dtype() if self._dtype == "auto" else self._dtype
        dtype = auto if self._name is None else self._precision
        commit = self._pinned or weights.hub_commit(self._label) if self._folder is None else None
        try:
            model = SentenceTransformer(
                str(self._folder or self._label),
                trust_remote_code=self._trust,
                revision=commit or None,
                model_kwargs={_dtype_key(): getattr(torch, dtype)},
            )
        except Exception as error:  # hub, files, remote code: each with faults of its own
            problem = " ".join(str(error).split())
            if not self._trust and "trust_remote_code" in problem:
                raise weights.ModelError(
                    f"embedder {self._label!r} runs code that comes with its weights. If you trust it, set "
                    "trust_remote_code=true in the profile or in SET=; `NAME@COMMIT` pins what you read"
                ) from error
            raise weights.ModelError(
                f"embedder {self._label!r} cannot be loaded ({type(error).__name__}: "
                f"{problem[:300]}). Give a folder that holds it, or let it be downloaded from the hub once"
            ) from error
        self._model = model.eval()
        card = getattr(model, "model_card_data", None)
        revision = self._revision() or getattr(card, "base_model_revision", None)
        if not revision:
            raise weights.ModelError(f"embedder {self._label!r} does not tell its revision: give NAME@COMMIT")
        loaded = f"{self._label}@{revision[: weights.DIGITS]}-{dtype}"
        if self._name is not None and self._name.rpartition("/")[2] != loaded.rpartition("/")[2]:
            raise weights.ModelError(
                f"vectors of {self._name} are recorded, but {loaded} is what loads now. To go on with the "
                f"old one give it as `embedder: NAME@COMMIT`; for a fresh start move its vectors away"
            )
        self._name = self._name or loaded

    def encode(self, texts: Sequence[str], side: Literal["query", "document"]) -> np.ndarray:
        """Encode in batches by the memory that is free, shape [n, dim]; a batch that does not fit is halved.

        Texts should come longest first (`RecordedVectors` sorts them): the first batch is then the worst.
        """
        if self.name and self._model is None:  # the name first: it says which precision to go on in
            self._load()
        if self._tokens is None:
            self._tokens = self._affordable()
        device, parts, start = self._model.device.type, [], 0
        most = LARGEST_BATCH.get(device, LARGEST_BATCH["cpu"])
        while start < len(texts):
            longest = max(self._length(text, side) for text in texts[start : start + most])
            size = min(most, max(1, self._tokens // longest), len(texts) - start)
            part = list(texts[start : start + size])
            try:
                parts.append(np.asarray(self._rows(part, side, size), dtype=np.float32))
            except Exception as error:
                if not _is_out_of_memory(error):
                    raise
                if size == 1:
                    raise weights.ModelError(
                        f"a text of {longest} tokens does not fit the memory of {device} with "
                        f"{self._label!r}: set embedder_dtype=float16, or serve the model at an endpoint"
                    ) from error
                self._tokens = size // 2 * longest
            else:
                start += size
                continue
            # Outside of the handler: the error's traceback would keep the tensors alive.
            if device == "cuda":
                self._torch().cuda.empty_cache()
        return np.concatenate(parts) if parts else np.zeros((0, 0), dtype=np.float32)

    def _rows(self, texts: list[str], side: str, size: int) -> np.ndarray:
        model, options = self._model, {"batch_size": size, "show_progress_bar": False}
        own: Callable | None = getattr(model, f"encode_{side}", None)
        if side == "query" and self.query_instruction is not None:
            options["prompt"] = self.query_instruction
        elif own is None and side in (getattr(model, "prompts", None) or {}):  # before release 5
            options["prompt_name"] = side
        return (own or model.encode)(texts, **options)

    def _length(self, text: str, side: str) -> int:
        """Tokens of a text by its characters, an upper bound but for rare signs; the model cuts the rest."""
        before = (getattr(self._model, "prompts", None) or {}).get(side) or ""
        if side == "query" and self.query_instruction is not None:
            before = self.query_instruction
        return min(len(text) + len(before) + 2, self._model.max_seq_length or 10**6)

    def _affordable(self) -> int:
        """Tokens of a batch that fit into the free memory, from the sizes in the model's configuration."""
        config = getattr(getattr(self._model[0], "auto_model", None), "config", None)
        width = getattr(config, "hidden_size", None) or self._model.get_sentence_embedding_dimension() or 1024
        inner = getattr(config, "intermediate_size", None) or 4 * width
        heads = getattr(config, "num_attention_heads", None) or max(1, width // 64)
        length = min(self._model.max_seq_length or 512, 512)
        numbers = 12 * width + 4 * inner + 2 * heads * length  # of one token while one layer works on it
        of_each = 2 if self._precision == "float16" else 4
        return max(1, int(SHARE_OF_MEMORY * self._free_bytes() / (numbers * of_each)))

    def _free_bytes(self) -> int:
        if self._model.device.type == "cuda":
            return self._torch().cuda.mem_get_info(self._model.device)[0]
        import psutil

        return psutil.virtual_memory().available


def _dtype_key() -> str:
    """Name of the precision's argument, which transformers 5 gave another."""
    version = weights.installed("transformers") or "0"
    return "dtype" if int(version.split(".")[0]) >= 5 else "torch_dtype"


def _is_out_of_memory(error: BaseException) -> bool:
    """Whether torch ran out of memory, on a GPU (an error of its own) or on a CPU (a plain one)."""
    said = str(error).lower()
    named = type(error).__name__ == "OutOfMemoryError"
    return named or "out of memory" in said or "can't allocate memory" in said
