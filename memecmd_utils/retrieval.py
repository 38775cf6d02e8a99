"""Stage 04: which meme fits the next turn, and whether to send it (arXiv 2507.00891, Section 4.2, Eq. 18-25).

Four cosines are one inner product. A meme is the row [S+, S-, E, Psi] of unit vectors, a turn has S, E and
Psi; T = w1 S.S+ - w2 S.S- + w3 E.E_m + w4 Psi.Psi_m. A threshold that decays since the last meme decides
whether the best meme is sent; strategies choose which.
"""

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from memecmd_utils import files, statistics
from memecmd_utils.files import ExtraMissing, StageOutputError
from memecmd_utils.schemas import RELEASED, Annotation, Candidate, Choice, Dialogue, Placement, Summary
from memecmd_utils.settings import Profile

MEME_SIDE = ("s_plus", "s_minus", "emotion", "motivation")
QUERY_FIELDS = ("scenario", "emotion", "motivation")
"""S, E, Psi by their names in a summary."""
ASKED = [0, 0, 1, 2]
"""Which of S, E, Psi meets each text of a meme."""
COMPONENTS = ("alpha", "delta", "beta", "gamma")
SIGNS = np.array([1.0, -1.0, 1.0, 1.0])
"""delta carries its own minus (Eq. 19). Eq. 20 prints a minus for beta too, against its own text: plus."""
LEARNED, RERANKED = "learned", "reranked"
"""The strategies that go by weights fitted on graded memes (`learned.py`) and by a model's choice among the
best memes (`reranking.py`)."""
AUTHORS_WEIGHTS = (0.3, 0.2, 0.2, 0.7)
"""Of S+, S-, E and Psi in `retrieve.py` of the authors' release; the text of the paper names none."""
LEARNED_PENALTY = 0.0
"""Delta of Eq. 23 for `learned`, whose gate goes by its promise: its last meme has no effect."""
NOISE = 1e-5
"""Distance from the mean below which a unit row has no direction: float32 vectors do not say more."""
EXTRA, ROUNDING, TURNS_AT_ONCE = 16, 1e-3, 1024
"""Memes beside the top K that may belong there, and how far float32 errs in a cosine at the most: a sum of n
products errs by n * 6e-8 (Higham 2002, Lemma 3.1), and n is 9,216 in the paper's run."""

Encode = Callable[[Sequence[str], str], np.ndarray]
"""Texts and side (`query` or `document`) to unit vectors, [texts, dim]."""


# --- The index: memes and turns as vectors


def centre(vectors: np.ndarray, mean: np.ndarray | None = None) -> np.ndarray:
    """Subtract the mean (by default their own) from unit vectors [n, dim] and scale back to unit length.

    E5 puts all texts into a narrow cone (cosines 0.85-0.95); without this the constant part of every cosine
    drowns what differs. A single vector is left as it is. A row that lies at the mean becomes zero.
    """
    if mean is None:
        if len(vectors) < 2:
            return vectors
        if np.ptp(vectors, axis=0).max() < NOISE:  # thousands of equal rows: their float32 mean errs by 1e-4
            return np.zeros_like(vectors)
        mean = vectors.mean(axis=0)
    gaps = vectors - mean
    length = np.linalg.norm(gaps, axis=1, keepdims=True)
    return gaps / np.where(length >= NOISE, length, np.inf).astype(gaps.dtype)


@dataclass(frozen=True)
class MemeIndex:
    """A library as unit vectors: `rows` [memes, 4 * dim], blocks in the order of `MEME_SIDE`."""

    meme_ids: tuple[str, ...]
    rows: np.ndarray
    propose: Callable[[np.ndarray, int], np.ndarray] | None = None
    """Of a library on disk: weighted queries [turns, 4 * dim] and n to n positions a turn, -1 for none."""
    _folded: dict[tuple[float, ...], np.ndarray] = field(default_factory=dict, repr=False, compare=False)

    @property
    def dim(self) -> int:
        """Dimension of one block."""
        return self.rows.shape[1] // 4

    @cached_property
    def id_ranks(self) -> np.ndarray:
        """Place of each meme's id among all ids in their order, [memes]: equal scores go by it."""
        ranks = np.empty(len(self.meme_ids), dtype=np.int64)
        ranks[np.argsort(np.array(self.meme_ids, dtype=str), kind="stable")] = np.arange(len(ranks))
        return ranks

    def fold(self, weights: Sequence[float]) -> np.ndarray:
        """Columns [w1 S+ - w2 S-, w3 E, w4 Psi], float32 [3 * dim, memes], kept until the weights change.

        S meets S+ and S-, so a turn [S, E, Psi] needs three blocks instead of four (Eq. 22).
        """
        key = tuple(map(float, weights))
        if key not in self._folded:
            s_plus, s_minus, emotion, motivation = np.split(self.rows, 4, axis=1)
            w1, w2, w3, w4 = np.float32(key)
            self._folded.clear()
            self._folded[key] = np.hstack([w1 * s_plus - w2 * s_minus, w3 * emotion, w4 * motivation]).T
        return self._folded[key]


