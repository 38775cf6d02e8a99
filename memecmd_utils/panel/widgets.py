"""The panel of notebook 04: every knob of the retrieval beside the chat, and a chat of one's own.

`explore` gives the live panel in JupyterLab and a picture of its first position in a headless run.
Parts are `HTML` widgets whose text is replaced: the `Output` widget never returns under nbclient.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import ipywidgets

from memecmd_utils import drawing, schemas
from memecmd_utils.chats import insertion, messages, transcripts
from memecmd_utils.chats.insertion import Library
from memecmd_utils.chats.messages import ChatError, Context
from memecmd_utils.drawing import ShownMeme, ShownTurn, Thumbnails, caption_of
from memecmd_utils.files import MemecmdError, is_headless
from memecmd_utils.panel import explorer as panel_explorer
from memecmd_utils.panel.explorer import Explorer, Settings, View
from memecmd_utils.retrieval.placement import ScoredDialogue
from memecmd_utils.retrieval.scoring import MemeIndex, top_k
from memecmd_utils.runs import Run
from memecmd_utils.schemas import Meme, SummaryReply
from memecmd_utils.settings import Profile

WIDE = {"layout": {"width": "98%"}, "style": {"description_width": "112px"}}


def shows_faults(method: Callable) -> Callable:
    """Show a fault of a callback in the tab's `note`: what it raises ends in a log that nobody reads.

    A `MemecmdError` is the reader's to mend and goes no further; everything else is raised on.
    """

    @functools.wraps(method)
    def wrapped(self, *arguments: Any) -> None:
        try:
            self.note.value = ""
            method(self, *arguments)
        except MemecmdError as error:
            self.note.value = drawing.note(str(error), error=True)
        except Exception as error:
            self.note.value = drawing.note(f"{type(error).__name__}: {error}", error=True)
            raise

    return wrapped


class Knob:
    """A slider that tells every move, in steps of the last digit it shows; ends take in its own value.

    A browser rounds what it is given to whole steps and sends that back. So a position within half a step
    of the value that was put stands for that value, to its last digit.
    """

    def __init__(self, value: float, low: float, high: float, digits: int, text: str, sign: str = "") -> None:
        self.digits, self._exact = digits, value
        self.slider = ipywidgets.FloatSlider(
            value=value,
            min=min(low, value),
            max=max(high, value),
            step=10.0**-digits,
            description=text,
            readout_format=f"{sign}.{digits}f",
            continuous_update=True,
            **WIDE,
        )

    @property
    def value(self) -> float:
        """Where the knob stands."""
        position = self.slider.value
        near = abs(position - self._exact) <= 0.501 * self.slider.step
        return self._exact if near else round(position, self.digits)

    def put(self, value: float) -> None:
        """Move it; the ends give way, for a slider would cut the value off in silence."""
        self._exact = value
        self.slider.min, self.slider.max = min(self.slider.min, value), max(self.slider.max, value)
        self.slider.value = value


def buttons(*which: Any) -> Any:
    """Buttons in a row, as wide as their words; on a narrow screen below each other."""
    for button in which:
        button.layout.width = "auto"
    return ipywidgets.HBox(which, layout=ipywidgets.Layout(flex_flow="row wrap"))


def columns(left: Any, right: list[Any], **frame: str) -> Any:
    """`left` in a frame that scrolls, knobs to its right; on a narrow screen below it.

    The frame scrolls, not what is in it: the reader stays where they are when the chat is redrawn.
    """
    scrolling = ipywidgets.Layout(overflow="hidden auto", flex="1 1 360px", min_width="0", **frame)
    box = ipywidgets.Box([left], layout=scrolling)
    box.layout.display = "block"
    box.add_class("mc-frame")
    aside = ipywidgets.VBox(right, layout=ipywidgets.Layout(flex="1 1 420px", min_width="0"))
    wrap = ipywidgets.Layout(flex_flow="row wrap", align_items="flex-start", grid_gap="14px")
    return ipywidgets.HBox([box, aside], layout=wrap)


# --- A chat of one's own and the memes that would fit it


CARDS = 6
EXAMPLE = "小雨：周末爬山去不去\n阿杰：天气预报说要下雨\n小雨：又下雨，我的帐篷白买了"


def is_live(profile: Profile) -> bool:
    """Whether the profile lets a language model be asked now."""
    return profile.models.llm in ("openai", "local") and profile.models.mode in ("auto", "live")


def where_it_goes(profile: Profile) -> str:
    """Say what happens to a pasted text under this profile."""
    texts = "What you paste is not recorded."
    if is_live(profile):
        remote = f"goes to the endpoint of {profile.models.endpoints.generator.model!r}"
        where = "stays on this machine" if profile.models.llm == "local" else remote
        texts += f" Asked for a summary, the chat {where} (llm={profile.models.llm})."
    else:
        texts += (
            " No live model is set up (profile keys llm and mode), so write S, E and Ψ by hand, in the"
            " library's language, or change them to see what moves."
        )
    if profile.models.embedder == "endpoint":
        return f"{texts} The three texts go to the embedder's endpoint to be turned into vectors."
    return f"{texts} {profile.models.embedder} turns the three texts into vectors on this machine."


class PasteTab:
    """A pasted chat, its S, E and Psi, and the memes that fit; nothing of it is written down."""

    def __init__(self, library: Library, knobs: Any) -> None:
        """`knobs` is the other tab: it gives weights and theta0 and is listened to."""
        self._library, self._knobs = library, knobs
        self._query: Any = None
        self._parsed: Context | None = None
        profile = library.run.profile

        def area(text: str, rows: int, value: str = "", hint: str = "") -> Any:
            return ipywidgets.Textarea(value, rows=rows, description=text, placeholder=hint, **WIDE)

        self.text = area("chat", 8, EXAMPLE, "名字：文字")
        self.fields = {
            "scenario": area("S  scenario", 2, hint="who talks of what, and where they are"),
            "emotion": area("E  emotion", 2, hint="the tone the next message may have"),
            "motivation": area("Ψ  motivation", 2, hint="what a meme would be sent for"),
        }
        self.ask = ipywidgets.Button(description="Ask the summary agent", disabled=not is_live(profile))
        self.find = ipywidgets.Button(description="Find memes", button_style="primary")
        self.chat, self.found, self.note, self.weights = (ipywidgets.HTML() for _ in range(4))
        self.privacy = ipywidgets.HTML(drawing.note(where_it_goes(profile)))
        self.text.observe(self._pasted, names="value")
        self.ask.on_click(self._asked)
        self.find.on_click(self._searched)
        knobs.listeners.append(self._reweighed)
        row = buttons(self.ask, self.find)
        right = [self.text, *self.fields.values(), row, self.privacy, self.note]
        chat = columns(self.chat, right, max_height="620px")
        self.box = ipywidgets.VBox([chat, self.weights, self.found])
        self._pasted(None)

    @shows_faults
    def _pasted(self, _change: Any) -> None:
        self._parsed, self._query = None, None
        self.chat.value = self.found.value = self.weights.value = ""
        self._parsed = transcripts.read_pasted(self.text.value)
        self._draw_chat(None)

    @shows_faults
    def _asked(self, _button: Any) -> None:
        if self._parsed is None:
            self._parsed = transcripts.read_pasted(self.text.value)
        self.note.value = drawing.note("The model is asked; this may take a while.")
        answer = messages.summarise_unrecorded(self._parsed, self._library.run)
        if answer.summary is None:
            raise ChatError(f"the model gave no usable summary ({answer.unscored}); write one")
        for name, field in self.fields.items():
            field.value = getattr(answer.summary, name)
        self._search()
        self.note.value = drawing.note(f"S, E and Ψ by {answer.source}; change them as you like.")

    @shows_faults
    def _searched(self, _button: Any) -> None:
        self._search()

    def _search(self) -> None:
        texts = {name: field.value.strip() for name, field in self.fields.items()}
        empty = [self.fields[name].description for name, text in texts.items() if not text]
        if empty:
            raise ChatError(f"write a sentence for each: {', '.join(empty)}")
        self._query = self._library.queries([SummaryReply(**texts)])
        self._show()

    def _reweighed(self) -> None:
        if self._query is not None:
            self._show()

    def _show(self) -> None:
        settings = self._knobs.settings()
        ranking = top_k(self._library.index, self._query, settings.weights, CARDS)
        ids = [self._library.index.meme_ids[meme] for meme in ranking.memes[0]]
        cards = [
            ShownMeme(meme.meme_id, self._knobs.pictures[meme.meme_id], caption_of(meme), gloss=meme.gloss)
            for meme in (self._library.memes[name] for name in ids)
        ]
        self.found.value = drawing.cards(
            list(zip(cards, ranking.scores[0], ranking.components[0], strict=True))
        )
        scale, _ = self._knobs.explorer.scale(settings.weights)
        score = float(scale.apply(ranking.scores[0, 0]))
        self.weights.value = drawing.note(self._verdict(score, settings))
        self._draw_chat(cards[0], "sent" if score > settings.theta0 else "held back by the gate")

    def _verdict(self, score: float, settings: Settings) -> str:
        sent = "sends it" if score > settings.theta0 else "holds it back"
        score_text, theta0 = drawing.signed(score, 2), drawing.signed(settings.theta0, 2)
        return (
            f"{panel_explorer.formula(settings.weights)} (the weights of the first tab). On the gate's scale "
            f"the best has {score_text}; with θ₀ = {theta0} and no meme in the chat so far the gate {sent}."
        )

    def _draw_chat(self, meme: ShownMeme | None, what: str = "") -> None:
        chat = self._parsed
        if chat is None:
            return
        sides = ("left", "right")  # the two take turns, the first on the right
        turns = [ShownTurn(t, sides[t % 2], name, text) for t, (name, text) in enumerate(chat.lines, start=1)]
        if meme is not None:
            t = chat.turn
            note = f"t = {t} · the best meme, {what}"
            turns.append(ShownTurn(t, sides[t % 2], chat.next_speaker, "", note=note, meme=meme))
        self.chat.value = drawing.chat(turns)


# --- A dialogue of the run under any setting


STRATEGIES = {f"{named.label}: {named.does}": name for name, named in schemas.STRATEGIES.items()}
WEIGHTS = ("w₁ · α  scenario", "w₂ · δ  unfitting", "w₃ · β  emotion", "w₄ · γ  motivation")
MOST_K = 10


def explore(run: Run, scored: Sequence[ScoredDialogue], index: MemeIndex, memes: Mapping[str, Meme]) -> Any:
    """The panel for a run; where nobody can turn a knob (`headless`), a picture of its first position."""
    explorer = Explorer(scored, index, run.profile)
    folder = run.read("memes.parquet").parent
    files = {name: folder / meme.file for name, meme in memes.items()}
    if is_headless():
        from IPython.display import Image as Shown

        view = explorer.select(explorer.own_settings())
        picture = panel_explorer.still(view, files, run.profile.retrieval.meme_position)
        return Shown(drawing.encode(picture, "jpeg"), width=picture.width)
    first = DialogueTab(explorer, memes, files)
    if index.search is None:  # the pictures of a large library would fill the memory
        first.pictures.make_ahead()
    library = Library(run, memes, index, insertion.unrecorded(run, run))
    second = PasteTab(library, first)
    both = ipywidgets.Tab([first.box, second.box], titles=["A chat of the run", "A chat of your own"])
    return ipywidgets.VBox([ipywidgets.HTML(drawing.styles()), both])


class DialogueTab:
    """Knobs and picker beside the chat; `box` is what is shown, `view` what it shows."""

    view: View

    def __init__(self, explorer: Explorer, memes: Mapping[str, Meme], files: Mapping[str, Path]) -> None:
        self.explorer, self.pictures, self._memes = explorer, Thumbnails(files), memes
        self.theta0_is_fitted = explorer.profile.retrieval.theta0 == "auto"
        own, (low, high) = explorer.own_settings(), explorer.gate_range()
        names = {f"{name} · {d.title}": name for name, d in explorer.dialogues.items()}
        self.dialogue = ipywidgets.Dropdown(options=names, description="dialogue", **WIDE)
        self.strategy = ipywidgets.Dropdown(
            options=STRATEGIES, value=own.strategy, description="strategy", **WIDE
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
        self.top_k = ipywidgets.IntSlider(own.top_k, 1, max(MOST_K, own.top_k), description="K", **WIDE)
        rate = explorer.profile.retrieval.wanted_rate
        self.fit = ipywidgets.Button(description=f"Fit θ₀ to {rate:.0%} of the turns")
        self.reset = ipywidgets.Button(description="Back to the profile")
        self.chat, self.chart, self.facts, self.note = (ipywidgets.HTML() for _ in range(4))
        self.listeners: list[Callable[[], None]] = []
        self._busy = False
        sliders = [knob.slider for knob in (*self.weights, self.theta0, self.penalty, self.decay)]
        for widget in (*sliders, self.top_k, self.strategy):
            widget.observe(self._on_knob, names="value")
        self.dialogue.observe(self._opened, names="value")
        self.fit.on_click(self._fitted)
        self.reset.on_click(self._put_back)
        row = buttons(self.fit, self.reset)
        right = [self.dialogue, self.strategy, *sliders, self.top_k, row, self.note, self.chart, self.facts]
        self.box = columns(self.chat, right, height="780px", border="1px solid #ccc")
        self._redraw()

    def settings(self) -> Settings:
        """Where the knobs stand."""
        weights = tuple(knob.value for knob in self.weights)
        numbers = self.theta0.value, self.penalty.value, self.decay.value, self.top_k.value
        return Settings(weights, *numbers, self.strategy.value)

    @shows_faults
    def _on_knob(self, _change: Any) -> None:
        settings, before = self.settings(), self.view.settings
        if self._busy or settings == before:  # the browser's rounding moves nothing
            return
        gate = replace(settings, top_k=before.top_k, strategy=before.strategy)
        self.theta0_is_fitted &= gate == before
        self._redraw()

    @shows_faults
    def _opened(self, _change: Any) -> None:
        self.explorer.open(self.dialogue.value)
        if self.theta0_is_fitted:  # each half has a theta0 of its own
            self._put(self.explorer.fit(self.settings()))
        self._redraw()

    @shows_faults
    def _fitted(self, _button: Any) -> None:
        self._put(self.explorer.fit(self.settings()))
        self.theta0_is_fitted = True
        self._redraw()

    @shows_faults
    def _put_back(self, _button: Any) -> None:
        self._put(self.explorer.own_settings())
        self.theta0_is_fitted = self.explorer.profile.retrieval.theta0 == "auto"
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
        position = self.explorer.profile.retrieval.meme_position
        self.chat.value = panel_explorer.chat(view, self._memes, self.pictures, position)
        self.chart.value = panel_explorer.chart(view)
        self.facts.value = panel_explorer.facts(view, self.explorer, self.theta0_is_fitted)
        for listener in self.listeners:
            listener()
