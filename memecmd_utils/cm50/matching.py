"""Find instances of templates among memes, in two stages (2501.13851, Section 3.3.1).

Stage 1 takes the nearest template by CLIP, as the Template-Label Counter of Bates et al. (2311.06649) does,
stage 2 looks at the pair with LPIPS (Zhang et al., 2018). What is left a person confirms on a sheet.
"""

import csv
import warnings
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
from PIL import Image

from memecmd_utils import files, pictures
from memecmd_utils.cm50 import pictures as cm50_pictures
from memecmd_utils.cm50 import references
from memecmd_utils.cm50.data import Data
from memecmd_utils.cm50.references import TITLES, DataSet
from memecmd_utils.core.encoders import weights as encoders_weights
from memecmd_utils.core.encoders.clip import DualEncoder, ModelMissing
from memecmd_utils.core.fetch import datasets
from memecmd_utils.files import paths
from memecmd_utils.pictures import ImageRejected, LibraryError, decode
from memecmd_utils.recordings import RecordingMiss, normalise
from memecmd_utils.runs import Run
from memecmd_utils.schemas import Record, TemplateInfo, Text
from memecmd_utils.settings import Profile

Variant = Literal["concatenated", "fancy_fusion", "ocr_cosine"]
Thresholds = Literal["code", "paper"]
PAPER_PAIRS = {"figmemes": 46, "memecap": 42}
"""Pairs that the paper was left with after a look at each."""
CONFIRMED: dict[DataSet, str] = {"memecap": "confirmed", "figmemes": "confirmed_figmemes"}
"""Keys of `cm50.matching` that name what a person said of each data set's pairs."""
ACTIONS = ("keep", "reject")
SHEET_SIDE = 360
"""Longest side of a picture on the confirmation sheet, in pixels."""
PAPER_WIDTH = 768
"""Numbers in a row of CLIP ViT-L/14, whose lengths the limit of 30 is made for."""
LPIPS_SIDE = 64
"""Pixels of the pictures that LPIPS compares."""
PAIRS_AT_ONCE = 64
PUBLISHED = "7be5be79"
"""SHA-256 of torchvision's AlexNet begins so: `alexnet-owt-7be5be79.pth`, which LPIPS was calibrated on."""
LPIPS_KEY = "cm50.matching.lpips"
"""Key of the profile that names the file of weights."""


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


