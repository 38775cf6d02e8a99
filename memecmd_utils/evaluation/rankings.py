"""The retrieval systems that are measured: parts of the score, embedders, baselines."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from memecmd_utils import retrieval, statistics
from memecmd_utils.evaluation.ground_truth import RELEVANT, GroundTruth, Relevance, relevance
from memecmd_utils.evaluation.tables import frame_rows
from memecmd_utils.retrieval import MEME_SIDE, QUERY_SIDE, SIGNS, Encode, centre, combine
from memecmd_utils.runs import Run
from memecmd_utils.schemas import Annotation, Dialogue, Meme, Summary
from memecmd_utils.settings import Profile

PARTS = ("S+", "S-", "E", "Psi")
"""The four terms of the score (Eq. 18-21) in the order of the weights."""
FULL = " ".join(PARTS)
CAPTION = "context to caption"
RANDOM = "random"
RANDOM_GRADED = "random, one ranking graded"
"""The one random ranking whose top was graded: the mean of many meets memes that nobody judged."""
CENTRINGS = ("attribute", "none")
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
        for centring in CENTRINGS:
            terms = four_terms(asked_for, annotations, encode, centring)
            for part, term in zip(PARTS, terms, strict=True):
                yield System(name, centring, part), term
            for i, j in combinations(range(len(PARTS)), 2):
                yield System(name, centring, f"{PARTS[i]} {PARTS[j]}"), terms[i] + terms[j]
            yield System(name, centring, FULL), combine(terms, weights)
            yield System(name, centring, CAPTION), cosines(contexts, captions, centring)


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
            * cosines(texts[query], encode([getattr(a, side) for a in annotations], "document"), centring)
            for query, side, sign in zip(QUERY_SIDE, MEME_SIDE, SIGNS, strict=True)
        ]
    )


def cosines(left: np.ndarray, right: np.ndarray, centring: str) -> np.ndarray:
    """Of every row with every row, in float64; each side centred by its own mean where `centring` says so."""
    if centring == "attribute":
        left, right = centre(left), centre(right)
    return left.astype(np.float64) @ right.astype(np.float64).T


def random_order(asked: Sequence[Query], n_memes: int, seed: int, draw: int) -> np.ndarray:
    """One random ranking a turn, [turns, memes]; `draw` numbers independent repetitions."""
    keys = [(*q.key, draw) for q in asked]
    return np.array([statistics.rng(seed, "random ranking", *key).permutation(n_memes) for key in keys])


# --- Retrieval measured against graded ground truth: R@K, MRR, nDCG@5, judged@5, bpref
# The measures are defined as in trec_eval, and a test holds them against it. R@K is, as in image-text
# retrieval, the share of turns with a relevant meme among the top K (trec_eval's success_K): a turn has many.
#
# Only what is in the pool was judged. For a system that did not feed it (judged@5 below 1) all measures but
# bpref are lower bounds, and bpref is none the fairer: a pool of depth 5 holds the misses at the top of the
# systems that fed it and few of the others, so bpref favours those that did not.


COLUMNS = ("R@1", "R@5", "MRR", "nDCG@5", "judged@5", "bpref")
_SYSTEM = ("embedder", "centring", "uses")
_HEAD = (*_SYSTEM, *COLUMNS, "R@1 low", "R@1 high", "nDCG@5 low", "nDCG@5 high", "turns", "dialogues")
HEADS = (_HEAD, (*_SYSTEM, "minus", "measure", "mean", "low", "high", "p", "dialogues"), _HEAD)
"""Columns of the three tables: systems, differences, systems with the stricter relevance."""
RANDOM_DRAWS = 20
"""Random rankings whose mean stands for random: one alone would add its luck."""


def gains_of(keys: Sequence[tuple[str, int]], meme_ids: Sequence[str], relevant: Relevance) -> np.ndarray:
    """Summed grades, [turns, memes]; nan where nobody graded the meme at the turn."""
    place = {meme_id: column for column, meme_id in enumerate(meme_ids)}
    gains = np.full((len(keys), len(meme_ids)), np.nan)
    for row, key in enumerate(keys):
        for meme_id, gain in relevant.get(key, {}).items():
            if meme_id in place:
                gains[row, place[meme_id]] = gain
    return gains


def per_turn(order: np.ndarray, gains: np.ndarray, level: int = RELEVANT) -> np.ndarray:
    """Measures of one ranking, [turns, len(COLUMNS)]; nan at turns without a judged meme.

    `order` holds the columns of `gains` [turns, memes], best first. nDCG takes the summed grades as gains,
    the others take memes from `level` on as relevant; unjudged memes are not relevant, bpref skips them.
    """
    ranked = np.take_along_axis(gains, order, axis=1)
    hit = ranked >= level
    miss = ~np.isnan(ranked) & ~hit
    discounts = 1 / np.log2(np.arange(2, 2 + min(5, order.shape[1])))
    ideal = -np.sort(-np.nan_to_num(gains), axis=1)[:, :5] @ discounts
    n_hits, n_misses = hit.sum(axis=1), miss.sum(axis=1)
    # bpref: of the judged memes that do not fit, how many stand before a fitting one; at most as many as fit.
    above = np.minimum(miss.cumsum(axis=1), n_hits[:, None])
    bpref = np.where(hit, 1 - above / np.maximum(1, np.minimum(n_hits, n_misses))[:, None], 0).sum(axis=1)
    columns = {
        "R@1": hit[:, 0],
        "R@5": hit[:, :5].any(axis=1),
        "MRR": hit.any(axis=1) / (1 + hit.argmax(axis=1)),
        "nDCG@5": np.nan_to_num(ranked[:, :5]) @ discounts / np.where(ideal > 0, ideal, 1),
        "judged@5": (~np.isnan(ranked[:, :5])).mean(axis=1),
        "bpref": bpref / np.maximum(1, n_hits),
    }
    measured = np.stack([columns[name] for name in COLUMNS], axis=1).astype(float)
    return np.where(np.isnan(gains).all(axis=1)[:, None], np.nan, measured)


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
    reached = [best[rows] >= level for level in levels]

    gains = gains_of(keys, meme_ids, relevant)

    def measure(order: np.ndarray) -> list[np.ndarray]:
        return [per_turn(order, gains, level)[part] for level, part in zip(levels, reached, strict=True)]

    found = {system: measure(retrieval.order(scores[rows], meme_ids)) for system, scores in matrices.items()}
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
        for i, part in enumerate(reached)
    ]


def tabulate(found: Measured, profile: Profile, embedder: str) -> tuple[pd.DataFrame, pd.DataFrame]:
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
    bases |= {system.uses: i for i, system in enumerate(names) if system.uses in (RANDOM, RANDOM_GRADED)}
    differences: list[dict[str, Any]] = []
    rng = statistics.rng(profile.seed, "signs", "retrieval")
    tested = {}
    for against, base in bases.items():
        gaps = found.minus(statistics.LeftOut(*(part[..., [base], :] for part in found)))
        tested[against] = gaps.value, *statistics.interval(gaps), statistics.sign_flip_p(gaps, 0.0, rng)
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


# --- A run's systems against the ground truth


STRICT = 3
"""Sum of two grades from which a meme lands for both graders: at least 2 and 1."""


@dataclass(frozen=True)
class SystemTables:
    """Retrieval against the ground truth: all systems, their paired differences, the stricter relevance."""

    systems: pd.DataFrame
    differences: pd.DataFrame
    strict: pd.DataFrame

    def overview(self, strict: bool = False) -> pd.DataFrame:
        """All systems with their measures, the best nDCG@5 first."""
        columns = [*System._fields, *COLUMNS, "turns"]
        return (self.strict if strict else self.systems)[columns].sort_values("nDCG@5", ascending=False)

    def save(self, run: Run, agreement: pd.DataFrame, timing: pd.DataFrame, placed: pd.DataFrame) -> None:
        """Write the tables of the report, and `ground_truth.json`, which page and README quote."""
        saved = {
            "placed": placed,
            "agreement": agreement,
            "timing": timing,
            "retrieval": self.systems,
            "retrieval_strict": self.strict,
            "retrieval_differences": self.differences,
        }
        run.save_tables(**saved)
        run.save_json("ground_truth.json", {name: frame_rows(table) for name, table in saved.items()})


def evaluate_systems(
    run: Run,
    dialogues: Sequence[Dialogue],
    memes: Mapping[str, Meme],
    annotations: Sequence[Annotation],
    truth: GroundTruth,
) -> SystemTables:
    """Measure every system under both embedders against the grades; empty tables where the run has none."""
    if not truth.grades:
        return SystemTables(*(pd.DataFrame(columns=list(names)) for names in HEADS))
    usable, asked = [a for a in annotations if a.usable], queries(dialogues)
    matrices = dict(score_matrices(asked, memes, usable, encoders_of(run), run.profile.retrieval.weights))
    meme_ids, levels = [a.meme_id for a in usable], (RELEVANT, STRICT)
    measured = evaluate(matrices, asked, meme_ids, relevance(truth.grades), run.profile, levels)
    (systems, differences), (strict, _) = (
        tabulate(part, run.profile, run.profile.models.embedder) for part in measured
    )
    return SystemTables(systems, differences, strict)


def encoders_of(run: Run) -> dict[str, Encode]:
    """The run's embedder first, then the one that took no part in retrieval."""
    names = dict.fromkeys([run.profile.models.embedder, run.profile.models.consistency_embedder])
    return {name: run.embedder(name).encode for name in names}


