"""A dataset as a folder that can be passed on: one writer for every kind, and the dialogues of a run."""

import re
import shutil
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from memecmd_utils import __version__, schemas, settings
from memecmd_utils.annotation import annotator
from memecmd_utils.core import storage
from memecmd_utils.release import card, manifest
from memecmd_utils.release import card as release_card
from memecmd_utils.release import tables as release_tables
from memecmd_utils.release.manifest import ReleaseError, check_release
from memecmd_utils.release.tables import ReleaseMeme
from memecmd_utils.schemas import MemeReading, TemplateInfo, TemplateMeme, describe_source

_PLAIN_NAME = re.compile(r"[\w.-]+")


def write_release(
    run_dir: Path,
    release_dir: Path,
    dialogues: Sequence[schemas.Dialogue],
    placements: Sequence[schemas.Placement],
    memes: Sequence[schemas.Meme],
    annotations: Sequence[schemas.Annotation],
    profile: settings.Profile,
    *,
    marks: Sequence[schemas.Mark] = (),
    grades: Sequence[schemas.Grade] = (),
    run: str = "",
    models: Mapping[str, Sequence[str]] | None = None,
    include_user_images: bool = False,
    published: str = "",
    url: str = release_card.PAPER_URL,
) -> dict[str, int]:
    """Write the dataset of a run and return the number of records of each kind.

    The folder is made beside the old one, checked with `check_release`, and only then takes its place.
    Images without a licence are left out unless `include_user_images`; of a meme that is flagged as unsafe
    only the id and the category are written. `published` is an ISO date.
    `run` is the run's name, the profile's if empty. `models` names models that no record of the release does,
    such as the embedder and the judges, by what they did.
    """
    memes, annotations = annotator.releasable(memes, annotations)
    sources = release_card.provenance(dialogues, placements, memes, annotations, marks, grades)

    def collect(part: Path) -> dict[str, Sequence[schemas.Record]]:
        return {
            "memes": _copied_memes(run_dir, part, memes, include_user_images),
            "annotations": annotations,
            "dialogues": dialogues,
            "placements": placements,
            "marks": marks,
            "grades": grades,
        }

    return write_dataset(
        release_dir,
        "dialogues",
        collect,
        lambda records: _said(records, sources, profile),
        profile,
        run=run,
        models=models,
        inputs=lambda records: manifest.inputs(profile, records),
        published=published,
        url=url,
    )


class Said(NamedTuple):
    """What a release says of itself beyond its tables."""

    name: str
    description: str
    hub: release_card.Hub
    paper_url: str
    cite_as: str
    licence: Mapping[str, Any]
    """Among others `tags` and `urls`, as the hub and Croissant name licences."""
    sources: Sequence[Mapping[str, Any]]
    """How many records of which `kind` come from which `source`."""
    card: str
    """Name of the card's template; it gets `values` and what every card shows."""
    note: str
    """Name of the licence note's template."""
    values: Mapping[str, Any]


Records = Mapping[str, Sequence[Any]]