class Lpips:
    """LPIPS of pairs of pictures, with AlexNet, version 0.1; nothing is loaded before it is needed.

    `weights` is a file of AlexNet's weights as torchvision publishes it; None takes torchvision's, which it
    downloads (233 MB) unless `download` is off. The linear weights come with the `lpips` package. `scale`:
    "code" gives the network values from 0 to 1, as the code of 2501.13851 does and its limit 0.29 asks for;
    "lpips" gives it -1 to 1, which it was trained on.
    """

    def __init__(
        self, weights: str | None = None, scale: Literal["code", "lpips"] = "code", download: bool = True
    ) -> None:
        self._weights = paths.user_path(weights) if weights else None
        self.scale, self._download = scale, download

    @property
    def name(self) -> str:
        """`lpips-alex@WEIGHTS-64px-SCALE`; loads the weights."""
        return f"lpips-alex@{self._loaded[1]}-{LPIPS_SIDE}px-{self.scale}"

    @property
    def published(self) -> bool:
        """Whether the weights are those that torchvision publishes; with others a value says nothing."""
        return self._loaded[1].startswith(PUBLISHED)

    def distances(self, pairs: Sequence[tuple[Path, Path]]) -> np.ndarray:
        """LPIPS of pairs of image files, float64 [n]; 0 for two equal pictures.

        Raises `ModelMissing` for what is not here and `ImageRejected` for a file that cannot be read.
        """
        if not pairs:
            return np.zeros(0)
        net, _ = self._loaded
        import torch

        crops = {file: crop(file) for file in dict.fromkeys(file for pair in pairs for file in pair)}
        values = []
        with torch.inference_mode():
            for start in range(0, len(pairs), PAIRS_AT_ONCE):
                part = pairs[start : start + PAIRS_AT_ONCE]
                one, other = (torch.from_numpy(np.stack([crops[p[n]] for p in part])) for n in (0, 1))
                distances = net(one, other, normalize=self.scale == "lpips")
                values.append(distances.reshape(-1).double().numpy())
        return np.concatenate(values)

    @cached_property
    def _loaded(self) -> tuple[Any, str]:
        """The network, and the digest of its weights."""
        missing = [name for name in ("torch", "torchvision", "lpips") if not encoders_weights.installed(name)]
        if missing:
            raise ModelMissing(f"LPIPS needs {', '.join(missing)}: pip install -e '.[paper]'")
        with encoders_weights.importing("LPIPS", ModelMissing):
            import lpips
            import torchvision  # noqa: F401 - it must fit torch
        state, digest = self._state()
        with warnings.catch_warnings():
            # Its way to AlexNet's weights is an argument that torchvision gives up; they follow below.
            warnings.simplefilter("ignore", UserWarning)
            net = lpips.LPIPS(net="alex", version="0.1", pnet_rand=True, verbose=False)
        wanted = {name: name.split(".", 1)[1] for name in net.net.state_dict()}  # slice2.3.weight
        try:
            net.net.load_state_dict({name: state[f"features.{key}"] for name, key in wanted.items()})
        except (KeyError, RuntimeError, TypeError) as error:
            raise ModelMissing(
                f"{self._weights.name} holds no AlexNet of torchvision: give alexnet-owt-{PUBLISHED}.pth"
            ) from error
        return net.eval(), digest

    def _state(self) -> tuple[dict[str, Any], str]:
        import torch
        from torchvision.models import AlexNet_Weights

        if self._weights is not None:
            if not self._weights.is_file():
                raise ModelMissing(
                    f"there is no file {self._weights.name}: give alexnet-owt-{PUBLISHED}.pth as {LPIPS_KEY}"
                )
            try:
                state = torch.load(self._weights, map_location="cpu", weights_only=True)
            except Exception as error:  # a broken or foreign file fails in many ways
                name = self._weights.name
                fault = str(error).replace(str(self._weights), name)  # tables hold no folders of a machine
                raise ModelMissing(f"{name} is no file of weights ({fault})"[:300]) from error
            return state, encoders_weights.file_digest(self._weights)
        weights = AlexNet_Weights.IMAGENET1K_V1
        cached = Path(torch.hub.get_dir()) / "checkpoints" / weights.url.rpartition("/")[2]
        if not cached.is_file() and not self._download:
            raise ModelMissing(
                f"LPIPS needs {cached.name}: give it as {LPIPS_KEY}, or let torchvision download it"
            )
        try:
            state = weights.get_state_dict(progress=False, check_hash=True)
        except (OSError, RuntimeError) as error:
            fault = " ".join(str(error).split())[:150]
            raise ModelMissing(
                f"{cached.name} cannot be downloaded ({type(error).__name__}: {fault}): give the file as "
                f"{LPIPS_KEY}"
            ) from error
        return state, encoders_weights.file_digest(cached)


