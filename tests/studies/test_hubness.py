import numpy as np
import pytest
import study_world

from memecmd_utils.studies import hubness
from memecmd_utils.studies.hubness import ALL, GATE


@pytest.fixture(scope="module")
def hubs() -> hubness.Hubs:
    """A world with two hubs, retrieved without centring."""
    data = study_world.world(dialogues=12, turns=11, memes=20, hubs=2, centring="none", embedders=("one",))
    return hubness.hubness_study(data)


def test_planted_hubs_are_found_and_cured(hubs: hubness.Hubs) -> None:
    occurrence = hubs.occurrence.set_index(["scores", "k"])
    raw, centred = occurrence.loc[("uncentred", 1)], occurrence.loc[("centred", 1)]
    assert raw["skewness low"] > centred["skewness"] and raw["skewness"] > 2 > raw["by chance"]
    assert raw["share of 5 memes"] > 0.5 > centred["share of 5 memes"] and raw["most"] > centred["most"]
    counts = hubs.counts[(hubs.counts["scores"] == "uncentred") & (hubs.counts["cure"] == "none")]
    assert counts.nlargest(2, "N_1")["meme_id"].sort_values().tolist() == ["m000", "m001"]
    assert counts["N_1"].sum() == 120 and counts["N_1"].max() == raw["most"]
    cures = hubs.cures[hubs.cures["scores"] == "uncentred"].set_index("cure")
    assert cures.loc["none"].filter(like="change").isna().all()
    for cure in ("centring", "CSLS", "inverted softmax"):
        row = cures.loc[cure]
        assert row["skewness change"] < 0 and row["repeats change high"] < 0 < row["nDCG@5 change low"]
        assert row["repeats change"] == pytest.approx(row["repeats"] - cures.loc["none", "repeats"])
        after = hubs.counts[(hubs.counts["scores"] == "uncentred") & (hubs.counts["cure"] == cure)]
        assert after["N_1"].max() < raw["most"] and row["distinct"] == (after["N_1"] > 0).sum()


def test_the_rule_calls_planted_hubs_the_cause(hubs: hubness.Hubs) -> None:
    assert hubs.own == ("one", "uncentred")
    shares = hubs.shares.set_index(["scores", "where"]).loc[("uncentred", ALL)]
    assert (shares["hubs"], shares["even share"]) == (2, 0.1) and shares["share of repeats low"] > 0.3
    verdict = hubness.verdicts(hubs).set_index("scores").loc["uncentred"]
    assert verdict["more than their share"] and verdict["a cure helps"] and verdict["hubs are the cause"]
    text = hubness.hubness_sentence(hubs)
    assert "hubs are called the cause" in text and ", clearly more than 0.10" in text
    assert f"of the {shares['repeats']} repeats" in text


def changed(hubs: hubness.Hubs, **columns: float) -> hubness.Hubs:
    """The same tables with other values in the rows of the run's own scores (made up)."""
    frames = []
    for frame in (hubs.shares.copy(), hubs.cures.copy()):
        for name, value in columns.items():
            if (name := name.replace("_", " ")) in frame:
                frame.loc[frame["scores"] == "uncentred", name] = value
        frames.append(frame)
    return hubness.Hubs(hubs.occurrence, frames[1], frames[0], hubs.counts, hubs.own)


def test_each_condition_of_the_rule_is_needed(hubs: hubness.Hubs) -> None:
    few = changed(hubs, share_of_repeats_low=0.09)
    assert "hubs are not called" in hubness.hubness_sentence(
        few
    ) and "not clearly more" in hubness.hubness_sentence(few)
    idle = changed(hubs, repeats_change_high=0.001)
    assert "hubs are not called" in hubness.hubness_sentence(
        idle
    ) and ", clearly more" in hubness.hubness_sentence(idle)
    other = changed(hubs, skewness_change=0.1)  # repeats fall, but not with the skewness
    assert "hubs are not called" in hubness.hubness_sentence(other)
    assert "no cure lowers the skewness" in hubness.hubness_sentence(other)
    scarce = hubness.hubness_sentence(changed(hubs, dialogues=5))
    assert "clear" not in scarce and "which so few dialogues cannot tell" in scarce
    none = changed(hubs, repeats=0)
    assert "no repeat to explain" in hubness.hubness_sentence(none)


def test_hubs_are_those_of_the_other_half() -> None:
    data = study_world.world(dialogues=4, turns=11, memes=10, embedders=("one",))
    turns = hubness.Turns(data)
    # In half a meme 3 is always the best, in half b meme 7: neither is a hub of the other half.
    scores = np.zeros((40, 10))
    scores[data.half == "a", 3] = scores[data.half == "b", 7] = 1.0
    rows = hubness._shares(turns, turns.count(scores))
    assert [row["where"] for row in rows] == [ALL, GATE]
    assert rows[0]["repeats"] == 36 and rows[0]["share of repeats"] == 0 == rows[0]["share of turns"]
    scores[:, 7] += 2.0
    assert hubness._shares(turns, turns.count(scores))[0]["share of repeats"] == 1


@pytest.mark.parametrize(
    ("dialogues", "memes", "graded"), [(1, 12, True), (8, 3, True), (8, 12, False), (1, 3, False)]
)
def test_it_works_with_little(dialogues: int, memes: int, graded: bool) -> None:
    data = study_world.world(dialogues=dialogues, memes=memes, graded=graded, embedders=("other", "third"))
    found = hubness.hubness_study(data)
    assert set(found.occurrence["embedder"]) == {"other", "third"} and found.own == ("other", "centred")
    assert found.cures["nDCG@5"].notna().all() == graded == found.cures["judged@5"].notna().all()
    assert found.cures["repeats"].notna().all() and found.cures["skewness low"].isna().all() == (
        dialogues < 5
    )
    text = hubness.hubness_sentence(found)
    assert text.endswith(".") and "nan" not in text
