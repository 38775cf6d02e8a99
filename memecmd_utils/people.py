"""The forms of the first paper: five ratings of a meme in its chat, or a choice between two memes.

Who rates sees a piece of a chat and one meme (or two to choose from), never a strategy or a score: items are
chosen blind and by seed, and the key is kept apart from them.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, Literal, NamedTuple

import numpy as np
import pandas as pd
from pydantic import Field, model_validator

from memecmd_utils import forms, schemas, statistics
from memecmd_utils.evaluation import judges, ratings
from memecmd_utils.files import paths
from memecmd_utils.forms import Answer, Answers, Form, FormError, Item, Line, Option, Question
from memecmd_utils.runs import Run
from memecmd_utils.schemas import DIMENSIONS
from memecmd_utils.statistics import Estimate

Kind = Literal["rating", "pairwise"]
KINDS: tuple[Kind, ...] = ("rating", "pairwise")
CHOICES = ("A", "B", "no difference")
COLUMNS = ("form", "item", "rater", "kind", *DIMENSIONS, "choice", "seconds", "at", "comment", "made_up")
"""Columns of a CSV with answers."""
WINDOW = 8
"""Turns shown, u_t included: about what fits a phone, and what the small judge sees, too."""
REPEATS = 0.1
"""Share of items shown a second time, to see how far a rater agrees with herself."""
SCALES = (
    ("语义一致", "表情包的意思和聊的内容对得上吗？", "Its meaning fits what is said"),
    ("情感一致", "表情包的情绪和此刻的情绪相符吗？", "Its emotion fits the mood"),
    ("语境得体", "在这里发它自然、得体吗？", "Sending it here is natural"),
    ("幽默效果", "在这里发它好笑吗？", "It is funny here"),
    ("对话连贯", "发了它以后，聊天还接得下去吗？", "The talk flows on after it"),
)
"""Name, question and English gloss of each of `DIMENSIONS`; the questions are those that judges are asked."""
QUESTIONS: dict[Kind, tuple[Question, ...]] = {
    "rating": tuple(
        Question(name, "scale", (title, gloss), (question, ""))
        for name, (title, question, gloss) in zip(DIMENSIONS, SCALES, strict=True)
    ),
    "pairwise": (
        Question(
            "choice",
            "one",
            ("哪个版本更好？", "Which version is better?"),
            options=(
                Option("A", "A", ("版本 A 更好", "A is better")),
                Option("B", "B", ("版本 B 更好", "B is better")),
                Option("no difference", "N", ("没有差别", "No difference")),
            ),
        ),
    ),
}
INTRO: dict[Kind, tuple[str, str]] = {
    "rating": (
        "你会看到 {n} 小段聊天，每段里有一张用虚线框出的表情包。请凭第一感觉给它打五个分，0 是“完全不”，"
        "100 是“完全是”。没有标准答案，请把分数拉开。",
        "You will see {n} pieces of chat, each with one meme in a dashed frame. Give it five scores by your "
        "first feeling, from 0 (not at all) to 100 (fully). There is no right answer; use the whole scale.",
    ),
    "pairwise": (
        "你会看到 {n} 小段聊天。同一处放着两张不同的表情包：版本 A 和版本 B，其余完全相同。请凭第一感觉选出"
        "更好的版本；分不出就选“没有差别”。",
        "You will see {n} pieces of chat. At one place stand two memes, version A and version B; all else is "
        "the same. Choose the better version by your first feeling, or “no difference”.",
    ),
}


class KeyRow(forms.KeyRow):
    """What stands behind an item: one row for each time it was drawn and each of its sides."""

    kind: Kind
    draw: int
    side: Literal["", "A", "B"]
    dialogue_id: str
    turn: Annotated[int, Field(ge=2)]
    strategy: str
    meme_id: str
    repeat_of: str
    """The item that this one repeats (pairwise: with the sides changed); empty for a first showing."""


class Draw(NamedTuple):
    """A placement, or two at the same turn, drawn for its strategy or pair of strategies."""

    dialogue_id: str
    turn: int
    placed: tuple[tuple[str, str], ...]
    """(strategy, meme id) of each side."""

    @property
    def content(self) -> tuple:
        """What a rater would see; strategies that place the same meme share it."""
        return self.dialogue_id, self.turn, tuple(sorted(meme for _, meme in self.placed))


def choose(
    placements: Sequence[schemas.Placement],
    dialogues: Mapping[str, schemas.Dialogue],
    memes: Mapping[str, schemas.Meme],
    *,
    kind: Kind,
    n_items: int,
    seed: int,
    repeats: float = REPEATS,
    meme_position: Literal["before", "after"] = "before",
) -> tuple[Form, list[KeyRow]]:
    """Choose up to `n_items` items, as many for each strategy (rating) or pair of strategies (pairwise).

    Each group is a simple random sample of its placements; a meme that two strategies placed at the same
    turn is shown once and counts for both. Pairwise items exist where two strategies place different memes
    at the same turn. `repeats`: share of items that come again later. Raises `FormError` if nothing fits.
    """
    rng = statistics.rng(seed, "rating form", kind)
    draws = _sample(groups(placements, kind), n_items, rng)
    if not draws:
        raise FormError(f"no items for a {kind} form: run 04_retrieval, with two strategies for pairwise")
    contents = [list(draws)[i] for i in rng.permutation(len(draws))]
    sides = {content: tuple(rng.permutation(content[2]).tolist()) for content in contents}
    order = [(content, sides[content], False) for content in contents]
    # Repeats of the first half come in the second, so that nobody remembers them.
    again = contents[: (len(contents) + 1) // 2][: round(repeats * len(contents))]
    for content in again:
        place = int(rng.integers((len(order) + 1) // 2, len(order) + 1))
        order.insert(place, (content, sides[content][::-1], True))
    names = {(content, repeat): forms.digest(seed, kind, content, repeat) for content, _, repeat in order}
    items = tuple(
        Item(
            names[content, repeat],
            side,
            QUESTIONS[kind],
            _lines(dialogues[content[0]], content[1], meme_position),
        )
        for content, side, repeat in order
    )
    form = forms.digest(
        seed,
        kind,
        [{"item": i.item, "lines": [one._asdict() for one in i.lines], "memes": i.pictures} for i in items],
    )
    key = [
        KeyRow(
            form=form,
            kind=kind,
            item=names[content, repeat],
            draw=number,
            side="" if kind == "rating" else "AB"[side.index(meme)],
            dialogue_id=draw.dialogue_id,
            turn=draw.turn,
            strategy=strategy,
            meme_id=meme,
            repeat_of=names[content, False] if repeat else "",
        )
        for content, side, repeat in order
        for number, draw in enumerate(draws[content], start=1)
        for strategy, meme in draw.placed
    ]
    made_by = sorted({turn.source for content in contents for turn in dialogues[content[0]].turns})
    zh, en = INTRO[kind]
    made = Form(
        form, "ratings", COLUMNS, ("表情包合适吗？", "Does the meme fit?"),
        (zh.format(n=len(items)), en.format(n=len(items))), _notes(made_by), items, kind=kind,
        alt={name: memes[name].text for item in items for name in item.pictures},
    )  # fmt: skip
    return made, key


def _notes(sources: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Who wrote the chats, as their records say."""
    models = [source.removeprefix("model ") for source in sources if source != "authored"]
    notes = []
    if "authored" in sources:
        written = "聊天内容由大语言模型撰写，不是真人聊天。"
        notes.append((written, "The chats were written by a large language model, not by people."))
    if models:
        generated = f"聊天内容由模型 {'、'.join(models)} 生成，不是真人聊天。"
        notes.append((generated, f"The chats were generated by {', '.join(models)}, not by people."))
    return tuple(notes)


