"""The encoding of a chat file: marked, UTF-8, UTF-16 without a mark, or guessed among older ones.

Bytes of Big5, Shift-JIS and GB18030 fit one another's tables, so that a wrong guess reads without an error.
Which text is the likeliest is asked of charset-normalizer; what was taken is always said.
"""

import codecs
import contextlib
import re
import unicodedata
from dataclasses import dataclass

import charset_normalizer

from memecmd_utils.chat_columns import ChatFileError

MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32-le"),  # begins as UTF-16's mark does
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
GUESSED = {
    "gb18030": "GB18030",
    "cp950": "Big5",
    "big5hkscs": "Big5-HKSCS",
    "cp932": "Shift-JIS",
    "euc_jp": "EUC-JP",
    "cp949": "EUC-KR",
    "cp1252": "Windows-1252",
}
"""Older encodings that are guessed, in the order in which they are preferred where nothing else decides."""
COMMON = {
    "gb18030": ((0xA1, 0xA3), (0xB0, 0xD7)),
    "cp950": ((0xA1, 0xA1), (0xA4, 0xC6)),
    "big5hkscs": ((0xA1, 0xA1), (0xA4, 0xC6)),
    "cp932": ((0x81, 0x83), (0x88, 0x97)),
    "euc_jp": ((0xA1, 0xA5), (0xB0, 0xCF)),
    "cp949": ((0xA1, 0xA1), (0xB0, 0xC8)),
}
"""First bytes of punctuation, kana, Hangul, and the characters that the standards themselves put first, as
the most used (level 1 of GB 2312, Big5 and JIS X 0208)."""
_WESTERN = re.compile(r"(?<![^\0-\x7f])[À-ÖØ-öø-ÿŒœŠšŽžŸ€¿¡«»°‘’“”–—…]{1,3}(?![^\0-\x7f])")
"""Letters with accents and the usual marks, few of them together."""


@dataclass(frozen=True)
class Encoding:
    """How the text of a file is stored."""

    codec: str
    mark: bytes = b""
    """The byte order mark that the file began with, or nothing."""
    guessed: bool = False
    broken: int = 0
    """Bytes of a UTF-8 file that are none; they are written back as they were."""

    def encode(self, text: str) -> bytes:
        """The text as it stood in the file. Raises `ChatFileError` for a sign that the encoding lacks."""
        try:
            return self.mark + text.encode(self.codec, "surrogateescape" if self.broken else "strict")
        except UnicodeEncodeError as error:
            lacking = text[error.start : error.end]
            raise ChatFileError(
                f"{lacking!r} cannot be written in {self.codec}, the encoding of IN: save IN as UTF-8"
            ) from error

    def text(self) -> str:
        """In words, with the way to name another where it was guessed."""
        name = GUESSED.get(self.codec, self.codec.upper())
        if self.broken:
            return f"encoding {name}, {self.broken} bytes of which are not"
        return (
            f'encoding {name}, a guess: FIELDS="encoding=..." names another'
            if self.guessed
            else f"encoding {name}"
        )


def decode(data: bytes, name: str, given: str = "") -> tuple[str, Encoding]:
    """Text of a file and its encoding; `given` is what its owner calls it.

    Raises `ChatFileError` if no encoding fits.
    """
    mark, codec = next(((m, c) for m, c in MARKS if data.startswith(m)), (b"", ""))
    body = data[len(mark) :]
    if given:
        return _given(body, mark, codec, name, given)
    if codec:
        return _strict(body, Encoding(codec, mark), name)
    if 0 in body:
        wide = _wide(body)
        if wide:
            return wide
    if b"\x1b$" in body and body.isascii():
        return _strict(body, Encoding("iso2022_jp"), name)
    try:
        return body.decode("utf-8"), Encoding("utf-8")
    except UnicodeDecodeError:
        pass
    broken = body.decode("utf-8", "surrogateescape")
    bad = len(re.findall("[\udc80-\udcff]", broken))
    # Three bytes in a row that fit UTF-8's pattern are rare in any other encoding.
    if len(re.findall("[\u0800-\ud7ff\ue000-\U0010ffff]", broken)) >= 3 * bad:
        return broken, Encoding("utf-8", broken=bad)
    for codec in _ranked(body):
        with contextlib.suppress(UnicodeDecodeError):
            text = body.decode(codec)
            if codec in COMMON or _is_western(text):
                return text, Encoding(codec, guessed=True)
    raise ChatFileError(
        f"{name}: the text is in none of UTF-8, UTF-16 and {', '.join(GUESSED.values())}; save it as UTF-8, "
        'or name its encoding as FIELDS="encoding=..."'
    )


