"""Rules that every utterance must keep (paper, Section 4.1.3), checked in code."""

import difflib
import re
from collections.abc import Sequence

STARTER_CHARS = 2
STARTER_WINDOW = 6
"""Turns back in which a sentence starter must not come again; beyond it two people may both say 那你."""
COPY_RATIO = 0.85
REPEATED_CHARS = 6
"""Characters in a row from an earlier turn that count as saying it again; a name or an echo is shorter."""
BORROWED_CHARS = 5
"""So many characters in a row from a worked example are no accident: a small model lifts them."""

# Pictographs, dingbats, flags, variation selectors and keycaps, but not CJK or its punctuation.
EMOJI = re.compile(
    "[\U0001f000-\U0001faff\u2600-\u27bf\u2b00-\u2bff\ufe0f\u20e3\u2190-\u21ff\u203c\u2049\u200d"
    "\u231a\u231b\u23e9-\u23fa\u3297\u3299\U000e0020-\U000e007f]"
)
PUNCTUATION = re.compile(r"[\s，。！？、；：…—~～·,.!?;:\"'“”‘’（）()《》【】\-]+")


def bare(text: str) -> str:
    """Text without punctuation and blanks."""
    return PUNCTUATION.sub("", text)


def starter(text: str) -> str:
    """The first characters that a reader would notice as the same beginning."""
    return bare(text)[:STARTER_CHARS]


def violations(text: str, earlier: Sequence[str], max_chars: int) -> list[str]:
    """Return what is wrong with an utterance, in Chinese as it is told to the model; empty if nothing.

    `earlier` are the utterances of the dialogue so far, oldest first.
    """
    found = []
    if not bare(text):
        return ["空的回复"]
    if len(text) > max_chars:
        found.append(f"太长（{len(text)}字，最多{max_chars}字）")
    if EMOJI.search(text):
        found.append("用了表情符号")
    if starter(text) in {starter(other) for other in earlier[-STARTER_WINDOW:]}:
        found.append(f"开头“{starter(text)}”和前面的话一样")
    if any(is_copy(text, other) for other in earlier):
        found.append("重复了前面说过的话")
    elif run := shared_run(text, earlier, REPEATED_CHARS):
        found.append(f"“{run}”前面已经说过")
    return found


def shared_run(text: str, others: Sequence[str], length: int) -> str | None:
    """The first `length` characters in a row that `text` has from one of `others`, or None."""
    said = bare(text)
    known = [bare(other) for other in others]
    runs = (said[start : start + length] for start in range(len(said) - length + 1))
    return next((run for run in runs if any(run in other for other in known)), None)


def borrowed(text: str, examples: Sequence[str], own: Sequence[str] = ()) -> str | None:
    """Return a run of characters that `text` has from a worked example of the prompt, or None.

    What already stands in the dialogue's own texts may be said again.
    """
    run = shared_run(text, examples, BORROWED_CHARS)
    return None if run is None or shared_run(run, own, BORROWED_CHARS) else run


def is_copy(text: str, other: str) -> bool:
    """Whether two utterances say the same words, punctuation aside."""
    a, b = bare(text), bare(other)
    if a == b:
        return True
    # No more characters can match than stand in both: most pairs need no closer look.
    letters = set(b)
    if min(len(a), len(b)) < 4 or 2 * sum(c in letters for c in a) < COPY_RATIO * (len(a) + len(b)):
        return False
    matcher = difflib.SequenceMatcher(None, a, b, autojunk=False)
    return matcher.quick_ratio() >= COPY_RATIO and matcher.ratio() >= COPY_RATIO
