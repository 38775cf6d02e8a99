"""Notebook 04b: do memes land? All strategies, and two senders that never read the chat, by grades."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from memecmd_utils import files, grades, learned, reranking, retrieval, statistics
from memecmd_utils.files import StageOutputError
from memecmd_utils.grades import Split
from memecmd_utils.learned import Corpus, LearnedPlacement, PlacementError, Predicted
from memecmd_utils.reranking import SMALL
from memecmd_utils.retrieval import LEARNED, RERANKED, Encode
from memecmd_utils.runs import Run, StageMissing
from memecmd_utils.schemas import Choice, Grade

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
OF_MEMES = ("fits", "lands", "mean grade", "specificity")
OF_RANKINGS = ("R@1", "R@5", "MRR", "nDCG@5", "judged@5")
RANKINGS_COMPARED = ((LEARNED, PAPER), (LEARNED, POPULAR), (POPULAR, PAPER), (ALONE, POPULAR))
PLACE = ("dialogue", "turn")


class Sent(NamedTuple):
    """Which turns get a meme (a mask over the turns), and which meme would be sent at every turn."""

    turns: np.ndarray
    memes: np.ndarray


@dataclass(frozen=True)
class Graded:
    """A split with all its grades, and what everybody says of it.

    `found` is what learned placement says, `alone` [turns, memes] its scores without intercepts, `paper`
    those of Eq. 22. `liked` and `fitting` [turns, memes]: sum of a meme's grades, and number of turns that it
    fits, in the example's other dialogues. `choices` are those of models, by who chose.
    """

    name: str
    corpus: Corpus
    found: Predicted
    alone: np.ndarray
    paper: np.ndarray
    liked: np.ndarray
    fitting: np.ndarray
    choices: Mapping[str, Sequence[Choice]]

    @cached_property
    def chosen(self) -> dict[str, np.ndarray]:
        """Positions of the memes that a model chose, [turns], -1 for none, by who chose."""
        return {who: self.places_of(choices) for who, choices in self.choices.items()}

    @cached_property
    def asked(self) -> dict[str, np.ndarray]:
        """At which turns a model was asked and answered, [turns], by who was asked."""
        at = {
            who: {(c.dialogue_id, c.turn) for c in made if not c.unscored}
            for who, made in self.choices.items()
        }
        return {who: np.array([key in keys for key in self.corpus.keys]) for who, keys in at.items()}

    def places_of(self, choices: Iterable[Choice]) -> np.ndarray:
        """Positions of chosen memes at every turn, [turns]; -1: none."""
        at = {(choice.dialogue_id, choice.turn): choice.meme_id for choice in choices}
        return np.array([self.corpus.column.get(at.get(key, ""), -1) for key in self.corpus.keys])

    @cached_property
    def rankings(self) -> dict[str, np.ndarray]:
        """Scores [turns, memes] by who ranks; -inf for memes that it does not name.

        `reranked` ranks its choice before the paper's order, and none of it before nothing.
        """
        rows, single = np.arange(len(self.paper)), self.fitting.argmax(axis=1)
        only = np.full(self.paper.shape, -np.inf)
        only[rows, single] = 1
        out = {LEARNED: self.found.scores, ALONE: self.alone, PAPER: self.paper, POPULAR: self.liked}
        for who, memes in self.chosen.items():
            out[who] = self.paper.copy()
            out[who][rows[memes >= 0], memes[memes >= 0]] = self.paper.max() + 1
        return {**out, SINGLE: only}

    @property
    def whole(self) -> dict[str, np.ndarray]:
        """The rankings of all who were asked at every turn."""
        part = {who for who, at in self.asked.items() if not at.all()}
        return {who: scores for who, scores in self.rankings.items() if who not in part}

    @cached_property
    def firsts(self) -> dict[str, np.ndarray]:
        """The first meme of everybody at every turn, [turns]."""
        corpus = self.corpus
        first = {who: retrieval.order(s, corpus.meme_ids)[:, 0] for who, s in self.rankings.items()}
        drawn = grades.random_order(corpus.keys, len(corpus.meme_ids), corpus.profile.seed)[:, 0]
        return {**first, GREEDY: first[PAPER], RANDOM: drawn}

    @cached_property
    def turns(self) -> dict[str, np.ndarray]:
        """Where everybody who decides on it sends, [turns], as masks; gates are fitted on the other half."""
        chosen = {who: memes >= 0 for who, memes in self.chosen.items()}
        gated = {who: sent for who, (_, _, sent) in self.gates.items()}
        return {ALL: np.ones(len(self.paper), dtype=bool), **chosen, **gated}

    @cached_property
    def gates(self) -> dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Gate scores, thresholds and decisions at every turn, [turns] each, by whose gate it is (Eq. 23).

        A gate is fitted on the other half of the dialogues.
        """
        corpus, best = self.corpus, {LEARNED: self.found.promise, GREEDY: self.paper.max(axis=1)}
        rules = {
            LEARNED: retrieval.rule_of(corpus.profile, retrieval.LEARNED_PENALTY),
            GREEDY: retrieval.rule_of(corpus.profile),
        }
        return {who: corpus.gate(best[who], rule)[:3] for who, rule in rules.items()}

    def sent(self, who: str, where: str) -> Sent:
        """The memes of `who` at the turns of `where`; popular sends no meme twice in a chat, save at all."""
        turns, memes = self.turns[where], self.firsts[who]
        if who == POPULAR and where != ALL:
            order, memes = retrieval.order(self.liked, self.corpus.meme_ids), memes.copy()
            for rows in self.corpus.rows_of.values():
                at = rows[turns[rows]]
                memes[at] = order[at, np.arange(len(at))]
        return Sent(turns, memes)

    def measures(self, sent: Sent) -> pd.DataFrame:
        """`OF_MEMES` of what is sent, and whether it was graded; a row a meme, by (dialogue, turn).

        A meme that nobody graded does not fit. Specificity: fits, less how often the same meme fits at the
        other turns at which it was graded.
        """
        at, given, known = np.flatnonzero(sent.turns), self.corpus.grades, ~np.isnan(self.corpus.grades)
        memes = sent.memes[at]
        mine, fits = given[at, memes], grades.fits(given)
        others = known.sum(axis=0)[memes] - known[at, memes]
        with np.errstate(invalid="ignore"):
            elsewhere = (fits.sum(axis=0)[memes] - fits[at, memes]) / others
        return pd.DataFrame(
            {
                "fits": fits[at, memes].astype(float), "lands": (mine == 2).astype(float),
                "mean grade": np.nan_to_num(mine), "specificity": fits[at, memes] - elsewhere,
                "ungraded": np.isnan(mine), "meme": memes,
            },
            index=pd.MultiIndex.from_tuples([self.corpus.keys[row] for row in at], names=PLACE),
        )  # fmt: skip


