"""How well a meme's embedded text was read: error rates and similarity against the text of its record.

The paper says that GPT-4o is "on par with humans" in extracting it (2501.13851, Section 3.3.3) and gives no
number; CM50 has both sides, the reading and the caption boxes that ImgFlip recorded.
"""

import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from typing import NamedTuple

import pandas as pd

from memecmd_utils import statistics
from memecmd_utils.errors import ExtraMissing
from memecmd_utils.template_schemas import MemeReading, TemplateMeme
from memecmd_utils.text_metrics import INSTALL, NOT_COMPUTED

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


def pairs(readings: Iterable[MemeReading], memes: Iterable[TemplateMeme]) -> list[Reading]:
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


def table(readings: Sequence[Reading]) -> pd.DataFrame:
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
