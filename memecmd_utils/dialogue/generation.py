"""Stage 03: two agents talk, a summary agent listens (paper, Section 4.1, Eq. 4-17)."""

import asyncio
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Literal

from memecmd_utils import files, statistics
from memecmd_utils.dialogue.rules import bare, borrowed, severity, violations
from memecmd_utils.files import MemecmdError
from memecmd_utils.llm import prompts, replies
from memecmd_utils.llm.chat import Chat, Progress
from memecmd_utils.llm.messages import BrokenRules, Message, Reply, Request, Sampling, UnusableReply
from memecmd_utils.schemas import ColdStart, Dialogue, Summary, SummaryReply, Turn, Unfinished
from memecmd_utils.settings import Profile

Phase = Literal["initial", "early", "middle", "late"]
MIDDLE_FROM, LATE_FROM = 7, 13
EXAMPLE_LINE = re.compile(r"^\w{1,4}：(.+)$", re.MULTILINE)
SHARED_PROMPTS = ("chat_system", "chat_examples")
"""Prompts that stand before every request of a dialogue."""


def phase_of(turn: int) -> Phase:
    """Phase of a turn: t = 1, 2 <= t < 7, 7 <= t < 13, t >= 13 (Eq. 11-14)."""
    if turn < 1:
        raise ValueError(f"turns count from 1, got {turn}")
    if turn == 1:
        return "initial"
    if turn < MIDDLE_FROM:
        return "early"
    return "middle" if turn < LATE_FROM else "late"


def speaker_of(turn: int) -> Literal["A", "B"]:
    """A_1 opens and speaks on odd turns (Eq. 8, 10; Eq. 5's index would give A_2 the first word)."""
    return "A" if turn % 2 else "B"


def history_text(start: ColdStart, turns: Sequence[str]) -> str:
    """The dialogue so far, one line a turn, with the speakers' names."""
    names = {"A": start.name_a, "B": start.name_b}
    return "\n".join(f"{names[speaker_of(i)]}：{text}" for i, text in enumerate(turns, start=1))


def _messages(
    prompt: str, start: ColdStart, earlier: Sequence[str], turn: int, max_chars: int
) -> list[Message]:
    # System text, worked examples and history come first and are the same for both agents and the summary
    # agent, so an endpoint can reuse the growing prefix; what differs stands last. The examples are
    # messages of their own: a small model takes one inside the prompt for a part of the chat.
    name, other = start.name_a, start.name_b
    if speaker_of(turn) == "B":
        name, other = other, name
    values = {"speaker": name, "history": history_text(start, earlier), "max_chars": max_chars}
    if prompt == "utterance_initial":
        values["context"] = start.context
    elif prompt in ("utterance_early", "utterance_middle"):
        values["brief"] = start.brief
    if prompt.startswith("utterance") and earlier:
        # A small model answers what stands last; the history alone leaves it to guess whose turn it is.
        values |= {"other": other, "last": earlier[-1]}
    return [
        Message(role="system", text=prompts.render("chat_system")),
        *(Message(role=role, text=text) for role, text in prompts.render_examples("chat_examples")),
        Message(role="user", text=prompts.render(prompt, fence=prompts.fence, **values)),
    ]


def _against_loops(profile: Profile, allowed_length: int) -> dict[str, float]:
    """Sampling of small models, which loop and turn polite: cut the tail, make repeating costly (DRY)."""
    if profile.models.llm != "local":
        return {}
    return {"min_p": 0.05, "dry_multiplier": 1.0, "dry_base": 1.75, "dry_allowed_length": allowed_length}


def utterance_request(start: ColdStart, earlier: Sequence[str], profile: Profile) -> Request:
    """P_{i,t} of Eq. 11-14 for the turn after `earlier`."""
    turn = len(earlier) + 1
    prompt = f"utterance_{phase_of(turn)}"
    max_tokens = max(60, 2 * profile.dialogue.max_utterance_chars + 10)  # a character may take two tokens
    extra = _against_loops(profile, allowed_length=2)
    return Request(
        task="utterance",
        subject=f"{start.dialogue_id}/{turn}",
        messages=_messages(prompt, start, earlier, turn, profile.dialogue.max_utterance_chars),
        sampling=Sampling(temperature=0.9, presence_penalty=0.6, max_tokens=max_tokens, extra=extra),
        seed=int(statistics.rng(profile.seed, "utterance", start.dialogue_id, turn).integers(2**31)),
    )


