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

from memecmd_utils import files, grades, retrieval, statistics
from memecmd_utils.embedders import embedder_of
from memecmd_utils.evaluation import frame_rows
from memecmd_utils.files import MemecmdError, StageOutputError, paths
from memecmd_utils.grades import GradedTurns, GroundTruth, Split
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
    gains (0-4, twice the mean grade) to expect of them, both ascending.
    """

    weights: np.ndarray
    gate: np.ndarray
    gains: np.ndarray

    def score(self, turns: Sequence[np.ndarray], memes: Sequence[np.ndarray]) -> np.ndarray:
        """Scores [turns, memes] of vectors [turns, 6, dim] and [memes, 6, dim] of each embedder.

        A score is an expected gain less its mean at the turn: only differences at a turn count.
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

    def as_json(self, embedders: Sequence[str]) -> dict[str, Any]:
        """The model as it stands in `placement.json`: weights by the names of their texts."""
        tables = [pd.DataFrame(np.round(w, 5), TURN_TEXTS, MEME_TEXTS).to_dict("index") for w in self.weights]
        weights = dict(zip(embedders, tables, strict=True))
        return {"weights": weights, "gains": np.round(self.gains, 6).tolist(), "gate": _packed(self.gate)}

    @classmethod
    def of_json(cls, values: Mapping[str, Any], embedders: Sequence[str]) -> "PlacementModel":
        """The model that `as_json` wrote."""
        weights = [[[values["weights"][n][t][m] for m in MEME_TEXTS] for t in TURN_TEXTS] for n in embedders]
        return cls(np.array(weights), _unpacked(values["gate"]), np.array(values["gains"]).reshape(2, -1))


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
    `promises`: quantiles 0, 0.01, ..., 1 of the promise of their turns, out of fold.
    """

    embedders: tuple[str, ...]
    model: PlacementModel
    folds: Sequence[PlacementModel]
    fold_of: Mapping[str, int]
    turn_means: Sequence[np.ndarray]
    promises: np.ndarray

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
        """What the model says that did not see the dialogue of a turn; `names` are those of the turns.

        The promise is P(wanted) times the gain to expect of the best meme.
        """
        found = Predicted(np.empty((len(names), len(memes[0]))), *np.empty((2, len(names))))
        fold = np.array([self.fold_of.get(name, -1) for name in names])
        for number in np.unique(fold):
            rows, model = fold == number, self.model if number < 0 else self.folds[number]
            found.scores[rows] = model.score([part[rows] for part in turns], memes)
            found.wanted[rows] = model.wanted(inputs[rows])
            gain = model.expected_gain(found.scores[rows].max(axis=1))
            found.promise[rows] = found.wanted[rows] * gain
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
        return LearnedPlacement(names, model, folds, values["fold_of"], means, np.array(values["promises"]))
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
        found = self.placement.predict([name] * len(texts), vectors, self.memes, inputs)
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
            raise PlacementError("learned placement compares every meme: for so many take greedy")
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
        return placement.predict(self.names, self.turns, self.meme_vectors, self.inputs)


def corpus_of(split: Split, encoders: Mapping[str, Encode], profile: Profile, means=(None, None)) -> Corpus:
    """The turns and memes of a split with all its grades; `means` centre the texts of turns."""
    given = [grade for batch in split.grades.values() for grade in batch]
    usable, truth = [a for a in split.annotations if a.usable], GroundTruth(split.marks, given)
    return Corpus(profile, split.dialogues, split.memes, usable, truth, (), encoders, given_means=means)


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
                measured = grades.per_turn(retrieval.order(scores, corpus.meme_ids), corpus.grades[here])
                totals[ungraded, penalty, rank] += measured[:, grades.NDCG].sum()
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

    def fit(at: np.ndarray) -> PlacementModel:
        (weights,) = ridge(corpus.cosines[at], corpus.gains[at], [penalty], ungraded)
        return PlacementModel(cut_rank(weights, rank), np.empty(0), np.empty((2, 0)))

    top, gains = np.zeros(len(rows)), np.zeros(len(rows))
    for rest, here in inner_folds(corpus, rows):
        at = rows[here]
        scores = fit(rows[rest]).score([part[at] for part in corpus.turns], corpus.meme_vectors)
        best = retrieval.order(scores, corpus.meme_ids)[:, 0]
        top[here], gains[here] = scores.max(axis=1), np.nan_to_num(corpus.gains[at, best])
    curve = IsotonicRegression(out_of_bounds="clip").fit(top, gains)
    points = np.stack([curve.X_thresholds_, curve.y_thresholds_])
    return replace(fit(rows), gate=fit_gate(corpus, rows), gains=points)


def learn(corpus: Corpus, embedders: Sequence[str]) -> LearnedPlacement:
    """The model for any chat, from all dialogues, and for each dialogue the one of the other folds."""
    fold = deal(corpus.names, corpus.kinds, FOLDS)
    fits = tqdm(range(FOLDS + 1), desc="models", unit="model")  # no turn is in the last fold
    *models, model = [fit_model(corpus, np.flatnonzero(fold != number)) for number in fits]
    fold_of = dict(zip(corpus.clusters, fold.tolist(), strict=True))
    found = LearnedPlacement(tuple(embedders), model, models, fold_of, corpus.turn_means, np.empty(0))
    return replace(found, promises=np.quantile(corpus.predict(found).promise, np.linspace(0, 1, 101)))


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


def fit_run(run: Run, path: Path | None = None) -> str:
    """Fit learned placement on a run, write `placement.json` into its folder, and measure it out of fold.

    Learns from the grades of `path` (`grades.read_grades`), else from the example's first pool; later grades
    count in the measures alone. Raises `StageOutputError` with fewer graded dialogues than folds. Gives
    ranking, placed memes and gate as tables in Markdown.
    """
    split = next(iter(splits_of(run, path)), Split("", [], {}, [], {"": []}))
    first = next(iter(split.grades.values()))
    graded = {grade.dialogue_id for grade in first}
    split = replace(split, dialogues=[d for d in split.dialogues if d.dialogue_id in graded])
    by_kind = Counter(dialogue.kind for dialogue in split.dialogues)
    if not by_kind or min(by_kind.values()) < FOLDS:
        raise StageOutputError(
            f"learned placement needs graded memes in {FOLDS} or more dialogues of each kind; here are "
            f"{', '.join(f'{n} {kind}' for kind, n in sorted(by_kind.items())) or 'none'}"
        )
    names, encoders = encoders_of(run)
    placement = learn(corpus_of(replace(split, grades={"": first}), encoders, run.profile), names)
    placement.save(run.write(FILE))
    found = tabulate(run, [predict_split(split, placement, encoders, run.profile)])
    columns = ["way", "memes", "mean grade", "fits", "fits low", "fits high", "wanted and fits"]
    ranking, gate = (found[name].drop(columns="split") for name in ("ranking", "gate"))
    return "\n".join(map(files.markdown, (ranking, found["placed"][columns], gate)))


# --- Measured: do its memes land?

CONTROL = f"random, same turns as {LEARNED}"
OWN, OURS, THEIRS = "each at its own turns", "at the turns of learned", "at the turns of Greedy"
"""Where learned placement and another are compared."""
MEASURES = ("R@1", "R@5", "MRR", "nDCG@5", "judged@5")
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
"""Tables, and the columns that `landing.json` holds of all dialogues, which page and READMEs quote."""
SHARES = ("fits", "0 from both", "2 from both", "wanted and fits")


class Sent(NamedTuple):
    """Which turns get a meme (a mask over the turns), and which meme would be sent at every turn."""

    turns: np.ndarray
    memes: np.ndarray


@dataclass(frozen=True)
class Graded:
    """A split with all its grades, what learned placement says of it, and the paper's scores (Eq. 22)."""

    name: str
    corpus: Corpus
    found: Predicted
    paper: np.ndarray

    @cached_property
    def ways(self) -> dict[str, Sent]:
        """What is compared, each at the rate of the profile, fitted on the other half of the dialogues.

        Ranker alone and gate alone send the memes of learned where their half of the promise is highest.
        """
        found, corpus, knobs = self.found, self.corpus, self.corpus.profile.retrieval
        best, papers = (retrieval.order(s, corpus.meme_ids)[:, 0] for s in (found.scores, self.paper))
        drawn = grades.random_order(corpus.asked, len(corpus.meme_ids), corpus.profile.seed, 0)[:, 0]
        ways = {
            LEARNED: Sent(self._gated(found.promise, knobs.learned_penalty), best),
            "ranker alone": Sent(self._gated(found.scores.max(axis=1), 0.0), best),
            "gate alone": Sent(self._gated(found.wanted, 0.0), best),
            "greedy": Sent(self._gated(self.paper.max(axis=1), knobs.threshold_penalty), papers),
        }
        return ways | {f"random, same turns as {n}": Sent(ways[n].turns, drawn) for n in (LEARNED, "greedy")}

    def _gated(self, scores: np.ndarray, penalty: float) -> np.ndarray:
        """Where the gate opens for these best scores, fitted on the other half of the dialogues (Eq. 23)."""
        items = []
        for dialogue in (d for d in self.corpus.dialogues if d.dialogue_id in self.corpus.rows_of):
            mine = scores[self.corpus.rows_of[dialogue.dialogue_id], None]
            items.append(ScoredDialogue(dialogue, (), np.empty(0), Ranking(mine, mine, mine)))
        traces = retrieval.traces(items, retrieval.calibrate(items, self.corpus.profile, penalty))
        return np.concatenate([traces[item.dialogue.dialogue_id][2].sent for item in items])

    def grades(self, sent: Sent) -> np.ndarray:
        """Mean grade (0-2) of the meme of every turn; nan where nobody graded it."""
        return self.corpus.grades[np.arange(len(sent.memes)), sent.memes]


