"""Chats and memes as pictures and as HTML, figures, fonts: what notebooks, pages and judges are shown.

Pictures are drawn with Pillow, HTML comes from `html/chat.html.j2` and needs no network; whatever text is put
in comes out escaped.
"""

import hashlib
import io
import json
import math
import os
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache, partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from markupsafe import Markup
from PIL import Image, ImageDraw, ImageFont, ImageOps

from memecmd_utils import files
from memecmd_utils.files import atomic_path, paths
from memecmd_utils.pictures import encoded, on_ground
from memecmd_utils.schemas import Annotation, AnnotationReply, Dialogue, Meme, Summary, SummaryReply, Turn

if TYPE_CHECKING:
    from IPython.display import HTML
    from matplotlib.figure import Figure

BLUE, ORANGE, GREEN, RED, PURPLE, GREY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#666666"
"""The colours of figures and lessons: Okabe and Ito's, which any kind of colour vision can separate."""

# --- fonts: Noto Sans CJK with Simplified Chinese forms; DejaVu Sans for signs that it lacks, as most smileys

FACE_SC = 2  # faces of the collection: 0 Japanese, 1 Korean, 2 Simplified Chinese, ...


def _collection() -> Path:
    import noto_cjk_sans_otc

    return Path(noto_cjk_sans_otc.__file__).with_name("NotoSansCJK-Regular.ttc")


def cjk_font_path() -> Path:
    """Path of the Simplified Chinese face as a font file of its own, cut out of the collection once.

    matplotlib reads only the first face of a collection, and that one has Japanese forms.
    """
    source = _collection()
    target = paths.interim / "fonts" / "NotoSansCJKsc-Regular.otf"
    if not target.is_file() or target.stat().st_mtime < source.stat().st_mtime:
        from fontTools.ttLib import TTFont

        with (
            TTFont(source, fontNumber=FACE_SC, lazy=True, recalcBBoxes=False, recalcTimestamp=False) as font,
            atomic_path(target) as part,
        ):
            font.save(part, reorderTables=None)
    return target


@lru_cache(maxsize=128)
def pil_font(size: int, chinese: bool = True) -> ImageFont.FreeTypeFont:
    """Noto Sans CJK, or DejaVu Sans, for Pillow at `size` pixels.

    Glyphs are set one after another, without the shaping library that some machines have and others not.
    """
    path, face = _collection(), FACE_SC
    if not chinese:
        import matplotlib

        path, face = Path(matplotlib.get_data_path(), "fonts/ttf/DejaVuSans.ttf"), 0
    return ImageFont.truetype(str(path), size, index=face, layout_engine=ImageFont.Layout.BASIC)


# --- figures: one style, the same bytes every time, no pyplot


@contextmanager
def style() -> Iterator[None]:
    """Apply the style and the Chinese font; matplotlib's settings are as before on leaving."""
    import matplotlib.style
    from matplotlib import font_manager

    font = str(cjk_font_path())
    if all(entry.fname != font for entry in font_manager.fontManager.ttflist):
        font_manager.fontManager.addfont(font)
    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # a user's matplotlibrc must not change the tracked figures
        matplotlib.style.use(files.HTML / "figures.mplstyle")
        yield


def canvas(width: float, height: float) -> "Figure":
    """Return an empty figure of that many inches; it needs no display."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=150)


def figure_png(fig: "Figure") -> bytes:
    """The figure as PNG bytes, for notebook cells and widgets."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    buffer = io.BytesIO()
    with style():  # `savefig` would draw everything twice
        FigureCanvasAgg(fig).print_png(buffer, metadata={"Software": None}, pil_kwargs={"compress_level": 3})
    return buffer.getvalue()


def save(fig: "Figure", folder: Path, name: str) -> list[Path]:
    """Write `name`.png and `name`.pdf without dates and versions, so that equal figures are equal bytes."""
    from matplotlib.backends.backend_pdf import FigureCanvasPdf

    written = [Path(folder) / f"{name}.png", Path(folder) / f"{name}.pdf"]
    with atomic_path(written[0]) as part:
        part.write_bytes(figure_png(fig))
    with atomic_path(written[1]) as part, style():
        FigureCanvasPdf(fig).print_pdf(part, metadata=dict.fromkeys(("CreationDate", "Creator", "Producer")))
    return written


