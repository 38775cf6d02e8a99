"""What a release says of itself: the dataset card with its numbers, and the licence note."""

import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import jinja2
import yaml

from memecmd_utils import files, schemas
from memecmd_utils.release.tables import Dataset
from memecmd_utils.schemas import MemeReading, TemplateInfo, TemplateMeme, describe_source
from memecmd_utils.settings import Profile

CC_BY = "https://creativecommons.org/licenses/by/4.0/"
CC_BY_SA = "https://creativecommons.org/licenses/by-sa/4.0/"
APACHE = "https://www.apache.org/licenses/LICENSE-2.0"
TERMS_OF_MODEL = "the terms of the model and of its provider"
CODE_LICENCE = ("code that made this release, not part of it", "MIT")
_SIZES = ((1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (1_000_000, "100K<n<1M"))

Records = Mapping[str, Sequence[Any]]
"""The records of a release by table."""


class Description(NamedTuple):
    """What a release says of itself beyond its tables."""

    name: str
    summary: str
    licence: Mapping[str, Any]
    """Among others `tags` and `urls`, as the hub and Croissant name licences."""
    sources: Sequence[Mapping[str, Any]]
    """Rows of `provenance`."""
    values: Mapping[str, Any]
    """What only the templates of this kind of release show."""


@lru_cache(maxsize=1)
def _environment() -> jinja2.Environment:
    # Markdown, not HTML: values are counts, names of strategies and models; `plain` keeps these inert.
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(files.HTML, encoding="utf-8"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    environment.filters["plain"] = plain
    return environment


def render(template: str, **values: Any) -> str:
    """Render one of the Markdown templates of a release."""
    return _environment().get_template(template).render(**values)


def plain(text: str) -> str:
    """A name that stays one word of a Markdown page: no markup, cell border, code mark or line end."""
    return re.sub(r"[\s|`<>\[\]*\\]+", " ", text).strip()


def header(
    dataset: Dataset,
    name: str,
    licence_tags: Sequence[str],
    rows: Mapping[str, int],
    sizes: Mapping[str, int],
) -> str:
    """The card's YAML: what the hub shows, and for `datasets.load_dataset` a configuration a table.

    `rows` and `sizes`: records and bytes of Parquet by table. `datasets` refuses a table without records, so
    such a one gets no configuration.
    """
    filled = {table: count for table, count in rows.items() if count}
    values = {
        "pretty_name": name,
        "language": [dataset.language],
        "license": list(licence_tags),
        **({"license_name": "see-license-md"} if "other" in licence_tags else {}),
        "license_link": "LICENSE.md",
        "annotations_creators": ["machine-generated"],
        "language_creators": list(dataset.writers),
        "size_categories": [size_category(rows[dataset.main])],
        "task_categories": list(dataset.tasks),
        "tags": list(dataset.tags),
        "configs": [
            {"config_name": table, "data_files": f"{table}.parquet"}
            | ({"default": True} if table == dataset.main else {})
            for table in filled
        ],
        "dataset_info": [
            {
                "config_name": table,
                "splits": [{"name": "train", "num_bytes": sizes[table], "num_examples": count}],
            }
            for table, count in filled.items()
        ],
    }
    return yaml.safe_dump(values, allow_unicode=True, sort_keys=False)


def size_category(count: int) -> str:
    """The hub's size label for a number of records."""
    return next((label for limit, label in _SIZES if count < limit), "n>1M")


def _count_sources(
    records: Mapping[str, Iterable[schemas.Record]],
    words: Callable[[str, str], str] = lambda _, source: describe_source(source),
) -> list[dict[str, Any]]:
    """How many records of each kind come from each source, most frequent first; `words`: (kind, source)."""
    rows = []
    for kind, of_kind in records.items():
        counts = Counter(record.source for record in of_kind)
        for source, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
            rows.append({"kind": kind, "source": source, "count": count, "words": words(kind, source)})
    return rows


def _sentences(sources: Sequence[Mapping[str, Any]]) -> str:
    return " ".join(f"{row['count']} {row['kind']}: {plain(row['words'])}." for row in sources)


def _spread(values: Sequence[int]) -> str:
    """Mean, median and range of whole numbers in words."""
    if not values:
        return "none"
    mean, median = statistics.fmean(values), statistics.median(values)
    return f"mean {mean:.1f}, median {median:g}, {min(values):,} to {max(values):,}"


def _share(part: int, total: int) -> str:
    return f"{part:,} of {total:,} ({_percent(part, total)})"


def _percent(part: int, total: int) -> str:
    return f"{100 * part / total:.1f} %" if total else "–"


# --- Dialogues


WRITTEN = ("utterances", "turn summaries", "meme annotations", "marks", "grades")
"""Kinds of records that somebody wrote; pictures and computed numbers are licensed apart."""


def describe_dialogues(records: Records, profile: Profile) -> Description:
    """What a release of a run's dialogues says of itself."""
    sources = provenance(**records)
    left_out = sum(not meme.file for meme in records["memes"])
    return Description(
        name=f"MemeCMD {profile.name}",
        summary=f"Chinese multi-turn dialogues with contextually retrieved memes. {_sentences(sources)}",
        licence=dialogue_licences(records["memes"], sources),
        sources=sources,
        values={
            "meme_position": profile.retrieval.meme_position,
            "numbers": dialogue_statistics(**records),
            "learned": any(placed.strategy == "learned" for placed in records["placements"]),
            "n_images": len(records["memes"]) - left_out,
            "n_left_out": left_out,
            "n_unsafe": sum(bool(annotation.unsafe) for annotation in records["annotations"]),
            "by_sa_url": CC_BY_SA,
            "by_url": CC_BY,
        },
    )


def provenance(
    dialogues: Sequence[schemas.Dialogue],
    placements: Sequence[schemas.Placement],
    memes: Iterable[schemas.Meme],
    annotations: Sequence[schemas.Annotation],
    marks: Sequence[schemas.Mark] = (),
    grades: Sequence[schemas.Grade] = (),
) -> list[dict[str, Any]]:
    """Count the records of each kind by their source, most frequent first."""
    return _count_sources(
        {
            "utterances": (turn for dialogue in dialogues for turn in dialogue.turns),
            "turn summaries": (summary for dialogue in dialogues for summary in dialogue.summaries),
            "meme images": memes,
            "meme annotations": annotations,
            "meme placements": placements,
            "marks": marks,
            "grades": grades,
        }
    )


def dialogue_licences(memes: Sequence[schemas.Meme], sources: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What the licence note needs: licences of pictures, and whose texts there are."""
    kinds_by_writer: dict[str, list[str]] = defaultdict(list)
    for row in sources:
        if row["kind"] in WRITTEN:
            kinds_by_writer[row["source"]].append(row["kind"])
    pictures = Counter(meme.licence for meme in memes)
    authored = "authored" in kinds_by_writer
    others = sorted(name for name in pictures if name and "BY-SA" not in name.upper())
    models = sorted(kinds_by_writer.keys() - {"authored", "computed"})
    by_sa = any("BY-SA" in name.upper() for name in pictures)
    parts = [
        (f"pictures: {count:,}", plain(name) if name else "none stated: the rights are yours to check")
        for name, count in sorted(pictures.items(), reverse=True)
    ]
    for writer, kinds in kinds_by_writer.items():
        terms = "CC BY 4.0" if writer == "authored" else TERMS_OF_MODEL
        parts.append((f"{', '.join(kinds)} (`{plain(writer)}`)", terms))
    parts.append(("placements: ids and computed numbers", "no rights are claimed in them"))
    tags = ["cc-by-sa-4.0"] * by_sa + ["cc-by-4.0"] * authored
    tags += ["other"] * bool(others or models or pictures[""])
    return {
        "by_sa": by_sa,
        "authored": authored,
        "others": others,
        "models": models,
        "unknown": pictures[""],
        "tags": tags or ["other"],
        "urls": [CC_BY_SA] * by_sa + [CC_BY] * authored or ["LICENSE.md"],
        "parts": [*parts, CODE_LICENCE],
    }


def dialogue_statistics(
    dialogues: Sequence[schemas.Dialogue],
    memes: Sequence[schemas.Meme],
    annotations: Sequence[schemas.Annotation],
    placements: Sequence[schemas.Placement],
    marks: Sequence[schemas.Mark] = (),
    grades: Sequence[schemas.Grade] = (),
) -> dict[str, list[tuple[str, ...]]]:
    """The numbers of the card: rows of printed cells for sizes, strategies, marks and grades."""
    turns = [turn for dialogue in dialogues for turn in dialogue.turns]
    summaries = [summary for dialogue in dialogues for summary in dialogue.summaries]
    kinds = Counter(dialogue.kind for dialogue in dialogues)
    bigrams = [turn.text[i : i + 2] for turn in turns for i in range(len(turn.text) - 1)]
    sizes = [
        ("dialogues", f"{len(dialogues):,} ({kinds['news']:,} from news, {kinds['role']:,} from role pairs)"),
        ("turns", f"{len(turns):,}"),
        ("turns of a dialogue", _spread([len(dialogue.turns) for dialogue in dialogues])),
        ("characters of an utterance", _spread([len(turn.text) for turn in turns])),
        ("distinct character pairs (distinct-2)", _share(len(set(bigrams)), len(bigrams))),
        (
            "turns that still break a rule of the prompts",
            _share(sum(bool(turn.violations) for turn in turns), len(turns)),
        ),
        ("turn summaries", _scored(summaries)),
        ("memes", f"{len(memes):,}, {sum(bool(meme.file) for meme in memes):,} with their picture"),
        ("memes with text on them", _share(sum(bool(meme.text) for meme in memes), len(memes))),
        ("meme annotations", _scored(annotations)),
        ("memes placed by any strategy", _share(len({p.meme_id for p in placements}), len(memes))),
    ]
    chances = len(turns) - len(dialogues)
    strategies = []
    for strategy in dict.fromkeys(placement.strategy for placement in placements):
        memes_sent = [placement.meme_id for placement in placements if placement.strategy == strategy]
        rate = _percent(len(memes_sent), chances)
        strategies.append((plain(strategy), f"{len(memes_sent):,}", rate, f"{len(set(memes_sent)):,}"))
    return {
        "sizes": sizes,
        "strategies": strategies,
        "marks": [_mark_row(marker, marks) for marker in sorted({mark.marker for mark in marks})],
        "grades": [_grade_row(grader, grades) for grader in sorted({grade.grader for grade in grades})],
    }


def _scored(records: Sequence[schemas.Summary | schemas.Annotation]) -> str:
    unscored = sum(bool(record.unscored) for record in records)
    return f"{len(records):,}, of which {unscored:,} came to nothing (`unscored`)"


def _mark_row(marker: str, marks: Sequence[schemas.Mark]) -> tuple[str, ...]:
    own = [mark for mark in marks if mark.marker == marker]
    sent = _percent(sum(mark.send for mark in own), len(own))
    return plain(marker), f"{len(own):,}", sent, f"{statistics.fmean(len(mark.best) for mark in own):.2f}"


def _grade_row(grader: str, grades: Sequence[schemas.Grade]) -> tuple[str, ...]:
    own = [grade for grade in grades if grade.grader == grader]
    n_turns = len({(grade.dialogue_id, grade.turn) for grade in own})
    counts = Counter(grade.grade for grade in own)
    shares = (_percent(counts[value], len(own)) for value in (0, 1, 2))
    return plain(grader), f"{len(own):,}", f"{n_turns:,}", *shares


# --- Template memes (2501.13851)


SHOWN_TEMPLATES = 100
"""Templates that the card lists, the largest first; the rest is counted."""
SHOWN_LABELS = 12
_OWN_SOURCES = ("authored", "drawn", "computed", "user image")


def describe_templates(records: Records, profile: Profile) -> Description:
    """What a release of template memes says of itself."""
    sources = template_provenance(records)
    return Description(
        name=f"MemeCMD template memes {profile.name}",
        summary=f"Template memes with captions, and readings of them, without images. {_sentences(sources)}",
        licence=template_licences(sources),
        sources=sources,
        values={
            "numbers": template_statistics(**records),
            "rule": sorted(profile.cm50.rule.model_dump(mode="json").items()),
            "by_url": CC_BY,
            "apache_url": APACHE,
        },
    )


def template_provenance(records: Records) -> list[dict[str, Any]]:
    """Count the records of each table by their source, most frequent first."""
    return _count_sources(
        {table.replace("_", " "): rows for table, rows in records.items()}, _describe_template_source
    )


def _describe_template_source(kind: str, source: str) -> str:
    if source in _OWN_SOURCES:
        return describe_source(source)
    if kind == "readings":
        return describe_source(source) + ", published with CM50" * _is_from_cm50(source)
    if kind == "templates":
        origin = "published with CM50" if _is_from_cm50(source) else "recorded by ImgFlip575K"
        return f"names and texts of templates, {origin}"
    origin = "as published with CM50" if _is_from_cm50(source) else "recorded by ImgFlip575K"
    return f"posts of users of Imgflip, {origin}"


def _is_from_cm50(source: str) -> bool:
    """Whether something was published with CM50: `cm50` itself, or for example `gpt-4o@cm50`."""
    return "cm50" in source.lower()


def template_licences(sources: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What the licence note needs: for each part of the release what is known of its licence."""
    parts, unknown, models = [], False, set()
    for row in sources:
        source = row["source"]
        if source == "authored":
            words = "CC BY 4.0"
        elif _is_from_cm50(source):
            words = "Apache-2.0, as stated where CM50 is published"
        elif row["kind"] == "readings" and source not in _OWN_SOURCES:
            words = TERMS_OF_MODEL
            models.add(source)
        else:
            words, unknown = "none stated: the rights are yours to check", True
        parts.append((f"{row['kind']} (`{plain(source)}`)", words))
    authored = any(row["source"] == "authored" for row in sources)
    cm50 = any(_is_from_cm50(row["source"]) for row in sources)
    tags = ["apache-2.0"] * cm50 + ["cc-by-4.0"] * authored + ["other"] * bool(unknown or models)
    return {
        "parts": [*parts, CODE_LICENCE],
        "unknown": unknown,
        "cm50": cm50,
        "authored": authored,
        "models": sorted(models),
        "tags": tags or ["other"],
        "urls": [APACHE] * cm50 + [CC_BY] * authored or ["LICENSE.md"],
    }


def template_statistics(
    templates: Sequence[TemplateInfo],
    template_memes: Sequence[TemplateMeme],
    readings: Sequence[MemeReading] = (),
) -> dict[str, Any]:
    """The numbers of the card: rows of printed cells for `sizes` and `templates`; `more` are not shown."""
    scored = [reading for reading in readings if not reading.unscored]
    memes_read = {reading.meme_id for reading in scored}
    by_template: dict[str, list[TemplateMeme]] = defaultdict(list)
    for meme in template_memes:
        by_template[meme.template].append(meme)
    splits = Counter(meme.split or "no split" for meme in template_memes)
    in_splits = ", ".join(f"{count:,} {split}" for split, count in sorted(splits.items()))
    with_meaning = sum(bool(info.about) for info in templates)
    sizes = [
        ("templates", f"{len(templates):,}, {with_meaning:,} with their meaning"),
        ("memes", f"{len(template_memes):,}" + (f" ({in_splits})" if in_splits else "")),
        ("characters of the embedded text", _spread([len(meme.text) for meme in template_memes])),
        ("readings", f"{len(readings):,}, of which {len(readings) - len(scored):,} came to nothing"),
        ("memes with a reading", f"{len(memes_read):,}"),
        ("literary devices", _most_frequent(label for r in scored for label in r.literary_devices)),
        ("emotions", _most_frequent(reading.emotion for reading in scored if reading.emotion)),
    ]
    rows = []
    for template, memes in sorted(by_template.items(), key=lambda item: (-len(item[1]), item[0])):
        split = Counter(meme.split for meme in memes)
        n_read = sum(meme.meme_id in memes_read for meme in memes)
        counts = (len(memes), split["train"], split["validation"], n_read)
        rows.append((plain(template), *(f"{count:,}" for count in counts)))
    return {"sizes": sizes, "templates": rows[:SHOWN_TEMPLATES], "more": max(0, len(rows) - SHOWN_TEMPLATES)}


def _most_frequent(labels: Iterable[str]) -> str:
    """The most frequent labels: a model may have made up many others."""
    counts = Counter(plain(label)[:40] for label in labels)
    rows = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    text = ", ".join(f"{label} {count:,}" for label, count in rows[:SHOWN_LABELS])
    return f"{text} and {len(rows) - SHOWN_LABELS} more" if len(rows) > SHOWN_LABELS else text or "none"
