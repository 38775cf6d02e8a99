"""Metrics of a text against its references: ChrF, BLEU-4, ROUGE-L, BERTScore, BLEURT (2501.13851, Table 10).

MemeCap has up to four captions a meme, so a score of "the prediction against the reference" has to say what
the reference is (Appendix D). With predictions p_1..p_m of a meme and its references r_1..r_k:

| mode | pairs that are scored | the set's value |
| --- | --- | --- |
| extended | every p_i with every r_j, one each (the prediction is repeated) | over all pairs |
| concatenated | every p_i with r_1..r_k joined to one text | over all p_i |
| multi-reference | every p_i with the set r_1..r_k, as the metric itself takes sets | over all p_i |
| best match | every p_i with every r_j; of each p_i the highest score counts | mean over all p_i |
| fully-concatenated | p_1..p_m joined, with r_1..r_k joined; only with several p_i a meme | over memes |

"Over" is the metric's own way from texts to a set: a mean (BLEURT, BERTScore, ROUGE-L) or counts summed
before dividing (ChrF, BLEU-4). In `extended` a meme with more references weighs more.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from memecmd_utils import fetch
from memecmd_utils.embedders import ModelMissing, folder_of, loading
from memecmd_utils.settings import AnnotationMetrics

METRICS = ("BLEURT", "BERTScore", "ChrF", "ROUGE-L", "BLEU-4")
SUPPORTED: dict[str, tuple[str, ...]] = {
    "extended": METRICS,
    "concatenated": METRICS,
    "multi-reference": ("BERTScore", "ROUGE-L", "BLEU-4"),
    "best match": ("BLEURT", "BERTScore"),
    "fully-concatenated": METRICS,
}
"""The modes, and the metrics that fill a cell of Table 10; it leaves the others blank.

BLEURT takes one reference. ChrF of sets is blank in the table: the authors' wrapper wants the same number of
references for every text. Best match needs a score of each pair, which corpus metrics do not have.
"""
Metric = Callable[[list[str], list[list[str]]], float | np.ndarray]
"""Scores predictions against the references of each, one or more: one number, or one a prediction."""
BERT_LAYERS = {"roberta-large": 17}
"""The layer that the makers of BERTScore found best for the paper's encoder."""
BATCH = 16
RENAMED = (("bleurt.", "rembert."), ("encoder.embedding_projection.", "encoder.embedding_hidden_mapping_in."))
CONFIG = (
    "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size",
    "hidden_act", "max_position_embeddings", "type_vocab_size", "layer_norm_eps", "pad_token_id",
)  # fmt: skip


def chrf(predictions: list[str], references: list[list[str]]) -> float:
    """Character n-gram F-score of orders 1-6, no words, beta 2, of all texts together (sacrebleu), 0-100."""
    from sacrebleu.metrics import CHRF

    return (
        CHRF(char_order=6, word_order=0, beta=2)
        .corpus_score(predictions, list(zip_longest(*references)))
        .score
    )


def bleu(predictions: list[str], references: list[list[str]]) -> float:
    """BLEU of orders 1-4 of all texts together, 0-1 (sacrebleu, tokens as in mteval-13a).

    Without smoothing one order without a match makes 0, as in the paper's table.
    """
    from sacrebleu.metrics import BLEU

    metric = BLEU(smooth_method="none", tokenize="13a", lowercase=False, max_ngram_order=4)
    return metric.corpus_score(predictions, list(zip_longest(*references))).score / 100


def rouge_l(predictions: list[str], references: list[list[str]]) -> np.ndarray:
    """F of the longest common subsequence of words, 0-1, no stemmer; of several references the best F."""
    from rouge_score.rouge_scorer import RougeScorer

    scorer = RougeScorer(["rougeL"], use_stemmer=False)
    pairs = zip(predictions, references, strict=True)
    return np.array([scorer.score_multi(refs, text)["rougeL"].fmeasure for text, refs in pairs])


