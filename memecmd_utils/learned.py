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
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from tqdm.auto import tqdm

from memecmd_utils import files, grades, retrieval, statistics
from memecmd_utils.embedders import embedder_of
from memecmd_utils.evaluation import frame_rows
from memecmd_utils.files import ExtraMissing, MemecmdError, StageOutputError, paths
from memecmd_utils.grades import FITS, NDCG, UNTOUCHED, GroundTruth, Query, Split
from memecmd_utils.retrieval import LEARNED, Encode, Ranking, ScoredDialogue
from memecmd_utils.runs import Run, StageMissing
from memecmd_utils.schemas import Annotation, Dialogue, Meme, Summary, SummaryReply
from memecmd_utils.settings import Profile

TURN_TEXTS = ("S", "E", "Psi", "S E Psi", "last turn", "last three turns")
MEME_TEXTS = ("S+", "S-", "E", "Psi", "caption", "picture and caption")
"""What is known of a turn and of a meme, in the order of rows and columns of a ranker's weights."""
GATE_TEXTS = (0, 1, 2, 4, 5)
"""Places in `TURN_TEXTS` of the texts that the gate reads: the joined one says nothing new to it."""
LAST_TURN = 18
"""Turns of a dialogue of the example: the gate reads a turn's number in this unit, and no higher one."""
FILE, TABLES, SCORES = "placement.json", "landing.json", "learned.npz"
"""Files of a run: fitted weights (the example's are in `data/example`), tables, and scores of its splits."""
PAPER = "the paper's score"


class PlacementError(MemecmdError, ValueError):
    """Learned weights that cannot be applied: other embedders, or a file of another form."""


# --- Texts, vectors, cosines


def turn_texts(before: Sequence[str], summary: SummaryReply | Summary) -> tuple[str, ...]:
    """The texts known before turn t, in the order of `TURN_TEXTS`: its summary and `before`, u_1..u_{t-1}."""
    parts = (summary.scenario, summary.emotion, summary.motivation)
    return (*parts, "\n".join(parts), *("\n".join(before[-n:]) for n in (1, 3)))


def meme_texts(meme: Meme, annotation: Annotation) -> tuple[str, ...]:
    """The texts known of a meme, in the order of `MEME_TEXTS`."""
    shown = "\n".join(text for text in (meme.picture_note, meme.text) if text)
    parts = (annotation.s_plus, annotation.s_minus, annotation.emotion, annotation.motivation)
    return (*parts, meme.text, shown)


