import pandas as pd
import pytest

from memecmd_utils.cm50 import records, tables
from memecmd_utils.cm50.tables import TokenCounter
from memecmd_utils.core import paths
from memecmd_utils.schemas import MemeReading

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