def groups(placements: Sequence[schemas.Placement], kind: Kind) -> list[list[Draw]]:
    """All that could be shown, by strategy or by pair of strategies."""
    placed: dict[str, dict[tuple[str, int], str]] = {}
    for p in placements:
        placed.setdefault(p.strategy, {})[p.dialogue_id, p.turn] = p.meme_id
    if kind == "rating":
        return [[Draw(*k, ((name, at[k]),)) for k in sorted(at)] for name, at in sorted(placed.items())]
    return [
        [
            Draw(*k, ((x, placed[x][k]), (y, placed[y][k])))
            for k in sorted(placed[x])
            if placed[y].get(k, placed[x][k]) != placed[x][k]
        ]
        for x, y in itertools.combinations(sorted(placed), 2)
    ]


def _sample(groups: list[list[Draw]], n_items: int, rng: np.random.Generator) -> dict[tuple, list[Draw]]:
    """Draw from the groups in turn until `n_items` different things are to be shown."""
    shuffled = [[group[i] for i in rng.permutation(len(group))] for group in groups]
    chosen: dict[tuple, list[Draw]] = {}
    for draw in itertools.chain.from_iterable(itertools.zip_longest(*shuffled)):
        if draw is None:
            continue
        if draw.content not in chosen and len(chosen) == n_items:
            break
        chosen.setdefault(draw.content, []).append(draw)
    return chosen


