"""LLM judges of memes in chats (paper, Section 5.1): what they are shown and asked, and what they are worth.

A yes/no judge answers one-token questions about a meme, a rating judge gives numbers to all memes of a chat.
Both say something of each of the `DIMENSIONS`, whose words stand in `prompts/judge_questions.j2`.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Literal, NamedTuple

import numpy as np
import pandas as pd
import yaml
from pydantic import BaseModel, Field, create_model

from memecmd_utils import consistency, files, statistics, tables
from memecmd_utils.dialogue import history_text
from memecmd_utils.drawing import chat_from_dialogue, draw_chat, encode, spec_sha256
from memecmd_utils.grades import fits
from memecmd_utils.llm import chat as llm_chat
from memecmd_utils.llm import prompts, replies
from memecmd_utils.llm.chat import Chat, each
from memecmd_utils.llm.local_model import registry
from memecmd_utils.llm.types import (
    NO,
    UNRECORDED,
    YES,
    Image,
    ModelId,
    Reply,
    Request,
    Sampling,
    UnusableReply,
    plain_word,
)
from memecmd_utils.retrieval import halves
from memecmd_utils.runs import Run
from memecmd_utils.schemas import DIMENSIONS, Dialogue, Meme, Placement, Rating
from memecmd_utils.settings import Profile
from memecmd_utils.splits import Query, Turns
from memecmd_utils.statistics import Estimate

HISTORY_WINDOW = 8
"""Turns that the small judge sees before the meme: what matters is near, and its context is short."""
LEAST_MASS = 0.25
"""Of yes and no together among the first tokens. Below it what the judge would say instead outweighs both
three to one, and the ratio of two rare tokens is noise."""
ROUNDING = 1e-3
"""Log-probabilities are kept to four digits."""


class Excerpt(NamedTuple):
    """What a judge is shown: memes in the first `n_turns` turns of a dialogue.

    A yes/no judge takes excerpts with one meme and sees the turns before it.
    """

    dialogue: Dialogue
    memes: Mapping[int, Meme]
    """By turn, in order."""
    n_turns: int


Scores = dict[str, float]
"""Of one meme: the dimensions and `overall`, 0 to 100; of a yes/no judge also `raw`, before centring."""
Answer = list[Scores] | str
"""Scores of an excerpt's memes in order, or the reason why there are none."""


class Judge(NamedTuple):
    """A judge of a run's profile that can be asked."""

    run: Run
    chat: Chat
    name: str
    kind: Literal["yes_no", "rating"]
    sees: bool = False
    """Whether it reads screenshots; else a rating judge reads a transcript."""


@contextmanager
def open_judge(run: Run, number: int, before: Sequence[str]) -> Iterator[Judge]:
    """Open a judge of the profile; where one of the names `before` is its own, it is numbered."""
    judge = run.profile.evaluation.judges[number]
    with run.chat("judge", "evaluation", number) as chat:
        name = f"{chat.backend.model.name} {judge.kind}"
        name = f"{name} {number + 1}" if name in before else name
        sees = judge.kind == "rating" and judge.llm == "openai" and run.endpoint("judge", number).vision
        yield Judge(run, chat, name, judge.kind, sees)


def ask(shown: Mapping[tuple, Excerpt], judge: Judge, dialogues: Sequence[Dialogue]) -> dict[tuple, Answer]:
    """Put excerpts before a judge; its answers by the same keys.

    `dialogues` are those of the run: what a yes/no judge says of a meme at places in the other half of them
    is what its scores are centred by.
    """
    excerpts = list(shown.values())
    asked = (
        _ask_centred(excerpts, judge, dialogues) if judge.kind == "yes_no" else _ask_ratings(excerpts, judge)
    )
    return dict(zip(shown, llm_chat.run(asked), strict=True))


# --- A yes/no question for each dimension about a meme at a place


@lru_cache
def words() -> dict[str, dict[str, str]]:
    """What judges are asked of each dimension: `rating` and the yes/no `question`."""
    return yaml.safe_load(prompts.render("judge_questions"))


def continues_text(model: ModelId) -> bool:
    """Whether a model is a base model of the registry: it knows no chat format and only goes on writing."""
    return any(w.chat_template and w.sha256 == model.sha256 for w in registry().values())


