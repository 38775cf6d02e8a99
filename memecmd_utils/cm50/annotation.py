"""Knowledge-grounded annotation of template memes in two passes (2501.13851, Section 3 and Appendix A).

The first pass does the captioning tasks and names an emotion, with what is known of the template as context;
the second names literary devices by the three-step prompt, whose labels have to hold in both directions.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from memecmd_utils import statistics
from memecmd_utils.cm50 import pictures, references
from memecmd_utils.cm50 import prompts as cm50_prompts
from memecmd_utils.cm50.data import Data
from memecmd_utils.cm50.matching import TemplateMatch
from memecmd_utils.cm50.prompts import PromptSpec, ThreeStepReply
from memecmd_utils.cm50.references import TITLES, DataSet, OtherMeme
from memecmd_utils.llm import budget
from memecmd_utils.llm import chat as llm_chat
from memecmd_utils.llm import prompts as llm_prompts
from memecmd_utils.llm.budget import Spent
from memecmd_utils.llm.chat import Chat, Progress
from memecmd_utils.llm.messages import Answer, Image, Request, Sampling
from memecmd_utils.pictures import ImageRejected, decode
from memecmd_utils.runs import Run
from memecmd_utils.schemas import MemeReading, TemplateInfo, TemplateMeme
from memecmd_utils.settings import Profile, ProfileError, TemplateAnnotation

STAGE = "template_annotation"
"""Folder of the recordings."""
DEVICES = "literary_devices"
TEXT_ONLY = " (text only)"
"""End of `MemeReading.prompt` where the model did not see the picture."""
NOBODY = (
    "not computed here: template memes are annotated by a model. Give one, with PROFILE=openai and a key or "
    "PROFILE=local after `make local-llm`, or a profile whose recordings hold its answers."
)
TOKENS_PER_CHARACTER = 0.25
"""Of English text; the profile's own figure is for Chinese."""
REPLY_TOKENS = {"five tasks": 220, "meme caption": 60, "literary devices": 60}
TOKENS_PER_COMPARISON = 30
"""Of one label held against a meme: its name, a reason in a few words, yes or no."""
LOOKED_AT = 200
"""Memes whose prompts are rendered for the mean length."""
FIGMEMES_TABLES = (9, 11)
"""Tables that score prompts on FigMemes; all other prompts are asked about MemeCap's memes."""
DRAWN = 11
"""The paper tried prompts on 11 memes of FigMemes that it does not name; ours are drawn by seed."""
UNKNOWN = "unknown"
"""Template of a meme that was matched with none; no template has this name, so it has no context."""


def passes(settings: TemplateAnnotation) -> list[PromptSpec]:
    """The prompts of an annotation, captions first; either may be left out.

    Raises `ProfileError` for a wrong name, one in the wrong place, or none at all.
    """
    specs = []
    for key in ("prompt", "devices_prompt"):
        if not (name := getattr(settings, key)):
            continue
        spec, for_devices = cm50_prompts.prompt(name), key == "devices_prompt"
        if spec.asks_for_devices != for_devices:
            fitting = [s.name for s in cm50_prompts.PROMPTS.values() if s.asks_for_devices == for_devices]
            raise ProfileError(
                f"{key}={name} asks for {spec.kind}; for {key} there are: {', '.join(fitting)}"
            )
        specs.append(spec)
    if not specs:
        raise ProfileError("prompt and devices_prompt are both empty: there is nothing to ask")
    return specs