Rows = Callable[[Graded], Iterator[dict[str, Any]]]
"""What makes the rows of a table of a split."""


def grade_split(
    run: Run,
    split: Split,
    pool: Sequence[Grade],
    placement: LearnedPlacement,
    encoders: Mapping[str, Encode],
) -> Graded:
    """Encode a split, and let everybody say what they have not seen; `pool` are grades for the baselines."""
    knobs = run.profile.retrieval
    corpus = learned.corpus_of(split, encoders, run.profile, placement.turn_means)
    paper = retrieval.combine(corpus.terms(next(iter(encoders)), knobs.centring), knobs.weights)
    sums = [grades.elsewhere(pool, corpus.clusters, corpus.meme_ids, of) for of in (float, grades.fits)]
    found, alone = corpus.predict(placement), corpus.predict(placement.chat_alone()).scores
    return Graded(split.name, corpus, found, alone, paper, *sums, reranking.choices_of(run, split))


def known_before(split: Split) -> list[Grade]:
    """The grades that baselines count: none that was asked for because of them."""
    return [grade for batch, given in split.grades.items() if batch != grades.LATER[-1] for grade in given]


def grade_run(run: Run) -> list[Graded]:
    """What everybody says on a run's graded turns and on the untouched tests.

    Saves all whole rankings, and of the run's own turns the four terms and learned placement's gate, for the
    page. Nothing without grades, or where the weights of learned placement do not apply.
    """
    graded, arrays = [], {}
    try:
        names, encoders = learned.encoders_of(run)
        placement, splits = learned.open_placement(run.folder, names), learned.splits_of(run)
        pool = known_before(splits[0]) if splits else []
        graded = [grade_split(run, split, pool, placement, encoders) for split in splits]
    except PlacementError as error:
        print(f"no measure of learned placement: {error}")
    for one in graded:
        arrays |= {f"{one.name}/{who}": scores for who, scores in one.whole.items()}
        arrays[f"{one.name} memes"] = np.array(one.corpus.meme_ids)
    for one in graded[:1]:
        arrays["turns"] = np.array([f"{name}/{turn}" for name, turn in one.corpus.keys])
        arrays["terms"] = one.corpus.terms(next(iter(encoders)), run.profile.retrieval.centring).astype(
            np.float32
        )
        arrays["learned gate"] = np.array(one.gates[LEARNED][:2])
        arrays["popular"] = np.full(len(one.paper), -1)
        if RERANKED in one.turns:
            turns, memes = one.sent(POPULAR, RERANKED)
            arrays["popular"][turns] = memes[turns]
    run.save_arrays(SCORES, **arrays)
    return graded


