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
from memecmd_utils.core.encoders.clip import ALIGN, B32, L14, ModelMissing
from memecmd_utils.core.fetch import datasets
from memecmd_utils.core.recordings.store import RecordingMiss
from memecmd_utils.mtrclip import recall
from memecmd_utils.mtrclip.recall import BOTH, Captions, DataMissing, Encoder, Ranking, RetrievalItem
from memecmd_utils.mtrclip.training_data import Pair
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
_HEAD = ("model", "selection")


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


def model_rows(settings: MtrclipSettings, tuned: Mapping[str, str | Path] | None = None) -> list[Row]:
    """The rows of Table 2 and all other models of a profile; `tuned` are folders of weights by selection."""
    rows: list[Row] = []
    of_label: dict[str, str] = {}
    for name in dict.fromkeys([*settings.baselines, settings.model]):
        known = clip.architecture(name)
        free = known is not None and known not in of_label
        label = known if free else Path(name).name if Path(name).is_absolute() else name
        of_label[label] = name
        rows.append(Row(label, model=name))
    base = next(label for label, name in of_label.items() if name == settings.model)
    for label in (ALIGN, B32, L14):
        if label not in of_label:
            rows.append(Row(label, missing=f"no model of mtrclip.baselines is {label}"))
    for selection in SELECTIONS:
        rows += _tuned_rows(settings, selection, (tuned or {}).get(selection), base)
    place = {label: i for i, label in enumerate(ORDER)}
    return sorted(rows, key=lambda row: place.get(row.label, len(place)))


def _tuned_rows(settings: MtrclipSettings, selection: str, folder: str | Path | None, base: str) -> list[Row]:
    labels = {of: label for label, of in FINE_TUNED.items()}
    known = clip.architecture(folder) if folder else None
    out = []
    for of, label in labels.items():
        if folder and known == of:
            out.append(Row(label, selection, str(folder), base=base))
        elif folder:
            out.append(Row(label, selection, missing=_tuned_something_else(folder, of), base=base))
        elif of == ALIGN:
            out.append(Row(label, selection, missing=ALIGN_IS_NOT_TUNED, base=base))
        elif settings.tune:
            said = f"the tuning kept no weights chosen by mtrclip.selection={selection}"
            out.append(Row(label, selection, missing=said, base=base))
        else:
            said = "set mtrclip.tune=true, which takes CM50's pictures and a GPU for hours"
            out.append(Row(label, selection, missing=said, base=base))
    if folder and known not in labels:
        out.append(Row(f"fine-tuned {base}", selection, str(folder), base=base))
    return out


def _tuned_something_else(folder: str | Path, wanted: str) -> str:
    said = clip.misfit(folder, wanted) or f"{Path(folder).name} is no {wanted}"
    return f"the tuned weights are of another model: {said}"


def measure_models(
    rows: Sequence[Row],
    items: Callable[[], Sequence[RetrievalItem]],
    *,
    captions: Captions = "first",
    load: Callable[[str], Encoder] = clip.load,
) -> list[Measured]:
    """Rank the memes of `items` under every model; what cannot be had becomes a note.

    `items` is a function, so that data that is not here (`DataMissing`) becomes a note, too; memes whose
    picture cannot be decoded are left out for all models (`recall.readable`). `load` gives the
    encoder of a name: bind folders of recordings with `functools.partial`.
    """
    try:
        found = recall.readable(items())
    except DataMissing as error:
        return [Measured(row, note=f"{NOT_COMPUTED}: {row.missing or error}") for row in rows]
    out = []
    for row in rows:
        if row.missing:
            out.append(Measured(row, note=f"{NOT_COMPUTED}: {row.missing}"))
            continue
        try:
            encoder = load(row.model)
            rankings = recall.evaluate(encoder, found, captions=captions)
            out.append(Measured(row, encoder.name, rankings))
        except (ModelMissing, RecordingMiss, DataMissing) as error:
            out.append(Measured(row, note=f"{NOT_COMPUTED}: {error}"))
    return out


