import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memecmd_utils.retrieval.gate import (
    Gate,
    calibrate_many,
    calibrate_theta0,
    simulate,
    simulate_many,
    standard_scale,
)

QUICK = settings(max_examples=30, deadline=None)
PAPER = Gate(theta0=0.7, penalty=0.2, decay=1.0)
scores = st.lists(st.one_of(st.floats(-3, 3), st.just(-math.inf)), min_size=1, max_size=17).map(np.array)


def test_equation_23_by_hand() -> None:
    """theta_t = .7 + .2 e^-k: k = 1: .7 + .2 * .367879 = .773576; k = 2: .7 + .2 * .135335 = .727067;
    k = 0: .7 + .2 = .9; k infinite: .7."""
    assert PAPER.threshold(1) == pytest.approx(0.773576, abs=1e-6)
    assert PAPER.threshold(2) == pytest.approx(0.727067, abs=1e-6)
    assert PAPER.threshold(0) == pytest.approx(0.9)
    assert PAPER.threshold(math.inf) == 0.7


def test_the_other_forms_by_hand() -> None:
    """Linear, a quarter of .2 a turn: .7 + .2 * (1, .75, .5, .25, 0, 0) for k = 0..5. Fixed: .7 always."""
    linear = Gate(0.7, 0.2, 0.25, "linear")
    assert [linear.threshold(k) for k in range(6)] == pytest.approx([0.9, 0.85, 0.8, 0.75, 0.7, 0.7])
    fixed = Gate(0.7, 0.2, 0.25, "fixed")
    assert {fixed.threshold(k) for k in (0, 1, 5, math.inf)} == {0.7} == {linear.threshold(math.inf)}


def test_infinite_k_gives_theta0_even_without_decay() -> None:
    """e^(-lambda k) = 0 for infinite k by the paper's convention; 0 * inf would be NaN and never send."""
    assert Gate(0.7, 0.2, 0.0).threshold(math.inf) == 0.7
    assert simulate(np.array([0.8]), Gate(0.7, 0.2, 0.0)).sent[0]


def test_equality_does_not_send() -> None:
    assert simulate(np.array([0.7, np.nextafter(0.7, 1)]), PAPER).sent.tolist() == [False, True]


def test_turns_without_a_score_never_send_but_count() -> None:
    """After the meme at turn 1 two empty turns pass: k = 3 at turn 4, where .72 > .70996 sends."""
    gaps = simulate(np.array([0.72, -np.inf, -np.inf, 0.72]), PAPER)
    assert gaps.sent.tolist() == [True, False, False, True]
    assert simulate(np.array([0.72, -np.inf, 0.72]), PAPER).sent.tolist() == [True, False, False]
    assert not simulate(np.full(4, -np.inf), Gate(-1e300, 0.0, 1.0)).sent.any()


@QUICK
@given(scores, st.floats(-3, 3), st.floats(0, 2), st.floats(0, 2), st.floats(0.1, 3))
def test_raising_theta0_never_makes_the_first_meme_earlier(scores, theta0, more, penalty, decay) -> None:
    def first(theta):
        sent = simulate(scores, Gate(theta, penalty, decay)).sent
        return int(sent.argmax()) if sent.any() else len(scores)

    assert first(theta0 + more) >= first(theta0)


@QUICK
@given(scores, st.floats(-3, 3), st.floats(0, 2), st.floats(0.1, 3))
def test_trace_follows_the_definition(scores, theta0, penalty, decay) -> None:
    gate = Gate(theta0, penalty, decay)
    trace = simulate(scores, gate)
    for t, score in enumerate(scores):
        earlier = np.flatnonzero(trace.sent[:t])
        k = t - earlier[-1] if len(earlier) else math.inf
        assert trace.thresholds[t] == gate.threshold(k)
        assert trace.sent[t] == (score > gate.threshold(k))


