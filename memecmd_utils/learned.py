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
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from tqdm.auto import tqdm

from memecmd_utils import files, grades, retrieval
from memecmd_utils.embedders import embedder_of
from memecmd_utils.files import MemecmdError, paths
from memecmd_utils.grades import GradedTurns, GroundTruth, Split
from memecmd_utils.retrieval import LEARNED, Encode, Ranking, ScoredDialogue
from memecmd_utils.runs import Run
from memecmd_utils.schemas import Annotation, Dialogue, Meme, Summary, SummaryReply
from memecmd_utils.settings import Profile

TURN_TEXTS = ("S", "E", "Psi", "S E Psi", "last turn", "last three turns")
MEME_TEXTS = ("S+", "S-", "E", "Psi", "caption", "picture and caption")
"""What is known of a turn and of a meme, in the order of rows and columns of a ranker's weights."""
GATE_TEXTS = (0, 1, 2, 4, 5)
"""Places in `TURN_TEXTS` of the texts that the gate reads: the joined one says nothing new to it."""
LAST_TURN = 18
"""Turns of a dialogue of the example: the gate reads a turn's number in this unit, and no higher one."""
FILE = "placement.json"
"""File of a run with weights that were fitted on it; the example's are in `data/example`."""


class PlacementError(MemecmdError, ValueError):
    """Learned weights that cannot be applied: other embedders, or a file of another form."""


# --- Texts and their vectors


def turn_texts(before: Sequence[str], summary: SummaryReply | Summary) -> tuple[str, ...]:
    """The texts known before turn t, in the order of `TURN_TEXTS`: its summary and `before`, u_1..u_{t-1}."""
    parts = (summary.scenario, summary.emotion, summary.motivation)
    return (*parts, "\n".join(parts), *("\n".join(before[-n:]) for n in (1, 3)))


