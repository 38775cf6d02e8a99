"""Stage 01: from folders of images, or the example memes, to one clean library of memes.

Images are decoded safely, read by OCR and freed of duplicates; a funnel says where every file went, and a
contact sheet helps a person to keep or drop memes.
"""

import difflib
import hashlib
import json
import re
import threading
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from PIL import Image

from memecmd_utils import authors, drawing, files, pictures, statistics
from memecmd_utils.files import cores, paths
from memecmd_utils.llm.recordings import Recordings, key_of, reading_form
from memecmd_utils.pictures import ImageRejected, LibraryError, decode
from memecmd_utils.progress import bar
from memecmd_utils.schemas import Meme
from memecmd_utils.settings import Filters, Profile

# --- Where memes come from

DESCRIBED_IN = ("data.json", "glm/glm_data.json", "glm_data.json")
"""Where a source may hold descriptions of its pictures, as emo-visual-data does: multimodal models wrote
them, and they tell a text model what is on a picture. The first is believed first."""
_CANNOT = (
    r"(?:但?我)?(?:目前|暂时)?(?:无法|不能|没法|没有办法|拒绝)(?:直接|继续)?"
    r"(?:看到?|查看|识别|读取|打开|描述|分析|评论|判断|提供|回答|协助|帮助|处理|完成|满足|生成|标注|解释)"
)
REFUSAL = re.compile(
    # 无法描述的心累 is a feeling: without an apology it has to be a picture or a request that is refused.
    rf"\W*(?:非常|很|十分)?(?:抱歉|对不起|遗憾|不好意思)[，,。！!\s]{{0,2}}{_CANNOT}"
    rf"|\W*{_CANNOT}[到出]?(?:这[张个幅项]|该|此|[你您](?:提供)?的|图中的?|相关的?){{0,2}}(?:图片?|图像|请求|要求|内容|信息)"
    r"|\W*(?:我是|作为)(?:一[个名位款])?(?:AI|人工智能|(?:大型?)?语言模型|(?:智能|AI)助[手理])"
    r"|\W*(?:i'?m sorry|i am sorry|sorry,|i can(?:no|')?t |i am unable|i'm unable|as an ai)",
    re.IGNORECASE,
)
"""How a text begins that refuses to describe or to annotate a picture, in Chinese or English."""
AUTOMATIC = re.compile(
    r"qq图片|微信图片|微信截图|企业微信截图|钉钉|屏幕截图|屏幕快照|截屏|截图|图片|图像|照片|表情包?|下载|未命名|新建|副本|"
    r"http\S*|(?<![a-z])(?:mmexport|wx_camera|screenshots?|untitled|unnamed|download(?:ed)?|pictures?|images?|"
    r"photos?|timg|img|dsc|pic|tumblr|copy|file|src|gif|jpe?g|png|webp|bmp)(?![a-z])|"
    r"[0-9a-f]{8}-[0-9a-f-]{8,}|(?=[a-z]*\d)[0-9a-z]{12,}|\b[0-9a-f]{8,}\b",
    re.IGNORECASE,
)
"""Names that chat programs, cameras, phones and browsers give by themselves, and hashes."""


class Exit(NamedTuple):
    """Why a file is not in the library: `why` in words, `reason` for its row of the funnel."""

    step: str
    why: str
    reason: str = ""


@dataclass
class Candidate:
    """An image file that may become a meme, and what becomes of it while the library is built."""

    source: str
    origin: str
    """Its path within the source, or the id of an example meme."""
    path: Path
    picture_note: str = ""
    """What the source, the folder and the file name say of the picture; empty where they say nothing."""
    known: Meme | None = None
    """The record of an example meme; any other is called by its bytes, and its text is read by OCR."""
    name: str = ""
    """What `rejected.csv`, the curation file and the contact sheet call it; unique."""
    kept_by_hand: bool = False
    meme: Meme | None = None
    exit: Exit | None = None


