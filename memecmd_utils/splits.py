"""Graded splits, as records (`Split`) and as matrices of turns and memes (`Turns`).

A split is a run's own dialogues or one of the example's untouched tests. Rankings, gate and measures are
functions of its matrices: rows are turns that have a usable summary, columns are usable memes.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from memecmd_utils import files, grades, retrieval, statistics
from memecmd_utils.files import paths
from memecmd_utils.grades import NONE, FitCounts, GroundTruth, Key, load_truth, read_grades, truth_of_run
from memecmd_utils.library import drawn_memes
from memecmd_utils.retrieval import Encode, Gate, centre, halves, pad
from memecmd_utils.runs import Run
from memecmd_utils.schemas import Annotation, Dialogue, Grade, Meme, Summary, SummaryReply
from memecmd_utils.settings import Profile

# --- Records

UNTOUCHED = ("untouched", "untouched_2")
"""Splits of the example corpus beside its own: tests."""
PURPOSES = {"example": "for training", **dict.fromkeys(UNTOUCHED, "for testing")}
MOST_PAIRS = 4_000_000
"""Pairs of a turn and a meme that are looked at: each has four terms under four systems, 0.5 GB in all.
The paper's run has 198 million; a sample of its dialogues says as much about each open choice."""


@dataclass(frozen=True)
class Split:
    """The records that a split is made of."""

    name: str
    dialogues: Sequence[Dialogue]
    memes: Mapping[str, Meme]
    annotations: Sequence[Annotation]
    truth: GroundTruth = NONE


def splits_of_run(run: Run, path: Path | None = None) -> Iterator[Split]:
    """A run's own split, named after its profile, then the untouched ones where the example's grades are its.

    Those hold new dialogues, and new memes beside the example's: none where the run has another library.
    `path` is a user's table (`read_grades`): it takes the place of the example's grades and marks, and of the
    untouched splits. Without either the own split has no grades.
    """
    dialogues, memes = run.load(Dialogue), run.memes()
    if path:
        turns = {(d.dialogue_id, turn.turn) for d in dialogues for turn in d.turns if turn.turn >= 2}
        truth = GroundTruth((), {"user": read_grades(path, turns, memes)})
    else:
        truth = truth_of_run(run.profile, dialogues, list(memes.values()))
    own = Split(run.profile.name, dialogues, memes, run.load(Annotation), truth)
    yield own
    if path or not truth.grades or not (known := drawn_memes()).keys() <= memes.keys():
        return
    old = {name: memes[name] for name in known}
    for folder in (paths.example / name for name in UNTOUCHED):
        new = drawn_memes(folder)
        annotations = [*own.annotations, *files.read_jsonl(folder / "annotations.jsonl", Annotation)]
        split = Split(folder.name, dialogues_of(folder), {**old, **new}, annotations, load_truth(folder))
        if split.truth.grades:
            yield split


def dialogues_of(folder: Path) -> list[Dialogue]:
    """Dialogues of a folder in the form of the example corpus: a row a turn, a row a summary."""
    turns: dict[str, list[dict]] = {}
    summaries: dict[str, list[dict]] = {}
    for name, by_dialogue in (("dialogues.jsonl", turns), ("summaries.jsonl", summaries)):
        for row in files.read_rows(folder / name):
            by_dialogue.setdefault(row.pop("dialogue_id"), []).append(row)
    return [
        Dialogue(
            source="authored", dialogue_id=name, kind="news" if name.startswith("news") else "role", ref=name,
            title=name, name_a="", name_b="", turns=spoken, summaries=summaries.get(name, []), complete=True,
        )
        for name, spoken in turns.items()
    ]  # fmt: skip


def sample(dialogues: Sequence[Dialogue], n_memes: int, seed: int) -> list[Dialogue]:
    """All dialogues, or as many of them, drawn by seed, as keep turns times memes within `MOST_PAIRS`."""
    room = MOST_PAIRS // max(1, n_memes)
    drawn = statistics.rng(seed, "sample of the studies").permutation(len(dialogues))
    turns = np.cumsum([len(dialogues[place].summaries) for place in drawn])
    taken = drawn[: max(1, np.searchsorted(turns, room, side="right"))]
    return [dialogues[place] for place in np.sort(taken)]


