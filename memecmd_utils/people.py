"""What people say of memes in chats: a blind rating form, its key, and the answers that come back.

The form is one HTML file that needs no network. Who rates sees a piece of a chat and one meme, never a
strategy or a score: items are chosen by seed, and the key that says what stands behind them is kept apart.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import pandas as pd
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError, create_model

from memecmd_utils import drawing, files, grades, pictures, statistics
from memecmd_utils.files import MemecmdError, paths
from memecmd_utils.runs import Run
from memecmd_utils.schemas import DIMENSIONS, Dialogue, Meme, Placement, Text

KEY = ["form", "item", "dialogue_id", "turn", "strategy", "meme_id"]
COMPARED = ("reranked", "learned", "greedy", "random_same_turns")
"""The strategies that people are asked about; of a run that has none of them, its own."""
WINDOW = 8
"""Turns shown, u_t included: about what fits a phone, and what the small judge sees, too."""
_ASKED = (
    ("语义一致", "表情包的意思和聊的内容对得上吗？", "Its meaning fits what is said"),
    ("情感一致", "表情包的情绪和此刻的情绪相符吗？", "Its emotion fits the mood"),
    ("语境得体", "在这里发它自然、得体吗？", "Sending it here is natural"),
    ("幽默效果", "在这里发它好笑吗？", "It is funny here"),
    ("对话连贯", "发了它以后，聊天还接得下去吗？", "The chat can go on after it"),
)
SCALES = dict(zip(DIMENSIONS, _ASKED, strict=True))
"""Name, question and English gloss of each dimension; the questions are those that judges are asked."""


class FormError(MemecmdError, ValueError):
    """A file of answers that cannot be used; the message says what to do."""


HumanRating = create_model(
    "HumanRating",
    __config__=ConfigDict(extra="forbid"),
    **dict.fromkeys(("form", "item", "rater"), (Text, ...)),
    **dict.fromkeys(DIMENSIONS, (Annotated[float, Field(ge=0, le=100)], ...)),
    at=(AwareDatetime, ...),
    comment=(str, ""),
    made_up=(bool, False),
)
"""One answer of one person to one item: a row of a CSV file. `made_up` marks a trial of the form."""


class Vote(BaseModel, extra="forbid"):
    """A visitor's answer on a run's page: a row of the CSV file that the page saves.

    `send`: which meme one would send at a turn, or none (empty). `prefer`: whose memes in a chat are better,
    as the name of a strategy; the visitor saw two without their names.
    """

    vote: Literal["send", "prefer"]
    dialogue_id: Text
    turn: int | None = None
    answer: str = ""
    rater: Text
    at: AwareDatetime


class Item(NamedTuple):
    """A meme in its chat. `lines` are bubbles (side, sign, text); the meme stands where the text is empty."""

    item: str
    meme_id: str
    lines: tuple[dict[str, str], ...]


class Form(NamedTuple):
    """What people are shown, in this order, and the key: a row for each strategy behind an item."""

    form: str
    items: tuple[Item, ...]
    key: pd.DataFrame


# --- the form


def choose(
    placements: Iterable[Placement], dialogues: Mapping[str, Dialogue], *, seed: int, n_items: int = 100
) -> Form:
    """Choose up to `n_items` items, as many for each strategy: a simple random sample of its placements.

    A meme that two strategies placed at the same turn is shown once and counts for both.
    """
    rng = statistics.rng(seed, "rating form", "rating")
    placed = pd.DataFrame([p.model_dump(include=set(KEY)) for p in placements])[KEY[2:]]
    placed = placed.sort_values(["strategy", "dialogue_id", "turn"]).sample(frac=1, random_state=rng)
    # One of each strategy after the other, up to the first place that would be one too many.
    placed["round"] = placed.groupby("strategy").cumcount()
    placed = placed.sort_values(["round", "strategy"])
    place = ["dialogue_id", "turn", "meme_id"]
    placed = placed[placed.groupby(place, sort=False).ngroup().cummax() < n_items]
    shown = placed[place].drop_duplicates().sample(frac=1, random_state=rng)
    shown["item"] = [_digest(seed, row) for row in shown.itertuples(index=False, name=None)]
    items = tuple(
        Item(row.item, row.meme_id, _lines(dialogues[row.dialogue_id], row.turn))
        for row in shown.itertuples()
    )
    name = _digest(seed, items)
    return Form(name, items, shown.merge(placed).assign(form=name)[KEY])


def _digest(*parts: object) -> str:
    """Name of a form or item: ten hexadecimal digits of what it is made of."""
    return hashlib.sha256(files.dumps(parts).encode()).hexdigest()[:10]


def _lines(dialogue: Dialogue, turn: int) -> tuple[dict[str, str], ...]:
    """The last turns up to u_t with the meme's place before u_t; A owns the phone and stands right."""
    names = {"A": dialogue.name_a or "A", "B": dialogue.name_b or "B"}
    said = [(names[t.speaker], t.text) for t in dialogue.turns if turn - WINDOW < t.turn <= turn]
    said.insert(-1, (said[-1][0], ""))
    return _bubbles(said, names["A"])