def predict_split(
    split: Split, placement: LearnedPlacement, encoders: Mapping[str, Encode], profile: Profile
) -> Graded:
    """Encode a split, and let the models say what they have not seen."""
    corpus, knobs = corpus_of(split, encoders, profile, placement.turn_means), profile.retrieval
    paper = retrieval.combine(corpus.terms(next(iter(encoders)), knobs.centring), knobs.weights)
    return Graded(split.name, corpus, corpus.predict(placement), paper)


def measure(run: Run) -> dict[str, pd.DataFrame]:
    """Measure learned placement on a run's graded turns and on the untouched test, and save the tables.

    The scores are saved, too, so that nobody has to rank again (`saved_scores`). Empty tables without grades,
    or where the weights do not apply.
    """
    graded, arrays = [], {}
    try:
        names, encoders = encoders_of(run)
        placement = open_placement(run.folder, names)
        graded = [predict_split(one, placement, encoders, run.profile) for one in splits_of(run)]
    except PlacementError as error:
        print(f"no measure of learned placement: {error}")
    for one in graded:
        arrays |= {f"{one.name} {part}": values for part, values in one.found._asdict().items()}
        arrays[f"{one.name} memes"] = np.array(one.corpus.meme_ids)
    run.save_arrays(SCORES, **arrays)
    return tabulate(run, graded)


