"""Retrieve, then let a model choose: strategy `reranked` (notebook 04; ours, the papers stop before it).

At a turn a model reads the chat so far, with the memes that it chose before, and the K best memes of the
paper's score (Eq. 24) in an order drawn by seed. It answers with the number of one of them, or with 0 for
none. Of a meme it reads caption and picture note (or annotation, or sees the picture), never S-.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from memecmd_utils import retrieval, statistics
from memecmd_utils.files import data_url, paths
from memecmd_utils.grades import EXAMPLE, UNTOUCHED, Split
from memecmd_utils.llm import chat as llm_chat
from memecmd_utils.llm import prompts, replies
from memecmd_utils.llm.authored import AuthoredBackend, MissingText, texts
from memecmd_utils.llm.chat import Chat, Progress
from memecmd_utils.llm.messages import Image, Message, Reply, Request, Sampling, UnusableReply
from memecmd_utils.retrieval import RERANKED, Gate, MemeIndex, ScoredDialogue
from memecmd_utils.runs import Run
from memecmd_utils.schemas import Annotation, Choice, ChoiceReply, Meme
from memecmd_utils.settings import Profile

SMALL = "reranked, small model"
"""The small local model, which chooses beside the authored choices of the example."""
PROMPTS = ("choice_system", "choice", "choice_option")
HISTORY_TURNS, MAX_CHARS = 17, 500
"""Turns before t that the model reads, as many as at the last turn of the paper's dialogues, and characters
of one of them: chats from elsewhere may be longer."""
FIRST = 6
"""Dialogues of each kind of the example, by id, on which the small local model chose."""
SPARE = 100
"""Memes that are ranked beside the K, to stand in for those that the chat has had: no meme comes twice."""


class RankedChat(NamedTuple):
    """A chat, and the memes that come into question at its turns.

    `lines`: speaker and text of turns 1, 2, ...; `turns` are the numbers of those that may get a meme, and
    `memes` [turns, n] their ranking, as positions in the index (-1: none). `gate_scores` [turns] are what the
    gate of Eq. 23 compares, where it has a say.
    """

    name: str
    lines: Sequence[tuple[str, str]]
    turns: Sequence[int]
    memes: np.ndarray
    gate_scores: np.ndarray
    gate: Gate | None = None


@dataclass(frozen=True)
class Chooser:
    """Asks a model to choose, for memes of one library; `image` (meme -> data URL) is for one that sees."""

    chat: Chat
    profile: Profile
    index: MemeIndex
    memes: Mapping[str, Meme]
    annotations: Sequence[Annotation]
    image: Callable[[Meme], str] | None = None

    @cached_property
    def said(self) -> dict[str, Annotation]:
        """Annotations by meme."""
        return {annotation.meme_id: annotation for annotation in self.annotations}

    def request(self, ranked: RankedChat, row: int, sent: Mapping[int, str]) -> Request:
        """What is asked at `ranked.turns[row]`; `sent` are the memes of the turns before it."""
        knobs, turn, name = self.profile.retrieval, ranked.turns[row], ranked.name
        found = [self.index.meme_ids[meme] for meme in ranked.memes[row].tolist() if meme >= 0]
        best = [meme for meme in found if meme not in sent.values()][: knobs.rerank_k]
        rng = statistics.rng(self.profile.seed, "order of candidates", name, turn)
        shown = [best[place] for place in rng.permutation(len(best))]
        lines = []
        for number, (speaker, text) in enumerate(ranked.lines[: turn - 1], start=1):
            meme = self.memes[sent[number]] if number in sent else None
            mark = prompts.render("sent_meme", caption=meme.text or meme.picture_note) if meme else ""
            lines.append(f"{speaker}：{mark}{' '.join(text.split())[:MAX_CHARS]}")
        may_abstain = knobs.rerank_abstains
        asked = prompts.render(
            "choice", fence=prompts.fence, history="\n".join(lines[-HISTORY_TURNS:]),
            options="\n".join(self._option(place, meme) for place, meme in enumerate(shown, start=1)),
            speaker=ranked.lines[turn - 1][0], turns=turn - 1, sent=len(sent),
            allowed=knobs.wanted_rate * (turn - 1), may_abstain=may_abstain,
        )  # fmt: skip
        system = prompts.render("choice_system", rate=knobs.wanted_rate, may_abstain=may_abstain)
        seen = [self.memes[meme] for meme in shown] if self.image else []
        images = [Image(image_id=meme.sha256, load=lambda meme=meme: self.image(meme)) for meme in seen]
        return Request(
            task="choice",
            subject=f"{name}/{turn}",
            messages=[Message(role="system", text=system), Message(role="user", text=asked, images=images)],
            sampling=Sampling(temperature=0.0, max_tokens=200),
            seed=self.profile.seed,
            reply_schema=ChoiceReply,
            options=shown,
        )

    def _option(self, number: int, meme_id: str) -> str:
        meme, said = self.memes[meme_id], self.said[meme_id]
        return prompts.render(
            "choice_option", number=number, by_annotation=self.profile.retrieval.rerank_by == "annotation",
            seen=self.image is not None, text=meme.text, picture=meme.picture_note,
            s_plus=said.s_plus, emotion=said.emotion, motivation=said.motivation,
        )  # fmt: skip

    def choose(self, chats: Sequence[RankedChat]) -> list[Choice]:
        """The choices at all turns of all chats: chats side by side, each turn after the one before it."""

        async def one(ranked: RankedChat) -> list[Choice]:
            sent: dict[int, str] = {}
            made = []
            for row, turn in enumerate(ranked.turns):
                made.append(await self._choose_at(ranked, row, sent))
                if made[-1].meme_id:
                    sent[turn] = made[-1].meme_id
                bar.update()
            return made

        with Progress(self.chat, sum(len(ranked.turns) for ranked in chats), "choices", "turn") as bar:
            made = llm_chat.run(self.chat.side_by_side(one(ranked) for ranked in chats))
        return [choice for of_chat in made for choice in of_chat]

    async def _choose_at(self, ranked: RankedChat, row: int, sent: Mapping[int, str]) -> Choice:
        """The choice at a turn; where the gate stays shut, or nothing is left to choose, nobody is asked."""
        turn, gate, none = ranked.turns[row], ranked.gate, {"meme_id": "", "reason": "", "place": 0}
        about = {
            "dialogue_id": ranked.name, "turn": turn, "profile": self.profile.name,
            "seed": self.profile.seed, "prompt_sha256": prompts.prompt_sha256(*PROMPTS),
        }  # fmt: skip
        since = turn - max(sent) if sent else np.inf
        is_open = gate is None or ranked.gate_scores[row] > gate.theta0 + gate.rise(since)
        asked = self.request(ranked, row, sent)
        if not is_open or not asked.options:
            return Choice(source="computed", shown=0, **none, **about)
        answer = await self.chat.ask(asked, lambda reply: read_choice(reply, asked, self.profile))
        if answer.outcome == "rejected" and answer.source == "authored" and self.chat.strict:
            raise MissingText(answer.reason)
        about |= {"source": answer.source, "shown": len(asked.options)}
        if answer.value is None:
            return Choice(unscored=f"{answer.outcome}: {answer.reason}", **none, **about)
        number = answer.value.number
        chosen = asked.options[number - 1] if number else ""
        return Choice(meme_id=chosen, reason=answer.value.reason, place=number, **about)


def read_choice(reply: Reply, asked: Request, profile: Profile) -> ChoiceReply:
    """The choice in a reply; `UnusableReply` for a number that is none of the candidates'."""
    value = replies.structured(reply, ChoiceReply)
    lowest, highest = int(not profile.retrieval.rerank_abstains), len(asked.options)
    if not lowest <= value.number <= highest:
        raise UnusableReply(f"number 要在 {lowest} 到 {highest} 之间")
    return value