def drawn_memes(folder: Path | None = None) -> dict[str, Meme]:
    """The memes of `memes.csv` in a folder (default: `data/example`), by id.

    `text` is all visible text, top to bottom; `file` is the tracked picture, which is not opened.
    """
    folder = folder or paths.example
    table = pd.read_csv(folder / "memes.csv", dtype=str, keep_default_na=False, encoding="utf-8-sig")
    return {
        row.meme_id: Meme(
            source="drawn", meme_id=row.meme_id, file=str(folder / "memes" / f"{row.meme_id}.webp"),
            text=f"{row.caption_top} {row.caption}".strip(), text_source="known",
            picture_note=row.picture_note, gloss=row.gloss, origin=row.meme_id, sha256="", phash="",
            width=1, height=1, licence="CC BY-SA 4.0 (OpenMoji)",
        )
        for row in table.itertuples()
    }  # fmt: skip


def find_candidates(sources: Sequence[str]) -> list[Candidate]:
    """All images of all sources, sorted by name. `example` is the example memes, all others are folders."""
    candidates: list[Candidate] = []
    for source in dict.fromkeys(sources):
        if source == "example":
            for name, meme in drawn_memes().items():
                candidates.append(Candidate(source, name, Path(meme.file), meme.picture_note, meme))
            continue
        folder = paths.user_path(source)
        described = descriptions(folder)
        for path in pictures.look_through(folder):
            origin = pictures.readable(path.relative_to(folder))
            note = picture_note(origin, described.get(path.name, ""))
            candidates.append(Candidate(source, origin, path, note))
    # Two sources may hold the same path; then, and only then, the source is part of the name.
    count = Counter(candidate.origin for candidate in candidates)
    for candidate in candidates:
        is_unique = count[candidate.origin] == 1
        candidate.name = candidate.origin if is_unique else f"{candidate.source}/{candidate.origin}"
    return sorted(candidates, key=lambda candidate: candidate.name)


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
            if name not in texts and 12 <= len(text) <= 600 and not REFUSAL.match(text):
                texts[name] = f"图片描述（{file}）：{text}"
    return texts


def picture_note(origin: str, description: str = "") -> str:
    """What is known of a picture: its description, and names of folder and file that say something."""
    path = PurePosixPath(origin)
    names = (("文件夹", path.parent.name), ("文件名", path.stem))
    hints = [description, *(f"{what}：{name}" for what, name in names if reads_as_words(name))]
    return "；".join(filter(None, hints))


def reads_as_words(name: str) -> bool:
    """Whether a file name without its extension says something, and is no time stamp, number or hash."""
    words = AUTOMATIC.sub(" ", unicodedata.normalize("NFKC", name))
    return bool(re.search(r"[A-Za-z]{3}|[\u3400-\u9fff]", words))


# --- The text on a meme

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


_of_thread = threading.local()


class RapidOcr:
    """PP-OCR through `rapidocr` and onnxruntime; each thread loads an engine at its first picture.

    Its models lie inside the wheel; nothing is downloaded.
    """

    def __init__(self) -> None:
        content = [Path(str(file.locate())) for file in metadata.files("rapidocr") or []]
        self.models = {
            task: max(f for f in content if f.match(f"*_{task}_*.onnx")) for task in ("det", "rec")
        }

    @property
    def ocr_id(self) -> str:
        """Engine, version, models and our own rules: a part of the key of a recorded text."""
        models = ", ".join(path.stem for path in self.models.values())
        return f"rapidocr {metadata.version('rapidocr')}; {models}; memecmd-2"  # new when the rules change

    @property
    def engine(self) -> Any:
        """The engine of this thread; importing and loading it takes a second."""
        from rapidocr import RapidOCR

        if not hasattr(_of_thread, "engine"):
            _of_thread.engine = RapidOCR(
                params={
                    "Global.log_level": "error",  # touches only the engine's own logger
                    "Global.max_side_len": 2000,
                    "Global.use_cls": False,  # looks for upside-down lines; changed nothing on 50 real memes
                    "Det.model_path": str(self.models["det"]),
                    "Det.limit_side_len": 480,  # its own 736 took half again as long and read no better
                    "Rec.model_path": str(self.models["rec"]),
                    # One core each: two take twice the processor time of one for the same picture.
                    "EngineConfig.onnxruntime.intra_op_num_threads": 1,
                    "EngineConfig.onnxruntime.inter_op_num_threads": 1,
                }
            )
        return _of_thread.engine

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