def texts_of_dialogue(dialogue: Dialogue) -> list[tuple[str, ...]]:
    """`turn_texts` of every turn that has a summary."""
    said = [turn.text for turn in dialogue.turns]
    return [turn_texts(said[: s.turn - 1], s) for s in dialogue.summaries if not s.unscored]


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
    """Weights of all pairs of texts, a gate, and the gain to expect of a turn's best meme.

    `weights` [embedders, 6 texts of the turn, 6 of the meme]: Eq. 22 has four of them. `gate`: coefficients
    of a logistic regression on `gate_inputs`, and its intercept. `gains` [2, points]: best scores and the
    gains (0-4, twice the mean grade) to expect of them, both ascending. `intercepts`: what a graded meme is
    liked more than others at any turn, in the same unit; a new meme has none.
    """

    weights: np.ndarray
    gate: np.ndarray
    gains: np.ndarray
    intercepts: Mapping[str, float]

    def score(
        self, turns: Sequence[np.ndarray], memes: Sequence[np.ndarray], meme_ids: Sequence[str]
    ) -> np.ndarray:
        """Scores [turns, memes] of vectors [turns, 6, dim] and [memes, 6, dim] of each embedder.

        A score is an expected gain less its mean at the turn: only differences at a turn count.
        """
        scores = np.tile([self.intercepts.get(meme, 0.0) for meme in meme_ids], (len(turns[0]), 1))
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

    def as_json(self, embedders: Sequence[str]) -> dict[str, Any]:
        """The model as it stands in `placement.json`: weights by the names of their texts."""
        tables = [pd.DataFrame(np.round(w, 5), TURN_TEXTS, MEME_TEXTS).to_dict("index") for w in self.weights]
        weights = dict(zip(embedders, tables, strict=True))
        intercepts = {meme: round(value, 5) for meme, value in self.intercepts.items()}
        gains, gate = np.round(self.gains, 6).tolist(), _packed(self.gate)
        return {"weights": weights, "intercepts": intercepts, "gains": gains, "gate": gate}

    @classmethod
    def of_json(cls, values: Mapping[str, Any], embedders: Sequence[str]) -> "PlacementModel":
        """The model that `as_json` wrote."""
        weights = [[[values["weights"][n][t][m] for m in MEME_TEXTS] for t in TURN_TEXTS] for n in embedders]
        gains = np.array(values["gains"]).reshape(2, -1)
        return cls(np.array(weights), _unpacked(values["gate"]), gains, values["intercepts"])


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
        model, *folds = (replace(one, intercepts={}) for one in (self.model, *self.folds))
        return replace(self, model=model, folds=folds)

    def of_dialogue(self, dialogue_id: str) -> PlacementModel:
        """The model that saw no grade and no mark of this dialogue."""
        return self.folds[self.fold_of[dialogue_id]] if dialogue_id in self.fold_of else self.model

    def predict(
        self,
        names: Sequence[str],
        turns: Sequence[np.ndarray],
        memes: Sequence[np.ndarray],
        meme_ids: Sequence[str],
        inputs: np.ndarray,
    ) -> Predicted:
        """What the model says that did not see the dialogue of a turn; `names` are those of the turns.

        The promise is P(wanted) times the gain to expect of the best meme.
        """
        found = Predicted(np.empty((len(names), len(memes[0]))), *np.empty((2, len(names))))
        fold = np.array([self.fold_of.get(name, -1) for name in names])
        for number in np.unique(fold):
            rows, model = fold == number, self.model if number < 0 else self.folds[number]
            found.scores[rows] = model.score([part[rows] for part in turns], memes, meme_ids)
            found.wanted[rows] = model.wanted(inputs[rows])
            gain = model.expected_gain(found.scores[rows].max(axis=1))
            found.promise[rows] = found.wanted[rows] * gain
        return found

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
        self, name: str, texts: Sequence[Sequence[str]], turns: Sequence[int], speakers: Sequence[str]
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Position of each turn's best meme, the gain (0-4) to expect of it, and its promise, [turns] each.

        `texts` are `turn_texts`, `turns` their numbers, `speakers` A, who opens, or B. `name` is that of the
        dialogue: one that was learned from is judged by the model that did not see it.
        """
        means = zip(self.encoders, self.placement.turn_means, strict=True)
        vectors = [encode_texts(texts, encode, "query", mean)[0] for encode, mean in means]
        inputs = gate_inputs(vectors[0], turns, speakers)
        found = self.placement.predict([name] * len(texts), vectors, self.memes, self.meme_ids, inputs)
        gains = self.placement.of_dialogue(name).expected_gain(found.scores.max(axis=1))
        return retrieval.order(found.scores, self.meme_ids)[:, 0], gains, found.promise


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


def score_by_learned(
    run: Run, dialogues: Sequence[Dialogue], memes: Mapping[str, Meme], annotations: Sequence[Annotation]
) -> list[ScoredDialogue]:
    """The best meme and its promise at every turn 2..T, for the gate of `retrieval.place`.

    A turn without a usable summary gets -inf. Nothing where the profile does not ask for `learned`; also,
    with a word, where its weights do not apply or the library is too large to compare every meme.
    """
    if LEARNED not in run.profile.retrieval.strategies:
        return []
    embedders = [run.embedder(), run.embedder(run.profile.models.consistency_embedder)]
    try:
        if len(annotations) >= retrieval.FROM_MEMES:
            raise PlacementError("the library is too large to compare every meme: use greedy")
        placement = open_placement(run.folder, [embedder.name for embedder in embedders])
    except PlacementError as error:
        print(f"no memes by {LEARNED}: {error}")
        return []
    library = open_library(placement, memes, annotations, [embedder.encode for embedder in embedders])
    out = []
    for dialogue in dialogues:
        n, known = len(dialogue.summaries), [s for s in dialogue.summaries if not s.unscored]
        ranking = Ranking(np.full((n, 1), -1), np.full((n, 1), -np.inf), np.zeros((n, 1, 4)))
        if known:
            turns, speakers = [s.turn for s in known], [s.speaker for s in known]
            texts, usable = texts_of_dialogue(dialogue), [not s.unscored for s in dialogue.summaries]
            best, _, promise = library.promises(dialogue.dialogue_id, texts, turns, speakers)
            ranking.memes[usable, 0], ranking.scores[usable, 0] = best, promise
        turns = tuple(summary.turn for summary in dialogue.summaries)
        out.append(ScoredDialogue(dialogue, turns, np.zeros((n, 3, 0)), ranking))
    return out


# --- Fitted on grades and marks, out of fold

FOLDS, INNER_FOLDS = 5, 4
PENALTIES, RANKS = (3.0, 10.0, 30.0, 100.0, 300.0, 1000.0), (2, 3, 6)
UNGRADED = (0.0, 0.3, 1.0)
"""Weights of pairs that nobody graded; they count as gain 0."""
SHARES_OF_MEAN = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Shares of a meme's mean gain among which its intercept is chosen."""
GATE_STRENGTHS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
"""Inverse penalties of the gate, as scikit-learn's `C`."""


