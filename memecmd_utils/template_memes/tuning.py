"""Tuning CLIP on pairs of picture and text, the batch far larger than the memory (2501.13851, Section 4).

Loss and trainer stand in appendix 08b. Here is what the processes that read pictures have to import, and what
follows the machine.
"""

import shutil
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from memecmd_utils import fetch, pictures
from memecmd_utils.embedders import TRAINED_TOKENS, ModelReference, loading
from memecmd_utils.files import cores
from memecmd_utils.settings import MtrclipSettings

CROP_SHARE = (0.8, 1.0)  # share of the area that a random cut keeps, as in the paper's code
TUNABLE = "clip", "chinese_clip"
"""Kinds that can be tuned. ALIGN is none: its image tower has batch norms, which in mini-batches see other
numbers than in the batch."""


def load_model(name: str) -> Any:
    """A CLIP or Chinese-CLIP by hub name, `name@COMMIT` or folder, in float32, for sentence-transformers."""
    reference = ModelReference(name, ())
    options = {"revision": reference.commit(), "local_files_only": not fetch.may_fetch()}
    with loading(f"{reference.label} for a tuning"):
        import torch
        from sentence_transformers import SentenceTransformer
        from transformers.utils import logging

        logging.disable_progress_bar()  # a tuning reads and writes weights after every epoch
        model = SentenceTransformer(reference.source, model_kwargs={"dtype": torch.float32}, **options)
        kind = model[0].auto_model.config.model_type
        if kind not in TUNABLE:
            raise ValueError(f"its kind is {kind}, but must be one of {', '.join(TUNABLE)}")
    model.max_seq_length = min(model.max_seq_length, TRAINED_TOKENS[kind])
    return model


class Preprocess:
    """Makes the pictures and texts of a batch what the towers take: files are decoded, cut at random, pixels.

    The processes of a DataLoader do this, so it can be pickled and holds no weights. The cuts follow from the
    seed and the batch, so they are the same whatever number of processes reads.
    """

    def __init__(self, model: Any, seed: int) -> None:
        """`model`: what `load_model` gives."""
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


# --- what follows the machine ---------------------------------------------------------------------------

ON_CPU = 0, 8
BYTES_OF_STATE = 16  # of a parameter in training: float32 weight, gradient, and two moments of AdamW
BYTES_OF_ACTIVATION = 48
"""Of each token, dimension and layer of a pair under bfloat16. With ViT-L/14 at 336 pixels and a batch of
2,048 one H200 took about 14, 32, 54 and 99 GB for mini-batches of 8, 32, 64 and 128; this gives 15, 33, 55
and 101."""
USABLE = 0.9  # share of a card's free memory that a tuning plans with
MOST_WORKERS, MOST_PAIRS = 8, 128
"""Processes and pairs. A step on that card took 21 s to read and 40 s to compute with no process and 8 pairs,
11 s in all with 8 processes and 64 pairs, 10 s with 8 and 128."""


class Machine(NamedTuple):
    """What a tuning has: free bytes of the card (None: no card) and of shared memory, and cores."""

    card: int | None
    shared: int
    cores: int


def this_machine() -> Machine:
    """What is free now. Where shared memory is no folder of its own (not Linux), it counts as unbounded."""
    import torch

    card = torch.cuda.mem_get_info()[0] if torch.cuda.is_available() else None
    shared = Path("/dev/shm")
    return Machine(card, shutil.disk_usage(shared).free if shared.is_dir() else 1 << 60, cores())


def workload(
    model: Any, settings: MtrclipSettings, batch: int, machine: Machine | None = None
) -> tuple[int, int]:
    """How many processes read pictures, and how many pairs the towers see at a time, unless both are set.

    Each process has one batch of pixels ready in shared memory: 2.8 GB at 2,048 pictures of 336 x 336. A
    container often has 64 MB of it, and then nothing is read ahead. On a CPU: none, and 8 pairs.
    `machine`: None is `this_machine`.
    """
    machine = machine or this_machine()
    workers, pairs = ON_CPU
    if machine.card is not None:
        config = model[0].auto_model.config
        vision, text = config.vision_config, config.text_config
        pixels = batch * 3 * 4 * vision.image_size**2
        weights = BYTES_OF_STATE * sum(p.numel() for p in model.parameters())
        patches = (vision.image_size // vision.patch_size) ** 2 + 1
        pair = BYTES_OF_ACTIVATION * (
            patches * vision.hidden_size * vision.num_hidden_layers
            + model.max_seq_length * text.hidden_size * text.num_hidden_layers
        )
        fitting = max(1, int((USABLE * machine.card - weights - pixels) / pair))
        pairs = min(MOST_PAIRS, 1 << (fitting.bit_length() - 1))  # a power of two
        # One batch more is on its way to the card.
        workers = max(0, min(MOST_WORKERS, machine.cores - 1, machine.shared // pixels - 1))
    workers = workers if settings.workers == "auto" else settings.workers
    return workers, pairs if settings.mini_batch_size == "auto" else settings.mini_batch_size
