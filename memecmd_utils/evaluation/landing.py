"""Do its memes land? Learned placement beside Greedy and random memes, by grades and marks.

On the example every dialogue is placed by the model that saw none of its grades and marks; the form of the
model was chosen in sight of it. On the untouched test, which no model was fitted on, the shipped model places
as it would in anybody's chats (`data/example/PLACEMENT_PLAN.md`).
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from memecmd_utils import files, learned, retrieval, statistics
from memecmd_utils.embedders import embedder_of
from memecmd_utils.evaluation import benchmark, learning, rankings
from memecmd_utils.evaluation.benchmark import Split
from memecmd_utils.evaluation.ground_truth import RELEVANT, GroundTruth, truth_of_run
from memecmd_utils.evaluation.learning import Corpus, Predicted
from memecmd_utils.evaluation.tables import frame_rows
from memecmd_utils.files import ExtraMissing
from memecmd_utils.learned import LearnedPlacement, PlacementError
from memecmd_utils.library import example_memes
from memecmd_utils.retrieval import Encode, Ranking, ScoredDialogue
from memecmd_utils.runs import Run
from memecmd_utils.schemas import Annotation, Dialogue, Meme
from memecmd_utils.settings import Profile

FILE = "landing.json"
WAYS = {
    "learned": "where P(wanted) times the gain to expect is highest",
    "ranker alone": "its memes, where its best score is highest",
    "gate alone": "its memes, where P(wanted) is highest",
    "greedy": "the paper's best meme, where the paper's gate opens",
    "random, same turns as learned": "a random meme at the turns of learned",
    "random, same turns as greedy": "a random meme at the turns of Greedy",
}
"""What is compared, and what each does."""
BINS = 5
CASES = 6
"""Wins and losses of each kind that are shown."""


class Sent(NamedTuple):
    """Which turns get a meme (a mask over the turns), and which meme would be sent at every turn."""

    turns: np.ndarray
    memes: np.ndarray


@dataclass(frozen=True)
class Graded:
    """A split as vectors, scores, and gains [turns, memes] of all grades (0-4, nan where nobody graded)."""

    name: str
    corpus: Corpus
    found: Predicted
    paper: np.ndarray
    """The paper's scores [turns, memes] (Eq. 22), each text centred by its own mean over the split."""
    profile: Profile
    new: frozenset[str] = frozenset()
    """Memes that no model was fitted on."""

    @cached_property
    def ways(self) -> dict[str, Sent]:
        """Every one of `WAYS`, at the rate of the profile, fitted on the other half of the dialogues."""
        found, settings = self.found, self.profile.retrieval
        best = retrieval.best_memes(found.scores, self.corpus.meme_ids, 1)[:, 0]
        papers = retrieval.best_memes(self.paper, self.corpus.meme_ids, 1)[:, 0]
        drawn = rankings.random_order(self.corpus.asked, len(self.corpus.meme_ids), self.profile.seed, 0)[
            :, 0
        ]
        ways = {
            "learned": Sent(self._gated(found.promise, settings.learned_penalty), best),
            "ranker alone": Sent(self._gated(found.scores.max(axis=1), 0.0), best),
            "gate alone": Sent(self._gated(found.wanted, 0.0), best),
            "greedy": Sent(self._gated(self.paper.max(axis=1), settings.threshold_penalty), papers),
        }
        for name in ("learned", "greedy"):
            ways[f"random, same turns as {name}"] = Sent(ways[name].turns, drawn)
        return ways

    def _gated(self, scores: np.ndarray, penalty: float) -> np.ndarray:
        """Where the gate opens for these best scores, fitted on the other half of the dialogues (Eq. 23)."""
        names, items = np.array(self.corpus.dialogues), []
        for dialogue in {query.dialogue.dialogue_id: query.dialogue for query in self.corpus.asked}.values():
            mine = scores[names == dialogue.dialogue_id, None]
            ranking = Ranking(np.zeros(mine.shape, dtype=np.int64), mine, np.zeros((*mine.shape, 4)))
            items.append(ScoredDialogue(dialogue, (), np.empty(0), ranking))
        own = self.profile.replace(threshold_penalty=penalty)
        traces = retrieval.traces(items, retrieval.calibrate(items, own))
        return np.concatenate([traces[item.dialogue.dialogue_id][2].sent for item in items])

    def grades(self, sent: Sent) -> np.ndarray:
        """Mean grade (0-2) of the meme of every turn; nan where nobody graded it."""
        return self.corpus.gains[np.arange(len(sent.memes)), sent.memes] / 2

    def rows(self, part: str) -> np.ndarray:
        """Turns of all dialogues, or of those of one kind."""
        kinds = np.array(self.corpus.kinds)
        return np.ones(len(kinds), dtype=bool) if part == "all" else kinds == part


