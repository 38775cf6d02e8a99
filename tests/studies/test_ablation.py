from dataclasses import replace

import numpy as np
import pytest
import study_world

from memecmd_utils import retrieval
from memecmd_utils.evaluation import graded_turns
from memecmd_utils.studies import ablation

# What carries the meaning in the made-up world, by term; delta (S-) never does.
FIELD = {"scenario": "alpha", "emotion": "beta", "motivation": "gamma"}


@pytest.mark.parametrize("carrier", FIELD)
def test_the_term_that_carries_the_meaning_is_the_one_that_helps(carrier: str) -> None:
    data = study_world.world(carried_by={carrier})
    frame = ablation.leave_one_out(data)
    assert list(frame.columns) == list(ablation.ABLATION) and len(frame) == 2 * 4 * 2
    rows = frame[(frame["measure"] == "nDCG@5") & (frame["embedder"] == "one")].set_index("without")
    others = [term for term in ablation.TERMS if term not in (FIELD[carrier], "delta")]
    assert rows.loc[FIELD[carrier], "difference low"] > 0.1
    assert (rows.loc[others, "difference high"] < 0).all()  # they speak of another meme
    assert np.allclose(rows["difference"], rows["full"] - rows["rest"])
    text = ablation.ablation_sentence(frame)
    hurt = text.split("Under two")[0].split("clearly hurts: ")[1]
    assert f"clearly helps: {FIELD[carrier]}" in text and all(term in hurt for term in others)
    assert "under one" in text and "Under two" in text and text.endswith(".")


def test_ndcg_of_weights_is_that_of_their_scores() -> None:
    data = study_world.world(dialogues=4)
    known, terms = graded_turns.graded_of_study(data), data.terms("one", "attribute")
    values = ablation.ndcg_by_weights(terms, known)
    for number in range(0, 286, 40):
        scores = retrieval.combine(terms, ablation.TENTHS[number] / 10)
        assert values[number] == pytest.approx(known.measure(scores)[:, 1])


def test_weights_are_fitted_on_one_half_and_measured_on_the_other() -> None:
    data = study_world.world(carried_by={"emotion"}, dialogues=10)
    found = ablation.fit_weights(data)
    assert list(found.halves.columns) == list(ablation.HALVES)
    assert list(found.joined.columns) == list(ablation.JOINED)
    mine = found.halves[found.halves["embedder"] == "one"].set_index("used on")
    assert mine["fitted on"].to_dict() == {"a": "b", "b": "a"}
    assert (mine["beta"] >= 0.5).all() and np.allclose(mine[list(ablation.TERMS)].sum(axis=1), 1)
    row = found.joined.set_index("embedder").loc["one"]
    assert row["difference low"] > 0 and row["held out"] and row["turns"] == mine["turns"].sum()
    share = mine["turns"] / mine["turns"].sum()
    assert row["fitted"] == pytest.approx((share * mine["nDCG@5 used on"]).sum())
    assert row["equal"] == pytest.approx((share * mine["equal weights"]).sum())
    assert row["difference"] == pytest.approx(row["fitted"] - row["equal"])
    # Weights of one half cannot do better there than those that are best there.
    assert row["optimism"] >= 0
    text = ablation.weights_sentence(found)
    assert "clearly better than" in text and "nDCG@5" in text and text.startswith("Under one")


def test_a_half_does_not_see_its_own_grades() -> None:
    # Emotion carries the meaning in half a, motivation in half b: each half must get the other's weights.
    one, other = study_world.world(carried_by={"emotion"}), study_world.world(carried_by={"motivation"})
    half = dict(zip(one.clusters, one.half.tolist(), strict=True))
    mixed = [
        (p if half[p.dialogue_id] == "a" else q) for p, q in zip(one.dialogues, other.dialogues, strict=True)
    ]
    data = replace(one, dialogues=mixed, _terms={})
    halves = ablation.fit_weights(data).halves.groupby("used on").first()
    assert halves.loc["a", "gamma"] > halves.loc["a", "beta"]
    assert halves.loc["b", "beta"] > halves.loc["b", "gamma"]
    joined = ablation.fit_weights(data).joined.iloc[0]
    assert joined["difference high"] < 0 < joined["optimism low"]
    assert "clearly worse than" in ablation.weights_sentence(ablation.fit_weights(data))


def test_without_grades_the_tables_are_empty_and_the_sentences_say_why() -> None:
    data = study_world.world(graded=False)
    frame, found = ablation.leave_one_out(data), ablation.fit_weights(data)
    assert frame.empty and list(frame.columns) == list(ablation.ABLATION)
    assert found.halves.empty and found.joined.empty and list(found.joined.columns) == list(ablation.JOINED)
    assert "Without graded memes" in ablation.ablation_sentence(frame)
    assert "Without graded memes" in ablation.weights_sentence(found)
