"""Find instances of templates among memes, in two stages (2501.13851, Section 3.3.1).

Stage 1 takes the nearest template by CLIP, as the Template-Label Counter of Bates et al. (2311.06649) does,
stage 2 looks at the pair with LPIPS (Zhang et al., 2018). What is left a person confirms on a sheet.
"""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from memecmd_utils import files, pictures
from memecmd_utils.embedders import DualEncoder, ModelMissing, loading
from memecmd_utils.files import paths
from memecmd_utils.recordings import RecordingMiss, normalise
from memecmd_utils.runs import Run
from memecmd_utils.template_memes import data_sets
from memecmd_utils.template_memes.data_sets import NOT_COMPUTED, TITLES, Data, DataSet, DataSetError

PAPER_PAIRS = {"figmemes": 46, "memecap": 42}  # pairs that the paper was left with after a look at each
PAPER_CLIP = "openai/clip-vit-large-patch14-336"  # the model that its limits are made for
SHEET_SIDE, LPIPS_SIDE = 360, 64
"""Pixels of a picture's longer side on the confirmation sheet, and of the squares that LPIPS compares."""


RULES = {"concatenated": (30, 0.29), "ocr_cosine": (0.1, 0.3)}
"""By variant of stage 1: distance at most, or cosine at least; then LPIPS below: as the paper's code has it.

The paper's text names 30 and 1 for two embeddings and 1 for LPIPS.
"""


class Instance(NamedTuple):
    """A meme that may be made from a template, or a template: what its image shows, and the text on it."""

    name: str
    image: Path
    caption: str = ""
    ocr: str = ""


class Matches(NamedTuple):
    """What matching gave."""

    pairs: pd.DataFrame
    """A row a meme and variant: `instance`, its nearest `template`, `variant`, `distance` (of ocr_cosine the
    cosine), `near` (stage 1 keeps it), `lpips` (NaN where it was not computed), `kept`."""
    images: dict[str, Path]
    model: str
    """Name of the CLIP behind the numbers."""


def lpips_distances(pairs: Sequence[tuple[Path, Path]]) -> np.ndarray:
    """LPIPS of pairs of image files by AlexNet, version 0.1: float64 [n]; 0 for two equal pictures.

    The network gets values from 0 to 1, as the code of 2501.13851 has it and its limit 0.29 asks for; it was
    trained on -1 to 1. AlexNet's weights (233 MB) are downloaded by torchvision, once.
    """
    with loading("LPIPS"):
        import lpips
        import torch
        from torchvision import transforms

        net = lpips.LPIPS(net="alex", verbose=False)
    bicubic = transforms.InterpolationMode.BICUBIC
    cut = transforms.Compose(
        [transforms.Resize(LPIPS_SIDE, bicubic), transforms.CenterCrop(LPIPS_SIDE), transforms.ToTensor()]
    )
    squares = {file: cut(pictures.decode(file)) for file in {file for pair in pairs for file in pair}}
    with torch.inference_mode():
        values = [net(squares[one][None], squares[other][None]).item() for one, other in pairs]
    return np.array(values)


def match_data_set(run: Run, data: Data, dataset: DataSet) -> Matches | None:
    """Match a data set's memes with CM50's templates; says what is missing.

    Needs both data sets; memes without a picture that can be read take no part. For MemeCap the title of the
    post stands for the text on the meme, as in the paper's code, which looks among all templates of a
    KnowYourMeme dump that it does not publish: among fewer, the nearest is farther.
    """
    if missing := data.lacks(dataset, "cm50"):
        print(missing)
        return None
    below = data_sets.pictures_below(data_sets.picture_folder(run.profile))
    there = {path.name: path for path in below.values()}
    memes = data_sets.memes_of(data.found, dataset)
    instances = [
        Instance(meme.image, there[meme.image], next(iter(meme.image_captions), ""), meme.text or meme.title)
        for meme in memes
        if meme.image in there and data_sets.is_readable(there[meme.image])
    ]
    print(f"{len(instances)} memes with a picture, {len(memes) - len(instances)} without")
    templates = [
        Instance(name, path, data.about[name])
        for name, path in data.blank.items()
        if data_sets.is_readable(path)
    ]
    if not instances or not templates:
        print(f"{NOT_COMPUTED}: no picture of a meme, or none of a template")
        return None
    try:
        return match(instances, templates, run.clip(run.profile.cm50.matching.clip))
    except (ModelMissing, RecordingMiss) as error:
        print(f"{NOT_COMPUTED}: {error}")
        return None


def match(instances: Sequence[Instance], templates: Sequence[Instance], encoder: DualEncoder) -> Matches:
    """Match memes with templates, whose caption is what they mean; says so where LPIPS is not here."""
    images = {one.name: one.image for one in (*instances, *templates)}
    pairs = pd.concat([_stage_one(variant, instances, templates, encoder) for variant in RULES])
    near = pairs.loc[pairs["near"], ["instance", "template"]].drop_duplicates()
    both = [(images[one], images[other]) for one, other in near.itertuples(index=False)]
    try:
        near = near.assign(lpips=lpips_distances(both))
    except ModelMissing as error:
        print(f"{NOT_COMPUTED}: {error}")
        near = near.assign(lpips=np.nan)
    pairs = pairs.merge(near, how="left")
    limits = pairs["variant"].map({variant: lpips for variant, (_, lpips) in RULES.items()})
    return Matches(pairs.assign(kept=pairs["near"] & (pairs["lpips"] < limits)), images, encoder.name)


