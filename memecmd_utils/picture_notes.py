"""What file and folder names say about a picture."""

import re
import unicodedata

# Names that chat programs, cameras, phones and browsers give by themselves.
_AUTOMATIC = re.compile(
    r"qq图片|微信图片|微信截图|企业微信截图|钉钉|屏幕截图|屏幕快照|截屏|截图|图片|图像|照片|表情包?|下载|未命名|新建|副本|"
    r"http\S*|(?<![a-z])(?:mmexport|wx_camera|screenshots?|untitled|unnamed|download(?:ed)?|pictures?|images?|"
    r"photos?|timg|img|dsc|pic|tumblr|copy|file|src|gif|jpe?g|png|webp|bmp)(?![a-z])",
    re.IGNORECASE,
)
_UUID_OR_HASH = re.compile(
    r"[0-9a-f]{8}-[0-9a-f-]{8,}|(?=[a-z]*\d)[0-9a-z]{12,}|\b[0-9a-f]{8,}\b", re.IGNORECASE
)
_GENERIC_FOLDERS = frozenset({"other", "others", "misc", "temp", "tmp", "new", "其他", "其它", "新建文件夹"})


def reads_as_words(name: str) -> bool:
    """Whether a file name without its extension says something, and is no time stamp, number or hash.

    >>> [reads_as_words(n) for n in ("今天也要加油", "QQ图片20171201095500", "d41d8cd98f00b204", "so tired")]
    [True, False, False, True]
    """
    rest = _UUID_OR_HASH.sub(" ", unicodedata.normalize("NFKC", name))
    rest = _AUTOMATIC.sub(" ", rest)
    han = sum("\u3400" <= c <= "\u9fff" for c in rest)
    # Latin words: at least three letters and a vowel, else they are codes such as "xkcd" or "a1b".
    words = [w for w in re.findall(r"[A-Za-z]{3,}", rest) if re.search("[aeiouy]", w, re.IGNORECASE)]
    return han >= 1 or bool(words)


def picture_note(folder: str, stem: str) -> str:
    """Note from the name of the folder (may be empty) and of the file; empty if neither says anything."""
    parts = []
    if folder and folder.lower() not in _GENERIC_FOLDERS and reads_as_words(folder):
        parts.append(f"文件夹：{folder}")
    if reads_as_words(stem):
        parts.append(f"文件名：{stem}")
    return "；".join(parts)
