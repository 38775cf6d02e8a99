"""The preference survey of 2501.13851 (Section 3.2.2, Appendix B, Table 6): a blind form and its tally.

For every meme five questions, each with the answers of all systems in an order drawn by seed: one choice for
the two captions, any number for the rest. Who answers sees neither systems nor prompts; the key is apart.
"""

import csv
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import numpy as np
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError

from memecmd_utils import html_pages, images, seeds, storage
from memecmd_utils.human_ratings import FALSE, TRUE, RatingsError, Source
from memecmd_utils.rating_items import FormError
from memecmd_utils.schemas import Text
from memecmd_utils.template_schemas import MemeReading

Subtask = Literal["embedded text", "image caption", "meme caption", "literary devices", "emotions"]
PICTURE_SIDE = 640
"""Pixels of a meme's longer side on the page: its text has to be read."""
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
COLUMNS = ("form", "item", "rater", "subtask", "options", "at", "comment", "made_up")
"""Columns of a CSV with answers; `options` are letters with blanks between, or nothing: none of them fits."""


class Question(NamedTuple):
    """What is asked of a subtask, and by which criteria."""

    asks: str
    criteria: tuple[str, ...]
    several: bool
    """Whether any number of answers may be chosen."""


QUESTIONS: dict[Subtask, Question] = {
    "embedded text": Question(
        "Which answers give the text on the picture?",
        ("Complete: is any word missing?", "Exact: is any word changed or added?"),
        True,
    ),
    "image caption": Question(
        "Which answer describes best what can be seen?",
        ("Accuracy: are things, persons and actions right?", "Relevance: is the main content described?"),
        False,
    ),
    "meme caption": Question(
        "Which answer explains best what the meme means?",
        ("Accuracy: is the humour told correctly?", "Relevance: is all of it about the humour?"),
        False,
    ),
    "literary devices": Question(
        "Which answers name literary devices that the meme uses?",
        ("Accuracy: is the device there?", "Relevance: does the humour depend on it?"),
        True,
    ),
    "emotions": Question(
        "Which answers name the emotion that the meme expresses?",
        ("Accuracy: is it the emotion of whoever speaks in the meme?",),
        True,
    ),
}
"""The five questions in the order of Table 6; the paper prints the criteria of the meme caption only."""


class Option(BaseModel):
    """One answer as it is shown."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    letter: str
    text: str


class Item(BaseModel):
    """One meme with its questions."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    item: str
    questions: dict[Subtask, tuple[Option, ...]]


class Survey(BaseModel):
    """What is shown, in this order; holds no system, prompt or id of a meme."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    form: str
    items: tuple[Item, ...]


class KeyRow(BaseModel):
    """Whose answer an option is; an answer that several systems gave has a row for each."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    form: str
    item: str
    subtask: Subtask
    option: str
    system: str
    meme_id: str


