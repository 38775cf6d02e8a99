"""Tiny random CLIP, ALIGN and Chinese-CLIP models in the real format of transformers, made on the spot.

They know nothing; what they show is that the real classes load, batch, cut and record as we use them.
"""

import json
from pathlib import Path

from tiny_models import SIGNS

SIDE = 32
TEXT = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
VISION = {**TEXT, "image_size": SIDE, "patch_size": 8}
RANGE = {"initializer_range": 0.5}  # the usual 0.02 would make all inputs alike


def folder_of(kind: str, folder: Path, seed: int = 0) -> Path:
    """Save a tiny model of a kind (`clip`, `align`, `chinese_clip`) with its processor."""
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(seed)
    folder.mkdir(parents=True)
    {"clip": _clip, "align": _align, "chinese_clip": _chinese_clip}[kind](folder)
    return folder


def _clip(folder: Path) -> None:
    from tokenizers.pre_tokenizers import ByteLevel
    from transformers import CLIPConfig, CLIPImageProcessor, CLIPModel, CLIPProcessor, CLIPTokenizer

    signs = sorted(ByteLevel.alphabet())
    words = [*signs, *(sign + "</w>" for sign in signs), "<|startoftext|>", "<|endoftext|>"]
    (folder / "vocab.json").write_text(json.dumps({w: n for n, w in enumerate(words)}), encoding="utf-8")
    (folder / "merges.txt").write_text("#version: 0.2\n", encoding="utf-8")
    ends = {"bos_token_id": len(words) - 2, "eos_token_id": len(words) - 1, "pad_token_id": len(words) - 1}
    text = {**TEXT, **ends, "vocab_size": len(words), "max_position_embeddings": 77}
    CLIPModel(CLIPConfig(text_config=text, vision_config=VISION, projection_dim=24)).save_pretrained(folder)
    tokenizer = CLIPTokenizer.from_pretrained(folder, model_max_length=77)
    size = {"size": {"shortest_edge": SIDE}, "crop_size": {"height": SIDE, "width": SIDE}}
    CLIPProcessor(CLIPImageProcessor(**size), tokenizer).save_pretrained(folder)


def _bert_tokenizer(folder: Path, signs: str):
    from transformers import BertTokenizer

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *dict.fromkeys(signs)]
    words += ["##" + sign for sign in dict.fromkeys(signs)]
    (folder / "vocab.txt").write_text("\n".join(words) + "\n", encoding="utf-8")
    return BertTokenizer(str(folder / "vocab.txt")), len(words)


def _align(folder: Path) -> None:
    from transformers import AlignConfig, AlignModel, AlignProcessor, EfficientNetImageProcessor

    tokenizer, size = _bert_tokenizer(folder, "abcdefghijklmnopqrstuvwxyz.,'!?")
    text = {**TEXT, **RANGE, "vocab_size": size, "max_position_embeddings": 128}
    vision = {
        "image_size": SIDE, "hidden_dim": 24, "width_coefficient": 1.0, "depth_coefficient": 0.1,
        "kernel_sizes": [3, 3], "in_channels": [32, 16], "out_channels": [16, 24], "strides": [1, 2],
        "num_block_repeats": [1, 1], "expand_ratios": [1, 6], "depthwise_padding": [], **RANGE,
    }  # fmt: skip
    config = AlignConfig(text_config=text, vision_config=vision, projection_dim=24)
    AlignModel(config).save_pretrained(folder)
    pictures = EfficientNetImageProcessor(size={"height": SIDE, "width": SIDE})
    AlignProcessor(pictures, tokenizer).save_pretrained(folder)


def _chinese_clip(folder: Path) -> None:
    from transformers import (
        ChineseCLIPConfig,
        ChineseCLIPImageProcessor,
        ChineseCLIPModel,
        ChineseCLIPProcessor,
    )

    tokenizer, size = _bert_tokenizer(folder, "abcdefghijklmnopqrstuvwxyz" + SIGNS)
    text = {**TEXT, **RANGE, "vocab_size": size, "max_position_embeddings": 128}
    config = ChineseCLIPConfig(text_config=text, vision_config=VISION, projection_dim=24)
    ChineseCLIPModel(config).save_pretrained(folder)
    square = {"height": SIDE, "width": SIDE}
    pictures = ChineseCLIPImageProcessor(size=square, crop_size=square)
    ChineseCLIPProcessor(pictures, tokenizer).save_pretrained(folder)