def phash(image: Image.Image) -> int:
    """64-bit DCT perceptual hash of a picture."""
    import imagehash

    return int(str(imagehash.phash(image, hash_size=8)), 16)


def close_pairs(hashes: Sequence[int], max_distance: int) -> list[tuple[int, int, int]]:
    """All pairs i < j of 64-bit hashes that differ in at most `max_distance` bits: (i, j, bits), sorted."""
    values, pairs = np.array(hashes, dtype=np.uint64), []
    for start in range(0, len(values), 512):
        bits = np.bitwise_count(values[start : start + 512, None] ^ values[None, start:])
        rows, columns = np.nonzero(np.triu(bits <= max_distance, k=1))
        places = (rows + start).tolist(), (columns + start).tolist(), bits[rows, columns].tolist()
        pairs += zip(*places, strict=True)
    return pairs


def near_duplicates(
    hashes: Sequence[int], texts: Sequence[str], distance: int = 6
) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Find near duplicates: at most `distance` bits of the hash differ, and the texts are at least 0.9 alike.

    Memes share a picture and differ in the caption, so a hash alone would throw different memes away.

    Returns near and doubtful pairs, as positions in the input. Of near ones the first is to keep; what is
    near only to a dropped one stays. A pair of like pictures is doubtful where one has no text, or neither
    while their hashes differ.
    """
    plain = [normalise_text(text) for text in texts]
    near, dropped, doubtful = [], set(), []
    for i, j, bits in close_pairs(hashes, distance):
        if bool(plain[i]) != bool(plain[j]) or (bits and not plain[i]):
            doubtful.append((i, j))
        elif i not in dropped and j not in dropped and alike(plain[i], plain[j], 0.9):
            dropped.add(j)
            near.append((i, j))
    return near, doubtful


def normalise_text(text: str) -> str:
    """Text for comparison: NFKC, lower case, letters and digits only; signs where there is nothing else."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    letters = "".join(c for c in folded if unicodedata.category(c)[0] in "LN")
    return letters or "".join(folded.split())


def similarity(a: str, b: str, least: float = 0.0) -> float:
    """Share of common text, 0-1, of two normalised texts; 0 where their lengths rule out `least`."""
    first, second = sorted((a, b))  # difflib's ratio depends on the order
    matcher = difflib.SequenceMatcher(None, first, second, autojunk=False)
    return matcher.ratio() if matcher.real_quick_ratio() >= least else 0.0


def alike(a: str, b: str, least: float) -> bool:
    """Whether two normalised texts are equal or at least `least` similar."""
    return similarity(a, b, least) >= least


# --- What is done with one image

UNDECODABLE, EXACT, FILTER, NEAR = "undecodable", "exact duplicate", "filter", "near duplicate"
CURATION, NOT_SAMPLED = "dropped by curation", "not sampled"
STEPS = (UNDECODABLE, EXACT, FILTER, NEAR, CURATION, NOT_SAMPLED)
"""Where a file can leave, in the order of the funnel. A file is counted once, where it left."""


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


def filtered(filters: Filters, picture: Image.Image, text: str | None = None) -> Exit | None:
    """The filter that leaves out a picture of this size or, where its text is known, with this text."""
    short, long = sorted(picture.size)
    if short < filters.min_side:
        return Exit(FILTER, f"shorter side of {short} pixels (min_side {filters.min_side})", "min_side")
    if filters.max_aspect_ratio is not None and long > filters.max_aspect_ratio * short:
        limit = f"max_aspect_ratio {filters.max_aspect_ratio:g}"
        return Exit(FILTER, f"sides as {long / short:.2f} to 1 ({limit})", "max_aspect_ratio")
    length = len("".join((text or "").split()))
    if filters.max_text_chars is not None and length > filters.max_text_chars:
        limit = f"max_text_chars {filters.max_text_chars}"
        return Exit(FILTER, f"{length} characters of text ({limit})", "max_text_chars")
    return None


Job = tuple[Path, Filters, str | None]
"""An image to look at, the filters that hold for it, and its visible text where that is known already."""


