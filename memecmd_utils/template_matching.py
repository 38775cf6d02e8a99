"""Find instances of templates among memes, in two stages (2501.13851, Section 3.3.1).

Stage 1 takes the nearest template by CLIP, as the Template-Label Counter of Bates et al. (2311.06649) does,
stage 2 looks at the pair with LPIPS. What is left a person confirms on a sheet (`matching_sheet`).
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from memecmd_utils.clip_models import DualEncoder, ModelMissing
from memecmd_utils.images import ImageRejected, decode
from memecmd_utils.matching_records import (
    RULES,
    Instance,
    Matches,
    Rule,
    TemplateMatch,
    Thresholds,
    Variant,
)
from memecmd_utils.perceptual_distance import Lpips
from memecmd_utils.recordings import RecordingMiss
from memecmd_utils.template_schemas import TemplateInfo
from memecmd_utils.vectors import normalise

PAPER_WIDTH = 768
"""Numbers in a row of CLIP ViT-L/14, whose lengths the limit of 30 is made for."""
BLOCK = 1024


def combine(pictures: np.ndarray, texts: np.ndarray, variant: Variant) -> np.ndarray:
    """One row for image and text, both [n, d] as CLIP projects them.

    `concatenated`: one behind the other, [n, 2d]. `fancy_fusion`: the mean of the two rows at unit length,
    which the code of Bates et al. calls `fancy`; we read the paper's "fancy fusion embedding" so, because
    its limit of 1 fits distances from 0 to 2. `product`: element by element, which their code calls `fusion`.
    """
    if variant == "concatenated":
        return np.hstack([pictures, texts])
    if variant == "fancy_fusion":
        return (normalise(pictures) + normalise(texts)) / 2
    if variant == "product":
        return pictures * texts
    raise ValueError(f"{variant!r} does not combine image and text")


def nearest(queries: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Index of the nearest row for each query, and the Euclidean distance; the first of equally near ones."""
    rows = rows.astype(np.float64)
    index, distance = np.empty(len(queries), dtype=int), np.empty(len(queries))
    for start in range(0, len(queries), BLOCK):
        part = queries[start : start + BLOCK].astype(np.float64)
        squares = (part**2).sum(1)[:, None] + (rows**2).sum(1) - 2 * part @ rows.T
        best = squares.argmin(1)
        index[start : start + len(part)] = best
        # From the difference itself: the squares above cancel where two rows are near.
        distance[start : start + len(part)] = np.linalg.norm(part - rows[best], axis=1)
    return index, distance


def match(
    instances: Sequence[Instance],
    templates: Sequence[TemplateInfo],
    folder: Path,
    encoder: DualEncoder,
    lpips: Lpips,
    thresholds: Thresholds | Sequence[Rule] = "code",
) -> Matches:
    """Match memes with templates whose blank pictures lie below `folder`, by named rules or one's own.

    A template's text is its "about". What cannot be read takes no part and is named. Where a model is not
    here, `not_computed` says what to give, and pairs that lack LPIPS stay undecided. The paper's code looks
    among all templates of a KnowYourMeme dump that it does not publish; among fewer, the nearest is farther.
    """
    unreadable: list[tuple[str, str]] = []
    known = [t for t in templates if _readable(t.template, folder / t.picture, unreadable, bool(t.picture))]
    given = [i for i in instances if _readable(i.name, i.image, unreadable)]
    images = {i.name: i.image for i in given}
    pictures = {t.template: folder / t.picture for t in known}
    if len(images) < len(given) or len(pictures) < len(known):
        raise ValueError("two memes, or two templates, have one name: give each its own")
    rules = RULES[thresholds] if isinstance(thresholds, str) else tuple(thresholds)
    done = Matches(rules, images, pictures, unreadable)
    if not known or not given:
        lack = "blank picture of a template" if not known else "image of a meme"
        done.not_computed = f"not computed here: there is no readable {lack}"
        return done
    try:
        for rule in done.rules:
            done.pairs += _stage_one(rule, given, known, pictures, encoder)
        done.models = encoder.name
        _stage_two(done, lpips)
        width = encoder.encode_images(list(pictures.values())).shape[1]
        done.comparable = width == PAPER_WIDTH
        if any(pair.lpips is not None for pair in done.pairs):
            done.models += f", {lpips.name}"
            done.comparable = done.comparable and lpips.published
    except (ModelMissing, RecordingMiss) as error:
        done.not_computed = f"not computed here: {error}"
        for pair in done.pairs:
            if pair.kept is None:
                pair.why = done.not_computed
    return done


def _readable(name: str, file: Path, unreadable: list[tuple[str, str]], given: bool = True) -> bool:
    try:
        if not given:
            raise ImageRejected("no blank picture")
        decode(file)
    except ImageRejected as error:
        unreadable.append((name, str(error)))
        return False
    return True


def _stage_one(
    rule: Rule,
    instances: Sequence[Instance],
    templates: Sequence[TemplateInfo],
    pictures: dict[str, Path],
    encoder: DualEncoder,
) -> list[TemplateMatch]:
    blank = encoder.encode_images(list(pictures.values()))
    if rule.variant == "ocr_cosine":
        texts = encoder.encode_texts([instance.ocr for instance in instances])
        cosines = normalise(texts) @ normalise(blank).T
        index, value = cosines.argmax(1), cosines.max(1)
    else:
        abouts = encoder.encode_texts([template.about for template in templates])
        seen = encoder.encode_images([instance.image for instance in instances])
        texts = encoder.encode_texts([instance.text for instance in instances])
        index, value = nearest(combine(seen, texts, rule.variant), combine(blank, abouts, rule.variant))
    found = []
    for instance, best, number in zip(instances, index, value.tolist(), strict=True):
        kept, why = None, ""
        if rule.variant == "ocr_cosine" and number < rule.limit:
            kept, why = False, f"cosine {number:.3g} below {rule.limit:g}"
        elif rule.variant != "ocr_cosine" and number > rule.limit:
            kept, why = False, f"distance {number:.4g} above {rule.limit:g}"
        pair = {"instance": instance.name, "template": templates[best].template, "variant": rule.variant}
        found.append(TemplateMatch(**pair, distance=number, kept=kept, why=why))
    return found


def _stage_two(done: Matches, lpips: Lpips) -> None:
    limits = {rule.variant: rule.lpips for rule in done.rules}
    left = [pair for pair in done.pairs if pair.kept is None]
    both = list(dict.fromkeys((pair.instance, pair.template) for pair in left))
    values = lpips.distances([(done.instances[one], done.templates[other]) for one, other in both])
    value_of = dict(zip(both, values.tolist(), strict=True))
    for pair in left:
        pair.lpips = value_of[pair.instance, pair.template]
        pair.kept = pair.lpips < limits[pair.variant]
        pair.why = "" if pair.kept else f"LPIPS {pair.lpips:.3g} not below {limits[pair.variant]:g}"
