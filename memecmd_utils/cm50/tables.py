"""Tables 9, 10 and 11 of 2501.13851: scores of annotations by prompt, ours beside the paper's.

Only readings that a real annotator made are scored; where there are none, or no references, labels or
weights, a cell says "not computed here" and `attrs["notes"]` of the table says what to give.
"""

import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from memecmd_utils.cm50 import metrics as cm50_metrics
from memecmd_utils.cm50 import prompts as cm50_prompts
from memecmd_utils.cm50 import references as cm50_references
from memecmd_utils.cm50.annotation import TEXT_ONLY
from memecmd_utils.cm50.metrics import (
    INSTALL,
    MODES,
    NOT_COMPUTED,
    ROW_NAMES,
    SUPPORTED,
    Joint,
    Mode,
    Score,
    TextMetric,
    all_metrics,
)
from memecmd_utils.cm50.prompts import Variant
from memecmd_utils.cm50.references import FigMemesError, Labels
from memecmd_utils.core import statistics
from memecmd_utils.core.errors import ExtraMissing
from memecmd_utils.schemas import MemeReading, TemplateMeme

NOT_REAL = ("scripted", "simulated", "made up")
"""Words in a source that name no real annotator."""
METRICS = ("BLEURT", "BERTScore", "ChrF", "ROUGE-L", "BLEU-4")
_PRINTED = """
caption_few_shot_context | 0.313 0.862 22.631 0.142 0 | 0.369 0.858 15.063 0.118 0 | - 0.873 - 0.191 0 |
    0.352 - - - - | 0.467 0.846 28.032 0.158 0.021
caption_few_shot | 0.309 0.864 21.821 0.138 0 | 0.364 0.859 14.159 0.115 0 | - 0.873 - 0.190 0 |
    0.344 - - - - | 0.449 0.847 27.225 0.153 0.002
caption_zero_shot_context | 0.254 0.853 20.049 0.087 0 | 0.332 0.842 16.220 0.090 0 | - 0.862 - 0.126 0 |
    0.286 - - - - | 0.391 0.836 24.414 0.113 0
caption_zero_shot | 0.256 0.851 19.498 0.087 0 | 0.331 0.842 15.101 0.088 0 | - 0.859 - 0.122 0 |
    0.290 - - - - | 0.396 0.836 24.207 0.104 0
five_tasks_whole_set | 0.471 0.869 27.860 0.173 0.002 | 0.474 0.864 23.779 0.173 0.005 | - 0.879 - 0.229 - |
    0.525 0.879 - - - | - - - - -
five_tasks_context | 0.472 0.870 28.653 0.178 0.002 | 0.479 0.863 23.460 0.180 0.006 | - 0.879 - 0.228 - |
    0.523 0.879 - - - | - - - - -
five_tasks | 0.487 0.872 29.083 0.179 0.002 | 0.489 0.866 24.408 0.182 0.006 | - 0.881 - 0.231 0.007 |
    0.540 0.881 - - - | - - - - -
"""
# In the text that we have of the paper, ChrF of the whole set's concatenated references (23.779) has slipped
# into the row "Best match", where no other prompt has one.


def paper_table_10() -> dict[tuple[str, Mode, str], float]:
    """Table 10 as printed, by prompt, mode and metric; cells that are blank there are missing."""
    printed = {}
    for line in _PRINTED.strip().replace("|\n   ", "|").split("\n"):
        prompt, *rows = (part.split() for part in line.split("|"))
        for mode, cells in zip(MODES, rows, strict=True):
            named = zip(METRICS, cells, strict=True)
            printed |= {(prompt[0], mode, name): float(cell) for name, cell in named if cell != "-"}
    return printed


def real(readings: Iterable[MemeReading]) -> list[MemeReading]:
    """Readings that a real annotator made: not unscored, and of a source that is no test's."""
    return [r for r in readings if not r.unscored and not any(word in r.source.lower() for word in NOT_REAL)]


def by_prompt(readings: Iterable[MemeReading]) -> dict[str, list[MemeReading]]:
    """Real readings by the name of their prompt, those of unknown prompt left out."""
    found: dict[str, list[MemeReading]] = {}
    for reading in real(readings):
        if reading.prompt:
            found.setdefault(reading.prompt, []).append(reading)
    return found


