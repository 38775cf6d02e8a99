import gzip
import json

import pytest

from memecmd_utils.cm50 import tables
from memecmd_utils.cm50.tables import Reading
from memecmd_utils.core import paths
from memecmd_utils.schemas import MemeReading, TemplateMeme

REAL = paths.root.parent / "shared" / "corpora" / "cm50"


def reading(read: str, recorded: str, name: str = "m1", template: str = "T") -> Reading:
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
    found = tables.compare([reading("One two tree", "ONE, TWO THREE!")]).iloc[0]
    assert found["character edits"] == 1 and found["characters"] == 13  # the h of three
    assert found["character error rate"] == pytest.approx(1 / 13)
    assert found["word error rate"] == pytest.approx(1 / 3)
    assert found["similarity"] == pytest.approx(1 - 1 / 13)
    assert found["words found"] == pytest.approx(2 * 2 / 6)


def test_a_blank_reading_is_all_wrong_and_a_blank_record_is_left_out() -> None:
    pytest.importorskip("rapidfuzz")
    found = tables.compare([reading("", "some text"), reading("some text", " !")])
    assert len(found) == 1
    row = found.iloc[0]
    assert row["character error rate"] == row["word error rate"] == 1
    assert row["similarity"] == row["words found"] == 0


def test_the_table_has_an_interval_by_template_and_the_pooled_rate() -> None:
    pytest.importorskip("rapidfuzz")
    good = [reading("a long enough text", "a long enough text", f"g{i}", f"T{i % 6}") for i in range(12)]
    bad = [reading("ab", "cd", f"b{i}", f"B{i % 3}") for i in range(6)]
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
    found = tables.embedded_text_table([reading(*pair, name=str(i)) for i, pair in enumerate(texts)])
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
