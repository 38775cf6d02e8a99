"""Studies 4, 6 and 8: the form of the threshold, Sampling's K, and the shape of the scores behind both.

Scores and gate of a run's turns are whole matrices here, and equal to what the run itself places by.
"""

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Literal, NamedTuple

import numpy as np
import pandas as pd

from memecmd_utils import retrieval, statistics
from memecmd_utils.evaluation.graded_turns import StudyData
from memecmd_utils.evaluation.ground_truth import timing_kappa
from memecmd_utils.evaluation.tables import gaps_of
from memecmd_utils.retrieval import Form, Gate, ScoreScale, calibrate_theta0, halves, simulate, standard_scale
from memecmd_utils.studies import hubness


class GateRule(NamedTuple):
    """How a gate is set: its scale, how its threshold falls, and theta0 or the rate it is fitted to."""

    scale: Literal["standard", "raw"]
    penalty: float
    decay: float
    form: Form = "exponential"
    theta0: float | None = None
    """None: fitted on the other half to the wanted rate."""


def own_rule(data: StudyData) -> GateRule:
    """The run's gate, with theta0 fitted where the profile says `auto`."""
    profile = data.profile
    theta0 = None if profile.retrieval.theta0 == "auto" else profile.retrieval.theta0
    return GateRule(
        profile.retrieval.score_scale,
        profile.retrieval.threshold_penalty,
        profile.retrieval.threshold_decay,
        "exponential",
        theta0,
    )


def own_scores(data: StudyData) -> np.ndarray:
    """The run's score T of every pair, [turns, memes] (Eq. 22), rounded as where memes are placed.

    So equal memes tie on every machine.
    """
    terms = data.terms(data.profile.models.embedder, data.profile.retrieval.centring)
    return np.round(retrieval.combine(terms, data.profile.retrieval.weights), 9)


def layout(data: StudyData) -> np.ndarray:
    """Row of every turn 2..T, [dialogues, longest]; -1 at a turn without a usable summary or past the end."""
    out = np.full((len(data.dialogues), max(len(d.summaries) for d in data.dialogues)), -1)
    for places, dialogue in zip(out, data.dialogues, strict=True):
        for place, summary in enumerate(dialogue.summaries):
            places[place] = data.row.get((dialogue.dialogue_id, summary.turn), -1)
    return out


def open_turns(
    data: StudyData, top1: np.ndarray, rule: GateRule, rates: np.ndarray | None = None
) -> np.ndarray:
    """Where the gate opens for each of several sets of best scores, [sets, turns] to booleans of that shape.

    Scale and theta0 of a dialogue come from the other half (`placement.halves`), or from the dialogues that
    have a score where the other half has none. `rates` [sets, 2]: the rate wanted on what half a and half b
    were fitted on, by default the profile's; nan gives a gate that never opens.
    """
    where = layout(data)
    scores = np.where(where >= 0, top1[:, where], -np.inf)
    out = np.zeros(top1.shape, dtype=bool)
    for number, (here, fit) in enumerate(gate_halves(data)):
        if not here.any():
            continue
        standard = rule.scale == "standard"
        scales = [standard_scale(list(one[fit])) if standard else ScoreScale() for one in scores]
        scaled = np.stack([scale.apply(one) for scale, one in zip(scales, scores, strict=True)])
        gate = Gate(rule.theta0 or 0.0, rule.penalty, rule.decay, rule.form)
        theta0 = np.full(len(top1), gate.theta0)
        if rule.theta0 is None:
            wanted = (
                np.full(len(top1), data.profile.retrieval.wanted_rate) if rates is None else rates[:, number]
            )
            theta0 = calibrate_theta0(scaled[:, fit], gate, wanted, _n_turns(data, fit))
            theta0[np.isnan(wanted)] = np.inf
        opened = simulate(scaled[:, here], gate, theta0[:, None]).sent
        places = where[here]
        out[:, places[places >= 0]] = opened[:, places >= 0]
    return out


