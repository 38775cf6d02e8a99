"""Tables 1 and 2 in the paper's form, the comparisons of the analysis plan, and the numbers behind them."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise, product
from typing import Any

import numpy as np
import pandas as pd

from memecmd_utils import statistics
from memecmd_utils.evaluation.judges import lengths
from memecmd_utils.files import paths
from memecmd_utils.schemas import Consistency, Dialogue, Meme, Placement, Rating
from memecmd_utils.settings import Profile

Key = tuple[str, int]
Values = dict[Key, float]
METRICS = ("judge", "consistency")
TABLE_1 = (
    "dataset", "metric", "strategy", "mean", "low", "high", "n", "dialogues", "unscored", "difference"
)  # fmt: skip
EFFECTS = ("effect", "metric", "comparison", "mean", "low", "high", "n", "dialogues", "p", "p_holm")
TABLE_2 = ("case", "dialogue", "strategy", "memes", "judge", "consistency")
MEME_USE = ("strategy", "memes sent", "rate", "mean gap", "consecutive", "distinct memes")
JUDGE_CHECK = ("judge", "score", "auc", "low", "high", "n", "dialogues", "tells apart")
LEVELS = ("strategy", "memes", "fits", "nobody", "both")
FITS = 1
"""Mean grade from which on a meme fits: both graders say that one could send it, or one that it lands."""


def placed_scores(
    ratings: Sequence[Rating], consistency: Sequence[Consistency], grades: Mapping[str, Values] | None = None
) -> pd.DataFrame:
    """Scores of placed memes: of the profile's first judge (nan: unscored), of consistency, and grades.

    `length` is that of the dialogue which a rating of unit `dialogue` was given for; nan counts for every
    length that reaches the turn.
    """
    rows: list[tuple] = [
        ("judge", r.strategy, r.dialogue_id, r.turn, r.overall, None if r.judge_unit == "meme" else r.n_turns)
        for r in ratings
        if r.judge == ratings[0].judge
    ]
    names = {"u_t": "consistency", "u_t+1": "consistency u_t+1"}
    rows += [(names[r.text], r.strategy, r.dialogue_id, r.turn, r.score, None)
             for r in consistency if r.text in names]  # fmt: skip
    for strategy, values in (grades or {}).items():
        rows += [("grade", strategy, *key, value, None) for key, value in values.items()]
    columns = ["metric", "strategy", "dialogue", "turn", "score", "length"]
    return pd.DataFrame(rows, columns=columns).astype({"score": float, "length": float})


def levels(grades: Mapping[str, Values]) -> pd.DataFrame:
    """How often memes fit, from mean grades by strategy: of two graders, so 0 means 0 from both.

    `fits` is the share with a mean grade of `FITS` or more, `nobody` that with 0, `both` that with 2.
    """
    rows = []
    for strategy, values in grades.items():
        means = np.array(list(values.values()), float)
        rows.append(
            (strategy, len(means), *((means >= FITS).mean(), (means == 0).mean(), (means == 2).mean()))
        )
    return pd.DataFrame(rows, columns=list(LEVELS))


def select(
    scores: pd.DataFrame, metric: str, strategy: str, names: Collection[str], n_turns: int
) -> pd.Series:
    """Scores of a cell of Table 1 by (dialogue, turn)."""
    mine = scores[(scores.metric == metric) & (scores.strategy == strategy) & (scores.turn <= n_turns)]
    mine = mine[mine.dialogue.isin(list(names)) & (mine.length.isna() | (mine.length == n_turns))]
    return mine.set_index(["dialogue", "turn"]).score


def table_1(
    ratings: Sequence[Rating],
    consistency: Sequence[Consistency],
    dialogues: Sequence[Dialogue],
    profile: Profile,
) -> pd.DataFrame:
    """One row per source, length, metric and strategy: mean, interval, items, difference to Random."""
    scores, rows = placed_scores(ratings, consistency), []
    by_kind = {kind: {d.dialogue_id for d in dialogues if d.kind == kind} for kind in ("news", "role")}
    for kind, n, metric in product(by_kind, lengths(profile.dialogue.n_turns), METRICS):
        names = by_kind[kind]
        cells = {}
        for strategy in profile.retrieval.strategies if names else ():
            asked = select(scores, metric, strategy, names, n)
            known = asked.dropna()
            mean = statistics.cluster_mean(known.to_list(), known.index.get_level_values("dialogue"))
            cells[strategy] = mean, int(asked.isna().sum())
        baseline = cells["random"][0].mean if "random" in cells else np.nan
        for strategy, (cell, unscored) in cells.items():
            rows.append(
                {
                    "dataset": f"{kind}-{n}", "metric": metric, "strategy": strategy, **cell.row(),
                    "unscored": unscored, "difference": cell.mean - baseline,
                }
            )  # fmt: skip
    return pd.DataFrame(rows, columns=list(TABLE_1))


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
    """Table 1 in the paper's form: a row per dataset, cells `mean [low, high] (n=memes in dialogues) ↑`."""
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
                text += f" (n={cell.n}{f' in {cell.dialogues}' if cell.n else ''}"
                text += f", {cell.unscored} unscored)" if cell.unscored else ")"
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
    control = "random_same_turns"
    if control not in profile.retrieval.strategies:
        return pd.DataFrame(columns=list(EFFECTS))
    names, scores = {d.dialogue_id for d in dialogues}, placed_scores(ratings, consistency, grades)
    rows = []
    for metric in (*(("grade",) if grades else ()), "judge", "consistency", "consistency u_t+1"):
        values = {
            strategy: select(scores, metric, strategy, names, profile.dialogue.n_turns).dropna().to_dict()
            for strategy in ("greedy", "sampling", control, "random")
        }
        effect = "choice (secondary)" if metric == "consistency u_t+1" else "choice"
        for strategy in ("greedy", "sampling"):
            rng = statistics.rng(profile.seed, "effect", metric, strategy)
            got = statistics.paired_difference(values[strategy], values[control], rng)
            rows.append((effect, metric, f"{strategy} - {control}", got))
        rng = statistics.rng(profile.seed, "effect", metric, "timing")
        got = statistics.unpaired_difference(values[control], values["random"], rng)
        rows.append(("timing", metric, f"{control} - random", got))
    table = pd.DataFrame(
        [
            {"effect": effect, "metric": metric, "comparison": comparison, **got.row(), "p": got.p}
            for effect, metric, comparison, got in rows
        ]
    ).astype({"p": float})
    primary = table.effect == "choice"
    table["p_holm"] = np.nan
    table.loc[primary, "p_holm"] = statistics.holm(list(table.loc[primary, "p"]))
    return table[list(EFFECTS)]