@dataclass(frozen=True)
class Landing:
    """The tables, and wins and losses to look at; empty without grades or where the weights do not apply."""

    placed: pd.DataFrame
    """Of the memes sent: grades, shares with intervals, a row a split, part and way."""
    differences: pd.DataFrame
    """Mean grade of learned minus Greedy, first, and minus random."""
    gate: pd.DataFrame
    """How far the gate tells the turns that markers would fill."""
    reliability: pd.DataFrame
    """P(wanted) against the share that was marked, by fifths."""
    ranking: pd.DataFrame
    """R@1, R@5, MRR, nDCG@5 of the ranker and of the paper's score, and their differences."""
    cases: Sequence[Mapping[str, Any]]
    """Turns at which learned and Greedy send different memes that differ most in grade."""

    def save(self, run: Run) -> None:
        """Write the tables into the run's report, and `landing.json`, which page and README quote."""
        saved = {name: table for name, table in vars(self).items() if name != "cases"}
        run.save_tables(**{f"learned_{name}": table for name, table in saved.items()})
        run.save_json(FILE, {**{n: frame_rows(t) for n, t in saved.items()}, "cases": list(self.cases)})

    def text(self) -> str:
        """Ranking, placed memes and gate of all dialogues, as tables."""
        placed = self.placed[self.placed.part == "all"]
        shown = self.ranking[self.ranking.part == "all"].drop(columns=["split", "part"])
        placed = placed[["way", "memes", "mean grade", "fits", "fits low", "fits high", "wanted and fits"]]
        return "\n".join(map(files.markdown, (shown, placed, self.gate.drop(columns="split"))))


def measure_landing(run: Run) -> Landing:
    """Measure learned placement on a run's graded turns and on the untouched test, and save the tables."""
    memes = run.load(Meme)
    splits = benchmark.splits_of_run(run, run.load(Dialogue), memes, run.load(Annotation))
    graded = []
    try:
        graded = [predict_run_split(one, run) for one in splits]
    except PlacementError as error:
        print(f"no measure of learned placement: {error}")
    found = tabulate(graded)
    found.save(run)
    return found


def encoders_of(run: Run) -> dict[str, Encode]:
    """Both embedders of a run; a vector that is not on record is made on this machine."""
    return rankings.encoders_of(on_this_machine(run))


def on_this_machine(run: Run) -> Run:
    """The run, which makes what vectors are not on record, unless an endpoint would have to be paid."""
    paid = run.profile.models.embedder == "endpoint"
    return run if paid else replace(run, profile=run.profile.replace(mode="auto"))


def predict_run_split(split: Split, run: Run) -> Graded:
    """What the models of a run say of a split; `PlacementError` where they are for other embedders."""
    encoders = encoders_of(run)
    names = [embedder_of(run.profile, name, run.read_dirs).name for name in encoders]
    return predict_split(split, learned.open_placement(run.folder, names), encoders, run.profile)


def predict_split(
    split: Split, model: LearnedPlacement, encoders: Mapping[str, Encode], profile: Profile
) -> Graded:
    """Encode a split, and let the models say what they have not seen."""
    truth = GroundTruth(list(split.marks), [grade for batch in split.grades.values() for grade in batch])
    corpus = learning.read_corpus(
        split.dialogues, split.memes, split.annotations, truth, encoders, model.turn_means
    )
    first = next(iter(encoders.values()))
    summaries = {(d.dialogue_id, s.turn): s for d in split.dialogues for s in d.summaries}
    asked = [summaries[query.key] for query in corpus.asked]
    usable = [annotation for annotation in split.annotations if annotation.usable]
    terms = rankings.four_terms(asked, usable, first, profile.retrieval.centring)
    new = frozenset()
    if split.name == benchmark.UNTOUCHED:
        new = frozenset(corpus.meme_ids) - {row.meme_id for row in example_memes()}
    paper = retrieval.combine(terms, profile.retrieval.weights)
    return Graded(split.name, corpus, learning.predict(corpus, model), paper, profile, new)


def tabulate(graded: Sequence[Graded]) -> Landing:
    """All tables of some splits."""
    makers = (placed_rows, difference_rows, gate_rows, reliability_rows, ranking_rows)
    found = [pd.DataFrame([row for one in graded for row in rows(one)]) for rows in makers]
    return Landing(*found, [row for one in graded for row in cases(one)])


# --- Fitting on a run's own grades


