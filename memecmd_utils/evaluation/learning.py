"""Fits learned placement on grades and marks, out of fold (`data/example/PLACEMENT_PLAN.md`).

A ranker and trees learn which meme fits, a gate learns when one is wanted. Whatever is reported of a dialogue
comes from models that saw no grade and no mark of it. Penalties, rank and the weight of ungraded pairs are
chosen in inner folds of the rest.
"""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np
from tqdm.auto import tqdm

from memecmd_utils import files, learned, statistics
from memecmd_utils.evaluation import graded_turns, rankings, tables
from memecmd_utils.evaluation.ground_truth import GroundTruth
from memecmd_utils.evaluation.tables import Key
from memecmd_utils.learned import (
    LearnedIndex,
    LearnedPlacement,
    PlacementModel,
    Ranker,
    Trees,
    WantedGate,
)
from memecmd_utils.retrieval import Encode
from memecmd_utils.schemas import Annotation, Dialogue, Grade, Mark, Meme

FOLDS = 5
INNER_FOLDS = 4
PENALTIES = (3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)
RANKS = (2, 3, 6)
UNGRADED = (0.0, 0.3, 1.0)
"""Weights of pairs that nobody graded; they count as gain 0."""
GATE_STRENGTHS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
"""Inverse penalties of the gate, as scikit-learn's `C`."""
TREES, LEAVES, LEARNING_RATE, BINS = 150, 15, 0.1, 63
"""Fixed settings of the trees: choosing them in inner folds takes hours."""
UNGRADED_SHARE = 0.1
"""Pairs that nobody graded and that trees learn from, with ten times the weight."""
NDCG = graded_turns.MEASURES.index("nDCG@5")
PAPER, LEARNED = "the paper's score", "learned"
MEASURES = ("R@1", "R@5", "MRR", "nDCG@5", "judged@5")


class Choice(NamedTuple):
    """What inner folds choose for a ranker."""

    penalty: float
    rank: int
    ungraded: float


CHOICES = [Choice(*parts) for parts in product(PENALTIES, RANKS, UNGRADED)]


@dataclass(frozen=True)
class Examples:
    """What a ranker learns from: `cosines` [turns, memes, embedders, 6, 6] and `gains` [turns, memes].

    A gain is nan where nobody graded. `dialogues` and `kinds` name each turn's dialogue and its kind (news or
    role), by which folds are dealt; `meme_ids` decide between equal scores.
    """

    cosines: np.ndarray
    gains: np.ndarray
    dialogues: Sequence[str]
    kinds: Sequence[str]
    meme_ids: Sequence[str]

    def rows(self, chosen: np.ndarray) -> "Examples":
        """Those of some turns."""
        names, kinds = np.asarray(self.dialogues)[chosen], np.asarray(self.kinds)[chosen]
        return replace(
            self,
            cosines=self.cosines[chosen],
            gains=self.gains[chosen],
            dialogues=names.tolist(),
            kinds=kinds.tolist(),
        )

    def memes(self, chosen: np.ndarray) -> "Examples":
        """Those of some memes."""
        ids = np.asarray(self.meme_ids)[chosen].tolist()
        return replace(self, cosines=self.cosines[:, chosen], gains=self.gains[:, chosen], meme_ids=ids)


def pair_cosines(turns: Sequence[np.ndarray], memes: Sequence[np.ndarray]) -> np.ndarray:
    """Cosines [turns, memes, embedders, 6, 6] of [turns, 6, dim] and [memes, 6, dim] of each embedder."""
    parts = [np.einsum("tid,mjd->tmij", t, m) for t, m in zip(turns, memes, strict=True)]
    return np.stack(parts, axis=2).astype(np.float32)


def deal(dialogues: Sequence[str], kinds: Sequence[str], n: int) -> np.ndarray:
    """Fold 0..n-1 of every turn, by dialogue: dealt in turn within each kind, in order of id."""
    fold = {}
    for kind in sorted(set(kinds)):
        names = sorted({name for name, other in zip(dialogues, kinds, strict=True) if other == kind})
        fold |= {name: place % n for place, name in enumerate(names)}
    return np.array([fold[name] for name in dialogues])


