"""Stage 02: what every meme means (2507.00891, Eq. 1 and 2).

An annotator says of every meme where it fits (S+), where not (S-), what it means online (E) and why one sends
it (Psi). One that sees also says what is to be seen and which words it reads (`Meme.as_seen`). With
`flag_unsafe` it also says whether a meme is abusive or not safe for work. A flagged meme stays in the run's
tables, so that counts add up and a person can look; it is never a candidate of retrieval, and a release names
its id and the category and nothing else of it.
"""

import json
import re
from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Literal

import pandas as pd
from pydantic import create_model

from memecmd_utils import library, statistics
from memecmd_utils.files import StageOutputError
from memecmd_utils.llm import authored, prompts, replies
from memecmd_utils.llm.chat import Chat, each
from memecmd_utils.llm.types import BrokenRules, Image, Reply, Request, Sampling, UnusableReply
from memecmd_utils.schemas import ANNOTATED, Annotation, AnnotationReply, Meme, SeenAnnotationReply
from memecmd_utils.settings import Profile

UNCHECKED = "unchecked"
"""`Annotation.unsafe` where no usable answer came: what nobody checked is not passed on either."""
LIKENESS = 0.8
"""Share of common text (`library.similarity`) from which on S- says what S+ says."""
NO_TEXT = re.compile(
    r"^\s*[（(]?(?:(?:图上)?(?:没有|无)(?:任何)?(?:文字|字)|无|none|n/a)[)）]?[。.]?\s*$", re.IGNORECASE
)
"""How models write that there are no words."""


# A closed list, and no free text: a reason in words could repeat what should not be passed on.
Unsafe = Literal["none", "abuse", "hate", "sexual", "violence", "self_harm", "illegal", "other"]


def reply_schema(sees: bool, flag_unsafe: bool) -> type[AnnotationReply]:
    """What an annotator is asked for: the four dimensions, what it sees first, and the safety flag last."""
    plain = SeenAnnotationReply if sees else AnnotationReply
    # The name is a part of the keys of recorded answers.
    return (
        create_model(f"Checked{plain.__name__}", __base__=plain, unsafe=(Unsafe, ...))
        if flag_unsafe
        else plain
    )


def annotation_request(
    meme: Meme, seed: int, image: Callable[[Meme], str] | None = None, flag_unsafe: bool = False
) -> Request:
    """The request of f_MLLM (Eq. 1).

    With `image` (meme -> data URL) the model sees the picture; else it reads the caption and `picture_note`.
    It is told where these come from a machine or a file's name and may be wrong.
    """
    sees = image is not None
    text = prompts.render(
        "annotation",
        text=meme.text,
        picture_note=meme.picture_note,
        by_machine=meme.text_source != "known",
        has_image=sees,
    )
    if flag_unsafe:
        text = f"{text}\n{prompts.render('annotation_checked')}"
    images = [Image(image_id=meme.sha256, load=lambda: image(meme))] if sees else []
    examples = prompts.render_examples("annotation_examples", seen=sees, checked=flag_unsafe)
    return Request(
        task="annotation",
        subject=meme.meme_id,
        messages=prompts.messages(text, examples=examples, images=images),
        sampling=Sampling(temperature=0.5, max_tokens=500 if sees else 400),
        seed=seed,
        reply_schema=reply_schema(sees, flag_unsafe),
    )


async def annotate(
    memes: Sequence[Meme], chat: Chat, profile: Profile, image: Callable[[Meme], str] | None = None
) -> list[Annotation]:
    """Annotate a library (Eq. 2), memes side by side; order and length follow `memes`.

    A meme without a usable reply, or with `repetitions` in each, keeps an empty annotation with the reason in
    `unscored`. With `library.flag_unsafe` an unsafe meme has its category in `unsafe`, one without a reply
    `UNCHECKED`. `StageOutputError` where no meme has an annotation.
    """
    flag_unsafe = profile.library.flag_unsafe
    prompt_files = ["annotation_examples", "annotation", *(["annotation_checked"] if flag_unsafe else [])]

    async def annotated(meme: Meme) -> Annotation:
        seed = int(statistics.rng(profile.seed, "annotation", meme.meme_id).integers(2**31))
        request = annotation_request(meme, seed, image, flag_unsafe)
        answer = await chat.ask(request, lambda reply: read_annotation(reply, request))
        kept = None if answer.violations else answer.value
        unscored = "" if kept else f"{answer.outcome}: {'；'.join(answer.violations) or answer.reason}"
        texts = {name: getattr(kept, name, "") for name in ANNOTATED}
        texts["text_seen"] = NO_TEXT.sub("", texts["text_seen"])
        unsafe = getattr(answer.value, "unsafe", UNCHECKED if flag_unsafe else "none")
        return Annotation(
            meme_id=meme.meme_id,
            unscored=unscored,
            source=answer.source,
            profile=profile.name,
            unsafe=unsafe.replace("none", ""),
            prompt_sha256=authored.prompt_sha256(answer.source, *prompt_files),
            seed=seed,
            **texts,
        )

    made = await each(chat, memes, annotated, "annotations", "meme")
    if made and all(annotation.unscored for annotation in made):
        raise StageOutputError(f"no meme has a usable annotation; the first: {made[0].unscored}")
    return made


