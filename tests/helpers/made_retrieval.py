"""Made-up memes, texts and vectors for the tests of meme-text retrieval: nothing is measured."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from memecmd_utils import statistics
from memecmd_utils.core.encoders.clip import ARCHITECTURES
from memecmd_utils.mtrclip.recall import KINDS, RetrievalItem


def items(
    n: int = 24, n_templates: int = 8, folder: Path = Path("made-up"), kinds=KINDS, **texts: Sequence[str]
):
    """Memes `m0`, `m1`, ...; `texts` by kind replace the made-up ones of `kinds`, "" meaning none."""
    out = []
    for i in range(n):
        of = {kind: [f"{kind} of m{i}"] for kind in kinds}
        of |= {kind: [values[i]] if values[i] else [] for kind, values in texts.items()}
        template = f"t{i % n_templates}" if n_templates else ""
        out.append(RetrievalItem(f"m{i}", folder / f"m{i}.png", template, of))
    return out


class MadeUpEncoder:
    """Texts and pictures of one meme get like vectors: the nearer, the smaller `noise`; unit lengths vary."""

    def __init__(self, noise: float = 0.5, dim: int = 16, seed: int = 0, name: str = "made-up") -> None:
        self.noise, self.dim, self.seed, self.name = noise, dim, seed, name
        self.asked: list[int] = []

    def _row(self, side: str, what: str) -> np.ndarray:
        meme = what.rsplit("m", 1)[-1].split(".")[0].split(" ")[0]
        shared = statistics.rng(1, "meme", meme).normal(size=self.dim)
        own = statistics.rng(self.seed, side, what).normal(size=self.dim)
        return (3.0 if side == "picture" else 0.7) * (shared + self.noise * own)

    def encode_images(self, files: Sequence[Path]) -> np.ndarray:
        self.asked.append(len(files))
        return np.float32([self._row("picture", file.name) for file in files])

    def encode_texts(self, texts: Sequence[str]) -> np.ndarray:
        return np.float32([self._row("text", text) for text in texts])


def of_memes(rows: Mapping[str, Sequence[float]]) -> type:
    """An encoder that looks vectors up by picture name or text."""

    class Table:
        name = "table"

        def encode_images(self, files):
            return np.float32([rows[file.name] for file in files])

        def encode_texts(self, texts):
            return np.float32([rows[text] for text in texts])

    return Table


def clip_folder(at: Path, label: str, **changes: object) -> Path:
    """A folder with the configuration of a published model, some values changed ("part.name")."""
    known = ARCHITECTURES[label]
    config: dict = {"model_type": known.kind}
    for key, value in ({**known.sizes, **changes}).items():
        part, _, name = key.rpartition(".")
        (config.setdefault(part, {}) if part else config)[name] = value
    at.mkdir(parents=True)
    (at / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return at
