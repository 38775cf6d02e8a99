"""Stage 01: from folders of images, or the example memes, to one clean library of memes.

Images are decoded safely, read by OCR and freed of duplicates; a funnel says where every file went, and a
contact sheet helps a person to keep or drop memes.
"""

import csv
import difflib
import functools
import hashlib
import json
import multiprocessing
import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
from PIL import Image

from memecmd_utils import files, pictures, statistics
from memecmd_utils.files import cores, paths
from memecmd_utils.pictures import ImageRejected, LibraryError, decode, decode_bytes
from memecmd_utils.recordings import TextCache
from memecmd_utils.schemas import Meme
from memecmd_utils.settings import Filters, Profile

__all__ = ["ImageRejected", "LibraryError", "decode", "decode_bytes"]  # notebooks take them from here

# --- Where memes come from

LICENCE = "CC BY-SA 4.0 (OpenMoji)"
"""Of the example memes."""
DESCRIBED_IN = ("data.json", "glm/glm_data.json", "glm_data.json")
"""Where a source may hold descriptions of its pictures, as emo-visual-data does: multimodal models wrote
them, and they tell a text model what is on a picture. The first is believed first."""
UNUSABLE = re.compile(
    r"^\W*(?:很|非常)?(?:抱歉|对不起|不好意思|作为.{0,15}(?:AI|智能|模型|助手)|i'?m sorry|sorry|as an ai)"
    r"|我(?:目前)?(?:无法|不能)(?:查看|看到|识别|直接)|(?P<unit>.{1,40}?)(?P=unit){9}",
    re.IGNORECASE | re.DOTALL,
)
"""A description that refuses to describe, or that runs away."""
AUTOMATIC = re.compile(
    r"qq图片|微信图片|微信截图|企业微信截图|钉钉|屏幕截图|屏幕快照|截屏|截图|图片|图像|照片|表情包?|下载|未命名|新建|副本|"
    r"http\S*|(?<![a-z])(?:mmexport|wx_camera|screenshots?|untitled|unnamed|download(?:ed)?|pictures?|images?|"
    r"photos?|timg|img|dsc|pic|tumblr|copy|file|src|gif|jpe?g|png|webp|bmp)(?![a-z])|"
    r"[0-9a-f]{8}-[0-9a-f-]{8,}|(?=[a-z]*\d)[0-9a-z]{12,}|\b[0-9a-f]{8,}\b",
    re.IGNORECASE,
)
"""Names that chat programs, cameras, phones and browsers give by themselves, and hashes."""
GENERIC_FOLDERS = frozenset({"other", "others", "misc", "temp", "tmp", "new", "其他", "其它", "新建文件夹"})


class ExampleMeme(NamedTuple):
    """One row of the table of example memes: all visible text, top to bottom, its English, its picture."""

    meme_id: str
    text: str
    picture_note: str
    gloss: str
    path: Path


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

    def read(self) -> bytes:
        """Bytes of the image; `ImageRejected` if they cannot be had."""
        return pictures.read_bytes(self.path)


def example_memes(folder: Path | None = None) -> list[ExampleMeme]:
    """Read `memes.csv` of a folder (default: `data/example`); the pictures lie in its folder `memes`."""
    folder, memes = folder or paths.example, []
    with (folder / "memes.csv").open(encoding="utf-8-sig", newline="") as handle:
        for row in csv.DictReader(handle):
            text = f"{row['caption_top']} {row['caption']}".strip()
            path = folder / "memes" / f"{row['meme_id']}.webp"
            memes.append(ExampleMeme(row["meme_id"], text, row["picture_note"], row["gloss"], path))
    return memes


def find_candidates(sources: Sequence[str]) -> list[Candidate]:
    """All images of all sources, sorted by name. `example` is the example memes, all others are folders."""
    found: list[tuple[str, Candidate]] = []
    for source in dict.fromkeys(sources):
        if source == "example":
            for meme in example_memes():
                note = meme.picture_note
                found.append((source, Candidate(meme.meme_id, meme.meme_id, source, meme.path, meme, note)))
            continue
        folder = paths.user_path(source)
        described = descriptions(folder)
        for path in pictures.look_through(folder):
            origin = pictures.readable(path.relative_to(folder))
            parent = PurePosixPath(origin).parent
            said = (described.get(path.name), picture_note(parent.name, PurePosixPath(origin).stem))
            note = "；".join(filter(None, said))
            found.append((source, Candidate(origin, origin, f"{source}/{parent}", path, note=note)))
    # Two sources may hold the same path; then, and only then, the source is part of the name.
    count = Counter(candidate.name for _, candidate in found)
    named = [
        candidate if count[candidate.name] == 1 else replace(candidate, name=f"{source}/{candidate.name}")
        for source, candidate in found
    ]
    return sorted(named, key=lambda candidate: candidate.name)


