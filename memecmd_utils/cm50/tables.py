"""Figure 4 and Tables 9 to 11 of 2501.13851: how long readings are, and how good, ours beside the paper's.

Only readings that a real annotator made are scored; where there are none, or no references, labels or
weights, a cell says "not computed here" and `attrs["notes"]` of the table says what to give.
"""

import html
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from memecmd_utils import statistics
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
    Mode,
    Score,
    TextMetric,
)
from memecmd_utils.cm50.prompts import Variant
from memecmd_utils.cm50.references import FigMemesError, Labels
from memecmd_utils.drawing import BLUE, GREEN, GREY, ORANGE, PURPLE, RED, canvas, style
from memecmd_utils.files import paths
from memecmd_utils.schemas import MemeReading, TemplateMeme

NOT_REAL = ("scripted", "simulated", "made up")
"""Words in a source that name no real annotator."""
CLIP_TOKENS = 77
"""Tokens that CLIP's text tower takes, those of start and end among them."""
TEXTS = {
    "meme_caption": ("meme caption", BLUE),
    "image_caption": ("image caption", GREEN),
    "embedded_text": ("embedded text", ORANGE),
}
# What OpenAI's tokenizer has ftfy do before it splits; CM50's readings hold such quotes.
_STRAIGHT = str.maketrans("‘’‚‛“”„‟", "''''\"\"\"\"")
METRICS = ("BLEURT", "BERTScore", "ChrF", "ROUGE-L", "BLEU-4")


def paper_table_10() -> dict[tuple[str, Mode, str], float]:
    """Table 10 as printed, by prompt, mode and metric; cells that are blank there are missing.

    In the text that we have of the paper, ChrF of the whole set's concatenated references (23.779) has
    slipped into the row "Best match", where no other prompt has one.
    """
    printed = pd.read_csv(paths.data / "paper" / "cm50_table10.csv", index_col=["prompt", "mode"])
    return printed.stack().dropna().to_dict()


def by_prompt(readings: Iterable[MemeReading]) -> dict[str, list[MemeReading]]:
    """Readings by the name of their prompt: those that a real annotator made and that are not unscored."""
    by_name: dict[str, list[MemeReading]] = {}
    for reading in readings:
        real = not reading.unscored and not any(word in reading.source.lower() for word in NOT_REAL)
        if real and reading.prompt:
            by_name.setdefault(reading.prompt, []).append(reading)
    return by_name


def table_10(
    readings: Iterable[MemeReading],
    references: Mapping[str, Sequence[str]],
    metrics: Mapping[str, TextMetric],
) -> pd.DataFrame:
    """Table 10: prompt x mode in rows, a column for each metric and one for the paper's number beside it.

    `references`: captions by meme id (`references.references`); several readings of a meme by one prompt are
    several predictions. `attrs["signatures"]` and `attrs["notes"]` hold settings and what is missing, by
    metric. Cells are texts: a number, nothing (blank in the paper, too), or why there is no number.
    """
    printed, notes, signatures, rows = paper_table_10(), {}, {}, []
    readings_of = by_prompt(readings)
    prompts = [name for name, spec in cm50_prompts.PROMPTS.items() if spec.table == 10]
    for prompt in dict.fromkeys([*prompts, *readings_of]):
        texts = _texts(readings_of.get(prompt, []), references)
        for mode in MODES:
            row = {"prompt": prompt, "mode": ROW_NAMES[mode], "memes": len(texts)}
            for name in METRICS:
                score = _score(metrics[name], mode, texts)
                if score.note:
                    notes[name if texts else prompt] = score.note
                if score.signature:
                    signatures[name] = score.signature
                row[name] = cm50_metrics.cell(score)
                paper = printed.get((prompt, mode, name))
                row[f"{name} (paper)"] = "" if paper is None else f"{paper:.3f}"
            rows.append(row)
    table = pd.DataFrame(rows)
    table.attrs |= {"notes": notes, "signatures": signatures}
    return table


def quality_tables(
    readings: Iterable[MemeReading],
    memecap: Path | None,
    labels_file: Path | None,
    metrics: Mapping[str, TextMetric],
    variant: Variant = "paper",
) -> dict[int, pd.DataFrame]:
    """Tables 9, 10 and 11 by number from a run's readings and the user's data, which may be None.

    Raises `MemeCapError` or `FigMemesError` for data that are given and cannot be read.
    """
    readings = list(readings)
    references = {} if memecap is None else cm50_references.references(cm50_references.read(memecap))
    labels = None if labels_file is None else cm50_references.read_labels(labels_file)
    tables = {
        9: devices_table(9, readings, labels, variant),
        10: table_10(readings, references, metrics),
        11: devices_table(11, readings, labels, variant),
    }
    if memecap is None:
        note = f"{NOT_COMPUTED}: no MemeCap is given: {cm50_references.MEMECAP_WHERE}"
        tables[10].attrs["notes"] = {"MemeCap": note}
    return tables


