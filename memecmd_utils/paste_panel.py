"""The second tab of notebook 04's panel: a chat of one's own and the memes that would fit it."""

from typing import Any

import ipywidgets

from memecmd_utils import chat_html, chat_readers, conversations, explorer_view, panel_parts
from memecmd_utils.chat_html import ShownMeme, ShownTurn
from memecmd_utils.conversations import ChatError, Context
from memecmd_utils.explorer import Settings
from memecmd_utils.library_search import Library
from memecmd_utils.panel_parts import LABEL, WIDE, told
from memecmd_utils.profiles import Profile
from memecmd_utils.retrieval import top_k
from memecmd_utils.schemas import SummaryReply

CARDS = 6
EXAMPLE = "小雨：周末爬山去不去\n阿杰：天气预报说要下雨\n小雨：又下雨，我的帐篷白买了"


def is_live(profile: Profile) -> bool:
    """Whether the profile lets a language model be asked now."""
    return profile.llm in ("openai", "local") and profile.mode in ("auto", "live")


def where_it_goes(profile: Profile) -> str:
    """Say what happens to a pasted text under this profile."""
    texts = "What you paste is not recorded."
    if is_live(profile):
        remote = f"goes to the endpoint of {profile.endpoints.generator.model!r}"
        where = "stays on this machine" if profile.llm == "local" else remote
        texts += f" Asked for a summary, the chat {where} (llm={profile.llm})."
    else:
        texts += (
            " No live model is set up (profile keys llm and mode), so write S, E and Ψ by hand, in the"
            " library's language, or change them to see what moves."
        )
    if profile.embedder == "endpoint":
        return f"{texts} The three texts go to the embedder's endpoint to be turned into vectors."
    return f"{texts} {profile.embedder} turns the three texts into vectors on this machine."


class PasteTab:
    """A pasted chat, its S, E and Psi, and the memes that fit; nothing of it is written down."""

    def __init__(self, library: Library, knobs: Any) -> None:
        """`knobs` is the other tab: it gives weights and theta0 and is listened to."""
        self._library, self._knobs = library, knobs
        self._query: Any = None
        self._parsed: Context | None = None
        profile = library.run.profile

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
        self.ask = ipywidgets.Button(description="Ask the summary agent", disabled=not is_live(profile))
        self.find = ipywidgets.Button(description="Find memes", button_style="primary")
        self.chat, self.found, self.note, self.weights = (ipywidgets.HTML() for _ in range(4))
        self.privacy = ipywidgets.HTML(chat_html.note(where_it_goes(profile)))
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
        self._parsed = chat_readers.read_pasted(self.text.value)
        self._draw_chat(None)

    @told
    def _asked(self, _button: Any) -> None:
        if self._parsed is None:
            self._parsed = chat_readers.read_pasted(self.text.value)
        self.note.value = chat_html.note("The model is asked; this may take a while.")
        told = conversations.summarise_unrecorded(self._parsed, self._library.run)
        if told.summary is None:
            raise ChatError(f"the model gave no usable summary ({told.unscored}); write one")
        for name, field in self.fields.items():
            field.value = getattr(told.summary, name)
        self._search()
        self.note.value = chat_html.note(f"S, E and Ψ by {told.source}; change them as you like.")

    @told
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
        shown = [
            ShownMeme(name, self._knobs.pictures[name], explorer_view.caption_of(self._library.memes[name]))
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
        sides = ("left", "right")  # the two take turns, the first on the right
        turns = [ShownTurn(t, sides[t % 2], name, text) for t, (name, text) in enumerate(chat.lines, start=1)]
        if meme is not None:
            t = chat.turn
            note = f"t = {t} · the best meme, {what}"
            turns.append(ShownTurn(t, sides[t % 2], chat.next_speaker, "", note=note, meme=meme))
        self.chat.value = chat_html.chat(turns)