def build_index(meme_ids: Sequence[str], blocks: Sequence[np.ndarray]) -> MemeIndex:
    """Stack the four attribute matrices, each [memes, dim] and of unit rows, into one index."""
    return MemeIndex(tuple(meme_ids), np.hstack(blocks).astype(np.float32, copy=False))


def build_queries(parts: Iterable[np.ndarray]) -> np.ndarray:
    """Stack vectors of S, E and Psi, each [turns, dim], to queries [turns, 3, dim]."""
    return np.stack(list(parts), axis=1).astype(np.float32)


def weigh(queries: np.ndarray, weights: Sequence[float]) -> np.ndarray:
    """[w1 S, -w2 S, w3 E, w4 Psi], [turns, 4 * dim]: times the rows of an index it is T (Eq. 22)."""
    weighted = queries[:, ASKED] * (np.asarray(weights) * SIGNS).astype(np.float32)[:, None]
    return weighted.reshape(len(queries), -1)


def index_library(
    annotations: Sequence[Annotation], encode: Encode, profile: Profile, folder: Path | None = None
) -> MemeIndex:
    """Index the annotated memes; one that is not annotated, or unsafe, cannot be retrieved.

    From `FROM_MEMES` memes on the library is kept in `folder` (None: in memory, whatever its size). Raises
    `StageOutputError` where no meme is usable.
    """
    usable, centring = [a for a in annotations if a.usable], profile.retrieval.centring
    if not usable:
        raise StageOutputError("no meme has a usable annotation, so nothing can be retrieved")
    if folder is not None and len(usable) >= FROM_MEMES:
        return index_on_disk(folder, usable, encode, centring == "attribute")
    return index_of(usable, encode, centring)


def index_of(annotations: Sequence[Annotation], encode: Encode, centring: str) -> MemeIndex:
    """The index of usable annotations in memory; `centring` as in the profile."""
    blocks = encode_memes(annotations, encode)
    if centring == "attribute":
        blocks = [centre(block) for block in blocks]
    return build_index([a.meme_id for a in annotations], blocks)


def encode_memes(annotations: Sequence[Annotation], encode: Encode) -> list[np.ndarray]:
    """The four attributes of memes, [memes, dim] each."""
    return [encode([getattr(a, name) for a in annotations], "document") for name in MEME_SIDE]


# --- Scores (Eq. 18-22) and the best memes (Eq. 24)


class Ranking(NamedTuple):
    """Top K of every turn: `memes` and `scores` [turns, K], `components` [turns, K, 4].

    `memes` are positions in the index. A turn that could not be ranked has -1, -inf and 0.
    """

    memes: np.ndarray
    scores: np.ndarray
    components: np.ndarray


def combine(terms: np.ndarray, weights: Sequence[float]) -> np.ndarray:
    """T = w1 alpha + w2 delta + w3 beta + w4 gamma from terms [4, ...] (Eq. 22).

    Added term by term: a matrix product may add in another order with another number of threads or pairs.
    """
    return sum(w * term for w, term in zip(np.asarray(weights, dtype=terms.dtype), terms, strict=True))


def component_matrices(index: MemeIndex, queries: np.ndarray, dtype: type = np.float64) -> np.ndarray:
    """alpha, delta, beta, gamma of every pair, [4, turns, memes] (Eq. 18-21); for small libraries."""
    rows, asked = (vectors.astype(dtype, copy=False) for vectors in (index.rows, queries))
    parts = zip(SIGNS.astype(dtype), ASKED, np.split(rows, 4, axis=1), strict=True)
    return np.stack([sign * (asked[:, part] @ block.T) for sign, part, block in parts])


