"""Retrieve, then let a model choose: strategy `reranked` (notebook 04; ours, the papers stop before it).

At a turn a model reads the chat so far, with the memes that it chose before, and the K best memes of the
paper's score (Eq. 24) in an order drawn by seed. It answers with the number of one of them, or with 0 for
none. Of a meme it reads caption and picture note (or sees the picture, in a sheet of all), never S-.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from memecmd_utils import drawing, retrieval, statistics
from memecmd_utils.dialogue import HISTORY_TURNS, Context
from memecmd_utils.files import data_url, paths
from memecmd_utils.llm import chat as llm_chat
from memecmd_utils.llm import prompts, replies
from memecmd_utils.llm.authored import AuthoredBackend, choices, prompt_sha256
from memecmd_utils.llm.chat import Chat, progress
from memecmd_utils.llm.recordings import RecordingMiss
from memecmd_utils.llm.types import Image, Reply, Request, Sampling, UnusableReply
from memecmd_utils.retrieval import RERANKED, MemeIndex, ScoredDialogue
from memecmd_utils.runs import Run
from memecmd_utils.schemas import Choice, ChoiceReply, Meme, Scenario
from memecmd_utils.settings import Profile
from memecmd_utils.splits import UNTOUCHED, Split

SMALL = "reranked, small model"
"""The small local model, which chooses beside the authored choices of the example."""
PROMPTS = ("choice_system", "choice", "choice_option")
MAX_CHARS = 500
"""Characters of a turn that the model reads: chats from elsewhere may have longer ones."""
CAPTION_CHARS = 120
"""Characters of what is known of a meme or of two people: it comes from strangers as well."""
SLACK = 1
"""Memes above or below the expected number from which on the model is told that there are many or few."""
FRIENDS = "朋友"
"""What the two speakers of a chat about news are (Eq. 7)."""
SPARE = 100
"""Memes that are ranked beside the K, to stand in for those that the chat has had: no meme comes twice."""

PictureFile = Callable[[Meme], Path]
"""The file of a meme's picture, for a model that sees."""


Ranked = tuple[Context, Sequence[str]]
"""A place in a chat, and the ids of the memes that come into question there, the best first."""


def choice_request(
    context: Context,
    best: Sequence[str],
    sent: Mapping[int, str],
    memes: Mapping[str, Meme],
    profile: Profile,
    picture: PictureFile | None = None,
) -> Request:
    """What a model is asked at a place where the memes `best` come into question, the best first.

    `sent` are the memes of the turns before it, by turn; they do not come again. Names, texts and captions
    come from anywhere: they stand inside fences, each in one line and cut. A model that sees gets the
    candidates as one picture (`sheet`).
    """
    knobs, turn, seen = profile.retrieval, context.turn, picture is not None
    candidates = [meme for meme in best if meme not in sent.values()][: knobs.rerank_k]
    shown = [memes[candidates[at]] for at in _shuffled(profile.seed, context.chat, turn, len(candidates))]
    lines, said = [], context.lines[-HISTORY_TURNS:]
    for number, (name, text) in enumerate(said, start=turn - len(said)):
        mark = prompts.render("sent_meme", **_words_of(memes[sent[number]])) if number in sent else ""
        lines.append(
            f"{prompts.one_line(name, prompts.NAME_CHARS)}：{mark}{prompts.one_line(text, MAX_CHARS)}"
        )
    options = [
        prompts.render("choice_option", number=number, seen=seen, **_words_of(meme))
        for number, meme in enumerate(shown, start=1)
    ]
    asked = prompts.render(
        "choice", relation=prompts.one_line(context.relation, CAPTION_CHARS),
        speaker=prompts.one_line(context.next_speaker, prompts.NAME_CHARS), lines=lines, options=options,
        seen=seen, turns=turn - 1, sent=len(sent), gap=turn - max(sent, default=0), rate=knobs.wanted_rate,
        slack=SLACK,
    )  # fmt: skip
    system = prompts.render("choice_system", rate=knobs.wanted_rate, seen=seen)
    return Request(
        task="choice",
        subject=f"{context.chat}/{turn}",
        messages=prompts.messages(asked, system, images=[sheet(shown, picture)] if picture else []),
        sampling=Sampling(temperature=0.0, max_tokens=200),
        seed=profile.seed,
        reply_schema=ChoiceReply,
        options=[meme.meme_id for meme in shown],
    )