def _bubbles(lines: Sequence[tuple[str, str]], me: str) -> tuple[dict[str, str], ...]:
    """Names and texts as the pages draw them; a sign tells the names apart."""
    signs = drawing.initials(name for name, _ in lines)
    return tuple(
        {"side": "right" if name == me else "left", "sign": signs[name], "text": text} for name, text in lines
    )


def write_page(target: Path, form: Form, memes: Mapping[str, Meme], folder: Path, by_models: bool) -> None:
    """Write the form as one HTML file; pictures lie in `folder`. `by_models`: models wrote the chats."""
    questions = [dict(zip(("name", "title", "asked", "gloss"), (n, *SCALES[n]), strict=True)) for n in SCALES]
    items = []
    for item in form.items:
        meme = memes[item.meme_id]
        url = pictures.thumbnail(folder / meme.file, 280)
        items.append({"item": item.item, "url": url, "alt": meme.words, "lines": item.lines})
    payload = {
        "form": form.form,
        "columns": [*HumanRating.model_fields],
        "questions": questions,
        "items": items,
    }
    page = files.templates().get_template("rating_form.html.j2")
    files.write_text(target, page.render(payload=payload, by_models=by_models))


def write_grading_page(
    target: Path, pairs: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]], urls: Mapping[str, str]
) -> None:
    """Write a page to grade memes (0, 1, 2) as the next message of a chat, for `grades.read_grades`.

    `pairs`: rows of `benchmark.Benchmark.turns` and `memes`, in this order. A meme without a picture in
    `urls` is shown in words.
    """
    turns, memes = ({row["id"]: row for row in rows} for rows in zip(*pairs, strict=True))
    shown = {}
    for name, turn in turns.items():
        me, before = turn["speaker"], turn["before"][1 - WINDOW :]
        said = [*((line["speaker"], line["text"] or "…") for line in before), (me, "")]
        shown[name] = {"key": [turn["dialogue"], turn["turn"]], "lines": _bubbles(said, me)}
    known = {
        name: {"url": urls.get(name, ""),
               "alt": "\n".join(filter(None, (meme["picture"], meme["caption"]))) or meme["text"]}
        for name, meme in memes.items()
    }  # fmt: skip
    payload = {"turns": shown, "memes": known, "items": [[turn["id"], meme["id"]] for turn, meme in pairs]}
    payload |= {"form": _digest(*payload.values()), "columns": [*grades.COLUMNS, "grader"]}
    page = files.templates().get_template("grading_page.html.j2")
    files.write_text(target, page.render(payload=payload))


# --- answers


def read_answers(folder: Path, kind: type[BaseModel]) -> pd.DataFrame:
    """The answers of one kind, `HumanRating` or `Vote`, in the CSV files of a folder, the latest last.

    A file with a column `vote` holds votes. `FormError` names file and line of what cannot be read.
    """
    found = []
    for path in sorted(folder.glob("*.csv")):
        table = files.read_table(path, ("rater", "at"))
        if ("vote" in table) != (kind is Vote):
            continue
        for line, cells in table.iterrows():
            try:
                found.append(kind.model_validate(dict(cells[cells.str.strip() != ""])).model_dump())
            except ValidationError as error:
                raise FormError(f"{path.name} line {line}: {error}; correct or remove it") from error
    return pd.DataFrame(found, columns=list(kind.model_fields)).sort_values("at")


