"""What notebook 08 does with a run: its pairs of picture and text, the tuning, and the models to measure."""

from pathlib import Path
from typing import TYPE_CHECKING

from memecmd_utils import (
    clip_models,
    datasets,
    memecap,
    retrieval_items,
    template_images,
)
from memecmd_utils.retrieval_items import DataMissing, RetrievalItem
from memecmd_utils.runs import Run
from memecmd_utils.template_schemas import MemeReading, Split, TemplateMeme
from memecmd_utils.tuning_data import Pair

if TYPE_CHECKING:
    from memecmd_utils.clip_tuning import Tuned

NOT_COMPUTED = "not computed here: {}"


def cm50_items(run: Run, split: Split | None = "validation") -> list[RetrievalItem]:
    """Memes of notebook 07 with a reading and a picture, of one part of the split or of both.

    Raises `DataMissing` where there is none.
    """
    memes = run.load(TemplateMeme)
    readings = run.load(MemeReading)
    wanted = [meme for meme in memes if split is None or meme.split == split]
    files = retrieval_items.files_below(template_images.folder_of(run.profile))
    return retrieval_items.of_readings(wanted, readings, files)


def memecap_items(run: Run) -> list[RetrievalItem]:
    """Memes of MemeCap's test set with a picture; `DataMissing` where there is none."""
    found = datasets.find(run.profile, fetch=False, names=("memecap",))["memecap"]
    if found.path is None:
        raise DataMissing(found.text())
    files = retrieval_items.files_below(template_images.folder_of(run.profile))
    return retrieval_items.of_memecap(memecap.read(found.path), files)


def pairs(items: list[RetrievalItem], kind: str) -> list[Pair]:
    """Picture and first text of one kind for each item that has one, as the tuning takes them.

    Blank texts do not count, as in `retrieval_items.gallery`.
    """
    found = ((item, next(filter(str.strip, item.texts.get(kind, ())), "")) for item in items)
    return [Pair(item.image, text, item.template) for item, text in found if text]


def tune(run: Run) -> "Tuned | None":
    """Tune the profile's CLIP on CM50's training part, or say why not; after a search where it asks for one.

    Validation is CM50's, the test set MemeCap's captions where its pictures are there. Memes whose picture
    cannot be decoded are left out. What was tuned before is read, what was broken off goes on.
    """
    from memecmd_utils import clip_search, clip_tuning

    settings, folder = run.profile.meme_retrieval, run.folder / "mtrclip"
    if not settings.tune:
        print(NOT_COMPUTED.format("meme_retrieval.tune is off; at full size it takes a GPU for hours"))
        return None
    try:
        train, validation = (
            pairs(retrieval_items.readable(cm50_items(run, part)), settings.text)
            for part in ("train", "validation")
        )
    except DataMissing as error:
        print(NOT_COMPUTED.format(error))
        return None
    if len(train) < 2 or not validation:
        some = f"{len(train)} pairs to tune on and {len(validation)} to validate on"
        said = f"{some} have a text (meme_retrieval.text: {settings.text}); at least 2 and 1 are needed"
        print(NOT_COMPUTED.format(said))
        return None
    try:
        test = pairs(retrieval_items.readable(memecap_items(run)), "meme_caption")
    except DataMissing as error:
        print(f"no test set: {error}")
        test = None
    if settings.selection == "paper" and not test:
        said = "meme_retrieval.selection: paper needs MemeCap's captions and pictures"
        print(NOT_COMPUTED.format(said))
        return None
    try:
        if settings.trials:
            _, settings, folder = clip_search.search(
                train, validation, settings, folder / "search", test=test, seed=run.profile.seed
            )
        return clip_tuning.tune(train, validation, settings, folder, test=test, seed=run.profile.seed)
    except RuntimeError as error:
        # Weights or packages that are not here; anything else, such as too little memory, is a fault.
        if not isinstance(error, clip_models.ModelMissing) and not isinstance(error.__cause__, ImportError):
            raise
        print(NOT_COMPUTED.format(error))
        return None


def weights_folders(tuned: "Tuned | None") -> dict[str, Path] | None:
    """Folders of tuned weights by selection, for `retrieval_rows.rows_of`."""
    return tuned.folders if tuned else None