# --- The ranker: which meme


class Sums(NamedTuple):
    """X'X and X'y of differences within turns, for pairs by weight: all that ridge regression asks for."""

    squares: np.ndarray
    products: np.ndarray


def sum_up(examples: Examples, ungraded: float) -> Sums:
    """Sums over all pairs, cosines and gains less their mean at the turn; ungraded pairs weigh `ungraded`."""
    x = examples.cosines.reshape(*examples.gains.shape, -1).astype(np.float64)
    gains = np.nan_to_num(examples.gains)
    weights = np.where(np.isnan(examples.gains), ungraded, 1.0)
    total = np.maximum(weights.sum(axis=1), 1e-12)
    x = x - np.einsum("tm,tmf->tf", weights, x)[:, None] / total[:, None, None]
    y = gains - ((weights * gains).sum(axis=1) / total)[:, None]
    weighted = (x * weights[..., None]).reshape(-1, x.shape[2])
    return Sums(weighted.T @ x.reshape(-1, x.shape[2]), weighted.T @ y.ravel())


def solve(sums: Sums, penalty: float, rank: int) -> Ranker:
    """Ridge regression, then each embedder's 6 by 6 weights cut to `rank` by their singular values."""
    n = len(sums.products)
    weights = np.linalg.solve(sums.squares + penalty * np.eye(n), sums.products).reshape(-1, 6, 6)
    u, s, v = np.linalg.svd(weights)
    s[:, rank:] = 0
    return Ranker((u * s[:, None]) @ v)


def score(ranker: Ranker, cosines: np.ndarray) -> np.ndarray:
    """Scores [turns, memes] of pairs whose cosines are at hand."""
    return np.einsum("tmeij,eij->tm", cosines, ranker.weights.astype(np.float32), optimize=True)


def choose(examples: Examples) -> Choice:
    """The choice with the best nDCG@5 over inner folds by dialogue."""
    fold = deal(examples.dialogues, examples.kinds, INNER_FOLDS)
    totals = dict.fromkeys(CHOICES, 0.0)
    for inner in range(INNER_FOLDS):
        rest, held_out = examples.rows(fold != inner), examples.rows(fold == inner)
        graded = graded_turns.graded(held_out.gains, held_out.meme_ids, held_out.dialogues)
        for ungraded in UNGRADED:
            sums = sum_up(rest, ungraded)
            for choice in (c for c in CHOICES if c.ungraded == ungraded):
                ranker = solve(sums, choice.penalty, choice.rank)
                totals[choice] += graded.measure(score(ranker, held_out.cosines))[:, NDCG].sum()
    return max(CHOICES, key=totals.__getitem__)


def fit_ranker(examples: Examples) -> tuple[Ranker, Choice]:
    """Fit on all examples, with what inner folds chose."""
    choice = choose(examples)
    return solve(sum_up(examples, choice.ungraded), choice.penalty, choice.rank), choice


def fit_trees(examples: Examples) -> Trees:
    """Gradient-boosted trees of the gain on the cosines; of ungraded pairs a seeded share stands for all."""
    from sklearn.ensemble import HistGradientBoostingRegressor

    drawn = statistics.rng(0, "ungraded pairs").random(examples.gains.shape) < UNGRADED_SHARE
    weights = np.where(np.isnan(examples.gains), drawn / UNGRADED_SHARE, 1.0).ravel()
    pairs = examples.cosines.reshape(len(weights), -1)[weights > 0]
    gains = np.nan_to_num(examples.gains).ravel()[weights > 0]
    found = HistGradientBoostingRegressor(
        max_leaf_nodes=LEAVES, max_iter=TREES, learning_rate=LEARNING_RATE, l2_regularization=1.0,
        max_bins=BINS, early_stopping=False, random_state=0,
    ).fit(pairs, gains, weights[weights > 0])  # fmt: skip
    grown = [predictor.nodes for (predictor,) in found._predictors]
    base = float(found._baseline_prediction.item()) / TREES  # each tree carries its part
    features, thresholds = np.zeros((TREES, LEAVES - 1), np.uint8), np.zeros((TREES, LEAVES - 1), np.float32)
    reached, values = np.full((TREES, LEAVES - 1), 0xFFFF, np.uint16), np.zeros((TREES, LEAVES), np.float32)
    for tree, nodes in enumerate(grown):
        inner, leaves = 0, 0

        def walk(place: int, tree: int = tree, nodes: np.ndarray = nodes) -> int:
            """Number the leaves below a node from left to right; gives their bits."""
            nonlocal inner, leaves
            node = nodes[place]
            if node["is_leaf"]:
                values[tree, leaves] = node["value"] + base
                leaves += 1
                return 1 << (leaves - 1)
            at, inner = inner, inner + 1
            left = walk(node["left"])
            features[tree, at], thresholds[tree, at] = node["feature_idx"], node["num_threshold"]
            reached[tree, at] = 0xFFFF & ~left
            return left | walk(node["right"])

        walk(0)
    return Trees(features, thresholds, reached, values)