def collect(folder: Path, form: Form) -> tuple[pd.DataFrame, int]:
    """People's answers to `form` in the CSV files of a folder, and how many rows were left out.

    Left out are trials and answers to other forms. Of several answers of a person to an item the latest
    counts. Columns are those of `HumanRating`.
    """
    answers = read_answers(folder, HumanRating)
    counted = answers[(answers.form == form.form) & ~answers.made_up.astype(bool)]
    return counted.drop_duplicates(["rater", "item"], keep="last"), len(answers) - len(counted)


# --- what people say


def people_of_run(run: Run) -> tuple[Form | None, str]:
    """Write a run's form and key, read the answers that came back, and save their means (`human_means`).

    Items are drawn from all placements, not from those that judges are asked about. Answers lie in
    `data/raw/ratings/<profile>/`. Returns the form (None without placements) and one paragraph on what
    people say.
    """
    placements = run.load(Placement)
    dialogues = {dialogue.dialogue_id: dialogue for dialogue in run.load(Dialogue)}
    memes = run.memes()
    form, verdict = None, "No person has rated this run."
    if placements:
        asked = [placed for placed in placements if placed.strategy in COMPARED] or placements
        form = choose(asked, dialogues, seed=run.profile.seed)
        sources = {turn.source for name in form.key.dialogue_id for turn in dialogues[name].turns}
        by_models = all(source.startswith(("authored", "model ")) for source in sources)
        pictures_in, folder = run.read("memes.parquet").parent, paths.raw / "ratings" / run.profile.name
        write_page(run.report / "rating_form.html", form, memes, pictures_in, by_models)
        files.write_frame(run.write("rating_key.csv"), form.key)
        answers, left_out = collect(folder, form)
        if len(answers):
            alpha, means = ratings_summary(answers, form.key)
            run.save_tables(human_means=means)
            verdict = (
                f"{answers.rater.nunique()} person(s) gave {len(answers)} answers. Krippendorff's alpha of "
                f"the overall score: {alpha}."
            )
        if left_out:
            verdict += f" Left out: {left_out} answers that are trials or belong to other forms."
        place = ["rater", "vote", "dialogue_id", "turn"]
        votes = read_answers(folder, Vote).drop_duplicates(place, keep="last")
        if len(votes):
            verdict += f" {votes.rater.nunique()} visitor(s) of the page gave {len(votes)} votes."
    run.save_json("human_ratings.json", {"verdict": verdict})
    return form, verdict


def ratings_summary(answers: pd.DataFrame, key: pd.DataFrame) -> tuple[statistics.Estimate, pd.DataFrame]:
    """Krippendorff's alpha of the overall score, and means by strategy; a score is a mean over `DIMENSIONS`.

    The means are of the items' means over raters, so that an item rated by many counts once. Intervals (95 %)
    are over dialogues.
    """
    given = answers.assign(overall=answers[list(DIMENSIONS)].mean(axis=1))
    of_item = given.groupby("item").overall.agg(["mean", "size"])
    key = key[key.item.isin(given.item)]
    dialogue = key.drop_duplicates("item").set_index("item").dialogue_id
    wide = given.pivot(index="rater", columns="item", values="overall")
    alpha = statistics.cluster_alpha(wide.to_numpy(), dialogue[wide.columns].tolist())
    means = []
    for strategy, mine in key.groupby("strategy"):
        rated = of_item.loc[mine.item]
        mean = statistics.cluster_mean(rated["mean"].tolist(), mine.dialogue_id.tolist())
        means.append((strategy, rated["size"].sum(), mean, mean.n, mean.clusters))
    return alpha, pd.DataFrame(means, columns=["strategy", "ratings", "mean", "items", "dialogues"])