def write_dataset(
    release_dir: Path,
    dataset: str,
    collect: Callable[[Path], Records],
    say: Callable[[Records], Said],
    profile: settings.Profile,
    *,
    inputs: Callable[[Records], Mapping[str, Mapping[str, str]]],
    run: str = "",
    models: Mapping[str, Sequence[str]] | None = None,
    published: str = "",
    url: str = "",
) -> dict[str, int]:
    """Write a release of any kind of `tables.DATASETS`; the counts of `check_release`.

    `collect` gets the new folder, may copy files into it, and returns the records by table; optional tables
    without records are left out. `say` and `inputs` get the records that stay. Made beside the old release,
    checked, and only then put in its place; a folder that is no release is left alone (`ReleaseError`).
    """
    if release_dir.exists() and any(release_dir.iterdir()) and not (release_dir / manifest.SUMS).is_file():
        raise ReleaseError(f"{release_dir} holds something that is not a release; it is left as it is")
    part = release_dir.with_name(f".{release_dir.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    tables = release_tables.DATASETS[dataset].tables
    try:
        records = {name: rows for name, rows in collect(part).items() if rows or not tables[name].optional}
        for table, rows in records.items():
            release_tables.write(part, table, rows)
        said = say(records)
        digests = _write_texts(part, records, said, profile, published, url or said.paper_url)
        named: dict[str, Sequence[str]] = {}
        for row in said.sources:
            named[row["kind"]] = [*named.get(row["kind"], ()), row["source"]]
        manifest.write(
            part,
            records,
            profile,
            run or profile.name,
            {**named, **(models or {})},
            digests,
            dataset=dataset,
            inputs=inputs(records),
        )
        digests[manifest.FILE] = storage.sha256(part / manifest.FILE)
        lines = (f"{digest}  {path}\n" for path, digest in sorted(digests.items()))
        storage.write_text(part / manifest.SUMS, "".join(lines))
        counts = check_release(part)
        if release_dir.exists():
            shutil.rmtree(release_dir)
        part.rename(release_dir)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return counts


def _copied_memes(
    run_dir: Path, part: Path, memes: Sequence[schemas.Meme], include_user_images: bool
) -> list[ReleaseMeme]:
    """Copy the pictures that may be passed on; a meme's `file` then names its copy."""
    (part / "images").mkdir()
    rows = []
    for meme in memes:
        file = ""
        if meme.licence or include_user_images:
            source = run_dir / meme.file
            if not _PLAIN_NAME.fullmatch(meme.meme_id):
                raise ReleaseError(f"meme id {meme.meme_id!r} cannot be a file name")
            file = f"images/{meme.meme_id}{source.suffix.lower()}"
            shutil.copyfile(source, part / file)
        rows.append(ReleaseMeme(**{**meme.model_dump(), "file": file}))
    return rows


def _said(records: Records, sources: Sequence[Mapping[str, Any]], profile: settings.Profile) -> Said:
    left_out = sum(not meme.file for meme in records["memes"])
    told = " ".join(f"{row['count']} {row['kind']}: {release_card.plain(row['words'])}." for row in sources)
    return Said(
        name=f"MemeCMD {profile.name}",
        description=f"Chinese multi-turn dialogues with contextually retrieved memes. {told}",
        hub=release_card.DIALOGUES,
        paper_url=release_card.PAPER_URL,
        cite_as=f"MemeCMD, arXiv 2507.00891, {release_card.PAPER_URL}",
        licence=release_card.licences(records["memes"], sources),
        sources=sources,
        card="dataset_card.md.j2",
        note="dataset_licence.md.j2",
        values={
            "meme_position": profile.retrieval.meme_position,
            "numbers": release_card.statistics_of(**records),
            "n_images": len(records["memes"]) - left_out,
            "n_left_out": left_out,
            "n_unsafe": sum(bool(annotation.unsafe) for annotation in records["annotations"]),
            "by_sa_url": release_card.CC_BY_SA,
            "by_url": release_card.CC_BY,
        },
    )


def _write_texts(
    part: Path, records: Records, said: Said, profile: settings.Profile, published: str, url: str
) -> dict[str, str]:
    """Write card, licence note and Croissant metadata; returns the SHA-256 of every file so far."""
    rows = {table: len(records[table]) for table in records}
    bytes_of = {table: (part / f"{table}.parquet").stat().st_size for table in records}
    values = {
        "header": release_card.header(said.name, said.licence["tags"], rows, bytes_of, said.hub),
        "pretty_name": said.name,
        "licence": said.licence,
        "tables": [
            {"name": table, "rows": rows[table], **release_tables.about(table)._asdict()} for table in records
        ],
        "version": __version__,
        "profile_name": profile.name,
        "paper_url": said.paper_url,
        "sources": said.sources,
        **said.values,
    }
    storage.write_text(part / "README.md", release_card.render(said.card, **values))
    storage.write_text(part / "LICENSE.md", release_card.render(said.note, **values))
    digests = manifest.sums(part)
    release_card.write(
        part,
        name=said.name,
        description=said.description,
        language=said.hub.language,
        version=__version__,
        published=published,
        url=url,
        paper_url=said.paper_url,
        cite_as=said.cite_as,
        licence_urls=said.licence["urls"],
        files=digests,
        tables=list(records),
    )
    return digests | {release_card.FILE: storage.sha256(part / release_card.FILE)}


# --- The release of CM50 made anew: templates, template memes and readings, by the writer of all releases


PAPER_URL = "https://arxiv.org/abs/2501.13851"
APACHE = "https://www.apache.org/licenses/LICENSE-2.0"
CM50 = "cm50"
"""Stands in the `source` of what was published with CM50, for example `gpt-4o@cm50`."""
SHOWN = 100
"""Templates that the card lists, the largest first; the rest is counted."""
_OWN = ("authored", "drawn", "computed", "user image")
_KINDS = {"templates": "templates", "template_memes": "template memes", "readings": "readings"}


def write_template_release(
    release_dir: Path,
    infos: Sequence[TemplateInfo],
    memes: Sequence[TemplateMeme],
    readings: Sequence[MemeReading],
    profile: settings.Profile,
    *,
    run: str = "",
    models: Mapping[str, Sequence[str]] | None = None,
    inputs: Mapping[str, str] | None = None,
    published: str = "",
    url: str = PAPER_URL,
) -> dict[str, int]:
    """Write templates, memes and readings as a release (2501.13851, Section 3); the number of each.

    As every release it is made beside the old one, checked with `write.check_release`, and only then takes
    its place. No image is in it: of a template's blank picture only the address stays. Templates without a
    meme are left out. `inputs` says of each source what state it was in (`datasets.states`), `models`
    names models that no record does, by what they did; `published` is an ISO date. `ReleaseError` says
    what does not fit together, such as a reading of a meme that is not there.
    """
    used = {meme.template for meme in memes}
    infos = [info.model_copy(update={"picture": ""}) for info in infos if info.template in used]
    records = {"templates": infos, "template_memes": memes, "readings": readings}
    return write_dataset(
        release_dir,
        "templates",
        lambda _: records,
        lambda kept: _said_of_templates(kept, profile),
        profile,
        run=run,
        models=models,
        inputs=lambda _: {"prompts": manifest.prompt_hashes("templates"), "sources": dict(inputs or {})},
        published=published,
        url=url,
    )


def _said_of_templates(records: Records, profile: settings.Profile) -> Said:
    sources = provenance(records)
    told = " ".join(f"{row['count']} {row['kind']}: {card.plain(row['words'])}." for row in sources)
    return Said(
        name=f"MemeCMD template memes {profile.name}",
        description=f"Template memes with captions, and readings of them, without images. {told}",
        hub=card.Hub(
            "en",
            "template_memes",
            ("text-retrieval", "text-classification"),
            ("memes", "templates"),
            writers=("found", "machine-generated"),
        ),
        paper_url=PAPER_URL,
        cite_as=f"CM50 and mtrCLIP, arXiv 2501.13851, {PAPER_URL}",
        licence=licences(sources),
        sources=sources,
        card="template_card.md.j2",
        note="template_licence.md.j2",
        values={
            "numbers": statistics_of(**records),
            "rule": sorted(profile.cm50.rule.model_dump(mode="json").items()),
            "by_url": card.CC_BY,
            "apache_url": APACHE,
        },
    )


def provenance(records: Mapping[str, Iterable[schemas.Record]]) -> list[dict[str, Any]]:
    """Count the records of each table by their source, most frequent first."""
    rows = []
    for table, found in records.items():
        counts = Counter(record.source for record in found)
        for source, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
            words = _words(table, source)
            rows.append({"kind": _KINDS[table], "source": source, "count": count, "words": words})
    return rows


def _words(table: str, source: str) -> str:
    if source in _OWN:
        return describe_source(source)
    if table == "readings":
        said = describe_source(source)
        return f"{said}, published with CM50" if _published(source) else said
    if table == "templates":
        origin = "published with CM50" if _published(source) else "recorded by ImgFlip575K"
        return f"names and texts of templates, {origin}"
    origin = "as published with CM50" if _published(source) else "recorded by ImgFlip575K"
    return f"posts of users of Imgflip, {origin}"


def _published(source: str) -> bool:
    return CM50 in source.lower()


def licences(sources: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What the licence note needs: for each part of the release what is known of its licence."""
    parts, unknown, models = [], False, set()
    for row in sources:
        own, published = row["source"] in _OWN, _published(row["source"])
        if row["source"] == "authored":
            words = "CC BY 4.0"
        elif published:
            words = "Apache-2.0, as stated where CM50 is published"
        elif row["kind"] == _KINDS["readings"] and not own:
            words = "the terms of the model and of its provider"
            models.add(row["source"])
        else:
            words, unknown = "none stated: the rights are yours to check", True
        parts.append((f"{row['kind']} (`{card.plain(row['source'])}`)", words))
    authored = any(row["source"] == "authored" for row in sources)
    cm50 = any(_published(row["source"]) for row in sources)
    tags = ["apache-2.0"] * cm50 + ["cc-by-4.0"] * authored + ["other"] * bool(unknown or models)
    urls = [APACHE] * cm50 + [card.CC_BY] * authored
    return {
        "parts": [*parts, ("code that made this release, not part of it", "MIT")],
        "unknown": unknown,
        "cm50": cm50,
        "authored": authored,
        "models": sorted(models),
        "tags": tags or ["other"],
        "urls": urls or ["LICENSE.md"],
    }


def statistics_of(
    templates: Sequence[TemplateInfo],
    template_memes: Sequence[TemplateMeme],
    readings: Sequence[MemeReading] = (),
) -> dict[str, Any]:
    """The numbers of the card: rows of printed cells for `sizes` and `templates`; `more` are not shown."""
    scored = [reading for reading in readings if not reading.unscored]
    of_meme = {reading.meme_id for reading in scored}
    by_template: dict[str, list[TemplateMeme]] = defaultdict(list)
    for meme in template_memes:
        by_template[meme.template].append(meme)
    halves = Counter(meme.split or "no split" for meme in template_memes)
    sizes = [
        (
            "templates",
            f"{len(templates):,}, {sum(bool(info.about) for info in templates):,} with their meaning",
        ),
        ("memes", f"{len(template_memes):,}{_listed(halves)}"),
        ("characters of the embedded text", card.spread([len(meme.text) for meme in template_memes])),
        ("readings", f"{len(readings):,}, of which {len(readings) - len(scored):,} came to nothing"),
        ("memes with a reading", f"{len(of_meme):,}"),
        ("literary devices", _most(device for reading in scored for device in reading.literary_devices)),
        ("emotions", _most(reading.emotion for reading in scored if reading.emotion)),
    ]
    rows = []
    for template, found in sorted(by_template.items(), key=lambda item: (-len(item[1]), item[0])):
        split = Counter(meme.split for meme in found)
        read = sum(meme.meme_id in of_meme for meme in found)
        counts = (len(found), split["train"], split["validation"], read)
        rows.append((card.plain(template), *(f"{count:,}" for count in counts)))
    return {"sizes": sizes, "templates": rows[:SHOWN], "more": max(0, len(rows) - SHOWN)}


def _listed(counts: Mapping[str, int]) -> str:
    return f" ({', '.join(f'{n:,} {name}' for name, n in sorted(counts.items()))})" if counts else ""


def _most(words: Iterable[str]) -> str:
    """The 12 most frequent labels: a model may have made up many others."""
    counts = Counter(card.plain(word)[:40] for word in words)
    shown = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    text = ", ".join(f"{word} {count:,}" for word, count in shown[:12])
    return f"{text}{f' and {len(shown) - 12} more' if len(shown) > 12 else ''}" or "none"