def judge_check(ratings: Sequence[Rating], profile: Profile) -> pd.DataFrame:
    """AUC of each judge between greedy's and random_same_turns' memes (analysis plan).

    `score`: `centred` and `raw` of a judge whose scores are centred, `rating` of one that gives numbers.
    `tells apart`: `yes`, `no` (the interval holds 0.5), `reversed` (it prefers random memes), `no interval`.
    """
    rows = []
    for judge in dict.fromkeys(r.judge for r in ratings):
        mine = [r for r in ratings if r.judge == judge and r.overall is not None]
        mine = [r for r in mine if r.judge_unit == "meme" or r.n_turns == profile.dialogue.n_turns]
        centred = any(r.raw is not None for r in mine)
        for score, name in (("overall", "centred" if centred else "rating"), ("raw", "raw")):
            scored = [r for r in mine if getattr(r, score) is not None]
            greedy, random = (
                [(r.dialogue_id, getattr(r, score)) for r in scored if r.strategy == strategy]
                for strategy in ("greedy", "random_same_turns")
            )
            if not greedy or not random:
                continue
            got = statistics.cluster_auc(greedy, random)
            apart = {1: "yes", -1: "reversed", 0: "no"}[statistics.direction(got.low, got.high, 0.5)]
            rows.append(
                {
                    "judge": judge, "score": name, "auc": got.mean, "low": got.low, "high": got.high,
                    "n": got.n, "dialogues": got.clusters,
                    "tells apart": apart if np.isfinite(got.low) else "no interval",
                }
            )  # fmt: skip
    return pd.DataFrame(rows, columns=list(JUDGE_CHECK))


def case_strategies(profile: Profile) -> list[str]:
    """The strategies of Figure 5 and Table 2 that a run has, in the paper's order."""
    return [name for name in ("greedy", "sampling", "random") if name in profile.retrieval.strategies]


def case_dialogues(
    placements: Sequence[Placement], dialogues: Sequence[Dialogue], profile: Profile
) -> list[str]:
    """First news and first role dialogue, by id, where every one of the case strategies places a meme."""
    compared = set(case_strategies(profile))
    have: dict[str, set[str]] = {}
    for placed in placements:
        have.setdefault(placed.dialogue_id, set()).add(placed.strategy)
    found = []
    for kind in ("news", "role"):
        for dialogue in sorted(dialogues, key=lambda d: d.dialogue_id):
            if dialogue.kind == kind and compared and compared <= have.get(dialogue.dialogue_id, set()):
                found.append(dialogue.dialogue_id)
                break
    return found