def read_picture(job: Job, ocr: Any) -> Reading:
    """Decode an image, read its text and make its normalised copy."""
    path, filters, text = job
    try:
        picture = decode(path)
        if max(picture.size) > 20 * min(picture.size):  # OCR of thinner ones takes minutes, or fails
            raise ImageRejected("too thin", f"{picture.width} x {picture.height}")
        if text is None and not filtered(filters, picture):
            text = ocr.read_text(picture)
    except ImageRejected as reason:
        return Reading(Exit(UNDECODABLE, str(reason), reason.kind))
    except Exception as error:  # one odd picture must not end the reading of thousands
        failed = "the OCR engine failed"
        return Reading(Exit(UNDECODABLE, f"{failed}: {error}", failed))
    if left_out := filtered(filters, picture, text):
        return Reading(left_out, text)
    # Read first, shrink then: small print in tall comic strips is lost at 640 pixels.
    picture.thumbnail((640, 640), Image.Resampling.LANCZOS)
    copy = pictures.encoded(picture, "PNG", compress_level=3)
    return Reading(None, text, copy, picture.size, phash(picture))


# --- Many images: in threads, or on Dask's workers; results in the order of the jobs


def read_pictures(jobs: Sequence[Job], profile: Profile, ocr: Any = None) -> Iterator[Reading]:
    """Read images, with an `ocr` of one's own one after the other."""
    if ocr is not None:
        yield from (read_picture(job, ocr) for job in jobs)
    elif profile.models.engine == "dask":
        yield from _on_workers(jobs, profile.models.scheduler)
    else:
        # Pillow and onnxruntime hold no lock of Python's while they decode and read.
        with ThreadPoolExecutor(min(cores(), 16)) as pool:
            yield from pool.map(partial(read_picture, ocr=RapidOcr()), jobs)


def _on_workers(jobs: Sequence[Job], scheduler: str | None) -> Iterator[Reading]:
    """Have the workers of a Dask scheduler read the images; without an address, workers of this machine."""
    try:
        from distributed import Client
    except ImportError as error:
        raise files.ExtraMissing("engine: dask needs Dask: pip install -e '.[scale]'") from error
    # One thread a worker, because an image keeps a core busy.
    with Client(scheduler, threads_per_worker=1, dashboard_address=None) as client:
        client.wait_for_workers(1, timeout=60)
        yield from (future.result() for future in client.map(read_picture, jobs, ocr=RapidOcr(), pure=False))


# --- The library


def build_library(
    profile: Profile, run_dir: Path, ocr: Any = None, ocr_cache: Recordings | None = None
) -> tuple[pd.DataFrame, int]:
    """Build `run_dir/memes.parquet` and `run_dir/memes/*.png` from `profile.library.sources`.

    With `paper_data` the memes are those of the authors' release, and none is left out.

    Also writes `rejected.csv` (every file left out, with the reason), `funnel.csv` (how many left where) and
    `contact_sheet.html`. Returns the funnel and the number of doubtful pairs. `LibraryError` for an unusable
    source or decision, or if no meme is left.
    """
    near, doubtful, decisions = [], [], []
    if release := authors.of_profile(profile):
        candidates = _take_release(release, profile, run_dir)
    else:
        candidates = find_candidates(profile.library.sources)
        if curation := profile.library.curation:
            decisions = curate(candidates, paths.user_path(curation))
        _read_all(candidates, profile, run_dir, ocr, ocr_cache)
        near, doubtful = _leave_out_near_duplicates([c for c in candidates if c.meme])
    memes = [c for c in candidates if c.meme and not c.exit]
    left_out = [c for c in candidates if c.exit]
    rejected = pd.DataFrame([(c.name, c.exit.why) for c in left_out], columns=["file", "reason"])
    files.write_frame(run_dir / "rejected.csv", rejected)
    funnel = funnel_table(candidates)
    files.write_frame(run_dir / "funnel.csv", funnel)
    if not memes:
        first = f"; the first: {left_out[0].name}: {left_out[0].exit.why}" if left_out else ""
        raise LibraryError(f"no meme is left of {len(candidates)} files, see {run_dir}/rejected.csv{first}")
    memes.sort(key=lambda c: (c.meme.origin, c.meme.meme_id))
    page = files.templates().get_template("contact_sheet.html.j2")
    sheet = page.render(
        name=run_dir.name, memes=memes, doubtful=doubtful, near=near, left_out=left_out, decisions=decisions,
        curable=(FILTER, NEAR, CURATION),  # a person can overrule these steps, and no others
    )  # fmt: skip
    files.write_text(run_dir / "contact_sheet.html", sheet)
    files.write_parquet(run_dir / "memes.parquet", [c.meme for c in memes], Meme)
    return funnel, len(doubtful)