def draw_sample(memes: Sequence[TemplateMeme], n: int | None, seed: int) -> list[TemplateMeme]:
    """Draw `n` memes, every template in proportion to its memes (largest remainders); None takes all.

    Which memes of a template are drawn depends on the seed and the template alone; the order stays.
    """
    if n is None or n >= len(memes):
        return list(memes)
    by_template: dict[str, list[str]] = {}
    for meme in memes:
        by_template.setdefault(meme.template, []).append(meme.meme_id)
    exact = {name: n * len(ids) / len(memes) for name, ids in by_template.items()}
    take = {name: int(share) for name, share in exact.items()}
    rest = sorted(exact, key=lambda name: (take[name] - exact[name], name))[: n - sum(take.values())]
    drawn: set[str] = set()
    for name, ids in by_template.items():
        order = statistics.rng(seed, "template sample", name).permutation(sorted(ids))
        drawn.update(map(str, order[: take[name] + (name in rest)]))
    return [meme for meme in memes if meme.meme_id in drawn]


def shows_pictures(run: Run, profile: Profile | None = None) -> bool:
    """Whether the run's annotator sees, and a prompt of the profile shows the picture."""
    profile = profile or run.profile
    prompt_sees = any(spec.sees for spec in passes(profile.cm50.annotation))
    return profile.models.llm == "openai" and run.endpoint("annotator").vision and prompt_sees


def sampled_memes(
    run: Run, memes: Sequence[TemplateMeme], folder: Path | None = None, profile: Profile | None = None
) -> list[TemplateMeme]:
    """The memes that `read_memes` asks about: the profile's sample of `memes`.

    Where pictures are shown it is drawn among the memes whose picture lies below `folder`, in case there are
    any: most of ImgFlip's are an address only, and what a model cannot see it reads from the texts.
    """
    profile, pool = profile or run.profile, memes
    if folder is not None and shows_pictures(run, profile):
        there = pictures.pictures_below(folder)
        pool = [meme for meme in memes if meme.meme_id in there] or memes
    return draw_sample(pool, profile.cm50.annotation.sample, profile.seed)


def reading_request(
    spec: PromptSpec,
    meme: TemplateMeme,
    info: TemplateInfo | None,
    settings: TemplateAnnotation,
    seed: int,
    image: Image | None = None,
) -> Request:
    """What one prompt asks about one meme."""
    return Request(
        task="annotation",
        subject=f"{meme.meme_id}/{spec.name}",
        messages=cm50_prompts.messages(spec, meme, info, settings.context, image),
        sampling=Sampling(temperature=settings.temperature, max_tokens=settings.max_tokens),
        seed=seed,
        reply_schema=spec.schema,
        ask_again="template_ask_again",
    )


async def annotate(
    memes: Sequence[TemplateMeme],
    infos: Iterable[TemplateInfo],
    chat: Chat,
    profile: Profile,
    picture: pictures.Picture | None = None,
) -> list[MemeReading]:
    """Read memes, side by side, with the prompts of `profile.cm50.annotation`; order as in `memes`.

    `picture` gives a meme's picture or None: a model that sees none, and the prompts on OCR text, get the
    texts on the meme, and the reading's `prompt` ends in "(text only)". A meme without a usable reply to each
    prompt, after five attempts, is kept with the reason in `unscored` and empty texts. `context` is true
    where an "about" text was given in every pass.
    """
    settings, about = profile.cm50.annotation, {info.template: info for info in infos}
    specs = passes(settings)
    with_context = all(cm50_prompts.gives_context(spec, settings.context) for spec in specs)
    sha256 = llm_prompts.prompt_sha256(*(spec.file for spec in specs))

    async def ask(request: Request) -> Answer:
        return await chat.ask(request, partial(cm50_prompts.parse, schema=request.reply_schema))

    async def one(meme: TemplateMeme) -> MemeReading:
        seed = int(statistics.rng(profile.seed, STAGE, meme.meme_id).integers(2**31))
        info, image = about.get(meme.template), picture(meme) if picture is not None else None
        requests = [reading_request(s, meme, info, settings, seed, image) for s in specs]
        answers = [await ask(request) for request in requests]
        bar.update()
        known = info is not None and bool(info.about.strip())
        seen = all(request.messages[-1].images for request in requests)
        return MemeReading(
            meme_id=meme.meme_id,
            template=meme.template,
            prompt="+".join(spec.name for spec in specs) + ("" if seen else TEXT_ONLY),
            context=known and with_context,
            source=" and ".join(dict.fromkeys(answer.source for answer in answers)),
            profile=profile.name,
            prompt_sha256=sha256,
            seed=seed,
            **_fields(specs, answers),
        )

    with Progress(chat, len(memes), "readings", "meme") as bar:
        return await chat.side_by_side(one(meme) for meme in memes)


