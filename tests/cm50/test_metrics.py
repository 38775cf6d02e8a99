import json
import math
import shutil

import numpy as np
import pytest
import tiny_metrics
from tiny_metrics import BLEURT_SIZES as SIZES

from memecmd_utils.cm50 import metrics
from memecmd_utils.cm50.metrics import (
    NOT_COMPUTED,
    SUPPORTED,
    WIRING,
    BertScore,
    Bleu,
    Bleurt,
    ChrF,
    RougeL,
    Score,
    TextMetric,
)

P = ["the cat sat on the mat today", "nobody likes a monday", "so many memes"]
SEVERAL = [
    ["the cat sat on the mat", "a cat sits"],
    ["mondays are bad", "nobody likes mondays at all"],
    ["few memes"],
]
SINGLE = [refs[:1] for refs in SEVERAL]


def close(found, expected) -> None:
    assert found == pytest.approx(expected, rel=1e-12)


def test_chrf_by_hand() -> None:
    pytest.importorskip("sacrebleu")
    # "ab" against "abc": order 1: 2/2 and 2/3; order 2: 1/1 and 1/2; no higher order in "ab".
    precision, recall = (1 + 1) / 2, (2 / 3 + 1 / 2) / 2
    close(ChrF().score(["ab"], [["abc"]]).value, 100 * 5 * precision * recall / (4 * precision + recall))


def test_bleu_is_that_of_sacrebleu_without_smoothing() -> None:
    sacrebleu = pytest.importorskip("sacrebleu")
    found = Bleu().score(P, SINGLE)
    close(found.value, sacrebleu.corpus_bleu(P, [[r[0] for r in SINGLE]], smooth_method="none").score / 100)
    assert found.value > 0 and "tok:13a" in found.signature and "smooth:none" in found.signature
    columns = [
        ["the cat sat on the mat", "mondays are bad", "few memes"],
        ["a cat sits", "nobody likes mondays at all", None],
    ]
    close(Bleu().score(P, SEVERAL).value, sacrebleu.corpus_bleu(P, columns, smooth_method="none").score / 100)


def test_bleu_by_hand() -> None:
    pytest.importorskip("sacrebleu")
    # 5 words of which 5, 4, 3, 2 n-grams occur in the 7 words of the reference; brevity exp(1 - 7/5)
    close(Bleu().score(["a b c d e"], [["a b c d e f g"]]).value, math.exp(1 - 7 / 5))
    # The 4-gram is missing: 0 without smoothing, as the paper's table has it.
    assert Bleu().score(["a b c x d e"], [["a b c y d e"]]).value == 0
    # Of two references the closer length counts: no brevity penalty.
    assert Bleu().score(["a b c d"], [["a b c d e f g h", "a b c d"]]).value == pytest.approx(1)


def test_rouge_by_hand() -> None:
    pytest.importorskip("rouge_score")
    # Longest common subsequence of "the cat sat" and "the fat cat": the, cat: 2/3 and 2/3.
    close(RougeL().score(["The cat sat"], [["the fat cat"]]).value, 2 / 3)
    # Of several references the best counts; no stemmer: "cats" is not "cat".
    close(RougeL().score(["The cat sat"], [["a dog", "the fat cat"]]).value, 2 / 3)
    assert RougeL().score(["cats"], [["cat"]]).value == 0


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    """A BERT of two layers with random weights: it knows nothing, but the real package runs on it."""
    for package in ("torch", "bert_score"):
        pytest.importorskip(package)
    return tiny_metrics.bert_folder(tmp_path_factory.mktemp("weights") / "bert", P)


def test_bertscore_is_that_of_bert_score(encoder) -> None:
    import bert_score

    metric = BertScore(str(encoder), layer=2)
    found = metric.score(P, SEVERAL)
    *_, expected = bert_score.score(P, SEVERAL, model_type=str(encoder), num_layers=2, idf=False)
    assert found.items == pytest.approx(expected.tolist(), abs=1e-6)
    assert found.value == pytest.approx(expected.mean().item(), abs=1e-6)
    assert found.note == WIRING  # never taken for a number of the paper
    for part in ("bert@", "layer:2", "idf:no", "baseline:no", "bert-score:"):
        assert part in found.signature
    assert metric.score(["the cat sat"], [["the cat sat"]]).value == pytest.approx(1, abs=1e-5)
    single = [max(metric.score([p], [[r]]).value for r in refs) for p, refs in zip(P, SEVERAL, strict=True)]
    assert found.items == pytest.approx(single, abs=1e-5)


def test_a_blank_text_scores_0_and_moves_no_other(encoder) -> None:
    metric = BertScore(str(encoder), layer=2)
    found = metric.score([P[0], " "], [SINGLE[0], SINGLE[1]])
    assert found.items[1] == 0
    assert found.items[0] == pytest.approx(metric.score(P[:1], SINGLE[:1]).value, abs=1e-6)


