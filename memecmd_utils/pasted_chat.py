"""A chat that a user pastes: read, summarised (where a model is set up) and held against the library.

Nothing of it is written down, in recordings or anywhere else. It leaves the machine only where the profile
names a live endpoint.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from memecmd_utils import chat_columns, chat_transcripts, dialogue_generation, llm, selection
from memecmd_utils.embedding import Embedder, RecordedEmbedder, embedder_of
from memecmd_utils.errors import MemecmdError
from memecmd_utils.profiles import Profile
from memecmd_utils.retrieval import (
    QUERY_FIELDS,
    MemeIndex,
    Ranking,
    build_queries,
    centre,
    mean_row,
    top_k,
)
from memecmd_utils.runs import Run
from memecmd_utils.schemas import ColdStart, Dialogue, Summary, SummaryReply

MAX_CHARS, MAX_TURNS = 20_000, 200


class ChatError(MemecmdError, ValueError):
    """A pasted chat that cannot be read; the message says what to change."""


class Line(NamedTuple):
    """One turn: what one of the two says until the other speaks."""

    speaker: int
    """0: who speaks first (A), 1: the other (B)."""
    text: str


@dataclass(frozen=True)
class PastedChat:
    """Turns that alternate, A first."""

    names: tuple[str, str]
    lines: tuple[Line, ...]

    @property
    def next_name(self) -> str:
        """Who would speak, and send a meme, next."""
        return self.names[len(self.lines) % 2]


def parse(text: str) -> PastedChat:
    """Read a chat between two people: as a chat program copies it, or `name: text` a line.

    Where messages begin with a line of name and time (`chat_transcripts.parse`), all lines up to the next
    such line are one message. Else a line without a name is said by the other one; so lines without any name
    alternate. A name alone on its line goes with the next line, a day or a time alone on its line with none.
    Lines of the same speaker one after the other become one turn. Raises `ChatError` for an empty chat, three
    names, or one that is too long.
    """
    if len(text) > MAX_CHARS:
        raise ChatError(f"the chat has {len(text):,} characters; {MAX_CHARS:,} at most")
    text = text.lstrip("\ufeff")
    speakers: dict[str, int] = {}
    said: list[Line] = []
    waiting: int | None = None  # whose name stood alone on the line before
    for number, name, words in _lines(text):
        if name:
            if name not in speakers:
                _check_third(name, speakers, number)
                # The first name may come after lines without one: then those before it are the other's.
                known = next(iter(speakers.values()), said[-1].speaker if said else 1)
                speakers[name] = 1 - known
            speaker = speakers[name]
            if not words:
                waiting = speaker
                continue
        elif waiting is not None:
            speaker = waiting
        else:
            speaker = 1 - said[-1].speaker if said else 0
        waiting = None
        if said and said[-1].speaker == speaker:
            said[-1] = Line(speaker, f"{said[-1].text} {words}")
        else:
            said.append(Line(speaker, words))
    if not said:
        raise ChatError("nothing to read yet: paste a chat, one line for each message")
    if len(said) > MAX_TURNS:
        raise ChatError(f"the chat has {len(said)} turns; {MAX_TURNS} at most")
    names = {speaker: name for name, speaker in speakers.items()}
    spare = iter(name for name in ("甲", "乙") if name not in speakers)
    first = said[0].speaker  # 1 where the first name stood alone and the other one spoke
    lines = tuple(Line(line.speaker ^ first, line.text) for line in said)
    return PastedChat(tuple(names.get(who) or next(spare) for who in (first, 1 - first)), lines)


def _lines(text: str) -> Iterator[tuple[int, str, str]]:
    """Number, name and words of each message of a copied chat, or of each line of another."""
    copied = chat_transcripts.parse(text)
    if copied is not None:
        for message in copied.messages:
            read = chat_columns.said(message.speaker, message.text)
            if read.speaker and message.text:  # a picture is a turn, a note of the program is none
                yield message.first + 1, read.speaker, " ".join(message.text.split())
        return
    lines = chat_transcripts.split(text)
    labelled = chat_transcripts.labels(lines)
    for number, (name, words) in enumerate(labelled, start=1):
        if words and not (not name and chat_transcripts.is_between(labelled, number - 1)):
            yield number, name, words
        elif name:
            yield number, name, ""


def _check_third(name: str, speakers: dict[str, int], number: int) -> None:
    if len(speakers) == 2:
        raise ChatError(
            f"line {number}: {name!r} would be a third person beside {' and '.join(map(repr, speakers))}; "
            "a chat here has two. If it is no name, write the line without the colon"
        )


# --- the summary agent --------------------------------------------------------------------------------


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


def summarise(chat: PastedChat, run: Run) -> Summary:
    """Ask the run's generator for (S, E, Psi) from the next speaker's side (Eq. 16); nothing is recorded.

    Raises `ChatError` where no live model is set up, and what the seam to models raises.
    """
    if not is_live(run.profile):
        raise ChatError("no live model is set up: llm is openai or local, mode is auto or live")
    start = ColdStart(
        source="pasted",
        dialogue_id="pasted",
        kind="news",
        ref="pasted",
        title="pasted",
        name_a=chat.names[0],
        name_b=chat.names[1],
        context="pasted",
        brief="pasted",
    )
    with run.chat("generator", "pasted_chat") as asked:
        asked.recordings = None  # neither looked up nor written down
        return llm.run(
            dialogue_generation.summarise(start, [line.text for line in chat.lines], asked, run.profile)
        )


# --- retrieval ----------------------------------------------------------------------------------------


class PastedRetrieval:
    """Ranks a run's library for texts that the run has never seen."""

    def __init__(
        self,
        profile: Profile,
        index: MemeIndex,
        dialogues: Sequence[Dialogue],
        encode: selection.Encode,
        paying: Callable[[Embedder], Embedder] = lambda embedder: embedder,
    ) -> None:
        """`dialogues` are the run's, with `encode` for their summaries: their mean is subtracted where the
        profile centres vectors. `paying` has a run pay for the embedder of an endpoint (`Run.paying`).
        """
        self.index = index
        self._profile, self._dialogues, self._encode, self._paying = profile, dialogues, encode, paying
        self._embedder: RecordedEmbedder | None = None
        self._means: dict[str, np.ndarray | None] | None = None

    def queries(self, summary: SummaryReply) -> np.ndarray:
        """Unweighted query [1, 4, dim] of S, E, Psi."""
        profile = self._profile
        if self._embedder is None:
            if profile.embedder == "endpoint" and profile.mode == "recorded":
                raise ChatError("embedder=endpoint in mode recorded asks nobody: set mode=auto")
            # No folders: nothing is read from recordings or written to them.
            self._embedder = RecordedEmbedder(self._paying(embedder_of(profile)), (), None, "live")
        if self._means is None:
            self._means = self._query_means()
        parts = []
        for field in QUERY_FIELDS:
            vector = self._embedder.encode([getattr(summary, field)], "query")
            mean = self._means[field]
            parts.append(vector if mean is None else centre(vector, mean))
        return build_queries(*parts)

    def _query_means(self) -> dict[str, np.ndarray | None]:
        """Mean vector of the run's own summaries for each field; None where vectors are not centred."""
        usable = [s for dialogue in self._dialogues for s in dialogue.summaries if not s.unscored]
        if self._profile.centring != "attribute" or len(usable) < 2:
            return dict.fromkeys(QUERY_FIELDS)
        texts = {field: [getattr(summary, field) for summary in usable] for field in QUERY_FIELDS}
        return {field: mean_row(self._encode(texts[field], "query")) for field in QUERY_FIELDS}

    def top(self, queries: np.ndarray, weights: Sequence[float], k: int) -> Ranking:
        """The K best memes (Eq. 22, 24)."""
        return top_k(self.index, queries, weights, k)
