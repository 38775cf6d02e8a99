"""Which models meme-text retrieval is measured with, what came of each, and all that was computed.

A model stands in a row of the paper only if it has that row's architecture (`clip_architectures`); every
other one stands under its own name.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from memecmd_utils import clip_architectures, clip_models, meme_text_retrieval, retrieval_items
from memecmd_utils.clip_architectures import ALIGN, B32, L14
from memecmd_utils.clip_models import ModelMissing
from memecmd_utils.meme_text_retrieval import BOTH, Encoder, Ranking
from memecmd_utils.recordings import RecordingMiss
from memecmd_utils.retrieval_items import Captions, DataMissing, RetrievalItem
from memecmd_utils.template_settings import MemeRetrieval

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
        """R@K with intervals (columns `meme_text_retrieval.RECALLS`), under the name of the weights."""
        return meme_text_retrieval.recalls(self.rankings, self.weights)


def rows_of(settings: MemeRetrieval, tuned: Mapping[str, str | Path] | None = None) -> list[Row]:
    """The rows of Table 2 and all other models of a profile; `tuned` are folders of weights by selection."""
    rows: list[Row] = []
    of_label: dict[str, str] = {}
    for name in dict.fromkeys([*settings.baselines, settings.model]):
        known = clip_architectures.architecture(name)
        free = known is not None and known not in of_label
        label = known if free else Path(name).name if Path(name).is_absolute() else name
        of_label[label] = name
        rows.append(Row(label, model=name))
    base = next(label for label, name in of_label.items() if name == settings.model)
    for label in (ALIGN, B32, L14):
        if label not in of_label:
            rows.append(Row(label, missing=f"no model of meme_retrieval.baselines is {label}"))
    for selection in SELECTIONS:
        rows += _tuned_rows(settings, selection, (tuned or {}).get(selection), base)
    place = {label: i for i, label in enumerate(ORDER)}
    return sorted(rows, key=lambda row: place.get(row.label, len(place)))


def _tuned_rows(settings: MemeRetrieval, selection: str, folder: str | Path | None, base: str) -> list[Row]:
    labels = {of: label for label, of in FINE_TUNED.items()}
    known = clip_architectures.architecture(folder) if folder else None
    out = []
    for of, label in labels.items():
        if folder and known == of:
            out.append(Row(label, selection, str(folder), base=base))
        elif folder:
            out.append(Row(label, selection, missing=_tuned_something_else(folder, of), base=base))
        elif of == ALIGN:
            out.append(Row(label, selection, missing=ALIGN_IS_NOT_TUNED, base=base))
        elif settings.tune:
            said = f"the tuning kept no weights chosen by meme_retrieval.selection={selection}"
            out.append(Row(label, selection, missing=said, base=base))
        else:
            said = "set meme_retrieval.tune=true, which takes CM50's pictures and a GPU for hours"
            out.append(Row(label, selection, missing=said, base=base))
    if folder and known not in labels:
        out.append(Row(f"fine-tuned {base}", selection, str(folder), base=base))
    return out


def _tuned_something_else(folder: str | Path, wanted: str) -> str:
    said = clip_architectures.misfit(folder, wanted) or f"{Path(folder).name} is no {wanted}"
    return f"the tuned weights are of another model: {said}"


def measure(
    rows: Sequence[Row],
    items: Callable[[], Sequence[RetrievalItem]],
    *,
    captions: Captions = "first",
    load: Callable[[str], Encoder] = clip_models.load,
) -> list[Measured]:
    """Rank the memes of `items` under every model; what cannot be had becomes a note.

    `items` is a function, so that data that is not here (`DataMissing`) becomes a note, too; memes whose
    picture cannot be decoded are left out for all models (`retrieval_items.readable`). `load` gives the
    encoder of a name: bind folders of recordings with `functools.partial`.
    """
    try:
        found = retrieval_items.readable(items())
    except DataMissing as error:
        return [Measured(row, note=f"{NOT_COMPUTED}: {row.missing or error}") for row in rows]
    out = []
    for row in rows:
        if row.missing:
            out.append(Measured(row, note=f"{NOT_COMPUTED}: {row.missing}"))
            continue
        try:
            encoder = load(row.model)
            rankings = meme_text_retrieval.evaluate(encoder, found, captions=captions)
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
    columns = [*_HEAD, "weights", *(c for c in meme_text_retrieval.RECALLS if c != "model")]
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


def changes(measured: Sequence[Measured], seed: int, data: str = "") -> pd.DataFrame:
    """Tuned minus base, paired by query, with intervals: a block for each selection that was computed.

    `seed` is for the p-values; `data` as in `all_recalls`.
    """
    bases = {one.row.label: one for one in measured if one.rankings and not one.row.selection}
    frames = []
    for one in measured:
        if not (one.rankings and one.row.selection and one.row.base in bases):
            continue
        base = bases[one.row.base]
        frame = meme_text_retrieval.differences(one.rankings, base.rankings, seed)
        frame.insert(0, "model", one.row.label)
        frame.insert(1, "selection", one.row.selection)
        frames.append(frame)
    columns = [*_HEAD, *meme_text_retrieval.DIFFERENCES]
    return _of(data, pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=columns))


def _of(data: str, frame: pd.DataFrame) -> pd.DataFrame:
    if data:
        frame.insert(0, "data set", data)
    return frame
