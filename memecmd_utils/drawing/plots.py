"""How a figure looks and is kept: one style, the same bytes every time, no pyplot, no global state."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image

from memecmd_utils import files
from memecmd_utils.drawing import fonts

if TYPE_CHECKING:
    from matplotlib.figure import Figure


LARGE = 300_000
"""Bytes from which on a picture on a page has 256 colours."""
_STYLE: dict[str, Any] = {
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "axes.unicode_minus": False,
    "figure.constrained_layout.use": True,
    "font.size": 10,
    "grid.alpha": 0.3,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "mathtext.fontset": "dejavusans",
    "savefig.dpi": 150,
}


@contextmanager
def style() -> Iterator[None]:
    """Apply the style and the CJK font; matplotlib's settings are as before on leaving."""
    import matplotlib

    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # a user's matplotlibrc must not change the tracked figures
        fonts.use_matplotlib()
        matplotlib.rcParams.update(_STYLE)
        yield


def canvas(width: float, height: float) -> "Figure":
    """Return an empty figure of that many inches; it needs no display."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    return FigureCanvasAgg(Figure(figsize=(width, height))).figure


def save(fig: "Figure", folder: Path, name: str) -> list[Path]:
    """Write `name`.png and `name`.pdf without dates and versions, so that equal figures are equal bytes."""
    metadata = {
        "png": {"Software": None},
        "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
    }
    written = []
    with style():
        for kind, fields in metadata.items():
            target = Path(folder) / f"{name}.{kind}"
            with files.atomic_path(target) as part:
                fig.savefig(part, format=kind, metadata=fields)
            written.append(target)
    return written


def figure_png(fig: "Figure") -> bytes:
    """The figure as PNG bytes, for notebook cells and widgets."""
    buffer = io.BytesIO()
    with style():
        fig.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()


def show(fig: "Figure", png: bytes | None = None) -> Any:
    """The figure (or its picture, where made) for a cell: without pyplot Jupyter has no view of its own."""
    from IPython.display import Image as Shown

    return Shown(fewer_colours(png or figure_png(fig)), width=int(fig.get_figwidth() * 96))


@lru_cache(maxsize=8)  # a notebook shows what its page holds as well
def fewer_colours(png: bytes) -> bytes:
    """A PNG for a page: as it is, or in 256 colours where it is large. The file of a figure keeps all."""
    if len(png) < LARGE:
        return png
    buffer = io.BytesIO()
    with Image.open(io.BytesIO(png)) as picture:
        picture.convert("RGB").quantize(256).save(buffer, "PNG")
    return buffer.getvalue()


def save_and_show(fig: "Figure", folder: Path, name: str) -> Any:
    """Write `name`.png and `name`.pdf, and return the picture just written for a notebook cell."""
    png, _pdf = save(fig, folder, name)
    return show(fig, png.read_bytes())
