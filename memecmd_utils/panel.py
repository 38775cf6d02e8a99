"""The panel of notebook 04: every knob of the retrieval beside the chat, and a chat of one's own.

`explore` gives the live panel in JupyterLab, and chat, chart and numbers of its first position in a headless
run. Parts are `HTML` widgets whose text is replaced: the `Output` widget never returns under nbclient.
"""

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import ipywidgets
import numpy as np

from memecmd_utils import chats, drawing, retrieval, schemas
from memecmd_utils.drawing import SIGNS, ShownMeme, ShownTurn, Thumbnails, caption_of, signed
from memecmd_utils.files import MemecmdError, is_headless
from memecmd_utils.retrieval import Calibration, MemeIndex, ScoredDialogue
from memecmd_utils.runs import Run
from memecmd_utils.schemas import Meme, SummaryReply, describe_source
from memecmd_utils.settings import Profile, Strategy

KEPT_DIALOGUES, KEPT_MEMES = 60, 10_000
"""Of so many dialogues and memes the cosines are kept, so that a moved weight is a sum of four matrices."""
WIDE = {"layout": {"width": "98%"}, "style": {"description_width": "112px"}}
WEIGHTS = ("w₁ · α  scenario", "w₂ · δ  unfitting", "w₃ · β  emotion", "w₄ · γ  motivation")
STRATEGIES = {f"{named.label}: {named.does}": name for name, named in schemas.STRATEGIES.items()}
CARDS = 6
EXAMPLE = "小雨：周末爬山去不去\n阿杰：天气预报说要下雨\n小雨：又下雨，我的帐篷白买了"


class Settings(NamedTuple):
    """Where the knobs stand. `theta0` is on the gate's scale (`score_scale` of the profile)."""

    weights: tuple[float, float, float, float]
    theta0: float
    penalty: float
    decay: float
    top_k: int
    strategy: Strategy


class View(NamedTuple):
    """One dialogue under one setting; arrays have one value for each of the turns 2..T."""

    item: ScoredDialogue
    settings: Settings
    gate_scores: np.ndarray
    thresholds: np.ndarray
    picks: dict[int, tuple[str, int | None, float | None, np.ndarray]]
    """Turn to meme, rank, score and the four components (Eq. 18-21)."""


class Explorer:
    """Redoes one dialogue of a run under any settings; at the profile's own it places as `retrieval.place`."""

    def __init__(self, scored: Sequence[ScoredDialogue], index: MemeIndex, profile: Profile) -> None:
        self.index, self.profile = index, profile
        self.half = retrieval.halves([item.dialogue for item in scored])
        self.calibrations = retrieval.calibrate(scored, profile)
        self.scored = {item.dialogue.dialogue_id: item for item in scored[:KEPT_DIALOGUES]}
        self.open_id = next(iter(self.scored))
        self._terms = functools.cache(self._components)

    def _components(self, name: str) -> np.ndarray | None:
        small = len(self.index.meme_ids) <= KEPT_MEMES
        return retrieval.component_matrices(self.index, self.scored[name].queries) if small else None

    def rank(self, name: str, weights: Sequence[float], k: int) -> retrieval.Ranking:
        """The best memes of a dialogue's turns under these weights."""
        return retrieval.top_k(self.index, self.scored[name].queries, weights, k, self._terms(name))

    def fit(self, weights: Sequence[float], penalty: float, decay: float) -> Calibration:
        """Scale and theta0 under these settings, fitted on the other half of the kept dialogues."""
        own, knobs = self.calibrations[self.half[self.open_id]], self.profile.retrieval
        if (tuple(weights), penalty, decay) == (knobs.weights, own.gate.penalty, own.gate.decay):
            return own
        others = [name for name in self.scored if own.fold == "self" or self.half[name] == own.fold]
        top1 = [self.rank(name, weights, 1).scores[:, 0] for name in others or self.scored]
        profile = self.profile.replace(theta0="auto", threshold_decay=decay)
        return retrieval.fit_gate(top1, profile, own.fold, penalty)

    @functools.lru_cache(maxsize=8)  # noqa: B019  (a panel lives as long as its notebook)
    def scale(self, half: str, weights: tuple[float, ...]) -> retrieval.ScoreScale:
        """The gate's scale for a half under these weights."""
        gate = self.calibrations[half].gate
        return self.fit(weights, gate.penalty, gate.decay).scale

    def own_settings(self) -> Settings:
        """The profile's settings for the open dialogue, with its half's theta0."""
        knobs, gate = self.profile.retrieval, self.calibrations[self.half[self.open_id]].gate
        strategy = knobs.strategies[0] if knobs.strategies else "greedy"
        return Settings(knobs.weights, gate.theta0, gate.penalty, gate.decay, knobs.top_k, strategy)

    def select(self, settings: Settings) -> View:
        """Rank, gate and place in the open dialogue."""
        item, index = self.scored[self.open_id], self.index
        ranking = self.rank(self.open_id, settings.weights, settings.top_k)
        gate_scores = self.scale(self.half[self.open_id], settings.weights).apply(ranking.scores[:, 0])
        gate = retrieval.Gate(settings.theta0, settings.penalty, settings.decay)
        trace, picks = retrieval.simulate(gate_scores, gate), {}
        for row, meme, rank in retrieval.choose(
            settings.strategy, ranking, trace.sent, len(index.meme_ids), self.profile, self.open_id
        ):
            query = item.queries[row : row + 1]
            parts = retrieval.pair_components(index, query, np.array([[meme]]))[0, 0]
            score = round(float(parts @ settings.weights), 9) if np.isfinite(gate_scores[row]) else None
            picks[item.turns[row]] = index.meme_ids[meme], rank, score, parts
        return View(item, settings, gate_scores, trace.thresholds, picks)