def summary_request(start: ColdStart, earlier: Sequence[str], profile: Profile) -> Request:
    """Request of the summary agent for turn t, seen from the side of who speaks at t (Eq. 16)."""
    turn = len(earlier) + 1
    extra = _against_loops(profile, allowed_length=6)  # names of six tokens may recur
    return Request(
        task="summary",
        subject=f"{start.dialogue_id}/{turn}",
        messages=_messages("summary", start, earlier, turn, profile.dialogue.max_utterance_chars),
        sampling=Sampling(temperature=0.3, max_tokens=300, extra=extra),
        seed=int(statistics.rng(profile.seed, "summary", start.dialogue_id, turn).integers(2**31)),
        reply_schema=SummaryReply,
    )


@lru_cache(maxsize=1)
def example_lines() -> tuple[str, ...]:
    """What is said in the worked examples before every request."""
    texts = [text for _, text in prompts.render_examples("chat_examples")]
    return tuple(line for text in texts for line in EXAMPLE_LINE.findall(text)) + tuple(
        text for text in texts if "\n" not in text and not text.startswith("{")
    )


class NoUtterance(MemecmdError, RuntimeError):
    """The model has no usable text for a turn, also after all attempts."""


async def _utterance(
    start: ColdStart, earlier: Sequence[str], chat: Chat, profile: Profile, gloss: Mapping[str, str]
) -> Turn:
    request = utterance_request(start, earlier, profile)

    def parse(reply: Reply) -> str:
        # Authored text stands as it was written, also in quotes.
        authored = chat.backend.source == "authored"
        text = reply.text if authored else replies.utterance_text(reply, (start.name_a, start.name_b))
        if not bare(text):
            raise UnusableReply("空的回复")
        broken = violations(text, earlier, profile.dialogue.max_utterance_chars, (start.name_a, start.name_b))
        lifted = borrowed(text, example_lines(), [start.context, start.brief])
        if lifted:
            broken.append(f"照搬了例子里的“{lifted}”")
        if broken:
            raise BrokenRules(text, broken, severity(broken))
        return text

    answer = await chat.ask(request, parse)
    if answer.value is None:
        raise NoUtterance(f"{answer.outcome} after {answer.attempts} attempts: {answer.reason}")
    turn = len(earlier) + 1
    return Turn(
        turn=turn,
        speaker=speaker_of(turn),
        text=answer.value,
        gloss=gloss.get(request.subject, "") if answer.source == "authored" else "",
        violations=answer.violations,
        source=answer.source,
        profile=profile.name,
        prompt_sha256=prompts.prompt_sha256(*SHARED_PROMPTS, f"utterance_{phase_of(turn)}"),
        seed=request.seed,
    )


async def summarise(start: ColdStart, earlier: Sequence[str], chat: Chat, profile: Profile) -> Summary:
    """(S, E, Psi) for the turn after `earlier` (Eq. 16); `unscored` says why there is none."""
    request = summary_request(start, earlier, profile)
    answer = await chat.ask(request, lambda reply: replies.structured(reply, SummaryReply))
    fields = dict.fromkeys(SummaryReply.model_fields, "")
    if answer.value is not None:
        fields = answer.value.model_dump()
    turn = len(earlier) + 1
    return Summary(
        turn=turn,
        speaker=speaker_of(turn),
        unscored="" if answer.value is not None else f"{answer.outcome}: {answer.reason}",
        source=answer.source,
        profile=profile.name,
        prompt_sha256=prompts.prompt_sha256(*SHARED_PROMPTS, "summary"),
        seed=request.seed,
        **fields,
    )


