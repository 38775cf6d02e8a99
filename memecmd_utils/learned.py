"""Learned placement: Eq. 22 with 72 weights in place of four, and a gate that reads the chat (notebook 04b).

A ranker compares six texts of a turn with six of a meme under each of two embedders. A gate says from the
turn's vectors whether one would send a meme at all. A meme is sent where both together promise most. Both are
fitted on grades and marks, out of fold by dialogue; the plan is `data/example/PLACEMENT_PLAN.md`.
"""

import base64
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from tqdm.auto import tqdm

from memecmd_utils import files, grades, retrieval
from memecmd_utils.embedders import embedder_of
from memecmd_utils.files import MemecmdError, paths
from memecmd_utils.llm.recordings import normalise
from memecmd_utils.retrieval import LEARNED, Encode, Ranking, ScoredDialogue
from memecmd_utils.runs import Run, StageMissing
from memecmd_utils.settings import Profile
from memecmd_utils.splits import (
    MEME_TEXTS,
    TURN_TEXTS,
    Split,
    Turns,
    dialogues_of,
    encode_texts,
    encoders_of,
    last_turns,
)

FILE = "placement.json"
"""File of a run with weights that were fitted on it; the example's are in `data/example`."""
UNIT = 2.0
"""Scores of `placement.json` are in sums of two graders' grades (0-4), everywhere else in mean grades."""


class PlacementError(MemecmdError, ValueError):
    """Learned weights that cannot be applied: other embedders, or a file of another form."""


# --- The model


class Predicted(NamedTuple):
    """What models say of turns: scores [turns, memes], P(wanted) and promise [turns]."""

    scores: np.ndarray
    wanted: np.ndarray
    promise: np.ndarray


@dataclass(frozen=True)
class PlacementModel:
    """Weights of all pairs of texts, a gate, and the mean grade to expect of a turn's best meme.

    `weights` [embedders, 6 texts of the turn, 6 of the meme]: Eq. 22 has four of them. `gate`: coefficients
    of a logistic regression on `gate_inputs`, and its intercept; None where nobody marked when a meme is
    wanted. `grade_curve` [2, points]: best scores and the mean grades (0-2) to expect of them, both
    ascending. `intercepts`: how much more than others a graded meme is liked at any turn, as a mean grade; a
    new meme has none.
    """

    weights: np.ndarray
    gate: np.ndarray | None
    grade_curve: np.ndarray
    intercepts: Mapping[str, float]

    def score(
        self, turns: Sequence[np.ndarray], memes: Sequence[np.ndarray], meme_ids: Sequence[str]
    ) -> np.ndarray:
        """Scores [turns, memes] of vectors [turns, 6, dim] and [memes, 6, dim] of each embedder.

        A score is an expected mean grade less its mean at the turn: only differences at a turn count.
        """
        scores = np.tile([self.intercepts.get(meme, 0.0) for meme in meme_ids], (len(turns[0]), 1))
        for weights, t, m in zip(self.weights, turns, memes, strict=True):
            asked = np.einsum("ij,tid->tjd", weights, t, optimize=True).astype(np.float32)
            scores += asked.reshape(len(t), -1) @ m.reshape(len(m), -1).T
        return scores - scores.mean(axis=1, keepdims=True)

    def wanted(self, inputs: np.ndarray) -> np.ndarray:
        """P(one would send a meme here), [turns], from `gate_inputs` [turns, inputs]; 1 without a gate."""
        if self.gate is None:
            return np.ones(len(inputs))
        return 1 / (1 + np.exp(-(inputs @ self.gate[:-1] + self.gate[-1])))

    def as_json(self, embedders: Sequence[str]) -> dict[str, Any]:
        """The model as it stands in `placement.json`: weights by the names of their texts."""
        rounded = (np.round(UNIT * w, 5) for w in self.weights)
        tables = [pd.DataFrame(w, TURN_TEXTS, MEME_TEXTS).to_dict("index") for w in rounded]
        return {
            "weights": dict(zip(embedders, tables, strict=True)),
            "intercepts": {meme: round(UNIT * value, 5) for meme, value in self.intercepts.items()},
            "gains": np.round(UNIT * self.grade_curve, 6).tolist(),
            "gate": None if self.gate is None else _packed(self.gate),
        }

    @classmethod
    def of_json(cls, values: Mapping[str, Any], embedders: Sequence[str]) -> "PlacementModel":
        """The model that `as_json` wrote."""
        weights = [[[values["weights"][n][t][m] for m in MEME_TEXTS] for t in TURN_TEXTS] for n in embedders]
        gate = None if values["gate"] is None else _unpacked(values["gate"])
        curve = np.array(values["gains"]).reshape(2, -1)
        intercepts = {meme: value / UNIT for meme, value in values["intercepts"].items()}
        return cls(np.array(weights) / UNIT, gate, curve / UNIT, intercepts)


