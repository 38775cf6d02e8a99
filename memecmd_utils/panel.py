"""The panel of notebook 04: every knob of the retrieval beside the chat.

`explore` gives the live panel in JupyterLab, and its first position as HTML in a headless run. Parts are
`HTML` widgets whose text is replaced: the `Output` widget never returns under nbclient.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import ipywidgets as widgets
import numpy as np

from memecmd_utils import drawing, retrieval, schemas
from memecmd_utils.dialogue import english_titles
from memecmd_utils.drawing import SIGNS, shown_meme, signed
from memecmd_utils.files import is_headless
from memecmd_utils.retrieval import Gate, MemeIndex, ScoredDialogue
from memecmd_utils.runs import Run
from memecmd_utils.schemas import Meme, describe_source
from memecmd_utils.settings import Profile

KEPT_DIALOGUES, KEPT_MEMES = 60, 10_000
"""Of so many dialogues and memes the cosines are kept: a moved weight is then a sum of four matrices."""
WIDE = {"layout": {"width": "98%"}, "style": {"description_width": "112px"}}
WEIGHTS = ("w₁ · α  scenario", "w₂ · δ  unfitting", "w₃ · β  emotion", "w₄ · γ  motivation")


class Knobs(NamedTuple):
    """Where the knobs stand; `gate.theta0` is on the gate's scale (`score_scale` of the profile)."""

    weights: tuple[float, ...]
    gate: Gate
    top_k: int
    strategy: str


class View(NamedTuple):
    """The open dialogue under some knobs: scale of the gate, scores and thresholds of turns 2..T, memes."""

    scale: Gate
    gate_scores: np.ndarray
    thresholds: np.ndarray
    picks: dict[int, tuple[str, int | None, np.ndarray]]
    """Turn to meme, rank, and alpha to gamma (Eq. 18-21)."""