def rank_of(choice: Choice, chat: str) -> int:
    """Where the chosen meme stood, from 1 on, among the candidates before `choice_request` shuffled them."""
    return int(_shuffled(choice.seed or 0, chat, choice.turn, len(choice.options))[choice.place - 1]) + 1


def _shuffled(seed: int, chat: str, turn: int, n: int) -> np.ndarray:
    """The order in which `n` candidates, the best first, are shown at a turn."""
    return statistics.rng(seed, "order of candidates", chat, turn).permutation(n)


def _words_of(meme: Meme) -> dict[str, str]:
    """What the prompts say of a meme: the text on it, and what is known of the picture."""
    cut = (prompts.one_line(text, CAPTION_CHARS) for text in (meme.text, meme.picture_note))
    return dict(zip(("text", "picture"), cut, strict=True))


def sheet(shown: Sequence[Meme], picture: PictureFile) -> Image:
    """The candidates, numbered from 1, on one contact sheet, which is drawn only when the request is sent.

    Its id hashes the memes in their order.
    """
    told = [f"sheet {drawing.SHEET_VERSION} from 1", *(meme.sha256 for meme in shown)]
    return Image(
        image_id=hashlib.sha256("\n".join(told).encode()).hexdigest(),
        load=lambda: data_url(drawing.encode(drawing.draw_sheet([picture(meme) for meme in shown]))),
    )


def read_choice(reply: Reply, asked: Request) -> ChoiceReply:
    """The choice in a reply; `UnusableReply` for a number that is none of the candidates'."""
    value, highest = replies.structured(reply, ChoiceReply), len(asked.options)
    if not 0 <= value.number <= highest:
        raise UnusableReply("number out of range", highest)
    return value


def ask_model(
    chats: Sequence[Sequence[Ranked]],
    chat: Chat,
    memes: Mapping[str, Meme],
    profile: Profile,
    picture: PictureFile | None = None,
) -> list[Choice]:
    """A model's choices at all places of chats: chats side by side, each place after the one before it."""

    async def choices_in(ranked: Sequence[Ranked]) -> list[Choice]:
        sent: dict[int, str] = {}
        made = []
        for context, best in ranked:
            asked = choice_request(context, best, sent, memes, profile, picture)
            made.append(await choice_at(context, asked, chat, profile))
            if made[-1].meme_id:
                sent[context.turn] = made[-1].meme_id
            bar()
        return made

    with progress(chat, sum(map(len, chats)), "choices", "turn") as bar:
        made = llm_chat.run(chat.side_by_side(map(choices_in, chats)))
    return [choice for of_chat in made for choice in of_chat]


async def choice_at(context: Context, asked: Request, chat: Chat, profile: Profile) -> Choice:
    """The choice at a place; where nothing is left to choose nobody is asked."""
    none = {"meme_id": "", "reason": "", "place": 0}
    about = {"dialogue_id": context.chat, "turn": context.turn, "profile": profile.name, "seed": profile.seed}
    if not asked.options:
        return Choice(source="computed", shown=0, **none, **about)
    answer = await chat.ask(asked, lambda reply: read_choice(reply, asked))
    if answer.outcome == "rejected" and answer.source == "authored" and chat.strict:
        raise RecordingMiss(answer.reason)
    about |= {"source": answer.source, "shown": len(asked.options), "options": list(asked.options)}
    about["prompt_sha256"] = prompt_sha256(answer.source, *PROMPTS)
    if answer.value is None:
        return Choice(unscored=f"{answer.outcome}: {answer.reason}", **none, **about)
    number = answer.value.number
    chosen = asked.options[number - 1] if number else ""
    return Choice(meme_id=chosen, reason=answer.value.reason, place=number, **about)


