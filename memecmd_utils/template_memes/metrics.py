"""Metrics of a text against its references: ChrF, BLEU-4, ROUGE-L, BERTScore (2501.13851, Table 10).

MemeCap has up to four captions a meme, so a score of "the prediction against the reference" has to say what
the reference is (Appendix D). With predictions p_1..p_m of a meme and its references r_1..r_k:

| mode | pairs that are scored | the set's value |
| --- | --- | --- |
| extended | every p_i with every r_j, one each (the prediction is repeated) | over all pairs |
| concatenated | every p_i with r_1..r_k joined to one text | over all p_i |
| multi-reference | every p_i with the set r_1..r_k, as the metric itself takes sets | over all p_i |
| best match | every p_i with every r_j; of each p_i the highest score counts | mean over all p_i |
| fully-concatenated | p_1..p_m joined, with r_1..r_k joined; only with several p_i a meme | over memes |

"Over" is the metric's own way from texts to a set: a mean (BERTScore, ROUGE-L) or counts summed before
dividing (ChrF, BLEU-4). In `extended` a meme with more references weighs more. BLEURT, the table's fifth
metric, is not computed here.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from itertools import zip_longest
from typing import Any

import numpy as np

from memecmd_utils import fetch
from memecmd_utils.embedders import ModelMissing, folder_of, loading
from memecmd_utils.settings import AnnotationMetrics

METRICS = ("BERTScore", "ChrF", "ROUGE-L", "BLEU-4")
SUPPORTED: dict[str, tuple[str, ...]] = {
    "extended": METRICS,
    "concatenated": METRICS,
    "multi-reference": ("BERTScore", "ROUGE-L", "BLEU-4"),
    "best match": ("BERTScore",),
    "fully-concatenated": METRICS,
}
"""The modes, and the metrics that fill a cell of Table 10; it leaves the others blank.

ChrF of sets is blank in the table: the authors' wrapper wants the same number of references for every text.
Best match needs a score of each pair, which corpus metrics do not have.
"""
Metric = Callable[[list[str], list[list[str]]], float | np.ndarray]
"""Scores predictions against the references of each, one or more: one number, or one a prediction."""


def chrf(predictions: list[str], references: list[list[str]]) -> float:
    """Character n-gram F-score of orders 1-6, no words, beta 2, of all texts together (sacrebleu), 0-100."""
    from sacrebleu.metrics import CHRF

    metric = CHRF(char_order=6, word_order=0, beta=2)
    return metric.corpus_score(predictions, list(zip_longest(*references))).score


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


def bertscore(predictions: list[str], references: list[list[str]], model: str, layer: int) -> np.ndarray:
    """F of greedily matched token vectors of an encoder's layer (Zhang et al., 2020, Section 3), -1 to 1.

    Without idf weights and not rescaled; marks such as [CLS] may be matched and do not count. Of several
    references the best F.
    """
    vectors = _token_vectors(model, layer)

    def f(prediction: str, reference: str) -> float:
        cosines = vectors(prediction) @ vectors(reference).T
        precision, recall = (side[1:-1].max(dim=1).values.mean().item() for side in (cosines, cosines.T))
        return 2 * precision * recall / (precision + recall)

    pairs = zip(predictions, references, strict=True)
    return np.array([max(f(text, ref) for ref in refs) for text, refs in pairs])


@cache
def _token_vectors(model: str, layer: int) -> Callable[[str], Any]:
    """A function that gives the unit vectors of a text's tokens, marks included: [tokens, dimensions]."""
    with loading(f"{model} for BERTScore"):
        import torch
        from transformers import AutoModel, AutoTokenizer

        source, options = folder_of(model) or model, {"local_files_only": not fetch.may_fetch()}
        device = "cuda" if torch.cuda.is_available() else "cpu"
        network = AutoModel.from_pretrained(source, **options).to(device).eval()
        tokenizer = AutoTokenizer.from_pretrained(source, **options)

    @cache
    def vectors(text: str) -> torch.Tensor:
        tokens = tokenizer(text, truncation=True, return_tensors="pt").to(device)
        with torch.inference_mode():
            states = network(**tokens, output_hidden_states=True).hidden_states
        return torch.nn.functional.normalize(states[layer][0], dim=1)

    return vectors


def all_metrics(chosen: AnnotationMetrics) -> dict[str, Metric | None]:
    """The metrics by name; None where the profile names no weights."""
    encoder = partial(bertscore, model=chosen.bertscore, layer=chosen.bertscore_layer)
    found = encoder if chosen.bertscore else None, chrf, rouge_l, bleu
    return dict(zip(METRICS, found, strict=True))


Texts = Sequence[Sequence[str]]


def expand(mode: str, predictions: Texts, references: Texts) -> tuple[list[str], list[list[str]]]:
    """Predictions of a mode's pairs, and the references of each.

    `predictions` and `references` are lists of texts, one for each meme. In `concatenated` nothing stands
    between joined references, as in the paper's code, so that words of two captions may run together;
    `fully-concatenated` has a blank there and here.
    """
    memes = zip(predictions, references, strict=True)
    if mode == "fully-concatenated":
        return [" ".join(texts) for texts in predictions], [[" ".join(refs)] for refs in references]
    pairs = [(text, list(refs)) for texts, refs in memes for text in texts]
    if mode == "concatenated":
        pairs = [(text, ["".join(refs)]) for text, refs in pairs]
    if mode == "extended":
        pairs = [(text, [ref]) for text, refs in pairs for ref in refs]
    return [text for text, _ in pairs], [refs for _, refs in pairs]


def score(
    metrics: Mapping[str, Metric | None], name: str, mode: str, predictions: Texts, references: Texts
) -> float | None:
    """The value of a metric in a mode; None where predictions are to be joined and no meme has several.

    Raises `ModelMissing` where a package or weights are missing.
    """
    if mode == "fully-concatenated" and all(len(texts) < 2 for texts in predictions):
        return None
    if (metric := metrics[name]) is None:
        raise ModelMissing(f"give its weights, by hub name or folder, as cm50.metrics.{name.lower()}")
    try:
        return float(np.mean(metric(*expand(mode, predictions, references))))
    except ImportError as error:
        raise ModelMissing(f"{error.name} is missing: pip install -e '.[templates]'") from error
