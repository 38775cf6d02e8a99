"""The annotation held against other data: memes of MemeCap and FigMemes, matched with templates and read."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from memecmd_utils.cm50 import annotation, matching, prompts, references, survey
from memecmd_utils.cm50 import lpips as cm50_lpips
from memecmd_utils.cm50 import pictures as cm50_pictures
from memecmd_utils.cm50.data import Data
from memecmd_utils.cm50.matching import Matches, TemplateMatch
from memecmd_utils.cm50.prompts import PromptSpec
from memecmd_utils.core import images, paths, seeds
from memecmd_utils.core.fetch import datasets
from memecmd_utils.runs import Run
from memecmd_utils.schemas import MemeReading, TemplateMeme
from memecmd_utils.settings import Profile
from memecmd_utils.surveys import forms
from memecmd_utils.surveys.forms import FormError

DataSet = Literal["memecap", "figmemes"]
TITLES: dict[DataSet, str] = {"memecap": "MemeCap", "figmemes": "FigMemes"}
CONFIRMED: dict[DataSet, str] = {"memecap": "confirmed", "figmemes": "confirmed_figmemes"}
"""Keys of `cm50.matching` that name what a person said of each data set's pairs."""
FIGMEMES_TABLES = (9, 11)
"""Tables that score prompts on FigMemes; all other prompts are asked about MemeCap's memes."""
DRAWN = 11
"""The paper tried prompts on 11 memes of FigMemes that it does not name; ours are drawn by seed."""
UNKNOWN = "unknown"
"""Template of a meme that was matched with none; no template has this name, so it has no context."""


class OtherMeme(NamedTuple):
    """A meme of another data set."""

    image: str
    """Name of its file."""
    caption: str = ""
    """What the picture shows."""
    text: str = ""
    """The text on it, where it is known."""
    title: str = ""
    url: str = ""


def memes_of(data: Data, dataset: DataSet) -> list[OtherMeme]:
    """MemeCap's test set, or FigMemes' by its standard split with the texts that come with the labels.

    The data set has to be there; raises `MemeCapError` or `FigMemesError` where it cannot be read.
    """
    if dataset == "memecap":
        rows = [meme for meme in references.read(data.found["memecap"].path) if meme.image]
        return [OtherMeme(m.image, next(iter(m.image_captions), ""), "", m.title, m.url) for m in rows]
    folder = data.found["figmemes"].path
    split = references.read_split(folder)
    texts = references.read_texts(data.found["figmemes_labels"].path, folder)
    names = split.loc[split["split"] == "test", references.NAME]
    return [OtherMeme(name, text=texts.get(name, "").strip()) for name in names]


def match_data_set(run: Run, data: Data, dataset: DataSet) -> Matches | None:
    """Match a data set's memes with CM50's templates (`matching.match`); says what is missing.

    Needs both data sets; memes without a picture in the folder of images take no part. For MemeCap the title
    of the post stands for the text on the meme, as in the paper's code.
    """
    if not data.have(dataset, "cm50"):
        return None
    profile, settings = run.profile, run.profile.cm50.matching
    rows = [(meme.image, meme.caption, meme.text or meme.title) for meme in memes_of(data, dataset)]
    instances, missing = matching.find_instances(cm50_pictures.picture_folder(profile), rows)
    print(f"{len(instances)} memes with a picture, {len(missing)} without")
    encoder = run.clip(settings.clip)
    download = datasets.may_fetch()
    lpips = cm50_lpips.load(settings.lpips, settings.lpips_scale, download=download)
    folder = data.found["cm50"].path
    infos = [info for info in data.infos if info.picture]
    return matching.match(instances, infos, folder, encoder, lpips, settings.thresholds)


def confirmed_matches(profile: Profile, matches: Matches | None, dataset: DataSet) -> list[TemplateMatch]:
    """Pairs of all variants, with what a person said of them where the profile names that file (`CONFIRMED`).

    Where nothing was matched there is no pair that the file could speak of: then it is not read, and that is
    said. Else a file that is not there or names another pair raises `LibraryError`.
    """
    pairs = matching.merged(matches.pairs) if matches is not None else []
    key = CONFIRMED[dataset]
    if not (given := getattr(profile.cm50.matching, key)):
        return pairs
    file = paths.root / Path(given).expanduser()
    if not pairs or matches.not_computed:
        why = "none was looked for" if matches is None else matches.not_computed or "no pair was kept"
        print(f"not read: {file.name} (cm50.matching.{key}) speaks of pairs of {TITLES[dataset]}; {why}")
        return pairs
    decisions = matching.read_decisions(file, pairs)
    if not decisions:
        print(f"{file.name} (cm50.matching.{key}) says nothing of any pair of {TITLES[dataset]}")
    return matching.confirm(pairs, decisions)


