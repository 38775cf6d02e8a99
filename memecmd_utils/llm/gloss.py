"""English of a live run, for readers (`models.gloss`; ours): a model translates memes, chats and summaries.

No other prompt holds any of it. The English of the example stands in its files.
"""

import re
from collections.abc import Mapping, Sequence
from functools import partial

from pydantic import BaseModel

from memecmd_utils import statistics
from memecmd_utils.llm import prompts, replies
from memecmd_utils.llm.chat import Chat, each
from memecmd_utils.llm.types import Reply, Request, Sampling, UnusableReply
from memecmd_utils.schemas import Annotation, AnnotationReply, Dialogue, Meme, SummaryReply, Text
from memecmd_utils.settings import Profile

MAX_CHARS = 500
"""Characters of a text that are translated: in chats of one's own a message may be longer."""
TEXTS = 30
"""Texts of one request at most: of long lists models lose an item."""
HAN = re.compile("[\u3400-\u9fff]")


class GlossReply(BaseModel):
    """The English of numbered texts, in their order."""

    english: list[Text]


def gloss_request(subject: str, texts: Sequence[str], profile: Profile) -> Request:
    """What a model is asked about texts that belong together, none of which is empty."""
    numbered = "\n".join(
        f"{n}. {' '.join(text.split())[:MAX_CHARS]}" for n, text in enumerate(texts, start=1)
    )
    asked = prompts.render("gloss", texts=numbered, count=len(texts))
    return Request(
        task="gloss",
        subject=subject,
        messages=prompts.messages(asked),
        sampling=Sampling(temperature=0.3, max_tokens=200 + 3 * len(numbered)),
        seed=int(statistics.rng(profile.seed, "gloss", subject).integers(2**31)),
        reply_schema=GlossReply,
    )


def read_gloss(reply: Reply, count: int) -> list[str]:
    """The English of `count` texts; `UnusableReply` where there are more or fewer, or one is Chinese."""
    english = replies.structured(reply, GlossReply).english
    if len(english) != count:
        raise UnusableReply("not the numbers asked for", count, len(english))
    for number, text in enumerate(english, start=1):
        # A name or a quoted word may stay, with what it means beside it.
        if 2 * len(HAN.findall(text)) > len(text):
            raise UnusableReply("not English", number)
    return english


async def translate(subject: str, texts: Sequence[str], chat: Chat, profile: Profile) -> list[str]:
    """English of each text, asked for `TEXTS` at a time; empty where text or usable answer is missing."""
    english = [""] * len(texts)
    places = [place for place, text in enumerate(texts) if text.strip()]
    for first in range(0, len(places), TEXTS):
        part = places[first : first + TEXTS]
        request = gloss_request(f"{subject}/{first + 1}", [texts[place] for place in part], profile)
        answer = await chat.ask(request, partial(read_gloss, count=len(part)))
        for place, text in zip(part, answer.value or [], strict=False):
            english[place] = text
    return english


async def of_annotations(
    annotations: Sequence[Annotation], memes: Mapping[str, Meme], chat: Chat, profile: Profile
) -> list[Annotation]:
    """The annotations, each usable one with its English and that of its meme's words."""

    async def glossed(annotation: Annotation) -> Annotation:
        if not annotation.usable:
            return annotation
        texts = [getattr(annotation, name) for name in AnnotationReply.model_fields]
        texts.append(memes[annotation.meme_id].as_seen(annotation).words)
        english = await translate(f"meme/{annotation.meme_id}", texts, chat, profile)
        return annotation.model_copy(update={"english": english if any(english) else []})

    return await each(chat, annotations, glossed, "English of memes", "meme")


async def of_dialogues(dialogues: Sequence[Dialogue], chat: Chat, profile: Profile) -> list[Dialogue]:
    """The dialogues with the English of title, turns and summaries."""

    async def glossed(dialogue: Dialogue) -> Dialogue:
        name, said = dialogue.dialogue_id, [dialogue.title, *(turn.text for turn in dialogue.turns)]
        title, *lines = await translate(f"chat/{name}", said, chat, profile)
        turns = [
            turn.model_copy(update={"gloss": text}) for turn, text in zip(dialogue.turns, lines, strict=True)
        ]
        fields = tuple(SummaryReply.model_fields)
        told = [getattr(summary, field) for summary in dialogue.summaries for field in fields]
        english = await translate(f"summaries/{name}", told, chat, profile)
        parts = (english[first : first + len(fields)] for first in range(0, len(english), len(fields)))
        summaries = [
            summary.model_copy(update={"english": part if all(part) else []})
            for summary, part in zip(dialogue.summaries, parts, strict=True)
        ]
        return dialogue.model_copy(update={"gloss": title, "turns": turns, "summaries": summaries})

    return await each(chat, dialogues, glossed, "English of chats", "chat")
