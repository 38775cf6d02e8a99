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


def test_a_measure_that_was_not_asked_has_no_share() -> None:
    of = specification_curve.shares_by_measure(WORLDS).set_index("measure")
    assert of.loc["judge", "worlds"] == 0 and of.loc["judge", "not asked"] == 1
    assert of.loc["judge"][["sign", "clear", "sign if told"]].isna().all()
    assert of.loc["x", "clear"] == 2 / 4 and of.loc["y", "sign if told"] == 1 / 2


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


def test_the_sentence_follows_the_shares() -> None:
    text = specification_curve.specification_sentence(WORLDS)
    assert text.startswith(
        "Over 49 dialogues, Greedy beats Random: in 38% of 8 worlds, clearly in 25%, clearly the opposite in "
        "12% (38% send too little to tell), moved most by embedder (best: one); the decaying threshold"
    )
    assert text.endswith("in 100% of 1 worlds, clearly in 100%, clearly the opposite in 0%.")
    assert "Greedy" not in specification_curve.specification_sentence(WORLDS, [7])
    assert "clearly in 0%" in specification_curve.specification_sentence(WORLDS.assign(state="not"))


def test_few_dialogues_have_a_sign_and_clear_nothing() -> None:
    few = WORLDS.assign(dialogues=5, state="not")
    found = specification_curve.shares_by_claim(few)
    assert found[["clear", "clearly opposite"]].isna().all(axis=None) and found["sign"].eq(0).all()
    text = specification_curve.specification_sentence(few)
    assert text.startswith("Over 5 dialogues (too few for an interval), Greedy") and "clear" not in text
    assert specification_curve.influential_choices(few)["clear"].isna().all()


@pytest.mark.parametrize("worlds", [WORLDS.iloc[:0], WORLDS[WORLDS["state"] == "not asked"]])
def test_nothing_measured_is_said(worlds) -> None:
    assert "None" not in specification_curve.specification_sentence(worlds)
    assert specification_curve.specification_sentence(worlds).startswith(
        "No reading of the paper could be measured"
    )
    for table in (
        specification_curve.shares_by_claim,
        specification_curve.shares_by_measure,
        specification_curve.shares_by_choice,
    ):
        assert "clearly opposite" in table(worlds.iloc[:0])
    assert specification_curve.influential_choices(worlds.iloc[:0]).empty