def table_10(
    readings: Iterable[MemeReading],
    references: Mapping[str, Sequence[str]],
    metrics: Mapping[str, TextMetric] | None = None,
    joint: Joint = "code",
) -> pd.DataFrame:
    """Table 10: prompt x mode in rows, a column for each metric and one for the paper's number beside it.

    `references`: captions by meme id (`references.references`); several readings of a meme by one prompt are
    several predictions. `attrs["signatures"]` and `attrs["notes"]` hold settings and what is missing, by
    metric. Cells are texts: a number, nothing (blank in the paper, too), or why there is no number.
    """
    metrics = all_metrics() if metrics is None else metrics
    printed, notes, signatures, rows = paper_table_10(), {}, {}, []
    found = by_prompt(readings)
    prompts = [name for name, spec in cm50_prompts.PROMPTS.items() if spec.table == 10]
    for prompt in [*prompts, *(name for name in found if name not in prompts)]:
        texts = _texts(found.get(prompt, []), references)
        for mode in MODES:
            row = {"prompt": prompt, "mode": ROW_NAMES[mode], "memes": len(texts)}
            for name in METRICS:
                score = _score(metrics[name], mode, texts, joint)
                if score.note:
                    notes[name if texts else prompt] = score.note
                if score.signature:
                    signatures[name] = score.signature
                row[name] = cm50_metrics.cell(score)
                row[f"{name} (paper)"] = _printed(printed.get((prompt, mode, name)))
            rows.append(row)
    table = pd.DataFrame(rows)
    table.attrs |= {"notes": notes, "signatures": signatures}
    return table


def quality_tables(
    readings: Iterable[MemeReading],
    memecap_source: Path | str | None = None,
    labels_source: Path | str | None = None,
    metrics: Mapping[str, TextMetric] | None = None,
    variant: Variant = "paper",
) -> dict[int, pd.DataFrame]:
    """Tables 9, 10 and 11 by number from a run's readings and the user's data, which may be None.

    Raises `MemeCapError` or `FigMemesError` for data that are given and cannot be read.
    """
    readings = list(readings)
    references = (
        {} if memecap_source is None else cm50_references.references(cm50_references.read(memecap_source))
    )
    labels = None if labels_source is None else cm50_references.read_labels(labels_source)
    made = {
        9: devices_table(9, readings, labels, variant),
        10: table_10(readings, references, metrics),
        11: devices_table(11, readings, labels, variant),
    }
    if memecap_source is None:
        made[10].attrs["notes"] = {
            "MemeCap": f"{NOT_COMPUTED}: no MemeCap is given: {cm50_references.MEMECAP_WHERE}"
        }
    return made


def _texts(
    readings: Sequence[MemeReading], references: Mapping[str, Sequence[str]]
) -> list[tuple[list[str], list[str]]]:
    """Predictions and references of each meme that has both."""
    said: dict[str, list[str]] = {}
    for reading in readings:
        if reading.meme_caption and references.get(reading.meme_id):
            said.setdefault(reading.meme_id, []).append(reading.meme_caption)
    return [(texts, list(references[name])) for name, texts in said.items()]


def _score(metric: TextMetric, mode: Mode, texts: list[tuple[list[str], list[str]]], joint: Joint) -> Score:
    if metric.name not in SUPPORTED[mode]:
        return Score(None)
    if not texts:
        return Score(None, note=f"{NOT_COMPUTED}: no readings by this prompt of memes with references")
    return cm50_metrics.score(metric, mode, [p for p, _ in texts], [r for _, r in texts], joint)