def _packed(values: np.ndarray) -> str:
    """Numbers that nobody reads, as float32 in base64."""
    return base64.b64encode(np.asarray(values, dtype="<f4").tobytes()).decode()


def _unpacked(text: str) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text), dtype="<f4").astype(np.float64)


@dataclass(frozen=True)
class LearnedPlacement:
    """The model for any chat, and for each dialogue that was learned from the one that did not see it.

    `embedders`: name and version of each, in the order of the weights; the gate reads the first. `folds` were
    fitted without one fold of these dialogues each, `fold_of` has the fold of each. `turn_means` [6, dim] for
    each embedder: means of the texts of their turns, since a chat is too short for means of its own.
    """

    embedders: tuple[str, ...]
    model: PlacementModel
    folds: Sequence[PlacementModel]
    fold_of: Mapping[str, int]
    turn_means: Sequence[np.ndarray]

    def chat_alone(self) -> "LearnedPlacement":
        """The same without intercepts: what the texts of turn and meme say, and nothing else."""
        model, *folds = (replace(model, intercepts={}) for model in (self.model, *self.folds))
        return replace(self, model=model, folds=folds)

    def without_summaries(self) -> "LearnedPlacement":
        """For turns that a `ChatReader` reads: with `UNSUMMED_SHARE` of each intercept.

        A best score is itself the grade to expect: the curve is one of scores by summaries, which are higher.
        """
        liked = {meme: UNSUMMED_SHARE * value for meme, value in self.model.intercepts.items()}
        model = replace(self.model, intercepts=liked, grade_curve=np.array([[0.0, 2.0], [0.0, 2.0]]))
        return replace(self, model=model, folds=(), fold_of={})

    def of_dialogue(self, dialogue_id: str) -> PlacementModel:
        """The model that saw no grade and no mark of this dialogue."""
        return self.folds[self.fold_of[dialogue_id]] if dialogue_id in self.fold_of else self.model

    def predict(self, turns: Turns, rows: np.ndarray | None = None) -> Predicted:
        """What is said of turns (`rows`; by default all) by the model that did not see their dialogue.

        The promise is P(wanted) times the mean grade to expect of the best meme.
        """
        rows = np.arange(len(turns.keys)) if rows is None else rows
        out = Predicted(np.empty((len(rows), len(turns.meme_ids))), *np.empty((2, len(rows))))
        fold = np.array([self.fold_of.get(turns.clusters[row], -1) for row in rows])
        for number in np.unique(fold):
            here, model = fold == number, [*self.folds, self.model][number]
            vectors = [of_turns[rows[here]] for of_turns, _ in turns.turn_vectors]
            out.scores[here] = model.score(vectors, turns.meme_vectors, turns.meme_ids)
            out.wanted[here] = model.wanted(turns.gate_inputs(rows[here]))
            best = out.scores[here].max(axis=1)
            ties = 1e-6 * best if model.gate is None else 0.0  # of equal grades the better score
            expected = np.interp(best, *model.grade_curve) + ties
            out.promise[here] = out.wanted[here] * expected
        return out

    def rank(self, turns: Turns) -> list[ScoredDialogue]:
        """The best meme and its promise at every turn 2..T; a turn without a usable summary gets -inf."""
        out = []
        for dialogue, places in zip(turns.split.dialogues, turns.places, strict=True):
            n = len(dialogue.summaries)
            ranking = Ranking(np.full((n, 1), -1), np.full((n, 1), -np.inf), np.zeros((n, 1, 4)))
            usable = places[:n] >= 0
            if usable.any():
                said = self.predict(turns, places[:n][usable])
                ranking.memes[usable, 0] = retrieval.order(said.scores, turns.meme_ids)[:, 0]
                ranking.scores[usable, 0] = said.promise
            out.append(ScoredDialogue(dialogue, np.zeros((n, 3, 0)), ranking))
        return out

    def save(self, path: Path) -> None:
        """Write all of it into a JSON file."""
        out = {
            "embedders": list(self.embedders),
            "model": self.model.as_json(self.embedders),
            "folds": [model.as_json(self.embedders) for model in self.folds],
            "fold_of": dict(sorted(self.fold_of.items())),
            "turn_means": [_packed(means) for means in self.turn_means],
        }
        files.write_json(path, out)


