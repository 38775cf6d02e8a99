import gzip
import json

import pandas as pd
import pytest

from memecmd_utils.cm50 import prompts as cm50_prompts
from memecmd_utils.cm50 import records, tables
from memecmd_utils.cm50.metrics import MODES, NOT_COMPUTED, SUPPORTED, WIRING, Score, TextMetric, all_metrics
from memecmd_utils.cm50.prompts import FIGMEMES_LABELS
from memecmd_utils.cm50.references import Labels, MemeCapError
from memecmd_utils.cm50.tables import Reading, TokenCounter
from memecmd_utils.files import paths
from memecmd_utils.schemas import MemeReading, TemplateMeme

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


CORPORA = paths.root.parent / "shared" / "corpora"
MADE_UP = TokenCounter("made-up counter", lambda texts: [2 * len(text.split()) + 1 for text in texts])


def reading(number, words=5, devices=("irony",), emotion="joy", **fields):
    texts = {"meme_caption": "word " * words, "image_caption": "a kettle", "embedded_text": "sing"}
    return MemeReading(
        source="made up",
        meme_id=f"m{number}",
        literary_devices=list(devices),
        emotion=emotion,
        **{**texts, **fields},
    )


def test_lengths_leave_out_what_is_not_there():
    frame = tables.lengths(
        [reading(1), reading(2, embedded_text=" \n"), reading(3, unscored="refused")], MADE_UP
    )
    assert frame["text"].value_counts().to_dict() == {
        "meme_caption": 2, "image_caption": 2, "embedded_text": 1
    }  # fmt: skip
    assert frame.set_index(["meme_id", "text"]).loc[("m1", "image_caption")].tolist() == [2, 5]


def test_the_table_counts_what_is_over_77():
    # 38 words are 77 made-up tokens, which is not over; 39 are 79.
    table = tables.text_lengths([reading(n, words) for n, words in enumerate((38, 39, 40, 10))], MADE_UP)
    row = table.set_index("text").loc["meme caption"]
    assert row["over 77 tokens"] == 0.5 and row["tokens by"] == "made-up counter"
    assert (row["words, median"], row["words, most"], row["tokens, most"]) == (38.5, 40, 81)
    assert table["texts"].tolist() == [4, 4, 4]


def test_labels_count_once_a_reading():
    readings = [
        reading(1, devices=["irony", "irony", "pun"]),
        reading(2, devices=["irony"], emotion=""),
        reading(3, devices=[], emotion="fear", unscored="refused"),
    ]
    table = tables.label_counts(readings)
    assert list(table.itertuples(index=False, name=None)) == [
        ("literary device", "irony", 2, 1.0),
        ("literary device", "pun", 1, 0.5),
        ("emotion", "joy", 1, 0.5),
    ]


def test_the_package_with_clip_s_vocabulary_counts_exactly():
    pytest.importorskip("instant_clip_tokenizer")
    counter = tables.clip_counter(None)
    # From OpenAI's own tokenizer, start and end included; curly quotes count as straight ones.
    texts = ["a photo of a cat", "", "don't", "don\u2019t", "Tom &amp; Jerry"]
    assert counter.count(texts) == [7, 2, 4, 4, 5]


def test_the_tokenizer_of_a_folder_is_used(tmp_path):
    pytest.importorskip("transformers")
    import json

    letters = [chr(n) for n in range(97, 123)]
    words = [*letters, *(f"{letter}</w>" for letter in letters), "ab</w>", "<|startoftext|>", "<|endoftext|>"]
    (tmp_path / "vocab.json").write_text(json.dumps({word: n for n, word in enumerate(words)}))
    (tmp_path / "merges.txt").write_text("#version: 0.2\na b</w>\n")
    counter = tables.clip_counter(str(tmp_path))
    assert counter.name == tmp_path.name, "tables show it: no folder of a machine"
    assert counter.count(["ab c", "abc"]) == [4, 5]
    (tmp_path / "empty").mkdir()
    for absent in (tmp_path / "gone", tmp_path / "empty", "nobody/no-such-clip"):
        other = tables.clip_counter(str(absent))
        assert other is None or other.name == "instant-clip-tokenizer"


@pytest.mark.corpora
@pytest.mark.skipif(not CORPORA.is_dir(), reason="the real records are not on this machine")
def test_statistics_of_the_published_readings():
    readings = records.read_cm50(CORPORA / "cm50").readings
    table = tables.text_lengths(readings, tables.clip_counter(None))
    assert table["texts"].tolist() == [675, 675, 675]
    assert table["words, median"].tolist() == [30, 24, 14]
    if not pd.isna(table["over 77 tokens"][0]):
        # "While some annotations exceed the maximum input length limit of CLIP, most satisfy the limitation."
        assert (table["over 77 tokens"] < 0.05).all() and (table["over 77 tokens"] > 0).all()
    labels = tables.label_counts(readings)
    assert labels["label"][0] == "irony" and labels["share"][0] > 0.9