@dataclass
class Corpus(GradedTurns):
    """Graded turns with the vectors, [n, 6, dim] each, of all that is known of turns and memes."""

    given_means: Sequence[np.ndarray | None] = (None, None)
    """What is taken off the texts of turns, [6, dim] for each embedder; None: their own means."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.names = np.array(self.clusters)
        self.kinds = np.array([query.dialogue.kind for query in self.asked])
        sent = [self.truth.turns_of(marker) for marker in self.truth.markers]
        self.marks = np.array([[key in turns for turns in sent] for key in self.keys], dtype=int)
        of_turns = [row for dialogue in self.dialogues for row in texts_of_dialogue(dialogue)]
        of_memes = [meme_texts(self.memes[a.meme_id], a) for a in self.annotations]
        encoders = list(zip(self.encoders.values(), self.given_means, strict=True))
        turns = [encode_texts(of_turns, encode, "query", means) for encode, means in encoders]
        self.turns, self.turn_means = map(list, zip(*turns, strict=True))
        self.meme_vectors = [encode_texts(of_memes, encode, "document")[0] for encode, _ in encoders]
        numbers, speakers = [s.turn for s in self.summaries], [s.speaker for s in self.summaries]
        self.inputs = gate_inputs(self.turns[0], numbers, speakers)

    @property
    def gains(self) -> np.ndarray:
        """[turns, memes], 0-4, twice the mean grade; nan where nobody graded."""
        return 2 * self.grades

    @cached_property
    def cosines(self) -> np.ndarray:
        """Of all pairs, float32 [turns, memes, 72]."""
        pairs = zip(self.turns, self.meme_vectors, strict=True)
        parts = [np.einsum("tid,mjd->tmij", t, m, optimize=True) for t, m in pairs]
        return np.stack(parts, axis=2).reshape(*self.grades.shape, -1).astype(np.float32)

    def predict(self, placement: LearnedPlacement) -> Predicted:
        """What is said of every turn by the model that did not see its dialogue."""
        return placement.predict(self.names, self.turns, self.meme_vectors, self.meme_ids, self.inputs)


def corpus_of(split: Split, encoders: Mapping[str, Encode], profile: Profile, means=(None, None)) -> Corpus:
    """The turns and memes of a split with all its grades; `means` centre the texts of turns."""
    given = [grade for batch in split.grades.values() for grade in batch]
    usable, truth = [a for a in split.annotations if a.usable], GroundTruth(split.marks, given)
    return Corpus(profile, split.dialogues, split.memes, usable, truth, encoders, given_means=means)


def deal(names: Sequence[str], kinds: Sequence[str], n: int) -> np.ndarray:
    """Fold 0..n-1 of every turn, by dialogue: dealt in turn within each kind, in order of id."""
    fold, place = {}, Counter()
    for kind, name in sorted(set(zip(kinds, names, strict=True))):
        fold[name] = place[kind] % n
        place[kind] += 1
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


def inner_folds(corpus: Corpus, rows: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Positions among these rows to fit on and to try on, by dialogue."""
    fold = deal(corpus.names[rows], corpus.kinds[rows], INNER_FOLDS)
    for number in range(INNER_FOLDS):
        yield np.flatnonzero(fold != number), np.flatnonzero(fold == number)


def choose(corpus: Corpus, rows: np.ndarray) -> tuple[float, float, int]:
    """Weight of ungraded pairs, penalty and rank with the best nDCG@5 over inner folds of some turns."""
    totals: Counter[tuple[float, float, int]] = Counter()
    for fit, held_out in inner_folds(corpus, rows):
        rest, here = rows[fit], rows[held_out]
        here = here[grades.fits(corpus.grades[here]).any(axis=1)]
        for ungraded in UNGRADED:
            fitted = ridge(corpus.cosines[rest], corpus.gains[rest], PENALTIES, ungraded)
            for (penalty, weights), rank in product(zip(PENALTIES, fitted, strict=True), RANKS):
                scores = corpus.cosines[here] @ cut_rank(weights, rank).ravel().astype(np.float32)
                best = retrieval.order(scores, corpus.meme_ids)
                totals[ungraded, penalty, rank] += grades.ndcg(best, corpus.grades[here]).sum()
    return max(totals, key=totals.__getitem__)


def mean_gains(corpus: Corpus, rows: np.ndarray) -> np.ndarray:
    """How much more than others each meme gains at some turns, [memes]; pairs that nobody graded gain 0."""
    gains = np.nan_to_num(corpus.gains[rows])
    return (gains - gains.mean(axis=1, keepdims=True)).mean(axis=0)