def fit_run(run: Run, grades: Path | None = None) -> Landing:
    """Fit learned placement on a run, write `placement.json` into its folder, and measure it out of fold.

    Learns from `grades` (`learning.read_grades`), else from the example's ground truth; grades of what
    learned placement found are never learned from, but count in the measures. Raises `StageOutputError` with
    no grades, or fewer dialogues than folds.
    """
    if find_spec("sklearn") is None:
        raise ExtraMissing("make fit-placement needs scikit-learn: pip install -e '.[learn]'")
    dialogues, memes = run.load(Dialogue), {m.meme_id: m for m in run.load(Meme)}
    truth = (
        learning.read_grades(grades) if grades else truth_of_run(run.profile, dialogues, list(memes.values()))
    )
    graded = {grade.dialogue_id for grade in truth.grades}
    dialogues, annotations = [d for d in dialogues if d.dialogue_id in graded], run.load(Annotation)
    by_kind = Counter(d.kind for d in dialogues)
    if not by_kind or min(by_kind.values()) < learning.FOLDS:
        raise files.StageOutputError(
            f"learned placement needs graded memes in {learning.FOLDS} or more dialogues of each kind; "
            f"here are {', '.join(f'{n} {kind}' for kind, n in sorted(by_kind.items())) or 'none'}"
        )
    encoders = encoders_of(run)
    corpus = learning.read_corpus(dialogues, memes, annotations, truth, encoders)
    names = [embedder_of(run.profile, name, run.read_dirs).name for name in encoders]
    model = learning.learn(corpus, names)
    model.save(run.write(learned.FILE))
    batches = {benchmark.POOL: truth.grades, benchmark.LATER: truth.later}
    split = Split(run.profile.name, dialogues, memes, annotations, batches, truth.marks)
    found = tabulate([predict_split(split, model, encoders, run.profile)])
    found.save(run)
    return found


# --- Tables


def placed_rows(one: Graded) -> list[dict[str, Any]]:
    """What was sent, a row a part of the dialogues and way."""
    rows = []
    names, wanted = np.array(one.corpus.dialogues), one.corpus.marks.any(axis=1)
    for part in ("all", "news", "role"):
        for name, sent in one.ways.items():
            at = sent.turns & one.rows(part)
            grades = one.grades(sent)[at]
            known = np.nan_to_num(grades)
            shares = {
                "fits": known >= RELEVANT / 2,
                "0 from both": known == 0,
                "2 from both": known == 2,
                "wanted and fits": (known >= RELEVANT / 2) & wanted[at],
            }
            row = {
                "split": one.name, "part": part, "way": name, "memes": int(at.sum()),
                "ungraded": float(np.isnan(grades).mean()) if at.any() else 0.0,
                **statistics.cluster_mean(known, names[at], (0, 2)).columns("mean grade"),
            }  # fmt: skip
            for what, values in shares.items():
                row |= statistics.cluster_mean(values.astype(float), names[at], statistics.SHARE).columns(
                    what
                )
            rows.append(row)
    return rows


def difference_rows(one: Graded) -> list[dict[str, Any]]:
    """Mean grade of learned minus another: at each one's own turns, and at the same turns."""
    ours, rows = one.ways["learned"], []
    for part in ("all", "news", "role"):
        within = one.rows(part)

        def values(sent: Sent, turns: np.ndarray, within: np.ndarray = within) -> dict:
            keys = [one.corpus.asked[row].key for row in np.flatnonzero(turns & within)]
            return dict(zip(keys, np.nan_to_num(one.grades(sent))[turns & within].tolist(), strict=True))

        greedy, random = one.ways["greedy"], one.ways["random, same turns as learned"]
        pairs = {
            ("greedy", "each at its own turns"): (ours.turns, greedy, greedy.turns),
            ("greedy", "at the turns of Greedy"): (greedy.turns, greedy, greedy.turns),
            ("greedy", "at the turns of learned"): (ours.turns, greedy, ours.turns),
            ("random", "at the turns of learned"): (ours.turns, random, ours.turns),
        }
        for (minus, where), (our_turns, other, turns) in pairs.items():
            paired = our_turns is turns
            compare = statistics.paired_difference if paired else statistics.unpaired_difference
            rng = statistics.rng(one.profile.seed, "landing", one.name, part, minus, where)
            got = compare(values(ours, our_turns), values(other, turns), rng)
            row = {"split": one.name, "part": part, "learned minus": minus, "where": where}
            rows.append({**row, **got.row(), "p": got.p})
    return rows