def _take_release(release: authors.Release, profile: Profile, run_dir: Path) -> list[Candidate]:
    """The memes of the authors' release, by file name; one without its picture is a tile of words."""
    candidates = []
    with bar(len(release.annotations), "memes", "meme") as shown:
        for annotation in release.annotations:
            name, path = annotation.meme_id, release.pictures.get(annotation.meme_id, Path())
            reading = read_picture((path, Filters(), ""), None)
            if reading.exit:
                tile = drawing.tile(annotation.emotion or name)
                data = pictures.encoded(tile, "PNG", compress_level=3)
                reading = Reading(None, "", data, tile.size, phash(tile))
            about = {"source": authors.RELEASED, "meme_id": name, "origin": name, "text_source": "none"}
            known = Meme(text="", file=str(path), sha256="", phash="", width=1, height=1, **about)
            candidate = Candidate(authors.RELEASED, name, path, known=known, name=name)
            sha256 = hashlib.sha256(reading.normal).hexdigest()
            candidate.meme = _meme(candidate, sha256, reading, profile, run_dir)
            candidates.append(candidate)
            shown.update()
    return candidates


def curate(candidates: Sequence[Candidate], path: Path) -> list[list[str]]:
    """Mark what a person keeps or drops by a curation file, a CSV with `file,action,why`; returns its rows.

    Of two rows on a file the last one holds. `LibraryError` names the line of what is wrong.
    """
    by_name = {candidate.name: candidate for candidate in candidates}
    table = files.read_table(path, ("file", "action"))
    table = table.reindex(columns=["file", "action", "why"], fill_value="").map(files.unguarded)
    table["action"] = table["action"].str.strip().str.lower()
    for line, file, action, why in table.itertuples():
        if action not in ("keep", "drop") or file not in by_name:
            wanted = "a file of the sources, and keep or drop"
            raise LibraryError(f"curation file {path.name} line {line}: {file!r}, {action!r} is not {wanted}")
        told = f"dropped by the curation file{': ' if why else ''}{why}"
        by_name[file].exit = Exit(CURATION, told) if action == "drop" else None
        by_name[file].kept_by_hand = action == "keep"
    return table.drop_duplicates("file", keep="last").to_numpy().tolist()


def _in_order(candidates: Sequence[Candidate], profile: Profile) -> list[Candidate]:
    """By name, or with `max_memes` as a random sample; what a person keeps comes first."""
    if profile.library.max_memes is None:
        # Example memes first: their annotations are found by id, so a copy must not replace them.
        return sorted(candidates, key=lambda c: (not c.kept_by_hand, not c.known, c.name))
    shuffled = statistics.rng(profile.seed, "library").permutation(len(candidates))
    return sorted((candidates[n] for n in shuffled), key=lambda c: not c.kept_by_hand)


