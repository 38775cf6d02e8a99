"""Chats with memes, the gate's chart and cards of memes as HTML; whatever is put in comes out escaped.

Markup stands in `html/explorer.html.j2`. Fast enough to be drawn anew at every move of a slider.
"""

import contextlib
import math
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from PIL import Image

from memecmd_utils import files, pictures
from memecmd_utils.drawing.text import initials

SIGNS = ("α", "δ", "β", "γ")
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 560, 250, 42, 550, 28, 214


@dataclass(frozen=True)
class Picture:
    """A small picture as a data URL, with its size in CSS pixels."""

    url: str
    width: int
    height: int


@dataclass(frozen=True)
class ShownMeme:
    """A meme in a chat; `lines` are written beside it."""

    meme_id: str
    picture: Picture
    caption: str
    lines: tuple[str, ...] = ()
    gloss: str = ""
    """Its English, shown where a reader points at the picture; empty where there is none."""
    defined: str = ""
    """Class and id under which a page has picture and caption once, so that they do not stand here again."""


@dataclass(frozen=True)
class ShownTurn:
    """A turn in a chat. `text` may be empty where only a meme stands; `note` is small print below."""

    number: int
    side: Literal["left", "right"]
    name: str
    text: str
    gloss: str = ""
    note: str = ""
    meme: ShownMeme | None = None


class Thumbnails:
    """Small pictures of memes, made at first use and kept (about 6 kB each at 120 pixels)."""

    def __init__(self, files: Mapping[str, Path], side: int = 120) -> None:
        """`files`: meme id to picture; `side`: longest side in CSS pixels, drawn at 1.5 x for sharpness."""
        self._files, self._side = files, side
        self._made: dict[str, Picture] = {}

    def __getitem__(self, meme_id: str) -> Picture:
        """The picture of a meme; `KeyError` for an unknown id, `OSError` for a file that cannot be read."""
        if meme_id not in self._made:
            self._made[meme_id] = self._make(self._files[meme_id])
        return self._made[meme_id]

    def make_ahead(self) -> threading.Thread:
        """Make all pictures in a thread: one takes longer (5-20 ms) than all else in a redrawn chat."""

        def work() -> None:
            for meme_id in self._files:
                # A file that cannot be read is told where it is to be shown, not here.
                with contextlib.suppress(OSError):
                    self[meme_id]

        thread = threading.Thread(target=work, name="memecmd-thumbnails", daemon=True)
        thread.start()
        return thread

    def _make(self, path: Path) -> Picture:
        with Image.open(path) as opened:
            share = self._side / max(opened.size)
            size = [max(1, round(length * share)) for length in opened.size]
            fine = [max(1, round(1.5 * length)) for length in size]
            plain = opened if opened.mode == "RGB" else opened.convert("RGBA")
            small = plain.resize(fine, Image.Resampling.BILINEAR, reducing_gap=2.0)
        page = Image.new("RGB", small.size, "white")
        page.paste(small, mask=small if small.mode == "RGBA" else None)
        return Picture(pictures.picture_url(page, "JPEG", quality=82), *size)


@lru_cache(maxsize=1)
def _parts() -> Any:
    return files.templates(initials=initials).get_template("explorer.html.j2").module


def styles() -> str:
    """The style sheet of all other parts; stands once in a page."""
    return str(_parts().styles())


def chat(turns: Sequence[ShownTurn], meme_position: Literal["before", "after"] = "before") -> str:
    """A chat like a phone's: A stands right, a meme before or after its turn's text."""
    return str(_parts().chat(turns, meme_position))


def table(rows: Sequence[tuple[str, str]]) -> str:
    """Names and values in two columns."""
    return str(_parts().table(rows))


def note(text: str, error: bool = False) -> str:
    """A line to the reader; an `error` is set off."""
    return str(_parts().note(text, error))


