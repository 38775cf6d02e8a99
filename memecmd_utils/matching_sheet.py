"""The confirmation sheet of template matching: pairs side by side, kept or rejected by a person.

What the page saves `matching_records.read_decisions` reads.
"""

from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

from memecmd_utils import html_pages, storage
from memecmd_utils.matching_records import Decision, Matches, TemplateMatch, merged

SIDE = 360
"""Longest side of a picture on the sheet, in pixels."""


def write_sheet(
    target: Path,
    name: str,
    matches: Matches,
    pairs: Sequence[TemplateMatch] | None = None,
    decisions: Iterable[Decision] = (),
) -> Path:
    """Write one HTML file that holds all it shows; returns `target`.

    `pairs`: None takes those that all variants kept, each once. `decisions` are those of an earlier sheet.
    Pictures are embedded, some 20 KB each, so the page can be mailed to whoever is to look. All text is
    escaped: file names and reasons come from strangers.
    """
    shown = merged(matches.pairs) if pairs is None else list(pairs)
    small = cache(lambda file: html_pages.thumbnail(file, SIDE))
    rows = [
        (pair, small(matches.instances[pair.instance]), small(matches.templates[pair.template]))
        for pair in shown
    ]
    page = html_pages.environment().get_template("matching_sheet.html.j2")
    text = page.render(
        name=name,
        rows=rows,
        models=matches.models,
        comparable=matches.comparable,
        not_computed=matches.not_computed,
        decisions=[tuple(decision) for decision in decisions],
    )
    storage.write_text(target, text)
    return target