def gate_halves(data: StudyData) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Dialogues of each half, and those that its gate is fitted on, as in `placement.calibrate`: booleans."""
    split, scored = halves(data.dialogues), (layout(data) >= 0).any(axis=1)
    for half in "ab":
        here = np.array([split[d.dialogue_id] == half for d in data.dialogues])
        yield here, ~here if (~here & scored).any() else scored


def _n_turns(data: StudyData, chosen: np.ndarray) -> int:
    """Turns 2..T of the chosen dialogues."""
    return sum(len(d.summaries) for d, is_chosen in zip(data.dialogues, chosen, strict=True) if is_chosen)


def fit_rates(data: StudyData, sent: np.ndarray) -> np.ndarray:
    """Rate of memes where each half is fitted, [sets, turns] to [sets, 2]; nan if none is sent."""
    where = layout(data)
    out = np.full((len(sent), 2), np.nan)
    for number, (_, fit) in enumerate(gate_halves(data)):
        places = where[fit][where[fit] >= 0]
        out[:, number] = sent[:, places].sum(axis=1) / max(1, _n_turns(data, fit))
    out[out == 0] = np.nan
    return out


# --- Study 4: does the form of the threshold matter? Exponential, linear and fixed at the same meme rate
# Each theta0 is fitted to the run's wanted rate on the other half of the dialogues. Memes are Greedy's.


LINEAR_TURNS = 4
"""Turns after which the linear form has fallen back to theta0."""
FORMS = ("form", "memes", "rate", "mean gap", "sd of gaps", "follow-ups", "mean grade", "judged")
"""Columns of the first table, to which it adds a kappa with each marker."""
FORM_DIFFERENCES = ("form", "minus", "measure", "mean", "low", "high", "clear", "dialogues")
FORM_MEASURES = ("follow-ups", "mean gap", "mean grade")
BASE = "exponential"


def form_rules(data: StudyData) -> dict[str, GateRule]:
    """The three gates, all with the run's scale and penalty and with a theta0 to be fitted."""
    own = own_rule(data)._replace(theta0=None)
    return {
        BASE: own,
        "linear": own._replace(form="linear", decay=1 / LINEAR_TURNS),
        "fixed": own._replace(form="fixed", penalty=0.0),
    }