def _fields(prompts: Sequence[PromptSpec], answers: Sequence[Answer]) -> dict[str, Any]:
    """Fields of all passes: the devices are the last pass's, all else is the first's that has it."""
    failed = [
        f"{spec.name}: {answer.outcome}: {answer.reason}"
        for spec, answer in zip(prompts, answers, strict=True)
        if answer.value is None
    ]
    if failed:
        return {"unscored": "; ".join(failed)}
    first, last = answers[0].value, answers[-1].value
    return {**last, **first, **{name: value for name, value in last.items() if name == DEVICES}}


def read_memes(
    run: Run,
    memes: Sequence[TemplateMeme],
    infos: Iterable[TemplateInfo],
    folder: Path | None = None,
    profile: Profile | None = None,
) -> list[MemeReading]:
    """Annotate the `sampled_memes` with the run's annotator; `folder` has their pictures.

    Pictures go to an endpoint that is marked `vision` only, and it is said how many memes have none. Where
    the profile has no model (`llm: authored`) it says what to give, and returns no readings. `profile`: the
    run's, with other prompts.
    """
    profile = profile or run.profile
    if profile.models.llm == "authored":
        print(NOBODY)
        return []
    shown = folder if folder is not None and shows_pictures(run, profile) else None
    drawn = sampled_memes(run, memes, shown, profile)
    if shown is not None:
        there = pictures.pictures_below(shown)
        without = sum(meme.meme_id not in there for meme in memes)
        if 0 < without < len(memes):
            print(
                f"{without:,} of {len(memes):,} memes have no picture below {shown.name}: the sample is of "
                "the others"
            )
        elif without:
            print(
                f"none of {without:,} memes has a picture below {shown.name}: they are read from their "
                "texts. mtrclip.fetch fetches some, mtrclip.images names a folder of yours"
            )
    with run.chat("annotator", STAGE) as chat:
        return llm_chat.run(annotate(drawn, infos, chat, profile, pictures.pictures_in(shown)))


def reading_counts(readings: Iterable[MemeReading], labels: cm50_prompts.Variant = "paper") -> pd.DataFrame:
    """How many readings have each device, label of FigMemes and emotion, most frequent first.

    Columns: `what` (device, FigMemes label, emotion), `label`, `readings`, and `share` of the readings that
    are scored; a reading may have several devices. Devices that are in no list of the paper are named "other:
    ..." and have no label of FigMemes. Unscored readings have a row of their own, without a share.
    """
    readings = list(readings)
    scored = [reading for reading in readings if not reading.unscored]
    counts: dict[str, Counter[str]] = {"device": Counter(), "FigMemes label": Counter(), "emotion": Counter()}
    for reading in scored:
        known, other = cm50_prompts.normalise(reading.literary_devices)
        mapped = cm50_prompts.to_figmemes(known, labels)
        counts["device"].update([*known, *(f"other: {w}" for w in other)] or [cm50_prompts.NONE])
        counts["FigMemes label"].update(mapped or [cm50_prompts.NONE])
        counts["emotion"].update([reading.emotion] if reading.emotion else [])
    rows = [
        (what, label, n, n / len(scored))
        for what, counted in counts.items()
        for label, n in sorted(counted.items(), key=lambda item: (-item[1], item[0]))
    ]
    if unscored := len(readings) - len(scored):
        rows.append(("unscored", "", unscored, float("nan")))
    return pd.DataFrame(rows, columns=["what", "label", "readings", "share"])