def show(fig: "Figure", png: bytes | None = None) -> Any:
    """The figure (or its picture, where made) for a cell; its titles and labels describe it in words."""
    from IPython.display import Image as Shown

    words = [
        word
        for axes in fig.axes
        for word in (axes.get_title("left"), axes.get_title(), axes.get_xlabel(), axes.get_ylabel())
    ]
    told = "Chart. " + "; ".join(dict.fromkeys(" ".join(word.split()) for word in words if word))
    return Shown(png or figure_png(fig), width=int(fig.get_figwidth() * 96), alt=told)


def save_and_show(fig: "Figure", folder: Path, name: str) -> Any:
    """Write `name`.png and `name`.pdf, and return the picture just written for a notebook cell."""
    png, _pdf = save(fig, folder, name)
    return show(fig, png.read_bytes())


# --- text in pictures. Lines break where Unicode's rules let them (UAX 14): no closing mark begins a line, no
# opening mark ends one, words and numbers stay whole. Sizes are pixels.

Colour = tuple[int, int, int]
SEMIBOLD = 0.022
"""Stroke around semi-bold glyphs, in em: the package of the font has the regular weight only."""


def clean(text: str) -> str:
    """Normal form C without what has no picture of its own: control and format characters.

    A pair of dashes is one long dash.
    """
    text = unicodedata.normalize("NFC", re.sub("\r\n?|[\u2028\u2029\x0b\x0c\x85]", "\n", text))
    text = re.sub("[\ufe00-\ufe0f\U000e0100-\U000e01ef]", "", text)  # they choose the form of the sign before
    text = "".join(c for c in text if c.isspace() or unicodedata.category(c)[0] != "C")
    return text.replace("——", "\u2e3a")


def clusters(text: str) -> list[str]:
    """Split into what the eye takes for one character: a letter with its accents, a blank.

    >>> [len(c) for c in clusters("好e\u0301 ")]
    [1, 2, 1]
    """
    return re.findall(r".[\u0300-\u036f]*", text, re.DOTALL)


def initials(names: Iterable[str]) -> dict[str, str]:
    """A sign for each name, as on an avatar: its first character, or the first that others like it lack.

    >>> initials(["母亲", "女儿"]), initials(["小王", "小李"]), initials(["Anna Bell", "Anna Cook"])
    ({'母亲': '母', '女儿': '女'}, {'小王': '王', '小李': '李'}, {'Anna Bell': 'B', 'Anna Cook': 'C'})
    """
    parts = {name: clusters(clean(name).strip().upper()) for name in names}
    signs = {}
    for name, pieces in parts.items():
        alike = [other for other in parts.values() if other[:1] == pieces[:1]]
        same = len(os.path.commonprefix(alike)) if len(alike) > 1 else 0  # noqa: RUF071 (of lists)
        signs[name] = next((piece for piece in pieces[same:] if piece.strip()), "".join(pieces[-1:]))
    return signs


def wrap(text: str, width: float, measure: Callable[[str], float]) -> list[str]:
    """Break `text` into lines no wider than `width` (in the unit of `measure`); "\\n" always breaks.

    A piece wider than a whole line is cut between any two characters.
    """
    from uniseg.linebreak import line_break_units

    lines: list[str] = []
    for paragraph in clean(text).split("\n"):
        line = ""
        for unit in line_break_units(re.sub(r"\s+", " ", paragraph).strip()):
            for piece in [unit] if measure(unit.rstrip()) <= width else clusters(unit):
                if line and measure((line + piece).strip()) > width:
                    lines.append(line.strip())
                    line = ""
                line += piece
        lines.append(line.strip())
    return lines


@lru_cache(maxsize=20_000)
def covered(char: str) -> bool:
    """Whether the CJK font has this character; it draws a crossed box for those that it lacks."""
    font = pil_font(24)
    return char.isspace() or bytes(font.getmask(char)) != bytes(font.getmask("\U0010fffd"))


