"""The library on the page of a run: small pictures, each embedded once, with captions and annotations."""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from memecmd_utils import schemas
from memecmd_utils.provenance import describe_source

SIDE = 240
"""Longest side of a picture on the page, in pixels."""
FIRST = 12
"""Cards of the sheet that a page shows at once: two rows on a desk, six on a phone."""
PICTURE_BYTES = 2_500_000
"""Most that the pictures of the sheet may take, in bytes of the page (base64); those that the chats need
are always there and count as well."""


@dataclass(frozen=True)
class Card:
    """One meme of the sheet. `annotation` is None where the annotator gave nothing usable."""

    meme: schemas.Meme
    annotation: schemas.Annotation | None
    unscored: str
    picture: str
    placed: Mapping[str, int]
    """How often each strategy placed it in the whole run."""


@dataclass(frozen=True)
class Sheet:
    """The cards that the page shows, in the library's order, and what is to be said of them."""

    cards: list[Card]
    total: int
    licences: list[tuple[str, int]]
    """Licences of the pictures shown with their number; the empty name is a picture without one."""

    annotators: list[str]
    """Who wrote the annotations shown, in words."""

    first: int = FIRST
    """Cards that stand open on the page; the others are folded."""

    @property
    def unlicensed(self) -> int:
        """Pictures shown of which no licence is known."""
        return dict(self.licences).get("", 0)


def sheet(
    memes: Sequence[schemas.Meme],
    annotations: Sequence[schemas.Annotation],
    placements: Sequence[schemas.Placement],
    picture: Callable[[str], str],
    needed: Collection[str] = (),
    budget: int = PICTURE_BYTES,
) -> Sheet:
    """Choose and fill the cards: all memes in `needed`, then others in order while the pictures fit.

    `picture`: the data URL of a meme's small picture, by its id.
    `budget`: bytes for all pictures together; the first meme that does not fit ends the choice.
    """
    chosen = {meme.meme_id for meme in memes if meme.meme_id in needed}
    left = budget - sum(len(picture(name)) for name in chosen)
    for meme in memes:
        if meme.meme_id in chosen:
            continue
        left -= len(picture(meme.meme_id)) if left > 0 else 0
        if left <= 0:
            break
        chosen.add(meme.meme_id)
    said = {annotation.meme_id: annotation for annotation in annotations}
    times = Counter((placed.meme_id, placed.strategy) for placed in placements)
    strategies = dict.fromkeys(placed.strategy for placed in placements)
    cards = [
        _card(
            meme,
            said.get(meme.meme_id),
            picture(meme.meme_id),
            {name: times[meme.meme_id, name] for name in strategies if times[meme.meme_id, name]},
        )
        for meme in memes
        if meme.meme_id in chosen
    ]
    licences = Counter(card.meme.licence for card in cards)
    annotators = sorted({card.annotation.source for card in cards if card.annotation is not None})
    return Sheet(cards, len(memes), sorted(licences.items()), [describe_source(a) for a in annotators])


def _card(meme: schemas.Meme, said: schemas.Annotation | None, picture: str, uses: Mapping[str, int]) -> Card:
    unscored = "no annotation" if said is None else said.unscored
    return Card(meme, None if unscored else said, unscored, picture, uses)


def captions(shown: Sheet) -> list[list[Any]]:
    """What a script has to know of the cards, in their order: id, caption, gloss."""
    return [[card.meme.meme_id, card.meme.text, card.meme.gloss] for card in shown.cards]
