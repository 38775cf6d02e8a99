"""The panel of notebook 04: every knob of the retrieval beside the chat.

Parts are `HTML` widgets whose text is replaced: the `Output` widget never returns under nbclient.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import ipywidgets as widgets
import numpy as np

from memecmd_utils import drawing, retrieval, schemas
from memecmd_utils.dialogue import english_titles
from memecmd_utils.drawing import SIGNS, shown_meme, signed
from memecmd_utils.files import is_headless
from memecmd_utils.retrieval import Gate, MemeIndex, ScoredDialogue
from memecmd_utils.runs import Run
from memecmd_utils.schemas import Meme
from memecmd_utils.settings import Profile

WIDE = {"layout": {"width": "98%"}, "style": {"description_width": "112px"}}
WEIGHTS = ("w₁ · α  scenario", "w₂ · δ  unfitting", "w₃ · β  emotion", "w₄ · γ  motivation")
THETA0 = 4
"""Place of the threshold's slider, after those of the four weights."""
MOST = 60
"""Dialogues that a gate under other weights is fitted on: a knob's move takes milliseconds."""


def explore(
    run: Run, scored: Sequence[ScoredDialogue], index: MemeIndex, memes: Mapping[str, Meme]
) -> widgets.VBox | None:
    """The panel for a run; None where nobody can turn a knob (headless)."""
    if is_headless():
        return None
    titles = english_titles(run, [item.dialogue for item in scored])
    pictures = {name: run.read(meme.file) for name, meme in memes.items()}
    panel = Panel(scored, index, run.profile, memes, pictures, titles)
    return widgets.VBox([widgets.HTML(drawing.parts().styles()), panel.box])


