"""What meme-text retrieval is measured on: memes with picture, template and four kinds of text."""

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from memecmd_utils import images, template_images
from memecmd_utils.errors import MemecmdError
from memecmd_utils.memecap import MemeCapMeme
from memecmd_utils.template_schemas import MemeReading, TemplateMeme

Kind = Literal["meme_caption", "image_caption", "embedded_text", "title"]
KINDS: tuple[Kind, ...] = ("meme_caption", "image_caption", "embedded_text", "title")
"""The texts of Tables 3 and 4, in their order."""
Captions = Literal["first", "merge", "extend"]


class DataMissing(MemecmdError, RuntimeError):
    """Data that cannot be had here. The message is one sentence that a table can print in its place."""


class RetrievalItem(NamedTuple):
    """A meme, its picture's file, and its texts by kind; a kind may have several texts or none."""

    meme_id: str
    image: Path
    template: str
    """Empty where it is not known: then the meme counts as a template of its own."""
    texts: Mapping[str, Sequence[str]]


@dataclass(frozen=True)
class Gallery:
    """Memes that have a text of one kind, and these texts."""

    kind: str
    images: tuple[Path, ...]
    templates: tuple[str, ...]
    """Of each meme."""
    texts: tuple[str, ...]
    """In the order of the memes that they belong to."""
    owner: np.ndarray
    """Position of each text's meme, ascending, [texts]."""
    left_out: int = 0
    """Memes without a text of this kind."""
    keys: tuple[str, ...] = field(init=False, repr=False)
    """Texts as they are compared: equal but for blanks means the same text."""
    clusters: tuple[tuple[str, int], ...] = field(init=False, repr=False)
    """Each meme's template, what intervals are over; a meme without one is a template of its own."""

    def __post_init__(self) -> None:
        if len(self.owner) and (np.any(np.diff(self.owner) < 0) or len(set(self.owner)) != len(self.images)):
            raise ValueError("texts must stand in the order of their memes, and every meme must have one")
        object.__setattr__(self, "keys", tuple(" ".join(text.split()) for text in self.texts))
        names = tuple((name, -1) if name else ("", i) for i, name in enumerate(self.templates))
        object.__setattr__(self, "clusters", names)


def gallery(items: Sequence[RetrievalItem], kind: str, captions: Captions = "first") -> Gallery:
    """Take one kind of text of all items; blank texts do not count.

    `captions` says what becomes of several texts of a meme: the first, all joined by a blank, or each for
    itself (`caption_preprocess` of the paper's code, which shows the picture again for every text; here it
    stands once, and any of its texts is right for it).
    """
    if captions not in ("first", "merge", "extend"):
        raise ValueError(f"captions {captions!r} is none of first, merge, extend")
    images, templates, texts, owner = [], [], [], []
    for item in items:
        mine = [text for text in item.texts.get(kind, ()) if text.strip()]
        if not mine:
            continue
        chosen = {"first": mine[:1], "merge": [" ".join(mine)], "extend": mine}[captions]
        owner += [len(images)] * len(chosen)
        texts += chosen
        images.append(item.image)
        templates.append(item.template)
    positions = np.array(owner, dtype=np.intp)
    return Gallery(kind, tuple(images), tuple(templates), tuple(texts), positions, len(items) - len(images))


def files_below(folder: Path) -> dict[str, Path]:
    """Pictures below a folder by base name and by name without suffix.

    Raises `DataMissing`, naming the key of the profile, where there is no folder or no picture in it. Of two
    pictures of one name in several folders the first by path counts.
    """
    if not folder.is_dir():
        raise DataMissing("there is no folder of pictures: give meme_retrieval.images=DIR")
    names = {path.name: path for path in reversed(images.pictures_below(folder))}
    if not names:
        raise DataMissing(f"{folder} holds no picture: give meme_retrieval.images=DIR")
    return template_images.files_in(folder) | names


def readable(items: Sequence[RetrievalItem]) -> list[RetrievalItem]:
    """Items whose pictures can be decoded; says how many are left out, and why the first one is.

    A picture that is not there is passed on: whether to want one is settled where items are made. Raises
    `DataMissing` where none can be decoded. Pictures are decoded side by side, and none is kept.
    """
    with ThreadPoolExecutor() as pool:
        faults = list(pool.map(_fault, (item.image for item in items)))
    bad = [(item.image.name, fault) for item, fault in zip(items, faults, strict=True) if fault]
    if bad:
        what = f"{len(bad)} of {len(items)} memes left out, their pictures cannot be read"
        print(f"{what}; the first: {bad[0][0]}: {bad[0][1]}")
    if len(bad) == len(items) > 0:
        raise DataMissing(f"none of {len(items)} pictures can be read; the first: {bad[0][0]}: {bad[0][1]}")
    return [item for item, fault in zip(items, faults, strict=True) if not fault]


def _fault(file: Path) -> str:
    try:
        if file.exists():
            images.decode(file)
    except images.ImageRejected as error:
        return str(error)
    return ""


def of_readings(
    memes: Iterable[TemplateMeme],
    readings: Iterable[MemeReading],
    files: Mapping[str, Path],
    embedded: Literal["record", "reading"] = "record",
) -> list[RetrievalItem]:
    """Items of annotated template memes; a meme without a picture in `files` (by meme id) is left out.

    `embedded` chooses the embedded text: what the record of Imgflip says, as the paper's code does (`ocr`),
    or what the annotator read ("detected text"). Titles and records come from `memes`, so a reading of a meme
    that is not among them is left out, too.
    """
    of = {meme.meme_id: meme for meme in memes}
    items = []
    for reading in readings:
        meme = of.get(reading.meme_id)
        if meme is None or reading.meme_id not in files:
            continue
        texts = {
            "meme_caption": [reading.meme_caption],
            "image_caption": [reading.image_caption],
            "embedded_text": [meme.text if embedded == "record" else reading.embedded_text],
            "title": [meme.title],
        }
        items.append(RetrievalItem(reading.meme_id, files[reading.meme_id], meme.template, texts))
    return _some(items, "annotated template memes")


def of_memecap(
    memes: Iterable[MemeCapMeme],
    files: Mapping[str, Path],
    embedded: Mapping[str, str] | None = None,
    templates: Mapping[str, str] | None = None,
) -> list[RetrievalItem]:
    """Items of MemeCap; a meme without a picture in `files` (by file name) is left out.

    `embedded` are texts on the pictures, which MemeCap does not have itself, and `templates` the templates of
    those memes that were matched with one, both by the id of the post.
    """
    items = []
    for meme in memes:
        if meme.image not in files:
            continue
        texts = {
            "meme_caption": list(meme.meme_captions),
            "image_caption": list(meme.image_captions),
            "embedded_text": [(embedded or {}).get(meme.post_id, "")],
            "title": [meme.title],
        }
        template = (templates or {}).get(meme.post_id, "")
        items.append(RetrievalItem(meme.post_id, files[meme.image], template, texts))
    return _some(items, "memes of MemeCap")


def _some(items: list[RetrievalItem], what: str) -> list[RetrievalItem]:
    if not items:
        raise DataMissing(f"none of the {what} has its picture here")
    return items
