"""What human raters are shown: items chosen blind and by seed, and the key that is kept apart from them.

Who rates sees a piece of a chat and one meme (or two to choose from), never a strategy or a score.
"""

import hashlib
import itertools
from collections.abc import Mapping, Sequence
from typing import Annotated, Literal, NamedTuple

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from memecmd_utils import schemas, seeds, storage
from memecmd_utils.errors import MemecmdError
from memecmd_utils.schemas import DIMENSIONS

Kind = Literal["rating", "pairwise"]
KINDS: tuple[Kind, ...] = ("rating", "pairwise")
CHOICES = ("A", "B", "no difference")
COLUMNS = ("form", "item", "rater", "kind", *DIMENSIONS, "choice", "seconds", "at", "comment", "made_up")
"""Columns of a CSV with answers. `made_up` is 1 where nobody rated: a trial, or a test."""
WINDOW = 8
"""Turns shown, u_t included: about what fits a phone, and what the small judge sees, too."""
REPEATS = 0.1
"""Share of items shown a second time, to see how far a rater agrees with herself."""
QUESTIONS = {
    "semantic_consistency": ("语义一致", "表情包的意思和聊的内容对得上吗？", "Its meaning fits what is said"),
    "emotional_consistency": ("情感一致", "表情包的情绪和此刻的情绪相符吗？", "Its emotion fits the mood"),
    "contextual_appropriateness": ("语境得体", "在这里发它自然、得体吗？", "Sending it here is natural"),
    "humor_effect": ("幽默效果", "在这里发它好笑吗？", "It is funny here"),
    "conversational_coherence": ("对话连贯", "发了它以后，聊天还接得下去吗？", "The talk flows on after it"),
}
"""Name, question and English gloss of each dimension; the questions are those that the judges are asked."""


class FormError(MemecmdError, ValueError):
    """A form or key that cannot be made or read; the message says what to do."""


class Line(BaseModel):
    """One bubble: a text, or the place of the meme (`text` is empty there)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    side: Literal["left", "right"]
    name: str
    text: str = ""


class Item(BaseModel):
    """One question. `memes` has one id (rating) or two (pairwise: A, B)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    item: str
    lines: tuple[Line, ...]
    memes: tuple[str, ...]


class Form(BaseModel):
    """What a rater is shown, in this order; holds no strategy, score, dialogue id or turn."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    form: str
    kind: Kind
    items: tuple[Item, ...]
    texts: dict[str, str]
    """Visible text of each meme that occurs, for readers of the page without pictures."""
    sources: tuple[str, ...]
    """Where the chats come from, as their records say."""


class KeyRow(BaseModel):
    """What stands behind an item: one row for each time it was drawn and each of its sides."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    form: str
    kind: Kind
    item: str
    draw: int
    side: Literal["", "A", "B"]
    dialogue_id: str
    turn: Annotated[int, Field(ge=2)]
    strategy: str
    meme_id: str
    repeat_of: str
    """The item that this one repeats (pairwise: with the sides changed); empty for a first showing."""


class Draw(NamedTuple):
    """A placement, or two at the same turn, drawn for its strategy or pair of strategies."""

    dialogue_id: str
    turn: int
    placed: tuple[tuple[str, str], ...]
    """(strategy, meme id) of each side."""

    @property
    def content(self) -> tuple:
        """What a rater would see; strategies that place the same meme share it."""
        return self.dialogue_id, self.turn, tuple(sorted(meme for _, meme in self.placed))