def encode_texts(
    rows: Sequence[Sequence[str]], encode: Encode, side: str, means: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Centred unit vectors [rows, 6, dim] of texts [rows][6], and the means [6, dim] that were taken off.

    Without `means` each kind is centred by its own mean. An empty text has the zero vector: it says nothing.
    """
    vectors, taken = [], []
    for kind, texts in enumerate(zip(*rows, strict=True)):
        raw = encode(texts, side).astype(np.float64)
        own = raw.mean(axis=0) if len(raw) > 1 else np.zeros(raw.shape[1])
        mean = own if means is None else means[kind]
        said = np.array([bool(text.strip()) for text in texts])[:, None]
        vectors.append(np.where(said, retrieval.centre(raw, mean), 0).astype(np.float32))
        taken.append(mean.astype(np.float32))
    return np.stack(vectors, axis=1), np.stack(taken)


def cosines(turns: Sequence[np.ndarray], memes: Sequence[np.ndarray]) -> np.ndarray:
    """Cosines [turns, memes, 72] of vectors [turns, 6, dim] and [memes, 6, dim] of each embedder."""
    parts = [np.einsum("tid,mjd->tmij", t, m, optimize=True) for t, m in zip(turns, memes, strict=True)]
    return np.stack(parts, axis=2).reshape(len(turns[0]), len(memes[0]), -1).astype(np.float32)


def gate_inputs(vectors: np.ndarray, turns: Sequence[int], speakers: Sequence[str]) -> np.ndarray:
    """What the gate reads, [turns, 5 * dim + 2].

    `vectors` [turns, 6, dim] are the first embedder's, `speakers` are A, who opens, and B.
    """
    chosen = vectors[:, GATE_TEXTS].reshape(len(vectors), -1).astype(np.float64)
    number = np.minimum(np.asarray(turns, dtype=np.float64), LAST_TURN) / LAST_TURN
    return np.column_stack([chosen, number, np.asarray(speakers) == "A"])


# --- The model


class Predicted(NamedTuple):
    """What models say of turns: scores [turns, memes], P(wanted) and promise [turns]."""

    scores: np.ndarray
    wanted: np.ndarray
    promise: np.ndarray


@dataclass(frozen=True)
class PlacementModel:
    """Weights of all pairs of texts, a gate, and the gain to expect of a turn's best meme."""

    weights: np.ndarray
    """[embedders, 6 texts of the turn, 6 of the meme]: Eq. 22 has four of them."""
    gate: np.ndarray
    """Coefficients of a logistic regression on `gate_inputs`, and its intercept."""
    gains: np.ndarray
    """Best scores and the gains (0-4, twice the mean grade) to expect of them, [2, points], ascending."""

    def score(self, turns: Sequence[np.ndarray], memes: Sequence[np.ndarray]) -> np.ndarray:
        """Scores [turns, memes] of vectors [turns, 6, dim] and [memes, 6, dim] of each embedder.

        A score is an expected gain but for a constant of the turn, which is taken off: only differences at a
        turn count.
        """
        scores = np.zeros((len(turns[0]), len(memes[0])))
        for weights, t, m in zip(self.weights, turns, memes, strict=True):
            asked = np.einsum("ij,tid->tjd", weights, t, optimize=True).astype(np.float32)
            scores += asked.reshape(len(t), -1) @ m.reshape(len(m), -1).T
        return scores - scores.mean(axis=1, keepdims=True)

    def wanted(self, inputs: np.ndarray) -> np.ndarray:
        """P(one would send a meme here) of every turn, from `gate_inputs` [turns, inputs]."""
        return 1 / (1 + np.exp(-(inputs @ self.gate[:-1] + self.gate[-1])))

    def expected_gain(self, best_scores: np.ndarray) -> np.ndarray:
        """The gain (0-4) to expect of memes with these best scores of their turns."""
        return np.interp(best_scores, *self.gains)

    def predict(
        self, turns: Sequence[np.ndarray], memes: Sequence[np.ndarray], inputs: np.ndarray
    ) -> Predicted:
        """Scores, P(wanted), and the promise: P(wanted) times the gain to expect of the best meme."""
        scores, wanted = self.score(turns, memes), self.wanted(inputs)
        return Predicted(scores, wanted, wanted * self.expected_gain(scores.max(axis=1)))

    def as_json(self, embedders: Sequence[str]) -> dict[str, Any]:
        """The model as it stands in `placement.json`: weights by the names of their texts."""
        weights = {
            name: {
                turn: dict(zip(MEME_TEXTS, np.round(row, 5).tolist(), strict=True))
                for turn, row in zip(TURN_TEXTS, rows, strict=True)
            }
            for name, rows in zip(embedders, self.weights, strict=True)
        }
        return {"weights": weights, "gains": np.round(self.gains, 6).tolist(), "gate": _packed(self.gate)}

    @classmethod
    def of_json(cls, values: Mapping[str, Any], embedders: Sequence[str]) -> "PlacementModel":
        """The model that `as_json` wrote."""
        weights = [[[values["weights"][n][t][m] for m in MEME_TEXTS] for t in TURN_TEXTS] for n in embedders]
        gains = np.array(values["gains"], dtype=np.float64)
        if gains.ndim != 2 or len(gains) != 2 or not gains.size:
            raise ValueError("gains of another form")
        return cls(np.array(weights), _unpacked(values["gate"]), gains)


def _packed(values: np.ndarray) -> str:
    """Numbers that nobody reads, as float32 in base64."""
    return base64.b64encode(np.asarray(values, dtype="<f4").tobytes()).decode()


def _unpacked(text: str) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text), dtype="<f4").astype(np.float64)