# --- A view as HTML


def formula(weights: Sequence[float]) -> str:
    """T under these weights (Eq. 22): `T = +0.33 α +0.33 δ ...`."""
    return "T = " + " ".join(f"{signed(w, 2)} {sign}" for w, sign in zip(weights, SIGNS, strict=True))


def shown(meme: Meme, pictures: Thumbnails, lines: Sequence[str] = ()) -> ShownMeme:
    """A meme as the chat and the cards show it."""
    return ShownMeme(meme.meme_id, pictures[meme.meme_id], caption_of(meme), tuple(lines), meme.gloss)


def chat(view: View, memes: Mapping[str, Meme], pictures: Thumbnails, meme_position: str) -> str:
    """The dialogue with its memes in place, score and threshold below every turn."""
    dialogue, notes, bubbles = view.item.dialogue, {}, {}
    for turn, score, theta in zip(view.item.turns, view.gate_scores, view.thresholds, strict=True):
        sign = ">" if score > theta else "≤"
        notes[turn] = f"{signed(score, 2)} {sign} θ {signed(theta, 2)}"
        if view.settings.strategy == "random":
            notes[turn] = f"{signed(score, 2)}, no gate asked"
        if not np.isfinite(score):
            notes[turn] = "no usable summary"
    for turn, (meme, rank, score, parts) in view.picks.items():
        lines = ["no score" if score is None else f"T {signed(score)}", *([f"rank {rank}"] if rank else [])]
        if score is not None:
            named = [f"{sign} {signed(part, 2)}" for sign, part in zip(SIGNS, parts, strict=True)]
            lines += [" ".join(named[:2]), " ".join(named[2:])]
        bubbles[turn] = shown(memes[meme], pictures, lines)
    turns = [
        ShownTurn(
            number=turn.turn,
            side="right" if turn.speaker == "A" else "left",
            name=(dialogue.name_a if turn.speaker == "A" else dialogue.name_b) or turn.speaker,
            text=turn.text,
            gloss=turn.gloss,
            note=f"t = {turn.turn} · {notes[turn.turn]}" if turn.turn in notes else f"t = {turn.turn}",
            meme=bubbles.get(turn.turn),
        )
        for turn in dialogue.turns
    ]
    return drawing.chat(turns, meme_position)


def chart(view: View) -> str:
    """Scores of the best memes and the threshold along the turns; filled where a meme is placed."""
    sent, gated = [turn in view.picks for turn in view.item.turns], view.settings.strategy != "random"
    return drawing.gate_chart(view.item.turns, view.gate_scores, view.thresholds, sent, gated)


