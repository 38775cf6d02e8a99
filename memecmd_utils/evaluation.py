"""Stage 05: rate every placed meme with every judge, centred where the judge is small."""

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from memecmd_utils import judges, seeds
from memecmd_utils.judges import Context
from memecmd_utils.llm import Chat
from memecmd_utils.llm_types import UNRECORDED
from memecmd_utils.profiles import Profile
from memecmd_utils.progress import Progress
from memecmd_utils.schemas import DIMENSIONS, Dialogue, Meme, Placement, Rating
from memecmd_utils.selection import halves

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
        chosen = rng.choice(len(places), size=min(profile.judge_contexts, len(places)), replace=False)
        out[half] = [places[i] for i in sorted(chosen)]
    return out


def to_judge(placements: Sequence[Placement], profile: Profile) -> list[Placement]:
    """The placements that are judged: all, or `judge_sample` of each dialogue and strategy.

    Turns are drawn once for a dialogue, so strategies that share their turns keep sharing them. By hand the
    memes may be those of a run with more turns.
    """
    if profile.judge_sample is None:
        return list(placements)
    of: dict[tuple[str, str], list[Placement]] = {}
    for placed in placements:
        of.setdefault((placed.dialogue_id, placed.strategy), []).append(placed)
    kept: set[tuple[str, str, int]] = set()
    longest = max([profile.n_turns, *(placed.turn for placed in placements)])
    for (name, strategy), mine in of.items():
        drawn = seeds.rng(profile.seed, "judge sample", name).permutation(longest - 1)
        rank = {int(turn) + 2: place for place, turn in enumerate(drawn)}
        chosen = sorted(mine, key=lambda p: rank[p.turn])[: profile.judge_sample]
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
    at_home = await judges.ask_yes_no(
        [(Context(dialogues[d], t), memes[m]) for d, t, m in pairs], chat, f"{judge}: placed memes"
    )
    no_mean = "no held-out context could be scored"
    if judges.STOPPED in at_home:
        held_out, no_mean = [], judges.STOPPED
    elsewhere = await judges.ask_yes_no(
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
            scores |= {k: round(v, 4) for k, v in judges.centred(p, mean).items()}
            scores["overall"] = round(float(np.mean([scores[k] for k in DIMENSIONS])), 4)
            scores["raw"] = round(100 * float(np.mean([p[k] for k in DIMENSIONS])), 4)
        out.append(_rating(placed, chat, profile, judge, "meme", profile.n_turns, scores))
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
            if profile.judge_unit == "meme":
                # Up to u_t: what comes later cannot make a meme fit, and the rating serves every length.
                calls += [(dialogue, [p], p.turn) for p in here]
            else:
                for n in lengths(profile.n_turns):
                    shown = [p for p in here if p.turn <= n]
                    if shown:
                        calls.append((dialogue, shown, n))

    async def one(dialogue: Dialogue, shown: list[Placement], n: int) -> list[judges.MemeRating] | str:
        seed = int(seeds.rng(profile.seed, "rating", dialogue.dialogue_id, n).integers(2**31))
        picture = None if screenshot is None else screenshot(dialogue, shown, n)
        request = judges.rating_request(dialogue, shown, memes, n, seed, picture, profile.meme_position)
        answer = await chat.ask(request, lambda reply: judges.parse_ratings(reply, len(shown)), again=False)
        bar.update()
        return f"{answer.outcome}: {answer.reason}" if answer.value is None else answer.value

    def rated(call: Call, given: list[judges.MemeRating] | str) -> Iterator[Rating]:
        _, shown, n = call
        for i, placed in enumerate(shown):
            if isinstance(given, str):
                scores: dict[str, float | str] = {"unscored": given}
            else:
                scores = {k: getattr(given[i], k) for k in DIMENSIONS}
                scores["overall"] = float(np.mean(list(scores.values())))
            yield _rating(placed, chat, profile, judge, profile.judge_unit, n, scores)

    with Progress(chat, len(calls), f"{judge}: ratings", "call") as bar:
        got = await judges.unless_useless(chat, len(calls), lambda i: one(*calls[i]), judges.is_no_answer)
        bar.update(len(calls) - bar.done)
    return [
        rating
        for call, given in zip(calls, got, strict=True)
        for rating in rated(call, judges.STOPPED if given is None else given)
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