def encoders_of(run: Run) -> dict[str, Encode]:
    """The run's embedder first, then the one that took no part in retrieval."""
    names = dict.fromkeys([run.profile.models.embedder, run.profile.models.consistency_embedder])
    return {name: run.embedder(name).encode for name in names}


# --- Texts of turns and memes, and their vectors

CONTEXT_TURNS = 3
"""Last turns that stand for a chat where no summary is read."""
LAST_TURN = 18
"""Turns of a dialogue of the example: the gate reads a turn's number in this unit, and no higher one."""
TURN_TEXTS = ("S", "E", "Psi", "S E Psi", "last turn", "last three turns")
MEME_TEXTS = ("S+", "S-", "E", "Psi", "caption", "picture and caption")
"""What learned placement reads of a turn and of a meme, in the order of rows and columns of its weights."""
GATE_TEXTS = (0, 1, 2, 4, 5)
"""Places in `TURN_TEXTS` of the texts that its gate reads: the joined one says nothing new to it."""


class Query(NamedTuple):
    """A turn that may get a meme, before u_t of a dialogue; with its summary where one is asked for."""

    dialogue: Dialogue
    turn: int
    summary: Summary | None = None

    @property
    def before(self) -> list[str]:
        """u_1..u_{t-1}."""
        return [utterance.text for utterance in self.dialogue.turns[: self.turn - 1]]

    @property
    def context(self) -> str:
        """The last turns before t as they were said."""
        return "\n".join(self.before[-CONTEXT_TURNS:])


def turn_texts(before: Sequence[str], summary: SummaryReply | Summary) -> tuple[str, ...]:
    """The texts known before turn t, in the order of `TURN_TEXTS`: its summary and `before`, u_1..u_{t-1}."""
    parts = (summary.scenario, summary.emotion, summary.motivation)
    return (*parts, "\n".join(parts), *last_turns(before))


def last_turns(before: Sequence[str]) -> tuple[str, ...]:
    """Those of them that were said: the last turn, and the last three."""
    return tuple("\n".join(before[-n:]) for n in (1, CONTEXT_TURNS))


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
        has_words = np.array([bool(text.strip()) for text in texts])[:, None]
        vectors.append(np.where(has_words, centre(raw, mean), 0).astype(np.float32))
        taken.append(mean.astype(np.float32))
    return np.stack(vectors, axis=1), np.stack(taken)


def gate_inputs(vectors: np.ndarray, turns: Sequence[int], speakers: Sequence[str]) -> np.ndarray:
    """What the gate of learned placement reads, [turns, 5 * dim + 2].

    `vectors` [turns, 6, dim] are the first embedder's, `speakers` are A, who opens, and B.
    """
    chosen = vectors[:, GATE_TEXTS].reshape(len(vectors), len(GATE_TEXTS) * vectors.shape[2])
    number = np.minimum(np.asarray(turns, dtype=np.float64), LAST_TURN) / LAST_TURN
    return np.column_stack([chosen.astype(np.float64), number, np.asarray(speakers) == "A"])


# --- Matrices


