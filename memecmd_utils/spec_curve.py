"""Study 9: the specification curve. In which share of all readings of the paper does each claim hold?

No reading is called the right one. All worlds are measured on the same dialogues, so they differ by their
choices alone (Simonsohn, Simmons and Nelson, 2020, Nature Human Behaviour 4).
"""

from collections.abc import Iterator, Sequence
from itertools import product
from typing import NamedTuple

import numpy as np
import pandas as pd

from memecmd_utils import spec_measures, spec_worlds, statistics, threshold_study
from memecmd_utils.schemas import Rating
from memecmd_utils.spec_measures import ASKED_FROM, Sums
from memecmd_utils.spec_worlds import EXPECTED_RANDOMS, GATES, RANDOMS, Ranked, World
from memecmd_utils.study_data import StudyData

CLAIMS = {
    1: "Greedy beats Random",
    2: "Sampling beats Random",
    3: "Greedy is at least as good as Sampling",
    4: "Greedy repeats memes within a dialogue more often than Sampling",
    5: "both beat Random in news and in role dialogues",
    6: "the full score beats each single dimension",
    7: "the decaying threshold has fewer memes right after another than a fixed one",
}
KINDS = ("news", "role")
COLUMNS = ("claim", *World._fields, "measure", "mean", "low", "high", "dialogues", "state")
STATES = ("clear", "sign only", "not", "clearly opposite", "cannot tell", "not asked")
"""Of one world: the interval leaves out 0; the estimate has the claim's sign; it has not; the interval lies
on the other side; no meme was sent (or a kind of dialogue is missing); the judge was not asked."""


class Found(NamedTuple):
    """A claim's estimate in every world, each [scorings, K, gates, readings of Random] or 1 on some axes;
    `dialogues` that its interval is over, and the share of the memes that a judge was asked about."""

    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray
    dialogues: np.ndarray
    asked: np.ndarray


class Means(NamedTuple):
    """A strategy's mean in every world; memes placed and asked of."""

    mean: statistics.LeftOut
    placed: np.ndarray
    asked: np.ndarray


class Setting(NamedTuple):
    """What all claims are worked out from."""

    data: StudyData
    ranked: Ranked
    sent: np.ndarray
    fixed: np.ndarray


def worlds(data: StudyData, ratings: Sequence[Rating] = ()) -> pd.DataFrame:
    """One row for every claim, world and measure, with estimate, interval and state (`STATES`).

    An axis on which a claim does not depend holds `–`. The estimate is the difference that the claim wants
    positive; of a claim that says several things at once it is the smallest of them, and so are the ends of
    its interval. `ratings` are those of local judges; a judge's world counts where 90 % were asked.
    """
    if not data.asked or not data.annotations:
        return pd.DataFrame(columns=list(COLUMNS))
    ranked = spec_worlds.rank(data)
    sent, fixed = spec_worlds.open_gates(data, ranked)
    setting = Setting(data, ranked, sent, fixed)
    rows: list[tuple] = []
    for measure in spec_measures.measures(data, ratings):
        sums = spec_measures.sums(data, ranked, sent, measure)
        for claim, found in _of_measure(setting, sums):
            if measure.asked is not None:  # where nothing was placed a judge was asked nothing
                found = found._replace(asked=np.nan_to_num(found.asked))
            rows += _rows(claim, measure.name, ranked, found, also_zero=claim == 3)
    rows += _rows(4, "repeats", ranked, repeats(setting))
    if len(ranked.relevant):
        rows += _rows(6, "nDCG@5", ranked, full_and_single(setting))
    rows += _rows(7, "follow-ups", ranked, spacing(setting))
    table = pd.DataFrame(rows, columns=list(COLUMNS))
    return table.sort_values("claim", kind="stable", ignore_index=True)


def _of_measure(setting: Setting, sums: dict[str, Sums]) -> Iterator[tuple[int, Found]]:
    """Claims 1, 2, 3 and 5 under one measure."""
    of = {name: means(part) for name, part in sums.items()}
    yield 1, minus(of["greedy"], of["random"])
    yield 2, minus(of["sampling"], of["random"])
    yield 3, minus(of["greedy"], of["sampling"])
    kind_of = {d.dialogue_id: d.kind for d in setting.data.dialogues}
    parts = []
    for kind in KINDS:
        here = np.array([kind_of[name] == kind for name in setting.data.rows_of])
        of = {name: means(Sums(*(values[..., here] for values in part))) for name, part in sums.items()}
        parts += [minus(of["greedy"], of["random"]), minus(of["sampling"], of["random"])]
    yield 5, smallest(parts)


def means(sums: Sums) -> Means:
    """A strategy's mean in every world."""
    shape = np.broadcast_shapes(*(values.shape for values in sums[:2]))
    top, bottom = (np.moveaxis(np.broadcast_to(values, shape), -1, 0) for values in sums[:2])
    return Means(statistics.ratio(top, bottom), *(values.sum(axis=-1) for values in sums[2:]))