def _texts(
    readings: Sequence[MemeReading], references: Mapping[str, Sequence[str]]
) -> list[tuple[list[str], list[str]]]:
    """Predictions and references of each meme that has both."""
    captions: dict[str, list[str]] = {}
    for reading in readings:
        if reading.meme_caption and references.get(reading.meme_id):
            captions.setdefault(reading.meme_id, []).append(reading.meme_caption)
    return [(texts, list(references[name])) for name, texts in captions.items()]


def _score(metric: TextMetric, mode: Mode, texts: list[tuple[list[str], list[str]]]) -> Score:
    if metric.name not in SUPPORTED[mode]:
        return Score(None)
    if not texts:
        return Score(None, note=f"{NOT_COMPUTED}: no readings by this prompt of memes with references")
    return cm50_metrics.score(metric, mode, [p for p, _ in texts], [r for _, r in texts])


def devices_table(
    table: int, readings: Iterable[MemeReading], labels: Labels | None, variant: Variant = "paper"
) -> pd.DataFrame:
    """Table 9 or 11: macro-F1 of literary devices on FigMemes by prompt, both ways, beside the paper's.

    `labels` as `references.read_labels` gives them, None where there are none; the file is named in a column.
    The paper does not say which of the two it prints; its code prints both.
    """
    readings_of, notes, rows = by_prompt(readings), {}, []
    for name, spec in cm50_prompts.PROMPTS.items():
        if spec.table != table:
            continue
        row = {"prompt": name, "details": spec.row, "data": spec.data}
        cells = {"memes": 0, "macro-F1 per label": NOT_COMPUTED, "macro-F1 flattened": NOT_COMPUTED}
        try:
            # Rows on OCR text never show a picture; of the others a reading without one is another prompt.
            cells |= _f1(readings_of.get(name if spec.sees else name + TEXT_ONLY, []), labels, variant)
        except FigMemesError as error:
            notes[name] = f"{NOT_COMPUTED}: {error}"
        source = "" if labels is None else labels.source
        rows.append(row | cells | {"macro-F1 (paper)": f"{spec.published:.2f}", "labels": source})
    frame = pd.DataFrame(rows)
    frame.attrs["notes"] = notes
    return frame


def _f1(readings: Sequence[MemeReading], labels: Labels | None, variant: Variant) -> dict[str, object]:
    if labels is None:
        raise FigMemesError(f"no labels of FigMemes: {cm50_references.FIGMEMES_WHERE}")
    if not readings:
        raise FigMemesError("no readings by this prompt: annotate FigMemes' memes with it")
    score = cm50_references.macro_f1({r.meme_id: r.literary_devices for r in readings}, labels, variant)
    return {
        "memes": score.n,
        "macro-F1 per label": f"{score.per_label:.3f}",
        "macro-F1 flattened": f"{score.flattened:.3f}",
    }


def table_notes(table: pd.DataFrame) -> list[str]:
    """What a table has to say below it: what is missing and what to give, then the settings; each once."""
    notes = dict.fromkeys(table.attrs.get("notes", {}).values())
    settings = [f"{name}: {text}" for name, text in table.attrs.get("signatures", {}).items()]
    return [*notes, *settings]


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
    """One row a meme with the measures, beside edits and lengths; without memes whose record has no text."""
    from rapidfuzz.distance import Levenshtein

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
    """How well GPT-4o read a meme's text: "on par with humans" in Section 3.3.3, which gives no number.

    One row a measure: mean over memes with a 95 % interval over templates, median, pooled value. Pooled: all
    edits over all characters (words), so that long texts weigh more. Without readings or `rapidfuzz` the
    table has no rows, and `attrs["notes"]` says what to give.
    """
    empty = pd.DataFrame(columns=["mean", "low", "high", "median", "pooled", "memes", "templates"])
    if find_spec("rapidfuzz") is None:
        empty.attrs["notes"] = {"embedded text": f"{NOT_COMPUTED}: rapidfuzz is missing; {INSTALL}"}
        return empty
    compared = compare(readings)
    if compared.empty:
        note = f"{NOT_COMPUTED}: no readings of memes whose record has text"
        empty.attrs["notes"] = {"embedded text": note}
        return empty
    pooled = {
        "character error rate": compared["character edits"].sum() / compared["characters"].sum(),
        "word error rate": compared["word edits"].sum() / compared["words"].sum(),
    }
    rows = {}
    for name in MEASURES:
        mean = statistics.cluster_mean(compared[name].tolist(), compared["template"].tolist())
        rows[name] = {
            "mean": mean.mean,
            "low": mean.low,
            "high": mean.high,
            "median": float(compared[name].median()),
            "pooled": pooled.get(name),
            "memes": mean.n,
            "templates": compared["template"].nunique(),
        }
    return pd.DataFrame.from_dict(rows, orient="index")