def asked_about(spec: PromptSpec) -> tuple[DataSet, Literal["all", "drawn", "matched"]]:
    """Which memes a prompt is asked about: those that its row of the paper was measured on."""
    dataset: DataSet = "figmemes" if spec.table in FIGMEMES_TABLES else "memecap"
    if spec.data in (prompts.WHOLE_MEMECAP, prompts.WHOLE_FIGMEMES):
        return dataset, "all"
    return dataset, "drawn" if spec.data == prompts.ELEVEN else "matched"


def evaluate_prompts(run: Run, data: Data, pairs: Mapping[str, Sequence[TemplateMatch]]) -> list[MemeReading]:
    """Ask every prompt of `cm50.annotation.evaluate` about the memes of its row in Tables 9 to 11.

    `pairs`: what `confirmed` gives, by data set. Prompts of Tables 9 and 11 are asked about FigMemes' test
    set, all others about MemeCap's: whole-set rows about every meme, those tried on 11 memes about as many,
    drawn by seed, the others about memes matched with a template. A pair that a person rejected takes no
    part; of two templates of one meme the first counts. Ids of the readings are names of pictures, without
    suffix, as references and labels have them, too. What cannot be asked is said: a prompt on the picture
    needs a model that sees and pictures that can be read, one on OCR text needs the text.
    """
    profile, settings = run.profile, run.profile.cm50.annotation
    specs = [prompts.prompt(name) for name in dict.fromkeys(settings.evaluate)]
    if specs and profile.models.llm == "authored":
        print(annotation.NOBODY)
        return []
    sees = profile.models.llm == "openai" and run.endpoint("annotator").vision
    folder = cm50_pictures.picture_folder(profile)
    readings: list[MemeReading] = []
    for dataset in TITLES:
        mine = [spec for spec in specs if asked_about(spec)[0] == dataset and (sees or not spec.sees)]
        blind = [spec for spec in specs if asked_about(spec)[0] == dataset and spec not in mine]
        for spec in blind:
            _say(spec, "needs a model that sees (endpoints.annotator.vision)")
        if data.found[dataset].path is None:
            for spec in mine:
                _say(spec, f"is asked about {TITLES[dataset]}, which is missing (key {dataset})")
            continue
        if not mine:
            continue
        memes = _with_templates(memes_of(data, dataset), pairs.get(dataset, ()), dataset)
        pictured = _pictured(memes, folder, dataset) if any(spec.sees for spec in mine) else []
        for spec in mine:
            chosen = _chosen(spec, memes, pictured, profile.seed)
            if chosen:
                devices = spec.kind == "literary devices"
                one = {"prompt": "" if devices else spec.name, "devices_prompt": spec.name if devices else ""}
                asked = profile.replace(
                    template_annotation=settings.model_copy(update={**one, "sample": None})
                )
                shown = folder if spec.sees else None
                readings += annotation.read_memes(run, chosen, data.infos, shown, asked)
    return readings


def _say(spec: PromptSpec, why: str) -> None:
    print(f"not computed here: {spec.name} {why}")


