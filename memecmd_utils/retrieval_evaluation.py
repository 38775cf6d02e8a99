"""Retrieval measured against graded ground truth: R@K, MRR, nDCG@5, judged@5, bpref.

The measures are trec_eval's own code (`pytrec_eval-terrier`). R@K is, as in image-text retrieval, the
share of turns with a relevant meme among the top K (trec_eval's success_K): a turn has many relevant memes.

Only what is in the pool was judged. For a system that did not feed it (judged@5 below 1) all measures but
bpref are lower bounds, and bpref is none the fairer: a pool of depth 5 holds the misses at the top of the
systems that fed it and few of the others, so bpref favours those that did not.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from memecmd_utils import retrieval, seeds, statistics
from memecmd_utils import retrieval_systems as systems
from memecmd_utils.ground_truth import RELEVANT, Relevance
from memecmd_utils.profiles import Profile
from memecmd_utils.retrieval_systems import System

MEASURES = {
    "R@1": "success_1",
    "R@5": "success_5",
    "MRR": "recip_rank",
    "nDCG@5": "ndcg_cut_5",
    "bpref": "bpref",
}
COLUMNS = ("R@1", "R@5", "MRR", "nDCG@5", "judged@5", "bpref")
_SYSTEM = ("embedder", "centring", "uses")
_HEAD = (*_SYSTEM, *COLUMNS, "R@1 low", "R@1 high", "nDCG@5 low", "nDCG@5 high", "turns", "dialogues")
HEADS = (_HEAD, (*_SYSTEM, "minus", "measure", "mean", "low", "high", "p", "dialogues"), _HEAD)
"""Columns of the three tables: systems, differences, systems with the stricter relevance."""
RANDOM_DRAWS = 20
"""Random rankings whose mean stands for random: one alone would add its luck."""


class Ranking(NamedTuple):
    """One system's ranking of the memes at every turn, as trec_eval takes it."""

    keys: Sequence[tuple[str, int]]
    ranked: list[list[str]]
    """Meme ids, best first, one list a turn."""
    scored: dict[str, dict[str, float]]
    """The same with falling scores, by the turn's name."""


def ranking(order: np.ndarray, meme_ids: Sequence[str], keys: Sequence[tuple[str, int]]) -> Ranking:
    """Name the turns and memes of `order` [turns, memes], positions in `meme_ids`, best first."""
    ranked = np.array(meme_ids, dtype=object)[order].tolist()
    falling = [float(-rank) for rank in range(order.shape[1])]
    scored = {_name(key): dict(zip(row, falling, strict=True)) for key, row in zip(keys, ranked, strict=True)}
    return Ranking(keys, ranked, scored)


def _name(key: tuple[str, int]) -> str:
    return f"{key[0]}/{key[1]}"


def per_turn(of: Ranking, relevant: Relevance, level: int = RELEVANT) -> np.ndarray:
    """Measures of one ranking, [turns, len(COLUMNS)]; nan at turns without a judged meme.

    nDCG takes the summed grades as gains, the others take memes from `level` on as relevant; unjudged memes
    count as not relevant, bpref skips them.
    """
    import pytrec_eval

    judged = {_name(key): relevant[key] for key in of.keys if key in relevant}
    judge = pytrec_eval.RelevanceEvaluator(judged, set(MEASURES.values()), relevance_level=level)
    scores = judge.evaluate(of.scored)
    out = np.full((len(of.keys), len(COLUMNS)), np.nan)
    for row, (key, ranked) in enumerate(zip(of.keys, of.ranked, strict=True)):
        if key not in relevant:
            continue
        top = ranked[:5]
        values = {column: scores[_name(key)][measure] for column, measure in MEASURES.items()}
        values["judged@5"] = sum(meme in relevant[key] for meme in top) / max(1, len(top))
        out[row] = [values[column] for column in COLUMNS]
    return out


class Measured(NamedTuple):
    """Measures of every system, [turns, len(COLUMNS)], at the turns that have a relevant meme."""

    systems: dict[System, np.ndarray]
    keys: list[tuple[str, int]]


