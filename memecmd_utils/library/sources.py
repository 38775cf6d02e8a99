"""Where memes come from: the sources of a profile, the images in them, and what they say of each."""

import json
import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from memecmd_utils import pictures
from memecmd_utils.files import paths
from memecmd_utils.library.examples import ExampleMeme, example_memes
from memecmd_utils.pictures import LibraryError

EXAMPLE = "example"  # the source that means the example memes
DESCRIBED_IN = ("data.json", "glm/glm_data.json", "glm_data.json")
"""Where a source may hold descriptions of its pictures, as emo-visual-data does; the first is believed first.
Multimodal models wrote them: they tell a text model what is on a picture that it cannot see."""
LEAST, MOST = 12, 600
"""Characters of a usable description; of 5,745 real ones all but three lie within."""
_REFUSAL = re.compile(
    r"^\W*(?:很|非常)?(?:抱歉|对不起|不好意思)[，,。！!]?\s*(?:但|由于|因为|作为|目前|暂时)?[^“”]{0,12}?(?:我|无法|不能)|"
    r"^\W*作为(?:一个|一款|一名)?.{0,12}(?:人工智能|AI|语言模型|助手)|我(?:目前)?(?:无法|不能)(?:查看|看到|识别|直接)|"
    r"^\W*(?:i'?m sorry|i am sorry|sorry, (?:but )?i|i can(?:no|')t|as an ai)",
    re.IGNORECASE,
)
# A unit of up to 40 characters that runs on for at least 60: laughter is shorter.
_RUN_AWAY = re.compile(r"(.{1,40}?)\1{4,}", re.DOTALL)
_RUN_LENGTH = 60
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


@dataclass(frozen=True)
class Candidate:
    """An image file that may become a meme."""

    name: str
    """What `rejected.csv`, the curation file and the contact sheet call it; unique."""
    origin: str
    group: str
    """Folder; a sample is spread over the groups."""
    path: Path
    example: ExampleMeme | None = None
    note: str = ""
    """What the source, the folder and the file name say of the picture; empty where they say nothing."""
    link_out: bool = False
    """A link that leads out of its source: nothing behind it is looked at."""

    def read(self) -> bytes:
        """Bytes of the image; `ImageRejected` if they cannot be had."""
        return pictures.read_bytes(self.path)


def find_candidates(sources: Sequence[str]) -> list[Candidate]:
    """All images of all sources, sorted by name. `example` is the example memes, all others are folders.

    Links that lead out of their source are among them, so that it can be said that they were left out.
    """
    if not sources:
        raise LibraryError("`sources` is empty: name folders of images, or `example`")
    candidates: list[tuple[str, Candidate]] = []
    for source in dict.fromkeys(sources):
        if source == EXAMPLE:
            for meme in example_memes():
                note = meme.picture_note
                candidate = Candidate(meme.meme_id, meme.meme_id, EXAMPLE, meme.path, meme, note)
                candidates.append((source, candidate))
            continue
        folder = paths.root / Path(source).expanduser()
        described = descriptions(folder)
        files = pictures.look_through(folder)
        for path in (*files.images, *files.links_out):
            origin = pictures.readable(path.relative_to(folder))
            parent, stem = PurePosixPath(origin).parent, PurePosixPath(origin).stem
            group = f"{source}/{parent}"
            note = "；".join(filter(None, (described.get(path.name), picture_note(parent.name, stem))))
            out = path in files.links_out
            candidates.append((source, Candidate(origin, origin, group, path, note=note, link_out=out)))
    # Two sources may hold the same path; then, and only then, the source is part of the name. Within one
    # source two paths may read alike, in GBK and in UTF-8; then all but the first have a number.
    count = Counter(candidate.name for _, candidate in candidates)
    unique: dict[str, Candidate] = {}
    for source, candidate in candidates:
        plain = candidate.name if count[candidate.name] == 1 else f"{source}/{candidate.name}"
        name, number = plain, 1
        while name in unique:
            number += 1
            name = f"{plain} #{number}"
        unique[name] = replace(candidate, name=name)
    return [unique[name] for name in sorted(unique)]


def usable(text: str) -> bool:
    """Whether a description says something of a picture: no refusal, no text that runs away, no stump.

    >>> usable("抱歉，我无法回答您这个问题。"), usable("一只戴墨镜的猫坐在电脑前，看起来很得意。")
    (False, True)
    """
    if not LEAST <= len(text) <= MOST or _REFUSAL.search(text):
        return False
    return all(len(match[0]) < _RUN_LENGTH for match in _RUN_AWAY.finditer(text))


def descriptions(folder: Path) -> dict[str, str]:
    """The first usable description of every picture by its file name, marked with the file that holds it.

    A JSON file of another form is somebody else's and is left alone; a broken one raises `LibraryError`.
    """
    texts: dict[str, str] = {}
    for file in DESCRIBED_IN:
        path = folder / file
        if not path.is_file():
            continue
        try:
            records = json.loads(path.read_text(encoding="utf-8-sig"))
        except (ValueError, RecursionError, OSError) as error:
            raise LibraryError(
                f"{path} cannot be read as JSON ({error}): fetch it again, or take it away"
            ) from error
        if not _are_descriptions(records):
            continue
        for record in records:
            name, text = record["filename"].strip(), " ".join(record["content"].split())
            if name not in texts and usable(text):
                texts[name] = f"图片描述（{file}）：{text}"
    return texts


def _are_descriptions(records: Any) -> bool:
    return isinstance(records, list) and all(
        isinstance(record, dict)
        and isinstance(record.get("filename"), str)
        and isinstance(record.get("content"), str)
        for record in records
    )


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
    """What the names of the folder (may be empty) and of the file say; empty if neither says anything."""
    parts = []
    if folder and folder.lower() not in _GENERIC_FOLDERS and reads_as_words(folder):
        parts.append(f"文件夹：{folder}")
    if reads_as_words(stem):
        parts.append(f"文件名：{stem}")
    return "；".join(parts)
