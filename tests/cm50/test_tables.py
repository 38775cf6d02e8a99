import json

import pytest

from memecmd_utils.cm50 import prompts as cm50_prompts
from memecmd_utils.cm50 import tables
from memecmd_utils.cm50.metrics import MODES, NOT_COMPUTED, SUPPORTED, WIRING, Score, TextMetric, all_metrics
from memecmd_utils.cm50.prompts import FIGMEMES_LABELS
from memecmd_utils.cm50.references import Labels, MemeCapError
from memecmd_utils.schemas import MemeReading

REFERENCES = {"m1": ["a cat is tired", "the cat sleeps"], "m2": ["mondays are bad"]}


def said(meme: str, text: str, prompt: str = "five_tasks", **changes) -> MemeReading:
    values = {"source": "model made-for-the-test@1", "meme_id": meme, "meme_caption": text, "prompt": prompt}
    return MemeReading(**values | changes)


class Constant(TextMetric):
    """Made up: one number for every text."""

    def __init__(self, name: str, value: float, note: str = "") -> None:
        self.name, self._value, self._note = name, value, note

    def missing(self) -> str:
        return ""

    def _score(self, predictions, references):
        return Score(self._value, (self._value,) * len(predictions), f"{self.name} of a test", self._note)


def constants(**notes) -> dict:
    names = tables.METRICS
    return {n: Constant(n, (i + 1) / 10, notes.get(n, "")) for i, n in enumerate(names)}


def test_the_papers_table_is_complete() -> None:
    printed = tables.paper_table_10()
    prompts = [n for n, s in cm50_prompts.PROMPTS.items() if s.table == 10]
    assert {prompt for prompt, _, _ in printed} == set(prompts)
    for prompt in prompts:  # what the prompts' own table says
        best = printed[prompt, "best match", "BLEURT"]
        assert best == cm50_prompts.PROMPTS[prompt].published
    assert printed["caption_few_shot_context", "fully-concatenated", "BLEU-4"] == 0.021
    assert printed["five_tasks", "multi-reference", "ROUGE-L"] == 0.231
    # A number stands where the mode has the metric; blanks: BLEU of sets twice, best match of BERTScore
    # in four rows, and "fully-concatenated" where there is one prediction.
    assert all(metric in SUPPORTED[mode] for _, mode, metric in printed)
    full = sum(len(SUPPORTED[mode]) for mode in MODES) * len(prompts)
    assert len(printed) == full - 2 - 4 - 3 * 5


def test_our_numbers_stand_beside_the_papers() -> None:
    readings = [said("m1", "a tired cat"), said("m2", "bad mondays"), said("m9", "no references")]
    table = tables.table_10(readings, REFERENCES, constants())
    row = table[(table["prompt"] == "five_tasks") & (table["mode"] == "Extended predictions")].iloc[0]
    assert row["memes"] == 2
    assert [row[n] for n in tables.METRICS] == ["0.100", "0.200", "0.300", "0.400", "0.500"]
    assert row["BLEURT (paper)"] == "0.487" and row["ChrF (paper)"] == "29.083"
    best = table[(table["prompt"] == "five_tasks") & (table["mode"] == "Best match")].iloc[0]
    assert (best["BLEURT"], best["ChrF"], best["ChrF (paper)"]) == ("0.100", "", "")
    joined = table[(table["prompt"] == "five_tasks") & (table["mode"] == "Fully-concatenated")].iloc[0]
    assert joined["BLEURT"] == ""  # one prediction a meme: blank as in the paper
    others = table[table["prompt"] == "caption_few_shot"]
    assert set(others["BLEURT"]) == {NOT_COMPUTED, ""} and (others["memes"] == 0).all()
    assert len(table) == 7 * 5
    assert "BLEURT: BLEURT of a test" in tables.table_notes(table)