def _stage_one(
    variant: str, instances: Sequence[Instance], templates: Sequence[Instance], encoder: DualEncoder
) -> pd.DataFrame:
    """The nearest template of each meme, the first of equally near ones."""
    from scipy.spatial.distance import cdist

    limit, _ = RULES[variant]
    blank = encoder.encode_images([one.image for one in templates])
    if variant == "ocr_cosine":
        texts = encoder.encode_texts([one.ocr for one in instances])
        cosines = normalise(texts) @ normalise(blank).T
        index, value = cosines.argmax(1), cosines.max(1)
        near = value >= limit
    else:
        abouts = encoder.encode_texts([one.caption for one in templates])
        seen = encoder.encode_images([one.image for one in instances])
        # Where no caption is, the OCR text: so did Bates et al.
        texts = encoder.encode_texts([one.caption or one.ocr for one in instances])
        distances = cdist(np.hstack([seen, texts]), np.hstack([blank, abouts]))
        index, value = distances.argmin(1), distances.min(1)
        near = value <= limit
    names = [templates[place].name for place in index]
    rows = {"instance": [one.name for one in instances], "template": names, "variant": variant}
    return pd.DataFrame({**rows, "distance": value, "near": near})


def confirmed_matches(run: Run, matches: Matches | None, dataset: DataSet) -> pd.DataFrame:
    """Pairs that any variant kept, each once, and whether a person `confirmed` them (NaN: nobody looked).

    The profile names the sheet's CSV by `cm50.matching.confirmed` or `confirmed_figmemes`.
    """
    if matches is None:
        return pd.DataFrame(columns=["instance", "template", "variant", "distance", "lpips", "confirmed"])
    kept = matches.pairs[matches.pairs["kept"]]
    pairs = kept.groupby(["instance", "template"], as_index=False, sort=False).agg(
        variant=("variant", ", ".join), distance=("distance", "first"), lpips=("lpips", "first")
    )
    settings = run.profile.cm50.matching
    given = settings.confirmed if dataset == "memecap" else settings.confirmed_figmemes
    if not given or pairs.empty:
        return pairs.assign(confirmed=None)
    file = paths.user_path(given)
    try:
        table = pd.read_csv(file, dtype=str, keep_default_na=False, encoding="utf-8-sig")
        said = table[["instance", "template", "action"]].map(files.unguarded)
    except (OSError, ValueError, KeyError) as error:
        raise DataSetError(f"{file} is no CSV of a confirmation sheet ({error}): save it anew") from error
    if not said["action"].isin(["keep", "reject"]).all() or len(said.merge(pairs)) != len(said):
        raise DataSetError(f"{file.name}: a row is of no pair found here, or says neither keep nor reject")
    pairs = pairs.merge(said, how="left")
    return pairs.assign(confirmed=pairs.pop("action").map({"keep": True, "reject": False}))


def match_counts(run: Run, matches: Matches, confirmed: pd.DataFrame, dataset: DataSet) -> pd.DataFrame:
    """Pairs left after each step, beside the paper's, which stands there only where its CLIP was used.

    What was not computed says so in place of a number.
    """
    no_lpips = matches.pairs.loc[matches.pairs["near"], "lpips"].isna().any()
    missing, rows = NOT_COMPUTED if no_lpips else "", []
    for variant, (limit, lpips) in RULES.items():
        mine = matches.pairs[matches.pairs["variant"] == variant]
        sign = "cosine at least" if variant == "ocr_cosine" else "distance at most"
        rows.append((f"{variant}: {sign} {limit:g}", int(mine["near"].sum()), ""))
        rows.append((f"{variant}: LPIPS below {lpips:g}", missing or int(mine["kept"].sum()), ""))
    rows.append(("pairs of all variants", missing or len(confirmed), ""))
    looked = confirmed["confirmed"].dropna()
    text = f"{int(looked.sum())} ({len(looked)} looked at)" if len(looked) else "nobody looked yet"
    usual = run.profile.cm50.matching.clip.partition("@")[0] == PAPER_CLIP
    paper = PAPER_PAIRS[dataset] if usual else "another model: none"
    rows.append(("confirmed by a person", missing or text, paper))
    return pd.DataFrame(rows, columns=["step", "pairs", "paper"]).set_index("step")


def write_match_sheet(target: Path, dataset: DataSet, matches: Matches, confirmed: pd.DataFrame) -> Path:
    """Write the confirmation sheet, one HTML file that holds all it shows; returns `target`.

    What it saves `confirmed_matches` reads. Pictures are embedded, some 20 KB each, so the page can be mailed
    to whoever is to look.
    """
    thumbnail = cache(lambda name: pictures.thumbnail(matches.images[name], SHEET_SIDE))
    rows = [(pair, thumbnail(pair.instance), thumbnail(pair.template)) for pair in confirmed.itertuples()]
    page = files.templates().get_template("matching_sheet.html.j2")
    files.write_text(target, page.render(name=TITLES[dataset], rows=rows, model=matches.model))
    return target