class Explorer:
    """Redoes one dialogue of a run under any knobs; at the profile's own it places as the run does."""

    def __init__(self, scored: Sequence[ScoredDialogue], index: MemeIndex, profile: Profile) -> None:
        self.index, self.profile = index, profile
        self.half = retrieval.halves([item.dialogue for item in scored])
        fitted = retrieval.gate_dialogues(scored, profile).fitted
        self.calibrated = {half: calibration for half, (calibration,) in fitted.items()}
        self.items = {item.dialogue.dialogue_id: item for item in scored[:KEPT_DIALOGUES]}
        self.open_id = next(iter(self.items))
        self._terms, self.fit = cache(self._terms), cache(self.fit)

    @property
    def item(self) -> ScoredDialogue:
        """The open dialogue."""
        return self.items[self.open_id]

    def _terms(self, name: str) -> np.ndarray | None:
        if len(self.index.meme_ids) > KEPT_MEMES:
            return None
        return retrieval.component_matrices(self.index, self.items[name].queries, np.float32)

    def rank(self, name: str, weights: Sequence[float], k: int) -> retrieval.Ranking:
        """The best memes at every turn of a dialogue."""
        return retrieval.top_k(self.index, self.items[name].queries, weights, k, self._terms(name))

    def own(self) -> Knobs:
        """The profile's settings for the open dialogue, whose gate was fitted on the other half."""
        knobs, fitted = self.profile.retrieval, self.calibrated[self.half[self.open_id]]
        gate = Gate(fitted.theta0, fitted.penalty, fitted.decay)
        paper = [name for name in knobs.strategies if name not in (retrieval.LEARNED, retrieval.RERANKED)]
        return Knobs(tuple(knobs.weights), gate, knobs.top_k, (*paper, "greedy")[0])

    def fit(self, half: str, weights: tuple[float, ...], gate: Gate) -> Gate:
        """Scale and theta0 for a half under these weights, Delta and lambda, fitted on the kept others."""
        of_run, own = self.calibrated[half], tuple(self.profile.retrieval.weights)
        if (weights, gate.penalty, gate.decay) == (own, of_run.penalty, of_run.decay):
            return of_run
        others = [name for name in self.items if self.half[name] == of_run.fold] or list(self.items)
        top1 = [self.rank(name, weights, 1).scores[:, 0] for name in others]
        rule = replace(retrieval.rule_of(self.profile), theta0=None, penalty=gate.penalty, decay=gate.decay)
        rate, turns = self.profile.retrieval.wanted_rate, sum(map(len, top1))
        return retrieval.fit_gates(retrieval.pad(top1)[None], rule, rate, turns, of_run.fold)[0]

    def select(self, knobs: Knobs) -> View:
        """Rank, gate and place in the open dialogue."""
        item, ids, half = self.item, self.index.meme_ids, self.half[self.open_id]
        ranking = self.rank(self.open_id, knobs.weights, knobs.top_k)
        scale = self.fit(half, knobs.weights, self.calibrated[half])
        gate_scores = scale.scaled(ranking.scores[:, 0])
        thresholds, sent = retrieval.simulate(gate_scores, knobs.gate)
        picks = {}
        for row, meme, rank in retrieval.pick_memes(
            knobs.strategy, ranking, sent, len(ids), self.profile, self.open_id
        ):
            parts = retrieval.pair_components(self.index, item.queries[row : row + 1], np.array([[meme]]))
            picks[item.turns[row]] = ids[meme], rank, parts[0, 0]
        return View(scale, gate_scores, thresholds, picks)

    def chat(self, view: View, knobs: Knobs, memes: Mapping[str, Meme], pictures: Mapping[str, Path]) -> str:
        """The dialogue with its memes in place as HTML, score and threshold below every turn."""
        turns, shown = self.item.dialogue.turns, {}
        notes = {turn.turn: f"t = {turn.turn}" for turn in turns}
        for turn, score, theta in zip(self.item.turns, view.gate_scores, view.thresholds, strict=True):
            is_scored = score > -np.inf
            against = f"{'>' if score > theta else '≤'} θ {signed(theta, 2)}"
            against = "no gate asked" if knobs.strategy == "random" else against
            notes[turn] += f" · {signed(score, 2)} {against}" if is_scored else " · no usable summary"
            if turn in view.picks:
                name, rank, parts = view.picks[turn]
                named = [f"{sign} {signed(part, 2)}" for sign, part in zip(SIGNS, parts, strict=True)]
                total = f"T {signed(float(parts @ knobs.weights))}" + (f", rank {rank}" if rank else "")
                lines = [total, *map(" ".join, (named[:2], named[2:]))] if is_scored else ["no score"]
                shown[turn] = shown_meme(memes[name], pictures[name], lines=lines)
        return drawing.chat(turns, shown, notes)

    def facts(self, view: View, knobs: Knobs) -> str:
        """The gate's chart as HTML, filled where a meme is placed, and the numbers below it."""
        item, scale = self.item, view.scale
        sent, gated = [turn in view.picks for turn in item.turns], knobs.strategy != "random"
        different = len({name for name, *_ in view.picks.values()})
        score = " ".join(f"{signed(w, 2)} {sign}" for w, sign in zip(knobs.weights, SIGNS, strict=True))
        sources = {record.source for record in (*item.dialogue.turns, *item.dialogue.summaries)}
        rows = [
            ("memes", f"{sum(sent)} of {len(sent)} turns, {different} different"),
            ("score", f"T = {score}"),
            ("gate's scale", f"(T {signed(-scale.mean)}) / {scale.std:.3f}, fitted on the other half"),
            ("texts", ", ".join(map(describe_source, sorted(sources)))),
        ]
        chart = drawing.gate_chart(item.turns, view.gate_scores, view.thresholds, sent, gated)
        return chart + str(drawing.parts().table(rows))


def explore(run: Run, scored: Sequence[ScoredDialogue], index: MemeIndex, memes: Mapping[str, Meme]) -> Any:
    """The panel for a run; where nobody can turn a knob (headless), its first position as HTML."""
    explorer = Explorer(scored, index, run.profile)
    pictures = {name: run.read(meme.file) for name, meme in memes.items()}
    if is_headless():
        from IPython.display import HTML

        knobs = explorer.own()
        view = explorer.select(knobs)
        chat = explorer.chat(view, knobs, memes, pictures)
        return HTML(f"{drawing.parts().styles()}{chat}{explorer.facts(view, knobs)}")
    titles = english_titles(run, [item.dialogue for item in scored])
    return widgets.VBox(
        [widgets.HTML(drawing.parts().styles()), Panel(explorer, memes, pictures, titles).box]
    )


