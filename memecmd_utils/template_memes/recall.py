"""Meme-text retrieval (2501.13851, Section 4): exact ranks in both directions, and what a tuning reads.

A query ranks all candidates of the other side by cosine; it hits at K if a right candidate is among the first
K. What is right depends on the counting: the paper's code knows the meme's own text only. R@K with intervals,
Tables 2 to 4 and the trainer stand in appendix 08b; the processes that read its pictures import this file.
"""

import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from memecmd_utils import pictures
from memecmd_utils.llm.recordings import normalise

TIE = 1e-6
"""Cosines that differ by no more are equal: what float32 and the order of batches make of equal vectors."""
CROP_SHARE = (0.8, 1.0)  # share of the area that a random cut keeps, as in the paper's code
Key = tuple[str, str]  # counting and direction


class Ranks(NamedTuple):
    """Of every query [queries]: wrong candidates `above` its best right one, all that are `level` with that,
    and the `right` ones among these."""

    above: np.ndarray
    level: np.ndarray
    right: np.ndarray

    def hits(self, k: int) -> np.ndarray:
        """The probability that each query hits at `k`, where equal candidates come in random order.

        So a model that gives all candidates the same vector scores k/N.
        """
        from scipy.special import comb

        places = np.clip(k - self.above, 0, self.level)
        return 1 - comb(self.level - self.right, places) / comb(self.level, places)


def rank_all(texts: np.ndarray, images: np.ndarray, templates: Sequence[str]) -> dict[Key, Ranks]:
    """Rank every text's memes and every meme's texts by counting and direction.

    `texts` and `images` [memes, dim] need no unit length, but finite numbers; text i belongs to image i.
    Countings: `pair`: the meme's own text alone is right (the paper's diagonal); `template`: any meme of the
    template, left out where no template is known.
    """
    if not np.isfinite(texts).all() or not np.isfinite(images).all():
        raise ValueError("a vector is not finite: the model's weights are broken")
    texts, images = (normalise(np.asarray(rows, dtype=float)) for rows in (texts, images))
    countings, ranks = {"pair": np.arange(len(texts))}, {}
    if any(templates):
        named = [name or f"\0{number}" for number, name in enumerate(templates)]
        countings["template"] = np.unique(named, return_inverse=True)[1]
    scores = texts @ images.T
    for counting, labels in countings.items():
        is_right = labels[:, None] == labels
        for direction, rows in (("T2M", scores), ("M2T", scores.T)):
            best = np.where(is_right, rows, -np.inf).max(axis=1, keepdims=True)
            level = np.abs(rows - best) <= TIE
            above = (rows > best + TIE) & ~is_right
            ranks[counting, direction] = Ranks(*(m.sum(axis=1) for m in (above, level, level & is_right)))
    return ranks


class Preprocess:
    """Makes the pictures and texts of a batch what the towers take: files are decoded, cut at random, pixels.

    The processes of a DataLoader do this, so it can be pickled and holds no weights. The cuts follow from the
    seed and the batch, so they are the same whatever number of processes reads.
    """

    def __init__(self, model: Any, seed: int) -> None:
        """`model`: a CLIP of sentence-transformers."""
        self.processor, self.seed = model[0].processor, seed
        self.side = model[0].auto_model.config.vision_config.image_size

    def __call__(self, inputs: Sequence[Path] | Sequence[str], **_: Any) -> dict[str, Any]:
        """Pixels of picture files, or tokens of texts, in the form of sentence-transformers' collator."""
        if isinstance(inputs[0], str):
            options = {"padding": True, "truncation": True, "return_tensors": "pt"}
            return {**self.processor.tokenizer(list(inputs), **options), "modality": "text"}
        import torch
        from torchvision.transforms import InterpolationMode, RandomResizedCrop

        cut = RandomResizedCrop(self.side, scale=CROP_SHARE, interpolation=InterpolationMode.BICUBIC)
        with torch.random.fork_rng(devices=[]):
            names = "\n".join(file.name for file in inputs)
            torch.default_generator.manual_seed(zlib.crc32(names.encode()) ^ self.seed)
            images = [cut(pictures.decode(file)) for file in inputs]
        pixels = self.processor.image_processor(images=images, return_tensors="pt")["pixel_values"]
        return {"pixel_values": pixels, "modality": "image"}


def as_files(rows: dict[str, list[str]]) -> dict[str, list[Any]]:
    """Rows whose column `image` names files: `Preprocess` tells these from texts by their type."""
    return {**rows, "image": [Path(file) for file in rows["image"]]}