def _printed(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def devices_table(
    table: int, readings: Iterable[MemeReading], labels: Labels | None, variant: Variant = "paper"
) -> pd.DataFrame:
    """Table 9 or 11: macro-F1 of literary devices on FigMemes by prompt, both ways, beside the paper's.

    `labels` as `references.read_labels` gives them, None where there are none; the file is named in a column.
    The paper does not say which of the two it prints; its code prints both.
    """
    if table not in (9, 11):
        raise ValueError(f"table {table}: macro-F1 is in Tables 9 and 11")
    found, notes, rows = by_prompt(readings), {}, []
    names = [name for name, spec in cm50_prompts.PROMPTS.items() if spec.table == table]
    for name in names:
        spec = cm50_prompts.PROMPTS[name]
        row = {"prompt": name, "details": spec.row, "data": spec.data}
        cells = {"memes": 0, "macro-F1 per label": NOT_COMPUTED, "macro-F1 flattened": NOT_COMPUTED}
        try:
            # Rows on OCR text never show a picture; of the others a reading without one is another prompt.
            cells |= _f1(found.get(name if spec.sees else name + TEXT_ONLY, []), labels, variant)
        except FigMemesError as error:
            notes[name] = f"{NOT_COMPUTED}: {error}"
        source = "" if labels is None else labels.source
        rows.append(row | cells | {"macro-F1 (paper)": f"{spec.published:.2f}", "labels": source})
    made = pd.DataFrame(rows)
    made.attrs["notes"] = notes
    return made


def _f1(readings: Sequence[MemeReading], labels: Labels | None, variant: Variant) -> dict[str, object]:
    if labels is None:
        raise FigMemesError(f"no labels of FigMemes: {cm50_references.FIGMEMES_WHERE}")
    if not readings:
        raise FigMemesError("no readings by this prompt: annotate FigMemes' memes with it")
    found = cm50_references.macro_f1({r.meme_id: r.literary_devices for r in readings}, labels, variant)
    return {
        "memes": found.n,
        "macro-F1 per label": f"{found.per_label:.3f}",
        "macro-F1 flattened": f"{found.flattened:.3f}",
    }


def table_notes(table: pd.DataFrame) -> list[str]:
    """What a table has to say below it: what is missing and what to give, then the settings; each once."""
    said = dict.fromkeys(table.attrs.get("notes", {}).values())
    settings = [f"{name}: {text}" for name, text in table.attrs.get("signatures", {}).items()]
    return [*said, *settings]


# --- How well a meme's embedded text was read: error rates and similarity against the text of its record
# The paper says that GPT-4o is "on par with humans" in extracting it (2501.13851, Section 3.3.3) and gives no
# number; CM50 has both sides, the reading and the caption boxes that ImgFlip recorded.


APOSTROPHES = "'’‘`´"
MEASURES = {
    "character error rate": "edits (insert, delete, replace) / characters of the record's text",
    "word error rate": "the same in words",
    "similarity": "1 - edits / characters of the longer text",
    "words found": "F1 of the words in any order",
}
"""What each column of `compare` says; all on texts without case and punctuation."""


class Reading(NamedTuple):
    """A text as it was read, the text of the record, and the cluster (template) that it belongs to."""

    meme_id: str
    template: str
    read: str
    recorded: str


def plain(text: str) -> str:
    """Text as it is compared: no case, no punctuation or symbols, single blanks (NFKC, casefold).

    Apostrophes vanish ("don't" is "dont"); other punctuation separates words.
    """
    text = unicodedata.normalize("NFKC", text).casefold()
    text = text.translate(dict.fromkeys(map(ord, APOSTROPHES)))
    kept = (c if unicodedata.category(c)[0] in "LNM" else " " for c in text)
    return " ".join("".join(kept).split())


def embedded_text_pairs(readings: Iterable[MemeReading], memes: Iterable[TemplateMeme]) -> list[Reading]:
    """Join readings with the records of the same memes; without those that are unscored or have no record."""
    recorded = {meme.meme_id: meme for meme in memes}
    return [
        Reading(r.meme_id, recorded[r.meme_id].template, r.embedded_text, recorded[r.meme_id].text)
        for r in readings
        if r.meme_id in recorded and not r.unscored
    ]


def compare(readings: Sequence[Reading]) -> pd.DataFrame:
    """One row a meme with the measures, beside edits and lengths; without memes whose record has no text.

    Raises `RuntimeError` without `rapidfuzz`.
    """
    try:
        from rapidfuzz.distance import Levenshtein
    except ImportError as error:
        raise ExtraMissing("error rates need rapidfuzz: pip install rapidfuzz") from error
    rows = []
    for reading in readings:
        read, recorded = plain(reading.read), plain(reading.recorded)
        if not recorded:
            continue
        words, wanted = read.split(), recorded.split()
        edits, word_edits = Levenshtein.distance(recorded, read), Levenshtein.distance(wanted, words)
        shared = sum((Counter(words) & Counter(wanted)).values())
        rows.append(
            {
                "meme_id": reading.meme_id,
                "template": reading.template,
                "characters": len(recorded),
                "words": len(wanted),
                "character edits": edits,
                "word edits": word_edits,
                "character error rate": edits / len(recorded),
                "word error rate": word_edits / len(wanted),
                "similarity": 1 - edits / max(len(recorded), len(read)),
                "words found": 2 * shared / (len(words) + len(wanted)),
            }
        )
    columns = ["meme_id", "template", "characters", "words", "character edits", "word edits", *MEASURES]
    return pd.DataFrame(rows, columns=columns)


def embedded_text_table(readings: Sequence[Reading]) -> pd.DataFrame:
    """One row a measure: mean over memes with a 95 % interval over templates, median, pooled value.

    Pooled: all edits over all characters (words), so that long texts weigh more. Without readings or
    `rapidfuzz` the table has no rows, and `attrs["notes"]` says what to give.
    """
    empty = pd.DataFrame(columns=["mean", "low", "high", "median", "pooled", "memes", "templates"])
    if find_spec("rapidfuzz") is None:
        empty.attrs["notes"] = {"embedded text": f"{NOT_COMPUTED}: rapidfuzz is missing; {INSTALL}"}
        return empty
    found = compare(readings)
    if found.empty:
        empty.attrs["notes"] = {
            "embedded text": f"{NOT_COMPUTED}: no readings of memes whose record has text"
        }
        return empty
    pooled = {
        "character error rate": found["character edits"].sum() / found["characters"].sum(),
        "word error rate": found["word edits"].sum() / found["words"].sum(),
    }
    rows = {}
    for name in MEASURES:
        of = statistics.cluster_mean(found[name].tolist(), found["template"].tolist())
        rows[name] = {
            "mean": of.mean,
            "low": of.low,
            "high": of.high,
            "median": float(found[name].median()),
            "pooled": pooled.get(name),
            "memes": of.n,
            "templates": found["template"].nunique(),
        }
    return pd.DataFrame.from_dict(rows, orient="index")
