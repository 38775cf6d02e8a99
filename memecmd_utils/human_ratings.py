"""Ratings that people gave: read from the form's CSV files, checked, and joined with the key.

What nobody rated (a trial of the form, a test) carries `source: made up` and is never mixed with the rest.
"""

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import pandas as pd
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError, model_validator

from memecmd_utils import storage
from memecmd_utils.errors import MemecmdError
from memecmd_utils.rating_items import CHOICES, COLUMNS, KeyRow, Kind
from memecmd_utils.schemas import DIMENSIONS, Text

Source = Literal["human", "made up"]
Score = Annotated[float | None, Field(ge=0, le=100)]
OPTIONAL = {"made_up"}
TRUE, FALSE = {"1", "true", "yes"}, {"", "0", "false", "no"}
ADVICE = {
    **dict.fromkeys(DIMENSIONS, "scores go from 0 to 100"),
    "choice": f"a choice is one of {', '.join(CHOICES)}",
    "at": "a time looks like 2026-01-31T12:00:00Z; a spreadsheet may have changed it",
    "seconds": "seconds are a number, 0 or more",
}


class RatingsError(MemecmdError, ValueError):
    """A file of ratings that cannot be used; the message names file and line and says what to do."""


class OtherForm(RatingsError):
    """Ratings of a form that does not belong to this run."""


class HumanRating(BaseModel):
    """One answer of one rater; five scores (rating) or a choice (pairwise)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    source: Source
    form: Text
    item: Text
    rater: Text
    kind: Kind
    semantic_consistency: Score = None
    emotional_consistency: Score = None
    contextual_appropriateness: Score = None
    humor_effect: Score = None
    conversational_coherence: Score = None
    choice: Literal["A", "B", "no difference"] | None = None
    seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    at: AwareDatetime
    comment: str = ""

    @model_validator(mode="after")
    def _answers_its_kind(self) -> "HumanRating":
        missing = [name for name in DIMENSIONS if getattr(self, name) is None]
        if self.kind == "rating" and (missing or self.choice):
            raise ValueError(
                f"a rating has five scores and no choice; missing: {', '.join(missing) or 'none'}"
            )
        if self.kind == "pairwise" and (self.choice is None or len(missing) < len(DIMENSIONS)):
            raise ValueError("a pairwise answer has a choice and no scores")
        return self


class Ratings(NamedTuple):
    """All answers to the forms of a run, with their key."""

    ratings: list[HumanRating]
    key: list[KeyRow]
    doubled: int = 0
    """Answers that a later one of the same rater to the same item replaced."""
    left_out: tuple[str, ...] = ()
    """Files that answer forms of other runs."""

    @property
    def source(self) -> Source | None:
        """Human as soon as one person has rated; made up where all are; None where there are none."""
        sources = {rating.source for rating in self.ratings}
        return "human" if "human" in sources else "made up" if sources else None

    def frame(self, kind: Kind, *, repeats: bool = False) -> pd.DataFrame:
        """Answers of `source` to items of `kind`: first showings, or the repeated ones."""
        repeat_of = {row.item: row.repeat_of for row in self.key if row.kind == kind}
        rows = [
            {**rating.model_dump(), "repeat_of": repeat_of[rating.item]}
            for rating in self.ratings
            if rating.kind == kind and rating.source == self.source
            if bool(repeat_of[rating.item]) == repeats
        ]
        frame = pd.DataFrame(rows, columns=[*HumanRating.model_fields, "repeat_of"])
        frame["overall"] = frame[list(DIMENSIONS)].astype(float).mean(axis=1)
        return frame

    def draws(self, kind: Kind) -> pd.DataFrame:
        """Rows of the key for first showings: what was drawn for which strategy."""
        rows = [row.model_dump() for row in self.key if row.kind == kind and not row.repeat_of]
        return pd.DataFrame(rows, columns=list(KeyRow.model_fields))


def load(paths: Iterable[Path], key: Sequence[KeyRow]) -> Ratings:
    """Read CSV files of the forms in `key`. Of doubled answers the latest counts.

    Raises `OtherForm` for a file that answers another form and `RatingsError` for a bad row.
    """
    latest: dict[tuple, HumanRating] = {}
    doubled = 0
    for path in paths:
        for rating in _read(path, key):
            name = rating.source, rating.form, rating.item, rating.rater
            doubled += name in latest
            if name not in latest or rating.at >= latest[name].at:
                latest[name] = rating
    return Ratings(list(latest.values()), list(key), doubled)


def collect(folder: Path, key: Sequence[KeyRow]) -> Ratings:
    """Read all CSV files of a folder, which may be missing; files of other forms are named, not read."""
    mine, others = [], []
    for path in sorted(folder.glob("*.csv")):
        try:
            _read(path, key)
            mine.append(path)
        except OtherForm:
            others.append(path.name)
    return load(mine, key)._replace(left_out=tuple(others))


def _read(path: Path, key: Sequence[KeyRow]) -> list[HumanRating]:
    kinds = {(row.form, row.item): row.kind for row in key}
    forms = {row.form for row in key}
    found = read_answers(path)
    for rating in found:
        if rating.form not in forms:
            raise OtherForm(
                f"{path.name}: answers form {rating.form}, but this run's are "
                f"{', '.join(sorted(forms)) or 'none'}; keep the file with the run whose key names it"
            )
        if kinds.get((rating.form, rating.item)) != rating.kind:
            raise RatingsError(
                f"{path.name}: form {rating.form} has no {rating.kind} item {rating.item!r}; "
                "take the row from the form's own file, or remove it"
            )
    return found


def read_answers(path: Path) -> list[HumanRating]:
    """Read one CSV as the form or the panel writes it, all rows; `RatingsError` names file and line."""
    found = []
    try:
        # "utf-8-sig" because the form and spreadsheet programs put a byte order mark in front.
        with path.open(encoding="utf-8-sig", newline="") as handle:
            reader = csv.DictReader(handle)
            missing = [c for c in COLUMNS if c not in (reader.fieldnames or ()) and c not in OPTIONAL]
            if missing:
                raise RatingsError(
                    f"{path.name}: columns missing: {', '.join(missing)}; take the file as the form saved it "
                    "(UTF-8, commas)"
                )
            for row in reader:
                found.append(_record(row, f"{path.name} line {reader.line_num}"))
    except UnicodeDecodeError as error:
        raise RatingsError(f"{path.name} is not UTF-8: save it as CSV UTF-8") from error
    return found


def write_answers(path: Path, ratings: Iterable[HumanRating]) -> Path:
    """Write answers in the form's own columns, atomically."""
    rows = (
        {**r.model_dump(mode="json", exclude={"source"}), "made_up": int(r.source == "made up")}
        for r in ratings
    )
    return storage.write_csv(path, COLUMNS, rows)


def _record(row: dict, where: str) -> HumanRating:
    made_up = (row.get("made_up") or "").strip().lower()
    if made_up not in TRUE | FALSE:
        raise RatingsError(f"{where}: made_up is {made_up!r}; write 1 for made-up ratings, else 0")
    values = {name: storage.unguarded(row[name] or "").strip() for name in COLUMNS if name not in OPTIONAL}
    values = {name: value for name, value in values.items() if value != ""}
    try:
        return HumanRating(source="made up" if made_up in TRUE else "human", **values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = str(first["loc"][0]) if first["loc"] else ""
        found = (
            f"{name} is {values.get(name, '')!r}; {ADVICE.get(name, first['msg'])}" if name else first["msg"]
        )
        raise RatingsError(f"{where}: {found}; correct the row or remove it") from error
