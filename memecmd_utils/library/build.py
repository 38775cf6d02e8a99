"""Stage 01: from folders of images (or the example memes) to one clean library of memes."""

import hashlib
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from tqdm.auto import tqdm

from memecmd_utils.core import paths, seeds, storage
from memecmd_utils.core.drawing import stickers
from memecmd_utils.core.images import ImageRejected, LibraryError
from memecmd_utils.core.machine import cores
from memecmd_utils.library import curation, duplicates
from memecmd_utils.library import funnel as library_funnel
from memecmd_utils.library import reading as library_reading
from memecmd_utils.library.curation import Card, Decision, LeftOut
from memecmd_utils.library.funnel import Exit
from memecmd_utils.library.ocr import MemoryCache, Ocr, OcrCache, RapidOcr, cache_key, without_wraps
from memecmd_utils.library.reading import Job, Reading
from memecmd_utils.library.sources import Candidate, find_candidates
from memecmd_utils.schemas import Meme
from memecmd_utils.settings import Filters, Profile

LINK_OUT = (
    "a link that leads out of the source folder, not followed: name its folder in `sources`, or copy it"
)
Known = tuple[Candidate, str]
"""A candidate and the SHA-256 of its bytes."""
Reader = Callable[[Iterable[tuple[Known, Job]]], Iterator[tuple[Known, Reading]]]


@dataclass
class Pool:
    """Everything looked at so far, in the order of looking."""

    memes: list[Meme] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    pixels: list[int] = field(default_factory=list)  # of the pictures as their files hold them
    seen: dict[str, str] = field(default_factory=dict)  # sha256 of what is asked for -> name
    copies: dict[str, str] = field(default_factory=dict)  # name -> sha256, asked for under another name
    broken: dict[str, Exit] = field(default_factory=dict)  # sha256 of what is no picture -> why
    exits: dict[str, Exit] = field(default_factory=dict)  # name -> why it is left out


@dataclass
class LibraryReport:
    """What `build_library` did, in files, and where it wrote."""

    found: int
    rejected: int
    exact_duplicates: int
    filtered: int
    near_duplicates: int
    dropped: int
    """Left out because the curation file says so."""
    links_out: int
    """Links that lead out of their source folder; none was followed."""
    not_sampled: int
    """Not needed, because `max_memes` was reached without them; hardly any of them was looked at."""
    kept: int
    doubtful_pairs: int
    memes: Path
    rejected_csv: Path
    funnel: Path
    contact_sheet: Path