def meme_rate(dialogues, gate) -> float:
    """Share of turns with a meme over several dialogues."""
    return float(np.mean(np.concatenate([simulate(scores, gate).sent for scores in dialogues])))


@QUICK
@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from([0.0, 0.2, 1.0, 2.0]),
    st.sampled_from([0.2, 1.0, 3.0]),
    st.floats(0.05, 0.6),
)
def test_calibrated_theta0_is_as_near_as_any_on_a_grid(seed, penalty, decay, wanted) -> None:
    rng = np.random.default_rng(seed)
    dialogues = [rng.standard_normal(17) for _ in range(4)]
    dialogues[0][rng.integers(17)] = -np.inf

    def gap(theta):
        return abs(meme_rate(dialogues, Gate(theta, penalty, decay)) - wanted) * 4 * 17

    grid = np.linspace(-4 - penalty, 4, 120)
    assert gap(calibrate_theta0(dialogues, penalty, decay, wanted)) <= min(map(gap, grid)) + 1


def test_standard_scale_by_hand() -> None:
    """Scores 1, 3 | 5, 7 and one turn without: mean 4, population std sqrt((9+1+1+9)/4) = sqrt(5)."""
    scale = standard_scale([np.array([1.0, 3.0, -np.inf]), np.array([5.0, 7.0])])
    assert (scale.mean, scale.std) == (4.0, pytest.approx(5**0.5))
    assert scale.apply(np.array([4.0, -np.inf])).tolist() == [0.0, -np.inf]
    assert standard_scale([np.array([2.0, 2.0])]).std == 1.0


@pytest.mark.parametrize("value", [0.1, 0.7, 1 / 3, -0.3, 1e-3, 123.4])
@pytest.mark.parametrize("n", [1, 3, 7, 1000])
def test_equal_scores_have_no_spread_to_divide_by(value, n) -> None:
    """NumPy's deviation of three times 0.1 is 1e-17: z would be a matter of rounding, times 1e17."""
    equal = np.full(n, value)
    assert standard_scale([equal]).std == 1.0
    assert standard_scale([equal * (1 + 1e-12 * np.arange(n) / n)]).std == 1.0
    assert np.abs(standard_scale([equal]).apply(np.array([value, value + 0.5]))).max() < 0.6
    assert standard_scale([np.array([value, value + 1e-4])]).std == pytest.approx(5e-5)


def test_calibration_without_any_score_says_so() -> None:
    with pytest.raises(ValueError, match="at least one scored turn"):
        standard_scale([np.array([-np.inf])])
    with pytest.raises(ValueError, match="at least one scored turn"):
        calibrate_theta0([], 1.0, 1.0, 0.3)


forms = st.sampled_from(["exponential", "linear", "fixed"])


@QUICK
@given(st.integers(0, 2**32 - 1), st.floats(0, 2), st.floats(0.1, 1), forms)
def test_many_dialogues_at_once_send_as_one_by_one(seed, penalty, decay, form) -> None:
    rng = np.random.default_rng(seed)
    scores, theta0 = rng.standard_normal((3, 4, 9)), rng.standard_normal(3)
    scores[rng.random(scores.shape) < 0.1] = -np.inf
    found = simulate_many(scores, Gate(0.0, penalty, decay, form), theta0[:, None])
    for i, dialogues in enumerate(scores):
        for j, one in enumerate(dialogues):
            gate = Gate(theta0[i], penalty, decay, form)
            assert found[i, j].tolist() == simulate(one, gate).sent.tolist()


def test_each_set_is_calibrated_as_if_alone_and_to_its_own_rate() -> None:
    scores = np.random.default_rng(6).standard_normal((3, 5, 8))
    wanted = np.array([0.2, 0.3, 0.6])
    found = calibrate_many(scores, Gate(0.0, 1.0, 1.0), wanted, 40)
    alone = [calibrate_theta0(list(s), 1.0, 1.0, w) for s, w in zip(scores, wanted, strict=True)]
    assert found.tolist() == alone and len(set(alone)) == 3
