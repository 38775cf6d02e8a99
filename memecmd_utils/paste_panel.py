"""The second tab of notebook 04's panel: a chat of one's own and the memes that would fit it."""

from collections.abc import Mapping
from typing import Any

import ipywidgets

from memecmd_utils import chat_html, explorer_view, panel_parts, pasted_chat
from memecmd_utils.chat_html import ShownMeme, ShownTurn
from memecmd_utils.explorer import Settings
from memecmd_utils.panel_parts import LABEL, WIDE, told
from memecmd_utils.pasted_chat import PastedRetrieval
from memecmd_utils.runs import Run
from memecmd_utils.schemas import Meme, SummaryReply

CARDS = 6
EXAMPLE = "小雨：周末爬山去不去\n阿杰：天气预报说要下雨\n小雨：又下雨，我的帐篷白买了"


class PasteTab:
    """A pasted chat, its S, E and Psi, and the memes that fit; nothing of it is written down."""

    def __init__(self, run: Run, retrieval: PastedRetrieval, knobs: Any, memes: Mapping[str, Meme]) -> None:
        """`knobs` is the other tab: it gives weights and theta0 and is listened to."""
        self._run, self._retrieval, self._knobs, self._memes = run, retrieval, knobs, memes
        self._query: Any = None
        self._parsed: pasted_chat.PastedChat | None = None

        def area(text: str, rows: int, value: str = "", hint: str = "") -> Any:
            return ipywidgets.Textarea(
                value=value,
                rows=rows,
                description=text,
                placeholder=hint,
                style=LABEL,
                layout=ipywidgets.Layout(width=WIDE),
            )

        self.text = area("chat", 8, EXAMPLE, "名字：文字")
        self.fields = {
            "scenario": area("S  scenario", 2, hint="who talks of what, and where they are"),
            "emotion": area("E  emotion", 2, hint="the tone the next message may have"),
            "motivation": area("Ψ  motivation", 2, hint="what a meme would be sent for"),
        }
        live = pasted_chat.is_live(run.profile)
        self.ask = ipywidgets.Button(description="Ask the summary agent", disabled=not live)
        self.find = ipywidgets.Button(description="Find memes", button_style="primary")
        self.chat, self.found, self.note, self.weights = (ipywidgets.HTML() for _ in range(4))
        self.privacy = ipywidgets.HTML(chat_html.note(pasted_chat.where_it_goes(run.profile)))
        self.text.observe(self._pasted, names="value")
        self.ask.on_click(self._asked)
        self.find.on_click(self._searched)
        knobs.listeners.append(self._reweighed)
        self.box = self._arrange()
        self._pasted(None)

    def _arrange(self) -> Any:
        row = panel_parts.buttons(self.ask, self.find)
        right = [self.text, *self.fields.values(), row, self.privacy, self.note]
        return ipywidgets.VBox(
            [panel_parts.columns(self.chat, right, max_height="620px"), self.weights, self.found]
        )

    @told
    def _pasted(self, _change: Any) -> None:
        self._parsed, self._query = None, None
        self.chat.value = self.found.value = self.weights.value = ""
        self._parsed = pasted_chat.parse(self.text.value)
        self._draw_chat(None)

    @told
    def _asked(self, _button: Any) -> None:
        if self._parsed is None:
            self._parsed = pasted_chat.parse(self.text.value)
        self.note.value = chat_html.note("The model is asked; this may take a while.")
        summary = pasted_chat.summarise(self._parsed, self._run)
        if summary.unscored:
            raise pasted_chat.ChatError(f"the model gave no usable summary ({summary.unscored}); write one")
        for name, field in self.fields.items():
            field.value = getattr(summary, name)
        self._search()
        self.note.value = chat_html.note(f"S, E and Ψ by {summary.source}; change them as you like.")

    @told
    def _searched(self, _button: Any) -> None:
        self._search()

    def _search(self) -> None:
        texts = {name: field.value.strip() for name, field in self.fields.items()}
        empty = [self.fields[name].description for name, text in texts.items() if not text]
        if empty:
            raise pasted_chat.ChatError(f"write a sentence for each: {', '.join(empty)}")
        self._query = self._retrieval.queries(SummaryReply(**texts))
        self._show()

    def _reweighed(self) -> None:
        if self._query is not None:
            self._show()

    def _show(self) -> None:
        settings = self._knobs.settings()
        ranking = self._retrieval.top(self._query, settings.weights, CARDS)
        ids = [self._retrieval.index.meme_ids[meme] for meme in ranking.memes[0]]
        shown = [
            ShownMeme(name, self._knobs.pictures[name], explorer_view.caption_of(self._memes[name]))
            for name in ids
        ]
        self.found.value = chat_html.cards(
            list(zip(shown, ranking.scores[0], ranking.components[0], strict=True))
        )
        scale, _ = self._knobs.explorer.scale(settings.weights)
        score = float(scale.apply(ranking.scores[0, 0]))
        self.weights.value = chat_html.note(self._verdict(score, settings))
        self._draw_chat(shown[0], "sent" if score > settings.theta0 else "held back by the gate")

    def _verdict(self, score: float, settings: Settings) -> str:
        sent = "sends it" if score > settings.theta0 else "holds it back"
        score_text, theta0 = chat_html.signed(score, 2), chat_html.signed(settings.theta0, 2)
        return (
            f"{explorer_view.formula(settings.weights)} (the weights of the first tab). On the gate's scale "
            f"the best has {score_text}; with θ₀ = {theta0} and no meme in the chat so far the gate {sent}."
        )

    def _draw_chat(self, meme: ShownMeme | None, what: str = "") -> None:
        chat = self._parsed
        if chat is None:
            return
        sides = ("right", "left")
        turns = [
            ShownTurn(number, sides[line.speaker], chat.names[line.speaker], line.text)
            for number, line in enumerate(chat.lines, start=1)
        ]
        if meme is not None:
            t = len(turns) + 1
            note = f"t = {t} · the best meme, {what}"
            turns.append(ShownTurn(t, sides[(t - 1) % 2], chat.next_name, "", note=note, meme=meme))
        self.chat.value = chat_html.chat(turns)
