"""Tables 1 and 2 in the paper's form, the comparisons of the analysis plan, and the numbers behind them."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

import numpy as np
import pandas as pd

from memecmd_utils import paths, seeds, statistics
from memecmd_utils.evaluation import lengths
from memecmd_utils.profiles import Profile
from memecmd_utils.schemas import Consistency, Dialogue, Placement, Rating
from memecmd_utils.statistics import EMPTY, Estimate

Key = tuple[str, int]
Values = dict[Key, float]
METRICS = ("judge", "consistency")


def judge_values(ratings: Sequence[Rating], strategy: str, names: set[str], n_turns: int) -> Values:
    """Overall scores by (dialogue, turn) within the first `n_turns`; unscored ratings are left out.

    A rating of unit `dialogue` counts for the length it was given for; one of unit `meme` for every
    length that reaches its turn.
    """
    counted = _counted(ratings, strategy, names, n_turns)
    return {(r.dialogue_id, r.turn): r.overall for r in counted if r.overall is not None}


def _counted(ratings: Sequence[Rating], strategy: str, names: set[str], n_turns: int) -> list[Rating]:
    """Ratings, scored or not, that belong to a cell of Table 1."""
    return [
        r
        for r in ratings
        if r.strategy == strategy
        and r.dialogue_id in names
        and r.turn <= n_turns
        and (r.judge_unit == "meme" or r.n_turns == n_turns)
    ]


def _of_first_judge(ratings: Sequence[Rating]) -> list[Rating]:
    """Ratings of the profile's first judge: the one that the tables show."""
    return [r for r in ratings if r.judge == ratings[0].judge]


def consistency_values(
    rows: Sequence[Consistency], strategy: str, names: set[str], n_turns: int, text: str = "u_t"
) -> Values:
    """Consistency scores by (dialogue, turn) within the first `n_turns`."""
    return {
        (r.dialogue_id, r.turn): r.score
        for r in rows
        if r.strategy == strategy and r.dialogue_id in names and r.turn <= n_turns and r.text == text
    }


def _estimate(values: Values, profile: Profile, *name: str) -> Estimate:
    rng = seeds.rng(profile.seed, "bootstrap", *name)
    keys = list(values)
    return statistics.cluster_mean(
        [values[key] for key in keys], [key[0] for key in keys], rng, profile.bootstrap_samples
    )


def table_1(
    ratings: Sequence[Rating],
    consistency: Sequence[Consistency],
    dialogues: Sequence[Dialogue],
    profile: Profile,
) -> pd.DataFrame:
    """One row per source, length, metric and strategy: mean, interval, n, unscored, difference to Random."""
    judged = _of_first_judge(ratings)
    rows = []
    for kind in ("news", "role"):
        names = {d.dialogue_id for d in dialogues if d.kind == kind}
        if not names:
            continue
        for n in lengths(profile.n_turns):
            for metric in METRICS:
                cells = {}
                for strategy in profile.strategies:
                    if metric == "judge":
                        values = judge_values(judged, strategy, names, n)
                    else:
                        values = consistency_values(consistency, strategy, names, n)
                    cells[strategy] = _estimate(values, profile, kind, str(n), metric, strategy)
                baseline = cells.get("random", EMPTY).mean
                for strategy, cell in cells.items():
                    asked = _counted(judged, strategy, names, n) if metric == "judge" else []
                    missing = sum(r.overall is None for r in asked)
                    rows.append(
                        {
                            "dataset": f"{kind}-{n}",
                            "metric": metric,
                            "strategy": strategy,
                            "mean": cell.mean,
                            "low": cell.low,
                            "high": cell.high,
                            "n": cell.n,
                            "unscored": missing,
                            "difference": cell.mean - baseline,
                        }
                    )
    columns = ["dataset", "metric", "strategy", "mean", "low", "high", "n", "unscored", "difference"]
    return pd.DataFrame(rows, columns=columns)


def _mark(cells: Mapping[str, float]) -> dict[str, str]:
    """Bold for the best, underlined for the second, as in the paper."""
    known = {k: round(v, 2) for k, v in cells.items() if np.isfinite(v)}
    order = sorted(set(known.values()), reverse=True)
    marks = {}
    for key, value in known.items():
        place = order.index(value)
        text = f"{value:.2f}"
        marks[key] = f"**{text}**" if place == 0 else f"<u>{text}</u>" if place == 1 else text
    return marks