def bertscore(
    predictions: list[str], references: list[list[str]], model: str, layer: int | None
) -> np.ndarray:
    """F of greedily matched token vectors of an encoder's layer (torchmetrics): no idf weights, not rescaled.

    Of several references the best counts. A blank text has no tokens to match and scores 0.
    """
    from torchmetrics.functional.text.bert import bert_score
    from transformers import AutoConfig

    if (layer := layer or BERT_LAYERS.get(model)) is None:
        raise ModelMissing(f"say which layer of {model} counts (cm50.metrics.bertscore_layer)")
    folder, scores = str(_checkpoint(model)), np.zeros(len(predictions))
    config = AutoConfig.from_pretrained(folder)
    options = {"max_length": config.max_position_embeddings - 2, "truncation": True, "batch_size": BATCH}
    pairs = [(i, ref) for i, refs in enumerate(references) for ref in refs]
    if pairs := [(i, ref) for i, ref in pairs if predictions[i].strip() and ref.strip()]:
        texts = [predictions[i] for i, _ in pairs], [ref for _, ref in pairs]
        found = bert_score(*texts, model_name_or_path=folder, num_layers=layer, **options)["f1"]
        np.maximum.at(scores, [i for i, _ in pairs], np.asarray(found, dtype=float).reshape(-1))
    return scores


def bleurt(predictions: list[str], references: list[list[str]], model: str) -> np.ndarray:
    """BLEURT-20 (Sellam et al., 2020; Pu et al., 2021), a regression on human ratings, about 0-1."""
    import torch
    from torch.nn.utils.rnn import pad_sequence

    network, pieces = load_bleurt(model)
    device, scores = network.device, np.zeros(len(predictions))
    room = network.config.max_position_embeddings
    pairs = zip(references, predictions, strict=True)
    encoded = [bleurt_tokens(pieces, texts[0], text, room) for texts, text in pairs]
    for start in range(0, len(encoded), BATCH):
        ids, segments = zip(*encoded[start : start + BATCH], strict=True)
        rows = [list(map(torch.tensor, some)) for some in (ids, segments, [[1] * len(some) for some in ids])]
        padded = [pad_sequence(some, batch_first=True).to(device) for some in rows]
        with torch.inference_mode():
            logits = network(
                **dict(zip(("input_ids", "token_type_ids", "attention_mask"), padded, strict=True))
            )
        scores[start : start + BATCH] = logits.logits[:, 0].float().cpu().numpy()
    return scores


def bleurt_tokens(pieces: Any, reference: str, candidate: str, room: int) -> tuple[list[int], list[int]]:
    """Token ids and segments of a pair: [CLS] reference [SEP] candidate [SEP], at most `room`.

    What is too long loses tokens at the end of the longer text, as `encoding.py` of BLEURT does it.
    """
    first, second = pieces.EncodeAsIds(reference), pieces.EncodeAsIds(candidate)
    while len(first) + len(second) > room - 3:
        (first if len(first) > len(second) else second).pop()
    start, end = pieces.PieceToId("[CLS]"), pieces.PieceToId("[SEP]")
    return [start, *first, end, *second, end], [0] * (len(first) + 2) + [1] * (len(second) + 1)


@cache
def load_bleurt(model: str) -> tuple[Any, Any]:
    """Network and SentencePiece model of a BLEURT-20 checkpoint by folder or hub name, without TensorFlow.

    `lucadiliello/BLEURT-20` (-D12, -D6, -D3) has the tensors of transformers' RemBERT under other names.
    """
    with loading(f"{model} as BLEURT-20"):
        import sentencepiece
        import torch
        from transformers import RemBertConfig, RemBertForSequenceClassification

        folder = _checkpoint(model)
        settings = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        known = {name: settings[name] for name in CONFIG if name in settings}
        inner = {"input_embedding_size": settings["embedding_size"], "num_labels": 1, "bos_token_id": None}
        network = RemBertForSequenceClassification(RemBertConfig(**known, **inner, eos_token_id=None))
        tensors = torch.load(folder / "pytorch_model.bin", map_location="cpu", weights_only=True)
        for old, new in RENAMED:
            tensors = {name.replace(old, new, 1): tensor for name, tensor in tensors.items()}
        tensors.pop("rembert.embeddings.position_ids", None)
        network.load_state_dict(tensors)
        pieces = sentencepiece.SentencePieceProcessor(model_file=str(folder / "spm.model"))
    return network.to("cuda" if torch.cuda.is_available() else "cpu").eval(), pieces


