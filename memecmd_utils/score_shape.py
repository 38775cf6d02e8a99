"""Study 8: is Figure 3 a normal distribution? Shape of the retrieval scores, with intervals.

Scores of one turn share its summary, scores of one meme its annotation: turns x memes values are far fewer
independent ones, so what a test of normality says of them means little. The shape itself can be read.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pandas as pd

from memecmd_utils import resampling, seeds, statistics, study_gates
from memecmd_utils.study_data import StudyData

CUTS = 500
"""Places at which resampled distribution functions are compared; from one to the next both rise by 0.002."""
ONE_A_TURN = 200
"""Samples of one score a turn: the p-value of the first is luck, the share below 0.05 is not."""
COLUMNS = ("scores", "measure", "mean", "low", "high", "normal", "clear", "n")
TESTS = ("scores", "n", "p", "share of draws below 0.05")
MEASURES = ("skewness", "excess kurtosis", "distance")


class Moments(NamedTuple):
    """Shape of a weighted distribution; each has one value a resample."""

    mean: np.ndarray
    sd: np.ndarray
    skewness: np.ndarray
    kurtosis: np.ndarray


def tables(data: StudyData) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Skewness, excess kurtosis and distance to the fitted normal curve; and the p-values.

    `distance` is the largest one between the distribution functions (0-1): never negative, so it has no
    "clear". `within turns` takes each score in standard deviations from the mean of its turn; that alone
    makes the excess kurtosis of n normal scores -6 / (n + 1), so `normal` holds what normal scores would
    give, and "clear" is an interval without it. The test is D'Agostino and Pearson's of skewness and
    kurtosis; below 20 values there is none.
    """
    rows: list[dict[str, object]] = []
    if len(data.asked) < 2 or len(data.annotations) < 2:
        return pd.DataFrame(columns=list(COLUMNS)), pd.DataFrame(columns=list(TESTS))
    scores = study_gates.own_scores(data)
    spread = scores.std(axis=1, keepdims=True)
    within = (scores - scores.mean(axis=1, keepdims=True)) / np.where(spread > 0, spread, 1)
    drawn = resampling.resamples(data, "shape of the scores")
    for name, values in (("all", scores), ("within turns", within)):
        found, draws = shape(values), _draws(values, data, drawn)
        flat = -6 / (scores.shape[1] + 1) if name == "within turns" else 0.0
        for measure, mean, these, normal in zip(MEASURES, found, draws, (0.0, flat, np.nan), strict=True):
            got = statistics.from_draws(float(mean), these, values.size, len(drawn.names))
            rows.append(
                {
                    "scores": name, "measure": measure, "mean": got.mean, "low": got.low, "high": got.high,
                    "normal": normal,
                    "clear": None
                    if measure == "distance"
                    else resampling.clear(got.low - normal, got.high - normal),
                    "n": got.n,
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

    ordered = np.sort(values, axis=None)
    centred = ordered - ordered.mean()
    found = moments(np.array([(centred**power).mean() for power in (1, 2, 3, 4)]))
    if not found.sd > 0:
        return np.nan, np.nan, np.nan
    normal, n = ndtr(centred / found.sd), len(ordered)
    above, below = np.arange(1, n + 1) / n - normal, normal - np.arange(n) / n
    return float(found.skewness), float(found.kurtosis), float(max(above.max(), below.max()))


def _draws(values: np.ndarray, data: StudyData, drawn: resampling.Resamples) -> np.ndarray:
    """The three measures in every resample, [3, samples]; the distance at `CUTS` places."""
    from scipy.special import ndtr

    middle = values.mean()
    powers = np.stack([((values - middle) ** power).mean(axis=1) for power in (1, 2, 3, 4)], axis=1)
    cuts = np.unique(np.quantile(values, np.arange(1, CUTS) / CUTS))
    counts = np.stack(
        [
            np.searchsorted(np.sort(values[rows], axis=None), cuts, side="right") / values.shape[1]
            for rows in data.rows_of.values()
        ]
    )
    turns = np.array([len(rows) for rows in data.rows_of.values()], dtype=float)[:, None]
    weights = drawn.times @ turns
    found = moments((drawn.times @ drawn.sums(powers, data.clusters)) / weights)
    below = (drawn.times @ counts) / weights
    with np.errstate(invalid="ignore", divide="ignore"):
        normal = ndtr((cuts - middle - found.mean[:, None]) / found.sd[:, None])
    distance = np.abs(below - normal).max(axis=1)
    return np.round(np.stack([found.skewness, found.kurtosis, distance]), resampling.DIGITS)


def _tests(scores: np.ndarray, data: StudyData) -> pd.DataFrame:
    from scipy.stats import normaltest

    turns, memes = scores.shape
    rng = seeds.rng(data.profile.seed, "one score a turn")
    picked = scores[np.arange(turns), rng.integers(memes, size=(ONE_A_TURN, turns))]
    enough = turns >= 20 and np.ptp(scores) > 0
    single = normaltest(picked, axis=1).pvalue if enough else np.full(ONE_A_TURN, np.nan)
    whole = float(normaltest(scores, axis=None).pvalue) if enough else np.nan
    share = float((single < 0.05).mean()) if enough else np.nan
    rows = [("all (they hang together)", scores.size, whole, np.nan), ("one a turn", turns, single[0], share)]
    return pd.DataFrame(rows, columns=list(TESTS))


def sentence(table: pd.DataFrame, tests: pd.DataFrame) -> str:
    """What was found, in one sentence."""
    if table.empty or table["mean"].isna().all():
        return "There are too few different scores to speak of the shape of their distribution."
    parts = []
    for name, rows in table.groupby("scores", sort=False):
        of = rows.set_index("measure")
        shaped = [f"{m} {resampling.said(of.loc[m], 3)} ({_verdict(of.loc[m])})" for m in MEASURES[:2]]
        parts.append(
            f"{'all scores' if name == 'all' else 'scores within turns'} have {' and '.join(shaped)} "
            "and lie at most "
            f"{of.loc['distance', 'mean']:.3f} from the fitted normal distribution function"
        )
    text = "; ".join(parts)
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
