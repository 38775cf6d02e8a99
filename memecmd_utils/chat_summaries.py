"""(S, E, Psi) for chats from elsewhere, by the summary agent that a run's own dialogues have (Eq. 16)."""

from collections.abc import Sequence
from typing import NamedTuple

from memecmd_utils import dialogue_generation, llm, prompting, replies, seeds
from memecmd_utils.conversations import Context, one_line
from memecmd_utils.errors import MemecmdError
from memecmd_utils.llm import Chat, Message, Request
from memecmd_utils.profiles import Profile
from memecmd_utils.progress import Progress
from memecmd_utils.runs import Run
from memecmd_utils.schemas import ColdStart, SummaryReply


class NoSummaryAgent(MemecmdError, RuntimeError):
    """No model may be asked for summaries; the message says how to get one."""


class Told(NamedTuple):
    """What the summary agent said of one turn; `unscored` says why there is nothing."""

    summary: SummaryReply | None
    source: str
    unscored: str = ""


def request(context: Context, profile: Profile) -> Request:
    """The summary agent's request, with the history of any number of speakers in it.

    For two who take turns it is the very request of `dialogue_generation.summary_request`.
    """
    first = context.lines[0][0]
    other = next((name for name, _ in context.lines if name != first), context.next_speaker)
    shell = ColdStart(
        source="own chat",
        dialogue_id=context.chat,
        kind="news",
        ref=context.chat,
        title=context.chat,
        name_a=first,
        name_b=other,
        context=context.chat,
        brief=context.chat,
    )
    lines = [(name, one_line(text)) for name, text in context.lines]
    asked = dialogue_generation.summary_request(shell, [text for _, text in lines], profile)
    # All but the last message is the same for every chat: the role, the worked examples.
    prompt = prompting.render(
        "summary",
        fence=prompting.fence,
        speaker=context.next_speaker,
        history="\n".join(f"{name}：{text}" for name, text in lines),
        max_chars=profile.max_utterance_chars,
    )
    return asked.model_copy(
        update={
            "messages": [*asked.messages[:-1], Message(role="user", text=prompt)],
            "subject": f"{context.chat}/{context.turn}",
            "seed": int(seeds.rng(profile.seed, "summary", context.chat, context.turn).integers(2**31)),
        }
    )


async def summarise(contexts: Sequence[Context], chat: Chat, profile: Profile) -> list[Told]:
    """Ask for all contexts side by side: no summary waits for another, because the texts are all there."""

    async def one(context: Context) -> Told:
        answer = await chat.ask(request(context, profile), lambda r: replies.structured(r, SummaryReply))
        bar.update()
        why = "" if answer.value is not None else f"{answer.outcome}: {answer.reason}"
        return Told(answer.value, answer.source, why)

    with Progress(chat, len(contexts), "summaries", "summary") as bar:
        return await chat.side_by_side(one(context) for context in contexts)


def ask(contexts: Sequence[Context], run: Run, stage: str, library: str) -> list[Told]:
    """Summaries of `contexts` by the generator of `run`: recorded under `stage`, resumable, within its caps.

    Raises `NoSummaryAgent` where the profile has authored texts only; `library` is the run to be named then.
    """
    if not contexts:
        return []
    if run.profile.llm == "authored":
        raise NoSummaryAgent(
            f"turns without a summary (S, E, Psi): {len(contexts):,}; profile {run.profile.name!r} has no "
            "model that could write one. Name another profile for the model and keep this run's library: "
            f"PROFILE=local RUN={library} after `make local-llm`, or PROFILE=openai "
            f"RUN={library} with a key. A chat file may also bring them in its columns S, E, Psi"
        )
    with run.chat("generator", stage) as chat:
        return llm.run(summarise(contexts, chat, run.profile))
