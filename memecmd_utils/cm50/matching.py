"""Find instances of templates among memes, in two stages (2501.13851, Section 3.3.1).

Stage 1 takes the nearest template by CLIP, as the Template-Label Counter of Bates et al. (2311.06649) does,
stage 2 looks at the pair with LPIPS. What is left a person confirms on a sheet (`matching`).
"""

import csv
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import pandas as pd

from memecmd_utils.cm50.lpips import Lpips
from memecmd_utils.core import html, storage
from memecmd_utils.core.encoders.clip import DualEncoder, ModelMissing
from memecmd_utils.core.images import ImageRejected, LibraryError, decode
from memecmd_utils.core.recordings.store import RecordingMiss
from memecmd_utils.core.recordings.vectors import normalise
from memecmd_utils.schemas import Record, TemplateInfo, Text

# --- Records of template matching: its rules, the pairs that it found, what a person said, and their counts


Variant = Literal["concatenated", "fancy_fusion", "product", "ocr_cosine"]
Thresholds = Literal["code", "paper"]
PAPER_PAIRS = {"figmemes": 46, "memecap": 42}
"""Pairs that the paper was left with after a look at each."""
ACTIONS = ("keep", "reject")


class Rule(NamedTuple):
    """A variant of stage 1: distance at most, or cosine at least, `limit`; then LPIPS below `lpips`."""

    variant: Variant
    limit: float
    lpips: float


RULES: dict[str, tuple[Rule, ...]] = {
    "code": (Rule("concatenated", 30, 0.29), Rule("ocr_cosine", 0.1, 0.3)),
    "paper": (Rule("concatenated", 30, 1), Rule("fancy_fusion", 1, 1)),
}
"""The paper names 30 and 1 for two embeddings and 1 for LPIPS. Its code runs the concatenated one with 30
and 0.29, and in place of the other a cosine of at least 0.1, with the 0.3 that is its LPIPS default."""


class Instance(NamedTuple):
    """A meme that may be made from a template.

    `caption` says what the image shows, `ocr` is the text on it (for MemeCap the paper's code takes the
    title of the post).
    """

    name: str
    image: Path
    caption: str = ""
    ocr: str = ""

    @property
    def text(self) -> str:
        """What stands beside the image: the caption; where none is, the OCR text (so did Bates et al.)."""
        return self.caption or self.ocr


class TemplateMatch(Record):
    """A meme and its nearest template by one variant, or by several where they were merged."""

    source: str = "computed"
    instance: str
    """Name of its file, with the blanks that it may begin or end with."""
    template: Text
    variant: Text
    distance: float
    """Euclidean distance; of `ocr_cosine` the cosine."""
    lpips: float | None = None
    """None: stage 1 dropped the pair, or LPIPS was not computed."""
    kept: bool | None = None
    """None: not decided, because LPIPS is missing."""
    why: str = ""
    """Why it was dropped or not decided."""
    confirmed: bool | None = None
    """What a person said; None: nobody looked."""


class Decision(NamedTuple):
    """What a person said of a pair on the confirmation sheet."""

    instance: str
    template: str
    action: Literal["keep", "reject"]
    why: str = ""


@dataclass
class Matches:
    """What matching gave: pairs of all variants, what took no part, and what was not computed."""

    rules: tuple[Rule, ...]
    instances: dict[str, Path]
    """Memes that took part, and their images."""
    templates: dict[str, Path]
    """Templates that took part, and their blank pictures."""
    unreadable: list[tuple[str, str]]
    """Name of a meme or template that took no part, and why."""
    pairs: list[TemplateMatch] = field(default_factory=list)
    models: str = ""
    """Names of the models behind the numbers."""
    comparable: bool = False
    """Whether they are such as the limits were made for: rows as long as those of CLIP ViT-L/14, and LPIPS
    with its published weights. With others the counts stand beside no number of the paper."""
    not_computed: str = ""
    """What is missing, as a sentence for tables; empty where all was computed."""


def find_instances(
    folder: Path, rows: Iterable[tuple[str, str, str]]
) -> tuple[list[Instance], list[tuple[str, str]]]:
    """Instances of (file name, caption, OCR text) whose image lies below a folder, and the other names."""
    files = {path.name: path for path in sorted(folder.rglob("*"), reverse=True) if path.is_file()}
    found, missing = [], []
    for name, caption, ocr in rows:
        if name in files:
            found.append(Instance(name, files[name], caption, ocr))
        else:
            missing.append((name, "no image of this name"))
    return found, missing


def merged(pairs: Iterable[TemplateMatch]) -> list[TemplateMatch]:
    """Kept pairs of all variants, each once: the list that is confirmed by hand. `variant` names them all.

    A meme stands twice where two variants keep it with different templates.
    """
    found: dict[tuple[str, str], TemplateMatch] = {}
    for pair in pairs:
        key = pair.instance, pair.template
        if not pair.kept:
            continue
        if key in found:
            names = f"{found[key].variant}, {pair.variant}"
            found[key] = found[key].model_copy(update={"variant": names})
        else:
            found[key] = pair.model_copy()
    return list(found.values())


