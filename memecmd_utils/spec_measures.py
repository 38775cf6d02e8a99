"""Study 9: what the memes of every world are worth, by every measure, as sums over dialogues.

A measure is a matrix of values, one for each turn and meme, and a strategy's mean is a sum of values over a
number of memes. For grades and text consistency both are exact expectations: Sampling is the mean over the
top K, Random the mean over the library (how often it sends cancels out of a mean). A judge has been asked
about single placed memes only, so there the run's own draws are made, shared by all worlds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from memecmd_utils import consistency, seeds
from memecmd_utils.judges import STOPPED
from memecmd_utils.llm_types import UNRECORDED
from memecmd_utils.schemas import Rating
from memecmd_utils.spec_worlds import RANDOMS, Ranked
from memecmd_utils.study_data import StudyData

ASKED_FROM = 0.9
"""Share of a world's placed memes that a judge must have been asked about."""
HALF = 0.5
"""How often the paper's Random sends."""


class Sums(NamedTuple):
    """Of one strategy, each [scorings, K, gates, readings of Random, dialogues] or 1 where all is the same.

    Readings of Random are `RANDOMS` for a measure that was asked, else `EXPECTED_RANDOMS`.

    The strategy's mean is `top` over `bottom`; of `placed` memes `asked` were put to the measure.
    """

    top: np.ndarray
    bottom: np.ndarray
    placed: np.ndarray
    asked: np.ndarray


@dataclass(frozen=True)
class Measure:
    """Values by the embedder that retrieves, [turns, memes]; nan is not known.

    `zero`: an unknown value counts as 0, otherwise the meme is left out. `asked` is None where the measure
    knows what it can of every meme, else where it was asked.
    """

    name: str
    values: Mapping[str, np.ndarray]
    zero: bool = False
    asked: np.ndarray | None = None

    def known(self, embedder: str) -> tuple[np.ndarray, np.ndarray]:
        """Values with 0 for unknown ones, and what each pair adds to the number of memes."""
        values = self.values[embedder]
        return np.nan_to_num(values), np.ones(values.shape) if self.zero else np.isfinite(values).astype(
            float
        )


def measures(data: StudyData, ratings: Sequence[Rating] = ()) -> list[Measure]:
    """Each grader with ungraded memes as 0 or left out, text consistency by position, every judge."""
    out = []
    for grader in data.truth.graders:
        values = dict.fromkeys(data.encoders, data.grades_of(grader))
        out.append(Measure(f"{grader}, ungraded as 0", values, zero=True))
        out.append(Measure(f"{grader}, ungraded left out", values))
    for name, back in (("consistency with u_t", 0), ("consistency with u_t-1", 1)):
        values = {e: text_consistency(data, other, back) for e, other in _others(data).items()}
        if len(values) == len(data.encoders) and all(np.isfinite(v).any() for v in values.values()):
            out.append(Measure(name, values))
    for judge in dict.fromkeys(r.judge for r in ratings):
        values, asked = _judged(data, [r for r in ratings if r.judge == judge])
        out.append(Measure(f"judge {judge}", dict.fromkeys(data.encoders, values), asked=asked))
    return out


def _others(data: StudyData) -> dict[str, str]:
    """For each embedder that retrieves one that did not: it must not measure its own choice."""
    names = list(data.encoders)
    return {name: next(n for n in names if n != name) for name in names if len(names) > 1}


def text_consistency(data: StudyData, embedder: str, back: int) -> np.ndarray:
    """50 (cos + 1) of every caption and u_t, or the turn `back` before it (Eq. 26), [turns, memes].

    A meme without any words has nan.
    """
    words = [consistency.meme_words(data.memes[name]) for name in data.meme_ids]
    texts = [q.dialogue.turns[q.turn - 1 - back].text for q in data.asked]
    encode = data.encoders[embedder]
    kept = [i for i, text in enumerate(words) if text]
    out = np.full((len(texts), len(words)), np.nan)
    if kept and texts:
        memes = encode([words[i] for i in kept], "document").astype(np.float64)
        out[:, kept] = consistency.score(encode(texts, "document").astype(np.float64) @ memes.T)
    return out


def _judged(data: StudyData, ratings: Sequence[Rating]) -> tuple[np.ndarray, np.ndarray]:
    """Mean overall score of every pair that was asked about, and which pairs those are.

    What is not on record, and what a judge that was stopped early was spared, was not asked.
    """
    row = {key: i for i, key in enumerate(data.keys)}
    column = {name: j for j, name in enumerate(data.meme_ids)}
    total, count, asked = (np.zeros((len(row), len(column))) for _ in range(3))
    for rating in ratings:
        i, j = row.get((rating.dialogue_id, rating.turn)), column.get(rating.meme_id)
        whole = rating.judge_unit == "meme" or rating.n_turns == data.profile.n_turns
        if i is None or j is None or not whole:
            continue
        asked[i, j] = max(asked[i, j], not rating.unscored.startswith((UNRECORDED, STOPPED)))
        if rating.overall is not None:
            total[i, j] += rating.overall
            count[i, j] += 1
    return np.where(count > 0, total / np.maximum(count, 1), np.nan), asked


