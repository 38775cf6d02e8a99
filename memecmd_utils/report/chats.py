"""The chat browser of a run's page: its dialogues under every strategy, as compact JSON for a script."""

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import numpy as np
from jinja2.utils import htmlsafe_json_dumps
from markupsafe import Markup

from memecmd_utils import retrieval, schemas
from memecmd_utils.core.drawing import text
from memecmd_utils.core.drawing.lesson import TURN_SIDE, english_of
from memecmd_utils.evaluation import ground_truth
from memecmd_utils.report.results import Records
from memecmd_utils.retrieval import Gate, ScoreScale, simulate
from memecmd_utils.schemas import describe_source
from memecmd_utils.settings import Profile

CHAT_BYTES = 6_000_000
"""Most that the chats may take on the page, in bytes, with the pictures of the memes in them.

Dialogues are taken in the run's order, in turn from each kind, until the next one does not fit; the first
is always there."""
DIGITS = 4
OTHERWISE = {"random": "by lot", retrieval.LEARNED: "by its own gate"}
"""Strategies that do not ask the paper's gate (Section 5.3), and how they decide."""


@dataclass(frozen=True)
class Chats:
    """What the page's script gets. `payload` is plain JSON; `memes` are the ids that it names."""

    payload: dict[str, Any]
    memes: frozenset[str]
    total: int
    budget: int

    @property
    def n_included(self) -> int:
        """Number of dialogues in the payload."""
        return len(self.payload["dialogues"])


def build(
    records: Records, profile: Profile, picture_bytes: Callable[[str], int], budget: int = CHAT_BYTES
) -> Chats:
    """Put as many dialogues as fit into `budget` bytes; `picture_bytes` is what a meme's picture takes."""
    parts = _Parts(records, profile)
    chosen: dict[str, dict[str, Any]] = {}
    memes: set[str] = set()
    left = budget
    for dialogue in in_turn(records.dialogues):
        entry = parts.dialogue(dialogue)
        used = set(_memes(entry))
        left -= size(entry) + sum(map(picture_bytes, used - memes))
        if left < 0 and chosen:
            break
        chosen[dialogue.dialogue_id] = entry
        memes |= used
    payload = {
        "strategies": [
            [name, schemas.STRATEGIES[name].label, schemas.STRATEGIES[name].does, OTHERWISE.get(name, "")]
            for name in parts.strategies
        ],
        "measures": parts.measures,
        "weights": list(profile.retrieval.weights),
        "sources": {d.source: describe_source(d.source) for d in records.dialogues},
        "top_k": profile.retrieval.top_k,
        "scale": profile.retrieval.score_scale,
        "meme_position": profile.retrieval.meme_position,
        "dialogues": [chosen[d.dialogue_id] for d in records.dialogues if d.dialogue_id in chosen],
    }
    return Chats(payload, frozenset(memes), len(records.dialogues), budget)


def size(value: Any) -> int:
    """Bytes that a value takes as JSON inside of a page."""
    return len(page_json(value).encode("utf-8"))


def page_json(value: Any) -> Markup:
    """JSON for a script element: no sign in it ends the element or opens a comment. NaN is an error."""
    return htmlsafe_json_dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def in_turn(dialogues: Sequence[schemas.Dialogue]) -> list[schemas.Dialogue]:
    """Dialogues in the run's order, one of each kind after another, so that a part of them is no one kind."""
    kinds = dict.fromkeys(dialogue.kind for dialogue in dialogues)
    columns = [[d for d in dialogues if d.kind == kind] for kind in kinds]
    return [d for row in zip_longest(*columns) for d in row if d is not None]


def gate_path(
    scores: Mapping[int, float], calibration: Mapping[str, Any], sent: set[int] | None
) -> dict[int, tuple[float | None, float, bool]]:
    """Gate score, threshold and decision of every turn (Eq. 23): by turn, the score None where there is none.

    `scores`: raw top-1 T by turn, -inf where there is none. `sent`: the turns that got a meme; None where no
    strategy asked the gate, and then it is simulated. Decisions are taken from the records, for the
    calibration is written down with six digits and a score can come that near to its threshold.
    """
    gate = Gate(calibration["theta0"], calibration["penalty"], calibration["decay"])
    scaled = ScoreScale(calibration["score_mean"], calibration["score_std"]).apply(
        np.array([*scores.values()])
    )
    if sent is None:
        trace = simulate(scaled, gate)
        sent = {turn for turn, out in zip(scores, trace.sent, strict=True) if out}
    path, since = {}, math.inf
    for turn, score in zip(scores, scaled, strict=True):
        since += 1
        known = float(score) if math.isfinite(score) else None
        path[turn] = known, gate.threshold(since), turn in sent
        since = 0 if turn in sent else since
    return path