def load_placement(path: Path) -> LearnedPlacement:
    """Read what `LearnedPlacement.save` wrote; `PlacementError` where it is not there or of another form."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        names = tuple(values["embedders"])
        model, *folds = (PlacementModel.of_json(v, names) for v in (values["model"], *values["folds"]))
        means = [_unpacked(text).reshape(len(TURN_TEXTS), -1) for text in values["turn_means"]]
        return LearnedPlacement(names, model, folds, values["fold_of"], means)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise PlacementError(f"no learned placement in {path.name}: {error}") from error


def open_placement(run: Run, names: Sequence[str]) -> LearnedPlacement:
    """The weights that were fitted on a run, which one by hand shares with the finished one, or the shipped.

    Raises `PlacementError` where they are for other embedders than those of these names, if any are given.
    """
    try:
        path = run.read(FILE)
    except StageMissing:
        path = paths.example / FILE
    placement = load_placement(path)
    if names and tuple(names) != placement.embedders:
        raise PlacementError(
            f"the learned weights are for the embedders {' and '.join(placement.embedders)}, this run has "
            f"{' and '.join(names)}: fit your own with `make fit-placement`, or take another strategy"
        )
    return placement


# --- Applied to dialogues and chats

SPOKEN = 4
"""Place in `TURN_TEXTS` of the first of those that were said; the others are a summary's."""
RIDGE = 3.0
"""Penalty of the regression that stands in for summaries: from 1 to 30 the rankings hardly differ."""
UNSUMMED_SHARE = 0.5
"""Share of the intercepts that counts where nobody writes summaries: with all of them few memes are sent,
at any turn. On the example, out of fold, this one has the highest specificity (of 0, 0.1 to 0.3, 0.5, 1)."""


class ChatReader:
    """Vectors of all texts of a turn from what was said alone, where nobody writes a summary.

    A ridge regression goes from the last embedder's vectors of what was said to all texts of a turn under
    each embedder. It learns from the example's dialogues, all of which have summaries, and from no grade.
    """

    def __init__(
        self, placement: LearnedPlacement, profile: Profile, encoders: Mapping[str, Encode], encode: Encode
    ) -> None:
        """`encoders` encode the example, `encode` what is said in chats, as the last of them does."""
        example = Split("example", dialogues_of(paths.example), {}, [])
        vectors = [v for v, _ in Turns(example, profile, encoders, means=placement.turn_means).turn_vectors]
        x, y = vectors[-1][:, SPOKEN:], np.hstack([part.reshape(len(part), -1) for part in vectors])
        x = x.reshape(len(x), -1).astype(np.float64)
        self._weights = np.linalg.solve(x @ x.T + RIDGE * np.eye(len(x)), x).T.astype(np.float32) @ y
        self._dims = [part.shape[2] for part in vectors]
        self._encode, self._means = encode, placement.turn_means[-1][SPOKEN:]

    def vectors(self, chats: Sequence[Sequence[str]]) -> list[np.ndarray]:
        """Unit vectors [chats, 6, dim] under each embedder of the turns that follow u_1..u_{t-1}."""
        said, _ = encode_texts([last_turns(chat) for chat in chats], self._encode, "query", self._means)
        ends = len(TURN_TEXTS) * np.cumsum(self._dims)[:-1]
        parts = np.split(said.reshape(len(said), -1) @ self._weights, ends, axis=1)
        out = [normalise(part.reshape(-1, dim)).reshape(-1, len(TURN_TEXTS), dim)
               for part, dim in zip(parts, self._dims, strict=True)]  # fmt: skip
        out[-1][:, SPOKEN:] = said
        return out