# --- The gate: whether one is wanted, and what the best meme is worth


def fit_gate(
    inputs: np.ndarray, marks: np.ndarray, dialogues: Sequence[str], kinds: Sequence[str]
) -> tuple[WantedGate, float]:
    """Logistic regression on `gate_inputs`; every mark (`marks` [turns, markers], 0 or 1) is an example.

    Its strength is chosen by log loss over inner folds by dialogue.
    """
    fold = deal(dialogues, kinds, INNER_FOLDS)

    def loss(strength: float) -> float:
        total = 0.0
        for inner in range(INNER_FOLDS):
            gate = _logistic(inputs[fold != inner], marks[fold != inner], strength)
            p = np.clip(gate.probability(inputs[fold == inner]), 1e-9, 1 - 1e-9)[:, None]
            held_out = marks[fold == inner]
            total -= float((held_out * np.log(p) + (1 - held_out) * np.log(1 - p)).sum())
        return total

    strength = min(GATE_STRENGTHS, key=loss)
    return _logistic(inputs, marks, strength), strength


def _logistic(inputs: np.ndarray, marks: np.ndarray, strength: float) -> WantedGate:
    from sklearn.linear_model import LogisticRegression

    repeated = np.repeat(inputs, marks.shape[1], axis=0)
    found = LogisticRegression(C=strength, max_iter=5000).fit(repeated, marks.ravel())
    return WantedGate(found.coef_[0], float(found.intercept_[0]))


# --- Both together, out of fold


@dataclass(frozen=True)
class Corpus:
    """Turns and memes as vectors, and what graders and markers said of them.

    `turns` and `memes` hold [turns, 6, dim] and [memes, 6, dim] for each embedder, `marks` [turns, markers];
    `turn_means` are what was taken off the turns' vectors.
    """

    asked: Sequence[rankings.Query]
    meme_ids: Sequence[str]
    turns: Sequence[np.ndarray]
    memes: Sequence[np.ndarray]
    gains: np.ndarray
    marks: np.ndarray
    turn_means: Sequence[np.ndarray] = ()

    @property
    def dialogues(self) -> list[str]:
        """Dialogue id of every turn."""
        return [query.dialogue.dialogue_id for query in self.asked]

    @property
    def kinds(self) -> list[str]:
        """Kind of every turn's dialogue."""
        return [query.dialogue.kind for query in self.asked]

    @cached_property
    def gate_inputs(self) -> np.ndarray:
        """What the gate reads at every turn."""
        speakers = [query.dialogue.turns[query.turn - 1].speaker for query in self.asked]
        return learned.gate_inputs(self.turns[0], [query.turn for query in self.asked], speakers)

    @cached_property
    def examples(self) -> Examples:
        """All pairs of a turn and a meme, for rankers."""
        cosines = pair_cosines(self.turns, self.memes)
        return Examples(cosines, self.gains, self.dialogues, self.kinds, self.meme_ids)


