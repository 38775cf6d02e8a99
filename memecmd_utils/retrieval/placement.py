"""From scores to placed memes: the strategies over calibrated gates (paper, Eq. 23-25, Section 5.3)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from memecmd_utils import statistics
from memecmd_utils.files import StageOutputError
from memecmd_utils.retrieval import large_library
from memecmd_utils.retrieval.gate import Gate, ScoreScale, Trace, calibrate_theta0, simulate, standard_scale
from memecmd_utils.retrieval.scoring import (
    COMPONENTS,
    MEME_SIDE,
    QUERY_FIELDS,
    Encode,
    MemeIndex,
    Ranking,
    at_all_turns,
    build_index,
    combine,
    component_matrices,
    pair_components,
    pair_values,
    stack_queries,
    top_k,
)
from memecmd_utils.schemas import Annotation, Candidate, Dialogue, Placement, Summary
from memecmd_utils.settings import Profile

LEARNED = "learned"
"""The strategy that goes by weights fitted on graded memes."""


@dataclass(frozen=True)
class ScoredDialogue:
    """One dialogue's turns 2..T: their queries [n, 4, dim] and their ranking."""

    dialogue: Dialogue
    turns: tuple[int, ...]
    queries: np.ndarray
    ranking: Ranking

    @property
    def top1(self) -> np.ndarray:
        """Best score of every turn, shape [n]."""
        return self.ranking.scores[:, 0]


def usable_annotations(annotations: Sequence[Annotation]) -> list[Annotation]:
    """Those that can be retrieved by; `StageOutputError` where there is none."""
    usable = [a for a in annotations if a.usable]
    if not usable:
        raise StageOutputError("no meme has a usable annotation, so nothing can be retrieved")
    return usable


def index_library(
    annotations: Sequence[Annotation],
    encode: Encode,
    profile: Profile,
    folder: Path | None = None,
    embedder: str = "",
) -> MemeIndex:
    """Index the annotated memes. One that is not annotated, or unsafe, cannot be retrieved.

    From `large_library.FROM_MEMES` memes on the library is kept in `folder` (None: in memory, whatever
    its size) and reused as long as texts, settings and `embedder`, the encoder's name and version, stay.
    """
    usable = usable_annotations(annotations)
    if folder is not None and len(usable) >= large_library.FROM_MEMES:
        return large_library.stored(usable, encode, profile, folder, embedder or profile.models.embedder)
    blocks = [encode([getattr(a, name) for a in usable], "document") for name in MEME_SIDE]
    return build_index([a.meme_id for a in usable], blocks, profile.retrieval.centring == "attribute")


def tuned(index: MemeIndex, dialogues: Sequence[Dialogue], encode: Encode, profile: Profile) -> MemeIndex:
    """The index, a large one set to the least work that finds the best memes of these dialogues' turns."""
    summaries = [s for dialogue in dialogues for s in dialogue.summaries if not s.unscored]
    if index.search is None or not summaries:
        return index
    return large_library.tune(index, encode_queries(summaries, index.dim, encode, profile), profile)


def encode_queries(summaries: Sequence[Summary], dim: int, encode: Encode, profile: Profile) -> np.ndarray:
    """The unweighted queries [turns, 4, dim] of usable summaries (Eq. 18 to 21)."""
    # One part at a time: the paper's queries fill 1.2 GB, and nothing of their size stands beside them.
    return stack_queries(
        (encode([getattr(summary, name) for summary in summaries], "query") for name in QUERY_FIELDS),
        (len(summaries), dim),
        centring=profile.retrieval.centring == "attribute",
    )


def score_dialogues(
    dialogues: Sequence[Dialogue], index: MemeIndex, encode: Encode, profile: Profile
) -> list[ScoredDialogue]:
    """Rank the library at every turn 2..T of all dialogues, in one batch.

    A turn without a usable summary gets zero queries and scores of -inf: the gate never opens there,
    but the turn still counts. Raises `StageOutputError` where no turn has one.
    """
    summaries = [summary for dialogue in dialogues for summary in dialogue.summaries]
    usable = np.array([not summary.unscored for summary in summaries], dtype=bool)
    if not usable.any():
        raise StageOutputError("no turn has a usable summary, so nothing can be retrieved")
    queries = encode_queries([s for s in summaries if not s.unscored], index.dim, encode, profile)
    ranking = top_k(index, queries, profile.retrieval.weights, profile.retrieval.top_k)
    if not usable.all():
        queries, ranking = at_all_turns(queries, usable, 0), ranking.at_all_turns(usable)
    return cut(dialogues, queries, ranking)


