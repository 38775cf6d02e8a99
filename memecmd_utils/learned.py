"""Learned placement: Eq. 22 with 72 weights in place of four, trees for its best, a gate that reads the chat.

`evaluation.learning` fits what is applied here (plan: `data/example/PLACEMENT_PLAN.md`). A ranker compares
six texts of a turn with six of a meme under each embedder. Trees look again at the memes that it puts first.
A gate says from the turn's vectors whether one would send a meme at all. A meme is sent where all of it
together promises most.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from memecmd_utils import files, retrieval
from memecmd_utils.files import MemecmdError, paths
from memecmd_utils.retrieval import (
    LEARNED,
    NOISE,
    Encode,
    Ranking,
    ScoredDialogue,
    at_all_turns,
    best_memes,
    cut,
    usable_annotations,
)
from memecmd_utils.schemas import Annotation, Dialogue, Meme, Summary, SummaryReply
from memecmd_utils.settings import Profile

TURN_TEXTS = ("S", "E", "Psi", "S E Psi", "last turn", "last three turns")
MEME_TEXTS = ("S+", "S-", "E", "Psi", "caption", "picture and caption")
"""What is known of a turn and of a meme, in the order of rows and columns of a ranker's weights."""
FILE = "placement.json"
"""Fitted weights, in the folder of the run they were fitted on; the example's are in `data/example`. A file
of the same name with `.npz` holds what nobody reads: trees, the gate's coefficients, means."""
RERANKED = 20
"""Memes of a turn that the linear form puts first: the trees look again at these."""
CHUNK = 1 << 15
"""Pairs that trees score at a time: their numbers stay in the cache."""
LAST_TURNS = 3
GATE_TEXTS = (0, 1, 2, 4, 5)
"""Places in `TURN_TEXTS` of the texts that the gate reads: the joined one says nothing new to it."""
GATE_TURNS = 18.0
"""Turns of a dialogue of the example: the gate reads a turn's number in this unit."""


class PlacementError(MemecmdError, ValueError):
    """Learned weights that cannot be applied: other embedders, or a file of another form."""


def turn_texts(before: Sequence[str], summary: SummaryReply | Summary) -> tuple[str, ...]:
    """The texts known before turn t, in the order of `TURN_TEXTS`: its summary and `before`, u_1..u_{t-1}."""
    parts = (summary.scenario, summary.emotion, summary.motivation)
    return (*parts, "\n".join(parts), *("\n".join(before[-n:]) for n in (1, LAST_TURNS)))


def meme_texts(meme: Meme, annotation: Annotation) -> tuple[str, ...]:
    """The texts known of a meme, in the order of `MEME_TEXTS`."""
    shown = "\n".join(text for text in (meme.picture_note, meme.text) if text)
    parts = (annotation.s_plus, annotation.s_minus, annotation.emotion, annotation.motivation)
    return (*parts, meme.text, shown)


