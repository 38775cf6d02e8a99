"""When two short texts are the same for a reader: letters and digits alike, or nearly."""

import difflib
import unicodedata


def normalise_text(text: str) -> str:
    """Text for comparison: NFKC, lower case, letters and digits only.

    A text of signs alone ("？？？") keeps its signs: it would else count as no text.
    """
    folded = unicodedata.normalize("NFKC", text).casefold()
    letters = "".join(c for c in folded if unicodedata.category(c)[0] in "LN")
    return letters or "".join(folded.split())


def similarity(a: str, b: str) -> float:
    """Share of common text, 0-1, of two normalised texts; two empty texts are equal (1)."""
    first, second = sorted((a, b))  # difflib's ratio depends on the order
    return difflib.SequenceMatcher(None, first, second, autojunk=False).ratio()


def alike(a: str, b: str, min_similarity: float) -> bool:
    """Whether two normalised texts are equal or at least `min_similarity` similar."""
    # The lengths give an upper bound, far cheaper than the ratio.
    can_be = 2 * min(len(a), len(b)) >= min_similarity * (len(a) + len(b))
    return a == b or (can_be and similarity(a, b) >= min_similarity)