def _lines(dialogue: schemas.Dialogue, turn: int, position: Literal["before", "after"]) -> tuple[Line, ...]:
    """The last turns up to u_t with the meme's place beside u_t; A owns the phone and stands right."""

    def line(said_at: schemas.Turn, text: str) -> Line:
        side, name = ("right", dialogue.name_a) if said_at.speaker == "A" else ("left", dialogue.name_b)
        return Line(side, name or said_at.speaker, text)

    seen = [t for t in dialogue.turns if turn - WINDOW < t.turn <= turn]
    lines = [line(t, t.text) for t in seen]
    lines.insert(len(lines) - (position == "before"), line(seen[-1], ""))
    return tuple(lines)


def write_forms(
    run: Run,
    placements: Sequence[schemas.Placement],
    dialogues: Mapping[str, schemas.Dialogue],
    memes: Mapping[str, schemas.Meme],
    n_items: int = 40,
) -> dict[Kind, Form]:
    """Write `rating_form.html`, `pairwise_form.html` and `rating_key.csv` of a run; return the forms.

    Items are drawn from the placements that the judges rated, so that both can be compared.
    """
    judged = ratings.to_judge(placements, run.profile)
    files = judges.meme_files(run, memes)
    made: dict[Kind, Form] = {}
    key: list[KeyRow] = []
    for kind in KINDS:
        if not any(groups(judged, kind)):
            continue  # one strategy only: there is nothing to choose between
        made[kind], rows = choose(
            judged, dialogues, memes, kind=kind, n_items=n_items, seed=run.profile.seed,
            meme_position=run.profile.retrieval.meme_position,
        )  # fmt: skip
        forms.write_page(run.report / f"{kind}_form.html", made[kind], files)
        key += rows
    forms.write_key(run.write("rating_key.csv"), KeyRow, key)
    return made


# --- Answers


Score = Annotated[float | None, Field(ge=0, le=100)]


class HumanRating(Answer):
    """One answer of one rater; five scores (rating) or a choice (pairwise)."""

    columns: ClassVar = COLUMNS
    advice: ClassVar = {
        **dict.fromkeys(DIMENSIONS, "scores go from 0 to 100"),
        "choice": f"a choice is one of {', '.join(CHOICES)}",
        "seconds": "seconds are a number, 0 or more",
    }

    kind: Kind
    semantic_consistency: Score = None
    emotional_consistency: Score = None
    contextual_appropriateness: Score = None
    humor_effect: Score = None
    conversational_coherence: Score = None
    choice: Literal["A", "B", "no difference"] | None = None
    seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0

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

    def fault(self, key: Sequence[KeyRow]) -> str:
        """The form must have such an item."""
        known = any(row.kind == self.kind for row in key)
        return "" if known else f"form {self.form} has no {self.kind} item {self.item!r}"


def collect_ratings(run: Run) -> Answers:
    """The ratings that came back for a run, in `data/raw/ratings/<profile>/`."""
    key = forms.read_key(run.read("rating_key.csv"), KeyRow)
    return forms.collect(paths.raw / "ratings" / run.profile.name, key, HumanRating)