class TokenCounter(NamedTuple):
    """Counts CLIP tokens, start and end included, and says with which tokenizer."""

    name: str
    """A hub name; of a folder its name alone, since tables show it."""
    count: Callable[[Sequence[str]], list[int]]


def clip_counter(model: str | None) -> TokenCounter | None:
    """A counter of CLIP tokens, or None where no tokenizer can be had; nothing is downloaded.

    First the tokenizer of `model`, a folder or a hub name in the cache, by `transformers`; then the package
    `instant-clip-tokenizer`, which holds CLIP's vocabulary and needs no torch. Counts are those of OpenAI's
    own tokenizer, but for texts with broken encoding, which it has repaired first (2 of the 3,375 texts of
    675 published memes).
    """
    counter = _transformers_counter(model) if model is not None and find_spec("transformers") else None
    if counter is not None:
        return counter
    if find_spec("instant_clip_tokenizer"):
        from instant_clip_tokenizer import Tokenizer

        tokenizer = Tokenizer()
        return TokenCounter(
            "instant-clip-tokenizer", lambda texts: [len(tokenizer.encode(_cleaned(t))) + 2 for t in texts]
        )
    return None


def _transformers_counter(model: str) -> TokenCounter | None:
    from transformers import CLIPTokenizerFast
    from transformers.utils import cached_file

    # Asked for first, since without its files the class makes a tokenizer that knows no words.
    offline = {"local_files_only": True, "_raise_exceptions_for_missing_entries": False}
    try:
        if not any(cached_file(model, name, **offline) for name in ("tokenizer.json", "vocab.json")):
            return None
    except OSError:  # a hub name that is not in the cache
        return None
    tokenizer = CLIPTokenizerFast.from_pretrained(model, local_files_only=True)
    name = Path(model).resolve().name if Path(model).is_dir() else model
    return TokenCounter(
        name, lambda texts: [len(ids) for ids in tokenizer(list(map(_cleaned, texts)))["input_ids"]]
    )


def _cleaned(text: str) -> str:
    return html.unescape(html.unescape(text)).translate(_STRAIGHT).strip()


def lengths(readings: Iterable[MemeReading], counter: TokenCounter | None = None) -> pd.DataFrame:
    """A row for each text of each reading: `meme_id`, `text` (its kind), `words`, `tokens`.

    Words stand between blanks. `tokens` is empty without a counter. Readings without annotation and empty
    texts are left out.
    """
    rows, texts = [], []
    for reading in readings:
        for kind in TEXTS:
            text = getattr(reading, kind).strip()
            if text and not reading.unscored:
                rows.append((reading.meme_id, kind, len(text.split())))
                texts.append(text)
    frame = pd.DataFrame(rows, columns=["meme_id", "text", "words"])
    tokens = counter.count(texts) if counter and texts else [pd.NA] * len(texts)
    return frame.assign(tokens=pd.array(tokens, dtype="Int64"))


def text_lengths(readings: Sequence[MemeReading], counter: TokenCounter | None = None) -> pd.DataFrame:
    """For each kind of text: how many, words and CLIP tokens (median, 95th percentile, most), over 77.

    `tokens by` names the tokenizer, or says what to give where tokens are not computed; they are never
    estimated from words.
    """
    frame = lengths(readings, counter)
    rows = []
    for kind, (label, _) in TEXTS.items():
        part = frame[frame["text"] == kind]
        row = {"text": label, "texts": len(part), **_spread("words", part["words"])}
        row |= _spread("tokens", part["tokens"].dropna())
        known = counter is not None and len(part) > 0
        row[f"over {CLIP_TOKENS} tokens"] = float((part["tokens"] > CLIP_TOKENS).mean()) if known else np.nan
        row["tokens by"] = (
            counter.name
            if counter
            else "not computed here: give the folder of a CLIP, or install instant-clip-tokenizer"
        )
        rows.append(row)
    return pd.DataFrame(rows)