def _memes(entry: Mapping[str, Any]) -> Iterable[str]:
    for rows in entry["top"].values():
        yield from (row[0] for row in rows)
    for turns in entry["placed"].values():
        yield from (row[0] for row in turns.values())


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(float(value), DIGITS)


class _Parts:
    """The records of a run by dialogue, and what to say of a placed meme."""

    def __init__(self, records: Records, profile: Profile) -> None:
        self.records = records
        self.strategies = list(profile.retrieval.strategies)
        self.halves = retrieval.halves(records.dialogues)
        self.tops = _by_dialogue(records.candidates)
        self.placed = _by_dialogue(records.placements)
        self.marks = _by_dialogue(records.truth.marks)
        self.graders = len(records.truth.graders)
        grades = [*records.truth.grades, *records.truth.later]
        self.relevance = ground_truth.relevance(grades) if self.graders else {}
        longest: dict[str, int] = {}
        for rating in records.ratings:  # a judge may have rated prefixes too
            longest[rating.judge] = max(rating.n_turns, longest.get(rating.judge, 0))
        self.ratings = {
            (r.judge, r.strategy, r.dialogue_id, r.turn): r.overall
            for r in records.ratings
            if r.n_turns == longest[r.judge]
        }
        own = [c for c in records.consistency if c.text == "u_t"]
        self.consistency = {(c.scorer, c.strategy, c.dialogue_id, c.turn): c.score for c in own}
        self.judges = sorted(longest)
        self.scorers = sorted({c.scorer for c in own})

    @property
    def measures(self) -> list[str]:
        """What `dialogue` says of a placed meme, in its order; graders are sessions of a model."""
        graded = (
            [f"Mean grade of {self.graders} graders (0-2; a model's, not people's)"] if self.graders else []
        )
        judges = [f"Judge {name} (0-100)" for name in self.judges]
        return [*graded, *judges, *(f"Consistency with u_t, {name} (0-100)" for name in self.scorers)]

    def grade(self, dialogue_id: str, turn: int, meme_id: str) -> float | None:
        """Mean grade of a meme at a turn, where it was graded."""
        total = self.relevance.get((dialogue_id, turn), {}).get(meme_id)
        return None if total is None else total / self.graders

    def dialogue(self, dialogue: schemas.Dialogue) -> dict[str, Any]:
        """One dialogue for the script; keys of turns are strings, as in all JSON."""
        name = dialogue.dialogue_id
        top: dict[int, list[schemas.Candidate]] = {}
        for candidate in sorted(self.tops.get(name, ()), key=lambda c: c.rank):
            top.setdefault(candidate.turn, []).append(candidate)
        placed = self.placed.get(name, ())
        asked = [s for s in self.strategies if s not in OTHERWISE]
        sent = {p.turn for p in placed if p.strategy in asked} if asked else None
        turns = [summary.turn for summary in dialogue.summaries]
        scores = {t: top[t][0].score if t in top else -math.inf for t in turns}
        path = gate_path(scores, self.records.gates[self.halves[name]], sent)
        names = {"A": dialogue.name_a or "A", "B": dialogue.name_b or "B"}
        signs = text.initials(names.values())
        return {
            "id": name,
            "kind": dialogue.kind,
            "title": dialogue.title,
            "gloss": self.records.title_glosses.get(name, ""),
            "names": names,
            "signs": {speaker: signs[called] for speaker, called in names.items()},
            "source": dialogue.source,
            "turns": [[t.turn, t.speaker, t.text, t.gloss, t.violations] for t in dialogue.turns],
            "seen": {summary.turn: _seen(name, summary) for summary in dialogue.summaries},
            "gate": {t: [_rounded(score), _rounded(level), out] for t, (score, level, out) in path.items()},
            "top": {t: [self._candidate(c) for c in found] for t, found in top.items()},
            "placed": {
                strategy: {p.turn: self._placed(p) for p in placed if p.strategy == strategy}
                for strategy in self.strategies
            },
            "marks": self._marks(name),
        }

    def _marks(self, dialogue_id: str) -> dict[int, list[int]]:
        """How many markers would send a meme at a turn, and of how many."""
        found: dict[int, list[int]] = {}
        for mark in self.marks.get(dialogue_id, ()):
            counts = found.setdefault(mark.turn, [0, 0])
            counts[0] += mark.send
            counts[1] += 1
        return found

    def _candidate(self, c: schemas.Candidate) -> list[Any]:
        parts = map(_rounded, (c.alpha, c.delta, c.beta, c.gamma, c.score))
        return [c.meme_id, *parts, self.grade(c.dialogue_id, c.turn, c.meme_id)]

    def _placed(self, p: schemas.Placement) -> list[Any]:
        key = p.strategy, p.dialogue_id, p.turn
        graded = [self.grade(p.dialogue_id, p.turn, p.meme_id)] if self.graders else []
        judged = [_rounded(self.ratings.get((judge, *key))) for judge in self.judges]
        near = [_rounded(self.consistency.get((scorer, *key))) for scorer in self.scorers]
        return [p.meme_id, p.rank, _rounded(p.score), [*graded, *judged, *near]]