def mean_gains(grades: Sequence[Grade]) -> dict[Key, dict[str, float]]:
    """(dialogue, turn) -> meme -> gain (0-4): twice the mean grade, so that of two graders it is the sum."""
    given: dict[Key, dict[str, list[int]]] = {}
    for grade in grades:
        of_turn = given.setdefault((grade.dialogue_id, grade.turn), {})
        of_turn.setdefault(grade.meme_id, []).append(grade.grade)
    return {key: {m: 2 * sum(g) / len(g) for m, g in of_turn.items()} for key, of_turn in given.items()}


def read_corpus(
    dialogues: Sequence[Dialogue],
    memes: Mapping[str, Meme],
    annotations: Sequence[Annotation],
    truth: GroundTruth,
    encoders: Mapping[str, Encode],
    turn_means: Sequence[np.ndarray | None] = (None, None),
) -> Corpus:
    """Encode what is known of all turns that have a summary and of all usable memes.

    `turn_means` [6, dim] of each embedder centre the texts of turns; None: their own means.
    """
    asked = rankings.queries(dialogues)
    summaries = {(d.dialogue_id, s.turn): s for d in dialogues for s in d.summaries}
    usable = [a for a in annotations if a.usable]
    of_turns = [
        learned.turn_texts([u.text for u in q.dialogue.turns if u.turn < q.turn], summaries[q.key])
        for q in asked
    ]
    of_memes = [learned.meme_texts(memes[a.meme_id], a) for a in usable]
    keys, meme_ids = [q.key for q in asked], [a.meme_id for a in usable]
    sent = [truth.turns_of(marker) for marker in truth.markers]
    turns = [
        learned.encode_texts(of_turns, encode, "query", means)
        for encode, means in zip(encoders.values(), turn_means, strict=True)
    ]
    return Corpus(
        asked,
        meme_ids,
        [vectors for vectors, _ in turns],
        [learned.encode_texts(of_memes, encode, "document")[0] for encode in encoders.values()],
        rankings.gains_of(keys, meme_ids, mean_gains(truth.grades)),
        np.array([[key in turns for turns in sent] for key in keys], dtype=int).reshape(len(keys), len(sent)),
        [means for _, means in turns],
    )


def fit(corpus: Corpus, names: Sequence[str], rows: np.ndarray) -> PlacementModel:
    """Fit a model on some turns (a mask); `names` are those of the embedders."""
    examples = corpus.examples.rows(rows)
    ranker, choice = fit_ranker(examples)
    gate, _ = fit_gate(corpus.gate_inputs[rows], corpus.marks[rows], examples.dialogues, examples.kinds)
    model = PlacementModel(tuple(names), ranker, fit_trees(examples), gate, np.empty((2, 0)))
    return replace(model, gains=fit_gains(corpus, np.flatnonzero(rows), model, choice))


def fit_gains(corpus: Corpus, rows: np.ndarray, model: PlacementModel, choice: Choice) -> np.ndarray:
    """Gain to expect of a best meme by its score, [2, points]: isotonic, over inner folds of some turns."""
    from sklearn.isotonic import IsotonicRegression

    examples = corpus.examples.rows(rows)
    fold = deal(examples.dialogues, examples.kinds, INNER_FOLDS)
    top, gains = np.zeros(len(fold)), np.zeros(len(fold))
    for inner in range(INNER_FOLDS):
        rest, here = examples.rows(fold != inner), fold == inner
        ranker = solve(sum_up(rest, choice.ungraded), choice.penalty, choice.rank)
        index = LearnedIndex(
            replace(model, ranker=ranker, trees=fit_trees(rest)), corpus.meme_ids, corpus.memes
        )
        best, scores = index.best([turns[rows[here]] for turns in corpus.turns], 1)
        top[here] = scores[:, 0]
        gains[here] = np.nan_to_num(np.take_along_axis(examples.gains[here], best, axis=1))[:, 0]
    found = IsotonicRegression(out_of_bounds="clip").fit(top, gains)
    return np.stack([found.X_thresholds_, found.y_thresholds_])