def read_annotation(reply: Reply, request: Request) -> AnnotationReply:
    """The annotation in a reply; `UnusableReply` where there is none, `BrokenRules` where it repeats itself.

    A refusal in the form of an annotation is none, nor is what the prompt itself says: the words for an item,
    or an answer of the worked examples.
    """
    value = replies.structured(reply, request.reply_schema)
    said = value.model_dump(include={*ANNOTATED} - {"text_seen"})  # any words may stand on a picture
    if any(map(library.REFUSAL.match, said.values())):
        raise UnusableReply("refused")
    if not all(any(map(str.isalnum, text)) for text in said.values()):
        raise UnusableReply("empty text")
    items = request.messages[-1].text.rpartition("\n>>>")[2]  # below what comes from outside
    told = re.findall(r"^- \w+：(.+)$", items, re.MULTILINE)
    for message in request.messages:
        told += json.loads(message.text).values() if message.role == "assistant" else ()
    known = [library.normalise_text(text) for text in told]
    for name, text in said.items():
        text = library.normalise_text(text)
        if any(library.alike(text, other, LIKENESS) for other in known):
            raise UnusableReply("echoed prompt", name)
    if broken := repetitions(value):
        raise BrokenRules(value, broken)
    return value


def repetitions(value: AnnotationReply) -> list[str]:
    """Which of the four texts say the same, in Chinese as it is told to the model; empty if none does.

    S+ and S- pull a score in opposite directions (Eq. 18, 19), so a meme for which they are nearly the same
    is placed by chance: they are alike from `LIKENESS` on. Of the others only equal ones are: short texts on
    what is felt and what is wanted may share most of their words. Case, signs and blanks do not count.
    """
    texts = {name: library.normalise_text(getattr(value, name)) for name in AnnotationReply.model_fields}
    broken = []
    for (first, text), (second, other) in combinations(texts.items(), 2):
        if text == other:
            broken.append(f"{second} 和 {first} 说的一样，四项要各说各的")
        elif second == "s_minus" and library.alike(text, other, LIKENESS):
            broken.append("s_minus 和 s_plus 几乎一样，要写出另外的具体情形")
    return broken


def alike_openings(annotations: Sequence[Annotation]) -> list[str]:
    """What a reader should know of annotations that open alike: a line for each opening of a kind of text.

    It names them where a tenth of the usable ones, and three at least, have the first four characters in
    common, signs apart: that is no accident, and who says one thing of all memes tells retrieval nothing.
    """
    usable, lines = [a for a in annotations if a.usable], []
    for name in AnnotationReply.model_fields:
        texts = {a.meme_id: library.normalise_text(getattr(a, name)) for a in usable}
        openings = pd.Series(texts, dtype=str).str[:4]
        for opening, n in openings.value_counts().items():
            if n >= max(3, len(usable) / 10):
                ids = openings.index[openings == opening]
                shown = ", ".join(ids[:5]) + (", ..." if n > 5 else "")
                lines.append(f"{name} of {n} of {len(usable)} memes opens with {opening}: {shown}")
    return lines


def releasable(
    memes: Sequence[Meme], annotations: Sequence[Annotation]
) -> tuple[list[Meme], list[Annotation]]:
    """Memes and annotations as a release may hold them.

    A flagged meme has no row among the memes; its annotation keeps id and category, its texts are empty.
    """
    flagged = {annotation.meme_id for annotation in annotations if annotation.unsafe}
    empty = dict.fromkeys((*ANNOTATED, "unscored"), "") | {"english": []}
    return (
        [meme for meme in memes if meme.meme_id not in flagged],
        [a.model_copy(update=empty) if a.unsafe else a for a in annotations],
    )
