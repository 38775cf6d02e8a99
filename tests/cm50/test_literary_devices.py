import gzip
import json

import pytest

from memecmd_utils.cm50 import prompts as devices
from memecmd_utils.core import paths

CM50 = paths.root.parent / "shared" / "corpora" / "cm50" / "validation_dev.json.gz"


def test_the_vocabularies_have_the_sizes_that_the_paper_counts() -> None:
    assert len(devices.DEVICES) == len(set(devices.DEVICES)) == 24
    assert len(devices.TWELVE_DEVICES) == len(set(devices.TWELVE_DEVICES)) == 12
    assert len(set(devices.DISREGARDED)) == 14 and len(set(devices.EMOTIONS)) == 15
    # Section 3.1: 26 devices, of which 12 map to FigMemes'. What Table 5 offers is all in there but for
    # hyperbole; irony, exaggeration and contrast came in with the second prompt.
    assert not set(devices.TWELVE_DEVICES) & set(devices.DISREGARDED)
    both = set(devices.TWELVE_DEVICES) | set(devices.DISREGARDED)
    assert set(devices.DEVICES) - both == {"hyperbole"}
    assert both - set(devices.DEVICES) == {"irony", "exaggeration", "contrast"}
    assert set(devices.TABLE_12) == set(devices.CODE_TABLE) == both | {"hyperbole"}


def test_the_twelve_labels_all_map_and_to_all_six() -> None:
    mapped = [devices.to_figmemes([label]) for label in devices.TWELVE_DEVICES]
    assert all(len(labels) == 1 for labels in mapped)
    assert {label for (label,) in mapped} == set(devices.FIGMEMES_LABELS)
    assert [devices.to_figmemes([d]) for d in devices.FIGMEMES_DEVICES] == [
        [label] for label in devices.FIGMEMES_LABELS
    ]
    assert devices.to_figmemes(devices.FIGMEMES_LABELS) == list(devices.FIGMEMES_LABELS)


def test_antithesis_counts_as_nothing_or_as_contrast() -> None:
    assert devices.to_figmemes(["antithesis"]) == []
    assert devices.to_figmemes(["antithesis"], "code") == ["contrast"]
    differ = [d for d in devices.TABLE_12 if devices.to_figmemes([d]) != devices.to_figmemes([d], "code")]
    assert differ == ["antithesis"]


def test_labels_are_mapped_once_and_in_a_fixed_order() -> None:
    assert devices.to_figmemes(["paradox", "sarcasm", "irony", "oxymoron", "pun"]) == ["irony", "contrast"]
    assert devices.to_figmemes(["hyperbole"]) == ["exaggeration"], "by its definition in Table 7"
    assert devices.to_figmemes([]) == devices.to_figmemes(["None"]) == []
    with pytest.raises(ValueError, match="'humor', 'Wit'"):
        devices.to_figmemes(["irony", "humor", "Wit"])


def test_words_are_understood_as_they_are_written() -> None:
    said = [" Irony.", '"sarcasm"', "NONE", "irony", "anthrop", "humor", "**pun**", "", "humor"]
    assert devices.normalise(said) == (["irony", "sarcasm", "anthropomorphism", "pun"], ["humor"])
    assert devices.word(" N/A ") == "none" and devices.word("Joy!") == "joy"


@pytest.mark.corpora
@pytest.mark.skipif(not CM50.is_file(), reason="CM50's validation sample is not here")
def test_every_published_label_is_known_and_maps() -> None:
    with gzip.open(CM50, "rt", encoding="utf-8") as file:
        rows = json.load(file)
    unknown = {w for row in rows for w in devices.normalise(row["literary device"]).unknown}
    assert unknown == set(), "words that are in no list"
    used = {w for row in rows for w in row["literary device"]}
    assert used <= set(devices.TWELVE_DEVICES), "the published labels are the twelve"
    assert all(devices.to_figmemes(row["literary device"]) for row in rows)
    beyond = sorted({row["emotion word"] for row in rows} - {*devices.EMOTIONS, devices.NONE})
    assert beyond == ["amusement", "confusion", "frustration"], "emotion words outside of the list"
