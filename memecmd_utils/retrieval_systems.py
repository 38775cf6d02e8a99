"""The retrieval systems that are measured: parts of the score, embedders, baselines."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np

from memecmd_utils import seeds
from memecmd_utils.retrieval import MEME_SIDE, QUERY_SIDE, SIGNS, centre, combine
from memecmd_utils.schemas import Annotation, Dialogue, Meme, Summary
from memecmd_utils.selection import Encode

PARTS = ("S+", "S-", "E", "Psi")
"""The four terms of the score (Eq. 18-21) in the order of the weights."""
FULL = " ".join(PARTS)
CAPTION = "context to caption"
RANDOM = "random"
RANDOM_GRADED = "random, one ranking graded"
"""The one random ranking whose top was graded: the mean of many meets memes that nobody judged."""
CONTEXT_TURNS = 3
"""Last turns that the baseline without annotations compares with the caption."""


class System(NamedTuple):
    """One way to rank the library: which embedder, centred or not, and what it compares."""

    embedder: str
    centring: str
    """`attribute` or `none`, as in the profile."""
    uses: str


class Query(NamedTuple):
    """A turn to rank memes for, by its dialogue and number."""

    dialogue: Dialogue
    turn: int

    @property
    def key(self) -> tuple[str, int]:
        """(dialogue id, turn)."""
        return self.dialogue.dialogue_id, self.turn

    @property
    def context(self) -> str:
        """The last turns before t as they were said."""
        return "\n".join(
            u.text for u in self.dialogue.turns[max(0, self.turn - 1 - CONTEXT_TURNS) : self.turn - 1]
        )


def queries(dialogues: Sequence[Dialogue]) -> list[Query]:
    """All turns that have a usable summary."""
    return [Query(d, s.turn) for d in dialogues for s in d.summaries if not s.unscored]


def score_matrices(
    asked: Sequence[Query],
    memes: Mapping[str, Meme],
    annotations: Sequence[Annotation],
    encoders: Mapping[str, Encode],
    weights: Sequence[float],
    centrings: Sequence[str] = ("attribute", "none"),
) -> Iterator[tuple[System, np.ndarray]]:
    """Scores [turns, memes] of every system, memes in the order of `annotations`, in float64.

    For each embedder and centring: each term alone, each pair of terms with equal weights, all four with
    the run's weights, and the plain text of the last turns against the caption.
    """
    summaries = {(d.dialogue_id, s.turn): s for d, _ in asked for s in d.summaries}
    asked_for = [summaries[q.key] for q in asked]
    for name, encode in encoders.items():
        contexts = encode([q.context for q in asked], "query")
        captions = encode([memes[a.meme_id].text for a in annotations], "document")
        for centring in centrings:
            terms = four_terms(asked_for, annotations, encode, centring)
            for part, term in zip(PARTS, terms, strict=True):
                yield System(name, centring, part), term
            for i, j in combinations(range(len(PARTS)), 2):
                yield System(name, centring, f"{PARTS[i]} {PARTS[j]}"), terms[i] + terms[j]
            yield System(name, centring, FULL), combine(terms, weights)
            yield System(name, centring, CAPTION), _cosines(contexts, captions, centring)


def four_terms(
    summaries: Sequence[Summary], annotations: Sequence[Annotation], encode: Encode, centring: str
) -> np.ndarray:
    """alpha, delta, beta, gamma of every pair, shape [4, summaries, memes], in float64 (Eq. 18-21).

    delta carries its minus. Memes stand in the order of `annotations`.
    """
    texts = {
        side: encode([getattr(summary, side) for summary in summaries], "query")
        for side in dict.fromkeys(QUERY_SIDE)
    }
    return np.stack(
        [
            sign
            * _cosines(texts[query], encode([getattr(a, side) for a in annotations], "document"), centring)
            for query, side, sign in zip(QUERY_SIDE, MEME_SIDE, SIGNS, strict=True)
        ]
    )


def _cosines(left: np.ndarray, right: np.ndarray, centring: str) -> np.ndarray:
    if centring == "attribute":
        left, right = centre(left), centre(right)
    return left.astype(np.float64) @ right.astype(np.float64).T


def random_order(asked: Sequence[Query], n_memes: int, seed: int, draw: int) -> np.ndarray:
    """One random ranking a turn, [turns, memes]; `draw` numbers independent repetitions."""
    keys = [(*q.key, draw) for q in asked]
    return np.array([seeds.rng(seed, "random ranking", *key).permutation(n_memes) for key in keys])
