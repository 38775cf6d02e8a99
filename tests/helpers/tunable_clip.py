"""A tiny CLIP of the real classes, and drawn template memes to tune it on. It knows nothing before."""

import json
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from string import ascii_lowercase

import pytest
from PIL import Image, ImageDraw

from memecmd_utils.template_memes.tuning import Pair

NEEDED = ("torch", "torchvision", "sentence_transformers", "transformers", "datasets", "accelerate")
PIXELS = 32
COLOURS = {"red": (220, 30, 30), "green": (30, 160, 60), "blue": (40, 60, 220), "yellow": (240, 220, 40)}
GROUNDS = {"white": (250, 250, 250), "black": (10, 10, 10)}
SHAPES = ("disc", "square", "bar")


def need_tuning() -> None:
    """Skip where the packages that tuning needs are not installed."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} not installed (the `paper` extra)")
    from sentence_transformers import __version__

    if tuple(map(int, __version__.split(".")[:2])) < (6, 2):
        pytest.skip(f"sentence-transformers {__version__}: tuning needs 6.2 or later")


def clip_folder(folder: Path, dropout: float = 0.0, seed: int = 0, width: int = 32) -> Path:
    """A CLIP of two layers a tower with random weights, its tokenizer and its processor."""
    import torch
    from transformers import CLIPConfig, CLIPImageProcessor, CLIPModel, CLIPProcessor, CLIPTokenizer

    folder.mkdir(parents=True)
    signs = [*ascii_lowercase, *(f"{letter}</w>" for letter in ascii_lowercase)]
    merges = []
    for word in (*COLOURS, *GROUNDS, *SHAPES):  # each a token of its own, built up letter by letter
        left = word[0]
        for letter in (*word[1:-1], f"{word[-1]}</w>"):
            merges.append(f"{left} {letter}")
            left += letter
            signs.append(left)
    signs = [*dict.fromkeys(signs), "<|startoftext|>", "<|endoftext|>"]
    (folder / "vocab.json").write_text(json.dumps({sign: n for n, sign in enumerate(signs)}))
    rules = dict.fromkeys(merges)
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *rules]) + "\n")
    tokenizer = CLIPTokenizer(str(folder / "vocab.json"), str(folder / "merges.txt"), model_max_length=32)
    size = {"height": PIXELS, "width": PIXELS}
    pictures = CLIPImageProcessor(size={"shortest_edge": PIXELS}, crop_size=size)
    tower = {
        "hidden_size": width, "intermediate_size": 2 * width, "num_hidden_layers": 2,
        "num_attention_heads": 2, "attention_dropout": dropout,
    }  # fmt: skip
    text = {
        "vocab_size": len(signs), "max_position_embeddings": 32, "bos_token_id": len(signs) - 2,
        "eos_token_id": len(signs) - 1, "pad_token_id": len(signs) - 1,
    }  # fmt: skip
    vision = {"image_size": PIXELS, "patch_size": 8}
    torch.manual_seed(seed)
    model = CLIPModel(CLIPConfig(text_config=tower | text, vision_config=tower | vision, projection_dim=16))
    model.save_pretrained(folder)
    CLIPProcessor(pictures, tokenizer).save_pretrained(folder)
    return folder


def pairs(folder: Path) -> list[Pair]:
    """Two dozen drawn memes with captions."""
    folder.mkdir(parents=True, exist_ok=True)
    made = []
    for colour, ground, shape in product(COLOURS, GROUNDS, SHAPES):
        path = folder / f"{colour}-{ground}-{shape}.png"
        picture = Image.new("RGB", (48, 40), GROUNDS[ground])
        draw = ImageDraw.Draw(picture)
        fill = COLOURS[colour]
        if shape == "disc":
            draw.ellipse((12, 8, 36, 32), fill=fill)
        elif shape == "square":
            draw.rectangle((12, 8, 36, 32), fill=fill)
        else:
            draw.rectangle((0, 16, 48, 24), fill=fill)
        picture.save(path)
        made.append(Pair(path, f"{colour} {shape} {ground}"))
    return made