def answer_frame(answers: Answers, kind: Kind, *, repeats: bool = False) -> pd.DataFrame:
    """Answers that count to items of `kind`: first showings, or the repeated ones."""
    repeat_of = {row.item: row.repeat_of for row in answers.key if row.kind == kind}
    rows = [
        {**rating.model_dump(), "repeat_of": repeat_of[rating.item]}
        for rating in answers.counted
        if rating.kind == kind and bool(repeat_of[rating.item]) == repeats
    ]
    table = pd.DataFrame(rows, columns=[*HumanRating.model_fields, "repeat_of"])
    table["overall"] = table[list(DIMENSIONS)].astype(float).mean(axis=1)
    return table


def key_frame(answers: Answers, kind: Kind) -> pd.DataFrame:
    """Rows of the key for first showings: what was drawn for which strategy."""
    rows = [row.model_dump() for row in answers.key if row.kind == kind and not row.repeat_of]
    return pd.DataFrame(rows, columns=list(KeyRow.model_fields))


# --- What ratings by people say


Place = tuple[str, int, str]
"""Dialogue, turn and meme: what a judge scored and a person may have rated."""
RATED = (*DIMENSIONS, "overall")
REGULARISATION = 0.01
"""choix's alpha: a little of every strategy winning against every other, so that strengths stay finite
where one never lost; with ten choices a pair it moves them by about 0.02."""
TABLES = {
    "alpha": ["kind", "scale", "level", "alpha", "low", "high", "items", "dialogues", "raters", "source"],
    "means": ["strategy", "scale", "mean", "low", "high", "items", "dialogues", "ratings", "source"],
    "bradley_terry": [
        "strategy", "strength", "low", "high", "win_rate", "win_low", "win_high", "choices", "dialogues",
        "source",
    ],
    "pairs": ["first", "second", "first_better", "second_better", "no_difference", "source"],
    "correlations": ["scorer", "spearman", "low", "high", "items", "dialogues", "source"],
    "repeats": ["rater", "kind", "items", "mean_difference", "same_choice", "source"],
}  # fmt: skip
"""Tables of `summary` with their columns."""


def ratings_summary(
    answers: Answers, judged: Mapping[str, Mapping[Place, float]] | None = None
) -> dict[str, pd.DataFrame]:
    """All tables of `TABLES`; empty ones where nobody rated. Intervals (95 %) are over dialogues.

    `judged`: score by place of each judge or other scorer (see `scores_of_judges`). Only first showings
    count, but in `repeats`. Every row says whether its ratings are human or made up.
    """
    made = {
        "alpha": _alphas(answers),
        "means": _means(answers),
        "bradley_terry": _strengths(answers),
        "pairs": _pairs(answers),
        "correlations": _correlations(answers, judged or {}),
        "repeats": _repeats(answers),
    }
    return {
        name: pd.DataFrame([{**row, "source": answers.source} for row in made[name]], columns=columns)
        for name, columns in TABLES.items()
    }


def ratings_verdict(answers: Answers, tables: Mapping[str, pd.DataFrame]) -> str:
    """One paragraph in plain words."""
    others = f" Files of other forms, not read: {', '.join(answers.left_out)}." if answers.left_out else ""
    used = answers.counted
    trials = len(answers.answers) - len(used)
    if answers.source is None:
        return "No person has rated this run." + others
    raters = len({rating.rater for rating in used})
    if answers.source == "made up":
        text = (
            "No person has rated this run. The ratings below are made up: they try out the form and say "
            f"nothing about the strategies. {len(used)} answers under {raters} name(s)."
        )
    else:
        text = f"{raters} person(s) gave {len(used)} answers."
        text += f" {trials} made-up answers are left out." if trials else ""
    if answers.doubled:
        text += f" {answers.doubled} answers were replaced by later ones."
    overall = tables["alpha"].query("scale == 'overall' or scale == 'choice'")
    for row in overall.to_dict("records"):
        known = np.isfinite(row["alpha"])
        alpha = statistics.format_interval(row, "alpha") if known else "not defined with these answers"
        text += f" Krippendorff's alpha, {row['scale']} ({row['level']}): {alpha}, "
        text += f"{row['dialogues']} dialogues."
    return text + others


