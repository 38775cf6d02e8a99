"""Images of template memes, by the meme's id: found in a user's folder, or fetched, politely and resumably.

One request at a time per host with a pause between two, robots.txt obeyed, few tries again, no redirect to
another host, no address that is not public, a cap on bytes; what does not decode as an image is not kept. A
file is named by its meme's id and appears whole or not at all; `index.jsonl` beside the files says of each
meme what came of it, so a run that was killed goes on where it was.
"""

import asyncio
import io
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from hashlib import sha256
from pathlib import Path

from PIL import Image
from pydantic import BaseModel, ValidationError
from tqdm.auto import tqdm

from memecmd_utils import files, pictures, schemas, settings
from memecmd_utils.core.fetch import http
from memecmd_utils.files import paths
from memecmd_utils.llm import chat, messages

INDEX = "index.jsonl"
LIMITS = http.Limits(delay_s=1.0, max_bytes=10 * 1024 * 1024)
"""One image a second and host; the other limits are those of feeds."""
GIVE_UP = 4
"""So many images one after the other that a host refuses or does not answer end its turn for this run."""
GIVEN_UP = "host given up"
FINAL = frozenset({"not found", "not an image", "too big", "redirect", "forbidden", "refused", "bad address"})
"""Reasons that stand; an image that failed for another one is asked for again by the next run."""
_SUFFIXES = {"PNG": ".png", "JPEG": ".jpg", "GIF": ".gif", "WEBP": ".webp", "BMP": ".bmp", "TIFF": ".tif"}
THERE, FETCHED, NOT_ASKED = "there", "fetched", "not asked"
OFF, NOT_YOURS = "fetching is off", "not in your folder"
_SAFE_ID = re.compile(r"\w[\w-]{0,99}", re.ASCII)
Picture = Callable[[schemas.TemplateMeme], messages.Image | None]
"""Gives a meme's picture for a model that sees, or None where there is none."""


class ImageEntry(BaseModel):
    """What came of one image: its file and SHA-256, or the reason why there is none."""

    meme_id: str
    url: str
    file: str = ""
    sha256: str = ""
    bytes: int = 0
    reason: str = ""
    """Empty where the image is there; else the word that `fetch` counts by."""
    detail: str = ""


def picture_folder(profile: settings.Profile) -> Path:
    """The folder that the profile names (`mtrclip.images`), else the one that `fetch` fills."""
    given = profile.mtrclip.images
    return paths.root / Path(given).expanduser() if given else paths.raw / "templates" / "images"


def local_pictures(memes: Iterable[schemas.TemplateMeme], folder: Path) -> dict[str, Path]:
    """Image file of every meme that has one below `folder`: base name = meme id, any image extension.

    Files are not decoded. Of two files of one name the first by path counts; a missing folder has none.
    """
    there = files_in(folder)
    return {meme.meme_id: there[meme.meme_id] for meme in memes if meme.meme_id in there}


def index(folder: Path) -> dict[str, ImageEntry]:
    """What `fetch` wrote down in a folder, by meme id; a line that a killed run left half is passed over."""
    file = folder / INDEX
    entries: dict[str, ImageEntry] = {}
    for line in file.read_text(encoding="utf-8").split("\n") if file.is_file() else ():
        try:
            entry = ImageEntry.model_validate_json(line)
        except ValidationError:
            continue
        entries[entry.meme_id] = entry
    return entries


def fetch_pictures(
    memes: Iterable[schemas.TemplateMeme],
    folder: Path,
    limit: int,
    *,
    allowed: bool = True,
    private: bool = False,
) -> dict[str, int]:
    """Bring the images of `memes` into `folder`, at most `limit` new ones, and count them by reason.

    Images that are there are not asked for, nor those that failed for good before. Counted
    are `there`, `fetched`, reasons for failing (`not found`, `not an image`, `too big`, ...) and `not asked`.
    With `allowed` False (as `datasets.may_fetch` says) nothing is asked for, and never for a folder
    of images that this function did not make: such a one is used as it is. `private` lets addresses of one's
    own machine or net be asked, too. Raises `images.LibraryError` where another run is writing.
    """
    wanted = {meme.meme_id: meme.url for meme in reversed(list(memes))}
    wanted = dict(reversed(wanted.items()))  # of two memes of one id the first counts
    there = files_in(folder)
    counts = Counter({THERE: sum(meme_id in there for meme_id in wanted), FETCHED: 0})
    if there and not (folder / INDEX).is_file():
        counts[NOT_YOURS] = len(wanted) - counts[THERE]
        return dict(counts)
    known = index(folder)
    todo = []
    for meme_id, url in wanted.items():
        entry = known.get(meme_id)
        if meme_id in there:
            continue
        if entry and entry.reason in FINAL and entry.url == url:
            counts[entry.reason] += 1
        else:
            todo.append((meme_id, url))
    asked = todo[:limit]
    counts[NOT_ASKED] += len(todo) - len(asked)
    if not allowed:
        counts[OFF] += len(asked)
    elif asked:
        files.need_live_extra("fetching pictures")
        counts.update(_fetch_all(asked, wanted, folder, private))
    return {reason: count for reason, count in counts.items() if count or reason in (THERE, FETCHED)}


