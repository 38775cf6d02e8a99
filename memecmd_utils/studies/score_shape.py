"""Study 8: is Figure 3 a normal distribution? Shape of the retrieval scores, with intervals.

Scores of one turn share its summary, scores of one meme its annotation: turns x memes values are far fewer
independent ones, so what a test of normality says of them means little. The shape itself can be read.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pandas as pd

from memecmd_utils.core import seeds, statistics
from memecmd_utils.evaluation.graded_turns import StudyData
from memecmd_utils.retrieval.gate import spread
from memecmd_utils.studies import gates

CUTS = 500
"""Places at which distribution functions without a dialogue are compared; each step is a rise by 0.002."""
ONE_A_TURN = 200
"""Samples of one score a turn: the p-value of the first is luck, the share below 0.05 is not."""
COLUMNS = ("scores", "measure", "mean", "low", "high", "normal", "clear", "n", "dialogues")
TESTS = ("scores", "n", "p", "share of draws below 0.05")
MEASURES = ("skewness", "excess kurtosis", "distance")


class Moments(NamedTuple):
    """Shape of a distribution."""

    mean: np.ndarray
    sd: np.ndarray
    skewness: np.ndarray
    kurtosis: np.ndarray


def shape_tables(data: StudyData) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Skewness, excess kurtosis and distance to the fitted normal curve; and the p-values.

    `distance` is the largest one between the distribution functions (0-1): never negative, so it has no
    "clear". `within turns` takes each score in standard deviations from the mean of its turn; that alone
    makes the excess kurtosis of n normal scores -6 / (n + 1), so `normal` holds what normal scores would
    give, and "clear" is an interval without it. The test is D'Agostino and Pearson's of skewness and
    kurtosis; below 20 turns, or too few dialogues for an interval, there is none.
    """
    rows: list[dict[str, object]] = []
    if len(data.asked) < 2 or len(data.annotations) < 2:
        return pd.DataFrame(columns=list(COLUMNS)), pd.DataFrame(columns=list(TESTS))
    scores = gates.own_scores(data)
    sd = spread(scores, axis=1)
    within = np.where(sd > 0, scores - scores.mean(axis=1, keepdims=True), 0) / np.where(sd > 0, sd, 1)
    for name, values in (("all", scores), ("within turns", within)):
        found = _measured(values, data)
        flat = -6 / (scores.shape[1] + 1) if name == "within turns" else 0.0
        for i, (measure, normal) in enumerate(zip(MEASURES, (0.0, flat, np.nan), strict=True)):
            one = found._replace(value=found.value[i], without=found.without[:, i])
            got = statistics.estimate(one, values.size, statistics.SHARE if measure == "distance" else None)
            rows.append(
                {
                    "scores": name, "measure": measure, "mean": got.mean, "low": got.low, "high": got.high,
                    "normal": normal,
                    "clear": None
                    if measure == "distance"
                    else statistics.clear(got.low, got.high, normal),
                    "n": got.n, "dialogues": got.clusters,
                }
            )  # fmt: skip
    return pd.DataFrame(rows, columns=list(COLUMNS)), _tests(scores, data)


def moments(powers: np.ndarray) -> Moments:
    """Shape from the mean powers 1 to 4 of values, [..., 4], taken about a point near their mean."""
    first, second, third, fourth = np.moveaxis(powers, -1, 0)
    variance = second - first**2
    sd = np.sqrt(np.maximum(variance, 0))
    with np.errstate(invalid="ignore", divide="ignore"):
        skewness = (third - 3 * first * second + 2 * first**3) / sd**3
        kurtosis = (fourth - 4 * first * third + 6 * first**2 * second - 3 * first**4) / variance**2 - 3
    return Moments(first, sd, skewness, kurtosis)


def shape(values: np.ndarray) -> tuple[float, float, float]:
    """Skewness, excess kurtosis and distance to the fitted normal distribution; nan without spread."""
    from scipy.special import ndtr

    if not spread(values) > 0:
        return np.nan, np.nan, np.nan
    ordered = np.sort(values, axis=None)
    centred = ordered - ordered.mean()
    found = moments(np.array([(centred**power).mean() for power in (1, 2, 3, 4)]))
    normal, n = ndtr(centred / found.sd), len(ordered)
    above, below = np.arange(1, n + 1) / n - normal, normal - np.arange(n) / n
    return float(found.skewness), float(found.kurtosis), float(max(above.max(), below.max()))