def facts(view: View, explorer: Explorer) -> str:
    """The numbers beside the chart."""
    n, turns, dialogue = len(view.picks), len(view.item.turns), view.item.dialogue
    scores = [score for _, _, score, _ in view.picks.values() if score is not None]
    scale = explorer.scale(explorer.half[explorer.open_id], view.settings.weights)
    sources = {record.source for record in (*dialogue.turns, *dialogue.summaries)}
    rows = [
        ("memes", f"{n} of {turns} turns, {len({pick[0] for pick in view.picks.values()})} different"),
        ("mean T of these", signed(sum(scores) / len(scores)) if scores else "–"),
        ("score", formula(view.settings.weights)),
        ("gate's scale", f"(T {signed(-scale.mean)}) / {scale.std:.3f}, fitted on the other half"),
        ("texts", ", ".join(map(describe_source, sorted(sources)))),
    ]
    return drawing.table(rows)


# --- The widgets


def explore(run: Run, scored: Sequence[ScoredDialogue], index: MemeIndex, memes: Mapping[str, Meme]) -> Any:
    """The panel for a run; where nobody can turn a knob (headless), its first position as HTML."""
    explorer = Explorer(scored, index, run.profile)
    folder = run.read("memes.parquet").parent
    pictures = Thumbnails({name: folder / meme.file for name, meme in memes.items()})
    if is_headless():
        from IPython.display import HTML

        view = explorer.select(explorer.own_settings())
        parts = chat(view, memes, pictures, run.profile.retrieval.meme_position), chart(view)
        return HTML(drawing.styles() + "".join(parts) + facts(view, explorer))
    first = DialogueTab(explorer, memes, pictures)
    library = chats.Library(run, memes, index, chats.unrecorded(run, run))
    second = PasteTab(library, first)
    both = ipywidgets.Tab([first.box, second.box], titles=["A chat of the run", "A chat of your own"])
    return ipywidgets.VBox([ipywidgets.HTML(drawing.styles()), both])


def shows_faults(method: Callable) -> Callable:
    """Show a fault of a callback in the tab's `note`: what it raises ends in a log that nobody reads."""

    @functools.wraps(method)
    def wrapped(self, *arguments: Any) -> None:
        try:
            self.note.value = ""
            method(self, *arguments)
        except MemecmdError as error:
            self.note.value = drawing.note(str(error), error=True)

    return wrapped


def columns(left: Any, right: list[Any]) -> Any:
    """`left` in a frame that scrolls, knobs to its right; on a narrow screen below it."""
    frame = ipywidgets.Layout(
        overflow="hidden auto", flex="1 1 360px", min_width="0", height="780px", display="block"
    )
    box = ipywidgets.Box([left], layout=frame)
    box.add_class("mc-frame")
    aside = ipywidgets.VBox(right, layout=ipywidgets.Layout(flex="1 1 420px", min_width="0"))
    wrap = ipywidgets.Layout(flex_flow="row wrap", align_items="flex-start", grid_gap="14px")
    return ipywidgets.HBox([box, aside], layout=wrap)


