"""Which models meme-text retrieval is measured with, what came of each, and all that was computed.

A model stands in a row of the paper only if it has that row's architecture (`clip`); every
other one stands under its own name.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pandas as pd

from memecmd_utils.cm50 import pictures, references
from memecmd_utils.core.encoders import clip
from memecmd_utils.core.encoders.clip import ALIGN, B32, L14, DualEncoder, ModelMissing
from memecmd_utils.core.fetch import datasets
from memecmd_utils.files import ExtraMissing
from memecmd_utils.mtrclip import recall
from memecmd_utils.mtrclip.recall import BOTH, DataMissing, Ranking, RetrievalItem
from memecmd_utils.mtrclip.training_data import Pair
from memecmd_utils.recordings import RecordingMiss
from memecmd_utils.runs import Run
from memecmd_utils.schemas import MemeReading, Split, TemplateMeme
from memecmd_utils.settings import MtrclipSettings

if TYPE_CHECKING:
    from memecmd_utils.mtrclip.tuning import Tuned


FINE_TUNED = {"Fine-tuned ALIGN": ALIGN, "Fine-tuned CLIP": L14}
"""Rows of Table 2 that hold tuned weights, and what was tuned."""
ORDER = (ALIGN, "Fine-tuned ALIGN", B32, L14, "Fine-tuned CLIP")
SELECTIONS = ("validation", "paper")
"""Which R@1 picked the epoch: that of the validation set, or, as in the paper's code, of the test set."""
NOT_COMPUTED = "not computed here"
ALIGN_IS_NOT_TUNED = "ALIGN is measured and not tuned: its batch norms see mini-batches, not the whole batch"


class Row(NamedTuple):
    """A model that is to be measured, or why there is none."""

    label: str
    """Its row in Table 2; of a model that is none of those, its own name."""
    selection: str = ""
    """Of tuned weights: one of `SELECTIONS`."""
    model: str = ""
    """Hub name or folder."""
    missing: str = ""
    base: str = ""
    """Label of what was tuned."""


@dataclass(frozen=True)
class Measured:
    """What came of a row: rankings by kind of text, or a note why there are none."""

    row: Row
    weights: str = ""
    """Name and revision of what was measured."""
    rankings: Mapping[str, Ranking] = field(default_factory=dict, repr=False)
    note: str = ""

    def recalls(self) -> pd.DataFrame:
        """R@K with intervals (columns `recall.RECALLS`), under the name of the weights."""
        return recall.recalls(self.rankings, self.weights)


def model_rows(settings: MtrclipSettings, tuned: "Tuned | None" = None) -> list[Row]:
    """The rows of Table 2 and all other models of a profile; `tuned`: what `tune` made."""
    rows: list[Row] = []
    name_of: dict[str, str] = {}
    for name in dict.fromkeys([*settings.baselines, settings.model]):
        label = clip.architecture(name)
        if label is None or label in name_of:
            label = Path(name).name if Path(name).is_absolute() else name
        name_of[label] = name
        rows.append(Row(label, model=name))
    base = next(label for label, name in name_of.items() if name == settings.model)
    for label in (ALIGN, B32, L14):
        if label not in name_of:
            rows.append(Row(label, missing=f"no model of mtrclip.baselines is {label}"))
    for selection in SELECTIONS:
        folder = tuned.folders.get(selection) if tuned else None
        rows += _tuned_rows(settings, selection, folder, base)
    place = {label: i for i, label in enumerate(ORDER)}
    return sorted(rows, key=lambda row: place.get(row.label, len(place)))


def _tuned_rows(settings: MtrclipSettings, selection: str, folder: Path | None, base: str) -> list[Row]:
    known = clip.architecture(folder) if folder else None
    rows = []
    for label, architecture in FINE_TUNED.items():
        model = missing = ""
        if folder and known == architecture:
            model = str(folder)
        elif folder:
            misfit = clip.misfit(folder, architecture) or f"{folder.name} is no {architecture}"
            missing = f"the tuned weights are of another model: {misfit}"
        elif architecture == ALIGN:
            missing = ALIGN_IS_NOT_TUNED
        elif settings.tune:
            missing = f"the tuning kept no weights chosen by mtrclip.selection={selection}"
        else:
            missing = "set mtrclip.tune=true, which takes CM50's pictures and a GPU for hours"
        rows.append(Row(label, selection, model, missing, base))
    if folder and known not in FINE_TUNED.values():
        rows.append(Row(f"fine-tuned {base}", selection, str(folder), base=base))
    return rows


def measure_models(
    rows: Sequence[Row],
    items: Callable[[], Sequence[RetrievalItem]],
    load: Callable[[str], DualEncoder] = clip.load,
) -> list[Measured]:
    """Rank the memes of `items` under every model; what cannot be had becomes a note.

    `items` is a function, so that data that is not here (`DataMissing`) becomes a note, too; memes whose
    picture cannot be decoded are left out for all models. `load` gives the encoder of a name.
    """
    try:
        shared = recall.readable(items())
    except DataMissing as error:
        return [Measured(row, note=f"{NOT_COMPUTED}: {row.missing or error}") for row in rows]
    measured = []
    for row in rows:
        if row.missing:
            measured.append(Measured(row, note=f"{NOT_COMPUTED}: {row.missing}"))
            continue
        try:
            encoder = load(row.model)
            measured.append(Measured(row, encoder.name, recall.evaluate(encoder, shared)))
        except (ModelMissing, RecordingMiss, DataMissing) as error:
            measured.append(Measured(row, note=f"{NOT_COMPUTED}: {error}"))
    return measured


