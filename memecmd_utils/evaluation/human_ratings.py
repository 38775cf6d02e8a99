"""What ratings by people say: agreement, means and strengths of strategies, and how judges compare."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from memecmd_utils import schemas
from memecmd_utils.core import statistics
from memecmd_utils.evaluation import rating_form
from memecmd_utils.schemas import DIMENSIONS
from memecmd_utils.surveys.forms import Answers

Place = tuple[str, int, str]
"""Dialogue, turn and meme: what a judge scored and a person may have rated."""
SCALES = (*DIMENSIONS, "overall")
REGULARISATION = 0.01
"""choix's alpha: a little of every strategy winning against every other, so that strengths stay finite
where one never lost; with ten choices a pair it moves them by about 0.02."""
TABLES = {
    "alpha": ["kind", "scale", "level", "alpha", "low", "high", "items", "dialogues", "raters", "source"],
    "means": ["strategy", "scale", "mean", "low", "high", "items", "dialogues", "ratings", "source"],
    "bradley_terry": [
        "strategy", "strength", "low", "high", "win_rate", "win_low", "win_high", "choices", "dialogues",
        "source",
    ],
    "pairs": ["first", "second", "first_better", "second_better", "no_difference", "source"],
    "correlations": ["scorer", "spearman", "low", "high", "items", "dialogues", "source"],
    "repeats": ["rater", "kind", "items", "mean_difference", "same_choice", "source"],
}  # fmt: skip
"""Tables of `summary` with their columns."""


def ratings_summary(
    found: Answers, judged: Mapping[str, Mapping[Place, float]] | None = None
) -> dict[str, pd.DataFrame]:
    """All tables of `TABLES`; empty ones where nobody rated. Intervals (95 %) are over dialogues.

    `judged`: score by place of each judge or other scorer (see `scores_of_judges`). Only first showings
    count, but in `repeats`. Every row says whether its ratings are human or made up.
    """
    made = {
        "alpha": _alphas(found),
        "means": _means(found),
        "bradley_terry": _strengths(found),
        "pairs": _pairs(found),
        "correlations": _correlations(found, judged or {}),
        "repeats": _repeats(found),
    }
    return {
        name: pd.DataFrame([{**row, "source": found.source} for row in made[name]], columns=columns)
        for name, columns in TABLES.items()
    }


def ratings_verdict(found: Answers, tables: Mapping[str, pd.DataFrame]) -> str:
    """One paragraph in plain words."""
    others = f" Files of other forms, not read: {', '.join(found.left_out)}." if found.left_out else ""
    used = found.counted
    trials = len(found.answers) - len(used)
    if found.source is None:
        return "No person has rated this run." + others
    raters = len({rating.rater for rating in used})
    if found.source == "made up":
        text = (
            "No person has rated this run. The ratings below are made up: they try out the form and say "
            f"nothing about the strategies. {len(used)} answers under {raters} name(s)."
        )
    else:
        text = f"{raters} person(s) gave {len(used)} answers."
        text += f" {trials} made-up answers are left out." if trials else ""
    if found.doubled:
        text += f" {found.doubled} answers were replaced by later ones."
    overall = tables["alpha"].query("scale == 'overall' or scale == 'choice'")
    for row in overall.to_dict("records"):
        shown = statistics.format_interval(row, "alpha")
        shown = shown if np.isfinite(row["alpha"]) else "not defined with these answers"
        text += (
            f" Krippendorff's alpha, {row['scale']} ({row['level']}): {shown}, {row['dialogues']} dialogues."
        )
    return text + others


def scores_of_judges(
    ratings: Sequence[schemas.Rating],
    consistency: Sequence[schemas.Consistency] = (),
    grades: Sequence[schemas.Grade] = (),
) -> dict[str, dict[Place, float]]:
    """Score of every judge, of text or image consistency with u_t, and mean grade, by place.

    A judge that scored a place more than once (several lengths or strategies) counts with its mean.
    """
    gathered: dict[str, dict[Place, list[float]]] = {}

    def add(scorer: str, place: Place, score: float) -> None:
        gathered.setdefault(scorer, {}).setdefault(place, []).append(score)

    for r in ratings:
        if r.overall is not None:
            add(r.judge, (r.dialogue_id, r.turn, r.meme_id), r.overall)
    for c in consistency:
        if c.text == "u_t":
            add(f"consistency {c.scorer}", (c.dialogue_id, c.turn, c.meme_id), c.score)
    for g in grades:
        add("mean grade", (g.dialogue_id, g.turn, g.meme_id), g.grade)
    return {
        scorer: {place: float(np.mean(scores)) for place, scores in places.items()}
        for scorer, places in gathered.items()
    }


def _alphas(found: Answers) -> list[dict]:
    rows = []
    for kind, scales, level in (("rating", SCALES, "interval"), ("pairwise", ("choice",), "nominal")):
        frame = rating_form.frame(found, kind)
        dialogue = dict(rating_form.draws(found, kind)[["item", "dialogue_id"]].itertuples(index=False))
        for scale in scales if len(frame) else ():
            # Nominal values need no order, so the position of a choice in the list may stand for it.
            values = frame[scale] if level == "interval" else frame[scale].map({"A": 0, "B": 1}).fillna(2)
            wide = frame.assign(value=values.astype(float)).pivot(
                index="rater", columns="item", values="value"
            )
            clusters = [dialogue[item] for item in wide.columns]
            alpha = statistics.cluster_alpha(wide.to_numpy(), clusters, level)
            rows.append(
                {"kind": kind, "scale": scale, "level": level, "alpha": alpha.mean, "low": alpha.low,
                 "high": alpha.high, "items": alpha.n, "dialogues": alpha.clusters, "raters": len(wide)}
            )  # fmt: skip
    return rows


def _means(found: Answers) -> list[dict]:
    """Mean of the items' means over raters, so that an item rated by many counts once."""
    frame = rating_form.frame(found, "rating")
    by_item = frame.groupby("item")[list(SCALES)].mean()
    counts = frame.groupby("item").size()
    rows = []
    for strategy, drawn in rating_form.draws(found, "rating").groupby("strategy"):
        drawn = drawn[drawn.item.isin(by_item.index)]
        for scale in SCALES if len(drawn) else ():
            values = by_item.loc[drawn.item, scale].tolist()
            mean = statistics.cluster_mean(values, drawn.dialogue_id.tolist())
            rows.append(
                {"strategy": strategy, "scale": scale, "mean": mean.mean, "low": mean.low, "high": mean.high,
                 "items": mean.n, "dialogues": mean.clusters, "ratings": int(counts.loc[drawn.item].sum())}
            )  # fmt: skip
    return rows