def yes_no_request(context: Query, meme: Meme, dimension: str, base: bool = False) -> Request:
    """One one-token question; those of a pair differ in their last line only (shared prefix).

    A `base` model gets two solved examples before it (`judge_base.j2`).
    """
    dialogue, turn = context.dialogue, context.turn
    history = history_text(dialogue.lines[: turn - 1])
    text = prompts.render(
        "judge_base" if base else "judge_yes_no",
        history="\n".join(history.split("\n")[-HISTORY_WINDOW:]),
        speaker=dialogue.lines[turn - 1][0],
        meme_text=meme.text,
        meme_note=meme.picture_note,
        question=words()[dimension]["question"],
    )
    return Request(
        task="rating",
        subject=f"{dialogue.dialogue_id}/{turn}/{meme.meme_id}/{dimension}",
        messages=prompts.messages(text, system="" if base else prompts.render("judge_system")),
        sampling=Sampling(temperature=0.0, max_tokens=1, top_logprobs=20),
    )


def p_yes(reply: Reply) -> float:
    """Probability of yes among yes and no, from the first token's alternatives.

    It is read where an answer is what the judge most likely gives: yes and no together have `LEAST_MASS`,
    and no other word is likelier; else `UnusableReply`. An endpoint without log-probabilities, or with
    those of another token than the answer's, gives 1 or 0 by the word itself.
    """
    yes, no = reply.yes_no or (0.0, 0.0)
    mass = yes + no
    if mass > 0:
        tops = (reply.first_token or {}).items()
        other = max((math.exp(p) for token, p in tops if plain_word(token) not in YES | NO), default=0.0)
        if mass < max(LEAST_MASS, other) - ROUNDING:
            raise UnusableReply("unsure of yes and no", f"{mass:.2g}", reply.text[:20])
        return yes / mass
    word = plain_word(reply.text)
    if word in YES or word in NO:
        return float(word in YES)
    raise UnusableReply("neither yes nor no", reply.text[:20])


async def ask_yes_no(pairs: Sequence[tuple[Query, Meme]], chat: Chat, label: str) -> list[Scores | str]:
    """Ask the questions of every pair: p(yes) by dimension, or the reason why there is none."""
    base = continues_text(chat.backend.model)

    async def ask_about(pair: tuple[Query, Meme]) -> Scores | str:
        # One question after another: otherwise all first questions would go before any second one, and the
        # shared prefix would be gone from the server's cache.
        p: Scores = {}
        for dimension in DIMENSIONS:
            answer = await chat.ask(yes_no_request(*pair, dimension, base), p_yes, again=False)
            if answer.value is None:  # the pair has no score, whatever the others would be
                break
            p[dimension] = answer.value
        return f"{answer.outcome}: {answer.reason}" if answer.value is None else p

    return await each(chat, pairs, ask_about, label, "pair")


async def _ask_centred(shown: Sequence[Excerpt], judge: Judge, dialogues: Sequence[Dialogue]) -> list[Answer]:
    """The questions about each meme, centred by its mean over held-out contexts."""
    half, contexts = halves(dialogues), held_out_contexts(dialogues, judge.run.profile)
    pairs = [
        (Query(excerpt.dialogue, turn), meme) for excerpt in shown for turn, meme in excerpt.memes.items()
    ]
    places = [(half[context.dialogue.dialogue_id], meme.meme_id) for context, meme in pairs]
    memes = {place: meme for place, (_, meme) in zip(places, pairs, strict=True)}
    # Memes of one context come one after another, so that a server can reuse the context's prefix.
    held_out = [
        (context, place)
        for of_half, chosen in contexts.items()
        for context in chosen
        for place in sorted(memes)
        if place[0] == of_half
    ]
    asked = [*pairs, *((context, memes[place]) for context, place in held_out)]
    answers = await ask_yes_no(asked, judge.chat, f"{judge.chat.backend.model.name}: memes")
    elsewhere = defaultdict(list)
    for (_, place), answer in zip(held_out, answers[len(pairs) :], strict=True):
        elsewhere[place].append(answer)
    return [_centred(answer, elsewhere[place]) for answer, place in zip(answers, places, strict=False)]