def _runs(text: str, size: int) -> Iterator[tuple[str, ImageFont.FreeTypeFont]]:
    """Stretches of a line with the font that has their characters."""
    for chinese, run in groupby(text, covered):
        yield "".join(run), pil_font(size, chinese)


@lru_cache(maxsize=50_000)
def text_width(text: str, size: int) -> int:
    """Width of a line of cleaned text."""
    return sum(round(font.getlength(run)) for run, font in _runs(text, size))


def write_line(
    image: Image.Image, where: tuple[int, int], text: str, size: int, fill: Colour, bold: bool = False
) -> None:
    """Write one line of cleaned text with its left end and baseline at `where`."""
    x, y = where
    pen = ImageDraw.Draw(image)
    for run, font in _runs(text, size):
        pen.text((x, y), run, fill, font, anchor="ls", stroke_width=SEMIBOLD * size if bold else 0)
        x += round(font.getlength(run))


def tile(text: str, side: int = 240) -> Image.Image:
    """A square in place of a picture that is not there: its words, cut to what fits."""
    image, size = Image.new("RGB", (side, side), PAGE), side // 12
    lines = wrap(text, side - 2 * size, partial(text_width, size=size))
    for number, line in enumerate(lines[: side // (2 * size) - 1], start=1):
        write_line(image, (size, 2 * size * number), line, size, INK)
    return image


# --- numbered contact sheets, on which a model that sees chooses among memes (`reranking.py`)

SHEET_VERSION = 1
"""Part of every sheet's id: raise it when the same memes would look different."""
SHEET_COLUMNS = 4
SHEET_CELL, SHEET_NUMBER = 160, 20
"""Pixels: side of a cell, and the strip above the picture that holds its number, so that it covers nothing.
Twenty memes are 640 x 800: four tiles for models that count tiles of 512 or crops of 768, and a fifth of the
pixels of twenty memes for those that count area. A line of ten characters has some 15 pixels a character."""


def sheet_size(memes: int) -> tuple[int, int]:
    """Width and height of a sheet of so many memes."""
    columns = min(memes, SHEET_COLUMNS)
    return columns * SHEET_CELL, -(-memes // columns) * SHEET_CELL


def draw_sheet(pictures: Sequence[Path]) -> Image.Image:
    """Pictures in rows of `SHEET_COLUMNS`, each fitted into its cell, with numbers from 1 on."""
    image, side = Image.new("RGB", sheet_size(len(pictures)), FIELD), SHEET_CELL
    pen, room = ImageDraw.Draw(image), (side - 4, side - SHEET_NUMBER - 2)
    for place, path in enumerate(pictures):
        x, y = (steps * side for steps in divmod(place, SHEET_COLUMNS)[::-1])
        with Image.open(path) as opened:
            small = ImageOps.contain(on_ground(opened), room, Image.Resampling.LANCZOS)
        left, top = (room[0] - small.width) // 2, (room[1] - small.height) // 2
        image.paste(small, (x + 2 + left, y + SHEET_NUMBER + top))
        write_line(image, (x + 5, y + SHEET_NUMBER - 3), str(place + 1), SHEET_NUMBER - 3, INK, bold=True)
        pen.rectangle((x, y, x + side - 1, y + side - 1), outline=RULE)
    return image


# --- chat screenshots that look like a phone's, for judges (2507.00891, Section 5.1) and Figure 5

RENDERER_VERSION = 3
"""Part of every specification's hash: raise it when the same specification would read differently."""
WIDTH = 390
AVATAR, STATUS, HEADER, FOOTER = 40, 30, 44, 76
BODY, LINE, PAD_X, PAD_Y = 16, 22, 12, 9
MARGIN, GAP, BETWEEN, STAMP = 12, 11, 14, 30
MEME, MIN_HEIGHT = 150, 480
TITLE, TITLE_MARGIN = 17, 85
PHASE_STARTS = (1, 7, 13)
"""Turns that open a part of the dialogue (Eq. 11-14): a time stamp stands above them."""
PAGE, BAR, RULE = (237, 237, 237), (246, 246, 246), (218, 218, 218)
INK, FAINT, FIELD = (24, 24, 24), (104, 104, 104), (255, 255, 255)
BUBBLES: dict[str, tuple[Colour, Colour]] = {
    "left": ((255, 255, 255), (24, 24, 24)),
    "right": ((149, 236, 105), (16, 30, 10)),
}
"""Fill and ink of the bubbles of each side."""
AVATAR_COLOURS: dict[str, tuple[Colour, ...]] = {
    "left": ((58, 109, 175), (176, 88, 28), (74, 121, 54), (150, 82, 148)),
    "right": ((188, 68, 80), (34, 122, 122), (124, 102, 70), (92, 100, 178)),
}
"""Each side has colours of its own, so that the two people of a chat never look alike."""
_FINE = 4


class Bubble(NamedTuple):
    """One message: a text or a meme. `stamp` is the time written above it, if any."""

    side: Literal["left", "right"]
    name: str
    text: str = ""
    meme_id: str = ""
    stamp: str = ""


class ChatSpec(NamedTuple):
    """All that decides how a screenshot looks. Memes stand in it by id; `draw_chat` gets their files."""

    title: str
    bubbles: list[Bubble]
    clock: str


def spec_sha256(spec: ChatSpec) -> str:
    """Hash of a specification and the renderer's version; enters the key of a recording."""
    value = {**spec._asdict(), "bubbles": [bubble._asdict() for bubble in spec.bubbles]}
    value = {"renderer": RENDERER_VERSION, "spec": value}
    text = json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def chat_from_dialogue(dialogue: Dialogue, memes: Mapping[int, str], n_turns: int | None = None) -> ChatSpec:
    """Build the screenshot of a dialogue's first `n_turns` turns with memes: their ids by turn.

    A owns the phone and stands right; the meme of turn t is a bubble of its speaker before u_t.
    """
    names = {"A": dialogue.name_a or "A", "B": dialogue.name_b or "B"}
    # Times are part of the picture only: any fixed choice that looks natural will do.
    minute = 540 + int(hashlib.sha256(dialogue.dialogue_id.encode()).hexdigest()[:8], 16) % 720
    bubbles: list[Bubble] = []
    for turn in dialogue.turns[:n_turns]:
        side = "right" if turn.speaker == "A" else "left"
        stamp = ""
        if turn.turn in PHASE_STARTS:
            minute += 0 if turn.turn == 1 else 9
            stamp = f"{minute // 60 % 24}:{minute % 60:02d}"
        shown = [{"meme_id": memes[turn.turn]}] if turn.turn in memes else []
        for content in (*shown, {"text": turn.text}):
            bubbles.append(Bubble(side=side, name=names[turn.speaker], stamp=stamp, **content))
            stamp = ""
    clock = f"{(minute + 5) // 60 % 24}:{(minute + 5) % 60:02d}"
    return ChatSpec(title=names["B"], bubbles=bubbles, clock=clock)


def draw_chat(spec: ChatSpec, meme_files: Mapping[str, Path]) -> Image.Image:
    """Draw a screenshot; `meme_files` gives the picture of every meme id in the specification."""
    room = WIDTH - 2 * (MARGIN + AVATAR + GAP + PAD_X)
    placed: list[tuple[Bubble, list[str] | Image.Image, int]] = []  # a bubble, its lines or picture, its top
    y = STATUS + HEADER + BETWEEN
    for bubble in spec.bubbles:
        y += STAMP if bubble.stamp else 0
        if bubble.meme_id:
            picture = _fitted(meme_files[bubble.meme_id])
            placed.append((bubble, picture, y))
            y += max(picture.height, AVATAR) + BETWEEN
        else:
            lines = wrap(bubble.text, room, partial(text_width, size=BODY))
            placed.append((bubble, lines, y))
            y += max(len(lines) * LINE + 2 * PAD_Y, AVATAR) + BETWEEN
    height = max(y + FOOTER, MIN_HEIGHT)
    image = Image.new("RGB", (WIDTH, height), PAGE)
    pen = ImageDraw.Draw(image)
    middle = STATUS + HEADER // 2
    pen.rectangle((0, 0, WIDTH, STATUS + HEADER - 2), fill=BAR)
    pen.line((0, STATUS + HEADER - 1, WIDTH, STATUS + HEADER - 1), fill=RULE)
    pen.line(((22, middle - 8), (14, middle), (22, middle + 8)), fill=INK, width=2)
    pen.rectangle((0, height - FOOTER, WIDTH, height), fill=BAR)
    pen.line((0, height - FOOTER, WIDTH, height - FOOTER), fill=RULE)
    _rounded(image, (50, height - FOOTER + 9, WIDTH - 90, height - FOOTER + 47), 5, FIELD)
    title = wrap(spec.title, WIDTH - 2 * TITLE_MARGIN, partial(text_width, size=TITLE))[0]
    write_line(image, ((WIDTH - text_width(title, TITLE)) // 2, middle + 6), title, TITLE, INK, bold=True)
    write_line(image, (22, 20), spec.clock, 14, INK, bold=True)
    signs = initials(bubble.name for bubble in spec.bubbles)
    for bubble, content, top in placed:
        _paint(image, bubble, content, top, signs[bubble.name])
    return image


def _paint(image: Image.Image, bubble: Bubble, content: list[str] | Image.Image, y: int, sign: str) -> None:
    """Draw a bubble whose top is at `y`, with its avatar and the time above it."""
    right = bubble.side == "right"
    if bubble.stamp:
        left = (WIDTH - text_width(bubble.stamp, 12)) // 2
        write_line(image, (left, y - STAMP + 16), bubble.stamp, 12, FAINT)
    x = WIDTH - MARGIN - AVATAR if right else MARGIN
    # sha256, not hash(): Python salts the latter, and a picture must not change between runs.
    colour = AVATAR_COLOURS[bubble.side][hashlib.sha256(bubble.name.encode()).digest()[0] % 4]
    _rounded(image, (x, y, x + AVATAR, y + AVATAR), 5, colour)
    size = 19 if len(clusters(sign)) == 1 else 14
    left = x + (AVATAR - text_width(sign, size)) // 2
    write_line(image, (left, y + round(AVATAR / 2 + 0.38 * size)), sign, size, FIELD)
    if isinstance(content, Image.Image):
        x = x - GAP - content.width if right else x + AVATAR + GAP
        image.paste(content, (x, y), _mask(content.size, 5))
        return
    width = max(*(text_width(line, BODY) for line in content), BODY) + 2 * PAD_X
    x = x - GAP - width if right else x + AVATAR + GAP
    fill, ink = BUBBLES[bubble.side]
    _rounded(image, (x, y, x + width, y + len(content) * LINE + 2 * PAD_Y), 6, fill)
    # Baseline that centres a Chinese character (em box, ascent 0.88) in its line.
    first = round(y + PAD_Y + (LINE - BODY) / 2 + 0.88 * BODY)
    for number, line in enumerate(content):
        write_line(image, (x + PAD_X, first + number * LINE), line, BODY, ink)


def _rounded(image: Image.Image, box: tuple[int, int, int, int], radius: int, fill: Colour) -> None:
    """Fill `box` (left, top, right, bottom) with smooth corners."""
    image.paste(fill, box, _mask((box[2] - box[0], box[3] - box[1]), radius))


@lru_cache(maxsize=256)
def _mask(size: tuple[int, int], radius: int) -> Image.Image:
    """A rectangle with round corners: Pillow draws hard edges, so it is drawn larger and scaled down."""
    large = Image.new("L", (size[0] * _FINE, size[1] * _FINE), 0)
    edges = (0, 0, large.width - 1, large.height - 1)
    ImageDraw.Draw(large).rounded_rectangle(edges, radius * _FINE, fill=255)
    return large.resize(size, Image.Resampling.BOX)


def _fitted(path: Path) -> Image.Image:
    """A meme scaled to fit a square of `MEME` pixels."""
    with Image.open(path) as opened:
        picture = on_ground(ImageOps.exif_transpose(opened))
    ratio = min(MEME / picture.width, MEME / picture.height)
    # The floor keeps a panorama or a banner visible as more than a line.
    size = tuple(max(24, round(edge * ratio)) for edge in picture.size)
    return picture.resize(size, Image.Resampling.LANCZOS)


def encode(image: Image.Image) -> bytes:
    """Encode a screenshot as JPEG without chroma subsampling, which would smear coloured text."""
    return encoded(image, "JPEG", quality=88, subsampling=0)


# --- chats and the gate's chart as HTML, fast enough for a slider's every move

SIGNS = ("α", "δ", "β", "γ")


@lru_cache(maxsize=1024)
def small_picture(path: Path, side: int) -> tuple[str, int, int]:
    """Data URL, width and height of a picture whose longest side has so many CSS pixels.

    It is drawn at 1.5 x for sharpness (6 kB at 120).
    """
    with Image.open(path) as opened:
        share = side / max(opened.size)
        width, height = (max(1, round(length * share)) for length in opened.size)
        fine = [max(1, round(1.5 * length)) for length in (width, height)]
        small = opened.convert("RGBA").resize(fine, Image.Resampling.BILINEAR, reducing_gap=2.0)
    return files.data_url(encoded(on_ground(small), "JPEG", quality=82)), width, height


def shown_meme(meme: Meme, path: Path, side: int = 120, lines: Sequence[str] = ()) -> dict[str, Any]:
    """A meme as the macros of `chat.html.j2` take it, with `lines` beside its picture."""
    url, width, height = small_picture(path, side)
    return {
        "meme_id": meme.meme_id, "url": url, "width": width, "height": height, "caption": caption_of(meme),
        "gloss": meme.gloss, "lines": lines,
    }  # fmt: skip


@lru_cache(maxsize=1)
def parts() -> Any:
    """The macros of `html/chat.html.j2`; its `styles()` stand once in a page."""
    return files.templates(initials=initials).get_template("chat.html.j2").module


def chat(turns: Sequence[Turn], memes: Mapping[int, Mapping[str, Any]], notes: Mapping[int, str]) -> str:
    """A chat like a phone's: A stands right, a meme before its turn's text, English glosses below.

    `memes` (of `shown_meme`) and `notes`, the small print below, are by turn.
    """
    rows = [
        {
            "number": turn.turn, "side": "right" if turn.speaker == "A" else "left", "name": turn.speaker,
            "text": turn.text, "gloss": turn.gloss, "note": notes.get(turn.turn, ""),
            "meme": memes.get(turn.turn),
        }
        for turn in turns
    ]  # fmt: skip
    return str(parts().chat(rows, True))


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
    from matplotlib.ticker import MaxNLocator

    rows = [
        {"turn": turn, "score": score if math.isfinite(score) else None, "threshold": theta, "sent": bool(on)}
        for turn, score, theta, on in zip(turns, gate_scores, thresholds, sent, strict=True)
    ]
    values = [v for v in (*gate_scores, *thresholds) if math.isfinite(v)] or [0.0, 1.0]
    ticks = MaxNLocator(5, steps=[1, 2, 5, 10]).tick_values(min(values), max(values)).tolist()
    return str(parts().chart(rows, ticks, gated))


# --- what notebooks show: bubbles with English below, cards, rows, two things side by side. Each function
# returns an `IPython.display.HTML`.

MEME_SIDE = {
    "s_plus": ("S⁺  when it fits", GREEN),
    "s_minus": ("S⁻  when it does not", RED),
    "emotion": ("E  what it feels like", BLUE),
    "motivation": ("Ψ  why one sends it", PURPLE),
}
"""Heading and colour of the four texts of a meme (2507.00891, Eq. 1)."""
TURN_SIDE = {
    "scenario": ("S  where the chat stands", GREEN),
    "emotion": ("E  what would suit the next message", BLUE),
    "motivation": ("Ψ  what a meme would be sent for", PURPLE),
}
"""Heading and colour of the three texts of a turn (Eq. 16)."""


def teaching_dialogue(
    dialogues: Sequence[Dialogue], case: Literal["lands", "typical", "fails"] = "lands"
) -> Dialogue:
    """The dialogue that lessons walk through, chosen by the rule in `data/example/teaching_dialogues.json`.

    A run that does not have it shows its first dialogue.
    """
    name = json.loads((paths.example / "teaching_dialogues.json").read_text(encoding="utf-8"))[case]
    return next((one for one in dialogues if one.dialogue_id == name), dialogues[0])


def caption_of(meme: Meme) -> str:
    """The words of a meme; its id where none are known, so that something stands there."""
    return meme.words or meme.meme_id


def show_chat(
    dialogue: Dialogue,
    picks: Mapping[int, Meme],
    files: Mapping[str, Path],
    *,
    turns: range | None = None,
    notes: Mapping[int, str] | None = None,
) -> "HTML":
    """The dialogue as bubbles, with the meme of each turn in `picks`; A stands right.

    `turns` cuts it, for example `range(9, 17)`. `notes` are small print below a turn.
    """
    there = [turn for turn in dialogue.turns if turns is None or turn.turn in turns]
    memes = {turn.turn: picks[turn.turn] for turn in there if turn.turn in picks}
    shown = {turn: shown_meme(meme, files[meme.meme_id], 150) for turn, meme in memes.items()}
    return _display(chat(there, shown, notes or {}))


def show_memes(memes: Sequence[Meme], files: Mapping[str, Path], labels: Sequence[str] = ()) -> "HTML":
    """Memes in a row, each with its caption, its gloss and a label below."""
    given = [*labels, *[""] * (len(memes) - len(labels))]
    shown = [shown_meme(meme, files[meme.meme_id], 160) for meme in memes]
    return _display(parts().row(shown, given))


def show_meme(meme: Meme, files: Mapping[str, Path], annotation: Annotation) -> "HTML":
    """A card: the meme beside its four texts, each with its English below where the package has it."""
    boxes = _boxes(annotation, MEME_SIDE, meme.meme_id)
    return _display(parts().card(shown_meme(meme, files[meme.meme_id], 180), boxes))


def show_summary(dialogue_id: str, summary: Summary) -> "HTML":
    """What the summary agent says of a turn: three boxes, in the colours of the meme's texts they meet."""
    return _display(parts().boxes(_boxes(summary, TURN_SIDE, f"{dialogue_id}/{summary.turn}")))


def show_texts(annotations: Sequence[Annotation], field: str, labels: Sequence[str]) -> "HTML":
    """One of the four texts of several memes without their pictures, each under its label."""
    # Of a small library there may be fewer texts than labels.
    pairs = [
        (a, {field: (label, MEME_SIDE[field][1])}) for a, label in zip(annotations, labels, strict=False)
    ]
    return _display(parts().boxes([b for a, side in pairs for b in _boxes(a, side, a.meme_id)]))


def show_beside(**shown: "HTML") -> "HTML":
    """What the other functions return, side by side under their names (`_` in a name is a blank)."""
    named = [(name.replace("_", " "), Markup(part.data)) for name, part in shown.items()]
    return _display(parts().beside(named))


def english_of(record: Annotation | Summary, key: str) -> dict[str, str]:
    """The English of a record by field; empty where there is none.

    It stands in the record (`gloss`), or in the example's files. `key` is the meme's id, or `DIALOGUE/TURN`.
    """
    if record.english:
        reply = AnnotationReply if isinstance(record, Annotation) else SummaryReply
        return dict(zip(reply.model_fields, record.english, strict=False))  # behind them the words of a meme
    return _english().get(key, {}) if record.source == "authored" else {}


@lru_cache(maxsize=1)
def _english() -> dict[str, dict[str, str]]:
    rows = [
        row
        for name in ("annotation_glosses.jsonl", "summary_glosses.jsonl")
        for row in files.read_rows(paths.example / name)
    ]
    return {row.get("meme_id") or f"{row['dialogue_id']}/{row['turn']}": row for row in rows}


def _boxes(
    record: Annotation | Summary, sides: Mapping[str, tuple[str, str]], key: str
) -> list[dict[str, str]]:
    """Texts of a record with title, colour and English, by `sides`: field to title and colour."""
    english = english_of(record, key)
    return [
        {"title": title, "colour": colour, "text": getattr(record, field), "english": english.get(field, "")}
        for field, (title, colour) in sides.items()
    ]


def _display(shown: str) -> "HTML":
    from IPython.display import HTML

    return HTML(f"{parts().styles()}{shown}")
