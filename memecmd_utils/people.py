"""What people say of memes in chats: a blind rating form, its key, and the answers that come back.

The form is one HTML file that needs no network. Who rates sees a piece of a chat and one meme, never a
strategy or a score: items are chosen by seed, and the key that says what stands behind them is kept apart.
Answers that nobody gave (a trial of the form, a test) are marked as made up and never mixed with others.
"""

import csv
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

import numpy as np
import pandas as pd
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError, create_model

from memecmd_utils import drawing, files, pictures, statistics
from memecmd_utils.files import MemecmdError, paths
from memecmd_utils.runs import Run
from memecmd_utils.schemas import DIMENSIONS, Consistency, Dialogue, Grade, Meme, Placement, Rating, Text

COLUMNS = ("form", "item", "rater", *DIMENSIONS, "seconds", "at", "comment", "made_up")
"""Columns of a CSV with answers."""
ITEMS = 40
WINDOW = 8
"""Turns shown, u_t included: about what fits a phone, and what the small judge sees, too."""
PICTURE_SIDE = 280
SCALES = (
    ("语义一致", "表情包的意思和聊的内容对得上吗？", "Its meaning fits what is said"),
    ("情感一致", "表情包的情绪和此刻的情绪相符吗？", "Its emotion fits the mood"),
    ("语境得体", "在这里发它自然、得体吗？", "Sending it here is natural"),
    ("幽默效果", "在这里发它好笑吗？", "It is funny here"),
    ("对话连贯", "发了它以后，聊天还接得下去吗？", "The talk flows on after it"),
)
"""Name, question and English gloss of each of `DIMENSIONS`; the questions are those that judges are asked."""
Place = tuple[str, int, str]
"""Dialogue, turn and meme: what a judge scored and a person may have rated."""
RATED = (*DIMENSIONS, "overall")
TABLES = {
    "alpha": ["scale", "alpha", "low", "high", "items", "dialogues", "raters", "source"],
    "means": ["strategy", "scale", "mean", "low", "high", "items", "dialogues", "ratings", "source"],
    "correlations": ["scorer", "spearman", "low", "high", "items", "dialogues", "source"],
}
"""Tables of `ratings_summary` with their columns."""


class FormError(MemecmdError, ValueError):
    """A form, key or file of answers that cannot be used; the message says what to do."""


class KeyRow(BaseModel):
    """What stands behind an item: a row for each strategy that placed its meme there."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    form: str
    item: str
    dialogue_id: str
    turn: Annotated[int, Field(ge=2)]
    strategy: str
    meme_id: str


class Answer(BaseModel):
    """One answer of one person to one item, but for the scores."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    form: Text
    item: Text
    rater: Text
    at: AwareDatetime
    seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    comment: str = ""
    made_up: bool = False


Score = Annotated[float, Field(ge=0, le=100)]
HumanRating = create_model("HumanRating", __base__=Answer, **dict.fromkeys(DIMENSIONS, (Score, ...)))
"""`Answer` with a score from 0 to 100 for each of `DIMENSIONS`."""
Row = TypeVar("Row", bound=BaseModel)


class Item(NamedTuple):
    """A meme in its chat. `lines` are bubbles (side, name, text); the meme stands where the text is empty."""

    item: str
    meme_id: str
    lines: tuple[tuple[str, str, str], ...]


class Form(NamedTuple):
    """What people are shown, in this order."""

    form: str
    items: tuple[Item, ...]


# --- the form


