"""Knowledge-grounded annotation of template memes in two passes (2501.13851, Section 3 and Appendix A).

The first pass does the captioning tasks and names an emotion, with what is known of the template as context;
the second names literary devices by the three-step prompt, whose labels have to hold in both directions.
"""

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from memecmd_utils import files, pictures, statistics
from memecmd_utils.llm import chat as llm_chat
from memecmd_utils.llm import prompts as llm_prompts
from memecmd_utils.llm import replies
from memecmd_utils.llm.chat import Chat, each
from memecmd_utils.llm.types import Answer, Image, Message, Request, Sampling
from memecmd_utils.runs import Run
from memecmd_utils.schemas import MemeReading, TemplateMeme
from memecmd_utils.settings import Profile
from memecmd_utils.template_memes import data_sets, prompts
from memecmd_utils.template_memes.prompts import PromptSpec

STAGE = "template_annotation"  # folder of the recordings
TEXT_ONLY = " (text only)"  # end of `MemeReading.prompt` where the model did not see the picture
MAX_TOKENS = 1500  # of a reply; the paper's code allows 4000
PASSES = ("gpt4o", "three_step_12")  # prompts: captions and emotion, then literary devices


def sees(run: Run) -> bool:
    """Whether the run's annotator sees pictures."""
    return run.profile.models.llm == "openai" and run.endpoint("annotator").vision


async def annotate(
    memes: Sequence[TemplateMeme],
    about: Mapping[str, str],
    chat: Chat,
    profile: Profile,
    specs: Sequence[PromptSpec],
    folder: Path | None = None,
) -> list[MemeReading]:
    """Read memes, side by side, with each of the prompts; order as in `memes`.

    A meme without a picture below `folder`, and one whose prompt is on OCR text, is read from its texts, and
    the reading's `prompt` ends in "(text only)". A meme without a usable reply to each prompt, after five
    attempts, is kept with the reason in `unscored` and empty texts. `context` is true where an "about" text
    was given in every pass.
    """
    wanted = profile.cm50.context
    with_context = all(spec.gives_context(wanted) for spec in specs)
    sha256 = llm_prompts.prompt_sha256(*(f"template_{spec.file}" for spec in specs))
    there = data_sets.pictures_below(folder) if folder else {}

    async def ask(meme: TemplateMeme, spec: PromptSpec, message: Message, seed: int) -> Answer:
        request = Request(
            task="annotation",
            subject=f"{meme.meme_id}/{spec.name}",
            messages=[message],
            sampling=Sampling(max_tokens=MAX_TOKENS),  # the temperature is the endpoint's, as theirs
            seed=seed,
            reply_schema=spec.form.schema,
            ask_again="template_ask_again",
        )
        return await chat.ask(request, lambda reply: replies.structured(reply, spec.form.schema).fields())

    async def read(meme: TemplateMeme) -> MemeReading:
        seed = int(statistics.rng(profile.seed, STAGE, meme.meme_id).integers(2**31))
        known, path = about.get(meme.template, ""), there.get(meme.meme_id)
        image = Image(image_id=files.sha256(path), load=partial(_picture_url, path)) if path else None
        messages = [prompts.message(spec, meme, known, wanted, image) for spec in specs]
        answers = await asyncio.gather(
            *(ask(meme, *pair, seed) for pair in zip(specs, messages, strict=True))
        )
        seen = all(message.images for message in messages)
        return MemeReading(
            meme_id=meme.meme_id,
            template=meme.template,
            prompt="+".join(spec.name for spec in specs) + ("" if seen else TEXT_ONLY),
            context=bool(known.strip()) and with_context,
            source=" and ".join(dict.fromkeys(answer.source for answer in answers)),
            profile=profile.name,
            prompt_sha256=sha256,
            seed=seed,
            **_fields(specs, answers),
        )

    return await each(chat, memes, read, "readings", "meme")


def _picture_url(path: Path) -> str:
    return files.data_url(pictures.encoded(pictures.decode(path), "JPEG", quality=95))


def _fields(specs: Sequence[PromptSpec], answers: Sequence[Answer]) -> dict[str, Any]:
    """Fields of all passes: the devices are the last pass's, all else is the first's that has it."""
    pairs = [(spec, answer) for spec, answer in zip(specs, answers, strict=True) if answer.value is None]
    if pairs:
        return {"unscored": "; ".join(f"{spec.name}: {a.outcome}: {a.reason}" for spec, a in pairs)}
    first, last = answers[0].value, answers[-1].value
    return {**last, **first, "literary_devices": last.get("literary_devices", [])}


def read_memes(
    run: Run, memes: Sequence[TemplateMeme], about: Mapping[str, str], folder: Path,
    specs: Sequence[PromptSpec] | None = None,
) -> list[MemeReading]:  # fmt: skip
    """Annotate memes with the run's annotator; `folder` has their pictures, for one that is marked `vision`.

    `specs`: the prompts, by default those of `PASSES`. Where the profile has no model (`llm: authored`) it
    says what to give, and returns no readings.
    """
    if run.profile.models.llm == "authored":
        print("not computed here: a model annotates template memes, give one with PROFILE=openai or local")
        return []
    specs = specs or [prompts.prompt(name) for name in PASSES]
    with run.chat("annotator", STAGE) as chat:
        shown = folder if sees(run) else None
        return llm_chat.run(annotate(memes, about, chat, run.profile, specs, shown))