def build_library(
    profile: Profile,
    run_dir: Path,
    ocr: Ocr | None = None,
    ocr_cache: OcrCache | None = None,
    workers: int | None = None,
) -> LibraryReport:
    """Build `run_dir/memes.parquet` and `run_dir/memes/*.png` from `profile.library.sources`.

    Also writes `rejected.csv` (every file left out, with the reason), `funnel.csv` (how many left where) and
    `contact_sheet.html`. The table comes last and whole; an interrupted run gives the same result when it is
    done again. A file that the curation file keeps passes all filters.
    `workers`: in how many processes images are read. By itself: this one alone for few images or an `ocr` of
    one's own, else all cores. The result is the same. To several processes `ocr` goes by pickle.
    Raises `LibraryError` for a source or curation file that cannot be used, or if no meme is left.
    """
    ocr_cache = ocr_cache if ocr_cache is not None else MemoryCache()
    candidates = find_candidates(profile.library.sources)
    decisions = _decisions(profile, candidates)
    dropped = {name: d.why for name, d in decisions.items() if d.action == "drop"}
    wanted = {name for name, d in decisions.items() if d.action == "keep"}
    links_out = [c.name for c in candidates if c.link_out]
    if links_out:
        warnings.warn(
            f"{len(links_out)} links lead out of their source folder and were not followed, the first: "
            f"{links_out[0]}; name what they lead to in `sources`, or copy it",
            stacklevel=2,
        )
    order = _in_order([c for c in candidates if c.name not in dropped and not c.link_out], profile)
    rank = {candidate.name: number for number, candidate in enumerate(order)}
    queue = sorted(order, key=lambda c: c.name not in wanted)  # files to keep are in every sample

    pool = Pool()
    limit = profile.library.max_memes or len(queue)
    kept, near, doubtful = [], {}, []
    done = 0
    if workers is None:
        files = sum(candidate.example is None for candidate in queue[:limit])
        workers = library_reading.workers_for(files) if ocr is None else 1
    with ExitStack() as stack:
        bar = stack.enter_context(tqdm(total=min(limit, len(queue)), desc="memes", unit="meme"))
        read, ocr_id = _reader(stack, ocr, workers)
        # Read as many as are still missing, until rejects and duplicates are made up for.
        while len(kept) < limit and done < len(queue):
            part = queue[done : done + limit - len(kept)]
            for (candidate, sha256), reading in read(
                _jobs(part, pool, profile.library.filters, wanted, ocr_id, ocr_cache)
            ):
                key = cache_key(sha256, ocr_id)
                if reading.text is not None and candidate.example is None and ocr_cache.get(key) is None:
                    ocr_cache.put(key, reading.text)
                _take(candidate, sha256, reading, pool, profile, run_dir)
                bar.update()
            done += len(part)
            kept, near, doubtful = _without_near_duplicates(pool, wanted, rank)
            bar.total, bar.n = min(len(queue), done + limit - len(kept)), done
            bar.refresh()
    for name, sha256 in pool.copies.items():
        twin = Exit(library_funnel.EXACT, f"exact duplicate of {pool.seen[sha256]}")
        pool.exits[name] = pool.broken.get(sha256, twin)

    # A larger twin that came late may have brought back two that the smaller one had pushed out.
    beyond = set(sorted(kept)[limit:])
    kept = [i for i in kept if i not in beyond]
    near = {j: i for j, i in near.items() if i not in beyond}
    exits = dict(pool.exits)
    exits.update(dict.fromkeys(links_out, Exit(library_funnel.LINK_OUT, LINK_OUT)))
    for j, i in near.items():
        exits[pool.names[j]] = Exit(library_funnel.NEAR, f"near duplicate of {pool.names[i]}")
    for name, why in dropped.items():
        text = f"dropped by the curation file{': ' if why else ''}{why}"
        exits[name] = Exit(library_funnel.CURATION, text)
    rejected = sorted((name, exit_.why) for name, exit_ in exits.items())
    _write_rejected(run_dir / "rejected.csv", rejected)
    not_sampled = len(queue) - len(pool.exits) - len(near) - len(kept)
    library_funnel.write(
        run_dir / "funnel.csv",
        len(candidates),
        exits,
        not_sampled,
        len(kept),
        library_funnel.in_use(profile.library.filters),
    )
    if not kept:
        first = f"; the first: {rejected[0][0]}: {rejected[0][1]}" if rejected else ""
        raise LibraryError(
            f"no meme is left of {len(candidates)} files, see {run_dir / 'rejected.csv'}{first}"
        )

    kept.sort(key=lambda i: (pool.memes[i].origin, pool.memes[i].meme_id))
    _remove_strangers(run_dir / "memes", {pool.memes[i].file for i in [*kept, *near]})
    cards = {i: _card(pool, i) for i in {*kept, *near, *near.values()}}
    chosen = set(kept)
    pairs = [(i, j) for i, j in doubtful if i in chosen and j in chosen]
    curation.write_contact_sheet(
        run_dir / "contact_sheet.html",
        run_dir.name,
        [cards[i] for i in kept],
        [(cards[i], cards[j]) for i, j in pairs],
        [(cards[i], cards[j]) for j, i in sorted(near.items())],
        [LeftOut(name, e.why, e.step in library_funnel.CURABLE) for name, e in sorted(exits.items())],
        list(decisions.values()),
    )
    storage.write_parquet(run_dir / "memes.parquet", [pool.memes[i] for i in kept], Meme)
    steps = Counter(exit_.step for exit_ in exits.values())
    return LibraryReport(
        found=len(candidates),
        rejected=steps[library_funnel.UNDECODABLE],
        exact_duplicates=steps[library_funnel.EXACT],
        filtered=steps[library_funnel.FILTER],
        near_duplicates=len(near),
        dropped=len(dropped),
        links_out=steps[library_funnel.LINK_OUT],
        not_sampled=not_sampled,
        kept=len(kept),
        doubtful_pairs=len(pairs),
        memes=run_dir / "memes.parquet",
        rejected_csv=run_dir / "rejected.csv",
        funnel=run_dir / "funnel.csv",
        contact_sheet=run_dir / "contact_sheet.html",
    )


def _decisions(profile: Profile, candidates: Sequence[Candidate]) -> dict[str, Decision]:
    if profile.library.curation is None:
        return {}
    path = paths.root / Path(profile.library.curation).expanduser()
    return curation.read_curation(path, {c.name for c in candidates})


def _in_order(candidates: list[Candidate], profile: Profile) -> list[Candidate]:
    """The order in which candidates are looked at: by name, or as a sample where `max_memes` is set.

    Each beginning of the sampled order is spread over the folders by their size, so topping up is going on.
    """
    if profile.library.max_memes is None:
        # Example memes first: their annotations are found by id, so a copy must not replace them.
        return sorted(candidates, key=lambda c: (c.example is None, c.name))
    groups: dict[str, list[Candidate]] = {}
    for candidate in candidates:
        groups.setdefault(candidate.group, []).append(candidate)
    place: dict[str, float] = {}
    for name, members in sorted(groups.items()):
        rng = seeds.rng(profile.seed, "library", name)
        for rank, index in enumerate(rng.permutation(len(members))):
            place[members[index].name] = (rank + float(rng.random())) / len(members)
    return sorted(candidates, key=lambda c: (place[c.name], c.name))


