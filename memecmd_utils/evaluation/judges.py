"""LLM judges of memes in chats (paper, Section 5.1): what they are shown and asked, and what they answer.

`ask` puts items before a judge. The rating of a run's memes (`ratings`) and the checks of the judges
(`judge_checks`) make items, each in their own way.
"""

import math
from collections.abc import Awaitable, Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal, TypeVar

import numpy as np
from pydantic import BaseModel, Field

from memecmd_utils import files, statistics
from memecmd_utils import local_model as local
from memecmd_utils.dialogue import history_text
from memecmd_utils.drawing import chat_from_dialogue, draw_chat, encode, spec_sha256
from memecmd_utils.llm import chat as llm_chat
from memecmd_utils.llm import prompts, replies
from memecmd_utils.llm.chat import MODELS_OWN, Chat, Progress
from memecmd_utils.llm.endpoint import NO_KEY, OpenAIBackend
from memecmd_utils.llm.messages import (
    NO,
    UNRECORDED,
    YES,
    Image,
    Message,
    ModelId,
    Reply,
    Request,
    Sampling,
    UncertainReply,
    UnusableReply,
    plain_word,
)
from memecmd_utils.recordings import is_answer, key_of
from memecmd_utils.retrieval import halves
from memecmd_utils.runs import Run
from memecmd_utils.schemas import DIMENSIONS, Dialogue, Meme
from memecmd_utils.settings import Profile

T, R = TypeVar("T"), TypeVar("R")
HISTORY_WINDOW = 8
"""Turns that the small judge sees before the meme: what matters is near, and its context is short."""
Wording = Literal["as asked", "second", "third", "no or yes"]
WORDINGS: tuple[Wording, ...] = ("as asked", "second", "third")
"""The same five questions in other words; the first are the run's own."""
OTHER_ORDER: Wording = "no or yes"
"""The run's own questions with the two answers named the other way round."""
FIRST, NEARLY_ALL = 10, 9
"""Items that are asked first, and how many of them without a usable answer end the asking."""
STOPPED = f"stopped: the judge had no usable answer to {NEARLY_ALL} or more of its first {FIRST} items"
"""Why the others have no score."""
LEAST_MASS = 0.25
"""Of yes and no together among the first tokens. Below it what the judge would say instead outweighs both
three to one, and the ratio of two rare tokens is noise."""
ROUNDING = 1e-3
"""Log-probabilities are kept to four digits."""
LENGTHS = (6, 12, 18)
"""Dialogue prefixes of Table 1."""


@dataclass(frozen=True)
class Item:
    """What a judge is shown: memes in the first `n_turns` turns of a dialogue.

    A yes/no judge takes items of one meme and sees the turns before it.
    """

    key: Hashable
    """Under which the answer comes back."""
    dialogue: Dialogue
    memes: Mapping[int, Meme]
    """By turn, in order."""
    n_turns: int


Scores = dict[str, float]
"""Of one meme: the five dimensions and `overall`, 0 to 100; of a yes/no judge also `raw`, before centring."""
Answer = list[Scores] | str
"""Scores of an item's memes in order, or the reason why there are none."""
Draw = Callable[[Item], tuple[str, Callable[[], bytes]]]
"""Names, by a hash, the picture of an item, and makes it only when it is called."""


@dataclass(frozen=True)
class Judge:
    """A judge of the profile that can be asked."""

    name: str
    kind: Literal["yes_no", "rating"]
    chat: Chat
    profile: Profile
    dialogues: Sequence[Dialogue]
    """Of the run: a yes/no judge's scores are centred by those at places in the other half of them."""
    draw: Draw | None = None
    """Without it a rating judge reads a transcript."""


@contextmanager
def open_judge(
    run: Run,
    number: int,
    dialogues: Sequence[Dialogue],
    memes: Mapping[str, Meme],
    before: Sequence[str] = (),
) -> Iterator[Judge]:
    """Open a judge of the profile; where one of the names `before` is its own, it is numbered."""
    judge = run.profile.evaluation.judges[number]
    with run.chat("judge", "evaluation", number) as chat:
        name = f"{chat.backend.model.name} {judge.kind}"
        name = f"{name} {len(before) + 1}" if name in before else name
        sees = judge.kind == "rating" and judge.llm == "openai" and run.endpoint("judge", number).vision
        draw = drawing(run, memes) if sees else None
        yield Judge(name, judge.kind, chat, run.profile, dialogues, draw)


