"""The release of CM50 made anew: templates, template memes and readings, by the writer of all releases."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from memecmd_utils import dataset_card, manifest, profiles, release, schemas
from memecmd_utils.provenance import describe_source
from memecmd_utils.template_schemas import MemeReading, TemplateInfo, TemplateMeme

PAPER_URL = "https://arxiv.org/abs/2501.13851"
APACHE = "https://www.apache.org/licenses/LICENSE-2.0"
CM50 = "cm50"
"""Stands in the `source` of what was published with CM50, for example `gpt-4o@cm50`."""
SHOWN = 100
"""Templates that the card lists, the largest first; the rest is counted."""
_OWN = ("authored", "drawn", "computed", "user image")
_KINDS = {"templates": "templates", "template_memes": "template memes", "readings": "readings"}


def write_release(
    release_dir: Path,
    infos: Sequence[TemplateInfo],
    memes: Sequence[TemplateMeme],
    readings: Sequence[MemeReading],
    profile: profiles.Profile,
    *,
    run: str = "",
    models: Mapping[str, Sequence[str]] | None = None,
    inputs: Mapping[str, str] | None = None,
    published: str = "",
    url: str = PAPER_URL,
) -> dict[str, int]:
    """Write templates, memes and readings as a release (2501.13851, Section 3); the number of each.

    As every release it is made beside the old one, checked with `release.check_release`, and only then takes
    its place. No image is in it: of a template's blank picture only the address stays. Templates without a
    meme are left out. `inputs` says of each source what state it was in (`datasets.states`), `models`
    names models that no record does, by what they did; `published` is an ISO date. `ReleaseError` says
    what does not fit together, such as a reading of a meme that is not there.
    """
    used = {meme.template for meme in memes}
    infos = [info.model_copy(update={"picture": ""}) for info in infos if info.template in used]
    records = {"templates": infos, "template_memes": memes, "readings": readings}
    return release.write_dataset(
        release_dir,
        "templates",
        lambda _: records,
        lambda kept: _said(kept, profile),
        profile,
        run=run,
        models=models,
        inputs=lambda _: {"prompts": manifest.prompt_hashes("templates"), "sources": dict(inputs or {})},
        published=published,
        url=url,
    )


def _said(records: release.Records, profile: profiles.Profile) -> release.Said:
    sources = provenance(records)
    told = " ".join(f"{row['count']} {row['kind']}: {dataset_card.plain(row['words'])}." for row in sources)
    return release.Said(
        name=f"MemeCMD template memes {profile.name}",
        description=f"Template memes with captions, and readings of them, without images. {told}",
        hub=dataset_card.Hub(
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
            "rule": sorted(profile.template_rule.model_dump(mode="json").items()),
            "by_url": dataset_card.CC_BY,
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
        parts.append((f"{row['kind']} (`{dataset_card.plain(row['source'])}`)", words))
    authored = any(row["source"] == "authored" for row in sources)
    cm50 = any(_published(row["source"]) for row in sources)
    tags = ["apache-2.0"] * cm50 + ["cc-by-4.0"] * authored + ["other"] * bool(unknown or models)
    urls = [APACHE] * cm50 + [dataset_card.CC_BY] * authored
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
        ("characters of the embedded text", dataset_card.spread([len(meme.text) for meme in template_memes])),
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
        rows.append((dataset_card.plain(template), *(f"{count:,}" for count in counts)))
    return {"sizes": sizes, "templates": rows[:SHOWN], "more": max(0, len(rows) - SHOWN)}


def _listed(counts: Mapping[str, int]) -> str:
    return f" ({', '.join(f'{n:,} {name}' for name, n in sorted(counts.items()))})" if counts else ""


def _most(words: Iterable[str]) -> str:
    """The 12 most frequent labels: a model may have made up many others."""
    counts = Counter(dataset_card.plain(word)[:40] for word in words)
    shown = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    text = ", ".join(f"{word} {count:,}" for word, count in shown[:12])
    return f"{text}{f' and {len(shown) - 12} more' if len(shown) > 12 else ''}" or "none"
