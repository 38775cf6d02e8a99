"""Knowledge-grounded annotation of template memes in two passes (2501.13851, Section 3 and Appendix A).

The first pass does the captioning tasks and names an emotion, with what is known of the template as context;
the second names literary devices by the three-step prompt, whose labels have to hold in both directions.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from memecmd_utils import fetch, files, pictures, statistics
from memecmd_utils.llm import chat as llm_chat
from memecmd_utils.llm import prompts as llm_prompts
from memecmd_utils.llm import spending
from memecmd_utils.llm.chat import Chat, Progress
from memecmd_utils.llm.types import Answer, Image, Request, Sampling
from memecmd_utils.runs import Run
from memecmd_utils.schemas import MemeReading, TemplateMeme
from memecmd_utils.settings import Profile, ProfileError, TemplateAnnotation
from memecmd_utils.template_memes import data_sets, filter, prompts
from memecmd_utils.template_memes.data_sets import TITLES, Data, DataSet
from memecmd_utils.template_memes.prompts import PromptSpec, ThreeStepReply

STAGE = "template_annotation"  # folder of the recordings
TEXT_ONLY = " (text only)"  # end of `MemeReading.prompt` where the model did not see the picture
TOKENS_PER_CHARACTER = 0.25  # of English text; the profile's own figure is for Chinese
REPLY_TOKENS = {"five tasks": 220, "literary devices": 60}
TOKENS_PER_COMPARISON = 30  # of one label held against a meme: its name, a reason in a few words, yes or no
LOOKED_AT = 200  # memes, at most, whose prompts are rendered for the mean length
UNKNOWN = "unknown"
"""Template of a meme that was matched with none; no template has this name, so it has no context."""


def passes(settings: TemplateAnnotation) -> list[PromptSpec]:
    """The prompts of an annotation, captions first; either may be left out, but not both."""
    specs = [prompts.prompt(name) for name in (settings.prompt, settings.devices_prompt) if name]
    devices = [spec.form.kind == "literary devices" for spec in specs]
    if devices != [False] * bool(settings.prompt) + [True] * bool(settings.devices_prompt) or not specs:
        raise ProfileError("set prompt (asks for captions), devices_prompt (for literary devices), or both")
    return specs


def sees(run: Run) -> bool:
    """Whether the run's annotator sees pictures."""
    return run.profile.models.llm == "openai" and run.endpoint("annotator").vision


def sampled_memes(run: Run, memes: Sequence[TemplateMeme], folder: Path) -> list[TemplateMeme]:
    """The memes that `read_memes` asks about: the profile's sample of `memes`.

    For a model that sees it is drawn among the memes whose picture lies below `folder`, in case there are
    any: most of ImgFlip's are an address only, and what a model cannot see it reads from the texts.
    """
    there = data_sets.pictures_below(folder) if sees(run) else {}
    pool = [meme for meme in memes if meme.meme_id in there] or memes
    if len(pool) < len(memes):
        print(f"{len(memes) - len(pool):,} of {len(memes):,} memes have no picture, and none is asked about")
    templates = {meme.meme_id: meme.template for meme in pool}
    drawn = filter.draw(templates, run.profile.cm50.annotation.sample, run.profile.seed)
    return [meme for meme in pool if meme.meme_id in drawn]


def _request(
    spec: PromptSpec, meme: TemplateMeme, about: str, settings: TemplateAnnotation,
    image: Image | None = None, seed: int = 0,
) -> Request:  # fmt: skip
    """What one prompt asks about one meme."""
    return Request(
        task="annotation",
        subject=f"{meme.meme_id}/{spec.name}",
        messages=[prompts.message(spec, meme, about, settings.context, image)],
        sampling=Sampling(temperature=settings.temperature, max_tokens=settings.max_tokens),
        seed=seed,
        reply_schema=spec.form.schema,
        ask_again="template_ask_again",
    )


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
    settings = profile.cm50.annotation
    with_context = all(spec.gives_context(settings.context) for spec in specs)
    sha256 = llm_prompts.prompt_sha256(*(f"template_{spec.file}" for spec in specs))
    there = data_sets.pictures_below(folder) if folder else {}

    async def ask(request: Request) -> Answer:
        return await chat.ask(request, partial(prompts.parse, schema=request.reply_schema))

    async def one(meme: TemplateMeme) -> MemeReading:
        seed = int(statistics.rng(profile.seed, STAGE, meme.meme_id).integers(2**31))
        known, path = about.get(meme.template, ""), there.get(meme.meme_id)
        image = Image(image_id=files.sha256(path), load=partial(_picture_url, path)) if path else None
        requests = [_request(spec, meme, known, settings, image, seed) for spec in specs]
        answers = await asyncio.gather(*map(ask, requests))
        bar.update()
        seen = all(request.messages[-1].images for request in requests)
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

    with Progress(chat, len(memes), "readings", "meme") as bar:
        return await chat.side_by_side(one(meme) for meme in memes)


