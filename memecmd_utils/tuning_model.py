"""The model of a tuning: a CLIP of transformers inside sentence-transformers, and what is measured of it."""

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from memecmd_utils import contrastive_loss, datasets, model_files, paths
from memecmd_utils.clip_towers import TRAINED_TOKENS, ModelMissing
from memecmd_utils.tuning_data import Collator, Pair, Pictures

KINDS = ("clip", "chinese_clip")
"""Kinds that can be tuned."""
MEASURED_AT_ONCE = {"cuda": 64, "cpu": 16}


class TunedModel:
    """A CLIP or Chinese-CLIP that is being tuned, in float32, with its pictures and its tokenizer."""

    def __init__(self, name: str, device: str | None = None) -> None:
        """`name`: hub name, `name@COMMIT` or folder. `device`: None is a GPU where there is one.

        A hub model that was downloaded before stays at its commit; nothing is downloaded where fetching is
        off (`datasets.may_fetch`). Raises `ModelMissing` where packages or weights are not there,
        `ValueError` for another kind of model.
        """
        try:
            import torch
            from sentence_transformers import SentenceTransformer
        except (ImportError, RuntimeError) as error:
            raise ModelMissing(model_files.install_hint(f"tuning of {name}", error)) from error
        self.device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        folder = paths.root / name
        label, _, commit = (str(folder), "", "") if folder.is_dir() else name.partition("@")
        commit = commit or (None if folder.is_dir() else model_files.hub_commit(label))
        try:
            with quiet():
                self.model = SentenceTransformer(
                    label,
                    device=self.device,
                    revision=commit,
                    local_files_only=not datasets.may_fetch(),
                    model_kwargs={"dtype": torch.float32},
                )
        except Exception as error:  # hub, files, kinds of model: each with faults of its own
            said = " ".join(str(error).split())[:300]
            raise ModelMissing(
                f"{Path(label).name} cannot be loaded ({type(error).__name__}: {said}). Give "
                "meme_retrieval.model a folder that holds it, or let it be downloaded from the hub once"
            ) from error
        self.clip = getattr(self.model[0], "auto_model", None)
        kind = getattr(getattr(self.clip, "config", None), "model_type", type(self.model[0]).__name__)
        if kind not in KINDS:
            # ALIGN's image tower has batch norms: in mini-batches they see other numbers than in the batch.
            raise model_files.ModelError(f"{name} is of the kind {kind!r}; can be tuned: {', '.join(KINDS)}")
        config, processor = self.clip.config, self.model[0].processor
        self.pictures = Pictures(processor.image_processor, config.vision_config.image_size)
        room = min(TRAINED_TOKENS[kind], config.text_config.max_position_embeddings)
        self.collator = Collator(processor.tokenizer, room)
        self.model.register_forward_pre_hook(self.pictures.normaliser())

    def save(self, folder: Path) -> None:
        """Write weights, configuration and processor as transformers has them; a kill leaves no half."""
        part = folder.with_name(f".{folder.name}.part")
        shutil.rmtree(part, ignore_errors=True)  # of a run that was killed
        self.clip.save_pretrained(part)
        self.model[0].processor.save_pretrained(part)
        _replace(part, folder)

    def log_scale(self) -> float:
        """The trained parameter; the temperature is exp of its negative."""
        return float(contrastive_loss.find_log_scale(self.model).detach())

    def vectors(self, pairs: Sequence[Pair]) -> tuple[np.ndarray, np.ndarray]:
        """Unit rows of images and of texts, float32 [n, d] each; the model's mode stays as it was."""
        import torch
        from torch.nn.functional import normalize

        def rows(make: Any, items: Sequence[Any]) -> np.ndarray:
            step, made = MEASURED_AT_ONCE.get(self.model.device.type, 16), []
            for start in range(0, len(items), step):
                features = make(items[start : start + step])
                moved = {k: v.to(self.model.device) if hasattr(v, "to") else v for k, v in features.items()}
                made.append(normalize(self.model(moved)["sentence_embedding"].float(), dim=1).cpu().numpy())
            return np.concatenate(made)

        was_training = self.model.training
        self.model.eval()
        with torch.inference_mode():
            images = rows(self._pixels, [pair.image for pair in pairs])
            texts = rows(self.collator.texts, [pair.text for pair in pairs])
        self.model.train(was_training)
        return images, texts

    def _pixels(self, files: Sequence[Path]) -> dict[str, Any]:
        return {"pixel_values": self.pictures.plain(files), "modality": "image"}

    def measure(self, pairs: Sequence[Pair], name: str) -> dict[str, float]:
        """R@1 of the pairs both ways and their mean, in 0 to 1, under names that begin with `name`."""
        images, texts = self.vectors(pairs)
        similar = texts @ images.T
        to_meme, to_text = recall_at_1(similar), recall_at_1(similar.T)
        return {
            f"{name}_R@1": (to_meme + to_text) / 2,
            f"{name}_R@1_text_to_meme": to_meme,
            f"{name}_R@1_meme_to_text": to_text,
        }


@contextmanager
def quiet() -> Iterator[None]:
    """Within it transformers draws no bars: a tuning reads and writes weights after every epoch."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _replace(part: Path, folder: Path) -> None:
    old = folder.with_name(f".{folder.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        folder.rename(old)
    part.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


def recall_at_1(similar: np.ndarray) -> float:
    """Share of rows whose own column is above all others, as the paper's code counts; a tie is a miss."""
    own = similar.diagonal().copy()
    others = similar.copy()
    np.fill_diagonal(others, -np.inf)
    return float((own > others.max(axis=1)).mean()) if len(similar) > 1 else 1.0