def descriptions(folder: Path) -> dict[str, str]:
    """The first usable description of every picture by its name; files of another form are left alone."""
    texts: dict[str, str] = {}
    for file in DESCRIBED_IN:
        path = folder / file
        try:
            records = json.loads(path.read_text(encoding="utf-8-sig"))
            pairs = [(record["filename"].strip(), record["content"].split()) for record in records]
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            continue
        for name, words in pairs:
            text = " ".join(words)  # of 5,745 real ones three are longer or shorter
            if name not in texts and 12 <= len(text) <= 600 and not UNUSABLE.search(text):
                texts[name] = f"图片描述（{file}）：{text}"
    return texts


def picture_note(folder: str, stem: str) -> str:
    """What the names of the folder (may be empty) and of the file say; empty if neither says anything."""
    folder = "" if folder.lower() in GENERIC_FOLDERS else folder
    said = (("文件夹", folder), ("文件名", stem))
    return "；".join(f"{what}：{name}" for what, name in said if reads_as_words(name))


def reads_as_words(name: str) -> bool:
    """Whether a file name without its extension says something, and is no time stamp, number or hash."""
    words = AUTOMATIC.sub(" ", unicodedata.normalize("NFKC", name))
    # Latin words: at least three letters and a vowel, else they are codes such as "xkcd" or "a1b".
    latin = [w for w in re.findall(r"[A-Za-z]{3,}", words) if re.search("[aeiouy]", w, re.IGNORECASE)]
    return bool(latin) or any("\u3400" <= character <= "\u9fff" for character in words)


# --- The text on a meme

THINNEST = 20
"""Sides of a picture, at most so many to 1: OCR of thinner ones takes minutes, or fails."""
DENSE = r"\u2e80-\u2fdf\u3001-\u31ff\u3400-\u9fff\uf900-\ufaff\uff01-\uffee"
WRAP = re.compile(f"(?<=[{DENSE}])\\s+(?=[{DENSE}“‘…—])|(?<=[”’…—])\\s+(?=[{DENSE}])")
"""A blank where a line of Chinese or Japanese went on in the next: these are written without blanks."""


class Line(NamedTuple):
    """A line of text with its box in pixels."""

    text: str
    left: float
    top: float
    right: float
    bottom: float


class RapidOcr:
    """PP-OCR through `rapidocr` and onnxruntime; the engine is loaded at the first picture.

    Its models lie inside the wheel; nothing is downloaded.
    """

    def __init__(self, threads: int | None = None) -> None:
        self.threads = threads or min(4, cores())
        content = [Path(str(file.locate())) for file in metadata.files("rapidocr") or []]
        models = {task: sorted(f for f in content if f.match(f"*_{task}_*.onnx")) for task in ("det", "rec")}
        self.models = {task: found[-1] for task, found in models.items()}

    @property
    def ocr_id(self) -> str:
        """Engine, version, models and our own rules: a part of the key of a recorded text."""
        models = ", ".join(path.stem for path in self.models.values())
        return f"rapidocr {metadata.version('rapidocr')}; {models}; memecmd-2"  # new when the rules change

    @functools.cached_property
    def engine(self) -> Any:
        """The engine; importing and loading it takes a second."""
        from rapidocr import RapidOCR

        return RapidOCR(
            params={
                "Global.log_level": "error",  # touches only the engine's own logger
                "Global.max_side_len": 2000,
                "Global.use_cls": False,  # looks for upside-down lines; changed nothing on 50 real memes
                "Det.model_path": str(self.models["det"]),
                "Det.limit_side_len": 480,  # its own 736 took half again as long and read no better
                "Rec.model_path": str(self.models["rec"]),
                "EngineConfig.onnxruntime.intra_op_num_threads": self.threads,
                "EngineConfig.onnxruntime.inter_op_num_threads": 1,
            }
        )

    def read_text(self, image: Image.Image) -> str:
        """Lines that were read with enough confidence, in reading order, joined with a space."""
        pixels = np.ascontiguousarray(np.asarray(image.convert("RGB"))[:, :, ::-1])  # it wants BGR
        result = self.engine(pixels)
        if getattr(result, "boxes", None) is None or not result.txts:
            return ""
        lines = []
        for box, text, score in zip(result.boxes, result.txts, result.scores, strict=True):
            if is_text(text.strip(), score):
                xs, ys = box[:, 0], box[:, 1]
                lines.append(Line(text.strip(), *map(float, (xs.min(), ys.min(), xs.max(), ys.max()))))
        return " ".join(line.text for line in reading_order(lines))