class Panel:
    """Knobs beside a chat of the run; `box` is what is shown, `view` what it shows."""

    def __init__(
        self,
        explorer: Explorer,
        memes: Mapping[str, Meme],
        pictures: Mapping[str, Path],
        titles: Mapping[str, str],
    ) -> None:
        """`titles` are English, by dialogue; where one is missing the menu has the chat's own."""
        self.explorer, self.memes, self.pictures = explorer, memes, pictures
        items = explorer.items.items()
        names = {f"{name} · {titles.get(name) or item.dialogue.title}": name for name, item in items}
        apart = (retrieval.LEARNED, retrieval.RERANKED)  # no knob moves them
        shown = {name: words for name, words in schemas.STRATEGIES.items() if name not in apart}
        words = {f"{named.label}: {named.does}": name for name, named in shown.items()}
        self.dialogue = widgets.Dropdown(options=names, description="dialogue", **WIDE)
        self.strategy = widgets.Dropdown(options=words, description="strategy", **WIDE)
        knobs, reach = explorer.profile.retrieval, 3.0
        if knobs.score_scale == "raw":  # raw scores differ by hundredths
            reach = 0.3
        ends = {**dict.fromkeys(WEIGHTS, (-1, 1)), "θ₀": (-reach, reach), "Δ  penalty": (0, reach)}
        self.sliders = [
            widgets.FloatSlider(
                min=a, max=b, step=reach / 300, description=text, readout_format=".3f", **WIDE
            )
            for text, (a, b) in {**ends, "λ  decay": (0.05, 3)}.items()
        ]
        self.top_k = widgets.IntSlider(min=1, max=10, description="K", **WIDE)
        self.fit = widgets.Button(description=f"Fit θ₀ to {knobs.wanted_rate:.0%} of the turns")
        self.reset = widgets.Button(description="Back to the profile")
        self.authors = widgets.Button(description="The authors' weights")
        self.chat, self.facts = widgets.HTML(), widgets.HTML()
        self.put(explorer.own())
        for widget in (*self.sliders, self.top_k, self.strategy):
            widget.observe(lambda _: self.redraw(), names="value")
        self.dialogue.observe(lambda _: self._open(), names="value")
        self.fit.on_click(lambda _: self._fit())
        self.reset.on_click(lambda _: self.put(explorer.own()))
        self.authors.on_click(lambda _: self._weigh(retrieval.AUTHORS_WEIGHTS))
        row = widgets.HBox([self.fit, self.authors, self.reset])
        aside = (self.dialogue, self.strategy, *self.sliders, self.top_k, row, self.facts)
        frame = {"overflow": "hidden auto", "flex": "1 1 360px", "height": "780px", "display": "block"}
        left = widgets.Box([self.chat], layout=frame)
        left.add_class("mc-frame")
        right = widgets.VBox(aside, layout={"flex": "1 1 420px"})
        # On a narrow screen the knobs stand below the chat.
        self.box = widgets.HBox([left, right], layout={"flex_flow": "row wrap", "grid_gap": "14px"})

    def knobs(self) -> Knobs:
        """Where the knobs stand. A browser rounds to the slider's step: within it the value put counts."""
        pairs = zip(self.sliders, self._put, strict=True)
        values = [x if abs(slider.value - x) <= 0.501 * slider.step else slider.value for slider, x in pairs]
        return Knobs(tuple(values[:4]), Gate(*values[4:]), self.top_k.value, self.strategy.value)

    def put(self, knobs: Knobs) -> None:
        """Move the knobs without a redraw for each; the ends of a slider give way."""
        gate = knobs.gate
        self._busy, self._put = True, [*knobs.weights, gate.theta0, gate.penalty, gate.decay]
        for slider, value in zip(self.sliders, self._put, strict=True):
            slider.min, slider.max = min(slider.min, value), max(slider.max, value)
            slider.value = value
        self.top_k.max, self.strategy.value = max(10, knobs.top_k), knobs.strategy
        self.top_k.value, self._busy = knobs.top_k, False
        self.redraw()

    def _fit(self) -> None:
        knobs, half = self.knobs(), self.explorer.half[self.explorer.open_id]
        theta0 = self.explorer.fit(half, knobs.weights, knobs.gate).theta0
        self.put(knobs._replace(gate=replace(knobs.gate, theta0=theta0)))

    def _weigh(self, weights: tuple[float, ...]) -> None:
        self.put(self.knobs()._replace(weights=weights))
        self._fit()  # another score, another scale

    def _open(self) -> None:
        self.explorer.open_id = self.dialogue.value
        self._fit()  # each half has a theta0 of its own

    def redraw(self) -> None:
        """Show the open dialogue under the knobs."""
        if not self._busy:
            knobs = self.knobs()
            self.view = self.explorer.select(knobs)
            self.chat.value = self.explorer.chat(self.view, knobs, self.memes, self.pictures)
            self.facts.value = self.explorer.facts(self.view, knobs)
