"""Stage 01: from folders of images (or the example memes) to one clean library of memes."""

import hashlib
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from tqdm.auto import tqdm

from memecmd_utils import files, statistics
from memecmd_utils.files import cores, paths, write_csv, write_parquet
from memecmd_utils.library import curation, duplicates, reading
from memecmd_utils.library.curation import Card, LeftOut
from memecmd_utils.library.examples import LICENCE
from memecmd_utils.library.ocr import MemoryCache, Ocr, OcrCache, RapidOcr, cache_key, without_wraps
from memecmd_utils.library.reading import FILTER, UNDECODABLE, Exit, Job, Reading
from memecmd_utils.library.sources import Candidate, find_candidates
from memecmd_utils.pictures import ImageRejected, LibraryError
from memecmd_utils.schemas import Meme
from memecmd_utils.settings import Filters, Profile

LINK_OUT, EXACT, NEAR = "link out of the source", "exact duplicate", "near duplicate"
CURATION, NOT_SAMPLED = "dropped by curation", "not sampled"
STEPS = (LINK_OUT, UNDECODABLE, EXACT, FILTER, NEAR, CURATION, NOT_SAMPLED)
"""Where a file can leave, in the order of the funnel. A file is counted once, where it left."""
CURABLE = frozenset({FILTER, NEAR, CURATION})
"""Steps that a person can overrule on the contact sheet."""
NOT_FOLLOWED = (
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
    """What `build_library` did, in files, and the tables and the page that it wrote."""

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
    `contact_sheet.html`. The table comes last; an interrupted run gives the same result when it is done
    again. `workers`: processes that read images, by itself one for few images or an `ocr` of one's own, else
    all cores; the result is the same. `LibraryError` for an unusable source or curation file, or if no meme
    is left.
    """
    ocr_cache = ocr_cache if ocr_cache is not None else MemoryCache()
    candidates = find_candidates(profile.library.sources)
    decisions = {}
    if profile.library.curation is not None:
        decisions = curation.read_curation(
            paths.user_path(profile.library.curation), {c.name for c in candidates}
        )
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
        workers = reading.workers_for(files) if ocr is None else 1
    with ExitStack() as stack:
        bar = stack.enter_context(tqdm(total=min(limit, len(queue)), desc="memes", unit="meme"))
        read_all, ocr_id = _reader(stack, ocr, workers)
        # Read as many as are still missing, until rejects and duplicates are made up for.
        while len(kept) < limit and done < len(queue):
            part = queue[done : done + limit - len(kept)]
            jobs = _jobs(part, pool, profile.library.filters, wanted, ocr_id, ocr_cache)
            for (candidate, sha256), result in read_all(jobs):
                key = cache_key(sha256, ocr_id)
                if result.text is not None and candidate.example is None and ocr_cache.get(key) is None:
                    ocr_cache.put(key, result.text)
                _take(candidate, sha256, result, pool, profile, run_dir)
                bar.update()
            done += len(part)
            kept, near, doubtful = _without_near_duplicates(pool, wanted, rank)
            bar.total, bar.n = min(len(queue), done + limit - len(kept)), done
            bar.refresh()

    # A larger twin that came late may have brought back two that the smaller one had pushed out.
    beyond = set(sorted(kept)[limit:])
    kept = [i for i in kept if i not in beyond]
    near = {j: i for j, i in near.items() if i not in beyond}
    for name, sha256 in pool.copies.items():
        pool.exits[name] = pool.broken.get(sha256, Exit(EXACT, f"exact duplicate of {pool.seen[sha256]}"))
    not_sampled = len(queue) - len(pool.exits) - len(near) - len(kept)
    exits = pool.exits | dict.fromkeys(links_out, Exit(LINK_OUT, NOT_FOLLOWED))
    for j, i in near.items():
        exits[pool.names[j]] = Exit(NEAR, f"near duplicate of {pool.names[i]}")
    for name, why in dropped.items():
        exits[name] = Exit(CURATION, f"dropped by the curation file{': ' if why else ''}{why}")
    rejected_csv, funnel = run_dir / "rejected.csv", run_dir / "funnel.csv"
    rejected = [{"file": name, "reason": exits[name].why} for name in sorted(exits)]
    write_csv(rejected_csv, ("file", "reason"), rejected)
    write_funnel(funnel, len(candidates), exits, not_sampled, len(kept), profile.library.filters)
    if not kept:
        first = "; the first: {file}: {reason}".format(**rejected[0]) if rejected else ""
        raise LibraryError(f"no meme is left of {len(candidates)} files, see {rejected_csv}{first}")

    kept.sort(key=lambda i: (pool.memes[i].origin, pool.memes[i].meme_id))
    # Copies that an earlier run with other settings, or a broken one, left in the folder.
    files = {pool.memes[i].file for i in [*kept, *near]}
    for path in (run_dir / "memes").iterdir():
        if path.suffix in {".png", ".part"} and f"memes/{path.name}" not in files:
            path.unlink()
    cards = [
        Card(name, meme.file, meme.text, meme.picture_note)
        for name, meme in zip(pool.names, pool.memes, strict=True)
    ]
    chosen = set(kept)
    pairs = [(cards[i], cards[j]) for i, j in doubtful if i in chosen and j in chosen]
    contact_sheet = run_dir / "contact_sheet.html"
    curation.write_contact_sheet(
        contact_sheet,
        run_dir.name,
        [cards[i] for i in kept],
        pairs,
        [(cards[i], cards[j]) for j, i in sorted(near.items())],
        [LeftOut(name, e.why, e.step in CURABLE) for name, e in sorted(exits.items())],
        list(decisions.values()),
    )
    write_parquet(run_dir / "memes.parquet", [pool.memes[i] for i in kept], Meme)
    steps = Counter(exit_.step for exit_ in exits.values())
    return LibraryReport(
        found=len(candidates),
        rejected=steps[UNDECODABLE],
        exact_duplicates=steps[EXACT],
        filtered=steps[FILTER],
        near_duplicates=len(near),
        dropped=len(dropped),
        links_out=len(links_out),
        not_sampled=not_sampled,
        kept=len(kept),
        doubtful_pairs=len(pairs),
        rejected_csv=rejected_csv,
        funnel=funnel,
        contact_sheet=contact_sheet,
    )


def _in_order(candidates: list[Candidate], profile: Profile) -> list[Candidate]:
    """The order in which candidates are looked at: by name, or with `max_memes` as a sample.

    Each beginning of the sample is spread over the folders by their size.
    """
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


def _reader(stack: ExitStack, ocr: Ocr | None, workers: int) -> tuple[Reader, str]:
    """What reads images, here or in so many processes that `stack` ends, and the id of its OCR."""
    if workers > 1:
        # One thread each: two threads take twice the processor time of one for the same picture.
        each = ocr or RapidOcr(threads=max(1, cores() // workers))
        try:
            return stack.enter_context(reading.Workers(workers, each)).run, each.ocr_id
        except reading.WorkersUnavailable as error:
            warnings.warn(f"{error}; images are read in this process alone, which is slower", stacklevel=3)
    ocr = ocr or RapidOcr()
    return partial(reading.one_after_another, ocr=ocr), ocr.ocr_id


def _jobs(
    candidates: Iterable[Candidate],
    pool: Pool,
    filters: Filters,
    wanted: set[str],
    ocr_id: str,
    cache: OcrCache,
) -> Iterator[tuple[Known, Job]]:
    """What is to be done with each candidate: nothing for a copy and for what cannot be read.

    `filters` do not hold for names in `wanted`.
    """
    for candidate in candidates:
        try:
            data = candidate.read()
        except ImageRejected as reason:
            pool.exits[candidate.name] = reading.undecodable(str(reason))
            continue
        sha256 = hashlib.sha256(data).hexdigest()
        if sha256 in pool.seen:  # or still on its way
            pool.copies[candidate.name] = sha256
            continue
        pool.seen[sha256] = candidate.name
        effective = filters if candidate.name not in wanted else Filters()
        if candidate.example is not None:
            job = Job(data, effective, candidate.example.text)
        else:
            job = Job(data, effective, cache.get(cache_key(sha256, ocr_id)))
        yield (candidate, sha256), job


def _take(
    candidate: Candidate, sha256: str, result: Reading, pool: Pool, profile: Profile, run_dir: Path
) -> None:
    """Take a candidate into the pool and write its normalised copy; or note why it is left out."""
    if result.exit is not None:
        pool.exits[candidate.name] = result.exit
        if result.exit.step == UNDECODABLE:
            pool.broken[sha256] = result.exit
        return
    example = candidate.example
    meme_id = example.meme_id if example else sha256[:12]
    file = f"memes/{meme_id}.png"
    with files.atomic_path(run_dir / file) as part:
        part.write_bytes(result.normal)
    pool.names.append(candidate.name)
    pool.pixels.append(result.pixels)
    pool.memes.append(
        Meme(
            source="drawn" if example else "user image",
            profile=profile.name,
            seed=profile.seed,
            meme_id=meme_id,
            file=file,
            text=result.text if example else without_wraps(result.text),
            text_source="known" if example else ("ocr" if result.text else "none"),
            picture_note=candidate.note,
            gloss=example.gloss if example else "",
            origin=candidate.origin,
            sha256=sha256,
            phash=result.phash,
            width=result.width,
            height=result.height,
            licence=LICENCE if example else "",
        )
    )


def _without_near_duplicates(
    pool: Pool, wanted: set[str], rank: dict[str, int]
) -> tuple[list[int], dict[int, int], list[tuple[int, int]]]:
    """Positions kept, dropped -> the one it is near, and doubtful pairs.

    Example memes and files marked `keep` are never dropped, and the latter take nobody's place. Of near
    duplicates the largest picture stays, of equally large ones the first by rank.
    """

    def place(i: int) -> tuple[int, int, int]:
        drawn = pool.memes[i].source == "drawn"
        return not drawn, -pool.pixels[i] * (not drawn), rank[pool.names[i]]

    order = sorted(range(len(pool.memes)), key=place)
    near_duplicates = duplicates.near_duplicate_groups(
        [int(pool.memes[i].phash, 16) for i in order], [pool.memes[i].text for i in order]
    )
    near = {
        order[other]: order[first]
        for first, *others in near_duplicates.groups
        for other in others
        if pool.names[order[other]] not in wanted and pool.memes[order[other]].source != "drawn"
    }
    doubtful = [(order[i], order[j]) for i, j in near_duplicates.doubtful]
    return [i for i in range(len(pool.memes)) if i not in near], near, doubtful


def write_funnel(
    target: Path, n_files: int, exits: Mapping[str, Exit], not_sampled: int, kept: int, filters: Filters
) -> None:
    """Write `funnel.csv`: step, reason, the files that left there, and those left over.

    Filters in use stand in it even where nothing left. `ValueError` if the rows do not add up.
    """
    counts = Counter((exit_.step, exit_.reason) for exit_ in exits.values())
    counts[NOT_SAMPLED, ""] += not_sampled
    unset = Filters()
    in_use = {name for name, value in filters.model_dump().items() if value != getattr(unset, name)}
    always = {EXACT: {""}, NEAR: {""}, CURATION: {""}, FILTER: in_use}
    if not any(step == UNDECODABLE for step, _ in counts):
        always[UNDECODABLE] = {""}
    rows = [("found", "", n_files, n_files)]
    left = n_files
    for step in STEPS:
        for reason in sorted({reason for at, reason in counts if at == step} | always.get(step, set())):
            left -= counts[step, reason]
            rows.append((step, reason, counts[step, reason], left))
    if left != kept:
        raise ValueError(f"{n_files} files found, {left} left after all steps, but {kept} kept")
    rows.append(("kept", "", kept, kept))
    columns = ("step", "reason", "files", "left")
    files.write_csv(target, columns, (dict(zip(columns, row, strict=True)) for row in rows))
