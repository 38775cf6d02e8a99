"""Hubs: memes that are the best ones at very many turns. Do they make the repeats, and do cures help?

In spaces of many dimensions some points are near neighbours of very many others (Radovanovic, Nanopoulos and
Ivanovic, 2010). Study 7 of the example's study plan.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from memecmd_utils import retrieval, statistics
from memecmd_utils.evaluation import graded_turns
from memecmd_utils.evaluation.graded_turns import MEASURES, Graded, StudyData
from memecmd_utils.retrieval import MEME_SIDE, QUERY_SIDE, SIGNS, centre, mean_row, order

# --- What is counted of one ranking, N_k above all: at how many turns a meme is among the top k


DEEPEST = 10
GRADED, ALL, GATE = "the graded turns", "all turns", "the gate's turns"
GROUPS = {
    GRADED: (*MEASURES, "nDCG@5 judged only"),
    ALL: ("repeats",),
    GATE: ("repeats at the gate",),
}
"""What is measured at which turns."""


def skewness(counts: np.ndarray) -> np.ndarray:
    """Third standardised moment over the last axis; nan where all are equal."""
    gap = counts - counts.mean(axis=-1, keepdims=True)
    square = gap * gap
    with np.errstate(invalid="ignore", divide="ignore"):
        return (square * gap).mean(axis=-1) / square.mean(axis=-1) ** 1.5


def repeated(memes: np.ndarray, clusters: Sequence[str]) -> np.ndarray:
    """True where an earlier item of the same dialogue has the same meme; items in order of turns."""
    seen: set[tuple[str, int]] = set()
    out = np.zeros(len(memes), dtype=bool)
    for i, key in enumerate(zip(clusters, memes.tolist(), strict=True)):
        out[i] = key in seen
        seen.add(key)
    return out


@dataclass(frozen=True)
class Turns:
    """The turns of a study in the three groups that something is measured on."""

    data: StudyData

    @cached_property
    def graded(self) -> Graded:
        """The turns that have a relevant meme."""
        return graded_turns.graded_of_study(self.data)

    @cached_property
    def rows(self) -> dict[str, np.ndarray]:
        """Rows of each group."""
        sent = {(p.dialogue_id, p.turn) for p in self.data.placements if p.strategy == "greedy"}
        gate = [i for i, key in enumerate(self.data.keys) if key in sent]
        every = np.arange(len(self.data.asked))
        return {GRADED: self.graded.rows, ALL: every, GATE: np.array(gate, dtype=int)}

    @cached_property
    def clusters(self) -> dict[str, list[str]]:
        """Dialogue of every row of each group."""
        names = np.array(self.data.clusters)
        return {group: names[rows].tolist() for group, rows in self.rows.items()}

    def count(self, scores: np.ndarray) -> "Counted":
        """Count one ranking, given its scores [turns, memes]."""
        best = order(scores, self.data.meme_ids)[:, :DEEPEST]
        values = {GRADED: self.graded.measure_both(scores)}
        for group in (ALL, GATE):
            again = repeated(best[self.rows[group], 0], self.clusters[group])
            values[group] = again[:, None].astype(float)
        return Counted(best, scores.shape[1], values, self.skewness(best[:, :1], scores.shape[1]))

    def skewness(self, best: np.ndarray, n_memes: int) -> statistics.LeftOut:
        """Skewness of N_k over memes; `best` [turns, k] are the memes of every turn."""
        among = np.zeros((len(best), n_memes))
        np.put_along_axis(among, best, 1.0, axis=1)
        names = list(self.data.rows_of)
        counts = statistics.sums(among, self.clusters[ALL], names)
        turns = statistics.sums(np.ones(len(best)), self.clusters[ALL], names)
        return statistics.leave_out(skewness, turns / turns.sum(), counts)


@dataclass(frozen=True)
class Counted:
    """One ranking and what was counted of it."""

    best: np.ndarray
    """Positions of the top memes, [turns, at most 10]."""
    n_memes: int
    values: dict[str, np.ndarray]
    """[items, measures] of each of the `GROUPS`."""
    skewness: statistics.LeftOut
    """Skewness of N_1."""

    def n_k(self, k: int, rows: np.ndarray | slice = slice(None)) -> np.ndarray:
        """N_k of every meme over some turns, [memes]."""
        return np.bincount(self.best[rows, :k].ravel(), minlength=self.n_memes)


# --- Three cures for hubs: centring, CSLS and the inverted softmax, each estimated on the other half's turns
# Centring: Suzuki et al. (2013). CSLS: Conneau et al. (2018). Inverted softmax: Smith et al. (2017).


NEIGHBOURS = 10
BETA = 30.0
STARTS = {"uncentred": "none", "centred": "attribute"}
"""Scores that a cure starts from, and their name in the profile."""
NONE, CENTRING, CSLS, INVERTED = "none", "centring", "CSLS", "inverted softmax"


def csls(scores: np.ndarray, fit: np.ndarray) -> np.ndarray:
    """Cross-domain similarity local scaling (Conneau et al., 2018): 2 s - r(meme) - r(turn).

    r(meme) is the mean of the `NEIGHBOURS` largest of its scores over the turns of `fit` [turns, memes].
    r(turn) is the same for all memes of a turn and cannot change their order: it is left out.
    """
    nearest = np.sort(fit, axis=0)[-NEIGHBOURS:]
    return 2 * scores - nearest.mean(axis=0)


def inverted_softmax(scores: np.ndarray, fit: np.ndarray) -> np.ndarray:
    """Inverted softmax (Smith et al., 2017): p(turn | meme), its normaliser summed over the turns of `fit`.

    As a logarithm over `BETA`, on the scale of the scores: s - log(sum exp(beta s)) / beta.
    """
    most = fit.max(axis=0)
    return scores - most - np.log(np.exp(BETA * (fit - most)).sum(axis=0)) / BETA


def centred(data: StudyData, embedder: str) -> np.ndarray:
    """Scores with summaries centred by the other half's mean, memes by their own (Suzuki et al., 2013).

    The run centres summaries by the mean of all of them; here a turn has no part in the mean it is freed of.
    """
    encode, out = data.encoders[embedder], np.zeros((len(data.asked), len(data.meme_ids)))
    vectors = {side: encode([getattr(s, side) for s in data.summaries], "query") for side in set(QUERY_SIDE)}
    for weight, query, side, sign in zip(
        data.profile.retrieval.weights, QUERY_SIDE, MEME_SIDE, SIGNS, strict=True
    ):
        memes = centre(encode([getattr(a, side) for a in data.annotations], "document")).astype(float)
        for rows, fit, _ in graded_turns.folds(data.half):
            # One turn alone has no spread, as `centre` says: its half is left uncentred.
            turns = vectors[query][rows]
            if len(fit) > 1:
                turns = centre(turns, mean_row(vectors[query][fit]))
            out[rows] += weight * sign * turns.astype(float) @ memes.T
    return out


def rankings(data: StudyData, embedder: str) -> dict[tuple[str, str], np.ndarray]:
    """Full scores [turns, memes] under the run's weights, by (start, cure); `NONE` comes first of each start.

    With one dialogue there is no other half: the cures are estimated on its own turns.
    """
    out = {}
    for start, centring in STARTS.items():
        plain = retrieval.combine(data.terms(embedder, centring), data.profile.retrieval.weights)
        out[start, NONE] = plain
        if start == "uncentred":
            out[start, CENTRING] = centred(data, embedder)
        for name, cure in ((CSLS, csls), (INVERTED, inverted_softmax)):
            cured = np.empty_like(plain)
            for rows, fit, _ in graded_turns.folds(data.half):
                cured[rows] = cure(plain[rows], plain[fit])
            out[start, name] = cured
    return out


DEPTHS = (1, 5, 10)
FEW = 5
"""Memes whose share of all places is told."""
TENTH = 0.1

_RANKING = ("embedder", "scores")
_MEASURED = ("nDCG@5", "nDCG@5 judged only", "repeats", "repeats at the gate")
OCCURRENCE = (
    *_RANKING, "k", *statistics.with_ends("skewness"), "by chance", f"share of {FEW} memes", "most",
    "never", "dialogues",
)  # fmt: skip
CURES = (
    *_RANKING, "cure", *statistics.with_ends("skewness"), "R@1", "judged@5", "distinct",
    *statistics.with_ends(*_MEASURED, "skewness change", *(f"{name} change" for name in _MEASURED)),
    "dialogues",
)  # fmt: skip
SHARES = (
    *_RANKING, "where", "hubs", "even share", *statistics.with_ends("share of repeats"), "share of turns",
    "repeats", "dialogues",
)  # fmt: skip
COUNTS = (*_RANKING, "cure", "meme_id", "N_1")
VERDICTS = (*_RANKING, "more than their share", "a cure helps", "hubs are the cause")


@dataclass(frozen=True)
class Hubs:
    """Tables of the study: N_k, the cures, the hubs' share of the repeats, and N_1 of every meme."""

    occurrence: pd.DataFrame
    cures: pd.DataFrame
    shares: pd.DataFrame
    counts: pd.DataFrame
    own: tuple[str, str]
    """Embedder and scores of the run's own ranking: the one whose repeats are Greedy's."""