def read_decisions(path: Path, pairs: Iterable[TemplateMatch]) -> list[Decision]:
    """Read what the sheet saved, a CSV of `instance,template,action,why`, for these pairs.

    Raises `LibraryError` naming the line for a pair that is none of them, an unknown action, or a pair that
    is both kept and rejected.
    """
    if not path.is_file():
        raise LibraryError(f"there is no file {path}: save it from the confirmation sheet")
    known = {(pair.instance, pair.template) for pair in pairs}
    found: dict[tuple[str, str], Decision] = {}
    try:
        # "utf-8-sig" because spreadsheet programs put a byte order mark in front.
        with path.open(encoding="utf-8-sig", newline="") as handle:
            reader = csv.DictReader(handle)
            if not {"instance", "template", "action"} <= set(reader.fieldnames or ()):
                raise LibraryError(f"{path.name}: the first line must be instance,template,action,why")
            for row in reader:
                where = f"{path.name} line {reader.line_num}"
                cells = [row.get(name) or "" for name in ("instance", "template")]
                action, why = (storage.unguarded(row.get(name) or "").strip() for name in ("action", "why"))
                if not (any(map(str.strip, cells)) or action):
                    continue
                # As the sheet guards it, as a person wrote it, as a spreadsheet trimmed it.
                bare = [cell.strip() for cell in cells]
                for texts in (map(storage.unguarded, cells), cells, map(storage.unguarded, bare), bare):
                    instance, template = texts
                    if (instance, template) in known:
                        break
                if action not in ACTIONS:
                    raise LibraryError(f"{where}: action {action!r} is neither keep nor reject")
                if (instance, template) not in known:
                    raise LibraryError(f"{where}: {instance!r} and {template!r} are no pair of this sheet")
                earlier = found.get((instance, template))
                if earlier and earlier.action != action:
                    raise LibraryError(f"{where}: {instance!r} and {template!r} are both kept and rejected")
                found[instance, template] = Decision(instance, template, action, why)
    except UnicodeDecodeError as error:
        raise LibraryError(f"{path.name} is not UTF-8: save it as CSV UTF-8") from error
    return list(found.values())


def confirm(pairs: Iterable[TemplateMatch], decisions: Iterable[Decision]) -> list[TemplateMatch]:
    """The pairs with what a person said of them; of whom nothing was said stays unconfirmed."""
    said = {(d.instance, d.template): d for d in decisions}
    found = []
    for pair in pairs:
        decision = said.get((pair.instance, pair.template))
        if decision is None:
            found.append(pair.model_copy(update={"confirmed": None}))
        else:
            update = {"confirmed": decision.action == "keep", "why": decision.why or pair.why}
            found.append(pair.model_copy(update=update))
    return found


def table(pairs: Iterable[TemplateMatch]) -> pd.DataFrame:
    """One row a pair: instance, template, variant, distance, lpips, kept, why, confirmed."""
    columns = ["instance", "template", "variant", "distance", "lpips", "kept", "why", "confirmed"]
    return pd.DataFrame([pair.model_dump(include=set(columns)) for pair in pairs], columns=columns)


def match_counts(
    matches: Matches, confirmed: Sequence[TemplateMatch] = (), dataset: str = ""
) -> pd.DataFrame:
    """Pairs left after each step, beside the paper's for `dataset` (`figmemes` or `memecap`).

    What was not computed says so in place of a number. The paper's number is that of pairs confirmed by
    hand; it stands there only where the models are such as the limits were made for.
    """
    rows: list[tuple[str, object]] = [
        ("memes with a readable image", len(matches.instances)),
        ("templates with a readable picture", len(matches.templates)),
    ]
    for rule in matches.rules:
        mine = [pair for pair in matches.pairs if pair.variant == rule.variant]
        sign = "cosine at least" if rule.variant == "ocr_cosine" else "distance at most"
        first = [pair for pair in mine if pair.kept is not False or pair.lpips is not None]
        second = [pair for pair in mine if pair.kept]
        undecided = any(pair.kept is None for pair in mine)
        rows += [
            (f"{rule.variant}: {sign} {rule.limit:g}", len(first) if mine else matches.not_computed),
            (
                f"{rule.variant}: LPIPS below {rule.lpips:g}",
                len(second) if mine and not undecided else matches.not_computed,
            ),
        ]
    rows.append(("pairs of all variants", matches.not_computed or len(merged(matches.pairs))))
    looked = [pair for pair in confirmed if pair.confirmed is not None]
    said = sum(bool(pair.confirmed) for pair in looked)
    text = f"{said} ({len(looked)} of {len(confirmed)} looked at)" if looked else "nobody looked yet"
    rows.append(("confirmed by a person", matches.not_computed or text))
    beside: object = ""
    if dataset in PAPER_PAIRS:
        usual = matches.comparable or matches.not_computed
        beside = PAPER_PAIRS[dataset] if usual else "other models: none"
    found = pd.DataFrame(rows, columns=["step", "pairs"]).set_index("step")
    found["paper"] = pd.Series([""] * (len(rows) - 1) + [beside], index=found.index, dtype=object)
    return found


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


# --- The confirmation sheet of template matching: pairs side by side, kept or rejected by a person
# What the page saves `matching.read_decisions` reads.


SIDE = 360
"""Longest side of a picture on the sheet, in pixels."""


def write_match_sheet(
    target: Path,
    name: str,
    matches: Matches,
    pairs: Sequence[TemplateMatch] | None = None,
    decisions: Iterable[Decision] = (),
) -> Path:
    """Write one HTML file that holds all it shows; returns `target`.

    `pairs`: None takes those that all variants kept, each once. `decisions` are those of an earlier sheet.
    Pictures are embedded, some 20 KB each, so the page can be mailed to whoever is to look. All text is
    escaped: file names and reasons come from strangers.
    """
    shown = merged(matches.pairs) if pairs is None else list(pairs)
    small = cache(lambda file: html.thumbnail(file, SIDE))
    rows = [
        (pair, small(matches.instances[pair.instance]), small(matches.templates[pair.template]))
        for pair in shown
    ]
    page = html.environment().get_template("matching_sheet.html.j2")
    text = page.render(
        name=name,
        rows=rows,
        models=matches.models,
        comparable=matches.comparable,
        not_computed=matches.not_computed,
        decisions=[tuple(decision) for decision in decisions],
    )
    storage.write_text(target, text)
    return target