def table_2(
    cases: Sequence[str], ratings: Sequence[Rating], consistency: Sequence[Consistency], profile: Profile
) -> pd.DataFrame:
    """Table 2: judge and consistency of the chats of Figure 5, a row each (5a-5f); all their turns count."""
    scores, rows = placed_scores(ratings, consistency), []
    for letter, (name, strategy) in zip("abcdef", product(cases, case_strategies(profile)), strict=False):
        judge, texts = (
            select(scores, metric, strategy, [name], profile.dialogue.n_turns).dropna() for metric in METRICS
        )
        rows.append(
            {
                "case": f"5{letter}", "dialogue": name, "strategy": strategy, "memes": len(texts),
                "judge": judge.mean(), "consistency": texts.mean(),
            }
        )  # fmt: skip
    return pd.DataFrame(rows, columns=list(TABLE_2))


def beside_paper(table: pd.DataFrame) -> pd.DataFrame:
    """A `table_2` with the paper's own cells of the same strategies: of other dialogues, memes and judges."""
    printed = pd.read_csv(paths.data / "paper" / "table2.csv")
    printed.index = [printed.groupby("strategy").cumcount(), printed.strategy]  # which dialogue, strategy
    mine = pd.MultiIndex.from_arrays([pd.factorize(table["dialogue"])[0], table["strategy"]])
    beside = printed[["judge", "consistency"]].add_suffix(" (paper)").reindex(mine)
    return table.assign(**{name: beside[name].to_numpy() for name in beside})


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
    return pd.DataFrame(rows, columns=list(MEME_USE))


# --- The numbers of a run: what the README, the page and the comparison in CI read


WEAK_AUC = 0.7
"""Below it a judge orders fewer than seven of ten pairs rightly: a trend, no verdict on one meme."""