def choose(
    placements: Iterable[Placement],
    dialogues: Mapping[str, Dialogue],
    *,
    seed: int,
    n_items: int = ITEMS,
    meme_position: Literal["before", "after"] = "before",
) -> tuple[Form, list[KeyRow]]:
    """Choose up to `n_items` items, as many for each strategy: a simple random sample of its placements.

    A meme that two strategies placed at the same turn is shown once and counts for both. Raises `FormError`
    without placements.
    """
    rng = statistics.rng(seed, "rating form", "rating")
    placed: dict[str, list[Place]] = {}
    for p in sorted(placements, key=lambda p: (p.strategy, p.dialogue_id, p.turn)):
        placed.setdefault(p.strategy, []).append((p.dialogue_id, p.turn, p.meme_id))
    shuffled = [[(name, of[i]) for i in rng.permutation(len(of))] for name, of in placed.items()]
    drawn: dict[Place, list[str]] = {}
    for strategy, place in filter(None, chain.from_iterable(zip_longest(*shuffled))):
        if place not in drawn and len(drawn) == n_items:
            break
        drawn.setdefault(place, []).append(strategy)
    if not drawn:
        raise FormError("nothing to rate: run 04_retrieval, which places memes")
    order = [list(drawn)[i] for i in rng.permutation(len(drawn))]
    items = tuple(
        Item(_digest(seed, place), place[2], _lines(dialogues[place[0]], place[1], meme_position))
        for place in order
    )
    form = Form(_digest(seed, items), items)
    key = [
        KeyRow(form=form.form, item=item.item, dialogue_id=at[0], turn=at[1], strategy=name, meme_id=at[2])
        for item, at in zip(items, order, strict=True)
        for name in drawn[at]
    ]
    return form, key


def _digest(*parts: object) -> str:
    """Name of a form or item: ten hexadecimal digits of what it is made of."""
    return hashlib.sha256(files.dumps(parts).encode()).hexdigest()[:10]


def _lines(dialogue: Dialogue, turn: int, position: str) -> tuple[tuple[str, str, str], ...]:
    """The last turns up to u_t with the meme's place beside u_t; A owns the phone and stands right."""
    sides = {"A": ("right", dialogue.name_a or "A"), "B": ("left", dialogue.name_b or "B")}
    seen = [t for t in dialogue.turns if turn - WINDOW < t.turn <= turn]
    lines = [(*sides[t.speaker], t.text) for t in seen]
    lines.insert(len(lines) - (position == "before"), (*sides[seen[-1].speaker], ""))
    return tuple(lines)


def write_page(
    target: Path, form: Form, memes: Mapping[str, Meme], folder: Path, by_models: bool = False
) -> None:
    """Write the form as one HTML file; pictures lie in `folder`. `by_models`: models wrote the chats.

    Raises `FormError` for a picture that is not there or cannot be read.
    """
    # Pictures are numbered as they come: an id could be looked up in the run's files.
    names = list(dict.fromkeys(item.meme_id for item in form.items))
    shown, items = [], []
    for name in names:
        try:
            url = pictures.thumbnail(folder / memes[name].file, PICTURE_SIDE)
        except OSError as error:
            raise FormError(f"{memes[name].file}: {error}; the form shows the memes themselves") from error
        shown.append({"url": url, "alt": memes[name].text})
    for item in form.items:
        signs = drawing.initials(name for _, name, _ in item.lines)
        lines = [{"side": side, "sign": signs[name], "text": text} for side, name, text in item.lines]
        items.append({"item": item.item, "picture": names.index(item.meme_id), "lines": lines})
    questions = [
        {"name": name, "title": title, "asked": asked, "gloss": gloss}
        for name, (title, asked, gloss) in zip(DIMENSIONS, SCALES, strict=True)
    ]
    payload = {
        "form": form.form, "columns": COLUMNS, "questions": questions, "items": items, "pictures": shown
    }  # fmt: skip
    page = files.templates().get_template("rating_form.html.j2")
    files.write_text(target, page.render(payload=payload, n=len(items), by_models=by_models))


# --- answers


