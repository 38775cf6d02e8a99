import io

import numpy as np
import pytest
from PIL import Image

from memecmd_utils import panels
from memecmd_utils.threshold import Gate

GATE = Gate(0.5, 1.0, 1.0)
SCORES = [0.2, 1.1, -np.inf, 0.4, 0.9, 1.6]


def parts(gate: Gate = GATE, scores=SCORES):
    panel = panels.gate_panel("d", scores, gate)
    sliders, picture = panel.children
    return sliders.children, picture


def test_the_first_position_is_drawn_without_a_display(monkeypatch) -> None:
    monkeypatch.delenv("DISPLAY", raising=False)
    (theta0, penalty, decay), picture = parts()
    assert (theta0.value, penalty.value, decay.value) == (0.5, 1.0, 1.0)
    assert Image.open(io.BytesIO(picture.value)).format == "PNG"


@pytest.mark.parametrize(("slider", "value"), [(0, 1.0), (1, 0.0), (2, 0.2)])
def test_a_moved_slider_redraws(slider, value) -> None:
    sliders, picture = parts()
    before = picture.value
    start = sliders[slider].value
    sliders[slider].value = value
    assert picture.value != before
    sliders[slider].value = start
    assert picture.value == before  # the same gate, the same picture


def test_the_picture_shows_what_the_gate_does(monkeypatch) -> None:
    drawn = []
    original = panels.figures.gate_trace

    def note(name, scores, thresholds, sent):
        drawn.append((name, list(thresholds), list(sent)))
        return original(name, scores, thresholds, sent)

    monkeypatch.setattr(panels.figures, "gate_trace", note)
    sliders, _ = parts(Gate(0.5, 0.0, 1.0))
    sliders[0].value = 1.0
    assert [sum(sent) for _, _, sent in drawn] == [3, 2] and drawn[-1][1] == [1.0] * 6


@pytest.mark.parametrize("gate", [Gate(0.7, 5.0, 8.0), Gate(-9.0, 0.2, 0.01), Gate(9.0, 0.2, 1.0)])
def test_sliders_reach_the_gates_own_values(gate) -> None:
    sliders, _ = parts(gate)
    assert tuple(s.value for s in sliders) == (gate.theta0, gate.penalty, gate.decay)


def test_a_dialogue_without_any_score() -> None:
    _, picture = parts(scores=[-np.inf, -np.inf])
    assert picture.value