def saved_scores(run: Run, split: str) -> tuple[Predicted, list[str]] | None:
    """What `measure` saved of a split, rows as `grades.queries`, and the memes; None where it has nothing."""
    try:
        with np.load(run.read(SCORES), allow_pickle=False) as arrays:
            found = Predicted(*(arrays[f"{split} {part}"] for part in Predicted._fields))
            return found, arrays[f"{split} memes"].tolist()
    except (StageMissing, KeyError):
        return None


def tabulate(run: Run, graded: Sequence[Graded]) -> dict[str, pd.DataFrame]:
    """All tables of some splits, saved into the run's report, and as `landing.json` for page and READMEs.

    placed: the memes sent, a row a split and way. differences: mean grade of learned minus others.
    gate: does it tell when a meme is wanted? ranking: measures of the ranker. The untouched test is first.
    """
    makers, graded = (placed_rows, difference_rows, gate_rows, ranking_rows), graded[::-1]
    found, shown = {}, {}
    for (name, columns), rows in zip(QUOTED.items(), makers, strict=True):
        found[name] = table = pd.DataFrame([row for one in graded for row in rows(one)])
        if name == "placed" and len(table):
            table = table[table.way.isin((LEARNED, "greedy", CONTROL))]
        shown[name] = frame_rows(table.reindex(columns=columns))
    run.save_tables(**{f"learned_{name}": table for name, table in found.items()})
    run.save_json(TABLES, shown)
    return found