def _given(body: bytes, mark: bytes, marked: str, name: str, given: str) -> tuple[str, Encoding]:
    try:
        codec = codecs.lookup(given).name
        "".encode(codec)
    except LookupError as error:
        raise ChatFileError(
            f"no encoding is called {given!r}; for example: big5, shift_jis, gb18030"
        ) from error
    if codec == "utf-8-sig":
        codec = "utf-8"
    if codec in ("utf-16", "utf-32"):  # these want a mark, or guess
        codec = marked if marked.startswith(codec) else f"{codec}-{_ends(body)}"
    codec = {"big5": "cp950", "shift_jis": "cp932", "gbk": "gb18030", "gb2312": "gb18030"}.get(codec, codec)
    return _strict(body if marked else mark + body, Encoding(codec, mark if marked else b""), name)


def _strict(body: bytes, encoding: Encoding, name: str) -> tuple[str, Encoding]:
    try:
        return body.decode(encoding.codec), encoding
    except UnicodeDecodeError as error:
        line = body.count(b"\n", 0, error.start) + 1
        raise ChatFileError(f"{name} line {line}: not {encoding.codec} ({error.reason})") from error


def _ends(body: bytes) -> str:
    """`be` or `le`: an ASCII character has its zero byte first or last."""
    return "be" if body[0::2].count(0) > body[1::2].count(0) else "le"


def _wide(body: bytes) -> tuple[str, Encoding] | None:
    """UTF-16 without a mark; None for another text that holds zero bytes."""
    codec = f"utf-16-{_ends(body)}"
    try:
        text = body.decode(codec)
    except UnicodeDecodeError:
        return None
    try:
        body.decode("utf-8")
        # Latin text in UTF-16 is valid UTF-8, too: then every second byte is zero.
        if body.count(0) < len(body) / 4:
            return None
    except UnicodeDecodeError:
        pass
    odd = sum(char not in "\t\r\n" and unicodedata.category(char) in ("Cc", "Cn", "Co") for char in text)
    # A stray zero byte makes at most a few of the line breaks look like UTF-16's.
    lines = re.search(r"[\r\n\t ,]", text) and 4 * text.count("\n") >= 3 * body.count(b"\n")
    return (text, Encoding(codec)) if lines and odd <= len(text) / 50 else None


def _ranked(body: bytes) -> list[str]:
    """Codecs of `GUESSED`, the likeliest first: little of what looks like a wrong reading, many common signs.

    On made-up chats of one line Big5, Shift-JIS and GB18030 were all told apart, 400 of each; EUC-JP in 392.
    """
    # Lines of ASCII say nothing, and would make up most of what is sampled of some files.
    telling = b"\n".join(line for line in body.replace(b"\0", b"").split(b"\n") if not line.isascii())
    found = charset_normalizer.from_bytes(telling, steps=8, threshold=1.0, cp_isolation=list(GUESSED))
    mess = {
        codec: (match.chaos, -match.coherence)
        for match in found
        for codec in (match.encoding, *match.could_be_from_charset)
    }
    ranks = []
    for place, codec in enumerate(GUESSED):
        chaos, coherence = mess.get(codec, (1.0, 0.0))
        with contextlib.suppress(UnicodeDecodeError):
            ranks.append((chaos - _common(telling.decode(codec), codec), coherence, place, codec))
    return [codec for *_, codec in sorted(ranks)]


def _is_western(text: str) -> bool:
    """Whether most signs beyond ASCII stand as in a western language.

    Nearly all bytes are something in Windows-1252: a damaged file of another encoding fits it, too.
    """
    return 2 * sum(map(len, _WESTERN.findall(text))) >= sum(not char.isascii() for char in text)


def _common(text: str, codec: str) -> float:
    """Share of the characters beyond ASCII that are common in the encoding's language."""
    chars = [char for char in text if not char.isascii()][:5000]
    if codec not in COMMON:  # letters with accents stand alone among others
        return len(re.findall(r"(?<![^\0-\x7f])[^\0-\x7f](?![^\0-\x7f])", text)) / len(chars)
    # Big5-HKSCS has signs that decode to a letter and an accent; the accent alone is none of its own.
    leads = [sign[0] for sign in (char.encode(codec, "ignore") for char in chars) if len(sign) == 2]
    return sum(any(low <= lead <= high for low, high in COMMON[codec]) for lead in leads) / len(chars)