def read_rows(source: Path, row: type[Row], advice: str) -> list[Row]:
    """Rows of a CSV, also of one that a spreadsheet saved; `FormError` with file and line for a bad one."""
    rows = []
    try:
        # "utf-8-sig" because forms and spreadsheet programs put a byte order mark in front.
        with source.open(encoding="utf-8-sig", newline="") as handle:
            reader = csv.DictReader(handle)
            for cells in reader:
                values = {name: files.unguarded(cell or "").strip() for name, cell in cells.items() if name}
                try:
                    rows.append(row.model_validate({n: value for n, value in values.items() if value}))
                except ValidationError as error:
                    raise FormError(f"{source.name} line {reader.line_num}: {error}; {advice}") from error
    except UnicodeDecodeError as error:
        raise FormError(f"{source.name} is not UTF-8: save it as CSV UTF-8") from error
    return rows


@dataclass(frozen=True)
class Answers:
    """All answers to the form of a key."""

    answers: list[Any]
    key: list[KeyRow]
    left_out: tuple[str, ...] = ()
    """Files that answer other forms."""

    @property
    def source(self) -> Literal["human", "made up"] | None:
        """Human as soon as one person has answered; made up where all are; None where there are none."""
        if not self.answers:
            return None
        return "made up" if all(answer.made_up for answer in self.answers) else "human"

    @property
    def counted(self) -> list[Any]:
        """Answers of `source`: made-up ones only where nobody answered."""
        return [answer for answer in self.answers if answer.made_up == (self.source == "made up")]


def collect(folder: Path, key: Sequence[KeyRow]) -> Answers:
    """Read all CSV files of a folder, which may be missing; files of other forms are named and left out.

    Of several answers of a person to an item the latest counts. `FormError` names file and line of a bad row.
    """
    known = {(row.form, row.item) for row in key}
    latest: dict[tuple, Any] = {}
    others = []
    for path in sorted(folder.glob("*.csv")):
        answers = read_rows(path, HumanRating, "correct the row or remove it")
        if answers and not {form for form, _ in known} & {answer.form for answer in answers}:
            others.append(path.name)
            continue
        for answer in answers:
            if (answer.form, answer.item) not in known:
                raise FormError(f"{path.name}: there is no item {answer.item}; take the form's own file")
            name = answer.made_up, answer.rater, answer.item
            if name not in latest or answer.at >= latest[name].at:
                latest[name] = answer
    return Answers(list(latest.values()), list(key), tuple(others))


# --- what people say


def people_of_run(
    run: Run,
    placements: Sequence[Placement],
    dialogues: Mapping[str, Dialogue],
    memes: Mapping[str, Meme],
    judged: Mapping[str, Mapping[Place, float]],
) -> tuple[Form | None, str]:
    """Write a run's form and key, read the answers that came back, and save their tables (`human_*`).

    Answers lie in `data/raw/ratings/<profile>/`; `judged` is what `scores_of_judges` gives. Returns the form
    (None without placements) and one paragraph on what people say.
    """
    form, key = None, []
    if placements:
        position = run.profile.retrieval.meme_position
        form, key = choose(placements, dialogues, seed=run.profile.seed, meme_position=position)
        sources = {turn.source for row in key for turn in dialogues[row.dialogue_id].turns}
        by_models = all(source.startswith(("authored", "model ")) for source in sources)
        folder = run.read("memes.parquet").parent
        write_page(run.report / "rating_form.html", form, memes, folder, by_models)
    rows = (row.model_dump() for row in key)
    files.write_csv(run.write("rating_key.csv"), list(KeyRow.model_fields), rows)
    answers = collect(paths.raw / "ratings" / run.profile.name, key)
    found = ratings_summary(answers, judged)
    verdict = ratings_verdict(answers, found)
    run.save_json("human_ratings.json", {"verdict": verdict})
    run.save_tables(**{f"human_{name}": table for name, table in found.items()})
    return form, verdict


