"""Study 1: what each judge is worth. Does it tell memes that fit from those that do not, and is it steady?

Judges are asked about memes that fit, random ones and hard negatives, drawn by seed and graded by a large
language model, not by people.
"""

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd

from memecmd_utils import statistics
from memecmd_utils.evaluation import consistency, judges
from memecmd_utils.evaluation.graded_turns import StudyData
from memecmd_utils.evaluation.judges import OTHER_ORDER, WORDINGS, Judge
from memecmd_utils.llm import chat as llm_chat
from memecmd_utils.runs import Run
from memecmd_utils.schemas import DIMENSIONS
from memecmd_utils.settings import Profile

Kind = Literal["fitting", "random", "hard negative"]
KINDS: tuple[Kind, ...] = ("fitting", "random", "hard negative")
FITS = 2
"""Sum of two graders' grades (0-4) from which a meme fits a turn."""
LANDS = 3
"""Sum from which it fits well enough to stand for what a judge should like."""
TURNS_PER_DIALOGUE = 2


class Item(NamedTuple):
    """A meme at a turn, and what the ground truth says of it."""

    kind: Kind
    dialogue_id: str
    turn: int
    meme_id: str

    @property
    def pair(self) -> tuple[str, int, str]:
        """(dialogue id, turn, meme id)."""
        return self.dialogue_id, self.turn, self.meme_id


def draw(data: StudyData) -> list[Item]:
    """Three items, in the order of `KINDS`, at each of up to `judge_checks` turns that have all three.

    *Fitting*: a sum of `LANDS` or more. *Random*: uniform over the library without memes that fit there; it
    may be ungraded. *Hard negative*: lands at another turn of the same dialogue and got 0 from every grader
    here. Every dialogue gives one turn before any gives a second, and none more than two. Without ground
    truth there are no items.
    """
    wanted = data.profile.evaluation.judge_checks
    if not wanted or not data.truth.grades:
        return []
    found = _candidates(data)
    chosen: list[tuple[int, float, int]] = []  # which of its dialogue's turns, a lot, the row
    for name, rows in data.rows_of.items():
        rng = statistics.rng(data.profile.seed, "judge items", name)
        able = [int(row) for row in rows if all(len(found[row][kind]) for kind in KINDS)]
        drawn = [able[i] for i in rng.permutation(len(able))[:TURNS_PER_DIALOGUE]]
        lot = float(rng.random())
        chosen += [(place, lot, row) for place, row in enumerate(drawn)]
    rows = sorted(row for _, _, row in sorted(chosen)[:wanted])
    return [_item(data, row, kind, found[row][kind]) for row in rows for kind in KINDS]


def for_wordings(items: Sequence[Item], profile: Profile) -> list[Item]:
    """The fitting and the random meme of `judge_wordings` of the turns, drawn by seed."""
    turns = list(dict.fromkeys((item.dialogue_id, item.turn) for item in items))
    order = statistics.rng(profile.seed, "judge wordings").permutation(len(turns))
    chosen = {turns[i] for i in order[: profile.evaluation.judge_wordings]}
    return [i for i in items if i.kind != "hard negative" and (i.dialogue_id, i.turn) in chosen]


def _candidates(data: StudyData) -> list[dict[Kind, np.ndarray]]:
    """For every row of the data: the columns of the memes that could serve as each kind."""
    gains = data.gains
    # A comparison with nan is false: what nobody graded neither fits nor is a hard negative.
    lands, fits = gains >= LANDS, gains >= FITS
    refused = np.all([data.grades_of(grader) == 0 for grader in data.truth.graders], axis=0)
    out: list[dict[Kind, np.ndarray]] = []
    for row, name in enumerate(data.clusters):
        # Over all its dialogue's turns: what lands at this one was not refused here.
        landed = lands[data.rows_of[name]].any(axis=0)
        kinds = {"fitting": lands[row], "random": ~fits[row], "hard negative": landed & refused[row]}
        out.append({kind: np.flatnonzero(able) for kind, able in kinds.items()})
    return out


