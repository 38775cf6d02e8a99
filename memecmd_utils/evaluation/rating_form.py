"""The forms of the first paper: five ratings of a meme in its chat, or a choice between two memes.

Who rates sees a piece of a chat and one meme (or two to choose from), never a strategy or a score: items are
chosen blind and by seed, and the key is kept apart from them.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, Literal, NamedTuple

import numpy as np
import pandas as pd
from pydantic import Field, model_validator

from memecmd_utils import schemas
from memecmd_utils.core import paths, seeds
from memecmd_utils.evaluation import judges, stage
from memecmd_utils.runs import Run
from memecmd_utils.schemas import DIMENSIONS
from memecmd_utils.surveys import answers, forms
from memecmd_utils.surveys.answers import Answer, Answers
from memecmd_utils.surveys.forms import Form, FormError, Item, Line, Option, Question

Kind = Literal["rating", "pairwise"]
KINDS: tuple[Kind, ...] = ("rating", "pairwise")
CHOICES = ("A", "B", "no difference")
COLUMNS = ("form", "item", "rater", "kind", *DIMENSIONS, "choice", "seconds", "at", "comment", "made_up")
"""Columns of a CSV with answers."""
WINDOW = 8
"""Turns shown, u_t included: about what fits a phone, and what the small judge sees, too."""
REPEATS = 0.1
"""Share of items shown a second time, to see how far a rater agrees with herself."""
SCALES = (
    ("语义一致", "表情包的意思和聊的内容对得上吗？", "Its meaning fits what is said"),
    ("情感一致", "表情包的情绪和此刻的情绪相符吗？", "Its emotion fits the mood"),
    ("语境得体", "在这里发它自然、得体吗？", "Sending it here is natural"),
    ("幽默效果", "在这里发它好笑吗？", "It is funny here"),
    ("对话连贯", "发了它以后，聊天还接得下去吗？", "The talk flows on after it"),
)
"""Name, question and English gloss of each of `DIMENSIONS`; the questions are those that judges are asked."""
QUESTIONS: dict[Kind, tuple[Question, ...]] = {
    "rating": tuple(
        Question(name, "scale", (title, gloss), (question, ""))
        for name, (title, question, gloss) in zip(DIMENSIONS, SCALES, strict=True)
    ),
    "pairwise": (
        Question(
            "choice",
            "one",
            ("哪个版本更好？", "Which version is better?"),
            options=(
                Option("A", "A", ("版本 A 更好", "A is better")),
                Option("B", "B", ("版本 B 更好", "B is better")),
                Option("no difference", "N", ("没有差别", "No difference")),
            ),
        ),
    ),
}
INTRO: dict[Kind, tuple[str, str]] = {
    "rating": (
        "你会看到 {n} 小段聊天，每段里有一张用虚线框出的表情包。请凭第一感觉给它打五个分，0 是“完全不”，"
        "100 是“完全是”。没有标准答案，请把分数拉开。",
        "You will see {n} pieces of chat, each with one meme in a dashed frame. Give it five scores by your "
        "first feeling, from 0 (not at all) to 100 (fully). There is no right answer; use the whole scale.",
    ),
    "pairwise": (
        "你会看到 {n} 小段聊天。同一处放着两张不同的表情包：版本 A 和版本 B，其余完全相同。请凭第一感觉选出"
        "更好的版本；分不出就选“没有差别”。",
        "You will see {n} pieces of chat. At one place stand two memes, version A and version B; all else is "
        "the same. Choose the better version by your first feeling, or “no difference”.",
    ),
}


class KeyRow(forms.KeyRow):
    """What stands behind an item: one row for each time it was drawn and each of its sides."""

    kind: Kind
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
    names = {(content, repeat): forms.digest(seed, kind, content, repeat) for content, _, repeat in order}
    items = tuple(
        Item(
            names[content, repeat],
            side,
            QUESTIONS[kind],
            _lines(dialogues[content[0]], content[1], meme_position),
        )
        for content, side, repeat in order
    )
    form = forms.digest(
        seed,
        kind,
        [{"item": i.item, "lines": [one._asdict() for one in i.lines], "memes": i.pictures} for i in items],
    )
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
    made_by = sorted({turn.source for content in contents for turn in dialogues[content[0]].turns})
    zh, en = INTRO[kind]
    made = Form(
        form, "ratings", COLUMNS, ("表情包合适吗？", "Does the meme fit?"),
        (zh.format(n=len(items)), en.format(n=len(items))), _notes(made_by), items, kind=kind,
        alt={name: memes[name].text for item in items for name in item.pictures},
    )  # fmt: skip
    return made, key


def _notes(sources: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Who wrote the chats, as their records say."""
    models = [source.removeprefix("model ") for source in sources if source != "authored"]
    notes = []
    if "authored" in sources:
        written = "聊天内容由大语言模型撰写，不是真人聊天。"
        notes.append((written, "The chats were written by a large language model, not by people."))
    if models:
        generated = f"聊天内容由模型 {'、'.join(models)} 生成，不是真人聊天。"
        notes.append((generated, f"The chats were generated by {', '.join(models)}, not by people."))
    return tuple(notes)


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
        return Line(side, name or of.speaker, text)

    seen = [t for t in dialogue.turns if turn - WINDOW < t.turn <= turn]
    lines = [line(t, t.text) for t in seen]
    lines.insert(len(lines) - (position == "before"), line(seen[-1], ""))
    return tuple(lines)


