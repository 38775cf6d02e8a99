"""Tiny random weights in the formats that BERTScore and LPIPS read; their values mean nothing."""

from collections.abc import Iterable
from pathlib import Path

BERT_LAYERS = 2


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