def choose_share(corpus: Corpus, rows: np.ndarray, weights: Mapping[int, np.ndarray]) -> float:
    """The share of `mean_gains` with the best nDCG@5 over inner folds; `weights` are those of each fold."""
    totals = dict.fromkeys(SHARES_OF_MEAN, 0.0)
    for number, (fit, held_out) in enumerate(inner_folds(corpus, rows)):
        here = rows[held_out][grades.fits(corpus.grades[rows[held_out]]).any(axis=1)]
        scores, liked = corpus.cosines[here] @ weights[number].ravel(), mean_gains(corpus, rows[fit])
        for share in totals:
            best = retrieval.order(scores + share * liked, corpus.meme_ids)
            totals[share] += grades.ndcg(best, corpus.grades[here]).sum()
    return max(totals, key=totals.__getitem__)


def fit_gate(corpus: Corpus, rows: np.ndarray) -> np.ndarray:
    """Coefficients and intercept of P(wanted): logistic regression in which every mark is an example.

    Its strength is chosen by log loss over inner folds.
    """
    from sklearn.linear_model import LogisticRegression

    inputs, marks = corpus.inputs[rows], corpus.marks[rows]

    def fit(at: np.ndarray, strength: float) -> LogisticRegression:
        repeated = np.repeat(inputs[at], marks.shape[1], axis=0)
        return LogisticRegression(C=strength, max_iter=5000).fit(repeated, marks[at].ravel())

    def loss(strength: float) -> float:
        total = 0.0
        for rest, here in inner_folds(corpus, rows):
            p = np.clip(fit(rest, strength).predict_proba(inputs[here])[:, 1], 1e-9, 1 - 1e-9)[:, None]
            total -= float((marks[here] * np.log(p) + (1 - marks[here]) * np.log(1 - p)).sum())
        return total

    found = fit(np.arange(len(rows)), min(GATE_STRENGTHS, key=loss))
    return np.append(found.coef_[0], found.intercept_)


def fit_model(corpus: Corpus, rows: np.ndarray) -> PlacementModel:
    """Weights, gate and expected gains from some turns (positions).

    The gain to expect of a best meme is an isotonic regression on its score, over inner folds.
    """
    from sklearn.isotonic import IsotonicRegression

    ungraded, penalty, rank = choose(corpus, rows)

    def fit_weights(at: np.ndarray) -> np.ndarray:
        (weights,) = ridge(corpus.cosines[at], corpus.gains[at], [penalty], ungraded)
        return cut_rank(weights, rank)

    inner = [(rows[rest], here) for rest, here in inner_folds(corpus, rows)]
    weights = {number: fit_weights(rest) for number, (rest, _) in enumerate(inner)}
    share = choose_share(corpus, rows, weights)

    def model(weights: np.ndarray, at: np.ndarray) -> PlacementModel:
        liked = dict(zip(corpus.meme_ids, (share * mean_gains(corpus, at)).tolist(), strict=True))
        return PlacementModel(weights, np.empty(0), np.empty((2, 0)), liked)

    top, gains = np.zeros(len(rows)), np.zeros(len(rows))
    for number, (rest, here) in enumerate(inner):
        at, turns = rows[here], [part[rows[here]] for part in corpus.turns]
        scores = model(weights[number], rest).score(turns, corpus.meme_vectors, corpus.meme_ids)
        best = retrieval.order(scores, corpus.meme_ids)[:, 0]
        top[here], gains[here] = scores.max(axis=1), np.nan_to_num(corpus.gains[at, best])
    curve = IsotonicRegression(out_of_bounds="clip").fit(top, gains)
    points = np.stack([curve.X_thresholds_, curve.y_thresholds_])
    return replace(model(fit_weights(rows), rows), gate=fit_gate(corpus, rows), gains=points)


def learn(corpus: Corpus, embedders: Sequence[str]) -> LearnedPlacement:
    """The model for any chat, from all dialogues, and for each dialogue the one of the other folds."""
    fold = deal(corpus.names, corpus.kinds, FOLDS)
    fits = tqdm(range(FOLDS + 1), desc="models", unit="model")  # no turn is in the last fold
    *models, model = [fit_model(corpus, np.flatnonzero(fold != number)) for number in fits]
    fold_of = dict(zip(corpus.clusters, fold.tolist(), strict=True))
    return LearnedPlacement(tuple(embedders), model, models, fold_of, corpus.turn_means)


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