def test_real_metrics_run_through_the_table() -> None:
    pytest.importorskip("sacrebleu")
    pytest.importorskip("rouge_score")
    readings = [said("m1", "a cat is tired"), said("m2", "mondays are bad")]
    table = tables.table_10(readings, REFERENCES, all_metrics())
    row = table[(table["prompt"] == "five_tasks") & (table["mode"] == "Multi-reference")].iloc[0]
    assert row["ROUGE-L"] == "1.000" and row["BERTScore"] == NOT_COMPUTED
    notes = " ".join(tables.table_notes(table))
    assert "give a BLEURT-20 checkpoint" in notes and "tok:13a" in notes


def test_random_weights_give_no_number_in_the_papers_shape() -> None:
    table = tables.table_10([said("m1", "x")], REFERENCES, constants(BLEURT=WIRING))
    cells = table.loc[table["prompt"] == "five_tasks", "BLEURT"]
    assert set(cells) == {WIRING, ""} and WIRING in tables.table_notes(table)


@pytest.mark.parametrize(
    "change",
    [{"source": "scripted"}, {"source": "model simulated@1"}, {"unscored": "refused"}, {"prompt": ""}],
)
def test_only_readings_of_a_real_source_and_known_prompt_are_scored(change) -> None:
    table = tables.table_10([said("m1", "x", **change)], REFERENCES, constants())
    assert (table["memes"] == 0).all()
    assert "no readings by this prompt" in tables.table_notes(table)[0]


def test_devices_are_scored_both_ways_and_the_file_is_named() -> None:
    labels = Labels({"f1.png": ["irony"], "f2.png": ["contrast"]}, "my/labels.tsv")
    readings = [
        said("f1", "", "three_step", literary_devices=["sarcasm"]),
        said("f2.png", "", "three_step", literary_devices=["antithesis"]),
    ]
    table = tables.devices_table(9, readings, labels, "code").set_index("prompt")
    row = table.loc["three_step"]
    assert row["macro-F1 per label"] == "0.333" and row["macro-F1 flattened"] == "1.000"
    assert row["macro-F1 (paper)"] == "0.39" and row["memes"] == 2
    assert set(table["labels"]) == {"my/labels.tsv"} and len(table) == 11
    assert table.loc["baseline", "macro-F1 per label"] == NOT_COMPUTED
    paper = tables.devices_table(9, readings, labels, "paper").set_index("prompt")
    assert paper.loc["three_step", "macro-F1 per label"] == "0.167"


def test_rows_on_ocr_text_are_filled_without_a_picture_and_other_rows_are_not() -> None:
    labels = Labels({"f1.png": ["irony"]}, "labels.tsv")
    names = [f"{name} (text only)" for name in ("few_shot_ocr_pairs", "baseline")]
    readings = [said("f1", "", name, literary_devices=["irony"]) for name in names]
    table = tables.devices_table(9, readings, labels).set_index("prompt")
    assert table["memes"].sum() == table.loc["few_shot_ocr_pairs", "memes"] == 1


def test_all_tables_of_a_run_in_one_call(tmp_path) -> None:
    none = tables.quality_tables([], None, None, constants())
    assert list(none) == [9, 10, 11]
    assert "set memecap to the file" in tables.table_notes(none[10])[0]
    assert "through the form" in tables.table_notes(none[9])[0]
    meme = {"post_id": "m1", "img_fname": "memes_m1.png", "meme_captions": ["a cat is tired"]}
    (tmp_path / "memes-test.json").write_text(json.dumps([meme]), encoding="utf-8")
    cells = "\t".join(str(int(label == "irony")) for label in FIGMEMES_LABELS)
    text = "\t".join(["img_name", *FIGMEMES_LABELS]) + f"\nf1.png\t{cells}\n"
    (tmp_path / "labels.tsv").write_text(text, encoding="utf-8")
    readings = [
        said("memes_m1", "a tired cat"),  # MemeCap's memes by post or by picture
        said("f1", "", "three_step_12", literary_devices=["sarcasm"]),
    ]
    found = tables.quality_tables(readings, tmp_path, tmp_path / "labels.tsv", constants())
    assert found[10].set_index("prompt").loc["five_tasks", "memes"].tolist() == [1] * 5
    assert found[11].set_index("prompt").loc["three_step_12", "macro-F1 per label"] == "0.167"
    with pytest.raises(MemeCapError):
        tables.quality_tables([], tmp_path / "nowhere", None, constants())