def rank_chats(
    scored: Sequence[ScoredDialogue],
    index: MemeIndex,
    profile: Profile,
    scenarios: Sequence[Scenario] = (),
) -> list[list[Ranked]]:
    """Of every dialogue the places that may get a meme, with the best memes of the paper's score at each.

    `scenarios` are those that dialogues of roles started from, which say what the speakers are to each other.
    """
    relations = {scenario.scenario_id: scenario.relationship for scenario in scenarios}
    queries = np.concatenate([item.queries for item in scored])
    ranking = retrieval.top_k(index, queries, profile.retrieval.weights, profile.retrieval.rerank_k + SPARE)
    best = ([index.meme_ids[meme] for meme in row if meme >= 0] for row in ranking.memes.tolist())
    chats = []
    for item in scored:
        dialogue, lines = item.dialogue, item.dialogue.lines
        relation = FRIENDS if dialogue.kind == "news" else relations.get(dialogue.ref, "")
        places = (Context.before(dialogue.dialogue_id, lines, turn, relation) for turn in item.turns)
        chats.append([(place, next(best)) for place in places])
    return chats


def choose_memes(
    run: Run, scored: Sequence[ScoredDialogue], index: MemeIndex, memes: Mapping[str, Meme]
) -> list[Choice]:
    """A choice for every turn of a run's dialogues; none where the profile has no strategy `reranked`.

    Says how many turns have no usable answer, which then get no meme.
    """
    if RERANKED not in run.profile.retrieval.strategies:
        return []
    ranked = rank_chats(scored, index, run.profile, run.load(Scenario))
    with run.chat("chooser", "choice", at_once=1) as chat:
        made = ask_model(ranked, chat, memes, run.profile, pictures(run, run))
    if lacking := unusable(made):
        print(f"{RERANKED}: {lacking}; their turns get no meme")
    return made


def unusable(made: Sequence[Choice]) -> str:
    """How many of some choices have no usable answer, and why the first has none; empty where all have."""
    lacking = [choice.unscored for choice in made if choice.unscored]
    return f"{len(lacking)} of {len(made)} choices without a usable answer ({lacking[0]})" if lacking else ""


def pictures(run: Run, asking: Run) -> PictureFile | None:
    """What finds the picture of a run's meme, where the model of `asking` sees."""
    if asking.profile.models.llm != "openai" or not asking.endpoint("chooser").vision:
        return None
    return lambda meme: run.read(meme.file)


def choices_of(run: Run, split: Split) -> dict[str, list[Choice]]:
    """The choices on a graded split by who chose: those of the run, and on untouched tests the authored ones.

    Beside authored ones stand those that the small local model made under the same prompts: at all turns of
    the last test, and of the first dialogues of the example (`RERANKING_PLAN.md`). Where it has no usable
    answer its table names no meme.
    """
    profile, own = run.profile, split.name not in UNTOUCHED
    by_chooser = {RERANKED: run.load(Choice)} if own and RERANKED in profile.retrieval.strategies else {}
    if profile.models.llm == "authored":
        folder = paths.example if own else paths.example / split.name
        encode = replace(run, profile=profile.replace(mode="auto")).embedder().encode
        index = retrieval.index_library(split.annotations, encode, profile)
        scored = retrieval.score_dialogues(split.dialogues, index, encode, profile)
        chats = rank_chats(scored, index, profile)
        if not own:
            authored = Chat(AuthoredBackend(choices(folder / "choices.jsonl")), strict=run.strict)
            by_chooser[RERANKED] = ask_model(chats, authored, split.memes, profile)
        made = choices(folder / "choices_small.jsonl")
        names = {subject.rpartition("/")[0] for _, subject in made}
        small = Chat(AuthoredBackend(made), strict=False)
        asked = [[place for place in chat if place[0].chat in names] for chat in chats]
        by_chooser[SMALL] = ask_model(asked, small, split.memes, profile)
    return {who: choices for who, choices in by_chooser.items() if any(not c.unscored for c in choices)}