def _picture_url(path: Path) -> str:
    return pictures.picture_url(pictures.decode(path), "JPEG", quality=95)


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

    `specs`: the prompts; None: those of the profile, about the `sampled_memes`. Where the profile has no
    model (`llm: authored`) it says what to give, and returns no readings.
    """
    if run.profile.models.llm == "authored":
        print("not computed here: a model annotates template memes, give one with PROFILE=openai or local")
        return []
    if specs is None:
        specs, memes = passes(run.profile.cm50.annotation), sampled_memes(run, memes, folder)
    with run.chat("annotator", STAGE) as chat:
        shown = folder if sees(run) else None
        return llm_chat.run(annotate(memes, about, chat, run.profile, specs, shown))


def reading_counts(readings: Iterable[MemeReading]) -> pd.DataFrame:
    """How many readings have each device, label of FigMemes and emotion, most frequent first.

    Columns: `what`, `label`, `readings`, and `share` of the readings that are scored; `unscored` is a row of
    its own.
    """
    said, scored = [], 0
    for reading in readings:
        if reading.unscored:
            said.append(("unscored", ""))
            continue
        scored += 1
        labels = set(map(prompts.word, reading.literary_devices)) - {prompts.NONE}
        said += [("device", label) for label in labels or {prompts.NONE}]
        said += [("FigMemes label", label) for label in prompts.to_figmemes(labels) or [prompts.NONE]]
        said += [("emotion", reading.emotion)] * bool(reading.emotion)
    counts = pd.DataFrame(said, columns=["what", "label"]).value_counts().rename("readings").reset_index()
    return counts.assign(share=counts["readings"] / max(scored, 1))


def estimate_readings(
    run: Run, memes: Sequence[TemplateMeme], about: Mapping[str, str], folder: Path
) -> list[dict[str, Any]]:
    """A row per prompt for `sampled_memes`, in the columns of `make cost`; no call is made."""
    profile, endpoint = run.profile, run.endpoint("annotator")
    settings = profile.cm50.annotation
    asked = sampled_memes(run, memes, folder)
    some = asked[:: len(asked) // LOOKED_AT + 1]
    image, rows = Image(image_id="estimate", load=str) if sees(run) else None, []
    for spec in passes(settings):
        requests = [_request(spec, meme, about.get(meme.template, ""), settings, image) for meme in some]
        t_in = TOKENS_PER_CHARACTER * sum(len(request.messages[-1].text) for request in requests)
        t_in += spending.tokens_per_image(endpoint) * sum(len(r.messages[-1].images) for r in requests)
        compared = len(spec.form.devices) if issubclass(spec.form.schema, ThreeStepReply) else 0
        t_out = REPLY_TOKENS[spec.form.kind] + TOKENS_PER_COMPARISON * compared
        t_in, t_out = round(len(asked) * t_in / max(1, len(some))), len(asked) * t_out
        at = f"07 {spec.name}", profile, profile.models.llm, endpoint
        rows.append(spending.estimate_row(*at, len(asked), t_in, t_out))
    return rows


def evaluate_prompts(run: Run, data: Data, pairs: Mapping[str, pd.DataFrame]) -> list[MemeReading]:
    """Ask every prompt of `cm50.annotation.evaluate` about the memes of its row in Tables 9 to 11.

    `pairs`: what `kept_pairs` gives, by data set. Prompts of Tables 9 and 11 are asked about FigMemes'
    test set, all others about MemeCap's: rows on a test set about every meme, the others about memes matched
    with a template, also where the paper has 11 memes that it does not name. Ids of the readings are names of
    pictures, without suffix.
    """
    folder, readings = data_sets.picture_folder(run.profile), []
    there = data_sets.pictures_below(folder) if sees(run) else {}
    for name in dict.fromkeys(run.profile.cm50.annotation.evaluate):
        spec = prompts.prompt(name)
        dataset: DataSet = "figmemes" if spec.table in (9, 11) else "memecap"
        here = data.found[dataset].path is not None
        memes = _with_templates(data.found, pairs[dataset], dataset) if here else []
        memes = [meme for meme in memes if (meme.meme_id in there if spec.form.sees else meme.text)]
        if "test set" not in spec.measured_on:
            memes = [meme for meme in memes if meme.template != UNKNOWN]
        if memes:
            readings += read_memes(run, memes, data.about, folder, [spec])
        else:
            what = "a model that sees and pictures" if spec.form.sees else "the texts on the memes"
            print(f"not computed here: {name} needs {what} of {TITLES[dataset]} ({spec.measured_on})")
    return readings


def _with_templates(
    found: Mapping[str, fetch.LocatedSource], pairs: pd.DataFrame, dataset: DataSet
) -> list[TemplateMeme]:
    """Memes of a data set with the template that they were matched with, else `UNKNOWN`."""
    taken = pairs.drop_duplicates("instance")
    templates = dict(zip(taken["instance"], taken["template"], strict=True))
    memes = {
        meme.image: TemplateMeme(
            meme_id=Path(meme.image).stem,
            template=templates.get(meme.image, UNKNOWN),
            source=TITLES[dataset],
            url=meme.url or meme.image,
            title=meme.title,
            captions=[meme.text],
        )
        for meme in data_sets.memes_of(found, dataset)
    }
    return list(memes.values())
