"""Figures that say how a corpus of dialogues reads: copies, variety, lengths, alike scenarios."""

from collections.abc import Sequence
from itertools import combinations

import numpy as np

from memecmd_utils import utterance_rules
from memecmd_utils.schemas import Dialogue


def broken_rules(dialogues: Sequence[Dialogue], max_chars: int) -> list[str]:
    """Every rule of the prompts that an utterance breaks, as `dialogue/turn: rule`."""
    found = []
    for dialogue in dialogues:
        texts = [turn.text for turn in dialogue.turns]
        for turn, text in zip(dialogue.turns, texts, strict=True):
            for rule in utterance_rules.violations(text, texts[: turn.turn - 1], max_chars):
                found.append(f"{dialogue.dialogue_id}/{turn.turn}: {rule}")
    return found


def near_duplicates(texts: Sequence[str]) -> list[tuple[int, int]]:
    """Pairs of utterances that say the same words, by position (difflib ratio of 0.85 or more)."""
    return [
        (i, j) for i, j in combinations(range(len(texts)), 2) if utterance_rules.is_copy(texts[i], texts[j])
    ]


def distinct(texts: Sequence[str], n: int = 2) -> float:
    """Share of different character n-grams among all (Li et al., 2016); 1 where none comes twice."""
    grams = [text[i : i + n] for text in texts for i in range(len(text) - n + 1)]
    return len(set(grams)) / max(1, len(grams))


def lengths(texts: Sequence[str]) -> dict[str, float]:
    """Characters a turn: mean, standard deviation, and the 5th, 50th and 95th percentile."""
    counts = np.array([len(text) for text in texts])
    low, middle, high = map(float, np.percentile(counts, (5, 50, 95)))
    return {"mean": float(counts.mean()), "std": float(counts.std()), "p5": low, "p50": middle, "p95": high}


def closest(vectors: np.ndarray) -> float:
    """Highest cosine between two different rows of unit vectors [n, dim]."""
    cosines = vectors @ vectors.T
    np.fill_diagonal(cosines, -1.0)
    return float(cosines.max())