def _fetch_all(
    asked: Sequence[tuple[str, str]], wanted: dict[str, str], folder: Path, private: bool
) -> Counter[str]:
    folder.mkdir(parents=True, exist_ok=True)
    lock = files.lock(folder / ".lock")
    if lock is None:
        raise pictures.LibraryError(f"another run is fetching into {folder}: wait until it is done")
    counts: Counter[str] = Counter()
    by_host: dict[str, list[tuple[str, str]]] = defaultdict(list)
    with (
        lock,
        (folder / INDEX).open("a", encoding="utf-8", newline="\n") as handle,
        tqdm(total=len(asked), desc="images", unit="image") as bar,
    ):
        handle.write("\n")  # ends a line that a killed run left half

        def done(entry: ImageEntry) -> None:
            counts[entry.reason or FETCHED] += 1
            handle.write(entry.model_dump_json(exclude_defaults=True) + "\n")
            handle.flush()
            bar.update()

        for meme_id, url in asked:
            host = http.host_of(url)
            if host and _SAFE_ID.fullmatch(meme_id):
                by_host[host].append((meme_id, url))
            else:
                fault = "its id can be no file name" if host else "no http(s) address"
                done(ImageEntry(meme_id=meme_id, url=url, reason="bad address", detail=fault))

        async def all_hosts() -> None:
            client = http.Client(LIMITS, "meme images for research", "image/*")
            gate = asyncio.Semaphore(LIMITS.hosts)

            async def one(todo: list[tuple[str, str]]) -> None:
                async with gate, client.visit(None if private else True) as visit:
                    await _fetch_host(visit, todo, folder, done)

            await asyncio.gather(*map(one, by_host.values()))

        for part in folder.glob(".*.part*"):
            part.unlink()
        chat.run(all_hosts())
        handle.flush()
        _compact(folder, wanted)
    return counts


async def _fetch_host(
    visit: http.Visit,
    todo: Sequence[tuple[str, str]],
    folder: Path,
    done: Callable[[ImageEntry], None],
) -> None:
    """Fetch one image after the other; after `GIVE_UP` refusals in a row the rest is given up."""
    refusals, given_up = 0, ""
    for meme_id, url in todo:
        entry = ImageEntry(meme_id=meme_id, url=url)
        if not given_up:
            try:
                answer = await visit.fetch(url, same_file=True)
                await asyncio.to_thread(_save, entry, answer.body, folder)
                refusals = 0
            except http.HostClosed as error:
                given_up = f"{error.status}: {error}"
            except http.FetchError as error:
                entry.reason, entry.detail = error.status, str(error)
                if error.status == "http error":
                    entry.reason = "not found" if error.http_code in (404, 410) else f"HTTP {error.http_code}"
                refusals = 0 if entry.reason in FINAL else refusals + 1
                if refusals >= GIVE_UP or error.wait_s > LIMITS.max_wait_s:
                    given_up = f"after {entry.reason}: {error}"
        if given_up and not entry.reason and not entry.file:
            entry.reason, entry.detail = GIVEN_UP, given_up
        done(entry)


def _save(entry: ImageEntry, data: bytes, folder: Path) -> None:
    """Write bytes that decode whole as an image, named by their true format; `FetchError` for others."""
    try:
        pictures.decode_bytes(data)
    except pictures.ImageRejected as error:
        raise http.FetchError("not an image", str(error)) from error
    with Image.open(io.BytesIO(data), formats=pictures.FORMATS) as image:
        entry.file = f"{entry.meme_id}{_SUFFIXES[image.format or '']}"
    with files.atomic_path(folder / entry.file) as part:
        part.write_bytes(data)
    entry.sha256, entry.bytes = sha256(data).hexdigest(), len(data)


def _compact(folder: Path, urls: dict[str, str]) -> None:
    """One line a meme; also for a file that came just before a run was killed."""
    entries = index(folder)
    for meme_id, path in files_in(folder).items():
        if meme_id not in entries or not entries[meme_id].file:
            size, digest = path.stat().st_size, files.sha256(path)
            url = urls.get(meme_id, entries[meme_id].url if meme_id in entries else "")
            name = path.relative_to(folder).as_posix()
            entries[meme_id] = ImageEntry(meme_id=meme_id, url=url, file=name, sha256=digest, bytes=size)
    lines = (entry.model_dump_json(exclude_defaults=True) + "\n" for _, entry in sorted(entries.items()))
    files.write_text(folder / INDEX, "".join(lines))


def files_in(folder: Path) -> dict[str, Path]:
    """Image files below a folder by base name, hidden ones left out, the first by path."""
    return {path.stem: path for path in reversed(pictures.pictures_below(folder))}


def pictures_below(folder: Path) -> dict[str, Path]:
    """Those of `files_in` whose first bytes are a picture's: what can be shown to a model or to people."""
    return {name: path for name, path in files_in(folder).items() if _begins_as_picture(path)}


def _begins_as_picture(path: Path) -> bool:
    try:
        with path.open("rb") as handle:
            return pictures.looks_like_image(handle.read(16))
    except OSError:
        return False


def pictures_in(folder: Path | None) -> Picture:
    """Find pictures by the meme's id: any below `folder` with this base name; of a gif the first frame.

    A meme without a file, or any where `folder` is None, is annotated from its texts. A picture is known to
    the recordings by the hash of its file, and read again only when it is sent.
    """
    there = {} if folder is None else pictures_below(folder)

    def find(meme: schemas.TemplateMeme) -> messages.Image | None:
        path = there.get(meme.meme_id)
        if path is None:
            return None
        return messages.Image(image_id=files.sha256(path), load=partial(_data_url, path))

    return find


def _data_url(path: Path) -> str:
    data = path.read_bytes()
    if data.startswith((b"\xff\xd8", b"\x89PNG")):
        return files.data_url(data)
    with Image.open(path) as picture:
        return pictures.picture_url(picture.convert("RGB"), "PNG")