def _read_all(
    candidates: Sequence[Candidate], profile: Profile, run_dir: Path, ocr: Any, cache: Recordings | None
) -> None:
    """Read candidates until there are `max_memes`, note what becomes of each, and write the memes' copies."""
    order = _in_order([c for c in candidates if not c.exit], profile)
    limit, done = profile.library.max_memes or len(order), 0
    ocr_id = (ocr or RapidOcr()).ocr_id
    first_with: dict[str, str] = {}  # SHA-256 -> name
    waiting = iter(order)
    with bar(min(limit, len(order)), "memes", "meme") as shown:
        while part := list(islice(waiting, limit - done)):  # what is rejected is made up for
            todo, jobs = [], []
            for candidate in part:
                try:
                    sha256 = hashlib.sha256(pictures.read_bytes(candidate.path)).hexdigest()
                except ImageRejected as reason:
                    candidate.exit = Exit(UNDECODABLE, str(reason), reason.kind)
                    continue
                if first_with.setdefault(sha256, candidate.name) != candidate.name:
                    candidate.exit = Exit(EXACT, f"exact duplicate of {first_with[sha256]}")
                    continue
                filters, text = profile.library.filters, candidate.known and candidate.known.text
                if text is None and cache is not None:
                    text = (cache.get(key_of(reading_form(sha256, ocr_id))) or {}).get("text")
                todo.append((candidate, sha256))
                jobs.append((candidate.path, Filters() if candidate.kept_by_hand else filters, text))
            # Closed also after a fault: what is not under way then is not read any more.
            with closing(read_pictures(jobs, profile, ocr)) as readings:
                for (candidate, sha256), (*_, known), reading in zip(todo, jobs, readings, strict=True):
                    if cache is not None and known is None and reading.text is not None:
                        cache.put(reading_form(sha256, ocr_id), {"text": reading.text})
                    candidate.exit = reading.exit
                    if reading.exit is None:
                        candidate.meme = _meme(candidate, sha256, reading, profile, run_dir)
                        done += 1
                        shown.update()
    copies = {c.meme.file for c in order if c.meme}
    for path in (run_dir / "memes").glob("*"):  # an earlier run had other settings
        if f"memes/{path.name}" not in copies:
            path.unlink()


def _meme(candidate: Candidate, sha256: str, reading: Reading, profile: Profile, run_dir: Path) -> Meme:
    """The record of a candidate that becomes a meme; its normalised copy is written."""
    known, text = candidate.known, WRAP.sub("", reading.text or "")
    meme_id = known.meme_id if known else sha256[:12]
    file, (width, height) = f"memes/{meme_id}.png", reading.size
    with files.atomic_path(run_dir / file) as target:
        target.write_bytes(reading.normal)
    measured = {
        "file": file, "sha256": sha256, "phash": f"{reading.phash:016x}", "width": width, "height": height,
        "profile": profile.name, "seed": profile.seed,
    }  # fmt: skip
    if known:
        return known.model_copy(update=measured)
    return Meme(
        source="user image", meme_id=meme_id, text=text, text_source="ocr" if text else "none",
        picture_note=candidate.picture_note, origin=candidate.origin, **measured,
    )  # fmt: skip


Pair = tuple[Candidate, Candidate]


def _leave_out_near_duplicates(candidates: Sequence[Candidate]) -> tuple[list[Pair], list[Pair]]:
    """Mark near duplicates, of which the largest stays; pairs of who stays and who leaves; doubtful pairs."""
    order = sorted(candidates, key=lambda c: (not c.known, -c.meme.width * c.meme.height, c.name))
    near, doubtful = (
        [(order[i], order[j]) for i, j in pairs]
        for pairs in near_duplicates([int(c.meme.phash, 16) for c in order], [c.meme.text for c in order])
    )
    near = [(first, other) for first, other in near if not (other.known or other.kept_by_hand)]
    for first, other in near:
        other.exit = Exit(NEAR, f"near duplicate of {first.name}")
    stay = [(first, other) for first, other in doubtful if not (first.exit or other.exit)]
    return sorted(near, key=lambda pair: pair[1].name), stay


def funnel_table(candidates: Sequence[Candidate]) -> pd.DataFrame:
    """How many files left at each step and for each reason, and how many are left then."""
    exits = [c.exit or Exit(NOT_SAMPLED, "") for c in candidates if c.exit or not c.meme]
    counts = Counter((exit_.step, exit_.reason) for exit_ in exits)
    rows = [(*at, n) for at, n in sorted(counts.items(), key=lambda row: (STEPS.index(row[0][0]), row[0][1]))]
    rows = [("found", "", len(candidates)), *rows, ("kept", "", len(candidates) - len(exits))]
    table = pd.DataFrame(rows, columns=["step", "reason", "files"])
    return table.assign(left=len(candidates) - table["files"].where(table["step"].isin(STEPS), 0).cumsum())
