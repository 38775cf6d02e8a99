"""What the processes import that read pictures for a tuning of CLIP (2501.13851, Section 4; appendix 08b)."""

import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from memecmd_utils import pictures

CROP_SHARE = (0.8, 1.0)  # share of the area that a random cut keeps, as in the paper's code


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