def _item(data: StudyData, row: int, kind: Kind, columns: np.ndarray) -> Item:
    name, turn = data.keys[row]
    drawn = statistics.rng(data.profile.seed, "judge item", kind, name, turn).integers(len(columns))
    return Item(kind, name, turn, data.meme_ids[columns[drawn]])


# --- What every judge says of the items it is checked on, also in other wordings; nothing is counted here


SCORES = ("judge", "reading", "kind", "dialogue_id", "turn", "meme_id", "length", "score", "p")
ANSWER_COLUMNS = ("judge", "wording", "kind", "dialogue_id", "turn", "meme_id", "p")
P_YES, CENTRED, RATING, CONSISTENCY, RETRIEVAL = "p(yes)", "centred", "rating", "consistency", "retrieval"
"""Readings: what a score is. A yes/no judge has two; retrieval is no judge but a yardstick."""


class Answers(NamedTuple):
    """Scores (a row a judge, reading and item) and p(yes) in several wordings; nan where there is none."""

    scores: pd.DataFrame
    worded: pd.DataFrame


def ask_all(run: Run, data: StudyData) -> Answers:
    """Put the drawn items before every judge of the profile, and before the scorers that ask nobody."""
    items = draw(data)
    shown = _to_judge_items(items, data)
    scores, worded, names = [], [], []
    for number in range(len(run.profile.evaluation.judges) if items else 0):
        with judges.open_judge(run, number, data.dialogues, data.memes, names) as judge:
            names.append(judge.name)
            answers = judges.ask(shown, judge)
            overall = [_score(answers[item.pair], "overall") for item in items]
            if judge.kind == "rating":
                scores.append(_rows(data, items, judge.name, RATING, overall))
                continue
            raw = [_score(answers[item.pair], "raw") for item in items]
            scores += [_rows(data, items, judge.name, P_YES, raw)]
            scores += [_rows(data, items, judge.name, CENTRED, overall)]
            # A base model knows the run's own words only, and one that was stopped is asked nothing more.
            if judges.STOPPED in answers.values() or judges.continues_text(judge.chat.backend.model):
                continue
            few = for_wordings(items, run.profile)
            in_words = _ask_in_words(_to_judge_items(few, data), judge) if few else {}
            own = {item.pair: p / 100 for item, p in zip(items, raw, strict=True)}
            worded += [
                (judge.name, wording, *item, p[item.pair])
                for wording, p in {WORDINGS[0]: own, **in_words}.items()
                for item in few
            ]
    if items:
        scores += _without_asking(run, data, items)
    frame = pd.concat(scores, ignore_index=True) if scores else pd.DataFrame(columns=list(SCORES))
    return Answers(frame, pd.DataFrame(worded, columns=list(ANSWER_COLUMNS)))


def _to_judge_items(items: Sequence[Item], data: StudyData) -> list[judges.Item]:
    """What a judge is shown: a meme before u_t, each pair once; it may be random and a hard negative."""
    dialogues = {dialogue.dialogue_id: dialogue for dialogue in data.dialogues}
    return [
        judges.Item((name, turn, meme), dialogues[name], {turn: data.memes[meme]}, turn)
        for name, turn, meme in sorted({item.pair for item in items})
    ]


def _score(answer: judges.Answer, which: Literal["overall", "raw"]) -> float:
    return np.nan if isinstance(answer, str) else answer[0][which]