def _seen(dialogue_id: str, summary: schemas.Summary) -> list[Any]:
    """The three texts of a summary, why there is none, and their English where the data hold it."""
    english = english_of(summary, f"{dialogue_id}/{summary.turn}")
    glosses = [english[field] for field in TURN_SIDE] if english else None
    return [*(getattr(summary, field) for field in TURN_SIDE), summary.unscored, glosses]


def _by_dialogue(rows: Iterable[Any]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for row in rows:
        found.setdefault(row.dialogue_id, []).append(row)
    return found


# --- The library on the page of a run: small pictures, each embedded once, with captions and annotations


SIDE = 240
"""Longest side of a picture on the page, in pixels."""
FIRST = 12
"""Cards of the sheet that a page shows at once: two rows on a desk, six on a phone."""
PICTURE_BYTES = 2_500_000
"""Most that the pictures of the sheet may take, in bytes of the page (base64); those that the chats need
are always there and count as well."""


@dataclass(frozen=True)
class Card:
    """One meme of the sheet. `annotation` is None where the annotator gave nothing usable."""

    meme: schemas.Meme
    annotation: schemas.Annotation | None
    unscored: str
    english: Mapping[str, str]
    """The annotation's English by field, empty where the data hold none."""
    picture: str
    placed: Mapping[str, int]
    """How often each strategy placed it in the whole run."""


@dataclass(frozen=True)
class Sheet:
    """The cards that the page shows, in the library's order, and what is to be said of them."""

    cards: list[Card]
    total: int
    licences: list[tuple[str, int]]
    """Licences of the pictures shown with their number; the empty name is a picture without one."""

    annotators: list[str]
    """Who wrote the annotations shown, in words."""

    first: int = FIRST
    """Cards that stand open on the page; the others are folded."""

    @property
    def unlicensed(self) -> int:
        """Pictures shown of which no licence is known."""
        return dict(self.licences).get("", 0)


def sheet(
    memes: Sequence[schemas.Meme],
    annotations: Sequence[schemas.Annotation],
    placements: Sequence[schemas.Placement],
    picture: Callable[[str], str],
    needed: Collection[str] = (),
    budget: int = PICTURE_BYTES,
) -> Sheet:
    """Choose and fill the cards: all memes in `needed`, then others in order while the pictures fit.

    `picture`: the data URL of a meme's small picture, by its id.
    `budget`: bytes for all pictures together; the first meme that does not fit ends the choice.
    """
    chosen = {meme.meme_id for meme in memes if meme.meme_id in needed}
    left = budget - sum(len(picture(name)) for name in chosen)
    for meme in memes:
        if meme.meme_id in chosen:
            continue
        left -= len(picture(meme.meme_id)) if left > 0 else 0
        if left <= 0:
            break
        chosen.add(meme.meme_id)
    annotated = {annotation.meme_id: annotation for annotation in annotations}
    times = Counter((placed.meme_id, placed.strategy) for placed in placements)
    strategies = dict.fromkeys(placed.strategy for placed in placements)
    cards = []
    for meme in memes:
        name, annotation = meme.meme_id, annotated.get(meme.meme_id)
        if name in chosen:
            unscored = "no annotation" if annotation is None else annotation.unscored
            uses = {strategy: times[name, strategy] for strategy in strategies if times[name, strategy]}
            usable = None if unscored else annotation
            english = english_of(annotation, name) if usable else {}
            cards.append(Card(meme, usable, unscored, english, picture(name), uses))
    licences = Counter(card.meme.licence for card in cards)
    annotators = sorted({card.annotation.source for card in cards if card.annotation is not None})
    return Sheet(cards, len(memes), sorted(licences.items()), [describe_source(a) for a in annotators])


def captions(library: Sheet) -> list[list[Any]]:
    """What a script has to know of the cards, in their order: id, caption, gloss."""
    return [[card.meme.meme_id, card.meme.text, card.meme.gloss] for card in library.cards]
