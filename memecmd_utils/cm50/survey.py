"""The preference survey of 2501.13851 (Section 3.2.2, Appendix B, Table 6): a blind form and its tally.

For every meme five questions, each with the answers of all systems in an order drawn by seed: one choice for
the two captions, any number for the rest. Who answers sees neither systems nor prompts; the key is apart.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import numpy as np
import pandas as pd
from pydantic import Field

from memecmd_utils import forms, statistics
from memecmd_utils.cm50.pictures import pictures_below
from memecmd_utils.files import paths
from memecmd_utils.forms import Answer, Answers, Form, FormError, Item, Option, Question
from memecmd_utils.runs import Run
from memecmd_utils.schemas import MemeReading

Subtask = Literal["embedded text", "image caption", "meme caption", "literary devices", "emotions"]
PICTURE_SIDE = 640
"""Pixels of a meme's longer side on the page: its text has to be read."""
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
COLUMNS = ("form", "item", "rater", "subtask", "options", "at", "comment", "made_up")
"""Columns of a CSV with answers; `options` are letters with blanks between, or nothing: none of them fits."""
QUESTIONS: dict[Subtask, Question] = {
    name: Question(name, kind, ("", title), ("", criteria))
    for name, kind, title, criteria in (
        ("embedded text", "several", "Which answers give the text on the picture?",
         "Complete: is any word missing? Exact: is any word changed or added?"),
        ("image caption", "one", "Which answer describes best what can be seen?",
         "Accuracy: are things, persons and actions right? Relevance: is the main content described?"),
        ("meme caption", "one", "Which answer explains best what the meme means?",
         "Accuracy: is the humour told correctly? Relevance: is all of it about the humour?"),
        ("literary devices", "several", "Which answers name literary devices that the meme uses?",
         "Accuracy: is the device there? Relevance: does the humour depend on it?"),
        ("emotions", "several", "Which answers name the emotion that the meme expresses?",
         "Accuracy: is it the emotion of whoever speaks in the meme?"),
    )
}  # fmt: skip
"""The five questions in the order of Table 6, with criteria; the paper prints only the meme caption's."""

INTRO = (
    "You will see {memes}. Several systems were asked about each; you see their answers in random order, "
    "without names. Choose those that fit. Circles take one choice, boxes any number, also none."
)


class KeyRow(forms.KeyRow):
    """Whose answer an option is; an answer that several systems gave has a row for each."""

    subtask: Subtask
    option: str
    system: str
    meme_id: str


class SurveyAnswer(Answer):
    """What one rater chose at one question."""

    columns: ClassVar = COLUMNS
    advice: ClassVar = {"options": "options are letters with blanks between, as in 'A C'"}

    subtask: Subtask
    options: Annotated[str, Field(pattern=r"^([A-Z]( [A-Z])*)?$")] = ""

    @property
    def place(self) -> tuple[str, ...]:
        """The question."""
        return self.form, self.item, self.subtask

    @property
    def chosen(self) -> frozenset[str]:
        """Letters of the options chosen."""
        return frozenset(self.options.split())

    def fault(self, key: Sequence[KeyRow]) -> str:
        """The question must have been asked, and the options be on offer."""
        offered = {row.option for row in key if row.subtask == self.subtask}
        if not offered:
            return f"form {self.form} has no question on {self.subtask} of item {self.item!r}"
        several = QUESTIONS[self.subtask].kind == "several"
        fits = self.chosen <= offered and (several or len(self.chosen) < 2)
        return "" if fits else f"{self.options!r} cannot be chosen there"


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
) -> tuple[Form, list[KeyRow]]:
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
    rng = statistics.rng(seed, "preference survey")
    drawn = [shared[i] for i in rng.permutation(len(shared))]
    items, key = [], []
    for number, meme in enumerate(drawn, start=1):
        if len(items) == n_memes:
            break
        name = hashlib.sha256(f"{seed} {number} {meme}".encode()).hexdigest()[:10]
        questions = []
        for subtask, asked in QUESTIONS.items():
            options = _options({system: answer_text(of[meme], subtask) for system, of in read.items()}, rng)
            if len(options) < 2:
                continue
            lettered = [(letter, *option) for letter, option in zip(LETTERS, options, strict=False)]
            shown = tuple(Option(letter, letter, ("", text)) for letter, text, _ in lettered)
            questions.append(asked._replace(options=shown))
            key += [
                KeyRow(form="", item=name, subtask=subtask, option=letter, system=system, meme_id=meme)
                for letter, _, systems in lettered
                for system in systems
            ]
        if questions:
            items.append(Item(name, (meme,), tuple(questions)))
    if not items:
        raise FormError("all systems say the same of every meme: there is nothing to choose between")
    content = [
        {
            "item": item.item,
            "questions": {
                q.name: [{"letter": o.key, "text": o.words[1]} for o in q.options] for q in item.questions
            },
        }
        for item in items
    ]
    form = forms.digest(*content)
    made = Form(
        form, "survey", COLUMNS, ("", "Which answers fit the meme?"),
        ("", INTRO.format(memes=f"{len(items)} {'meme' if len(items) == 1 else 'memes'}")),
        (("", "The memes and answers may be coarse."),), tuple(items), chinese=False,
        picture_side=PICTURE_SIDE,
    )  # fmt: skip
    return made, [row.model_copy(update={"form": form}) for row in key]


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