def table_1_printed(table: pd.DataFrame) -> pd.DataFrame:
    """Table 1 in the paper's form: a row per dataset, cells `mean [low, high] (n) ↑difference`."""
    out = []
    for dataset, of_dataset in table.groupby("dataset", sort=False):
        kind, n = dataset.split("-")
        row = {"Dataset": f"{kind.capitalize()}-based {n} Turns"}
        for metric in METRICS:
            cells = of_dataset[of_dataset.metric == metric].set_index("strategy")
            marks = _mark(cells["mean"].to_dict())
            for strategy, cell in cells.iterrows():
                text = marks.get(strategy, "–")
                if np.isfinite(cell.low):
                    text += f" [{cell.low:.2f}, {cell.high:.2f}]"
                text += f" (n={cell.n}{f', {cell.unscored} unscored' if cell.unscored else ''})"
                if strategy != "random" and np.isfinite(cell.difference):
                    text += f" {'↑' if cell.difference >= 0 else '↓'}{abs(cell.difference):.2f}"
                row[f"{metric}: {strategy}"] = text
        out.append(row)
    return pd.DataFrame(out)


def paper_table_1() -> pd.DataFrame:
    """The paper's own Table 1: its cells, its printed differences, and the same recomputed from its cells."""
    table = pd.read_csv(paths.data / "paper" / "table1.csv")
    for strategy in ("greedy", "sampling"):
        table[f"{strategy}_recomputed"] = (table[strategy] - table["random"]).round(2)
        table[f"{strategy}_agrees"] = np.isclose(
            table[f"{strategy}_recomputed"], table[f"{strategy}_difference"]
        )
    return table


def effects(
    ratings: Sequence[Rating],
    consistency: Sequence[Consistency],
    dialogues: Sequence[Dialogue],
    profile: Profile,
    grades: Mapping[str, Values] | None = None,
) -> pd.DataFrame:
    """Choice effect (paired by turn) and timing effect, by metric, with Holm over the choice effects.

    `grades` are mean grades (0-2) of placed memes by strategy, where the run has ground truth.
    """
    names = {d.dialogue_id for d in dialogues}
    judged = _of_first_judge(ratings)
    longest = profile.n_turns

    def values(metric: str, strategy: str) -> Values:
        if metric == "grade":
            return dict((grades or {}).get(strategy, {}))
        if metric == "judge":
            return judge_values(judged, strategy, names, longest)
        text = "u_t+1" if metric == "consistency u_t+1" else "u_t"
        return consistency_values(consistency, strategy, names, longest, text)

    rows = []
    control = "random_same_turns"
    if control not in profile.strategies:
        return pd.DataFrame(
            columns=["effect", "metric", "comparison", "mean", "low", "high", "n", "p", "p_holm"]
        )
    for metric in (*(("grade",) if grades else ()), "judge", "consistency", "consistency u_t+1"):
        for strategy in ("greedy", "sampling"):
            rng = seeds.rng(profile.seed, "effect", metric, strategy)
            got = statistics.paired_difference(
                values(metric, strategy), values(metric, control), rng, profile.bootstrap_samples
            )
            primary = metric != "consistency u_t+1"
            rows.append(
                _effect("choice" if primary else "choice (secondary)", metric, f"{strategy} - {control}", got)
            )
        rng = seeds.rng(profile.seed, "effect", metric, "timing")
        got = statistics.unpaired_difference(
            values(metric, control), values(metric, "random"), rng, profile.bootstrap_samples
        )
        rows.append(_effect("timing", metric, f"{control} - random", got))
    table = pd.DataFrame(rows)
    primary = table.effect == "choice"
    table["p_holm"] = np.nan
    table.loc[primary, "p_holm"] = statistics.holm(list(table.loc[primary, "p"]))
    return table


def _effect(effect: str, metric: str, comparison: str, got: Estimate) -> dict[str, object]:
    return {
        "effect": effect,
        "metric": metric,
        "comparison": comparison,
        "mean": got.mean,
        "low": got.low,
        "high": got.high,
        "n": got.n,
        "p": np.nan if got.p is None else got.p,
    }