def is_text(text: str, score: float) -> bool:
    """Whether a line that the engine read with `score` (0-1) is text and not the outline of a drawing."""
    if any("\u3400" <= character <= "\u9fff" for character in text):
        return score >= 0.75
    # Eyes, wheels and drops are read as round letters with a score of up to 0.99, outlines as Latin ones.
    outline = text in ("8", "D", "Q") or (len(text) <= 3 and set("0OoCc").issuperset(text))
    return not outline and score >= 0.9


def reading_order(lines: list[Line]) -> list[Line]:
    """Sort lines: rows from top to bottom, each from left to right; vertical columns from right to left."""
    columns = [
        len(line.text) > 1 and line.bottom - line.top > 1.5 * (line.right - line.left) for line in lines
    ]
    if len(lines) > 1 and all(columns):
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


# --- Duplicates: the same picture (64-bit perceptual hash) with the same text


class NearDuplicates(NamedTuple):
    """What `near_duplicate_groups` found; numbers are positions in the input."""

    groups: list[list[int]]
    """First the one to keep (the earliest), then those that are near it; each position at most once."""
    doubtful: list[tuple[int, int]]
    """Pairs of like pictures of which one has no text, or neither while their hashes differ."""


def phash(image: Image.Image) -> int:
    """64-bit DCT perceptual hash of a picture."""
    import imagehash

    return int(str(imagehash.phash(image, hash_size=8)), 16)


def close_pairs(hashes: Sequence[int], max_distance: int) -> list[tuple[int, int, int]]:
    """All pairs i < j of 64-bit hashes that differ in at most `max_distance` bits: (i, j, bits), sorted."""
    values, found = np.array(hashes, dtype=np.uint64), []
    for start in range(0, len(values), 512):
        bits = np.bitwise_count(values[start : start + 512, None] ^ values[None, start:])
        rows, columns = np.nonzero(np.triu(bits <= max_distance, k=1))
        places = (rows + start).tolist(), (columns + start).tolist(), bits[rows, columns].tolist()
        found += zip(*places, strict=True)
    return found


def near_duplicate_groups(
    hashes: Sequence[int], texts: Sequence[str], max_distance: int = 6
) -> NearDuplicates:
    """Find near duplicates: hash distance <= `max_distance` and texts at least 0.9 alike.

    Memes share a picture and differ in the caption, so a hash alone would throw different memes away. The
    earliest of the input is kept and takes everything near it; what is near only to a dropped one stays.
    """
    plain = [normalise_text(text) for text in texts]
    groups, dropped, doubtful = {}, set(), []
    for i, j, bits in close_pairs(hashes, max_distance):
        if bool(plain[i]) != bool(plain[j]) or (bits and not plain[i]):
            doubtful.append((i, j))
        elif i not in dropped and j not in dropped and alike(plain[i], plain[j], 0.9):
            dropped.add(j)
            groups.setdefault(i, [i]).append(j)
    return NearDuplicates(list(groups.values()), doubtful)


