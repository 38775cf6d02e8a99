"""Find instances of templates among memes, in two stages (2501.13851, Section 3.3.1).

Stage 1 takes the nearest template by CLIP, as the Template-Label Counter of Bates et al. (2311.06649) does,
stage 2 looks at the pair with LPIPS (Zhang et al., 2018).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from memecmd_utils import pictures
from memecmd_utils.embedders import DualEncoder, ModelMissing, loading
from memecmd_utils.recordings import RecordingMiss, normalise
from memecmd_utils.runs import Run
from memecmd_utils.template_memes import data_sets
from memecmd_utils.template_memes.data_sets import NOT_COMPUTED, Data, DataSet

PAPER_PAIRS = {"figmemes": 46, "memecap": 42}  # pairs that the paper was left with after a look at each
PAPER_CLIP = "openai/clip-vit-large-patch14-336"  # the model that its limits are made for
LPIPS_SIDE = 64
"""Pixels of a side of the squares that LPIPS compares."""
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


def match_data_set(run: Run, data: Data, dataset: DataSet) -> pd.DataFrame | None:
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


def match(instances: Sequence[Instance], templates: Sequence[Instance], encoder: DualEncoder) -> pd.DataFrame:
    """Match memes with templates, whose caption is what they mean; says so where LPIPS is not here.

    A row a meme and variant: `instance`, its nearest `template`, `variant`, `distance` (of ocr_cosine the
    cosine), `near` (stage 1 keeps it), `lpips` (NaN where it was not computed), `kept`.
    """
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
    return pairs.assign(kept=pairs["near"] & (pairs["lpips"] < limits))


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


def kept_pairs(matches: pd.DataFrame | None) -> pd.DataFrame:
    """Pairs that any variant kept, each once; the paper's authors then looked at each, and kept some."""
    if matches is None:
        return pd.DataFrame(columns=["instance", "template", "variant", "distance", "lpips"])
    pairs = matches[matches["kept"]].groupby(["instance", "template"], as_index=False, sort=False)
    return pairs.agg({"variant": ", ".join, "distance": "first", "lpips": "first"})


def match_counts(run: Run, matches: pd.DataFrame, dataset: DataSet) -> pd.DataFrame:
    """Pairs left after each step, beside the paper's, which stands there only where its CLIP was used.

    What was not computed says so in place of a number.
    """
    missing = NOT_COMPUTED if matches.loc[matches["near"], "lpips"].isna().any() else ""
    rows = []
    for variant, (limit, lpips) in RULES.items():
        mine = matches[matches["variant"] == variant]
        sign = "cosine at least" if variant == "ocr_cosine" else "distance at most"
        rows.append((f"{variant}: {sign} {limit:g}", int(mine["near"].sum()), ""))
        rows.append((f"{variant}: LPIPS below {lpips:g}", missing or int(mine["kept"].sum()), ""))
    rows.append(("pairs of all variants", missing or len(kept_pairs(matches)), ""))
    usual = run.profile.cm50.matching.clip.partition("@")[0] == PAPER_CLIP
    paper = PAPER_PAIRS[dataset] if usual else "another model: none"
    rows.append(("confirmed by a look at each", "nobody looked", paper))
    return pd.DataFrame(rows, columns=["step", "pairs", "paper"]).set_index("step")