def _centred(p: Scores | str, elsewhere: Sequence[Scores | str]) -> Answer:
    """50 (1 + p - mean): p(yes) minus the meme's own mean over held-out contexts, on a 0-100 scale.

    The small judge likes some memes anywhere; what remains is how much better this place is than others.
    """
    # A mean over the contexts that happen to be on record is not the mean that a full run subtracts.
    unrecorded = [q for q in elsewhere if isinstance(q, str) and q.startswith(UNRECORDED)]
    known = [list(q.values()) for q in elsewhere if isinstance(q, dict)]
    if isinstance(p, str) or unrecorded or not known:
        return p if isinstance(p, str) else (*unrecorded, "no held-out context could be scored")[0]
    here = np.array(list(p.values()))
    scores = [round(float(score), 4) for score in 50 * (1 + here - np.mean(known, axis=0))]
    overall, raw = round(float(np.mean(scores)), 4), round(float(100 * here.mean()), 4)
    return [{**dict(zip(DIMENSIONS, scores, strict=True)), "overall": overall, "raw": raw}]


def held_out_contexts(dialogues: Sequence[Dialogue], profile: Profile) -> dict[str, list[Query]]:
    """For each half, the fixed contexts of the *other* half at which its memes are measured in vain.

    With one dialogue only, its own turns have to serve.
    """
    split = halves(dialogues)
    out: dict[str, list[Query]] = {}
    for half in "ab":
        pool = [d for d in dialogues if split[d.dialogue_id] != half] or list(dialogues)
        places = [Query(d, turn.turn) for d in pool for turn in d.turns[1:]]
        n = min(profile.evaluation.judge_contexts, len(places))
        chosen = statistics.rng(profile.seed, "judge contexts", half).choice(len(places), n, replace=False)
        out[half] = [places[i] for i in sorted(chosen)]
    return out


# --- A number for each dimension and each meme of a chat


MemeRating = create_model(
    "MemeRating",
    __doc__="Scores of one meme as asked of a rating judge.",
    meme=(int, Field(ge=1)),
    **{dimension: (float, Field(ge=0, le=100)) for dimension in DIMENSIONS},
)


class RatingsReply(BaseModel):
    """Scores of all memes of a screenshot."""

    ratings: list[MemeRating]


class ChatReply(BaseModel):
    """One score of a whole chat, as the paper's judge gives it, and why."""

    reason: str
    score: float = Field(ge=0, le=100)


def transcript(shown: Excerpt) -> str:
    """The chat as text for a judge that sees no images: memes numbered, in words."""
    told = {
        turn: f"［表情包{number}：{meme.words or '没有文字'}］"
        for number, (turn, meme) in enumerate(shown.memes.items(), start=1)
    }
    lines = []
    for turn, (name, text) in enumerate(shown.dialogue.lines[: shown.n_turns], start=1):
        lines += [(name, told[turn])] if turn in told else []
        lines.append((name, text))
    return history_text(lines)


def rating_request(
    shown: Excerpt, seed: int, screenshot: Image | None = None, whole: bool = False
) -> Request:
    """One call for all memes of an excerpt, or for the `whole` chat, from a screenshot or as text."""
    text = prompts.render(
        "rating_chat" if whole else "rating",
        has_image=screenshot is not None,
        n_memes=len(shown.memes),
        transcript=transcript(shown),
        dimensions={dimension: words()[dimension]["rating"] for dimension in DIMENSIONS},
    )
    return Request(
        task="rating",
        subject=f"{shown.dialogue.dialogue_id}/{shown.n_turns}",
        messages=prompts.messages(text, images=[screenshot] if screenshot else []),
        sampling=Sampling(temperature=0.0, max_tokens=300 if whole else 120 * len(shown.memes) + 100),
        seed=seed,
        reply_schema=ChatReply if whole else RatingsReply,
    )


def read_ratings(reply: Reply, n_memes: int) -> list[Scores]:
    """Scores of all `n_memes` memes in order; a missing or doubled number makes the reply unusable."""
    ratings = sorted(replies.structured(reply, RatingsReply).ratings, key=lambda r: r.meme)
    if [r.meme for r in ratings] != list(range(1, n_memes + 1)):
        raise UnusableReply("not the numbers asked for", n_memes, [r.meme for r in ratings])
    scored = [rating.model_dump(include=set(DIMENSIONS)) for rating in ratings]
    return [{**scores, "overall": float(np.mean(list(scores.values())))} for scores in scored]