def write_forms(
    run: Run,
    placements: Sequence[schemas.Placement],
    dialogues: Mapping[str, schemas.Dialogue],
    memes: Mapping[str, schemas.Meme],
    n_items: int = 40,
) -> dict[Kind, Form]:
    """Write `rating_form.html`, `pairwise_form.html` and `rating_key.csv` of a run; return the forms.

    Items are drawn from the placements that the judges rated, so that both can be compared.
    """
    judged = judges.to_judge(placements, run.profile)
    files = stage.meme_files(run, memes)
    made: dict[Kind, Form] = {}
    key: list[KeyRow] = []
    for kind in KINDS:
        if not any(groups(judged, kind)):
            continue  # one strategy only: there is nothing to choose between
        made[kind], rows = choose(
            judged, dialogues, memes, kind=kind, n_items=n_items, seed=run.profile.seed,
            meme_position=run.profile.retrieval.meme_position,
        )  # fmt: skip
        forms.write_page(run.report / f"{kind}_form.html", made[kind], files)
        key += rows
    forms.write_key(run.write("rating_key.csv"), KeyRow, key)
    return made


# --- answers ----------------------------------------------------------------------------------------------

Score = Annotated[float | None, Field(ge=0, le=100)]


class HumanRating(Answer):
    """One answer of one rater; five scores (rating) or a choice (pairwise)."""

    columns: ClassVar = COLUMNS
    advice: ClassVar = {
        **dict.fromkeys(DIMENSIONS, "scores go from 0 to 100"),
        "choice": f"a choice is one of {', '.join(CHOICES)}",
        "seconds": "seconds are a number, 0 or more",
    }

    kind: Kind
    semantic_consistency: Score = None
    emotional_consistency: Score = None
    contextual_appropriateness: Score = None
    humor_effect: Score = None
    conversational_coherence: Score = None
    choice: Literal["A", "B", "no difference"] | None = None
    seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0

    @model_validator(mode="after")
    def _answers_its_kind(self) -> "HumanRating":
        missing = [name for name in DIMENSIONS if getattr(self, name) is None]
        if self.kind == "rating" and (missing or self.choice):
            raise ValueError(
                f"a rating has five scores and no choice; missing: {', '.join(missing) or 'none'}"
            )
        if self.kind == "pairwise" and (self.choice is None or len(missing) < len(DIMENSIONS)):
            raise ValueError("a pairwise answer has a choice and no scores")
        return self

    def fault(self, key: Sequence[KeyRow]) -> str:
        """The form must have such an item."""
        known = any(row.kind == self.kind for row in key)
        return "" if known else f"form {self.form} has no {self.kind} item {self.item!r}"


def collect_ratings(run: Run) -> Answers:
    """The ratings that came back for a run, in `data/raw/ratings/<profile>/`."""
    key = forms.read_key(run.read("rating_key.csv"), KeyRow)
    return answers.collect(paths.raw / "ratings" / run.profile.name, key, HumanRating)


def frame(found: Answers, kind: Kind, *, repeats: bool = False) -> pd.DataFrame:
    """Answers that count to items of `kind`: first showings, or the repeated ones."""
    repeat_of = {row.item: row.repeat_of for row in found.key if row.kind == kind}
    rows = [
        {**rating.model_dump(), "repeat_of": repeat_of[rating.item]}
        for rating in found.counted
        if rating.kind == kind and bool(repeat_of[rating.item]) == repeats
    ]
    table = pd.DataFrame(rows, columns=[*HumanRating.model_fields, "repeat_of"])
    table["overall"] = table[list(DIMENSIONS)].astype(float).mean(axis=1)
    return table


def draws(found: Answers, kind: Kind) -> pd.DataFrame:
    """Rows of the key for first showings: what was drawn for which strategy."""
    rows = [row.model_dump() for row in found.key if row.kind == kind and not row.repeat_of]
    return pd.DataFrame(rows, columns=list(KeyRow.model_fields))
