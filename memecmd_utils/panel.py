"""The panel of notebook 04: every knob of the retrieval beside the chat, and a chat of one's own.

`explore` gives the live panel in JupyterLab, and its first position as HTML in a headless run. Parts are
`HTML` widgets whose text is replaced: the `Output` widget never returns under nbclient.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import ipywidgets as widgets
import numpy as np

from memecmd_utils import chats, drawing, reranking, retrieval, schemas
from memecmd_utils.chats import ChatError, Context
from memecmd_utils.dialogue import english_titles
from memecmd_utils.drawing import SIGNS, ShownTurn, shown_meme, signed
from memecmd_utils.files import MemecmdError, is_headless
from memecmd_utils.retrieval import Gate, MemeIndex, ScoredDialogue
from memecmd_utils.runs import Run
from memecmd_utils.schemas import Meme, SummaryReply, describe_source
from memecmd_utils.settings import Profile

KEPT_DIALOGUES, KEPT_MEMES = 60, 10_000
"""Of so many dialogues and memes the cosines are kept: a moved weight is then a sum of four matrices."""
WIDE = {"layout": {"width": "98%"}, "style": {"description_width": "112px"}}
WEIGHTS = ("w₁ · α  scenario", "w₂ · δ  unfitting", "w₃ · β  emotion", "w₄ · γ  motivation")
EXAMPLE = "小雨：周末爬山去不去\n阿杰：天气预报说要下雨\n小雨：又下雨，我的帐篷白买了"


class Knobs(NamedTuple):
    """Where the knobs stand; `gate.theta0` is on the gate's scale (`score_scale` of the profile)."""

    weights: tuple[float, ...]
    gate: Gate
    top_k: int
    strategy: str


class View(NamedTuple):
    """The open dialogue under some knobs: gate scores and thresholds of turns 2..T, and what is placed."""

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

    def scale(self, weights: tuple[float, ...]) -> Gate:
        """The gate's scale for the open dialogue under these weights."""
        half = self.half[self.open_id]
        return self.fit(half, weights, self.calibrated[half])

    def select(self, knobs: Knobs) -> View:
        """Rank, gate and place in the open dialogue."""
        item, ids = self.item, self.index.meme_ids
        ranking = self.rank(self.open_id, knobs.weights, knobs.top_k)
        gate_scores = self.scale(knobs.weights).scaled(ranking.scores[:, 0])
        thresholds, sent = retrieval.simulate(gate_scores, knobs.gate)
        picks = {}
        for row, meme, rank in retrieval.pick_memes(
            knobs.strategy, ranking, sent, len(ids), self.profile, self.open_id
        ):
            parts = retrieval.pair_components(self.index, item.queries[row : row + 1], np.array([[meme]]))
            picks[item.turns[row]] = ids[meme], rank, parts[0, 0]
        return View(gate_scores, thresholds, picks)

    def chat(self, view: View, knobs: Knobs, memes: Mapping[str, Meme], pictures: Mapping[str, Path]) -> str:
        """The dialogue with its memes in place as HTML, score and threshold below every turn."""
        dialogue, turns = self.item.dialogue, []
        scored = dict(zip(self.item.turns, zip(view.gate_scores, view.thresholds, strict=True), strict=True))
        for turn in dialogue.turns:
            note, meme, (score, theta) = f"t = {turn.turn}", None, scored.get(turn.turn, (None, 0))
            if score == -np.inf:
                note += " · no usable summary"
            elif score is not None:
                against = f"{'>' if score > theta else '≤'} θ {signed(theta, 2)}"
                note += f" · {signed(score, 2)} {against if knobs.strategy != 'random' else 'no gate asked'}"
            if turn.turn in view.picks:
                name, rank, parts = view.picks[turn.turn]
                named = [f"{sign} {signed(part, 2)}" for sign, part in zip(SIGNS, parts, strict=True)]
                total = f"T {signed(float(parts @ knobs.weights))}" + (f", rank {rank}" if rank else "")
                lines = ["no score"] if score == -np.inf else [total, *map(" ".join, (named[:2], named[2:]))]
                meme = shown_meme(memes[name], pictures[name], lines=tuple(lines))
            side = "right" if turn.speaker == "A" else "left"
            turns.append(ShownTurn(turn.turn, side, turn.speaker, turn.text, turn.gloss, note, meme))
        return drawing.chat(turns)

    def facts(self, view: View, knobs: Knobs) -> str:
        """The gate's chart as HTML, filled where a meme is placed, and the numbers below it."""
        item, scale = self.item, self.scale(knobs.weights)
        sent, gated = [turn in view.picks for turn in item.turns], knobs.strategy != "random"
        different = len({name for name, *_ in view.picks.values()})
        sources = {record.source for record in (*item.dialogue.turns, *item.dialogue.summaries)}
        rows = [
            ("memes", f"{sum(sent)} of {len(sent)} turns, {different} different"),
            ("score", formula(knobs.weights)),
            ("gate's scale", f"(T {signed(-scale.mean)}) / {scale.std:.3f}, fitted on the other half"),
            ("texts", ", ".join(map(describe_source, sorted(sources)))),
        ]
        chart = drawing.gate_chart(item.turns, view.gate_scores, view.thresholds, sent, gated)
        return chart + str(drawing.parts().table(rows))


