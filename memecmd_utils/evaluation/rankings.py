"""The retrieval systems that are measured: parts of the score, embedders, baselines."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from memecmd_utils.core import seeds, statistics
from memecmd_utils.evaluation.ground_truth import RELEVANT, Relevance
from memecmd_utils.retrieval import scoring
from memecmd_utils.retrieval.placement import Encode
from memecmd_utils.retrieval.scoring import MEME_SIDE, QUERY_SIDE, SIGNS, centre, combine
from memecmd_utils.schemas import Annotation, Dialogue, Meme, Summary
from memecmd_utils.settings import Profile

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


# --- Retrieval measured against graded ground truth: R@K, MRR, nDCG@5, judged@5, bpref
# The measures are trec_eval's own code (`pytrec_eval-terrier`). R@K is, as in image-text retrieval, the
# share of turns with a relevant meme among the top K (trec_eval's success_K): a turn has many relevant memes.
#
# Only what is in the pool was judged. For a system that did not feed it (judged@5 below 1) all measures but
# bpref are lower bounds, and bpref is none the fairer: a pool of depth 5 holds the misses at the top of the
# systems that fed it and few of the others, so bpref favours those that did not.


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
    asked: Sequence[Query],
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

    found = {system: measure(scoring.order(scores[rows], meme_ids)) for system, scores in matrices.items()}
    draws = [measure(random_order(here, len(meme_ids), profile.seed, draw)) for draw in range(RANDOM_DRAWS)]
    found[System("", "", RANDOM)] = [np.mean(values, axis=0) for values in zip(*draws, strict=True)]
    # The draw that fed the pool, where this run has the seed and the library that the pool was made with.
    if draws[0][0][:, COLUMNS.index("judged@5")].min() == 1:
        found[System("", "", RANDOM_GRADED)] = draws[0]
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
    own = System(embedder, profile.retrieval.centring, FULL)
    bases = {"the full score": names.index(own)}
    for name in (RANDOM, RANDOM_GRADED):
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