def sent_by_form(data: StudyData) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Where each form sends a meme, and the best meme of every turn, as positions."""
    scores = own_scores(data)
    best = retrieval.best_memes(scores, data.meme_ids, 1)[:, 0]
    top1 = scores[np.arange(len(scores)), best][None]
    return {form: open_turns(data, top1, rule)[0] for form, rule in form_rules(data).items()}, best


def follow_ups(data: StudyData, sent: np.ndarray) -> np.ndarray:
    """Memes of turns [..., turns] that have one in the turn before; same shape."""
    before = np.array([(a[0], a[1] + 1) == b for a, b in pairwise(data.keys)], dtype=bool)
    out = np.zeros_like(sent)
    out[..., 1:] = sent[..., 1:] & sent[..., :-1] & before
    return out


def threshold_tables(data: StudyData) -> tuple[pd.DataFrame, pd.DataFrame]:
    """What each form does, and each form minus the exponential with an interval.

    `follow-ups` is the share of memes right after a turn with a meme, `mean grade` (0-2) that of Greedy's
    memes, ungraded ones as 0; `judged` says how many were graded. Without grades both are nan.
    """
    if not data.asked or not data.annotations:
        columns = [*FORMS, *(f"kappa with {name}" for name in data.truth.markers)]
        return pd.DataFrame(columns=columns), pd.DataFrame(columns=list(FORM_DIFFERENCES))
    by_form, best = sent_by_form(data)
    # Mean grade (0-2) of the best meme of every turn; nan where nobody graded it.
    grades = data.gains[np.arange(len(best)), best] / max(1, len(data.truth.graders))
    measured = {form: _measure_form(data, sent, grades) for form, sent in by_form.items()}
    rows = [_form_row(data, form, sent, grades, measured[form].value) for form, sent in by_form.items()]
    differences = []
    for form in ("linear", "fixed"):
        gaps = measured[form].minus(measured[BASE])
        ends = statistics.interval(gaps)
        for measure, mean, low, high, n in zip(FORM_MEASURES, gaps.value, *ends, gaps.clusters, strict=True):
            differences.append(
                {
                    "form": form, "minus": BASE, "measure": measure, "mean": mean, "low": low, "high": high,
                    "clear": statistics.clear(low, high), "dialogues": n,
                }
            )  # fmt: skip
    return pd.DataFrame(rows), pd.DataFrame(differences, columns=list(FORM_DIFFERENCES))


def _measure_form(data: StudyData, sent: np.ndarray, grades: np.ndarray) -> statistics.LeftOut:
    """The `FORM_MEASURES` of one form."""
    names = list(data.rows_of)
    gaps = [gaps_of(data.keys[row] for row in rows if sent[row]) for rows in data.rows_of.values()]
    graded = np.nan_to_num(grades) if data.truth.grades else np.full(len(grades), np.nan)
    per_turn = np.column_stack([follow_ups(data, sent), np.where(sent, graded, 0.0), sent])
    after, grade, memes = statistics.sums(per_turn, data.clusters, names).T
    length = np.array([sum(mine) for mine in gaps], dtype=float)
    number = np.array([len(mine) for mine in gaps], dtype=float)
    return statistics.ratio(np.column_stack([after, length, grade]), np.column_stack([memes, number, memes]))


def _form_row(
    data: StudyData, form: str, sent: np.ndarray, grades: np.ndarray, measured: np.ndarray
) -> dict[str, object]:
    turns = {(d.dialogue_id, s.turn) for d in data.dialogues for s in d.summaries}
    memes = {key for key, is_sent in zip(data.keys, sent, strict=True) if is_sent}
    gaps, judged = gaps_of(memes), np.isfinite(grades[sent])
    follow_up, gap, grade = measured
    return {
        "form": form, "memes": len(memes), "rate": len(memes) / len(turns), "mean gap": gap,
        "sd of gaps": float(np.std(gaps)) if gaps else np.nan, "follow-ups": follow_up, "mean grade": grade,
        "judged": float(judged.mean()) if len(judged) and data.truth.grades else np.nan,
        **{
            f"kappa with {marker}": timing_kappa(turns, memes, data.truth.turns_of(marker))
            for marker in data.truth.markers
        },
    }  # fmt: skip


def threshold_sentence(forms: pd.DataFrame, differences: pd.DataFrame) -> str:
    """What was found, in one sentence."""
    if forms.empty or not forms["memes"].sum():
        return "No meme was sent under any form of the threshold, so the forms cannot be compared."
    rates = ", ".join(f"{row['form']} {row['rate']:.2f}" for _, row in forms.iterrows())
    parts = []
    for form, rows in differences.groupby("form", sort=False):
        by_measure = rows.set_index("measure")
        text = (
            f"{form} minus {BASE} changes the share of memes right after another by "
            f"{_with_verdict(by_measure.loc['follow-ups'])}, the mean gap by "
            f"{_with_verdict(by_measure.loc['mean gap'])} turns"
        )
        if np.isfinite(by_measure.loc["mean grade", "mean"]):
            text += f" and the mean grade of the memes by {_with_verdict(by_measure.loc['mean grade'])}"
        parts.append(text)
    return (
        f"With theta0 fitted to one rate on the other half (reached: {rates}; "
        f"{differences['dialogues'].max()} dialogues), {'; '.join(parts)}."
    )


def _with_verdict(row: Mapping[str, float]) -> str:
    return f"{statistics.format_interval(row, sign='+')} ({statistics.verdict(row)})"


# --- Study 6: what Sampling gives up in fit and gains in variety as K goes from 1 (Greedy) to 10
# Grades are exact expectations, means over the top K. Repeats, distinct memes and entropy are means over
# draws that all K share: a turn's draw is one number in [0, 1), and its rank is that number times K.


LARGEST_K = 10
DRAWS = 200
BY_K = (
    "K", "memes", "mean grade", "mean grade low", "mean grade high", "mean grade of judged", "judged@K",
    "repeats", "repeats low", "repeats high", "distinct memes", "entropy", "dialogues",
)  # fmt: skip
K_DIFFERENCES = ("K", "minus", "measure", "mean", "low", "high", "clear", "dialogues")
K_MEASURES = {"mean grade": (0.0, 2.0), "repeats": statistics.SHARE}
"""What has an interval, with its smallest and largest possible value."""


def choice_tables(data: StudyData) -> tuple[pd.DataFrame, pd.DataFrame]:
    """A row for each K, and each K minus K = 1 with an interval.

    `mean grade` (0-2) counts ungraded memes as 0; `repeats` is the expected share of memes that came before
    in the same dialogue; `entropy` (bits) is of how often each meme is used. Without grades theirs are nan;
    a library of fewer memes than K ends the table early.
    """
    empty = pd.DataFrame(columns=list(BY_K)), pd.DataFrame(columns=list(K_DIFFERENCES))
    if not data.asked or not data.annotations:
        return empty
    scores = own_scores(data)
    best = retrieval.best_memes(scores, data.meme_ids, LARGEST_K)
    top1 = np.take_along_axis(scores, best[:, :1], axis=1).T
    sent = np.flatnonzero(open_turns(data, top1, own_rule(data))[0])
    if not len(sent):
        return empty
    clusters = np.array(data.clusters)[sent].tolist()
    grades = np.take_along_axis(data.gains, best, axis=1)[sent] / max(1, len(data.truth.graders))
    numbers = _random_numbers(data)[sent]
    rows: list[dict[str, object]] = []
    differences: list[dict[str, object]] = []
    first: dict[str, statistics.LeftOut] = {}
    for k in range(1, best.shape[1] + 1):
        chosen = draw_among(best[sent], numbers, k)
        known = np.isfinite(grades[:, :k])
        fit = np.nan_to_num(grades[:, :k]).mean(axis=1) if data.truth.grades else np.full(len(sent), np.nan)
        found = {
            "mean grade": statistics.mean(fit, clusters),
            "repeats": statistics.mean(repeats(chosen, clusters).mean(axis=1), clusters),
        }
        first = first or found
        distinct, entropy = variety(chosen, len(data.meme_ids))
        row: dict[str, object] = {
            "K": k, "memes": len(sent), "dialogues": len(set(clusters)),
            "mean grade of judged": float(np.mean(grades[:, :k][known])) if known.any() else np.nan,
            "judged@K": float(known.mean()) if data.truth.grades else np.nan,
            "distinct memes": distinct, "entropy": entropy,
        }  # fmt: skip
        for measure, ends in K_MEASURES.items():
            row |= statistics.estimate(found[measure], len(sent), ends).columns(measure)
            if k > 1:
                got = statistics.estimate(found[measure].minus(first[measure]), len(sent))
                differences.append(
                    {
                        "K": k, "minus": 1, "measure": measure, "mean": got.mean, "low": got.low,
                        "high": got.high, "clear": statistics.clear(got.low, got.high),
                        "dialogues": got.clusters,
                    }
                )  # fmt: skip
        rows.append(row)
    return pd.DataFrame(rows, columns=list(BY_K)), pd.DataFrame(differences, columns=list(K_DIFFERENCES))


def _random_numbers(data: StudyData) -> np.ndarray:
    """A number in [0, 1) for every turn and draw, [turns, draws]; a stream for each dialogue."""
    out = np.empty((len(data.asked), DRAWS))
    turn_of = np.array([query.turn for query in data.asked])
    for name, rows in data.rows_of.items():
        turns = turn_of[rows]
        out[rows] = statistics.rng(data.profile.seed, "choice", name).random((turns.max() + 1, DRAWS))[turns]
    return out


def draw_among(best: np.ndarray, numbers: np.ndarray, k: int) -> np.ndarray:
    """Memes drawn uniformly from the top `k` of every place, [places, draws], by numbers in [0, 1)."""
    return np.take_along_axis(best, (numbers * k).astype(int), axis=1)


def repeats(chosen: np.ndarray, clusters: list[str]) -> np.ndarray:
    """Whether a meme came before in the same dialogue: [places, draws] to booleans, dialogue by dialogue."""
    return np.column_stack([hubness.repeated(drawn, clusters) for drawn in chosen.T])


def variety(chosen: np.ndarray, n_memes: int) -> tuple[float, float]:
    """Different memes, and entropy of their use in bits, of [places, draws]; means over the draws."""
    counts = np.zeros((chosen.shape[1], n_memes))
    np.add.at(counts, (np.broadcast_to(np.arange(chosen.shape[1]), chosen.shape), chosen), 1)
    share = counts / len(chosen)
    bits = -np.where(share > 0, share * np.log2(np.where(share > 0, share, 1)), 0).sum(axis=1)
    return float((counts > 0).sum(axis=1).mean()), float(bits.mean())


def choice_sentence(table: pd.DataFrame, differences: pd.DataFrame) -> str:
    """What was found, in one sentence."""
    if table.empty:
        return "No meme was sent, so no K can be compared with another."
    first, last = table.iloc[0], table.iloc[-1]
    if first["K"] == last["K"]:
        return "The library holds one meme, so no K can be compared with another."
    widest = differences[differences["K"] == last["K"]].set_index("measure")
    text = (
        f"From K = 1 to K = {last['K']:.0f}, over {last['dialogues']:.0f} dialogues, the expected share of "
        "memes that repeat an earlier one of their "
        f"dialogue goes from {first['repeats']:.2f} to {last['repeats']:.2f} "
        f"({_difference(widest.loc['repeats'])}), distinct memes from {first['distinct memes']:.0f} to "
        f"{last['distinct memes']:.0f} and the entropy of use from {first['entropy']:.2f} to "
        f"{last['entropy']:.2f} bits"
    )
    if not np.isfinite(first["mean grade"]):
        return f"{text}; nothing is graded, so what this costs in fit is not known."
    worse = differences[(differences["measure"] == "mean grade") & differences["clear"]]
    worse = worse[worse["mean"] < 0]
    first_worse = f"K = {worse['K'].min():.0f} is the first that is" if len(worse) else "no K is"
    below = "" if statistics.too_few(last["dialogues"]) else f"{first_worse} clearly below K = 1, and "
    return (
        f"{text}, while the expected mean grade (0-2) goes from {first['mean grade']:.2f} to "
        f"{last['mean grade']:.2f} ({_difference(widest.loc['mean grade'])}); {below}"
        f"{last['judged@K']:.0%} of the top {last['K']:.0f} were graded."
    )


def _difference(row: pd.Series) -> str:
    return f"difference {statistics.format_interval(row, sign='+')}, {statistics.verdict(row)}"


# --- Study 8: is Figure 3 a normal distribution? Shape of the scores, with intervals
# Scores of one turn share its summary, scores of one meme its annotation: turns x memes values are far fewer
# independent ones, so what a test of normality says of them means little. The shape itself can be read.


CUTS = 500
"""Places at which distribution functions without a dialogue are compared; each step is a rise by 0.002."""
ONE_A_TURN = 200
"""Samples of one score a turn: the p-value of the first is luck, the share below 0.05 is not."""
SHAPE = ("scores", "measure", "mean", "low", "high", "normal", "clear", "n", "dialogues")
TESTS = ("scores", "n", "p", "share of draws below 0.05")
SHAPE_MEASURES = ("skewness", "excess kurtosis", "distance")


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
        return pd.DataFrame(columns=list(SHAPE)), pd.DataFrame(columns=list(TESTS))
    scores = own_scores(data)
    sd = scores.std(axis=1, keepdims=True)
    sd = np.where(np.ptp(scores, axis=1, keepdims=True) > 1e-9, sd, 0.0)
    within = np.where(sd > 0, scores - scores.mean(axis=1, keepdims=True), 0) / np.where(sd > 0, sd, 1)
    for name, values in (("all", scores), ("within turns", within)):
        found = shape_left_out(values, data)
        flat = -6 / (scores.shape[1] + 1) if name == "within turns" else 0.0
        for i, (measure, normal) in enumerate(zip(SHAPE_MEASURES, (0.0, flat, np.nan), strict=True)):
            one = found._replace(value=found.value[i], without=found.without[:, i])
            distance = measure == "distance"
            got = statistics.estimate(one, values.size, statistics.SHARE if distance else None)
            clear = None if distance else statistics.clear(got.low, got.high, normal)
            rows.append({"scores": name, "measure": measure, **got.row(), "normal": normal, "clear": clear})
    return pd.DataFrame(rows, columns=list(SHAPE)), _normality_tests(scores, data)


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

    if not np.ptp(values) > 1e-9:
        return np.nan, np.nan, np.nan
    ordered = np.sort(values, axis=None)
    centred = ordered - ordered.mean()
    found = moments(np.array([(centred**power).mean() for power in (1, 2, 3, 4)]))
    normal, n = ndtr(centred / found.sd), len(ordered)
    above, below = np.arange(1, n + 1) / n - normal, normal - np.arange(n) / n
    return float(found.skewness), float(found.kurtosis), float(max(above.max(), below.max()))


def shape_left_out(values: np.ndarray, data: StudyData) -> statistics.LeftOut:
    """The three measures, [3], with each dialogue left out.

    Without a dialogue the distance is taken at `CUTS` places, and moved by what that takes off it over all.
    """
    from scipy.special import ndtr

    full = np.array(shape(values))
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
    off = np.array([0, 0, full[2] - found.value[2]])
    return found._replace(value=full, without=found.without + off)


def _normality_tests(scores: np.ndarray, data: StudyData) -> pd.DataFrame:
    from scipy.stats import normaltest

    turns, memes = scores.shape
    rng = statistics.rng(data.profile.seed, "one score a turn")
    picked = scores[np.arange(turns), rng.integers(memes, size=(ONE_A_TURN, turns))]
    together, single, share = np.nan, np.full(ONE_A_TURN, np.nan), np.nan
    if turns >= 20 and not statistics.too_few(len(data.rows_of)) and np.ptp(scores) > 0:
        single = normaltest(picked, axis=1).pvalue
        together, share = float(normaltest(scores, axis=None).pvalue), float((single < 0.05).mean())
    rows = [
        ("all (they hang together)", scores.size, together, np.nan),
        ("one a turn", turns, single[0], share),
    ]
    return pd.DataFrame(rows, columns=list(TESTS))


def shape_sentence(table: pd.DataFrame, tests: pd.DataFrame) -> str:
    """What was found, in one sentence."""
    if table.empty or table["mean"].isna().all():
        return "There are too few different scores to speak of the shape of their distribution."
    parts = []
    for name, rows in table.groupby("scores", sort=False):
        by_measure = rows.set_index("measure")
        described = [
            f"{measure} {statistics.format_interval(row, digits=3, sign='+')} ({_off_normal(row)})"
            for measure, row in by_measure.loc[list(SHAPE_MEASURES[:2])].iterrows()
        ]
        parts.append(
            f"{'all scores' if name == 'all' else 'scores within turns'} have {' and '.join(described)} "
            f"and lie at most {by_measure.loc['distance', 'mean']:.3f} from the fitted normal distribution "
            "function"
        )
    text = f"{'; '.join(parts)} ({table['dialogues'].max()} dialogues)"
    text = f"{text[0].upper()}{text[1:]}"
    if tests["p"].isna().all():
        return f"{text}."
    every, one = tests.iloc[0], tests.iloc[1]
    return (
        f"{text}; a test of normality on one score a turn gives p = {one['p']:.2g} in "
        f"one draw and stays below 0.05 in {one['share of draws below 0.05']:.0%} of {ONE_A_TURN} draws, and "
        f"p = {every['p']:.2g} on all {every['n']:,.0f} scores means little, since they hang together."
    )


def _off_normal(row: Mapping[str, float]) -> str:
    if not np.isfinite(row["low"]):
        return "no interval"
    expected = f", normal scores give {row['normal']:+.3f}" if row["normal"] else ""
    return f"{'clearly' if row['clear'] else 'not clearly'} off normal{expected}"