def rank_chats(scored: Sequence[ScoredDialogue], index: MemeIndex, profile: Profile) -> list[RankedChat]:
    """Dialogues with the memes that come into question: the best of the paper's score at every turn."""
    knobs = profile.retrieval
    gates = retrieval.traces(scored, retrieval.calibrate(scored, profile)) if knobs.rerank_memory else {}
    chats = []
    for item in scored:
        dialogue = item.dialogue
        names = {"A": dialogue.name_a or "A", "B": dialogue.name_b or "B"}
        lines = [(names[turn.speaker], turn.text) for turn in dialogue.turns]
        found = retrieval.top_k(index, item.queries, knobs.weights, depth(profile))
        calibration, gate_scores, _ = gates.get(dialogue.dialogue_id, (None, item.top1, None))
        gate = calibration and calibration.gate
        chats.append(RankedChat(dialogue.dialogue_id, lines, item.turns, found.memes, gate_scores, gate))
    return chats


def choose_memes(
    run: Run,
    scored: Sequence[ScoredDialogue],
    index: MemeIndex,
    memes: Mapping[str, Meme],
    annotations: Sequence[Annotation],
) -> list[Choice]:
    """A choice for every turn of a run's dialogues; none where the profile has no strategy `reranked`.

    Says how many turns have no usable answer, which then get no meme.
    """
    if RERANKED not in run.profile.retrieval.strategies:
        return []
    with run.chat("chooser", "choice") as chat:
        chooser = Chooser(chat, run.profile, index, memes, annotations, pictures(run, run))
        made = chooser.choose(rank_chats(scored, index, run.profile))
    if lacking := [choice.unscored for choice in made if choice.unscored]:
        print(f"{len(lacking)} of {len(made)} turns get no meme by {RERANKED}: {lacking[0]}")
    return made