def minus(one: Means, other: Means) -> Found:
    """The mean of `one` minus that of `other` in every world."""
    gap = one.mean.minus(other.mean)
    ends = (np.round(part, statistics.DIGITS) for part in (gap.value, *statistics.interval(gap)))
    with np.errstate(invalid="ignore"):
        asked = (one.asked + other.asked) / (one.placed + other.placed)
    return Found(*ends, gap.clusters, np.broadcast_to(asked, gap.value.shape))


def smallest(parts: Sequence[Found]) -> Found:
    """The smallest of several estimates and of the ends of their intervals: all of them hold, or not all."""
    shape = np.broadcast_shapes(*(part.mean.shape for part in parts))
    stacked = [np.stack([np.broadcast_to(getattr(p, f), shape) for p in parts]) for f in Found._fields]
    return Found(*(values.min(axis=0) for values in stacked))


def repeats(setting: Setting) -> Found:
    """Claim 4: the expected share of memes that repeat an earlier one, Greedy's minus Sampling's."""
    data, sent = setting.data, setting.sent
    memes = spec_measures.by_dialogue(data, sent.astype(float)).transpose(1, 0, 2)[:, None, :, None]
    one, *others = (
        Sums(expected_repeats(data, setting.ranked.top[:, :, :k], sent), memes, memes, memes)
        for k in (1, *setting.ranked.ks)
    )
    joined = Sums(np.concatenate([other.top for other in others], axis=1), memes, memes, memes)
    return minus(means(one), means(joined))


def expected_repeats(data: StudyData, top: np.ndarray, sent: np.ndarray) -> np.ndarray:
    """Expected number of memes that came before in their dialogue, drawn uniformly from `top`.

    Exact, since draws are independent: a meme that stood among the top K at c earlier memes has come before
    with probability 1 - (1 - 1/K)^c. [scorings, turns, K] and [gates, scorings, turns] to
    [scorings, 1, gates, 1, dialogues].
    """
    gates, scorings, _ = sent.shape
    missed = 1 - 1 / top.shape[2]
    at = np.arange(gates)[:, None, None], np.arange(scorings)[None, :, None]
    out = np.zeros((*sent.shape,))
    for rows in data.rows_of.values():
        never = np.ones((gates, scorings, len(data.meme_ids)))  # chance that a meme has not come yet
        for row in rows:
            here = (*at, top[None, :, row])
            out[:, :, row] = sent[:, :, row] * (1 - never[here].mean(axis=2))
            never[here] *= np.where(sent[:, :, row, None], missed, 1.0)
    return spec_measures.by_dialogue(data, out).transpose(1, 0, 2)[:, None, :, None]


def full_and_single(setting: Setting) -> Found:
    """Claim 6: nDCG@5 of the full score minus that of each term alone, over turns with a relevant meme."""
    ranked, data = setting.ranked, setting.data
    full, single = (np.zeros((*v.shape[:-1], len(data.asked))) for v in (ranked.ndcg, ranked.single))
    full[..., ranked.relevant], single[..., ranked.relevant] = ranked.ndcg, ranked.single
    counted = np.zeros(len(data.asked))
    counted[ranked.relevant] = 1
    turns = spec_measures.by_dialogue(data, counted)

    def of(values: np.ndarray) -> Means:
        top = spec_measures.by_dialogue(data, values)[:, None, None, None]
        return means(Sums(top, turns, turns, turns))

    return smallest([minus(of(full), of(single[:, term])) for term in range(4)])


def spacing(setting: Setting) -> Found:
    """Claim 7: share of memes right after another, that of a fixed threshold minus the gate's own."""

    def of(sent: np.ndarray) -> Means:
        after = threshold_study.follow_ups(setting.data, sent)
        top, memes = (
            spec_measures.by_dialogue(setting.data, part.astype(float)).transpose(1, 0, 2)[:, None, :, None]
            for part in (after, sent)
        )
        return means(Sums(top, memes, memes, memes))

    return minus(of(setting.fixed), of(setting.sent))


def _rows(claim: int, measure: str, ranked: Ranked, found: Found, also_zero: bool = False) -> list[tuple]:
    """A row for every world of a claim: axes of length 1 hold `–`."""
    ks = [str(k) for k in ranked.ks]
    rest = ({len(ks): ks}, {len(GATES): list(GATES)}, {len(n): list(n) for n in (RANDOMS, EXPECTED_RANDOMS)})
    # Readings of Random differ in number by measure; what does not hang on an axis has one value there.
    values = [{**names, 1: ["–"]}[length] for names, length in zip(rest, found.mean.shape[1:], strict=True)]
    cells = zip(*(part.ravel().tolist() for part in found), strict=True)
    return [
        (claim, *World(*scoring, *choices), measure, *said, state(*said[:3], asked, also_zero))
        for (scoring, *choices), (*said, asked) in zip(product(ranked.scorings, *values), cells, strict=True)
    ]


def state(mean: float, low: float, high: float, asked: float, also_zero: bool = False) -> str:
    """What one world says of a claim (`STATES`); `also_zero`: no difference is enough."""
    if asked < ASKED_FROM:
        return "not asked"
    if not np.isfinite(mean):
        return "cannot tell"
    if mean > 0 or (also_zero and mean == 0):
        return "clear" if low > 0 else "sign only"
    return "clearly opposite" if high < 0 else "not"