def rank_dialogues(run: Run, split: Split) -> list[ScoredDialogue]:
    """`LearnedPlacement.rank` of a run's dialogues, for `retrieval.place`.

    Nothing where the profile does not ask for `learned`; also, with a word, where its weights do not apply or
    the library is too large to compare every meme.
    """
    if LEARNED not in run.profile.retrieval.strategies:
        return []
    names, encoders = open_encoders(run)
    try:
        if len(split.annotations) >= retrieval.FROM_MEMES:
            raise PlacementError("the library is too large to compare every meme: use greedy")
        placement = open_placement(run, names)
    except PlacementError as error:
        print(f"no memes by {LEARNED}: {error}")
        return []
    return placement.rank(Turns(split, run.profile, encoders, means=placement.turn_means))


# --- Fitted on grades and marks, out of fold

FOLDS, INNER_FOLDS = 5, 4
PENALTIES = (3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)
SHARE_LIKED = 0.25
"""Share of `liked_more` that is a meme's intercept: what inner folds choose in every fold of the example."""
GATE_STRENGTHS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
"""Inverse penalties of the gate, as scikit-learn's `C`."""


def deal(names: Sequence[str], kinds: Sequence[str], n: int) -> np.ndarray:
    """Fold 0..n-1 of every turn, by dialogue: dealt in turn within each kind, in order of id."""
    fold, place = {}, Counter()
    for kind, name in sorted(set(zip(kinds, names, strict=True))):
        fold[name] = place[kind] % n
        place[kind] += 1
    return np.array([fold[name] for name in names], dtype=int)