def all_recalls(measured: Sequence[Measured], data: str = "") -> pd.DataFrame:
    """R@K of all that was computed: all countings and directions, by label and selection; may be empty.

    `data` names what was measured in a first column `data set`, so that tables of several can be joined.
    """
    frames = [
        one.recalls().assign(model=one.row.label, selection=one.row.selection, weights=one.weights)
        for one in measured
        if one.rankings
    ]
    columns = ["model", "selection", "weights", *(c for c in recall.RECALLS if c != "model")]
    return _joined(frames, columns, data)


def other_models(measured: Sequence[Measured], data: str = "") -> pd.DataFrame:
    """R@K, both directions together, of models that are none of the paper's, under their own names.

    `data` as in `all_recalls`.
    """
    others = [one for one in measured if one.rankings and one.row.label not in ORDER]
    frame = all_recalls(others, data)
    kept = frame[(frame["direction"] == BOTH) & (frame["measure"].isin(["R@1", "Mean"]))]
    return kept.drop(columns="direction").reset_index(drop=True)


def tuning_changes(measured: Sequence[Measured], seed: int, data: str = "") -> pd.DataFrame:
    """Tuned minus base, paired by query, with intervals: a block for each selection that was computed.

    `seed` is for the p-values; `data` as in `all_recalls`.
    """
    bases = {one.row.label: one for one in measured if one.rankings and not one.row.selection}
    frames = []
    for one in measured:
        if one.rankings and one.row.selection and one.row.base in bases:
            frame = recall.differences(one.rankings, bases[one.row.base].rankings, seed)
            frames.append(frame.assign(model=one.row.label, selection=one.row.selection))
    return _joined(frames, ["model", "selection", *recall.DIFFERENCES], data)


def _joined(frames: Sequence[pd.DataFrame], columns: list[str], data: str) -> pd.DataFrame:
    joined = pd.concat(frames, ignore_index=True)[columns] if frames else pd.DataFrame(columns=columns)
    if data:
        joined.insert(0, "data set", data)
    return joined


def cm50_items(run: Run, split: Split = "validation") -> list[RetrievalItem]:
    """Memes of notebook 07 with a reading and a picture, of one part of the split.

    The embedded text is what the record of Imgflip says, as in the paper's code (`ocr`). Raises `DataMissing`
    where there is none.
    """
    memes = {meme.meme_id: meme for meme in run.load(TemplateMeme) if meme.split == split}
    readings = run.load(MemeReading)
    files = recall.files_below(pictures.picture_folder(run.profile))
    items = []
    for reading in readings:
        meme = memes.get(reading.meme_id)
        if meme is not None and meme.meme_id in files:
            texts = {
                "meme_caption": [reading.meme_caption],
                "image_caption": [reading.image_caption],
                "embedded_text": [meme.text],
                "title": [meme.title],
            }
            items.append(RetrievalItem(meme.meme_id, files[meme.meme_id], meme.template, texts))
    if not items:
        raise DataMissing("none of the annotated template memes has its picture here")
    return items


def memecap_items(run: Run) -> list[RetrievalItem]:
    """Memes of MemeCap's test set with a picture; `DataMissing` where there is none."""
    found = datasets.locate(run.profile, fetch=False, names=("memecap",))["memecap"]
    if found.path is None:
        raise DataMissing(found.text())
    files = recall.files_below(pictures.picture_folder(run.profile))
    items = []
    for meme in references.read(found.path):
        if meme.image in files:
            texts = {
                "meme_caption": meme.meme_captions,
                "image_caption": meme.image_captions,
                "title": [meme.title],
            }
            items.append(RetrievalItem(meme.post_id, files[meme.image], "", texts))
    if not items:
        raise DataMissing("none of the memes of MemeCap has its picture here")
    return items


def pairs(items: Sequence[RetrievalItem], kind: str) -> list[Pair]:
    """Picture and text of one kind for each readable item that has one, as the tuning takes them."""
    shown = recall.readable(items)
    return [Pair(item.image, text, item.template) for item in shown if (text := item.text(kind))]


def tune(run: Run) -> "Tuned | None":
    """Tune the profile's CLIP on CM50's training part, or say why not; after a search where it asks for one.

    Validation is CM50's, the test set MemeCap's captions where its pictures are there. Memes whose picture
    cannot be decoded are left out. What was tuned before is read, what was broken off goes on.
    """
    try:
        return _tune(run)
    except (DataMissing, ModelMissing, ExtraMissing) as error:
        print(f"{NOT_COMPUTED}: {error}")
        return None


def _tune(run: Run) -> "Tuned":
    from memecmd_utils.mtrclip import tuning

    settings, folder, seed = run.profile.mtrclip, run.folder / "mtrclip", run.profile.seed
    if not settings.tune:
        raise DataMissing("mtrclip.tune is off; at full size it takes a GPU for hours")
    train = pairs(cm50_items(run, "train"), settings.text)
    validation = pairs(cm50_items(run), settings.text)
    if len(train) < 2 or not validation:
        raise DataMissing(
            f"{len(train)} pairs to tune on and {len(validation)} to validate on have a text "
            f"(mtrclip.text: {settings.text}); at least 2 and 1 are needed"
        )
    try:
        test = pairs(memecap_items(run), "meme_caption")
    except DataMissing as error:
        print(f"no test set: {error}")
        test = []
    if settings.selection == "paper" and not test:
        raise DataMissing("mtrclip.selection: paper needs MemeCap's captions and pictures")
    if settings.trials:
        settings, folder = tuning.search(train, validation, test, settings, folder / "search", seed)
    return tuning.tune(train, validation, test, settings, folder, seed)