class Panel:
    """Knobs beside a chat of a run; at the profile's own it places as the run does.

    `box` is what is shown, `picks` the memes in the open chat, by turn.
    """

    def __init__(
        self,
        scored: Sequence[ScoredDialogue],
        index: MemeIndex,
        profile: Profile,
        memes: Mapping[str, Meme],
        pictures: Mapping[str, Path],
        titles: Mapping[str, str],
    ) -> None:
        """`titles` are English, by dialogue; where one is missing the menu has the chat's own."""
        self.index, self.profile, self.memes, self.pictures = index, profile, memes, pictures
        self.items = {item.dialogue.dialogue_id: item for item in scored}
        self.halves = retrieval.halves([item.dialogue for item in scored])
        self.fitted = retrieval.gate_dialogues(scored, profile).fitted
        self._terms, self._fit = cache(self._terms), cache(self._fit)
        chats = {name: titles.get(name) or item.dialogue.title for name, item in self.items.items()}
        names = {f"{name} · {title}": name for name, title in chats.items()}
        apart = (retrieval.LEARNED, retrieval.RERANKED)  # no knob moves them
        shown = {name: words for name, words in schemas.STRATEGIES.items() if name not in apart}
        words = {f"{named.label}: {named.does}": name for name, named in shown.items()}
        self.dialogue = widgets.Dropdown(options=names, description="dialogue", **WIDE)
        self.strategy = widgets.Dropdown(options=words, description="strategy", **WIDE)
        reach = 0.3 if profile.retrieval.score_scale == "raw" else 3.0  # raw scores differ by hundredths
        ends = {**dict.fromkeys(WEIGHTS, (-1, 1)), "θ₀": (-reach, reach), "Δ  penalty": (0, reach)}
        self.sliders = [
            widgets.FloatSlider(
                min=a, max=b, step=reach / 300, description=text, readout_format=".3f", **WIDE
            )
            for text, (a, b) in {**ends, "λ  decay": (0.05, 3)}.items()
        ]
        self.top_k = widgets.IntSlider(min=1, max=10, description="K", **WIDE)
        self.fit = widgets.Button(description=f"Fit θ₀ to {profile.retrieval.wanted_rate:.0%} of the turns")
        self.authors = widgets.Button(description="The authors' weights")
        self.reset = widgets.Button(description="Back to the profile")
        self.chat, self.facts = widgets.HTML(), widgets.HTML()
        self._reset()
        for widget in (*self.sliders, self.top_k, self.strategy):
            widget.observe(lambda _: self.redraw(), names="value")
        self.dialogue.observe(lambda _: self._put_fitted(self.values()), names="value")
        self.fit.on_click(lambda _: self._put_fitted(self.values()))
        self.authors.on_click(lambda _: self._put_fitted([*retrieval.AUTHORS_WEIGHTS, *self.values()[4:]]))
        self.reset.on_click(lambda _: self._reset())
        row = widgets.HBox([self.fit, self.authors, self.reset])
        aside = (self.dialogue, self.strategy, *self.sliders, self.top_k, row, self.facts)
        frame = {"overflow": "hidden auto", "flex": "1 1 360px", "height": "780px", "display": "block"}
        left = widgets.Box([self.chat], layout=frame)
        left.add_class("mc-frame")
        right = widgets.VBox(aside, layout={"flex": "1 1 420px"})
        # On a narrow screen the knobs stand below the chat.
        self.box = widgets.HBox([left, right], layout={"flex_flow": "row wrap", "grid_gap": "14px"})

    def values(self) -> list[float]:
        """Where the sliders stand. A browser rounds to a slider's step: within it the value put counts."""
        pairs = zip(self.sliders, self._put, strict=True)
        return [x if abs(slider.value - x) <= 0.501 * slider.step else slider.value for slider, x in pairs]

    def put(self, values: Sequence[float], top_k: int, strategy: str) -> None:
        """Move the knobs without a redraw for each; the ends of a slider give way."""
        self._busy, self._put = True, values
        for slider, value in zip(self.sliders, values, strict=True):
            slider.min, slider.max = min(slider.min, value), max(slider.max, value)
            slider.value = value
        self.top_k.max, self.strategy.value = max(10, top_k), strategy
        self.top_k.value, self._busy = top_k, False
        self.redraw()

    def _reset(self) -> None:
        knobs, (gate,) = self.profile.retrieval, self.fitted[self.halves[self.dialogue.value]]
        paper = [name for name in knobs.strategies if name not in (retrieval.LEARNED, retrieval.RERANKED)]
        values = [*knobs.weights, gate.theta0, gate.penalty, gate.decay]
        self.put(values, knobs.top_k, (*paper, "greedy")[0])

    def _put_fitted(self, values: Sequence[float]) -> None:
        """Move the knobs to `values`, but theta0 to what is fitted for them and the open dialogue's half."""
        theta0 = self._fit(self.halves[self.dialogue.value], *values[:THETA0], *values[THETA0 + 1 :]).theta0
        self.put([*values[:THETA0], theta0, *values[THETA0 + 1 :]], self.top_k.value, self.strategy.value)

    def _fit(self, half: str, *knobs: float) -> Gate:
        """The gate of a half under four weights, Delta and lambda; the run's own where they are its."""
        (own,), (*weights, penalty, decay) = self.fitted[half], knobs
        if knobs == (*self.profile.retrieval.weights, own.penalty, own.decay):
            return own
        others = [name for name in self.items if self.halves[name] == own.fold] or [*self.items]
        top1 = [
            retrieval.top_k(self.index, self.items[name].queries, weights, 1, self._terms(name)).scores[:, 0]
            for name in others[:MOST]
        ]
        rule = replace(retrieval.rule_of(self.profile), theta0=None, penalty=penalty, decay=decay)
        rate, turns = self.profile.retrieval.wanted_rate, sum(map(len, top1))
        return retrieval.fit_gates(retrieval.pad(top1)[None], rule, rate, turns, own.fold)[0]

    def _terms(self, name: str) -> np.ndarray | None:
        """Cosines of a dialogue: a moved weight is then a sum of four matrices. None of a library on disk."""
        if self.index.propose is not None:
            return None
        return retrieval.component_matrices(self.index, self.items[name].queries, np.float32)

    def redraw(self) -> None:
        """Rank, gate and place in the open dialogue under the knobs, and show it."""
        if self._busy:
            return
        name, strategy, ids = self.dialogue.value, self.strategy.value, self.index.meme_ids
        item, (*weights, theta0, penalty, decay) = self.items[name], self.values()
        (own,) = self.fitted[self.halves[name]]
        scale = self._fit(self.halves[name], *weights, own.penalty, own.decay)  # other weights, other scores
        gate = replace(scale, theta0=theta0, penalty=penalty, decay=decay)
        ranking = retrieval.top_k(self.index, item.queries, weights, self.top_k.value, self._terms(name))
        scores = gate.scaled(ranking.scores[:, 0])
        thresholds, sent = retrieval.simulate(scores, gate)
        picked = retrieval.pick_memes(strategy, ranking, sent, len(ids), self.profile, name)
        self.picks = {item.turns[row]: ids[meme] for row, meme, _ in picked}
        notes = {turn.turn: f"t = {turn.turn}" for turn in item.dialogue.turns}
        for turn, score, theta in zip(item.turns, scores, thresholds, strict=True):
            against = f"{'>' if score > theta else '≤'} θ {signed(theta, 2)}"
            against = "no gate asked" if strategy == "random" else against
            notes[turn] += f" · {signed(score, 2)} {against}" if score > -np.inf else " · no usable summary"
        shown = {}
        for row, meme, rank in picked:
            lines = self._parts(item, row, meme, rank, weights) if scores[row] > -np.inf else ["no score"]
            shown[item.turns[row]] = shown_meme(self.memes[ids[meme]], self.pictures[ids[meme]], lines=lines)
        self.chat.value = drawing.chat(item.dialogue.turns, shown, notes)
        sends, different = [turn in self.picks for turn in item.turns], len({*self.picks.values()})
        chart = drawing.gate_chart(item.turns, scores, thresholds, sends, strategy != "random")
        count = f"{sum(sends)} of {len(sends)} turns, {different} different memes"
        self.facts.value = f"{chart}<p class='mc-note'>{count}</p>"

    def _parts(
        self, item: ScoredDialogue, row: int, meme: int, rank: int | None, weights: Sequence[float]
    ) -> list[str]:
        """What stands under a meme: its score, and the four cosines that it is made of (Eq. 18-22)."""
        query = item.queries[row : row + 1]
        parts = retrieval.pair_components(self.index, query, np.array([[meme]]))[0, 0]
        named = [f"{sign} {signed(part, 2)}" for sign, part in zip(SIGNS, parts, strict=True)]
        total = f"T {signed(float(parts @ weights))}" + (f", rank {rank}" if rank else "")
        return [total, " ".join(named[:2]), " ".join(named[2:])]