def placed_rows(one: Graded) -> Iterator[dict[str, Any]]:
    """What was sent; a meme that nobody graded counts as not fitting, and `ungraded` is their share."""
    wanted = one.corpus.marks.any(axis=1)
    for way, sent in one.ways.items():
        at = sent.turns
        given, names = one.grades(sent)[at], one.corpus.names[at].tolist()
        known, fits = np.nan_to_num(given), grades.fits(given)
        shares = np.stack([fits, known == 0, known == 2, fits & wanted[at]], axis=1)
        yield {
            "split": one.name, "way": way, "memes": int(at.sum()),
            "ungraded": float(np.isnan(given).mean()) if at.any() else 0.0,
            **statistics.cluster_mean(known, names, (0, 2)).columns("mean grade"),
            **statistics.mean_columns(SHARES, shares, names, statistics.SHARE),
        }  # fmt: skip


def difference_rows(one: Graded) -> Iterator[dict[str, Any]]:
    """Mean grade of learned minus another: at each one's own turns, and at the same turns."""
    ours, greedy, random = (one.ways[name] for name in (LEARNED, "greedy", CONTROL))
    compared = (
        ("greedy", OWN, ours.turns, greedy, greedy.turns),
        ("greedy", THEIRS, greedy.turns, greedy, greedy.turns),
        ("greedy", OURS, ours.turns, greedy, ours.turns),
        ("random", OURS, ours.turns, random, ours.turns),
    )

    def values(sent: Sent, at: np.ndarray) -> dict[grades.Key, float]:
        keys = [one.corpus.keys[row] for row in np.flatnonzero(at)]
        return dict(zip(keys, np.nan_to_num(one.grades(sent))[at].tolist(), strict=True))

    for minus, where, our_turns, other, turns in compared:
        compare = statistics.paired_difference if our_turns is turns else statistics.unpaired_difference
        rng = statistics.rng(one.corpus.profile.seed, "landing", one.name, "all", minus, where)
        got = compare(values(ours, our_turns), values(other, turns), rng)
        row = {"split": one.name, "learned minus": minus, "where": where}
        yield {**row, **got.row(), "p": got.p}


def gate_rows(one: Graded) -> Iterator[dict[str, Any]]:
    """AUC of both gates between turns that all markers fill and that none does."""
    names, marks = one.corpus.names, one.corpus.marks
    clear, filled = np.ptp(marks, axis=1) == 0, marks[:, 0] == 1
    for gate, scores in ((LEARNED, one.found.wanted), ("the paper's top score", one.paper.max(axis=1))):
        pairs = [list(zip(names[clear & p], scores[clear & p], strict=True)) for p in (filled, ~filled)]
        row = {"split": one.name, "gate": gate, "measure": "AUC"}
        yield row | statistics.cluster_auc(*pairs).row()


def ranking_rows(one: Graded) -> Iterator[dict[str, Any]]:
    """Measures of both rankings at the turns that have a fitting meme, and their differences."""
    columns = [grades.MEASURES.index(name) for name in MEASURES]
    ours, papers = (one.corpus.measure(s)[:, columns] for s in (one.found.scores, one.paper))
    measured = {LEARNED: ours, PAPER: papers, f"{LEARNED} minus {PAPER}": ours - papers}
    names = one.corpus.names[one.corpus.known].tolist()
    for name, values in measured.items():
        bounds = None if "minus" in name else statistics.SHARE
        row = {"split": one.name, "what": name, "turns": len(names)}
        yield row | statistics.mean_columns(MEASURES, values, names, bounds)


def quoted(run: Run) -> dict[str, list[dict[str, Any]]]:
    """The tables of `landing.json`; empty where there is none, or without grades."""
    try:
        found = run.load_json(TABLES)
    except StageMissing:
        return {}
    return found if found["placed"] else {}