class DialogueTab:
    """Knobs and picker beside the chat; `box` is what is shown, `view` what it shows."""

    view: View

    def __init__(self, explorer: Explorer, memes: Mapping[str, Meme], pictures: Thumbnails) -> None:
        self.explorer, self.memes, self.pictures = explorer, memes, pictures
        own, knobs = explorer.own_settings(), explorer.profile.retrieval
        names = {f"{name} · {item.dialogue.title}": name for name, item in explorer.scored.items()}
        self.dialogue = ipywidgets.Dropdown(options=names, description="dialogue", **WIDE)
        self.strategy = ipywidgets.Dropdown(
            options=STRATEGIES, value=own.strategy, description="strategy", **WIDE
        )
        reach = 3.0 if knobs.score_scale == "standard" else 0.3

        def slider(text: str, low: float, high: float) -> Any:
            step = 0.01 if high > 0.5 else 0.001
            return ipywidgets.FloatSlider(
                min=low, max=high, step=step, description=text, readout_format=".3f", **WIDE
            )

        self.sliders = [slider(text, -1.0, 1.0) for text in WEIGHTS]
        self.sliders += [slider("θ₀", own.theta0 - reach, own.theta0 + reach)]
        self.sliders += [slider("Δ  penalty", 0.0, max(reach, own.penalty))]
        self.sliders += [slider("λ  decay", 0.05, max(3.0, own.decay))]
        self.top_k = ipywidgets.IntSlider(own.top_k, 1, max(10, own.top_k), description="K", **WIDE)
        self.fit = ipywidgets.Button(description=f"Fit θ₀ to {knobs.wanted_rate:.0%} of the turns")
        self.reset = ipywidgets.Button(description="Back to the profile")
        self.chat, self.chart, self.facts, self.note = (ipywidgets.HTML() for _ in range(4))
        self.listeners: list[Callable[[], None]] = []
        self._busy = False
        self._put(own)
        for widget in (*self.sliders, self.top_k, self.strategy):
            widget.observe(self._on_knob, names="value")
        self.dialogue.observe(self._opened, names="value")
        self.fit.on_click(self._fitted)
        self.reset.on_click(self._put_back)
        buttons = ipywidgets.HBox([self.fit, self.reset])
        knobs = [self.dialogue, self.strategy, *self.sliders, self.top_k, buttons]
        self.box = columns(self.chat, [*knobs, self.note, self.chart, self.facts])
        self._redraw()

    def settings(self) -> Settings:
        """Where the knobs stand. A browser rounds a value to the slider's step: that is the value put."""
        near = [abs(s.value - x) <= 0.501 * s.step for s, x in zip(self.sliders, self._put_at, strict=True)]
        parts = zip(near, self._put_at, self.sliders, strict=True)
        values = [exact if close else slider.value for close, exact, slider in parts]
        return Settings(tuple(values[:4]), *values[4:], self.top_k.value, self.strategy.value)

    @shows_faults
    def _on_knob(self, _change: Any) -> None:
        if not self._busy and self.settings() != self.view.settings:
            self._redraw()

    @shows_faults
    def _opened(self, _change: Any) -> None:
        fitted = self.view.settings.theta0 == self._fit(self.view.settings)
        self.explorer.open_id = self.dialogue.value
        if fitted:  # each half has a theta0 of its own
            self._put(self.settings()._replace(theta0=self._fit(self.settings())))
        self._redraw()

    def _fit(self, at: Settings) -> float:
        return self.explorer.fit(at.weights, at.penalty, at.decay).gate.theta0

    @shows_faults
    def _fitted(self, _button: Any) -> None:
        self._put(self.settings()._replace(theta0=self._fit(self.settings())))
        self._redraw()

    @shows_faults
    def _put_back(self, _button: Any) -> None:
        self._put(self.explorer.own_settings())
        self._redraw()

    def _put(self, settings: Settings) -> None:
        """Move the knobs without a redraw for each; the ends of a slider give way."""
        self._busy, self._put_at = True, [*settings.weights, *settings[1:4]]
        for slider, value in zip(self.sliders, self._put_at, strict=True):
            slider.min, slider.max = min(slider.min, value), max(slider.max, value)
            slider.value = value
        self.top_k.value, self.strategy.value = settings.top_k, settings.strategy
        self._busy = False

    def _redraw(self) -> None:
        self.view = view = self.explorer.select(self.settings())
        position = self.explorer.profile.retrieval.meme_position
        self.chat.value = chat(view, self.memes, self.pictures, position)
        self.chart.value, self.facts.value = chart(view), facts(view, self.explorer)
        for listener in self.listeners:
            listener()


def is_live(profile: Profile) -> bool:
    """Whether the profile lets a language model be asked now."""
    return profile.models.llm in ("openai", "local") and profile.models.mode in ("auto", "live")


def read_pasted(text: str) -> chats.Context:
    """A chat of one `name: words` a line between two people; the next turn is the other one's."""
    found = [re.split("[：:]", line, maxsplit=1) for line in text.splitlines() if line.strip()]
    lines = tuple((line[0].strip(), line[-1].strip()) for line in found)
    people = list(dict.fromkeys(name for name, _ in lines))
    if not lines or len(people) > 2 or any(len(line) == 1 for line in found):
        raise chats.ChatError("write one line a message, `name: words`, of one or two people")
    other = next((name for name in people if name != lines[-1][0]), "B")
    return chats.Context("pasted", len(lines) + 1, lines, other)