def hubness_study(data: StudyData) -> Hubs:
    """Count N_k and repeats under every ranking and cure; without grades their measures are nan.

    `repeats`: share of the turns 2..T whose best meme was the best one at an earlier turn of the dialogue,
    whether or not the gate opens; `repeats at the gate`: the same among the turns at which Greedy sends.
    A change is that to the same scores without a cure.
    """
    occurrence, cures, shares, counts = [], [], [], []
    turns = Turns(data)
    for embedder in data.encoders if data.asked and data.annotations else ():
        plain: dict[str, Counted] = {}
        for (start, cure), scores in rankings(data, embedder).items():
            found, name = turns.count(scores), {"embedder": embedder, "scores": start}
            cures.append({**name, "cure": cure, **_measured(turns, found, plain.get(start))})
            for meme, n in zip(data.meme_ids, found.n_k(1).tolist(), strict=True):
                counts.append({**name, "cure": cure, "meme_id": meme, "N_1": n})
            if cure == NONE:
                plain[start] = found
                occurrence += [{**name, **_occurrence(turns, found, k)} for k in DEPTHS]
                shares += [{**name, **row} for row in _shares(turns, found)]
    own = next(start for start, centring in STARTS.items() if centring == data.profile.retrieval.centring)
    return Hubs(
        pd.DataFrame(occurrence, columns=list(OCCURRENCE)),
        pd.DataFrame(cures, columns=list(CURES)),
        pd.DataFrame(shares, columns=list(SHARES)),
        pd.DataFrame(counts, columns=list(COUNTS)),
        (data.profile.models.embedder, own),
    )


