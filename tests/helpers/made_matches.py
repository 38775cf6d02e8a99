"""Made-up templates, memes drawn on them, and encoders that answer from a table: nothing here is a model."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from memecmd_utils.cm50.matching import Instance
from memecmd_utils.core.encoders.clip import ModelMissing
from memecmd_utils.schemas import TemplateInfo

SHADES = {"Round": (40, 90, 200), "Square": (200, 60, 30), "Cross": (40, 160, 60)}


def templates(folder: Path) -> list[TemplateInfo]:
    """Three blank pictures below `folder`."""
    (folder / "img").mkdir(parents=True, exist_ok=True)
    for name, shade in SHADES.items():
        draw(name, shade).save(folder / "img" / f"{name}.png")
    return [
        TemplateInfo(source="drawn", template=name, about=f"about {name}", picture=f"img/{name}.png")
        for name in SHADES
    ]


def draw(name: str, shade: tuple[int, int, int], words: str = "") -> Image.Image:
    """A picture of 96 x 80 with a shape, and words above it."""
    picture = Image.new("RGB", (96, 80), shade)
    pen = ImageDraw.Draw(picture)
    if name == "Round":
        pen.ellipse((28, 24, 68, 64), fill="white")
    elif name == "Square":
        pen.rectangle((28, 24, 68, 64), fill="white")
    else:
        pen.line((28, 24, 68, 64), fill="white", width=8)
        pen.line((68, 24, 28, 64), fill="white", width=8)
    pen.text((4, 4), words, fill="white")
    return picture


def instances(folder: Path, names: Sequence[str] = tuple(SHADES)) -> list[Instance]:
    """One meme a template, with words on it."""
    folder.mkdir(parents=True, exist_ok=True)
    found = []
    for number, name in enumerate(names):
        file = folder / f"meme {number} <b>.png"
        draw(name, SHADES[name], f"words {number}").save(file)
        found.append(Instance(file.name, file, caption=f"a {name}", ocr=f"words {number}"))
    return found


class Encoder:
    """Rows by file name or text from a table; what is not in it has the row 0."""

    name = "made-up encoder"

    def __init__(self, rows: dict[str, Sequence[float]], missing: str = "") -> None:
        self.rows, self.missing = rows, missing
        self.width = len(next(iter(rows.values())))

    def _of(self, names: Sequence[str]) -> np.ndarray:
        if self.missing:
            raise ModelMissing(self.missing)
        return np.array([self.rows.get(name, [0] * self.width) for name in names], dtype=np.float32)

    def encode_images(self, files: Sequence[Path]) -> np.ndarray:
        return self._of([file.name for file in files])

    def encode_texts(self, texts: Sequence[str]) -> np.ndarray:
        return self._of(texts)


class Distances:
    """LPIPS from a table by the names of both files; what is not in it is 0."""

    name, published = "made-up LPIPS", True

    def __init__(self, values: dict[tuple[str, str], float] | None = None, missing: str = "") -> None:
        self.values, self.missing, self.asked = values or {}, missing, []

    def distances(self, pairs: Sequence[tuple[Path, Path]]) -> np.ndarray:
        if pairs and self.missing:
            raise ModelMissing(self.missing)
        self.asked += [(one.name, other.name) for one, other in pairs]
        return np.array([self.values.get((one.name, other.name), 0.0) for one, other in pairs])
