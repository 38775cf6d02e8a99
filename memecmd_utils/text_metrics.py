"""Metrics of a text against its references: ChrF, BLEU-4, ROUGE-L, BERTScore, BLEURT (2501.13851, Table 10).

Each is the field's own package behind one interface. A metric without its package or weights gives no
number but a note that says what to give.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from importlib.util import find_spec
from typing import Any, ClassVar, NamedTuple

import numpy as np

from memecmd_utils import bleurt, datasets, model_files

NOT_COMPUTED = "not computed here"
WIRING = "wiring tested, values not"
NARROWEST = 128
"""Width of the smallest checkpoints that were ever trained for these metrics."""
INSTALL = "install the metrics extra: pip install -e '.[metrics]'"


class Score(NamedTuple):
    """What a metric says of a set of texts."""

    value: float | None
    """Of the whole set; None where it was not computed."""
    items: tuple[float, ...] = ()
    """Of each prediction, on the same scale."""
    signature: str = ""
    """Every setting that moves the number, with the versions of packages and weights."""
    note: str = ""
    """Why there is no number, or that the weights are random ones of a test."""


class TextMetric(ABC):
    """A metric by name. `several`: whether a prediction may be held against several references at once."""

    name: ClassVar[str]
    several: ClassVar[bool]
    scale: ClassVar[int]
    """Largest value, as Table 10 prints it: 100 for ChrF, else 1."""

    def score(self, predictions: Sequence[str], references: Sequence[Sequence[str]]) -> Score:
        """Score each prediction against its references, and the set.

        `ValueError` for an empty set, a prediction without a reference, or several where one is taken.
        """
        if not predictions or len(predictions) != len(references):
            raise ValueError(
                f"{self.name}: {len(predictions)} predictions and {len(references)} sets of references; give "
                "one set for each prediction, and at least one"
            )
        for number, texts in enumerate(references, start=1):
            if isinstance(texts, str) or not texts or (len(texts) > 1 and not self.several):
                wanted = "one reference or more" if self.several else "one reference"
                raise ValueError(f"{self.name}: prediction {number} needs a list of {wanted}")
        if missing := self.missing():
            return Score(None, note=f"{NOT_COMPUTED}: {missing}")
        return self._score(list(predictions), [list(texts) for texts in references])

    @abstractmethod
    def missing(self) -> str:
        """What has to be given before this metric can be computed; empty where it can."""

    @abstractmethod
    def _score(self, predictions: list[str], references: list[list[str]]) -> Score: ...


def _without(package: str) -> str:
    return "" if find_spec(package) else f"{package} is missing; {INSTALL}"


def _columns(references: list[list[str]]) -> list[list[str | None]]:
    """References as sacrebleu takes them: one list for each place, None where a prediction has fewer."""
    most = max(map(len, references))
    return [[texts[i] if i < len(texts) else None for texts in references] for i in range(most)]


class ChrF(TextMetric):
    """Character n-gram F-score: orders 1-6, no words, beta 2, of all texts together (sacrebleu)."""

    name, several, scale = "ChrF", True, 100

    def missing(self) -> str:
        """See `TextMetric.missing`."""
        return _without("sacrebleu")

    def _score(self, predictions: list[str], references: list[list[str]]) -> Score:
        from sacrebleu.metrics import CHRF

        metric = CHRF(char_order=6, word_order=0, beta=2)
        whole = metric.corpus_score(predictions, _columns(references)).score
        signature = f"chrF2|{metric.get_signature()}"
        pairs = zip(predictions, references, strict=True)
        items = tuple(metric.sentence_score(text, refs).score for text, refs in pairs)
        return Score(whole, items, signature)


class Bleu(TextMetric):
    """BLEU of orders 1-4 of all texts together, without smoothing, 0-1 (sacrebleu, tokens as in mteval-13a).

    Without smoothing one order without a match makes 0, as in the paper's table. A single text almost
    always lacks one: items are smoothed ("exp") up to the order that they reach, and say so.
    """

    name, several, scale = "BLEU-4", True, 1

    def missing(self) -> str:
        """See `TextMetric.missing`."""
        return _without("sacrebleu")

    def _score(self, predictions: list[str], references: list[list[str]]) -> Score:
        from sacrebleu.metrics import BLEU

        settings = {"tokenize": "13a", "lowercase": False, "max_ngram_order": 4}
        metric = BLEU(smooth_method="none", **settings)
        whole = metric.corpus_score(predictions, _columns(references)).score / 100
        single = BLEU(smooth_method="exp", effective_order=True, **settings)
        pairs = zip(predictions, references, strict=True)
        items = tuple(single.sentence_score(text, refs).score / 100 for text, refs in pairs)
        return Score(
            whole, items, f"BLEU|{metric.get_signature()} (items: {single.get_signature()}), divided by 100"
        )


class RougeL(TextMetric):
    """F of the longest common subsequence of words, 0-1, no stemmer; the set's value is the mean.

    Of several references the one with the best F counts, as in `score_multi` of rouge-score.
    """

    name, several, scale = "ROUGE-L", True, 1

    def missing(self) -> str:
        """See `TextMetric.missing`."""
        return _without("rouge_score")

    def _score(self, predictions: list[str], references: list[list[str]]) -> Score:
        from rouge_score.rouge_scorer import RougeScorer

        scorer = RougeScorer(["rougeL"], use_stemmer=False)
        pairs = zip(predictions, references, strict=True)
        items = tuple(float(scorer.score_multi(refs, text)["rougeL"].fmeasure) for text, refs in pairs)
        signature = f"rougeL|F|stemmer:no|mean|rouge-score:{model_files.installed('rouge-score')}"
        return Score(float(np.mean(items)), items, signature)


class CheckpointMetric(TextMetric):
    """A metric that needs weights: a hub name or a folder; None where nobody gave them.

    A relative folder counts from the project's root.
    """

    key: ClassVar[str]
    """Of the profile, which names the weights."""
    wanted: ClassVar[str]
    packages: ClassVar[tuple[str, ...]]

    def __init__(self, model: str | None = None) -> None:
        self._model = model

    def missing(self) -> str:
        """See `TextMetric.missing`."""
        if self._model is None:
            return f"give {self.wanted}, by hub name or folder, as {self.key}"
        return next(filter(None, map(_without, self.packages)), "") or self._loaded[1]

    @cached_property
    def _loaded(self) -> tuple[Any, str]:
        """The model and why it could not be loaded, one of them empty."""
        try:
            return self._load(), ""
        except OSError as error:  # neither on disk nor to be downloaded
            said = (str(error).splitlines() or [""])[0][:160]
            return None, f"{self._model} cannot be loaded ({said}): give a folder that holds {self.wanted}"

    @abstractmethod
    def _load(self) -> Any: ...


class BertScore(CheckpointMetric):
    """F of greedily matched token vectors, no idf weights, not rescaled; the set's value is the mean.

    The paper's encoder is `roberta-large`, whose layer 17 is compared. Of several references the best
    counts. A blank text has no tokens to match and scores 0.
    """

    name, several, scale = "BERTScore", True, 1
    key, packages = "annotation_metrics.bertscore", ("bert_score",)
    wanted = "the encoder of BERTScore (roberta-large in the paper)"

    def __init__(self, model: str | None = None, layer: int | None = None) -> None:
        super().__init__(model)
        self._layer = layer

    def _load(self) -> Any:
        from bert_score import BERTScorer
        from bert_score.utils import model2layers

        folder = model_files.folder_of(self._model)
        if folder is None and not datasets.may_fetch() and not model_files.hub_commit(self._model):
            raise OSError("fetching is off")
        layer = self._layer or model2layers.get(folder.name if folder else self._model)
        if layer is None:
            raise model_files.ModelError(
                f"BERTScore: say which layer of {self._model} counts (annotation_metrics.bertscore_layer)"
            )
        scorer = BERTScorer(model_type=str(folder or self._model), num_layers=layer, idf=False, batch_size=32)
        # Some tokenizers know no limit and say 1e30, which the tokenizers package cannot take.
        most = scorer._model.config.max_position_embeddings - 2
        scorer._tokenizer.model_max_length = min(scorer._tokenizer.model_max_length, most)
        return scorer

    def _score(self, predictions: list[str], references: list[list[str]]) -> Score:
        scorer = self._loaded[0]
        items = np.zeros(len(predictions))
        told = [[ref for ref in refs if ref.strip()] for refs in references]
        kept = [i for i, text in enumerate(predictions) if text.strip() and told[i]]
        if kept:
            items[kept] = scorer.score([predictions[i] for i in kept], [told[i] for i in kept])[2].numpy()
        signature = (
            f"BERTScore|{model_version(self._model)}|layer:{scorer.num_layers}|idf:no|baseline:no|F|mean"
        )
        signature += f"|bert-score:{model_files.installed('bert-score')}"
        note = WIRING if scorer._model.config.hidden_size < NARROWEST else ""
        return Score(float(items.mean()), tuple(map(float, items)), signature, note)


class Bleurt(CheckpointMetric):
    """A regression trained on human ratings, about 0-1; one reference each; the set's value is the mean."""

    name, several, scale = "BLEURT", False, 1
    key = "annotation_metrics.bleurt"
    wanted = "a BLEURT-20 checkpoint (lucadiliello/BLEURT-20: config.json, weights, spm.model)"
    packages = ("torch", "transformers", "sentencepiece")

    def _load(self) -> Any:
        return bleurt.load(self._model)

    def _score(self, predictions: list[str], references: list[list[str]]) -> Score:
        scorer = self._loaded[0]
        items = scorer.score([texts[0] for texts in references], predictions)
        signature = f"BLEURT|{model_version(self._model)}|cut:{scorer.longest}|mean"
        note = WIRING if scorer.width < NARROWEST else ""
        return Score(float(np.mean(items)), tuple(map(float, items)), signature, note)


def model_version(model: str) -> str:
    """Name with the version of the weights: digest of a folder, or the hub commit that was downloaded."""
    if (folder := model_files.folder_of(model)) is not None:
        return f"{folder.name}@{model_files.folder_digest(folder)}"
    commit = model_files.hub_commit(model)
    return f"{model}@{commit[: model_files.DIGITS]}" if commit else model


def all_metrics(
    bertscore: str | None = None, bleurt_20: str | None = None, bertscore_layer: int | None = None
) -> Mapping[str, TextMetric]:
    """Build the five metrics of Table 10 by name, in its order; weights by hub name or folder, or None."""
    made = (Bleurt(bleurt_20), BertScore(bertscore, bertscore_layer), ChrF(), RougeL(), Bleu())
    return {metric.name: metric for metric in made}