def judge_check(ratings: Sequence[Rating], profile: Profile) -> pd.DataFrame:
    """AUC of each judge between greedy's and random_same_turns' memes, raw and centred (analysis plan)."""
    rows = []
    for judge in dict.fromkeys(r.judge for r in ratings):
        mine = [r for r in ratings if r.judge == judge and r.overall is not None]
        mine = [r for r in mine if r.judge_unit == "meme" or r.n_turns == profile.n_turns]
        for score in ("overall", "raw"):
            of = {
                strategy: [
                    (r.dialogue_id, getattr(r, score))
                    for r in mine
                    if r.strategy == strategy and getattr(r, score) is not None
                ]
                for strategy in ("greedy", "random_same_turns")
            }
            if not of["greedy"] or not of["random_same_turns"]:
                continue
            rng = seeds.rng(profile.seed, "judge check", judge, score)
            got = statistics.cluster_auc(of["greedy"], of["random_same_turns"], rng)
            told_apart = bool(np.isfinite(got.low) and not got.low <= 0.5 <= got.high)
            rows.append(
                {
                    "judge": judge,
                    "score": "centred" if score == "overall" else "raw",
                    "auc": got.mean,
                    "low": got.low,
                    "high": got.high,
                    "n": got.n,
                    "tells apart": told_apart,
                }
            )
    return pd.DataFrame(rows, columns=["judge", "score", "auc", "low", "high", "n", "tells apart"])


def case_dialogues(placements: Sequence[Placement], dialogues: Sequence[Dialogue]) -> list[str]:
    """First news and first role dialogue, by id, where greedy, sampling and random all place a meme."""
    have: dict[str, set[str]] = {}
    for placed in placements:
        have.setdefault(placed.dialogue_id, set()).add(placed.strategy)
    found = []
    for kind in ("news", "role"):
        for dialogue in sorted(dialogues, key=lambda d: d.dialogue_id):
            if dialogue.kind == kind and {"greedy", "sampling", "random"} <= have.get(
                dialogue.dialogue_id, set()
            ):
                found.append(dialogue.dialogue_id)
                break
    return found


def table_2(
    cases: Sequence[str], ratings: Sequence[Rating], consistency: Sequence[Consistency], profile: Profile
) -> pd.DataFrame:
    """Table 2: judge and consistency of the case studies, a row per dialogue and strategy (5a-5f)."""
    judged = _of_first_judge(ratings)
    rows = []
    letters = iter("abcdef")
    for name in cases:
        for strategy in ("greedy", "sampling", "random"):
            judge = judge_values(judged, strategy, {name}, profile.n_turns)
            texts = consistency_values(consistency, strategy, {name}, profile.n_turns)
            rows.append(
                {
                    "case": f"5{next(letters)}",
                    "dialogue": name,
                    "strategy": strategy,
                    "memes": len(texts),
                    "judge": float(np.mean(list(judge.values()))) if judge else np.nan,
                    "consistency": float(np.mean(list(texts.values()))) if texts else np.nan,
                }
            )
    return pd.DataFrame(rows, columns=["case", "dialogue", "strategy", "memes", "judge", "consistency"])


def gaps_of(places: Iterable[Key]) -> list[int]:
    """Turns from each place to the next one in the same dialogue."""
    return [b[1] - a[1] for a, b in pairwise(sorted(places)) if a[0] == b[0]]


def meme_use(placements: Sequence[Placement], dialogues: Sequence[Dialogue]) -> pd.DataFrame:
    """How often each strategy sends, how far apart, and how many different memes."""
    turns = sum(len(d.turns) - 1 for d in dialogues)
    rows = []
    for strategy in dict.fromkeys(p.strategy for p in placements):
        mine = [p for p in placements if p.strategy == strategy]
        gaps = gaps_of((placed.dialogue_id, placed.turn) for placed in mine)
        rows.append(
            {
                "strategy": strategy,
                "memes sent": len(mine),
                "rate": len(mine) / turns,
                "mean gap": float(np.mean(gaps)) if gaps else np.nan,
                "consecutive": sum(gap == 1 for gap in gaps),
                "distinct memes": len({p.meme_id for p in mine}),
            }
        )
    columns = ["strategy", "memes sent", "rate", "mean gap", "consecutive", "distinct memes"]
    return pd.DataFrame(rows, columns=columns)