def _ask_in_words(shown: Sequence[judges.Item], judge: Judge) -> dict[str, dict[Hashable, float]]:
    """Mean p(yes) over the five questions in every wording but the run's own, by wording and key."""
    pairs = [judges.place_and_meme(item) for item in shown]
    in_words = {}
    for wording in (*WORDINGS[1:], OTHER_ORDER):
        label = (
            f"{judge.chat.backend.model.name}: {wording if wording == OTHER_ORDER else wording + ' wording'}"
        )
        answers = llm_chat.run(judges.ask_yes_no(pairs, judge.chat, label, wording))
        in_words[wording] = {
            item.key: np.nan if isinstance(p, str) else float(np.mean([p[k] for k in DIMENSIONS]))
            for item, p in zip(shown, answers, strict=True)
        }
    return in_words


def _without_asking(run: Run, data: StudyData, items: Sequence[Item]) -> list[pd.DataFrame]:
    """Consistency with u_t and u_t+1, and as a yardstick the score T that ranks memes, by embedder."""
    profile, out = run.profile, []
    if profile.models.consistency_embedder != profile.models.embedder:
        embedder = run.embedder(profile.models.consistency_embedder)
        out += _consistency(data, items, consistency.TextScorer(embedder, run.embedder_name()))
    if profile.evaluation.consistency == "cn_clip":
        out += _consistency(data, items, consistency.clip_scorer(run, data.memes))
    at = [(data.row[i.dialogue_id, i.turn], data.column[i.meme_id]) for i in items]
    for name in data.encoders:
        terms = data.terms(name, profile.retrieval.centring)
        values = [float(np.dot(profile.retrieval.weights, terms[:, r, c])) for r, c in at]
        out.append(_rows(data, items, f"T under {name}", RETRIEVAL, values))
    return out


def _consistency(data: StudyData, items: Sequence[Item], scorer: consistency.Scorer) -> list[pd.DataFrame]:
    """50 (cos + 1) of each item's meme with the utterance beside it and with the next one (Eq. 26)."""
    turns = {(d.dialogue_id, u.turn): u.text for d in data.dialogues for u in d.turns}
    able = [item for item in items if consistency.can_score(scorer, data.memes[item.meme_id])]
    texts = {
        (item.pair, name): turns[item.dialogue_id, item.turn + later]
        for later, name in enumerate(("u_t", "u_t+1"))
        for item in able
        if (item.dialogue_id, item.turn + later) in turns
    }
    pairs = [(pair[2], text) for (pair, _), text in texts.items()]
    scores = dict(zip(texts, consistency.score_pairs(pairs, data.memes, scorer), strict=True))
    return [
        _rows(
            data, items, f"{scorer.name} {name}", CONSISTENCY,
            [scores.get((item.pair, name), np.nan) for item in items],
        )
        for name in ("u_t", "u_t+1")
    ]  # fmt: skip


def _rows(
    data: StudyData, items: Sequence[Item], judge: str, reading: str, values: Sequence[float]
) -> pd.DataFrame:
    """The scores of one judge as a table; `length` is that of the caption in characters."""
    frame = pd.DataFrame(items).assign(judge=judge, reading=reading, score=values)
    frame["length"] = [len(data.memes[item.meme_id].text) for item in items]
    return frame.assign(p=frame["score"] / 100 if reading == P_YES else np.nan)[list(SCORES)]


# --- What each judge is worth


