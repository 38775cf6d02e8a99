"""Metrics of a text against its references: ChrF, BLEU-4, ROUGE-L, BERTScore, BLEURT (2501.13851, Table 10).

Each is the field's own package behind one interface. A metric without its package or weights gives no
number but a note that says what to give.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, get_args

import numpy as np

from memecmd_utils.core.encoders import weights
from memecmd_utils.core.fetch import datasets

# --- BLEURT-20 (Sellam et al., 2020; Pu et al., 2021) without TensorFlow, in transformers' RemBERT classes
# BLEURT-20 is RemBERT with one output. Google's package needs TensorFlow and is not in the package index;
# the PyTorch port there (`bleurt-pytorch` 0.0.1) was left in 2023 and does not import under transformers
# 5. Its checkpoints (`lucadiliello/BLEURT-20`, -D12, -D6, -D3, Apache-2.0) are tensors of the same shapes
# under other names, so they are renamed here and the port is not needed.


BATCH = 16
RENAMED = (("bleurt.", "rembert."), ("encoder.embedding_projection.", "encoder.embedding_hidden_mapping_in."))
WEIGHTS = ("model.safetensors", "pytorch_model.bin")
TOKENIZER = "spm.model"
KEPT = (
    "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size",
    "hidden_act", "max_position_embeddings", "type_vocab_size", "layer_norm_eps",
)  # fmt: skip


class BleurtScorer:
    """A loaded checkpoint. `width`: hidden size; `longest`: tokens of a pair that are read."""

    def __init__(self, model: Any, pieces: Any, device: str) -> None:
        self._model, self._pieces, self._device = model.to(device).eval(), pieces, device
        self.width: int = model.config.hidden_size
        self.longest: int = model.config.max_position_embeddings
        self._cls, self._sep = pieces.PieceToId("[CLS]"), pieces.PieceToId("[SEP]")

    def encode(self, reference: str, candidate: str) -> tuple[list[int], list[int]]:
        """Token ids and segments of a pair: [CLS] reference [SEP] candidate [SEP].

        What is too long loses tokens at the end of the longer text, as `encoding.py` of BLEURT does it.
        """
        first, second = self._pieces.EncodeAsIds(reference), self._pieces.EncodeAsIds(candidate)
        while len(first) + len(second) > self.longest - 3:
            (first if len(first) > len(second) else second).pop()
        ids = [self._cls, *first, self._sep, *second, self._sep]
        return ids, [0] * (len(first) + 2) + [1] * (len(second) + 1)

    def score(self, references: Sequence[str], candidates: Sequence[str]) -> np.ndarray:
        """Score of each candidate against the reference at its place, shape [n]."""
        import torch

        pairs = [self.encode(*texts) for texts in zip(references, candidates, strict=True)]
        # Pairs of like length together, so that little is computed for padding.
        order = sorted(range(len(pairs)), key=lambda i: len(pairs[i][0]))
        scores = np.zeros(len(pairs))
        for start in range(0, len(order), BATCH):
            part = order[start : start + BATCH]
            size = max(len(pairs[i][0]) for i in part)
            ids, segments, mask = (torch.zeros(len(part), size, dtype=torch.long) for _ in range(3))
            for row, i in enumerate(part):
                tokens, sides = (torch.tensor(of) for of in pairs[i])
                ids[row, : len(tokens)], segments[row, : len(sides)] = tokens, sides
                mask[row, : len(tokens)] = 1
            inputs = {"input_ids": ids, "token_type_ids": segments, "attention_mask": mask}
            with torch.inference_mode():
                found = self._model(**{name: of.to(self._device) for name, of in inputs.items()}).logits
            scores[part] = found[:, 0].float().cpu().numpy()
        return scores


def load(model: str) -> BleurtScorer:
    """Load a BLEURT-20 checkpoint by folder or hub name.

    `OSError` where it is neither on disk nor to be downloaded; `ValueError` for one of another kind, such as
    the older `bleurt-base-128`.
    """
    import sentencepiece
    import torch
    from transformers import RemBertConfig, RemBertForSequenceClassification

    folder = _folder(model)
    settings = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    inner = settings.get("embedding_size")
    if not inner or not (folder / TOKENIZER).is_file():
        raise weights.ModelError(
            f"{model} is no BLEURT-20 checkpoint (embedding_size in config.json, {TOKENIZER}): give "
            "lucadiliello/BLEURT-20, or -D12, -D6, -D3 for smaller ones"
        )
    kept = {name: settings[name] for name in KEPT if name in settings}
    config = RemBertConfig(
        **kept,
        input_embedding_size=inner,
        num_labels=1,
        pad_token_id=settings.get("pad_token_id", 0),
        bos_token_id=None,
        eos_token_id=None,
    )
    network = RemBertForSequenceClassification(config)
    missing, unexpected = network.load_state_dict(_tensors(folder), strict=False)
    unexpected = [name for name in unexpected if not name.endswith("position_ids")]
    if missing or unexpected:
        raise weights.ModelError(
            f"{model}: weights do not fit: missing {missing[:3]}, unknown {unexpected[:3]}"
        )
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(folder / TOKENIZER))
    return BleurtScorer(network, pieces, "cuda" if torch.cuda.is_available() else "cpu")


def _folder(model: str) -> Path:
    if (folder := weights.folder_of(model)) is not None:
        return folder
    from huggingface_hub import snapshot_download

    wanted, offline = ["config.json", TOKENIZER, *WEIGHTS], not datasets.may_fetch()
    return Path(snapshot_download(model, allow_patterns=wanted, local_files_only=offline))


def _tensors(folder: Path) -> dict[str, Any]:
    """Weights of a checkpoint under RemBERT's names."""
    import torch

    found = next((folder / name for name in WEIGHTS if (folder / name).is_file()), None)
    if found is None:
        raise OSError(f"{folder} holds none of {', '.join(WEIGHTS)}")
    if found.suffix == ".safetensors":
        from safetensors.torch import load_file

        tensors = load_file(found)
    else:
        tensors = torch.load(found, map_location="cpu", weights_only=True)
    for old, new in RENAMED:
        tensors = {name.replace(old, new, 1): tensor for name, tensor in tensors.items()}
    return tensors


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
        signature = f"rougeL|F|stemmer:no|mean|rouge-score:{weights.installed('rouge-score')}"
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
    key, packages = "cm50.metrics.bertscore", ("bert_score",)
    wanted = "the encoder of BERTScore (roberta-large in the paper)"

    def __init__(self, model: str | None = None, layer: int | None = None) -> None:
        super().__init__(model)
        self._layer = layer

    def _load(self) -> Any:
        from bert_score import BERTScorer
        from bert_score.utils import model2layers

        folder = weights.folder_of(self._model)
        if folder is None and not datasets.may_fetch() and not weights.hub_commit(self._model):
            raise OSError("fetching is off")
        layer = self._layer or model2layers.get(folder.name if folder else self._model)
        if layer is None:
            raise weights.ModelError(
                f"BERTScore: say which layer of {self._model} counts (cm50.metrics.bertscore_layer)"
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
        signature += f"|bert-score:{weights.installed('bert-score')}"
        note = WIRING if scorer._model.config.hidden_size < NARROWEST else ""
        return Score(float(items.mean()), tuple(map(float, items)), signature, note)


class Bleurt(CheckpointMetric):
    """A regression trained on human ratings, about 0-1; one reference each; the set's value is the mean."""

    name, several, scale = "BLEURT", False, 1
    key = "cm50.metrics.bleurt"
    wanted = "a BLEURT-20 checkpoint (lucadiliello/BLEURT-20: config.json, weights, spm.model)"
    packages = ("torch", "transformers", "sentencepiece")

    def _load(self) -> Any:
        return load(self._model)

    def _score(self, predictions: list[str], references: list[list[str]]) -> Score:
        scorer = self._loaded[0]
        items = scorer.score([texts[0] for texts in references], predictions)
        signature = f"BLEURT|{model_version(self._model)}|cut:{scorer.longest}|mean"
        note = WIRING if scorer.width < NARROWEST else ""
        return Score(float(np.mean(items)), tuple(map(float, items)), signature, note)


def model_version(model: str) -> str:
    """Name with the version of the weights: digest of a folder, or the hub commit that was downloaded."""
    if (folder := weights.folder_of(model)) is not None:
        return f"{folder.name}@{weights.folder_digest(folder)}"
    commit = weights.hub_commit(model)
    return f"{model}@{commit[: weights.DIGITS]}" if commit else model


def all_metrics(
    bertscore: str | None = None, bleurt_20: str | None = None, bertscore_layer: int | None = None
) -> Mapping[str, TextMetric]:
    """Build the five metrics of Table 10 by name, in its order; weights by hub name or folder, or None."""
    made = (Bleurt(bleurt_20), BertScore(bertscore, bertscore_layer), ChrF(), RougeL(), Bleu())
    return {metric.name: metric for metric in made}


# --- The five ways of Table 10 to hold one or more predictions against several references (2501.13851,
# App. D)
# MemeCap has up to four captions a meme, so a score of "the prediction against the reference" has to say what
# the reference is. With predictions p_1..p_m of a meme and its references r_1..r_k:
#
# | mode | pairs that are scored | the set's value |
# | --- | --- | --- |
# | extended | every p_i with every r_j, one each (the prediction is repeated) | over all pairs |
# | concatenated | every p_i with r_1..r_k joined to one text | over all p_i |
# | multi-reference | every p_i with the set r_1..r_k, as the metric itself takes sets | over all p_i |
# | best match | every p_i with every r_j; of each p_i the highest score counts | mean over all p_i |
# | fully-concatenated | p_1..p_m joined, with r_1..r_k joined; only with several p_i a meme | over memes |
#
# "Over" is the metric's own way from texts to a set: a mean (BLEURT, BERTScore, ROUGE-L) or counts summed
# before dividing (ChrF, BLEU-4). In `extended` a meme with more references weighs more.


Mode = Literal["extended", "concatenated", "multi-reference", "best match", "fully-concatenated"]
MODES: tuple[Mode, ...] = get_args(Mode)
ROW_NAMES: dict[Mode, str] = {
    "extended": "Extended predictions",
    "concatenated": "Concatenated references",
    "multi-reference": "Multi-reference",
    "best match": "Best match",
    "fully-concatenated": "Fully-concatenated",
}
"""As Table 10 calls them."""
Texts = Sequence[Sequence[str]]
SUPPORTED: dict[Mode, frozenset[str]] = {
    "extended": frozenset({"BLEURT", "BERTScore", "ChrF", "ROUGE-L", "BLEU-4"}),
    "concatenated": frozenset({"BLEURT", "BERTScore", "ChrF", "ROUGE-L", "BLEU-4"}),
    "multi-reference": frozenset({"BERTScore", "ROUGE-L", "BLEU-4"}),
    "best match": frozenset({"BLEURT", "BERTScore"}),
    "fully-concatenated": frozenset({"BLEURT", "BERTScore", "ChrF", "ROUGE-L", "BLEU-4"}),
}
"""Metrics that fill a cell of Table 10; the others leave it blank.

BLEURT takes one reference. ChrF of sets is blank in the table: the authors' wrapper wants the same number of
references for every text. Best match needs a score of each pair, which corpus metrics do not have.
"""
JOINED = {"code": "", "blank": " "}
"""What stands between joined references in `concatenated`: the paper's code puts nothing, so that words of
two captions may run together; `fully-concatenated` has a blank there and here."""
Joint = Literal["code", "blank"]


class Pairs(NamedTuple):
    """Texts as a metric takes them, and the prediction (or meme) that each stands for."""

    predictions: list[str]
    references: list[list[str]]
    owner: list[int]


def expand(mode: Mode, predictions: Texts, references: Texts, joint: Joint = "code") -> Pairs:
    """Return the pairs of a mode; predictions and references are lists of texts, one for each meme.

    `owner` numbers the predictions as they come (fully-concatenated: the memes). Raises `ValueError` for an
    unknown mode, lists of different length, or a meme without a prediction or reference.
    """
    if mode not in MODES:
        raise ValueError(f"mode {mode!r} is none of {', '.join(MODES)}")
    _check(predictions, references)
    if mode == "fully-concatenated":
        pairs = [(" ".join(p), [" ".join(r)]) for p, r in zip(predictions, references, strict=True)]
        return Pairs([p for p, _ in pairs], [r for _, r in pairs], list(range(len(pairs))))
    single = [(text, list(refs)) for p, refs in zip(predictions, references, strict=True) for text in p]
    if mode == "concatenated":
        single = [(text, [JOINED[joint].join(refs)]) for text, refs in single]
    if mode in ("extended", "best match"):
        spread = [(text, [ref], i) for i, (text, refs) in enumerate(single) for ref in refs]
        return Pairs([t for t, _, _ in spread], [r for _, r, _ in spread], [i for _, _, i in spread])
    return Pairs([t for t, _ in single], [r for _, r in single], list(range(len(single))))


def score(
    metric: TextMetric, mode: Mode, predictions: Texts, references: Texts, joint: Joint = "code"
) -> Score:
    """Score a metric in a mode; the value is None with an empty note where the table has a blank cell.

    Items are scores of the pairs (best match: of the predictions).
    """
    pairs = expand(mode, predictions, references, joint)
    if metric.name not in SUPPORTED[mode] or not applies(mode, predictions):
        return Score(None)
    found = metric.score(pairs.predictions, pairs.references)
    if mode != "best match" or found.value is None:
        return found
    best = np.full(pairs.owner[-1] + 1, -np.inf)
    np.maximum.at(best, pairs.owner, found.items)
    return found._replace(value=float(best.mean()), items=tuple(map(float, best)))


def applies(mode: Mode, predictions: Texts) -> bool:
    """Whether a mode is meant for these predictions: joining them needs a meme with several."""
    return mode != "fully-concatenated" or any(len(texts) > 1 for texts in predictions)


def cell(found: Score, digits: int = 3) -> str:
    """One cell of a table: the number, nothing, or why there is none (also for random weights of a test)."""
    if found.note == WIRING:
        return WIRING
    if found.value is None:
        return NOT_COMPUTED if found.note else ""
    return f"{found.value:.{digits}f}"


def _check(predictions: Texts, references: Texts) -> None:
    if len(predictions) != len(references):
        raise ValueError(f"{len(predictions)} memes with predictions, but {len(references)} with references")
    for name, sets in (("prediction", predictions), ("reference", references)):
        for number, texts in enumerate(sets, start=1):
            if isinstance(texts, str) or not texts:
                raise ValueError(f"meme {number}: give its {name}s as a list of one text or more")