def saved_rankings(run: Run, split: str) -> tuple[dict[str, np.ndarray], list[str]] | None:
    """`Graded.whole` of a split as `grade_run` saved them, rows as `grades.queries`, and the memes."""
    try:
        with np.load(run.read(SCORES), allow_pickle=False) as arrays:
            found = {name.partition("/")[2]: arrays[name] for name in arrays if name.startswith(f"{split}/")}
            return found, arrays[f"{split} memes"].tolist()
    except (StageMissing, KeyError):
        return None


def tabulate(
    run: Run, graded: Sequence[Graded], further: Mapping[str, Rows] | None = None
) -> dict[str, pd.DataFrame]:
    """All tables of some splits, the last one first, saved into the run's report and as `landing.json`.

    placed: the memes sent, a row a sender and place. differences: between two of them. sending: how often,
    and whether markers would. gate: does it tell when a meme is wanted? ranking: measures of whole rankings.
    `further` tables are those of `choosing`.
    """
    makers = {
        "placed": placed_rows, "differences": difference_rows, "sending": sending_rows, "gate": gate_rows,
        "ranking": ranking_rows, **(further or {}),
    }  # fmt: skip
    found = {
        name: pd.DataFrame([{"split": one.name, **row} for one in graded[::-1] for row in rows(one)])
        for name, rows in makers.items()
    }
    run.save_tables(**{f"landing_{name}": table for name, table in found.items()})
    run.save_json(TABLES, found)
    return found


def placed_rows(one: Graded) -> Iterator[dict[str, Any]]:
    """What was sent, at all turns and at the turns of each sender; first the sender whose turns they are.

    A meme that nobody graded does not fit and has grade 0; `ungraded` is their share.
    """
    for where, at in one.turns.items():
        rest = (POPULAR, SINGLE, LEARNED, ALONE, GREEDY, RANDOM)
        for who in dict.fromkeys((*((where,) if where != ALL else ()), *rest)) if at.any() else ():
            yield {"where": where, "who": who, **summary(one.measures(one.sent(who, where)))}


def summary(sent: pd.DataFrame) -> dict[str, Any]:
    """Means of `Graded.measures` with intervals, and how varied the memes are."""
    names = sent.index.get_level_values("dialogue").tolist()
    known = sent[sent.specificity.notna()]
    chats = Counter(zip(names, sent.meme, strict=True))
    return {
        "memes": len(sent), "ungraded": sent.ungraded.mean(),
        **statistics.mean_columns(OF_MEMES[:2], sent[[*OF_MEMES[:2]]], names, statistics.SHARE),
        **statistics.cluster_mean(sent["mean grade"].tolist(), names, statistics.GRADE).columns("mean grade"),
        **statistics.mean_columns(["specificity"], known[["specificity"]], known.index.get_level_values(0)),
        "different": sent.meme.nunique(), "repeats": sum(n - 1 for n in chats.values()),
        "right after another": grades.gaps_of(sent.index).count(1),
    }  # fmt: skip


def difference_rows(one: Graded) -> Iterator[dict[str, Any]]:
    """Who minus another, at the same turns or each at its own, in every one of `OF_MEMES`."""
    for where, pairs in COMPARED.items():
        for ours, theirs in pairs:
            at = (ours, theirs) if where == OWN else (where, where)
            if not {*at, ours, theirs} <= {*one.turns, *one.firsts}:
                continue
            a, b = (one.measures(one.sent(*sender)) for sender in zip((ours, theirs), at, strict=True))
            compare = statistics.unpaired_difference if where == OWN else statistics.paired_difference
            for measure in OF_MEMES:
                got = compare(a[measure].dropna().to_dict(), b[measure].dropna().to_dict())
                row = {"where": where, "who": ours, "minus": theirs, "measure": measure}
                yield {**row, **got.row(), "p": got.p}