BINS = 10
"""Of p(yes), equally filled."""
STEADY = 0.667
"""Alpha over wordings from which a judge is steady: Krippendorff's bound for tentative conclusions."""
AGAINST = {"random": "random", "hard": "hard negative"}
"""What fitting memes are held against, by its name in the columns."""
TRUST = (
    "judge", "reading", "turns", "dialogues", "unscored",
    *statistics.with_ends("AUC random"), "wins random", *statistics.with_ends("AUC hard"), "wins hard",
    "ECE", "Brier", "Brier base rate", *statistics.with_ends("order shift", "length rho", "alpha wordings"),
    "verdict",
)  # fmt: skip
CALIBRATION = ("judge", "bin", "items", "mean p", "share that fits")
BY_WORDING = ("judge", "wording", "items", "dialogues", "mean p", *statistics.with_ends("AUC random"))
AGREEMENT = ("judge", "other", "items", "dialogues", *statistics.with_ends("alpha"))
PRINTED = ("AUC random", "AUC hard", "order shift", "length rho", "alpha wordings")
"""Columns that are shown with their interval in one cell; three digits, so that 0.503 is not 0.50."""
TRUSTED, TOPIC, UNSTEADY, NO, YARDSTICK = "trust", "topic only", "unsteady", "no", "yardstick"
REVERSED, UNTOLD = "reversed", "not told"
IN_WORDS = {
    TRUSTED: "tells fitting memes from random ones and from hard negatives",
    TOPIC: "tells fitting memes from random ones, but not from hard negatives",
    UNSTEADY: "tells fitting memes from others, but its answers change with the wording of the questions",
    NO: "cannot tell fitting memes from random ones",
    REVERSED: "prefers random memes to fitting ones",
    UNTOLD: "could not be held against the ground truth: too few dialogues have its answers",
}


class Checks(NamedTuple):
    """Four tables; empty, with their columns, where a run has no ground truth or checks nothing."""

    trust: pd.DataFrame
    """A row a judge and reading: how far each deserves trust."""
    calibration: pd.DataFrame
    """p(yes) against the share of memes that fit, in equally filled bins."""
    wordings: pd.DataFrame
    """AUC of fitting against random memes by wording."""
    agreement: pd.DataFrame
    """Krippendorff's alpha of the ranks that two judges give the same items."""


def measure_answers(answers: Answers) -> Checks:
    """All tables of some answers."""
    scores, worded = answers
    trust = [
        _trust_row(judge, reading, group, worded[worded["judge"] == judge])
        for (judge, reading), group in scores.groupby(["judge", "reading"], sort=False)
    ]
    binned = [
        {"judge": judge, **row}
        for judge, group in scores[scores["reading"] == P_YES].groupby("judge", sort=False)
        for row in bins(*_p_and_truth(group))
    ]
    by_wording = []
    for (judge, wording), group in worded.groupby(["judge", "wording"], sort=False):
        got = _auc(group, "random", "p")
        row = {"items": int(group["p"].notna().sum()), "mean p": float(group["p"].mean())}
        row |= {"dialogues": got.clusters, **got.columns("AUC random")}
        by_wording.append({"judge": judge, "wording": wording, **row})
    return Checks(
        pd.DataFrame(trust, columns=list(TRUST)),
        pd.DataFrame(binned, columns=list(CALIBRATION)),
        pd.DataFrame(by_wording, columns=list(BY_WORDING)),
        pd.DataFrame(_agreements(scores), columns=list(AGREEMENT)),
    )


def verdict(row: Mapping[str, Any]) -> str:
    """How far a judge deserves trust, by the rule of the plan, from its AUCs and its alpha over wordings.

    Without an interval (too few dialogues, or no answers) nothing is told, save of a judge that scores all
    alike. A judge without alpha is judged by its AUCs; one that clearly prefers random memes is told from one
    that cannot tell.
    """
    if row["reading"] == RETRIEVAL:
        return YARDSTICK
    if not np.isfinite(row["AUC random low"]) and row["AUC random"] != 0.5:
        return UNTOLD
    if row["AUC random high"] < 0.5:
        return REVERSED
    if not row["AUC random low"] > 0.5:
        return NO
    if not row["AUC hard low"] > 0.5:
        return TOPIC
    return UNSTEADY if row["alpha wordings"] < STEADY else TRUSTED


