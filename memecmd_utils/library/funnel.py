"""From all files of the sources to the memes kept: the filters, and a table of who left where."""

import csv
import io
import re
from collections import Counter
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from memecmd_utils.core import storage
from memecmd_utils.settings import Filters

if TYPE_CHECKING:
    import pandas as pd


LINK_OUT, UNDECODABLE, EXACT, FILTER, NEAR, CURATION, NOT_SAMPLED = (
    "link out of the source", "undecodable", "exact duplicate", "filter", "near duplicate",
    "dropped by curation", "not sampled",
)  # fmt: skip
STEPS = (LINK_OUT, UNDECODABLE, EXACT, FILTER, NEAR, CURATION, NOT_SAMPLED)
"""Where a file can leave, in the order of the table. A file is counted once, where it left."""
CURABLE = frozenset({FILTER, NEAR, CURATION})
"""Steps that a person can overrule on the contact sheet."""
COLUMNS = ("step", "reason", "files", "left")


class Exit(NamedTuple):
    """Why a file is not in the library."""

    step: str
    why: str
    """In words, with the file's own numbers or names, for `rejected.csv`."""
    reason: str = ""
    """The same for all files that left for it: a row of the table."""


def undecodable(why: str) -> Exit:
    """Exit of a file that is no picture; files of one kind of fault share the reason.

    >>> undecodable("too small: 9 x 12 (least side 16)").reason
    'too small'
    """
    return Exit(UNDECODABLE, why, re.split(r"[:(,;]", why, maxsplit=1)[0].strip())


def by_size(filters: Filters, width: int, height: int) -> Exit | None:
    """The filter that leaves out a picture of this size (pixels, before anything is scaled), if any."""
    short, long = sorted((width, height))
    if short < filters.min_side:
        why = f"shorter side of {short} pixels (min_side {filters.min_side})"
        return Exit(FILTER, why, "min_side")
    if filters.max_aspect_ratio is not None and long > filters.max_aspect_ratio * short:
        why = f"sides as {long / short:.2f} to 1 (max_aspect_ratio {filters.max_aspect_ratio:g})"
        return Exit(FILTER, why, "max_aspect_ratio")
    return None


def by_text(filters: Filters, text: str) -> Exit | None:
    """The filter that leaves out a picture with this visible text, if any; blanks do not count."""
    length = len("".join(text.split()))
    if filters.needs_text and not length:
        return Exit(FILTER, "no text could be read (needs_text)", "needs_text")
    if filters.max_text_chars is not None and length > filters.max_text_chars:
        why = f"{length} characters of text (max_text_chars {filters.max_text_chars})"
        return Exit(FILTER, why, "max_text_chars")
    return None


def in_use(filters: Filters) -> list[str]:
    """Names of the filters that are set."""
    unset = Filters()
    return [name for name, value in filters.model_dump().items() if value != getattr(unset, name)]


def write(
    target: Path, found: int, exits: Mapping[str, Exit], not_sampled: int, kept: int, filters: Collection[str]
) -> None:
    """Write `funnel.csv`: a row for each step and reason with the files that left there and those left over.

    `exits`: by file. `filters`: those in use; they stand in the table even where nothing left. Raises
    `ValueError` if the rows do not add up, which would mean that a file was lost or counted twice.
    """
    counts = Counter((exit_.step, exit_.reason) for exit_ in exits.values())
    counts[NOT_SAMPLED, ""] += not_sampled
    rows = [("found", "", found, found)]
    left = found
    for step in STEPS:
        reasons = sorted({reason for at, reason in counts if at == step} | _always(step, filters, counts))
        for reason in reasons:
            left -= counts[step, reason]
            rows.append((step, reason, counts[step, reason], left))
    if left != kept:
        raise ValueError(f"{found} files found, {left} left after all steps, but {kept} kept")
    rows.append(("kept", "", kept, kept))
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows([COLUMNS, *rows])
    storage.write_text(target, buffer.getvalue())


def _always(step: str, filters: Collection[str], counts: Counter) -> set[str]:
    """Reasons of a step that stand in the table although no file left for them."""
    if step == FILTER:
        return set(filters)
    if step == LINK_OUT:
        return set()  # most folders have none
    return set() if step == UNDECODABLE and any(at == UNDECODABLE for at, _ in counts) else {""}


def read_funnel(path: Path) -> "pd.DataFrame":
    """The table that `write` wrote: columns step, reason, files (that left there), left (after that)."""
    import pandas as pd

    return pd.read_csv(path, keep_default_na=False)