def _occurrence(turns: Turns, found: Counted, k: int) -> dict[str, float]:
    """A row of the table of N_k. `by chance`: the skewness if every turn drew its k memes at random."""
    counts, n = found.n_k(k), found.n_memes
    got = statistics.estimate(turns.skewness(found.best[:, :k], n), n)
    p = min(k, n) / n
    return {
        "k": k, **got.columns("skewness"), "dialogues": got.clusters,
        "by chance": (1 - 2 * p) / np.sqrt(len(found.best) * p * (1 - p)) if p < 1 else np.nan,
        f"share of {FEW} memes": np.sort(counts)[-FEW:].sum() / counts.sum(),
        "most": int(counts.max()), "never": int((counts == 0).sum()),
    }  # fmt: skip


def _measured(turns: Turns, found: Counted, plain: Counted | None) -> dict[str, float]:
    """A row of the table of cures, beside the same scores without a cure where `plain` has them."""
    row: dict[str, float] = {"distinct": len(np.unique(found.best[:, 0]))}
    for group, names in GROUPS.items():
        values, clusters = found.values[group], turns.clusters[group]
        row |= statistics.mean_columns(names, values, clusters, statistics.SHARE)
        if plain is not None:
            changes = [f"{name} change" for name in names]
            row |= statistics.mean_columns(changes, values - plain.values[group], clusters)
    got = statistics.estimate(found.skewness, found.n_memes)
    row |= got.columns("skewness") | {"dialogues": got.clusters}
    if plain is not None:
        change = found.skewness.minus(plain.skewness)
        row |= statistics.estimate(change, found.n_memes).columns("skewness change")
    return row