def meme_files(run: Run, memes: Mapping[str, Meme]) -> dict[str, Path]:
    """Paths of the normalised pictures."""
    folder = run.read("memes.parquet").parent
    return {name: folder / meme.file for name, meme in memes.items()}


def drawing(run: Run, memes: Mapping[str, Meme]) -> Draw:
    """What specifies, and at need draws, the screenshot that a judge with eyes is shown."""
    files = meme_files(run, memes)

    def draw(item: Item) -> tuple[str, Callable[[], bytes]]:
        ids = {turn: meme.meme_id for turn, meme in item.memes.items()}
        spec = chat_from_dialogue(item.dialogue, ids, item.n_turns, run.profile.retrieval.meme_position)
        # As phones send it: a PNG takes four times as long to make as the picture itself.
        return spec_sha256(spec), lambda: encode(draw_chat(spec, files), "jpeg")

    return draw


def ask(items: Sequence[Item], judge: Judge) -> dict[Hashable, Answer]:
    """Put items before a judge; its answers by their keys.

    A judge that has no usable answer to nearly all of the first items is not asked about the others.
    """
    work = _ask_centred(items, judge) if judge.kind == "yes_no" else _ask_ratings(items, judge)
    return dict(zip([item.key for item in items], llm_chat.run(work), strict=True))


