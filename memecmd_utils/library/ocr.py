"""Read the text on a meme. The models lie inside the `rapidocr` wheel; nothing is downloaded."""

import re
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from memecmd_utils.files import MemecmdError, cores

if TYPE_CHECKING:
    from PIL import Image


PACKAGE = "rapidocr"
RULES = "memecmd-2"  # change it when the settings or the joining of lines below change
MIN_SCORE = 0.75  # of 0-1; below it lines are mostly outlines taken for letters
MIN_SCORE_LATIN = 0.9  # for lines without a Chinese character: round shapes read as "O", "8" or "CCC"
ROUND = frozenset("0OoCc")
"""What eyes, wheels and drops are read as, with a score of up to 0.99; up to three in a row are no text."""
DETECTION_SIDE = 480  # pixels of the shorter side; its own 736 took half again as long and read no better
MAX_SIDE = 2000
# Signs of scripts that are written without blanks, and those that such texts share with others.
_DENSE = (
    "\u2e80-\u2fdf\u3001-\u30ff\u3105-\u312f\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    "\uff66-\uff9d\U00020000-\U0003ffff！（），．：；？～"
)
_SHARED = "\u2014\u2018\u2019\u201c\u201d\u2026\u00b7"
_WRAP = re.compile(f"(?<=[{_DENSE}])\\s+(?=[{_DENSE}{_SHARED}])|(?<=[{_SHARED}])\\s+(?=[{_DENSE}])")


class OcrError(MemecmdError, RuntimeError):
    """The OCR engine or its models are missing."""


class Ocr(Protocol):
    """Anything that reads text from a picture."""

    @property
    def ocr_id(self) -> str:
        """Names engine, version, models and rules: a part of the key of a cached text."""

    def read_text(self, image: "Image.Image") -> str:
        """Visible text of an RGB picture in reading order; empty if there is none."""


class OcrCache(Protocol):
    """Where texts that were read are kept."""

    def get(self, key: str) -> str | None:
        """Text under `key`, or None."""

    def put(self, key: str, text: str) -> None:
        """Keep `text` under `key`."""


class MemoryCache(dict[str, str]):
    """An `OcrCache` for one process."""

    def put(self, key: str, text: str) -> None:
        """Keep `text` under `key`."""
        self[key] = text


class Line(NamedTuple):
    """A line of text with its box in pixels."""

    text: str
    left: float
    top: float
    right: float
    bottom: float


def cache_key(sha256: str, ocr_id: str) -> str:
    """Key of a text: the file's SHA-256 and everything that changes what is read from it."""
    return f"{sha256}|{ocr_id}"


@cache
def wheel_models() -> dict[str, Path]:
    """Files of the `det` and `rec` models that came with the wheel; with such paths nothing is downloaded."""
    try:
        files = metadata.files(PACKAGE) or []
    except metadata.PackageNotFoundError as error:
        raise OcrError(f"no OCR engine; run: pip install {PACKAGE} onnxruntime") from error
    models = {}
    for task in ("det", "rec"):
        fitting = sorted(str(f.locate()) for f in files if f.suffix == ".onnx" and f"_{task}_" in f.name)
        if not fitting or not Path(fitting[-1]).is_file():
            raise OcrError(f"the {PACKAGE} wheel holds no {task} model; run: pip install -U {PACKAGE}")
        models[task] = Path(fitting[-1])
    return models


class RapidOcr:
    """PP-OCR through `rapidocr` and onnxruntime; the engine is loaded at the first picture."""

    def __init__(self, threads: int | None = None) -> None:
        self.threads = threads or min(4, cores())
        self._engine: Any = None

    def __getstate__(self) -> dict[str, Any]:
        """Without the engine: another process loads its own."""
        return {**self.__dict__, "_engine": None}

    @property
    def ocr_id(self) -> str:
        """Package version, models and our own rules."""
        models = ", ".join(path.stem for path in wheel_models().values())
        return f"{PACKAGE} {metadata.version(PACKAGE)}; {models}; {RULES}"

    def read_text(self, image: "Image.Image") -> str:
        """Lines that were read with enough confidence, in reading order, joined with a space."""
        import numpy as np

        if self._engine is None:
            self._engine = self._load()
        pixels = np.ascontiguousarray(np.asarray(image.convert("RGB"))[:, :, ::-1])  # it wants BGR
        result = self._engine(pixels)
        if getattr(result, "boxes", None) is None or not result.txts:
            return ""
        lines = []
        for box, text, score in zip(result.boxes, result.txts, result.scores, strict=True):
            if is_text(text.strip(), score):
                xs, ys = box[:, 0], box[:, 1]
                lines.append(Line(text.strip(), *map(float, (xs.min(), ys.min(), xs.max(), ys.max()))))
        return " ".join(line.text for line in reading_order(lines))

    def _load(self) -> Any:
        from rapidocr import RapidOCR

        models = wheel_models()
        return RapidOCR(
            params={
                "Global.log_level": "error",  # touches only the engine's own logger
                "Global.max_side_len": MAX_SIDE,
                "Global.use_cls": False,  # looks for upside-down lines; changed nothing on 50 real memes
                "Det.model_path": str(models["det"]),
                "Det.limit_side_len": DETECTION_SIDE,
                "Rec.model_path": str(models["rec"]),
                "EngineConfig.onnxruntime.intra_op_num_threads": self.threads,
                "EngineConfig.onnxruntime.inter_op_num_threads": 1,
            }
        )


def without_wraps(text: str) -> str:
    """What was read as one text: no blank where a line of Chinese or Japanese went on in the next.

    >>> without_wraps("今天不想 上班 because I am tired")
    '今天不想上班 because I am tired'
    """
    return _WRAP.sub("", text)


def reading_order(lines: list[Line]) -> list[Line]:
    """Sort lines: rows from top to bottom, each from left to right; vertical columns from right to left."""
    if len(lines) > 1 and all(_is_column(line) for line in lines):
        return sorted(lines, key=lambda line: (-line.left, line.top, line.text))
    rows: list[list[Line]] = []
    for line in sorted(lines, key=lambda line: (line.top + line.bottom, line.left, line.text)):
        middle = (line.top + line.bottom) / 2
        # Same row: the middle lies within the row's last line, so slightly tilted rows hold together.
        if rows and rows[-1][-1].top < middle < rows[-1][-1].bottom:
            rows[-1].append(line)
        else:
            rows.append([line])
    return [line for row in rows for line in sorted(row, key=lambda line: (line.left, line.text))]


def is_text(text: str, score: float) -> bool:
    """Whether a line that the engine read with `score` (0-1) is text and not the outline of a drawing.

    >>> is_text("666", 0.95), is_text("00", 0.97), is_text("8", 0.99), is_text("哈", 0.8), is_text("ok", 0.8)
    (True, False, False, True, False)
    """
    if any("\u3400" <= character <= "\u9fff" for character in text):
        return score >= MIN_SCORE
    drawn = text in ("8", "D", "Q") or (len(text) <= 3 and ROUND.issuperset(text))
    return not drawn and score >= MIN_SCORE_LATIN


def _is_column(line: Line) -> bool:
    return len(line.text) > 1 and line.bottom - line.top > 1.5 * (line.right - line.left)
