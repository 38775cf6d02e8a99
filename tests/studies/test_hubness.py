import numpy as np
import pytest
import scipy.stats
import study_world

from memecmd_utils import retrieval, statistics
from memecmd_utils.evaluation import graded_turns
from memecmd_utils.retrieval import centre
from memecmd_utils.statistics import LeftOut
from memecmd_utils.studies import hubness
from memecmd_utils.studies.hubness import ALL, GATE, GRADED, skewness


def test_skewness_is_the_usual_one() -> None:
    counts = np.random.default_rng(0).poisson(2, size=(4, 50)).astype(float)
    assert np.allclose(hubness.skewness(counts), scipy.stats.skew(counts, axis=1))
    assert np.allclose(hubness.skewness(counts / 7), hubness.skewness(counts))
    assert np.isnan(hubness.skewness(np.ones(5)))


@pytest.mark.parametrize("dialogues", [10, 30])
def test_the_interval_of_a_skewness_covers_as_it_says(dialogues) -> None:
    """Memes of uneven popularity, which differs by dialogue; the truth is the mean skewness."""
    rng, found = np.random.default_rng(1), []
    popular = rng.gamma(0.5, size=25)
    for _ in range(200):
        tastes = popular * rng.gamma(1.0, size=(dialogues, 25))
        counts = np.array([rng.multinomial(17, taste / taste.sum()) for taste in tastes])
        total = counts.sum(axis=0)
        without = hubness.skewness((total - counts).astype(float))
        share = np.full(dialogues, 1 / dialogues)
        found.append(LeftOut(hubness.skewness(total.astype(float)), without, share))
    truth = np.mean([one.value for one in found])
    held = [low <= truth <= high for low, high in map(statistics.interval, found)]
    assert np.mean(held) >= 0.93 - 3 * np.sqrt(0.93 * 0.07 / 200)


def test_what_is_counted_of_a_ranking() -> None:
    data = study_world.world(dialogues=6, turns=7, memes=9)
    turns = hubness.Turns(data)
    assert [len(turns.rows[group]) for group in (ALL, GATE)] == [36, 12]
    assert turns.clusters[GATE][:3] == ["d00", "d00", "d01"]
    scores = np.zeros((36, 9))
    scores[:, 4] = 1.0  # the same meme everywhere
    found = turns.count(scores)
    assert found.best[:, 0].tolist() == [4] * 36 and found.best[0, 1:3].tolist() == [0, 1]
    assert found.n_k(1).tolist() == [0, 0, 0, 0, 36, 0, 0, 0, 0] and found.n_k(5).sum() == 180
    assert found.n_k(1, np.array([0, 1])).sum() == 2
    assert found.values[ALL][:, 0].sum() == 30 and found.values[GATE][:, 0].sum() == 6
    known = graded_turns.graded_of_study(data)
    assert np.array_equal(found.values[GRADED][:, :3], known.measure(scores))
    assert np.array_equal(found.values[GRADED][:, 3], known.measure(scores, judged_only=True)[:, 1])
    # Whichever dialogue is left out, one meme takes all.
    assert np.allclose(found.skewness.without, hubness.skewness(found.n_k(1)))
    assert found.skewness.value == hubness.skewness(found.n_k(1)) and found.skewness.clusters == 6