def encode_texts(
    rows: Sequence[Sequence[str]], encode: Encode, side: str, means: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Centred unit vectors [rows, kinds, dim] of texts [rows][kinds], and the means [kinds, dim] taken off.

    Without `means` each kind is centred by its own mean. An empty text has the zero vector: it says nothing.
    """
    vectors, taken = [], []
    for kind, texts in enumerate(zip(*rows, strict=True)):
        # In float64: trees ask on which side of a threshold a cosine lies, on every machine the same.
        raw = encode(texts, side).astype(np.float64)
        mean = np.zeros(raw.shape[1]) if len(raw) < 2 else raw.mean(axis=0)
        mean = mean if means is None else means[kind]
        gaps = raw - mean
        length = np.linalg.norm(gaps, axis=1, keepdims=True)
        there = np.array([bool(text.strip()) for text in texts])[:, None] & (length >= NOISE)
        vectors.append(np.where(there, gaps / np.where(there, length, 1), 0).astype(np.float32))
        taken.append(mean.astype(np.float32))
    return np.stack(vectors, axis=1), np.stack(taken)


@dataclass(frozen=True)
class Ranker:
    """Weights of all pairs of texts, [embedders, turn texts, meme texts]: Eq. 22 has four of them."""

    weights: np.ndarray

    @cached_property
    def factors(self) -> tuple[np.ndarray, np.ndarray]:
        """Weights as a product [embedders, turn texts, rank] by [embedders, rank, meme texts].

        The rank is the lowest that gives the weights but for their rounding: it says how many products score
        a pair.
        """
        u, s, v = np.linalg.svd(self.weights)
        rank = max(1, int((s > 1e-3 * s.max()).sum(axis=1).max()))
        return u[:, :, :rank] * s[:, None, :rank], v[:, :rank]

    def meme_rows(self, memes: Sequence[np.ndarray]) -> np.ndarray:
        """What a turn's texts meet, [memes, sum over embedders of rank * dim], from [memes, 6, dim] each."""
        parts = [np.einsum("rj,mjd->mrd", v, m) for v, m in zip(self.factors[1], memes, strict=True)]
        return np.hstack([part.reshape(len(part), -1) for part in parts]).astype(np.float32)

    def score(self, turns: Sequence[np.ndarray], rows: np.ndarray) -> np.ndarray:
        """Scores [turns, memes] of turns, [turns, 6, dim] each, and `meme_rows`, in one product.

        The score is an expected gain but for a constant of the turn, so only differences at a turn count.
        """
        parts = [np.einsum("ir,tid->trd", u, t) for u, t in zip(self.factors[0], turns, strict=True)]
        return np.hstack([part.reshape(len(part), -1) for part in parts]).astype(np.float32) @ rows.T


@dataclass(frozen=True)
class Trees:
    """Regression trees: the gain of a pair is the sum of one leaf of each.

    A tree has inner nodes in any order and leaves from left to right. `features`, `thresholds` and `reached`
    have shape [trees, inner nodes]: a pair whose feature exceeds the threshold cannot reach the leaves to the
    node's left, whose bits are 0 in `reached`. `values` [trees, leaves] are those of the leaves, at most 16.
    """

    features: np.ndarray
    thresholds: np.ndarray
    reached: np.ndarray
    values: np.ndarray

    def predict(self, pairs: np.ndarray) -> np.ndarray:
        """Gain (0-4) to expect of pairs [pairs, features], float64.

        The leaf of a pair is the leftmost that no node forbids (QuickScorer, Lucchese et al. 2015): a tree
        costs one comparison a node of all pairs at once.
        """
        out = np.zeros(len(pairs))
        bits = np.arange(1, 1 << 16)
        leftmost = np.append(0, np.log2(bits & -bits)).astype(np.int8)  # of every set of leaves
        for start in range(0, len(pairs), CHUNK):
            columns = np.ascontiguousarray(pairs[start : start + CHUNK].T)
            for features, thresholds, reached, values in zip(
                self.features, self.thresholds, self.reached, self.values, strict=True
            ):
                leaves = np.full(columns.shape[1], 0xFFFF, dtype=np.uint16)
                for feature, threshold, left in zip(features, thresholds, reached, strict=True):
                    leaves &= np.where(columns[feature] > threshold, left, np.uint16(0xFFFF))
                out[start : start + CHUNK] += values[leftmost[leaves]]
        return out


@dataclass(frozen=True)
class WantedGate:
    """P(one would send a meme here): a logistic regression on the turn's vectors, its number and speaker."""

    coefficients: np.ndarray
    intercept: float

    def probability(self, inputs: np.ndarray) -> np.ndarray:
        """P(wanted) of every turn, from `gate_inputs` [turns, inputs]."""
        return 1 / (1 + np.exp(-(inputs @ self.coefficients + self.intercept)))


def gate_inputs(vectors: np.ndarray, turns: Sequence[int], speakers: Sequence[str]) -> np.ndarray:
    """What the gate reads, [turns, 5 * dim + 2].

    `vectors` [turns, 6, dim] are the first embedder's, `speakers` are A, who opens, and B.
    """
    chosen = vectors[:, GATE_TEXTS].reshape(len(vectors), -1).astype(np.float64)
    number = np.asarray(turns, dtype=np.float64) / GATE_TURNS
    return np.column_stack([chosen, number, np.asarray(speakers) == "A"])


@dataclass(frozen=True)
class PlacementModel:
    """A ranker, trees for its best memes, a gate, and the gain to expect of a turn's best meme."""

    embedders: tuple[str, ...]
    """Name and version of each embedder, in the order of the ranker's weights; the gate reads the first."""
    ranker: Ranker
    trees: Trees
    gate: WantedGate
    gains: np.ndarray
    """Best scores and the gains (0-4) to expect of them, [2, points], both ascending."""

    def expected_gain(self, best_scores: np.ndarray) -> np.ndarray:
        """The gain (0-4) to expect of memes with these best scores of their turns."""
        return np.interp(best_scores, *self.gains)

    def promise(self, best_scores: np.ndarray, inputs: np.ndarray) -> np.ndarray:
        """P(wanted) times the gain to expect: where to send is decided by it. Shape [turns]."""
        return self.gate.probability(inputs) * self.expected_gain(best_scores)

    def as_json(self) -> dict[str, Any]:
        """What one reads of the model, rounded to what its results need."""
        return {
            "weights": {
                name: {
                    turn: dict(zip(MEME_TEXTS, np.round(row, 5).tolist(), strict=True))
                    for turn, row in zip(TURN_TEXTS, weights, strict=True)
                }
                for name, weights in zip(self.embedders, self.ranker.weights, strict=True)
            },
            "gains": np.round(self.gains, 6).tolist(),
        }

    def arrays(self) -> dict[str, np.ndarray]:
        """The rest of it."""
        gate = np.append(self.gate.coefficients, self.gate.intercept).astype(np.float32)
        return {"gate": gate, **vars(self.trees)}

    @classmethod
    def read(cls, embedders: Sequence[str], values: Mapping[str, Any], arrays: Mapping[str, np.ndarray]):
        """The model that `as_json` and `arrays` wrote."""
        weights = np.array(
            [[[values["weights"][n][t][m] for m in MEME_TEXTS] for t in TURN_TEXTS] for n in embedders]
        )
        gains = np.array(values["gains"], dtype=np.float64)
        trees = Trees(*(arrays[name] for name in Trees.__dataclass_fields__))
        shapes = {trees.features.shape, trees.thresholds.shape, trees.reached.shape}
        if gains.ndim != 2 or len(gains) != 2 or not gains.size or len(shapes) != 1:
            raise ValueError("gains or trees of another form")
        if trees.features.size and not 0 <= trees.features.min() <= trees.features.max() < weights.size:
            raise ValueError("trees that ask for features that are not there")
        gate = arrays["gate"].astype(np.float64)
        return cls(tuple(embedders), Ranker(weights), trees, WantedGate(gate[:-1], float(gate[-1])), gains)


@dataclass(frozen=True)
class LearnedIndex:
    """A library as a model compares it: `memes` [memes, 6, dim] for each embedder, in the order of ids."""

    model: PlacementModel
    meme_ids: Sequence[str]
    memes: Sequence[np.ndarray]

    @cached_property
    def rows(self) -> np.ndarray:
        """What the linear form meets."""
        return self.model.ranker.meme_rows(self.memes)

    def best(self, turns: Sequence[np.ndarray], k: int) -> tuple[np.ndarray, np.ndarray]:
        """Positions and scores of the k best memes of every turn, [turns, k] each, k <= `RERANKED`.

        The linear form, less its mean at the turn, finds `RERANKED` memes. A score is that plus the trees'
        gain; equal scores go by id.
        """
        found = [(best[:, :k], scores[:, :k]) for _, best, scores in self._blocks(turns)]
        return tuple(np.concatenate(part) for part in zip(*found, strict=True))  # type: ignore[return-value]

    def scores(self, turns: Sequence[np.ndarray]) -> np.ndarray:
        """Scores [turns, memes]: memes beyond the best keep the linear form's order, below them."""
        out = []
        for linear, best, scores in self._blocks(turns):
            below = scores.min(axis=1) - linear.max(axis=1) - 1
            linear += below[:, None]
            np.put_along_axis(linear, best, scores, axis=1)
            out.append(linear)
        return np.concatenate(out)

    def _first(self, linear: np.ndarray) -> np.ndarray:
        """Positions [turns, `RERANKED`] of the highest scores in any order; of equal ones the first by id."""
        if len(self.meme_ids) <= RERANKED:
            return best_memes(linear, self.meme_ids, RERANKED)
        best = np.argpartition(linear, -RERANKED, axis=1)[:, -RERANKED:]
        lowest = np.take_along_axis(linear, best, axis=1).min(axis=1, keepdims=True)
        tied = (linear >= lowest).sum(axis=1) > RERANKED
        best[tied] = best_memes(linear[tied], self.meme_ids, RERANKED)
        return best

    def _blocks(self, turns: Sequence[np.ndarray], size: int = 128) -> Iterator[tuple[np.ndarray, ...]]:
        """Linear scores [turns, memes], and the best memes with their scores in order, of some turns each."""
        for start in range(0, max(1, len(turns[0])), size):
            block = [turn[start : start + size] for turn in turns]
            linear = self.model.ranker.score(block, self.rows)
            mean = linear.mean(axis=1, dtype=np.float64, keepdims=True)
            best = self._first(linear)
            cosines = np.stack(
                [_cosines(t, m[best]) for t, m in zip(block, self.memes, strict=True)], axis=2
            )  # [turns, best, embedders, 6, 6]
            gains = self.model.trees.predict(cosines.reshape(best.size, -1)).reshape(best.shape)
            scores = np.einsum("tkeij,eij->tk", cosines, self.model.ranker.weights) - mean + gains
            order = np.lexsort((np.array(self.meme_ids)[best], -np.round(scores, 6)), axis=1)
            best, scores = (np.take_along_axis(part, order, axis=1) for part in (best, scores))
            yield linear - mean, best, scores


def _cosines(turns: np.ndarray, memes: np.ndarray) -> np.ndarray:
    """Cosines [turns, k, 6, 6] in float64 of turns [turns, 6, dim] and k memes each [turns, k, 6, dim]."""
    flat = memes.reshape(len(memes), -1, memes.shape[3]).astype(np.float64)  # one product a turn
    product = np.matmul(turns.astype(np.float64), flat.transpose(0, 2, 1))
    return product.reshape(len(turns), 6, -1, 6).transpose(0, 2, 1, 3)


@dataclass(frozen=True)
class LearnedPlacement:
    """The model for any chat, and for each dialogue that was learned from the one that did not see it."""

    model: PlacementModel
    folds: Sequence[PlacementModel]
    """The models that were fitted without one fold of these dialogues each."""
    fold_of: Mapping[str, int]
    """Dialogue id to the number of its fold."""
    turn_means: Sequence[np.ndarray]
    """Mean vector of each text of a turn over the dialogues that were learned from, [6, dim] for each
    embedder: a chat is too short for means of its own."""
    promises: np.ndarray
    """Quantiles 0, 0.01, ..., 1 of the promise of these dialogues' turns, each by the model that had not seen
    it."""

    def threshold(self, rate: float) -> float:
        """The promise from which on a share `rate` of turns gets a meme."""
        return float(np.quantile(self.promises, 1 - rate))

    def of_dialogue(self, dialogue_id: str) -> PlacementModel:
        """The model that saw no grade and no mark of this dialogue."""
        return self.folds[self.fold_of[dialogue_id]] if dialogue_id in self.fold_of else self.model

    def check_embedders(self, names: Sequence[str]) -> None:
        """`PlacementError` where a run's embedders are not those that the weights were fitted under."""
        if tuple(names) != self.model.embedders:
            raise PlacementError(
                f"the learned weights are for the embedders {' and '.join(self.model.embedders)}, this run "
                f"has {' and '.join(names)}: fit your own with `make fit-placement`, or take another strategy"
            )

    def save(self, path: Path) -> None:
        """Write what one reads into a JSON file, and the rest beside it, with the suffix `.npz`."""
        out = {
            "embedders": list(self.model.embedders),
            "promises": np.round(self.promises, 5).tolist(),
            "model": self.model.as_json(),
            "folds": [model.as_json() for model in self.folds],
            "fold_of": dict(sorted(self.fold_of.items())),
        }
        arrays = {f"means_{n}": means.astype(np.float32) for n, means in enumerate(self.turn_means)}
        for number, model in enumerate((self.model, *self.folds)):
            arrays |= {f"{name}_{number}": values for name, values in model.arrays().items()}
        with files.atomic_path(path.with_suffix(".npz")) as part:
            np.savez_compressed(part, **arrays)
        files.write_json(path, out)


@dataclass(frozen=True)
class LearnedLibrary:
    """The memes of a run as learned placement compares them: vectors [memes, 6, dim] for each encoder."""

    placement: LearnedPlacement
    encoders: Sequence[Encode]
    meme_ids: Sequence[str]
    memes: Sequence[np.ndarray]
    _indices: dict[int, LearnedIndex] = field(default_factory=dict, repr=False)

    def promises(
        self,
        model: PlacementModel,
        texts: Sequence[Sequence[str]],
        turns: Sequence[int],
        speakers: Sequence[str],
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Position of each turn's best meme, the gain (0-4) to expect of it, and its promise, [turns] each.

        `texts` are `turn_texts`, `turns` their numbers, `speakers` A, who opens, or B.
        """
        index = self._indices.setdefault(id(model), LearnedIndex(model, self.meme_ids, self.memes))
        vectors = [
            encode_texts(texts, encode, "query", means)[0]
            for encode, means in zip(self.encoders, self.placement.turn_means, strict=True)
        ]
        best, scores = (part[:, 0] for part in index.best(vectors, 1))
        inputs = gate_inputs(vectors[0], turns, speakers)
        return best, model.expected_gain(scores), model.promise(scores, inputs)


def open_library(
    placement: LearnedPlacement,
    memes: Mapping[str, Meme],
    annotations: Sequence[Annotation],
    encoders: Sequence[Encode],
) -> LearnedLibrary:
    """Encode what is known of all usable memes; each kind of text is centred by its own mean."""
    usable = usable_annotations(annotations)
    texts = [meme_texts(memes[a.meme_id], a) for a in usable]
    vectors = [encode_texts(texts, encode, "document")[0] for encode in encoders]
    return LearnedLibrary(placement, encoders, [a.meme_id for a in usable], vectors)


def score_dialogues(dialogues: Sequence[Dialogue], library: LearnedLibrary) -> list[ScoredDialogue]:
    """The best meme and its promise at every turn 2..T, for the gate of `placement.place`.

    A dialogue that was learned from is judged by the model that did not see it. A turn without a usable
    summary gets -inf.
    """
    rankings = []
    for dialogue in dialogues:
        known = [summary for summary in dialogue.summaries if not summary.unscored]
        if known:
            texts = [turn_texts([u.text for u in dialogue.turns if u.turn < s.turn], s) for s in known]
            model = library.placement.of_dialogue(dialogue.dialogue_id)
            best, _, promise = library.promises(
                model, texts, [s.turn for s in known], [s.speaker for s in known]
            )
        else:
            best, promise = np.empty(0, dtype=np.int64), np.empty(0)
        usable = np.array([not summary.unscored for summary in dialogue.summaries], dtype=bool)
        found = Ranking(best[:, None], promise[:, None], np.zeros((len(best), 1, 4)))
        rankings.append(Ranking(*(at_all_turns(p, usable) for p in found)))
        rankings[-1].scores[~usable] = -np.inf
        rankings[-1].memes[~usable] = -1
    ranking = Ranking(*map(np.concatenate, zip(*rankings, strict=True)))
    return cut(dialogues, np.zeros((len(ranking.memes), 3, 0), dtype=np.float32), ranking)


def open_placement(folder: Path, names: Sequence[str]) -> LearnedPlacement:
    """The weights that were fitted on the run in `folder`, or else the shipped ones.

    Raises `PlacementError` where they are for other embedders than those of these names, if any are given.
    """
    own = folder / FILE
    found = load_placement(own if own.is_file() else paths.example / FILE)
    if names:
        found.check_embedders(names)
    return found


def score_by_learned(
    dialogues: Sequence[Dialogue],
    memes: Mapping[str, Meme],
    annotations: Sequence[Annotation],
    embedders: Sequence[Any],
    folder: Path,
    profile: Profile,
) -> list[ScoredDialogue]:
    """`score_dialogues` for the run in `folder` under its two embedders (each with `name` and `encode`).

    Empty where the profile does not ask for `learned`; also, with a word, where its weights do not apply or
    the library is too large to compare every meme.
    """
    if LEARNED not in profile.retrieval.strategies:
        return []
    try:
        if len(annotations) >= retrieval.FROM_MEMES:
            raise PlacementError("learned placement compares every meme: for so many take greedy")
        placement = open_placement(folder, [embedder.name for embedder in embedders])
    except PlacementError as error:
        print(f"no memes by {LEARNED}: {error}")
        return []
    encoders = [embedder.encode for embedder in embedders]
    return score_dialogues(dialogues, open_library(placement, memes, annotations, encoders))


def load_placement(path: Path) -> LearnedPlacement:
    """Read what `LearnedPlacement.save` wrote; `PlacementError` where it is not there or of another form."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        with np.load(path.with_suffix(".npz"), allow_pickle=False) as file:
            arrays = dict(file)
        names = values["embedders"]
        models = [
            PlacementModel.read(
                names, model, {n: arrays[f"{n}_{number}"] for n in ("gate", *Trees.__dataclass_fields__)}
            )
            for number, model in enumerate((values["model"], *values["folds"]))
        ]
        fold_of = dict(values["fold_of"])
        means = [arrays[f"means_{n}"] for n in range(len(names))]
        promises = np.array(values["promises"], dtype=np.float64)
        if [rows.shape[0] for rows in means] != [len(TURN_TEXTS)] * len(names):
            raise ValueError("means of another form")
        if promises.ndim != 1 or not set(fold_of.values()) <= set(range(len(models) - 1)):
            raise ValueError("promises or folds of another form")
        return LearnedPlacement(models[0], models[1:], fold_of, means, promises)
    except (OSError, ValueError, KeyError, TypeError, IndexError, BadZipFile) as error:
        raise PlacementError(f"no learned placement in {path.name}: {error}") from error