def formula(weights: Sequence[float]) -> str:
    """T under these weights (Eq. 22): `T = +0.33 α +0.33 δ ...`."""
    return "T = " + " ".join(f"{signed(w, 2)} {sign}" for w, sign in zip(weights, SIGNS, strict=True))


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
    first = DialogueTab(explorer, memes, pictures, titles)
    second = PasteTab(chats.Library(run, memes, index, chats.encoder(run, run, is_kept=False)), first)
    tabs = widgets.Tab([first.box, second.box], titles=["A chat of the run", "A chat of your own"])
    return widgets.VBox([widgets.HTML(drawing.parts().styles()), tabs])


def beside(left: Any, *right: Any) -> Any:
    """`left` in a frame that scrolls, the others to its right; on a narrow screen below it."""
    frame = {"overflow": "hidden auto", "flex": "1 1 360px", "height": "780px", "display": "block"}
    box, aside = widgets.Box([left], layout=frame), widgets.VBox(right, layout={"flex": "1 1 420px"})
    box.add_class("mc-frame")
    return widgets.HBox([box, aside], layout={"flex_flow": "row wrap", "grid_gap": "14px"})


class DialogueTab:
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
        self.box = beside(self.chat, *aside)

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


def read_pasted(text: str) -> Context:
    """A chat of one `name: words` a line between two people; the next turn is the other one's."""
    cells = [re.split("[：:]", line, maxsplit=1) for line in text.splitlines() if line.strip()]
    people = list(dict.fromkeys(line[0].strip() for line in cells))
    if not cells or len(people) > 2 or any(len(line) == 1 for line in cells):
        raise ChatError("write one line per message, `name: words`, from one or two people")
    lines = tuple((name.strip(), words.strip()) for name, words in cells)
    other = next((name for name in people if name != lines[-1][0]), "B")
    return Context("pasted", len(lines) + 1, lines, other)