def write_survey(run: Run, readings: Iterable[MemeReading], folder: Path) -> Path | None:
    """Write `preference_survey.html` of a run and its key, or say why there is nothing to ask about.

    It needs memes with readings by two systems whose pictures lie below `folder`, and answers that differ.
    """
    readings, pictures = list(readings), pictures_below(folder)
    pictured = [reading for reading in readings if reading.meme_id in pictures]
    systems = readings_by_system(pictured)
    if not systems:
        print(
            "no preference survey: no meme with a picture has readings by two systems "
            f"({len({r.meme_id for r in readings}):,} memes with readings, "
            f"{len({r.meme_id for r in pictured}):,} of them with a picture below {folder.name})"
        )
        return None
    try:
        form, key = choose(systems, seed=run.profile.seed)
        page = forms.write_page(run.report / "preference_survey.html", form, pictures)
    except FormError as error:
        print(f"no preference survey: {error}")
        return None
    forms.write_key(run.write("survey_key.csv"), KeyRow, key)
    print(f"ask people: {page.name} compares {', '.join(systems)}; survey_key.csv says whose answer is whose")
    return page


def readings_by_system(readings: Iterable[MemeReading]) -> dict[str, list[MemeReading]]:
    """Readings by who made them, with or without context, where they share memes; empty if they do not.

    Names are such as Table 6 has them: the model, then "with context" or "without context". Those with most
    readings come first; one that shares no meme with all before it is left out.
    """
    by_system: dict[str, dict[str, MemeReading]] = {}
    for reading in readings:
        if not reading.unscored:
            context = {True: ", with context", False: ", without context", None: ""}[reading.context]
            by_system.setdefault(f"{reading.source}{context}", {})[reading.meme_id] = reading
    systems: dict[str, list[MemeReading]] = {}
    shared: set[str] = set()
    for name, by_id in sorted(by_system.items(), key=lambda item: -len(item[1])):
        common = shared & set(by_id) if systems else set(by_id)
        if common:
            systems[name], shared = list(by_id.values()), common
    return systems if len(systems) > 1 else {}


def paper_votes() -> pd.DataFrame:
    """Table 6 as printed: votes by meme (1-5, in its order) and subtask for each system, and totals."""
    return _with_total(pd.read_csv(paths.data / "paper" / "cm50_table6.csv", dtype={"meme": str}))


def collect(run: Run, folder: Path) -> Answers:
    """The answers in the CSV files of a folder that belong to the survey of a run."""
    key = forms.read_key(run.read("survey_key.csv"), KeyRow)
    return forms.collect(folder, key, SurveyAnswer)


def tally(found: Answers) -> pd.DataFrame:
    """Votes by meme and subtask for each system, with a row of totals, as Table 6 has them.

    An answer that several systems gave counts for each. `attrs`: `source` (human or made up), `raters`.
    """
    key, counted = found.key, found.counted
    systems = sorted({row.system for row in key})
    votes = {(row.item, row.subtask): dict.fromkeys(systems, 0) for row in key}
    memes = {row.item: row.meme_id for row in key}
    for answer in counted:
        for row in key:
            place = row.form, row.item, row.subtask
            if place == (answer.form, answer.item, answer.subtask) and row.option in answer.chosen:
                votes[row.item, row.subtask][row.system] += 1
    rows = [{"meme": memes[item], "subtask": subtask, **of} for (item, subtask), of in votes.items()]
    table = _with_total(pd.DataFrame(rows, columns=["meme", "subtask", *systems]))
    table.attrs |= {"source": found.source, "raters": len({answer.rater for answer in counted})}
    return table


def _with_total(table: pd.DataFrame) -> pd.DataFrame:
    systems = list(table.columns[2:])
    total = {"meme": "Total", "subtask": "", **table[systems].sum().astype(int)}
    return pd.concat([table, pd.DataFrame([total])], ignore_index=True)


def vote_totals(table: pd.DataFrame) -> pd.DataFrame:
    """Votes of each system, their share of the best system's, and the paper's totals beside them."""
    votes, paper = (_totals(votes_by_meme) for votes_by_meme in (table, paper_votes()))
    frame = pd.DataFrame({"votes": votes, "share of the best": votes / max(int(votes.max()), 1)})
    frame = frame.join(paper.rename("votes (paper)"), how="outer")
    return frame.sort_values("votes (paper)", ascending=False, na_position="last")


def _totals(table: pd.DataFrame) -> pd.Series:
    return table[table["meme"] == "Total"].iloc[0, 2:].astype(int)