@dataclass(frozen=True, eq=False)
class Turns:
    """A split's turns 2..T that have a usable summary, dialogue by dialogue, against its usable memes.

    Rows of every matrix are the turns (`asked`), columns the memes (`meme_ids`). `encoders`: the run's
    embedder first, then the one that took no part in retrieval. `every`: grades of all batches count, not
    those of the first alone. `means`: what is taken off the texts of turns, [6, dim] for each embedder; none:
    their own means. `read_chats`: chats to the vectors of their next turns, where nobody writes summaries.
    """

    split: Split
    profile: Profile
    encoders: Mapping[str, Encode]
    every: bool = False
    means: Sequence[np.ndarray] = ()
    read_chats: Callable[[Sequence[Sequence[str]]], Sequence[np.ndarray]] | None = None

    @cached_property
    def annotations(self) -> list[Annotation]:
        """Of the usable memes."""
        return [annotation for annotation in self.split.annotations if annotation.usable]

    @cached_property
    def asked(self) -> list[Query]:
        """The turns."""
        return [Query(d, s.turn, s) for d in self.split.dialogues for s in d.summaries if not s.unscored]

    @cached_property
    def keys(self) -> list[Key]:
        """(dialogue id, turn) of every turn."""
        return [(query.dialogue.dialogue_id, query.turn) for query in self.asked]

    @cached_property
    def clusters(self) -> list[str]:
        """Dialogue of every turn, which intervals are over."""
        return [name for name, _ in self.keys]

    @cached_property
    def meme_ids(self) -> list[str]:
        """Of the memes."""
        return [annotation.meme_id for annotation in self.annotations]

    @cached_property
    def row(self) -> dict[Key, int]:
        """Row of every turn."""
        return {key: row for row, key in enumerate(self.keys)}

    @cached_property
    def column(self) -> dict[str, int]:
        """Column of every meme."""
        return {meme: column for column, meme in enumerate(self.meme_ids)}

    @cached_property
    def half(self) -> np.ndarray:
        """`a` or `b`, [turns]."""
        split = halves(self.split.dialogues)
        return np.array([split[name] for name in self.clusters])

    @cached_property
    def kinds(self) -> np.ndarray:
        """Kind of each turn's dialogue, [turns]."""
        return np.array([query.dialogue.kind for query in self.asked])

    @cached_property
    def rows_of(self) -> dict[str, np.ndarray]:
        """Rows of each dialogue that has any."""
        names = np.array(self.clusters)
        return {name: np.flatnonzero(names == name) for name in dict.fromkeys(self.clusters)}

    @cached_property
    def places(self) -> np.ndarray:
        """Row of every turn 2..T, [dialogues, longest]; -1 without a usable summary and past the end."""
        keys = ([(d.dialogue_id, s.turn) for s in d.summaries] for d in self.split.dialogues)
        return pad([[self.row.get(key, -1) for key in of_dialogue] for of_dialogue in keys], -1).astype(int)

    @cached_property
    def grades(self) -> np.ndarray:
        """Mean grade (0-2) of the graders, [turns, memes]; nan where nobody graded."""
        return self._matrix(self.split.truth.every if self.every else self.split.truth.grades)

    def grades_of(self, grader: str) -> np.ndarray:
        """Grades of one grader of the first batch, [turns, memes]; nan where they gave none."""
        return self._matrix([grade for grade in self.split.truth.grades if grade.grader == grader])

    def _matrix(self, given: Sequence[Grade]) -> np.ndarray:
        means = grades.mean_grades(given)
        rows = [means.get(key, {}) for key in self.keys]
        return pd.DataFrame(rows, columns=self.meme_ids, dtype=float).to_numpy()

    def pairs(self, rows: np.ndarray, columns: np.ndarray) -> pd.DataFrame:
        """Some pairs of a turn and a meme as a table (`grades.Sent`): dialogue, turn, meme, grade."""
        asked = pd.DataFrame([self.keys[row] for row in rows], columns=["dialogue", "turn"])
        return asked.assign(meme=np.array(self.meme_ids)[columns], grade=self.grades[rows, columns])

    @cached_property
    def fit_counts(self) -> FitCounts:
        """How often each meme was graded and fits, in each dialogue."""
        return grades.fit_counts(self.pairs(*np.nonzero(np.isfinite(self.grades))), list(self.rows_of))

    @cached_property
    def answerable(self) -> np.ndarray:
        """Rows of the turns at which some meme fits, where rankings are measured."""
        return np.flatnonzero(grades.fits(self.grades).any(axis=1))

    @property
    def answerable_clusters(self) -> list[str]:
        """Their dialogues."""
        return [self.clusters[row] for row in self.answerable]

    @cached_property
    def marks(self) -> np.ndarray:
        """Whether each marker would send a meme, [turns, markers]: 1 or 0; nan where they did not look."""
        sends = {(m.dialogue_id, m.turn, m.marker): float(m.send) for m in self.split.truth.marks}
        rows = [[sends.get((*key, name), np.nan) for name in self.split.truth.markers] for key in self.keys]
        return np.array(rows, dtype=float).reshape(len(self.keys), len(self.split.truth.markers))

    @cached_property
    def _terms(self) -> dict[tuple[str, str], np.ndarray]:
        return {}

    def terms(self, embedder: str, centring: str) -> np.ndarray:
        """alpha, delta, beta, gamma of every pair, [4, turns, memes] (Eq. 18-21); kept once made."""
        if (embedder, centring) not in self._terms:
            encode = self.encoders[embedder]
            self._terms[embedder, centring] = retrieval.component_matrices(
                retrieval.index_of(self.annotations, encode, centring),
                retrieval.queries_of([query.summary for query in self.asked], encode, centring),
            )
        return self._terms[embedder, centring]

    @cached_property
    def scores(self) -> np.ndarray:
        """The run's score T of every pair, [turns, memes] (Eq. 22), rounded as where memes are placed.

        So equal memes tie on every machine.
        """
        knobs = self.profile.retrieval
        terms = self.terms(next(iter(self.encoders)), knobs.centring)
        return np.round(retrieval.combine(terms, knobs.weights), 9)

    def gate(self, top1: np.ndarray, rule: Gate, like: np.ndarray | None = None) -> np.ndarray:
        """Where `retrieval.run_gate` sends by best scores [..., turns], likewise.

        Turns without a usable summary have no row here and count as everywhere. `like`, booleans of the same
        shape: the rate to meet.
        """
        where = self.places
        scores = np.where(where >= 0, top1[..., where], -np.inf)
        sent = None if like is None else (where >= 0) & like[..., where]
        rate = self.profile.retrieval.wanted_rate
        return retrieval.run_gate(scores, self.split.dialogues, rule, rate, sent).sent[..., where >= 0]

    def measure(self, scores: np.ndarray) -> np.ndarray:
        """`grades.MEASURES` of scores [turns, memes] at the `answerable` turns, [turns there, measures]."""
        best = retrieval.order(scores[self.answerable], self.meme_ids)
        return grades.per_turn(best, self.grades[self.answerable])

    @cached_property
    def turn_vectors(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Of each embedder: vectors [turns, 6, dim] of `TURN_TEXTS`, and the means that were taken off."""
        if self.read_chats is not None:
            return list(zip(self.read_chats([q.before for q in self.asked]), self.means, strict=True))
        texts = [turn_texts(query.before, query.summary) for query in self.asked]
        means = self.means or [None] * len(self.encoders)
        encoders = zip(self.encoders.values(), means, strict=True)
        return [encode_texts(texts, encode, "query", mean) for encode, mean in encoders]

    @cached_property
    def meme_vectors(self) -> list[np.ndarray]:
        """Of each embedder: vectors [memes, 6, dim] of `MEME_TEXTS`, each kind centred by its own mean."""
        texts = [meme_texts(self.split.memes[a.meme_id], a) for a in self.annotations]
        return [encode_texts(texts, encode, "document")[0] for encode in self.encoders.values()]

    def gate_inputs(self, rows: np.ndarray) -> np.ndarray:
        """What the gate of learned placement reads of some turns, [rows, inputs]."""
        asked = [self.asked[row].summary for row in rows]
        vectors = self.turn_vectors[0][0][rows]
        return gate_inputs(vectors, [s.turn for s in asked], [s.speaker for s in asked])

    @cached_property
    def cosines(self) -> np.ndarray:
        """Of every text of a turn with every text of a meme, float32 [turns, memes, 72]."""
        pairs = zip(self.turn_vectors, self.meme_vectors, strict=True)
        parts = [np.einsum("tid,mjd->tmij", t, m, optimize=True) for (t, _), m in pairs]
        return np.stack(parts, axis=2).reshape(*self.grades.shape, -1).astype(np.float32)


def load_turns(run: Run) -> Turns:
    """Read what a run has made so far, of a large run for a sample of its dialogues."""
    split = next(splits_of_run(run))
    usable = sum(annotation.usable for annotation in split.annotations)
    sampled = replace(split, dialogues=sample(split.dialogues, usable, run.profile.seed))
    return Turns(sampled, run.profile, encoders_of(run))