def scores_of_judges(
    ratings: Sequence[schemas.Rating],
    consistency: Sequence[schemas.Consistency] = (),
    grades: Sequence[schemas.Grade] = (),
) -> dict[str, dict[Place, float]]:
    """Score of every judge, of text or image consistency with u_t, and mean grade, by place.

    A judge that scored a place more than once (several lengths or strategies) counts with its mean.
    """
    scores = [(r.judge, r, r.overall) for r in ratings if r.overall is not None]
    scores += [(f"consistency {c.scorer}", c, c.score) for c in consistency if c.text == "u_t"]
    scores += [("mean grade", g, g.grade) for g in grades]
    gathered: dict[str, dict[Place, list[float]]] = {}
    for scorer, at, score in scores:
        place = at.dialogue_id, at.turn, at.meme_id
        gathered.setdefault(scorer, {}).setdefault(place, []).append(score)
    return {
        scorer: {place: float(np.mean(at_place)) for place, at_place in places.items()}
        for scorer, places in gathered.items()
    }


def _cells(name: str, estimate: Estimate) -> dict[str, float]:
    return {
        name: estimate.mean, "low": estimate.low, "high": estimate.high, "items": estimate.n,
        "dialogues": estimate.clusters,
    }  # fmt: skip


def _alphas(answers: Answers) -> list[dict]:
    rows = []
    for kind, scales, level in (("rating", RATED, "interval"), ("pairwise", ("choice",), "nominal")):
        frame = answer_frame(answers, kind)
        dialogue = dict(key_frame(answers, kind)[["item", "dialogue_id"]].itertuples(index=False))
        for scale in scales if len(frame) else ():
            # Nominal values need no order, so the position of a choice in the list may stand for it.
            values = frame[scale] if level == "interval" else frame[scale].map({"A": 0, "B": 1}).fillna(2)
            wide = frame.assign(value=values.astype(float)).pivot(
                index="rater", columns="item", values="value"
            )
            clusters = [dialogue[item] for item in wide.columns]
            alpha = statistics.cluster_alpha(wide.to_numpy(), clusters, level)
            row = {"kind": kind, "scale": scale, "level": level, "raters": len(wide)}
            rows.append(row | _cells("alpha", alpha))
    return rows


def _means(answers: Answers) -> list[dict]:
    """Mean of the items' means over raters, so that an item rated by many counts once."""
    frame = answer_frame(answers, "rating")
    by_item = frame.groupby("item")[list(RATED)].mean()
    counts = frame.groupby("item").size()
    rows = []
    for strategy, drawn in key_frame(answers, "rating").groupby("strategy"):
        drawn = drawn[drawn.item.isin(by_item.index)]
        for scale in RATED if len(drawn) else ():
            values = by_item.loc[drawn.item, scale].tolist()
            mean = statistics.cluster_mean(values, drawn.dialogue_id.tolist())
            row = {"strategy": strategy, "scale": scale, "ratings": int(counts.loc[drawn.item].sum())}
            rows.append(row | _cells("mean", mean))
    return rows


def _choices(answers: Answers) -> pd.DataFrame:
    """One row a choice and pair of strategies: dialogue, both strategies, share won by the first."""
    drawn = key_frame(answers, "pairwise")
    sides = drawn[drawn.side == "A"].merge(drawn[drawn.side == "B"], on=["item", "draw"])
    rows = answer_frame(answers, "pairwise").merge(sides, on="item", how="inner")
    won = rows["choice"].map({"A": 1.0, "B": 0.0, "no difference": 0.5})
    columns = {"strategy_x": "first", "strategy_y": "second", "dialogue_id_x": "dialogue_id"}
    return rows.assign(won=won)[[*columns, "won"]].rename(columns=columns)


