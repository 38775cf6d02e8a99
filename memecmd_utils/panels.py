"""Panels with sliders for JupyterLab. A headless run shows their first position.

Pictures go through an `Image` widget: the `Output` widget that `interact` uses never returns under nbclient.
"""

import io
from collections.abc import Sequence

import numpy as np
from ipywidgets import FloatSlider, HBox, Image, VBox

from memecmd_utils import figures
from memecmd_utils.threshold import Gate, simulate


def _png(fig) -> bytes:
    buffer = io.BytesIO()
    with figures.style():
        fig.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()


def gate_panel(dialogue_id: str, gate_scores: Sequence[float], gate: Gate) -> VBox:
    """Sliders for theta0, Delta and lambda over one dialogue's trace; every move redraws it."""
    scores = np.asarray(gate_scores, dtype=float)
    finite = scores[np.isfinite(scores)]
    low, high = float(finite.min()) - 1.0, float(finite.max()) + 1.0
    theta0 = FloatSlider(value=gate.theta0, min=low, max=high, step=0.05, description="theta0")
    penalty = FloatSlider(value=gate.penalty, min=0.0, max=3.0, step=0.1, description="Delta")
    decay = FloatSlider(value=gate.decay, min=0.1, max=3.0, step=0.1, description="lambda")
    picture = Image(format="png")

    def redraw(_=None) -> None:
        trace = simulate(scores, Gate(theta0.value, penalty.value, decay.value))
        picture.value = _png(figures.gate_trace(dialogue_id, scores, trace.thresholds, trace.sent))

    for slider in (theta0, penalty, decay):
        slider.observe(redraw, names="value")
    redraw()
    return VBox([HBox([theta0, penalty, decay]), picture])