def read_score(reply: Reply, n_memes: int) -> list[Scores]:
    """The score of a chat, once for each of its memes."""
    return [{"overall": replies.structured(reply, ChatReply).score}] * n_memes


async def _ask_ratings(shown: Sequence[Excerpt], judge: Judge) -> list[Answer]:
    """One call an excerpt."""
    profile = judge.run.profile
    whole = profile.evaluation.judge_unit == "chat"
    read = read_score if whole else read_ratings

    async def ask_about(excerpt: Excerpt) -> Answer:
        draws = statistics.rng(profile.seed, "rating", excerpt.dialogue.dialogue_id, excerpt.n_turns)
        picture = screenshot_of(excerpt, judge.run) if judge.sees else None
        request = rating_request(excerpt, int(draws.integers(2**31)), picture, whole)
        answer = await judge.chat.ask(request, lambda r: read(r, len(excerpt.memes)), again=False)
        return f"{answer.outcome}: {answer.reason}" if answer.value is None else answer.value

    return await each(judge.chat, shown, ask_about, f"{judge.name}: ratings", "call")


def screenshot_of(shown: Excerpt, run: Run) -> Image:
    """The chat as a phone shows it; its specification enters the key, and it is drawn only to be sent."""
    spec = chat_from_dialogue(
        shown.dialogue, {turn: meme.meme_id for turn, meme in shown.memes.items()}, shown.n_turns
    )
    files_of = {meme.meme_id: run.read(meme.file) for meme in shown.memes.values()}
    # As phones send it: a PNG takes four times as long as the drawing itself.
    return Image(image_id=spec_sha256(spec), load=lambda: files.data_url(encode(draw_chat(spec, files_of))))


# --- Every placed meme is rated by every judge


def to_judge(placements: Sequence[Placement], profile: Profile) -> list[Placement]:
    """The placements that are judged: all, or `judge_sample` of each dialogue and strategy.

    Turns are drawn once for a dialogue, so strategies that share their turns keep sharing them. By hand the
    memes may be those of a run with more turns.
    """
    most = profile.evaluation.judge_sample
    if most is None or not placements:
        return list(placements)
    longest = max([profile.dialogue.longest, *(placed.turn for placed in placements)])
    lots = {
        name: np.argsort(statistics.rng(profile.seed, "judge sample", name).permutation(longest - 1))
        for name in {placed.dialogue_id for placed in placements}
    }
    drawn = pd.DataFrame((p.dialogue_id, p.strategy, lots[p.dialogue_id][p.turn - 2]) for p in placements)
    first = drawn.groupby([0, 1])[2].rank() <= most
    return [placed for placed, chosen in zip(placements, first, strict=True) if chosen]


def rate(
    run: Run, placements: Sequence[Placement], dialogues: Mapping[str, Dialogue], memes: Mapping[str, Meme]
) -> list[Rating]:
    """Rate with every judge of the profile and save the ratings."""
    ratings: list[Rating] = []
    names: list[str] = []
    for number in range(len(run.profile.evaluation.judges)):
        with open_judge(run, number, names) as judge:
            ratings += rate_with(judge, placements, dialogues, memes)
            names.append(judge.name)
    run.save(ratings, Rating)  # what has no recorded answer is counted from there
    return ratings