def _choices(found: Answers) -> pd.DataFrame:
    """One row a choice and pair of strategies: dialogue, both strategies, share won by the first."""
    drawn = rating_form.draws(found, "pairwise")
    sides = drawn[drawn.side == "A"].merge(drawn[drawn.side == "B"], on=["item", "draw"])
    rows = rating_form.frame(found, "pairwise").merge(sides, on="item", how="inner")
    won = rows["choice"].map({"A": 1.0, "B": 0.0, "no difference": 0.5})
    columns = {"strategy_x": "first", "strategy_y": "second", "dialogue_id_x": "dialogue_id"}
    return rows.assign(won=won)[[*columns, "won"]].rename(columns=columns)


def bradley_terry(wins: np.ndarray) -> np.ndarray:
    """Strengths from `wins` [i, j], how often i was chosen over j, ties half to each; their mean is 0.

    P(i over j) = 1 / (1 + exp(s_j - s_i)) (Bradley and Terry, 1952).
    """
    import choix

    return choix.ilsr_pairwise_dense(wins, alpha=REGULARISATION, max_iter=10_000)


def _strengths(found: Answers) -> list[dict]:
    choices = _choices(found)
    if choices.empty:
        return []
    names = sorted({*choices["first"], *choices["second"]})
    dialogues = sorted(set(choices.dialogue_id))
    wins = np.zeros((len(dialogues), len(names), len(names)))
    for dialogue, first, second, won in choices[["dialogue_id", "first", "second", "won"]].itertuples(
        index=False
    ):
        d, i, j = dialogues.index(dialogue), names.index(first), names.index(second)
        wins[d, i, j] += won
        wins[d, j, i] += 1 - won
    played = (wins + wins.transpose(0, 2, 1)).sum(axis=2)
    rates = statistics.ratio(wins.sum(axis=2), played)
    # A strength hangs on all choices, also those about other strategies.
    share = np.broadcast_to(played.sum(axis=1, keepdims=True) / played.sum(), played.shape)
    strengths = statistics.leave_out(np.vectorize(bradley_terry, signature="(n,n)->(n)"), share, wins)
    columns = {
        "strategy": names, "strength": strengths.value, "low": 0, "high": 0,
        "win_rate": rates.value, "win_low": 0, "win_high": 0,
        "choices": played.sum(axis=0).astype(int), "dialogues": rates.clusters,
    }  # fmt: skip
    columns["low"], columns["high"] = statistics.interval(strengths)
    columns["win_low"], columns["win_high"] = statistics.interval(rates, statistics.SHARE)
    return pd.DataFrame(columns).sort_values("strength", ascending=False, kind="stable").to_dict("records")


