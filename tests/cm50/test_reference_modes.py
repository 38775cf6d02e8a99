import pytest

from memecmd_utils.cm50 import metrics as modes
from memecmd_utils.cm50.metrics import NOT_COMPUTED, SUPPORTED, WIRING, Score, TextMetric

P = [["a cat"], ["a dog"]]
R = [["cat.", "The cat", "big cat"], ["dogs"]]


class Shared(TextMetric):
    """Made up: share of a prediction's characters that its best reference has, and the mean."""

    def __init__(self, name: str = "BERTScore") -> None:
        self.name = name
        self.seen: list = []

    def missing(self) -> str:
        return ""

    def _score(self, predictions, references):
        self.seen = list(zip(predictions, references, strict=True))
        items = tuple(max(len(set(p) & set(r)) / len(set(p)) for r in refs) for p, refs in self.seen)
        return Score(sum(items) / len(items), items, "made up")


def test_extended_repeats_the_prediction_for_each_reference() -> None:
    found = modes.expand("extended", P, R)
    assert found.predictions == ["a cat", "a cat", "a cat", "a dog"]
    assert found.references == [["cat."], ["The cat"], ["big cat"], ["dogs"]]
    assert found.owner == [0, 0, 0, 1]


def test_concatenated_joins_references_without_a_blank_as_the_code_does() -> None:
    found = modes.expand("concatenated", P, R)
    assert found.predictions == ["a cat", "a dog"] and found.references == [["cat.The catbig cat"], ["dogs"]]


def test_best_match_takes_the_highest_of_each_prediction() -> None:
    metric = Shared("BLEURT")
    found = modes.score(metric, "best match", P, R)
    # "a cat" has {a, c, t, blank}: 3/4 in "cat.", 4/4 in "The cat", 3/4... ; "a dog" {a, blank, d, o, g}: 3/5
    assert found.items == (1.0, 3 / 5) and found.value == pytest.approx(0.8)
    extended = modes.score(metric, "extended", P, R)
    assert extended.items == (3 / 4, 1.0, 4 / 4, 3 / 5) and extended.value == pytest.approx(3.35 / 4)


def test_fully_concatenated_joins_both_sides_and_needs_several_predictions() -> None:
    several = [["a cat", "it sleeps"], ["a dog"]]
    found = modes.expand("fully-concatenated", several, R)
    assert found.predictions == ["a cat it sleeps", "a dog"]
    assert found.references == [["cat. The cat big cat"], ["dogs"]] and found.owner == [0, 1]
    metric = Shared()
    assert modes.score(metric, "fully-concatenated", several, R).value is not None
    assert modes.score(metric, "fully-concatenated", P, R) == Score(None)  # a blank cell


def test_a_metric_that_a_mode_does_not_have_leaves_the_cell_blank() -> None:
    assert {mode: sorted(names) for mode, names in SUPPORTED.items() if len(names) < 5} == {
        "multi-reference": ["BERTScore", "BLEU-4", "ROUGE-L"],
        "best match": ["BERTScore", "BLEURT"],
    }
    for name in ("BLEURT", "ChrF"):
        metric = Shared(name)
        assert modes.score(metric, "multi-reference", P, R) == Score(None) and metric.seen == []
        assert modes.cell(Score(None)) == ""


def test_a_cell_says_why_there_is_no_number() -> None:
    assert modes.cell(Score(None, note=f"{NOT_COMPUTED}: give weights")) == NOT_COMPUTED
    assert modes.cell(Score(0.5, (0.5,), "x", WIRING)) == WIRING  # never a number of random weights
    assert modes.cell(Score(0.0)) == "0.000"
