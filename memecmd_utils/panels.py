"""The panel of notebook 04: every knob of the retrieval beside the chat, and a chat of one's own.

`explore` gives the live panel in JupyterLab and a picture of its first position in a headless run.
Parts are `HTML` widgets whose text is replaced: the `Output` widget never returns under nbclient.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import ipywidgets

from memecmd_utils import (
    chat_html,
    explorer_view,
    headless,
    library_search,
    panel_parts,
    schemas,
    screenshots,
)
from memecmd_utils.chat_html import Thumbnails
from memecmd_utils.explorer import Explorer, Settings, View
from memecmd_utils.library_search import Library
from memecmd_utils.panel_parts import LABEL, WIDE, Knob, told
from memecmd_utils.paste_panel import PasteTab
from memecmd_utils.retrieval import MemeIndex
from memecmd_utils.runs import Run
from memecmd_utils.schemas import Meme
from memecmd_utils.selection import ScoredDialogue

STRATEGIES = {f"{named.label}: {named.does}": name for name, named in schemas.STRATEGIES.items()}
WEIGHTS = ("w₁ · α  scenario", "w₂ · δ  unfitting", "w₃ · β  emotion", "w₄ · γ  motivation")
MOST_K = 10


def explore(run: Run, scored: Sequence[ScoredDialogue], index: MemeIndex, memes: Mapping[str, Meme]) -> Any:
    """The panel for a run; where nobody can turn a knob (`headless`), a picture of its first position."""
    explorer = Explorer(scored, index, run.profile)
    folder = run.read("memes.parquet").parent
    files = {name: folder / meme.file for name, meme in memes.items()}
    if headless.is_headless():
        from IPython.display import Image as Shown

        view = explorer.select(explorer.own_settings())
        picture = explorer_view.still(view, files, run.profile.meme_position)
        return Shown(screenshots.encode(picture, "jpeg"), width=picture.width)
    first = DialogueTab(explorer, memes, files)
    if index.search is None:  # the pictures of a large library would fill the memory
        first.pictures.make_ahead()
    library = Library(run, memes, index, library_search.unrecorded(run, run))
    second = PasteTab(library, first)
    both = ipywidgets.Tab([first.box, second.box], titles=["A dialogue of the run", "A chat of your own"])
    return ipywidgets.VBox([ipywidgets.HTML(chat_html.styles()), both])


class DialogueTab:
    """Knobs and picker beside the chat; `box` is what is shown, `view` what it shows."""

    view: View

    def __init__(self, explorer: Explorer, memes: Mapping[str, Meme], files: Mapping[str, Path]) -> None:
        self.explorer, self.pictures, self._memes = explorer, Thumbnails(files), memes
        self.theta0_is_fitted = explorer.profile.theta0 == "auto"
        own, (low, high) = explorer.own_settings(), explorer.gate_range()
        wide = {"layout": ipywidgets.Layout(width=WIDE), "style": LABEL}
        names = {f"{name} · {d.title}": name for name, d in explorer.dialogues.items()}
        self.dialogue = ipywidgets.Dropdown(options=names, description="dialogue", **wide)
        self.strategy = ipywidgets.Dropdown(
            options=STRATEGIES, value=own.strategy, description="strategy", **wide
        )
        self.weights = [
            Knob(value, -1.0, 1.0, 2, text, "+") for value, text in zip(own.weights, WEIGHTS, strict=True)
        ]
        # Half a spread beyond the scores: there every turn, or none, has a meme.
        pad = (high - low) / 2 or 1.0
        digits = 2 if pad > 0.2 else 4  # raw scores of E5 differ by a hundredth
        self.theta0 = Knob(own.theta0, low - pad, high + pad, digits, "θ₀", "+")
        self.penalty = Knob(own.penalty, 0.0, 3.0 if digits == 2 else 4 * pad, digits, "Δ  penalty")
        self.decay = Knob(own.decay, 0.05, 3.0, 2, "λ  decay")
        self.top_k = ipywidgets.IntSlider(own.top_k, 1, max(MOST_K, own.top_k), description="K", **wide)
        rate = explorer.profile.wanted_rate
        self.fit = ipywidgets.Button(description=f"Fit θ₀ to {rate:.0%} of the turns")
        self.reset = ipywidgets.Button(description="Back to the profile")
        self.chat, self.chart, self.facts, self.note = (ipywidgets.HTML() for _ in range(4))
        self.listeners: list[Callable[[], None]] = []
        self._busy = False
        self._observe()
        self.box = self._arrange()
        self._redraw()

    def _observe(self) -> None:
        for knob in (*self.weights, self.theta0, self.penalty, self.decay):
            knob.slider.observe(self._moved, names="value")
        for choice in (self.top_k, self.strategy):
            choice.observe(self._moved, names="value")
        self.dialogue.observe(self._opened, names="value")
        self.fit.on_click(self._fitted)
        self.reset.on_click(self._put_back)

    def _arrange(self) -> Any:
        knobs = [knob.slider for knob in (*self.weights, self.theta0, self.penalty, self.decay)]
        row = panel_parts.buttons(self.fit, self.reset)
        right = [self.dialogue, self.strategy, *knobs, self.top_k, row, self.note, self.chart, self.facts]
        return panel_parts.columns(self.chat, right, height="780px", border="1px solid #ccc")

    def settings(self) -> Settings:
        """Where the knobs stand."""
        weights = tuple(knob.value for knob in self.weights)
        numbers = self.theta0.value, self.penalty.value, self.decay.value, self.top_k.value
        return Settings(weights, *numbers, self.strategy.value)

    # --- callbacks ----------------------------------------------------------------------------------

    @told
    def _moved(self, _change: Any) -> None:
        settings, before = self.settings(), self.view.settings
        if self._busy or settings == before:  # the browser's rounding moves nothing
            return
        gate = replace(settings, top_k=before.top_k, strategy=before.strategy)
        self.theta0_is_fitted &= gate == before
        self._redraw()

    @told
    def _opened(self, _change: Any) -> None:
        self.explorer.open(self.dialogue.value)
        if self.theta0_is_fitted:  # each half has a theta0 of its own
            self._put(self.explorer.fit(self.settings()))
        self._redraw()

    @told
    def _fitted(self, _button: Any) -> None:
        self._put(self.explorer.fit(self.settings()))
        self.theta0_is_fitted = True
        self._redraw()

    @told
    def _put_back(self, _button: Any) -> None:
        self._put(self.explorer.own_settings())
        self.theta0_is_fitted = self.explorer.profile.theta0 == "auto"
        self._redraw()

    def _put(self, settings: Settings) -> None:
        """Move the knobs without a redraw for each."""
        self._busy = True
        try:
            for knob, value in zip(self.weights, settings.weights, strict=True):
                knob.put(value)
            self.theta0.put(settings.theta0)
            self.penalty.put(settings.penalty)
            self.decay.put(settings.decay)
            self.top_k.value, self.strategy.value = settings.top_k, settings.strategy
        finally:
            self._busy = False

    def _redraw(self) -> None:
        self.view = view = self.explorer.select(self.settings())
        position = self.explorer.profile.meme_position
        self.chat.value = explorer_view.chat(view, self._memes, self.pictures, position)
        self.chart.value = explorer_view.chart(view)
        self.facts.value = explorer_view.facts(view, self.explorer, self.theta0_is_fitted)
        for listener in self.listeners:
            listener()
