"""BLEURT on a tiny random checkpoint in the port's own format; values mean nothing here, the wiring does."""

import json

import numpy as np
import pytest
import tiny_metrics
from tiny_metrics import BLEURT_SIZES as SIZES

from memecmd_utils.cm50 import metrics
from memecmd_utils.cm50.metrics import WIRING, Bleurt

REFERENCES = ["the dog sleeps", "my boss says hello on a monday and the dog runs", "a cat"]
CANDIDATES = ["a cat sees the dog", "why the meeting is so long", "a cat"]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    for package in ("torch", "transformers", "sentencepiece"):
        pytest.importorskip(package)
    return tiny_metrics.bleurt_folder(tmp_path_factory.mktemp("weights") / "tiny-bleurt")


def by_hand(folder, ids: list[int], segments: list[int]) -> float:
    """The forward pass in numpy, from the description of BERT with a projected embedding."""
    import torch
    from scipy.special import erf, softmax

    w = {k: v.double().numpy() for k, v in torch.load(folder / "pytorch_model.bin").items()}

    def normed(x, name):
        x = x - x.mean(-1, keepdims=True)
        x = x / np.sqrt((x**2).mean(-1, keepdims=True) + SIZES["layer_norm_eps"])
        return x * w[name + ".weight"] + w[name + ".bias"]

    def dense(x, name):
        return x @ w[name + ".weight"].T + w[name + ".bias"]

    start = "bleurt.embeddings."
    x = w[start + "word_embeddings.weight"][ids] + w[start + "token_type_embeddings.weight"][segments]
    x = normed(x + w[start + "position_embeddings.weight"][: len(ids)], start + "LayerNorm")
    x = dense(x, "bleurt.encoder.embedding_projection")
    heads, size = SIZES["num_attention_heads"], SIZES["hidden_size"] // SIZES["num_attention_heads"]
    for layer in range(SIZES["num_hidden_layers"]):
        name = f"bleurt.encoder.layer.{layer}."
        q, k, v = (
            dense(x, f"{name}attention.self.{part}").reshape(-1, heads, size).transpose(1, 0, 2)
            for part in ("query", "key", "value")
        )
        seen = softmax(q @ k.transpose(0, 2, 1) / np.sqrt(size), axis=-1) @ v
        seen = dense(seen.transpose(1, 0, 2).reshape(len(ids), -1), name + "attention.output.dense")
        x = normed(x + seen, name + "attention.output.LayerNorm")
        inner = dense(x, name + "intermediate.dense")
        inner = inner * (1 + erf(inner / np.sqrt(2))) / 2
        x = normed(x + dense(inner, name + "output.dense"), name + "output.LayerNorm")
    return float(dense(np.tanh(dense(x[0], "bleurt.pooler.dense")), "classifier")[0])


def test_scores_are_those_of_the_architecture(checkpoint) -> None:
    scorer = metrics.load_bleurt(str(checkpoint))
    found = scorer.score(REFERENCES, CANDIDATES)
    pairs = [scorer.encode(*texts) for texts in zip(REFERENCES, CANDIDATES, strict=True)]
    assert found == pytest.approx([by_hand(checkpoint, *pair) for pair in pairs], abs=1e-5)
    assert np.ptp(found) > 0.01  # texts differ by far more than the tolerance
    # Order and padding move nothing.
    assert scorer.score(REFERENCES[::-1], CANDIDATES[::-1]) == pytest.approx(found[::-1], abs=1e-5)
    assert scorer.score(REFERENCES[:1], CANDIDATES[:1]) == pytest.approx(found[:1], abs=1e-5)
    # The sides are not alike: reference first.
    assert abs(scorer.score(CANDIDATES[:1], REFERENCES[:1])[0] - found[0]) > 1e-3


def test_pairs_are_encoded_and_cut_as_bleurt_does(checkpoint) -> None:
    scorer = metrics.load_bleurt(str(checkpoint))
    pieces = scorer._pieces
    ids, segments = scorer.encode("the dog", "a cat")
    first, second = pieces.EncodeAsIds("the dog"), pieces.EncodeAsIds("a cat")
    cls, sep = pieces.PieceToId("[CLS]"), pieces.PieceToId("[SEP]")
    assert ids == [cls, *first, sep, *second, sep]
    assert segments == [0] * (len(first) + 2) + [1] * (len(second) + 1)
    long, short = "the dog sleeps on the old sofa " * 4, "a cat"
    ids, _ = scorer.encode(long, short)
    assert len(ids) == 40 and ids[-len(second) - 1 : -1] == second  # the longer one loses its end
    assert ids[1 : ids.index(sep)] == pieces.EncodeAsIds(long)[: 40 - 3 - len(second)]


def test_the_metric_says_that_the_weights_are_random(checkpoint) -> None:
    found = Bleurt(str(checkpoint)).score(CANDIDATES, [[text] for text in REFERENCES])
    assert found.note == WIRING and "tiny-bleurt@" in found.signature and "cut:40" in found.signature
    assert found.value == pytest.approx(float(np.mean(found.items)))


def test_the_port_gives_the_same_where_it_runs(checkpoint) -> None:
    pytest.importorskip("bleurt_pytorch", exc_type=ImportError, reason="bleurt-pytorch needs transformers 4")
    import torch
    from bleurt_pytorch import BleurtConfig, BleurtForSequenceClassification

    model = BleurtForSequenceClassification(BleurtConfig(**SIZES)).eval()
    model.load_state_dict(torch.load(checkpoint / "pytorch_model.bin"))
    scorer = metrics.load_bleurt(str(checkpoint))
    for texts in zip(REFERENCES, CANDIDATES, strict=True):
        ids, segments = (torch.tensor([part]) for part in scorer.encode(*texts))
        with torch.inference_mode():
            expected = model(input_ids=ids, token_type_ids=segments).logits.item()
        assert scorer.score([texts[0]], [texts[1]])[0] == pytest.approx(expected, abs=1e-5)


def test_another_checkpoint_is_refused_with_what_to_give(checkpoint, tmp_path) -> None:
    import torch

    with pytest.raises(OSError):
        metrics.load_bleurt(str(tmp_path))
    assert "cannot be loaded" in Bleurt(str(tmp_path)).score(["a"], [["b"]]).note
    (tmp_path / "config.json").write_text(json.dumps(SIZES | {"embedding_size": None}), encoding="utf-8")
    with pytest.raises(ValueError, match="no BLEURT-20 checkpoint"):
        metrics.load_bleurt(str(tmp_path))
    (tmp_path / "config.json").write_text(json.dumps(SIZES), encoding="utf-8")
    (tmp_path / "spm.model").write_bytes((checkpoint / "spm.model").read_bytes())
    with pytest.raises(OSError, match="holds none of"):
        metrics.load_bleurt(str(tmp_path))
    broken = torch.load(checkpoint / "pytorch_model.bin")
    del broken["classifier.bias"]
    torch.save(broken, tmp_path / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"missing \['classifier.bias'\]"):
        metrics.load_bleurt(str(tmp_path))