def scores_of_judges(
    ratings: Sequence[Rating], consistency: Sequence[Consistency] = (), grades: Sequence[Grade] = ()
) -> dict[str, dict[Place, float]]:
    """Score of every judge, of text or image consistency with u_t, and mean grade, by place.

    A judge that scored a place more than once (several lengths or strategies) counts with its mean.
    """
    scores = [(r.judge, r, r.overall) for r in ratings if r.overall is not None]
    scores += [(f"consistency {c.scorer}", c, c.score) for c in consistency if c.text == "u_t"]
    scores += [("mean grade", g, g.grade) for g in grades]
    gathered: dict[str, dict[Place, list[float]]] = {}
    for scorer, at, score in scores:
        gathered.setdefault(scorer, {}).setdefault((at.dialogue_id, at.turn, at.meme_id), []).append(score)
    return {name: {at: float(np.mean(of)) for at, of in places.items()} for name, places in gathered.items()}


def ratings_summary(
    answers: Answers, judged: Mapping[str, Mapping[Place, float]] | None = None
) -> dict[str, pd.DataFrame]:
    """All tables of `TABLES`; empty ones where nobody rated. Intervals (95 %) are over dialogues.

    `alpha`: Krippendorff's, of each scale. `means`: by strategy, of the items' means over raters, so that an
    item rated by many counts once. `correlations`: Spearman's with each scorer of `judged`. Every row says
    whether its ratings are human or made up.
    """
    rows: dict[str, list[dict]] = {name: [] for name in TABLES}

    def add(table: str, name: str, got: statistics.Estimate, **cells: Any) -> None:
        ends = {name: got.mean, "low": got.low, "high": got.high, "items": got.n, "dialogues": got.clusters}
        rows[table].append({**cells, **ends, "source": answers.source})

    given = pd.DataFrame([answer.model_dump() for answer in answers.counted])
    if len(given):
        given["overall"] = given[list(DIMENSIONS)].mean(axis=1)
        key = pd.DataFrame([row.model_dump() for row in answers.key])
        key = key[key.item.isin(given.item)]
        behind = key.drop_duplicates("item").set_index("item")
        by_item, counts = given.groupby("item")[list(RATED)].mean(), given.groupby("item").size()
        for scale in RATED:
            wide = given.pivot(index="rater", columns="item", values=scale)
            alpha = statistics.cluster_alpha(wide.to_numpy(), behind.dialogue_id[wide.columns].tolist())
            add("alpha", "alpha", alpha, scale=scale, raters=len(wide))
        for strategy, of in key.groupby("strategy"):
            ratings = int(counts[of.item].sum())
            for scale in RATED:
                mean = statistics.cluster_mean(by_item[scale][of.item].tolist(), of.dialogue_id.tolist())
                add("means", "mean", mean, strategy=strategy, scale=scale, ratings=ratings)
        places = [tuple(row) for row in behind[["dialogue_id", "turn", "meme_id"]].itertuples(index=False)]
        liked = by_item.overall[behind.index].tolist()
        for scorer, scores in (judged or {}).items():
            both = [(at[0], ours, scores[at]) for at, ours in zip(places, liked, strict=True) if at in scores]
            add("correlations", "spearman", statistics.cluster_spearman(both), scorer=scorer)
    return {name: pd.DataFrame(rows[name], columns=columns) for name, columns in TABLES.items()}


def ratings_verdict(answers: Answers, tables: Mapping[str, pd.DataFrame]) -> str:
    """What came back, and how far raters agree, in plain words; `tables` are those of `ratings_summary`."""
    used, raters = answers.counted, len({rating.rater for rating in answers.counted})
    text = "No person has rated this run."
    if answers.source == "human":
        text = f"{raters} person(s) gave {len(used)} answers."
        if trials := len(answers.answers) - len(used):
            text += f" {trials} made-up answers are left out."
    elif used:
        text += f" {len(used)} made-up answers try out the form and say nothing about the strategies."
    for row in tables["alpha"].query("scale == 'overall'").to_dict("records"):
        text += f" Krippendorff's alpha of the overall score: {statistics.format_interval(row, 'alpha')}."
    if answers.left_out:
        text += f" Files of other forms, not read: {', '.join(answers.left_out)}."
    return text
