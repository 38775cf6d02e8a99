import json
import math
import shutil

import pytest
import tiny_metrics

from memecmd_utils.cm50.metrics import NOT_COMPUTED, WIRING, BertScore, Bleu, Bleurt, ChrF, RougeL

P = ["the cat sat on the mat today", "nobody likes a monday", "so many memes"]
SEVERAL = [
    ["the cat sat on the mat", "a cat sits"],
    ["mondays are bad", "nobody likes mondays at all"],
    ["few memes"],
]
SINGLE = [refs[:1] for refs in SEVERAL]


def close(found, expected) -> None:
    assert found == pytest.approx(expected, rel=1e-12)


def test_chrf_is_that_of_sacrebleu() -> None:
    sacrebleu = pytest.importorskip("sacrebleu")
    found = ChrF().score(P, SINGLE)
    close(found.value, sacrebleu.corpus_chrf(P, [[refs[0] for refs in SINGLE]]).score)
    close(found.items, [sacrebleu.sentence_chrf(p, r).score for p, r in zip(P, SINGLE, strict=True)])
    assert "nc:6" in found.signature and "nw:0" in found.signature and "version:" in found.signature
    several = ChrF().score(P, SEVERAL)  # sets of different sizes
    close(several.items, [sacrebleu.sentence_chrf(p, r).score for p, r in zip(P, SEVERAL, strict=True)])
    assert several.value >= found.value


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


def test_rouge_is_that_of_rouge_score() -> None:
    pytest.importorskip("rouge_score")
    from rouge_score.rouge_scorer import RougeScorer

    scorer = RougeScorer(["rougeL"], use_stemmer=False)
    found = RougeL().score(P, SINGLE)
    expected = [scorer.score(r[0], p)["rougeL"].fmeasure for p, r in zip(P, SINGLE, strict=True)]
    close(found.items, expected)
    close(found.value, sum(expected) / 3)
    best = [
        max(scorer.score(r, p)["rougeL"].fmeasure for r in refs) for p, refs in zip(P, SEVERAL, strict=True)
    ]
    close(RougeL().score(P, SEVERAL).items, best)


def test_rouge_by_hand() -> None:
    pytest.importorskip("rouge_score")
    # Longest common subsequence of "the cat sat" and "the fat cat": the, cat: 2/3 and 2/3.
    close(RougeL().score(["The cat sat"], [["the fat cat"]]).value, 2 / 3)
    # No stemmer: "cats" is not "cat".
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