@dataclass(frozen=True)
class LearnedPlacement:
    """The model for any chat, and for each dialogue that was learned from the one that did not see it."""

    embedders: tuple[str, ...]
    """Name and version of each embedder, in the order of the weights; the gate reads the first."""
    model: PlacementModel
    folds: Sequence[PlacementModel]
    """The models that were fitted without one fold of these dialogues each."""
    fold_of: Mapping[str, int]
    """Dialogue id to the number of its fold."""
    turn_means: Sequence[np.ndarray]
    """Mean vector of each text of a turn over the dialogues that were learned from, [6, dim] for each
    embedder: a chat is too short for means of its own."""
    promises: np.ndarray
    """Quantiles 0, 0.01, ..., 1 of the promise of these dialogues' turns, each by the model that had not seen
    it."""

    def threshold(self, rate: float) -> float:
        """The promise from which on a share `rate` of turns gets a meme."""
        return float(np.quantile(self.promises, 1 - rate))

    def of_dialogue(self, dialogue_id: str) -> PlacementModel:
        """The model that saw no grade and no mark of this dialogue."""
        return self.folds[self.fold_of[dialogue_id]] if dialogue_id in self.fold_of else self.model

    def predict(
        self,
        names: Sequence[str],
        turns: Sequence[np.ndarray],
        memes: Sequence[np.ndarray],
        inputs: np.ndarray,
    ) -> Predicted:
        """Every turn by the model that did not see its dialogue; `names` are the dialogues of the turns."""
        found = Predicted(np.empty((len(names), len(memes[0]))), *np.empty((2, len(names))))
        fold = np.array([self.fold_of.get(name, -1) for name in names])
        for number in np.unique(fold):
            rows, model = fold == number, self.model if number < 0 else self.folds[number]
            for part, values in zip(
                found, model.predict([t[rows] for t in turns], memes, inputs[rows]), strict=True
            ):
                part[rows] = values
        return found

    def save(self, path: Path) -> None:
        """Write all of it into a JSON file."""
        out = {
            "embedders": list(self.embedders),
            "promises": np.round(self.promises, 5).tolist(),
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
        promises = np.array(values["promises"], dtype=np.float64)
        return LearnedPlacement(names, model, folds, dict(values["fold_of"]), means, promises)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise PlacementError(f"no learned placement in {path.name}: {error}") from error


def open_placement(folder: Path, names: Sequence[str]) -> LearnedPlacement:
    """The weights that were fitted on the run in `folder`, or else the shipped ones.

    Raises `PlacementError` where they are for other embedders than those of these names, if any are given.
    """
    own = folder / FILE
    found = load_placement(own if own.is_file() else paths.example / FILE)
    if names and tuple(names) != found.embedders:
        raise PlacementError(
            f"the learned weights are for the embedders {' and '.join(found.embedders)}, this run has "
            f"{' and '.join(names)}: fit your own with `make fit-placement`, or take another strategy"
        )
    return found


# --- Applied to dialogues and chats


@dataclass(frozen=True)
class LearnedLibrary:
    """The memes of a run as learned placement compares them: vectors [memes, 6, dim] for each encoder."""

    placement: LearnedPlacement
    encoders: Sequence[Encode]
    meme_ids: Sequence[str]
    memes: Sequence[np.ndarray]

    def promises(
        self,
        names: Sequence[str],
        texts: Sequence[Sequence[str]],
        turns: Sequence[int],
        speakers: Sequence[str],
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Position of each turn's best meme, the gain (0-4) to expect of it, and its promise, [turns] each.

        Every turn has the name of its dialogue (any, of a chat that nobody learned from), its `turn_texts`,
        its number, and its speaker: A, who opens, or B.
        """
        vectors = [
            encode_texts(texts, encode, "query", means)[0]
            for encode, means in zip(self.encoders, self.placement.turn_means, strict=True)
        ]
        inputs = gate_inputs(vectors[0], turns, speakers)
        found = self.placement.predict(names, vectors, self.memes, inputs)
        gains = [
            self.placement.of_dialogue(n).expected_gain(s.max())
            for n, s in zip(names, found.scores, strict=True)
        ]
        return retrieval.best_memes(found.scores, self.meme_ids, 1)[:, 0], np.array(gains), found.promise


def open_library(
    placement: LearnedPlacement,
    memes: Mapping[str, Meme],
    annotations: Sequence[Annotation],
    encoders: Sequence[Encode],
) -> LearnedLibrary:
    """Encode what is known of all usable memes; each kind of text is centred by its own mean."""
    usable = retrieval.usable_annotations(annotations)
    texts = [meme_texts(memes[a.meme_id], a) for a in usable]
    vectors = [encode_texts(texts, encode, "document")[0] for encode in encoders]
    return LearnedLibrary(placement, encoders, [a.meme_id for a in usable], vectors)


def score_dialogues(dialogues: Sequence[Dialogue], library: LearnedLibrary) -> list[ScoredDialogue]:
    """The best meme and its promise at every turn 2..T, for the gate of `retrieval.place`.

    A turn without a usable summary gets -inf.
    """
    out = []
    for dialogue in dialogues:
        memes, promise = (
            np.full((len(dialogue.summaries), 1), -1),
            np.full((len(dialogue.summaries), 1), -np.inf),
        )
        usable = [not summary.unscored for summary in dialogue.summaries]
        known = [summary for summary in dialogue.summaries if not summary.unscored]
        if known:
            texts = [turn_texts([u.text for u in dialogue.turns if u.turn < s.turn], s) for s in known]
            names, speakers = [dialogue.dialogue_id] * len(known), [s.speaker for s in known]
            memes[usable, 0], _, promise[usable, 0] = library.promises(
                names, texts, [s.turn for s in known], speakers
            )
        turns = tuple(summary.turn for summary in dialogue.summaries)
        ranking = Ranking(memes, promise, np.zeros((*memes.shape, 4)))
        out.append(ScoredDialogue(dialogue, turns, np.zeros((len(turns), 3, 0)), ranking))
    return out


def score_by_learned(
    dialogues: Sequence[Dialogue],
    memes: Mapping[str, Meme],
    annotations: Sequence[Annotation],
    embedders: Sequence[Any],
    folder: Path,
    profile: Profile,
) -> list[ScoredDialogue]:
    """`score_dialogues` for the run in `folder` under its two embedders (each with `name` and `encode`).

    Empty where the profile does not ask for `learned`; also, with a word, where its weights do not apply or
    the library is too large to compare every meme.
    """
    if LEARNED not in profile.retrieval.strategies:
        return []
    try:
        if len(annotations) >= retrieval.FROM_MEMES:
            raise PlacementError("learned placement compares every meme: for so many take greedy")
        placement = open_placement(folder, [embedder.name for embedder in embedders])
    except PlacementError as error:
        print(f"no memes by {LEARNED}: {error}")
        return []
    encoders = [embedder.encode for embedder in embedders]
    return score_dialogues(dialogues, open_library(placement, memes, annotations, encoders))


# --- Fitted on grades and marks, out of fold

FOLDS, INNER_FOLDS = 5, 4
PENALTIES = (3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)
RANKS = (2, 3, 6)
UNGRADED = (0.0, 0.3, 1.0)
"""Weights of pairs that nobody graded; they count as gain 0."""
GATE_STRENGTHS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
"""Inverse penalties of the gate, as scikit-learn's `C`."""


class Choice(NamedTuple):
    """What inner folds choose for the weights."""

    penalty: float
    rank: int
    ungraded: float


@dataclass(frozen=True)
class Corpus:
    """Turns and memes as vectors, and what graders and markers said of them."""

    asked: Sequence[Query]
    meme_ids: Sequence[str]
    turns: Sequence[np.ndarray]
    """[turns, 6, dim] for each embedder."""
    memes: Sequence[np.ndarray]
    """[memes, 6, dim] for each embedder."""
    gains: np.ndarray
    """[turns, memes], 0-4, twice the mean grade; nan where nobody graded."""
    marks: np.ndarray
    """[turns, markers], 0 or 1."""
    turn_means: Sequence[np.ndarray] = ()

    @cached_property
    def names(self) -> np.ndarray:
        """Dialogue id of every turn."""
        return np.array([query.dialogue.dialogue_id for query in self.asked])

    @cached_property
    def kinds(self) -> np.ndarray:
        """Kind of every turn's dialogue, news or role."""
        return np.array([query.dialogue.kind for query in self.asked])

    @cached_property
    def inputs(self) -> np.ndarray:
        """What the gate reads at every turn."""
        speakers = [query.dialogue.turns[query.turn - 1].speaker for query in self.asked]
        return gate_inputs(self.turns[0], [query.turn for query in self.asked], speakers)

    @cached_property
    def cosines(self) -> np.ndarray:
        """Of all pairs, [turns, memes, 72]."""
        return cosines(self.turns, self.memes)

    def ndcg(self, scores: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """nDCG@5 of scores [rows, memes] at those of the rows (a mask) that have a fitting meme."""
        gains = self.gains[rows]
        at = (np.nan_to_num(gains) / 2 >= FITS).any(axis=1)
        return grades.per_turn(retrieval.order(scores[at], self.meme_ids), gains[at] / 2)[:, NDCG]


def read_corpus(
    split: Split, encoders: Mapping[str, Encode], turn_means: Sequence[np.ndarray | None] = (None, None)
) -> Corpus:
    """Encode what is known of all turns that have a summary and of all usable memes.

    `turn_means` [6, dim] of each embedder centre the texts of turns; None: their own means.
    """
    asked = grades.queries(split.dialogues)
    summaries = [s for dialogue in split.dialogues for s in dialogue.summaries if not s.unscored]
    usable = [a for a in split.annotations if a.usable]
    of_turns = [
        turn_texts([u.text for u in q.dialogue.turns if u.turn < q.turn], s)
        for q, s in zip(asked, summaries, strict=True)
    ]
    of_memes = [meme_texts(split.memes[a.meme_id], a) for a in usable]
    keys, meme_ids = [q.key for q in asked], [a.meme_id for a in usable]
    given = grades.mean_grades(grade for batch in split.grades.values() for grade in batch)
    truth = GroundTruth(split.marks, [])
    sent = [truth.turns_of(marker) for marker in truth.markers]
    turns, means = zip(
        *(encode_texts(of_turns, e, "query", m) for e, m in zip(encoders.values(), turn_means, strict=True)),
        strict=True,
    )
    memes = [encode_texts(of_memes, encode, "document")[0] for encode in encoders.values()]
    marks = np.array([[key in turns_ for turns_ in sent] for key in keys], dtype=int)
    gains = 2 * grades.grade_matrix(keys, meme_ids, given)
    return Corpus(asked, meme_ids, turns, memes, gains, marks.reshape(len(keys), len(sent)), means)


def deal(names: Sequence[str], kinds: Sequence[str], n: int) -> np.ndarray:
    """Fold 0..n-1 of every turn, by dialogue: dealt in turn within each kind, in order of id."""
    fold = {}
    for kind in sorted(set(kinds)):
        mine = sorted({name for name, other in zip(names, kinds, strict=True) if other == kind})
        fold |= {name: place % n for place, name in enumerate(mine)}
    return np.array([fold[name] for name in names], dtype=int)


def ridge(x: np.ndarray, gains: np.ndarray, penalties: Sequence[float], ungraded: float) -> np.ndarray:
    """Weights [penalties, 2, 6, 6] from cosines [turns, memes, 72] and gains [turns, memes].

    Cosines and gains less their mean at the turn, since only differences within a turn rank; pairs that
    nobody graded count as gain 0 and weigh `ungraded`.
    """
    from sklearn.linear_model import Ridge

    weights, y = np.where(np.isnan(gains), ungraded, 1.0), np.nan_to_num(gains)
    total = np.maximum(weights.sum(axis=1, keepdims=True), 1e-12)
    y = y - (weights * y).sum(axis=1, keepdims=True) / total
    x = x - (np.einsum("tm,tmf->tf", weights, x, optimize=True) / total)[:, None]
    targets = np.repeat(y.reshape(-1, 1), len(penalties), axis=1)
    model = Ridge(alpha=np.asarray(penalties), fit_intercept=False, solver="cholesky")
    found = model.fit(x.reshape(-1, x.shape[2]), targets, weights.ravel()).coef_
    return found.reshape(len(penalties), -1, 6, 6)


def cut_rank(weights: np.ndarray, rank: int) -> np.ndarray:
    """Weights [..., 6, 6] cut to a rank by their singular values: fewer products score a pair."""
    u, s, v = np.linalg.svd(weights)
    return (u[..., :rank] * s[..., None, :rank]) @ v[..., :rank, :]


def choose(corpus: Corpus, rows: np.ndarray) -> Choice:
    """The choice with the best nDCG@5 over inner folds by dialogue of some turns (positions)."""
    fold, totals = deal(corpus.names[rows], corpus.kinds[rows], INNER_FOLDS), Counter()
    for inner in range(INNER_FOLDS):
        rest, here = rows[fold != inner], rows[fold == inner]
        for ungraded in UNGRADED:
            fitted = ridge(corpus.cosines[rest], corpus.gains[rest], PENALTIES, ungraded)
            for penalty, weights in zip(PENALTIES, fitted, strict=True):
                for rank in RANKS:
                    scores = corpus.cosines[here] @ cut_rank(weights, rank).ravel()
                    totals[Choice(penalty, rank, ungraded)] += corpus.ndcg(scores, here).sum()
    return max(totals, key=totals.__getitem__)


def fit_gate(corpus: Corpus, rows: np.ndarray) -> np.ndarray:
    """Coefficients and intercept of P(wanted): logistic regression in which every mark is an example.

    Its strength is chosen by log loss over inner folds by dialogue.
    """
    from sklearn.linear_model import LogisticRegression

    inputs, marks = corpus.inputs[rows], corpus.marks[rows]
    fold = deal(corpus.names[rows], corpus.kinds[rows], INNER_FOLDS)

    def fit(chosen: np.ndarray, strength: float) -> LogisticRegression:
        repeated = np.repeat(inputs[chosen], marks.shape[1], axis=0)
        return LogisticRegression(C=strength, max_iter=5000).fit(repeated, marks[chosen].ravel())

    def loss(strength: float) -> float:
        total = 0.0
        for inner in range(INNER_FOLDS):
            p = fit(fold != inner, strength).predict_proba(inputs[fold == inner])[:, 1]
            p, held_out = np.clip(p, 1e-9, 1 - 1e-9)[:, None], marks[fold == inner]
            total -= float((held_out * np.log(p) + (1 - held_out) * np.log(1 - p)).sum())
        return total

    found = fit(np.full(len(rows), True), min(GATE_STRENGTHS, key=loss))
    return np.append(found.coef_[0], found.intercept_)


def fit_gains(corpus: Corpus, rows: np.ndarray, choice: Choice) -> np.ndarray:
    """Gain to expect of a best meme by its score, [2, points]: isotonic, over inner folds of some turns."""
    from sklearn.isotonic import IsotonicRegression

    fold = deal(corpus.names[rows], corpus.kinds[rows], INNER_FOLDS)
    top, gains = np.zeros(len(rows)), np.zeros(len(rows))
    for inner in range(INNER_FOLDS):
        rest, here = rows[fold != inner], rows[fold == inner]
        (weights,) = ridge(corpus.cosines[rest], corpus.gains[rest], [choice.penalty], choice.ungraded)
        model = PlacementModel(cut_rank(weights, choice.rank), np.empty(0), np.empty((2, 0)))
        scores = model.score([turns[here] for turns in corpus.turns], corpus.memes)
        best = retrieval.best_memes(scores, corpus.meme_ids, 1)[:, 0]
        top[fold == inner] = scores.max(axis=1)
        gains[fold == inner] = np.nan_to_num(corpus.gains[here, best])
    found = IsotonicRegression(out_of_bounds="clip").fit(top, gains)
    return np.stack([found.X_thresholds_, found.y_thresholds_])


def learn(corpus: Corpus, embedders: Sequence[str]) -> LearnedPlacement:
    """The model for any chat, from all dialogues, and for each dialogue the one of the other folds."""
    fold, models = deal(corpus.names, corpus.kinds, FOLDS), []
    for number in tqdm(range(FOLDS + 1), desc="models", unit="model"):  # no turn is in the last fold
        rows = np.flatnonzero(fold != number)
        choice = choose(corpus, rows)
        (weights,) = ridge(corpus.cosines[rows], corpus.gains[rows], [choice.penalty], choice.ungraded)
        gate, gains = fit_gate(corpus, rows), fit_gains(corpus, rows, choice)
        models.append(PlacementModel(cut_rank(weights, choice.rank), gate, gains))
    fold_of = dict(zip(corpus.names.tolist(), fold.tolist(), strict=True))
    found = LearnedPlacement(
        tuple(embedders), models[-1], models[:-1], fold_of, corpus.turn_means, np.empty(0)
    )
    return with_promises(found, corpus)


def with_promises(placement: LearnedPlacement, corpus: Corpus) -> LearnedPlacement:
    """The placement with the quantiles of what its models promise at the turns of a corpus."""
    found = placement.predict(corpus.names, corpus.turns, corpus.memes, corpus.inputs)
    return replace(placement, promises=np.quantile(found.promise, np.linspace(0, 1, 101)))


def on_this_machine(run: Run) -> Run:
    """The run, which makes what vectors are not on record, unless an endpoint would have to be paid."""
    paid = run.profile.models.embedder == "endpoint"
    return run if paid else replace(run, profile=run.profile.replace(mode="auto"))


def encoders_of(run: Run) -> tuple[list[str], dict[str, Encode]]:
    """Names of both embedders of a run, and what encodes; a vector that is not on record is made here."""
    encoders = grades.encoders_of(on_this_machine(run))
    return [embedder_of(run.profile, name, run.read_dirs).name for name in encoders], encoders


def splits_of(run: Run, path: Path | None = None) -> list[Split]:
    """The graded splits of a run; `path` is a user's table of grades."""
    return grades.splits_of_run(run, run.load(Dialogue), run.load(Meme), run.load(Annotation), path)


def fit_run(run: Run, path: Path | None = None) -> "Landing":
    """Fit learned placement on a run, write `placement.json` into its folder, and measure it out of fold.

    Learns from the grades of `path` (`grades.read_grades`), else from the example's first pool; later grades
    count in the measures alone. Raises `StageOutputError` with fewer graded dialogues than folds.
    """
    if find_spec("sklearn") is None:
        raise ExtraMissing("make fit-placement needs scikit-learn: pip install -e .")
    split = next(iter(splits_of(run, path)), None)
    first = next(iter(split.grades.values())) if split else []
    graded = {grade.dialogue_id for grade in first}
    dialogues = [d for d in split.dialogues if d.dialogue_id in graded] if split else []
    by_kind = Counter(d.kind for d in dialogues)
    if not by_kind or min(by_kind.values()) < FOLDS:
        raise StageOutputError(
            f"learned placement needs graded memes in {FOLDS} or more dialogues of each kind; here are "
            f"{', '.join(f'{n} {kind}' for kind, n in sorted(by_kind.items())) or 'none'}"
        )
    split = replace(split, dialogues=dialogues)
    names, encoders = encoders_of(run)
    model = learn(read_corpus(replace(split, grades={"pool": first}), encoders), names)
    model.save(run.write(FILE))
    found = tabulate([predict_split(split, model, encoders, run.profile)])
    found.save(run)
    return found


# --- Measured: do its memes land?

CONTROL = f"random, same turns as {LEARNED}"
OWN, OURS, THEIRS = "each at its own turns", "at the turns of learned", "at the turns of Greedy"
"""Where learned placement and another are compared."""
MEASURES = ("R@1", "R@5", "MRR", "nDCG@5", "judged@5")
CASES = 6
"""Wins and losses of each kind that are shown."""


class Sent(NamedTuple):
    """Which turns get a meme (a mask over the turns), and which meme would be sent at every turn."""

    turns: np.ndarray
    memes: np.ndarray


@dataclass(frozen=True)
class Graded:
    """A split as vectors and scores; the gains are those of all grades."""

    name: str
    corpus: Corpus
    found: Predicted
    paper: np.ndarray
    """The paper's scores [turns, memes] (Eq. 22), each text centred by its own mean over the split."""
    profile: Profile

    @cached_property
    def ways(self) -> dict[str, Sent]:
        """What is compared, each at the rate of the profile, fitted on the other half of the dialogues.

        Ranker alone and gate alone send the memes of learned where their half of the promise is highest.
        """
        found, ids, settings = self.found, self.corpus.meme_ids, self.profile.retrieval
        best, papers = (retrieval.best_memes(s, ids, 1)[:, 0] for s in (found.scores, self.paper))
        drawn = grades.random_order(self.corpus.asked, len(ids), self.profile.seed, 0)[:, 0]
        ways = {
            LEARNED: Sent(self._gated(found.promise, settings.learned_penalty), best),
            "ranker alone": Sent(self._gated(found.scores.max(axis=1), 0.0), best),
            "gate alone": Sent(self._gated(found.wanted, 0.0), best),
            "greedy": Sent(self._gated(self.paper.max(axis=1), settings.threshold_penalty), papers),
        }
        return ways | {f"random, same turns as {n}": Sent(ways[n].turns, drawn) for n in (LEARNED, "greedy")}

    def _gated(self, scores: np.ndarray, penalty: float) -> np.ndarray:
        """Where the gate opens for these best scores, fitted on the other half of the dialogues (Eq. 23)."""
        items = []
        for dialogue in {query.dialogue.dialogue_id: query.dialogue for query in self.corpus.asked}.values():
            mine = scores[self.corpus.names == dialogue.dialogue_id, None]
            ranking = Ranking(np.zeros(mine.shape, dtype=int), mine, np.zeros((*mine.shape, 4)))
            items.append(ScoredDialogue(dialogue, (), np.empty(0), ranking))
        traces = retrieval.traces(items, retrieval.calibrate(items, self.profile, penalty))
        return np.concatenate([traces[item.dialogue.dialogue_id][2].sent for item in items])

    def grades(self, sent: Sent) -> np.ndarray:
        """Mean grade (0-2) of the meme of every turn; nan where nobody graded it."""
        return self.corpus.gains[np.arange(len(sent.memes)), sent.memes] / 2

    def rows(self, part: str) -> np.ndarray:
        """Turns of all dialogues, or of those of one kind."""
        return np.full(len(self.corpus.kinds), True) if part == "all" else self.corpus.kinds == part


@dataclass(frozen=True)
class Landing:
    """The tables, and wins and losses to look at; empty without grades or where the weights do not apply."""

    placed: pd.DataFrame
    """Of the memes sent: grades, shares with intervals, a row a split, part and way."""
    differences: pd.DataFrame
    """Mean grade of learned minus Greedy, first, and minus random."""
    gate: pd.DataFrame
    """AUC of the gate and of the paper's score between turns that all markers fill and that none does."""
    ranking: pd.DataFrame
    """R@1, R@5, MRR, nDCG@5 of the ranker and of the paper's score, and their differences."""
    cases: Sequence[Mapping[str, Any]]
    """Turns at which learned and Greedy send different memes that differ most in grade."""

    def save(self, run: Run) -> None:
        """Write the tables into the run's report, and `landing.json`, which page and README quote."""
        saved = {name: table for name, table in vars(self).items() if name != "cases"}
        run.save_tables(**{f"learned_{name}": table for name, table in saved.items()})
        run.save_json(TABLES, {**{n: frame_rows(t) for n, t in saved.items()}, "cases": list(self.cases)})

    def text(self) -> str:
        """Ranking, placed memes and gate of all dialogues, as tables."""
        placed = self.placed[self.placed.part == "all"]
        shown = self.ranking[self.ranking.part == "all"].drop(columns=["split", "part"])
        placed = placed[["way", "memes", "mean grade", "fits", "fits low", "fits high", "wanted and fits"]]
        return "\n".join(map(files.markdown, (shown, placed, self.gate.drop(columns="split"))))


def measure(run: Run) -> Landing:
    """Measure learned placement on a run's graded turns and on the untouched test, and save the tables.

    The scores are saved, too, so that nobody has to rank again (`saved_scores`).
    """
    graded = []
    try:
        names, encoders = encoders_of(run)
        placement = open_placement(run.folder, names)
        graded = [predict_split(one, placement, encoders, run.profile) for one in splits_of(run)]
    except PlacementError as error:
        print(f"no measure of learned placement: {error}")
    arrays = {}
    for one in graded:
        arrays |= {f"{one.name} {part}": v for part, v in one.found._asdict().items()}
        arrays[f"{one.name} memes"] = np.array(one.corpus.meme_ids)
    run.save_arrays(SCORES, **arrays)
    found = tabulate(graded)
    found.save(run)
    return found


def saved_scores(run: Run, split: str) -> tuple[Predicted, list[str]] | None:
    """What `measure` saved of a split, rows as `grades.queries`, and the memes; None where it has nothing."""
    try:
        with np.load(run.read(SCORES), allow_pickle=False) as arrays:
            return Predicted(*(arrays[f"{split} {p}"] for p in Predicted._fields)), arrays[
                f"{split} memes"
            ].tolist()
    except (StageMissing, KeyError):
        return None


def predict_split(
    split: Split, placement: LearnedPlacement, encoders: Mapping[str, Encode], profile: Profile
) -> Graded:
    """Encode a split, and let the models say what they have not seen."""
    corpus = read_corpus(split, encoders, placement.turn_means)
    summaries = [s for dialogue in split.dialogues for s in dialogue.summaries if not s.unscored]
    usable = [annotation for annotation in split.annotations if annotation.usable]
    first = next(iter(encoders.values()))
    terms = grades.four_terms(summaries, usable, first, profile.retrieval.centring)
    found = placement.predict(corpus.names, corpus.turns, corpus.memes, corpus.inputs)
    return Graded(split.name, corpus, found, retrieval.combine(terms, profile.retrieval.weights), profile)


def tabulate(graded: Sequence[Graded]) -> Landing:
    """All tables of some splits."""
    makers = (placed_rows, difference_rows, gate_rows, ranking_rows)
    found = [pd.DataFrame([row for one in graded for row in rows(one)]) for rows in makers]
    return Landing(*found, [row for one in graded for row in cases(one)])


def placed_rows(one: Graded) -> Iterator[dict[str, Any]]:
    """Memes sent, a row for each part of the dialogues and each strategy; without a grade: does not fit."""
    wanted = one.corpus.marks.any(axis=1)
    for part in ("all", "news", "role"):
        for name, sent in one.ways.items():
            at = sent.turns & one.rows(part)
            given = one.grades(sent)[at]
            known, names = np.nan_to_num(given), one.corpus.names[at].tolist()
            fits = known >= FITS
            row = {
                "split": one.name, "part": part, "way": name, "memes": int(at.sum()),
                "ungraded": float(np.isnan(given).mean()) if at.any() else 0.0,
                **statistics.cluster_mean(known, names, (0, 2)).columns("mean grade"),
            }  # fmt: skip
            shares = {
                "fits": fits, "0 from both": known == 0, "2 from both": known == 2,
                "wanted and fits": fits & wanted[at],
            }  # fmt: skip
            for what, values in shares.items():
                row |= statistics.cluster_mean(values.astype(float), names, statistics.SHARE).columns(what)
            yield row


def difference_rows(one: Graded) -> Iterator[dict[str, Any]]:
    """Mean grade of learned minus another: at each one's own turns, and at the same turns."""
    ours, greedy, random = (one.ways[name] for name in (LEARNED, "greedy", CONTROL))
    for part in ("all", "news", "role"):
        within = one.rows(part)

        def values(sent: Sent, turns: np.ndarray, within: np.ndarray = within) -> dict:
            keys = [one.corpus.asked[row].key for row in np.flatnonzero(turns & within)]
            return dict(zip(keys, np.nan_to_num(one.grades(sent))[turns & within].tolist(), strict=True))

        pairs = {
            ("greedy", OWN): (ours.turns, greedy, greedy.turns),
            ("greedy", THEIRS): (greedy.turns, greedy, greedy.turns),
            ("greedy", OURS): (ours.turns, greedy, ours.turns),
            ("random", OURS): (ours.turns, random, ours.turns),
        }
        for (minus, where), (our_turns, other, turns) in pairs.items():
            compare = statistics.paired_difference if our_turns is turns else statistics.unpaired_difference
            rng = statistics.rng(one.profile.seed, "landing", one.name, part, minus, where)
            got = compare(values(ours, our_turns), values(other, turns), rng)
            row = {"split": one.name, "part": part, "learned minus": minus, "where": where}
            yield {**row, **got.row(), "p": got.p}


def gate_rows(one: Graded) -> Iterator[dict[str, Any]]:
    """How far the learned gate and the paper's best score tell when a meme is wanted (`timing_rows`)."""
    for gate, scores in ((LEARNED, one.found.wanted), ("the paper's top score", one.paper.max(axis=1))):
        for row in timing_rows(scores, one.corpus.marks, one.corpus.names):
            yield {"split": one.name, "gate": gate, **row}


def timing_rows(scores: np.ndarray, marks: np.ndarray, names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """AUC of scores [turns] of turns that all markers fill against those of none; marks [turns, markers]."""
    names, clear, filled = np.asarray(names), np.ptp(marks, axis=1) == 0, marks[:, 0] == 1
    pairs = [list(zip(names[clear & p], scores[clear & p], strict=True)) for p in (filled, ~filled)]
    yield {"measure": "AUC", **statistics.cluster_auc(*pairs).row()}


def ranking_rows(one: Graded) -> Iterator[dict[str, Any]]:
    """Measures of both rankings at the turns that have a fitting meme, and their differences."""
    columns, given = [grades.MEASURES.index(name) for name in MEASURES], one.corpus.gains / 2
    for part in ("all", "news", "role"):
        at = one.rows(part) & grades.fits(given).any(axis=1)
        measured = {
            name: grades.per_turn(retrieval.order(scores[at], one.corpus.meme_ids), given[at])[:, columns]
            for name, scores in ((LEARNED, one.found.scores), (PAPER, one.paper))
        }
        measured[f"{LEARNED} minus {PAPER}"] = measured[LEARNED] - measured[PAPER]
        for name, values in measured.items():
            bounds = None if "minus" in name else statistics.SHARE
            row = {"split": one.name, "part": part, "what": name, "turns": int(at.sum())}
            yield row | statistics.mean_columns(MEASURES, values, one.corpus.names[at].tolist(), bounds)


def cases(one: Graded) -> Iterator[dict[str, Any]]:
    """Turns at which learned or Greedy sends, with the largest differences in grade, wins and losses."""
    ours, greedy = one.ways[LEARNED], one.ways["greedy"]
    a, b = np.nan_to_num(one.grades(ours)), np.nan_to_num(one.grades(greedy))
    for kind, sign in (("win", 1), ("loss", -1)):
        gaps = np.where((ours.turns | greedy.turns) & (ours.memes != greedy.memes), sign * (a - b), -9)
        for row in (row for row in np.argsort(-gaps, kind="stable")[:CASES] if gaps[row] > 0):
            name, turn = one.corpus.asked[row].key
            found = {"split": one.name, "case": kind, "dialogue_id": name, "turn": turn}
            for who, sent, given in ((LEARNED, ours, a), ("greedy", greedy, b)):
                found |= {
                    who: one.corpus.meme_ids[sent.memes[row]],
                    f"{who} grade": float(given[row]),
                    f"{who} sends": bool(sent.turns[row]),
                }
            yield found


QUOTED = {
    "placed": (
        "split",
        "way",
        "memes",
        "ungraded",
        "0 from both",
        *statistics.with_ends("fits", "mean grade"),
    ),
    "differences": ("split", "learned minus", "where", "mean", "low", "high", "dialogues", "p"),
    "gate": ("split", "gate", "mean", "low", "high", "n", "dialogues"),
    "ranking": ("split", "what", "turns", *statistics.with_ends("nDCG@5")),
}
"""Columns of the tables that `numbers.json` holds, of all dialogues."""


def quoted(run: Run) -> dict[str, list[dict[str, Any]]]:
    """What page and READMEs quote of `landing.json`, the untouched test first; empty without grades."""
    try:
        found = json.loads(run.read(TABLES).read_text(encoding="utf-8"))
    except StageMissing:
        return {}
    out = {}
    for table, columns in QUOTED.items() if found["placed"] else ():
        rows = [row for row in found[table] if row.get("part", "all") == "all"]
        rows = [row for row in rows if row.get("way", LEARNED) in (LEARNED, "greedy", CONTROL)]
        rows.sort(key=lambda row: row["split"] != UNTOUCHED)
        out[table] = [{name: row[name] for name in columns} for row in rows]
    return out