def _reader(stack: ExitStack, ocr: Ocr | None, workers: int) -> tuple[Reader, str]:
    """What reads images, here or in so many processes that `stack` ends, and the id of its OCR."""
    if workers > 1:
        # One thread each: two threads take twice the processor time of one for the same picture.
        each = ocr if ocr is not None else RapidOcr(threads=max(1, cores() // workers))
        try:
            return stack.enter_context(library_reading.Workers(workers, each)).run, each.ocr_id
        except library_reading.WorkersUnavailable as error:
            warnings.warn(f"{error}; images are read in this process alone, which is slower", stacklevel=3)
    ocr = ocr if ocr is not None else RapidOcr()
    return partial(library_reading.one_after_another, ocr=ocr), ocr.ocr_id


def _jobs(
    candidates: Iterable[Candidate],
    pool: Pool,
    filters: Filters,
    wanted: set[str],
    ocr_id: str,
    cache: OcrCache,
) -> Iterator[tuple[Known, Job]]:
    """What is to be done with each candidate; nothing for a copy and for what cannot be read.

    `filters` do not hold for names in `wanted`. The bytes of a candidate are read when it is asked for.
    """
    for candidate in candidates:
        try:
            data = candidate.read()
        except ImageRejected as reason:
            pool.exits[candidate.name] = library_funnel.undecodable(str(reason))
            continue
        sha256 = hashlib.sha256(data).hexdigest()
        if sha256 in pool.seen:  # or still on its way
            pool.copies[candidate.name] = sha256
            continue
        pool.seen[sha256] = candidate.name
        own = filters if candidate.name not in wanted else Filters()
        if candidate.example is not None:
            job = Job(data, own, candidate.example.text, drawn=True)
        else:
            job = Job(data, own, cache.get(cache_key(sha256, ocr_id)))
        yield (candidate, sha256), job


def _take(
    candidate: Candidate, sha256: str, reading: Reading, pool: Pool, profile: Profile, run_dir: Path
) -> None:
    """Take a candidate into the pool and write its normalised copy; or note why it is left out."""
    if reading.exit is not None:
        pool.exits[candidate.name] = reading.exit
        if reading.undecodable:
            pool.broken[sha256] = reading.exit
        return
    example = candidate.example
    meme_id = example.meme_id if example else sha256[:12]
    file = f"memes/{meme_id}.png"
    with storage.atomic_path(run_dir / file) as part:
        part.write_bytes(reading.normal)
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
            picture_note=candidate.note,
            gloss=example.gloss if example else "",
            origin=candidate.origin,
            sha256=sha256,
            phash=reading.phash,
            width=reading.width,
            height=reading.height,
            licence=stickers.LICENCE if example else "",
        )
    )


def _without_near_duplicates(
    pool: Pool, wanted: set[str], rank: dict[str, int]
) -> tuple[list[int], dict[int, int], list[tuple[int, int]]]:
    """Positions kept, dropped -> the one it is near, and doubtful pairs.

    Example memes and files marked `keep` are never dropped. Of near duplicates the largest picture is kept,
    and the first by rank of equally large ones: a file marked `keep` comes back beside its twin and does not
    take its place.
    """

    def place(i: int) -> tuple[int, int, int]:
        drawn = pool.memes[i].source == "drawn"
        return not drawn, -pool.pixels[i] * (not drawn), rank[pool.names[i]]

    order = sorted(range(len(pool.memes)), key=place)
    found = duplicates.near_duplicate_groups(
        [int(pool.memes[i].phash, 16) for i in order], [pool.memes[i].text for i in order]
    )
    near = {
        order[other]: order[first]
        for first, *others in found.groups
        for other in others
        if pool.names[order[other]] not in wanted and pool.memes[order[other]].source != "drawn"
    }
    doubtful = [(order[i], order[j]) for i, j in found.doubtful]
    return [i for i in range(len(pool.memes)) if i not in near], near, doubtful


def _card(pool: Pool, i: int) -> Card:
    meme = pool.memes[i]
    return Card(pool.names[i], meme.file, meme.text, meme.picture_note)


def _remove_strangers(folder: Path, files: set[str]) -> None:
    """Remove copies that an earlier run with other settings or a broken one left in the folder."""
    for path in folder.iterdir():
        if path.suffix in {".png", ".part"} and f"{folder.name}/{path.name}" not in files:
            path.unlink()


def _write_rejected(target: Path, rows: Sequence[tuple[str, str]]) -> None:
    storage.write_csv(target, ("file", "reason"), ({"file": name, "reason": why} for name, why in rows))