def rate_with(
    judge: Judge,
    placements: Sequence[Placement],
    dialogues: Mapping[str, Dialogue],
    memes: Mapping[str, Meme],
) -> list[Rating]:
    """Ratings by one judge; what several strategies share is asked about once.

    A rating judge of unit `dialogue` or `chat` gets one call a dialogue, strategy and length. All others are
    asked about one meme, in the chat up to u_t: what comes later cannot make it fit, and it serves every
    length.
    """
    profile = judge.run.profile
    unit = "meme" if judge.kind == "yes_no" else profile.evaluation.judge_unit
    calls: list[tuple[tuple, list[Placement], int]] = []  # key, memes shown, turns shown
    if unit == "meme":
        calls = [((p.dialogue_id, p.turn, p.meme_id), [p], p.turn) for p in to_judge(placements, profile)]
    else:
        chats = defaultdict(list)
        for placed in sorted(placements, key=lambda placed: placed.turn):
            chats[placed.strategy, placed.dialogue_id].append(placed)
        for (strategy, name), mine in chats.items():
            for n in tables.lengths_of(dialogues[name], profile):
                if shown := [placed for placed in mine if placed.turn <= n]:
                    calls.append(((strategy, name, n), shown, n))
    excerpts = {
        key: Excerpt(dialogues[shown[0].dialogue_id], {p.turn: memes[p.meme_id] for p in shown}, n)
        for key, shown, n in sorted(calls, key=lambda call: call[0])
    }
    answers = ask(excerpts, judge, list(dialogues.values()))
    if answers and all(isinstance(a, str) and not a.startswith(UNRECORDED) for a in answers.values()):
        first = next(iter(answers.values()))
        print(f"judge {judge.name} gave no usable answer; the first: {first}")
    of_judge = {
        "judge": judge.name, "judge_unit": unit, "source": judge.chat.backend.source,
        "profile": profile.name, "seed": profile.seed,
    }  # fmt: skip
    ratings = []
    for key, shown, n in calls:
        of_judge["n_turns"] = profile.dialogue.longest if judge.kind == "yes_no" else n
        for place, placed in enumerate(shown):
            answer = answers[key]
            scores = {"unscored": answer} if isinstance(answer, str) else answer[place]
            ratings.append(Rating(**placed.model_dump(include=consistency.PLACE), **of_judge, **scores))
    return ratings


# --- Study 1: does each judge tell memes that fit from those that do not, and is it steady?
# Judges are asked about memes that fit, random ones and hard negatives, drawn by seed and graded by a large
# language model, not by people.


KINDS = ("fitting", "random", "hard negative")
CLEARLY_FITS = 1.5
"""Mean grade from which a meme stands for what a judge should like."""
ITEM = ["kind", "dialogue_id", "turn", "meme_id"]
"""Columns of an item: a meme at a turn, and what the ground truth says of it."""


def draw_items(data: Turns) -> pd.DataFrame:
    """Three items, in the order of `KINDS`, at each of up to `judge_checks` turns that have all three.

    *Fitting*: a mean grade of `CLEARLY_FITS` or more. *Random*: uniform over the library without memes that
    fit there; it may be ungraded. *Hard negative*: clearly fits another turn of the same dialogue and got 0
    from every grader here. Every dialogue gives one turn before any gives a second, and none more than two.
    Without ground truth there are no items. Columns are `ITEM`.
    """
    wanted = data.profile.evaluation.judge_checks
    if not wanted or not data.split.truth.grades:
        return pd.DataFrame(columns=ITEM)
    # A comparison with nan is false: what nobody graded neither fits nor is a hard negative.
    clearly, refused = data.grades >= CLEARLY_FITS, data.grades == 0
    somewhere = np.zeros_like(clearly)  # at any turn: what clearly fits this one was not refused here
    for rows in data.rows_of.values():
        somewhere[rows] = clearly[rows].any(axis=0)
    could = dict(zip(KINDS, (clearly, ~fits(data.grades), somewhere & refused), strict=True))
    able = np.all([memes.any(axis=1) for memes in could.values()], axis=0)
    chosen: list[tuple[int, float, int]] = []  # which of its dialogue's turns, a lot, the row
    for name, rows in data.rows_of.items():
        rng = statistics.rng(data.profile.seed, "judge items", name)
        drawn = rng.permutation(rows[able[rows]])[:2].tolist()
        lot = float(rng.random())
        chosen += [(place, lot, row) for place, row in enumerate(drawn)]
    items = []
    for row in sorted(row for _, _, row in sorted(chosen)[:wanted]):
        for kind, memes in could.items():
            rng = statistics.rng(data.profile.seed, "judge item", kind, *data.keys[row])
            items.append((kind, *data.keys[row], data.meme_ids[rng.choice(np.flatnonzero(memes[row]))]))
    return pd.DataFrame(items, columns=ITEM)


P_YES, CENTRED, RATING, CONSISTENCY, RETRIEVAL = "p(yes)", "centred", "rating", "consistency", "retrieval"
"""Readings: what a score is. A yes/no judge has two; retrieval is no judge but a yardstick."""
SCORES = ["judge", "reading", *ITEM, "score"]


