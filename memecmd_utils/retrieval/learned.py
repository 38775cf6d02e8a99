"""Learned placement: Eq. 22 with 72 weights in place of four, and a gate that reads the chat.

`evaluation.learning` fits what is applied here (plan: `data/example/PLACEMENT_PLAN.md`). A ranker compares
six texts of a turn with six of a meme under each embedder. A gate says from the turn's vectors whether one
would send a meme at all. A meme is sent where both together promise most.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from memecmd_utils.core import storage
from memecmd_utils.core.errors import MemecmdError
from memecmd_utils.retrieval.scoring import Encode, centre, mean_row
from memecmd_utils.schemas import Annotation, Meme, SummaryReply

TURN_TEXTS = ("S", "E", "Psi", "S E Psi", "last turn", "last three turns")
MEME_TEXTS = ("S+", "S-", "E", "Psi", "caption", "picture and caption")
"""What is known of a turn and of a meme, in the order of rows and columns of a ranker's weights."""
FILE = "placement.json"
"""Fitted weights, in the folder of the run they were fitted on; the example's are in `data/example`."""
LAST_TURNS = 3
GATE_TEXTS = (0, 1, 2, 4, 5)
"""Places in `TURN_TEXTS` of the texts that the gate reads: the joined one says nothing new to it."""
GATE_TURNS = 18.0
"""Turns of a dialogue of the example: the gate reads a turn's number in this unit."""


class PlacementError(MemecmdError, ValueError):
    """Learned weights that cannot be applied: other embedders, or a file of another form."""


def turn_texts(before: Sequence[str], summary: SummaryReply) -> tuple[str, ...]:
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
        raw = encode(texts, side)
        mean = mean_row(raw) if means is None else means[kind]
        there = np.array([bool(text.strip()) for text in texts])
        vectors.append(np.where(there[:, None], centre(raw, mean), 0))
        taken.append(mean)
    return np.stack(vectors, axis=1).astype(np.float32), np.stack(taken)


@dataclass(frozen=True)
class Ranker:
    """Weights of all pairs of texts, [embedders, turn texts, meme texts]: Eq. 22 has four of them."""

    weights: np.ndarray

    def meme_rows(self, memes: Sequence[np.ndarray]) -> np.ndarray:
        """What a turn's texts meet, [memes, sum over embedders of 6 * dim], from [memes, 6, dim] each."""
        parts = [np.einsum("ij,mjd->mid", w, m) for w, m in zip(self.weights, memes, strict=True)]
        return np.hstack([part.reshape(len(part), -1) for part in parts]).astype(np.float32)

    def score(self, turns: Sequence[np.ndarray], rows: np.ndarray) -> np.ndarray:
        """Scores [turns, memes] of turns, [turns, 6, dim] each, and `meme_rows`, in one product.

        The score is an expected gain but for a constant of the turn, so only differences at a turn count.
        """
        return np.hstack([turn.reshape(len(turn), -1) for turn in turns]) @ rows.T


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
    """A ranker, a gate, and the gain to expect of a turn's best meme."""

    embedders: tuple[str, ...]
    """Name and version of each embedder, in the order of the ranker's weights; the gate reads the first."""
    ranker: Ranker
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
        """The model as plain numbers, rounded to what its results need."""
        return {
            "embedders": list(self.embedders),
            "weights": {
                name: {
                    turn: dict(zip(MEME_TEXTS, np.round(row, 5).tolist(), strict=True))
                    for turn, row in zip(TURN_TEXTS, weights, strict=True)
                }
                for name, weights in zip(self.embedders, self.ranker.weights, strict=True)
            },
            "gains": np.round(self.gains, 6).tolist(),
            "gate": {
                "intercept": round(float(self.gate.intercept), 5),
                "coefficients": np.round(self.gate.coefficients, 4).tolist(),
            },
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "PlacementModel":
        """The model that `as_json` wrote; `PlacementError` where a part is missing or of another form."""
        try:
            names = tuple(values["embedders"])
            weights = np.array(
                [[[values["weights"][n][t][m] for m in MEME_TEXTS] for t in TURN_TEXTS] for n in names]
            )
            gate = values["gate"]
            gains = np.array(values["gains"], dtype=np.float64)
            coefficients = np.array(gate["coefficients"], dtype=np.float64)
            if gains.ndim != 2 or len(gains) != 2 or not gains.size or coefficients.ndim != 1:
                raise ValueError("gains or coefficients of another form")
            return cls(names, Ranker(weights), WantedGate(coefficients, float(gate["intercept"])), gains)
        except (KeyError, TypeError, ValueError) as error:
            raise PlacementError(f"no learned placement: {error}") from error


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
        """Write all models into one JSON file."""
        out = {
            "promises": np.round(self.promises, 5).tolist(),
            "turn_means": [np.round(means, 5).tolist() for means in self.turn_means],
            "model": self.model.as_json(),
            "folds": [model.as_json() for model in self.folds],
            "fold_of": dict(sorted(self.fold_of.items())),
        }
        storage.write_json(path, out)


def load_placement(path: Path) -> LearnedPlacement:
    """Read what `LearnedPlacement.save` wrote; `PlacementError` where it is not there or of another form."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        folds = [PlacementModel.from_json(fold) for fold in values["folds"]]
        fold_of = dict(values["fold_of"])
        model = PlacementModel.from_json(values["model"])
        means = [np.array(rows, dtype=np.float32) for rows in values["turn_means"]]
        promises = np.array(values["promises"], dtype=np.float64)
        if [rows.shape[0] for rows in means] != [len(TURN_TEXTS)] * len(model.embedders):
            raise ValueError("means of another form")
        if promises.ndim != 1 or not set(fold_of.values()) <= set(range(len(folds))):
            raise ValueError("promises or folds of another form")
        return LearnedPlacement(model, folds, fold_of, means, promises)
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        raise PlacementError(f"no learned placement in {path.name}: {error}") from error
