"""Line breaking for Chinese text with Latin words in it, as phones do it."""

import re
import unicodedata
from collections.abc import Callable

CLOSING = frozenset("，。、；：？！）】》〉」』”’…—～·％‰々ー,.;:?!)]}%°℃")
"""Never at the start of a line."""
OPENING = frozenset("（【《〈「『“‘([{￥$#@")
"""Never at the end of a line."""

# A word or number in one piece, with the marks that live inside it: don't, 3.5, 12:30, e-mail, a.b/c?d=1
_ATOM = re.compile(
    r"[0-9A-Za-zÀ-ɏ]+(?:['’.,:/@_+&=~#?%-]+[0-9A-Za-zÀ-ɏ]+)*|\s+|.",
    re.DOTALL,
)


def clean(text: str) -> str:
    """Drop what has no picture of its own: control and format characters, variation selectors."""
    return "".join(
        c
        for c in text
        if c == "\n" or not (unicodedata.category(c) in ("Cc", "Cf") or 0xFE00 <= ord(c) <= 0xFE0F)
    )


def units(line: str) -> list[str]:
    """Split one paragraph into the smallest pieces between which a line may end.

    >>> units("他说“好”，看iPhone 15！")
    ['他', '说', '“好”，', '看', 'iPhone', ' ', '15！']
    """
    pieces: list[str] = []
    for atom in _ATOM.findall(line):
        glue = pieces and not atom.isspace() and (atom in CLOSING or pieces[-1][-1] in OPENING)
        if glue:
            pieces[-1] += atom
        else:
            pieces.append(" " if atom.isspace() else atom)
    return pieces


def wrap(text: str, width: float, measure: Callable[[str], float]) -> list[str]:
    """Break `text` into lines no wider than `width`; "\\n" always breaks.

    A piece that is wider than a whole line is cut between characters: there is no better place.
    """
    lines: list[str] = []
    for paragraph in clean(text).split("\n"):
        line, used = "", 0.0
        for unit in units(paragraph):
            size = measure(unit)
            if used + size <= width:
                if line or unit != " ":
                    line, used = line + unit, used + size
            elif size <= width:
                lines.append(line.rstrip(" "))
                line, used = ("", 0.0) if unit == " " else (unit, size)
            else:
                for char in unit:
                    size = measure(char)
                    if line and used + size > width:
                        lines.append(line.rstrip(" "))
                        line, used = "", 0.0
                    line, used = line + char, used + size
        lines.append(line.rstrip(" "))
    return lines
