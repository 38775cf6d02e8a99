"""Panels with sliders for JupyterLab. A headless run shows their first position.

Pictures go through an `Image` widget: the `Output` widget that `interact` uses never returns under nbclient.
"""

from collections.abc import Sequence

import numpy as np
from ipywidgets import FloatSlider, HBox, Image, VBox

from memecmd_utils import figures
from memecmd_utils.threshold import Gate, simulate


def gate_panel(dialogue_id: str, gate_scores: Sequence[float], gate: Gate) -> VBox:
    """Sliders for theta0, Delta and lambda over one dialogue's trace; every move redraws it."""
    scores = np.asarray(gate_scores, dtype=float)
    reach = [*scores[np.isfinite(scores)], gate.theta0]
    low, high = float(min(reach)) - 1.0, float(max(reach)) + 1.0
    # The ends take in the gate's own values: a slider would cut them off in silence.
    theta0 = FloatSlider(value=gate.theta0, min=low, max=high, step=0.05, description="theta0")
    penalty = FloatSlider(
        value=gate.penalty, min=0.0, max=max(3.0, gate.penalty), step=0.1, description="Delta"
    )
    decay = FloatSlider(
        value=gate.decay, min=min(0.1, gate.decay), max=max(3.0, gate.decay), step=0.1, description="lambda"
    )
    picture = Image(format="png")

    def redraw(_=None) -> None:
        trace = simulate(scores, Gate(theta0.value, penalty.value, decay.value))
        picture.value = figures.png_bytes(
            figures.gate_trace(dialogue_id, scores, trace.thresholds, trace.sent)
        )

    for slider in (theta0, penalty, decay):
        slider.observe(redraw, names="value")
    redraw()
    return VBox([HBox([theta0, penalty, decay]), picture])