def crop(file: Path) -> np.ndarray:
    """Values 0 to 1, float32 [3, 64, 64]: shorter side to 64 (bicubic), then the centre, as torchvision does.

    Pictures become RGB before they are scaled; the code of 2501.13851 scales first, which differs for
    pictures with a palette only.
    """
    try:
        image = decode(file)
    except ImageRejected as error:
        raise ImageRejected(f"{file.name}: {error}") from error
    width, height = image.size
    short = min(width, height)
    size = (LPIPS_SIDE * width // short, LPIPS_SIDE * height // short)
    image = image.resize(size, Image.Resampling.BICUBIC) if size != image.size else image
    left, top = (round((side - LPIPS_SIDE) / 2) for side in size)
    part = np.asarray(image.crop((left, top, left + LPIPS_SIDE, top + LPIPS_SIDE)), dtype=np.float32)
    return np.ascontiguousarray(part.transpose(2, 0, 1)) / 255


def match_data_set(run: Run, data: Data, dataset: DataSet) -> Matches | None:
    """Match a data set's memes with CM50's templates; says what is missing.

    Needs both data sets; memes without a picture in the folder of images take no part. For MemeCap the title
    of the post stands for the text on the meme, as in the paper's code.
    """
    if not data.have(dataset, "cm50"):
        return None
    settings, folder = run.profile.cm50.matching, cm50_pictures.picture_folder(run.profile)
    files = {path.name: path for path in sorted(folder.rglob("*"), reverse=True) if path.is_file()}
    memes = references.memes_of(data.found, dataset)
    instances = [
        Instance(meme.image, files[meme.image], meme.caption, meme.text or meme.title)
        for meme in memes
        if meme.image in files
    ]
    print(f"{len(instances)} memes with a picture, {len(memes) - len(instances)} without")
    encoder = run.clip(settings.clip)
    lpips = Lpips(settings.lpips, settings.lpips_scale, download=datasets.may_fetch())
    infos = [info for info in data.infos if info.picture]
    return match(instances, infos, data.found["cm50"].path, encoder, lpips, settings.thresholds)


def confirmed_matches(profile: Profile, matches: Matches | None, dataset: DataSet) -> list[TemplateMatch]:
    """Pairs of all variants, with what a person said of them where the profile names that file (`CONFIRMED`).

    Where nothing was matched there is no pair that the file could speak of: then it is not read, and that is
    said. Else a file that is not there or names another pair raises `LibraryError`.
    """
    pairs = distinct_pairs(matches.pairs) if matches is not None else []
    key = CONFIRMED[dataset]
    if not (given := getattr(profile.cm50.matching, key)):
        return pairs
    file = paths.user_path(given)
    if not pairs or matches.not_computed:
        why = "none was looked for" if matches is None else matches.not_computed or "no pair was kept"
        print(f"not read: {file.name} (cm50.matching.{key}) speaks of pairs of {TITLES[dataset]}; {why}")
        return pairs
    confirmed = confirm(pairs, file)
    if all(pair.confirmed is None for pair in confirmed):
        print(f"{file.name} (cm50.matching.{key}) says nothing of any pair of {TITLES[dataset]}")
    return confirmed


def distinct_pairs(pairs: Iterable[TemplateMatch]) -> list[TemplateMatch]:
    """Kept pairs of all variants, each once: the list that is confirmed by hand. `variant` names them all.

    A meme stands twice where two variants keep it with different templates.
    """
    distinct: dict[tuple[str, str], TemplateMatch] = {}
    for pair in (pair for pair in pairs if pair.kept):
        first = distinct.setdefault((pair.instance, pair.template), pair)
        if first is not pair:
            variants = {"variant": f"{first.variant}, {pair.variant}"}
            distinct[pair.instance, pair.template] = first.model_copy(update=variants)
    return list(distinct.values())


def confirm(pairs: Iterable[TemplateMatch], file: Path) -> list[TemplateMatch]:
    """The pairs with what a person said of them in the sheet's CSV of `instance,template,action,why`.

    Of whom nothing is said stays unconfirmed. Raises `LibraryError` naming the line for a pair that is none
    of these, an unknown action, or a pair that is both kept and rejected.
    """
    if not file.is_file():
        raise LibraryError(f"there is no file {file}: save it from the confirmation sheet")
    known = {(pair.instance, pair.template): pair for pair in pairs}
    confirmed: dict[tuple[str, str], TemplateMatch] = {}
    try:
        # "utf-8-sig" because spreadsheet programs put a byte order mark in front.
        with file.open(encoding="utf-8-sig", newline="") as handle:
            reader = csv.DictReader(handle)
            if not {"instance", "template", "action"} <= set(reader.fieldnames or ()):
                raise LibraryError(f"{file.name}: the first line must be instance,template,action,why")
            for row in reader:
                names = [row.get(name) or "" for name in ("instance", "template")]
                action, why = (files.unguarded(row.get(name) or "").strip() for name in ("action", "why"))
                if not any(map(str.strip, [*names, action])):
                    continue
                place = _pair_of(names, known)
                where, shown = f"{file.name} line {reader.line_num}", f"{place[0]!r} and {place[1]!r}"
                if action not in ACTIONS:
                    raise LibraryError(f"{where}: action {action!r} is neither keep nor reject")
                if place not in known:
                    raise LibraryError(f"{where}: {shown} are no pair of this sheet")
                keep = action == "keep"
                if place in confirmed and confirmed[place].confirmed != keep:
                    raise LibraryError(f"{where}: {shown} are both kept and rejected")
                update = {"confirmed": keep, "why": why or known[place].why}
                confirmed[place] = known[place].model_copy(update=update)
    except UnicodeDecodeError as error:
        raise LibraryError(f"{file.name} is not UTF-8: save it as CSV UTF-8") from error
    return list({**known, **confirmed}.values())


def _pair_of(cells: list[str], known: Collection[tuple[str, str]]) -> tuple[str, str]:
    """The known pair of two cells: as the sheet guards them, a person wrote or a spreadsheet trimmed them."""
    trimmed = tuple(cell.strip() for cell in cells)
    guarded, guarded_trimmed = (tuple(map(files.unguarded, texts)) for texts in (cells, trimmed))
    readings = (guarded, tuple(cells), guarded_trimmed, trimmed)
    return next((pair for pair in readings if pair in known), trimmed)


def match_counts(matches: Matches, confirmed: Sequence[TemplateMatch], dataset: DataSet) -> pd.DataFrame:
    """Pairs left after each step, beside the paper's.

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
        decided = len(second) if mine and not undecided else matches.not_computed
        rows.append((f"{rule.variant}: {sign} {rule.limit:g}", len(first) if mine else matches.not_computed))
        rows.append((f"{rule.variant}: LPIPS below {rule.lpips:g}", decided))
    rows.append(("pairs of all variants", matches.not_computed or len(distinct_pairs(matches.pairs))))
    looked = [pair for pair in confirmed if pair.confirmed is not None]
    n_confirmed = sum(bool(pair.confirmed) for pair in looked)
    text = f"{n_confirmed} ({len(looked)} of {len(confirmed)} looked at)" if looked else "nobody looked yet"
    rows.append(("confirmed by a person", matches.not_computed or text))
    usual = matches.comparable or matches.not_computed
    paper: object = PAPER_PAIRS[dataset] if usual else "other models: none"
    counts = pd.DataFrame(rows, columns=["step", "pairs"]).set_index("step")
    counts["paper"] = pd.Series([""] * (len(rows) - 1) + [paper], index=counts.index, dtype=object)
    return counts


def combine(pictures: np.ndarray, texts: np.ndarray, variant: Variant) -> np.ndarray:
    """One row for image and text, both [n, d] as CLIP projects them.

    `concatenated`: one behind the other, [n, 2d]. `fancy_fusion`: the mean of the two rows at unit length,
    which the code of Bates et al. calls `fancy`; we read the paper's "fancy fusion embedding" so, because
    its limit of 1 fits distances from 0 to 2.
    """
    if variant == "concatenated":
        return np.hstack([pictures, texts])
    return (normalise(pictures) + normalise(texts)) / 2


def nearest(queries: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Index of the nearest row for each query, and the Euclidean distance; the first of equally near ones."""
    from scipy.spatial.distance import cdist

    distances = cdist(queries, rows)
    return distances.argmin(1), distances.min(1)


def match(
    instances: Sequence[Instance],
    templates: Sequence[TemplateInfo],
    folder: Path,
    encoder: DualEncoder,
    lpips: Lpips,
    thresholds: Thresholds = "code",
) -> Matches:
    """Match memes with templates whose blank pictures lie below `folder`, by the rules of that name.

    A template's text is its "about". What cannot be read takes no part and is named. Where a model is not
    here, `not_computed` says what to give, and pairs that lack LPIPS stay undecided. The paper's code looks
    among all templates of a KnowYourMeme dump that it does not publish; among fewer, the nearest is farther.
    """
    unreadable: list[tuple[str, str]] = []
    known = [t for t in templates if _readable(t.template, folder / t.picture, unreadable)]
    given = [i for i in instances if _readable(i.name, i.image, unreadable)]
    images = {i.name: i.image for i in given}
    pictures = {t.template: folder / t.picture for t in known}
    if len(images) < len(given) or len(pictures) < len(known):
        raise ValueError("two memes, or two templates, have one name: give each its own")
    done = Matches(RULES[thresholds], images, pictures, unreadable)
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


def _readable(name: str, file: Path, unreadable: list[tuple[str, str]]) -> bool:
    try:
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
    pairs = []
    for instance, best, number in zip(instances, index, value.tolist(), strict=True):
        kept, why = None, ""
        if rule.variant == "ocr_cosine" and number < rule.limit:
            kept, why = False, f"cosine {number:.3g} below {rule.limit:g}"
        elif rule.variant != "ocr_cosine" and number > rule.limit:
            kept, why = False, f"distance {number:.4g} above {rule.limit:g}"
        pair = {"instance": instance.name, "template": templates[best].template, "variant": rule.variant}
        pairs.append(TemplateMatch(**pair, distance=number, kept=kept, why=why))
    return pairs


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


def write_match_sheet(target: Path, name: str, matches: Matches) -> Path:
    """Write the confirmation sheet, one HTML file that holds all it shows; returns `target`.

    It has the pairs that any variant kept, each once; what it saves `confirm` reads. Pictures are
    embedded, some 20 KB each, so the page can be mailed to whoever is to look. All text is escaped: file
    names and reasons come from strangers.
    """
    thumbnail = cache(lambda file: pictures.thumbnail(file, SHEET_SIDE))
    rows = [
        (pair, thumbnail(matches.instances[pair.instance]), thumbnail(matches.templates[pair.template]))
        for pair in distinct_pairs(matches.pairs)
    ]
    page = files.templates().get_template("matching_sheet.html.j2")
    files.write_text(target, page.render(name=name, rows=rows, matches=matches))
    return target