def _shares(turns: Turns, found: Counted) -> list[dict[str, object]]:
    """What the top tenth of memes by N_1 in the other half takes of the repeats here, and of all turns."""
    n_hubs = max(1, round(TENTH * found.n_memes))
    by_id = np.argsort(np.array(turns.data.meme_ids))
    is_hub = np.zeros(len(found.best), dtype=bool)
    for rows, fit, _ in graded_turns.folds(turns.data.half):
        often = np.argsort(-found.n_k(1, fit)[by_id], kind="stable")  # of equals the lower id
        is_hub[rows] = np.isin(found.best[rows, 0], by_id[often[:n_hubs]])
    table = []
    for where in (ALL, GATE):
        rows, again = turns.rows[where], found.values[where][:, 0] > 0
        clusters = [name for name, yes in zip(turns.clusters[where], again, strict=True) if yes]
        got = statistics.cluster_mean(is_hub[rows][again], clusters, statistics.SHARE)
        table.append(
            {
                "where": where, "hubs": n_hubs, "even share": n_hubs / found.n_memes,
                **got.columns("share of repeats"), "repeats": int(again.sum()), "dialogues": got.clusters,
                "share of turns": is_hub[rows].mean() if len(rows) else np.nan,
            }
        )  # fmt: skip
    return table


# --- The rule, and what was found in words


def verdicts(found: Hubs) -> pd.DataFrame:
    """The plan's rule, for every ranking: are hubs called the cause of the repeats within dialogues?

    Yes if the hubs take clearly more than their share of the repeats, and a cure that lowers the skewness of
    N_1 clearly lowers the share of repeats.
    """
    rows = []
    for _, row in found.shares[found.shares["where"] == ALL].iterrows():
        same = (found.cures["embedder"] == row["embedder"]) & (found.cures["scores"] == row["scores"])
        tried = found.cures[same & (found.cures["skewness change"] < 0)]
        more = row["share of repeats low"] > row["even share"]
        helps = bool((tried["repeats change high"] < 0).any())
        rows.append([row["embedder"], row["scores"], more, helps, more and helps])
    return pd.DataFrame(rows, columns=list(VERDICTS))


def hubness_sentence(found: Hubs) -> str:
    """The verdict on the run's own ranking with its numbers, and on the others."""
    table = verdicts(found).set_index(list(_RANKING))
    if found.own not in table.index:
        return "Without ranked turns nothing can be said of hubs."
    name, rule = _name(*found.own), table.loc[found.own]
    shares, cures = (f.set_index(list(_RANKING)).loc[[found.own]] for f in (found.shares, found.cures))
    row = shares[shares["where"] == ALL].iloc[0]
    if not row["repeats"]:
        return f"Under {name} no meme is the best one twice in a dialogue: there is no repeat to explain."
    tried = cures[cures["skewness change"] < 0]
    changes = ", ".join(
        f"{cure['cure']} {statistics.spell_interval(cure, 'repeats change')}" for _, cure in tried.iterrows()
    )
    others = [_name(*key) for key, yes in table["hubs are the cause"].items() if yes and key != found.own]
    are = "are" if rule["hubs are the cause"] else "are not"
    than = f", {'clearly' if rule['more than their share'] else 'not clearly'} more than"
    if few := statistics.too_few(row["dialogues"]):
        than = "; even would be"
    taken = statistics.spell_interval(row, "share of repeats", 2, "")
    tail = f"the cures that lower the skewness change the share of repeats so: {changes}"
    return (
        f"By the rule set before, hubs {are} called the cause of the repeats under {name}"
        f"{', which so few dialogues cannot tell' if few else ''}: the top tenth "
        f"of the memes by N_1 in the other half ({row['hubs']}) takes {taken} "
        f"of the {row['repeats']} repeats ({row['dialogues']} dialogues have some){than} "
        f"{row['even share']:.2f} (of all turns it takes {row['share of turns']:.2f}), and "
        f"{tail if changes else 'no cure lowers the skewness'}. "
        f"{'They are so under ' + ' and '.join(others) if others else 'Under no other ranking are they so'}."
    )


def _name(embedder: str, scores: str) -> str:
    return f"{embedder} ({scores})"
