"""The panel of notebook 04: one dialogue under any weights, threshold, K and strategy."""

from memecmd_utils.panel.widgets import explore

__all__ = ["explore"]
