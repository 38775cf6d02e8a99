"""The rating form as one HTML file, and the key as a CSV beside the run's data."""

import csv
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from PIL import Image
from pydantic import ValidationError

from memecmd_utils import evaluation, evaluation_run, html_pages, linebreak, rating_items, schemas, storage
from memecmd_utils.rating_items import (
    CHOICES,
    COLUMNS,
    KINDS,
    QUESTIONS,
    Form,
    FormError,
    KeyRow,
    Kind,
    Line,
)
from memecmd_utils.runs import Run
from memecmd_utils.schemas import DIMENSIONS

PICTURE_SIDE = 280
"""Pixels of a meme's longer side on the page."""


def data_url(file: Path) -> str:
    """A small JPEG of a meme for the page; all are drawn alike, whatever they come from."""
    with Image.open(file) as opened:
        picture = opened.convert("RGB")
    return html_pages.jpeg_url(picture, PICTURE_SIDE, quality=84)


def write_form(target: Path, form: Form, meme_files: Mapping[str, Path]) -> Path:
    """Write the form as one HTML file that needs no network; `meme_files`: picture of each meme id."""
    # Pictures are numbered as they come: an id could be looked up in the run's files.
    numbers = {name: i for i, name in enumerate(dict.fromkeys(m for item in form.items for m in item.memes))}
    payload = {
        "form": form.form,
        "kind": form.kind,
        "columns": COLUMNS,
        "items": [
            {
                "item": item.item,
                "lines": _lines(item.lines),
                "memes": [numbers[meme] for meme in item.memes],
            }
            for item in form.items
        ],
        "pictures": [{"url": data_url(meme_files[name]), "alt": form.texts[name]} for name in numbers],
        "questions": [{"name": name, "zh": QUESTIONS[name], "en": QUESTIONS[name][2]} for name in DIMENSIONS],
        "choices": CHOICES,
    }
    models = [source.removeprefix("model ") for source in form.sources if source != "authored"]
    page = (
        html_pages.environment()
        .get_template("rating_form.html.j2")
        .render(payload=payload, form=form, models=models, authored="authored" in form.sources)
    )
    storage.write_text(target, page)
    return target


def _lines(lines: Sequence[Line]) -> list[dict[str, str]]:
    signs = linebreak.initials(line.name for line in lines)
    return [line.model_dump() | {"sign": signs[line.name]} for line in lines]


def write_key(target: Path, rows: Iterable[KeyRow]) -> Path:
    """Write the key as CSV. It goes to nobody who rates."""
    return storage.write_csv(target, list(KeyRow.model_fields), (row.model_dump() for row in rows))


def read_key(source: Path) -> list[KeyRow]:
    """Read a key; `FormError` with file and line for a bad row."""
    rows = []
    with source.open(encoding="utf-8-sig", newline="") as handle:
        reader = csv.DictReader(handle)
        for row in reader:
            try:
                cells = {name: storage.unguarded(cell or "") for name, cell in row.items() if name}
                rows.append(KeyRow.model_validate(cells))
            except ValidationError as error:
                where = f"{source.name} line {reader.line_num}"
                raise FormError(f"{where}: {error}; run 05_evaluation again, it writes the key") from error
    return rows


def of_run(
    run: Run,
    placements: Sequence[schemas.Placement],
    dialogues: Mapping[str, schemas.Dialogue],
    memes: Mapping[str, schemas.Meme],
    n_items: int = 40,
) -> dict[Kind, Form]:
    """Write `rating_form.html`, `pairwise_form.html` and `rating_key.csv` of a run; return the forms.

    Items are drawn from the placements that the judges rated, so that both can be compared.
    """
    judged = evaluation.to_judge(placements, run.profile)
    files = evaluation_run.meme_files(run, memes)
    forms: dict[Kind, Form] = {}
    key: list[KeyRow] = []
    for kind in KINDS:
        if not any(rating_items.groups(judged, kind)):
            continue  # one strategy only: there is nothing to choose between
        forms[kind], rows = rating_items.choose(
            judged, dialogues, memes, kind=kind, n_items=n_items, seed=run.profile.seed,
            meme_position=run.profile.meme_position,
        )  # fmt: skip
        write_form(run.report / f"{kind}_form.html", forms[kind], files)
        key += rows
    write_key(run.write("rating_key.csv"), key)
    return forms
