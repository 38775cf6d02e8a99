"""Stage 02: what every meme means (2507.00891, Eq. 1 and 2).

An annotator says of every meme where it fits (S+), where not (S-), what it means online (E) and why one sends
it (Psi). With `flag_unsafe` it also says whether a meme is abusive or not safe for work. A flagged meme stays
in the run's tables, so that counts add up and a person can look; it is never a candidate of retrieval, and a
release names its id and the category and nothing else of it.
"""

from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Literal

from memecmd_utils import library, statistics
from memecmd_utils.files import StageOutputError
from memecmd_utils.llm import authored, prompts, replies
from memecmd_utils.llm.chat import Chat, progress
from memecmd_utils.llm.types import BrokenRules, Image, Message, Reply, Request, Sampling
from memecmd_utils.schemas import Annotation, AnnotationReply, Meme
from memecmd_utils.settings import Profile

UNCHECKED = "unchecked"
"""`Annotation.unsafe` where no usable answer came: what nobody checked is not passed on either."""
LIKENESS = 0.8
"""Share of common text (`library.similarity`) from which on S- says what S+ says."""


class CheckedAnnotationReply(AnnotationReply):
    """The four dimensions and the safety flag, as asked of the annotator with `flag_unsafe`."""

    # A closed list, and no free text: a reason in words could repeat what should not be passed on.
    unsafe: Literal["none", "abuse", "hate", "sexual", "violence", "self_harm", "illegal", "other"]


def prompt_files(flag_unsafe: bool) -> tuple[str, ...]:
    """Names of the prompt files behind an annotation."""
    checked = ("annotation_checked_examples", "annotation", "annotation_checked")
    return checked if flag_unsafe else ("annotation_examples", "annotation")


def annotation_request(
    meme: Meme, seed: int, image: Callable[[Meme], str] | None = None, flag_unsafe: bool = False
) -> Request:
    """The request of f_MLLM (Eq. 1).

    With `image` (meme -> data URL) the model sees the picture; else it reads the caption and `picture_note`.
    """
    text = prompts.render(
        "annotation",
        text=meme.text,
        picture_note=meme.picture_note,
        has_image=image is not None,
        fence=prompts.fence,
    )
    if flag_unsafe:
        text = f"{text}\n{prompts.render('annotation_checked')}"
    images = [Image(image_id=meme.sha256, load=lambda: image(meme))] if image is not None else []
    examples = prompts.render_examples(prompt_files(flag_unsafe)[0])
    return Request(
        task="annotation",
        subject=meme.meme_id,
        messages=[
            *(Message(role=role, text=example) for role, example in examples),
            Message(role="user", text=text, images=images),
        ],
        sampling=Sampling(temperature=0.5, max_tokens=400),
        seed=seed,
        reply_schema=CheckedAnnotationReply if flag_unsafe else AnnotationReply,
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

    def parse(reply: Reply) -> AnnotationReply:
        value = replies.structured(reply, CheckedAnnotationReply if flag_unsafe else AnnotationReply)
        if broken := repetitions(value):
            raise BrokenRules(value, broken)
        return value

    async def annotated(meme: Meme) -> Annotation:
        seed = int(statistics.rng(profile.seed, "annotation", meme.meme_id).integers(2**31))
        request = annotation_request(meme, seed, image, flag_unsafe)
        answer = await chat.ask(request, parse)
        bar()
        texts, unscored = dict.fromkeys(AnnotationReply.model_fields, ""), ""
        if answer.value is None or answer.violations:
            unscored = f"{answer.outcome}: {'；'.join(answer.violations) or answer.reason}"
        else:
            texts = {name: getattr(answer.value, name) for name in texts}
        unsafe = getattr(answer.value, "unsafe", UNCHECKED if flag_unsafe else "none")
        return Annotation(
            meme_id=meme.meme_id,
            unscored=unscored,
            source=answer.source,
            profile=profile.name,
            unsafe=unsafe.replace("none", ""),
            prompt_sha256=authored.prompt_sha256(answer.source, *prompt_files(flag_unsafe)),
            seed=seed,
            **texts,
        )

    with progress(chat, len(memes), "annotations", "meme") as bar:
        made = await chat.side_by_side(annotated(meme) for meme in memes)
    if made and all(annotation.unscored for annotation in made):
        raise StageOutputError(f"no meme has a usable annotation; the first: {made[0].unscored}")
    return made


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
        elif second == "s_minus" and library.alike(text[:300], other[:300], LIKENESS):  # sixty are asked for
            broken.append("s_minus 和 s_plus 几乎一样，要写出另外的具体情形")
    return broken


def releasable(
    memes: Sequence[Meme], annotations: Sequence[Annotation]
) -> tuple[list[Meme], list[Annotation]]:
    """Memes and annotations as a release may hold them.

    A flagged meme has no row among the memes; its annotation keeps id and category, its four texts are empty.
    """
    flagged = {annotation.meme_id for annotation in annotations if annotation.unsafe}
    empty = dict.fromkeys((*AnnotationReply.model_fields, "unscored"), "")
    return (
        [meme for meme in memes if meme.meme_id not in flagged],
        [a.model_copy(update=empty) if a.unsafe else a for a in annotations],
    )