def pictures(run: Run, asking: Run) -> Callable[[Meme], str] | None:
    """What gives the picture of a run's meme as a data URL, where the model of `asking` sees."""
    if asking.profile.models.llm != "openai" or not asking.endpoint("chooser").vision:
        return None
    return lambda meme: data_url(run.read(meme.file).read_bytes())


def depth(profile: Profile) -> int:
    """How many memes of a turn are ranked."""
    return profile.retrieval.rerank_k + SPARE


def choices_of(run: Run, split: Split) -> dict[str, list[Choice]]:
    """The choices on a split by who chose: those of the run, and on untouched tests the authored ones.

    Beside authored ones stand those of the small local model, as far as they are on record: of all turns of
    the last test, and of the first dialogues of the example (`RERANKING_PLAN.md`).
    """
    profile, own = run.profile, None if split.name not in UNTOUCHED else paths.example / split.name
    found = {RERANKED: run.load(Choice)} if not own and RERANKED in profile.retrieval.strategies else {}
    if profile.models.llm == "authored" and split.name in (EXAMPLE, *UNTOUCHED):
        encode = replace(run, profile=profile.replace(mode="auto")).embedder().encode
        index = retrieval.index_library(split.annotations, encode, profile)
        scored = retrieval.score_dialogues(split.dialogues, index, encode, profile)
        chats = rank_chats(scored, index, profile)

        def by(chat: Chat, chats: Sequence[RankedChat]) -> list[Choice]:
            return Chooser(chat, profile, index, split.memes, split.annotations).choose(chats)

        if own:
            found[RERANKED] = by(Chat(AuthoredBackend(texts(own)), strict=run.strict), chats)
        if split.name != UNTOUCHED[0]:
            by_id = sorted(chats, key=lambda chat: chat.name)
            kinds = [[c for c in by_id if c.name.startswith(kind)] for kind in ("news", "role")]
            first = [chat for of_kind in kinds for chat in of_kind[: None if own else FIRST]]
            small = replace(run, profile=profile.replace(llm="local", mode="recorded"))
            with small.chat("chooser", "choice_small") as chat:
                found[SMALL] = by(chat, first)
    return {who: choices for who, choices in found.items() if any(not c.unscored for c in choices)}
