"""Tiny random models in the real formats of transformers and sentence-transformers, made on the spot.

They know nothing; what they show is that the real packages load, batch, cut and record as we use them.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

SIGNS = "一二三四五六七八九十天气真好周末去爬山吗预报说有雨那就在家煮火锅我带毛肚虾滑辣，点先吃饭？。查询："
LETTERS = "abcdefghijklmnopqrstuvwxyz.,'!?"
SIDE = 32
SMALL = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2}
VISION = {**SMALL, "num_hidden_layers": 2, "image_size": SIDE, "patch_size": 8}
RANGE = {"initializer_range": 0.5}  # the usual 0.02 would make all inputs alike


def seeded(seed: int) -> None:
    import torch

    torch.manual_seed(seed)


# --- texts ----------------------------------------------------------------------------------------------


def bert_text(folder: Path, words: Iterable[str], layers: int, positions: int) -> tuple[Any, dict[str, Any]]:
    """A tokenizer of words and their pieces, in `folder`, and the structure of a BERT that reads them."""
    from transformers import BertTokenizer

    folder.mkdir(parents=True, exist_ok=True)
    words = list(dict.fromkeys(words))
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words, *(f"##{word}" for word in words)]
    (folder / "vocab.txt").write_text("\n".join(vocabulary) + "\n", encoding="utf-8")
    tokenizer = BertTokenizer(str(folder / "vocab.txt"), model_max_length=positions - 2)
    sizes = {"vocab_size": len(vocabulary), "num_hidden_layers": layers, "max_position_embeddings": positions}
    return tokenizer, {**SMALL, **RANGE, **sizes}


def bert_folder(folder: Path, words: Iterable[str], layers: int = 2) -> Path:
    """A BERT that knows `words`."""
    from transformers import BertConfig, BertModel

    seeded(0)
    tokenizer, structure = bert_text(folder, words, layers, 64)
    tokenizer.save_pretrained(folder)
    BertModel(BertConfig(**structure)).save_pretrained(folder)
    return folder


def sentence_folder(folder: Path, prompts: dict[str, str] | None = None) -> Path:
    """A BERT of one layer with mean pooling, saved as sentence-transformers saves its models."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer import modules

    word = modules.Transformer(str(bert_folder(folder.with_name(f"{folder.name}-bert"), SIGNS, 1)))
    pooling = modules.Pooling(SMALL["hidden_size"], pooling_mode="mean")
    SentenceTransformer(modules=[word, pooling], prompts=prompts or {}, device="cpu").save(str(folder))
    return folder


# --- pictures and texts ---------------------------------------------------------------------------------


def clip_folder(kind: str, folder: Path, seed: int = 0) -> Path:
    """A model of a kind (`clip`, `align`, `chinese_clip`) with its processor."""
    seeded(seed)
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
    text = {**SMALL, **ends, "num_hidden_layers": 2, "vocab_size": len(words), "max_position_embeddings": 77}
    CLIPModel(CLIPConfig(text_config=text, vision_config=VISION, projection_dim=24)).save_pretrained(folder)
    tokenizer = CLIPTokenizer.from_pretrained(folder, model_max_length=77)
    size = {"size": {"shortest_edge": SIDE}, "crop_size": {"height": SIDE, "width": SIDE}}
    CLIPProcessor(CLIPImageProcessor(**size), tokenizer).save_pretrained(folder)


def _align(folder: Path) -> None:
    from transformers import AlignConfig, AlignModel, AlignProcessor, EfficientNetImageProcessor

    tokenizer, text = bert_text(folder, LETTERS, 2, 128)
    vision = {
        "image_size": SIDE, "hidden_dim": 24, "width_coefficient": 1.0, "depth_coefficient": 0.1,
        "kernel_sizes": [3, 3], "in_channels": [32, 16], "out_channels": [16, 24], "strides": [1, 2],
        "num_block_repeats": [1, 1], "expand_ratios": [1, 6], "depthwise_padding": [], **RANGE,
    }  # fmt: skip
    AlignModel(AlignConfig(text_config=text, vision_config=vision, projection_dim=24)).save_pretrained(folder)
    pictures = EfficientNetImageProcessor(size={"height": SIDE, "width": SIDE})
    AlignProcessor(pictures, tokenizer).save_pretrained(folder)


def _chinese_clip(folder: Path) -> None:
    from transformers import ChineseCLIPConfig, ChineseCLIPModel, ChineseCLIPProcessor
    from transformers import ChineseCLIPImageProcessor as Pictures

    tokenizer, text = bert_text(folder, LETTERS + SIGNS, 2, 128)
    config = ChineseCLIPConfig(text_config=text, vision_config=VISION, projection_dim=24)
    ChineseCLIPModel(config).save_pretrained(folder)
    # As its makers' preprocessor_config.json has it: squeezed to a square, nothing is cut off.
    pictures = Pictures(size={"height": SIDE, "width": SIDE}, do_center_crop=False)
    ChineseCLIPProcessor(pictures, tokenizer).save_pretrained(folder)


def alexnet(torch_home: Path) -> Path:
    """AlexNet with random weights where torchvision keeps what it downloaded for LPIPS."""
    import torch
    import torchvision

    seeded(0)
    path = torch_home / "hub" / "checkpoints" / "alexnet-owt-7be5be79.pth"
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(torchvision.models.alexnet(weights=None).state_dict(), path)
    return torch_home