def cards(memes: Sequence[tuple[ShownMeme, float, Sequence[float]]]) -> str:
    """Memes with T and their four components (alpha, delta, beta, gamma) as bars from -0.5 to 0.5."""
    rows = []
    for meme, total, parts in memes:
        bars = []
        for sign, colour, part in zip(SIGNS, _COLOURS, parts, strict=True):
            width = round(min(abs(part), 0.5) * 100, 1)
            x = -width if part < 0 else 0.0
            bars.append({"sign": sign, "colour": colour, "x": x, "width": width, "value": signed(part)})
        card = {
            "meme_id": meme.meme_id,
            "picture": meme.picture,
            "caption": meme.caption,
            "gloss": meme.gloss,
        }
        rows.append({**card, "total": signed(total), "bars": bars})
    return str(_parts().cards(rows))


def signed(value: float, digits: int = 3) -> str:
    """A number with a sign of its own width: `+0.250`, `−0.031`."""
    return f"{value:+.{digits}f}".replace("-", "−")


def gate_chart(
    turns: Sequence[int],
    gate_scores: Sequence[float],
    thresholds: Sequence[float],
    sent: Sequence[bool],
    gated: bool = True,
) -> str:
    """Inline SVG of a dialogue's best scores against the moving threshold (Eq. 23); all equally long.

    A turn without a score (-inf) is marked with a cross. `gated=False` pales the threshold: nobody asked it.
    """
    if not len(turns) == len(gate_scores) == len(thresholds) == len(sent):
        raise ValueError("turns, gate_scores, thresholds and sent must be equally long")
    scores = [float(score) for score in gate_scores]
    values = [v for v in (*scores, *map(float, thresholds)) if math.isfinite(v)]
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    ticks = nice_ticks(low, high)
    low, high = min(low, ticks[0]), max(high, ticks[-1])
    step = (_RIGHT - _LEFT) / max(1, len(turns))
    xs = [round(_LEFT + (place + 0.5) * step, 1) for place in range(len(turns))]

    def y_of(value: float) -> float:
        return round(_BOTTOM - (value - low) / (high - low) * (_BOTTOM - _TOP), 1)

    stairs = [
        f"{'L' if place else 'M'}{x - step / 2:.1f} {y_of(theta)}H{x + step / 2:.1f}"
        for place, (x, theta) in enumerate(zip(xs, thresholds, strict=True))
    ]
    line, pen_down = [], False
    for x, score in zip(xs, scores, strict=True):
        if math.isfinite(score):
            line.append(f"{'L' if pen_down else 'M'}{x} {y_of(score)}")
        pen_down = math.isfinite(score)
    points = [
        {"x": x, "y": y_of(z), "sent": bool(on), "title": f"turn {t}: score {z:.2f}, threshold {theta:.2f}"}
        for x, t, z, theta, on in zip(xs, turns, scores, thresholds, sent, strict=True)
        if math.isfinite(z)
    ]
    count = f"{sum(map(bool, sent))} of {len(turns)} turns send a meme"
    plot = {
        "width": _WIDTH, "height": _HEIGHT, "left": _LEFT, "right": _RIGHT, "bottom": _BOTTOM,
        "label": f"gate scores and threshold by turn; {count}",
        "y_ticks": [(y_of(value), f"{value:g}".replace("-", "−")) for value in ticks],
        "x_ticks": list(zip(xs, turns, strict=True)) if len(turns) <= 30 else [],
        "threshold": "".join(stairs), "line": "".join(line), "points": points, "gated": gated,
        "missing": [x for x, z in zip(xs, scores, strict=True) if not math.isfinite(z)],
    }  # fmt: skip
    return str(_parts().chart(plot))


def nice_ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round numbers (1, 2 or 5 times a power of ten) that enclose `low` to `high`; at least two."""
    span = (high - low) or 1.0
    power = 10.0 ** math.floor(math.log10(span / about))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor * about >= span)
    first = math.floor(low / step)
    last = max(math.ceil(high / step), first + 1)
    return [round(number * step, 10) for number in range(first, last + 1)]