def _measured(values: np.ndarray, data: StudyData) -> statistics.LeftOut:
    """The three measures, [3], with each dialogue left out.

    Without a dialogue the distance is taken at `CUTS` places, and moved by what that takes off it over all.
    """
    from scipy.special import ndtr

    whole = np.array(shape(values))
    middle, names = values.mean(), list(data.rows_of)
    powers = np.stack([((values - middle) ** power).mean(axis=1) for power in (1, 2, 3, 4)], axis=1)
    cuts = np.unique(np.quantile(values, np.arange(1, CUTS) / CUTS))
    below = np.stack(
        [
            np.searchsorted(np.sort(values[rows], axis=None), cuts, side="right") / values.shape[1]
            for rows in data.rows_of.values()
        ]
    )
    turns = np.array([len(rows) for rows in data.rows_of.values()], dtype=float)[:, None]
    powers = statistics.sums(powers, data.clusters, names)

    def at_cuts(powers: np.ndarray, below: np.ndarray, turns: np.ndarray) -> np.ndarray:
        """The three measures from sums of powers 1 to 4 and of the distribution function at the cuts."""
        found = moments(powers / turns)
        normal = ndtr((cuts - middle - found.mean[..., None]) / found.sd[..., None])
        distance = np.abs(below / turns - normal).max(axis=-1, initial=0)
        return np.stack([found.skewness, found.kurtosis, distance], axis=-1)

    found = statistics.leave_out(at_cuts, turns[:, 0] / turns.sum(), powers, below, turns)
    off = np.array([0, 0, whole[2] - found.value[2]])
    return found._replace(value=whole, without=found.without + off)


def _tests(scores: np.ndarray, data: StudyData) -> pd.DataFrame:
    from scipy.stats import normaltest

    turns, memes = scores.shape
    rng = seeds.rng(data.profile.seed, "one score a turn")
    picked = scores[np.arange(turns), rng.integers(memes, size=(ONE_A_TURN, turns))]
    enough = turns >= 20 and not statistics.too_few(len(data.rows_of)) and np.ptp(scores) > 0
    single = normaltest(picked, axis=1).pvalue if enough else np.full(ONE_A_TURN, np.nan)
    whole = float(normaltest(scores, axis=None).pvalue) if enough else np.nan
    share = float((single < 0.05).mean()) if enough else np.nan
    rows = [("all (they hang together)", scores.size, whole, np.nan), ("one a turn", turns, single[0], share)]
    return pd.DataFrame(rows, columns=list(TESTS))


def shape_sentence(table: pd.DataFrame, tests: pd.DataFrame) -> str:
    """What was found, in one sentence."""
    if table.empty or table["mean"].isna().all():
        return "There are too few different scores to speak of the shape of their distribution."
    parts = []
    for name, rows in table.groupby("scores", sort=False):
        of = rows.set_index("measure")
        shaped = [
            f"{m} {statistics.format_interval(of.loc[m], digits=3, sign='+')} ({_verdict(of.loc[m])})"
            for m in MEASURES[:2]
        ]
        parts.append(
            f"{'all scores' if name == 'all' else 'scores within turns'} have {' and '.join(shaped)} "
            "and lie at most "
            f"{of.loc['distance', 'mean']:.3f} from the fitted normal distribution function"
        )
    text = f"{'; '.join(parts)} ({table['dialogues'].max()} dialogues)"
    if tests["p"].isna().all():
        return f"{text[0].upper()}{text[1:]}."
    one = tests.iloc[-1]
    return (
        f"{text[0].upper()}{text[1:]}; a test of normality on one score a turn gives p = {one['p']:.2g} in "
        f"one draw and stays below 0.05 in {one['share of draws below 0.05']:.0%} of {ONE_A_TURN} draws, and "
        f"p = {tests.iloc[0]['p']:.2g} on all {tests.iloc[0]['n']:,.0f} scores means little, since they hang "
        "together."
    )


def _verdict(row: Mapping[str, float]) -> str:
    if not np.isfinite(row["low"]):
        return "no interval"
    least = f", normal scores give {row['normal']:+.3f}" if row["normal"] else ""
    return f"{'clearly' if row['clear'] else 'not clearly'} off normal{least}"
