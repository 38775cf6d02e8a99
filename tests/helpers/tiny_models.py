"""Tiny random models in the real format of sentence-transformers, made on the spot.

They know nothing; what they show is that the real packages load, batch, cut and record as we use them.
"""

import json
import os
from importlib.util import find_spec
from pathlib import Path

import pytest

NEEDED = ("torch", "torchvision", "sentence_transformers", "transformers")
REQUIRED = "MEMECMD_REQUIRE_PAPER"
SIGNS = "一二三四五六七八九十天气真好周末去爬山吗预报说有雨那就在家煮火锅我带毛肚虾滑辣，点先吃饭？。查询："


def need_paper_extra() -> None:
    """Skip without the packages of the `paper` extra, or fail where `MEMECMD_REQUIRE_PAPER=1` wants them."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing and os.environ.get(REQUIRED) == "1":
        pytest.fail(f"{REQUIRED}=1, but {', '.join(missing)} cannot be found: pip install -e '.[paper]'")
    if missing:
        pytest.skip(f"{', '.join(missing)} not installed (the `paper` extra)")


def sentence_folder(folder: Path, seed: int = 0, prompts: dict[str, str] | None = None) -> Path:
    """A BERT of one layer with mean pooling, saved as sentence-transformers saves its models."""
    import torch
    from sentence_transformers import SentenceTransformer, models
    from transformers import BertConfig, BertModel, BertTokenizer

    bert = folder.with_name(f"{folder.name}-bert")
    bert.mkdir(parents=True)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *dict.fromkeys(SIGNS)]
    (bert / "vocab.txt").write_text("\n".join(words) + "\n", encoding="utf-8")
    BertTokenizer(str(bert / "vocab.txt")).save_pretrained(bert)
    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=len(words),
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=64,
        initializer_range=0.5,  # the usual 0.02 would make all texts alike
    )
    BertModel(config).save_pretrained(bert)
    word = models.Transformer(str(bert), max_seq_length=64)
    pooling = models.Pooling(32, pooling_mode="mean")
    model = SentenceTransformer(modules=[word, pooling], prompts=prompts or {}, device="cpu")
    model.save(str(folder))
    assert (folder / "modules.json").is_file()
    return folder


def with_remote_code(folder: Path) -> Path:
    """Let a saved model claim that its architecture is code which comes with the weights."""
    path = folder / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config |= {
        "model_type": "own",
        "auto_map": {"AutoConfig": "own.OwnConfig", "AutoModel": "own.OwnModel"},
    }
    path.write_text(json.dumps(config), encoding="utf-8")
    code = (
        "from pathlib import Path\n"
        "from transformers import BertConfig, BertModel\n\n\n"
        "class OwnConfig(BertConfig):\n"
        '    model_type = "own"\n\n\n'
        "class OwnModel(BertModel):\n"
        "    config_class = OwnConfig\n\n\n"
        f"Path({str(folder / 'it-ran')!r}).touch()\n"
    )
    (folder / "own.py").write_text(code, encoding="utf-8")
    return folder