def _checkpoint(model: str) -> Path:
    """Folder of a checkpoint: one of the user's, or the hub's download."""
    from huggingface_hub import snapshot_download

    if (folder := folder_of(model)) is not None:
        return folder
    wanted = ["*.json", "*.txt", "*.model", "model.safetensors", "pytorch_model.bin"]
    try:
        found = snapshot_download(model, allow_patterns=wanted, local_files_only=not fetch.may_fetch())
    except OSError as error:  # neither on disk nor to be downloaded
        raise ModelMissing(f"{model} cannot be had: give its folder, or let it be downloaded once") from error
    return Path(found)


def all_metrics(chosen: AnnotationMetrics) -> dict[str, Metric | None]:
    """The five metrics of Table 10 by name, in its order; None where the profile names no weights."""
    encoder = partial(bertscore, model=chosen.bertscore, layer=chosen.bertscore_layer)
    found = (
        partial(bleurt, model=chosen.bleurt) if chosen.bleurt else None,
        encoder if chosen.bertscore else None, chrf, rouge_l, bleu,
    )  # fmt: skip
    return dict(zip(METRICS, found, strict=True))


Texts = Sequence[Sequence[str]]


def expand(mode: str, predictions: Texts, references: Texts) -> tuple[list[str], list[list[str]], list[int]]:
    """Predictions and references of a mode's pairs, and the number of the prediction that each stands for.

    `predictions` and `references` are lists of texts, one for each meme. In `concatenated` nothing stands
    between joined references, as in the paper's code, so that words of two captions may run together;
    `fully-concatenated` has a blank there and here.
    """
    memes = zip(predictions, references, strict=True)
    if mode == "fully-concatenated":
        pairs = [(" ".join(texts), [" ".join(refs)]) for texts, refs in memes]
    else:
        pairs = [(text, list(refs)) for texts, refs in memes for text in texts]
    owner = list(range(len(pairs)))
    if mode == "concatenated":
        pairs = [(text, ["".join(refs)]) for text, refs in pairs]
    if mode in ("extended", "best match"):
        owner = [i for i, (_, refs) in enumerate(pairs) for _ in refs]
        pairs = [(text, [ref]) for text, refs in pairs for ref in refs]
    return [text for text, _ in pairs], [refs for _, refs in pairs], owner


def score(
    metrics: Mapping[str, Metric | None], name: str, mode: str, predictions: Texts, references: Texts
) -> float | None:
    """The value of a metric in a mode; None where the table has a blank cell.

    That is where the mode does not have the metric, and where predictions are to be joined and no meme has
    several. Raises `ModelMissing` where a package or weights are missing.
    """
    joins_nothing = mode == "fully-concatenated" and all(len(texts) < 2 for texts in predictions)
    if name not in SUPPORTED[mode] or joins_nothing:
        return None
    if (metric := metrics[name]) is None:
        raise ModelMissing(f"give its weights, by hub name or folder, as cm50.metrics.{name.lower()}")
    texts, refs, owner = expand(mode, predictions, references)
    try:
        values = metric(texts, refs)
    except ImportError as error:
        raise ModelMissing(f"{error.name} is missing: pip install -e '.[metrics]'") from error
    if mode == "best match":
        best = np.full(owner[-1] + 1, -np.inf)
        np.maximum.at(best, owner, values)
        values = best
    return float(np.mean(values))