def frame_rows(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """A table as plain JSON values: floats rounded to six digits, NaN as None."""

    def clean(value: Any) -> Any:
        value = value.item() if isinstance(value, np.generic) else value
        if isinstance(value, float):
            return round(value, 6) if np.isfinite(value) else None
        return value

    return [{key: clean(value) for key, value in row.items()} for row in frame.to_dict("records")]


def distinct(texts: Sequence[str]) -> float:
    """Share of different pairs of characters among all (Li et al., 2016); 1 where none comes twice."""
    pairs = [text[i : i + 2] for text in texts for i in range(len(text) - 1)]
    return len(set(pairs)) / max(1, len(pairs))


def numbers(
    profile: Profile,
    memes: Sequence[Meme],
    dialogues: Sequence[Dialogue],
    placements: Sequence[Placement],
    ratings: Sequence[Rating],
    consistency: Sequence[Consistency],
    gate_table: dict[str, Any],
    truth: Mapping[str, list[dict[str, Any]]] | None = None,
    grades: Mapping[str, Values] | None = None,
) -> dict[str, Any]:
    """Everything that the report quotes, computed from the run's records.

    `truth` are the tables of `ground_truth.json`, `grades` those of placed memes by strategy.
    """
    turns = [turn for dialogue in dialogues for turn in dialogue.turns]
    summaries = [summary for dialogue in dialogues for summary in dialogue.summaries]
    texts = [turn.text for turn in turns]
    cases = case_dialogues(placements, dialogues, profile)
    return {
        "profile": profile.name,
        "memes": len(memes),
        "dialogues": {
            "total": len(dialogues),
            "news": sum(d.kind == "news" for d in dialogues),
            "role": sum(d.kind == "role" for d in dialogues),
            "turns": len(turns),
            "mean_characters": round(float(np.mean([len(text) for text in texts])), 6),
            "distinct_2": round(distinct(texts), 6),
            "turns_with_violations": sum(bool(turn.violations) for turn in turns),
            "summaries": len(summaries),
            "summaries_unscored": sum(bool(summary.unscored) for summary in summaries),
        },
        "gates": gate_table,
        "meme_use": frame_rows(meme_use(placements, dialogues)),
        "table_1": frame_rows(table_1(ratings, consistency, dialogues, profile)),
        "table_2": frame_rows(table_2(cases, ratings, consistency, profile)),
        "effects": frame_rows(effects(ratings, consistency, dialogues, profile, grades)),
        "levels": frame_rows(levels(grades or {})),
        "ground_truth": dict(truth or {}),
        "judge_check": frame_rows(judge_check(ratings, profile)),
        "ratings": {
            "total": len(ratings),
            "memes": len({(r.dialogue_id, r.turn, r.strategy) for r in ratings}),
            "judges": len({r.judge for r in ratings}),
            "placed": len(placements),
            "unscored": sum(rating.overall is None for rating in ratings),
            "sources": sorted({rating.source for rating in ratings}),
        },
    }


def consistency_frame(
    consistency: Sequence[Consistency], dialogues: Sequence[Dialogue], profile: Profile
) -> pd.DataFrame:
    """Rows of Figure 4: each strategy, and the shuffled baseline over all, by source of the dialogues."""
    rows = []
    for kind in ("news", "role"):
        names = {d.dialogue_id for d in dialogues if d.kind == kind}
        of_kind = [row for row in consistency if row.dialogue_id in names]
        if not of_kind:
            continue
        groups = {
            s: [r for r in of_kind if r.strategy == s and r.text == "u_t"]
            for s in profile.retrieval.strategies
        }
        groups["shuffled"] = [r for r in of_kind if r.text == "shuffled"]
        for strategy, group in groups.items():
            got = statistics.cluster_mean([r.score for r in group], [r.dialogue_id for r in group])
            rows.append({"dataset": f"{kind}-based", "strategy": strategy, **got.row()})
    return pd.DataFrame(rows, columns=["dataset", "strategy", "mean", "low", "high", "n", "dialogues"])


def headline(found: dict[str, Any]) -> dict[str, Any]:
    """The few numbers at the top of the page, each with its interval."""
    by_strategy = {row["strategy"]: row for row in found["meme_use"]}
    out: dict[str, Any] = {
        "Memes in the library": found["memes"],
        "Dialogues": found["dialogues"]["total"],
        "Turns": found["dialogues"]["turns"],
    }
    if greedy := by_strategy.get("greedy"):
        note = f"{greedy['memes sent']} memes sent"
        out["Meme rate of the gate"] = {"value": round(greedy["rate"], 3), "note": note}
    for row in found["effects"]:
        if row["effect"] == "choice" and row["mean"] is not None:
            out[f"{row['metric']}: {row['comparison']}"] = {
                "value": round(row["mean"], 2),
                "low": None if row["low"] is None else round(row["low"], 2),
                "high": None if row["high"] is None else round(row["high"], 2),
                "n": row["n"],
                "dialogues": row["dialogues"],
                "note": None if row["p_holm"] is None else f"Holm-corrected p = {row['p_holm']:.3f}",
            }
    row = first_check(found)
    if row is not None and row["low"] is not None:
        out["AUC of the judge"] = {
            "value": round(row["auc"], 3),
            "low": round(row["low"], 3),
            "high": round(row["high"], 3),
            "n": row["n"],
            "dialogues": row["dialogues"],
            "note": f"{JUDGE_IN_WORDS[row['tells apart']]} at the same turns",
        }
    return out


JUDGE_IN_WORDS = {
    "yes": "tells greedy's memes from random ones",
    "no": "cannot tell greedy's memes from random ones",
    "reversed": "prefers random memes to greedy's",
}
"""By `tells apart` of `tables.judge_check`."""


def first_check(found: Mapping[str, Any]) -> dict[str, Any] | None:
    """The check of the run's first judge, of the scores that its tables show; None where there is none."""
    return next((row for row in found["judge_check"] if row["score"] != "raw"), None)


def judge_verdict(found: dict[str, Any]) -> str:
    """One sentence on what the judge's scores are worth in this run."""
    row = first_check(found)
    if row is None and not found.get("ratings", {}).get("total", 1):
        return "No judge rated anything in this run."
    if row is None:
        return "No judge could be checked: there are too few rated memes."
    if row["low"] is None:
        least = statistics.MIN_CLUSTERS
        return (
            f"The judge could not be checked: an interval needs at least {least} dialogues with rated memes."
        )
    interval = (
        f"AUC {row['auc']:.2f}, 95 % interval {row['low']:.2f} to {row['high']:.2f}, n = {row['n']} in "
        f"{row['dialogues']} dialogues"
    )
    verdict = f"The judge {JUDGE_IN_WORDS[row['tells apart']]} at the same turns ({interval})"
    if row["tells apart"] == "yes":
        return f"{verdict}{', but only weakly' if row['auc'] < WEAK_AUC else ''}."
    if row["tells apart"] == "reversed":
        return f"{verdict}: it is no measure of quality here."
    return f"{verdict}: its scores say nothing about quality here."
