"""Notebook 04c: do memes land? All strategies, and two senders that never read the chat, by grades."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from memecmd_utils import files, grades, learned, reranking, retrieval, statistics
from memecmd_utils.files import StageOutputError, paths
from memecmd_utils.grades import Key, Sent
from memecmd_utils.learned import LearnedPlacement, PlacementError, Predicted
from memecmd_utils.reranking import SMALL
from memecmd_utils.retrieval import LEARNED, RERANKED, Encode
from memecmd_utils.runs import Run, StageMissing
from memecmd_utils.schemas import Choice, Dialogue, Grade, Summary
from memecmd_utils.splits import Split, Turns, splits_of_run

TABLES, SCORES = "landing.json", "learned.npz"
"""Files of a run: the tables that page and READMEs quote, and the rankings of its splits."""
PAPER, GREEDY, ALONE, RANDOM = "the paper's score", "greedy", "learned, chat alone", "random"
POPULAR, SINGLE = "popular", "best single meme"
"""Who ranks or sends, beside `learned` and `reranked`: what each is stands in `RERANKING_PLAN.md`."""
ALL, OWN = "all turns", "each at its own turns"
COMPARED = {
    ALL: ((LEARNED, POPULAR), (LEARNED, GREEDY), (LEARNED, ALONE), (POPULAR, GREEDY), (SINGLE, GREEDY)),
    RERANKED: ((RERANKED, POPULAR), (RERANKED, GREEDY), (RERANKED, LEARNED), (RERANKED, RANDOM)),
    SMALL: ((SMALL, POPULAR), (SMALL, GREEDY), (SMALL, RANDOM)),
    LEARNED: ((LEARNED, POPULAR), (LEARNED, GREEDY), (LEARNED, RANDOM)),
    GREEDY: ((POPULAR, GREEDY), (LEARNED, GREEDY), (GREEDY, RANDOM)),
    OWN: ((RERANKED, GREEDY), (LEARNED, GREEDY)),
}
"""At whose turns which pairs are compared; at all turns no gate chooses the turns, so that comes first."""
RANKINGS_COMPARED = ((LEARNED, PAPER), (LEARNED, POPULAR), (POPULAR, PAPER), (ALONE, POPULAR))
FROZEN = paths.example / "reranking_tables.json"
"""Tables of what was asked once, from files that stay as they are: choices under other settings, places of
choices in their lists, grades of memes in sequence, and scores of judges that saw the screenshots."""


@dataclass(frozen=True)
class Senders:
    """What everybody says of a split's turns, with all its grades.

    `learned` is what learned placement says, `alone` [turns, memes] its scores without intercepts. `liked`
    and `fitting` [turns, memes]: sum of a meme's grades, and number of turns that it fits, in the example's
    other dialogues. `choices` are those of models, by who chose. The paper's score (Eq. 22) is `data.scores`.
    """

    data: Turns
    learned: Predicted
    alone: np.ndarray
    liked: np.ndarray
    fitting: np.ndarray
    choices: Mapping[str, Sequence[Choice]]

    @cached_property
    def chosen(self) -> dict[str, np.ndarray]:
        """Columns of the memes that a model chose, [turns], by who chose; -1: none, nan: no answer."""
        out = {}
        for who, choices in self.choices.items():
            at = {(c.dialogue_id, c.turn): c.meme_id for c in choices if not c.unscored}
            columns = {key: self.data.column.get(meme, -1) for key, meme in at.items()}
            out[who] = np.array([columns.get(key, np.nan) for key in self.data.keys])
        return out

    @cached_property
    def rankings(self) -> dict[str, np.ndarray]:
        """Scores [turns, memes] by who ranks; -inf for memes that it does not name.

        `reranked` ranks its choice before the paper's order, and none of it before nothing.
        """
        paper = self.data.scores
        rows, only = np.arange(len(paper)), np.full(paper.shape, -np.inf)
        only[rows, self.fitting.argmax(axis=1)] = 1
        out = {LEARNED: self.learned.scores, ALONE: self.alone, PAPER: paper, POPULAR: self.liked}
        for who, memes in self.chosen.items():
            out[who] = paper.copy()
            out[who][rows[memes >= 0], memes[memes >= 0].astype(int)] = paper.max() + 1
        return {**out, SINGLE: only}

    @property
    def whole(self) -> dict[str, np.ndarray]:
        """The rankings of all who were asked at every turn."""
        part = {who for who, memes in self.chosen.items() if np.isnan(memes).any()}
        return {who: scores for who, scores in self.rankings.items() if who not in part}

    @cached_property
    def firsts(self) -> dict[str, np.ndarray]:
        """The first meme of everybody at every turn, [turns]."""
        data = self.data
        first = {who: retrieval.order(s, data.meme_ids)[:, 0] for who, s in self.rankings.items()}
        drawn = grades.random_order(data.keys, len(data.meme_ids), data.profile.seed)[:, 0]
        return {**first, GREEDY: first[PAPER], RANDOM: drawn}

    @cached_property
    def turns(self) -> dict[str, np.ndarray]:
        """Where everybody who decides on it sends, [turns], as masks; by a gate where none chose (Eq. 23)."""
        data, profile = self.data, self.data.profile
        learned_rule = retrieval.rule_of(profile, retrieval.LEARNED_PENALTY)
        return {
            ALL: np.ones(len(data.keys), dtype=bool),
            **{who: memes >= 0 for who, memes in self.chosen.items()},
            LEARNED: data.gate(self.learned.promise, learned_rule),
            GREEDY: data.gate(data.scores.max(axis=1), retrieval.rule_of(profile)),
        }

    @cached_property
    def _sent(self) -> dict[tuple[str, str], Sent]:
        return {}

    def sent(self, who: str, where: str) -> Sent:
        """`who`'s memes at the turns of `where`, kept once made.

        Popular repeats itself in a chat only after all memes, except where all turns are compared.
        """
        if (who, where) not in self._sent:
            at = np.flatnonzero(self.turns[where])
            memes = self.firsts[who][at]
            if who == POPULAR and where != ALL:
                chats = pd.Series(np.array(self.data.clusters)[at])
                nth = chats.groupby(chats).cumcount() % len(self.data.meme_ids)
                memes = retrieval.order(self.liked, self.data.meme_ids)[at, nth]
            self._sent[who, where] = Sent(self.data.pairs(at, memes), self.data.fit_counts)
        return self._sent[who, where]


def grade_split(
    run: Run,
    split: Split,
    pool: Mapping[Key, Mapping[str, float]],
    placement: LearnedPlacement,
    encoders: Mapping[str, Encode],
    choices: Mapping[str, Sequence[Choice]],
) -> Senders:
    """Encode a split, and let everybody say what they have not seen; baselines have the means of `pool`."""
    data = Turns(split, run.profile, encoders, every=True, means=placement.turn_means)
    worths = np.positive, grades.fits
    sums = [grades.elsewhere(pool, data.clusters, data.meme_ids, worth) for worth in worths]
    alone = placement.chat_alone().predict(data).scores
    return Senders(data, placement.predict(data), alone, *sums, choices)


def grade_run(run: Run) -> list[Senders]:
    """What everybody says on a run's graded turns and on the untouched tests.

    Saves all whole rankings and who sends where. Nothing without grades, or where the weights of learned
    placement do not apply.
    """
    graded, arrays = [], {}
    try:
        names, encoders = learned.open_encoders(learned.on_this_machine(run))
        placement = learned.open_placement(run, names)
        splits = [split for split in splits_of_run(run) if split.truth.grades]
        # What baselines count: no grade that was asked for because of them.
        batches = splits[0].truth.batches if splits else {}
        pool = grades.mean_grades(g for batch, given in batches.items() if batch != RERANKED for g in given)
        graded = [
            grade_split(run, s, pool, placement, encoders, reranking.choices_of(run, s)) for s in splits
        ]
    except PlacementError as error:
        print(f"no measure of learned placement: {error}")
    for senders in graded:
        name = senders.data.split.name
        arrays |= {f"{name}/{who}": scores for who, scores in senders.whole.items()}
        arrays |= {f"{name} sends/{who}": at for who, at in senders.turns.items() if who != ALL}
        arrays[f"{name} memes"] = np.array(senders.data.meme_ids)
    run.save_arrays(SCORES, **arrays)
    return graded


class Saved(NamedTuple):
    """Of a split: `Senders.whole` and `Senders.turns`, rows as `Turns.asked`, and the memes (columns)."""

    scores: dict[str, np.ndarray]
    sends: dict[str, np.ndarray]
    meme_ids: list[str]


def saved_rankings(run: Run, split: str) -> Saved | None:
    """What `grade_run` saved of a split."""
    try:
        with np.load(run.read(SCORES), allow_pickle=False) as arrays:
            parts = (
                {name.removeprefix(start): arrays[name] for name in arrays if name.startswith(start)}
                for start in (f"{split}/", f"{split} sends/")
            )
            return Saved(*parts, arrays[f"{split} memes"].tolist())
    except (StageMissing, KeyError):
        return None


def tabulate(run: Run, graded: Sequence[Senders], stem: str = "landing") -> dict[str, pd.DataFrame]:
    """All tables of some splits, the last one first, saved into the run's report and as `landing.json`.

    placed: the memes sent, a row a sender and place. differences: between two of them. sending: how often,
    and whether markers would. gate: does it tell when a meme is wanted? ranking: measures of whole rankings.
    `stem` begins the names of the files.
    """
    makers = {
        "placed": placed_rows, "differences": difference_rows, "sending": sending_rows, "gate": gate_rows,
        "ranking": ranking_rows,
    }  # fmt: skip
    tables = {
        name: pd.DataFrame([{"split": s.data.split.name, **row} for s in graded[::-1] for row in rows(s)])
        for name, rows in makers.items()
    }
    run.save_tables(**{f"{stem}_{name}": table for name, table in tables.items()})
    run.save_json(f"{stem}.json", tables)
    return tables


def placed_rows(senders: Senders) -> Iterator[dict[str, Any]]:
    """What was sent, at all turns and at the turns of each sender; first the sender whose turns they are.

    A meme that nobody graded does not fit and has grade 0; `ungraded` is their share. `chats` got a meme;
    `lands a chat`: memes that land, over all chats.
    """
    data = senders.data
    for where, turns in senders.turns.items():
        rest = (POPULAR, SINGLE, LEARNED, ALONE, GREEDY, RANDOM)
        for who in dict.fromkeys((*((where,) if where != ALL else ()), *rest)) if turns.any() else ():
            found = senders.sent(who, where)
            sent = found.memes
            yield {
                "where": where, "who": who, "memes": len(sent), "ungraded": sent["grade"].isna().mean(),
                **found.means(), "different": sent["meme"].nunique(),
                "repeats": int(sent.duplicated(["dialogue", "meme"]).sum()),
                "chats": sent["dialogue"].nunique(),
                "lands a chat": (sent["grade"] == 2).sum() / len(data.rows_of),
            }  # fmt: skip


def difference_rows(senders: Senders) -> Iterator[dict[str, Any]]:
    """Who minus another, turn by turn or each over its own turns, in every one of `grades.OF_MEMES`."""
    for where, pairs in COMPARED.items():
        for who, other in pairs:
            at = (who, other) if where == OWN else (where, where)
            if not {*at, who, other} <= {*senders.turns, *senders.firsts}:
                continue
            ours, theirs = (senders.sent(*sender) for sender in zip((who, other), at, strict=True))
            for measure, got in ours.minus(theirs, is_paired=where != OWN).items():
                row = {"where": where, "who": who, "minus": other, "measure": measure}
                yield {**row, "difference": got, "n": got.n, "dialogues": got.clusters, "p": got.p}


def sending_rows(senders: Senders) -> Iterator[dict[str, Any]]:
    """How often everybody sends, how far apart, and the kappa of the turns with each marker."""
    data, names = senders.data, np.array(senders.data.clusters)
    markers = dict(zip(data.split.truth.markers, data.marks.T, strict=True))
    for who, at in {**{who: at for who, at in senders.turns.items() if who != ALL}, **markers}.items():
        asked = np.isfinite(senders.chosen.get(who, at))
        sends = np.nan_to_num(at) > 0
        gaps = grades.gaps_of(data.keys[row] for row in np.flatnonzero(sends))
        row = {"who": who, "memes": int(sends.sum()), "rate": sends.sum() / max(1, asked.sum())}
        row |= {"mean gap": float(np.mean(gaps)) if gaps else np.nan, "right after another": gaps.count(1)}
        for marker, theirs in markers.items():
            both = asked & np.isfinite(theirs)
            pairs = list(zip(sends[both].tolist(), (theirs[both] > 0).tolist(), strict=True))
            got = statistics.cluster_kappa(pairs, names[both].tolist())
            row |= {f"kappa with {marker}": got} if who != marker else {}
        yield row


def gate_rows(senders: Senders) -> Iterator[dict[str, Any]]:
    """AUC of both gates between turns that all markers fill and that none does."""
    marks, names = senders.data.marks, np.array(senders.data.clusters)
    filled, empty = (marks == 1).all(axis=1), (marks == 0).all(axis=1)
    scores = {LEARNED: senders.learned.wanted, "the paper's top score": senders.data.scores.max(axis=1)}
    for gate, values in scores.items() if marks.shape[1] else ():
        pairs = [list(zip(names[at], values[at], strict=True)) for at in (filled, empty)]
        got = statistics.cluster_auc(*pairs)
        yield {"gate": gate, "AUC": got, "n": got.n, "dialogues": got.clusters}


def ranking_rows(senders: Senders) -> Iterator[dict[str, Any]]:
    """`grades.MEASURES` of all rankings at the turns that have a fitting meme, and differences of some."""
    data, names = senders.data, senders.data.answerable_clusters
    measured = {who: data.measure(scores) for who, scores in senders.whole.items() if who != SINGLE}
    for who, other in RANKINGS_COMPARED:
        measured[f"{who} minus {other}"] = measured[who] - measured[other]
    for name, values in measured.items():
        kind = statistics.FINE_DIFFERENCE if "minus" in name else statistics.MEASURE
        means = statistics.cluster_means(grades.MEASURES, values, names, kind)
        yield {"what": name, "turns": len(names), **means}


def quoted(run: Run) -> dict[str, list[dict[str, Any]]]:
    """The tables of `landing.json` and of `FROZEN`; empty where there is none, or without grades."""
    try:
        tables = run.load_json(TABLES)
    except StageMissing:
        return {}
    return {**tables, **frozen_tables()} if tables["placed"] else {}


def frozen_tables() -> dict[str, list[dict[str, Any]]]:
    """The rows of the tables of `FROZEN`, with their estimates."""
    return statistics.read_tables(FROZEN)


def only_graded(dialogues: Sequence[Dialogue], given: Sequence[Grade]) -> list[Dialogue]:
    """The dialogues that have grades, in which a turn without any has no usable summary: it says nothing."""
    graded = {(grade.dialogue_id, grade.turn) for grade in given}

    def asked(dialogue: Dialogue) -> list[Summary]:
        return [
            s if (dialogue.dialogue_id, s.turn) in graded else s.model_copy(update={"unscored": "not graded"})
            for s in dialogue.summaries
        ]

    names = {name for name, _ in graded}
    return [d.model_copy(update={"summaries": asked(d)}) for d in dialogues if d.dialogue_id in names]


def fit_run(run: Run, path: Path | None = None) -> str:
    """Fit learned placement on a run, write `placement.json` into its folder, and measure it out of fold.

    Learns from the grades of `path` (`grades.read_grades`), else from the example's first pool; later grades
    count in the measures alone. Raises `StageOutputError` with fewer graded dialogues than folds, and for
    grades that teach nothing. Gives placed memes and gate as tables in Markdown; all stand in the report.
    """
    split = next(splits_of_run(run, path))
    split = replace(split, dialogues=only_graded(split.dialogues, split.truth.grades))
    by_kind = Counter(dialogue.kind for dialogue in split.dialogues)
    means = grades.mean_grades(split.truth.grades)
    compares = any(len({*of_turn.values()}) > 1 for of_turn in means.values())
    if not compares or min(by_kind.values()) < learned.FOLDS:
        raise StageOutputError(
            f"learned placement needs graded memes in {learned.FOLDS} or more dialogues of each kind; here "
            f"are {', '.join(f'{n} {kind}' for kind, n in sorted(by_kind.items())) or 'none'}"
            f"{'' if compares else '. At no turn do two of them differ in their grade'}"
        )
    names, encoders = learned.open_encoders(learned.on_this_machine(run))
    placement = learned.learn(Turns(split, run.profile, encoders), names)
    placement.save(run.write(learned.FILE))
    graded = grade_split(run, split, means, placement, encoders, {})
    tables = tabulate(run, [graded], stem="fitted")
    placed = tables["placed"][["where", "who", "memes", "ungraded", *grades.OF_MEMES]].astype(object)
    placed.loc[placed["ungraded"] > 1 - grades.JUDGED, [*grades.OF_MEMES]] = None
    told = [
        files.markdown(placed),
        "A dash: fewer than 90 % of the memes have a grade, and what nobody graded is no miss. "
        "`make grading-page` makes a page to grade more.",
        "These grades say which meme fits and not when one is wanted, so there is no gate: a meme is sent"
        " where the grade to expect of it is highest."
        if placement.model.gate is None
        else files.markdown(tables["gate"]),
    ]
    return "\n".join(told)