def gate_rows(one: Graded) -> list[dict[str, Any]]:
    """`timing_rows` of the learned gate and of the paper's best score."""
    gates = {learning.LEARNED: one.found.wanted, "the paper's top score": one.paper.max(axis=1)}
    return [
        {"split": one.name, "gate": gate, **row}
        for gate, scores in gates.items()
        for row in timing_rows(scores, one.corpus.marks, one.corpus.dialogues)
    ]


def timing_rows(scores: np.ndarray, marks: np.ndarray, dialogues: Sequence[str]) -> list[dict[str, Any]]:
    """How far scores [turns] tell when a meme is wanted: marks [turns, markers] are 0 or 1.

    AUC between turns that all markers fill and that none does; kappa with each marker where as many turns
    are filled as that marker fills.
    """
    names = np.array(dialogues)
    clear, filled = np.ptp(marks, axis=1) == 0, marks[:, 0] == 1
    pairs = [list(zip(names[clear & p], scores[clear & p], strict=True)) for p in (filled, ~filled)]
    rows = [{"measure": "AUC", **statistics.cluster_auc(*pairs).row()}]
    for number, mine in enumerate(marks.T, 1):
        sends = scores >= np.quantile(scores, 1 - mine.mean())
        both = list(zip(sends.astype(int).tolist(), mine.tolist(), strict=True))
        got = statistics.cluster_kappa(both, names.tolist(), 2)
        rows.append({"measure": f"kappa with marker {number}", **got.row()})
    return rows


def reliability_rows(one: Graded) -> list[dict[str, Any]]:
    """Mean P(wanted) and the share that was marked, by fifths of P."""
    wanted, marked = one.found.wanted, one.corpus.marks.mean(axis=1)
    return [
        {
            "split": one.name, "fifth": number, "P(wanted)": float(wanted[rows].mean()),
            "marked": float(marked[rows].mean()), "turns": len(rows),
        }
        for number, rows in enumerate(np.array_split(np.argsort(wanted, kind="stable"), BINS), 1)
        if len(rows)
    ]  # fmt: skip


def ranking_rows(one: Graded) -> list[dict[str, Any]]:
    """Measures of both rankings at the turns that have a fitting meme; of new memes by themselves, too."""
    rows = []
    gains, ids, names = one.corpus.gains, np.array(one.corpus.meme_ids), np.array(one.corpus.dialogues)
    parts = {part: (one.rows(part), np.ones(len(ids), dtype=bool)) for part in ("all", "news", "role")}
    if one.new:
        fresh = np.isin(ids, sorted(one.new))
        parts["new memes alone"] = one.rows("all"), fresh
    for part, (turns, memes) in parts.items():
        at = turns & (np.nan_to_num(gains[:, memes]) >= RELEVANT).any(axis=1)
        measured = {}
        for name, scores in ((learning.LEARNED, one.found.scores), (learning.PAPER, one.paper)):
            order = retrieval.order(scores[:, memes], ids[memes].tolist())
            measured[name] = rankings.per_turn(order[at], gains[:, memes][at])
        measured[f"{learning.LEARNED} minus {learning.PAPER}"] = (
            measured[learning.LEARNED] - measured[learning.PAPER]
        )
        for name, values in measured.items():
            row = {"split": one.name, "part": part, "what": name, "turns": int(at.sum())}
            bounds = statistics.SHARE if "minus" not in name else None
            columns = [rankings.COLUMNS.index(measure) for measure in learning.MEASURES]
            rows.append(
                row
                | statistics.mean_columns(learning.MEASURES, values[:, columns], names[at].tolist(), bounds)
            )
    return rows


def cases(one: Graded) -> list[dict[str, Any]]:
    """Turns at which learned or Greedy sends, with the largest differences in grade, wins and losses."""
    ours, greedy = one.ways["learned"], one.ways["greedy"]
    a, b = np.nan_to_num(one.grades(ours)), np.nan_to_num(one.grades(greedy))
    shown = []
    for kind, sign in (("win", 1), ("loss", -1)):
        gaps = np.where((ours.turns | greedy.turns) & (ours.memes != greedy.memes), sign * (a - b), -9)
        for row in np.argsort(-gaps, kind="stable")[:CASES]:
            if gaps[row] > 0:
                name, turn = one.corpus.asked[row].key
                shown.append(
                    {
                        "split": one.name, "case": kind, "dialogue_id": name, "turn": turn,
                        "learned": one.corpus.meme_ids[ours.memes[row]], "learned grade": float(a[row]),
                        "learned sends": bool(ours.turns[row]),
                        "greedy": one.corpus.meme_ids[greedy.memes[row]], "greedy grade": float(b[row]),
                        "greedy sends": bool(greedy.turns[row]),
                    }
                )  # fmt: skip
    return shown
