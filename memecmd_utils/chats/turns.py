"""Chats from elsewhere: any number of speakers, several messages in a row, messages without text.

They are read as turns only where the pipeline needs turns; the summary agent of a run's own dialogues says
what a turn is about, (S, E, Psi) (Eq. 16).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

from memecmd_utils.dialogue import Context, answer_summary
from memecmd_utils.files import MemecmdError
from memecmd_utils.llm import chat as llm_chat
from memecmd_utils.llm import prompts
from memecmd_utils.llm.chat import Chat
from memecmd_utils.llm.types import Answer
from memecmd_utils.runs import Run
from memecmd_utils.schemas import Dialogue, Summary, SummaryReply, Turn
from memecmd_utils.settings import Profile

MAX_CHARS = 500
"""Characters of one turn that the summary agent reads; the rest of a longer one is cut off."""

ME, OTHER = "我", "对方"
"""Names of the two sides of a chat in which only a flag says who speaks."""


class ChatError(MemecmdError, ValueError):
    """A chat that cannot be read or written; the message names file, line and what is expected there."""


class Message(NamedTuple):
    """One message as it was sent. A note of the app has no speaker; a picture or a voice message no text."""

    speaker: str
    text: str
    summary: SummaryReply | None = None
    """(S, E, Psi) for the place before this message, where the file gives them."""
    chat: str = "chat"
    time: float | str | None = None
    """Seconds since 1970, or the words of a time that cannot be read."""
    place: Any = None
    """Where the message stands in its file."""
    account: str = ""
    """The sender's id, where the file has one."""


class SpokenTurn(NamedTuple):
    """What one person says until another one does."""

    turn: int
    """From 1, as t of the paper."""
    speaker: str
    text: str
    first: int
    """Position of its first message with words in the conversation."""
    summary: SummaryReply | None


@dataclass(frozen=True)
class Conversation:
    """One chat: its name and its messages in the order they were sent."""

    name: str
    messages: tuple[Message, ...]

    @cached_property
    def spoken(self) -> list[SpokenTurn]:
        """Its turns: messages of one speaker in a row, joined with a space.

        Messages without a speaker are passed over. One without text adds nothing, but what its sender's
        neighbour says before and after it stays two turns; so does a message that brings its own summary.
        """
        groups: list[list[tuple[int, Message]]] = []
        for place, message in enumerate(self.messages):
            if message.speaker:
                if not groups or message.speaker != groups[-1][-1][1].speaker or message.summary is not None:
                    groups.append([])
                groups[-1].append((place, message))
        turns: list[SpokenTurn] = []
        for group in groups:
            if words := {place: message.text.strip() for place, message in group if message.text.strip()}:
                first, text = group[0][1], " ".join(words.values())
                turns.append(SpokenTurn(len(turns) + 1, first.speaker, text, min(words), first.summary))
        return turns

    @cached_property
    def people(self) -> list[str]:
        """Who says something, in the order of their first turns."""
        return list(dict.fromkeys(turn.speaker for turn in self.spoken))


def dialogue_of(
    spoken: Sequence[SpokenTurn],
    about: Mapping[str, str],
    people: Sequence[str] = ("A", "B"),
    lacking: str | None = None,
) -> Dialogue:
    """Turns as the pipeline has them: whoever speaks first is A, everybody else B, named as `people`.

    `about`: id, kind, title, source and profile of the dialogue. A turn without a summary has an empty one
    that is unscored for the reason `lacking`; without a reason it has none.
    """
    turns, summaries, made = [], [], {"source": about["source"], "profile": about["profile"]}
    for said in spoken:
        speaker = "A" if said.speaker == spoken[0].speaker else "B"
        place = {"turn": said.turn, "speaker": speaker, **made}
        turns.append(Turn(text=said.text, **place))
        if said.turn > 1 and (said.summary is not None or lacking is not None):
            texts = {name: getattr(said.summary, name, "") for name in SummaryReply.model_fields}
            unscored = "" if said.summary is not None else lacking
            summaries.append(Summary(**texts, unscored=unscored, **place))
    names = {"ref": about["dialogue_id"], "name_a": people[0], "name_b": people[1]}
    return Dialogue(turns=turns, summaries=summaries, complete=True, **names, **about)


# --- the summary agent


def missing(chat: Conversation) -> Iterator[Context]:
    """What the summary agent reads for each turn t >= 2 whose file gives no summary."""
    lines = [(turn.speaker, turn.text) for turn in chat.spoken]
    for turn in chat.spoken[1:]:
        if turn.summary is None:
            yield Context.before(chat.name, lines, turn.turn)


def no_model(what: str, profile: str, library: str) -> ChatError:
    """Nobody may be asked: how to get a model, and keep the library of a run."""
    return ChatError(
        f"{what}, and profile {profile!r} has no model to ask: PROFILE=local RUN={library} after "
        f"`make local-llm`, or PROFILE=openai RUN={library} with a key"
    )


def summarise(contexts: Sequence[Context], run: Run, stage: str, library: str) -> list[Answer]:
    """Summaries of `contexts` by the generator of `run`, side by side, resumable, within its caps.

    They are recorded under `stage`. Raises `ChatError`, which names the run `library`, where the profile has
    authored texts only.
    """
    if not contexts:
        return []
    if run.profile.models.llm == "authored":
        what = f"{len(contexts):,} turns have no summary (a file may bring it in its columns S, E, Psi)"
        raise no_model(what, run.profile.name, library)
    # Asked one at a time, a model that is asked again after a kill says the same.
    with run.chat("generator", stage, at_once=1) as chat:
        work = partial(summary_of, chat=chat, profile=run.profile)
        return llm_chat.run(llm_chat.each(chat, contexts, work, "summaries", "summary"))


async def summary_of(context: Context, chat: Chat, profile: Profile) -> Answer:
    """What a model says of one turn: a `SummaryReply`; texts are cut to `MAX_CHARS`."""
    lines = [(name, prompts.one_line(text, MAX_CHARS)) for name, text in context.lines]
    return await answer_summary(context._replace(lines=lines), chat, profile)