REAL = paths.root.parent / "shared" / "corpora" / "cm50"


def pair(read: str, recorded: str, name: str = "m1", template: str = "T") -> Reading:
    return Reading(name, template, read, recorded)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("WOW.\nHOW DID YOU  GROW PANTS?", "wow how did you grow pants"),
        ("Don\u2019t \u201cdo\u201d that!", "dont do that"),
        ("ﬁve—six/seven", "five six seven"),
        ("ŒUVRE straße", "œuvre strasse"),
        ("100%", "100"),
        ("!?", ""),
    ],
)
def test_texts_are_compared_without_case_and_punctuation(text, expected) -> None:
    assert tables.plain(text) == expected


def test_measures_by_hand() -> None:
    pytest.importorskip("rapidfuzz")
    found = tables.compare([pair("One two tree", "ONE, TWO THREE!")]).iloc[0]
    assert found["character edits"] == 1 and found["characters"] == 13  # the h of three
    assert found["character error rate"] == pytest.approx(1 / 13)
    assert found["word error rate"] == pytest.approx(1 / 3)
    assert found["similarity"] == pytest.approx(1 - 1 / 13)
    assert found["words found"] == pytest.approx(2 * 2 / 6)


def test_a_blank_reading_is_all_wrong_and_a_blank_record_is_left_out() -> None:
    pytest.importorskip("rapidfuzz")
    found = tables.compare([pair("", "some text"), pair("some text", " !")])
    assert len(found) == 1
    row = found.iloc[0]
    assert row["character error rate"] == row["word error rate"] == 1
    assert row["similarity"] == row["words found"] == 0


def test_the_table_has_an_interval_by_template_and_the_pooled_rate() -> None:
    pytest.importorskip("rapidfuzz")
    good = [pair("a long enough text", "a long enough text", f"g{i}", f"T{i % 6}") for i in range(12)]
    bad = [pair("ab", "cd", f"b{i}", f"B{i % 3}") for i in range(6)]
    found = tables.embedded_text_table(good + bad)
    rate = found.loc["character error rate"]
    assert rate["mean"] == pytest.approx(6 / 18) and rate["median"] == 0
    assert rate["pooled"] == pytest.approx(6 * 2 / (12 * 18 + 6 * 2))
    assert rate["low"] < rate["mean"] < rate["high"] and rate["templates"] == 9 and rate["memes"] == 18
    assert tables.embedded_text_table([]).empty
    assert "no readings of memes" in tables.embedded_text_table([]).attrs["notes"]["embedded text"]


def test_error_rates_are_those_of_jiwer() -> None:
    pytest.importorskip("rapidfuzz")
    jiwer = pytest.importorskip("jiwer")
    texts = [("a cat sat", "the cat sat down"), ("", "so it is"), ("one two three", "one three two")]
    found = tables.embedded_text_table([pair(*both, name=str(i)) for i, both in enumerate(texts)])
    references, read = [r for _, r in texts], [t for t, _ in texts]
    assert found.loc["character error rate", "pooled"] == pytest.approx(jiwer.cer(references, read))
    assert found.loc["word error rate", "pooled"] == pytest.approx(jiwer.wer(references, read))


def test_readings_are_joined_with_their_records() -> None:
    memes = [
        TemplateMeme(source="x", meme_id="m1", template="T", url="u", captions=["A", " ", "B"]),
        TemplateMeme(source="x", meme_id="m2", template="T", url="u"),
    ]
    said = [
        MemeReading(source="x", meme_id="m1", embedded_text="a b"),
        MemeReading(source="x", meme_id="m2", unscored="refused"),
        MemeReading(source="x", meme_id="m3", embedded_text="c"),
    ]
    assert tables.embedded_text_pairs(said, memes) == [Reading("m1", "T", "a b", "A\nB")]


@pytest.mark.corpora
@pytest.mark.skipif(not REAL.is_dir(), reason=f"no CM50 records at {REAL}")
def test_published_readings_of_cm50_are_close_to_the_records() -> None:
    pytest.importorskip("rapidfuzz")
    rows = json.loads(gzip.decompress((REAL / "validation_dev.json.gz").read_bytes()))
    found = tables.embedded_text_table(
        [Reading(row["image_dir"], row["type"], row["detected text"], "\n".join(row["ocr"])) for row in rows]
    )
    assert found["memes"].min() >= 670 and found["templates"].min() == 50
    assert 0.05 < found.loc["character error rate", "pooled"] < 0.2
    assert found.loc["words found", "low"] > 0.9