def estimate_readings(
    profile: Profile, memes: Sequence[TemplateMeme], infos: Iterable[TemplateInfo], pictures: bool = False
) -> pd.DataFrame:
    """A row per prompt and a total for the profile's sample of `memes`, in the columns of `make cost`.

    `pictures`: whether they are shown. No call is made; what is recorded costs nothing and is not looked at.
    """
    settings, about = profile.cm50.annotation, {info.template: info for info in infos}
    endpoint = profile.models.endpoints.annotator or profile.models.endpoints.generator
    asked = len(draw_sample(memes, settings.sample, profile.seed))
    shown = Image(image_id="estimate", load=lambda: "") if pictures else None
    rows, spent = [], (STAGE, "annotation")
    for spec in passes(settings):
        some = draw_sample(memes, LOOKED_AT, profile.seed)
        requests = [
            reading_request(spec, meme, about.get(meme.template), settings, 0, shown) for meme in some
        ]
        messages = [message for request in requests for message in request.messages]
        characters = sum(len(message.text) for message in messages)
        images = sum(len(message.images) for message in messages)
        each = characters * TOKENS_PER_CHARACTER + images * budget.tokens_per_image(endpoint)
        compared = len(spec.devices) if issubclass(spec.schema, ThreeStepReply) else 0
        t_in = round(asked * each / max(1, len(some)))
        t_out = asked * (REPLY_TOKENS[spec.kind] + TOKENS_PER_COMPARISON * compared)
        stage = f"07 {spec.name}"
        rows.append(
            budget.estimate_row(stage, spent, profile, profile.models.llm, endpoint, asked, t_in, t_out)
        )
    return budget.with_real_usage(rows, Spent())


def asked_about(spec: PromptSpec) -> tuple[DataSet, Literal["all", "drawn", "matched"]]:
    """Which memes a prompt is asked about: those that its row of the paper was measured on."""
    dataset: DataSet = "figmemes" if spec.table in FIGMEMES_TABLES else "memecap"
    if spec.data in (cm50_prompts.WHOLE_MEMECAP, cm50_prompts.WHOLE_FIGMEMES):
        return dataset, "all"
    return dataset, "drawn" if spec.data == cm50_prompts.ELEVEN else "matched"


def evaluate_prompts(run: Run, data: Data, pairs: Mapping[str, Sequence[TemplateMatch]]) -> list[MemeReading]:
    """Ask every prompt of `cm50.annotation.evaluate` about the memes of its row in Tables 9 to 11.

    `pairs`: what `confirmed_matches` gives, by data set. Prompts of Tables 9 and 11 are asked about FigMemes'
    test set, all others about MemeCap's: whole-set rows about every meme, those tried on 11 memes about as
    many, drawn by seed, the others about memes matched with a template. A pair that a person rejected takes
    no part; of two templates of one meme the first counts. Ids of the readings are names of pictures, without
    suffix, as references and labels have them, too. What cannot be asked is said: a prompt on the picture
    needs a model that sees and pictures that can be read, one on OCR text needs the text.
    """
    profile, settings = run.profile, run.profile.cm50.annotation
    specs = [cm50_prompts.prompt(name) for name in dict.fromkeys(settings.evaluate)]
    if specs and profile.models.llm == "authored":
        print(NOBODY)
        return []
    sees = profile.models.llm == "openai" and run.endpoint("annotator").vision
    folder = pictures.picture_folder(profile)
    readings: list[MemeReading] = []
    for dataset in TITLES:
        missing = data.found[dataset].path is None
        mine = []
        for spec in (spec for spec in specs if asked_about(spec)[0] == dataset):
            if spec.sees and not sees:
                _print_why(spec, "needs a model that sees (endpoints.annotator.vision)")
            elif missing:
                _print_why(spec, f"is asked about {TITLES[dataset]}, which is missing (key {dataset})")
            else:
                mine.append(spec)
        if not mine:
            continue
        memes = _with_templates(references.memes_of(data.found, dataset), pairs.get(dataset, ()), dataset)
        pictured = _pictured(memes, folder, dataset) if any(spec.sees for spec in mine) else []
        for spec in mine:
            chosen = _chosen(spec, memes, pictured, profile.seed)
            if chosen:
                only = {"prompt": "", "devices_prompt": "", "sample": None}
                only["devices_prompt" if spec.asks_for_devices else "prompt"] = spec.name
                asked = profile.replace(template_annotation=settings.model_copy(update=only))
                shown = folder if spec.sees else None
                readings += read_memes(run, chosen, data.infos, shown, asked)
    return readings


