"""Tiny random weights in the formats that BERTScore, BLEURT and LPIPS read; their values mean nothing."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

BLEURT_SIZES = {
    "vocab_size": 45, "embedding_size": 12, "hidden_size": 16, "num_hidden_layers": 2,
    "num_attention_heads": 2, "intermediate_size": 24, "max_position_embeddings": 40,
    "layer_norm_eps": 1e-12, "hidden_act": "gelu", "pad_token_id": 0, "type_vocab_size": 2,
}  # fmt: skip
BERT_LAYERS = 2
SENTENCES = (
    "the dog sleeps on the old sofa all day", "a cat sees the dog and runs away fast",
    "nobody knows why the meeting is so long", "my boss says hello on a monday",
)  # fmt: skip


def alexnet(torch_home: Path) -> Path:
    """AlexNet with random weights where torchvision keeps what it downloaded for LPIPS."""
    import torch
    import torchvision

    torch.set_num_threads(1)
    torch.manual_seed(0)
    path = torch_home / "hub" / "checkpoints" / "alexnet-owt-7be5be79.pth"
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(torchvision.models.alexnet(weights=None).state_dict(), path)
    return torch_home


def bert_folder(folder: Path, texts: Iterable[str]) -> Path:
    """A BERT of `BERT_LAYERS` layers that knows the words of `texts`, for BERTScore."""
    import torch
    from transformers import BertConfig, BertModel, BertTokenizer

    torch.set_num_threads(1)
    torch.manual_seed(0)
    folder.mkdir(parents=True)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *sorted({w for t in texts for w in t.split()})]
    (folder / "vocab.txt").write_text("\n".join(words) + "\n", encoding="utf-8")
    BertTokenizer(str(folder / "vocab.txt"), model_max_length=62).save_pretrained(folder)
    config = BertConfig(
        vocab_size=len(words), hidden_size=32, num_hidden_layers=BERT_LAYERS, num_attention_heads=2,
        intermediate_size=64, max_position_embeddings=64, initializer_range=0.5,
    )  # fmt: skip
    BertModel(config).save_pretrained(folder)
    return folder


def bleurt_folder(folder: Path) -> Path:
    """A checkpoint as `lucadiliello/BLEURT-20` has it: config.json, pytorch_model.bin, spm.model."""
    import sentencepiece
    import torch

    torch.set_num_threads(1)
    folder.mkdir(parents=True)
    (folder / "text.md").write_text("\n".join(SENTENCES * 5), encoding="utf-8")
    sentencepiece.SentencePieceTrainer.train(
        input=str(folder / "text.md"), model_prefix=str(folder / "spm"), pad_id=0, unk_id=1, bos_id=-1,
        vocab_size=BLEURT_SIZES["vocab_size"], eos_id=-1, pad_piece="[PAD]", unk_piece="[UNK]",
        user_defined_symbols=["[CLS]", "[SEP]", "[MASK]"], minloglevel=2,
    )  # fmt: skip
    (folder / "config.json").write_text(json.dumps(BLEURT_SIZES), encoding="utf-8")
    torch.save(bleurt_tensors(), folder / "pytorch_model.bin")
    return folder


def bleurt_tensors() -> dict[str, Any]:
    """Weights of such a checkpoint by its own names."""
    import torch

    generator = torch.Generator().manual_seed(0)
    sizes = BLEURT_SIZES
    width, inner, inter = sizes["hidden_size"], sizes["embedding_size"], sizes["intermediate_size"]
    shapes = {
        "embeddings.word_embeddings.weight": (sizes["vocab_size"], inner),
        "embeddings.position_embeddings.weight": (sizes["max_position_embeddings"], inner),
        "embeddings.token_type_embeddings.weight": (2, inner),
        "embeddings.LayerNorm.weight": (inner,),
        "embeddings.LayerNorm.bias": (inner,),
        "encoder.embedding_projection.weight": (width, inner),
        "encoder.embedding_projection.bias": (width,),
        "pooler.dense.weight": (width, width),
        "pooler.dense.bias": (width,),
    }
    for layer in range(sizes["num_hidden_layers"]):
        start = f"encoder.layer.{layer}."
        for name, (rows, columns) in {
            "attention.self.query": (width, width), "attention.self.key": (width, width),
            "attention.self.value": (width, width), "attention.output.dense": (width, width),
            "intermediate.dense": (inter, width), "output.dense": (width, inter),
        }.items():  # fmt: skip
            shapes[f"{start}{name}.weight"], shapes[f"{start}{name}.bias"] = (rows, columns), (rows,)
        for name in ("attention.output.LayerNorm", "output.LayerNorm"):
            shapes[f"{start}{name}.weight"] = shapes[f"{start}{name}.bias"] = (width,)
    found = {f"bleurt.{name}": torch.randn(shape, generator=generator) / 2 for name, shape in shapes.items()}
    found["bleurt.embeddings.position_ids"] = torch.arange(sizes["max_position_embeddings"])[None]
    found["classifier.weight"] = torch.randn(1, width, generator=generator)
    return found | {"classifier.bias": torch.randn(1, generator=generator)}
