"""The page of a run: one HTML file that holds its tables, numbers and pictures and links to the rest."""

import base64
import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from numbers import Real
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import jinja2
import pandas as pd
from markupsafe import Markup
from PIL import Image

from memecmd_utils import chat_browser, dataset_card, html_pages, library_sheet, profiles, storage
from memecmd_utils.provenance import describe_source

TALL = 1000
"""CSS pixels from which on a figure folds: higher ones are chats side by side."""
Table = tuple[str, pd.DataFrame | Markup | str, str]
"""Title, content and note. A data frame is rendered and escaped, `Markup` is HTML to be trusted, and a
string is shown as it stands (Markdown, for example), escaped."""
Picture = tuple[Path | Image.Image, str]
"""An image or the path of a PNG, and its caption."""


class Group(NamedTuple):
    """Tables under one heading, which folds; `words` stand above them."""

    title: str
    tables: Sequence[Table]
    words: str = ""


@lru_cache(maxsize=1)
def _environment() -> jinja2.Environment:
    return html_pages.environment(page_json=chat_browser.page_json, digest=_digest, questions=_questions)


def _questions(text: str) -> list[tuple[bool, str]]:
    """A text cut into its questions (True) and what stands between them: the eye finds its way by them."""
    parts = re.split(r"((?:^|(?<=\. ))[A-Z][^.?]*\?)", text)
    return [(bool(i % 2), part) for i, part in enumerate(parts) if part]


def _digest(script: str) -> str:
    """Hash by which a page allows this script and no other (Content Security Policy)."""
    digest = hashlib.sha256(str(script).encode("utf-8")).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"


def write_index(
    report_dir: Path,
    run: str,
    profile: profiles.Profile,
    groups: Sequence[Group],
    figures: Sequence[Picture],
    numbers: Mapping[str, Any],
    chat_images: Sequence[Picture] = (),
    notebooks: Sequence[tuple[str, Path]] = (),
    *,
    sources: Sequence[Mapping[str, Any]] = (),
    dataset_dir: Path | None = None,
    sections: Sequence[tuple[str, str]] = (),
    answers: Sequence[tuple[str, str]] = (),
    chats: chat_browser.Chats | None = None,
    library: library_sheet.Sheet | None = None,
) -> Path:
    """Write `report_dir/index.html` and return its path.

    `numbers`: label to a number, a text, or {value, low, high, n, dialogues, note}; None is unscored.
    `sources`: rows of `dataset_card.provenance`. `notebooks`: title and executed HTML.
    `answers`, `sections`: heading and plain text, above and below the headline numbers; an empty line
    parts paragraphs of an answer. `chats` need the `library` that holds their memes; `chat_images` are what
    a reader without JavaScript sees of them. Pictures are embedded, the rest is linked.
    """
    shown = {
        "answers": (answers, "Answers"),
        "numbers": (numbers, "Numbers"),
        "chats": (chats or chat_images, "Chats"),
        "tables": (groups, "Tables"),
        "figures": (figures, "Figures"),
        "library": (library, "Library"),
        "notebooks": (notebooks or dataset_dir, "Notebooks and dataset"),
        "sources": (True, "Sources"),
    }
    page = _environment().get_template("index.html.j2")
    text = page.render(
        run=run,
        profile=profile,
        contents=[(name, words) for name, (there, words) in shown.items() if there],
        provenance=provenance_lines(profile),
        sources=sources,
        numbers=[_number(label, value) for label, value in numbers.items()],
        answers=answers,
        sections=sections,
        chats=chats,
        payload=_payload(chats, library),
        library=library,
        groups=[
            Group(g.title, [(t, _table(content), n) for t, content, n in g.tables], g.words) for g in groups
        ],
        figures=[_figure(picture, caption, report_dir) for picture, caption in figures],
        chat_images=[(_data_url(picture), caption) for picture, caption in chat_images],
        notebooks=[(title, _link(report_dir, path)) for title, path in notebooks],
        dataset=_link(report_dir, dataset_dir) if dataset_dir else "",
        paper_url=dataset_card.PAPER_URL,
    )
    target = report_dir / "index.html"
    storage.write_text(target, text)
    return target


def _payload(chats: chat_browser.Chats | None, library: library_sheet.Sheet | None) -> dict[str, Any] | None:
    """What the chats' script reads: the chats, and which card of the library holds which meme."""
    if chats is None:
        return None
    cards = library_sheet.captions(library) if library is not None else []
    if absent := chats.memes - {name for name, _, _ in cards}:
        raise ValueError(f"the library on the page lacks memes of the chats: {sorted(absent)[:3]}")
    return {**chats.payload, "memes": cards}


