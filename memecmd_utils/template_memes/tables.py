"""Numbers of Figure 4 and Tables 6 and 9 to 11 of 2501.13851: how long readings are, and how good.

Where there are no readings, references, labels or weights, a cell says "not computed here" and the column
`note` says what to give.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from memecmd_utils.embedders import ModelMissing
from memecmd_utils.files import paths
from memecmd_utils.schemas import MemeReading
from memecmd_utils.template_memes import data_sets, metrics, prompts
from memecmd_utils.template_memes.annotation import TEXT_ONLY
from memecmd_utils.template_memes.data_sets import FIGMEMES_LABELS, NOT_COMPUTED
from memecmd_utils.template_memes.metrics import METRICS, SUPPORTED, Metric

TEXTS = ("meme_caption", "image_caption", "embedded_text")
ByPrompt = Mapping[str, Sequence[MemeReading]]


def votes() -> pd.DataFrame:
    """Table 6: votes of people for each system's answers to five memes, and their share of the best's."""
    total = pd.read_csv(paths.data / "paper" / "cm50_table6.csv").iloc[:, 2:].sum()
    return pd.DataFrame({"votes": total, "share of the best": total / total.max()})


def by_prompt(readings: Iterable[MemeReading]) -> dict[str, list[MemeReading]]:
    """Readings by the name of their prompt, without those that are unscored."""
    by_name: dict[str, list[MemeReading]] = {}
    for reading in readings:
        if reading.prompt and not reading.unscored:
            by_name.setdefault(reading.prompt, []).append(reading)
    return by_name


def quality_tables(
    readings: Iterable[MemeReading],
    memecap: Path | None,
    labels: Path | None,
    chosen: Mapping[str, Metric | None],
) -> dict[int, pd.DataFrame]:
    """Tables 9, 10 and 11 by number from a run's readings and the user's data, which may be None."""
    readings_of, references = by_prompt(readings), {}
    for meme in data_sets.read_memecap(memecap) if memecap else ():
        references |= dict.fromkeys((meme.name, Path(meme.image).stem), meme.meme_captions)
    labelled = data_sets.read_labels(labels) if labels else {}
    truth = {Path(name).stem: devices for name, devices in labelled.items()}
    return {
        9: devices_table(9, readings_of, truth),
        10: table_10(readings_of, references, chosen),
        11: devices_table(11, readings_of, truth),
    }


def _why_empty(spec: prompts.PromptSpec, here: bool, dataset: str, key: str) -> str:
    if not spec.file:
        return "the paper names this prompt and does not print it"
    needs = "cm50.annotation.evaluate" if here else f"cm50.{key}"
    return f"no readings by this prompt, or no {dataset}: set {needs}"


def table_10(
    readings_of: ByPrompt, references: Mapping[str, Sequence[str]], chosen: Mapping[str, Metric | None]
) -> pd.DataFrame:
    """Table 10: prompt x mode in rows, a column for each metric, and the paper's numbers.

    `references`: captions by meme id; several readings of a meme by one prompt are several predictions. Cells
    are texts: a number, nothing (blank in the paper, too), or why there is none, with more in `note`.
    """
    rows = []
    for spec in (spec for spec in prompts.paper_rows() if spec.table == 10):
        captions: dict[str, list[str]] = {}
        for reading in readings_of.get(spec.name, ()):
            if reading.meme_caption and references.get(reading.meme_id):
                captions.setdefault(reading.meme_id, []).append(reading.meme_caption)
        texts = list(captions.values()), [references[meme] for meme in captions]
        for mode, names in SUPPORTED.items():
            cells, notes = dict.fromkeys(METRICS, ""), []
            if not captions:
                cells |= dict.fromkeys(names, NOT_COMPUTED)
                notes.append(_why_empty(spec, bool(references), "MemeCap", "memecap"))
            for name in names if captions else ():
                try:
                    value = metrics.score(chosen, name, mode, *texts)
                    cells[name] = "" if value is None else f"{value:.3f}"
                except ModelMissing as error:
                    cells[name] = NOT_COMPUTED
                    notes.append(f"{name}: {error}")
            row = {"prompt": spec.name, "mode": mode, "memes": len(captions)}
            rows.append(row | cells | {"note": "; ".join(notes)})
    printed = pd.read_csv(paths.data / "paper" / "cm50_table10.csv", dtype=str, keep_default_na=False)
    printed = printed.set_index(["prompt", "mode"]).add_suffix(" (paper)")
    return pd.DataFrame(rows).join(printed, on=["prompt", "mode"])


def devices_table(table: int, readings_of: ByPrompt, truth: Mapping[str, Sequence[str]]) -> pd.DataFrame:
    """Table 9 or 11: macro-F1 of literary devices on FigMemes by prompt, both ways, beside the paper's.

    `truth`: labels by meme, empty where there are none. The paper does not say which of the two ways it
    prints; its code prints both.
    """
    rows = []
    for spec in (spec for spec in prompts.paper_rows() if spec.table == table):
        row = {"prompt": spec.name, "details": spec.row, "data": spec.measured_on, "memes": 0}
        row |= {"macro-F1 per label": NOT_COMPUTED, "macro-F1 flattened": NOT_COMPUTED}
        row |= {"macro-F1 (paper)": f"{spec.published:.2f}", "note": ""}
        # Rows on OCR text never show a picture; of the others a reading without one is another prompt.
        name = spec.name + TEXT_ONLY * bool(spec.file and not spec.form.sees)
        found = {r.meme_id: r.literary_devices for r in readings_of.get(name, ()) if r.meme_id in truth}
        if found:
            row |= {"memes": len(found)} | macro_f1(found, truth)
        else:
            row["note"] = _why_empty(spec, bool(truth), "labels of FigMemes", "figmemes_labels")
        rows.append(row)
    return pd.DataFrame(rows)


def macro_f1(predicted: Mapping[str, Sequence[str]], truth: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Macro-F1 of predicted literary devices by meme, mapped to FigMemes' labels, both ways of the code.

    Per label: mean of the six labels' F1; one without true, predicted or both counts 0. Flattened: all memes
    x labels in one row of 0 and 1, the mean of the F1 of 1 and the F1 of 0.
    """
    from sklearn.metrics import f1_score

    mapped = {meme: prompts.to_figmemes(devices) for meme, devices in predicted.items()}
    sides = (
        np.array([[of in some[meme] for of in FIGMEMES_LABELS] for meme in mapped])
        for some in (truth, mapped)
    )
    true, guessed = sides
    options = {"average": "macro", "zero_division": 0.0}
    return {
        "macro-F1 per label": f"{f1_score(true, guessed, **options):.3f}",
        "macro-F1 flattened": f"{f1_score(true.ravel(), guessed.ravel(), labels=[0, 1], **options):.3f}",
    }


def text_lengths(readings: Iterable[MemeReading], model: str) -> pd.DataFrame:
    """A row for each text of each reading: its kind (`text`), `words` (between blanks), CLIP `tokens`.

    `model`: a CLIP by hub name or folder whose tokenizer counts, start and end included; where it is not on
    this machine or `transformers` is missing, `tokens` is empty. Nothing is downloaded.
    """
    texts = [
        (kind, text)
        for reading in readings
        for kind in TEXTS
        if not reading.unscored and (text := getattr(reading, kind).strip())
    ]
    frame = pd.DataFrame(texts, columns=["text", "said"])
    said = frame.pop("said").tolist()
    try:
        from transformers import CLIPTokenizerFast

        tokenizer = CLIPTokenizerFast.from_pretrained(model, local_files_only=True)
        counts = list(map(len, tokenizer(said)["input_ids"])) if said else []
    except (ImportError, OSError, ValueError):  # no transformers, or no such tokenizer here
        counts = [pd.NA] * len(frame)
    return frame.assign(words=[len(text.split()) for text in said], tokens=pd.array(counts, dtype="Int64"))