def trust_sentence(checks: Checks) -> str:
    """What the run's first judge can do, and which judges deserve trust; numbers from the tables only."""
    trust = checks.trust[checks.trust["verdict"] != YARDSTICK]
    if trust.empty:
        return "No judge was held against the ground truth."
    # The reading that the tables of stage 05 show: a yes/no judge's centred one.
    first = trust.sort_values("reading", key=lambda names: names == P_YES, kind="stable").iloc[0]
    random, hard = (statistics.spell_interval(first, f"AUC {kind}", sign="") for kind in AGAINST)
    of_first = (
        f"{_name(first)} {IN_WORDS[first['verdict']]} (AUC {random} against random memes, {hard} against "
        f"hard negatives, {first['dialogues']:.0f} dialogues)"
    )
    good = [_name(row) + _unasked(row) for _, row in trust[trust["verdict"] == TRUSTED].iterrows()]
    which = f": {', '.join(good)}" if good else ""
    unsteady = [
        f" {_name(row)} {IN_WORDS[UNSTEADY]} "
        f"(alpha {statistics.spell_interval(row, 'alpha wordings', sign='')})."
        for _, row in trust[trust["verdict"] == UNSTEADY].iterrows()
    ]
    deserve = "deserve" if len(good) > 1 else "deserves"
    text = f"{of_first}; of {len(trust)} scores by judges {len(good) or 'none'} {deserve} trust{which}."
    return text + "".join(unsteady)


def _unasked(row: pd.Series) -> str:
    known = np.isfinite(row["alpha wordings"]) or row["reading"] == CONSISTENCY
    return "" if known else ", not asked in other words"


def _name(row: pd.Series) -> str:
    return f"{row['judge']} ({row['reading']})" if row["reading"] in (P_YES, CENTRED) else row["judge"]


def trust_table(trust: pd.DataFrame) -> pd.DataFrame:
    """The table of trust for a reader: estimates with their intervals in one cell, what is missing a dash."""
    out = trust.drop(columns=[f"{name} {end}" for name in PRINTED for end in ("low", "high")]).round(3)
    for name in PRINTED:
        cells = (statistics.spell_interval(row, name, sign="") for _, row in trust.iterrows())
        out[name] = ["–" if cell == statistics.NOT_MEASURED else cell for cell in cells]
    return out


def _auc(group: pd.DataFrame, kind: str, value: str) -> statistics.Estimate:
    """AUC of fitting memes against another kind."""
    by_kind = {
        one: list(zip(part["dialogue_id"], part[value], strict=True))
        for one, part in group.dropna(subset=[value]).groupby("kind")
    }
    return statistics.cluster_auc(by_kind.get("fitting", []), by_kind.get(kind, []))


def wins(group: pd.DataFrame, kind: str) -> float:
    """Share of turns at which the fitting meme scores above the one of the other kind, ties half."""
    table = group.pivot(index=["dialogue_id", "turn"], columns="kind", values="score")
    both = table.reindex(columns=["fitting", kind]).dropna()
    return float((np.sign(both["fitting"] - both[kind]) / 2 + 0.5).mean()) if len(both) else float("nan")


def length_correlation(group: pd.DataFrame) -> statistics.Estimate:
    """Spearman correlation of score and caption length among memes that do not fit."""
    others = group[group["kind"] != "fitting"].dropna(subset=["score"])
    others = others.drop_duplicates(["dialogue_id", "turn", "meme_id"])
    others = others.sort_values("dialogue_id", kind="stable")
    columns = others[["dialogue_id", "length", "score"]]
    return statistics.cluster_spearman(list(columns.itertuples(index=False, name=None)))