def _pairs(found: Answers) -> list[dict]:
    choices = _choices(found)
    # A pair's two strategies stand on either side by chance; the table names them in one order.
    turned = choices["first"] > choices["second"]
    choices.loc[turned, ["first", "second"]] = choices.loc[turned, ["second", "first"]].to_numpy()
    choices.loc[turned, "won"] = 1 - choices.loc[turned, "won"]
    return [
        {"first": first, "second": second, "first_better": int((won == 1).sum()),
         "second_better": int((won == 0).sum()), "no_difference": int((won == 0.5).sum())}
        for (first, second), won in choices.groupby(["first", "second"])["won"]
    ]  # fmt: skip


def _correlations(found: Answers, judged: Mapping[str, Mapping[Place, float]]) -> list[dict]:
    human = rating_form.frame(found, "rating").groupby("item")["overall"].mean()
    places = rating_form.draws(found, "rating").drop_duplicates("item").set_index("item")
    rows = []
    for scorer, scores in judged.items() if len(human) else ():
        both = []
        for item, value in human.items():
            place = places.loc[item]
            score = scores.get((place.dialogue_id, int(place.turn), place.meme_id))
            if score is not None:
                both.append((place.dialogue_id, value, score))
        rho = statistics.cluster_spearman(both)
        rows.append(
            {"scorer": scorer, "spearman": rho.mean, "low": rho.low, "high": rho.high, "items": rho.n,
             "dialogues": rho.clusters}
        )  # fmt: skip
    return rows


def _repeats(found: Answers) -> list[dict]:
    """How far raters agree with themselves: same item again, in a pairwise form with the sides changed."""
    rows = []
    for kind in ("rating", "pairwise"):
        again = rating_form.frame(found, kind, repeats=True)
        both = again.merge(
            rating_form.frame(found, kind),
            left_on=["rater", "repeat_of"],
            right_on=["rater", "item"],
            suffixes=("", "_first"),
        )
        for rater, of in both.groupby("rater"):
            rating = kind == "rating"
            apart = (of.overall - of.overall_first).abs().mean()
            same = (of["choice"].replace({"A": "B", "B": "A"}) == of["choice_first"]).mean()
            rows.append(
                {"rater": rater, "kind": kind, "items": len(of),
                 "mean_difference": float(apart) if rating else np.nan,
                 "same_choice": np.nan if rating else float(same)}
            )  # fmt: skip
    return rows
