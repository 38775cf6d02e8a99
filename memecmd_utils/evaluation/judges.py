"""LLM judges of placed memes (paper, Section 5.1): five scores from 0 to 100, or a reason why not."""

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, TypeVar

import numpy as np
from pydantic import BaseModel, Field

from memecmd_utils.core import html, seeds
from memecmd_utils.core.llm import budget, local, prompts, replies
from memecmd_utils.core.llm.chat import MODELS_OWN, Chat
from memecmd_utils.core.llm.messages import (
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
from memecmd_utils.core.llm.progress import Progress
from memecmd_utils.dialogue.generation import history_text
from memecmd_utils.retrieval.placement import halves
from memecmd_utils.schemas import DIMENSIONS, Dialogue, Meme, Placement, Rating
from memecmd_utils.settings import Profile

T = TypeVar("T")
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


def numbered(name: str, before: Sequence[str]) -> str:
    """A judge's name, with its place in the profile where one of the judges `before` it has the same."""
    return f"{name} {len(before) + 1}" if name in before else name


def continues_text(model: ModelId) -> bool:
    """Whether a model is a base model of the registry: it knows no chat format and only goes on writing."""
    return any(w.chat_template and w.sha256 == model.sha256 for w in local.REGISTRY.values())


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

    Pairs of one context come one after another, so a server can reuse the context's prefix. A judge that
    answers nearly none of the first pairs is not asked about the others (`unless_useless`).
    """
    base = continues_text(chat.backend.model)

    async def one(context: Context, meme: Meme) -> dict[str, float] | str:
        requests = [yes_no_request(context, meme, dimension, wording, base) for dimension in DIMENSIONS]
        asked = (chat.ask(request, p_yes, again=False) for request in requests)
        if chat.in_bulk:
            answers = await asyncio.gather(*asked)
        else:
            # One after another, and as many pairs as requests in flight: otherwise all first questions would
            # go before any second one, and the shared prefix would be gone from the server's cache.
            answers = []
            for answer in asked:
                answers.append(await answer)
                if answers[-1].value is None:  # the pair has no score, whatever the others would be
                    break
        bar.update()
        missing = [answer for answer in answers if answer.value is None]
        if missing:
            return f"{missing[0].outcome}: {missing[0].reason}"
        return {dimension: answer.value for dimension, answer in zip(DIMENSIONS, answers, strict=True)}

    with Progress(chat, len(pairs), label, "pair") as bar:
        got = await unless_useless(chat, len(pairs), lambda i: one(*pairs[i]), is_no_answer)
        bar.update(len(pairs) - bar.done)
    return [STOPPED if one is None else one for one in got]


def is_no_answer(result: object) -> bool:
    """Whether a result is the reason why there is none, and that the judge gave no usable answer."""
    return isinstance(result, str) and result.partition(":")[0] in MODELS_OWN


async def unless_useless(
    chat: Chat, n: int, ask: Callable[[int], Awaitable[T]], is_no_answer: Callable[[T], bool]
) -> list[T | None]:
    """Ask for items 0 to n-1; None for all but the first ones where the judge is of no use.

    `FIRST` items, spread evenly, are asked before the others, which are not asked where `NEARLY_ALL` of these
    have no usable answer. A batch has all asked at once and comes to the same result, and so does a replay.
    """
    first = sorted({i * n // FIRST for i in range(FIRST)}) if n > FIRST else []
    head = list(range(n)) if chat.in_bulk else first
    got = dict(zip(head, await chat.side_by_side(ask(i) for i in head), strict=True))
    if first and sum(is_no_answer(got[i]) for i in first) >= NEARLY_ALL:
        return [got[i] if i in first else None for i in range(n)]
    rest = [i for i in range(n) if i not in got]
    got |= zip(rest, await chat.side_by_side(ask(i) for i in rest), strict=True)
    return [got[i] for i in range(n)]


def centred(p: Mapping[str, float], means: Mapping[str, float]) -> dict[str, float]:
    """50 (1 + p - mean): p(yes) minus the meme's own mean over held-out contexts, on a 0-100 scale.

    The small judge likes some memes anywhere; what remains is how much better this place is than others.
    """
    return {dimension: 50.0 * (1.0 + p[dimension] - means[dimension]) for dimension in DIMENSIONS}


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


def transcript(
    dialogue: Dialogue,
    placements: Sequence[Placement],
    memes: Mapping[str, Meme],
    n: int,
    meme_position: Literal["before", "after"] = "before",
) -> str:
    """The chat as text for a judge that sees no images: memes numbered, with their visible text."""
    at = {p.turn: (i, p) for i, p in enumerate(sorted(placements, key=lambda p: p.turn), start=1)}
    lines = []
    for turn in dialogue.turns[:n]:
        name = dialogue.name_a if turn.speaker == "A" else dialogue.name_b
        here = [f"{name}：{turn.text}"]
        if turn.turn in at:
            number, placed = at[turn.turn]
            bubble = f"{name}：［表情包{number}：{memes[placed.meme_id].text or '没有文字'}］"
            here.insert(0 if meme_position == "before" else 1, bubble)
        lines += here
    return "\n".join(lines)


def rating_request(
    dialogue: Dialogue,
    placements: Sequence[Placement],
    memes: Mapping[str, Meme],
    n_turns: int,
    seed: int,
    screenshot: tuple[str, Callable[[], bytes]] | None = None,
    meme_position: Literal["before", "after"] = "before",
) -> Request:
    """One call for a dialogue's first `n_turns` turns: all its memes at once, from a screenshot or as text.

    `screenshot` is the specification's hash, which enters the key, and a function that draws it; it is
    drawn only when the request is sent.
    """
    text = prompts.render(
        "rating",
        has_image=screenshot is not None,
        n_memes=len(placements),
        transcript=transcript(dialogue, placements, memes, n_turns, meme_position),
        fence=prompts.fence,
    )
    images = []
    if screenshot is not None:
        spec, draw = screenshot
        tiles = screenshot_tiles(n_turns)
        images = [Image(image_id=spec, load=lambda: html.data_url(draw()), tiles=tiles)]
    return Request(
        task="rating",
        subject=f"{dialogue.dialogue_id}/{n_turns}",
        messages=[Message(role="user", text=text, images=images)],
        sampling=Sampling(temperature=0.0, max_tokens=120 * len(placements) + 100),
        seed=seed,
        reply_schema=RatingsReply,
    )


def screenshot_tiles(n_turns: int) -> int:
    """Tiles of a screenshot of so many turns with some memes: 390 pixels wide, about 130 pixels a turn."""
    return budget.tiles(390, 110 + 130 * n_turns)


def parse_ratings(reply: Reply, n_memes: int) -> list[MemeRating]:
    """All `n_memes` ratings in order; a missing or doubled number makes the reply unusable."""
    ratings = sorted(replies.structured(reply, RatingsReply).ratings, key=lambda r: r.meme)
    if [r.meme for r in ratings] != list(range(1, n_memes + 1)):
        raise UnusableReply(f"需要编号1到{n_memes}各一项，收到{[r.meme for r in ratings]}")
    return ratings


# --- Stage 05: rate every placed meme with every judge, centred where the judge is small


LENGTHS = (6, 12, 18)
"""Dialogue prefixes of Table 1."""

Call = tuple[Dialogue, list[Placement], int]
"""A dialogue, the memes of it that are rated, and how many turns are shown."""
Draw = Callable[[Dialogue, Sequence[Placement], int], tuple[str, Callable[[], bytes]]]
"""Names, by a hash, the picture of a chat up to a turn, and makes it only when it is called."""


def lengths(n_turns: int) -> list[int]:
    """The prefixes of Table 1 that a run of `n_turns` has, and its full length."""
    return sorted({*(n for n in LENGTHS if n <= n_turns), n_turns})


def held_out_contexts(dialogues: Sequence[Dialogue], profile: Profile) -> dict[str, list[Context]]:
    """For each half, the fixed contexts of the *other* half at which its memes are measured in vain.

    With one dialogue only, its own turns have to serve.
    """
    split = halves(dialogues)
    out: dict[str, list[Context]] = {}
    for half, other in (("a", "b"), ("b", "a")):
        pool = [d for d in dialogues if split[d.dialogue_id] == other] or list(dialogues)
        places = [Context(d, turn.turn) for d in pool for turn in d.turns[1:]]
        rng = seeds.rng(profile.seed, "judge contexts", half)
        chosen = rng.choice(
            len(places), size=min(profile.evaluation.judge_contexts, len(places)), replace=False
        )
        out[half] = [places[i] for i in sorted(chosen)]
    return out


def to_judge(placements: Sequence[Placement], profile: Profile) -> list[Placement]:
    """The placements that are judged: all, or `judge_sample` of each dialogue and strategy.

    Turns are drawn once for a dialogue, so strategies that share their turns keep sharing them. By hand the
    memes may be those of a run with more turns.
    """
    if profile.evaluation.judge_sample is None:
        return list(placements)
    of: dict[tuple[str, str], list[Placement]] = {}
    for placed in placements:
        of.setdefault((placed.dialogue_id, placed.strategy), []).append(placed)
    kept: set[tuple[str, str, int]] = set()
    longest = max([profile.dialogue.n_turns, *(placed.turn for placed in placements)])
    for (name, strategy), mine in of.items():
        drawn = seeds.rng(profile.seed, "judge sample", name).permutation(longest - 1)
        rank = {int(turn) + 2: place for place, turn in enumerate(drawn)}
        chosen = sorted(mine, key=lambda p: rank[p.turn])[: profile.evaluation.judge_sample]
        kept |= {(name, strategy, placed.turn) for placed in chosen}
    return [p for p in placements if (p.dialogue_id, p.strategy, p.turn) in kept]


async def rate_yes_no(
    placements: Sequence[Placement],
    dialogues: Mapping[str, Dialogue],
    memes: Mapping[str, Meme],
    chat: Chat,
    profile: Profile,
    judge: str,
) -> list[Rating]:
    """Rate each placed meme by five yes/no questions, centred by its mean over held-out contexts.

    A pair (turn, meme) that several strategies share is asked once.
    """
    split = halves(list(dialogues.values()))
    contexts = held_out_contexts(list(dialogues.values()), profile)
    pairs = sorted({(p.dialogue_id, p.turn, p.meme_id) for p in placements})
    needed = sorted({(split[d], m) for d, _, m in pairs})
    held_out = [
        (half, i, meme)
        for half in "ab"
        for i in range(len(contexts[half]))
        for h, meme in needed
        if h == half
    ]
    at_home = await ask_yes_no(
        [(Context(dialogues[d], t), memes[m]) for d, t, m in pairs], chat, f"{judge}: placed memes"
    )
    no_mean = "no held-out context could be scored"
    if STOPPED in at_home:
        held_out, no_mean = [], STOPPED
    elsewhere = await ask_yes_no(
        [(contexts[half][i], memes[m]) for half, i, m in held_out], chat, f"{judge}: held-out contexts"
    )
    # A mean over the contexts that happen to be on record is not the mean that a full run subtracts.
    not_recorded = {
        (half, meme): p
        for (half, _, meme), p in zip(held_out, elsewhere, strict=True)
        if isinstance(p, str) and p.startswith(UNRECORDED)
    }
    means: dict[tuple[str, str], dict[str, float]] = {}
    for half, meme in needed:
        got = [
            p
            for (h, _, m), p in zip(held_out, elsewhere, strict=True)
            if (h, m) == (half, meme) and isinstance(p, dict)
        ]
        if got:
            means[half, meme] = {k: float(np.mean([p[k] for p in got])) for k in DIMENSIONS}
    answers = dict(zip(pairs, at_home, strict=True))
    out = []
    for placed in placements:
        p = answers[placed.dialogue_id, placed.turn, placed.meme_id]
        place = split[placed.dialogue_id], placed.meme_id
        mean = means.get(place)
        scores: dict[str, float | str] = {}
        if isinstance(p, str):
            scores["unscored"] = p
        elif place in not_recorded:
            scores["unscored"] = not_recorded[place]
        elif mean is None:
            scores["unscored"] = no_mean
        else:
            scores |= {k: round(v, 4) for k, v in centred(p, mean).items()}
            scores["overall"] = round(float(np.mean([scores[k] for k in DIMENSIONS])), 4)
            scores["raw"] = round(100 * float(np.mean([p[k] for k in DIMENSIONS])), 4)
        out.append(_rating(placed, chat, profile, judge, "meme", profile.dialogue.n_turns, scores))
    return out


async def rate_screenshots(
    placements: Sequence[Placement],
    dialogues: Mapping[str, Dialogue],
    memes: Mapping[str, Meme],
    chat: Chat,
    profile: Profile,
    judge: str,
    screenshot: Draw | None = None,
) -> list[Rating]:
    """Rate by one call per dialogue, strategy and length (unit `dialogue`) or per placed meme (unit `meme`).

    `screenshot` specifies the picture of a dialogue's first n turns; without it the judge gets a transcript.
    A judge that answers nearly none of the first calls is not asked for the others (`judges.unless_useless`).
    """
    calls: list[Call] = []
    for strategy in dict.fromkeys(p.strategy for p in placements):
        for name, dialogue in dialogues.items():
            here = sorted(
                (p for p in placements if p.strategy == strategy and p.dialogue_id == name),
                key=lambda p: p.turn,
            )
            if profile.evaluation.judge_unit == "meme":
                # Up to u_t: what comes later cannot make a meme fit, and the rating serves every length.
                calls += [(dialogue, [p], p.turn) for p in here]
            else:
                for n in lengths(profile.dialogue.n_turns):
                    shown = [p for p in here if p.turn <= n]
                    if shown:
                        calls.append((dialogue, shown, n))

    async def one(dialogue: Dialogue, shown: list[Placement], n: int) -> list[MemeRating] | str:
        seed = int(seeds.rng(profile.seed, "rating", dialogue.dialogue_id, n).integers(2**31))
        picture = None if screenshot is None else screenshot(dialogue, shown, n)
        request = rating_request(dialogue, shown, memes, n, seed, picture, profile.retrieval.meme_position)
        answer = await chat.ask(request, lambda reply: parse_ratings(reply, len(shown)), again=False)
        bar.update()
        return f"{answer.outcome}: {answer.reason}" if answer.value is None else answer.value

    def rated(call: Call, given: list[MemeRating] | str) -> Iterator[Rating]:
        _, shown, n = call
        for i, placed in enumerate(shown):
            if isinstance(given, str):
                scores: dict[str, float | str] = {"unscored": given}
            else:
                scores = {k: getattr(given[i], k) for k in DIMENSIONS}
                scores["overall"] = float(np.mean(list(scores.values())))
            yield _rating(placed, chat, profile, judge, profile.evaluation.judge_unit, n, scores)

    with Progress(chat, len(calls), f"{judge}: ratings", "call") as bar:
        got = await unless_useless(chat, len(calls), lambda i: one(*calls[i]), is_no_answer)
        bar.update(len(calls) - bar.done)
    return [
        rating
        for call, given in zip(calls, got, strict=True)
        for rating in rated(call, STOPPED if given is None else given)
    ]


def _rating(
    placed: Placement, chat: Chat, profile: Profile, judge: str, unit: str, n_turns: int, scores: Mapping
) -> Rating:
    return Rating(
        dialogue_id=placed.dialogue_id,
        turn=placed.turn,
        strategy=placed.strategy,
        meme_id=placed.meme_id,
        judge=judge,
        judge_unit=unit,
        n_turns=n_turns,
        source=chat.backend.source,
        profile=profile.name,
        seed=profile.seed,
        **scores,
    )