async def talk(
    start: ColdStart, chat: Chat, profile: Profile, gloss: Mapping[str, str], bar: Progress
) -> Dialogue | Unfinished:
    """Hold one dialogue.

    u_t and the summary for t both need turns 1..t-1 only, so they run side by side; u_{t+1} does not wait
    for the summary, which is the longer text.
    """
    turns: list[Turn] = []
    summaries: list[asyncio.Task[Summary]] = []
    reason = ""
    try:
        while len(turns) < profile.dialogue.n_turns and not reason:
            earlier = [turn.text for turn in turns]
            for task in summaries:
                if task.done():
                    task.result()  # a fault ends the dialogue now, not at its last turn
            if earlier:
                summaries.append(asyncio.ensure_future(summarise(start, earlier, chat, profile)))
            try:
                turns.append(await _utterance(start, earlier, chat, profile, gloss))
                bar.update()
            except NoUtterance as error:
                reason = str(error)
        done = await asyncio.gather(*summaries)
    except Exception:
        # What is under way is waited for: it may be paid for already, and its answer is recorded.
        await asyncio.gather(*summaries, return_exceptions=True)
        raise
    finally:
        for task in summaries:
            task.cancel()
    if reason:
        bar.update(profile.dialogue.n_turns - len(turns))
        return Unfinished(
            dialogue_id=start.dialogue_id,
            turn=len(turns) + 1,
            reason=reason,
            turns=turns,
            source=chat.backend.source,
            profile=profile.name,
            seed=profile.seed,
        )
    return Dialogue(
        dialogue_id=start.dialogue_id,
        kind=start.kind,
        ref=start.ref,
        title=start.title,
        name_a=start.name_a,
        name_b=start.name_b,
        turns=turns,
        summaries=done,
        complete=True,
        source=turns[0].source,
        profile=profile.name,
        prompt_sha256=start.prompt_sha256,
        seed=profile.seed,
    )


@dataclass
class Generated:
    """What `generate` wrote: counts that do not grow with the run, and a number a turn."""

    dialogues: int = 0
    unfinished: int = 0
    violations: Counter[str] = field(default_factory=Counter)
    broken_turns: int = 0
    lengths: list[int] = field(default_factory=list)
    """Characters of every turn."""


async def generate(
    starts: Iterable[ColdStart],
    chat: Chat,
    profile: Profile,
    folder: Path,
    gloss: Mapping[str, str] | None = None,
    unfinished: Sequence[Unfinished] = (),
) -> Generated:
    """Hold all dialogues side by side and write them, in the order of `starts`, as they are done.

    `dialogues.jsonl` takes the complete ones, `unfinished.jsonl` those that stopped, after `unfinished`,
    which never began. Stops on the first fault of the endpoint; without any complete dialogue raises
    `NoUtterance`.
    """
    starts = list(starts)
    made = Generated()
    first = ""
    with (
        Progress(chat, len(starts) * profile.dialogue.n_turns, "turns", "turn") as bar,
        files.jsonl_writer(folder / "dialogues.jsonl") as write_dialogue,
        files.jsonl_writer(folder / "unfinished.jsonl") as write_unfinished,
    ):

        def keep(dialogue: Dialogue | Unfinished) -> None:
            nonlocal first
            if isinstance(dialogue, Unfinished):
                first = first or f"{dialogue.dialogue_id}, turn {dialogue.turn}: {dialogue.reason}"
                made.unfinished += 1
                write_unfinished(dialogue)
                return
            made.dialogues += 1
            for turn in dialogue.turns:
                made.lengths.append(len(turn.text))
                made.broken_turns += bool(turn.violations)
                made.violations.update(violation.split("（")[0] for violation in turn.violations)
            write_dialogue(dialogue)

        for lost in unfinished:
            keep(lost)
        work = (talk(start, chat, profile, gloss or {}, bar) for start in starts)
        await chat.side_by_side(work, keep=keep)
        if made.unfinished and not made.dialogues:
            raise NoUtterance(f"no dialogue came to its end; the first: {first}")
    return made