def _p_and_truth(group: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    known = group.dropna(subset=["p"])
    return known["p"].to_numpy(float), (known["kind"] == "fitting").to_numpy(float)


def _trust_row(judge: str, reading: str, group: pd.DataFrame, worded: pd.DataFrame) -> dict[str, Any]:
    row: dict[str, Any] = dict.fromkeys(TRUST, np.nan)
    row |= {"judge": judge, "reading": reading, "unscored": int(group["score"].isna().sum())}
    row["turns"] = len(group[["dialogue_id", "turn"]].drop_duplicates())
    row["dialogues"] = group["dialogue_id"].nunique()
    for against, kind in AGAINST.items():
        row |= _auc(group, kind, "score").columns(f"AUC {against}")
        row[f"wins {against}"] = wins(group, kind)
    row |= length_correlation(group).columns("length rho")
    if reading == P_YES:
        p, fits = _p_and_truth(group)
        row["ECE"], row["Brier"] = calibration_error(p, fits), brier(p, fits)
        row["Brier base rate"] = brier(np.full(len(p), fits.mean()), fits) if len(p) else np.nan
    if reading in (P_YES, CENTRED) and len(worded):
        # Both readings come from the same answers, so one alpha, that of p(yes), speaks for both.
        row |= _steadiness(worded).columns("alpha wordings")
        row |= _order_shift(worded).columns("order shift")
    row["verdict"] = verdict(row)
    return row


def _by_wording(worded: pd.DataFrame, names: Sequence[str]) -> pd.DataFrame:
    """p(yes) as a table [items, wordings]; the index begins with the dialogue."""
    index = ["dialogue_id", "turn", "meme_id", "kind"]
    return worded.pivot(index=index, columns="wording", values="p").reindex(columns=list(names))


def _steadiness(worded: pd.DataFrame) -> statistics.Estimate:
    """Alpha (interval) of p(yes) with the wordings as raters."""
    asked = _by_wording(worded, WORDINGS)
    return statistics.cluster_alpha(asked.to_numpy().T, list(asked.index.get_level_values(0)), "interval")


def _order_shift(worded: pd.DataFrame) -> statistics.Estimate:
    """Mean change of p(yes) when the answers are named the other way round."""
    both = _by_wording(worded, [WORDINGS[0], OTHER_ORDER]).dropna()
    change = both[OTHER_ORDER] - both[WORDINGS[0]]
    return statistics.cluster_mean(list(change), list(both.index.get_level_values(0)))


def _agreements(scores: pd.DataFrame) -> list[dict[str, Any]]:
    """Alpha (interval, of ranks) of every two judges' overall scores, over the items that both scored."""
    overall = scores[scores["reading"].isin([CENTRED, RATING, CONSISTENCY])]
    names = list(dict.fromkeys(overall["judge"]))
    index = ["dialogue_id", "turn", "meme_id", "kind"]
    table = overall.pivot(index=index, columns="judge", values="score")
    rows = []
    for place, judge in enumerate(names):
        for other in names[place + 1 :]:
            both = table[[judge, other]].dropna()
            clusters = list(both.index.get_level_values(0))
            got = statistics.cluster_alpha(both.rank().to_numpy().T, clusters, "interval")
            sizes = {"items": len(both), "dialogues": got.clusters}
            rows.append({"judge": judge, "other": other, **sizes, **got.columns("alpha")})
    return rows


# --- Does p(yes) mean what it says?


def bins(p: np.ndarray, fits: np.ndarray) -> list[dict[str, Any]]:
    """Up to `BINS` equally filled bins by rising p: number, items, mean p and share of items that fit.

    `p` [items] is a probability, `fits` [items] 1 or 0. Equal p's stay in the order given.
    """
    parts = [part for part in np.array_split(np.argsort(p, kind="stable"), BINS) if len(part)]
    return [
        {"bin": n, "items": len(part), "mean p": float(p[part].mean()), "share that fits": fits[part].mean()}
        for n, part in enumerate(parts, start=1)
    ]


def calibration_error(p: np.ndarray, fits: np.ndarray) -> float:
    """Expected calibration error: a bin's mean distance of p from its share that fits, over all items."""
    if not len(p):
        return float("nan")
    return sum(row["items"] * abs(row["mean p"] - row["share that fits"]) for row in bins(p, fits)) / len(p)


def brier(p: np.ndarray, fits: np.ndarray) -> float:
    """Mean squared distance of p from the truth (Brier, 1950); nan without items."""
    return float(np.mean((p - fits) ** 2)) if len(p) else float("nan")