def pair_components(index: MemeIndex, queries: np.ndarray, memes: np.ndarray) -> np.ndarray:
    """The four components of chosen pairs in float64: positions [turns, n] to [turns, n, 4]; of -1 it is 0.

    Summed pair by pair, so a value depends on its two vectors alone, not on how the batch was cut.
    """
    out = np.zeros((*memes.shape, 4))
    for turn, (query, chosen) in enumerate(zip(queries, memes, strict=True)):
        there = np.flatnonzero(chosen >= 0)
        product = index.rows[chosen[there]].reshape(len(there), 4, index.dim).astype(np.float64)
        product *= query[ASKED]
        out[turn, there] = product.sum(axis=2)
    return out * SIGNS


def top_k(
    index: MemeIndex,
    queries: np.ndarray,
    weights: Sequence[float],
    k: int,
    components: np.ndarray | None = None,
) -> Ranking:
    """The K best memes of every turn of queries [turns, 3, dim] (Eq. 24); equal scores go by meme id.

    A float32 product (or `component_matrices` at hand, or the proposals of a library on disk) finds K + 16
    candidates; those that rounding may have put in a wrong place are scored again in float64, to nine digits.
    """
    k, n = (min(most, len(index.meme_ids)) for most in (k, k + EXTRA))
    parts = []
    for start in range(0, max(1, len(queries)), TURNS_AT_ONCE):
        part = slice(start, start + TURNS_AT_ONCE)
        batch = queries[part]
        if index.propose is not None:
            near = index.propose(weigh(batch, weights), n)
        else:
            if components is None:
                rough = batch.reshape(len(batch), 3 * index.dim) @ index.fold(weights)
            else:
                rough = combine(components[:, part], weights)
            near = np.argpartition(rough, -n, axis=1)[:, -n:]
            found = np.take_along_axis(rough, near, axis=1)
            near[found < np.partition(found, -k, axis=1)[:, -k, None] - ROUNDING * np.abs(weights).sum()] = -1
        near[~batch.any(axis=(1, 2))] = -1  # a turn without a summary
        exact = pair_components(index, batch, near)
        total = np.where(near < 0, -np.inf, np.round(combine(np.moveaxis(exact, 2, 0), weights), 9))
        best = np.lexsort((index.id_ranks[near], -total), axis=1)[:, :k]
        ranked = (np.take_along_axis(values, best, axis=1) for values in (near, total))
        parts.append((*ranked, np.take_along_axis(exact, best[:, :, None], axis=1)))
    return Ranking(*map(np.concatenate, zip(*parts, strict=True)))


def order(scores: np.ndarray, meme_ids: Sequence[str]) -> np.ndarray:
    """Positions of the memes from best to worst at every turn [turns, memes]; equal scores go by meme id."""
    by_id = np.argsort(np.array(meme_ids, dtype=str))
    # Rounded: the last digits of a matrix product depend on the number of threads.
    return by_id[np.argsort(-np.round(scores[:, by_id], 9), axis=1, kind="stable")]


@dataclass(frozen=True)
class ScoredDialogue:
    """One dialogue's turns 2..T: their queries [n, 3, dim] and their ranking."""

    dialogue: Dialogue
    queries: np.ndarray
    ranking: Ranking

    @property
    def turns(self) -> list[int]:
        """Their numbers."""
        return [summary.turn for summary in self.dialogue.summaries]

    @property
    def top1(self) -> np.ndarray:
        """Best score of every turn, [n]."""
        return self.ranking.scores[:, 0]


Means = Sequence[np.ndarray | None]
"""What S, E and Psi are centred by, [dim] each; None: by the mean of the turns at hand."""
OWN_MEANS: Means = (None, None, None)


