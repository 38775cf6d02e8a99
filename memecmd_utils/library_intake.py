"""From candidates to the pool of memes: what is to be read of each, and what becomes of what was read."""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from memecmd_utils import example_memes, library_funnel, storage
from memecmd_utils.images import ImageRejected
from memecmd_utils.library_funnel import Exit
from memecmd_utils.meme_sources import Candidate
from memecmd_utils.ocr import OcrCache, cache_key, without_wraps
from memecmd_utils.picture_notes import picture_note
from memecmd_utils.picture_reading import Job, Reading
from memecmd_utils.profiles import Profile
from memecmd_utils.schemas import Meme
from memecmd_utils.settings import Filters


@dataclass
class Pool:
    """Everything looked at so far, in the order of looking."""

    memes: list[Meme] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    pixels: list[int] = field(default_factory=list)  # of the pictures as their files hold them
    seen: dict[str, str] = field(default_factory=dict)  # sha256 of what is a picture -> name
    broken: dict[str, Exit] = field(default_factory=dict)  # sha256 of what is none -> why
    exits: dict[str, Exit] = field(default_factory=dict)  # name -> why it is left out


@dataclass(frozen=True)
class Item:
    """A candidate on its way: asked for, and not yet taken into the pool."""

    candidate: Candidate
    sha256: str = ""
    exit: Exit | None = None
    """Set where its bytes cannot be had."""
    cached: bool = False
    """Whether its text is recorded."""
    data: bytes = b""
    """Of an example meme, whose own bytes may be its normalised copy."""


def jobs(
    candidates: Iterable[Candidate],
    pool: Pool,
    filters: Filters,
    wanted: set[str],
    ocr_id: str,
    cache: OcrCache,
) -> Iterator[tuple[Item, Job | None]]:
    """Each candidate with what is to be done with it; None for a copy and for what cannot be read.

    `filters` do not hold for names in `wanted`. The bytes of a candidate are read when it is asked for.
    """
    asked: set[str] = set()
    for candidate in candidates:
        try:
            data = candidate.read()
        except ImageRejected as reason:
            yield Item(candidate, exit=library_funnel.undecodable(str(reason))), None
            continue
        sha256 = hashlib.sha256(data).hexdigest()
        # A copy is asked for but once, be it that the first is still on its way.
        if sha256 in asked or sha256 in pool.seen or sha256 in pool.broken:
            yield Item(candidate, sha256), None
            continue
        asked.add(sha256)
        own = filters if candidate.name not in wanted else Filters()
        if candidate.example is not None:
            item = Item(candidate, sha256, cached=True, data=data)
            yield item, Job(data, own, candidate.example.text, drawn=True)
        else:
            text = cache.get(cache_key(sha256, ocr_id))
            yield Item(candidate, sha256, cached=text is not None), Job(data, own, text)


def take(item: Item, reading: Reading | None, pool: Pool, profile: Profile, run_dir: Path) -> None:
    """Take a candidate into the pool and write its normalised copy; or note why it is left out."""
    candidate, example = item.candidate, item.candidate.example
    if reading is None:
        if item.exit is not None:
            pool.exits[candidate.name] = item.exit
        elif item.sha256 in pool.broken:
            pool.exits[candidate.name] = pool.broken[item.sha256]
        else:
            twin = pool.seen[item.sha256]
            pool.exits[candidate.name] = Exit(library_funnel.EXACT, f"exact duplicate of {twin}")
        return
    if reading.undecodable:
        pool.exits[candidate.name] = pool.broken[item.sha256] = reading.exit
        return
    pool.seen[item.sha256] = candidate.name
    if reading.exit is not None:
        pool.exits[candidate.name] = reading.exit
        return
    origin = PurePosixPath(candidate.origin)
    named = example.picture_note if example else picture_note(origin.parent.name, origin.stem)
    meme_id = example.meme_id if example else item.sha256[:12]
    file = f"memes/{meme_id}.png"
    with storage.atomic_path(run_dir / file) as part:
        part.write_bytes(reading.normal or item.data)
    pool.names.append(candidate.name)
    pool.pixels.append(reading.pixels)
    pool.memes.append(
        Meme(
            source="drawn" if example else "user image",
            profile=profile.name,
            seed=profile.seed,
            meme_id=meme_id,
            file=file,
            text=reading.text if example else without_wraps(reading.text),
            text_source="known" if example else ("ocr" if reading.text else "none"),
            picture_note="；".join(filter(None, (candidate.note, named))),
            gloss=example.gloss if example else "",
            origin=candidate.origin,
            sha256=item.sha256,
            phash=reading.phash,
            width=reading.width,
            height=reading.height,
            licence=example_memes.LICENCE if example else "",
        )
    )
