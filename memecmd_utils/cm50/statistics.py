"""Figure 4 of the CM50 paper: how long captions and texts are, and how often each label is given."""

import html
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from memecmd_utils.core.plots import BLUE, GREEN, GREY, ORANGE, PURPLE, RED, canvas, style
from memecmd_utils.schemas import MemeReading

CLIP_TOKENS = 77
"""Tokens that CLIP's text tower takes, those of start and end among them."""
CLIP_NAME = "openai/clip-vit-large-patch14-336"
TEXTS = {
    "meme_caption": ("meme caption", BLUE),
    "image_caption": ("image caption", GREEN),
    "embedded_text": ("embedded text", ORANGE),
}
# What OpenAI's tokenizer has ftfy do before it splits; CM50's readings hold such quotes.
_STRAIGHT = str.maketrans("‘’‚‛“”„‟", "''''\"\"\"\"")


class TokenCounter(NamedTuple):
    """Counts CLIP tokens, start and end included, and says with which tokenizer."""

    name: str
    """A hub name; of a folder its name alone, since tables show it."""
    count: Callable[[Sequence[str]], list[int]]


def clip_counter(model: str | Path | None = CLIP_NAME) -> TokenCounter | None:
    """A counter of CLIP tokens, or None where no tokenizer can be had; nothing is downloaded.

    First the tokenizer of `model`, a folder or a hub name in the cache, by `transformers`; then the package
    `instant-clip-tokenizer`, which holds CLIP's vocabulary and needs no torch. Counts are those of OpenAI's
    own tokenizer, but for texts with broken encoding, which it has repaired first (2 of the 3,375 texts of
    675 published memes).
    """
    if model is not None and find_spec("transformers"):
        found = _transformers(str(model))
        if found:
            return found
    if find_spec("instant_clip_tokenizer"):
        from instant_clip_tokenizer import Tokenizer

        tokenizer = Tokenizer()
        return TokenCounter(
            "instant-clip-tokenizer", lambda texts: [len(tokenizer.encode(_cleaned(t))) + 2 for t in texts]
        )
    return None


def _transformers(model: str) -> TokenCounter | None:
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
        for kind, found in counts.items()
        for label, n in sorted(found.items(), key=lambda item: (-item[1], item[0]))
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
            _says(tokens, "not computed here:\ngive the folder of a CLIP,\nor install instant-clip-tokenizer")
        else:
            _histogram(tokens, frame, "tokens")
            tokens.axvline(CLIP_TOKENS, color=RED, lw=1.2)
            over = float((frame["tokens"] > CLIP_TOKENS).mean()) if len(frame) else 0.0
            tokens.text(
                CLIP_TOKENS,
                0.97,
                f" {CLIP_TOKENS}: {over:.1%} of the texts\n are longer",
                color=RED,
                va="top",
                fontsize=9,
                transform=tokens.get_xaxis_transform(),
            )
        for axes, kind, colour in ((devices, "literary device", PURPLE), (emotions, "emotion", GREEN)):
            _bars(axes, labels[labels["kind"] == kind], colour)
            axes.set_title(f"{kind.capitalize()}s")
        if len(frame):
            fig.legend(*words.get_legend_handles_labels(), loc="outside upper center", ncols=3, fontsize=9)
    return fig


def _histogram(axes: Axes, frame: pd.DataFrame, column: str) -> None:
    values = frame[column].dropna().astype(float)
    if values.empty:
        _says(axes, "no texts")
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
        _says(axes, "no labels")
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


def _says(axes: Axes, text: str) -> None:
    axes.set_axis_off()
    axes.text(0.5, 0.5, text, ha="center", va="center", color=GREY, transform=axes.transAxes)