def evaluate(
    matrices: Mapping[System, np.ndarray],
    asked: Sequence[systems.Query],
    meme_ids: Sequence[str],
    relevant: Relevance,
    profile: Profile,
    levels: Sequence[int] = (RELEVANT,),
) -> list[Measured]:
    """Measures of every system and of random, for each level from which a meme counts as relevant.

    Unjudged memes count as not relevant, which is hard on the mean of random rankings: the one that fed the
    pool stands beside it.
    """
    best = np.array([max(relevant.get(q.key, {"": 0}).values()) for q in asked])
    rows = np.flatnonzero(best >= min(levels))
    here, keys = [asked[i] for i in rows], [asked[i].key for i in rows]
    if not keys:
        return [Measured({}, []) for _ in levels]
    kept = [best[rows] >= level for level in levels]

    def measure(order: np.ndarray) -> list[np.ndarray]:
        # Made once for all levels: naming a ranking's memes takes as long as measuring it.
        of = ranking(order, meme_ids, keys)
        return [per_turn(of, relevant, level)[part] for level, part in zip(levels, kept, strict=True)]

    found = {system: measure(retrieval.order(scores[rows], meme_ids)) for system, scores in matrices.items()}
    draws = [
        measure(systems.random_order(here, len(meme_ids), profile.seed, draw)) for draw in range(RANDOM_DRAWS)
    ]
    found[System("", "", systems.RANDOM)] = [np.mean(values, axis=0) for values in zip(*draws, strict=True)]
    # The draw that fed the pool, where this run has the seed and the library that the pool was made with.
    if draws[0][0][:, COLUMNS.index("judged@5")].min() == 1:
        found[System("", "", systems.RANDOM_GRADED)] = draws[0]
    return [
        Measured(
            {system: values[i] for system, values in found.items()},
            [key for key, has in zip(keys, part, strict=True) if has],
        )
        for i, part in enumerate(kept)
    ]


def tables(found: Measured, profile: Profile, embedder: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Means of all systems, and paired differences to the run's own system and to random, with intervals."""
    measured, keys = found
    if not keys:
        return pd.DataFrame(columns=list(HEADS[0])), pd.DataFrame(columns=list(HEADS[1]))
    names, clusters = list(measured), [dialogue for dialogue, _ in keys]
    # [systems, measures], with each dialogue left out along a first axis of its own.
    found = statistics.mean(np.stack([measured[name] for name in names], axis=1), clusters)
    low, high = statistics.interval(found, statistics.SHARE)
    size = {"dialogues": int(found.clusters.flat[0])}
    rows: list[dict[str, Any]] = []
    for i, system in enumerate(names):
        row: dict[str, Any] = {**system._asdict(), **dict(zip(COLUMNS, found.value[i].tolist(), strict=True))}
        for column in ("R@1", "nDCG@5"):
            at = i, COLUMNS.index(column)
            row |= {f"{column} low": low[at], f"{column} high": high[at]}
        rows.append({**row, "turns": len(keys), **size})
    own = System(embedder, profile.centring, systems.FULL)
    bases = {"the full score": names.index(own)}
    for name in (systems.RANDOM, systems.RANDOM_GRADED):
        if System("", "", name) in measured:
            bases[name] = names.index(System("", "", name))
    differences: list[dict[str, Any]] = []
    rng = seeds.rng(profile.seed, "signs", "retrieval")
    minus = {
        against: found.minus(statistics.LeftOut(*(part[..., [base], :] for part in found)))
        for against, base in bases.items()
    }
    tested = {
        against: (gaps.value, *statistics.interval(gaps), statistics.sign_flip_p(gaps, 0.0, rng))
        for against, gaps in minus.items()
    }
    for i, system in enumerate(names):
        for against, (mean, low, high, p) in tested.items():
            for c, column in enumerate(COLUMNS):
                if bases[against] == i or column == "judged@5":
                    continue
                differences.append(
                    {
                        **system._asdict(), "minus": against, "measure": column, "mean": mean[i, c],
                        "low": low[i, c], "high": high[i, c], "p": p[i, c], **size,
                    }
                )  # fmt: skip
    return pd.DataFrame(rows, columns=list(HEADS[0])), pd.DataFrame(differences, columns=list(HEADS[1]))