def inner_folds(turns: Turns, rows: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Rows to fit on and rows to try on, out of these, by dialogue."""
    fold = deal([turns.clusters[row] for row in rows], turns.kinds[rows], INNER_FOLDS)
    for number in range(INNER_FOLDS):
        yield rows[fold != number], rows[fold == number]


def ridge(x: np.ndarray, grades: np.ndarray, penalties: Sequence[float], ungraded: float = 0.0) -> np.ndarray:
    """Weights [penalties, 2, 6, 6] from cosines [turns, memes, 72] and mean grades [turns, memes].

    Cosines and grades less their mean at the turn, since only differences within a turn rank. A pair that
    nobody graded (nan) has grade 0 and the weight `ungraded`; with 0 it does not count. The normal equations
    are as large as the number of weights, so one product serves all penalties.
    """
    weights, y = np.where(np.isnan(grades), ungraded, 1.0), np.nan_to_num(grades)
    total = np.maximum(weights.sum(axis=1, keepdims=True), 1e-12)
    y = y - (weights * y).sum(axis=1, keepdims=True) / total
    x = x - (np.einsum("tm,tmf->tf", weights, x, optimize=True) / total)[:, None]
    pairs = x.reshape(-1, x.shape[2])
    weighted = pairs.T * weights.ravel()
    gram, right = weighted @ pairs, weighted @ y.ravel()
    fitted = [np.linalg.solve(gram + penalty * np.eye(len(gram)), right) for penalty in penalties]
    return np.array(fitted).reshape(len(penalties), -1, 6, 6)


def liked_more(turns: Turns, rows: np.ndarray) -> np.ndarray:
    """How much higher than that of others each meme's mean grade is at some turns, [memes].

    Of the pairs that somebody graded; 0 for a meme that nobody graded there.
    """
    gaps = turns.grades[rows] - np.nanmean(turns.grades[rows], axis=1, keepdims=True)
    return np.nansum(gaps, axis=0) / np.maximum(1, np.isfinite(gaps).sum(axis=0))


def pick_penalty(turns: Turns, rows: np.ndarray) -> tuple[float, list[np.ndarray]]:
    """The penalty with the best nDCG@5 over inner folds, and the weights of each fold under it."""
    totals, fitted = np.zeros(len(PENALTIES)), []
    for fit, held_out in inner_folds(turns, rows):
        fitted.append(ridge(turns.cosines[fit], turns.grades[fit], PENALTIES))
        here = np.intersect1d(held_out, turns.answerable)
        for number, weights in enumerate(fitted[-1]):
            best = retrieval.order(turns.cosines[here] @ weights.ravel().astype(np.float32), turns.meme_ids)
            totals[number] += grades.ndcg(best, turns.grades[here]).sum()
    chosen = int(totals.argmax())
    return PENALTIES[chosen], [of_fold[chosen] for of_fold in fitted]


def fit_gate(turns: Turns, rows: np.ndarray) -> np.ndarray | None:
    """Coefficients and intercept of P(wanted): logistic regression in which every mark is an example.

    Its strength is chosen by log loss over inner folds. None where the marks of some turns do not have both
    answers: grades do not say when a meme is wanted, and a turn that nobody marked says nothing.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV

    is_marked = np.isfinite(turns.marks[rows])
    rows, is_marked = rows[is_marked.any(axis=1)], is_marked[is_marked.any(axis=1)]
    at, marker = np.nonzero(is_marked)
    x, y = turns.gate_inputs(rows[at]), turns.marks[rows[at], marker]
    folds = [[np.flatnonzero(np.isin(rows[at], part)) for part in both] for both in inner_folds(turns, rows)]
    if not all(len(held_out) and len(np.unique(y[fit])) == 2 for fit, held_out in folds):
        return None
    model, strengths = LogisticRegression(max_iter=5000), {"C": GATE_STRENGTHS}
    best = GridSearchCV(model, strengths, scoring="neg_log_loss", cv=folds).fit(x, y).best_estimator_
    return np.append(best.coef_[0], best.intercept_)


def fit_model(turns: Turns, rows: np.ndarray) -> PlacementModel:
    """Weights, gate and expected grades from some turns (rows).

    Only pairs that somebody graded count. The grade to expect of a best meme is an isotonic regression on its
    score, over inner folds.
    """
    from sklearn.isotonic import IsotonicRegression

    graded = rows[np.isfinite(turns.grades[rows]).any(axis=1)]
    penalty, by_fold = pick_penalty(turns, graded)
    vectors, meme_ids = [vectors for vectors, _ in turns.turn_vectors], turns.meme_ids

    def model(weights: np.ndarray, at: np.ndarray) -> PlacementModel:
        liked = dict(zip(meme_ids, (SHARE_LIKED * liked_more(turns, at)).tolist(), strict=True))
        return PlacementModel(weights, None, np.empty((2, 0)), liked)

    top, grade = [], []
    for weights, (fit, here) in zip(by_fold, inner_folds(turns, graded), strict=True):
        scores = model(weights, fit).score([part[here] for part in vectors], turns.meme_vectors, meme_ids)
        top.append(scores.max(axis=1))
        grade.append(turns.grades[here, retrieval.order(scores, meme_ids)[:, 0]])
    is_graded = np.isfinite(np.concatenate(grade))
    points = np.array([[0.0], [np.nanmean(turns.grades[graded])]])  # where nobody graded a best meme
    if is_graded.any():
        curve = IsotonicRegression(out_of_bounds="clip")
        curve.fit(np.concatenate(top)[is_graded], np.concatenate(grade)[is_graded])
        points = np.stack([curve.X_thresholds_, curve.y_thresholds_])
    (weights,) = ridge(turns.cosines[graded], turns.grades[graded], [penalty])
    return replace(model(weights, graded), gate=fit_gate(turns, rows), grade_curve=points)


def learn(turns: Turns, embedders: Sequence[str]) -> LearnedPlacement:
    """The model for any chat, from all dialogues, and for each dialogue the one of the other folds."""
    fold = deal(turns.clusters, turns.kinds, FOLDS)
    fits = tqdm(range(FOLDS + 1), desc="models", unit="model")  # no turn is in the last fold
    *models, model = [fit_model(turns, np.flatnonzero(fold != number)) for number in fits]
    fold_of = dict(zip(turns.clusters, fold.tolist(), strict=True))
    means = [means for _, means in turns.turn_vectors]
    return LearnedPlacement(tuple(embedders), model, models, fold_of, means)


def on_this_machine(run: Run) -> Run:
    """The run, which makes what vectors are not on record, unless an endpoint would have to be paid."""
    paid = run.profile.models.embedder == "endpoint"
    return run if paid else replace(run, profile=run.profile.replace(mode="auto"))


def open_encoders(run: Run) -> tuple[list[str], dict[str, Encode]]:
    """Names of both embedders of a run, and what encodes."""
    encoders = encoders_of(run)
    return [embedder_of(run.profile, name, run.read_dirs).name for name in encoders], encoders