def bradley_terry(wins: np.ndarray) -> np.ndarray:
    """Strengths from `wins` [i, j], how often i was chosen over j, ties half to each; their mean is 0.

    P(i over j) = 1 / (1 + exp(s_j - s_i)) (Bradley and Terry, 1952).
    """
    import choix

    return choix.ilsr_pairwise_dense(wins, alpha=REGULARISATION, max_iter=10_000)


def _strengths(answers: Answers) -> list[dict]:
    choices = _choices(answers)
    if choices.empty:
        return []
    names = sorted({*choices["first"], *choices["second"]})
    dialogues = sorted(set(choices.dialogue_id))
    wins = np.zeros((len(dialogues), len(names), len(names)))
    for choice in choices.itertuples():
        d, i, j = dialogues.index(choice.dialogue_id), names.index(choice.first), names.index(choice.second)
        wins[d, i, j] += choice.won
        wins[d, j, i] += 1 - choice.won
    played = (wins + wins.transpose(0, 2, 1)).sum(axis=2)
    rates = statistics.ratio(wins.sum(axis=2), played)
    # A strength hangs on all choices, also those about other strategies.
    share = np.broadcast_to(played.sum(axis=1, keepdims=True) / played.sum(), played.shape)
    strengths = statistics.leave_out(np.vectorize(bradley_terry, signature="(n,n)->(n)"), share, wins)
    low, high = statistics.interval(strengths)
    win_low, win_high = statistics.interval(rates, statistics.SHARE)
    columns = {
        "strategy": names, "strength": strengths.value, "low": low, "high": high,
        "win_rate": rates.value, "win_low": win_low, "win_high": win_high,
        "choices": played.sum(axis=0).astype(int), "dialogues": rates.clusters,
    }  # fmt: skip
    return pd.DataFrame(columns).sort_values("strength", ascending=False, kind="stable").to_dict("records")


def _pairs(answers: Answers) -> list[dict]:
    choices = _choices(answers)
    # A pair's two strategies stand on either side by chance; the table names them in one order.
    turned = choices["first"] > choices["second"]
    choices.loc[turned, ["first", "second"]] = choices.loc[turned, ["second", "first"]].to_numpy()
    choices.loc[turned, "won"] = 1 - choices.loc[turned, "won"]
    return [
        {"first": first, "second": second, "first_better": int((won == 1).sum()),
         "second_better": int((won == 0).sum()), "no_difference": int((won == 0.5).sum())}
        for (first, second), won in choices.groupby(["first", "second"])["won"]
    ]  # fmt: skip


def _correlations(answers: Answers, judged: Mapping[str, Mapping[Place, float]]) -> list[dict]:
    liked = answer_frame(answers, "rating").groupby("item")["overall"].mean()
    drawn = key_frame(answers, "rating").drop_duplicates("item").set_index("item").loc[liked.index]
    places = list(zip(drawn.dialogue_id, drawn.turn.astype(int), drawn.meme_id, strict=True))
    rows = []
    for scorer, scores in judged.items() if places else ():
        both = [(at[0], ours, scores[at]) for at, ours in zip(places, liked, strict=True) if at in scores]
        rows.append({"scorer": scorer, **_cells("spearman", statistics.cluster_spearman(both))})
    return rows


def _repeats(answers: Answers) -> list[dict]:
    """How far raters agree with themselves: same item again, in a pairwise form with the sides changed."""
    rows = []
    for kind in ("rating", "pairwise"):
        again = answer_frame(answers, kind, repeats=True)
        both = again.merge(
            answer_frame(answers, kind),
            left_on=["rater", "repeat_of"],
            right_on=["rater", "item"],
            suffixes=("", "_first"),
        )
        for rater, twice in both.groupby("rater"):
            row = {"rater": rater, "kind": kind, "items": len(twice)}
            if kind == "rating":
                row["mean_difference"] = (twice.overall - twice.overall_first).abs().mean()
            else:
                turned = twice["choice"].replace({"A": "B", "B": "A"})
                row["same_choice"] = (turned == twice["choice_first"]).mean()
            rows.append(row)
    return rows
