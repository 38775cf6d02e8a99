"""One self-contained HTML page of chats with the memes that were put into them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from memecmd_utils import html_pages
from memecmd_utils.chat_html import ShownMeme, ShownTurn, Thumbnails
from memecmd_utils.conversations import Conversation

NOTHING = "(no text)"


PICTURES_AT_MOST = 4_000_000
"""Bytes that all pictures of a page take, about; where there are very many, each is smaller."""

LONGEST_SIDE = 120
TABLES = 850
"""Characters that a picture takes in a page however small it is: those of JPEG's tables."""


class Shown(NamedTuple):
    """A meme for the page."""

    meme_id: str
    caption: str
    lines: tuple[str, ...]
    """What is written beside it."""


def render(
    title: str,
    about: str,
    chats: Sequence[Conversation],
    memes: Mapping[tuple[int, int], Shown],
    files: Mapping[str, Path],
    meme_position: str,
) -> str:
    """The page. `memes`: (chat, message) to meme; `files`: meme id to picture.

    Whoever speaks first in a chat stands right. All texts come out escaped; nothing is loaded from elsewhere.
    Each picture is in the page once, however often it is shown.
    """
    pictures = Thumbnails(files, _side(files))
    first = {meme.meme_id: meme for meme in memes.values()}
    defined = {
        name: ShownMeme(name, pictures[name], meme.caption, defined=f"meme-{number}")
        for number, (name, meme) in enumerate(first.items())
    }
    shown = [{"name": chat.name, "turns": _turns(i, chat, memes, defined)} for i, chat in enumerate(chats)]
    page = html_pages.environment().get_template("inserted_chat.html.j2")
    return page.render(
        title=title, about=about, chats=shown, memes=list(defined.values()), meme_position=meme_position
    )


def _side(files: Mapping[str, Path]) -> int:
    """Longest side of a picture in CSS pixels: 120, or less where all would take more than they may."""
    if not files:
        return LONGEST_SIDE
    some = dict(list(files.items())[:: -(-len(files) // 40)])
    made = Thumbnails(some, LONGEST_SIDE)
    usual = sum(len(made[name].url) for name in some) / len(some) - TABLES
    # What is left of the size grows about as the area does.
    room = max(0.0, PICTURES_AT_MOST / len(files) - TABLES)
    return max(24, min(LONGEST_SIDE, int(LONGEST_SIDE * (room / max(1.0, usual)) ** 0.5)))


def _turns(
    number: int,
    chat: Conversation,
    memes: Mapping[tuple[int, int], Shown],
    defined: Mapping[str, ShownMeme],
) -> list[ShownTurn]:
    first = next((m.speaker for m in chat.messages if m.speaker), "")
    turns = []
    for place, message in enumerate(chat.messages):
        found = memes.get((number, place))
        meme = None if found is None else replace(defined[found.meme_id], lines=found.lines)
        note = "" if message.text.strip() else NOTHING
        side = "right" if message.speaker and message.speaker == first else "left"
        turns.append(
            ShownTurn(
                place + 1, side, message.speaker, message.text, note=_joined(message.speaker, note), meme=meme
            )
        )
    return turns


def _joined(*parts: str) -> str:
    return " · ".join(part for part in parts if part)
