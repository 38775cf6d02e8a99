"""Stage 05's tables: Tables 1 and 2, effects, levels, use and counts (2507.00891, Section 5).

What rankings are worth by people's or a model's grades is in `grades`, what judges are worth in `judges`.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from memecmd_utils import grades, statistics
from memecmd_utils.files import paths
from memecmd_utils.grades import GroundTruth, Values, fits, gaps_of
from memecmd_utils.runs import Run
from memecmd_utils.schemas import DIALOGUE_KINDS, STRATEGIES, Consistency, Dialogue, Placement, Rating
from memecmd_utils.settings import Profile
from memecmd_utils.splits import Turns
from memecmd_utils.statistics import GRADE, Estimate

LENGTHS = (6, 12, 18)
"""Dialogue prefixes of Table 1."""


def lengths(profile: Profile) -> list[int]:
    """The lengths of Table 1: those of separate dialogues, else the prefixes and the full length."""
    n_turns = profile.dialogue.longest
    return sorted(profile.dialogue.separate or {*(n for n in LENGTHS if n <= n_turns), n_turns})


def lengths_of(dialogue: Dialogue, profile: Profile) -> list[int]:
    """The lengths at which Table 1 counts a dialogue: a separate one at its own, any other at each prefix."""
    return [len(dialogue.turns)] if profile.dialogue.separate else lengths(profile)


# --- Tables 1 and 2 in the paper's form, and the comparisons of the analysis plan


METRICS = ("judge", "consistency")
TABLE_1 = ("dataset", "metric", "strategy", "mean", "n", "dialogues", "unscored", "difference")
EFFECTS = ("effect", "metric", "comparison", "difference", "n", "dialogues", "p", "p_holm")
TABLE_2 = ("case", "dialogue", "strategy", "memes", "judge", "consistency")
MEME_USE = ("strategy", "memes sent", "rate", "mean gap", "consecutive", "distinct memes")
LEVELS = ("strategy", "memes", "ungraded", "fits", "lands", "nobody", "mean grade")


def placed_scores(
    ratings: Sequence[Rating], consistency: Sequence[Consistency], profile: Profile,
    graded: Mapping[str, Values] | None = None,
) -> pd.DataFrame:  # fmt: skip
    """Scores of placed memes: of the profile's first judge (nan: unscored), of consistency, and grades.

    `length` is that of the prefix which a rating of a whole dialogue was given for; nan counts for every
    length that reaches the turn.
    """

    def length(rating: Rating) -> int | None:
        return None if profile.dialogue.separate or rating.judge_unit == "meme" else rating.n_turns

    rows: list[tuple] = [
        ("judge", r.strategy, r.dialogue_id, r.turn, r.overall, length(r))
        for r in ratings
        if r.judge == ratings[0].judge
    ]
    names = {"u_t": "consistency", "u_t+1": "consistency u_t+1"}
    rows += [(names[r.text], r.strategy, r.dialogue_id, r.turn, r.score, None)
             for r in consistency if r.text in names]  # fmt: skip
    for strategy, values in (graded or {}).items():
        rows += [("grade", strategy, *key, value, None) for key, value in values.items()]
    columns = ["metric", "strategy", "dialogue", "turn", "score", "length"]
    return pd.DataFrame(rows, columns=columns).astype({"score": float, "length": float})


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
    """One row per source, length, metric and strategy: mean, interval, items, difference to Random.

    Items are memes; where a judge gives a chat one score (the paper), they are chats with a meme.
    """
    scores, rows = placed_scores(ratings, consistency, profile), []
    for kind, n, metric in product(DIALOGUE_KINDS, lengths(profile), METRICS):
        names = {d.dialogue_id for d in dialogues if d.kind == kind and n in lengths_of(d, profile)}
        cells = {}
        for strategy in profile.retrieval.strategies if names else ():
            asked = select(scores, metric, strategy, names, n)
            known = asked.dropna()
            if profile.evaluation.judge_unit == "chat":
                known = known.groupby(level="dialogue").mean()
            mean = statistics.cluster_mean(known.to_list(), known.index.get_level_values("dialogue"))
            cells[strategy] = mean, int(asked.isna().sum())
        baseline = cells["random"][0].value if "random" in cells else np.nan
        for strategy, (cell, unscored) in cells.items():
            counted = cell.n, cell.clusters, unscored, cell.value - baseline
            rows.append((f"{kind}-{n}", metric, strategy, cell, *counted))
    return pd.DataFrame(rows, columns=list(TABLE_1))


def table_1_printed(table: pd.DataFrame) -> pd.DataFrame:
    """Table 1 in the paper's form: a row a dataset and metric, a column a strategy.

    Cells are `mean [low, high] (n=memes in dialogues)`.
    """
    cells = [
        f"{row.mean} (n={row.n} in {row.dialogues}{f', {row.unscored} unscored' if row.unscored else ''})"
        for row in table.itertuples()
    ]
    shown = table.assign(cell=cells, strategy=[STRATEGIES[name].label for name in table["strategy"]])
    return shown.pivot_table("cell", ["dataset", "metric"], "strategy", "first", sort=False).reset_index()


def effects(
    ratings: Sequence[Rating],
    consistency: Sequence[Consistency],
    dialogues: Sequence[Dialogue],
    profile: Profile,
    graded: Mapping[str, Values] | None = None,
) -> pd.DataFrame:
    """Choice effect (paired by turn) and timing effect, by metric, with Holm over the choice effects.

    `graded` are mean grades (0-2) of placed memes by strategy, where the run has ground truth.
    """
    control = "random_same_turns"
    if control not in profile.retrieval.strategies:
        return pd.DataFrame(columns=list(EFFECTS))
    names, scores = {d.dialogue_id for d in dialogues}, placed_scores(ratings, consistency, profile, graded)
    rows = []
    for metric in (*(("grade",) if graded else ()), "judge", "consistency", "consistency u_t+1"):
        values = {
            strategy: select(scores, metric, strategy, names, profile.dialogue.longest).dropna().to_dict()
            for strategy in ("greedy", "sampling", control, "random")
        }
        effect = "choice (secondary)" if metric == "consistency u_t+1" else "choice"
        for strategy in ("greedy", "sampling"):
            got = statistics.paired_difference(values[strategy], values[control])
            rows.append((effect, metric, f"{strategy} - {control}", got, got.n, got.clusters, got.p))
        got = statistics.unpaired_difference(values[control], values["random"])
        rows.append(("timing", metric, f"{control} - random", got, got.n, got.clusters, got.p))
    table = pd.DataFrame(rows, columns=list(EFFECTS[:-1])).astype({"p": float})
    # A strategy with ungraded memes is not compared by grades.
    table = table[(table["metric"] != "grade") | (table["n"] > 0)].reset_index(drop=True)
    return table.assign(p_holm=statistics.holm(table["p"].where(table["effect"] == "choice")))


def levels(placements: Sequence[Placement], truth: GroundTruth) -> pd.DataFrame:
    """How good the memes of each strategy are by their mean grades (0-2); none without ground truth.

    `fits`, `lands` (2 from all graders) and `nobody` (0 from all) are shares of its memes, where all of them
    were graded: with another seed, gate or library those in the pool are no fair sample. `mean grade` is that
    of the graded ones.
    """
    graded, rows = grades.placed_grades(placements, truth), []
    for strategy, memes in Counter(p.strategy for p in placements if truth.grades).items():
        means = np.array(list(graded.get(strategy, {}).values()))
        kinds = (fits(means), means == 2, means == 0)
        shares = [statistics.share(of.mean() if len(means) == memes else np.nan) for of in kinds]
        mean = Estimate(means.mean() if len(means) else np.nan, kind=GRADE)
        rows.append((strategy, memes, statistics.share(1 - len(means) / memes), *shares, mean))
    return pd.DataFrame(rows, columns=list(LEVELS))


def case_strategies(profile: Profile) -> list[str]:
    """The strategies of Figure 5 and Table 2 that a run has, in the paper's order."""
    return [name for name in ("greedy", "sampling", "random") if name in profile.retrieval.strategies]