def test_a_tokenizer_without_a_limit_is_cut_where_the_model_ends(encoder, tmp_path) -> None:
    folder = tmp_path / "bert"
    shutil.copytree(encoder, folder)
    settings = folder / "tokenizer_config.json"
    kept = json.loads(settings.read_text(encoding="utf-8"))
    del kept["model_max_length"]  # then it is 1e30
    settings.write_text(json.dumps(kept), encoding="utf-8")
    long = " ".join(P[0].split() * 40)
    found, expected = (BertScore(str(of), layer=2).score([long], [[P[0]]]) for of in (folder, encoder))
    assert found.value == pytest.approx(expected.value, abs=1e-6)


@pytest.mark.parametrize("metric", [BertScore(), Bleurt()], ids=lambda metric: metric.name)
def test_without_weights_there_is_no_number_but_advice(metric) -> None:
    found = metric.score(P, SINGLE)
    assert found.value is None and found.items == ()
    assert found.note.startswith(f"{NOT_COMPUTED}: give ") and "folder" in found.note
    assert f"as cm50.metrics.{metric.name.lower()}" in found.note


def test_nothing_is_downloaded_where_fetching_is_off(monkeypatch) -> None:
    for package in ("torch", "transformers", "sentencepiece", "bert_score"):
        pytest.importorskip(package)
    monkeypatch.setenv("HF_HUB_OFFLINE", "")
    monkeypatch.setenv("MEMECMD_OFFLINE", "1")

    def asked(*_: object, local_files_only: bool = False, **__: object) -> None:
        raise OSError("only what is here" if local_files_only else "the network is asked")

    monkeypatch.setattr("huggingface_hub.snapshot_download", asked)
    monkeypatch.setattr("bert_score.BERTScorer", asked)
    said = [metric.score(P, SINGLE).note for metric in (Bleurt("a/model"), BertScore("a/model", layer=2))]
    assert "(only what is here)" in said[0] and "(fetching is off)" in said[1]


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


TEXTS = [["a cat"], ["a dog"]]
R = [["cat.", "The cat", "big cat"], ["dogs"]]


class Shared(TextMetric):
    """Made up: share of a prediction's characters that its best reference has, and the mean."""

    def __init__(self, name: str = "BERTScore") -> None:
        self.name = name
        self.seen: list = []

    def missing(self) -> str:
        return ""

    def _score(self, predictions, references):
        self.seen = list(zip(predictions, references, strict=True))
        items = tuple(max(len(set(p) & set(r)) / len(set(p)) for r in refs) for p, refs in self.seen)
        return Score(sum(items) / len(items), items, "made up")


def test_extended_repeats_the_prediction_for_each_reference() -> None:
    found = metrics.expand("extended", TEXTS, R)
    assert found.predictions == ["a cat", "a cat", "a cat", "a dog"]
    assert found.references == [["cat."], ["The cat"], ["big cat"], ["dogs"]]
    assert found.owner == [0, 0, 0, 1]


def test_concatenated_joins_references_without_a_blank_as_the_code_does() -> None:
    found = metrics.expand("concatenated", TEXTS, R)
    assert found.predictions == ["a cat", "a dog"] and found.references == [["cat.The catbig cat"], ["dogs"]]


def test_best_match_takes_the_highest_of_each_prediction() -> None:
    metric = Shared("BLEURT")
    found = metrics.score(metric, "best match", TEXTS, R)
    # "a cat" has {a, c, t, blank}: 3/4 in "cat.", 4/4 in "The cat", 3/4... ; "a dog" {a, blank, d, o, g}: 3/5
    assert found.items == (1.0, 3 / 5) and found.value == pytest.approx(0.8)
    extended = metrics.score(metric, "extended", TEXTS, R)
    assert extended.items == (3 / 4, 1.0, 4 / 4, 3 / 5) and extended.value == pytest.approx(3.35 / 4)


def test_fully_concatenated_joins_both_sides_and_needs_several_predictions() -> None:
    several = [["a cat", "it sleeps"], ["a dog"]]
    found = metrics.expand("fully-concatenated", several, R)
    assert found.predictions == ["a cat it sleeps", "a dog"]
    assert found.references == [["cat. The cat big cat"], ["dogs"]] and found.owner == [0, 1]
    metric = Shared()
    assert metrics.score(metric, "fully-concatenated", several, R).value is not None
    assert metrics.score(metric, "fully-concatenated", TEXTS, R) == Score(None)  # a blank cell


def test_a_metric_that_a_mode_does_not_have_leaves_the_cell_blank() -> None:
    assert {mode: sorted(names) for mode, names in SUPPORTED.items() if len(names) < 5} == {
        "multi-reference": ["BERTScore", "BLEU-4", "ROUGE-L"],
        "best match": ["BERTScore", "BLEURT"],
    }
    for name in ("BLEURT", "ChrF"):
        metric = Shared(name)
        assert metrics.score(metric, "multi-reference", TEXTS, R) == Score(None) and metric.seen == []
        assert metrics.cell(Score(None)) == ""


def test_a_cell_says_why_there_is_no_number() -> None:
    assert metrics.cell(Score(None, note=f"{NOT_COMPUTED}: give weights")) == NOT_COMPUTED
    assert metrics.cell(Score(0.5, (0.5,), "x", WIRING)) == WIRING  # never a number of random weights
    assert metrics.cell(Score(0.0)) == "0.000"
