"""Retrieve, then let a model choose: strategy `reranked` (notebook 04; ours, the papers stop before it).

At a turn a model reads the chat so far, with the memes that it chose before, and the K best memes of the
paper's score (Eq. 24) in an order drawn by seed. It answers with the number of one of them, or with 0 for
none. Of a meme it reads caption and picture note (or sees the picture, in a sheet of all), never S-.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from memecmd_utils import drawing, retrieval, statistics
from memecmd_utils.files import data_url, paths
from memecmd_utils.llm import chat as llm_chat
from memecmd_utils.llm import prompts, replies
from memecmd_utils.llm.authored import AuthoredBackend, choices, prompt_sha256
from memecmd_utils.llm.chat import Chat, progress
from memecmd_utils.llm.recordings import RecordingMiss
from memecmd_utils.llm.types import Image, Message, Reply, Request, Sampling, UnusableReply
from memecmd_utils.retrieval import RERANKED, MemeIndex, ScoredDialogue
from memecmd_utils.runs import Run
from memecmd_utils.schemas import Choice, ChoiceReply, Meme, Scenario
from memecmd_utils.settings import Profile
from memecmd_utils.splits import UNTOUCHED, Split

SMALL = "reranked, small model"
"""The small local model, which chooses beside the authored choices of the example."""
PROMPTS = ("choice_system", "choice", "choice_option")
HISTORY_TURNS, MAX_CHARS = 17, 500
"""Turns before t that the model reads, as many as at the last turn of the paper's dialogues, and characters
of one of them: chats from elsewhere may be longer."""
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


class RankedChat(NamedTuple):
    """A chat, and the memes that come into question at its turns.

    `lines`: speaker and text of turns 1, 2, ...; `turns` are the numbers of those that may get a meme, and
    `memes` the ids of the memes at each of them, the best first. `relation` says what the speakers are to
    each other, where that is known.
    """

    name: str
    lines: Sequence[tuple[str, str]]
    turns: Sequence[int]
    memes: Sequence[Sequence[str]]
    relation: str = ""


def choice_request(
    ranked: RankedChat,
    row: int,
    sent: Mapping[int, str],
    memes: Mapping[str, Meme],
    profile: Profile,
    picture: PictureFile | None = None,
) -> Request:
    """What a model is asked at `ranked.turns[row]`; `sent` are the memes of the turns before it, by turn.

    Names, texts and captions come from anywhere: they stand inside fences, each in one line and cut. A model
    that sees gets the candidates as one picture (`sheets`).
    """
    knobs, turn, name = profile.retrieval, ranked.turns[row], ranked.name
    best = [meme for meme in ranked.memes[row] if meme not in sent.values()][: knobs.rerank_k]
    rng = statistics.rng(profile.seed, "order of candidates", name, turn)
    shown = [memes[best[place]] for place in rng.permutation(len(best))]
    lines = []
    for number in range(max(1, turn - HISTORY_TURNS), turn):
        speaker, text = ranked.lines[number - 1]
        mark = prompts.render("sent_meme", **_words_of(memes[sent[number]])) if number in sent else ""
        lines.append(
            f"{prompts.one_line(speaker, prompts.NAME_CHARS)}：{mark}{prompts.one_line(text, MAX_CHARS)}"
        )
    seen = picture is not None
    options = [
        prompts.render("choice_option", number=number, seen=seen, **_words_of(meme))
        for number, meme in enumerate(shown, start=1)
    ]
    asked = prompts.render(
        "choice", fence=prompts.fence, relation=prompts.one_line(ranked.relation, CAPTION_CHARS),
        speaker=prompts.one_line(ranked.lines[turn - 1][0], prompts.NAME_CHARS), lines=lines, options=options,
        seen=seen, turns=turn - 1, sent=len(sent), gap=turn - max(sent, default=0), rate=knobs.wanted_rate,
        slack=SLACK,
    )  # fmt: skip
    system = prompts.render("choice_system", rate=knobs.wanted_rate, seen=seen)
    images = sheets(shown, picture) if picture else []
    return Request(
        task="choice",
        subject=f"{name}/{turn}",
        messages=[Message(role="system", text=system), Message(role="user", text=asked, images=images)],
        sampling=Sampling(temperature=0.0, max_tokens=200),
        seed=profile.seed,
        reply_schema=ChoiceReply,
        options=[meme.meme_id for meme in shown],
    )


def _words_of(meme: Meme) -> dict[str, str]:
    """What the prompts say of a meme: the text on it, and what is known of the picture."""
    cut = (prompts.one_line(text, CAPTION_CHARS) for text in (meme.text, meme.picture_note))
    return dict(zip(("text", "picture"), cut, strict=True))


def sheets(shown: Sequence[Meme], picture: PictureFile) -> list[Image]:
    """The candidates, numbered from 1, on one contact sheet, or on several of `drawing.SHEET_MEMES` each.

    The id of a sheet hashes its memes and their numbers. It is drawn only when the request is sent.
    """
    made = []
    for start in range(0, len(shown), drawing.SHEET_MEMES):
        part = shown[start : start + drawing.SHEET_MEMES]
        told = [f"sheet {drawing.SHEET_VERSION} from {start + 1}", *(meme.sha256 for meme in part)]

        def load(part: Sequence[Meme] = part, first: int = start + 1) -> str:
            return data_url(drawing.encode(drawing.draw_sheet([picture(meme) for meme in part], first)))

        made.append(Image(image_id=hashlib.sha256("\n".join(told).encode()).hexdigest(), load=load))
    return made


def read_choice(reply: Reply, asked: Request) -> ChoiceReply:
    """The choice in a reply; `UnusableReply` for a number that is none of the candidates'."""
    value, highest = replies.structured(reply, ChoiceReply), len(asked.options)
    if not 0 <= value.number <= highest:
        raise UnusableReply("number out of range", highest)
    return value