def sums(data: StudyData, ranked: Ranked, sent: np.ndarray, measure: Measure) -> dict[str, Sums]:
    """Sums of `greedy`, `sampling` and `random` in every world; `sent` is [gates, scorings, turns]."""
    parts: list[dict[str, Sums]] = []
    for embedder in dict.fromkeys(s.embedder for s in ranked.scorings):
        own = np.array([s.embedder == embedder for s in ranked.scorings])
        make = _expected if measure.asked is None else _drawn
        parts.append(make(data, ranked.top[own], sent[:, own], measure, embedder, ranked.ks))
    return {
        name: Sums(*(np.concatenate(arrays) for arrays in zip(*(part[name] for part in parts), strict=True)))
        for name in parts[0]
    }


def by_dialogue(data: StudyData, values: np.ndarray) -> np.ndarray:
    """Sums over the turns of each dialogue, [..., turns] to [..., dialogues]."""
    return np.add.reduceat(values, [rows[0] for rows in data.rows_of.values()], axis=-1)


def _expected(
    data: StudyData, top: np.ndarray, sent: np.ndarray, measure: Measure, embedder: str, ks: Sequence[int]
) -> dict[str, Sums]:
    """Exact expectations for the scorings of one embedder; arrays are [gates, scorings, turns]."""
    value, count = measure.known(embedder)
    turns = np.arange(len(value))[:, None]

    def mean(matrix: np.ndarray, depth: int) -> np.ndarray:
        """Mean over the first memes of every turn, [scorings, turns]."""
        return matrix[turns, top[:, :, :depth]].mean(axis=-1)

    def gated(values: np.ndarray) -> np.ndarray:
        """By dialogue where the gate opens, [scorings, 1, gates, 1, dialogues]."""
        return by_dialogue(data, sent * values).transpose(1, 0, 2)[:, None, :, None]

    def anywhere(values: np.ndarray) -> np.ndarray:
        return np.broadcast_to(by_dialogue(data, values), (*sent.shape[1::-1], len(data.rows_of)))[:, None]

    ones = np.ones(len(value))
    whole, of_all = (matrix.mean(axis=1) for matrix in (value, count))
    random = [np.stack([anywhere(v), gated(v)[:, :, :, 0]], axis=3) for v in (whole, of_all)]
    first = [gated(mean(matrix, 1)) for matrix in (value, count)]
    among = [np.concatenate([gated(mean(m, k)) for k in ks], axis=1) for m in (value, count)]
    placed = gated(ones)
    everywhere = np.stack([anywhere(ones), placed[:, :, :, 0]], axis=3)
    return {
        "greedy": Sums(*first, placed, placed),
        "sampling": Sums(*among, placed, placed),
        "random": Sums(*random, everywhere, everywhere),
    }


class Luck(NamedTuple):
    """The draws of `selection.choose` at every turn: rank among K, meme of the library, coin."""

    rank: np.ndarray
    meme: np.ndarray
    coin: np.ndarray


def luck(data: StudyData, strategy: str, k: int) -> Luck:
    """One draw a turn, the same in every world, and in the run's own world the run's."""
    k, n = min(k, len(data.meme_ids)), len(data.meme_ids)
    drawn: dict[tuple[str, int], tuple[int, int, float]] = {}
    for dialogue in data.dialogues:
        rng = seeds.rng(data.profile.seed, "selection", strategy, dialogue.dialogue_id)
        for summary in dialogue.summaries:
            numbers = int(rng.integers(k)), int(rng.integers(n)), rng.random()
            drawn[dialogue.dialogue_id, summary.turn] = numbers
    return Luck(*map(np.array, zip(*(drawn[key] for key in data.keys), strict=True)))


def _drawn(
    data: StudyData, top: np.ndarray, sent: np.ndarray, measure: Measure, embedder: str, ks: Sequence[int]
) -> dict[str, Sums]:
    """As the run draws its memes, for the scorings of one embedder."""
    value, count = measure.known(embedder)
    turns = np.arange(len(value))
    asked = np.asarray(measure.asked)

    def of(memes: np.ndarray, where: np.ndarray) -> Sums:
        """Chosen `memes` [scorings, turns] at `where` [gates, scorings, turns]."""
        parts = (matrix[turns, memes] for matrix in (value, count, np.ones_like(value), asked))
        return Sums(*(by_dialogue(data, where * p).transpose(1, 0, 2)[:, None, :, None] for p in parts))

    def join(parts: Sequence[Sums], axis: int) -> Sums:
        return Sums(*(np.concatenate(arrays, axis=axis) for arrays in zip(*parts, strict=True)))

    ranks = [luck(data, "sampling", k).rank for k in ks]
    anyone, there = (luck(data, s, data.profile.top_k) for s in ("random", "random_same_turns"))
    rate = sent.mean(axis=-1, keepdims=True)
    where = {
        RANDOMS[0]: np.broadcast_to(anyone.coin < HALF, sent.shape),
        RANDOMS[1]: anyone.coin < rate,
        RANDOMS[2]: sent,
    }
    library = [np.broadcast_to(lucky.meme, top.shape[:2]) for lucky in (anyone, anyone, there)]
    return {
        "greedy": of(top[:, :, 0], sent),
        "sampling": join([of(top[:, turns, rank], sent) for rank in ranks], 1),
        "random": join([of(m, w) for m, w in zip(library, where.values(), strict=True)], 3),
    }