def short_table(found: Mapping[str, Sequence[Mapping]], profile: Profile) -> pd.DataFrame:
    """The full score centred and not, single terms, the caption baseline and random, with intervals.

    The difference in nDCG@5 to the graded random ranking (the mean of many where a run has none) and to the
    run's own full score, each `mean [low, high]`. Pairs of terms and the rest are in `tables/retrieval.csv`.
    """
    uses = (FULL, *PARTS, CAPTION, RANDOM, RANDOM_GRADED)
    other = ", not centred" if profile.retrieval.centring == "attribute" else ", centred"
    rows = []
    graded = any(row["uses"] == RANDOM_GRADED for row in found["retrieval"])
    chance = RANDOM_GRADED if graded else RANDOM
    differences = {
        (row["embedder"], row["centring"], row["uses"], row["minus"]): row
        for row in found["retrieval_differences"]
        if row["measure"] == "nDCG@5"
    }
    for row in found["retrieval"]:
        system = row["embedder"], row["centring"], row["uses"]
        as_run = row["centring"] in ("", profile.retrieval.centring)
        if row["uses"] not in uses or not (as_run or row["uses"] == FULL):
            continue
        cells = {"embedder": row["embedder"] or "–", "uses": row["uses"] + ("" if as_run else other)}
        cells |= {column: row[column] for column in COLUMNS}
        cells["nDCG@5 − random"] = _format_difference(differences.get((*system, chance)))
        cells["nDCG@5 − full"] = _format_difference(differences.get((*system, "the full score")))
        rows.append(cells)
    rows.sort(key=lambda row: -row["nDCG@5"])
    columns = ["embedder", "uses", *COLUMNS, "nDCG@5 − random", "nDCG@5 − full"]
    return pd.DataFrame(rows, columns=columns)


def _format_difference(row: Mapping | None) -> str:
    return "–" if row is None else statistics.format_interval(row, digits=3, sign="+")