def cut(dialogues: Sequence[Dialogue], queries: np.ndarray, ranking: Ranking) -> list[ScoredDialogue]:
    """Each dialogue's part of what was found for the turns 2..T of all, one after another."""
    out, start = [], 0
    for dialogue in dialogues:
        part = slice(start, start + len(dialogue.summaries))
        start = part.stop
        turns = tuple(summary.turn for summary in dialogue.summaries)
        out.append(ScoredDialogue(dialogue, turns, queries[part], ranking.of_turns(part)))
    return out


def sample_scores(
    scored: Sequence[ScoredDialogue], index: MemeIndex, profile: Profile, limit: int = 200_000
) -> np.ndarray:
    """T of every pair of turn and meme, float32; of a seeded sample of `limit` pairs where there are more."""
    sizes = np.array([len(item.turns) for item in scored])
    pairs = int(sizes.sum()) * len(index.meme_ids)
    if pairs <= limit and index.search is None:
        parts = [
            combine(component_matrices(index, item.queries), profile.retrieval.weights).ravel()
            for item in scored
        ]
        return np.concatenate(parts).astype(np.float32) if parts else np.zeros(0, dtype=np.float32)
    rng = statistics.rng(profile.seed, "sample of scores")
    drawn = np.sort(rng.choice(pairs, size=min(limit, pairs), replace=False))
    turns, memes = np.divmod(drawn, len(index.meme_ids))
    dialogue = np.searchsorted(np.cumsum(sizes), turns, side="right")
    row = turns - (np.cumsum(sizes) - sizes)[dialogue]
    out = np.empty(len(drawn), dtype=np.float32)
    for number in np.unique(dialogue):
        mine = np.flatnonzero(dialogue == number)
        queries = scored[number].queries
        parts = pair_values(index, queries, row[mine], memes[mine])
        out[mine] = parts @ np.asarray(profile.retrieval.weights)
    return out


def scores_by_kind(
    scored: Sequence[ScoredDialogue], index: MemeIndex, profile: Profile, limit: int = 200_000
) -> dict[str, np.ndarray]:
    """What Figure 3 shows: `KIND scores` by `sample_scores` and `KIND top1`, the best score of each turn."""
    by_kind = {}
    for kind in ("news", "role"):
        mine = [item for item in scored if item.dialogue.kind == kind]
        top1 = np.concatenate([np.zeros(0), *(item.top1[np.isfinite(item.top1)] for item in mine)])
        if top1.size:
            by_kind |= {f"{kind} scores": sample_scores(mine, index, profile, limit), f"{kind} top1": top1}
    return by_kind


@dataclass(frozen=True)
class Calibration:
    """A gate with its scale, and the half of the dialogues it was fitted on."""

    gate: Gate
    scale: ScoreScale
    fold: str


def halves(dialogues: Sequence[Dialogue]) -> dict[str, str]:
    """Split dialogues into halves `a` and `b`, alternating within each kind in order of id."""
    by_kind: dict[str, list[str]] = {}
    for dialogue in dialogues:
        by_kind.setdefault(dialogue.kind, []).append(dialogue.dialogue_id)
    ordered = [name for kind in sorted(by_kind) for name in sorted(by_kind[kind])]
    return {name: "ab"[position % 2] for position, name in enumerate(ordered)}


def calibrate(scored: Sequence[ScoredDialogue], profile: Profile) -> dict[str, Calibration]:
    """For each half, the gate fitted on the other one.

    Where the other half has no score it is fitted on all that have one: fold `self`.
    """
    split = halves([item.dialogue for item in scored])
    out: dict[str, Calibration] = {}
    for half, other in (("a", "b"), ("b", "a")):
        fit = [item.top1 for item in scored if split[item.dialogue.dialogue_id] == other]
        fold = other
        if not any(np.isfinite(scores).any() for scores in fit):
            fit = [item.top1 for item in scored if np.isfinite(item.top1).any()]
            fold = "self"
        scale = standard_scale(fit) if profile.retrieval.score_scale == "standard" else ScoreScale()
        theta0 = profile.retrieval.theta0
        if theta0 == "auto":
            theta0 = calibrate_theta0(
                [scale.apply(scores) for scores in fit],
                profile.retrieval.threshold_penalty,
                profile.retrieval.threshold_decay,
                profile.retrieval.wanted_rate,
            )
        gate = Gate(theta0, profile.retrieval.threshold_penalty, profile.retrieval.threshold_decay)
        out[half] = Calibration(gate, scale, fold)
    return out