def score_dialogues(
    dialogues: Sequence[Dialogue],
    index: MemeIndex,
    encode: Encode,
    profile: Profile,
    means: Means = OWN_MEANS,
) -> list[ScoredDialogue]:
    """Rank the library at every turn 2..T of all dialogues, in one batch.

    A turn without a usable summary gets zero queries and scores of -inf: the gate never opens there, but the
    turn still counts. Raises `StageOutputError` where no turn has one, or all have the same.
    """
    summaries = [summary for dialogue in dialogues for summary in dialogue.summaries]
    usable = np.array([not summary.unscored for summary in summaries], dtype=bool)
    if not usable.any():
        raise StageOutputError("no turn has a usable summary, so nothing can be retrieved")
    scored = [summary for summary in summaries if not summary.unscored]
    rows = queries_of(scored, encode, profile.retrieval.centring, means)
    if not rows.any():
        raise StageOutputError("the summaries of all turns are equal, which needs centring=none")
    queries = np.zeros((len(summaries), *rows.shape[1:]), dtype=rows.dtype)
    queries[usable] = rows
    if index.propose is not None:
        drawn = statistics.rng(profile.seed, "turns that the search is tuned on").permutation(len(queries))
        index = tuned(index, queries[drawn[:64]], profile.retrieval.weights)
    ranked, start, out = top_k(index, queries, profile.retrieval.weights, profile.retrieval.top_k), 0, []
    for dialogue in dialogues:
        part = slice(start, start := start + len(dialogue.summaries))
        out.append(ScoredDialogue(dialogue, queries[part], Ranking(*(rows[part] for rows in ranked))))
    return out


def queries_of(
    summaries: Sequence[Summary], encode: Encode, centring: str, means: Means = OWN_MEANS
) -> np.ndarray:
    """Queries [turns, 3, dim] of usable summaries; `centring` as in the profile."""
    parts = [encode([getattr(summary, name) for summary in summaries], "query") for name in QUERY_FIELDS]
    if centring == "attribute":
        parts = [centre(part, mean) for part, mean in zip(parts, means, strict=True)]
    return build_queries(parts)


def candidates(scored: Sequence[ScoredDialogue], index: MemeIndex, source: str) -> list[Candidate]:
    """The top K of every turn as records."""
    return [
        Candidate(
            dialogue_id=item.dialogue.dialogue_id, turn=turn, rank=rank, meme_id=index.meme_ids[meme],
            score=float(score), source=source, **dict(zip(COMPONENTS, parts.tolist(), strict=True)),
        )
        for item in scored
        for turn, *ranked in zip(item.turns, *item.ranking, strict=True)
        for rank, (meme, score, parts) in enumerate(zip(*ranked, strict=True), start=1)
        if meme >= 0
    ]  # fmt: skip


# --- The gate: whether a meme is sent at all (Eq. 23)

BISECTION_STEPS = 60
EQUAL = 1e-9
"""Scores no further apart than this are equal: they are rounded to nine digits."""


@dataclass(frozen=True)
class Gate:
    """theta_t = theta0 + penalty * exp(-decay * k), k turns after the session's last meme (Eq. 23).

    A rule, of which `fit_gates` makes a gate, may leave theta0 open; `scale` says whether it compares scores
    as they are (`raw`) or z = (T - mean) / std, by the best scores that it is fitted on. `fold` is the half
    of the dialogues that these come from (`self`: its own).
    """

    theta0: float | None
    penalty: float
    decay: float
    scale: Literal["standard", "raw"] = "raw"
    mean: float = 0.0
    std: float = 1.0
    fold: str = "self"

    def scaled(self, scores: np.ndarray) -> np.ndarray:
        """Put raw scores on the gate's scale."""
        return (np.asarray(scores, dtype=np.float64) - self.mean) / self.std


class Gated(NamedTuple):
    """What gates did at turns [..., dialogues, longest]: scores on their scale, thresholds and decisions.

    `fitted`: the gate of the dialogues of each half, for every one of the sets of scores.
    """

    scores: np.ndarray
    thresholds: np.ndarray
    sent: np.ndarray
    fitted: dict[str, list[Gate]]


def standard_scale(scores: np.ndarray) -> tuple[float, float]:
    """Mean and deviation of best scores of any shape; -inf, no score, does not count. Equal scores have 1."""
    scores = scores[np.isfinite(scores)]
    return float(scores.mean()), float(scores.std()) if np.ptp(scores) > EQUAL else 1.0


def pad(dialogues: Sequence[Sequence[float]], fill: float = -np.inf) -> np.ndarray:
    """Values of dialogues of any length as [dialogues, longest], filled up with -inf as of unscored turns."""
    out = np.full((len(dialogues), max(map(len, dialogues), default=0)), fill)
    for row, scores in zip(out, dialogues, strict=True):
        row[: len(scores)] = scores
    return out