def all_recalls(measured: Sequence[Measured], data: str = "") -> pd.DataFrame:
    """R@K of all that was computed: all countings and directions, by label and selection; may be empty.

    `data` names what was measured in a first column `data set`, so that tables of several can be joined.
    """
    frames = [
        one.recalls().assign(model=one.row.label, selection=one.row.selection, weights=one.weights)
        for one in measured
        if one.rankings
    ]
    columns = [*_HEAD, "weights", *(c for c in recall.RECALLS if c != "model")]
    return _of(
        data, pd.concat(frames, ignore_index=True)[columns] if frames else pd.DataFrame(columns=columns)
    )


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
        if not (one.rankings and one.row.selection and one.row.base in bases):
            continue
        base = bases[one.row.base]
        frame = recall.differences(one.rankings, base.rankings, seed)
        frame.insert(0, "model", one.row.label)
        frame.insert(1, "selection", one.row.selection)
        frames.append(frame)
    columns = [*_HEAD, *recall.DIFFERENCES]
    return _of(data, pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=columns))


def _of(data: str, frame: pd.DataFrame) -> pd.DataFrame:
    if data:
        frame.insert(0, "data set", data)
    return frame


# --- What notebook 08 does with a run: its pairs of picture and text, the tuning, and the models to measure


NOT_COMPUTED_WHY = "not computed here: {}"


def cm50_items(run: Run, split: Split | None = "validation") -> list[RetrievalItem]:
    """Memes of notebook 07 with a reading and a picture, of one part of the split or of both.

    Raises `DataMissing` where there is none.
    """
    memes = run.load(TemplateMeme)
    readings = run.load(MemeReading)
    wanted = [meme for meme in memes if split is None or meme.split == split]
    files = recall.files_below(pictures.picture_folder(run.profile))
    return recall.of_readings(wanted, readings, files)


def memecap_items(run: Run) -> list[RetrievalItem]:
    """Memes of MemeCap's test set with a picture; `DataMissing` where there is none."""
    found = datasets.find(run.profile, fetch=False, names=("memecap",))["memecap"]
    if found.path is None:
        raise DataMissing(found.text())
    files = recall.files_below(pictures.picture_folder(run.profile))
    return recall.of_memecap(references.read(found.path), files)


def pairs(items: list[RetrievalItem], kind: str) -> list[Pair]:
    """Picture and first text of one kind for each item that has one, as the tuning takes them.

    Blank texts do not count, as in `recall.gallery`.
    """
    found = ((item, next(filter(str.strip, item.texts.get(kind, ())), "")) for item in items)
    return [Pair(item.image, text, item.template) for item, text in found if text]


def tune(run: Run) -> "Tuned | None":
    """Tune the profile's CLIP on CM50's training part, or say why not; after a search where it asks for one.

    Validation is CM50's, the test set MemeCap's captions where its pictures are there. Memes whose picture
    cannot be decoded are left out. What was tuned before is read, what was broken off goes on.
    """
    from memecmd_utils.mtrclip import search, tuning

    settings, folder = run.profile.mtrclip, run.folder / "mtrclip"
    if not settings.tune:
        print(NOT_COMPUTED_WHY.format("mtrclip.tune is off; at full size it takes a GPU for hours"))
        return None
    try:
        train, validation = (
            pairs(recall.readable(cm50_items(run, part)), settings.text) for part in ("train", "validation")
        )
    except DataMissing as error:
        print(NOT_COMPUTED_WHY.format(error))
        return None
    if len(train) < 2 or not validation:
        some = f"{len(train)} pairs to tune on and {len(validation)} to validate on"
        said = f"{some} have a text (mtrclip.text: {settings.text}); at least 2 and 1 are needed"
        print(NOT_COMPUTED_WHY.format(said))
        return None
    try:
        test = pairs(recall.readable(memecap_items(run)), "meme_caption")
    except DataMissing as error:
        print(f"no test set: {error}")
        test = None
    if settings.selection == "paper" and not test:
        said = "mtrclip.selection: paper needs MemeCap's captions and pictures"
        print(NOT_COMPUTED_WHY.format(said))
        return None
    try:
        if settings.trials:
            _, settings, folder = search.search(
                train, validation, settings, folder / "search", test=test, seed=run.profile.seed
            )
        return tuning.tune(train, validation, settings, folder, test=test, seed=run.profile.seed)
    except RuntimeError as error:
        # Weights or packages that are not here; anything else, such as too little memory, is a fault.
        if not isinstance(error, clip.ModelMissing) and not isinstance(error.__cause__, ImportError):
            raise
        print(NOT_COMPUTED_WHY.format(error))
        return None


def weights_folders(tuned: "Tuned | None") -> dict[str, Path] | None:
    """Folders of tuned weights by selection, for `models.model_rows`."""
    return tuned.folders if tuned else None