def ask_model(
    chats: Sequence[RankedChat],
    chat: Chat,
    memes: Mapping[str, Meme],
    profile: Profile,
    picture: PictureFile | None = None,
) -> list[Choice]:
    """A model's choices at all turns of all chats: chats side by side, each turn after the one before it."""

    async def choices_in(ranked: RankedChat) -> list[Choice]:
        sent: dict[int, str] = {}
        made = []
        for row, turn in enumerate(ranked.turns):
            asked = choice_request(ranked, row, sent, memes, profile, picture)
            made.append(await choice_at(ranked.name, turn, asked, chat, profile))
            if made[-1].meme_id:
                sent[turn] = made[-1].meme_id
            bar()
        return made

    with progress(chat, sum(len(ranked.turns) for ranked in chats), "choices", "turn") as bar:
        made = llm_chat.run(chat.side_by_side(choices_in(ranked) for ranked in chats))
    return [choice for of_chat in made for choice in of_chat]


async def choice_at(name: str, turn: int, asked: Request, chat: Chat, profile: Profile) -> Choice:
    """The choice at a turn; where nothing is left to choose nobody is asked."""
    none = {"meme_id": "", "reason": "", "place": 0}
    about = {"dialogue_id": name, "turn": turn, "profile": profile.name, "seed": profile.seed}
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


def best_ids(
    index: MemeIndex, queries: np.ndarray, weights: Sequence[float], profile: Profile
) -> list[list[str]]:
    """The memes that come into question at every turn by id, the best first; none where it is not ranked."""
    ranking = retrieval.top_k(index, queries, weights, profile.retrieval.rerank_k + SPARE)
    return [[index.meme_ids[meme] for meme in row if meme >= 0] for row in ranking.memes.tolist()]


def rank_chats(
    scored: Sequence[ScoredDialogue],
    index: MemeIndex,
    profile: Profile,
    scenarios: Sequence[Scenario] = (),
) -> list[RankedChat]:
    """Dialogues with the memes that come into question: the best of the paper's score at every turn.

    `scenarios` are those that dialogues of roles started from, which say what the speakers are to each other.
    """
    relations = {scenario.scenario_id: scenario.relationship for scenario in scenarios}
    chats, start = [], 0
    queries = np.concatenate([item.queries for item in scored])
    best = best_ids(index, queries, profile.retrieval.weights, profile)
    for item in scored:
        dialogue = item.dialogue
        names = {"A": dialogue.name_a or "A", "B": dialogue.name_b or "B"}
        lines = [(names[turn.speaker], turn.text) for turn in dialogue.turns]
        memes = best[start : (start := start + len(item.turns))]
        relation = FRIENDS if dialogue.kind == "news" else relations.get(dialogue.ref, "")
        chats.append(RankedChat(dialogue.dialogue_id, lines, item.turns, memes, relation))
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
        chats = {chat.name: chat for chat in rank_chats(scored, index, profile)}
        if not own:
            authored = Chat(AuthoredBackend(choices(folder / "choices.jsonl")), strict=run.strict)
            by_chooser[RERANKED] = ask_model([*chats.values()], authored, split.memes, profile)
        made = choices(folder / "choices_small.jsonl")
        names = {subject.rpartition("/")[0] for _, subject in made}
        small = Chat(AuthoredBackend(made), strict=False)
        asked = [chat for name, chat in chats.items() if name in names]
        by_chooser[SMALL] = ask_model(asked, small, split.memes, profile)
    return {who: choices for who, choices in by_chooser.items() if any(not c.unscored for c in choices)}