def candidates(scored: Sequence[ScoredDialogue], index: MemeIndex, source: str) -> list[Candidate]:
    """The top K of every turn as records."""
    return [
        Candidate(
            dialogue_id=item.dialogue.dialogue_id,
            turn=turn,
            rank=rank + 1,
            meme_id=index.meme_ids[meme],
            score=float(item.ranking.scores[row, rank]),
            source=source,
            **dict(zip(COMPONENTS, map(float, item.ranking.components[row, rank]), strict=True)),
        )
        for item in scored
        for row, turn in enumerate(item.turns)
        if np.isfinite(item.top1[row])
        for rank, meme in enumerate(item.ranking.memes[row])
    ]


def traces(
    scored: Sequence[ScoredDialogue], calibrations: Mapping[str, Calibration]
) -> dict[str, tuple[Calibration, np.ndarray, Trace]]:
    """Run each dialogue's gate once: dialogue id -> calibration, gate scores, trace."""
    split = halves([item.dialogue for item in scored])
    out = {}
    for item in scored:
        name = item.dialogue.dialogue_id
        calibration = calibrations[split[name]]
        gate_scores = calibration.scale.apply(item.top1)
        out[name] = (calibration, gate_scores, simulate(gate_scores, calibration.gate))
    return out


def choose(
    strategy: str, ranking: Ranking, sent: np.ndarray, n_memes: int, profile: Profile, name: str
) -> list[tuple[int, int, int | None]]:
    """Choose memes in one dialogue: a list of (row, meme position, rank or None).

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
) -> list[Placement]:
    """Place memes in all dialogues under every strategy of the profile, at turns 2..T.

    `by_learned` is what `learned.score_dialogues` made of the same dialogues; without it nothing is placed by
    `learned`. Its promise goes through the same gate, with `learned_penalty`.
    """
    gates = traces(scored, calibrate(scored, profile))
    own = profile.replace(threshold_penalty=profile.retrieval.learned_penalty)
    learned_gates = traces(by_learned, calibrate(by_learned, own)) if by_learned else {}
    learned_rankings = {item.dialogue.dialogue_id: item.ranking for item in by_learned}
    weights = np.asarray(profile.retrieval.weights)
    out: list[Placement] = []
    for item in scored:
        name = item.dialogue.dialogue_id
        speakers = {turn.turn: turn.speaker for turn in item.dialogue.turns}
        for strategy in profile.retrieval.strategies:
            decided = strategy != "random"  # Random asks no gate
            (calibration, gate_scores, trace), ranking = gates[name], item.ranking
            if strategy == LEARNED:
                if not by_learned:
                    continue
                (calibration, gate_scores, trace), ranking = learned_gates[name], learned_rankings[name]
            picks = choose(strategy, ranking, trace.sent, len(index.meme_ids), profile, name)
            for row, meme, rank in picks:
                parts = pair_components(index, item.queries[row : row + 1], np.array([[meme]]))[0, 0]
                out.append(
                    Placement(
                        dialogue_id=name,
                        turn=item.turns[row],
                        speaker=speakers[item.turns[row]],
                        strategy=strategy,
                        meme_id=index.meme_ids[meme],
                        rank=rank,
                        score=round(float(parts @ weights), 9) if np.isfinite(item.top1[row]) else None,
                        gate_score=float(gate_scores[row]) if decided else None,
                        threshold=float(trace.thresholds[row]) if decided else None,
                        fold=calibration.fold if decided else "none",
                        source="computed",
                        profile=profile.name,
                        seed=profile.seed,
                    )
                )
    return out


def calibrated_gates(calibrations: dict[str, Calibration]) -> dict[str, Any]:
    """The calibrated gates: for each half, theta0, the scale, and the half they were fitted on."""
    return {
        half: {
            "fitted_on": c.fold,
            "theta0": round(float(c.gate.theta0), 6),
            "penalty": c.gate.penalty,
            "decay": c.gate.decay,
            "score_mean": round(c.scale.mean, 6),
            "score_std": round(c.scale.std, 6),
        }
        for half, c in sorted(calibrations.items())
    }