def provenance_lines(profile: profiles.Profile) -> list[tuple[str, str]]:
    """Say in plain words where each part of a run comes from."""
    ends = profile.endpoints
    texts = {
        "authored": f"The example corpus: {describe_source('authored')}.",
        "openai": f"Generated by {_model(ends.generator)} through an OpenAI-compatible endpoint.",
        "local": f"Generated by {profile.local_model} on this machine, by a small model.",
    }
    modes = {
        "recorded": "All replies of models come from recordings, and nobody is asked. Where a user changed "
        "the settings, what is not on record is unscored and counted.",
        "auto": "Replies of models come from recordings where there are any, else from live calls.",
        "live": "All replies of models are live calls; another run gives other texts.",
    }
    judges = []
    for number, judge in enumerate(profile.judges):
        remote = ends.judges[number] if number < len(ends.judges) else ends.generator
        model = _model(remote) if judge.llm == "openai" else judge.local_model or profile.local_model
        judges.append(f"{model} ({'yes/no questions' if judge.kind == 'yes_no' else 'ratings 0-100'})")
    scorer = (
        profile.consistency_embedder
        if profile.consistency == "text"
        else f"Chinese-CLIP {profile.clip_model}"
    )
    lines = [("Texts", texts[profile.llm])]
    if profile.llm == "openai" and ends.annotator:
        lines.append(("Annotations", f"Generated by {_model(ends.annotator)}."))
    return [
        *lines,
        ("Model calls", modes[profile.mode]),
        ("Judges", "; ".join(judges) or "none"),
        ("Retrieval", f"{profile.embedder}, score scale {profile.score_scale}, centring {profile.centring}"),
        ("Consistency", f"{scorer}, which took no part in retrieval"),
    ]


def _model(endpoint: profiles.Endpoint) -> str:
    return f"{endpoint.model or 'an unnamed model'}@{endpoint.model_label}"


def _number(label: str, value: Any) -> dict[str, str]:
    if not isinstance(value, Mapping):
        value = {"value": value}
    if "value" not in value:
        raise ValueError(f"number {label!r} has no value, only {sorted(value)}")
    low, high = value.get("low"), value.get("high")
    parts = [f"95% interval {_shown(low)} to {_shown(high)}"] if low is not None and high is not None else []
    if value.get("n") is not None:
        among = f" in {_shown(value['dialogues'])} dialogues" if value.get("dialogues") else ""
        parts.append(f"n = {_shown(value['n'])}{among}")
    if value.get("note"):
        parts.append(str(value["note"]))
    return {"label": label, "value": _shown(value["value"]), "detail": ", ".join(parts)}


def _shown(value: Any) -> str:
    # NaN is a result that does not exist; "nan" on a page reads like a fault.
    if value is None or (isinstance(value, float) and value != value):
        return "unscored"
    if isinstance(value, bool) or not isinstance(value, Real):
        return str(value)
    if float(value).is_integer() and not isinstance(value, float):
        return f"{int(value):,}"
    return f"{float(value):,.3f}" if abs(float(value)) < 10 else f"{float(value):,.2f}"


def _table(content: pd.DataFrame | Markup | str) -> Markup:
    if isinstance(content, Markup):
        return content
    if isinstance(content, str):
        return Markup("<pre>{}</pre>").format(content)
    plain = isinstance(content.index, pd.RangeIndex)
    html = content.to_html(border=0, index=not plain, na_rep="–", float_format=_shown, escape=True)
    return Markup(html)


def _data_url(picture: Path | Image.Image) -> str:
    if isinstance(picture, Image.Image):
        return html_pages.picture_url(picture, "PNG")
    if picture.suffix.lower() not in {".png", ".jpg", ".jpeg", ".svg"}:
        raise ValueError(f"{picture}: a page shows PNG, JPEG or SVG")
    return html_pages.data_url(picture.read_bytes())


def _figure(picture: Path | Image.Image, caption: str, report_dir: Path) -> dict[str, Any]:
    """A figure for the page: embedded, `width` in CSS pixels, a link to its file, and whether it folds."""
    shown = {"url": _data_url(picture), "caption": caption, "width": None, "link": "", "tall": False}
    if isinstance(picture, Image.Image):
        return {**shown, "tall": picture.height > TALL}
    shown["link"] = _link(report_dir, picture)
    if picture.suffix.lower() != ".svg":
        # Figures are saved at 150 dots an inch for sharp print; a page counts 96 pixels an inch.
        with Image.open(picture) as opened:
            share = min(1.0, 96 / opened.info.get("dpi", (96, 96))[0])
            shown |= {"width": round(opened.width * share), "tall": opened.height * share > TALL}
    return shown


def _link(report_dir: Path, target: Path) -> str:
    # Relative, so that reports/ and data/ can be moved or served together; quoted for Chinese names.
    return quote(Path(os.path.relpath(target, report_dir)).as_posix())