class PasteTab:
    """A pasted chat, its S, E and Psi, and the memes that fit; nothing of it is written down."""

    def __init__(self, library: chats.Library, knobs: DialogueTab) -> None:
        self._library, self._knobs, profile = library, knobs, library.run.profile
        self._query: np.ndarray | None = None
        self.text = ipywidgets.Textarea(EXAMPLE, rows=8, description="chat", **WIDE)
        hints = {"scenario": "S  scenario", "emotion": "E  emotion", "motivation": "Ψ  motivation"}
        self.fields = {n: ipywidgets.Textarea(rows=2, description=hints[n], **WIDE) for n in hints}
        self.ask = ipywidgets.Button(description="Ask the summary agent", disabled=not is_live(profile))
        self.find = ipywidgets.Button(description="Find memes", button_style="primary")
        self.chat, self.found, self.note, self.verdict = (ipywidgets.HTML() for _ in range(4))
        where = f"the endpoint of {profile.models.endpoints.generator.model!r}"
        where = "this machine" if profile.models.llm == "local" else where
        privacy = (
            f"Asked for a summary, the chat goes to {where}." if is_live(profile) else "Write S, E and Ψ."
        )
        if profile.models.embedder == "endpoint":
            privacy += " The three texts go to the embedder's endpoint."
        self.text.observe(self._pasted, names="value")
        self.ask.on_click(self._asked)
        self.find.on_click(self._searched)
        knobs.listeners.append(self._show)
        about = ipywidgets.HTML(drawing.note(f"What you paste is not recorded. {privacy}"))
        right = [self.text, *self.fields.values(), ipywidgets.HBox([self.ask, self.find]), about, self.note]
        self.box = ipywidgets.VBox([columns(self.chat, right), self.verdict, self.found])
        self._pasted(None)

    @shows_faults
    def _pasted(self, _change: Any) -> None:
        self._query, self.found.value, self.verdict.value = None, "", ""
        self._draw(read_pasted(self.text.value))

    @shows_faults
    def _asked(self, _button: Any) -> None:
        answer = chats.summarise_unrecorded(read_pasted(self.text.value), self._library.run)
        if answer.summary is None:
            raise chats.ChatError(f"the model gave no usable summary ({answer.unscored}); write one")
        for name, area in self.fields.items():
            area.value = getattr(answer.summary, name)
        self._searched(None)

    @shows_faults
    def _searched(self, _button: Any) -> None:
        texts = {name: area.value.strip() for name, area in self.fields.items()}
        if not all(texts.values()):
            raise chats.ChatError("write a sentence for each of S, E and Ψ, in the library's language")
        self._query = self._library.queries([SummaryReply(**texts)])
        self._show()

    def _show(self) -> None:
        if self._query is None:
            return
        settings, explorer, index = self._knobs.view.settings, self._knobs.explorer, self._library.index
        ranking = retrieval.top_k(index, self._query, settings.weights, CARDS)
        memes = [self._library.memes[index.meme_ids[meme]] for meme in ranking.memes[0]]
        cards = [shown(meme, self._knobs.pictures) for meme in memes]
        self.found.value = drawing.cards(
            list(zip(cards, ranking.scores[0], ranking.components[0], strict=True))
        )
        scale = explorer.scale(explorer.half[explorer.open_id], settings.weights)
        score = float(scale.apply(ranking.scores[0, 0]))
        sent = "sent" if score > settings.theta0 else "held back by the gate"
        words = f"the best meme is {sent}: {signed(score, 2)} on the gate's scale, θ₀ {signed(settings.theta0, 2)}"
        self.verdict.value = drawing.note(
            f"{formula(settings.weights)} (the weights of the first tab); {words}."
        )
        self._draw(read_pasted(self.text.value), cards[0], sent)

    def _draw(self, pasted: chats.Context, meme: ShownMeme | None = None, sent: str = "") -> None:
        sides = dict.fromkeys(name for name, _ in pasted.lines)
        side = {
            name: ("right", "left")[place % 2] for place, name in enumerate([*sides, pasted.next_speaker])
        }
        turns = [ShownTurn(t, side[name], name, text) for t, (name, text) in enumerate(pasted.lines, start=1)]
        if meme is not None:
            who, note = pasted.next_speaker, f"t = {pasted.turn} · the best meme, {sent}"
            turns.append(ShownTurn(pasted.turn, side[who], who, "", note=note, meme=meme))
        self.chat.value = drawing.chat(turns)