def learn(corpus: Corpus, names: Sequence[str]) -> LearnedPlacement:
    """The model for any chat, from all dialogues, and for each dialogue the one of the other folds."""
    fold = deal(corpus.dialogues, corpus.kinds, FOLDS)
    fits = tqdm(range(FOLDS + 1), desc="models", unit="model")
    *models, model = [fit(corpus, names, fold != number) for number in fits]  # no turn is in the last fold
    fold_of = dict(zip(corpus.dialogues, fold.tolist(), strict=True))
    placement = LearnedPlacement(model, models, fold_of, corpus.turn_means, np.empty(0))
    promises = np.quantile(predict(corpus, placement).promise, np.linspace(0, 1, 101))
    return replace(placement, promises=promises)


class Predicted(NamedTuple):
    """What models say of turns: scores [turns, memes], P(wanted) and promise [turns]."""

    scores: np.ndarray
    wanted: np.ndarray
    promise: np.ndarray


def predict(corpus: Corpus, placement: LearnedPlacement) -> Predicted:
    """Every turn by the model that did not see its dialogue."""
    scores = np.empty((len(corpus.asked), len(corpus.meme_ids)))
    wanted, promise = np.empty(len(corpus.asked)), np.empty(len(corpus.asked))
    inputs, names = corpus.gate_inputs, np.array(corpus.dialogues)
    indices: dict[int, LearnedIndex] = {}
    for name in dict.fromkeys(corpus.dialogues):
        rows, model = np.flatnonzero(names == name), placement.of_dialogue(name)
        index = indices.setdefault(id(model), LearnedIndex(model, corpus.meme_ids, corpus.memes))
        scores[rows] = index.scores([turn[rows] for turn in corpus.turns])
        wanted[rows] = model.gate.probability(inputs[rows])
        promise[rows] = model.promise(scores[rows].max(axis=1), inputs[rows])
    return Predicted(scores, wanted, promise)


def predict_new_memes(corpus: Corpus, groups: np.ndarray) -> np.ndarray:
    """Scores [turns, memes] by models that saw neither the turn's dialogue nor a grade of the meme's group.

    `groups` [memes] deals the memes; everything else is as in `learn`.
    """
    examples, fold = corpus.examples, deal(corpus.dialogues, corpus.kinds, FOLDS)
    scores = np.empty(corpus.gains.shape)
    parts = list(product(range(FOLDS), np.unique(groups)))
    for number, group in tqdm(parts, desc="folds by meme", unit="model"):
        seen = examples.rows(fold != number).memes(groups != group)
        model = PlacementModel(
            (), fit_ranker(seen)[0], fit_trees(seen), WantedGate(np.empty(0), 0.0), seen.gains
        )
        rows, columns = np.flatnonzero(fold == number), np.flatnonzero(groups == group)
        index = LearnedIndex(model, corpus.meme_ids, corpus.memes)
        scores[np.ix_(rows, columns)] = index.scores([turns[rows] for turns in corpus.turns])[:, columns]
    return scores


# --- A run's own grades


def read_grades(path: Path) -> GroundTruth:
    """Grades of a CSV file: columns dialogue_id, turn, meme_id, grade (0, 1 or 2) and, if wanted, grader.

    Nobody marked where a meme is wanted, so a turn counts as wanting one where some graded meme fits. Raises
    `StageOutputError` with the line that cannot be read.
    """
    grades = []
    with path.open(encoding="utf-8-sig", newline="") as file:
        for line, row in enumerate(csv.DictReader(file), start=2):
            try:
                given = {name: row[name] for name in ("dialogue_id", "turn", "meme_id", "grade")}
                grades.append(Grade(**given, grader=row.get("grader") or "grader", source="user"))
            except (KeyError, ValueError) as error:
                raise files.StageOutputError(f"{path.name} line {line}: {error}") from error
    fits = {(g.dialogue_id, g.turn): False for g in grades}
    for grade in grades:
        fits[grade.dialogue_id, grade.turn] |= grade.grade >= tables.FITS
    marks = [
        Mark(dialogue_id=name, turn=turn, marker="grades", send=sent, best=[], source="computed")
        for (name, turn), sent in fits.items()
    ]
    return GroundTruth(marks, grades)
