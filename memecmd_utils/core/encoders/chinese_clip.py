"""Chinese-CLIP (`cn_clip`), the paper's scorer of a meme's image against a text (Section 5.2, Eq. 26)."""

import contextlib
import hashlib
import io
import pickle
import unicodedata
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from memecmd_utils.core import images
from memecmd_utils.core.encoders import weights
from memecmd_utils.core.errors import MemecmdError
from memecmd_utils.core.recordings.vectors import Mode, RecordedVectors, recorded_names
from memecmd_utils.schemas import Meme

MAX_TOKENS = 52
"""What the model reads of a text, with the two marks around it."""
BATCH = {"cuda": 64, "cpu": 16}
FIRST_SAFE_TORCH = (2, 6)  # from here on `torch.load` reads tensors only, unless it is told otherwise


class CheckpointMissing(MemecmdError, FileNotFoundError):
    """The checkpoint that the profile names is not there."""


def weights_file(model: str, folder: Path, checkpoint: Path | None) -> Path:
    """Where the weights lie, there or not: a given checkpoint, else as cn_clip names what it downloads."""
    return checkpoint or folder / f"clip_cn_{model.lower()}.pt"


class ChineseClipScorer:
    """Meme image against utterance; vectors are recorded, so that a replay needs neither torch nor weights.

    `name` is `cn_clip:MODEL@HASH`, the hash being that of the checkpoint; without the checkpoint it is that
    of the recorded vectors. Everything is computed in float32, also on a GPU: half precision moves a score
    by as much as strategies differ.
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
        self.truncated: int | None = 0
        """Texts that the model did not read to their end; None where only the model could tell."""
        self._cut: set[str] = set()
        self.name = self._named(read_dirs)
        self._recorded = RecordedVectors(self.name, read_dirs, write_dir, mode, used_in=used_in)

    def _named(self, read_dirs: Sequence[Path]) -> str:
        beginning = f"cn_clip:{self._structure}@"
        if not self._file.is_file():
            found = recorded_names(read_dirs, beginning)
            if len(found) == 1:
                return found[0]
            if found:
                raise weights.ModelError(
                    f"vectors of several checkpoints are recorded ({', '.join(found)}) and there is no "
                    f"{self._file}: put the checkpoint there, or give clip_checkpoint"
                )
            self._load()
        return beginning + weights.file_digest(self._file)

    def memes(self, memes: Sequence[Meme]) -> np.ndarray:
        """Unit rows for images, shape [n, dim], keyed by the image's sha256.

        Alpha stands on white, of an animation the first frame counts; the preprocessing of the model
        squeezes an image to a square, so its aspect ratio is lost.
        """

        def encode(part: list[Meme]) -> np.ndarray:
            torch, _, (model, preprocess), device = self._loaded()
            pictures = [preprocess(images.decode(self._image_path(meme))) for meme in part]
            return self._in_batches(pictures, lambda p: model.encode_image(torch.stack(p).to(device)))

        keys = [_key("picture", meme.sha256) for meme in memes]
        return self._recorded.rows(keys, memes, encode, kind="pictures")

    def texts(self, texts: Sequence[str]) -> np.ndarray:
        """Unit rows for texts, shape [n, dim]; what is beyond 52 tokens is cut off and counted."""

        def encode(part: list[str]) -> np.ndarray:
            _, clip, (model, _), device = self._loaded()
            return self._in_batches(part, lambda p: model.encode_text(clip.tokenize(p).to(device)))

        rows = self._recorded.rows([_key("text", t) for t in texts], texts, encode, size=len)
        self._count_cut(texts)
        return rows

    def _count_cut(self, texts: Sequence[str]) -> None:
        # A token is one character at least, so short texts need no tokenizer, which comes with torch.
        room = MAX_TOKENS - 2
        long = [t for t in set(texts) - self._cut if len(unicodedata.normalize("NFD", t)) > room]
        if not long or self.truncated is None:
            return
        try:
            from cn_clip.clip import _tokenizer
        except (ImportError, RuntimeError):
            self.truncated = None
            return
        self._cut |= {text for text in long if len(_tokenizer.tokenize(text)) > room}
        self.truncated = len(self._cut)

    def _loaded(self) -> tuple[Any, Any, Any, str]:
        if self._parts is None:
            self._load()
            if self.name != (now := f"cn_clip:{self._structure}@{weights.file_digest(self._file)}"):
                raise weights.ModelError(
                    f"vectors of {self.name} are recorded, but {self._file} is {now}: give the old "
                    "checkpoint as clip_checkpoint, or move its vectors away for a fresh start"
                )
        return self._parts

    def _load(self) -> None:
        """Load torch, cn_clip and the weights, downloading these where they are not on disk."""
        try:
            import torch
            from cn_clip import clip
            from cn_clip.clip import utils
        except (ImportError, RuntimeError) as error:
            raise weights.ModelError(weights.install_hint("Chinese-CLIP", error)) from error
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
            said = " ".join(str(error).split())[:300]
            raise weights.ModelError(
                f"Chinese-CLIP {self._structure} cannot be loaded ({type(error).__name__}: {said}). "
                "Download the checkpoint once and give its path as clip_checkpoint, "
                f"or put it at {self._file}; clip_model must be its structure"
            ) from error
        device = "cuda" if torch.cuda.is_available() else "cpu"
        self._parts = torch, clip, (model.float().eval().to(device), preprocess), device

    def _in_batches(self, items: list[Any], encode: Callable[[list[Any]], Any]) -> np.ndarray:
        torch, _, _, device = self._loaded()
        size = BATCH[device]
        with torch.inference_mode():
            parts = [encode(items[i : i + size]).cpu().numpy() for i in range(0, len(items), size)]
        return np.concatenate(parts)


def _key(kind: str, of: str) -> str:
    return hashlib.sha256(f"{kind}\x1f{of}".encode()).hexdigest()
