"""CLIP, ALIGN and Chinese-CLIP: images and texts to vectors that are computed once and recorded."""

import hashlib
import unicodedata
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from memecmd_utils import images, model_files
from memecmd_utils.clip_towers import TRAINED_TOKENS, Dtype, ModelMissing, Towers
from memecmd_utils.vectors import Mode, RecordedVectors, recorded_names

SHORTEST, LONGEST = 1e-3, 1e3
"""Lengths of rows that are kept to two thousandths; those of CLIP are near 10."""

__all__ = ["DualEncoder", "ModelMissing", "load"]


def load(
    name: str | Path,
    *,
    device: str | None = None,
    dtype: Dtype = "float32",
    read_dirs: Sequence[Path] = (),
    write_dir: Path | None = None,
    mode: Mode = "auto",
    batch: int | None = None,
    download: bool = True,
) -> "DualEncoder":
    """Give the encoder of a hub name, `name@COMMIT` or folder; nothing is loaded before it is needed.

    `device`: None is a GPU where there is one. `read_dirs` and `write_dir` are folders of recordings: what
    they hold needs neither torch nor weights. `batch`: images or texts at a time. `download` off: only what
    is on this machine counts. What cannot be had raises `ModelMissing` when it is first asked for.
    """
    towers = Towers(str(name), device, dtype, batch, download)
    return DualEncoder(towers, dtype, read_dirs, write_dir, mode)


class DualEncoder:
    """An image tower and a text tower that project into one space, and what they computed before.

    Rows are as the model projects them, NOT of unit length: thresholds on Euclidean distance depend on it
    (2501.13851, Section 3.3.1); `vectors.normalise` makes them fit for cosines. They are rounded to float16
    before use, so that a run that computes equals one that replays.
    """

    def __init__(
        self,
        towers: Towers,
        dtype: Dtype,
        read_dirs: Sequence[Path] = (),
        write_dir: Path | None = None,
        mode: Mode = "auto",
    ) -> None:
        """See `load`, which makes the towers."""
        self._towers, self._dtype, self._mode = towers, dtype, mode
        self._read_dirs, self._write_dir = read_dirs, write_dir
        self._recorded_rows: RecordedVectors | None = None
        self._whole: dict[str, bool] = {}
        self.truncated: int | None = 0
        """Texts, each once, that the model did not read to their end; None where only it could tell."""

    def encode_images(self, files: Sequence[Path]) -> np.ndarray:
        """Rows for image files, float32 [n, dim]; same bytes, same row. A broken file raises ImageRejected.

        Of an animation the first frame counts, alpha stands on white; the model's own preprocessing follows
        (for CLIP: shorter side to its resolution, then the centre is cut out).
        """
        files = [Path(file) for file in files]
        keys = [_key("picture", _file_hash(file)) for file in files]
        return self._rows(keys, files, self._towers.images, "pictures")

    def encode_texts(self, texts: Sequence[str]) -> np.ndarray:
        """Rows for texts, float32 [n, dim]; what is beyond the model's limit is cut off and counted."""
        rows = self._rows([_key("text", t) for t in texts], texts, self._towers.texts, "texts", len)
        self._count_cut(texts)
        return rows

    @property
    def max_tokens(self) -> int:
        """Longest text that is read, with its marks: 77 for CLIP, 64 for ALIGN, 52 for Chinese-CLIP."""
        return self._towers.limit()

    @property
    def name(self) -> str:
        """`clip:MODEL@REVISION-PRECISION`: from files, else from recorded vectors, else by loading it."""
        return self._recorded.name

    @property
    def _recorded(self) -> RecordedVectors:
        if self._recorded_rows is None:
            name = self._name_without_loading() or self._named(self._towers.load())
            self._recorded_rows = RecordedVectors(name, self._read_dirs, self._write_dir, self._mode)
        return self._recorded_rows

    def _named(self, revision: str) -> str:
        return f"clip:{self._towers.label}@{revision}-{self._dtype}"

    def _name_without_loading(self) -> str | None:
        if revision := self._towers.revision():
            return self._named(revision)
        label = self._towers.label
        labels = dict.fromkeys([label, Path(label).name])  # a folder may be elsewhere by now
        found = [n for beginning in labels for n in recorded_names(self._read_dirs, f"clip:{beginning}@")]
        found = [name for name in found if name.endswith(f"-{self._dtype}")]
        if len(found) > 1:
            raise model_files.ModelError(
                f"vectors of several versions of {label} are recorded ({', '.join(found)}): say which as "
                "NAME@COMMIT, or move the others away"
            )
        if not found and self._mode == "recorded":
            raise ModelMissing(f"no vectors of {label} are recorded; SET='mode=auto' computes them")
        return found[0] if found else None

    def _rows(
        self,
        keys: list[str],
        items: Sequence[Any],
        encode: Callable[[list[Any]], np.ndarray],
        kind: str,
        size: Callable[[Any], int] | None = None,
    ) -> np.ndarray:
        if not keys:
            return np.zeros((0, 0), dtype=np.float32)
        recorded = self._recorded

        def homogeneous(part: list[Any]) -> np.ndarray:
            if (
                recorded.name.rpartition("/")[2]
                != (now := self._named(self._towers.load())).rpartition("/")[2]
            ):
                raise model_files.ModelError(
                    f"vectors of {recorded.name} are recorded, but {now} is what loads now: give the old one "
                    "as NAME@COMMIT, or move its vectors away for a fresh start"
                )
            # Recorded vectors have unit length. A last coordinate of 1 keeps the length of ours in the ratio.
            rows = encode(part)
            lengths = np.linalg.norm(rows, axis=1)
            if ((lengths > 0) & (lengths < SHORTEST)).any() or (lengths > LONGEST).any():
                raise model_files.ModelError(
                    f"{recorded.name} gives {kind} of length {lengths.min():.2g} to {lengths.max():.2g}: "
                    f"float16 keeps the length of rows from {SHORTEST:g} to {LONGEST:g} only"
                )
            return np.hstack([rows, np.ones((len(rows), 1), dtype=np.float32)])

        found = recorded.rows(keys, items, homogeneous, size=size, kind=kind)
        return found[:, :-1] / found[:, -1:]

    def _count_cut(self, texts: Sequence[str]) -> None:
        fresh = [text for text in dict.fromkeys(texts) if text not in self._whole]
        self._whole.update((text, True) for text in fresh)
        # A token is one byte at least, so short texts need no tokenizer, which comes with the model.
        least = min(TRAINED_TOKENS.values()) - 2
        long = [t for t in fresh if len(unicodedata.normalize("NFD", t).encode()) > least]
        if not long or self.truncated is None:
            return
        try:
            limit = self._towers.limit(download=False)
            counts = self._towers.counts(long, download=False)
        except ModelMissing:
            self.truncated = None
            return
        self._whole.update((text, count <= limit) for text, count in zip(long, counts, strict=True))
        self.truncated = sum(not whole for whole in self._whole.values())


def _file_hash(file: Path) -> str:
    try:
        return hashlib.sha256(images.read_bytes(file)).hexdigest()
    except images.ImageRejected as error:
        raise images.ImageRejected(f"{file.name}: {error}") from error


def _key(kind: str, of: str) -> str:
    return hashlib.sha256(f"{kind}\x1f{of}".encode()).hexdigest()