def _with_templates(
    memes: Iterable[OtherMeme], pairs: Iterable[TemplateMatch], dataset: DataSet
) -> list[TemplateMeme]:
    """Memes with the template that they were matched with, else `UNKNOWN`; each picture once."""
    templates: dict[str, str] = {}
    for pair in pairs:
        if pair.confirmed is not False:
            templates.setdefault(pair.instance, pair.template)
    found: dict[str, TemplateMeme] = {}
    for meme in memes:
        found.setdefault(
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
    return list(found.values())


def _pictured(memes: Sequence[TemplateMeme], folder: Path, dataset: DataSet) -> list[TemplateMeme]:
    """Memes whose picture lies below `folder` and can be decoded; says how many have none, or a broken one.

    The file must be the one that `pictures` finds, and have the name that the data set gives it.
    """
    there, found, broken = cm50_pictures.files_in(folder), [], []
    present = [meme for meme in memes if (file := there.get(meme.meme_id)) and file.name == meme.post]
    for meme in present:
        try:
            images.decode(there[meme.meme_id])
        except images.ImageRejected as error:
            broken.append(f"{meme.post}: {error}")
        else:
            found.append(meme)
    without = len(memes) - len(present)
    said = f"{TITLES[dataset]}: {len(found)} memes can be shown, {without} are without a picture"
    print(said + (f", {len(broken)} cannot be read (the first: {broken[0]})" if broken else ""))
    return found


def _chosen(
    spec: PromptSpec, memes: Sequence[TemplateMeme], pictured: Sequence[TemplateMeme], seed: int
) -> list[TemplateMeme]:
    """The memes that a prompt is asked about; says so where there is none, or where they are drawn."""
    dataset, part = asked_about(spec)
    chosen = pictured if spec.sees else [meme for meme in memes if meme.text]
    if not chosen:
        lack = "a readable picture" if spec.sees else f"a text ({references.TEXTS}, beside the labels)"
        _say(spec, f"needs memes of {TITLES[dataset]} with {lack}")
    elif part == "matched":
        chosen = [meme for meme in chosen if meme.template != UNKNOWN]
        if not chosen:
            _say(
                spec,
                f"is asked about memes of {TITLES[dataset]} of known templates, and none was matched",
            )
    elif part == "drawn":
        # Of all memes, so that prompts on pictures and on texts meet the same where a meme has both.
        names = sorted(meme.meme_id for meme in memes)
        order = seeds.rng(seed, "prompts on FigMemes").permutation(len(names)).tolist()
        place = {names[row]: at for at, row in enumerate(order)}
        chosen = sorted(chosen, key=lambda meme: place[meme.meme_id])[:DRAWN]
        print(f"{spec.name}: {len(chosen)} memes of {TITLES[dataset]}, drawn (the paper's 11 are not named)")
    return list(chosen)


def write_survey(run: Run, readings: Iterable[MemeReading], folder: Path) -> Path | None:
    """Write `preference_survey.html` of a run and its key, or say why there is nothing to ask about.

    It needs memes with readings by two systems whose pictures lie below `folder`, and answers that differ.
    """
    readings, pictures = list(readings), cm50_pictures.pictures_below(folder)
    pictured = [reading for reading in readings if reading.meme_id in pictures]
    systems = systems_of(pictured)
    if not systems:
        print(
            "no preference survey: no meme with a picture has readings by two systems "
            f"({len({r.meme_id for r in readings}):,} memes with readings, "
            f"{len({r.meme_id for r in pictured}):,} of them with a picture below {folder.name})"
        )
        return None
    try:
        form, key = survey.choose(systems, seed=run.profile.seed)
        page = forms.write_page(run.report / "preference_survey.html", form, pictures)
    except FormError as error:
        print(f"no preference survey: {error}")
        return None
    forms.write_key(run.write("survey_key.csv"), survey.KeyRow, key)
    print(f"ask people: {page.name} compares {', '.join(systems)}; survey_key.csv says whose answer is whose")
    return page


def systems_of(readings: Iterable[MemeReading]) -> dict[str, list[MemeReading]]:
    """Readings by who made them, with or without context, where they share memes; empty if they do not.

    Names are such as `survey.SYSTEMS` lists: the model, then "with context" or "without context".
    Those with most readings come first; one that shares no meme with all before it is left out.
    """
    found: dict[str, dict[str, MemeReading]] = {}
    for reading in readings:
        if not reading.unscored:
            context = {True: ", with context", False: ", without context", None: ""}[reading.context]
            found.setdefault(f"{reading.source}{context}", {})[reading.meme_id] = reading
    systems: dict[str, list[MemeReading]] = {}
    shared: set[str] = set()
    for name, by_id in sorted(found.items(), key=lambda item: -len(item[1])):
        common = shared & set(by_id) if systems else set(by_id)
        if common:
            systems[name], shared = list(by_id.values()), common
    return systems if len(systems) > 1 else {}