def choose(
    placements: Sequence[schemas.Placement],
    dialogues: Mapping[str, schemas.Dialogue],
    memes: Mapping[str, schemas.Meme],
    *,
    kind: Kind,
    n_items: int,
    seed: int,
    repeats: float = REPEATS,
    meme_position: Literal["before", "after"] = "before",
) -> tuple[Form, list[KeyRow]]:
    """Choose up to `n_items` items, as many for each strategy (rating) or pair of strategies (pairwise).

    Each group is a simple random sample of its placements; a meme that two strategies placed at the same
    turn is shown once and counts for both. Pairwise items exist where two strategies place different memes
    at the same turn. `repeats`: share of items that come again later. Raises `FormError` if nothing fits.
    """
    if kind not in KINDS:
        raise FormError(f"kind {kind!r} is none of {', '.join(KINDS)}")
    rng = seeds.rng(seed, "rating form", kind)
    shown = _sample(groups(placements, kind), n_items, rng)
    if not shown:
        raise FormError(f"no items for a {kind} form: run 04_retrieval, with two strategies for pairwise")
    contents = [list(shown)[i] for i in rng.permutation(len(shown))]
    sides = {content: tuple(rng.permutation(content[2]).tolist()) for content in contents}
    order = [(content, sides[content], False) for content in contents]
    # Repeats of the first half come in the second, so that nobody remembers them.
    again = contents[: (len(contents) + 1) // 2][: round(repeats * len(contents))]
    for content in again:
        place = int(rng.integers((len(order) + 1) // 2, len(order) + 1))
        order.insert(place, (content, sides[content][::-1], True))
    names = {(content, repeat): _digest(seed, kind, content, repeat) for content, _, repeat in order}
    items = tuple(
        Item(
            item=names[content, repeat],
            lines=_lines(dialogues[content[0]], content[1], meme_position),
            memes=side,
        )
        for content, side, repeat in order
    )
    form = _digest(seed, kind, [item.model_dump() for item in items])
    made_of = {turn.source for content in contents for turn in dialogues[content[0]].turns}
    used = sorted({meme for item in items for meme in item.memes})
    key = [
        KeyRow(
            form=form,
            kind=kind,
            item=names[content, repeat],
            draw=number,
            side="" if kind == "rating" else "AB"[side.index(meme)],
            dialogue_id=draw.dialogue_id,
            turn=draw.turn,
            strategy=strategy,
            meme_id=meme,
            repeat_of=names[content, False] if repeat else "",
        )
        for content, side, repeat in order
        for number, draw in enumerate(shown[content], start=1)
        for strategy, meme in draw.placed
    ]
    texts = {name: memes[name].text for name in used}
    return Form(form=form, kind=kind, items=items, texts=texts, sources=tuple(sorted(made_of))), key


def groups(placements: Sequence[schemas.Placement], kind: Kind) -> list[list[Draw]]:
    """All that could be shown, by strategy or by pair of strategies."""
    of: dict[str, dict[tuple[str, int], str]] = {}
    for p in placements:
        of.setdefault(p.strategy, {})[p.dialogue_id, p.turn] = p.meme_id
    if kind == "rating":
        return [[Draw(*k, ((name, at[k]),)) for k in sorted(at)] for name, at in sorted(of.items())]
    return [
        [
            Draw(*k, ((x, of[x][k]), (y, of[y][k])))
            for k in sorted(of[x])
            if of[y].get(k, of[x][k]) != of[x][k]
        ]
        for x, y in itertools.combinations(sorted(of), 2)
    ]


def _sample(groups: list[list[Draw]], n_items: int, rng: np.random.Generator) -> dict[tuple, list[Draw]]:
    """Draw from the groups in turn until `n_items` different things are to be shown."""
    shuffled = [[group[i] for i in rng.permutation(len(group))] for group in groups]
    shown: dict[tuple, list[Draw]] = {}
    for draw in itertools.chain.from_iterable(itertools.zip_longest(*shuffled)):
        if draw is None:
            continue
        if draw.content not in shown and len(shown) == n_items:
            break
        shown.setdefault(draw.content, []).append(draw)
    return shown


def _lines(dialogue: schemas.Dialogue, turn: int, position: Literal["before", "after"]) -> tuple[Line, ...]:
    """The last turns up to u_t with the meme's place beside u_t; A owns the phone and stands right."""

    def line(of: schemas.Turn, text: str) -> Line:
        side, name = ("right", dialogue.name_a) if of.speaker == "A" else ("left", dialogue.name_b)
        return Line(side=side, name=name or of.speaker, text=text)

    seen = [t for t in dialogue.turns if turn - WINDOW < t.turn <= turn]
    lines = [line(t, t.text) for t in seen]
    lines.insert(len(lines) - (position == "before"), line(seen[-1], ""))
    return tuple(lines)


def _digest(*parts: object) -> str:
    return hashlib.sha256(storage.dumps(parts).encode()).hexdigest()[:10]