async def ask_while_useful(
    things: Sequence[T], one: Callable[[T], Awaitable[R | str]], chat: Chat, label: str, unit: str
) -> list[R | str]:
    """Ask about things side by side; `STOPPED` for all but the first ones where the judge is of no use.

    `FIRST` of them, spread evenly, are asked before the others, which are not asked where `NEARLY_ALL` of
    these have no usable answer. A replay comes to the same result.
    """
    n = len(things)
    first = sorted({i * n // FIRST for i in range(FIRST)}) if n > FIRST else []
    with Progress(chat, n, label, unit) as bar:

        async def counted(place: int) -> R | str:
            answer = await one(things[place])
            bar.update()
            return answer

        answers = dict(zip(first, await chat.side_by_side(counted(i) for i in first), strict=True))
        if first and sum(is_no_answer(answers[i]) for i in first) >= NEARLY_ALL:
            bar.update(n - bar.done)
            return [answers[i] if i in first else STOPPED for i in range(n)]
        rest = [i for i in range(n) if i not in answers]
        answers |= zip(rest, await chat.side_by_side(counted(i) for i in rest), strict=True)
    return [answers[i] for i in range(n)]


def is_no_answer(answer: object) -> bool:
    """Whether an answer is the reason why there is none, and that the judge gave no usable one."""
    return isinstance(answer, str) and answer.partition(":")[0] in MODELS_OWN


# --- Five yes/no questions about a meme at a place


@dataclass(frozen=True)
class Context:
    """A place where a meme may stand: before u_t of a dialogue."""

    dialogue: Dialogue
    turn: int

    @property
    def history(self) -> str:
        """The last turns before t, with the speakers' names."""
        texts = [turn.text for turn in self.dialogue.turns[: self.turn - 1]]
        lines = history_text(self.dialogue, texts).split("\n")  # type: ignore[arg-type]
        return "\n".join(lines[-HISTORY_WINDOW:])

    @property
    def speaker_name(self) -> str:
        """Who speaks at t."""
        return self.dialogue.name_a if self.turn % 2 else self.dialogue.name_b


@lru_cache(maxsize=8)
def questions(wording: Wording = "as asked") -> dict[str, str]:
    """The five questions by dimension from `judge_questions.j2`, in other words where the wording has them.

    A further wording may also hold an `instruction`: how to answer.
    """
    files = ["judge_questions"]
    if wording != "as asked":
        files.append(f"judge_wording_{wording.replace(' ', '_')}")
    lines = [line for name in files for line in prompts.render(name).split("\n")]
    return dict(line.split(": ", 1) for line in lines)


def continues_text(model: ModelId) -> bool:
    """Whether a model is a base model of the registry: it knows no chat format and only goes on writing."""
    return any(w.chat_template and w.sha256 == model.sha256 for w in local.registry().values())


def yes_no_request(
    context: Context, meme: Meme, dimension: str, wording: Wording = "as asked", base: bool = False
) -> Request:
    """One one-token question; the five of a pair differ in their last line only (shared prefix).

    A `base` model gets two solved examples before it (`judge_base.j2`), in the run's own wording only.
    Raises ValueError for another wording of that.
    """
    if base and wording != "as asked":
        raise ValueError(f"a base model's examples are in the run's own words, not in wording {wording!r}")
    words = questions(wording)
    how = {"instruction": words["instruction"]} if "instruction" in words else {}
    text = prompts.render(
        "judge_base" if base else "judge_yes_no",
        history=context.history,
        speaker=context.speaker_name,
        meme_text=meme.text,
        meme_note=meme.picture_note,
        question=words[dimension],
        fence=prompts.fence,
        **how,
    )
    system = [] if base else [Message(role="system", text=prompts.render("judge_system", **how))]
    return Request(
        task="rating",
        subject=f"{context.dialogue.dialogue_id}/{context.turn}/{meme.meme_id}/{dimension}",
        messages=[*system, Message(role="user", text=text)],
        sampling=Sampling(temperature=0.0, max_tokens=1, top_logprobs=20),
    )


def p_yes(reply: Reply) -> float:
    """Probability of yes among yes and no, from the first token's alternatives.

    It is read where an answer is what the judge most likely gives: yes and no together have `LEAST_MASS`,
    and no other word is likelier; else `UncertainReply`. An endpoint without log-probabilities, or with
    those of another token than the answer's, gives 1 or 0 by the word itself.
    """
    yes, no = reply.yes_no or (0.0, 0.0)
    mass = yes + no
    if mass > 0:
        tops = (reply.first_token or {}).items()
        other = max((math.exp(p) for token, p in tops if plain_word(token) not in YES | NO), default=0.0)
        if mass < max(LEAST_MASS, other) - ROUNDING:
            raise UncertainReply(
                f"只能回答“是”或“否”，这两种回答的概率合计只有{mass:.2g}，最可能的是“{reply.text[:20]}”"
            )
        return yes / mass
    word = plain_word(reply.text)
    if word in YES or word in NO:
        return float(word in YES)
    raise UnusableReply(f"只能回答“是”或“否”，收到的是“{reply.text[:20]}”")


async def ask_yes_no(
    pairs: Sequence[tuple[Context, Meme]], chat: Chat, label: str, wording: Wording = "as asked"
) -> list[dict[str, float] | str]:
    """Ask the five questions of every pair: p(yes) by dimension, or the reason why there is none.

    Pairs of one context come one after another, so a server can reuse the context's prefix.
    """
    base = continues_text(chat.backend.model)

    async def one(pair: tuple[Context, Meme]) -> dict[str, float] | str:
        requests = [yes_no_request(*pair, dimension, wording, base) for dimension in DIMENSIONS]
        asked = (chat.ask(request, p_yes, again=False) for request in requests)
        # One after another, and as many pairs as requests in flight: otherwise all first questions would
        # go before any second one, and the shared prefix would be gone from the server's cache.
        answers = []
        for answer in asked:
            answers.append(await answer)
            if answers[-1].value is None:  # the pair has no score, whatever the others would be
                break
        missing = [answer for answer in answers if answer.value is None]
        if missing:
            return f"{missing[0].outcome}: {missing[0].reason}"
        return {dimension: answer.value for dimension, answer in zip(DIMENSIONS, answers, strict=True)}

    return await ask_while_useful(pairs, one, chat, label, "pair")


def answers_on_record(
    run: Run, context: Context, meme: Meme, number: int = 0
) -> dict[str, tuple[Request, Reply | None]]:
    """The five questions about a meme at a place, and what a yes/no judge of the profile answered.

    To look at after the judge was asked: this only reads the recordings, so nothing is asked or counted. None
    where there is no answer, or one without probabilities of yes and no.
    """
    judge, profile = run.profile.evaluation.judges[number], run.profile
    if judge.llm == "local":
        backend = local.LocalServer(judge.local_model or profile.models.local_model).backend()
    else:
        backend = OpenAIBackend(run.endpoint("judge", number), key=NO_KEY)
    found: dict[str, tuple[Request, Reply | None]] = {}
    store = run.recordings("evaluation")
    for dimension in DIMENSIONS:
        request = yes_no_request(context, meme, dimension, base=continues_text(backend.model))
        stored = store.get(key_of(request.normal_form(backend.model, backend.dropped)))
        reply = None
        if stored is not None and is_answer(stored):
            reply = Reply(**{name: stored.get(name) for name in ("text", "first_token", "yes_no")})
        found[dimension] = request, reply if reply and sum(reply.yes_no or ()) else None
    return found


def place_and_meme(item: Item) -> tuple[Context, Meme]:
    """What a yes/no judge is asked about."""
    ((turn, meme),) = item.memes.items()
    return Context(item.dialogue, turn), meme


async def _ask_centred(items: Sequence[Item], judge: Judge) -> list[Answer]:
    """Five yes/no questions about each meme, centred by its mean over held-out contexts."""
    split, contexts = halves(judge.dialogues), held_out_contexts(judge.dialogues, judge.profile)
    pairs = [place_and_meme(item) for item in items]
    at_home = await ask_yes_no(pairs, judge.chat, f"{judge.chat.backend.model.name}: placed memes")
    if STOPPED in at_home:
        return [p if isinstance(p, str) else STOPPED for p in at_home]
    memes = {meme.meme_id: meme for _, meme in pairs}
    needed = [(split[context.dialogue.dialogue_id], meme.meme_id) for context, meme in pairs]
    held_out = [
        (context, half, name)
        for half in "ab"
        for context in contexts[half]
        for of_half, name in sorted(set(needed))
        if of_half == half
    ]
    elsewhere: dict[tuple[str, str], list[dict[str, float] | str]] = {place: [] for place in needed}
    answers = await ask_yes_no(
        [(context, memes[name]) for context, _, name in held_out],
        judge.chat,
        f"{judge.chat.backend.model.name}: elsewhere",
    )
    for (_, half, name), p in zip(held_out, answers, strict=True):
        elsewhere[half, name].append(p)
    means = {place: _mean(answers) for place, answers in elsewhere.items()}
    return [_scores(p, means[place]) for p, place in zip(at_home, needed, strict=True)]


def _mean(answers: Sequence[dict[str, float] | str]) -> dict[str, float] | str:
    """Mean p(yes) over held-out contexts, or the reason why there is none."""
    # A mean over the contexts that happen to be on record is not the mean that a full run subtracts.
    unrecorded = [p for p in answers if isinstance(p, str) and p.startswith(UNRECORDED)]
    known = [p for p in answers if isinstance(p, dict)]
    if unrecorded or not known:
        return unrecorded[0] if unrecorded else "no held-out context could be scored"
    return {dimension: float(np.mean([p[dimension] for p in known])) for dimension in DIMENSIONS}


def _scores(p: dict[str, float] | str, means: dict[str, float] | str) -> Answer:
    if isinstance(p, str) or isinstance(means, str):
        return p if isinstance(p, str) else means
    scores = {dimension: round(value, 4) for dimension, value in centred(p, means).items()}
    overall, raw = np.mean([scores[k] for k in DIMENSIONS]), 100 * np.mean([p[k] for k in DIMENSIONS])
    return [{**scores, "overall": round(float(overall), 4), "raw": round(float(raw), 4)}]


def centred(p: Mapping[str, float], means: Mapping[str, float]) -> dict[str, float]:
    """50 (1 + p - mean): p(yes) minus the meme's own mean over held-out contexts, on a 0-100 scale.

    The small judge likes some memes anywhere; what remains is how much better this place is than others.
    """
    return {dimension: 50.0 * (1.0 + p[dimension] - means[dimension]) for dimension in DIMENSIONS}


def contexts_elsewhere(dialogues: Sequence[Dialogue], profile: Profile, dialogue_id: str) -> list[Context]:
    """The places in other dialogues at which the memes of a dialogue are measured in vain."""
    return held_out_contexts(dialogues, profile)[halves(dialogues)[dialogue_id]]


def held_out_contexts(dialogues: Sequence[Dialogue], profile: Profile) -> dict[str, list[Context]]:
    """For each half, the fixed contexts of the *other* half at which its memes are measured in vain.

    With one dialogue only, its own turns have to serve.
    """
    split = halves(dialogues)
    out: dict[str, list[Context]] = {}
    for half, other in (("a", "b"), ("b", "a")):
        pool = [d for d in dialogues if split[d.dialogue_id] == other] or list(dialogues)
        places = [Context(d, turn.turn) for d in pool for turn in d.turns[1:]]
        rng = statistics.rng(profile.seed, "judge contexts", half)
        chosen = rng.choice(
            len(places), size=min(profile.evaluation.judge_contexts, len(places)), replace=False
        )
        out[half] = [places[i] for i in sorted(chosen)]
    return out


# --- Five numbers for each meme of a chat


class MemeRating(BaseModel):
    """Five scores of one meme as asked of a rating judge."""

    meme: int = Field(ge=1)
    semantic_consistency: float = Field(ge=0, le=100)
    emotional_consistency: float = Field(ge=0, le=100)
    contextual_appropriateness: float = Field(ge=0, le=100)
    humor_effect: float = Field(ge=0, le=100)
    conversational_coherence: float = Field(ge=0, le=100)


class RatingsReply(BaseModel):
    """Scores of all memes of a screenshot."""

    ratings: list[MemeRating]


def transcript(item: Item, meme_position: Literal["before", "after"] = "before") -> str:
    """The chat as text for a judge that sees no images: memes numbered, with their visible text."""
    numbers = {turn: number for number, turn in enumerate(item.memes, start=1)}
    lines = []
    for turn in item.dialogue.turns[: item.n_turns]:
        name = item.dialogue.name_a if turn.speaker == "A" else item.dialogue.name_b
        here = [f"{name}：{turn.text}"]
        if turn.turn in numbers:
            text = item.memes[turn.turn].text or "没有文字"
            bubble = f"{name}：［表情包{numbers[turn.turn]}：{text}］"
            here.insert(0 if meme_position == "before" else 1, bubble)
        lines += here
    return "\n".join(lines)


def rating_request(
    item: Item,
    seed: int,
    screenshot: tuple[str, Callable[[], bytes]] | None = None,
    meme_position: Literal["before", "after"] = "before",
) -> Request:
    """One call for all memes of an item, from a screenshot or as text.

    `screenshot` is the specification's hash, which enters the key, and a function that draws it; it is
    drawn only when the request is sent.
    """
    text = prompts.render(
        "rating",
        has_image=screenshot is not None,
        n_memes=len(item.memes),
        transcript=transcript(item, meme_position),
        fence=prompts.fence,
    )
    images = []
    if screenshot is not None:
        spec, draw = screenshot
        images = [Image(image_id=spec, load=lambda: files.data_url(draw()))]
    return Request(
        task="rating",
        subject=f"{item.dialogue.dialogue_id}/{item.n_turns}",
        messages=[Message(role="user", text=text, images=images)],
        sampling=Sampling(temperature=0.0, max_tokens=120 * len(item.memes) + 100),
        seed=seed,
        reply_schema=RatingsReply,
    )


def parse_ratings(reply: Reply, n_memes: int) -> list[MemeRating]:
    """All `n_memes` ratings in order; a missing or doubled number makes the reply unusable."""
    ratings = sorted(replies.structured(reply, RatingsReply).ratings, key=lambda r: r.meme)
    if [r.meme for r in ratings] != list(range(1, n_memes + 1)):
        raise UnusableReply(f"需要编号1到{n_memes}各一项，收到{[r.meme for r in ratings]}")
    return ratings


async def _ask_ratings(items: Sequence[Item], judge: Judge) -> list[Answer]:
    """One call an item."""

    async def one(item: Item) -> Answer:
        draws = statistics.rng(judge.profile.seed, "rating", item.dialogue.dialogue_id, item.n_turns)
        picture = None if judge.draw is None else judge.draw(item)
        request = rating_request(
            item, int(draws.integers(2**31)), picture, judge.profile.retrieval.meme_position
        )
        answer = await judge.chat.ask(
            request, lambda reply: parse_ratings(reply, len(item.memes)), again=False
        )
        if answer.value is None:
            return f"{answer.outcome}: {answer.reason}"
        scored = [{k: getattr(rating, k) for k in DIMENSIONS} for rating in answer.value]
        return [{**scores, "overall": float(np.mean(list(scores.values())))} for scores in scored]

    return await ask_while_useful(items, one, judge.chat, f"{judge.name}: ratings", "call")


def lengths(n_turns: int) -> list[int]:
    """The prefixes of Table 1 that a run of `n_turns` has, and its full length."""
    return sorted({*(n for n in LENGTHS if n <= n_turns), n_turns})
