"""Pairs of image and text on their way into a tuning, all by seed alone, and the CLIP that is being tuned."""

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from memecmd_utils import pictures, statistics
from memecmd_utils.core.encoders import weights
from memecmd_utils.core.encoders.clip import TRAINED_TOKENS, ModelMissing
from memecmd_utils.core.fetch import datasets
from memecmd_utils.files import paths
from memecmd_utils.mtrclip import loss

CROP_SHARE = (0.8, 1.0)
"""Share of the area that a random cut keeps, as in the paper's code."""


class Pair(NamedTuple):
    """An image and what is said of it. `template` groups pairs that may be masked as negatives."""

    image: Path
    text: str
    template: str = ""


class Batches:
    """Batch sampler: every epoch another order, which depends on seed and epoch only.

    So a run that is taken up in mid-epoch meets the same batches. Gives (epoch, row) in place of the row,
    so that the dataset can cut an image anew in each epoch without knowing the state of anything.
    """

    def __init__(self, pairs: int, batch_size: int, seed: int) -> None:
        self.pairs, self.batch_size, self.seed, self.epoch = pairs, min(batch_size, pairs), seed, 0

    def set_epoch(self, epoch: int) -> None:
        """Called by the trainer."""
        self.epoch = epoch

    def __len__(self) -> int:
        return self.pairs // self.batch_size

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        order = statistics.rng(self.seed, "tuning order", self.epoch).permutation(self.pairs)
        for start in range(0, len(self) * self.batch_size, self.batch_size):
            yield [(self.epoch, int(row)) for row in order[start : start + self.batch_size]]


class Pictures:
    """Reads images as the model's processor does, up to 8-bit pixels: a quarter of the memory.

    `normaliser` does the rest on the device, a mini-batch at a time.
    """

    def __init__(self, processor: Any, size: int) -> None:
        self.processor, self.size = processor, size

    def plain(self, paths: Sequence[Path]) -> Any:
        """Images as the processor cuts them for a measurement, uint8 [n, 3, size, size]."""
        pictures = [_decoded(path) for path in paths]
        made = self.processor(pictures, do_rescale=False, do_normalize=False, return_tensors="pt")
        return made["pixel_values"].round().byte()

    def features(self, paths: Sequence[Path]) -> dict[str, Any]:
        """The same, as the model takes them."""
        return {"pixel_values": self.plain(paths), "modality": "image"}

    def cut(self, path: Path, seed: int) -> Any:
        """An image, cut at random (RandomResizedCrop) by `seed` alone, uint8 [3, size, size]."""
        import torch
        from torchvision.transforms import InterpolationMode, RandomResizedCrop

        cut = RandomResizedCrop(self.size, scale=CROP_SHARE, interpolation=InterpolationMode.BICUBIC)
        # On the CPU's stream only: the device's belongs to the model's dropout.
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            picture = cut(_decoded(path))
        return torch.from_numpy(np.array(picture)).permute(2, 0, 1)

    def normaliser(self) -> Any:
        """A forward pre-hook for the model: pixels that are still 8-bit become what the processor makes."""
        mean, std = self.processor.image_mean, self.processor.image_std

        def normalise(module: Any, given: tuple[dict[str, Any], ...]) -> tuple[dict[str, Any], ...]:
            import torch

            features, *rest = given
            pixels = features.get("pixel_values")
            if pixels is None or pixels.dtype != torch.uint8:
                return given
            middle, spread = (pixels.new_tensor(v, dtype=torch.float32).view(1, 3, 1, 1) for v in (mean, std))
            return {**features, "pixel_values": (pixels.float() / 255 - middle) / spread}, *rest

        return normalise


class TrainingPairs:
    """Dataset of a tuning; `[epoch, row]` gives pixels, text and the labels of template and text."""

    def __init__(self, pairs: Sequence[Pair], pictures: Pictures, seed: int, augment: bool) -> None:
        self.pairs, self.pictures, self.seed, self.augment = list(pairs), pictures, seed, augment
        self.labels = label_columns(self.pairs)

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, at: tuple[int, int]) -> dict[str, Any]:
        epoch, row = at
        path = self.pairs[row].image
        if self.augment:
            seed = int(statistics.rng(self.seed, "tuning cut", epoch, row).integers(2**63))
            pixels = self.pictures.cut(path, seed)
        else:
            pixels = self.pictures.plain([path])[0]
        return {"pixels": pixels, "text": self.pairs[row].text, "labels": self.labels[row]}


class Collator:
    """Puts a batch together as the trainer hands it to the loss: image features, text features, labels."""

    def __init__(self, tokenizer: Any, max_tokens: int) -> None:
        self.tokenizer, self.max_tokens = tokenizer, max_tokens

    def __call__(self, items: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Join items of `TrainingPairs`; the names tell the trainer which features are the image's."""
        import torch

        texts = self.texts([item["text"] for item in items])
        return {
            "image_pixel_values": torch.stack([item["pixels"] for item in items]),
            "image_modality": "image",
            **{f"text_{name}": value for name, value in texts.items()},
            "label": torch.tensor(np.stack([item["labels"] for item in items])),
        }

    def texts(self, texts: Sequence[str]) -> dict[str, Any]:
        """Tokens of texts; what is beyond the model's length is cut off."""
        given = self.tokenizer(
            list(texts), padding=True, truncation=True, max_length=self.max_tokens, return_tensors="pt"
        )
        return {**given, "modality": "text"}


def label_columns(pairs: Sequence[Pair]) -> np.ndarray:
    """Integers [n, 2]: template and text. A pair without a template has one of its own."""
    templates = [pair.template or f"\0{row}" for row, pair in enumerate(pairs)]
    columns = [np.unique(names, return_inverse=True)[1] for names in (templates, [p.text for p in pairs])]
    return np.stack(columns, axis=1)


def _decoded(path: Path) -> Any:
    try:
        return pictures.decode(path)
    except pictures.ImageRejected as error:
        raise ValueError(f"image {path.name}: {error}; leave its pair out") from error


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
        with weights.importing(f"tuning of {name}", ModelMissing):
            import torch
            from sentence_transformers import SentenceTransformer
        self.device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        folder = paths.root / name
        label, _, commit = (str(folder), "", "") if folder.is_dir() else name.partition("@")
        commit = commit or (None if folder.is_dir() else weights.hub_commit(label))
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
                "mtrclip.model a folder that holds it, or let it be downloaded from the hub once"
            ) from error
        self.clip = getattr(self.model[0], "auto_model", None)
        kind = getattr(getattr(self.clip, "config", None), "model_type", type(self.model[0]).__name__)
        if kind not in KINDS:
            # ALIGN's image tower has batch norms: in mini-batches they see other numbers than in the batch.
            raise weights.ModelError(f"{name} is of the kind {kind!r}; can be tuned: {', '.join(KINDS)}")
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
        return float(loss.find_log_scale(self.model).detach())

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
            images = rows(self.pictures.features, [pair.image for pair in pairs])
            texts = rows(self.collator.texts, [pair.text for pair in pairs])
        self.model.train(was_training)
        return images, texts

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
