import numpy as np
import study_world

from memecmd_utils.retrieval import scoring
from memecmd_utils.retrieval.scoring import centre
from memecmd_utils.studies import hubness
from memecmd_utils.studies.hubness import skewness


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
    assert hubness.csls(scores, fit, neighbours=1).tolist() == [[10 - 11.0, 120 - 110.0]]


def test_the_inverted_softmax_is_the_logarithm_of_a_probability() -> None:
    fit = np.random.default_rng(2).normal(size=(20, 6))
    mine = hubness.inverted_softmax(fit, fit, beta=3.0)
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
        plain = scoring.combine(data.terms("one", centring), data.profile.retrieval.weights)
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
    run = scoring.combine(data.terms("one", "attribute"), data.profile.retrieval.weights)
    assert not np.allclose(got, run, atol=1e-6) and np.corrcoef(got.ravel(), run.ravel())[0, 1] > 0.95
