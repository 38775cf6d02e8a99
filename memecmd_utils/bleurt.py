"""BLEURT-20 (Sellam et al., 2020; Pu et al., 2021) without TensorFlow, in transformers' RemBERT classes.

BLEURT-20 is RemBERT with one output. Google's package needs TensorFlow and is not in the package index; the
PyTorch port there (`bleurt-pytorch` 0.0.1) was left in 2023 and does not import under transformers 5. Its
checkpoints (`lucadiliello/BLEURT-20`, -D12, -D6, -D3, Apache-2.0) are tensors of the same shapes under other
names, so they are renamed here and the port is not needed.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from memecmd_utils import datasets, model_files

BATCH = 16
RENAMED = (("bleurt.", "rembert."), ("encoder.embedding_projection.", "encoder.embedding_hidden_mapping_in."))
WEIGHTS = ("model.safetensors", "pytorch_model.bin")
TOKENIZER = "spm.model"
KEPT = (
    "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size",
    "hidden_act", "max_position_embeddings", "type_vocab_size", "layer_norm_eps",
)  # fmt: skip


class BleurtScorer:
    """A loaded checkpoint. `width`: hidden size; `longest`: tokens of a pair that are read."""

    def __init__(self, model: Any, pieces: Any, device: str) -> None:
        self._model, self._pieces, self._device = model.to(device).eval(), pieces, device
        self.width: int = model.config.hidden_size
        self.longest: int = model.config.max_position_embeddings
        self._cls, self._sep = pieces.PieceToId("[CLS]"), pieces.PieceToId("[SEP]")

    def encode(self, reference: str, candidate: str) -> tuple[list[int], list[int]]:
        """Token ids and segments of a pair: [CLS] reference [SEP] candidate [SEP].

        What is too long loses tokens at the end of the longer text, as `encoding.py` of BLEURT does it.
        """
        first, second = self._pieces.EncodeAsIds(reference), self._pieces.EncodeAsIds(candidate)
        while len(first) + len(second) > self.longest - 3:
            (first if len(first) > len(second) else second).pop()
        ids = [self._cls, *first, self._sep, *second, self._sep]
        return ids, [0] * (len(first) + 2) + [1] * (len(second) + 1)

    def score(self, references: Sequence[str], candidates: Sequence[str]) -> np.ndarray:
        """Score of each candidate against the reference at its place, shape [n]."""
        import torch

        pairs = [self.encode(*texts) for texts in zip(references, candidates, strict=True)]
        # Pairs of like length together, so that little is computed for padding.
        order = sorted(range(len(pairs)), key=lambda i: len(pairs[i][0]))
        scores = np.zeros(len(pairs))
        for start in range(0, len(order), BATCH):
            part = order[start : start + BATCH]
            size = max(len(pairs[i][0]) for i in part)
            ids, segments, mask = (torch.zeros(len(part), size, dtype=torch.long) for _ in range(3))
            for row, i in enumerate(part):
                tokens, sides = (torch.tensor(of) for of in pairs[i])
                ids[row, : len(tokens)], segments[row, : len(sides)] = tokens, sides
                mask[row, : len(tokens)] = 1
            inputs = {"input_ids": ids, "token_type_ids": segments, "attention_mask": mask}
            with torch.inference_mode():
                found = self._model(**{name: of.to(self._device) for name, of in inputs.items()}).logits
            scores[part] = found[:, 0].float().cpu().numpy()
        return scores


def load(model: str) -> BleurtScorer:
    """Load a BLEURT-20 checkpoint by folder or hub name.

    `OSError` where it is neither on disk nor to be downloaded; `ValueError` for one of another kind, such as
    the older `bleurt-base-128`.
    """
    import sentencepiece
    import torch
    from transformers import RemBertConfig, RemBertForSequenceClassification

    folder = _folder(model)
    settings = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    inner = settings.get("embedding_size")
    if not inner or not (folder / TOKENIZER).is_file():
        raise model_files.ModelError(
            f"{model} is no BLEURT-20 checkpoint (embedding_size in config.json, {TOKENIZER}): give "
            "lucadiliello/BLEURT-20, or -D12, -D6, -D3 for smaller ones"
        )
    kept = {name: settings[name] for name in KEPT if name in settings}
    config = RemBertConfig(
        **kept,
        input_embedding_size=inner,
        num_labels=1,
        pad_token_id=settings.get("pad_token_id", 0),
        bos_token_id=None,
        eos_token_id=None,
    )
    network = RemBertForSequenceClassification(config)
    missing, unexpected = network.load_state_dict(_tensors(folder), strict=False)
    unexpected = [name for name in unexpected if not name.endswith("position_ids")]
    if missing or unexpected:
        raise model_files.ModelError(
            f"{model}: weights do not fit: missing {missing[:3]}, unknown {unexpected[:3]}"
        )
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(folder / TOKENIZER))
    return BleurtScorer(network, pieces, "cuda" if torch.cuda.is_available() else "cpu")


def _folder(model: str) -> Path:
    if (folder := model_files.folder_of(model)) is not None:
        return folder
    from huggingface_hub import snapshot_download

    wanted, offline = ["config.json", TOKENIZER, *WEIGHTS], not datasets.may_fetch()
    return Path(snapshot_download(model, allow_patterns=wanted, local_files_only=offline))


def _tensors(folder: Path) -> dict[str, Any]:
    """Weights of a checkpoint under RemBERT's names."""
    import torch

    found = next((folder / name for name in WEIGHTS if (folder / name).is_file()), None)
    if found is None:
        raise OSError(f"{folder} holds none of {', '.join(WEIGHTS)}")
    if found.suffix == ".safetensors":
        from safetensors.torch import load_file

        tensors = load_file(found)
    else:
        tensors = torch.load(found, map_location="cpu", weights_only=True)
    for old, new in RENAMED:
        tensors = {name.replace(old, new, 1): tensor for name, tensor in tensors.items()}
    return tensors