def case_dialogues(
    placements: Sequence[Placement], dialogues: Sequence[Dialogue], profile: Profile
) -> list[str]:
    """The first dialogue of each kind, by id, where every one of the case strategies places a meme."""
    places, wanted = {(p.dialogue_id, p.strategy) for p in placements}, case_strategies(profile)
    cases = []
    for kind in DIALOGUE_KINDS:
        able = (d.dialogue_id for d in dialogues if d.kind == kind)
        able = (name for name in able if wanted and {(name, strategy) for strategy in wanted} <= places)
        cases += sorted(able)[:1]
    return cases


def table_2(
    cases: Sequence[str], ratings: Sequence[Rating], consistency: Sequence[Consistency], profile: Profile
) -> pd.DataFrame:
    """Table 2: judge and consistency of the chats of Figure 5, a row each (5a-5f); all their turns count."""
    scores, rows = placed_scores(ratings, consistency, profile), []
    for letter, (name, strategy) in zip("abcdef", product(cases, case_strategies(profile)), strict=False):
        judge, texts = (
            select(scores, metric, strategy, [name], profile.dialogue.longest).dropna() for metric in METRICS
        )
        rows.append((f"5{letter}", name, strategy, len(texts), judge.mean(), texts.mean()))
    return pd.DataFrame(rows, columns=list(TABLE_2))