def simulate(
    scores: np.ndarray, gate: Gate, theta0: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Thresholds and decisions over scaled best scores [..., turns]: a meme goes out if score > theta_t.

    k counts turns since the last meme of the session, whoever sent it; a turn without a score (-inf) counts,
    and before the first meme k is infinite. `theta0`, broadcast over the leading axes, replaces the gate's.
    """
    turns = scores.shape[-1]
    rises = np.array([*(gate.penalty * math.exp(-gate.decay * k) for k in range(turns)), 0.0])
    since = np.full(scores.shape[:-1], turns)  # the last of `rises`: no meme so far
    thresholds, sent = np.empty(scores.shape), np.zeros(scores.shape, dtype=bool)
    for turn in range(turns):
        since = np.minimum(since + 1, turns)
        thresholds[..., turn] = (gate.theta0 if theta0 is None else theta0) + rises[since]
        sent[..., turn] = scores[..., turn] > thresholds[..., turn]
        since = np.where(sent[..., turn], 0, since)
    return thresholds, sent


def calibrate_theta0(
    scores: np.ndarray, gate: Gate, wanted_rate: float | np.ndarray, turns: int
) -> np.ndarray:
    """theta0, [...], whose simulated meme rate is nearest to `wanted_rate`, by bisection.

    `scores` [..., dialogues, longest] are those of `pad`, of which `turns` count. The gate has memory, so the
    rate need not fall evenly; the best value met on the way is kept.
    """
    low = np.where(np.isfinite(scores), scores, np.inf).min(axis=(-2, -1)) - gate.penalty - 1e-6
    high = scores.max(axis=(-2, -1))
    best, best_gap = high, np.full(high.shape, np.inf)
    for _ in range(BISECTION_STEPS):
        middle = (low + high) / 2
        rate = simulate(scores, gate, middle[..., None])[1].sum(axis=(-2, -1)) / turns
        gap = np.abs(rate - wanted_rate)
        best, best_gap = np.where(gap < best_gap, middle, best), np.minimum(gap, best_gap)
        low, high = np.where(rate > wanted_rate, middle, low), np.where(rate > wanted_rate, high, middle)
    return best


def halves(dialogues: Sequence[Dialogue]) -> dict[str, str]:
    """Split dialogues into halves `a` and `b`, alternating within each kind in order of id."""
    ordered = sorted((dialogue.kind, dialogue.dialogue_id) for dialogue in dialogues)
    return {name: "ab"[position % 2] for position, (_, name) in enumerate(ordered)}


def rule_of(profile: Profile, penalty: float | None = None) -> Gate:
    """The gate of a profile, not fitted; `penalty` takes the place of its Delta."""
    knobs = profile.retrieval
    theta0 = None if knobs.theta0 == "auto" else knobs.theta0
    delta = knobs.threshold_penalty if penalty is None else penalty
    return Gate(theta0, delta, knobs.threshold_decay, knobs.score_scale)


def fit_gates(
    top1: np.ndarray, rule: Gate, rate: float | np.ndarray, turns: int, fold: str = "self"
) -> list[Gate]:
    """A gate for each of several sets of best scores, [sets, dialogues, longest], of which `turns` count.

    Scale and theta0 are fitted on these scores, so that memes are sent at `rate` of the turns ([sets], or one
    for all); at a rate of 0 nothing is sent.
    """
    scales = [standard_scale(scores) if rule.scale == "standard" else (0.0, 1.0) for scores in top1]
    gates = [replace(rule, mean=mean, std=std, fold=fold) for mean, std in scales]
    if rule.theta0 is not None:
        return gates
    scaled = np.stack([gate.scaled(scores) for gate, scores in zip(gates, top1, strict=True)])
    theta0 = np.where(np.asarray(rate) > 0, calibrate_theta0(scaled, rule, rate, turns), np.inf)
    return [replace(gate, theta0=theta) for gate, theta in zip(gates, theta0.tolist(), strict=True)]


def run_gate(
    top1: np.ndarray,
    dialogues: Sequence[Dialogue],
    rule: Gate,
    wanted_rate: float,
    like: np.ndarray | None = None,
    split: Mapping[str, str] | None = None,
) -> Gated:
    """Let gates decide at all turns of dialogues (Eq. 23), each fitted on the other half of them.

    `top1` [..., dialogues, longest] are best scores at turns 2..T, -inf at one without a score, which counts
    in k and in the rate, and past the end; leading axes are sets that do not touch each other. Where the
    other half has no score the gate is fitted on all dialogues that have one: fold `self`. The rate is
    `wanted_rate`, or that of the memes in `like`, booleans of the same shape. `split` are other `halves`.
    """
    sets, split = top1.reshape(-1, *top1.shape[-2:]), split or halves(dialogues)
    half = np.array([split[dialogue.dialogue_id] for dialogue in dialogues])
    turns = np.array([len(dialogue.summaries) for dialogue in dialogues])
    has_score = np.isfinite(sets).any(axis=(0, 2))
    scaled, thresholds, sent = np.full(sets.shape, -np.inf), np.empty(sets.shape), np.zeros(sets.shape, bool)
    fitted: dict[str, list[Gate]] = {}
    for mine, fold in (("a", "b"), ("b", "a")):
        here, is_training = half == mine, half == fold
        if not has_score[is_training].any():
            is_training, fold = has_score, "self"
        n_turns, rate = int(turns[is_training].sum()), wanted_rate
        if like is not None:
            rate = like.reshape(sets.shape)[:, is_training].sum(axis=(1, 2)) / max(1, n_turns)
        fitted[mine] = fit_gates(sets[:, is_training], rule, rate, n_turns, fold)
        for number, gate in enumerate(fitted[mine]):
            scaled[number, here] = gate.scaled(sets[number, here])
        theta0 = np.array([[gate.theta0] for gate in fitted[mine]])
        thresholds[:, here], sent[:, here] = simulate(scaled[:, here], rule, theta0)
    return Gated(*(part.reshape(top1.shape) for part in (scaled, thresholds, sent)), fitted)


def gate_dialogues(
    scored: Sequence[ScoredDialogue],
    profile: Profile,
    penalty: float | None = None,
    split: Mapping[str, str] | None = None,
) -> Gated:
    """`run_gate` over ranked dialogues by the profile's rule, [dialogues, longest]."""
    top1, dialogues = pad([item.top1 for item in scored]), [item.dialogue for item in scored]
    rule, rate = rule_of(profile, penalty), profile.retrieval.wanted_rate
    return run_gate(top1, dialogues, rule, rate, split=split)


# --- Strategies (Eq. 25): which meme is placed where


def pick_memes(
    strategy: str, ranking: Ranking, sent: np.ndarray, n_memes: int, profile: Profile, name: str
) -> list[tuple[int, int, int | None]]:
    """Pick memes in one dialogue: a list of (row, meme position, rank or None).

    greedy: top 1 (Eq. 25), of its own ranking learned. sampling: uniform among the top K. random: each turn
    with probability `random_rate`, uniform over the library. random_same_turns: uniform at the gate's own
    turns.
    """
    rng = statistics.rng(profile.seed, "selection", strategy, name)
    choices: list[tuple[int, int, int | None]] = []
    for row, best in enumerate(ranking.memes.tolist()):
        # Draws happen at every turn, so that a moved gate does not shift later choices.
        rank, meme, coin = int(rng.integers(len(best))), int(rng.integers(n_memes)), rng.random()
        opens = coin < profile.retrieval.random_rate if strategy == "random" else sent[row]
        if opens and strategy in ("greedy", LEARNED):
            choices.append((row, best[0], 1))
        elif opens and strategy == "sampling":
            choices.append((row, best[rank], rank + 1))
        elif opens:
            choices.append((row, meme, best.index(meme) + 1 if meme in best else None))
    return choices


def place(
    scored: Sequence[ScoredDialogue],
    index: MemeIndex,
    profile: Profile,
    by_learned: Sequence[ScoredDialogue] = (),
    choices: Sequence[Choice] = (),
    split: Mapping[str, str] | None = None,
) -> list[Placement]:
    """Place memes in all dialogues under every strategy of the profile, at turns 2..T.

    `by_learned` is what `learned.rank_dialogues` made of the same dialogues, in their order; without it
    nothing is placed by `learned`. Its promise goes through the same gate, without a rise after a meme.
    `choices` are those of `reranking.choose_memes`, which ask no gate. `split` are other `halves`.
    """
    knobs, gated = profile.retrieval, gate_dialogues(scored, profile, split=split)
    learned_gated = gate_dialogues(by_learned, profile, LEARNED_PENALTY, split) if by_learned else gated
    half_of = split or halves([item.dialogue for item in scored])
    chosen = {(c.dialogue_id, c.turn): c for c in choices if c.meme_id}
    place_of = {meme: place for place, meme in enumerate(index.meme_ids)}
    strategies = [name for name in knobs.strategies if not name.startswith(RELEASED)]
    strategies = [name for name in strategies if name != LEARNED or by_learned]
    out: list[Placement] = []
    for number, item in enumerate(scored):
        name, speakers = item.dialogue.dialogue_id, {t.turn: t.speaker for t in item.dialogue.turns}
        mine = {row: chosen[name, t] for row, t in enumerate(item.turns) if (name, t) in chosen}
        for strategy in strategies:
            gates, decided = gated, strategy not in ("random", RERANKED)
            if strategy == RERANKED:
                picks = [(row, place_of[choice.meme_id], None) for row, choice in mine.items()]
            else:
                ranking = item.ranking
                if strategy == LEARNED:
                    gates, ranking = learned_gated, by_learned[number].ranking
                picks = pick_memes(strategy, ranking, gates.sent[number], len(index.meme_ids), profile, name)
            for row, meme, rank in picks:
                parts = pair_components(index, item.queries[row : row + 1], np.array([[meme]]))[0, 0]
                out.append(
                    Placement(
                        dialogue_id=name, turn=item.turns[row], speaker=speakers[item.turns[row]],
                        strategy=strategy, meme_id=index.meme_ids[meme], rank=rank,
                        score=round(float(parts @ knobs.weights), 9) if np.isfinite(item.top1[row]) else None,
                        gate_score=float(gates.scores[number, row]) if decided else None,
                        threshold=float(gates.thresholds[number, row]) if decided else None,
                        fold=gates.fitted[half_of[name]][0].fold if decided else "none",
                        reason=mine[row].reason if strategy == RERANKED else "",
                        source="computed", profile=profile.name, seed=profile.seed,
                    )
                )  # fmt: skip
    return out


def closed_gate(profile: Profile, placements: Sequence[Placement]) -> str:
    """That no strategy which asks the gate sends a meme in a run, in a sentence; empty where one does."""
    gated = set(profile.retrieval.strategies) & {"greedy", "sampling", "random_same_turns"}
    if not gated or any(placed.strategy in gated for placed in placements):
        return ""
    names = ", ".join(sorted(gated))
    return f"The gate never opens, so {names} send nothing; theta0=auto fits it to `wanted_rate`"


# --- A library too large for memory: FAISS proposes candidates, rows on disk rank them

FROM_MEMES, FOLDER = 100_000, "library_index"
"""From so many memes on a library is kept on disk; below, every meme is compared with every turn."""
DIMS, PROPOSED, AT_ONCE = 384, 96, 8_192
"""Dimensions that FAISS keeps of a row, candidates it proposes for a turn, memes encoded at a time."""
SAMPLE_BYTES, PCA_ROWS = 512 << 20, 4_096
"""Float32 bytes of the rows that FAISS learns lists and codes from; rows that it learns dimensions from."""


def index_on_disk(
    folder: Path, annotations: Sequence[Annotation], encode: Encode, centring: bool
) -> MemeIndex:
    """The library of these annotations in `folder`, made there unless it was made of the same before.

    The folder holds `rows.f16`, `index.faiss` and, written last, `library.json`. Any weights can be asked
    without a new index: they stand on the query's side.
    """
    known, note = hashlib.sha256(f"{centring}".encode()), folder / "library.json"
    for a in annotations:
        known.update(json.dumps([a.meme_id, *(getattr(a, name) for name in MEME_SIDE)]).encode())
    known.update(encode([annotations[0].s_plus], "document").tobytes())  # of another embedder it is another
    made_from = {"made_from": known.hexdigest()}
    if not note.is_file() or json.loads(note.read_text(encoding="utf-8")) != made_from:
        note.unlink(missing_ok=True)
        parts = (annotations[start : start + AT_ONCE] for start in range(0, len(annotations), AT_ONCE))
        write_rows(folder, (np.hstack(encode_memes(part, encode)) for part in parts), centring)
        write_faiss(folder, len(annotations))
        files.write_json(note, made_from)
    return open_on_disk(folder, [a.meme_id for a in annotations])


def write_rows(folder: Path, blocks: Iterable[np.ndarray], centring: bool) -> None:
    """Write stacked rows [n, 4 * dim], block by block, as float16, each quarter centred by its mean."""
    folder.mkdir(parents=True, exist_ok=True)
    total, n = np.zeros(1), 0
    with (folder / "rows.f16").open("wb") as file:
        for part in blocks:
            file.write(part.astype(np.float16).tobytes())
            total, n = total + part.sum(axis=0, dtype=np.float64), n + len(part)
    rows, means = np.memmap(file.name, np.float16, "r+", shape=(n, len(total))), np.split(total / n, 4)
    for start in range(0, n, AT_ONCE) if centring else ():
        parts = np.split(rows[start : start + AT_ONCE].astype(np.float32), 4, axis=1)
        rows[start : start + AT_ONCE] = np.hstack([centre(p, m) for p, m in zip(parts, means, strict=True)])


def write_faiss(folder: Path, n: int) -> None:
    """Index n rows: about 2 sqrt(n) lists of 4-bit codes, and a byte a dimension to sort what they propose.

    Turns lie outside the cloud of the memes (S stands in them with a plus and with a minus), so many lists
    have to be looked into; only such cheap codes allow that.
    """
    faiss, file = import_faiss(), folder / "rows.f16"
    width = file.stat().st_size // (2 * n)
    dims, step = min(DIMS, width), max(1, 4 * width * n // SAMPLE_BYTES)

    def blocks() -> Iterator[np.ndarray]:  # read, not mapped: pages of a map count as memory
        for start in range(0, n, AT_ONCE):
            count = min(AT_ONCE, n - start) * width
            yield np.fromfile(file, np.float16, count, offset=2 * width * start).reshape(-1, width)

    sample = np.concatenate([block[::step] for block in blocks()]).astype(np.float32)
    projection = faiss.PCAMatrix(width, dims, 0, True)
    projection.train(sample[:PCA_ROWS])
    lists, codes = 2 ** (1 + round(math.log2(math.sqrt(n)))), dims // 3 if dims % 3 == 0 else dims
    kind = f"IVF{lists},PQ{codes}x4fs,Refine(SQ8)"
    inner = faiss.index_factory(dims, kind, faiss.METRIC_INNER_PRODUCT)
    index = faiss.IndexPreTransform(projection, inner)
    index.train(sample)
    for block in blocks():
        index.add(block.astype(np.float32))
    faiss.write_index(index, str(folder / "index.faiss"))


def open_on_disk(folder: Path, meme_ids: Sequence[str]) -> MemeIndex:
    """Open a library on disk."""
    faiss = import_faiss()
    index = faiss.read_index(str(folder / "index.faiss"), faiss.IO_FLAG_MMAP_IFC)
    n_lists = faiss.extract_index_ivf(index).nlist

    def propose(weighted: np.ndarray, n: int, share: float = 0.25) -> np.ndarray:
        """Positions [turns, n or more], from this share of the lists."""
        lists = faiss.SearchParametersIVF(nprobe=max(1, round(share * n_lists)))
        refined = faiss.IndexRefineSearchParameters(k_factor=4, base_index_params=lists)
        looked_into = faiss.SearchParametersPreTransform(index_params=refined)
        return index.search(weighted, max(n, PROPOSED), params=looked_into)[1]

    rows = np.memmap(folder / "rows.f16", np.float16, "r").reshape(len(meme_ids), -1)
    return MemeIndex(tuple(meme_ids), rows, propose)


def tuned(index: MemeIndex, queries: np.ndarray, weights: Sequence[float], k: int = 10) -> MemeIndex:
    """The library on disk with the fewest lists that find 97 % of what all of them find for these turns."""

    def looking_into(share: float) -> tuple[MemeIndex, np.ndarray]:
        found = replace(index, propose=partial(index.propose, share=share))
        return found, top_k(found, queries, weights, k).memes

    true = looking_into(1.0)[1]
    for share in 2.0 ** np.arange(-9, 0.5, 0.5):
        found, memes = looking_into(share)
        if (memes[:, :, None] == true[:, None, :]).any(axis=1).mean() >= 0.97:
            break
    return found


def import_faiss() -> Any:
    """FAISS, or `ExtraMissing`."""
    try:
        import faiss
    except ImportError as error:
        raise ExtraMissing("so large a library needs faiss: pip install -e '.[scale]'") from error
    return faiss