class PasteTab:
    """A pasted chat, its S, E and Psi, and the memes that fit; nothing of it is written down."""

    def __init__(self, library: chats.Library, first: DialogueTab) -> None:
        self.library, self.first, models = library, first, library.run.profile.models
        self.text = widgets.Textarea(EXAMPLE, rows=8, description="chat", **WIDE)
        hints = {"scenario": "S  scenario", "emotion": "E  emotion", "motivation": "Ψ  motivation"}
        self.fields = {n: widgets.Textarea(rows=2, description=hint, **WIDE) for n, hint in hints.items()}
        live = models.llm in ("openai", "local") and models.mode in ("auto", "live")
        self.ask = widgets.Button(description="Ask the summary agent", disabled=not live)
        self.find = widgets.Button(description="Find memes", button_style="primary")
        self.choose = widgets.Button(description="Let the model choose", disabled=not live)
        self.chat, self.note, self.best = widgets.HTML(), widgets.HTML(), widgets.HTML()
        where = "stays here" if models.llm == "local" else "goes to the endpoint"
        about = f"where a model is asked, the chat {where}" if live else "write S, E and Ψ yourself"
        about = widgets.HTML(drawing.parts().note(f"What you paste is not recorded; {about}."))
        self.ask.on_click(lambda _: self._try(self._ask))
        self.find.on_click(lambda _: self._try(self._find))
        self.choose.on_click(lambda _: self._try(self._choose))
        row = widgets.HBox([self.ask, self.find, self.choose])
        self.box = beside(self.chat, self.text, *self.fields.values(), row, about, self.note, self.best)

    def _try(self, action: Callable[[], None]) -> None:
        """Show what is to be mended in the tab: what a callback raises ends in a log that nobody reads."""
        self.note.value = ""
        try:
            action()
        except MemecmdError as error:
            self.note.value = drawing.parts().note(str(error), True)

    def _ask(self) -> None:
        pasted, run = read_pasted(self.text.value), self.library.run
        (answer,) = chats.summarise([pasted], run, "pasted_chat", run.name, is_kept=False)
        if answer.value is None:
            raise ChatError(
                f"the model gave no usable summary ({answer.outcome}: {answer.reason}); write one"
            )
        for name, area in self.fields.items():
            area.value = getattr(answer.value, name)
        self._find()

    def _read(self) -> tuple[Context, np.ndarray]:
        """The pasted chat, and the query [1, 3, dim] of its S, E and Psi."""
        texts = {name: area.value.strip() for name, area in self.fields.items()}
        if not all(texts.values()):
            raise MemecmdError("write a sentence for each of S, E and Ψ, in the library's language")
        return read_pasted(self.text.value), self.library.queries([SummaryReply(**texts)])

    def _find(self) -> None:
        pasted, query = self._read()
        knobs, index = self.first.knobs(), self.library.index
        (memes,), (scores,), (parts,) = retrieval.top_k(index, query, knobs.weights, 6)
        names = [index.meme_ids[meme] for meme in memes]
        cards = [shown_meme(self.library.memes[n], self.first.pictures[n]) for n in names]
        rows = list(zip(cards, scores, parts, strict=True))
        self.best.value = str(drawing.parts().note(formula(knobs.weights))) + drawing.cards(rows)
        score = float(self.first.explorer.scale(knobs.weights).scaled(scores[0]))
        sent = "sent" if score > knobs.gate.theta0 else "held back by the gate"
        self._show(
            pasted, names[0], f"the best meme, {sent}: {signed(score, 2)}, θ₀ {signed(knobs.gate.theta0, 2)}"
        )

    def _choose(self) -> None:
        """Strategy `reranked`: the model chooses among the best memes under the knobs, or none."""
        (pasted, query), library, run = self._read(), self.library, self.library.run
        lines = [*pasted.lines, (pasted.next_speaker, "")]
        best = reranking.best_ids(library.index, query, self.first.knobs().weights, run.profile)
        ranked = reranking.RankedChat("pasted", lines, (pasted.turn,), best)
        with run.chat("chooser", "pasted_chat", at_once=1, is_kept=False) as chat:
            picture = reranking.pictures(run, run)
            (choice,) = reranking.ask_model([ranked], chat, library.memes, run.profile, picture)
        self._show(pasted, choice.meme_id, choice.unscored or f"the model: {choice.reason}")

    def _show(self, pasted: Context, meme_id: str, note: str) -> None:
        """The pasted chat with a meme, or none, at its next turn."""
        lines, who = pasted.lines, pasted.next_speaker
        side = {name: "right" if name == lines[0][0] else "left" for name in (*dict(lines), who)}
        turns = [ShownTurn(t, side[name], name, text) for t, (name, text) in enumerate(lines, start=1)]
        meme = shown_meme(self.library.memes[meme_id], self.first.pictures[meme_id]) if meme_id else None
        turns.append(ShownTurn(pasted.turn, side[who], who, "", note=note, meme=meme))
        self.chat.value = drawing.chat(turns)