def meme_use(placements: Sequence[Placement], dialogues: Sequence[Dialogue]) -> pd.DataFrame:
    """How often each strategy sends, how far apart, and how many different memes."""
    turns = sum(len(d.turns) - 1 for d in dialogues)
    rows = []
    for strategy in dict.fromkeys(p.strategy for p in placements):
        mine = [p for p in placements if p.strategy == strategy]
        gaps = gaps_of((placed.dialogue_id, placed.turn) for placed in mine)
        mean_gap, distinct = float(np.mean(gaps)) if gaps else np.nan, len({p.meme_id for p in mine})
        rate = statistics.share(len(mine) / turns)
        rows.append((strategy, len(mine), rate, mean_gap, gaps.count(1), distinct))
    return pd.DataFrame(rows, columns=list(MEME_USE))


def evaluate_run(
    run: Run,
    data: Turns,
    ratings: Sequence[Rating],
    consistency: Sequence[Consistency],
    trust: pd.DataFrame,
) -> dict[str, pd.DataFrame]:
    """Compute and save every table of stage 05, by name, and what page and README quote of them.

    `trust` is the table of `judges.trust`. Tables of grades are empty where a run has none.
    """
    profile, truth = run.profile, data.split.truth
    dialogues, placements = run.load(Dialogue), run.load(Placement)
    run.save(consistency, Consistency)
    graded = grades.placed_grades(placements, truth, whole=True)
    cases = case_dialogues(placements, dialogues, profile)
    # Of all marks and grades of the example, which no run can change.
    agreement = statistics.read_tables(paths.example / "agreement.json") if truth.grades else ()
    by_grades = {"agreement": pd.DataFrame(agreement), "retrieval": grades.compare_systems(data)}
    by_judges = {
        "meme_use": meme_use(placements, dialogues),
        "table_1": table_1(ratings, consistency, dialogues, profile),
        "table_2": table_2(cases, ratings, consistency, profile),
        "effects": effects(ratings, consistency, dialogues, profile, graded),
        "levels": levels(placements, truth),
        "trust": trust,
    }
    run.save_json("ground_truth.json", by_grades)
    run.save_json("judge_checks.json", by_judges)
    tables = {**by_grades, **by_judges, "table_1_shown": table_1_printed(by_judges["table_1"])}
    tables |= {f"paper_table_{n}": pd.read_csv(paths.data / "paper" / f"table{n}.csv") for n in (1, 2)}
    run.save_tables(**tables)
    return tables


# --- The numbers of a run: what the README, the page and the comparison in CI read


def dialogue_counts(dialogues: Sequence[Dialogue]) -> dict[str, Any]:
    """How many dialogues there are of each kind, turns and summaries, and how long turns are."""
    turns = [turn for dialogue in dialogues for turn in dialogue.turns]
    summaries = [summary for dialogue in dialogues for summary in dialogue.summaries]
    kinds = Counter(dialogue.kind for dialogue in dialogues)
    return {
        "total": len(dialogues),
        "news": kinds["news"],
        "role": kinds["role"],
        "turns": len(turns),
        "mean_characters": round(float(np.mean([len(turn.text) for turn in turns])), 6),
        "turns_with_violations": sum(bool(turn.violations) for turn in turns),
        "summaries": len(summaries),
        "summaries_unscored": sum(bool(summary.unscored) for summary in summaries),
    }


def counts(
    profile: Profile, records: Mapping[str, Sequence[Any]], ratings: Sequence[Rating]
) -> dict[str, Any]:
    """How much of everything there is in a run's records, by table."""
    return {
        "profile": profile.name,
        "memes": len(records["memes"]),
        "dialogues": dialogue_counts(records["dialogues"]),
        "ratings": {
            "total": len(ratings),
            "memes": len({(r.dialogue_id, r.turn, r.strategy) for r in ratings}),
            "judges": len({r.judge for r in ratings}),
            "placed": len(records["placements"]),
            "unscored": sum(rating.overall is None for rating in ratings),
            "sources": sorted({rating.source for rating in ratings}),
        },
    }