class SurveyAnswer(BaseModel):
    """What one rater chose at one question."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    source: Source
    form: Text
    item: Text
    rater: Text
    subtask: Subtask
    options: Annotated[str, Field(pattern=r"^([A-Z]( [A-Z])*)?$")] = ""
    at: AwareDatetime
    comment: str = ""

    @property
    def chosen(self) -> frozenset[str]:
        """Letters of the options chosen."""
        return frozenset(self.options.split())


def answer_text(reading: MemeReading, subtask: Subtask) -> str:
    """What a reading says to a subtask, as one text; empty where it says nothing."""
    texts: dict[Subtask, str] = {
        "embedded text": reading.embedded_text,
        "image caption": reading.image_caption,
        "meme caption": reading.meme_caption,
        "literary devices": ", ".join(sorted(reading.literary_devices)),
        "emotions": reading.emotion,
    }
    return texts[subtask].strip()


def choose(
    answers: Mapping[str, Iterable[MemeReading]], n_memes: int = 5, seed: int = 0
) -> tuple[Survey, list[KeyRow]]:
    """Draw memes that every system has read and put the answers in blind order; return form and key.

    Memes of which all systems say the same are passed over.

    `answers`: readings by name of the system. Equal answers (but for case and blanks) are one option that
    counts for each of their systems. A question with fewer than two different answers is left out. Raises
    `FormError` with fewer than two systems or no meme in common.
    """
    read = {name: {r.meme_id: r for r in given if not r.unscored} for name, given in answers.items()}
    shared = sorted(set.intersection(*map(set, read.values()))) if len(read) > 1 else []
    if not shared:
        raise FormError("a survey needs readings of two systems or more of the same memes")
    rng = seeds.rng(seed, "preference survey")
    drawn = [shared[i] for i in rng.permutation(len(shared))]
    items, key = [], []
    for number, meme in enumerate(drawn, start=1):
        if len(items) == n_memes:
            break
        name = hashlib.sha256(f"{seed} {number} {meme}".encode()).hexdigest()[:10]
        questions = {}
        for subtask in QUESTIONS:
            options = _options({system: answer_text(of[meme], subtask) for system, of in read.items()}, rng)
            if len(options) < 2:
                continue
            shown = tuple(Option(letter=a, text=text) for a, (text, _) in zip(LETTERS, options, strict=False))
            questions[subtask] = shown
            key += [
                KeyRow(form="", item=name, subtask=subtask, option=a, system=system, meme_id=meme)
                for a, (_, systems) in zip(LETTERS, options, strict=False)
                for system in systems
            ]
        if questions:
            items.append(Item(item=name, questions=questions))
    if not items:
        raise FormError("all systems say the same of every meme: there is nothing to choose between")
    content = storage.dumps([item.model_dump() for item in items])
    form = hashlib.sha256(content.encode()).hexdigest()[:10]
    return Survey(form=form, items=tuple(items)), [row.model_copy(update={"form": form}) for row in key]


def _options(texts: Mapping[str, str], rng: np.random.Generator) -> list[tuple[str, list[str]]]:
    """Different answers with the systems that gave them, in an order drawn by `rng`."""
    same: dict[str, tuple[str, list[str]]] = {}
    for system, text in texts.items():
        if text:
            same.setdefault(" ".join(text.casefold().split()), (text, []))[1].append(system)
    if len(same) > len(LETTERS):
        raise FormError(f"{len(same)} answers to one question; at most {len(LETTERS)} systems are compared")
    found = list(same.values())
    return [found[i] for i in rng.permutation(len(found))]


def write_form(target: Path, survey: Survey, key: Sequence[KeyRow], pictures: Mapping[str, Path]) -> Path:
    """Write the survey as one HTML file that needs no network; `pictures`: file of each meme id.

    Raises `FormError` for a meme whose picture is not there or cannot be read.
    """
    memes = {row.item: row.meme_id for row in key}
    if missing := sorted({memes[item.item] for item in survey.items} - set(pictures)):
        raise FormError(f"no picture of {', '.join(missing)}; the survey shows the memes themselves")
    payload = {
        "form": survey.form,
        "columns": COLUMNS,
        "items": [
            {
                "item": item.item,
                "picture": _data_url(pictures[memes[item.item]]),
                "questions": [
                    {"subtask": name, **QUESTIONS[name]._asdict(), "options": [o.model_dump() for o in shown]}
                    for name, shown in item.questions.items()
                ],
            }
            for item in survey.items
        ],
    }
    page = html_pages.environment().get_template("preference_survey.html.j2")
    storage.write_text(target, page.render(payload=payload, n=len(survey.items)))
    return target


def _data_url(file: Path) -> str:
    """A JPEG of a meme that is large enough to read its text."""
    try:
        picture = images.decode(file)
    except images.ImageRejected as error:
        raise FormError(f"{file.name}: {error}; take another picture of this meme") from error
    return html_pages.jpeg_url(picture, PICTURE_SIDE, quality=86)


def write_key(target: Path, key: Sequence[KeyRow]) -> Path:
    """Write the key as CSV. It goes to nobody who answers."""
    return storage.write_csv(target, list(KeyRow.model_fields), (row.model_dump() for row in key))


def write_answers(target: Path, answers: Iterable[SurveyAnswer]) -> Path:
    """Write answers in the form's own columns."""
    rows = (
        {**a.model_dump(mode="json", exclude={"source"}), "made_up": int(a.source == "made up")}
        for a in answers
    )
    return storage.write_csv(target, COLUMNS, rows)


def read_key(source: Path) -> list[KeyRow]:
    """Read a key as `write_key` writes it; `RatingsError` names the line of a bad row."""
    return [_checked(KeyRow, row, where) for row, where in _rows(source, KeyRow.model_fields)]


def read_answers(source: Path, key: Sequence[KeyRow]) -> list[SurveyAnswer]:
    """Read a CSV as the form saves it. `RatingsError` for another form, or a choice that was not on offer."""
    offered: dict[tuple, set[str]] = {}
    for row in key:
        offered.setdefault((row.form, row.item, row.subtask), set()).add(row.option)
    found = []
    for row, where in _rows(source, COLUMNS):
        mark = row.pop("made_up").strip().lower()
        if mark not in TRUE | FALSE:
            raise RatingsError(f"{where}: made_up is {mark!r}; write 1 for made-up answers, else 0")
        answer = _checked(SurveyAnswer, {**row, "source": "made up" if mark in TRUE else "human"}, where)
        options = offered.get((answer.form, answer.item, answer.subtask))
        if options is None:
            raise RatingsError(f"{where}: the key has no such question; keep answers with their form's key")
        if not answer.chosen <= options or (not QUESTIONS[answer.subtask].several and len(answer.chosen) > 1):
            raise RatingsError(
                f"{where}: {answer.options!r} cannot be chosen there; correct or remove the row"
            )
        found.append(answer)
    return found


def _rows(source: Path, columns: Iterable[str]) -> Iterable[tuple[dict, str]]:
    try:
        with source.open(encoding="utf-8-sig", newline="") as handle:
            reader = csv.DictReader(handle)
            if missing := [name for name in columns if name not in (reader.fieldnames or ())]:
                raise RatingsError(f"{source.name}: columns missing: {', '.join(missing)}; take it as saved")
            for row in reader:
                cells = {name: storage.unguarded(row[name] or "") for name in columns}
                yield cells, f"{source.name} line {reader.line_num}"
    except UnicodeDecodeError as error:
        raise RatingsError(f"{source.name} is not UTF-8: save it as CSV UTF-8") from error


def _checked(model: type[BaseModel], row: dict, where: str) -> BaseModel:
    try:
        return model.model_validate(row)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = ".".join(map(str, first["loc"]))
        raise RatingsError(f"{where}: {name}: {first['msg']}; correct the row or remove it") from error