def _print_why(spec: PromptSpec, why: str) -> None:
    print(f"not computed here: {spec.name} {why}")


def _with_templates(
    memes: Iterable[OtherMeme], pairs: Iterable[TemplateMatch], dataset: DataSet
) -> list[TemplateMeme]:
    """Memes with the template that they were matched with, else `UNKNOWN`; each picture once."""
    templates: dict[str, str] = {}
    for pair in pairs:
        if pair.confirmed is not False:
            templates.setdefault(pair.instance, pair.template)
    matched: dict[str, TemplateMeme] = {}
    for meme in memes:
        matched.setdefault(
            meme.image,
            TemplateMeme(
                meme_id=Path(meme.image).stem,
                template=templates.get(meme.image, UNKNOWN),
                url=meme.url or meme.image,  # FigMemes has no addresses
                post=meme.image,
                title=meme.title,
                captions=[meme.text],
                source=TITLES[dataset],
            ),
        )
    return list(matched.values())


def _pictured(memes: Sequence[TemplateMeme], folder: Path, dataset: DataSet) -> list[TemplateMeme]:
    """Memes whose picture lies below `folder` and can be decoded; says how many have none, or a broken one.

    The file must be the one that `pictures` finds, and have the name that the data set gives it.
    """
    there, readable, broken = pictures.files_in(folder), [], []
    present = [meme for meme in memes if (file := there.get(meme.meme_id)) and file.name == meme.post]
    for meme in present:
        try:
            decode(there[meme.meme_id])
        except ImageRejected as error:
            broken.append(f"{meme.post}: {error}")
        else:
            readable.append(meme)
    without = len(memes) - len(present)
    counts = f"{TITLES[dataset]}: {len(readable)} memes can be shown, {without} are without a picture"
    print(counts + (f", {len(broken)} cannot be read (the first: {broken[0]})" if broken else ""))
    return readable


def _chosen(
    spec: PromptSpec, memes: Sequence[TemplateMeme], pictured: Sequence[TemplateMeme], seed: int
) -> list[TemplateMeme]:
    """The memes that a prompt is asked about; says so where there is none, or where they are drawn."""
    dataset, part = asked_about(spec)
    chosen = pictured if spec.sees else [meme for meme in memes if meme.text]
    if not chosen:
        lack = "a readable picture" if spec.sees else f"a text ({references.TEXTS}, beside the labels)"
        _print_why(spec, f"needs memes of {TITLES[dataset]} with {lack}")
    elif part == "matched":
        chosen = [meme for meme in chosen if meme.template != UNKNOWN]
        if not chosen:
            why = f"is asked about memes of {TITLES[dataset]} of known templates, and none was matched"
            _print_why(spec, why)
    elif part == "drawn":
        # Of all memes, so that prompts on pictures and on texts meet the same where a meme has both.
        names = sorted(meme.meme_id for meme in memes)
        order = statistics.rng(seed, "prompts on FigMemes").permutation(len(names)).tolist()
        place = {names[row]: at for at, row in enumerate(order)}
        chosen = sorted(chosen, key=lambda meme: place[meme.meme_id])[:DRAWN]
        print(f"{spec.name}: {len(chosen)} memes of {TITLES[dataset]}, drawn (the paper's 11 are not named)")
    return list(chosen)