def sending_rows(one: Graded) -> Iterator[dict[str, Any]]:
    """How often everybody sends, how far apart, and the kappa of the turns with each marker."""
    marks, corpus = one.corpus.marks, one.corpus
    markers = dict(zip(corpus.truth.markers, marks.T.astype(bool), strict=True))
    for who, at in {**{who: at for who, at in one.turns.items() if who != ALL}, **markers}.items():
        asked = one.asked.get(who, np.ones(len(at), dtype=bool))
        gaps = grades.gaps_of(corpus.keys[row] for row in np.flatnonzero(at))
        row = {"who": who, "memes": int(at.sum()), "rate": at.sum() / max(1, asked.sum())}
        row |= {"mean gap": float(np.mean(gaps)) if gaps else np.nan, "right after another": gaps.count(1)}
        for marker, theirs in markers.items():
            pairs = list(zip(at[asked].tolist(), theirs[asked].tolist(), strict=True))
            got = statistics.cluster_kappa(pairs, corpus.names[asked].tolist(), 2)
            row |= got.columns(f"kappa with {marker}") if who != marker else {}
        yield row


def gate_rows(one: Graded) -> Iterator[dict[str, Any]]:
    """AUC of both gates between turns that all markers fill and that none does."""
    names, marks = one.corpus.names, one.corpus.marks
    clear, filled = np.ptp(marks, axis=1) == 0, marks[:, 0] == 1
    for gate, scores in ((LEARNED, one.found.wanted), ("the paper's top score", one.paper.max(axis=1))):
        pairs = [list(zip(names[clear & p], scores[clear & p], strict=True)) for p in (filled, ~filled)]
        yield {"gate": gate, "measure": "AUC"} | statistics.cluster_auc(*pairs).row()


def ranking_rows(one: Graded) -> Iterator[dict[str, Any]]:
    """Measures of all rankings at the turns that have a fitting meme, and differences of some."""
    columns = [grades.MEASURES.index(name) for name in OF_RANKINGS]
    names = one.corpus.names[one.corpus.known].tolist()
    measured = {
        who: one.corpus.measure(scores)[:, columns] for who, scores in one.whole.items() if who != SINGLE
    }
    for ours, theirs in RANKINGS_COMPARED:
        measured[f"{ours} minus {theirs}"] = measured[ours] - measured[theirs]
    for name, values in measured.items():
        kind = statistics.FINE_DIFFERENCE if "minus" in name else statistics.MEASURE
        ends = statistics.mean_columns(OF_RANKINGS, values, names, kind)
        yield {"what": name, "turns": len(names), **ends}


def quoted(run: Run) -> dict[str, list[dict[str, Any]]]:
    """The tables of `landing.json`; empty where there is none, or without grades."""
    try:
        found = run.load_json(TABLES)
    except StageMissing:
        return {}
    return found if found["placed"] else {}


def fit_run(run: Run, path: Path | None = None) -> str:
    """Fit learned placement on a run, write `placement.json` into its folder, and measure it out of fold.

    Learns from the grades of `path` (`grades.read_grades`), else from the example's first pool; later grades
    count in the measures alone. Raises `StageOutputError` with fewer graded dialogues than folds. Gives
    ranking, placed memes and gate as tables in Markdown.
    """
    split = next(iter(learned.splits_of(run, path)), Split("", [], {}, [], {"": []}))
    first = next(iter(split.grades.values()))
    graded = {grade.dialogue_id for grade in first}
    split = replace(split, dialogues=[d for d in split.dialogues if d.dialogue_id in graded])
    by_kind = Counter(dialogue.kind for dialogue in split.dialogues)
    if not by_kind or min(by_kind.values()) < learned.FOLDS:
        raise StageOutputError(
            f"learned placement needs graded memes in {learned.FOLDS} or more dialogues of each kind; here "
            f"are {', '.join(f'{n} {kind}' for kind, n in sorted(by_kind.items())) or 'none'}"
        )
    names, encoders = learned.encoders_of(run)
    corpus = learned.corpus_of(replace(split, grades={"": first}), encoders, run.profile)
    placement = learned.learn(corpus, names)
    placement.save(run.write(learned.FILE))
    found = tabulate(run, [grade_split(run, split, first, placement, encoders)])
    columns = ["where", "who", "memes", "mean grade", "fits", "fits low", "fits high", "lands", "specificity"]
    ranking, gate = (found[name].drop(columns="split") for name in ("ranking", "gate"))
    return "\n".join(map(files.markdown, (ranking, found["placed"][columns], gate)))