def test_dialogues_are_left_out_not_turns() -> None:
    data = study_world.world(dialogues=20, turns=11, memes=20)
    turns = hubness.Turns(data)
    of_dialogue = np.zeros((200, 20))
    of_dialogue[np.arange(200), np.arange(200) // 10] = 1.0  # a meme of its own for every dialogue
    mixed = np.zeros((200, 20))
    mixed[np.arange(200), np.arange(200) % 20] = 1.0
    bound, free = turns.count(of_dialogue), turns.count(mixed)
    assert bound.n_k(1).tolist() == free.n_k(1).tolist() == [10] * 20
    # Without its dialogue one meme is left without a turn; mixed, ten of twenty memes lose one turn each.
    alone = scipy.stats.skew([0.0] + [10.0] * 19)
    assert np.allclose(bound.skewness.without, alone) and np.allclose(free.skewness.without, 0)


def with_hub(turns: int, seed: int = 0, memes: int = 30) -> np.ndarray:
    """Scores of memes of which the first is near to everything and the last to nothing."""
    scores = np.random.default_rng(seed).normal(size=(turns, memes)) * 0.05
    scores[:, 0] += 0.15
    scores[:, -1] -= 0.15
    return scores


def test_csls_is_twice_the_score_minus_the_mean_of_the_ten_nearest() -> None:
    fit = np.arange(12.0)[:, None] * [1.0, 10.0]
    scores = np.array([[5.0, 60.0]])
    assert hubness.csls(scores, fit).tolist() == [[10 - 6.5, 120 - 65.0]]  # 2..11: 6.5
    assert hubness.csls(scores, fit[:1]).tolist() == [[10.0, 120.0]]  # fewer turns than neighbours


def test_the_inverted_softmax_is_the_logarithm_of_a_probability(monkeypatch) -> None:
    monkeypatch.setattr(hubness, "BETA", 3.0)
    fit = np.random.default_rng(2).normal(size=(20, 6))
    mine = hubness.inverted_softmax(fit, fit)
    assert np.allclose(np.exp(3 * mine).sum(axis=0), 1)  # over the turns, not over the memes
    direct = np.exp(3 * fit) / np.exp(3 * fit).sum(axis=0)
    assert np.allclose(np.exp(3 * mine), direct)
    assert np.isfinite(hubness.inverted_softmax(fit * 1e4, fit * 1e4)).all()


def test_both_take_the_hub_down_and_the_orphan_up() -> None:
    scores, fit = with_hub(200), with_hub(200, seed=1)

    def n_1(values: np.ndarray) -> np.ndarray:
        return np.bincount(values.argmax(axis=1), minlength=30)

    before, after = n_1(scores), n_1(hubness.csls(scores, fit))
    assert before[0] > 150 and before[-1] == 0
    assert after[0] < before[0] / 2 and skewness(after) < skewness(before)  # it takes half of an offset
    after = n_1(hubness.inverted_softmax(scores, fit))
    assert after[0] < 15 and after[-1] > 0 and skewness(after) < skewness(before) / 5


def test_every_cure_is_estimated_on_the_other_half() -> None:
    data = study_world.world(dialogues=6, hubs=2, memes=8)
    found = hubness.rankings(data, "one")
    assert list(found) == [
        ("uncentred", "none"),
        ("uncentred", "centring"),
        ("uncentred", "CSLS"),
        ("uncentred", "inverted softmax"),
        ("centred", "none"),
        ("centred", "CSLS"),
        ("centred", "inverted softmax"),
    ]
    a, b = (np.flatnonzero(data.half == name) for name in "ab")
    for start, centring in hubness.STARTS.items():
        plain = retrieval.combine(data.terms("one", centring), data.profile.retrieval.weights)
        assert np.array_equal(found[start, "none"], plain)
        assert np.array_equal(found[start, "CSLS"][a], hubness.csls(plain[a], plain[b]))
        assert np.array_equal(
            found[start, "inverted softmax"][b], hubness.inverted_softmax(plain[b], plain[a])
        )


def test_centring_uses_the_other_half_for_the_turns_and_all_memes_for_the_memes() -> None:
    data = study_world.world(dialogues=6, memes=8, weights=(0.0, 0.0, 1.0, 0.0))
    turns = study_world.encode([s.emotion for s in data.summaries], "query")
    memes = centre(study_world.encode([a.emotion for a in data.annotations], "document"))
    a, b = (np.flatnonzero(data.half == name) for name in "ab")
    got = hubness.centred(data, "one")
    assert np.allclose(got[a], centre(turns[a], turns[b].mean(axis=0)) @ memes.T, atol=1e-6)
    assert np.allclose(got[b], centre(turns[b], turns[a].mean(axis=0)) @ memes.T, atol=1e-6)
    run = retrieval.combine(data.terms("one", "attribute"), data.profile.retrieval.weights)
    assert not np.allclose(got, run, atol=1e-6) and np.corrcoef(got.ravel(), run.ravel())[0, 1] > 0.95


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