def ask_all(run: Run, data: Turns) -> pd.DataFrame:
    """Put the drawn items before every judge of the profile, and before the scorers that ask nobody.

    These are consistency with u_t and u_t+1 (Eq. 26), and as a yardstick the score T that ranks memes. A row
    a judge, reading and item (columns `SCORES`); nan where there is no score.
    """
    split, items, names = data.split, draw_items(data), []
    scores: dict[tuple[str, str], Sequence[float]] = {}  # by judge and reading, one for each item
    if items.empty:
        return pd.DataFrame(columns=SCORES)
    places = list(zip(items["dialogue_id"], items["turn"], items["meme_id"], strict=True))
    dialogues = {dialogue.dialogue_id: dialogue for dialogue in split.dialogues}
    # Each place once: a meme may be random and a hard negative.
    excerpts = {
        (name, turn, meme): Excerpt(dialogues[name], {turn: split.memes[meme]}, turn)
        for name, turn, meme in sorted(set(places))
    }
    for number in range(len(run.profile.evaluation.judges)):
        with open_judge(run, number, names) as judge:
            names.append(judge.name)
            answers = ask(excerpts, judge, split.dialogues)
            mine = pd.DataFrame([{} if isinstance(answers[p], str) else answers[p][0] for p in places])
            readings = {P_YES: "raw", CENTRED: "overall"} if judge.kind == "yes_no" else {RATING: "overall"}
            for reading, column in readings.items():
                scores[judge.name, reading] = mine.get(column, np.nan)
    turns = {(d.dialogue_id, u.turn): u.text for d in split.dialogues for u in d.turns}
    scorer = consistency.open_scorer(run)
    for later, text in enumerate(("u_t", "u_t+1")):
        pairs = [(meme, turns.get((name, turn + later), "")) for name, turn, meme in places]
        scores[f"{scorer.name} {text}", CONSISTENCY] = consistency.score_pairs(pairs, split.memes, scorer)
    rows = [data.row[name, turn] for name, turn, _ in places]
    columns = [data.column[meme] for *_, meme in places]
    for encoder in data.encoders:
        terms = data.terms(encoder, data.profile.retrieval.centring)
        weights = np.asarray(data.profile.retrieval.weights)
        scores[f"T under {encoder}", RETRIEVAL] = weights @ terms[:, rows, columns]
    told = [items.assign(judge=who, reading=how, score=given) for (who, how), given in scores.items()]
    return pd.concat(told, ignore_index=True)[SCORES]


TRUST = ("judge", "reading", "turns", "dialogues", "unscored", "AUC random", "AUC hard", "verdict")
TRUSTED, TOPIC, NO_USE, REVERSED, UNTOLD = "trust", "topic only", "no", "reversed", "not told"
YARDSTICK = "yardstick"


def trust(scores: pd.DataFrame) -> pd.DataFrame:
    """A row a judge and reading: how far each deserves trust (columns `TRUST`); empty without answers."""
    rows = []
    for (judge, reading), group in scores.groupby(["judge", "reading"], sort=False):
        scored = group.dropna(subset=["score"]).groupby("kind")
        of_kind = {kind: list(zip(part["dialogue_id"], part["score"], strict=True)) for kind, part in scored}
        random, hard = (
            statistics.cluster_auc(of_kind.get("fitting", []), of_kind.get(kind, [])) for kind in KINDS[1:]
        )
        turns, dialogues = len(group.groupby(["dialogue_id", "turn"])), group["dialogue_id"].nunique()
        unscored = int(group["score"].isna().sum())
        told = verdict(reading, random, hard)
        rows.append((judge, reading, turns, dialogues, unscored, random, hard, told))
    return pd.DataFrame(rows, columns=list(TRUST))


def verdict(reading: str, random: Estimate, hard: Estimate) -> str:
    """How far a judge deserves trust, by the rule of the plan, from its AUCs against random and hard memes.

    Without an interval (too few dialogues, or no answers) nothing is told, save of a judge that scores all
    alike. One that clearly prefers random memes is told from one that cannot tell.
    """
    if reading == RETRIEVAL:
        return YARDSTICK
    if not np.isfinite(random.low) and random.value != 0.5:
        return UNTOLD
    if random.high < 0.5:
        return REVERSED
    if not random.low > 0.5:
        return NO_USE
    return TRUSTED if hard.low > 0.5 else TOPIC
