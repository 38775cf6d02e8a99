import pandas as pd
import pytest

from memecmd_utils.studies import specification_curve


def frame(*rows) -> pd.DataFrame:
    """Worlds of (claim, embedder, gate, measure, state); the other choices do not matter."""
    cells = [
        (claim, embedder, "none", "+", "equal", "–", gate, "–", measure, 0.0, 0.0, 0.0, dialogues, state)
        for dialogues, (claim, embedder, gate, measure, state) in enumerate(rows, 40)
    ]
    return pd.DataFrame(cells, columns=list(specification_curve.COLUMNS))


WORLDS = frame(
    (1, "one", "raw", "x", "clear"),
    (1, "one", "raw", "y", "sign only"),
    (1, "one", "standard", "x", "cannot tell"),
    (1, "one", "standard", "y", "cannot tell"),
    (1, "other", "raw", "x", "not"),
    (1, "other", "raw", "y", "clearly opposite"),
    (1, "other", "standard", "x", "clear"),
    (1, "other", "standard", "y", "cannot tell"),
    (1, "other", "standard", "judge", "not asked"),
    (7, "one", "raw", "z", "clear"),
)


def test_shares_by_hand() -> None:
    """Eight of nine worlds count: 2 clear, 1 sign only, 1 not, 1 opposite, 3 silent; five can tell."""
    first, second = specification_curve.shares_by_claim(WORLDS).to_dict("records")
    assert first == {
        "claim": "Greedy beats Random", "worlds": 8, "dialogues": 47, "sign": 3 / 8, "clear": 2 / 8,
        "clearly opposite": 1 / 8, "cannot tell": 3 / 8, "sign if told": 3 / 5, "not asked": 1,
    }  # fmt: skip
    assert second["worlds"] == 1 and second["clear"] == 1


def test_choices_that_make_no_difference_are_left_out() -> None:
    table = specification_curve.shares_by_choice(WORLDS)
    assert list(dict.fromkeys(table["choice"])) == ["embedder", "gate", "measure"]
    assert set(table["claim"]) == {"Greedy beats Random"}  # claim 7 has one world
    of = table.set_index(["choice", "value"])
    assert of.loc[("embedder", "one"), "sign if told"] == 1
    assert of.loc[("embedder", "other"), "sign if told"] == pytest.approx(1 / 3)


def test_what_matters_most_comes_first() -> None:
    table = specification_curve.influential_choices(WORLDS)
    first = table.iloc[0]
    assert (first["choice"], first["best value"], first["worst value"]) == ("embedder", "one", "other")
    assert first["sign"] == pytest.approx(2 / 3) and first["told"] == pytest.approx(1 / 4)
    assert table["sign"].tolist() == sorted(table["sign"], reverse=True)