def normalise_text(text: str) -> str:
    """Text for comparison: NFKC, lower case, letters and digits only; signs where there is nothing else."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    letters = "".join(c for c in folded if unicodedata.category(c)[0] in "LN")
    return letters or "".join(folded.split())


def similarity(a: str, b: str) -> float:
    """Share of common text, 0-1, of two normalised texts; two empty texts are equal (1)."""
    first, second = sorted((a, b))  # difflib's ratio depends on the order
    return difflib.SequenceMatcher(None, first, second, autojunk=False).ratio()


def alike(a: str, b: str, min_similarity: float) -> bool:
    """Whether two normalised texts are equal or at least `min_similarity` similar."""
    # The lengths give an upper bound, far cheaper than the ratio.
    can_be = 2 * min(len(a), len(b)) >= min_similarity * (len(a) + len(b))
    return a == b or (can_be and similarity(a, b) >= min_similarity)


# --- What is done with one image

UNDECODABLE, EXACT, FILTER, NEAR = "undecodable", "exact duplicate", "filter", "near duplicate"
CURATION, NOT_SAMPLED = "dropped by curation", "not sampled"
STEPS = (UNDECODABLE, EXACT, FILTER, NEAR, CURATION, NOT_SAMPLED)
"""Where a file can leave, in the order of the funnel. A file is counted once, where it left."""
DIED = "the process that read it died or took longer than five minutes"


class Exit(NamedTuple):
    """Why a file is not in the library: the step, and in words for `rejected.csv`."""

    step: str
    why: str

    @property
    def reason(self) -> str:
        """A row of `funnel.csv`: the filter that left it out, or the kind of fault."""
        if self.step == FILTER:
            return re.findall(r"\((\w+)", self.why)[-1]
        return re.split(r"[:(,;]", self.why)[0].strip() if self.step == UNDECODABLE else ""


class Reading(NamedTuple):
    """What was found in an image; of one that is left out only `exit` and what led to it."""

    exit: Exit | None
    text: str | None = None
    """Visible text; None where a picture was left out before its text was read."""
    normal: bytes = b""
    """The normalised copy as PNG."""
    size: tuple[int, int] = (0, 0)
    phash: int = 0
    """64-bit perceptual hash of the normalised copy."""
    pixels: int = 0
    """Width times height of the picture as the file holds it, before anything is scaled."""


def filtered(filters: Filters, picture: Image.Image, text: str | None = None) -> Exit | None:
    """The filter that leaves out a picture of this size or, where its text is known, with this text."""
    short, long = sorted(picture.size)
    if short < filters.min_side:
        return Exit(FILTER, f"shorter side of {short} pixels (min_side {filters.min_side})")
    if filters.max_aspect_ratio is not None and long > filters.max_aspect_ratio * short:
        limit = f"max_aspect_ratio {filters.max_aspect_ratio:g}"
        return Exit(FILTER, f"sides as {long / short:.2f} to 1 ({limit})")
    length = None if text is None else len("".join(text.split()))
    if filters.max_text_chars is not None and (length or 0) > filters.max_text_chars:
        return Exit(FILTER, f"{length} characters of text (max_text_chars {filters.max_text_chars})")
    return None


Job = tuple[Path, Filters, str | None]
"""An image to look at, the filters that hold for it, and its visible text where that is known already."""


def read_picture(job: Job, ocr: Any = None) -> Reading:
    """Decode an image, read its text and make its normalised copy; without `ocr` each process has one."""
    path, filters, text = job
    try:
        picture = decode(path)
    except ImageRejected as reason:
        return Reading(Exit(UNDECODABLE, str(reason)))
    if max(picture.size) > THINNEST * min(picture.size):
        return Reading(Exit(UNDECODABLE, f"too thin: {picture.width} x {picture.height}"))
    if out := filtered(filters, picture):
        return Reading(out)
    pixels = picture.width * picture.height
    try:
        text = (ocr or _ocr_of_process()).read_text(picture) if text is None else text
    except Exception as error:  # one odd picture must not end the reading of thousands
        return Reading(Exit(UNDECODABLE, f"the OCR engine failed: {error}".splitlines()[0]))
    if out := filtered(filters, picture, text):
        return Reading(out, text)
    # Read first, shrink then: small print in tall comic strips is lost at 640 pixels.
    picture.thumbnail((640, 640), Image.Resampling.LANCZOS)
    return Reading(None, text, pictures.png_bytes(picture), picture.size, phash(picture), pixels)


# --- Many images: here, in processes of this machine, or on Dask's workers; results in the order of the jobs

PARALLEL_FROM = 100
"""Images from which on processes pay: starting them takes as long as reading some tens of pictures."""
LIMIT_S = 300
"""Seconds after which a process that still reads the same image is ended; the largest take some tens."""


def read_pictures(jobs: Sequence[Job], profile: Profile, ocr: Any = None) -> Iterator[Reading]:
    """Read images, with an `ocr` of one's own in this process alone.

    In processes, an image whose process dies, or that takes longer than `LIMIT_S`, is rejected.
    """
    from pebble import ProcessExpired, ProcessPool

    if ocr is None and profile.models.engine == "dask":
        yield from _on_workers(jobs, profile.models.scheduler)
    elif ocr is not None or sum(text is None for *_, text in jobs) < PARALLEL_FROM:
        ocr = ocr or RapidOcr()
        yield from (read_picture(job, ocr) for job in jobs)
    else:
        # Spawned and not forked: a notebook's kernel and onnxruntime have threads that a fork cuts off.
        with ProcessPool(min(cores(), 16), context=multiprocessing.get_context("spawn")) as pool:
            readings = pool.map(read_picture, jobs, timeout=LIMIT_S).result()
            try:
                for _ in jobs:
                    try:
                        yield next(readings)
                    except (ProcessExpired, TimeoutError):
                        yield Reading(Exit(UNDECODABLE, DIED))
            finally:
                pool.stop()


def _on_workers(jobs: Sequence[Job], scheduler: str | None) -> Iterator[Reading]:
    """Have the workers of a Dask scheduler read the images; without an address, workers of this machine."""
    try:
        from distributed import Client
    except ImportError as error:
        raise files.ExtraMissing("engine: dask needs Dask: pip install -e '.[scale]'") from error
    # One thread a worker, because an image keeps a core busy.
    with Client(scheduler, threads_per_worker=1, dashboard_address=None) as client:
        client.wait_for_workers(1, timeout=60)
        yield from (future.result() for future in client.map(read_picture, jobs, pure=False))


@functools.cache
def _ocr_of_process() -> RapidOcr:
    # One thread each: two threads take twice the processor time of one for the same picture.
    return RapidOcr(threads=1)


# --- The library


class LibraryReport(NamedTuple):
    """Numbers of files, and the tables that `build_library` wrote."""

    found: int
    kept: int
    doubtful_pairs: int
    rejected_csv: Path
    funnel: Path


class Seen(NamedTuple):
    """An image that was read and may be kept; `pixels` counts the whole picture."""

    candidate: Candidate
    meme: Meme
    pixels: int


def build_library(
    profile: Profile, run_dir: Path, ocr: Any = None, ocr_cache: TextCache | None = None
) -> LibraryReport:
    """Build `run_dir/memes.parquet` and `run_dir/memes/*.png` from `profile.library.sources`.

    Also writes `rejected.csv` (every file left out, with the reason), `funnel.csv` (how many left where) and
    `contact_sheet.html`. `LibraryError` for an unusable source or curation file, or if no meme is left.
    """
    candidates = find_candidates(profile.library.sources)
    decisions: list[Decision] = []
    if profile.library.curation is not None:
        decisions = read_curation(paths.user_path(profile.library.curation), {c.name for c in candidates})
    wanted = {decision.file for decision in decisions if decision.action == "keep"}
    exits = {
        d.file: Exit(CURATION, f"dropped by the curation file{': ' if d.why else ''}{d.why}")
        for d in decisions
        if d.action == "drop"
    }
    order = _in_order([c for c in candidates if c.name not in exits], profile)
    order.sort(key=lambda c: c.name not in wanted)  # files to keep are in every sample
    seen = _read_all(order, profile, run_dir, wanted, exits, ocr, ocr_cache)
    near, doubtful = _near_duplicates(seen, wanted)
    for j, i in near.items():
        exits[seen[j].candidate.name] = Exit(NEAR, f"near duplicate of {seen[i].candidate.name}")
    kept = sorted(
        (i for i in range(len(seen)) if i not in near),
        key=lambda i: (seen[i].meme.origin, seen[i].meme.meme_id),
    )
    rejected_csv, funnel = run_dir / "rejected.csv", run_dir / "funnel.csv"
    rejected = [{"file": name, "reason": exits[name].why} for name in sorted(exits)]
    files.write_frame(rejected_csv, pd.DataFrame(rejected, columns=["file", "reason"]))
    write_funnel(funnel, len(candidates), exits.values(), len(kept), profile.library.filters)
    if not kept:
        first = "; the first: {file}: {reason}".format(**rejected[0]) if rejected else ""
        raise LibraryError(f"no meme is left of {len(candidates)} files, see {rejected_csv}{first}")
    copies = {one.meme.file for one in seen}
    for path in (run_dir / "memes").iterdir():
        if f"memes/{path.name}" not in copies:  # an earlier run with other settings left it
            path.unlink()
    pairs = [(i, j) for i, j in doubtful if {i, j} <= set(kept)]
    sheet = files.templates().get_template("contact_sheet.html.j2")
    page = sheet.render(
        name=run_dir.name,
        memes=[seen[i] for i in kept],
        doubtful=[(seen[i], seen[j]) for i, j in pairs],
        near=[(seen[i], seen[j]) for j, i in sorted(near.items())],
        # A person can overrule these steps, and no others.
        left_out=[(file, e.why, e.step in (FILTER, NEAR, CURATION)) for file, e in sorted(exits.items())],
        decisions=decisions,
    )
    files.write_text(run_dir / "contact_sheet.html", page)
    files.write_parquet(run_dir / "memes.parquet", [seen[i].meme for i in kept], Meme)
    return LibraryReport(len(candidates), len(kept), len(pairs), rejected_csv, funnel)


def _in_order(candidates: list[Candidate], profile: Profile) -> list[Candidate]:
    """By name, or with `max_memes` as a sample; each beginning of it is spread over the folders by size."""
    if profile.library.max_memes is None:
        # Example memes first: their annotations are found by id, so a copy must not replace them.
        return sorted(candidates, key=lambda c: (c.example is None, c.name))
    groups: dict[str, list[Candidate]] = {}
    for candidate in candidates:
        groups.setdefault(candidate.group, []).append(candidate)
    place: dict[str, float] = {}
    for name, members in sorted(groups.items()):
        rng = statistics.rng(profile.seed, "library", name)
        for rank, index in enumerate(rng.permutation(len(members))):
            place[members[index].name] = (rank + float(rng.random())) / len(members)
    return sorted(candidates, key=lambda c: (place[c.name], c.name))


def _read_all(
    order: Sequence[Candidate],
    profile: Profile,
    run_dir: Path,
    wanted: Collection[str],
    exits: dict[str, Exit],
    ocr: Any,
    cache: TextCache | None,
) -> list[Seen]:
    """Read candidates until there are `max_memes`, and write their copies; `exits` takes those that leave."""
    from tqdm.auto import tqdm

    limit = profile.library.max_memes or len(order)
    ocr_id = (ocr or RapidOcr()).ocr_id
    first_with: dict[str, str] = {}  # SHA-256 -> name
    seen, waiting = [], iter(order)
    with tqdm(total=min(limit, len(order)), desc="memes", unit="meme") as bar:
        while part := list(islice(waiting, limit - len(seen))):  # what is rejected is made up for
            todo, jobs = [], []
            for one in part:
                try:
                    sha256 = hashlib.sha256(one.read()).hexdigest()
                except ImageRejected as reason:
                    exits[one.name] = Exit(UNDECODABLE, str(reason))
                    continue
                if first_with.setdefault(sha256, one.name) != one.name:
                    exits[one.name] = Exit(EXACT, f"exact duplicate of {first_with[sha256]}")
                    continue
                filters = Filters() if one.name in wanted else profile.library.filters
                text = one.example.text if one.example else None
                if cache is not None and text is None:
                    text = cache.get(f"{sha256}|{ocr_id}")
                todo.append((one, sha256))
                jobs.append((one.path, filters, text))
            readings = read_pictures(jobs, profile, ocr)
            for (one, sha256), (*_, known), reading in zip(todo, jobs, readings, strict=True):
                if cache is not None and known is None and reading.text is not None:
                    cache.put(f"{sha256}|{ocr_id}", reading.text)
                if reading.exit is not None:
                    exits[one.name] = reading.exit
                    continue
                meme = _meme(one, sha256, reading, profile)
                with files.atomic_path(run_dir / meme.file) as target:
                    target.write_bytes(reading.normal)
                seen.append(Seen(one, meme, reading.pixels))
                bar.update()
    return seen


def _meme(one: Candidate, sha256: str, reading: Reading, profile: Profile) -> Meme:
    example, text = one.example, reading.text or ""
    meme_id = example.meme_id if example else sha256[:12]
    return Meme(
        source="drawn" if example else "user image",
        profile=profile.name,
        seed=profile.seed,
        meme_id=meme_id,
        file=f"memes/{meme_id}.png",
        text=text if example else WRAP.sub("", text),
        text_source="known" if example else ("ocr" if text else "none"),
        picture_note=one.note,
        gloss=example.gloss if example else "",
        origin=one.origin,
        sha256=sha256,
        phash=f"{reading.phash:016x}",
        width=reading.size[0],
        height=reading.size[1],
        licence=LICENCE if example else "",
    )


def _near_duplicates(
    seen: Sequence[Seen], wanted: Collection[str]
) -> tuple[dict[int, int], list[tuple[int, int]]]:
    """Positions: dropped -> the one it is near, and doubtful pairs.

    Of near duplicates the largest picture stays, of equally large ones the first by name. Example memes and
    files marked `keep` are never dropped.
    """

    def place(i: int) -> tuple[bool, int, str]:
        return seen[i].candidate.example is None, -seen[i].pixels, seen[i].candidate.name

    order = sorted(range(len(seen)), key=place)
    memes = [seen[i].meme for i in order]
    found = near_duplicate_groups([int(m.phash, 16) for m in memes], [m.text for m in memes])
    near = {order[other]: order[first] for first, *others in found.groups for other in others}
    for i in [i for i in near if seen[i].candidate.example or seen[i].candidate.name in wanted]:
        del near[i]
    return near, [(order[i], order[j]) for i, j in found.doubtful]


def write_funnel(target: Path, found: int, exits: Iterable[Exit], kept: int, filters: Filters) -> None:
    """Write `funnel.csv`: step, reason, the files that left there, and those left over.

    What left nowhere and is not kept was not sampled. Filters in use stand in it even where nothing left.
    """
    counts = Counter((exit_.step, exit_.reason) for exit_ in exits)
    counts[NOT_SAMPLED, ""] += found - counts.total() - kept
    in_use = {name for name, value in filters if value != getattr(Filters(), name)}
    rows, left = [("found", "", found, found)], found
    for step in STEPS:
        reasons = {reason for at, reason in counts if at == step} | (in_use if step == FILTER else set())
        for reason in sorted(reasons or ({""} if step != FILTER else ())):
            left -= counts[step, reason]
            rows.append((step, reason, counts[step, reason], left))
    rows.append(("kept", "", kept, kept))
    files.write_frame(target, pd.DataFrame(rows, columns=["step", "reason", "files", "left"]))


# --- The curation file that the contact sheet helps to fill


class Decision(NamedTuple):
    """What a person decided: `keep` a file that a filter or its near twin would push out, or `drop` it."""

    file: str
    action: Literal["keep", "drop"]
    why: str


def read_curation(path: Path, known: Collection[str]) -> list[Decision]:
    """Read a curation file (CSV with `file,action,why`); `LibraryError` names the line of what is wrong."""
    try:
        rows = pd.read_csv(path, dtype=str, keep_default_na=False, index_col=False, encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        raise LibraryError(f"curation file {path} cannot be read as CSV in UTF-8: {error}") from error
    if not {"file", "action"} <= set(rows.columns):
        raise LibraryError(f"curation file {path.name}: the first line must be file,action,why")
    decisions: dict[str, Decision] = {}
    for number, row in enumerate(rows.map(files.unguarded).to_dict("records"), start=2):
        file, action, where = (
            row["file"],
            row["action"].strip().lower(),
            f"curation file {path.name} line {number}",
        )
        if action not in ("keep", "drop"):
            raise LibraryError(f"{where}: action {action!r} is neither keep nor drop")
        if file not in known:
            raise LibraryError(f"{where}: there is no file {file!r} in the sources")
        decisions[file] = Decision(file, action, row.get("why", "").strip())
    return list(decisions.values())