def _spread(name: str, values: pd.Series) -> dict[str, float]:
    numbers = values.to_numpy(dtype=float)
    if not numbers.size:
        return dict.fromkeys((f"{name}, median", f"{name}, 95 %", f"{name}, most"), np.nan)
    median, high = np.percentile(numbers, [50, 95])
    return {f"{name}, median": median, f"{name}, 95 %": high, f"{name}, most": numbers.max()}


def label_counts(readings: Iterable[MemeReading]) -> pd.DataFrame:
    """Readings that name each literary device and each emotion: `kind`, `label`, `readings`, `share`.

    A reading may name several devices, each counts once; it names one emotion. The labels are counted as
    they stand. Readings without annotation are left out of counts and shares.
    """
    scored = [reading for reading in readings if not reading.unscored]
    counts = {
        "literary device": Counter(name for reading in scored for name in set(reading.literary_devices)),
        "emotion": Counter(reading.emotion for reading in scored if reading.emotion),
    }
    rows = [
        (kind, label, n, n / len(scored))
        for kind, counted in counts.items()
        for label, n in sorted(counted.items(), key=lambda item: (-item[1], item[0]))
    ]
    return pd.DataFrame(rows, columns=["kind", "label", "readings", "share"])


def text_lengths_figure(readings: Sequence[MemeReading], counter: TokenCounter | None = None) -> Figure:
    """Figure 4: lengths in words and in CLIP tokens (line: 77), and counts of devices and emotions."""
    frame, labels = lengths(readings, counter), label_counts(readings)
    with style():
        fig = canvas(9.5, 6.4)
        (words, tokens), (devices, emotions) = fig.subplots(2, 2)
        _histogram(words, frame, "words")
        words.set_title("Words")
        tokens.set_title("CLIP tokens")
        if counter is None:
            _write_instead(
                tokens, "not computed here:\ngive the folder of a CLIP,\nor install instant-clip-tokenizer"
            )
        else:
            _histogram(tokens, frame, "tokens")
            tokens.axvline(CLIP_TOKENS, color=RED, lw=1.2)
            over = float((frame["tokens"] > CLIP_TOKENS).mean()) if len(frame) else 0.0
            tokens.text(
                CLIP_TOKENS, 0.97, f" {CLIP_TOKENS}: {over:.1%} of the texts\n are longer", color=RED,
                va="top", fontsize=9, transform=tokens.get_xaxis_transform(),
            )  # fmt: skip
        for axes, kind, colour in ((devices, "literary device", PURPLE), (emotions, "emotion", GREEN)):
            _bars(axes, labels[labels["kind"] == kind], colour)
            axes.set_title(f"{kind.capitalize()}s")
        if len(frame):
            fig.legend(*words.get_legend_handles_labels(), loc="outside upper center", ncols=3, fontsize=9)
    return fig


def _histogram(axes: Axes, frame: pd.DataFrame, column: str) -> None:
    values = frame[column].dropna().astype(float)
    if values.empty:
        _write_instead(axes, "no texts")
        return
    edges = np.linspace(0, max(float(values.max()), 1), 41)
    for kind, (label, colour) in TEXTS.items():
        heights, _ = np.histogram(values[frame.loc[values.index, "text"] == kind], edges)
        axes.stairs(heights, edges, color=colour, lw=1.4, label=label)
        axes.stairs(heights, edges, color=colour, fill=True, alpha=0.15)
    axes.set_xlabel(f"{column} of a text")
    axes.set_ylabel("texts")


def _bars(axes: Axes, rows: pd.DataFrame, colour: str) -> None:
    if rows.empty:
        _write_instead(axes, "no labels")
        return
    y = np.arange(len(rows))
    axes.barh(y, rows["readings"], color=colour, alpha=0.75)
    for place, count in zip(y, rows["readings"], strict=True):
        axes.annotate(f" {count:,}", (count, place), va="center", fontsize=8)
    axes.set_yticks(y, rows["label"], fontsize=8)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.grid(axis="x")
    axes.grid(False, axis="y")
    axes.set_xlim(right=1.12 * rows["readings"].max())
    axes.set_xlabel("readings")


def _write_instead(axes: Axes, text: str) -> None:
    axes.set_axis_off()
    axes.text(0.5, 0.5, text, ha="center", va="center", color=GREY, transform=axes.transAxes)
